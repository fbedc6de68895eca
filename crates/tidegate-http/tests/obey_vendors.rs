//! Obeys what each API sends: one row for each form.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate::{AllOf, ManualClock, Rate, RateLimiter, TokenBucket};
use tidegate_http::obey::{Obey, Options};

/// Unix time 1792567680.
const DATE: (&str, &str) = ("date", "Wed, 21 Oct 2026 07:28:00 GMT");

type Headers<'a> = &'a [(&'a str, &'a str)];

/// A response, the pause that follows in milliseconds, and the requests and tokens that are left,
/// each of 999.
struct Row<'a>(&'a str, u16, Headers<'a>, u64, (u64, u64));

const ALL: (u64, u64) = (999, 999);

#[test]
fn each_api_is_obeyed() {
    let github = ("x-github-request-id", "1");
    let rows = [
        Row(
            "GitHub, primary limit, cut by the cap",
            403,
            &[github, ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1792570680")],
            600_000,
            (0, 999),
        ),
        Row(
            "GitHub, secondary limit with a time",
            403,
            &[
                github,
                ("retry-after", "30"),
                ("x-ratelimit-remaining", "14"),
                ("x-ratelimit-reset", "1792567740"),
            ],
            30_000,
            (14, 999),
        ),
        Row(
            "GitHub, secondary limit without a time",
            429,
            &[github, ("x-ratelimit-remaining", "14"), ("x-ratelimit-reset", "1792567740")],
            60_000,
            (14, 999),
        ),
        Row(
            "GitLab: epoch seconds under the names of the draft",
            429,
            &[
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "1792567710"),
                ("ratelimit-resettime", "Wed, 21 Oct 2026 07:28:30 GMT"),
                ("retry-after", "30"),
            ],
            30_000,
            (0, 999),
        ),
        Row(
            "X",
            200,
            &[("x-rate-limit-remaining", "0"), ("x-rate-limit-reset", "1792567780")],
            100_000,
            (0, 999),
        ),
        Row(
            "Brave Search, without a quota by the month",
            429,
            &[
                ("x-ratelimit-limit", "50, 0"),
                ("x-ratelimit-remaining", "0, 0"),
                ("x-ratelimit-reset", "1, 2501234"),
            ],
            1_000,
            (0, 999),
        ),
        Row(
            "OpenAI",
            200,
            &[
                ("x-ratelimit-remaining-requests", "40"),
                ("x-ratelimit-reset-requests", "12ms"),
                ("x-ratelimit-remaining-tokens", "500"),
                ("x-ratelimit-reset-tokens", "6m0s"),
            ],
            0,
            (40, 500),
        ),
        Row(
            "OpenAI, no tokens left",
            200,
            &[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "6m0s")],
            360_000,
            (999, 0),
        ),
        Row(
            "Azure: -1",
            200,
            &[("x-ratelimit-remaining-requests", "-1"), ("x-ratelimit-reset-requests", "10")],
            0,
            ALL,
        ),
        Row(
            "Anthropic",
            429,
            &[
                ("anthropic-ratelimit-requests-remaining", "49"),
                ("anthropic-ratelimit-requests-reset", "2026-10-21T07:28:01Z"),
                ("anthropic-ratelimit-tokens-remaining", "0"),
                ("anthropic-ratelimit-tokens-reset", "2026-10-21T07:28:59Z"),
                ("retry-after", "13"),
            ],
            13_000,
            (49, 0),
        ),
        Row(
            "Anthropic, output tokens",
            200,
            &[
                ("anthropic-ratelimit-output-tokens-remaining", "0"),
                ("anthropic-ratelimit-output-tokens-reset", "2026-10-21T07:28:59Z"),
            ],
            59_000,
            ALL,
        ),
        Row(
            "Discord: fractions of seconds",
            200,
            &[
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1792567682.250"),
                ("x-ratelimit-reset-after", "2.250"),
                ("x-ratelimit-bucket", "abcd1234"),
            ],
            2250,
            (0, 999),
        ),
        Row(
            "Discord, shared limit",
            429,
            &[("x-ratelimit-scope", "shared"), ("retry-after", "65"), ("x-ratelimit-reset-after", "64.57")],
            65_000,
            ALL,
        ),
        Row("Shopify", 200, &[("x-shopify-shop-api-call-limit", "32/40")], 0, (8, 999)),
        Row(
            "Shopify, refused",
            429,
            &[("x-shopify-shop-api-call-limit", "40/40"), ("retry-after", "2.0")],
            2000,
            (0, 999),
        ),
        Row("Slack", 429, &[("retry-after", "30")], 30_000, ALL),
        Row("Stripe: no time", 429, &[("stripe-rate-limited-reason", "global-rate")], 1000, ALL),
        Row(
            "Reddit: floats",
            200,
            &[("x-ratelimit-remaining", "598.9"), ("x-ratelimit-used", "2"), ("x-ratelimit-reset", "300")],
            0,
            (598, 999),
        ),
        Row(
            "Jira: a date without seconds",
            429,
            &[
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "2026-10-21T07:29Z"),
                ("ratelimit-reason", "jira-quota-global-based"),
            ],
            60_000,
            (0, 999),
        ),
        Row(
            "Cloudflare",
            200,
            &[("ratelimit", "\"default\";r=50;t=30"), ("ratelimit-policy", "\"default\";q=100;w=60")],
            0,
            (50, 999),
        ),
        Row(
            "the draft, refused",
            429,
            &[("ratelimit", "\"default\";r=0;t=30"), ("ratelimit-policy", "\"default\";q=100;w=60")],
            30_000,
            (0, 999),
        ),
        Row("draft -06", 200, &[("ratelimit-remaining", "5"), ("ratelimit-reset", "50")], 0, (5, 999)),
        Row("draft -07", 200, &[("ratelimit", "limit=100, remaining=5, reset=30")], 0, (5, 999)),
        Row("AWS: milliseconds", 503, &[("x-amz-retry-after", "1500")], 1500, ALL),
        Row("AWS: an error code", 400, &[("x-amzn-errortype", "ThrottlingException")], 1000, ALL),
        Row(
            "Linear: epoch milliseconds",
            200,
            &[("x-ratelimit-requests-remaining", "0"), ("x-ratelimit-requests-reset", "1792567740000")],
            60_000,
            (0, 999),
        ),
        Row(
            "Akamai",
            200,
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-next", "2026-10-21T07:28:07Z")],
            7000,
            (0, 999),
        ),
        Row(
            "Vimeo",
            200,
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "2026-10-21T07:28:09+00:00")],
            9000,
            (0, 999),
        ),
        Row(
            "lemlist: a date of JavaScript",
            200,
            &[
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "Wed Oct 21 2026 07:28:02 GMT+0000 (Coordinated Universal Time)"),
            ],
            2000,
            (0, 999),
        ),
        Row(
            "by windows",
            200,
            &[("x-ratelimit-remaining-minute", "5"), ("x-ratelimit-remaining-hour", "300")],
            0,
            (5, 999),
        ),
        Row("a date", 503, &[("retry-after", "Wed, 21 Oct 2026 07:28:12 GMT")], 12_000, ALL),
        Row("milliseconds", 429, &[("retry-after-ms", "250")], 250, ALL),
    ];
    for Row(name, status, pairs, pause, left) in rows {
        let clock = ManualClock::new();
        let limiter =
            || RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1000), 1000), clock.clone());
        let (requests, tokens) = (limiter(), limiter());
        let all = AllOf::new("requests", &requests).with("tokens", &tokens);
        let api = Obey::with_options(all, Options::new().clock(clock.clone()).jitter(0.0));
        let mut headers = HeaderMap::new();
        for (name, value) in pairs.iter().chain(&[DATE]) {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        let mut call = api.try_acquire().unwrap();
        let obeyed = call.obey(StatusCode::from_u16(status).unwrap(), &headers);
        let available = (requests.status().available, tokens.status().available);
        let paused_for = api.limiter().status().paused_for;
        let expected = (Duration::from_millis(pause), left);
        assert_eq!((paused_for, available), expected, "{name}: {obeyed:#?}");
    }
}
