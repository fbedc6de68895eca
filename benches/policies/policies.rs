//! The contestants: each policy, set so that all attempts are granted, or all are refused.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::policy::{AnyPolicy, Policy};
use tidegate::{
    Change, CountingLimit, DenyAll, Events, FixedWindow, LeakyBucket, Nanos, QueueBounds, Rate, RateLimiter,
    SlidingEstimate, SlidingLog, SlidingWindow, SmoothBursty, SmoothWarmingUp, Statistics, TokenBucket,
    Unlimited,
};

use crate::{Outcome, REFERENCE};

/// Makes a number of attempts and counts the grants.
type Attempts = Box<dyn Fn(u32) -> u32 + Sync>;

pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) through_limiter: Attempts,
    pub(crate) policy_alone: Attempts,
}

/// The loop is part of the closure, so that only the round is a dynamic call.
fn attempts(attempt: impl Fn() -> bool + Sync + 'static) -> Attempts {
    Box::new(move |count| (0..count).map(|_| u32::from(attempt())).sum())
}

/// Uses all of a result, like a caller. (Passing it on as a whole would measure the copy.)
fn is_passed<T, E>(answer: Result<T, E>) -> bool {
    match answer {
        Ok(_) => black_box(true),
        Err(refusal) => {
            black_box(refusal);
            false
        }
    }
}

/// A value on its own cache lines.
#[repr(align(128))]
struct Alone<T>(T);

/// Returns the time from one attempt to the next without the limiter: a microsecond, as if every
/// attempt took that long.
fn step(outcome: Outcome) -> Duration {
    if outcome == Outcome::Granted { Duration::from_micros(1) } else { Duration::ZERO }
}

/// Creates a contestant of a policy, which is first emptied by single permits if all attempts must
/// be refused.
fn contestant<P: Policy + Clone>(name: &'static str, policy: P, outcome: Outcome) -> Contestant {
    let limiter = RateLimiter::new(policy.clone());
    let start = Nanos::from_duration(Duration::from_secs(1));
    let state = policy.start(start);
    if outcome == Outcome::Refused {
        while limiter.try_acquire().is_ok() {}
        while policy.try_acquire(&state, start, 1).is_ok() {}
    }
    let (state, now) = (Alone(state), Alone(AtomicU64::new(start.as_u64())));
    let step = Nanos::from_duration(step(outcome));
    Contestant {
        name,
        through_limiter: attempts(move || is_passed(black_box(&limiter).try_acquire())),
        policy_alone: attempts(move || {
            // Only one thread uses the clock.
            let at = Nanos::new(now.0.load(Ordering::Relaxed)).saturating_add(step);
            now.0.store(at.as_u64(), Ordering::Relaxed);
            is_passed(black_box(&policy).try_acquire(black_box(&state.0), at, 1))
        }),
    }
}

/// Creates a token bucket on which `control` was called at run time.
fn controlled_bucket(
    name: &'static str,
    outcome: Outcome,
    control: impl Fn(&RateLimiter<TokenBucket>),
) -> Contestant {
    let limiter = RateLimiter::new(TokenBucket::new(Rate::per_second(1_000_000_000_000), 1_000_000_000));
    if outcome == Outcome::Refused {
        limiter.change(Change::rate(Rate::per_hour(1))).expect("a rate");
        limiter.drain();
    }
    control(&limiter);
    let through_limiter = attempts(move || is_passed(black_box(&limiter).try_acquire()));
    Contestant { name, through_limiter, policy_alone: attempts(|| true) }
}

/// Returns token buckets on which the control calls were made; the first one is without them.
pub(crate) fn controlled(outcome: Outcome) -> Vec<Contestant> {
    struct Nothing;
    impl Events for Nothing {}

    vec![
        controlled_bucket("plain", outcome, |_| {}),
        controlled_bucket("paused, and resumed", outcome, |limiter| {
            limiter.pause_for(Duration::MAX);
            limiter.resume();
            limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(100));
        }),
        controlled_bucket("watched", outcome, |limiter| {
            limiter.observe(Arc::new(Nothing));
        }),
        controlled_bucket("watched by Statistics", outcome, |limiter| {
            limiter.observe(Arc::new(Statistics::new()));
        }),
        controlled_bucket("a share is kept", outcome, |limiter| limiter.keep_for_priority(1, 1)),
    ]
}

