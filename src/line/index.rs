//! An index of a long line: sums by place. With it the sum of all entries before a place is found
//! without passing each entry.
//!
//! Places rise along the line. Entries with places that differ in the last eight bits alone are a
//! block, and 256 blocks are a shelf. The sum before an entry adds the shelves before its shelf,
//! the blocks before its block, and the entries before it in its block. A short line has no index,
//! since passing its entries is as fast.

use std::collections::BTreeMap;

use crate::line::sizes::Sizes;

/// A line gets an index when it is so long, and loses it when it is a quarter as long.
pub(super) const LONG: usize = 2048;

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

/// The block of a place.
pub(super) fn block_of(place: u64) -> u64 {
    place >> 8
}

fn shelf_of(block: u64) -> u64 {
    block >> 8
}

impl Index {
    /// An entry has joined the line, behind all others of its block.
    pub(super) fn add(&mut self, place: u64, key: u32, n: u32) {
        let block = block_of(place);
        self.shelves.entry(shelf_of(block)).or_default().add(n);
        let new = || Block { sizes: Sizes::default(), first: key };
        self.blocks.entry(block).or_insert_with(new).sizes.add(n);
    }

    /// An entry has left the line. The one behind it is `next`.
    pub(super) fn remove(&mut self, place: u64, key: u32, n: u32, next: u32) {
        let block = block_of(place);
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

    /// What stands before the block of a place, in parts.
    pub(super) fn before(&self, place: u64) -> impl Iterator<Item = &Sizes> {
        let block = block_of(place);
        let shelf = shelf_of(block);
        let blocks = self.blocks.range(shelf << 8..block).map(|(_, block)| &block.sizes);
        self.shelves.range(..shelf).map(|(_, shelf)| shelf).chain(blocks)
    }

    /// The first block that is not passed, with its first entry. A part is passed if `passes` says
    /// so, which is asked in order and says so no more after it has once said no.
    pub(super) fn find(&self, mut passes: impl FnMut(&Sizes) -> bool) -> Option<u32> {
        let (shelf, _) = self.shelves.iter().find(|(_, sizes)| !passes(sizes))?;
        let mut blocks = self.blocks.range(shelf << 8..(shelf + 1) << 8);
        blocks.find(|(_, block)| !passes(&block.sizes)).map(|(_, block)| block.first)
    }
}
