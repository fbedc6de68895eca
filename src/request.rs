//! [`Request`]: what a call asks for; and [`QueueBounds`]: how many requests may wait.

use std::time::{Duration, Instant};

/// What a call asks for: the number of permits, a priority, and a maximum wait.
///
/// Every call that takes a number of permits takes a request as well: `acquire_many(3)` is
/// `acquire_many(Request::permits(3))`.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
/// use tidegate::{Rate, RateLimiter, Refusal, Request, SmoothBursty, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Refusal> {
/// let policy = SmoothBursty::new(Rate::per_second(10));
/// let limiter = RateLimiter::with_clock(policy, TokioClock::new());
/// limiter.acquire().await?;
/// let low = limiter.acquire_many(Request::permits(1).priority(-1));
/// let within = Duration::from_secs(1);
/// let high = Request::permits(1).priority(1).within(within);
/// let high = limiter.acquire_many(high);
/// let (low, high) = tokio::join!(low, high);
/// assert_eq!(high?.waited(), Duration::from_millis(100));
/// assert_eq!(low?.waited(), Duration::from_millis(200));
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
    pub(crate) tells_left: bool,
}

impl Request {
    /// Asks for `n` permits at once, at priority 0, without a maximum wait.
    pub const fn permits(n: u32) -> Request {
        Request { permits: n, priority: 0, within: None, exempt: false, tells_left: false }
    }

    /// Sets the priority. A request of higher priority is served sooner. The default is 0.
    ///
    /// # Fairness
    ///
    /// A request of higher priority goes before all waiting requests of lower priority. Requests of
    /// one priority are served in the order in which they came. Waiting does not raise a priority:
    /// a request of low priority may wait for ever if requests of higher priority take every
    /// permit. A request [`within`](Request::within) a time is refused as soon as requests of
    /// higher priority make it too late. To keep important traffic from taking every permit, give
    /// it a limiter of its own.
    ///
    /// Adding a request of high priority takes time proportional to the number of waiters with a
    /// deadline and a lower priority: each waiter that is now too late is refused at once.
    pub const fn priority(self, priority: i8) -> Request {
        Request { priority, ..self }
    }

    /// Sets the maximum wait. The request is refused at once if its permits are due later. A
    /// waiting request is refused as soon as its permits turn out to be due later.
    ///
    /// The first poll decides, by the place that the request gets in the queue. The time at which
    /// the permits are due counts, not the time at which a late timer fires. A policy that counts,
    /// such as a window, does not tell since when a permit has been there: there a waiter is served
    /// if the timer is late by the [catch-up](crate::RateLimiter::set_catch_up) at most. A call
    /// that never waits ignores this.
    pub const fn within(self, within: Duration) -> Request {
        Request { within: Some(within), ..self }
    }

    /// Sets the latest time at which the request is served: [`within`](Request::within) the time
    /// from now until `deadline`, or none if that has passed.
    ///
    /// Give the request to a limiter at once, because its time begins with the first poll. The
    /// deadline is in real time. For a limiter on a [`ManualClock`](crate::ManualClock) or on
    /// paused time, use `within`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use tidegate::{Rate, RateLimiter, Refusal, Request};
    ///
    /// let limiter = RateLimiter::smooth_bursty(Rate::per_hour(1));
    /// limiter.try_acquire()?;
    /// let deadline = Instant::now() + Duration::from_secs(1);
    /// // One deadline for several calls.
    /// for _ in 0..2 {
    ///     let refusal = limiter.blocking_acquire_many(Request::permits(1).deadline(deadline));
    ///     assert!(matches!(refusal, Err(Refusal::Limited { .. })));
    /// }
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn deadline(self, deadline: Instant) -> Request {
        self.within(deadline.saturating_duration_since(Instant::now()))
    }

    /// Lets the request pass at once without taking permits, for callers that are not limited.
    /// [Observers](crate::RateLimiter::observe) are told.
    ///
    /// An exempt request passes a [pause](crate::RateLimiter::pause_for) as well, and may ask for
    /// zero permits or for more than the limit.
    pub const fn exempt(self) -> Request {
        Request { exempt: true, ..self }
    }

