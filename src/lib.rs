//! A fair rate limiter that makes callers wait their turn.
//!
//! [`acquire`](RateLimiter::acquire) waits in a first-come, first-served queue and returns when a
//! permit is due. [`try_acquire`](RateLimiter::try_acquire) never waits: it grants a permit now, or
//! refuses and says exactly when to retry.
//!
//! tidegate has a token bucket as cheap as governor's, a fair and cancel-safe queue like that of
//! tokio's `Semaphore`, and the semantics of Guava's `RateLimiter`. The same calls also serve fixed
//! and sliding windows, an exact log, leaky bucket, GCRA, a warm-up, and a limit of calls in
//! flight.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{Rate, RateLimiter, Refusal, Request};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Refusal> {
//! # let limiter = RateLimiter::with_clock(
//! #     tidegate::SmoothBursty::new(Rate::per_second(5)),
//! #     tidegate::TokioClock::new(),
//! # );
//! # #[cfg(any())]
//! let limiter = RateLimiter::smooth_bursty(Rate::per_second(5));
//! limiter.acquire().await?; // one permit
//! limiter.acquire_many(3).await?; // three at once
//!
//! // Now, or a refusal that says when: three permits accrue in 600 ms.
//! let refusal = limiter.try_acquire().unwrap_err();
//! assert!(refusal.retry_after() <= Some(Duration::from_millis(600)));
//!
//! // Waits at most 2 s for three permits. Refused at once if they are due later.
//! let request = Request::permits(3).within(Duration::from_secs(2));
//! limiter.acquire_many(request).await?;
//! let soon = Duration::from_millis(50);
//! assert!(limiter.acquire_within(soon).await.is_err()); // one permit
//!
//! // Served before all requests of lower priority.
//! limiter.acquire_many(Request::permits(1).priority(1)).await?;
//!
//! limiter.set_rate(Rate::per_second(10)); // also moves requests that already wait
//! # Ok(())
//! # }
//! ```
//!
//! From a plain thread, [`blocking_acquire`](RateLimiter::blocking_acquire) waits in the same
//! queue. A wait can be dropped at any time, so `tokio::time::timeout` and `select!` around it are
//! safe.
//!
//! # Where to begin
//!
//! Start with one of these three limiters, here at 5 permits per second:
//!
//! | limiter | a new limiter grants at once | after idling | a new limiter, asked for 100 permits | choose it |
//! |---|---|---|---|---|
//! | [`RateLimiter::smooth_bursty`], as in Guava | 1 permit | 6: it saves the permits of 1 s | grants at once, and the *next* request waits 20 s | to make calls wait, whatever their size |
//! | [`RateLimiter::paced`] | 1 | 1: it saves no permits, and spaces calls evenly | as above | to call a service that counts your calls |
//! | [`TokenBucket::new(rate, 10)`](TokenBucket::new) | 10, its burst | 10 | refuses: [`Refusal::ExceedsLimit`] | to refuse calls |
//!
//! The first two limiters use [`SmoothBursty`]. With this policy and [`SmoothWarmingUp`], the next
//! caller pays: a request is granted as soon as the request before it is paid for. So one large
//! request can close the limiter for a long time: check sizes that come from outside. With all
//! other policies, a request waits until all its permits are available. A request that can never
//! have them is refused.
//!
//! # Recipes
//!
//! **A client of a strict server.** Space the calls evenly, a little below the server's 20 per
//! second, and pause when the server asks for it. The network bunches calls, so a server without
//! any tolerance refuses some calls of a client that sends at exactly its rate.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{Rate, RateLimiter};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), tidegate::Refusal> {
//! # async fn call() -> Option<Duration> { None }
//! let limiter = RateLimiter::paced(Rate::per_second(19)); // evenly spaced
//! limiter.set_catch_up(Duration::ZERO); // no call makes up for a late one
//! // In each task, with a clone of the limiter:
//! limiter.acquire().await?;
//! let retry_after = call().await;
//! if let Some(wait) = retry_after {
//!     limiter.pause_for(wait); // all tasks wait
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **A server that refuses per user, with `Retry-After`.** Memory is bounded, and no cleanup task
//! is needed.
//!
#![cfg_attr(feature = "keyed", doc = "```")]
#![cfg_attr(not(feature = "keyed"), doc = "```ignore")]
//! use tidegate::{KeyedRateLimiter, Rate, TokenBucket};
//!
//! let policy = TokenBucket::new(Rate::per_second(5), 10);
//! let users: KeyedRateLimiter<String> = KeyedRateLimiter::new(policy, 100_000);
//! // In the handler:
//! # let user = "alice";
//! if let Err(refusal) = users.try_acquire(user) {
//!     // 429 and Retry-After, or 503 if there is no room for a new user.
//!     println!("HTTP {}, Retry-After: {:?}", refusal.status_code(), refusal.retry_after_secs());
//! }
//! ```
//!
//! **A plan for each user.** A function returns the plan of a user. It keeps no user in memory.
//!
#![cfg_attr(feature = "keyed", doc = "```")]
#![cfg_attr(not(feature = "keyed"), doc = "```ignore")]
//! use std::collections::HashMap;
//! use tidegate::{KeyedRateLimiter, Plan, Rate, TokenBucket};
//!
//! let pro = Plan::new(TokenBucket::new(Rate::per_second(50), 100));
//! let plans = HashMap::from([("alice".to_string(), pro)]);
//! let free = TokenBucket::new(Rate::per_second(5), 10);
//! let users: KeyedRateLimiter<String> = KeyedRateLimiter::new(free, 100_000)
//!     .with_plans(move |user| plans.get(user).cloned());
//! assert_eq!(users.status("alice").available, 100);
//! assert_eq!(users.status("bob").available, 10);
//! // After a change of the plans: users.replan();
//! ```
//!
//! **An LLM API with limits of requests and of tokens.** Reserve an estimate from all limits at
//! once, and settle it when the cost is known.
//!
//! ```
//! use tidegate::{AllOf, AllRefusal, CountingLimit, Rate, RateLimiter, TokenBucket};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), AllRefusal> {
//! let requests = RateLimiter::new(TokenBucket::new(Rate::per_minute(60), 10));
//! let tokens = RateLimiter::new(TokenBucket::new(Rate::per_minute(10_000), 10_000));
//! let calls = CountingLimit::new(4);
//! let api = AllOf::new("requests", &requests)
//!     .with("tokens", &tokens)
//!     .with_counting("calls", &calls);
//!
//! let mut reservation = api.reserve([("tokens", 4000)])?;
//! (&mut reservation).await?;
//! // ... the call: it uses 1200 tokens
//! reservation.settle([("tokens", 1200)])?;
//! let refusal = api.try_acquire_many([("tokens", 9000)]).unwrap_err();
//! assert_eq!(refusal.member(), Some("tokens"));
//! # Ok(())
//! # }
//! ```
//!
//! # In your stack
//!
//! | you have | use |
//! |---|---|
//! | axum, tonic, hyper, any tower service | [`tidegate-tower`](https://docs.rs/tidegate-tower): a layer for servers and one for clients |
//! | reqwest, with or without reqwest-middleware | [`tidegate-reqwest`](https://docs.rs/tidegate-reqwest): requests wait, and the client obeys the responses |
//! | another HTTP client or server | [`tidegate-http`](https://docs.rs/tidegate-http): reads, writes and obeys limits; limits the bandwidth of bodies |
//! | one limit over many processes | [`tidegate-redis`](https://docs.rs/tidegate-redis): over Redis or Valkey |
//! | a sink | [`tidegate-futures`](https://docs.rs/tidegate-futures); streams, readers and writers are in this crate |
//!
//! # Which policy
//!
//! | you | policy | most permits in any span *d* |
//! |---|---|---|
//! | call a service, with evenly spaced calls | [`RateLimiter::paced`]: [`SmoothBursty`] with `max_burst` zero | `1 + rate * (d + max_burst)` |
//! | serve requests: a burst and then a rate, as most APIs do | [`TokenBucket`] | `burst + rate * d` |
//! | call a service that counts by the minute, and want its whole quota at once | [`FixedWindow`] | `limit * (d / window + 2)` |
//! | must never grant more than the limit in any window | [`SlidingLog`] | `limit`, if *d* is the window |
//! | want nearly that, in little memory | [`SlidingWindow`] | `limit`, if *d* is a cell less than the window |
//! | accept an estimate, at worst almost twice the limit, in the least memory | [`SlidingEstimate`] | `2 * limit - 1`, if *d* is the window |
//! | delay requests to an even outflow, in a bounded queue | [`LeakyBucket`] | `1 + nodelay + rate * d` |
//! | call a service that is slow when cold | [`SmoothWarmingUp`] | `1 + rate * d` |
//! | limit calls in flight, not calls per second | [`CountingLimit`] | |
//! | limit calls in flight for each user or host | [`KeyedCountingLimit`] | |
//! | have two rates of one thing: 10 per second and 100 per minute | [`Both`]: `second.and(minute)` | as each of the two policies |
//! | limit several things in one call | [`AllOf`] | as all its members allow |
//! | have a limit for each user and one for all users | [`KeyedAllOf`] | as all its members allow |
//! | store a limiter without its types | [`AnyLimiter`] | as the inner limiter |
//! | read the configuration again while layers use the limiter | [`Replaceable`] | as the limiter that it holds |
//! | limit the items of a stream | [`LimitStream`] (feature `stream`) | as the inner limiter |
//! | limit the bytes of a socket or a file | [`Throttled`] (feature `io`) | as the inner limiter, and one chunk more for a reader and for each late writer |
//! | read the policy from a configuration | [`AnyPolicy`]: `RateLimiter::new("token_bucket 100/s burst 20".parse::<AnyPolicy>()?)`, or a field of a struct with the feature `serde`. [All forms](algorithms#from-a-configuration) | |
//!
//! [`algorithms`] compares them, with pictures and costs. Two additions to the bounds:
//!
//! - With [`SmoothBursty`], [`SmoothWarmingUp`] and [`LeakyBucket`], if one request may ask for *n*
//!   permits, replace the `1` by *n*.
//! - A late grant is charged at its due time, but no earlier than one
//!   [catch-up](RateLimiter::set_catch_up) before the grant (10 ms unless set). So add the catch-up
//!   to *d*. This keeps the average exact although timers are late.
//!
//! # Under control
//!
//! | to | call |
//! |---|---|
//! | set a priority or a maximum wait, or exempt a call | any call with a [`Request`] instead of a number |
//! | take as many permits as are available | any call with [`Request::up_to`] |
//! | keep a share of the burst for a priority | [`keep_for_priority`](RateLimiter::keep_for_priority) |
//! | bound the queue | [`set_queue_bounds`](RateLimiter::set_queue_bounds) |
//! | obey a server's `Retry-After` | [`pause_for`](RateLimiter::pause_for), [`pause`](RateLimiter::pause) with a [`Pause`], [`resume`](RateLimiter::resume) |
//! | end the waits of all tasks and threads | [`close`](RateLimiter::close) |
//! | end one blocking wait from another thread | [`CancelToken`] |
//! | report the remaining permits to a caller | [`with_left`](Request::with_left), [`status`](RateLimiter::status) |
//! | match the limiter to a server's count | [`keep_at_most`](RateLimiter::keep_at_most), [`drain`](RateLimiter::drain), [`debit`](RateLimiter::debit), [`refund`](RateLimiter::refund), [`reset`](RateLimiter::reset) |
//! | see which calls a limit would refuse | [`set_shadow`](RateLimiter::set_shadow) |
//! | count or log calls | [`observe`](RateLimiter::observe) with [`Statistics`] or a custom [`Events`]; for all keys `observed_by` of a [`KeyedRateLimiter`] |
//! | hand a refused call to a second limiter | `first.try_acquire().or_else(\|_\| second.try_acquire())` |
//!
//! All of these calls work at run time and from any clone of a [`RateLimiter`], and move waiters at
//! once. Features you do not use cost nothing. Other limiters have some of these calls. To change a
//! rate, a burst, a window or a limit, call:
//!
//! | limiter | call |
//! |---|---|
//! | [`RateLimiter`] | [`set_rate`](RateLimiter::set_rate), [`change`](RateLimiter::change); with an [`AnyPolicy`] `apply`, which can also change the kind of policy |
//! | [`KeyedRateLimiter`] | `set_rate_all`, `change_all`, `apply_all`; `set_rate` for one key; `replan` if the plans have changed |
//! | [`CountingLimit`] | [`set_limit`](CountingLimit::set_limit); for a [`KeyedCountingLimit`] `replan` |
//! | [`AllOf`], [`KeyedAllOf`] | the calls of their members |
//! | [`AnyLimiter`] | none: keep a clone of the inner limiter, and use it for an observer and the bounds of the queue as well; or replace the limiter in a [`Replaceable`] |
//! | a limit over a store | a new configuration in each process: see [`tidegate-redis`](https://docs.rs/tidegate-redis) |
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use tidegate::{ManualClock, QueueBounds, Rate, RateLimiter, Refusal, Request};
//! use tidegate::{SmoothBursty, Statistics, WhenFull};
//!
//! let policy = SmoothBursty::new(Rate::per_second(10));
//! let limiter = RateLimiter::with_clock(policy, ManualClock::new());
//! let statistics = Arc::new(Statistics::new());
//! limiter.observe(statistics.clone());
//! let bounds = QueueBounds::UNBOUNDED.max_waiters(1000);
//! limiter.set_queue_bounds(bounds.when_full(WhenFull::DropLeastImportant));
//! limiter.keep_for_priority(2, 1);
//! limiter.try_acquire_many(Request::permits(1).priority(1))?;
//!
//! limiter.pause_for(Duration::from_secs(30)); // the server asked for it
//! assert!(limiter.try_acquire().is_err());
//! assert_eq!(statistics.snapshot().refused(), 1);
//! # Ok::<(), Refusal>(())
//! ```
//!
//! # Promises
//!
//! | | promise |
//! |---|---|
//! | P1 bound | In any span a limiter grants no more permits than the bound of its policy above. |
//! | P2 a dropped wait leaves no trace | Dropping a waiting future, at any time, costs nothing: no permit is lost or invented, no negative balance remains, and the waiters behind it move up. There are exceptions for a future that was granted, and is dropped before it is polled again. Its permits may be lost if the policy changed since the grant. A bucket gets back what it granted less what accrued since then if other requests took permits meanwhile. |
//! | P3 first come, first served | Waiters are served in order of arrival, whatever their size. Only a request of higher [priority](Request::priority) may overtake a waiter. |
//! | P4 no waiter holds up the rest | A future that is polled once and then forgotten delays the waiters behind it by its own turn and no more. |
//! | P5 changes act now | A new rate, a refund, a debit or a pause moves all waiters. Permits granted before the change are paid at the old rate. |
//! | P6 exact average | The rate of awaited permits is within 0.5 % of the set rate, although timers are late. |
//! | P7 exact rate | The arithmetic never exceeds the set rate, and stays within 65 ppm of it up to 1 M/s. |
//! | P8 lock-free decision | While no request waits, a decision takes no lock and allocates nothing, and a refusal writes nothing, except that one of a [`SlidingLog`] may clear entries of undone grants. Policies with a state of 128 bits need a processor with a 128-bit compare-and-swap, as all of x86-64 and AArch64 have. A [`KeyedRateLimiter`] reads under the shared lock of a part of its table. |
//! | P9 virtual time | Every limiter of a rate, including its waits, runs on a [`ManualClock`] and on tokio's paused time. A maximum wait in a call to a [`CountingLimit`] itself, not through an [`AllOf`], follows the default clock, or [a clock that you set](CountingLimit::with_clock). |
//! | P10 never free | Overflow, clocks that jump, NaN, zero and huge arguments end in an error or in a refusal, never in "unlimited". |
//! | P11 predicted waits are exact | `retry_after`, `due_in` and `within` are met to the nanosecond if nothing changes. Behind more than 4,096 requests of mixed sizes a predicted wait may be too long. It is too short only in two cases. The first is a [refused request of higher priority](Refusal::Limited) than a waiter: the prediction does not count the waiter, which takes its permits if it comes due before the retry. The second is a waiter that takes [as many permits as are available](Request::up_to): the prediction counts the fewest that it takes. An [`AllOf`] predicts by sums, and its predicted waits, and those of other requests behind it in a member that is a window, may be too short or too long, behind more than 512 requests, and where its members have other waiters, a pause, kept permits or shadow mode. With a window policy among its members they may be too long by the [catch-up](RateLimiter::set_catch_up). Those behind its reservations that are not awaited may be too short, by as long as no call comes. |
//! | P12 bounded costs | With a million waiters, no call holds a lock for long. Wakers and observers may panic, block or call back; keys and clocks may panic or block. A waker that blocks also holds up the requests that the same call wakes after it. |
//!
//! Each promise is tested, and most are model-checked with loom.
//!
//! # Testing code that waits
//!
//! Make the limiter with a [`ManualClock`] and advance it, or use a [`TokioClock`] in a test with
//! paused time. With the feature `test-util` in dev-dependencies, every limiter that is made
//! without a clock follows tokio's time. Without the feature, such a limiter panics if it has to
//! wait while tokio's time is paused.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{Rate, RateLimiter, SmoothBursty, TokioClock};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), tidegate::Refusal> {
//! let policy = SmoothBursty::new(Rate::per_hour(1));
//! let limiter = RateLimiter::with_clock(policy, TokioClock::new());
//! limiter.acquire().await?;
//! // An hour of paused time passes at once.
//! assert_eq!(limiter.acquire().await?.waited(), Duration::from_secs(3600));
//! # Ok(())
//! # }
//! ```
//!
//! Blocking calls on other threads follow the paused time of the runtime in which the limiter's
//! clock was made. Start such a thread with [`std::thread::spawn`]: tokio does not advance paused
//! time while a `spawn_blocking` task runs. [`TokioClock`] has an example.
//!
//! A type that stores an [`AnyLimiter`] needs no type parameter: a test gives it a limiter with
//! another clock. A type that needs more calls, and so stores a [`RateLimiter`], takes the clock as
//! a type parameter:
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
//! | feature | adds | costs |
//! |---|---|---|
//! | `tokio`, on by default | waits in a tokio runtime use its timer; [`TokioClock`] | tokio with `rt` and `time` |
//! | `keyed` | [`KeyedRateLimiter`] and [`KeyedCountingLimit`]: a limit for each key; [`KeyedAllOf`]: together with limits that all keys share | hashbrown, foldhash, crossbeam-utils |
//! | `stream` | [`LimitStream`]: a stream that takes a permit for each item | futures-core, pin-project-lite |
//! | `io`, on by default | [`Throttled`]: a reader or writer of tokio that takes a permit for each byte | nothing besides `tokio` |
//! | `config`, on by default | [`AnyPolicy`] and [`PolicyConfig`]: policies from text, which can be replaced in a running limiter | arc-swap |
//! | `serde` | [`Rate`] and [`PolicyConfig`] from and to configuration files | serde, and those of `config` |
//! | `test-util` | [`DefaultClock`] is [`TokioClock`] instead of [`SystemClock`]; name it `DefaultClock` in signatures. For dev-dependencies | tokio's `test-util`, a slower clock reading |
//!
//! # Runtimes
//!
//! In a tokio runtime, a wait uses the timer of that runtime, so its time driver must be enabled.
//! In any other executor, and everywhere without the feature `tokio`, one thread of the process is
//! the timer of all limiters. The thread starts when it is first needed. `try_acquire` and the
//! blocking calls need neither. Several runtimes and plain threads can share one limiter, and none
//! of them waits for another runtime.
//!
//! tokio's timer ticks in milliseconds. With a [`PreciseClock`], a limiter waits on the crate's
//! thread in tokio as well, and releases each permit at its exact time.
//!
//! # Minimum supported Rust version
//!
//! Rust 1.88. A new minor version may raise it.
//!
#![cfg_attr(feature = "keyed", doc = "[`KeyedRateLimiter`]: crate::KeyedRateLimiter")]
#![cfg_attr(feature = "keyed", doc = "[`KeyedCountingLimit`]: crate::KeyedCountingLimit")]
#![cfg_attr(not(feature = "keyed"), doc = "[`KeyedCountingLimit`]: https://docs.rs/tidegate")]
#![cfg_attr(not(feature = "keyed"), doc = "[`KeyedRateLimiter`]: https://docs.rs/tidegate")]
#![cfg_attr(feature = "keyed", doc = "[`KeyedAllOf`]: crate::KeyedAllOf")]
#![cfg_attr(not(feature = "keyed"), doc = "[`KeyedAllOf`]: https://docs.rs/tidegate")]
#![cfg_attr(feature = "stream", doc = "[`LimitStream`]: crate::stream::LimitStream")]
#![cfg_attr(not(feature = "stream"), doc = "[`LimitStream`]: https://docs.rs/tidegate")]
#![cfg_attr(feature = "io", doc = "[`Throttled`]: crate::io::Throttled")]
#![cfg_attr(not(feature = "io"), doc = "[`Throttled`]: https://docs.rs/tidegate")]
#![cfg_attr(not(feature = "config"), doc = "[`AnyPolicy`]: https://docs.rs/tidegate")]
#![cfg_attr(not(feature = "config"), doc = "[`PolicyConfig`]: https://docs.rs/tidegate")]
#![cfg_attr(not(feature = "tokio"), doc = "[`TokioClock`]: https://docs.rs/tidegate")]
#![cfg_attr(docsrs, feature(doc_cfg))]
// What policies report to a configuration, and what they leave to a policy that replaces them.
#![cfg_attr(not(feature = "config"), allow(dead_code))]

