//! A store: its deadline, its breaker, and the thread or the runtime that asks it.

use std::fmt;
use std::num::NonZeroU32;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, Value};
use tidegate::{
    AcquireAny, AllOf, AllPermits, AllRefusal, Cancellable, Events, PolicyConfig, Refusal, StoreEvent,
};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::block_on::{Blocks, block_on, this_thread_makes_calls};
use crate::breaker::{Admission, Breaker};
use crate::clients::{self, Clients};
#[cfg(feature = "tls")]
use crate::connection::Tls;
use crate::connection::{Address, Begun, Connector, Failure, Sent, Server, Servers, wants_tls};
use crate::error::{OpenError, StoreError};
use crate::jitter::jittered;
use crate::key;
use crate::lease::{LeaseCounters, LeaseCounts};
use crate::observe::report;
use crate::queue::{self, Queue, queue};
use crate::script::Script;
use crate::share::{Outage, Shares};

/// So many calls may be in flight; more are answered as if the store were away.
const MOST_IN_FLIGHT: usize = 16_384;

/// Address, prefix, deadline, and what is decided without the store.
type Settings = (String, String, Duration, WhileAway);

/// The stores of configurations that are open in this process.
static OF_CONFIGURATIONS: Mutex<Vec<(Settings, Weak<Inner>)>> = Mutex::new(Vec::new());

/// A connection to Redis or Valkey, which limiters share. Clones are handles to one store.
///
/// It connects when it is first asked, and again after a failure. A thread of its own does the work
/// of the network, so that limiters work in any executor and in plain threads. Only a call that is
/// alone is sent by the thread of its request. Where one tokio runtime makes nearly all requests,
/// that runtime [can do it](StoreBuilder::on_this_runtime).
///
/// A process that forks has no such thread and no runtime in its child: open a store there.
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

/// How limiters decide while their store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhileAway {
    /// Each process grants its share of each limit, by itself: a limit divided by the number of
    /// processes that ask this store under its prefix, as the store [saw](Store::clients) it last,
    /// and at least one permit. A process that has not heard of the store yet grants nothing. A
    /// request that is larger than the share is refused as [`Refusal::Unavailable`].
    ///
    /// In the window in which the store goes away, or while a bucket of before may have been full,
    /// all shares together grant the limit divided by the number of processes, on top of the
    /// permits that the store granted. So in no window more is granted than the limit and this
    /// share of it, until a later window begins without the store. In later windows the shares are
    /// together the limit.
    Share,
    /// As [`Share`](WhileAway::Share), with this number of processes.
    ShareOf(NonZeroU32),
    /// Every request is granted.
    Open,
    /// Every request is refused at once, as [`Refusal::Unavailable`], also one that would wait for
    /// its turn. Its `retry_after` tells when the store is asked again.
    #[default]
    Closed,
}

/// The settings of a [`Store`].
#[derive(Clone)]
#[must_use = "settings do nothing until the store is opened"]
pub struct StoreBuilder {
    url: String,
    prefix: String,
    timeout: Duration,
    while_away: WhileAway,
    events: Option<Arc<dyn Events>>,
    /// Whether tasks of the caller's runtime do the work.
    is_on_runtime: bool,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

/// How often a store was asked, and what became of it. All numbers only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Calls that the store answered.
    pub answered: u64,
    /// Calls whose outcome is not known: the store may have carried them out.
    pub unknown: u64,
    /// Calls that the store did not carry out.
    pub failed: u64,
    /// Calls that were answered without asking: the store had not answered before, too many calls
    /// were in flight, or their requests had waited for more than three quarters of the deadline.
    pub skipped: u64,
    /// Calls that showed that the store is not as it must be. A call whose answer makes no sense is
    /// counted as answered, too.
    pub misconfigured: u64,
    /// Requests that were decided without the store.
    pub degraded: u64,
    /// Refunds and bookings given back whose message has no answer. Their permits are lost, unless
    /// the store carried the message out: fewer permits are granted, never more.
    pub lost_refunds: u64,
}

