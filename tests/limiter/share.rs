//! A share of the permits that is reserved for higher priorities: with every policy, a refusal
//! reports exactly when the request can succeed.

use std::task::Poll;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::{
    AllOf, AnyPolicy, Clock, FixedWindow, LeakyBucket, ManualClock, Nanos, Policy, Rate, RateLimiter,
    Refusal, Request, SlidingEstimate, SlidingLog, SlidingWindow, SmoothBursty, SmoothWarmingUp, TokenBucket,
};
use tokio_test::task::spawn;

const MS: u64 = 1_000_000;

fn some_policy() -> impl Strategy<Value = AnyPolicy> {
    (0..8u8, 1..12u64, 1..8u32).prop_map(|(kind, permits, burst)| {
        let rate = Rate::per_second(permits);
        match kind {
            0 => TokenBucket::new(rate, burst).into(),
            1 => LeakyBucket::new(rate).capacity(burst).nodelay(burst).into(),
            2 => SmoothBursty::new(rate).start_full().into(),
            3 => SmoothWarmingUp::new(rate, Duration::from_secs(2)).start_warm().into(),
            4 => FixedWindow::new(rate).into(),
            5 => SlidingWindow::new(rate, 4).into(),
            6 => SlidingEstimate::new(rate).into(),
            _ => SlidingLog::new(rate).into(),
        }
    })
}

/// A limiter that keeps some permits, after requests at some times.
fn keeping(
    policy: AnyPolicy,
    steps: &[(u64, u32)],
    kept: u32,
) -> (ManualClock, RateLimiter<AnyPolicy, ManualClock>) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    for (span, n) in steps {
        clock.advance(Duration::from_nanos(*span));
        let _ = limiter.try_acquire_many(*n);
    }
    limiter.keep_for_priority(kept, 1);
    (clock, limiter)
}

proptest! {
    #[test]
    fn retry_after_is_exact_while_a_share_is_kept(
        policy in some_policy(),
        steps in vec((0..600 * MS, 1..4u32), 0..20),
        n in 1..5u32,
        kept in 1..6u32,
    ) {
        let (clock, limiter) = keeping(policy, &steps, kept);
        let Err(Refusal::Limited { retry_after }) = limiter.try_acquire_many(n) else { return Ok(()) };
        if retry_after == Duration::MAX {
            clock.advance(Duration::from_secs(100));
            prop_assert!(limiter.try_acquire_many(n).is_err(), "never");
            return Ok(());
        }
        let tick = Duration::from_nanos(1);
        clock.advance(retry_after.as_duration() - tick);
        prop_assert_eq!(limiter.try_acquire_many(n), Err(Refusal::Limited { retry_after: tick.into() }), "too early");
        clock.advance(tick);
        prop_assert_eq!(limiter.try_acquire_many(n).map(drop), Ok(()), "too late");
    }

    /// A grant told that the next permit was available, although it is kept.
    #[test]
    fn a_grant_tells_the_state_while_a_share_is_kept(
        policy in some_policy(),
        steps in vec((0..600 * MS, 1..4u32), 0..20),
        kept in 1..6u32,
    ) {
        let (_clock, limiter) = keeping(policy, &steps, kept);
        let mut available = limiter.status().available;
        loop {
            let decision = limiter.try_acquire_many(Request::permits(1).with_left());
            // The permits that are kept are available to others.
            prop_assert_eq!(decision.is_ok(), available > kept.into());
            let Ok(grant) = decision else { break };
            let (left, status) = (grant.left().expect("it was requested"), limiter.status());
            prop_assert_eq!((left.available, left.next_in), (status.available, status.next_in));
            prop_assert_eq!(status.available, available - 1);
            available = status.available;
        }
    }
}

