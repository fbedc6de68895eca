//! [`CountingLimit`] limits how many permits are in use at one time, however long each permit is
//! held.

mod events;
pub(crate) mod line;
mod wait;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, DefaultClock, Timer, timeout};
use crate::counting::line::Pool;
use crate::counting::wait::Turn;
use crate::error::Refusal;
use crate::grant::Left;
use crate::limiter::RateLimiter;
use crate::limiter::blocking::block_on;
use crate::limiter::events::{Events, Observers};
use crate::line::deferred::{resume_panic, run};
use crate::policy::Policy;
use crate::status::Status;
use crate::time::Nanos;

/// Limits how many permits are in use at one time: connections, calls in flight, jobs. Dropping a
/// permit gives it back.
///
/// A counting limit is a fair semaphore. Its limit can be changed while permits are in use. It has
/// no rate, so a refusal has no `retry_after`. To limit the rate as well, see
/// [`acquire_with`](CountingLimit::acquire_with). To combine several limits, see
/// [`AllOf`](crate::AllOf).
///
/// While no request waits, taking and giving back are one atomic operation each. All actions of a
/// holder before it gives a permit back happen before all actions of that permit's next holder.
///
/// Clones share one limit. [`observe`](CountingLimit::observe) sets its observer.
///
/// # Fairness
///
/// Requests are served first come, first served, whatever their size: no request is overtaken. If
/// the limit is lowered below the size of a request, that request is refused at once, and the
/// requests behind it stay in the queue.
///
/// A waiting future is granted its permits even if it is not polled, and holds them from then on.
/// Drop futures that you no longer need.
///
/// # Cancel safety
///
/// Dropping a waiting future withdraws its request. If the request was already granted, its permits
/// are given back.
///
/// # Examples
///
/// ```
/// use tidegate::{CountingLimit, Refusal};
///
/// let limit = CountingLimit::new(2);
/// let first = limit.try_acquire()?;
/// let second = limit.try_acquire()?;
/// assert_eq!(limit.try_acquire().unwrap_err(), Refusal::InUse { limit: 2 });
/// drop(first);
/// assert!(limit.try_acquire().is_ok());
/// # Ok::<(), Refusal>(())
/// ```
///
/// # Source
///
/// The semaphore of E. W. Dijkstra, 1962/63; the bulkheads of Hystrix and resilience4j.
#[derive(Clone)]
pub struct CountingLimit {
    pub(crate) pool: Arc<Pool>,
    /// The clock that measures waits, if the limit has its own clock.
    clock: Option<Arc<dyn WaitClock>>,
}

type Answer = Result<CountingPermit, Refusal>;

/// A boxed future that borrows the clock. Only a limit with its own clock allocates one.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A clock with its type erased, because no type of a counting limit names its clock.
trait WaitClock: Send + Sync {
    fn now(&self) -> Nanos;

    /// Returns the result of `wait`, or `None` if `wait` takes longer than `within`.
    fn bound<'a>(&'a self, within: Duration, wait: Boxed<'a, Answer>) -> Boxed<'a, Option<Answer>>;
}

impl<C: Timer> WaitClock for C {
    fn now(&self) -> Nanos {
        Clock::now(self)
    }

    fn bound<'a>(&'a self, within: Duration, wait: Boxed<'a, Answer>) -> Boxed<'a, Option<Answer>> {
        Box::pin(timeout(self, within, wait))
    }
}

/// Permits of a [`CountingLimit`]. Dropping this value gives them back.
#[must_use = "hold it until the work is done, as `let _permit`: dropping it gives the permits back"]
pub struct CountingPermit {
    pool: Arc<Pool>,
    n: u32,
}

impl CountingLimit {
    /// The largest limit.
    pub const MAX_LIMIT: u32 = u32::MAX;

    /// Creates a limit of `limit` permits in use at one time. With a limit of 0, no permit is
    /// available until the limit is changed.
    #[must_use]
    pub fn new(limit: u32) -> CountingLimit {
        CountingLimit::observed_by(limit, None)
    }

    /// Creates a limit on a clock, for tests. The clock measures
    /// [maximum waits](CountingLimit::acquire_within) and the waits that are reported to an
    /// [observer](CountingLimit::observe). Without it, the limit uses the default clock.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{CountingLimit, ManualClock, Refusal};
    ///
    /// # fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> std::task::Poll<T> {
    /// #     future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    /// # }
    /// let clock = ManualClock::new();
    /// let limit = CountingLimit::with_clock(1, clock.clone());
    /// let _permit = limit.try_acquire()?;
    /// let mut wait = std::pin::pin!(limit.acquire_within(Duration::from_secs(1)));
    /// assert!(poll(wait.as_mut()).is_pending());
    /// clock.advance(Duration::from_secs(1));
    /// assert!(poll(wait.as_mut()).is_ready());
    /// # Ok::<(), Refusal>(())
    /// ```
    #[must_use]
    pub fn with_clock(limit: u32, clock: impl Timer) -> CountingLimit {
        CountingLimit { clock: Some(Arc::new(clock)), ..CountingLimit::new(limit) }
    }

