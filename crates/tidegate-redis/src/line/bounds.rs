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

/// How many requests wait, and for how many permits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) requests: usize,
    pub(super) permits: u64,
}

impl Load {
    /// Counts a request for these permits.
    pub(super) fn add(&mut self, permits: u64) {
        self.requests += 1;
        self.permits = self.permits.saturating_add(permits);
    }

    /// Counts a request for these permits no longer.
    pub(super) fn remove(&mut self, permits: u64) {
        self.requests -= 1;
        self.permits = self.permits.saturating_sub(permits);
    }

    pub(super) fn and(self, other: Load) -> Load {
        let permits = self.permits.saturating_add(other.permits);
        Load { requests: self.requests + other.requests, permits }
    }

    /// Returns whether one more request for these permits has room.
    fn has_room(self, bounds: QueueBounds, permits: u64) -> bool {
        self.requests < bounds.waiters && self.permits.saturating_add(permits) <= bounds.permits
    }

    /// Returns whether a request that must wait is refused behind these requests.
    pub(super) fn refuses(self, bounds: QueueBounds, costs: &Costs) -> bool {
        let n = sum(costs);
        !may_displace(bounds, n) && !self.has_room(bounds, n)
    }
}

/// Returns whether a newcomer for these permits may take the room of other requests.
fn may_displace(bounds: QueueBounds, permits: u64) -> bool {
    bounds.when_full != WhenFull::RefuseNewcomer && Load::default().has_room(bounds, permits)
}

impl State {
    /// Returns whether there is room for one more request.
    pub(super) fn has_room(&self, costs: &Costs) -> bool {
        self.load().has_room(self.bounds, sum(costs))
    }

    /// Returns the waiting requests to drop so that one more request has room, or `None` if
    /// dropping them makes no room.
    pub(super) fn make_room(&self, costs: &Costs, priority: i8) -> Option<Vec<u64>> {
        let (bounds, n) = (self.bounds, sum(costs));
        let (mut load, mut victims) = (self.load(), Vec::new());
        let is_held = self.in_line.held_till().is_some();
        if load.has_room(bounds, n) {
            return Some(victims);
        }
        if !may_displace(bounds, n) {
            return None;
        }
        let oldest = bounds.when_full == WhenFull::DropOldest;
        let may_go = |(number, entry): &(&u64, &Entry)| {
            let waits = match entry.stage {
                Stage::Booked { .. } | Stage::Paused(_) => true,
                Stage::InLine => is_held,
                Stage::Sent => is_held && self.in_line.is_in_call(**number),
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
        let mut order: Vec<_> =
            looked_at.into_iter().map(|(number, entry)| (entry.asked.priority, *number)).collect();
        order.sort_unstable_by_key(|(priority, number)| (*priority, if oldest { *number } else { !number }));
        for (_, number) in order {
            load.remove(sum(&self.entries[&number].asked.costs));
            victims.push(number);
            if load.has_room(bounds, n) {
                return Some(victims);
            }
        }
        None
    }

    /// Ends requests of a held queue that have no room, because a call failed that they were in or
    /// behind. The last ones that came are ended, unless the bounds have another rule. Booked
    /// requests stay. The queue continues after `rest`.
    pub(super) fn bound(&mut self, deferred: &mut Deferred, rest: Nanos) {
        let (bounds, load) = (self.bounds, self.load());
        if load.requests <= bounds.waiters && load.permits <= bounds.permits {
            return;
        }
        let asked = |number| self.entries.get(&number).map(|entry| (number, &entry.asked));
        let held = self.in_line.numbers().filter_map(asked);
        // The requests that stay come first. A reservation is not dropped for another request.
        let mut order: Vec<_> = held
            .map(|(number, QueuedRequest { costs, priority, droppable, .. })| {
                let n = sum(costs);
                let may_go = *droppable && may_displace(bounds, n);
                let rank = match bounds.when_full {
                    WhenFull::RefuseNewcomer => (may_go, Reverse(0), number),
                    WhenFull::DropOldest => (may_go, Reverse(*priority), !number),
                    WhenFull::DropLeastImportant => (may_go, Reverse(*priority), number),
                };
                (rank, number, n, may_go)
            })
            .collect();
        order.sort_unstable();
        let (mut load, mut last) = (self.booked, 0);
        order.retain(|(_, number, n, _)| {
            let fits = load.has_room(bounds, *n);
            if fits {
                load.add(*n);
                last = last.max(*number);
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
        let mut load = self.booked;
        let mut classes: Vec<_> = self.classes.values().take(MAX_CHECKED).map(Class::bookings).collect();
        let sizes = self.classes.keys().map(|n| n.iter().fold(0u64, |sum, n| sum.saturating_add(*n)));
        let sizes: Vec<u64> = sizes.take(MAX_CHECKED).collect();
        let firsts = classes.iter_mut().enumerate().filter_map(|(i, bookings)| Some((bookings.next()?, i)));
        let mut firsts: BinaryHeap<_> = firsts.map(Reverse).collect();
        for _ in 0..MAX_CHECKED {
            let Some(Reverse((due, i))) = firsts.pop() else { break };
            firsts.extend(classes[i].next().map(|next| Reverse((next, i))));
            if load.requests > 0 {
                load.remove(sizes[i]);
            }
            if load.has_room(bounds, n) {
                return due;
            }
        }
        Nanos::MAX
    }
}
