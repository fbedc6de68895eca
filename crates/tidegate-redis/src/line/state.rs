//! What happens to the requests in the queue, as plain data.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Nanos, Refusal};
use tokio::sync::oneshot;

use crate::line::class::{Booking, Class, MAX_CHECKED};
use crate::line::{Deferred, Entry, Granted, MAX_STEPS, Outcome, Stage, State, Step, bounds};
use crate::pending::PendingMessage;
use crate::script::{Answer, Reply};
use crate::set::{Costs, exactly};
use crate::store::{Away, Store};

/// While this many calls are in flight, no other leaves to shorten the queue.
const MAX_CALLS: usize = 16;

/// The most calls that leave together to give bookings back. After a storm of dropped waits each of
/// them takes a server some milliseconds.
const MAX_GIVING_BACK: usize = 4;

/// For how long a grant that its task did not take goes to the next request.
const CATCH_UP: Nanos = Nanos::new(5_000_000);

impl State {
    /// Returns the messages that leave now.
    ///
    /// The store takes back the last booking, and then the one before it, if nothing else was
    /// written. So bookings wait until no call is in flight that may book behind them. Then the
    /// latest booking leaves first, refunds leave after all bookings, and requests after the
    /// refunds. Requests that leave during a call take the earliest bookings along, for themselves.
    pub(super) fn next_steps(&mut self, is_far: bool, most: usize, now: Nanos) -> Vec<Step> {
        let mut steps = Vec::new();
        let held_till = self.in_line.held_till();
        if self.paused.holds_calls() || held_till.is_some_and(|till| now < till) {
            return steps;
        }
        if self.in_line.asks() {
            if self.calls == 0 {
                self.calls = 1;
                steps.push(Step::Call(Vec::new(), Vec::new()));
            }
            return steps;
        }
        if self.calls == 0 {
            let before_requests = if self.to_refund.is_empty() { most } else { 0 };
            while self.to_give_back.len() > before_requests {
                if steps.len() == MAX_GIVING_BACK {
                    self.calls = MAX_GIVING_BACK;
                    return steps;
                }
                let last = std::iter::from_fn(|| self.to_give_back.pop_last());
                steps.push(Step::Call(last.take(most).map(|(_, booking)| booking).collect(), Vec::new()));
            }
            let refunds = self.to_refund.drain(..);
            steps.extend(refunds.map(|(due, costs)| Step::Refund(due, costs)));
            let last = std::iter::from_fn(|| self.to_give_back.pop_last());
            let bookings: Vec<Booking> = last.map(|(_, booking)| booking).collect();
            if !(bookings.is_empty() && self.in_line.is_empty()) {
                steps.push(Step::Call(bookings, self.in_line.leave(most)));
            }
        }
        self.calls += steps.iter().filter(|step| matches!(step, Step::Call(..))).count();
        while !self.in_line.is_empty()
            && held_till.is_none()
            && (is_far || (self.in_line.len() >= most && self.calls <= self.ahead))
        {
            let refunds = self.to_refund.drain(..);
            steps.extend(refunds.map(|(due, costs)| Step::Refund(due, costs)));
            let numbers = self.in_line.leave(most);
            self.calls += 1;
            let first = std::iter::from_fn(|| self.to_give_back.pop_first());
            let bookings = first.take(numbers.len()).map(|(_, booking)| booking).collect();
            steps.push(Step::Call(bookings, numbers));
        }
        steps
    }

    /// Notes how long a call took, or that it was in vain. A server may work for milliseconds on
    /// one call, and the calls behind it must not be late.
    pub(super) fn took(&mut self, time: Option<Duration>, timeout: Duration) {
        match time {
            Some(time) if time <= timeout / 4 => self.ahead = (self.ahead + 1).min(MAX_CALLS - 1),
            Some(time) if time <= timeout / 2 => {}
            _ => self.ahead /= 2,
        }
    }

    /// Passes a booking that its request does not take to the next request of its size, or gives it
    /// back.
    pub(super) fn pass_on(&mut self, deferred: &mut Deferred, booking: Booking, now: Nanos) {
        let class = booking.reply.permits.clone();
        let is_fresh = now.saturating_since(booking.due) <= CATCH_UP;
        match self.classes.get_mut(&class) {
            Some(requests) if is_fresh => {
                requests.add_booking(booking);
                self.serve_class(deferred, &class, now);
            }
            _ => self.give_back(booking),
        }
    }

