//! The part of a limit that one of several processes has.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate::{AnyPolicy, DenyAll, PolicyConfig, Rate};

use super::period::Period;
use crate::terms::{Terms, fraction, whole_permits};

/// Returns a configuration whose windows begin with those of a clock that shows `time`, on a clock
/// that shows `wall`.
pub(super) fn by_wall(mut config: PolicyConfig, time: Duration, wall: Duration) -> PolicyConfig {
    let length = match Terms::new(&config).map(|terms| Period::of(&terms.numbers)) {
        Ok(Period::Window(length, _)) => length.as_nanos().max(1),
        _ => return config,
    };
    if let PolicyConfig::FixedWindow { at_wall_clock: Some(offset), .. } = &mut config {
        let [wall, time, set] = [wall, time, *offset].map(|time| time.as_nanos() % length);
        let nanos = (set + wall + length - time) % length;
        *offset = Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
    }
    config
}

/// Returns a configuration with the permits of one of `processes` processes: at least one permit if
/// the whole has a permit.
pub(super) fn part_of(mut config: PolicyConfig, processes: NonZeroU32) -> PolicyConfig {
    let part = |permits: u32| permits.checked_div(processes.get()).unwrap_or(0).max(permits.min(1));
    if let PolicyConfig::SmoothBursty { rate, .. } = config
        && !rate.is_zero()
    {
        // Each process would grant a large request at once, for which its next request pays. So the
        // share is a bucket that grants what it has.
        let limit = Terms::new(&config).map_or(0, |terms| u32::try_from(terms.limit).unwrap_or(u32::MAX));
        let bucket = format!("token_bucket {} burst {}", slower(rate, processes), part(limit));
        return bucket.parse().unwrap_or_else(|_| AnyPolicy::from(DenyAll).config());
    }
    match &mut config {
        PolicyConfig::TokenBucket { rate, burst, start_with, interval_refill, at_wall_clock, .. } => {
            let steps = *interval_refill || at_wall_clock.is_some();
            *rate = if steps { fewer_in_steps(*rate, processes) } else { slower(*rate, processes) };
            *burst = part(*burst);
            // `Share::begin` sets how much a share has at first.
            *start_with = None;
        }
        PolicyConfig::LeakyBucket { rate, nodelay, capacity, .. } => {
            *rate = slower(*rate, processes);
            *nodelay = nodelay.map(|permits| permits / processes);
            *capacity = capacity.map(|permits| permits / processes);
        }
        PolicyConfig::FixedWindow { rate, at_wall_clock, from_first_grant, .. } => {
            *rate = fewer(*rate, processes);
            // Windows of the store begin at the wall clock, unless they begin at a first grant.
            if !*from_first_grant {
                at_wall_clock.get_or_insert_default();
            }
        }
        PolicyConfig::SlidingWindow { rate, .. }
        | PolicyConfig::SlidingEstimate { rate, .. }
        | PolicyConfig::SlidingLog { rate, .. } => *rate = fewer(*rate, processes),
        _ => {}
    }
    config
}

/// Returns the share of a rate: equally many permits in a period that is as many times longer as
/// there are processes.
fn slower(rate: Rate, processes: NonZeroU32) -> Rate {
    let exact = || {
        let (permits, period) = whole_permits(rate)?;
        Rate::new(permits, period.checked_mul(processes.get())?).ok()
    };
    exact().unwrap_or_else(|| {
        Rate::from_per_second(rate.as_per_second() / f64::from(processes.get())).unwrap_or(Rate::ZERO)
    })
}

/// Returns a rate with fewer whole permits in an equal period, so that windows begin and end as
/// before. A rate of less than a permit for each process stays one permit.
fn fewer(rate: Rate, processes: NonZeroU32) -> Rate {
    let exact = |(permits, period): (u64, Duration)| {
        Rate::new((permits / u64::from(processes.get())).max(1), period).ok()
    };
    // The window of any limit over a store grants whole permits.
    whole_permits(rate).filter(|_| !rate.is_zero()).and_then(exact).unwrap_or(rate)
}

