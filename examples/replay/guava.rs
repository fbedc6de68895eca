//! Replays recordings of Guava's `RateLimiter`: see `tests/golden/guava/README.md`.
//!
//! Three things are compared, for every trace that is not one of Guava's defects:
//!
//! 1. The reference model at one tick per microsecond returns exactly the recorded results. So the
//!    model is right.
//! 2. The policy agrees with the reference model at the policy's own tick of 1/16 ns, when both
//!    follow the recorded decisions. So the policy is right. The bound is computed, not chosen: see
//!    `tests/support/allowance.rs`.
//! 3. The difference that remains between the policy and the recording is Guava's truncation to
//!    whole microseconds. It is reported, not judged.

use std::path::Path;
use std::time::Duration;

use tidegate::{Nanos, Policy, Rate, SmoothBursty, SmoothWarmingUp};

use crate::allowance::Allowance;
use crate::guava::{Guava, Kind, Ticks};
use crate::report::{Outcome, Report, mismatch, read};
use crate::trace::{Call, Class, Limiter, Op, Trace};

/// Guava's own ticks.
const MICROS: Ticks = Ticks { per_second: 1e6, limit: i64::MAX as i128 };

/// The policies' ticks. This many make a microsecond.
const FINE_PER_MICRO: i128 = 16_000;

/// A recorded wait above this (30 years) means never. A policy's time ends after 34 years.
const NEVER_US: i64 = 1_000_000_000_000_000;

/// The most by which two rates may differ when they are read back: Guava computes its own from the
/// interval.
const RATE_ERROR: f64 = 1e-12;

/// Replays every `*.jsonl` in a directory.
pub(crate) fn replay(dir: &Path) -> Result<Report, String> {
    let mut drift = Drift::default();
    let mut report = Report::of(dir, |line| replay_line(line, &mut drift))?;
    report.notes = drift.notes();
    Ok(report)
}

fn replay_line(line: &str, drift: &mut Drift) -> Result<Outcome, String> {
    let trace: Trace = read(line)?;
    if trace.class == Class::Quirk {
        return Ok(Outcome::Skipped(trace.id));
    }
    let id = &trace.id;
    check_model(&trace).map_err(|error| format!("{id}: the model at 1 MHz: {error}"))?;
    check_policy(&trace, drift).map_err(|error| format!("{id}: {error}"))?;
    Ok(Outcome::Passed)
}

/// Check 1: the model at Guava's tick against the recording.
fn check_model(trace: &Trace) -> Result<(), String> {
    let (kind, rate) = kind_and_rate(trace.limiter, 1);
    let mut model = Guava::new(MICROS, kind, rate, trace.start_us.into());
    for (index, op) in trace.ops.iter().enumerate() {
        let at = i128::from(op.at_us);
        match op.call {
            Call::Acquire { n, wait_us } => check_wait(index, op, wait_us, model.acquire(at, n))?,
            Call::TryAcquire { n, ok, wait_us, .. } => {
                let granted = model.grants_within(at, timeout_ns(op) / 1000);
                if granted != ok {
                    return Err(mismatch(index, op, ok, granted));
                }
                let wait = if granted { model.acquire(at, n) } else { 0 };
                check_wait(index, op, wait_us, wait)?;
            }
            Call::SetRate { rate } => model.set_rate(at, rate),
            Call::GetRate { rate } => check_rate(index, op, rate, model.rate())?,
            Call::Advance {} => {}
        }
    }
    Ok(())
}

fn check_wait(index: usize, op: &Op, recorded: i64, wait: i128) -> Result<(), String> {
    let never = i128::from(NEVER_US);
    let recorded = i128::from(recorded);
    if wait == recorded || (wait > never && recorded > never) {
        Ok(())
    } else {
        Err(mismatch(index, op, recorded, wait))
    }
}

fn check_rate(index: usize, op: &Op, recorded: f64, rate: f64) -> Result<(), String> {
    // Below this, Guava's interval is infinite, and it reads the rate back as 0.
    let tiny = 1e-300;
    if rate == recorded
        || (rate - recorded).abs() <= RATE_ERROR * recorded
        || (rate < tiny && recorded < tiny)
    {
        Ok(())
    } else {
        Err(mismatch(index, op, recorded, rate))
    }
}

