//! The cost of a decision while no request waits: one reading of the clock and no allocation.

#[path = "support/counted.rs"]
mod counted;

use std::alloc::System;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use counted::Counted;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate::policy::AnyPolicy;
use tidegate::{AllOf, CountingLimit, Rate, RateLimiter, SmoothBursty};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A decision reads the clock once, and allocates nothing. This is a program without the test
/// harness: the allocator counts for the whole process, and the harness allocates beside a test.
fn main() {
    let clock = Counted::default();
    let policy = SmoothBursty::new(Rate::per_second(1)).max_burst(Duration::from_secs(3)).start_full();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    let mut context = Context::from_waker(Waker::noop());
    clock.readings.store(0, Ordering::Relaxed);
    let region = Region::new(ALLOCATOR);

    assert!(limiter.try_acquire().is_ok());
    assert!(limiter.try_acquire_many(1).is_ok());
    assert!(pin!(limiter.acquire()).poll(&mut context).is_ready());
    assert!(pin!(limiter.acquire_owned(1)).poll(&mut context).is_ready());
    assert!(limiter.try_acquire().is_err());

    let change = region.change();
    assert_eq!((change.allocations, change.deallocations, change.reallocations), (0, 0, 0));
    assert_eq!(clock.readings.load(Ordering::Relaxed), 5);

    for text in [
        "smooth_bursty 1/s",
        "smooth_warming_up 1/s warm_up 1s",
        "token_bucket 1/s burst 2",
        "token_bucket 1/s burst 2 interval_refill",
        "leaky_bucket 1/s capacity 3",
        "fixed_window 2/s",
        "fixed_window 2/s from_first_grant",
        "sliding_window 2/s cells 5",
        "sliding_estimate 2/s",
        "sliding_log 2/s",
    ] {
        decides_without_allocating(text, &clock);
    }
    several_at_once(&clock);
}

/// Grants and refusals of several limiters, with weights, whichever limiter refuses.
fn several_at_once(clock: &Counted) {
    let policy: AnyPolicy = "token_bucket 1/h burst 10".parse().expect("a policy");
    let [a, b] = [(); 2].map(|()| RateLimiter::with_clock(policy.clone(), clock.clone()));
    let in_use = CountingLimit::new(2);
    let all = AllOf::new("a", &a).with("b", &b).with_counting("in use", &in_use);
    let region = Region::new(ALLOCATOR);
    let held = (all.try_acquire(), all.try_acquire_many([("a", 3)]));
    assert!(held.0.is_ok() && held.1.is_ok() && all.try_acquire().is_err());
    drop(held);
    assert!(all.try_acquire_many([("a", 7)]).is_err());
    assert!(all.try_acquire_many([("a", 0), ("b", 11), ("in use", 0)]).is_err());
    let change = region.change();
    assert_eq!((change.allocations, change.deallocations, change.reallocations), (0, 0, 0));
}

/// Grants and refusals, even after the window has turned.
fn decides_without_allocating(text: &str, clock: &Counted) {
    let policy: AnyPolicy = text.parse().expect("a policy");
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    for _ in 0..3 {
        clock.clock.advance(Duration::from_millis(1500));
        clock.readings.store(0, Ordering::Relaxed);
        let region = Region::new(ALLOCATOR);
        assert!(limiter.try_acquire().is_ok(), "{text}");
        let refused = (0..3).filter(|_| limiter.try_acquire().is_err()).count();
        let change = region.change();
        assert!(refused > 0, "{text}");
        assert_eq!((change.allocations, change.deallocations, change.reallocations), (0, 0, 0), "{text}");
        assert_eq!(clock.readings.load(Ordering::Relaxed), 4, "{text}");
    }
}
