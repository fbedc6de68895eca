//! What does one call cost next to a crowd: of waiters, of estimates, of composites, of runtimes?
//!
//! `cargo bench --bench crowds` prints one table; `-- line composites` runs the cases with an
//! argument in their name, `-- --quick` has crowds of a thousand. Time stands still on a manual
//! clock, except in `loops`, so each number is the cost of one call and of nothing else: the median
//! of many calls and the slowest in a hundred, in microseconds.

mod composites;
mod line;
mod log;
mod loops;
#[path = "../turns/median.rs"]
mod median;
#[cfg(feature = "keyed")]
mod of_keys;
mod settle;

use std::time::{Duration, Instant};

use median::median;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

/// Counts the bytes in use, for the memory of waiters that have left.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// The options on the command line.
struct Options {
    quick: bool,
    wanted: Vec<String>,
}

impl Options {
    /// Returns whether the command line names this case, or no case.
    fn wants(&self, case: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|part| case.contains(part.as_str()))
    }

    /// Returns the sizes of crowds: all, or only the smallest.
    fn sizes<'a>(&self, all: &'a [usize]) -> &'a [usize] {
        if self.quick { &all[..1] } else { all }
    }
}

/// A call is repeated this many times, unless the repetitions take longer than [`LONG`] in total.
const CALLS: usize = 1000;
const LONG: Duration = Duration::from_millis(500);

/// Times at most `calls` calls, and prints a line. Each call gets its number.
fn time(case: &str, call: &str, calls: usize, mut run: impl FnMut(usize)) {
    let (mut times, began) = (Vec::new(), Instant::now());
    while times.len() < calls && (times.is_empty() || began.elapsed() < LONG) {
        let start = Instant::now();
        run(times.len());
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    print_times(case, call, times);
}

fn print_times(case: &str, call: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let (calls, slow) = (times.len(), times[times.len() * 99 / 100]);
    println!("{case:<28} {call:<30} {:>10.2} us {slow:>12.2} us  {calls} calls", median(times));
}

/// Returns by how much the live heap has grown since the start of a region.
fn grown(region: &Region<'_, std::alloc::System>) -> f64 {
    let change = region.change();
    change.bytes_allocated as f64 - change.bytes_deallocated as f64
}

fn main() {
    let (flags, wanted): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
    let options = Options { quick: flags.iter().any(|flag| flag == "--quick"), wanted };
    println!("{:<28} {:<30} {:>13} {:>15}", "case", "call", "median", "99 of 100");
    line::all(&options);
    settle::all(&options);
    log::all(&options);
    composites::all(&options);
    #[cfg(feature = "keyed")]
    of_keys::all(&options);
    loops::all(&options);
}
