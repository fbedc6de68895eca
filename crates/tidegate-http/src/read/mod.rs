//! Headers read by a client: the limits of a server, and when to retry.
//!
//! [`Reader::read`] reads a response of any API into a [`ResponseLimits`]: a list of
//! [`ServerLimit`]s and a time to retry. [`ResponseLimits::advice`] returns what to do.
//!
//! # Headers that are read
//!
//! - `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-11, and the headers
//!   of all earlier drafts;
//! - headers with `ratelimit` or `rate-limit` in their names, in any composition of the rest:
//!   `x-ratelimit-remaining-tokens`, `anthropic-ratelimit-requests-reset`,
//!   `x-rate-limit-limit-minute`;
//! - headers of vendors with their own names, such as Shopify's call limit;
//! - values that hold a whole limit: `limit=100, remaining=50, reset=30`, `32/40`, `8:10:60`, a
//!   JSON object, and Sentry's limits in force;
//! - used shares of a limit, from Anthropic and Meta;
//! - `Retry-After` in seconds or as a date, and headers with the same meaning in milliseconds;
//! - on request, the limits in the bodies of the GraphQL APIs of GitHub, Shopify and Linear.
//!
//! # How times are read
//!
//! A reset without a unit is read by its form: `6m0s` is a duration, and `2026-03-26T16:00Z` is a
//! date. A number above 10^9 is a Unix time in seconds, a number above 10^12 is a Unix time in
//! milliseconds, and a smaller number counts seconds from now, or milliseconds if it is too long or
//! too round for seconds: see [`Numbers::Guess`]. If this guess is wrong for an API, [`Numbers`]
//! sets the form. Absolute timestamps count from the `Date` of the response. A
//! `Retry-After` of a thousand seconds or more is read in milliseconds if the exhausted limit
//! resets after the same number of milliseconds, or if it is a multiple of a thousand and more than
//! a hundred times as long as until the reset. A time in the past counts as zero. A negative
//! number such as `-1`, and other text that is not a time, are ignored. A reader that was given
//! [`numbers`](Reader::numbers), or made by [`Reader::of`] for an API whose numbers are known, does
//! not guess, except in the `Retry-After` of Discord.
//!
//! # Examples
//!
//! Two limits of one response:
//!
//! ```
//! use http::{HeaderMap, HeaderValue, StatusCode};
//! use std::time::{Duration, SystemTime};
//! use tidegate_http::read::{DEFAULT_MAX_PAUSE, Advice, Reader};
//! use tidegate_http::{Unit, When};
//!
//! let mut headers = HeaderMap::new();
//! for (name, value) in [
//!     ("x-ratelimit-limit-requests", "5000"),
//!     ("x-ratelimit-remaining-requests", "4999"),
//!     ("x-ratelimit-reset-requests", "12ms"),
//!     ("x-ratelimit-limit-tokens", "160000"),
//!     ("x-ratelimit-remaining-tokens", "0"),
//!     ("x-ratelimit-reset-tokens", "6m0s"),
//! ] {
//!     headers.insert(name, HeaderValue::from_static(value));
//! }
//! let response = Reader::auto().read(StatusCode::OK, &headers);
//!
//! assert_eq!(response.limits.len(), 2);
//! let tokens =
//!     response.limits.iter().find(|limit| limit.unit == Some(Unit::Tokens));
//! assert_eq!(
//!     tokens.and_then(|t| t.reset),
//!     Some(When::In(Duration::from_secs(360)))
//! );
//!
//! let wait = Duration::from_secs(360);
//! assert_eq!(
//!     response.advice(SystemTime::now(), DEFAULT_MAX_PAUSE),
//!     Advice::Pause { wait, asked: wait }
//! );
//! ```

mod categories;
mod count;
mod draft;
mod graphql;
mod group;
mod limit;
mod merge;
mod name;
mod number;
mod pairs;
mod reader;
mod response;
mod time;
mod usage;
mod vendor;

pub use limit::ServerLimit;
use reader::MAX_LIMITS;
pub use reader::Reader;
pub use response::{Advice, DEFAULT_MAX_PAUSE, ResponseLimits};
pub use time::Numbers;
pub use vendor::Vendor;
