//! Replays recordings of Go's `golang.org/x/time/rate`: see `tests/golden/go-rate/README.md`.
//!
//! The policy is the production policy, [`TokenBucket`], with the recorded times. Where the calls
//! of the two libraries differ, these rules translate Go's calls into ours:
//!
//! | Go | here |
//! |---|---|
//! | `reserve` takes permits that accrue later | charged as of the time they are due, as the limiter charges waiters |
//! | `reserve` at limit 0, beyond the stored permits: granted, due never | a request for permits that are never due is not granted; to make the negative balance equal to Go's, it is charged at another rate, set for that moment |
//! | `n = 0` is granted when the balance is not negative | the time at which the balance is not negative |
//! | infinite limit: the tokens are the burst | they are infinite |
//! | `cancel` of a reservation without cost: refused, for 0 permits; any `cancel` at an infinite limit | nothing happens |
//! | `cancel` after the due time: too late, nothing happens | the permits were claimed when they were due, and claimed permits are not given back |
//! | `cancel` of the newest, with limit and burst unchanged | [`Policy::undo`]: both give everything back |
//! | any other `cancel` | differs on purpose: in Go later reservations keep their due times, here the reservations behind move up; Go gives back permits if the limit has changed, here it may give back fewer. The rest of the trace is not compared |
//!
//! Whether a cancel is of the newest reservation follows Go's own rule, applied to the recording:
//! Go gives back `n` minus the permits that were reserved after it. "The newest" means that this is
//! all of `n`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use tidegate::policy::Change;
use tidegate::policy::state::{BucketCharge, BucketState};
use tidegate::{Nanos, Policy, Rate, Refusal, TokenBucket};

use crate::float::float;
use crate::report::{Outcome, Report, mismatch, read};

/// The most by which times may differ, in nanoseconds, besides [`RELATIVE`]. Go counts permits in
/// floats and truncates delays.
const APART_NS: f64 = 100.0;

/// The most by which times may differ, as a part of their value.
const RELATIVE: f64 = 1e-9;

/// The most by which token counts may differ, besides the tokens that accrue in [`APART_NS`].
const APART_TOKENS: f64 = 1e-6;

/// If Go's due times are meant to be equal but are computed in two ways, they are within this.
const SAME_NS: i128 = 2;

/// Go's delay of a reservation that is never due.
const NEVER: i64 = i64::MAX;

/// Delays beyond this (31.7 years) may be beyond the end of a policy's time. A policy then treats
/// them as never due.
const LONG: i64 = 1_000_000_000_000_000_000;

