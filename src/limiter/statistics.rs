//! Counts of what a limiter did.

use std::fmt;
use std::time::Duration;

use crate::error::Refusal;
use crate::limiter::events::Events;
use crate::sync::{AtomicU64, Ordering};
use crate::time::Nanos;

/// Zero, and one for each power of two.
const BUCKETS: usize = 65;

/// Counts the calls of a limiter, by how they ended, and how long they waited: give it to
/// [`RateLimiter::observe`](crate::RateLimiter::observe), or to another kind of limiter that has
/// [`Events`].
///
/// A limiter without it counts nothing. One with it adds to three counters for each call, which all
/// threads share; several limiters may share one, too. All counters wrap at 2^64, which a limiter
/// of a billion permits per second reaches in 584 years.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tidegate::{Rate, RateLimiter, SmoothBursty, Statistics, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tidegate::Refusal> {
/// let policy = SmoothBursty::new(Rate::per_second(10));
/// let limiter = RateLimiter::with_clock(policy, TokioClock::new());
/// let statistics = Arc::new(Statistics::new());
/// limiter.observe(statistics.clone());
/// for _ in 0..100 {
///     limiter.acquire().await?;
/// }
/// assert!(limiter.try_acquire().is_err());
/// let snapshot = statistics.snapshot();
/// assert_eq!((snapshot.granted, snapshot.limited), (100, 1));
/// // 100 ms each; told as the end of a bucket, which is less than twice as much.
/// assert_eq!(snapshot.waited.quantile(0.5), Duration::from_nanos((1 << 27) - 1));
/// # Ok(())
/// # }
/// ```
///
/// # Memory ordering
///
/// Establishes no happens-before. A snapshot reads one counter after the other, so calls that end
/// meanwhile may be in some and not in others.
pub struct Statistics {
    granted: AtomicU64,
    permits: AtomicU64,
    limited: AtomicU64,
    exceeds_limit: AtomicU64,
    #[cfg(feature = "keyed")]
    too_many_keys: AtomicU64,
    in_use: AtomicU64,
    zero_permits: AtomicU64,
    queue_full: AtomicU64,
    displaced: AtomicU64,
    cancelled: AtomicU64,
    shadowed: AtomicU64,
    exempted: AtomicU64,
    pauses: AtomicU64,
    /// How many grants waited 0 ns, 1 ns, up to 3, up to 7, and so on.
    waited: [AtomicU64; BUCKETS],
}

/// What [`Statistics`] had counted: calls, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatisticsSnapshot {
    /// Got their permits.
    pub granted: u64,
    /// The permits of the granted calls.
    pub permits: u64,
    /// Refused with [`Refusal::Limited`].
    pub limited: u64,
    /// Refused with [`Refusal::ExceedsLimit`].
    pub exceeds_limit: u64,
    /// Refused with [`Refusal::TooManyKeys`].
    #[cfg(feature = "keyed")]
    pub too_many_keys: u64,
    /// Refused with [`Refusal::InUse`].
    pub in_use: u64,
    /// Refused with [`Refusal::ZeroPermits`].
    pub zero_permits: u64,
    /// Refused with [`Refusal::QueueFull`].
    pub queue_full: u64,
    /// Refused with [`Refusal::Displaced`], after they had waited.
    pub displaced: u64,
    /// Waits that were dropped, by a timeout for instance.
    pub cancelled: u64,
    /// Passed only because the limiter is in shadow.
    pub shadowed: u64,
    /// Passed because they are exempt.
    pub exempted: u64,
    /// How often the limiter was paused, or a pause made longer.
    pub pauses: u64,
    /// How long the granted ones waited.
    pub waited: WaitHistogram,
}

/// How long grants were waited for: counted in buckets, of which each is twice as long as the one
/// before it.
#[derive(Clone, PartialEq, Eq)]
pub struct WaitHistogram([u64; BUCKETS]);

impl Statistics {
    /// All zero.
    #[must_use]
    pub fn new() -> Statistics {
        let zero = || AtomicU64::new(0);
        Statistics {
            granted: zero(),
            permits: zero(),
            limited: zero(),
            exceeds_limit: zero(),
            #[cfg(feature = "keyed")]
            too_many_keys: zero(),
            in_use: zero(),
            zero_permits: zero(),
            queue_full: zero(),
            displaced: zero(),
            cancelled: zero(),
            shadowed: zero(),
            exempted: zero(),
            pauses: zero(),
            waited: std::array::from_fn(|_| zero()),
        }
    }

    /// What was counted so far. How many wait right now tells
    /// [`Status::waiting`](crate::Status::waiting).
    #[must_use]
    pub fn snapshot(&self) -> StatisticsSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StatisticsSnapshot {
            granted: read(&self.granted),
            permits: read(&self.permits),
            limited: read(&self.limited),
            exceeds_limit: read(&self.exceeds_limit),
            #[cfg(feature = "keyed")]
            too_many_keys: read(&self.too_many_keys),
            in_use: read(&self.in_use),
            zero_permits: read(&self.zero_permits),
            queue_full: read(&self.queue_full),
            displaced: read(&self.displaced),
            cancelled: read(&self.cancelled),
            shadowed: read(&self.shadowed),
            exempted: read(&self.exempted),
            pauses: read(&self.pauses),
            waited: WaitHistogram(std::array::from_fn(|bucket| read(&self.waited[bucket]))),
        }
    }
}

