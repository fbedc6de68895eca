//! The parts that processes get of a limit that they lease, over a model of a server, on paused
//! time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::AnyLimiter;
use tidegate_redis::Store;
use tidegate_redis::simulation::{Model, Network, run};
use tokio::time::Instant;

use crate::MS;

/// The permits that accrue each second, and those of a full limit.
const RATE: u64 = 2000;

/// The life of a lease, in milliseconds.
const LIFE: u64 = 200;

/// The repeated action of a task.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Acquire,
    /// The task waits at most this long, and retries when a refusal says.
    Within(Duration),
    /// The task takes a permit or none, and retries after a pause.
    Try(Duration),
}

/// Takes a permit of a limiter. A refused task sleeps for its `retry_after`, and for a millisecond
/// at least.
async fn take(limiter: &AnyLimiter, ask: Ask) -> u64 {
    let answer = match ask {
        Ask::Acquire => limiter.acquire().await,
        Ask::Within(longest) => limiter.acquire_within(longest).await,
        Ask::Try(pause) => {
            let answer = limiter.acquire_now([]).await;
            tokio::time::sleep(pause).await;
            return answer.map_or(0, |permits| permits.permits().into());
        }
    };
    match answer {
        Ok(permits) => permits.permits().into(),
        Err(refusal) => {
            tokio::time::sleep(refusal.retry_after().unwrap().max(MS)).await;
            0
        }
    }
}

/// Tasks of several processes that take permits in sequence.
struct Loops {
    model: Model,
    line: &'static str,
    stores: Vec<Store>,
    taken: Vec<Arc<AtomicU64>>,
    began: Instant,
}

impl Loops {
    fn new(line: &'static str) -> Loops {
        let model = Model::new(1, Network::steady(Duration::from_micros(500)));
        Loops { model, line, stores: Vec::new(), taken: Vec::new(), began: Instant::now() }
    }

    fn join(&mut self, (tasks, ask): (u64, Ask)) {
        let store = self.model.open(Store::builder("redis://model")).unwrap();
        let limit = store.limiter("all").limit("calls", self.line);
        let limiter = AnyLimiter::from(limit.leased().build().unwrap());
        let taken = Arc::new(AtomicU64::new(0));
        for _ in 0..tasks {
            let (limiter, taken) = (limiter.clone(), taken.clone());
            tokio::spawn(async move {
                loop {
                    let permits = take(&limiter, ask).await;
                    taken.fetch_add(permits, Ordering::Relaxed);
                }
            });
        }
        self.stores.push(store);
        self.taken.push(taken);
    }

    fn sum(&self) -> u64 {
        self.taken.iter().map(|taken| taken.load(Ordering::Relaxed)).sum()
    }

    /// Lets time pass. Returns the permits that each process takes in it.
    async fn pass(&self, seconds: u64) -> Vec<u64> {
        let taken = || self.taken.iter().map(|taken| taken.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = taken();
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap();
            let most = match self.line.starts_with("fixed_window") {
                // A window begins with the first request.
                true => (millis / 1000 + 1) * RATE,
                false => RATE + RATE * (millis + LIFE) / 1000,
            };
            assert!(self.sum() <= most, "{}: {} of {most}", self.line, self.sum());
        }
        taken().iter().zip(&before).map(|(after, before)| after - before).collect()
    }
}

const BUCKET: &str = "token_bucket 2000/s burst 2000";
const FIXED: &str = "fixed_window 2000/s";
/// The permits that are too few for one more lease are not used.
const SLIDING: &str = "sliding_window 2000/s cells 10";

/// The first process is alone for three seconds. Asserts that in the fifth second with the others
/// each process has half of the part of its tasks, that later it has three quarters and not many
/// times the part, and that most of the limit is used, by few calls. Tasks that do not wait are not
/// counted.
fn assert_parts(line: &'static str, processes: &[(u64, Ask)]) {
    let processes = processes.to_vec();
    run(async move {
        let mut loops = Loops::new(line);
        loops.join(processes[0]);
        loops.pass(3).await;
        processes[1..].iter().for_each(|process| loops.join(*process));
        loops.pass(4).await;
        let soon = loops.pass(1).await;
        loops.pass(1).await;
        let calls = loops.model.calls();
        let taken = loops.pass(2).await;
        let calls = loops.model.calls() - calls;
        let of = format!("{line}, {processes:?}: {soon:?}, then {taken:?} by {calls} calls");
        println!("{of}, {} in all", loops.sum());
        let waits = |process: &(u64, Ask)| if matches!(process.1, Ask::Try(_)) { 0 } else { process.0 };
        let all: u64 = processes.iter().map(waits).sum();
        for ((process, soon), taken) in processes.iter().zip(soon).zip(&taken) {
            let part = RATE as f64 * waits(process) as f64 / all as f64;
            assert!(soon as f64 >= part / 2.0, "{of}: {soon} of {part}");
            // A lease has no more than a tenth of the rate, so few tasks get more than their part.
            let most = if line == BUCKET { 2.5 } else { 5.0 };
            let times = *taken as f64 / 2.0 / part;
            assert!(part == 0.0 || (0.75..=most).contains(&times), "{of}: {times} of {part}");
        }
        let most_calls = match processes[0].1 {
            // A lease is no longer than a part of the wait.
            Ask::Within(longest) if longest <= 200 * MS => 0.22,
            // A window that is used up at once is divided by calls.
            _ if line == FIXED => 0.05,
            _ => 0.04,
        };
        assert!(calls as f64 <= most_calls * taken.iter().sum::<u64>() as f64, "{of}");
        let most = if line == BUCKET { RATE + 11 * RATE } else { 11 * RATE };
        let used = if line == SLIDING { 15.0 / 16.0 } else { 0.98 };
        assert!(loops.sum() as f64 >= used * most as f64, "{of}: {}", loops.sum());
    });
}

