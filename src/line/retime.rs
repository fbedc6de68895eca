//! The due times of a line after a change, and the waiters that it makes too late.

use crate::clock::Timer;
use crate::line::due::FORESEEN;
use crate::line::recheck::look_at_most;
use crate::line::rule::Rule;
use crate::line::visit::{Demand, Visit};
use crate::line::{Entry, Line, State};
use crate::time::Nanos;

/// To tell when a request is due among seats, or in the line of a composite, is as much work as so
/// many looks: a composite asks each member more than once. It takes about a microsecond.
const LOOKS_FOR_TIME: usize = 8;

impl<R: Rule, C: Timer> Line<R, C> {
    /// Computes times and weights anew after a change, but for the weights in the line of a
    /// composite, which [`weigh_all`](Self::weigh_all) computes. Of the first [`FORESEEN`] waiters,
    /// refuses at once each that will miss its deadline or can never be served. A waiter further
    /// back is refused at its deadline, or when it is the first.
    pub(crate) fn retime(&mut self, visit: &mut Visit<'_, R>) {
        let Visit { rule, now, .. } = *visit;
        self.memo.set(None);
        if !self.priorities.weigh(|sizes| rule.weigh(sizes)) || !self.seats.is_empty() {
            return self.retime_by_sums(visit);
        }
        let opens = self.settings.opens_for(now);
        let (mut key, mut forecast) = (self.head, self.forecast(rule, now));
        // Only a deadline makes a due time matter.
        let mut deadlines = self.deadlines.len();
        for _ in 0..FORESEEN {
            let Some(&Entry { ref ask, priority, next, deadline, .. }) = self.entries.get(key as usize)
            else {
                break;
            };
            if let Err(never) = self.check(rule, now, Demand { ask, priority }) {
                // The policy can no longer give so many at once. The waiter would keep all others
                // waiting for ever.
                self.answer(visit, key, State::Refused(never));
            } else if deadline < Nanos::MAX {
                let mark = forecast.mark();
                let due = self.foresee(rule, &mut forecast, ask, priority).max(opens);
                if due > deadline {
                    forecast.go_back(&mark);
                    let refusal = self.too_early(due, deadline);
                    self.answer(visit, key, State::Refused(refusal));
                }
                deadlines = deadlines.saturating_sub(1);
            } else if deadlines > 0 {
                self.foresee(rule, &mut forecast, ask, priority);
            }
            key = next;
        }
    }

    /// As [`retime`](Self::retime), where composites have seats, and in the line of a composite.
    /// The first [`FORESEEN`] are counted with the seats that are here, and a waiter with a
    /// deadline as [`LOOKS_FOR_TIME`]. They are fewer of each composite where a change has rung
    /// several.
    fn retime_by_sums(&mut self, visit: &mut Visit<'_, R>) {
        look_at_most(|most| most - self.retime_first(visit, most));
    }

    /// Looks at so many waiters and seats at most. Returns how many more it might have looked at.
    fn retime_first(&mut self, visit: &mut Visit<'_, R>, mut left: usize) -> usize {
        let Visit { rule, now, .. } = *visit;
        let (mut ahead, mut passed, mut key) = (R::Ahead::default(), 0, self.head);
        while left > 0
            && let Some(&Entry { ref ask, place, priority, next, deadline, .. }) =
                self.entries.get(key as usize)
        {
            for ask in self.seats.here_between(passed, place).take(left) {
                rule.add(&mut ahead, ask);
                left -= 1;
            }
            let looks = if deadline < Nanos::MAX { LOOKS_FOR_TIME } else { 1 };
            (passed, left) = (place, left.saturating_sub(looks));
            let refusal = if let Err(never) = self.check(rule, now, Demand { ask, priority }) {
                Some(never)
            } else if deadline < Nanos::MAX {
                let due = self.seats.due_among(&self.schedule(rule), (now, now), (place, 0), &ahead, ask);
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

    /// Weighs each request anew, where sizes do not tell its weight: in the line of a composite.
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
