//! The queue: order, cancellation, leaks, and changes that reschedule waiters. All tests use the
//! manual clock.

use std::task::Poll;
use std::time::Duration;

use crate::support::{MS, one_per_second, spawn_pending, waiting, without_burst};
use tidegate::{
    Grant, ManualClock, Nanos, Rate, RateLimiter, Refusal, Request, SmoothBursty, SmoothWarmingUp,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_permit_that_is_there_is_ready_on_first_poll() {
    let (limiter, _clock) = without_burst(Rate::per_second(1));
    assert_ready_eq!(spawn(limiter.acquire()).poll().map_ok(Grant::waited), Ok(Duration::ZERO));
}

#[test]
fn a_waiter_is_woken_when_its_permit_is_due_and_reports_its_wait() {
    let (limiter, clock) = one_per_second();
    clock.advance(250 * MS);
    let mut future = waiting(&limiter);
    clock.advance(749 * MS);
    assert!(!future.is_woken());
    clock.advance(MS);
    assert!(future.is_woken());
    assert_ready_eq!(future.poll().map_ok(Grant::waited), Ok(750 * MS));
}

#[test]
fn waiters_are_served_in_order_of_arrival_whatever_they_ask_for() {
    let (limiter, clock) = one_per_second();
    let mut large = spawn(limiter.acquire_many(3));
    let mut small = spawn(limiter.acquire_many(1));
    assert_pending!(large.poll());
    assert_pending!(small.poll());
    clock.advance(SECOND);
    assert_ready_eq!(large.poll().map_ok(Grant::waited), Ok(SECOND));
    // The request behind pays for the large one.
    clock.advance(3 * SECOND - MS);
    assert_pending!(small.poll());
    clock.advance(MS);
    assert_ready_eq!(small.poll().map_ok(Grant::waited), Ok(4 * SECOND));
}

#[test]
fn no_request_overtakes_a_waiter() {
    let (limiter, clock) = one_per_second();
    let mut first = waiting(&limiter);
    // The permit is due and the waiter has not been polled since. It is still the waiter's permit.
    clock.advance(SECOND);
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: SECOND.into() }));
    assert_pending!(spawn(limiter.acquire()).poll());
    assert_ready_eq!(first.poll().map_ok(Grant::waited), Ok(SECOND));
}

#[test]
fn a_refused_try_behind_waiters_reports_when_its_own_turn_would_be() {
    let (limiter, clock) = one_per_second();
    let _first = waiting(&limiter);
    let _second = waiting(&limiter);
    let after = limiter.try_acquire().expect_err("two wait").retry_after().expect("later");
    assert_eq!(after, 3 * SECOND);
    clock.advance(after - Duration::from_nanos(1));
    assert!(limiter.try_acquire().is_err());
    clock.advance(Duration::from_nanos(1));
    assert!(limiter.try_acquire().is_ok());
}

/// The order in which a storm of waits is dropped.
enum Order {
    Fifo,
    Lifo,
    Random,
}

/// 10,000 waits are polled and dropped. The next grant comes exactly when it would have come
/// without them.
fn storm_leaves_no_trace(order: &Order) {
    const STORM: usize = 10_000;
    let (limiter, clock) = one_per_second();
    let before = limiter.status();
    let mut storm: Vec<_> = (0..STORM).map(|_| Some(waiting(&limiter))).collect();
    let mut witness = waiting(&limiter);
    assert_eq!(limiter.status().waiting, STORM + 1);
    clock.advance(300 * MS);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for left in (1..=STORM).rev() {
        let victim = match order {
            Order::Fifo => STORM - left,
            Order::Lifo => left - 1,
            Order::Random => {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let chosen = usize::try_from(random >> 33).expect("31 bits") % left;
                storm.swap(chosen, left - 1);
                left - 1
            }
        };
        drop(storm[victim].take());
    }
    assert_eq!(limiter.status().waiting, 1);
    clock.advance(700 * MS - Duration::from_nanos(1));
    assert!(!witness.is_woken());
    clock.advance(Duration::from_nanos(1));
    assert!(witness.is_woken());
    assert_ready_eq!(witness.poll().map_ok(Grant::waited), Ok(SECOND));
    // The same holds for the grant after it.
    let mut next = waiting(&limiter);
    clock.advance(SECOND);
    assert_ready_eq!(next.poll().map_ok(Grant::waited), Ok(SECOND));
    clock.advance(SECOND);
    assert_eq!(limiter.status().available, before.available + 1);
}

