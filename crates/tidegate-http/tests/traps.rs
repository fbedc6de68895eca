//! Mistakes in reading headers, one test for each.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate_http::read::{Advice, DEFAULT_MAX_PAUSE, Numbers, Reader, ResponseLimits, ServerLimit, Vendor};
use tidegate_http::{Unit, When};

/// Unix time 1792567680.
const DATE: (&str, &str) = ("Date", "Wed, 21 Oct 2026 07:28:00 GMT");

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&str, &str)| {
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
    };
    let mut headers = HeaderMap::new();
    for (name, value) in pairs.iter().map(header) {
        headers.append(name, value);
    }
    headers
}

fn read(status: u16, pairs: &[(&str, &str)]) -> ResponseLimits {
    Reader::auto().read(StatusCode::from_u16(status).unwrap(), &headers(pairs))
}

fn limits(pairs: &[(&str, &str)]) -> Vec<ServerLimit> {
    read(200, pairs).limits
}

fn only(pairs: &[(&str, &str)]) -> ServerLimit {
    let limits = limits(pairs);
    assert_eq!(limits.len(), 1, "{limits:?}");
    limits[0].clone()
}

fn pause(response: &ResponseLimits) -> Advice {
    response.advice(SystemTime::UNIX_EPOCH, DEFAULT_MAX_PAUSE)
}

fn seconds(seconds: f64) -> Option<When> {
    Some(When::In(Duration::from_secs_f64(seconds)))
}

fn for_seconds(wait: u64) -> Advice {
    let wait = Duration::from_secs(wait);
    Advice::Pause { wait, asked: wait }
}

const BACK_OFF: Advice = Advice::BackOff { at_least: Duration::ZERO };

fn reset(text: &str) -> Option<When> {
    only(&[("x-ratelimit-remaining", "5"), ("x-ratelimit-reset", text), DATE]).reset
}

fn retry_after(text: &str) -> Option<When> {
    read(429, &[("retry-after", text), DATE]).retry_after
}

#[test]
fn resets_are_read_by_their_form() {
    for (text, expected) in [
        ("30", 30.0),
        ("0.25", 0.25),
        ("1792567710", 30.0),
        ("1792567710.5", 30.5),
        ("1792567710250", 30.25),
        ("1792567710250000", 30.25),
        ("1792567710250000000", 30.25),
        ("6m0s", 360.0),
        ("1m13.588s", 73.588),
        ("12ms", 0.012),
        ("999.5µs", 0.000_999_5),
        ("1h0m2s", 3602.0),
        ("30 seconds", 30.0),
        ("00:00:30", 30.0),
        ("PT30S", 30.0),
        ("2026-10-21T07:28:30Z", 30.0),
        ("2026-10-21T07:28:30.250Z", 30.25),
        ("2026-10-21T07:30Z", 120.0),
        ("2026-10-21T09:28:30+02:00", 30.0),
        ("2026-10-21T07:28:30", 30.0),
        ("2026-10-21 07:28:30 UTC", 30.0),
        ("2026-10-21 07:28:30 +0000 UTC", 30.0),
        ("2026-10-21 09:28:30 +0200", 30.0),
        ("2026-10-22", 59_520.0),
        ("Wed, 21 Oct 2026 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2026 07:28:30 UTC", 30.0),
        ("Wed, 21 Oct 2026 09:28:30 +0200", 30.0),
        ("wed, 21 oct 2026 07:28:30 gmt", 30.0),
        ("Wed, 1 Nov 2026 07:28:00 GMT", 950_400.0),
        // The day of the week is wrong.
        ("Mon, 21 Oct 2026 07:28:30 GMT", 30.0),
        ("Wednesday, 21-Oct-26 07:28:30 GMT", 30.0),
        ("Wed Oct 21 07:28:30 2026", 30.0),
        ("Wed Oct 21 2026 07:28:30 GMT+0000 (Coordinated Universal Time)", 30.0),
        ("Wed Oct 21 2026 09:28:30 GMT+0200", 30.0),
        ("2026-12-31T23:59:60Z", 6_193_919.0),
        ("Wed Oct 21 07:28:30 UTC 2026", 30.0),
        ("Wed Oct 21 07:28:30 GMT 2026", 30.0),
        ("Wed Oct 21 09:28:30 +0200 2026", 30.0),
        ("2026/10/21 07:28:30", 30.0),
        ("Wednesday, October 21, 2026 7:28:30 AM GMT", 30.0),
        ("Wednesday, October 21, 2026 12:28:30 PM GMT", 18_030.0),
        // This is not a duration of 56 years.
        ("1792567710s", 30.0),
        ("1792567710250ms", 30.25),
    ] {
        assert_eq!(reset(text), seconds(expected), "{text}");
    }
}

#[test]
fn a_reset_before_the_date_is_zero() {
    for text in ["1547738944", "1547738944000", "2015-10-21T07:28:00Z", "Wed, 21 Oct 2015 07:28:00 GMT"] {
        assert_eq!(reset(text), seconds(0.0), "{text}");
    }
}

