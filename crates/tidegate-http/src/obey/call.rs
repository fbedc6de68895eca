//! A call in flight, and the effect of its response.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tidegate::{AllPermits, AllRefusal, AllRequest, AnyReservation};

use super::handle::Obey;
use super::state::Ticket;
use crate::read::ResponseLimits;

/// A call to a server, from its permits to its response.
///
/// The call counts as in flight until [`obey`](Call::obey) is called or the call is dropped; a
/// leaked call counts as in flight forever. Permits of a limiter that counts permits in use are
/// given back when the call is dropped.
///
/// Drop a call without a response from its server: the connection failed, or another server
/// responded after a redirect. To keep its permits, obey limits that are not
/// [trusted](ResponseLimits::trusted) instead: they only end the call.
#[derive(Debug)]
#[must_use = "pass the response of the server to `obey`: dropping the call means that there was no response"]
pub struct Call {
    obey: Obey,
    ticket: Ticket,
    waited: Duration,
    held: Held,
}

/// What a call holds until it ends.
#[derive(Debug)]
pub(super) enum Held {
    /// The call does not hold its permits.
    Nothing,
    /// Held only to be dropped with the call.
    Permits(#[expect(dead_code)] AllPermits),
    /// The mutex is never locked: it only makes the call `Sync`.
    Reservation(Mutex<AnyReservation>),
}

/// The effect of a response.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Obeyed {
    /// The limits that the server reported. Absolute timestamps are left out if the response has no
    /// `Date`.
    pub answer: ResponseLimits,
    /// How long the limiter pauses, including the jitter.
    pub paused_for: Option<Duration>,
    /// How long the server asks the client to pause. It is longer than `paused_for` if the
    /// [cap](super::Options::max_pause) cut the pause; then the server may still refuse.
    pub asked_for: Option<Duration>,
    /// The error of a limiter that did not carry out the response: a closed limiter does not pause.
    pub error: Option<AllRefusal>,
}

impl Call {
    pub(super) fn new(obey: Obey, ticket: Ticket, waited: Duration, held: Held) -> Self {
        Self { obey, ticket, waited, held }
    }

    /// Obeys the response of the server: pauses the limiter, or lowers its available permits. The
    /// call is no longer in flight.
    ///
    /// A gRPC server mostly sends its status in trailers: call this again with status 200 and the
    /// trailers. Without them, the call does not count as a success.
    pub fn obey(&mut self, status: StatusCode, headers: &HeaderMap) -> Obeyed {
        self.obey.obey(&mut self.ticket, status, headers, None)
    }

    /// Obeys the response of a server that also reports limits in the body. See
    /// [`Reader::read_with_body`](crate::read::Reader::read_with_body).
    pub fn obey_with_body(&mut self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Obeyed {
        self.obey.obey(&mut self.ticket, status, headers, Some(body))
    }

    /// Obeys limits that were read elsewhere, for example from a body. The call counts as a success,
    /// unless these limits are those of a refusal, or the response that was obeyed before is no
    /// success.
    pub fn obey_limits(&mut self, limits: ResponseLimits) -> Obeyed {
        self.obey.obey_limits(&mut self.ticket, limits)
    }

    /// Returns the time that the call waited for its permits, the sum of all its waits.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Ends a call that was [reserved](Obey::reserve), and reports how many permits it really used:
    /// a number, or costs by name. The unused permits go back, and a higher cost is charged. For a
    /// limit that is not named, the reserved permits count as used. If the call is dropped instead,
    /// all its reserved permits count as used.
    ///
    /// The number of units that the server allows does not rise: the server counts in its own way,
    /// and reports its count in its responses.
    ///
    /// A call that was not reserved has used what it acquired: it ends, and nothing else changes.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with an unknown name; then the reserved permits are the
    /// cost.
    pub fn settle<'a>(mut self, used: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Reservation(reservation) => {
                reservation.into_inner().unwrap_or_else(PoisonError::into_inner).settle(used)
            }
            Held::Nothing | Held::Permits(_) => Ok(()),
        }
    }

    /// Ends a call that was reserved and not made: all its reserved permits go back. Like
    /// [`settle`](Call::settle) with 0 for each limit.
    pub fn settle_unused(mut self) {
        if let Held::Reservation(reservation) = std::mem::replace(&mut self.held, Held::Nothing) {
            reservation.into_inner().unwrap_or_else(PoisonError::into_inner).settle_unused();
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.ticket.is_open() {
            self.obey.end_call(&mut self.ticket);
        }
    }
}
