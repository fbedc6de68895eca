//! The observer of a counting limit is notified of each call once, like the observer of a rate
//! limiter.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::support::log::Log;
use crate::support::spawn_pending;
use tidegate::{
    AllOf, CancelToken, CountingLimit, Events, ManualClock, Rate, RateLimiter, Refusal, Statistics,
    TokenBucket, Unlimited,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

fn watched(limit: u32) -> (CountingLimit, ManualClock, Arc<Log>) {
    let (clock, log) = (ManualClock::new(), Arc::new(Log::default()));
    let limit = CountingLimit::with_clock(limit, clock.clone());
    assert!(limit.observe(log.clone()));
    (limit, clock, log)
}

#[test]
fn a_call_that_does_not_wait_is_reported_once() {
    let (limit, _, log) = watched(3);
    assert!(!limit.clone().observe(Arc::new(Log::default())), "clones share one observer");
    let held = limit.try_acquire_many(2).expect("two");
    let rest = limit.try_acquire_up_to(9).expect("one");
    assert_eq!(log.take(), ["granted 2 after 0ns", "granted 1 after 0ns"]);
    assert!(limit.try_acquire().is_err() && limit.try_acquire_up_to(9).is_err());
    assert!(limit.try_acquire_many(0).is_err() && limit.try_acquire_many(4).is_err());
    assert_eq!(
        log.take(),
        [
            "refused 1: all 3 permits are in use",
            "refused 1: all 3 permits are in use",
            "refused 0: 0 permits requested, at least 1 is needed",
            "refused 4: 4 permits requested, the limit is 3",
        ]
    );
    drop((held, rest));
    assert_eq!(log.take(), Vec::<String>::new(), "giving back is no call");
    drop(limit.blocking_acquire_many(3));
    drop(assert_ready_ok!(spawn(limit.acquire()).poll()));
    drop(assert_ready_ok!(spawn(limit.acquire_many_within(2, SECOND)).poll()));
    assert_eq!(log.take(), ["granted 3 after 0ns", "granted 1 after 0ns", "granted 2 after 0ns"]);
    limit.close();
    assert_ready_err!(spawn(limit.acquire()).poll());
    assert!(limit.blocking_acquire().is_err() && limit.try_acquire().is_err());
    assert_ready_err!(spawn(limit.acquire_within(SECOND)).poll());
    assert_eq!(log.take(), ["refused 1: closed, no request is granted any more"; 4]);
}

#[test]
fn a_wait_is_reported_when_it_ends() {
    let (limit, clock, log) = watched(2);
    let held = limit.try_acquire_many(2).expect("both");
    log.take();
    let mut granted = spawn(limit.acquire_many(2));
    let mut dropped = spawn(limit.acquire());
    let mut unseen = spawn(limit.acquire());
    let mut lowered = spawn(limit.acquire_many(2));
    let mut closed = spawn(limit.acquire());
    drop(limit.acquire());
    for wait in [&mut granted, &mut lowered] {
        assert_pending!(wait.poll());
    }
    for wait in [&mut dropped, &mut unseen, &mut closed] {
        assert_pending!(wait.poll());
    }
    assert_eq!(log.take(), Vec::<String>::new(), "no call has ended");
    clock.advance(SECOND);
    drop(held);
    let held = assert_ready_ok!(granted.poll());
    drop((granted, dropped));
    assert_eq!(log.take(), ["granted 2 after 1s", "cancelled 1 after 1s"]);
    limit.set_limit(1);
    clock.advance(SECOND);
    assert_ready_err!(lowered.poll());
    assert_eq!(log.take(), ["refused 2: 2 permits requested, the limit is 1"]);
    drop(held);
    // It was granted, and its future does not see that.
    drop(unseen);
    assert_eq!(log.take(), ["cancelled 1 after 2s"]);
    let held = assert_ready_ok!(closed.poll());
    let mut closed = spawn_pending(limit.acquire());
    limit.close();
    log.take();
    assert_ready_err!(closed.poll());
    drop((closed, lowered, held));
    assert_eq!(log.take(), ["refused 1: closed, no request is granted any more"]);
}

#[test]
fn a_wait_that_takes_too_long_is_refused_and_a_dropped_one_is_not() {
    let (limit, clock, log) = watched(1);
    let held = limit.try_acquire().expect("one");
    log.take();
    let mut late = spawn(limit.acquire_within(SECOND));
    let mut dropped = spawn(limit.acquire_within(3 * SECOND));
    let mut granted = spawn(limit.acquire_within(3 * SECOND));
    for wait in [&mut late, &mut dropped, &mut granted] {
        assert_pending!(wait.poll());
    }
    clock.advance(SECOND);
    assert_ready_err!(late.poll());
    drop(late);
    assert_eq!(log.take(), ["refused 1: the only permit is in use"]);
    drop(dropped);
    assert_eq!(log.take(), ["cancelled 1 after 1s"]);
    clock.advance(SECOND);
    drop(held);
    drop(assert_ready_ok!(granted.poll()));
    assert_eq!(log.take(), ["granted 1 after 2s"]);
}

#[test]
fn a_blocked_call_is_reported_when_a_token_ends_it() {
    let (limit, _, log) = watched(1);
    let held = limit.try_acquire().expect("one");
    log.take();
    let token = CancelToken::new();
    thread::scope(|scope| {
        let blocked = scope.spawn(|| token.run(|| limit.blocking_acquire().map(drop)));
        while limit.status().waiting == 0 {
            thread::yield_now();
        }
        assert!(token.cancel());
        assert_eq!(blocked.join().expect("no panic"), Err(Refusal::Cancelled));
    });
    assert_eq!(log.take(), ["cancelled 1 after 0ns"]);
    // It does not start to wait.
    assert_eq!(token.run(|| limit.blocking_acquire_many(1).map(drop)), Err(Refusal::Cancelled));
    assert_eq!(log.take(), ["cancelled 1 after 0ns"]);
    drop(held);
}

/// A limit without a clock measures a wait by the default clock.
#[test]
fn a_wait_without_a_clock_is_measured() {
    let (limit, statistics) = (CountingLimit::new(1), Arc::new(Statistics::new()));
    limit.observe(statistics.clone());
    let held = limit.try_acquire().expect("one");
    let mut wait = spawn_pending(limit.acquire());
    drop(held);
    drop(assert_ready_ok!(wait.poll()));
    let told = statistics.snapshot();
    assert_eq!((told.granted, told.permits), (2, 2));
    assert!(told.waited.sum() > Duration::ZERO);
}

#[test]
fn a_call_that_waits_when_the_observer_is_set_is_not_reported() {
    let limit = CountingLimit::with_clock(1, ManualClock::new());
    let held = limit.try_acquire().expect("one");
    let (mut early, mut dropped) = (spawn(limit.acquire()), spawn(limit.acquire()));
    assert_pending!(early.poll());
    assert_pending!(dropped.poll());
    let log = Arc::new(Log::default());
    limit.observe(log.clone());
    drop(held);
    drop(assert_ready_ok!(early.poll()));
    drop(dropped);
    assert_eq!(log.take(), Vec::<String>::new());
    drop(limit.try_acquire());
    assert_eq!(log.take(), ["granted 1 after 0ns"]);
}

/// A composite notifies only its own observer.
#[test]
fn an_observer_is_not_notified_of_permits_that_a_composite_takes() {
    let (limit, _, log) = watched(1);
    let all = AllOf::new("rate", &RateLimiter::new(Unlimited)).with_counting("in use", &limit);
    let held = all.try_acquire().expect("one");
    assert!(all.try_acquire().is_err());
    assert_eq!(log.take(), Vec::<String>::new());
    drop(held);
}

#[test]
fn each_limiter_of_a_call_with_a_rate_reports_its_part() {
    let (limit, clock, log) = watched(1);
    let rate = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), clock);
    let of_rate = Arc::new(Log::default());
    rate.observe(of_rate.clone());
    drop(limit.try_acquire_with(&rate).expect("one"));
    assert!(limit.try_acquire_with(&rate).is_err());
    assert_eq!(log.take(), ["granted 1 after 0ns"; 2]);
    assert_eq!(of_rate.take(), ["granted 1 after 0ns", "refused 1: limited, retry after 1s"]);
}

