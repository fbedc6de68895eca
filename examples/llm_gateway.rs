//! A gateway to an LLM API. The API limits requests and tokens per minute, and allows four calls at
//! a time. Each user has a share of the tokens, and one call at a time. A call that would wait for
//! more than two seconds is refused. It prints the tokens that each call used, or the limit that
//! refused it.
//!
//! `cargo run --features keyed --example llm_gateway`

use std::time::{Duration, Instant};

use tidegate::{
    AllRefusal, AllRequest, CountingLimit, KeyedAllOf, KeyedCountingLimit, KeyedRateLimiter, Rate,
    RateLimiter, TokenBucket,
};

#[tokio::main]
async fn main() -> Result<(), AllRefusal> {
    let requests = RateLimiter::new(TokenBucket::new(Rate::per_minute(600), 10));
    let tokens = RateLimiter::new(TokenBucket::new(Rate::per_minute(60_000), 4_000));
    let share = TokenBucket::new(Rate::per_minute(20_000), 1_500);
    let user_tokens: KeyedRateLimiter<String> = KeyedRateLimiter::new(share, 10_000);
    let user_calls = KeyedCountingLimit::<String>::new(1, 10_000);
    let gateway = KeyedAllOf::new("user tokens", &user_tokens)
        .with_keyed_counting("user calls", &user_calls)
        .with("requests", &requests)
        .with("tokens", &tokens)
        .with_counting("calls", &CountingLimit::new(4));

    let begin = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for (user, estimate) in [("ann", 1200), ("ann", 900), ("bob", 1000), ("ann", 1400), ("cid", 1600)] {
        let gateway: KeyedAllOf<str> = gateway.clone();
        calls.spawn(async move {
            let answer = call(&gateway, user, estimate).await;
            let text =
                answer.map_or_else(|refusal| format!("refused by {refusal}"), |used| format!("used {used}"));
            println!("{:>4} ms  {user}, {estimate} tokens at most: {text}", begin.elapsed().as_millis());
        });
    }
    calls.join_all().await;
    println!("{} of 4000 tokens are left", tokens.status().available);
    Ok(())
}

/// One call of a user, which uses about half of its estimated tokens.
async fn call(gateway: &KeyedAllOf<str>, user: &str, estimate: u32) -> Result<u32, AllRefusal> {
    let request = AllRequest::new().cost("tokens", estimate).cost("user tokens", estimate);
    let mut reservation = gateway.reserve(user, request.within(Duration::from_secs(2)))?;
    (&mut reservation).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let used = estimate / 2;
    // The unused tokens are given back, and the call is no longer in flight.
    reservation.settle([("tokens", used), ("user tokens", used)])?;
    Ok(used)
}
