//! A single counting limit behind an `AnyLimiter`.

use std::sync::Arc;
use std::time::Duration;

use crate::support::log::Log;
use crate::support::spawn_pending;
use tidegate::{
    AllOf, AllRefusal, AllRequest, AnyLimiter, CancelToken, CountingLimit, ManualClock, Rate, RateLimiter,
    Refusal, Request, TokenBucket,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};

fn limited(limit: u32) -> (AnyLimiter, CountingLimit) {
    let calls = CountingLimit::new(limit);
    (AnyLimiter::from(calls.clone()), calls)
}

#[test]
fn permits_go_back_when_they_are_dropped() -> Result<(), AllRefusal> {
    let (any, calls) = limited(5);
    let (one, three) = (any.try_acquire()?, any.try_acquire_many(3)?);
    assert_eq!((one.permits(), three.permits(), calls.available()), (1, 3, 1));
    let refusal = any.try_acquire_many(2).expect_err("one is left");
    assert_eq!(refusal, AllRefusal::from(Refusal::InUse { limit: 5 }), "no member is named");
    drop(one);
    drop(any.try_acquire_many(2)?);
    drop(three);
    assert_eq!(calls.available(), 5);
    assert_eq!(any.blocking_acquire_many(5)?.permits(), 5);
    Ok(())
}

#[test]
fn a_waiter_is_served_when_permits_come_back() -> Result<(), AllRefusal> {
    let (any, calls) = limited(2);
    let held = calls.try_acquire_many(2)?;
    let mut wait = spawn_pending(any.acquire_many(2));
    assert_eq!(any.status().waiting, 1);
    drop(held);
    assert!(wait.is_woken());
    let permits = assert_ready_ok!(wait.poll());
    assert_eq!(calls.available(), 0);
    drop(permits);
    let mut dropped = spawn(any.acquire());
    drop((assert_ready_ok!(dropped.poll()), dropped));
    assert_eq!(calls.available(), 2);
    Ok(())
}

#[test]
fn a_reservation_has_its_permits_until_it_is_settled() -> Result<(), AllRefusal> {
    let (any, calls) = limited(2);
    let held = calls.try_acquire_many(2)?;
    let mut reservation = spawn(any.reserve(2)?);
    assert_eq!(reservation.due_in(), Duration::ZERO, "the time at which permits are given back is unknown");
    assert_pending!(reservation.poll());
    drop(held);
    assert_eq!(assert_ready_ok!(reservation.poll()).permits(), 2);
    assert_eq!(calls.available(), 0);
    reservation.into_inner().settle(1)?;
    assert_eq!(calls.available(), 2);
    assert!(any.reserve(1)?.settle([("calls", 1)]).is_err());
    assert_eq!(calls.available(), 2);
    Ok(())
}

#[test]
fn a_pause_holds_up_the_handle_and_a_priority_counts() -> Result<(), AllRefusal> {
    let (any, calls) = limited(1);
    any.pause_for(Duration::from_secs(3600))?;
    let refusal = any.try_acquire().expect_err("paused").refusal();
    assert!(matches!(refusal, Some(Refusal::Paused { .. })), "{refusal:?}");
    assert!(any.status().paused_for > Duration::from_secs(3599));
    assert!(any.clone().resume());

    let held = calls.try_acquire()?;
    let mut low = spawn_pending(any.acquire_many(Request::permits(1)));
    let mut high = spawn_pending(any.acquire_many(Request::permits(1).priority(1)));
    drop(held);
    assert_pending!(low.poll());
    drop(assert_ready_ok!(high.poll()));
    drop(assert_ready_ok!(low.poll()));
    Ok(())
}

#[test]
fn closing_closes_the_limit() -> Result<(), AllRefusal> {
    let (any, calls) = limited(1);
    let held = any.try_acquire()?;
    let mut wait = spawn_pending(any.acquire());
    assert!(any.close()? && calls.is_closed() && any.is_closed());
    assert_eq!(assert_ready_err!(wait.poll()).refusal(), Some(Refusal::Closed));
    assert!(!any.close()?);
    drop(held);
    Ok(())
}

#[test]
fn a_request_of_any_kind_is_answered() -> Result<(), AllRefusal> {
    let (any, calls) = limited(3);
    assert_eq!(any.try_acquire_many(0).expect_err("none").refusal(), Some(Refusal::ZeroPermits));
    let too_many = any.try_acquire_many(u32::MAX).expect_err("more than there are").refusal();
    assert!(matches!(too_many, Some(Refusal::ExceedsLimit { .. })), "{too_many:?}");
    assert!(matches!(any.try_acquire_many([("calls", 1)]), Err(AllRefusal::NoMember { .. })));
    let fewest = any.try_acquire_many(Request::up_to(10))?;
    assert_eq!((fewest.permits(), calls.available()), (1, 2));
    let exempt = any.try_acquire_many(Request::permits(9).exempt())?;
    assert_eq!((exempt.permits(), calls.available()), (0, 2));
    any.debit(AllRequest::from(7))?;
    assert_eq!(any.keep_at_most("limit", 0)?, 0);
    assert!(any.keep_at_most("other", 0).is_err());
    let status = any.status();
    assert_eq!(status.member("limit").map(|limit| (limit.limit, limit.available)), Some((3, 2)));
    assert_eq!(status.members.len(), 1);
    Ok(())
}

