//! [`Grant`]: the permits that a request got. [`Left`]: what the grant left in the limiter.

use std::time::Duration;

use crate::time::Nanos;

/// The permits that a request got, and the time that it waited for them.
///
/// A grant is a plain value: dropping it gives nothing back. To give permits back, call
/// [`RateLimiter::refund`](crate::RateLimiter::refund).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Rate, RateLimiter, Refusal, SmoothBursty, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Refusal> {
/// let policy = SmoothBursty::new(Rate::per_second(5));
/// let limiter = RateLimiter::with_clock(policy, TokioClock::new());
/// assert_eq!(limiter.acquire_many(2).await?.waited(), Duration::ZERO);
/// let grant = limiter.acquire().await?;
/// assert_eq!(grant.waited(), Duration::from_millis(400));
/// assert_eq!(grant.permits(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    permits: u32,
    waited: Nanos,
    left: Option<Left>,
}

/// What a grant left in its limiter: for the headers of an HTTP response, for example.
///
/// A request gets it if it asks for it with [`Request::with_left`](crate::Request::with_left). It
/// is the state right after the grant, at the time of the decision. Later grants of other requests
/// do not count, and neither do waiters. Of several requests for one permit at one time, each
/// therefore gets a different number of available permits. During a pause, while grants are spaced
/// after a pause, and while [permits are kept](crate::RateLimiter::keep_for_priority), it reports
/// no more than a [`Status`](crate::Status) of that moment: waiters and later grants count, and
/// `next_in` does not count kept permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Left {
    /// The maximum number of permits that can ever be available; `u64::MAX` if there is no limit.
    pub limit: u64,
    /// The number of requests for one permit that would succeed, one after the other.
    pub available: u64,
    /// The time until a request for one permit would succeed: zero if one is available, and
    /// [`Duration::MAX`] for never.
    pub next_in: Duration,
    /// The time until the limiter is full; [`Duration::MAX`] for never.
    pub full_in: Duration,
}

impl Left {
    /// Creates the permits left in a custom limiter. If the numbers say so, the next permit is
    /// available now and the limiter is full now. Otherwise each of these two times is "never"
    /// unless it is set.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Left;
    ///
    /// let left = Left::new(10, 7).full_in(Duration::from_millis(600));
    /// assert_eq!((left.available, left.next_in), (7, Duration::ZERO));
    /// ```
    #[must_use]
    pub const fn new(limit: u64, available: u64) -> Left {
        let next_in = if available > 0 { Duration::ZERO } else { Duration::MAX };
        let full_in = if available >= limit { Duration::ZERO } else { Duration::MAX };
        Left { limit, available, next_in, full_in }
    }

    /// Sets the time until a request for one permit would succeed.
    #[must_use]
    pub const fn next_in(self, next_in: Duration) -> Left {
        Left { next_in, ..self }
    }

    /// Sets the time until the limiter is full.
    #[must_use]
    pub const fn full_in(self, full_in: Duration) -> Left {
        Left { full_in, ..self }
    }
}

impl Grant {
    /// Creates the grant of a request that did not wait.
    #[inline]
    pub(crate) fn at_once(permits: u32) -> Grant {
        Grant::new(permits, Nanos::ZERO)
    }

    /// Creates the grant of a custom limiter, after a wait of `waited`.
    #[inline]
    #[must_use]
    pub fn new(permits: u32, waited: impl Into<Nanos>) -> Grant {
        Grant { permits, waited: waited.into(), left: None }
    }

    /// Sets what the grant left in the limiter.
    #[must_use]
    pub const fn with_left(self, left: Left) -> Grant {
        Grant { left: Some(left), ..self }
    }

    /// Returns what the grant left in the limiter, if the request asked for it with
    /// [`Request::with_left`](crate::Request::with_left). Returns `None` for a request that passed
    /// without permits.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, Request, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// let grant = limiter.try_acquire_many(Request::permits(3).with_left())?;
    /// let left = grant.left().expect("it was asked for");
    /// assert_eq!((left.available, left.limit), (7, 10));
    /// assert_eq!(left.next_in, Duration::ZERO);
    /// assert_eq!(left.full_in, Duration::from_millis(600));
    /// # Ok::<(), Refusal>(())
    /// ```
    #[must_use]
    pub fn left(self) -> Option<Left> {
        self.left
    }

    /// Returns the number of permits that the limiter granted. It is the number that the request
    /// asked for, or the number available if it asked for [up to](crate::Request::up_to) a number,
    /// or 0 if the request passed without permits. A request passes without permits if it is
    /// [exempt](crate::Request::exempt), or if the limiter is in [shadow
    /// mode](crate::RateLimiter::set_shadow) and would have refused it.
    #[must_use]
    pub fn permits(self) -> u32 {
        self.permits
    }

    /// Returns how long the request waited: zero if its permits were available.
    ///
    /// A wait begins with the first poll of a future, or with the call of a blocking method or of
    /// [`reserve`](crate::RateLimiter::reserve). It ends when that call or future returns the
    /// permits, or when the reservation is claimed. So the time for which a granted task has to
    /// wait for its executor counts as well.
    #[must_use]
    pub fn waited(self) -> Duration {
        self.waited.as_duration()
    }
}
