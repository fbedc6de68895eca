//! [`Request`]: what a call asks for. [`QueueBounds`]: how many requests may wait.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// What a call asks for: a number of permits, or as many as are available, a priority, and a
/// maximum wait.
///
/// Every call that takes a number of permits also takes a request: `acquire_many(3)` is
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
///
/// Custom limiters read the fields. Callers set them with the methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request does nothing unless it is given to a limiter"]
#[non_exhaustive]
pub struct Request {
    /// The number of permits that the request waits for. It takes no fewer.
    pub permits: u32,
    /// The maximum number of permits that the request takes if they are available. A number below
    /// `permits` counts as `permits`.
    pub most: u32,
    /// The priority. A request of higher priority is served sooner.
    pub priority: i8,
    /// The maximum wait; `None` if the request waits as long as it takes.
    pub within: Option<Duration>,
    /// Whether the request passes without taking permits.
    pub exempt: bool,
    /// Whether the grant reports the permits left.
    pub wants_left: bool,
}

impl Request {
    /// Creates a request for `n` permits at once, at priority 0, without a maximum wait.
    pub const fn permits(n: u32) -> Request {
        Request { permits: n, most: n, priority: 0, within: None, exempt: false, wants_left: false }
    }

    /// Creates a request for as many permits as are available, at least one and at most `n`, at
    /// priority 0, without a maximum wait. [`Grant::permits`](crate::Grant::permits) returns the
    /// number that it got.
    ///
    /// The request never gets more permits than are available, and is never refused when one permit
    /// is available. If none is available, it waits, or is refused, like a request for one permit.
    /// When its turn comes, it takes the permits that are available by then. If other requests
    /// wait, it leaves them the permits that they wait for. If `AllOf` requests wait for the
    /// limiter, it takes one permit.
    ///
    /// A [reservation](crate::RateLimiter::reserve) that is not awaited takes the permits that were
    /// available at its turn, whichever later call first visits the limiter. A reservation of an
    /// [`AllOf`](crate::AllOf) takes the permits that its limiters have when a call finds that it
    /// is due.
    ///
    /// The available permits are those that single requests could take, one after the other, as a
    /// [`Status`](crate::Status) reports. With Guava's two policies the request therefore takes the
    /// stored permits and one on credit, whereas a request for `n` permits gets all of them on
    /// credit.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, Request, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(500_000), 16_384);
    /// let bandwidth = RateLimiter::with_clock(policy, ManualClock::new());
    /// bandwidth.try_acquire_many(10_000)?;
    /// let buffer = [0; 65_536];
    /// let grant = bandwidth.try_acquire_many(Request::up_to(65_536))?;
    /// assert_eq!(grant.permits(), 6_384);
    /// let (_now, _later) = buffer.split_at(grant.permits() as usize);
    /// # Ok::<(), Refusal>(())
    /// ```
    pub const fn up_to(n: u32) -> Request {
        Request::permits(n).at_least(if n > 1 { 1 } else { n })
    }

    /// Lets the request take fewer permits than it asks for, but not fewer than `n`: it waits for
    /// `n` permits, and takes more if they are available. `Request::up_to(10)` is
    /// `Request::permits(10).at_least(1)`. A request for fewer than `n` permits becomes a request
    /// for `n`. A request for at least 0 permits is refused, like a request for 0 permits.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, Request, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(500_000), 1_000);
    /// let bandwidth = RateLimiter::with_clock(policy, ManualClock::new());
    /// // No packet of less than 512 bytes.
    /// let packet = Request::permits(1_500).at_least(512);
    /// assert_eq!(bandwidth.try_acquire_many(packet)?.permits(), 1_000);
    /// assert!(bandwidth.try_acquire_many(packet).is_err());
    /// # Ok::<(), Refusal>(())
    /// ```
    pub const fn at_least(self, n: u32) -> Request {
        let most = if n > 0 && self.most > n { self.most } else { n };
        Request { permits: n, most, ..self }
    }

