//! Pauses: no request passes, each refusal tells when the pause ends, and the permits that accrued
//! meanwhile are there afterwards.

use std::time::Duration;

use crate::support::{MS, one_per_second, waiting, without_burst};
use tidegate::{Grant, ManualClock, Nanos, Rate, RateLimiter, TokenBucket};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

fn retry_after(limiter: &crate::support::Limiter) -> Option<Duration> {
    limiter.try_acquire().expect_err("refused").retry_after()
}

#[test]
fn nobody_passes_in_a_pause() {
    let (limiter, clock) = without_burst(Rate::per_second(1000));
    limiter.pause_for(10 * SECOND);
    assert_eq!(limiter.status().paused_for, 10 * SECOND);
    assert_eq!(limiter.status().available, 0);
    assert_eq!(retry_after(&limiter), Some(10 * SECOND));
    let mut waiter = waiting(&limiter);
    let mut reservation = limiter.reserve(1).expect("a place");
    clock.advance(10 * SECOND - NANO);
    assert!(!waiter.is_woken() && !reservation.claim());
    clock.advance(NANO);
    assert_eq!(assert_ready!(waiter.poll()).map(Grant::waited), Ok(10 * SECOND));
    clock.advance(MS);
    assert!(reservation.claim());
    assert_eq!(limiter.status().paused_for, Duration::ZERO);
}

#[test]
fn a_try_in_a_pause_is_told_to_the_nanosecond() {
    let (limiter, clock) = one_per_second();
    // The pause ends before the permit is due, after it, and with a request in line.
    limiter.pause_for(SECOND / 2);
    assert_eq!(retry_after(&limiter), Some(SECOND));
    limiter.pause_for(5 * SECOND);
    assert_eq!(retry_after(&limiter), Some(5 * SECOND));
    let _waiter = waiting(&limiter);
    let after = retry_after(&limiter).expect("some day");
    assert_eq!(after, 6 * SECOND);
    clock.advance(after - NANO);
    assert!(limiter.try_acquire().is_err());
    clock.advance(NANO);
    assert!(limiter.try_acquire().is_ok());
}

#[test]
fn what_a_waiter_is_told_counts_what_the_pause_lets_overflow() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 2), clock.clone());
    limiter.try_acquire_many(2).expect("full");
    limiter.pause_for(60 * SECOND);
    let held = [limiter.reserve(2).expect("a place"), limiter.reserve(1).expect("a place")];
    assert_eq!(held[0].due_in(), 60 * SECOND);
    // Two are in stock by then, not sixty.
    assert_eq!(held[1].due_in(), 61 * SECOND);
}

#[test]
fn a_pause_moves_those_who_wait_and_refuses_whom_it_makes_too_late() {
    let (limiter, clock) = one_per_second();
    let mut first = waiting(&limiter);
    let mut in_time = spawn(limiter.acquire_within(20 * SECOND));
    let mut too_late = spawn(limiter.acquire_within(5 * SECOND));
    assert_pending!(in_time.poll());
    assert_pending!(too_late.poll());
    limiter.pause_for(10 * SECOND);
    let refusal = assert_ready!(too_late.poll()).expect_err("too late");
    // Due at 12 s, so accepted from 7 s on.
    assert_eq!(refusal.retry_after(), Some(7 * SECOND));
    clock.advance(10 * SECOND);
    assert_ready_ok!(first.poll());
    assert!(!in_time.is_woken());
    clock.advance(SECOND);
    assert_eq!(assert_ready!(in_time.poll()).map(Grant::waited), Ok(11 * SECOND));
}

#[test]
fn a_shorter_pause_does_not_end_a_longer_one() {
    let (limiter, clock) = without_burst(Rate::per_second(1000));
    limiter.pause_until(Nanos::new(10_000_000_000));
    limiter.pause_until(Nanos::new(1_000_000_000));
    limiter.pause_for(Duration::ZERO);
    assert_eq!(limiter.status().paused_for, 10 * SECOND);
    clock.advance(4 * SECOND);
    limiter.pause_for(SECOND);
    assert_eq!(limiter.status().paused_for, 6 * SECOND);
}

#[test]
fn a_resumed_limiter_serves_at_once() {
    let (limiter, _clock) = without_burst(Rate::per_second(1));
    assert!(!limiter.resume());
    limiter.pause_for(Duration::MAX);
    assert_eq!(retry_after(&limiter), None);
    assert_eq!(limiter.status().paused_for, Duration::MAX);
    let mut waiter = waiting(&limiter);
    assert!(limiter.resume());
    assert_eq!(assert_ready!(waiter.poll()).map(Grant::waited), Ok(Duration::ZERO));
    assert_eq!(retry_after(&limiter), Some(SECOND));
}

#[test]
fn permits_come_in_during_a_pause_as_far_as_there_is_room() {
    let clock = ManualClock::new();
    let limiter =
        RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 5).start_empty(), clock.clone());
    limiter.pause_for(60 * SECOND);
    clock.advance(60 * SECOND);
    assert_eq!(limiter.status().available, 5);
}

#[test]
fn a_late_grant_is_not_charged_as_of_a_time_in_the_pause() {
    let (limiter, clock) = without_burst(Rate::per_second(1));
    limiter.set_catch_up(SECOND);
    limiter.pause_for(10 * SECOND);
    let mut waiter = waiting(&limiter);
    clock.jump(10_200 * MS);
    assert_ready_ok!(waiter.poll());
    // Charged as of the end of the pause, so the next one is due a second after that.
    assert_eq!(retry_after(&limiter), Some(800 * MS));

    // A reservation is charged as of its time, however late; but not in the pause.
    let (limiter, clock) = one_per_second();
    let mut reservation = limiter.reserve(1).expect("a place");
    limiter.pause_for(10 * SECOND);
    clock.jump(12_500 * MS);
    assert!(reservation.claim());
    assert!(limiter.try_acquire().is_ok());
    assert_eq!(retry_after(&limiter), Some(SECOND));
}

#[test]
fn a_blocked_thread_waits_for_the_end_of_a_pause() {
    let (limiter, clock) = without_burst(Rate::per_second(1));
    limiter.pause_for(10 * SECOND);
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| limiter.blocking_acquire());
        while limiter.status().waiting == 0 {
            std::thread::yield_now();
        }
        clock.advance(10 * SECOND);
        assert_eq!(blocked.join().expect("no panic").map(Grant::waited), Ok(10 * SECOND));
    });
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_pause_moves_a_task_that_sleeps() {
    let policy = tidegate::SmoothBursty::new(Rate::per_second(1));
    let limiter = RateLimiter::with_clock(policy, tidegate::TokioClock::new());
    limiter.acquire().await.expect("a permit");
    let waiter = tokio::spawn(limiter.acquire_owned(1));
    tokio::task::yield_now().await;
    limiter.pause_for(30 * SECOND);
    assert_eq!(waiter.await.expect("no panic").map(Grant::waited), Ok(30 * SECOND));
}
