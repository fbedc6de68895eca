//! Words of a log that are allocated a chunk at a time, each chunk when it is first needed.
//!
//! Giving back needs three times as many words as the ring has. It happens under the lock of a
//! limiter's queue, and allocating a million words takes milliseconds. A chunk takes about a
//! microsecond, and a log that gives few permits back never allocates most of the chunks.

use std::sync::OnceLock;

use crate::sync::{AtomicU64, Ordering};

/// The words of a chunk: 8 KiB.
pub(super) const CHUNK: u32 = 1 << 10;

/// One word for each entry of a ring, initially zero.
#[derive(Debug)]
pub(super) struct Chunks {
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// The number of words.
    len: u32,
}

impl Chunks {
    pub(super) fn new(len: u32) -> Chunks {
        Chunks { chunks: (0..len.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(), len }
    }

    /// Returns the word of an entry. Allocates its chunk if need be.
    #[inline]
    pub(super) fn word(&self, index: u32) -> &AtomicU64 {
        let chunk = self.chunks[(index / CHUNK) as usize].get_or_init(|| {
            // The last chunk is only as long as necessary.
            let begin = index - index % CHUNK;
            words(CHUNK.min(self.len - begin))
        });
        &chunk[(index % CHUNK) as usize]
    }

    /// Returns the value of the word of an entry. Allocates nothing.
    #[inline]
    pub(super) fn load(&self, index: u32) -> u64 {
        let chunk = self.chunks.get((index / CHUNK) as usize).and_then(OnceLock::get);
        let word = chunk.and_then(|chunk| chunk.get((index % CHUNK) as usize));
        // Acquire: a newer link comes with a newer head, which the taker then sees.
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }
}

pub(super) fn words(len: u32) -> Box<[AtomicU64]> {
    (0..len).map(|_| AtomicU64::new(0)).collect()
}
