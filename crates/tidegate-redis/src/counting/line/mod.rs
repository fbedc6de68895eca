//! The requests of one process, in their queue, and the permits that the process holds.
//!
//! A request that does not wait for permits is decided within the timeout of the store, counted
//! from its arrival. A request that queues for that long, or whose call does not end in time, is
//! decided as if the store were away. If its call grants it afterwards, the permits go to the next
//! request, or back.

mod serve;

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::Value;
use tidegate::{AllRefusal, DefaultClock, Left, Nanos, Refusal};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::counting::call::{Call, CallReport, Operation};
use crate::counting::line::serve::Serving;
use crate::held::HeldOfKey;
use crate::known_pause::PauseOfKeys;
use crate::lock::lock;
use crate::observe::Observers;
use crate::pending::PendingMessage;
use crate::script::Script;
use crate::store::{Away, Deadline, Store};

/// The time for which a process keeps its position in the store's queue without asking: longer than
/// its call and its interval take.
const PATIENCE: Duration = Duration::from_secs(1);

/// The decision about a request: its permits, and what they left.
pub(super) type Answer = Result<(Held, Left), AllRefusal>;

/// The position of a request: by priority, then by arrival.
pub(super) type Position = (Reverse<i8>, u64);

/// What the handles of one limit share in this process.
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) script: Arc<Script>,
    pub(super) observers: Arc<Observers>,
    pub(super) key: String,
    pub(super) process: [u8; 8],
    pub(super) span: Duration,
    pub(super) limit: AtomicU32,
    /// The permits in use of all limits of this key in this process.
    pub(super) in_process: Arc<HeldOfKey>,
    pub(super) line: Mutex<Line>,
    pub(super) known_pause: PauseOfKeys,
    /// Notified when there is a reason for a call.
    pub(super) changed: Notify,
    pub(super) clock: DefaultClock,
}

#[derive(Default)]
pub(super) struct Line {
    /// The permits in use by this limit, as the store counts them.
    held: u64,
    waiters: BTreeMap<Position, Waiter>,
    arrivals: u64,
    /// Requests that arrived before this number have waited for permits in use: the store has
    /// reported that their permits, or those of a request before them, are not free.
    reported_before: u64,
    /// How many permits the store last reported to be free: none while other processes waited.
    free: u64,
    /// The number of requests that wait in the store's queue. The requests behind them are asked
    /// for when these are served, so that processes take turns.
    announced: usize,
    /// The deadlines of the requests in the queue that do not stay in it, by arrival. Such requests
    /// are added only while `announced` is 0. Decided requests may still have an entry.
    deadlines: VecDeque<(Instant, Position)>,
    is_served: bool,
    /// Whether the requests that wait may wait only for the end of a pause.
    is_paused: bool,
    /// When the store first reported that requests wait in its queue.
    waits_since: Option<Instant>,
    is_closed: bool,
    calls: u64,
    /// The time until which the store may count permits or a position of this process.
    known_until: Option<Instant>,
    /// Set while the next call has something to report to the store.
    message: Option<PendingMessage>,
    /// Whether permits were dropped, or were spare, since the last call.
    gives_back: bool,
}

struct Waiter {
    permits: u32,
    /// Whether the request waits for permits, or only for the decision.
    waits_for_permits: bool,
    /// The end of its maximum wait.
    ends: Option<Instant>,
    answer: oneshot::Sender<Answer>,
}

/// The decisions that a critical section leaves to be sent without its lock.
type Answers = Vec<(oneshot::Sender<Answer>, Answer)>;

/// Sends decisions. If a request is gone, its permits are dropped, which gives them back. A panic
/// in a user's waker must not keep other requests from their decisions.
fn send(answers: Answers) {
    for (sender, answer) in answers {
        _ = catch_unwind(AssertUnwindSafe(|| _ = sender.send(answer)));
    }
}

/// Permits in use. Dropping them gives them back.
pub(crate) struct Held {
    shared: Arc<Shared>,
    permits: u32,
    /// Granted without the store.
    pub(super) is_degraded: bool,
}

