//! Interactive requests go before a batch, and a full queue drops requests of the batch first. The
//! example prints how long each request waited, or that it was dropped. A reservation would never
//! be dropped.
//!
//! `cargo run --example priorities`

use tidegate::{QueueBounds, Rate, RateLimiter, Refusal, Request, WhenFull};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Refusal> {
    let limiter = RateLimiter::smooth_bursty(Rate::per_second(10));
    let bounds = QueueBounds::UNBOUNDED.max_waiters(8);
    limiter.set_queue_bounds(bounds.when_full(WhenFull::DropLeastImportant));
    limiter.acquire().await?;

    let mut tasks = JoinSet::new();
    let mut ask = |name: &'static str, priority: i8| {
        let request = Request::permits(1).priority(priority);
        let wait = limiter.acquire_owned(request);
        tasks.spawn(async move { (name, wait.await) });
    };
    (0..8).for_each(|_| ask("batch", 0));
    (0..3).for_each(|_| ask("interactive", 1));
    while let Some(done) = tasks.join_next().await {
        match done.expect("no panic") {
            (name, Ok(grant)) => println!("{name}: waited {:?}", grant.waited()),
            (name, Err(Refusal::Displaced)) => println!("{name}: dropped, the queue is full"),
            (name, Err(refusal)) => println!("{name}: {refusal}"),
        }
    }
    Ok(())
}
