//! The routes of the server.

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use tidegate_tower::RateLimitLayer;

use crate::plans::Plans;

pub(crate) fn new(plans: Plans) -> Router {
    let keys = plans.clone();
    let limit = RateLimitLayer::keyed(plans.limiter.clone(), move |request| keys.key(request))
        .named("plan")
        // A report costs as much as five other requests.
        .cost(|request| if request.uri.path().starts_with("/report") { 5 } else { 1 });

    Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/report/{name}", get(|Path(name): Path<String>| async move { format!("report {name}\n") }))
        .layer(limit)
        // Added after the layer, so it is not limited.
        .route("/admin/plans", post(change).with_state(plans))
}

/// Replaces the plans by the plans in the body.
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
