//! A call in flight, and what its answer changed.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tidegate::{AllPermits, AllRefusal};

use super::handle::Obey;
use super::state::Ticket;
use crate::read::Answer;

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
    has_answer: bool,
    permits: Option<AllPermits>,
}

/// What an answer changed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Obeyed {
    /// What the server answered. Times of the calendar without a `Date` are left out.
    pub answer: Answer,
    /// How long the limiter was told to pause, with its jitter.
    pub paused_for: Option<Duration>,
    /// How long the server asks to pause. Longer than `paused_for` if the
    /// [cap](super::Options::cap) cut it: then the server may still refuse.
    pub asked_for: Option<Duration>,
    /// What the limiter refused to do.
    pub error: Option<AllRefusal>,
}

impl Call {
    pub(super) fn new(obey: Obey, ticket: Ticket, permits: Option<AllPermits>) -> Self {
        Self { obey, ticket, has_answer: false, permits }
    }

    /// Obeys the answer of the server: pauses the limiter, or lowers its available permits. The
    /// call is no longer in flight.
    pub fn obey(&mut self, status: StatusCode, headers: &HeaderMap) -> Obeyed {
        self.end();
        self.obey.obey(&self.ticket, status, headers, None)
    }

    /// Obeys the answer of a server that tells limits in the body, too. See
    /// [`Reader::read_with_body`](crate::read::Reader::read_with_body).
    pub fn obey_with_body(&mut self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Obeyed {
        self.end();
        self.obey.obey(&self.ticket, status, headers, Some(body))
    }

    /// Obeys an answer that was read elsewhere, for example from a body.
    pub fn obey_answer(&mut self, answer: Answer) -> Obeyed {
        self.end();
        self.obey.obey_answer(&self.ticket, answer, true)
    }

    /// The time waited for the permits.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.permits.as_ref().map_or(Duration::ZERO, AllPermits::waited)
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.has_answer, true) {
            self.obey.end(&self.ticket);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.has_answer {
            self.obey.lose(&self.ticket);
        }
    }
}
