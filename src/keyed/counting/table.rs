//! The table of keys in use, for limits on permits in use per key.
//!
//! # Locks
//!
//! The table is divided into shards by the hash of the key. Each shard has its own mutex. Each
//! request locks its shard twice: to find or add its key, and to forget it.
//!
//! **No permit too many.** A request gets its reference under the lock. A user that ends first
//! gives up its reference, and then checks under the lock. If only the table's reference is left,
//! no request is about to use this limit, and the key is forgotten in this section. A request that
//! comes later creates a new limit, with no permit in use.
//!
//! **No key stays.** The references of a limit share one count. So if two users end together, the
//! last user to give up its reference finds that only the table's reference is left. Handles are
//! the exception, because they end without a check: each new key examines a few slots for the keys
//! that they leave.
//!
//! **Limits.** The function that returns the limits of keys is user code. It runs without a lock,
//! like the function of [plans](crate::keyed::plan). By the same argument, no key keeps a limit
//! from before a `replan`.
//!
//! **Panics.** A key is counted just before it is inserted, and uncounted as soon as it is removed.
//! `Hash` and `Eq` of keys run under the lock of a shard, and so does `Clone` of keys in a
//! `replan`. `Clone` of a new key, `Drop` of keys, observers and wakers run without the lock.
//!
//! **Checked by** `loom-tests/keyed_counting.rs`, with a twin that checks in one section and
//! forgets in another, and by `tests/keyed/counting.rs`.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use crate::counting::CountingLimit;
use crate::error::Refusal;
use crate::keyed::events::KeyedObserver;
use crate::keyed::hashes::Hashes;
use crate::keyed::key_ref::{KeyRef, Matches};
use crate::keyed::slots::Slots;
use crate::keyed::table::{Counted, SEARCH, SMALL};
use crate::limiter::events::Events;
use crate::line::deferred::{drop_each, resume_panic, run};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// The maximum number of shards.
const MAX_SHARDS: usize = 64;

/// How many slots each new key examines for keys that are no longer in use.
const SWEEP: usize = 4;

/// How many times a request makes room before it gives up, if other requests take that room each
/// time.
const TRIES: usize = 8;

pub(super) type LimitOf<K> = dyn Fn(&K) -> u32 + Send + Sync;

/// The keys in use.
pub(crate) struct Limits<K> {
    hasher: Hashes,
    pub(crate) shards: Box<[Mutex<Shard<K>>]>,
    /// The number of keys, including keys that are being added.
    pub(super) count: AtomicUsize,
    pub(super) max_keys: usize,
    /// Set before the locks of all shards are taken, and read under the lock of one shard.
    closed: AtomicBool,
    /// The number of searches for room so far. Each search starts at another slot.
    search_count: AtomicUsize,
    pub(super) of: Arc<LimitOf<K>>,
    /// The observer of all calls, if there is one.
    events: Option<KeyedObserver<K>>,
}

pub(crate) struct Shard<K> {
    pub(crate) keys: Slots<K, CountingLimit>,
    /// How many times `replan` has asked for the limits of these keys.
    version: u64,
}

/// Returns whether only the table refers to a limit.
fn is_unused(limit: &CountingLimit) -> bool {
    Arc::strong_count(&limit.pool) == 1
}

/// A key that is about to be added, with its limit.
struct NewKey<K> {
    key: K,
    limit: CountingLimit,
    /// The version of the shard before the function was called.
    version: u64,
}

/// How far a request for a slot got under the lock.
enum Step {
    Done(CountingLimit),
    /// The request needs an owned key, or its limit may be outdated.
    Key(u64),
    /// The table is full.
    Room,
    Closed,
}

impl<K: Hash + Eq> Limits<K> {
    pub(super) fn new(max_keys: usize, of: Arc<LimitOf<K>>) -> Self {
        Limits::with_shards((max_keys / SEARCH).clamp(1, MAX_SHARDS), max_keys, of)
    }

    /// Returns a new, empty table with these limits and this observer.
    pub(super) fn recreate(&self, of: Arc<LimitOf<K>>, events: Option<KeyedObserver<K>>) -> Self {
        Limits { events, ..Limits::new(self.max_keys, of) }
    }

    pub(super) fn events(&self) -> Option<KeyedObserver<K>> {
        self.events.clone()
    }

    /// Returns the observer of a key, if there is one. The caller holds no lock, because this may
    /// clone the key.
    pub(crate) fn events_of<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Option<Arc<dyn Events>> {
        self.events.as_ref().map(|observer| observer.of(key))
    }

    pub(crate) fn with_shards(shards: usize, max_keys: usize, of: Arc<LimitOf<K>>) -> Self {
        let shard = || Mutex::new(Shard { keys: Slots::new(), version: 0 });
        Limits {
            hasher: Hashes::default(),
            shards: (0..shards).map(|_| shard()).collect(),
            count: AtomicUsize::new(0),
            max_keys,
            closed: AtomicBool::new(false),
            search_count: AtomicUsize::new(0),
            of,
            events: None,
        }
    }

    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Returns the shard of a hash, from bits that hashbrown does not use.
    pub(super) fn shard(&self, hash: u64) -> &Mutex<Shard<K>> {
        // Truncation is harmless: the index is below the number of shards.
        #[allow(clippy::cast_possible_truncation)]
        let index = (hash >> 20) as usize % self.shards.len();
        &self.shards[index]
    }

