//! An observer that records its notifications as lines of text.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate::{Events, Refusal};

/// Records its notifications.
#[derive(Default)]
pub(crate) struct Log(Mutex<Vec<String>>);

impl Log {
    pub(crate) fn note(&self, line: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Returns the notifications since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Events for Log {
    fn granted(&self, permits: u64, waited: Duration) {
        self.note(format!("granted {permits} after {waited:?}"));
    }

    fn refused(&self, permits: u64, refusal: &Refusal) {
        self.note(format!("refused {permits}: {refusal}"));
    }

    fn cancelled(&self, permits: u64, waited: Duration) {
        self.note(format!("cancelled {permits} after {waited:?}"));
    }

    fn shadowed(&self, permits: u64, refusal: &Refusal) {
        self.note(format!("shadowed {permits}: {refusal}"));
    }

    fn exempted(&self, permits: u64) {
        self.note(format!("exempted {permits}"));
    }

    fn paused(&self, remaining: Duration) {
        self.note(format!("paused for {remaining:?}"));
    }

    fn resumed(&self) {
        self.note("resumed".to_owned());
    }
}
