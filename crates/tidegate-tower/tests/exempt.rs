//! Requests that are exempt by their cost, at keyed limiters that have no room or are closed.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use tidegate::{
    AnyKeyed, CountingLimit, KeyedAllOf, KeyedCountingLimit, KeyedRateLimiter, ManualClock, Rate,
    RateLimiter, Request as Ask, Statistics, TokenBucket, WhenKeysFull,
};
use tidegate_tower::{Limit, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};

type Users = KeyedRateLimiter<String, TokenBucket, ManualClock>;

fn user(request: &Parts) -> String {
    request.uri.path().to_owned()
}

/// A request is exempt if it has a header that says so.
fn ask(request: &Parts) -> Ask {
    if request.headers.contains_key("exempt") { Ask::permits(1).exempt() } else { Ask::permits(1) }
}

/// Creates a table with room for one key, and a `KeyedAllOf` of its limits.
fn table() -> (Users, Arc<Statistics>, KeyedAllOf<str, ManualClock>) {
    let statistics = Arc::new(Statistics::new());
    let policy = TokenBucket::new(Rate::per_second(5), 1);
    let users = Users::with_clock(policy, 1, ManualClock::new());
    let all = KeyedAllOf::new("user", &users).observed_by(statistics.clone());
    (users, statistics, all)
}

/// Creates a layer for each kind of call: one that refuses, one that waits, and one that settles.
fn layers<L>(limit: &L) -> [RateLimitLayer<L>; 3]
where
    L: Limit<Key = String>,
    Ask: Into<L::Ask>,
{
    let layer = RateLimitLayer::keyed(limit.clone(), user).cost(ask);
    [layer.clone(), layer.clone().wait(), layer.refund_errors()]
}

async fn status<L: Limit>(layer: &RateLimitLayer<L>, user: &str, exempt: bool) -> StatusCode {
    let inner = service_fn(|_: Request<String>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let mut request = Request::get(user).body(String::new()).unwrap();
    if exempt {
        request.headers_mut().insert("exempt", "1".parse().unwrap());
    }
    layer.layer(inner).oneshot(request).await.unwrap().status()
}

/// The layer asked an `AnyKeyed` for the limiter of the key, which a full table does not have.
#[tokio::test]
async fn an_exempt_request_needs_no_room_for_its_key() {
    for kind in 0..3 {
        let (_, statistics, all) = table();
        let any = AnyKeyed::from(all.clone());
        for (layer, any) in layers(&all).iter().zip(&layers(&any)).skip(kind).take(1) {
            assert_eq!(status(layer, "/alice", false).await, StatusCode::OK);
            assert_eq!(status(layer, "/bob", true).await, StatusCode::OK);
            assert_eq!(status(any, "/bob", true).await, StatusCode::OK);
            // The observer is notified of each exempt request, and of a refusal.
            assert_eq!(statistics.snapshot().exempted, 2);
            assert_eq!(statistics.snapshot().granted, 1);
            assert_eq!(status(layer, "/bob", false).await, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(status(any, "/bob", false).await, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(statistics.snapshot().too_many_keys, 2);
        }
    }
}

#[tokio::test]
async fn an_exempt_request_passes_closed_limiters_of_keys() {
    let (users, _, all) = table();
    users.close();
    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 1);
    calls.close();
    for kind in 0..3 {
        assert_eq!(status(&layers(&users)[kind], "/bob", true).await, StatusCode::OK, "one, {kind}");
        assert_eq!(status(&layers(&all)[kind], "/bob", true).await, StatusCode::OK, "several, {kind}");
        assert_eq!(status(&layers(&calls)[kind], "/bob", true).await, StatusCode::OK, "calls, {kind}");
        for any in [AnyKeyed::from(users.clone()), all.clone().into(), calls.clone().into()] {
            let layer = &layers(&any)[kind];
            assert_eq!(status(layer, "/bob", true).await, StatusCode::OK, "{any:?}, {kind}");
            assert_eq!(status(layer, "/bob", false).await, StatusCode::SERVICE_UNAVAILABLE);
        }
    }
}

/// A layer that settles asked a limit of calls for the limit of the key, which had no room.
#[tokio::test]
async fn an_exempt_call_needs_no_room_for_its_key() {
    for kind in 0..3 {
        let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 1);
        let _alice = calls.try_acquire("alice").unwrap();
        let (any, bob) = (AnyKeyed::from(calls.clone()), "/bob");
        assert_eq!(status(&layers(&calls)[kind], bob, true).await, StatusCode::OK, "{kind}");
        assert_eq!(status(&layers(&any)[kind], bob, true).await, StatusCode::OK, "{kind}");
        assert_eq!(status(&layers(&any)[kind], bob, false).await, StatusCode::SERVICE_UNAVAILABLE);
    }
}

/// Bug: the layer asked for the state of the limits of an exempt request's key, for headers. So the
/// key was added to the table, and a limited key was forgotten for it.
#[tokio::test]
async fn an_exempt_request_adds_no_key() {
    for kind in 0..3 {
        let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 10);
        assert_eq!(status(&layers(&calls)[kind], "/bob", true).await, StatusCode::OK);
        assert!(calls.is_empty(), "{kind}");

        let policy = TokenBucket::new(Rate::per_hour(1), 1);
        let users = Users::with_clock(policy, 1, ManualClock::new());
        let users = users.when_full(WhenKeysFull::EvictLeastUsed);
        users.try_acquire("/alice").unwrap();
        let any = AnyKeyed::from(KeyedAllOf::<str, _>::new("user", &users));
        assert_eq!(status(&layers(&any)[kind], "/bob", true).await, StatusCode::OK);
        assert_eq!(users.status("/alice").available, 0, "{kind}");
    }
}

