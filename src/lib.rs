//! A rate limiter that makes a program wait its turn.
//!
//! `limiter.acquire().await` returns when a permit is due; `limiter.try_acquire()` answers now. It
//! is Guava's `RateLimiter` for async Rust: first come, first served; a dropped wait leaves no
//! trace; and while nobody waits, a decision is one clock reading and, with most policies, one
//! compare-and-swap.
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
//! limiter.acquire_many(3).await?; // several at once
//! if let Err(refusal) = limiter.try_acquire() {
//!     // Now, or a refusal that tells when: the three above are paid for after 600 ms.
//!     assert!(refusal.retry_after() <= Some(Duration::from_millis(600)));
//! }
//! // Refused at once if 50 ms would not do.
//! assert!(limiter.acquire_within(Duration::from_millis(50)).await.is_err());
//! limiter.set_rate(Rate::per_second(10)); // also for those already waiting
//! # Ok(())
//! # }
//! ```
//!
//! From a plain thread, [`blocking_acquire`](RateLimiter::blocking_acquire) waits in the same
//! queue. A wait can be dropped at any time, so `tokio::time::timeout` and `select!` around it are
//! fine. What to tell a refused HTTP client is in [`Refusal::retry_after_secs`].
//!
//! # Who pays for a large request
//!
//! With Guava's two policies, the next caller. A request is granted as soon as the one before it is
//! paid for, whatever its size: at 5 per second `acquire_many(100)` returns at once on an idle
//! limiter, and the **next** caller waits 20 s. It is better to do the work than to idle first. It
//! also means that one request can close the limiter for a long time, so check sizes that come from
//! outside. With all other policies a request waits until all its permits are there, and more than
//! fit are refused: [`Refusal::ExceedsLimit`].
//!
//! # Choosing a policy
//!
//! | policy | at most, in any span *d* | a decision costs | choose it |
//! |---|---|---|---|
//! | [`SmoothBursty`] | `1 + rate * (d + max_burst)` | one 64-bit compare-and-swap | for a steady rate; with `max_burst` zero, to space calls evenly |
//! | [`SmoothWarmingUp`] | `1 + rate * d` | one of 128 bits | for a service that is slow when cold |
//! | [`TokenBucket`] | `burst + rate * d` | one of 64 bits | for a burst and then a rate, as most APIs allow it |
//! | [`LeakyBucket`] | `1 + nodelay + rate * d` | one of 64 bits | for a constant outflow, with a bounded queue |
//! | [`FixedWindow`] | `limit * (d / window + 2)` | one of 128 bits | for a service that counts by the minute or the day |
//! | [`SlidingWindow`] | `limit`, if *d* is a cell less than the window | one of 128 bits | for nearly any span, in little memory |
//! | [`SlidingEstimate`] | `2 * limit - 1` in a window | one of 128 bits | for about any span, in least memory |
//! | [`SlidingLog`] | `limit` in any window, exactly | one of 128 bits and a store | where nothing more may pass, ever |
//! | [`CountingLimit`] | so many at the same time | a fair semaphore | for calls in flight; also with a rate |
//! | [`AllOf`] | what all its members allow | two looks at each member | for several of these at once |
//!
//! [`algorithms`] has the whole table, pictures, and what to ask yourself. [`AnyPolicy`] is any of
//! them, from a configuration.
//!
//! With Guava's two and the leaky bucket, requests of up to *n* permits at once make it *n* in
//! place of 1. Awaiting permits that come in at a rate adds `rate * catch_up` to the bound, 10 ms
//! worth unless [set](RateLimiter::set_catch_up): the price of an exact average with late timers.
//!
//! # Several limits at once
//!
//! [`AllOf`] asks several limiters in one call, and gets what it asks for from all of them or from
//! none: so many per second *and* per minute *and* at a time, a user's limit *and* that of all
//! users. Each member can weigh a request differently, and what it really cost can be settled
//! afterwards, as LLM APIs count tokens. A refusal names the tightest limit, and a dropped wait
//! leaves no trace in any.
//!
//! ```
//! use tidegate::{AllOf, AllRefusal, CountingLimit, Rate, RateLimiter, TokenBucket};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), AllRefusal> {
//! let requests = RateLimiter::new(TokenBucket::new(Rate::per_minute(60), 10));
//! let tokens = RateLimiter::new(TokenBucket::new(Rate::per_minute(10_000), 10_000));
//! let calls = CountingLimit::new(4);
//! let api = AllOf::new("requests", &requests).with("tokens", &tokens).with_counting("calls", &calls);
//!
//! let mut place = api.reserve([1, 4000, 1])?; // an estimate
//! (&mut place).await?;
//! // ... the call: it took 1200 tokens
//! place.settle(&[1, 1200, 1])?;
//! let refusal = api.try_acquire_many([1, 9000, 1]).unwrap_err();
//! assert_eq!(refusal.member(), Some("tokens"));
//! # Ok(())
//! # }
//! ```
//!
//! # A limit for each key
//!
//! With the feature `keyed`, [`KeyedRateLimiter`] keeps one state for each user, address or token,
//! in bounded memory: a key whose bucket is full again takes no place: later calls use it again. A
//! flood of new keys pushes out no key that is limited, and takes no more memory. One call gives
//! all keys another rate or burst.
//!
#![cfg_attr(feature = "keyed", doc = "```")]
#![cfg_attr(not(feature = "keyed"), doc = "```ignore")]
//! use tidegate::{KeyedRateLimiter, Rate, TokenBucket};
//!
//! let users: KeyedRateLimiter<String> =
//! KeyedRateLimiter::new(TokenBucket::new(Rate::per_second(5), 10), 100_000); if let Err(refusal) =
//! users.try_acquire("alice") {
//!     println!("HTTP 429, Retry-After: {}", refusal.retry_after_secs().unwrap_or(60));
//! }
//! ```
//!
//! # Under control
//!
//! | to | call |
//! |---|---|
//! | say how important a request is, and how long it waits | any call with a [`Request`] in place of a number |
//! | keep a share of the burst for the important | [`keep_for_priority`](RateLimiter::keep_for_priority) |
//! | bound the queue, and say who makes room | [`set_queue_bounds`](RateLimiter::set_queue_bounds) and [`QueueBounds`] |
//! | obey a server's `Retry-After` | [`pause_for`](RateLimiter::pause_for), [`pause_until`](RateLimiter::pause_until), [`resume`](RateLimiter::resume) |
//! | believe what a server counted | [`drain`](RateLimiter::drain), [`debit`](RateLimiter::debit), [`refund`](RateLimiter::refund) |
//! | begin anew | [`reset`](RateLimiter::reset) |
//! | see what a limit would do | [`set_shadow`](RateLimiter::set_shadow) |
//! | let somebody pass in any case | [`Request::exempt`] |
//! | count, or be told | [`watch`](RateLimiter::observe) with [`Statistics`], or with [`Events`] of your own |
//!
//! All of these work at run time, from any clone, and at once for those who wait. What is not used costs nothing: a decision is the same
//! instructions as without.
//!
//! ```
//! use std::sync::Arc; use std::time::Duration; use tidegate::{ManualClock, QueueBounds, Rate,
//! RateLimiter, Refusal, Request, SmoothBursty, Statistics, WhenFull};
//!
//! let limiter = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(10)),
//! ManualClock::new()); let statistics = Arc::new(Statistics::new());
//! limiter.observe(statistics.clone());
//! limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1000).when_full(WhenFull::DropLeastImportant));
//! limiter.keep_for_priority(2, 1); limiter.try_acquire_many(Request::permits(1).priority(1))?;
//! limiter.pause_for(Duration::from_secs(30)); // the server said so
//! assert!(limiter.try_acquire().is_err()); assert_eq!(statistics.snapshot().refused(), 1);
//! # Ok::<(), Refusal>(())
//! ```
//!
//! # What is promised
//!
//! | | promise |
//! |---|---|
//! | P1 bound | in any span no more permits are granted than the policy states above |
//! | P2 a dropped wait leaves no trace | dropping a waiting future, at any time, costs nothing: no permit lost, none invented, no debt, and those behind move up |
//! | P3 first come, first served | waiters are served in order of arrival, whatever their size; nobody overtakes, but who is [more important](Request::priority) |
//! | P4 nobody holds up the rest | a future that is polled once and then forgotten delays nobody beyond its own turn |
//! | P5 changes act now | a new rate, a refund, a debit or a pause moves those who already wait; what was granted before is still paid at the old price |
//! | P6 exact average | what is awaited comes within 0.5 % of the rate, though timers are late |
//! | P7 exact rate | the arithmetic is never above the set rate, and at most 65 ppm below it up to 1 M/s |
//! | P8 lock-free decision | while nobody waits: no lock, no allocation, and a refusal writes nothing (policies of 128 bits need a processor that exchanges so many at once, as all of x86-64 and AArch64 do). A [`KeyedRateLimiter`] shares the lock of a part of its table with all who look |
//! | P9 virtual time | everything, waiting included, runs on a [`ManualClock`] and on tokio's paused time |
//! | P10 never free | overflow, clocks that jump, NaN, zero and huge arguments end in an error or in "limited", perhaps for ever |
//!
//! Each is tested, most are model-checked with loom.
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
//! Blocking calls on other threads follow the paused time of the runtime in which the limiter's clock was
//! made; see [`TokioClock`].
//!
//! A type that stores a limiter and is to be tested with a [`ManualClock`] takes the clock as a parameter:
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{DefaultClock, ManualClock, Rate, RateLimiter, SmoothBursty, Timer};
//!
//! struct Client<C: Timer = DefaultClock> {
//!     limiter: RateLimiter<SmoothBursty, C>,
//! }
//!
//! let clock = ManualClock::new();
//! let policy = SmoothBursty::new(Rate::per_second(5));
//! let client = Client { limiter: RateLimiter::with_clock(policy, clock.clone()) };
//! assert!(client.limiter.try_acquire().is_ok());
//! clock.advance(Duration::from_millis(200));
//! assert!(client.limiter.try_acquire().is_ok());
//! ```
//!
//! # Features
//!
//! | feature | what it does | what it costs |
//! |---|---|---|
//! | `keyed` | [`KeyedRateLimiter`]: a limit for each key | hashbrown, crossbeam-utils |
//! | `serde` | [`Rate`] and [`PolicyConfig`] can be read from and written to configuration files | serde |
//! | `test-util` | [`DefaultClock`] is [`TokioClock`], paused or not, instead of [`SystemClock`]; name it `DefaultClock` in signatures | tokio's `test-util`; a slower clock reading. For dev-dependencies |
//!
//! # Runtimes
//!
//! Awaiting needs tokio with its time driver. One limiter can be shared by several runtimes and by plain threads: none of them waits for
//! another's event loop. `try_acquire` and the blocking calls need no runtime.
//!
//! # Minimum supported Rust version
//!
//! Rust 1.88. A new minor version may raise it.
//!
#![cfg_attr(feature = "keyed", doc = "[`KeyedRateLimiter`]: crate::KeyedRateLimiter")]
#![cfg_attr(not(feature = "keyed"), doc = "[`KeyedRateLimiter`]: https://docs.rs/tidegate")]
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Which algorithm, at what price: all of them side by side.
///
#[cfg_attr(doc, doc = include_str!("../docs/pictures/links.md"))]
#[doc = include_str!("../docs/ALGORITHMS.md")]
pub mod algorithms {}

