//! [`RateLimiter`]: a policy, a clock and a queue behind a few calls.

#[cfg(feature = "config")]
mod apply;
mod batch;
pub(crate) mod blocking;
pub(crate) mod change;
mod close;
pub(crate) mod events;
mod futures;
pub(crate) mod gate_word;
pub(crate) mod pause;
pub(crate) mod pending;
mod reservation;
mod settings;
pub(crate) mod settle;
pub(crate) mod shared;
mod statistics;
mod stock;
mod waiting;

pub use batch::Batch;
pub use events::{Events, StoreEvent};
pub use futures::{Acquire, AcquireOwned};
pub use pause::Pause;
pub use reservation::Reservation;
pub use statistics::{Statistics, StatisticsSnapshot, StoreStatistics, WaitHistogram};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{DefaultClock, Timer};
use crate::error::{PolicyError, Refusal};
use crate::grant::Grant;
use crate::limiter::pending::{Pending, Progress};
use crate::limiter::shared::Shared;
use crate::line::answer::Admitted;
use crate::line::lateness::CATCH_UP;
use crate::line::rule::Single;
use crate::line::visit::Demand;
use crate::policy::{Change, Policy, SmoothBursty, SmoothWarmingUp};
use crate::rate::Rate;
use crate::request::Request;
use crate::status::Status;
use crate::time::Nanos;

/// A rate limiter: grants permits at a rate, first come, first served.
///
/// Clones share one limit, one state and one queue; a clone costs a reference count. A limiter is
/// `Send` and `Sync`.
///
/// | call | if the permits are not due now |
/// |---|---|
/// | [`acquire`](RateLimiter::acquire), [`acquire_many`](RateLimiter::acquire_many) | waits |
/// | [`acquire_within`](RateLimiter::acquire_within) | waits if the permit is due within a given time, else refuses at once |
/// | [`try_acquire`](RateLimiter::try_acquire), [`try_acquire_many`](RateLimiter::try_acquire_many) | refuses at once |
/// | [`blocking_acquire`](RateLimiter::blocking_acquire), [`blocking_acquire_many`](RateLimiter::blocking_acquire_many) | blocks the thread, which waits in the same queue |
/// | [`reserve`](RateLimiter::reserve) | takes a position in the queue and reports when it is due |
///
/// The calls that take a number of permits also take a [`Request`], which can add a priority, a
/// maximum wait or an exemption.
///
/// # Fairness
///
/// Requests of one [priority](Request::priority) are served in the order in which they were first
/// polled, whatever their size. A waiter is overtaken only by a request of higher priority. A
/// newcomer and a `try_` call of the same priority do not overtake it. A waiter that is not polled,
/// or that was leaked, delays the requests behind it only by its own permits.
///
/// # Cancel safety
///
/// Every wait can be dropped at any time: no permit is lost or created, and the requests behind it
/// move up.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Rate, RateLimiter, Refusal, SmoothBursty, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Refusal> {
/// # let policy = SmoothBursty::new(Rate::per_second(5));
/// # let limiter = RateLimiter::with_clock(policy, TokioClock::new());
/// # #[cfg(any())]
/// let limiter = RateLimiter::smooth_bursty(Rate::per_second(5));
/// assert_eq!(limiter.acquire().await?.waited(), Duration::ZERO);
/// // The second call pays for the first permit, and is not due yet.
/// assert!(limiter.try_acquire().is_err());
/// assert!(limiter.acquire_many(3).await?.waited() >= Duration::from_millis(200));
/// # Ok(())
/// # }
/// ```
///
/// # Memory ordering
///
/// A grant establishes no happens-before between callers.
pub struct RateLimiter<P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    pub(crate) shared: Arc<Shared<Single<P>, C>>,
}

/// A limiter without its state.
#[cfg(feature = "keyed")]
pub(crate) type Rest<P, C> =
    (P, C, crate::sync::Mutex<crate::line::Line<Single<P>, C>>, crate::limiter::events::Observers);

impl RateLimiter<SmoothBursty> {
    /// Creates a limiter with a steady `rate` that saves up to one second's worth of unused
    /// permits: Guava's default.
    ///
    /// For another burst, pass a [`SmoothBursty`] to [`new`](RateLimiter::new).
    #[must_use]
    pub fn smooth_bursty(rate: Rate) -> Self {
        RateLimiter::new(SmoothBursty::new(rate))
    }

