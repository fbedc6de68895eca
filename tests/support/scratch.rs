//! Recordings that a test writes itself.

use std::error::Error;
use std::path::Path;

/// Runs `work` on a directory that contains one file with this content, `a.jsonl`.
pub(crate) fn with_file<R>(
    name: &str,
    content: &str,
    work: impl FnOnce(&Path) -> Result<R, String>,
) -> Result<R, Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("a.jsonl"), content)?;
    let result = work(&dir);
    std::fs::remove_dir_all(&dir)?;
    Ok(result?)
}
