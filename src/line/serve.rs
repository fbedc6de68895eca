//! Serving the queue: grants waiters that are due, in order, and refuses waiters that will miss
//! their deadline.

use crate::clock::Timer;
use crate::error::Refusal;
use crate::line::due::Schedule;
use crate::line::rule::{Changes, Rule};
use crate::line::visit::{Demand, Visit};
use crate::line::{Entry, Line, State, WokenBy};
use crate::policy::limited;
use crate::time::Nanos;

/// The number of requests that get their result before other threads may have the lock.
const SLICE: usize = 1024;

/// What became of the head of the queue.
enum Head {
    /// The head has its result, or must be served again.
    Continue,
    /// No waiter is served before this time.
    WaitsUntil(Nanos),
}

impl<R: Rule, C: Timer> Line<R, C> {
    /// Grants waiters that are due, in order, and refuses waiters that cannot be served by their
    /// deadline, at most a [`SLICE`] of them. Returns when to serve the queue next: a time that is
    /// not later than `now` if more waiters are due. Notifies the composites that this concerns.
    pub(crate) fn serve(&mut self, visit: &mut Visit<'_, R>) -> Option<Nanos> {
        let now = visit.now;
        if self.len() > 0 {
            match visit.rule.changes() {
                Changes::Nothing => {}
                Changes::Times => self.retime(visit),
                Changes::Weights => {
                    self.weigh_all(visit.rule);
                    self.retime(visit);
                }
            }
        }
        let mut due = match self.settings.closed {
            true => self.refuse_all(visit),
            false => self.serve_due(visit),
        };
        if let Some(first) = due.as_mut().filter(|first| **first > now) {
            // No waiter is due now, so each waiter past its deadline is refused. A change may have
            // made such a waiter too late while it was too far back for the change to refuse it.
            let refusal = self.too_early(*first, now);
            *first = self.expire(visit, refusal).min(*first);
        }
        // Requests pass in shadow mode after the grants: in shadow mode, too, a request takes
        // permits that are available.
        if due.is_some() && self.settings.is_shadow() && !self.settings.closed {
            self.pass_all(visit);
            due = (self.len() > 0).then_some(now);
        }
        if !self.seats.is_empty() {
            let schedule = Schedule { rule: visit.rule, settings: &self.settings };
            self.seats.notify_due(&schedule, now, visit.deferred);
        }
        // Only the rule of a composite uses the first request, because that request must wait for
        // the members.
        let first = self.entries.get(self.head as usize).map(|first| &first.ask).zip(due);
        let check_at = visit.rule.note_head(now, first, visit.deferred);
        due.map(|due| due.min(check_at))
    }

    /// In shadow mode no request waits: the waiters in the queue pass without a permit, a [`SLICE`]
    /// of them.
    fn pass_all(&mut self, visit: &mut Visit<'_, R>) {
        let Visit { rule, now, .. } = *visit;
        let mut ahead = R::Ahead::default();
        for _ in 0..SLICE {
            let Some(Entry { ask, position, .. }) = self.entries.get(self.head as usize) else { break };
            let (key, refusal) = (self.head, limited(self.due(rule, now, *position, &ahead, ask), now));
            rule.add(&mut ahead, ask);
            self.answer(visit, key, State::Shadowed(refusal));
        }
    }

    /// Once the limiter is closed no request waits: the waiters in the queue are refused, a
    /// [`SLICE`] of them.
    fn refuse_all(&mut self, visit: &mut Visit<'_, R>) -> Option<Nanos> {
        for _ in 0..SLICE {
            if !self.entries.contains(self.head as usize) {
                break;
            }
            self.answer(visit, self.head, State::Refused(Refusal::Closed));
        }
        (self.len() > 0).then_some(visit.now)
    }

    /// Serves waiters from the head on, a [`SLICE`] of them, until a waiter is not due.
    fn serve_due(&mut self, visit: &mut Visit<'_, R>) -> Option<Nanos> {
        for _ in 0..SLICE {
            if let Head::WaitsUntil(due) = self.serve_head(visit)? {
                return Some(due);
            }
        }
        (self.len() > 0).then_some(visit.now)
    }

