//! Every public error, and the refusal.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::rate::Rate;
use crate::time::Nanos;

/// Why a request got no permit.
///
/// A refusal is an ordinary outcome: small, `Copy`, made without allocation. Nothing was taken.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, SmoothBursty};
///
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(5)), clock.clone());
/// limiter.try_acquire()?;
/// let refusal = limiter.try_acquire().unwrap_err();
/// assert_eq!(refusal, Refusal::Limited { retry_after: Duration::from_millis(200).into() });
/// clock.advance(Duration::from_millis(200));
/// limiter.try_acquire()?;
/// # Ok::<(), Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// Not now, perhaps later: no permit is due, or others wait for it.
    Limited {
        /// If nobody else comes, the same call succeeds this much later, and not a nanosecond
        /// earlier. [`Nanos::MAX`] means never within the clock's time, which is 34 years.
        ///
        /// Where a sum of permits does not tell the time, as in a window behind requests of
        /// different sizes, it is exact behind 4,096 requests. Behind more of them it may be too
        /// late, and is never too early.
        ///
        /// A request that is more important than the waiters does not count them, and a refused
        /// request keeps no place. If a waiter comes due meanwhile, it takes its permits, and the
        /// time was too early. A request that has to go first waits, for example with
        /// `acquire_many`.
        ///
        /// [`Nanos`], not a [`Duration`]: a `Duration` keeps seconds apart, and most refused callers do not need the
        /// division that this takes. [`retry_after`](Refusal::retry_after) makes one.
        retry_after: Nanos,
    },
    /// Never: the request is larger than the policy can ever give at once. Waiting does not help.
    ExceedsLimit {
        /// The permits asked for.
        requested: u32,
        /// The most permits that one request can have.
        limit: u32,
    },
    /// All permits are in use; nobody knows when one is given back. Only from a
    /// [`CountingLimit`](crate::CountingLimit).
    InUse {
        /// How many can be in use at the same time.
        limit: u32,
    },
    /// The key is new and there is no room for it. Only from a
    /// [`KeyedRateLimiter`](crate::KeyedRateLimiter).
    #[cfg(feature = "keyed")]
    TooManyKeys {
        /// The most keys that can be known.
        limit: usize,
    },
    /// The queue is full: the request would have had to wait, and there was no place. See
    /// [`QueueBounds`](crate::QueueBounds).
    QueueFull {
        /// If nobody else comes, the same call is accepted this much later: by then there is room
        /// for it, or it need not wait. [`Nanos::MAX`] means never within the clock's time, or that
        /// this limiter cannot tell, since the requests in line wait for a
        /// [`CountingLimit`](crate::CountingLimit).
        retry_after: Nanos,
    },
    /// It waited, and was dropped from a full queue to make room for another; see
    /// [`WhenFull`](crate::WhenFull).
    Displaced,
    /// Zero permits were asked for, which is neither granted nor refused by any rule: ask for at
    /// least one.
    ZeroPermits,
}

impl Refusal {
    /// How long to wait before the same call can succeed; `None` if it never can, or nobody knows.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Refusal;
    ///
    /// let refusal = Refusal::Limited { retry_after: Duration::from_millis(1100).into() };
    /// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(1100)));
    /// assert_eq!(Refusal::ZeroPermits.retry_after(), None);
    /// ```
    #[must_use]
    pub fn retry_after(self) -> Option<Duration> {
        match self {
            Refusal::Limited { retry_after: Nanos::MAX } | Refusal::QueueFull { retry_after: Nanos::MAX } => {
                None
            }
            Refusal::Limited { retry_after } | Refusal::QueueFull { retry_after } => {
                Some(retry_after.as_duration())
            }
            _ => None,
        }
    }

    /// The same in whole seconds, rounded up, as HTTP's `Retry-After` takes it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Refusal;
    ///
    /// let refusal = Refusal::Limited { retry_after: Duration::from_millis(1100).into() };
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

