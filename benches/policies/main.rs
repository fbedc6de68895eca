//! What does one attempt cost with each policy, granted or refused, with one thread or two on one
//! limiter? And does the exact log grow with its limit?
//!
//! `cargo bench --bench policies` prints one table and writes `target/policies.json`; `-- Window
//! Log` runs the policies with an argument in their name, `-- --quick` has fewer rounds, and counts
//! no instructions. All policies take turns in one run with governor, and the table shows medians
//! and their ratios to governor's.
//!
//! **attempt**: through the limiter, with its clock: the cost for a caller. **alone**: the policy
//! without limiter and clock, at rising times. **instructions**: of an attempt through the limiter,
//! counted by valgrind if it is installed. `-- --count` does nothing else. `-- --settle` settles
//! 100,000 estimates of each policy in a random order. `-- --control` counts the instructions of a
//! token bucket that is observed, was paused, or keeps a share.

mod instructions;
mod policies;
mod settle;
#[path = "../turns/mod.rs"]
mod turns;

use std::error::Error;
use std::path::PathBuf;

use policies::{Contestant, contestants, controlled};
use serde_json::{Value, json};
use turns::{in_turns, median, round};

/// Attempts of each thread in one round. An unoptimized build does not measure.
const ROUND: u32 = if cfg!(debug_assertions) { 500 } else { 20_000 };

/// The outcome of an attempt.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Outcome {
    Granted,
    Refused,
}

/// The first contestant, with which the others are compared.
pub(crate) const REFERENCE: &str = "governor";

/// The columns of the table, in nanoseconds per attempt of any thread.
const COLUMNS: [(&str, Outcome, usize); 4] = [
    ("granted/1", Outcome::Granted, 1),
    ("granted/2", Outcome::Granted, 2),
    ("refused/1", Outcome::Refused, 1),
    ("refused/2", Outcome::Refused, 2),
];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if let Some(only) = args.iter().find_map(|arg| arg.strip_prefix("--only=")) {
        return instructions::run_one(only);
    }
    let wanted: Vec<_> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    let takes_part = |contestant: &Contestant| {
        let name = contestant.name;
        wanted.is_empty() || name == REFERENCE || wanted.iter().any(|part| name.contains(part.as_str()))
    };
    let contestants = |outcome| contestants(outcome).into_iter().filter(takes_part).collect::<Vec<_>>();
    let names: Vec<_> = contestants(Outcome::Granted).iter().map(|contestant| contestant.name).collect();
    if args.iter().any(|arg| arg == "--count") {
        return instructions::table(&names).map(drop);
    }
    if args.iter().any(|arg| arg == "--settle") {
        return Ok(settle::table().map(drop)?);
    }
    if args.iter().any(|arg| arg == "--control") {
        let names: Vec<_> = controlled(Outcome::Granted).iter().map(|contestant| contestant.name).collect();
        return instructions::table(&names).map(drop);
    }
    let is_quick = args.iter().any(|arg| arg == "--quick");
    let rounds = if is_quick { 23 } else { 203 };
    let mut list = Vec::new();
    for kind in ["attempt", "alone"] {
        println!(
            "\n{kind:<26} {}",
            COLUMNS.map(|(column, ..)| format!("{column:>10} {:>6}", "ratio")).join(" ")
        );
        let columns: Vec<Vec<f64>> = COLUMNS
            .iter()
            .filter(|(.., threads)| kind == "attempt" || *threads == 1)
            .map(|(_, outcome, threads)| {
                measure(&contestants(*outcome), kind == "alone", *outcome, *threads, rounds)
            })
            .collect();
        let reference = names.iter().position(|name| *name == REFERENCE).unwrap_or_default();
        for (index, name) in names.iter().enumerate() {
            let mut cells = columns.iter().map(|column| (column[index], column[index] / column[reference]));
            let mut line = format!("{name:<26}");
            for (column, _, threads) in COLUMNS {
                let shown = if kind == "alone" && threads > 1 { None } else { cells.next() };
                let Some((value, ratio)) = shown else {
                    line += &format!(" {:>17}", "");
                    continue;
                };
                line += &format!(" {value:>10.3} {ratio:>6.3}");
                list.push(json!({
                    "case": format!("{kind}/{column}"), "unit": "ns per attempt", "policy": name,
                    "value": value, "ratio": ratio,
                }));
            }
            println!("{line}");
        }
    }
    if !is_quick {
        list.extend(instructions::table(&names)?);
    }
    write(list)
}

/// Returns the medians of all contestants.
fn measure(
    contestants: &[Contestant],
    alone: bool,
    outcome: Outcome,
    threads: usize,
    rounds: usize,
) -> Vec<f64> {
    let mut samples = vec![Vec::new(); contestants.len()];
    // A policy without a burst refuses a thread whose clock is behind the clock of the other
    // thread, possibly all the time.
    let as_meant = |granted: u32| match outcome {
        Outcome::Granted => granted > 0,
        Outcome::Refused => granted == 0,
    };
    // The first three turns warm up caches and branch predictors.
    in_turns(contestants.len(), rounds, |index, repetition| {
        let Contestant { name, through_limiter, policy_alone } = &contestants[index];
        let attempts = if alone { policy_alone } else { through_limiter };
        let (granted, wall) = round(attempts.as_ref(), threads, ROUND);
        assert!(granted.iter().copied().all(as_meant), "{name} granted {granted:?} of {ROUND}");
        if repetition >= 3 {
            samples[index].push(wall.as_nanos() as f64 / (f64::from(ROUND) * threads as f64));
        }
    });
    samples.into_iter().map(median).collect()
}

fn write(list: Vec<Value>) -> Result<(), Box<dyn Error>> {
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => PathBuf::from(target),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target"),
    };
    let path = target.join("policies.json");
    std::fs::create_dir_all(&target)?;
    std::fs::write(&path, format!("{:#}\n", Value::Array(list)))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}
