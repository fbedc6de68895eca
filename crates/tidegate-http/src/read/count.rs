//! Counts in headers, with the windows, limits and names next to them.

use std::time::Duration;

use super::{number, time};

/// A count in a header, with the window, limit or name next to it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Count {
    pub(super) value: f64,
    /// `100;w=60`, `100:60`, `100/hour`, `1 per 5 second`.
    pub(super) window: Option<Duration>,
    /// The second number of `32/40`, which is the limit of a used count.
    pub(super) out_of: Option<f64>,
    /// `name;107` or `name=18/5000`.
    pub(super) name: Option<String>,
    /// The third number of a rule, `8:10:60`: how long the server refuses a client that exceeds the
    /// limit. In a used count it is the rest of this time.
    pub(super) penalty: Option<Duration>,
    /// `100;w=60`: a member that older IETF drafts call a policy.
    pub(super) is_policy: bool,
}

/// Reads the counts of a value, split at commas, or of a JSON array of strings. Members that are
/// not counts are left out.
pub(super) fn counts(text: &str) -> Vec<Count> {
    let text = number::unquoted(text.trim());
    let array = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let text = array.filter(|text| text.starts_with('"')).unwrap_or(text);
    if let Some(count) = thousands(text) {
        return vec![plain(count)];
    }
    members(text).take(16).filter_map(|member| parse_count(number::unquoted(member.trim()))).collect()
}

/// Splits a list at commas, or at slashes if there are several: `300/3000/12000`.
pub(super) fn members(text: &str) -> impl Iterator<Item = &str> {
    let slashes =
        text.matches('/').count() > 1 && text.split('/').all(|part| number::decimal(part).is_some());
    text.split(if slashes { '/' } else { ',' })
}

/// Reads `1,199.72` of Dynamics 365. Without the fraction, such a value is a list of two numbers.
fn thousands(text: &str) -> Option<f64> {
    let (whole, _) = text.split_once('.')?;
    let mut groups = whole.split(',');
    let first = groups.next()?.len();
    let grouped = (1..=3).contains(&first) && whole.len() > first && groups.all(|g| g.len() == 3);
    grouped.then(|| number::count(&text.replace(',', "")))?
}

fn plain(value: f64) -> Count {
    Count { value, window: None, out_of: None, name: None, penalty: None, is_policy: false }
}

/// Returns the window of parameters such as `w=60;name="a"`.
pub(super) fn window_of(params: &str) -> Option<Duration> {
    params.split(';').find_map(|param| {
        let (key, value) = param.trim().split_once('=')?;
        matches!(key.trim(), "w" | "window").then(|| number::decimal(value)?.times(time::SECOND))?
    })
}

fn parse_count(text: &str) -> Option<Count> {
    if let Some(value) = number::count(text) {
        return Some(plain(value));
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, rest) = text.split_at(split);
    if digits.is_empty() {
        // `name;107`, `name=18/5000`
        let (name, rest) = text.split_once([';', '='])?;
        let rest = rest.trim();
        if name.is_empty() || !rest.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let count = parse_count(rest)?;
        return Some(Count { name: Some(name.trim().to_owned()), ..count });
    }
    let count = plain(number::count(digits)?);
    let rest = rest.trim();
    if let Some(params) = rest.strip_prefix(';') {
        let window = window_of(params);
        return Some(Count { window: window.filter(|w| !w.is_zero()), is_policy: window.is_some(), ..count });
    }
    if let Some(rest) = rest.strip_prefix(':') {
        let seconds = |text| number::decimal(text)?.times(time::SECOND).filter(|span| *span < time::FURTHEST);
        let not_zero = |span: Duration| Some(span).filter(|span| !span.is_zero());
        return match rest.split_once(':') {
            None => Some(Count { window: not_zero(seconds(rest)?), ..count }),
            Some((window, penalty)) => {
                let (window, penalty) = (Some(not_zero(seconds(window)?)?), not_zero(seconds(penalty)?));
                Some(Count { window, penalty, ..count })
            }
        };
    }
    if let Some(after) = rest.strip_prefix('/') {
        // `17/250(appName=x)`
        let after = after.split('(').next().unwrap_or(after).trim();
        let out_of = number::count(after);
        let window = if out_of.is_none() { Some(time::window(after)?) } else { None };
        return Some(Count { window, out_of, ..count });
    }
    let (what, period) = rest.split_once("per ")?;
    if !what.bytes().all(|b| b.is_ascii_alphabetic() || b == b' ') {
        return None;
    }
    Some(Count { window: time::window(period), ..count })
}
