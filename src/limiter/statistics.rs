//! Counters of what a limiter did.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use crate::error::Refusal;
use crate::grant::Left;
use crate::limiter::events::{Events, StoreEvent};
use crate::policy::atomic_word::update;
use crate::sync::{AtomicU64, AtomicU128, Ordering};
use crate::time::Nanos;

/// Each power of two has this many buckets, so a bucket is a thirty-second of it wide: 3.2 %.
const PARTS: usize = 1 << PART_BITS;
const PART_BITS: u32 = 5;

/// A bucket for each wait below [`PARTS`] nanoseconds, and [`PARTS`] buckets for each power of two
/// above.
const BUCKETS: usize = (64 - PART_BITS as usize + 1) * PARTS;

/// Counts the calls of a limiter by their results, and measures how long they waited. Pass it to
/// [`RateLimiter::observe`](crate::RateLimiter::observe), or to any other method that takes an
/// [`Events`].
///
/// A limiter without statistics counts nothing. With statistics, it adds to three counters for each
/// granted call, to four if the call waited, and to one for a call with another result. All threads
/// share the counters; several limiters can share them, too. The counters wrap at 2^64, which a
/// limiter of a billion permits per second reaches in 584 years. The sum of the waits does not
/// wrap: it stays at its maximum.
///
/// Calls to a store, and leases, are reported to the observer of the store, not to that of a
/// limiter. Pass the statistics to `StoreBuilder::observed_by` of `tidegate-redis`, which also
/// counts the calls of all limiters of that store.
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
/// // 100 ms each, except the first; reported as the end of a bucket, at most 3.2 % more.
/// let median = snapshot.waited.quantile(0.5);
/// assert!((100..104).contains(&median.as_millis()));
/// assert_eq!(snapshot.waited.sum(), Duration::from_millis(9900));
/// # Ok(())
/// # }
/// ```
///
/// # Memory ordering
///
/// Establishes no happens-before. A snapshot reads one counter after the other, so calls that end
/// meanwhile may be in some counters and not in others.
pub struct Statistics {
    counters: Counters,
    /// How many grants waited how long, by bucket.
    waited: Box<[AtomicU64]>,
    /// The sum of the waits of all grants, in nanoseconds.
    waited_sum: AtomicU128,
}

/// The counters behind [`StatisticsSnapshot`].
#[derive(Default)]
struct Counters {
    granted: AtomicU64,
    permits: AtomicU64,
    limited: AtomicU64,
    paused: AtomicU64,
    closed: AtomicU64,
    exceeds_limit: AtomicU64,
    #[cfg(feature = "keyed")]
    too_many_keys: AtomicU64,
    in_use: AtomicU64,
    zero_permits: AtomicU64,
    queue_full: AtomicU64,
    displaced: AtomicU64,
    unavailable: AtomicU64,
    cancelled: AtomicU64,
    shadowed: AtomicU64,
    exempted: AtomicU64,
    degraded: AtomicU64,
    near_limit: AtomicU64,
    pauses: AtomicU64,
    store: StoreCounters,
}

/// The counters behind [`StoreStatistics`].
#[derive(Default)]
struct StoreCounters {
    answered: AtomicU64,
    /// In nanoseconds.
    answered_in: AtomicU64,
    unknown: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
    misconfigured: AtomicU64,
    breaker_opened: AtomicU64,
    breaker_closed: AtomicU64,
    lease_taken: AtomicU64,
    lease_used: AtomicU64,
    lease_unused: AtomicU64,
    lease_returned: AtomicU64,
    lease_lost: AtomicU64,
}

