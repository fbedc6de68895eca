//! A limit of permits in use for each key.
//!
//! # States of a key
//!
//! | state | cost | next state |
//! |---|---|---|
//! | unknown: not in the table | nothing | in use, by a request |
//! | in use: a [`CountingLimit`] in the table | the key and a limit | unknown, when no permit is out, no request waits, and no caller holds the limit |
//!
//! A key in use has one user for each permit, each waiting request and each handle. A user is a
//! reference to the key's limit, beside the reference of the table.
//!
//! # Locks
//!
//! The table is divided into shards by the hash of the key, each behind a mutex. Each request locks
//! its shard twice: to find or add its key, and to forget it.
//!
//! **No permit too many.** A request gets its reference under the lock. A user that ends first
//! gives up its reference, and then looks under the lock: if only the table's reference is left, no
//! request is on its way to this limit, and the key is forgotten in this section. A request that
//! comes later makes a new limit, from which no permit is out. **No key stays.** The references of
//! a limit share one count, so of two users that end together the last one to give up its reference
//! finds that only the table's is left. The exception are handles, which end without a look: new
//! keys look at a few places each.
//!
//! **Limits.** The function that gives limits to keys is foreign code. It runs without a lock, as
//! the function of [plans](super::plan) does, and by that argument no key keeps a limit from before
//! a `replan`.
//!
//! **Panics.** A key is counted just before it goes in, and uncounted as soon as it is out. `Hash`
//! and `Eq` of keys run under the lock of a shard, and so does `Clone` of keys in a `replan`.
//! `Clone` of a new key, `Drop` of keys, and wakers run without it.
//!
//! **Checked by** `loom-tests/keyed_counting.rs`, with a twin that looks in one section and forgets
//! in another, and by `tests/keyed/counting.rs`.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use super::hashes::Hashes;
use super::slots::Slots;
use super::table::{Counted, SEARCH, SMALL};
use crate::counting::{CountingLimit, CountingPermit};
use crate::error::Refusal;
use crate::line::deferred::{go_on, run, run_in_drop};
use crate::status::Status;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// The most shards.
const MOST_SHARDS: usize = 64;

/// How many places each new key examines for keys that are no longer in use.
const SWEEP: usize = 4;

/// How often a request makes room before it gives up, if other requests take that room each time.
const TRIES: usize = 8;

/// Limits how many permits of each key are out at one time: calls in flight for each user,
/// connections to each host, jobs of each tenant. Dropping a permit gives it back.
///
/// Each key has a [`CountingLimit`], which is made by its first request and forgotten when it is no
/// longer in use: no permit is out and no request waits. So memory is bounded by the keys in use,
/// and by `max_keys`. No method has to be called.
///
/// Clones share one table.
///
/// # Cost
///
/// A key in use costs some 400 bytes. A request locks a part of the table for a moment to find its
/// key, and again when its permit is given back.
///
/// # Fairness
///
/// The requests of one key are served first come, first served, whatever their size. Keys do not
/// affect each other.
///
/// # Cancel safety
///
/// Dropping a waiting future withdraws its request. If the request was granted already, its permits
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

type LimitOf<K> = dyn Fn(&K) -> u32 + Send + Sync;

/// The keys in use.
pub(crate) struct Limits<K> {
    hasher: Hashes,
    pub(crate) shards: Box<[Mutex<Shard<K>>]>,
    /// The number of keys, including keys that are being added.
    count: AtomicUsize,
    max_keys: usize,
    /// Raised before the locks of all shards are taken, and read under the lock of one.
    closed: AtomicBool,
    /// The number of searches for room so far. Each search starts at another place.
    hand: AtomicUsize,
    of: Arc<LimitOf<K>>,
}

pub(crate) struct Shard<K> {
    pub(crate) keys: Slots<K, CountingLimit>,
    /// How often the limits of these keys were asked for anew.
    version: u64,
}