impl Shared {
    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    pub(super) fn limit(&self) -> u32 {
        // Relaxed: an independent number.
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn waiting(&self) -> usize {
        self.line().waiters.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.line().is_closed
    }

    /// Adds a request to the queue. It leaves the queue when it is decided, or by `leave`.
    pub(super) fn join(
        self: &Arc<Shared>,
        permits: u32,
        waits_for_permits: bool,
        ends: Option<Instant>,
        priority: i8,
    ) -> Result<(Position, oneshot::Receiver<Answer>), Refusal> {
        let mut line = self.line();
        // Read under the lock: a change of the limit refuses the larger requests of the queue.
        let limit = self.limit();
        match permits {
            _ if line.is_closed => return Err(Refusal::Closed),
            0 => return Err(Refusal::ZeroPermits),
            // A single permit may become available when the limit is raised.
            n if n > limit.max(1) => return Err(Refusal::ExceedsLimit { requested: n, limit }),
            _ => {}
        }
        self.note_pause_end(&mut line);
        // Other requests already wait for permits in use.
        if line.announced > 0 && !waits_for_permits {
            return Err(self.not_free());
        }
        let position = (Reverse(priority), line.arrivals);
        line.arrivals += 1;
        let (answer, receiver) = oneshot::channel();
        line.waiters.insert(position, Waiter { permits, waits_for_permits, ends, answer });
        if line.announced > 0 {
            line.reported_before = line.arrivals;
        }
        if !waits_for_permits {
            line.deadlines.push_back((Instant::now() + self.store.timeout(), position));
        }
        let is_served = std::mem::replace(&mut line.is_served, true);
        let is_news = line.announced == 0;
        drop(line);
        if !is_served {
            self.store.spawn(Box::pin(Serving::new(self.clone()).serve()));
        } else if is_news {
            self.changed.notify_one();
        }
        Ok((position, receiver))
    }

    /// Notes that the pause that requests wait for has ended: attempts need not be refused. Until
    /// the store has replied, what it reported of the requests that wait still holds.
    fn note_pause_end(&self, line: &mut Line) {
        if line.is_paused && self.known_pause.rest().is_zero() {
            (line.announced, line.is_paused) = (0, false);
        }
    }

    /// Returns the refusal of a request whose permits are not free. In a pause, the pause is the
    /// reason.
    pub(super) fn not_free(&self) -> Refusal {
        not_free(self.limit(), self.known_pause.rest())
    }

    /// Returns how many permits were free at the last report; none while requests wait.
    pub(super) fn free(&self) -> u64 {
        let line = self.line();
        if line.announced > 0 { 0 } else { line.free }
    }

    /// Lets a request wait only for the decision. Returns whether the decision is still to come: it
    /// is not if the permits are known to be in use, from the store or because requests wait for
    /// them.
    pub(super) fn stop_waiting(&self, position: Position) -> bool {
        let mut line = self.line();
        if line.announced > 0 || position.1 < line.reported_before {
            return false;
        }
        let Some(waiter) = line.waiters.get_mut(&position) else { return false };
        if !std::mem::replace(&mut waiter.waits_for_permits, false) {
            return true;
        }
        line.deadlines.push_back((Instant::now() + self.store.timeout(), position));
        true
    }

    /// Removes a request that is not decided yet.
    pub(super) fn leave(&self, position: Position) {
        let mut line = self.line();
        let left = line.waiters.remove(&position);
        // Its position in the store goes to the next request of this process, if there is one.
        let is_news = line.waiters.len() < line.announced;
        line.announced = line.announced.min(line.waiters.len());
        drop(line);
        if is_news {
            self.changed.notify_one();
        }
        drop(left);
    }

    pub(super) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
        let mut line = self.line();
        let (mut answers, mut too_large) = (Vec::new(), Vec::new());
        for (position, waiter) in &line.waiters {
            if waiter.permits > limit.max(1) {
                too_large.push((*position, Refusal::ExceedsLimit { requested: waiter.permits, limit }));
            }
        }
        for (position, refusal) in too_large {
            line.refuse(position, refusal, &mut answers);
        }
        drop(line);
        send(answers);
        self.changed.notify_one();
    }

