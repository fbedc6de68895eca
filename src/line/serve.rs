//! Serving the line: grants requests that are due, in order, and refuses those that will be too
//! late.

use crate::clock::Timer;
use crate::error::Refusal;
use crate::line::due::FORESEEN;
use crate::line::place::LAST_PLACE;
use crate::line::rule::Rule;
use crate::line::terms::Terms;
use crate::line::visit::{Demand, Visit};
use crate::line::{Entry, Line, State, WokenBy};
use crate::policy::limited;
use crate::time::Nanos;

/// So many requests are given their answer before others may have the lock.
const SLICE: usize = 1024;

impl<R: Rule<C>, C: Timer> Line<R, C> {
    /// Grants requests that are due, in order, and refuses those that cannot be served by their
    /// deadline: as many as there are, or a [`SLICE`]. Returns when the first of the others is due,
    /// or to be looked at: a time that is not later than `now` if more are due. Tells composites
    /// about it.
    pub(crate) fn serve(&mut self, visit: &mut Visit<'_, R, C>) -> Option<Nanos> {
        let now = visit.now;
        if self.len() > 0 && visit.rule.has_changed() {
            self.retime(visit);
        }
        let mut due = self.serve_due(visit);
        if let Some(first) = due.as_mut().filter(|first| **first > now) {
            // The first waits beyond now, and so does each of the others, also those that a change
            // has made too late and that stood too far back to be refused by it.
            let refusal = Refusal::Limited { retry_after: first.saturating_since(now) };
            *first = self.expire(visit, refusal).min(*first);
        }
        if due.is_some() && self.settings.shadow {
            self.pass_all(visit);
            due = (self.len() > 0).then_some(now);
        }
        if self.settings.shadow {
            self.seats.ring_all(visit.deferred);
        } else if !self.seats.is_empty() {
            let terms = Terms { rule: visit.rule, settings: &self.settings };
            self.seats.ring(&terms, now, visit.deferred);
        }
        let first = self.entries.get(self.head as usize).zip(due);
        let first = first.map(|(first, due)| (&first.ask, first.priority, due));
        let look_at = visit.rule.wait_first(now, first, visit.deferred);
        due.map(|due| due.min(look_at))
    }

    /// In shadow no request waits: the waiters in line pass without a permit, a [`SLICE`] of them.
    fn pass_all(&mut self, visit: &mut Visit<'_, R, C>) {
        let Visit { rule, now, .. } = *visit;
        let mut ahead = R::Ahead::default();
        for _ in 0..SLICE {
            let Some(Entry { ask, place, .. }) = self.entries.get(self.head as usize) else { break };
            let (key, refusal) = (self.head, limited(self.due(rule, now, *place, &ahead, ask), now));
            rule.add(&mut ahead, ask);
            self.answer(visit, key, State::Passed(refusal));
        }
    }

    fn serve_due(&mut self, visit: &mut Visit<'_, R, C>) -> Option<Nanos> {
        let Visit { rule, now, .. } = *visit;
        for _ in 0..SLICE {
            let first = self.entries.get(self.head as usize)?;
            let key = self.head;
            let (ask, none) = (first.ask.clone(), R::Ahead::default());
            let &Entry { place, woken_by, since, deadline, priority, .. } = first;
            // A policy that counts says "now" where a permit has been there for a while. When a
            // reservation that nothing looks at had its turn is told by the state as of the grant
            // before it.
            let unattended =
                matches!(woken_by, WokenBy::Nobody) && !rule.catches_up() && self.seats.is_empty();
            let as_of = if unattended { since.max(self.charged).min(now) } else { now };
            let due = self.due(rule, as_of, place, &none, &ask);
            if due == Nanos::MAX
                && let Err(never) = self.check(rule, now, Demand { ask: &ask, priority })
            {
                // Where one of several limiters was changed.
                self.answer(visit, key, State::Refused(never));
                continue;
            }
            if due > deadline {
                let retry_after = due.saturating_since(deadline);
                self.answer(visit, key, State::Refused(Refusal::Limited { retry_after }));
                continue;
            }
            if due > now {
                return Some(due);
            }
            // As of when it was due, so that a late timer costs nothing; but not further back than
            // allowed, so that a machine that stood still does not let everything through at once.
            // Where nobody was to look, the grant was not late: its turn passed at its time, and is
            // over. And not before it was asked for.
            let late = match woken_by {
                WokenBy::Nobody => u64::MAX,
                // A policy that counts in real time is charged as of now.
                _ if !rule.catches_up() => 0,
                WokenBy::Task { .. } | WokenBy::Lost { .. } | WokenBy::Thread { .. } => {
                    visit.lateness.catch_up().as_u64()
                }
            };
            let oldest = since.max(Nanos::new(now.as_u64().saturating_sub(late)));
            // The clock may have gone back since it joined.
            let at = due.max(oldest).min(now);
            match self.charge_at(visit, at, &ask) {
                Ok(charge) => {
                    let grant = self.grant(rule, charge, woken_by);
                    self.answer(visit, key, State::Granted(grant));
                }
                Err(Refusal::Limited { .. }) => {
                    // A request that came before the line formed took it just now.
                    if self.due(rule, now, place, &none, &ask) <= due {
                        // Still due but refused: another request got in between, or the policy does
                        // not agree with itself. Look again, but do not spin.
                        return Some(due.max(now.saturating_add(Nanos::new(1))));
                    }
                }
                // No time is known: giving back a permit in use rechecks this line. Until then only
                // deadlines pass.
                Err(refusal @ Refusal::InUse { .. }) => {
                    let next = self.expire(visit, refusal);
                    if self.entries.contains(self.head as usize) && self.head == key {
                        return Some(next);
                    }
                }
                Err(refusal) => self.answer(visit, key, State::Refused(refusal)),
            }
        }
        (self.len() > 0).then_some(now)
    }

