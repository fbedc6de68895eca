//! Does a crowd of waiters get its rate, in order, at a low cost of CPU time and memory?
//!
//! All tasks are spawned on one worker, and each awaits one permit; nothing is stored. `ideal` is
//! the time of the last permit if the first one is granted at once: (n - 1) / rate. The wall time
//! begins before the spawning, which no limiter can shorten.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cpu_time::ProcessTime;
use tidegate::{Rate, RateLimiter, SmoothBursty};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, Semaphore};

use crate::report::Row;
use crate::turns::{in_turns, median};
use crate::{ALLOCATOR, Options};

const WALL: &str = "wall over ideal";
const SPAN: &str = "first to last over ideal";
const CPU: &str = "cpu us per permit";
const INVERTED: &str = "inverted pairs";
const BYTES: &str = "bytes per waiter";

/// The number of tasks, and the time between two permits.
#[derive(Clone, Copy)]
struct Crowd {
    tasks: u32,
    interval: Duration,
}

/// The measurements of one crowd.
struct Sample {
    wall: f64,
    span: f64,
    cpu: f64,
    inverted: f64,
}

pub(crate) fn at_1k(case: &'static str, options: &Options) -> Vec<Row> {
    let crowd =
        Crowd { tasks: if options.quick { 3_000 } else { 10_000 }, interval: Duration::from_millis(1) };
    // Ten seconds each: three runs for us and for the reference, one for the others, because their
    // distance is greater than the noise.
    let mut rows =
        contest(case, crowd, if options.quick { 1 } else { 3 }, &[("reserve-and-sleep", reserve_and_sleep)]);
    rows.extend(peers(case, crowd, &rows, &[("leaky-bucket", leaky_bucket), ("governor", governor)]));
    rows.extend(bytes(case, crowd.tasks, true));
    rows
}

/// Without governor: it wakes all waiters every time a permit is due, which takes minutes with this
/// many waiters.
pub(crate) fn at_100k(case: &'static str, options: &Options) -> Vec<Row> {
    let crowd = Crowd { tasks: 100_000, interval: Duration::from_micros(10) };
    let mut rows = contest(
        case,
        crowd,
        if options.quick { 3 } else { 5 },
        &[("reserve-and-sleep", reserve_and_sleep), ("leaky-bucket", leaky_bucket)],
    );
    rows.extend(bytes(case, crowd.tasks, false));
    rows
}

/// Without governor, as above.
pub(crate) fn at_1m(case: &'static str, options: &Options) -> Vec<Row> {
    let crowd = Crowd { tasks: 100_000, interval: Duration::from_micros(1) };
    let mut rows = contest(
        case,
        crowd,
        if options.quick { 11 } else { 31 },
        &[("reserve-and-sleep", reserve_and_sleep), ("leaky-bucket", leaky_bucket)],
    );
    rows.extend(bytes(case, crowd.tasks, false));
    rows
}

type Run = fn(Crowd) -> Sample;

/// Measures ours against others, in turns.
fn contest(case: &'static str, crowd: Crowd, repetitions: usize, others: &[(&'static str, Run)]) -> Vec<Row> {
    let mut samples: Vec<Vec<Sample>> = (0..=others.len()).map(|_| Vec::new()).collect();
    in_turns(others.len() + 1, repetitions, |index, _| {
        let run = if index == 0 { ours } else { others[index - 1].1 };
        samples[index].push(run(crowd));
    });
    let mut rows = Vec::new();
    for (unit, value) in METRICS {
        let medians: Vec<f64> =
            samples.iter().map(|samples| median(samples.iter().map(value).collect())).collect();
        for (&(peer, _), &peer_value) in others.iter().zip(&medians[1..]) {
            rows.push(Row { case, unit, ours: medians[0], peer, peer_value });
        }
    }
    rows
}

/// Runs each of the others once, and compares it with our results in `rows`.
fn peers(case: &'static str, crowd: Crowd, rows: &[Row], others: &[(&'static str, Run)]) -> Vec<Row> {
    let mut more = Vec::new();
    for &(peer, run) in others {
        let sample = run(crowd);
        for (unit, value) in METRICS {
            let ours = rows.iter().find(|row| row.unit == unit).map_or(f64::NAN, |row| row.ours);
            more.push(Row { case, unit, ours, peer, peer_value: value(&sample) });
        }
    }
    more
}