    /// Grants or refuses the head of the queue, if it is due or cannot be served. Returns `None` if
    /// the queue is empty.
    fn serve_head(&mut self, visit: &mut Visit<'_, R>) -> Option<Head> {
        let Visit { rule, now, .. } = *visit;
        let first = self.entries.get(self.head as usize)?;
        let ask = first.ask.clone();
        let &Entry { position, woken_by, since, deadline, priority, .. } = first;
        let unattended = matches!(woken_by, WokenBy::Nothing);
        let begins = since.max(self.last_check(now));
        // A window policy returns the time it is asked for as the due time if that due time has
        // passed, and so may any policy while permits are kept. But nothing wakes a reservation
        // that no task awaits, so it may have been due long ago, and a timer may be late. So the
        // policy is asked as of the last grant or check, and then returns when the request was due.
        // If a composite goes before the request, the policy is asked as of now, and the request
        // may be late. A window policy charges a waiter as of now anyway.
        let asks_past = if rule.catches_up() { self.settings.kept_from(priority) > 0 } else { unattended };
        let is_behind_seat = self.seats.has_before(position);
        let as_of = if asks_past && !is_behind_seat { begins.min(now) } else { now };
        if let Err(never) = self.check(rule, now, Demand::exactly(&ask, priority)) {
            // A change came while the waiter was too far back to be refused by the change, or a
            // member of a composite changed.
            return Some(self.refuse_head(visit, never));
        }
        let due = self.due(rule, as_of, position, &R::Ahead::default(), &ask);
        let may_be_late =
            || asks_past && is_behind_seat && due <= now || self.may_be_late(visit, due, deadline);
        if due > deadline && !may_be_late() {
            let refusal = self.too_early(due, deadline);
            return Some(self.refuse_head(visit, refusal));
        }
        if due > now {
            self.count_from(now);
            return Some(Head::WaitsUntil(due));
        }
        // A reservation that is not awaited takes the permits that were available at its turn,
        // whichever call serves it.
        let turn = unattended.then(|| due.max(begins).min(now));
        Some(self.charge_head(visit, &ask, due, turn))
    }

    /// Charges and grants the head, which was due at `due`, in its `turn` if it has one.
    fn charge_head(
        &mut self,
        visit: &mut Visit<'_, R>,
        ask: &R::Ask,
        due: Nanos,
        turn: Option<Nanos>,
    ) -> Head {
        let Visit { rule, now, .. } = *visit;
        let key = self.head;
        let &Entry { position, woken_by, .. } = &self.entries[key as usize];
        let (more, due) = self.more_for_head(visit, ask, due, turn);
        let at = self.charged_as_of(visit, due);
        match self.charge_at(visit, at, more.as_ref().unwrap_or(ask)) {
            Ok(charge) => {
                let grant = self.grant(rule, charge, woken_by);
                self.answer(visit, key, State::Granted(grant));
                if let Some(more) = more {
                    self.entries[key as usize].ask = more;
                }
                Head::Continue
            }
            // A request without the lock that overlapped with the joining has just taken some of
            // the permits. The waiter takes at least the number that it asks for.
            Err(_) if more.is_some() => {
                self.entries[key as usize].most = None;
                Head::Continue
            }
            // A request without the lock that overlapped with the joining has just taken the
            // permit. If the policy still says that the waiter is due but refuses it, another
            // request has intervened, or the policy contradicts itself: the queue is served again,
            // but later, so that it does not spin.
            Err(Refusal::Limited { .. }) => {
                match self.due(rule, now, position, &R::Ahead::default(), ask) <= now {
                    true => Head::WaitsUntil(due.max(now.saturating_add(Nanos::new(1)))),
                    false => Head::Continue,
                }
            }
            // No due time is known. When a permit in use is given back, this queue is rechecked.
            // Until then waiters leave only at their deadlines.
            Err(refusal @ Refusal::InUse { .. }) => {
                let next = self.expire(visit, refusal);
                match self.entries.contains(self.head as usize) && self.head == key {
                    true => Head::WaitsUntil(next),
                    false => Head::Continue,
                }
            }
            Err(refusal) => self.refuse_head(visit, refusal),
        }
    }

