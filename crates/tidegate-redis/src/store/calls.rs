//! The calls to a store: their deadlines, their breaker, and the task that makes them.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, Value};
use tidegate::{Events, StoreEvent};
use tokio::sync::watch;
use tokio::task::coop;
use tokio::time::Instant;

use super::{Away, Counts, Deadline, Store};
use crate::breaker::{Admission, Breaker};
use crate::clients::{self, Clients};
use crate::connection::{CallSlot, Failure, LastAttempt, NoReply, Sent, SentCall, Server, Servers};
use crate::error::StoreError;
use crate::jitter::jittered;
use crate::lock::lock;
use crate::observe::report;
use crate::pending::{Pending, PendingMessage};
use crate::queue::{self, Queue};
use crate::script::Script;

/// The most calls that may wait for their replies, besides those that must be sent. Further calls
/// end as if the store were away.
const MAX_CALLS: usize = 16_384;

/// The store's task completes this many calls in a few milliseconds.
const CROWD: usize = 256;

/// What the store's thread and the handles share.
pub(super) struct Shared {
    pub(super) servers: Servers,
    pub(super) timeout: Duration,
    /// The number of calls without an outcome.
    in_flight: AtomicUsize,
    /// How many of them [must be sent](Deadline::must_send).
    must_send: AtomicUsize,
    /// The duration of the last call in nanoseconds; `u64::MAX` before the first one.
    took: AtomicU64,
    /// Whether the server of the last call is far away. A silent server counts as far.
    is_far: AtomicBool,
    pub(super) counts: Mutex<Counts>,
    pub(super) trouble: Mutex<Option<StoreError>>,
    pub(super) clients: Clients,
    pub(super) events: Option<Arc<dyn Events>>,
    /// The number of times that a server replied after its last call had failed, or after a late
    /// call.
    pub(super) recoveries: watch::Sender<u64>,
    pub(super) pending: Arc<Pending>,
}

/// Work for the store's thread.
pub(super) enum Work {
    Call(Call),
    Task(Task),
}

/// A task. It ends with the store, if not before.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A call for the store's thread.
pub(super) struct Call {
    in_flight: InFlight,
    deadline: Deadline,
    by_hash: Arc<Cmd>,
    script: Arc<Script>,
    /// Set if the call was already sent.
    begun: Option<SentCall>,
    /// When the call came, by the system clock. Time may be paused on the thread that sent it.
    came: std::time::Instant,
    callback: PendingCallback,
}

pub(super) type Callback = Box<dyn FnOnce(Result<Value, Away>) + Send>;

/// The callback that a call owes its outcome. Dropped without an outcome, it reports that the store
/// is away.
struct PendingCallback {
    callback: Option<Callback>,
    shared: Arc<Shared>,
    /// Whether the call may have been carried out.
    is_sent: bool,
    /// Ends after the callback.
    _message: PendingMessage,
}

impl PendingCallback {
    fn run(mut self, outcome: Result<Value, Away>) {
        self.run_callback(|_| outcome);
    }

    fn run_callback(&mut self, outcome: impl FnOnce(&PendingCallback) -> Result<Value, Away>) {
        if let Some(callback) = self.callback.take() {
            let outcome = outcome(self);
            // The callback may wake a task. A panic in a user's waker must not end the task that
            // makes all calls.
            _ = catch_unwind(AssertUnwindSafe(|| callback(outcome)));
        }
    }
}

impl Drop for PendingCallback {
    /// The runtime that makes the calls has ended.
    fn drop(&mut self) {
        self.run_callback(|owed| Err(owed.shared.ended(owed.is_sent)));
    }
}

/// A call that is not made. Dropping this runs its callback, which the caller does outside its
/// locks.
#[must_use = "its callback runs when it is dropped"]
pub(crate) struct Unsent {
    callback: PendingCallback,
    /// Too many calls are in flight.
    is_busy: bool,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if self.is_busy {
            self.callback.run_callback(|owed| Err(owed.shared.skip(Duration::ZERO)));
        }
    }
}

