//! The hash of the keys: foldhash with its final mixing step.
//!
//! The tables divide keys by several parts of one hash:
//!
//! | bits of the hash | decide |
//! |---|---|
//! | the lowest bits | the slot in the table of a shard |
//! | the 32 bits above the lowest 20 | the shard |
//! | the highest 7 | the tag by which hashbrown compares keys |
//!
//! So each part must spread the keys by itself. Without the final step, consecutive integers crowd
//! into some of the slots in one process of five, and make a table double in one process of fifty:
//! `docs/DESIGN.md`.

use foldhash::quality;

/// Creates the hashers of one table, with its own seed.
pub(crate) type Hashes = quality::RandomState;

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::hash::BuildHasher;

    use foldhash::SharedSeed;

    use super::*;

    /// [`Hashes`], with a given seed.
    type Seeded = quality::SeedableRandomState;

    /// Returns by how many standard deviations the counts vary more than random counts do.
    fn crowding(counts: &[u32]) -> f64 {
        let parts = f64::from(u32::try_from(counts.len()).expect("few parts"));
        let mean = f64::from(counts.iter().sum::<u32>()) / parts;
        let squares: f64 = counts.iter().map(|count| (f64::from(*count) - mean).powi(2) / mean).sum();
        (squares - (parts - 1.0)) / (2.0 * (parts - 1.0)).sqrt()
    }

    #[test]
    fn each_part_of_a_hash_spreads_consecutive_integers_whatever_the_seed() {
        for seed in 0..200 {
            let shared = Box::leak(Box::new(SharedSeed::from_u64(seed)));
            let hashes = Seeded::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), shared);
            let (mut slots, mut shards, mut tags) = ([0; 1024], [0; 31], [0; 128]);
            for key in 0..20_000_u64 {
                let hash = hashes.hash_one(key);
                let part = |shift: u32, mask: u64| usize::try_from((hash >> shift) & mask).expect("few bits");
                slots[part(0, 1023)] += 1;
                shards[(part(20, u64::from(u32::MAX)) * 31) >> 32] += 1;
                tags[part(57, 127)] += 1;
            }
            let crowded = [crowding(&slots), crowding(&shards), crowding(&tags)];
            assert!(crowded.iter().all(|sigmas| *sigmas < 8.0), "seed {seed}: {crowded:?}");
        }
    }
}
