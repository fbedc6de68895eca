//! An observer that records its notifications as lines of text.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate::{Events, Refusal};

/// Records its notifications.
#[derive(Default)]
pub(crate) struct Log {
    lines: Mutex<Vec<String>>,
    without_waits: bool,
}

impl Log {
    /// Creates a log that does not record how long requests waited, for limiters on a real clock.
    pub(crate) fn without_waits() -> Log {
        Log { without_waits: true, ..Log::default() }
    }

    pub(crate) fn note(&self, line: String) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn note_wait(&self, event: &str, waited: Duration) {
        let after = if self.without_waits { String::new() } else { format!(" after {waited:?}") };
        self.note(format!("{event}{after}"));
    }

    /// Returns the notifications since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Events for Log {
    fn granted(&self, permits: u64, waited: Duration) {
        self.note_wait(&format!("granted {permits}"), waited);
    }

    fn refused(&self, permits: u64, refusal: &Refusal) {
        self.note(format!("refused {permits}: {refusal}"));
    }

    fn cancelled(&self, permits: u64, waited: Duration) {
        self.note_wait(&format!("cancelled {permits}"), waited);
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
