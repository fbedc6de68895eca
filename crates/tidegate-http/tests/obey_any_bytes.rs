//! Whatever a server sends, an obeying client neither panics nor pauses absurdly long, and nothing
//! that the server reports raises what the client may send.
//!
//! `TIDEGATE_HTTP_FUZZ=1000000 cargo test --release --all-features --test obey_any_bytes` obeys
//! this many responses; a plain run obeys a few.

#![allow(clippy::unwrap_used)]

#[path = "any_bytes/mutated.rs"]
mod mutated;

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tidegate::{AllOf, FixedWindow, ManualClock, Rate, RateLimiter, TokenBucket};
use tidegate_http::obey::{Obey, Options};

use self::mutated::pick;

#[test]
fn no_response_makes_a_client_pause_absurdly_or_send_more() {
    let responses =
        std::env::var("TIDEGATE_HTTP_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000_u64);
    let mut rng = SmallRng::seed_from_u64(responses);
    let mut left = responses;
    while left > 0 {
        // The range of a clock ends after 34 years.
        obey_some(&mut rng, left.min(1000));
        left = left.saturating_sub(1000);
    }
}

fn obey_some(rng: &mut SmallRng, responses: u64) {
    let clock = ManualClock::new();
    let requests = RateLimiter::with_clock(FixedWindow::new(Rate::per_minute(1000)), clock.clone());
    let tokens = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(100), 1000), clock.clone());
    let all = AllOf::new("requests", &requests).with("tokens", &tokens);
    let api = Obey::with_options(all, Options::new().clock(clock.clone()));
    let cap = Duration::from_secs(600);
    let mut calls = Vec::new();
    for _ in 0..responses {
        // `begin` begins a call even while the server allows no more.
        calls.push(api.begin([("tokens", rng.random_range(0..3000))]));
        if rng.random_bool(0.6) {
            let at = rng.random_range(0..calls.len());
            let mut call = calls.swap_remove(at);
            let (status, headers) = mutated::response(rng);
            let before = (requests.status().available, tokens.status().available);
            let body = body(rng);
            let obeyed = match rng.random_bool(0.1) {
                true => call.obey_with_body(status, &headers, &body),
                false => call.obey(status, &headers),
            };
            let say = || format!("{status} {headers:?}: {obeyed:?}");
            assert!(obeyed.error.is_none(), "{}", say());
            assert!(obeyed.paused_for.is_none_or(|wait| wait <= cap + cap / 10), "{}", say());
            assert!(api.limiter().status().paused_for <= cap + cap / 10, "{}", say());
            let after = (requests.status().available, tokens.status().available);
            assert!(after.0 <= before.0 && after.1 <= before.1, "{}", say());
            let wait = api.try_acquire().map(drop).err().and_then(|refusal| refusal.retry_after());
            // The maximum pause, and the window of the minute.
            assert!(wait.is_none_or(|wait| wait <= cap + cap / 10 + Duration::from_secs(61)), "{}", say());
        }
        if calls.len() > 50 {
            calls.truncate(10);
        }
        let step = [0, 1, 100, 10_000, 700_000].choose(rng).copied().unwrap();
        clock.advance(Duration::from_millis(rng.random_range(0..=step)));
    }
    drop(calls);
    assert_eq!(api.in_flight(), 0);
    // After the maximum pause, calls go on.
    clock.advance(cap + cap / 5);
    clock.advance(Duration::from_secs(60));
    let after = api.try_acquire();
    assert!(after.is_ok(), "{after:?} {:?}", api.limiter().status());
}

const BODIES: &[&str] = &[
    r#"{"data":{"rateLimit":{"limit":5000,"cost":1,"remaining":4999,"resetAt":"2026-10-21T08:28:00Z"}}}"#,
    r#"{"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded"}]}"#,
    r#"{"errors":[{"extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":101,"actualQueryCost":46,"throttleStatus":{"maximumAvailable":1000.0,"currentlyAvailable":5,"restoreRate":50.0}}}}"#,
    r#"{"extensions":{"cost":{"requestedQueryCost":1e308,"throttleStatus":{"maximumAvailable":-1,"currentlyAvailable":1e-300,"restoreRate":0}}}}"#,
    r#"{"errors":[{"extensions":{"code":"RATELIMITED"}}]}"#,
    "[[[[[[[[[[",
];

/// A GraphQL body.
fn body(rng: &mut SmallRng) -> Vec<u8> {
    let mut body = pick(rng, BODIES).as_bytes().to_vec();
    for _ in 0..rng.random_range(0..3) {
        let at = rng.random_range(0..body.len());
        match rng.random_range(0..3) {
            0 => body[at] = rng.random_range(32..127),
            1 => body[at] = b"0123456789-.eE"[rng.random_range(0..14)],
            _ => drop(body.remove(at)),
        }
    }
    body
}
