//! [`Status`]: a snapshot of a limiter.

use std::time::Duration;

use crate::grant::Left;
use crate::policy::PolicyStatus;
use crate::rate::Rate;
use crate::time::Nanos;

/// A snapshot of a limiter: how many permits are available, and how many requests wait. It may be
/// outdated when it is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The most permits that can ever be available; `u64::MAX` if there is no limit.
    pub limit: u64,
    /// How many requests for one permit would succeed right now, one after the other; 0 while
    /// requests wait in the line, and in a pause. While a request waits in an
    /// [`AllOf`](crate::AllOf), the permits that would not delay it.
    pub available: u64,
    /// How long until a request for one permit would be granted, behind the waiters and the pause:
    /// zero if one is available, and [`Duration::MAX`] for never.
    pub next_in: Duration,
    /// How long until the limiter is full, if no request takes permits and all waiters leave. In a
    /// pause not before its end, since no permit comes in until then.
    pub full_in: Duration,
    /// How fast permits come in; [`Rate::UNLIMITED`] where it is not a rate that limits. Of two
    /// policies in one limiter, that of the first one.
    pub rate: Rate,
    /// How many requests wait. A request that waits in an [`AllOf`](crate::AllOf) counts in each of
    /// its members.
    pub waiting: usize,
    /// How long a [pause](crate::RateLimiter::pause_for) still lasts; zero without a pause.
    pub paused_for: Duration,
}

impl Status {
    /// The status of a limiter at which no request waits.
    pub(crate) fn new(status: PolicyStatus, rate: Rate, now: Nanos) -> Status {
        Status::from(status.as_left(now)).rate(rate)
    }

    /// Sets how fast permits come in.
    #[must_use]
    pub const fn rate(self, rate: Rate) -> Status {
        Status { rate, ..self }
    }

    /// Sets how many requests wait.
    #[must_use]
    pub const fn waiting(self, waiting: usize) -> Status {
        Status { waiting, ..self }
    }

    /// Sets how long a pause still lasts.
    #[must_use]
    pub const fn paused_for(self, paused_for: Duration) -> Status {
        Status { paused_for, ..self }
    }
}

/// The status of a limiter at which no request waits, and in which permits come in at no rate that
/// limits. For a limiter of your own.
///
/// # Examples
///
/// ```
/// use tidegate::{Left, Rate, Status};
///
/// let status = Status::from(Left::new(10, 7)).rate(Rate::per_second(5));
/// assert_eq!((status.limit, status.waiting), (10, 0));
/// ```
impl From<Left> for Status {
    fn from(left: Left) -> Status {
        let Left { limit, available, next_in, full_in } = left;
        let (rate, paused_for) = (Rate::UNLIMITED, Duration::ZERO);
        Status { limit, available, next_in, full_in, rate, waiting: 0, paused_for }
    }
}
