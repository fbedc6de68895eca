//! A long run: eight processes at a moderate load, which are killed at random, and a server that is
//! stopped at random.
//!
//! Each process takes permits of three limits: one that the store decides, one on lease, and one of
//! permits in use. It prints each grant at once. The program that started the process checks the
//! grants as they arrive, in bounded memory: no span of time has more permits than the bound of its
//! limit, and no more permits than the limit are in use at one time. At the end no key is left.
//!
//! The processes and the server read the same clock. A grant of the store counts at its instant. A
//! permit of a lease counts when the process has it. A permit that took long to get is not counted,
//! because the time of its grant is not known precisely enough. Permits in use count from the time
//! after they were acquired to the time before they are given back, or until their process is
//! killed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::AnyLimiter;
use tidegate_redis::{Store, WhileAway};

use crate::PROCESSES;
use crate::check::{Bound, Spans};
use crate::support::Server;

/// The limit that the store decides.
const EXACT: Bound = Bound { per_second: 50, burst: 20 };
/// The limit on lease. Its processes ask for half more.
const LEASED: Bound = Bound { per_second: 200, burst: 200 };
/// How long before a permit of a lease is spent it may have been booked, and how long it may take
/// to get, in microseconds.
const LEASE: u32 = 200_000;
const SWIFT: i64 = 5_000;
/// The permits in use.
const IN_USE: i64 = 10;
/// It is an error if a line arrives after a grant that is more than this many microseconds later.
const LATEST: i64 = 10_000_000;

/// An event that a process reports, with a time in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    /// A permit in use was given back. It sorts before others of the same time.
    Ended(u64),
    Began(u64),
    /// Permits granted by the store.
    Granted(u64),
    /// A permit of a lease.
    Spent,
}

enum News {
    Told(i64, Told),
    /// The share of the process granted a permit.
    Share,
    /// The process has ended, and all its events were read.
    Over,
}

/// The checks, in the order of the times.
struct Checks {
    waiting: BinaryHeap<Reverse<(i64, usize, Told)>>,
    newest: i64,
    /// Events up to this time are checked.
    checked: i64,
    exact: Spans,
    leased: Spans,
    in_use: i64,
    most_in_use: i64,
    late: u64,
    counts: [u64; 4],
}

impl Checks {
    fn add(&mut self, at: i64, process: usize, told: Told) {
        if at < self.checked {
            self.late += 1;
        }
        self.newest = self.newest.max(at);
        self.waiting.push(Reverse((at, process, told)));
        self.check(self.newest - LATEST);
    }

    fn check(&mut self, until: i64) {
        while let Some(Reverse((at, ..))) = self.waiting.peek()
            && *at <= until
        {
            let Some(Reverse((at, _, told))) = self.waiting.pop() else { return };
            self.checked = self.checked.max(at);
            match told {
                Told::Granted(n) => {
                    self.exact.add(at, n);
                    self.counts[0] += n;
                }
                Told::Spent => {
                    self.leased.add(at, 1);
                    self.counts[1] += 1;
                }
                Told::Began(_) => {
                    self.in_use += 1;
                    self.most_in_use = self.most_in_use.max(self.in_use);
                    self.counts[2] += 1;
                }
                Told::Ended(_) => self.in_use -= 1,
            }
        }
    }
}

/// A process, by its number.
struct Process {
    child: Child,
    slot: usize,
    killed: Option<i64>,
    /// The permits in use that it reported.
    uses: HashMap<u64, ()>,
}

