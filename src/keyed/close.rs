//! Closes all keys.
//!
//! A flag in the count of keys closes the table. Each new key is counted under the lock of its
//! shard, and is refused there once the flag is set. The call that closes sets the flag, then takes
//! the lock of each shard, forgets its known keys and collects its key limiters. So a key that was
//! counted before the flag was set is forgotten with the others, and no key gets a key limiter
//! afterwards. The key limiters are closed without a lock of a shard, because closing wakes tasks.
//! A key limiter is forgotten when a call finds that only the table holds it; after a handle or a
//! reservation is dropped, a `sweep` does.
//!
//! A request that overlaps with this call may be granted, as if it had come first.

use std::hash::Hash;

use super::removed::Removed;
use super::table::{CLOSED, Table};
use crate::clock::Timer;
use crate::line::deferred::Deferred;
use crate::policy::Policy;
use crate::sync::{Ordering, write};

impl<K, P: Policy + Clone, C: Timer> Table<K, P, C> {
    pub(crate) fn is_closed(&self) -> bool {
        // Relaxed: where the flag decides, the lock of a shard orders it.
        self.count.load(Ordering::Relaxed) & CLOSED != 0
    }
}

impl<K, P, C> Table<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// Refuses all keys from now on. Returns whether the table was open.
    pub(crate) fn close(&self) -> bool {
        // Relaxed: a request that counts a new key reads the latest count, including the flag.
        let was_open = self.count.fetch_or(CLOSED, Ordering::Relaxed) & CLOSED == 0;
        let mut removed = Removed::<K, P, C>::new();
        let mut limiters = vec![self.overflow.limiter.clone()];
        for shard in &self.shards {
            let mut shard = write(shard);
            let slots = shard.entries().slot_count();
            let mut entries = shard.entries_mut();
            for entry in (0..slots).filter_map(|slot| entries.remove_at(slot)) {
                self.uncount();
                removed.key(entry);
            }
            // A key limiter with another handle does not become a known key again.
            limiters.extend(shard.all_limiters().map(|(_, of_key)| of_key.limiter.clone()));
        }
        // A waker that panics does not keep the other key limiters open.
        let mut deferred = Deferred::new();
        for limiter in &limiters {
            deferred.run(|| limiter.close());
        }
        drop(limiters);
        drop(removed);
        self.sweep_all();
        drop(deferred);
        was_open
    }
}
