//! Set-up shared by the tests of the limiter, all on a manual clock.

#![allow(dead_code)] // Each test file uses its part.

pub(crate) mod asked;
pub(crate) mod counted;
pub(crate) mod late;
pub(crate) mod log;
pub(crate) mod loops;
pub(crate) mod pairs;
pub(crate) mod polled;

use std::thread;
use std::time::{Duration, Instant};

use tidegate::{
    Acquire, AllOf, AllRefusal, AllRequest, AllReservation, ManualClock, Policy, Rate, RateLimiter, Refusal,
    Request, Reservation, SmoothBursty, Timer, TokenBucket,
};
use tokio_test::task::{Spawn, spawn};

pub(crate) type Limiter = RateLimiter<SmoothBursty, ManualClock>;

pub(crate) const MS: Duration = Duration::from_millis(1);

/// How long a test waits for another thread, in real time, before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns when `count` is the number that `waiting` returns. Threads take the time they take;
/// nothing depends on how long.
#[track_caller]
pub(crate) fn until(count: usize, waiting: impl Fn() -> usize) {
    let begin = Instant::now();
    while waiting() != count {
        assert!(begin.elapsed() < PATIENCE, "{} requests wait, and not {count}", waiting());
        thread::yield_now();
    }
}

/// One permit per second, none saved, and the first one taken: the next is due at 1 s.
pub(crate) fn one_per_second() -> (Limiter, ManualClock) {
    let (limiter, clock) = without_burst(Rate::per_second(1));
    assert!(limiter.try_acquire().is_ok());
    (limiter, clock)
}

pub(crate) fn without_burst(rate: Rate) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let policy = SmoothBursty::new(rate).max_burst(Duration::ZERO);
    (RateLimiter::with_clock(policy, clock.clone()), clock)
}

pub(crate) type Bucket = RateLimiter<TokenBucket, ManualClock>;

/// A full bucket of `per_second` permits per second.
pub(crate) fn bucket(clock: &ManualClock, per_second: u64, burst: u32) -> Bucket {
    bucket_at(clock, Rate::per_second(per_second), burst)
}

pub(crate) fn bucket_at(clock: &ManualClock, rate: Rate, burst: u32) -> Bucket {
    RateLimiter::with_clock(TokenBucket::new(rate, burst), clock.clone())
}

pub(crate) type Waiting<'a, P> = Spawn<Acquire<'a, P, ManualClock>>;

/// A future that has been polled once and waits.
#[track_caller]
pub(crate) fn spawn_pending<F: Future>(future: F) -> Spawn<F> {
    let mut future = spawn(future);
    assert!(future.poll().is_pending(), "it does not wait");
    future
}

/// A request for one permit that waits.
#[track_caller]
pub(crate) fn waiting<P: Policy>(limiter: &RateLimiter<P, ManualClock>) -> Waiting<'_, P> {
    spawn_pending(limiter.acquire())
}

/// Takes `n` permits now, as an estimate that is settled later.
pub(crate) fn estimate<P: Policy, C: Timer>(
    limiter: &RateLimiter<P, C>,
    n: u32,
) -> Result<Reservation<P, C>, Refusal> {
    let mut reservation = limiter.reserve(Request::permits(n).within(Duration::ZERO))?;
    assert!(reservation.claim(), "it is due now");
    Ok(reservation)
}

/// Returns costs in the order of the members, for tests that generate them as numbers.
pub(crate) fn costs<'a, C: Timer>(all: &'a AllOf<C>, costs: &[u32]) -> AllRequest<'a> {
    assert_eq!(all.names().count(), costs.len());
    all.names().zip(costs.iter().copied()).collect()
}

/// Takes these permits now, as an estimate that is settled later.
pub(crate) fn estimate_of_all<'a, C: Timer>(
    all: &AllOf<C>,
    request: impl Into<AllRequest<'a>>,
) -> Result<AllReservation<C>, AllRefusal> {
    let mut reservation = all.reserve(request.into().within(Duration::ZERO))?;
    assert!(reservation.claim(), "it is due now");
    Ok(reservation)
}
