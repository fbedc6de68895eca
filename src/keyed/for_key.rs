//! The policy of one key: that of all keys, until it is changed for this one.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::nanos::Nanos;
use crate::policy::{Change, Policy, PolicyStatus};
use crate::rate::Rate;

/// The policy of one key of a [`KeyedRateLimiter`](crate::KeyedRateLimiter): that of all keys, or its own from the first
/// [`change`](crate::RateLimiter::change) on.
#[derive(Debug)]
pub struct ForKey<P> {
    all: Arc<P>,
    own: OnceLock<P>,
}

impl<P> ForKey<P> {
    pub(crate) fn new(all: Arc<P>) -> ForKey<P> {
        ForKey { all, own: OnceLock::new() }
    }

    /// The policy that decides about this key.
    #[must_use]
    #[inline]
    pub fn policy(&self) -> &P {
        self.own.get().unwrap_or(&self.all)
    }

    /// Whether it was changed for this key.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.own.get().is_some()
    }
}

impl<P: Policy + Clone> Policy for ForKey<P> {
    type State = P::State;
    type Charge = P::Charge;

    fn start(&self, now: Nanos) -> P::State {
        self.policy().start(now)
    }

    #[inline]
    fn try_acquire(&self, state: &P::State, at: Nanos, n: u32) -> Result<P::Charge, Refusal> {
        self.policy().try_acquire(state, at, n)
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.policy().check(n)
    }

    fn weight(&self, n: u32) -> u64 {
        self.policy().weight(n)
    }

    fn ready_at(&self, state: &P::State, at: Nanos, ahead: u64, n: u32) -> Nanos {
        self.policy().ready_at(state, at, ahead, n)
    }

    fn undo(&self, state: &P::State, at: Nanos, charge: P::Charge, lowest: u64) -> u64 {
        self.policy().undo(state, at, charge, lowest)
    }

    fn refund(&self, state: &P::State, at: Nanos, n: u32) -> u64 {
        self.policy().refund(state, at, n)
    }

    fn change(&self, state: &P::State, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        // Until it is changed the copy is equal to the other, so it does not matter which of them a request finds meanwhile.
        self.own.get_or_init(|| P::clone(&self.all)).change(state, at, change)
    }

    fn debit(&self, state: &P::State, at: Nanos, n: u32) {
        self.policy().debit(state, at, n);
    }

    fn unused(&self, charge: P::Charge, n: u32, used: u32) -> Option<P::Charge> {
        self.policy().unused(charge, n, used)
    }

    fn rate(&self) -> Rate {
        self.policy().rate()
    }

    fn status(&self, state: &P::State, at: Nanos) -> PolicyStatus {
        self.policy().status(state, at)
    }

    fn catches_up(&self) -> bool {
        self.policy().catches_up()
    }

    fn max_wait(&self) -> Duration {
        self.policy().max_wait()
    }
}