#[test]
fn an_observer_may_call_the_limit() {
    struct Again(CountingLimit, Log);

    impl Events for Again {
        fn granted(&self, _permits: u64, _waited: Duration) {
            // This blocks if the limit holds a lock here.
            let waiting = self.0.status().waiting;
            self.1.note(format!("granted, {waiting} wait"));
        }

        fn refused(&self, _permits: u64, _refusal: &Refusal) {
            self.0.set_limit(self.0.limit() + 1);
        }

        fn cancelled(&self, _permits: u64, _waited: Duration) {
            let waiting = self.0.status().waiting;
            self.1.note(format!("cancelled, {waiting} wait"));
        }
    }

    let limit = CountingLimit::with_clock(1, ManualClock::new());
    let again = Arc::new(Again(limit.clone(), Log::default()));
    limit.observe(again.clone());
    let held = limit.try_acquire().expect("one");
    let (mut first, mut second) = (spawn(limit.acquire()), spawn(limit.acquire()));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(held);
    let held = assert_ready_ok!(first.poll());
    drop(second);
    assert!(limit.try_acquire_many(9).is_err());
    assert_eq!(limit.limit(), 2);
    drop(held);
    assert_eq!(again.1.take(), ["granted, 0 wait", "granted, 1 wait", "cancelled, 0 wait"]);
}

