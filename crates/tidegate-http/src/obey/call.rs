//! A call in flight, and what its answer changed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tidegate::{AllPermits, AllRefusal, AllRequest, AnyReservation};

use super::handle::Obey;
use super::state::Ticket;
use crate::read::ResponseLimits;

/// A call to a server, from its permits to its answer.
///
/// Until [`obey`](Call::obey) is called, or the call is dropped, it counts as in flight; a call
/// that is leaked does so for good. Permits that are counted while in use are given back when it is
/// dropped.
///
/// Drop a call that has no answer of its server: a connection that failed, or an answer of another
/// server after a redirect.
#[derive(Debug)]
#[must_use = "give it the answer of the server by `obey`: dropping it means that there was none"]
pub struct Call {
    obey: Obey,
    ticket: Ticket,
    waited: Duration,
    held: Held,
}

/// What a call keeps until it is over.
#[derive(Debug)]
pub(super) enum Held {
    /// Its permits are elsewhere.
    Nothing,
    /// Kept for their drop.
    Permits(#[expect(dead_code)] AllPermits),
    /// The lock is never taken: it lets threads share the call.
    Place(Mutex<AnyReservation>),
}

/// What an answer changed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Obeyed {
    /// What the server answered. Times of the calendar without a `Date` are left out.
    pub answer: ResponseLimits,
    /// How long the limiter was told to pause, with its jitter.
    pub paused_for: Option<Duration>,
    /// How long the server asks to pause. Longer than `paused_for` if the
    /// [cap](super::Options::max_pause) cut it: then the server may still refuse.
    pub asked_for: Option<Duration>,
    /// What the limiter refused to do: a closed one does not pause.
    pub error: Option<AllRefusal>,
}

impl Call {
    pub(super) fn new(obey: Obey, ticket: Ticket, waited: Duration, held: Held) -> Self {
        Self { obey, ticket, waited, held }
    }

    /// Obeys the answer of the server: pauses the limiter, or lowers its available permits. The
    /// call is no longer in flight.
    pub fn obey(&mut self, status: StatusCode, headers: &HeaderMap) -> Obeyed {
        self.obey.obey(&mut self.ticket, status, headers, None)
    }

    /// Obeys the answer of a server that tells limits in the body, too. See
    /// [`Reader::read_with_body`](crate::read::Reader::read_with_body).
    pub fn obey_with_body(&mut self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Obeyed {
        self.obey.obey(&mut self.ticket, status, headers, Some(body))
    }

    /// Obeys an answer that was read elsewhere, for example from a body.
    pub fn obey_limits(&mut self, answer: ResponseLimits) -> Obeyed {
        self.obey.obey_limits(&mut self.ticket, answer, true)
    }

    /// The time that the call waited for its permits, also where it waited several times.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Ends a call that was [reserved](Obey::reserve), and tells how many permits it really used: a
    /// number, or costs by name. The rest goes back, and a higher cost is charged. Of a limit that
    /// is not named, the reserved permits were used, and so they are if the call is dropped.
    ///
    /// What the server was told to have left does not rise: it counts in its own way, and tells so
    /// in its answers.
    ///
    /// A call that was not reserved has used what it acquired: it ends, and nothing else changes.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with a name that is not there; then what was reserved is
    /// the cost.
    pub fn settle<'a>(mut self, used: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Place(place) => place.into_inner().unwrap_or_else(PoisonError::into_inner).settle(used),
            Held::Nothing | Held::Permits(_) => Ok(()),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.ticket.is_open() {
            self.obey.lose(&mut self.ticket);
        }
    }
}
