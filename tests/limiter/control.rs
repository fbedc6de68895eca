//! Bounds on the queue, priorities, a reserved share, shadow mode and exempt calls.

use std::time::Duration;

use crate::support::{Limiter, MS, one_per_second, spawn_pending, waiting, without_burst};
use tidegate::Acquire;
use tidegate::{
    Grant, ManualClock, Nanos, QueueBounds, Rate, RateLimiter, Refusal, Request, SmoothBursty, TokenBucket,
    WhenFull,
};
use tokio_test::task::{Spawn, spawn};
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

type Ask<'a> = Spawn<Acquire<'a, SmoothBursty, ManualClock>>;

/// A request that has been polled once and waits.
fn asking(limiter: &Limiter, request: Request) -> Ask<'_> {
    spawn_pending(limiter.acquire_many(request))
}

fn one(priority: i8) -> Request {
    Request::permits(1).priority(priority)
}

fn full(retry_after: Duration) -> Refusal {
    Refusal::QueueFull { retry_after: Nanos::from_duration(retry_after) }
}

fn refusal_of(ask: &mut Ask<'_>) -> Refusal {
    assert!(ask.is_woken());
    assert_ready!(ask.poll()).expect_err("refused")
}

/// Returns the requests in the order in which they get the next permits, one per second.
fn served(clock: &ManualClock, mut asks: Vec<(i32, Ask<'_>)>) -> Vec<i32> {
    let mut order = Vec::new();
    for _ in 0..asks.len() {
        clock.advance(SECOND);
        asks.retain_mut(|(name, ask)| {
            let granted = ask.is_woken();
            if granted {
                assert!(assert_ready!(ask.poll()).is_ok());
                order.push(*name);
            }
            !granted
        });
    }
    order
}

// Bounds

#[test]
fn a_full_queue_refuses_waits_and_predicts_when_there_is_room() {
    let (limiter, clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(2));
    let (_first, _second) = (asking(&limiter, one(0)), asking(&limiter, one(0)));
    clock.advance(300 * MS);
    let refused = assert_ready!(spawn(limiter.acquire_many(one(0))).poll()).expect_err("full");
    assert_eq!(refused, full(700 * MS));
    assert!(refused.may_retry());
    clock.advance(700 * MS - NANO);
    assert!(assert_ready!(spawn(limiter.acquire_many(1)).poll()).is_err());
    clock.advance(NANO);
    let _third = asking(&limiter, one(0));
    assert_eq!(limiter.status().waiting, 2);
}

/// The refusal of a request with a maximum wait told the time from which it would wait no longer
/// than that, and the queue had no room for it then.
#[test]
fn a_refusal_of_a_maximum_wait_counts_the_room_in_the_queue() {
    let within = |millis: u32| Request::permits(1).within(millis * MS);
    let refused = |limiter: &Limiter, request: Request| {
        assert_ready!(spawn(limiter.acquire_many(request)).poll()).expect_err("refused")
    };
    let limited = |wait: Duration| Refusal::Limited { retry_after: wait.into() };
    let (limiter, clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(0));
    assert_eq!(refused(&limiter, within(100)), full(SECOND));
    assert_eq!(limiter.reserve(within(100)).expect_err("refused"), full(SECOND));
    clock.advance(SECOND);
    assert_ready_ok!(spawn(limiter.acquire_many(within(100))).poll());

    let (limiter, clock) = one_per_second();
    let mut first = waiting(&limiter);
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1));
    // The queue has room in a second, from when on the request would wait for a second.
    assert_eq!(refused(&limiter, within(1500)), full(SECOND));
    assert_eq!(refused(&limiter, within(1000)), limited(SECOND));
    assert_eq!(refused(&limiter, within(100)), limited(1900 * MS));
    // A waiter that is dropped makes room at once.
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1).when_full(WhenFull::DropOldest));
    assert_eq!(refused(&limiter, within(1500)), limited(500 * MS));
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1));
    clock.advance(SECOND);
    assert_ready_ok!(first.poll());
    assert_pending!(spawn(limiter.acquire_many(within(1000))).poll());
}