struct PanickingWaker;

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        panic!("of a waker");
    }
}

fn panics<T>(call: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
}

/// A call that is unwound by the waker of another request took nothing, and is reported once.
#[test]
fn a_call_that_panics_is_reported_once() {
    let (limit, clock, log) = watched(2);
    let held = limit.try_acquire_many(2).expect("both");
    log.take();
    let (mut large, mut behind) = (spawn(limit.acquire_many(2)), Box::pin(limit.acquire()));
    assert_pending!(large.poll());
    let waker = Waker::from(Arc::new(PanickingWaker));
    assert!(behind.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    clock.advance(SECOND);
    limit.set_limit(3);
    // One permit is free, and the drop of the large request wakes the request behind it.
    panics(|| drop(large));
    assert_eq!(log.take(), ["cancelled 2 after 1s"]);
    drop(behind);
    assert_eq!(log.take(), ["cancelled 1 after 1s"]);
    drop(held);
    assert_eq!(limit.available(), 3);
}

#[test]
fn an_observer_that_panics_harms_no_request() {
    struct Panics;

    impl Events for Panics {
        fn granted(&self, _permits: u64, _waited: Duration) {
            panic!("of an observer");
        }

        fn cancelled(&self, _permits: u64, _waited: Duration) {
            panic!("of an observer");
        }
    }

    let limit = CountingLimit::with_clock(1, ManualClock::new());
    let held = limit.try_acquire().expect("one");
    limit.observe(Arc::new(Panics));
    let (mut first, mut second) = (spawn(limit.acquire()), spawn(limit.acquire()));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(held);
    panics(|| first.poll());
    // While a thread unwinds, the panic does not end the process.
    panics(|| {
        let _dropped = second;
        panic!("of something else");
    });
    drop(first);
    panics(|| limit.try_acquire());
    assert_eq!((limit.status().waiting, limit.available()), (0, 1), "no permit is lost");
    assert!(assert_ready!(spawn(limit.acquire_many(0)).poll()).is_err());
}
