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
use crate::line::answer::Passed;
use crate::line::lateness::CATCH_UP;
use crate::line::rule::Single;
use crate::line::visit::Demand;
use crate::policy::{Change, Policy, SmoothBursty, SmoothWarmingUp};
use crate::rate::Rate;
use crate::request::Request;
use crate::status::Status;
use crate::time::Nanos;

/// Makes a program wait its turn: hands out permits at a rate, first come, first served.
///
/// Clones share one limit, one state and one queue; a clone costs a reference count. A limiter is
/// `Send` and `Sync`.
///
/// | call | permits not due now |
/// |---|---|
/// | [`acquire`](RateLimiter::acquire), [`acquire_many`](RateLimiter::acquire_many) | waits |
/// | [`acquire_within`](RateLimiter::acquire_within) | waits if that takes no longer than a time, else refuses at once |
/// | [`try_acquire`](RateLimiter::try_acquire), [`try_acquire_many`](RateLimiter::try_acquire_many) | refuses at once |
/// | [`blocking_acquire`](RateLimiter::blocking_acquire), [`blocking_acquire_many`](RateLimiter::blocking_acquire_many) | waits in that queue, too, from a plain thread |
/// | [`reserve`](RateLimiter::reserve) | takes a place in the queue and tells when it is due |
///
/// The calls that take a number of permits take a [`Request`] as well, which says more: a priority,
/// a longest wait, an exemption.
///
/// # Fairness
///
/// Requests of one [priority](Request::priority) are served in the order in which they were first
/// polled, whatever their size. A waiter is overtaken only by a request of higher priority, not by
/// a newcomer nor by a `try_` call. A waiter that is not polled, or was leaked, delays the requests
/// behind it by its own turn and no more.
///
/// # Cancel safety
///
/// Every wait can be dropped at any time without a trace: no permit is lost, none invented, and
/// the requests behind move up.
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
/// // The first one is paid for by the second, which is not due yet.
/// assert!(limiter.try_acquire().is_err());
/// assert!(limiter.acquire_many(3).await?.waited() >= Duration::from_millis(200));
/// # Ok(())
/// # }
/// ```
///
/// # Memory ordering
///
/// A permit establishes no happens-before between the callers that got one.
pub struct RateLimiter<P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    pub(crate) shared: Arc<Shared<Single<P>, C>>,
}

/// A limiter without its state.
#[cfg(feature = "keyed")]
pub(crate) type Rest<P, C> =
    (P, C, crate::sync::Mutex<crate::line::Line<Single<P>, C>>, crate::limiter::events::Observers);

impl RateLimiter<SmoothBursty> {
    /// A steady `rate` that saves up to one second's worth of unused permits: Guava's default.
    ///
    /// For another burst, pass a [`SmoothBursty`] to [`new`](RateLimiter::new).
    #[must_use]
    pub fn smooth_bursty(rate: Rate) -> Self {
        RateLimiter::new(SmoothBursty::new(rate))
    }

    /// A steady `rate` that saves no permits: calls are spaced evenly, however long the limiter
    /// idled. For a client of a server that counts strictly.
    ///
    /// The policy is a [`SmoothBursty`] with a [`max_burst`](SmoothBursty::max_burst) of zero, so a
    /// request for *n* permits is granted as soon as the previous request is paid for, and the next
    /// request waits *n* intervals.
    ///
    /// If a timer is late, the next calls make up for up to 10 ms of it, and may be closer
    /// together. To rule this out, call [`set_catch_up`](RateLimiter::set_catch_up) with zero.
    ///
    /// [`algorithms`](crate::algorithms) tells by how much slower than a server a client has to be.
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
    /// A steady `rate` that starts at a third of it and reaches it after `warm_up` of demand.
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
    /// A limiter with this policy and the default clock. Needs no runtime.
    #[must_use]
    pub fn new(policy: P) -> Self {
        RateLimiter::with_clock(policy, DefaultClock::new())
    }
}

impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// A limiter with this policy and this clock.
    #[must_use]
    pub fn with_clock(policy: P, clock: C) -> Self {
        RateLimiter { shared: Arc::new(Shared::new(Single::new(policy, &clock), clock, CATCH_UP)) }
    }

    /// A limiter that goes on with a state, with the observer of all keys if there is one. Its
    /// waiters count among the waiters of all keys.
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

    /// Whether this is the only handle to the limiter, no request waits, and all settings are as in
    /// a new limiter.
    #[cfg(feature = "keyed")]
    pub(crate) fn is_idle(&self) -> bool {
        Arc::strong_count(&self.shared) == 1 && self.shared.is_plain()
    }

    /// The state that it goes on with.
    #[cfg(feature = "keyed")]
    pub(crate) fn state(&self) -> &P::State {
        &self.shared.rule.state
    }

    /// The state that it goes on with, and the rest of it, unless another handle to this limiter
    /// exists. The rest runs foreign code when it is dropped.
    #[cfg(feature = "keyed")]
    pub(crate) fn into_state(self) -> Result<(P::State, Rest<P, C>), Self> {
        let shared = Arc::try_unwrap(self.shared).map_err(|shared| RateLimiter { shared })?;
        let Shared { rule, clock, line, events, .. } = shared;
        let (policy, state) = rule.into_parts();
        Ok((state, (policy, clock, line, events)))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<Single<P>, C>> {
        &self.shared
    }

    /// Waits for one permit. The [`Grant`] tells the time waited, zero if the permit was there.
    ///
    /// At [`Rate::ZERO`], with a burst of 0, or with [`DenyAll`](crate::DenyAll), it waits until
    /// that is changed, perhaps for ever; likewise if earlier requests took the permits of the
    /// clock's 34 years. To limit the wait, use [`acquire_within`](RateLimiter::acquire_within).
    ///
    /// # Fairness
    ///
    /// First polled, first served.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no trace.
    ///
    /// # Errors
    ///
    /// One permit can always be had some day, so a limiter refuses this call only if it bounds its
    /// waiters or is closed:
    ///
    /// - [`Refusal::QueueFull`] and [`Refusal::Displaced`] if the queue is
    ///   [bounded](RateLimiter::set_queue_bounds).
    /// - [`Refusal::Limited`] if a [`LeakyBucket`](crate::LeakyBucket) has no room, or
    ///   [`Refusal::Paused`] if that is so during a pause.
    /// - [`Refusal::Closed`] if the limiter is [closed](RateLimiter::close), before the call or
    ///   while it waits.
    ///
    /// # Panics
    ///
    /// With the default clock, if it has to wait in a tokio runtime without its time driver; or if
    /// tokio's time is paused, which drives a limiter only with the feature `test-util` or a
    /// `TokioClock`.
    #[inline]
    pub fn acquire(&self) -> Acquire<'_, P, C> {
        self.acquire_many(1)
    }

    /// Waits for what a [`Request`] asks for, which may be just a number: `acquire_many(3)` waits
    /// for three permits at once. The [`Grant`] tells the time waited.
    ///
    /// The policy says which request pays for a large one. With Guava's two policies a large
    /// request is granted as soon as the one before it is paid for, and delays the next one.
    ///
    /// # Fairness
    ///
    /// Requests of one [priority](Request::priority) are served in the order of their first polls,
    /// whatever their size: the requests behind a large one wait until it is served.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no trace.
    ///
    /// # Errors
    ///
    /// - [`Refusal::ZeroPermits`] if the request asks for no permits.
    /// - [`Refusal::ExceedsLimit`] if the policy can never give so many at once; also while the
    ///   request waits, if the burst or limit is lowered below it.
    /// - [`Refusal::Limited`] if the request has a time [within](Request::within) which it wants to
    ///   be served, and would be served later. Its `retry_after` is the time until an equal call
    ///   would be accepted. A request that was accepted is refused later only if its time moves: by
    ///   a lower rate, by requests of a higher priority, or if the program stood still for longer
    ///   than the [catch-up](RateLimiter::set_catch_up). A [`LeakyBucket`](crate::LeakyBucket)
    ///   without room refuses so, too.
    /// - [`Refusal::Paused`] in place of `Limited` during a [pause](RateLimiter::pause_for).
    /// - [`Refusal::QueueFull`] and [`Refusal::Displaced`] only if the queue is
    ///   [bounded](RateLimiter::set_queue_bounds).
    /// - [`Refusal::Closed`] if the limiter is [closed](RateLimiter::close), before the call or
    ///   while it waits.
    ///
    /// # Panics
    ///
    /// As [`acquire`](RateLimiter::acquire).
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
    /// It is [`acquire_many`](RateLimiter::acquire_many) of one permit
    /// [`within`](Request::within) that time.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no trace.
    ///
    /// # Errors
    ///
    /// - [`Refusal::Limited`], or [`Refusal::Paused`] during a pause, if the permit is due later.
    ///   Its `retry_after` is the time until such a call would be accepted; the permit itself comes
    ///   up to `within` after that.
    /// - The rest as [`acquire`](RateLimiter::acquire).
    ///
    /// # Panics
    ///
    /// As [`acquire`](RateLimiter::acquire).
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

    /// [`acquire_many`](RateLimiter::acquire_many) with a future that does not borrow the limiter:
    /// it can be spawned, stored or sent.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](RateLimiter::acquire_many).
    ///
    /// # Panics
    ///
    /// As [`acquire`](RateLimiter::acquire).
    pub fn acquire_owned(&self, request: impl Into<Request>) -> AcquireOwned<P, C> {
        AcquireOwned::new(self.shared.clone(), &request.into())
    }

    /// Takes one permit now, or refuses.
    ///
    /// While no request waits, this takes no lock and allocates nothing, and a refusal writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// - [`Refusal::Limited`] if no permit is due, or other requests wait for it. Its `retry_after`
    ///   is exact: without other calls, an equal call succeeds that much later and not before.
    /// - [`Refusal::Paused`], likewise, if the limiter is [paused](RateLimiter::pause_for).
    /// - [`Refusal::Closed`] if the limiter is [closed](RateLimiter::close).
    #[inline]
    pub fn try_acquire(&self) -> Result<Grant, Refusal> {
        self.shared.try_acquire(Demand { ask: &1, priority: 0 })
    }

    /// Takes what a [`Request`] asks for now, or refuses. The request may be just a number.
    ///
    /// It goes before the waiters of a lower [priority](Request::priority). It never waits, so
    /// [`within`](Request::within) makes no difference.
    ///
    /// The policy says which request pays for a large one. With Guava's two policies it is the next
    /// one, so no burst limits the size: a large request closes the limiter for `n / rate`. Check
    /// sizes that come from outside.
    ///
    /// # Errors
    ///
    /// - [`Refusal::Limited`], [`Refusal::Paused`] and [`Refusal::Closed`] as for
    ///   [`try_acquire`](RateLimiter::try_acquire).
    /// - [`Refusal::ZeroPermits`] if the request asks for no permits.
    /// - [`Refusal::ExceedsLimit`] if the policy can never give so many at once.
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
    /// // There is one permit, and the bulk request waits for it.
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
            return self.shared.tell(permits, Nanos::ZERO, Ok(Passed::Exempt)).map(|_| Grant::at_once(0));
        }
        let demand = Demand { ask: permits, priority };
        match request.more() {
            None if !wants_left => self.shared.try_acquire(demand),
            more => self.shared.try_up_to(demand, more.unwrap_or(0), wants_left),
        }
    }

    /// Takes what a [`Request`] asks for now, or refuses, and tells the state of the limiter either
    /// way: what a grant left, or what a refused request met.
    ///
    /// The state belongs to the decision, whatever other threads do meanwhile. Of a grant it is
    /// that of [`Grant::left`]. Of a refusal it tells fewer permits than the request asked for, and
    /// the next one not before the `retry_after` of a request for one permit.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_many`](RateLimiter::try_acquire_many), beside the state.
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
        (answer, self.status().told(&request, &answer))
    }

    /// Blocks the calling thread until it has one permit. The [`Grant`] tells the time waited.
    ///
    /// Threads and tasks wait in one queue. Do not call it from a task: it blocks the executor's
    /// thread. It needs no runtime.
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
    /// As [`blocking_acquire_many`](RateLimiter::blocking_acquire_many).
    pub fn blocking_acquire(&self) -> Result<Grant, Refusal> {
        self.blocking_acquire_many(1)
    }

    /// Blocks the calling thread until it has what a [`Request`] asks for, which may be just a
    /// number. The [`Grant`] tells the time waited.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](RateLimiter::acquire_many); and [`Refusal::Cancelled`] under a
    /// [`CancelToken`](crate::CancelToken) that is cancelled.
    pub fn blocking_acquire_many(&self, request: impl Into<Request>) -> Result<Grant, Refusal> {
        let request = request.into();
        let wait = Progress::with(request.permits, &request);
        let mut pending = Pending::new(&self.shared, wait);
        blocking::acquire(&mut pending).map(|answer| pending.grant(&answer))
    }

    /// Takes a place in the queue now for what a [`Request`] asks for, and tells when it is due.
    ///
    /// A reservation is also the way to acquire permits for a cost that is known only later:
    /// reserve the estimate, await it, and [settle](Reservation::settle) it.
    ///
    /// Requests of a higher priority may still move it back. A
    /// [bound](RateLimiter::set_queue_bounds) may refuse it a place, but never takes the place
    /// away.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](RateLimiter::acquire_many).
    pub fn reserve(&self, request: impl Into<Request>) -> Result<Reservation<P, C>, Refusal> {
        let request = request.into();
        Ok(Reservation::new(self.shared.clone(), self.shared.reserve(request.permits, &request)?))
    }

    /// Gives back `n` permits that were acquired and not used. Waiters move up at once.
    ///
    /// The limiter takes back as many permits as it has room for: it never becomes fuller than
    /// full. It does not know which caller got a permit, so give back only permits that you got.
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

    /// Changes the rate from now on, also for requests that already wait.
    ///
    /// Each policy states how it treats permits that are saved, counted or owed; to choose another
    /// treatment, see [`change`](RateLimiter::change). With Guava's two policies, permits granted
    /// before are still paid at the old rate: after a permit at one per hour, the next one is due
    /// in an hour, whatever the rate is set to. To forget such a debt,
    /// [`refund`](RateLimiter::refund) it before the change. A request
    /// [within](RateLimiter::acquire_within) a time that can no longer be met is refused at once,
    /// and so is a request for more permits than the policy can now give at once. Behind 4,096
    /// others such a request is refused later: at its deadline, or when it is the first in line. A
    /// waiter of an [`AllOf`](crate::AllOf) behind 64 other composites, or behind the first of its
    /// own, is refused later, too: at the time at which it expected its permits, or at its
    /// deadline.
    ///
    /// A [`SlidingLog`](crate::SlidingLog) is raised only as far as it has room;
    /// [`Unlimited`](crate::Unlimited) and [`DenyAll`](crate::DenyAll) stay what they are.
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
    /// // The debt of a second was made at the old rate and stays; the permits to come are ten times as fast.
    /// assert_eq!(second.due_in(), Duration::from_millis(1100));
    /// # drop(first);
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn set_rate(&self, rate: Rate) {
        // A rate alone is never an error.
        let _ = self.shared.change(Change::rate(rate));
    }

    /// Changes the rate, the burst or both, and chooses what becomes of the permits. Waiters are
    /// moved at once, as by [`set_rate`](RateLimiter::set_rate).
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

    /// The rate, exactly as it was given.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.shared.rule.policy.rate()
    }

    /// The policy, to read what it was made with.
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

    /// What could be had now, when the limiter is full again, and how many wait. Takes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, SmoothBursty};
    ///
    /// let policy = SmoothBursty::new(Rate::per_second(5)).start_full();
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// // Five are saved, and one more is granted that the next caller pays.
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

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &C {
        &self.shared.clock
    }

    /// Sets how far back a grant can be charged; 10 ms unless set. Zero charges every grant as of
    /// now.
    ///
    /// Timers are late. A waiter's grant is charged as of the time it was due, and so is a request
    /// that comes within that lateness, since its task was late as well. So lateness does not slow
    /// the limiter down, also where a single task takes all permits and none are saved. A grant is
    /// charged at most this far back, so that a program that stood still does not let everything
    /// through at once. More makes the average exact on a busier machine; a span of length *d* can
    /// see `rate * catch_up` more permits.
    pub fn set_catch_up(&self, catch_up: Duration) {
        self.shared.set_catch_up(catch_up);
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
