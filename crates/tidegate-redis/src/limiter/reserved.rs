//! A place that is booked in the store, as a reservation of the core.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::{AllRefusal, AllRequest, AllStatus, AnyReservation, Clock, DefaultClock, Grant, Nanos, Place};

use crate::limiter::StoreLimiter;
use crate::limiter::request::{Ask, grant};
use crate::script::Operation;
use crate::set::{Booking, Costs};

/// A place that is booked in the store.
pub(super) struct Reserved {
    of: StoreLimiter,
    /// `None` if it is free.
    booking: Option<Booking>,
    costs: Costs,
    grant: Grant,
    clock: DefaultClock,
    due: Nanos,
    wait: Pin<Box<dyn Future<Output = Result<(), AllRefusal>> + Send>>,
    /// The answer, once it was given.
    claimed: Option<Result<Grant, AllRefusal>>,
    is_degraded: bool,
}

impl Reserved {
    pub(super) fn new(of: &StoreLimiter, ask: &Ask, booking: Booking) -> Reserved {
        let (grant, wait) = (grant(&of.0, ask, &booking), booking.reply.wait);
        Reserved { costs: booking.permits(), ..Reserved::made(of, grant, wait) }.with(booking)
    }

    pub(super) fn free(of: &StoreLimiter) -> Reserved {
        Reserved::made(of, Grant::new(0, Nanos::ZERO), Duration::ZERO)
    }

    /// Without the store.
    pub(super) fn degraded(self) -> Reserved {
        Reserved { is_degraded: true, ..self }
    }

    fn with(mut self, booking: Booking) -> Reserved {
        self.booking = Some(booking);
        self
    }

    fn made(of: &StoreLimiter, grant: Grant, wait: Duration) -> Reserved {
        let clock = DefaultClock::new();
        let due = clock.now().saturating_add(Nanos::from_duration(wait));
        let this = of.clone();
        let of = of.clone();
        let costs = vec![(0, 0); of.0.members.len()];
        // From now on, and not from the first poll.
        let of_wait = DefaultClock::clone(&clock);
        let wait =
            Box::pin(async move { this.sleep(due.saturating_since(of_wait.now()).as_duration()).await });
        Reserved { of, booking: None, costs, grant, clock, due, wait, claimed: None, is_degraded: false }
    }
}

impl Future for Reserved {
    type Output = Result<Grant, AllRefusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(answer) = &this.claimed {
            return Poll::Ready(answer.clone());
        }
        let Poll::Ready(answer) = this.wait.as_mut().poll(context) else {
            return Poll::Pending;
        };
        if answer.is_ok()
            && let Some(booking) = &mut this.booking
        {
            booking.keep();
        }
        let answer = answer.map(|()| this.grant);
        this.claimed = Some(answer.clone());
        Poll::Ready(answer)
    }
}

impl Place for Reserved {
    fn due_in(&self) -> Duration {
        self.due.saturating_since(self.clock.now()).as_duration()
    }

    fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    fn settle(mut self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        // What the request does not tell was used as reserved.
        let mut told = self.costs.clone();
        if let Some(others) = used.others() {
            told = vec![(others.into(), others.into()); told.len()];
        }
        for (name, n) in used.costs() {
            match self.of.0.find(name) {
                Ok(i) => told[i] = (n.into(), n.into()),
                Err(refusal) => {
                    if let Some(booking) = &mut self.booking {
                        booking.keep();
                    }
                    return Err(refusal);
                }
            }
        }
        let Some(booking) = &mut self.booking else { return Ok(()) };
        if booking.is_shadow() {
            return Ok(());
        }
        booking.keep();
        let difference = |more: &dyn Fn(u64, u64) -> u64| -> Costs {
            let pairs = self.costs.iter().zip(&told);
            pairs.map(|((reserved, _), (used, _))| more(*reserved, *used)).map(|n| (n, n)).collect()
        };
        let unused = difference(&|reserved, used| reserved.saturating_sub(used));
        let beyond = difference(&|reserved, used| used.saturating_sub(reserved));
        for (operation, costs) in [(Operation::Refund, unused), (Operation::Debit, beyond)] {
            if costs.iter().any(|(n, _)| *n > 0) {
                self.of.0.tell(operation, &costs, &[]);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("due", &self.due).finish_non_exhaustive()
    }
}

/// A place in the share of this process.
pub(super) struct Degraded(pub(super) AnyReservation);

impl Future for Degraded {
    type Output = Result<Grant, AllRefusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(AllRefusal::as_degraded)
    }
}

impl Place for Degraded {
    fn due_in(&self) -> Duration {
        self.0.due_in()
    }

    fn left(&self) -> Option<AllStatus> {
        self.0.left()
    }

    fn is_degraded(&self) -> bool {
        true
    }

    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.0.settle(used.clone())
    }
}
