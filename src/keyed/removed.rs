//! What leaves the table under a lock, and is dropped without it.
//!
//! `Drop` of a key, a state, a policy, a clock or a waker is foreign code, which may block, panic
//! or call the limiter. So a section that takes something out of the table puts it here, and the
//! call drops it when no lock is held and its own request is decided.

use super::key_policy::KeyPolicy;
use super::table::Line;
use crate::clock::Timer;
use crate::limiter::Rest;
use crate::line::deferred::{go_on, run};
use crate::policy::Policy;

/// Things to be dropped without a lock. Declare it before the guard of the lock.
pub(crate) struct Removed<K, P: Policy, C: Timer> {
    pub(crate) known: Vec<(K, P::State)>,
    pub(crate) lines: Vec<(K, Line<P, C>)>,
    /// Lines whose key and state are known again.
    pub(crate) rests: Vec<Rest<KeyPolicy<P>, C>>,
}

impl<K, P: Policy, C: Timer> Removed<K, P, C> {
    pub(crate) fn new() -> Self {
        Removed { known: Vec::new(), lines: Vec::new(), rests: Vec::new() }
    }

    /// Drops a known key later, or now if that runs no code.
    pub(crate) fn key(&mut self, known: (K, P::State)) {
        if std::mem::needs_drop::<(K, P::State)>() {
            self.known.push(known);
        }
    }
}

impl<K, P: Policy, C: Timer> Drop for Removed<K, P, C> {
    fn drop(&mut self) {
        let Removed { known, lines, rests } = self;
        let mut panic = None;
        // Each by itself: one that panics must not keep the others.
        for item in known.drain(..) {
            run(&mut panic, || drop(item));
        }
        for item in lines.drain(..) {
            run(&mut panic, || drop(item));
        }
        for item in rests.drain(..) {
            run(&mut panic, || drop(item));
        }
        go_on(panic);
    }
}
