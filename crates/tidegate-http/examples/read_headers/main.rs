//! Reads recorded header blocks and compares the result with the expected one.
//!
//! ```sh
//! cargo run --release -p tidegate-http --example read_headers -- crates/tidegate-http/tests/golden/*.jsonl
//! ```
//!
//! Prints a line for each block that fails, and the number of blocks that passed. With `--show`, it
//! also prints how the reader read each block.

use std::fs;
use std::process::ExitCode;

mod grading;

fn main() -> ExitCode {
    let (flags, files): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
    if files.is_empty() || flags.iter().any(|flag| flag != "--show") {
        eprintln!("usage: read_headers [--show] FILE.jsonl...");
        return ExitCode::from(2);
    }
    let (mut passed, mut failed) = (0, 0);
    for file in files {
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("{file}: {error}");
                return ExitCode::from(2);
            }
        };
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let outcome = grading::grade(line);
            if !flags.is_empty() {
                println!("{}: {}", outcome.id, outcome.got);
            }
            if outcome.faults.is_empty() {
                passed += 1;
            } else {
                failed += 1;
                let faults = outcome.faults.join("; ");
                println!(
                    "FAILED {}: {faults}: expected {}, got {}",
                    outcome.id, outcome.expected, outcome.got
                );
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
