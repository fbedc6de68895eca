//! [`CountingLimit`]: so many at the same time, however long each takes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::clock::Timer;
use crate::error::Refusal;
use crate::limiter::RateLimiter;
use crate::policy::Policy;
use crate::sync::{Mutex, lock};

/// At most so many at the same time: connections, calls in flight, jobs. A permit is given back when it is dropped.
///
/// It knows no time, so a refusal cannot tell when to retry. It is tokio's [`Semaphore`] with the calls of this crate, and can be
/// changed while permits are out. To limit the rate as well, see [`acquire_with`](CountingLimit::acquire_with), or [`AllOf`](crate::AllOf) for several.
///
/// Clones share one limit.
///
/// # Fairness
///
/// First come, first served, whatever the size; nobody overtakes.
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
    shared: Arc<Shared>,
}

struct Shared {
    semaphore: Arc<Semaphore>,
    limit: AtomicU32,
    /// Permits that are out beyond a limit that was lowered: so many are not given back.
    surplus: AtomicU32,
    /// One change at a time.
    changing: Mutex<()>,
}

/// Permits of a [`CountingLimit`]: given back when dropped.
#[must_use = "dropping it gives the permits back"]
pub struct CountingPermit {
    shared: Arc<Shared>,
    /// `None` only while it is dropped.
    permit: Option<OwnedSemaphorePermit>,
}

impl CountingLimit {
    /// The largest limit.
    pub const MAX_LIMIT: u32 = {
        let most = Semaphore::MAX_PERMITS;
        // Compared before it is cut.
        #[allow(clippy::cast_possible_truncation)]
        if most > u32::MAX as usize { u32::MAX } else { most as u32 }
    };

    /// At most `limit` permits at the same time. With 0 there are none, until the limit is changed. More than
    /// [`MAX_LIMIT`](CountingLimit::MAX_LIMIT) is cut to that.
    #[must_use]
    pub fn new(limit: u32) -> CountingLimit {
        let limit = cut(limit);
        CountingLimit {
            shared: Arc::new(Shared {
                semaphore: Arc::new(Semaphore::new(limit as usize)),
                limit: AtomicU32::new(limit),
                surplus: AtomicU32::new(0),
                changing: Mutex::new(()),
            }),
        }
    }

    /// Waits until one permit is free.
    pub async fn acquire(&self) -> CountingPermit {
        self.wait(1).await
    }

