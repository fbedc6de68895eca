//! A call to a store: its deadline, its breaker, and what its outcome says about its server.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, Value};
use tidegate::{Events, StoreEvent};
use tokio::sync::watch;
use tokio::time::Instant;

use super::trouble::Trouble;
use super::{Away, Counts, Deadline, Store};
use crate::breaker::{Admission, Breaker};
use crate::clients::Clients;
use crate::connection::{CallSlot, Failure, LastAttempt, NoReply, Sent, SentCall, Server, Servers, Stage};
use crate::error::StoreError;
use crate::lock::lock;
use crate::observe::report;
use crate::pending::Pending;
use crate::script::Script;

/// The store's task completes this many calls in a few milliseconds.
const CROWD: usize = 256;

/// What the store's thread and the handles share.
pub(super) struct Shared {
    pub(super) servers: Servers,
    pub(super) timeout: Duration,
    /// The number of calls without an outcome.
    pub(super) in_flight: AtomicUsize,
    /// How many of them [must be sent](Deadline::must_send).
    pub(super) must_send: AtomicUsize,
    /// The duration of the last call in nanoseconds; `u64::MAX` before the first one.
    took: AtomicU64,
    /// Whether the server of the last call is far away. A silent server counts as far.
    is_far: AtomicBool,
    pub(super) counts: Mutex<Counts>,
    pub(super) trouble: Mutex<Trouble>,
    pub(super) clients: Clients,
    pub(super) events: Option<Arc<dyn Events>>,
    /// The number of times that a server replied after its last call had failed, or after a late
    /// call.
    pub(super) recoveries: watch::Sender<u64>,
    pub(super) pending: Arc<Pending>,
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

