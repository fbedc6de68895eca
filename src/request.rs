//! Everything that a call may say about what it wants.

use std::time::Duration;

/// What a call wants: so many permits, how important it is, how long it waits.
///
/// For [`RateLimiter::acquire_with`](crate::RateLimiter::acquire_with),
/// [`try_acquire_with`](crate::RateLimiter::try_acquire_with) and
/// [`blocking_acquire_with`](crate::RateLimiter::blocking_acquire_with). The calls with fewer words
/// ask for priority 0.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Rate, RateLimiter, Refusal, Request, SmoothBursty, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Refusal> {
/// let limiter = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(10)), TokioClock::new());
/// limiter.acquire().await;
/// let low = limiter.acquire_with(Request::permits(1).priority(-1));
/// let high = limiter.acquire_with(Request::permits(1).priority(1).within(Duration::from_secs(1)));
/// let (low, high) = tokio::join!(low, high);
/// assert_eq!(high?, Duration::from_millis(100));
/// assert_eq!(low?, Duration::from_millis(200));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request does nothing unless it is given to a limiter"]
pub struct Request {
    pub(crate) permits: u32,
    pub(crate) priority: i8,
    pub(crate) within: Option<Duration>,
    pub(crate) exempt: bool,
}

impl Request {
    /// Asks for `n` permits at once, at priority 0, for as long as it takes.
    pub const fn permits(n: u32) -> Request {
        Request { permits: n, priority: 0, within: None, exempt: false }
    }

    /// How important it is: the higher, the sooner. 0 unless set.
    ///
    /// # Fairness
    ///
    /// A more important request goes before all less important ones that still wait, and equals go
    /// in the order in which they came. Nothing keeps the less important from starving: as long as
    /// the more important take everything, the others wait. Their waiting does not make them more
    /// important. What helps is a request [`within`](Request::within) a time, which is refused as
    /// soon as the more important ones make it too late, and a limit of their own for the more
    /// important.
    pub const fn priority(self, priority: i8) -> Request {
        Request { priority, ..self }
    }

    /// Refused at once if it would wait longer, or as soon as it turns out that it will. A call
    /// that does not wait ignores it.
    pub const fn within(self, within: Duration) -> Request {
        Request { within: Some(within), ..self }
    }

    /// Passes at once and takes nothing: for callers that no limit is meant for. Those who
    /// [watch](crate::RateLimiter::observe) are told.
    ///
    /// It passes a [pause](crate::RateLimiter::pause_for), too, and may ask for zero permits or
    /// more than there can be.
    pub const fn exempt(self) -> Request {
        Request { exempt: true, ..self }
    }
}

/// One permit, at priority 0, for as long as it takes.
impl Default for Request {
    fn default() -> Request {
        Request::permits(1)
    }
}
