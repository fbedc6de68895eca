//! Faults that occurred or could occur: reservations after idling, wakers that panic, block or call
//! the limiter, a clock that goes back.

use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::support::{MS, one_per_second, spawn_pending, waiting, without_burst};
use tidegate::{AcquireOwned, ManualClock, Nanos, Rate, RateLimiter, Refusal, SmoothBursty, SmoothWarmingUp};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn reservations_after_idling_get_the_burst_and_no_more() {
    // Bug: a reservation was charged as of the time at which no permit was stored, however long
    // ago: an hour of idling was worth an hour of permits.
    let (limiter, clock) = without_burst(Rate::per_second(1));
    clock.advance(3600 * SECOND);
    let mut held: Vec<_> = (0..100).map(|_| limiter.reserve(1).expect("one")).collect();
    assert_eq!(held.iter_mut().filter_map(|reservation| reservation.claim().then_some(())).count(), 1);

    let limiter = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(5)), clock.clone());
    clock.jump(3600 * SECOND);
    let mut held: Vec<_> = (0..100).map(|_| limiter.reserve(1).expect("one")).collect();
    assert_eq!(held.iter_mut().filter_map(|reservation| reservation.claim().then_some(())).count(), 6);
}

#[test]
fn a_waker_that_panics_stops_no_other() {
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }

    let (limiter, clock) = one_per_second();
    let waker = Waker::from(Arc::new(Panics));
    let mut bad = pin!(limiter.acquire());
    assert!(bad.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let mut others: Vec<_> = (0..3).map(|_| waiting(&limiter)).collect();
    let advancing = clock.clone();
    assert!(thread::spawn(move || advancing.advance(SECOND)).join().is_err());
    clock.advance(3 * SECOND);
    for other in &mut others {
        assert!(other.is_woken());
        assert_ready_ok!(other.poll());
    }
}