/// A limit that a request uses. When the request ends, its key may be forgotten.
struct Lease<K: Hash + Eq> {
    /// Dropped first: `leave` must not find this reference.
    limit: CountingLimit,
    leave: Leave<K>,
}

/// Forgets the key if no user is left.
struct Leave<K: Hash + Eq> {
    limits: Arc<Limits<K>>,
    hash: u64,
    /// The address of the limit. If a later limit of this key has the address of an earlier one, it
    /// is looked at once more, which does no harm.
    address: usize,
}

impl<K: Hash + Eq> Drop for Leave<K> {
    fn drop(&mut self) {
        run_in_drop(|| self.limits.leave(self.hash, self.address));
    }
}

/// Returns whether only the table refers to a limit.
fn is_unused(limit: &CountingLimit) -> bool {
    Arc::strong_count(&limit.pool) == 1
}

impl<K: Hash + Eq> Lease<K> {
    fn permit(self, permit: CountingPermit) -> KeyedCountingPermit<K> {
        let Lease { limit, leave } = self;
        // The permit has a reference of its own.
        drop(limit);
        KeyedCountingPermit { permit, _leave: leave }
    }
}

impl<K: Hash + Eq> KeyedCountingLimit<K> {
    /// Creates a limit of `limit` permits out at one time for each key, and of at most `max_keys`
    /// keys in use at one time. Memory is allocated as keys come.
    #[must_use]
    pub fn new(limit: u32, max_keys: usize) -> Self {
        Self::anew(max_keys, Arc::new(move |_: &K| limit))
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

    fn anew(max_keys: usize, of: Arc<LimitOf<K>>) -> Self {
        let shards = (max_keys / SEARCH).clamp(1, MOST_SHARDS);
        KeyedCountingLimit { limits: Arc::new(Limits::with_shards(shards, max_keys, of)) }
    }

    /// Returns a new, empty table. Its keys get their limits from a function. Keys in use are not
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
        Self::anew(self.limits.max_keys, Arc::new(limits))
    }

