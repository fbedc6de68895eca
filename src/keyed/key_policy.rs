//! The policy of one key: that of all keys, until it is changed for this one.

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::{Change, Crowd, Forecast, Policy, PolicyStatus};
use crate::rate::Rate;
use crate::sync::{AtomicBool, Ordering};
use crate::time::Nanos;

/// The policy of one key of a [`KeyedRateLimiter`](crate::KeyedRateLimiter): that of all keys,
/// whatever that is [changed](crate::KeyedRateLimiter::change_all) to, until it is
/// [changed](crate::RateLimiter::change) for this key.
#[derive(Debug)]
pub struct KeyPolicy<P> {
    /// A copy from the start: whoever asks while it is changed must find the one that is changed.
    policy: P,
    /// Whether it went through a change that the policy of all keys did not. Then a state may mean
    /// something else to it, by the time at which nothing came in any more, or by the number of a
    /// window's terms.
    apart: AtomicBool,
    /// Whether it has terms of its own, and goes along with no change for all keys any more.
    own: AtomicBool,
}

impl<P> KeyPolicy<P> {
    pub(crate) fn new(policy: P) -> KeyPolicy<P> {
        KeyPolicy { policy, apart: AtomicBool::new(false), own: AtomicBool::new(false) }
    }

    /// The policy that decides about this key.
    #[must_use]
    #[inline]
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Whether it was given terms for this key: a rate, a burst or what else there is.
    #[must_use]
    pub fn is_own(&self) -> bool {
        // It is set under the queue's lock, and whoever relies on it has that or had it.
        self.own.load(Ordering::Relaxed)
    }

    /// Whether a state means the same to it as to the policy of all keys.
    pub(crate) fn shares_states(&self) -> bool {
        !self.apart.load(Ordering::Relaxed)
    }
}

impl<P: Policy> Policy for KeyPolicy<P> {
    type State = P::State;
    type Charge = P::Charge;

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

    fn foresee(&self, state: &P::State, forecast: &mut Forecast, n: u32) -> Nanos {
        self.policy.foresee(state, forecast, n)
    }

    fn foresee_many(&self, state: &P::State, forecast: &mut Forecast, crowd: &Crowd) {
        self.policy.foresee_many(state, forecast, crowd);
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

    fn refund(&self, state: &P::State, at: Nanos, n: u32) -> u64 {
        self.policy.refund(state, at, n)
    }

    fn change(&self, state: &P::State, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        let level = self.policy.change(state, at, change)?;
        self.apart.store(true, Ordering::Relaxed);
        if change.has_terms() {
            self.own.store(true, Ordering::Relaxed);
        }
        Ok(level)
    }

    fn debit(&self, state: &P::State, at: Nanos, n: u32) {
        self.policy.debit(state, at, n);
    }

    fn unspent(&self, charge: P::Charge, n: u32, used: u32) -> Option<P::Charge> {
        self.policy.unspent(charge, n, used)
    }

    fn rate(&self) -> Rate {
        self.policy.rate()
    }

    fn status(&self, state: &P::State, at: Nanos) -> PolicyStatus {
        self.policy.status(state, at)
    }

    fn is_fresh(&self, state: &P::State, at: Nanos) -> bool {
        self.policy.is_fresh(state, at)
    }

    fn start_again(&self, now: Nanos) -> P::State {
        self.policy.start_again(now)
    }

    fn catches_up(&self) -> bool {
        self.policy.catches_up()
    }

    fn max_wait(&self) -> Duration {
        self.policy.max_wait()
    }
}
