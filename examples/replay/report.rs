//! What a replay found.

/// The outcome of replaying a directory of recordings, of any kind.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) passed: usize,
    /// One message for each trace that failed.
    pub(crate) failures: Vec<String>,
    /// The ids of traces that are not to be met.
    pub(crate) skipped: Vec<String>,
    /// What else is worth telling.
    pub(crate) notes: Vec<String>,
}

impl Report {
    /// Whether something was replayed and nothing failed.
    pub(crate) fn is_success(&self) -> bool {
        self.failures.is_empty() && self.passed > 0
    }
}
