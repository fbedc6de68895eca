//! Several runtimes that share one limiter, and that stall, end, or pass a waiter to another
//! runtime. All tests use the manual clock.

use std::thread;
use std::time::Duration;

use crate::support::loops::Loops;
use crate::support::spawn_pending;
use tidegate::AcquireOwned;
use tidegate::{ManualClock, Rate, RateLimiter, SmoothBursty};
use tokio_test::task::{Spawn, spawn};
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};

const MS: Duration = Duration::from_millis(1);

type Limiter = RateLimiter<SmoothBursty, Loops>;
type Waiter = Spawn<AcquireOwned<SmoothBursty, Loops>>;

/// One permit every 10 ms, none saved, and the first one taken.
fn one_each_10_ms() -> (Limiter, ManualClock, Loops) {
    let clock = ManualClock::new();
    let loops = Loops::new(clock.clone());
    let policy = SmoothBursty::new(Rate::per_second(100)).max_burst(Duration::ZERO);
    let limiter = RateLimiter::with_clock(policy, loops.clone());
    assert!(limiter.try_acquire().is_ok());
    (limiter, clock, loops)
}

/// Returns a future that was polled once in a runtime, and waits.
fn waiting_in(name: u32, limiter: &Limiter, loops: &Loops) -> Spawn<AcquireOwned<SmoothBursty, Loops>> {
    loops.enter(name);
    let future = spawn_pending(limiter.acquire_owned(1));
    loops.enter(None);
    future
}

/// Asserts that the waiter is woken when the next permit is due, and granted.
fn assert_served_in_10_ms(waiter: &mut Spawn<AcquireOwned<SmoothBursty, Loops>>, clock: &ManualClock) {
    clock.advance(10 * MS);
    assert!(waiter.is_woken());
    assert_ready_ok!(waiter.poll());
}

#[test]
fn a_stalled_loop_delays_the_waiters_of_another_by_the_slack_at_most() {
    let (limiter, clock, loops) = one_each_10_ms();
    let _first = waiting_in(1, &limiter, &loops);
    let mut second = waiting_in(2, &limiter, &loops);
    loops.stall(1);
    clock.advance(20 * MS);
    assert!(second.is_woken());
    assert_ready_ok!(second.poll());
}

#[test]
fn a_stalled_loop_costs_the_others_nothing_but_its_turns() {
    let (limiter, clock, loops) = one_each_10_ms();
    let _stalled: Vec<_> = (0..50).map(|_| waiting_in(1, &limiter, &loops)).collect();
    let mut last = waiting_in(2, &limiter, &loops);
    loops.stall(1);
    clock.advance(51 * 10 * MS - MS);
    assert_pending!(last.poll());
    // The waiters are charged as of their times, although other runtimes had to serve them: the
    // rate is kept.
    clock.advance(MS + 5 * MS);
    assert_ready_ok!(last.poll());
}

/// Blocks a thread behind one waiter, runs `then`, and advances the clock until the thread is
/// served.
fn a_blocked_thread_is_served_behind_one(limiter: &Limiter, clock: &ManualClock, then: impl FnOnce()) {
    thread::scope(|scope| {
        let blocked = scope.spawn(|| limiter.blocking_acquire());
        while limiter.status().waiting < 2 {
            thread::yield_now();
        }
        then();
        while !blocked.is_finished() {
            clock.advance(MS);
            thread::yield_now();
        }
    });
}

#[test]
fn a_blocked_thread_behind_a_stalled_loop_is_served() {
    let (limiter, clock, loops) = one_each_10_ms();
    let _first = waiting_in(1, &limiter, &loops);
    loops.stall(1);
    a_blocked_thread_is_served_behind_one(&limiter, &clock, || ());
}

#[test]
fn a_blocked_thread_behind_a_lost_alarm_is_served() {
    let (limiter, clock, loops) = one_each_10_ms();
    std::mem::forget(waiting_in(1, &limiter, &loops));
    // The alarm goes off far too early and is lost. Only the thread is left to check the queue.
    a_blocked_thread_is_served_behind_one(&limiter, &clock, || loops.end(1));
}

#[test]
fn a_waiter_that_moves_to_another_loop_is_woken_by_that_one() {
    let (limiter, clock, loops) = one_each_10_ms();
    let mut moved = waiting_in(1, &limiter, &loops);
    loops.stall(1);
    loops.enter(2);
    assert_pending!(moved.poll());
    assert_served_in_10_ms(&mut moved, &clock);
}

#[test]
fn a_reservation_is_woken_by_the_loop_that_awaits_it() {
    let (limiter, clock, loops) = one_each_10_ms();
    let mut reservation = spawn(limiter.reserve(1).expect("one"));
    loops.enter(1);
    assert_pending!(reservation.poll());
    loops.stall(1);
    loops.enter(2);
    assert_pending!(reservation.poll());
    clock.advance(10 * MS);
    assert!(reservation.is_woken());
}

