//! Eight processes take 5,000 permits per second from one store, which is stopped and killed in the
//! meantime.
//!
//! ```text
//! cargo run --release -p tidegate-redis --example fleet_on_servers
//! ```
//!
//! The program starts its own server, a cluster of three, and Valkey if it is installed. If no
//! server is installed, root installs `redis-server` with `apt-get`. The program starts itself
//! eight times. Each process has 50 tasks that take permits in a loop, and records each grant with
//! the server's time. In the row of leases a grant has the time of its decision, because the server
//! only knows bookings. The rows are computed from these records: permits granted in four seconds
//! by their instants, calls of the servers for each permit, Jain's index of the processes, the
//! maximum wait, and how many permits any span of any limit got beyond the bound. Then the server
//! is stopped for a second, and killed and started empty. An empty server does not know the permits
//! granted before: it may grant a burst once more, and the permits that were booked.
//!
//! A picture of each goes to `docs/pictures` of the crate.
//!
//! `-- --seconds 2` counts for two seconds, without faults, pictures and an installation.
//!
//! `-- --soak 3600` runs for an hour: see `soak.rs`. It takes about a tenth of a processor.

#[path = "../simulation/check.rs"]
mod check;
#[path = "../simulation/plot.rs"]
mod plot;
mod process;
mod soak;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use check::{Bound, Grant, jain};
use plot::{Band, Curve, Panel};
use process::{Job, Log};
use support::{Server, free_port, wait_until};

const PROCESSES: usize = 8;
const PER_SECOND: u64 = 5000;
const BURST: u64 = 100;
/// Seconds from the time at which the processes begin to ask.
const WARM: f64 = 0.5;
const SECONDS: f64 = 4.0;
const STOPPED: (f64, f64) = (5.0, 6.0);
const KILLED: (f64, f64) = (8.0, 8.5);
const END: f64 = 12.0;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    if let Some(job) = Job::from_args() {
        process::run(&job)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(soaked) = soak::process() {
        return soaked.map(|()| ExitCode::SUCCESS);
    }
    if let [name, seconds] = &std::env::args().skip(1).collect::<Vec<_>>()[..]
        && name == "--soak"
    {
        return soak::run(seconds.parse()?);
    }
    let short = short()?;
    if short.is_none() {
        install();
    }
    if support::program().is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "| store | permits/s | use | calls a permit | Jain | longest wait | beyond the bound | with the faults | of shares |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let Some(server) = Server::start() else { return Ok(ExitCode::SUCCESS) };
    let url = server.url();
    let (name, picture, is_leased, tags) = ("one server", "fleet", false, 1);
    let mut over = Fleet { name, picture, servers: vec![server], url, tags, is_leased, short }.run()?;
    if let Some(server) = Server::start() {
        let url = server.url();
        let (name, picture, is_leased) = ("one server, leased", "fleet_leased", true);
        over += Fleet { name, picture, servers: vec![server], url, tags, is_leased, short }.run()?;
    }
    if let Some((servers, url)) = cluster() {
        let (name, picture, is_leased, tags) = ("cluster of three", "fleet_cluster", false, 5);
        over += Fleet { name, picture, servers, url, tags, is_leased, short }.run()?;
    }
    if support::is_installed("valkey-server") {
        let server = Server::start_program("valkey-server");
        let url = server.url();
        let (name, picture, is_leased) = ("Valkey", "fleet_valkey", false);
        over += Fleet { name, picture, servers: vec![server], url, tags, is_leased, short }.run()?;
    } else {
        println!("\nValkey is not installed: apt-get install valkey-server.");
    }
    Ok(if over > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the number of seconds for which permits are counted, if the run has no faults.
fn short() -> Result<Option<f64>, Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [] => Ok(None),
        [name, text] if name == "--seconds" => match text.parse::<f64>() {
            Ok(seconds) if seconds > 0.0 && seconds <= 1e6 => Ok(Some(seconds)),
            _ => Err(format!("--seconds {text}: the value is a number of seconds").into()),
        },
        _ => Err("the arguments are --seconds or --soak, and a number".into()),
    }
}

