//! Rate limits per key, in bounded memory.

#[cfg(feature = "config")]
mod apply;
mod change;
mod close;
pub(crate) mod counting;
mod entries;
pub(crate) mod events;
mod forget;
mod hashes;
mod key_limiters;
mod key_ref;
pub(crate) mod pause;
pub(crate) mod plan;
mod removed;
mod replan;
mod shadow;
mod shard;
pub(crate) mod slots;
pub(crate) mod table;
mod terms;

pub use counting::{KeyedCountingLimit, KeyedCountingPermit};
pub use events::KeyEvents;
pub use plan::Plan;

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use self::events::KeyedObserver;
use self::plan::Plans;
use self::table::{Attempt, Found, Table};
use crate::cancel::Cancellable;
use crate::clock::{DefaultClock, Timer};
use crate::error::{PolicyError, Refusal};
use crate::grant::Grant;
use crate::limiter::RateLimiter;
use crate::limiter::events::Events;
use crate::limiter::{Pause, Reservation};
use crate::policy::{Change, Policy, TokenBucket};
use crate::rate::Rate;
use crate::request::{QueueBounds, Request};
use crate::status::Status;
use crate::time::Nanos;

/// A rate limiter per key. All keys share one policy, or each key has a
/// [plan](KeyedRateLimiter::with_plans). Each key has its own state, and at most `max_keys` keys
/// are known.
///
/// A key is known from its first request on, and starts as a new limiter does. A key is *idle* when
/// it has all its permits, has no negative balance, and no permit counts in its window. A key of
/// [`SmoothWarmingUp`](crate::SmoothWarmingUp) is idle when it is cold, too. An idle key
/// may be forgotten: when a new key needs its slot, or when the key has been idle for a minute and
/// new keys arrive. A limited key is never forgotten, unless you
/// [ask for it](WhenKeysFull::EvictLeastUsed). The calls themselves forget keys: each new key
/// examines a few slots of the table. There is no background thread, no timer, and no method that
/// you must call. A new key that meets a full table of more than 512 keys examines at most 4,096
/// slots, and 64 if all slots have just been examined in vain: it may be refused while a few keys
/// are idle.
///
/// A key that returns after it was forgotten never has more permits than if it had stayed, except
/// in these cases. In the meantime a change of all keys made a window longer or a burst larger, or
/// a change of all keys soon after a pause raised the rate of one of Guava's policies, whose
/// negative balance is a time. Or the key had a [plan](KeyedRateLimiter::with_plans) with
/// [`DenyAll`](crate::DenyAll): a denied key has no permits, and so may be forgotten.
///
/// With a policy that starts empty, such as [`SmoothBursty`](crate::SmoothBursty), a key that
/// returns starts empty again. With [`SmoothWarmingUp`](crate::SmoothWarmingUp), each key starts
/// cold, even if the policy [starts warm](crate::SmoothWarmingUp::start_warm).
///
/// | call | if the permits are not due now |
/// |---|---|
/// | [`try_acquire`](KeyedRateLimiter::try_acquire), [`try_acquire_many`](KeyedRateLimiter::try_acquire_many) | refuses at once |
/// | [`acquire`](KeyedRateLimiter::acquire), [`acquire_many`](KeyedRateLimiter::acquire_many) | waits in a queue for this key |
/// | [`acquire_within`](KeyedRateLimiter::acquire_within) | waits if they are due within a given time, otherwise refuses at once |
/// | [`limiter`](KeyedRateLimiter::limiter) | returns a [`RateLimiter`] for one key |
///
/// | call | changes |
/// |---|---|
/// | [`with_plans`](KeyedRateLimiter::with_plans), [`replan`](KeyedRateLimiter::replan) | the policy of each key |
/// | [`change_all`](KeyedRateLimiter::change_all), [`set_rate_all`](KeyedRateLimiter::set_rate_all) | the rate or burst of all keys without a plan |
/// | [`set_rate`](KeyedRateLimiter::set_rate) | the rate of one key, which then keeps its own rate |
/// | [`refund`](KeyedRateLimiter::refund), [`debit`](KeyedRateLimiter::debit) | the permits of one key |
/// | [`pause_all`](KeyedRateLimiter::pause_all), [`resume_all`](KeyedRateLimiter::resume_all) | whether any key gets permits |
/// | [`set_shadow_all`](KeyedRateLimiter::set_shadow_all) | whether any key refuses a request |
/// | [`remove`](KeyedRateLimiter::remove) | one key, which starts over |
///
/// An observer can be notified of [the calls for all keys](KeyedRateLimiter::observed_by), or of
/// [each call with its key](KeyedRateLimiter::observed_by_key). [`Statistics`](crate::Statistics)
/// is an observer that counts the calls.
///
/// Clones share one table. A clone costs one reference count.
///
/// The number of keys is bounded. The number of waiting requests is unbounded, unless you
/// [bound it](KeyedRateLimiter::set_max_waiting). If you do not trust your callers, refuse instead
/// of waiting, or wait [within a time](KeyedRateLimiter::acquire_within).
///
/// # Cost
///
/// A known key costs the memory of its key and its state, plus free slots in the table. For a `u64`
/// and a [`TokenBucket`], this is about 21 bytes when the limiter is full, and up to twice that
/// before. A key costs a whole limiter, about 2200 bytes, while a request waits for it or a caller
/// holds its [`limiter`](KeyedRateLimiter::limiter). The last wait that ends frees this memory. If
/// a [`limiter`](KeyedRateLimiter::limiter) or a reservation was the last user, the next call for
/// that key frees it, or new keys do, a few at a time.
///
/// A request for a known key takes a read lock on a small part of the table, and readers do not
/// slow each other down. The request blocks only while a key is added to that part or forgotten,
/// which takes well below a microsecond, or while [all keys change](KeyedRateLimiter::change_all).
/// The permit itself is taken by compare-and-swap, as in a plain limiter.
///
/// Calls take the key by reference, in its borrowed form: a `&str` for a `String`. The borrowed
/// form must implement `ToOwned`, because a new key is stored. For `Arc<str>` keys, pass
/// `&Arc<str>`.
///
/// A custom policy is cloned for each key with waiting requests, and for each known key when
/// [all keys change](KeyedRateLimiter::change_all). A clone must read an existing state exactly as
/// the original does.
///
/// # Keys
///
/// Each limiter hashes keys with its own seed. The following code runs while a part of the table is
/// locked, and must not call the limiter: `Eq` of a key, `Hash` of the known keys, and `Clone` of
/// the keys when they are [listed](KeyedRateLimiter::iter) or get
/// [new plans](KeyedRateLimiter::replan). `Drop` of a key may call the limiter. If any of this code
/// panics, the panic reaches the call that ran it, and no key is lost or counted twice.
///
/// # Fairness
///
/// Requests of equal priority for one key are served first come, first served. Keys do not affect
/// each other.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{KeyedRateLimiter, ManualClock, Rate, Refusal, TokenBucket};
///
/// let clock = ManualClock::new();
/// let policy = TokenBucket::new(Rate::per_second(5), 2);
/// let users: KeyedRateLimiter<String, _, _> =
///     KeyedRateLimiter::with_clock(policy, 100_000, clock.clone());
/// users.try_acquire("alice")?;
/// users.try_acquire("alice")?;
/// let retry_after = Duration::from_millis(200).into();
/// let refused = users.try_acquire("alice");
/// assert_eq!(refused, Err(Refusal::Limited { retry_after }));
/// users.try_acquire("bob")?;
/// assert_eq!(users.len(), 2);
/// # Ok::<(), Refusal>(())
/// ```
///
/// For a limit per user and a limit for all users together, see
/// [`KeyedAllOf`](crate::KeyedAllOf).
pub struct KeyedRateLimiter<K, P: Policy + Clone = TokenBucket, C: Timer = DefaultClock> {
    table: Arc<Table<K, P, C>>,
}