    /// Returns the last time at which the queue granted permits or had none, or its pause ended.
    pub(super) fn last_check(&self, now: Nanos) -> Nanos {
        self.charged.max(self.checked).max(self.settings.opens_for(now)).min(now)
    }

    /// Ends the wait of the head without a grant.
    fn refuse_head(&mut self, visit: &mut Visit<'_, R>, refusal: Refusal) -> Head {
        self.count_from(visit.now);
        let state = State::Refused(refusal);
        self.answer(visit, self.head, state);
        Head::Continue
    }

    /// Returns the permits for a head that takes as many as are available and is due at `due`: more
    /// than the minimum that it asks for, or `None`. With a `turn`, as many as were available then.
    /// Also returns when these permits were due.
    fn more_for_head(
        &self,
        visit: &Visit<'_, R>,
        ask: &R::Ask,
        due: Nanos,
        turn: Option<Nanos>,
    ) -> (Option<R::Ask>, Nanos) {
        let &Entry { most, position, priority, .. } = &self.entries[self.head as usize];
        let more = self.as_many(visit, Demand { ask, priority, most }, visit.rule.permits(ask), turn);
        if more == *ask {
            return (None, due);
        }
        // The policy has just found this many permits.
        let turn = turn.unwrap_or(visit.now);
        let due_all = self.due(visit.rule, turn, position, &R::Ahead::default(), &more);
        if due_all <= turn { (Some(more), due_all) } else { (None, due) }
    }

    /// Returns the time as of which the head is charged, if it was due at `due`. That is `due`, so
    /// that a late timer costs no permits. It is not further back than the catch-up, so that a
    /// machine that stalled does not grant a burst, and not before the request was made.
    fn charged_as_of(&self, visit: &Visit<'_, R>, due: Nanos) -> Nanos {
        let &Entry { woken_by, since, .. } = &self.entries[self.head as usize];
        let before = |late: Nanos| Nanos::new(visit.now.as_u64().saturating_sub(late.as_u64()));
        let oldest = match woken_by {
            // A reservation that is not awaited has no timer that could be late: it is charged as
            // of its time, however long ago. The queue had no permits for the reservation at the
            // last check, so the reservation is not charged as of an earlier time.
            WokenBy::Nothing => self.checked,
            // A window policy is charged as of now.
            _ if !visit.rule.catches_up() => visit.now,
            WokenBy::Task { .. } | WokenBy::Lost { .. } | WokenBy::Thread { .. } => {
                before(visit.lateness.catch_up())
            }
        };
        let oldest = since.max(oldest);
        // The clock may have gone back since the request joined.
        due.max(oldest).min(visit.now)
    }

    /// Returns whether a waiter that is found after its deadline may have its permit. A window
    /// policy returns "now" for a permit that has been available for a while, so a late timer would
    /// refuse a waiter that was in time. The waiter is tolerated for as much lateness as grants of
    /// other policies are charged back.
    fn may_be_late(&self, visit: &Visit<'_, R>, due: Nanos, deadline: Nanos) -> bool {
        let late = visit.now.saturating_since(deadline);
        due <= visit.now && !visit.rule.catches_up() && late <= visit.lateness.catch_up()
    }

    /// Refuses waiters that are still in the queue at their deadline, a [`SLICE`] of them. Returns
    /// the next deadline.
    fn expire(&mut self, visit: &mut Visit<'_, R>, refusal: Refusal) -> Nanos {
        for _ in 0..SLICE {
            match self.deadlines.first() {
                Some(&(deadline, key)) if deadline <= visit.now => {
                    self.answer(visit, key, State::Refused(refusal));
                }
                _ => break,
            }
        }
        self.deadlines.first().map_or(Nanos::MAX, |(deadline, _)| *deadline)
    }
}