#[test]
fn a_storm_of_waits_dropped_first_to_last_leaves_no_trace() {
    storm_leaves_no_trace(&Order::Fifo);
}

#[test]
fn a_storm_of_waits_dropped_last_to_first_leaves_no_trace() {
    storm_leaves_no_trace(&Order::Lifo);
}

#[test]
fn a_storm_of_waits_dropped_in_random_order_leaves_no_trace() {
    storm_leaves_no_trace(&Order::Random);
}

#[test]
fn waiters_behind_a_dropped_wait_move_up() {
    let (limiter, clock) = one_per_second();
    let large = spawn_pending(limiter.acquire_many(100));
    let mut first = waiting(&limiter);
    let mut second = waiting(&limiter);
    drop(large);
    clock.advance(SECOND);
    assert_ready_eq!(first.poll().map_ok(Grant::waited), Ok(SECOND));
    clock.advance(SECOND);
    assert_ready_eq!(second.poll().map_ok(Grant::waited), Ok(2 * SECOND));
}

#[test]
fn a_grant_dropped_unseen_goes_to_the_next() {
    let (limiter, clock) = one_per_second();
    let first = waiting(&limiter);
    let mut second = waiting(&limiter);
    clock.advance(SECOND);
    assert!(first.is_woken());
    assert!(!second.is_woken());
    drop(first);
    assert!(second.is_woken());
    assert_ready_eq!(second.poll().map_ok(Grant::waited), Ok(SECOND));
    // One permit was granted at 1 s, not two: the next is due at 2 s.
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: SECOND.into() }));
}

#[test]
fn a_grant_dropped_unseen_and_late_invents_nothing() {
    let (limiter, clock) = one_per_second();
    let first = waiting(&limiter);
    clock.advance(5 * SECOND);
    // Granted at 1 s. Without the grant the limiter would be just as full now: nothing is saved
    // here.
    drop(first);
    assert!(limiter.try_acquire().is_ok());
    assert!(limiter.try_acquire().is_err());
}

#[test]
fn a_dropped_wait_is_as_if_it_never_was_also_when_warming_up() {
    let make = || {
        let clock = ManualClock::new();
        let policy = SmoothWarmingUp::new(Rate::per_second(2), Duration::from_secs(4));
        (RateLimiter::with_clock(policy, clock.clone()), clock)
    };
    let (limiter, clock) = make();
    let (other, other_clock) = make();
    assert!(limiter.try_acquire().is_ok());
    assert!(other.try_acquire().is_ok());
    // One wait is dropped while it waits, another after it was granted and before its grant was
    // seen.
    let first = waiting(&limiter);
    let second = waiting(&limiter);
    drop(second);
    clock.advance(Duration::from_micros(1_375_000));
    assert!(first.is_woken());
    drop(first);
    other_clock.advance(Duration::from_micros(1_375_000));
    for _ in 0..10 {
        let (a, b) = (limiter.reserve(1).expect("one"), other.reserve(1).expect("one"));
        assert_eq!(a.due_in(), b.due_in());
        let step = a.due_in();
        clock.advance(step);
        other_clock.advance(step);
        let (mut a, mut b) = (a, b);
        assert!(a.claim() && b.claim());
    }
}

#[test]
fn a_leaked_head_delays_waiters_behind_by_its_own_turn_only() {
    let (limiter, clock) = one_per_second();
    std::mem::forget(waiting(&limiter));
    let mut second = waiting(&limiter);
    let mut third = waiting(&limiter);
    clock.advance(2 * SECOND);
    assert_ready_eq!(second.poll().map_ok(Grant::waited), Ok(2 * SECOND));
    clock.advance(SECOND);
    assert_ready_eq!(third.poll().map_ok(Grant::waited), Ok(3 * SECOND));
}

