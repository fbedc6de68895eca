//! Any policy: chosen at run time by a configuration, and replaced at run time by another kind.
//!
//! # The problem
//!
//! A request asks the policy without a lock. A change of the kind replaces the policy and the
//! state. Their types differ, and no single CAS replaces both. A request that found the old policy
//! a moment ago must not get a permit that the new policy grants again.
//!
//! # Protocol
//!
//! A state has *eras*. Each era has its own policy and state, which belong together. The first era
//! is stored in [`AnyPolicy`] and [`AnyState`] themselves, and so costs a request one comparison.
//! Each later era is stored behind a [`Swap`], and costs a request a load of it.
//!
//! | `era` of the state | old era | new era | a request |
//! |---|---|---|---|
//! | 2*k* | decides | | takes by era *k* |
//! | 2*k* + 1 | decides | | has found era *k*: takes by it. Otherwise retries |
//! | 2*k* + 1 | [shut](crate::policy::remainder::Shut) | is created | is refused by era *k*, sees that it is over, and retries |
//! | 2*k* + 1 | shut | is stored | takes by era *k* + 1, if it already finds it |
//! | 2*k* + 2 | shut | decides | takes by era *k* + 1 |
//!
//! **A grant is counted in one era.** Shutting a state is one step in the order of its changes. A
//! grant before that step is counted in the remainder with which the new era begins. No grant comes
//! after it. So a grant needs no second check. A *refusal* does, because a shut state refuses
//! everything: if the era is over, the request asks the next one.
//!
//! **No request waits for another thread.** A request that finds a change in progress retries
//! [`MAX_RETRIES`] times. If the change is still in progress, the changing thread was taken off its
//! processor, and the request is refused with a retry time of a nanosecond.
//!
//! **Undoing** needs the era of the grant, which each charge has. Nothing of a grant of an earlier
//! era is put back: the new policy does not count what the old policy counted.
//!
//! A change holds the lock of the queue, as do refunds, debits, and most undoing. An operation that
//! does not hold the lock, and finds an old era, changes a state that no request asks.
//!
//! # Memory ordering
//!
//! | operation | ordering | pairs with | why |
//! |---|---|---|---|
//! | 1 `era` becomes odd: store, then a fence | Relaxed, Release | 6 | a request that is refused by a shut state finds another era |
//! | 2 the old state is shut: read-modify-write | as in the policy | the takes of the old policy | a take before it is counted; a take after it fails, or is refused |
//! | 3 the new era is stored | that of the `Swap` | 5 | a request that finds it sees all of it |
//! | 4 `era` becomes even: store | Release | 5 | a request that reads this number finds this era or a later one |
//! | 5 load of `era`, then of the `Swap` | Acquire | 3, 4 | as above |
//! | 6 after a refusal: a fence, then load of `era` | Acquire, Relaxed | 1 | the fence makes the load of the shut state, of whatever ordering, come after 1 |
//!
//! **Why enough.** There are two bad executions. The first is a grant of the old era that the new
//! era does not count: 2 is a read-modify-write, so it reads the newest state. The second is a
//! refusal by a shut state that is returned to the caller: the request has read a value that was
//! stored after the fence in 1, so the load in 6 reads that store or a later one. **Why not more.**
//! A request that begins after a change has ended finds the new era, because the change happens
//! before; a request that overlaps with the change may take by either era.
//!
//! Without a limit the old policy grants without loading its state. Such a request has found the
//! old era, and is granted as if it had come before the change.
//!
//! **Checked by** `loom-tests/kinds.rs`, with twins that do not shut the old state and that return
//! its refusal, and by `tests/limiter/apply.rs`.

mod kind;
mod replace;

pub(crate) use replace::Step;

use std::fmt;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
pub(in crate::policy) use crate::policy::any::kind::Kind;
use crate::policy::any::kind::{KindCharge, KindState};
use crate::policy::{Change, Crowd, Forecast, Policy, PolicyStatus, Standstill, limited_for_now};
use crate::rate::Rate;
use crate::sync::{AtomicBool, AtomicU32, MAX_RETRIES, Ordering, Swap, fence, spin_loop};
use crate::time::Nanos;

