//! Estimates that are settled: exactly the unused part is given back, or the excess is owed, and
//! each estimate is settled at most once. All tests use the manual clock.

use std::time::Duration;

use crate::support::{MS, spawn_pending};
use proptest::prelude::*;
use tidegate::{
    AllOf, AllRequest, AnyPolicy, FixedWindow, Grant, ManualClock, Rate, RateLimiter, Refusal, Request,
    SlidingEstimate, SlidingLog, SlidingWindow, SmoothBursty, SmoothWarmingUp, Status, TokenBucket,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

fn ten_per_second(burst: u32) -> (RateLimiter<TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::with_clock(TokenBucket::new(Rate::per_second(10), burst), clock.clone()), clock)
}

#[test]
fn the_unused_part_comes_back_and_moves_waiters() -> Result<(), Refusal> {
    let (limiter, clock) = ten_per_second(10);
    let estimate = crate::support::estimate(&limiter, 10)?;
    let mut wait = spawn_pending(limiter.acquire_many(5));
    estimate.settle(7);
    assert!(!wait.is_woken());
    clock.advance(200 * MS);
    assert_ready_ok!(wait.poll());
    Ok(())
}

#[test]
fn the_excess_is_owed_and_moves_waiters() -> Result<(), Refusal> {
    let (limiter, clock) = ten_per_second(10);
    let estimate = crate::support::estimate(&limiter, 5)?;
    let mut wait = spawn_pending(limiter.acquire_many(6));
    let mut hasty = spawn_pending(limiter.acquire_within(300 * MS));
    estimate.settle(20);
    // Refused at once: 10 permits are owed, and 6 are waited for ahead of it.
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
    drop(crate::support::estimate(&limiter, 4)?);
    assert_eq!(limiter.status().available, 6);
    Ok(())
}

#[test]
fn an_estimate_waits_in_line_and_its_dropped_wait_leaves_no_trace() -> Result<(), Refusal> {
    let (limiter, clock) = ten_per_second(10);
    limiter.try_acquire_many(10)?;
    let (mut first, mut second) = (spawn(limiter.reserve(5)?), spawn(limiter.reserve(5)?));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    clock.advance(500 * MS);
    assert!(first.is_woken());
    drop(first);
    assert_eq!(assert_ready_ok!(second.poll()).waited(), 500 * MS);
    second.into_inner().settle(0);
    assert_eq!(limiter.status().available, 5);
    Ok(())
}

#[test]
fn settled_without_being_claimed_an_estimate_leaves_the_line_and_is_charged() -> Result<(), Refusal> {
    let (limiter, clock) = ten_per_second(10);
    limiter.try_acquire_many(10)?;
    let (reservation, mut wait) = (limiter.reserve(5)?, spawn(limiter.acquire()));
    assert_pending!(wait.poll());
    reservation.settle(2);
    clock.advance(299 * MS);
    assert_pending!(wait.poll());
    clock.advance(MS);
    assert_ready_ok!(wait.poll());
    let unused = limiter.reserve(5)?;
    unused.settle(0);
    clock.advance(SECOND);
    assert_eq!(limiter.status().available, 10);
    Ok(())
}

/// Its permits went to the next in line first: a window granted its limit twice.
#[test]
fn an_estimate_that_is_due_is_settled_as_if_it_was_claimed() -> Result<(), Refusal> {
    let clock = ManualClock::new();
    let window = || {
        let policy = FixedWindow::new("10/10s".parse().expect("a rate"));
        RateLimiter::with_clock(policy, clock.clone())
    };
    for used in [10, 7, 15] {
        let limiter = window();
        let due = limiter.reserve(10)?;
        let behind = limiter.reserve(10)?;
        due.settle(used);
        assert_eq!(behind.due_in(), 10 * SECOND, "{used}");

        let limiter = window();
        let all = AllOf::new("calls", &limiter);
        let due = all.reserve(10).expect("available");
        let behind = all.reserve(10).expect("room in the queue");
        due.settle([("calls", used)]).expect("a member");
        assert_eq!(behind.due_in(), 10 * SECOND, "{used}");
    }
    let (a, b) = (window(), window());
    let all = AllOf::new("a", &a).with("b", &b);
    let up_to = all.reserve(AllRequest::from(Request::up_to(8))).expect("available");
    up_to.settle([("a", 5)]).expect("a member");
    // A member that is not named has used all that the claim got.
    assert_eq!((a.status().available, b.status().available), (5, 2));

    let limiter = window();
    let (unused, behind) = (limiter.reserve(10)?, limiter.reserve(10)?);
    unused.settle(0);
    assert_eq!(behind.due_in(), Duration::ZERO);
    Ok(())
}

#[test]
fn an_estimate_is_refused_within_its_time_and_passes_exempt() -> Result<(), Refusal> {
    let (limiter, clock) = ten_per_second(10);
    limiter.try_acquire_many(10)?;
    let late = limiter.reserve(Request::permits(3).within(200 * MS)).expect_err("due in 300 ms");
    assert_eq!(late.retry_after(), Some(100 * MS));
    let mut exempt = limiter.reserve(Request::permits(50).exempt())?;
    assert!(exempt.claim());
    exempt.settle(7);
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: (100 * MS).into() }));
    let mut accepted = limiter.reserve(Request::permits(3).within(300 * MS))?;
    limiter.debit(1);
    assert!(!accepted.claim(), "it would be too late now");
    clock.advance(SECOND);
    assert!(!accepted.claim(), "a refused reservation stays refused");
    assert_eq!(accepted.due_in(), Duration::MAX);
    accepted.settle(9);
    assert_eq!(limiter.status().available, 0);
    Ok(())
}