    /// Waits until one permit is free.
    ///
    /// # Errors
    ///
    /// [`Refusal::Closed`] if the limit is [closed](CountingLimit::close). There is no other error:
    /// a limit of 0 may be raised later.
    pub async fn acquire(&self) -> Result<CountingPermit, Refusal> {
        self.acquire_many(1).await
    }

    /// Waits until `n` permits are free at once.
    ///
    /// # Errors
    ///
    /// - [`Refusal::ZeroPermits`] if `n` is 0.
    /// - [`Refusal::ExceedsLimit`] if `n` is more than the limit, or if the limit is lowered below
    ///   `n` while the request waits.
    /// - [`Refusal::Closed`] if the limit is [closed](CountingLimit::close).
    pub async fn acquire_many(&self, n: u32) -> Result<CountingPermit, Refusal> {
        self.check_and_report(n)?;
        Turn::new(self, n).await
    }

    /// Blocks the calling thread until one permit is free. Threads and tasks wait in one queue. Do
    /// not call this from a task: it blocks the executor's thread.
    ///
    /// # Errors
    ///
    /// The errors of [`blocking_acquire_many`](CountingLimit::blocking_acquire_many).
    pub fn blocking_acquire(&self) -> Result<CountingPermit, Refusal> {
        self.blocking_acquire_many(1)
    }

    /// Blocks the calling thread until `n` permits are free at once.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](CountingLimit::acquire_many), and [`Refusal::Cancelled`] if
    /// the call runs under a [`CancelToken`](crate::CancelToken) that is cancelled.
    pub fn blocking_acquire_many(&self, n: u32) -> Result<CountingPermit, Refusal> {
        self.check_and_report(n)?;
        let mut turn = Turn::new(self, n);
        // Dropping the turn leaves the line, or gives back the permits.
        block_on(Pin::new(&mut turn)).unwrap_or_else(|refusal| turn.cancel(refusal))
    }

    /// Takes one permit now, or refuses.
    ///
    /// # Errors
    ///
    /// - [`Refusal::InUse`] if no permit is free, or if other requests wait.
    /// - [`Refusal::Closed`] if the limit is [closed](CountingLimit::close).
    pub fn try_acquire(&self) -> Result<CountingPermit, Refusal> {
        self.try_acquire_many(1)
    }

    /// Takes `n` permits now, or refuses.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] if `n` permits are not free, or if other requests wait; and the errors of
    /// [`acquire_many`](CountingLimit::acquire_many).
    pub fn try_acquire_many(&self, n: u32) -> Result<CountingPermit, Refusal> {
        self.report_end(n, Duration::ZERO, self.take(n))
    }

    /// Takes as many permits as are free now, at least one and at most `n`, or refuses.
    /// [`CountingPermit::permits`] returns how many permits it took.
    ///
    /// There is no waiting variant of this call. Each permit is given back by itself when it is
    /// dropped, so a waiter would nearly always get one permit. [Wait](CountingLimit::acquire) for
    /// one permit, and then take more with this call. The two [`CountingPermit`]s are given back
    /// separately.
    ///
    /// # Errors
    ///
    /// - [`Refusal::InUse`] if no permit is free, or if other requests wait.
    /// - [`Refusal::ZeroPermits`] if `n` is 0.
    /// - [`Refusal::Closed`] if the limit is [closed](CountingLimit::close).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::CountingLimit;
    ///
    /// let workers = CountingLimit::new(8);
    /// let busy = workers.try_acquire_many(3)?;
    /// let batch = workers.try_acquire_up_to(100)?;
    /// assert_eq!(batch.permits(), 5);
    /// drop((busy, batch));
    /// assert_eq!(workers.available(), 8);
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn try_acquire_up_to(&self, n: u32) -> Result<CountingPermit, Refusal> {
        let least = n.min(1);
        let answer = self.check(least).and_then(|()| match self.pool.try_take_up_to(n) {
            0 => Err(self.in_use()),
            n => Ok(self.permit(n)),
        });
        self.report_end(least, Duration::ZERO, answer)
    }