    /// Takes a booked request out of its class, or from behind a pause.
    pub(super) fn unbook(&mut self, deferred: &mut Deferred, number: u64, now: Nanos) {
        if let Some(predicted) = self.leave_pause(number) {
            return self.give_back(predicted);
        }
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let Stage::Booked { class, turn } = &entry.stage else { return };
        let (class, turn) = (class.clone(), *turn);
        self.booked.remove(bounds::sum(&entry.asked.costs));
        let requests = self.classes.get_mut(&class);
        // If its time has passed, the booking was the grant of this request. The next request would
        // be granted by it at a later time, and no window in between would count it.
        let passed = requests.and_then(|requests| match requests.due(turn).saturating_add(CATCH_UP) < now {
            true => requests.take(turn),
            false => {
                requests.remove(turn);
                None
            }
        });
        if let Some(booking) = passed {
            self.give_back(booking);
        }
        self.serve_class(deferred, &class, now);
    }

    /// Serves the requests of a class that are due, and gives back bookings that no request waits
    /// for. Wakes the task of the first request if it must check earlier than it will. Makes the
    /// store's thread check if that request is not the predicted one.
    pub(super) fn serve_class(&mut self, deferred: &mut Deferred, class: &[u64], now: Nanos) {
        for _ in 0..MAX_STEPS {
            let served = self.classes.get_mut(class).and_then(|class| class.serve(now));
            let Some((number, booking)) = served else { break };
            self.grant(deferred, number, booking);
        }
        while let Some(booking) = self.classes.get_mut(class).and_then(Class::surplus) {
            self.give_back(booking);
        }
        let Some(requests) = self.classes.get_mut(class) else { return };
        if requests.is_empty() {
            deferred.unwatched.extend(requests.unwatch(None));
            self.classes.remove(class);
            return;
        }
        if let Some(at) = requests.to_watch() {
            let (sender, ends) = oneshot::channel();
            deferred.unwatched.extend(requests.watch(at, sender));
            deferred.watches.push((class.to_vec(), at, ends));
        }
        if let Some((first, due)) = requests.first()
            && let Some(entry) = self.entries.get_mut(&first)
            && due < entry.next_check
        {
            deferred.wake(entry);
        }
    }

    /// Serves the class of a booked request. Requests of higher priority may have taken the
    /// bookings up to the maximum wait of this request: then this request is refused.
    pub(super) fn serve_booked(&mut self, deferred: &mut Deferred, number: u64, now: Nanos) {
        let Some(Entry { stage: Stage::Booked { class, turn }, .. }) = self.entries.get(&number) else {
            return;
        };
        let (class, turn) = (class.clone(), *turn);
        self.serve_class(deferred, &class, now);
        let due = self.classes.get(&class).map_or(now, |class| class.due(turn));
        if let Some(entry) = self.entries.get(&number)
            && matches!(entry.stage, Stage::Booked { .. })
            && entry.latest(turn) < now
            // Otherwise the next step serves it.
            && due > now
        {
            let longest = Nanos::from_duration(entry.asked.longest);
            let retry_after = due.saturating_since(now).saturating_since(longest);
            self.unbook(deferred, number, now);
            self.answer(deferred, number, Outcome::Refused(Refusal::Limited { retry_after }.into()));
        }
    }

    /// Serves the requests that are due in all classes, before the waiting requests are counted. No
    /// task checks for a request that is never polled again.
    pub(super) fn serve_due(&mut self, deferred: &mut Deferred, now: Nanos) {
        let is_due = |class: &Class| class.first().is_some_and(|(_, due)| due <= now);
        let due = self.classes.iter().take(MAX_CHECKED).filter(|(_, class)| is_due(class));
        let due: Vec<Vec<u64>> = due.map(|(costs, _)| costs.clone()).collect();
        due.iter().for_each(|class| self.serve_class(deferred, class, now));
    }

    /// Handles a time of [`Class::to_watch`], on the store's thread.
    pub(super) fn watched(&mut self, deferred: &mut Deferred, class: &[u64], at: Nanos, now: Nanos) {
        if let Some(requests) = self.classes.get_mut(class) {
            deferred.unwatched.extend(requests.unwatch(Some(at)));
            self.serve_class(deferred, class, now);
        }
    }

    /// Returns the last time that the store booked for a request of this line, among the first
    /// [`MAX_CHECKED`] sizes, and how far ahead it booked. The booking of a wait that was dropped
    /// does not count.
    pub(super) fn booked_till(&self) -> (Nanos, Duration) {
        let last = self.classes.values().take(MAX_CHECKED).filter_map(Class::last);
        last.max().unwrap_or_default().max(self.served)
    }

