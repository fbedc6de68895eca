//! The programs of `README.md`: this file contains each of them word for word, so they compile.

#![cfg(all(feature = "keyed", feature = "test-util"))]

use std::error::Error;
use std::time::Duration;

use tidegate::{AllOf, CountingLimit, KeyedRateLimiter, Rate, RateLimiter, Refusal, Request, TokenBucket};

/// The words of a text, separated by single spaces.
fn words(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ")
}

#[test]
fn each_program_of_the_readme_is_in_this_file() {
    let readme = include_str!("../README.md");
    let file = words(include_str!("readme.rs"));
    let mut programs = 0;
    for after in readme.split("```rust\n").skip(1) {
        let (program, _) = after.split_once("```").expect("the program ends");
        // The imports of the first program are at the top of this file.
        let uses = |line: &&str| line.starts_with("use ");
        let program: Vec<&str> = program.lines().skip_while(uses).collect();
        let program = words(&program.join("\n"));
        assert!(file.contains(&program), "not in tests/readme.rs:\n{program}");
        programs += 1;
    }
    assert_eq!(programs, 5);
}

#[rustfmt::skip]
#[allow(dead_code)]
async fn front() -> Result<(), Refusal> {
    let limiter = RateLimiter::smooth_bursty(Rate::per_second(5));
    limiter.acquire().await?;                       // one permit
    limiter.acquire_many(3).await?;                 // three at once
    if let Err(refusal) = limiter.try_acquire() {   // now, or not at all
        println!("{refusal}");                      // limited, retry after 600ms
    }

    // Waits at most 2 s for three permits. Refused at once if they are due later.
    limiter.acquire_many(Request::permits(3).within(Duration::from_secs(2))).await?;
    assert!(limiter.acquire_within(Duration::from_millis(50)).await.is_err());      // one permit

    // Served before all requests of lower priority.
    limiter.acquire_many(Request::permits(1).priority(1)).await?;

    limiter.set_rate(Rate::per_second(10));         // also moves requests that already wait
    std::thread::spawn(move || limiter.blocking_acquire());
    Ok(())
}

#[rustfmt::skip]
#[allow(dead_code)]
async fn client(client: reqwest::Client, url: &str) -> Result<(), Box<dyn Error>> {
    let limiter = RateLimiter::paced(Rate::per_second(19));
    limiter.set_catch_up(Duration::ZERO);           // no call makes up for a late one
    let api = tidegate_http::obey::Obey::new(limiter); // feature `obey` of tidegate-http
    // In each task, with a clone:
    let mut call = api.acquire().await?;
    let response = client.get(url).send().await?;
    call.obey(response.status(), response.headers());   // a 429 pauses all tasks; no burst follows
    Ok(())
}

#[rustfmt::skip]
#[allow(dead_code)]
fn server(user: &str, respond: impl Fn(u16, Option<u64>)) {
    let users: KeyedRateLimiter<String> =
        KeyedRateLimiter::new(TokenBucket::new(Rate::per_second(5), 10), 100_000);
    // In the handler:
    if let Err(refusal) = users.try_acquire(user) {
        // 429 and Retry-After, or 503 if there is no room for a new user.
        return respond(refusal.status_code(), refusal.retry_after_secs());
    }
    respond(200, None);
}

struct Answer {
    tokens: u32,
}

#[rustfmt::skip]
#[allow(dead_code)]
async fn model<F: Future<Output = Result<Answer, Box<dyn Error>>>>(call: impl Fn() -> F) -> Result<(), Box<dyn Error>> {
    let requests = RateLimiter::new(TokenBucket::new(Rate::per_minute(55), 5));
    let tokens = RateLimiter::new(TokenBucket::new(Rate::per_minute(80_000), 10_000));
    let in_flight = CountingLimit::new(10);
    let api = AllOf::new("requests", &requests)
        .with("tokens", &tokens)
        .with_counting("in flight", &in_flight);
    // For each call:
    let mut reservation = api.reserve([("tokens", 800)])?;
    (&mut reservation).await?;
    let response = call().await?;
    reservation.settle([("tokens", response.tokens)])?;     // unused tokens go back
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_second_call_waits_for_an_hour() -> Result<(), Refusal> {
    let limiter = RateLimiter::smooth_bursty(Rate::per_hour(1));
    limiter.acquire().await?;
    assert_eq!(limiter.acquire().await?.waited(), Duration::from_secs(3600));
    Ok(())
}