/// The time of tests, in microseconds, how many calls they wait for, and the runtime of the tasks
/// that are spawned.
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
    /// Whether a limit of permits in use was made.
    has_counting: AtomicBool,
    shares: Shares,
    /// The runtime that does the work; none if a model does.
    runtime: OnceLock<Handle>,
    /// Whether that is the runtime of a user, and not that of a thread of the store.
    is_on_runtime: bool,
}

/// What the thread and the handles share.
struct Shared {
    servers: Servers,
    timeout: Duration,
    in_flight: AtomicUsize,
    /// The last call took more than a quarter of the deadline, or there was none.
    is_far: AtomicBool,
    counters: Counters,
    trouble: Mutex<Option<StoreError>>,
    clients: Clients,
    events: Option<Arc<dyn Events>>,
    /// When the store answered last, or was opened.
    answered: Mutex<Instant>,
}

#[derive(Default)]
struct Counters {
    answered: AtomicU64,
    unknown: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
    misconfigured: AtomicU64,
    degraded: AtomicU64,
    lost_refunds: AtomicU64,
}

/// Work for the thread.
enum Work {
    Call(Call),
    Task(Task),
}

/// It ends with the store, if not before.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A call for the thread.
struct Call {
    place: InFlight,
    /// How long its requests waited for it already.
    waited: Duration,
    by_hash: Arc<Cmd>,
    script: Arc<Script>,
    /// It was sent already.
    begun: Option<Begun>,
    answer: Owed,
}

type Answer = Box<dyn FnOnce(Result<Value, Away>) + Send>;

/// The answer of a call. Dropped without one, it tells that the store is away.
struct Owed {
    answer: Option<Answer>,
    shared: Arc<Shared>,
    /// The call may have been carried out.
    is_sent: bool,
}

impl Owed {
    fn answer(mut self, outcome: Result<Value, Away>) {
        if let Some(answer) = self.answer.take() {
            answer(outcome);
        }
    }
}

impl Drop for Owed {
    /// The runtime that makes the calls has ended.
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            answer(Err(self.shared.ended(self.is_sent)));
        }
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
    /// It may be asked again after this time.
    For(Duration),
    /// It is not as it must be, and that is no outage.
    Misconfigured,
}

impl Store {
    /// Opens a store with the default settings: a deadline of 50 ms, and
    /// [closed](WhileAway::Closed) while it is away.
    ///
    /// # Errors
    ///
    /// As [`StoreBuilder::open`].
    pub fn open(url: &str) -> Result<Store, OpenError> {
        Store::builder(url).open()
    }