#[test]
fn a_value_that_is_no_time_is_ignored() {
    for text in [
        "-1",
        "-30",
        "-5s",
        "",
        "soon",
        "NaN",
        "Infinity",
        "1e9",
        "1e400",
        "0x10",
        "1_000",
        "+5",
        "٣٠",
        "5;5",
        "99999999999999999999",
        "1000000000000000000",
        "P1M",
        "99999999h",
        "2026-13-01T00:00:00Z",
        "2026-10-21T25:00:00Z",
        "21 Oct",
        "null",
        "undefined",
    ] {
        assert_eq!(reset(text), None, "{text}");
        assert_eq!(retry_after(text), None, "{text}");
        assert_eq!(pause(&read(429, &[("retry-after", text)])), BACK_OFF, "{text}");
    }
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    for (text, expected) in [
        ("120", 120.0),
        ("2.0", 2.0),
        ("7.66", 7.66),
        (" 5 ", 5.0),
        ("0", 0.0),
        ("Wed, 21 Oct 2026 07:29:00 GMT", 60.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("2026-10-21T07:29:00Z", 60.0),
        ("1792567740", 60.0),
        ("30s", 30.0),
        // A month is not a mistake here.
        ("2678401", 2_678_401.0),
        // Two lines that a proxy joined: the longer wait satisfies both.
        ("120, 60", 120.0),
        ("Wed, 21 Oct 2026 07:29:00 GMT, Wed, 21 Oct 2026 07:28:30 GMT", 60.0),
    ] {
        assert_eq!(retry_after(text), seconds(expected), "{text}");
    }
}

#[test]
fn of_two_hints_to_retry_the_longer_counts() {
    let response = read(429, &[("retry-after", "1"), ("retry-after-ms", "1500")]);
    assert_eq!(response.retry_after, seconds(1.5));
    let response = read(429, &[("retry-after", "5"), ("retry-after", "60")]);
    assert_eq!(response.retry_after, seconds(60.0));
}

/// Regression: a date counted, and `Obey` ignored it because there is no `Date` to count it from.
/// So a pause of an hour was a second.
#[test]
fn without_a_date_of_two_hints_to_retry_the_one_that_counts_from_now_counts() {
    let (past, future) = ("Wed, 21 Oct 2015 07:28:00 GMT", "Fri, 31 Dec 2038 23:59:59 GMT");
    for other in [("retry-after", past), ("x-retry-after", future), ("retry-after", "1447736246")] {
        for pairs in [[("retry-after", "3600"), other], [other, ("retry-after", "3600")]] {
            assert_eq!(read(429, &pairs).retry_after, seconds(3600.0), "{other:?}");
        }
    }
}

#[test]
fn other_names_of_retry_after_have_their_own_units() {
    for (name, value, expected) in [
        ("retry-after-ms", "250", 0.25),
        ("x-ms-retry-after-ms", "12", 0.012),
        ("x-amz-retry-after", "1500", 1.5),
        ("x-retry-in", "30s", 30.0),
        ("x-rate-limit-retry-after-seconds", "59", 59.0),
        ("x-rate-limit-retry-after-milliseconds", "59", 0.059),
        ("x-ratelimit-retry-after", "7", 7.0),
        ("x-ratelimit-timeremaining", "55", 55.0),
        ("beta-retry-after", "9", 9.0),
    ] {
        assert_eq!(read(429, &[(name, value)]).retry_after, seconds(expected), "{name}");
    }
    assert_eq!(read(429, &[("x-should-retry", "1")]).retry_after, None);
}

/// Regression: a name in minutes made the reader divide by zero.
#[test]
fn times_in_minutes_are_read() {
    for (value, minutes) in [("5", 5.0), ("1.5", 1.5), ("0.1", 0.1)] {
        let expected = seconds(60.0 * minutes);
        for name in ["retry-after-minutes", "x-retry-in-minutes", "x-ratelimit-retry-after-minutes"] {
            assert_eq!(read(429, &[(name, value)]).retry_after, expected, "{name}");
        }
        for name in ["reset-minutes", "reset-in-minutes", "reset-after-minutes"] {
            let name = format!("x-ratelimit-{name}");
            let reported = only(&[(&name, value), ("x-ratelimit-remaining", "5")]);
            assert_eq!(reported.reset, expected, "{name}");
        }
        let reported = only(&[("x-ratelimit-window-minutes", value), ("x-ratelimit-limit", "5")]);
        assert_eq!(reported.window.map(When::In), expected);
    }
}

#[test]
fn absolute_timestamps_count_from_the_date_of_the_response() {
    let pairs = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1792567710")];
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_792_567_710);
    assert_eq!(only(&pairs).reset, Some(When::At(at)));
    // A clock that is an hour late, and a clock that is an hour early.
    for now in [at + Duration::from_secs(3600), at - Duration::from_secs(3600)] {
        let response = read(200, &[pairs[0], pairs[1], DATE]);
        assert_eq!(response.advice(now, DEFAULT_MAX_PAUSE), for_seconds(30));
    }
    let without = read(200, &pairs);
    assert_eq!(without.advice(at - Duration::from_secs(7), DEFAULT_MAX_PAUSE), for_seconds(7));
}

