//! Calls of a line: what leaves for the store, and what a reply does to the requests of its call.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate::Nanos;

use crate::line::class::Booking;
use crate::line::paused::Used;
use crate::line::{Deferred, Line, REST, State};
use crate::script::{GivenBack, Reply, ReserveRequest};
use crate::store::{Away, Deadline, WhileAway};

/// A call that has left.
struct CallInFlight {
    numbers: Vec<u64>,
    given_back: Vec<Booking>,
    sent_at: Nanos,
    /// How many messages that begin or end a pause had their outcome when the call left.
    pauses: u64,
    /// For each request of the call that stands behind others, the limits for whose pauses those
    /// others wait.
    behind: Vec<Used>,
    /// Whether it is one of `State::untimed`.
    is_untimed: bool,
}

impl Line {
    /// Sends a call that gives these bookings back, and then decides these requests. With neither,
    /// the call asks whether the store is back.
    pub(super) fn call(
        self: &Arc<Line>,
        state: &mut State,
        deferred: &mut Deferred,
        bookings: Vec<Booking>,
        numbers: Vec<u64>,
        now: Nanos,
    ) {
        let given_back: Vec<GivenBack<'_>> =
            bookings.iter().map(|booking| booking.reply.given_back()).collect();
        if !given_back.is_empty() {
            self.forget();
        }
        let timeout = self.set.store.timeout();
        let mut deadline = match given_back.is_empty() && numbers.is_empty() {
            true => Deadline::of(timeout),
            // Bookings that no request waits for may be given back at any time.
            false => Deadline { must_send: !given_back.is_empty(), ..Deadline::NONE },
        };
        let mut behind = Vec::new();
        let (booked, bounds) = (state.booked, state.bounds);
        // Leases and observers receive what each grant left, and requests behind a pause learn
        // whether it has ended.
        let wants_state = self.leases.is_some() || !self.set.observers.is_empty() || !state.paused.is_empty();
        let wanted = |number: &u64| {
            let entry = state.entries.get_mut(number)?;
            let before = match entry.asked.shadow {
                true => Vec::new(),
                false => state.paused.stand_behind(*number, &entry.asked.costs),
            };
            let is_full = booked.refuses(bounds, &entry.asked.costs);
            let mut wanted = entry.send(now, is_full, !before.is_empty());
            behind.extend(before);
            wanted.wants_state |= wants_state;
            deadline = entry.deadline(now, timeout).and(deadline);
            Some(wanted)
        };
        let requests: Vec<ReserveRequest> = numbers.iter().filter_map(wanted).collect();
        // Each request that waits for a store that is away has a timer.
        let store = &self.set.store;
        let is_late = deadline.reply_within > timeout || deadline.at_most > timeout && store.may_hold_up();
        let is_untimed = is_late && store.while_away() != WhileAway::Wait;
        if is_untimed {
            state.untimed += 1;
            state.set_timers(deferred, now);
        }
        let line = self.clone();
        let cmd = self.set.reserve(&given_back, &requests);
        let pauses = self.set.known_pause.messages();
        let call = CallInFlight { numbers, given_back: bookings, sent_at: now, pauses, behind, is_untimed };
        let replied = move |replies| line.replied(call, replies);
        deferred.unsent.extend(self.set.decide(cmd, requests.len(), deadline, replied));
    }

    /// Handles the reply of a call, on the store's thread.
    fn replied(self: &Arc<Line>, call: CallInFlight, replies: Result<Vec<Reply>, Away>) {
        let CallInFlight { numbers, given_back, sent_at, pauses, behind, is_untimed } = call;
        // Before the queue is held: it continues with the next recovery.
        let mut back = self.set.store.watch_recovery();
        let is_late = matches!(replies, Err(Away::Late));
        let failed = replies.as_ref().err().copied().filter(|_| !is_late);
        if let Some(away) = failed
            && !given_back.is_empty()
        {
            self.set.store.note_lost(given_back.len(), away);
        }
        if let (Some(leases), Ok(replies)) = (&self.leases, &replies) {
            let now = self.set.now();
            replies.iter().for_each(|reply| leases.ledger.note_report(now, reply));
        }
        let paused_for =
            replies.as_ref().ok().and_then(|replies| replies.iter().filter_map(known_pause).max());
        let rest = replies.as_ref().map_or_else(|undecided| undecided.rest().max(REST), |_| REST);
        let timeout = self.set.store.timeout();
        let (needs_timer, message) = self.visit(|state, deferred, now| {
            state.calls -= 1;
            let took = replies.as_ref().ok().map(|_| now.saturating_since(sent_at).as_duration());
            state.took(took, timeout);
            behind.iter().for_each(|used| state.paused.replied(used));
            state.untimed -= usize::from(is_untimed);
            let needs_timer = match replies {
                Ok(replies) => {
                    state.in_line.answered(state.next);
                    state.note_pauses(deferred, &replies, now);
                    for (number, reply) in numbers.iter().zip(replies) {
                        self.decided(state, deferred, *number, reply, now);
                    }
                    false
                }
                Err(undecided) => {
                    given_back.into_iter().filter(|_| is_late).for_each(|booking| state.give_back(booking));
                    let needs_timer = state.failed(deferred, &numbers, undecided, (rest, timeout), now);
                    // Another limiter of this process, or a message that nobody waited for, may
                    // have ended the pause.
                    if !is_late && self.set.known_pause.rest().is_zero() {
                        state.requeue_paused(deferred, now);
                    }
                    needs_timer
                }
            };
            (needs_timer, state.message.clone())
        });
        // A flush waits for what this queue has yet to give back, and not for ever. No lock is held.
        match (message, failed) {
            (Some(message), Some(away)) => message.failed(self.set.store.error_of(away)),
            (Some(message), None) if !is_late => message.replied(),
            _ => {}
        }
        if let Some(rest) = paused_for {
            self.set.known_pause.reported(pauses, rest);
        }
        if needs_timer {
            let mut held = ReleaseOnDrop { line: Arc::downgrade(self), is_back: false };
            self.set.store.spawn(Box::pin(async move {
                let comes_back = async { while back.changed().await.is_ok() && held.is_failing() {} };
                held.is_back = tokio::time::timeout(rest, comes_back).await.is_ok();
                drop(held);
            }));
        }
    }
}

/// The pause that a reply reports. A grant without the state of the limits says nothing about those
/// of which it took no permits.
fn known_pause(reply: &Reply) -> Option<Duration> {
    let is_known = !reply.limits.is_empty() || reply.permits.iter().all(|permits| *permits > 0);
    is_known.then(|| reply.paused_for())
}

/// Makes a held line continue when it is dropped: at its time, when the store is back, or when the
/// store ends. In the last case the next call fails, and ends the requests in the queue.
struct ReleaseOnDrop {
    line: Weak<Line>,
    /// Whether the store replied to another call meanwhile.
    is_back: bool,
}

impl ReleaseOnDrop {
    /// Returns whether the server of the line failed. The server of another limit may have come
    /// back.
    fn is_failing(&self) -> bool {
        self.line.upgrade().is_some_and(|line| line.set.is_failing())
    }
}

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        if let Some(line) = self.line.upgrade() {
            line.visit(|state, _, _| state.in_line.release(self.is_back));
        }
    }
}
