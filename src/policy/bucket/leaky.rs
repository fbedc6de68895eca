//! Leaky bucket as a queue: a constant outflow, and a bucket that can overflow.
//!
//! The algorithm, the state word, the rounding and the memory ordering are in
//! `policy/bucket/mod.rs`. The queue is the limiter's: the queued requests are the water in the
//! bucket, and the maximum wait of a new request is its height.
//!
//! # Invariant
//!
//! In any period of length *d* at most `1 + nodelay + rate * d` single permits leave. No request
//! waits longer than the bucket is high.
//!
//! # Source
//!
//! J. Turner 1986; `ngx_http_limit_req_module` of NGINX 1.22 (`burst`, `nodelay`, `delay`),
//! recorded in `tests/golden/nginx`; uniform queueing (`ThrottlingController`) of Alibaba Sentinel
//! 1.8.9, computed in `tests/golden/sentinel`.

use std::fmt;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::bucket::terms::Terms;
use crate::policy::bucket::{Bucket, BucketCharge, BucketState, Start, passed_on_to_bucket};
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::{Change, Crowd, Forecast, Policy, PolicyStatus, Standstill};
use crate::rate::Rate;
use crate::sync::{AtomicU64, Ordering};
use crate::time::Nanos;

/// Lets requests out at a constant rate. The waiting requests are the water in the bucket, and a
/// request that does not fit is refused.
///
/// Single permits are evenly spaced, however long the limiter was idle. A request pays before it
/// passes: a request for `n` permits leaves `n` intervals after the request before it, and
/// therefore at once if the limiter was idle for that long. A new limiter is like one that was idle
/// for one interval. The size of a request is not limited, so check sizes that come from outside.
///
/// Requests wait in the limiter's queue, with the limit that the bucket sets: a request that would
/// wait longer than the bucket is high is refused at once, with the time after which there is room.
///
/// In any period of length *d* at most `1 + nodelay + rate * d` single permits leave.
///
/// | NGINX `limit_req` | here |
/// |---|---|
/// | `rate=10r/s` | `LeakyBucket::new(rate)`, with [`capacity(0)`](LeakyBucket::capacity) |
/// | `burst=5` | `.capacity(5)` |
/// | `burst=5 delay=3` | `.capacity(5).nodelay(3)` |
/// | `burst=5 nodelay` | `.capacity(5).nodelay(5)`: this is [`TokenBucket`](crate::policy::TokenBucket) with a burst of 6, the leaky bucket as a meter |
/// | Sentinel's uniform queueing | `.max_wait(time)` |
///
/// NGINX charges two zones when a request arrives. An [`AllOf`](crate::AllOf) of two leaky buckets,
/// and [`Both`](crate::policy::Both), charge both when the request leaves: a request that waits for
/// the slower bucket is water in the faster one as well, which therefore refuses earlier.
///
/// When the rate changes, the waiting requests get new times, and the water in the bucket keeps its
/// number of permits. The height can [change](crate::policy::Change::capacity), too; requests that
/// already wait stay. While a change replaces the terms, a `try_` call may be refused; the caller
/// may retry at once.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{LeakyBucket, Rate, RateLimiter, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tidegate::Refusal> {
/// let policy = LeakyBucket::new(Rate::per_second(10)).capacity(2);
/// let limiter = RateLimiter::with_clock(policy, TokioClock::new());
/// let (a, b, c, d) = tokio::join!(
///     limiter.acquire(),
///     limiter.acquire(),
///     limiter.acquire(),
///     limiter.acquire(),
/// );
/// assert_eq!(a?.waited(), Duration::ZERO);
/// assert_eq!(b?.waited(), Duration::from_millis(100));
/// assert_eq!(c?.waited(), Duration::from_millis(200));
/// // The bucket was full.
/// assert_eq!(d.unwrap_err().retry_after(), Some(Duration::from_millis(100)));
/// # Ok(())
/// # }
/// ```
///
/// # Source
///
/// J. Turner 1986; NGINX `ngx_http_limit_req_module`; Alibaba Sentinel, uniform queueing.
///
/// # Picture
///
#[cfg_attr(doc, doc = include_str!("../../../docs/pictures/leaky_bucket.svg"))]
pub struct LeakyBucket {
    pub(in crate::policy) bucket: Bucket,
    /// A [`Height`] in one word.
    height: AtomicU64,
    /// As it was given. No more than the capacity passes at once.
    nodelay: u32,
}

/// How much water fits into the bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Height {
    /// Any amount.
    Endless,
    Permits(u32),
    /// Less than 292 years.
    Wait(Duration),
}

/// The bit that distinguishes permits from nanoseconds.
const PERMITS: u64 = 1 << 63;

impl Height {
    fn to_word(self) -> u64 {
        match self {
            Height::Endless => u64::MAX,
            Height::Permits(permits) => PERMITS | u64::from(permits),
            Height::Wait(max_wait) => match Nanos::from_duration(max_wait).as_u64() {
                nanos if nanos < PERMITS => nanos,
                _ => u64::MAX,
            },
        }
    }

    fn from_word(word: u64) -> Height {
        match word.checked_sub(PERMITS) {
            None => Height::Wait(Duration::from_nanos(word)),
            Some(permits) => u32::try_from(permits).map_or(Height::Endless, Height::Permits),
        }
    }

    /// Returns the maximum number of permits that can leave without delay.
    fn nodelay(self) -> u32 {
        match self {
            Height::Permits(permits) => permits,
            Height::Endless | Height::Wait(_) => u32::MAX,
        }
    }
}