/// Bug: a limit of two policies was predicted with fewer roundings than it was served with, so a
/// request that waited was due a nanosecond after the time that it was told.
#[test]
fn a_request_that_waits_for_two_policies_is_due_when_told_while_a_share_is_kept() {
    for seed in 0..5_000 {
        let mut random = SmallRng::seed_from_u64(seed);
        let clock = ManualClock::new();
        let [first, second] = [0, 1].map(|_| {
            let period = Duration::from_millis(random.random_range(300..3_000));
            let rate = Rate::new(random.random_range(1..12), period).expect("a rate");
            match random.random_range(0..3) {
                0 => AnyPolicy::from(SmoothBursty::new(rate).start_full()),
                1 => FixedWindow::new(rate).into(),
                _ => TokenBucket::new(rate, random.random_range(3..8)).into(),
            }
        });
        let limiter = RateLimiter::with_clock(first.and(second), clock.clone());
        for _ in 0..random.random_range(1..12) {
            clock.advance(Duration::from_nanos(random.random_range(0..600 * MS)));
            let _ = limiter.try_acquire_many(random.random_range(1..4));
        }
        limiter.keep_for_priority(random.random_range(1..4), 1);
        let Ok(mut waits) = limiter.reserve(random.random_range(1..4)) else { continue };
        let due = waits.due_in();
        if due.is_zero() || due > Duration::from_secs(1_000) {
            continue;
        }
        clock.advance(due - Duration::from_nanos(1));
        assert!(!waits.claim(), "{seed}: early");
        clock.advance(Duration::from_nanos(1));
        assert!(waits.claim(), "{seed}: late");
    }
}

/// Bug: while permits were kept, a policy reported "now" for a permit that had been available for a
/// while, and a waiter that was in time was refused if its timer was late.
#[test]
fn a_waiter_that_was_accepted_is_served_by_a_late_timer() {
    fn is_served(policy: impl Policy, late: u64, in_composite: bool) -> Poll<bool> {
        let clock = ManualClock::new();
        let limiter = RateLimiter::with_clock(policy, clock.clone());
        limiter.drain();
        limiter.keep_for_priority(1, 1);
        let within = limiter.try_acquire().expect_err("it is empty").retry_after().expect("some day");
        let all = AllOf::new("calls", &limiter);
        let (mut alone, mut member) =
            (spawn(limiter.acquire_within(within)), spawn(all.acquire_within(within)));
        let mut poll = || match in_composite {
            true => member.poll().map(|answer| answer.is_ok()),
            false => alone.poll().map(|answer| answer.is_ok()),
        };
        assert!(poll().is_pending());
        clock.jump(within + Duration::from_nanos(late));
        poll()
    }

    let bucket = |burst| TokenBucket::new(Rate::per_second(10), burst);
    for in_composite in [false, true] {
        for late in [0, 1, 9 * MS, 11 * MS] {
            let served = [
                is_served(bucket(2), late, in_composite),
                is_served(SmoothBursty::new(Rate::per_second(10)), late, in_composite),
                is_served(bucket(100).and(TokenBucket::new(Rate::per_minute(1000), 100)), late, in_composite),
            ];
            assert_eq!(served, [Poll::Ready(true); 3], "{late} ns late, {in_composite}");
        }
    }
}

/// A limiter of this policy without permits, which keeps some.
fn drained(policy: impl Policy, kept: u32) -> (RateLimiter<impl Policy, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    limiter.drain();
    limiter.keep_for_priority(kept, 1);
    (limiter, clock)
}

/// Bug: a reservation that was due in time was refused when it was claimed long after its deadline.
#[test]
fn a_reservation_that_was_due_in_time_is_claimed_late() {
    let bucket = || TokenBucket::new(Rate::per_second(1), 10);
    let within = Request::permits(1).within(Duration::from_secs(5));
    for late in [0, 1, 20_000] {
        let (limiter, clock) = drained(bucket(), 4);
        let mut reservation = limiter.reserve(within).expect("in time");
        clock.jump(Duration::from_secs(5) + Duration::from_millis(late));
        assert!(reservation.claim(), "{late}");
        let (limiter, clock) = drained(bucket().and(TokenBucket::new(Rate::per_minute(1000), 20)), 4);
        let mut reservation = limiter.reserve(within).expect("in time");
        clock.jump(Duration::from_secs(5) + Duration::from_millis(late));
        assert!(reservation.claim(), "{late}");
    }
}