/// One permit in use: taken and given back, or taken and kept.
fn counting(outcome: Outcome) -> Contestant {
    let attempts = || {
        let limit = CountingLimit::new(4);
        let held = (outcome == Outcome::Refused).then(|| limit.try_acquire_many(4));
        attempts(move || {
            let _ = &held;
            is_passed(black_box(&limit).try_acquire())
        })
    };
    Contestant { name: "CountingLimit", through_limiter: attempts(), policy_alone: attempts() }
}

/// governor. Its state needs no policy of ours. Alone: at times of a clock that is one atomic word.
fn governor(outcome: Outcome) -> Contestant {
    let quota = || match outcome {
        Outcome::Granted => governor::Quota::per_second(number(1_000_000_000)),
        Outcome::Refused => governor::Quota::per_hour(number(1)),
    };
    let limiter = governor::RateLimiter::direct(quota());
    let (clock, step) = (governor::clock::FakeRelativeClock::default(), step(outcome));
    let alone = Alone(governor::RateLimiter::direct_with_clock(quota(), clock.clone()));
    if outcome == Outcome::Refused {
        assert!(limiter.check().is_ok() && alone.0.check().is_ok(), "the first one is granted");
    }
    Contestant {
        name: REFERENCE,
        through_limiter: attempts(move || is_passed(black_box(&limiter).check())),
        policy_alone: attempts(move || {
            clock.advance(step);
            is_passed(black_box(&alone).0.check())
        }),
    }
}

fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(n - 1)
}

/// Returns all policies. Granted: a rate above the demand. Refused: one per hour, which is already
/// spent.
pub(crate) fn contestants(outcome: Outcome) -> Vec<Contestant> {
    let granted = outcome == Outcome::Granted;
    let hour = Duration::from_secs(3600);
    let rate = |permits| Rate::new(permits, hour).unwrap_or(Rate::UNLIMITED);
    // Windows that end before the next attempt, or one in an hour.
    let counted = if granted { rate(u32::MAX.into()) } else { rate(1) };
    let flowing = if granted { Rate::per_second(1_000_000_000_000) } else { rate(1) };
    let log = |limit: u64| {
        let window = if granted { Duration::from_nanos(1) } else { hour };
        SlidingLog::new(Rate::new(limit, window).unwrap_or(Rate::UNLIMITED))
    };
    let bucket = match outcome {
        Outcome::Granted => TokenBucket::new(Rate::per_second(1_000_000_000), 1_000_000_000),
        Outcome::Refused => TokenBucket::new(rate(1), 1),
    };
    let any = AnyPolicy::from(bucket.clone());
    let bucket_and_window = bucket.clone().and(FixedWindow::new(counted));
    let mut all = vec![
        governor(outcome),
        contestant("TokenBucket", bucket.clone(), outcome),
        contestant("TokenBucket, in steps", bucket.interval_refill().expect("whole steps"), outcome),
        contestant("LeakyBucket", LeakyBucket::new(flowing).nodelay(u32::from(granted) * 1_000_000), outcome),
        contestant("SmoothBursty", SmoothBursty::new(flowing).start_full(), outcome),
        contestant("SmoothWarmingUp", SmoothWarmingUp::new(flowing, hour).start_warm(), outcome),
        contestant("FixedWindow", FixedWindow::new(counted), outcome),
        contestant("FixedWindow, first grant", FixedWindow::new(counted).from_first_grant(), outcome),
        contestant("SlidingEstimate", SlidingEstimate::new(counted), outcome),
        contestant("SlidingWindow, 10 cells", SlidingWindow::new(counted, 10), outcome),
        contestant("SlidingWindow, 1,000 cells", SlidingWindow::new(counted, 1000), outcome),
        contestant("SlidingLog, 10", log(10), outcome),
        contestant("SlidingLog, 1,000", log(1000), outcome),
        contestant("SlidingLog, 100,000", log(100_000), outcome),
        contestant("AnyPolicy (TokenBucket)", any, outcome),
        contestant("Both (TokenBucket, FixedWindow)", bucket_and_window, outcome),
        counting(outcome),
    ];
    all.push(match outcome {
        Outcome::Granted => contestant("Unlimited or DenyAll", Unlimited, outcome),
        Outcome::Refused => contestant("Unlimited or DenyAll", DenyAll, outcome),
    });
    all
}