    /// The settings of a store at an [address](crate#addresses), such as
    /// `redis://[user:password@]host[:port][/database]` or `redis+unix:///path`.
    pub fn builder(url: impl Into<String>) -> StoreBuilder {
        StoreBuilder {
            url: url.into(),
            prefix: "tidegate".into(),
            timeout: Duration::from_millis(50),
            while_away: WhileAway::Closed,
            events: None,
            is_on_runtime: false,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// The error of the last call to the store; `None` if that call was answered, or if none was
    /// made.
    #[must_use]
    pub fn trouble(&self) -> Option<StoreError> {
        lock(&self.0.shared.trouble).clone()
    }

    /// Whether the store did not answer lately, so that it is left alone for a while.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.0.shared.servers.is_away()
    }

    /// How often the store was asked, and what became of it.
    #[must_use]
    pub fn counts(&self) -> Counts {
        // Relaxed: each number by itself.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { answered, unknown, failed, skipped, misconfigured, degraded, lost_refunds } =
            &self.0.shared.counters;
        Counts {
            answered: read(answered),
            unknown: read(unknown),
            failed: read(failed),
            skipped: read(skipped),
            misconfigured: read(misconfigured),
            degraded: read(degraded),
            lost_refunds: read(lost_refunds),
        }
    }

    /// Has every grant of the store that is used told to a function, for programs that check the
    /// bound of a limit. The first function stays.
    #[doc(hidden)]
    pub fn log_grants(&self, log: impl Fn(&str, i64, u64) + Send + Sync + 'static) {
        _ = self.0.grant_log.set(Box::new(log));
    }

    pub(crate) fn log_grant(&self, key: &str, due: i64, permits: u64) {
        if let Some(log) = self.0.grant_log.get() {
            log(key, due, permits);
        }
    }

    /// How many processes ask this store under its prefix, this one included, as the store saw it
    /// last; `None` before the first answer.
    ///
    /// The number is asked for every two seconds, and more often at first, while
    /// [`WhileAway::Share`] is set, and once a limiter [leases](crate::LimiterBuilder::leased). A
    /// process that ended counts for up to half a minute more, so that shares are rather too small.
    #[must_use]
    pub fn clients(&self) -> Option<NonZeroU32> {
        self.0.shared.clients.get()
    }

    /// By how many processes a limit is shared while the store is away; `None` if it is not shared,
    /// or if their number is not known yet.
    pub(crate) fn processes(&self) -> Option<NonZeroU32> {
        match self.0.while_away {
            WhileAway::Share => self.clients(),
            WhileAway::ShareOf(processes) => Some(processes),
            WhileAway::Open | WhileAway::Closed => None,
        }
    }

    /// The limiter of this process for the limits of a tag, while the store is away; `None` if this
    /// process grants no shares.
    pub(crate) fn share<'a>(
        &self,
        tag: &str,
        limits: impl Iterator<Item = (&'a str, &'a PolicyConfig)>,
    ) -> Option<Result<AllOf, AllRefusal>> {
        let processes = self.processes()?;
        let silence = lock(&self.0.shared.answered).elapsed();
        let outage = Outage { processes, silence, time: self.0.shared.clients.server_time() };
        Some(self.0.shares.limiter(tag, limits, outage))
    }

    /// The time that scripts are to decide by: none but in tests of this crate, where it is set.
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

    /// Has tasks run in this runtime, of which time may be paused.
    #[cfg(test)]
    pub(crate) fn set_tasks(&self, runtime: tokio::runtime::Handle) {
        _ = self.0.test.tasks.set(runtime);
    }

    /// How many calls are not answered yet.
    #[cfg(test)]
    pub(crate) fn pending(&self) -> usize {
        self.0.test.pending.load(Ordering::SeqCst)
    }

    /// Notes that a limit of permits in use is made, for the next check.
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
        self.0.shared.counters.degraded.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_lost_refunds(&self, refunds: usize) {
        let refunds = u64::try_from(refunds).unwrap_or(u64::MAX);
        self.0.shared.counters.lost_refunds.fetch_add(refunds, Ordering::Relaxed);
    }

    /// Notes an answer that makes no sense.
    pub(crate) fn note_nonsense(&self) -> Away {
        let shared = &self.0.shared;
        shared.counters.misconfigured.fetch_add(1, Ordering::Relaxed);
        shared.tell(StoreEvent::Misconfigured);
        *lock(&shared.trouble) = Some(StoreError::wrong("its answer makes no sense"));
        Away::Misconfigured
    }

    /// Has a call carried out, and its outcome given to a function on the thread of the store.
    pub(crate) fn send(
        &self,
        by_hash: Cmd,
        script: Arc<Script>,
        answer: impl FnOnce(Result<Value, Away>) + Send + 'static,
    ) {
        drop(self.send_locked(by_hash, script, Duration::ZERO, answer));
    }

