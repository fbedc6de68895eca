//! Checks whether a log of grants respects a limit.

/// A grant: the instant by the server's clock in microseconds, and the permits.
pub(crate) type Grant = (i64, u64);

/// A token bucket of whole permits each second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) per_second: u64,
    pub(crate) burst: u64,
}

impl Bound {
    /// Returns the most permits that any span got beyond the bound: the burst, plus the rate times
    /// the span and `micros` microseconds. Sorts the grants.
    pub(crate) fn over(self, grants: &mut [Grant], micros: u32) -> u64 {
        grants.sort_unstable();
        let mut spans = self.spans(micros);
        grants.iter().for_each(|(at, n)| spans.add(*at, *n));
        spans.over()
    }

    /// Like `over`, for grants that are added one by one.
    pub(crate) fn spans(self, micros: u32) -> Spans {
        let (rate, burst) = (i128::from(self.per_second), i128::from(self.burst));
        let allowed = rate * i128::from(micros) + burst * 1_000_000;
        Spans { rate, allowed, taken: 0, lowest: i128::MAX, most: 0 }
    }
}

/// All spans between grants that are added in the order of their instants. Permits are in
/// millionths.
pub(crate) struct Spans {
    rate: i128,
    allowed: i128,
    taken: i128,
    /// The permits taken before a grant, minus the permits accrued until then: the lowest value of
    /// all grants.
    lowest: i128,
    /// The most permits that a span got beyond the bound.
    most: i128,
}

impl Spans {
    pub(crate) fn add(&mut self, at: i64, permits: u64) {
        // A span begins and ends with a grant.
        let came_in = i128::from(at) * self.rate;
        self.lowest = self.lowest.min(self.taken - came_in);
        self.taken += i128::from(permits) * 1_000_000;
        self.most = self.most.max(self.taken - came_in - self.lowest - self.allowed);
    }

    pub(crate) fn over(&self) -> u64 {
        u64::try_from((self.most + 999_999) / 1_000_000).unwrap_or(u64::MAX)
    }
}

/// Jain's index of the numbers that several processes got: 1 if they are equal, and 1/n if one of n
/// processes got everything.
pub(crate) fn jain(shares: impl IntoIterator<Item = f64>) -> f64 {
    let (n, sum, squares) =
        shares.into_iter().fold((0.0, 0.0, 0.0), |(n, sum, squares), x| (n + 1.0, sum + x, squares + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (n * squares) }
}
