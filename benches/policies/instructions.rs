//! Instructions per attempt, counted by valgrind: they do not depend on other programs on the
//! machine.

use std::error::Error;
use std::process::Command;

use serde_json::{Value, json};

use crate::policies::{contestants, controlled};
use crate::{Outcome, ROUND};

/// `granted:NAME`: makes a round of attempts and nothing else.
pub(crate) fn run_one(only: &str) -> Result<(), Box<dyn Error>> {
    let (outcome, name) = only.split_once(':').ok_or("expected outcome:name")?;
    let outcome = if outcome == "granted" { Outcome::Granted } else { Outcome::Refused };
    let contestants = contestants(outcome).into_iter().chain(controlled(outcome)).collect::<Vec<_>>();
    let found = contestants.iter().find(|contestant| contestant.name == name).ok_or("no such policy")?;
    std::hint::black_box((found.through_limiter)(ROUND));
    Ok(())
}

/// Returns the instructions of one attempt and of the loop around it, `None` without valgrind.
fn per_attempt(outcome: &str, name: &str) -> Result<Option<f64>, Box<dyn Error>> {
    let run = Command::new("valgrind")
        // Only the loop is counted: quanta calibrates its clock for an unknown time.
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*policies::attempts*"])
        .arg(std::env::current_exe()?)
        .arg(format!("--only={outcome}:{name}"))
        .output();
    let Ok(output) = run else { return Ok(None) };
    let told = String::from_utf8_lossy(&output.stderr);
    let collected = told.lines().find_map(|line| line.split_once("Collected :"));
    let count = collected.and_then(|(_, count)| count.trim().parse::<f64>().ok());
    Ok(count.map(|count| count / f64::from(ROUND)))
}

/// Prints the table, and returns its rows.
pub(crate) fn table(names: &[&str]) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut rows = Vec::new();
    println!("\n{:<26} {:>10} {:>10}", "instructions", "granted", "refused");
    for name in names {
        let mut line = format!("{name:<26}");
        for outcome in ["granted", "refused"] {
            let Some(value) = per_attempt(outcome, name)? else {
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