#[test]
fn a_date_that_is_none_counts_as_missing() {
    for date in ["", "yesterday", "Thu, 01 Jan 1970 00:00:10 GMT", "-1"] {
        let limit =
            only(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1792567710"), ("date", date)]);
        assert!(matches!(limit.reset, Some(When::At(_))), "{date}");
    }
}

#[test]
fn no_pause_is_longer_than_the_cap() {
    for (name, value) in [
        ("retry-after", "19056"),
        ("retry-after", "999999999"),
        ("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT"),
        ("retry-after", "4294967295"),
    ] {
        let Advice::Pause { wait, asked } = pause(&read(429, &[(name, value), DATE])) else {
            panic!("{value}")
        };
        assert_eq!(wait, DEFAULT_MAX_PAUSE);
        assert!(asked > DEFAULT_MAX_PAUSE);
    }
}

#[test]
fn milliseconds_do_not_pause_for_hours() {
    // A window of a minute does not reset in eight minutes.
    let limit = |reset| {
        only(&[("x-ratelimit-remaining", "119"), ("x-ratelimit-period", "60"), ("x-ratelimit-reset", reset)])
    };
    assert_eq!(limit("500").reset, seconds(0.5));
    assert_eq!(limit("59").reset, seconds(59.0));
    assert_eq!(limit("61").reset, seconds(61.0));
    // Azure counts requests per minute.
    let pairs = [("x-ratelimit-remaining-requests", "119"), ("x-ratelimit-reset-requests", "500")];
    assert_eq!(only(&pairs).reset, seconds(0.5));
    // No quota lasts for three years.
    assert_eq!(reset("86400000"), seconds(86_400.0));
    // The server reports the wait a second time.
    let pairs = [("retry-after", "60"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "59993")];
    assert_eq!(read(429, &pairs).limits[0].reset, seconds(59.993));
    // The `Retry-After` is in seconds, and so is an equal reset.
    let pairs = [("retry-after", "500"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "500")];
    let of_a_minute = [&pairs[..], &[("x-ratelimit-period", "60")]].concat();
    assert_eq!(read(429, &of_a_minute).limits[0].reset, seconds(500.0));
    // A quota of a month lasts for a month.
    assert_eq!(reset("2591999"), seconds(2_591_999.0));
}

/// Regression: the window is in another header, and was known only after the reset had been read.
#[test]
fn seconds_within_the_window_of_a_policy_are_no_milliseconds() {
    for (number, window) in [("60000", "86400"), ("120000", "604800"), ("7419303", "31536000")] {
        let (state, policy) = (format!("limit=5, remaining=0, reset={number}"), format!("5;w={window}"));
        let separate = [("ratelimit-limit", "5"), ("ratelimit-remaining", "0"), ("ratelimit-reset", number)];
        let expected = (seconds(number.parse().unwrap()), Some(Duration::from_secs(window.parse().unwrap())));
        for pairs in [
            vec![("ratelimit", &*state), ("ratelimit-policy", &policy)],
            vec![("ratelimit-policy", &*policy), ("ratelimit", &state), ("retry-after", number)],
            [("ratelimit-policy", &*policy)].into_iter().chain(separate).collect(),
            separate.into_iter().chain([("x-ratelimit-policy", &*policy), ("retry-after", number)]).collect(),
        ] {
            let response = read(429, &pairs);
            assert_eq!((response.limits[0].reset, response.limits[0].window), expected, "{pairs:?}");
            if pairs.last() == Some(&("retry-after", number)) {
                assert_eq!(response.retry_after, expected.0, "{pairs:?}");
            }
        }
    }
    // A reset far beyond its window is in milliseconds. A bucket in debt resets soon after its
    // window.
    let state = |reset| format!("limit=5, remaining=0, reset={reset}");
    for (reset, expected) in [("30000", 30.0), ("10000", 10.0), ("9999", 9999.0), ("100", 100.0)] {
        assert_eq!(
            only(&[("ratelimit", &state(reset)), ("ratelimit-policy", "5;w=60")]).reset,
            seconds(expected)
        );
        assert_eq!(
            only(&[("ratelimit-limit", "5;w=60"), ("ratelimit-reset", reset)]).reset,
            seconds(expected)
        );
        let listed = [("ratelimit-limit", "5, 5;w=60"), ("ratelimit-reset", reset)];
        assert_eq!(only(&listed).reset, seconds(expected));
    }
}

#[test]
fn windows_in_milliseconds_are_no_hours() {
    for (window, seconds) in
        [("60000", 60), ("3600000", 3600), ("86400", 86_400), ("2592000", 2_592_000), ("604800", 604_800)]
    {
        let limit = only(&[("x-ratelimit-limit", "5"), ("x-ratelimit-window", window)]);
        assert_eq!(limit.window, Some(Duration::from_secs(seconds)), "{window}");
    }
}

#[test]
fn chosen_numbers_are_not_guessed() {
    let pairs = headers(&[("x-ratelimit-remaining", "5"), ("x-ratelimit-reset", "1792567710"), DATE]);
    let reset = |reader: Reader| reader.read(StatusCode::OK, &pairs).limits[0].reset;
    assert_eq!(reset(Reader::of(Vendor::GitHub)), seconds(30.0));
    assert_eq!(reset(Reader::of(Vendor::SmartThings)), seconds(1_792_567.710));
    assert_eq!(reset(Reader::auto().numbers(Numbers::Seconds)), seconds(1_792_567_710.0));
    assert_eq!(reset(Reader::auto().numbers(Numbers::Milliseconds)), seconds(1_792_567.710));
    assert_eq!(reset(Reader::auto().numbers(Numbers::UnixMilliseconds)), seconds(0.0));
}

#[test]
fn sentinels_are_unknown_and_not_exhausted() {
    for sentinel in
        ["-1", "", "unlimited", "-5", "18446744073709551615", "999999999999999.9999999999", "null"]
    {
        let response = read(200, &[("x-ratelimit-limit", "100"), ("x-ratelimit-remaining", sentinel)]);
        assert_eq!(
            (response.limits[0].limit, response.limits[0].remaining),
            (Some(100.0), None),
            "{sentinel}"
        );
        assert_eq!(pause(&response), Advice::Go, "{sentinel}");
    }
}

#[test]
fn bytes_that_are_no_text_leave_the_other_headers_alone() {
    let mut map = headers(&[("x-ratelimit-reset", "30")]);
    map.insert("x-ratelimit-remaining", HeaderValue::from_bytes(b"\xff5").unwrap());
    let response = Reader::auto().read(StatusCode::OK, &map);
    assert_eq!((response.limits[0].remaining, response.limits[0].reset), (None, seconds(30.0)));
}

#[test]
fn a_fraction_of_a_permit_is_kept() {
    let reddit =
        only(&[("x-ratelimit-remaining", "598.0"), ("x-ratelimit-used", "2"), ("x-ratelimit-reset", "299")]);
    assert_eq!((reddit.limit, reddit.remaining, reddit.reset), (None, Some(598.0), seconds(299.0)));
    let amazon = only(&[("x-amzn-ratelimit-limit", "0.0056")]);
    assert_eq!((amazon.limit, amazon.window), (Some(0.0056), Some(Duration::from_secs(1))));
    // Less than one request is left.
    assert_eq!(
        pause(&read(200, &[("x-ratelimit-remaining", "0.5"), ("x-ratelimit-reset", "3")])),
        for_seconds(3)
    );
}

#[test]
fn github_refuses_with_403() {
    let primary = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1792567700"), DATE];
    assert_eq!(pause(&read(403, &primary)), for_seconds(20));
    // The secondary limit leaves units of the primary limit.
    let secondary = [("x-ratelimit-remaining", "14"), ("retry-after", "60"), ("x-github-request-id", "A")];
    assert_eq!(pause(&read(403, &secondary)), for_seconds(60));
    let untimed = read(429, &[("x-ratelimit-remaining", "14"), ("x-github-request-id", "A")]);
    assert_eq!(pause(&untimed), Advice::BackOff { at_least: Duration::from_secs(60) });
    assert_eq!(pause(&read(403, &[("x-ratelimit-remaining", "4999")])), Advice::Go);
}

#[test]
fn refusals_are_known_by_status_and_headers() {
    for status in [429, 420] {
        assert_eq!(pause(&read(status, &[])), BACK_OFF);
        assert_eq!(pause(&read(status, &[("retry-after", "0")])), BACK_OFF);
        assert_eq!(pause(&read(status, &[("retry-after", "3")])), for_seconds(3));
    }
    for status in [400, 403, 503, 529] {
        assert_eq!(pause(&read(status, &[])), Advice::Go);
        assert_eq!(pause(&read(status, &[("retry-after", "3")])), for_seconds(3));
        assert_eq!(
            pause(&read(status, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")])),
            for_seconds(9)
        );
        for (name, value) in [
            ("stripe-rate-limited-reason", "global-rate"),
            ("ratelimit-reason", "jira-burst-based"),
            ("x-rate-limit-problem", "minute"),
            ("discourse-rate-limit-error-code", "user_10_secs_limit"),
            ("x-amzn-errortype", "ThrottlingException:http://internal.amazon.com/"),
            ("x-envoy-ratelimited", "true"),
            ("x-ratelimit-exceeded", "true"),
        ] {
            assert_eq!(pause(&read(status, &[(name, value)])), BACK_OFF, "{name}");
        }
        assert_eq!(pause(&read(status, &[("x-ratelimit-exceeded", "false")])), Advice::Go);
        assert_eq!(pause(&read(status, &[("x-amzn-errortype", "ValidationException")])), Advice::Go);
    }
    for status in [200, 201, 304, 404, 414, 500] {
        assert_eq!(pause(&read(status, &[("retry-after", "3")])), Advice::Go, "{status}");
    }
}

/// Regression: in the response to a granted request, Anthropic reports that it allows no use beyond
/// the subscription. A plain error with these headers was read as a refusal.
#[test]
fn a_status_of_one_window_of_anthropic_refuses_nothing() {
    let reported = |status: &'static str| {
        [
            ("anthropic-ratelimit-unified-5h-reset", "1792571280"),
            ("anthropic-ratelimit-unified-5h-status", "allowed"),
            ("anthropic-ratelimit-unified-5h-utilization", "0.25"),
            ("anthropic-ratelimit-unified-7d_oi-status", "rejected"),
            ("anthropic-ratelimit-unified-fallback-percentage", "0.5"),
            ("anthropic-ratelimit-unified-overage-disabled-reason", "org_level_disabled"),
            ("anthropic-ratelimit-unified-overage-status", "rejected"),
            ("anthropic-ratelimit-unified-representative-claim", "five_hour"),
            ("anthropic-ratelimit-unified-reset", "1792571280"),
            ("anthropic-ratelimit-unified-status", status),
            DATE,
        ]
    };
    for status in [400, 403, 503, 200] {
        for verdict in ["allowed", "allowed_warning"] {
            let response = read(status, &reported(verdict));
            assert_eq!((pause(&response), response.reason), (Advice::Go, None), "{status} {verdict}");
        }
    }
    // The reset without a window is the end of the refusal, whichever window refused.
    let hour = Duration::from_secs(3600);
    let until_reset = Advice::Pause { wait: DEFAULT_MAX_PAUSE, asked: hour };
    assert_eq!(pause(&read(400, &reported("rejected"))), until_reset);
    let refused = read(429, &reported("rejected"));
    assert_eq!((pause(&refused), refused.reason.as_deref()), (until_reset, Some("rejected")));
}

/// Regression: each plain error of a server that limits calls in flight was read as a refusal, and
/// each success as a reason to back off.
#[test]
fn a_limit_of_calls_in_flight_that_is_full_refuses_by_the_status_only() {
    for state in ["\"calls\";r=0", "\"calls\";r=0;t=9"] {
        let full = [
            ("ratelimit-policy", "\"calls\";q=1;qu=\"concurrent-requests\""),
            ("ratelimit", state),
            ("grpc-status", "8"),
        ];
        for status in [200, 400, 403, 404, 503] {
            let response = read(status, &full);
            assert!(!response.refused, "{status}");
            assert_eq!(pause(&response), Advice::Go, "{status}");
        }
        assert_eq!(pause(&read(429, &full)), BACK_OFF);
    }
}

#[test]
fn retry_after_counts_before_resets() {
    let pairs = [("retry-after", "5"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60")];
    assert_eq!(pause(&read(429, &pairs)), for_seconds(5));
    let draft = [("retry-after", "5"), ("ratelimit", "\"a\";r=0;t=60")];
    assert_eq!(pause(&read(429, &draft)), for_seconds(5));
}

#[test]
fn a_response_pauses_when_nothing_is_left() {
    assert_eq!(
        pause(&read(200, &[("ratelimit", "\"a\";r=0;t=60, \"b\";r=0;t=7, \"c\";r=1;t=90")])),
        for_seconds(60)
    );
    assert_eq!(pause(&read(200, &[("x-ratelimit-remaining", "0")])), BACK_OFF);
    assert_eq!(pause(&read(200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "0")])), Advice::Go);
    assert_eq!(pause(&read(200, &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "9")])), Advice::Go);
}

