//! Limits written as headers, in every generation of the IETF draft and in older forms.

use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::limit::{Limit, State, seconds_up};
use super::text::Text;
use crate::Unit;

/// The headers that report limits.
///
/// Formats other than [`Format::Draft`] have room for the state of one limit. They write the
/// tightest limit: the one with the smallest part of its quota left. They have no units, and write
/// no limit of [`Unit::Concurrency`]. Such a limit alone writes no header except `Retry-After`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-11, with every
    /// limit under its name. Drafts since -08 have these fields.
    Draft,
    /// Draft -07: `RateLimit: limit=100, remaining=50, reset=30`, `RateLimit-Policy: 100;w=60`.
    Draft07,
    /// Drafts -04 to -06: `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` in
    /// seconds from now, `RateLimit-Policy: 100;w=60`.
    Draft06,
    /// Drafts up to -03: these three headers, with the policies in
    /// `RateLimit-Limit: 100, 100;w=60`.
    Draft03,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` in seconds from now.
    XRateLimit,
    /// The same three headers, as GitHub sends them: `X-RateLimit-Reset` is a Unix time in seconds.
    /// The value of the variant is the present time.
    XRateLimitUnix(SystemTime),
}

/// Writes the limits of a request that was granted. It replaces limits that earlier calls wrote. It
/// keeps a `Retry-After`, because the response to a granted request can have its own.
///
/// # Examples
///
/// ```
/// use http::HeaderMap;
/// use std::time::Duration;
/// use tidegate_http::write::{self, Format, Limit};
///
/// let limits = [
///     Limit::new("burst", 100)?.window(Duration::from_secs(60)).remaining(99),
///     Limit::new("daily", 1000)?.window(Duration::from_secs(86_400)),
/// ];
/// let mut headers = HeaderMap::new();
/// write::granted(&limits, Format::Draft, &mut headers);
/// assert_eq!(
///     headers["ratelimit-policy"],
///     r#""burst";q=100;w=60, "daily";q=1000;w=86400"#
/// );
/// assert_eq!(headers["ratelimit"], r#""burst";r=99"#);
///
/// write::granted(&limits, Format::XRateLimit, &mut headers);
/// assert_eq!(headers["x-ratelimit-remaining"], "99");
/// # Ok::<(), write::InvalidName>(())
/// ```
pub fn granted(limits: &[Limit<'_>], format: Format, headers: &mut HeaderMap) {
    write(limits.iter().map(Limit::state), format, headers);
}

/// Writes the limits of a request that was refused, and a `Retry-After` of `wait`, rounded up to
/// whole seconds, and at least one second.
///
/// A limit with nothing left reports a reset no earlier than the end of `wait`. `Retry-After` is no
/// earlier than the latest of these resets, as the draft requires.
///
/// # Examples
///
/// See the [module](crate::write).
pub fn refused(limits: &[Limit<'_>], wait: Duration, format: Format, headers: &mut HeaderMap) {
    let wait = seconds_up(wait).max(1);
    let states = limits.iter().map(|limit| match limit.state() {
        state @ State { remaining: Some(0), .. } => State { reset: state.reset.max(Some(wait)), ..state },
        state => state,
    });
    let empty = states.clone().filter(|state| state.remaining == Some(0));
    let retry = empty.filter_map(|state| state.reset).fold(wait, u64::max);
    write(states, format, headers);
    headers.insert(RETRY_AFTER, HeaderValue::from(retry));
}

/// Returns the value of a `Retry-After` header: whole seconds, rounded up, and at least one. A
/// `Retry-After` of zero would make all refused clients return at once.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate_http::write::retry_after;
///
/// assert_eq!(retry_after(Duration::from_millis(1)), "1");
/// assert_eq!(retry_after(Duration::from_secs(2)), "2");
/// assert_eq!(retry_after(Duration::ZERO), "1");
/// ```
#[must_use]
pub fn retry_after(wait: Duration) -> HeaderValue {
    HeaderValue::from(seconds_up(wait).max(1))
}

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const THREE: [HeaderName; 3] =
    [LIMIT, HeaderName::from_static("ratelimit-remaining"), HeaderName::from_static("ratelimit-reset")];
const X_THREE: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

fn write<'a>(limits: impl Iterator<Item = State<'a>> + Clone, format: Format, headers: &mut HeaderMap) {
    // Without its unit, a client would take a limit of calls in flight for one of requests.
    let unitless = limits.clone().filter(|limit| limit.unit != Unit::Concurrency);
    match format {
        Format::Draft => {
            let mut text = Text::new();
            limits.clone().for_each(|limit| draft_policy(&mut text, &limit));
            text.insert(POLICY, headers);
            limits.for_each(|limit| draft_state(&mut text, &limit));
            text.insert(STATE, headers);
        }
        Format::Draft07 => {
            let mut text = Text::new();
            unitless.clone().for_each(|limit| numbered_policy(&mut text, &limit));
            text.insert(POLICY, headers);
            if let Some(limit) = tightest(unitless) {
                text.item("limit=").number(limit.quota);
                if let Some(remaining) = limit.remaining {
                    text.item("remaining=").number(remaining);
                }
                if let Some(reset) = limit.reset {
                    text.item("reset=").number(reset);
                }
            }
            text.insert(STATE, headers);
        }
        Format::Draft06 => {
            let mut text = Text::new();
            unitless.clone().for_each(|limit| numbered_policy(&mut text, &limit));
            text.insert(POLICY, headers);
            write_three(tightest(unitless).as_ref(), THREE, headers, 0);
        }
        Format::Draft03 => {
            let tightest = tightest(unitless.clone());
            write_three(tightest.as_ref(), THREE, headers, 0);
            if let Some(tightest) = tightest {
                let mut text = Text::new();
                text.item("").number(tightest.quota);
                unitless.for_each(|limit| numbered_policy(&mut text, &limit));
                text.insert(LIMIT, headers);
            }
        }
        Format::XRateLimit => write_three(tightest(unitless).as_ref(), X_THREE, headers, 0),
        Format::XRateLimitUnix(now) => {
            // Rounded up, like the time from now.
            let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            write_three(tightest(unitless).as_ref(), X_THREE, headers, seconds_up(now));
        }
    }
}

/// Writes the state of a limit under three names. The reset counts from the second `zero`.
fn write_three(limit: Option<&State<'_>>, names: [HeaderName; 3], headers: &mut HeaderMap, zero: u64) {
    let quota = limit.map(|limit| limit.quota);
    let remaining = limit.and_then(|limit| limit.remaining);
    let reset = limit.and_then(|limit| limit.reset).map(|t| zero.saturating_add(t));
    for (name, value) in names.into_iter().zip([quota, remaining, reset]) {
        match value {
            Some(value) => headers.insert(name, HeaderValue::from(value)),
            None => headers.remove(name),
        };
    }
}

/// Returns the limit with the smallest part of its quota left, and among equals the one with the
/// latest reset. A limit of unknown state comes last.
fn tightest<'a>(limits: impl Iterator<Item = State<'a>>) -> Option<State<'a>> {
    limits.reduce(|best, limit| {
        let (a, b) = match (best.remaining, limit.remaining) {
            (_, None) => return best,
            (None, Some(_)) => return limit,
            (Some(a), Some(b)) => (a, b),
        };
        // Compares a / best.quota with b / limit.quota, without the division.
        let (a, b) = (u128::from(a) * u128::from(limit.quota), u128::from(b) * u128::from(best.quota));
        let tighter = b < a || (b == a && limit.reset > best.reset);
        if tighter { limit } else { best }
    })
}

fn draft_policy(text: &mut Text, limit: &State<'_>) {
    text.item("").string(limit.name).push(";q=").number(limit.quota);
    if limit.unit != Unit::Requests {
        text.push(";qu=\"").push(limit.unit.as_str()).push("\"");
    }
    if let Some(window) = limit.window {
        text.push(";w=").number(window);
    }
    push_key(text, limit);
}

fn draft_state(text: &mut Text, limit: &State<'_>) {
    let Some(remaining) = limit.remaining else { return };
    text.item("").string(limit.name).push(";r=").number(remaining);
    if let Some(reset) = limit.reset {
        text.push(";t=").number(reset);
    }
    push_key(text, limit);
}

fn push_key(text: &mut Text, limit: &State<'_>) {
    if let Some(key) = limit.partition_key {
        text.push(";pk=").bytes(key);
    }
}

/// Writes `100;w=60` of the older drafts, which have no policy without a window.
fn numbered_policy(text: &mut Text, limit: &State<'_>) {
    if let Some(window) = limit.window {
        text.item("").number(limit.quota).push(";w=").number(window);
    }
}
