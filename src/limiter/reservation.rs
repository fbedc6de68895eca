//! Reservations: a place in the queue that knows when it is due.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::{DefaultClock, Timer};
use crate::error::Refusal;
use crate::limiter::pending::{Poller, Waiting};
use crate::limiter::shared::Shared;
use crate::line::rule::Single;
use crate::policy::{Policy, SmoothBursty};

/// A place in the queue, taken at once: made by
/// [`RateLimiter::reserve`](crate::RateLimiter::reserve).
///
/// Ask it when it is due, do something else meanwhile, then [`claim`](Reservation::claim) it or
/// await it. It keeps its place whether or not anybody polls it.
///
/// # Fairness
///
/// It stands in the same queue as every other request. When its time comes it is charged, claimed
/// or not; so a reservation that nobody claims uses up its permits and delays nobody further.
///
/// # Cancel safety
///
/// Dropping it, or [`cancel`](Reservation::cancel), leaves no trace. If its time had come, what can
/// still be given back is.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, Rate, RateLimiter, SmoothBursty};
///
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(5)), clock.clone());
/// limiter.try_acquire()?;
/// let mut reservation = limiter.reserve(1)?;
/// assert_eq!(reservation.due_in(), Duration::from_millis(200));
/// assert!(!reservation.claim());
/// clock.advance(Duration::from_millis(200));
/// assert!(reservation.claim());
/// # Ok::<(), tidegate::Refusal>(())
/// ```
#[must_use = "dropping a reservation cancels it: its permits go to the next in line"]
pub struct Reservation<P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    shared: Arc<Shared<Single<P>, C>>,
    wait: Waiting<u32>,
}

impl<P: Policy, C: Timer> Reservation<P, C> {
    pub(crate) fn new(shared: Arc<Shared<Single<P>, C>>, wait: Waiting<u32>) -> Self {
        Reservation { shared, wait }
    }

    /// How long until it is due, if nothing changes; zero if it is due or was claimed.
    /// [`Duration::MAX`] means never.
    ///
    /// A dropped wait or a new rate may change the answer.
    #[must_use]
    pub fn due_in(&self) -> Duration {
        self.shared.due_in(&self.wait)
    }

    /// Takes the permits if they are due. Returns whether they are the caller's, now or since an
    /// earlier claim.
    ///
    /// From then on dropping the reservation gives nothing back.
    pub fn claim(&mut self) -> bool {
        // A reservation has no deadline, so it is never refused.
        self.shared.claim(&mut self.wait).unwrap_or(false)
    }

    /// Gives up the place, or the permits if they were not claimed. The same as dropping it.
    pub fn cancel(self) {}

    /// The number of permits reserved.
    #[must_use]
    pub fn permits(&self) -> u32 {
        *self.wait.ask()
    }
}

/// Waits until the reservation is due and claims it. Returns the time since it was made, or zero if
/// it was claimed before.
///
/// # Panics
///
/// With the default clock, if it has to wait outside of a tokio runtime.
impl<P: Policy, C: Timer> Future for Reservation<P, C> {
    type Output = Result<Duration, Refusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.wait.is_done() {
            return Poll::Ready(Ok(Duration::ZERO));
        }
        this.shared.poll(&mut this.wait, Poller::Task(context.waker())).map_ok(|(waited, _)| waited)
    }
}

impl<P: Policy, C: Timer> Drop for Reservation<P, C> {
    fn drop(&mut self) {
        self.shared.leave(&mut self.wait);
    }
}

impl<P: Policy, C: Timer> fmt::Debug for Reservation<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("permits", self.wait.ask()).finish_non_exhaustive()
    }
}
