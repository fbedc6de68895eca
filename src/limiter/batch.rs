//! Batches: permits that are taken in one step and handed out one by one.
//!
//! A batch belongs to one caller, so handing out a permit is a subtraction, without an atomic
//! operation or a clock reading. Permits that the caller does not use are undone like a
//! [settled](crate::Reservation::settle) estimate, so giving back is exact, and no batch can give
//! back more than it took.

use std::fmt;
use std::future::poll_fn;
use std::num::NonZeroU32;
use std::task::Poll;

use crate::clock::{DefaultClock, Timer};
use crate::error::Refusal;
use crate::limiter::pending::{OwnedPending, Pending, Poller, Progress};
use crate::limiter::settle::SettleableGrant;
use crate::limiter::{RateLimiter, blocking};
use crate::line::deferred::run_in_drop;
use crate::line::grants::{GrantKind, Granted};
use crate::line::rule::Single;
use crate::line::visit::Demand;
use crate::policy::{Policy, SmoothBursty};
use crate::request::Request;
use crate::sync::Unpark;

/// Permits for a hot loop: taken from the limiter many at a time, and handed out one by one without
/// an atomic operation or a clock reading. [`RateLimiter::batch`] makes one.
///
/// Each thread or task needs its own batch.
///
/// # Bound
///
/// The limiter grants a permit when the batch takes it. The caller can use the permit at any later
/// time. So in any span, callers use no more permits than the policy states plus the permits that
/// were in batches when the span began, which are at most the sum of the
/// [sizes](RateLimiter::batch).
///
/// # Fairness
///
/// A batch takes permits after all waiters. It takes as many as are available, up to its size, so
/// callers without a batch find fewer. When the limiter has no permits left,
/// [`acquire`](Batch::acquire) waits in the queue until one is available.
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
    /// How many permits the batch took and did not hand out.
    left: u32,
    size: u32,
    limiter: RateLimiter<P, C>,
    /// The grant that the permits belong to.
    grant: Option<SettleableGrant<P, C>>,
}

impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// Creates an empty [`Batch`], which takes up to `size` permits at a time. A size of 0 counts
    /// as 1.
    #[must_use]
    pub fn batch(&self, size: u32) -> Batch<P, C> {
        Batch { left: 0, size: size.max(1), limiter: self.clone(), grant: None }
    }
}

impl<P: Policy, C: Timer> Batch<P, C> {
    /// Hands out one permit. If the batch is empty, it first takes as many permits from the limiter
    /// as are available, at most the size of the batch.
    ///
    /// # Errors
    ///
    /// Like [`RateLimiter::try_acquire`], if the batch is empty and the limiter has no permit.
    #[inline]
    pub fn try_acquire(&mut self) -> Result<(), Refusal> {
        if self.hand_out() { Ok(()) } else { self.try_refill() }
    }

    /// Hands out one permit. If the batch and the limiter have none, it waits until the limiter has
    /// one, and then takes as many permits as are available, at most the size of the batch.
    ///
    /// # Errors
    ///
    /// Like [`RateLimiter::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue. The batch keeps its permits.
    pub async fn acquire(&mut self) -> Result<(), Refusal> {
        if self.hand_out() {
            return Ok(());
        }
        let mut wait = self.request();
        let receipt = poll_fn(|context| wait.poll(Poller::Task(context.waker()))).await?;
        self.keep(*wait.ask(), receipt.granted);
        Ok(())
    }

    /// Like [`acquire`](Batch::acquire), but blocks the calling thread. Do not call it from a task.
    ///
    /// Under a [`CancelToken`](crate::CancelToken) that is cancelled, it still hands out available
    /// permits. Only a wait is refused.
    ///
    /// # Errors
    ///
    /// Like [`RateLimiter::blocking_acquire`].
    pub fn blocking_acquire(&mut self) -> Result<(), Refusal> {
        if self.hand_out() {
            return Ok(());
        }
        let mut wait = self.request();
        // Polled before a token can refuse the wait.
        let receipt = match wait.poll(Poller::Thread(&Unpark::waker())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => blocking::acquire(&mut wait),
        }?;
        self.keep(*wait.ask(), receipt.granted);
        Ok(())
    }

    /// Returns how many permits the batch holds: taken from the limiter, and not handed out.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Gives the remaining permits back to the limiter, as if they had never been taken. Dropping
    /// the batch does the same.
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

    /// Hands out a permit of the batch. Returns whether it had one.
    #[inline]
    fn hand_out(&mut self) -> bool {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    /// Takes new permits and hands out one of them.
    #[cold]
    fn try_refill(&mut self) -> Result<(), Refusal> {
        let demand = Demand { most: NonZeroU32::new(self.size), ..Demand::exactly(&1, 0) };
        let (n, granted) = self.limiter.shared.try_as_many(demand, GrantKind::Tracked)?;
        self.keep(n, granted);
        Ok(())
    }

    /// Creates a request that waits for as many permits as are available, at most the size.
    fn request(&mut self) -> OwnedPending<Single<P>, C> {
        // All permits of the last grant were handed out.
        self.grant = None;
        let progress = Progress::with(1, &Request::up_to(self.size)).tracked();
        Pending::new(self.limiter.shared.clone(), progress)
    }

    /// Keeps a grant of `n` permits, and hands out one of them. In shadow mode there is no grant:
    /// the request passes and takes nothing.
    fn keep(&mut self, n: u32, granted: Option<Granted<P::Charge>>) {
        // All permits of the last grant were handed out.
        self.grant = None;
        if let Some(grant) = granted.and_then(Granted::tracked) {
            self.left = n - 1;
            let shared = self.limiter.shared.clone();
            self.grant = Some(SettleableGrant { shared, n, grant: Some(grant) });
        }
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
