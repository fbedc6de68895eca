//! User code that panics: wakers, clocks, timers, policies. The panic reaches the call that ran the
//! code. No other request is affected, no permit is lost, and the future of that call keeps its
//! position.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::support::asked::Asked;
use crate::support::counted::Counted;
use crate::support::loops::Loops;
use crate::support::spawn_pending;
use tidegate::AcquireOwned;
use tidegate::QueueBounds;
use tidegate::policy::Keep;
use tidegate::{
    AllOf, AllRequest, AnyPolicy, CountingLimit, Events, Grant, ManualClock, Rate, RateLimiter, Refusal,
    Request, SlidingLog, SmoothBursty, TokenBucket, WhenFull,
};
#[cfg(feature = "keyed")]
use tidegate::{KeyedAllOf, KeyedRateLimiter};
use tokio_test::task::{Spawn, spawn};
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

type Limiter = RateLimiter<TokenBucket, Loops>;
type Future = Pin<Box<AcquireOwned<TokenBucket, Loops>>>;

struct PanicsOnWake;

impl Wake for PanicsOnWake {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics when it is called");
    }
}

struct PanicsOnDrop;

impl Wake for PanicsOnDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("a waker that panics when it is dropped");
    }
}

/// One permit per second and a burst of `burst`, all taken. No runtime's timer wakes a waiter, so
/// the calls of the test serve the queue.
fn limiter(burst: u32) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let loops = Loops::new(clock.clone());
    loops.stall(1);
    loops.enter(1);
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), burst), loops);
    limiter.set_catch_up(10 * SECOND);
    assert_eq!(limiter.try_acquire_many(burst).map(drop), Ok(()));
    (limiter, clock)
}

/// A request that has been polled once with this waker, and waits.
fn waiting_with(limiter: &Limiter, waker: &Waker) -> Future {
    let mut future = Box::pin(limiter.acquire_owned(1));
    assert!(poll_with(&mut future, waker).is_pending());
    future
}

fn poll_with(future: &mut Future, waker: &Waker) -> Poll<Duration> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(waker))
        .map(|answer| answer.expect("one permit is granted").waited())
}

/// A request that waits, with a waker that panics when it is called.
fn bad(limiter: &Limiter) -> Future {
    waiting_with(limiter, &Waker::from(Arc::new(PanicsOnWake)))
}

fn waiting(limiter: &Limiter) -> Spawn<AcquireOwned<TokenBucket, Loops>> {
    spawn_pending(limiter.acquire_owned(1))
}

/// Runs a call in which user code panics.
fn panics<T>(call: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err(), "the panic goes on");
}

fn take_all(limiter: &Limiter) -> usize {
    (0..1000).take_while(|_| limiter.try_acquire().is_ok()).count()
}

#[test]
fn dropping_a_wait_whose_poll_panicked_removes_no_other() {
    let (limiter, clock) = limiter(1);
    let _bad = bad(&limiter);
    let mut victim = waiting(&limiter);
    clock.jump(2 * SECOND);
    // This poll serves both waiters, and calls the waker that panics.
    panics(|| victim.poll());
    // Bug: the entry of the victim was free by now, and this request took it.
    let mut newcomer = waiting(&limiter);
    drop(victim);
    // The victim's grant went to the new request.
    assert_eq!(limiter.status().waiting, 0);
    assert!(newcomer.is_woken());
    assert_ready_ok!(newcomer.poll());
    assert_eq!(take_all(&limiter), 0);
}

#[test]
fn a_wait_whose_poll_panicked_has_its_answer_when_it_is_polled_again() {
    let (limiter, clock) = limiter(1);
    let _bad = bad(&limiter);
    let mut victim = waiting(&limiter);
    clock.jump(2 * SECOND);
    panics(|| victim.poll());
    let mut newcomer = waiting(&limiter);
    assert_ready_ok!(victim.poll());
    drop(victim);
    assert_eq!(limiter.status().waiting, 1);
    clock.jump(SECOND);
    assert_ready_ok!(newcomer.poll());
}

#[test]
fn a_refused_wait_whose_poll_panicked_removes_no_other() {
    let (limiter, clock) = limiter(1);
    limiter.set_catch_up(Duration::ZERO);
    let _bad = bad(&limiter);
    let mut victim = spawn_pending(limiter.acquire_within(2 * SECOND));
    // The first is charged as of now, which makes the second too late.
    clock.jump(2 * SECOND);
    panics(|| victim.poll());
    let _newcomer = waiting(&limiter);
    assert!(assert_ready!(victim.poll()).is_err());
    drop(victim);
    assert_eq!(limiter.status().waiting, 1);
}

#[test]
fn a_claim_that_panicked_can_be_made_again() {
    let (limiter, clock) = limiter(1);
    let _bad = bad(&limiter);
    let mut reservation = limiter.reserve(1).expect("a reservation");
    clock.jump(2 * SECOND);
    panics(|| reservation.claim());
    let _newcomer = waiting(&limiter);
    assert!(reservation.claim());
    drop(reservation);
    assert_eq!(limiter.status().waiting, 1);
    assert_eq!(take_all(&limiter), 0);
}

