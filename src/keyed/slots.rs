//! A hash table that stays consistent even if the code of its keys panics.
//!
//! `Hash`, `Eq` and `Drop` of a key are user code, which may panic. Each method calls user code
//! only before it changes the table, or not at all.
//!
//! | method | user code | when |
//! |---|---|---|
//! | [`find`](Slots::find), [`slot`](Slots::slot) | `Eq` | the table does not change |
//! | [`reserve`](Slots::reserve), [`shrink`](Slots::shrink) | `Hash`, of each key | before the table is replaced |
//! | [`insert`](Slots::insert), after `reserve` | none | |
//! | [`remove_at`](Slots::remove_at), [`replace_at`](Slots::replace_at) | none: the caller drops the entry | |
//!
//! hashbrown by itself hashes keys while it moves them. If a hash panics, hashbrown drops the keys
//! that it has not moved yet.

use hashbrown::HashTable;

use super::key_ref::Matches;

/// A rebuild at the present size frees the slots of forgotten keys. If it frees at least 1/`SPARE`
/// of all slots, the table is rebuilt at that size and not doubled. So a new key moves at most 112
/// other keys on average, and a shard is rarely so full by chance that its table doubles.
const SPARE: usize = 128;

/// A table with at most this many slots is never shrunk.
const SMALL: usize = 64;

/// Returns how many entries hashbrown puts into a table with this many slots.
fn full(slots: usize) -> usize {
    slots / 8 * 7
}

/// Returns how many keys a table with this many slots can keep without doubling while keys come and
/// go. Returns `None` if the table is too small for that.
pub(super) fn most_kept(slots: usize) -> Option<usize> {
    full(slots).checked_sub((slots / SPARE).max(1))
}

/// Maps each key to its value.
pub(crate) struct Slots<K, T> {
    table: HashTable<(K, T)>,
}

impl<K, T> Slots<K, T> {
    pub(crate) fn new() -> Self {
        Slots { table: HashTable::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the number of slots, used or empty.
    pub(crate) fn slot_count(&self) -> usize {
        self.table.num_buckets()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(K, T)> {
        self.table.iter()
    }

    #[inline]
    pub(crate) fn find<Q: Matches<K> + ?Sized>(&self, hash: u64, key: &Q) -> Option<&T> {
        self.table.find(hash, |(known, _)| key.matches(known)).map(|(_, value)| value)
    }

    /// Like [`find`](Slots::find), to change the value.
    pub(crate) fn find_mut<Q: Matches<K> + ?Sized>(&mut self, hash: u64, key: &Q) -> Option<&mut T> {
        self.table.find_mut(hash, |(known, _)| key.matches(known)).map(|(_, value)| value)
    }

    /// Like [`iter`](Slots::iter), to change the values.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.table.iter_mut().map(|(_, value)| value)
    }

    /// Returns the slot of a key.
    pub(crate) fn slot<Q: Matches<K> + ?Sized>(&self, hash: u64, key: &Q) -> Option<usize> {
        self.table.find_bucket_index(hash, |(known, _)| key.matches(known))
    }

    /// Returns the slot of the value that `is` accepts. Runs no code of a key.
    pub(crate) fn slot_of(&self, hash: u64, is: impl Fn(&T) -> bool) -> Option<usize> {
        self.table.find_bucket_index(hash, |(_, value)| is(value))
    }

    pub(crate) fn at(&self, slot: usize) -> Option<&(K, T)> {
        self.table.get_bucket(slot)
    }

    pub(crate) fn remove_at(&mut self, slot: usize) -> Option<(K, T)> {
        self.table.get_bucket_entry(slot).ok().map(|entry| entry.remove().0)
    }

    /// Makes room for one more entry, so that the next [`insert`](Slots::insert) moves no entry.
    pub(crate) fn reserve(&mut self, hash_of: impl Fn(&K) -> u64) {
        let len = self.table.len();
        if len < self.table.capacity() {
            return;
        }
        let (full, kept) = (full(self.slot_count()), most_kept(self.slot_count()));
        let stays = kept.is_some_and(|most| len <= most);
        self.rebuild(if stays { full } else { full.max(len) + 1 }, hash_of);
    }

    /// Adds a key that is not in the table. Call [`reserve`](Slots::reserve) before it.
    pub(crate) fn insert(&mut self, hash: u64, key: K, value: T) {
        debug_assert!(self.table.len() < self.table.capacity(), "room was reserved");
        self.table.insert_unique(hash, (key, value), |_| hash);
    }

    /// Frees memory if nearly all keys are gone.
    pub(crate) fn shrink(&mut self, hash_of: impl Fn(&K) -> u64) {
        let len = self.table.len();
        // The new table has room for three times the keys. So as many keys can come or go before
        // the entries move again.
        if self.slot_count() > SMALL && len < self.slot_count() / 16 {
            self.rebuild(len * 3 + 1, hash_of);
        }
    }

    /// Moves all entries into a table of this capacity.
    fn rebuild(&mut self, capacity: usize, hash_of: impl Fn(&K) -> u64) {
        // Hashing may panic, so it comes before the first entry moves.
        let hash_at = |slot| Some((slot, hash_of(&self.at(slot)?.0)));
        let hashes: Vec<(usize, u64)> = (0..self.slot_count()).filter_map(hash_at).collect();
        let mut old = std::mem::replace(&mut self.table, HashTable::with_capacity(capacity));
        for (slot, hash) in hashes {
            if let Ok(entry) = old.get_bucket_entry(slot) {
                self.table.insert_unique(hash, entry.remove().0, |_| hash);
            }
        }
    }

    /// Takes out the entry of a slot, and puts back the entry that `work` returns, if any.
    pub(crate) fn replace_at(&mut self, slot: usize, work: impl FnOnce(K, T) -> Option<(K, T)>) {
        if let Ok(entry) = self.table.get_bucket_entry(slot) {
            let ((key, value), vacant) = entry.remove();
            if let Some(entry) = work(key, value) {
                vacant.insert(entry);
            }
        }
    }

    /// Returns `count` slots from `first` on, each once.
    pub(crate) fn slots_from(&self, first: usize, count: usize) -> impl Iterator<Item = usize> + use<K, T> {
        slots_from(self.slot_count(), first, count)
    }
}

/// Returns `count` of `all` slots from `first` on, each once.
pub(super) fn slots_from(all: usize, first: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count.min(all)).map(move |i| first.wrapping_add(i) % all)
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_nearly_full_table_keeps_its_size_while_keys_come_and_go() {
        // A multiplication spreads the keys.
        let hash_of = |key: &u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut slots = Slots::new();
        let add = |slots: &mut Slots<u64, ()>, key: u64| {
            slots.reserve(hash_of);
            slots.insert(hash_of(&key), key, ());
        };
        // By chance, a shard with 1,792 slots to fill may hold this many keys.
        (0..1770).for_each(|key| add(&mut slots, key));
        let count = slots.slot_count();
        assert_eq!(count, 2048);
        for (key, first) in (1770..20_000).zip((0..count).cycle().step_by(7)) {
            let slot = slots.slots_from(first, count).find(|slot| slots.remove_at(*slot).is_some());
            assert!(slot.is_some());
            add(&mut slots, key);
        }
        assert_eq!(slots.slot_count(), count);
    }
}