#[test]
fn where_no_request_may_wait_an_available_permit_is_granted() {
    let (limiter, clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(0));
    let refused = assert_ready!(spawn(limiter.acquire_many(1)).poll()).expect_err("no room");
    assert_eq!(refused, full(SECOND));
    clock.advance(SECOND);
    assert!(assert_ready!(spawn(limiter.acquire_many(1)).poll()).is_ok());

    // Holds even if the waiters have been woken and have not run yet.
    let (limiter, clock) = without_burst(Rate::per_second(1000));
    assert!(limiter.try_acquire().is_ok());
    let _unseen = waiting(&limiter);
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(0));
    clock.advance(2 * MS);
    assert!(assert_ready!(spawn(limiter.acquire_many(1)).poll()).is_ok());
}

#[test]
fn a_bound_on_permits_counts_permits_that_are_waited_for() {
    let (limiter, clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_permits(10));
    let _first = asking(&limiter, Request::permits(4));
    let _second = asking(&limiter, Request::permits(6));
    let refused = limiter.reserve(1).expect_err("full");
    assert_eq!(refused, full(SECOND));
    clock.advance(SECOND);
    // Six permits are waited for. Five more would be too many; there is room for them when the six
    // are due.
    let refused = assert_ready!(spawn(limiter.acquire_many(5)).poll()).expect_err("full");
    assert_eq!(refused, full(4 * SECOND));
    let _third = asking(&limiter, Request::permits(4));
    // A request for more permits than the bound is granted only if its permits are available at
    // once.
    let refused = assert_ready!(spawn(limiter.acquire_many(11)).poll()).expect_err("never fits");
    assert_eq!(refused, full(14 * SECOND));
}

#[test]
fn every_call_obeys_a_bound() {
    let (limiter, clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1).when_full(WhenFull::DropOldest));
    let (mut first, mut second) = (waiting(&limiter), waiting(&limiter));
    assert_eq!(assert_ready!(first.poll()), Err(Refusal::Displaced));
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1));
    assert_eq!(assert_ready!(spawn(limiter.acquire()).poll()), Err(full(SECOND)));
    assert_eq!(limiter.blocking_acquire(), Err(full(SECOND)));
    clock.advance(SECOND);
    assert_ready_ok!(second.poll());
}

#[test]
fn waiters_stay_beyond_a_bound_that_comes_later() {
    let (limiter, clock) = one_per_second();
    let mut waits: Vec<_> = (0..3).map(|_| waiting(&limiter)).collect();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1));
    assert_eq!(limiter.status().waiting, 3);
    let refused = assert_ready!(spawn(limiter.acquire()).poll()).expect_err("full");
    // Two waiters must be served first.
    assert_eq!(refused, full(3 * SECOND));
    for wait in &mut waits {
        clock.advance(SECOND);
        assert_ready_ok!(wait.poll());
    }
}

#[test]
fn the_oldest_of_the_least_important_makes_room() {
    let (limiter, _clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(3).when_full(WhenFull::DropOldest));
    let mut high = asking(&limiter, one(1));
    let mut old = asking(&limiter, one(0));
    let mut new = asking(&limiter, one(0));
    let _another = asking(&limiter, one(0));
    assert_eq!(refusal_of(&mut old), Refusal::Displaced);
    assert_pending!(high.poll());
    assert_pending!(new.poll());
    // No waiter is dropped for a new request of lower priority.
    let low = assert_ready!(spawn(limiter.acquire_many(one(-1))).poll()).expect_err("less important");
    assert!(matches!(low, Refusal::QueueFull { .. }));
    assert_eq!(limiter.status().waiting, 3);
}

#[test]
fn the_newest_of_the_least_important_makes_room_for_a_more_important_one() {
    let (limiter, _clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(3).when_full(WhenFull::DropLeastImportant));
    let mut old = asking(&limiter, one(0));
    let mut new = asking(&limiter, one(0));
    let mut high = asking(&limiter, one(1));
    let equal = assert_ready!(spawn(limiter.acquire_many(one(0))).poll()).expect_err("no more important");
    assert!(matches!(equal, Refusal::QueueFull { .. }));
    let _higher = asking(&limiter, one(2));
    assert_eq!(refusal_of(&mut new), Refusal::Displaced);
    assert_pending!(old.poll());
    assert_pending!(high.poll());
}

