//! Random decisions: each script decides like the policy in one process.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::policy::{AnyPolicy, Policy};
use tidegate::{Nanos, Refusal};

use crate::script::Answer;
use crate::script_tests::{Limit, Operation, START, Store, TRY, intervals};
use crate::terms::Kind;

/// Policies whose intervals and windows are whole microseconds: equal without any tolerance.
pub(crate) const EXACT: [&str; 21] = [
    "token_bucket 5/s burst 10",
    "token_bucket 1000/s burst 1",
    "token_bucket 1000000/s burst 20",
    "token_bucket 100/min burst 250 start_with 7",
    "token_bucket 50/s burst 4 tolerance 30ms",
    "token_bucket 50/s burst 4 start_with 4 tolerance 100ms",
    "token_bucket 20/s burst 60 interval_refill",
    "token_bucket 20/min burst 5 at_wall_clock 13s",
    "leaky_bucket 100/s",
    "leaky_bucket 100/s nodelay 3 capacity 5",
    "smooth_bursty 5/s",
    "smooth_bursty 500/s max_burst 20ms start_full",
    "smooth_bursty 1000/s max_burst 0s",
    "fixed_window 10/s",
    "fixed_window 100/min at_wall_clock 7s",
    "fixed_window 10/s from_first_grant",
    "sliding_window 10/s cells 10",
    "sliding_window 100/min cells 1",
    "sliding_estimate 50/s",
    "sliding_log 20/s",
    "sliding_log 7/s with_capacity 30",
];

/// The number of calls of each policy, from the environment; 50,000 make a million.
pub(crate) fn calls() -> usize {
    std::env::var("TIDEGATE_REDIS_CALLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000)
}

/// Calls at mostly rising times: attempts, refunds, debits and status calls, of mixed sizes.
fn random_calls(limit: &Limit, seed: u64) -> Vec<(Operation, u64, u64)> {
    let mut random = SmallRng::seed_from_u64(seed);
    let most = limit.terms.limit.clamp(1, 60);
    let most_in = |times: f64| intervals(limit, times);
    let mut now = START + 60_000_000;
    (0..calls())
        .map(|_| {
            now += match random.random_range(0..100) {
                0..30 => 0,
                30..90 => random.random_range(0..=most_in(2.5)),
                90..96 => random.random_range(0..=most_in(20.0)),
                // To a full period, where windows and steps begin.
                96..99 => 1_000_000 - now % 1_000_000,
                _ => random.random_range(0..=most_in(500.0)),
            };
            // A clock that is slightly behind.
            let seen =
                now - if random.random_ratio(1, 10) { random.random_range(0..=most_in(1.0)) } else { 0 };
            let n = if random.random_ratio(3, 4) { 1 } else { random.random_range(1..=most + 1) };
            let operation = match random.random_range(0..100) {
                0..88 => TRY,
                88..92 => Operation::Refund { due: i64::try_from(now).expect("an instant") },
                92..94 => Operation::Debit,
                94..95 => Operation::Keep,
                95..99 => Operation::Status,
                _ => Operation::Reset,
            };
            // A log in one process remembers fewer owed permits.
            let owes = operation == Operation::Debit && limit.terms.kind() == Kind::Log;
            // Of a grant at this time, or of all grants up to this time.
            let is_exact = matches!(operation, Operation::Refund { .. } | Operation::Reset);
            let seen = if is_exact { now } else { seen };
            (operation, seen, if owes { 1 } else { n })
        })
        .collect()
}

/// A server's time as a time of a policy's clock.
pub(crate) fn nanos(micros: u64) -> Nanos {
    Nanos::new((micros - START) * 1000)
}

fn up_to_micros(span: Duration) -> Duration {
    Duration::from_micros(u64::try_from(span.as_nanos().div_ceil(1000)).expect("a wait"))
}

#[test]
fn scripts_decide_as_policies_do() {
    let Some(mut store) = Store::new() else { return };
    for (seed, line) in (0..).zip(EXACT) {
        let limit = Limit::new(line);
        let policy: AnyPolicy = line.parse().expect("a policy");
        let policy = policy.with_epoch(Duration::from_micros(START));
        let mut state = policy.start(Nanos::ZERO);
        let calls = random_calls(&limit, seed);
        let replies = store.run(&limit, &calls);
        // The time of the last write, while there is a value: time goes back no further.
        let (mut latest, mut reset) = (None, 0);
        let (mut granted, mut refused) = (0, 0);
        for (i, ((operation, now, n), reply)) in calls.iter().zip(&replies).enumerate() {
            if latest.is_none() {
                // A missing value begins with the call that asks.
                state = policy.start(nanos(*now));
            }
            let seen = latest.unwrap_or(0).max(*now);
            let (at, behind) = (nanos(seen), Duration::from_micros(seen - now));
            let n32 = u32::try_from(*n).expect("a few permits");
            let context = format!("{line}: call {i}, {operation:?} of {n} at {now}");
            match operation {
                Operation::Reserve { .. } => match policy.try_acquire(&state, at, n32) {
                    Ok(_) => {
                        granted += 1;
                        latest = Some(seen);
                        assert_eq!(reply.answer, Answer::Done, "{context}");
                    }
                    Err(refusal) => {
                        refused += 1;
                        let wait = match refusal {
                            Refusal::Limited { retry_after } => up_to_micros(retry_after.as_duration()),
                            _ => Duration::MAX,
                        };
                        assert_eq!(reply.answer, Answer::Refused, "{context}");
                        assert_eq!(reply.wait, wait.saturating_add(behind), "{context}");
                        // A limit that reports when a request is due has begun.
                        latest = latest.or((wait < Duration::MAX).then_some(seen));
                    }
                },
                // A limit without a value has nothing to get back, and a limit that was reset gets
                // back no grant from before the reset, or from its instant.
                Operation::Refund { .. } if latest.is_none() || *now <= reset => {}
                Operation::Refund { .. } => {
                    policy.refund(&state, at, n32);
                    latest = Some(seen);
                }
                Operation::Debit => {
                    policy.debit(&state, at, n32);
                    latest = Some(seen);
                }
                Operation::Keep => {
                    let taken = policy.keep_at_most(&state, at, *n);
                    assert_eq!(reply.limits[0].other, taken, "{context}");
                    latest = if taken > 0 { Some(seen) } else { latest };
                }
                // A value is replaced by that of a new limit.
                Operation::Reset if latest.is_some() => {
                    state = policy.start(nanos(*now));
                    (latest, reset) = (Some(*now), *now);
                }
                _ => {}
            }
            if *operation == Operation::Reset {
                continue;
            }
            let status = policy.status(&state, at);
            assert_eq!(reply.limits[0].available, status.available, "{context}: {reply:?}");
            if status.full_at > at {
                let full_in = up_to_micros(Duration::from_nanos(status.full_at.as_u64() - at.as_u64()));
                assert_eq!(reply.limits[0].full_in, full_in + behind, "{context}: {reply:?}");
            }
        }
        assert!(granted.min(refused) > calls.len() / 20, "{line}: {granted} granted, {refused} refused");
    }
}
