//! Headers read by a client: the limits of a server, and when to come again.
//!
//! [`Reader::read`] reads an answer of any API into an [`ResponseLimits`]: a list of [`ServerLimit`]s and
//! a time to come again. [`ResponseLimits::advice`] says what to do.
//!
//! # Headers that are read
//!
//! - `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-11, and the
//!   headers of all drafts before;
//! - headers with `ratelimit` or `rate-limit` in their names, however the rest is composed:
//!   `x-ratelimit-remaining-tokens`, `anthropic-ratelimit-requests-reset`,
//!   `x-rate-limit-limit-minute`;
//! - headers of vendors with names of their own, such as Shopify's call limit;
//! - values that hold a whole limit: `limit=100, remaining=50, reset=30`, `32/40`, `8:10:60`, or an
//!   object of JSON, and the limits in force of Sentry;
//! - shares of a limit that is used, of Anthropic and Meta;
//! - `Retry-After` in seconds or as a date, and headers of this meaning in milliseconds;
//! - if asked, the limits in bodies of the GraphQL APIs of GitHub, Shopify and Linear.
//!
//! # How times are read
//!
//! A reset without a unit is read by its form: `6m0s` is a duration, `2026-03-26T16:00Z` a date,
//! a number above 10^9 a Unix time in seconds, above 10^12 in milliseconds, and a smaller number
//! counts seconds from now. [`Numbers`] sets it where this guess is wrong. Times of the calendar
//! count from the `Date` of the answer. A `Retry-After` of a thousand seconds or more is read in
//! milliseconds if the limit that is used up is reset after as many milliseconds. A time that is past counts as zero; a negative one, `-1`
//! and other text that is no time are ignored. [`Reader::of`] an API with known numbers does
//! not guess.
//!
//! # Examples
//!
//! Two limits of one answer:
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
//! let answer = Reader::auto().read(StatusCode::OK, &headers);
//!
//! assert_eq!(answer.limits.len(), 2);
//! let tokens =
//!     answer.limits.iter().find(|limit| limit.unit == Some(Unit::Tokens));
//! assert_eq!(
//!     tokens.and_then(|t| t.reset),
//!     Some(When::In(Duration::from_secs(360)))
//! );
//!
//! let wait = Duration::from_secs(360);
//! assert_eq!(
//!     answer.advice(SystemTime::now(), DEFAULT_MAX_PAUSE),
//!     Advice::Pause { wait, asked: wait }
//! );
//! ```

mod answer;
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
mod time;
mod usage;
mod vendor;

pub use answer::{Advice, DEFAULT_MAX_PAUSE, ResponseLimits};
pub use limit::ServerLimit;
use reader::MOST_LIMITS;
pub use reader::Reader;
pub use time::Numbers;
pub use vendor::Vendor;
