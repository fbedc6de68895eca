//! Limits that the bodies of GraphQL APIs report.

use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::header::{DATE, HeaderMap, HeaderValue};
use tidegate_http::read::{Advice, DEFAULT_MAX_PAUSE, Reader, ResponseLimits};
use tidegate_http::{Unit, When};

fn read(status: u16, body: &str) -> ResponseLimits {
    let mut headers = HeaderMap::new();
    headers.insert(DATE, HeaderValue::from_static("Wed, 21 Oct 2026 07:28:00 GMT"));
    let status = StatusCode::from_u16(status).unwrap_or_default();
    Reader::auto().read_with_body(status, &headers, body.as_bytes())
}

#[test]
fn github_reports_points_and_a_date() {
    let body = r#"{"data":{"viewer":{},"rateLimit":{"limit":5000,"cost":1,"remaining":0,"resetAt":"2026-10-21T07:29:00Z"}}}"#;
    let response = read(200, body);
    let limit = &response.limits[0];
    assert_eq!((limit.unit, limit.limit, limit.remaining), (Some(Unit::Points), Some(5000.0), Some(0.0)));
    assert_eq!(limit.reset, Some(When::In(Duration::from_secs(60))));
    assert!(!response.refused);
}

#[test]
fn a_part_of_another_form_reports_nothing_and_leaves_the_others() {
    let limit = r#""data":{"rateLimit":{"limit":"many","remaining":7,"resetAt":12}}"#;
    for errors in
        ["[0,null,[],{\"type\":{}}]", "{}", "null", "\"RATE_LIMITED\"", "[[{\"type\":\"RATE_LIMITED\"}]]"]
    {
        let response = read(200, &format!(r#"{{"errors":{errors},"x":[{{"errors":1}}],{limit}}}"#));
        assert!(!response.refused, "{errors}");
        let reported = &response.limits[0];
        assert_eq!((reported.limit, reported.remaining, reported.reset), (None, Some(7.0), None), "{errors}");
    }
    for data in ["[1]", "7", "\"rateLimit\"", "{\"rateLimit\":[5]}"] {
        let error = r#"[0,{"x":[],"\u0074ype":"RATE_\u004cIMITED"}]"#;
        let response = read(200, &format!(r#" {{ "data" : {data} , "errors" : {error} }} "#));
        assert!(response.refused && response.limits.is_empty(), "{data}");
    }
    // One bracket is missing.
    assert!(!read(200, r#"{"errors":[{"type":"RATE_LIMITED"}]"#).refused);
}

#[test]
fn errors_of_limits_are_refusals() {
    let refusals = [
        (200, r#"{"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded"}]}"#),
        (200, r#"{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}]}"#),
        (400, r#"{"errors":[{"message":"Rate limit exceeded","extensions":{"code":"RATELIMITED"}}]}"#),
    ];
    for (status, body) in refusals {
        assert!(read(status, body).refused, "{body}");
    }
    for body in
        [r#"{"errors":[{"type":"NOT_FOUND"}]}"#, r#"{"errors":"RATE_LIMITED"}"#, "{}", "", "[", "\u{feff}{}"]
    {
        let response = read(200, body);
        assert!(!response.refused && response.limits.is_empty(), "{body}");
    }
}

#[test]
fn shopify_reports_a_bucket_and_when_a_query_is_restored() {
    let cost = |requested: &str, available: &str, rate: &str| {
        format!(
            r#"{{"errors":[{{"extensions":{{"code":"THROTTLED"}}}}],"extensions":{{"cost":{{"requestedQueryCost":{requested},"throttleStatus":{{"maximumAvailable":1000.0,"currentlyAvailable":{available},"restoreRate":{rate}}}}}}}}}"#
        )
    };
    let response = read(200, &cost("202", "102", "50.0"));
    assert_eq!(response.limits[0].remaining, Some(102.0));
    assert_eq!(response.retry_after, Some(When::In(Duration::from_secs(2))));
    for (requested, available, rate) in [
        ("202", "102", "0"),
        ("1e300", "102", "50"),
        ("202", "-1", "50"),
        ("1", "1", "0"),
        ("1", "102", "50"),
    ] {
        let response = read(200, &cost(requested, available, rate));
        let advice = response.advice(SystemTime::now(), DEFAULT_MAX_PAUSE);
        assert_eq!(advice, Advice::BackOff { at_least: Duration::ZERO }, "{requested} {available} {rate}");
    }
}
