//! A pause that this process knows of, for its decisions while the store is away.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{AllRefusal, Nanos, Refusal};
use tokio::time::Instant;

use crate::lock::lock;
use crate::script::pause_left;

/// The end of the pause, if there is one.
#[derive(Debug, Default)]
pub(crate) struct KnownPause(Mutex<Ends>);

#[derive(Debug, Default)]
struct Ends {
    /// The end of the pause that this process asked for.
    own: Option<Instant>,
    /// The end of the pause that the store last reported.
    reported: Option<Instant>,
    /// The number of messages that end the pause and have no outcome yet.
    ending: u64,
    /// The number of such messages that had their outcome.
    ended: u64,
}

/// A message that ends the pause, until its outcome. The replies to calls that left before that
/// outcome may still report the pause.
pub(crate) struct Ending(Arc<KnownPause>);

impl KnownPause {
    /// Begins a pause of this process, or extends it.
    pub(crate) fn begin(&self, span: Duration) {
        let ends = &mut lock(&self.0).own;
        *ends = end_of(span).max(*ends);
    }

    /// Returns how many times this process has ended a pause.
    pub(crate) fn ended(&self) -> u64 {
        lock(&self.0).ended
    }

    /// Records the remaining time of a pause that the store reported: zero if there is none. The
    /// message of a pause that this process asked for may still be on its way. `ended` is the value
    /// of [`ended`](KnownPause::ended) when the call left that the store replied to.
    pub(crate) fn reported(&self, ended: u64, rest: Duration) {
        let ends = &mut *lock(&self.0);
        if ends.ending == 0 && ends.ended == ended {
            ends.reported = if rest.is_zero() { None } else { end_of(rest) };
        }
    }

    /// Ends the pause for this process, before the message leaves that ends it for all.
    pub(crate) fn end(self: &Arc<KnownPause>) -> Ending {
        let ends = &mut *lock(&self.0);
        (ends.own, ends.reported) = (None, None);
        ends.ending += 1;
        Ending(self.clone())
    }

    /// The refusal of a request in the pause.
    pub(crate) fn refusal(&self) -> Option<AllRefusal> {
        let ends = {
            let Ends { own, reported, .. } = *lock(&self.0);
            own.max(reported)
        };
        let rest = ends?.saturating_duration_since(Instant::now());
        let retry_after = Nanos::from_duration(pause_left(rest));
        (!rest.is_zero()).then(|| AllRefusal::from(Refusal::Paused { retry_after }).as_degraded())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let ends = &mut *lock(&self.0.0);
        ends.ending -= 1;
        ends.ended += 1;
    }
}

/// A pause without an end outlasts any process.
fn end_of(span: Duration) -> Option<Instant> {
    let now = Instant::now();
    now.checked_add(span).or_else(|| now.checked_add(Duration::from_secs(u32::MAX.into())))
}
