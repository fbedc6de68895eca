//! A client that spaces its calls evenly, and waits when the server says so.
//!
//! `cargo run --example spaced_calls`

use std::time::{Duration, Instant};

use tidegate::{Rate, RateLimiter, SmoothBursty};

#[tokio::main]
async fn main() {
    // Nothing is saved up while the client idles, so a strict server never
    // sees two calls within 100 ms.
    let policy = SmoothBursty::new(Rate::per_second(10)).max_burst(Duration::ZERO);
    let limiter = RateLimiter::new(policy);
    let begin = Instant::now();
    let tasks = (0..6).map(|task| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            loop {
                limiter.acquire().await.expect("the queue has no bounds");
                println!("{:>4} ms  call of task {task}", begin.elapsed().as_millis());
                match call(task, begin).await {
                    Ok(()) => break,
                    // Holds up all tasks that share the limiter.
                    Err(retry_after) => limiter.pause_for(retry_after),
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
}

/// Stands for an HTTP call. The server answers 429 with a `Retry-After` to
/// task 3 during the first second.
async fn call(task: u32, begin: Instant) -> Result<(), Duration> {
    let too_many = task == 3 && begin.elapsed() < Duration::from_secs(1);
    if too_many { Err(Duration::from_secs(1)) } else { Ok(()) }
}
