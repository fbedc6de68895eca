//! What share does a task that always asks for 100 get among 100 tasks that always ask for one?
//!
//! First come, first served gives it half: each round serves it once and each of the others once.
//! One worker, 100,000 per second.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Rate, RateLimiter, SmoothBursty};
use tokio::runtime::Builder;
use tokio::sync::Notify;

use crate::Options;
use crate::report::Row;
use crate::turns::{in_turns, median};

const RATE: u32 = 100_000;
const MANY: u32 = 100;
const OTHERS: u32 = 100;

/// A name, and a function that grants a number of permits and returns the hog's share of them.
type Contestant = (&'static str, fn(u64) -> f64);

pub(crate) fn share(case: &'static str, options: &Options) -> Vec<Row> {
    let permits = if options.quick { 20_000 } else { 50_000 };
    let contestants: [Contestant; 3] =
        [("ours", ours), ("leaky-bucket", leaky_bucket), ("governor", governor)];
    let mut shares = vec![Vec::new(); contestants.len()];
    in_turns(contestants.len(), 5, |index, _| shares[index].push(contestants[index].1(permits)));
    let medians: Vec<_> = shares.into_iter().map(median).collect();
    let row = |(&(peer, _), &peer_value): (&Contestant, &f64)| Row {
        case,
        unit: "share of the hog",
        ours: medians[0],
        peer,
        peer_value,
    };
    contestants.iter().zip(&medians).skip(1).map(row).collect()
}

fn ours(permits: u64) -> f64 {
    let limiter =
        RateLimiter::new(SmoothBursty::new(Rate::per_second(RATE.into())).max_burst(Duration::ZERO));
    run(permits, move |n| {
        let limiter = limiter.clone();
        async move { assert!(limiter.acquire_many(n).await.is_ok(), "nobody refuses") }
    })
}

fn leaky_bucket(permits: u64) -> f64 {
    // A request for 100 must fit, and a millisecond is the shortest tick.
    let limiter = leaky_bucket::RateLimiter::builder()
        .max(MANY as usize)
        .initial(0)
        .refill(RATE as usize / 1000)
        .interval(Duration::from_millis(1))
        .build();
    let limiter = Arc::new(limiter);
    run(permits, move |n| {
        let limiter = limiter.clone();
        async move { limiter.acquire(n as usize).await }
    })
}

fn governor(permits: u64) -> f64 {
    // Here, too, 100 must fit.
    let [rate, burst] = [RATE, MANY].map(|number| NonZeroU32::new(number).expect("above zero"));
    let limiter = governor::RateLimiter::direct(governor::Quota::per_second(rate).allow_burst(burst));
    let limiter = Arc::new(limiter);
    run(permits, move |n| {
        let limiter = limiter.clone();
        let n = NonZeroU32::new(n).expect("above zero");
        async move { assert!(limiter.until_n_ready(n).await.is_ok(), "nobody refuses") }
    })
}

/// Lets all tasks ask in loops until `permits` permits are used up. Returns the hog's share of
/// them.
fn run<W>(permits: u64, wait: impl Fn(u32) -> W + Clone + Send + 'static) -> f64
where
    W: Future<Output = ()> + Send + 'static,
{
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let hog = Arc::new(AtomicU64::new(0));
    let others = Arc::new(AtomicU64::new(0));
    let over = Arc::new(Notify::new());
    let ask = |n: u32, mine: &Arc<AtomicU64>, not_mine: &Arc<AtomicU64>| {
        let (wait, mine, not_mine, over) = (wait.clone(), mine.clone(), not_mine.clone(), over.clone());
        async move {
            loop {
                wait(n).await;
                let got = mine.fetch_add(n.into(), Ordering::Relaxed) + u64::from(n);
                if got + not_mine.load(Ordering::Relaxed) >= permits {
                    // Stops the clock, and waits, so that no permit is counted afterwards.
                    over.notify_one();
                    std::future::pending::<()>().await;
                }
            }
        }
    };
    runtime.block_on(async {
        tokio::spawn(ask(MANY, &hog, &others));
        for _ in 0..OTHERS {
            tokio::spawn(ask(1, &others, &hog));
        }
        over.notified().await;
    });
    let (hog, others) = (hog.load(Ordering::Relaxed), others.load(Ordering::Relaxed));
    hog as f64 / (hog + others) as f64
}
