//! Everything that a call may say about what it wants.

use std::time::Duration;

/// What a call asks for: how many permits, how important it is, how long it waits.
///
/// Every call that takes a number of permits takes a request as well: `acquire_many(3)` is
/// `acquire_many(Request::permits(3))`.
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
/// let low = limiter.acquire_many(Request::permits(1).priority(-1));
/// let high = limiter.acquire_many(Request::permits(1).priority(1).within(Duration::from_secs(1)));
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

    /// How important the request is: the higher, the sooner. 0 unless set.
    ///
    /// # Fairness
    ///
    /// A request of a higher priority goes before all waiting requests of a lower one. Requests of
    /// one priority are served in the order in which they came. Requests of a low priority may
    /// wait for ever, if requests of a higher one take every permit: waiting does not raise a
    /// priority. A request [`within`](Request::within) a time is refused as soon as requests of a
    /// higher priority make it too late. A limiter of its own keeps important traffic from taking
    /// everything.
    ///
    /// Adding a request of a high priority takes time proportional to the number of waiters that
    /// have a deadline and a lower priority: each that is too late by then is refused at once.
    pub const fn priority(self, priority: i8) -> Request {
        Request { priority, ..self }
    }

    /// The request waits no longer than this. It is refused at once if its permits are due later,
    /// and refused while it waits as soon as they turn out to be.
    ///
    /// The first poll decides, for the place in line that the request would get. The time at which
    /// the permits are due counts, not the time at which a late timer tells. A call that never
    /// waits ignores this.
    pub const fn within(self, within: Duration) -> Request {
        Request { within: Some(within), ..self }
    }

    /// The request passes at once and takes nothing: for callers that no limit is meant for.
    /// [Observers](crate::RateLimiter::observe) are told.
    ///
    /// An exempt request passes a [pause](crate::RateLimiter::pause_for) as well, and may ask for
    /// zero permits or for more than the limit.
    pub const fn exempt(self) -> Request {
        Request { exempt: true, ..self }
    }
}

impl Default for Request {
    fn default() -> Request {
        Request::permits(1)
    }
}

/// How many may wait, how many permits they may wait for, and what happens to one more.
///
/// Unbounded unless told otherwise: a place in line takes about a hundred bytes, and the newest
/// waits for all others. Give it to
/// [`RateLimiter::set_queue_bounds`](crate::RateLimiter::set_queue_bounds).
///
/// A call that returns no error cannot be refused: [`acquire`](crate::RateLimiter::acquire) and
/// [`blocking_acquire`](crate::RateLimiter::blocking_acquire) count towards the bounds, but wait
/// also beyond them, and are never dropped. All others are refused with [`Refusal::QueueFull`](crate::Refusal::QueueFull).
/// Only those who would have to wait are: a permit that is there is granted, also with no room at
/// all.
///
/// # Examples
///
/// ```
/// use tidegate::{ManualClock, QueueBounds, Rate, RateLimiter, Refusal, SmoothBursty};
///
/// let limiter = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(5)), ManualClock::new());
/// limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(2));
/// limiter.try_acquire()?;
/// let places = (limiter.reserve(1)?, limiter.reserve(1)?);
/// assert!(matches!(limiter.reserve(1), Err(Refusal::QueueFull { .. })));
/// # drop(places);
/// # Ok::<(), Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueBounds {
    /// The most requests that wait. Zero: nobody waits.
    pub waiters: usize,
    /// The most permits that they wait for, all together. A request for more than this never waits.
    pub permits: u64,
    /// Who makes room.
    pub when_full: WhenFull,
}

/// What happens to a request that would have to wait when the queue is full.
///
/// Nobody is dropped for a newcomer that is refused anyway, nor for a less important one. Who was
/// dropped gets [`Refusal::Displaced`](crate::Refusal::Displaced); those behind it move up. A newcomer looks for requests to
/// be dropped among 4,096; where those of them that can be dropped do not make room, it is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// The newcomer is refused.
    #[default]
    RefuseNewcomer,
    /// Whoever has waited longest among the least important is dropped, if it is no more important
    /// than the newcomer. For work that loses its worth while it waits.
    DropOldest,
    /// The newest of the least important is dropped, if it is less important than the newcomer.
    /// Else the newcomer is refused.
    DropLeastImportant,
}

impl QueueBounds {
    /// No bounds.
    pub const UNBOUNDED: QueueBounds =
        QueueBounds { waiters: usize::MAX, permits: u64::MAX, when_full: WhenFull::RefuseNewcomer };

    /// At most `waiters` requests wait.
    #[must_use]
    pub const fn max_waiters(self, waiters: usize) -> QueueBounds {
        QueueBounds { waiters, ..self }
    }

    /// The requests that wait ask for at most `permits` permits in total.
    #[must_use]
    pub const fn max_permits(self, permits: u64) -> QueueBounds {
        QueueBounds { permits, ..self }
    }

    /// Who makes room.
    #[must_use]
    pub const fn when_full(self, when_full: WhenFull) -> QueueBounds {
        QueueBounds { when_full, ..self }
    }

    /// Whether there is room for one more of so many permits.
    pub(crate) fn fit(&self, waiting: usize, permits: u128, more: u64) -> bool {
        waiting < self.waiters && permits.saturating_add(more.into()) <= self.permits.into()
    }
}

impl Default for QueueBounds {
    fn default() -> QueueBounds {
        QueueBounds::UNBOUNDED
    }
}

/// That many permits at once, at priority 0, for as long as it takes.
impl From<u32> for Request {
    fn from(permits: u32) -> Request {
        Request::permits(permits)
    }
}
