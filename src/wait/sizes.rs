//! The requests of one level of a line, counted by how many permits they ask for.
//!
//! A new rate changes what each request weighs. Counted like this, all of them are weighed anew by one multiplication for each size that
//! there is, whatever their number.

use std::collections::BTreeMap;

/// How many requests there are of each size.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    counts: BTreeMap<u32, u64>,
    permits: u128,
}

impl Sizes {
    pub(crate) fn add(&mut self, n: u32) {
        *self.counts.entry(n).or_default() += 1;
        self.permits += u128::from(n);
    }

    pub(crate) fn remove(&mut self, n: u32) {
        self.permits = self.permits.saturating_sub(n.into());
        if let Some(count) = self.counts.get_mut(&n) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&n);
            }
        }
    }

    /// The size of the largest request, or zero.
    pub(crate) fn largest(&self) -> u32 {
        self.counts.last_key_value().map_or(0, |(n, _)| *n)
    }

    /// How many permits all of them ask for.
    pub(crate) fn permits(&self) -> u64 {
        u64::try_from(self.permits).unwrap_or(u64::MAX)
    }

    /// What all of them weigh, if a request of one size weighs so much.
    pub(crate) fn weigh(&self, weight: impl Fn(u32) -> u64) -> u128 {
        self.counts.iter().map(|(n, count)| u128::from(weight(*n)) * u128::from(*count)).sum()
    }
}
