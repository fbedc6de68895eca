//! The requests that wait behind a pause.
//!
//! The store books nothing during a pause. It predicts when a request is due if the pause lasts as
//! long as planned, and refuses a request that may not wait until then. The others ask again when
//! the pause has ended: at its end, when this process ends it, or when a reply reports the end.
//! Another process may end it as well, so one request asks every second. The reply to it reports
//! all limits.
//!
//! Each limit has its own pause. So the requests that use the same limits wait together, for the
//! pauses of these limits and for no other.
//!
//! Requests that ask again queue where they stood before, by priority and then by arrival. A
//! request that came while they waited, and that uses all of their limits, stands behind them: it
//! is sent as a request behind a pause, which the store does not decide if the pause has ended.
//! Until all such requests in flight have their replies, no call leaves. Otherwise later requests
//! would be decided before them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Nanos, Refusal};

use crate::line::class::Booking;
use crate::line::{Deferred, Entry, MAX_STEPS, Outcome, Stage, State, bounds};
use crate::script::Reply;
use crate::set::Costs;
use crate::store::Away;

/// How often one request asks whether the pause has ended.
const CHECK_INTERVAL: Nanos = Nanos::new(1_000_000_000);

/// For each limit, whether a request uses it.
pub(super) type Used = Arc<[bool]>;

/// The requests that wait behind pauses, by the limits that they use.
#[derive(Debug, Default)]
pub(super) struct Paused {
    groups: BTreeMap<Used, Group>,
    /// When the store's thread checks whether a pause has ended, if that is scheduled.
    next_check: Option<Nanos>,
}

/// The requests that use the same limits, and wait for the end of the last pause of these.
#[derive(Debug)]
struct Group {
    /// The numbers of the requests, including the one that asks whether the pause has ended.
    numbers: BTreeSet<u64>,
    /// The end of the pause.
    ends: Nanos,
    /// Whether this process took the pause for ended. The store may still predict the requests.
    is_presumed_over: bool,
    /// How many requests in calls stand behind these.
    behind: usize,
}

impl Paused {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.values().all(|group| group.numbers.is_empty())
    }

    pub(super) fn insert(&mut self, number: u64, costs: &Costs, ends: Nanos) {
        let new = || Group { numbers: BTreeSet::new(), ends, is_presumed_over: false, behind: 0 };
        let group = self.groups.entry(used(costs)).or_insert_with(new);
        group.numbers.insert(number);
        (group.ends, group.is_presumed_over) = (ends, false);
    }

    pub(super) fn remove(&mut self, number: u64, costs: &Costs) {
        self.change(&used(costs), |group| _ = group.numbers.remove(&number));
    }

    /// Changes a group, which ends with its last request if no other stands behind it.
    fn change(&mut self, used: &Used, change: impl FnOnce(&mut Group)) {
        let Some(group) = self.groups.get_mut(used) else { return };
        change(group);
        if group.numbers.is_empty() && group.behind == 0 {
            self.groups.remove(used);
        }
    }

    /// Returns the end of the pauses of these limits, for which requests wait.
    pub(super) fn end_for(&self, costs: &Costs) -> Nanos {
        self.groups.get(&used(costs)).map_or(Nanos::ZERO, |group| group.ends)
    }

    /// Counts a request that leaves with a call as one behind all requests whose limits it uses,
    /// and that came before. Returns the limits of these.
    pub(super) fn stand_behind(&mut self, number: u64, costs: &Costs) -> Vec<Used> {
        let mut stands_behind = Vec::new();
        for (used, group) in &mut self.groups {
            let is_before = group.numbers.first().is_some_and(|first| *first < number);
            if is_before && costs.iter().zip(used.iter()).all(|((n, _), used)| *n > 0 || !used) {
                group.behind += 1;
                stands_behind.push(used.clone());
            }
        }
        stands_behind
    }

    /// A request has its reply that stood behind the requests for these limits.
    pub(super) fn replied(&mut self, used: &Used) {
        self.change(used, |group| group.behind -= 1);
    }

    /// Returns whether a request in a call stands behind others that all have left the pause.
    pub(super) fn holds_calls(&self) -> bool {
        self.groups.values().any(|group| group.behind > 0 && group.numbers.is_empty())
    }

    /// Returns the first requests whose pause has ended.
    fn first_to_ask(&self, now: Nanos, most: usize) -> BTreeSet<u64> {
        let mut first = BTreeSet::new();
        for group in self.groups.values().filter(|group| group.ends <= now) {
            for number in &group.numbers {
                if first.len() == most && first.last() < Some(number) {
                    break;
                }
                first.insert(*number);
                if first.len() > most {
                    first.pop_last();
                }
            }
        }
        first
    }

    /// Returns the first request whose pause has not ended.
    fn first_that_waits(&self, now: Nanos) -> Option<u64> {
        let groups = self.groups.values().filter(|group| now < group.ends);
        groups.filter_map(|group| group.numbers.first().copied()).min()
    }

    /// Returns whether the store may still predict a request for these limits, whose pause is over.
    fn is_presumed_over(&self, costs: &Costs) -> bool {
        self.groups.get(&used(costs)).is_some_and(|group| group.is_presumed_over)
    }
}

