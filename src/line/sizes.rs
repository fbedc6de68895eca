//! Requests counted by the number of permits they ask for.
//!
//! A new rate changes the weight of each request. With these counts, all requests are weighed anew
//! by one multiplication for each different size, however many requests there are.

use std::collections::BTreeMap;

/// The number of requests of each size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    requests: u64,
    permits: u128,
    /// One size and its count, so that requests of one size allocate nothing.
    one: (u32, u64),
    others: BTreeMap<u32, u64>,
}

impl Sizes {
    pub(crate) fn add(&mut self, n: u32) {
        self.add_many(n, 1);
    }

    fn add_many(&mut self, n: u32, count: u64) {
        self.requests += count;
        self.permits += u128::from(n) * u128::from(count);
        match &mut self.one {
            (size, there) if *there == 0 || *size == n => (*size, *there) = (n, *there + count),
            _ => *self.others.entry(n).or_default() += count,
        }
    }

    /// Adds all requests of `more`.
    pub(crate) fn merge(&mut self, more: &Sizes) {
        if more.requests == 0 {
            return;
        }
        more.counts().for_each(|(n, count)| self.add_many(n, count));
    }

    pub(crate) fn remove(&mut self, n: u32) {
        self.remove_many(n, 1);
    }

    fn remove_many(&mut self, n: u32, count: u64) {
        let (size, there) = &mut self.one;
        let mut removed = if *size == n { count.min(*there) } else { 0 };
        *there -= removed;
        if removed < count
            && let Some(there) = self.others.get_mut(&n)
        {
            let more = (count - removed).min(*there);
            removed += more;
            *there -= more;
            if *there == 0 {
                self.others.remove(&n);
            }
        }
        self.requests -= removed;
        self.permits -= u128::from(n) * u128::from(removed);
    }

    /// Removes all requests of `less`.
    pub(crate) fn unmerge(&mut self, less: &Sizes) {
        if less.requests == 0 {
            return;
        }
        less.counts().for_each(|(n, count)| self.remove_many(n, count));
    }

    /// Returns each size with the number of requests of that size. One size may appear twice.
    fn counts(&self) -> impl Iterator<Item = (u32, u64)> {
        let others = self.others.iter().map(|(n, count)| (*n, *count));
        std::iter::once(self.one).filter(|(_, count)| *count > 0).chain(others)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the size of the largest request, or zero.
    pub(crate) fn largest(&self) -> u32 {
        let others = self.others.last_key_value().map_or(0, |(n, _)| *n);
        if self.one.1 > 0 { others.max(self.one.0) } else { others }
    }

    /// Returns the number of permits that all requests ask for.
    pub(crate) fn permits(&self) -> u64 {
        u64::try_from(self.permits).unwrap_or(u64::MAX)
    }

    /// Returns the weight of all requests, from the weight of a request of each size.
    pub(crate) fn weigh(&self, weight: impl Fn(u32) -> u64) -> u128 {
        self.counts().map(|(n, count)| u128::from(weight(n)) * u128::from(count)).sum()
    }
}
