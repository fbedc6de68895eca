//! Limits that the bodies of GraphQL APIs report.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::limit::ServerLimit;
use super::response::ResponseLimits;
use super::time::Clock;
use crate::{Unit, When};

/// The longest body that is read. The limits in a longer body are not worth the work.
const LONGEST_BODY: usize = 16 << 20;

/// Adds the limits of a body to those of a response. A body that is not JSON has no limits.
pub(super) fn add(body: &[u8], clock: Clock, response: &mut ResponseLimits) {
    if body.len() > LONGEST_BODY {
        return;
    }
    let Ok(body) = serde_json::from_slice::<&RawValue>(body) else { return };
    let [errors, data, extensions] = members(Some(body), ["errors", "data", "extensions"]);
    response.refused |= errors.is_some_and(has_refusal);
    let [rate_limit] = members(data, ["rateLimit"]);
    response.limits.extend(github(rate_limit, clock));
    let [cost] = members(extensions, ["cost"]);
    shopify(cost, response);
    response.limits.truncate(super::MAX_LIMITS);
}

/// Reads the members of an object that have these names, each as it is written. All other members
/// are skipped, so that a body takes no memory for what is not read. A value that is not an object
/// has no members.
fn members<'a, const N: usize>(json: Option<&'a RawValue>, names: [&str; N]) -> [Option<&'a RawValue>; N] {
    struct Named<'n, const N: usize>([&'n str; N]);

    impl<'a, const N: usize> Visitor<'a> for Named<'_, N> {
        type Value = [Option<&'a RawValue>; N];

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = [None; N];
            while let Some(key) = map.next_key::<String>()? {
                match self.0.iter().position(|name| *name == key) {
                    Some(at) => found[at] = Some(map.next_value()?),
                    None => _ = map.next_value::<IgnoredAny>()?,
                }
            }
            Ok(found)
        }
    }

    let object = json.map(RawValue::get).filter(|json| json.starts_with('{'));
    let found = object.map(|json| serde_json::Deserializer::from_str(json).deserialize_map(Named(names)));
    found.and_then(Result::ok).unwrap_or([None; N])
}

/// Returns whether one of these errors says that a limit refused the query.
fn has_refusal(errors: &RawValue) -> bool {
    struct Errors;

    impl<'a> Visitor<'a> for Errors {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("errors")
        }

        fn visit_seq<A: SeqAccess<'a>>(self, mut errors: A) -> Result<bool, A::Error> {
            let mut found = false;
            while let Some(error) = errors.next_element()? {
                found = found || is_refusal(error);
            }
            Ok(found)
        }
    }

    serde_json::Deserializer::from_str(errors.get()).deserialize_seq(Errors).unwrap_or(false)
}

/// Returns whether this is an error of GitHub, Shopify or Linear that says that a limit refused the
/// query.
fn is_refusal(error: &RawValue) -> bool {
    let [kind, extensions] = members(Some(error), ["type", "extensions"]);
    let [code, extended] = members(extensions, ["code", "type"]);
    let names_limit = |code: String| matches!(&*code, "RATE_LIMITED" | "THROTTLED" | "RATELIMITED");
    [kind, code, extended].into_iter().filter_map(text).any(names_limit)
}

/// Reads `{"limit":5000,"cost":1,"remaining":4999,"resetAt":"2026-10-21T08:28:00Z"}`, for a query
/// that asks for it.
fn github(reported: Option<&RawValue>, clock: Clock) -> Option<ServerLimit> {
    let [limit, remaining, reset] = members(reported, ["limit", "remaining", "resetAt"]);
    let reset = text(reset).and_then(|at| clock.reset(&at, None));
    let limit = ServerLimit {
        name: Some("graphql".to_owned()),
        unit: Some(Unit::Points),
        limit: count(limit),
        remaining: count(remaining),
        reset,
        ..ServerLimit::default()
    };
    limit.has_values().then_some(limit)
}

/// Reads `{"requestedQueryCost":101,"actualQueryCost":46,"throttleStatus":{"maximumAvailable":1000,
/// "currentlyAvailable":954,"restoreRate":50}}`: a leaky bucket, which has no reset. A refused
/// query may be retried when its cost is restored.
fn shopify(cost: Option<&RawValue>, response: &mut ResponseLimits) {
    let [asked, status] = members(cost, ["requestedQueryCost", "throttleStatus"]);
    let [limit, remaining, rate] = members(status, ["maximumAvailable", "currentlyAvailable", "restoreRate"]);
    let limit = ServerLimit {
        unit: Some(Unit::Points),
        limit: count(limit),
        remaining: count(remaining),
        ..ServerLimit::default()
    };
    if let (true, Some(available), Some(asked), Some(rate)) =
        (response.refused, limit.remaining, count(asked), count(rate))
    {
        let wait = Duration::try_from_secs_f64((asked - available).max(0.0) / rate);
        let wait = wait.ok().filter(|wait| *wait < super::time::FURTHEST).map(When::In);
        response.retry_after = response.retry_after.or(wait);
    }
    response.limits.extend(limit.has_values().then_some(limit));
}

/// Reads a count in a body, with the bounds of counts in headers: not negative, below 10^15.
fn count(json: Option<&RawValue>) -> Option<f64> {
    serde_json::from_str(json?.get()).ok().filter(|count| (0.0..1e15).contains(count))
}

fn text(json: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(json?.get()).ok()
}
