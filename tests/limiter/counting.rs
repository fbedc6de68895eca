//! The counting limit: permits are given back on drop, limits change while permits are out, and a
//! rate is added.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::support::spawn_pending;
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::{CountingLimit, CountingPermit, ManualClock, Nanos, Rate, RateLimiter, Refusal, TokenBucket};
use tokio_test::task::{Spawn, spawn};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_waiter_is_served_when_a_permit_is_dropped_in_order() {
    let limit = CountingLimit::new(2);
    let held = limit.try_acquire_many(2).expect("both");
    let mut large = spawn(limit.acquire_many(2));
    let mut small = spawn(limit.acquire());
    assert_pending!(large.poll());
    assert_pending!(small.poll());
    assert_eq!(limit.try_acquire().expect_err("refused"), Refusal::InUse { limit: 2 });
    drop(held);
    let held = assert_ready_ok!(large.poll());
    assert_eq!(held.permits(), 2);
    assert_pending!(small.poll());
    drop(held);
    drop(assert_ready!(small.poll()));
}

#[test]
fn a_request_takes_as_many_as_are_free() {
    let limit = CountingLimit::new(10);
    let held = limit.try_acquire_up_to(7).expect("seven");
    let rest = limit.try_acquire_up_to(u32::MAX).expect("three");
    assert_eq!((held.permits(), rest.permits(), limit.available()), (7, 3, 0));
    assert_eq!(limit.try_acquire_up_to(1).expect_err("none"), Refusal::InUse { limit: 10 });
    assert_eq!(limit.try_acquire_up_to(0).expect_err("none"), Refusal::ZeroPermits);
    let mut waiter = spawn_pending(limit.acquire_many(8));
    drop(rest);
    // They are left to the waiting request.
    assert_eq!(limit.try_acquire_up_to(3).expect_err("refused"), Refusal::InUse { limit: 10 });
    drop(held);
    assert_eq!(assert_ready_ok!(waiter.poll()).permits(), 8);
    limit.set_limit(1);
    assert_eq!(limit.try_acquire_up_to(3).map(|permit| permit.permits()), Ok(1));
    limit.close();
    assert_eq!(limit.status().paused_for, Duration::MAX);
    assert_eq!(limit.try_acquire_up_to(3).expect_err("closed"), Refusal::Closed);
}