/// Any of the policies, for a choice made by a configuration: one type for all limiters of a
/// program.
///
/// It is created from a [policy](AnyPolicy::from), a [`PolicyConfig`](super::PolicyConfig), or a
/// [text](super::PolicyConfig#text), and returns its terms as a [configuration](AnyPolicy::config).
/// A decision costs a branch or two more than with the policy itself, and the state has the size of
/// the largest.
///
/// [`RateLimiter::apply`](crate::RateLimiter::apply) changes everything at run time, even the kind
/// of policy.
///
/// # Examples
///
/// ```
/// use tidegate::policy::AnyPolicy;
/// use tidegate::{ManualClock, RateLimiter};
///
/// let limits = ["token_bucket 100/s burst 20", "sliding_log 5000/h", "unlimited"];
/// for text in limits {
///     let policy: AnyPolicy = text.parse()?;
///     let limiter = RateLimiter::with_clock(policy, ManualClock::new());
///     assert!(limiter.try_acquire_many(20).is_ok());
///     assert_eq!(limiter.policy().to_string(), text);
/// }
/// # Ok::<(), tidegate::policy::ConfigError>(())
/// ```
pub struct AnyPolicy {
    first: EraPolicy,
    /// Whether `later` has a policy. Stored after `later`.
    replaced: AtomicBool,
    /// The policy of the era in force, unless that is the first era.
    later: Swap<EraPolicy>,
}

/// The state of one [`AnyPolicy`].
#[derive(Debug)]
pub struct AnyState {
    first: KindState,
    /// Twice the number of the era in force, plus one while it is replaced.
    era: AtomicU32,
    /// The era in force, unless that is the first era.
    later: Swap<Era>,
}

/// What one grant of an [`AnyPolicy`] took.
#[derive(Clone, Copy, Debug)]
pub struct AnyCharge {
    era: u32,
    charge: KindCharge,
}

/// A policy, and the era in which it decides.
#[derive(Debug)]
struct EraPolicy {
    kind: Kind,
    era: u32,
}

/// A later era: its policy, and a state of that policy.
#[derive(Debug)]
struct Era {
    policy: std::sync::Arc<EraPolicy>,
    state: KindState,
}

impl AnyState {
    /// Returns whether this era is in force, and no change is in progress, for a request that this
    /// era has refused.
    #[inline]
    fn is_in_force(&self, era: u32) -> bool {
        // The load of the state that refused comes before this fence (6). So the load after it may
        // be relaxed.
        fence(Ordering::Acquire);
        self.era.load(Ordering::Relaxed) == 2 * era
    }

    /// Returns whether a change is in progress.
    fn is_closed(&self) -> bool {
        // Acquire: as in `AnyPolicy::era` (5), which loads the number again.
        self.era.load(Ordering::Acquire) % 2 == 1
    }
}

impl From<Kind> for AnyPolicy {
    fn from(kind: Kind) -> AnyPolicy {
        AnyPolicy {
            first: EraPolicy { kind, era: 0 },
            replaced: AtomicBool::new(false),
            later: Swap::empty(),
        }
    }
}

/// Creates a policy with the terms in force.
impl Clone for AnyPolicy {
    fn clone(&self) -> AnyPolicy {
        self.with_policy(|policy| policy.kind.clone().into())
    }
}

impl fmt::Debug for AnyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyPolicy({self})")
    }
}

impl AnyPolicy {
    /// Calls `inspect` with the policy in force.
    fn with_policy<R>(&self, inspect: impl FnOnce(&EraPolicy) -> R) -> R {
        // Acquire: a thread that sees the flag sees the policy.
        if !self.replaced.load(Ordering::Acquire) {
            return inspect(&self.first);
        }
        self.later.with(|policy| inspect(policy.map_or(&self.first, |policy| policy)))
    }

