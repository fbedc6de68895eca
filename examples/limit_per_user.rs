//! An axum server that refuses a user above 2 requests a second, and says until when.
//!
//! `cargo run --features keyed --example limit_per_user`

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use tidegate::{KeyedRateLimiter, Rate, TokenBucket};

type Users = KeyedRateLimiter<String>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two at once, then two a second; at most 100,000 users in memory.
    let users = Users::new(TokenBucket::new(Rate::per_second(2), 2), 100_000);
    let app = Router::new().route("/", get(move |headers| answer(users.clone(), headers)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, app).await });

    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::new();
    for user in ["ann", "ann", "ann", "bob"] {
        let answer = client.get(&url).header("x-user", user).send().await?;
        println!("{user}: {} {:?}", answer.status(), answer.headers().get("retry-after"));
    }
    Ok(())
}

async fn answer(users: Users, headers: HeaderMap) -> Response {
    let user = headers.get("x-user").and_then(|user| user.to_str().ok()).unwrap_or("");
    match users.try_acquire(user) {
        Ok(_) => "hello\n".into_response(),
        Err(refusal) => match refusal.retry_after_secs() {
            Some(secs) => {
                (StatusCode::TOO_MANY_REQUESTS, [("retry-after", secs.to_string())]).into_response()
            }
            // All keys are in use and limited: the server is short of room.
            None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        },
    }
}
