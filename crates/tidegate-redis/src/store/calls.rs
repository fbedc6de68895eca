//! The calls to a store: their deadline, their breaker, and the task that makes them.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, Value};
use tidegate::{Events, Nanos, StoreEvent};
use tokio::sync::watch;
use tokio::task::coop;
use tokio::time::Instant;

use super::counts::Counters;
use crate::breaker::{Admission, Breaker, Probe};
use crate::clients::{self, Clients};
use crate::connection::{Begun, Departed, Failure, Sent, Server, Servers};
use crate::error::StoreError;
use crate::jitter::jittered;
use crate::lock::lock;
use crate::observe::report;
use crate::pending::{Pending, Telling};
use crate::queue::{self, Queue};
use crate::script::Script;

/// So many calls may wait for their answers beside those that are kept; more are answered as if the
/// store were away.
const MOST_CALLS: usize = 16_384;

/// The task of the store has so many calls done in a few milliseconds.
const CROWD: usize = 256;

/// What the thread and the handles share.
pub(super) struct Shared {
    pub(super) servers: Servers,
    pub(super) timeout: Duration,
    /// How many calls have no answer, and how many of them are kept.
    in_flight: AtomicUsize,
    kept: AtomicUsize,
    /// How long the last call took, in nanoseconds; the end of time before the first one.
    took: AtomicU64,
    /// Whether the server of the last call is far away. One that is silent may be.
    is_far: AtomicBool,
    pub(super) counters: Counters,
    pub(super) trouble: Mutex<Option<StoreError>>,
    pub(super) clients: Clients,
    pub(super) events: Option<Arc<dyn Events>>,
    /// When the store answered last, or was opened.
    pub(super) answered: Mutex<Instant>,
    /// Told when a server answers of which the last call had failed.
    pub(super) back: watch::Sender<()>,
    /// How often it was told.
    pub(super) backs: AtomicU64,
    pub(super) pending: Arc<Pending>,
}

/// Work for the thread.
pub(super) enum Work {
    Call(Call),
    Task(Task),
}

/// It ends with the store, if not before.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A call for the thread.
pub(super) struct Call {
    place: InFlight,
    deadline: Deadline,
    by_hash: Arc<Cmd>,
    script: Arc<Script>,
    /// It was sent already.
    begun: Option<Begun>,
    /// When it came, by the clock of the system. Time may be paused for the thread that sent it.
    came: std::time::Instant,
    answer: Owed,
}

pub(super) type Answer = Box<dyn FnOnce(Result<Value, Away>) + Send>;

/// Within which time a call has its answer.
///
/// A server that answers no call for the timeout of the store is away, and the call ends. While it
/// answers others, a call waits for its answer until its deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// If the call does not wait behind others to leave for so long.
    pub(crate) to_answer: Duration,
    /// If it does. Then it has the timeout of the store for its answer, from when it leaves.
    pub(crate) at_most: Duration,
    /// The call is made, however many others wait.
    pub(crate) is_kept: bool,
    /// While calls wait to leave, others go before this one.
    pub(crate) gives_way: bool,
}

impl Deadline {
    /// The deadline of a message that no caller waits for.
    pub(crate) const NONE: Deadline =
        Deadline { to_answer: Duration::MAX, at_most: Duration::MAX, is_kept: false, gives_way: true };

    /// The deadline of a call that is made in any case, for what would be lost else.
    pub(crate) const KEPT: Deadline = Deadline { is_kept: true, ..Deadline::NONE };

    /// The deadline of a call whose caller waits for at most this long.
    pub(crate) fn of(time: Duration) -> Deadline {
        Deadline { to_answer: time, at_most: time, is_kept: false, gives_way: false }
    }

    /// The deadline of one call in place of two.
    pub(crate) fn and(self, other: Deadline) -> Deadline {
        Deadline {
            to_answer: self.to_answer.min(other.to_answer),
            at_most: self.at_most.min(other.at_most),
            is_kept: self.is_kept || other.is_kept,
            gives_way: self.gives_way && other.gives_way,
        }
    }
}

/// The answer of a call. Dropped without one, it tells that the store is away.
struct Owed {
    answer: Option<Answer>,
    shared: Arc<Shared>,
    /// The call may have been carried out.
    is_sent: bool,
    /// It ends after the answer.
    _telling: Telling,
}

impl Owed {
    fn answer(mut self, outcome: Result<Value, Away>) {
        self.tell(|_| outcome);
    }

