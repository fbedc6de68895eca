//! Reads a policy from a line of configuration, and changes the rate at run time. It prints the
//! time of each call: the calls are faster from 500 ms on.
//!
//! `cargo run --example from_text -- "token_bucket 5/s burst 2"`

use std::time::{Duration, Instant};

use tidegate::{AnyPolicy, Change, Keep, Rate, RateLimiter};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let line = std::env::args().nth(1);
    let line = line.as_deref().unwrap_or("token_bucket 5/s burst 2");
    let policy: AnyPolicy = line.parse()?;
    println!("{policy}");
    let limiter = RateLimiter::new(policy);

    let admin = limiter.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        // Waiters move at once. The bucket stays filled to the same ratio.
        let change = Change::rate(Rate::per_second(20)).keep(Keep::Ratio);
        println!("20/s from now on: {:?}", admin.change(change));
    });
    let begin = Instant::now();
    for call in 1..=8 {
        limiter.acquire().await?;
        println!("{:>4} ms  call {call}", begin.elapsed().as_millis());
    }
    Ok(())
}