/// Serves the calls of a store until all handles are dropped and all calls have outcomes.
///
/// One task makes all calls, so the calls of one limiter are sent in order on a runtime of several
/// threads as well. A call that is alone is sent before it gets here, and taken together with its
/// reply, so no timer is set for it. If it has no reply after a quarter of the timeout, its timer
/// is set then.
pub(super) async fn serve(calls: queue::Work<Work>, shared: Arc<Shared>, key_of_clients: String) {
    // The time is that of the runtime's clock, which may be paused.
    let of_clients = shared.clone();
    let counting = tokio::spawn(async move { of_clients.count_clients(&key_of_clients).await });
    let mut running = FuturesUnordered::new();
    // When the runtime ends, this end of the queue is dropped first: a callback that makes a call
    // is then refused.
    let mut calls = calls;
    let mut is_closed = false;
    // Calls that were already sent are taken with their replies, and checked at this interval.
    let soon = shared.timeout / 4;
    let (mut next_check, mut is_watching) = (pin!(tokio::time::sleep(soon)), false);
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
                            is_watching = calls.check_quiet();
                            next_check.set(tokio::time::sleep(soon));
                        }
                        if let Some(call) = shared.complete_at_once(context, call) {
                            running.push(shared.clone().make(call));
                        }
                    }
                    Some(Work::Task(task)) => _ = tokio::spawn(task),
                    None => is_closed = true,
                }
            }
            // A call that ran out of its budget would queue behind all others at its next poll.
            match pin!(coop::unconstrained(running.next())).poll(context) {
                // The callback of this call may have made another call. Calls that are not made
                // take no time: the budget makes this loop yield to the timers of the calls in
                // flight.
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
            if !is_watching || next_check.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            is_watching = calls.check_quiet();
            next_check.set(tokio::time::sleep(soon));
        }
    })
    .await;
    counting.abort();
}

impl Store {
    /// Returns whether a call takes so long that a second one may not end within the deadline, even
    /// though no calls wait to be sent.
    pub(crate) fn is_far(&self) -> bool {
        let Shared { is_far, servers, .. } = &*self.0.shared;
        is_far.load(Ordering::Relaxed) && !servers.any_server(|server| server.congestion.is_full())
    }

    /// Returns whether so many calls are without an outcome that their task may be behind.
    pub(crate) fn is_crowded(&self) -> bool {
        self.0.shared.in_flight.load(Ordering::Relaxed) >= CROWD
    }

    /// Returns whether a call sent now may wait in this process until others have their replies.
    pub(crate) fn may_hold_up(&self) -> bool {
        let in_flight = self.0.shared.in_flight.load(Ordering::Relaxed);
        self.0.shared.servers.any_server(|server| server.congestion.window() <= in_flight)
    }
}

impl Shared {
    pub(super) fn new(servers: Servers, timeout: Duration, events: Option<Arc<dyn Events>>) -> Shared {
        Shared {
            servers,
            timeout,
            in_flight: AtomicUsize::new(0),
            must_send: AtomicUsize::new(0),
            took: AtomicU64::new(u64::MAX),
            is_far: AtomicBool::new(false),
            counts: Mutex::default(),
            trouble: Mutex::default(),
            clients: Clients::default(),
            events,
            recoveries: watch::Sender::new(0),
            pending: Arc::default(),
        }
    }

