//! The parts of a policy: each part has a level of its own.

use crate::error::Refusal;
use crate::policy::interval::Interval;
use crate::policy::{Policy, PolicyStatus, Standstill, limited, limited_for_now, ticks};
use crate::rate::Rate;
use crate::sync::MAX_RETRIES;
use crate::time::Nanos;

/// One part of a policy, with its state and what one grant took of it.
///
/// A policy has one part by default; a [`Both`](super::Both) has the parts of its two policies.
/// [`Policy::each_part`] shows them. Each method does for this part what the method of [`Policy`]
/// does for all.
pub trait Part {
    /// See [`Policy::moved`]. `None` if the grant took nothing of this part.
    fn moved(&self) -> Option<(u64, u64)>;

    /// See [`Policy::full_level`].
    fn full_level(&self, at: Nanos) -> u64;

    /// See [`Policy::level_unit`].
    fn level_unit(&self) -> (u64, u64);

    /// See [`Policy::undo`]. Puts back nothing if the grant took nothing of this part.
    fn undo(&self, at: Nanos, most: u64) -> u64;

    /// See [`Policy::refund`].
    fn refund(&self, at: Nanos, n: u32) -> u64;

    /// See [`Policy::debit`].
    fn debit(&self, at: Nanos, n: u32);

    /// See [`Policy::keep_at_most`].
    fn keep_at_most(&self, at: Nanos, permits: u64) -> u64;

    /// See [`Policy::pause`].
    fn pause(&self, stop: Standstill) -> Option<u64>;

    /// Returns the level of a state that a pause left empty at this time, or a higher level.
    /// Returns zero if [`Policy::pause`] does nothing.
    fn empty_level(&self, at: Nanos) -> u64;

    /// Returns whether the state can stand still, so that [`Policy::pause`] does something. A
    /// window cannot, because it counts in real time.
    fn stands_still(&self) -> bool;

    /// See [`Policy::permits`]. Zero if the grant took nothing of this part.
    fn permits(&self) -> u32;

    /// See [`Policy::rate`].
    fn rate(&self) -> Rate;

    /// See [`Policy::status`].
    fn status(&self, at: Nanos) -> PolicyStatus;
}

/// Spacing of grants after a pause, for a part that cannot stand still.
impl dyn Part + '_ {
    /// Returns the time at which the limit has accrued since `from`: grants are spaced until then.
    pub(crate) fn spaced_until(&self, from: Nanos) -> Nanos {
        self.accrued_at(from, self.status(from).limit)
    }

    /// Returns the time at which `permits` permits have accrued since `from`, one interval apart.
    pub(crate) fn accrued_at(&self, from: Nanos, permits: u64) -> Nanos {
        let price = self.interval().price(u32::try_from(permits).unwrap_or(u32::MAX));
        ticks::to_nanos(ticks::from_nanos(from).saturating_add(price))
    }

    /// Returns how many permits have accrued between two times, one interval apart.
    pub(crate) fn accrued_between(&self, from: Nanos, to: Nanos) -> u64 {
        let span = ticks::from_nanos(to).saturating_sub(ticks::from_nanos(from));
        self.interval().permits_in(span)
    }

    /// Returns the time between two permits.
    pub(crate) fn interval(&self) -> Interval {
        Interval::new(self.rate())
    }
}

/// A policy that is one part.
pub(crate) struct Whole<'a, P: Policy> {
    pub(crate) policy: &'a P,
    pub(crate) state: &'a P::State,
    pub(crate) charge: Option<P::Charge>,
}

impl<P: Policy> Part for Whole<'_, P> {
    fn moved(&self) -> Option<(u64, u64)> {
        self.charge.map(|charge| self.policy.moved(charge))
    }

    fn full_level(&self, at: Nanos) -> u64 {
        self.policy.full_level(at)
    }

    fn level_unit(&self) -> (u64, u64) {
        self.policy.level_unit()
    }

    fn undo(&self, at: Nanos, most: u64) -> u64 {
        self.charge.map_or(u64::MAX, |charge| self.policy.undo(self.state, at, charge, most))
    }

    fn refund(&self, at: Nanos, n: u32) -> u64 {
        self.policy.refund(self.state, at, n)
    }

    fn debit(&self, at: Nanos, n: u32) {
        self.policy.debit(self.state, at, n);
    }

    fn keep_at_most(&self, at: Nanos, permits: u64) -> u64 {
        self.policy.keep_at_most(self.state, at, permits)
    }

    fn pause(&self, stop: Standstill) -> Option<u64> {
        self.policy.pause(self.state, stop)
    }

    fn empty_level(&self, at: Nanos) -> u64 {
        self.policy.pause(&self.policy.restart(at), Standstill::end(at)).unwrap_or(0)
    }

    fn stands_still(&self) -> bool {
        self.policy.forecast_pause(self.state, Standstill::keeping(Nanos::ZERO, Nanos::ZERO)).is_some()
    }

    fn permits(&self) -> u32 {
        self.charge.map_or(0, |charge| self.policy.permits(charge))
    }

    fn rate(&self) -> Rate {
        self.policy.rate()
    }

    fn status(&self, at: Nanos) -> PolicyStatus {
        self.policy.status(self.state, at)
    }
}

/// Takes from all parts of a policy or from none. It checks before it takes, so that a refusal
/// writes nothing unless another request takes the permits in between.
///
/// In that case `put_back` gets what was taken, with the value that `begin` returned before.
#[inline]
pub(crate) fn take_all<P: Policy, B>(
    (policy, state): (&P, &P::State),
    at: Nanos,
    n: u32,
    begin: impl Fn() -> B,
    put_back: impl Fn(B, P::Charge),
) -> Result<P::Charge, Refusal> {
    policy.check(n)?;
    // Bounded: a policy may contradict itself.
    for _ in 0..=MAX_RETRIES {
        let due = policy.ready_at(state, at, 0, n);
        if due > at {
            return Err(limited(due, at));
        }
        // Before the take, so that permits given back in between count as given back after it.
        let begun = begin();
        match policy.take_parts(state, at, n) {
            Ok(charge) => return Ok(charge),
            Err((refusal, taken)) => {
                if let Some(taken) = taken {
                    put_back(begun, taken);
                }
                if !refusal.may_retry() {
                    return Err(refusal);
                }
            }
        }
    }
    Err(limited_for_now(at))
}