    /// Returns the configuration of the terms in force, after all changes.
    ///
    /// It makes a policy that decides like this one. A field with the default value of the policy,
    /// such as a `cold_factor` of 3, is not set. A token bucket with a burst of 0 grants nothing,
    /// so its configuration is `deny_all`; with an unlimited rate it is `unlimited`. A window with
    /// a rate that was changed to a fraction has the whole numbers in force. A log with a lowered
    /// rate has the room with which it was created as `with_capacity`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AnyPolicy, Change, Rate, RateLimiter};
    ///
    /// let policy: AnyPolicy = "token_bucket 5/s burst 10 tolerance 20ms".parse()?;
    /// let limiter = RateLimiter::new(policy);
    /// limiter.change(Change::rate(Rate::per_second(8)).burst(20))?;
    /// let config = limiter.policy().config();
    /// assert_eq!(config.to_string(), "token_bucket 8/s burst 20 tolerance 20ms");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn config(&self) -> super::PolicyConfig {
        self.with_policy(|policy| policy.kind.config())
    }

    /// Calls `inspect` with an era: the one with this number or a later one.
    fn of_era<R>(
        &self,
        state: &AnyState,
        number: u32,
        inspect: impl FnOnce(&EraPolicy, &KindState) -> R,
    ) -> R {
        if number == 0 {
            return inspect(&self.first, &state.first);
        }
        state.later.with(|era| match era {
            Some(era) => inspect(&era.policy, &era.state),
            None => inspect(&self.first, &state.first),
        })
    }

    /// Calls `inspect` with the era in force. For an operation that excludes changes, or may find
    /// an old era.
    fn era<R>(&self, state: &AnyState, inspect: impl FnOnce(&EraPolicy, &KindState) -> R) -> R {
        // Acquire: a thread that reads this number finds this era or a later one (5).
        self.of_era(state, state.era.load(Ordering::Acquire) / 2, inspect)
    }

    /// Calls `inspect` with the era in force, and repeats this until the era is still in force
    /// afterwards. Returns `None` if a change is in progress, and stalls.
    fn inspect<R>(&self, state: &AnyState, inspect: impl Fn(&EraPolicy, &KindState) -> R) -> Option<R> {
        for _ in 0..=MAX_RETRIES {
            if state.is_closed() {
                spin_loop();
                continue;
            }
            let (seen, era) = self.era(state, |policy, state| (inspect(policy, state), policy.era));
            if state.is_in_force(era) {
                return Some(seen);
            }
        }
        None
    }

    /// Takes permits of a later era than the first, or of the next one.
    #[inline(never)]
    fn try_acquire_later(&self, state: &AnyState, at: Nanos, n: u32) -> Result<AnyCharge, Refusal> {
        for _ in 0..=MAX_RETRIES {
            // Acquire: as in `era` (5).
            let number = state.era.load(Ordering::Acquire);
            if number % 2 == 1 {
                spin_loop();
                continue;
            }
            let (answer, era) = self.of_era(state, number / 2, |EraPolicy { kind, era }, state| {
                (kind.try_acquire(state, at, n), *era)
            });
            match answer {
                Ok(charge) => return Ok(AnyCharge { era, charge }),
                Err(refusal) if state.is_in_force(era) => return Err(refusal),
                Err(_) => {}
            }
        }
        Err(limited_for_now(at))
    }
}

impl Policy for AnyPolicy {
    type State = AnyState;
    type Charge = AnyCharge;

    fn start(&self, now: Nanos) -> AnyState {
        self.with_start(|kind| kind.start(now))
    }

    #[inline]
    fn try_acquire(&self, state: &AnyState, at: Nanos, n: u32) -> Result<AnyCharge, Refusal> {
        // Acquire: a later era is found by `try_acquire_later` (5).
        if state.era.load(Ordering::Acquire) == 0 {
            let make = |charge| AnyCharge { era: 0, charge };
            let answer = self.first.kind.try_acquire_as(&state.first, at, n, make);
            if answer.is_ok() || state.is_in_force(0) {
                return answer;
            }
        }
        self.try_acquire_later(state, at, n)
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.with_policy(|policy| policy.kind.check(n))
    }

    fn weight(&self, n: u32) -> u64 {
        self.with_policy(|policy| policy.kind.weight(n))
    }

    fn ready_at(&self, state: &AnyState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        let ready_at = self.inspect(state, |policy, state| policy.kind.ready_at(state, at, ahead, n));
        // The same time as a request gets while a change stalls.
        ready_at.unwrap_or(at.saturating_add(Nanos::new(1)))
    }

    fn one_by_one(&self, largest: u32) -> usize {
        self.with_policy(|policy| policy.kind.one_by_one(largest))
    }

    fn forecast(&self, state: &AnyState, at: Nanos) -> Forecast {
        self.era(state, |policy, state| policy.kind.forecast(state, at))
    }

    fn predict(&self, state: &AnyState, forecast: &mut Forecast, n: u32) -> Nanos {
        self.era(state, |policy, state| policy.kind.predict(state, forecast, n))
    }

    fn predict_many(&self, state: &AnyState, forecast: &mut Forecast, crowd: &Crowd) {
        self.era(state, |policy, state| policy.kind.predict_many(state, forecast, crowd));
    }

    fn undo(&self, state: &AnyState, at: Nanos, charge: AnyCharge, most: u64) -> u64 {
        self.era(state, |EraPolicy { kind, era }, state| match charge.era == *era {
            true => kind.undo(state, at, charge.charge, most),
            // Nothing of a grant by another policy is put back. This call returns the level.
            false => kind.refund(state, at, 0),
        })
    }

