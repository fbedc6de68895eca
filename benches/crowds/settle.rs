//! What does it cost to settle one estimate while 100,000 of them are outstanding, with each
//! policy?
//!
//! Each estimate takes two permits a microsecond after the one before, and all are settled to one
//! permit, in random order.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use tidegate::policy::Policy;
use tidegate::{
    FixedWindow, LeakyBucket, ManualClock, Rate, RateLimiter, SlidingEstimate, SlidingLog, SlidingWindow,
    SmoothBursty, SmoothWarmingUp, TokenBucket,
};

use crate::{Options, print_times};

const OUTSTANDING: usize = 100_000;
/// If one settlement takes milliseconds, not all estimates are settled.
const LONG: Duration = Duration::from_secs(1);
const MILLION: u32 = 1_000_000;

pub(crate) fn all(options: &Options) {
    let counted = Rate::per_hour(MILLION.into());
    let fast = Rate::per_second(1_000_000_000);
    let warm = SmoothWarmingUp::new(fast, Duration::from_secs(1)).start_warm();
    settle("TokenBucket", TokenBucket::new(counted, MILLION), options);
    settle("LeakyBucket", LeakyBucket::new(counted).nodelay(MILLION), options);
    settle("SmoothBursty", SmoothBursty::new(fast).start_full(), options);
    settle("SmoothWarmingUp", warm, options);
    settle("FixedWindow", FixedWindow::new(counted), options);
    settle("SlidingEstimate", SlidingEstimate::new(counted), options);
    settle("SlidingWindow", SlidingWindow::new(counted, 10), options);
    settle("SlidingLog", SlidingLog::new(counted), options);
}

fn settle<P: Policy>(name: &str, policy: P, options: &Options) {
    let outstanding = if options.quick { OUTSTANDING / 100 } else { OUTSTANDING };
    let case = format!("settle/{name}/{outstanding}");
    if !options.wants(&case) {
        return;
    }
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    let mut estimates: Vec<_> = (0..outstanding)
        .map(|_| {
            clock.advance(Duration::from_micros(1));
            let mut reservation = limiter.reserve(2).expect("permits are there");
            assert!(reservation.claim(), "permits are there");
            reservation
        })
        .collect();
    estimates.shuffle(&mut SmallRng::seed_from_u64(7));
    let (mut times, began) = (Vec::new(), Instant::now());
    for estimate in estimates {
        if !times.is_empty() && began.elapsed() > LONG {
            // If settling is that slow, dropping the rest would take as long.
            std::mem::forget(estimate);
            continue;
        }
        let start = Instant::now();
        estimate.settle(1);
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    print_times(&case, "settle", times);
}
