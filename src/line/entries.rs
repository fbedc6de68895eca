//! The memory of a queue: entries under keys, in chunks.
//!
//! A future keeps the key of its entry, so an entry never moves. One list for all entries would be
//! copied as a whole when it grows, with the lock of the queue held, and would keep its memory for
//! as long as its last entry exists. A chunk is small enough to be copied, and its memory is freed
//! when it is empty.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

/// The number of entries in one chunk.
const CHUNK: usize = 512;

#[derive(Debug)]
pub(crate) struct Entries<T> {
    /// A chunk that is freed leaves its number to another one.
    chunks: Vec<Option<Chunk<T>>>,
    /// The chunks that have room. The lowest is filled first, so that the others can become empty.
    room: BTreeSet<usize>,
    /// The numbers below the length of `chunks` that have no chunk.
    free: BTreeSet<usize>,
    /// An empty chunk that is kept, so that a queue that grows and shrinks at the boundary of a
    /// chunk allocates nothing.
    spare: Option<usize>,
    len: usize,
}

/// Entries that lie one after another, with holes.
#[derive(Debug)]
struct Chunk<T> {
    slots: Vec<Option<T>>,
    /// The slots below the length of `slots` that are empty.
    holes: Vec<usize>,
}

impl<T> Chunk<T> {
    const fn new() -> Self {
        Chunk { slots: Vec::new(), holes: Vec::new() }
    }

    fn len(&self) -> usize {
        self.slots.len() - self.holes.len()
    }

    fn insert(&mut self, entry: T) -> usize {
        if let Some(hole) = self.holes.pop() {
            self.slots[hole] = Some(entry);
            return hole;
        }
        self.slots.push(Some(entry));
        self.slots.len() - 1
    }

    fn remove(&mut self, slot: usize) -> Option<T> {
        let entry = self.slots.get_mut(slot)?.take()?;
        self.holes.push(slot);
        Some(entry)
    }
}

impl<T> Entries<T> {
    pub(crate) fn new() -> Self {
        let (room, free) = (BTreeSet::new(), BTreeSet::new());
        Entries { chunks: Vec::new(), room, free, spare: None, len: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of entries that fit in the allocated memory.
    #[cfg(all(test, not(tidegate_loom)))]
    pub(crate) fn capacity(&self) -> usize {
        self.chunks.iter().flatten().map(|chunk| chunk.slots.capacity()).sum()
    }

    pub(crate) fn insert(&mut self, entry: T) -> usize {
        let number = match self.room.first() {
            Some(number) => *number,
            None => self.add_chunk(),
        };
        if self.spare == Some(number) {
            self.spare = None;
        }
        let chunk = self.chunks[number].get_or_insert_with(Chunk::new);
        let slot = chunk.insert(entry);
        if chunk.len() == CHUNK {
            self.room.remove(&number);
        }
        self.len += 1;
        number * CHUNK + slot
    }

    fn add_chunk(&mut self) -> usize {
        let number = self.free.pop_first().unwrap_or(self.chunks.len());
        if number == self.chunks.len() {
            self.chunks.push(None);
        }
        self.chunks[number] = Some(Chunk::new());
        self.room.insert(number);
        number
    }

    /// Removes the entry with this key and returns it.
    ///
    /// # Panics
    ///
    /// If no entry has this key.
    pub(crate) fn remove(&mut self, key: usize) -> T {
        let number = key / CHUNK;
        let Some(chunk) = self.chunks.get_mut(number).and_then(Option::as_mut) else { panic!("invalid key") };
        let Some(entry) = chunk.remove(key % CHUNK) else { panic!("invalid key") };
        self.len -= 1;
        if chunk.len() == CHUNK - 1 {
            self.room.insert(number);
        }
        if chunk.len() == 0 {
            match self.spare {
                None => self.spare = Some(number),
                Some(_) => self.give_back(number),
            }
        }
        entry
    }

    /// Frees a chunk that is empty.
    fn give_back(&mut self, number: usize) {
        self.chunks[number] = None;
        self.room.remove(&number);
        self.free.insert(number);
        while let Some(None) = self.chunks.last() {
            self.chunks.pop();
            self.free.remove(&self.chunks.len());
        }
        if self.chunks.capacity() > 64 + 4 * self.chunks.len() {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }

    pub(crate) fn get(&self, key: usize) -> Option<&T> {
        self.chunks.get(key / CHUNK)?.as_ref()?.slots.get(key % CHUNK)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        self.chunks.get_mut(key / CHUNK)?.as_mut()?.slots.get_mut(key % CHUNK)?.as_mut()
    }

    pub(crate) fn contains(&self, key: usize) -> bool {
        self.get(key).is_some()
    }

    /// Returns all entries with their keys, in the order of keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let chunks = self.chunks.iter().zip((0..).step_by(CHUNK));
        let slots =
            chunks.flat_map(|(chunk, first)| chunk.iter().flat_map(move |chunk| (first..).zip(&chunk.slots)));
        slots.filter_map(|(key, entry)| Some((key, entry.as_ref()?)))
    }

    /// Returns all entries with their keys, in the order of keys.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        let chunks = self.chunks.iter_mut().zip((0..).step_by(CHUNK));
        let slots = chunks.flat_map(|(chunk, first)| {
            chunk.iter_mut().flat_map(move |chunk| (first..).zip(&mut chunk.slots))
        });
        slots.filter_map(|(key, entry)| Some((key, entry.as_mut()?)))
    }
}

impl<T> Index<usize> for Entries<T> {
    type Output = T;