    fn tell(&mut self, outcome: impl FnOnce(&Owed) -> Result<Value, Away>) {
        if let Some(answer) = self.answer.take() {
            let outcome = outcome(self);
            // The answer may wake a task. The panic of a foreign waker must not end the task that
            // makes all calls.
            _ = catch_unwind(AssertUnwindSafe(|| answer(outcome)));
        }
    }
}

impl Drop for Owed {
    /// The runtime that makes the calls has ended.
    fn drop(&mut self) {
        self.tell(|owed| Err(owed.shared.ended(owed.is_sent)));
    }
}

/// A call that is not made. It has its answer when this is dropped, which the caller does outside
/// of its locks.
#[must_use = "it answers when it is dropped"]
pub(crate) struct Unsent {
    answer: Option<Owed>,
    /// Too many calls are in flight.
    is_busy: bool,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(owed) = self.answer.take_if(|_| self.is_busy) {
            let skipped = owed.shared.skip(Duration::ZERO);
            owed.answer(Err(skipped));
        }
    }
}

/// Why the store told nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Away {
    /// The store may be asked again after this time.
    For(Duration),
    /// The requests waited too long for the call, which was not made. The store may be well.
    Late,
    /// The store is not as it must be, and that is no outage.
    Misconfigured,
}

impl Away {
    /// The thread of a store cannot wait for a store.
    pub(crate) const HERE: Away = Away::For(Duration::MAX);

    /// How long the store is still left alone.
    pub(crate) fn rest(self) -> Duration {
        match self {
            Away::For(rest) => rest,
            Away::Late => Duration::ZERO,
            Away::Misconfigured => Duration::MAX,
        }
    }

    /// When a client that is refused is told to come again. A client that is told no time at all
    /// comes at once.
    pub(crate) fn retry_after(self) -> Nanos {
        match self.rest() {
            Duration::MAX => Nanos::MAX,
            rest => Nanos::from_duration(rest.max(Duration::from_millis(1))),
        }
    }
}

/// The work of a store, until all handles are dropped and all calls are answered.
///
/// One task makes all calls, so that those of one limiter leave in order on a runtime of several
/// threads as well. A call that is alone is sent before it gets here, and taken with its reply: no
/// timer is set for it. If it has no reply after a quarter of the deadline, it gets its timer then.
pub(super) async fn serve(calls: queue::Work<Work>, shared: Arc<Shared>, key_of_clients: String) {
    // The time is that of the runtime's clock, which may be paused.
    let began = Instant::now();
    let of_clients = shared.clone();
    let counting = tokio::spawn(async move { of_clients.count_clients(began, &key_of_clients).await });
    let mut running = FuturesUnordered::new();
    // When the runtime ends, this end of the queue is dropped first: an answer that makes a call is
    // refused.
    let mut calls = calls;
    let mut is_closed = false;
    // Calls that were sent are taken with their reply, and looked for at such intervals.
    let soon = shared.timeout / 4;
    let (mut look, mut is_watching) = (pin!(tokio::time::sleep(soon)), false);
    poll_fn(|context| {
        loop {
            let mut is_spent = false;
            while !is_closed
                && !is_spent
                && let Poll::Ready(work) = calls.poll_next(context)
            {
                is_spent = pin!(coop::consume_budget()).poll(context).is_pending();
                match work {
                    Some(Work::Call(call)) => {
                        if call.begun.is_some() && !is_watching {
                            is_watching = calls.look();
                            look.set(tokio::time::sleep(soon));
                        }
                        let made = shared.answer_at_once(context, call);
                        running.extend(made.map(|call| shared.clone().make(began, call)));
                    }
                    Some(Work::Task(task)) => _ = tokio::spawn(task),
                    None => is_closed = true,
                }
            }
            // A call that ran out of a budget would stand behind all others at its next poll.
            match pin!(coop::unconstrained(running.next())).poll(context) {
                // The answer of this call may have made another call. Calls that are not made take
                // no time, and leave turns to the timers of those in flight.
                Poll::Ready(Some(()))
                    if !is_spent && pin!(coop::consume_budget()).poll(context).is_ready() =>
                {
                    continue;
                }
                Poll::Ready(Some(())) => return Poll::Pending,
                Poll::Ready(None) if is_closed => return Poll::Ready(()),
                _ if is_spent => return Poll::Pending,
                _ => {}
            }
            if !is_watching || look.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            is_watching = calls.look();
            look.set(tokio::time::sleep(soon));
        }
    })
    .await;
    counting.abort();
}

