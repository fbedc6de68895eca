//! Are we at least as good as the other limiters in the operations that users notice: one attempt,
//! a wait, a position in the queue?
//!
//! `cargo bench --bench peers` prints one table and writes `target/peers.json`. Everything is
//! measured in one run, in turns, so that a noisy moment affects all contestants alike; the table
//! shows medians. `cargo bench --bench peers -- await/1k` runs the cases with one of the arguments
//! in their name; `--quick` has fewer repetitions and fewer waiters at 1,000 per second.

mod attempt;
mod hog;
mod report;
#[path = "../turns/mod.rs"]
mod turns;
mod waiting;

use std::error::Error;
use std::time::Instant;

use report::Row;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts the bytes in use, for the memory of a waiter.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// A case and the function that runs it.
type Case = (&'static str, fn(&'static str, &Options) -> Vec<Row>);

/// The options on the command line.
struct Options {
    /// Fewer repetitions.
    quick: bool,
    /// Runs only those contestants of the attempts whose name begins with this text: to count
    /// instructions.
    only: Option<String>,
}

const CASES: [Case; 8] = [
    ("attempt/granted/1", |case, options| attempt::granted(case, 1, options)),
    ("attempt/granted/2", |case, options| attempt::granted(case, 2, options)),
    ("attempt/refused/1", |case, options| attempt::refused(case, 1, options)),
    ("attempt/refused/2", |case, options| attempt::refused(case, 2, options)),
    ("await/1k", waiting::at_1k),
    ("await/100k", waiting::at_100k),
    ("await/1M", waiting::at_1m),
    ("hog", hog::share),
];

fn main() -> Result<(), Box<dyn Error>> {
    let (flags, wanted): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
    let quick = flags.iter().any(|flag| flag == "--quick");
    let only = flags.iter().find_map(|flag| flag.strip_prefix("--only=")).map(String::from);
    let options = Options { quick, only };
    let mut rows = Vec::new();
    for (name, run) in CASES {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            eprint!("{name} ... ");
            let start = Instant::now();
            rows.extend(run(name, &options));
            eprintln!("{:.1} s", start.elapsed().as_secs_f64());
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    report::print(&rows);
    report::write(&rows)
}
