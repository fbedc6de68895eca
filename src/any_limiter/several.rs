//! An [`AllOf`] without type parameters.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::all_of::{AllOf, AllPermits, AllRefusal, AllRequest, AllReservation, AllStatus};
use crate::any_limiter::{AcquireAny, AnyReservation, Limiter, Reserved};
use crate::clock::Timer;
use crate::grant::Grant;
use crate::limiter::Pause;
use crate::time::Nanos;

impl<C: Timer> Limiter for AllOf<C> {
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        self.try_acquire_many(request.clone())
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        AcquireAny::new(self.acquire_many(request.clone()))
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        self.blocking_acquire_many(request.clone())
    }

    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        Ok(AnyReservation::new(Several(AllOf::reserve(self, request.clone())?)))
    }

    fn status(&self) -> AllStatus {
        AllOf::status(self)
    }

    fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        AllOf::pause(self, pause);
        Ok(())
    }

    fn resume(&self) -> bool {
        AllOf::resume(self)
    }

    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        AllOf::debit(self, costs.clone())
    }

    fn refund(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        AllOf::refund(self, costs.clone())
    }

    fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal> {
        AllOf::keep_at_most(self, name, permits)
    }

    fn close(&self) -> Result<bool, AllRefusal> {
        Ok(AllOf::close(self))
    }

    fn is_closed(&self) -> bool {
        AllOf::is_closed(self)
    }
}

/// The reservation of a composite.
struct Several<C: Timer>(AllReservation<C>);

impl<C: Timer> Several<C> {
    fn grant(&self, waited: Duration) -> Grant {
        Grant::new(self.0.permits(), Nanos::from_duration(waited))
    }
}

impl<C: Timer> Future for Several<C> {
    type Output = Result<Grant, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let answer = Pin::new(&mut this.0).poll(context);
        answer.map_ok(|waited| this.grant(waited))
    }
}

impl<C: Timer> Reserved for Several<C> {
    fn due_in(&self) -> Duration {
        self.0.due_in()
    }

    fn blocking_claim(&mut self) -> Result<Grant, AllRefusal> {
        self.0.blocking_claim().map(|waited| self.grant(waited))
    }

    fn left(&self) -> Option<AllStatus> {
        self.0.left()
    }

    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.0.settle_as(used)
    }
}