/// Compares all algorithms: what each one lets through, and what it costs.
///
#[cfg_attr(doc, doc = include_str!("../docs/pictures/links.md"))]
#[doc = include_str!("../docs/ALGORITHMS.md")]
///
#[cfg_attr(feature = "config", doc = "[`AnyPolicy`]: crate::AnyPolicy")]
#[cfg_attr(feature = "config", doc = "[`AnyPolicy::config`]: crate::AnyPolicy::config")]
#[cfg_attr(feature = "config", doc = "[`PolicyConfig`]: crate::PolicyConfig")]
#[cfg_attr(not(feature = "config"), doc = "[`AnyPolicy`]: https://docs.rs/tidegate")]
#[cfg_attr(not(feature = "config"), doc = "[`AnyPolicy::config`]: https://docs.rs/tidegate")]
#[cfg_attr(not(feature = "config"), doc = "[`PolicyConfig`]: https://docs.rs/tidegate")]
pub mod algorithms {}

/// The calls of other limiters, and the corresponding ones of this crate.
///
#[doc = include_str!("../docs/MIGRATING.md")]
pub mod migrating {}

pub mod all_of;
mod any_limiter;
mod cancel;
pub mod clock;
mod counting;
mod error;
mod grant;
#[cfg(feature = "io")]
pub mod io;
#[cfg(feature = "keyed")]
pub mod keyed;
mod limiter;
mod line;
pub mod policy;
mod rate;
mod request;
mod status;
#[cfg(feature = "stream")]
pub mod stream;
mod sync;
mod time;

