//! A server obeyed by a client: one call for each answer.
//!
//! An [`Obey`] is a limiter with calls that end with the answer of the server. [`Call::obey`] reads
//! the answer and does what the server asks for. It works with any
//! [`AnyLimiter`](tidegate::AnyLimiter): a plain limiter, a key of many, or several limits at once.
//!
//! ```
//! use http::{HeaderMap, HeaderValue, StatusCode};
//! use std::time::Duration;
//! use tidegate::{Rate, RateLimiter, TokenBucket};
//! use tidegate_http::obey::Obey;
//!
//! # struct Response { status: StatusCode, headers: HeaderMap }
//! # async fn send() -> Response {
//! #     let mut headers = HeaderMap::new();
//! #     headers.insert("retry-after", HeaderValue::from_static("30"));
//! #     Response { status: StatusCode::TOO_MANY_REQUESTS, headers }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tidegate::AllRefusal> {
//! let limiter = RateLimiter::new(TokenBucket::new(Rate::per_second(10), 10));
//! let api = Obey::new(limiter); // clones share it
//!
//! let mut call = api.acquire().await?;
//! let response = send().await; // answered with 429 and `retry-after: 30`
//! call.obey(response.status, &response.headers);
//!
//! let wait = api.try_acquire().unwrap_err().retry_after(); // all tasks pause
//! assert!(wait > Some(Duration::from_secs(29)));
//! # Ok(())
//! # }
//! ```
//!
//! # What an answer does
//!
//! | the answer | does |
//! |---|---|
//! | 429; 503, 403 or 400 with a header that tells of a limit; of gRPC status 8 or 14 with one | pauses the limiter, for `Retry-After`, or else until limits with nothing left are reset |
//! | such a refusal without a time | pauses for a second, and doubles with each further refusal, until a call succeeds |
//! | `remaining` | lowers the available permits to `remaining` less the calls in flight, and never raises them |
//! | `remaining` with a reset | also allows no more calls until the reset. The call that takes the last unit pauses the limiter |
//! | a redirect, or an answer from a cache | nothing, unless it is a refusal |
//! | `limit` beside `remaining` and a reset | lets the next window begin with no more calls than `limit` less the calls in flight, until an answer tells more |
//! | `limit`, or a policy | nothing else |
//!
//! - One refusal of many calls in flight is one pause, and the longer end counts. After it, calls
//!   go one interval apart, and no burst follows.
//! - No pause is longer than [`Options::max_pause`], whatever the server sends. A tenth of jitter comes
//!   on top, so that clients do not come back at one time.
//! - Times of the calendar count from the `Date` of the answer, and not from the clock of the
//!   client. Without a `Date` they are ignored.
//! - Answers come out of order. Of two answers about one window the lower one counts. A later reset
//!   begins a new window, and an answer of an earlier window says nothing of the present one.
//! - Names of limits are mapped to members of an [`AllOf`](tidegate::AllOf): a limit of `tokens`
//!   lowers the member `tokens` only. See [`Options::member`].
//!
//! # Costs that are known later
//!
//! [`Obey::reserve`] takes a place for an estimate, and [`Call::settle`] gives the rest back. A
//! call that has its permits from elsewhere begins by [`Obey::begin`], so that its answer counts.
//!
//! # Retries
//!
//! It repeats no call. A call that is repeated begins with another `acquire`,
//! and waits its turn.
//!
//! # When a server refuses nothing
//!
//! A server that counts in windows, and tells `limit`, `remaining` and a reset with each answer,
//! refuses no call of a client that alone uses its quota, from the second window on. In the first
//! window, and where `limit` is not told, the client's own limit holds until the first answer. An
//! answer that takes more than twice as long as all those of the window before comes too late for
//! the next window.
//!
//! # In flight
//!
//! A server cannot have counted, in one answer, a call that reaches it later. So calls in flight
//! count as used. A dropped [`Call`] counts as used as well, for answers to calls that were in
//! flight with it.
//!
//! Processes that share a quota learn of each other by what remains. At the end of a window, each
//! may be refused as many calls as the others have in flight.

mod call;
mod costs;
mod handle;
mod options;
mod pace;
mod reservation;
mod scopes;
mod state;
mod window;

pub use call::{Call, Obeyed};
pub use handle::Obey;
pub use options::Options;
pub use pace::Pace;
pub use reservation::CallReservation;
pub use scopes::Scopes;
