//! Headers that a server writes.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode};
use proptest::prelude::*;
use tidegate_http::read::Reader;
use tidegate_http::write::{self, Format, Limit};
use tidegate_http::{Problem, ProblemType, Unit, When};

const MINUTE: Duration = Duration::from_secs(60);

fn burst() -> Limit<'static> {
    Limit::new("burst", 100).unwrap().window(MINUTE).remaining(50).reset(Duration::from_millis(30_001))
}

fn daily() -> Limit<'static> {
    Limit::new("daily", 1000).unwrap().window(Duration::from_secs(86_400)).remaining(10).reset(MINUTE)
}

fn written(limits: &[Limit<'_>], format: Format) -> Vec<(String, String)> {
    let mut headers = HeaderMap::new();
    write::granted(limits, format, &mut headers);
    let text = |v: &HeaderValue| v.to_str().unwrap().to_owned();
    let mut pairs: Vec<_> = headers.iter().map(|(k, v)| (k.to_string(), text(v))).collect();
    pairs.sort();
    pairs
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn draft_writes_every_limit_by_name() {
    let expected = pairs(&[
        ("ratelimit", r#""burst";r=50;t=31, "daily";r=10;t=60"#),
        ("ratelimit-policy", r#""burst";q=100;w=60, "daily";q=1000;w=86400"#),
    ]);
    assert_eq!(written(&[burst(), daily()], Format::Draft), expected);
}

#[test]
fn draft_writes_unit_and_partition_key() {
    let limit = Limit::new("peruser", 65_535).unwrap().unit(Unit::Bytes).window(MINUTE).remaining(7);
    let limit = limit.partition_key(b"App-999".as_slice());
    let expected = pairs(&[
        ("ratelimit", r#""peruser";r=7;pk=:QXBwLTk5OQ==:"#),
        ("ratelimit-policy", r#""peruser";q=65535;qu="content-bytes";w=60;pk=:QXBwLTk5OQ==:"#),
    ]);
    assert_eq!(written(&[limit], Format::Draft), expected);
}

#[test]
fn older_formats_write_the_tightest_limit() {
    let limits = [burst(), daily()];
    let expected = pairs(&[
        ("ratelimit", "limit=1000, remaining=10, reset=60"),
        ("ratelimit-policy", "100;w=60, 1000;w=86400"),
    ]);
    assert_eq!(written(&limits, Format::Draft07), expected);
    let expected = pairs(&[
        ("ratelimit-limit", "1000"),
        ("ratelimit-policy", "100;w=60, 1000;w=86400"),
        ("ratelimit-remaining", "10"),
        ("ratelimit-reset", "60"),
    ]);
    assert_eq!(written(&limits, Format::Draft06), expected);
    let expected = pairs(&[
        ("ratelimit-limit", "1000, 100;w=60, 1000;w=86400"),
        ("ratelimit-remaining", "10"),
        ("ratelimit-reset", "60"),
    ]);
    assert_eq!(written(&limits, Format::Draft03), expected);
    let expected = |reset| {
        pairs(&[("x-ratelimit-limit", "1000"), ("x-ratelimit-remaining", "10"), ("x-ratelimit-reset", reset)])
    };
    assert_eq!(written(&limits, Format::XRateLimit), expected("60"));
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
    assert_eq!(written(&limits, Format::XRateLimitUnix(now)), expected("1700000061"));
}

#[test]
fn a_limit_of_unknown_state_is_not_the_tightest() {
    let unknown = Limit::new("unknown", 1).unwrap();
    let expected = written(&[daily()], Format::XRateLimit);
    assert_eq!(written(&[unknown.clone(), daily()], Format::XRateLimit), expected);
    assert_eq!(written(&[daily(), unknown], Format::XRateLimit), expected);
}

/// Bug: a limit of calls in flight was written as a limit of requests. A client that had the only
/// slot read that it had no requests left.
#[test]
fn formats_without_units_write_no_limit_of_calls_in_flight() {
    let calls = || Limit::new("calls", 1).unwrap().unit(Unit::Concurrency).window(MINUTE).remaining(0);
    let unix = Format::XRateLimitUnix(SystemTime::UNIX_EPOCH);
    for format in [Format::Draft07, Format::Draft06, Format::Draft03, Format::XRateLimit, unix] {
        assert_eq!(written(&[calls(), daily()], format), written(&[daily()], format), "{format:?}");
        assert_eq!(written(&[calls()], format), [], "{format:?}");
        let mut headers = HeaderMap::new();
        write::refused(&[calls(), daily()], MINUTE, format, &mut headers);
        assert_eq!(headers.remove("retry-after").unwrap(), "60");
        let mut without = HeaderMap::new();
        write::granted(&[daily()], format, &mut without);
        assert_eq!(headers, without, "{format:?}");
    }
}

#[test]
fn headers_of_an_earlier_call_are_replaced() {
    let mut headers = HeaderMap::new();
    write::granted(&[burst(), daily()], Format::Draft, &mut headers);
    write::granted(&[Limit::new("burst", 5).unwrap()], Format::Draft, &mut headers);
    assert_eq!(headers["ratelimit-policy"], r#""burst";q=5"#);
    assert!(!headers.contains_key("ratelimit"));
}

#[test]
fn retry_after_is_not_before_the_reset_of_a_used_up_limit() {
    let mut headers = HeaderMap::new();
    let second = Duration::from_secs(1);
    let limits =
        [burst().remaining(0).reset(Duration::from_millis(2500)), daily().remaining(0).reset(second / 2)];
    write::refused(&limits, Duration::from_millis(1100), Format::Draft, &mut headers);
    assert_eq!(headers["retry-after"], "3");
    assert_eq!(headers["ratelimit"], r#""burst";r=0;t=3, "daily";r=0;t=2"#);
}

#[test]
fn names_that_a_field_cannot_carry_are_errors() {
    for name in ["täglich", "two\nlines", "tab\t"] {
        let error = Limit::new(name, 1).unwrap_err();
        assert_eq!(error.name, name);
    }
    let quoted = Limit::new(r#"a "b" \c"#, 1).unwrap();
    let expected = pairs(&[("ratelimit-policy", r#""a \"b\" \\c";q=1"#)]);
    assert_eq!(written(&[quoted], Format::Draft), expected);
}

#[test]
fn numbers_that_a_field_cannot_carry_are_written_smaller() {
    let limit =
        Limit::new("a", u64::MAX).unwrap().remaining(u64::MAX).reset(Duration::MAX).window(Duration::ZERO);
    let expected = pairs(&[
        ("ratelimit", r#""a";r=999999999999999;t=999999999999999"#),
        ("ratelimit-policy", r#""a";q=999999999999999;w=1"#),
    ]);
    assert_eq!(written(&[limit], Format::Draft), expected);
}

#[test]
fn problems_have_the_types_of_the_draft() {
    let problem = Problem::quota_exceeded(["burst", "daily"]);
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota exceeded",
        "status": 429,
        "violated-policies": ["burst", "daily"],
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&problem.to_json()).unwrap(), expected);
    assert_eq!(Problem::CONTENT_TYPE, "application/problem+json");

    let mut reduced = Problem::temporary_reduced_capacity(["all"]);
    reduced.detail = Some("say \"later\"".to_owned());
    reduced.instance = Some("/refusals/7".to_owned());
    assert_eq!(
        (reduced.kind, reduced.status),
        (ProblemType::TemporaryReducedCapacity, StatusCode::SERVICE_UNAVAILABLE)
    );
    let abnormal = Problem::abnormal_usage_detected(Vec::<String>::new());
    assert_eq!(
        (abnormal.kind, abnormal.status),
        (ProblemType::AbnormalUsageDetected, StatusCode::TOO_MANY_REQUESTS)
    );
    for problem in [problem, reduced, abnormal] {
        assert_eq!(Problem::from_json(problem.to_json().as_bytes()), Some(problem));
    }
}

#[test]
fn other_problems_and_wrong_members_are_ignored() {
    assert_eq!(Problem::from_json(br#"{"type":"about:blank","status":429}"#), None);
    assert_eq!(Problem::from_json(b"[]"), None);
    assert_eq!(Problem::from_json(b"\xff"), None);
    let wrong = br#"{"type":"https://www.iana.org/assignments/http-problem-types#quota-exceeded",
        "status":"429","detail":5,"violated-policies":["a",1,{"b":2}]}"#;
    assert_eq!(Problem::from_json(wrong), Some(Problem::quota_exceeded(["a"])));
}

proptest! {
    /// A client that reads what a server writes never waits less than the server asks.
    #[test]
    fn written_headers_are_read_back(
        quota in 0..1_000_000_000_u64,
        remaining in 1..1_000_000_000_u64,
        window in 1..10_000_000_u64,
        reset in 0..1_000_000_000_000_u64,
        wait in 0..1_000_000_000_000_u64,
        name in "[ -~]{0,20}",
        format in prop::sample::select(vec![Format::Draft, Format::Draft07, Format::Draft06, Format::Draft03, Format::XRateLimit]),
    ) {
        let (reset, wait) = (Duration::from_micros(reset), Duration::from_micros(wait));
        let limit = Limit::new(name.as_str(), quota).unwrap().window(Duration::from_secs(window));
        let limit = limit.remaining(remaining).reset(reset);
        let mut headers = HeaderMap::new();
        write::refused(&[limit], wait, format, &mut headers);
        let response = Reader::auto().numbers(tidegate_http::read::Numbers::Seconds).read(StatusCode::TOO_MANY_REQUESTS, &headers);
        let up = |d: Duration| Duration::from_secs(u64::try_from(d.as_nanos().div_ceil(1_000_000_000)).unwrap());
        prop_assert_eq!(response.retry_after, Some(When::In(up(wait))));
        let read = &response.limits[0];
        prop_assert_eq!(response.limits.len(), 1);
        #[expect(clippy::cast_precision_loss)]
        let counts = (Some(quota as f64), Some(remaining as f64));
        prop_assert_eq!((read.limit, read.remaining), counts);
        prop_assert_eq!(read.reset, Some(When::In(up(reset))));
        if format == Format::Draft {
            prop_assert_eq!(read.name.as_deref(), Some(name.as_str()));
        }
        if format != Format::XRateLimit {
            prop_assert_eq!(read.window, Some(Duration::from_secs(window)));
        }
    }
}

/// Regression: a limiter whose store did not reply reports a wait of zero.
#[test]
fn no_refusal_asks_to_retry_at_once() {
    let mut headers = HeaderMap::new();
    write::refused(&[], Duration::ZERO, Format::Draft, &mut headers);
    assert_eq!(headers["retry-after"], "1");
    assert_eq!(write::retry_after(Duration::ZERO), "1");
}

/// Bug: the reset and the `Retry-After` are one number of seconds, and the reader took both for
/// milliseconds, because each seemed to confirm the other.
#[test]
fn a_refusal_of_round_days_is_read_in_seconds() {
    for seconds in [60_000, 180_000, 101_000, 600_000] {
        let (wait, mut headers) = (Duration::from_secs(seconds), HeaderMap::new());
        let limit = Limit::new("month", 10).unwrap().remaining(0);
        write::refused(&[limit], wait, Format::XRateLimit, &mut headers);
        let response = Reader::auto().read(StatusCode::TOO_MANY_REQUESTS, &headers);
        assert_eq!(response.retry_after, Some(When::In(wait)));
        assert_eq!(response.limits[0].reset, Some(When::In(wait)));
    }
}

/// Bug: two policies with equal numbers were read as one if the name of one was the beginning of
/// the name of the other.
#[test]
fn policies_with_equal_numbers_are_read_as_two() {
    let limit = |name| Limit::new(name, 100).unwrap().window(MINUTE).remaining(99).reset(MINUTE);
    let mut headers = HeaderMap::new();
    write::granted(&[limit("user"), limit("user-write")], Format::Draft, &mut headers);
    let response = Reader::auto().read(StatusCode::OK, &headers);
    let names: Vec<_> = response.limits.iter().map(|limit| limit.name.as_deref()).collect();
    assert_eq!(names, [Some("user"), Some("user-write")]);
}