    /// Sends a call on this thread, or passes it to the store's task. The caller may hold a lock.
    pub(super) fn send(
        self: &Arc<Shared>,
        calls: &Queue<Work>,
        by_hash: Cmd,
        script: Arc<Script>,
        deadline: Deadline,
        callback: Callback,
    ) -> Option<Unsent> {
        let (shared, message) = (self.clone(), PendingMessage::new(&self.pending));
        let mut callback =
            PendingCallback { callback: Some(callback), shared, is_sent: false, _message: message };
        let (in_flight, before) = InFlight::new(self, deadline.must_send);
        if !deadline.must_send && before.saturating_sub(self.must_send.load(Ordering::Relaxed)) >= MAX_CALLS {
            return Some(Unsent { callback, is_busy: true });
        }
        let by_hash = Arc::new(by_hash);
        // Only a call that is alone in flight is written on this thread. A call that comes while
        // another one is in flight goes to the store's thread, which writes all calls of its queue
        // together, behind the one in flight. A call also goes there if less than half of the
        // timeout is left for its reply: this thread might find the reply only after the deadline.
        let is_alone = before == 0 && deadline.reply_within >= self.timeout / 2;
        let begun = is_alone.then(|| self.servers.begin(&by_hash, &calls.waker())).flatten();
        let is_sent = begun.is_some();
        let came = begun.as_ref().map_or_else(std::time::Instant::now, |begun| begun.at);
        callback.is_sent = is_sent;
        let call = Work::Call(Call { in_flight, deadline, by_hash, script, begun, came, callback });
        match if is_sent { calls.add_quietly(call) } else { calls.add(call) } {
            Err(Work::Call(call)) => Some(Unsent { callback: call.callback, is_busy: false }),
            _ => None,
        }
    }

    /// Repeatedly asks the store for the number of processes, while this process requests permits.
    async fn count_clients(&self, key: &str) {
        let (clients, script) = (&self.clients, clients::script());
        let call = async |cmd| self.carry_out(Deadline::of(self.timeout), &cmd, &script, None).await;
        loop {
            clients.begins.notified().await;
            let mut beat = clients::FIRST_BEAT;
            loop {
                match call(clients.question(&script, key, None)).await {
                    Ok(reply) => clients.answered(&reply, Instant::now()),
                    Err(_) => clients.missed(),
                }
                if tokio::time::timeout(jittered(beat), clients.leaves.notified()).await.is_ok() {
                    break;
                }
                beat = (2 * beat).min(clients::BEAT);
            }
            let message = clients.begin_to_leave();
            // Without a reply the process counts for a while longer.
            _ = call(clients.farewell(&script, key, None)).await;
            drop(message);
        }
    }

    /// Completes a call that was already sent, if its reply has arrived. Otherwise returns the
    /// call.
    fn complete_at_once(&self, context: &mut Context<'_>, mut call: Call) -> Option<Call> {
        let Some(begun) = &mut call.begun else { return Some(call) };
        let Some(value) = begun.reply(context) else { return Some(call) };
        let asked = Instant::from_std(begun.at);
        self.replied(&begun.server, asked);
        self.note_reply(&begun.server, Admission::Allow, asked);
        let Call { in_flight, callback, .. } = call;
        drop(in_flight);
        callback.run(Ok(value));
        None
    }

    /// Makes a call, and runs its callback.
    async fn make(self: Arc<Shared>, call: Call) {
        let Call { in_flight, mut deadline, by_hash, script, begun, came, mut callback } = call;
        if begun.is_none() && !self.servers.is_model() {
            let passed = came.elapsed();
            for time in [&mut deadline.reply_within, &mut deadline.at_most] {
                *time = if *time == Duration::MAX { *time } else { time.saturating_sub(passed) };
            }
        }
        callback.is_sent = true;
        let outcome = self.carry_out(deadline, &by_hash, &script, begun).await;
        drop(in_flight);
        callback.run(outcome);
    }