#[test]
fn a_blocked_thread_whose_check_panicked_unwinds_and_leaves_no_trace() {
    let (limiter, clock) = limiter(1);
    let _bad = bad(&limiter);
    thread::scope(|scope| {
        let blocked = scope.spawn(|| limiter.blocking_acquire());
        while limiter.status().waiting < 2 {
            thread::yield_now();
        }
        // The thread checks the queue, serves both, and calls the waker that panics. Bug: the panic
        // ended the process.
        clock.jump(2 * SECOND);
        assert!(blocked.join().is_err());
    });
    assert_eq!(limiter.status().waiting, 0);
    assert_eq!(take_all(&limiter), 1);
}

/// Bug: the reservation was still that of a blocked thread, so no alarm was set for the task that
/// awaited it, and no blocked thread behind it was woken.
#[test]
fn a_blocking_claim_that_panicked_leaves_a_reservation_that_can_be_awaited() {
    let clock = ManualClock::new();
    let loops = Loops::new(clock.clone());
    loops.enter(1);
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), loops.clone());
    assert_eq!(limiter.try_acquire().map(drop), Ok(()));
    let _first = bad(&limiter);
    let mut second = limiter.reserve(1).expect("it may wait for any time");
    // The alarm is late, so the claim serves the first request.
    loops.stall(1);
    clock.advance(SECOND);
    panics(|| second.blocking_claim());
    loops.enter(2);
    let mut second = spawn(second);
    assert_pending!(second.poll());
    clock.advance(SECOND);
    assert!(second.is_woken());
    assert_ready_ok!(second.poll());
}

#[test]
fn a_try_that_panicked_took_nothing() {
    let (limiter, clock) = limiter(3);
    let _bad = bad(&limiter);
    clock.jump(3 * SECOND);
    panics(|| limiter.try_acquire());
    assert_eq!(take_all(&limiter), 2);
}

/// A window policy undoes a grant without the lock, after the call that drops the wait has served
/// the others.
#[test]
fn a_granted_wait_of_a_log_is_undone_although_a_waker_panics_when_it_is_dropped() {
    let clock = ManualClock::new();
    let loops = Loops::new(clock.clone());
    loops.stall(1);
    loops.enter(1);
    let log = SlidingLog::new(Rate::new(2, 10 * SECOND).expect("a rate"));
    let limiter = RateLimiter::with_clock(log, loops);
    assert_eq!(limiter.try_acquire().map(drop), Ok(()));
    clock.jump(5 * SECOND);
    assert_eq!(limiter.try_acquire().map(drop), Ok(()));
    let granted = spawn_pending(limiter.acquire_owned(1));
    let mut bad = Box::pin(limiter.acquire_owned(1));
    let waker = Waker::from(Arc::new(PanicsOnWake));
    assert!(bad.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    clock.jump(5 * SECOND);
    assert_eq!(limiter.status().waiting, 1, "the first is served");
    clock.jump(5 * SECOND);
    panics(|| drop(granted));
    assert_eq!(limiter.status().available, 1, "the permit of the first");
}

/// The limiter records its last 32 grants for an undone one.
#[test]
fn a_try_that_panicked_after_many_grants_took_nothing() {
    let (limiter, clock) = limiter(3);
    // Without this refund, everything that was ever taken might be given back.
    limiter.refund(1);
    assert_eq!(take_all(&limiter), 1);
    for _ in 0..40 {
        let mut wait = waiting(&limiter);
        clock.jump(SECOND);
        assert_ready_ok!(wait.poll());
    }
    let _bad = bad(&limiter);
    clock.jump(3 * SECOND);
    panics(|| limiter.try_acquire());
    assert_eq!(take_all(&limiter), 2);
}

#[test]
fn an_estimate_that_panicked_took_nothing() {
    let (limiter, clock) = limiter(3);
    let _bad = bad(&limiter);
    clock.jump(3 * SECOND);
    panics(|| crate::support::estimate(&limiter, 2));
    assert_eq!(take_all(&limiter), 2);
}

#[test]
fn a_newcomer_whose_first_poll_panicked_took_nothing() {
    // With room in the queue once the waiter in it is served, and without.
    for most in [1, 0] {
        let (limiter, clock) = limiter(3);
        let _bad = bad(&limiter);
        limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(most));
        clock.jump(3 * SECOND);
        let mut newcomer = spawn(limiter.acquire_many(Request::permits(2)));
        panics(|| newcomer.poll());
        drop(newcomer);
        assert_eq!(take_all(&limiter), 2, "{most}");
    }
}

#[test]
fn a_reservation_whose_making_panicked_stands_nowhere() {
    let (limiter, clock) = limiter(1);
    let _bad = bad(&limiter);
    clock.jump(SECOND);
    panics(|| limiter.reserve(1));
    assert_eq!(limiter.status().waiting, 0);
    clock.jump(SECOND);
    assert_eq!(take_all(&limiter), 1);
}

