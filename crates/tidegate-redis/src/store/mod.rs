//! [`Store`]: a connection to Redis or Valkey that limiters share.

mod away;
mod builder;
mod calls;
mod check;
mod counts;
mod deadline;
mod flush;
mod lease_counts;
mod serve;
mod tidy;
mod trouble;
mod while_away;

use std::fmt;
use std::num::NonZeroU32;
#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{Cmd, Value};
use tidegate::{AllOf, AllRefusal, Cancellable, Events, PolicyConfig, Refusal, StoreEvent};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::block_on::{Blocks, block_on, is_within};
use crate::error::StoreError;
use crate::held::HeldByKey;
use crate::known_pause::{KnownPauses, PauseOfKeys};
use crate::lock::lock;
use crate::pending::PendingMessage;
use crate::queue::Queue;
use crate::script::Script;
use crate::share::{LastBooking, Outage, Shares};
use calls::Shared;
use serve::Work;

pub(crate) use away::Away;
pub use builder::StoreBuilder;
pub use counts::Counts;
pub(crate) use deadline::Deadline;
pub(crate) use lease_counts::LeaseCounters;
pub use lease_counts::LeaseCounts;
pub(crate) use serve::{Task, Unsent};
pub use while_away::WhileAway;

/// A connection to Redis or Valkey that limiters share. Clones are handles to one store.
///
/// A store connects at its first call, and reconnects after a failure. It does its network I/O on a
/// thread of its own, so its limiters work in any executor and in plain threads. A request that
/// waits in a tokio runtime uses the timer of that runtime, which must be enabled and run. A call
/// is sent on the thread of its request only if no other call is in flight. The store's thread
/// wakes tasks: a waker that blocks holds up the calls of all limiters. If nearly all requests come
/// from one tokio runtime, that runtime [can do the I/O](StoreBuilder::on_this_runtime).
///
/// After a fork, the child process has neither that thread nor a runtime: open a store in the
/// child.
///
/// # Examples
///
/// ```
/// use std::num::NonZeroU32;
/// use std::time::Duration;
/// use tidegate_redis::{Store, WhileAway};
///
/// let eight = NonZeroU32::new(8).expect("not zero");
/// let store = Store::builder("redis://:secret@127.0.0.1:6379/0")
///     .timeout(Duration::from_millis(20))
///     .while_away(WhileAway::ShareOf(eight))
///     .open()?;
/// assert!(!format!("{store:?}").contains("secret"));
/// # Ok::<(), tidegate_redis::OpenError>(())
/// ```
#[derive(Clone)]
pub struct Store(Arc<Inner>);

/// For tests: the time in microseconds, the number of calls without an outcome yet, and the runtime
/// for spawned tasks.
#[cfg(test)]
#[derive(Default)]
struct TestClock {
    time: OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>,
    pending: Arc<AtomicUsize>,
    tasks: OnceLock<tokio::runtime::Handle>,
}

/// A log of grants: the key, the server's Unix time in microseconds, and the permits.
type GrantLog = Box<dyn Fn(&str, i64, u64) + Send + Sync>;

struct Inner {
    #[cfg(test)]
    test: TestClock,
    grant_log: OnceLock<GrantLog>,
    calls: Queue<Work>,
    shared: Arc<Shared>,
    prefix: String,
    while_away: WhileAway,
    leases: Arc<LeaseCounters>,
    /// Whether a limit of permits in use was built.
    has_counting: AtomicBool,
    shares: Shares,
    known_pauses: Arc<KnownPauses>,
    held_by_key: Arc<HeldByKey>,
    /// The runtime that makes the calls; unset if a model makes them.
    runtime: OnceLock<Handle>,
    /// Whether that runtime is the user's, and not that of the store's thread.
    is_on_runtime: bool,
}

impl Inner {
    /// Returns the Unix time by the server's clock, or by that of this process if the former is
    /// unknown.
    fn unix_time(&self) -> Duration {
        self.shared.clients.server_time().unwrap_or_else(|| self.shares.unix_time())
    }
}

impl Store {
    /// Returns the error of the last call to the store; `None` if the store replied to that call,
    /// or if no call was made.
    #[must_use]
    pub fn trouble(&self) -> Option<StoreError> {
        lock(&self.0.shared.trouble).now.clone()
    }