    /// Whether the same request may be granted another time: `false` only if it asks for no
    /// permits, or for more than can ever be had at once.
    #[must_use]
    pub fn may_retry(self) -> bool {
        !matches!(self, Refusal::ExceedsLimit { .. } | Refusal::ZeroPermits)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Limited { retry_after: Nanos::MAX } => f.write_str("limited, no permit is ever due"),
            Refusal::Limited { retry_after } => write!(f, "limited, retry after {retry_after}"),
            Refusal::ExceedsLimit { requested, limit } => {
                write!(f, "{requested} permits requested, the limit is {limit}")
            }
            Refusal::InUse { limit } => write!(f, "all {limit} permits are in use"),
            #[cfg(feature = "keyed")]
            Refusal::TooManyKeys { limit } => write!(f, "no room for another key among {limit}"),
            Refusal::QueueFull { retry_after: Nanos::MAX } => {
                f.write_str("queue is full, nobody knows for how long")
            }
            Refusal::QueueFull { retry_after } => write!(f, "queue is full, retry after {retry_after}"),
            Refusal::Displaced => f.write_str("dropped from a full queue to make room for another request"),
            Refusal::ZeroPermits => f.write_str("0 permits requested, at least 1 is needed"),
        }
    }
}

impl Error for Refusal {}

/// Why a policy could not be made.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PolicyError {
    /// The time for which unused permits are saved is longer than the limit.
    MaxBurst {
        /// The time given.
        max_burst: Duration,
        /// The longest possible.
        limit: Duration,
    },
    /// The warm-up period is longer than the limit.
    WarmUp {
        /// The period given.
        warm_up: Duration,
        /// The longest possible.
        limit: Duration,
    },
    /// A burst in permits was given to a policy that has none.
    NoBurst {
        /// The burst given.
        burst: u32,
    },
    /// A capacity was given to a policy without a bucket that can overflow.
    NoCapacity {
        /// The capacity given.
        capacity: u32,
    },
    /// A longest wait was given to a policy that has none.
    NoMaxWait {
        /// The time given.
        max_wait: Duration,
    },
    /// The bucket takes longer to fill than a state can tell.
    Fill {
        /// The burst given.
        burst: u32,
        /// The rate given.
        rate: Rate,
        /// The longest time.
        limit: Duration,
    },
    /// The rate of a policy that counts is not a whole number of permits, at most `u32::MAX`, in a
    /// whole number of nanoseconds.
    NotWhole {
        /// The rate given.
        rate: Rate,
    },
    /// A sliding log of more permits than it can have room for.
    Log {
        /// The number of permits given.
        permits: u32,
        /// The largest possible.
        limit: u32,
    },
    /// A sliding window of no cells.
    NoCells,
    /// More permits than the bucket holds.
    Stock {
        /// The number given.
        permits: u32,
        /// What the bucket holds.
        burst: u32,
    },
    /// The cold factor is not a number between 1 and the limit.
    ColdFactor {
        /// The factor given.
        cold_factor: f64,
        /// The largest possible.
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
            PolicyError::NoBurst { burst } => {
                write!(f, "a burst of {burst} was given to a policy that has no burst in permits")
            }
            PolicyError::NoCapacity { capacity } => {
                write!(f, "a capacity of {capacity} was given to a policy whose bucket cannot overflow")
            }
            PolicyError::NoMaxWait { max_wait } => {
                write!(f, "a longest wait of {max_wait:?} was given to a policy that has none")
            }
            PolicyError::Fill { burst, rate, limit } => {
                write!(
                    f,
                    "a burst of {burst} at {rate} takes longer to fill than the limit of {}",
                    Years(*limit)
                )
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
                write!(f, "a stock of {permits} permits is more than the burst of {burst}")
            }
            PolicyError::ColdFactor { cold_factor, limit } => {
                write!(f, "cold factor {cold_factor} is not between 1 and {limit}")
            }
        }
    }
}

impl Error for PolicyError {}

/// A span that is too long for seconds to say much.
struct Years(Duration);

impl fmt::Display for Years {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} years", self.0.as_secs_f64() / (365.25 * 86_400.0))
    }
}