    /// Creates a limiter with a steady `rate` that saves no permits: calls are spaced evenly,
    /// however long the limiter was idle. It suits a client of a server that counts strictly.
    ///
    /// The policy is a [`SmoothBursty`] with a [`max_burst`](SmoothBursty::max_burst) of zero, so a
    /// request for *n* permits is granted as soon as the previous request is paid for, and the next
    /// request waits *n* intervals.
    ///
    /// If a timer is late, the next calls make up for up to 10 ms of the lateness, and may be
    /// closer together. To rule this out, call [`set_catch_up`](RateLimiter::set_catch_up) with
    /// zero, and await reservations.
    ///
    /// [`algorithms`](crate::algorithms) explains by how much slower than the server a client must
    /// be.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Rate, RateLimiter};
    ///
    /// let limiter = RateLimiter::paced(Rate::per_minute(5));
    /// limiter.try_acquire()?;
    /// let refusal = limiter.try_acquire().unwrap_err();
    /// assert!(refusal.retry_after() <= Some(Duration::from_secs(12)));
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    #[must_use]
    pub fn paced(rate: Rate) -> Self {
        RateLimiter::new(SmoothBursty::new(rate).max_burst(Duration::ZERO))
    }
}

impl RateLimiter<SmoothWarmingUp> {
    /// Creates a limiter with a steady `rate`. It starts at a third of `rate` and reaches `rate`
    /// after `warm_up` of demand.
    ///
    /// # Panics
    ///
    /// If `warm_up` is longer than [`SmoothWarmingUp::MAX_WARM_UP`], about 2.28 years.
    #[must_use]
    #[track_caller]
    pub fn smooth_warming_up(rate: Rate, warm_up: Duration) -> Self {
        RateLimiter::new(SmoothWarmingUp::new(rate, warm_up))
    }
}

impl<P: Policy> RateLimiter<P> {
    /// Creates a limiter with this policy and the default clock. Needs no runtime.
    #[must_use]
    pub fn new(policy: P) -> Self {
        RateLimiter::with_clock(policy, DefaultClock::new())
    }
}

impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// Creates a limiter with this policy and this clock.
    #[must_use]
    pub fn with_clock(policy: P, clock: C) -> Self {
        RateLimiter { shared: Arc::new(Shared::new(Single::new(policy, &clock), clock, CATCH_UP)) }
    }

    /// Creates a limiter that continues with a state, with the observer of all keys if there is
    /// one. Its waiters count among the waiters of all keys.
    #[cfg(feature = "keyed")]
    pub(crate) fn with_state(
        policy: P,
        state: P::State,
        clock: C,
        all: Option<Arc<dyn crate::limiter::events::Events>>,
        all_waiters: Arc<crate::line::all_waiters::AllWaiters>,
    ) -> Self {
        let shared = Shared::new(Single::with_state(policy, state), clock, CATCH_UP);
        RateLimiter { shared: Arc::new(shared.observed_by(all).among(all_waiters)) }
    }

    /// Returns whether this is the only handle to the limiter, no request waits, and all settings
    /// are as in a new limiter.
    #[cfg(feature = "keyed")]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_only_handle() && self.shared.is_plain()
    }

    #[cfg(feature = "keyed")]
    pub(crate) fn is_only_handle(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    /// The state that another limiter can continue with.
    #[cfg(feature = "keyed")]
    pub(crate) fn state(&self) -> &P::State {
        &self.shared.rule.state
    }

    /// Takes the limiter apart into its state and the rest, unless another handle to it exists.
    /// Dropping the rest runs user code.
    #[cfg(feature = "keyed")]
    pub(crate) fn into_state(self) -> Result<(P::State, Rest<P, C>), Self> {
        let shared = Arc::try_unwrap(self.shared).map_err(|shared| RateLimiter { shared })?;
        let Shared { rule, clock, line, events, .. } = shared;
        let (policy, state) = rule.into_parts();
        Ok((state, (policy, clock, line, events)))
    }

    /// Waits for one permit. The [`Grant`] reports the time waited, which is zero if a permit was
    /// available.
    ///
    /// At [`Rate::ZERO`], with a burst of 0, or with [`DenyAll`](crate::DenyAll), the call waits
    /// until that setting changes, possibly for ever. It also waits for ever if earlier requests
    /// took all permits until the end of the clock's 34 years. A
    /// [`LeakyBucket`](crate::LeakyBucket) with a bound on its queue refuses such a call. To limit
    /// the wait, use [`acquire_within`](RateLimiter::acquire_within).
    ///
    /// # Fairness
    ///
    /// Requests are served in the order of their first polls.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue. No permit is lost.
    ///
    /// # Errors
    ///
    /// One permit never exceeds a limit, so a limiter refuses this call only if its queue is
    /// bounded or it is closed:
    ///
    /// - [`Refusal::QueueFull`] and [`Refusal::Displaced`] if the queue is
    ///   [bounded](RateLimiter::set_queue_bounds).
    /// - [`Refusal::Limited`] if a [`LeakyBucket`](crate::LeakyBucket) has no room, or
    ///   [`Refusal::Paused`] if it has no room during a pause.
    /// - [`Refusal::Closed`] if the limiter is [closed](RateLimiter::close), before the call or
    ///   during the wait.
    ///
    /// # Panics
    ///
    /// With the default clock, if it must wait in a tokio runtime whose time driver is disabled; or
    /// if tokio's time is paused, which works only with the feature `test-util` or a `TokioClock`.
    #[inline]
    pub fn acquire(&self) -> Acquire<'_, P, C> {
        self.acquire_many(1)
    }

    /// Waits for the permits of a [`Request`], which can be just a number: `acquire_many(3)` waits
    /// for three permits at once. The [`Grant`] reports the time waited.
    ///
    /// The policy determines which request pays for a large one. With Guava's two policies a large
    /// request is granted as soon as the previous one is paid for, and delays the next one.
    ///
    /// # Fairness
    ///
    /// Requests of one [priority](Request::priority) are served in the order of their first polls,
    /// whatever their size: the requests behind a large one wait until it is served.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue. No permit is lost.
    ///
    /// # Errors
    ///
    /// - [`Refusal::ZeroPermits`] if the request asks for no permits.
    /// - [`Refusal::ExceedsLimit`] if the policy can never grant that many at once; also during the
    ///   wait, if the burst or limit is lowered below the request.
    /// - [`Refusal::Limited`] if the request sets a time [within](Request::within) which it must be
    ///   served, and would be served later. Its `retry_after` is the time until an equal call would
    ///   be accepted. An accepted request is refused later only if its due time moves: because of a
    ///   lower rate, a debit, or requests of a higher priority, because the program stood still for
    ///   longer than the [catch-up](RateLimiter::set_catch_up), or because a
    ///   [`SmoothWarmingUp`] that got permits back has cooled. A
    ///   [`LeakyBucket`](crate::LeakyBucket) without room also refuses with `Limited`.
    /// - [`Refusal::Paused`] instead of `Limited` during a [pause](RateLimiter::pause_for).
    /// - [`Refusal::QueueFull`] and [`Refusal::Displaced`] only if the queue is
    ///   [bounded](RateLimiter::set_queue_bounds).
    /// - [`Refusal::Closed`] if the limiter is [closed](RateLimiter::close), before the call or
    ///   during the wait.
    ///
    /// # Panics
    ///
    /// Like [`acquire`](RateLimiter::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Rate, RateLimiter, Refusal, Request, SmoothBursty, TokioClock};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Refusal> {
    /// let policy = SmoothBursty::new(Rate::per_second(10));
    /// let limiter = RateLimiter::with_clock(policy, TokioClock::new());
    /// limiter.acquire_many(3).await?;
    /// let soon = Request::permits(2).within(Duration::from_millis(50));
    /// let refusal = limiter.acquire_many(soon).await.unwrap_err();
    /// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(250)));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn acquire_many(&self, request: impl Into<Request>) -> Acquire<'_, P, C> {
        Acquire::new(&self.shared, &request.into())
    }

    /// Waits for one permit if it is due within a time, else refuses at once and spends nothing:
    /// Guava's `tryAcquire(timeout)`.
    ///
    /// It is equivalent to [`acquire_many`](RateLimiter::acquire_many) with a request for one
    /// permit [`within`](Request::within) that time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue. No permit is lost.
    ///
    /// # Errors
    ///
    /// - [`Refusal::Limited`], or [`Refusal::Paused`] during a pause, if the permit is due later.
    ///   Its `retry_after` is the time until such a call would be accepted; the permit itself is
    ///   due up to `within` after that.
    /// - All other errors as for [`acquire`](RateLimiter::acquire).
    ///
    /// # Panics
    ///
    /// Like [`acquire`](RateLimiter::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Rate, RateLimiter, SmoothBursty, TokioClock};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tidegate::Refusal> {
    /// let policy = SmoothBursty::new(Rate::per_second(10));
    /// let limiter = RateLimiter::with_clock(policy, TokioClock::new());
    /// limiter.acquire().await?;
    /// let refusal =
    ///     limiter.acquire_within(Duration::from_millis(30)).await.unwrap_err();
    /// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(70)));
    /// assert!(limiter.acquire_within(Duration::from_millis(100)).await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn acquire_within(&self, within: Duration) -> Acquire<'_, P, C> {
        self.acquire_many(Request::permits(1).within(within))
    }

    /// Waits like [`acquire_many`](RateLimiter::acquire_many), with a future that does not borrow
    /// the limiter: it can be spawned, stored or sent.
    ///
    /// # Errors
    ///
    /// Like [`acquire_many`](RateLimiter::acquire_many).
    ///
    /// # Panics
    ///
    /// Like [`acquire`](RateLimiter::acquire).
    pub fn acquire_owned(&self, request: impl Into<Request>) -> AcquireOwned<P, C> {
        AcquireOwned::new(self.shared.clone(), &request.into())
    }

    /// Takes one permit now, or refuses.
    ///
    /// While no request waits, this call takes no lock and allocates nothing, and a refusal writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// - [`Refusal::Limited`] if no permit is due, or if other requests wait for it. Its
    ///   `retry_after` is exact: without other calls, an equal call succeeds after this wait and
    ///   not before.
    /// - [`Refusal::Paused`] instead of `Limited` if the limiter is
    ///   [paused](RateLimiter::pause_for).
    /// - [`Refusal::Closed`] if the limiter is [closed](RateLimiter::close).
    #[inline]
    pub fn try_acquire(&self) -> Result<Grant, Refusal> {
        self.shared.try_acquire(Demand::exactly(&1, 0))
    }

    /// Takes the permits of a [`Request`] now, or refuses. The request can be just a number.
    ///
    /// It goes before waiters of a lower [priority](Request::priority). It never waits, so
    /// [`within`](Request::within) makes no difference.
    ///
    /// The policy determines which request pays for a large one. With Guava's two policies the next
    /// request pays, so no burst limits the size: a large request closes the limiter for `n /
    /// rate`. Validate sizes that come from untrusted input.
    ///
    /// # Errors
    ///
    /// - [`Refusal::Limited`], [`Refusal::Paused`] and [`Refusal::Closed`] as for
    ///   [`try_acquire`](RateLimiter::try_acquire).
    /// - [`Refusal::ZeroPermits`] if the request asks for no permits.
    /// - [`Refusal::ExceedsLimit`] if the policy can never grant that many at once.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, Request, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_second(1), 3).start_empty();
    /// let limiter = RateLimiter::with_clock(policy, clock.clone());
    /// let bulk = limiter.reserve(3)?;
    /// clock.advance(Duration::from_secs(1));
    /// // One permit is available, and the bulk request waits for it.
    /// assert!(limiter.try_acquire().is_err());
    /// limiter.try_acquire_many(Request::permits(1).priority(1))?;
    /// assert_eq!(bulk.due_in(), Duration::from_secs(3));
    /// # Ok::<(), Refusal>(())
    /// ```
    #[inline]
    pub fn try_acquire_many(&self, request: impl Into<Request>) -> Result<Grant, Refusal> {
        let request = request.into();
        let Request { ref permits, priority, exempt, wants_left, .. } = request;
        if exempt {
            return self
                .shared
                .report_end(permits, Nanos::ZERO, Ok(Admitted::Exempt))
                .map(|_| Grant::at_once(0));
        }
        let demand = Demand { ask: permits, priority, most: request.more() };
        match demand.most {
            None if !wants_left => self.shared.try_acquire(demand),
            _ => self.shared.try_up_to(demand, wants_left),
        }
    }

    /// Takes the permits of a [`Request`] now, or refuses, and returns the limiter's status with
    /// either decision.
    ///
    /// The status belongs to the decision, whatever other threads do meanwhile. A grant's status
    /// equals [`Grant::left`]. A refusal's status shows fewer permits than requested; if one permit
    /// was requested, its `next_in` is no earlier than `retry_after`.
    ///
    /// # Errors
    ///
    /// Like [`try_acquire_many`](RateLimiter::try_acquire_many); the status is returned with the
    /// error.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// let (answer, status) = limiter.try_acquire_with_status(8);
    /// assert!(answer.is_ok());
    /// assert_eq!((status.limit, status.available), (10, 2));
    /// let (answer, status) = limiter.try_acquire_with_status(8);
    /// assert_eq!(
    ///     answer.unwrap_err().retry_after(),
    ///     Some(Duration::from_millis(1200))
    /// );
    /// assert_eq!(
    ///     (status.available, status.full_in),
    ///     (2, Duration::from_millis(1600))
    /// );
    /// ```
    pub fn try_acquire_with_status(&self, request: impl Into<Request>) -> (Result<Grant, Refusal>, Status) {
        let request = request.into().with_left();
        let answer = self.try_acquire_many(request);
        (answer, self.status().as_decided(&request, &answer))
    }

    /// Blocks the calling thread until it has one permit. The [`Grant`] reports the time waited.
    ///
    /// Threads and tasks wait in one queue. Do not call it from a task, because it blocks the
    /// executor's thread. It needs no runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Rate, RateLimiter};
    ///
    /// let limiter = RateLimiter::smooth_bursty(Rate::per_second(1000));
    /// limiter.blocking_acquire()?;
    /// limiter.blocking_acquire()?;
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`blocking_acquire_many`](RateLimiter::blocking_acquire_many).
    pub fn blocking_acquire(&self) -> Result<Grant, Refusal> {
        self.blocking_acquire_many(1)
    }

    /// Blocks the calling thread until it has the permits of a [`Request`], which can be just a
    /// number. The [`Grant`] reports the time waited.
    ///
    /// # Errors
    ///
    /// Like [`acquire_many`](RateLimiter::acquire_many), and [`Refusal::Cancelled`] if the call
    /// runs under a [`CancelToken`](crate::CancelToken) that is cancelled.
    pub fn blocking_acquire_many(&self, request: impl Into<Request>) -> Result<Grant, Refusal> {
        let request = request.into();
        let wait = Progress::with(request.permits, &request);
        let mut pending = Pending::new(&self.shared, wait);
        blocking::acquire(&mut pending).map(|answer| pending.grant(&answer))
    }

    /// Takes a position in the queue now for a [`Request`], and returns a [`Reservation`], which
    /// reports when it is due.
    ///
    /// Use a reservation also to acquire permits for a cost that is known only later: reserve the
    /// estimate, await it, and [settle](Reservation::settle) it.
    ///
    /// Requests of a higher priority can still move it back. A
    /// [bounded](RateLimiter::set_queue_bounds) queue can refuse a reservation, but never removes
    /// one.
    ///
    /// # Errors
    ///
    /// Like [`acquire_many`](RateLimiter::acquire_many).
    pub fn reserve(&self, request: impl Into<Request>) -> Result<Reservation<P, C>, Refusal> {
        let request = request.into();
        Ok(Reservation::new(self.shared.clone(), self.shared.reserve(request.permits, &request)?))
    }

    /// Gives back `n` permits that were acquired and not used. Waiters move up at once.
    ///
    /// The limiter takes back as many permits as it has room for: it never holds more than when it
    /// is full. It does not know which caller got a permit, so give back only permits that you got.
    ///
    /// A [`SlidingWindow`](crate::SlidingWindow) gives back its oldest permits, and a
    /// [`SlidingEstimate`](crate::SlidingEstimate) those of the present window. If these are the
    /// permits of a reservation that is [settled](Reservation::settle) for less afterwards, the
    /// settlement gives back nothing, and the other permits come back when they leave the window.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Rate, RateLimiter, SmoothBursty};
    ///
    /// let policy = SmoothBursty::new(Rate::per_second(5));
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// limiter.try_acquire_many(10)?;
    /// assert!(limiter.try_acquire().is_err());
    /// limiter.refund(10);
    /// limiter.try_acquire()?;
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn refund(&self, n: u32) {
        self.shared.refund(n);
    }

    /// Changes the rate from now on, for waiting requests too.
    ///
    /// Each policy states how it treats permits that are saved, counted or owed; to choose another
    /// treatment, see [`change`](RateLimiter::change). With Guava's two policies, permits granted
    /// earlier are still paid at the old rate: after a permit at one per hour, the next one is due
    /// in an hour, whatever the new rate is. To forget such a negative balance,
    /// [`refund`](RateLimiter::refund) it before the change.
    ///
    /// The change refuses at once a request [within](RateLimiter::acquire_within) a time that can
    /// no longer be met, and a request for more permits than the policy can now grant at once.
    /// Behind 4,096 other requests, such a request is refused later: at its deadline, or when it is
    /// first in the queue. A waiter of an [`AllOf`](crate::AllOf) behind 64 other `AllOf`s, or
    /// behind the first waiter of its own `AllOf`, is also refused later: at the time at which it
    /// expected its permits, or at its deadline.
    ///
    /// The limit of a [`SlidingLog`](crate::SlidingLog) rises only as far as the log has room;
    /// [`Unlimited`](crate::Unlimited) and [`DenyAll`](crate::DenyAll) ignore the change.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, SmoothBursty};
    ///
    /// let policy = SmoothBursty::new(Rate::per_second(1));
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// limiter.try_acquire()?;
    /// let first = limiter.reserve(1)?;
    /// let second = limiter.reserve(1)?;
    /// assert_eq!(second.due_in(), Duration::from_secs(2));
    /// limiter.set_rate(Rate::per_second(10));
    /// // The second owed at the old rate stays; new permits accrue ten times as fast.
    /// assert_eq!(second.due_in(), Duration::from_millis(1100));
    /// # drop(first);
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn set_rate(&self, rate: Rate) {
        // A change of only the rate is never an error.
        let _ = self.shared.change(Change::rate(rate));
    }

    /// Changes the rate, the burst or both, and chooses how permits carry over. Waiters move at
    /// once, as with [`set_rate`](RateLimiter::set_rate).
    ///
    /// # Errors
    ///
    /// A [`PolicyError`] if the policy cannot have such a burst; then nothing was changed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::policy::{Change, Keep};
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// limiter.try_acquire_many(8)?;
    /// limiter.change(Change::only_burst(20))?;
    /// assert_eq!(limiter.status().available, 2); // a larger bucket, not more permits
    /// limiter.change(Change::reset())?;
    /// assert_eq!(limiter.status().available, 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn change(&self, change: Change) -> Result<(), PolicyError> {
        self.shared.change(change)
    }

    /// Returns the rate, exactly as it was given.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.shared.rule.policy.rate()
    }

    /// Returns the policy, to read its parameters.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::policy::Change;
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// limiter.change(Change::only_burst(20))?;
    /// assert_eq!(limiter.policy().burst(), 20);
    /// # Ok::<(), tidegate::PolicyError>(())
    /// ```
    #[must_use]
    pub fn policy(&self) -> &P {
        &self.shared.rule.policy
    }

    /// Returns how many permits are available now, when the limiter is full again, and how many
    /// requests wait. Takes no permits.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, SmoothBursty};
    ///
    /// let policy = SmoothBursty::new(Rate::per_second(5)).start_full();
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// // Five permits are saved, and one more is granted on credit: the next caller pays for it.
    /// assert_eq!(limiter.status().available, 6);
    /// limiter.try_acquire()?;
    /// assert_eq!(limiter.status().available, 5);
    /// assert_eq!(limiter.status().full_in, Duration::from_millis(200));
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Returns the clock.
    #[must_use]
    pub fn clock(&self) -> &C {
        &self.shared.clock
    }

    /// Sets how far back in time a grant can be charged; the default is 10 ms. With zero, every
    /// grant is charged as of now.
    ///
    /// Timers are late. The grant of a waiter is charged as of the time at which it was due. A
    /// request that arrives within that lateness is charged likewise, because its task was late as
    /// well. So lateness does not slow the limiter down, even if a single task takes all permits
    /// and none are saved. A grant is charged at most this far back, so that a program that stood
    /// still does not pass a large burst at once. A longer catch-up keeps the average exact on a
    /// busier machine; a span of length *d* can then see `rate * catch_up` more permits.
    ///
    /// A [reservation](RateLimiter::reserve) that is not awaited has no timer. It is charged as of
    /// the time at which it was due, however late it is claimed.
    pub fn set_catch_up(&self, catch_up: Duration) {
        self.shared.lateness.set_catch_up(catch_up);
    }
}

impl<P: Policy, C: Timer> Clone for RateLimiter<P, C> {
    fn clone(&self) -> Self {
        RateLimiter { shared: self.shared.clone() }
    }
}

impl<P: Policy, C: Timer> fmt::Debug for RateLimiter<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("policy", &self.shared.rule.policy)
            .field("status", &self.status())
            .finish()
    }
}