    fn moved(&self, charge: AnyCharge) -> (u64, u64) {
        self.with_policy(
            |EraPolicy { kind, era }| if charge.era == *era { kind.moved(charge.charge) } else { (0, 0) },
        )
    }

    fn full_level(&self, at: Nanos) -> u64 {
        self.with_policy(|policy| policy.kind.full_level(at))
    }

    fn level_unit(&self) -> (u64, u64) {
        self.with_policy(|policy| policy.kind.level_unit())
    }

    fn refund(&self, state: &AnyState, at: Nanos, n: u32) -> u64 {
        self.era(state, |policy, state| policy.kind.refund(state, at, n))
    }

    fn unspent(&self, AnyCharge { era, charge }: AnyCharge, n: u32, used: u32) -> Option<AnyCharge> {
        let unspent =
            self.with_policy(|policy| (era == policy.era).then(|| policy.kind.unspent(charge, n, used)));
        unspent.flatten().map(|charge| AnyCharge { era, charge })
    }

    fn debit(&self, state: &AnyState, at: Nanos, n: u32) {
        self.era(state, |policy, state| policy.kind.debit(state, at, n));
    }

    fn keep_at_most(&self, state: &AnyState, at: Nanos, permits: u64) -> u64 {
        self.era(state, |policy, state| policy.kind.keep_at_most(state, at, permits))
    }

    fn pause(&self, state: &AnyState, stop: Standstill) -> Option<u64> {
        self.era(state, |policy, state| policy.kind.pause(state, stop))
    }

    fn forecast_pause(&self, state: &AnyState, stop: Standstill) -> Option<Forecast> {
        self.era(state, |policy, state| policy.kind.forecast_pause(state, stop))
    }

    fn full_after_pause(&self, state: &AnyState, stop: Standstill) -> Option<Nanos> {
        self.era(state, |policy, state| policy.kind.full_after_pause(state, stop))
    }

    fn permits(&self, AnyCharge { era, charge }: AnyCharge) -> u32 {
        self.with_policy(|policy| if era == policy.era { policy.kind.permits(charge) } else { 0 })
    }

    fn change(&self, state: &AnyState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        self.change_now(state, at, &|| at, change)
    }

    fn change_now(
        &self,
        state: &AnyState,
        at: Nanos,
        now: &dyn Fn() -> Nanos,
        change: Change,
    ) -> Result<u64, PolicyError> {
        self.era(state, |policy, state| policy.kind.change_now(state, at, now, change))
    }

    /// Not to another kind: that requires [`RateLimiter::apply`](crate::RateLimiter::apply).
    fn change_to(&self, new: &AnyPolicy) -> Option<Change> {
        self.with_policy(|old| new.with_policy(|new| old.kind.change_to(&new.kind)))
    }

    fn rate(&self) -> Rate {
        self.with_policy(|policy| policy.kind.rate())
    }

    fn status(&self, state: &AnyState, at: Nanos) -> PolicyStatus {
        let status = self.inspect(state, |policy, state| policy.kind.status(state, at));
        let soon = at.saturating_add(Nanos::new(1));
        status.unwrap_or(PolicyStatus { next_at: soon, full_at: soon, ..PolicyStatus::NOTHING })
    }

    /// After a change of the kind, this is the status of the new state: nothing is left of the old
    /// state.
    fn left(&self, state: &AnyState, AnyCharge { era, charge }: AnyCharge, at: Nanos) -> PolicyStatus {
        let of_era =
            self.era(state, |policy, state| (era == policy.era).then(|| policy.kind.left(state, charge, at)));
        of_era.filter(|_| state.is_in_force(era)).unwrap_or_else(|| self.status(state, at))
    }

    fn is_fresh(&self, state: &AnyState, at: Nanos) -> bool {
        self.inspect(state, |policy, state| policy.kind.is_fresh(state, at)).unwrap_or(false)
    }

    fn restart(&self, now: Nanos) -> AnyState {
        self.with_start(|kind| kind.restart(now))
    }

    fn catches_up(&self) -> bool {
        self.with_policy(|policy| policy.kind.catches_up())
    }

    fn max_wait(&self) -> Duration {
        self.with_policy(|policy| policy.kind.max_wait())
    }

    fn with_epoch(self, unix_time_at_zero: Duration) -> AnyPolicy {
        self.with_policy(|policy| policy.kind.clone()).with_epoch(unix_time_at_zero).into()
    }
}