/// Returns the share of a rate in steps: whole permits in each step, or one permit in several
/// steps.
fn fewer_in_steps(rate: Rate, processes: NonZeroU32) -> Rate {
    let share = || {
        let (permits, parts) = fraction(rate, 1, processes.get().into())?;
        let (permits, steps) = match permits / parts {
            0 => (1, u32::try_from(parts.div_ceil(permits.max(1))).ok()?),
            whole => (u64::try_from(whole).ok()?, 1),
        };
        Rate::new(permits, rate.period().checked_mul(steps)?).ok()
    };
    if rate.is_zero() { rate } else { share().unwrap_or(rate) }
}

#[cfg(test)]
mod tests {
    use tidegate::AnyPolicy;

    use super::*;

    #[test]
    fn a_share_is_a_part_of_each_limit_and_at_least_a_permit() {
        let four = NonZeroU32::new(4).expect("not zero");
        for (line, expected) in [
            ("token_bucket 100/s burst 10", "token_bucket 25/s burst 2"),
            ("token_bucket 2/s burst 1", "token_bucket 1/2s burst 1"),
            ("token_bucket 100/min burst 8 interval_refill", "token_bucket 25/min burst 2 interval_refill"),
            ("leaky_bucket 10/s nodelay 4 capacity 8", "leaky_bucket 10/4s nodelay 1 capacity 2"),
            ("smooth_bursty 6/s", "token_bucket 6/4s burst 1"),
            ("smooth_bursty 6/s max_burst 1m", "token_bucket 6/4s burst 90"),
            ("smooth_bursty zero", "smooth_bursty zero"),
            ("fixed_window 5000/h", "fixed_window 1250/h at_wall_clock 0s"),
            ("sliding_log 3/s", "sliding_log 1/s"),
            ("sliding_window zero cells 2", "sliding_window zero cells 2"),
            ("token_bucket 33.3/s burst 10", "token_bucket 333/40s burst 2"),
            ("fixed_window 2.5/s", "fixed_window 1/2s at_wall_clock 0s"),
            ("token_bucket 9.5/s burst 12 interval_refill", "token_bucket 2/s burst 3 interval_refill"),
            ("token_bucket 2.5/s burst 12 interval_refill", "token_bucket 1/2s burst 3 interval_refill"),
            ("token_bucket 0.1/s burst 10 interval_refill", "token_bucket 1/40s burst 2 interval_refill"),
            ("token_bucket 2/s burst 10 interval_refill", "token_bucket 1/2s burst 2 interval_refill"),
        ] {
            let config: PolicyConfig = line.parse().expect("a configuration");
            let expected: PolicyConfig = expected.parse().expect("a configuration");
            let (got, expected) = (part_of(config, four), expected);
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

    /// Bug: the share of a rate that is no whole number was a float, which no script counts
    /// exactly. So a process had no share, or one with windows of another length.
    #[test]
    fn each_number_of_processes_has_a_share_of_each_limit() {
        for line in [
            "token_bucket {} burst 10",
            "token_bucket {} burst 10 interval_refill",
            "leaky_bucket {}",
            "smooth_bursty {}",
            "fixed_window {} at_wall_clock 0s",
            "sliding_window {} cells 5",
            "sliding_estimate {}",
            "sliding_log {}",
        ] {
            for rate in ["0.1/s", "0.5/s", "1.5/s", "2.5/s", "12.5/s", "33.3/s", "1000.5/s", "7/s", "1/h"] {
                let config: PolicyConfig = line.replace("{}", rate).parse().expect("a configuration");
                let period =
                    |config: &PolicyConfig| Terms::new(config).map(|terms| Period::of(&terms.numbers)).ok();
                for processes in (1..=32).filter_map(NonZeroU32::new) {
                    let part = part_of(config.clone(), processes);
                    assert!(period(&part).is_some(), "{config}, {processes}: {part}");
                    if line.contains("bucket") || line.contains("smooth") {
                        // Bug: a share in steps had up to as many permits as the limit.
                        let [whole, part] = [&config, &part].map(|config| {
                            let policy = AnyPolicy::try_from(config.clone()).expect("a policy");
                            tidegate::policy::Policy::rate(&policy).as_per_second()
                        });
                        let all = part * f64::from(processes.get());
                        assert!(all <= whole * (1.0 + 1e-9), "{config}, {processes}: {part}");
                    } else {
                        assert_eq!(period(&part), period(&config), "{config}, {processes}: {part}");
                    }
                    assert!(AnyPolicy::try_from(part).is_ok(), "{config}, {processes}");
                }
            }
        }
    }
}
