//! The requests of one limiter that wait: for the reply of a call, and for their instants.
//!
//! # Calls
//!
//! A request leaves at once while no call is in flight. Requests that come during a call stand in
//! line, by priority and then by arrival. When the reply is there, up to 64 of them leave together,
//! as one call that decides them in their order; of several limits as many requests as make 64
//! decisions. Two things let the line leave earlier: so many requests in line, so that the line of
//! a busy limiter is never longer; and a store so far away that waiting for two replies may take
//! longer than the deadline of a call.
//!
//! A call that fails is the answer of all requests in line: they came while it was in flight, and
//! their own call may only end later.
//!
//! # States
//!
//! | state | meaning | leaves it by | a request dropped in it |
//! |---|---|---|---|
//! | `InLine` | not sent | a call that takes it along | leaves no trace |
//! | `Sent` | in a call | the reply | the reply finds no entry: its instant goes to the next of its size |
//! | `Booked` | has a turn among the booked requests of its size | its instant; a higher priority in a full line | gives its instant to the next of its size |
//! | `Answered` | granted, refused, or not decided by the store | the task that takes the answer | gives a grant not older than 5 ms to the next of its size, else back to the store |
//!
//! A closed line answers all of its requests, and takes in no other.
//!
//! # Instants
//!
//! Booked requests of equal costs are a [`Class`]: its n-th request in turn has its n-th instant. A
//! request that leaves gives up its turn, and not its instant. So the requests behind it move up by
//! one, and the last instant is the one that no request waits for. It goes back to the store, once,
//! with the next call. Until that leaves, a newly booked request may take it.
//!
//! No request is later than the instant that the store booked for it, unless a request of higher
//! priority goes before it: turns are in the order of these instants, and for each turn that is
//! added, an instant as early is added as well. A request that moved up stays before a later one
//! whose instant is not earlier.
//!
//! # Which task serves
//!
//! Each waiting task has a timer of its own, for its instant. The first request of a class looks at
//! the first instant. A task that looks serves all requests of its class that are due, and wakes
//! the new first one if that has to look earlier than its timer rings. So a task that is never
//! polled again delays no request beyond the instant that the store booked for that request.
//!
//! Calls need no task: a reply is read, and the next call leaves, on the thread of the store.
//!
//! # Ordering
//!
//! One mutex guards all of this. Its sections are short and have no foreign code: wakers are cloned
//! before, called and dropped after. A call is given to the thread of the store within the section
//! that took its requests out of the line, and that thread sends calls in the order in which it got
//! them. While it has none, the call is sent within the section. So no two calls change places, and
//! an instant goes back before a later request asks for it.

mod bounds;
mod class;
mod ticket;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tidegate::{AllRefusal, Nanos, QueueBounds, Refusal};

use crate::script::{Answer, GivenBack, Operation, Reply, Wanted};
use crate::set::{Costs, Set, Undecided};
use crate::store::Unsent;
use class::{Class, Instant, Turn};
pub(crate) use ticket::Ticket;

/// How often one call decides: so many requests of one limit, or fewer of several. A server works
/// for a fifth of a millisecond for as many.
const MOST_DECISIONS: usize = 64;

/// So many requests are served or ended while the lock is held. The next request that is due is
/// woken, and serves as many.
const MOST_STEPS: usize = 256;

/// So many bookings that are not the last one are kept by the store for others.
const MOST_FREE: usize = 16;

/// A grant that its task did not take goes to the next request for so long.
const CATCH_UP: Nanos = Nanos::new(5_000_000);

/// The line of a limiter.
#[derive(Debug, Default)]
pub(crate) struct Line(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<u64, Entry>,
    /// The number of the next entry.
    next: u64,
    /// The requests that were not sent, by priority.
    in_line: BTreeSet<(Reverse<i8>, u64)>,
    /// The instants that no request waits for, by the store's time: the next call gives them back.
    to_give_back: BTreeMap<(i64, u64), Instant>,
    /// The permits of grants that no task took: their instants and their costs.
    to_refund: Vec<(i64, Costs)>,
    /// How many calls are in flight.
    calls: usize,
    /// The booked requests, by their permits of each member.
    classes: BTreeMap<Vec<u64>, Class>,
    /// How many requests are booked, and for how many permits in all.
    waiting: usize,
    permits: u64,
    bounds: QueueBounds,
    closed: bool,
}

