//! Replacing the policy by another one: the state with which the new policy begins.

use std::sync::Arc;
use std::time::Duration;

use crate::policy::any::kind::{Kind, KindState};
use crate::policy::any::{AnyPolicy, AnyState, Era, EraPolicy};
use crate::policy::config::ConfigError;
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::{Change, Keep, Policy, PolicyConfig, SmoothBursty};
use crate::sync::{AtomicU32, Ordering, Swap, fence};
use crate::time::Nanos;

/// The step from the terms in force to the terms of a configuration.
#[derive(Debug)]
pub(crate) enum Step {
    /// The policy continues with other numbers.
    Change(Change),
    /// Another policy continues instead of it.
    Replace(Box<AnyPolicy>),
}

impl AnyPolicy {
    /// Returns the step to the terms of a configuration, in a limiter with a clock that began at
    /// this Unix time.
    pub(crate) fn step_to(
        &self,
        config: &PolicyConfig,
        unix_time_at_zero: Duration,
    ) -> Result<Step, ConfigError> {
        let new = AnyPolicy::try_from(config.clone())?.with_epoch(unix_time_at_zero);
        // A change leaves the start as it is.
        let change = self.change_to(&new).filter(|_| self.config().starts_like(&new.config()));
        Ok(change.map_or_else(|| Step::Replace(Box::new(new)), Step::Change))
    }

    /// Makes the step. The caller excludes other changes, and everything that changes the state
    /// except requests and the undoing of a grant. Returns the level of the state afterwards.
    pub(crate) fn make_step(
        &self,
        state: &AnyState,
        at: Nanos,
        now: &dyn Fn() -> Nanos,
        step: Step,
        keep: Keep,
    ) -> Result<u64, ConfigError> {
        match step {
            Step::Change(change) => Ok(self.change_now(state, at, now, change.keep(keep))?),
            Step::Replace(new) => {
                self.replace(state, &|| now().max(at), new.with_policy(|policy| policy.kind.clone()), keep);
                // Grants from before the change give back nothing.
                Ok(0)
            }
        }
    }

    /// Replaces the policy and the state. See the module's documentation for the protocol.
    fn replace(&self, state: &AnyState, now: &dyn Fn() -> Nanos, new: Kind, keep: Keep) {
        // Relaxed: only a change writes the number, and the caller excludes other changes.
        let era = state.era.load(Ordering::Relaxed);
        // Relaxed: the fence after it orders this store.
        state.era.store(era | 1, Ordering::Relaxed);
        // A thread that reads a value stored after this fence, and executes a fence, too, finds the
        // era odd (1).
        fence(Ordering::Release);
        let left = self.era(state, |policy, state| policy.kind.shut(state, now));
        let next = (era / 2).wrapping_add(1);
        // Nothing accrues in the new state for the time before the old one was shut.
        self.publish(state, now(), (new, next), left, keep);
    }

    /// Like [`replace`](AnyPolicy::replace), for a broken twin of the models: it reads the old
    /// state, and does not shut it.
    #[cfg(all(test, tidegate_loom))]
    pub(crate) fn replace_without_shutting(&self, state: &AnyState, at: Nanos, new: &AnyPolicy, keep: Keep) {
        // Relaxed: as in `replace`, except for the missing fence.
        let era = state.era.load(Ordering::Relaxed);
        state.era.store(era | 1, Ordering::Relaxed);
        let left = Remainder::of(self.era(state, |policy, state| policy.kind.status(state, at)));
        let new = new.with_policy(|policy| policy.kind.clone());
        self.publish(state, at, (new, (era / 2).wrapping_add(1)), left, keep);
    }

    /// Takes permits of the first era, for a broken twin of the models: it returns a refusal
    /// without a second check of the era.
    #[cfg(all(test, tidegate_loom))]
    pub(crate) fn try_acquire_once(
        &self,
        state: &AnyState,
        at: Nanos,
        n: u32,
    ) -> Result<(), crate::error::Refusal> {
        // Acquire: as in `try_acquire` (5).
        match state.era.load(Ordering::Acquire) {
            0 => self.first.kind.try_acquire(&state.first, at, n).map(drop),
            _ => self.try_acquire(state, at, n).map(drop),
        }
    }