    /// Takes one permit of a key now, or refuses.
    ///
    /// # Errors
    ///
    /// - [`Refusal::InUse`] if no permit is free, or other requests wait for this key.
    /// - [`Refusal::TooManyKeys`] if the key is not in use, and `max_keys` other keys are.
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
        let lease = self.lease(key)?;
        let permit = lease.limit.try_acquire_many(n)?;
        Ok(lease.permit(permit))
    }

    /// Takes as many permits of a key as are free now, at least one and at most `n`, or refuses.
    /// See [`CountingLimit::try_acquire_up_to`].
    ///
    /// # Errors
    ///
    /// - [`Refusal::TooManyKeys`] if the key is not in use, and `max_keys` other keys are.
    /// - The rest as [`CountingLimit::try_acquire_up_to`].
    pub fn try_acquire_up_to<Q>(&self, key: &Q, n: u32) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let lease = self.lease(key)?;
        let permit = lease.limit.try_acquire_up_to(n)?;
        Ok(lease.permit(permit))
    }

    /// Waits until one permit of a key is free.
    ///
    /// # Errors
    ///
    /// - [`Refusal::TooManyKeys`] if the key is not in use, and `max_keys` other keys are.
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
    /// - [`Refusal::TooManyKeys`] if the key is not in use, and `max_keys` other keys are.
    /// - The rest as [`CountingLimit::acquire_many`].
    pub async fn acquire_many<Q>(&self, key: &Q, n: u32) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let lease = self.lease(key)?;
        let permit = lease.limit.acquire_many(n).await?;
        Ok(lease.permit(permit))
    }

    /// Waits for one permit of a key, but no longer than `within`, by tokio's clock.
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

    /// Waits for `n` permits of a key at once, but no longer than `within`, by tokio's clock.
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
        let lease = self.lease(key)?;
        let permit = lease.limit.acquire_many_within(n, within).await?;
        Ok(lease.permit(permit))
    }

    /// Blocks the calling thread until one permit of a key is free. Threads and tasks wait in one
    /// line. Do not call this from a task.
    ///
    /// # Errors
    ///
    /// As [`blocking_acquire_many`](KeyedCountingLimit::blocking_acquire_many).
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
    /// As [`acquire_many`](KeyedCountingLimit::acquire_many); and [`Refusal::Cancelled`] under a
    /// [`CancelToken`](crate::CancelToken) that is cancelled.
    pub fn blocking_acquire_many<Q>(&self, key: &Q, n: u32) -> Result<KeyedCountingPermit<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let lease = self.lease(key)?;
        let permit = lease.limit.blocking_acquire_many(n)?;
        Ok(lease.permit(permit))
    }

    /// Returns the limit of a key, for example to combine it with others in an
    /// [`AllOf`](crate::AllOf).
    ///
    /// The key stays in use while this limit, a clone or a permit of it exists. It is forgotten
    /// when later keys need its place, or when a request for it ends. A limit that is
    /// [set](CountingLimit::set_limit) here is forgotten with the key.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`] if the key is not in use, and `max_keys` other keys are.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllOf, KeyedCountingLimit, Rate, RateLimiter, TokenBucket};
    ///
    /// let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(2, 1000);
    /// let rate = RateLimiter::new(TokenBucket::new(Rate::per_second(100), 100));
    /// let limits =
    ///     AllOf::new("rate", &rate).with_counting("calls", &calls.limit("alice")?);
    /// assert!(limits.try_acquire().is_ok());
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn limit<Q>(&self, key: &Q) -> Result<CountingLimit, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        Ok(self.lease(key)?.limit.clone())
    }

    /// Gives each key in use the limit that the function has for it now, with immediate effect on
    /// waiting requests, as [`CountingLimit::set_limit`] has.
    ///
    /// When this returns, no key is added with a limit that the function returned before this call.
    /// If two calls overlap, that holds when both have returned. If the function panics for a key,
    /// that key keeps its limit, the other keys get theirs, and the panic goes on at the end.
    pub fn replan(&self)
    where
        K: Clone,
    {
        self.limits.replan();
    }

    /// Ends this limit: it grants no more permits of any key. All requests that wait, and all later
    /// ones, are refused at once with [`Refusal::Closed`]. Permits that are out stay out. Returns
    /// whether the limit was open.
    ///
    /// A request that overlaps with this call may be granted: it came first.
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

    /// Whether the limit was [closed](KeyedCountingLimit::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.limits.is_closed()
    }

    /// Returns how many permits of a key a request would find now: 0 while other requests wait for
    /// it. This call does not add the key.
    #[must_use]
    pub fn available<Q>(&self, key: &Q) -> u32
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.limits.hash_of(key);
        let found = lock(self.limits.shard(hash)).keys.find(hash, key).map(CountingLimit::available);
        let found = found.or(self.is_closed().then_some(0));
        found.unwrap_or_else(|| (self.limits.of)(&key.to_owned()))
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
        let new = || CountingLimit::new(self.available(key));
        self.find(key).unwrap_or_else(new).status()
    }

    /// Returns the limit of a key that is in use.
    pub(crate) fn find<Q>(&self, key: &Q) -> Option<CountingLimit>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.limits.hash_of(key);
        lock(self.limits.shard(hash)).keys.find(hash, key).cloned()
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

    fn lease<Q>(&self, key: &Q) -> Result<Lease<K>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.limits.hash_of(key);
        let limit = self.limits.find_or_add(hash, key)?;
        let leave = Leave { limits: self.limits.clone(), hash, address: limit.address() };
        Ok(Lease { limit, leave })
    }
}

/// A key that is about to be added, with its limit.
struct NewKey<K> {
    key: K,
    limit: CountingLimit,
    /// The version of the shard before the function was called.
    version: u64,
}

/// How far a request for a place got under the lock.
enum Step {
    Done(CountingLimit),
    /// It needs a key to keep, or its limit may be outdated.
    Key(u64),
    /// The table is full.
    Room,
    Closed,
}

