//! A [`RateLimiter`] without type parameters.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::all_of::{AllPermits, AllRefusal, AllRequest, AllStatus};
use crate::any_limiter::{AcquireAny, AnyReservation, Limiter, Reserved};
use crate::clock::Timer;
use crate::error::Refusal;
use crate::grant::Grant;
use crate::limiter::{Pause, RateLimiter, Reservation};
use crate::policy::Policy;
use crate::request::Request;
use crate::status::Status;

/// The name of a limiter that has no members, wherever a name is reported or required.
pub(super) const NAME: &str = "limit";

/// Returns the request to a limiter that has no members. A cost by its name is all or nothing, like
/// the cost of a member.
pub(super) fn single_request(request: &AllRequest<'_>) -> Result<Request, AllRefusal> {
    let asked = request.to_request();
    match request.costs().next() {
        Some(_) => cost(request, 1).map(|n| Request { permits: n, most: n, ..asked }),
        None => Ok(asked),
    }
}

/// Returns the cost that a request names, or its cost for other members, or `unset`.
fn cost(request: &AllRequest<'_>, unset: u32) -> Result<u32, AllRefusal> {
    let unnamed = request.others().unwrap_or(unset);
    request.costs().try_fold(unnamed, |_, (name, n)| check_name(name).map(|()| n))
}

/// Returns the decision of a limiter without members, with its status.
#[cold]
pub(super) fn with_status(
    (answer, status): (Result<Grant, Refusal>, Status),
) -> Result<AllPermits, AllRefusal> {
    match answer {
        // A request that passed without permits gets no status.
        Ok(grant) if grant.left().is_none() => Ok(grant.into()),
        Ok(grant) => Ok(AllPermits::from(grant).with_left(status_of(status))),
        Err(refusal) => Err(AllRefusal::from(refusal).with_left(status_of(status))),
    }
}

/// Returns the decision of a limiter without members on a request that could wait, with the permits
/// left if the request asks for them.
pub(super) fn waited(
    request: &Request,
    answer: Result<Grant, Refusal>,
    status: impl FnOnce() -> Status,
) -> Result<AllPermits, AllRefusal> {
    let grant = match answer {
        Ok(grant) => grant,
        Err(refusal) => return Err(refused(request, refusal, status)),
    };
    Ok(match grant.left() {
        Some(left) => AllPermits::from(grant).with_left(status_of(status().with_left(left))),
        None => grant.into(),
    })
}

/// Returns the refusal by a limiter without members of a request that could wait, with the permits
/// left if the request asks for them.
pub(super) fn refused(request: &Request, refusal: Refusal, status: impl FnOnce() -> Status) -> AllRefusal {
    if !request.wants_left {
        return refusal.into();
    }
    let status = match (refusal, status()) {
        (Refusal::Limited { .. } | Refusal::Paused { .. }, met) => met.as_refused(request.permits, None),
        (_, met) => met,
    };
    AllRefusal::from(refusal).with_left(status_of(status))
}

/// Returns the status of a limiter that has no members.
pub(super) fn status_of(status: Status) -> AllStatus {
    let Status { waiting, paused_for, .. } = status;
    AllStatus { waiting, paused_for, members: vec![(NAME.into(), status)] }
}

/// Refuses a name that is not the name of a limiter that has no members.
pub(super) fn check_name(name: &str) -> Result<(), AllRefusal> {
    if name == NAME {
        return Ok(());
    }
    Err(AllRefusal::NoMember { name: name.into(), members: Box::new([NAME.into()]) })
}

/// Returns how many permits are charged to a limiter that has no members, or given back to it.
pub(super) fn charged(costs: &AllRequest<'_>) -> Result<u32, AllRefusal> {
    cost(costs, 1)
}

impl<P: Policy, C: Timer> Limiter for RateLimiter<P, C> {
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        let request = single_request(request)?;
        if request.wants_left {
            return with_status(self.try_acquire_with_status(request));
        }
        Ok(RateLimiter::try_acquire_many(self, request)?.into())
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        let wait =
            single_request(request).map(|request| (self.acquire_owned(request), request, self.clone()));
        AcquireAny::new(async {
            let (wait, request, limiter) = wait?;
            waited(&request, wait.await, || RateLimiter::status(&limiter))
        })
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        let request = single_request(request)?;
        waited(&request, self.blocking_acquire_many(request), || RateLimiter::status(self))
    }

    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        let (request, status) = (single_request(request)?, || RateLimiter::status(self));
        match RateLimiter::reserve(self, request) {
            Ok(reservation) => Ok(AnyReservation::new(Single { reservation, left: None })),
            Err(refusal) => Err(refused(&request, refusal, status)),
        }
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

    fn refund(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        RateLimiter::refund(self, charged(costs)?);
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

/// The reservation of a single limiter.
pub(super) struct Single<P: Policy, C: Timer> {
    pub(super) reservation: Reservation<P, C>,
    /// What the grant left, if the request asked for that.
    pub(super) left: Option<Status>,
}

impl<P: Policy, C: Timer> Single<P, C> {
    /// Keeps what the grant left.
    fn keep(&mut self, answer: Result<Grant, Refusal>) -> Result<Grant, AllRefusal> {
        let grant = answer?;
        self.left = grant.left().map(|left| self.reservation.status().with_left(left)).or(self.left);
        Ok(grant)
    }
}

impl<P: Policy, C: Timer> Future for Single<P, C> {
    type Output = Result<Grant, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let answer = ready!(Pin::new(&mut this.reservation).poll(context));
        Poll::Ready(this.keep(answer))
    }
}

impl<P: Policy, C: Timer> Reserved for Single<P, C> {
    fn due_in(&self) -> Duration {
        self.reservation.due_in()
    }

    fn blocking_claim(&mut self) -> Result<Grant, AllRefusal> {
        let answer = self.reservation.blocking_claim();
        self.keep(answer)
    }

    fn left(&self) -> Option<AllStatus> {
        self.left.map(status_of)
    }

    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        let used = cost(used, self.reservation.permits())?;
        self.reservation.settle(used);
        Ok(())
    }
}
