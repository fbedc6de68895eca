//! Decisions of the crate `tidegate`, written as headers.

use std::borrow::Cow;
use std::time::Duration;

use http::HeaderMap;
use tidegate::{AllPermits, AllRefusal, Grant, Left, Refusal, Status};

use super::format::{Format, granted, refused};
use super::limit::{InvalidName, Limit};
use crate::Unit;

/// Writes one decision of a limiter: what a grant left, or when to retry after a refusal.
///
/// The numbers are those of the decision, if the request asked for them with
/// [`Request::with_left`](tidegate::Request::with_left). Otherwise a grant writes only the policy.
/// A refusal that waiting cannot help writes no `Retry-After`.
///
/// # Examples
///
/// ```
/// use http::HeaderMap;
/// use std::time::Duration;
/// use tidegate::{FixedWindow, ManualClock, Rate, RateLimiter, Request};
/// use tidegate_http::write::{self, Format, Limit};
///
/// let clock = ManualClock::new();
/// let limiter =
///     RateLimiter::with_clock(FixedWindow::new(Rate::per_minute(100)), clock);
/// let per_minute = Limit::new("per minute", 100)?.window(Duration::from_secs(60));
/// let mut headers = HeaderMap::new();
///
/// let decision = limiter.try_acquire_many(Request::permits(10).with_left());
/// write::decision(&per_minute, &decision, Format::Draft, &mut headers);
/// assert_eq!(headers["ratelimit"], r#""per minute";r=90;t=60"#);
///
/// limiter.drain();
/// let decision = limiter.try_acquire_many(Request::permits(1).with_left());
/// write::decision(&per_minute, &decision, Format::Draft, &mut headers);
/// assert_eq!(headers["ratelimit"], r#""per minute";r=0;t=60"#);
/// assert_eq!(headers["retry-after"], "60");
/// # Ok::<(), write::InvalidName>(())
/// ```
pub fn decision(
    limit: &Limit<'_>,
    decision: &Result<Grant, Refusal>,
    format: Format,
    headers: &mut HeaderMap,
) {
    let limit = limit.clone();
    match decision {
        Ok(grant) => {
            let limit = match grant.left() {
                Some(left) => limit.left(left),
                None => limit,
            };
            granted(&[limit], format, headers);
        }
        Err(refusal) => match refusal.retry_after() {
            Some(wait) => refused(&[limit.remaining(0).reset(wait)], wait, format, headers),
            None => granted(&[limit], format, headers),
        },
    }
}

/// Writes one decision of several limits: what a grant left in each limit, or the state that a
/// refused request found and when to retry. After a refusal, the member that refused has nothing
/// left.
///
/// The numbers are those of the decision. They are written only if the request asked for them with
/// [`AllRequest::with_left`](tidegate::AllRequest::with_left). A member is left out if it has no
/// limit, or if its name cannot be written in a field.
///
/// # Examples
///
/// ```
/// use http::HeaderMap;
/// use tidegate::{AllOf, AllRequest, FixedWindow, ManualClock, Rate, RateLimiter};
/// use tidegate_http::write::{self, Format};
///
/// let clock = ManualClock::new();
/// let minute = RateLimiter::with_clock(
///     FixedWindow::new(Rate::per_minute(100)),
///     clock.clone(),
/// );
/// let hour =
///     RateLimiter::with_clock(FixedWindow::new(Rate::per_hour(1000)), clock);
/// let limits = AllOf::new("minute", &minute).with("hour", &hour);
///
/// let decision = limits.try_acquire_many(AllRequest::new().with_left());
/// let mut headers = HeaderMap::new();
/// write::decision_of_all(&decision, Format::Draft, &mut headers);
/// assert_eq!(
///     headers["ratelimit-policy"],
///     r#""minute";q=100;w=60, "hour";q=1000;w=3600"#
/// );
/// assert_eq!(headers["ratelimit"], r#""minute";r=99;t=60, "hour";r=999;t=3600"#);
/// ```
pub fn decision_of_all(decision: &Result<AllPermits, AllRefusal>, format: Format, headers: &mut HeaderMap) {
    let (left, refusal) = match decision {
        Ok(permits) => (permits.left(), None),
        Err(refusal) => (refusal.left(), Some(refusal)),
    };
    let wait = refusal.and_then(AllRefusal::retry_after);
    let members = left.map(|left| left.members.as_slice()).unwrap_or_default();
    // A member that never refuses is not a limit.
    let limits = members.iter().filter(|(_, member)| member.limit < u64::MAX);
    let limits = limits.filter_map(|(name, member)| {
        let limit = Limit::of(name.as_str(), member).ok()?;
        let is_short = refusal.and_then(AllRefusal::member) == Some(name.as_str());
        Some(match wait.filter(|_| is_short) {
            Some(wait) => limit.remaining(0).reset(wait),
            None => limit,
        })
    });
    let limits: Vec<_> = limits.collect();
    match wait {
        Some(wait) => refused(&limits, wait, format, headers),
        None => granted(&limits, format, headers),
    }
}

impl<'a> Limit<'a> {
    /// Creates a limit from the status of a limiter: its quota, its window, and the units that
    /// remain.
    ///
    /// The window is the time in which a whole quota accrues. Windows are written in whole seconds.
    /// If a limit fills in less than a second, the quota written is what accrues within one second:
    /// `TokenBucket::new(Rate::per_second(10), 1)` writes 10 per second. A limit without a rate
    /// counts requests in flight.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidName`] like [`Limit::new`].
    pub fn of(name: impl Into<Cow<'a, str>>, status: &Status) -> Result<Limit<'a>, InvalidName> {
        let per_second = status.rate.as_per_second();
        // A quota is far below 2^53, so the float is exact.
        #[expect(clippy::cast_precision_loss)]
        let window = status.limit as f64 / per_second;
        let (quota, window) = if window < 1.0 && !status.rate.is_unlimited() {
            // A rate such as 5 in 100 ms is a rounding error below a whole number. The cast
            // saturates.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let whole = (per_second * (1.0 + 1e-9)) as u64;
            (whole.max(status.limit), 1.0)
        } else {
            (status.limit, window)
        };
        let limit = Limit::new(name, quota)?;
        // A rate of zero has no window.
        let limit = match Duration::try_from_secs_f64(window) {
            _ if status.rate.is_unlimited() => limit.unit(Unit::Concurrency),
            Ok(window) if !window.is_zero() => limit.window(window),
            _ => limit,
        };
        Ok(limit.state_of(status.available, status.next_in, status.full_in))
    }

    /// Sets the units that remain after a grant, and the reset.
    #[must_use]
    pub fn left(self, left: Left) -> Self {
        self.state_of(left.available, left.next_in, left.full_in)
    }

    fn state_of(self, available: u64, next_in: Duration, full_in: Duration) -> Self {
        let limit = self.remaining(available);
        // If nothing remains, the reset is that of the next unit; otherwise it is that of the full
        // quota.
        match if available == 0 { next_in } else { full_in } {
            Duration::MAX => limit,
            reset => limit.reset(reset),
        }
    }
}