impl LeakyBucket {
    /// Creates an outflow of `rate`, and an unbounded bucket. A rate above 16,000,000,000 per
    /// second counts as that rate.
    #[must_use]
    pub fn new(rate: Rate) -> LeakyBucket {
        LeakyBucket { bucket: Self::outflow(rate, 0), height: AtomicU64::new(u64::MAX), nodelay: 0 }
    }

    /// Creates the rule for a bucket that lets `nodelay` permits pass at once.
    fn outflow(rate: Rate, nodelay: u32) -> Bucket {
        let terms = Terms { rate, burst: nodelay.saturating_add(1), tolerance: 0, stepped: false, anchor: 0 };
        Bucket::cut(terms, Start::Full, true)
    }

    /// Sets the capacity: room for `permits` permits in addition to the permit that is passing.
    /// With zero no request waits. A request that was accepted stays, as with
    /// [`max_wait`](LeakyBucket::max_wait).
    #[must_use]
    pub fn capacity(self, permits: u32) -> LeakyBucket {
        self.high(Height::Permits(permits))
    }

    /// Sets the maximum wait: room for as many permits as leave in `max_wait`. A request that would
    /// wait longer is refused when it asks. A request that was accepted stays, even if a change, a
    /// debit, a pause or a request of higher priority makes it wait longer. Its own
    /// [`within`](crate::Request::within) bounds its wait in any case.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> LeakyBucket {
        self.high(Height::Wait(max_wait))
    }

    /// Lets the first `permits` permits in the bucket pass without delay. They leak out at the rate
    /// like all others.
    ///
    /// The number is limited by the [`capacity`](LeakyBucket::capacity). A number so large that it
    /// takes longer than 2.28 years to leak out is cut to that.
    #[must_use]
    pub fn nodelay(self, permits: u32) -> LeakyBucket {
        LeakyBucket { nodelay: permits, ..self }.fitted()
    }

    fn high(self, height: Height) -> LeakyBucket {
        LeakyBucket { height: AtomicU64::new(height.to_word()), ..self }.fitted()
    }

    /// Returns the capacity, and the maximum wait. At most one of them is set.
    pub(in crate::policy) fn room(&self) -> (Option<u32>, Option<Duration>) {
        match self.height() {
            Height::Endless => (None, None),
            Height::Permits(permits) => (Some(permits), None),
            Height::Wait(max_wait) => (None, Some(max_wait)),
        }
    }

    fn height(&self) -> Height {
        // Relaxed: the word is the whole height. A request that overlaps with a change may use
        // either height.
        Height::from_word(self.height.load(Ordering::Relaxed))
    }

    /// Cuts the nodelay permits so that they fit into the bucket.
    fn fitted(self) -> LeakyBucket {
        let nodelay = self.nodelay.min(self.height().nodelay());
        LeakyBucket { bucket: Self::outflow(self.bucket.terms().rate, nodelay), ..self }
    }
}

impl Clone for LeakyBucket {
    fn clone(&self) -> LeakyBucket {
        let height = AtomicU64::new(self.height().to_word());
        LeakyBucket { bucket: self.bucket.clone(), height, nodelay: self.nodelay }
    }
}

impl fmt::Debug for LeakyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = self.bucket.terms();
        f.debug_struct("LeakyBucket")
            .field("rate", &terms.rate)
            .field("nodelay", &terms.burst.saturating_sub(1))
            .field("height", &self.height())
            .finish()
    }
}

impl Shut for LeakyBucket {
    fn shut(&self, state: &BucketState, now: &dyn Fn() -> Nanos) -> Remainder {
        self.bucket.shut(state, now)
    }
}

impl Policy for LeakyBucket {
    passed_on_to_bucket!();

    /// The burst is the number of [nodelay](LeakyBucket::nodelay) permits and the one that is
    /// passing. A lower capacity cuts it, and a later higher capacity does not restore it.
    fn change_now(
        &self,
        state: &BucketState,
        at: Nanos,
        now: &dyn Fn() -> Nanos,
        change: Change,
    ) -> Result<u64, PolicyError> {
        let change = change.of_one_part()?;
        let height = match (change.capacity, change.max_wait) {
            (Some(capacity), _) => Height::Permits(capacity),
            (_, Some(max_wait)) => Height::Wait(max_wait),
            (None, None) => self.height(),
        };
        // One permit is always passing, and the nodelay permits have to fit.
        let most = height.nodelay().saturating_add(1);
        let cut = Some(most).filter(|most| *most < self.bucket.terms().burst);
        let burst = change.burst.map(|burst| burst.clamp(1, most)).or(cut);
        let level = self.bucket.change(state, at, now, Change { burst, ..change })?;
        // Relaxed: the height is a bound of waiting, and whole by itself. No permit depends on it.
        self.height.store(height.to_word(), Ordering::Relaxed);
        Ok(level)
    }

    fn change_to(&self, new: &LeakyBucket) -> Option<Change> {
        let Terms { rate, burst, .. } = new.bucket.terms();
        let change = Change::rate(rate).burst(burst);
        Some(match new.height() {
            Height::Endless => change.max_wait(Duration::MAX),
            Height::Wait(max_wait) => change.max_wait(max_wait),
            Height::Permits(permits) => change.capacity(permits),
        })
    }

    fn max_wait(&self) -> Duration {
        match self.height() {
            Height::Endless => Duration::MAX,
            Height::Wait(max_wait) => max_wait,
            Height::Permits(permits) => {
                let nodelay = self.bucket.terms().burst.saturating_sub(1);
                self.bucket.price_as_time(permits.saturating_sub(nodelay))
            }
        }
    }
}
