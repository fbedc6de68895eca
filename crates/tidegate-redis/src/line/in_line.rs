//! The requests that queue to be sent, and those that wait for a store that is away.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate::{Nanos, Refusal};

use crate::line::bounds::{self, Load};
use crate::line::entry::Position;
use crate::line::{Deferred, Entry, MAX_STEPS, Outcome, QueuedRequest, Stage, State};
use crate::store::Away;

/// The requests that will be sent.
///
/// A call that fails while requests wait for the store holds the queue, until the store replies to
/// calls again and all requests from before its first reply have left. A held queue has only
/// requests that wait for the store. One call at a time leaves it, because the store might reply to
/// a later call and not to an earlier one. No call leaves before the time until which the queue is
/// held, unless any call to the store closes the breaker before.
///
/// The first call after a failed call decides no request: it asks whether the store is back. A
/// store that replies too late carries out each call. So the requests of a call would be booked,
/// and booked again with the next call, up to 64 of them every few seconds. If the store replied to
/// another call meanwhile, the queue does not need to ask.
#[derive(Debug, Default)]
pub(super) struct InLine {
    /// The positions of the requests, with the permits that each request asks for.
    order: BTreeMap<Position, u64>,
    /// The positions of requests that have a timeout, and no timer for it.
    without_timer: BTreeSet<Position>,
    permits: u64,
    /// The requests of the call that left the held queue last, until a call ends, with their
    /// permits. They still count as waiting, because they queue again if the call fails.
    in_call: BTreeMap<u64, u64>,
    held_till: Option<Nanos>,
    /// Since the store has replied to a call of a held queue: the number of the first request that
    /// came after this reply, and how many earlier requests are in the queue. They are the last
    /// that it is held for, because new requests may come as long as the queue is held.
    last_held: Option<(u64, usize)>,
    /// Whether a call failed, and the store has replied to none since: the next call of a held
    /// queue asks whether the store is back.
    asks: bool,
    /// Whether a task makes the queue continue at that time, or when the store is back.
    is_timed: bool,
}

impl InLine {
    pub(super) fn add(&mut self, position: Position, entry: &Entry) {
        let permits = if entry.is_for_waiting { 0 } else { bounds::sum(&entry.asked.costs) };
        self.order.insert(position, permits);
        self.count_held(position, |held| held + 1);
        if entry.has_timeout() && !entry.has_timer {
            self.without_timer.insert(position);
        }
        self.permits = self.permits.saturating_add(permits);
    }

    pub(super) fn remove(&mut self, position: Position) {
        if let Some(permits) = self.order.remove(&position) {
            self.count_left(position, permits);
        }
    }

    /// Removes a request that is no longer in the order from all else.
    fn count_left(&mut self, position: Position, permits: u64) {
        self.permits = self.permits.saturating_sub(permits);
        self.without_timer.remove(&position);
        self.count_held(position, |held| held.saturating_sub(1));
    }

    /// Counts a request that joins or leaves, if the queue is held for it.
    fn count_held(&mut self, (_, number): Position, count: impl FnOnce(usize) -> usize) {
        if let Some((first, held)) = &mut self.last_held
            && number < *first
        {
            *held = count(*held);
        }
    }

    /// Takes the first requests out of the queue. Returns their numbers.
    pub(super) fn leave(&mut self, most: usize) -> Vec<u64> {
        let is_held = self.held_till.is_some();
        self.in_call.clear();
        let first = std::iter::from_fn(|| {
            let (position, permits) = self.order.pop_first()?;
            self.count_left(position, permits);
            if is_held {
                self.in_call.insert(position.1, permits);
            }
            Some(position.1)
        });
        first.take(most).collect()
    }

    /// Returns whether the call that left the held queue last has this request.
    pub(super) fn is_in_call(&self, number: u64) -> bool {
        self.in_call.contains_key(&number)
    }

    /// Removes a request that waits no longer, and that may have left with a call.
    pub(super) fn drop_undecided(&mut self, number: u64, entry: &Entry) {
        self.remove(entry.position(number));
        self.in_call.remove(&number);
    }

