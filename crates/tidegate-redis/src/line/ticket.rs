//! A position in the queue, as a future.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tidegate::clock::Sleep as _;
use tidegate::{DefaultClock, Nanos, Timer};

use crate::line::{Booking, Entry, Granted, Line, Outcome, QueuedRequest, Stage, bounds};
use crate::lock::lock;
use crate::script::Answer;
use crate::store::WhileAway;

type Sleep = <DefaultClock as Timer>::Sleep;

/// A request in the queue. The future is ready when the request has ended. If it is dropped before,
/// the request leaves the queue.
pub(crate) struct Ticket {
    line: Arc<Line>,
    number: u64,
    /// The result was taken.
    is_over: bool,
    sleep: Option<(Nanos, Pin<Box<Sleep>>)>,
}

/// The result of a check.
enum TicketState {
    Ended(Outcome),
    /// The request is booked, and its task checks again at this time.
    Booked(Nanos),
    /// The request is not decided, and its task checks again at this time, if not before.
    Undecided(Nanos),
}

impl Ticket {
    /// Joins the queue. A request that was in the queue before keeps the number of its arrival.
    pub(crate) fn new(line: &Arc<Line>, asked: QueuedRequest, number: Option<u64>) -> Ticket {
        let number =
            line.visit(|state, deferred, now| state.join(deferred, Entry::new(asked, now), number, now));
        Ticket { line: line.clone(), number, is_over: false, sleep: None }
    }

    /// Returns the number of the arrival of the request.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Checks the request. If `keep_granted` is set, the permits of a granted request stay in the
    /// queue.
    fn check(&mut self, waker: &Waker, keep_granted: bool) -> TicketState {
        let waker = waker.clone();
        let (number, store) = (self.number, &self.line.set.store);
        // The call before this request may have no deadline, or be late.
        let is_slow = store.while_away() == WhileAway::Wait || store.is_crowded();
        let timeout = store.timeout();
        let (seen, _old) = self.line.visit(|state, deferred, now| {
            state.serve_booked(deferred, number, now);
            state.end_wait(number, is_slow, timeout, now);
            state.end_behind_pause(deferred, number, now);
            let Some(entry) = state.entries.get_mut(&number) else {
                return (TicketState::Undecided(Nanos::MAX), None);
            };
            match &entry.stage {
                Stage::Answered(Outcome::Granted(_)) if keep_granted => (TicketState::Booked(now), None),
                Stage::Answered(_) => {
                    let ended = state.entries.remove(&number);
                    let Some(Entry { stage: Stage::Answered(outcome), waker, .. }) = ended else {
                        return (TicketState::Undecided(Nanos::MAX), None);
                    };
                    (TicketState::Ended(outcome), waker)
                }
                Stage::Booked { class, turn } => {
                    let next_check =
                        state.classes.get(class).map_or(now, |class| class.next_check(*turn, now));
                    entry.next_check = next_check.min(entry.latest(*turn).saturating_add(Nanos::new(1)));
                    (TicketState::Booked(entry.next_check), entry.waker.replace(waker))
                }
                Stage::Paused(_) => {
                    let ends = entry.last().saturating_add(Nanos::new(1));
                    (TicketState::Booked(ends), entry.waker.replace(waker))
                }
                Stage::InLine | Stage::Sent => {
                    let ends = entry.ends_undecided(state.in_line.held_till().is_some(), is_slow, timeout);
                    (TicketState::Undecided(ends), entry.waker.replace(waker))
                }
            }
        });
        self.is_over = matches!(seen, TicketState::Ended(_));
        seen
    }

    /// Waits until the request has a booking, which it keeps, or is refused.
    pub(crate) fn poll_decided(&mut self, context: &mut Context<'_>) -> Poll<Outcome<()>> {
        loop {
            return Poll::Ready(match self.check(context.waker(), true) {
                TicketState::Ended(Outcome::Refused(refusal)) => Outcome::Refused(refusal),
                TicketState::Ended(Outcome::Undecided(undecided)) => Outcome::Undecided(undecided),
                TicketState::Ended(Outcome::Granted(_)) | TicketState::Booked(_) => Outcome::Granted(()),
                TicketState::Undecided(next_check) => {
                    ready!(self.poll_until(context, next_check));
                    continue;
                }
            });
        }
    }

    /// Waits until a time. [`Nanos::MAX`] never comes.
    fn poll_until(&mut self, context: &mut Context<'_>, at: Nanos) -> Poll<()> {
        if at == Nanos::MAX {
            return Poll::Pending;
        }
        let sleep = match self.sleep.take() {
            // The runtime of an earlier poll may have ended.
            Some((of, sleep)) if of == at && !sleep.is_gone() => sleep,
            _ => Box::pin(self.line.set.clock.sleep_until(at)),
        };
        let (_, sleep) = self.sleep.insert((at, sleep));
        ready!(sleep.as_mut().poll(context));
        self.sleep = None;
        Poll::Ready(())
    }

    /// Returns in what time a request is due that is booked, or waits behind a pause.
    pub(crate) fn due_in(&self) -> Duration {
        let now = self.line.set.now();
        let state = lock(&self.line.state);
        let due = state.entries.get(&self.number).and_then(|entry| match &entry.stage {
            Stage::Booked { class, turn } => state.classes.get(class).map(|class| class.due(*turn)),
            Stage::Paused(predicted) => Some(predicted.due.max(state.paused.end_for(&entry.asked.costs))),
            _ => None,
        });
        due.map_or(Duration::ZERO, |due| due.saturating_since(now).as_duration())
    }

    /// Takes the permits of a booked or granted request, even if it is not due yet. A request that
    /// is not decided leaves the queue.
    pub(crate) fn take(mut self) -> Option<Granted> {
        let number = self.number;
        self.is_over = true;
        self.line.visit(|state, deferred, now| {
            // Before it leaves a pause: a request behind a pause is in no call.
            state.in_line.drop_undecided(number, state.entries.get(&number)?);
            if let Some(predicted) = state.leave_pause(number) {
                state.give_back(predicted);
            }
            let entry = state.entries.remove(&number)?;
            deferred.wakers.extend(entry.waker);
            match entry.stage {
                Stage::Answered(Outcome::Granted(granted)) => Some(granted),
                Stage::Booked { class, turn } => {
                    let Booking { reply, due, .. } = state.classes.get_mut(&class)?.take(turn)?;
                    state.booked.remove(bounds::sum(&entry.asked.costs));
                    state.serve_class(deferred, &class, now);
                    Some(Granted { reply, waited: Duration::ZERO, due })
                }
                _ => None,
            }
        })
    }
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            let this = &mut *self;
            let next_check = match this.check(context.waker(), false) {
                TicketState::Ended(outcome) => return Poll::Ready(outcome),
                TicketState::Undecided(next_check) | TicketState::Booked(next_check) => next_check,
            };
            ready!(this.poll_until(context, next_check));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let number = self.number;
        let _gone = self.line.visit(|state, deferred, now| {
            let mut entry = state.drop_request(deferred, number, now)?;
            if let Stage::Answered(Outcome::Granted(granted)) =
                std::mem::replace(&mut entry.stage, Stage::Sent)
                && granted.reply.answer == Answer::Done
            {
                let Granted { reply, due, .. } = granted;
                state.pass_on(deferred, Booking { due, number, reply }, now);
            }
            Some(entry)
        });
    }
}