    /// Records the duration of a call.
    fn note_duration(&self, time: Duration) {
        // Relaxed: an independent hint.
        self.took.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Waits until a call may be sent. Also returns the deadline of its reply.
    async fn acquire_slot<'a>(
        &self,
        server: &'a Server,
        deadline: Deadline,
    ) -> Result<(CallSlot<'a>, Duration), Away> {
        let acquiring = server.congestion.acquire_slot(deadline.gives_way);
        let Deadline { reply_within, at_most, .. } = deadline;
        if reply_within == Duration::MAX {
            return Ok((acquiring.await, reply_within));
        }
        let takes = match server.congestion.is_full() {
            true => server.congestion.longest(self.timeout),
            false => self.takes(),
        };
        let began = Instant::now();
        let left = at_most.checked_sub(takes).ok_or(Away::Late)?;
        let slot = tokio::time::timeout(left, acquiring).await.map_err(|_| Away::Late)?;
        let waited = began.elapsed();
        if reply_within == at_most || waited.saturating_add(takes.max(self.timeout / 2)) <= reply_within {
            return Ok((slot, reply_within));
        }
        // The calls before this one may have had no reply.
        match lock(&server.breaker).is_failing() {
            true => Err(Away::For(Duration::ZERO)),
            false => Ok((slot, waited.saturating_add(self.timeout).min(at_most))),
        }
    }

