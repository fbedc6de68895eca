//! Numbers of headers: plain decimals, and counts with the windows and names beside them.

use std::time::Duration;

use super::time;

/// A decimal number of a header, not negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Decimal {
    pub(super) whole: u64,
    nanos: u32,
}

impl Decimal {
    /// So many times `unit`, which is a second or less. `None` on overflow.
    pub(super) fn times(self, unit: Duration) -> Option<Duration> {
        let per_second = 1_000_000_000 / unit.as_nanos().max(1);
        let nanos = u128::from(self.whole) * unit.as_nanos() + u128::from(self.nanos) / per_second;
        let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
        Some(Duration::new(seconds, u32::try_from(nanos % 1_000_000_000).ok()?))
    }

    /// Returns the number as a count. Returns `None` above the largest Integer of RFC 9651: no
    /// limit is as large.
    fn count(self) -> Option<f64> {
        // Counts are far below 2^53, where a float is exact.
        #[expect(clippy::cast_precision_loss)]
        let count = self.whole as f64 + f64::from(self.nanos) / 1e9;
        (count < 1e15).then_some(count)
    }
}

/// Reads digits with an optional fraction, and nothing else: no sign, no exponent. Quotes around
/// the number are allowed. A sign is a sentinel (`-1`); `1e400` is no number of any server.
pub(super) fn decimal(text: &str) -> Option<Decimal> {
    let text = unquoted(text.trim());
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let nanos = fraction.bytes().map(|b| u32::from(b - b'0')).chain(std::iter::repeat(0)).take(9);
    Some(Decimal { whole: whole.parse().ok()?, nanos: nanos.fold(0, |n, digit| n * 10 + digit) })
}

pub(super) fn unquoted(text: &str) -> &str {
    let inner = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
    inner.filter(|t| !t.contains('"')).unwrap_or(text)
}

/// Reads a plain count.
pub(super) fn count(text: &str) -> Option<f64> {
    decimal(text)?.count()
}

/// A count of a header, with the window, limit or name beside it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Count {
    pub(super) value: f64,
    /// `100;w=60`, `100:60`, `100/hour`, `1 per 5 second`.
    pub(super) window: Option<Duration>,
    /// The second number of `32/40`, which is the limit of a used count.
    pub(super) out_of: Option<f64>,
    /// `name;107` or `name=18/5000`.
    pub(super) name: Option<String>,
    /// `100;w=60`: a member that older drafts of the IETF call a policy.
    pub(super) is_policy: bool,
}

/// Reads the counts of a value, split at commas. Members that are none are left out.
pub(super) fn counts(text: &str) -> Vec<Count> {
    let text = unquoted(text.trim());
    if let Some(count) = thousands(text) {
        return vec![plain(count)];
    }
    members(text).take(16).filter_map(|member| parse_count(member.trim())).collect()
}

/// Splits a list at commas, or at slashes where there are several: `300/3000/12000`.
pub(super) fn members(text: &str) -> impl Iterator<Item = &str> {
    let slashes = text.matches('/').count() > 1 && text.split('/').all(|part| decimal(part).is_some());
    text.split(if slashes { '/' } else { ',' })
}

/// Reads `1,199.72` of Dynamics 365. Without the fraction it is a list of two numbers.
fn thousands(text: &str) -> Option<f64> {
    let (whole, _) = text.split_once('.')?;
    let mut groups = whole.split(',');
    let first = groups.next()?.len();
    let grouped = (1..=3).contains(&first) && whole.len() > first && groups.all(|g| g.len() == 3);
    grouped.then(|| count(&text.replace(',', "")))?
}

fn plain(value: f64) -> Count {
    Count { value, window: None, out_of: None, name: None, is_policy: false }
}

fn parse_count(text: &str) -> Option<Count> {
    if let Some(value) = count(text) {
        return Some(plain(value));
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(split);
    if number.is_empty() {
        // `name;107`, `name=18/5000`
        let (name, rest) = text.split_once([';', '='])?;
        let rest = rest.trim();
        if name.is_empty() || !rest.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let count = parse_count(rest)?;
        return Some(Count { name: Some(name.trim().to_owned()), ..count });
    }
    let count = plain(count(number)?);
    let rest = rest.trim();
    if let Some(params) = rest.strip_prefix(';') {
        let window = params.split(';').find_map(|param| {
            let (key, value) = param.trim().split_once('=')?;
            matches!(key.trim(), "w" | "window").then(|| decimal(value)?.times(time::SECOND))?
        });
        return Some(Count { window: window.filter(|w| !w.is_zero()), is_policy: window.is_some(), ..count });
    }
    if let Some(seconds) = rest.strip_prefix(':') {
        let window = decimal(seconds)?.times(time::SECOND);
        return Some(Count { window: window.filter(|w| !w.is_zero()), ..count });
    }
    if let Some(after) = rest.strip_prefix('/') {
        // `17/250(appName=x)`
        let after = after.split('(').next().unwrap_or(after).trim();
        let out_of = decimal(after).and_then(Decimal::count);
        let window = if out_of.is_none() { Some(window(after)?) } else { None };
        return Some(Count { window, out_of, ..count });
    }
    let (what, period) = rest.split_once("per ")?;
    if !what.bytes().all(|b| b.is_ascii_alphabetic() || b == b' ') {
        return None;
    }
    Some(Count { window: window(period), ..count })
}

/// Reads a window: `60`, `1m`, `5 second`, `hour`, `daily`. Whole minutes in milliseconds are no
/// hours, days or weeks in seconds.
pub(super) fn window(text: &str) -> Option<Duration> {
    let text = text.trim();
    let duration = match decimal(text) {
        Some(number) if number.whole.is_multiple_of(60_000) => number.times(time::MILLISECOND),
        Some(number) => number.times(time::SECOND),
        None => unit_of_time(text).or_else(|| time::parse_duration(text)),
    };
    duration.filter(|d| !d.is_zero() && d.as_secs() < 1_000_000_000)
}

/// The length of a named unit of time. Months and years have none.
pub(super) fn unit_of_time(word: &str) -> Option<Duration> {
    Some(Duration::from_secs(match word.to_ascii_lowercase().as_str() {
        "s" | "sec" | "second" | "seconds" | "secondly" | "persecond" => 1,
        "m" | "min" | "minute" | "minutes" | "minutely" | "perminute" => 60,
        "h" | "hr" | "hour" | "hours" | "hourly" | "perhour" => 3600,
        "d" | "day" | "days" | "daily" | "today" | "perday" => 86_400,
        "w" | "week" | "weekly" => 7 * 86_400,
        _ => return None,
    }))
}