    pub(super) async fn carry_out(
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
        let redirected = |server: &Server, admission| self.note_reply(server, admission, asked);
        let call = pin!(self.servers.call(by_hash, script, begun, &sent, self.timeout, redirected));
        let (outcome, last, has_replied) = self.outcome(call, &sent, first, came, reply_within).await;
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
            None => match sent.give_up(was_long) {
                Stage::Left => Failure::Unknown("did not reply in time".into()),
                Stage::Connects => last.server.not_connected_in_time(),
                Stage::Waits => Failure::NotRun("was not asked in time, because other calls go first".into()),
            },
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
            // server then admits the call, and the rest of this period is too short for its reply.
            let attempt = sent.last().filter(|attempt| !Arc::ptr_eq(&attempt.server, &last.server));
            let is_led = attempt.is_some();
            last = attempt.unwrap_or(last);
            let replies = last.server.replies();
            let has_replied = std::mem::replace(&mut last.replies, replies) != replies;
            // The replies to others may have come over a newer connection.
            let goes_on = (has_replied || is_led) && left > self.timeout && !sent.is_on_old_connection();
            if outcome.is_some() || !goes_on {
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
        lock(&self.trouble).note(error);
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
    pub(super) fn skip(&self, rest: Duration) -> Away {
        lock(&self.counts).skipped += 1;
        self.report(StoreEvent::Skipped);
        Away::For(rest)
    }

    /// Ends a call without a reply because the runtime that makes the calls has ended. If the call
    /// was sent, whether it was carried out is not known.
    pub(super) fn ended(&self, is_sent: bool) -> Away {
        lock(&self.trouble).note(StoreError::away("ended with the runtime that asked it"));
        match is_sent {
            false => _ = self.skip(Duration::MAX),
            true => {
                lock(&self.counts).unknown += 1;
                self.report(StoreEvent::Unknown);
            }
        }
        Away::ENDED
    }

    /// Records that a call has its reply, also for the congestion window of this server.
    pub(super) fn replied(&self, server: &Server, asked: Instant) {
        let now = Instant::now();
        let took = now - asked;
        self.note_duration(took);
        // Relaxed: an independent hint.
        self.is_far.store(server.congestion.replied(asked, took, self.timeout), Ordering::Relaxed);
        lock(&self.trouble).now = None;
        lock(&self.counts).answered += 1;
        self.report(StoreEvent::Answered(took));
        for replaced in self.servers.replaced() {
            lock(&replaced.silence).end();
            self.note_alive(&replaced.breaker, Admission::Probe);
        }
    }

    /// Records that a server replied to a call that was sent at `asked`.
    pub(super) fn note_reply(&self, server: &Server, admission: Admission, asked: Instant) {
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::Notify;

    use super::*;
    use crate::connection::Address;
    use crate::key;

    const MS: Duration = Duration::from_millis(1);

    /// Bug: a call without a deadline that was redirected late was given up after the few remaining
    /// milliseconds of the timeout, with the connection of the server that it was led to.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_a_call_is_led_to_has_time_for_its_reply() {
        let address = Address::read("redis+cluster://127.0.0.1:1", None).expect("an address");
        let servers = Servers::at(address, key::of_test("tidegate"));
        let builder = Store::builder("redis+cluster://127.0.0.1:1").timeout(50 * MS);
        let (store, _work) = builder.parts(servers).expect("a store");
        let shared = &store.0.shared;
        shared.servers.find_all(2);
        let [from, to] = ["{user1000}", "foo"].map(|key| shared.servers.server_of_key(key));
        for (takes, is_replied) in [(20 * MS, true), (Duration::MAX, false)] {
            let (sent, came) = (Sent::new(&from, Admission::Allow), Instant::now());
            let (server, admission) = (from.clone(), Admission::Allow);
            let first = LastAttempt { server, admission, began: came, replies: 0 };
            let call = pin!(async {
                tokio::time::sleep(45 * MS).await;
                sent.is_led_to(&to);
                tokio::time::sleep(takes).await;
                Ok(Value::Nil)
            });
            let (outcome, last, _) = shared.outcome(call, &sent, first, came, Duration::MAX).await;
            assert!(outcome.is_some() == is_replied && Arc::ptr_eq(&last.server, &to));
            let ends = if is_replied { 65 * MS } else { 2 * store.timeout() };
            assert_eq!(came.elapsed(), ends);
        }
    }

    /// Starts a server of a cluster that replies `OK` to each command, except this to some.
    async fn serve<F>(listener: TcpListener, reply: impl Fn(String) -> F + Clone + Send + 'static)
    where
        F: Future<Output = Option<String>> + Send,
    {
        while let Ok((mut client, _)) = listener.accept().await {
            let reply = reply.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 4096];
                while let Ok(read @ 1..) = client.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                    for command in text.split('*').skip(1) {
                        let reply = reply(command.to_owned()).await.unwrap_or_else(|| "+OK\r\n".to_owned());
                        client.write_all(reply.as_bytes()).await.expect("a client that reads");
                    }
                }
            });
        }
    }

    /// Bug: while a probing call that a server had redirected waited for its reply, the other calls
    /// to that server were skipped.
    #[tokio::test]
    async fn a_server_that_redirects_a_probing_call_is_back_at_once() {
        let (from, to) = (TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await);
        let [from, to] = [from, to].map(|listener| listener.expect("a port"));
        let [first, second] = [&from, &to].map(|listener| listener.local_addr().expect("an address").port());
        tokio::spawn(serve(from, move |command| async move {
            match command {
                _ if command.contains("SLOTS") => {
                    Some(format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{first}\r\n"))
                }
                _ if command.contains("PING") => Some(format!("-MOVED 0 127.0.0.1:{second}\r\n")),
                _ => None,
            }
        }));
        let (asked, replies) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (is_asked, may_reply) = (asked.clone(), replies.clone());
        tokio::spawn(serve(to, move |command| {
            let (is_asked, may_reply) = (is_asked.clone(), may_reply.clone());
            async move {
                if command.contains("PING") {
                    is_asked.notify_one();
                    may_reply.notified().await;
                }
                None
            }
        }));
        let url = format!("redis+cluster://127.0.0.1:{first}");
        let servers = Servers::at(Address::read(&url, None).expect("an address"), key::of_test("tidegate"));
        let counts = Arc::new(tidegate::Statistics::new());
        let builder = Store::builder(url).timeout(Duration::from_secs(100)).observed_by(counts.clone());
        let (store, work) = builder.parts(servers).expect("a store");
        tokio::spawn(work);
        let (shared, script) = (store.0.shared.clone(), Arc::new(Script::new("return 1".into())));
        let mut of_from = redis::cmd("EVALSHA");
        of_from.arg("hash").arg(1).arg("foo");
        let ask = |call: &Cmd| store.ask(call.clone(), script.clone(), Deadline::of(store.timeout()));
        assert!(ask(&of_from).await.is_ok());
        let server = shared.servers.server_of(&of_from);
        for _ in 0..5 {
            shared.failed(&server, Admission::Allow, Failure::NotRun("away".into()), false);
        }
        lock(&server.breaker).connected(Instant::now());
        let ping = redis::cmd("PING");
        let others = async {
            asked.notified().await;
            let answer = ask(&of_from).await;
            replies.notify_one();
            answer
        };
        let (probing, other) = tokio::join!(ask(&ping), others);
        assert!(probing.is_ok() && other.is_ok(), "{other:?}");
        let closed = counts.snapshot().store.breaker_closed;
        assert_eq!((store.counts().skipped, store.recoveries(), closed), (0, 1, 1));
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

    /// Bug: the outage of a primary whose slots another server got never ended: no call went to the
    /// primary any more.
    #[test]
    fn an_outage_ends_when_another_server_has_the_slots() {
        let address = Address::read("redis+cluster://127.0.0.1:1", None).expect("an address");
        let servers = Servers::at(address, key::of_test("tidegate"));
        let counts = Arc::new(tidegate::Statistics::new());
        let builder = Store::builder("redis+cluster://127.0.0.1:1").observed_by(counts.clone());
        let (store, _work) = builder.parts(servers).expect("a store");
        let shared = &store.0.shared;
        shared.servers.find_all(2);
        let servers = ["foo", "{user1000}"].map(|key| shared.servers.server_of_key(key));
        let away = servers.iter().position(|server| !Arc::ptr_eq(server, &first_server(shared)));
        let away = &servers[away.expect("the second one")];
        for _ in 0..5 {
            shared.failed(away, Admission::Allow, Failure::NotRun("away".into()), false);
        }
        let told = || counts.snapshot().store;
        assert!(store.is_away() && told().breaker_opened == 1);
        shared.servers.find_all(1);
        shared.replied(&first_server(shared), Instant::now());
        assert_eq!((store.is_away(), store.recoveries(), told().breaker_closed), (false, 1, 1));
    }

    /// The server that has the first slot.
    fn first_server(shared: &Shared) -> Arc<Server> {
        shared.servers.server_of(&redis::cmd("PING"))
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
        use crate::clients;
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