#[test]
fn threads_that_take_all_free_permits_hold_no_more_than_the_limit() {
    let (limit, out) = (CountingLimit::new(10), AtomicU32::new(0));
    thread::scope(|scope| {
        for most in [1, 4, 20] {
            let (limit, out) = (&limit, &out);
            scope.spawn(move || {
                for _ in 0..5_000 {
                    let Ok(permit) = limit.try_acquire_up_to(most) else { continue };
                    let n = permit.permits();
                    assert!(n <= most && out.fetch_add(n, Ordering::Relaxed) + n <= 10);
                    out.fetch_sub(n, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(limit.available(), 10);
}

#[test]
fn a_dropped_wait_leaves_no_trace() {
    let limit = CountingLimit::new(1);
    let held = limit.try_acquire().expect("one");
    let mut first = spawn(limit.acquire());
    let mut second = spawn(limit.acquire());
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(held);
    // Granted, but not seen.
    drop(first);
    drop(assert_ready!(second.poll()));
    assert_eq!(limit.available(), 1);
}

#[test]
fn a_lower_limit_holds_when_permits_in_use_come_back() {
    let limit = CountingLimit::new(5);
    let mut held: Vec<_> = (0..4).map(|_| limit.try_acquire().expect("one")).collect();
    limit.set_limit(2);
    assert_eq!((limit.limit(), limit.available()), (2, 0));
    let mut waiter = spawn_pending(limit.acquire());
    held.truncate(2);
    assert_pending!(waiter.poll());
    held.truncate(1);
    drop(assert_ready!(waiter.poll()));
    drop(held);
    assert_eq!(limit.available(), 2);
}

#[test]
fn a_limit_lowered_and_raised_is_as_before() {
    let limit = CountingLimit::new(5);
    let held = limit.try_acquire_many(4).expect("four");
    limit.set_limit(1);
    limit.set_limit(6);
    assert_eq!(limit.available(), 2);
    drop(held);
    assert_eq!(limit.available(), 6);
}

#[test]
fn what_can_never_be_had_is_refused() {
    let limit = CountingLimit::new(3);
    assert_eq!(
        limit.try_acquire_many(4).expect_err("refused"),
        Refusal::ExceedsLimit { requested: 4, limit: 3 }
    );
    assert_eq!(limit.try_acquire_many(0).expect_err("refused"), Refusal::ZeroPermits);
    let none = CountingLimit::new(0);
    let mut waiter = spawn_pending(none.acquire());
    none.set_limit(1);
    drop(assert_ready!(waiter.poll()));
    assert_eq!(CountingLimit::new(u32::MAX).available(), CountingLimit::MAX_LIMIT);
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn waiting_ends_in_time() {
    let limit = CountingLimit::new(1);
    let held = limit.acquire().await;
    let start = tokio::time::Instant::now();
    assert_eq!(limit.acquire_within(SECOND).await.expect_err("refused"), Refusal::InUse { limit: 1 });
    assert_eq!(start.elapsed(), SECOND);
    drop(held);
    assert!(limit.acquire_within(SECOND).await.is_ok());
}

#[test]
fn together_with_a_rate_it_is_both_or_neither() {
    let clock = ManualClock::new();
    let rate = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), clock.clone());
    let limit = CountingLimit::new(2);
    let first = limit.try_acquire_with(&rate).expect("both");
    // Refused by the rate: no permit is in use.
    assert_eq!(
        limit.try_acquire_with(&rate).expect_err("refused"),
        Refusal::Limited { retry_after: SECOND.into() }
    );
    assert_eq!(limit.available(), 1);
    let mut waiter = spawn_pending(limit.acquire_with(&rate));
    clock.advance(SECOND);
    let second = assert_ready!(waiter.poll());
    clock.advance(SECOND);
    // Refused by the limit: the rate keeps its permit.
    assert_eq!(limit.try_acquire_with(&rate).expect_err("refused"), Refusal::InUse { limit: 2 });
    drop((first, second));
    assert!(limit.try_acquire_with(&rate).is_ok());
}

/// Bug: a limit lowered below a waiter's size kept that waiter, and all waiters behind it, waiting.
#[test]
fn a_waiter_above_a_lowered_limit_is_refused_at_once_and_the_rest_go_on() {
    let limit = CountingLimit::new(4);
    let held = limit.try_acquire().expect("one");
    let mut large = spawn(limit.acquire_many(4));
    let mut middle = spawn(limit.acquire_many(2));
    let mut small = spawn(limit.acquire());
    assert_pending!(large.poll());
    assert_pending!(middle.poll());
    assert_pending!(small.poll());
    limit.set_limit(3);
    assert!(large.is_woken() && middle.is_woken() && !small.is_woken());
    let refusal = assert_ready_err!(large.poll());
    assert_eq!(refusal, Refusal::ExceedsLimit { requested: 4, limit: 3 });
    let middle = assert_ready_ok!(middle.poll());
    assert_pending!(small.poll());
    drop(middle);
    drop(assert_ready!(small.poll()));
    drop(held);
    assert_eq!(limit.available(), 3);
}

#[test]
fn a_refusal_by_a_lower_limit_stands_when_the_limit_is_raised() {
    let limit = CountingLimit::new(4);
    let held = limit.try_acquire_many(4).expect("all");
    let mut refused = spawn(limit.acquire_many(3));
    let dropped = spawn(limit.acquire_many(3));
    assert_pending!(refused.poll());
    limit.set_limit(2);
    limit.set_limit(4);
    drop(held);
    assert_eq!(assert_ready_err!(refused.poll()), Refusal::ExceedsLimit { requested: 3, limit: 2 });
    drop(dropped);
    assert_eq!(limit.available(), 4);
}

#[test]
fn one_permit_waits_through_a_limit_of_zero() {
    let limit = CountingLimit::new(2);
    let held = limit.try_acquire_many(2).expect("both");
    let mut two = spawn(limit.acquire_many(2));
    let mut one = spawn(limit.acquire());
    assert_pending!(two.poll());
    assert_pending!(one.poll());
    limit.set_limit(0);
    assert_eq!(assert_ready_err!(two.poll()), Refusal::ExceedsLimit { requested: 2, limit: 0 });
    drop(held);
    assert_pending!(one.poll());
    assert_eq!(limit.available(), 0);
    limit.set_limit(1);
    let one = assert_ready!(one.poll());
    assert!(limit.try_acquire().is_err());
    drop(one);
    assert_eq!(limit.available(), 1);
}

/// A grant that its future has not seen already counts as in use: a lower limit does not take it
/// back.
#[test]
fn a_lower_limit_leaves_grants_alone() {
    let limit = CountingLimit::new(3);
    let held = limit.try_acquire_many(3).expect("all");
    let mut granted = spawn_pending(limit.acquire_many(3));
    drop(held);
    limit.set_limit(1);
    let granted = assert_ready_ok!(granted.poll());
    assert_eq!((granted.permits(), limit.available()), (3, 0));
    drop(granted);
    assert_eq!(limit.available(), 1);
}

#[test]
fn a_refused_wait_that_is_dropped_unseen_leaves_no_trace() {
    let limit = CountingLimit::new(2);
    let held = limit.try_acquire_many(2).expect("both");
    let refused = spawn_pending(limit.acquire_many(2));
    limit.set_limit(1);
    drop(refused);
    drop(held);
    assert_eq!(limit.available(), 1);
    assert!(limit.try_acquire().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_wait_with_a_time_limit_is_refused_by_a_lower_limit_at_once() {
    let limit = CountingLimit::new(2);
    let _held = limit.acquire().await;
    let start = tokio::time::Instant::now();
    let wait = async { limit.acquire_many_within(2, SECOND).await.map(drop) };
    let lower = async { limit.set_limit(1) };
    let (refused, ()) = tokio::join!(wait, lower);
    assert_eq!(refused, Err(Refusal::ExceedsLimit { requested: 2, limit: 1 }));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// A waker that panics, and a waker that calls the limit again: neither affects other waiters.
#[test]
fn wakers_may_panic_or_call_back() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("user code");
        }
    }
    struct CallsBack(CountingLimit);
    impl Wake for CallsBack {
        fn wake(self: Arc<Self>) {
            assert!(self.0.try_acquire().is_err());
            self.0.set_limit(self.0.limit());
        }
    }
    let limit = CountingLimit::new(3);
    let held = limit.try_acquire_many(3).expect("all");
    let mut bad = Box::pin(limit.acquire());
    let mut back = Box::pin(limit.acquire());
    let mut good = spawn(limit.acquire());
    let panics = Waker::from(Arc::new(Panics));
    let calls_back = Waker::from(Arc::new(CallsBack(limit.clone())));
    assert!(bad.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
    assert!(back.as_mut().poll(&mut Context::from_waker(&calls_back)).is_pending());
    assert_pending!(good.poll());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(held))).is_err());
    assert!(good.is_woken());
    drop(assert_ready!(good.poll()));
    drop((bad, back));
    assert_eq!(limit.available(), 3);
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Join(u32),
    Try(u32),
    Drop(usize),
    GiveBack(usize),
    SetLimit(u32),
}

fn some_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..6u32).prop_map(Act::Join),
        2 => (1..6u32).prop_map(Act::Try),
        2 => any::<usize>().prop_map(Act::Drop),
        3 => any::<usize>().prop_map(Act::GiveBack),
        2 => (0..7u32).prop_map(Act::SetLimit),
    ]
}

type Waiting = Spawn<Pin<Box<dyn Future<Output = Result<CountingPermit, Refusal>>>>>;

/// The limit as a list of waiters and a number of permits in use.
struct Model {
    limit: u32,
    out: u32,
    line: Vec<(usize, u32)>,
    answers: Vec<(usize, Result<u32, Refusal>)>,
}

impl Model {
    fn check(&self, n: u32) -> Result<(), Refusal> {
        match n > 1 && n > self.limit {
            true => Err(Refusal::ExceedsLimit { requested: n, limit: self.limit }),
            false => Ok(()),
        }
    }

    fn join(&mut self, number: usize, n: u32) {
        match self.check(n) {
            Ok(()) => self.line.push((number, n)),
            Err(refusal) => self.answers.push((number, Err(refusal))),
        }
        self.serve();
    }

    fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        for (number, n) in std::mem::take(&mut self.line) {
            match self.check(n) {
                Ok(()) => self.line.push((number, n)),
                Err(refusal) => self.answers.push((number, Err(refusal))),
            }
        }
        self.serve();
    }

    fn serve(&mut self) {
        while let Some(&(number, n)) = self.line.first().filter(|(_, n)| self.out + n <= self.limit) {
            self.line.remove(0);
            self.out += n;
            self.answers.push((number, Ok(n)));
        }
    }

    fn available(&self) -> u32 {
        if self.line.is_empty() { self.limit.saturating_sub(self.out) } else { 0 }
    }
}

