//! Composites by example: which requests are refused, which wait, and what they leave behind. All
//! tests use the manual clock.

use std::time::Duration;

use crate::support::{Bucket, MS, bucket, bucket_at, spawn_pending};
use tidegate::{
    AllOf, AllRefusal, AllRequest, AnyPolicy, CountingLimit, DenyAll, FixedWindow, LeakyBucket, ManualClock,
    Rate, RateLimiter, Refusal, SlidingEstimate, SlidingLog, SlidingWindow, SmoothBursty, SmoothWarmingUp,
    TokenBucket,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

/// Asserts that this member refuses the request, for `retry_after`.
#[track_caller]
fn assert_limited<T: std::fmt::Debug>(answer: Result<T, AllRefusal>, name: &str, retry_after: Duration) {
    let refusal = answer.expect_err("refused");
    assert_eq!((refusal.member(), refusal.retry_after()), (Some(name), Some(retry_after)));
}

/// Returns limiters of 1 per second and 1 per `other`, both without a burst, both used up.
fn used_up(clock: &ManualClock, other: Duration) -> (Bucket, Bucket, AllOf<ManualClock>) {
    let a = bucket(clock, 1, 1);
    let b = bucket_at(clock, Rate::new(1, other).expect("a rate"), 1);
    assert!(a.try_acquire().is_ok() && b.try_acquire().is_ok());
    let both = AllOf::new("a", &a).with("b", &b);
    (a, b, both)
}

#[test]
fn ten_per_second_and_a_hundred_per_minute() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let second = bucket(&clock, 10, 10);
    let minute = bucket_at(&clock, Rate::per_minute(100), 100);
    let both = AllOf::new("per second", &second).with("per minute", &minute);
    let mut granted = [0; 30];
    for second in &mut granted {
        for _ in 0..10 {
            while both.try_acquire().is_ok() {
                *second += 1;
            }
            clock.advance(100 * MS);
        }
    }
    // The burst, then the pace of the limit per second. After the first 100 permits and what
    // accrued meanwhile, the pace of the limit per minute: one per 600 ms.
    assert_eq!(granted[..12], [19, 10, 10, 10, 10, 10, 10, 10, 10, 10, 9, 1]);
    assert_eq!(granted.iter().sum::<u32>(), 100 + 299 / 6);
    Ok(())
}

#[test]
fn awaited_it_is_paced_by_the_second_and_then_by_the_minute() {
    let clock = ManualClock::new();
    let second = bucket(&clock, 10, 1);
    let minute = bucket_at(&clock, Rate::per_minute(60), 20);
    let both = AllOf::new("per second", &second).with("per minute", &minute);
    let mut waits: Vec<_> = (0..40).map(|_| spawn(both.acquire())).collect();
    let mut times = Vec::new();
    for wait in &mut waits {
        if let std::task::Poll::Ready(permits) = wait.poll() {
            times.push(permits.expect("granted").waited());
        }
    }
    clock.advance(30 * SECOND);
    for wait in &mut waits[times.len()..] {
        let permits = assert_ready_ok!(wait.poll());
        times.push(permits.waited());
    }
    // The futures are polled late, so `waited` shows when the grant was seen. The limiters' status
    // shows when it was made.
    assert_eq!(times.len(), 40);
    assert_eq!(minute.status().available, 10);
}

#[test]
fn a_users_limit_and_that_of_all() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let all = bucket(&clock, 3, 3);
    let users: Vec<_> = (0..2).map(|_| bucket(&clock, 2, 2)).collect();
    let of: Vec<_> = users.iter().map(|user| AllOf::new("user", user).with("everybody", &all)).collect();
    let _permits = (of[0].try_acquire()?, of[0].try_acquire()?);
    assert_limited(of[0].try_acquire(), "user", 500 * MS);
    assert_eq!(all.status().available, 1, "the refusal took nothing");
    let _permit = of[1].try_acquire()?;
    assert_eq!(users[1].status().available, 1);
    assert_limited(of[1].try_acquire(), "everybody", Duration::from_nanos(333_333_333));
    assert_eq!(users[1].status().available, 1, "the refusal took nothing");
    Ok(())
}

