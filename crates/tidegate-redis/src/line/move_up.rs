//! Makes waiting requests move up to permits that were given back.
//!
//! Booked requests keep their bookings when permits are given back, and requests that come later
//! may take these permits. So when a request of this queue was settled for less than it reserved,
//! the line asks once more on behalf of the waiting requests, and again while it gets an earlier
//! booking. The earlier booking goes to the first waiting request, the others move up, and the last
//! booking goes back. If the store does not reply to a call, no request has lost its booking.
//!
//! Another process may give permits back, by dropped waits or by a reset, and the store reports that
//! to no line. If the limits are leased, leases would then serve later requests before those of this
//! line. So while the last booking of such a line is due in more than a second, the line asks by
//! itself: each time an eighth of that time has passed, and at most once a second.

use tidegate::Nanos;

use crate::line::class::{Class, MAX_CHECKED};
use crate::line::{Deferred, Entry, MAX_DECISIONS, QueuedRequest, State};
use crate::set::{Costs, exactly};

/// A booking must be due within this part of the time to the last one, or it is not worth a call.
const EARLIER: (u64, u64) = (3, 4);

/// A line whose last booking is due sooner than this time does not ask by itself, and no line asks
/// more often.
const SOON: Nanos = Nanos::new(1_000_000_000);

/// The part of the time to its last booking after which a line asks by itself, and the longest such
/// time.
const CHECK_PART: u64 = 8;
const LONGEST_CHECK: Nanos = Nanos::new(60_000_000_000);

/// The most sizes that are asked for at once.
const MAX_SIZES: usize = 4;

impl State {
    /// Asks on behalf of as many requests as permits that were given back may serve: `back` of each
    /// member.
    pub(super) fn ask_for_settled(&mut self, back: &Costs, now: Nanos) {
        self.ask_for_waiting(now, |costs| {
            let parts = costs.iter().zip(back).filter(|(n, _)| **n > 0);
            let most = parts.map(|(n, (back, _))| back.div_ceil(*n)).max().unwrap_or_default();
            usize::try_from(most).unwrap_or(usize::MAX)
        });
    }

    /// Asks for more after an earlier booking was found.
    pub(super) fn ask_for_more(&mut self, now: Nanos) {
        self.ask_for_waiting(now, |_| 2);
    }

    /// Makes the store's thread ask for permits that other processes gave back, if the last booking
    /// is due much later.
    pub(super) fn schedule_move_up(&mut self, deferred: &mut Deferred, now: Nanos) {
        if self.is_move_up_watched {
            return;
        }
        let last = self.classes.values().take(MAX_CHECKED).filter_map(Class::last).max();
        let ahead = last.unwrap_or_default().0.saturating_since(now);
        if ahead > SOON {
            self.is_move_up_watched = true;
            let rest = Nanos::new(ahead.as_u64() / CHECK_PART).clamp(SOON, LONGEST_CHECK);
            deferred.visits.push((now.saturating_add(rest), State::check_move_up));
        }
    }

    /// On the store's thread: asks for permits that other processes gave back.
    fn check_move_up(&mut self, deferred: &mut Deferred, now: Nanos) {
        self.is_move_up_watched = false;
        self.schedule_move_up(deferred, now);
        if self.is_move_up_watched {
            self.ask_for_waiting(now, |_| 1);
        }
    }

    /// Asks on behalf of waiting requests, for the sizes of the first ones that came.
    fn ask_for_waiting(&mut self, now: Nanos, most: impl Fn(&[u64]) -> usize) {
        if self.in_line.held_till().is_some() || !self.paused.is_empty() || self.closed {
            return;
        }
        let classes = self.classes.iter().take(MAX_CHECKED).filter(|(costs, _)| most(costs) > 0);
        let firsts = classes.filter_map(|(costs, class)| Some((class.first()?.0, costs, class)));
        let mut firsts: Vec<_> = firsts.collect();
        firsts.sort_unstable_by_key(|(number, ..)| *number);
        let asked = firsts.into_iter().take(MAX_SIZES).filter_map(|(number, costs, class)| {
            let last = class.last().unwrap_or_default().0.saturating_since(now).as_u64();
            let asked = QueuedRequest {
                costs: exactly(costs.iter().copied()),
                longest: Nanos::new(last / EARLIER.1 * EARLIER.0).as_duration(),
                came: now,
                priority: self.entries.get(&number)?.asked.priority,
                ..QueuedRequest::default()
            };
            Some((asked, most(costs).min(class.len())))
        });
        for (asked, asks) in asked.collect::<Vec<_>>() {
            for _ in self.for_waiting..MAX_DECISIONS.min(self.for_waiting.saturating_add(asks)) {
                let number = self.next;
                self.next += 1;
                self.for_waiting += 1;
                let entry = Entry { is_for_waiting: true, ..Entry::new(asked.clone(), now) };
                self.in_line.add(entry.position(number), &entry);
                self.entries.insert(number, entry);
            }
        }
    }

    /// Removes a request that asked on behalf of waiting requests, because it is decided. Returns
    /// whether it was such a request.
    pub(super) fn end_for_waiting(&mut self, number: u64) -> bool {
        let is_one = self.entries.get(&number).is_some_and(|entry| entry.is_for_waiting);
        if is_one {
            self.entries.remove(&number);
            self.for_waiting -= 1;
        }
        is_one
    }
}
