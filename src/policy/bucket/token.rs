//! Token bucket, also known as GCRA: a burst at once, and then a rate.
//!
//! The algorithm, the state word, the rounding and the memory ordering are in
//! `policy/bucket/mod.rs`.
//!
//! # Invariant
//!
//! In any period of length *d* at most `burst + rate * d` permits are granted, to requests of any
//! sizes; with steps of `k` tokens each `t`, at most `burst + k * (d / t + 1)`. A tolerance adds
//! `rate * tolerance`. If the interval is not a whole number of nanoseconds, the times of *d* are
//! exact to `burst` sixteenths of a nanosecond, and never off by as much as a permit. Tests:
//! `tests/policy/bucket_properties.rs`.
//!
//! # Source
//!
//! J. Turner, "New directions in communications (or which way to the information age?)", IEEE
//! Communications Magazine 24(10), 1986; the cell rate algorithm of ATM Forum, Traffic Management
//! Specification 4.0, 1996, section 4.4.2. Behaviour checked against golang.org/x/time/rate.

use std::fmt;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::bucket::terms::Terms;
use crate::policy::bucket::{Bucket, BucketCharge, BucketState, Start, passed_on_to_bucket};
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::{Change, Crowd, Forecast, Policy, PolicyStatus, Standstill, ticks};
use crate::rate::Rate;
use crate::time::Nanos;

/// Holds up to `burst` permits, which accrue at a rate. A request takes as many permits as it
/// needs, or waits until they are available.
///
/// A request pays before it passes, so in any period of length *d* at most `burst + rate * d`
/// permits are granted, and a request for more than the burst is never granted:
/// [`Refusal::ExceedsLimit`].
///
/// This is the Generic Cell Rate Algorithm (GCRA), with an equal state and equal decisions. In GCRA
/// the burst is a time by which requests may be early; here it can also be given [as a
/// time](TokenBucket::tolerance). It is also the leaky bucket as a meter: the tokens that are
/// missing from this bucket are the water in that bucket.
///
/// The bucket starts full. Permits accrue one by one, or [all at
/// once](TokenBucket::interval_refill) each period.
///
/// When the rate or the burst changes, the number of stored permits is kept, up to the new burst;
/// see [`Change`] for the other rules. At [`Rate::ZERO`] requests can still take the stored
/// permits. When the rate leaves [`Rate::UNLIMITED`], the bucket is full. If a future is dropped
/// directly after such a change, with its permit granted but not yet seen, the permit may be worth
/// less.
///
/// A request that overlaps with a change passes by the old terms or by the new terms. While the
/// change replaces the terms, a request may be refused; the caller may retry at once.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::policy::{Policy, TokenBucket};
/// use tidegate::{Nanos, Rate, Refusal};
///
/// let policy = TokenBucket::new(Rate::per_second(10), 20);
/// let state = policy.start(Nanos::ZERO);
/// policy.try_acquire(&state, Nanos::ZERO, 20)?;
/// // A request waits for all its permits, not for the request before it.
/// let refusal = policy.try_acquire(&state, Nanos::ZERO, 3).unwrap_err();
/// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(300)));
/// let never = policy.try_acquire(&state, Nanos::ZERO, 21).unwrap_err();
/// assert_eq!(never, Refusal::ExceedsLimit { requested: 21, limit: 20 });
/// # Ok::<(), Refusal>(())
/// ```
///
/// # Source
///
/// J. Turner 1986; ATM Forum, Traffic Management Specification 4.0, section 4.4.2 (GCRA);
/// golang.org/x/time/rate.
///
/// # Picture
///
#[cfg_attr(doc, doc = include_str!("../../../docs/pictures/token_bucket.svg"))]
#[cfg_attr(doc, doc = "\nIn steps:\n\n", doc = include_str!("../../../docs/pictures/token_bucket_in_steps.svg"))]
#[derive(Clone)]
pub struct TokenBucket {
    pub(crate) bucket: Bucket,
}

impl TokenBucket {
    /// The maximum time that a bucket may take to fill, about 2.28 years.
    pub const MAX_FILL: Duration = ticks::MAX_SPAN;