#[test]
fn waiters_that_relied_on_a_loop_that_ended_are_woken_to_get_another_alarm() {
    let (limiter, clock, loops) = one_each_10_ms();
    let mut moved = waiting_in(1, &limiter, &loops);
    loops.end(1);
    assert!(moved.is_woken());
    loops.enter(2);
    assert_pending!(moved.poll());
    assert_served_in_10_ms(&mut moved, &clock);
}

#[test]
fn a_loop_that_ends_when_the_head_is_due_is_noticed() {
    let (limiter, clock, loops) = one_each_10_ms();
    let mut first = waiting_in(1, &limiter, &loops);
    let mut second = waiting_in(1, &limiter, &loops);
    loops.stall(1);
    clock.advance(10 * MS);
    // The last alarm is on time. It is set again, which finds that the runtime has ended.
    loops.end(1);
    assert!(first.is_woken() && second.is_woken());
    loops.enter(2);
    assert_ready_ok!(first.poll());
    assert_pending!(second.poll());
    clock.advance(10 * MS);
    assert_ready_ok!(second.poll());
}

#[test]
fn loops_that_end_do_not_make_a_healthy_one_suspect() {
    let (limiter, clock, loops) = one_each_10_ms();
    for name in 1..100 {
        let waiter = waiting_in(name, &limiter, &loops);
        loops.end(name);
        drop(waiter);
    }
    let mut reservation = spawn(limiter.reserve(1).expect("one"));
    loops.enter(100);
    assert_pending!(reservation.poll());
    clock.advance(10 * MS);
    assert_ready!(reservation.poll()).expect("granted");
}

#[test]
fn a_waiter_outlives_any_number_of_loops() {
    let (limiter, clock, loops) = one_each_10_ms();
    let mut waiter = waiting_in(0, &limiter, &loops);
    for name in 1..100 {
        loops.end(name - 1);
        assert!(waiter.is_woken());
        loops.enter(name);
        assert_pending!(waiter.poll());
        loops.enter(None);
    }
    clock.advance(10 * MS);
    assert_ready_ok!(waiter.poll());
}

/// As when the thread of the default clock cannot be started: each new alarm is gone, too. Bug: the
/// limiter took that for a clock that does not match its timer, and panicked.
#[test]
fn tasks_without_a_timer_are_polled_until_they_are_served() {
    let (limiter, clock, loops) = one_each_10_ms();
    loops.end(1);
    let mut waiters = [waiting_in(1, &limiter, &loops), waiting_in(1, &limiter, &loops)];
    loops.enter(1);
    for _ in 0..100 {
        for waiter in &mut waiters {
            assert!(waiter.is_woken());
            assert_pending!(waiter.poll());
        }
    }
    clock.advance(10 * MS);
    assert_ready_ok!(waiters[0].poll());
    assert!(waiters[1].is_woken());
    assert_pending!(waiters[1].poll());
    clock.advance(10 * MS);
    assert_ready_ok!(waiters[1].poll());
}

#[test]
fn a_timer_that_panics_costs_no_waiter_its_position_or_its_alarm() {
    let (limiter, clock, loops) = one_each_10_ms();
    loops.panic_once(1);
    let (asking, inside) = (limiter.clone(), loops.clone());
    let ask = move || {
        inside.enter(1);
        spawn(asking.acquire_owned(1)).poll().is_ready()
    };
    assert!(thread::spawn(ask).join().is_err());
    assert_eq!(limiter.status().waiting, 0);
    // Bug: the alarm of this runtime was kept for good.
    let mut next = waiting_in(1, &limiter, &loops);
    assert_served_in_10_ms(&mut next, &clock);
}

#[test]
fn waiters_that_lost_their_alarm_do_not_all_go_at_once() {
    let (limiter, clock, loops) = one_each_10_ms();
    let mut all: Vec<_> = (0..50).map(|_| waiting_in(1, &limiter, &loops)).collect();
    loops.end(1);
    clock.jump(Duration::from_secs(1));
    loops.enter(2);
    let granted = all.iter_mut().filter_map(|waiter| waiter.poll().is_ready().then_some(())).count();
    // One permit of 10 ms ago, which is the catch-up, and one of now.
    assert_eq!(granted, 2);
}

#[test]
fn a_caller_that_panics_outside_of_a_loop_loses_no_other_wake_up() {
    let (limiter, clock, loops) = one_each_10_ms();
    let mut waiter = waiting_in(1, &limiter, &loops);
    loops.stall(1);
    clock.advance(10 * MS);
    let outside = limiter.clone();
    let poll = move || spawn(outside.acquire_owned(1)).poll().is_ready();
    assert!(thread::spawn(poll).join().is_err());
    // No alarm goes off in its own runtime, so the next call must serve it.
    assert!(limiter.try_acquire().is_err());
    assert!(waiter.is_woken());
    assert_ready_ok!(waiter.poll());
}