    /// As [`send`](Store::send), for a caller that holds a lock, and whose requests waited so long
    /// for this call: it has an answer at the deadline less that time.
    pub(crate) fn send_locked(
        &self,
        by_hash: Cmd,
        script: Arc<Script>,
        waited: Duration,
        answer: impl FnOnce(Result<Value, Away>) + Send + 'static,
    ) -> Option<Unsent> {
        #[cfg(test)]
        let answer = {
            let pending = self.0.test.pending.clone();
            pending.fetch_add(1, Ordering::SeqCst);
            move |outcome| {
                answer(outcome);
                pending.fetch_sub(1, Ordering::SeqCst);
            }
        };
        let shared = self.0.shared.clone();
        let mut answer = Owed { answer: Some(Box::new(answer)), shared, is_sent: false };
        let (place, before) = InFlight::new(&self.0.shared);
        if before >= MOST_IN_FLIGHT {
            return Some(Unsent { answer: Some(answer), is_busy: true });
        }
        let (by_hash, calls) = (Arc::new(by_hash), &self.0.calls);
        // Calls that come during a call leave together, and behind it.
        let is_alone = before == 0 && self.0.shared.is_in_time(waited);
        let begun = is_alone.then(|| self.0.shared.servers.begin(&by_hash, &calls.waker())).flatten();
        let is_sent = begun.is_some();
        answer.is_sent = is_sent;
        let call = Work::Call(Call { place, waited, by_hash, script, begun, answer });
        match if is_sent { calls.add_quietly(call) } else { calls.add(call) } {
            Err(Work::Call(call)) => Some(Unsent { answer: Some(call.answer), is_busy: false }),
            _ => None,
        }
    }

    /// Within which time each call has an answer.
    pub(crate) fn timeout(&self) -> Duration {
        self.0.shared.timeout
    }

    /// Whether a call takes so long that a second one may not end within the deadline.
    pub(crate) fn is_far(&self) -> bool {
        self.0.shared.is_far.load(Ordering::Relaxed)
    }

    /// Has a task run on the thread of the store. Returns whether there is one.
    pub(crate) fn spawn(&self, task: Task) -> bool {
        #[cfg(test)]
        if let Some(runtime) = self.0.test.tasks.get() {
            runtime.spawn(task);
            return true;
        }
        self.0.calls.add(Work::Task(task)).is_ok()
    }

    /// Whether the runtime that makes calls has ended: no call is made from now on.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.calls.is_over()
    }

    /// What became of permits on lease, of all limiters that
    /// [lease](crate::LimiterBuilder::leased).
    #[must_use]
    pub fn lease_counts(&self) -> LeaseCounts {
        self.0.leases.read()
    }

    /// Has the processes counted that ask this store.
    pub(crate) fn count_processes(&self) {
        self.0.shared.clients.wanted.notify_one();
    }

    pub(crate) fn lease_counters(&self) -> &Arc<LeaseCounters> {
        &self.0.leases
    }

    /// Waits for a future on this thread. `None`, without polling it, where that must not be: for
    /// such a handle, and on a thread that makes the calls.
    pub(crate) fn block_on<T>(&self, blocks: Blocks, future: impl Future<Output = T>) -> Option<T> {
        self.block_on_until(blocks, || false, future)
    }

    /// Waits for a permit on this thread, as [`block_on`](Store::block_on) does, until a token of
    /// the thread is cancelled.
    pub(crate) fn block_on_permits(
        &self,
        blocks: Blocks,
        wait: AcquireAny,
    ) -> Option<Result<AllPermits, AllRefusal>> {
        let mut cancellable = match Cancellable::begin() {
            Ok(cancellable) => cancellable,
            Err(cancelled) => return Some(Err(cancelled.into())),
        };
        let answer = self.block_on_until(blocks, || cancellable.ends(), wait);
        if answer.is_none() && cancellable.ends() {
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
        let is_own = |runtime: &Handle| Handle::try_current().is_ok_and(|own| own.id() == runtime.id());
        if blocks == Blocks::No || self.0.is_on_runtime && runtime.is_some_and(is_own) {
            return None;
        }
        block_on(runtime, ends, future)
    }

    pub(crate) async fn ask(&self, by_hash: Cmd, script: Arc<Script>) -> Result<Value, Away> {
        let (sender, receiver) = oneshot::channel();
        self.send(by_hash, script, move |answer| _ = sender.send(answer));
        receiver.await.unwrap_or(Err(Away::For(Duration::MAX)))
    }
}

