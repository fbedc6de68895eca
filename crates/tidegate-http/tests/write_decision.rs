//! Decisions of the crate `tidegate` are written without change.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use proptest::prelude::*;
use tidegate::{
    AllOf, AllRequest, CountingLimit, FixedWindow, ManualClock, Rate, RateLimiter, Refusal, Request,
    TokenBucket, Unlimited,
};
use tidegate_http::When;
use tidegate_http::read::Reader;
use tidegate_http::write::{Format, Limit, decision, decision_of_all, granted};

fn written(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().unwrap().to_owned())
}

fn limit() -> Limit<'static> {
    Limit::new("a", 10).unwrap()
}

#[test]
fn a_grant_that_was_not_asked_what_it_left_writes_the_policy() {
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 10), ManualClock::new());
    let mut headers = HeaderMap::new();
    decision(&limit(), &limiter.try_acquire(), Format::Draft, &mut headers);
    assert_eq!(written(&headers, "ratelimit-policy").as_deref(), Some("\"a\";q=10"));
    assert_eq!(written(&headers, "ratelimit"), None);
}

#[test]
fn a_refusal_that_waiting_does_not_help_writes_no_time() {
    for refusal in [Refusal::ZeroPermits, Refusal::Closed, Refusal::ExceedsLimit { requested: 11, limit: 10 }]
    {
        let mut headers = HeaderMap::new();
        decision(&limit(), &Err(refusal), Format::Draft, &mut headers);
        assert_eq!(written(&headers, "retry-after"), None);
        assert_eq!(written(&headers, "ratelimit"), None);
    }
}

#[test]
fn a_pause_is_written() {
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 10), ManualClock::new());
    limiter.pause_for(Duration::from_millis(29_001));
    let mut headers = HeaderMap::new();
    decision(&limit(), &limiter.try_acquire(), Format::Draft, &mut headers);
    // The pause, and one interval.
    assert_eq!(written(&headers, "retry-after").as_deref(), Some("31"));
    assert_eq!(written(&headers, "ratelimit").as_deref(), Some("\"a\";r=0;t=31"));
}

/// Bug: a bucket in debt resets later than its window. The reader took such a reset in an older
/// draft for milliseconds, so a client came back a thousand times too early.
#[test]
fn a_reset_of_a_bucket_in_debt_is_read_as_it_is_written() {
    let bucket = RateLimiter::with_clock(TokenBucket::new(Rate::per_minute(10), 10), ManualClock::new());
    bucket.debit(60);
    let limit = Limit::of("a", &bucket.status()).unwrap();
    for format in [Format::Draft07, Format::Draft06, Format::Draft03, Format::XRateLimit] {
        let mut headers = HeaderMap::new();
        granted(std::slice::from_ref(&limit), format, &mut headers);
        for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            let response = Reader::auto().read(status, &headers);
            assert_eq!(response.limits[0].reset, Some(When::In(Duration::from_secs(306))), "{headers:?}");
        }
    }
}