#[test]
fn a_permit_that_is_there_needs_no_loop() {
    let (limiter, clock, loops) = one_each_10_ms();
    std::mem::forget(waiting_in(1, &limiter, &loops));
    clock.advance(10 * MS);
    clock.advance(Duration::from_secs(3600));
    assert_ready_ok!(spawn(limiter.acquire()).poll());
}

#[test]
fn a_reservation_that_is_due_needs_no_loop() {
    let (limiter, clock, _loops) = one_each_10_ms();
    let mut reservation = spawn(limiter.reserve(1).expect("one"));
    clock.advance(10 * MS);
    assert_ready!(reservation.poll()).expect("granted");
}

#[test]
fn a_lost_waiter_that_is_due_needs_no_loop() {
    let (limiter, clock, loops) = one_each_10_ms();
    let mut lost = waiting_in(1, &limiter, &loops);
    loops.end(1);
    clock.jump(10 * MS);
    assert_ready_ok!(lost.poll());
}

/// One waiter in each of `count` runtimes, which waits again after each grant, at 200 permits per
/// second.
fn crowd(count: u32) -> (Limiter, ManualClock, Loops, Vec<Waiter>) {
    let clock = ManualClock::new();
    let loops = Loops::new(clock.clone());
    let policy = SmoothBursty::new(Rate::per_second(200)).max_burst(Duration::ZERO);
    let limiter = RateLimiter::with_clock(policy, loops.clone());
    assert!(limiter.try_acquire().is_ok());
    let waiters = (0..count).map(|name| waiting_in(name, &limiter, &loops)).collect();
    (limiter, clock, loops, waiters)
}

/// Advances the clock by a step. Granted requests wait again in their runtimes. Returns how many
/// were granted.
fn go_on(limiter: &Limiter, clock: &ManualClock, loops: &Loops, waiters: &mut [Waiter]) -> usize {
    clock.advance(MS);
    let mut granted = 0;
    for (name, waiter) in (0..).zip(waiters) {
        loops.enter(name);
        if waiter.is_woken() && waiter.poll().is_ready() {
            granted += 1;
            *waiter = waiting_in(name, limiter, loops);
        }
        loops.enter(None);
    }
    granted
}

#[test]
fn only_the_loop_of_the_head_is_woken_while_it_runs() {
    for count in [2, 10, 100, 300] {
        let (limiter, clock, loops, mut waiters) = crowd(count);
        // The steps it takes until all runtimes have their roles.
        let mut run =
            |steps| (0..steps).map(|_| go_on(&limiter, &clock, &loops, &mut waiters)).sum::<usize>();
        run(100);
        let before = loops.rings();
        let granted = run(2_000);
        assert_eq!(granted, 400, "{count} loops");
        assert!(loops.rings() - before <= 2 * granted, "{} rings of {count} loops", loops.rings() - before);
    }
}

#[test]
fn loops_that_stall_one_after_another_hold_up_the_others_for_the_slack_at_most() {
    let (limiter, clock, loops, mut waiters) = crowd(100);
    for name in 0..50 {
        loops.stall(name);
        for _ in 0..10 {
            go_on(&limiter, &clock, &loops, &mut waiters);
        }
    }
    // The permits of the others are granted on time, or 5 ms later behind a runtime that has
    // stalled.
    let mut granted = 0;
    for _ in 0..2_000 {
        granted += go_on(&limiter, &clock, &loops, &mut waiters);
    }
    assert!(granted >= 398, "{granted}");
}

#[test]
fn many_loops_that_stall_at_once_hold_up_the_others_for_a_moment() {
    let (limiter, clock, loops, mut waiters) = crowd(100);
    for _ in 0..50 {
        go_on(&limiter, &clock, &loops, &mut waiters);
    }
    for name in 0..99 {
        loops.stall(name);
    }
    // It takes a second until the remaining runtime checks the queue. From then on it is the
    // reserve.
    let mut last = 0;
    for _ in 0..1_100 {
        go_on(&limiter, &clock, &loops, &mut waiters);
    }
    for step in 0..2_000 {
        if go_on(&limiter, &clock, &loops, &mut waiters) > 0 {
            assert!(step - last <= 12, "{step}");
            last = step;
        }
    }
    assert!(last > 0);
}

/// A refund makes the head due 10 ms earlier. Bug: it set the alarm of each of the loops.
#[test]
fn a_head_that_is_due_earlier_sets_few_alarms() {
    let (limiter, clock, loops) = one_each_10_ms();
    let mut waiters: Vec<_> = (0..64).map(|name| waiting_in(name, &limiter, &loops)).collect();
    limiter.debit(1);
    clock.advance(3 * MS);
    // An alarm that was set in the last 2 ms is not moved later.
    assert_eq!(limiter.status().waiting, 64);
    clock.advance(3 * MS);
    let before = loops.resets();
    limiter.refund(1);
    assert_eq!(loops.resets() - before, 3, "the alarms of the head and of two reserves");
    clock.advance(4 * MS);
    assert!(waiters[0].is_woken());
    assert_ready_ok!(waiters[0].poll());
}
