//! Limits on permits in use, per key.
//!
//! # States of a key
//!
//! | state | cost | next state |
//! |---|---|---|
//! | unknown: not in the table | nothing | in use, by a request |
//! | in use: a [`CountingLimit`] in the table | the key and a limit | unknown, when no permit is in use, no request waits, and no caller holds the limit |
//!
//! A key in use has one user for each permit, each waiting request and each handle. A user is a
//! reference to the key's limit, in addition to the table's reference.

pub(crate) mod table;

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use self::table::{LimitOf, Limits};
use crate::counting::{CountingLimit, CountingPermit};
use crate::error::Refusal;
use crate::keyed::events::{KeyEvents, KeyedObserver};
use crate::keyed::key_ref::{KeyRef, Matches};
use crate::limiter::events::{Events, report};
use crate::line::deferred::run_in_drop;
use crate::status::Status;
use crate::sync::{Ordering, lock};

/// Limits how many permits of each key are in use at one time: calls in flight for each user,
/// connections to each host, jobs of each tenant. Dropping a permit gives it back.
///
/// Each key has a [`CountingLimit`]. The first request for a key creates it. It is forgotten when
/// it is no longer in use: no permit is in use and no request waits. So memory is bounded by the
/// number of keys in use, and by `max_keys`. You do not have to call any method for this.
///
/// Clones share one table. An observer can be notified of
/// [the calls for all keys](KeyedCountingLimit::observed_by), or of
/// [each call with its key](KeyedCountingLimit::observed_by_key).
///
/// # Cost
///
/// A key in use costs about 400 bytes. A request briefly locks a part of the table to find its key,
/// and again when its permit is given back.
///
/// # Fairness
///
/// Requests for one key are served first come, first served, whatever their size. Keys do not
/// affect each other.
///
/// # Cancel safety
///
/// Dropping a waiting future withdraws its request. If the request was already granted, its permits
/// are given back.
///
/// # Examples
///
/// ```
/// use tidegate::{KeyedCountingLimit, Refusal};
///
/// let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(2, 10_000);
/// let first = calls.try_acquire("alice")?;
/// let second = calls.try_acquire("alice")?;
/// assert_eq!(
///     calls.try_acquire("alice").unwrap_err(),
///     Refusal::InUse { limit: 2 }
/// );
/// let bob = calls.try_acquire("bob")?;
/// assert_eq!(calls.len(), 2);
/// drop((first, second, bob));
/// assert!(calls.is_empty());
/// # Ok::<(), Refusal>(())
/// ```
pub struct KeyedCountingLimit<K> {
    limits: Arc<Limits<K>>,
}

/// Permits of one key of a [`KeyedCountingLimit`]. Dropping this value gives them back.
#[must_use = "hold it until the work is done, as `let _permit`: dropping it gives the permits back"]
pub struct KeyedCountingPermit<K: Hash + Eq> {
    /// Dropped first: `_leave` must not find the permit's reference.
    permit: CountingPermit,
    _leave: Leave<K>,
}

/// A limit that a request uses. When the request ends, its key may be forgotten.
pub(crate) struct Lease<K: Hash + Eq> {
    /// Dropped first: `leave` must not find this reference.
    pub(crate) limit: CountingLimit,
    pub(crate) leave: Leave<K>,
}

/// Forgets the key if no user is left.
pub(crate) struct Leave<K: Hash + Eq> {
    limits: Arc<Limits<K>>,
    hash: u64,
    /// The address of the limit. If a later limit of this key has the address of an earlier limit,
    /// it is checked once more, which does no harm.
    address: usize,
}

impl<K: Hash + Eq> Drop for Leave<K> {
    fn drop(&mut self) {
        run_in_drop(|| self.limits.leave(self.hash, self.address));
    }
}

impl<K: Hash + Eq> Lease<K> {
    fn permit(self, permit: CountingPermit) -> KeyedCountingPermit<K> {
        let Lease { limit, leave } = self;
        // The permit has its own reference.
        drop(limit);
        KeyedCountingPermit { permit, _leave: leave }
    }
}

impl<K: Hash + Eq> KeyedCountingLimit<K> {
    /// Creates a limit of `limit` permits in use at one time for each key, with at most `max_keys`
    /// keys in use at one time. Memory is allocated as keys arrive.
    #[must_use]
    pub fn new(limit: u32, max_keys: usize) -> Self {
        KeyedCountingLimit { limits: Arc::new(Limits::new(max_keys, Arc::new(move |_: &K| limit))) }
    }

    /// Creates a limit with one shard, for models.
    #[cfg(all(test, tidegate_loom))]
    pub(crate) fn of_one_shard(limit: u32, max_keys: usize) -> Self {
        KeyedCountingLimit {
            limits: Arc::new(Limits::with_shards(1, max_keys, Arc::new(move |_: &K| limit))),
        }
    }