    /// Returns whether calls to the store are suspended because five calls in a row have failed; in
    /// a cluster, whether calls to one of its servers are.
    /// [`trouble`](Store::trouble) returns the error of the last call from the first failure on.
    ///
    /// Only a call finds out that a server is back. Without requests for its keys, the result of
    /// this method may be out of date: a health endpoint awaits [`check`](Store::check).
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.0.shared.servers.is_away()
    }

    /// Passes every later grant by the store to a function, for programs that check the bound of a
    /// limit. The first function stays.
    #[doc(hidden)]
    pub fn log_grants(&self, log: impl Fn(&str, i64, u64) + Send + Sync + 'static) {
        _ = self.0.grant_log.set(Box::new(log));
    }

    pub(crate) fn log_grant(&self, key: &str, due: i64, permits: u64) {
        if let Some(log) = self.0.grant_log.get() {
            log(key, due, permits);
        }
    }

    /// Returns the number of processes that request permits from this store under its prefix, as
    /// the store last reported it; `None` before the first reply.
    ///
    /// The number is known with [`WhileAway::Share`] or [`WhileAway::ShareOf`], and once a limiter
    /// [leases](crate::LimiterBuilder::leased). Otherwise it is always `None`. From its first
    /// request for permits on, a process asks the store for the number every two seconds, and
    /// more often at first. A process that only checks the store, reads the status of limits or
    /// pauses them is not counted. Several stores in one process count as several.
    ///
    /// A process leaves the count by [`flush`](Store::flush). A process that ends without it counts
    /// for 15 seconds more. The count does not fall in the twelve seconds after an outage, so
    /// shares are too small rather than too large. A process counts twice for 15 seconds if the
    /// store counted it and the reply got lost.
    #[must_use]
    pub fn clients(&self) -> Option<NonZeroU32> {
        self.0.shared.clients.get()
    }

    /// Returns the number of processes that share a limit while the store is away; `None` if the
    /// limit is not shared, or if the number is not known yet.
    pub(crate) fn processes(&self) -> Option<NonZeroU32> {
        match self.0.while_away {
            WhileAway::Share => self.clients(),
            WhileAway::ShareOf(processes) => Some(processes),
            WhileAway::Open | WhileAway::Wait | WhileAway::Closed => None,
        }
    }

    /// Returns this process's limiter for the limits of a tag while the server that has this key is
    /// away; `None` if this process grants no shares.
    pub(crate) fn share<'a>(
        &self,
        tag: &str,
        key: &str,
        limits: impl Iterator<Item = (&'a str, &'a PolicyConfig)>,
        booked: &dyn Fn() -> LastBooking,
    ) -> Option<Result<AllOf, AllRefusal>> {
        let processes = self.processes()?;
        let (answered, decides_since) = lock(&self.0.shared.servers.server_of_key(key).silence).times();
        // Until this process failed to ask, the server may have granted permits to others.
        let (silence, time) = (decides_since.elapsed(), self.0.unix_time());
        let outage = Outage { processes, answered, decides_since, silence, time };
        let share = self.0.shares.limiter(tag, limits, outage, booked);
        if self.0.shares.start_tidying() {
            self.spawn(Box::pin(tidy::tidy(Arc::downgrade(&self.0))));
        }
        Some(share)
    }

    /// What this process knows of the pause of these keys.
    pub(crate) fn known_pause(&self, keys: &Arc<[String]>) -> PauseOfKeys {
        self.0.known_pauses.of(keys)
    }

    /// The permits in use that this process holds.
    pub(crate) fn held_by_key(&self) -> &Arc<HeldByKey> {
        &self.0.held_by_key
    }

    /// Notes the last booking of a queue that is gone.
    pub(crate) fn note_booked(&self, booked: LastBooking) {
        if self.processes().is_some() {
            self.0.shares.note(booked);
        }
    }

    /// The time by which scripts decide: `None` except in this crate's tests, which set it.
    pub(crate) fn time(&self) -> Option<u64> {
        #[cfg(test)]
        return self.0.test.time.get().map(|time| time());
        #[cfg(not(test))]
        None
    }

    #[cfg(test)]
    pub(crate) fn set_time(&self, time: impl Fn() -> u64 + Send + Sync + 'static) {
        _ = self.0.test.time.set(Box::new(time));
    }

    /// Runs tasks in this runtime, whose time may be paused.
    #[cfg(test)]
    pub(crate) fn set_tasks(&self, runtime: tokio::runtime::Handle) {
        _ = self.0.test.tasks.set(runtime);
    }

    /// Returns the number of calls without an outcome yet.
    #[cfg(test)]
    pub(crate) fn pending(&self) -> usize {
        self.0.test.pending.load(Ordering::SeqCst)
    }

    /// Notes for the next check that a limit of permits in use was built.
    pub(crate) fn begin_counting(&self) {
        self.0.has_counting.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_counting(&self) -> bool {
        self.0.has_counting.load(Ordering::Relaxed)
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.0.prefix
    }

    pub(crate) fn while_away(&self) -> WhileAway {
        self.0.while_away
    }

    pub(crate) fn events(&self) -> Option<&Arc<dyn Events>> {
        self.0.shared.events.as_ref()
    }

    pub(crate) fn count_degraded(&self) {
        lock(&self.0.shared.counts).degraded += 1;
    }

    /// Counts a message that no caller waits for and that has no reply, but this outcome. It carried
    /// `refunds` refunds.
    pub(crate) fn note_lost(&self, refunds: usize, away: Away) {
        let refunds = u64::try_from(refunds).unwrap_or(u64::MAX);
        lock(&self.0.shared.counts).lost_refunds += refunds;
        self.0.shared.pending.record_lost(self.error_of(away));
    }

    /// The error of a call with this outcome.
    pub(crate) fn error_of(&self, away: Away) -> StoreError {
        lock(&self.0.shared.trouble).of(away)
    }

    /// Marks messages that later calls will send as pending: [`flush`](Store::flush) waits for
    /// them.
    pub(crate) fn begin_message(&self) -> PendingMessage {
        PendingMessage::new(&self.0.shared.pending)
    }

    /// Notes a reply that makes no sense.
    pub(crate) fn note_invalid_reply(&self) -> Away {
        let shared = &self.0.shared;
        lock(&shared.counts).misconfigured += 1;
        shared.report(StoreEvent::Misconfigured);
        lock(&shared.trouble).note(StoreError::misconfigured("its answer makes no sense"));
        Away::Misconfigured
    }

    /// Makes a call, and passes its outcome to a function on the store's thread. The caller may
    /// hold a lock.
    pub(crate) fn send(
        &self,
        by_hash: Cmd,
        script: Arc<Script>,
        deadline: Deadline,
        callback: impl FnOnce(Result<Value, Away>) + Send + 'static,
    ) -> Option<Unsent> {
        #[cfg(test)]
        let callback = {
            let pending = self.0.test.pending.clone();
            pending.fetch_add(1, Ordering::SeqCst);
            move |outcome| {
                callback(outcome);
                pending.fetch_sub(1, Ordering::SeqCst);
            }
        };
        self.0.shared.send(&self.0.calls, by_hash, script, deadline, Box::new(callback))
    }

    /// Returns the number of calls to the store, by outcome.
    #[must_use]
    pub fn counts(&self) -> Counts {
        *lock(&self.0.shared.counts)
    }

    /// The time within which a call has an outcome, unless its requests wait.
    pub(crate) fn timeout(&self) -> Duration {
        self.0.shared.timeout
    }

    /// The number of times that a server replied after its last call had failed, or after a late
    /// call.
    pub(crate) fn recoveries(&self) -> u64 {
        *self.0.shared.recoveries.borrow()
    }

    /// Returns whether the last call to the server of this key failed, or whether requests wait for
    /// its reply to a later call. The store reports a recovery of any server.
    pub(crate) fn is_failing(&self, key: &str) -> bool {
        let server = self.0.shared.servers.server_of_key(key);
        lock(&server.breaker).is_failing() || lock(&server.late).is_awaited()
    }

    /// The time for which calls to the server of this key remain suspended.
    pub(crate) fn rest(&self, key: &str) -> Duration {
        let server = self.0.shared.servers.server_of_key(key);
        lock(&server.breaker).rest(Instant::now())
    }

    /// Asks the server of this call whether it is back, unless it was asked less than `often` ago.
    /// If it is, the requests that wait without the store ask again.
    pub(crate) async fn ask_whether_back(&self, question: Cmd, script: &Arc<Script>, often: Duration) {
        let (shared, now) = (&self.0.shared, Instant::now());
        let server = shared.servers.server_of(&question);
        {
            let mut asked = lock(&server.asked);
            if asked.is_some_and(|asked| now - asked < often) {
                return;
            }
            *asked = Some(now);
        }
        let recoveries = self.recoveries();
        let asked = question.clone();
        let reply = self.ask(question, script.clone(), Deadline::of(self.timeout())).await;
        // Another server may have replied, if the cluster has a new owner of the slot. After a late
        // call, the requests ask again only after a while.
        let server = shared.servers.server_of(&asked);
        if reply.is_ok() && self.recoveries() == recoveries && !lock(&server.late).is_awaited() {
            shared.recovered();
        }
    }

    /// Returns a receiver that changes with the number of [recoveries](Store::recoveries).
    pub(crate) fn watch_recovery(&self) -> watch::Receiver<u64> {
        self.0.shared.recoveries.subscribe()
    }

    /// Spawns a task on the store's thread. Returns whether the store still has one.
    pub(crate) fn spawn(&self, task: Task) -> bool {
        #[cfg(test)]
        if let Some(runtime) = self.0.test.tasks.get() {
            runtime.spawn(task);
            return true;
        }
        self.0.calls.add(Work::Task(task)).is_ok()
    }

    /// Returns whether the runtime that makes the calls has ended: no call is made from then on.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.calls.is_over()
    }

    /// Returns the counts of permits on lease, over all limiters that
    /// [lease](crate::LimiterBuilder::leased).
    #[must_use]
    pub fn lease_counts(&self) -> LeaseCounts {
        self.0.leases.read()
    }

    /// Starts counting the processes that request permits from this store.
    pub(crate) fn count_processes(&self) {
        self.0.shared.clients.need();
    }

    /// Notes that this process requests permits: it is counted from then on.
    pub(crate) fn note_permit_request(&self) {
        self.0.shared.clients.ask();
    }

    pub(crate) fn lease_counters(&self) -> &Arc<LeaseCounters> {
        &self.0.leases
    }

    /// Blocks this thread on a future. Returns `None` without polling the future if the handle may
    /// not block, or if this thread makes the store's calls.
    pub(crate) fn block_on<T>(&self, blocks: Blocks, future: impl Future<Output = T>) -> Option<T> {
        self.block_on_until(blocks, || false, future)
    }

    /// Blocks this thread on a future of a permit, like [`block_on`](Store::block_on), until a
    /// cancellation token of the thread is cancelled.
    pub(crate) fn block_on_permits<T>(
        &self,
        blocks: Blocks,
        wait: impl Future<Output = Result<T, AllRefusal>>,
    ) -> Option<Result<T, AllRefusal>> {
        let mut cancellable = match Cancellable::begin() {
            Ok(cancellable) => cancellable,
            Err(cancelled) => return Some(Err(cancelled.into())),
        };
        let answer = self.block_on_until(blocks, || cancellable.should_stop(), wait);
        if answer.is_none() && cancellable.should_stop() {
            return Some(Err(Refusal::Cancelled.into()));
        }
        answer
    }

    fn block_on_until<T>(
        &self,
        blocks: Blocks,
        ends: impl FnMut() -> bool,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let runtime = self.0.runtime.get();
        if blocks == Blocks::No || self.0.is_on_runtime && runtime.is_some_and(is_within) {
            return None;
        }
        block_on(|| self.0.runtime.get().filter(|_| !self.has_ended()), ends, future)
    }

    pub(crate) async fn ask(
        &self,
        by_hash: Cmd,
        script: Arc<Script>,
        deadline: Deadline,
    ) -> Result<Value, Away> {
        let (sender, receiver) = oneshot::channel();
        drop(self.send(by_hash, script, deadline, move |outcome| _ = sender.send(outcome)));
        receiver.await.unwrap_or(Err(Away::ENDED))
    }
}

impl fmt::Debug for Store {
    /// Omits the address, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("prefix", &self.0.prefix)
            .field("timeout", &self.0.shared.timeout)
            .field("while_away", &self.0.while_away)
            .finish_non_exhaustive()
    }
}