impl fmt::Debug for Store {
    /// Without the address, which may have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("prefix", &self.0.prefix)
            .field("timeout", &self.0.shared.timeout)
            .field("while_away", &self.0.while_away)
            .finish_non_exhaustive()
    }
}

impl StoreBuilder {
    /// Sets the first part of all keys, `tidegate` unless set.
    pub fn prefix(self, prefix: impl Into<String>) -> StoreBuilder {
        StoreBuilder { prefix: prefix.into(), ..self }
    }

    /// Sets within which time each call has an answer, connecting included. 50 ms unless set, and
    /// at most a year.
    pub fn timeout(self, timeout: Duration) -> StoreBuilder {
        // No clock can tell the end of a much longer one.
        StoreBuilder { timeout: timeout.min(Duration::from_secs(365 * 86_400)), ..self }
    }

    /// Sets how limiters decide while the store does not answer.
    pub fn while_away(self, while_away: WhileAway) -> StoreBuilder {
        StoreBuilder { while_away, ..self }
    }

    /// Sets the certificates of encrypted connections, for an address that begins with `rediss`.
    /// Any other address is then refused by [`open`](StoreBuilder::open).
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: Tls) -> StoreBuilder {
        StoreBuilder { tls: Some(tls), ..self }
    }

    /// What makes connections encrypted ones, if the address asks for that.
    fn connector(&self) -> Result<Option<Connector>, OpenError> {
        #[cfg(feature = "tls")]
        return match (wants_tls(&self.url), &self.tls) {
            (true, tls) => Connector::new(tls.as_ref().unwrap_or(&Tls::new())).map(Some),
            // Certificates say that the connection is to be encrypted.
            (false, Some(_)) => Err(OpenError::Address),
            (false, None) => Ok(None),
        };
        #[cfg(not(feature = "tls"))]
        return match wants_tls(&self.url) {
            true => Err(OpenError::NoTls),
            false => Ok(None),
        };
    }

    /// Sets the observer of all limiters of the store, and of the calls to it. It is told of no tag
    /// and of no key. [`Events::store`] is called on the thread of the store or its
    /// [runtime](StoreBuilder::on_this_runtime), or of the caller where too many calls are in
    /// flight: be quick. A call there that would block the thread is
    /// refused at once, as [`StoreLimiter`](crate::StoreLimiter) tells.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::Statistics;
    /// use tidegate_redis::Store;
    ///
    /// let statistics = Arc::new(Statistics::new());
    /// let store =
    ///     Store::builder("redis://127.0.0.1").observed_by(statistics.clone()).open()?;
    /// assert_eq!(statistics.snapshot().degraded, 0);
    /// # Ok::<(), tidegate_redis::OpenError>(())
    /// ```
    pub fn observed_by(self, events: Arc<dyn Events>) -> StoreBuilder {
        StoreBuilder { events: Some(events), ..self }
    }

    /// Has tasks of the tokio runtime in which the store is [opened](StoreBuilder::open) do the
    /// work, in place of a thread of its own.
    ///
    /// The answer to a request of this runtime comes by no other thread, which is a sixth of the
    /// time of a request that is alone. Many requests at a time share calls, and gain less. Choose
    /// this where the requests come from tasks of one runtime that lasts as long as the store. Keep
    /// the thread where other runtimes and plain threads ask as well, where calls block, and where
    /// tasks of the runtime work for long between two awaits: the deadline of a call is kept by the
    /// runtime, which must run, with its drivers of time and of the network enabled, and without
    /// paused time.
    ///
    /// - **A call that blocks** would wait for itself on a thread of this runtime. It is refused
    ///   there at once, as [`StoreLimiter`](crate::StoreLimiter) tells, also within
    ///   `spawn_blocking`. Other threads can make such calls.
    /// - **When the runtime ends**, the store ends. Calls in flight are counted as
    ///   [unknown](Counts::unknown), and their requests and all that follow are decided as
    ///   [`WhileAway`] says. No request waits for an answer that cannot come.
    /// - **Another runtime** may use the store. Its requests make the hop.
    /// - **Events** of the store are told on threads of the runtime.
    ///
    /// A store that a [configuration](crate::LimiterConfig) opens has a thread;
    /// [`LimiterConfig::build_over`](crate::LimiterConfig::build_over) takes any store.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate_redis::Store;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::builder("redis://127.0.0.1").on_this_runtime().open()?;
    /// let limit = "token_bucket 100/s burst 20".parse()?;
    /// let limiter = store.limiter("all").limit("calls", limit).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_this_runtime(self) -> StoreBuilder {
        StoreBuilder { is_on_runtime: true, ..self }
    }

    /// Opens the store. It connects when it is first asked.
    ///
    /// # Errors
    ///
    /// An [`OpenError`] if the address or the prefix cannot be used, if no thread can be started,
    /// or if the store is to be [on a runtime](StoreBuilder::on_this_runtime) and the caller is in
    /// none.
    pub fn open(self) -> Result<Store, OpenError> {
        let address = Address::read(&self.url, self.connector()?.as_ref())?;
        let servers = Servers::at(address, crate::key::of_test(&self.prefix));
        let own = match self.is_on_runtime {
            true => Some(Handle::try_current().map_err(|_| OpenError::NoRuntime)?),
            false => None,
        };
        let (store, work) = self.parts(servers)?;
        if let Some(own) = own {
            own.spawn(work);
            _ = store.0.runtime.set(own);
            return Ok(store);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| OpenError::Thread { kind: error.kind() })?;
        _ = store.0.runtime.set(runtime.handle().clone());
        std::thread::Builder::new()
            .name("tidegate-redis".into())
            .spawn(move || {
                this_thread_makes_calls();
                // A task is woken by less than the future of `block_on` is.
                _ = runtime.block_on(runtime.spawn(work));
            })
            .map_err(|error| OpenError::Thread { kind: error.kind() })?;
        Ok(store)
    }

    /// The store of configurations with these settings in this process, which is opened if there
    /// is none. A process with several of them would count as several processes.
    pub(crate) fn open_shared(self) -> Result<Store, OpenError> {
        let settings = (self.url.clone(), self.prefix.clone(), self.timeout, self.while_away);
        let mut open = lock(&OF_CONFIGURATIONS);
        open.retain(|(_, store)| store.strong_count() > 0);
        let of_settings = open.iter().filter(|(of, _)| *of == settings);
        let mut stores = of_settings.filter_map(|(_, store)| store.upgrade().map(Store));
        // The thread of a store that is not closed ends by a panic alone.
        if let Some(store) = stores.find(|store| !store.has_ended()) {
            return Ok(store);
        }
        drop(stores);
        let store = self.open()?;
        open.push((settings, Arc::downgrade(&store.0)));
        Ok(store)
    }

    /// A store, and the work that answers its calls, for any runtime.
    pub(crate) fn parts(self, servers: Servers) -> Result<(Store, impl Future<Output = ()>), OpenError> {
        if !key::is_name(&self.prefix) {
            return Err(OpenError::Prefix { prefix: self.prefix });
        }
        let shared = Arc::new(Shared {
            servers,
            timeout: self.timeout,
            in_flight: AtomicUsize::new(0),
            is_far: AtomicBool::new(true),
            counters: Counters::default(),
            trouble: Mutex::default(),
            clients: Clients::default(),
            events: self.events,
            answered: Mutex::new(Instant::now()),
        });
        let (calls, received) = queue();
        let Self { prefix, while_away, is_on_runtime, .. } = self;
        let work = serve(received, shared.clone(), key::of_clients(&prefix));
        if matches!(while_away, WhileAway::Share | WhileAway::ShareOf(_)) {
            shared.clients.wanted.notify_one();
        }
        let (grant_log, leases, shares) = (OnceLock::new(), Arc::default(), Shares::default());
        let inner = Inner {
            #[cfg(test)]
            test: TestClock::default(),
            grant_log,
            calls,
            shared,
            prefix,
            while_away,
            leases,
            has_counting: AtomicBool::new(false),
            shares,
            runtime: OnceLock::new(),
            is_on_runtime,
        };
        Ok((Store(Arc::new(inner)), work))
    }
}