/// A request that waits, with a waker that panics when the queue drops it.
fn bad_to_drop(limiter: &Limiter) -> Future {
    waiting_with(limiter, &Waker::from(Arc::new(PanicsOnDrop)))
}

#[test]
fn wakers_that_panic_when_they_are_dropped_stop_no_wake_up() {
    let (limiter, clock) = limiter(1);
    let _bad: Vec<_> = (0..3).map(|_| bad_to_drop(&limiter)).collect();
    let mut last = waiting(&limiter);
    clock.jump(4 * SECOND);
    panics(|| limiter.status());
    assert!(last.is_woken());
    assert_ready_ok!(last.poll());
}

#[test]
fn a_waker_that_panics_when_its_request_is_dropped_leaves_no_entry() {
    let (limiter, clock) = limiter(1);
    let bad = bad_to_drop(&limiter);
    let mut next = waiting(&limiter);
    panics(|| drop(bad));
    assert_eq!(limiter.status().waiting, 1);
    clock.jump(SECOND);
    assert_ready_ok!(next.poll());
}

#[test]
fn a_waker_that_panics_when_it_is_replaced_costs_its_request_nothing() {
    let (limiter, clock) = limiter(1);
    let mut future = bad_to_drop(&limiter);
    panics(|| poll_with(&mut future, Waker::noop()));
    assert_eq!(limiter.status().waiting, 1);
    clock.jump(SECOND);
    assert!(poll_with(&mut future, Waker::noop()).is_ready());
}

#[test]
fn no_waiter_makes_room_for_a_request_that_has_no_event_loop() {
    let (limiter, clock) = limiter(1);
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1).when_full(WhenFull::DropOldest));
    let mut first = spawn_pending(limiter.acquire_many(Request::permits(1)));
    limiter.clock().enter(None);
    panics(|| spawn(limiter.acquire_many(Request::permits(1))).poll());
    limiter.clock().enter(1);
    assert_pending!(first.poll());
    clock.jump(SECOND);
    assert_eq!(assert_ready!(first.poll()).map(Grant::waited), Ok(SECOND));
}

/// A clock, and the flag that makes it panic.
fn unsteady() -> (Counted, Arc<AtomicBool>) {
    let panics = Arc::<AtomicBool>::default();
    let flag = panics.clone();
    let run = move |_: &ManualClock, _| {
        assert!(!flag.swap(false, Ordering::Relaxed), "a clock that panics");
    };
    (Counted::running(run), panics)
}

#[test]
fn a_clock_that_panics_while_a_wait_is_dropped_leaves_no_entry() {
    let (clock, clock_panics) = unsteady();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), clock.clone());
    assert_eq!(limiter.try_acquire().map(drop), Ok(()));
    let mut first = spawn(limiter.acquire());
    let mut second = spawn(limiter.acquire());
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    clock_panics.store(true, Ordering::Relaxed);
    panics(|| drop(first));
    assert_eq!(limiter.status().waiting, 1);
    clock.clock.advance(SECOND);
    assert_ready_ok!(second.poll());
}

/// The alarm of a wait that was due later by then had fired. The clock panicked when the alarm was
/// set anew, and nothing served the wait anymore.
#[test]
fn a_clock_that_panics_while_an_alarm_is_set_leaves_no_wait_without_one() {
    for reading in 0..6 {
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let countdown = left.clone();
        let clock = Counted::running(move |_, _| {
            let left = countdown.load(Ordering::Relaxed);
            countdown.store(left.checked_sub(1).unwrap_or(usize::MAX), Ordering::Relaxed);
            assert!(left > 0, "a clock that panics");
        });
        let bucket = TokenBucket::new(Rate::per_second(1000), 10).start_empty();
        let limiter = RateLimiter::with_clock(bucket, clock.clone());
        let mut wait = spawn_pending(limiter.acquire_many(2));
        limiter.debit(3);
        left.store(reading, Ordering::Relaxed);
        let _ = catch_unwind(AssertUnwindSafe(|| clock.clock.advance(Duration::from_millis(3))));
        left.store(usize::MAX, Ordering::Relaxed);
        if wait.is_woken() {
            assert_pending!(wait.poll());
        }
        // A panic of the alarm may have stopped the clock at 2 ms.
        clock.clock.advance(Duration::from_millis(3));
        assert!(wait.is_woken(), "no alarm after a panic of reading {reading}");
        assert_ready_ok!(wait.poll());
    }
}

#[test]
fn a_clock_that_panics_when_an_answer_is_there_costs_no_permit() {
    let (clock, clock_panics) = unsteady();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), clock.clone());
    assert_eq!(limiter.try_acquire().map(drop), Ok(()));
    let mut first = spawn_pending(limiter.acquire());
    clock.clock.advance(SECOND);
    clock_panics.store(true, Ordering::Relaxed);
    panics(|| first.poll());
    let mut second = spawn_pending(limiter.acquire());
    drop(first);
    assert!(second.is_woken());
    assert_ready_ok!(second.poll());
    assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: SECOND.into() }));
}

