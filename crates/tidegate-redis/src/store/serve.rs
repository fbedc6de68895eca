//! The task that makes the calls of a store, and the callback that each call owes its outcome.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, Value};
use tokio::task::coop;
use tokio::time::Instant;

use super::calls::Shared;
use super::{Away, Deadline};
use crate::breaker::Admission;
use crate::clients;
use crate::connection::SentCall;
use crate::jitter::jittered;
use crate::lock::lock;
use crate::pending::PendingMessage;
use crate::queue::{self, Queue};
use crate::script::Script;

/// The most calls that may wait for their replies, besides those that must be sent. Further calls
/// end as if the store were away.
const MAX_CALLS: usize = 16_384;

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
            self.callback.run_callback(|owed| {
                lock(&owed.shared.trouble).note_shed();
                Err(owed.shared.skip(Duration::ZERO))
            });
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

impl Shared {
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

    use tidegate::{Events, StoreEvent};

    use super::*;
    use crate::connection::{Address, Servers};
    use crate::error::StoreError;
    use crate::key;
    use crate::store::Store;

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
    ///
    /// Bug: the error of a message that was lost for this reason was that of the last outage.
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
        let shared = &store.0.shared;
        lock(&shared.trouble).note(StoreError::away("refused a connection"));
        lock(&shared.trouble).now = None;
        for _ in 0..MAX_CALLS + 100 {
            limiter.debit(1).expect("a debit");
        }
        // The store skips each of the 100 calls, and the call that the observer makes for it.
        assert_eq!(store.counts().skipped, 2 * 100);
        let lost = shared.pending.take_lost().expect("an error").to_string();
        assert!(lost.contains("too many calls"), "{lost}");
        // The store is well.
        assert_eq!(store.trouble(), None);
    }
}