    /// The store has replied to a call. `next` is the number of the next new request.
    pub(super) fn answered(&mut self, next: u64) {
        self.in_call.clear();
        self.asks = false;
        if self.held_till.is_some() {
            let len = self.order.len();
            let (_, held) = *self.last_held.get_or_insert((next, len));
            self.held_till = self.held_till.filter(|_| held > 0);
        }
        self.last_held = self.last_held.filter(|_| self.held_till.is_some());
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns whether a call must ask whether the store is back before requests leave.
    pub(super) fn asks(&self) -> bool {
        self.asks && self.held_till.is_some() && !self.is_empty()
    }

    /// Returns until when no request leaves, or `None` if the queue is not held.
    pub(super) fn held_till(&self) -> Option<Nanos> {
        self.held_till
    }

    /// Holds the queue until a time, unless it is empty. Returns whether a task must make it
    /// continue.
    pub(super) fn hold(&mut self, till: Nanos, now: Nanos) -> bool {
        self.in_call.clear();
        self.last_held = None;
        self.asks = true;
        if self.is_empty() {
            self.held_till = None;
            return false;
        }
        // Of calls that failed together, the first one sets the time. A call that leaves after that
        // time, before the task runs, sets a new time when it fails.
        if self.held_till.is_none_or(|first| first <= now) {
            self.held_till = Some(till);
        }
        !std::mem::replace(&mut self.is_timed, true)
    }

    /// Lets requests leave, one call at a time. With `is_back` set, the store has replied to
    /// another call.
    pub(super) fn release(&mut self, is_back: bool) {
        self.is_timed = false;
        self.asks &= !is_back;
        // The requests of a call in flight may have to wait for the store again.
        let waits = !self.is_empty() || !self.in_call.is_empty();
        self.held_till = self.held_till.filter(|_| waits).map(|_| Nanos::ZERO);
    }

    /// Returns the requests that wait for the store.
    fn waiting(&self) -> Load {
        let queued = Load { requests: self.len(), permits: self.permits };
        let count = |mut load: Load, permits: &u64| {
            load.add(*permits);
            load
        };
        self.held_till.map_or(Load::default(), |_| self.in_call.values().fold(queued, count))
    }

    /// Returns the numbers of the requests, in order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.order.keys().map(|(_, number)| *number)
    }
}

impl State {
    /// Makes a request join the queue. Returns its number, which may be that of an earlier arrival.
    pub(super) fn join(
        &mut self,
        deferred: &mut Deferred,
        mut entry: Entry,
        number: Option<u64>,
        now: Nanos,
    ) -> u64 {
        // The requests behind a pause stand before it.
        self.requeue_ended(deferred, now);
        if !self.has_room(&entry.asked.costs) {
            self.serve_due(deferred, now);
        }
        entry.has_timer = number.is_some() || self.untimed > 0;
        let number = number.unwrap_or(self.next);
        self.next = self.next.max(number + 1);
        entry.was_held = self.in_line.held_till().is_some();
        let stage = self.stage_of(deferred, &entry.asked, now);
        if matches!(stage, Stage::InLine) {
            self.in_line.add(entry.position(number), &entry);
        }
        self.entries.insert(number, entry);
        if let Stage::Answered(outcome) = stage {
            self.answer(deferred, number, outcome);
        }
        number
    }

    /// Returns the first stage of a request that joins the queue.
    fn stage_of(&mut self, deferred: &mut Deferred, asked: &QueuedRequest, now: Nanos) -> Stage {
        if self.closed {
            return Stage::Answered(Outcome::Refused(Refusal::Closed.into()));
        }
        let Some(till) = self.in_line.held_till() else { return Stage::InLine };
        let rest = till.saturating_since(now);
        if !asked.waits_for_store {
            return Stage::Answered(Outcome::Undecided(Away::For(rest.as_duration())));
        }
        match self.make_room(&asked.costs, asked.priority) {
            Some(victims) => {
                self.displace(deferred, victims, now);
                Stage::InLine
            }
            None => Stage::Answered(Outcome::Refused(Refusal::QueueFull { retry_after: rest }.into())),
        }
    }

