//! Limits that the bodies of GraphQL APIs tell.

use std::time::Duration;

use serde_json::Value;

use super::answer::Answer;
use super::limit::ServerLimit;
use super::time::{Clock, Numbers};
use crate::{Unit, When};

/// Longer bodies are not read: what they tell of limits is not worth the work.
const LONGEST_BODY: usize = 16 << 20;

/// Adds the limits of a body to an answer. A body that is no JSON has none.
pub(super) fn add(body: &[u8], clock: Clock, answer: &mut Answer) {
    if body.len() > LONGEST_BODY {
        return;
    }
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return };
    answer.refused |= body["errors"].as_array().is_some_and(|errors| errors.iter().any(is_refusal));
    answer.limits.extend(github(&body["data"]["rateLimit"], clock));
    shopify(&body["extensions"]["cost"], answer);
    answer.limits.truncate(super::MOST_LIMITS);
}

/// The errors of GitHub, Shopify and Linear that say that a limit refused the query.
fn is_refusal(error: &Value) -> bool {
    let codes = [&error["type"], &error["extensions"]["code"], &error["extensions"]["type"]];
    let code = |value: &&Value| matches!(value.as_str(), Some("RATE_LIMITED" | "THROTTLED" | "RATELIMITED"));
    codes.iter().any(code)
}

/// `{"limit":5000,"cost":1,"remaining":4999,"resetAt":"2026-10-21T08:28:00Z"}`, for a query that
/// asks for it.
fn github(told: &Value, clock: Clock) -> Option<ServerLimit> {
    let reset = told["resetAt"].as_str().and_then(|at| clock.reset(at, Numbers::UnixSeconds, None));
    let limit = ServerLimit {
        name: Some("graphql".to_owned()),
        unit: Some(Unit::Points),
        limit: count(&told["limit"]),
        remaining: count(&told["remaining"]),
        reset,
        ..ServerLimit::default()
    };
    limit.tells().then_some(limit)
}

/// `{"requestedQueryCost":101,"actualQueryCost":46,"throttleStatus":{"maximumAvailable":1000,
/// "currentlyAvailable":954,"restoreRate":50}}`: a leaky bucket, so no reset. A query that was
/// refused may come again when its cost is restored.
fn shopify(cost: &Value, answer: &mut Answer) {
    let status = &cost["throttleStatus"];
    let limit = ServerLimit {
        unit: Some(Unit::Points),
        limit: count(&status["maximumAvailable"]),
        remaining: count(&status["currentlyAvailable"]),
        ..ServerLimit::default()
    };
    if let (true, Some(available), Some(asked), Some(rate)) =
        (answer.refused, limit.remaining, count(&cost["requestedQueryCost"]), count(&status["restoreRate"]))
    {
        let wait = Duration::try_from_secs_f64((asked - available).max(0.0) / rate);
        let wait = wait.ok().filter(|wait| *wait < super::time::FURTHEST).map(When::In);
        answer.retry_after = answer.retry_after.or(wait);
    }
    answer.limits.extend(limit.tells().then_some(limit));
}

/// A count of a body, as those of headers: not negative, below 10^15.
fn count(value: &Value) -> Option<f64> {
    value.as_f64().filter(|count| (0.0..1e15).contains(count))
}
