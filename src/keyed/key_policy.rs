//! The policy of one key: a copy of the policy of all keys or of a plan, until it is changed for
//! this key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::terms::Terms;
use crate::error::{PolicyError, Refusal};
use crate::policy::{Change, Crowd, Forecast, Part, Policy, PolicyStatus, Standstill};
use crate::rate::Rate;
use crate::sync::{AtomicBool, Ordering};
use crate::time::Nanos;

/// The policy of one key of a [`KeyedRateLimiter`](crate::KeyedRateLimiter).
///
/// A key without a [plan](crate::KeyedRateLimiter::with_plans) follows each
/// [change of all keys](crate::KeyedRateLimiter::change_all). A key with a plan follows
/// [`replan`](crate::KeyedRateLimiter::replan). Both hold until the policy is
/// [changed](crate::RateLimiter::change) for this key only.
pub struct KeyPolicy<P> {
    /// A copy from the start, so that requests that run during a change read the policy that
    /// changes.
    policy: P,
    /// The terms that the policy was copied from; `None` means the terms of the shard.
    terms: Option<Arc<Terms<P>>>,
    /// Whether the policy follows changes of all keys. It is stored under the locks of the shard
    /// and of the key limiter.
    common: AtomicBool,
    /// Whether this policy was changed without the policy that it was copied from. Then the two
    /// policies may read one state differently: they may differ in the time at which a refill
    /// stopped, or in the version of a window's terms.
    apart: AtomicBool,
    /// Whether this policy has its own terms, and follows neither changes of all keys nor plans.
    own: AtomicBool,
}

impl<P> KeyPolicy<P> {
    /// Wraps a copy of the policy of `terms`; `None` means the terms of the shard.
    pub(crate) fn new(policy: P, terms: Option<Arc<Terms<P>>>) -> KeyPolicy<P> {
        let common = AtomicBool::new(terms.as_ref().is_none_or(|terms| terms.common));
        KeyPolicy { policy, terms, common, apart: AtomicBool::new(false), own: AtomicBool::new(false) }
    }

    /// Returns the terms that the policy was copied from.
    pub(super) fn terms(&self) -> Option<&Arc<Terms<P>>> {
        self.terms.as_ref()
    }

    /// Returns whether the policy follows changes of all keys.
    pub(crate) fn is_common(&self) -> bool {
        // Relaxed: both locks order loads and stores.
        self.common.load(Ordering::Relaxed)
    }

    /// Records that the policy was changed and the terms that it was copied from were not. `common`
    /// says whether the policy follows changes of all keys from now on.
    pub(super) fn set_apart(&self, common: bool) {
        // Relaxed: as above, and the line's lock orders `apart`.
        self.common.store(common, Ordering::Relaxed);
        self.apart.store(true, Ordering::Relaxed);
    }

    /// Returns the policy that decides about this key.
    #[must_use]
    #[inline]
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Returns whether this key has its own terms, such as its own rate or burst.
    #[must_use]
    pub fn is_own(&self) -> bool {
        // Relaxed: the flag is stored under the line's lock. A reader that relies on the value
        // holds that lock, or has synchronized with the last holder.
        self.own.load(Ordering::Relaxed)
    }

    /// Returns whether this policy and the terms that it was copied from read a state in the same
    /// way.
    pub(crate) fn shares_states(&self) -> bool {
        // Relaxed: a caller first calls `is_idle`, which takes the line's lock, under which the
        // flag is stored.
        !self.apart.load(Ordering::Relaxed)
    }
}

impl<P: fmt::Debug> fmt::Debug for KeyPolicy<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPolicy").field("policy", &self.policy).field("is_own", &self.is_own()).finish()
    }
}

impl<P: Policy> Policy for KeyPolicy<P> {
    type State = P::State;
    type Charge = P::Charge;

    const PARTS: usize = P::PARTS;

    fn start(&self, now: Nanos) -> P::State {
        self.policy.start(now)
    }

    #[inline]
    fn try_acquire(&self, state: &P::State, at: Nanos, n: u32) -> Result<P::Charge, Refusal> {
        self.policy.try_acquire(state, at, n)
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.policy.check(n)
    }

    fn weight(&self, n: u32) -> u64 {
        self.policy.weight(n)
    }

