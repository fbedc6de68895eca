//! A rate limiter that makes a program wait its turn.
//!
//! `limiter.acquire().await` returns when a permit is due; `limiter.try_acquire()` answers now. It is Guava's `RateLimiter` for
//! async Rust: first come, first served; a dropped wait leaves no trace; and while nobody waits, a decision is one
//! clock reading and one compare-and-swap.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{Rate, RateLimiter, Refusal};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Refusal> {
//! # let limiter = RateLimiter::with_clock(tidegate::SmoothBursty::new(Rate::per_second(5)), tidegate::TokioClock::new());
//! # #[cfg(any())]
//! let limiter = RateLimiter::smooth_bursty(Rate::per_second(5)); // saves up to 1 s of unused permits
//! limiter.acquire().await; // one permit; returns the time waited
//! limiter.acquire_many(3).await?; // Err only if 3 can never be had
//! if let Err(refusal) = limiter.try_acquire() {
//!     // Now, or a refusal that tells when.
//!     assert_eq!(refusal.retry_after(), Some(Duration::from_millis(600)));
//! }
//! // Refused at once if 50 ms would not do.
//! assert!(limiter.try_acquire_within(Duration::from_millis(50)).await.is_err());
//! limiter.set_rate(Rate::per_second(10)); // also moves those already waiting
//! # Ok(())
//! # }
//! ```
//!
//! From a plain thread, [`blocking_acquire`](RateLimiter::blocking_acquire) waits in the same queue.
//!
//! # Choosing a policy
//!
//! | policy | idle time | a decision costs | at most, in any span *d* | choose it |
//! |---|---|---|---|---|
//! | [`SmoothBursty`] | saves permits, free later | one 64-bit compare-and-swap | `1 + rate * (d + max_burst)` | for a steady rate; with `max_burst` zero, to space calls evenly |
//! | [`SmoothWarmingUp`] | makes the next permits dearer | one 128-bit compare-and-swap | `1 + rate * d` | for a service that is slow when cold |
//!
//! For a request of *n* permits at once, read *n* for the 1: it is granted as soon as the one before is paid for, and the next one pays.
//! Waiting adds `rate * catch_up` to the bound, 10 ms unless [set](RateLimiter::set_catch_up): the price of an exact average with late timers.
//!
//! # What is promised
//!
//! | | promise |
//! |---|---|
//! | P1 bound | in any span no more permits are granted than the policy states above |
//! | P2 a dropped wait leaves no trace | dropping a waiting future, at any time, costs nothing: no permit lost, none invented, no debt, and those behind move up |
//! | P3 first come, first served | waiters are served in order of arrival, whatever their size; nobody overtakes |
//! | P4 nobody holds up the rest | a future that is polled once and then forgotten delays nobody beyond its own turn |
//! | P5 changes act now | a new rate or a refund moves those who already wait |
//! | P6 exact average | awaited throughput is within 0.5 % of the rate, though timers are late |
//! | P7 exact rate | the long-run rate is never above the set one, and at most 65 ppm below it up to 1 M/s |
//! | P8 lock-free decision | while nobody waits: no lock, no allocation, and a refusal writes nothing |
//! | P9 virtual time | everything, waiting included, runs on a [`ManualClock`] and on tokio's paused time |
//! | P10 never free | overflow, clocks that jump, NaN, zero and huge arguments end in an error or in "limited" |
//!
//! Each is a test, most a model check: see `tests/`, and `loom-tests/README.md` for what is model-checked.
//!
//! # Testing code that waits
//!
//! Pass a [`ManualClock`] and advance it, or a [`TokioClock`] in a test with paused time. Or enable the feature `test-util` for your
//! tests, and every limiter made without a clock follows tokio's:
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{Rate, RateLimiter, SmoothBursty, TokioClock};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let limiter = RateLimiter::with_clock(SmoothBursty::new(Rate::per_hour(1)), TokioClock::new());
//! limiter.acquire().await;
//! assert_eq!(limiter.acquire().await, Duration::from_secs(3600)); // and no time has passed
//! # }
//! ```
//!
//! # Features
//!
//! | feature | what it does | what it costs |
//! |---|---|---|
//! | `test-util` | [`DefaultClock`] follows tokio's clock, paused or not | tokio's `test-util`; a slower clock reading. For dev-dependencies |
//!
//! # Runtimes
//!
//! Awaiting needs tokio with its time driver. One limiter can be shared by several runtimes and by plain threads: none of them waits for
//! another's event loop. `try_acquire` and the blocking calls need no runtime.
//!
//! # Minimum supported Rust version
//!
//! Rust 1.88. A new minor version may raise it.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod clock;
mod error;
mod gate;
mod limiter;
mod nanos;
pub mod policy;
mod rate;
mod sync;
pub mod wait;

#[cfg(all(test, tidegate_loom))]
#[path = "../loom-tests/mod.rs"]
mod loom_tests;

pub use clock::{Clock, DefaultClock, ManualClock, SystemClock, Timer, TokioClock};
pub use error::{PolicyError, RateError, Refusal};
pub use limiter::{RateLimiter, Status};
pub use nanos::Nanos;
pub use policy::{Policy, SmoothBursty, SmoothWarmingUp};
pub use rate::Rate;
pub use wait::Reservation;