#[test]
fn many_leaked_waiters_and_dropped_ones_before_them_delay_no_request() {
    let (limiter, clock) = one_per_second();
    let dropped: Vec<_> = (0..50).map(|_| waiting(&limiter)).collect();
    for _ in 0..10 {
        std::mem::forget(waiting(&limiter));
    }
    let mut live = waiting(&limiter);
    clock.advance(SECOND / 2);
    // All waiters have moved up by 50 s, and the waiters at the head will never be polled.
    drop(dropped);
    clock.advance(10 * SECOND + SECOND / 2 - Duration::from_nanos(1));
    assert!(!live.is_woken());
    clock.advance(Duration::from_nanos(1));
    assert_ready_eq!(live.poll().map_ok(Grant::waited), Ok(11 * SECOND));
}

#[test]
fn a_granted_waiter_that_is_not_polled_stalls_no_other() {
    let (limiter, clock) = one_per_second();
    let mut first = waiting(&limiter);
    let mut second = waiting(&limiter);
    let mut third = waiting(&limiter);
    clock.advance(3 * SECOND);
    assert_ready_eq!(third.poll().map_ok(Grant::waited), Ok(3 * SECOND));
    assert_ready_eq!(second.poll().map_ok(Grant::waited), Ok(3 * SECOND));
    assert_ready_eq!(first.poll().map_ok(Grant::waited), Ok(3 * SECOND));
}

#[test]
fn a_limiter_whose_waiters_all_leaked_still_answers_new_calls() {
    let (limiter, clock) = one_per_second();
    for _ in 0..3 {
        std::mem::forget(limiter.reserve(1));
    }
    // No call is made when they are due. The next call serves them, long after their turns.
    clock.jump(60 * SECOND);
    assert!(limiter.try_acquire().is_ok());
}

#[test]
fn a_faster_rate_moves_waiters_forward() {
    let (limiter, clock) = one_per_second();
    let mut first = waiting(&limiter);
    let mut second = waiting(&limiter);
    limiter.set_rate(Rate::per_second(10));
    // The debt of the first second was incurred at the old rate.
    clock.advance(SECOND);
    assert_ready_eq!(first.poll().map_ok(Grant::waited), Ok(SECOND));
    clock.advance(100 * MS);
    assert_ready_eq!(second.poll().map_ok(Grant::waited), Ok(SECOND + 100 * MS));
}

#[test]
fn a_slower_rate_moves_waiters_back() {
    let (limiter, clock) = without_burst(Rate::per_second(10));
    assert!(limiter.try_acquire().is_ok());
    let mut first = waiting(&limiter);
    let mut second = waiting(&limiter);
    limiter.set_rate(Rate::per_second(1));
    clock.advance(100 * MS);
    assert_ready_eq!(first.poll().map_ok(Grant::waited), Ok(100 * MS));
    clock.advance(999 * MS);
    assert_pending!(second.poll());
    clock.advance(MS);
    assert_ready_eq!(second.poll().map_ok(Grant::waited), Ok(SECOND + 100 * MS));
}

#[test]
fn an_unlimited_rate_lets_all_waiters_go_once_the_debt_is_over() {
    let (limiter, clock) = one_per_second();
    let mut waiters: Vec<_> = (0..100).map(|_| waiting(&limiter)).collect();
    limiter.set_rate(Rate::UNLIMITED);
    clock.advance(SECOND);
    for waiter in &mut waiters {
        assert_ready_eq!(waiter.poll().map_ok(Grant::waited), Ok(SECOND));
    }
    assert_eq!(limiter.rate(), Rate::UNLIMITED);
}

#[test]
fn a_refund_serves_waiters_at_once() {
    let (limiter, _clock) = one_per_second();
    let mut first = waiting(&limiter);
    let mut second = waiting(&limiter);
    limiter.refund(1);
    assert_ready_eq!(first.poll().map_ok(Grant::waited), Ok(Duration::ZERO));
    assert_pending!(second.poll());
}

#[test]
fn a_waiter_too_late_for_its_deadline_is_refused_at_once() {
    let (limiter, clock) = one_per_second();
    let mut in_time = spawn(limiter.acquire_within(SECOND));
    let mut too_late = spawn(limiter.acquire_within(SECOND));
    assert_pending!(in_time.poll());
    assert_ready_eq!(too_late.poll(), Err(Refusal::Limited { retry_after: SECOND.into() }));
    clock.advance(SECOND);
    assert_ready_eq!(in_time.poll().map_ok(Grant::waited), Ok(SECOND));
}