#[test]
fn as_many_make_room_as_need_to_or_none() {
    let (limiter, _clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_permits(6).when_full(WhenFull::DropOldest));
    let mut asks: Vec<_> = (0..3).map(|_| asking(&limiter, Request::permits(2))).collect();
    // Even dropping all three would not make enough room.
    assert!(assert_ready!(spawn(limiter.acquire_many(7)).poll()).is_err());
    assert_eq!(limiter.status().waiting, 3);
    let _large = asking(&limiter, Request::permits(3));
    assert_eq!(refusal_of(&mut asks[0]), Refusal::Displaced);
    assert_eq!(refusal_of(&mut asks[1]), Refusal::Displaced);
    assert_pending!(asks[2].poll());
    assert_eq!(limiter.status().waiting, 2);
}

#[test]
fn a_reservation_keeps_its_position_in_a_full_queue() {
    let (limiter, clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1).when_full(WhenFull::DropOldest));
    let mut reservation = limiter.reserve(1).expect("a reservation");
    assert!(assert_ready!(spawn(limiter.acquire_many(1)).poll()).is_err());
    clock.advance(SECOND);
    assert!(reservation.claim());
}

/// Regression: the refusal told when the waiter behind the reservation is served, although it is
/// dropped for the newcomer.
#[test]
fn a_full_queue_has_room_when_only_waiters_that_can_be_dropped_are_left() {
    let (limiter, clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_permits(10).when_full(WhenFull::DropOldest));
    let reservation = limiter.reserve(6).expect("a reservation");
    let mut four = asking(&limiter, Request::permits(4));
    let due = reservation.due_in();
    let seven = || limiter.acquire_many(7);
    assert_eq!(assert_ready!(spawn(seven()).poll()).expect_err("full"), full(due));
    clock.advance(due - NANO);
    assert_eq!(assert_ready!(spawn(seven()).poll()).expect_err("full"), full(NANO));
    clock.advance(NANO);
    let _seven = spawn_pending(seven());
    assert_eq!(refusal_of(&mut four), Refusal::Displaced);
}

#[test]
fn waiters_behind_a_dropped_one_move_up() {
    let (limiter, clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(2).when_full(WhenFull::DropOldest));
    let mut first = asking(&limiter, Request::permits(100));
    let mut second = asking(&limiter, one(0));
    let mut third = asking(&limiter, one(0));
    assert_eq!(refusal_of(&mut first), Refusal::Displaced);
    clock.advance(SECOND);
    assert!(assert_ready!(second.poll()).is_ok());
    clock.advance(SECOND);
    assert!(assert_ready!(third.poll()).is_ok());
}

#[test]
fn a_newcomer_that_would_be_too_late_drops_no_waiter() {
    let (limiter, _clock) = one_per_second();
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1).when_full(WhenFull::DropOldest));
    let mut first = asking(&limiter, one(0));
    let late = assert_ready!(spawn(limiter.acquire_within(SECOND)).poll()).expect_err("too late");
    assert_eq!(late, Refusal::Limited { retry_after: SECOND.into() });
    assert_pending!(first.poll());
}

// Priorities

#[test]
fn the_more_important_go_first_and_equals_in_order() {
    let (limiter, clock) = one_per_second();
    let priorities = [0, -3, 5, 0, 5, 127, -128, -3];
    let asks = priorities.iter().zip(1..).map(|(priority, name)| (name, asking(&limiter, one(*priority))));
    let asks = asks.collect();
    assert_eq!(served(&clock, asks), [6, 3, 5, 1, 4, 2, 8, 7]);
}

#[test]
fn a_try_counts_the_waiters_before_it_and_no_others() {
    let (limiter, clock) = one_per_second();
    let _low = asking(&limiter, one(-1).priority(-1));
    let _same = asking(&limiter, Request::permits(2));
    let _high = asking(&limiter, Request::permits(3).priority(1));
    for (priority, seconds) in [(2, 1), (1, 4), (0, 6), (-1, 7)] {
        let refusal = limiter.try_acquire_many(one(priority)).expect_err("not yet");
        assert_eq!(refusal.retry_after(), Some(seconds * SECOND), "{priority}");
    }
    // A request of the highest priority gets a permit that is available, whichever requests wait.
    clock.jump(SECOND);
    assert!(limiter.try_acquire_many(one(2)).is_err(), "the head was due first");
}

#[test]
fn a_new_rate_is_counted_for_every_priority() {
    let (limiter, _clock) = one_per_second();
    let _waits = (asking(&limiter, one(1)), asking(&limiter, one(0)));
    limiter.set_rate(Rate::per_second(10));
    for (priority, millis) in [(2, 1000), (1, 1100), (0, 1200), (-1, 1200)] {
        let refusal = limiter.try_acquire_many(one(priority)).expect_err("not yet");
        assert_eq!(refusal.retry_after(), Some(millis * MS), "{priority}");
    }
}

