//! [`Status`]: a snapshot of a limiter.

use std::time::Duration;

use crate::policy::PolicyStatus;
use crate::time::Nanos;

/// A snapshot of a limiter: how many permits are available, and how many requests wait. It may be
/// outdated when it is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The most permits that can ever be available; `u64::MAX` if there is no limit.
    pub limit: u64,
    /// How many requests for one permit would succeed right now, one after the other; 0 while
    /// requests wait, and in a pause.
    pub available: u64,
    /// How long until the limiter is full, if no request takes permits and all waiters leave.
    pub full_in: Duration,
    /// How many requests wait. A request that waits in an [`AllOf`](crate::AllOf) counts in each of
    /// its members.
    pub waiting: usize,
    /// How long a [pause](crate::RateLimiter::pause_for) still lasts; zero without a pause.
    pub paused_for: Duration,
}

impl Status {
    pub(crate) fn new(status: PolicyStatus, now: Nanos, waiting: usize) -> Status {
        let full_in = status.full_at.saturating_since(now).as_duration();
        let available = if waiting == 0 { status.available } else { 0 };
        Status { limit: status.limit, available, full_in, waiting, paused_for: Duration::ZERO }
    }
}
