//! The head of a log: one word of 128 bits that each grant replaces.
//!
//! # State word
//!
//! | bits | field | meaning | changed by |
//! |---|---|---|---|
//! | 0 | `credited` | grants with times that still count were undone: the slot of the version holds the number of permits | set by a giver-back, cleared by the taker that finds them all over |
//! | 1 | `ring` | which of the two rings is in force | a giver-back that copies |
//! | 2 to 63 | `time` | when the last grant was made; never falls | each taker |
//! | 64 to 87 | `n` | how many entries the last grant took; its taker may not have written them yet | each taker; a giver-back sets it to 0 |
//! | 88 to 112 | `index` | where the next grant goes | each taker, a debit, a giver-back that copies |
//! | 113 to 126 | `version` | raised by each giver-back; wraps after 2^14 of them | each giver-back |
//! | 127 | `floored` | entries behind the floor do not count: the slot of the version holds the floor | set by a giver-back, cleared by the taker that fills the ring |
//!
//! # Two equal heads
//!
//! A taker may stall between its check and its CAS, and the CAS succeeds if the head is an equal
//! one by then. The time never falls, so everything in between happened at one instant.
//!
//! - **No giver-back came in between.** Grants of one instant take fewer entries than the ring has.
//!   So `index` differs after a grant, and equal heads mean that nothing happened.
//! - **Each giver-back raises `version`**, which is equal again after 2^14 of them, or a multiple.
//!   That many take milliseconds of one thread, so the instant has to last: the clock stands still,
//!   or went back.
//! - **2^14 of them, and no grant.** They undid or refunded permits, or were resets: each of them
//!   made more permits free, so the taker may still take what it found free. If the taker left out
//!   credits meanwhile, its CAS of the slot shows whether they are still the ones that it read. If
//!   it clears `floored`, refunded permits count until they are over: too few are granted, and not
//!   too many.
//! - **2^14 of them, and grants or debits.** `index` is equal again only after a whole lap of the
//!   ring, or after two copies with their ends at one index. Then the stalled taker may be granted
//!   up to its `n` permits too many. The bound is therefore one request per 2^14 givings-back
//!   within one nanosecond of the log's time, if all of that coincides.
//!
//! A grant from before a reset, and one from after it at the same instant, are told apart by their
//! versions as long as fewer than 2^14 givings-back came since.
//!
//! A wider version would make this rarer but not exclude it: the word has 128 bits, all in use.
//!
//! Loom's versions wrap after 4: `loom-tests/sliding_log.rs` models the third case.

use crate::policy::window::Stamp;

/// The index of the next grant, and the data of the last grant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) version: u16,
    pub(crate) index: u32,
    pub(crate) n: u32,
    pub(crate) time: Stamp,
    pub(crate) ring: bool,
    pub(crate) credited: bool,
    pub(crate) floored: bool,
}

/// The latest time that has a number of its own, 109 years after the beginning.
pub(crate) const LAST: Stamp = (1 << 62) - 1;

/// Even, because the parity of a version chooses its slot.
pub(crate) const VERSIONS: u16 = if cfg!(all(test, tidegate_loom)) { 4 } else { 1 << 14 };

impl Head {
    #[inline]
    pub(crate) fn decode(bits: u128) -> Head {
        // The two halves.
        #[allow(clippy::cast_possible_truncation)]
        let (high, low) = ((bits >> 64) as u64, bits as u64);
        // Each part is as wide as its mask.
        #[allow(clippy::cast_possible_truncation)]
        let (version, index, n) =
            ((high >> 49) as u16 & (VERSIONS - 1), (high >> 24) as u32 & 0x1ff_ffff, high as u32 & 0xff_ffff);
        Head {
            version,
            index,
            n,
            time: low >> 2,
            ring: low & 2 != 0,
            credited: low & 1 != 0,
            floored: high >> 63 != 0,
        }
    }

    #[inline]
    pub(crate) fn encode(self) -> u128 {
        let Head { version, index, n, time, ring, credited, floored } = self;
        let high =
            u64::from(floored) << 63 | u64::from(version) << 49 | u64::from(index) << 24 | u64::from(n);
        let low = time << 2 | u64::from(ring) << 1 | u64::from(credited);
        u128::from(high) << 64 | u128::from(low)
    }

    /// Returns the head of the next version, with the last grant written.
    pub(crate) fn next_version(self) -> Head {
        Head { version: (self.version + 1) % VERSIONS, n: 0, ..self }
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_head_is_what_was_encoded(
            version in 0..VERSIONS, index in 0u32..1 << 25, n in 0u32..1 << 24, time in 0..=LAST,
            ring: bool, credited: bool, floored: bool,
        ) {
            let head = Head { version, index, n, time, ring, credited, floored };
            prop_assert_eq!(Head::decode(head.encode()), head);
        }
    }

    #[test]
    fn versions_wrap() {
        let last = Head { version: VERSIONS - 1, n: 3, ..Head::decode(0) };
        assert_eq!(last.next_version(), Head::decode(0));
    }
}
