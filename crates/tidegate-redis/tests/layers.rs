//! A layer of `tidegate-tower` over a store: one call a request, and no call that blocks. A call that
//! blocks ends no test here, since the store answers on the thread that it would block.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode};
use tidegate::AnyLimiter;
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{Store, StoreLimiter, WhileAway};
use tidegate_tower::RateLimitLayer;
use tower::{Layer, ServiceExt, service_fn};

const MS: Duration = Duration::from_millis(1);

fn model() -> Model {
    let service = Duration::from_micros(1);
    Model::new(3, Network { service, ..Network::steady(MS) })
}

fn limiter(model: &Model, while_away: WhileAway) -> StoreLimiter {
    let store = model.open(Store::builder("redis://model").while_away(while_away)).unwrap();
    let limiter = store.limiter("all");
    let limiter = limiter.limit("calls", "fixed_window 3/d".parse().unwrap());
    limiter.limit("burst", "token_bucket 1/h burst 5".parse().unwrap()).build().unwrap()
}

async fn send(layer: &RateLimitLayer<AnyLimiter>) -> (StatusCode, HeaderMap) {
    let service = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let answer = layer.layer(service).oneshot(Request::new(String::new())).await.unwrap();
    (answer.status(), answer.headers().clone())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

#[test]
fn headers_tell_every_limit_from_the_decision() {
    run(async {
        let model = model();
        let layer = RateLimitLayer::new(AnyLimiter::from(limiter(&model, WhileAway::Closed)));
        for n in 1..=3 {
            let (status, headers) = send(&layer).await;
            let state = text(&headers, "ratelimit");
            assert!(status == 200 && state.starts_with(&format!(r#""calls";r={}"#, 3 - n)), "{state}");
            assert!(state.contains(&format!(r#""burst";r={}"#, 5 - n)), "{state}");
        }
        let (status, headers) = send(&layer).await;
        let state = text(&headers, "ratelimit");
        assert!(
            status == 429 && state.contains(r#""calls";r=0"#) && state.contains(r#""burst";r=2"#),
            "{state}"
        );
        assert!(!text(&headers, "retry-after").is_empty());
        // One for each request, and the text of the script.
        assert_eq!(model.calls(), 4 + 1);
    });
}

#[test]
fn requests_that_no_limit_counts_are_answered_without_blocking() {
    run(async {
        let model = model();
        let store = limiter(&model, WhileAway::Closed);
        let layer = RateLimitLayer::new(AnyLimiter::from(store.clone()));
        let too_many = layer.clone().cost(|_| 9);
        let (status, headers) = send(&too_many).await;
        assert!(status == 429 && text(&headers, "ratelimit").contains(r#""calls";r=3"#), "{headers:?}");
        store.set_shadow(true);
        for _ in 0..5 {
            let (status, headers) = send(&layer).await;
            assert!(status == 200 && !text(&headers, "ratelimit").is_empty(), "{headers:?}");
        }
    });
}

#[test]
fn a_store_that_is_away_is_asked_for_no_headers() {
    let two = NonZeroU32::new(2).unwrap();
    for (while_away, expected) in [
        (WhileAway::Open, StatusCode::OK),
        (WhileAway::Closed, StatusCode::SERVICE_UNAVAILABLE),
        (WhileAway::ShareOf(two), StatusCode::TOO_MANY_REQUESTS),
    ] {
        run(async move {
            let model = model();
            let layer = RateLimitLayer::new(AnyLimiter::from(limiter(&model, while_away)));
            assert_eq!(send(&layer).await.0, 200);
            model.kill();
            let mut calls = 0;
            for _ in 0..20 {
                let (status, headers) = send(&layer).await;
                assert_eq!(status, expected, "{headers:?}");
                let is_told = while_away == WhileAway::ShareOf(two);
                assert_eq!(!text(&headers, "ratelimit").is_empty(), is_told, "{headers:?}");
                calls += 1;
            }
            assert_eq!(calls, 20);
        });
    }
}