    /// Waits until a call may be sent and the breaker admits it. Also returns the deadline of its
    /// reply.
    async fn admit<'a>(
        &self,
        server: &'a Server,
        deadline: Deadline,
    ) -> Result<(CallSlot<'a>, Duration, Admission), Away> {
        // A server that rests is not waited for.
        let rest = lock(&server.breaker).rest(Instant::now());
        if rest > Duration::ZERO {
            return Err(self.skip(rest));
        }
        let slot = self.acquire_slot(server, deadline).await;
        let (slot, reply_within) = slot.inspect_err(|_| _ = self.skip(Duration::ZERO))?;
        let admission = lock(&server.breaker).admit(Instant::now(), self.timeout);
        match admission {
            Admission::Rest(rest) => Err(self.skip(rest)),
            admission => Ok((slot, reply_within, admission)),
        }
    }

    /// The time that a call must have for its reply: 5/4 of the duration of the last call, and at
    /// least a quarter of the timeout. Half of the timeout is always enough.
    fn takes(&self) -> Duration {
        let took = Duration::from_nanos(self.took.load(Ordering::Relaxed)).min(self.timeout);
        (took + took / 4).clamp(self.timeout / 4, self.timeout / 2)
    }

    async fn carry_out(
        &self,
        deadline: Deadline,
        by_hash: &Cmd,
        script: &Script,
        begun: Option<SentCall>,
    ) -> Result<Value, Away> {
        let came = begun.as_ref().map_or_else(Instant::now, |begun| Instant::from_std(begun.at));
        let server =
            begun.as_ref().map_or_else(|| self.servers.server_of(by_hash), |begun| begun.server.clone());
        let (slot, reply_within, admission) = match begun {
            Some(_) => (None, deadline.reply_within, Admission::Allow),
            None => {
                let (slot, reply_within, admission) = self.admit(&server, deadline).await?;
                (Some(slot), reply_within, admission)
            }
        };
        let asked = if begun.is_some() { came } else { Instant::now() };
        let sent = Sent::new(&server, admission);
        let first =
            LastAttempt { server: server.clone(), admission, began: asked, replies: server.replies() };
        let call = pin!(self.servers.call(by_hash, script, begun, &sent, self.timeout));
        let (outcome, last, has_replied) = self.outcome(call, &sent, first, came, reply_within).await;
        for (server, admission) in sent.redirected_by() {
            self.note_reply(&server, admission, asked);
        }
        let is_led = !Arc::ptr_eq(&last.server, &server);
        // A server that replied to others is not away. The remaining time of a call that queued, or
        // was redirected, may have been too short to judge the server.
        let replied_to_others = has_replied && last.admission == Admission::Allow;
        let was_long = match is_led {
            false => {
                admission != Admission::Allow || reply_within.saturating_sub(asked - came) >= self.timeout / 2
            }
            true => reply_within.saturating_sub(last.began - came) >= self.timeout / 2,
        };
        let is_well = outcome.is_none() && (replied_to_others || !was_long);
        if outcome.is_none() {
            if replied_to_others && !sent.is_on_old_connection() {
                if !is_led {
                    server.congestion.late(asked, self.timeout);
                }
            } else if was_long && !replied_to_others {
                self.is_far.store(true, Ordering::Relaxed);
            }
        }
        drop(slot);
        let failure = match outcome {
            Some(Ok(value)) => {
                self.replied(&server, asked);
                self.note_reply(&last.server, last.admission, asked);
                return Ok(value);
            }
            Some(Err(NoReply::Rests(rest))) => return Err(self.skip(rest)),
            Some(Err(NoReply::Failed(failure))) => failure,
            None if sent.give_up(was_long) => Failure::Unknown("did not reply in time".into()),
            None => last.server.not_connected_in_time(),
        };
        self.note_duration(asked.elapsed());
        Err(self.failed(&last.server, last.admission, failure, is_well))
    }

    /// Waits for the outcome of a call, past the timeout as long as its server replies to others.
    /// Returns the outcome, if there is one in time; the last attempt of the call; and whether the
    /// server of this attempt has replied meanwhile.
    async fn outcome(
        &self,
        mut call: Pin<&mut impl Future<Output = Result<Value, NoReply>>>,
        sent: &Sent,
        mut last: LastAttempt,
        came: Instant,
        reply_within: Duration,
    ) -> (Option<Result<Value, NoReply>>, LastAttempt, bool) {
        loop {
            let left = reply_within.saturating_sub(came.elapsed());
            let outcome = tokio::time::timeout(left.min(self.timeout), call.as_mut()).await.ok();
            // A cluster may lead the call to another server than the first. The breaker of that
            // server then admits the call.
            if let Some(attempt) = sent.last()
                && !Arc::ptr_eq(&attempt.server, &last.server)
            {
                last = attempt;
            }
            let replies = last.server.replies();
            let has_replied = std::mem::replace(&mut last.replies, replies) != replies;
            // The replies to others may have come over a newer connection.
            if outcome.is_some() || !has_replied || left <= self.timeout || sent.is_on_old_connection() {
                return (outcome, last, has_replied);
            }
        }
    }

    /// Counts and reports a failure, and returns when the store may be called again. If the server
    /// `is_well`, a call without a reply among other replies says nothing about it.
    fn failed(&self, server: &Server, admission: Admission, failure: Failure, is_well: bool) -> Away {
        let mut counts = lock(&self.counts);
        let (count, event, error, is_away) = match failure {
            Failure::NotRun(text) => (&mut counts.failed, StoreEvent::Failed, StoreError::away(text), true),
            Failure::Unknown(text) => {
                (&mut counts.unknown, StoreEvent::Unknown, StoreError::away(text), true)
            }
            Failure::Misconfigured(text) => {
                let error = StoreError::misconfigured(text);
                (&mut counts.misconfigured, StoreEvent::Misconfigured, error, false)
            }
        };
        *count += 1;
        drop(counts);
        self.report(event);
        *lock(&self.trouble) = Some(error);
        if !is_away {
            // The store does reply.
            self.note_alive(&server.breaker, admission);
            return Away::Misconfigured;
        }
        if is_well {
            lock(&server.late).add();
            return Away::For(Duration::ZERO);
        }
        let now = Instant::now();
        let (has_opened, rest) = {
            let mut breaker = lock(&server.breaker);
            (breaker.failed(admission, now), breaker.rest(now))
        };
        if has_opened {
            self.report(StoreEvent::BreakerOpened);
        }
        Away::For(rest)
    }

    /// Skips a call: it is not made, and the store may be called again after `rest`.
    fn skip(&self, rest: Duration) -> Away {
        lock(&self.counts).skipped += 1;
        self.report(StoreEvent::Skipped);
        Away::For(rest)
    }

    /// Ends a call without a reply because the runtime that makes the calls has ended. If the call
    /// was sent, whether it was carried out is not known.
    fn ended(&self, is_sent: bool) -> Away {
        *lock(&self.trouble) = Some(StoreError::away("ended with the runtime that asked it"));
        match is_sent {
            false => _ = self.skip(Duration::MAX),
            true => {
                lock(&self.counts).unknown += 1;
                self.report(StoreEvent::Unknown);
            }
        }
        Away::ENDED
    }

    /// Records that a call has its reply. It was counted in the congestion window of this server.
    fn replied(&self, server: &Server, asked: Instant) {
        let now = Instant::now();
        let took = now - asked;
        self.note_duration(took);
        // Relaxed: an independent hint.
        self.is_far.store(server.congestion.replied(asked, took, self.timeout), Ordering::Relaxed);
        *lock(&self.trouble) = None;
        lock(&self.counts).answered += 1;
        self.report(StoreEvent::Answered(took));
        if let Some(stand_in) = self.servers.found() {
            lock(&stand_in.silence).end();
            self.note_alive(&stand_in.breaker, Admission::Probe);
        }
    }

    /// Records that a server replied to a call that was sent at `asked`.
    fn note_reply(&self, server: &Server, admission: Admission, asked: Instant) {
        lock(&server.silence).end();
        self.note_alive(&server.breaker, admission);
        if lock(&server.late).replied(asked) {
            self.recovered();
        }
    }

    /// Records that a server replied to a call.
    fn note_alive(&self, breaker: &Mutex<Breaker>, admission: Admission) {
        let (is_back, has_closed) = {
            let mut breaker = lock(breaker);
            let (was_failing, was_open) = (breaker.is_failing(), breaker.is_open());
            breaker.succeeded(admission);
            (was_failing && !breaker.is_failing(), was_open && !breaker.is_open())
        };
        if is_back {
            self.recovered();
        }
        if has_closed {
            self.report(StoreEvent::BreakerClosed);
        }
    }

    /// Lets the requests ask again whose calls had no reply.
    pub(super) fn recovered(&self) {
        self.recoveries.send_modify(|recoveries| *recoveries += 1);
    }

    pub(super) fn report(&self, event: StoreEvent) {
        report(self.events.as_ref(), event);
    }
}

