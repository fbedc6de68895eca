//! The requests of one limiter that wait: for the reply of a call, or until their bookings are due.
//!
//! # Calls
//!
//! A request leaves at once while no call is in flight. Requests that come during a call wait in
//! the queue, by priority and then by arrival. When the reply comes, up to 64 of them leave
//! together, as one call that decides them in their order. With several limits, as many requests
//! leave as make 64 decisions. Two conditions let requests leave earlier:
//!
//! - The queue has as many requests as one call takes. So the queue of a busy limiter is never
//!   longer, as long as the calls in flight, up to sixteen, have their replies soon.
//! - The store is so far away that waiting for two replies may take longer than the deadline of a
//!   call, unless calls to it wait already.
//!
//! The booking of a lease is a request in this queue that does not wait until the booking is due:
//! the request ends with the reply.
//!
//! A call that fails ends all requests in the queue: they came while it was in flight, and their
//! own call might end only later. A call that was too late to be made ends only its own requests,
//! and none that may wait for longer. Only requests that wait for a store that is away keep their
//! positions, including those of the call, and the queue is held ([`InLine`]).
//!
//! # States
//!
//! | state | meaning | leaves it by | a request dropped in it |
//! |---|---|---|---|
//! | `InLine` | not sent, or waiting to be sent again | a call that takes it along; in a held queue the end of its maximum wait | leaves no trace |
//! | `Sent` | in a call | the reply (from a pause: to `Paused`; from a pause that has ended: back to `InLine` behind the others); a call that is not made (back to `InLine` if the request may wait); a call that fails (back to `InLine` if the request waits for the store) | the reply finds no entry: its booking goes to the next request of its size |
//! | `Booked` | has a turn among the booked requests of its size | its due time; a newcomer that displaces it from a full queue | passes its booking to the next request of its size |
//! | `Paused` | waits behind a pause | the end of the pause, back to `InLine` | its predicted booking goes back to the store |
//! | `Answered` | granted, refused, or not decided by the store | the task that takes the result | passes a grant not older than 5 ms to the next request of its size, otherwise back to the store |
//!
//! A closed line ends all of its requests, and accepts no other.
//!
//! # Bookings
//!
//! Booked requests of equal costs form a [`Class`]: its n-th request in turn has its n-th booking.
//! A request that leaves gives up its turn, and not its booking. So the requests behind it move up
//! by one, and the last booking is left over. That booking goes back to the store, once, with the
//! next call. Until that call leaves, a newly booked request may take it.
//!
//! A newcomer may be granted at once, or be booked for an earlier time than requests that came
//! before it: from permits that another process gave back, or by a store that lost its bookings.
//! Then its turn is behind theirs, and they move up, but its turn is not later than the end of its
//! maximum wait. When a request of this queue was settled, the line itself asks for such permits
//! (`move_up`).
//!
//! No request is granted later than its turn, unless a request of higher priority goes before it:
//! each turn is added together with a booking that is due no later. A request that moved up stays
//! before a later request whose turn is not earlier.
//!
//! # Which task serves
//!
//! Each waiting task has its own timer, for the time at which its request is due. The task of the
//! first request of a class checks the first booking. A task that checks serves all requests of its
//! class that are due, and wakes the task of the new first request if that must check before its
//! timer fires. So a task that is never polled again delays no request beyond the time that the
//! store booked for that request.
//!
//! Requests that moved up, or that others went before, have timers for other times than their own.
//! Behind a first request that is never polled again, several would be served at once when one of
//! these timers fires. So once a request of a class has left, or has gone before others, the
//! store's thread also checks at each first due time of that class.
//!
//! Calls need no task: the store's thread reads a reply and sends the next call.
//!
//! # Ordering
//!
//! One mutex guards all of this. Its critical sections are short and run no user code: wakers are
//! cloned before, and called and dropped after. A call is handed to the store's thread within the
//! section that took its requests out of the queue. While that thread has no calls, the call is
//! sent within the section. Otherwise the thread sends calls in the order in which it received
//! them, except that calls of other limiters go before calls that give way. While a call of a
//! limiter gives way, later calls of this limiter give way as well. So no two calls of a line
//! change their order, and a booking goes back before a later request asks for it.