#[test]
fn retry_after_is_exact_for_every_mix_of_policies() {
    let make = |index: usize, rate: Rate| -> AnyPolicy {
        match index {
            0 => SmoothBursty::new(rate).into(),
            1 => SmoothWarmingUp::new(rate, 4 * SECOND).into(),
            2 => TokenBucket::new(rate, 3).into(),
            3 => LeakyBucket::new(rate).into(),
            4 => FixedWindow::new(rate).into(),
            5 => SlidingWindow::new(rate, 5).into(),
            6 => SlidingEstimate::new(rate).into(),
            _ => SlidingLog::new(rate).into(),
        }
    };
    for (first, second) in (0..8).flat_map(|first| (0..8).map(move |second| (first, second))) {
        let clock = ManualClock::new();
        let a = RateLimiter::with_clock(make(first, Rate::per_second(3)), clock.clone());
        let b = RateLimiter::with_clock(make(second, Rate::per_minute(7)), clock.clone());
        let both = AllOf::new("a", &a).with("b", &b);
        for _ in 0..10 {
            while both.try_acquire().is_ok() {}
            let refusal = both.try_acquire().expect_err("used up");
            let wait = refusal.retry_after().expect("a time");
            clock.advance(wait - Duration::from_nanos(1));
            assert!(both.try_acquire().is_err(), "{first} and {second}: too early");
            clock.advance(Duration::from_nanos(1));
            assert!(both.try_acquire().is_ok(), "{first} and {second}: {refusal}");
        }
    }
}

#[test]
fn each_member_has_its_own_weight_and_zero_is_not_asked() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let requests = bucket(&clock, 1, 2);
    let tokens = bucket(&clock, 100, 1000);
    let api = AllOf::new("requests", &requests).with("tokens", &tokens);
    let _permits = api.try_acquire_many([("tokens", 850)])?;
    assert_limited(api.try_acquire_many([("tokens", 850)]), "tokens", 7 * SECOND);
    let _permits = api.try_acquire_many([("requests", 0), ("tokens", 150)])?;
    assert_eq!((requests.status().available, tokens.status().available), (1, 0));
    let never = api.try_acquire_many([("tokens", 1001)]).expect_err("too large");
    assert_eq!(never.to_string(), "tokens: 1001 permits requested, the limit is 1000");
    assert!(!never.may_retry());
    let wrong = api.try_acquire_many([("token", 2)]).expect_err("wrong");
    let members = ["requests".into(), "tokens".into()].into();
    assert_eq!(wrong, AllRefusal::NoMember { name: "token".into(), members });
    assert_eq!(wrong.to_string(), r#""token" is not a member: the members are "requests", "tokens""#);
    assert!(!wrong.may_retry());
    assert_eq!(
        api.try_acquire_many([("requests", 0), ("tokens", 0)]).expect_err("zero").refusal(),
        Some(Refusal::ZeroPermits)
    );
    assert_ready_err!(spawn(api.acquire_many([("token", 1)])).poll());
    Ok(())
}

#[test]
fn permits_in_use_are_given_back_on_drop() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let rate = bucket(&clock, 10, 10);
    let in_flight = CountingLimit::new(1);
    let both = AllOf::new("rate", &rate).with_counting("in flight", &in_flight);
    let permits = both.try_acquire()?;
    let refusal = both.try_acquire().expect_err("in use");
    assert_eq!(refusal.to_string(), "in flight: the only permit is in use");
    assert_eq!(rate.status().available, 9, "the refusal took nothing");
    drop(permits);
    let _permits = both.try_acquire()?;
    Ok(())
}