/// A slot among the calls without an outcome.
struct InFlight {
    shared: Arc<Shared>,
    must_send: bool,
}

impl InFlight {
    /// Takes a slot, and returns how many calls were in flight before.
    fn new(shared: &Arc<Shared>, must_send: bool) -> (InFlight, usize) {
        shared.must_send.fetch_add(must_send.into(), Ordering::Relaxed);
        let before = shared.in_flight.fetch_add(1, Ordering::Relaxed);
        (InFlight { shared: shared.clone(), must_send }, before)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.shared.must_send.fetch_sub(self.must_send.into(), Ordering::Relaxed);
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::connection::Address;
    use crate::key;

    /// Makes a call for each call that is skipped.
    #[derive(Default)]
    struct Calls(OnceLock<tidegate::AnyLimiter>);

    impl Events for Calls {
        fn store(&self, event: &StoreEvent) {
            assert_eq!(*event, StoreEvent::Skipped);
            self.0.get().expect("a limiter").debit(1).expect("a debit");
        }
    }

    /// Messages that no request waits for are counted when they are sent, and not when the store's
    /// thread takes them.
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
        for _ in 0..MAX_CALLS + 100 {
            limiter.debit(1).expect("a debit");
        }
        // The store skips each of the 100 calls, and the call that the observer makes for it.
        assert_eq!(store.counts().skipped, 2 * 100);
    }

