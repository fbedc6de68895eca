//! A call asks its policy a bounded number of times, not once for each waiter.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::{AllOf, ManualClock, Rate, RateLimiter, Request, SmoothBursty};
use tokio_test::assert_pending;
use tokio_test::task::spawn;

use crate::support::asked::Asked;
use crate::support::spawn_pending;

/// Returns how often a request ahead of `waiters` others without a deadline asks the policy.
fn asked_before(waiters: usize) -> usize {
    let policy = Asked::new(SmoothBursty::new(Rate::per_second(1)));
    let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    assert!(limiter.try_acquire().is_ok());
    let mut line: Vec<_> = (0..waiters).map(|_| spawn(limiter.acquire())).collect();
    line.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    // A waiter with a deadline has left.
    drop(spawn_pending(limiter.acquire_within(Duration::from_secs(1000))));
    let mut first = spawn(limiter.acquire_many(Request::permits(1).priority(1)));
    let before = limiter.policy().times.load(Ordering::Relaxed);
    assert_pending!(first.poll());
    limiter.policy().times.load(Ordering::Relaxed) - before
}

#[test]
fn a_request_before_others_without_a_deadline_asks_the_policy_as_often_whatever_their_number() {
    assert_eq!(asked_before(500), asked_before(5));
}

/// Returns how often the policy of a limiter is asked when its shadow mode starts, while
/// `composites` composites of it and of another limiter each wait for both.
fn asked_by_shadow(composites: usize) -> usize {
    let clock = ManualClock::new();
    let policy = || SmoothBursty::new(Rate::per_hour(1));
    let shared = RateLimiter::with_clock(Asked::new(policy()), clock.clone());
    assert!(shared.try_acquire().is_ok());
    let composites = (0..composites).map(|_| {
        let other = RateLimiter::with_clock(policy(), clock.clone());
        assert!(other.try_acquire().is_ok());
        AllOf::new("other", &other).with("shared", &shared)
    });
    let composites: Vec<_> = composites.collect();
    let mut line: Vec<_> = composites.iter().map(|all| spawn(all.acquire())).collect();
    line.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    let before = shared.policy().times.load(Ordering::Relaxed);
    shared.set_shadow(true);
    let asked = shared.policy().times.load(Ordering::Relaxed) - before;
    // Each composite waits only for its other limiter.
    clock.advance(Duration::from_secs(3600));
    line.iter_mut().for_each(|wait| assert!(wait.poll().is_ready()));
    asked
}

/// Bug: each visit of the queue notified all composites, and each composite visited the queue
/// again: with 2,000 composites it took a minute.
#[test]
fn shadow_mode_notifies_each_composite_once() {
    let (few, many) = (asked_by_shadow(100), asked_by_shadow(400));
    assert!(many <= few * 5, "{few} and {many}");
}
