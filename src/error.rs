//! The public errors: [`Refusal`] and [`PolicyError`].

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::rate::Rate;
use crate::time::Nanos;

/// The reason why a request got no permits.
///
/// A refusal is an ordinary outcome: the type is small and `Copy`, and it needs no allocation. A
/// refused request takes no permits.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, SmoothBursty};
///
/// let clock = ManualClock::new();
/// let policy = SmoothBursty::new(Rate::per_second(5));
/// let limiter = RateLimiter::with_clock(policy, clock.clone());
/// limiter.try_acquire()?;
/// let refusal = limiter.try_acquire().unwrap_err();
/// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(200)));
/// clock.advance(Duration::from_millis(200));
/// limiter.try_acquire()?;
/// # Ok::<(), Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The permits are not due yet, or other requests wait for them. The request may succeed later.
    Limited {
        /// The time after which this call succeeds if no other request arrives. The call does not
        /// succeed a nanosecond earlier. For a request with a [maximum
        /// wait](crate::Request::within), it is the time after which such a call is accepted, to
        /// wait no longer than that maximum. [`Nanos::MAX`] means never within the clock's time,
        /// which is 34 years.
        ///
        /// The time is exact if at most 4,096 requests wait, or if the due time depends only on the
        /// sum of their permits. It may be too late, but never too early, behind more requests of
        /// different sizes at a policy such as a window.
        ///
        /// The time for a request of higher priority than the waiters does not count the waiters,
        /// and a refused request keeps no position in the queue. If a waiter comes due before the
        /// retry, the waiter takes its permits, and the time was too early. A request that must be
        /// served first should wait, for example with `acquire_many`.
        ///
        /// The type is [`Nanos`] and not [`Duration`], because a `Duration` costs a division that
        /// most refused callers do not need. [`retry_after`](Refusal::retry_after) converts it.
        retry_after: Nanos,
    },
    /// The limiter is [paused](crate::RateLimiter::pause_for). The request may succeed later.
    Paused {
        /// The time after which this call succeeds, or, with a [maximum
        /// wait](crate::Request::within), is accepted. It has the same meaning as in
        /// [`Limited`](Refusal::Limited). [`Nanos::MAX`] means that the pause lasts until a call
        /// ends it, or that nothing is granted after it either.
        retry_after: Nanos,
    },
    /// The limiter was [closed](crate::RateLimiter::close), before the request or while it waited.
    /// The limiter grants no more requests.
    Closed,
    /// The blocking call ran under a [`CancelToken`](crate::CancelToken) that was cancelled before
    /// the call or while it waited. The call took no permits.
    Cancelled,
    /// The request is for more permits than the policy can ever grant at once. Waiting does not
    /// help.
    ExceedsLimit {
        /// The number of permits requested.
        requested: u32,
        /// The maximum number of permits of one request.
        limit: u32,
    },
    /// All permits are in use. The time at which one is released is unknown. Only from limits of
    /// permits in use.
    InUse {
        /// The maximum number of permits in use at one time.
        limit: u32,
    },
    /// The key is new and the limiter has no room for it. Only from limiters with keys.
    #[cfg(feature = "keyed")]
    TooManyKeys {
        /// The maximum number of known keys.
        limit: usize,
    },
    /// The request would have had to wait, and the queue had no room for it. See
    /// [`QueueBounds`](crate::QueueBounds). A request that would also have waited for too long gets
    /// this refusal if it has to wait longer for room in the queue.
    QueueFull {
        /// The time after which this call is accepted if no other request arrives: by then the
        /// queue has room for it, or it need not wait. [`Nanos::MAX`] means never within the
        /// clock's time, or that the time is unknown because the queued requests wait for a
        /// [`CountingLimit`](crate::CountingLimit).
        retry_after: Nanos,
    },
    /// The request waited, and was dropped from a full queue to make room for another request. See
    /// [`WhenFull`](crate::WhenFull).
    Displaced,
    /// The limiter could not decide, because the store that keeps its permits did not reply, or
    /// rejects the limiter's calls. Only from a [`Limiter`](crate::Limiter) over a network.
    Unavailable {
        /// The time after which the limiter calls the store again. [`Nanos::MAX`] means that the
        /// time is unknown, for example because the password for the store is wrong, which waiting
        /// does not fix.
        retry_after: Nanos,
    },
    /// The request asked for zero permits. Ask for at least one.
    ZeroPermits,
}

impl Refusal {
    /// Returns the time to wait before this call can succeed, or `None` if it can never succeed or
    /// the time is unknown.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Refusal;
    ///
    /// let retry_after = Duration::from_millis(1100).into();
    /// let refusal = Refusal::Limited { retry_after };
    /// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(1100)));
    /// assert_eq!(Refusal::ZeroPermits.retry_after(), None);
    /// ```
    #[must_use]
    pub fn retry_after(self) -> Option<Duration> {
        let (Refusal::Limited { retry_after }
        | Refusal::Paused { retry_after }
        | Refusal::QueueFull { retry_after }
        | Refusal::Unavailable { retry_after }) = self
        else {
            return None;
        };
        (retry_after < Nanos::MAX).then(|| retry_after.as_duration())
    }

