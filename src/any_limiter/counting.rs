//! A single [`CountingLimit`] without type parameters.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::all_of::all::{Entry, Kind};
use crate::all_of::{AllOf, AllPermits, AllRefusal, AllRequest, AllReservation, AllStatus};
use crate::any_limiter::single::{NAME, charged, check_name, single_request};
use crate::any_limiter::{AcquireAny, AnyLimiter, AnyReservation, Limiter, Reserved};
use crate::clock::DefaultClock;
use crate::counting::CountingLimit;
use crate::grant::Grant;
use crate::limiter::Pause;
use crate::limiter::events::{EachEvent, Events};

/// A limit of permits in use, as the only member of a composite. The composite adds the maximum
/// waits, the priorities and the pauses that a counting limit lacks.
#[derive(Debug)]
struct InUse {
    /// Dropped first: the composite notifies a table of keys that the limit is no longer in use.
    limit: CountingLimit,
    all: AllOf<DefaultClock>,
}

impl InUse {
    fn new(limit: CountingLimit) -> InUse {
        let all = composite(&limit);
        InUse::of(limit, all)
    }

    fn of(limit: CountingLimit, all: AllOf<DefaultClock>) -> InUse {
        // The limit itself reports no permits that a composite takes, so its observer gets the
        // events of the composite. The composite keeps the limit alive. This observer does not,
        // because it is dropped after the composite has notified a table of keys that the limit is
        // no longer in use.
        let pool = Arc::downgrade(&limit.pool);
        all.observe(Arc::new(EachEvent(move |event: &dyn Fn(&dyn Events)| {
            if let Some(pool) = pool.upgrade() {
                pool.events.report(event);
            }
        })));
        InUse { limit, all }
    }
}

fn composite(limit: &CountingLimit) -> AllOf<DefaultClock> {
    AllOf::of(vec![Entry::new(NAME.into(), Kind::Counting(limit.clone()))], DefaultClock::new())
}

/// The limit of a key. It is in use until the handle and its requests have ended; then `leave` is
/// dropped.
#[cfg(feature = "keyed")]
pub(super) fn of_key(limit: CountingLimit, leave: impl Send + Sync + 'static) -> AnyLimiter {
    let all = composite(&limit).of_key(Box::new(leave));
    AnyLimiter::new(InUse::of(limit, all))
}

/// Returns the request to the composite. A part of the permits would go back separately, so a
/// request for up to a number gets the minimum that it accepts.
fn composite_request(request: &AllRequest<'_>) -> Result<AllRequest<'static>, AllRefusal> {
    let mut request = single_request(request)?;
    request.most = request.permits;
    Ok(AllRequest::from(request).cost(NAME, request.permits))
}

/// Returns the refusal of a limiter without members.
fn single_refusal(refusal: AllRefusal) -> AllRefusal {
    let left = refusal.left().cloned();
    let refusal = refusal.refusal().map_or(refusal, AllRefusal::from);
    match left {
        Some(left) => refusal.with_left(left),
        None => refusal,
    }
}

impl Limiter for InUse {
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        self.all.try_acquire_many(composite_request(request)?).map_err(single_refusal)
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        let wait = composite_request(request).map(|request| self.all.acquire_many(request));
        AcquireAny::new(async { wait?.await.map_err(single_refusal) })
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        self.all.blocking_acquire_many(composite_request(request)?).map_err(single_refusal)
    }

    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        let reservation = self.all.reserve(composite_request(request)?).map_err(single_refusal)?;
        Ok(AnyReservation::new(ReservedInUse(reservation)))
    }

    fn status(&self) -> AllStatus {
        self.all.status()
    }

    fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        self.all.pause(pause);
        Ok(())
    }

    fn resume(&self) -> bool {
        self.all.resume()
    }

    /// Charges nothing, because no call would give the permits back.
    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        charged(costs).map(|_| ())
    }

    /// Gives nothing back, because the permits go back when they are dropped.
    fn refund(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        charged(costs).map(|_| ())
    }

    /// Takes nothing, because no call would give the permits back.
    fn keep_at_most(&self, name: &str, _: u64) -> Result<u64, AllRefusal> {
        check_name(name).map(|()| 0)
    }

    fn close(&self) -> Result<bool, AllRefusal> {
        Ok(self.limit.close())
    }

    fn is_closed(&self) -> bool {
        self.limit.is_closed()
    }
}

/// A reservation of the composite.
struct ReservedInUse(AllReservation<DefaultClock>);

impl Future for ReservedInUse {
    type Output = Result<Grant, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.get_mut().0).poll(context).map_err(single_refusal)
    }
}

impl Reserved for ReservedInUse {
    fn due_in(&self) -> Duration {
        self.0.due_in()
    }

    fn blocking_claim(&mut self) -> Result<Grant, AllRefusal> {
        self.0.blocking_claim().map_err(single_refusal)
    }

    fn left(&self) -> Option<AllStatus> {
        self.0.left()
    }

    /// Gives all permits back: they are no longer in use.
    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        single_request(used).map(|_| ())
    }
}

/// A limit of permits in use only, without a rate. Its permits go back when the [`AllPermits`] or
/// the [`AnyReservation`] is dropped.
///
/// Requests of this handle are ordered by priority among each other, and a pause of this handle
/// applies only to its clones. Closing it closes the counting limit. Maximum waits are measured by
/// the default clock. Nothing can be charged to it, and a request for up to a number of permits
/// gets the minimum. The [observer](CountingLimit::observe) of the counting limit is also notified
/// of the requests and the pauses of this handle.
///
/// # Examples
///
/// ```
/// use tidegate::{AnyLimiter, CountingLimit};
///
/// let calls = CountingLimit::new(2);
/// let limiter = AnyLimiter::from(calls.clone());
/// let both = limiter.try_acquire_many(2)?;
/// assert!(limiter.try_acquire().is_err());
/// drop(both);
/// assert_eq!(calls.available(), 2);
/// # Ok::<(), tidegate::AllRefusal>(())
/// ```
impl From<CountingLimit> for AnyLimiter {
    fn from(limit: CountingLimit) -> AnyLimiter {
        AnyLimiter::new(InUse::new(limit))
    }
}
