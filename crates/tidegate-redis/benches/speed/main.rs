//! How many decisions a second, compared with what the server can do at best and with other crates?
//!
//! `cargo bench -p tidegate-redis --bench speed` starts its own server. Rows take turns, and the
//! best round of each row counts, because other work of the machine only takes time away. The last
//! column is the median over all rounds of one ratio: the median time of a decision, divided by
//! that of a bare `EVALSHA` with as many calls in flight. `-- --rounds N` sets the number of
//! rounds. `-- --only TEXT` leaves out other crates and the rows without this text, except bare
//! calls.

mod bare;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::Server;
use tidegate::AnyLimiter;
use tidegate_redis::Store;
use tokio::runtime::Runtime;

/// The duration of a round of a row.
const ROUND: Duration = Duration::from_millis(100);

/// The row that the others are compared with.
pub(crate) const BARE: &str = "bare EVALSHA";

/// A policy that refuses nothing here.
const POLICY: &str = "token_bucket 10000000/s burst 10000000";

/// The result of one round of a row.
#[derive(Clone, Copy)]
pub(crate) struct Round {
    per_second: f64,
    /// The median time of a decision.
    median: Duration,
    /// The server's processor time for one decision.
    cpu: Duration,
    /// This process's processor time for one decision; zero if the system does not report it.
    own_cpu: Duration,
}

/// The time that the threads of this process have run so far.
fn own_cpu() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// The time of the server's processor so far.
pub(crate) fn cpu_of(server: &Server) -> Duration {
    let info: String =
        redis::cmd("INFO").arg("cpu").query(&mut server.connect()).expect("the server's numbers");
    let seconds = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|text| text.trim().parse().ok()).expect("a time")
    };
    Duration::from_secs_f64(seconds("used_cpu_sys:") + seconds("used_cpu_user:"))
}

/// Has tasks make calls, one after the other each, for the time of a round.
pub(crate) fn round<F: Future<Output = ()>>(
    runtime: &Runtime,
    server: &Server,
    tasks: usize,
    call: impl Fn() -> F,
) -> Round {
    let (cpu, own) = (cpu_of(server), own_cpu());
    let begun = Instant::now();
    let tasks = (0..tasks).map(|_| async {
        let mut times = Vec::with_capacity(1 << 16);
        let mut before = Instant::now();
        // One call at least, even if the system stopped this process meanwhile.
        loop {
            call().await;
            let now = Instant::now();
            times.push(now.duration_since(before));
            before = now;
            if now.duration_since(begun) >= ROUND {
                return times;
            }
        }
    });
    let times = runtime.block_on(futures_util::future::join_all(tasks));
    let (took, own) = (begun.elapsed(), own_cpu().saturating_sub(own));
    let cpu = cpu_of(server).saturating_sub(cpu);
    let mut times: Vec<Duration> = times.into_iter().flatten().collect();
    times.sort_unstable();
    let calls = u32::try_from(times.len()).expect("not so many calls");
    Round {
        per_second: f64::from(calls) / took.as_secs_f64(),
        median: times[times.len() / 2],
        cpu: cpu / calls,
        own_cpu: own / calls,
    }
}

/// Decisions of a limiter.
fn limiter(store: &Store, tag: &str, is_leased: bool) -> AnyLimiter {
    let builder = store.limiter(tag).limit("calls", POLICY);
    let builder = if is_leased { builder.leased() } else { builder };
    builder.build().expect("a limiter").into()
}

/// Other limiters, if they are available.
fn peers(server: &Server) -> Vec<(String, Round)> {
    let node = "cp \"$FROM\"/peers/* . && npm install --silent --no-audit --no-fund >&2 && node peers.js";
    let trypema =
        "cargo run --quiet --release --target-dir target --manifest-path \"$FROM\"/trypema/Cargo.toml";
    let rounds =
        [("node", node, "node and npm"), ("trypema", trypema, "cargo")].map(|(name, command, needs)| {
            let target = format!("{}/peers/{name}", env!("CARGO_TARGET_TMPDIR"));
            let command = Command::new("sh")
                .args(["-c", &format!("mkdir -p \"$TARGET\" && cd \"$TARGET\" && {command}")])
                .env("TARGET", target)
                .env("FROM", concat!(env!("CARGO_MANIFEST_DIR"), "/benches/speed"))
                .env("SOCKET", server.socket())
                .stderr(Stdio::null())
                .output();
            let output = command.ok().filter(|output| output.status.success());
            if output.is_none() {
                eprintln!("skipped: peers that need {needs}, and a registry");
            }
            output.map_or_else(Vec::new, |output| read_rounds(&String::from_utf8_lossy(&output.stdout)))
        });
    rounds.concat()
}

