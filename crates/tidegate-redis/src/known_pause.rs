//! A pause that this process knows of, for its decisions while the store is away.

use std::sync::Mutex;
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
    told: Option<Instant>,
}

impl KnownPause {
    /// Begins a pause of this process, or extends it.
    pub(crate) fn begin(&self, span: Duration) {
        let ends = &mut lock(&self.0).own;
        *ends = end_of(span).max(*ends);
    }

    /// Records the remaining time of a pause that the store reported: zero if there is none. The
    /// message of a pause that this process asked for may still be on its way.
    pub(crate) fn told(&self, rest: Duration) {
        lock(&self.0).told = if rest.is_zero() { None } else { end_of(rest) };
    }

    pub(crate) fn end(&self) {
        *lock(&self.0) = Ends::default();
    }

    /// The refusal of a request in the pause.
    pub(crate) fn refusal(&self) -> Option<AllRefusal> {
        let ends = {
            let Ends { own, told } = *lock(&self.0);
            own.max(told)
        };
        let rest = ends?.saturating_duration_since(Instant::now());
        let retry_after = Nanos::from_duration(pause_left(rest));
        (!rest.is_zero()).then(|| AllRefusal::from(Refusal::Paused { retry_after }).as_degraded())
    }
}

/// A pause without an end outlasts any process.
fn end_of(span: Duration) -> Option<Instant> {
    let now = Instant::now();
    now.checked_add(span).or_else(|| now.checked_add(Duration::from_secs(u32::MAX.into())))
}