/// A snapshot of [`Statistics`]. Each field counts calls, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatisticsSnapshot {
    /// Calls that got their permits.
    pub granted: u64,
    /// The permits of the granted calls.
    pub permits: u64,
    /// Calls refused with [`Refusal::Limited`].
    pub limited: u64,
    /// Calls refused with [`Refusal::Paused`].
    pub paused: u64,
    /// Calls refused with [`Refusal::Closed`].
    pub closed: u64,
    /// Calls refused with [`Refusal::ExceedsLimit`].
    pub exceeds_limit: u64,
    /// Calls refused with [`Refusal::TooManyKeys`].
    #[cfg(feature = "keyed")]
    pub too_many_keys: u64,
    /// Calls refused with [`Refusal::InUse`].
    pub in_use: u64,
    /// Calls refused with [`Refusal::ZeroPermits`].
    pub zero_permits: u64,
    /// Calls refused with [`Refusal::QueueFull`].
    pub queue_full: u64,
    /// Calls refused with [`Refusal::Displaced`], after they had waited.
    pub displaced: u64,
    /// Calls refused with [`Refusal::Unavailable`].
    pub unavailable: u64,
    /// Waits that were dropped, for example by a timeout, and calls refused with
    /// [`Refusal::Cancelled`].
    pub cancelled: u64,
    /// Calls that passed only because the limiter is in shadow mode. The shadow mode of a
    /// `tidegate-tower` layer is different: there the limiter refuses, which counts as `limited`,
    /// and the layer lets the request pass.
    pub shadowed: u64,
    /// Calls that passed because they are exempt.
    pub exempted: u64,
    /// Calls decided without the limiter's store, because the store did not reply; they also count
    /// as granted or refused. This field counts decisions. `Counts::degraded` of `tidegate-redis`
    /// also counts a reservation that is dropped before its decision, and does not count a call
    /// that its thread must not make.
    pub degraded: u64,
    /// Calls that were granted and left a fifth of a limit or less. Counted only over a store.
    pub near_limit: u64,
    /// How often the limiter was paused, or a pause was prolonged.
    pub pauses: u64,
    /// Calls to the store, and leased permits; all zero unless a store is observed.
    pub store: StoreStatistics,
    /// How long the granted calls waited.
    pub waited: WaitHistogram,
}

/// A snapshot of what [`Statistics`] counted of a store: each [`StoreEvent`]. One call to a store
/// can decide many requests, and requests served from leases make no call.
///
/// # Examples
///
/// Text in the Prometheus format:
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Events, Statistics, StoreEvent, StoreStatistics};
///
/// fn text(store: &StoreStatistics) -> String {
///     let calls = [("answered", store.answered), ("unknown", store.unknown), ("failed", store.failed)];
///     let permits = [
///         ("taken", store.lease_taken),
///         ("used", store.lease_used),
///         ("returned", store.lease_returned),
///         ("lost", store.lease_lost),
///     ];
///     let mut text = "# TYPE store_calls_total counter\n".to_owned();
///     for (outcome, n) in calls {
///         text += &format!("store_calls_total{{outcome=\"{outcome}\"}} {n}\n");
///     }
///     let seconds = store.answered_in.as_secs_f64();
///     text += &format!("# TYPE store_seconds_total counter\nstore_seconds_total {seconds}\n");
///     // `used` decreases when a request is dropped before it saw its grant.
///     text += "# TYPE lease_permits gauge\n";
///     for (what, n) in permits {
///         text += &format!("lease_permits{{what=\"{what}\"}} {n}\n");
///     }
///     text
/// }
///
/// let statistics = Statistics::new(); // given to `StoreBuilder::observed_by` of `tidegate-redis`
/// statistics.store(&StoreEvent::Answered(Duration::from_millis(2)));
/// statistics.store(&StoreEvent::LeaseTaken(100));
/// let text = text(&statistics.snapshot().store);
/// assert!(text.contains("store_calls_total{outcome=\"answered\"} 1\n"));
/// assert!(text.contains("store_seconds_total 0.002\n"));
/// assert!(text.contains("lease_permits{what=\"taken\"} 100\n"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStatistics {
    /// Calls to which the store replied.
    pub answered: u64,
    /// The total time of the calls with a reply. Divided by `answered` it is the mean.
    pub answered_in: Duration,
    /// Calls without a reply, which the store may have carried out.
    pub unknown: u64,
    /// Calls that the store did not carry out.
    pub failed: u64,
    /// Calls that were not made; see [`StoreEvent::Skipped`].
    pub skipped: u64,
    /// Calls that showed that the store is misconfigured; see [`StoreEvent::Misconfigured`].
    pub misconfigured: u64,
    /// How often the calls to the store were suspended. Each failed probe suspends them again, so
    /// one outage counts several times; see [`StoreEvent::BreakerOpened`].
    pub breaker_opened: u64,
    /// How often the store replied again after that: the number of outages that have ended.
    pub breaker_closed: u64,
    /// Permits that the store debited for leases.
    pub lease_taken: u64,
    /// Leased permits that requests used.
    pub lease_used: u64,
    /// Leased permits that went back to the store.
    pub lease_returned: u64,
    /// Leased permits that were lost, because a limit was reset or lowered.
    pub lease_lost: u64,
}

