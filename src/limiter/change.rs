//! A change of the terms while requests wait: which due times it moves.

use std::cell::RefCell;

use crate::clock::Timer;
use crate::error::PolicyError;
use crate::limiter::shared::Shared;
use crate::line::Line;
use crate::line::grants::Changed;
use crate::line::rule::{Rule, Single};
use crate::line::settings::Drift;
use crate::line::visit::Visit;
use crate::policy::{Change, Policy};
use crate::sync::Ordering;
use crate::time::Nanos;

/// Added for a change of due times only: permits are due later, or a request can never be granted.
pub(crate) const TIMES_CHANGED: u64 = 1;

/// Added for a change of weights. After 2^32 changes of times, the carry adds one too many, and the
/// composites recompute their weights unnecessarily.
pub(crate) const WEIGHTS_CHANGED: u64 = 1 << 32;

impl<P: Policy, C: Timer> Shared<Single<P>, C> {
    /// Changes the rate or the burst, and the due times of all waiters.
    pub(crate) fn change(&self, change: Change) -> Result<(), PolicyError> {
        let drift = if change.has_terms() { Drift::Own } else { Drift::Apart };
        self.serve_then(|line, visit| {
            let (at, changed) = (visit.now, Changed::by(&change, drift));
            self.change_terms(line, visit, changed, |Single { policy, state }, now| {
                policy.change_now(state, at, now, change)
            })
        })
    }

    /// Changes the terms of one part, or of all, and the weights and due times of all waiters,
    /// composites included. `change` can read the clock. If the clock panics, `change` gets the
    /// time at which the visit began, and the panic resumes after the visit.
    pub(crate) fn change_terms<E>(
        &self,
        line: &mut Line<Single<P>, C>,
        visit: &mut Visit<'_, Single<P>>,
        changed: Changed,
        change: impl FnOnce(&Single<P>, &dyn Fn() -> Nanos) -> Result<u64, E>,
    ) -> Result<(), E> {
        let (at, deferred) = (visit.now, RefCell::new(&mut *visit.deferred));
        let now = || deferred.borrow_mut().run(|| self.clock.now()).unwrap_or(at);
        line.change(&self.rule, changed, || change(&self.rule, &now))?;
        line.weigh_sizes(&self.rule);
        // Release: see `retime_composites`.
        self.changes.fetch_add(WEIGHTS_CHANGED, Ordering::Release);
        self.retime(line, visit);
        Ok(())
    }
}

impl<R: Rule, C: Timer> Shared<R, C> {
    /// Recomputes the due times of all waiters, composites included, after permits became due
    /// later.
    pub(crate) fn retime(&self, line: &mut Line<R, C>, visit: &mut Visit<'_, R>) {
        line.retime(visit);
        self.retime_composites(line, visit);
    }

    /// Makes the composites that wait here recompute their due times. Nothing else is needed if
    /// times move up, because no waiter becomes too late.
    pub(crate) fn retime_composites(&self, line: &Line<R, C>, visit: &mut Visit<'_, R>) {
        // Before the number, because a composite reads both without the lock.
        self.store_gate_word(line);
        // Release: a composite that reads the new number finds the state, the terms and the gate
        // word after the change. A composite that reads an old number recomputes its times when it
        // checks next.
        self.changes.fetch_add(TIMES_CHANGED, Ordering::Release);
        line.seats.notify_first(visit.deferred);
    }
}
