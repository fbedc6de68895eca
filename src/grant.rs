//! [`Grant`]: what a request got.

use std::time::Duration;

use crate::time::Nanos;

/// The permits that a request got, and how long it waited for them.
///
/// A grant is a plain value: dropping it gives nothing back. To give permits back, see
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
}

impl Grant {
    /// The grant of a request that did not have to wait.
    #[inline]
    pub(crate) fn at_once(permits: u32) -> Grant {
        Grant { permits, waited: Nanos::ZERO }
    }

    #[inline]
    pub(crate) fn new(permits: u32, waited: Nanos) -> Grant {
        Grant { permits, waited }
    }

    /// Returns how many permits the limiter gave: as many as the request asked for, or 0 if the
    /// request passed without permits. A request passes so if it is
    /// [exempt](crate::Request::exempt), or if the limiter is in
    /// [shadow mode](crate::RateLimiter::set_shadow) and would have refused it.
    #[must_use]
    pub fn permits(self) -> u32 {
        self.permits
    }

    /// Returns how long the request waited: zero if its permits were there.
    ///
    /// A wait begins with the first poll of a future, or with the call of a blocking method or of
    /// [`reserve`](crate::RateLimiter::reserve).
    #[must_use]
    pub fn waited(self) -> Duration {
        self.waited.as_duration()
    }
}
