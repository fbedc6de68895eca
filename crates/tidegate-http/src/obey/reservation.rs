//! A call that has a position in the queue, and whose cost is known later.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate::{AllRefusal, AllRequest, AnyReservation};

use super::call::Call;
use super::handle::{Obey, Tries};

/// A reservation for a call, made by [`Obey::reserve`]. Await it to begin the call.
///
/// It keeps its position in the queue whether or not it is polled.
///
/// # Cancel safety
///
/// Dropping it cancels the reservation, which leaves neither a charge nor a position in the queue.
/// A pause until the server allows this call [stays](Obey#fairness-and-cancel-safety).
///
/// # Panics
///
/// Panics if it is polled again after it was ready.
#[must_use = "dropping a reservation cancels it: its permits go to the next in line"]
pub struct CallReservation<'a> {
    obey: Obey,
    request: AllRequest<'a>,
    /// `None` once the call has begun.
    reservation: Option<AnyReservation>,
    tries: Tries,
}

impl<'a> CallReservation<'a> {
    pub(super) fn new(obey: &Obey, request: AllRequest<'a>) -> Result<Self, AllRefusal> {
        let obey = obey.current();
        let reservation = Some(obey.reserve_any(&request)?);
        let tries = Tries::new(&request);
        Ok(Self { obey, request, reservation, tries })
    }

    /// Returns the time until the permits are due, if nothing changes: zero if they are due, and
    /// [`Duration::MAX`] if they never are. A server that allows no more calls can make it longer.
    #[must_use]
    pub fn due_in(&self) -> Duration {
        self.reservation.as_ref().map_or(Duration::ZERO, AnyReservation::due_in)
    }
}

/// Waits until the permits are due, and begins the call.
///
/// # Errors
///
/// The errors of [`Obey::acquire_many`].
impl Future for CallReservation<'_> {
    type Output = Result<Call, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let reservation = this.reservation.as_mut().expect("polled after it was ready");
            let grant = ready!(Pin::new(reservation).poll(context));
            let Some(reservation) = this.reservation.take() else { continue };
            let Self { obey, request, tries, .. } = this;
            let grant = grant.map_err(|refusal| tries.refused(refusal))?;
            if let Some(call) = obey.begin_reserved(request, reservation, grant, tries)? {
                return Poll::Ready(Ok(call));
            }
            // The permits went back first, so the next reservation does not wait behind them.
            let again = obey.reserve_any(&tries.next(request));
            this.reservation = Some(again.map_err(|refusal| tries.refused(refusal))?);
        }
    }
}

impl fmt::Debug for CallReservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallReservation")
            .field("obey", &self.obey)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}