/// A clock, and the number of readings after which it panics once.
fn unsteady_after() -> (Counted, Arc<AtomicUsize>) {
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let counter = left.clone();
    let run = move |_: &ManualClock, _| {
        let left = counter.load(Ordering::Relaxed);
        counter.store(left.checked_sub(1).unwrap_or(usize::MAX), Ordering::Relaxed);
        assert!(left > 0, "a clock that panics");
    };
    (Counted::running(run), left)
}

/// Bug: no request was granted any more. The policy was shut, and no other one was there.
#[test]
fn a_change_is_made_although_the_clock_panics() -> Result<(), Box<dyn std::error::Error>> {
    let lines =
        ["token_bucket 5/s burst 10", "smooth_bursty 5/s", "fixed_window 10/min", "sliding_log 10/min"];
    for (from, to) in lines.into_iter().flat_map(|from| lines.map(|to| (from, to))) {
        for readings in 0..4 {
            let (clock, left) = unsteady_after();
            let limiter = RateLimiter::with_clock(from.parse::<AnyPolicy>()?, clock.clone());
            clock.clock.advance(SECOND);
            left.store(readings, Ordering::Relaxed);
            let changed =
                catch_unwind(AssertUnwindSafe(|| limiter.apply(&to.parse().expect("a policy"), Keep::Count)));
            let panicked = left.swap(usize::MAX, Ordering::Relaxed) > 100;
            assert_eq!(changed.is_err(), panicked, "{from} to {to}, {readings}: the panic goes on");
            assert_eq!(limiter.policy().to_string(), to, "{from}, {readings}");
            clock.clock.advance(SECOND);
            assert_eq!(limiter.try_acquire().map(drop), Ok(()), "{from} to {to}, {readings}");
        }
    }
    Ok(())
}

/// The request is in the queue when the policy panics. Bug: the next request overtook it, because
/// the word that requests read without the lock was not stored.
#[test]
fn a_policy_that_panics_once_lets_no_request_overtake() {
    let clock = ManualClock::new();
    let policy = SmoothBursty::new(Rate::per_second(1)).max_burst(Duration::ZERO);
    let limiter = RateLimiter::with_clock(Asked::new(policy), clock.clone());
    assert_eq!(limiter.try_acquire().map(drop), Ok(()));
    let Asked { times, panics_at, .. } = limiter.policy();
    panics_at.store(times.load(Ordering::Relaxed), Ordering::Relaxed);
    let mut waiter = Box::pin(limiter.acquire());
    let mut context = Context::from_waker(Waker::noop());
    panics(|| waiter.as_mut().poll(&mut context));
    clock.advance(SECOND);
    assert!(limiter.try_acquire().is_err(), "the permit is the waiter's");
    assert_eq!(waiter.as_mut().poll(&mut context).map_ok(Grant::waited), Poll::Ready(Ok(SECOND)));
}

/// Two empty limiters on this clock, and a composite of them.
fn two_of(clock: &Counted) -> ([RateLimiter<TokenBucket, Counted>; 2], AllOf<Counted>) {
    let bucket = TokenBucket::new(Rate::per_second(1), 1).start_empty();
    let [first, second] = [(); 2].map(|()| RateLimiter::with_clock(bucket.clone(), clock.clone()));
    let all = AllOf::new("first", &first).with("second", &second);
    ([first, second], all)
}

/// Bug: the entry stayed in the queue and belonged to nobody, and so did the seats at the members.
#[test]
fn a_clock_that_panics_while_a_wait_for_two_is_dropped_leaves_no_entry() {
    for reading in 0..12 {
        let (clock, left) = unsteady_after();
        let (limiters, all) = two_of(&clock);
        let wait = spawn_pending(all.acquire());
        left.store(reading, Ordering::Relaxed);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(wait)));
        left.store(usize::MAX, Ordering::Relaxed);
        assert_eq!(all.status().waiting, 0, "{reading}");
        assert_eq!(limiters.map(|limiter| limiter.status().waiting), [0, 0], "{reading}");
        clock.clock.advance(5 * SECOND);
        assert_eq!(all.try_acquire().map(drop), Ok(()), "{reading}");
    }
}

/// Bug: the permits that some members had given were lost.
#[test]
fn a_clock_that_panics_while_a_wait_for_two_is_granted_costs_no_permit() {
    for reading in 0..30 {
        let (clock, left) = unsteady_after();
        let ([first, second], all) = two_of(&clock);
        let mut wait = spawn_pending(all.acquire());
        first.refund(1);
        left.store(reading, Ordering::Relaxed);
        let _ = catch_unwind(AssertUnwindSafe(|| second.refund(1)));
        let granted = catch_unwind(AssertUnwindSafe(|| wait.poll().is_ready()));
        left.store(usize::MAX, Ordering::Relaxed);
        if granted.is_err() {
            let _permits = assert_ready_ok!(wait.poll());
        }
        drop(wait);
        assert_eq!(all.status().waiting, 0, "{reading}");
    }
}

