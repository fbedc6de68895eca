//! Taking permits under the lock.

use std::cell::RefCell;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::line::Line;
use crate::line::grants::Undoable;
use crate::line::position::end_of;
use crate::line::rule::{Rule, TakeLimit};
use crate::line::visit::{Demand, Visit};
use crate::policy::limited;
use crate::time::Nanos;

impl<R: Rule, C: Timer> Line<R, C> {
    /// Returns whether a new request waits only for the policy: no request is in the queue before
    /// it, and no seat loses its time because of it.
    pub(crate) fn is_open(&self, visit: &Visit<'_, R>, demand: Demand<'_, R::Ask>) -> bool {
        !self.is_paused()
            && self.priorities.before(demand.priority).is_empty()
            && (self.seats.is_empty() || self.due_behind(visit, demand) <= visit.now)
    }

    /// Returns the refusal of a request that is due at `due`, and would have to be served `by` a
    /// time.
    pub(crate) fn too_early(&self, due: Nanos, by: Nanos) -> Refusal {
        let retry_after = due.saturating_since(by);
        if self.is_paused() { Refusal::Paused { retry_after } } else { Refusal::Limited { retry_after } }
    }

    /// Returns an error if a request of this priority can never be granted.
    pub(crate) fn check(&self, rule: &R, now: Nanos, demand: Demand<'_, R::Ask>) -> Result<(), Refusal> {
        if self.settings.closed {
            return Err(Refusal::Closed);
        }
        match self.settings.kept_from(demand.priority) {
            0 => {}
            kept => rule.check_leaving(now, demand.ask, kept)?,
        }
        rule.check(demand.ask)
    }

    /// Takes permits if no waiter goes before this request; refuses otherwise.
    pub(crate) fn try_take(
        &mut self,
        visit: &mut Visit<'_, R>,
        demand: Demand<'_, R::Ask>,
    ) -> Result<(R::Ask, R::Charge), Refusal> {
        self.check(visit.rule, visit.now, demand)?;
        if self.is_open(visit, demand) {
            return self.take_as_many(visit, demand);
        }
        let refusal = self.too_early(self.due_behind(visit, demand), visit.now);
        visit.is_unchanged = true;
        Err(refusal)
    }

    /// Returns the request for as many permits as are available and this request takes. `own` is
    /// the number of permits that it waits for in this queue. With a time `at`, for as many as were
    /// available at that time: no grant was made since.
    pub(crate) fn as_many(
        &self,
        visit: &Visit<'_, R>,
        demand: Demand<'_, R::Ask>,
        own: u64,
        at: Option<Nanos>,
    ) -> R::Ask {
        let Demand { ask, priority, most } = demand;
        let Some(most) = most else { return ask.clone() };
        let paced = at.unwrap_or(self.latest);
        let line = self.leaves(visit.rule, paced, priority, own, 0);
        visit.rule.as_many(at.unwrap_or(visit.now), ask, most.get(), line)
    }

    /// Returns what this queue leaves at a time to a request that takes as many permits as are
    /// available, and waits in this queue for `own` permits, and in `seats` seats.
    ///
    /// The permits that all other requests in the queue wait for are left to them, whether or not
    /// they are due. The permits that composites wait for in their seats depend on their other
    /// members. So while composites hold other seats, a request takes the minimum that it asks for.
    pub(crate) fn leaves(&self, rule: &R, at: Nanos, priority: i8, own: u64, seats: usize) -> TakeLimit {
        if self.is_paused() || self.seats.len() > seats {
            return TakeLimit { most: 0, kept: 0 };
        }
        let waiting = u64::try_from(self.permits.saturating_sub(own.into())).unwrap_or(u64::MAX);
        let kept = waiting.saturating_add(self.settings.kept_from(priority).into());
        TakeLimit { most: self.restraint(rule, at), kept }
    }

