//! Reservations: a position in the queue that reports when it is due, and a grant that can be
//! settled.
//!
//! A reservation keeps what its grant took and its mark in the queue's log of undone grants, so
//! that a part of the grant can be undone later, exactly and only once. So, unlike other requests,
//! it always takes the queue's lock.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::clock::{DefaultClock, Timer};
use crate::error::Refusal;
use crate::grant::Grant;
use crate::limiter::blocking;
use crate::limiter::pending::{OwnedPending, Pending, Poller, Progress};
use crate::limiter::settle::{SettleableGrant, claim_to_settle};
use crate::limiter::shared::Shared;
use crate::line::answer::Receipt;
use crate::line::deferred::{resume_panic, run};
use crate::line::grants::Granted;
use crate::line::rule::Single;
use crate::policy::{Policy, SmoothBursty};
use crate::status::Status;
use crate::time::Nanos;

/// A position in the queue, taken at once by [`RateLimiter::reserve`](crate::RateLimiter::reserve).
///
/// [`due_in`](Reservation::due_in) reports when it is due. Do something else meanwhile, then
/// [`claim`](Reservation::claim) it or await it. It keeps its position whether or not it is polled.
/// If it is dropped without a claim, it is cancelled: to sleep for `due_in` alone limits nothing.
///
/// If a cost is known only afterwards, reserve an estimate, and [settle](Reservation::settle) it
/// when the cost is known.
///
/// # Fairness
///
/// A reservation waits in one queue with all other requests. When it is due it is charged, whether
/// or not it is claimed: an unclaimed reservation uses its permits, and does not delay the requests
/// behind it any further.
///
/// # Cancel safety
///
/// Dropping a reservation that was not claimed gives up its position. If it was due already, the
/// permits that can still be given back are given back. A claimed reservation that is dropped
/// without being settled has used all of its permits.
///
/// # Examples
///
/// A reservation that is claimed when it is due:
///
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, Rate, RateLimiter, SmoothBursty};
///
/// let clock = ManualClock::new();
/// let policy = SmoothBursty::new(Rate::per_second(5));
/// let limiter = RateLimiter::with_clock(policy, clock.clone());
/// limiter.try_acquire()?;
/// let mut reservation = limiter.reserve(1)?;
/// assert_eq!(reservation.due_in(), Duration::from_millis(200));
/// assert!(!reservation.claim());
/// clock.advance(Duration::from_millis(200));
/// assert!(reservation.claim());
/// # Ok::<(), tidegate::Refusal>(())
/// ```
///
/// An estimate that is settled:
///
/// ```
/// use tidegate::{Rate, RateLimiter, Refusal, TokenBucket, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Refusal> {
/// let policy = TokenBucket::new(Rate::per_minute(1000), 1000);
/// let tokens = RateLimiter::with_clock(policy, TokioClock::new());
/// let mut reservation = tokens.reserve(800)?;
/// (&mut reservation).await?;
/// assert_eq!(tokens.status().available, 200);
/// reservation.settle(300); // gives back 500
/// assert_eq!(tokens.status().available, 700);
///
/// let mut reservation = tokens.reserve(100)?;
/// (&mut reservation).await?;
/// reservation.settle(650); // charges 550 more
/// assert_eq!(tokens.status().available, 50);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a reservation cancels it: its permits go to the next in line"]
pub struct Reservation<P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    pending: OwnedPending<Single<P>, C>,
    /// What the grant took, once the reservation is claimed.
    claimed: Option<(Grant, SettleableGrant<P, C>)>,
}

impl<P: Policy, C: Timer> Reservation<P, C> {
    pub(super) fn new(shared: Arc<Shared<Single<P>, C>>, wait: Progress<u32>) -> Self {
        let mut this = Reservation { pending: Pending::new(shared, wait), claimed: None };
        if this.pending.wait.is_done() {
            // In shadow mode a refused request passes, and takes nothing.
            this.keep(Receipt { waited: Nanos::ZERO, granted: None });
        }
        this
    }

    /// Keeps the grant and what it took.
    fn keep(&mut self, receipt: Receipt<P::Charge>) -> Grant {
        let grant = self.pending.grant(&receipt);
        let (n, shared) = (*self.pending.ask(), self.pending.shared.clone());
        let share = SettleableGrant { shared, n, grant: receipt.granted.and_then(Granted::tracked) };
        self.claimed = Some((grant, share));
        grant
    }

    /// Returns how long until the reservation is due, if nothing changes; zero if it is due or was
    /// claimed. [`Duration::MAX`] means never, or that it was refused.
    ///
    /// A dropped wait or a new rate may change the result.
    #[must_use]
    pub fn due_in(&self) -> Duration {
        if self.pending.wait.is_done() && self.claimed.is_none() {
            return Duration::MAX;
        }
        self.pending.shared.due_in(&self.pending.wait)
    }

