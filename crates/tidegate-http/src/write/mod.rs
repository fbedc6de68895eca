//! Headers written by a server: how much is left, and when to retry.
//!
//! [`granted`] writes the limits of a granted request. [`refused`] writes the limits of a refusal,
//! with a `Retry-After`. [`Format`] selects the fields of the IETF draft or older headers. A
//! refusal can carry a [`Problem`](crate::Problem) as its body.
//!
//! Every time is rounded up to whole seconds, so a client that waits for the reported time is never
//! early.
//!
//! # Examples
//!
//! A refusal by a limit of 100 requests a minute:
//!
//! ```
//! use http::HeaderMap;
//! use std::time::Duration;
//! use tidegate_http::Problem;
//! use tidegate_http::write::{self, Format, Limit};
//!
//! let limit =
//!     Limit::new("burst", 100)?.window(Duration::from_secs(60)).remaining(0);
//! let mut headers = HeaderMap::new();
//! write::refused(
//!     &[limit],
//!     Duration::from_millis(1200),
//!     Format::Draft,
//!     &mut headers,
//! );
//!
//! assert_eq!(headers["ratelimit-policy"], r#""burst";q=100;w=60"#);
//! assert_eq!(headers["ratelimit"], r#""burst";r=0;t=2"#);
//! assert_eq!(headers["retry-after"], "2");
//!
//! let problem = Problem::quota_exceeded(["burst"]);
//! assert_eq!(problem.status, 429);
//! let body = problem.to_json();
//! # assert!(body.contains("violated-policies"));
//! # Ok::<(), write::InvalidName>(())
//! ```

#[cfg(feature = "tidegate")]
mod decision;
mod format;
mod limit;
mod text;

#[cfg(feature = "tidegate")]
#[cfg_attr(docsrs, doc(cfg(feature = "tidegate")))]
pub use decision::{decision, decision_of_all};
pub use format::{Format, granted, refused, retry_after};
pub use limit::{InvalidName, Limit};