    /// Gives a booking back to the store, once: if the message is lost, permits are lost, but none
    /// is granted twice. The last booking goes first, because the store undoes the last booking.
    pub(super) fn give_back(&mut self, booking: Booking) {
        if booking.reply.wait == Duration::ZERO {
            self.to_refund.push((booking.reply.due, exactly(booking.reply.permits)));
        } else {
            self.to_give_back.insert((booking.reply.due, booking.number), booking);
        }
    }

    /// Notes for a flush whether bookings or permits have yet to leave. Returns a message that has
    /// ended, to be dropped without the lock.
    pub(super) fn note_pending(&mut self, store: &Store) -> Option<Arc<PendingMessage>> {
        if self.to_give_back.is_empty() && self.to_refund.is_empty() {
            return self.message.take();
        }
        self.message.get_or_insert_with(|| Arc::new(store.begin_message()));
        None
    }

    /// Takes the bookings that have yet to leave, the last one first, and the permits.
    pub(super) fn take_back(&mut self) -> (Vec<Booking>, Vec<(i64, Costs)>) {
        let bookings = std::mem::take(&mut self.to_give_back).into_values().rev();
        (bookings.collect(), std::mem::take(&mut self.to_refund))
    }

    /// Drops a request. Returns its entry.
    pub(super) fn drop_request(&mut self, deferred: &mut Deferred, number: u64, now: Nanos) -> Option<Entry> {
        // Before it leaves a pause: a request behind a pause is in no call.
        self.in_line.drop_undecided(number, self.entries.get(&number)?);
        self.unbook(deferred, number, now);
        self.entries.remove(&number)
    }

    /// Drops waiting requests for a newcomer.
    pub(super) fn displace(&mut self, deferred: &mut Deferred, victims: Vec<u64>, now: Nanos) {
        for victim in victims {
            if let Some(entry) = self.entries.get(&victim) {
                self.in_line.drop_undecided(victim, entry);
            }
            self.unbook(deferred, victim, now);
            self.answer(deferred, victim, Outcome::Refused(Refusal::Displaced.into()));
        }
    }

    /// Takes a booking that no request waits for, that has not left, and that is due earlier than
    /// `due`.
    pub(super) fn earlier_booking(&mut self, class: &[u64], due: i64, now: Nanos) -> Option<Booking> {
        let mut earlier = self.to_give_back.range(..(due, 0)).take(MAX_STEPS);
        let (key, _) = earlier.find(|(_, booking)| {
            booking.reply.permits == class && booking.due > now && booking.reply.answer == Answer::Done
        })?;
        let key = *key;
        self.to_give_back.remove(&key)
    }

    /// Ends a request, if it has not ended.
    pub(super) fn answer(&mut self, deferred: &mut Deferred, number: u64, outcome: Outcome) {
        self.end_for_waiting(number);
        if self.entries.get(&number).is_some_and(|entry| entry.lease.is_some()) {
            let undecided = match outcome {
                Outcome::Undecided(undecided) => undecided,
                _ => Away::Misconfigured,
            };
            return self.end_lease(deferred, number, Err(undecided));
        }
        if let Some(entry) = self.entries.get_mut(&number)
            && !matches!(entry.stage, Stage::Answered(_))
        {
            self.in_line.remove(entry.position(number));
            self.paused.remove(number, &entry.asked.costs);
            entry.stage = Stage::Answered(outcome);
            deferred.wake(entry);
        }
    }

    /// Reports to a lease how it was decided.
    pub(super) fn end_lease(&mut self, deferred: &mut Deferred, number: u64, reply: Result<Reply, Away>) {
        let booked = self.entries.remove(&number).and_then(|entry| entry.lease);
        deferred.leases.extend(booked.map(|booked| (booked, reply)));
    }

    /// Grants a booked request.
    fn grant(&mut self, deferred: &mut Deferred, number: u64, Booking { due, number: of, reply }: Booking) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        self.booked.remove(bounds::sum(&entry.asked.costs));
        self.served = self.served.max((due, reply.wait));
        let waited = match of == number {
            true => entry.queued_for.saturating_add(reply.wait),
            false => due.saturating_since(entry.joined).as_duration(),
        };
        self.answer(deferred, number, Outcome::Granted(Granted { reply, waited, due }));
    }
}
