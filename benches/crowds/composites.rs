//! What do composites cost if each of n users has a limit, and all users share one limit?
//!
//! One composite per user, with one request each. The users have permits, and all of them wait for
//! the common limit.

use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use tidegate::{AllOf, ManualClock, Rate, RateLimiter, TokenBucket};

use crate::line::poll;
use crate::{CALLS, LONG, Options, print_times, time};

const SIZES: [usize; 3] = [1_000, 8_000, 32_000];

type Waiter = Pin<Box<tidegate::all_of::AcquireAll<ManualClock>>>;

pub(crate) fn all(options: &Options) {
    for &users in options.sizes(&SIZES) {
        let case = format!("composites/{users}");
        if options.wants(&case) {
            with_users(&case, users);
        }
    }
}

fn with_users(case: &str, users: usize) {
    let clock = ManualClock::new();
    let bucket = |rate| RateLimiter::with_clock(TokenBucket::new(rate, 10), clock.clone());
    let common = bucket(Rate::per_second(1000));
    common.drain();
    let limiters: Vec<_> = (0..users).map(|_| bucket(Rate::per_second(10))).collect();
    let mut times = Vec::new();
    let mut waiters: Vec<Waiter> = limiters
        .iter()
        .map(|user| {
            let start = Instant::now();
            let both = AllOf::new("user", user).with("all", &common);
            let mut waiter = Box::pin(both.acquire());
            assert!(poll(waiter.as_mut()).is_pending(), "the common limit has no permit");
            times.push(start.elapsed().as_nanos() as f64 / 1e3);
            waiter
        })
        .collect();
    print_times(case, "make and join", times);
    time(case, "try_acquire, refused", CALLS, |number| {
        let both = AllOf::new("user", &limiters[number % users]).with("all", &common);
        assert!(both.try_acquire().is_err(), "others wait");
    });
    let rates = [Rate::per_second(1000), Rate::per_second(1001)];
    time(case, "set_rate of the common limit", CALLS, |number| common.set_rate(rates[(number + 1) % 2]));
    time(case, "set_rate of a user", CALLS, |number| limiters[number % users].set_rate(Rate::per_second(20)));
    common.set_rate(rates[0]);

    let (mut times, mut granted, began) = (Vec::new(), 0, Instant::now());
    // At most a quarter of the users, so that the queue stays as long as the case says.
    while times.len() < CALLS.min(users / 4) && (times.is_empty() || began.elapsed() < 2 * LONG) {
        let start = Instant::now();
        clock.advance(Duration::from_millis(1));
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    let ticks = times.len();
    print_times(case, "a millisecond: one grant", times);
    waiters.retain_mut(|waiter| {
        let served = matches!(poll(waiter.as_mut()), Poll::Ready(Ok(_)));
        granted += usize::from(served);
        !served
    });
    assert!(granted.abs_diff(ticks) <= 1, "{granted} granted in {ticks} ms");

    waiters.shuffle(&mut SmallRng::seed_from_u64(7));
    time(case, "cancel at random", users / 2, |_| drop(waiters.pop()));
    // Dropping all others one by one may take minutes.
    waiters.into_iter().for_each(std::mem::forget);
}
