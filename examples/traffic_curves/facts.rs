//! Numbers that a caption claims, checked against the measurement.

/// One number of a caption.
struct Fact {
    what: String,
    claimed: u64,
    found: u64,
}

/// The numbers of a picture.
#[derive(Default)]
pub(crate) struct Facts(Vec<Fact>);

impl Facts {
    /// Records a number and returns the claimed value, for the caption.
    pub(crate) fn claim(&mut self, claimed: u64, what: impl Into<String>, found: u64) -> u64 {
        self.0.push(Fact { what: what.into(), claimed, found });
        claimed
    }

    /// Prints a line for each number. Returns whether all numbers are as claimed.
    pub(crate) fn print(&self) -> bool {
        for Fact { what, claimed, found } in &self.0 {
            let verdict = if claimed == found {
                String::new()
            } else {
                format!("   FAILED: the caption says {claimed}")
            };
            println!("  {what:64}{found:>6}{verdict}");
        }
        self.0.iter().all(|fact| fact.claimed == fact.found)
    }
}