#[test]
fn retry_after_of_a_wait_is_exact() {
    let (limiter, clock) = one_per_second();
    let within = 300 * MS;
    let Poll::Ready(Err(refusal)) = spawn(limiter.acquire_within(within)).poll() else {
        panic!("due in 1 s")
    };
    let after = refusal.retry_after().expect("later");
    assert_eq!(after, 700 * MS);
    clock.advance(after - Duration::from_nanos(1));
    assert_ready!(spawn(limiter.acquire_within(within)).poll()).expect_err("a nanosecond too early");
    clock.advance(Duration::from_nanos(1));
    assert_pending!(spawn(limiter.acquire_within(within)).poll());
}

#[test]
fn a_slower_rate_refuses_waiters_that_cannot_make_it_any_more() {
    let (limiter, clock) = one_per_second();
    let mut first = spawn(limiter.acquire_within(5 * SECOND));
    let mut second = spawn(limiter.acquire_within(5 * SECOND));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    let mut patient = waiting(&limiter);
    limiter.set_rate(Rate::per_minute(1));
    assert!(second.is_woken());
    assert!(assert_ready!(second.poll()).is_err());
    clock.advance(SECOND);
    // The first one's time comes from a debt incurred at the old rate.
    assert_ready_eq!(first.poll().map_ok(Grant::waited), Ok(SECOND));
    clock.advance(60 * SECOND);
    assert_ready_eq!(patient.poll().map_ok(Grant::waited), Ok(61 * SECOND));
}

#[test]
fn zero_permits_are_refused_everywhere() {
    let (limiter, _clock) = one_per_second();
    assert_eq!(limiter.try_acquire_many(0), Err(Refusal::ZeroPermits));
    assert_ready_eq!(spawn(limiter.acquire_many(0)).poll(), Err(Refusal::ZeroPermits));
    assert_ready_eq!(
        spawn(limiter.acquire_many(Request::permits(0).within(SECOND))).poll(),
        Err(Refusal::ZeroPermits)
    );
    assert_eq!(limiter.reserve(0).map(drop), Err(Refusal::ZeroPermits));
    assert_eq!(limiter.blocking_acquire_many(0), Err(Refusal::ZeroPermits));
    // The same behind a waiter.
    let _first = waiting(&limiter);
    assert_eq!(limiter.try_acquire_many(0), Err(Refusal::ZeroPermits));
    limiter.refund(0);
}

#[test]
fn a_clock_that_goes_back_grants_nothing_twice() {
    let (limiter, clock) = without_burst(Rate::per_second(1));
    clock.advance(10 * SECOND);
    assert!(limiter.try_acquire().is_ok());
    clock.set(tidegate::Nanos::new(5_000_000_000));
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: (6 * SECOND).into() }));
    let mut waiter = waiting(&limiter);
    clock.advance(5 * SECOND);
    assert!(limiter.try_acquire().is_err());
    assert_pending!(waiter.poll());
    clock.advance(SECOND);
    assert_ready_eq!(waiter.poll().map_ok(Grant::waited), Ok(6 * SECOND));
}

#[test]
fn a_jump_of_a_year_grants_the_burst_and_no_more() {
    let clock = ManualClock::new();
    let policy = SmoothBursty::new(Rate::per_second(1)).max_burst(3 * SECOND);
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    assert!(limiter.try_acquire().is_ok());
    let mut waiters: Vec<_> = (0..100).map(|_| waiting(&limiter)).collect();
    clock.jump(Duration::from_secs(365 * 86_400));
    // Three permits are saved, and one is granted ahead.
    let served = waiters.iter_mut().filter_map(|waiter| waiter.poll().is_ready().then_some(())).count();
    assert_eq!(served, 4);
}

