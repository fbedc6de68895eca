//! Plain threads wait in the queue of the limiter, without a runtime.
//!
//! `cargo run --example threads`

use std::thread;
use std::time::Instant;

use tidegate::{Rate, RateLimiter};

fn main() {
    let limiter = RateLimiter::smooth_bursty(Rate::per_second(20));
    let begin = Instant::now();
    thread::scope(|scope| {
        for worker in 0..3 {
            let limiter = &limiter;
            scope.spawn(move || {
                for job in 0..4 {
                    let waited = limiter.blocking_acquire().expect("the queue has no bounds").waited();
                    let now = begin.elapsed().as_millis();
                    println!("{now:>4} ms  worker {worker}, job {job}, waited {waited:.0?}");
                }
            });
        }
    });
}