#[test]
fn a_thread_waits_for_an_estimate() -> Result<(), Refusal> {
    let (limiter, clock) = ten_per_second(10);
    limiter.try_acquire_many(10)?;
    let mut reservation = limiter.reserve(5)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let waited = reservation.blocking_claim();
            reservation.settle(1);
            waited
        });
        while limiter.status().waiting == 0 {
            std::thread::yield_now();
        }
        clock.advance(500 * MS);
        assert_eq!(thread.join().expect("no panic").map(Grant::waited), Ok(500 * MS));
    });
    assert_eq!(limiter.status().available, 4);
    Ok(())
}

#[test]
fn an_estimate_that_need_not_wait_gives_back_its_unused_part() -> Result<(), Refusal> {
    let (limiter, _clock) = ten_per_second(10);
    let mut estimate = spawn(limiter.reserve(8)?);
    assert_eq!(assert_ready_ok!(estimate.poll()).waited(), Duration::ZERO);
    estimate.into_inner().settle(3);
    assert_eq!(limiter.status().available, 7);
    Ok(())
}

/// Permits that overflowed meanwhile are lost, as if the estimate had never been taken. A refund in
/// between is taken into account.
#[test]
fn no_permits_are_invented() -> Result<(), Refusal> {
    let (limiter, clock) = ten_per_second(10);
    let estimate = crate::support::estimate(&limiter, 4)?;
    clock.advance(300 * MS);
    // Without the estimate the bucket would have been full all the time.
    estimate.settle(0);
    assert_eq!(limiter.status().available, 10);
    let estimate = crate::support::estimate(&limiter, 4)?;
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
    let estimate = crate::support::estimate_of_all(&api, [("tokens", 850)]).expect("full");
    assert!(estimate.costs().eq([("requests", 1), ("tokens", 850)]));
    let mut wait = spawn_pending(api.reserve([("tokens", 950)]).expect("later"));
    estimate.settle([("tokens", 50)]).expect("a member");
    assert_ready_ok!(wait.poll());
    wait.into_inner().settle([("tokens", 1950)]).expect("a member");
    assert_eq!(tokens.try_acquire(), Err(Refusal::Limited { retry_after: (1001 * MS).into() }));
    assert_eq!(requests.status().available, 8);
    clock.advance(2 * SECOND);
    api.reserve([("tokens", 1000)]).expect("later").settle([("tokens", 500)]).expect("a member");
    assert_eq!(tokens.status().available, 500, "charged without being claimed");
    let estimate = crate::support::estimate_of_all(&api, AllRequest::new()).expect("available");
    let wrong = estimate.settle([("token", 0)]).expect_err("wrong");
    assert_eq!(wrong.to_string(), r#""token" is not a member: the members are "requests", "tokens""#);
    assert_eq!(tokens.status().available, 499, "what was reserved is the cost");
}

#[test]
fn an_estimate_of_several_limiters_charges_what_was_used_and_not_reserved() {
    let (requests, clock) = ten_per_second(10);
    let tokens = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1000), 1000), clock);
    let api = AllOf::new("requests", &requests).with("tokens", &tokens);
    let left = || (requests.status().available, tokens.status().available);
    let estimate = crate::support::estimate_of_all(&api, [("tokens", 0)]).expect("full");
    assert_eq!(left(), (9, 1000));
    estimate.settle([("tokens", 300)]).expect("a member");
    assert_eq!(left(), (9, 700));
    crate::support::estimate_of_all(&api, [("tokens", 700)]).expect("available").settle_unused();
    assert_eq!(left(), (9, 700), "all of it is back");

    let exempt = || api.reserve(AllRequest::new().exempt()).expect("exempt");
    exempt().settle([("tokens", 300)]).expect("a member");
    let mut claimed = exempt();
    assert!(claimed.claim());
    claimed.settle([("tokens", 300)]).expect("a member");
    assert_eq!(left(), (9, 700), "exempt from charges, too");
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
    /// Settled at once, an estimate equals a grant of the actual cost.
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
                crate::support::estimate(&limiter, n).expect("enough").settle(used);
            } else {
                assert!(limiter.try_acquire_many(used).is_ok());
            }
            limiter.status()
        };
        let (found, expected) = (world(true), world(false));
        prop_assert_eq!(found.available, expected.available);
        // A cost is rounded up once for each charge.
        prop_assert!(found.full_in.abs_diff(expected.full_in) <= Duration::from_nanos(1), "{found:?} {expected:?}");
    }

    /// Whenever an estimate is settled, no more permits than the limit are granted.
    #[test]
    fn never_more_than_the_limit(kind in 0..7u8, acts in proptest::collection::vec((0..5u8, 1..6u32), 1..60)) {
        let clock = ManualClock::new();
        let limiter = RateLimiter::with_clock(policy(kind), clock.clone());
        let mut estimates = Vec::new();
        for (act, n) in acts {
            match act {
                0 => estimates.extend(crate::support::estimate(&limiter, n)),
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
