//! What does it cost to write a limit? Instructions, counted by valgrind, do not depend on other
//! load of the machine.
//!
//! ```sh
//! cargo bench -p tidegate-http --all-features --bench write
//! ```

use std::error::Error;
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use tidegate_http::Problem;
use tidegate_http::write::{self, Format, Limit};

const CALLS: u32 = 1000;

/// Writes something into the headers of a response that has other headers.
type Case = fn(&mut HeaderMap);

const CASES: [(&str, Case); 7] = [
    ("headers of other kinds alone", |_| {}),
    ("granted, one limit", |headers| write::granted(&[minute()], Format::Draft, headers)),
    ("granted, three limits", |headers| {
        let day = limit("per-day", 5000, 86_400);
        write::granted(&[minute(), limit("per-hour", 1000, 3600), day], Format::Draft, headers);
    }),
    ("refused, one limit", |headers| {
        write::refused(&[minute()], Duration::from_millis(1200), Format::Draft, headers);
    }),
    ("granted, X-RateLimit", |headers| write::granted(&[minute()], Format::XRateLimit, headers)),
    ("granted, X-RateLimit with a Unix time", |headers| {
        write::granted(&[minute()], Format::XRateLimitUnix(SystemTime::UNIX_EPOCH), headers);
    }),
    ("problem details", |_| {
        let mut problem = Problem::quota_exceeded(["per-minute"]);
        problem.detail = Some("per-minute: limited, retry after 153.4126ms".to_owned());
        black_box(problem.to_json());
    }),
];

fn minute() -> Limit<'static> {
    limit("per-minute", 100, 60)
}

fn limit(name: &'static str, quota: u64, seconds: u64) -> Limit<'static> {
    let limit = Limit::new(name, quota).unwrap_or_else(|error| panic!("{error}"));
    limit.window(Duration::from_secs(seconds)).remaining(99).reset(Duration::from_millis(1500))
}

#[inline(never)]
fn calls(case: Case) {
    for _ in 0..CALLS {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::CONTENT_LENGTH, 5.into());
        case(&mut headers);
        black_box(&headers);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let only = std::env::args().find_map(|argument| argument.strip_prefix("--only=").map(str::to_owned));
    if let Some(only) = only {
        let (_, case) = CASES.iter().find(|(name, _)| *name == only).ok_or("no such case")?;
        calls(*case);
        return Ok(());
    }
    println!("| instructions per call | |\n|---|---|");
    for (name, _) in CASES {
        let run = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*write::calls*"])
            .arg(std::env::current_exe()?)
            .arg(format!("--only={name}"))
            .output();
        let Ok(output) = run else {
            println!("valgrind is not installed");
            return Ok(());
        };
        let report = String::from_utf8_lossy(&output.stderr);
        let collected = report.lines().find_map(|line| line.split_once("Collected :"));
        let (_, count) = collected.ok_or("valgrind reported no count")?;
        println!("| {name} | {:.0} |", count.trim().parse::<f64>()? / f64::from(CALLS));
    }
    Ok(())
}