#[derive(Debug, Deserialize)]
struct Trace {
    name: String,
    /// Permits per second.
    #[serde(deserialize_with = "float")]
    limit: f64,
    burst: u32,
    ops: Vec<Op>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Op {
    at_ns: i64,
    #[serde(flatten)]
    call: Call,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Call {
    Allow {
        n: u32,
        ok: bool,
    },
    Reserve {
        n: u32,
        ok: bool,
        id: u64,
        #[serde(default)]
        delay_ns: i64,
    },
    Cancel {
        id: u64,
    },
    SetLimit {
        #[serde(deserialize_with = "float")]
        limit: f64,
    },
    SetBurst {
        burst: u32,
    },
    Tokens {
        tokens: f64,
    },
}

/// Replays every `*.jsonl` in a directory.
pub(crate) fn replay(dir: &Path) -> Result<Report, String> {
    let mut farthest = Farthest::default();
    let mut report = Report::of(dir, |line| {
        let trace: Trace = read(line)?;
        replay_trace(&trace, &mut farthest).map_err(|error| format!("{}: {error}", trace.name))
    })?;
    report.notes.push(farthest.to_string());
    report.notes.push(format!(
        "{} traces differ on purpose from their first cancel that was not of the newest on; met up to there",
        report.apart
    ));
    Ok(report)
}

fn replay_trace(trace: &Trace, farthest: &mut Farthest) -> Result<Outcome, String> {
    // The origin is arbitrary, and the clock of a policy begins at zero.
    let origin = trace.ops.first().map_or(0, |op| op.at_ns);
    let mut limiter = Limiter::new(trace)?;
    for (index, op) in trace.ops.iter().enumerate() {
        let elapsed = u64::try_from(i128::from(op.at_ns) - i128::from(origin));
        let at = Nanos::new(elapsed.map_err(|_| format!("operation {index}, {op:?}: time runs backwards"))?);
        let met = limiter.replay(at, op.call, farthest);
        match met.map_err(|Differs { expected, got }| mismatch(index, op, expected, got))? {
            Met::Yes => {}
            Met::ApartFromHere => return Ok(Outcome::Apart),
        }
    }
    Ok(Outcome::Passed)
}

enum Met {
    Yes,
    ApartFromHere,
}

#[derive(Debug)]
struct Differs {
    expected: String,
    got: String,
}

impl Differs {
    fn new(expected: impl fmt::Display, got: impl fmt::Display) -> Differs {
        Differs { expected: expected.to_string(), got: got.to_string() }
    }
}

/// The policy under test, and the state of Go's limiter that is needed to translate its calls.
struct Limiter {
    policy: TokenBucket,
    state: BucketState,
    limit: f64,
    reserved: BTreeMap<u64, Reserved>,
    /// How often limit or burst was set.
    changes: u32,
    /// The time at which Go's newest grant is due.
    last_due: i128,
    /// The tokens by which the two may have differed before the limit changed.
    inherited: f64,
}

/// A reservation that Go granted.
#[derive(Clone, Copy)]
struct Reserved {
    n: u32,
    /// As returned by Go.
    due: i128,
    /// How often limit or burst had been set.
    changes: u32,
    /// `None` if it cost nothing.
    charge: Option<BucketCharge>,
    /// The lowest level since: see [`Policy::undo`].
    lowest: u64,
}

impl Limiter {
    fn new(trace: &Trace) -> Result<Limiter, String> {
        let policy = TokenBucket::try_new(rate_of(trace.limit)?, trace.burst)
            .map_err(|error| format!("tidegate cannot be configured so: {error}"))?;
        let state = policy.start(Nanos::ZERO);
        Ok(Limiter {
            policy,
            state,
            limit: trace.limit,
            reserved: BTreeMap::new(),
            changes: 0,
            last_due: i128::MIN / 2,
            inherited: 0.0,
        })
    }

    fn replay(&mut self, at: Nanos, call: Call, farthest: &mut Farthest) -> Result<Met, Differs> {
        match call {
            Call::Allow { n, ok } => {
                let granted = self.allow(at, n);
                check_verdict(ok, granted)?;
                if granted {
                    self.granted(at, 0);
                }
            }
            Call::Reserve { n, ok, id, delay_ns } => {
                let due = self.due(at, n);
                check_verdict(ok, due.is_some())?;
                if let Some(due) = due {
                    self.check_delay(delay_ns, at, due, farthest)?;
                    let charge = self.charge(at, due, n)?;
                    self.granted(at, delay_ns);
                    let due = i128::from(at.as_u64()) + i128::from(delay_ns);
                    let reserved = Reserved { n, due, changes: self.changes, charge, lowest: u64::MAX };
                    self.reserved.insert(id, reserved);
                }
            }
            Call::Cancel { id } => return self.cancel(at, id),
            Call::SetLimit { limit } => {
                self.changes += 1;
                let rate = rate_of(limit).map_err(|error| Differs::new("a limit", error))?;
                self.change(at, Change::rate(rate))?;
                if self.limit.is_finite() {
                    self.inherited = self.inherited.max(self.limit * APART_NS * 1e-9);
                }
                self.limit = limit;
            }
            Call::SetBurst { burst } => {
                self.changes += 1;
                self.change(at, Change::only_burst(burst))?;
            }
            Call::Tokens { tokens } => self.check_tokens(tokens, at, farthest)?,
        }
        Ok(Met::Yes)
    }

    fn allow(&self, at: Nanos, n: u32) -> bool {
        match self.policy.try_acquire(&self.state, at, n) {
            Ok(_) => true,
            Err(Refusal::ZeroPermits) => self.policy.ready_at(&self.state, at, 0, 0) <= at,
            Err(_) => false,
        }
    }

    /// Returns when a reservation would be due. `None` if it is refused.
    fn due(&self, at: Nanos, n: u32) -> Option<Nanos> {
        let due = self.policy.ready_at(&self.state, at, 0, n).max(at);
        let exceeds = matches!(self.policy.check(n), Err(Refusal::ExceedsLimit { .. }));
        // A single permit never exceeds the burst: not even a burst of 0, which may change.
        if exceeds || (due == Nanos::MAX && n > self.policy.burst()) { None } else { Some(due) }
    }

    /// Takes the reserved permits.
    fn charge(&mut self, at: Nanos, due: Nanos, n: u32) -> Result<Option<BucketCharge>, Differs> {
        if n == 0 {
            return Ok(None);
        }
        let refused = |refusal| Differs::new("a charge at its due time", refusal);
        if due < Nanos::MAX {
            return self.policy.try_acquire(&self.state, due, n).map(Some).map_err(refused);
        }
        let rate = self.policy.rate();
        self.change(at, Change::rate(Rate::per_second(1)))?;
        let due = self.policy.ready_at(&self.state, at, 0, n).max(at);
        let charge = self.policy.try_acquire(&self.state, due, n).map_err(refused)?;
        self.change(at, Change::rate(rate))?;
        Ok(Some(charge))
    }

    /// Follows Go's due time of the newest grant. At an infinite limit, Go keeps no account.
    fn granted(&mut self, at: Nanos, delay_ns: i64) {
        if self.limit.is_finite() {
            self.last_due = i128::from(at.as_u64()) + i128::from(delay_ns);
        }
    }

    fn cancel(&mut self, at: Nanos, id: u64) -> Result<Met, Differs> {
        // A refused reservation has no entry, and a reservation of no permits has no charge.
        let Some(reserved) = self.reserved.get(&id).copied() else { return Ok(Met::Yes) };
        let Some(charge) = reserved.charge else { return Ok(Met::Yes) };
        if self.limit.is_infinite() {
            return Ok(Met::Yes);
        }
        if reserved.due < i128::from(at.as_u64()) {
            return Ok(Met::Yes);
        }
        // Later reservations are worth this much time, and nothing at limit 0.
        let later = if self.limit == 0.0 { 0 } else { self.last_due - reserved.due };
        if later.abs() > SAME_NS || reserved.changes != self.changes {
            return Ok(Met::ApartFromHere);
        }
        self.reserved.remove(&id);
        let level = self.policy.undo(&self.state, at, charge, reserved.lowest);
        self.left_at(level);
        if self.last_due == reserved.due {
            let before = reserved.due - price_ns(reserved.n, self.limit);
            if before >= i128::from(at.as_u64()) {
                self.last_due = before;
            }
        }
        Ok(Met::Yes)
    }

    fn change(&mut self, at: Nanos, change: Change) -> Result<(), Differs> {
        let level = self.policy.change(&self.state, at, change);
        self.left_at(level.map_err(|error| Differs::new(format!("{change:?}"), error))?);
        Ok(())
    }

    fn left_at(&mut self, level: u64) {
        for reserved in self.reserved.values_mut() {
            reserved.lowest = reserved.lowest.min(level);
        }
    }

    /// Returns the most by which due times may differ, in nanoseconds. A lower limit stretches an
    /// earlier difference.
    fn allowance_ns(&self) -> f64 {
        if self.limit > 0.0 { APART_NS.max(self.inherited / self.limit * 1e9) } else { APART_NS }
    }

    fn check_delay(
        &self,
        delay_ns: i64,
        at: Nanos,
        due: Nanos,
        farthest: &mut Farthest,
    ) -> Result<(), Differs> {
        if due == Nanos::MAX && (delay_ns == NEVER || delay_ns > LONG) {
            return Ok(());
        }
        let got = due.saturating_since(at).as_u64();
        #[allow(clippy::cast_precision_loss)]
        let (apart, value) = ((i128::from(got) - i128::from(delay_ns)).abs() as f64, delay_ns as f64);
        let allowance = self.allowance_ns() + RELATIVE * value;
        if apart > allowance {
            return Err(Differs::new(format!("a delay of {delay_ns} ns within {allowance:.0} ns"), got));
        }
        farthest.delay(apart, allowance);
        Ok(())
    }

    fn check_tokens(&self, tokens: f64, at: Nanos, farthest: &mut Farthest) -> Result<(), Differs> {
        let got = self.policy.tokens(&self.state, at);
        if self.limit.is_infinite() {
            return if got == f64::INFINITY { Ok(()) } else { Err(Differs::new("infinite tokens", got)) };
        }
        let allowance = APART_TOKENS + (self.limit * APART_NS * 1e-9).max(self.inherited);
        let apart = (got - tokens).abs();
        if apart > allowance || got.is_nan() {
            return Err(Differs::new(format!("{tokens} tokens within {allowance}"), got));
        }
        farthest.tokens(apart, allowance);
        Ok(())
    }
}

fn check_verdict(ok: bool, granted: bool) -> Result<(), Differs> {
    let word = |granted| if granted { "granted" } else { "refused" };
    if ok == granted { Ok(()) } else { Err(Differs::new(word(ok), word(granted))) }
}

/// Returns the time that `n` permits take, truncated to whole nanoseconds as in Go. At limit 0 this
/// time does not exist; Go uses the longest time, and thus moves to a later time where it means an
/// earlier one.
#[allow(clippy::cast_possible_truncation)] // Truncated on purpose, and a float that is too large saturates.
fn price_ns(n: u32, limit: f64) -> i128 {
    if limit > 0.0 { i128::from((f64::from(n) / limit * 1e9) as i64) } else { -i128::from(NEVER) }
}

fn rate_of(limit: f64) -> Result<Rate, String> {
    if limit == f64::INFINITY {
        Ok(Rate::UNLIMITED)
    } else if limit == 0.0 {
        Ok(Rate::ZERO)
    } else {
        Rate::from_per_second(limit).map_err(|error| error.to_string())
    }
}

/// The largest differences from the recordings, each with its allowance.
#[derive(Debug, Default)]
struct Farthest {
    delays: usize,
    delay_ns: (f64, f64),
    counts: usize,
    tokens: (f64, f64),
}

impl Farthest {
    fn delay(&mut self, apart: f64, allowance: f64) {
        self.delays += 1;
        if apart > self.delay_ns.0 {
            self.delay_ns = (apart, allowance);
        }
    }

    fn tokens(&mut self, apart: f64, allowance: f64) {
        self.counts += 1;
        if apart > self.tokens.0 {
            self.tokens = (apart, allowance);
        }
    }
}

impl fmt::Display for Farthest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Farthest { delays, delay_ns, counts, tokens } = self;
        write!(
            f,
            "{delays} delays, at most {} ns apart where {:.0} ns were allowed; ",
            delay_ns.0, delay_ns.1
        )?;
        write!(f, "{counts} token counts, at most {:.1e} apart where {:.1e} were allowed", tokens.0, tokens.1)
    }
}
