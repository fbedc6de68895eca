//! A few words that change rarely and are read on every decision, always as one.
//!
//! Two slots and a version. The version's lowest bit names the slot to read; a writer fills the
//! other slot and then raises the version. A reader that finds the version unchanged after reading
//! has read one publication. It retries only if a whole publication happened meanwhile, so a
//! stalled writer never holds up a reader.
//!
//! # Memory ordering
//!
//! | operation | ordering | pairs with | why |
//! |---|---|---|---|
//! | writer stores a word | Release | reader's word load | a reader that sees it also sees the version that freed the slot |
//! | writer stores the version | Release | reader's first version load | the words of the new slot are seen whole |
//! | reader loads the version | Acquire | writer's version store | as above |
//! | reader loads a word | Acquire | writer's word store | as above |
//! | reader loads the version again | Relaxed | | ordered behind the words by their acquire |
//!
//! **Why enough.** The bad execution: at version *v* a reader reads one word of publication *v* and
//! one of *v + 2*, which uses that slot again. The word of *v + 2* was stored after version *v +
//! 1*; the reader's acquire load of it makes version *v + 1* visible, so its second look at the
//! version differs and it retries.
//!
//! **Checked by** `loom-tests/published.rs`, with a twin that does not look again.

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};

pub(crate) struct Published<const N: usize> {
    version: AtomicU64,
    slots: [[AtomicU64; N]; 2],
    /// One writer at a time.
    writer: Mutex<()>,
}

/// The right to replace the words. No other thread replaces them meanwhile.
pub(crate) struct Writer<'a, const N: usize> {
    published: &'a Published<N>,
    _one: MutexGuard<'a, ()>,
}

impl<const N: usize> Published<N> {
    pub(crate) fn new(words: [u64; N]) -> Self {
        Published {
            version: AtomicU64::new(0),
            slots: [words.map(AtomicU64::new), words.map(AtomicU64::new)],
            writer: Mutex::new(()),
        }
    }

    /// The `M` words from `first` on, of one publication.
    #[inline]
    pub(crate) fn read<const M: usize>(&self, first: usize) -> [u64; M] {
        self.read_with_version(first).0
    }

    /// The `M` words from `first` on, of one publication, and its version.
    #[inline]
    pub(crate) fn read_with_version<const M: usize>(&self, first: usize) -> ([u64; M], u64) {
        // Acquire: shows all words of the slot that this version names.
        let mut version = self.version.load(Ordering::Acquire);
        loop {
            let slot = &self.slots[usize::from(version & 1 == 1)];
            // Acquire: a word of a newer publication shows the version that freed its slot.
            let words = std::array::from_fn(|i| slot[first + i].load(Ordering::Acquire));
            // Relaxed: the acquire loads of the words keep this load behind them.
            let newer = self.version.load(Ordering::Relaxed);
            if newer == version {
                return (words, version);
            }
            // The second look was relaxed: start again from one that shows the slot's words.
            version = self.version.load(Ordering::Acquire);
        }
    }

    /// The version of the newest publication.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        // Acquire: the loads that follow read what this publication published, or newer values.
        self.version.load(Ordering::Acquire)
    }

    /// A copy of the words, with the same version.
    pub(crate) fn copy(&self) -> (Self, [u64; N]) {
        let (words, version) = self.read_with_version(0);
        let slots = [words.map(AtomicU64::new), words.map(AtomicU64::new)];
        (Published { version: AtomicU64::new(version), slots, writer: Mutex::new(()) }, words)
    }

    /// Waits for other writers.
    pub(crate) fn writer(&self) -> Writer<'_, N> {
        Writer { published: self, _one: lock(&self.writer) }
    }
}

impl<const N: usize> Writer<'_, N> {
    /// Replaces the words.
    pub(crate) fn publish(&self, words: [u64; N]) {
        let Published { version, slots, .. } = self.published;
        // Relaxed: only writers change the version, and this thread has the lock of the writers.
        let next = version.load(Ordering::Relaxed).wrapping_add(1);
        for (word, slot) in words.into_iter().zip(&slots[usize::from(next & 1 == 1)]) {
            // Release: a reader that sees this word sees that its own version is outdated.
            slot.store(word, Ordering::Release);
        }
        // Release: a reader that sees this version sees all of its words.
        version.store(next, Ordering::Release);
    }
}