    /// Returns [`retry_after`](Refusal::retry_after) in whole seconds, rounded up, as required by
    /// HTTP's `Retry-After` header.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Refusal;
    ///
    /// let retry_after = Duration::from_millis(1100).into();
    /// let refusal = Refusal::Limited { retry_after };
    /// assert_eq!(refusal.retry_after_secs(), Some(2));
    /// ```
    ///
    /// # Source
    ///
    /// RFC 9110, section 10.2.3.
    #[must_use]
    pub fn retry_after_secs(self) -> Option<u64> {
        let wait = self.retry_after()?;
        Some(wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)))
    }

    /// Returns the HTTP status code with which a server reports this refusal to a client.
    ///
    /// | code | if |
    /// |---|---|
    /// | 429 | the client asked for too much or for zero permits: a limit is reached, or can never grant that many permits |
    /// | 503 | the server has no capacity: the limiter is paused, closed or cannot reach its store, its queue is full, the request was displaced from the queue or cancelled, or there is no room for a key |
    ///
    /// A full limit of permits in use is a limit that is reached, so its code is 429. Such a
    /// response has no `Retry-After`, because the limiter does not know when permits are released.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Refusal;
    ///
    /// let retry_after = Duration::from_secs(2).into();
    /// assert_eq!(Refusal::Limited { retry_after }.status_code(), 429);
    /// assert_eq!(Refusal::QueueFull { retry_after }.status_code(), 503);
    /// ```
    ///
    /// # Source
    ///
    /// RFC 6585, section 4, and RFC 9110, section 15.6.4.
    #[must_use]
    pub fn status_code(self) -> u16 {
        match self {
            Refusal::Limited { .. }
            | Refusal::ExceedsLimit { .. }
            | Refusal::InUse { .. }
            | Refusal::ZeroPermits => 429,
            #[cfg(feature = "keyed")]
            Refusal::TooManyKeys { .. } => 503,
            Refusal::Paused { .. }
            | Refusal::Closed
            | Refusal::Cancelled
            | Refusal::QueueFull { .. }
            | Refusal::Displaced
            | Refusal::Unavailable { .. } => 503,
        }
    }

    /// Returns whether a later attempt of this request may be granted. It returns `false` only if
    /// the request asks for zero permits or for more than can ever be granted at once, the limiter
    /// is closed, or the call was cancelled.
    #[must_use]
    pub fn may_retry(self) -> bool {
        !matches!(
            self,
            Refusal::ExceedsLimit { .. } | Refusal::ZeroPermits | Refusal::Closed | Refusal::Cancelled
        )
    }
}

/// A time in a message, without digits that no reader needs: a time of a millisecond or more is
/// rounded up to whole milliseconds.
struct Shown(Nanos);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MILLI: u64 = 1_000_000;
        let nanos = self.0.as_u64();
        let whole = nanos.checked_next_multiple_of(MILLI).filter(|_| nanos > MILLI);
        Nanos::new(whole.unwrap_or(nanos)).fmt(f)
    }
}

/// Writes the reason. The times in it are rounded up; [`retry_after`](Refusal::retry_after) is
/// exact.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Limited { retry_after: Nanos::MAX } => {
                f.write_str("limited, no permit will become available")
            }
            Refusal::Limited { retry_after } => write!(f, "limited, retry after {}", Shown(*retry_after)),
            Refusal::Paused { retry_after: Nanos::MAX } => f.write_str("paused until the pause is ended"),
            Refusal::Paused { retry_after } => write!(f, "paused, retry after {}", Shown(*retry_after)),
            Refusal::Closed => f.write_str("closed, no request is granted any more"),
            Refusal::Cancelled => f.write_str("cancelled by another thread"),
            Refusal::ExceedsLimit { requested, limit } => {
                write!(f, "{requested} permits requested, the limit is {limit}")
            }
            Refusal::InUse { limit: 1 } => f.write_str("the only permit is in use"),
            Refusal::InUse { limit } => write!(f, "all {limit} permits are in use"),
            #[cfg(feature = "keyed")]
            Refusal::TooManyKeys { limit: 1 } => {
                f.write_str("no room for a new key, the only key is limited")
            }
            #[cfg(feature = "keyed")]
            Refusal::TooManyKeys { limit } => {
                write!(f, "no room for a new key, all {limit} keys are limited")
            }
            Refusal::QueueFull { retry_after: Nanos::MAX } => {
                f.write_str("queue is full, retry time unknown")
            }
            Refusal::QueueFull { retry_after } => {
                write!(f, "queue is full, retry after {}", Shown(*retry_after))
            }
            Refusal::Unavailable { retry_after: Nanos::MAX } => {
                f.write_str("the limiter's store is misconfigured or has ended, retrying does not help")
            }
            Refusal::Unavailable { retry_after } => {
                write!(f, "the store of the limiter did not reply, retry after {}", Shown(*retry_after))
            }
            Refusal::Displaced => f.write_str("dropped from a full queue to make room for another request"),
            Refusal::ZeroPermits => f.write_str("0 permits requested, at least 1 is needed"),
        }
    }
}