    /// Waits for one permit, but no longer than `within`.
    ///
    /// The time at which a permit is given back is unknown. So, unlike a rate limiter, this call
    /// cannot refuse at once.
    ///
    /// # Errors
    ///
    /// - [`Refusal::InUse`] if no permit was free in time.
    /// - [`Refusal::Closed`] if the limit is [closed](CountingLimit::close).
    ///
    /// # Panics
    ///
    /// If called in a tokio runtime without its time driver, unless a permit is free now.
    pub async fn acquire_within(&self, within: Duration) -> Result<CountingPermit, Refusal> {
        self.acquire_many_within(1, within).await
    }

    /// Waits for `n` permits at once, but no longer than `within`.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_within`](CountingLimit::acquire_within) and
    /// [`acquire_many`](CountingLimit::acquire_many).
    pub async fn acquire_many_within(&self, n: u32, within: Duration) -> Result<CountingPermit, Refusal> {
        self.check_and_report(n)?;
        let mut turn = Turn::new(self, n);
        let in_time = match &self.clock {
            None => timeout(&DefaultClock::new(), within, &mut turn).await,
            Some(clock) => clock.bound(within, Box::pin(&mut turn)).await,
        };
        in_time.unwrap_or_else(|| turn.refuse())
    }

    /// Waits for one permit of this limit, and then for one permit of a rate limiter. This bounds
    /// both the calls in flight and the calls per second.
    ///
    /// The rate permit comes second, so that a call that cannot begin spends no permit of the rate.
    /// While a request waits for the rate, it holds a permit of this limit. Dropping the future
    /// takes nothing from either limiter. The observer of each limiter is notified of that
    /// limiter's part of the call.
    ///
    /// # Errors
    ///
    /// [`Refusal::Closed`] if the limit is [closed](CountingLimit::close), or the refusal of the
    /// rate limiter: see [`RateLimiter::acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{CountingLimit, Rate, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tidegate::Refusal> {
    /// let in_flight = CountingLimit::new(20);
    /// let rate = RateLimiter::smooth_bursty(Rate::per_second(100));
    /// let permit = in_flight.acquire_with(&rate).await?;
    /// // ... the call ...
    /// drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire_with<P: Policy, C: Timer>(
        &self,
        rate: &RateLimiter<P, C>,
    ) -> Result<CountingPermit, Refusal> {
        let permit = self.acquire().await?;
        rate.acquire().await?;
        Ok(permit)
    }

    /// Takes one permit of this limit and one permit of a rate limiter now, or neither.
    ///
    /// # Errors
    ///
    /// The refusal of [`try_acquire`](CountingLimit::try_acquire) or of
    /// [`RateLimiter::try_acquire`].
    pub fn try_acquire_with<P: Policy, C: Timer>(
        &self,
        rate: &RateLimiter<P, C>,
    ) -> Result<CountingPermit, Refusal> {
        let permit = self.try_acquire()?;
        rate.try_acquire()?;
        Ok(permit)
    }

    /// Returns the limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.pool.limit()
    }

    /// Returns how many permits a request would find now. Returns 0 while other requests wait.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.pool.available()
    }

    /// Returns the limit, how many permits a request would find now, and how many requests wait for
    /// permits in use. A request that waits in an [`AllOf`](crate::AllOf) counts while it waits
    /// only for this limit.
    ///
    /// The time at which permits are given back is unknown. So `full_in` is zero if as many permits
    /// are available as the limit has, and otherwise [`Duration::MAX`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::CountingLimit;
    ///
    /// let limit = CountingLimit::new(3);
    /// let permit = limit.try_acquire()?;
    /// let status = limit.status();
    /// assert_eq!((status.limit, status.available, status.waiting), (3, 2, 0));
    /// assert_eq!(status.full_in, Duration::MAX);
    /// drop(permit);
    /// assert_eq!(limit.status().full_in, Duration::ZERO);
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    #[must_use]
    pub fn status(&self) -> Status {
        let left = Left::new(self.limit().into(), self.available().into());
        let paused_for = if self.is_closed() { Duration::MAX } else { Duration::ZERO };
        Status::from(left).waiting(self.pool.waiting()).paused_for(paused_for)
    }

    /// Changes the limit, with immediate effect on waiting requests. A request for more than one
    /// permit and for more than the new limit is refused with [`Refusal::ExceedsLimit`]. The other
    /// requests stay in the queue. Two kinds of waiters of an [`AllOf`](crate::AllOf) are refused
    /// later, when they are first in the queue: a waiter behind 4,096 others, and, where thousands
    /// of `AllOf`s wait for permits of this limit, a waiter that is not the first of its `AllOf`.
    ///
    /// Permits in use stay in use. After the limit was lowered, more permits than the limit may be
    /// in use for a while.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::CountingLimit;
    ///
    /// let limit = CountingLimit::new(2);
    /// let (first, second) = (limit.try_acquire()?, limit.try_acquire()?);
    /// limit.set_limit(1);
    /// drop(first); // the second one is enough
    /// assert!(limit.try_acquire().is_err());
    /// drop(second);
    /// assert!(limit.try_acquire().is_ok());
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn set_limit(&self, limit: u32) {
        self.pool.set_limit(limit);
    }

    /// Closes the limit for good. From then on no request gets a permit, and all waiters are
    /// refused at once with [`Refusal::Closed`]. Permits in use stay in use. Returns whether the
    /// limit was open.
    ///
    /// A waiter of an [`AllOf`](crate::AllOf) is refused later in one case: it is behind a request
    /// that asks for no permit of this limit and keeps waiting, and 4,096 other waiters, or the
    /// waiters of thousands of `AllOf`s, come first. Then the waiter is refused when it is first in
    /// the queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{CountingLimit, Refusal};
    ///
    /// let limit = CountingLimit::new(2);
    /// let permit = limit.try_acquire()?;
    /// limit.close();
    /// drop(permit);
    /// assert_eq!(limit.try_acquire().map(drop), Err(Refusal::Closed));
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn close(&self) -> bool {
        self.pool.close()
    }

    /// Returns whether the limit was [closed](CountingLimit::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.pool.is_closed()
    }

    /// Creates the limit of a key, with the observer of all keys if there is one.
    pub(crate) fn observed_by(limit: u32, all: Option<Arc<dyn Events>>) -> CountingLimit {
        CountingLimit { pool: Arc::new(Pool::new(limit, Observers::new(all))), clock: None }
    }

    /// Returns the address of the limit, which all clones share. Composites sort their members by
    /// it.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.pool).addr()
    }

    pub(crate) fn check(&self, n: u32) -> Result<(), Refusal> {
        let limit = self.limit();
        match n {
            _ if self.is_closed() => Err(Refusal::Closed),
            0 => Err(Refusal::ZeroPermits),
            // One permit is never refused here: the limit may be raised later.
            1 => Ok(()),
            _ if n > limit => Err(Refusal::ExceedsLimit { requested: n, limit }),
            _ => Ok(()),
        }
    }

    pub(crate) fn in_use(&self) -> Refusal {
        Refusal::InUse { limit: self.limit() }
    }

    fn permit(&self, n: u32) -> CountingPermit {
        CountingPermit { pool: self.pool.clone(), n }
    }
}