/// A process once requested as many permits as it had got, because a loop that awaits requests no
/// more. The first process thus had 97 of 100 permits for ever.
///
/// Without leases each task has one request in the store's queue, so all tasks get equal parts.
#[test]
fn loops_of_processes_that_join_a_busy_limit_get_what_they_would_without_leases() {
    let cases: [(&str, &[u64]); 11] = [
        (BUCKET, &[1, 1]),
        (BUCKET, &[20, 20]),
        (BUCKET, &[1, 50]),
        (BUCKET, &[50, 1]),
        (BUCKET, &[4; 8]),
        (BUCKET, &[20, 20, 20, 20, 1, 1, 1, 1]),
        (FIXED, &[1, 1]),
        (FIXED, &[1, 50]),
        (FIXED, &[4; 8]),
        (SLIDING, &[1, 1]),
        (SLIDING, &[4; 8]),
    ];
    for (line, tasks) in cases {
        assert_parts(line, &tasks.iter().map(|tasks| (*tasks, Ask::Acquire)).collect::<Vec<_>>());
    }
}

/// A process that joined once had 19 of 2,000 permits a second, and of seven that joined each had
/// 42. A request with a maximum wait was decided by the store if no lease served it, so these
/// processes had leases for the permits that they had got.
#[test]
fn loops_over_requests_with_a_longest_wait_get_what_they_would_without_leases() {
    let cases: [(&str, &[u64]); 11] = [
        (BUCKET, &[1, 1]),
        (BUCKET, &[4, 4]),
        (BUCKET, &[40, 40]),
        (BUCKET, &[50, 1]),
        (BUCKET, &[4; 8]),
        (FIXED, &[1, 1]),
        (FIXED, &[50, 1]),
        (FIXED, &[4; 8]),
        (SLIDING, &[1, 1]),
        (SLIDING, &[50, 1]),
        (SLIDING, &[4; 8]),
    ];
    for (line, tasks) in cases {
        let process = |tasks: &u64| (*tasks, Ask::Within(1000 * MS));
        assert_parts(line, &tasks.iter().map(process).collect::<Vec<_>>());
    }
    assert_parts(BUCKET, &[(4, Ask::Within(200 * MS)); 2]);
}

/// If a lease had the permits of 100 ms, the limit was booked for longer than such requests wait.
/// The process that joined thus had 10 of 2,000 permits a second, and of eight processes one had
/// three quarters.
#[test]
fn loops_over_requests_with_a_short_longest_wait_get_what_they_would_without_leases() {
    let cases: [(Duration, &[u64]); 8] = [
        (20 * MS, &[1, 1]),
        (20 * MS, &[20, 1]),
        (50 * MS, &[1, 1]),
        (50 * MS, &[4, 4]),
        (50 * MS, &[1, 20]),
        (50 * MS, &[20, 1]),
        (100 * MS, &[20, 20]),
        (100 * MS, &[4; 8]),
    ];
    for (longest, tasks) in cases {
        let process = |tasks: &u64| (*tasks, Ask::Within(longest));
        assert_parts(BUCKET, &tasks.iter().map(process).collect::<Vec<_>>());
    }
}

/// Of two such processes, the one whose requests have a maximum wait once had 1,900 of 2,000
/// permits.
#[test]
fn loops_with_and_without_a_longest_wait_get_alike() {
    let (endless, within) = (Ask::Acquire, Ask::Within(1000 * MS));
    for tasks in [1, 4, 40] {
        assert_parts(BUCKET, &[(tasks, endless), (tasks, within)]);
        assert_parts(BUCKET, &[(tasks, within), (tasks, endless)]);
    }
    assert_parts(FIXED, &[(4, within), (4, endless)]);
    assert_parts(SLIDING, &[(4, within), (4, endless)]);
}

/// A limit at which requests wait has no permit for a request that does not.
#[test]
fn loops_that_wait_get_alike_beside_loops_that_do_not() {
    let (within, tries) = (Ask::Within(1000 * MS), Ask::Try(10 * MS));
    assert_parts(BUCKET, &[(4, within), (4, within), (4, tries)]);
    assert_parts(SLIDING, &[(4, within), (4, Ask::Acquire), (4, tries)]);
}
