//! The fields `RateLimit` and `RateLimit-Policy`, in all generations of the IETF draft.

use std::time::Duration;

use super::count::{self, Count};
use super::limit::ServerLimit;
use super::number;
use super::time;
use crate::structured::{Bare, Member, Params, parse_list};
use crate::{Unit, When};

/// A policy that has only numbers, in the form of drafts up to -07: `100;w=60`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NumberedPolicy {
    pub(super) limit: f64,
    pub(super) window: Option<Duration>,
}

/// Reads the items of `RateLimit` since -08. Returns nothing if the line is malformed, as the draft
/// requires, or if it has another form.
pub(super) fn states(field: &str) -> Vec<ServerLimit> {
    let read = |(name, params): (String, Params)| {
        // A proposed change to the draft gives `r` and `t` other names.
        let seconds = integer(&params, "t").or_else(|| integer(&params, "w"));
        ServerLimit {
            name: Some(name),
            remaining: integer(&params, "r").or_else(|| integer(&params, "a")).and_then(as_count),
            reset: seconds.map(Duration::from_secs).filter(|d| *d < time::FURTHEST).map(When::In),
            unit: Some(Unit::Requests),
            partition_key: key(&params),
            ..ServerLimit::default()
        }
    };
    named_items(field).into_iter().map(read).filter(ServerLimit::has_values).collect()
}

/// Reads the policies of `RateLimit-Policy` that have names.
pub(super) fn policies(field: &str) -> Vec<ServerLimit> {
    let mut items = named_items(field);
    if items.is_empty() {
        // Hugging Face writes the kind of a policy before its name:
        // "fixed window";"api";q=500;w=300
        let kindless = field.trim().split_once("\";\"").map(|(_, rest)| format!("\"{rest}"));
        items = kindless.map(|field| named_items(&field)).unwrap_or_default();
    }
    let read = |(name, params): (String, Params)| ServerLimit {
        name: Some(name),
        limit: integer(&params, "q").and_then(as_count),
        window: integer(&params, "w").filter(|w| *w > 0).map(Duration::from_secs),
        unit: unit(&params),
        partition_key: key(&params),
        ..ServerLimit::default()
    };
    items.into_iter().map(read).filter(ServerLimit::has_values).collect()
}

/// Reads the policies of a field that have numbers instead of names.
pub(super) fn numbered_policies(field: &str) -> Vec<NumberedPolicy> {
    count::counts(field).into_iter().filter(|count| count.name.is_none()).map(numbered).collect()
}

pub(super) fn numbered(count: Count) -> NumberedPolicy {
    NumberedPolicy { limit: count.value, window: count.window }
}

/// Gives each state the quota, window and unit of its policy. A policy without a state becomes a
/// separate limit.
pub(super) fn join(states: Vec<ServerLimit>, mut policies: Vec<ServerLimit>) -> Vec<ServerLimit> {
    let mut used = vec![false; policies.len()];
    let mut limits = Vec::new();
    for mut state in states {
        let position = |with_key: bool| {
            policies.iter().position(|policy| {
                let same_key = policy.partition_key == state.partition_key;
                policy.name == state.name && (same_key || (!with_key && policy.partition_key.is_none()))
            })
        };
        if let Some(at) = position(true).or_else(|| position(false)) {
            used[at] = true;
            let policy = &policies[at];
            (state.unit, state.limit, state.window) = (policy.unit, policy.limit, policy.window);
        }
        limits.push(state);
    }
    let mut used = used.into_iter();
    policies.retain(|_| !used.next().unwrap_or_default());
    limits.append(&mut policies);
    limits
}

/// Returns the items of a List that are named by a String, or by a Token as in examples of the
/// draft.
fn named_items(field: &str) -> Vec<(String, Params)> {
    let named = |member| match member {
        Member::Item(Bare::String(name) | Bare::Token(name), params) => Some((name, params)),
        Member::Item(..) | Member::Inner(..) => None,
    };
    parse_list(field).unwrap_or_default().into_iter().filter_map(named).take(super::MAX_LIMITS).collect()
}

fn find<'p>(params: &'p Params, key: &str) -> Option<&'p Bare> {
    params.iter().find(|(k, _)| k == key).map(|(_, value)| value)
}

/// Returns an Integer that is not negative.
fn integer(params: &Params, key: &str) -> Option<u64> {
    match find(params, key)? {
        Bare::Integer(value) => u64::try_from(*value).ok(),
        _ => None,
    }
}

fn as_count(integer: u64) -> Option<f64> {
    number::count(&integer.to_string())
}

fn key(params: &Params) -> Option<Vec<u8>> {
    match find(params, "pk")? {
        Bare::Bytes(bytes) => Some(bytes.clone()),
        _ => None,
    }
}

fn unit(params: &Params) -> Option<Unit> {
    match find(params, "qu") {
        Some(Bare::String(text) | Bare::Token(text)) => Unit::of_parameter(text),
        _ => Some(Unit::Requests),
    }
}

/// Reads the window of a separate field, such as `x-ratelimit-interval`, in units of `unit`.
pub(super) fn window(value: &str, unit: Option<Duration>) -> Option<Duration> {
    match (number::decimal(value), unit) {
        (Some(number), Some(unit)) => number.times(unit).filter(|w| !w.is_zero()),
        _ => time::window(value).filter(|w| *w >= time::MILLISECOND),
    }
}