#[test]
fn threads_behind_each_other_and_behind_tasks_check_their_own_turns() {
    let (limiter, clock) = one_per_second();
    let mut tasks = [asking(&limiter, one(1)), asking(&limiter, one(-1))];
    std::thread::scope(|scope| {
        let threads: Vec<_> = [0, 0, -1, 2]
            .into_iter()
            .zip(3..)
            .map(|(priority, waiting)| {
                let limiter = &limiter;
                let thread = scope.spawn(move || limiter.blocking_acquire_many(one(priority)));
                while limiter.status().waiting < waiting {
                    std::thread::yield_now();
                }
                thread
            })
            .collect();
        clock.advance(6 * SECOND);
        let waited: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        assert_eq!(waited.len(), 4);
        assert!(waited.iter().all(Result::is_ok));
    });
    for task in &mut tasks {
        assert!(assert_ready!(task.poll()).is_ok());
    }
}

#[test]
fn an_important_try_passes_waiters_for_more() {
    let clock = ManualClock::new();
    let limiter =
        RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 5).start_empty(), clock.clone());
    let mut bulk = spawn_pending(limiter.acquire_many(5));
    clock.advance(3 * SECOND);
    assert!(limiter.try_acquire().is_err());
    assert!(limiter.try_acquire_many(one(1)).is_ok());
    assert!(assert_ready!(spawn(limiter.acquire_many(one(1))).poll()).is_ok());
    clock.advance(4 * SECOND - NANO);
    assert!(!bulk.is_woken());
    clock.advance(NANO);
    assert!(assert_ready!(bulk.poll()).is_ok());
}

#[test]
fn a_waiter_that_a_more_important_one_makes_too_late_is_refused_at_once() {
    let (limiter, _clock) = one_per_second();
    let mut low = asking(&limiter, one(0).within(2 * SECOND));
    let mut patient = asking(&limiter, one(0).within(10 * SECOND));
    let _first = asking(&limiter, one(1));
    assert_pending!(low.poll());
    let _second = asking(&limiter, one(1));
    // Due at 3 s behind the two waiters; this call is accepted from 1 s on.
    assert_eq!(refusal_of(&mut low), Refusal::Limited { retry_after: (2 * SECOND).into() });
    assert_pending!(patient.poll());
}

#[test]
fn a_thread_and_a_task_of_different_priority_are_both_served() {
    let (limiter, clock) = one_per_second();
    let mut task = asking(&limiter, one(0));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| limiter.blocking_acquire_many(one(1)));
        while limiter.status().waiting < 2 {
            std::thread::yield_now();
        }
        clock.advance(SECOND);
        assert_eq!(thread.join().expect("no panic").map(Grant::waited), Ok(SECOND));
        assert!(!task.is_woken());
        clock.advance(SECOND);
        assert!(assert_ready!(task.poll()).is_ok());
    });
}

// The reserved share

fn bucket_of_ten() -> (RateLimiter<TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 10), clock.clone()), clock)
}

#[test]
fn the_kept_share_is_for_the_important() {
    let (limiter, clock) = bucket_of_ten();
    limiter.keep_for_priority(4, 1);
    let taken = (0..10).take_while(|_| limiter.try_acquire().is_ok()).count();
    assert_eq!(taken, 6);
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: SECOND.into() }));
    assert!(limiter.try_acquire_many(one(1).priority(1)).is_ok());
    // Two permits must accrue before four are left.
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: (2 * SECOND).into() }));
    clock.advance(2 * SECOND - NANO);
    assert!(limiter.try_acquire().is_err());
    clock.advance(NANO);
    assert!(limiter.try_acquire().is_ok());
    limiter.keep_for_priority(0, 1);
    assert!(limiter.try_acquire_many(4).is_ok());
}

#[test]
fn a_waiter_for_more_than_is_kept_does_not_hold_up_the_important() {
    let (limiter, clock) = bucket_of_ten();
    limiter.try_acquire_many(8).expect("full");
    limiter.keep_for_priority(2, 1);
    let mut low = spawn_pending(limiter.acquire());
    assert!(limiter.try_acquire_many(one(1)).is_ok());
    clock.advance(2 * SECOND - NANO);
    assert!(!low.is_woken());
    clock.advance(NANO);
    assert_ready_ok!(low.poll());
}