impl Shared {
    pub(super) fn new(servers: Servers, timeout: Duration, events: Option<Arc<dyn Events>>) -> Shared {
        Shared {
            servers,
            timeout,
            in_flight: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            took: AtomicU64::new(u64::MAX),
            is_far: AtomicBool::new(false),
            counters: Counters::default(),
            trouble: Mutex::default(),
            clients: Clients::default(),
            events,
            answered: Mutex::new(Instant::now()),
            back: watch::Sender::new(()),
            backs: AtomicU64::new(0),
            pending: Arc::default(),
        }
    }

    /// Sends a call from this thread, or has the task of the store make it. The caller may hold a
    /// lock.
    pub(super) fn send(
        self: &Arc<Shared>,
        calls: &Queue<Work>,
        by_hash: Cmd,
        script: Arc<Script>,
        deadline: Deadline,
        answer: Answer,
    ) -> Option<Unsent> {
        let (shared, telling) = (self.clone(), Telling::new(&self.pending));
        let mut answer = Owed { answer: Some(answer), shared, is_sent: false, _telling: telling };
        let (place, before) = InFlight::new(self, deadline.is_kept);
        if !deadline.is_kept && before.saturating_sub(self.kept.load(Ordering::Relaxed)) >= MOST_CALLS {
            return Some(Unsent { answer: Some(answer), is_busy: true });
        }
        let by_hash = Arc::new(by_hash);
        // Only the sole call in flight is written on this thread. A call that comes while another
        // one is in flight goes to the thread of the store, which writes all calls of its queue
        // together, behind the one in flight. A call goes there as well if less than half of the
        // timeout is left for its answer: this thread may find the reply only after the deadline.
        let is_alone = before == 0 && deadline.to_answer >= self.timeout / 2;
        let begun = is_alone.then(|| self.servers.begin(&by_hash, &calls.waker())).flatten();
        let is_sent = begun.is_some();
        let came = begun.as_ref().map_or_else(std::time::Instant::now, |begun| begun.at);
        answer.is_sent = is_sent;
        let call = Work::Call(Call { place, deadline, by_hash, script, begun, came, answer });
        match if is_sent { calls.add_quietly(call) } else { calls.add(call) } {
            Err(Work::Call(call)) => Some(Unsent { answer: Some(call.answer), is_busy: false }),
            _ => None,
        }
    }

    /// Asks how many processes there are, again and again, while this process asks for permits.
    async fn count_clients(&self, began: Instant, key: &str) {
        let (clients, script) = (&self.clients, clients::script());
        let call = async |cmd| self.carry_out(began, Deadline::of(self.timeout), &cmd, &script, None).await;
        loop {
            clients.begins.notified().await;
            let mut beat = clients::FIRST_BEAT;
            loop {
                match call(clients.question(&script, key, None)).await {
                    Ok(answer) => clients.answered(&answer, Instant::now()),
                    Err(_) => clients.missed(),
                }
                if tokio::time::timeout(jittered(beat), clients.leaves.notified()).await.is_ok() {
                    break;
                }
                beat = (2 * beat).min(clients::BEAT);
            }
            let telling = clients.begin_to_leave();
            // Without an answer the process counts for a while longer.
            _ = call(clients.farewell(&script, key, None)).await;
            drop(telling);
        }
    }

    /// Answers a call that was sent, if its reply is there. Else returns the call.
    fn answer_at_once(&self, context: &mut Context<'_>, mut call: Call) -> Option<Call> {
        let Some(begun) = &mut call.begun else { return Some(call) };
        let Some(value) = begun.reply(context) else { return Some(call) };
        self.replied(&begun.server, Admission::Ask, Instant::from_std(begun.at));
        let Call { place, answer, .. } = call;
        drop(place);
        answer.answer(Ok(value));
        None
    }

    /// Makes a call, and answers it.
    async fn make(self: Arc<Shared>, began: Instant, call: Call) {
        let Call { place, mut deadline, by_hash, script, begun, came, mut answer } = call;
        if begun.is_none() && !self.servers.is_model() {
            let passed = came.elapsed();
            for time in [&mut deadline.to_answer, &mut deadline.at_most] {
                *time = if *time == Duration::MAX { *time } else { time.saturating_sub(passed) };
            }
        }
        answer.is_sent = true;
        let outcome = self.carry_out(began, deadline, &by_hash, &script, begun).await;
        drop(place);
        answer.answer(outcome);
    }