mod bounds;
mod call;
mod class;
mod decided;
mod entry;
mod in_line;
mod move_up;
mod paused;
mod returning;
mod state;
mod ticket;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;
use std::time::Duration;

use futures_util::future::{Either, select};
use tidegate::{AllRequest, AllStatus, DefaultClock, Nanos, QueueBounds, Refusal, Request, Timer};
use tokio::sync::oneshot;

use crate::lease::{BookingQueue, Leases, ReplySender};
use crate::lock::lock;
use crate::pending::PendingMessage;
use crate::script::{GivenBack, Operation, Reply};
use crate::set::{Costs, Fallback, Prepared, Set};
use crate::share;
use crate::store::{Away, Unsent};
use bounds::Load;
use class::{Booking, Class};
use entry::{Entry, Stage};
pub(crate) use entry::{Granted, Outcome, QueuedRequest};
use in_line::InLine;
use paused::Paused;
use returning::Gathering;
pub(crate) use returning::Returning;
pub(crate) use ticket::Ticket;

/// The most decisions of one call: this many requests for one limit, or fewer for several limits.
/// They take a server a fifth of a millisecond.
const MAX_DECISIONS: usize = 64;

/// The most requests that are served, ended, or made to ask again while the lock is held. The task
/// of the next request that is due is woken, and serves this many more.
const MAX_STEPS: usize = 256;

/// How long a line rests at least after a call that failed, unless the store is back before.
const REST: Duration = Duration::from_millis(5);

/// The state that the handles of one limiter share.
pub(crate) struct Line {
    pub(crate) set: Arc<Set>,
    /// `None` if the store decides each request.
    pub(crate) leases: Option<Arc<Leases>>,
    state: Mutex<State>,
    /// How many requests wait without the store: for the share of this process, or for the end of a
    /// pause that this process knows of.
    pub(crate) waiting: AtomicUsize,
    /// Whether a keyed limiter that keeps this line requested it recently.
    pub(crate) is_used: Arc<AtomicBool>,
    on_drop: Option<OnDrop>,
}

/// A function that receives the tag of a line when the line is dropped.
type OnDrop = Box<dyn Fn(&str) + Send + Sync>;

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<u64, Entry>,
    /// The number of the next entry.
    next: u64,
    /// The requests that will be sent.
    in_line: InLine,
    /// The bookings that no request waits for, by the store's time: the next call gives them back.
    to_give_back: BTreeMap<(i64, u64), Booking>,
    /// The permits of grants that no task took: when they were due, and their costs.
    to_refund: Vec<(i64, Costs)>,
    /// Set while bookings or permits have yet to leave for the store: a flush waits for them.
    message: Option<Arc<PendingMessage>>,
    /// How many calls are in flight.
    calls: usize,
    /// How many of these calls have no deadline, have a deadline later than the timeout, or may
    /// leave only after the timeout. If requests wait for a store that is away, none of them count:
    /// then each request has a timer.
    untimed: usize,
    /// How many other calls may be in flight when another call leaves to shorten the queue.
    ahead: usize,
    /// The requests that return to the queue when the store is back.
    returning: Gathering,
    /// How many requests ask on behalf of waiting requests.
    for_waiting: usize,
    /// The booked requests, by their permits of each member.
    classes: BTreeMap<Vec<u64>, Class>,
    /// The requests that are booked, or wait behind a pause.
    booked: Load,
    /// The latest due time of a booked request that was granted, and how far ahead it was booked.
    served: (Nanos, Duration),
    /// The requests that wait behind a pause.
    paused: Paused,
    /// Whether the store's thread will ask for permits that other processes gave back.
    is_move_up_watched: bool,
    bounds: QueueBounds,
    closed: bool,
}