#[test]
fn the_observer_of_the_limit_is_notified_of_each_call_once() -> Result<(), AllRefusal> {
    let (any, calls) = limited(3);
    let log = Arc::new(Log::without_waits());
    // After the handle was made, through another clone.
    assert!(calls.observe(log.clone()));
    let held = (any.try_acquire_many(2)?, any.try_acquire_many(Request::up_to(10))?);
    assert!(any.try_acquire_many(2).is_err() && any.try_acquire_many(4).is_err());
    drop(any.try_acquire_many(Request::permits(5).exempt())?);
    assert_eq!(
        log.take(),
        [
            "granted 2",
            "granted 1",
            "refused 2: all 3 permits are in use",
            "refused 4: 4 permits requested, the limit is 3",
            "exempted 5",
        ]
    );
    let (mut wait, dropped) = (spawn(any.acquire_many(2)), any.reserve([("limit", 1)])?);
    assert_pending!(wait.poll());
    drop(dropped);
    drop(held);
    drop(assert_ready_ok!(wait.poll()));
    assert_eq!(log.take(), ["cancelled 1", "granted 2"]);
    let token = CancelToken::new();
    token.cancel();
    assert!(token.run(|| any.blocking_acquire_many(2)).is_err());
    any.pause_for(Duration::MAX)?;
    assert!(any.resume());
    any.close()?;
    assert!(any.try_acquire().is_err());
    assert_eq!(
        log.take(),
        [
            "cancelled 2",
            &format!("paused for {:?}", Duration::MAX),
            "resumed",
            "refused 1: closed, no request is granted any more",
        ]
    );
    Ok(())
}

/// A request behind one that waits for permits in use was told to retry after 0 s.
#[test]
fn a_request_behind_a_waiter_for_permits_in_use_has_no_retry_after() -> Result<(), AllRefusal> {
    let rate = RateLimiter::new(TokenBucket::new(Rate::per_second(1000), 1000));
    for held in [4, 5] {
        for is_alone in [true, false] {
            let calls = CountingLimit::new(5);
            let any = match is_alone {
                true => AnyLimiter::from(calls.clone()),
                false => AllOf::new("rate", &rate).with_counting("in flight", &calls).into(),
            };
            let of = |n: u32| match is_alone {
                true => AllRequest::from(n),
                false => AllRequest::new().cost("in flight", n),
            };
            let _held = any.try_acquire_many(of(held))?;
            let _wait = spawn_pending(any.acquire_many(of(4)));
            for asked in [1, 2] {
                let refusal = any.try_acquire_many(of(asked)).expect_err("a request waits");
                assert_eq!(refusal.refusal(), Some(Refusal::InUse { limit: 5 }), "{held}, {asked}");
                assert_eq!(refusal.retry_after_secs(), None);
                assert_eq!(refusal.member(), (!is_alone).then_some("in flight"));
            }
        }
    }
    Ok(())
}

/// A request that asks nothing of the limit whose permits another request waits for.
#[test]
fn a_request_behind_a_waiter_for_another_limit_names_that_limit() -> Result<(), AllRefusal> {
    let (jobs, calls) = (CountingLimit::new(2), CountingLimit::new(100));
    let both = AllOf::new("calls", &RateLimiter::new(TokenBucket::new(Rate::per_second(1000), 1000)))
        .with_counting("jobs", &jobs)
        .with_counting("in flight", &calls);
    let _held = jobs.try_acquire_many(2).expect("free permits");
    let _wait = spawn_pending(both.acquire());
    let refusal = both.try_acquire_many([("jobs", 0), ("in flight", 1)]).expect_err("a request waits");
    assert_eq!((refusal.refusal(), refusal.member()), (Some(Refusal::InUse { limit: 2 }), Some("jobs")));
    Ok(())
}

/// A waiter that another one moves behind its maximum wait is refused by its rate, although no
/// permit is in use, and although an equal call could wait for long enough.
#[test]
fn a_waiter_that_is_moved_back_is_not_refused_by_permits_in_use() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let rate = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(10), 1), clock.clone());
    let both = AllOf::new("rate", &rate).with_counting("in flight", &CountingLimit::new(100));
    drop(both.try_acquire()?);
    let low = Request::permits(1).priority(-1).within(Duration::from_millis(150));
    let mut low = spawn_pending(both.acquire_many(low));
    clock.advance(Duration::from_millis(50));
    let _high = spawn_pending(both.acquire_many(Request::permits(1).priority(1)));
    clock.advance(Duration::from_millis(10));
    let refusal = assert_ready_err!(low.poll());
    assert!(matches!(refusal.refusal(), Some(Refusal::Limited { .. })), "{refusal:?}");
    assert_eq!(refusal.member(), Some("rate"));
    Ok(())
}
