//! A request of a line: what it asks for, where it stands, and how it ends.

use std::cmp::Reverse;
use std::task::Waker;
use std::time::Duration;

use tidegate::{AllRefusal, Nanos};

use crate::lease::ReplySender;
use crate::line::class::{Booking, Turn};
use crate::script::{Mode, Reply, ReserveRequest};
use crate::set::Costs;
use crate::store::{Away, Deadline};

/// The position of a request: by priority, then by arrival.
pub(super) type Position = (Reverse<i8>, u64);

/// The demand of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueuedRequest {
    pub(crate) costs: Costs,
    /// The maximum wait of the request since it joined the queue.
    pub(crate) longest: Duration,
    /// When the request came to the limiter.
    pub(crate) came: Nanos,
    pub(crate) shadow: bool,
    pub(crate) priority: i8,
    /// Whether it may be dropped from a full queue.
    pub(crate) droppable: bool,
    /// Whether it waits for a store that is away.
    pub(crate) waits_for_store: bool,
    /// Whether the result reports the state of the limits.
    pub(crate) with_left: bool,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) asked: QueuedRequest,
    pub(super) joined: Nanos,
    /// How long the request queued before it was sent.
    pub(super) queued_for: Duration,
    /// The request may not wait, because the queue is full.
    pub(super) full: bool,
    /// The request waited for a store that was away, or behind a pause.
    pub(super) was_held: bool,
    /// The task of the request sets a timer, because no call before it is known to end in time: the
    /// request waited for a lease before it joined the queue, was in the queue before, or stands
    /// behind a call of `State::untimed`.
    pub(super) has_timer: bool,
    /// When the request is due behind a pause, if the store predicted a time later than the end of
    /// its maximum wait.
    pub(super) predicted: Nanos,
    pub(super) stage: Stage,
    pub(super) waker: Option<Waker>,
    /// When the task of the request checks whether the request is due.
    pub(super) next_check: Nanos,
    /// The sender of a lease, which does not wait until it is due: it receives how the lease was
    /// decided.
    pub(super) lease: Option<ReplySender>,
    /// No task waits for the request: its booking goes to a request that waits.
    pub(super) is_for_waiting: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    InLine,
    Sent,
    Booked { class: Vec<u64>, turn: Turn },
    Paused(Booking),
    Answered(Outcome),
}

/// How a request ends.
#[derive(Debug)]
pub(crate) enum Outcome<G = Granted> {
    Granted(G),
    Refused(AllRefusal),
    Undecided(Away),
}

/// The permits of a request, whose due time has come.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) reply: Reply,
    pub(crate) waited: Duration,
    pub(super) due: Nanos,
}

impl Entry {
    /// Creates the entry of a request that comes now.
    pub(super) fn new(asked: QueuedRequest, now: Nanos) -> Entry {
        Entry {
            asked,
            joined: now,
            queued_for: Duration::ZERO,
            full: false,
            was_held: false,
            has_timer: false,
            predicted: Nanos::ZERO,
            stage: Stage::InLine,
            waker: None,
            next_check: Nanos::MAX,
            lease: None,
            is_for_waiting: false,
        }
    }

    /// Sends the request with a call. The queue has room for no request that waits if `is_full` is
    /// set. If `is_behind` is set, other requests wait for the end of a pause before this one.
    pub(super) fn send(&mut self, now: Nanos, is_full: bool, is_behind: bool) -> ReserveRequest {
        self.stage = Stage::Sent;
        self.queued_for = now.saturating_since(self.joined).as_duration();
        self.full = is_full && self.may_wait() && !self.is_for_waiting;
        let QueuedRequest { costs, longest, shadow, with_left, .. } = &self.asked;
        let longest = match *longest {
            _ if self.full || *shadow => Duration::ZERO,
            Duration::MAX => Duration::MAX,
            // The clock was read before the lock, so the reading may be older than the request.
            _ => self.last().saturating_since(now.max(self.joined)).as_duration(),
        };
        let mode = match () {
            () if *shadow => Mode::Shadow,
            () if is_behind => Mode::Behind,
            () => Mode::Normal,
        };
        ReserveRequest { longest, mode, wants_state: *with_left, costs: costs.clone() }
    }

