//! Bounds of the requests that wait, and making room when they are reached.

use tidegate::{Nanos, QueueBounds, WhenFull};

use crate::line::{Entry, Stage, State};
use crate::set::Costs;

/// So many requests are looked at to find one to drop, and so many instants to tell when there is
/// room.
const FORESEEN: usize = 4096;

/// The permits of a request: its costs summed.
pub(super) fn sum(costs: &Costs) -> u64 {
    costs.iter().fold(0, |sum, (n, _)| sum.saturating_add(*n))
}

fn fit(bounds: QueueBounds, waiting: usize, permits: u64, more: u64) -> bool {
    waiting < bounds.waiters && permits.saturating_add(more) <= bounds.permits
}

/// Whether a request that has to wait is refused, behind so many requests for so many permits.
pub(super) fn refuse((waiting, permits, bounds): (usize, u64, QueueBounds), costs: &Costs) -> bool {
    let makes_room = bounds.when_full != WhenFull::RefuseNewcomer && fit(bounds, 0, 0, sum(costs));
    !makes_room && !fit(bounds, waiting, permits, sum(costs))
}

impl State {
    /// The waiting requests to drop, so that there is room for one more; `None` if that makes none.
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
            (matches!(entry.stage, Stage::Booked { .. }) || is_held && matches!(entry.stage, Stage::InLine))
                && entry.asked.droppable
                && (entry.asked.priority < priority || (oldest && entry.asked.priority == priority))
        };
        let looked_at: Vec<(&u64, &Entry)> = match oldest {
            true => self.entries.iter().take(FORESEEN).filter(may_go).collect(),
            false => self.entries.iter().rev().take(FORESEEN).filter(may_go).collect(),
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

    /// When there is room for one more request, if no other one comes.
    pub(super) fn room_at(&self, costs: &Costs) -> Nanos {
        let (bounds, n) = (self.bounds, sum(costs));
        let instants = self.classes.iter().flat_map(|(permits, class)| {
            let permits = permits.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
            class.instants().map(move |due| (due, permits))
        });
        let mut instants: Vec<_> = instants.take(FORESEEN).collect();
        instants.sort_unstable();
        let (mut waiting, mut permits) = (self.waiting, self.permits);
        for (due, granted) in instants {
            waiting = waiting.saturating_sub(1);
            permits = permits.saturating_sub(granted);
            if fit(bounds, waiting, permits, n) {
                return due;
            }
        }
        Nanos::MAX
    }
}
