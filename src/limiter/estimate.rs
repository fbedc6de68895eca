//! Estimates: permits for a cost that is known only afterwards.
//!
//! A grant that is an estimate keeps what it took and its mark in the queue
//! ([`Room`](crate::line::Line::begin)), so that a part of it can be undone later, exactly
//! and once. So it always takes the queue's lock, unlike other grants.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::{DefaultClock, Timer};
use crate::error::Refusal;
use crate::limiter::blocking;
use crate::limiter::grant::{Settle, Share};
use crate::limiter::pending::{Poller, Waiting};
use crate::limiter::shared::Shared;
use crate::line::rule::Single;
use crate::policy::{Policy, SmoothBursty};

/// Permits for a cost that was estimated: [settle](Estimate::settle) it when the cost is known.
///
/// Dropped without that, the estimate is the cost.
///
/// # Examples
///
/// ```
/// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, TokenBucket};
///
/// let tokens = RateLimiter::with_clock(TokenBucket::new(Rate::per_minute(1000), 1000), ManualClock::new());
/// let estimate = tokens.try_acquire_estimate(800)?;
/// assert_eq!(tokens.status().available, 200);
/// estimate.settle(300); // gives back 500
/// assert_eq!(tokens.status().available, 700);
///
/// let estimate = tokens.try_acquire_estimate(100)?;
/// estimate.settle(650); // charges 550 more
/// assert_eq!(tokens.status().available, 50);
/// # Ok::<(), Refusal>(())
/// ```
#[must_use = "dropped without being settled, the estimate is the cost"]
pub struct Estimate {
    share: Box<dyn Settle>,
    permits: u32,
    waited: Duration,
}

impl Estimate {
    fn of<P: Policy, C: Timer>(
        shared: &Arc<Shared<Single<P>, C>>,
        n: u32,
        (waited, charge, begun): (Duration, Option<P::Charge>, u64),
    ) -> Estimate {
        let share = Box::new(Share { shared: shared.clone(), n, part: charge.map(|charge| (charge, begun)) });
        Estimate { share, permits: n, waited }
    }

    /// Tells the actual cost, in permits: less than the estimate gives back the rest, as if it had
    /// never been taken; more is charged. Those who wait are moved at once.
    ///
    /// What would have been lost by now, because the limiter would have been full, is not given
    /// back. Where several grants are given back late, that is judged cautiously: some of them may
    /// give back less than they took, never more. What is charged and not there is owed: those who
    /// come later wait for it. The policy says what it can give back and owe; see
    /// [`Policy::unspent`] and [`Policy::debit`].
    pub fn settle(self, actual: u32) {
        self.share.settle(actual);
    }

    /// The number of permits estimated.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// The time waited for them, zero if they were there.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl fmt::Debug for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Estimate").field("permits", &self.permits).field("waited", &self.waited).finish()
    }
}

/// The future of [`RateLimiter::acquire_estimate`](crate::RateLimiter::acquire_estimate).
///
/// Lazy, cancel safe, `Unpin` and `Send`, as [`Acquire`](crate::Acquire), and without a borrow.
#[must_use = "futures do nothing unless awaited: no permits were acquired"]
pub struct AcquireEstimate<P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    shared: Arc<Shared<Single<P>, C>>,
    wait: Waiting<u32>,
}

impl<P: Policy, C: Timer> AcquireEstimate<P, C> {
    pub(crate) fn new(shared: Arc<Shared<Single<P>, C>>, n: u32) -> Self {
        let wait = Waiting::within(&shared, n, None).keeping();
        AcquireEstimate { shared, wait }
    }
}

/// Takes it now or not at all.
pub(crate) fn attempt<P: Policy, C: Timer>(
    shared: &Arc<Shared<Single<P>, C>>,
    n: u32,
) -> Result<Estimate, Refusal> {
    let (charge, begun) = shared.try_keeping(&n)?.unzip();
    Ok(Estimate::of(shared, n, (Duration::ZERO, charge, begun.unwrap_or_default())))
}

/// Waits for it in a plain thread.
pub(crate) fn block<P: Policy, C: Timer>(
    shared: &Arc<Shared<Single<P>, C>>,
    n: u32,
) -> Result<Estimate, Refusal> {
    let wait = Waiting::within(shared, n, None).keeping();
    Ok(Estimate::of(shared, n, blocking::acquire(shared, wait)?))
}

impl<P: Policy, C: Timer> Future for AcquireEstimate<P, C> {
    type Output = Result<Estimate, Refusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let poll = this.shared.poll(&mut this.wait, Poller::Task(context.waker()));
        poll.map_ok(|(waited, charge)| {
            Estimate::of(&this.shared, *this.wait.ask(), (waited, charge, this.wait.begun()))
        })
    }
}

impl<P: Policy, C: Timer> Drop for AcquireEstimate<P, C> {
    fn drop(&mut self) {
        self.shared.leave(&mut self.wait);
    }
}

impl<P: Policy, C: Timer> fmt::Debug for AcquireEstimate<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireEstimate").field("permits", self.wait.ask()).finish_non_exhaustive()
    }
}