    /// A call took so long.
    fn took(&self, time: Duration) {
        // Relaxed: a hint by itself.
        self.took.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Whether a call takes so long that a second one may not end within the deadline, though no
    /// calls wait to leave.
    pub(super) fn is_far(&self) -> bool {
        self.is_far.load(Ordering::Relaxed) && !self.servers.are_congested()
    }

    /// Waits until a call may leave. Returns the deadline of its answer, too.
    async fn depart<'a>(
        &self,
        server: &'a Server,
        deadline: Deadline,
    ) -> Result<(Departed<'a>, Duration), Away> {
        let departing = server.congestion.depart(deadline.gives_way);
        let Deadline { to_answer, at_most, .. } = deadline;
        if to_answer == Duration::MAX {
            return Ok((departing.await, to_answer));
        }
        let takes = match server.congestion.is_full() {
            true => server.congestion.longest(self.timeout),
            false => self.takes(),
        };
        let began = Instant::now();
        let left = at_most.checked_sub(takes).ok_or(Away::Late)?;
        let departed = tokio::time::timeout(left, departing).await.map_err(|_| Away::Late)?;
        let waited = began.elapsed();
        if to_answer == at_most || waited.saturating_add(takes.max(self.timeout / 2)) <= to_answer {
            return Ok((departed, to_answer));
        }
        // The calls before this one may have had no answer.
        match lock(&server.breaker).is_failing() {
            true => Err(Away::For(Duration::ZERO)),
            false => Ok((departed, waited.saturating_add(self.timeout).min(at_most))),
        }
    }