impl<K: Hash + Eq> Limits<K> {
    pub(crate) fn with_shards(shards: usize, max_keys: usize, of: Arc<LimitOf<K>>) -> Self {
        let shard = || Mutex::new(Shard { keys: Slots::new(), version: 0 });
        Limits {
            hasher: Hashes::default(),
            shards: (0..shards).map(|_| shard()).collect(),
            count: AtomicUsize::new(0),
            max_keys,
            closed: AtomicBool::new(false),
            hand: AtomicUsize::new(0),
            of,
        }
    }

    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Returns the shard of a hash, by bits that hashbrown does not use.
    fn shard(&self, hash: u64) -> &Mutex<Shard<K>> {
        // Truncation is harmless: the index is below the number of shards.
        #[allow(clippy::cast_possible_truncation)]
        let index = (hash >> 20) as usize % self.shards.len();
        &self.shards[index]
    }

    /// Returns the limit of a key, which is in use from then on.
    fn find_or_add<Q>(&self, hash: u64, key: &Q) -> Result<CountingLimit, Refusal>
    where
        K: Borrow<Q>,
        Q: Eq + ToOwned<Owned = K> + ?Sized,
    {
        // These are declared before the guards, so that they are dropped when the lock is gone.
        let (mut removed, mut new, mut tries) = (Vec::new(), None, 0);
        let found = loop {
            match self.step(hash, key, &mut new, &mut removed) {
                Step::Done(limit) => break Ok(limit),
                Step::Key(version) => {
                    let key = key.to_owned();
                    let limit = CountingLimit::new((self.of)(&key));
                    new = Some(NewKey { key, limit, version });
                }
                Step::Closed => break Err(Refusal::Closed),
                Step::Room => {
                    tries += 1;
                    if tries > TRIES || !self.make_room(&mut removed) {
                        break Err(Refusal::TooManyKeys { limit: self.max_keys });
                    }
                }
            }
        };
        drop_all(removed);
        found
    }

