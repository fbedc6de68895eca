//! Instructions per attempt, counted by valgrind: they do not depend on the neighbours.

use std::error::Error;
use std::process::Command;

use serde_json::{Value, json};

use crate::policies::{contestants, controlled};
use crate::{Outcome, ROUND};

/// Rounds of the long run; the short one has one.
pub(crate) const ROUNDS: u32 = 11;
/// The same where a few instructions matter: quanta's calibration is worth a tenth of one or two then.
pub(crate) const MANY_ROUNDS: u32 = 101;

/// `granted:ROUNDS:NAME`: makes so many rounds of attempts and nothing else.
pub(crate) fn run_one(only: &str) -> Result<(), Box<dyn Error>> {
    let mut parts = only.splitn(3, ':');
    let mut part = || parts.next().ok_or("expected outcome:rounds:name");
    let outcome = if part()? == "granted" { Outcome::Granted } else { Outcome::Refused };
    let (rounds, name) = (part()?.parse::<u32>()?, part()?);
    let contestants = contestants(outcome).into_iter().chain(controlled(outcome)).collect::<Vec<_>>();
    let found = contestants.iter().find(|contestant| contestant.name == name).ok_or("no such policy")?;
    for _ in 0..rounds {
        std::hint::black_box((found.through_limiter)(ROUND));
    }
    Ok(())
}

/// How many instructions this program takes for so many rounds, `None` without valgrind.
fn count(outcome: &str, rounds: u32, name: &str) -> Result<Option<f64>, Box<dyn Error>> {
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .arg(format!("--only={outcome}:{rounds}:{name}"))
        .output();
    let Ok(output) = run else { return Ok(None) };
    let told = String::from_utf8_lossy(&output.stderr);
    let collected = told.lines().find_map(|line| line.split_once("Collected :"));
    Ok(collected.and_then(|(_, count)| count.trim().parse().ok()))
}

/// Instructions of one attempt: of a long run less those of a short one, so that the start does not count. quanta calibrates its
/// clock for as long as it needs, which is worth one or two.
fn per_attempt(outcome: &str, rounds: u32, name: &str) -> Result<Option<f64>, Box<dyn Error>> {
    let Some((short, long)) = count(outcome, 1, name)?.zip(count(outcome, rounds, name)?) else {
        return Ok(None);
    };
    Ok(Some((long - short) / f64::from((rounds - 1) * ROUND)))
}

/// Prints the table, and returns its rows.
pub(crate) fn table(names: &[&str], rounds: u32) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut rows = Vec::new();
    println!("\n{:<26} {:>10} {:>10}", "instructions", "granted", "refused");
    for name in names {
        let mut line = format!("{name:<26}");
        for outcome in ["granted", "refused"] {
            let Some(value) = per_attempt(outcome, rounds, name)? else {
                println!("valgrind is not installed, or does not run here");
                return Ok(rows);
            };
            line += &format!(" {value:>10.1}");
            rows.push(json!({
                "case": format!("instructions/{outcome}"), "unit": "per attempt", "policy": name, "value": value,
            }));
        }
        println!("{line}");
    }
    Ok(rows)
}
