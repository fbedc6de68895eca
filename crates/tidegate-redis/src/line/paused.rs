//! The requests that wait behind a pause.
//!
//! The store books nothing during a pause. It predicts when a request is due if the pause lasts as
//! long as planned, and refuses a request that may not wait until then. The others ask again when
//! the pause has ended: at its end, when this process ends it, or when another request was decided.
//! Another process may end it as well, so one request asks every second.
//!
//! Requests that ask again queue where they stood before, by priority and then by arrival. A
//! request that came while they waited stands behind them: it is sent as a request behind a pause,
//! which the store does not decide if the pause has ended. Until all such requests in flight have
//! their replies, no call leaves. Otherwise later requests would be decided before them.

use std::time::Duration;

use tidegate::{Nanos, Refusal};

use crate::line::class::Booking;
use crate::line::{Deferred, Entry, MAX_STEPS, Outcome, Stage, State, bounds};
use crate::script::{Answer, Reply};
use crate::set::{Costs, exactly};
use crate::store::Away;

/// How often one request asks whether the pause has ended.
const CHECK_INTERVAL: Nanos = Nanos::new(1_000_000_000);

impl State {
    /// Makes a request wait behind a pause.
    pub(super) fn wait_behind_pause(&mut self, deferred: &mut Deferred, predicted: Booking, now: Nanos) {
        let Booking { due, number, ref reply } = predicted;
        let paused_for = reply.paused_for();
        let Some(entry) = self.entries.get(&number) else { return };
        let (costs, priority) = (entry.asked.costs.clone(), entry.asked.priority);
        let Some(victims) = self.make_room(&costs, priority) else {
            let refusal = Refusal::QueueFull { retry_after: due.saturating_since(now) };
            self.answer(deferred, number, Outcome::Refused(refusal.into()));
            return self.give_back(predicted);
        };
        self.booked.add(bounds::sum(&costs));
        if let Some(entry) = self.entries.get_mut(&number) {
            if entry.predicted == Nanos::ZERO && entry.last() < due {
                // The store counts the maximum wait from the time at which it decides.
                entry.predicted = due;
            }
            entry.stage = Stage::Paused(predicted);
            deferred.wake(entry);
        }
        self.paused.insert(number);
        self.pause_ends = now.saturating_add(Nanos::from_duration(paused_for));
        self.displace(deferred, victims, now);
        self.schedule_check(deferred, now);
    }

    /// This process pauses the limits for `span`. Requests that wait behind an earlier pause keep
    /// their predicted due times, but none of these comes before the pause ends.
    pub(super) fn prolong_pause(&mut self, span: Duration, now: Nanos) {
        if !self.paused.is_empty() {
            self.pause_ends = self.pause_ends.max(now.saturating_add(Nanos::from_duration(span)));
        }
    }

    /// Makes the store's thread check when the pause ends, or in a second.
    fn schedule_check(&mut self, deferred: &mut Deferred, now: Nanos) {
        if !self.paused.is_empty() && !std::mem::replace(&mut self.is_pause_watched, true) {
            let at = self.pause_ends.min(now.saturating_add(CHECK_INTERVAL));
            deferred.visits.push((at, State::check_pause));
        }
    }

    /// Returns the first request behind a pause, and its costs.
    pub(super) fn first_behind_pause(&self) -> Option<(u64, Costs)> {
        let first = self.paused.first()?;
        Some((*first, self.entries.get(first)?.asked.costs.clone()))
    }

    /// On the store's thread: makes all requests ask again if the pause has ended, and otherwise
    /// only the first.
    fn check_pause(&mut self, deferred: &mut Deferred, now: Nanos) {
        self.is_pause_watched = false;
        if self.pause_ends <= now {
            return self.requeue_paused(deferred, now);
        }
        if let Some(first) = self.paused.first().copied()
            && let Some(predicted) = self.leave_pause(first)
        {
            self.give_back(predicted);
            // Until it is decided, later requests stand behind it.
            self.paused.insert(first);
            self.rejoin(deferred, first, now);
        }
        self.schedule_check(deferred, now);
    }

    /// Makes the requests behind a pause ask again if another request for their limits was decided
    /// without a pause.
    pub(super) fn note_decision(&mut self, deferred: &mut Deferred, reply: &Reply, now: Nanos) {
        let Some((_, first)) = self.first_behind_pause() else { return };
        let has_ended = match reply.answer {
            Answer::Done | Answer::Refused => reply.paused_for().is_zero(),
            Answer::Resumed => true,
            Answer::Shadow | Answer::Predicted => false,
        };
        if has_ended && covers(&exactly(reply.permits.iter().copied()), &first) {
            self.requeue_paused(deferred, now);
        }
    }