    fn step<Q>(
        &self,
        hash: u64,
        key: &Q,
        new: &mut Option<NewKey<K>>,
        removed: &mut Vec<(K, CountingLimit)>,
    ) -> Step
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut shard = lock(self.shard(hash));
        if let Some(limit) = shard.keys.find(hash, key) {
            return Step::Done(limit.clone());
        }
        // A call that closes looks at this shard later, or the flag is seen here.
        if self.is_closed() {
            return Step::Closed;
        }
        // Truncation is harmless: any place will do.
        #[allow(clippy::cast_possible_truncation)]
        self.forget(&mut shard, hash as usize, SWEEP, removed);
        let Some(counted) = Counted::one(&self.count, self.max_keys) else { return Step::Room };
        shard.keys.reserve(|known| self.hash_of(known));
        let version = shard.version;
        let Some(NewKey { key, limit, .. }) = new.take_if(|new| new.version == version) else {
            return Step::Key(version);
        };
        // From here on nothing can panic, so the key is counted exactly if it is inserted.
        shard.keys.insert(hash, key, limit.clone());
        counted.keep();
        Step::Done(limit)
    }

    /// Forgets the keys that are no longer in use at some places. Returns whether it forgot one.
    fn forget(
        &self,
        shard: &mut Shard<K>,
        first: usize,
        count: usize,
        removed: &mut Vec<(K, CountingLimit)>,
    ) -> bool {
        let before = removed.len();
        for place in shard.keys.places_from(first, count) {
            if shard.keys.at(place).is_some_and(|(_, limit)| is_unused(limit)) {
                removed.extend(shard.keys.remove_at(place));
                // Relaxed: the next request to count a key reads the latest count.
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
        removed.len() > before
    }

    /// Searches for keys that are no longer in use. Only handles leave such keys behind.
    fn make_room(&self, removed: &mut Vec<(K, CountingLimit)>) -> bool {
        // Relaxed: each search gets its own turn at any ordering.
        let turn = self.hand.fetch_add(1, Ordering::Relaxed);
        let most = if self.max_keys <= SMALL { usize::MAX } else { SEARCH };
        let (all, mut searched) = (self.shards.len(), 0);
        for i in 0..all {
            if searched >= most {
                break;
            }
            let mut shard = lock(&self.shards[turn.wrapping_add(i) % all]);
            if self.forget(&mut shard, (turn / all).wrapping_mul(SEARCH), most, removed) {
                return true;
            }
            searched += shard.keys.places().clamp(1, SEARCH);
        }
        false
    }

    /// Forgets a key if it is no longer in use. A user calls this after it gave up its reference.
    pub(crate) fn leave(&self, hash: u64, address: usize) {
        // `_removed` is declared before the guard, so that it is dropped when the lock is gone.
        let _removed;
        let mut shard = lock(self.shard(hash));
        let unused = |limit: &CountingLimit| limit.address() == address && is_unused(limit);
        if let Some(place) = shard.keys.place_of(hash, unused) {
            _removed = shard.keys.remove_at(place);
            // Relaxed: as in `forget`.
            self.count.fetch_sub(1, Ordering::Relaxed);
            shard.keys.shrink(|key| self.hash_of(key));
        }
    }

    fn is_closed(&self) -> bool {
        // Relaxed: where it decides, the lock of a shard orders it.
        self.closed.load(Ordering::Relaxed)
    }

    /// Lets no new key in. Returns whether one could come in before.
    pub(crate) fn raise_closed(&self) -> bool {
        // Relaxed: `close` takes the lock of each shard afterwards, and a request that adds a key
        // reads the flag under that lock.
        !self.closed.swap(true, Ordering::Relaxed)
    }

    /// Refuses all keys from now on. Returns whether the limit was open.
    fn close(&self) -> bool {
        let was_open = self.raise_closed();
        let mut panic = None;
        for shard in &self.shards {
            // The limits are closed without the lock, since that wakes tasks.
            let limits: Vec<_> = lock(shard).keys.iter().map(|(_, limit)| limit.clone()).collect();
            for limit in limits {
                run(&mut panic, || limit.close());
            }
            // A last user that left meanwhile has found a reference of this call.
            let mut removed = Vec::new();
            self.forget(&mut lock(shard), 0, usize::MAX, &mut removed);
            run(&mut panic, || drop_all(removed));
        }
        go_on(panic);
        was_open
    }

    /// See [`KeyedCountingLimit::replan`].
    fn replan(&self)
    where
        K: Clone,
    {
        let mut panic = None;
        for shard in &self.shards {
            let keys: Vec<_> = {
                let mut shard = lock(shard);
                shard.version += 1;
                shard.keys.iter().map(|(key, limit)| (key.clone(), limit.clone())).collect()
            };
            for (key, limit) in keys {
                run(&mut panic, || self.replan_key(shard, &key, &limit));
                let address = limit.address();
                // The reference is dropped before the look at the references, which would count
                // this one.
                drop(limit);
                if let Some(hash) = run(&mut panic, || self.hash_of(&key)) {
                    run(&mut panic, || self.leave(hash, address));
                }
                run(&mut panic, || drop(key));
            }
        }
        go_on(panic);
    }
}

impl<K: Hash + Eq> Limits<K> {
    /// Gives a key in use its limit. A `replan` that begins meanwhile may have set a newer limit,
    /// so the function is called again until none has begun.
    fn replan_key(&self, shard: &Mutex<Shard<K>>, key: &K, limit: &CountingLimit) {
        loop {
            let version = lock(shard).version;
            let new = (self.of)(key);
            if limit.limit() != new {
                limit.set_limit(new);
            }
            if lock(shard).version == version {
                return;
            }
        }
    }
}

/// Drops entries one by one, so that a panic does not leak the others.
fn drop_all<K>(removed: Vec<(K, CountingLimit)>) {
    let mut panic = None;
    for entry in removed {
        run(&mut panic, || drop(entry));
    }
    go_on(panic);
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
