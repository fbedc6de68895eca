//! Collects entries that leave the table under a lock, and drops them without the lock.
//!
//! `Drop` of a key, a state, a policy, a clock or a waker is user code, which may block, panic or
//! call the limiter. A section that takes an entry out of the table moves the entry here. The call
//! drops the entry when it holds no lock and its own request is decided.

use super::key_limiters::KeyLimiter;
use super::terms::Entry;
use crate::clock::Timer;
use crate::limiter::Rest;
use crate::line::deferred::{drop_each, resume_panic};
use crate::policy::Policy;

/// Entries to drop without a lock. Declare it before the guard of the lock, so that it is dropped
/// after the guard.
pub(crate) struct Removed<K, P: Policy, C: Timer> {
    pub(crate) known: Vec<Entry<K, P>>,
    pub(crate) limiters: Vec<(K, KeyLimiter<P, C>)>,
    /// The remains of settled key limiters. Their keys and states are back in the table.
    pub(crate) rests: Vec<Rest<P, C>>,
}

impl<K, P: Policy, C: Timer> Removed<K, P, C> {
    pub(crate) fn new() -> Self {
        Removed { known: Vec::new(), limiters: Vec::new(), rests: Vec::new() }
    }

    /// Keeps a known key to drop it later. Drops the key now if its drop runs no code.
    pub(crate) fn key(&mut self, known: Entry<K, P>) {
        if std::mem::needs_drop::<(K, P::State)>() || known.1.is_some() {
            self.known.push(known);
        }
    }
}

impl<K, P: Policy, C: Timer> Drop for Removed<K, P, C> {
    fn drop(&mut self) {
        let Removed { known, limiters, rests } = self;
        let mut panic = None;
        drop_each(&mut panic, known.drain(..));
        drop_each(&mut panic, limiters.drain(..));
        drop_each(&mut panic, rests.drain(..));
        resume_panic(panic);
    }
}