/// A histogram of the waits of granted calls: counts in buckets that are at most 3.2 % wide, from a
/// nanosecond to 584 years. It takes 15 KiB.
#[derive(Clone, PartialEq, Eq)]
pub struct WaitHistogram {
    counts: Box<[u64]>,
    sum: Duration,
}

impl Statistics {
    /// Creates statistics with all counters at zero.
    #[must_use]
    pub fn new() -> Statistics {
        let waited = (0..BUCKETS).map(|_| AtomicU64::default()).collect();
        Statistics { counters: Counters::default(), waited, waited_sum: AtomicU128::new(0) }
    }

    /// Returns the counts so far. [`Status::waiting`](crate::Status::waiting) reports how many
    /// requests wait right now.
    #[must_use]
    pub fn snapshot(&self) -> StatisticsSnapshot {
        // Relaxed: the counters are read one after another, and promise no order.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StatisticsSnapshot {
            granted: read(&self.counters.granted),
            permits: read(&self.counters.permits),
            limited: read(&self.counters.limited),
            paused: read(&self.counters.paused),
            closed: read(&self.counters.closed),
            exceeds_limit: read(&self.counters.exceeds_limit),
            #[cfg(feature = "keyed")]
            too_many_keys: read(&self.counters.too_many_keys),
            in_use: read(&self.counters.in_use),
            zero_permits: read(&self.counters.zero_permits),
            queue_full: read(&self.counters.queue_full),
            displaced: read(&self.counters.displaced),
            unavailable: read(&self.counters.unavailable),
            cancelled: read(&self.counters.cancelled),
            shadowed: read(&self.counters.shadowed),
            exempted: read(&self.counters.exempted),
            degraded: read(&self.counters.degraded),
            near_limit: read(&self.counters.near_limit),
            pauses: read(&self.counters.pauses),
            store: self.counters.store.read(),
            waited: WaitHistogram {
                counts: self.waited.iter().map(read).collect(),
                // Relaxed: like the counters.
                sum: long(self.waited_sum.load(Ordering::Relaxed)),
            },
        }
    }
}

impl StoreCounters {
    fn read(&self) -> StoreStatistics {
        // Relaxed: like the other counters.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Read first: permits are reported as used before they are reported as unused.
        let unused = read(&self.lease_unused);
        StoreStatistics {
            answered: read(&self.answered),
            answered_in: Duration::from_nanos(read(&self.answered_in)),
            unknown: read(&self.unknown),
            failed: read(&self.failed),
            skipped: read(&self.skipped),
            misconfigured: read(&self.misconfigured),
            breaker_opened: read(&self.breaker_opened),
            breaker_closed: read(&self.breaker_closed),
            lease_taken: read(&self.lease_taken),
            lease_used: read(&self.lease_used).saturating_sub(unused),
            lease_returned: read(&self.lease_returned),
            lease_lost: read(&self.lease_lost),
        }
    }
}

impl Default for Statistics {
    fn default() -> Statistics {
        Statistics::new()
    }
}