impl fmt::Debug for StoreBuilder {
    /// Without the address, which may have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBuilder")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("while_away", &self.while_away)
            .finish_non_exhaustive()
    }
}

/// The work of a store, until all handles are dropped and all calls are answered.
///
/// One task makes all calls, so that they leave in order on a runtime of several threads as well. A
/// call that is alone is sent before it gets here, and taken with its reply: no timer is set for it.
/// If it has no reply after a quarter of the deadline, it gets its timer then.
async fn serve(calls: queue::Work<Work>, shared: Arc<Shared>, key_of_clients: String) {
    // By the clock of the runtime, which may be paused.
    let began = Instant::now();
    let of_clients = shared.clone();
    let counting = tokio::spawn(async move { of_clients.count_clients(began, &key_of_clients).await });
    let mut running = FuturesUnordered::new();
    // When the runtime ends, this goes first: an answer that makes a call is refused.
    let mut calls = calls;
    let mut is_closed = false;
    // Calls that were sent are taken with their reply, and looked for at such intervals.
    let soon = shared.timeout / 4;
    let (mut look, mut is_watching) = (pin!(tokio::time::sleep(soon)), false);
    std::future::poll_fn(|context| {
        loop {
            while !is_closed && let Poll::Ready(work) = calls.poll_next(context) {
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
            match running.poll_next_unpin(context) {
                // Its answer may have made a call.
                Poll::Ready(Some(())) => continue,
                Poll::Ready(None) if is_closed => return Poll::Ready(()),
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
    /// Asks how many processes there are, again and again, once that is needed.
    async fn count_clients(&self, began: Instant, key: &str) {
        self.clients.wanted.notified().await;
        let script = clients::script();
        let mut beat = clients::FIRST_BEAT;
        loop {
            let question = self.clients.question(&script, key, None);
            if let Ok(answer) = self.carry_out(began, Duration::ZERO, &question, &script, None).await {
                self.clients.answered(&answer, Instant::now());
            }
            tokio::time::sleep(jittered(beat)).await;
            beat = (2 * beat).min(clients::BEAT);
        }
    }

    /// Answers a call that was sent, and whose reply is there. Else it is returned.
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
        let Call { place, waited, by_hash, script, begun, mut answer } = call;
        answer.is_sent = true;
        let outcome = self.carry_out(began, waited, &by_hash, &script, begun).await;
        drop(place);
        answer.answer(outcome);
    }

    /// Whether a call can be made whose requests waited so long for it.
    fn is_in_time(&self, waited: Duration) -> bool {
        self.timeout.saturating_sub(waited) >= self.timeout / 4
    }

    async fn carry_out(
        &self,
        began: Instant,
        waited: Duration,
        by_hash: &Cmd,
        script: &Script,
        begun: Option<Begun>,
    ) -> Result<Value, Away> {
        let count = |counter: &AtomicU64| _ = counter.fetch_add(1, Ordering::Relaxed);
        let (server, admission, asked) = match &begun {
            Some(begun) => (begun.server.clone(), Admission::Ask, Instant::from_std(begun.at)),
            None => {
                // Requests wait for a call that is in flight, so that one was slow, too.
                if !self.is_in_time(waited) {
                    return Err(self.skip(Duration::ZERO));
                }
                let server = self.servers.server_of(by_hash);
                let admission = lock(&server.breaker).admit(began.elapsed());
                if let Admission::Rest(rest) = admission {
                    return Err(self.skip(rest));
                }
                (server, admission, Instant::now())
            }
        };
        let sent = Sent::default();
        let call = self.servers.call(by_hash, script, begun, &sent);
        let left = self.timeout.saturating_sub(waited).saturating_sub(asked.elapsed());
        let outcome = tokio::time::timeout(left, call).await;
        let failure = match outcome {
            Ok(Ok(value)) => {
                self.replied(&server, admission, asked);
                return Ok(value);
            }
            Ok(Err(failure)) => failure,
            // A call that waited in line has less time for an answer.
            Err(_) if sent.give_up(waited <= self.timeout / 2) => {
                Failure::Unknown("did not answer in time".into())
            }
            Err(_) => Failure::NotRun("could not be connected to in time".into()),
        };
        self.is_far.store(asked.elapsed() > self.timeout / 4, Ordering::Relaxed);
        let counters = &self.counters;
        let (counter, event, error, is_away) = match failure {
            Failure::NotRun(text) => (&counters.failed, StoreEvent::Failed, StoreError::away(text), true),
            Failure::Unknown(text) => (&counters.unknown, StoreEvent::Unknown, StoreError::away(text), true),
            Failure::Misconfigured(text) => {
                (&counters.misconfigured, StoreEvent::Misconfigured, StoreError::wrong(text), false)
            }
        };
        count(counter);
        self.tell(event);
        *lock(&self.trouble) = Some(error);
        if !is_away {
            // The store does answer.
            self.answers(&server.breaker, admission);
            return Err(Away::Misconfigured);
        }
        let now = began.elapsed();
        let (has_opened, rest) = {
            let mut breaker = lock(&server.breaker);
            (breaker.failed(admission, now), breaker.rest(now))
        };
        if has_opened {
            self.tell(StoreEvent::Opened);
        }
        Err(Away::For(rest))
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
        self.is_far.store(took > self.timeout / 4, Ordering::Relaxed);
        *lock(&self.trouble) = None;
        *lock(&self.answered) = now;
        self.counters.answered.fetch_add(1, Ordering::Relaxed);
        self.tell(StoreEvent::Answered(took));
        self.answers(&server.breaker, admission);
    }

    /// A server answered a call.
    fn answers(&self, breaker: &Mutex<Breaker>, admission: Admission) {
        let has_closed = {
            let mut breaker = lock(breaker);
            let was_open = breaker.is_open();
            breaker.succeeded(admission);
            was_open && !breaker.is_open()
        };
        if has_closed {
            self.tell(StoreEvent::Closed);
        }
    }

    fn tell(&self, event: StoreEvent) {
        report(self.events.as_ref(), event);
    }
}

/// A place among the calls that are sent and not answered.
struct InFlight(Arc<Shared>);

impl InFlight {
    /// A place, and how many there were before.
    fn new(shared: &Arc<Shared>) -> (InFlight, usize) {
        (InFlight(shared.clone()), shared.in_flight.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let limiter = store.limiter("all").limit("calls", "fixed_window 5/d".parse().expect("a policy"));
        let limiter = tidegate::AnyLimiter::from(limiter.build().expect("a limiter"));
        assert!(calls.0.set(limiter.clone()).is_ok());
        for _ in 0..MOST_IN_FLIGHT + 100 {
            limiter.debit(1).expect("told");
        }
        // Each of them, and the call that the observer makes.
        assert_eq!(store.counts().skipped, 2 * 100);
    }
}