#[test]
fn responses_out_of_a_cache_and_redirects_do_not_pause() {
    let pairs = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60")];
    let cached = read(200, &[pairs[0], pairs[1], ("age", "20")]);
    assert_eq!((cached.trusted, pause(&cached)), (false, Advice::Go));
    assert_eq!(pause(&read(200, &[pairs[0], pairs[1], ("age", "0")])), for_seconds(60));
    let redirect = read(302, &pairs);
    assert_eq!((redirect.trusted, pause(&redirect)), (false, Advice::Go));
    // GitHub itself sends 304 to conditional requests.
    assert_eq!(pause(&read(304, &pairs)), for_seconds(60));
    // A refusal is a refusal, wherever it comes from.
    assert_eq!(pause(&read(429, &[("age", "20")])), BACK_OFF);
}

#[test]
fn a_policy_lends_its_quota_to_its_own_name_only() {
    let limits =
        limits(&[("ratelimit", "\"default\";r=50;t=30"), ("ratelimit-policy", "\"burst\";q=100;w=60")]);
    assert_eq!((limits[0].name.as_deref(), limits[0].limit), (Some("default"), None));
    assert_eq!((limits[1].name.as_deref(), limits[1].remaining), (Some("burst"), None));
}

#[test]
fn partition_keys_distinguish_shares() {
    let pairs = [
        ("ratelimit-policy", "\"user\";q=10;w=1;pk=:YQ==:, \"user\";q=20;w=1;pk=:Yg==:, \"app\";q=30;w=1"),
        ("ratelimit", "\"user\";r=2;pk=:Yg==:, \"app\";r=3;pk=:Yw==:"),
    ];
    let limits = limits(&pairs);
    let read: Vec<_> = limits.iter().map(|l| (l.partition_key.clone(), l.limit, l.remaining)).collect();
    let expected = vec![
        (Some(b"b".to_vec()), Some(20.0), Some(2.0)),
        (Some(b"c".to_vec()), Some(30.0), Some(3.0)),
        (Some(b"a".to_vec()), Some(10.0), None),
    ];
    assert_eq!(read, expected);
}

#[test]
fn units_of_the_draft_are_read() {
    for (text, unit) in [
        ("", Some(Unit::Requests)),
        (";qu=\"requests\"", Some(Unit::Requests)),
        (";qu=\"request\"", Some(Unit::Requests)),
        (";qu=\"content-bytes\"", Some(Unit::Bytes)),
        (";qu=\"concurrent-requests\"", Some(Unit::Concurrency)),
        (";qu=\"bananas\"", None),
    ] {
        let limit = only(&[("ratelimit-policy", format!("\"a\";q=10{text}").as_str())]);
        assert_eq!(limit.unit, unit, "{text}");
    }
}

#[test]
fn examples_of_the_draft_with_parts_missing_are_read() {
    let limit = only(&[("ratelimit-policy", "quota;q=100;w=1"), ("ratelimit", "quota;t=3")]);
    assert_eq!((limit.limit, limit.remaining, limit.reset), (Some(100.0), None, seconds(3.0)));
    // A proposed change to the draft.
    let limit = only(&[("ratelimit", "\"a\";a=5;w=7")]);
    assert_eq!((limit.remaining, limit.reset), (Some(5.0), seconds(7.0)));
}

#[test]
fn malformed_fields_of_the_draft_are_ignored() {
    for field in ["\"a\";r=0;t=", "\"a;r=0", "\"a\";r=0,", "\"a\";R=0", "\"a\";r=0;;", "é;r=0"] {
        assert_eq!(limits(&[("ratelimit", field)]), [], "{field}");
    }
    for field in ["\"a\";r=-1", "\"a\";r=0.5", "\"a\";r=\"0\"", "\"a\";r", "5;r=0", "(\"a\");r=0"] {
        assert_eq!(pause(&read(200, &[("ratelimit", field)])), Advice::Go, "{field}");
    }
}

