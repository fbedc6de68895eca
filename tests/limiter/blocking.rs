//! Blocking threads in one queue with tasks, on the manual clock.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::support::{Limiter, one_per_second, until, waiting};
use tidegate::{AllOf, Grant, Rate, RateLimiter, Refusal, Request, SystemClock, TokenBucket};
use tokio_test::assert_ready_eq;

const SECOND: Duration = Duration::from_secs(1);

fn until_waiting(limiter: &Limiter, count: usize) {
    until(count, || limiter.status().waiting);
}

#[test]
fn a_blocked_thread_is_served_when_its_permit_is_due() {
    let (limiter, clock) = one_per_second();
    thread::scope(|scope| {
        let blocked = scope.spawn(|| limiter.blocking_acquire());
        until_waiting(&limiter, 1);
        clock.advance(SECOND);
        assert_eq!(blocked.join().expect("no panic").map(Grant::waited), Ok(SECOND));
    });
}

#[test]
fn threads_and_tasks_wait_in_one_line() {
    let (limiter, clock) = one_per_second();
    let (done, order) = mpsc::channel();
    thread::scope(|scope| {
        let mut first = waiting(&limiter);
        for (name, position) in [("second", 1), ("third", 2)] {
            let (done, limiter) = (done.clone(), &limiter);
            scope.spawn(move || {
                limiter.blocking_acquire().expect("a permit");
                done.send(name).expect("the test listens");
            });
            until_waiting(limiter, position + 1);
        }
        let mut fourth = waiting(&limiter);
        clock.advance(SECOND);
        assert_ready_eq!(first.poll().map_ok(Grant::waited), Ok(SECOND));
        clock.advance(SECOND);
        assert_eq!(order.recv(), Ok("second"));
        clock.advance(SECOND);
        assert_eq!(order.recv(), Ok("third"));
        clock.advance(SECOND);
        assert_ready_eq!(fourth.poll().map_ok(Grant::waited), Ok(4 * SECOND));
    });
}

#[test]
fn a_dropped_task_and_a_refund_move_a_blocked_thread_up() {
    let (limiter, clock) = one_per_second();
    thread::scope(|scope| {
        let ahead = waiting(&limiter);
        let blocked = scope.spawn(|| limiter.blocking_acquire());
        until_waiting(&limiter, 2);
        drop(ahead);
        limiter.refund(1);
        assert_eq!(blocked.join().expect("no panic").map(Grant::waited), Ok(Duration::ZERO));
    });
    drop(clock);
}

#[test]
fn a_thread_behind_an_unclaimed_reservation_is_served() {
    let (limiter, clock) = one_per_second();
    thread::scope(|scope| {
        let _unclaimed = limiter.reserve(1);
        let blocked = scope.spawn(|| limiter.blocking_acquire());
        until_waiting(&limiter, 2);
        // With no task in line, the thread watches the clock for all.
        clock.advance(SECOND);
        until_waiting(&limiter, 1);
        clock.advance(SECOND);
        assert_eq!(blocked.join().expect("no panic").map(Grant::waited), Ok(2 * SECOND));
    });
}

#[test]
fn a_thread_does_not_wait_longer_than_it_may() {
    let (limiter, _clock) = one_per_second();
    let refusal = limiter.blocking_acquire_many(Request::permits(1).within(SECOND / 2));
    assert_eq!(refusal, Err(Refusal::Limited { retry_after: (SECOND / 2).into() }));
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn plain_threads_need_no_runtime() {
    let policy = tidegate::SmoothBursty::new(tidegate::Rate::per_second(100_000)).max_burst(Duration::ZERO);
    let limiter = tidegate::RateLimiter::with_clock(policy, SystemClock::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    limiter.blocking_acquire().expect("a permit");
                }
            });
        }
    });
    assert_eq!(limiter.status().waiting, 0);
}

/// A reservation has no waker until a thread waits for it. The thread once slept for ever.
#[test]
fn threads_wait_for_their_reservations_by_the_systems_clock() {
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1000), 1), SystemClock::new());
    limiter.try_acquire().expect("the burst");
    let (mut first, mut second) =
        (limiter.reserve(1).expect("a reservation"), limiter.reserve(1).expect("a reservation"));
    thread::scope(|scope| {
        let second = scope.spawn(|| second.blocking_claim());
        let first = scope.spawn(|| first.blocking_claim());
        assert!(first.join().expect("no panic").is_ok());
        assert!(second.join().expect("no panic").is_ok());
    });
    let all = AllOf::new("one", &limiter);
    let mut reservation = all.reserve([("one", 1)]).expect("a reservation");
    assert!(reservation.blocking_claim().is_ok());
}