#[test]
fn lateness_is_caught_up_to_the_limit_and_no_further() {
    for (late, second_due) in [(3 * MS, 10 * MS), (5 * MS, 10 * MS), (8 * MS, 13 * MS)] {
        let (limiter, clock) = without_burst(Rate::per_second(100));
        limiter.set_catch_up(5 * MS);
        assert!(limiter.try_acquire().is_ok());
        let mut first = waiting(&limiter);
        let mut second = waiting(&limiter);
        // Due at 10 ms, noticed late: charged as of 10 ms, or of 5 ms ago.
        clock.jump(10 * MS + late);
        assert_ready_eq!(first.poll().map_ok(Grant::waited), Ok(10 * MS + late));
        assert_pending!(second.poll());
        clock.advance(10 * MS + second_due - (10 * MS + late));
        assert_ready_eq!(second.poll().map_ok(Grant::waited), Ok(10 * MS + second_due), "late by {late:?}");
    }
}

#[test]
fn the_status_counts_waiters_and_takes_nothing() {
    let (limiter, clock) = one_per_second();
    let status = limiter.status();
    assert_eq!((status.available, status.waiting, status.full_in), (0, 0, SECOND));
    let _first = waiting(&limiter);
    assert_eq!(limiter.status().waiting, 1);
    // A status serves the waiters that are due.
    clock.jump(SECOND);
    assert_eq!((limiter.status().available, limiter.status().waiting), (0, 0));
    clock.advance(SECOND);
    assert_eq!((limiter.status().available, limiter.status().full_in), (1, Duration::ZERO));
}

#[test]
fn clones_share_one_limit() {
    let (limiter, _clock) = one_per_second();
    assert!(limiter.clone().try_acquire().is_err());
}

#[test]
fn an_owned_wait_outlives_the_limiter() {
    let (limiter, clock) = one_per_second();
    let mut owned = spawn_pending(limiter.acquire_owned(1));
    drop(limiter);
    clock.advance(SECOND);
    assert_ready_eq!(owned.poll().map_ok(Grant::waited), Ok(SECOND));
}

#[test]
fn a_wait_that_can_never_end_waits_until_the_rate_allows_it() {
    let (limiter, clock) = without_burst(Rate::new(1, Rate::MAX_PERIOD).expect("the slowest rate"));
    assert!(limiter.try_acquire().is_ok());
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: Nanos::MAX }));
    assert!(assert_ready!(spawn(limiter.acquire_within(Duration::MAX)).poll()).is_err());
    let mut waiter = waiting(&limiter);
    clock.advance(Duration::from_secs(10 * 365 * 86_400));
    assert_pending!(waiter.poll());
    // A refund is worth the whole debt.
    limiter.refund(1);
    assert_ready_ok!(waiter.poll());
}

#[test]
fn reservations_keep_their_position_and_are_cancelled_by_dropping() {
    let (limiter, clock) = one_per_second();
    let mut first = limiter.reserve(2).expect("two");
    let mut second = limiter.reserve(1).expect("one");
    let third = limiter.reserve(1).expect("one");
    assert_eq!((first.due_in(), second.due_in(), third.due_in()), (SECOND, 3 * SECOND, 4 * SECOND));
    assert_eq!(first.permits(), 2);
    assert!(!first.claim());
    clock.advance(SECOND);
    assert!(first.claim());
    assert!(first.claim(), "claimed once is claimed");
    drop(third);
    drop(first);
    assert_eq!(second.due_in(), 2 * SECOND);
    clock.advance(2 * SECOND);
    assert!(second.claim());
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn a_reservation_can_be_awaited_at_any_time() {
    let (limiter, clock) = one_per_second();
    let mut early = spawn(limiter.reserve(1).expect("one"));
    let mut late = spawn(limiter.reserve(1).expect("one"));
    assert_pending!(early.poll());
    clock.advance(SECOND);
    assert!(early.is_woken());
    assert_ready_eq!(early.poll().map_ok(Grant::waited), Ok(SECOND));
    clock.advance(SECOND);
    assert_ready_eq!(late.poll().map_ok(Grant::waited), Ok(2 * SECOND));
}

#[test]
fn an_unclaimed_reservation_uses_its_turn_and_holds_up_no_waiter() {
    let (limiter, clock) = one_per_second();
    let reservation = limiter.reserve(1).expect("one");
    let mut waiter = waiting(&limiter);
    clock.advance(2 * SECOND);
    assert_ready_eq!(waiter.poll().map_ok(Grant::waited), Ok(2 * SECOND));
    assert_eq!(reservation.due_in(), Duration::ZERO);
}