#[test]
fn a_freed_permit_in_use_wakes_a_waiter() {
    let clock = ManualClock::new();
    let rate = bucket(&clock, 10, 10);
    let in_flight = CountingLimit::new(1);
    let both = AllOf::new("rate", &rate).with_counting("in flight", &in_flight);
    let permits = both.try_acquire().expect("the first");
    let (mut first, mut second) = (spawn_pending(both.acquire()), spawn_pending(both.acquire()));
    clock.advance(SECOND);
    assert!(!first.is_woken());
    // Its wait takes no permits of the rate.
    assert_eq!(rate.status().available, 10);
    drop(permits);
    assert!(first.is_woken() && !second.is_woken());
    let permits = assert_ready_ok!(first.poll());
    assert_pending!(second.poll());
    drop(permits);
    drop(assert_ready_ok!(second.poll()));
    assert_eq!((in_flight.available(), rate.status().available), (1, 8));
}

#[test]
fn a_time_limit_counts_for_permits_in_use_too() {
    let clock = ManualClock::new();
    let rate = bucket(&clock, 10, 10);
    let in_flight = CountingLimit::new(1);
    let both = AllOf::new("rate", &rate).with_counting("in flight", &in_flight);
    let _permits = both.try_acquire().expect("the first");
    let patient = spawn_pending(both.acquire());
    let mut second = spawn_pending(both.acquire_within(SECOND));
    let mut first = spawn_pending(both.acquire_within(500 * MS));
    clock.advance(500 * MS);
    let refusal = assert_ready_err!(first.poll());
    assert_eq!(refusal.refusal(), Some(Refusal::InUse { limit: 1 }));
    assert_pending!(second.poll());
    drop(patient);
    clock.advance(500 * MS);
    assert_ready_err!(second.poll());
    assert_eq!(rate.status().available, 10);
}

#[test]
fn a_dropped_wait_leaves_no_trace() {
    let clock = ManualClock::new();
    let (a, b, both) = used_up(&clock, 10 * SECOND);
    let waits: Vec<_> = (0..100).map(|_| spawn_pending(both.acquire())).collect();
    let mut plain = spawn_pending(a.acquire());
    clock.advance(500 * MS);
    drop(waits);
    clock.advance(500 * MS);
    assert_ready_ok!(plain.poll());
    assert_eq!(a.try_acquire(), Err(Refusal::Limited { retry_after: SECOND.into() }));
    assert_eq!(b.try_acquire(), Err(Refusal::Limited { retry_after: (9 * SECOND).into() }));
    assert_eq!((a.status().waiting, b.status().waiting, both.status().waiting), (0, 0, 0));
}

#[test]
fn a_grant_that_was_not_seen_goes_back_to_all() {
    let clock = ManualClock::new();
    let (a, b, both) = used_up(&clock, 10 * SECOND);
    let first = spawn_pending(both.acquire());
    clock.advance(10 * SECOND);
    assert!(first.is_woken());
    let mut plain = spawn_pending(a.acquire());
    drop(first);
    assert!(plain.is_woken());
    assert_ready_ok!(plain.poll());
    assert!(b.try_acquire().is_ok() && a.try_acquire().is_err());
}

#[test]
fn a_leaked_wait_holds_up_no_request_beyond_its_turn() {
    let clock = ManualClock::new();
    let (a, _b, both) = used_up(&clock, 3 * SECOND);
    std::mem::forget(spawn_pending(both.acquire()));
    let mut second = spawn_pending(both.acquire());
    let mut plain = spawn_pending(a.acquire());
    clock.advance(SECOND);
    assert_ready_ok!(plain.poll());
    clock.advance(5 * SECOND);
    drop(assert_ready_ok!(second.poll()));
}

#[test]
fn a_composite_that_is_gone_with_leaked_waits_leaves_no_seats() {
    let clock = ManualClock::new();
    let (a, b, both) = used_up(&clock, Duration::from_secs(3600));
    // Its gate lives on in the leaked future, and is served in order.
    std::mem::forget(spawn_pending(both.acquire()));
    drop(both);
    clock.advance(SECOND);
    assert!(a.try_acquire().is_ok());
    clock.advance(Duration::from_secs(3600));
    assert!(b.try_acquire().is_err(), "its turn");
    clock.advance(Duration::from_secs(3600));
    assert!(b.try_acquire().is_ok() && a.try_acquire().is_ok());
}