#[test]
fn two_spellings_of_one_limit_are_one_limit() {
    let kong = only(&[
        ("X-RateLimit-Limit-Minute", "60"),
        ("X-RateLimit-Remaining-Minute", "59"),
        ("RateLimit-Limit", "60"),
        ("RateLimit-Remaining", "59"),
        ("RateLimit-Reset", "33"),
    ]);
    assert_eq!((kong.window, kong.reset), (Some(Duration::from_secs(60)), seconds(33.0)));
    let express = only(&[
        ("X-RateLimit-Limit", "100"),
        ("X-RateLimit-Remaining", "99"),
        ("X-RateLimit-Reset", "1792567740"),
        ("RateLimit-Policy", "\"100-in-1min\"; q=100; w=60; pk=:ZGU=:"),
        ("RateLimit", "\"100-in-1min\"; r=99; t=60; pk=:ZGU=:"),
        DATE,
    ]);
    assert_eq!((express.name.as_deref(), express.reset), (Some("100-in-1min"), seconds(60.0)));
}

#[test]
fn of_two_resets_of_one_limit_the_later_counts() {
    let limit = only(&[
        ("X-RateLimit-Limit", "100"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "1792567740"),
        ("RateLimit-Limit", "100"),
        ("RateLimit-Remaining", "0"),
        ("RateLimit-Reset", "30"),
        DATE,
    ]);
    assert_eq!(limit.reset, seconds(60.0));
}

#[test]
fn limits_of_different_numbers_stay_apart() {
    let pairs = [
        ("x-ratelimit-requests-limit", "100"),
        ("x-ratelimit-requests-remaining", "99"),
        ("X-RateLimit-Limit", "10"),
        ("X-RateLimit-Remaining", "9"),
    ];
    assert_eq!(limits(&pairs).len(), 2);
}

#[test]
fn lines_of_two_layers_are_two_limits() {
    let pairs = [
        ("X-RateLimit-Limit", "5000"),
        ("X-RateLimit-Limit", "60"),
        ("X-RateLimit-Remaining", "4999"),
        ("X-RateLimit-Remaining", "0"),
    ];
    let limits = limits(&pairs);
    let read: Vec<_> = limits.iter().map(|l| (l.limit, l.remaining)).collect();
    assert_eq!(read, [(Some(5000.0), Some(4999.0)), (Some(60.0), Some(0.0))]);
    // These lines do not belong together: the fewest left counts.
    let limit =
        only(&[("X-RateLimit-Limit", "60"), ("X-RateLimit-Remaining", "9"), ("X-RateLimit-Remaining", "3")]);
    assert_eq!((limit.limit, limit.remaining), (Some(60.0), Some(3.0)));
}

#[test]
fn a_policy_on_a_line_of_its_own_is_no_second_limit() {
    let pairs = [("ratelimit-limit", "10"), ("ratelimit-limit", "10;w=1"), ("ratelimit-remaining", "9")];
    let limit = only(&pairs);
    assert_eq!(
        (limit.limit, limit.remaining, limit.window),
        (Some(10.0), Some(9.0), Some(Duration::from_secs(1)))
    );
}

#[test]
fn a_long_name_is_no_limit() {
    let name = format!("x-ratelimit-remaining-{}", "a".repeat(4096));
    assert_eq!(limits(&[(&name, "0")]), []);
}

#[test]
fn a_window_of_zero_is_none() {
    for limit in ["5;w=0", "5:0", "5/0s", "5 per 0 second"] {
        let limit = only(&[("x-ratelimit-limit", limit), ("x-ratelimit-remaining", "3")]);
        assert_eq!((limit.remaining, limit.window), (Some(3.0), None));
    }
    assert_eq!(only(&[("ratelimit-policy", "\"a\";q=5;w=0")]).window, None);
}

#[test]
fn reasons_and_scopes_of_refusals_are_read() {
    let jira = read(429, &[("RateLimit-Reason", "jira-burst-based")]);
    assert_eq!(jira.reason.as_deref(), Some("jira-burst-based"));
    let stripe = read(429, &[("Stripe-Rate-Limited-Reason", "endpoint-rate")]);
    assert_eq!(stripe.reason.as_deref(), Some("endpoint-rate"));
    let discord = read(429, &[("X-RateLimit-Scope", "shared"), ("X-RateLimit-Global", "true")]);
    assert_eq!((discord.reason, discord.scope.as_deref()), (None, Some("shared")));
}

#[test]
fn retry_after_is_read_behind_very_many_headers() {
    let mut map = HeaderMap::new();
    for i in 0..2000 {
        let name = HeaderName::from_bytes(format!("x-ratelimit-limit-{i}").as_bytes()).unwrap();
        map.append(name, HeaderValue::from_static("5"));
    }
    map.append("retry-after", HeaderValue::from_static("7"));
    let response = Reader::auto().read(StatusCode::TOO_MANY_REQUESTS, &map);
    assert_eq!(pause(&response), for_seconds(7));
}

#[test]
fn a_limit_of_requests_is_not_joined_to_one_of_tokens() {
    let pairs =
        [("x-ratelimit-limit", "100"), ("x-ratelimit-remaining", "99"), ("x-ratelimit-reset-tokens", "5s")];
    let limits = limits(&pairs);
    let read: Vec<_> = limits.iter().map(|l| (l.unit, l.limit, l.reset)).collect();
    assert_eq!(read, [(Some(Unit::Requests), Some(100.0), None), (Some(Unit::Tokens), None, seconds(5.0))]);
}

