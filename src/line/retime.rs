//! The due times of a queue after a change, and the waiters that the change makes too late.

use crate::clock::Timer;
use crate::line::due::MAX_FORECAST;
use crate::line::recheck::visit_at_most;
use crate::line::rule::Rule;
use crate::line::sizes::Sizes;
use crate::line::visit::{Demand, Visit};
use crate::line::{Entry, Line, State};
use crate::time::Nanos;

/// The cost of one due time among seats, or in the queue of a composite, measured in visited
/// requests: a composite asks each member more than once. It takes about a microsecond.
const DUE_TIME_COST: usize = 8;

impl<R: Rule, C: Timer> Line<R, C> {
    /// Computes the weights of a queue anew after a change of the terms, by the sizes of its
    /// requests. [`weigh_all`](Self::weigh_all) computes those in the queue of a composite.
    pub(crate) fn weigh_sizes(&mut self, rule: &R) {
        self.priorities.weigh(|sizes| rule.weigh(sizes));
    }

    /// Computes times anew after a change. Of the first [`MAX_FORECAST`]
    /// waiters, refuses at once each waiter that will miss its deadline or can never be served. A
    /// waiter further back is refused at its deadline, or when it is the first.
    pub(crate) fn retime(&mut self, visit: &mut Visit<'_, R>) {
        let Visit { rule, now, .. } = *visit;
        self.memo.set(None);
        if rule.weigh(&Sizes::default()).is_none() || !self.seats.is_empty() {
            return self.retime_by_sums(visit);
        }
        let opens = self.settings.opens_for(now);
        let (mut key, mut forecast) = (self.head, self.forecast(rule, now));
        // A due time matters only to a waiter with a deadline.
        let mut deadlines = self.deadlines.len();
        for _ in 0..MAX_FORECAST {
            let Some(&Entry { ref ask, priority, next, deadline, .. }) = self.entries.get(key as usize)
            else {
                break;
            };
            if let Err(never) = self.check(rule, now, Demand::exactly(ask, priority)) {
                // The policy can no longer grant this many permits at once. The waiter would keep
                // all others waiting for ever.
                self.answer(visit, key, State::Refused(never));
            } else if deadline < Nanos::MAX {
                let mark = forecast.mark();
                let due = self.predict(rule, &mut forecast, ask, priority).max(opens);
                if due > deadline {
                    forecast.rewind(&mark);
                    let refusal = self.too_early(due, deadline);
                    self.answer(visit, key, State::Refused(refusal));
                }
                deadlines = deadlines.saturating_sub(1);
            } else if deadlines > 0 {
                self.predict(rule, &mut forecast, ask, priority);
            }
            key = next;
        }
    }

    /// Like [`retime`](Self::retime), for a queue in which composites have seats, and for the queue
    /// of a composite. Visits [`MAX_FORECAST`] waiters and seats that are here at most, and counts
    /// a waiter with a deadline as [`DUE_TIME_COST`]. If a change has notified several composites,
    /// they share that number.
    fn retime_by_sums(&mut self, visit: &mut Visit<'_, R>) {
        visit_at_most(|most| most - self.retime_first(visit, most));
    }

    /// Visits `left` waiters and seats at most. Returns how many more it could have visited.
    fn retime_first(&mut self, visit: &mut Visit<'_, R>, mut left: usize) -> usize {
        let Visit { rule, now, .. } = *visit;
        let (mut ahead, mut passed, mut key) = (R::Ahead::default(), 0, self.head);
        while left > 0
            && let Some(&Entry { ref ask, position, priority, next, deadline, .. }) =
                self.entries.get(key as usize)
        {
            for ask in self.seats.here_between(passed, position).take(left) {
                rule.add(&mut ahead, ask);
                left -= 1;
            }
            let cost = if deadline < Nanos::MAX { DUE_TIME_COST } else { 1 };
            (passed, left) = (position, left.saturating_sub(cost));
            let refusal = if let Err(never) = self.check(rule, now, Demand::exactly(ask, priority)) {
                Some(never)
            } else if deadline < Nanos::MAX {
                let due = self.seats.due_among(&self.schedule(rule), (now, now), (position, 0), &ahead, ask);
                (due > deadline).then(|| self.too_early(due, deadline))
            } else {
                None
            };
            match refusal {
                Some(refusal) => self.answer(visit, key, State::Refused(refusal)),
                None => rule.add(&mut ahead, ask),
            }
            key = next;
        }
        left
    }

    /// Weighs each request anew, where its size does not determine its weight: in the queue of a
    /// composite.
    pub(super) fn weigh_all(&mut self, rule: &R) {
        let mut sums: Vec<(i8, R::Ahead)> = Vec::with_capacity(self.priorities.all().len());
        let mut key = self.head;
        while let Some(&Entry { ref ask, priority, next, .. }) = self.entries.get(key as usize) {
            if sums.last().is_none_or(|(class, _)| *class != priority) {
                sums.push((priority, R::Ahead::default()));
            }
            if let Some((_, sum)) = sums.last_mut() {
                rule.add(sum, ask);
            }
            key = next;
        }
        for (priority, sum) in sums {
            self.priorities.class(priority).ahead = sum;
        }
    }
}