    /// Makes a request ask for the last time if its maximum wait has passed behind a pause, which
    /// may have been prolonged or may have ended just now.
    pub(super) fn end_behind_pause(&mut self, deferred: &mut Deferred, number: u64, now: Nanos) {
        let has_ended = self.entries.get(&number).is_some_and(|entry| entry.last() < now);
        if has_ended && let Some(predicted) = self.leave_pause(number) {
            self.give_back(predicted);
            self.rejoin(deferred, number, now);
        }
    }

    /// Makes all requests behind a pause that has ended ask again, in steps. Requests whose tasks
    /// did not check for long are refused. A request that comes between two steps still stands
    /// behind a pause, so the requests before it go first.
    pub(super) fn requeue_paused(&mut self, deferred: &mut Deferred, now: Nanos) {
        self.pause_ends = self.pause_ends.min(now);
        if deferred.has_more {
            // This visit has made its step already.
            return;
        }
        for _ in 0..MAX_STEPS {
            let Some(number) = self.paused.first().copied() else { return };
            if self.leave_pause(number).is_none() {
                continue;
            }
            let is_leaked = |entry: &Entry| entry.last().saturating_add(CHECK_INTERVAL) < now;
            if self.entries.get(&number).is_some_and(is_leaked) {
                let refusal = Refusal::Paused { retry_after: Nanos::ZERO };
                self.answer(deferred, number, Outcome::Refused(refusal.into()));
            } else {
                self.rejoin(deferred, number, now);
            }
        }
        deferred.has_more = !self.paused.is_empty();
    }

    /// On the store's thread: makes the next step, unless there is another pause.
    pub(super) fn continue_requeue(&mut self, deferred: &mut Deferred, now: Nanos) {
        if self.pause_ends <= now {
            self.requeue_paused(deferred, now);
        }
    }

    /// Takes a request from behind the pause. Returns its predicted booking, unless the request is
    /// asking whether the pause has ended.
    pub(super) fn leave_pause(&mut self, number: u64) -> Option<Booking> {
        self.paused.remove(&number);
        let entry = self.entries.get_mut(&number)?;
        let Stage::Paused(_) = entry.stage else { return None };
        let Stage::Paused(predicted) = std::mem::replace(&mut entry.stage, Stage::Sent) else { return None };
        entry.was_held = true;
        self.booked.remove(bounds::sum(&entry.asked.costs));
        Some(predicted)
    }

    /// Makes a request queue again: one that waited behind a pause, or a newcomer that must not be
    /// decided before such requests.
    pub(super) fn rejoin(&mut self, deferred: &mut Deferred, number: u64, now: Nanos) {
        let rest = self.in_line.held_till().map(|till| till.saturating_since(now).as_duration());
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if !matches!(entry.stage, Stage::Sent) {
            return;
        }
        if self.closed {
            // The line is being closed in steps.
            return self.answer(deferred, number, Outcome::Refused(Refusal::Closed.into()));
        }
        if let Some(rest) = rest
            && !entry.asked.waits_for_store
        {
            return self.answer(deferred, number, Outcome::Undecided(Away::For(rest)));
        }
        entry.stage = Stage::InLine;
        entry.was_held |= rest.is_some();
        // The calls before a newcomer may have no deadline.
        entry.has_timer |= !entry.was_held;
        self.in_line.add(entry.position(number), entry);
        if (rest.is_some() || entry.has_timer) && entry.last() < Nanos::MAX {
            // The task of the request sets the timer.
            deferred.wake(entry);
        }
    }
}

/// Returns whether `costs` has permits of each limit of which `other` has some.
pub(super) fn covers(costs: &Costs, other: &Costs) -> bool {
    costs.iter().zip(other).all(|((n, _), (of_other, _))| *of_other == 0 || *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the lock was held while a million requests asked again.
    #[test]
    fn requests_ask_again_by_steps() {
        let (mut state, mut deferred) = (State::default(), Deferred::default());
        state.paused = (0..1000).collect();
        state.pause_ends = Nanos::new(7);
        let mut steps = 0;
        state.requeue_paused(&mut deferred, Nanos::new(1));
        while std::mem::take(&mut deferred.has_more) {
            steps += 1;
            assert_eq!(state.paused.len(), 1000 - steps * MAX_STEPS);
            state.continue_requeue(&mut deferred, Nanos::new(1));
        }
        assert_eq!((steps, state.paused.len()), (3, 0));
    }
}