    /// Lets the [`Grant`](crate::Grant) tell what it [left](crate::Grant::left) in the limiter: how
    /// many permits are available, when the next one comes, and when the limiter is full. The
    /// numbers belong to this grant, whatever other threads do meanwhile.
    ///
    /// Requests that do not ask for this pay nothing for it. An
    /// [`AllOf`](crate::AllOf) tells nothing.
    pub const fn with_left(self) -> Request {
        Request { tells_left: true, ..self }
    }
}

impl Default for Request {
    fn default() -> Request {
        Request::permits(1)
    }
}

/// How many requests may wait, for how many permits together, and what happens when one more comes.
///
/// The default is unbounded. A waiting request takes about a hundred bytes, and the newest request
/// waits for all others. Set bounds with
/// [`RateLimiter::set_queue_bounds`](crate::RateLimiter::set_queue_bounds).
///
/// Bounds apply only to requests that have to wait: a request with permits that are due is granted
/// even if no request may wait. A request beyond the bounds is refused with
/// [`Refusal::QueueFull`](crate::Refusal::QueueFull).
///
/// # Examples
///
/// ```
/// use tidegate::{ManualClock, QueueBounds, Rate, RateLimiter};
/// use tidegate::{Refusal, SmoothBursty};
///
/// let policy = SmoothBursty::new(Rate::per_second(5));
/// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
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
    /// The most requests that may wait. With zero no request waits.
    pub waiters: usize,
    /// The most permits that all waiting requests may ask for together. A request for more than
    /// this never waits.
    pub permits: u64,
    /// Which request makes room when the queue is full.
    pub when_full: WhenFull,
}

/// What happens to a request that has to wait when the queue is full.
///
/// A waiting request is dropped only for a newcomer that gets its place, never for one of lower
/// priority. The dropped request gets [`Refusal::Displaced`](crate::Refusal::Displaced), and the
/// requests behind it move up. At most 4,096 waiting requests are searched for requests to drop. If
/// dropping all that may be dropped does not make room, the newcomer is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// The newcomer is refused.
    #[default]
    RefuseNewcomer,
    /// The request of lowest priority that has waited longest is dropped, unless the newcomer has a
    /// lower priority. Choose this for work that loses its value while it waits.
    DropOldest,
    /// The newest request of lowest priority is dropped, if its priority is lower than the
    /// newcomer's. Otherwise the newcomer is refused.
    DropLeastImportant,
}

impl QueueBounds {
    /// No bounds.
    pub const UNBOUNDED: QueueBounds =
        QueueBounds { waiters: usize::MAX, permits: u64::MAX, when_full: WhenFull::RefuseNewcomer };

    /// Allows at most `waiters` waiting requests.
    #[must_use]
    pub const fn max_waiters(self, waiters: usize) -> QueueBounds {
        QueueBounds { waiters, ..self }
    }

    /// Allows waiting requests for at most `permits` permits in total.
    #[must_use]
    pub const fn max_permits(self, permits: u64) -> QueueBounds {
        QueueBounds { permits, ..self }
    }

    /// Chooses which request makes room when the queue is full.
    #[must_use]
    pub const fn when_full(self, when_full: WhenFull) -> QueueBounds {
        QueueBounds { when_full, ..self }
    }

    /// Returns whether the queue has room for one more request, for `more` permits.
    pub(crate) fn fit(&self, waiting: usize, permits: u128, more: u64) -> bool {
        waiting < self.waiters && permits.saturating_add(more.into()) <= self.permits.into()
    }
}

impl Default for QueueBounds {
    fn default() -> QueueBounds {
        QueueBounds::UNBOUNDED
    }
}

/// Asks for that many permits at once, at priority 0, without a maximum wait.
impl From<u32> for Request {
    fn from(permits: u32) -> Request {
        Request::permits(permits)
    }
}