pub mod all_of;
pub mod clock;
mod counting;
mod error;
#[cfg(feature = "keyed")]
pub mod keyed;
mod limiter;
mod line;
pub mod policy;
mod rate;
mod request;
mod status;
mod sync;
mod time;

#[cfg(all(test, tidegate_loom))]
#[path = "../loom-tests/mod.rs"]
mod loom_tests;

pub use all_of::{AcquireAll, AllOf, AllPermits, AllRefusal, AllRequest, AllReservation};
pub use clock::{Clock, DefaultClock, ManualClock, SystemClock, Timer, TokioClock};
pub use counting::{CountingLimit, CountingPermit};
pub use error::{PolicyError, Refusal};
#[cfg(feature = "keyed")]
pub use keyed::{KeyedRateLimiter, WhenKeysFull};
pub use limiter::{
    Acquire, AcquireMany, AcquireOwned, Events, RateLimiter, Reservation, Statistics, StatisticsSnapshot,
    WaitHistogram,
};
pub use policy::{
    AnyPolicy, Change, ConfigError, DenyAll, FixedWindow, Keep, LeakyBucket, Policy, PolicyConfig,
    PolicyKind, SlidingEstimate, SlidingLog, SlidingWindow, SmoothBursty, SmoothWarmingUp, TokenBucket,
    Unlimited,
};
pub use rate::{Rate, RateError};
pub use request::{QueueBounds, Request, WhenFull};
pub use status::Status;
pub use time::Nanos;