/// Bug: the request joined once more when it was polled again, and its first entry belonged to
/// nobody.
#[test]
fn a_clock_that_panics_while_a_request_joins_leaves_no_entry() {
    for reading in 0..40 {
        let (clock, left) = unsteady_after();
        let (_limiters, all) = two_of(&clock);
        let _low = spawn_pending(all.acquire_many(AllRequest::from(1).within(3600 * SECOND)));
        left.store(reading, Ordering::Relaxed);
        let mut joining = spawn(all.acquire_many(AllRequest::from(1).priority(1)));
        let panicked = catch_unwind(AssertUnwindSafe(|| joining.poll().is_ready())).is_err();
        left.store(usize::MAX, Ordering::Relaxed);
        if panicked && reading % 2 == 0 {
            assert_pending!(joining.poll());
        }
        drop(joining);
        assert_eq!(all.status().waiting, 1, "{reading}");
    }
}

/// The events of calls, in order.
#[derive(Default)]
struct Told(Mutex<Vec<&'static str>>);

impl Told {
    /// Returns the events of this call.
    fn of<T>(&self, call: impl FnOnce() -> T) -> Vec<&'static str> {
        self.0.lock().expect("no panic").clear();
        call();
        self.0.lock().expect("no panic").clone()
    }

    fn add(&self, event: &'static str) {
        self.0.lock().expect("no panic").push(event);
    }
}

impl Events for Told {
    fn granted(&self, _permits: u64, _waited: Duration) {
        self.add("granted");
    }

    fn refused(&self, _permits: u64, _refusal: &Refusal) {
        self.add("refused");
    }

    fn cancelled(&self, _permits: u64, _waited: Duration) {
        self.add("cancelled");
    }

    fn paused(&self, _span: Duration) {
        self.add("paused");
    }

    fn resumed(&self) {
        self.add("resumed");
    }
}

fn observed(burst: u32) -> (Limiter, Arc<Told>, ManualClock) {
    let ((limiter, clock), told) = (limiter(burst), Arc::new(Told::default()));
    assert!(limiter.observe(told.clone()));
    (limiter, told, clock)
}

/// Bug: a call that was unwound by a panic was reported by no event.
#[test]
fn each_call_that_panics_is_reported_once() {
    type Call = fn(&Limiter);
    let calls: [(&str, Call); 6] = [
        ("try", |limiter| panics(|| limiter.try_acquire())),
        ("try of many", |limiter| panics(|| limiter.try_acquire_many(100))),
        ("try of as many", |limiter| panics(|| limiter.try_acquire_many(Request::up_to(9)))),
        ("reserve", |limiter| panics(|| limiter.reserve(1))),
        ("acquire", |limiter| panics(|| spawn(limiter.acquire()).poll())),
        ("acquire as many", |limiter| panics(|| spawn(limiter.acquire_many(Request::up_to(9))).poll())),
    ];
    for (name, call) in calls {
        let (limiter, told, clock) = observed(3);
        let bad = bad(&limiter);
        clock.jump(3 * SECOND);
        assert_eq!(told.of(|| call(&limiter)), ["cancelled"], "{name}");
        assert_eq!(told.of(|| drop(bad)), ["cancelled"]);
        assert_eq!(take_all(&limiter), 3, "{name}");
    }
}

#[test]
fn a_wait_whose_first_poll_panicked_is_reported_when_it_ends() {
    for request in [Request::permits(1), Request::up_to(9)] {
        let (limiter, told, clock) = observed(3);
        let _bad = bad(&limiter);
        clock.jump(3 * SECOND);
        let mut wait = spawn(limiter.acquire_many(request));
        assert_eq!(told.of(|| panics(|| wait.poll())), Vec::<&str>::new());
        assert_eq!(told.of(|| assert_ready_ok!(wait.poll())), ["granted"]);
        assert_eq!(told.of(|| drop(wait)), Vec::<&str>::new());
    }
}

#[test]
fn a_wait_that_is_dropped_or_refused_is_reported_although_a_waker_panics() {
    let (limiter, told, clock) = observed(1);
    let waker_panics = bad(&limiter);
    let wait = waiting(&limiter);
    clock.jump(SECOND);
    assert_eq!(told.of(|| panics(|| drop(wait))), ["cancelled"]);
    drop(waker_panics);

    let (limiter, told, clock) = observed(1);
    limiter.set_catch_up(Duration::ZERO);
    let _first = waiting(&limiter);
    let mut refused = spawn_pending(limiter.acquire_within(2 * SECOND));
    clock.jump(2 * SECOND);
    assert_eq!(limiter.status().waiting, 0);
    let _bad = bad(&limiter);
    clock.jump(SECOND);
    assert_eq!(told.of(|| panics(|| refused.poll())), ["refused"]);
    assert_eq!(told.of(|| drop(refused)), Vec::<&str>::new());
}

