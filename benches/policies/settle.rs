//! What does it cost to settle one of many estimates, in an order unrelated to theirs? Without the
//! exact log.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate::policy::AnyPolicy;
use tidegate::{
    FixedWindow, LeakyBucket, ManualClock, Rate, RateLimiter, Refusal, Request, SlidingEstimate,
    SlidingWindow, SmoothBursty, SmoothWarmingUp, TokenBucket,
};

/// Estimates outstanding.
const COUNT: usize = 100_000;

/// Permits of each estimate. Some of them are not used.
const PERMITS: u32 = 10;

fn policies() -> [(&'static str, AnyPolicy); 7] {
    let rate = Rate::per_second(4_000_000);
    [
        ("SmoothBursty", SmoothBursty::new(rate).start_full().into()),
        ("SmoothWarmingUp", SmoothWarmingUp::new(rate, Duration::from_secs(1)).start_warm().into()),
        ("TokenBucket", TokenBucket::new(rate, 4_000_000).into()),
        ("LeakyBucket", LeakyBucket::new(rate).nodelay(4_000_000).into()),
        ("FixedWindow", FixedWindow::new(rate).into()),
        ("SlidingWindow", SlidingWindow::new(rate, 10).into()),
        ("SlidingEstimate", SlidingEstimate::new(rate).into()),
    ]
}

/// Returns the nanoseconds for taking one and for settling one. Time advances by a permit's
/// interval with each, so that each meets a different amount of room.
fn measure(policy: AnyPolicy) -> Result<(f64, f64), Refusal> {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    let mut estimates = Vec::with_capacity(COUNT);
    let mut taking = Duration::ZERO;
    while estimates.len() < COUNT {
        clock.advance(Duration::from_nanos(250));
        let begin = Instant::now();
        match limiter.reserve(Request::permits(PERMITS).within(Duration::ZERO)) {
            Ok(mut estimate) => {
                assert!(estimate.claim(), "it is due now");
                taking += begin.elapsed();
                estimates.push(estimate);
            }
            Err(refusal) => clock.advance(refusal.retry_after().ok_or(refusal)?),
        }
    }
    let (mut seed, mut settling) = (1u64, Duration::ZERO);
    while !estimates.is_empty() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let estimate = estimates.swap_remove((seed >> 33) as usize % estimates.len());
        clock.advance(Duration::from_nanos(250));
        let begin = Instant::now();
        estimate.settle(PERMITS / 3);
        settling += begin.elapsed();
    }
    let each = |all: Duration| all.as_nanos() as f64 / COUNT as f64;
    Ok((each(taking), each(settling)))
}

/// Prints the table.
pub(crate) fn table() -> Result<Vec<Value>, Refusal> {
    println!("\n{:<26} {:>12} {:>12}", "100,000 estimates", "ns to take", "ns to settle");
    let mut list = Vec::new();
    for (name, policy) in policies() {
        let (take, settle) = measure(policy)?;
        println!("{name:<26} {take:>12.0} {settle:>12.0}");
        list.push(
            json!({ "case": "settle/100k", "unit": "ns per estimate", "policy": name, "value": settle }),
        );
    }
    Ok(list)
}