    /// Takes permits for a request that no waiter goes before: as many as are available and the
    /// request takes.
    pub(crate) fn take_as_many(
        &mut self,
        visit: &mut Visit<'_, R>,
        demand: Demand<'_, R::Ask>,
    ) -> Result<(R::Ask, R::Charge), Refusal> {
        let more = self.as_many(visit, demand, 0, None);
        // A request without the lock may have taken some of the permits in between.
        if more != *demand.ask
            && let Ok(charge) = self.take(visit, Demand { ask: &more, ..demand })
        {
            return Ok((more, charge));
        }
        self.take(visit, demand).map(|charge| (demand.ask.clone(), charge))
    }

    /// Takes permits for a request that no waiter goes before. The waiters of lower priority move
    /// back.
    pub(crate) fn take(
        &mut self,
        visit: &mut Visit<'_, R>,
        demand: Demand<'_, R::Ask>,
    ) -> Result<R::Charge, Refusal> {
        let (Demand { ask, priority, .. }, now) = (demand, visit.now);
        let due = || self.due(visit.rule, now, end_of(priority), &R::Ahead::default(), ask);
        if self.settings.kept_from(priority) > 0 || !self.settings.paces.is_empty() {
            // Counting the remaining permits and taking some are two steps. No request takes
            // permits in between: while a share is kept, or grants are spaced, every request needs
            // this lock.
            let due = due();
            if due > now {
                return Err(limited(due, now));
            }
        }
        // The policy is asked like for the head of the queue: `Line::serve_head`.
        let asks_past = visit.rule.catches_up() && self.settings.kept_from(priority) > 0;
        let as_of = if asks_past { self.last_check(now) } else { now };
        let due = || self.due(visit.rule, as_of, end_of(priority), &R::Ahead::default(), ask);
        let at = visit.made_at(due);
        let at = if at < now { due().max(at).min(now) } else { now };
        let charge = self.charge(visit, at, ask)?;
        self.refuse_moved_back(visit, priority);
        Ok(charge)
    }

    /// Takes permits as of `at`. If a request without the lock has taken them in between, takes
    /// permits as of now.
    pub(crate) fn charge(
        &mut self,
        visit: &mut Visit<'_, R>,
        at: Nanos,
        ask: &R::Ask,
    ) -> Result<R::Charge, Refusal> {
        let now = visit.now;
        let (at, charge) = match self.charge_at(visit, at, ask) {
            Err(refusal) if refusal.may_retry() && at < now => (now, self.charge_at(visit, now, ask)?),
            answer => (at, answer?),
        };
        visit.lateness.note_use(now, at);
        Ok(charge)
    }

    /// Takes permits as of `at`. All permits that are taken under the lock are taken here.
    pub(super) fn charge_at(
        &mut self,
        visit: &mut Visit<'_, R>,
        at: Nanos,
        ask: &R::Ask,
    ) -> Result<R::Charge, Refusal> {
        let charge = match R::PARTS {
            1 => visit.rule.take(at, visit.now, ask, visit.deferred)?,
            _ => self.take_parts(visit, at, ask)?,
        };
        self.charged = self.charged.max(at);
        self.count_in_pace(visit.rule.permits(ask));
        Ok(charge)
    }

    /// Takes from all parts. If a request without the lock takes the last permits of a part in
    /// between, puts back what was taken, as the undo log allows.
    fn take_parts(
        &mut self,
        visit: &mut Visit<'_, R>,
        at: Nanos,
        ask: &R::Ask,
    ) -> Result<R::Charge, Refusal> {
        let rule = visit.rule;
        // Both closures use the queue, one after the other, so each borrows it only for its call.
        let line = RefCell::new((self, visit));
        let number = || line.borrow().0.undo_number();
        rule.take_all(at, ask, number, |number, taken| {
            let (line, visit) = &mut *line.borrow_mut();
            line.take_back(visit, Undoable::since(taken, number));
        })
    }
}
