//! How late permits are released: by tokio's timer, and by the thread of `PreciseClock`.
//!
//! `cargo run --release --example release_lateness`
//!
//! One task takes permits one by one, for two seconds at each rate. The lateness of a permit is the
//! time from its due time to the return of `acquire().await`. Each permit is due an interval after
//! the one before it, however late that one was. Processor time is that of the whole process.

use std::error::Error;
use std::time::Duration;

use cpu_time::ProcessTime;
use tidegate::{PreciseClock, Rate, RateLimiter, SmoothBursty, SystemClock, Timer};

const SECONDS: u32 = 2;

/// Takes the permits of two seconds, and returns the lateness of each, sorted.
async fn lateness<C: Timer>(clock: C, per_second: u32) -> Result<Vec<Duration>, Box<dyn Error>> {
    let policy = SmoothBursty::new(Rate::per_second(per_second.into())).max_burst(Duration::ZERO);
    let limiter = RateLimiter::with_clock(policy, clock);
    limiter.set_catch_up(Duration::from_secs(1));
    let interval = Duration::from_secs(1) / per_second;
    limiter.acquire().await?;
    let (mut late, start) = (Vec::new(), limiter.clock().now().as_duration());
    let mut due = start + interval;
    while due < start + Duration::from_secs(1) * SECONDS {
        limiter.acquire().await?;
        late.push(limiter.clock().now().as_duration().saturating_sub(due));
        due += interval;
    }
    late.sort_unstable();
    Ok(late)
}

async fn row<C: Timer>(name: &str, clock: C, per_second: u32) -> Result<(), Box<dyn Error>> {
    let busy = ProcessTime::try_now()?;
    let late = lateness(clock, per_second).await?;
    let busy = busy.try_elapsed()?.as_secs_f64() / f64::from(SECONDS);
    let at = |percent: usize| late[(late.len() - 1) * percent / 100].as_micros();
    println!(
        "| {per_second:>7}/s | {name:<12} | {:>6} us | {:>6} us | {:>5.1} % |",
        at(50),
        at(99),
        100.0 * busy
    );
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("|      rate | timer        |   p50     |   p99     |   CPU   |");
    println!("|-----------|--------------|-----------|-----------|---------|");
    for per_second in [1_000, 10_000, 100_000] {
        row("tokio", SystemClock::new(), per_second).await?;
        row("PreciseClock", PreciseClock::new(), per_second).await?;
    }
    Ok(())
}
