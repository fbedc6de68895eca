//! Wakers in the order of their times.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::time::Nanos;

/// The key of a waker: its time, and a number in order of arrival that distinguishes equal times.
pub(super) type Key = (Nanos, u64);

/// Wakers in the order of their times. Every operation is logarithmic in their number, and none
/// calls, clones or drops a waker.
#[derive(Debug, Default)]
pub(super) struct Queue {
    wakers: BTreeMap<Key, Waker>,
    inserted: u64,
}

impl Queue {
    pub(super) fn insert(&mut self, at: Nanos, waker: Waker) -> Key {
        let key = (at, self.inserted);
        self.inserted += 1;
        self.wakers.insert(key, waker);
        key
    }

    /// Returns the waker if it is still in the queue.
    pub(super) fn remove(&mut self, key: Key) -> Option<Waker> {
        self.wakers.remove(&key)
    }

    /// Removes and returns the first waker that is due, and its time.
    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, Waker)> {
        let due = self.wakers.first_entry().filter(|first| first.key().0 <= now)?;
        let ((at, _), waker) = due.remove_entry();
        Some((at, waker))
    }

    /// Returns the earliest time.
    pub(super) fn first(&self) -> Option<Nanos> {
        self.wakers.first_key_value().map(|(key, _)| key.0)
    }
}