    pub(super) fn is_lease_in_call(&self) -> bool {
        self.lease.is_some() && matches!(self.stage, Stage::Sent)
    }

    /// Returns when the wait for the store ends, at the end of the maximum wait, if no call ends it
    /// before.
    ///
    /// In a held queue no call is made. Otherwise a call is in flight, and its end is the end of
    /// the wait, except for a request that has a timer. Under load the task that makes calls may be
    /// late, and a call of requests that wait for the store has no deadline (`is_slow`).
    pub(super) fn ends_undecided(&self, is_held: bool, is_slow: bool, timeout: Duration) -> Nanos {
        let QueuedRequest { came, waits_for_store, .. } = self.asked;
        match self.stage {
            Stage::InLine if is_held => self.last(),
            Stage::Sent if is_held && waits_for_store && self.was_held => self.last(),
            Stage::InLine | Stage::Sent if self.has_timeout() && (is_slow || self.has_timer) => {
                // A request that waited behind a pause, or for the store, asks once more at the end
                // of its maximum wait.
                let from = if self.was_held { self.last() } else { came };
                self.last().max(from.saturating_add(Nanos::from_duration(timeout)))
            }
            _ => Nanos::MAX,
        }
    }

    /// Returns whether the request ends at its timeout, or after it with its maximum wait.
    pub(super) fn has_timeout(&self) -> bool {
        self.lease.is_none() && !self.is_for_waiting && self.asked.longest < Duration::MAX
    }

    /// Returns how long a call of the request may take if it leaves now.
    ///
    /// A request that may wait needs no reply within the timeout while the server has much to do. A
    /// request that waits for the store, or behind a pause, needs none while the store is away.
    pub(super) fn deadline(&self, now: Nanos, timeout: Duration) -> Deadline {
        let QueuedRequest { longest, came, waits_for_store, .. } = self.asked;
        let left = self.last().saturating_since(now).as_duration();
        let of_first_call = timeout.saturating_sub(now.saturating_since(came).as_duration());
        let at_most = match longest {
            Duration::MAX => Duration::MAX,
            // At the end of the maximum wait, the booking behind a pause may be due, and the store
            // may be back.
            _ if self.was_held => left.saturating_add(timeout),
            _ => left.max(of_first_call),
        };
        let of_call = timeout.saturating_sub(self.queued_for).min(at_most);
        match (waits_for_store || self.was_held, self.may_wait()) {
            (true, _) => Deadline { reply_within: at_most, at_most, ..Deadline::MUST_SEND },
            (_, true) => Deadline { reply_within: of_call, at_most, ..Deadline::MUST_SEND },
            _ => Deadline::of(of_call),
        }
    }

    /// Returns whether a task waits for the request for longer than its call.
    pub(super) fn may_wait(&self) -> bool {
        self.lease.is_none() && self.asked.longest > Duration::ZERO
    }

    pub(super) fn position(&self, number: u64) -> Position {
        (Reverse(self.asked.priority), number)
    }

    /// Returns the end of the maximum wait of the request.
    pub(super) fn last(&self) -> Nanos {
        self.joined.saturating_add(Nanos::from_duration(self.asked.longest)).max(self.predicted)
    }

    /// Returns the latest time at which a booked request may be granted. The store counts the
    /// maximum wait from the time at which it decides.
    pub(super) fn latest(&self, turn: Turn) -> Nanos {
        self.last().max(turn.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests that must not wait were booked for up to half a millisecond.
    #[test]
    fn an_older_reading_of_the_clock_prolongs_no_wait() {
        for longest in [Duration::ZERO, Duration::from_millis(3)] {
            let asked = QueuedRequest { longest, ..QueuedRequest::default() };
            let mut entry = Entry::new(asked, Nanos::new(2_000));
            assert_eq!(entry.send(Nanos::new(1_000), false, false).longest, longest);
        }
    }
}
