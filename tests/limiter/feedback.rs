//! Feedback of a server: debts, draining, a reset; a second limiter for requests that the first one
//! refuses; and observers of all that.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use crate::support::log::Log;
use crate::support::{MS, PATIENCE, one_per_second, spawn_pending, waiting, without_burst};
use tidegate::policy::AnyPolicy;
use tidegate::{
    Events, ManualClock, Policy, QueueBounds, Rate, RateLimiter, Refusal, Request, Statistics, TokenBucket,
    Unlimited, WhenFull,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

fn limited(retry_after: Duration) -> Refusal {
    Refusal::Limited { retry_after: retry_after.into() }
}

// Debts

#[test]
fn a_debit_moves_waiters_back() {
    let (limiter, clock) = one_per_second();
    let mut first = waiting(&limiter);
    let mut in_time = spawn(limiter.acquire_within(5 * SECOND));
    let mut too_late = spawn(limiter.acquire_within(4 * SECOND));
    assert_pending!(in_time.poll());
    assert_pending!(too_late.poll());
    limiter.debit(3);
    // Due at 6 s: this call is accepted from 2 s on.
    assert_eq!(assert_ready!(too_late.poll()), Err(limited(2 * SECOND)));
    clock.advance(4 * SECOND - Duration::from_nanos(1));
    assert!(!first.is_woken());
    clock.advance(Duration::from_nanos(1));
    assert_ready_ok!(first.poll());
    clock.advance(SECOND);
    assert!(assert_ready!(in_time.poll()).is_ok());
}

#[test]
fn a_debt_without_end_shuts_the_limiter_until_it_is_reset() {
    for text in ["smooth_bursty 1/s", "token_bucket 1/s burst 10", "fixed_window 10/s", "sliding_log 10/s"] {
        let clock = ManualClock::new();
        let limiter = RateLimiter::with_clock(text.parse::<AnyPolicy>().expect("a policy"), clock.clone());
        let fresh = limiter.status().available;
        limiter.debit(0);
        assert_eq!(limiter.status().available, fresh, "{text}");
        for _ in 0..5 {
            limiter.debit(u32::MAX);
        }
        assert!(limiter.try_acquire().is_err(), "{text}");
        limiter.reset();
        assert_eq!(limiter.status().available, fresh, "{text}");
    }
}

#[test]
fn a_drained_limiter_has_nothing_left() {
    for text in [
        "smooth_bursty 5/s",
        "smooth_warming_up 5/s warm_up 1s",
        "token_bucket 5/s burst 10",
        "leaky_bucket 5/s capacity 3",
        "fixed_window 10/s",
        "sliding_window 10/s cells 5",
        "sliding_estimate 10/s",
        "sliding_log 10/s",
        "deny_all",
        "unlimited",
    ] {
        let clock = ManualClock::new();
        let limiter = RateLimiter::with_clock(text.parse::<AnyPolicy>().expect("a policy"), clock.clone());
        clock.advance(10 * SECOND);
        let there = limiter.status().available;
        let drained = limiter.drain();
        if text == "unlimited" {
            assert_eq!(drained, 0);
            continue;
        }
        assert_eq!(drained, there, "{text}");
        assert_eq!(limiter.status().available, 0, "{text}");
        assert!(limiter.try_acquire().is_err(), "{text}");
    }
}

#[test]
fn draining_takes_the_permits_that_a_request_waits_for() {
    let clock = ManualClock::new();
    let limiter =
        RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 5).start_empty(), clock.clone());
    let reservation = limiter.reserve(5).expect("a reservation");
    clock.advance(3 * SECOND);
    assert_eq!(limiter.drain(), 3);
    assert_eq!(reservation.due_in(), 5 * SECOND);
}

#[test]
fn lowering_takes_permits_that_a_request_saves_up_for() {
    let clock = ManualClock::new();
    let limiter =
        RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 5).start_empty(), clock.clone());
    let mut soon = spawn_pending(limiter.acquire_many(Request::permits(5).within(5 * SECOND)));
    let reservation = limiter.reserve(1).expect("a reservation");
    clock.advance(3 * SECOND);
    assert_eq!(limiter.keep_at_most(3), 0);
    assert_eq!(reservation.due_in(), 3 * SECOND);
    assert_eq!(limiter.keep_at_most(1), 2);
    // The first waiter would be late, and the other one moves up.
    assert!(assert_ready!(soon.poll()).is_err());
    assert_eq!(reservation.due_in(), Duration::ZERO);
}