    /// Handles a failed call of these requests, after which the store is left alone for a rest. If
    /// the call was instead too late to be made, its requests that may wait queue again. Returns
    /// whether a task must make the queue continue after the rest.
    pub(super) fn failed(
        &mut self,
        deferred: &mut Deferred,
        numbers: &[u64],
        undecided: Away,
        (rest, timeout): (Duration, Duration),
        now: Nanos,
    ) -> bool {
        if self.closed {
            // The line is being closed, and its requests may have their results already.
            for number in numbers {
                self.answer(deferred, *number, Outcome::Refused(Refusal::Closed.into()));
            }
            return false;
        }
        let comes_back = rest < Duration::MAX;
        // The reply to a request with less time left might be late in the next call as well.
        let is_late = undecided == Away::Late;
        let by = if is_late { now.saturating_add(Nanos::from_duration(timeout)) } else { now };
        let is_held = self.in_line.held_till().is_some();
        // All requests of a held queue wait for the store, and have set their timers.
        let stays = comes_back && (is_held || is_late);
        let in_line = if stays { Vec::new() } else { self.in_line.leave(usize::MAX) };
        let mut has_come = false;
        for number in numbers.iter().copied().chain(in_line) {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            let is_unanswered = matches!(entry.stage, Stage::InLine | Stage::Sent);
            let goes_on = entry.asked.waits_for_store || is_late && !is_held && entry.may_wait();
            if comes_back && is_unanswered && goes_on && by < entry.last() {
                entry.stage = Stage::InLine;
                if is_late {
                    entry.has_timer = true;
                } else {
                    has_come |= !entry.was_held;
                    entry.was_held = true;
                }
                self.in_line.add(entry.position(number), entry);
                if entry.last() < Nanos::MAX {
                    // The task of the request sets the timer.
                    deferred.wake(entry);
                }
            } else {
                self.answer(deferred, number, Outcome::Undecided(undecided));
            }
        }
        if is_late && !is_held {
            self.in_line.answered(self.next);
            return false;
        }
        let needs_timer = self.in_line.hold(now.saturating_add(Nanos::from_duration(rest)), now);
        // Lower bounds do not end requests that waited before.
        if has_come {
            self.bound(deferred, Nanos::from_duration(rest));
        }
        needs_timer
    }

    /// Makes the tasks of requests in the queue set timers, in steps, while a call is in flight
    /// that may have its reply only after their timeout. Such a call gives bookings back and
    /// decides no request, decides requests that waited behind a pause, or may wait to leave.
    pub(super) fn set_timers(&mut self, deferred: &mut Deferred, now: Nanos) {
        for _ in 0..MAX_STEPS {
            let Some((_, number)) = self.in_line.without_timer.pop_first() else { return };
            if let Some(entry) = self.entries.get_mut(&number) {
                entry.has_timer = true;
                deferred.wake(entry);
            }
        }
        deferred.visits.push((now, State::set_timers));
    }

    /// Ends this request if it has waited too long for the store. The request may be on its way.
    pub(super) fn end_wait(&mut self, number: u64, is_slow: bool, timeout: Duration, now: Nanos) {
        let till = self.in_line.held_till();
        if let Some(entry) = self.entries.get_mut(&number)
            && entry.ends_undecided(till.is_some(), is_slow, timeout) <= now
        {
            let rest = till.unwrap_or_default().saturating_since(now).as_duration();
            self.in_line.drop_undecided(number, entry);
            entry.stage = Stage::Answered(Outcome::Undecided(Away::For(rest)));
            self.paused.remove(number, &entry.asked.costs);
        }
    }

    /// Returns the requests that wait, booked or for the store.
    pub(super) fn load(&self) -> Load {
        self.booked.and(self.in_line.waiting())
    }
}

#[cfg(test)]
mod tests {
    use tidegate::WhenFull;

    use super::*;
    use crate::line::class::Booking;
    use crate::script::{Answer, Reply};

    fn asked(longest: Duration) -> QueuedRequest {
        QueuedRequest {
            costs: vec![(1, 1)],
            longest,
            droppable: true,
            waits_for_store: true,
            ..QueuedRequest::default()
        }
    }

    /// Regression: each request had a timer, and the clock moves on between two reads. The timer
    /// ended a request before the end of its call, which was as late, was counted.
    #[test]
    fn a_request_that_joins_when_it_comes_ends_with_its_call() {
        let timeout = Duration::from_millis(5);
        let joined = Nanos::new(1);
        let (mut state, mut deferred) = (State::default(), Deferred::default());
        for (number, ends) in [(None, Nanos::MAX), (Some(7), Nanos::from_duration(timeout))] {
            let entry = Entry::new(asked(Duration::ZERO), joined);
            let number = state.join(&mut deferred, entry, number, joined);
            assert_eq!(state.entries[&number].ends_undecided(false, false, timeout), ends);
        }
    }

