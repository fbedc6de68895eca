//! Serving the line: grants waiters that are due, in order, and refuses waiters that will miss
//! their deadline.

use crate::clock::Timer;
use crate::error::Refusal;
use crate::line::due::Schedule;
use crate::line::rule::{Changes, Rule};
use crate::line::visit::{Demand, Visit};
use crate::line::{Entry, Line, State, WokenBy};
use crate::policy::limited;
use crate::time::Nanos;

/// So many requests are given their answer before others may have the lock.
const SLICE: usize = 1024;

/// What became of the head of the line.
enum Head {
    /// It has its answer, or has to be asked for again.
    GoesOn,
    /// No waiter is served before this time.
    WaitsUntil(Nanos),
}

impl<R: Rule, C: Timer> Line<R, C> {
    /// Grants waiters that are due, in order, and refuses waiters that cannot be served by their
    /// deadline, at most a [`SLICE`] of them. Returns when to serve the line next: a time that is
    /// not later than `now` if more waiters are due. Rings the composites that this concerns.
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
            // No waiter is due now, so each waiter past its deadline is refused. These may be
            // waiters that a change has made too late, too far back to be refused by it.
            let refusal = self.too_early(*first, now);
            *first = self.expire(visit, refusal).min(*first);
        }
        // Requests pass in shadow after the grants: in shadow, too, a request takes permits that
        // are there.
        if due.is_some() && self.settings.is_shadow() && !self.settings.closed {
            self.pass_all(visit);
            due = (self.len() > 0).then_some(now);
        }
        if !self.seats.is_empty() {
            let schedule = Schedule { rule: visit.rule, settings: &self.settings };
            self.seats.ring(&schedule, now, visit.deferred);
        }
        // Only a composite looks at its first request, since it has to wait for its members.
        let first = self.entries.get(self.head as usize).zip(due);
        let first = first.map(|(first, due)| (&first.ask, first.priority, due));
        let look_at = visit.rule.wait_first(now, first, visit.deferred);
        due.map(|due| due.min(look_at))
    }

    /// In shadow no request waits: the waiters in line pass without a permit, a [`SLICE`] of them.
    fn pass_all(&mut self, visit: &mut Visit<'_, R>) {
        let Visit { rule, now, .. } = *visit;
        let mut ahead = R::Ahead::default();
        for _ in 0..SLICE {
            let Some(Entry { ask, place, .. }) = self.entries.get(self.head as usize) else { break };
            let (key, refusal) = (self.head, limited(self.due(rule, now, *place, &ahead, ask), now));
            rule.add(&mut ahead, ask);
            self.answer(visit, key, State::Shadowed(refusal));
        }
    }

    /// Once the limiter is closed no request waits: the waiters in line are refused, a [`SLICE`] of
    /// them.
    fn refuse_all(&mut self, visit: &mut Visit<'_, R>) -> Option<Nanos> {
        for _ in 0..SLICE {
            if !self.entries.contains(self.head as usize) {
                break;
            }
            self.answer(visit, self.head, State::Refused(Refusal::Closed));
        }
        (self.len() > 0).then_some(visit.now)
    }

    /// Gives answers from the head on, a [`SLICE`] of them, until a waiter is not due.
    fn serve_due(&mut self, visit: &mut Visit<'_, R>) -> Option<Nanos> {
        for _ in 0..SLICE {
            if let Head::WaitsUntil(due) = self.serve_head(visit)? {
                return Some(due);
            }
        }
        (self.len() > 0).then_some(visit.now)
    }

    /// Gives the head of the line its answer, if it is due or cannot be served. Returns `None` if
    /// no waiter is in line.
    fn serve_head(&mut self, visit: &mut Visit<'_, R>) -> Option<Head> {
        let Visit { rule, now, .. } = *visit;
        let key = self.head;
        let first = self.entries.get(key as usize)?;
        let (ask, none) = (first.ask.clone(), R::Ahead::default());
        let &Entry { place, woken_by, since, deadline, priority, .. } = first;
        let unattended = matches!(woken_by, WokenBy::Nobody);
        let begins = since.max(self.charged).max(self.settings.opens_for(now));
        // Nothing wakes a reservation that no task awaits, so it may have been due long ago. A
        // policy that counts says "now" of any time that has passed. So the policy is asked as of
        // the grant before the reservation, and then tells when the reservation was due.
        let as_of = match unattended && !rule.catches_up() && self.seats.is_empty() {
            true => begins.min(now),
            false => now,
        };
        if let Err(never) = self.check(rule, now, Demand { ask: &ask, priority }) {
            // A change came while the waiter was too far back to be refused by it, or a member of a
            // composite changed.
            return Some(self.answer_head(visit, State::Refused(never)));
        }
        let due = self.due(rule, as_of, place, &none, &ask);
        if due > deadline && !self.may_be_late(visit, due, deadline) {
            let refusal = self.too_early(due, deadline);
            return Some(self.answer_head(visit, State::Refused(refusal)));
        }
        if due > now {
            return Some(Head::WaitsUntil(due));
        }
        // A reservation that is not awaited takes the permits that were there at its turn,
        // whichever call finds that out.
        let turn = unattended.then(|| due.max(begins).min(now));
        let (more, due) = self.more_for_head(visit, &ask, due, turn);
        let at = self.charged_as_of(visit, due);
        Some(match self.charge_at(visit, at, more.as_ref().unwrap_or(&ask)) {
            Ok(charge) => {
                let grant = self.grant(rule, charge, woken_by);
                self.answer(visit, key, State::Granted(grant));
                if let Some(more) = more {
                    self.entries[key as usize].ask = more;
                }
                Head::GoesOn
            }
            // A request that overlapped with the joining has just taken some of the permits. The
            // waiter takes at least the number that it asks for.
            Err(_) if more.is_some() => {
                self.entries[key as usize].most = 0;
                Head::GoesOn
            }
            // A request that overlapped with the joining has just taken the permit. If the waiter
            // is still due but refused, another request got in between, or the policy does not
            // agree with itself: the line looks again, but does not spin.
            Err(Refusal::Limited { .. }) => match self.due(rule, now, place, &none, &ask) <= due {
                true => Head::WaitsUntil(due.max(now.saturating_add(Nanos::new(1)))),
                false => Head::GoesOn,
            },
            // No due time is known: when a permit in use is given back, this line is rechecked.
            // Until then only deadlines end.
            Err(refusal @ Refusal::InUse { .. }) => {
                let next = self.expire(visit, refusal);
                match self.entries.contains(self.head as usize) && self.head == key {
                    true => Head::WaitsUntil(next),
                    false => Head::GoesOn,
                }
            }
            Err(refusal) => self.answer_head(visit, State::Refused(refusal)),
        })
    }

    fn answer_head(&mut self, visit: &mut Visit<'_, R>, state: State<R::Charge>) -> Head {
        self.answer(visit, self.head, state);
        Head::GoesOn
    }

    /// The permits for a head that takes as many as there are, and is due at `due`: more than it
    /// asks for at least, or `None`. With a `turn`, as many as there were then. Returns with them
    /// when they were due.
    fn more_for_head(
        &self,
        visit: &Visit<'_, R>,
        ask: &R::Ask,
        due: Nanos,
        turn: Option<Nanos>,
    ) -> (Option<R::Ask>, Nanos) {
        let &Entry { most, place, priority, .. } = &self.entries[self.head as usize];
        let more = self.as_many(visit, Demand { ask, priority }, most, visit.rule.permits(ask), turn);
        if more == *ask {
            return (None, due);
        }
        // As many permits were there a moment ago.
        let turn = turn.unwrap_or(visit.now);
        let due_all = self.due(visit.rule, turn, place, &R::Ahead::default(), &more);
        if due_all <= turn { (Some(more), due_all) } else { (None, due) }
    }

    /// As of when the head is charged, if it was due at `due`: then, so that a late timer costs no
    /// permits. But not further back than the catch-up, so that a machine that stood still does not
    /// grant a burst, and not before the request was made.
    fn charged_as_of(&self, visit: &Visit<'_, R>, due: Nanos) -> Nanos {
        let &Entry { woken_by, since, .. } = &self.entries[self.head as usize];
        let late = match woken_by {
            // A reservation that is not awaited has no timer that could be late: it is charged as
            // of its time, however long ago.
            WokenBy::Nobody => u64::MAX,
            // A policy that counts in real time is charged as of now.
            _ if !visit.rule.catches_up() => 0,
            WokenBy::Task { .. } | WokenBy::Lost { .. } | WokenBy::Thread { .. } => {
                visit.lateness.catch_up().as_u64()
            }
        };
        let oldest = since.max(Nanos::new(visit.now.as_u64().saturating_sub(late)));
        // The clock may have gone back since the request joined.
        due.max(oldest).min(visit.now)
    }

    /// Whether a waiter that is found after its deadline may have its permit. A policy that counts
    /// says "now" of a permit that has been there for a while, so a late timer would refuse a
    /// waiter that was in time. It is not refused for as much lateness as grants are charged back
    /// elsewhere.
    fn may_be_late(&self, visit: &Visit<'_, R>, due: Nanos, deadline: Nanos) -> bool {
        let late = visit.now.saturating_since(deadline);
        due <= visit.now && !visit.rule.catches_up() && late <= visit.lateness.catch_up()
    }

    /// Refuses waiters that are still in line at their deadline, a [`SLICE`] of them. Returns the
    /// next deadline.
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
