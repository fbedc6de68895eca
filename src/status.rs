//! [`Status`]: a snapshot of a limiter.

use std::time::Duration;

use crate::error::Refusal;
use crate::grant::{Grant, Left};
use crate::policy::PolicyStatus;
use crate::rate::Rate;
use crate::request::Request;
use crate::time::Nanos;

/// A snapshot of a limiter: how many permits are available, and how many requests wait. It may be
/// outdated when it is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// This status with what a grant left.
    pub(crate) fn with_left(self, left: Left) -> Status {
        let Left { limit, available, next_in, full_in } = left;
        Status { limit, available, next_in, full_in, ..self }
    }

    /// This status as it belongs to the answer of a request that did not wait.
    pub(crate) fn told(self, request: &Request, answer: &Result<Grant, Refusal>) -> Status {
        match answer {
            Ok(grant) => grant.left().map_or(self, |left| self.with_left(left)),
            Err(Refusal::Limited { retry_after } | Refusal::Paused { retry_after }) => {
                self.as_refused(request.permits, retry_after.as_duration())
            }
            Err(_) => self,
        }
    }

    /// This status as a request for `n` permits met it, which comes too early by `wait`: fewer
    /// permits were there, whatever changed before the status was taken.
    pub(crate) fn as_refused(self, n: u32, wait: Duration) -> Status {
        let available = self.available.min(u64::from(n).saturating_sub(1));
        let next_in = if n == 1 { wait } else { self.next_in };
        let full_in = if self.full_in.is_zero() { wait } else { self.full_in };
        Status { available, next_in, full_in, ..self }
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