/// Installs a server if none is installed and this process may install one.
fn install() {
    let there = ["redis-server", "valkey-server"].iter().any(|program| support::is_installed(program));
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
    if !there && is_root {
        let apt = |args: &[&str]| Command::new("apt-get").args(args).status();
        _ = apt(&["-qq", "update"]);
        _ = apt(&["-qq", "-y", "install", "redis-server"]);
    }
}

/// Starts three primaries with a third of the slots each.
fn cluster() -> Option<(Vec<Server>, String)> {
    let mut servers = Vec::new();
    for _ in 0..3 {
        let bus = free_port().to_string();
        let coverage = ["--cluster-require-full-coverage", "no"];
        let args = [["--cluster-enabled", "yes"], ["--cluster-port", &bus], coverage];
        servers.push((Server::start_at_port(args.as_flattened())?, bus));
    }
    for ((server, _), slots) in servers.iter().zip(["0 5460", "5461 10922", "10923 16383"]) {
        server.tell(&format!("CLUSTER ADDSLOTSRANGE {slots}"));
    }
    for (i, (server, bus)) in servers.iter().enumerate() {
        server.tell(&format!("CLUSTER SET-CONFIG-EPOCH {}", i + 1));
        servers[0].0.tell(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", server.port()));
    }
    let is_ready = |server: &Server| {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut server.connect()).unwrap_or_default();
        info.contains("cluster_state:ok") && info.contains("cluster_slots_assigned:16384")
    };
    wait_until("the cluster is ready", || servers.iter().all(|(server, _)| is_ready(server)));
    let hosts: Vec<_> = servers.iter().map(|(server, _)| format!("127.0.0.1:{}", server.port())).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    Some((servers.into_iter().map(|(server, _)| server).collect(), url))
}

/// A store, and the processes that use it.
struct Fleet {
    name: &'static str,
    picture: &'static str,
    servers: Vec<Server>,
    url: String,
    /// The number of limits, which have equal parts of the permits.
    tags: u64,
    /// Whether the processes lease permits.
    is_leased: bool,
    short: Option<f64>,
}

impl Fleet {
    /// Returns how many permits were beyond the bound while no fault was active.
    fn run(mut self) -> Result<u64, Box<dyn Error>> {
        let limit = Bound { per_second: PER_SECOND / self.tags, burst: BURST / self.tags };
        let folder = tempfile::tempdir()?;
        // Processes learn how many they are before they ask.
        let begin = SystemTime::now().duration_since(UNIX_EPOCH)? + Duration::from_secs(5);
        let until_healthy = WARM + self.short.unwrap_or(SECONDS);
        let seconds = if self.short.is_some() { until_healthy } else { END };
        let mut processes = Vec::new();
        for i in 0..PROCESSES {
            let log = folder.path().join(i.to_string());
            let (url, tags) = (self.url.clone(), self.tags);
            let job = Job { url, tags, limit, is_leased: self.is_leased, begin, seconds, log };
            let child: Child = Command::new(std::env::current_exe()?).args(job.args()).spawn()?;
            processes.push((child, job.log));
        }
        let until = |seconds: f64| {
            let time = UNIX_EPOCH + begin + Duration::from_secs_f64(seconds);
            std::thread::sleep(time.duration_since(SystemTime::now()).unwrap_or_default());
        };
        until(WARM);
        let before = self.calls();
        until(until_healthy);
        let calls = self.calls() - before;
        if self.short.is_none() {
            until(STOPPED.0);
            self.servers[0].signal("STOP");
            until(STOPPED.1);
            self.servers[0].signal("CONT");
            until(KILLED.0);
            self.servers[0].kill();
            until(KILLED.1);
            self.servers[0].run();
        }
        let mut logs = Vec::new();
        for (mut child, log) in processes {
            if !child.wait()?.success() {
                return Err("a process failed".into());
            }
            logs.push(Log::read(&log)?);
        }
        self.tell(limit, begin, calls, &logs)
    }

