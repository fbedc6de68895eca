//! Estimates of several limiters at once.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::all_of::all::{All, AllCharge};
use crate::all_of::weights::Weights;
use crate::all_of::{AllOf, AllPermits, AllRefusal};
use crate::clock::{DefaultClock, Timer};
use crate::limiter::blocking;
use crate::limiter::grant::Settle;
use crate::limiter::pending::{Poller, Waiting};
use crate::limiter::shared::Shared;
use crate::sync::lock;

/// Permits of all members for a cost that was estimated: [settle](AllEstimate::settle) it when the
/// cost is known.
///
/// Dropped without that, the estimate is the cost, and permits of a
/// [`CountingLimit`](crate::CountingLimit) are free again.
///
/// # Examples
///
/// ```
/// use tidegate::{AllOf, AllRefusal, CountingLimit, Rate, RateLimiter, TokenBucket};
///
/// let requests = RateLimiter::new(TokenBucket::new(Rate::per_hour(10), 10));
/// let tokens = RateLimiter::new(TokenBucket::new(Rate::per_hour(1000), 1000));
/// let in_flight = CountingLimit::new(2);
/// let api = AllOf::new("requests", &requests).with("tokens", &tokens).with_counting("in flight", &in_flight);
///
/// let estimate = api.try_acquire_estimate(&[1, 850, 1])?;
/// // The answer was shorter than expected, and the call is over.
/// estimate.settle(&[1, 200, 1])?;
/// assert_eq!(tokens.status().available, 800);
/// assert_eq!(in_flight.available(), 2);
/// # Ok::<(), AllRefusal>(())
/// ```
#[must_use = "dropped without being settled, the estimate is the cost"]
pub struct AllEstimate {
    weights: Weights,
    /// With the number of the member.
    shares: Vec<(usize, Box<dyn Settle>)>,
    permits: AllPermits,
}

impl AllEstimate {
    fn new<C: Timer>(weights: Weights, charge: AllCharge<C>, waited: Duration) -> AllEstimate {
        let AllCharge { taken, permits } = charge;
        let shares = taken.into_iter().map(|(index, share)| (index, share as Box<dyn Settle>)).collect();
        AllEstimate { weights, shares, permits: AllPermits { permits, waited } }
    }

    /// Tells the actual cost, in permits of each member, in the order in which they were added. Of
    /// a rate, less than the estimate gives back the rest, and more is charged; those who wait are
    /// moved at once. A member that was not asked is not charged. The call is over: permits of a
    /// [`CountingLimit`](crate::CountingLimit) are free again, whatever their number here.
    ///
    /// All zeros take back the whole estimate, as far as that is possible: for a call that failed.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::Weights`] if there are more or fewer numbers than members; then the estimate
    /// is the cost.
    pub fn settle(self, actual: &[u32]) -> Result<(), AllRefusal> {
        let (given, members) = (actual.len(), self.weights.len());
        if given != members {
            return Err(AllRefusal::Weights { given, members });
        }
        for (index, share) in self.shares {
            share.settle(actual[index]);
        }
        Ok(())
    }

    /// The permits estimated, in the order of the members.
    #[must_use]
    pub fn weights(&self) -> &[u32] {
        &self.weights
    }

    /// The time waited for them, zero if they were there.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.permits.waited
    }
}

impl fmt::Debug for AllEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllEstimate").field("weights", &self.weights).field("permits", &self.permits).finish()
    }
}

impl<C: Timer> AllOf<C> {
    /// Takes an estimate of each member now, in the order in which they were added, or nothing. To
    /// be settled when the cost is known.
    ///
    /// Takes locks, unlike [`try_acquire`](AllOf::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`try_acquire_weighted`](AllOf::try_acquire_weighted).
    pub fn try_acquire_estimate(&self, weights: &[u32]) -> Result<AllEstimate, AllRefusal> {
        let ask = self.weigh(weights)?;
        match self.shared.try_in_line(&ask, self.ones.priority) {
            Ok(charge) => Ok(AllEstimate::new(ask, charge, Duration::ZERO)),
            Err(refusal) => Err(self.shared.rule.blame(&ask, refusal)),
        }
    }

    /// Blocks the calling thread until it has an estimate of each member, to be settled when the
    /// cost is known.
    ///
    /// # Errors
    ///
    /// As [`acquire_weighted`](AllOf::acquire_weighted).
    pub fn blocking_acquire_estimate(&self, weights: &[u32]) -> Result<AllEstimate, AllRefusal> {
        let ask = self.weigh(weights)?;
        let wait = Waiting::within(&self.shared, ask.clone(), None).of_priority(self.ones.priority).keeping();
        match blocking::acquire(&self.shared, wait) {
            Ok((waited, charge, begun)) => {
                if charge.is_some() {
                    lock(&self.shared.line).end(begun);
                }
                Ok(AllEstimate::new(ask, charge.unwrap_or_default(), waited))
            }
            Err(refusal) => Err(self.shared.rule.blame(&ask, refusal)),
        }
    }

    /// Waits for an estimate of each member, to be settled when the cost is known.
    ///
    /// # Errors
    ///
    /// As [`acquire_weighted`](AllOf::acquire_weighted).
    pub fn acquire_estimate(&self, weights: &[u32]) -> AcquireAllEstimate<C> {
        let wait = self
            .weigh(weights)
            .map(|ask| Waiting::within(&self.shared, ask, None).of_priority(self.ones.priority).keeping());
        AcquireAllEstimate { shared: self.shared.clone(), wait }
    }
}

/// The future of [`AllOf::acquire_estimate`].
///
/// Lazy, cancel safe, `Unpin` and `Send`, as [`AcquireAll`](crate::all_of::AcquireAll).
#[must_use = "futures do nothing unless awaited: no permits were acquired"]
pub struct AcquireAllEstimate<C: Timer = DefaultClock> {
    shared: Arc<Shared<All<C>, C>>,
    wait: Result<Waiting<Weights>, AllRefusal>,
}

impl<C: Timer> Future for AcquireAllEstimate<C> {
    type Output = Result<AllEstimate, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let wait = match &mut this.wait {
            Ok(wait) => wait,
            Err(refusal) => return Poll::Ready(Err(*refusal)),
        };
        match this.shared.poll(wait, Poller::Task(context.waker())) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok((waited, charge))) => {
                // It is the members' marks that count.
                if charge.is_some() {
                    lock(&this.shared.line).end(wait.begun());
                }
                Poll::Ready(Ok(AllEstimate::new(wait.ask().clone(), charge.unwrap_or_default(), waited)))
            }
            Poll::Ready(Err(refusal)) => Poll::Ready(Err(this.shared.rule.blame(wait.ask(), refusal))),
        }
    }
}

impl<C: Timer> Drop for AcquireAllEstimate<C> {
    fn drop(&mut self) {
        if let Ok(wait) = &mut self.wait {
            self.shared.leave(wait);
        }
    }
}

impl<C: Timer> fmt::Debug for AcquireAllEstimate<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights = self.wait.as_ref().ok().map(Waiting::ask);
        f.debug_struct("AcquireAllEstimate").field("weights", &weights).finish_non_exhaustive()
    }
}
