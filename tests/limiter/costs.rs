//! A call asks its policy a bounded number of times, not once for each waiter.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::{ManualClock, Rate, RateLimiter, Request, SmoothBursty};
use tokio_test::assert_pending;
use tokio_test::task::spawn;

use crate::support::asked::Asked;

/// How often the policy is asked by a request that goes before so many others without a deadline.
fn asked_before(waiters: usize) -> usize {
    let policy = Asked::new(SmoothBursty::new(Rate::per_second(1)));
    let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    assert!(limiter.try_acquire().is_ok());
    let mut line: Vec<_> = (0..waiters).map(|_| spawn(limiter.acquire())).collect();
    line.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    // One with a deadline has left.
    let mut left = spawn(limiter.acquire_within(Duration::from_secs(1000)));
    assert_pending!(left.poll());
    drop(left);
    let mut first = spawn(limiter.acquire_many(Request::permits(1).priority(1)));
    let before = limiter.policy().times.load(Ordering::Relaxed);
    assert_pending!(first.poll());
    limiter.policy().times.load(Ordering::Relaxed) - before
}

#[test]
fn a_request_before_others_without_a_deadline_asks_the_policy_as_often_whatever_their_number() {
    assert_eq!(asked_before(500), asked_before(5));
}