    pub(crate) fn table(&self) -> &Arc<Limits<K>> {
        &self.limits
    }

    fn recreate(&self, of: Arc<LimitOf<K>>, events: Option<KeyedObserver<K>>) -> Self {
        KeyedCountingLimit { limits: Arc::new(self.limits.recreate(of, events)) }
    }

    /// Returns a new, empty limit whose keys get their limits from a function. Keys in use are not
    /// carried over, so call this before the first request.
    ///
    /// The function is called for each key that comes into use. It runs without a lock, so it may
    /// block and may call this limit. If it panics, the panic reaches the request, and no key is
    /// added. It may be called more than once for one key. When the limits have changed, call
    /// [`replan`](KeyedCountingLimit::replan).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::KeyedCountingLimit;
    ///
    /// let jobs = KeyedCountingLimit::new(1, 1000).with_limits(|tenant: &u64| match tenant {
    ///     7 => 10,
    ///     _ => 1,
    /// });
    /// assert_eq!((jobs.available(&7), jobs.available(&8)), (10, 1));
    /// ```
    #[must_use]
    pub fn with_limits(self, limits: impl Fn(&K) -> u32 + Send + Sync + 'static) -> Self {
        self.recreate(Arc::new(limits), self.limits.events())
    }

    /// Returns a new, empty limit that reports its calls for all keys to `events`. Keys in use are
    /// not carried over, so call this before the first request.
    ///
    /// The observer gets the events of a [`CountingLimit`](CountingLimit::observe), once for each
    /// call: grants with the time waited, refusals, including
    /// [`TooManyKeys`](Refusal::TooManyKeys), and dropped waits. An event does not name its key,
    /// except with [`observed_by_key`](KeyedCountingLimit::observed_by_key). If the
    /// [limit](KeyedCountingLimit::limiter) of a key has its own observer, that observer is
    /// notified after this one.
    ///
    /// A second observer replaces the first; a pair of observers is an observer. A limit without an
    /// observer pays one comparison for each call.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::{KeyedCountingLimit, Statistics};
    ///
    /// let statistics = Arc::new(Statistics::new());
    /// let calls: KeyedCountingLimit<String> =
    ///     KeyedCountingLimit::new(1, 1000).observed_by(statistics.clone());
    /// let held = calls.try_acquire("alice")?;
    /// assert!(calls.try_acquire("alice").is_err());
    /// let counts = statistics.snapshot();
    /// assert_eq!((counts.granted, counts.in_use), (1, 1));
    /// # drop(held);
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    #[must_use]
    pub fn observed_by(self, events: Arc<dyn Events>) -> Self {
        let events = KeyedObserver::with_all(self.limits.events().as_ref(), events);
        self.recreate(self.limits.of.clone(), Some(events))
    }

    /// Like [`observed_by`](KeyedCountingLimit::observed_by), for an observer that receives the key
    /// of each call. The key is cloned for the observer each time a key comes into use, and at each
    /// call for a key without room.
    ///
    /// A limiter may have one observer that receives the key and one that does not. A second
    /// observer of the same kind replaces the first. For an example, see [`KeyEvents`].
    #[must_use]
    pub fn observed_by_key(self, events: Arc<dyn KeyEvents<K>>) -> Self
    where
        K: Send + Sync + 'static,
    {
        let events = KeyedObserver::with_key(self.limits.events().as_ref(), events);
        self.recreate(self.limits.of.clone(), Some(events))
    }