    /// If an attempt that was slower than five calls found the servers of a cluster, the store
    /// stayed away for ever, and was never reported as back.
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
            shared.failed(&stand_in, Admission::Allow, failure, false);
        }
        assert!(store.is_away());
        shared.servers.find_all(1);
        let server = shared.servers.server_of(&by_hash);
        assert!(!Arc::ptr_eq(&server, &stand_in));
        shared.replied(&server, now);
        assert!(!store.is_away());
        assert_eq!(store.recoveries(), 1);
    }

    /// Requests that waited for a server asked it again with each recovery of another server.
    #[tokio::test(start_paused = true)]
    async fn a_recovery_of_another_server_wakes_no_request_in_vain() {
        let four = std::num::NonZeroU32::new(4).expect("not zero");
        for choice in [crate::WhileAway::ShareOf(four), crate::WhileAway::Wait] {
            let builder = Store::builder("redis+cluster://127.0.0.1:1").while_away(choice);
            let address = Address::read("redis+cluster://127.0.0.1:1", None).expect("an address");
            let servers = Servers::at(address, key::of_test("tidegate"));
            let (store, work) = builder.parts(servers).expect("a store");
            tokio::spawn(work);
            let shared = store.0.shared.clone();
            shared.servers.find_all(2);
            let limiter = store.limiter("foo").limit("calls", "sliding_log 4/d").build().expect("a limiter");
            let wait = tokio::spawn(limiter.acquire());
            // The server refuses connections.
            while store.counts().failed == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let other = shared.servers.server_of_key("{user1000}");
            let made = |shared: &Shared| {
                let counts = *lock(&shared.counts);
                counts.failed + counts.skipped
            };
            let before = made(&shared);
            for _ in 0..20 {
                shared.failed(&other, Admission::Allow, Failure::NotRun("away".into()), false);
                shared.note_reply(&other, Admission::Allow, Instant::now());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(store.recoveries(), 20);
            // The others are counted here.
            let made = made(&shared) - before;
            assert!(made <= 20 + 5, "{choice}: {made} calls");
            wait.abort();
        }
    }

    /// The replies of the other servers of a cluster began an outage each time: the shares of a
    /// server that was away had an n-th of their n-th in every window.
    #[tokio::test(start_paused = true)]
    async fn shares_of_a_server_grow_although_others_reply() {
        let address = Address::read("redis+cluster://127.0.0.1:1", None).expect("an address");
        let servers = Servers::at(address, key::of_test("tidegate"));
        let four = std::num::NonZeroU32::new(4).expect("not zero");
        let builder = Store::builder("redis+cluster://127.0.0.1:1");
        let builder = builder.while_away(crate::WhileAway::ShareOf(four));
        let (store, _work) = builder.parts(servers).expect("a store");
        let shared = &store.0.shared;
        shared.servers.find_all(2);
        let (away, other) = (shared.servers.server_of_key("foo"), shared.servers.server_of_key("{user1000}"));
        assert!(!Arc::ptr_eq(&away, &other));
        for (line, expected) in [
            ("sliding_log 40/2s", [2, 10, 10, 10]),
            ("token_bucket 8/2s burst 8 interval_refill", [0, 2, 2, 2]),
        ] {
            lock(&away.silence).end();
            // This process asked other servers for long, and this one granted permits to others.
            tokio::time::sleep(Duration::from_secs(600)).await;
            let config: tidegate::PolicyConfig = line.parse().expect("a configuration");
            for (window, expected) in expected.into_iter().enumerate() {
                let mut granted = 0;
                for _ in 0..200 {
                    shared.note_reply(&other, Admission::Allow, Instant::now());
                    let limits = [("calls", &config)].into_iter();
                    let share = store.share("all", "foo", limits, &|| crate::share::LastBooking::NONE);
                    let share = share.expect("shares").expect("a share");
                    granted += usize::from(share.try_acquire().is_ok());
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                assert_eq!(granted, expected, "{line}, window {window}");
            }
        }
    }

    /// Calls of a process without a free processor were made late, and had hardly any time for
    /// their replies. They opened the breaker of a server that was well.
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
