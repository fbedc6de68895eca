//! The permits in use that this process holds of each key, for its shares while the store is away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::lock::lock;

/// The keys of which this process has limits. All limits of one key have one number of permits,
/// also a limit that is built while another one holds permits.
#[derive(Debug, Default)]
pub(crate) struct HeldByKey(Mutex<HashMap<String, Weak<HeldOfKey>>>);

/// How many permits of one key this process holds, over all limits of the key. When the last limit
/// and the last permit are dropped, the key is forgotten.
///
/// Relaxed: the number publishes nothing else, and each change of it is one atomic operation.
#[derive(Debug)]
pub(crate) struct HeldOfKey {
    permits: AtomicU64,
    key: String,
    all: Arc<HeldByKey>,
}

impl HeldByKey {
    /// The permits of this key.
    pub(crate) fn of(self: &Arc<HeldByKey>, key: &str) -> Arc<HeldOfKey> {
        let mut keys = lock(&self.0);
        if let Some(held) = keys.get(key).and_then(Weak::upgrade) {
            return held;
        }
        let held = HeldOfKey { permits: AtomicU64::new(0), key: key.into(), all: self.clone() };
        let held = Arc::new(held);
        keys.insert(key.into(), Arc::downgrade(&held));
        held
    }
}

impl HeldOfKey {
    pub(crate) fn permits(&self) -> u64 {
        self.permits.load(Ordering::Relaxed)
    }

    /// Adds permits that the store granted.
    pub(crate) fn add(&self, permits: u64) {
        self.permits.fetch_add(permits, Ordering::Relaxed);
    }

    /// Adds permits, unless the process would then hold more than `most`. Returns whether they were
    /// added. Of limits that decide at one time, each counts the permits of the others.
    pub(crate) fn try_add(&self, permits: u64, most: u64) -> bool {
        let sum = |held: u64| held.checked_add(permits).filter(|sum| *sum <= most);
        self.permits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
    }

    /// Subtracts permits that were given back.
    pub(crate) fn subtract(&self, permits: u64) {
        self.permits.fetch_sub(permits, Ordering::Relaxed);
    }
}

impl Drop for HeldOfKey {
    fn drop(&mut self) {
        let mut keys = lock(&self.all.0);
        // A limit that was built meanwhile has replaced this number, which was zero.
        if keys.get(&self.key).is_some_and(|held| held.strong_count() == 0) {
            keys.remove(&self.key);
            let len = keys.len();
            keys.shrink_to(2 * len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_which_there_is_no_limit_are_forgotten() {
        let keys = Arc::<HeldByKey>::default();
        let (first, second) = (keys.of("first"), keys.of("second"));
        keys.of("first").add(3);
        assert_eq!((first.permits(), second.permits()), (3, 0));
        for i in 0..1000 {
            keys.of(&format!("key {i}")).add(1);
        }
        assert_eq!(lock(&keys.0).len(), 2);
        drop((first, second));
        assert_eq!(lock(&keys.0).capacity(), 0);
        assert_eq!(keys.of("first").permits(), 0);
    }

    #[test]
    fn threads_that_add_at_one_time_do_not_exceed_the_maximum() {
        let keys = Arc::<HeldByKey>::default();
        let added = std::thread::scope(|scope| {
            let add = |_| {
                let held = keys.of("key");
                scope.spawn(move || (0..100).filter(|_| held.try_add(3, 200)).count())
            };
            let _held = keys.of("key");
            let threads: Vec<_> = (0..4).map(add).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<usize>()
        });
        assert_eq!(added, 66);
    }
}
