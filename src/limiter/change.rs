//! A change of the terms while requests wait: which times it moves.

use crate::clock::Timer;
use crate::error::PolicyError;
use crate::limiter::shared::Shared;
use crate::line::Line;
use crate::line::rule::{Rule, Single};
use crate::line::visit::Visit;
use crate::policy::{Change, Policy};
use crate::sync::Ordering;

impl<P: Policy, C: Timer> Shared<Single<P>, C> {
    /// Changes the rate or the burst, and with it the times of all waiters.
    pub(crate) fn change(&self, change: Change) -> Result<(), PolicyError> {
        let Single { policy, state } = &self.rule;
        self.serve_then(|line, visit| {
            line.change(&self.rule, change.only_part(), || policy.change(state, visit.now, change))?;
            self.retime(line, visit);
            Ok(())
        })
    }
}

impl<R: Rule<C>, C: Timer> Shared<R, C> {
    /// Computes the times of all waiters anew, composites included, after permits were made later
    /// or their weights changed.
    pub(crate) fn retime(&self, line: &mut Line<R, C>, visit: &mut Visit<'_, R, C>) {
        line.retime(visit);
        self.retime_composites(line, visit);
    }

    /// Has the composites that wait here compute their times anew. That is all if times move up: no
    /// waiter is too late by that.
    pub(crate) fn retime_composites(&self, line: &Line<R, C>, visit: &mut Visit<'_, R, C>) {
        // Relaxed: a composite that reads an old number weighs its requests anew at its next look.
        self.changes.fetch_add(1, Ordering::Relaxed);
        line.seats.ring_first(visit.deferred);
    }
}
