//! [`CountingLimit`]: so many at the same time, however long each takes.

pub(crate) mod line;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::clock::Timer;
use crate::counting::line::{Later, Pool};
use crate::error::Refusal;
use crate::limiter::RateLimiter;
use crate::line::deferred::Deferred;
use crate::line::recheck::Recheck;
use crate::policy::Policy;

/// At most so many at the same time: connections, calls in flight, jobs. A permit is given back
/// when it is dropped.
///
/// It knows no time, so a refusal cannot tell when to retry. It is a fair semaphore with the calls
/// of this crate, and its limit can be changed while permits are out. To limit the rate as well,
/// see [`acquire_with`](CountingLimit::acquire_with), or [`AllOf`](crate::AllOf) for several.
///
/// While no request waits, taking and giving back are one atomic operation each. What a holder does
/// before it gives a permit back happens before anything that the next holder of it does.
///
/// Clones share one limit.
///
/// # Fairness
///
/// First come, first served, whatever the size: a request is never overtaken. A request for more
/// permits than a lowered limit has is refused at once, and those behind it go on.
///
/// A wait is granted whether its future is polled or not, and holds its permits from then on: drop
/// futures that are no longer wanted.
///
/// # Cancel safety
///
/// Dropping a wait leaves no trace.
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
/// The semaphore of E. W. Dijkstra, 1962/63; bulkheads of Hystrix and resilience4j.
#[derive(Clone)]
pub struct CountingLimit {
    pub(crate) pool: Arc<Pool>,
}

/// Permits of a [`CountingLimit`]: given back when dropped.
#[must_use = "dropping it gives the permits back"]
pub struct CountingPermit {
    pool: Arc<Pool>,
    n: u32,
}

impl CountingLimit {
    /// The largest limit.
    pub const MAX_LIMIT: u32 = u32::MAX;

    /// At most `limit` permits at the same time. With 0 there are none, until the limit is changed.
    #[must_use]
    pub fn new(limit: u32) -> CountingLimit {
        CountingLimit { pool: Arc::new(Pool::new(limit)) }
    }

    /// Waits until one permit is free.
    pub async fn acquire(&self) -> CountingPermit {
        match self.wait(1).await {
            Ok(permit) => permit,
            // One permit is never refused: another limit may allow it.
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until `n` permits are free at once.
    ///
    /// # Errors
    ///
    /// - [`Refusal::ZeroPermits`] if `n` is 0.
    /// - [`Refusal::ExceedsLimit`] if `n` is more than the limit, or the limit is lowered below `n`
    ///   meanwhile.
    pub async fn acquire_many(&self, n: u32) -> Result<CountingPermit, Refusal> {
        self.check(n)?;
        self.wait(n).await
    }

    /// Takes one permit now, or refuses.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] if none is free, or others wait for it.
    pub fn try_acquire(&self) -> Result<CountingPermit, Refusal> {
        self.try_acquire_many(1)
    }

    /// Takes `n` permits now, or refuses.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] if they are not free, or others wait for them; and those of
    /// [`acquire_many`](CountingLimit::acquire_many).
    pub fn try_acquire_many(&self, n: u32) -> Result<CountingPermit, Refusal> {
        self.check(n)?;
        match self.pool.try_take(n) {
            true => Ok(self.permit(n)),
            false => Err(Refusal::InUse { limit: self.limit() }),
        }
    }

    /// Waits for one permit, but no longer than `within`, by tokio's clock.
    ///
    /// Nobody knows when a permit is given back, so unlike with a rate this cannot be refused at
    /// once.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] if none was free in time.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with time enabled.
    pub async fn acquire_within(&self, within: Duration) -> Result<CountingPermit, Refusal> {
        self.acquire_many_within(1, within).await
    }

    /// [`acquire_within`](CountingLimit::acquire_within) for `n` permits at once.
    ///
    /// # Errors
    ///
    /// As [`acquire_within`](CountingLimit::acquire_within) and
    /// [`acquire_many`](CountingLimit::acquire_many).
    pub async fn acquire_many_within(&self, n: u32, within: Duration) -> Result<CountingPermit, Refusal> {
        self.check(n)?;
        let in_time = tokio::time::timeout(within, self.wait(n)).await;
        in_time.unwrap_or_else(|_| Err(Refusal::InUse { limit: self.limit() }))
    }

    /// Waits for one permit of this limit, and then for one of a rate: so many at the same time
    /// *and* so many per second.
    ///
    /// In this order, so that no permit of the rate is spent on a call that cannot begin: those who
    /// wait for the rate hold a permit of this limit meanwhile. It cannot refuse, so it waits
    /// outside of a [`LeakyBucket`](crate::LeakyBucket). Dropping the wait leaves no trace in
    /// either.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{CountingLimit, Rate, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let (in_flight, rate) = (CountingLimit::new(20), RateLimiter::smooth_bursty(Rate::per_second(100)));
    /// let permit = in_flight.acquire_with(&rate).await;
    /// // ... the call ...
    /// drop(permit);
    /// # }
    /// ```
    pub async fn acquire_with<P: Policy, C: Timer>(&self, rate: &RateLimiter<P, C>) -> CountingPermit {
        let permit = self.acquire().await;
        rate.acquire().await;
        permit
    }

    /// Takes one permit of this limit and one of a rate now, or neither.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`], or what the rate says.
    pub fn try_acquire_with<P: Policy, C: Timer>(
        &self,
        rate: &RateLimiter<P, C>,
    ) -> Result<CountingPermit, Refusal> {
        let permit = self.try_acquire()?;
        rate.try_acquire()?;
        Ok(permit)
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.pool.limit()
    }

    /// How many permits a request would find now: 0 while other requests wait.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.pool.available()
    }

    /// Changes the limit, at once for requests that wait: a request for more than one permit and
    /// for more than the new limit is refused with [`Refusal::ExceedsLimit`], and the others go on.
    ///
    /// Permits that are out stay out: after the limit was lowered there may be more than it for a
    /// while.
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

    /// Where it is in memory: the same for all clones.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.pool).addr()
    }