#[cfg(all(test, tidegate_loom))]
#[path = "../loom-tests/mod.rs"]
mod loom_tests;

#[cfg(feature = "keyed")]
#[doc(inline)]
pub use all_of::KeyedAllOf;
#[doc(inline)]
pub use all_of::{AcquireAll, AllOf, AllPermits, AllRefusal, AllRequest, AllReservation, AllStatus};
#[cfg(feature = "keyed")]
pub use any_limiter::OfKey;
pub use any_limiter::{
    AcquireAny, AnyKeyed, AnyLimiter, AnyReservation, FetchStatus, KeyedLimiter, Limiter, Replaceable,
    Reserved,
};
pub use cancel::{CancelToken, Cancellable};
#[cfg(feature = "tokio")]
#[doc(inline)]
pub use clock::TokioClock;
#[doc(inline)]
pub use clock::{Clock, DefaultClock, ManualClock, PreciseClock, SystemClock, Timer};
pub use counting::{CountingLimit, CountingPermit};
pub use error::{PolicyError, Refusal};
pub use grant::{Grant, Left};
#[cfg(feature = "keyed")]
#[doc(inline)]
pub use keyed::{KeyedCountingLimit, KeyedCountingPermit, KeyedRateLimiter, Plan, WhenKeysFull};
pub use limiter::{
    Acquire, AcquireOwned, Batch, Events, Pause, RateLimiter, Reservation, Statistics, StatisticsSnapshot,
    StoreEvent, StoreStatistics, WaitHistogram,
};
#[cfg(feature = "config")]
#[doc(inline)]
pub use policy::{AnyPolicy, ConfigError, PolicyConfig};
#[doc(inline)]
pub use policy::{
    Both, Change, DenyAll, FixedWindow, Keep, LeakyBucket, Policy, SlidingEstimate, SlidingLog,
    SlidingWindow, SmoothBursty, SmoothWarmingUp, TokenBucket, Unlimited,
};
pub use rate::{Rate, RateError};
pub use request::{QueueBounds, Request, WhenFull};
pub use status::Status;
pub use time::Nanos;
