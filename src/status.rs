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
    /// The maximum number of permits that can ever be available; `u64::MAX` if there is no limit.
    pub limit: u64,
    /// The number of requests for one permit that would succeed right now, one after the other; 0
    /// while requests wait in the queue, and during a pause. While a request waits in an
    /// [`AllOf`](crate::AllOf), the number of permits that would not delay it. The permits that are
    /// [kept for a priority](crate::RateLimiter::keep_for_priority) are included, and only requests
    /// of that priority get them. Permits that [make up](crate::RateLimiter::set_catch_up) for a
    /// late grant are not included.
    pub available: u64,
    /// The time until a request for one permit, without a priority, would be granted, behind the
    /// waiters and the pause: zero if one is available beyond those that are
    /// [kept](crate::RateLimiter::keep_for_priority), and [`Duration::MAX`] for never.
    pub next_in: Duration,
    /// The time until the limiter is full, if no request takes permits and all waiters leave.
    /// During a pause it is not before the pause ends, because no permit accrues until then.
    pub full_in: Duration,
    /// The rate as it was set; [`Rate::UNLIMITED`] if no rate limits permits. The limit may be
    /// lower, as that of a [`SlidingLog`](crate::SlidingLog) above its capacity. Of two policies in
    /// one limiter, the rate of the first policy.
    pub rate: Rate,
    /// The number of requests that wait. Of the requests that wait in one [`AllOf`](crate::AllOf),
    /// one of each priority counts in each of its members.
    pub waiting: usize,
    /// The time until a [pause](crate::RateLimiter::pause_for) ends; zero without a pause, and
    /// [`Duration::MAX`] once the limiter is closed.
    pub paused_for: Duration,
}

impl Status {
    /// Returns the status of a limiter at which no request waits.
    pub(crate) fn new(status: PolicyStatus, rate: Rate, now: Nanos) -> Status {
        Status::from(status.as_left(now)).rate(rate)
    }

    /// Returns this status with the numbers that a grant left.
    pub(crate) fn with_left(self, left: Left) -> Status {
        let Left { limit, available, next_in, full_in } = left;
        Status { limit, available, next_in, full_in, ..self }
    }

    /// Returns this status as it belongs to the decision on a request that did not wait.
    pub(crate) fn as_decided(self, request: &Request, answer: &Result<Grant, Refusal>) -> Status {
        match answer {
            Ok(grant) => grant.left().map_or(self, |left| self.with_left(left)),
            Err(Refusal::Limited { retry_after } | Refusal::Paused { retry_after }) => {
                self.as_refused(request.permits, Some(retry_after.as_duration()))
            }
            Err(_) => self,
        }
    }

    /// Returns this status as seen by a request for `n` permits that was refused: fewer than `n`
    /// permits were available, whatever changed before the status was taken. A request that does
    /// not wait is early by `wait`.
    pub(crate) fn as_refused(self, n: u32, wait: Option<Duration>) -> Status {
        let available = self.available.min(u64::from(n).saturating_sub(1));
        let Some(wait) = wait else {
            return Status { available, ..self };
        };
        let next_in = if n == 1 { wait } else { self.next_in };
        // A full bucket may refuse a request for more than it lets pass at once.
        let is_full = available == self.limit;
        let full_in = if self.full_in.is_zero() && !is_full { wait } else { self.full_in };
        Status { available, next_in, full_in, ..self }
    }

    /// Sets the rate at which permits accrue.
    #[must_use]
    pub const fn rate(self, rate: Rate) -> Status {
        Status { rate, ..self }
    }

    /// Sets the number of requests that wait.
    #[must_use]
    pub const fn waiting(self, waiting: usize) -> Status {
        Status { waiting, ..self }
    }

    /// Sets the time until a pause ends.
    #[must_use]
    pub const fn paused_for(self, paused_for: Duration) -> Status {
        Status { paused_for, ..self }
    }
}

/// Creates the status of a limiter at which no request waits, and whose permits are not limited by
/// a rate. For custom limiters.
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
