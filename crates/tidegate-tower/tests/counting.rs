//! Limits of calls in flight only, in each layer.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::future::ready;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tidegate::{CountingLimit, KeyedCountingLimit, Request as Ask};
use tidegate_tower::{RateLimitLayer, ReadyRateLimitLayer};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};
use tower::{Layer, Service, ServiceExt, service_fn};

fn echo() -> impl Service<
    Request<String>,
    Response = Response<String>,
    Error = Infallible,
    Future: Future<Output = Result<Response<String>, Infallible>>,
> + Clone {
    service_fn(|request: Request<String>| ready(Ok(Response::new(request.into_body()))))
}

fn hello() -> Request<String> {
    Request::new("hello".to_owned())
}

#[tokio::test]
async fn a_call_is_in_flight_until_its_body_ends() {
    let calls = CountingLimit::new(1);
    let service = RateLimitLayer::new(calls.clone()).named("calls").layer(echo());
    let first = service.clone().oneshot(hello()).await.unwrap();
    assert_eq!(first.headers()["ratelimit-policy"], r#""calls";q=1;qu="concurrent-requests""#);
    let refused = service.clone().oneshot(hello()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["ratelimit"], r#""calls";r=0"#);
    // The time at which a permit comes back is unknown.
    assert!(!refused.headers().contains_key("retry-after"));
    first.into_body().collect().await.unwrap();
    assert_eq!(calls.available(), 1);
    assert_eq!(service.oneshot(hello()).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn users_have_calls_of_their_own() {
    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 10);
    let layer = RateLimitLayer::keyed(calls.clone(), |request| {
        request.headers.get("user").and_then(|user| user.to_str().ok()).map(String::from)
    });
    let service = layer.layer(echo());
    let call = async |user: &str| {
        let request = Request::get("/").header("user", user).body(String::new()).unwrap();
        service.clone().oneshot(request).await.unwrap()
    };
    let (alice, bob) = (call("alice").await, call("bob").await);
    assert_eq!((alice.status(), bob.status()), (StatusCode::OK, StatusCode::OK));
    // A body without bytes has ended at once.
    assert_eq!((calls.available("alice"), calls.len()), (1, 0));
    let held = calls.try_acquire("alice").unwrap();
    assert_eq!(call("alice").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(call("bob").await.status(), StatusCode::OK);
    drop(held);
    assert_eq!(calls.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn calls_wait_in_turn_or_for_a_time() {
    let calls = CountingLimit::new(1);
    let waiting = RateLimitLayer::new(calls.clone()).wait().layer(echo());
    let held = calls.try_acquire().unwrap();
    let mut first = spawn(waiting.clone().oneshot(hello()));
    let mut second = spawn(waiting.clone().oneshot(hello()));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    let bounded = RateLimitLayer::new(calls.clone()).wait_at_most(Duration::from_secs(3)).layer(echo());
    let begin = tokio::time::Instant::now();
    assert_eq!(bounded.oneshot(hello()).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(begin.elapsed(), Duration::from_secs(3));
    drop(held);
    assert_pending!(second.poll());
    let answer = assert_ready!(first.poll()).unwrap();
    assert_pending!(second.poll());
    drop(answer);
    drop(assert_ready!(second.poll()).unwrap());
    assert_eq!(calls.available(), 1);
}

#[tokio::test]
async fn calls_can_cost_more_or_nothing_and_can_be_settled() {
    let calls = CountingLimit::new(3);
    let layer = RateLimitLayer::new(calls.clone()).cost(|request| match request.method.as_str() {
        "PUT" => Ask::permits(3),
        "GET" => Ask::permits(1),
        _ => Ask::permits(9).exempt(),
    });
    for layer in [layer.clone(), layer.refund_if(|_| true)] {
        let service = layer.layer(echo());
        let call = |method: &str| {
            let request = Request::builder().method(method).body("hello".to_owned()).unwrap();
            service.clone().oneshot(request)
        };
        let one = call("GET").await.unwrap();
        assert_eq!(call("PUT").await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(call("DELETE").await.unwrap().status(), StatusCode::OK);
        assert_eq!(calls.available(), 2);
        drop(one);
        let all = call("PUT").await.unwrap();
        assert_eq!(calls.available(), 0);
        drop(all);
        assert_eq!(calls.available(), 3);
    }
}

#[tokio::test]
async fn services_become_ready_in_turn() {
    let calls = CountingLimit::new(1);
    let layer = ReadyRateLimitLayer::plain(calls.clone());
    let plain = service_fn(|n: u32| ready(Ok::<_, Infallible>(n)));
    let mut services: Vec<_> = (0..4).map(|_| layer.layer(plain)).collect();
    let mut first = services.remove(0);
    first.ready().await.unwrap();
    // The last service is polled last at first, and first after that.
    assert_eq!(services.iter_mut().map(is_ready).collect::<Vec<_>>(), [false, false, false]);
    while !services.is_empty() {
        drop(first.call(7));
        let ready: Vec<_> = services.iter_mut().rev().map(is_ready).collect();
        assert_eq!(ready.iter().position(|ready| *ready), Some(services.len() - 1));
        first = services.remove(0);
    }
    drop(first);
    assert_eq!(calls.available(), 1);
}

fn is_ready<S: Service<u32>>(service: &mut S) -> bool {
    matches!(service.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())))
}
