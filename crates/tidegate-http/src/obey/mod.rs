//! A client that obeys a server: one method call for each response.
//!
//! An [`Obey`] is a limiter whose calls end with the server's response. [`Call::obey`] reads the
//! response and does what the server asks for. It works with any
//! [`AnyLimiter`](tidegate::AnyLimiter): a plain limiter, one key of a keyed limiter, or several
//! limits at once.
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
//! let response = send().await; // status 429 and `retry-after: 30`
//! call.obey(response.status, &response.headers);
//!
//! let wait = api.try_acquire().unwrap_err().retry_after(); // all tasks pause
//! assert!(wait > Some(Duration::from_secs(29)));
//! # Ok(())
//! # }
//! ```
//!
//! # What a response does
//!
//! | the response | effect |
//! |---|---|
//! | 429; 503, 403 or 400 with a header that reports a limit; gRPC status 8 or 14 with such a header (all cases: [`refused`](crate::read::ResponseLimits::refused)) | pauses the limiter for `Retry-After`, or without one, until the exhausted limits reset |
//! | such a refusal without a time | pauses for a second. The pause doubles with each further refusal, until a call succeeds: its response has no status of 500 or above, and no gRPC status of a server error. A gRPC call succeeds by its trailers, unless its headers have the status |
//! | `remaining` | lowers the available permits to `remaining` less the [costs](Obey#default-costs) of the calls in flight, and never raises them |
//! | `remaining` with a reset | also allows no more calls than that until the reset. The call that takes the last unit pauses the limiter. A call that costs more than is left [waits or is refused](Obey#fairness-and-cancel-safety) |
//! | a redirect, or a response from a cache | has no effect, unless it is a refusal |
//! | `limit` with `remaining` and a reset | lets the next window begin with no more calls than `limit` less the calls in flight, until a response reports more, for at most twice the longest response time of the window before |
//! | `limit`, or a policy | has no other effect |
//!
//! - If several calls in flight are refused together, they cause one pause, and the latest end
//!   counts. After the pause, calls start one interval apart, and no burst follows.
//! - No pause is longer than [`Options::max_pause`], whatever the server sends. A jitter of up to a
//!   tenth is added to it, so that clients do not all return at the same time.
//! - Absolute timestamps count from the `Date` of the response, not from the clock of the client.
//!   Without a `Date` they are ignored.
//! - Responses arrive out of order. Of two responses about one window, the lower one counts. A
//!   later reset begins a new window. A response with an earlier reset does not change it, if its
//!   call began before the later reset was reported. Otherwise the server is taken at its word, as
//!   one with a bucket, which is full sooner when few calls come. So a server that reports now one
//!   of its windows and now another has to be given a member for each.
//! - Names of limits are mapped to members of an [`AllOf`](tidegate::AllOf): a limit of `tokens`
//!   lowers only the member `tokens`. See [`Options::member`].
//!
//! # Costs that are known later
//!
//! [`Obey::reserve`] makes a reservation for an estimated cost, and [`Call::settle`] gives the rest
//! back. A call that has its permits from elsewhere begins with [`Obey::begin`], so that its
//! response is counted.
//!
//! # Retries
//!
//! This module does not repeat calls. A call that is repeated begins with another `acquire`, and
//! waits its turn.
//!
//! # When a server refuses nothing
//!
//! Suppose that a server counts in windows, and reports `limit`, `remaining` and a reset with each
//! response. If one client is the only user of its quota, the server refuses none of its calls from
//! the second window on. In the first window, and if the server does not report `limit`, the
//! client's own limit applies until the first response. A response that takes more than twice as
//! long as every response of the window before arrives too late for the next window. If the first
//! calls of a window all fail without a response, the client's own limit applies after that time as
//! well.
//!
//! A server with a token bucket reports when its bucket is full, in whole seconds. The client
//! pauses until then once nothing remains, so it gets a burst for each such time and not the whole
//! rate: a third of `token_bucket 50/s burst 20`, and half of a `sliding_estimate`. Give such a
//! server a burst of some seconds if its clients obey.
//!
//! # In flight
//!
//! A server cannot have counted, in one response, a call that reaches it later. So calls in flight
//! count as used. A dropped [`Call`] also counts as used, for responses to calls that were in
//! flight at the same time. Calls in flight at the limiter that a route leaves do not count at its
//! [bucket](Scopes#buckets).
//!
//! Processes that share a quota learn of each other only from `remaining`. At the end of a window,
//! the server may refuse each process as many calls as the other processes have in flight.

mod call;
mod costs;
mod first_panic;
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
