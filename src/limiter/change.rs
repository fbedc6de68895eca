//! A change of the terms while requests wait: which due times it moves.

use std::cell::RefCell;

use crate::clock::Timer;
use crate::error::PolicyError;
use crate::limiter::shared::Shared;
use crate::line::Line;
use crate::line::rule::{Rule, Single};
use crate::line::settings::Drift;
use crate::line::visit::Visit;
use crate::policy::{Change, Policy};
use crate::sync::Ordering;

/// Added for a change of due times only: permits are due later, or a request can never be granted.
pub(crate) const TIMES_CHANGED: u64 = 1;

/// Added for a change of weights. After 2^32 changes of times, the carry adds one too many, and the
/// composites recompute their weights unnecessarily.
pub(crate) const WEIGHTS_CHANGED: u64 = 1 << 32;

impl<P: Policy, C: Timer> Shared<Single<P>, C> {
    /// Changes the rate or the burst, and the due times of all waiters.
    pub(crate) fn change(&self, change: Change) -> Result<(), PolicyError> {
        let Single { policy, state } = &self.rule;
        self.serve_then(|line, visit| {
            let (at, deferred) = (visit.now, RefCell::new(&mut *visit.deferred));
            let make = || policy.change_now(state, at, &|| self.now_within(at, &deferred), change);
            let drift = if change.has_terms() { Drift::Own } else { Drift::Apart };
            line.change(&self.rule, change.only_part(), drift, make)?;
            self.weigh_anew(line, visit);
            Ok(())
        })
    }
}

impl<R: Rule, C: Timer> Shared<R, C> {
    /// Recomputes the weights and due times of all waiters, composites included, after a change of
    /// the terms.
    pub(crate) fn weigh_anew(&self, line: &mut Line<R, C>, visit: &mut Visit<'_, R>) {
        // Release: see `retime_composites`.
        self.changes.fetch_add(WEIGHTS_CHANGED, Ordering::Release);
        self.retime(line, visit);
    }

    /// Recomputes the due times of all waiters, composites included, after permits became due
    /// later.
    pub(crate) fn retime(&self, line: &mut Line<R, C>, visit: &mut Visit<'_, R>) {
        line.retime(visit);
        self.retime_composites(line, visit);
    }

    /// Makes the composites that wait here recompute their due times. Nothing else is needed if
    /// times move up, because no waiter becomes too late.
    pub(crate) fn retime_composites(&self, line: &Line<R, C>, visit: &mut Visit<'_, R>) {
        // Release: a composite that reads the new number finds the state and the terms after the
        // change. A composite that reads an old number recomputes its times when it checks next.
        self.changes.fetch_add(TIMES_CHANGED, Ordering::Release);
        line.seats.notify_first(visit.deferred);
    }
}