    /// Refuses all requests from now on. Returns whether the queue was open.
    pub(super) fn close(&self) -> bool {
        let mut line = self.line();
        let was_closed = std::mem::replace(&mut line.is_closed, true);
        let waiters = std::mem::take(&mut line.waiters);
        drop(line);
        send(waiters.into_values().map(|waiter| (waiter.answer, Err(Refusal::Closed.into()))).collect());
        self.changed.notify_one();
        !was_closed
    }

    /// A call of the script.
    pub(super) fn call<'a>(&'a self, operation: Operation, line: &Line, sizes: &'a [i64]) -> Call<'a> {
        Call {
            operation,
            key: &self.key,
            process: self.process,
            now: None,
            limit: self.limit(),
            span: self.span,
            number: line.calls,
            held: line.held,
            patience: PATIENCE,
            sizes,
        }
    }

    pub(super) async fn ask(&self, operation: Operation) -> Result<CallReport, Away> {
        let (sender, receiver) = oneshot::channel();
        let deadline = Deadline::of(self.store.timeout());
        self.send(operation, deadline, move |outcome| _ = sender.send(outcome));
        self.read(receiver.await.unwrap_or(Err(Away::ENDED)))
    }

    /// Like `ask`, without waiting for the reply. The observers are notified if the call ended a
    /// pause.
    pub(super) fn send_detached(&self, operation: Operation) {
        let (store, observers) = (self.store.clone(), self.observers.clone());
        self.send(operation, Deadline::NONE, move |outcome| match outcome.as_ref().map(CallReport::read) {
            Ok(Some(report)) if operation == Operation::Resume && report.granted == [true] => {
                observers.resumed();
            }
            Ok(_) => {}
            Err(away) => store.note_lost(0, *away),
        });
    }

    fn send(
        &self,
        operation: Operation,
        deadline: Deadline,
        callback: impl FnOnce(Result<Value, Away>) + Send + 'static,
    ) {
        let cmd = self.call(operation, &Line::default(), &[]).command(&self.script);
        let pause = match operation {
            Operation::Pause(span) => Some(self.known_pause.begin(span)),
            Operation::Resume => Some(self.known_pause.end()),
            Operation::Call | Operation::Status => None,
        };
        drop(self.store.send(cmd, self.script.clone(), deadline, move |outcome| {
            drop(pause);
            callback(outcome);
        }));
    }

    fn read(&self, outcome: Result<Value, Away>) -> Result<CallReport, Away> {
        CallReport::read(&outcome?).ok_or_else(|| self.store.note_invalid_reply())
    }
}

impl Line {
    /// The time by which the next request must be decided.
    fn first_deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, position)) = self.deadlines.front() {
            if self.waiters.contains_key(position) {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// Takes the requests that do not stay in the queue. The caller then decides them.
    fn take_not_waiting(&mut self) -> Vec<Position> {
        self.deadlines.drain(..).map(|(_, position)| position).collect()
    }

    fn refuse(&mut self, position: Position, refusal: impl Into<AllRefusal>, answers: &mut Answers) {
        if let Some(Waiter { answer, .. }) = self.waiters.remove(&position) {
            answers.push((answer, Err(refusal.into())));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut line = self.shared.line();
        line.held = line.held.saturating_sub(self.permits.into());
        self.shared.in_process.subtract(self.permits.into());
        let store = &self.shared.store;
        match line.is_served {
            true => {
                line.gives_back = true;
                line.message.get_or_insert_with(|| store.begin_message());
            }
            // The store has ended.
            false => store.note_lost(0, Away::ENDED),
        }
        drop(line);
        self.shared.changed.notify_one();
    }
}

/// Returns the refusal of a request whose permits are not free, in a pause that lasts for `paused`.
fn not_free(limit: u32, paused: Duration) -> Refusal {
    match paused {
        Duration::ZERO => Refusal::InUse { limit },
        rest => Refusal::Paused { retry_after: Nanos::from_duration(rest) },
    }
}

pub(super) fn left(limit: u32, in_use: u64) -> Left {
    Left::new(limit.into(), u64::from(limit).saturating_sub(in_use))
}