/// Lines of a name, the tasks, the decisions a second, and two times in microseconds.
fn read_rounds(lines: &str) -> Vec<(String, Round)> {
    let round = |line: &str| {
        let (name, numbers) = line.split_once(' ')?;
        let numbers: Vec<f64> = numbers.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [tasks, per_second, median, cpu] = numbers[..] else { return None };
        let micros = |n: f64| Duration::from_secs_f64(n / 1e6);
        Some((
            row(name, tasks),
            Round { per_second, median: micros(median), cpu: micros(cpu), own_cpu: Duration::ZERO },
        ))
    };
    lines.lines().filter_map(round).collect()
}

fn row(name: &str, tasks: impl std::fmt::Display) -> String {
    format!("{tasks} in flight: {name}")
}

fn print(name: &str, Round { per_second, median, cpu, own_cpu }: &Round, beside: Option<f64>) {
    let micros = |span: &Duration| span.as_secs_f64() * 1e6;
    let (rate, beside) = (per_second / 1e3, beside.map_or(String::new(), |ratio| format!("{ratio:.2}")));
    let [median, cpu, own_cpu] = [median, cpu, own_cpu].map(micros);
    println!("| {name} | {rate:.1} k | {median:.1} µs | {cpu:.1} µs | {own_cpu:.1} µs | {beside} |");
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let option = |name: &str| args.iter().position(|arg| arg == name).and_then(|i| args.get(i + 1));
    let rounds = option("--rounds").and_then(|rounds| rounds.parse().ok()).unwrap_or(5).max(1);
    let only = option("--only");
    let Some(server) = Server::start() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let builder = || Store::builder(server.url()).timeout(Duration::from_secs(10));
    let store = builder().open().expect("a store");
    let near = runtime.block_on(async { builder().on_this_runtime().open() }).expect("a store");
    let mut rows: Vec<(String, Box<dyn Fn() -> Round + '_>)> = Vec::new();
    for tasks in [1, 100] {
        for (name, cmd) in bare::commands(&server, POLICY) {
            let connection = runtime.block_on(bare::connect(&server));
            let (runtime, server) = (&runtime, &server);
            rows.push((
                row(name, tasks),
                Box::new(move || {
                    round(runtime, server, tasks, || {
                        let (mut connection, cmd) = (connection.clone(), cmd.clone());
                        async move {
                            connection.send_packed_command(&cmd).await.expect("an answer");
                        }
                    })
                }),
            ));
        }
        for (name, store, is_leased) in
            [("exact", &store, false), ("exact, on the runtime", &near, false), ("leased", &store, true)]
        {
            let limiter = limiter(store, &format!("{name}-{tasks}"), is_leased);
            let (runtime, server) = (&runtime, &server);
            rows.push((
                row(name, tasks),
                Box::new(move || {
                    round(runtime, server, tasks, || {
                        let limiter = limiter.clone();
                        async move {
                            // Leases may be spent before more are booked.
                            while limiter.acquire_now([]).await.is_err() {
                                tokio::task::yield_now().await;
                            }
                        }
                    })
                }),
            ));
        }
    }
    rows.retain(|(name, _)| only.is_none_or(|only| name.contains(only.as_str()) || name.ends_with(BARE)));
    let mut found: Vec<Vec<Round>> = vec![Vec::new(); rows.len()];
    for _ in 0..rounds {
        rows.iter().zip(&mut found).for_each(|((_, row), found)| found.push(row()));
    }
    let bare = |name: &str| {
        let (tasks, _) = name.split_once(':')?;
        rows.iter().position(|(name, _)| name.starts_with(tasks) && name.ends_with(BARE))
    };
    println!("| calls | decisions/s | p50 | server CPU a decision | client CPU | beside bare |");
    println!("|---|---|---|---|---|---|");
    for ((name, _), of_row) in rows.iter().zip(&found) {
        let beside = bare(name).map(|bare| {
            let pairs = of_row.iter().zip(&found[bare]);
            let mut ratios: Vec<f64> =
                pairs.map(|(of, bare)| of.median.as_secs_f64() / bare.median.as_secs_f64()).collect();
            ratios.sort_unstable_by(f64::total_cmp);
            ratios[ratios.len() / 2]
        });
        let best = of_row.iter().max_by(|a, b| a.per_second.total_cmp(&b.per_second));
        best.into_iter().for_each(|best| print(name, best, beside));
    }
    if only.is_none() {
        peers(&server).iter().for_each(|(name, round)| print(name, round, None));
    }
    for counts in [store.counts(), near.counts()] {
        assert_eq!((counts.unknown, counts.failed, counts.skipped), (0, 0, 0), "{counts:?}");
    }
}
