//! Threads take permits from composites with shared members, and directly from the members, on the
//! real clock. The test judges which permits were granted, never how long that took.
//!
//! A thread reads the clock before and after each attempt, so each grant was made at some time
//! between the two readings. The test fails only if a bound is broken for every choice of these
//! times.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tidegate::{
    AllOf, AllRequest, Clock, CountingLimit, Rate, RateLimiter, SlidingLog, SystemClock, TokenBucket,
};

const THREADS: usize = 4;
const ATTEMPTS: usize = 4_000;
/// In nanoseconds.
const WINDOW: u64 = 1_000_000;
const PER_WINDOW: u64 = 20;
const BURST: u64 = 30;
const PER_SECOND: u64 = 30_000;

/// What one attempt took of the bucket and of the log, between two readings of the clock.
#[derive(Clone, Copy)]
struct Grant {
    before: u64,
    after: u64,
    bucket: u64,
    log: u64,
}

#[test]
fn all_bounds_hold_among_threads() {
    let clock = SystemClock::new();
    let bucket = TokenBucket::new(Rate::per_second(PER_SECOND), 30);
    let bucket = RateLimiter::with_clock(bucket, clock.clone());
    let log = SlidingLog::new(Rate::new(PER_WINDOW, Duration::from_nanos(WINDOW)).expect("a whole rate"));
    let log = RateLimiter::with_clock(log, clock.clone());
    let in_use = CountingLimit::new(3);
    // A late grant of a waiter counts as of the time at which it was made.
    bucket.set_catch_up(Duration::ZERO);
    let one = AllOf::new("bucket", &bucket).with("log", &log);
    let other = AllOf::new("log", &log).with_counting("in use", &in_use).with("bucket", &bucket);
    let start = Barrier::new(THREADS);
    let within = Duration::from_micros(500);
    let attempts = |thread: usize| {
        start.wait();
        let attempt = |attempt: usize| {
            let before = clock.now().as_u64();
            let (bucket, log) = match (attempt + thread) % 7 {
                0 => (u64::from(bucket.try_acquire().is_ok()), 0),
                1 => (0, u64::from(log.try_acquire().is_ok())),
                2 => match one.try_acquire_many([("bucket", 3)]).is_ok() {
                    true => (3, 1),
                    false => (0, 0),
                },
                3 => match other.try_acquire_many([("log", 2)]).is_ok() {
                    true => (1, 2),
                    false => (0, 0),
                },
                4 => match one.blocking_acquire_many(AllRequest::new().within(within)).is_ok() {
                    true => (1, 1),
                    false => (0, 0),
                },
                5 => {
                    match other
                        .blocking_acquire_many(
                            AllRequest::new().cost("in use", 0).cost("bucket", 2).within(within),
                        )
                        .is_ok()
                    {
                        true => (2, 1),
                        false => (0, 0),
                    }
                }
                _ => match one.reserve(AllRequest::new().cost("bucket", 4).within(Duration::ZERO)) {
                    // Given back at once: for that moment it counts as taken.
                    Ok(mut reservation) => {
                        match reservation.claim() && reservation.settle([("bucket", 4)]).is_ok() {
                            true => (4, 1),
                            false => (0, 0),
                        }
                    }
                    Err(_) => (0, 0),
                },
            };
            assert!(in_use.available() <= 3);
            (bucket + log > 0).then(|| Grant { before, after: clock.now().as_u64(), bucket, log })
        };
        (0..ATTEMPTS).filter_map(attempt).collect::<Vec<_>>()
    };
    let mut grants: Vec<_> = thread::scope(|scope| {
        let attempts = &attempts;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || attempts(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(grants.iter().any(|grant| grant.bucket > 0 && grant.log > 0));
    grants.sort_by_key(|grant| grant.after);
    for first in &grants {
        let mut sum = 0;
        for last in grants.iter().filter(|grant| grant.before >= first.before) {
            sum += last.bucket;
            let came_in = u128::from(last.after - first.before) * u128::from(PER_SECOND) / 1_000_000_000;
            let span = last.after - first.before;
            assert!(u128::from(sum) <= u128::from(BURST) + came_in, "{sum} of the bucket in {span} ns");
        }
        let inside = |grant: &&Grant| grant.before >= first.before && grant.after < first.before + WINDOW;
        let sum: u64 = grants.iter().filter(inside).map(|grant| grant.log).sum();
        assert!(sum <= PER_WINDOW, "{sum} of the log in a window");
    }
    // Nothing is left behind.
    assert_eq!((bucket.status().waiting, log.status().waiting, in_use.available()), (0, 0, 3));
    while (bucket.status().available, log.status().available) != (BURST, PER_WINDOW) {
        thread::yield_now();
    }
}