    /// Refuses waiters that are still in line at their deadline, a [`SLICE`] of them. Returns the
    /// next deadline.
    fn expire(&mut self, visit: &mut Visit<'_, R, C>, refusal: Refusal) -> Nanos {
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

    /// After a change: weighs anew, and refuses at once those of the first waiters that will not
    /// be served by their deadline, or not at all. Further back they are refused when their time is
    /// over, or when they are the first.
    pub(crate) fn retime(&mut self, visit: &mut Visit<'_, R, C>) {
        let Visit { rule, now, .. } = *visit;
        self.memo.set(None);
        if !self.seats.is_empty() || !self.priorities.weigh(|sizes| rule.weigh(sizes)) {
            return self.retime_all(visit);
        }
        let opens = self.settings.opens;
        let (mut key, mut forecast) = (self.head, rule.forecast(now.max(opens)));
        for _ in 0..FORESEEN {
            let Some(&Entry { ref ask, priority, next, deadline, .. }) = self.entries.get(key as usize)
            else {
                break;
            };
            let mark = forecast.mark();
            let due = rule.foresee(&mut forecast, ask, self.settings.kept_from(priority)).max(opens);
            let refusal = if let Err(never) = self.check(rule, now, Demand { ask, priority }) {
                // More than can be had at once now: it would keep all others waiting for ever.
                Some(never)
            } else if due > deadline {
                let retry_after = due.saturating_since(deadline);
                Some(Refusal::Limited { retry_after })
            } else {
                None
            };
            if let Some(refusal) = refusal {
                forecast.go_back(mark);
                self.answer(visit, key, State::Refused(refusal));
            }
            key = next;
        }
    }

    /// Weighs anew request by request, where no sum tells it: in the line of a composite, and where
    /// composites have seats.
    fn retime_all(&mut self, visit: &mut Visit<'_, R, C>) {
        let Visit { rule, now, .. } = *visit;
        // Counted anew: the sums so far are at the old rate.
        let mut sums: Vec<(i8, R::Ahead)> = Vec::with_capacity(self.priorities.all().len());
        let mut ahead = R::Ahead::default();
        let (mut key, mut counted) = (self.head, 0);
        self.seats.begin_reweighing(rule);
        while let Some(entry) = self.entries.get(key as usize) {
            let &Entry { place, priority, next, deadline, .. } = entry;
            let ask = entry.ask.clone();
            self.seats.reweigh(counted, place, &ahead);
            counted = place;
            let due = self.due(rule, now, place, &ahead, &ask);
            if let Err(never) = self.check(rule, now, Demand { ask: &ask, priority }) {
                // More than can be had at once now: it would keep all others waiting for ever.
                self.answer(visit, key, State::Refused(never));
            } else if due > deadline {
                let retry_after = due.saturating_since(deadline);
                self.answer(visit, key, State::Refused(Refusal::Limited { retry_after }));
            } else {
                rule.add(&mut ahead, &ask);
                if sums.last().is_none_or(|(class, _)| *class != priority) {
                    sums.push((priority, R::Ahead::default()));
                }
                if let Some((_, sum)) = sums.last_mut() {
                    rule.add(sum, &ask);
                }
            }
            key = next;
        }
        self.seats.reweigh(counted, LAST_PLACE, &ahead);
        self.seats.end_reweighing(rule);
        for (priority, sum) in sums {
            self.priorities.class(priority).ahead = sum;
        }
    }
}
