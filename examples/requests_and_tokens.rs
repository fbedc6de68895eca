//! An LLM API that limits requests and tokens per minute, and allows four calls at a time. A call
//! is charged by an estimate, then settled. It prints how long each call waited, how many tokens it
//! used, and how many tokens are left.
//!
//! `cargo run --example requests_and_tokens`

use std::time::Instant;

use tidegate::{AllOf, AllRefusal, CountingLimit, Rate, RateLimiter, TokenBucket};

#[tokio::main]
async fn main() -> Result<(), AllRefusal> {
    let requests = RateLimiter::new(TokenBucket::new(Rate::per_minute(600), 10));
    let tokens = RateLimiter::new(TokenBucket::new(Rate::per_minute(60_000), 1_000));
    let in_flight = CountingLimit::new(4);
    let api =
        AllOf::new("requests", &requests).with("tokens", &tokens).with_counting("in flight", &in_flight);

    let begin = Instant::now();
    for call in 1..=5 {
        // At most 800 tokens. A call uses 200 to 400 of them.
        let mut reservation = api.reserve([("tokens", 800)])?;
        let waited = (&mut reservation).await?;
        let used = 200 + 40 * call;
        println!("{:>4} ms  call {call} waited {waited:?} and used {used}", begin.elapsed().as_millis());
        // The unused tokens are given back, and the call is no longer in flight.
        reservation.settle([("tokens", used)])?;
    }
    println!("{} of 1000 tokens are left", tokens.status().available);
    Ok(())
}