#[test]
fn a_call_of_a_composite_that_panics_is_reported_once() {
    type Call = fn(&AllOf<Loops>);
    let calls: [Call; 4] = [
        |all| panics(|| all.try_acquire()),
        |all| panics(|| all.try_acquire_many(Request::permits(1).with_left())),
        |all| panics(|| all.reserve(1)),
        |all| panics(|| spawn(all.acquire()).poll()),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let ((limiter, clock), told) = (limiter(3), Arc::new(Told::default()));
        let other =
            RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 3), limiter.clock().clone());
        let all = AllOf::new("other", &other).with("limiter", &limiter);
        assert!(all.observe(told.clone()));
        let _bad = bad(&limiter);
        clock.jump(3 * SECOND);
        assert_eq!(told.of(|| call(&all)), ["cancelled"], "{number}");
        assert_eq!((take_all(&other), take_all(&limiter)), (3, 2), "{number}");
    }
}

/// Bug: the limiter was paused or resumed, and no event said so.
#[test]
fn pauses_are_reported_although_a_waker_panics() {
    let (limiter, told, clock) = observed(1);
    let within = |span| {
        let mut wait = Box::pin(limiter.acquire_owned(Request::permits(1).within(span)));
        assert!(poll_with(&mut wait, &Waker::from(Arc::new(PanicsOnWake))).is_pending());
        wait
    };
    let _refused = within(SECOND);
    assert_eq!(told.of(|| panics(|| limiter.pause_for(10 * SECOND))), ["paused"]);
    let calls: [fn(&Limiter); 2] =
        [|limiter| panics(|| limiter.resume()), |limiter| panics(|| limiter.reset())];
    for call in calls {
        limiter.reset();
        limiter.pause(tidegate::Pause::lasting(10 * SECOND).keep_permits());
        let _bad = bad(&limiter);
        clock.jump(SECOND);
        limiter.refund(1);
        assert_eq!(told.of(|| call(&limiter)), ["resumed"]);
    }
}

#[cfg(feature = "keyed")]
#[test]
fn pauses_of_all_keys_are_reported_although_a_waker_panics() {
    let (loops, told) = (Loops::new(ManualClock::new()), Arc::new(Told::default()));
    loops.stall(1);
    loops.enter(1);
    let keys = KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), 10, loops);
    let keys = keys.observed_by(told.clone());
    let waker = Waker::from(Arc::new(PanicsOnWake));
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
    let mut within = Box::pin(keys.acquire_within(&1, SECOND));
    assert!(within.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let pause = tidegate::Pause::lasting(10 * SECOND).keep_permits();
    assert_eq!(told.of(|| panics(|| keys.pause_all(pause))), ["paused"]);
    let mut wait = Box::pin(keys.acquire(&2));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(told.of(|| panics(|| keys.resume_all())), ["resumed"]);
}

/// Bug: the waker of a waiter that passed or was refused panicked, and composites that waited for
/// the limiter were not notified.
#[test]
fn composites_are_notified_although_a_waker_panics() {
    let calls: [fn(&Limiter); 2] =
        [|limiter| panics(|| limiter.set_shadow(true)), |limiter| panics(|| limiter.close())];
    for call in calls {
        let (limiter, _clock) = limiter(1);
        let all = AllOf::new("limiter", &limiter);
        // More than are notified at a time.
        let mut waits: Vec<_> = (0..100).map(|_| spawn_pending(all.acquire())).collect();
        let others: Vec<_> = (0..100).map(|_| AllOf::new("limiter", &limiter)).collect();
        let mut other_waits: Vec<_> = others.iter().map(|all| spawn_pending(all.acquire())).collect();
        let _bad = bad(&limiter);
        call(&limiter);
        for wait in waits.iter_mut().chain(&mut other_waits) {
            assert!(wait.is_woken() && wait.poll().is_ready());
        }
    }
}