    /// Returns how many scripts the servers have run.
    fn calls(&self) -> u64 {
        let calls = self.servers.iter().flat_map(|server| {
            ["cmdstat_evalsha", "cmdstat_eval"].map(|name| server.info("commandstats", name))
        });
        let number = |line: String| line.strip_prefix("calls=")?.split(',').next()?.parse::<u64>().ok();
        calls.flatten().filter_map(number).sum()
    }

    fn tell(&self, limit: Bound, begin: Duration, calls: u64, logs: &[Log]) -> Result<u64, Box<dyn Error>> {
        let seconds = |micros: i64| micros as f64 / 1e6 - begin.as_secs_f64();
        let counted = self.short.unwrap_or(SECONDS);
        let is_healthy = |due: i64| (WARM..WARM + counted).contains(&seconds(due));
        let (mut over, mut over_in_faults) = (0, 0);
        // A permit on lease is spent up to 200 ms after the instant from which it is usable.
        let micros = if self.is_leased { 200_000 } else { 1 };
        for tag in 0..self.tags {
            let of_tag = logs.iter().flat_map(|log| log.grants.iter().filter(|(of, ..)| *of == tag));
            let mut grants: Vec<Grant> = of_tag.map(|(_, due, n)| (*due, *n)).collect();
            over_in_faults = over_in_faults.max(limit.over(&mut grants, micros));
            grants.retain(|(due, _)| seconds(*due) < STOPPED.0);
            over = over.max(limit.over(&mut grants, micros));
        }
        let of_process = logs.iter().map(|log| {
            log.grants.iter().filter(|(_, due, _)| is_healthy(*due)).map(|(.., n)| *n as f64).sum::<f64>()
        });
        let of_process: Vec<f64> = of_process.collect();
        let total: f64 = of_process.iter().sum();
        if total == 0.0 {
            return Err("no permit was granted".into());
        }
        let rate = total / counted;
        let longest = logs.iter().map(|log| log.longest).max().unwrap_or_default();
        let shares: usize = logs.iter().map(|log| log.degraded.len()).sum();
        println!(
            "| {} | {rate:.0} | {:.1} % | {:.3} | {:.4} | {:.0} ms | {over} | {over_in_faults} | {shares} |",
            self.name,
            100.0 * rate / PER_SECOND as f64,
            calls as f64 / total,
            jain(of_process),
            longest.as_secs_f64() * 1e3,
        );
        if self.short.is_some() {
            return Ok(over);
        }
        let store = logs.iter().flat_map(|log| log.grants.iter().map(|(_, due, n)| (*due, *n)));
        let shares = logs.iter().flat_map(|log| log.degraded.iter().map(|at| (*at, 1)));
        let panel = Panel {
            title: "Permits a second of eight processes",
            x: "time in seconds",
            right: END,
            top: 7500.0,
            limit: Some(PER_SECOND as f64),
            curves: vec![
                Curve { label: "of the store", points: rates(store.map(|(at, n)| (seconds(at), n))) },
                Curve { label: "of shares", points: rates(shares.map(|(at, n)| (seconds(at), n))) },
            ],
            bands: vec![
                Band { span: STOPPED.0..STOPPED.1, label: "stopped" },
                Band { span: KILLED.0..KILLED.1, label: "killed" },
            ],
        };
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures"));
        std::fs::create_dir_all(folder)?;
        plot::draw(&folder.join(format!("{}.svg", self.picture)), &[panel])?;
        Ok(over)
    }
}

/// Returns the permits per second in each tenth of a second.
fn rates(permits: impl Iterator<Item = (f64, u64)>) -> Vec<(f64, f64)> {
    const TENTHS: usize = 120;
    let mut bins = [0; TENTHS];
    for (at, n) in permits {
        // The time is in range if the bin exists.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        if at >= 0.0
            && let Some(bin) = bins.get_mut((at * 10.0) as usize)
        {
            *bin += n;
        }
    }
    bins.iter().enumerate().map(|(i, n)| (i as f64 / 10.0 + 0.05, *n as f64 * 10.0)).collect()
}