/// Checks 2 and 3: the policy against the fine model and the recording.
fn check_policy(trace: &Trace, drift: &mut Drift) -> Result<(), String> {
    let refused = |error| format!("tidegate cannot be configured so: {error}");
    match trace.limiter {
        Limiter::Bursty { permits_per_second, max_burst_seconds } => {
            let burst = Duration::try_from_secs_f64(max_burst_seconds).map_err(|error| error.to_string())?;
            let policy = SmoothBursty::new(rate_of(permits_per_second)?).try_max_burst(burst);
            run(&policy.map_err(|error| refused(error.to_string()))?, trace, drift)
        }
        Limiter::WarmingUp { permits_per_second, cold_factor, .. } => {
            let warm_up = Duration::from_nanos(warm_up_ns(trace.limiter).unsigned_abs());
            let policy = SmoothWarmingUp::try_new(rate_of(permits_per_second)?, warm_up, cold_factor);
            // Guava lets every idle microsecond cool. By default tidegate does not, on purpose, so
            // that a caller that polls slightly slower than the rate can get warm.
            let policy = policy.map_err(|error| refused(error.to_string()))?.cool_at_once();
            run(&policy, trace, drift)
        }
    }
}

/// Runs a policy and the fine model next to each other, both with the recorded decisions.
fn run<P: Policy>(policy: &P, trace: &Trace, drift: &mut Drift) -> Result<(), String> {
    let (kind, rate) = kind_and_rate(trace.limiter, FINE_PER_MICRO);
    let mut model = Guava::new(Ticks::PRODUCTION, kind, within_floats(rate), fine(trace.start_us));
    let mut allowance = Allowance::new(kind);
    let state = policy.start(nanos(trace.start_us)?);
    for (index, op) in trace.ops.iter().enumerate() {
        let (at, now) = (fine(op.at_us), nanos(op.at_us)?);
        let due = policy.ready_at(&state, now, 0, 1);
        match op.call {
            Call::Advance {} => {}
            Call::GetRate { rate } => check_rate(index, op, rate, policy.rate().as_per_second())?,
            Call::SetRate { rate } => {
                let was_unlimited = policy.rate().is_unlimited();
                policy.set_rate(&state, now, rate_of(rate)?);
                model.set_rate(at, within_floats(rate));
                if let (Kind::Bursty { .. }, true, true) = (kind, was_unlimited, due > now) {
                    // When Guava leaves the unlimited rate with a negative balance, it has all
                    // stored permits and still the negative balance. A word that is either stored
                    // permits or a negative balance has the negative balance.
                    model.forget_stored();
                }
            }
            Call::TryAcquire { n, .. } | Call::Acquire { n, .. } => {
                let bound = allowance.ticks();
                check_due(&model, due, at, bound).map_err(|(want, got)| mismatch(index, op, want, got))?;
                if let Call::TryAcquire { ok, .. } = op.call {
                    let timeout = timeout_ns(op).max(0);
                    let granted =
                        due != Nanos::MAX && i128::from(due.as_u64()) <= i128::from(now.as_u64()) + timeout;
                    let margin = model.next() - at - timeout * Ticks::PER_NANO;
                    // A timeout longer than all time is no timeout, and never is still never:
                    // nothing to compare.
                    let compared = due != Nanos::MAX || timeout < i128::from(NEVER_US) * 1000;
                    if compared {
                        #[allow(clippy::cast_precision_loss)]
                        if granted != (margin <= 0) && margin.unsigned_abs() as f64 > bound {
                            return Err(mismatch(index, op, margin <= 0, granted));
                        }
                        drift.verdict(granted == ok);
                    }
                    if !ok {
                        continue;
                    }
                }
                let wait = allowance.acquire(&mut model, at, n);
                if due == Nanos::MAX {
                    // No permit is ever free again, and nothing is left to charge.
                    continue;
                }
                policy
                    .try_acquire(&state, due.max(now), n)
                    .map_err(|error| mismatch(index, op, "a grant when it is due", error))?;
                drift.wait(trace.class, op, due.saturating_since(now), wait, bound);
            }
        }
    }
    Ok(())
}

/// Checks the policy's due time against the model's. The error is the expected and the actual time.
fn check_due(model: &Guava, due: Nanos, at: i128, bound: f64) -> Result<(), (String, String)> {
    let got =
        if due == Nanos::MAX { Ticks::PRODUCTION.limit } else { i128::from(due.as_u64()) * Ticks::PER_NANO };
    // In both, a time in the past is due now.
    let (got, want) = (got.max(at), model.next().max(at));
    #[allow(clippy::cast_precision_loss)]
    let ns = |ticks: i128| ticks as f64 / 16.0;
    #[allow(clippy::cast_precision_loss)]
    if (got - want).unsigned_abs() as f64 <= bound {
        Ok(())
    } else {
        Err((
            format!("a wait of {:.1} ns within {:.1} ns", ns(want - at), bound / 16.0),
            format!("{:.1} ns", ns(got - at)),
        ))
    }
}