impl State {
    /// Makes a request wait behind a pause.
    pub(super) fn wait_behind_pause(&mut self, deferred: &mut Deferred, predicted: Booking, now: Nanos) {
        let Booking { due, number, ref reply } = predicted;
        let ends = now.saturating_add(Nanos::from_duration(reply.request_paused_for()));
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
        self.paused.insert(number, &costs, ends);
        self.displace(deferred, victims, now);
        self.schedule_check(deferred, now);
    }

    /// This process pauses the limits for `span`. Requests that wait behind an earlier pause keep
    /// their predicted due times, but none of these comes before the pause ends.
    pub(super) fn prolong_pause(&mut self, span: Duration, now: Nanos) {
        let ends = now.saturating_add(Nanos::from_duration(span));
        self.paused.groups.values_mut().for_each(|group| group.ends = group.ends.max(ends));
    }

    /// Makes the store's thread check when the next pause ends, or in a second.
    fn schedule_check(&mut self, deferred: &mut Deferred, now: Nanos) {
        if self.paused.is_empty() {
            return;
        }
        let ends = self.paused.groups.values().map(|group| group.ends).filter(|ends| now < *ends);
        let at = ends.fold(now.saturating_add(CHECK_INTERVAL), Nanos::min);
        if self.paused.next_check.is_none_or(|next| at < next) {
            self.paused.next_check = Some(at);
            deferred.visits.push((at, State::check_pauses));
        }
    }

    /// On the store's thread: makes all requests ask again whose pause has ended, and of the others
    /// only the first.
    fn check_pauses(&mut self, deferred: &mut Deferred, now: Nanos) {
        self.requeue_ended(deferred, now);
        if self.paused.next_check.is_some_and(|at| now < at) {
            // A later check was scheduled before an earlier one.
            return;
        }
        self.paused.next_check = None;
        // Until it is decided, it stays in its group: later requests stand behind it.
        if let Some(first) = self.paused.first_that_waits(now)
            && let Some(predicted) = self.take_predicted(first)
        {
            self.give_back(predicted);
            self.rejoin(deferred, first, now);
        }
        self.schedule_check(deferred, now);
    }

    /// Notes when the pauses end, if one of these replies reports that. The requests of which no
    /// limit is paused ask again.
    pub(super) fn note_pauses(&mut self, deferred: &mut Deferred, replies: &[Reply], now: Nanos) {
        let Some(reply) = replies.iter().find(|reply| !reply.limits.is_empty()) else { return };
        for (used, group) in &mut self.paused.groups {
            let reports = reply.limits.iter().zip(used.iter()).filter(|(_, used)| **used);
            let rest = reports.map(|(report, _)| report.paused_for).max().unwrap_or_default();
            group.ends = match rest {
                Duration::ZERO => group.ends.min(now),
                rest => now.saturating_add(Nanos::from_duration(rest)),
            };
            group.is_presumed_over = false;
        }
        self.requeue_ended(deferred, now);
        self.schedule_check(deferred, now);
    }