fn add(counter: &AtomicU64, more: u64) {
    // Relaxed: no count is lost at any ordering, and snapshots promise no order.
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Events for Statistics {
    fn granted(&self, permits: u64, waited: Duration) {
        add(&self.counters.granted, 1);
        add(&self.counters.permits, permits);
        add(&self.waited[bucket(waited)], 1);
        if !waited.is_zero() {
            let Ok(()) = update(&self.waited_sum, |sum| {
                Ok::<_, Infallible>((sum.saturating_add(waited.as_nanos()), ()))
            });
        }
    }

    fn refused(&self, _permits: u64, refusal: &Refusal) {
        let counter = match refusal {
            Refusal::Limited { .. } => &self.counters.limited,
            Refusal::Paused { .. } => &self.counters.paused,
            Refusal::Closed => &self.counters.closed,
            // Told as a cancelled wait.
            Refusal::Cancelled => &self.counters.cancelled,
            Refusal::ExceedsLimit { .. } => &self.counters.exceeds_limit,
            Refusal::InUse { .. } => &self.counters.in_use,
            Refusal::ZeroPermits => &self.counters.zero_permits,
            Refusal::QueueFull { .. } => &self.counters.queue_full,
            Refusal::Displaced => &self.counters.displaced,
            Refusal::Unavailable { .. } => &self.counters.unavailable,
            #[cfg(feature = "keyed")]
            Refusal::TooManyKeys { .. } => &self.counters.too_many_keys,
        };
        add(counter, 1);
    }

    fn cancelled(&self, _permits: u64, _waited: Duration) {
        add(&self.counters.cancelled, 1);
    }

    fn shadowed(&self, _permits: u64, _refusal: &Refusal) {
        add(&self.counters.shadowed, 1);
    }

    fn exempted(&self, _permits: u64) {
        add(&self.counters.exempted, 1);
    }

    fn paused(&self, _remaining: Duration) {
        add(&self.counters.pauses, 1);
    }

    fn degraded(&self, _permits: u64) {
        add(&self.counters.degraded, 1);
    }

    fn near_limit(&self, _name: &str, _left: &Left) {
        add(&self.counters.near_limit, 1);
    }

    fn store(&self, event: &StoreEvent) {
        let store = &self.counters.store;
        let (counter, more) = match *event {
            StoreEvent::Answered(took) => {
                add(&store.answered_in, Nanos::from_duration(took).as_u64());
                (&store.answered, 1)
            }
            StoreEvent::Unknown => (&store.unknown, 1),
            StoreEvent::Failed => (&store.failed, 1),
            StoreEvent::Skipped => (&store.skipped, 1),
            StoreEvent::Misconfigured => (&store.misconfigured, 1),
            StoreEvent::BreakerOpened => (&store.breaker_opened, 1),
            StoreEvent::BreakerClosed => (&store.breaker_closed, 1),
            StoreEvent::LeaseTaken(permits) => (&store.lease_taken, permits),
            StoreEvent::LeaseUsed(permits) => (&store.lease_used, permits),
            StoreEvent::LeaseUnused(permits) => (&store.lease_unused, permits),
            StoreEvent::LeaseReturned(permits) => (&store.lease_returned, permits),
            StoreEvent::LeaseLost(permits) => (&store.lease_lost, permits),
        };
        add(counter, more);
    }
}

impl fmt::Debug for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Statistics").field(&self.snapshot()).finish()
    }
}

/// Returns the bucket of a wait: its power of two, and its next bits.
fn bucket(waited: Duration) -> usize {
    let nanos = Nanos::from_duration(waited).as_u64();
    let below = (u64::BITS - nanos.leading_zeros()).saturating_sub(PART_BITS + 1);
    // At most 2 * PARTS - 1.
    let first_bits = usize::try_from(nanos >> below).unwrap_or(usize::MAX);
    below as usize * PARTS + first_bits
}

/// Returns the maximum wait of a bucket.
fn end(bucket: usize) -> Duration {
    let below = (bucket / PARTS).saturating_sub(1);
    let first_bits = (bucket - below * PARTS) as u128;
    long(((first_bits + 1) << below) - 1)
}