/// What happens to a new key when the table is full of limited keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenKeysFull {
    /// Requests for the new key are refused with [`Refusal::TooManyKeys`]. During a flood of keys,
    /// legitimate new keys are refused too, so choose `max_keys` well above the number of keys that
    /// are limited at one time. An HTTP server responds with 503 rather than 429, because this
    /// client did not ask for too much.
    #[default]
    RefuseNew,
    /// All keys without room share one limiter with the policy of all keys.
    ShareOne,
    /// The new key replaces the key that becomes idle soonest among some neighbours in the table.
    /// The replaced key can then get more than its limit, and an attacker with enough keys can free
    /// any key from its limit. Choose this where a wrong count is better than a refusal. A key with
    /// waiting requests or with its own settings is not replaced. If the table has no other keys,
    /// the new key is refused.
    EvictLeastUsed,
}

impl<K, P> KeyedRateLimiter<K, P>
where
    K: Hash + Eq,
    P: Policy + Clone,
{
    /// Creates a limiter for at most `max_keys` keys, each with this policy, on the default clock.
    ///
    /// When `max_keys` keys are limited at one time, new keys are refused. Choose another behaviour
    /// with [`when_full`](KeyedRateLimiter::when_full). With a `max_keys` of 0, every key is
    /// refused. Memory is allocated as keys arrive.
    #[must_use]
    pub fn new(policy: P, max_keys: usize) -> Self {
        KeyedRateLimiter::with_clock(policy, max_keys, DefaultClock::new())
    }
}