    /// Begins an era with the remainder of the era before.
    fn publish(&self, state: &AnyState, at: Nanos, (kind, era): (Kind, u32), left: Remainder, keep: Keep) {
        let carried = carried_over(&kind, at, left, keep);
        let policy = Arc::new(EraPolicy { kind, era });
        state.later.store(Arc::new(Era { policy: policy.clone(), state: carried }));
        self.later.store(policy);
        // Release: a thread that sees the flag, or the number, finds this era or a later one (4).
        self.replaced.store(true, Ordering::Release);
        state.era.store(era.wrapping_mul(2), Ordering::Release);
    }

    /// Creates a state that begins in the era in force.
    pub(super) fn with_start(&self, start: impl FnOnce(&Kind) -> KindState) -> AnyState {
        // Acquire: a thread that sees the flag sees the policy.
        if !self.replaced.load(Ordering::Acquire) {
            let first = start(&self.first.kind);
            return AnyState { first, era: AtomicU32::new(0), later: Swap::empty() };
        }
        let later = Swap::empty();
        let era = self.later.with(|policy| {
            let policy = policy?;
            later.store(Arc::new(Era { policy: policy.clone(), state: start(&policy.kind) }));
            Some(policy.era)
        });
        AnyState { first: KindState::DenyAll(()), era: AtomicU32::new(2 * era.unwrap_or(0)), later }
    }
}

/// Returns a state of a policy that continues from a remainder.
///
/// The change makes no permit available. With [`Keep::Count`], no more permits are available than
/// directly before the change, nor than the new limit minus the used permits. With [`Keep::Ratio`],
/// the share of the limit that is available is no larger. Permits that were owed are owed. A state
/// without a limit contains no information, and then the new state begins like a new limiter.
fn carried_over(kind: &Kind, at: Nanos, left: Remainder, keep: Keep) -> KindState {
    let state = match kind {
        // Even at a rate of zero, at which stored permits are a time, and cannot be taken away.
        Kind::SmoothBursty(_) if keep != Keep::Nothing && left.limit < u64::MAX => {
            KindState::SmoothBursty(SmoothBursty::start_without_permits(at))
        }
        kind => kind.start(at),
    };
    let status = kind.status(&state, at);
    if keep == Keep::Nothing || left.limit == u64::MAX || status.limit == u64::MAX {
        return state;
    }
    let (target, owed) = match keep {
        Keep::Ratio => (
            share(status.limit, left.available, left.limit, false),
            share(left.owed.into(), status.limit, left.limit, true),
        ),
        _ => {
            let used = left.limit - left.available;
            (left.available.min(status.limit.saturating_sub(used)), left.owed.into())
        }
    };
    kind.refund(&state, at, small(target.saturating_sub(status.available)));
    kind.keep_at_most(&state, at, target);
    // A permit may cost more than one, as when the policy is cold.
    for _ in 0..64 {
        match kind.status(&state, at).available.saturating_sub(target) {
            0 => break,
            more => kind.debit(&state, at, small(more)),
        }
    }
    kind.debit(&state, at, small(owed));
    state
}

/// Returns `number * part / whole`, and zero if `whole` is zero.
fn share(number: u64, part: u64, whole: u64, up: bool) -> u64 {
    let (product, whole) = (u128::from(number) * u128::from(part), u128::from(whole));
    let share = if up { product.checked_add(whole).map(|sum| sum.saturating_sub(1)) } else { Some(product) };
    share
        .and_then(|share| share.checked_div(whole))
        .map_or(0, |share| u64::try_from(share).unwrap_or(u64::MAX))
}

fn small(permits: u64) -> u32 {
    u32::try_from(permits).unwrap_or(u32::MAX)
}