    fn index(&self, key: usize) -> &T {
        match self.get(key) {
            Some(entry) => entry,
            None => panic!("invalid key"),
        }
    }
}

impl<T> IndexMut<usize> for Entries<T> {
    fn index_mut(&mut self, key: usize) -> &mut T {
        match self.get_mut(key) {
            Some(entry) => entry,
            None => panic!("invalid key"),
        }
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn entries_stay_where_they_are(acts in vec((any::<bool>(), 0usize..1500), 1..12)) {
            let (mut entries, mut there, mut next) = (Entries::new(), Vec::new(), 0);
            for (more, count) in acts {
                for step in 0..count {
                    if more {
                        there.push((entries.insert(next), next));
                        next += 1;
                    } else if let Some(last) = there.len().checked_sub(1) {
                        // Entries are removed at the beginning, at the end and in between.
                        let (key, entry) = there.swap_remove((step * 7919) % (last + 1));
                        prop_assert_eq!(entries.remove(key), entry);
                        prop_assert!(!entries.contains(key));
                    }
                }
                prop_assert_eq!(entries.is_empty(), there.is_empty());
                prop_assert!(there.iter().all(|(key, entry)| entries.get(*key) == Some(entry)));
                let mut sorted = there.clone();
                sorted.sort_unstable();
                prop_assert!(entries.iter().map(|(key, entry)| (key, *entry)).eq(sorted.iter().copied()));
                prop_assert!(entries.iter_mut().map(|(key, entry)| (key, *entry)).eq(sorted));
            }
        }
    }

    #[test]
    fn memory_is_given_back() {
        let mut entries = Entries::new();
        let keys: Vec<_> = (0..100_000).map(|number| entries.insert(number)).collect();
        let (last, others) = keys.split_last().expect("some");
        others.iter().for_each(|key| _ = entries.remove(*key));
        assert!(entries.capacity() <= 2 * CHUNK, "of the last one, and a spare one");
        assert_eq!(entries[*last], 99_999);
        // New entries fill the chunks that have room.
        let again: Vec<_> = (0..CHUNK).map(|number| entries.insert(number)).collect();
        assert!(entries.capacity() <= 2 * CHUNK);
        again.iter().for_each(|key| _ = entries.remove(*key));
        entries.remove(*last);
        assert!(entries.is_empty() && entries.capacity() <= 2 * CHUNK && entries.chunks.capacity() < 1000);
    }
}