    /// Takes the permits if they are due. Returns whether the caller has them, from this claim or
    /// an earlier one.
    ///
    /// A reservation that was refused while it waited, because it could not be served
    /// [within](crate::Request::within) its time, returns `false` permanently. Awaiting it returns
    /// the refusal, if it was not claimed before.
    pub fn claim(&mut self) -> bool {
        if let Some(Ok(receipt)) = self.pending.claim() {
            self.keep(receipt);
        }
        self.claimed.is_some()
    }

    /// Blocks the calling thread until the reservation is due, and claims it. The [`Grant`] reports
    /// the time from the reservation to the claim. A second claim returns the same grant again.
    ///
    /// Do not call it from a task, because it blocks the executor's thread. It needs no runtime.
    ///
    /// # Errors
    ///
    /// Like awaiting it, and [`Refusal::Cancelled`] if the call runs under a
    /// [`CancelToken`](crate::CancelToken) that is cancelled. Then the reservation keeps its
    /// position.
    pub fn blocking_claim(&mut self) -> Result<Grant, Refusal> {
        if let Some((grant, _)) = self.claimed {
            return Ok(grant);
        }
        let receipt = blocking::acquire(&mut self.pending)?;
        Ok(self.keep(receipt))
    }

    /// Settles the reservation with the number of permits that were really used, for a cost that
    /// was estimated. If fewer were used than reserved, the limiter gets the rest back, as if it
    /// had never been taken. If more were used, they are charged. Waiters move at once.
    ///
    /// Permits that would have overflowed by now, because the limiter would have been full, are not
    /// given back. If several grants are settled late, the limiter may give back fewer permits than
    /// that, never more. It does not see which permits callers take without a reservation and
    /// without waiting. If there are such callers, a bucket also gives back less: the unused
    /// permits, less the permits that accrued since the grant. If more permits are charged than are
    /// available, the limiter owes the rest, and later requests wait for them. The policy defines
    /// what it can give back and owe; see [`Policy::unspent`] and [`Policy::debit`].
    ///
    /// A reservation that is due and not claimed is settled like a claimed one. One that is settled
    /// before it is due gives up its position, and all used permits are charged: after the requests
    /// behind it that are due without it have been served. An [exempt](crate::Request::exempt)
    /// reservation charges nothing.
    pub fn settle(mut self, used: u32) {
        let mut panic = None;
        if used > 0 {
            // Otherwise its permits would first go to the next in line.
            claim_to_settle(&mut panic, || self.claim());
        }
        if let Some((_, share)) = self.claimed.take() {
            run(&mut panic, || share.settle(used));
        } else {
            let exempt = self.pending.wait.is_exempt();
            // If an observer panicked, the permits of the grant are used already.
            let spent = if self.pending.wait.is_spent() { self.permits() } else { 0 };
            run(&mut panic, || self.pending.leave());
            if used > spent && !exempt {
                run(&mut panic, || self.pending.shared.debit(used - spent));
            }
        }
        resume_panic(panic);
    }

    /// Takes back the whole reservation, as far as possible: for a call that failed or was not
    /// made. Like [`settle`](Reservation::settle) with 0.
    pub fn settle_unused(self) {
        self.settle(0);
    }

    pub(crate) fn status(&self) -> Status {
        self.pending.shared.status()
    }

    /// Returns the number of permits reserved. For a request for [up to](crate::Request::up_to) a
    /// number, this is the number that it waits for, and after the claim the number that it got.
    #[must_use]
    pub fn permits(&self) -> u32 {
        *self.pending.ask()
    }
}

/// Waits until the reservation is due and claims it. The [`Grant`] reports the time from the
/// reservation to the claim. A second claim returns the same grant again.
///
/// Await `&mut reservation` to keep it, for example to settle it.
///
/// # Errors
///
/// - [`Refusal::Limited`], or [`Refusal::Paused`] during a pause, if the reservation can no longer
///   be served [within](crate::Request::within) its time.
/// - [`Refusal::ExceedsLimit`] if the limit was lowered below it.
/// - [`Refusal::Closed`] if the limiter was [closed](crate::RateLimiter::close).
///
/// # Panics
///
/// With the default clock, if it must wait in a tokio runtime whose time driver is disabled; or if
/// it is polled again after it was refused.
impl<P: Policy, C: Timer> Future for Reservation<P, C> {
    type Output = Result<Grant, Refusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some((grant, _)) = this.claimed {
            return Poll::Ready(Ok(grant));
        }
        let answer = ready!(this.pending.poll(Poller::Task(context.waker())));
        Poll::Ready(answer.map(|receipt| this.keep(receipt)))
    }
}

/// A charge is never pinned.
impl<P: Policy, C: Timer> Unpin for Reservation<P, C> {}

impl<P: Policy, C: Timer> fmt::Debug for Reservation<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("permits", self.pending.ask()).finish_non_exhaustive()
    }
}