/// A unit, and its number in a sample.
type Metric = (&'static str, fn(&Sample) -> f64);

const METRICS: [Metric; 4] = [
    (WALL, |sample| sample.wall),
    (SPAN, |sample| sample.span),
    (CPU, |sample| sample.cpu),
    (INVERTED, |sample| sample.inverted),
];

fn ours(crowd: Crowd) -> Sample {
    let limiter = our_limiter(crowd.interval);
    run(crowd, move || {
        let limiter = limiter.clone();
        async move { _ = limiter.acquire().await }
    })
}

fn reserve_and_sleep(crowd: Crowd) -> Sample {
    let limiter = Arc::new(ReserveAndSleep::new(crowd.interval));
    run(crowd, move || {
        let limiter = limiter.clone();
        async move { limiter.acquire().await }
    })
}

fn leaky_bucket(crowd: Crowd) -> Sample {
    let limiter = Arc::new(leaky_limiter(crowd.interval));
    run(crowd, move || {
        let limiter = limiter.clone();
        async move { limiter.acquire_one().await }
    })
}

fn governor(crowd: Crowd) -> Sample {
    let limiter = Arc::new(governor_limiter(crowd.interval));
    run(crowd, move || {
        let limiter = limiter.clone();
        async move { limiter.until_ready().await }
    })
}

fn our_limiter(interval: Duration) -> RateLimiter {
    let rate = Rate::new(1, interval).expect("a plain rate");
    RateLimiter::new(SmoothBursty::new(rate).max_burst(Duration::ZERO))
}

/// tokio's timer ticks in milliseconds, and so does leaky-bucket: above 1,000 per second it gets
/// the permits of a millisecond at a time.
fn leaky_limiter(interval: Duration) -> leaky_bucket::RateLimiter {
    let tick = Duration::from_millis(1).max(interval);
    let refill = usize::try_from(tick.as_nanos() / interval.as_nanos()).unwrap_or(usize::MAX);
    leaky_bucket::RateLimiter::builder().max(refill).initial(0).refill(refill).interval(tick).build()
}

fn governor_limiter(interval: Duration) -> governor::DefaultDirectRateLimiter {
    governor::RateLimiter::direct(governor::Quota::with_period(interval).expect("an interval above zero"))
}

/// The plain reference: take the next free time, sleep until then. It has no cancellation, no rate
/// change, and no order except the timer's.
struct ReserveAndSleep {
    start: tokio::time::Instant,
    interval: u64,
    /// Nanoseconds from the start to the next free permit.
    next: AtomicU64,
}

impl ReserveAndSleep {
    fn new(interval: Duration) -> ReserveAndSleep {
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        ReserveAndSleep { start: tokio::time::Instant::now(), interval, next: AtomicU64::new(0) }
    }

    async fn acquire(&self) {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut next = self.next.load(Ordering::Relaxed);
        let mine = loop {
            let mine = next.max(now);
            let after = mine + self.interval;
            match self.next.compare_exchange_weak(next, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break mine,
                Err(newer) => next = newer,
            }
        };
        if mine > now {
            tokio::time::sleep_until(self.start + Duration::from_nanos(mine)).await;
        }
    }
}

fn one_worker() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

/// The records of the tasks of a crowd.
struct Log {
    arrived: AtomicU32,
    served: AtomicU32,
    /// By order of service: the order of arrival.
    order: Box<[AtomicU32]>,
    first: OnceLock<Instant>,
    last: OnceLock<(Instant, ProcessTime)>,
    over: Notify,
}

impl Log {
    fn new(tasks: u32) -> Log {
        Log {
            arrived: AtomicU32::new(0),
            served: AtomicU32::new(0),
            order: (0..tasks).map(|_| AtomicU32::new(0)).collect(),
            first: OnceLock::new(),
            last: OnceLock::new(),
            over: Notify::new(),
        }
    }

    fn serve(&self, arrival: u32) {
        let served = self.served.fetch_add(1, Ordering::Relaxed) as usize;
        self.order[served].store(arrival, Ordering::Relaxed);
        if served == 0 {
            self.first.get_or_init(Instant::now);
        }
        if served + 1 == self.order.len() {
            self.last.get_or_init(|| (Instant::now(), ProcessTime::now()));
            self.over.notify_one();
        }
    }
}

/// Spawns a crowd and measures until its last task is served.
fn run<W>(crowd: Crowd, wait: impl Fn() -> W) -> Sample
where
    W: Future<Output = ()> + Send + 'static,
{
    let runtime = one_worker();
    let log = Arc::new(Log::new(crowd.tasks));
    let (start, cpu) = (Instant::now(), ProcessTime::now());
    runtime.block_on(async {
        for _ in 0..crowd.tasks {
            let (log, wait) = (log.clone(), wait());
            tokio::spawn(async move {
                let arrival = log.arrived.fetch_add(1, Ordering::Relaxed);
                wait.await;
                log.serve(arrival);
            });
        }
        log.over.notified().await;
    });
    let first = *log.first.get().expect("the first was served");
    let &(last, cpu_last) = log.last.get().expect("the last was served");
    let ideal = crowd.interval.as_secs_f64() * f64::from(crowd.tasks - 1);
    let order: Vec<u32> = log.order.iter().map(|arrival| arrival.load(Ordering::Relaxed)).collect();
    Sample {
        wall: (last - start).as_secs_f64() / ideal,
        span: (last - first).as_secs_f64() / ideal,
        cpu: cpu_last.duration_since(cpu).as_secs_f64() * 1e6 / f64::from(crowd.tasks),
        inverted: inversions(order) as f64,
    }
}

/// Returns how many pairs were served in a different order from their arrival: merge sort with a
/// counter.
fn inversions(mut list: Vec<u32>) -> u64 {
    let mut count = 0;
    let mut merged = Vec::with_capacity(list.len());
    let mut width = 1;
    while width < list.len() {
        merged.clear();
        for pair in list.chunks(2 * width) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let (Some((&l, more_left)), Some((&r, more_right))) =
                (left.split_first(), right.split_first())
            {
                if l <= r {
                    merged.push(l);
                    left = more_left;
                } else {
                    merged.push(r);
                    right = more_right;
                    // This element precedes all elements that are still on the left.
                    count += left.len() as u64;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        std::mem::swap(&mut list, &mut merged);
        width *= 2;
    }
    count
}

/// Measures the heap of a waiting task in total: the task, its future, the limiter's entry and the
/// runtime's queues. One permit per second, so that all tasks except the first still wait when they
/// are counted.
fn bytes(case: &'static str, tasks: u32, with_governor: bool) -> Vec<Row> {
    let second = Duration::from_secs(1);
    let limiter = our_limiter(second);
    let ours = bytes_of(tasks, move || {
        let limiter = limiter.clone();
        async move { _ = limiter.acquire().await }
    });
    let limiter = Arc::new(ReserveAndSleep::new(second));
    let reserve = bytes_of(tasks, move || {
        let limiter = limiter.clone();
        async move { limiter.acquire().await }
    });
    let limiter = Arc::new(leaky_limiter(second));
    let leaky = bytes_of(tasks, move || {
        let limiter = limiter.clone();
        async move { limiter.acquire_one().await }
    });
    // No limiter: the semaphore only makes them wait.
    let semaphore = Arc::new(Semaphore::new(0));
    let semaphore = bytes_of(tasks, move || {
        let semaphore = semaphore.clone();
        async move { drop(semaphore.acquire().await) }
    });
    let mut all =
        vec![("reserve-and-sleep", reserve), ("leaky-bucket", leaky), ("tokio Semaphore", semaphore)];
    if with_governor {
        // The last one, because its own thread frees its memory some time later.
        let limiter = Arc::new(governor_limiter(second));
        let governor = bytes_of(tasks, move || {
            let limiter = limiter.clone();
            async move { limiter.until_ready().await }
        });
        all.push(("governor", governor));
    }
    all.into_iter().map(|(peer, peer_value)| Row { case, unit: BYTES, ours, peer, peer_value }).collect()
}

fn bytes_of<W>(tasks: u32, wait: impl Fn() -> W) -> f64
where
    W: Future<Output = ()> + Send + 'static,
{
    let runtime = one_worker();
    let arrived = Arc::new(AtomicU32::new(0));
    let before = live();
    runtime.block_on(async {
        for _ in 0..tasks {
            let (arrived, wait) = (arrived.clone(), wait());
            tokio::spawn(async move {
                arrived.fetch_add(1, Ordering::Relaxed);
                wait.await;
            });
        }
        while arrived.load(Ordering::Relaxed) < tasks {
            tokio::task::yield_now().await;
        }
    });
    live().wrapping_sub(before) as f64 / f64::from(tasks)
}

/// Returns the bytes in use now.
fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.wrapping_sub(stats.bytes_deallocated)
}