    /// Returns the limit of a key. The key is in use from then on.
    pub(super) fn find_or_add<Q: KeyRef<K> + ?Sized>(
        &self,
        hash: u64,
        key: &Q,
    ) -> Result<CountingLimit, Refusal> {
        // These are declared before the guards, so that they are dropped after the lock is
        // released.
        let (mut removed, mut new, mut tries) = (Vec::new(), None, 0);
        let found = loop {
            match self.step(hash, key, &mut new, &mut removed) {
                Step::Done(limit) => break Ok(limit),
                Step::Key(version) => {
                    let (events, key) = (self.events_of(key), key.to_owned());
                    let limit = CountingLimit::observed_by((self.of)(&key), events);
                    new = Some(NewKey { key, limit, version });
                }
                Step::Closed => break Err(Refusal::Closed),
                Step::Room => {
                    tries += 1;
                    if tries > TRIES || !self.make_room(&mut removed) {
                        break Err(self.no_room());
                    }
                }
            }
        };
        let mut panic = None;
        drop_each(&mut panic, removed.into_iter());
        resume_panic(panic);
        found
    }

    fn step<Q: Matches<K> + ?Sized>(
        &self,
        hash: u64,
        key: &Q,
        new: &mut Option<NewKey<K>>,
        removed: &mut Vec<(K, CountingLimit)>,
    ) -> Step {
        let mut shard = lock(self.shard(hash));
        if let Some(limit) = shard.keys.find(hash, key) {
            return Step::Done(limit.clone());
        }
        // A call that closes either visits this shard later, or has set the flag that is read here.
        if self.is_closed() {
            return Step::Closed;
        }
        // Truncation is harmless: any slot will do.
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

    /// Forgets the keys that are no longer in use at some slots. Returns whether it forgot a key.
    fn forget(
        &self,
        shard: &mut Shard<K>,
        first: usize,
        count: usize,
        removed: &mut Vec<(K, CountingLimit)>,
    ) -> bool {
        let before = removed.len();
        for slot in shard.keys.slots_from(first, count) {
            if shard.keys.at(slot).is_some_and(|(_, limit)| is_unused(limit)) {
                removed.extend(shard.keys.remove_at(slot));
                // Relaxed: the next request to count a key reads the latest count.
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
        removed.len() > before
    }

    /// Checks whether there is room for a new key, if necessary after forgetting keys that are no
    /// longer in use.
    pub(crate) fn check_room(&self) -> Result<(), Refusal> {
        let (mut removed, mut panic) = (Vec::new(), None);
        // Relaxed: a snapshot.
        let has_room = self.count.load(Ordering::Relaxed) < self.max_keys || self.make_room(&mut removed);
        drop_each(&mut panic, removed.into_iter());
        resume_panic(panic);
        if has_room { Ok(()) } else { Err(self.no_room()) }
    }

    fn no_room(&self) -> Refusal {
        Refusal::TooManyKeys { limit: self.max_keys }
    }

    /// Searches for keys that are no longer in use. Only handles leave such keys behind.
    fn make_room(&self, removed: &mut Vec<(K, CountingLimit)>) -> bool {
        // Relaxed: each search gets its own turn at any ordering.
        let turn = self.search_count.fetch_add(1, Ordering::Relaxed);
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
            searched += shard.keys.slot_count().clamp(1, SEARCH);
        }
        false
    }

    /// Forgets a key if it is no longer in use. A user calls this after it gave up its reference.
    pub(crate) fn leave(&self, hash: u64, address: usize) {
        // `_removed` is declared before the guard, so that it is dropped after the lock is
        // released.
        let _removed;
        let mut shard = lock(self.shard(hash));
        let unused = |limit: &CountingLimit| limit.address() == address && is_unused(limit);
        if let Some(slot) = shard.keys.slot_of(hash, unused) {
            _removed = shard.keys.remove_at(slot);
            // Relaxed: as in `forget`.
            self.count.fetch_sub(1, Ordering::Relaxed);
            shard.keys.shrink(|key| self.hash_of(key));
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        // Relaxed: where the flag decides, the lock of a shard orders it.
        self.closed.load(Ordering::Relaxed)
    }

    /// Stops new keys from being added. Returns whether keys could be added before.
    pub(crate) fn raise_closed(&self) -> bool {
        // Relaxed: `close` takes the lock of each shard afterwards, and a request that adds a key
        // reads the flag under that lock.
        !self.closed.swap(true, Ordering::Relaxed)
    }

    /// Refuses all keys from now on. Returns whether the limit was open.
    pub(super) fn close(&self) -> bool {
        let was_open = self.raise_closed();
        let mut panic = None;
        for shard in &self.shards {
            // The limits are closed without the lock, because that wakes tasks.
            let limits: Vec<_> = lock(shard).keys.iter().map(|(_, limit)| limit.clone()).collect();
            for limit in limits {
                run(&mut panic, || limit.close());
            }
            // A last user that left meanwhile has found a reference of this call.
            let mut removed = Vec::new();
            self.forget(&mut lock(shard), 0, usize::MAX, &mut removed);
            drop_each(&mut panic, removed.into_iter());
        }
        resume_panic(panic);
        was_open
    }

    /// See [`KeyedCountingLimit::replan`](super::KeyedCountingLimit::replan).
    pub(super) fn replan(&self)
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
                // The reference is dropped before the check of the references, which would count
                // this one.
                drop(limit);
                if let Some(hash) = run(&mut panic, || self.hash_of(&key)) {
                    run(&mut panic, || self.leave(hash, address));
                }
                run(&mut panic, || drop(key));
            }
        }
        resume_panic(panic);
    }
}

impl<K: Hash + Eq> Limits<K> {
    /// Gives a key in use its limit. A `replan` that begins meanwhile may have set a newer limit,
    /// so the function is called again until no other `replan` has begun.
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
