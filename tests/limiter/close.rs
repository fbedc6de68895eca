//! Closing: a closed limiter grants nothing more, and no request waits for it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support::{spawn_pending, without_burst};
use tidegate::{
    AllOf, AllRefusal, CountingLimit, ManualClock, Rate, RateLimiter, Refusal, Request, Statistics,
    TokenBucket,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn all_waiters_are_refused_at_once() -> Result<(), Refusal> {
    let (limiter, _clock) = without_burst(Rate::per_hour(1));
    limiter.try_acquire()?;
    // More waiters than are refused under one lock.
    let mut waits: Vec<_> = (0..3000).map(|_| spawn(limiter.acquire())).collect();
    waits.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    let (mut reservation, mut other) = (limiter.reserve(1)?, limiter.reserve(1)?);
    let blocked = thread::spawn({
        let limiter = limiter.clone();
        move || limiter.blocking_acquire()
    });
    while limiter.status().waiting < 3003 {
        thread::yield_now();
    }
    assert!(!limiter.is_closed());
    assert!(limiter.close());
    assert!(limiter.is_closed() && !limiter.close());
    for wait in &mut waits {
        assert!(wait.is_woken());
        assert_eq!(assert_ready!(wait.poll()), Err(Refusal::Closed));
    }
    assert_eq!(blocked.join().expect("no panic"), Err(Refusal::Closed));
    assert_eq!(reservation.due_in(), Duration::MAX);
    assert!(!reservation.claim());
    assert_eq!(other.blocking_claim(), Err(Refusal::Closed));
    let status = limiter.status();
    assert_eq!((status.available, status.waiting, status.next_in), (0, 0, Duration::MAX));
    Ok(())
}

#[test]
fn no_call_gets_a_permit_any_more() {
    let (limiter, clock) = without_burst(Rate::per_second(1));
    limiter.close();
    let never = |limiter: &RateLimiter<_, _>| {
        assert_eq!(limiter.try_acquire(), Err(Refusal::Closed));
        assert_eq!(limiter.try_acquire_many(Request::permits(1).priority(9)), Err(Refusal::Closed));
        assert_eq!(assert_ready!(spawn(limiter.acquire()).poll()), Err(Refusal::Closed));
        assert_eq!(assert_ready!(spawn(limiter.acquire_within(SECOND)).poll()), Err(Refusal::Closed));
        assert_eq!(assert_ready!(spawn(limiter.acquire_owned(3)).poll()), Err(Refusal::Closed));
        assert_eq!(limiter.blocking_acquire(), Err(Refusal::Closed));
        assert_eq!(limiter.reserve(1).map(drop), Err(Refusal::Closed));
    };
    never(&limiter);
    // Nothing opens it again.
    assert!(!limiter.resume());
    limiter.pause_for(SECOND);
    limiter.refund(1);
    limiter.reset();
    limiter.set_rate(Rate::UNLIMITED);
    limiter.set_shadow(true);
    clock.advance(100 * SECOND);
    never(&limiter);
    assert!(limiter.is_closed());
    let exempt = limiter.try_acquire_many(Request::permits(1).exempt());
    assert_eq!(exempt.map(tidegate::Grant::permits), Ok(0));
    assert!(!Refusal::Closed.may_retry());
    assert_eq!(Refusal::Closed.retry_after(), None);
}

#[test]
fn a_grant_from_before_stays() -> Result<(), Refusal> {
    let (limiter, clock) = without_burst(Rate::per_second(1));
    limiter.try_acquire()?;
    let mut wait = spawn_pending(limiter.acquire());
    let mut reservation = limiter.reserve(1)?;
    clock.advance(2 * SECOND);
    limiter.close();
    assert_eq!(assert_ready_ok!(wait.poll()).permits(), 1);
    assert!(reservation.claim());
    Ok(())
}

#[test]
fn a_refusal_distinguishes_a_pause_from_a_limit() -> Result<(), Refusal> {
    let (limiter, clock) = without_burst(Rate::per_second(1));
    let statistics = Arc::new(Statistics::new());
    limiter.observe(statistics.clone());
    limiter.try_acquire()?;
    let limited = Refusal::Limited { retry_after: SECOND.into() };
    assert_eq!(limiter.try_acquire(), Err(limited));
    let mut late = spawn_pending(limiter.acquire_within(SECOND));
    limiter.pause_for(10 * SECOND);
    // The pause makes this waiter too late. The debt of a second remains owed after the pause.
    assert_eq!(assert_ready!(late.poll()), Err(Refusal::Paused { retry_after: (10 * SECOND).into() }));
    let paused = Refusal::Paused { retry_after: (11 * SECOND).into() };
    assert_eq!(limiter.try_acquire(), Err(paused));
    let mut within = spawn(limiter.acquire_within(SECOND));
    assert_eq!(assert_ready!(within.poll()), Err(Refusal::Paused { retry_after: (10 * SECOND).into() }));
    assert!(paused.may_retry());
    assert_eq!(paused.retry_after_secs(), Some(11));
    clock.advance(11 * SECOND);
    limiter.try_acquire()?;
    limiter.close();
    assert_eq!(limiter.try_acquire(), Err(Refusal::Closed));
    let told = statistics.snapshot();
    assert_eq!((told.limited, told.paused, told.closed, told.refused()), (1, 3, 1, 5));
    Ok(())
}

#[test]
fn refusals_read_plainly() {
    let never = tidegate::Nanos::MAX;
    for (refusal, text) in [
        (Refusal::Closed, "closed, no request is granted any more"),
        (Refusal::Paused { retry_after: SECOND.into() }, "paused, retry after 1s"),
        (Refusal::Paused { retry_after: never }, "paused until the pause is ended"),
        (Refusal::Limited { retry_after: never }, "limited, no permit will become available"),
        (Refusal::InUse { limit: 1 }, "the only permit is in use"),
        (Refusal::InUse { limit: 2 }, "all 2 permits are in use"),
        #[cfg(feature = "keyed")]
        (Refusal::TooManyKeys { limit: 2 }, "no room for a new key, all 2 keys are limited"),
        (Refusal::ExceedsLimit { requested: 2, limit: 1 }, "2 permits requested, the limit is 1"),
        (Refusal::QueueFull { retry_after: never }, "queue is full, retry time unknown"),
    ] {
        assert_eq!(refusal.to_string(), text);
    }
}

#[test]
fn a_closed_member_refuses_the_waiters_of_a_composite() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let bucket = || RateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 1), clock.clone());
    for closes_first in [true, false] {
        let (a, b, calls) = (bucket(), bucket(), CountingLimit::new(1));
        let all = AllOf::new("a", &a).with("b", &b).with_counting("calls", &calls);
        let _permits = all.try_acquire()?;
        let mut wait = spawn_pending(all.acquire());
        if closes_first {
            a.close()
        } else {
            b.close()
        };
        let name = if closes_first { "a" } else { "b" };
        let refusal = assert_ready!(wait.poll()).map(drop).expect_err("closed");
        assert_eq!((refusal.member(), refusal.refusal()), (Some(name), Some(Refusal::Closed)));
        let refusal = all.try_acquire().map(drop).expect_err("closed");
        assert_eq!((refusal.member(), refusal.refusal()), (Some(name), Some(Refusal::Closed)));
    }
    Ok(())
}

