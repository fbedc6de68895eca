//! What processes get of a limit that they lease, over a model of a server, on paused time.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::AnyLimiter;
use tidegate_redis::Store;
use tidegate_redis::simulation::{Model, Network, run};
use tokio::time::Instant;

/// The permits that come in each second, and those that a full limit has.
const RATE: u64 = 2000;

/// How long a lease lasts, in milliseconds.
const LIFE: u64 = 200;

/// Tasks of several processes that take one permit after the other.
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

    fn join(&mut self, tasks: u64) {
        let store = self.model.open(Store::builder("redis://model")).unwrap();
        let limit = store.limiter("all").limit("calls", self.line.parse().unwrap());
        let limiter = AnyLimiter::from(limit.leased().build().unwrap());
        let taken = Arc::new(AtomicU64::new(0));
        for _ in 0..tasks {
            let (limiter, taken) = (limiter.clone(), taken.clone());
            tokio::spawn(async move {
                loop {
                    let permits = limiter.acquire().await.unwrap().permits();
                    taken.fetch_add(permits.into(), Ordering::Relaxed);
                }
            });
        }
        self.stores.push(store);
        self.taken.push(taken);
    }

    fn sum(&self) -> u64 {
        self.taken.iter().map(|taken| taken.load(Ordering::Relaxed)).sum()
    }

    /// Lets time pass. Returns how many permits each process takes in it.
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

/// A process once asked for as many permits as it had got, since a loop that awaits asks for no
/// more. So the first process had 97 of 100 permits for ever.
///
/// Without leases each task has one request in the line of the store, so all tasks get alike.
#[test]
fn loops_of_processes_that_join_a_busy_limit_get_what_they_would_without_leases() {
    const BUCKET: &str = "token_bucket 2000/s burst 2000";
    const FIXED: &str = "fixed_window 2000/s";
    // The permits of a window that are too few for one more lease are not used.
    const SLIDING: &str = "sliding_window 2000/s cells 10";
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
        run(async move {
            let mut loops = Loops::new(line);
            loops.join(tasks[0]);
            loops.pass(3).await;
            tasks[1..].iter().for_each(|tasks| loops.join(*tasks));
            // In these seconds the part of the first process falls by half in less than two.
            loops.pass(6).await;
            let calls = loops.model.calls();
            let taken = loops.pass(2).await;
            let calls = loops.model.calls() - calls;
            println!("{line}, {tasks:?}: {taken:?}, {calls} calls, {} in all", loops.sum());
            assert!(calls * 20 <= taken.iter().sum(), "{line}, {tasks:?}: {calls} calls");
            for (taken, of) in taken.iter().zip(tasks) {
                let part = of * 2 * RATE / tasks.iter().sum::<u64>();
                assert!(taken * 4 >= part * 3, "{line}, {tasks:?}: {taken} of {part}");
            }
            let most = if line == BUCKET { RATE + 11 * RATE } else { 11 * RATE };
            let used = if line == SLIDING { 15.0 / 16.0 } else { 0.99 };
            assert!(loops.sum() as f64 >= used * most as f64, "{line}, {tasks:?}: {}", loops.sum());
        });
    }
}
