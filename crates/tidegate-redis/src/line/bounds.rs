//! Bounds on the requests that wait, and how room is made when the bounds are reached.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate::{Nanos, QueueBounds, Refusal, WhenFull};

use crate::line::class::{Class, MAX_CHECKED};
use crate::line::{Deferred, Entry, Outcome, QueuedRequest, Stage, State};
use crate::set::Costs;

/// Returns the permits of a request: the sum of its costs.
pub(super) fn sum(costs: &Costs) -> u64 {
    costs.iter().fold(0, |sum, (n, _)| sum.saturating_add(*n))
}

fn fit(bounds: QueueBounds, waiting: usize, permits: u64, more: u64) -> bool {
    waiting < bounds.waiters && permits.saturating_add(more) <= bounds.permits
}

/// Returns whether a request that must wait is refused, behind `waiting` requests for `permits`
/// permits.
pub(super) fn refuse((waiting, permits, bounds): (usize, u64, QueueBounds), costs: &Costs) -> bool {
    let makes_room = bounds.when_full != WhenFull::RefuseNewcomer && fit(bounds, 0, 0, sum(costs));
    !makes_room && !fit(bounds, waiting, permits, sum(costs))
}

impl State {
    /// Returns whether there is room for one more request.
    pub(super) fn has_room(&self, costs: &Costs) -> bool {
        let (waiting, permits) = self.load();
        fit(self.bounds, waiting, permits, sum(costs))
    }

    /// Returns the waiting requests to drop so that one more request has room, or `None` if
    /// dropping them makes no room.
    pub(super) fn make_room(&self, costs: &Costs, priority: i8) -> Option<Vec<u64>> {
        let (bounds, n) = (self.bounds, sum(costs));
        let ((mut waiting, mut permits), mut victims) = (self.load(), Vec::new());
        let is_held = self.in_line.held_till().is_some();
        if fit(bounds, waiting, permits, n) {
            return Some(victims);
        }
        let oldest = match bounds.when_full {
            _ if !fit(bounds, 0, 0, n) => return None,
            WhenFull::RefuseNewcomer => return None,
            WhenFull::DropOldest => true,
            WhenFull::DropLeastImportant => false,
        };
        let may_go = |(_, entry): &(&u64, &Entry)| {
            let waits = match entry.stage {
                Stage::Booked { .. } | Stage::Paused(_) => true,
                Stage::InLine => is_held,
                Stage::Sent => is_held && entry.was_held,
                Stage::Answered(_) => false,
            };
            waits
                && entry.asked.droppable
                && (entry.asked.priority < priority || (oldest && entry.asked.priority == priority))
        };
        let looked_at: Vec<(&u64, &Entry)> = match oldest {
            true => self.entries.iter().take(MAX_CHECKED).filter(may_go).collect(),
            false => self.entries.iter().rev().take(MAX_CHECKED).filter(may_go).collect(),
        };
        let mut booked: Vec<_> =
            looked_at.into_iter().map(|(number, entry)| (entry.asked.priority, *number)).collect();
        booked.sort_unstable_by_key(|(priority, number)| (*priority, if oldest { *number } else { !number }));
        for (_, number) in booked {
            waiting -= 1;
            permits = permits.saturating_sub(sum(&self.entries[&number].asked.costs));
            victims.push(number);
            if fit(bounds, waiting, permits, n) {
                return Some(victims);
            }
        }
        None
    }

    /// Ends requests of a held queue that have no room, because a call failed that they were in or
    /// behind. The last ones that came are ended, unless the bounds have another rule. Booked
    /// requests stay. The queue continues after `rest`.
    pub(super) fn bound(&mut self, deferred: &mut Deferred, rest: Nanos) {
        let (bounds, (waiting, permits)) = (self.bounds, self.load());
        if waiting <= bounds.waiters && permits <= bounds.permits {
            return;
        }
        let asked = |number| self.entries.get(&number).map(|entry| (number, &entry.asked));
        let held = self.in_line.numbers().filter_map(asked);
        // The requests that stay come first. A reservation is not dropped for another request.
        let mut order: Vec<_> = held
            .map(|(number, QueuedRequest { costs, priority, droppable, .. })| {
                let n = sum(costs);
                let may_go =
                    bounds.when_full != WhenFull::RefuseNewcomer && *droppable && fit(bounds, 0, 0, n);
                let rank = match bounds.when_full {
                    WhenFull::RefuseNewcomer => (may_go, Reverse(0), number),
                    WhenFull::DropOldest => (may_go, Reverse(*priority), !number),
                    WhenFull::DropLeastImportant => (may_go, Reverse(*priority), number),
                };
                (rank, number, n, may_go)
            })
            .collect();
        order.sort_unstable();
        let (mut waiting, mut permits, mut last) = (self.waiting, self.permits, 0);
        order.retain(|(_, number, n, _)| {
            let fits = fit(bounds, waiting, permits, *n);
            if fits {
                (waiting, permits, last) = (waiting + 1, permits.saturating_add(*n), last.max(*number));
            }
            !fits
        });
        for (_, number, _, may_go) in order {
            // A later request takes its room, or the request is itself the newcomer.
            let refusal = match may_go && number < last {
                true => Refusal::Displaced,
                false => Refusal::QueueFull { retry_after: rest },
            };
            self.answer(deferred, number, Outcome::Refused(refusal.into()));
        }
    }

    /// Returns when there is room for one more request, if no other request comes.
    pub(super) fn room_at(&self, costs: &Costs) -> Nanos {
        let (bounds, n) = (self.bounds, sum(costs));
        let (mut waiting, mut permits) = (self.waiting, self.permits);
        let mut classes: Vec<_> = self.classes.values().take(MAX_CHECKED).map(Class::bookings).collect();
        let sizes = self.classes.keys().map(|n| n.iter().fold(0u64, |sum, n| sum.saturating_add(*n)));
        let sizes: Vec<u64> = sizes.take(MAX_CHECKED).collect();
        let firsts = classes.iter_mut().enumerate().filter_map(|(i, bookings)| Some((bookings.next()?, i)));
        let mut firsts: BinaryHeap<_> = firsts.map(Reverse).collect();
        for _ in 0..MAX_CHECKED {
            let Some(Reverse((due, i))) = firsts.pop() else { break };
            firsts.extend(classes[i].next().map(|next| Reverse((next, i))));
            waiting = waiting.saturating_sub(1);
            permits = permits.saturating_sub(sizes[i]);
            if fit(bounds, waiting, permits, n) {
                return due;
            }
        }
        Nanos::MAX
    }
}
