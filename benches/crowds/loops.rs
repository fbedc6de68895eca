//! How often do runtimes wake up for a permit, if tasks of many runtimes wait for one limiter?
//!
//! Each runtime has a thread and one task that acquires in a loop, at 200 per second in total.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use cpu_time::ProcessTime;
use tidegate::{Rate, RateLimiter, TokenBucket};
use tokio::runtime::Builder;

use crate::Options;

const SIZES: [usize; 4] = [1, 10, 100, 300];

pub(crate) fn all(options: &Options) {
    for &loops in options.sizes(&SIZES) {
        let case = format!("loops/{loops}");
        if options.wants(&case) {
            wake_ups(&case, loops, options);
        }
    }
}

fn wake_ups(case: &str, loops: usize, options: &Options) {
    let span = if options.quick { Duration::from_millis(300) } else { Duration::from_secs(3) };
    let limiter = RateLimiter::new(TokenBucket::new(Rate::per_second(200), 1));
    let (done, permits) = (AtomicBool::new(false), AtomicU32::new(0));
    let before = ProcessTime::now();
    let wake_ups: u64 = std::thread::scope(|scope| {
        let work = || {
            let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
            runtime.block_on(async {
                loop {
                    limiter.acquire().await.expect("the queue has no bounds");
                    // The permits that end the tasks are not counted.
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    permits.fetch_add(1, Ordering::Relaxed);
                }
            });
            runtime.metrics().worker_park_count(0)
        };
        let threads: Vec<_> = (0..loops).map(|_| scope.spawn(work)).collect();
        std::thread::sleep(span);
        done.store(true, Ordering::Relaxed);
        // Lets threads that still wait return at once.
        limiter.set_rate(Rate::UNLIMITED);
        // Each thread wakes up once more for that.
        threads.into_iter().map(|thread| thread.join().expect("no panic").saturating_sub(1)).sum()
    });
    let permits = f64::from(permits.load(Ordering::Relaxed));
    let cpu = before.elapsed().as_secs_f64() * 1e6;
    let (each, cpu) = (wake_ups as f64 / permits, cpu / permits);
    println!("{case:<28} {each:.1} wake-ups and {cpu:.0} us CPU a permit, {permits} permits");
}
