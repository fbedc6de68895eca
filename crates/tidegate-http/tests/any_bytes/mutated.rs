//! Damaged responses, made of words that mean something.

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

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
    "msec",
    "millis",
    "millisecond",
    "milliseconds",
    "s",
    "sec",
    "secs",
    "seconds",
    "second",
    "minute",
    "minutes",
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
    "utilization",
    "delay",
    "state",
    "running",
    "length",
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
    "grpc-status",
    "grpc-retry-pushback-ms",
    "x-ratelimit",
    "x-sentry-rate-limits",
    "x-rate-limit-ip",
    "x-rate-limit-ip-state",
    "remaining-req",
    "auth0-client-quota-limit",
    "anthropic-ratelimit-unified-5h-utilization",
    "x-ratelimit-towait-sec",
    "x-rl",
    "x-ttl",
];

const VALUES: &[&str] = &[
    "0",
    "1",
    "-1",
    "8",
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
    "{\"name\":\"a\",\"period\":60,\"limit\":1e3,\"remaining\":0,\"until\":\"2026-11-02T23:33:00Z\"}",
    "limit=20, remaining=19, reset=1; limit=4000, remaining=0, reset=1579",
    "user-hour-lim:3600;user-hour-rem:0;",
    "group=market; min=600; sec=9",
    "b=per_hour;q=100;r=0;t=3600,b=per_day;q=1000;r=950;t=86400",
    "60:default;error:organization:error_usage_exceeded, 2700::organization",
    "8:10:60,15:60:0",
    "59/60",
    "1792567710s",
    "allowed",
    "rejected",
    "0.995",
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

/// Composes a header of words that mean something, and damages some of the words.
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

pub(crate) fn pick<'a>(rng: &mut SmallRng, from: &[&'a str]) -> &'a str {
    from.choose(rng).copied().unwrap_or_default()
}

/// A response with up to eight headers.
pub(crate) fn response(rng: &mut SmallRng) -> (StatusCode, HeaderMap) {
    let statuses = [200, 204, 302, 304, 400, 403, 414, 429, 503];
    let headers = (0..rng.random_range(0..8)).map(|_| header(rng)).collect();
    let status = statuses.choose(rng).and_then(|s| StatusCode::from_u16(*s).ok());
    (status.unwrap_or_default(), headers)
}
