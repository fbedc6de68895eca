//! Whatever bytes a server sends, the reader does not panic and a client does not pause absurdly
//! long.
//!
//! `TIDEGATE_HTTP_FUZZ=100000000 cargo test --release --test any_bytes` reads this many responses;
//! a plain run reads a few.

use std::time::{Duration, SystemTime};

#[path = "any_bytes/mutated.rs"]
mod mutated;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use tidegate_http::When;
use tidegate_http::read::{Advice, DEFAULT_MAX_PAUSE, Numbers, Reader};

#[test]
fn no_response_does_harm() {
    let responses =
        std::env::var("TIDEGATE_HTTP_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000_u64);
    let mut rng = SmallRng::seed_from_u64(responses);
    let readings = [
        Reader::auto(),
        Reader::auto().numbers(Numbers::Seconds),
        Reader::auto().numbers(Numbers::Milliseconds),
        Reader::auto().numbers(Numbers::UnixSeconds),
        Reader::auto().numbers(Numbers::UnixMilliseconds),
    ];
    for _ in 0..responses {
        let (status, headers) = mutated::response(&mut rng);
        let Some(reader) = readings.choose(&mut rng) else { return };
        let response = reader.read(status, &headers);

        let say = || format!("{status} {headers:?}: {response:?}");
        assert!(response.limits.len() <= 32, "{}", say());
        for limit in &response.limits {
            for count in [limit.limit, limit.remaining].into_iter().flatten() {
                assert!((0.0..1e15).contains(&count), "{}", say());
            }
            assert!(limit.window.is_none_or(|w| !w.is_zero()), "{}", say());
            assert!(limit.limit.is_some() || limit.remaining.is_some() || limit.reset.is_some(), "{}", say());
        }
        let pauses = response.advice(SystemTime::UNIX_EPOCH, DEFAULT_MAX_PAUSE) != Advice::Go;
        assert!(pauses || !response.refused, "{}", say());
        for now in [SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40)] {
            if let Advice::Pause { wait, asked } = response.advice(now, DEFAULT_MAX_PAUSE) {
                assert!(wait <= DEFAULT_MAX_PAUSE && wait <= asked && !wait.is_zero(), "{}", say());
            }
        }
        let times = response.limits.iter().filter_map(|limit| limit.reset).chain(response.retry_after);
        // A wait that is read from a number is below a century; a date has a year of four digits.
        let latest = Duration::from_secs(320_000_000_000);
        for time in times {
            assert!(
                matches!(time, When::In(wait) if wait < 2 * latest) || matches!(time, When::At(_)),
                "{}",
                say()
            );
        }
    }
}

#[test]
fn many_headers_are_read_in_bounds() {
    let mut headers = HeaderMap::new();
    for i in 0..20_000 {
        let name = HeaderName::from_bytes(format!("x-ratelimit-remaining-{i}").as_bytes());
        headers.insert(name.unwrap_or(HeaderName::from_static("age")), HeaderValue::from_static("0"));
    }
    let policies = "\"a\";q=1;w=1,".repeat(300);
    let policies = HeaderValue::from_str(policies.trim_end_matches(','));
    headers.insert("ratelimit-policy", policies.unwrap_or(HeaderValue::from_static("")));
    let response = Reader::auto().read(StatusCode::OK, &headers);
    assert_eq!(response.limits.len(), 32);
}
