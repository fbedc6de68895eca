//! An axum server with a plan for each API key, read from TOML. Each response has the `RateLimit`
//! headers of its own decision. A call above the plan gets 429 and `Retry-After`. It prints the
//! status and the headers of six calls: `cargo run --features keyed,serde --example limit_per_user`
//!
//! Here each text is a user. A real server checks first that the key is one of its own: otherwise a
//! client gets a new limit with each key that it makes up.

use std::collections::HashMap;

use axum::http::{HeaderMap, StatusCode};
use axum::{Router, extract::State, routing::get};
use tidegate::{AnyPolicy, KeyedRateLimiter, Plan, Request};
use tidegate_http::write::{self, Format, Limit};

type Users = KeyedRateLimiter<String, AnyPolicy>;
#[derive(serde::Deserialize)]
struct Config {
    free: AnyPolicy,
    plans: HashMap<String, AnyPolicy>,
    users: HashMap<String, String>,
}
const CONFIG: &str = "free = 'token_bucket 2/s burst 2'
plans.pro = 'token_bucket 50/s burst 100'
users.ann = 'pro'";

async fn answer(State(users): State<Users>, headers: HeaderMap) -> (StatusCode, HeaderMap) {
    let user = headers.get("x-api-key").and_then(|user| user.to_str().ok()).unwrap_or("");
    let (mut told, draft) = (HeaderMap::new(), Format::Draft);
    let plan = |quota| Limit::new("plan", quota).expect("the name is ASCII");
    let status = match users.try_acquire_many(user, Request::permits(1).with_left()) {
        Ok(grant) => {
            if let Some(left) = grant.left() {
                let reset = if left.available > 0 { left.full_in } else { left.next_in };
                write::granted(&[plan(left.limit).remaining(left.available).reset(reset)], draft, &mut told);
            }
            StatusCode::OK
        }
        Err(refusal) => {
            // Without a time, the limiter has no room for another user.
            let Some(wait) = refusal.retry_after() else { return (StatusCode::SERVICE_UNAVAILABLE, told) };
            write::refused(&[plan(users.status(user).limit).remaining(0)], wait, draft, &mut told);
            StatusCode::TOO_MANY_REQUESTS
        }
    };
    (status, told)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Config { free, plans, users } = toml::from_str(CONFIG)?;
    let plans: HashMap<_, _> = plans.into_iter().map(|(name, policy)| (name, Plan::new(policy))).collect();
    let users = Users::new(free, 100_000).with_plans(move |user| plans.get(users.get(user)?).cloned());
    let app = Router::new().route("/", get(answer)).with_state(users);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (client, url) = (reqwest::Client::new(), format!("http://{}", listener.local_addr()?));
    tokio::spawn(async { axum::serve(listener, app).await });
    for user in ["ann", "ann", "bob", "bob", "bob", "ann"] {
        let answer = client.get(&url).header("x-api-key", user).send().await?;
        println!("{user}: {} {:?}", answer.status(), answer.headers());
    }
    Ok(())
}
