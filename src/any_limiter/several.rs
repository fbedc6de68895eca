//! An [`AllOf`] without type parameters.

use std::time::Duration;

use crate::all_of::{AllOf, AllPermits, AllRefusal, AllRequest, AllReservation, AllStatus};
use crate::any_limiter::{AcquireAny, AnyReservation, Limiter, Reserved};
use crate::clock::Timer;
use crate::grant::Grant;
use crate::limiter::Pause;

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
        AllOf::reserve(self, request.clone()).map(AnyReservation::new)
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

impl<C: Timer> Reserved for AllReservation<C> {
    fn due_in(&self) -> Duration {
        self.due_in()
    }

    fn blocking_claim(&mut self) -> Result<Grant, AllRefusal> {
        self.blocking_claim()
    }

    fn left(&self) -> Option<AllStatus> {
        self.left()
    }

    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        AllReservation::settle(*self, used.clone())
    }

    fn settle_unused(self: Box<Self>) {
        AllReservation::settle_unused(*self);
    }
}