proptest! {
    /// Random waits, drops, returned permits and changes of the limit, compared with a slow model.
    #[test]
    fn it_is_a_list_of_waiters_and_a_number(acts in vec(some_act(), 1..120)) {
        let limit = CountingLimit::new(4);
        let mut model = Model { limit: 4, out: 0, line: Vec::new(), answers: Vec::new() };
        let (mut waits, mut permits): (Vec<(usize, Waiting)>, Vec<CountingPermit>) = Default::default();
        for (number, act) in acts.into_iter().enumerate() {
            match act {
                Act::Join(n) => {
                    let limit = limit.clone();
                    let wait: Pin<Box<dyn Future<Output = _>>> =
                        Box::pin(async move { limit.acquire_many(n).await });
                    let mut wait = spawn(wait);
                    model.join(number, n);
                    if let Poll::Ready(answer) = wait.poll() {
                        let expected = model.answers.pop().map(|(_, answer)| answer);
                        prop_assert_eq!(Some(answer.as_ref().map(CountingPermit::permits).map_err(|no| *no)), expected);
                        permits.extend(answer);
                    } else {
                        waits.push((number, wait));
                    }
                }
                Act::Try(n) => {
                    let expected = model.check(n).and_then(|()| match n <= model.available() {
                        true => Ok(n),
                        false => Err(Refusal::InUse { limit: model.limit }),
                    });
                    let answer = limit.try_acquire_many(n);
                    prop_assert_eq!(answer.as_ref().map(CountingPermit::permits).map_err(|no| *no), expected);
                    model.out += expected.unwrap_or(0);
                    permits.extend(answer);
                }
                Act::Drop(_) if waits.is_empty() => {}
                // Some futures have a result that they have not seen.
                Act::Drop(which) => {
                    let (number, wait) = waits.swap_remove(which % waits.len());
                    drop(wait);
                    model.line.retain(|(other, _)| *other != number);
                    if let Some(at) = model.answers.iter().position(|(other, _)| *other == number) {
                        model.out -= model.answers.remove(at).1.unwrap_or(0);
                    }
                    model.serve();
                }
                Act::GiveBack(_) if permits.is_empty() => {}
                Act::GiveBack(which) => {
                    let permit = permits.swap_remove(which % permits.len());
                    model.out -= permit.permits();
                    drop(permit);
                    model.serve();
                }
                Act::SetLimit(new) => {
                    limit.set_limit(new);
                    model.set_limit(new);
                }
            }
            // Only every other future is polled, so that some results are unseen meanwhile.
            for (number, mut wait) in std::mem::take(&mut waits) {
                let expected = model.answers.iter().position(|(other, _)| *other == number);
                prop_assert_eq!(wait.is_woken(), expected.is_some());
                let seen = expected.filter(|_| number % 2 == 0);
                match seen.map(|at| model.answers.remove(at).1) {
                    None => waits.push((number, wait)),
                    Some(expected) => {
                        let Poll::Ready(answer) = wait.poll() else { panic!("it has its result") };
                        prop_assert_eq!(answer.as_ref().map(CountingPermit::permits).map_err(|no| *no), expected);
                        permits.extend(answer);
                    }
                }
            }
            prop_assert_eq!((limit.limit(), limit.available()), (model.limit, model.available()));
        }
        drop((waits, permits));
        prop_assert_eq!(limit.available(), limit.limit());
    }
}

