//! What a log of grants says about a limit.

/// A grant: the instant by the server's clock in microseconds, and the permits.
pub(crate) type Grant = (i64, u64);

/// A token bucket of whole permits each second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) per_second: u64,
    pub(crate) burst: u64,
}

impl Bound {
    /// The most permits that any span got beyond the bound: the burst, and the rate times the span
    /// and so many microseconds. Sorts the grants.
    pub(crate) fn over(self, grants: &mut [Grant], micros: u32) -> u64 {
        grants.sort_unstable();
        let (rate, burst) = (i128::from(self.per_second), i128::from(self.burst));
        let allowed = rate * i128::from(micros) + burst * 1_000_000;
        let (mut taken, mut lowest, mut most) = (0, i128::MAX, 0);
        // In millionths of a permit. A span ends and begins with a grant.
        for (at, n) in grants {
            let came_in = i128::from(*at) * rate;
            lowest = lowest.min(taken - came_in);
            taken += i128::from(*n) * 1_000_000;
            most = most.max(taken - came_in - lowest - allowed);
        }
        u64::try_from((most + 999_999) / 1_000_000).unwrap_or(u64::MAX)
    }
}

/// Jain's index of the numbers that several processes got: 1 if they are equal, and 1/n if one of n
/// processes got all.
pub(crate) fn jain(shares: impl IntoIterator<Item = f64>) -> f64 {
    let (n, sum, squares) =
        shares.into_iter().fold((0.0, 0.0, 0.0), |(n, sum, squares), x| (n + 1.0, sum + x, squares + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (n * squares) }
}