/// Runs for a number of seconds.
pub(crate) fn run(seconds: u64) -> Result<ExitCode, Box<dyn Error>> {
    let Some(server) = Server::start() else { return Ok(ExitCode::SUCCESS) };
    let seed = now().unsigned_abs();
    let mut random = SmallRng::seed_from_u64(seed);
    println!("eight processes for {seconds} s, seed {seed}");
    let (sender, news) = sync_channel(10_000);
    let mut fleet = Fleet {
        url: server.url(),
        end: now() + i64::try_from(seconds)? * 1_000_000,
        sender,
        started: 0,
        processes: HashMap::new(),
        checks: Checks {
            waiting: BinaryHeap::new(),
            newest: 0,
            checked: 0,
            exact: EXACT.spans(1),
            leased: LEASED.spans(LEASE + u32::try_from(SWIFT)?),
            in_use: 0,
            most_in_use: 0,
            late: 0,
            counts: [0; 4],
        },
    };
    for slot in 0..PROCESSES {
        fleet.start(slot)?;
    }
    // Mean times between two kills, and between two stops.
    let kills_every = (seconds as f64 / 8.0).clamp(1.0, 10.0);
    let stops_every = (seconds as f64 / 4.0).clamp(2.0, 30.0);
    let mut after =
        |mean: f64| Instant::now() + Duration::from_secs_f64(random.random_range(0.5..1.5) * mean);
    let (mut kill_at, mut stop_at, mut tell_at) = (after(kills_every), after(stops_every), after(60.0));
    let (mut kills, mut stops, mut stopped) = (0, 0, None);
    while now() < fleet.end {
        let time = Instant::now();
        if time >= kill_at {
            kill_at = after(kills_every);
            kills += 1;
            fleet.kill(kills)?;
        }
        match stopped {
            Some(until) if time >= until => {
                server.signal("CONT");
                (stopped, stop_at) = (None, after(stops_every));
            }
            None if time >= stop_at => {
                server.signal("STOP");
                stops += 1;
                stopped = Some(after(0.5));
            }
            _ => {}
        }
        if time >= tell_at {
            tell_at = after(60.0);
            fleet.tell();
        }
        fleet.listen(&news, Duration::from_millis(20))?;
    }
    server.signal("CONT");
    let wrong = fleet.finish(&news)?;
    let begun = Instant::now();
    let mut connection = server.connect();
    let mut keys = u64::MAX;
    while keys > 0 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(100));
        keys = redis::cmd("DBSIZE").query(&mut connection)?;
    }
    fleet.tell();
    println!("{kills} processes were killed, the server was stopped {stops} times, {keys} keys are left");
    drop(server);
    if let Some(cpu) = cpu() {
        println!("all processes took {:.1} % of a processor", 100.0 * cpu / seconds as f64);
    }
    Ok(if wrong || keys > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Fleet {
    url: String,
    end: i64,
    sender: SyncSender<(usize, News)>,
    started: usize,
    processes: HashMap<usize, Process>,
    checks: Checks,
}

impl Fleet {
    fn start(&mut self, slot: usize) -> Result<(), Box<dyn Error>> {
        let number = self.started;
        self.started += 1;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["soak-process", &self.url, &self.end.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            // A killed process may leave an incomplete line.
            for news in lines.map_while(Result::ok).filter_map(|line| read(&line)) {
                if sender.send((number, news)).is_err() {
                    return;
                }
            }
            _ = sender.send((number, News::Over));
        });
        self.processes.insert(number, Process { child, slot, killed: None, uses: HashMap::new() });
        Ok(())
    }

    /// Kills one process, and starts another one instead of it.
    fn kill(&mut self, kills: usize) -> Result<(), Box<dyn Error>> {
        let slot = kills % PROCESSES;
        let lives = |process: &&mut Process| process.slot == slot && process.killed.is_none();
        let Some(process) = self.processes.values_mut().find(lives) else { return Ok(()) };
        process.killed = Some(now());
        process.child.kill()?;
        self.start(slot)
    }

    /// Checks the events of processes, for `span`.
    fn listen(&mut self, news: &Receiver<(usize, News)>, span: Duration) -> Result<(), Box<dyn Error>> {
        let until = Instant::now() + span;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            let (number, news) = match news.recv_timeout(rest) {
                Ok(news) => news,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let Some(process) = self.processes.get_mut(&number) else { continue };
            match news {
                News::Share => self.checks.counts[3] += 1,
                News::Told(at, told) => {
                    match told {
                        Told::Began(id) => _ = process.uses.insert(id, ()),
                        Told::Ended(id) => _ = process.uses.remove(&id),
                        _ => {}
                    }
                    self.checks.add(at, number, told);
                }
                News::Over => {
                    let Some(mut process) = self.processes.remove(&number) else { continue };
                    let status = process.child.wait()?;
                    let Some(killed) = process.killed else {
                        if status.success() {
                            continue;
                        }
                        return Err("a process failed".into());
                    };
                    for id in process.uses.into_keys() {
                        self.checks.add(killed, number, Told::Ended(id));
                    }
                }
            }
        }
    }

    /// Waits for the processes to end. Returns whether anything is wrong.
    fn finish(&mut self, news: &Receiver<(usize, News)>) -> Result<bool, Box<dyn Error>> {
        let begun = Instant::now();
        while !self.processes.is_empty() {
            if begun.elapsed() > Duration::from_secs(60) {
                return Err("a process does not end".into());
            }
            self.listen(news, Duration::from_millis(20))?;
        }
        let checks = &mut self.checks;
        checks.check(i64::MAX);
        Ok(checks.exact.over() > 0
            || checks.leased.over() > 0
            || checks.most_in_use > IN_USE
            || checks.late > 0)
    }

    fn tell(&self) {
        let Checks { exact, leased, most_in_use, late, counts, .. } = &self.checks;
        let [granted, spent, uses, shares] = counts;
        println!(
            "by the store {granted}, {} beyond the bound; on lease {spent}, {} beyond; in use {uses}, at most \
             {most_in_use} of {IN_USE} at one time; {shares} of shares; {late} lines came too late",
            exact.over(),
            leased.over()
        );
    }
}