#[test]
fn more_than_the_burst_less_the_kept_share_can_never_be_had() {
    let (limiter, _clock) = bucket_of_ten();
    let mut waits = spawn(limiter.acquire_many(8));
    limiter.try_acquire_many(9).expect("full");
    assert_pending!(waits.poll());
    limiter.keep_for_priority(4, 1);
    let never = |requested| Err(Refusal::ExceedsLimit { requested, limit: 6 });
    assert_eq!(assert_ready!(waits.poll()).map(Grant::waited), never(8).map(|()| SECOND));
    assert_eq!(limiter.try_acquire_many(7).map(drop), never(7));
    assert!(limiter.try_acquire_many(6).expect_err("not yet").may_retry());
    assert!(limiter.try_acquire_many(Request::permits(7).priority(1)).expect_err("not yet").may_retry());

    // The share is all permits, and more than all: a single permit waits until the share changes.
    limiter.keep_for_priority(u32::MAX, i8::MAX);
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: Nanos::MAX }));
    let mut wait = spawn_pending(limiter.acquire());
    limiter.refund(10);
    assert!(!wait.is_woken());
    limiter.keep_for_priority(0, 0);
    assert_ready_ok!(wait.poll());
}

#[test]
fn with_guava_a_permit_on_credit_counts_as_left() {
    let clock = ManualClock::new();
    let policy = SmoothBursty::new(Rate::per_second(5)).start_full();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    limiter.keep_for_priority(2, 1);
    let taken = (0..10).take_while(|_| limiter.try_acquire().is_ok()).count();
    assert_eq!((taken, limiter.status().available), (4, 2));
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: (200 * MS).into() }));
}

// Shadow mode and exempt requests

#[test]
fn in_shadow_everything_passes_and_no_request_waits() {
    let (limiter, _clock) = one_per_second();
    let mut waits = (waiting(&limiter), asking(&limiter, one(0)));
    limiter.set_shadow(true);
    assert!(limiter.is_shadow());
    assert_ready_ok!(waits.0.poll());
    assert!(assert_ready!(waits.1.poll()).is_ok());
    limiter.pause_for(SECOND);
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(0));
    assert_eq!(limiter.try_acquire_many(1000).map(drop), Ok(()));
    assert_eq!(limiter.try_acquire_many(0).map(drop), Ok(()));
    assert_eq!(assert_ready!(spawn(limiter.acquire()).poll()).map(Grant::waited), Ok(Duration::ZERO));
    assert_eq!(
        assert_ready!(spawn(limiter.acquire_within(MS)).poll()).map(Grant::waited),
        Ok(Duration::ZERO)
    );
    assert_eq!(limiter.blocking_acquire().map(Grant::waited), Ok(Duration::ZERO));
    assert!(limiter.reserve(5).expect("everything passes").claim());
    // After shadow mode the limiter is as before: requests granted in shadow mode took nothing.
    limiter.set_shadow(false);
    limiter.resume();
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: SECOND.into() }));
}

#[test]
fn an_exempt_call_passes_at_once_and_takes_nothing() {
    let (limiter, _clock) = one_per_second();
    let _first = waiting(&limiter);
    limiter.pause_for(SECOND);
    let exempt = Request::permits(u32::MAX).exempt();
    assert_eq!(limiter.try_acquire_many(exempt).map(drop), Ok(()));
    assert_eq!(
        assert_ready!(spawn(limiter.acquire_many(exempt)).poll()).map(Grant::waited),
        Ok(Duration::ZERO)
    );
    assert_eq!(limiter.blocking_acquire_many(exempt).map(Grant::waited), Ok(Duration::ZERO));
    assert_eq!(limiter.try_acquire(), Err(Refusal::Paused { retry_after: (3 * SECOND).into() }));
}

#[test]
fn a_stock_of_any_size_is_drained_at_once() {
    for text in
        ["smooth_bursty 1e26/us max_burst 1s start_full", "smooth_bursty 1e13/s max_burst 3d start_full"]
    {
        let policy: tidegate::AnyPolicy = text.parse().expect("a policy");
        let limiter = RateLimiter::with_clock(policy, ManualClock::new());
        let available = limiter.status().available;
        assert!(available > u64::from(u32::MAX));
        assert_eq!(limiter.drain(), available);
        assert_eq!(limiter.status().available, 0);
    }
}
