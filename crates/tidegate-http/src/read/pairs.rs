//! Values that report limits as keys and values: `limit=100, remaining=50, reset=30`.

use serde_json::{Map, Value};

use super::limit::ServerLimit;
use super::name::{Field, label_window};
use super::number;
use super::time::{self, Clock, SECOND};
use crate::{Unit, When};

/// The most pairs that are read. A real value has a few limits of five pairs each.
const MAX_PAIRS: usize = 64;

/// Reads the limits of a value. The next limit begins where a key is repeated, or where a key
/// begins with another name. The keys are those of
///
/// - draft -07: `limit=100, remaining=50, reset=30`;
/// - Zendesk: `total=100; remaining=99; resets=50`;
/// - App Store Connect: `user-hour-lim:3600;user-hour-rem:0;`;
/// - Upbit: `group=market; min=600; sec=9`, where `sec` is the number of permits left in this
///   second, and `min` is a constant without meaning;
/// - Auth0: `b=per_hour;q=100;r=90;t=3600,b=per_day;q=1000;r=950;t=86400`;
/// - Basecamp and Trakt:
///   `{"name":"General","period":60,"limit":1000,"remaining":999,"until":"2020-11-02T23:33:00Z"}`;
/// - Huawei: `remain:9,limit:10,time:10 second`.
///
/// Pingdom writes a sentence, which is read too.
///
/// Returns each limit with the text of its reset, because the window may be in another header.
pub(super) fn limits(text: &str, clock: Clock) -> Vec<(ServerLimit, Option<String>)> {
    let mut limits = Vec::new();
    let mut reset = None;
    let mut limit = ServerLimit { unit: Some(Unit::Requests), ..ServerLimit::default() };
    let is_short = |name: &&str| name.len() <= 128;
    for (key, value) in pairs(text).into_iter().take(MAX_PAIRS) {
        let key = key.to_ascii_lowercase();
        let (name, key) = key.rsplit_once('-').map_or((None, &*key), |(name, key)| (Some(name), key));
        let name = name.filter(is_short);
        let Some(field) = field_of(key, limit.name.is_some()) else { continue };
        let is_next = match field {
            Field::Limit => limit.limit.is_some(),
            Field::Remaining => limit.remaining.is_some(),
            Field::Reset => limit.reset.is_some(),
            Field::Name => limit.name.is_some(),
            _ => false,
        };
        if is_next || (name.is_some() && limit.name.is_some() && name != limit.name.as_deref()) {
            let unit = limit.unit;
            let next = ServerLimit { unit, ..ServerLimit::default() };
            limits.push((std::mem::replace(&mut limit, next), reset.take()));
        }
        limit.name = limit.name.or_else(|| name.map(str::to_owned));
        match field {
            Field::Limit => limit.limit = number::count(&value),
            Field::Remaining => limit.remaining = number::count(&value),
            Field::Reset => {
                limit.reset = clock.reset(value.trim(), None);
                reset = Some(value.trim().to_owned());
            }
            Field::Window => limit.window = time::window(&value),
            _ => limit.name = Some(value.trim()).filter(is_short).map(str::to_owned),
        }
        if key == "sec" {
            limit.window = Some(SECOND);
        }
    }
    limits.push((limit, reset));
    limits.extend(sentence(text).map(|limit| (limit, None)));
    limits.retain(|(limit, _)| limit.has_values());
    for (limit, _) in &mut limits {
        let by_name = || label_window(&limit.name.as_ref()?.to_ascii_lowercase().replace('_', "-"));
        limit.window = limit.window.or_else(by_name);
    }
    limits
}

/// Returns the field that a key means. A key of one letter counts only after the name of a limit,
/// because the current draft has parameters with these letters, and a field of the draft without
/// names is malformed.
fn field_of(key: &str, is_named: bool) -> Option<Field> {
    Some(match key {
        "limit" | "total" | "lim" => Field::Limit,
        "remaining" | "remain" | "rem" | "sec" => Field::Remaining,
        "reset" | "resets" | "until" => Field::Reset,
        "window" | "period" | "time" => Field::Window,
        "name" | "group" | "b" => Field::Name,
        "q" if is_named => Field::Limit,
        "r" if is_named => Field::Remaining,
        "t" if is_named => Field::Reset,
        _ => return None,
    })
}

/// Splits a value into keys and values. A JSON value yields the keys and values of its object.
fn pairs(text: &str) -> Vec<(String, String)> {
    if text.starts_with('{') {
        let object: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
        let text_of = |value| match value {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        return object.into_iter().filter_map(|(key, value)| Some((key, text_of(value)?))).collect();
    }
    let pair = |pair: &str| {
        let (key, value) = pair.split_once(['=', ':'])?;
        Some((key.trim().to_owned(), value.to_owned()))
    };
    text.split([',', ';']).take(MAX_PAIRS).filter_map(pair).collect()
}

/// Reads Pingdom's `Remaining: 394 Time until reset: 3589`.
fn sentence(text: &str) -> Option<ServerLimit> {
    let (remaining, time) = text.strip_prefix("Remaining:")?.trim_start().split_once(' ')?;
    let (_, seconds) = time.rsplit_once(':')?;
    let reset = number::decimal(seconds)?.times(time::SECOND).filter(|d| *d < time::FURTHEST);
    let (unit, remaining) = (Some(Unit::Requests), number::count(remaining));
    Some(ServerLimit { unit, remaining, reset: reset.map(When::In), ..ServerLimit::default() })
}