    /// Creates a bucket for `burst` permits that accrue at `rate`. It starts full.
    ///
    /// With a burst of 0 nothing is granted, except at [`Rate::UNLIMITED`]: a request for one
    /// permit waits until the burst is [changed](crate::RateLimiter::change), possibly for ever.
    /// Tokens accrue no faster than one in a 16th of a nanosecond: a higher rate counts as
    /// 16,000,000,000 per second.
    ///
    /// # Panics
    ///
    /// Panics if the bucket takes longer than [`MAX_FILL`](TokenBucket::MAX_FILL) to fill. For
    /// values from a configuration, use [`try_new`](TokenBucket::try_new).
    #[must_use]
    #[track_caller]
    pub fn new(rate: Rate, burst: u32) -> TokenBucket {
        match TokenBucket::try_new(rate, burst) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a bucket for `burst` permits that accrue at `rate`. It starts full.
    ///
    /// # Errors
    ///
    /// Returns [`PolicyError::Fill`] if the bucket takes longer than
    /// [`MAX_FILL`](TokenBucket::MAX_FILL) to fill.
    pub fn try_new(rate: Rate, burst: u32) -> Result<TokenBucket, PolicyError> {
        let terms = Terms { rate, burst, tolerance: 0, stepped: false, anchor: 0 };
        Ok(TokenBucket { bucket: Bucket::new(terms, Start::Full, false)? })
    }

    /// Makes the bucket start empty instead of full.
    #[must_use]
    pub fn start_empty(self) -> TokenBucket {
        // No burst is smaller than 0.
        self.clone().start_with(0).unwrap_or(self)
    }

    /// Makes the bucket start with `permits` permits.
    ///
    /// # Errors
    ///
    /// Returns [`PolicyError::Stock`] if `permits` is more than the burst.
    pub fn start_with(self, permits: u32) -> Result<TokenBucket, PolicyError> {
        Ok(TokenBucket { bucket: self.bucket.starting(Start::Tokens(permits))? })
    }

    /// Makes permits accrue all at once, once per period of the rate: with `100/min` a hundred each
    /// minute.
    ///
    /// The periods begin with the limiter's clock: when the limiter was created, unless it was
    /// given a clock.
    ///
    /// In a period of length *d* at most `burst + permits * (d / period + 1)` are granted.
    ///
    /// # Errors
    ///
    /// Returns [`PolicyError::Fill`] like [`try_new`](TokenBucket::try_new), with one additional
    /// period.
    pub fn interval_refill(self) -> Result<TokenBucket, PolicyError> {
        Ok(TokenBucket { bucket: self.bucket.with(|terms| Terms { stepped: true, ..terms })? })
    }

    /// Makes permits accrue all at once, at the full minute, hour or whatever the period of the
    /// rate is, by the wall clock.
    ///
    /// The periods begin `offset` after the periods of Unix time, which is UTC: a rate per day with
    /// an offset of 8 hours refills at eight in the morning UTC. The wall clock is read once, when
    /// the limiter is created. Setting the wall clock later has no effect.
    ///
    /// # Errors
    ///
    /// Returns the same error as [`interval_refill`](TokenBucket::interval_refill).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::policy::{Policy, TokenBucket};
    /// use tidegate::{Nanos, Rate};
    ///
    /// // The limiter's clock begins 40 s after the full minute.
    /// let policy = TokenBucket::new(Rate::per_minute(5), 5);
    /// let policy = policy.at_wall_clock(Duration::ZERO)?;
    /// let policy = policy.with_epoch(Duration::from_secs(1_000_000 * 60 + 40));
    /// let state = policy.start(Nanos::ZERO);
    /// policy.try_acquire(&state, Nanos::ZERO, 5)?;
    /// let due = policy.ready_at(&state, Nanos::ZERO, 0, 5);
    /// assert_eq!(due, Nanos::from_duration(Duration::from_secs(20)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_wall_clock(self, offset: Duration) -> Result<TokenBucket, PolicyError> {
        let aligned = self.interval_refill()?;
        let bucket = aligned.bucket.aligned(offset);
        Ok(TokenBucket { bucket })
    }

    /// Lets requests be early by `tolerance` beyond what the burst allows: the limit of GCRA in
    /// addition to its burst.
    ///
    /// `TokenBucket::new(rate, 1).tolerance(τ)` is GCRA(1 / rate, τ). In any period of length *d*
    /// at most `burst + rate * (d + tolerance)` permits are granted.
    ///
    /// # Errors
    ///
    /// Returns [`PolicyError::Fill`] like [`try_new`](TokenBucket::try_new).
    pub fn tolerance(self, tolerance: Duration) -> Result<TokenBucket, PolicyError> {
        let tolerance = Nanos::from_duration(tolerance).as_u64().saturating_mul(ticks::PER_NANO);
        Ok(TokenBucket { bucket: self.bucket.with(|terms| Terms { tolerance, ..terms })? })
    }

    /// Returns the burst, as it was given.
    #[must_use]
    pub fn burst(&self) -> u32 {
        self.bucket.terms().burst
    }

    /// Returns the stored permits with their fraction, for display and statistics; infinite without
    /// a limit.
    ///
    /// The result is negative only if times were given in advance, as is possible with a [`Policy`]
    /// that is used without a limiter.
    #[must_use]
    pub fn tokens(&self, state: &BucketState, at: Nanos) -> f64 {
        self.bucket.tokens(state, at)
    }
}

impl fmt::Debug for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = self.bucket.terms();
        f.debug_struct("TokenBucket")
            .field("rate", &terms.rate)
            .field("burst", &terms.burst)
            .finish_non_exhaustive()
    }
}

impl Shut for TokenBucket {
    fn shut(&self, state: &BucketState, now: &dyn Fn() -> Nanos) -> Remainder {
        self.bucket.shut(state, now)
    }
}

impl Policy for TokenBucket {
    passed_on_to_bucket!();

    fn change_now(
        &self,
        state: &BucketState,
        at: Nanos,
        now: &dyn Fn() -> Nanos,
        change: Change,
    ) -> Result<u64, PolicyError> {
        self.bucket.change(state, at, now, change.without_height()?)
    }

    /// A tolerance, and how permits accrue, cannot be changed.
    fn change_to(&self, new: &TokenBucket) -> Option<Change> {
        let is_anchored_likewise = self.bucket.wall_clock == new.bucket.wall_clock;
        let (old, new) = (self.bucket.terms(), new.bucket.terms());
        let Terms { rate, burst, .. } = new;
        (is_anchored_likewise && Terms { rate, burst, ..old } == new).then(|| Change::rate(rate).burst(burst))
    }

    fn with_epoch(self, unix_time_at_zero: Duration) -> TokenBucket {
        TokenBucket { bucket: self.bucket.with_epoch(unix_time_at_zero) }
    }
}
