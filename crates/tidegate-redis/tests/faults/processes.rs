//! Other processes: this program runs itself, as a member of a fleet.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::AnyLimiter;
use tidegate_redis::{Store, WhileAway};

use crate::support::{Server, wait_until};

/// The address of the server, and the file of grants of a process of the fleet.
const ROLE: [&str; 2] = ["TIDEGATE_FLEET_URL", "TIDEGATE_FLEET_LOG"];

const RATE: u64 = 500;
const BURST: u64 = 20;

/// The policy of the fleet.
pub(crate) fn line() -> String {
    format!("token_bucket {RATE}/s burst {BURST}")
}

/// The limit of the fleet at a server.
pub(crate) fn limiter(url: &str) -> (Store, AnyLimiter) {
    let store = Store::builder(url).timeout(Duration::from_secs(100)).while_away(WhileAway::Closed);
    let store = store.open().unwrap();
    let limiter = store.limiter("fleet").limit("all", line()).build().unwrap();
    (store, limiter.into())
}

/// A process of the fleet. It writes each grant to its file, until it is killed or the process that
/// started it is gone.
#[tokio::test]
async fn a_process_of_the_fleet() {
    let [Ok(url), Ok(log)] = ROLE.map(std::env::var) else { return };
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let (store, limiter) = limiter(&url);
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    store.log_grants(move |_, due, permits| {
        // One write, so that the line is written completely or not at all.
        (&log).write_all(format!("{due} {permits}\n").as_bytes()).unwrap();
    });
    loop {
        // Some requests wait for a booked time, and others do not.
        let (waiting, now) = tokio::join!(limiter.acquire(), limiter.acquire_now([]));
        let _ = (waiting, now);
    }
}

/// A process of a fleet, killed at the end.
pub(crate) struct Process(Child);

impl Process {
    /// Starts a process, optionally by another program. The process writes its grants to a file.
    pub(crate) fn start(before: &[String], url: &str, log: &Path) -> Process {
        let this = std::env::current_exe().unwrap();
        let words = [before, &[this.to_str().unwrap().to_owned()]].concat();
        let child = Command::new(&words[0])
            .args(&words[1..])
            .args(["--exact", "processes::a_process_of_the_fleet"])
            .envs([(ROLE[0], url.as_ref()), (ROLE[1], log.as_os_str())])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Process(child.unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The grants in files: times by the server's clock, one for each permit, in order.
pub(crate) fn grants<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Vec<u64> {
    let mut all = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        // A process may be writing the last line, or was killed meanwhile.
        let finished = text.rfind('\n').map_or(0, |end| end + 1);
        for line in text[..finished].lines() {
            let (due, permits) = line.split_once(' ').unwrap();
            let (due, permits): (u64, usize) = (due.parse().unwrap(), permits.parse().unwrap());
            all.extend(std::iter::repeat_n(due, permits));
        }
    }
    all.sort_unstable();
    all
}

/// Asserts that every window of a length *w* contains at most burst + rate x *w* grants.
#[track_caller]
pub(crate) fn assert_bound(grants: &[u64]) {
    for (i, first) in grants.iter().enumerate() {
        for (n, last) in (1..).zip(&grants[i..]) {
            // A window that contains both times is a microsecond longer than their distance.
            let bound = BURST + (last - first + 1) * RATE / 1_000_000;
            assert!(n <= bound, "{n} grants in {} us, and {bound} are allowed", last - first);
        }
    }
}

#[test]
fn processes_are_killed_at_random() {
    let Some(server) = Server::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = |n: usize| directory.path().join(n.to_string());
    let mut files: Vec<PathBuf> = (0..8).map(file).collect();
    let mut fleet: Vec<Process> = files.iter().map(|log| Process::start(&[], &server.url(), log)).collect();
    let mut random = SmallRng::seed_from_u64(3);
    for killed in 0..30 {
        let so_far = grants(&files).len();
        wait_until("permits are granted", || grants(&files).len() > so_far + 30);
        let log = file(8 + killed);
        // Dropping the old process kills it.
        fleet[random.random_range(0..8)] = Process::start(&[], &server.url(), &log);
        files.push(log);
    }
    drop(fleet);
    let grants = grants(&files);
    assert_bound(&grants);
    let span = Duration::from_micros(grants.last().unwrap() - grants[0]);
    #[allow(clippy::cast_precision_loss)] // A figure to read.
    let used = grants.len() as f64 / (RATE as f64 * span.as_secs_f64() + BURST as f64);
    println!(
        "| 8 processes, 30 killed | {} grants in {span:.1?}, {:.0} % of the rate; every window within its bound |",
        grants.len(),
        used * 100.0
    );
}
