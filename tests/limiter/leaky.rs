//! Requests that are larger than a leaky bucket.

use std::time::Duration;

use crate::support::spawn_pending;
use tidegate::{AnyPolicy, Change, LeakyBucket, ManualClock, Pause, Rate, RateLimiter, Request};

/// A request for more permits than a leaky bucket lets through at once waits until that many have
/// accrued. The limiter lost these permits at each change, even to the same rate, and in each
/// pause: changes that came more often than the permits never let the request pass.
#[test]
fn a_large_request_keeps_what_has_accrued_for_it() {
    for (line, rates, expected) in [
        ("leaky_bucket 10/s", &[10][..], 500),
        ("leaky_bucket 10/s capacity 20 nodelay 2", &[10], 500),
        // 3 permits accrue in 300 ms, and the others at the second rate.
        ("leaky_bucket 10/s", &[20], 400),
        ("leaky_bucket 10/s", &[5], 700),
        ("leaky_bucket 10/s", &[1, 10], 770),
    ] {
        let clock = ManualClock::new();
        let policy: AnyPolicy = line.parse().expect("a policy");
        let limiter = RateLimiter::with_clock(policy, clock.clone());
        limiter.drain();
        let large = limiter.reserve(5).expect("a reservation");
        let mut rates = rates.iter().cycle();
        let served = (1..10_000).find(|millis| {
            clock.advance(Duration::from_millis(1));
            let is_due = large.due_in().is_zero();
            if !is_due && millis % 300 == 0 {
                rates.next().into_iter().for_each(|rate| limiter.set_rate(Rate::per_second(*rate)));
            }
            is_due
        });
        assert_eq!(served, Some(expected), "{line}");
    }
}

#[test]
fn a_large_request_keeps_in_a_pause_what_has_accrued_for_it() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(LeakyBucket::new(Rate::per_second(10)), clock.clone());
    limiter.drain();
    let large = limiter.reserve(5).expect("a reservation");
    for _ in 0..4 {
        clock.advance(Duration::from_millis(100));
        let due_in = large.due_in();
        limiter.pause(Pause::lasting(Duration::from_secs(1)).keep_permits());
        assert_eq!(large.due_in(), due_in + Duration::from_secs(1));
        clock.advance(Duration::from_millis(700));
        limiter.resume();
        assert_eq!(large.due_in(), due_in);
    }
}

#[test]
fn a_request_that_was_accepted_is_not_refused_by_a_higher_rate() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(LeakyBucket::new(Rate::per_second(10)), clock.clone());
    limiter.drain();
    let request = Request::permits(5).within(Duration::from_millis(600));
    let mut wait = spawn_pending(limiter.acquire_many(request));
    clock.advance(Duration::from_millis(400));
    limiter.set_rate(Rate::per_second(11));
    assert!(wait.poll().is_pending());
    clock.advance(Duration::from_millis(100));
    assert!(matches!(wait.poll(), std::task::Poll::Ready(Ok(_))));
}

/// Otherwise each change would make permits available that did not fit before.
#[test]
fn a_leaky_bucket_that_grows_keeps_only_what_it_held() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(LeakyBucket::new(Rate::per_second(10)).capacity(20), clock.clone());
    clock.advance(Duration::from_secs(60));
    limiter.change(Change::rate(Rate::per_second(10)).burst(9)).expect("it fits");
    assert_eq!(limiter.status().available, 1);
}
