//! The composites of the keys in use, so that all calls for one key share a queue.
//!
//! A composite is identified by the numbers of the limiters of its key, and not by the key, so no
//! code of the key type runs here. Where a key has no limiter, its hash is its number: two keys of
//! one hash share a composite there, which charges what is settled to the key that came first, and
//! reports the status of that key. A key that was [removed](crate::KeyedRateLimiter::remove) in
//! between has a new limiter, and so another composite. The table holds weak handles. Dropping the
//! last handle to a composite removes its entry, so the table is as large as the number of keys in
//! use.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::all_of::all::All;
use crate::clock::Timer;
use crate::limiter::shared::Shared;
use crate::line::deferred::{resume_panic, run};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// What identifies the limiter of a key at one member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Number {
    /// The number of the limiter that the key has.
    Limiter(u64),
    /// The key has no limiter. Its hash leads all of its requests to one placeholder.
    Placeholder(u64),
}

/// The numbers of a key, one for each limiter of keys.
pub(crate) type Numbers = Box<[Number]>;

pub(crate) type Composite<C> = Shared<All<C>, C>;

/// The composites in use.
pub(crate) struct Composites<C: Timer> {
    /// A tree, because no insertion into it copies the table under the lock.
    table: Mutex<BTreeMap<Numbers, Weak<Composite<C>>>>,
    /// The number of composites that are in the table, or are about to be added.
    len: AtomicUsize,
    /// Set before the lock of the table is taken, and read under that lock by a call that adds.
    closed: AtomicBool,
}

impl<C: Timer> Composites<C> {
    pub(crate) fn new() -> Composites<C> {
        Composites {
            table: Mutex::new(BTreeMap::new()),
            len: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Closes all composites, including those added later. Returns whether they were open.
    pub(crate) fn close(&self) -> bool {
        // Relaxed: the lock of the table below orders the flag for each call that adds a composite.
        let was_open = !self.closed.swap(true, Ordering::Relaxed);
        let composites: Vec<_> = lock(&self.table).values().filter_map(Weak::upgrade).collect();
        // Without the lock, because closing wakes tasks, and dropping the last handle takes the
        // lock.
        let mut panic = None;
        for composite in composites {
            run(&mut panic, || composite.close());
            run(&mut panic, || drop(composite));
        }
        resume_panic(panic);
        was_open
    }

    pub(crate) fn is_closed(&self) -> bool {
        // Relaxed: where the flag decides, the lock of the table orders it.
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns whether no key is in use.
    ///
    /// A request that has joined a queue is counted before its poll returns. A call that begins
    /// later sees the count at any ordering, by the modification order of one atomic.
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: see above.
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Returns the composite of these limiters, if it is in use.
    pub(crate) fn find(&self, numbers: &[Number]) -> Option<Arc<Composite<C>>> {
        lock(&self.table).get(numbers)?.upgrade()
    }

    /// Adds a composite, unless another call has just added one of these limiters. Returns the
    /// composite to use.
    pub(crate) fn add(&self, numbers: Numbers, new: Arc<Composite<C>>) -> Arc<Composite<C>> {
        let mut table = lock(&self.table);
        if let Some(other) = table.get(&numbers).and_then(Weak::upgrade) {
            // `new` is dropped at the return, and its drop takes the lock.
            drop(table);
            return other;
        }
        if table.insert(numbers, Arc::downgrade(&new)).is_none() {
            // Relaxed: see `is_empty`.
            self.len.fetch_add(1, Ordering::Relaxed);
        }
        // A call that closes finds the composite in the table, or the flag is seen here.
        let is_closed = self.is_closed();
        // Closing wakes tasks, so it is done without the lock.
        drop(table);
        if is_closed {
            new.close();
        }
        new
    }

    /// Removes the entry of a composite that nothing uses any longer.
    fn forget(&self, numbers: &[Number]) {
        let mut table = lock(&self.table);
        // Another composite of these limiters may have replaced it.
        if table.get(numbers).is_some_and(|composite| composite.strong_count() == 0)
            && table.remove(numbers).is_some()
        {
            // Relaxed: a call that reads an older count searches the table, and finds nothing.
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The clean-up that the composite of a key does when it is dropped.
pub(crate) struct KeyCleanup<C: Timer> {
    pub(crate) composites: Arc<Composites<C>>,
    pub(crate) numbers: Numbers,
    /// Whether permits in use keep the composite alive, because a table of keys must be notified
    /// when they are given back.
    pub(crate) is_kept: bool,
    /// Dropping these notifies the tables of keys that their limiters are no longer in use.
    pub(crate) _leave: Vec<Box<dyn Send + Sync>>,
}

impl<C: Timer> KeyCleanup<C> {
    /// Creates the home of a composite that no other call finds, and that permits in use keep
    /// alive.
    pub(crate) fn apart(leave: Box<dyn Send + Sync>) -> KeyCleanup<C> {
        let (composites, numbers) = (Arc::new(Composites::new()), Numbers::default());
        KeyCleanup { composites, numbers, is_kept: true, _leave: vec![leave] }
    }
}

impl<C: Timer> Drop for KeyCleanup<C> {
    fn drop(&mut self) {
        self.composites.forget(&self.numbers);
    }
}