/// A composite waits an hour for one member. The other member works as if no request waited.
#[test]
fn a_wait_for_one_member_does_not_hold_up_the_other() {
    let clock = ManualClock::new();
    let (a, _b, both) = used_up(&clock, Duration::from_secs(3600));
    let mut wait = spawn_pending(both.acquire());
    for _ in 1..3599 {
        let mut plain = spawn_pending(a.acquire());
        clock.advance(SECOND);
        assert_ready_ok!(plain.poll());
    }
    // Only the last permit before the composite's time is kept for it.
    assert_pending!(wait.poll());
    let mut plain = spawn_pending(a.acquire());
    clock.advance(SECOND);
    assert_ready_ok!(plain.poll());
    let mut plain = spawn_pending(a.acquire());
    clock.advance(SECOND);
    assert!(wait.is_woken() && !plain.is_woken());
    drop(assert_ready_ok!(wait.poll()));
    clock.advance(SECOND);
    assert_ready_ok!(plain.poll());
}

/// Two members with permits that are never available at the same time, each with plain waiters all
/// the time.
#[test]
fn a_composite_does_not_starve() {
    let clock = ManualClock::new();
    let a = bucket(&clock, 1, 1);
    assert!(a.try_acquire().is_ok());
    clock.advance(500 * MS);
    let b = bucket(&clock, 1, 1);
    assert!(b.try_acquire().is_ok());
    let mut crowd: Vec<_> = (0..10).flat_map(|_| [&a, &b]).map(|one| spawn(one.acquire_owned(1))).collect();
    crowd.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    let both = AllOf::new("a", &a).with("b", &b);
    let mut wait = spawn_pending(both.acquire());
    let mut seconds = 0;
    while !wait.is_woken() {
        clock.advance(100 * MS);
        seconds += 1;
        for (index, other) in crowd.iter_mut().enumerate() {
            if other.is_woken() && other.poll().is_ready() {
                *other = spawn(if index % 2 == 0 { &a } else { &b }.acquire_owned(1));
                assert_pending!(other.poll());
            }
        }
        assert!(seconds < 150, "in its turn, behind ten");
    }
    drop(assert_ready_ok!(wait.poll()));
}

/// Waiters are served in order, and a `try_` overtakes no waiter.
#[test]
fn it_stands_in_the_line_of_each_member() {
    let clock = ManualClock::new();
    let (a, b, both) = used_up(&clock, SECOND);
    let mut before = spawn_pending(a.acquire());
    let mut wait = spawn_pending(both.acquire());
    let mut behind = spawn_pending(b.acquire_many(1));
    clock.advance(SECOND);
    assert_ready_ok!(before.poll());
    // A permit of `b` is due that the composite cannot use yet, and another permit is available in
    // time.
    assert_ready_ok!(behind.poll());
    assert_eq!(a.try_acquire(), Err(Refusal::Limited { retry_after: (2 * SECOND).into() }));
    clock.advance(SECOND - MS);
    assert_eq!(b.try_acquire(), Err(Refusal::Limited { retry_after: (SECOND + MS).into() }));
    clock.advance(MS);
    drop(assert_ready_ok!(wait.poll()));
}

#[test]
fn waiters_are_served_in_order_whatever_they_weigh() {
    let clock = ManualClock::new();
    let a = bucket(&clock, 1, 5);
    let b = bucket(&clock, 1, 5);
    let both = AllOf::new("a", &a).with("b", &b);
    let _ = both.try_acquire_many([("a", 5), ("b", 5)]).expect("full");
    let mut large = spawn_pending(both.acquire_many([("b", 4)]));
    let mut small = spawn_pending(both.acquire_many([("b", 0)]));
    clock.advance(4 * SECOND - MS);
    assert!(!large.is_woken() && !small.is_woken());
    assert_eq!(both.status().waiting, 2);
    clock.advance(MS);
    drop(assert_ready_ok!(large.poll()));
    drop(assert_ready_ok!(small.poll()));
    assert_eq!((a.status().available, b.status().available), (2, 0));
}