/// A permit that a waiter was granted is taken, also before its task has run.
#[test]
fn lowering_leaves_granted_permits_alone() {
    let clock = ManualClock::new();
    let limiter =
        RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 5).start_empty(), clock.clone());
    let wait = spawn_pending(limiter.acquire_many(2));
    clock.advance(5 * SECOND);
    assert_eq!(limiter.keep_at_most(1), 2);
    drop(wait);
    // Undone permits come on top.
    assert_eq!(limiter.status().available, 3);
    let mut estimate = limiter.reserve(3).expect("a reservation");
    assert!(estimate.claim());
    assert_eq!(limiter.keep_at_most(1), 0);
    estimate.settle(1);
    assert_eq!(limiter.status().available, 2);
}

#[test]
fn a_pause_goes_on_with_the_lowered_permits() {
    for text in
        ["token_bucket 1/s burst 10", "smooth_bursty 1/s max_burst 9s start_full", "sliding_log 10/10s"]
    {
        let clock = ManualClock::new();
        let limiter = RateLimiter::with_clock(text.parse::<AnyPolicy>().expect("a policy"), clock.clone());
        assert_eq!(limiter.status().available, 10, "{text}");
        limiter.pause_for(100 * SECOND);
        assert_eq!(limiter.keep_at_most(4), 6, "{text}");
        clock.advance(50 * SECOND);
        assert_eq!(limiter.status().available, 0, "{text}");
        assert!(limiter.resume());
        assert_eq!(limiter.status().available, 4, "{text}");
    }
}

#[test]
fn a_reset_ends_a_pause_and_serves_waiters() {
    let (limiter, _clock) = without_burst(Rate::per_second(1));
    limiter.debit(100);
    limiter.pause_for(10 * SECOND);
    let mut waits = [waiting(&limiter), waiting(&limiter)];
    limiter.reset();
    assert_ready_ok!(waits[0].poll());
    assert!(!waits[1].is_woken());
    assert_eq!(limiter.status().paused_for, Duration::ZERO);
    assert_eq!(limiter.try_acquire(), Err(limited(2 * SECOND)));
}

// Observers

fn watched() -> (crate::support::Limiter, ManualClock, Arc<Log>) {
    let (limiter, clock) = without_burst(Rate::per_second(1));
    let log = Arc::new(Log::default());
    assert!(limiter.observe(log.clone()));
    (limiter, clock, log)
}

#[test]
fn every_call_is_reported_once_when_it_ends() {
    let (limiter, clock, log) = watched();
    assert!(!limiter.observe(Arc::new(Log::default())), "only once");
    assert!(limiter.try_acquire().is_ok());
    assert!(limiter.try_acquire_many(2).is_err());
    assert!(limiter.try_acquire_many(0).is_err());
    assert_eq!(
        log.take(),
        [
            "granted 1 after 0ns",
            "refused 2: limited, retry after 1s",
            "refused 0: 0 permits requested, at least 1 is needed"
        ]
    );
    let mut first = waiting(&limiter);
    let second = waiting(&limiter);
    let mut reservation = limiter.reserve(3).expect("a reservation");
    assert!(limiter.try_acquire().is_err());
    clock.advance(SECOND);
    assert_eq!(log.take(), ["refused 1: limited, retry after 6s"], "nobody has looked yet");
    assert_ready_ok!(first.poll());
    drop(second);
    clock.advance(SECOND);
    assert!(reservation.claim() && reservation.claim());
    drop((first, reservation));
    assert!(assert_ready!(spawn(limiter.acquire_within(MS)).poll()).is_err());
    let told = ["granted 1 after 1s", "cancelled 1 after 1s", "granted 3 after 2s"];
    assert_eq!(log.take(), [&told[..], &["refused 1: limited, retry after 2.999s"]].concat());
}

