//! [`Tell`]: the state of limits as headers of an answer.

use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tidegate::AllStatus;
use tidegate_http::write::{self, Format, Limit};

use crate::refused::Refused;

/// How the state of limits is told.
#[derive(Debug, Clone)]
pub(crate) struct Tell {
    /// `None` tells nothing but `Retry-After`.
    pub(crate) format: Option<Format>,
}

impl Default for Tell {
    fn default() -> Self {
        Tell { format: Some(Format::Draft) }
    }
}

impl Tell {
    /// Adds the headers of a request that was granted. `name` is the name of an only limit.
    pub(crate) fn granted(&self, state: &AllStatus, name: Option<&str>, headers: &mut HeaderMap) {
        let Some(format) = self.format() else { return };
        let limits = Self::limits(state, name);
        beside(self.format, headers, |headers| write::granted(&limits, format, headers));
    }

    /// Adds the headers of a request that was refused.
    pub(crate) fn refused(
        &self,
        refused: &Refused,
        state: Option<AllStatus>,
        name: Option<&str>,
        headers: &mut HeaderMap,
    ) {
        let wait = refused.retry_after();
        beside(self.format, headers, |headers| match (self.format(), state) {
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

/// The limit that refused has enough permits after `wait`, though it may not be full: the draft
/// asks for a `Retry-After` that is not before the end of the time told with the limit.
fn within<'a>(limit: Limit<'a>, refused: &Refused, wait: Duration) -> Limit<'a> {
    if limit.name() == refused.limit() { limit.reset(wait) } else { limit }
}

/// Tells headers beside those of an answer, which an inner layer or the service told.
///
/// | headers | become |
/// |---|---|
/// | the fields of the draft, and `RateLimit-Policy` of older ones | both lists |
/// | the state in another format | that of the tighter limit alone; of equal ones that which lasts longer |
/// | `RateLimit-Limit` of [`Format::Draft03`] | the tighter limit, and the policies of both |
/// | `Retry-After`, and a state that cannot be compared | as they were |
fn beside(format: Option<Format>, headers: &mut HeaderMap, tell: impl FnOnce(&mut HeaderMap)) {
    let is_told = |name: &HeaderName| name == RETRY_AFTER || name.as_str().contains("ratelimit");
    if !headers.keys().any(is_told) {
        return tell(headers);
    }
    let mut told = HeaderMap::new();
    tell(&mut told);
    let state = |headers| format.and_then(|format| Tightness::of(format, headers));
    let replaces = match (state(headers), state(&told)) {
        (Some(before), Some(new)) => new.is_tighter_than(&before),
        _ => false,
    };
    if format == Some(Format::Draft03)
        && let (Some(before), Some(new)) = (headers.get(LIMIT), told.get(LIMIT))
        && let Some(both) = joined(before, new, replaces)
    {
        headers.insert(LIMIT, both.clone());
        told.insert(LIMIT, both);
    }
    let names = names_of_state(format);
    if replaces {
        // Also those that the new state does not tell.
        for name in names {
            headers.remove(*name);
        }
    }
    let keeps = names.iter().any(|name| headers.contains_key(*name));
    for (name, value) in told {
        let Some(name) = name else { continue };
        let is_list = name == POLICY || (name == STATE && format == Some(Format::Draft));
        if is_list {
            headers.append(name, value);
        } else if !(keeps && names.contains(&name.as_str())) {
            headers.entry(name).or_insert(value);
        }
    }
}

/// The headers of the one state that a format has room for: the quota, what remains, and the reset.
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
    /// `None` if the headers tell no state in this format.
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
        let told = |name: &str| text(name).and_then(number);
        Some(Tightness { quota: told(quota)?, remaining: told(remaining)?, reset: told(reset) })
    }

    fn is_tighter_than(&self, other: &Tightness) -> bool {
        // remaining / quota of each, without the division.
        let this = u128::from(self.remaining) * u128::from(other.quota);
        let that = u128::from(other.remaining) * u128::from(self.quota);
        this < that || (this == that && self.reset > other.reset)
    }
}