    /// Takes one permit of a key now, or refuses.
    ///
    /// # Errors
    ///
    /// - [`Refusal::InUse`] if no permit is free, or if other requests wait for this key.
    /// - [`Refusal::TooManyKeys`] if the key is not in use, and `max_keys` other keys are in use.
    pub fn try_acquire<Q>(&self, key: &Q) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.try_acquire_many(key, 1)
    }

    /// Takes `n` permits of a key now, or refuses.
    ///
    /// # Errors
    ///
    /// The errors of [`try_acquire`](KeyedCountingLimit::try_acquire) and
    /// [`acquire_many`](KeyedCountingLimit::acquire_many).
    pub fn try_acquire_many<Q>(&self, key: &Q, n: u32) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let lease = self.lease_for(key, n)?;
        let permit = lease.limit.try_acquire_many(n)?;
        Ok(lease.permit(permit))
    }

    /// Takes as many permits of a key as are free now, at least one and at most `n`, or refuses.
    /// See [`CountingLimit::try_acquire_up_to`].
    ///
    /// # Errors
    ///
    /// - [`Refusal::TooManyKeys`] if the key is not in use, and `max_keys` other keys are in use.
    /// - The errors of [`CountingLimit::try_acquire_up_to`].
    pub fn try_acquire_up_to<Q>(&self, key: &Q, n: u32) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let lease = self.lease_for(key, n.min(1))?;
        let permit = lease.limit.try_acquire_up_to(n)?;
        Ok(lease.permit(permit))
    }

    /// Waits until one permit of a key is free.
    ///
    /// # Errors
    ///
    /// - [`Refusal::TooManyKeys`] if the key is not in use, and `max_keys` other keys are in use.
    /// - [`Refusal::Closed`] if the limit is [closed](KeyedCountingLimit::close).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{KeyedCountingLimit, Refusal};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Refusal> {
    /// let connections: KeyedCountingLimit<String> = KeyedCountingLimit::new(6, 1000);
    /// let permit = connections.acquire("example.com").await?;
    /// // ... one of at most six connections to this host ...
    /// drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire<Q>(&self, key: &Q) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.acquire_many(key, 1).await
    }

    /// Waits until `n` permits of a key are free at once.
    ///
    /// # Errors
    ///
    /// - [`Refusal::TooManyKeys`] if the key is not in use, and `max_keys` other keys are in use.
    /// - The errors of [`CountingLimit::acquire_many`].
    pub async fn acquire_many<Q>(&self, key: &Q, n: u32) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let lease = self.lease_for(key, n)?;
        let permit = lease.limit.acquire_many(n).await?;
        Ok(lease.permit(permit))
    }

    /// Waits for one permit of a key, but no longer than `within`, measured by the [default
    /// clock](crate::DefaultClock).
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] if no permit was free in time; and the errors of
    /// [`acquire`](KeyedCountingLimit::acquire).
    ///
    /// # Panics
    ///
    /// In a tokio runtime without its time driver.
    pub async fn acquire_within<Q>(
        &self,
        key: &Q,
        within: Duration,
    ) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.acquire_many_within(key, 1, within).await
    }

    /// Waits for `n` permits of a key at once, but no longer than `within`, measured by the
    /// [default clock](crate::DefaultClock).
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_within`](KeyedCountingLimit::acquire_within) and
    /// [`acquire_many`](KeyedCountingLimit::acquire_many).
    ///
    /// # Panics
    ///
    /// In a tokio runtime without its time driver.
    pub async fn acquire_many_within<Q>(
        &self,
        key: &Q,
        n: u32,
        within: Duration,
    ) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let lease = self.lease_for(key, n)?;
        let permit = lease.limit.acquire_many_within(n, within).await?;
        Ok(lease.permit(permit))
    }

    /// Blocks the calling thread until one permit of a key is free. Threads and tasks wait in one
    /// queue. Do not call this from a task: it blocks the executor's thread.
    ///
    /// # Errors
    ///
    /// The errors of [`blocking_acquire_many`](KeyedCountingLimit::blocking_acquire_many).
    pub fn blocking_acquire<Q>(&self, key: &Q) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.blocking_acquire_many(key, 1)
    }

    /// Blocks the calling thread until `n` permits of a key are free at once.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](KeyedCountingLimit::acquire_many), and [`Refusal::Cancelled`]
    /// if the call runs under a [`CancelToken`](crate::CancelToken) that is cancelled.
    pub fn blocking_acquire_many<Q>(&self, key: &Q, n: u32) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let lease = self.lease_for(key, n)?;
        let permit = lease.limit.blocking_acquire_many(n)?;
        Ok(lease.permit(permit))
    }

    /// Returns the limit of a key, for example to combine it with others in an
    /// [`AllOf`](crate::AllOf).
    ///
    /// The key stays in use while this limit, a clone of it or a permit of it exists. After that,
    /// the key is forgotten when later keys need its slot, or when a request for the key ends. A
    /// limit that is [set](CountingLimit::set_limit) here is forgotten with the key, and so is an
    /// [observer](CountingLimit::observe).
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`] if the key is not in use, and `max_keys` other keys are in use.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllOf, KeyedCountingLimit, Rate, RateLimiter, TokenBucket};
    ///
    /// let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(2, 1000);
    /// let rate = RateLimiter::new(TokenBucket::new(Rate::per_second(100), 100));
    /// let limits =
    ///     AllOf::new("rate", &rate).with_counting("calls", &calls.limiter("alice")?);
    /// assert!(limits.try_acquire().is_ok());
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn limiter<Q>(&self, key: &Q) -> Result<CountingLimit, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        Ok(self.lease(key)?.limit.clone())
    }

    /// Gives each key in use the limit that the function returns for it now. Like
    /// [`CountingLimit::set_limit`], this takes effect on waiting requests at once.
    ///
    /// After this returns, no key is added with a limit that the function returned before this
    /// call. If two calls overlap, this holds once both have returned. If the function panics for a
    /// key, that key keeps its limit, the other keys get theirs, and the panic resumes at the end.
    pub fn replan(&self)
    where
        K: Clone,
    {
        self.limits.replan();
    }

    /// Closes this limit for good. From then on it grants no permits of any key. All waiting
    /// requests, and all later requests, are refused at once with [`Refusal::Closed`]. Permits in
    /// use stay in use. Returns whether the limit was open.
    ///
    /// A request that overlaps with this call may be granted, as if it had come first.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{KeyedCountingLimit, Refusal};
    ///
    /// let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(2, 1000);
    /// let permit = calls.try_acquire("alice")?;
    /// assert!(calls.close());
    /// assert_eq!(calls.try_acquire("alice").unwrap_err(), Refusal::Closed);
    /// assert_eq!(calls.try_acquire("bob").unwrap_err(), Refusal::Closed);
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn close(&self) -> bool {
        self.limits.close()
    }

    /// Returns whether the limit was [closed](KeyedCountingLimit::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.limits.is_closed()
    }

    /// Returns how many permits of a key a request would find now. Returns 0 while other requests
    /// wait for the key. This call does not add the key.
    #[must_use]
    pub fn available<Q>(&self, key: &Q) -> u32
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.inspect_limit(key, CountingLimit::available)
    }

    /// Returns the limit of a key, how many permits a request would find now, and how many requests
    /// wait: see [`CountingLimit::status`]. A key that is not in use has the status of a new limit,
    /// or of a limit of 0 once this limit is closed. This call does not add the key.
    #[must_use]
    pub fn status<Q>(&self, key: &Q) -> Status
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.inspect_limit(key, CountingLimit::status)
    }

    /// Calls `ask` with the limit of a key, or with the limit that a new key would have.
    pub(crate) fn inspect_limit<Q: KeyRef<K> + ?Sized, T>(
        &self,
        key: &Q,
        ask: impl Fn(&CountingLimit) -> T,
    ) -> T {
        self.inspect_known(key, &ask).unwrap_or_else(|| {
            if self.is_closed() {
                let limit = CountingLimit::new(0);
                limit.close();
                return ask(&limit);
            }
            ask(&CountingLimit::new((self.limits.of)(&key.to_owned())))
        })
    }

    /// Calls `ask` with the limit of a key in use, under the lock of its shard. Without the lock, a
    /// user that leaves meanwhile would find the reference of this call, and would leave the key in
    /// the table.
    pub(crate) fn inspect_known<Q: Matches<K> + Hash + ?Sized, T>(
        &self,
        key: &Q,
        ask: impl Fn(&CountingLimit) -> T,
    ) -> Option<T> {
        let hash = self.limits.hash_of(key);
        lock(self.limits.shard(hash)).keys.find(hash, key).map(ask)
    }

    /// Returns the number of keys in use.
    #[must_use]
    pub fn len(&self) -> usize {
        // Relaxed: a snapshot.
        self.limits.count.load(Ordering::Relaxed)
    }

    /// Returns whether no key is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum number of keys in use.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.limits.max_keys
    }

    /// Returns the limit of a key for a request for `n` permits. Notifies the observer if the key
    /// has no limit.
    fn lease_for<Q: KeyRef<K> + ?Sized>(&self, key: &Q, n: u32) -> Result<Lease<K>, Refusal> {
        self.lease(key).inspect_err(|refusal| self.report_refused(key, n.into(), refusal))
    }

    /// Notifies the observer of a request that was refused because its key has no limit.
    pub(crate) fn report_refused<Q: KeyRef<K> + ?Sized>(&self, key: &Q, n: u64, refusal: &Refusal) {
        if let Some(events) = self.limits.events_of(key) {
            report(&*events, |events| events.refused(n, refusal));
        }
    }

    /// Returns the limit of a key. The key is in use until the lease is dropped.
    pub(crate) fn lease<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Result<Lease<K>, Refusal> {
        let hash = self.limits.hash_of(key);
        let limit = self.limits.find_or_add(hash, key)?;
        let leave = Leave { limits: self.limits.clone(), hash, address: limit.address() };
        Ok(Lease { limit, leave })
    }
}

impl<K: Hash + Eq> KeyedCountingPermit<K> {
    /// Returns the number of permits.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permit.permits()
    }
}

impl<K> Clone for KeyedCountingLimit<K> {
    fn clone(&self) -> Self {
        KeyedCountingLimit { limits: self.limits.clone() }
    }
}

impl<K> fmt::Debug for KeyedCountingLimit<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limits { count, max_keys, .. } = &*self.limits;
        f.debug_struct("KeyedCountingLimit")
            .field("max_keys", max_keys)
            // Relaxed: a snapshot.
            .field("len", &count.load(Ordering::Relaxed))
            .finish()
    }
}

impl<K: Hash + Eq> fmt::Debug for KeyedCountingPermit<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedCountingPermit").field("permits", &self.permits()).finish()
    }
}