/// Threads take, wait, leave and give back while one thread changes the limit. In the end all
/// permits are available, and no others.
#[test]
fn permits_are_neither_lost_nor_invented_among_threads() {
    const MOST: u32 = 6;
    let limit = CountingLimit::new(MOST);
    let out = AtomicU32::new(0);
    let start = Barrier::new(4);
    let held = |permit: CountingPermit| {
        let n = permit.permits();
        assert!(out.fetch_add(n, Ordering::Relaxed) + n <= MOST, "never more than the largest limit");
        thread::yield_now();
        out.fetch_sub(n, Ordering::Relaxed);
    };
    let takes = |thread: u32| {
        start.wait();
        for attempt in 0..4_000u32 {
            let n = (attempt + thread) % 4 + 1;
            match attempt % 3 {
                0 => drop(limit.try_acquire_many(n).map(held)),
                1 => drop(block_on(limit.acquire_many(n)).map(held)),
                _ => {
                    // Leaves at some stage: waiting, granted, or refused.
                    let mut wait = spawn(limit.acquire_many(n));
                    if let Poll::Ready(Ok(permit)) = wait.poll() {
                        held(permit);
                    } else {
                        thread::yield_now();
                    }
                }
            }
        }
    };
    let changes = || {
        start.wait();
        for change in 0..8_000u32 {
            limit.set_limit(change * 5 % (MOST + 1));
        }
        // At a limit of zero, requests would wait forever.
        limit.set_limit(MOST);
    };
    thread::scope(|scope| {
        let takes = &takes;
        for thread in 0..3 {
            scope.spawn(move || takes(thread));
        }
        scope.spawn(changes);
    });
    assert_eq!((limit.available(), out.into_inner()), (MOST, 0));
}