/// For composites, which hold a seat in the line of the pool; see `counting/line.rs`. No observer
/// is notified.
impl CountingLimit {
    /// Takes `n` permits now, or refuses.
    pub(crate) fn take(&self, n: u32) -> Result<CountingPermit, Refusal> {
        self.check(n)?;
        match self.pool.try_take(n) {
            true => Ok(self.permit(n)),
            false => Err(self.in_use()),
        }
    }

    /// Takes permits if it is the turn of the seat. Seat number 0 is a newcomer without a seat.
    pub(crate) fn take_turn(&self, seat: u64, n: u32) -> Option<CountingPermit> {
        self.pool.take_turn(seat, n).then(|| self.permit(n))
    }
}

impl CountingPermit {
    /// Returns the number of permits.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.n
    }
}

/// Gives permits of several limits back: all of them, and then serves the lines in the order of
/// their first entries. See `counting/line.rs`.
pub(crate) fn give_back_together(permits: impl Iterator<Item = CountingPermit>) {
    let given_back = |mut permit: CountingPermit| {
        let n = std::mem::take(&mut permit.n);
        permit.pool.add_back(n).then(|| permit.pool.clone())
    };
    let mut lines: Vec<_> = permits.filter_map(given_back).collect();
    lines.sort_by_cached_key(|pool| pool.first_number());
    let mut panic = None;
    for pool in lines {
        run(&mut panic, || pool.serve_line());
    }
    resume_panic(panic);
}

impl Drop for CountingPermit {
    fn drop(&mut self) {
        // Zero: the permits were given back together with others.
        if self.n > 0 {
            self.pool.give_back(self.n);
        }
    }
}

impl fmt::Debug for CountingLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingLimit")
            .field("limit", &self.limit())
            .field("available", &self.available())
            .finish()
    }
}

impl fmt::Debug for CountingPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingPermit").field("permits", &self.permits()).finish()
    }
}