/// What leaves for the store.
enum Step {
    /// A call that gives instants back, and then decides requests.
    Call(Vec<Instant>, Vec<u64>),
    /// Permits of a grant at this instant go back.
    Refund(i64, Costs),
}

/// What a request asks for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) costs: Costs,
    pub(crate) longest: Duration,
    pub(crate) shadow: bool,
    pub(crate) priority: i8,
    /// Whether it may be dropped from a full line.
    pub(crate) droppable: bool,
    /// Whether the answer tells the state of the limits.
    pub(crate) with_left: bool,
}

#[derive(Debug)]
struct Entry {
    asked: Asked,
    joined: Nanos,
    /// How long it stood in line before it was sent.
    in_line: Duration,
    /// It may not wait, since the line is full.
    full: bool,
    stage: Stage,
    waker: Option<Waker>,
    /// When its task looks at its instant.
    looks_at: Nanos,
}

#[derive(Debug)]
enum Stage {
    InLine,
    Sent,
    Booked { class: Vec<u64>, turn: Turn },
    Answered(Outcome),
}

/// How a request ends.
#[derive(Debug)]
pub(crate) enum Outcome<G = Granted> {
    Granted(G),
    Refused(AllRefusal),
    Undecided(Undecided),
}

/// The permits of a request, at an instant that has come.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) reply: Reply,
    pub(crate) waited: Duration,
    due: Nanos,
}

/// Work that is left until the lock is given back.
#[derive(Default)]
struct After {
    wakers: Vec<Waker>,
    unsent: Vec<Unsent>,
}

impl After {
    fn wake(&mut self, entry: &mut Entry) {
        self.wakers.extend(entry.waker.take());
    }
}