/// gRPC sends its status in a header, and sends RESOURCE_EXHAUSTED also for messages that are too
/// long.
#[test]
fn a_refusal_of_grpc_reports_a_limit() {
    let pushback = ("grpc-retry-pushback-ms", "1500");
    for status in ["8", "14"] {
        let response = read(200, &[("grpc-status", status), pushback]);
        assert!(response.refused);
        assert_eq!(response.retry_after, seconds(1.5));
    }
    assert!(!read(200, &[("grpc-status", "8")]).refused);
    assert!(!read(200, &[("grpc-status", "13"), pushback]).refused);
    assert!(!read(200, &[pushback]).refused);
    // The client must not retry.
    assert!(!read(200, &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")]).refused);
}

/// Brave Search sells plans without a monthly quota, and sends a quota of 0 for them. Localist and
/// Tyk send 0 for no limit. Regression: each success paused the client.
#[test]
fn a_limit_of_zero_on_a_success_is_none() {
    let brave = [
        ("x-ratelimit-limit", "50, 0"),
        ("x-ratelimit-policy", "50;w=1, 0;w=2678400"),
        ("x-ratelimit-remaining", "49, 0"),
        ("x-ratelimit-reset", "1, 2501234"),
    ];
    let limit = only(&brave);
    assert_eq!((limit.limit, limit.remaining, limit.reset), (Some(50.0), Some(49.0), seconds(1.0)));
    assert_eq!(limit.window, Some(Duration::from_secs(1)));
    assert_eq!(pause(&read(200, &brave)), Advice::Go);

    // The limit of the second refused, and ends in a second. The other limit would end in a month.
    let refused = [brave[0], brave[1], ("x-ratelimit-remaining", "0, 0"), brave[3]];
    assert_eq!(pause(&read(429, &refused)), for_seconds(1));

    let unlimited = [("x-ratelimit-limit", "0"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "0")];
    for headers in [&unlimited[..2], &unlimited] {
        for status in [200, 204, 404] {
            let response = read(status, headers);
            assert_eq!((pause(&response), response.limits), (Advice::Go, vec![]), "{status}");
        }
        for status in [403, 429] {
            let refusal = read(status, headers);
            assert_eq!((pause(&refusal), refusal.limits.len()), (BACK_OFF, 1), "{status}");
        }
    }
}

/// OpenAlex bills in dollars, and sends balances that were never filled. Regression: each success
/// made the client back off.
#[test]
fn a_balance_of_nothing_refuses_no_request() {
    let openalex = [
        ("x-ratelimit-limit", "10000"),
        ("x-ratelimit-remaining", "2098"),
        ("x-ratelimit-reset", "41992"),
        ("x-ratelimit-limit-usd", "1"),
        ("x-ratelimit-remaining-usd", "0.2098"),
        ("x-ratelimit-prepaid-remaining-usd", "0"),
        ("x-ratelimit-onetime-remaining", "0"),
        ("x-ratelimit-cost-usd", "0.001"),
        ("x-ratelimit-credits-used", "10"),
    ];
    let response = read(200, &openalex);
    assert_eq!(pause(&response), Advice::Go);
    let reported: Vec<_> = response.limits.iter().map(|l| (l.unit, l.limit, l.remaining, l.reset)).collect();
    assert_eq!(
        reported,
        [
            (Some(Unit::Requests), Some(10000.0), Some(2098.0), seconds(41_992.0)),
            (None, Some(1.0), Some(0.2098), None),
        ]
    );
    // A limit in dollars is used up when nothing of it is left.
    let used_up = [openalex[3], ("x-ratelimit-remaining-usd", "0"), ("x-ratelimit-reset-usd", "60")];
    assert_eq!(pause(&read(200, &used_up)), for_seconds(60));
}

/// 418 and 529 are not statuses of an RFC.
#[test]
fn statuses_of_single_apis_refuse_with_a_time_only() {
    // Binance and Upbit block a client that continued after a 429.
    assert_eq!(pause(&read(418, &[("retry-after", "120")])), for_seconds(120));
    assert_eq!(pause(&read(418, &[])), Advice::Go);
    assert_eq!(pause(&read(418, &[("x-ratelimit-remaining", "5")])), Advice::Go);
    // Anthropic is overloaded.
    assert_eq!(pause(&read(529, &[("retry-after", "7")])), for_seconds(7));
    assert_eq!(pause(&read(529, &[])), Advice::Go);
}

/// Discord sent milliseconds before version 8 of its API. Regression: a wait of seconds became a
/// wait of hours.
#[test]
fn retry_after_in_milliseconds_is_known_by_the_reset() {
    let discord = [
        ("retry-after", "6457"),
        ("x-ratelimit-limit", "10"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1792567687"),
        ("x-ratelimit-reset-after", "7"),
        ("x-ratelimit-bucket", "abcd1234"),
        DATE,
    ];
    assert_eq!(read(429, &discord).retry_after, seconds(6.457));
    assert_eq!(
        pause(&read(429, &discord[..3])),
        Advice::Pause { wait: DEFAULT_MAX_PAUSE, asked: Duration::from_secs(6457) }
    );
    let by_date = [discord[0], discord[2], discord[3], DATE];
    assert_eq!(read(429, &by_date).retry_after, seconds(6.457));
    // A daily quota refused, and a limit per second has permits left.
    let day = [discord[0], ("x-ratelimit-remaining", "3"), discord[4]];
    assert_eq!(read(429, &day).retry_after, seconds(6457.0));
    // A date has no unit, and the name contains the unit.
    let date = [("retry-after", "Wed, 21 Oct 2026 09:15:37 GMT"), discord[2], discord[4], DATE];
    assert_eq!(read(429, &date).retry_after, seconds(6457.0));
    let reported = [("x-ratelimit-retry-after-seconds", "6457"), discord[2], discord[4]];
    assert_eq!(read(429, &reported).retry_after, seconds(6457.0));
}

/// An Anthropic subscription has windows of five hours and of seven days, and Anthropic sends the
/// used share of each.
#[test]
fn a_share_that_is_used_is_a_limit_of_one() {
    let claude = |status, used| {
        [
            ("anthropic-ratelimit-unified-status", status),
            ("anthropic-ratelimit-unified-reset", "1792568000"),
            ("anthropic-ratelimit-unified-5h-reset", "1792568000"),
            ("anthropic-ratelimit-unified-5h-status", status),
            ("anthropic-ratelimit-unified-5h-utilization", used),
            ("anthropic-ratelimit-unified-7d-reset", "1792740480"),
            ("anthropic-ratelimit-unified-7d-status", "allowed"),
            ("anthropic-ratelimit-unified-7d-utilization", "0.46"),
            ("anthropic-ratelimit-unified-representative-claim", "five_hour"),
            DATE,
        ]
    };
    let refusal = read(429, &claude("rejected", "1.0"));
    assert_eq!(pause(&refusal), for_seconds(320));
    let of = |window: Duration| {
        let limit = refusal.limits.iter().find(|limit| limit.window == Some(window)).unwrap();
        (limit.name.as_deref(), limit.unit, limit.limit, limit.remaining, limit.reset)
    };
    let five_hours = (Some("unified-5h"), None, Some(1.0), Some(0.0), seconds(320.0));
    assert_eq!(of(Duration::from_secs(5 * 3600)), five_hours);
    let week = (Some("unified-7d"), None, Some(1.0), Some(0.54), seconds(172_800.0));
    assert_eq!(of(Duration::from_secs(7 * 86_400)), week);
    // Some of the window is left, and use beyond the subscription is allowed.
    for used in ["0.995", "1.0", "1.02"] {
        assert_eq!(pause(&read(200, &claude("allowed_warning", used))), Advice::Go, "{used}");
    }
    // A percentage is not a share.
    assert_eq!(pause(&read(200, &[("x-ratelimit-utilization", "46")])), Advice::Go);
}

/// Bug: Microsoft Graph sends the used part of a limit from 0.8 on. It was read as a limit of less
/// than one request. A percentage that remains was read as a number of requests.
#[test]
fn a_percentage_is_no_number_of_requests() {
    for (name, value) in [
        ("x-ms-throttle-limit-percentage", "0.9"),
        ("x-ratelimit-remaining-percent", "5"),
        ("x-ratelimit-percentage-remaining", "0"),
    ] {
        assert_eq!(read(200, &[(name, value)]).limits, [], "{name}");
    }
}

#[test]
fn a_refusal_ends_at_a_reset_of_a_limit_that_does_not_say_what_is_left() {
    let lark = [("x-ogw-ratelimit-limit", "100"), ("x-ogw-ratelimit-reset", "60")];
    assert_eq!(pause(&read(429, &lark)), for_seconds(60));
    assert_eq!(pause(&read(200, &lark)), Advice::Go);
    // This limit did not refuse.
    let left = [lark[0], lark[1], ("x-ogw-ratelimit-remaining", "9")];
    assert_eq!(pause(&read(429, &left)), BACK_OFF);
}

#[test]
fn names_of_limits_in_pairs_are_read() {
    let json = r#"{"limit":1000,"remaining":999,"name":"General"}"#;
    for (header, value, name) in [
        ("x-ratelimit", json, "General"),
        ("x-rate-limit", "user-hour-lim:3600;user-hour-rem:0;", "user-hour"),
        ("remaining-req", "group=market; min=600; sec=9", "market"),
        ("auth0-client-quota-limit", "b=per_hour;q=100;r=90;t=3600", "per_hour"),
    ] {
        assert_eq!(only(&[(header, value)]).name.as_deref(), Some(name), "{value}");
    }
}

#[test]
fn pairs_that_are_no_limit_are_ignored() {
    for value in
        ["{}", "{", "[1]", "{\"limit\":{\"limit\":5}}", "{\"limit\":-1}", "q=5;r=0;t=9", "sec=", "-lim:5"]
    {
        let limits = limits(&[("x-ratelimit", value)]);
        assert!(limits.iter().all(|limit| limit.remaining.is_none()), "{value}: {limits:?}");
    }
    let deep = "{\"limit\":".repeat(400);
    assert_eq!(limits(&[("x-ratelimit", &deep)]), []);
    let many = "limit=1,remaining=1,".repeat(200);
    assert!(limits(&[("x-ratelimit", &many)]).len() <= 32);
}

#[test]
fn a_wait_of_each_response_counts_on_a_refusal() {
    let qualys = |left, wait| {
        [
            ("x-ratelimit-limit", "300"),
            ("x-ratelimit-remaining", left),
            ("x-ratelimit-towait-sec", wait),
            ("x-ratelimit-window-sec", "3600"),
        ]
    };
    assert_eq!(pause(&read(409, &qualys("0", "181"))), for_seconds(181));
    assert_eq!(pause(&read(409, &qualys("5", "181"))), Advice::Go);
    assert_eq!(pause(&read(409, &[("x-ratelimit-towait-sec", "181")])), Advice::Go);
    let success = read(200, &qualys("9", "0"));
    assert_eq!((pause(&success), success.retry_after), (Advice::Go, None));
    // A conflict from a server that reported its limit.
    let conflict = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")];
    assert!(!read(409, &conflict).refused);

    assert_eq!(pause(&read(429, &[("x-ratelimit-delay", "10")])), for_seconds(10));
    assert_eq!(pause(&read(429, &[("x-ratelimit-delay", "10"), ("retry-after", "3")])), for_seconds(3));
    let success = read(200, &[("x-ratelimit-delay", "10")]);
    assert_eq!((pause(&success), success.retry_after, success.limits), (Advice::Go, None, vec![]));
}

#[test]
fn limits_of_names_outside_the_grammar_refuse() {
    let eve = [("x-esi-error-limit-remain", "0"), ("x-esi-error-limit-reset", "43")];
    assert_eq!(pause(&read(420, &eve)), for_seconds(43));
    assert_eq!(pause(&read(200, &eve)), for_seconds(43));
    assert_eq!(pause(&read(200, &[("x-rl", "0"), ("x-ttl", "60")])), for_seconds(60));
    assert_eq!(pause(&read(429, &[("x-ttl", "60")])), BACK_OFF);
    let throttled = [("x-ratelimit-state", "THROTTLED"), ("x-ratelimit-period-in-sec", "60")];
    assert!(read(403, &throttled).refused);
}

/// Sentry sends the limits in force: the seconds of each limit, its categories and its scope.
#[test]
fn limits_by_categories_have_names_and_scopes() {
    let value = "60:default;error;security;attachment:organization:error_usage_exceeded, 2700::organization";
    let sentry = [("x-sentry-rate-limits", value)];
    let response = read(429, &sentry);
    let reported: Vec<_> = response.limits.iter().map(|l| (l.name.as_deref(), l.scope.as_deref())).collect();
    let organization = Some("organization");
    assert_eq!(reported, [(Some("default;error;security;attachment"), organization), (None, organization)]);
    let until_reset = Advice::Pause { wait: DEFAULT_MAX_PAUSE, asked: Duration::from_secs(2700) };
    assert_eq!((pause(&response), pause(&read(200, &sentry))), (until_reset, until_reset));
    assert_eq!(pause(&read(429, &[sentry[0], ("retry-after", "60")])), for_seconds(60));
    for value in ["60:error", "60:error:5", "60:5:key", ":error:key", "-1:error:key", "x:error:key"] {
        assert_eq!(limits(&[("x-sentry-rate-limits", value)]), [], "{value}");
    }
    assert_eq!(limits(&[("x-ratelimit-key", "60:user:name")]), []);
    assert_eq!(limits(&[("x-ratelimit-limit", "00:00:30")]), []);
}

#[test]
fn a_state_of_a_limit_marks_no_refusal() {
    let state = [("x-rate-limit-ip", "8:10:60"), ("x-rate-limit-ip-state", "7:10:0")];
    let response = read(400, &state);
    assert_eq!((response.refused, response.reason.as_deref(), pause(&response)), (false, None, Advice::Go));
    let banned = [("x-rate-limit-ip", "8:10:60"), ("x-rate-limit-ip-state", "1:10:60")];
    assert_eq!(pause(&read(200, &banned)), for_seconds(60));
}

/// Regression: a reset of ten minutes became a reset of a week.
#[test]
fn resets_in_whole_seconds_of_milliseconds_are_known() {
    for (text, expected) in [
        ("600000 (in milliseconds)", 600.0),
        ("600000 (milliseconds)", 600.0),
        ("600000 milliseconds", 600.0),
        ("60 (in seconds)", 60.0),
        ("600000", 600.0),
        ("599000", 599.0),
        ("900000", 900.0),
        ("60000", 60.0),
        // These numbers are seconds.
        ("59000", 59_000.0),
        ("108000", 108_000.0),
        ("432000", 432_000.0),
        ("604800", 604_800.0),
        ("2410345", 2_410_345.0),
        ("2592000", 2_592_000.0),
    ] {
        assert_eq!(reset(text), seconds(expected), "{text}");
    }
    for text in ["600000 (", "600000 ()", "600000 (requests)", "(in milliseconds)", "-5 (in seconds)"] {
        assert_eq!(reset(text), None, "{text}");
    }
    let prisjakt = [("X-Rate-Limit-Limit", "10000"), ("X-Rate-Limit-Remaining", "0")];
    for text in ["600000 (in milliseconds)", "600000"] {
        let refused = read(429, &[prisjakt[0], prisjakt[1], ("X-Rate-Limit-Reset", text)]);
        assert_eq!(pause(&refused), for_seconds(600), "{text}");
    }
    // The window of the limit is longer than the reset.
    let month = [prisjakt[0], ("x-rate-limit-period", "2592000"), ("x-rate-limit-reset", "600000")];
    assert_eq!(only(&month).reset, seconds(600_000.0));
}

/// Mashery refuses with 403, and other errors of developers have the same status.
#[test]
fn errors_of_mashery_are_refusals_if_a_rate_is_exceeded() {
    for (name, value, expected) in [
        ("X-Mashery-Error-Code", "ERR_403_DEVELOPER_OVER_RATE", BACK_OFF),
        ("X-Mashery-Error-Code", "ERR_403_DEVELOPER_OVER_QPS", BACK_OFF),
        ("X-Mashery-Error-Code", "ERR_403_DEVELOPER_OVER_QPD", BACK_OFF),
        ("X-Mashery-Error-Code", "ERR_403_DEVELOPER_INACTIVE", Advice::Go),
        ("X-Error-Detail-Header", "Account Over Rate Limit", BACK_OFF),
        ("X-Mashery-Error-Detail", "Account Over Queries Per Second Limit", BACK_OFF),
        ("X-Mashery-Error-Detail", "Account Inactive", Advice::Go),
        ("X-Error-Detail-Header", "Limit over", Advice::Go),
    ] {
        assert_eq!(pause(&read(403, &[(name, value)])), expected, "{value}");
        assert_eq!(pause(&read(200, &[(name, value)])), Advice::Go, "{value}");
    }
}

/// Regression: words of a bucket's name were read as the field, or removed from the name.
#[test]
fn a_word_of_a_field_in_a_name_belongs_to_the_name() {
    let of = |pairs: &[(&str, &str)]| {
        let limit = only(pairs);
        (limit.name, limit.limit, limit.remaining, limit.reset)
    };
    let named = |name: &str| Some(name.to_owned());
    for name in ["password-reset", "usage-export", "sign-in", "current-user", "next-page", "quota-minute"] {
        let all = |field: &str| format!("X-RateLimit-{field}-{name}");
        let (limit, remaining, reset) = (all("Limit"), all("Remaining"), all("Reset"));
        assert_eq!(of(&[(&limit, "10")]), (named(name), Some(10.0), None, None));
        assert_eq!(
            of(&[(&limit, "10"), (&remaining, "9"), (&reset, "30")]),
            (named(name), Some(10.0), Some(9.0), seconds(30.0))
        );
        let (limit, remaining, reset) = (
            format!("X-RateLimit-{name}-Limit"),
            format!("X-RateLimit-{name}-Remaining"),
            format!("X-RateLimit-{name}-Reset-Seconds"),
        );
        if matches!(name, "password-reset" | "sign-in") {
            assert_eq!(
                of(&[(&limit, "10"), (&remaining, "9"), (&reset, "30")]),
                (named(name), Some(10.0), Some(9.0), seconds(30.0))
            );
        }
    }
    // The header without the last word shows that the last word is the field.
    let user = [
        ("X-RateLimit-Limit-User", "10"),
        ("X-RateLimit-Limit-User-Remaining", "9"),
        ("X-RateLimit-Limit-User-Reset-Seconds", "30"),
    ];
    assert_eq!(of(&user), (named("user"), Some(10.0), Some(9.0), seconds(30.0)));
    let plain = [("X-RateLimit-Limit", "10"), ("X-RateLimit-Limit-Remaining", "9")];
    assert_eq!(of(&plain), (None, Some(10.0), Some(9.0), None));
}

/// Regression: Fastify sent milliseconds before version 8, and a wait of a minute became a wait of
/// hours.
#[test]
fn retry_after_far_beyond_the_reset_is_in_milliseconds() {
    let fastify = |wait, reset| {
        let pairs = [
            ("x-ratelimit-limit", "5"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", reset),
            ("retry-after", wait),
        ];
        read(429, &pairs).retry_after
    };
    assert_eq!(fastify("60000", "58"), seconds(60.0));
    assert_eq!(fastify("60000", "0"), seconds(60_000.0));
    assert_eq!(fastify("60001", "58"), seconds(60_001.0));
    assert_eq!(fastify("5000", "58"), seconds(5000.0));
    assert_eq!(read(429, &[("retry-after", "60000")]).retry_after, seconds(60_000.0));
}

#[test]
fn waits_of_other_names_count_on_a_refusal() {
    for (name, value) in
        [("X-Throttle-Wait-Seconds", "33"), ("X-RateLimit-Wait", "33"), ("x-ratelimit-after", "33")]
    {
        assert_eq!(pause(&read(429, &[(name, value)])), for_seconds(33), "{name}");
        assert_eq!(pause(&read(429, &[(name, value), ("retry-after", "3")])), for_seconds(3), "{name}");
        let success = read(200, &[(name, value)]);
        assert_eq!((pause(&success), success.retry_after, success.limits), (Advice::Go, None, vec![]));
    }
}

/// The reset of all windows of a subscription is not a limit next to the windows.
#[test]
fn a_reset_of_all_windows_is_no_limit_of_its_own() {
    let claude = [
        ("anthropic-ratelimit-unified-reset", "1792568000"),
        ("anthropic-ratelimit-unified-5h-reset", "1792571280"),
        ("anthropic-ratelimit-unified-5h-utilization", "0.25"),
        DATE,
    ];
    for (status, expected) in [(200, Advice::Go), (429, for_seconds(320))] {
        let response = read(status, &claude);
        let names: Vec<_> = response.limits.iter().map(|l| l.name.as_deref()).collect();
        assert_eq!((names, pause(&response)), (vec![Some("unified-5h")], expected));
    }
    let retry = [claude[0], claude[1], claude[2], DATE, ("retry-after", "7")];
    assert_eq!(pause(&read(429, &retry)), for_seconds(7));
}

/// Bug: a reader that knows the numbers of its API read a long `Retry-After` in milliseconds.
#[test]
fn a_reader_that_knows_its_numbers_does_not_guess_the_retry() {
    let pairs = headers(&[("ratelimit", "\"default\";r=0;t=3"), ("retry-after", "3000")]);
    let known = [Reader::of(Vendor::Cloudflare), Reader::auto().numbers(Numbers::Seconds)];
    for reader in known {
        let response = reader.read(StatusCode::TOO_MANY_REQUESTS, &pairs);
        assert_eq!(response.retry_after, seconds(3000.0));
    }
    for reader in [Reader::auto(), Reader::of(Vendor::Discord)] {
        let response = reader.read(StatusCode::TOO_MANY_REQUESTS, &pairs);
        assert_eq!(response.retry_after, seconds(3.0));
    }
}
