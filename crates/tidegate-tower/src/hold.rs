//! [`Hold`]: the permits or the estimate that a call keeps until it is over.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use http::{HeaderMap, StatusCode};
use tidegate::{AllPermits, AllRequest, AnyReservation};
use tidegate_http::obey::Call;

/// The permits or the estimate that a call keeps until it is over. Dropping it ends the call:
/// permits that are counted while in use are given back, and an estimate is settled.
#[derive(Default)]
pub(crate) struct Hold(Held);

#[derive(Default)]
enum Held {
    #[default]
    Nothing,
    /// Kept for its drop.
    Permits(#[expect(dead_code)] AllPermits),
    /// An estimate, and the permits that were used if they are known. Otherwise the estimate is the
    /// cost. The lock is never taken: it only lets threads share the body that keeps the estimate.
    Estimate(Box<(Mutex<AnyReservation>, Option<Used>)>),
    /// Kept for its drop, and for trailers.
    Call(Box<Call>),
}

/// The permits that a call has used.
pub(crate) enum Used {
    /// The whole estimate goes back, also that of a limit with a default cost.
    Nothing,
    Costs(AllRequest<'static>),
}

impl Hold {
    pub(crate) fn permits(permits: AllPermits) -> Hold {
        Hold(Held::Permits(permits))
    }

    pub(crate) fn estimate(reservation: AnyReservation) -> Hold {
        Hold(Held::Estimate(Box::new((Mutex::new(reservation), None))))
    }

    /// Holds a call to a server that is obeyed, after its response.
    pub(crate) fn call(call: Call) -> Hold {
        Hold(Held::Call(Box::new(call)))
    }

    /// Returns whether there is an estimate to settle.
    pub(crate) fn is_estimate(&self) -> bool {
        matches!(self.0, Held::Estimate(_))
    }

    /// Sets the permits that the call has used. They are settled when the call ends.
    pub(crate) fn settle(&mut self, used: Used) {
        if let Held::Estimate(estimate) = &mut self.0 {
            estimate.1 = Some(used);
        }
    }

    /// Obeys the trailers of a gRPC response. The headers were obeyed before.
    pub(crate) fn obey_trailers(&mut self, trailers: &HeaderMap) {
        if let Held::Call(call) = &mut self.0
            && trailers.contains_key("grpc-status")
        {
            call.obey(StatusCode::OK, trailers);
        }
    }

    /// Ends the call.
    pub(crate) fn end(&mut self) {
        if let Held::Estimate(estimate) = std::mem::take(&mut self.0)
            && let (reservation, Some(used)) = *estimate
        {
            let reservation = reservation.into_inner().unwrap_or_else(PoisonError::into_inner);
            match used {
                Used::Nothing => reservation.settle_unused(),
                // If a cost names an unknown limit, the estimate is charged.
                Used::Costs(costs) => _ = reservation.settle(costs),
            }
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Held::Nothing => "Nothing",
            Held::Permits(_) => "Permits",
            Held::Estimate(_) => "Estimate",
            Held::Call(_) => "Call",
        })
    }
}
