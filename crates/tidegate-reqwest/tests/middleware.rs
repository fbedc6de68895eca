//! The middleware, below one that retries.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use reqwest::Client;
use reqwest_middleware::{ClientBuilder, Error as MiddlewareError};
use reqwest_retry::RetryTransientMiddleware;
use reqwest_retry::policies::ExponentialBackoff;
use tidegate::{AllRefusal, ManualClock, Rate, RateLimiter, TokenBucket};
use tidegate_http::obey::{Obey, Options};
use tidegate_reqwest::RateLimit;
use tokio::net::TcpListener;

/// Fails two requests, and then responds with 200.
async fn server() -> String {
    let requests = Arc::new(AtomicU32::new(0));
    let app = Router::new().fallback(move || async move {
        match requests.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::OK,
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, app).await });
    url
}

#[tokio::test]
async fn each_try_costs_a_permit() {
    let url = server().await;
    let policy = TokenBucket::new(Rate::per_hour(1), 4);
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    let obey = Obey::with_options(limiter.clone(), Options::new().clock(clock));
    let limit = RateLimit::obeying(obey).wait_at_most(Duration::ZERO);
    let at_once = ExponentialBackoff::builder().retry_bounds(Duration::ZERO, Duration::ZERO);
    let client = ClientBuilder::new(Client::new())
        .with(RetryTransientMiddleware::new_with_policy(at_once.build_with_max_retries(3)))
        .with(limit)
        .build();
    assert_eq!(client.get(&url).send().await.unwrap().status(), StatusCode::OK);
    assert_eq!(limiter.status().available, 1);

    assert_eq!(client.get(&url).send().await.unwrap().status(), StatusCode::OK);
    let error = client.get(&url).send().await.unwrap_err();
    let MiddlewareError::Middleware(error) = error else { panic!("{error}") };
    let refusal = error.chain().find_map(|cause| cause.downcast_ref::<AllRefusal>());
    assert_eq!(refusal.unwrap().retry_after(), Some(Duration::from_secs(3600)));
}