    /// Waits until `n` permits are free at once.
    ///
    /// A limit that is lowered below `n` meanwhile keeps it waiting, and those behind it, until it is raised again or the wait is dropped.
    ///
    /// # Errors
    ///
    /// - [`Refusal::ZeroPermits`] if `n` is 0.
    /// - [`Refusal::ExceedsBurst`] if `n` is more than the limit.
    pub async fn acquire_many(&self, n: u32) -> Result<CountingPermit, Refusal> {
        self.check(n)?;
        Ok(self.wait(n).await)
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
        match self.shared.semaphore.clone().try_acquire_many_owned(n) {
            Ok(permit) => Ok(self.permit(permit)),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
                Err(Refusal::InUse { limit: self.limit() })
            }
        }
    }

    /// Waits for one permit, but no longer than `within`, by tokio's clock.
    ///
    /// Nobody knows when a permit is given back, so unlike with a rate this cannot be refused at once.
    ///
    /// # Errors
    ///
    /// [`Refusal::InUse`] if none was free in time.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with time enabled.
    pub async fn try_acquire_within(&self, within: Duration) -> Result<CountingPermit, Refusal> {
        self.try_acquire_many_within(1, within).await
    }

    /// [`try_acquire_within`](CountingLimit::try_acquire_within) for `n` permits at once.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_within`](CountingLimit::try_acquire_within) and [`acquire_many`](CountingLimit::acquire_many).
    pub async fn try_acquire_many_within(&self, n: u32, within: Duration) -> Result<CountingPermit, Refusal> {
        self.check(n)?;
        let in_time = tokio::time::timeout(within, self.wait(n)).await;
        in_time.map_err(|_| Refusal::InUse { limit: self.limit() })
    }

    /// Waits for one permit of this limit, and then for one of a rate: so many at the same time *and* so many per second.
    ///
    /// In this order, so that no permit of the rate is spent on a call that cannot begin: those who wait for the rate hold a
    /// permit of this limit meanwhile. It cannot refuse, so it waits outside of a [`LeakyBucket`](crate::LeakyBucket). Dropping the
    /// wait leaves no trace in either.
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
        self.shared.limit.load(Ordering::Relaxed)
    }

    /// How many permits are free.
    #[must_use]
    pub fn available(&self) -> u32 {
        u32::try_from(self.shared.semaphore.available_permits()).unwrap_or(u32::MAX)
    }

    /// Changes the limit, at once for those who wait.
    ///
    /// Permits that are out stay out: after the limit was lowered there may be more than it for a while.
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
        let Shared { semaphore, surplus, changing, .. } = &*self.shared;
        let _one_at_a_time = lock(changing);
        let limit = cut(limit);
        let before = self.shared.limit.swap(limit, Ordering::Relaxed);
        if let Some(more) = limit.checked_sub(before) {
            let forgiven = take_from(surplus, more);
            semaphore.add_permits((more - forgiven) as usize);
            return;
        }
        // What is out is kept back when it comes. Announced first: whoever gives back in between looks at it afterwards.
        surplus.fetch_add(before - limit, Ordering::Relaxed);
        self.shared.settle();
    }

    /// Where it is in memory: the same for all clones.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    pub(crate) fn check(&self, n: u32) -> Result<(), Refusal> {
        let limit = self.limit();
        match n {
            0 => Err(Refusal::ZeroPermits),
            // One permit can be had some day, at another limit if not at this one.
            1 => Ok(()),
            _ if n > limit => Err(Refusal::ExceedsBurst { requested: n, burst: limit }),
            _ => Ok(()),
        }
    }

    async fn wait(&self, n: u32) -> CountingPermit {
        match self.shared.semaphore.clone().acquire_many_owned(n).await {
            Ok(permit) => self.permit(permit),
            // Nobody closes it.
            Err(_) => std::future::pending().await,
        }
    }

    fn permit(&self, permit: OwnedSemaphorePermit) -> CountingPermit {
        CountingPermit { shared: self.shared.clone(), permit: Some(permit) }
    }
}

impl Shared {
    /// Takes back what is free beyond the limit.
    fn settle(&self) {
        loop {
            let surplus = self.surplus.load(Ordering::Relaxed);
            if surplus == 0 {
                return;
            }
            let forgotten = u32::try_from(self.semaphore.forget_permits(surplus as usize)).unwrap_or(surplus);
            if forgotten == 0 {
                return;
            }
            // Somebody else may have settled meanwhile.
            let settled = take_from(&self.surplus, forgotten);
            self.semaphore.add_permits((forgotten - settled) as usize);
        }
    }
}

/// A limit that the semaphore can have.
fn cut(limit: u32) -> u32 {
    // With 64 bits it can have any.
    #[allow(clippy::unnecessary_min_or_max)]
    limit.min(CountingLimit::MAX_LIMIT)
}

/// Takes up to `n` from a number. Returns how many.
fn take_from(number: &AtomicU32, n: u32) -> u32 {
    let left = |number: u32| Some(number.saturating_sub(n));
    let before = number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
    before.unwrap_or_default().min(n)
}

impl CountingPermit {
    /// How many permits these are.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permit.as_ref().map_or(0, |permit| u32::try_from(permit.num_permits()).unwrap_or(u32::MAX))
    }
}

impl Drop for CountingPermit {
    fn drop(&mut self) {
        if self.shared.surplus.load(Ordering::Relaxed) > 0 {
            let kept_back = take_from(&self.shared.surplus, self.permits());
            if let Some(kept_back) = self.permit.as_mut().and_then(|permit| permit.split(kept_back as usize))
            {
                kept_back.forget();
            }
        }
        drop(self.permit.take());
        // The limit may have been lowered just before: then this came too late to be found free, and is free now. The semaphore's
        // own lock puts one before the other.
        self.shared.settle();
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
