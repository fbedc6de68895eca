//! The table and `target/peers.json`.

use std::error::Error;
use std::path::PathBuf;

use serde_json::{Value, json};

/// One metric of one case: ours compared with one peer's.
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) ours: f64,
    pub(crate) peer: &'static str,
    pub(crate) peer_value: f64,
}

impl Row {
    /// Returns ours divided by the peer's. Two zeros are equal; a nonzero number divided by zero
    /// has no ratio.
    fn ratio(&self) -> f64 {
        if self.ours == 0.0 && self.peer_value == 0.0 { 1.0 } else { self.ours / self.peer_value }
    }

    fn to_json(&self) -> Value {
        // serde_json writes a non-finite number as null.
        json!({
            "case": self.case,
            "unit": self.unit,
            "ours": self.ours,
            "peer": self.peer,
            "peer_value": self.peer_value,
            "ratio": self.ratio(),
        })
    }
}

pub(crate) fn print(rows: &[Row]) {
    println!(
        "{:<18} {:<24} {:>12} {:>12} {:>8}  peer",
        "case", "unit (lower is better)", "ours", "peer's", "ratio"
    );
    for row in rows {
        let (case, unit, peer) = (row.case, row.unit, row.peer);
        let (ours, theirs, ratio) = (digits(row.ours), digits(row.peer_value), row.ratio());
        println!("{case:<18} {unit:<24} {ours:>12} {theirs:>12} {ratio:>8.3}  {peer}");
    }
}

fn digits(value: f64) -> String {
    if value < 10.0 { format!("{value:.4}") } else { format!("{value:.1}") }
}

/// Writes the rows of this run, replacing the rows of the last one.
pub(crate) fn write(rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => PathBuf::from(target),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target"),
    };
    let path = target.join("peers.json");
    let list = Value::Array(rows.iter().map(Row::to_json).collect());
    std::fs::create_dir_all(&target)?;
    std::fs::write(&path, format!("{list:#}\n"))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}