#[test]
fn the_member_that_refused_has_nothing_left() {
    let clock = ManualClock::new();
    let bucket = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 10), clock.clone());
    let hour = RateLimiter::with_clock(FixedWindow::new(Rate::per_hour(1000)), clock.clone());
    let day = RateLimiter::with_clock(
        FixedWindow::new(Rate::new(5, Duration::from_secs(86_400)).unwrap()),
        clock.clone(),
    );
    let free = RateLimiter::with_clock(Unlimited, clock.clone());
    let calls = CountingLimit::new(4);
    let all = AllOf::new("bucket", &bucket)
        .with("hour", &hour)
        .with("free", &free)
        .with("jour \u{e9}coul\u{e9}", &day)
        .with_counting("calls", &calls);
    let _permits = all.try_acquire_many([("bucket", 8)]).unwrap();
    let refused = all.try_acquire_many(AllRequest::new().cost("bucket", 5).with_left());
    // Events after the decision are not written.
    let _later = all.try_acquire_many([("bucket", 2), ("hour", 100)]).unwrap();
    let mut headers = HeaderMap::new();
    decision_of_all(&refused, Format::Draft, &mut headers);
    assert_eq!(
        written(&headers, "ratelimit-policy").as_deref(),
        Some(r#""bucket";q=10;w=10, "hour";q=1000;w=3600, "calls";q=4;qu="concurrent-requests""#)
    );
    assert_eq!(
        written(&headers, "ratelimit").as_deref(),
        Some(r#""bucket";r=0;t=3, "hour";r=999;t=3600, "calls";r=3"#)
    );
    assert_eq!(written(&headers, "retry-after").as_deref(), Some("3"));

    // A request that does not ask for the state gets the time to retry.
    let refused = all.try_acquire_many([("bucket", 5)]);
    let mut headers = HeaderMap::new();
    decision_of_all(&refused, Format::Draft, &mut headers);
    assert_eq!((headers.len(), written(&headers, "retry-after").as_deref()), (1, Some("5")));
}

#[test]
fn a_limit_that_fills_in_less_than_a_second_writes_what_accrues_within_one() {
    let written_for = |status: &tidegate::Status| {
        let mut headers = HeaderMap::new();
        granted(&[Limit::of("a", status).unwrap()], Format::Draft, &mut headers);
        (written(&headers, "ratelimit-policy").unwrap(), written(&headers, "ratelimit").unwrap())
    };
    let bucket = |rate, burst| {
        let limiter = RateLimiter::with_clock(TokenBucket::new(rate, burst), ManualClock::new());
        let _ = limiter.try_acquire();
        written_for(&limiter.status())
    };
    let strings = |policy: &str, state: &str| (policy.to_owned(), state.to_owned());
    assert_eq!(bucket(Rate::per_second(10), 1), strings("\"a\";q=10;w=1", "\"a\";r=0;t=1"));
    assert_eq!(bucket(Rate::per_second(10), 9), strings("\"a\";q=10;w=1", "\"a\";r=8;t=1"));
    assert_eq!(bucket(Rate::per_second(10), 10), strings("\"a\";q=10;w=1", "\"a\";r=9;t=1"));
    assert_eq!(bucket(Rate::per_second(10), 20), strings("\"a\";q=20;w=2", "\"a\";r=19;t=1"));
    // At 1.5 permits a second, one whole permit accrues in a second, and the burst is 1.
    let slow = Rate::new(3, Duration::from_secs(2)).unwrap();
    assert_eq!(bucket(slow, 1), strings("\"a\";q=1;w=1", "\"a\";r=0;t=1"));
    let short = FixedWindow::new(Rate::new(5, Duration::from_millis(100)).unwrap());
    let limiter = RateLimiter::with_clock(short, ManualClock::new());
    assert_eq!(written_for(&limiter.status()).0, "\"a\";q=50;w=1");
}

proptest! {
    /// A client that waits for the written time is granted; a client that waits a second less is
    /// not.
    #[test]
    fn written_times_are_true(burst in 1..20_u32, per_minute in 1..500_u64, takes in prop::collection::vec(1..5_u32, 1..60)) {
        let clock = ManualClock::new();
        let policy = TokenBucket::new(Rate::per_minute(per_minute), burst);
        let limiter = RateLimiter::with_clock(policy, clock.clone());
        for n in takes {
            let request = Request::permits(n.min(burst)).with_left();
            let decided = limiter.try_acquire_many(request);
            let mut headers = HeaderMap::new();
            decision(&Limit::new("a", burst.into()).unwrap(), &decided, Format::XRateLimit, &mut headers);
            let remaining: u64 = written(&headers, "x-ratelimit-remaining").unwrap().parse().unwrap();
            match decided {
                Ok(_) => prop_assert_eq!(remaining, limiter.status().available),
                Err(_) => {
                    prop_assert_eq!(remaining, 0);
                    let wait = written(&headers, "retry-after").unwrap();
                    prop_assert_eq!(written(&headers, "x-ratelimit-reset"), Some(wait.clone()));
                    let wait = Duration::from_secs(wait.parse().unwrap());
                    clock.advance(wait - Duration::from_secs(1));
                    let early = limiter.try_acquire_many(request).is_ok();
                    prop_assert!(!early);
                    clock.advance(Duration::from_secs(1));
                    prop_assert!(limiter.try_acquire_many(request).is_ok());
                }
            }
        }
    }
}
