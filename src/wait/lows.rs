//! The lowest level that a state was left at since each grant that may still be undone.
//!
//! Undoing a grant gives back only what would not have overflowed without it, and for that the policy asks for
//! this level; see [`Policy::undo`](crate::Policy::undo).
//!
//! # Invariant
//!
//! A mark stands for a level, and for the grants made since the mark before it that nobody has seen yet. Marks rise: a level
//! that is not above the last marks takes their place, with their grants. A mark without grants is removed. So the first mark after a grant
//! is the lowest since, and there are never more marks than unseen grants, however long one of these lasts.

use std::collections::{BTreeMap, VecDeque};

/// So many levels are kept for those who were not counted.
const KEPT: usize = 16;

#[derive(Debug)]
pub(crate) struct Lows {
    /// By the number of the level: each that is noted has the next one.
    marks: BTreeMap<u64, Mark>,
    /// The number of the next level. The first one is 1, so that no grant begins with 0.
    next: u64,
    /// How many unseen grants were made since the last level.
    recent: usize,
    /// The last levels, for grants that were made without telling.
    last: VecDeque<u64>,
}

#[derive(Debug)]
struct Mark {
    level: u64,
    grants: usize,
}

impl Lows {
    pub(crate) fn new() -> Lows {
        Lows { marks: BTreeMap::new(), next: 1, recent: 0, last: VecDeque::new() }
    }

    /// A number that is another one for each level that is noted.
    pub(crate) fn levels(&self) -> u64 {
        self.next
    }

    /// The lowest level since this number, or 0 if that is too long ago.
    pub(crate) fn lowest_since(&self, levels: u64) -> u64 {
        let since = usize::try_from(self.next.saturating_sub(levels)).unwrap_or(usize::MAX);
        match self.last.len().checked_sub(since) {
            None => 0,
            Some(older) => self.last.iter().skip(older).copied().min().unwrap_or(u64::MAX),
        }
    }

    /// A grant is made. Returns what to ask with.
    pub(crate) fn begin(&mut self) -> u64 {
        self.recent += 1;
        self.next
    }

    /// A grant is seen or undone. Returns the lowest level since it was made, `u64::MAX` if there was none.
    pub(crate) fn end(&mut self, begun: u64) -> u64 {
        let Some((&number, mark)) = self.marks.range_mut(begun..).next() else {
            self.recent -= 1;
            return u64::MAX;
        };
        let level = mark.level;
        mark.grants -= 1;
        if mark.grants == 0 {
            self.marks.remove(&number);
        }
        level
    }

    /// Something gave permits back, and left the state at this level.
    pub(crate) fn note(&mut self, level: u64) {
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(level);
        let mut grants = std::mem::take(&mut self.recent);
        while let Some(last) = self.marks.last_entry()
            && last.get().level >= level
        {
            grants += last.remove().grants;
        }
        if grants > 0 {
            self.marks.insert(self.next, Mark { level, grants });
        }
        self.next += 1;
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against all levels in a list, searched from the grant on.
        #[test]
        fn the_lowest_since_each_grant(acts in proptest::collection::vec((0..3u8, 0..50u64), 1..300)) {
            let (mut lows, mut levels, mut grants) = (Lows::new(), Vec::new(), Vec::new());
            for (act, number) in acts {
                match act {
                    0 => grants.push((lows.begin(), levels.len())),
                    1 => {
                        lows.note(number);
                        levels.push(number);
                    }
                    _ if grants.is_empty() => {}
                    _ => {
                        let (begun, at) = grants.remove(usize::try_from(number)? % grants.len());
                        let lowest = levels[at..].iter().copied().min().unwrap_or(u64::MAX);
                        let known = if levels.len() - at > KEPT { 0 } else { lowest };
                        prop_assert_eq!(lows.lowest_since(begun), known);
                        prop_assert_eq!(lows.end(begun), lowest);
                    }
                }
                prop_assert!(lows.marks.len() <= grants.len());
            }
        }
    }
}
