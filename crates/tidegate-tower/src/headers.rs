//! [`StateHeaders`]: the state of limits as headers of a response.

use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tidegate::AllStatus;
use tidegate_http::write::{self, Format, Limit};

use crate::refused::Refused;

/// The format of the headers that report the state of limits.
#[derive(Debug, Clone)]
pub(crate) struct StateHeaders {
    /// `None` writes no header except `Retry-After`.
    pub(crate) format: Option<Format>,
}

impl Default for StateHeaders {
    fn default() -> Self {
        StateHeaders { format: Some(Format::Draft) }
    }
}

impl StateHeaders {
    /// Adds the headers of a granted request. `name` is the name of an only limit.
    pub(crate) fn granted(&self, state: &AllStatus, name: Option<&str>, headers: &mut HeaderMap) {
        let Some(format) = self.format() else { return };
        let limits = Self::limits(state, name);
        merge(self.format, headers, |headers| write::granted(&limits, format, headers));
    }

    /// Adds the headers of a refused request.
    pub(crate) fn refused(
        &self,
        refused: &Refused,
        state: Option<AllStatus>,
        name: Option<&str>,
        headers: &mut HeaderMap,
    ) {
        let wait = refused.retry_after();
        merge(self.format, headers, |headers| match (self.format(), state) {
            (Some(format), Some(state)) => {
                let limits = Self::limits(&state, name);
                match wait {
                    Some(wait) => {
                        let limits: Vec<_> =
                            limits.into_iter().map(|limit| within(limit, refused, wait)).collect();
                        write::refused(&limits, wait, format, headers);
                    }
                    None => write::granted(&limits, format, headers),
                }
            }
            _ => {
                if let Some(wait) = wait {
                    headers.insert(RETRY_AFTER, write::retry_after(wait));
                }
            }
        });
    }

    fn format(&self) -> Option<Format> {
        match self.format? {
            Format::XRateLimitUnix(_) => Some(Format::XRateLimitUnix(SystemTime::now())),
            format => Some(format),
        }
    }

    fn limits<'a>(AllStatus { members, .. }: &'a AllStatus, name: Option<&'a str>) -> Vec<Limit<'a>> {
        let name = name.filter(|_| members.len() == 1);
        // A member that never refuses is no limit. A name may not fit into a header.
        let limits = members.iter().filter(|(_, member)| member.limit < u64::MAX);
        let limits =
            limits.filter_map(|(member, status)| Limit::of(name.unwrap_or(member.as_str()), status).ok());
        limits.collect()
    }
}

/// The limit that refused has enough permits after `wait`, though it may not be full then. The
/// draft requires that `Retry-After` is not before the end of the time reported with the limit.
fn within<'a>(limit: Limit<'a>, refused: &Refused, wait: Duration) -> Limit<'a> {
    if limit.name() == refused.limit() { limit.reset(wait) } else { limit }
}

/// Adds headers to a response that may already have headers from an inner layer or the service.
///
/// | headers | merged as |
/// |---|---|
/// | the fields of the draft, and `RateLimit-Policy` of older ones | both lists |
/// | the state in another format | the state of the tighter limit only; of equal ones, the state that lasts longer |
/// | `RateLimit-Limit` of [`Format::Draft03`] | the tighter limit, and the policies of both |
/// | `Retry-After`, even if an added limit is exhausted for longer; a state that cannot be compared | the existing headers stay |
fn merge(format: Option<Format>, headers: &mut HeaderMap, add: impl FnOnce(&mut HeaderMap)) {
    let is_limit_header = |name: &HeaderName| name == RETRY_AFTER || name.as_str().contains("ratelimit");
    if !headers.keys().any(is_limit_header) {
        return add(headers);
    }
    let mut added = HeaderMap::new();
    add(&mut added);
    let state = |headers| format.and_then(|format| Tightness::of(format, headers));
    let replaces = match (state(headers), state(&added)) {
        (Some(before), Some(new)) => new.is_tighter_than(&before),
        _ => false,
    };
    if format == Some(Format::Draft03)
        && let (Some(before), Some(new)) = (headers.get(LIMIT), added.get(LIMIT))
        && let Some(both) = joined(before, new, replaces)
    {
        headers.insert(LIMIT, both.clone());
        added.insert(LIMIT, both);
    }
    let names = names_of_state(format);
    if replaces {
        // Even headers that the new state does not have.
        for name in names {
            headers.remove(*name);
        }
    }
    let keeps = names.iter().any(|name| headers.contains_key(*name));
    for (name, value) in added {
        let Some(name) = name else { continue };
        let is_list = name == POLICY || (name == STATE && format == Some(Format::Draft));
        if is_list {
            headers.append(name, value);
        } else if !(keeps && names.contains(&name.as_str())) {
            headers.entry(name).or_insert(value);
        }
    }
}

/// The headers of a format that has room for only one state: the quota, the rest, and the reset.
fn names_of_state(format: Option<Format>) -> &'static [&'static str] {
    match format {
        Some(Format::Draft07) => &[STATE],
        Some(Format::Draft06 | Format::Draft03) => &[LIMIT, "ratelimit-remaining", "ratelimit-reset"],
        Some(Format::XRateLimit | Format::XRateLimitUnix(_)) => {
            &["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]
        }
        _ => &[],
    }
}

const POLICY: &str = "ratelimit-policy";
const STATE: &str = "ratelimit";
const LIMIT: &str = "ratelimit-limit";

/// `RateLimit-Limit` of Draft03: a quota, and the policies behind it.
fn joined(before: &HeaderValue, new: &HeaderValue, new_is_first: bool) -> Option<HeaderValue> {
    let (before, new) = (before.to_str().ok()?, new.to_str().ok()?);
    let (first, second) = if new_is_first { (new, before) } else { (before, new) };
    match second.split_once(',') {
        Some((_, policies)) => HeaderValue::from_str(&format!("{first},{policies}")).ok(),
        None => None,
    }
}

/// The state of the one limit that a format has room for.
struct Tightness {
    quota: u64,
    remaining: u64,
    reset: Option<u64>,
}

impl Tightness {
    /// Returns `None` if the headers report no state in this format.
    fn of(format: Format, headers: &HeaderMap) -> Option<Tightness> {
        let text = |name: &str| headers.get(name)?.to_str().ok();
        // The first item of a list.
        let number = |text: &str| text.split(',').next()?.trim().parse().ok();
        if format == Format::Draft07 {
            let members = text(STATE)?.split(',').filter_map(|member| member.trim().split_once('='));
            let member = |name| members.clone().find(|(key, _)| *key == name).and_then(|(_, n)| number(n));
            return Some(Tightness {
                quota: member("limit")?,
                remaining: member("remaining")?,
                reset: member("reset"),
            });
        }
        let [quota, remaining, reset] = names_of_state(Some(format)) else { return None };
        let value = |name: &str| text(name).and_then(number);
        Some(Tightness { quota: value(quota)?, remaining: value(remaining)?, reset: value(reset) })
    }

    fn is_tighter_than(&self, other: &Tightness) -> bool {
        // Compares remaining / quota of both, without the division.
        let this = u128::from(self.remaining) * u128::from(other.quota);
        let that = u128::from(other.remaining) * u128::from(self.quota);
        this < that || (this == that && self.reset > other.reset)
    }
}
