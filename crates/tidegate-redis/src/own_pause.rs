//! A pause that this process asked for, for what it decides while the store is away.

use std::sync::Mutex;
use std::time::Duration;

use tidegate::{AllRefusal, Nanos, Refusal};
use tokio::time::Instant;

use crate::lock::lock;
use crate::script::pause_left;

/// When the pause ends, if there is one.
#[derive(Debug, Default)]
pub(crate) struct OwnPause(Mutex<Option<Instant>>);

impl OwnPause {
    /// Begins a pause, or prolongs the one that there is.
    pub(crate) fn begin(&self, span: Duration) {
        let now = Instant::now();
        // A pause without an end lasts longer than a process.
        let till = now.checked_add(span).or_else(|| now.checked_add(Duration::from_secs(u32::MAX.into())));
        let mut ends = lock(&self.0);
        *ends = till.max(*ends);
    }

    pub(crate) fn end(&self) {
        *lock(&self.0) = None;
    }

    /// The refusal of a request in the pause.
    pub(crate) fn refusal(&self) -> Option<AllRefusal> {
        let ends = *lock(&self.0);
        let rest = ends?.saturating_duration_since(Instant::now());
        let retry_after = Nanos::from_duration(pause_left(rest));
        (!rest.is_zero()).then(|| AllRefusal::from(Refusal::Paused { retry_after }).as_degraded())
    }
}