    pub(crate) fn check(&self, n: u32) -> Result<(), Refusal> {
        let limit = self.limit();
        match n {
            0 => Err(Refusal::ZeroPermits),
            // One permit can be had some day, at another limit if not at this one.
            1 => Ok(()),
            _ if n > limit => Err(Refusal::ExceedsLimit { requested: n, limit }),
            _ => Ok(()),
        }
    }

    fn wait(&self, n: u32) -> Turn<'_> {
        Turn { limit: self, n, number: None }
    }

    fn permit(&self, n: u32) -> CountingPermit {
        CountingPermit { pool: self.pool.clone(), n }
    }
}

/// For composites, which hold a place in the line; see `counting/line.rs`. A place with the number
/// 0 is a newcomer.
impl CountingLimit {
    /// How often the limit was lowered.
    pub(crate) fn lowered(&self) -> u64 {
        self.pool.lowered()
    }

    pub(crate) fn sit(&self, composite: Weak<dyn Recheck>) -> u64 {
        self.pool.sit(composite)
    }

    pub(crate) fn has_turn(&self, place: u64, n: u32) -> bool {
        self.pool.has_turn(place, n)
    }

    pub(crate) fn take_turn(&self, place: u64, n: u32) -> Option<CountingPermit> {
        self.pool.take_turn(place, n).then(|| self.permit(n))
    }

    pub(crate) fn stand<C: Timer>(&self, place: u64, n: u32, deferred: &mut Deferred<C>) -> bool {
        self.pool.stand(place, n, deferred)
    }

    pub(crate) fn park<C: Timer>(&self, place: u64, deferred: &mut Deferred<C>) {
        self.pool.park(place, deferred);
    }

    pub(crate) fn rise<C: Timer>(&self, place: u64, deferred: &mut Deferred<C>) {
        self.pool.rise(place, deferred);
    }
}

/// A wait for permits.
struct Turn<'a> {
    limit: &'a CountingLimit,
    n: u32,
    /// Its number in the line, from its first poll to its answer.
    number: Option<u64>,
}

impl Future for Turn<'_> {
    type Output = Result<CountingPermit, Refusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Turn { limit, n, number } = self.get_mut();
        let pool = &limit.pool;
        if number.is_none() && pool.try_take(*n) {
            return Poll::Ready(Ok(limit.permit(*n)));
        }
        // Cloned without the lock: it is foreign code.
        let (waker, mut deferred) = (context.waker().clone(), Later::new());
        let answer = match *number {
            Some(number) => ready!(pool.look(number, waker, &mut deferred)),
            None => match pool.join(*n, waker, &mut deferred) {
                Ok(()) => Ok(()),
                Err(joined) => {
                    *number = Some(joined);
                    return Poll::Pending;
                }
            },
        };
        *number = None;
        let answer = answer.map(|()| limit.permit(*n));
        // Other waiters' wakers run here. One that panics finds the number and the permit where
        // they belong.
        drop(deferred);
        Poll::Ready(answer)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.limit.pool.leave(number, self.n);
        }
    }
}

impl CountingPermit {
    /// How many permits these are.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.n
    }
}

impl Drop for CountingPermit {
    fn drop(&mut self) {
        self.pool.give_back(self.n);
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