/// A message that leaves for the store.
enum Step {
    /// A call that gives bookings back, and then decides requests. With neither, it asks whether
    /// the store is back.
    Call(Vec<Booking>, Vec<u64>),
    /// Permits of a grant that was due at this time go back.
    Refund(i64, Costs),
}

/// A function on the state, which the store's thread runs at a time.
type Visit = fn(&mut State, &mut Deferred, Nanos);

/// Work to do after the lock is released.
#[derive(Default)]
struct Deferred {
    wakers: Vec<Waker>,
    unsent: Vec<Unsent>,
    /// The classes that the store's thread must check, and when, unless the receiver ends before.
    watches: Vec<(Vec<u64>, Nanos, oneshot::Receiver<()>)>,
    /// What the store's thread does later.
    visits: Vec<(Nanos, Visit)>,
    /// Whether more requests behind a pause that has ended must ask again.
    has_more: bool,
    /// Dropping a sender wakes the task that would have checked.
    unwatched: Vec<oneshot::Sender<()>>,
    /// The leases that were decided.
    leases: Vec<(ReplySender, Result<Reply, Away>)>,
    /// Whether a request was booked.
    has_booked: bool,
}

impl Deferred {
    fn wake(&mut self, entry: &mut Entry) {
        self.wakers.extend(entry.waker.take());
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.unsent.clear();
        self.leases.drain(..).for_each(|(booked, reply)| _ = booked.send(reply));
        for waker in self.wakers.drain(..) {
            // A panic of a user's waker must not keep other tasks from being woken.
            _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

impl Line {
    /// Creates the line for the limits of a tag.
    pub(crate) fn new(
        prepared: &Prepared,
        tag: String,
        bounds: QueueBounds,
        on_drop: Option<OnDrop>,
    ) -> Arc<Line> {
        let set = Arc::new(prepared.set(tag));
        Arc::new_cyclic(|line: &Weak<Line>| {
            let leases = prepared.is_leased.then(|| Leases::new(&set, line.clone())).flatten().map(Arc::new);
            leases.iter().for_each(|leases| leases.set_bounded(bounds != QueueBounds::UNBOUNDED));
            Line {
                leases,
                set,
                state: Mutex::new(State { bounds, ..State::default() }),
                waiting: AtomicUsize::new(0),
                is_used: Arc::default(),
                on_drop,
            }
        })
    }

    /// Runs a function on the state, and sends the calls that must leave.
    fn visit<T>(self: &Arc<Line>, run: impl FnOnce(&mut State, &mut Deferred, Nanos) -> T) -> T {
        let mut deferred = Deferred::default();
        let now = self.set.now();
        let most = self.most();
        let mut state = lock(&self.state);
        let answer = run(&mut state, &mut deferred, now);
        let gathers = state.gathers(&mut deferred, &self.set, now);
        let steps = if gathers { Vec::new() } else { state.next_steps(self.set.store.is_far(), most, now) };
        for step in steps {
            match step {
                Step::Call(bookings, numbers) => self.call(&mut state, &mut deferred, bookings, numbers, now),
                Step::Refund(due, costs) => {
                    deferred.unsent.extend(self.refund(due, &costs));
                }
            }
        }
        let over = state.note_pending(&self.set.store);
        drop(state);
        drop(over);
        deferred.watches.drain(..).for_each(|(class, at, ends)| self.watch(class, at, ends));
        deferred.visits.drain(..).for_each(|(at, run)| self.visit_at(at, run));
        if deferred.has_more {
            self.visit_at(now, State::requeue_ended);
        }
        if deferred.has_booked {
            self.leases.iter().for_each(|leases| leases.note_store_wait());
        }
        answer
    }

    /// Returns how many requests or bookings one call takes.
    fn most(&self) -> usize {
        (MAX_DECISIONS / self.set.members.len().max(1)).max(1)
    }

    /// Makes the store's thread check a class at a time, unless the receiver ends before.
    fn watch(self: &Arc<Line>, class: Vec<u64>, at: Nanos, ends: oneshot::Receiver<()>) {
        let (line, clock) = (Arc::downgrade(self), DefaultClock::clone(&self.set.clock));
        self.set.store.spawn(Box::pin(async move {
            let is_time = matches!(select(pin!(clock.sleep_until(at)), ends).await, Either::Left(_));
            if is_time && let Some(line) = line.upgrade() {
                line.visit(|state, deferred, now| state.watched(deferred, &class, at, now));
            }
        }));
    }

    /// Makes the store's thread run a function on the state at a time.
    fn visit_at(self: &Arc<Line>, at: Nanos, run: Visit) {
        let clock = DefaultClock::clone(&self.set.clock);
        let scheduled = ScheduledVisit(Arc::downgrade(self));
        self.set.store.spawn(Box::pin(async move {
            clock.sleep_until(at).await;
            scheduled.run(run);
        }));
    }

    /// Makes the requests behind a pause ask again: this process has ended the pause.
    pub(crate) fn resumed(self: &Arc<Line>) {
        self.visit(State::requeue_paused);
    }

    /// This process pauses the limits for `span`.
    pub(crate) fn prolong_pause(self: &Arc<Line>, span: Duration) {
        self.visit(|state, _, now| state.prolong_pause(span, now));
    }

    /// Returns how a request is decided without the store.
    pub(crate) fn fallback(&self, undecided: Away) -> Fallback {
        self.set.fallback(undecided, &|| self.booked())
    }

    fn booked(&self) -> share::LastBooking {
        let now = self.set.now();
        let of_leases = self.leases.as_ref().map(|leases| leases.ledger.last_booking(now));
        let (till, wait) = lock(&self.state).booked_till().max(of_leases.unwrap_or_default());
        if till == Nanos::ZERO {
            return share::LastBooking::NONE;
        }
        share::LastBooking {
            ahead: till.saturating_since(now).as_duration(),
            ago: now.saturating_since(till).as_duration(),
            wait,
        }
    }

    /// Bounds the requests that wait.
    pub(crate) fn set_bounds(self: &Arc<Line>, bounds: QueueBounds) {
        self.visit(|state, _, _| state.bounds = bounds);
        self.leases.iter().for_each(|leases| leases.set_bounded(bounds != QueueBounds::UNBOUNDED));
    }

    /// Returns the number of a request that comes now, and that may join the queue later.
    pub(crate) fn arrive(&self) -> u64 {
        let mut state = lock(&self.state);
        state.next += 1;
        state.next - 1
    }

    /// Returns whether requests in the queue wait for a store that is away.
    pub(crate) fn is_held(&self) -> bool {
        lock(&self.state).in_line.held_till().is_some()
    }

    /// Returns how many requests have a booking that is not due, or wait for this process to
    /// decide.
    pub(crate) fn waiting(self: &Arc<Line>) -> usize {
        let of_leases = self.leases.as_ref().map_or(0, |leases| leases.in_queue());
        let here = self.visit(|state, deferred, now| {
            state.serve_due(deferred, now);
            state.load().requests
        });
        here + self.waiting.load(Ordering::Relaxed) + of_leases
    }

    /// Returns the leases that may serve a request. The store decides a request that asks for the
    /// permits left, or that passes without permits.
    pub(crate) fn leases_for(&self, request: &AllRequest<'_>) -> Option<&Arc<Leases>> {
        let leases = self.leases.as_ref()?;
        let Request { exempt, wants_left, .. } = request.to_request();
        let by_store = exempt || wants_left || self.set.shadow.load(Ordering::Relaxed);
        (!by_store).then_some(leases)
    }

    /// Returns the state that a reply reports, plus the permits that this process has on lease.
    pub(crate) fn status_of(self: &Arc<Line>, reply: &Reply, passed: Duration) -> AllStatus {
        let mut state = self.set.state_of(reply, passed, self.waiting());
        for (i, (_, status)) in state.members.iter_mut().enumerate() {
            let usable = self.leases.as_ref().map_or(0, |leases| leases.usable(i));
            if usable > 0 {
                status.available = status.available.saturating_add(usable).min(status.limit);
                status.next_in = Duration::ZERO;
            }
        }
        state
    }

    /// Gives back permits of a request that was settled, whose grant was due at `due`. Waiting
    /// requests move up to them.
    pub(crate) fn settle(self: &Arc<Line>, due: i64, unused: &Costs) {
        drop(self.refund(due, unused));
        self.move_up(unused);
    }

    /// Lets waiting requests move up to permits that the store was given back.
    pub(crate) fn move_up(self: &Arc<Line>, back: &Costs) {
        self.forget();
        self.visit(|state, _, now| state.ask_for_settled(back, now));
    }

    /// Gives back permits of a grant that was due at `due`.
    fn refund(&self, due: i64, costs: &Costs) -> Option<Unsent> {
        self.forget();
        self.set.send_locked(Operation::Refund { due }, costs)
    }

    /// Notes that the limits may have more permits than the leases know of.
    fn forget(&self) {
        self.leases.iter().for_each(|leases| leases.ledger.forget());
    }

    /// Refuses all requests, now and later. Returns whether the line was open.
    pub(crate) fn close(self: &Arc<Line>) -> bool {
        if let Some(leases) = &self.leases {
            leases.close();
            leases.end();
        }
        self.set.closed.send_replace(true);
        let was_open = self.visit(|state, _, _| {
            state.in_line = InLine::default();
            !std::mem::replace(&mut state.closed, true)
        });
        let mut next = Some(0);
        while let Some(first) = next {
            next = self.visit(|state, deferred, now| {
                let numbers: Vec<u64> =
                    state.entries.range(first..).map(|(number, _)| *number).take(MAX_STEPS).collect();
                for number in &numbers {
                    if state.entries.get(number).is_some_and(Entry::is_lease_in_call) {
                        // The lease gets its reply later, and then gives its permits back.
                        continue;
                    }
                    state.unbook(deferred, *number, now);
                    state.answer(deferred, *number, Outcome::Refused(Refusal::Closed.into()));
                }
                numbers.last().map(|last| last + 1)
            });
        }
        was_open
    }
}

impl BookingQueue for Line {
    fn book(self: Arc<Line>, costs: Costs, longest: Duration, booked: ReplySender) {
        self.visit(|state, deferred, now| {
            let asked = QueuedRequest { costs, longest, came: now, ..QueuedRequest::default() };
            _ = state.join(deferred, Entry { lease: Some(booked), ..Entry::new(asked, now) }, None, now);
        });
    }

    fn has_waiting(&self) -> bool {
        lock(&self.state).booked.requests > 0
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let booked = self.booked();
        if booked.ago < Duration::MAX {
            self.set.store.note_booked(booked);
        }
        if let Some(on_drop) = &self.on_drop {
            on_drop(&self.set.tag);
        }
        // In a queue that is held, dropped waits leave bookings that no step will send any more.
        let (bookings, refunds) = lock(&self.state).take_back();
        for bookings in bookings.chunks(self.most()) {
            let bookings: Vec<GivenBack<'_>> =
                bookings.iter().map(|booking| booking.reply.given_back()).collect();
            self.set.give_back(&bookings);
        }
        for (due, costs) in refunds {
            self.set.send_detached(Operation::Refund { due }, &costs);
        }
    }
}

/// A check of the line at a later time. If the store ends before, no task checks the requests that
/// wait behind a pause: they ask again, and receive a failure.
struct ScheduledVisit(Weak<Line>);

impl ScheduledVisit {
    fn run(mut self, run: Visit) {
        if let Some(line) = std::mem::take(&mut self.0).upgrade() {
            line.visit(run);
        }
    }
}

impl Drop for ScheduledVisit {
    fn drop(&mut self) {
        if let Some(line) = self.0.upgrade() {
            let requeue_paused = |state: &mut State, deferred: &mut Deferred, now| {
                state.requeue_paused(deferred, now);
                std::mem::take(&mut deferred.has_more)
            };
            while line.visit(requeue_paused) {}
        }
    }
}