/// Bug: a member granted a request of a composite, refused a waiter that this made too late, and
/// the waker of that waiter panicked. The permit was lost.
#[test]
fn a_composite_whose_take_panicked_took_nothing() {
    let calls: [fn(&AllOf<ManualClock>, Request); 3] = [
        |all, request| panics(|| all.try_acquire_many(request)),
        |all, request| panics(|| all.try_acquire_many(request.with_left())),
        |all, request| panics(|| spawn(all.acquire_many(request)).poll()),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        let clock = ManualClock::new();
        let bucket = || RateLimiter::with_clock(TokenBucket::new(Rate::per_second(10), 2), clock.clone());
        let (limiter, other) = (bucket(), bucket());
        assert!(limiter.try_acquire().is_ok());
        let within = Request::permits(2).within(Duration::from_millis(150));
        let mut too_late = Box::pin(limiter.clone().acquire_owned(within));
        let waker = Waker::from(Arc::new(PanicsOnWake));
        assert!(too_late.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let all = AllOf::new("limiter", &limiter).with("other", &other);
        call(&all, Request::permits(1).priority(1));
        assert_eq!((limiter.status().available, other.status().available), (1, 2), "{number}");
    }
}

/// Bug: the panic of another request's waker ended the settlement before it was made.
#[test]
fn a_settlement_is_made_although_a_waker_panics() {
    for (used, left) in [(1, 1), (2, 0), (3, 0)] {
        let (limiter, clock) = limiter(3);
        let _bad = bad(&limiter);
        let due = limiter.reserve(2).expect("a reservation");
        clock.jump(3 * SECOND);
        panics(|| due.settle(used));
        assert_eq!(take_all(&limiter), left, "{used}");
        clock.jump(3 * SECOND);
        assert_eq!(take_all(&limiter), if used > 2 { 2 } else { 3 }, "{used}");
    }
    for (used, left) in [(1, 1), (2, 0), (3, 0)] {
        let (first, clock) = limiter(3);
        let other = RateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 3), first.clock().clone());
        let all = AllOf::new("first", &first).with("other", &other);
        let _bad = bad(&first);
        let due = all.reserve(2).expect("a reservation");
        clock.jump(3 * SECOND);
        panics(|| due.settle([("first", used), ("other", used)]));
        assert_eq!((take_all(&first), take_all(&other)), (left, 3 - used as usize), "{used}");
    }
    for used in 0..=3 {
        let (first, clock) = limiter(3);
        let other = RateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 3), first.clock().clone());
        let all = AllOf::new("first", &first).with("other", &other);
        clock.jump(2 * SECOND);
        let mut claimed = all.reserve(2).expect("a reservation");
        assert!(claimed.claim());
        let _bad = bad(&first);
        clock.jump(SECOND);
        panics(|| claimed.settle([("first", used), ("other", used)]));
        assert_eq!(take_all(&other), 3 - used as usize, "{used}");
    }
}

/// Bug: the permits of the other members were not given back, or not charged.
#[test]
fn all_members_are_refunded_and_charged_although_a_waker_panics() {
    for is_refund in [true, false] {
        let (first, clock) = limiter(3);
        let other = RateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 9), first.clock().clone());
        let all = AllOf::new("first", &first).with("other", &other);
        assert_eq!(take_all(&other), 9);
        other.refund(3);
        let _bad = bad(&first);
        if is_refund {
            panics(|| all.refund(2));
        } else {
            clock.jump(SECOND);
            panics(|| all.debit(2));
        }
        assert_eq!(take_all(&other), if is_refund { 5 } else { 1 });
    }
}

/// Bug: more requests were due than are served in one go, and the panic of a waker came first.
#[test]
fn a_debit_is_made_although_one_of_many_wakers_panics() {
    let (limiter, clock) = limiter(3000);
    let _bad = bad(&limiter);
    let _others: Vec<_> = (0..2000).map(|_| waiting(&limiter)).collect();
    clock.jump(3000 * SECOND);
    panics(|| limiter.debit(900));
    assert_eq!(limiter.status().available, 99);
}

#[cfg(feature = "keyed")]
#[test]
fn a_call_of_a_key_that_panics_is_reported_once() {
    type Calls = KeyedAllOf<str, Loops>;
    let calls: [fn(&Calls); 2] = [
        |calls| panics(|| calls.try_acquire("alice")),
        |calls| panics(|| spawn(calls.acquire("alice")).poll()),
    ];
    for call in calls {
        let ((limiter, clock), told) = (limiter(3), Arc::new(Told::default()));
        let policy = TokenBucket::new(Rate::per_second(1), 3);
        let users: KeyedRateLimiter<String, _, _> =
            KeyedRateLimiter::with_clock(policy, 9, limiter.clock().clone());
        let all: Calls = KeyedAllOf::new("user", &users).with("all", &limiter).observed_by(told.clone());
        let _bad = bad(&limiter);
        clock.jump(3 * SECOND);
        assert_eq!(told.of(|| call(&all)), ["cancelled"]);
        assert_eq!(users.status("alice").available, 3);
    }
}

/// Bug: the clock panicked in a composite's last look at its queue, and nothing served its waits
/// anymore.
#[test]
fn a_clock_that_panics_in_a_composite_leaves_no_wait_without_an_alarm() {
    for reading in 0..60 {
        let (clock, left) = unsteady_after();
        let bucket = TokenBucket::new(Rate::per_second(1000), 10).start_empty();
        let calls = RateLimiter::with_clock(bucket, clock.clone());
        let all = AllOf::new("calls", &calls);
        let mut wait = spawn_pending(all.acquire());
        calls.debit(3);
        left.store(reading, Ordering::Relaxed);
        let _ = catch_unwind(AssertUnwindSafe(|| clock.clock.advance(Duration::from_millis(1))));
        left.store(usize::MAX, Ordering::Relaxed);
        if wait.is_woken() {
            assert_pending!(wait.poll());
        }
        clock.clock.advance(Duration::from_millis(9));
        assert!(wait.is_woken(), "no alarm after a panic of reading {reading}");
    }
}