    fn ready_at(&self, state: &P::State, at: Nanos, ahead: u64, n: u32) -> Nanos {
        self.policy.ready_at(state, at, ahead, n)
    }

    fn one_by_one(&self, largest: u32) -> usize {
        self.policy.one_by_one(largest)
    }

    fn forecast(&self, state: &P::State, at: Nanos) -> Forecast {
        self.policy.forecast(state, at)
    }

    fn predict(&self, state: &P::State, forecast: &mut Forecast, n: u32) -> Nanos {
        self.policy.predict(state, forecast, n)
    }

    fn predict_many(&self, state: &P::State, forecast: &mut Forecast, crowd: &Crowd) {
        self.policy.predict_many(state, forecast, crowd);
    }

    fn undo(&self, state: &P::State, at: Nanos, charge: P::Charge, most: u64) -> u64 {
        self.policy.undo(state, at, charge, most)
    }

    fn moved(&self, charge: P::Charge) -> (u64, u64) {
        self.policy.moved(charge)
    }

    fn full_level(&self, at: Nanos) -> u64 {
        self.policy.full_level(at)
    }

    fn level_unit(&self) -> (u64, u64) {
        self.policy.level_unit()
    }

    fn each_part(&self, state: &P::State, charge: Option<P::Charge>, show: &mut dyn FnMut(&dyn Part)) {
        self.policy.each_part(state, charge, show);
    }

    #[inline]
    fn take_parts(
        &self,
        state: &P::State,
        at: Nanos,
        n: u32,
    ) -> Result<P::Charge, (Refusal, Option<P::Charge>)> {
        self.policy.take_parts(state, at, n)
    }

    fn refund(&self, state: &P::State, at: Nanos, n: u32) -> u64 {
        self.policy.refund(state, at, n)
    }

    fn pause(&self, state: &P::State, stop: Standstill) -> Option<u64> {
        self.policy.pause(state, stop)
    }

    fn forecast_pause(&self, state: &P::State, stop: Standstill) -> Option<Forecast> {
        self.policy.forecast_pause(state, stop)
    }

    fn full_after_pause(&self, state: &P::State, stop: Standstill) -> Option<Nanos> {
        self.policy.full_after_pause(state, stop)
    }

    fn permits(&self, charge: P::Charge) -> u32 {
        self.policy.permits(charge)
    }

    fn change(&self, state: &P::State, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        self.change_now(state, at, &|| at, change)
    }

    fn change_now(
        &self,
        state: &P::State,
        at: Nanos,
        now: &dyn Fn() -> Nanos,
        change: Change,
    ) -> Result<u64, PolicyError> {
        let level = self.policy.change_now(state, at, now, change)?;
        // Relaxed: the line's lock orders both stores for readers that rely on them.
        self.apart.store(true, Ordering::Relaxed);
        if change.has_terms() {
            self.own.store(true, Ordering::Relaxed);
        }
        Ok(level)
    }

    fn debit(&self, state: &P::State, at: Nanos, n: u32) {
        self.policy.debit(state, at, n);
    }

    fn keep_at_most(&self, state: &P::State, at: Nanos, permits: u64) -> u64 {
        self.policy.keep_at_most(state, at, permits)
    }

    fn unspent(&self, charge: P::Charge, n: u32, used: u32) -> Option<P::Charge> {
        self.policy.unspent(charge, n, used)
    }

    fn change_to(&self, new: &Self) -> Option<Change> {
        self.policy.change_to(&new.policy)
    }

    fn rate(&self) -> Rate {
        self.policy.rate()
    }

    fn status(&self, state: &P::State, at: Nanos) -> PolicyStatus {
        self.policy.status(state, at)
    }

    fn left(&self, state: &P::State, charge: P::Charge, at: Nanos) -> PolicyStatus {
        self.policy.left(state, charge, at)
    }

    fn is_fresh(&self, state: &P::State, at: Nanos) -> bool {
        self.policy.is_fresh(state, at)
    }

    fn restart(&self, now: Nanos) -> P::State {
        self.policy.restart(now)
    }

    fn catches_up(&self) -> bool {
        self.policy.catches_up()
    }

    fn max_wait(&self) -> Duration {
        self.policy.max_wait()
    }
}
