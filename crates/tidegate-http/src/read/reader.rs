//! Reads the headers of a response.

use std::time::Duration;

use http::header::{AGE, DATE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::graphql;
use super::group::Groups;
use super::limit::{ServerLimit, later};
use super::name::{Field, Name};
use super::response::ResponseLimits;
use super::time::{Clock, Numbers, SECOND};
use super::usage;
use super::vendor::Vendor;
use crate::When;

/// The most limits of one response. No API reports more.
pub(super) const MAX_LIMITS: usize = 32;

/// The most names of limits that are read from one response. It bounds the work for a response with
/// very many headers; further names are left out.
const MAX_NAMES: usize = 512;

/// The longest value that is read. No limit needs a longer one.
const LONGEST_VALUE: usize = 4096;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Reads what a response reports about limits.
///
/// [`Reader::auto`] works for nearly every API. A reader of a [`Vendor`] knows what the vendor's
/// numbers mean, if they are documented, and does not have to guess.
///
/// No header makes a reader panic. A response with very many headers is read in part. Text that
/// cannot be read is ignored.
///
/// # Examples
///
/// See the [module](crate::read).
#[derive(Debug, Clone, Default)]
pub struct Reader {
    vendor: Option<Vendor>,
    numbers: Option<Numbers>,
    back_off: Option<Duration>,
}

impl Reader {
    /// Creates a reader of any API.
    #[must_use]
    pub fn auto() -> Self {
        Self::default()
    }

    /// Creates a reader of one API.
    #[must_use]
    pub fn of(vendor: Vendor) -> Self {
        Self { vendor: Some(vendor), ..Self::default() }
    }

    /// Sets the form in which plain numbers in resets are read, instead of the vendor's form.
    #[must_use]
    pub fn numbers(mut self, numbers: Numbers) -> Self {
        self.numbers = Some(numbers);
        self
    }

    /// Sets the minimum time to back off from a refusal without a time, instead of the time that
    /// the vendor asks for.
    #[must_use]
    pub fn back_off(mut self, at_least: Duration) -> Self {
        self.back_off = Some(at_least);
        self
    }

    /// Reads a response and its body, from an API that reports limits in GraphQL: GitHub, Shopify
    /// and Linear do. An error in the body is a refusal if it says that a limit was exceeded.
    ///
    /// A body that is longer than 16 MiB or is not JSON is ignored. Everything except the limits is
    /// skipped, so that a large body is read without building a tree of it.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::{HeaderMap, StatusCode};
    /// use std::time::{Duration, SystemTime};
    /// use tidegate_http::read::{Advice, DEFAULT_MAX_PAUSE, Reader};
    ///
    /// let body = br#"{
    ///     "errors": [{ "message": "Throttled", "extensions": { "code": "THROTTLED" } }],
    ///     "extensions": { "cost": { "requestedQueryCost": 202, "throttleStatus": {
    ///         "maximumAvailable": 1000.0, "currentlyAvailable": 102, "restoreRate": 50.0
    ///     } } }
    /// }"#;
    /// let response =
    ///     Reader::auto().read_with_body(StatusCode::OK, &HeaderMap::new(), body);
    /// let wait = Duration::from_secs(2);
    /// assert_eq!(
    ///     response.advice(SystemTime::now(), DEFAULT_MAX_PAUSE),
    ///     Advice::Pause { wait, asked: wait }
    /// );
    /// ```
    #[must_use]
    pub fn read_with_body(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ResponseLimits {
        let mut response = self.read(status, headers);
        let clock = Clock::of(headers.get(DATE).and_then(text_of), Numbers::UnixSeconds);
        graphql::add(body, clock, &mut response);
        response
    }

    /// Reads a response.
    #[must_use]
    pub fn read(&self, status: StatusCode, headers: &HeaderMap) -> ResponseLimits {
        let text = |name| headers.get(name).and_then(text_of);
        let vendor = self.vendor.or_else(|| Vendor::guess(headers));
        let numbers = self.numbers.or(vendor.map(Vendor::numbers)).unwrap_or_default();
        let clock = Clock::of(text(DATE), numbers);

        let (mut groups, mut limits, mut signs) = (Groups::new(clock), Vec::new(), Signs::default());
        let mut names = 0;
        for (header, value) in headers {
            // Bytes that are not text are ignored.
            let Some(value) = text_of(value).filter(|v| v.len() <= LONGEST_VALUE) else { continue };
            limits.extend(usage::limits(header.as_str(), value));
            signs.marked |= is_mark(header.as_str(), value);
            if names == MAX_NAMES && header != RETRY_AFTER {
                continue;
            }
            // ip-api sends `X-Ttl` with `X-Rl`. Without `X-Rl` it is the lifetime of a cache entry.
            if header == "x-ttl" && !headers.contains_key("x-rl") {
                continue;
            }
            let is_header = |name: &str| headers.contains_key(name);
            let Some(name) = Name::parse(header.as_str(), &is_header) else { continue };
            names += 1;
            signs.note(header.as_str(), &name, value, clock);
            if !matches!(name.field, Field::Retry | Field::Wait | Field::Mark) {
                groups.add(name, value);
            }
        }
        let Signs { mut retry_after, other_retry, wait, marked, allowed, is_global, reason, scope } = signs;
        let (mut found, overall) = groups.finish(retry_after);
        limits.append(&mut found);
        limits.truncate(MAX_LIMITS);
        // A `Retry-After` is in seconds. Discord's was not before version 8 of its API.
        let guesses = match self.numbers {
            Some(numbers) => numbers == Numbers::Guess,
            None => numbers == Numbers::Guess || vendor == Some(Vendor::Discord),
        };
        if guesses && !other_retry {
            retry_after = retry_after.map(|when| by_the_resets(when, &limits));
        }

        let used_up = limits.iter().any(ServerLimit::is_used_up);
        let has_sign = retry_after.is_some() || used_up || marked;
        let refused = match status.as_u16() {
            420 | 429 => true,
            400 | 403 | 503 | 529 => has_sign,
            // Qualys refuses in this way. A 409 conflict of another API has no such wait.
            409 => wait.is_some() && used_up,
            418 => retry_after.is_some(),
            // A gRPC call: RESOURCE_EXHAUSTED, which is also the status of a message that is too
            // long, or UNAVAILABLE.
            200 if matches!(text(GRPC_STATUS), Some("8" | "14")) => has_sign,
            _ => false,
        };
        if refused {
            retry_after = retry_after.or(wait).or_else(|| {
                // The limits that are used up have resets of their own.
                let known = limits.iter().any(|limit| limit.is_used_up() && limit.reset.is_some());
                overall.filter(|at| !known && *at != When::In(Duration::ZERO))
            });
        } else {
            // A limit of zero that let this request pass is not a limit.
            limits.retain(|limit| !limit.is_zero());
        }
        if !refused && allowed {
            // Anthropic may allow use beyond an exhausted share, and says so.
            let shares = limits.iter_mut().filter(|limit| limit.unit.is_none() && limit.is_exhausted());
            shares.for_each(|share| share.remaining = None);
        }
        let cached = text(AGE).and_then(super::number::count).is_some_and(|age| age > 0.0);
        let redirect = status.is_redirection() && status != StatusCode::NOT_MODIFIED;
        let back_off = self.back_off.or(vendor.map(Vendor::back_off)).unwrap_or_default();
        ResponseLimits {
            limits,
            retry_after,
            refused,
            reason,
            // A scope that a header names takes precedence.
            scope: scope.or_else(|| is_global.then(|| "global".to_owned())),
            trusted: !cached && !redirect,
            back_off,
        }
    }
}

/// What the headers say of a refusal, besides the limits.
#[derive(Default)]
struct Signs {
    retry_after: Option<When>,
    /// Whether a header with this meaning has a unit in its name, or a value that is no number.
    other_retry: bool,
    wait: Option<When>,
    /// A header says that a limit refused the request.
    marked: bool,
    /// A header says that the request was allowed.
    allowed: bool,
    is_global: bool,
    reason: Option<String>,
    scope: Option<String>,
}

impl Signs {
    fn note(&mut self, header: &str, name: &Name, value: &str, clock: Clock) {
        let unit = name.unit.unwrap_or(SECOND);
        match name.field {
            Field::Retry => {
                self.other_retry |= name.unit.is_some() || !value.trim().bytes().all(|b| b.is_ascii_digit());
                for when in retries(clock, value, unit) {
                    self.retry_after = Some(self.retry_after.map_or(when, |before| later(before, when)));
                }
            }
            Field::Wait => {
                let wait = clock.retry_after(value, unit).filter(|w| *w != When::In(Duration::ZERO));
                self.wait = self.wait.or(wait);
            }
            Field::Mark if is_true(value) => {
                self.marked = true;
                self.is_global |= header.ends_with("-global");
                let reason = || Some(value.to_owned()).filter(|v| v != "true" && v.len() <= 128);
                self.reason = self.reason.take().or_else(reason);
            }
            Field::Mark => self.allowed |= value.trim().starts_with("allowed"),
            Field::Scope if value.len() <= 128 => {
                self.scope.get_or_insert_with(|| value.trim().to_owned());
            }
            _ => {}
        }
    }
}

/// Reads a value as UTF-8, because Go writes `µs`. The crate `http` accepts only ASCII as text.
fn text_of(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}

/// Reads a `Retry-After`: one time, or several numbers that were joined into one line.
fn retries(clock: Clock, value: &str, unit: Duration) -> Vec<When> {
    match clock.retry_after(value.trim(), unit) {
        Some(when) => vec![when],
        None => value.split(',').take(16).filter_map(|one| clock.retry_after(one.trim(), unit)).collect(),
    }
}

/// Reads a wait of 1000 seconds or more in milliseconds if the exhausted limits reset after the
/// same number of milliseconds, or if it is a multiple of 1000 and more than a hundred times as
/// long as until the reset. Discord sent milliseconds before version 8 of its API, and Fastify
/// before version 8 of its plugin.
fn by_the_resets(retry_after: When, limits: &[ServerLimit]) -> When {
    let resets = limits.iter().filter(|limit| limit.is_used_up()).filter_map(|limit| limit.reset);
    match (retry_after, resets.reduce(later)) {
        (When::In(wait), Some(When::In(reset)))
            if wait >= 1000 * SECOND
                && (reset.abs_diff(wait / 1000) <= SECOND || is_far_beyond(wait, reset)) =>
        {
            When::In(wait / 1000)
        }
        _ => retry_after,
    }
}

/// Returns whether a wait of thousands of seconds cannot belong to a limit with this reset.
fn is_far_beyond(wait: Duration, reset: Duration) -> bool {
    !reset.is_zero() && wait.as_secs().is_multiple_of(1000) && wait > reset.saturating_mul(100)
}

/// Returns whether a header outside the grammar of names says that a limit refused the request.
fn is_mark(header: &str, value: &str) -> bool {
    match header {
        // AWS sends the kind of the error; the request itself may have been valid.
        "x-amzn-errortype" => {
            ["Throttl", "TooManyRequests", "LimitExceeded", "SlowDown"].iter().any(|w| value.contains(w))
        }
        "x-envoy-ratelimited" | "x-local-rate-limit" | "x-throttled" => is_true(value),
        "x-mashery-error-code" => value.contains("_OVER_"),
        "x-mashery-error-detail" | "x-error-detail-header" => {
            let value = value.to_ascii_lowercase();
            value.split_once("over").is_some_and(|(_, what)| what.contains("limit"))
        }
        "x-ms-throttle-information" | "x-ms-throttle-scope" => is_true(value),
        _ => false,
    }
}

fn is_true(value: &str) -> bool {
    let value = value.trim().to_ascii_lowercase();
    !matches!(value.as_str(), "" | "0" | "false" | "no" | "ok" | "none" | "allowed" | "allowed_warning")
}