/// Bug: a waiter that was served late was charged late, and the next one was refused.
#[test]
fn a_late_timer_delays_no_waiter_behind() {
    let (limiter, clock) = drained(TokenBucket::new(Rate::per_second(1), 2), 1);
    let mut first = spawn(limiter.acquire());
    let mut second = spawn(limiter.acquire_within(Duration::from_secs(3)));
    assert!(first.poll().is_pending() && second.poll().is_pending());
    clock.jump(Duration::from_millis(2_001));
    assert!(first.poll().is_ready() && second.poll().is_pending());
    clock.advance(Duration::from_millis(999));
    assert!(matches!(second.poll(), Poll::Ready(Ok(_))));
}

/// Bug: while permits were kept, late timers lowered the average rate.
#[test]
fn late_timers_do_not_lower_the_rate_beside_a_kept_share() {
    let ms = Duration::from_millis;
    let (limiter, clock) = drained(TokenBucket::new(Rate::per_second(100), 2), 1);
    for _ in 0..100 {
        let mut reservation = limiter.reserve(1).expect("some day");
        let timer = reservation.due_in() + ms(1);
        assert!(spawn(&mut reservation).poll().is_pending());
        clock.jump(timer);
        assert!(spawn(&mut reservation).poll().is_ready());
    }
    // The first one waits for the kept permit as well.
    assert_eq!(clock.now(), Nanos::new(1_011 * MS));
}

/// Bug: a request that came after a late timer was charged as of now, and the permits that accrued
/// meanwhile were lost.
#[test]
fn one_task_with_late_timers_uses_the_rate_beside_a_kept_share() {
    let (limiter, clock) = drained(TokenBucket::new(Rate::per_second(10_000), 2), 1);
    let mut granted = 0;
    while clock.now() < Nanos::new(1_000 * MS) {
        let mut wait = spawn(limiter.acquire());
        if wait.poll().is_pending() {
            clock.jump(Duration::from_micros(1_100));
            assert!(wait.poll().is_ready());
        }
        granted += 1;
    }
    assert!(granted > 9_900, "{granted}");
}

/// Bug: without a rate the burst of `SmoothBursty` was one permit, so a waiter behind a kept share
/// was refused for good.
#[test]
fn a_waiter_behind_a_kept_share_outlasts_a_rate_of_zero() {
    let policy = SmoothBursty::new(Rate::per_second(5)).start_full();
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    limiter.keep_for_priority(3, 1);
    limiter.try_acquire_many(2).expect("permits");
    let mut wait = spawn(limiter.acquire_many(2));
    assert!(wait.poll().is_pending());
    limiter.set_rate(Rate::ZERO);
    let status = limiter.status();
    assert_eq!((status.limit, status.available, status.full_in), (6, 0, Duration::MAX));
    clock.advance(Duration::from_secs(100));
    assert!(wait.poll().is_pending());
    limiter.set_rate(Rate::per_second(5));
    clock.advance(Duration::from_secs(1));
    assert!(matches!(wait.poll(), Poll::Ready(Ok(_))));
}

/// Bug: after the clock had gone back, a `SlidingEstimate` with a kept share granted nothing until
/// the clock was where it had been, and told to retry at once.
#[test]
fn windows_grant_beside_a_kept_share_after_the_clock_went_back() {
    for line in
        ["sliding_estimate 20/s", "sliding_window 20/s cells 4", "fixed_window 20/s", "sliding_log 20/s"]
    {
        let clock = ManualClock::starting_at(Nanos::new(5000 * MS));
        let limiter = RateLimiter::with_clock(line.parse::<AnyPolicy>().expect("a policy"), clock.clone());
        limiter.keep_for_priority(1, 1);
        limiter.try_acquire().expect("a permit");
        clock.set(Nanos::new(1000 * MS));
        assert!(matches!(spawn(limiter.acquire()).poll(), Poll::Ready(Ok(_))), "{line}");
        assert_eq!(limiter.status().next_in, Duration::ZERO, "{line}");
        assert!(limiter.try_acquire_many(17).is_ok(), "{line}");
        let told = limiter.try_acquire().expect_err("the last one is kept").retry_after();
        assert!(told > Some(Duration::ZERO), "{line}");
    }
}
