//! The result of a replay.

use std::fmt::{Debug, Display};
use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;

/// The outcome of replaying a directory of recordings, of any kind.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) passed: usize,
    /// One message for each trace that failed.
    pub(crate) failures: Vec<String>,
    /// The ids of traces that need not be met.
    pub(crate) skipped: Vec<String>,
    /// The number of traces that were met up to an operation from which on they differ on purpose.
    pub(crate) apart: usize,
    /// Other notes worth reporting.
    pub(crate) notes: Vec<String>,
}

/// The result of a trace that did not fail.
#[allow(dead_code)] // Not every kind of recording uses all of them.
#[derive(Debug)]
pub(crate) enum Outcome {
    Passed,
    /// Need not be met: its id.
    Skipped(String),
    /// Met up to an operation from which on it differs on purpose.
    Apart,
}

impl Report {
    /// Replays every line of every `*.jsonl` in a directory.
    pub(crate) fn of(
        dir: &Path,
        mut replay: impl FnMut(&str) -> Result<Outcome, String>,
    ) -> Result<Report, String> {
        let in_dir = |error| format!("{}: {error}", dir.display());
        let mut files = Vec::new();
        for entry in fs::read_dir(dir).map_err(in_dir)? {
            let file = entry.map_err(in_dir)?.path();
            if file.extension().is_some_and(|extension| extension == "jsonl") {
                files.push(file);
            }
        }
        files.sort();
        let mut report = Report::default();
        for file in files {
            let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                match replay(line) {
                    Ok(Outcome::Passed) => report.passed += 1,
                    Ok(Outcome::Skipped(id)) => report.skipped.push(id),
                    Ok(Outcome::Apart) => report.apart += 1,
                    Err(error) => report.failures.push(format!("{}:{}: {error}", file.display(), index + 1)),
                }
            }
        }
        Ok(report)
    }

    /// Returns whether at least one trace was replayed and none failed.
    pub(crate) fn is_success(&self) -> bool {
        self.failures.is_empty() && self.passed + self.apart > 0
    }
}

/// Reads one line.
pub(crate) fn read<T: DeserializeOwned>(line: &str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|error| error.to_string())
}

/// Returns the message for one operation that failed.
pub(crate) fn mismatch(index: usize, op: &impl Debug, expected: impl Display, got: impl Display) -> String {
    format!("operation {index}, {op:?}: expected {expected}, got {got}")
}