    /// Waits until a call may leave, and the breaker admits it. Returns the deadline of its answer,
    /// too.
    async fn admit<'a>(
        &self,
        server: &'a Server,
        began: Instant,
        deadline: Deadline,
    ) -> Result<(Departed<'a>, Duration, Admission), Away> {
        // A server that rests is not waited for.
        let rest = lock(&server.breaker).rest(began.elapsed());
        if rest > Duration::ZERO {
            return Err(self.skip(rest));
        }
        let departed = self.depart(server, deadline).await;
        let (departed, to_answer) = departed.inspect_err(|_| _ = self.skip(Duration::ZERO))?;
        let admission = lock(&server.breaker).admit(began.elapsed(), self.timeout);
        match admission {
            Admission::Rest(rest) => Err(self.skip(rest)),
            admission => Ok((departed, to_answer, admission)),
        }
    }

    /// How much time the answer to a call must have: 5/4 of what the last call took, and at least a
    /// quarter of the timeout; half of it is always enough.
    fn takes(&self) -> Duration {
        let took = Duration::from_nanos(self.took.load(Ordering::Relaxed)).min(self.timeout);
        (took + took / 4).clamp(self.timeout / 4, self.timeout / 2)
    }

    async fn carry_out(
        &self,
        began: Instant,
        deadline: Deadline,
        by_hash: &Cmd,
        script: &Script,
        begun: Option<Begun>,
    ) -> Result<Value, Away> {
        let came = begun.as_ref().map_or_else(Instant::now, |begun| Instant::from_std(begun.at));
        let server =
            begun.as_ref().map_or_else(|| self.servers.server_of(by_hash), |begun| begun.server.clone());
        let (departed, to_answer, admission) = match begun {
            Some(_) => (None, deadline.to_answer, Admission::Ask),
            None => {
                let (departed, to_answer, admission) = self.admit(&server, began, deadline).await?;
                (Some(departed), to_answer, admission)
            }
        };
        let _probe = Probe::of(&server.breaker, admission);
        let asked = if begun.is_some() { came } else { Instant::now() };
        let (sent, mut answers) = (Sent::default(), server.answers());
        let mut call = pin!(self.servers.call(by_hash, script, begun, &sent));
        // A server of a cluster may lead the call to another one.
        let mut last = server.clone();
        let (outcome, before) = loop {
            let left = to_answer.saturating_sub(came.elapsed());
            let outcome = tokio::time::timeout(left.min(self.timeout), call.as_mut()).await;
            last = sent.server().unwrap_or(last);
            let before = std::mem::replace(&mut answers, last.answers());
            if outcome.is_ok() || answers == before || left <= self.timeout {
                break (outcome, before);
            }
        };
        // A server that answered others is not away, and the time of a call that waited in line may
        // have been too short to tell.
        let answered_others = answers != before && admission == Admission::Ask;
        let was_long =
            admission != Admission::Ask || to_answer.saturating_sub(asked - came) >= self.timeout / 2;
        let is_well = outcome.is_err() && (answered_others || !was_long);
        if outcome.is_err() {
            if answered_others {
                server.congestion.late(asked, self.timeout);
            } else if was_long {
                self.is_far.store(true, Ordering::Relaxed);
            }
        }
        drop(departed);
        let failure = match outcome {
            Ok(Ok(value)) => {
                self.replied(&server, admission, asked);
                return Ok(value);
            }
            Ok(Err(failure)) => failure,
            Err(_) if sent.give_up(was_long) => Failure::Unknown("did not answer in time".into()),
            Err(_) => last.not_connected_in_time(),
        };
        self.took(asked.elapsed());
        let admission = if Arc::ptr_eq(&last, &server) { admission } else { Admission::Ask };
        Err(self.failed(&last, admission, began, failure, is_well))
    }

    /// Counts and tells a failure, and returns when the store may be asked again. Beside other answers
    /// of a server that is well, a call without one says nothing of the server.
    fn failed(
        &self,
        server: &Server,
        admission: Admission,
        began: Instant,
        failure: Failure,
        is_well: bool,
    ) -> Away {
        let counters = &self.counters;
        let (counter, event, error, is_away) = match failure {
            Failure::NotRun(text) => (&counters.failed, StoreEvent::Failed, StoreError::away(text), true),
            Failure::Unknown(text) => (&counters.unknown, StoreEvent::Unknown, StoreError::away(text), true),
            Failure::Misconfigured(text) => {
                (&counters.misconfigured, StoreEvent::Misconfigured, StoreError::wrong(text), false)
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.tell(event);
        *lock(&self.trouble) = Some(error);
        if !is_away {
            // The store does answer.
            self.answers(&server.breaker, admission);
            return Away::Misconfigured;
        }
        if is_well {
            return Away::For(Duration::ZERO);
        }
        let now = began.elapsed();
        let (has_opened, rest) = {
            let mut breaker = lock(&server.breaker);
            (breaker.failed(admission, now), breaker.rest(now))
        };
        if has_opened {
            self.tell(StoreEvent::BreakerOpened);
        }
        Away::For(rest)
    }

    /// Whether so many calls have no answer that their task may be behind.
    pub(super) fn is_crowded(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) >= CROWD
    }

    /// Whether a call that is sent now may wait in this process for others to have their answers.
    pub(super) fn may_hold_up(&self) -> bool {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        self.servers.any_server(|server| server.congestion.window() <= in_flight)
    }

    /// A call that is not made: the store may be asked again after this time.
    fn skip(&self, rest: Duration) -> Away {
        self.counters.skipped.fetch_add(1, Ordering::Relaxed);
        self.tell(StoreEvent::Skipped);
        Away::For(rest)
    }

    /// A call that is not answered, since the runtime that makes calls has ended. Whether it was
    /// sent is not known.
    fn ended(&self, is_sent: bool) -> Away {
        *lock(&self.trouble) = Some(StoreError::away("ended with the runtime that asked it"));
        match is_sent {
            false => _ = self.skip(Duration::MAX),
            true => {
                self.counters.unknown.fetch_add(1, Ordering::Relaxed);
                self.tell(StoreEvent::Unknown);
            }
        }
        Away::For(Duration::MAX)
    }

    /// A call has its reply.
    fn replied(&self, server: &Server, admission: Admission, asked: Instant) {
        let now = Instant::now();
        let took = now - asked;
        self.took(took);
        // Relaxed: a hint by itself.
        self.is_far.store(server.congestion.replied(asked, took, self.timeout), Ordering::Relaxed);
        *lock(&self.trouble) = None;
        *lock(&self.answered) = now;
        self.counters.answered.fetch_add(1, Ordering::Relaxed);
        self.tell(StoreEvent::Answered(took));
        self.answers(&server.breaker, admission);
        if let Some(stand_in) = self.servers.found() {
            self.answers(&stand_in.breaker, Admission::Probe);
        }
    }

    /// A server answered a call.
    fn answers(&self, breaker: &Mutex<Breaker>, admission: Admission) {
        let (is_back, has_closed) = {
            let mut breaker = lock(breaker);
            let (was_failing, was_open) = (breaker.is_failing(), breaker.is_open());
            breaker.succeeded(admission);
            (was_failing && !breaker.is_failing(), was_open && !breaker.is_open())
        };
        if is_back {
            // Before the message: a receiver that misses the message sees the number.
            self.backs.fetch_add(1, Ordering::Release);
            self.back.send_replace(());
        }
        if has_closed {
            self.tell(StoreEvent::BreakerClosed);
        }
    }

    pub(super) fn tell(&self, event: StoreEvent) {
        report(self.events.as_ref(), event);
    }
}

