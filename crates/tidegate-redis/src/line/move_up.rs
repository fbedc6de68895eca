//! Has requests that wait move up to permits that came back.
//!
//! Booked requests keep their instants when permits come back. Requests to come may take these. So
//! when a request of the line was settled for less than it reserved, the line asks once more, on
//! behalf of those that wait, and again while it finds something. An earlier instant goes to the
//! first of them, the others move up, and the last instant goes back. If a call is not answered, no
//! request has lost its instant.

use tidegate::Nanos;

use crate::line::class::FORESEEN;
use crate::line::{Asked, Entry, MOST_DECISIONS, State};
use crate::set::Costs;

/// An instant has to come in this part of the time to the last one, or it is not worth a call.
const EARLIER: (u64, u64) = (3, 4);

/// So many sizes are asked for at once.
const MOST_SIZES: usize = 4;

impl State {
    /// So many permits of each member came back. Asks for as many requests as these may serve.
    pub(super) fn ask_for_settled(&mut self, back: &Costs, now: Nanos) {
        self.ask_for_waiting(now, |costs| {
            let parts = costs.iter().zip(back).filter(|(n, _)| **n > 0);
            let most = parts.map(|(n, (back, _))| back.div_ceil(*n)).max().unwrap_or_default();
            usize::try_from(most).unwrap_or(usize::MAX)
        });
    }

    /// An instant was found. There may be more.
    pub(super) fn ask_for_more(&mut self, now: Nanos) {
        self.ask_for_waiting(now, |_| 2);
    }

    /// Asks for requests that wait, of the sizes of the first ones that came.
    fn ask_for_waiting(&mut self, now: Nanos, most: impl Fn(&[u64]) -> usize) {
        if self.in_line.held_till().is_some() || !self.paused.is_empty() || self.closed {
            return;
        }
        let classes = self.classes.iter().take(FORESEEN).filter(|(costs, _)| most(costs) > 0);
        let firsts = classes.filter_map(|(costs, class)| Some((class.first()?.0, costs, class)));
        let mut firsts: Vec<_> = firsts.collect();
        firsts.sort_unstable_by_key(|(number, ..)| *number);
        let asked = firsts.into_iter().take(MOST_SIZES).filter_map(|(number, costs, class)| {
            let last = class.last().unwrap_or_default().0.saturating_since(now).as_u64();
            let asked = Asked {
                costs: costs.iter().map(|n| (*n, *n)).collect(),
                longest: Nanos::new(last / EARLIER.1 * EARLIER.0).as_duration(),
                came: now,
                priority: self.entries.get(&number)?.asked.priority,
                ..Asked::default()
            };
            Some((asked, most(costs).min(class.len())))
        });
        for (asked, asks) in asked.collect::<Vec<_>>() {
            for _ in self.for_waiting..MOST_DECISIONS.min(self.for_waiting.saturating_add(asks)) {
                let number = self.next;
                self.next += 1;
                self.for_waiting += 1;
                let entry = Entry { is_for_waiting: true, ..Entry::new(asked.clone(), now) };
                self.in_line.add(entry.place(number), &entry);
                self.entries.insert(number, entry);
            }
        }
    }

    /// Takes out a request that asked for those that wait, since it has its answer. Returns whether
    /// it was one.
    pub(super) fn end_for_waiting(&mut self, number: u64) -> bool {
        let is_one = self.entries.get(&number).is_some_and(|entry| entry.is_for_waiting);
        if is_one {
            self.entries.remove(&number);
            self.for_waiting -= 1;
        }
        is_one
    }
}