impl Drop for After {
    fn drop(&mut self) {
        self.unsent.clear();
        for waker in self.wakers.drain(..) {
            // The panic of a foreign waker must not keep others from being woken.
            _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

impl Set {
    /// Looks at the line, and sends what has to leave.
    fn visit<T>(self: &Arc<Set>, look: impl FnOnce(&mut State, &mut After, Nanos) -> T) -> T {
        let mut after = After::default();
        let now = self.now();
        let most = (MOST_DECISIONS / self.members.len().max(1)).max(1);
        let mut state = self.line.lock();
        let answer = look(&mut state, &mut after, now);
        for step in state.next_steps(self.store.is_far(), most, now) {
            match step {
                Step::Call(instants, numbers) => self.call(&mut state, &mut after, instants, numbers, now),
                Step::Refund(due, costs) => {
                    after.unsent.extend(self.tell_locked(Operation::Refund { due }, &costs, &[]));
                }
            }
        }
        drop(state);
        answer
    }

    /// Sends a call that gives these instants back, and decides these requests.
    fn call(
        self: &Arc<Set>,
        state: &mut State,
        after: &mut After,
        instants: Vec<Instant>,
        numbers: Vec<u64>,
        now: Nanos,
    ) {
        let given_back = instants.into_iter().map(|Instant { reply, .. }| GivenBack {
            due: reply.due,
            permits: reply.permits,
            before: reply.before,
        });
        let given_back: Vec<GivenBack> = given_back.collect();
        if let Some(leases) = self.leases.as_ref().filter(|_| !given_back.is_empty()) {
            leases.forget();
        }
        let mut oldest = Duration::ZERO;
        let bounds = (state.waiting, state.permits, state.bounds);
        // Leases and observers are told what each grant left.
        let tells = self.leases.is_some() || !self.observers.is_empty();
        let wanted = |number: &u64| {
            let entry = state.entries.get_mut(number)?;
            entry.stage = Stage::Sent;
            entry.in_line = now.saturating_since(entry.joined).as_duration();
            oldest = oldest.max(entry.in_line);
            let Asked { costs, longest, shadow, with_left, .. } = &entry.asked;
            entry.full = *longest > Duration::ZERO && bounds::refuse(bounds, costs);
            let longest = match *longest {
                _ if entry.full || *shadow => Duration::ZERO,
                Duration::MAX => Duration::MAX,
                longest => longest.saturating_sub(entry.in_line),
            };
            Some(Wanted { longest, shadow: *shadow, tells: tells || *with_left, costs: costs.clone() })
        };
        let requests: Vec<Wanted> = numbers.iter().filter_map(wanted).collect();
        let set = self.clone();
        let replied = move |replies| set.replied(&numbers, replies);
        after.unsent.extend(self.reserve(&given_back, &requests, oldest, replied));
    }

    /// On the thread of the store: the reply of a call.
    fn replied(self: &Arc<Set>, numbers: &[u64], replies: Result<Vec<Reply>, Undecided>) {
        if let (Some(leases), Ok(replies)) = (&self.leases, &replies) {
            let now = self.now();
            replies.iter().for_each(|reply| leases.told(now, reply));
        }
        self.visit(|state, after, now| {
            state.calls -= 1;
            match replies {
                Ok(replies) => {
                    for (number, reply) in numbers.iter().zip(replies) {
                        self.decided(state, after, *number, reply, now);
                    }
                }
                Err(undecided) => {
                    let in_line = std::mem::take(&mut state.in_line);
                    let in_line = in_line.into_iter().map(|(_, number)| number);
                    for number in numbers.iter().copied().chain(in_line) {
                        state.answer(after, number, Outcome::Undecided(undecided));
                    }
                }
            }
        });
    }

    /// What the store decided about one request.
    fn decided(&self, state: &mut State, after: &mut After, number: u64, reply: Reply, now: Nanos) {
        let due = now.saturating_add(Nanos::from_duration(reply.wait));
        let is_there = |entry: &&mut Entry| matches!(entry.stage, Stage::Sent);
        let Some(entry) = state.entries.get_mut(&number).filter(is_there) else {
            // The request was dropped, or the line was closed.
            if reply.answer == Answer::Done {
                self.pass_on(state, after, Instant { due, number, reply }, now);
            }
            return;
        };
        if reply.answer == Answer::Refused {
            let with_left = entry.asked.with_left;
            let refusal = match entry.full {
                true => {
                    let costs = entry.asked.costs.clone();
                    let at = state.room_at(&costs).min(due);
                    Refusal::QueueFull { retry_after: at.saturating_since(now) }.into()
                }
                false => self.refusal(&reply, entry.asked.longest),
            };
            let refusal = match with_left {
                true => refusal.with_left(self.state_of(&reply, Duration::ZERO, state.waiting)),
                false => refusal,
            };
            return state.answer(after, number, Outcome::Refused(refusal));
        }
        if reply.answer == Answer::Shadow || reply.wait == Duration::ZERO {
            let granted = Granted { reply, waited: Duration::ZERO, due };
            return state.answer(after, number, Outcome::Granted(granted));
        }
        let priority = entry.asked.priority;
        let costs = entry.asked.costs.clone();
        let class = reply.permits.clone();
        let make_room = state.make_room(&costs, priority);
        let Some(victims) = make_room else {
            let at = state.room_at(&costs).min(due);
            let refusal = Refusal::QueueFull { retry_after: at.saturating_since(now) };
            state.answer(after, number, Outcome::Refused(refusal.into()));
            return self.pass_on(state, after, Instant { due, number, reply }, now);
        };
        let turn = Turn::new(priority, due, number);
        state.waiting += 1;
        state.permits = state.permits.saturating_add(bounds::sum(&costs));
        if let Some(entry) = state.entries.get_mut(&number) {
            entry.stage = Stage::Booked { class: class.clone(), turn };
            // Its task sets its timer.
            after.wake(entry);
        }
        let instant = state.earlier_instant(&class, reply.due);
        let requests = state.classes.entry(class.clone()).or_default();
        let moved_up = requests.add(turn, reply);
        if let Some(instant) = instant {
            requests.add_instant(instant);
        }
        for turn in moved_up {
            if let Some(Entry { stage: Stage::Booked { turn: before, .. }, .. }) =
                state.entries.get_mut(&turn.number)
            {
                *before = turn;
            }
        }
        for victim in victims {
            self.unbook(state, after, victim, now);
            state.answer(after, victim, Outcome::Refused(Refusal::Displaced.into()));
        }
        self.settle(state, after, &class, now);
    }

    /// Gives an instant that its request does not take to the next request of its size, or back.
    fn pass_on(&self, state: &mut State, after: &mut After, instant: Instant, now: Nanos) {
        let class = instant.reply.permits.clone();
        let is_fresh = now.saturating_since(instant.due) <= CATCH_UP;
        match state.classes.get_mut(&class) {
            Some(requests) if is_fresh => {
                requests.add_instant(instant);
                self.settle(state, after, &class, now);
            }
            _ => self.give_back(state, instant, now),
        }
    }

    /// Takes a booked request out of its class.
    fn unbook(&self, state: &mut State, after: &mut After, number: u64, now: Nanos) {
        let Some(entry) = state.entries.get_mut(&number) else { return };
        let Stage::Booked { class, turn } = &entry.stage else { return };
        let (class, turn) = (class.clone(), *turn);
        state.waiting -= 1;
        state.permits = state.permits.saturating_sub(bounds::sum(&entry.asked.costs));
        if let Some(requests) = state.classes.get_mut(&class) {
            requests.remove(turn);
        }
        self.settle(state, after, &class, now);
    }

    /// Serves the requests of a class that are due, gives back what no request waits for, and wakes
    /// the first request if it has to look earlier than it will.
    fn settle(&self, state: &mut State, after: &mut After, class: &[u64], now: Nanos) {
        for _ in 0..MOST_STEPS {
            let served = state.classes.get_mut(class).and_then(|class| class.serve(now));
            let Some((number, instant)) = served else { break };
            state.grant(after, number, instant);
        }
        let Some(requests) = state.classes.get_mut(class) else { return };
        let surplus: Vec<Instant> = std::iter::from_fn(|| requests.surplus()).collect();
        for instant in surplus {
            self.give_back(state, instant, now);
        }
        let Some(requests) = state.classes.get_mut(class) else { return };
        if requests.is_empty() {
            state.classes.remove(class);
        } else if let Some((first, due)) = requests.first()
            && let Some(entry) = state.entries.get_mut(&first)
            && due < entry.looks_at
        {
            after.wake(entry);
        }
    }

    /// Gives an instant back to the store, once: if the message is lost, permits are lost, and none
    /// is granted twice. The last one booked goes first, as the store undoes them.
    fn give_back(&self, state: &mut State, instant: Instant, now: Nanos) {
        let Instant { due, reply, .. } = &instant;
        if reply.wait == Duration::ZERO {
            let costs: Costs = reply.permits.iter().map(|n| (*n, *n)).collect();
            state.to_refund.push((reply.due, costs));
        } else if *due > now {
            state.to_give_back.insert((instant.reply.due, instant.number), instant);
        }
    }

    /// Bounds the requests that wait.
    pub(crate) fn set_bounds(self: &Arc<Set>, bounds: QueueBounds) {
        self.visit(|state, _, _| state.bounds = bounds);
    }

    /// How many requests have an instant that has not come, or wait for this process to decide.
    pub(crate) fn waiting(&self) -> usize {
        self.line.lock().waiting.saturating_add(self.waiting.load(Ordering::Relaxed))
    }

    /// Refuses all requests, now and from now on. Returns whether the line was open.
    pub(crate) fn close(self: &Arc<Set>) -> bool {
        self.closed.send_replace(true);
        let was_open = self.visit(|state, _, _| {
            state.in_line.clear();
            !std::mem::replace(&mut state.closed, true)
        });
        let mut next = Some(0);
        while let Some(first) = next {
            next = self.visit(|state, after, now| {
                let numbers: Vec<u64> =
                    state.entries.range(first..).map(|(number, _)| *number).take(MOST_STEPS).collect();
                for number in &numbers {
                    self.unbook(state, after, *number, now);
                    state.answer(after, *number, Outcome::Refused(Refusal::Closed.into()));
                }
                numbers.last().map(|last| last + 1)
            });
        }
        was_open
    }
}

impl Line {
    pub(crate) fn new(bounds: QueueBounds) -> Line {
        Line(Mutex::new(State { bounds, ..State::default() }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What leaves now.
    ///
    /// The store takes back the last booking, and then the one before it, if nothing else was
    /// written. So instants wait until no call is in flight that may book behind them. Then the
    /// latest leaves first, refunds leave after all instants, and requests after the refunds.
    /// Requests that leave during a call take the earliest instants along, for themselves.
    fn next_steps(&mut self, is_far: bool, most: usize, now: Nanos) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(first) = self.to_give_back.first_entry()
            && first.get().due <= now
        {
            first.remove();
        }
        if self.calls == 0 {
            let refunds = std::mem::take(&mut self.to_refund);
            while self.to_give_back.len() > if refunds.is_empty() { most } else { 0 } {
                let last = std::iter::from_fn(|| self.to_give_back.pop_last());
                steps.push(Step::Call(last.take(most).map(|(_, instant)| instant).collect(), Vec::new()));
            }
            steps.extend(refunds.into_iter().map(|(due, costs)| Step::Refund(due, costs)));
            let last = std::iter::from_fn(|| self.to_give_back.pop_last());
            let instants: Vec<Instant> = last.map(|(_, instant)| instant).collect();
            if !(instants.is_empty() && self.in_line.is_empty()) {
                steps.push(Step::Call(instants, self.leave(most)));
            }
        }
        while !self.in_line.is_empty() && (is_far || self.in_line.len() >= most) {
            let refunds = self.to_refund.drain(..);
            steps.extend(refunds.map(|(due, costs)| Step::Refund(due, costs)));
            let numbers = self.leave(most);
            let first = std::iter::from_fn(|| self.to_give_back.pop_first());
            let instants = first.take(numbers.len().min(MOST_FREE)).map(|(_, instant)| instant).collect();
            steps.push(Step::Call(instants, numbers));
        }
        self.calls += steps.iter().filter(|step| matches!(step, Step::Call(..))).count();
        steps
    }

    /// Takes the first requests out of the line.
    fn leave(&mut self, most: usize) -> Vec<u64> {
        let first = std::iter::from_fn(|| self.in_line.pop_first());
        first.take(most).map(|(_, number)| number).collect()
    }

    /// An instant that no request waits for, that has not left, and that is earlier than this one.
    fn earlier_instant(&mut self, class: &[u64], due: i64) -> Option<Instant> {
        let mut earlier = self.to_give_back.range(..(due, 0)).take(MOST_STEPS);
        let (key, _) = earlier.find(|(_, instant)| instant.reply.permits == class)?;
        let key = *key;
        self.to_give_back.remove(&key)
    }

    /// Ends a request, if it has not ended.
    fn answer(&mut self, after: &mut After, number: u64, outcome: Outcome) {
        if let Some(entry) = self.entries.get_mut(&number)
            && !matches!(entry.stage, Stage::Answered(_))
        {
            entry.stage = Stage::Answered(outcome);
            after.wake(entry);
        }
    }

    /// Grants a booked request.
    fn grant(&mut self, after: &mut After, number: u64, Instant { due, number: of, reply }: Instant) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        self.waiting -= 1;
        self.permits = self.permits.saturating_sub(bounds::sum(&entry.asked.costs));
        let waited = match of == number {
            true => entry.in_line.saturating_add(reply.wait),
            false => due.saturating_since(entry.joined).as_duration(),
        };
        self.answer(after, number, Outcome::Granted(Granted { reply, waited, due }));
    }
}
