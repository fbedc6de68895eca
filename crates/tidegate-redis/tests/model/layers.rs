//! A layer of `tidegate-tower` over a store: one call per request, and no call that blocks. A
//! blocking call would hang here, because the store replies on the thread that the call would
//! block.

use std::convert::Infallible;
use std::num::NonZeroU32;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use tidegate::io::Throttled;
use tidegate::{AnyKeyed, AnyLimiter, DefaultClock};
use tidegate_http::obey::{Obey, Options};
use tidegate_redis::simulation::{Model, run};
use tidegate_redis::{Store, StoreLimiter, WhileAway};
use tidegate_tower::{RateLimitLayer, ReadyRateLimitLayer, Refused};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::{MS, model};

fn limiter(model: &Model, while_away: WhileAway) -> StoreLimiter {
    let store = model.open(Store::builder("redis://model").while_away(while_away)).unwrap();
    let limiter = store.limiter("all");
    let limiter = limiter.limit("calls", "fixed_window 3/d");
    limiter.limit("burst", "token_bucket 1/h burst 5").build().unwrap()
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
fn headers_report_every_limit_from_the_decision() {
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

/// Headers had the name of the layer, and refusals the name of the limit in the store. The wait was
/// therefore not that of the limit in the headers.
#[test]
fn an_only_limit_has_the_name_of_the_layer_in_headers_and_refusals() {
    run(async {
        let store = model().open(Store::builder("redis://model")).unwrap();
        let limiter = store.limiter("all").limit("calls", "token_bucket 1/min burst 5");
        let layer =
            RateLimitLayer::new(AnyLimiter::from(limiter.build().unwrap())).named("uploads").cost(|_| 5);
        assert_eq!(send(&layer).await.0, 200);
        for (layer, state) in
            [(layer.clone().cost(|_| 1), r#""uploads";r=0;t=60"#), (layer.cost(|_| 1).no_headers(), "")]
        {
            let layer = layer.refuse_with(|refused: &Refused, _: &Parts| {
                Response::builder().status(429).header("limit", refused.limit()).body(String::new()).unwrap()
            });
            let (status, headers) = send(&layer).await;
            assert_eq!((status, text(&headers, "limit")), (StatusCode::TOO_MANY_REQUESTS, "uploads"));
            assert_eq!((text(&headers, "ratelimit"), text(&headers, "retry-after")), (state, "60"));
        }
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
fn a_store_that_is_away_gets_no_call_for_headers_and_a_share_has_its_own() {
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
                let told = ["ratelimit-policy", "ratelimit", "retry-after"].map(|name| text(&headers, name));
                match while_away {
                    WhileAway::Open => assert_eq!(told, [""; 3]),
                    // The time until the breaker lets the store be asked again.
                    WhileAway::Closed => assert!(matches!(told, ["", "", "0" | "1"]), "{told:?}"),
                    // The limits of this process, one of which is used up.
                    _ => {
                        let [policy, state, wait] = told;
                        assert_eq!(policy, r#""calls";q=1;w=86400, "burst";q=2;w=14400"#);
                        let both = format!(r#""calls";r=0;t={wait}, "burst";r=1;t=7200"#);
                        assert!(state == both && !wait.is_empty(), "{told:?}");
                    }
                }
                calls += 1;
            }
            assert_eq!(calls, 20);
        });
    }
}

#[test]
fn each_key_has_limits_of_its_own() {
    run(async {
        let model = model();
        let store = model.open(Store::builder("redis://model")).unwrap();
        let users = store.keyed("users").limit("calls", "fixed_window 2/d").build().unwrap();
        let key = |request: &http::request::Parts| {
            let key = request.headers.get("x-api-key").ok_or(StatusCode::UNAUTHORIZED)?;
            Ok(key.to_str().unwrap_or_default().to_owned())
        };
        let layer = RateLimitLayer::keyed(AnyKeyed::from(users.clone()), key);
        let service =
            service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
        let mut answers = Vec::new();
        for key in [Some("alice"), Some("alice"), Some("bob"), Some("alice"), None] {
            let mut request = Request::builder();
            if let Some(key) = key {
                request = request.header("x-api-key", key);
            }
            let request = request.body(String::new()).unwrap();
            let answer = layer.clone().layer(service).oneshot(request).await.unwrap();
            answers.push((answer.status().as_u16(), text(answer.headers(), "ratelimit").to_owned()));
        }
        let statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
        assert_eq!(statuses, [200, 200, 200, 429, 401]);
        let left = ["r=1", "r=0", "r=1", "r=0", ""];
        assert!(answers.iter().zip(left).all(|((_, told), left)| told.contains(left)), "{answers:?}");
        assert_eq!(model.calls(), 4 + 1);
        assert!(users.is_empty());
    });
}

#[test]
fn permits_are_settled_without_blocking() {
    run(async {
        let model = model();
        let store = limiter(&model, WhileAway::Closed);
        let layer = RateLimitLayer::new(AnyLimiter::from(store.clone())).cost(|_| [("burst", 4)]);
        let (used, refund) =
            (layer.clone().settle(|_| Some([("burst", 1)])), layer.clone().refund_if(|_| true));
        let wait = used.clone().wait_at_most(Duration::from_secs(1));
        let mut burst = Vec::new();
        for layer in [&used, &refund, &wait] {
            let (status, headers) = send(layer).await;
            burst.push((status.as_u16(), text(&headers, "ratelimit").to_owned()));
            tokio::time::sleep(10 * MS).await;
        }
        // The permits that each of them left before it was settled.
        for ((status, told), left) in burst.iter().zip(["r=1", "r=0", "r=0"]) {
            assert!(*status == 200 && told.contains(&format!(r#""burst";{left}"#)), "{burst:?}");
        }
        let status = store.status().await.unwrap();
        assert_eq!(status.member("burst").unwrap().available, 3);
        assert_eq!(status.member("calls").unwrap().available, 1);
        // The refusals of the store, and of this process.
        let (status, headers) = send(&used.clone()).await;
        assert!(status == 429 && text(&headers, "ratelimit").contains(r#""burst";r=3"#), "{headers:?}");
        let (status, headers) = send(&used.clone().cost(|_| [("burst", 6)])).await;
        assert!(status == 429 && text(&headers, "ratelimit").contains(r#""burst";r=3"#), "{headers:?}");
        let (status, _) = send(&used.clone().cost(|_| 0)).await;
        assert_eq!(status, 200);
        // An exempt request gets no headers.
        let exempt = used.clone().cost(|_| tidegate::Request::permits(1).exempt());
        let (status, headers) = send(&exempt).await;
        assert!(status == 200 && text(&headers, "ratelimit").is_empty(), "{headers:?}");
        model.kill();
        assert_eq!(send(&used).await.0, StatusCode::SERVICE_UNAVAILABLE);
    });
}

#[test]
fn a_share_is_settled_as_the_store_is() {
    run(async {
        let model = model();
        let limiter = limiter(&model, WhileAway::ShareOf(NonZeroU32::new(1).unwrap()));
        let layer = RateLimitLayer::new(AnyLimiter::from(limiter)).cost(|_| [("burst", 4)]);
        let layer = layer.settle(|_| Some([("burst", 1)]));
        assert_eq!(send(&layer).await.0, 200);
        model.kill();
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(send(&layer).await.0.as_u16());
        }
        assert_eq!(statuses, [200, 200, 429, 429]);
    });
}

#[test]
fn permits_are_taken_before_a_request_without_blocking() {
    run(async {
        let model = model();
        let store = limiter(&model, WhileAway::Closed);
        let layer = ReadyRateLimitLayer::plain(AnyLimiter::from(store.clone()));
        let service = service_fn(async |_: ()| Ok::<_, Infallible>(()));
        let mut service = layer.layer(service);
        for left in [2, 1] {
            service.ready().await.unwrap().call(()).await.unwrap();
            assert_eq!(store.status().await.unwrap().members[0].1.available, left);
        }
        // A service that is dropped before its call gives its permit back.
        service.ready().await.unwrap();
        drop(service);
        tokio::time::sleep(10 * MS).await;
        assert_eq!(store.status().await.unwrap().members[0].1.available, 1);
    });
}

#[test]
fn a_server_is_obeyed_without_blocking() {
    run(async {
        let store = model().open(Store::builder("redis://model")).unwrap();
        let limit = store.limiter("all").limit("calls", "fixed_window 100/d");
        let store = limit.build().unwrap();
        let options = Options::new().clock(DefaultClock::new());
        let api = Obey::with_options(AnyLimiter::from(store.clone()), options);
        let mut call = api.acquire().await.unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in [("limit", "5"), ("remaining", "1"), ("reset", "3600")] {
            headers.insert(
                http::HeaderName::try_from(format!("ratelimit-{name}")).unwrap(),
                value.parse().unwrap(),
            );
        }
        let told = call.obey(StatusCode::OK, &headers);
        assert!(told.error.is_none(), "{told:?}");
        drop(call);
        tokio::time::sleep(10 * MS).await;
        let available = async || store.status().await.unwrap().members[0].1.available;
        assert_eq!(available().await, 1);
        let call = api.reserve(1).unwrap().await.unwrap();
        assert_eq!(available().await, 0);
        call.settle(0).unwrap();
        api.forget();
        tokio::time::sleep(10 * MS).await;
        assert_eq!(available().await, 1);
    });
}

#[test]
fn bytes_are_limited_without_blocking() {
    run(async {
        let store = model().open(Store::builder("redis://model")).unwrap();
        let limiter = store.limiter("all").limit("bytes", "token_bucket 10000/s burst 1000");
        let limiter = AnyLimiter::from(limiter.build().unwrap());
        assert_eq!(tidegate::io::chunk_size(&limiter), 512);
        let began = tokio::time::Instant::now();
        let mut bytes = Vec::new();
        let mut reader = Throttled::new(&[7; 11_000][..]).limit_reads(limiter);
        tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut bytes).await.unwrap();
        let took = began.elapsed();
        assert!(bytes.len() == 11_000 && took >= 900 * MS && took <= 1100 * MS, "{took:?}");
    });
}