impl<K, P, C> KeyedRateLimiter<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// Creates a limiter for at most `max_keys` keys, each with this policy, on this clock.
    #[must_use]
    pub fn with_clock(policy: P, max_keys: usize, clock: C) -> Self {
        let table = Table::new(policy, max_keys, WhenKeysFull::default(), clock);
        KeyedRateLimiter { table: Arc::new(table) }
    }

    /// Returns a new, empty limiter that uses `choice` when it is full. Known keys are not carried
    /// over, so call this before the first request.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, TokenBucket, WhenKeysFull};
    ///
    /// let policy = TokenBucket::new(Rate::per_minute(1), 1);
    /// let limiter = KeyedRateLimiter::with_clock(policy, 1, ManualClock::new())
    ///     .when_full(WhenKeysFull::ShareOne);
    /// limiter.try_acquire(&1)?;
    /// // No room: 2 and 3 share a limiter.
    /// limiter.try_acquire(&2)?;
    /// assert!(limiter.try_acquire(&3).is_err());
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    #[must_use]
    pub fn when_full(self, choice: WhenKeysFull) -> Self {
        self.recreate(choice, self.table.events.clone(), self.table.plans.clone())
    }

    /// Returns a new, empty limiter whose keys get their policies from a function. Known keys are
    /// not carried over, so call this before the first request.
    ///
    /// The function returns the [`Plan`] of a key, or `None` for the policy of all keys. It is
    /// called each time a key is added: at the first request for the key, and when the key returns
    /// after it was forgotten. So plans keep no keys in memory: a thousand customers with their own
    /// rates are forgotten like all other keys. When the plans have changed, call
    /// [`replan`](KeyedRateLimiter::replan).
    ///
    /// Return clones of one plan for all keys that share it. Such a key costs one address more than
    /// a key without plans, about 10 bytes. A plan made for a single key takes about 350 bytes
    /// while the key is known.
    ///
    /// The function runs without a lock, so it may block and may call this limiter. If it panics,
    /// the panic reaches the call that needed the plan, and no key is added. The function may be
    /// called for a request that is then refused, and more than once for one new key.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use tidegate::keyed::Plan;
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, TokenBucket};
    ///
    /// let pro = Plan::new(TokenBucket::new(Rate::per_second(50), 100));
    /// let plans = HashMap::from([("alice".to_string(), pro)]);
    ///
    /// let free = TokenBucket::new(Rate::per_second(5), 10);
    /// let users: KeyedRateLimiter<String, _, _> =
    ///     KeyedRateLimiter::with_clock(free, 100_000, ManualClock::new())
    ///         .with_plans(move |user| plans.get(user).cloned());
    /// users.try_acquire_many("alice", 60)?;
    /// assert_eq!(users.status("alice").available, 40);
    /// assert_eq!(users.status("bob").available, 10);
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    #[must_use]
    pub fn with_plans(self, plans: impl Fn(&K) -> Option<Plan<P>> + Send + Sync + 'static) -> Self {
        self.recreate(self.table.when_full, self.table.events.clone(), Some(Plans::new(plans)))
    }

    /// Returns a new, empty limiter with this limiter's policy, clock and maximum number of keys.
    fn recreate(
        &self,
        when_full: WhenKeysFull,
        events: Option<KeyedObserver<K>>,
        plans: Option<Plans<K, P>>,
    ) -> Self {
        let Table { max_keys, clock, shards, all_waiters, .. } = &*self.table;
        let (policy, clock, of_keys) = (self.table.policy(), clock.clone(), (events, plans));
        let table = Table::with_shards(policy, *max_keys, when_full, clock, shards.len(), of_keys);
        table.all_waiters.set_bounds(all_waiters.bounds());
        KeyedRateLimiter { table: Arc::new(table) }
    }

    /// Returns a new, empty limiter that reports its calls for all keys to `events`. Known keys are
    /// not carried over, so call this before the first request.
    ///
    /// The observer gets the events of a [`RateLimiter`](RateLimiter::observe), once for each call:
    /// grants with the time waited, refusals, including [`TooManyKeys`](Refusal::TooManyKeys),
    /// dropped waits, and changes made through the [`limiter`](KeyedRateLimiter::limiter) of a key.
    /// An event does not name its key, except with
    /// [`observed_by_key`](KeyedRateLimiter::observed_by_key). If the limiter of one key has its
    /// own observer, that observer is notified after this one. Observing all keys does not keep a
    /// key from being forgotten.
    ///
    /// A second observer replaces the first; a pair of observers is an observer. A limiter without
    /// an observer pays one comparison for each call.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, Statistics, TokenBucket};
    ///
    /// let statistics = Arc::new(Statistics::new());
    /// let policy = TokenBucket::new(Rate::per_second(5), 1);
    /// let users = KeyedRateLimiter::with_clock(policy, 2, ManualClock::new())
    ///     .observed_by(statistics.clone());
    /// for user in ["alice", "alice", "bob", "carol"] {
    ///     if let Err(refusal) = users.try_acquire(&user) {
    ///         println!("{user}: {refusal}");
    ///     }
    /// }
    /// let snapshot = statistics.snapshot();
    /// assert_eq!((snapshot.granted, snapshot.limited), (2, 1));
    /// assert_eq!(snapshot.too_many_keys, 1);
    /// ```
    #[must_use]
    pub fn observed_by(self, events: Arc<dyn Events>) -> Self {
        let events = KeyedObserver::with_all(self.table.events.as_ref(), events);
        self.recreate(self.table.when_full, Some(events), self.table.plans.clone())
    }

    /// Like [`observed_by`](KeyedRateLimiter::observed_by), for an observer that receives the key
    /// of each call.
    ///
    /// Each call clones its key and makes one allocation. Calls for keys without room that
    /// [share](WhenKeysFull::ShareOne) one limiter are not reported.
    ///
    /// A limiter may have one observer that receives the key and one that does not. A second
    /// observer of the same kind replaces the first. For an example, see [`KeyEvents`].
    #[must_use]
    pub fn observed_by_key(self, events: Arc<dyn KeyEvents<K>>) -> Self
    where
        K: Send + Sync + 'static,
    {
        let events = KeyedObserver::with_key(self.table.events.as_ref(), events);
        self.recreate(self.table.when_full, Some(events), self.table.plans.clone())
    }

    /// Bounds the requests that wait for all keys together: at most `requests` requests, for at
    /// most `permits` permits in total. A new limiter has no such bound. Each key can have
    /// [its own bounds](RateLimiter::set_queue_bounds) besides.
    ///
    /// A request that would have to wait beyond a bound is refused with [`Refusal::QueueFull`]. Its
    /// `retry_after` is the time after which the request would not have to wait, if no other
    /// request arrives. No waiting request is dropped to make room. A request whose permits are due
    /// is granted even if no request may wait. All requests that wait for a key count, including
    /// reservations, requests made through the [`limiter`](KeyedRateLimiter::limiter) of a key, and
    /// requests that wait at the limiter of a key after the key was removed. Requests of an
    /// [`AllOf`](crate::AllOf) wait at the `AllOf`, and do not count.
    ///
    /// The bounds apply to requests made from now on. Requests that already wait stay.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, Refusal, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 1);
    /// let users = KeyedRateLimiter::with_clock(policy, 100, ManualClock::new());
    /// users.set_max_waiting(2, u64::MAX);
    /// for user in ["alice", "bob", "carol"] {
    ///     users.try_acquire(&user)?;
    /// }
    /// let _reservations = (users.reserve(&"alice", 1)?, users.reserve(&"bob", 1)?);
    /// assert_eq!(users.waiting(), 2);
    /// assert!(matches!(users.reserve(&"carol", 1), Err(Refusal::QueueFull { .. })));
    /// users.try_acquire(&"dave")?;
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn set_max_waiting(&self, requests: usize, permits: u64) {
        let bounds = QueueBounds::UNBOUNDED.max_waiters(requests).max_permits(permits);
        self.table.all_waiters.set_bounds(bounds);
    }

    /// Returns how many requests wait for all keys together.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.table.all_waiters.requests()
    }

    pub(crate) fn table(&self) -> &Arc<Table<K, P, C>> {
        &self.table
    }

    /// Takes one permit of a key now, or refuses.
    ///
    /// # Errors
    ///
    /// - [`Refusal::Limited`] if no permit of this key is due, or if other requests wait for it.
    /// - [`Refusal::Paused`] if the key is paused, by itself or with
    ///   [all keys](KeyedRateLimiter::pause_all_for).
    /// - [`Refusal::Closed`] if the key is closed, by itself or with
    ///   [all keys](KeyedRateLimiter::close).
    /// - [`Refusal::TooManyKeys`] if the key is new and there is no room for it.
    #[inline]
    pub fn try_acquire<Q>(&self, key: &Q) -> Result<Grant, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.table.try_acquire(key, &Request::permits(1))
    }

    /// Takes the permits of a [`Request`] from a key now, or refuses. The request may be a plain
    /// number.
    ///
    /// # Errors
    ///
    /// The errors of [`try_acquire`](KeyedRateLimiter::try_acquire), and:
    ///
    /// - [`Refusal::ZeroPermits`] if the request asks for no permits.
    /// - [`Refusal::ExceedsLimit`] if the policy can never grant this many permits at once.
    #[inline]
    pub fn try_acquire_many<Q>(&self, key: &Q, request: impl Into<Request>) -> Result<Grant, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.table.try_acquire(key, &request.into())
    }

    /// Takes the permits of a [`Request`] from a key now, or refuses, and returns the status of the
    /// key in both cases. See [`RateLimiter::try_acquire_with_status`].
    ///
    /// # Errors
    ///
    /// The errors of [`try_acquire_many`](KeyedRateLimiter::try_acquire_many), together with the
    /// status.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{KeyedRateLimiter, Rate, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_hour(5), 10);
    /// let users: KeyedRateLimiter<String> = KeyedRateLimiter::new(policy, 1000);
    /// let (answer, status) = users.try_acquire_with_status("alice", 8);
    /// assert!(answer.is_ok());
    /// assert_eq!((status.limit, status.available), (10, 2));
    /// ```
    pub fn try_acquire_with_status<Q>(
        &self,
        key: &Q,
        request: impl Into<Request>,
    ) -> (Result<Grant, Refusal>, Status)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let request = request.into().with_left();
        let answer = self.try_acquire_many(key, request);
        (answer, self.status(key).as_decided(&request, &answer))
    }

    /// Waits for one permit of a key. The [`Grant`] holds the time waited.
    ///
    /// # Fairness
    ///
    /// Futures of equal priority for one key are served in the order of their first poll.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the request and costs no permits.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](KeyedRateLimiter::acquire_many).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{KeyedRateLimiter, Rate, TokenBucket, TokioClock};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tidegate::Refusal> {
    /// let policy = TokenBucket::new(Rate::per_second(5), 1);
    /// let users: KeyedRateLimiter<String, _, _> =
    ///     KeyedRateLimiter::with_clock(policy, 1000, TokioClock::new());
    /// assert_eq!(users.acquire("alice").await?.waited(), Duration::ZERO);
    /// assert_eq!(users.acquire("alice").await?.waited(), Duration::from_millis(200));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire<Q>(&self, key: &Q) -> Result<Grant, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.acquire_many(key, 1).await
    }

    /// Waits for the permits of a [`Request`] from a key. The request may be a plain number. The
    /// [`Grant`] holds the time waited.
    ///
    /// # Errors
    ///
    /// - [`Refusal::TooManyKeys`] if the key is new and there is no room for it.
    /// - [`Refusal::QueueFull`], even if only the waiters of all keys together are
    ///   [bounded](KeyedRateLimiter::set_max_waiting).
    /// - [`Refusal::Closed`] if the key or [all keys](KeyedRateLimiter::close) are closed.
    /// - The other errors of [`RateLimiter::acquire_many`].
    pub async fn acquire_many<Q>(&self, key: &Q, request: impl Into<Request>) -> Result<Grant, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let request = request.into();
        match self.table.take_or_limiter(key, &request)? {
            Attempt::Granted(grant) => Ok(grant),
            Attempt::Limiter(limiter) => limiter.acquire_many(request).await,
        }
    }

    /// Waits for one permit of a key if it is due within a given time. Otherwise refuses at once
    /// and takes no permit.
    ///
    /// # Errors
    ///
    /// - [`Refusal::TooManyKeys`] if the key is new and there is no room for it.
    /// - The errors of [`RateLimiter::acquire_within`].
    pub async fn acquire_within<Q>(&self, key: &Q, within: Duration) -> Result<Grant, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.acquire_many(key, Request::permits(1).within(within)).await
    }

    /// Blocks the calling thread until it has one permit of a key. The [`Grant`] holds the time
    /// waited.
    ///
    /// # Errors
    ///
    /// The errors of [`blocking_acquire_many`](KeyedRateLimiter::blocking_acquire_many).
    pub fn blocking_acquire<Q>(&self, key: &Q) -> Result<Grant, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.blocking_acquire_many(key, 1)
    }

    /// Blocks the calling thread until it has the permits of a [`Request`] from a key. The request
    /// may be a plain number. The [`Grant`] holds the time waited.
    ///
    /// Threads and tasks wait in one queue. Do not call this from a task: it blocks the executor's
    /// thread.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](KeyedRateLimiter::acquire_many), and [`Refusal::Cancelled`]
    /// if the call runs under a [`CancelToken`](crate::CancelToken) that is cancelled.
    pub fn blocking_acquire_many<Q>(&self, key: &Q, request: impl Into<Request>) -> Result<Grant, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let request = request.into();
        Cancellable::begin().inspect_err(|_| self.table.report_cancelled(key, request.permits))?;
        match self.table.take_or_limiter(key, &request)? {
            Attempt::Granted(grant) => Ok(grant),
            Attempt::Limiter(limiter) => limiter.blocking_acquire_many(request),
        }
    }

    /// Takes a position in the queue of a key for a [`Request`], and returns when the permits are
    /// due.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](KeyedRateLimiter::acquire_many).
    pub fn reserve<Q>(&self, key: &Q, request: impl Into<Request>) -> Result<Reservation<P, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let request = request.into();
        if request.exempt {
            return self.table.limiter_for_exempt(key).reserve(request);
        }
        self.table.limiter_for(key, request.permits)?.reserve(request)
    }

    /// Returns the limiter of a key, with every method of a [`RateLimiter`]. For example, you can
    /// pause the key, give it another rate, or combine it with other limiters.
    ///
    /// While you hold this limiter, its key is not forgotten. Settings made through it hold for
    /// this key until the key is [removed](KeyedRateLimiter::remove): its own rate or burst, a
    /// queue bound, a reserved share, shadow mode, an observer, and the fact that it was
    /// [closed](RateLimiter::close). Until then the key is not forgotten and counts towards
    /// `max_keys`. A pause ends by itself, and a [reset](RateLimiter::reset) has no further effect
    /// once the key is idle.
    ///
    /// A new key starts with the permits of the common policy. A larger burst for one key does not
    /// fill at once. Use [`Keep::Ratio`](crate::Keep::Ratio) to keep a full key full.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`] if the key is new and there is no room for it. With
    /// [`WhenKeysFull::ShareOne`], this returns the limiter that all keys without room share, and a
    /// setting made there applies to all of those keys.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 5);
    /// let users: KeyedRateLimiter<String, _, _> =
    ///     KeyedRateLimiter::with_clock(policy, 1000, ManualClock::new());
    /// users.limiter("alice")?.set_rate(Rate::per_second(50));
    /// assert_eq!(users.status("alice").available, 5);
    /// assert_eq!(users.limiter("alice")?.rate(), Rate::per_second(50));
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn limiter<Q>(&self, key: &Q) -> Result<RateLimiter<P, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.table.limiter(key)
    }

    /// Gives a key its own rate, until the key is [removed](KeyedRateLimiter::remove). The policy
    /// decides how a negative balance and stored permits carry over. To give the key its own burst
    /// as well, [`change`](RateLimiter::change) its [`limiter`](KeyedRateLimiter::limiter).
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`] if the key is new and there is no room for it.
    pub fn set_rate<Q>(&self, key: &Q, rate: Rate) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.table.own_limiter(key)?.set_rate(rate);
        Ok(())
    }

    /// Changes the rate, the burst or both for all keys while the program runs. The [`Change`] also
    /// decides what happens to stored permits. To change only the rate, use
    /// [`set_rate_all`](KeyedRateLimiter::set_rate_all).
    ///
    /// Stored permits, counts and a negative balance of a known key carry over as in
    /// [`RateLimiter::change`]. New keys start with the new terms, and so do keys that return after
    /// they were forgotten. Waiting requests are rescheduled before this returns. A key with its
    /// own [rate](KeyedRateLimiter::set_rate) or burst keeps all its terms until it is
    /// [removed](KeyedRateLimiter::remove). Its other settings make no difference here. A key with
    /// a [plan](KeyedRateLimiter::with_plans) keeps the terms of its plan.
    ///
    /// A request that overlaps with the change is decided by the old terms or by the new terms,
    /// with a matching state. If requests wait for its key, the request is decided as when a
    /// [`RateLimiter`] changes. Of two concurrent changes, one completes before the other begins.
    ///
    /// A pause of all keys that is in progress, or ended within a window, keeps permits of a window
    /// policy back. Unless the key has a limiter of its own, the new terms decide how many: at a
    /// higher rate or limit more permits are available than before the change, and at a lower one
    /// fewer.
    ///
    /// # Cost
    ///
    /// About 0.1 µs for each known key, a few times as much for a policy whose state has many
    /// words, 1 µs for a key with its own limiter, and more for each waiting request. The table has
    /// at most 64 parts, which change one after the other. Requests for the keys of a part wait
    /// while that part changes: 3 ms with a million keys.
    ///
    /// # Errors
    ///
    /// A [`PolicyError`] if the policy cannot have this burst. In that case no key has changed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::policy::Change;
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let users: KeyedRateLimiter<String, _, _> =
    ///     KeyedRateLimiter::with_clock(policy, 1000, ManualClock::new());
    /// users.try_acquire_many("alice", 8)?;
    /// users.change_all(Change::rate(Rate::per_second(50)).burst(100))?;
    /// // A larger bucket, not more permits.
    /// assert_eq!(users.status("alice").available, 2);
    /// assert_eq!(users.status("bob").available, 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn change_all(&self, change: Change) -> Result<(), PolicyError> {
        self.table.change_all(change)
    }

    /// Gives each known key the [plan](KeyedRateLimiter::with_plans) that the function returns for
    /// it now. Call this after the plans have changed. Returns how many keys keep their old terms
    /// for now.
    ///
    /// - A key with an unchanged plan stays as it is.
    /// - An idle key stays idle: a full bucket stays full even if the new burst is larger.
    /// - The permits, the counts and a negative balance of any other key carry over as in
    ///   [`RateLimiter::change`]. Waiting requests keep their positions and are rescheduled.
    /// - If a policy cannot be [changed](crate::Policy::change_to) to the new one, such as a bucket
    ///   to a window, the key starts over, with no more permits than it has. A negative balance is
    ///   forgotten. If the key has a [limiter](KeyedRateLimiter::limiter) in use, for example
    ///   because requests wait for it, the key keeps its old terms and counts in the result. In
    ///   that case, call this again later, or [remove](KeyedRateLimiter::remove) the key.
    /// - A key with [its own rate](KeyedRateLimiter::set_rate) keeps that rate.
    ///
    /// After this returns, no key is added with a plan that the function returned before this call.
    /// If two calls overlap, this holds once both have returned. If the function panics for a key,
    /// that key keeps its plan, the other keys get theirs, and the panic resumes at the end.
    ///
    /// # Cost
    ///
    /// A copy of each key and a call of the function, without a lock. In addition, about 0.1 µs for
    /// each key, a thousand keys at a time, while requests for the keys of the same part of the
    /// table wait.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::{Arc, RwLock};
    /// use tidegate::keyed::Plan;
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, TokenBucket};
    ///
    /// let plan = |rate| Plan::new(TokenBucket::new(Rate::per_second(rate), 10));
    /// let pro = Arc::new(RwLock::new(plan(10)));
    /// let free = TokenBucket::new(Rate::per_second(1), 1);
    /// let users = KeyedRateLimiter::with_clock(free, 1000, ManualClock::new()).with_plans({
    ///     let pro = pro.clone();
    ///     move |user: &u64| (*user < 100).then(|| pro.read().unwrap().clone())
    /// });
    /// users.try_acquire_many(&7, 10)?;
    /// *pro.write().unwrap() = plan(1000);
    /// users.replan();
    /// let refusal = users.try_acquire(&7).unwrap_err();
    /// assert_eq!(refusal.retry_after(), Some(std::time::Duration::from_millis(1)));
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn replan(&self) -> usize
    where
        K: Clone,
    {
        self.table.replan()
    }

    /// Changes the rate of all keys without their own rate. Waiting requests are rescheduled, as by
    /// [`change_all`](KeyedRateLimiter::change_all).
    pub fn set_rate_all(&self, rate: Rate) {
        // No policy refuses a change of only the rate.
        let _ = self.table.change_all(Change::rate(rate));
    }

    /// Charges a key `n` permits, even if it does not have them: see [`RateLimiter::debit`].
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`] if the key is new and there is no room for it.
    pub fn debit<Q>(&self, key: &Q, n: u32) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.debit_ahead(key, n, Duration::ZERO)
    }

    /// Like [`debit`](KeyedRateLimiter::debit), at a time that is `ahead` of now. From this call
    /// on, the state of the key is as of that time: permits that are granted before that time count
    /// as granted at that time, and no permit accrues until then. This call is for
    /// `tidegate-redis`, whose store grants permits until then.
    #[doc(hidden)]
    pub fn debit_ahead<Q>(&self, key: &Q, n: u32, ahead: Duration) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        if n == 0 {
            return Ok(());
        }
        let ahead = Nanos::from_duration(ahead);
        // During a pause, the key's limiter carries out the call, because it counts the permits
        // taken.
        let known = self.table.find(key, |policy, state, hold| {
            let at = self.table.clock.now().saturating_add(ahead);
            hold.is_none().then(|| policy.debit(state, at, n))
        });
        if let Found::Known(Some(())) = known {
            return Ok(());
        }
        drop(known);
        self.table.limiter_for_call(key)?.shared.debit_ahead(n, ahead);
        Ok(())
    }

    /// Takes the permits that a key has beyond `permits`, and returns how many it took: see
    /// [`RateLimiter::keep_at_most`]. A new key is added, because it is full.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`] if the key is new and there is no room for it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let hosts: KeyedRateLimiter<String, _, _> =
    ///     KeyedRateLimiter::with_clock(policy, 1000, ManualClock::new());
    /// assert_eq!(hosts.keep_at_most("example.com", 3)?, 57);
    /// assert_eq!(hosts.status("example.com").available, 3);
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn keep_at_most<Q>(&self, key: &Q, permits: u64) -> Result<u64, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let now = self.table.clock.now();
        // During a pause, the key's limiter carries out the call, because it counts the permits
        // taken.
        let known = self.table.find(key, |policy, state, hold| {
            hold.is_none().then(|| policy.keep_at_most(state, now, permits))
        });
        if let Found::Known(Some(taken)) = known {
            return Ok(taken);
        }
        drop(known);
        Ok(self.table.limiter_for_call(key)?.keep_at_most(permits))
    }

    /// Gives back `n` permits of a key that were acquired and not used. Does nothing for an unknown
    /// key that is full, as a new key is unless its policy starts with fewer permits, or a pause
    /// left all keys empty. A key without room that [shares](WhenKeysFull::ShareOne) a limiter
    /// gives its permits back to that limiter.
    pub fn refund<Q>(&self, key: &Q, n: u32)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        // During a pause, the key's limiter carries out the call, because it counts the permits
        // given back.
        let found = self.table.find(key, |policy, state, hold| {
            hold.is_none().then(|| policy.refund(state, self.table.clock.now(), n))
        });
        match found {
            Found::Known(Some(_)) => {}
            Found::Known(None) => {
                if let Ok(limiter) = self.table.limiter_for_call(key) {
                    limiter.refund(n);
                }
            }
            Found::Limiter(limiter) => limiter.refund(n),
            Found::Unknown => {
                // The clock is read after the state was created: before, the state is not full.
                let is_full = || {
                    self.table.unknown(key, |policy, state, hold| {
                        hold.is_none() && policy.is_fresh(state, self.table.clock.now())
                    })
                };
                if let Some(shared) = self.table.shared() {
                    shared.refund(n);
                } else if !is_full()
                    && let Ok(limiter) = self.table.limiter_for_call(key)
                {
                    limiter.refund(n);
                }
            }
        }
    }

    /// Returns how many permits a key could take now, and how many requests wait for it. An unknown
    /// key has the status of a new key, or the status of the [shared](WhenKeysFull::ShareOne)
    /// limiter if there is no room for the key. This call does not add the key.
    #[must_use]
    pub fn status<Q>(&self, key: &Q) -> Status
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.table.status(key)
    }

    /// Closes all keys for good. From then on no key gets a permit, and all waiters are refused at
    /// once with [`Refusal::Closed`]: tasks, blocked threads and reservations. Permits that were
    /// granted before stay granted. Returns whether the limiter was open.
    ///
    /// All known keys are forgotten, except those whose limiter is in use. To close one key, close
    /// its [`limiter`](KeyedRateLimiter::limiter), and do not [remove](KeyedRateLimiter::remove)
    /// the key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, Refusal, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let users = KeyedRateLimiter::with_clock(policy, 1000, ManualClock::new());
    /// users.try_acquire(&1)?;
    /// users.close();
    /// assert_eq!(users.try_acquire(&1), Err(Refusal::Closed));
    /// assert_eq!(users.try_acquire(&2), Err(Refusal::Closed));
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn close(&self) -> bool {
        self.table.close()
    }

    /// Returns whether all keys were [closed](KeyedRateLimiter::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.table.is_closed()
    }

    /// Pauses all keys for at least `span`, like [`pause_all`](KeyedRateLimiter::pause_all).
    pub fn pause_all_for(&self, span: Duration) {
        self.pause_all(Pause::lasting(span));
    }

    /// Pauses all keys: known keys, keys that are added later, and the
    /// [`limiter`](KeyedRateLimiter::limiter) of each key. Until the pause ends, no key gets a
    /// permit and no permit accrues. A waiting request is granted later, and a try is refused with
    /// [`Refusal::Paused`]. A second pause never shortens the first.
    ///
    /// After the pause, each key continues as if it were empty, unless the pause [keeps stored
    /// permits](Pause::keep_permits). This also holds for keys that were unknown: a key that is
    /// added after the pause has only the permits that accrued since the pause ended. If the rate
    /// changes in the meantime, such a key may have fewer permits than a known one: none of a step
    /// that had begun, and at a slower rate those since the clock's beginning at most.
    ///
    /// An observer of all keys is notified once. An observer that receives the keys, and an
    /// observer of one key, are not notified. A [`KeyedAllOf`](crate::KeyedAllOf) of these keys
    /// waits as well.
    ///
    /// # Cost
    ///
    /// Nothing outside of a pause. During a pause, a request takes about twice as long. A key costs
    /// a whole limiter from the first request that waits for it until the pause is over. At the
    /// end, each known key takes as long as in a [change](KeyedRateLimiter::change_all) of all
    /// keys. With a window policy (fixed, sliding, estimate or log), and unless stored permits are
    /// kept, the time after the pause costs more: each key that gets a permit within one window
    /// after the end costs a whole limiter until that window is over, and requests for the keys of
    /// its part of the table take longer.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{
    ///     KeyedRateLimiter, ManualClock, Pause, Rate, Refusal, TokenBucket,
    /// };
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_second(10), 5);
    /// let users = KeyedRateLimiter::with_clock(policy, 1000, clock.clone());
    /// users.try_acquire(&"alice")?;
    /// // The server behind all of them was restarted.
    /// users.pause_all(Pause::lasting(Duration::from_secs(3)));
    /// for user in ["alice", "bob"] {
    ///     let refusal = users.try_acquire(&user).unwrap_err();
    ///     assert_eq!(refusal.retry_after(), Some(Duration::from_millis(3100)));
    /// }
    /// clock.advance(Duration::from_millis(3100));
    /// users.try_acquire(&"bob")?;
    /// assert!(users.try_acquire(&"bob").is_err());
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn pause_all(&self, pause: Pause) {
        self.table.pause(pause);
    }

    /// Ends the pause of all keys, and the pauses of single keys. Each key continues with the
    /// permits that it had when the pause began. Returns whether all keys were paused.
    ///
    /// If the terms of a window policy changed in the pause, a key without a limiter of its own
    /// continues with the permits that its window has by now: the change has forgotten the used
    /// permits of windows that had ended.
    pub fn resume_all(&self) -> bool {
        self.table.resume()
    }

    /// Turns shadow mode on or off for all keys: known keys, keys that are added later, and the
    /// [`limiter`](KeyedRateLimiter::limiter) of each key. In shadow mode every call passes, and an
    /// observer is notified of what the limit would have done, as with [`RateLimiter::set_shadow`].
    ///
    /// A request that finds permits takes them. Any other request passes without a permit, even a
    /// request for a key that is [new and has no room](Refusal::TooManyKeys). The exceptions are
    /// calls for the `limiter` of such a key or for a reservation of it. Requests that wait when
    /// shadow mode begins pass at once. If the limiter of a key was put in shadow mode by itself,
    /// that key stays in shadow mode when the shadow mode of all keys ends.
    ///
    /// The limiter of a [removed](KeyedRateLimiter::remove) key does not change.
    ///
    /// Switching takes time proportional to the number of keys with waiting requests or a `limiter`
    /// in use. Granted requests cost no more in shadow mode.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::{
    ///     KeyedRateLimiter, ManualClock, Rate, Refusal, Statistics, TokenBucket,
    /// };
    ///
    /// let policy = TokenBucket::new(Rate::per_second(10), 2);
    /// let users = KeyedRateLimiter::with_clock(policy, 1000, ManualClock::new());
    /// let statistics = Arc::new(Statistics::new());
    /// let users = users.observed_by(statistics.clone());
    /// // Which users would this limit refuse?
    /// users.set_shadow_all(true);
    /// for _ in 0..5 {
    ///     users.try_acquire(&"alice")?;
    /// }
    /// assert_eq!(statistics.snapshot().granted, 2);
    /// assert_eq!(statistics.snapshot().shadowed, 3);
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn set_shadow_all(&self, shadow: bool) {
        self.table.set_shadow(shadow);
    }

    /// Returns whether all keys are in [shadow mode](KeyedRateLimiter::set_shadow_all).
    #[must_use]
    pub fn is_shadow_all(&self) -> bool {
        self.table.is_shadow()
    }

    /// Forgets a key, its negative balance, all its own settings, and that its limiter was
    /// [closed](RateLimiter::close). Returns whether the key was known.
    ///
    /// Waiting requests and holders of the key's [`limiter`](KeyedRateLimiter::limiter) keep the
    /// old limiter and are served as before. If the old limiter was closed, it stays closed for
    /// them. The next request for this key starts over, even through an [`OfKey`](crate::OfKey).
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.table.remove(key)
    }

    /// Returns all keys with their status. Each part of the table is read as one snapshot, one part
    /// after the other.
    ///
    /// Keys that are added or forgotten meanwhile may be missed. No lock is held between two items.
    pub fn iter(&self) -> impl Iterator<Item = (K, Status)> + '_
    where
        K: Clone,
    {
        let status = |(key, found)| match found {
            Found::Known(status) => Some((key, status)),
            Found::Limiter(line) => Some((key, RateLimiter::status(&line))),
            Found::Unknown => None,
        };
        self.table.shards().flat_map(move |keys| keys.into_iter().filter_map(status))
    }

    /// Forgets all idle keys, and frees memory. You never have to call this, because new keys reuse
    /// their slots.
    pub fn sweep(&self) {
        self.table.sweep_all();
    }

    /// Returns the number of known keys, including idle keys that are not yet forgotten.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether no key is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum number of known keys.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.table.max_keys
    }

    /// Returns a copy of the policy of all keys that do not have their own policy.
    #[must_use]
    pub fn policy(&self) -> P {
        self.table.policy()
    }
}

impl<K, P: Policy + Clone, C: Timer> Clone for KeyedRateLimiter<K, P, C> {
    fn clone(&self) -> Self {
        KeyedRateLimiter { table: self.table.clone() }
    }
}

impl<K, P: Policy + Clone, C: Timer> fmt::Debug for KeyedRateLimiter<K, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRateLimiter")
            .field("policy", &self.table.policy())
            .field("max_keys", &self.table.max_keys)
            .field("when_full", &self.table.when_full)
            .field("len", &self.table.len())
            .finish()
    }
}