/// A place among the calls that have no answer, and whether the call is kept.
struct InFlight(Arc<Shared>, bool);

impl InFlight {
    /// A place, and how many there were before.
    fn new(shared: &Arc<Shared>, is_kept: bool) -> (InFlight, usize) {
        shared.kept.fetch_add(is_kept.into(), Ordering::Relaxed);
        (InFlight(shared.clone(), is_kept), shared.in_flight.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.kept.fetch_sub(self.1.into(), Ordering::Relaxed);
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::connection::Address;
    use crate::key;
    use crate::store::Store;

    /// Makes a call for each that is not made.
    #[derive(Default)]
    struct Calls(OnceLock<tidegate::AnyLimiter>);

    impl Events for Calls {
        fn store(&self, event: &StoreEvent) {
            assert_eq!(*event, StoreEvent::Skipped);
            self.0.get().expect("a limiter").debit(1).expect("told");
        }
    }

    /// Messages that no request waits for are counted when they are sent, and not when the thread
    /// gets to them.
    #[test]
    fn calls_that_the_thread_does_not_get_to_are_bounded() {
        let address = Address::read("redis://127.0.0.1:1", None).expect("an address");
        let servers = Servers::at(address, key::of_test("tidegate"));
        let calls = Arc::new(Calls::default());
        let builder = Store::builder("redis://127.0.0.1:1").observed_by(calls.clone());
        let (store, _work) = builder.parts(servers).expect("a store");
        let limiter = store.limiter("all").limit("calls", "fixed_window 5/d");
        let limiter = tidegate::AnyLimiter::from(limiter.build().expect("a limiter"));
        assert!(calls.0.set(limiter.clone()).is_ok());
        for _ in 0..MOST_CALLS + 100 {
            limiter.debit(1).expect("told");
        }
        // The store skips each of the 100 calls, and the call that the observer makes for it.
        assert_eq!(store.counts().skipped, 2 * 100);
    }

    /// Where the servers of a cluster were found by an attempt that was slower than five calls, the
    /// store was away for ever, and was never told to be back.
    #[test]
    fn servers_of_a_cluster_that_are_found_end_the_outage_of_their_stand_in() {
        let address = Address::read("redis+cluster://127.0.0.1:1", None).expect("an address");
        let servers = Servers::at(address, key::of_test("tidegate"));
        let (store, _work) = Store::builder("redis+cluster://127.0.0.1:1").parts(servers).expect("a store");
        let shared = &store.0.shared;
        let by_hash = redis::cmd("PING");
        let stand_in = shared.servers.server_of(&by_hash);
        let now = Instant::now();
        for _ in 0..5 {
            let failure = Failure::NotRun("could not be connected to in time".into());
            shared.failed(&stand_in, Admission::Ask, now, failure, false);
        }
        assert!(store.is_away());
        shared.servers.find_all();
        let server = shared.servers.server_of(&by_hash);
        assert!(!Arc::ptr_eq(&server, &stand_in));
        shared.replied(&server, Admission::Ask, now);
        assert!(!store.is_away());
        assert_eq!(store.backs(), 1);
    }

    /// Calls of a process that had no processor left were late to be made, and had a moment for
    /// their answers. They opened the breaker of a server that was well.
    #[cfg(feature = "simulation")]
    #[test]
    fn calls_with_little_time_do_not_open_the_breaker() {
        use crate::connection::{Servers, Wire};
        use crate::model::{Model, Network, run};

        run(async {
            let model = Model::new(1, Network::steady(Duration::from_millis(1)));
            let servers = Servers::one(Wire::Model(model.link()));
            let (store, work) = Store::builder("redis://model").parts(servers).expect("a store");
            tokio::spawn(work);
            let (timeout, script) = (store.timeout(), Arc::new(clients::script()));
            let ask = |time| store.ask(redis::cmd("PING"), script.clone(), Deadline::of(time));
            _ = ask(timeout).await;
            model.stop(true);
            let little = timeout / 2 - Duration::from_millis(1);
            for answer in futures_util::future::join_all((0..10).map(|_| ask(little))).await {
                assert_eq!(answer, Err(Away::For(Duration::ZERO)));
            }
            assert!(!store.is_away());
            for _ in 0..5 {
                _ = ask(timeout).await;
            }
            assert!(store.is_away());
        });
    }
}