    /// Makes all requests behind a pause ask again: this process has ended the pauses.
    pub(super) fn requeue_paused(&mut self, deferred: &mut Deferred, now: Nanos) {
        for group in self.paused.groups.values_mut().filter(|group| now < group.ends) {
            (group.ends, group.is_presumed_over) = (now, true);
        }
        self.requeue_ended(deferred, now);
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

    /// Makes all requests behind a pause that has ended ask again, in steps: the store's thread
    /// makes the next step. Requests whose tasks did not check for long are refused. A request that
    /// comes between two steps still stands behind a pause, so the requests before it go first.
    pub(super) fn requeue_ended(&mut self, deferred: &mut Deferred, now: Nanos) {
        if deferred.has_more {
            // This visit has made its step already.
            return;
        }
        for number in self.paused.first_to_ask(now, MAX_STEPS) {
            let costs = self.entries.get(&number).map(|entry| &entry.asked.costs);
            let is_presumed_over = costs.is_some_and(|costs| self.paused.is_presumed_over(costs));
            let Some(predicted) = self.leave_pause(number) else { continue };
            if is_presumed_over {
                // If the message that ends the pause is lost, the store would predict it twice.
                self.give_back(predicted);
            }
            let is_leaked = |entry: &Entry| entry.last().saturating_add(CHECK_INTERVAL) < now;
            if self.entries.get(&number).is_some_and(is_leaked) {
                let refusal = Refusal::Paused { retry_after: Nanos::ZERO };
                self.answer(deferred, number, Outcome::Refused(refusal.into()));
            } else {
                self.rejoin(deferred, number, now);
            }
        }
        deferred.has_more = !self.paused.first_to_ask(now, 1).is_empty();
    }

    /// Takes a request from behind the pause. Returns its predicted booking, unless the request is
    /// asking whether the pause has ended.
    pub(super) fn leave_pause(&mut self, number: u64) -> Option<Booking> {
        let entry = self.entries.get(&number)?;
        self.paused.remove(number, &entry.asked.costs);
        self.take_predicted(number)
    }

    /// Takes the predicted booking of a request, which is about to ask again.
    fn take_predicted(&mut self, number: u64) -> Option<Booking> {
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

fn used(costs: &Costs) -> Used {
    costs.iter().map(|(n, _)| *n > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::QueuedRequest;

    /// Regression: the lock was held while a million requests asked again.
    #[test]
    fn requests_ask_again_by_steps() {
        let (mut state, mut deferred) = (State::default(), Deferred::default());
        for number in 0..1000 {
            let costs = vec![(number % 2, 1), (1, 1)];
            state.paused.insert(number, &costs, Nanos::new(7));
            let asked = QueuedRequest { costs, ..QueuedRequest::default() };
            let entry = Entry { stage: Stage::Sent, ..Entry::new(asked, Nanos::ZERO) };
            state.entries.insert(number, entry);
        }
        let rest =
            |state: &State| state.paused.groups.values().map(|group| group.numbers.len()).sum::<usize>();
        let mut steps = 0;
        state.requeue_paused(&mut deferred, Nanos::new(1));
        while std::mem::take(&mut deferred.has_more) {
            steps += 1;
            assert_eq!(rest(&state), 1000 - steps * MAX_STEPS);
            let mut left = state.paused.groups.values().flat_map(|group| &group.numbers);
            assert!(left.all(|number| *number >= (steps * MAX_STEPS) as u64));
            state.requeue_ended(&mut deferred, Nanos::new(1));
        }
        assert_eq!((steps, rest(&state)), (3, 0));
    }
}
