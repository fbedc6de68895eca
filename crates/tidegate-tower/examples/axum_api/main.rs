//! An axum server with a plan for each API key, read from a TOML file.
//!
//! ```sh
//! cargo run --release -p tidegate-tower --example axum_api
//! curl -i -H 'x-api-key: key-of-bob' http://127.0.0.1:3000/
//! ```
//!
//! An answer tells the limit in its headers. A request above the plan gets status 429, a request
//! without a known key 401. The plans change at run time:
//!
//! ```sh
//! sed 's|5/s burst 10|1/s burst 1|' crates/tidegate-tower/examples/axum_api/plans.toml |
//!     curl --data-binary @- -H 'authorization: Bearer secret' http://127.0.0.1:3000/admin/plans
//! ```

mod plans;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;

use self::plans::Plans;

const PLANS: &str = include_str!("plans.toml");

/// Replaces the plans by those of the body.
async fn change(State(plans): State<Plans>, headers: HeaderMap, text: String) -> (StatusCode, String) {
    let secret = std::env::var("ADMIN_TOKEN").unwrap_or_else(|_| "secret".into());
    if headers.get("authorization").is_none_or(|token| *token != format!("Bearer {secret}")) {
        return (StatusCode::UNAUTHORIZED, String::new());
    }
    match plans.change(&text) {
        Ok(kept) => (StatusCode::OK, format!("changed, {kept} keys keep their old plan for now\n")),
        Err(error) => (StatusCode::BAD_REQUEST, error),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".into());
    let text = arguments.next().map_or(Ok(PLANS.to_owned()), std::fs::read_to_string)?;

    let plans = Plans::read(&text)?;
    let keys = plans.clone();
    let limit = RateLimitLayer::keyed(plans.limiter.clone(), move |request| keys.key(request))
        .named("plan")
        // A report costs as much as five other requests.
        .cost(|request| if request.uri.path().starts_with("/report") { 5 } else { 1 });

    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/report/{name}", get(|Path(name): Path<String>| async move { format!("report {name}\n") }))
        .layer(limit)
        // Added after the layer, so it is not limited.
        .route("/admin/plans", post(change).with_state(plans));
    let listener = TcpListener::bind(address).await?;
    println!("http://{}/", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