#[test]
fn pauses_shadow_and_exempt_calls_are_reported() {
    let (limiter, _clock, log) = watched();
    limiter.pause_for(2 * SECOND);
    limiter.pause_for(SECOND);
    assert!(limiter.try_acquire().is_err());
    limiter.resume();
    limiter.resume();
    assert_eq!(log.take(), ["paused for 2s", "refused 1: paused, retry after 3s", "resumed"]);
    assert!(limiter.try_acquire_many(Request::permits(7).exempt()).is_ok());
    assert!(limiter.try_acquire().is_ok());
    let mut waiter = waiting(&limiter);
    limiter.set_shadow(true);
    assert!(limiter.try_acquire().is_ok());
    assert_ready_ok!(waiter.poll());
    assert_ready_ok!(spawn(limiter.acquire()).poll());
    assert_eq!(
        log.take(),
        [
            "exempted 7",
            "granted 1 after 0ns",
            "shadowed 1: limited, retry after 1s",
            "shadowed 1: limited, retry after 1s",
            "shadowed 1: limited, retry after 1s",
        ]
    );
}

#[test]
fn a_request_refused_or_dropped_by_a_bound_is_reported() {
    let (limiter, _clock, log) = watched();
    assert!(limiter.try_acquire().is_ok());
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1).when_full(WhenFull::DropOldest));
    let mut first = spawn_pending(limiter.acquire_many(1));
    let mut second = spawn_pending(limiter.acquire_many(2));
    assert!(assert_ready!(first.poll()).is_err());
    assert!(limiter.reserve(1).is_ok(), "which drops the second one, and then itself");
    assert!(assert_ready!(second.poll()).is_err());
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(0));
    assert!(limiter.reserve(1).is_err());
    assert_eq!(
        log.take(),
        [
            "granted 1 after 0ns",
            "refused 1: dropped from a full queue to make room for another request",
            "cancelled 1 after 0ns",
            "refused 2: dropped from a full queue to make room for another request",
            "refused 1: queue is full, retry after 1s",
        ]
    );
}

#[test]
fn statistics_count_by_reason_and_by_time() {
    let (limiter, clock) = one_per_second();
    let statistics = Arc::new(Statistics::new());
    limiter.observe(statistics.clone());
    let mut waits: Vec<_> = (0..3).map(|_| waiting(&limiter)).collect();
    assert!(limiter.try_acquire().is_err());
    assert!(limiter.try_acquire_many(0).is_err());
    clock.advance(SECOND);
    assert_ready_ok!(waits[0].poll());
    clock.advance(SECOND);
    assert_ready_ok!(waits[1].poll());
    drop(waits);
    limiter.pause_for(SECOND);
    let counted = statistics.snapshot();
    assert_eq!((counted.granted, counted.permits), (2, 2));
    assert_eq!((counted.limited, counted.zero_permits, counted.refused()), (1, 1, 2));
    assert_eq!((counted.cancelled, counted.pauses), (1, 1));
    assert_eq!(counted.waited.buckets().map(|(_, count)| count).sum::<u64>(), 2);
    assert_eq!(counted.waited.sum(), 3 * SECOND);
    assert!((SECOND..SECOND * 21 / 20).contains(&counted.waited.quantile(0.5)));
    assert!((2 * SECOND..SECOND * 42 / 20).contains(&counted.waited.quantile(1.0)));
}

#[test]
fn an_observer_may_call_the_limiter() {
    struct Again(RateLimiter<TokenBucket, ManualClock>, Mutex<u64>);

    impl Events for Again {
        fn granted(&self, _permits: u64, _waited: Duration) {
            // This blocks if the limiter holds a lock here.
            *self.1.lock().expect("no panic") = self.0.status().available;
            self.0.refund(1);
        }

        fn cancelled(&self, _permits: u64, _waited: Duration) {
            self.0.pause_for(SECOND);
        }
    }

    let policy = TokenBucket::new(Rate::per_second(1), 5);
    let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    let again = Arc::new(Again(limiter.clone(), Mutex::default()));
    limiter.observe(again.clone());
    limiter.try_acquire_many(3).expect("full");
    assert_eq!(*again.1.lock().expect("no panic"), 2);
    assert_eq!(limiter.status().available, 3);
    drop(limiter.reserve(4).expect("a reservation"));
    assert_eq!(limiter.status().paused_for, SECOND);
}

