//! Limits written as headers, in every generation.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::limit::{Limit, State, seconds_up};
use crate::{Unit, structured};

/// The headers that tell limits.
///
/// Formats other than [`Format::Draft`] have room for the state of one limit. They tell the
/// tightest: the one with the smallest part of its quota left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-11, every limit
    /// by its name. Drafts since -08 have these fields.
    Draft,
    /// Draft -07: `RateLimit: limit=100, remaining=50, reset=30`, `RateLimit-Policy: 100;w=60`.
    Draft07,
    /// Drafts -04 to -06: `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` in
    /// seconds from now, `RateLimit-Policy: 100;w=60`.
    Draft06,
    /// Drafts up to -03: the three headers, the policies in `RateLimit-Limit: 100, 100;w=60`.
    Draft03,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` in seconds from now.
    XRateLimit,
    /// The same three, as GitHub sends them: `X-RateLimit-Reset` is a Unix time in seconds. The
    /// value is the present time.
    XRateLimitUnix(SystemTime),
}

/// Writes the limits of a request that was granted. Headers of earlier calls are replaced.
///
/// # Examples
///
/// ```
/// use http::HeaderMap;
/// use std::time::Duration;
/// use tidegate_http::tell::{self, Format, Limit};
///
/// let limits = [
///     Limit::new("burst", 100)?.window(Duration::from_secs(60)).remaining(99),
///     Limit::new("daily", 1000)?.window(Duration::from_secs(86_400)),
/// ];
/// let mut headers = HeaderMap::new();
/// tell::granted(&limits, Format::Draft, &mut headers);
/// assert_eq!(headers["ratelimit-policy"], r#""burst";q=100;w=60, "daily";q=1000;w=86400"#);
/// assert_eq!(headers["ratelimit"], r#""burst";r=99"#);
///
/// tell::granted(&limits, Format::XRateLimit, &mut headers);
/// assert_eq!(headers["x-ratelimit-remaining"], "99");
/// # Ok::<(), tell::InvalidName>(())
/// ```
pub fn granted(limits: &[Limit<'_>], format: Format, headers: &mut HeaderMap) {
    write(&limits.iter().map(Limit::state).collect::<Vec<_>>(), format, headers);
}

/// Writes the limits of a request that was refused, and a `Retry-After` of `wait`, rounded up.
///
/// A limit with nothing left tells no time before the end of `wait`, and `Retry-After` tells no
/// time before the longest of these times, as the draft asks.
///
/// # Examples
///
/// See the [module](crate::tell).
pub fn refused(limits: &[Limit<'_>], wait: Duration, format: Format, headers: &mut HeaderMap) {
    let mut states: Vec<_> = limits.iter().map(Limit::state).collect();
    let mut retry = seconds_up(wait);
    for state in states.iter_mut().filter(|s| s.remaining == Some(0)) {
        retry = retry.max(state.reset.unwrap_or(0));
        state.reset = Some(seconds_up(wait).max(state.reset.unwrap_or(0)));
    }
    write(&states, format, headers);
    headers.insert(RETRY_AFTER, HeaderValue::from(retry));
}

/// Returns the value of a `Retry-After` header: whole seconds, rounded up.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate_http::tell::retry_after;
///
/// assert_eq!(retry_after(Duration::from_millis(1)), "1");
/// assert_eq!(retry_after(Duration::from_secs(2)), "2");
/// ```
#[must_use]
pub fn retry_after(wait: Duration) -> HeaderValue {
    HeaderValue::from(seconds_up(wait))
}

fn write(limits: &[State<'_>], format: Format, headers: &mut HeaderMap) {
    match format {
        Format::Draft => {
            let policies = limits.iter().map(draft_policy);
            insert(headers, "ratelimit-policy", &join(policies));
            insert(headers, "ratelimit", &join(limits.iter().filter_map(draft_state)));
        }
        Format::Draft07 => {
            insert(headers, "ratelimit-policy", &join(limits.iter().filter_map(numbered_policy)));
            let state = tightest(limits).map(|limit| {
                let reset = limit.reset.map(|t| format!("reset={t}"));
                let remaining = limit.remaining.map(|r| format!("remaining={r}"));
                join([Some(format!("limit={}", limit.quota)), remaining, reset].into_iter().flatten())
            });
            insert(headers, "ratelimit", &state.unwrap_or_default());
        }
        Format::Draft06 => {
            insert(headers, "ratelimit-policy", &join(limits.iter().filter_map(numbered_policy)));
            write_three(limits, ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"], headers, 0);
        }
        Format::Draft03 => {
            write_three(limits, ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"], headers, 0);
            if let Some(limit) = tightest(limits) {
                let policies = limits.iter().filter_map(numbered_policy);
                insert(
                    headers,
                    "ratelimit-limit",
                    &join([limit.quota.to_string()].into_iter().chain(policies)),
                );
            }
        }
        Format::XRateLimit => write_three(limits, X_RATELIMIT, headers, 0),
        Format::XRateLimitUnix(now) => {
            // Rounded up, as the time from now is.
            let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            write_three(limits, X_RATELIMIT, headers, seconds_up(now));
        }
    }
}

const X_RATELIMIT: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

/// Writes the state of the tightest limit under three names. `zero` is the second from which the
/// reset counts.
fn write_three(limits: &[State<'_>], names: [&'static str; 3], headers: &mut HeaderMap, zero: u64) {
    let tightest = tightest(limits);
    let quota = tightest.map(|limit| limit.quota);
    let remaining = tightest.and_then(|limit| limit.remaining);
    let reset = tightest.and_then(|limit| limit.reset).map(|t| zero.saturating_add(t));
    for (name, value) in names.into_iter().zip([quota, remaining, reset]) {
        insert(headers, name, &value.map(|v| v.to_string()).unwrap_or_default());
    }
}

/// The limit with the smallest part of its quota left; among equals the one that lasts longest.
/// A limit of unknown state comes last.
fn tightest<'s, 'a>(limits: &'s [State<'a>]) -> Option<&'s State<'a>> {
    limits.iter().reduce(|best, limit| {
        let (a, b) = match (best.remaining, limit.remaining) {
            (_, None) => return best,
            (None, Some(_)) => return limit,
            (Some(a), Some(b)) => (a, b),
        };
        // a / best.quota against b / limit.quota, without the division.
        let (a, b) = (u128::from(a) * u128::from(limit.quota), u128::from(b) * u128::from(best.quota));
        let tighter = b < a || (b == a && limit.reset > best.reset);
        if tighter { limit } else { best }
    })
}

fn draft_policy(limit: &State<'_>) -> String {
    let mut out = format!("{};q={}", limit.name, limit.quota);
    if limit.unit != Unit::Requests {
        push(&mut out, format_args!(";qu=\"{}\"", limit.unit.as_str()));
    }
    if let Some(window) = limit.window {
        push(&mut out, format_args!(";w={window}"));
    }
    push_key(&mut out, limit);
    out
}

fn draft_state(limit: &State<'_>) -> Option<String> {
    let mut out = format!("{};r={}", limit.name, limit.remaining?);
    if let Some(reset) = limit.reset {
        push(&mut out, format_args!(";t={reset}"));
    }
    push_key(&mut out, limit);
    Some(out)
}

fn push_key(out: &mut String, limit: &State<'_>) {
    if let Some(key) = limit.partition_key {
        push(out, format_args!(";pk={}", structured::byte_sequence(key)));
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(text);
}

/// `100;w=60` of the older drafts, which have no policy without a window.
fn numbered_policy(limit: &State<'_>) -> Option<String> {
    Some(format!("{};w={}", limit.quota, limit.window?))
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// Replaces a header; an empty value removes it.
fn insert(headers: &mut HeaderMap, name: &'static str, value: &str) {
    let name = HeaderName::from_static(name);
    // Every value is printable ASCII, which a header can carry.
    match HeaderValue::from_str(value) {
        Ok(value) if !value.is_empty() => headers.insert(name, value),
        _ => headers.remove(name),
    };
}
