//! The layers of a client, and of a service of any kind.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::error::Error as _;
use std::future::ready;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate::{
    AllOf, AnyLimiter, CountingLimit, KeyedRateLimiter, ManualClock, Rate, RateLimiter, Refusal,
    SmoothBursty, TokenBucket, TokioClock, Unlimited,
};
use tidegate_tower::{Error, RateLimitLayer};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};

fn limiter(burst: u32) -> RateLimiter<TokenBucket, ManualClock> {
    RateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), burst), ManualClock::new())
}

#[tokio::test(start_paused = true)]
async fn a_client_waits_for_its_turn() {
    let limit = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(10)), TokioClock::new());
    let inner = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let mut service = RateLimitLayer::new(limit).for_client().layer(inner);
    let begin = Instant::now();
    for n in 0..5 {
        service.ready().await.unwrap().call(Request::default()).await.unwrap();
        assert_eq!(begin.elapsed(), Duration::from_millis(100) * n);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_is_an_error_with_its_reason() {
    let policy = SmoothBursty::new(Rate::per_second(1));
    let hosts: KeyedRateLimiter<String, _, _> = KeyedRateLimiter::with_clock(policy, 10, TokioClock::new());
    let layer = RateLimitLayer::keyed(hosts, |request| request.uri.host().map(String::from)).for_client();
    let inner = service_fn(|_: Request<()>| ready(Err::<Response<String>, _>(std::fmt::Error)));
    let mut service = layer.wait_at_most(Duration::from_millis(500)).layer(inner);
    let mut call = async |host: &str| {
        let request = Request::get(format!("http://{host}/")).body(()).unwrap();
        service.ready().await.unwrap().call(request).await.unwrap_err()
    };
    assert!(matches!(call("a.example").await, Error::Service(std::fmt::Error)));
    let error = call("a.example").await;
    let refused = error.refused().unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    // In 500 ms the request would wait for 500 ms.
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(500)));
    assert!(error.source().is_some());
    assert!(error.into_boxed().is::<tidegate_tower::Refused>());
    assert!(matches!(call("b.example").await, Error::Service(_)));
}

#[tokio::test]
async fn a_client_of_hyper_keeps_a_counted_permit_until_the_body_ends() {
    let in_flight = CountingLimit::new(1);
    let unlimited = RateLimiter::with_clock(Unlimited, ManualClock::new());
    let limit = AllOf::new("rate", &unlimited).with_counting("calls", &in_flight);
    let app = axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, app).await });

    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut client = RateLimitLayer::new(limit).for_client().layer(client);
    let request = Request::get(url).body(Empty::new()).unwrap();
    let response = client.ready().await.unwrap().call(request).await.unwrap();
    assert_eq!(in_flight.available(), 0);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(in_flight.available(), 1);
}

#[tokio::test]
async fn any_service_can_be_limited() {
    let limit = limiter(3);
    let layer = RateLimitLayer::plain(limit.clone())
        .cost(|n: &u32| *n)
        .refuse()
        .exempt(|n| *n == 1000)
        .settle(|answer: &u32| (*answer == 0).then_some(0));
    let mut service = layer.layer(service_fn(|n: u32| ready(Ok::<_, Infallible>(n / 2))));
    let mut call = async |n| service.ready().await.unwrap().call(n).await;
    assert_eq!(call(2).await.unwrap(), 1);
    assert_eq!(limit.status().available, 1);
    // Settled with 0.
    assert_eq!(call(1).await.unwrap(), 0);
    assert_eq!(limit.status().available, 1);
    let error = call(2).await.unwrap_err();
    let refused = error.refused().and_then(|refused| refused.refusal()?.refusal());
    assert!(matches!(refused, Some(Refusal::Limited { .. })));
    assert_eq!(call(1000).await.unwrap(), 500);
}

#[tokio::test]
async fn keys_and_kinds_of_limiters_are_many() {
    let users =
        KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), 1), 10, ManualClock::new());
    let inner = service_fn(|user: &'static str| ready(Ok::<_, Infallible>(user)));
    let layer = RateLimitLayer::plain_keyed(users, |user: &&'static str| *user).refuse();
    let mut service = layer.layer(inner);
    let mut granted = Vec::new();
    for user in ["alice", "alice", "bob"] {
        granted.extend(service.ready().await.unwrap().call(user).await.ok());
    }
    assert_eq!(granted, ["alice", "bob"]);

    let any = AnyLimiter::from(limiter(1));
    let mut service = RateLimitLayer::plain(any).refuse().layer(inner);
    assert!(service.ready().await.unwrap().call("alice").await.is_ok());
    assert!(service.ready().await.unwrap().call("alice").await.is_err());
}

/// A call whose service fails has used its permits of the rate, and its permit in flight is given
/// back.
#[tokio::test]
async fn a_failed_call_has_used_its_permits() {
    let in_flight = CountingLimit::new(1);
    let rate = limiter(2);
    let limit = AllOf::new("rate", &rate).with_counting("calls", &in_flight);
    let inner = service_fn(|(): ()| ready(Err::<(), _>(std::fmt::Error)));
    let layer = RateLimitLayer::plain(limit).settle(|(): &()| Some(0));
    assert!(layer.layer(inner).oneshot(()).await.is_err());
    assert_eq!((rate.status().available, in_flight.available()), (1, 1));
    assert!(layer.refund_errors().layer(inner).oneshot(()).await.is_err());
    assert_eq!((rate.status().available, in_flight.available()), (1, 1));
}

#[tokio::test]
async fn the_permits_of_a_failed_call_can_go_back() {
    let rate = limiter(2);
    let inner = service_fn(|is_ok: bool| ready(is_ok.then_some(()).ok_or(std::fmt::Error)));
    let mut service = RateLimitLayer::plain(rate.clone()).refund_errors().layer(inner);
    let mut call = async |is_ok| service.ready().await.unwrap().call(is_ok).await;
    for _ in 0..5 {
        assert!(matches!(call(false).await, Err(Error::Service(_))));
        assert_eq!(rate.status().available, 2);
    }
    call(true).await.unwrap();
    assert_eq!(rate.status().available, 1);
}
