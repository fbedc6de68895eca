//! Replays recordings of other rate limiters against this one.
//!
//! ```text
//! cargo run --release --example replay -- guava tests/golden/guava
//! cargo run --release --example replay -- go tests/golden/go-rate
//! cargo run --release --example replay -- nginx tests/golden/nginx
//! ```
//!
//! The last line is `N passed, N failed`, counted in traces. Traces that differ on purpose are
//! counted separately, in the line before. The exit code is 0 if all traces passed, 1 if a trace
//! failed or no trace was found, 2 if the command line was wrong.

#[path = "../../tests/support/allowance.rs"]
mod allowance;
#[path = "../../tests/support/float.rs"]
mod float;
#[path = "../../tests/support/guava.rs"]
mod guava;
#[path = "go.rs"]
mod replay_go;
#[path = "guava.rs"]
mod replay_guava;
#[path = "nginx.rs"]
mod replay_nginx;
mod report;
#[path = "../../tests/support/trace.rs"]
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use report::Report;

#[derive(Parser)]
#[command(about = "Replays recordings of other rate limiters against tidegate.")]
struct Arguments {
    /// The recorded limiter.
    kind: Kind,
    /// A directory of *.jsonl files, one trace per line.
    dir: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Guava's RateLimiter, bursty and warming up.
    Guava,
    /// Go's golang.org/x/time/rate: a token bucket with reservations.
    Go,
    /// The limit_req module of NGINX: a leaky bucket.
    Nginx,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let report = match arguments.kind {
        Kind::Guava => replay_guava::replay(&arguments.dir),
        Kind::Go => replay_go::replay(&arguments.dir),
        Kind::Nginx => replay_nginx::replay(&arguments.dir),
    };
    let report = report.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        Report::default()
    });
    for failure in &report.failures {
        println!("FAILED {failure}");
    }
    for note in &report.notes {
        println!("{note}");
    }
    if !report.skipped.is_empty() {
        println!("{} skipped: {}", report.skipped.len(), report.skipped.join(" "));
    }
    println!("{} passed, {} failed", report.passed, report.failures.len());
    if report.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