impl Error for Refusal {}

/// The reason why a policy could not be created or changed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PolicyError {
    /// The duration for which unused permits are saved exceeds the limit.
    MaxBurst {
        /// The duration given.
        max_burst: Duration,
        /// The longest possible duration.
        limit: Duration,
    },
    /// The warm-up period exceeds the limit.
    WarmUp {
        /// The period given.
        warm_up: Duration,
        /// The longest possible period.
        limit: Duration,
    },
    /// A burst in permits was given to a policy that has no burst in permits.
    NoBurst {
        /// The burst given.
        burst: u32,
        /// The policy's name in a configuration.
        policy: &'static str,
    },
    /// A capacity was given to a policy without a bucket that can overflow.
    NoCapacity {
        /// The capacity given.
        capacity: u32,
    },
    /// A maximum wait was given to a policy that has none.
    NoMaxWait {
        /// The time given.
        max_wait: Duration,
    },
    /// At this rate the bucket takes longer to fill than a state can represent.
    Fill {
        /// The burst given.
        burst: u32,
        /// The rate given.
        rate: Rate,
        /// The tolerance given; at most 36.5 years.
        tolerance: Duration,
        /// The longest possible time to fill.
        limit: Duration,
    },
    /// The rate of a window policy is not a whole number of permits, at most `u32::MAX`, in a whole
    /// number of nanoseconds.
    NotWhole {
        /// The rate given.
        rate: Rate,
    },
    /// The sliding log would be longer than the limit.
    Log {
        /// The number of permits given.
        permits: u32,
        /// The largest possible number.
        limit: u32,
    },
    /// A sliding window was given zero cells.
    NoCells,
    /// A change was for a part that the policy does not have.
    NoPart {
        /// The part given, counted from 0.
        part: usize,
        /// The number of parts of the policy.
        parts: usize,
    },
    /// The number of permits to start with exceeds the burst.
    Stock {
        /// The number given.
        permits: u32,
        /// The burst: the number of permits that the bucket holds.
        burst: u32,
    },
    /// The cold factor is not a number between 1 and the limit.
    ColdFactor {
        /// The factor given.
        cold_factor: f64,
        /// The largest possible factor.
        limit: f64,
    },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyError::MaxBurst { max_burst, limit } => {
                write!(f, "a burst of {} is longer than the limit of {}", Years(*max_burst), Years(*limit))
            }
            PolicyError::WarmUp { warm_up, limit } => {
                write!(f, "a warm-up of {} is longer than the limit of {}", Years(*warm_up), Years(*limit))
            }
            PolicyError::NoBurst { burst, policy } => {
                write!(f, "a burst of {burst} was given to {policy}, which has no burst in permits")
            }
            PolicyError::NoCapacity { capacity } => {
                write!(f, "a capacity of {capacity} was given to a policy whose bucket cannot overflow")
            }
            PolicyError::NoMaxWait { max_wait } => {
                write!(f, "a longest wait of {max_wait:?} was given to a policy that has none")
            }
            PolicyError::Fill { burst, rate, tolerance, limit } => {
                write!(f, "a burst of {burst} at {rate}")?;
                if !tolerance.is_zero() {
                    write!(f, " with a tolerance of {}", Years(*tolerance))?;
                }
                write!(f, " takes longer to fill than the limit of {}", Years(*limit))
            }
            PolicyError::NoPart { part, parts: 1 } => {
                write!(f, "part {part} is out of range, the policy has 1 part (0)")
            }
            PolicyError::NoPart { part, parts } => {
                let last = parts.saturating_sub(1);
                write!(f, "part {part} is out of range, the policy has {parts} parts (0 to {last})")
            }
            PolicyError::NotWhole { rate } => {
                write!(
                    f,
                    "{rate} is not a whole number of permits, at most {}, in a whole number of nanoseconds",
                    u32::MAX
                )
            }
            PolicyError::Log { permits, limit } => {
                write!(f, "a log of {permits} permits is longer than the limit of {limit}")
            }
            PolicyError::NoCells => f.write_str("a window of 0 cells, at least 1 is needed"),
            PolicyError::Stock { permits, burst } => {
                write!(f, "start_with {permits} exceeds the burst of {burst}")
            }
            PolicyError::ColdFactor { cold_factor, limit } => {
                write!(f, "cold factor {cold_factor} is not between 1 and {limit}")
            }
        }
    }
}

impl Error for PolicyError {}

/// A duration in years, for durations too long to read in seconds.
struct Years(Duration);

impl fmt::Display for Years {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} years", self.0.as_secs_f64() / (365.25 * 86_400.0))
    }
}