    /// Returns the maximum number of permits that the request takes, if that is more than it waits
    /// for.
    #[inline]
    pub(crate) fn more(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.most).filter(|most| most.get() > self.permits)
    }

    /// Sets the priority. A request of higher priority is served sooner. The default is 0.
    ///
    /// # Fairness
    ///
    /// A request of higher priority is served before all waiting requests of lower priority.
    /// Requests of equal priority are served in order of arrival. Waiting does not raise a
    /// priority: a request of low priority may wait for ever if requests of higher priority take
    /// every permit. A request with a [maximum wait](Request::within) is refused as soon as
    /// requests of higher priority make it too late. To keep important traffic from taking every
    /// permit, give it a separate limiter.
    ///
    /// Adding a request of high priority takes time proportional to the number of waiters, if some
    /// of a lower priority have a maximum wait: of the first 4,096 waiters, each one that is now
    /// too late is refused at once.
    pub const fn priority(self, priority: i8) -> Request {
        Request { priority, ..self }
    }

    /// Sets the maximum wait. The request is refused at once if its permits are due later. A
    /// waiting request is refused as soon as a change makes its permits due later. If the program
    /// stood still, it is refused at the end of its wait, and until then times that are told count
    /// its permits.
    ///
    /// The first poll decides, based on the position that the request gets in the queue. What
    /// counts is the time at which the permits are due, not the time at which a late timer fires. A
    /// window policy does not record since when a permit has been available: it serves a waiter if
    /// the timer is late by at most the [catch-up](crate::RateLimiter::set_catch_up). A call that
    /// never waits ignores the maximum wait.
    ///
    /// The [`retry_after`](crate::Refusal::retry_after) of a request that would wait too long is
    /// the time after which an equal request may be accepted. The permits of that request are due
    /// later, by this maximum.
    pub const fn within(self, within: Duration) -> Request {
        Request { within: Some(within), ..self }
    }

    /// Sets the latest time at which the request is served. This sets the [maximum
    /// wait](Request::within) to the time from now until `deadline`, or to zero if `deadline` has
    /// passed.
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
    ///     let refusal =
    ///         limiter.blocking_acquire_many(Request::permits(1).deadline(deadline));
    ///     assert!(matches!(refusal, Err(Refusal::Limited { .. })));
    /// }
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn deadline(self, deadline: Instant) -> Request {
        self.within(deadline.saturating_duration_since(Instant::now()))
    }

    /// Lets the request pass at once without taking permits, for callers that are not limited.
    /// [Observers](crate::RateLimiter::observe) are notified of it.
    ///
    /// An exempt request also passes during a [pause](crate::RateLimiter::pause_for), and may ask
    /// for zero permits or for more than the limit.
    pub const fn exempt(self) -> Request {
        Request { exempt: true, ..self }
    }

    /// Makes the [`Grant`](crate::Grant) report what it [left](crate::Grant::left) in the limiter:
    /// how many permits are available, when the next one becomes available, and when the limiter is
    /// full. The numbers belong to this grant, whatever other threads do meanwhile, except as
    /// [`Left`](crate::Left) says.
    ///
    /// A [`Refusal`](crate::Refusal) has no room for these numbers. If a refusal must report them
    /// too, call [`try_acquire_with_status`](crate::RateLimiter::try_acquire_with_status), or use
    /// an [`AnyLimiter`](crate::AnyLimiter), whose [refusals](crate::AllRefusal::left) report them.
    ///
    /// Requests without this option pay nothing for it.
    pub const fn with_left(self) -> Request {
        Request { wants_left: true, ..self }
    }
}

impl Default for Request {
    fn default() -> Request {
        Request::permits(1)
    }
}

/// Limits how many requests may wait and for how many permits together, and chooses what happens
/// when one more request arrives.
///
/// The default is unbounded. A waiting request takes about a hundred bytes, and the newest request
/// waits for all others. Set bounds with
/// [`RateLimiter::set_queue_bounds`](crate::RateLimiter::set_queue_bounds).
///
/// Bounds apply only to requests that have to wait: a request whose permits are due is granted even
/// if no request may wait. A request beyond the bounds is refused with
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
/// let reservations = (limiter.reserve(1)?, limiter.reserve(1)?);
/// assert!(matches!(limiter.reserve(1), Err(Refusal::QueueFull { .. })));
/// # drop(reservations);
/// # Ok::<(), Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueBounds {
    /// The maximum number of requests that may wait. With zero no request waits.
    pub waiters: usize,
    /// The maximum number of permits that all waiting requests may ask for together. A request for
    /// more permits than this never waits.
    pub permits: u64,
    /// Which request makes room when the queue is full.
    pub when_full: WhenFull,
}

/// What happens to a request that has to wait when the queue is full.
///
/// A waiting request is dropped only for a new request that gets its position, never for a request
/// of lower priority. The dropped request gets [`Refusal::Displaced`](crate::Refusal::Displaced),
/// and the requests behind it move up. At most 4,096 waiting requests are searched for requests to
/// drop. If dropping every request that may be dropped does not make room, the new request is
/// refused.
///
/// A [reservation](crate::Reservation) is never dropped, because its permits are promised: a queue
/// that is full of reservations refuses the new request, whatever its priority. If a request's cost
/// is known only later and the request may be dropped, acquire an estimate instead of reserving.
/// Once the cost is known, [refund](crate::RateLimiter::refund) the permits that were not used, or
/// [debit](crate::RateLimiter::debit) those that were missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// The new request is refused.
    #[default]
    RefuseNewcomer,
    /// The request of lowest priority that has waited longest is dropped, unless the new request
    /// has a lower priority. Choose this for work that loses its value while it waits.
    DropOldest,
    /// The newest request of lowest priority that is not a reservation is dropped, if its priority
    /// is lower than that of the new request. Otherwise the new request is refused.
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

    /// Returns whether a request for these permits may take the room of waiters.
    pub(crate) fn may_displace(&self, permits: u64) -> bool {
        self.when_full != WhenFull::RefuseNewcomer && self.fit(0, 0, permits)
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

/// Creates a request for `permits` permits at once, at priority 0, without a maximum wait.
impl From<u32> for Request {
    fn from(permits: u32) -> Request {
        Request::permits(permits)
    }
}
