//! What happens to a request that the store has decided.

use std::time::Duration;

use tidegate::{AllRefusal, Nanos, Refusal};

use crate::line::class::{Booking, Turn};
use crate::line::{Deferred, Entry, Granted, Line, Outcome, Stage, State, bounds};
use crate::script::{Answer, Reply};

impl Line {
    pub(super) fn decided(
        &self,
        state: &mut State,
        deferred: &mut Deferred,
        number: u64,
        reply: Reply,
        now: Nanos,
    ) {
        let (answer, due) = (reply.answer, now.saturating_add(Nanos::from_duration(reply.wait)));
        if answer != Answer::Predicted
            && let Some(entry) = state.entries.get(&number)
        {
            state.paused.remove(number, &entry.asked.costs);
        }
        let booking = Booking { due, number, reply };
        if state.end_for_waiting(number) && answer == Answer::Done {
            state.pass_on(deferred, booking, now);
            return state.ask_for_more(now);
        }
        let entry = state.entries.get(&number).filter(|entry| matches!(entry.stage, Stage::Sent));
        let Some(entry) = entry else {
            // The request was dropped, or the line was closed.
            return match answer {
                Answer::Done => state.pass_on(deferred, booking, now),
                Answer::Predicted => state.give_back(booking),
                Answer::Refused | Answer::Shadow | Answer::Resumed => {}
            };
        };
        if entry.lease.is_some() {
            let reply = booking.reply.clone();
            if answer == Answer::Predicted {
                // No lease waits for the end of a pause: its requests move to this queue.
                state.give_back(booking);
            }
            return state.end_lease(deferred, number, Ok(reply));
        }
        let is_now = answer == Answer::Shadow || booking.reply.wait == Duration::ZERO;
        match answer {
            Answer::Predicted => state.wait_behind_pause(deferred, booking, now),
            Answer::Resumed => state.rejoin(deferred, number, now),
            Answer::Refused => {
                let refusal = self.refused(state, entry, &booking, now);
                state.answer(deferred, number, Outcome::Refused(refusal));
            }
            Answer::Done | Answer::Shadow if is_now && !state.is_behind(entry, &booking.reply) => {
                let waited = if entry.was_held { entry.queued_for } else { Duration::ZERO };
                let granted = Granted { reply: booking.reply, waited, due };
                state.answer(deferred, number, Outcome::Granted(granted));
            }
            Answer::Done | Answer::Shadow => {
                state.book(deferred, booking, now);
                // Leases would serve later requests before. The lines of thousands of keys would
                // load a server.
                if self.leases.is_some() && self.on_drop.is_none() {
                    state.schedule_move_up(deferred, now);
                }
            }
        }
    }

    /// Returns the refusal of a request by the store, or by the bounds of the queue.
    fn refused(&self, state: &State, entry: &Entry, of: &Booking, now: Nanos) -> AllRefusal {
        let Booking { due, reply, .. } = of;
        let refusal = match entry.full {
            true => {
                let at = state.room_at(&entry.asked.costs).min(*due);
                Refusal::QueueFull { retry_after: at.saturating_since(now) }.into()
            }
            false => self.set.refusal(reply, entry.asked.longest),
        };
        match entry.asked.with_left {
            true => refusal.with_left(self.set.state_of(reply, Duration::ZERO, state.booked.requests)),
            false => refusal,
        }
    }
}

impl State {
    /// Returns whether a request that is granted at once stands behind others of equal costs: the
    /// store lost their bookings, or has permits that were given back.
    fn is_behind(&self, entry: &Entry, reply: &Reply) -> bool {
        let asked = &entry.asked;
        let latest = || self.classes.get(&reply.permits)?.latest(asked.priority);
        reply.answer == Answer::Done && asked.longest > Duration::ZERO && !entry.full && latest().is_some()
    }

    /// Makes a request wait for its booking at the store, or for another booking of equal costs.
    fn book(&mut self, deferred: &mut Deferred, booking: Booking, now: Nanos) {
        let Booking { due, number, ref reply } = booking;
        let Some(Entry { asked, .. }) = self.entries.get(&number) else { return };
        let (costs, priority, class) = (asked.costs.clone(), asked.priority, reply.permits.clone());
        let Some(victims) = self.make_room(&costs, priority) else {
            // When the request comes again at the time of the booking that it gives back, that
            // booking is gone.
            let at = Some(self.room_at(&costs)).filter(|at| *at < Nanos::MAX).unwrap_or(due);
            let refusal = Refusal::QueueFull { retry_after: at.saturating_since(now) };
            self.answer(deferred, number, Outcome::Refused(refusal.into()));
            return self.pass_on(deferred, booking, now);
        };
        // A booking whose time has passed belongs to a request whose task did not check. The new
        // request would take that booking by its priority, and no window in between would count the
        // grant.
        self.serve_class(deferred, &class, now);
        self.booked.add(bounds::sum(&costs));
        deferred.has_booked = true;
        let earlier = self.earlier_booking(&class, reply.due, now);
        let requests = self.classes.entry(class.clone()).or_default();
        let mut turn = Turn::new(priority, due, number);
        if let Some(entry) = self.entries.get_mut(&number) {
            // An earlier booking goes to the requests that came before.
            turn.due = requests.latest(priority).unwrap_or(due).min(entry.last()).max(due);
            entry.stage = Stage::Booked { class: class.clone(), turn };
            // The task of the request sets the timer.
            deferred.wake(entry);
        }
        let moved_up = requests.add(turn, booking);
        if let Some(earlier) = earlier {
            requests.add_booking(earlier);
        }
        for turn in moved_up {
            if let Some(Entry { stage: Stage::Booked { turn: before, .. }, .. }) =
                self.entries.get_mut(&turn.number)
            {
                *before = turn;
            }
        }
        self.displace(deferred, victims, now);
        self.serve_class(deferred, &class, now);
    }
}
