//! Random waits with policies that count: no request waits for ever, no alarm rings in a loop, and
//! no permit is lost in the end.

use std::time::Duration;

use tidegate::{
    AnyPolicy, FixedWindow, ManualClock, Rate, RateLimiter, SlidingEstimate, SlidingLog, SlidingWindow,
    TokenBucket,
};

/// One to three permits.
fn some(below_three: u64) -> u32 {
    1 + u32::try_from(below_three).expect("small")
}

/// One of so many.
fn which(number: u64, len: usize) -> usize {
    usize::try_from(number).expect("small") % len
}

fn run(policy: AnyPolicy, seed: u64, length: u64) {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move |below: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 20) % below
    };
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    let mut waits = Vec::new();
    for _ in 0..60 {
        match next(9) {
            0 | 1 => {
                let n = some(next(3));
                let limiter = limiter.clone();
                waits.push(tokio_test::task::spawn(Box::pin(async move { limiter.acquire_many(n).await })));
            }
            2 => clock.advance(Duration::from_nanos(next(length))),
            3 if !waits.is_empty() => drop(waits.swap_remove(which(next(1 << 20), waits.len()))),
            4 if !waits.is_empty() && next(4) == 0 => {
                std::mem::forget(waits.swap_remove(which(next(1 << 20), waits.len())));
            }
            5 => {
                let limit = 3 + next(3);
                limiter
                    .set_rate(Rate::new(limit, Duration::from_nanos(1 + next(2 * length))).expect("a rate"));
            }
            6 => limiter.refund(some(next(3))),
            7 => drop(limiter.try_acquire_many(some(next(3)))),
            _ => {}
        }
        let mut i = 0;
        while i < waits.len() {
            if waits[i].poll().is_ready() {
                drop(waits.swap_remove(i));
            } else {
                i += 1;
            }
        }
    }
    // All remaining waiters are served in time, by the alarms alone.
    for _ in 0..400 {
        clock.advance(Duration::from_nanos(2 * length));
        waits.retain_mut(|wait| !wait.is_woken() || wait.poll().is_pending());
        // Only then the status is read, which would serve a waiter that no alarm has served. The
        // requests that were forgotten stay in line until they are served.
        if waits.is_empty() && limiter.status().waiting == 0 {
            break;
        }
    }
    assert!(waits.is_empty(), "{} wait for ever", waits.len());
    clock.advance(Duration::from_nanos(10 * length));
    let status = limiter.status();
    assert_eq!(status.available, status.limit, "full in the end: {status:?}");
}

fn all(make: fn(Rate) -> AnyPolicy) {
    for seed in 0..3000 {
        run(make(Rate::new(3 + seed % 3, Duration::from_nanos(100)).expect("a rate")), seed + 1, 100);
    }
}

#[test]
fn in_fixed_windows() {
    all(|rate| FixedWindow::new(rate).into());
}
#[test]
fn in_windows_from_the_first_grant() {
    all(|rate| FixedWindow::new(rate).from_first_grant().into());
}
#[test]
fn in_a_log() {
    all(|rate| SlidingLog::new(rate).with_capacity(10).expect("room").into());
}
#[test]
fn in_cells() {
    all(|rate| SlidingWindow::new(rate, 4).into());
}
#[test]
fn in_an_estimate() {
    all(|rate| SlidingEstimate::new(rate).into());
}
#[test]
fn interval_refill() {
    all(|rate| TokenBucket::new(rate, 5).interval_refill().expect("fits").into());
}
