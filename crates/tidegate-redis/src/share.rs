//! The share of a process in its limits, for the time that the store is away.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate::{AllOf, AnyLimiter, AnyPolicy, PolicyConfig, Rate, RateLimiter};

use crate::error::BuildError;

/// Limiters of this process alone, each with its share of a limit.
pub(crate) fn limiter(
    limits: &[(String, PolicyConfig)],
    processes: NonZeroU32,
) -> Result<AnyLimiter, BuildError> {
    let mut all: Option<AllOf> = None;
    for (name, config) in limits {
        let policy = AnyPolicy::try_from(share(config.clone(), processes))?;
        let limiter = RateLimiter::new(policy);
        all = Some(match all {
            None => AllOf::new(name.as_str(), &limiter),
            Some(all) => all.with(name.as_str(), &limiter),
        });
    }
    all.map(AnyLimiter::from).ok_or(BuildError::NoLimit)
}

/// A configuration with the permits of one of so many processes: at least one permit where there
/// was one.
fn share(mut config: PolicyConfig, processes: NonZeroU32) -> PolicyConfig {
    let part = |permits: u32| permits.checked_div(processes.get()).unwrap_or(0).max(permits.min(1));
    match &mut config {
        PolicyConfig::TokenBucket { rate, burst, start_with, interval_refill, at_wall_clock, .. } => {
            let steps = *interval_refill || at_wall_clock.is_some();
            *rate = if steps { fewer(*rate, processes) } else { slower(*rate, processes) };
            *burst = part(*burst);
            *start_with = start_with.map(part);
        }
        PolicyConfig::LeakyBucket { rate, nodelay, capacity, .. } => {
            *rate = slower(*rate, processes);
            *nodelay = nodelay.map(|permits| permits / processes);
            *capacity = capacity.map(|permits| permits / processes);
        }
        PolicyConfig::SmoothBursty { rate, .. } => *rate = slower(*rate, processes),
        PolicyConfig::FixedWindow { rate, .. }
        | PolicyConfig::SlidingWindow { rate, .. }
        | PolicyConfig::SlidingEstimate { rate, .. }
        | PolicyConfig::SlidingLog { rate, .. } => *rate = fewer(*rate, processes),
        _ => {}
    }
    config
}

/// The share of a rate, exact where its permits are a whole number.
fn slower(rate: Rate, processes: NonZeroU32) -> Rate {
    let permits = rate.permits();
    let period = rate.period().checked_mul(processes.get()).filter(|period| *period <= Rate::MAX_PERIOD);
    // In range, just checked.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let exact = match period {
        Some(period) if permits.fract() == 0.0 && permits < 1e15 => Rate::new(permits as u64, period).ok(),
        _ => None,
    };
    exact.unwrap_or_else(|| {
        Rate::from_per_second(rate.as_per_second() / f64::from(processes.get())).unwrap_or(Rate::ZERO)
    })
}

/// Fewer whole permits in an equal period, so that windows begin and end as before. A rate that is
/// less than a permit for each process stays one permit.
fn fewer(rate: Rate, processes: NonZeroU32) -> Rate {
    let permits = (rate.permits() / f64::from(processes.get())).floor().max(1.0);
    let whole = rate.permits().fract() == 0.0 && permits <= f64::from(u32::MAX);
    // In range, just checked.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let fewer = (whole && !rate.is_zero()).then(|| Rate::new(permits as u64, rate.period()).ok());
    match fewer.flatten() {
        Some(rate) => rate,
        None if rate.is_zero() => rate,
        // One permit in the time that the share takes.
        None => {
            let period = Duration::try_from_secs_f64(f64::from(processes.get()) / rate.as_per_second());
            let period = period.unwrap_or(Rate::MAX_PERIOD).min(Rate::MAX_PERIOD);
            Rate::new(1, period).unwrap_or(Rate::ZERO)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_part_of_each_limit_and_at_least_a_permit() {
        let four = NonZeroU32::new(4).expect("not zero");
        for (line, expected) in [
            ("token_bucket 100/s burst 10", "token_bucket 25/s burst 2"),
            ("token_bucket 2/s burst 1", "token_bucket 1/2s burst 1"),
            ("token_bucket 100/min burst 8 interval_refill", "token_bucket 25/min burst 2 interval_refill"),
            ("leaky_bucket 10/s nodelay 4 capacity 8", "leaky_bucket 10/4s nodelay 1 capacity 2"),
            ("smooth_bursty 6/s", "smooth_bursty 6/4s"),
            ("fixed_window 5000/h", "fixed_window 1250/h"),
            ("sliding_log 3/s", "sliding_log 1/s"),
            ("sliding_window zero cells 2", "sliding_window zero cells 2"),
        ] {
            let config: PolicyConfig = line.parse().expect("a configuration");
            let expected: PolicyConfig = expected.parse().expect("a configuration");
            let (got, expected) = (share(config, four), expected);
            let rate = |config: &PolicyConfig| {
                AnyPolicy::try_from(config.clone())
                    .map(|policy| tidegate::policy::Policy::rate(&policy).as_per_second())
            };
            assert_eq!(rate(&got), rate(&expected), "{line}: {got}");
            let tail = |config: &PolicyConfig| {
                config
                    .to_string()
                    .split_once(' ')
                    .map(|(_, rest)| rest.split_once(' ').map(|(_, rest)| rest.to_owned()))
            };
            assert_eq!(tail(&got), tail(&expected), "{line}: {got}");
        }
    }
}
