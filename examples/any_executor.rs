//! Limits calls in smol, without tokio: `cargo run --no-default-features --example any_executor`.
//!
//! Permits can be awaited in any executor. One thread of the process is the timer of all limiters.

use tidegate::{PreciseClock, Rate, RateLimiter, Refusal, SmoothBursty};

fn main() -> Result<(), Refusal> {
    let policy = SmoothBursty::new(Rate::per_second(1000));
    let limiter = RateLimiter::with_clock(policy, PreciseClock::new());
    let calls = (0..20).map(|number| {
        let limiter = limiter.clone();
        smol::spawn(async move {
            let grant = limiter.acquire().await?;
            println!("call {number} waited {:?}", grant.waited());
            Ok(())
        })
    });
    let calls: Vec<smol::Task<Result<(), Refusal>>> = calls.collect();
    smol::block_on(async {
        for call in calls {
            call.await?;
        }
        Ok(())
    })
}