/// Parks the thread until the future is ready.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        thread::park();
    }
}

#[test]
fn a_longest_wait_follows_the_clock_that_it_is_given() {
    let clock = ManualClock::new();
    let limit = CountingLimit::with_clock(1, clock.clone());
    let permit = limit.try_acquire().expect("free");
    let mut late = spawn(limit.acquire_within(Duration::from_secs(2)));
    let mut served = spawn(limit.acquire_many_within(1, Duration::from_secs(3)));
    assert!(late.poll().is_pending() && served.poll().is_pending());
    clock.advance(Duration::from_secs(2) - Duration::from_nanos(1));
    assert!(!late.is_woken());
    clock.advance(Duration::from_nanos(1));
    assert!(late.is_woken());
    assert_eq!(assert_ready!(late.poll()).map(drop), Err(Refusal::InUse { limit: 1 }));
    drop(permit);
    assert!(assert_ready!(served.poll()).is_ok());
    assert_eq!(clock.sleeping(), 0);
}

#[test]
fn a_manual_clock_runs_until_idle_and_no_further_than_it_may() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), clock.clone());
    limiter.try_acquire().expect("available");
    let mut waits: Vec<_> = (0..5).map(|_| spawn(limiter.acquire())).collect();
    let mut run = |most| {
        clock
            .run_until_idle(Duration::from_millis(most), || waits.retain_mut(|wait| wait.poll().is_pending()))
    };
    assert_eq!(run(2500), Duration::from_secs(2));
    assert_eq!(run(u64::MAX), Duration::from_secs(3));
    assert_eq!((waits.len(), clock.next_due()), (0, None));
    clock.set(Nanos::MAX);
    assert_eq!(clock.run_until_idle(Duration::MAX, || ()), Duration::ZERO);
}
