//! A batch of jobs in plain threads, which wait in the queue of one limiter, without a runtime.
//! Ctrl-C, or another thread after a second, closes the limiter. Then all waits end at once. It
//! prints each job, when each worker ended, and how many jobs are left.
//!
//! `cargo run --example threads`

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use tidegate::{Rate, RateLimiter};

fn main() -> Result<(), ctrlc::Error> {
    let limiter = RateLimiter::smooth_bursty(Rate::per_second(4));
    let (on_signal, on_time) = (limiter.clone(), limiter.clone());
    ctrlc::set_handler(move || {
        on_signal.close();
    })?;
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(1));
        on_time.close()
    });

    let (begin, jobs) = (Instant::now(), Mutex::new(1..=100));
    thread::scope(|scope| {
        for worker in ["one", "two", "three"] {
            let (limiter, jobs) = (&limiter, &jobs);
            scope.spawn(move || {
                // A worker takes a job after its permit, so no job is lost when the wait is
                // refused.
                let end = loop {
                    let waited = match limiter.blocking_acquire() {
                        Ok(grant) => grant.waited(),
                        Err(refusal) => break refusal.to_string(),
                    };
                    let Some(job) = jobs.lock().expect("no panic").next() else {
                        break "all jobs are done".to_owned();
                    };
                    let now = begin.elapsed().as_millis();
                    println!("{now:>4} ms  worker {worker}: job {job}, waited {waited:.0?}");
                };
                println!("{:>4} ms  worker {worker} ends: {end}", begin.elapsed().as_millis());
            });
        }
    });
    println!("{} jobs are left", jobs.lock().expect("no panic").clone().count());
    Ok(())
}