impl Default for Statistics {
    fn default() -> Statistics {
        Statistics::new()
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Events for Statistics {
    fn granted(&self, permits: u64, waited: Duration) {
        add(&self.granted, 1);
        add(&self.permits, permits);
        add(&self.waited[bucket(waited)], 1);
    }

    fn refused(&self, _permits: u64, refusal: &Refusal) {
        let counter = match refusal {
            Refusal::Limited { .. } => &self.limited,
            Refusal::ExceedsLimit { .. } => &self.exceeds_limit,
            Refusal::InUse { .. } => &self.in_use,
            Refusal::ZeroPermits => &self.zero_permits,
            Refusal::QueueFull { .. } => &self.queue_full,
            Refusal::Displaced => &self.displaced,
            #[cfg(feature = "keyed")]
            Refusal::TooManyKeys { .. } => &self.too_many_keys,
        };
        add(counter, 1);
    }

    fn cancelled(&self, _permits: u64, _waited: Duration) {
        add(&self.cancelled, 1);
    }

    fn shadowed(&self, _permits: u64, _refusal: &Refusal) {
        add(&self.shadowed, 1);
    }

    fn exempted(&self, _permits: u64) {
        add(&self.exempted, 1);
    }

    fn paused(&self, _remaining: Duration) {
        add(&self.pauses, 1);
    }
}

impl fmt::Debug for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Statistics").field(&self.snapshot()).finish()
    }
}

/// The bucket of a wait: how many bits its nanoseconds have.
fn bucket(waited: Duration) -> usize {
    let nanos = Nanos::from_duration(waited).as_u64();
    (u64::BITS - nanos.leading_zeros()) as usize
}

/// The longest wait of a bucket.
fn end(bucket: usize) -> Duration {
    match bucket {
        0 => Duration::ZERO,
        _ => Duration::from_nanos(u64::MAX >> (BUCKETS - 1 - bucket).min(63)),
    }
}

impl StatisticsSnapshot {
    /// All that were refused, for whatever reason.
    #[must_use]
    pub fn refused(&self) -> u64 {
        let reasons = [
            self.limited,
            self.exceeds_limit,
            #[cfg(feature = "keyed")]
            self.too_many_keys,
            self.in_use,
            self.zero_permits,
            self.queue_full,
            self.displaced,
        ];
        reasons.into_iter().fold(0, u64::wrapping_add)
    }
}

impl WaitHistogram {
    /// How long the share `q` of all granted calls waited at most: 0.5 is the median, 0.99 what one
    /// in a hundred exceeded.
    ///
    /// It is the longest wait of a bucket, so it is never too short, and less than twice the true
    /// one. Zero is exact. Zero also if nothing was granted. A `q` below 0, or one that is not a
    /// number, is 0, and above 1 it is 1.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Duration {
        let total = self.0.iter().fold(0u128, |sum, count| sum + u128::from(*count));
        let mut below = 0;
        for (bucket, count) in self.buckets_by_index() {
            below += u128::from(count);
            // Floats of large counts lose their last digits, which a quantile does not show.
            #[allow(clippy::cast_precision_loss)]
            if below > 0 && below as f64 >= q.clamp(0.0, 1.0) * total as f64 {
                return end(bucket);
            }
        }
        // Not a number is as 0.
        let first = self.buckets_by_index().find(|(_, count)| *count > 0);
        first.map_or(Duration::ZERO, |(bucket, _)| end(bucket))
    }

    /// Each bucket: the longest wait that it counts, and how many there were. They rise.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.buckets_by_index().map(|(bucket, count)| (end(bucket), count))
    }

    fn buckets_by_index(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.0.iter().copied().enumerate()
    }
}

impl fmt::Debug for WaitHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.buckets().filter(|(_, count)| *count > 0)).finish()
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quantile_of(waits: &[u64], q: f64) -> u64 {
        let statistics = Statistics::new();
        for wait in waits {
            statistics.granted(1, Duration::from_nanos(*wait));
        }
        Nanos::from_duration(statistics.snapshot().waited.quantile(q)).as_u64()
    }

    #[test]
    fn the_longest_wait_has_a_bucket() {
        assert_eq!(quantile_of(&[u64::MAX], 1.0), u64::MAX);
        assert_eq!(end(bucket(Duration::MAX)), Duration::from_nanos(u64::MAX));
        assert_eq!(quantile_of(&[], 0.5), 0);
        assert_eq!(quantile_of(&[1, 1000], f64::NAN), 1);
    }

    proptest! {
        #[test]
        fn a_quantile_is_never_too_short_and_less_than_twice_the_true_one(
            mut waits in proptest::collection::vec(prop_oneof![Just(0u64), 0..100u64, 0..1u64 << 50], 1..50),
            percent in 0..=100usize,
        ) {
            waits.sort_unstable();
            let exact = waits[(percent * waits.len()).div_ceil(100).saturating_sub(1)];
            #[allow(clippy::cast_precision_loss)]
            let told = quantile_of(&waits, percent as f64 / 100.0);
            // The float of a share may be a hair above: then it is the next one's.
            let next = waits.iter().copied().find(|wait| *wait > exact).unwrap_or(exact);
            prop_assert!(told >= exact && (told < 2 * exact.max(1) || told < 2 * next.max(1)));
        }
    }
}
