//! The sets of a keyed limiter: one for each tag in use.
//!
//! A tag is in use while a request of it is decided or waits, or a handle to its limiter is held.
//! All of these hold its [`Set`], so that requests of one tag stand in one line. The table holds
//! none: the last of them takes the set out of the table. So a process keeps nothing of a tag that
//! is not in use.
//!
//! A set that leases stays for a second after its last request, and for another one at most, since
//! it knows how much is asked for, and what the store said last. No more than 16,384 sets stay so:
//! requests of other tags are decided by the store.
//!
//! # Lock
//!
//! A set that is dropped takes the lock of the table. So nothing drops one under this lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tidegate::QueueBounds;

use crate::set::{Prepared, Set};
use crate::store::lock;

/// How long a set that leases stays without a request.
const LINGER: Duration = Duration::from_secs(1);

/// So many sets stay at most.
const MOST_LINGERING: usize = 16_384;

/// A table of fewer places stays as it is.
const SMALL: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Tags {
    table: Mutex<Table>,
    lingering: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    sets: HashMap<String, Weak<Set>>,
    bounds: QueueBounds,
    shadow: bool,
    is_closed: bool,
}

impl Table {
    fn sets(&self) -> Vec<Arc<Set>> {
        self.sets.values().filter_map(Weak::upgrade).collect()
    }
}

impl Tags {
    pub(crate) fn new(bounds: QueueBounds) -> Tags {
        Tags { table: Mutex::new(Table { bounds, ..Table::default() }), ..Tags::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// The set of a tag. It is made if the tag is not in use.
    pub(crate) fn set(self: &Arc<Tags>, prepared: &Prepared, tag: &str) -> Arc<Set> {
        let mut table = self.lock();
        if let Some(set) = table.sets.get(tag).and_then(Weak::upgrade) {
            // Relaxed: a hint. A set that is missed here stays for the request.
            set.is_used.store(true, Ordering::Relaxed);
            return set;
        }
        let set = Arc::new(prepared.set(tag.to_owned(), table.bounds, Some(self.clone())));
        set.shadow.store(table.shadow, Ordering::Relaxed);
        if table.is_closed {
            set.close();
        }
        table.sets.insert(tag.to_owned(), Arc::downgrade(&set));
        drop(table);
        if set.leases.is_some() {
            self.linger(&set);
        }
        set
    }

    /// Keeps a set while it is used.
    fn linger(self: &Arc<Tags>, set: &Arc<Set>) {
        struct Lingers(Arc<Tags>, Arc<Set>);

        impl Drop for Lingers {
            fn drop(&mut self) {
                self.0.lingering.fetch_sub(1, Ordering::Relaxed);
            }
        }

        let lingers = Lingers(self.clone(), set.clone());
        if self.lingering.fetch_add(1, Ordering::Relaxed) < MOST_LINGERING {
            set.store.spawn(Box::pin(async move {
                while lingers.1.is_used.swap(false, Ordering::Relaxed) {
                    tokio::time::sleep(LINGER).await;
                }
            }));
        }
    }

    /// A set of this tag is dropped.
    pub(crate) fn forget(&self, tag: &str) {
        let mut table = self.lock();
        // Another set may have been made for the tag since.
        if table.sets.get(tag).is_some_and(|set| set.strong_count() == 0) {
            table.sets.remove(tag);
        }
        let (len, places) = (table.sets.len(), table.sets.capacity());
        if places > SMALL && len < places / 8 {
            table.sets.shrink_to(2 * len);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().sets.len()
    }

    pub(crate) fn set_bounds(&self, bounds: QueueBounds) {
        let mut table = self.lock();
        table.bounds = bounds;
        let sets = table.sets();
        drop(table);
        sets.iter().for_each(|set| set.set_bounds(bounds));
    }

    pub(crate) fn set_shadow(&self, shadow: bool) {
        let mut table = self.lock();
        table.shadow = shadow;
        let sets = table.sets();
        drop(table);
        sets.iter().for_each(|set| set.shadow.store(shadow, Ordering::Relaxed));
    }

    /// Closes the sets, and all sets to come. Returns whether they were open, and the sets.
    pub(crate) fn close(&self) -> (bool, Vec<Arc<Set>>) {
        let mut table = self.lock();
        let was_open = !std::mem::replace(&mut table.is_closed, true);
        let sets = table.sets();
        drop(table);
        (was_open, sets)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}