#[test]
fn a_waker_that_takes_its_time_holds_up_no_other() {
    struct Slow(Mutex<(mpsc::Sender<()>, mpsc::Receiver<()>)>);

    impl Wake for Slow {
        fn wake(self: Arc<Self>) {
            let (called, let_go) = &*self.0.lock().expect("no panic");
            called.send(()).expect("the test waits for it");
            let_go.recv().expect("the test lets go");
        }
    }

    let (limiter, clock) = one_per_second();
    let ((called, calls), (let_go, held)) = (mpsc::channel(), mpsc::channel());
    let waker = Waker::from(Arc::new(Slow(Mutex::new((called, held)))));
    let mut bad = Box::pin(limiter.acquire_owned(1));
    assert!(bad.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let mut second = waiting(&limiter);
    thread::scope(|scope| {
        scope.spawn(|| clock.jump(SECOND));
        // From here on, any call might be the one that serves the waiters, and be delayed itself.
        calls.recv().expect("it is called");
        clock.advance(SECOND);
        assert!(second.is_woken());
        let_go.send(()).expect("it waits");
    });
    assert_ready_ok!(second.poll());
}

#[test]
fn a_waker_may_advance_the_clock() {
    struct Advances(ManualClock);

    impl Wake for Advances {
        fn wake(self: Arc<Self>) {
            self.0.advance(5 * SECOND);
        }
    }

    let (limiter, clock) = one_per_second();
    let waker = Waker::from(Arc::new(Advances(clock.clone())));
    let mut first = pin!(limiter.acquire());
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let mut others: Vec<_> = (0..3).map(|_| waiting(&limiter)).collect();
    clock.advance(SECOND);
    for other in &mut others {
        assert_ready_ok!(other.poll());
    }
}

#[test]
fn a_waker_that_owns_a_wait_of_its_own_limiter_can_be_dropped() {
    struct Owns(#[allow(dead_code)] Mutex<Box<dyn Send>>);

    impl Wake for Owns {
        fn wake(self: Arc<Self>) {}
    }

    let (limiter, clock) = one_per_second();
    let mut owned = Box::pin(limiter.acquire_owned(1));
    assert!(owned.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let waker = Waker::from(Arc::new(Owns(Mutex::new(Box::new(owned)))));
    let mut wait = Box::pin(limiter.acquire_owned(1));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    // This poll replaces the waker. The old waker's drop drops a wait for this limiter.
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(limiter.status().waiting, 1);
    clock.advance(SECOND);
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn cancelled_grants_do_not_cool_a_warm_limiter() {
    let make = || {
        let clock = ManualClock::new();
        let policy = SmoothWarmingUp::new(Rate::per_second(2), 4 * SECOND).start_warm();
        (RateLimiter::with_clock(policy, clock.clone()), clock)
    };
    let ((with, clock), (without, other)) = (make(), make());
    for _ in 0..40 {
        assert!(with.try_acquire().is_ok() && without.try_acquire().is_ok());
        let cancelled = (waiting(&with), waiting(&with));
        clock.advance(1490 * MS);
        drop(cancelled);
        clock.advance(10 * MS);
        other.advance(1500 * MS);
    }
    assert!(with.try_acquire().is_ok() && without.try_acquire().is_ok());
    assert_eq!(with.try_acquire(), without.try_acquire());
}

#[test]
fn retry_after_of_a_waiter_that_a_lower_rate_refuses_is_exact() {
    let (limiter, clock) = one_per_second();
    let within = 5 * SECOND;
    let _first = waiting(&limiter);
    let mut second = spawn_pending(limiter.acquire_within(within));
    clock.advance(500 * MS);
    limiter.set_rate("1/10s".parse().expect("a rate"));
    let Poll::Ready(Err(refusal)) = second.poll() else { panic!("refused at once") };
    // Due at 11 s: this call is accepted from 6 s on.
    let after = refusal.retry_after().expect("later");
    assert_eq!(after, 5500 * MS);
    clock.advance(after - Duration::from_nanos(1));
    assert!(assert_ready!(spawn(limiter.acquire_within(within)).poll()).is_err());
    clock.advance(Duration::from_nanos(1));
    assert_pending!(spawn(limiter.acquire_within(within)).poll());
}

#[test]
fn a_program_that_stood_still_too_long_refuses_waiters_too_late_by_it() {
    let (limiter, clock) = without_burst(Rate::per_second(100));
    assert!(limiter.try_acquire().is_ok());
    let _first = waiting(&limiter);
    let mut second = spawn_pending(limiter.acquire_within(20 * MS));
    // The first waiter was due at 10 ms and is charged as of 15 ms, 10 ms ago. So the second is due
    // at 25 ms.
    clock.jump(25 * MS);
    assert!(assert_ready!(second.poll()).is_err());
}

#[test]
fn a_clock_that_goes_back_does_not_make_an_undone_grant_worth_more() {
    let clock = ManualClock::new();
    let policy = SmoothBursty::new(Rate::per_second(1)).max_burst(10 * SECOND);
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    assert!(limiter.try_acquire().is_ok());
    let unseen: Vec<_> = (0..10).map(|_| waiting(&limiter)).collect();
    clock.advance(1000 * SECOND);
    let mut granted = 0;
    while limiter.try_acquire().is_ok() {
        granted += 1;
    }
    clock.set(Nanos::new(5_000_000_000));
    drop(unseen);
    clock.set(Nanos::new(1_000_000_000_000));
    while limiter.try_acquire().is_ok() {
        granted += 1;
    }
    assert_eq!(granted, 11);
}

#[test]
fn advancing_serves_blocked_threads_at_their_own_times() {
    let (limiter, clock) = one_per_second();
    thread::scope(|scope| {
        let blocked: Vec<_> = (1..=2)
            .map(|position| {
                let thread = scope.spawn(|| limiter.blocking_acquire());
                while limiter.status().waiting < position {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        // The time advances in one step, and both waiters are served.
        clock.advance(2 * SECOND);
        assert_eq!(limiter.status().waiting, 0);
        for thread in blocked {
            thread.join().expect("no panic").expect("a permit");
        }
    });
}

type Bursty = RateLimiter<SmoothBursty, ManualClock>;

/// One permit per second and ten saved. Ten waiters are granted at 10 s, and have not seen that. At
/// 11 s no permit is stored.
fn ten_unseen() -> (Bursty, ManualClock, Vec<AcquireOwned<SmoothBursty, ManualClock>>) {
    let clock = ManualClock::new();
    let policy = SmoothBursty::new(Rate::per_second(1)).max_burst(10 * SECOND);
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    assert!(limiter.try_acquire().is_ok());
    let wait = |_| {
        let wait = spawn_pending(limiter.acquire_owned(1));
        wait.into_inner()
    };
    let waits = (0..10).map(wait).collect();
    clock.jump(10 * SECOND);
    assert_eq!(limiter.status().waiting, 0);
    (limiter, clock, waits)
}

fn take_all(limiter: &Bursty) -> usize {
    (0..1000).take_while(|_| limiter.try_acquire().is_ok()).count()
}

#[test]
fn leaving_unlimited_with_unseen_grants_invents_nothing() {
    let (limiter, clock, waits) = ten_unseen();
    limiter.set_rate(Rate::UNLIMITED);
    clock.advance(SECOND);
    limiter.set_rate(Rate::per_second(1));
    assert_eq!(take_all(&limiter), 11);
    drop(waits);
    assert_eq!(take_all(&limiter), 0);
}

#[test]
fn unseen_grants_leave_no_trace_in_whatever_order_they_are_dropped() {
    let (limiter, _clock, waits) = ten_unseen();
    drop(waits);
    assert_eq!(take_all(&limiter), 10);

    let (limiter, _clock, mut waits) = ten_unseen();
    while let Some(last) = waits.pop() {
        drop(last);
    }
    assert_eq!(take_all(&limiter), 10);
}

#[test]
fn one_leaked_grant_does_not_keep_all_requests_in_line() {
    let (limiter, clock) = without_burst(Rate::per_second(1000));
    assert!(limiter.try_acquire().is_ok());
    std::mem::forget(waiting(&limiter));
    clock.advance(MS);
    let mut held_up = 0;
    for _ in 0..1000 {
        clock.advance(5 * MS);
        let mut acquire = spawn(limiter.acquire());
        if acquire.poll().is_pending() {
            held_up += 1;
            assert_ready_ok!(acquire.poll());
        }
    }
    // At most the calls of two rounds of 10 ms are delayed. Each round ends at the first call after
    // it.
    assert!(held_up <= 6, "{held_up}");
}

#[test]
fn an_unseen_grant_keeps_newcomers_in_line_for_two_rounds() {
    let tick = Duration::from_nanos(1);
    // When each new request arrives, counted from the grant, and whether it must join the queue. A
    // round of 10 ms ends at the first call after it.
    let cases: [&[(Duration, bool)]; 2] = [
        &[(10 * MS, true), (20 * MS, true), (30 * MS, true), (30 * MS + tick, false)],
        &[(20 * MS + tick, false)],
    ];
    for newcomers in cases {
        let (limiter, clock) = without_burst(Rate::per_second(1000));
        assert!(limiter.try_acquire().is_ok());
        std::mem::forget(waiting(&limiter));
        clock.advance(MS);
        for &(comes, joins) in newcomers {
            clock.set(Nanos::from_duration(MS + comes));
            let mut newcomer = spawn(limiter.acquire());
            assert_eq!(newcomer.poll().is_pending(), joins, "{comes:?}");
            drop(newcomer);
        }
    }
}

#[test]
fn a_grant_that_is_seen_in_a_later_round_keeps_no_newcomer_in_line() {
    let (limiter, clock) = without_burst(Rate::per_second(1000));
    assert!(limiter.try_acquire().is_ok());
    let mut granted = waiting(&limiter);
    clock.advance(MS);
    // More than a round of 10 ms later. The new request joins the queue behind the grant.
    clock.advance(15 * MS);
    assert_ready_ok!(waiting(&limiter).poll());
    assert_ready_ok!(granted.poll());
    clock.advance(MS);
    assert_ready_ok!(spawn(limiter.acquire()).poll());
}

#[test]
fn two_wakers_that_panic_do_not_abort() {
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }

    let (limiter, clock) = one_per_second();
    limiter.set_catch_up(SECOND);
    let waker = Waker::from(Arc::new(Panics));
    let mut bad: Vec<_> = (0..2).map(|_| Box::pin(limiter.acquire_owned(1))).collect();
    for wait in &mut bad {
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert!(thread::spawn(move || clock.jump(2 * SECOND)).join().is_err());
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn a_newcomer_behind_a_woken_waiter_is_charged_as_of_now() {
    let (limiter, clock) = without_burst(Rate::per_second(1000));
    assert!(limiter.try_acquire().is_ok());
    let _woken = waiting(&limiter);
    clock.advance(MS);
    // The next permit is due at 2 ms, and the new request arrives at 2.5 ms. Bug: it was charged as
    // if it had arrived at 2 ms.
    clock.advance(MS + MS / 2);
    let mut newcomer = waiting(&limiter);
    assert_ready_ok!(newcomer.poll());
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: MS.into() }));
}

#[test]
fn a_leaked_grant_does_not_make_the_others_worth_less() {
    let (limiter, clock) = one_per_second();
    std::mem::forget(waiting(&limiter));
    clock.advance(SECOND);
    // Bug: the undone grant was remembered for as long as the leaked one lasts, which is forever.
    let undone = waiting(&limiter);
    clock.advance(SECOND);
    drop(undone);
    clock.advance(10 * SECOND);
    assert!(limiter.try_acquire().is_ok());
    let undone = waiting(&limiter);
    clock.advance(SECOND);
    drop(undone);
    assert_eq!(limiter.try_acquire().map(drop), Ok(()));
}
