//! A [`RateLimiter`] without type parameters.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::all_of::{AllPermits, AllRefusal, AllRequest, AllStatus};
use crate::any_limiter::{AcquireAny, AnyLimiter, AnyReservation, Limiter, Place};
use crate::clock::Timer;
use crate::grant::Grant;
use crate::limiter::{Pause, RateLimiter, Reservation};
use crate::policy::Policy;
use crate::request::Request;
use crate::status::Status;

/// The name of a limiter that has no members, where one is told or asked for.
pub(super) const NAME: &str = "limit";

/// What the request asks of a limiter that has no members, and so no names.
pub(super) fn alone(request: &AllRequest<'_>) -> Result<Request, AllRefusal> {
    match request.costs().next() {
        Some((name, _)) => Err(AllRefusal::NoMember { name: name.into(), members: Box::default() }),
        None => Ok(request.to_request()),
    }
}

/// The status of a limiter that has no members.
pub(super) fn status_of(status: Status) -> AllStatus {
    let Status { waiting, paused_for, .. } = status;
    AllStatus { waiting, paused_for, members: vec![(NAME.into(), status)] }
}

/// Refuses a name that is not that of a limiter that has no members.
pub(super) fn check_name(name: &str) -> Result<(), AllRefusal> {
    if name == NAME {
        return Ok(());
    }
    Err(AllRefusal::NoMember { name: name.into(), members: Box::new([NAME.into()]) })
}

/// How many permits are charged to a limiter that has no members.
pub(super) fn charged(costs: &AllRequest<'_>) -> Result<u32, AllRefusal> {
    let unnamed = costs.others().unwrap_or(1);
    costs.costs().try_fold(unnamed, |_, (name, n)| check_name(name).map(|()| n))
}

impl<P: Policy, C: Timer> Limiter for RateLimiter<P, C> {
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        Ok(RateLimiter::try_acquire_many(self, alone(request)?)?.into())
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        let wait = alone(request).map(|request| self.acquire_owned(request));
        AcquireAny::new(async { Ok(wait?.await?.into()) })
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        Ok(self.blocking_acquire_many(alone(request)?)?.into())
    }

    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        Ok(AnyReservation::new(Single(RateLimiter::reserve(self, alone(request)?)?)))
    }

    fn status(&self) -> AllStatus {
        status_of(RateLimiter::status(self))
    }

    fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        RateLimiter::pause(self, pause);
        Ok(())
    }

    fn resume(&self) -> bool {
        RateLimiter::resume(self)
    }

    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        RateLimiter::debit(self, charged(costs)?);
        Ok(())
    }

    fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal> {
        check_name(name)?;
        Ok(RateLimiter::keep_at_most(self, permits))
    }

    fn close(&self) -> Result<bool, AllRefusal> {
        Ok(RateLimiter::close(self))
    }

    fn is_closed(&self) -> bool {
        RateLimiter::is_closed(self)
    }
}

/// The place of one limiter.
pub(super) struct Single<P: Policy, C: Timer>(pub(super) Reservation<P, C>);

impl<P: Policy, C: Timer> Future for Single<P, C> {
    type Output = Result<Grant, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.get_mut().0).poll(context).map_err(AllRefusal::from)
    }
}

impl<P: Policy, C: Timer> Place for Single<P, C> {
    fn due_in(&self) -> Duration {
        self.0.due_in()
    }

    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        let reserved = self.0.permits();
        let _ = alone(used)?;
        self.0.settle(used.others().unwrap_or(reserved));
        Ok(())
    }
}

impl<P: Policy, C: Timer> From<RateLimiter<P, C>> for AnyLimiter {
    fn from(limiter: RateLimiter<P, C>) -> AnyLimiter {
        AnyLimiter::new(limiter)
    }
}
