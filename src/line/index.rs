//! An index of a long queue: sums by position. It gives the sum of all entries before a position
//! without visiting each entry.
//!
//! Positions rise along the queue. Entries whose positions differ only in the last eight bits form
//! a block, and 256 blocks form a shelf. The sum before an entry adds the shelves before its shelf,
//! the blocks before its block in its shelf, and the entries before it in its block. A short queue
//! has no index, because visiting its entries is as fast.

use std::collections::BTreeMap;

use crate::line::sizes::Sizes;

/// A queue gets an index when it has this many entries, and loses it when it has fewer than a
/// quarter of them.
pub(super) const INDEX_MIN_LEN: usize = 2048;

#[derive(Debug, Default)]
pub(crate) struct Index {
    shelves: BTreeMap<u64, Sizes>,
    blocks: BTreeMap<u64, Block>,
}

#[derive(Debug)]
struct Block {
    sizes: Sizes,
    /// The key of the first entry.
    first: u32,
}

/// Returns the block of a position.
pub(super) fn block_of(position: u64) -> u64 {
    position >> 8
}

fn shelf_of(block: u64) -> u64 {
    block >> 8
}

impl Index {
    /// Adds an entry that has joined the queue, behind all others of its block.
    pub(super) fn add(&mut self, position: u64, key: u32, n: u32) {
        let block = block_of(position);
        self.shelves.entry(shelf_of(block)).or_default().add(n);
        let new = || Block { sizes: Sizes::default(), first: key };
        self.blocks.entry(block).or_insert_with(new).sizes.add(n);
    }

    /// Removes an entry that has left the queue. The entry behind it is `next`.
    pub(super) fn remove(&mut self, position: u64, key: u32, n: u32, next: u32) {
        let block = block_of(position);
        if let Some(shelf) = self.shelves.get_mut(&shelf_of(block)) {
            shelf.remove(n);
            if shelf.requests() == 0 {
                self.shelves.remove(&shelf_of(block));
            }
        }
        if let Some(there) = self.blocks.get_mut(&block) {
            there.sizes.remove(n);
            if there.first == key {
                there.first = next;
            }
            if there.sizes.requests() == 0 {
                self.blocks.remove(&block);
            }
        }
    }

    /// Returns the sums of all entries before the block of a position, in parts.
    pub(super) fn before(&self, position: u64) -> impl Iterator<Item = &Sizes> {
        let block = block_of(position);
        let shelf = shelf_of(block);
        let blocks = self.blocks.range(shelf << 8..block).map(|(_, block)| &block.sizes);
        self.shelves.range(..shelf).map(|(_, shelf)| shelf).chain(blocks)
    }

    /// Returns the first entry of the first block that is not passed. A part is passed if `passes`
    /// returns true. `passes` is called in order, and must not return true after it has returned
    /// false.
    pub(super) fn find(&self, mut passes: impl FnMut(&Sizes) -> bool) -> Option<u32> {
        let (shelf, _) = self.shelves.iter().find(|(_, sizes)| !passes(sizes))?;
        let mut blocks = self.blocks.range(shelf << 8..(shelf + 1) << 8);
        blocks.find(|(_, block)| !passes(&block.sizes)).map(|(_, block)| block.first)
    }
}