/// Bug: a layer asked an `AnyKeyed` for the limiter of a refused key, to count the limits. So the
/// key was added to the table, and a limited key was forgotten for it.
#[tokio::test]
async fn a_refused_request_adds_no_key() {
    for is_shadow in [true, false] {
        let clock = ManualClock::new();
        let policy = TokenBucket::new(Rate::per_hour(1), 1);
        let users = Users::with_clock(policy.clone(), 1, clock.clone());
        let users = users.when_full(WhenKeysFull::EvictLeastUsed);
        let all = RateLimiter::with_clock(policy, clock);
        users.try_acquire("/alice").unwrap();
        all.drain();
        let any = AnyKeyed::from(KeyedAllOf::<str, _>::new("user", &users).with("all", &all));
        let layer = RateLimitLayer::keyed(any, user).named("api");
        let (layer, expected) = match is_shadow {
            true => (layer.shadow(), StatusCode::OK),
            false => (layer, StatusCode::TOO_MANY_REQUESTS),
        };
        assert_eq!(status(&layer, "/bob", false).await, expected);
        assert_eq!(users.status("/alice").available, 0, "{expected}");
    }
}

/// Bug: a layer that does not settle admitted an exempt request without telling the observer of a
/// limit of calls.
#[tokio::test]
async fn the_observer_of_a_limit_of_calls_is_notified_of_each_exempt_request() {
    for kind in 0..3 {
        let statistics = Arc::new(Statistics::new());
        let calls: KeyedCountingLimit<String> =
            KeyedCountingLimit::new(1, 10).observed_by(statistics.clone());
        assert_eq!(status(&layers(&calls)[kind], "/bob", true).await, StatusCode::OK);
        assert_eq!((statistics.snapshot().exempted, calls.len()), (1, 0), "{kind}");

        let calls = CountingLimit::new(1);
        calls.observe(statistics.clone());
        let layer = RateLimitLayer::new(calls).cost(ask);
        let layer = [layer.clone(), layer.clone().wait(), layer.refund_errors()][kind].clone();
        assert_eq!(status(&layer, "/bob", true).await, StatusCode::OK);
        assert_eq!(statistics.snapshot().exempted, 2, "{kind}");
    }
}

/// A cost that is settled later is charged to the key, so the key needs room even if its estimate
/// is 0. Otherwise requests of new keys would be free while the table is full.
#[tokio::test]
async fn a_cost_of_0_needs_room_for_its_key_only_if_it_may_be_settled() {
    let (users, _, all) = table();
    users.try_acquire("/alice").unwrap();
    let layer = RateLimitLayer::keyed(all, user).cost(|_| 0);
    assert_eq!(status(&layer, "/bob", false).await, StatusCode::OK);
    let settles = layer.refund_errors();
    assert_eq!(status(&settles, "/alice", false).await, StatusCode::OK);
    assert_eq!(status(&settles, "/bob", false).await, StatusCode::SERVICE_UNAVAILABLE);

    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 1);
    let _alice = calls.try_acquire("/alice").unwrap();
    let layer = RateLimitLayer::keyed(calls, user).cost(|_| 0);
    assert_eq!(status(&layer, "/bob", false).await, StatusCode::SERVICE_UNAVAILABLE);
}
