//! Estimates that are settled: exactly the unused part comes back, the excess is owed, and both at
//! most once. All on the manual clock.

use std::time::Duration;

use crate::support::MS;
use proptest::prelude::*;
use tidegate::{
    AllOf, AnyPolicy, FixedWindow, ManualClock, Rate, RateLimiter, Refusal, SlidingEstimate, SlidingLog,
    SlidingWindow, SmoothBursty, SmoothWarmingUp, Status, TokenBucket,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

fn ten_per_second(burst: u32) -> (RateLimiter<TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::with_clock(TokenBucket::new(Rate::per_second(10), burst), clock.clone()), clock)
}

#[test]
fn the_unused_part_comes_back_and_moves_those_who_wait() -> Result<(), Refusal> {
    let (limiter, clock) = ten_per_second(10);
    let estimate = limiter.try_acquire_estimate(10)?;
    let mut wait = spawn(limiter.acquire_many(5));
    assert_pending!(wait.poll());
    estimate.settle(7);
    assert!(!wait.is_woken());
    clock.advance(200 * MS);
    assert_ready_ok!(wait.poll());
    Ok(())
}

#[test]
fn the_excess_is_owed_and_moves_those_who_wait() -> Result<(), Refusal> {
    let (limiter, clock) = ten_per_second(10);
    let estimate = limiter.try_acquire_estimate(5)?;
    let mut wait = spawn(limiter.acquire_many(6));
    assert_pending!(wait.poll());
    let mut hasty = spawn(limiter.try_acquire_within(300 * MS));
    assert_pending!(hasty.poll());
    estimate.settle(20);
    // Refused at once: 10 are owed, and 6 are before it.
    assert!(assert_ready!(hasty.poll()).is_err());
    clock.advance(1599 * MS);
    assert_pending!(wait.poll());
    clock.advance(MS);
    assert_ready_ok!(wait.poll());
    Ok(())
}

#[test]
fn dropped_without_being_settled_it_is_the_cost() -> Result<(), Refusal> {
    let (limiter, _clock) = ten_per_second(10);
    drop(limiter.try_acquire_estimate(4)?);
    assert_eq!(limiter.status().available, 6);
    Ok(())
}

#[test]
fn an_estimate_waits_in_line_and_its_dropped_wait_leaves_no_trace() {
    let (limiter, clock) = ten_per_second(10);
    assert!(limiter.try_acquire_many(10).is_ok());
    let mut first = spawn(limiter.acquire_estimate(5));
    let mut second = spawn(limiter.acquire_estimate(5));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    clock.advance(500 * MS);
    assert!(first.is_woken());
    drop(first);
    let estimate = assert_ready_ok!(second.poll());
    assert_eq!((estimate.permits(), estimate.waited()), (5, 500 * MS));
    estimate.settle(0);
    assert_eq!(limiter.status().available, 5);
}

#[test]
fn an_estimate_that_need_not_wait_gives_back_its_unused_part() {
    let (limiter, _clock) = ten_per_second(10);
    let estimate = assert_ready_ok!(spawn(limiter.acquire_estimate(8)).poll());
    assert_eq!((estimate.permits(), estimate.waited()), (8, Duration::ZERO));
    estimate.settle(3);
    assert_eq!(limiter.status().available, 7);
}

/// What overflowed meanwhile is lost, as if it had never been taken; and a refund in between is
/// taken into account.
#[test]
fn no_permits_are_invented() -> Result<(), Refusal> {
    let (limiter, clock) = ten_per_second(10);
    let estimate = limiter.try_acquire_estimate(4)?;
    clock.advance(300 * MS);
    // Without it the bucket would have been full all the time.
    estimate.settle(0);
    assert_eq!(limiter.status().available, 10);
    let estimate = limiter.try_acquire_estimate(4)?;
    limiter.refund(4);
    limiter.try_acquire_many(6)?;
    estimate.settle(0);
    assert!(limiter.status().available <= 10);
    Ok(())
}

#[test]
fn an_estimate_of_several_limiters() {
    let (requests, clock) = ten_per_second(10);
    let tokens = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1000), 1000), clock.clone());
    let api = AllOf::new("requests", &requests).with("tokens", &tokens);
    let estimate = api.try_acquire_estimate(&[1, 850]).expect("full");
    assert_eq!(estimate.weights(), [1, 850]);
    let mut wait = spawn(api.acquire_estimate(&[1, 950]));
    assert_pending!(wait.poll());
    estimate.settle(&[1, 50]).expect("two");
    let estimate = assert_ready_ok!(wait.poll());
    estimate.settle(&[1, 1950]).expect("two");
    assert_eq!(tokens.try_acquire(), Err(Refusal::Limited { retry_after: (1001 * MS).into() }));
    assert_eq!(requests.status().available, 8);
    clock.advance(2 * SECOND);
    let wrong = api.try_acquire_estimate(&[1, 1]).expect("there").settle(&[1]).expect_err("wrong");
    assert_eq!(wrong.to_string(), "1 weights were given for 2 limiters");
}

fn policy(kind: u8) -> AnyPolicy {
    let rate = Rate::per_second(10);
    match kind {
        0 => SmoothBursty::new(rate).start_full().into(),
        1 => TokenBucket::new(rate, 10).into(),
        2 => FixedWindow::new(rate).into(),
        3 => SlidingWindow::new(rate, 5).into(),
        4 => SlidingEstimate::new(rate).into(),
        5 => SlidingLog::new(rate).into(),
        _ => SmoothWarmingUp::new(rate, SECOND).into(),
    }
}

proptest! {
    /// Settled at once, an estimate is a grant of the actual cost.
    #[test]
    fn settled_at_once_it_is_the_actual_cost(kind in 0..6u8, n in 1..8u32, used in 1..8u32, before in 0..3u32) {
        let world = |estimate: bool| -> Status {
            let clock = ManualClock::new();
            let limiter = RateLimiter::with_clock(policy(kind), clock.clone());
            for _ in 0..before {
                assert!(limiter.try_acquire().is_ok());
            }
            clock.advance(100 * MS);
            if estimate {
                limiter.try_acquire_estimate(n).expect("enough").settle(used);
            } else {
                assert!(limiter.try_acquire_many(used).is_ok());
            }
            limiter.status()
        };
        let (found, expected) = (world(true), world(false));
        prop_assert_eq!(found.available, expected.available);
        // A price is rounded up once for each charge.
        prop_assert!(found.full_in.abs_diff(expected.full_in) <= Duration::from_nanos(1), "{found:?} {expected:?}");
    }

    /// Whenever it is settled, and whatever happens meanwhile, nobody has more than the limit.
    #[test]
    fn never_more_than_the_limit(kind in 0..7u8, acts in proptest::collection::vec((0..5u8, 1..6u32), 1..60)) {
        let clock = ManualClock::new();
        let limiter = RateLimiter::with_clock(policy(kind), clock.clone());
        let mut estimates = Vec::new();
        for (act, n) in acts {
            match act {
                0 => estimates.extend(limiter.try_acquire_estimate(n)),
                1 if !estimates.is_empty() => estimates.swap_remove(n as usize % estimates.len()).settle(n),
                2 => limiter.refund(n),
                3 => drop(limiter.try_acquire_many(n)),
                _ => clock.advance(37 * MS * n),
            }
            let status = limiter.status();
            prop_assert!(status.available <= status.limit.max(11));
        }
    }
}