#[test]
fn a_composite_is_closed_by_itself() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let a = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), clock.clone());
    let all = AllOf::new("a", &a);
    let _permits = all.try_acquire()?;
    let mut wait = spawn_pending(all.acquire());
    assert!(all.close() && all.is_closed());
    let closed = AllRefusal::from(Refusal::Closed);
    assert_eq!(assert_ready!(wait.poll()).map(drop), Err(closed.clone()));
    assert_eq!(all.try_acquire().map(drop), Err(closed));
    clock.advance(SECOND);
    assert!(!a.is_closed() && a.try_acquire().is_ok());
    Ok(())
}

#[test]
fn a_counting_limit_is_closed() -> Result<(), Refusal> {
    let limit = CountingLimit::new(2);
    let rate = RateLimiter::with_clock(TokenBucket::new(Rate::UNLIMITED, 1), ManualClock::new());
    let all = AllOf::new("rate", &rate).with_counting("calls", &limit);
    let held = limit.try_acquire_many(2)?;
    let mut composite = spawn_pending(all.acquire());
    let mut waits: Vec<_> = (0..3000).map(|_| spawn(Box::pin(limit.acquire()))).collect();
    waits.iter_mut().for_each(|wait| assert!(wait.poll().is_pending()));
    let mut large = spawn_pending(Box::pin(limit.acquire_many(2)));
    assert!(limit.close() && limit.is_closed() && !limit.close());
    for wait in &mut waits {
        assert_eq!(assert_ready!(wait.poll()).map(drop), Err(Refusal::Closed));
    }
    assert_eq!(assert_ready!(large.poll()).map(drop), Err(Refusal::Closed));
    let refusal = assert_ready!(composite.poll()).map(drop).expect_err("closed");
    assert_eq!((refusal.member(), refusal.refusal()), (Some("calls"), Some(Refusal::Closed)));
    drop(held);
    limit.set_limit(u32::MAX);
    assert_eq!(limit.try_acquire().map(drop), Err(Refusal::Closed));
    assert_eq!(limit.available(), 0);
    // Lowering and raising a limit is not mistaken for closing it.
    let other = CountingLimit::new(u32::MAX);
    let held = other.try_acquire_many(u32::MAX)?;
    other.set_limit(0);
    assert!(!other.is_closed());
    drop(held);
    other.set_limit(1);
    assert!(other.try_acquire().is_ok());
    Ok(())
}