#[test]
fn changes_and_refunds_of_a_member_act_now() {
    let clock = ManualClock::new();
    let (a, b, both) = used_up(&clock, Duration::from_secs(3600));
    let mut wait = spawn_pending(both.acquire());
    b.refund(1);
    assert!(!wait.is_woken());
    clock.advance(SECOND);
    drop(assert_ready_ok!(wait.poll()));
    wait = spawn_pending(both.acquire());
    clock.advance(10 * SECOND);
    assert!(!wait.is_woken());
    b.set_rate(Rate::per_second(1));
    clock.advance(SECOND);
    drop(assert_ready_ok!(wait.poll()));
    let (mut one, mut other) = (spawn_pending(both.acquire()), spawn(a.acquire()));
    assert_pending!(other.poll());
    drop(one);
    clock.advance(SECOND);
    assert_ready_ok!(other.poll());
    b.set_rate(Rate::per_second(2));
    one = spawn_pending(both.acquire());
    // Another permit is available in time.
    assert!(b.try_acquire().is_ok());
    b.set_rate(Rate::ZERO);
    clock.advance(10 * SECOND);
    assert!(!one.is_woken());
    assert!(a.try_acquire().is_ok(), "no time is known at which the other member goes on");
    b.set_rate(Rate::per_second(1));
    clock.advance(SECOND);
    drop(assert_ready_ok!(one.poll()));
}

#[test]
fn a_wait_that_would_take_too_long_is_refused_at_once() {
    let clock = ManualClock::new();
    let (a, b, both) = used_up(&clock, 10 * SECOND);
    assert_limited(assert_ready!(spawn(both.acquire_within(4 * SECOND)).poll()), "b", 6 * SECOND);
    let mut wait = spawn_pending(both.acquire_within(10 * SECOND));
    clock.advance(10 * SECOND);
    drop(assert_ready_ok!(wait.poll()));
    let mut refused = spawn_pending(both.acquire_within(10 * SECOND));
    b.set_rate(Rate::per_hour(1));
    assert_ready_err!(refused.poll());
    clock.advance(SECOND);
    assert!(a.try_acquire().is_ok());
}

#[test]
fn with_a_member_that_is_shut_no_other_request_is_held_up() {
    let clock = ManualClock::new();
    let a = bucket(&clock, 1, 1);
    let shut = RateLimiter::with_clock(DenyAll, clock.clone());
    let both = AllOf::new("a", &a).with("shut", &shut);
    let refusal = both.try_acquire().expect_err("shut");
    assert_eq!((refusal.member(), refusal.retry_after()), (Some("shut"), None));
    let _wait = spawn_pending(both.acquire());
    for _ in 0..10 {
        assert!(a.try_acquire().is_ok());
        clock.advance(SECOND);
    }
}

/// Many composites wait an hour each, all for a shared limiter. The limiter serves all other
/// requests, and then the composites in order.
#[test]
fn many_composites_do_not_hold_up_a_shared_member() {
    let clock = ManualClock::new();
    let shared = bucket(&clock, 1, 1);
    let users: Vec<_> = (0..50).map(|_| bucket_at(&clock, Rate::per_hour(1), 1)).collect();
    users.iter().for_each(|user| assert!(user.try_acquire().is_ok()));
    assert!(shared.try_acquire().is_ok());
    let mut waits: Vec<_> = users
        .iter()
        .map(|user| spawn_pending(AllOf::new("user", user).with("shared", &shared).acquire()))
        .collect();
    for _ in 0..3000 {
        clock.advance(SECOND);
        assert!(shared.try_acquire().is_ok());
    }
    clock.advance(Duration::from_secs(600));
    for wait in &mut waits {
        assert!(wait.is_woken());
        drop(assert_ready_ok!(wait.poll()));
        clock.advance(SECOND);
    }
    assert!(shared.try_acquire().is_ok());
}

