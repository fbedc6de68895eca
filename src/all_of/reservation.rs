//! A position in the queue of an [`AllOf`](crate::AllOf), and a grant that can be settled.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::all_of::all::{All, AllCharge};
use crate::all_of::weights::Weights;
use crate::all_of::{AllRefusal, AllRequest, AllStatus, blame, left};
use crate::clock::{DefaultClock, Timer};
use crate::error::Refusal;
use crate::grant::Grant;
use crate::limiter::blocking;
use crate::limiter::pending::{OwnedPending, Pending, Poller, Progress};
use crate::limiter::settle::claim_to_settle;
use crate::limiter::shared::Shared;
use crate::line::answer::Receipt;
use crate::line::deferred::{Payload, resume_panic, run};
use crate::line::grants::{Granted, Tracked};
use crate::sync::lock;
use crate::time::Nanos;

/// A position in the queue of an [`AllOf`](crate::AllOf), taken at once by
/// [`AllOf::reserve`](crate::AllOf::reserve). It is a [`Reservation`](crate::Reservation) of
/// several limiters.
///
/// If a cost is known only afterwards, reserve an estimate, and [settle](AllReservation::settle) it
/// when the cost is known. Permits of a [`CountingLimit`](crate::CountingLimit) are in use from the
/// grant until the reservation is settled or dropped.
///
/// Await `&mut` the reservation, and keep the reservation until the work is done. A reservation
/// that is awaited by value yields a [`Grant`] and is dropped: its permits of a `CountingLimit` go
/// back before the work begins.
///
/// # Cancel safety
///
/// Dropping an unclaimed reservation leaves no trace. Dropping a claimed reservation without
/// settling it uses up all of its permits.
///
/// # Examples
///
/// ```
/// use tidegate::{
///     AllOf, AllRefusal, CountingLimit, Rate, RateLimiter, TokenBucket,
///     TokioClock,
/// };
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), AllRefusal> {
/// let clock = TokioClock::new();
/// let policy = TokenBucket::new(Rate::per_hour(10), 10);
/// let requests = RateLimiter::with_clock(policy, clock);
/// let policy = TokenBucket::new(Rate::per_hour(1000), 1000);
/// let tokens = RateLimiter::with_clock(policy, clock);
/// let in_flight = CountingLimit::new(2);
/// let api = AllOf::new("requests", &requests)
///     .with("tokens", &tokens)
///     .with_counting("in flight", &in_flight);
///
/// let mut reservation = api.reserve([("tokens", 850)])?;
/// (&mut reservation).await?;
/// // The response was shorter than expected, and the call is done.
/// reservation.settle([("tokens", 200)])?;
/// assert_eq!(tokens.status().available, 800);
/// assert_eq!(in_flight.available(), 2);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a reservation cancels it: its permits go to the next in line"]
pub struct AllReservation<C: Timer = DefaultClock> {
    /// What the reservation took, once it is claimed. Dropped before the handle to the composite,
    /// which then is the last handle to the limiters of its key.
    claimed: Option<AllCharge>,
    pending: OwnedPending<All<C>, C>,
    /// Whether the reservation is exempt: it passes and takes nothing.
    exempt: bool,
}

impl<C: Timer> AllReservation<C> {
    pub(super) fn new(shared: Arc<Shared<All<C>, C>>, wait: Progress<Weights>, exempt: bool) -> Self {
        AllReservation { pending: Pending::new(shared, wait), claimed: None, exempt }
    }

    /// Keeps what the grant took.
    fn keep(&mut self, granted: Option<Granted<AllCharge>>) {
        let charge = granted.and_then(Granted::tracked).map(|Tracked { charge, id }| {
            // Each member tracks its own grant.
            lock(&self.pending.shared.line).make_final(id);
            charge
        });
        self.claimed = Some(charge.unwrap_or_default());
    }

    /// Returns the result of the wait, and keeps what was granted.
    fn answer(&mut self, answer: Result<Receipt<AllCharge>, Refusal>) -> Result<Grant, AllRefusal> {
        match answer {
            Ok(Receipt { waited, granted }) => {
                self.keep(granted);
                Ok(self.grant(waited))
            }
            Err(refusal) => Err(blame(&self.pending.shared, self.pending.ask(), refusal, true)),
        }
    }

    /// Returns the grant of this reservation. Its number of permits is that which
    /// [`AllPermits::permits`](crate::AllPermits::permits) reports.
    fn grant(&self, waited: Nanos) -> Grant {
        Grant::new(if self.exempt { 0 } else { self.pending.ask().others }, waited)
    }

    /// Returns how long until the reservation is due, if nothing changes; zero if it is due or was
    /// claimed. [`Duration::MAX`] means that it will never be due, or that it was refused. The time
    /// at which a [`CountingLimit`](crate::CountingLimit) will have a permit is unknown and not
    /// counted: at zero, the reservation may still wait for one.
    #[must_use]
    pub fn due_in(&self) -> Duration {
        if self.pending.wait.is_done() && self.claimed.is_none() {
            return Duration::MAX;
        }
        self.pending.shared.due_in(&self.pending.wait)
    }

    /// Takes the permits if they are due. Returns whether the caller has them, from this claim or
    /// an earlier one.
    pub fn claim(&mut self) -> bool {
        if let Some(Ok(answer)) = self.pending.claim() {
            self.keep(answer.granted);
        }
        self.claimed.is_some()
    }

    /// Blocks the calling thread until the reservation is due, and claims it. The [`Grant`] is the
    /// one that awaiting the reservation returns.
    ///
    /// Do not call this method from a task: it blocks the executor's thread. It needs no runtime.
    ///
    /// # Errors
    ///
    /// The errors of awaiting the reservation, and [`Refusal::Cancelled`] if the call runs under a
    /// [`CancelToken`](crate::CancelToken) that is cancelled. Then the reservation keeps its
    /// position.
    pub fn blocking_claim(&mut self) -> Result<Grant, AllRefusal> {
        if self.claimed.is_some() {
            return Ok(self.grant(Nanos::ZERO));
        }
        let answer = blocking::acquire(&mut self.pending);
        self.answer(answer)
    }

    /// Settles the reservation by the numbers of permits that were really used of the members with
    /// these names. A member that is not named counts as having used the number that was reserved;
    /// a plain number is that of each rate limiter without a
    /// [default cost](crate::AllOf::default_cost).
    ///
    /// A rate limiter gets unused permits back, and charges permits used beyond the reservation;
    /// waiters are moved at once. The call is over: permits of a
    /// [`CountingLimit`](crate::CountingLimit) are free again, whatever number is given for it
    /// here. For a call that was not made there is
    /// [`settle_unused`](AllReservation::settle_unused).
    ///
    /// A reservation that is due and not claimed is settled like a claimed one. One that is settled
    /// before it is due gives up its position, and charges everything that was used, after the
    /// requests behind it that are due without it have been served. An
    /// [exempt](crate::AllRequest::exempt) reservation charges nothing.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] if a name is unknown. Then a claimed reservation has used the
    /// permits that were reserved. An unclaimed reservation gives up its position, and charges
    /// nothing.
    pub fn settle<'a>(mut self, used: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        let used = used.into();
        let all_used = |this: &Self| {
            let mut all = this.pending.ask().clone();
            this.pending.shared.rule.set_costs(&mut all, &used).map(|()| all)
        };
        let (mut all, mut panic) = (all_used(&self)?, None);
        if !self.exempt && all.iter().any(|n| *n > 0) {
            // Otherwise its permits would first go to the next in line. A claim may reserve more.
            claim_to_settle(&mut panic, || self.claim());
            all = all_used(&self)?;
        }
        self.used(&all, panic);
        Ok(())
    }

    /// Takes back the whole reservation, as far as possible: for a call that failed or was not
    /// made. Like [`settle`](AllReservation::settle) with 0 for each member.
    pub fn settle_unused(mut self) {
        self.used(&vec![0; self.pending.ask().len()], None);
    }

    /// Settles each member, even if a waker of another request panics. Then resumes the first
    /// panic.
    fn used(&mut self, used: &[u32], mut panic: Option<Payload>) {
        if self.exempt {
            return;
        }
        let charge = self.claimed.take();
        let mut extra = used.to_vec();
        if self.pending.wait.is_spent() {
            // An observer panicked, and the permits of the grant are used already.
            let spent = self.pending.ask().iter();
            extra.iter_mut().zip(spent).for_each(|(used, spent)| *used = used.saturating_sub(*spent));
        }
        if charge.is_none() {
            run(&mut panic, || self.pending.leave());
        }
        let AllCharge { taken, permits, .. } = charge.unwrap_or_default();
        for (index, share) in taken {
            let used = std::mem::take(&mut extra[index]);
            run(&mut panic, || share.settle(used));
        }
        run(&mut panic, || drop(permits));
        for (entry, n) in self.pending.shared.rule.members.iter().zip(extra) {
            if n > 0 {
                run(&mut panic, || entry.debit(n));
            }
        }
        resume_panic(panic);
    }

    /// Returns what the grant left in each member, once the reservation is claimed, if the request
    /// asked for it by [`AllRequest::with_left`]. Call this method right after the claim: the
    /// result ignores other grants since the claim, and includes the time that has passed since.
    #[must_use]
    pub fn left(&self) -> Option<AllStatus> {
        let charge = self.claimed.as_ref().filter(|_| self.pending.ask().wants_left && !self.exempt)?;
        Some(left(&self.pending.shared, charge))
    }

    /// Returns the number of permits of each member that were reserved, in the order in which the
    /// members were added.
    pub fn costs(&self) -> impl Iterator<Item = (&str, u32)> {
        let members = &self.pending.shared.rule.members;
        members.iter().zip(self.pending.ask().iter()).map(|(entry, n)| (entry.name.as_str(), *n))
    }
}

/// Waits until the reservation is due and claims it. The [`Grant`] has the time since the
/// reservation was made, or zero if it was claimed before.
///
/// Await `&mut reservation` to keep the reservation. A reservation that is awaited by value is
/// dropped: its permits of a [`CountingLimit`](crate::CountingLimit) go back, and its cost cannot
/// be settled.
///
/// # Errors
///
/// The errors of [`AllOf::acquire_many`](crate::AllOf::acquire_many).
///
/// # Panics
///
/// Panics with the default clock if it has to wait in a tokio runtime without a time driver. Also
/// panics if it is polled again after it was refused.
impl<C: Timer> Future for AllReservation<C> {
    type Output = Result<Grant, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.claimed.is_some() {
            return Poll::Ready(Ok(this.grant(Nanos::ZERO)));
        }
        let answer = ready!(this.pending.poll(Poller::Task(context.waker())));
        Poll::Ready(this.answer(answer))
    }
}

impl<C: Timer> fmt::Debug for AllReservation<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let costs: Vec<_> = self.costs().collect();
        f.debug_struct("AllReservation").field("costs", &costs).finish_non_exhaustive()
    }
}
