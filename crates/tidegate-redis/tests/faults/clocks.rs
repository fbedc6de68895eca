//! Clients with wrong clocks.
//!
//! The server's clock is an argument of the scripts in `tests/script`, which set it back and forth:
//! a server with jemalloc does not start under `faketime`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::processes::{Process, assert_bound, grants};
use crate::support::{Server, wait_until};

/// The library that gives a program a wrong clock.
fn library() -> Option<String> {
    let found = Command::new("sh").args(["-c", "ls /usr/lib/*/faketime/libfaketime.so.1"]).output().ok()?;
    let path = String::from_utf8(found.stdout).ok()?.lines().next().map(str::to_owned);
    if path.is_none() {
        eprintln!("skipped: no faketime; apt-get install faketime");
    }
    path
}

/// The beginning of a command under a wrong wall clock. Monotonic clocks are right.
fn wrong(library: &str, setting: String) -> [String; 5] {
    let preload = format!("LD_PRELOAD={library}");
    ["env".into(), preload, setting, "FAKETIME_NO_CACHE=1".into(), "FAKETIME_DONT_FAKE_MONOTONIC=1".into()]
}

fn now() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap()
}

/// A client uses only the server's clock for a decision. Clients whose clocks are hours wrong, or
/// run at another speed, are granted within the bound, and find the limits of the others unchanged.
#[test]
fn clients_have_wrong_clocks() {
    let (Some(library), Some(server)) = (library(), Server::start()) else { return };
    let wrong_date = wrong(&library, "FAKETIME=+1h".into());
    let told = Command::new(&wrong_date[0]).args(&wrong_date[1..]).args(["date", "+%s"]).output().unwrap();
    let told: u64 = String::from_utf8(told.stdout).unwrap().trim().parse().unwrap();
    assert!(told > now().as_secs() + 3000, "the library gives no wrong clock");
    let directory = tempfile::tempdir().unwrap();
    let (mut files, mut fleet) = (Vec::<PathBuf>::new(), Vec::new());
    for by in ["+1h", "-1h", "+0 x10", "+0 x0.1"] {
        let log = directory.path().join(by);
        fleet.push(Process::start(&wrong(&library, format!("FAKETIME={by}")), &server.url(), &log));
        files.push(log);
    }
    wait_until("each client has permits", || files.iter().all(|file| grants([file]).len() > 50));
    drop(fleet);
    let all = grants(&files);
    assert_bound(&all);
    // By the server's clock.
    let last = Duration::from_micros(*all.last().unwrap());
    assert!(last < now() + Duration::from_secs(600) && last + Duration::from_secs(600) > now());
    println!("| clients with wrong clocks | {} grants; every window within its bound |", all.len());
}
