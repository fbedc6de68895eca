//! What does a limit of each key cost besides one of all keys, with a `KeyedAllOf`, and with a
//! composite that is made for each call?

use std::task::Poll;
use std::time::{Duration, Instant};

use tidegate::{
    AllOf, AllPermits, AllRefusal, KeyedAllOf, KeyedRateLimiter, ManualClock, Rate, RateLimiter, TokenBucket,
};

use crate::line::poll;
use crate::{CALLS, Options, print_times, time};

const SIZES: [usize; 3] = [1_000, 8_000, 32_000];

type Keys = KeyedRateLimiter<usize, TokenBucket, ManualClock>;
type Bucket = RateLimiter<TokenBucket, ManualClock>;

pub(crate) fn all(options: &Options) {
    for &keys in options.sizes(&SIZES) {
        let case = format!("of_keys/{keys}");
        if options.wants(&case) {
            with_keys(&case, keys);
        }
    }
}

fn by_hand(users: &Keys, all: &Bucket, key: usize) -> Result<AllPermits, AllRefusal> {
    AllOf::new("all", all).with("user", &users.limiter(&key)?).try_acquire()
}

fn with_keys(case: &str, keys: usize) {
    let clock = ManualClock::new();
    let bucket = |burst| TokenBucket::new(Rate::per_second(1_000), burst);
    let users: Keys = KeyedRateLimiter::with_clock(bucket(1_000_000), keys, clock.clone());
    let all = RateLimiter::with_clock(bucket(1_000_000), clock.clone());
    let api = KeyedAllOf::new("user", &users).with("all", &all);
    let key = |number: usize| number.wrapping_mul(7919) % keys;
    assert!((0..keys).all(|key| users.try_acquire(&key).is_ok()), "all keys are known");

    time(case, "granted", CALLS, |number| assert!(api.try_acquire(&key(number)).is_ok()));
    time(case, "granted, made by hand", CALLS, |number| {
        assert!(by_hand(&users, &all, key(number)).is_ok());
    });
    users.sweep();
    all.drain();
    time(case, "refused", CALLS, |number| assert!(api.try_acquire(&key(number)).is_err()));
    time(case, "refused, made by hand", CALLS, |number| {
        assert!(by_hand(&users, &all, key(number)).is_err());
    });
    users.sweep();

    let numbers: Vec<usize> = (0..keys).collect();
    let mut times = Vec::new();
    let mut waiters: Vec<_> = numbers
        .iter()
        .map(|key| {
            let start = Instant::now();
            let mut waiter = Box::pin(api.acquire(key));
            assert!(poll(waiter.as_mut()).is_pending(), "the common limit has no permit");
            times.push(start.elapsed().as_nanos() as f64 / 1e3);
            waiter
        })
        .collect();
    print_times(case, "join", times);
    time(case, "refused, all keys wait", CALLS, |number| assert!(api.try_acquire(&key(number)).is_err()));

    let (mut times, ticks) = (Vec::new(), CALLS.min(keys / 4));
    for _ in 0..ticks {
        let start = Instant::now();
        clock.advance(Duration::from_millis(1));
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    print_times(case, "a millisecond: one grant", times);
    let before = waiters.len();
    waiters.retain_mut(|waiter| !matches!(poll(waiter.as_mut()), Poll::Ready(Ok(_))));
    assert!((before - waiters.len()).abs_diff(ticks) <= 1, "each millisecond grants one");
    time(case, "cancel", CALLS.min(keys / 2), |_| drop(waiters.pop()));
    waiters.into_iter().for_each(std::mem::forget);
}
