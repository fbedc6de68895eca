//! The requests that stand in line, to be sent, and those of them that wait for a store that is
//! away.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::{Nanos, Refusal};

use crate::line::{After, Asked, Entry, Outcome, Stage, State, bounds};
use crate::set::Undecided;

/// Where a request stands: by priority, then by arrival.
pub(super) type Place = (Reverse<i8>, u64);

/// The requests that are to be sent.
///
/// A call that fails while requests wait for the store holds the line, until a call is answered and
/// the line is empty. In a held line requests stand that wait for the store, and no others. One
/// call at a time leaves it, and none before the time until which it is held: a later call might be
/// answered where an earlier one is not.
#[derive(Debug, Default)]
pub(super) struct InLine {
    /// With the permits of each.
    order: BTreeMap<Place, u64>,
    permits: u64,
    held_till: Option<Nanos>,
    /// A task has the line go on at that time.
    is_timed: bool,
}

impl InLine {
    pub(super) fn add(&mut self, place: Place, permits: u64) {
        self.order.insert(place, permits);
        self.permits = self.permits.saturating_add(permits);
    }

    pub(super) fn remove(&mut self, place: Place) {
        if let Some(permits) = self.order.remove(&place) {
            self.left(permits);
        }
    }

    /// Takes the first requests out of the line: their numbers.
    pub(super) fn leave(&mut self, most: usize) -> Vec<u64> {
        let first = std::iter::from_fn(|| {
            let ((_, number), permits) = self.order.pop_first()?;
            self.left(permits);
            Some(number)
        });
        first.take(most).collect()
    }

    fn left(&mut self, permits: u64) {
        self.permits = self.permits.saturating_sub(permits);
    }

    /// A call was answered.
    pub(super) fn answered(&mut self) {
        self.held_till = self.held_till.filter(|_| !self.is_empty());
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Until when no request leaves; `None` if the line is not held.
    pub(super) fn held_till(&self) -> Option<Nanos> {
        self.held_till
    }

    /// Holds the line until a time, unless it is empty. Returns whether a task is to have it go on.
    pub(super) fn hold(&mut self, till: Nanos, now: Nanos) -> bool {
        if self.is_empty() {
            self.held_till = None;
            return false;
        }
        // The first one counts of calls that failed at one time. The line may be looked at, and a
        // call leave it, between the time and the task that comes then.
        if self.held_till.is_none_or(|first| first <= now) {
            self.held_till = Some(till);
        }
        !std::mem::replace(&mut self.is_timed, true)
    }

    /// Lets requests leave, one call at a time.
    pub(super) fn go_on(&mut self) {
        self.is_timed = false;
        self.held_till = self.held_till.filter(|_| !self.is_empty()).map(|_| Nanos::ZERO);
    }

    /// How many requests wait for the store, and for how many permits.
    pub(super) fn waiting(&self) -> (usize, u64) {
        self.held_till.map_or((0, 0), |_| (self.len(), self.permits))
    }
}

impl Entry {
    pub(super) fn place(&self, number: u64) -> Place {
        (Reverse(self.asked.priority), number)
    }

    /// The end of its longest wait.
    pub(super) fn last(&self) -> Nanos {
        self.joined.saturating_add(Nanos::from_duration(self.asked.longest))
    }
}

impl State {
    /// The first stage of a request that joins the line.
    pub(super) fn stage_of(&mut self, after: &mut After, asked: &Asked, now: Nanos) -> Stage {
        if self.closed {
            return Stage::Answered(Outcome::Refused(Refusal::Closed.into()));
        }
        let Some(till) = self.in_line.held_till() else { return Stage::InLine };
        let rest = till.saturating_since(now);
        if !asked.outlasts {
            return Stage::Answered(Outcome::Undecided(Undecided::Away(rest.as_duration())));
        }
        match self.make_room(&asked.costs, asked.priority) {
            Some(victims) => {
                self.displace(after, victims, now);
                Stage::InLine
            }
            None => Stage::Answered(Outcome::Refused(Refusal::QueueFull { retry_after: rest }.into())),
        }
    }

    /// A call of these requests failed, and the store is left alone for a while. Returns whether a
    /// task is to have the line go on then.
    pub(super) fn failed(
        &mut self,
        after: &mut After,
        numbers: &[u64],
        undecided: Undecided,
        rest: Duration,
        now: Nanos,
    ) -> bool {
        let comes_back = rest < Duration::MAX;
        // All requests of a held line wait for the store, and have set their timers.
        let stays = comes_back && self.in_line.held_till().is_some();
        let in_line = if stays { Vec::new() } else { self.in_line.leave(usize::MAX) };
        for number in numbers.iter().copied().chain(in_line) {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            let is_unanswered = matches!(entry.stage, Stage::InLine | Stage::Sent);
            if comes_back && is_unanswered && entry.asked.outlasts && now < entry.last() {
                (entry.stage, entry.was_held) = (Stage::InLine, true);
                self.in_line.add(entry.place(number), bounds::sum(&entry.asked.costs));
                if entry.last() < Nanos::MAX {
                    // The task of the request sets the timer.
                    after.wake(entry);
                }
            } else {
                self.answer(after, number, Outcome::Undecided(undecided));
            }
        }
        self.in_line.hold(now.saturating_add(Nanos::from_duration(rest)), now)
    }

    /// Ends this request if its longest wait has passed while the line is held.
    pub(super) fn end_wait(&mut self, number: u64, now: Nanos) {
        let Some(till) = self.in_line.held_till() else { return };
        if let Some(entry) = self.entries.get_mut(&number)
            && matches!(entry.stage, Stage::InLine)
            && entry.last() <= now
        {
            let rest = till.saturating_since(now).as_duration();
            entry.stage = Stage::Answered(Outcome::Undecided(Undecided::Away(rest)));
            self.in_line.remove(entry.place(number));
        }
    }

    /// How many requests wait, and for how many permits.
    pub(super) fn load(&self) -> (usize, u64) {
        let (waiting, permits) = self.in_line.waiting();
        (self.waiting.saturating_add(waiting), self.permits.saturating_add(permits))
    }
}