    /// A request that was dropped behind a pause was also subtracted from the requests of the call
    /// in flight. A request of that call was not subtracted when its maximum wait had passed.
    #[test]
    fn each_request_of_a_held_queue_counts_until_it_ends() {
        let (mut deferred, second) = (Deferred::default(), Nanos::new(1_000_000_000));
        let mut state = State::default();
        let sent = Entry { was_held: true, ..Entry::new(asked(Duration::from_secs(1)), Nanos::ZERO) };
        state.in_line.add(sent.position(0), &sent);
        state.in_line.hold(second, Nanos::ZERO);
        state.in_line.leave(1);
        state.entries.insert(0, Entry { stage: Stage::Sent, ..sent });
        for number in [1, 2] {
            let reply = Reply {
                answer: Answer::Predicted,
                wait: Duration::from_secs(9),
                tightest: None,
                due: 9,
                permits: vec![1],
                limits: Vec::new(),
                before: Vec::new(),
            };
            let stage = Stage::Paused(Booking { due: second, number, reply });
            state.entries.insert(number, Entry { stage, ..Entry::new(asked(Duration::MAX), Nanos::ZERO) });
            state.paused.insert(number, &vec![(1, 1)], second);
            state.booked.add(1);
        }
        let mut requests = vec![state.load().requests];
        state.displace(&mut deferred, vec![1], Nanos::ZERO);
        requests.push(state.load().requests);
        assert!(state.drop_request(&mut deferred, 2, Nanos::ZERO).is_some());
        requests.push(state.load().requests);
        state.end_wait(0, false, Duration::ZERO, second.saturating_add(Nanos::new(1)));
        requests.push(state.load().requests);
        assert_eq!(requests, [3, 2, 1, 0]);
    }

    /// Regression: requests that had waited behind a pause, and whose call left before the queue
    /// was held, were dropped for a newcomer. Such requests do not count, so that made no room.
    #[test]
    fn requests_of_earlier_calls_are_not_dropped_from_a_held_queue() {
        let second = Nanos::new(1_000_000_000);
        let mut state = State::default();
        (state.bounds.permits, state.bounds.when_full) = (5, WhenFull::DropLeastImportant);
        let first = QueuedRequest { costs: vec![(2, 2)], ..asked(Duration::MAX) };
        let first = Entry::new(first, Nanos::ZERO);
        state.in_line.add(first.position(0), &first);
        state.in_line.hold(second, Nanos::ZERO);
        state.entries.insert(0, Entry { was_held: true, ..first });
        for number in 1..4 {
            let sent = Entry::new(asked(Duration::MAX), Nanos::ZERO);
            state.entries.insert(number, Entry { stage: Stage::Sent, was_held: true, ..sent });
        }
        let room = |permits| state.make_room(&vec![(permits, permits)], 1);
        assert_eq!((room(3), room(4), room(5)), (Some(vec![]), Some(vec![0]), Some(vec![0])));
    }

    /// Regression: a request behind a pause queued again between two steps, and was sent.
    #[test]
    fn a_closed_line_takes_in_no_request_from_behind_a_pause() {
        let entry = Entry { stage: Stage::Sent, ..Entry::new(asked(Duration::MAX), Nanos::ZERO) };
        let mut state = State { entries: [(7, entry)].into(), closed: true, ..State::default() };
        state.rejoin(&mut Deferred::default(), 7, Nanos::ZERO);
        assert!(state.in_line.is_empty());
        let Stage::Answered(Outcome::Refused(refusal)) = &state.entries[&7].stage else { panic!("open") };
        assert_eq!(refusal.refusal(), Some(Refusal::Closed));
    }

    /// Regression: a line is closed in steps, and a call may fail between two of them. Its requests
    /// queued again, and were sent after they had been refused because the line is closed.
    #[test]
    fn a_closed_line_takes_in_no_requests_of_a_call_that_failed() {
        let asked = asked(Duration::MAX);
        let entry = Entry { stage: Stage::Sent, ..Entry::new(asked, Nanos::ZERO) };
        let mut state = State { entries: [(7, entry)].into(), closed: true, ..State::default() };
        let (away, rest) = (Away::For(Duration::ZERO), Duration::from_millis(5));
        assert!(!state.failed(&mut Deferred::default(), &[7], away, (rest, rest), Nanos::ZERO));
        assert!(state.in_line.is_empty());
        let Stage::Answered(Outcome::Refused(refusal)) = &state.entries[&7].stage else { panic!("open") };
        assert_eq!(refusal.refusal(), Some(Refusal::Closed));
    }
}