#[test]
fn an_observer_that_panics_harms_no_request() {
    struct Panics;

    impl Events for Panics {
        fn granted(&self, _permits: u64, _waited: Duration) {
            panic!("a watcher that panics");
        }

        fn cancelled(&self, _permits: u64, _waited: Duration) {
            panic!("a watcher that panics");
        }
    }

    let (limiter, clock) = without_burst(Rate::per_second(1));
    limiter.observe(Arc::new(Panics));
    assert!(catch_unwind(AssertUnwindSafe(|| limiter.try_acquire())).is_err());
    let mut context = Context::from_waker(Waker::noop());
    let mut first = Box::pin(limiter.acquire_owned(1));
    let mut second = Box::pin(limiter.acquire_owned(1));
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(second.as_mut().poll(&mut context).is_pending());
    clock.advance(SECOND);
    assert!(catch_unwind(AssertUnwindSafe(|| first.as_mut().poll(&mut context))).is_err());
    drop(first);
    // While a thread unwinds, it does not end the process.
    assert!(
        catch_unwind(AssertUnwindSafe(|| {
            let _dropped = second;
            panic!("of something else");
        }))
        .is_err()
    );
    assert_eq!(limiter.status().waiting, 0);
    assert_eq!(limiter.try_acquire_many(0), Err(Refusal::ZeroPermits));
}

#[test]
fn a_call_takes_no_lock_while_no_request_waits() {
    // A refund calls the policy with the queue's lock held, and this policy stops it there.
    #[derive(Debug)]
    struct Stops(Unlimited, Mutex<()>, mpsc::Sender<()>);

    impl Policy for Stops {
        type State = ();
        type Charge = ();

        fn start(&self, _now: tidegate::Nanos) {}

        fn try_acquire(&self, state: &(), at: tidegate::Nanos, n: u32) -> Result<(), Refusal> {
            self.0.try_acquire(state, at, n)
        }

        fn check(&self, n: u32) -> Result<(), Refusal> {
            self.0.check(n)
        }

        fn weight(&self, n: u32) -> u64 {
            self.0.weight(n)
        }

        fn ready_at(&self, state: &(), at: tidegate::Nanos, ahead: u64, n: u32) -> tidegate::Nanos {
            self.0.ready_at(state, at, ahead, n)
        }

        fn undo(&self, state: &(), at: tidegate::Nanos, charge: (), most: u64) -> u64 {
            self.0.undo(state, at, charge, most)
        }

        /// Called with the lock held.
        fn refund(&self, _state: &(), _at: tidegate::Nanos, _n: u32) -> u64 {
            self.2.send(()).expect("the test waits");
            drop(self.1.lock());
            u64::MAX
        }

        fn change(
            &self,
            state: &(),
            at: tidegate::Nanos,
            change: tidegate::Change,
        ) -> Result<u64, tidegate::PolicyError> {
            self.0.change(state, at, change)
        }

        fn rate(&self) -> Rate {
            self.0.rate()
        }

        fn status(&self, state: &(), at: tidegate::Nanos) -> tidegate::policy::PolicyStatus {
            self.0.status(state, at)
        }
    }

    for is_observed in [false, true] {
        let (enters, entered) = mpsc::channel();
        let limiter = RateLimiter::with_clock(Stops(Unlimited, Mutex::new(()), enters), ManualClock::new());
        let statistics = Arc::new(Statistics::new());
        if is_observed {
            limiter.observe(statistics.clone());
        }
        let stop = limiter.policy().1.lock();
        let (holds, calls) = (limiter.clone(), limiter.clone());
        let holder = thread::spawn(move || holds.refund(1));
        entered.recv_timeout(PATIENCE).expect("the refund has the lock");
        let (ends, ended) = mpsc::channel();
        let caller = thread::spawn(move || {
            for _ in 0..1000 {
                assert!(calls.try_acquire().is_ok());
                assert!(assert_ready!(spawn(calls.acquire_many(1)).poll()).is_ok());
            }
            ends.send(()).expect("the test waits");
        });
        // The calls would not end if one of them needed the lock.
        let without_the_lock = ended.recv_timeout(PATIENCE);
        drop(stop);
        holder.join().expect("no panic");
        assert_eq!(without_the_lock, Ok(()), "observed: {is_observed}");
        caller.join().expect("no panic");
        assert_eq!(statistics.snapshot().granted, if is_observed { 2000 } else { 0 });
    }
}
