//! Batches: permits that are taken in one step and handed out one by one.
//!
//! A batch belongs to one caller, so handing out a permit is a subtraction: no atomic operation, no
//! clock. What the caller does not use is undone as a [settled](crate::Reservation::settle)
//! estimate is, so giving back is exact, and no batch can give back more than it took.

use std::fmt;

use crate::clock::{DefaultClock, Timer};
use crate::error::Refusal;
use crate::limiter::RateLimiter;
use crate::limiter::settle::Share;
use crate::line::deferred::run_in_drop;
use crate::line::grants::{GrantKind, Granted};
use crate::line::visit::Demand;
use crate::policy::{Policy, SmoothBursty};

/// Permits for a hot loop: taken from the limiter many at a time, and handed out one by one without
/// an atomic operation or a clock reading. Made by [`RateLimiter::batch`].
///
/// Each thread or task has a batch of its own.
///
/// # Bound
///
/// The limiter has granted a permit when the batch takes it. The caller uses it later, at any time.
/// So in any span callers use no more permits than the policy states, and the permits that were in
/// batches when the span began: at most their [sizes](RateLimiter::batch).
///
/// # Fairness
///
/// A batch takes permits as a `try_` call does, after all waiters. It takes as many as are
/// available, up to its size, so other callers without a batch find fewer. When the limiter has no
/// permits left, [`acquire`](Batch::acquire) waits in the queue for one permit.
///
/// # Examples
///
/// ```
/// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
///
/// let policy = TokenBucket::new(Rate::per_second(1000), 1000);
/// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
/// let mut packets = limiter.batch(64);
/// packets.try_acquire()?;
/// assert_eq!((packets.left(), limiter.status().available), (63, 936));
/// packets.give_back();
/// assert_eq!((packets.left(), limiter.status().available), (0, 999));
/// # Ok::<(), tidegate::Refusal>(())
/// ```
pub struct Batch<P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    /// How many permits it took and did not hand out.
    left: u32,
    size: u32,
    limiter: RateLimiter<P, C>,
    /// The grant that the permits are from.
    grant: Option<Share<P, C>>,
}

impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// Makes an empty [`Batch`], which takes up to `size` permits at a time. With a size of 0 it
    /// takes one at a time.
    #[must_use]
    pub fn batch(&self, size: u32) -> Batch<P, C> {
        Batch { left: 0, size: size.max(1), limiter: self.clone(), grant: None }
    }
}

impl<P: Policy, C: Timer> Batch<P, C> {
    /// Hands out one permit. Takes more from the limiter if the batch is empty: as many as are
    /// available, at most the size of the batch.
    ///
    /// # Errors
    ///
    /// As [`RateLimiter::try_acquire`], if the batch is empty and the limiter has no permit.
    #[inline]
    pub fn try_acquire(&mut self) -> Result<(), Refusal> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => self.refill(),
        }
    }

    /// Hands out one permit, and waits for it if there is none.
    ///
    /// # Errors
    ///
    /// As [`RateLimiter::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no trace. The batch keeps the permits that it has.
    pub async fn acquire(&mut self) -> Result<(), Refusal> {
        match self.try_acquire() {
            Err(refusal) if refusal.may_retry() => self.limiter.acquire().await.map(drop),
            answer => answer,
        }
    }

    /// Hands out one permit, and blocks the calling thread if there is none. Do not call it from a
    /// task.
    ///
    /// Under a [`CancelToken`](crate::CancelToken) that is cancelled it still hands out permits
    /// that are there. Only a wait is refused.
    ///
    /// # Errors
    ///
    /// As [`RateLimiter::blocking_acquire`].
    pub fn blocking_acquire(&mut self) -> Result<(), Refusal> {
        match self.try_acquire() {
            Err(refusal) if refusal.may_retry() => self.limiter.blocking_acquire().map(drop),
            answer => answer,
        }
    }

    /// Returns how many permits the batch has: taken from the limiter, and not handed out.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Gives the permits that are left back to the limiter, as if they had never been taken. So
    /// does dropping the batch.
    ///
    /// Permits that would have overflowed by now, because the limiter would have been full, are not
    /// given back.
    pub fn give_back(&mut self) {
        let left = std::mem::take(&mut self.left);
        if let Some(share) = self.grant.take() {
            let used = share.n.saturating_sub(left);
            share.settle(used);
        }
    }

    /// Takes new permits and hands out one of them.
    #[cold]
    fn refill(&mut self) -> Result<(), Refusal> {
        // All permits of the last grant were handed out.
        self.grant = None;
        let shared = &self.limiter.shared;
        let demand = Demand { ask: &1, priority: 0 };
        let (n, granted) = shared.try_as_many(demand, self.size, GrantKind::Tracked)?;
        // In shadow mode the request passes and takes nothing.
        if let Some(grant) = granted.and_then(Granted::tracked) {
            self.left = n - 1;
            self.grant = Some(Share { shared: shared.clone(), n, grant: Some(grant) });
        }
        Ok(())
    }
}

impl<P: Policy, C: Timer> Drop for Batch<P, C> {
    fn drop(&mut self) {
        run_in_drop(|| self.give_back());
    }
}

impl<P: Policy, C: Timer> fmt::Debug for Batch<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("left", &self.left).field("size", &self.size).finish_non_exhaustive()
    }
}