/// Returns a duration of this many nanoseconds.
fn long(nanos: u128) -> Duration {
    let secs = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
    // A remainder fits.
    Duration::new(secs, u32::try_from(nanos % 1_000_000_000).unwrap_or(0))
}

impl StatisticsSnapshot {
    /// Returns how many calls were refused, for any reason.
    #[must_use]
    pub fn refused(&self) -> u64 {
        let reasons = [
            self.limited,
            self.paused,
            self.closed,
            self.exceeds_limit,
            #[cfg(feature = "keyed")]
            self.too_many_keys,
            self.in_use,
            self.zero_permits,
            self.queue_full,
            self.displaced,
            self.unavailable,
        ];
        reasons.into_iter().fold(0, u64::wrapping_add)
    }
}

impl WaitHistogram {
    /// Returns the wait that the share `q` of all granted calls did not exceed: 0.5 is the median,
    /// and 0.99 is the wait that one call in a hundred exceeded.
    ///
    /// The result is the maximum wait of a bucket, so it is never too short, and at most 3.2 % too
    /// long. Zero is exact. The result is also zero if nothing was granted. A `q` below 0, or NaN,
    /// counts as 0, and a `q` above 1 counts as 1.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Duration {
        let total = self.counts.iter().fold(0u128, |sum, count| sum + u128::from(*count));
        let mut below = 0;
        for (bucket, count) in self.buckets_by_index() {
            below += u128::from(count);
            // Floats of large counts lose their last digits, which a quantile does not show.
            #[allow(clippy::cast_precision_loss)]
            if below > 0 && below as f64 >= q.clamp(0.0, 1.0) * total as f64 {
                return end(bucket);
            }
        }
        // NaN counts as 0.
        let first = self.buckets_by_index().find(|(_, count)| *count > 0);
        first.map_or(Duration::ZERO, |(bucket, _)| end(bucket))
    }

    /// Returns the sum of the waits of all granted calls.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Returns how many granted calls waited at most `wait`: a cumulative count, as a Prometheus
    /// histogram has for each of its bounds.
    ///
    /// It counts whole buckets, so it may miss a call that waited less than 3.2 % less than `wait`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Events, Statistics};
    ///
    /// let statistics = Statistics::new();
    /// for millis in [0, 5, 20, 3000] {
    ///     statistics.granted(1, Duration::from_millis(millis));
    /// }
    /// let waited = statistics.snapshot().waited;
    /// let bounds = [0.01, 0.1, 1.0, 10.0].map(Duration::from_secs_f64);
    /// assert_eq!(bounds.map(|bound| waited.count_within(bound)), [2, 3, 3, 4]);
    /// assert_eq!(waited.sum(), Duration::from_millis(3025));
    /// ```
    #[must_use]
    pub fn count_within(&self, wait: Duration) -> u64 {
        let counted = self.buckets().take_while(|(end, _)| *end <= wait);
        counted.fold(0, |sum, (_, count)| sum.wrapping_add(count))
    }

    /// Returns each bucket, in rising order: the maximum wait that it counts, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.buckets_by_index().map(|(bucket, count)| (end(bucket), count))
    }

    fn buckets_by_index(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.counts.iter().copied().enumerate()
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
        fn a_quantile_is_never_too_short_and_at_most_a_thirty_second_too_long(
            mut waits in proptest::collection::vec(prop_oneof![Just(0u64), 0..100u64, 0..1u64 << 50], 1..50),
            percent in 0..=100usize,
        ) {
            waits.sort_unstable();
            let exact = waits[(percent * waits.len()).div_ceil(100).saturating_sub(1)];
            #[allow(clippy::cast_precision_loss)]
            let estimate = quantile_of(&waits, percent as f64 / 100.0);
            // The float of a share may be slightly too high: then the next wait is the quantile.
            let next = waits.iter().copied().find(|wait| *wait > exact).unwrap_or(exact);
            let close_to = |wait: u64| estimate.checked_sub(wait).is_some_and(|over| over <= wait / 32);
            prop_assert!(close_to(exact) || close_to(next), "{exact} {next} {estimate}");
        }
    }
}
