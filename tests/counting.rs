//! The counting limit: permits given back on drop, limits changed while they are out, and together with a rate.

use std::time::Duration;

use tidegate::{CountingLimit, ManualClock, Rate, RateLimiter, Refusal, TokenBucket};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_waiter_is_served_when_a_permit_is_dropped_in_order() {
    let limit = CountingLimit::new(2);
    let held = limit.try_acquire_many(2).expect("both");
    let mut large = spawn(limit.acquire_many(2));
    let mut small = spawn(limit.acquire());
    assert_pending!(large.poll());
    assert_pending!(small.poll());
    assert_eq!(limit.try_acquire().expect_err("refused"), Refusal::InUse { limit: 2 });
    drop(held);
    let held = assert_ready_ok!(large.poll());
    assert_eq!(held.permits(), 2);
    assert_pending!(small.poll());
    drop(held);
    drop(assert_ready!(small.poll()));
}

#[test]
fn a_dropped_wait_leaves_no_trace() {
    let limit = CountingLimit::new(1);
    let held = limit.try_acquire().expect("one");
    let mut first = spawn(limit.acquire());
    let mut second = spawn(limit.acquire());
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(held);
    // Granted, and not seen.
    drop(first);
    drop(assert_ready!(second.poll()));
    assert_eq!(limit.available(), 1);
}

#[test]
fn a_lower_limit_holds_when_what_is_out_comes_back() {
    let limit = CountingLimit::new(5);
    let mut held: Vec<_> = (0..4).map(|_| limit.try_acquire().expect("one")).collect();
    limit.set_limit(2);
    assert_eq!((limit.limit(), limit.available()), (2, 0));
    let mut waiter = spawn(limit.acquire());
    assert_pending!(waiter.poll());
    held.truncate(2);
    assert_pending!(waiter.poll());
    held.truncate(1);
    drop(assert_ready!(waiter.poll()));
    drop(held);
    assert_eq!(limit.available(), 2);
}

#[test]
fn a_limit_lowered_and_raised_is_as_before() {
    let limit = CountingLimit::new(5);
    let held = limit.try_acquire_many(4).expect("four");
    limit.set_limit(1);
    limit.set_limit(6);
    assert_eq!(limit.available(), 2);
    drop(held);
    assert_eq!(limit.available(), 6);
}

#[test]
fn what_can_never_be_had_is_refused() {
    let limit = CountingLimit::new(3);
    assert_eq!(
        limit.try_acquire_many(4).expect_err("refused"),
        Refusal::ExceedsBurst { requested: 4, burst: 3 }
    );
    assert_eq!(limit.try_acquire_many(0).expect_err("refused"), Refusal::ZeroPermits);
    let none = CountingLimit::new(0);
    let mut waiter = spawn(none.acquire());
    assert_pending!(waiter.poll());
    none.set_limit(1);
    drop(assert_ready!(waiter.poll()));
    assert_eq!(CountingLimit::new(u32::MAX).available(), CountingLimit::MAX_LIMIT);
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_in_time() {
    let limit = CountingLimit::new(1);
    let held = limit.acquire().await;
    let start = tokio::time::Instant::now();
    assert_eq!(limit.try_acquire_within(SECOND).await.expect_err("refused"), Refusal::InUse { limit: 1 });
    assert_eq!(start.elapsed(), SECOND);
    drop(held);
    assert!(limit.try_acquire_within(SECOND).await.is_ok());
}

#[test]
fn together_with_a_rate_it_is_both_or_neither() {
    let clock = ManualClock::new();
    let rate = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), clock.clone());
    let limit = CountingLimit::new(2);
    let first = limit.try_acquire_with(&rate).expect("both");
    // Refused by the rate: nothing is in use.
    assert_eq!(
        limit.try_acquire_with(&rate).expect_err("refused"),
        Refusal::Limited { retry_after: SECOND.into() }
    );
    assert_eq!(limit.available(), 1);
    let mut waiter = spawn(limit.acquire_with(&rate));
    assert_pending!(waiter.poll());
    clock.advance(SECOND);
    let second = assert_ready!(waiter.poll());
    clock.advance(SECOND);
    // Refused by the limit: the rate keeps its permit.
    assert_eq!(limit.try_acquire_with(&rate).expect_err("refused"), Refusal::InUse { limit: 2 });
    drop((first, second));
    assert!(limit.try_acquire_with(&rate).is_ok());
}