/// Bug: a grant was lost when the clock panicked after it, while the limiter of its key was given
/// back.
#[cfg(feature = "keyed")]
#[test]
fn a_clock_that_panics_after_the_grant_of_a_key_costs_no_permit() {
    for reading in 0..6 {
        let (clock, left) = unsteady_after();
        let bucket = TokenBucket::new(Rate::per_hour(1), 1);
        let keys: KeyedRateLimiter<_, _, _> = KeyedRateLimiter::with_clock(bucket, 9, clock.clone());
        let of_key = keys.limiter(&1).expect("a new key");
        left.store(reading, Ordering::Relaxed);
        let granted = catch_unwind(AssertUnwindSafe(|| keys.try_acquire(&1).is_ok()));
        left.store(usize::MAX, Ordering::Relaxed);
        let available = of_key.status().available;
        assert_eq!(available, u64::from(!matches!(granted, Ok(true))), "{reading}: {granted:?}");
    }
}

/// Bug: the seats of a composite stayed in its members when the policy of one panicked while they
/// were given up.
#[test]
fn a_policy_that_panics_while_seats_are_given_up_keeps_no_seat() {
    for call in 0..40 {
        let clock = ManualClock::new();
        let policy = Asked::new(SmoothBursty::new(Rate::per_second(1)));
        let a = RateLimiter::with_clock(policy, clock.clone());
        let b = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), clock.clone());
        assert!(a.try_acquire_many(3).is_ok());
        assert!(b.try_acquire().is_ok());
        let all = AllOf::new("a", &a).with("b", &b);
        let reserved = a.reserve(1).expect("some day");
        let mut wait = spawn_pending(all.acquire_within(10 * SECOND));
        let asked = a.policy().times.load(Ordering::Relaxed);
        a.policy().panics_at.store(asked + call, Ordering::Relaxed);
        _ = catch_unwind(AssertUnwindSafe(|| {
            b.debit(20);
            _ = wait.poll();
            drop(wait);
        }));
        a.policy().panics_at.store(usize::MAX, Ordering::Relaxed);
        assert_eq!(a.status().waiting, 1, "{call}");
        drop(reserved);
        clock.advance(100 * SECOND);
        assert!(a.try_acquire().is_ok() && b.try_acquire().is_ok(), "{call}");
    }
}

/// Bug: a reservation of a composite stayed in the queue if the clock of a member panicked while
/// the reservation was dropped or settled. Later it took permits that nobody could give back.
#[test]
fn a_clock_that_panics_while_a_reservation_is_dropped_keeps_no_position() {
    for (reading, settles) in (0..16).flat_map(|reading| [(reading, false), (reading, true)]) {
        let panics_at = Arc::new(AtomicUsize::new(usize::MAX));
        let at = panics_at.clone();
        let clock = Counted::running(move |_, before| {
            assert!(before != at.load(Ordering::Relaxed) || thread::panicking(), "a clock that panics");
        });
        let rate = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(10), 2), clock.clone());
        let calls = CountingLimit::new(2);
        let all = AllOf::new("rate", &rate).with_counting("calls", &calls);
        drop(all.try_acquire_many(2).expect("permits"));
        let reserved = all.reserve(2).expect("some day");
        panics_at.store(clock.readings.load(Ordering::Relaxed) + reading, Ordering::Relaxed);
        _ = catch_unwind(AssertUnwindSafe(|| match settles {
            true => reserved.settle_unused(),
            false => drop(reserved),
        }));
        panics_at.store(usize::MAX, Ordering::Relaxed);
        assert_eq!(all.status().waiting, 0, "reading {reading}, settled: {settles}");
        clock.clock.advance(100 * SECOND);
        _ = all.try_acquire();
        assert_eq!((calls.available(), rate.status().available), (2, 1), "reading {reading}");
    }
}

/// Panics when it is notified of a grant.
struct PanicsOnGrant;

impl Events for PanicsOnGrant {
    fn granted(&self, _: u64, _: Duration) {
        panic!("an observer that panics");
    }
}

/// Bug: a reservation whose grant an observer had met with a panic was charged again when it was
/// settled.
#[test]
fn a_grant_that_an_observer_met_with_a_panic_is_charged_once() {
    for (used, available) in [(1, 6), (4, 6), (5, 5)] {
        for claims in [false, true] {
            let policy = TokenBucket::new(Rate::per_hour(1), 10);
            let limiter = RateLimiter::with_clock(policy.clone(), ManualClock::new());
            limiter.observe(Arc::new(PanicsOnGrant));
            let mut reserved = limiter.reserve(4).expect("permits");
            if claims {
                assert!(catch_unwind(AssertUnwindSafe(|| reserved.claim())).is_err());
            }
            _ = catch_unwind(AssertUnwindSafe(|| reserved.settle(used)));
            assert_eq!(limiter.status().available, available);

            let member = RateLimiter::with_clock(policy, ManualClock::new());
            let all = AllOf::new("member", &member);
            all.observe(Arc::new(PanicsOnGrant));
            let mut reserved = all.reserve(4).expect("permits");
            if claims {
                assert!(catch_unwind(AssertUnwindSafe(|| reserved.claim())).is_err());
            }
            _ = catch_unwind(AssertUnwindSafe(|| reserved.settle(used)));
            assert_eq!(member.status().available, available);
        }
    }
}