/// Many users wait for one limit, and leave.
#[test]
fn a_storm_of_users_leaves_no_trace() {
    let clock = ManualClock::new();
    let all = bucket(&clock, 1, 1);
    assert!(all.try_acquire().is_ok());
    let waits: Vec<_> = (0..300)
        .map(|_| {
            let user = bucket(&clock, 1, 1);
            spawn_pending(AllOf::new("user", &user).with("everybody", &all).acquire())
        })
        .collect();
    drop(waits);
    clock.advance(SECOND);
    assert!(all.try_acquire().is_ok() && all.try_acquire().is_err());
}

#[test]
fn late_timers_do_not_slow_it_down() {
    let clock = ManualClock::new();
    let a = bucket(&clock, 1000, 1);
    let b = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(1000)), clock.clone());
    let both = AllOf::new("a", &a).with("b", &b);
    let mut waits: Vec<_> = (0..1001).map(|_| spawn(both.acquire())).collect();
    waits.iter_mut().for_each(|wait| drop(wait.poll()));
    for _ in 0..200 {
        clock.jump(5 * MS);
    }
    assert_eq!(both.status().waiting, 0);
}

#[test]
fn threads_and_tasks_wait_in_one_queue() {
    let clock = ManualClock::new();
    let (_a, _b, both) = used_up(&clock, 2 * SECOND);
    let thread = std::thread::spawn({
        let both = both.clone();
        move || both.blocking_acquire().map(|permits| permits.waited())
    });
    while both.status().waiting == 0 {
        std::thread::yield_now();
    }
    clock.advance(2 * SECOND);
    assert_eq!(thread.join().expect("no panic").ok(), Some(2 * SECOND));
    assert_limited(both.blocking_acquire_many(AllRequest::new().within(SECOND)), "b", SECOND);
}

/// Clocks that started at different times agree on the length of a wait.
#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn clocks_may_have_begun_at_different_times() -> Result<(), AllRefusal> {
    let a = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), tidegate::TokioClock::new());
    tokio::time::sleep(300 * MS).await;
    let b = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(4), 1), tidegate::TokioClock::new());
    tokio::time::sleep(300 * MS).await;
    for both in [AllOf::new("a", &a).with("b", &b), AllOf::new("b", &b).with("a", &a)] {
        let _permits = both.acquire().await?;
        assert_eq!(both.acquire().await?.waited(), SECOND);
        assert_limited(both.acquire_within(750 * MS).await, "a", 250 * MS);
        tokio::time::sleep(5 * SECOND).await;
    }
    Ok(())
}

/// The waker of one waiter panics. All members still serve the other waiters.
#[test]
fn a_waker_that_panics_costs_no_waiter_its_turn() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("user code");
        }
    }
    let clock = ManualClock::new();
    let (a, b, both) = used_up(&clock, 2 * SECOND);
    let mut bad = Box::pin(both.acquire());
    let waker = std::task::Waker::from(std::sync::Arc::new(Panics));
    assert!(bad.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    let mut good = spawn_pending(both.acquire());
    let mut plain = spawn_pending(a.acquire());
    for _ in 0..50 {
        let step = std::panic::AssertUnwindSafe(|| clock.advance(100 * MS));
        let _ = std::panic::catch_unwind(step);
    }
    assert!(good.is_woken() && plain.is_woken());
    drop(assert_ready_ok!(good.poll()));
    assert_ready_ok!(plain.poll());
    drop(bad);
    assert_eq!((a.status().waiting, b.status().waiting), (0, 0));
}

/// The runtimes of a member's waiter and of the composite are stalled. The next call serves both.
#[test]
fn each_call_serves_the_waiters_that_are_due() {
    let clock = ManualClock::new();
    let (a, b, both) = used_up(&clock, 2 * SECOND);
    let reserved = b.reserve(1).expect("a reservation");
    let wait = spawn_pending(both.acquire());
    clock.advance(4 * SECOND);
    assert!(wait.is_woken());
    drop((wait, reserved));
    assert!(b.try_acquire().is_ok() && a.try_acquire().is_ok());
}
