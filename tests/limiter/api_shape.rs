//! Compile-time checks: the futures can be sent, moved and stored, and the default types need not
//! be named.

use std::time::Duration;

use tidegate::policy::{AnyPolicy, ConfigError};
use tidegate::{
    Acquire, AcquireAll, AcquireOwned, AllOf, AllPermits, AllRefusal, AllReservation, CountingLimit,
    CountingPermit, Events, ManualClock, PolicyError, Rate, RateError, RateLimiter, Refusal, Reservation,
    SlidingLog, SmoothBursty, SmoothWarmingUp, Statistics, SystemClock, TokenBucket,
};

fn future<T: Send + Unpin>() {}
fn shared<T: Send + Sync + 'static>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn everything_can_be_sent() {
    future::<Acquire<'_, SmoothBursty, SystemClock>>();
    #[cfg(feature = "tokio")]
    future::<Acquire<'_, SmoothWarmingUp, tidegate::TokioClock>>();
    future::<Acquire<'_, SmoothWarmingUp, tidegate::PreciseClock>>();
    future::<AcquireOwned<SmoothBursty, ManualClock>>();
    future::<AcquireOwned<SmoothBursty, SystemClock>>();
    future::<Reservation<SmoothBursty, SystemClock>>();
    shared::<RateLimiter>();
    shared::<RateLimiter<SmoothWarmingUp, ManualClock>>();
    error::<Refusal>();
    error::<RateError>();
    error::<PolicyError>();
    error::<ConfigError>();
    error::<AllRefusal>();
    future::<AcquireAll>();
    future::<AllReservation<ManualClock>>();
    shared::<AllReservation<ManualClock>>();
    future::<Reservation<AnyPolicy, SystemClock>>();
    shared::<AllOf>();
    shared::<AllPermits>();
    shared::<RateLimiter<AnyPolicy, SystemClock>>();
    shared::<CountingLimit>();
    shared::<CountingPermit>();
    future::<AcquireOwned<SlidingLog, ManualClock>>();
    let limit = CountingLimit::new(1);
    sendable(&limit.acquire());
    sendable(&limit.acquire_within(Duration::ZERO));
    shared::<Statistics>();
    shared::<std::sync::Arc<dyn Events>>();
    sendable(&limit.acquire_with(&RateLimiter::new(TokenBucket::new(Rate::per_second(1), 1))));
}

fn sendable<T: Send>(_: &T) {}

#[test]
fn futures_and_refusals_are_small() {
    assert!(size_of::<Acquire<'_, SmoothBursty, SystemClock>>() <= 48);
    assert_eq!(size_of::<Refusal>(), 16);
    assert!(size_of::<AllRefusal>() <= 48);
    assert_eq!(size_of::<RateLimiter>(), size_of::<usize>());
}

#[test]
fn the_default_types_need_not_be_named() {
    struct Client {
        limiter: RateLimiter,
    }
    let client = Client { limiter: RateLimiter::smooth_bursty(const { Rate::per_second(5) }) };
    assert!(client.limiter.try_acquire().is_ok());
    let limiter = RateLimiter::smooth_warming_up(Rate::per_minute(100), Duration::from_secs(3));
    assert!(limiter.try_acquire().is_ok());
}

#[test]
fn bad_configurations_name_value_and_limit() {
    let error =
        SmoothBursty::new(Rate::per_second(1)).try_max_burst(Duration::MAX).map(drop).expect_err("too long");
    assert_eq!(error.to_string(), "a burst of 584542046090.63 years is longer than the limit of 2.28 years");
    for factor in [f64::NAN, f64::INFINITY, 0.5, -3.0, 1e7] {
        let error = SmoothWarmingUp::try_new(Rate::per_second(1), Duration::ZERO, factor)
            .map(drop)
            .expect_err("bad factor");
        assert_eq!(error.to_string(), format!("cold factor {factor} is not between 1 and 1000000"));
    }
    let error = SmoothWarmingUp::try_new(Rate::per_second(1), Duration::from_secs(1 << 40), 3.0)
        .map(drop)
        .expect_err("too long");
    assert_eq!(error.to_string(), "a warm-up of 34841.42 years is longer than the limit of 2.28 years");
}