fn read(line: &str) -> Option<News> {
    let mut words = line.split(' ');
    let (name, mut next) = (words.next()?, || words.next()?.parse::<i64>().ok());
    Some(match name {
        "granted" => News::Told(next()?, Told::Granted(next()?.unsigned_abs())),
        "spent" => News::Told(next()?, Told::Spent),
        "began" => News::Told(next()?, Told::Began(next()?.unsigned_abs())),
        "ended" => News::Told(next()?, Told::Ended(next()?.unsigned_abs())),
        "share" => News::Share,
        _ => return None,
    })
}

/// Unix time in microseconds.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

/// Returns the processor time in seconds of this program and of all that it started, if the system
/// reports it.
fn cpu() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let numbers = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(4);
    // Time of this process and of its children, in user mode and in the kernel, in hundredths of a
    // second.
    Some(numbers.filter_map(|number| number.parse::<f64>().ok()).sum::<f64>() / 100.0)
}

fn say(line: &str) {
    // The reading program may have ended.
    _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Runs one of the processes; `None` if this process is not one of them.
pub(crate) fn process() -> Option<Result<(), Box<dyn Error>>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [mode, url, end] = &args[..] else { return None };
    let end = end.parse().ok().filter(|_| mode == "soak-process")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Some(runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(take(url, end))))
}

async fn take(url: &str, end: i64) -> Result<(), Box<dyn Error>> {
    let store = Store::builder(url).while_away(WhileAway::Share).open()?;
    store.log_grants(|key, due, permits| {
        if key.contains("{exact}") {
            say(&format!("granted {due} {permits}"));
        }
    });
    let limiter = |name: &str, Bound { per_second, burst }: Bound| {
        store.limiter(name).limit("calls", format!("token_bucket {per_second}/s burst {burst}"))
    };
    let exact = AnyLimiter::from(limiter("exact", EXACT).build()?);
    let leased = AnyLimiter::from(limiter("leased", LEASED).leased().build()?);
    // Permits in use come only from the store, so the limit holds whatever happens.
    let others = Store::builder(url).prefix("in-use").open()?;
    let in_use = AnyLimiter::from(others.counting("jobs", u32::try_from(IN_USE)?).build()?);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        tasks.spawn(by_store(exact.clone(), end));
    }
    tasks.spawn(on_lease(leased, end));
    for task in 0..2 {
        tasks.spawn(hold(in_use.clone(), task, end));
    }
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    Ok(())
}

async fn by_store(limiter: AnyLimiter, end: i64) {
    while now() < end {
        match limiter.acquire().await {
            Ok(permits) if permits.is_degraded() => say("share"),
            Ok(_) => {}
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn on_lease(limiter: AnyLimiter, end: i64) {
    let interval =
        Duration::from_secs(2 * PROCESSES as u64) / u32::try_from(3 * LEASED.per_second).unwrap_or(1);
    let mut next = Instant::now();
    while now() < end {
        let before = now();
        if let Ok(permits) = limiter.acquire_now([]).await {
            let after = now();
            match permits.is_degraded() {
                true => say("share"),
                false if after - before <= SWIFT => say(&format!("spent {after}")),
                false => {}
            }
        }
        next = (next + interval).max(Instant::now());
        tokio::time::sleep_until(next.into()).await;
    }
}

async fn hold(limiter: AnyLimiter, task: u64, end: i64) {
    let mut random = SmallRng::seed_from_u64(u64::from(std::process::id()) * 2 + task);
    let mut id = task;
    while now() < end {
        let Ok(permits) = limiter.acquire().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        say(&format!("began {} {id}", now()));
        tokio::time::sleep(Duration::from_millis(random.random_range(300..900))).await;
        say(&format!("ended {} {id}", now()));
        drop(permits);
        id += 2;
    }
}
