//! Limits in force, each with the categories that it refuses, in Sentry's form.

use super::limit::ServerLimit;
use super::number;
use super::time::{self, SECOND};
use crate::{Unit, When};

/// Reads `60:default;error:organization:error_usage_exceeded, 2700::organization`: the seconds
/// until the reset, the categories, the scope, and a reason. An empty list means all categories.
/// The limit is named after its categories.
pub(super) fn limits(text: &str) -> Vec<ServerLimit> {
    text.split(',').take(super::MAX_LIMITS).filter_map(limit).collect()
}

fn limit(text: &str) -> Option<ServerLimit> {
    let mut parts = text.split(':').map(str::trim);
    let (seconds, categories, scope) = (parts.next()?, parts.next()?, parts.next()?);
    let reset = number::decimal(seconds)?.times(SECOND).filter(|reset| *reset < time::FURTHEST)?;
    let word = |text: &&str| text.len() <= 128 && text.starts_with(|c: char| c.is_ascii_alphabetic());
    let (name, scope) = (Some(categories).filter(word), Some(scope).filter(word)?);
    (categories.is_empty() || name.is_some()).then(|| ServerLimit {
        name: name.map(str::to_owned),
        unit: Some(Unit::Requests),
        remaining: Some(0.0),
        reset: Some(When::In(reset)),
        scope: Some(scope.to_owned()),
        ..ServerLimit::default()
    })
}
