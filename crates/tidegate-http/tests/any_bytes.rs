//! No bytes of a server make the reader panic or a client pause absurdly.
//!
//! `TIDEGATE_HTTP_FUZZ=100000000 cargo test --release --test any_bytes` reads so many answers; a
//! plain run reads a few.

use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tidegate_http::When;
use tidegate_http::read::{Advice, CAP, Numbers, Reader};

const NAMES: &[&str] = &[
    "x",
    "http",
    "anthropic",
    "rate",
    "ratelimit",
    "ratelimits",
    "limit",
    "limits",
    "remaining",
    "reset",
    "resets",
    "used",
    "usage",
    "based",
    "after",
    "in",
    "retry",
    "ms",
    "seconds",
    "second",
    "minute",
    "day",
    "10",
    "10s",
    "99999999999999999999d",
    "month",
    "requests",
    "tokens",
    "token",
    "api",
    "policy",
    "scope",
    "name",
    "bucket",
    "quota",
    "interval",
    "period",
    "window",
    "time",
    "timeremaining",
    "userlimit",
    "beta",
    "reason",
    "global",
    "cost",
    "count",
    "max",
    "concurrent",
    "unified",
];

const WHOLE_NAMES: &[&str] = &[
    "retry-after",
    "date",
    "age",
    "ratelimit",
    "ratelimit-policy",
    "x-ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-app-usage",
    "x-business-use-case-usage",
    "x-shopify-shop-api-call-limit",
    "x-app-rate-limit",
    "x-app-rate-limit-count",
    "x-amz-retry-after",
    "sforce-limit-info",
    "x-amzn-ratelimit-limit",
];

const VALUES: &[&str] = &[
    "0",
    "1",
    "-1",
    "100",
    "0.0056",
    "1e400",
    "NaN",
    "1547738944",
    "1694721826678",
    "1694721826678000",
    "999999999999999",
    "1000000000000000",
    "18446744073709551615",
    "99999999999999999999",
    "1m13.588s",
    "6m0s",
    "99999999999h",
    "PT1H",
    "P1M",
    "-5s",
    "Wed, 21 Oct 2026 07:28:00 GMT",
    "Wednesday, 21-Oct-26 07:28:00 GMT",
    "Sun Nov  6 08:49:37 1994",
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "Sat, 01 Jan 0000 00:00:00 GMT",
    "2026-03-26T16:00Z",
    "-009999-01-01T00:00:00Z",
    "9999-12-31T23:59:60+25:00",
    "\"default\";r=50;t=30",
    "\"default\";q=100;w=60;pk=:aGk=:",
    "\"a\";q=999999999999999;w=0",
    "limit=100, remaining=0, reset=30",
    "10, 10;w=1, 50;w=60",
    "600,30000",
    "32/40",
    "1/0",
    "100:120,20:1",
    "1 per 5 second",
    "100/hour",
    "1,199.72",
    "api-usage=18/5000",
    "name;107",
    "{\"call_count\":1e308}",
    "{\"a\":[{\"call_count\":101}]}",
    "[[[[[[[[",
    "\u{e9}",
    "\"",
    ";",
    ",",
    "=",
    " ",
    "true",
];

/// Composes a header of words that mean something, and damages some of them.
fn header(rng: &mut SmallRng) -> (HeaderName, HeaderValue) {
    let mut name = if rng.random_bool(0.4) {
        pick(rng, WHOLE_NAMES).to_owned()
    } else {
        (0..rng.random_range(1..6)).map(|_| pick(rng, NAMES)).collect::<Vec<_>>().join("-")
    }
    .into_bytes();
    let mut value =
        (0..rng.random_range(0..3)).map(|_| pick(rng, VALUES)).collect::<Vec<_>>().concat().into_bytes();
    if rng.random_bool(0.02) {
        name = (0..rng.random_range(1..40)).map(|_| rng.random()).collect();
    }
    for _ in 0..rng.random_range(0..4) {
        if !value.is_empty() && rng.random_bool(0.5) {
            let at = rng.random_range(0..value.len());
            match rng.random_range(0..3) {
                0 => value[at] = rng.random(),
                1 => value.truncate(at),
                _ => value.extend_from_within(at..),
            }
        }
    }
    value.retain(|b| (32..127).contains(b) || *b == 9 || *b > 127);
    let name = HeaderName::from_bytes(&name).unwrap_or(HeaderName::from_static("ratelimit"));
    let value = HeaderValue::from_bytes(&value).unwrap_or(HeaderValue::from_static(""));
    (name, value)
}

fn pick<'a>(rng: &mut SmallRng, from: &[&'a str]) -> &'a str {
    from.choose(rng).copied().unwrap_or_default()
}

#[test]
fn no_answer_does_harm() {
    let answers = std::env::var("TIDEGATE_HTTP_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000_u64);
    let mut rng = SmallRng::seed_from_u64(answers);
    let readings = [
        Reader::auto(),
        Reader::auto().numbers(Numbers::Seconds),
        Reader::auto().numbers(Numbers::Milliseconds),
        Reader::auto().numbers(Numbers::UnixSeconds),
        Reader::auto().numbers(Numbers::UnixMilliseconds),
    ];
    let statuses = [200, 204, 302, 304, 400, 403, 414, 429, 503];
    for _ in 0..answers {
        let headers: HeaderMap = (0..rng.random_range(0..8)).map(|_| header(&mut rng)).collect();
        let status =
            statuses.choose(&mut rng).and_then(|s| StatusCode::from_u16(*s).ok()).unwrap_or_default();
        let Some(reader) = readings.choose(&mut rng) else { return };
        let answer = reader.read(status, &headers);

        let say = || format!("{status} {headers:?}: {answer:?}");
        assert!(answer.limits.len() <= 32, "{}", say());
        for limit in &answer.limits {
            for count in [limit.limit, limit.remaining].into_iter().flatten() {
                assert!((0.0..1e15).contains(&count), "{}", say());
            }
            assert!(limit.window.is_none_or(|w| !w.is_zero()), "{}", say());
            assert!(limit.limit.is_some() || limit.remaining.is_some() || limit.reset.is_some(), "{}", say());
        }
        let pauses = answer.advice(SystemTime::UNIX_EPOCH, CAP) != Advice::Go;
        assert!(pauses || !answer.refused, "{}", say());
        for now in [SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40)] {
            if let Advice::Pause { wait, asked } = answer.advice(now, CAP) {
                assert!(wait <= CAP && wait <= asked && !wait.is_zero(), "{}", say());
            }
        }
        let times = answer.limits.iter().filter_map(|limit| limit.reset).chain(answer.retry_after);
        // A wait that is read as a number is below a century; a date is one of four digits.
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
    let answer = Reader::auto().read(StatusCode::OK, &headers);
    assert_eq!(answer.limits.len(), 32);
}