fn kind_and_rate(limiter: Limiter, ticks_per_micro: i128) -> (Kind, f64) {
    match limiter {
        Limiter::Bursty { permits_per_second, max_burst_seconds } => {
            (Kind::Bursty { max_burst_seconds }, permits_per_second)
        }
        Limiter::WarmingUp { permits_per_second, cold_factor, .. } => {
            // Guava truncates a warm-up to whole ticks, too.
            let warm_up = i128::from(warm_up_ns(limiter)) * ticks_per_micro / 1000;
            #[allow(clippy::cast_precision_loss)]
            (Kind::WarmingUp { warm_up: warm_up as f64, cold_factor }, permits_per_second)
        }
    }
}

/// Returns the warm-up as it was given.
fn warm_up_ns(limiter: Limiter) -> i64 {
    match limiter {
        Limiter::Bursty { .. } => 0,
        Limiter::WarmingUp { warmup_us, warmup_ns, .. } => {
            warmup_ns.unwrap_or(warmup_us.saturating_mul(1000))
        }
    }
}

fn timeout_ns(op: &Op) -> i128 {
    match op.call {
        Call::TryAcquire { timeout_ns: Some(timeout), .. } => timeout.into(),
        Call::TryAcquire { timeout_us: Some(timeout), .. } => i128::from(timeout) * 1000,
        _ => 0,
    }
}

fn fine(us: i64) -> i128 {
    i128::from(us) * FINE_PER_MICRO
}

fn nanos(us: i64) -> Result<Nanos, String> {
    let us = u64::try_from(us).map_err(|_| format!("the clock stands at {us} us, before its beginning"))?;
    Ok(Nanos::new(us.saturating_mul(1000)))
}

fn rate_of(permits_per_second: f64) -> Result<Rate, String> {
    if permits_per_second == f64::INFINITY {
        return Ok(Rate::UNLIMITED);
    }
    Rate::from_per_second(permits_per_second).map_err(|error| error.to_string())
}

/// Keeps the model's floats from overflowing; the policy has no floats. Rates beyond these bounds
/// cannot be distinguished by any wait: a permit takes longer than time lasts, or four billion of
/// them take no tick.
fn within_floats(rate: f64) -> f64 {
    if rate.is_finite() { rate.clamp(1e-100, 1e100) } else { rate }
}

/// Check 3: the difference between the policy and the recording.
#[derive(Debug, Default)]
struct Drift {
    normal_us: Vec<f64>,
    extreme_us: Vec<f64>,
    verdicts: usize,
    other_verdicts: usize,
    /// The largest difference between policy and fine model, and the bound at that time, in
    /// nanoseconds.
    farthest: (f64, f64),
    largest_bound: f64,
}

impl Drift {
    fn verdict(&mut self, same: bool) {
        self.verdicts += 1;
        self.other_verdicts += usize::from(!same);
    }

    #[allow(clippy::cast_precision_loss)]
    fn wait(&mut self, class: Class, op: &Op, wait: Nanos, fine: i128, bound: f64) {
        let (Call::Acquire { wait_us, .. } | Call::TryAcquire { wait_us, .. }) = op.call else { return };
        let ns = wait.as_u64() as f64;
        let distance = (ns - fine as f64 / 16.0).abs();
        if distance > self.farthest.0 {
            self.farthest = (distance, bound / 16.0);
        }
        self.largest_bound = self.largest_bound.max(bound / 16.0);
        if wait_us <= NEVER_US {
            let all = if class == Class::Normal { &mut self.normal_us } else { &mut self.extreme_us };
            all.push((ns / 1000.0 - wait_us as f64).abs());
        }
    }

    fn notes(mut self) -> Vec<String> {
        let (farthest, bound) = self.farthest;
        vec![
            format!(
                "policy and fine model: at most {farthest:.1} ns apart, where {bound:.1} ns were allowed; \
                 largest allowance {:.1} ns",
                self.largest_bound
            ),
            format!("policy and recording, class normal: {}", distribution(&mut self.normal_us)),
            format!("policy and recording, class extreme: {}", distribution(&mut self.extreme_us)),
            format!(
                "verdicts of the policy that differ from the recording, had they not been forced: {} of {}",
                self.other_verdicts, self.verdicts
            ),
        ]
    }
}

fn distribution(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    let at =
        |percent: usize| values.get(values.len() * percent / 100).or(values.last()).copied().unwrap_or(0.0);
    format!(
        "{} waits, {:.3} us apart in the median, {:.3} us at p90, {:.3} us at most",
        values.len(),
        at(50),
        at(90),
        at(100)
    )
}
