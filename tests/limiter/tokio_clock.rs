//! A limiter on tokio: paused time, and runtimes that end, stall or share the limiter.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::support::PATIENCE;
use tidegate::{
    AcquireOwned, Clock, CountingLimit, Grant, Rate, RateLimiter, SmoothBursty, SystemClock, TokenBucket,
    TokioClock,
};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn bursty(rate: Rate) -> SmoothBursty {
    SmoothBursty::new(rate).max_burst(Duration::ZERO)
}

#[tokio::test(start_paused = true)]
async fn paused_time_drives_every_wait() {
    let limiter = RateLimiter::with_clock(bursty(Rate::per_second(5)), TokioClock::new());
    let start = Instant::now();
    for turn in 0..100 {
        limiter.acquire().await.expect("a permit");
        assert_eq!(start.elapsed(), turn * Duration::from_millis(200));
    }
}

#[cfg(feature = "test-util")]
#[tokio::test(start_paused = true)]
async fn paced_calls_are_one_interval_apart_after_idling() {
    let limiter = RateLimiter::paced(Rate::per_second(5));
    tokio::time::advance(HOUR).await;
    let start = Instant::now();
    for turn in 0..10 {
        limiter.acquire().await.expect("a permit");
        assert_eq!(start.elapsed(), turn * Duration::from_millis(200));
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_are_served_in_order() {
    let limiter = RateLimiter::with_clock(bursty(Rate::per_second(1000)), TokioClock::new());
    let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
    for name in 0..1000 {
        let (limiter, done) = (limiter.clone(), done.clone());
        tokio::spawn(async move {
            limiter.acquire_many(1 + name % 7).await.expect("never refused");
            done.send(name).expect("the test listens");
        });
    }
    for name in 0..1000 {
        assert_eq!(order.recv().await, Some(name));
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_around_a_wait_leaves_no_trace() {
    let limiter = RateLimiter::with_clock(bursty(Rate::per_second(1)), TokioClock::new());
    limiter.acquire().await.expect("a permit");
    for _ in 0..9 {
        assert!(tokio::time::timeout(SECOND / 10, limiter.acquire()).await.is_err());
    }
    let start = Instant::now();
    limiter.acquire().await.expect("a permit");
    assert_eq!(start.elapsed(), SECOND / 10);
}

#[tokio::test(start_paused = true)]
async fn a_task_without_budget_still_arms_the_alarm() {
    let limiter = RateLimiter::with_clock(bursty(Rate::per_second(1)), TokioClock::new());
    limiter.acquire().await.expect("a permit");
    // Use up the cooperative budget of this task, then wait in this poll.
    let semaphore = tokio::sync::Semaphore::new(1);
    std::future::poll_fn(|context| {
        while let Poll::Ready(permit) = pin!(semaphore.acquire()).poll(context) {
            drop(permit);
        }
        Poll::Ready(())
    })
    .await;
    assert_eq!(limiter.acquire().await.map(Grant::waited), Ok(SECOND));
}

/// Without the feature `test-util` the default clock does not know that tokio's time is paused. It
/// must say so.
#[tokio::test(start_paused = true)]
#[should_panic(expected = "enable tidegate's feature `test-util`")]
async fn a_clock_that_paused_time_does_not_drive_is_an_error() {
    let limiter = RateLimiter::with_clock(bursty(Rate::per_hour(1)), SystemClock::new());
    limiter.acquire().await.expect("a permit");
    limiter.acquire().await.expect("a permit");
}

#[test]
fn a_limiter_survives_a_wait_in_a_runtime_without_a_timer() {
    let limiter = RateLimiter::with_clock(bursty(Rate::per_second(1_000)), SystemClock::new());
    // For the next 1,000 seconds a request waits.
    limiter.try_acquire_many(1_000_000).expect("the first");
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let wait = || runtime.block_on(limiter.acquire());
    assert!(catch_unwind(AssertUnwindSafe(wait)).is_err(), "tokio has no timer here");
    assert_eq!(limiter.status().waiting, 0);
    limiter.refund(999_980);
    limiter.blocking_acquire().expect("a permit");
}

#[test]
fn a_runtime_that_ends_with_a_leaked_waiter_stalls_no_other() {
    let limiter = RateLimiter::with_clock(bursty(Rate::per_second(100)), SystemClock::new());
    // For the next minute a request waits.
    limiter.try_acquire_many(6_000).expect("the first");
    let other = runtime();
    let waits = limiter.clone();
    let ended = runtime();
    ended.block_on(async {
        let mut leaked = Box::pin(limiter.acquire_owned(1));
        assert!(leaked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        std::mem::forget(leaked);
    });
    // A waiter of the other runtime stands behind the leaked one. The alarm of that one goes down
    // with its runtime.
    let mut waiting = Box::pin(waits.acquire_owned(1));
    let waits = other.block_on(async {
        std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await.is_pending()
    });
    assert!(waits);
    drop(ended);
    // The two are due 100 ms and 110 ms after the start, or now on a busy machine.
    limiter.refund(5_990);
    other.block_on(waiting).expect("granted");
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn a_stalled_runtime_holds_up_no_other() {
    let limiter = RateLimiter::with_clock(bursty(Rate::per_second(200)), SystemClock::new());
    limiter.try_acquire().expect("the first");
    let (stalled, other) = (runtime(), runtime());
    // The first in line belongs to a runtime that does not run.
    let mut first = Box::pin(limiter.acquire_owned(1));
    let waits = stalled.block_on(async {
        std::future::poll_fn(|context| Poll::Ready(first.as_mut().poll(context))).await.is_pending()
    });
    other.block_on(async {
        limiter.acquire().await.expect("a permit");
        limiter.acquire().await.expect("a permit");
    });
    // On a busy machine it may have had its permit at its first poll.
    if waits {
        stalled.block_on(first).expect("granted");
    }
}

#[test]
fn many_runtimes_share_one_limiter() {
    let limiter = RateLimiter::with_clock(bursty(Rate::per_second(20_000)), SystemClock::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                runtime().block_on(async {
                    for _ in 0..500 {
                        limiter.acquire().await.expect("a permit");
                    }
                });
            });
        }
    });
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn a_runtime_that_ends_after_an_alarm_was_due_does_not_panic() {
    let limiter = RateLimiter::with_clock(bursty(Rate::per_second(1_000)), SystemClock::new());
    limiter.try_acquire().expect("the first");
    let ended = runtime();
    ended.block_on(async {
        let (mut tries, mut waiting) = (0, 0);
        while waiting < 100 {
            // On a busy machine permits come in between the polls.
            let mut leaked = Box::pin(limiter.acquire_owned(1));
            waiting +=
                usize::from(leaked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            std::mem::forget(leaked);
            tries += 1;
            assert!(tries < 10_000, "{waiting} requests of {tries} wait");
        }
    });
    // The runtime does not run while the first ones come due, so its timer fires for the last time
    // as it ends.
    let start = limiter.clock().now();
    while limiter.clock().now().saturating_since(start).as_duration() < Duration::from_millis(5) {
        std::hint::spin_loop();
    }
    drop(ended);
    assert!(limiter.status().waiting < 100);
}

/// Waits until `count` requests stand in line. Time does not move meanwhile: the runtime has work
/// to do.
async fn until_waiting(limiter: &RateLimiter<SmoothBursty, TokioClock>, count: usize) {
    let begin = std::time::Instant::now();
    while limiter.status().waiting < count {
        assert!(begin.elapsed() < PATIENCE, "fewer than {count} requests wait");
        tokio::task::yield_now().await;
    }
}

/// Takes `count` permits in a plain thread, and reports how long each took.
fn thread_takes(
    limiter: &Arc<RateLimiter<SmoothBursty, TokioClock>>,
    count: usize,
    enters: Option<Handle>,
) -> oneshot::Receiver<Vec<Duration>> {
    let (tell, told) = oneshot::channel();
    let limiter = limiter.clone();
    thread::spawn(move || {
        let _inside = enters.as_ref().map(Handle::enter);
        tell.send((0..count).map(|_| limiter.blocking_acquire().expect("a permit").waited()).collect())
    });
    told
}

fn hourly(clock: TokioClock) -> Arc<RateLimiter<SmoothBursty, TokioClock>> {
    Arc::new(RateLimiter::with_clock(bursty(Rate::per_hour(1)), clock))
}

#[tokio::test(start_paused = true)]
async fn a_plain_thread_reads_the_paused_time_of_the_runtime_that_made_the_clock() {
    let clock = TokioClock::new();
    for _ in 0..3 {
        let told = thread::spawn(move || clock.now()).join().expect("no panic");
        assert_eq!(told, clock.now());
        tokio::time::advance(100 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_plain_thread_is_served_by_advance() {
    let limiter = hourly(TokioClock::new());
    limiter.acquire().await.expect("a permit");
    let mut told = thread_takes(&limiter, 1, None);
    until_waiting(&limiter, 1).await;
    tokio::time::advance(3599 * SECOND).await;
    assert_eq!(limiter.status().waiting, 1);
    assert!(told.try_recv().is_err());
    tokio::time::advance(SECOND).await;
    assert_eq!(told.await, Ok(vec![HOUR]));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_with_nothing_to_do_advances_to_a_plain_thread() {
    let limiter = hourly(TokioClock::new());
    let start = Instant::now();
    assert_eq!(thread_takes(&limiter, 3, None).await, Ok(vec![Duration::ZERO, HOUR, HOUR]));
    assert_eq!(start.elapsed(), 2 * HOUR);
}

#[tokio::test(start_paused = true)]
async fn another_executor_is_served_by_the_paused_time_of_the_runtime_that_made_the_clock() {
    let limiter = hourly(TokioClock::new());
    let (tell, told) = oneshot::channel();
    let waits = limiter.clone();
    thread::spawn(move || {
        let wait = || async { waits.acquire().await.map(Grant::waited) };
        let three = async { [wait().await, wait().await, wait().await] };
        tell.send(futures_executor::block_on(three))
    });
    assert_eq!(told.await, Ok([Ok(Duration::ZERO), Ok(HOUR), Ok(HOUR)]));
}

#[tokio::test(start_paused = true)]
async fn a_change_in_another_thread_sets_the_alarm_by_the_time_of_the_runtime() {
    let limiter = hourly(TokioClock::new());
    limiter.acquire().await.expect("a permit");
    tokio::time::advance(HOUR / 4).await;
    let start = Instant::now();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move {
            let wait = || async { limiter.acquire().await.map(Grant::waited) };
            (wait().await, wait().await)
        }
    });
    until_waiting(&limiter, 1).await;
    let faster = limiter.clone();
    let change = move || faster.set_rate(Rate::per_hour(2));
    thread::spawn(change).join().expect("no panic");
    // The first of them waits for what was granted at the old rate.
    assert_eq!(waiting.await.expect("no panic"), (Ok(HOUR * 3 / 4), Ok(HOUR / 2)));
    assert_eq!(start.elapsed(), HOUR * 5 / 4);
}

#[tokio::test(start_paused = true)]
async fn a_plain_thread_and_tasks_wait_in_one_line_under_paused_time() {
    let limiter = hourly(TokioClock::new());
    limiter.acquire().await.expect("a permit");
    let first = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire().await }
    });
    until_waiting(&limiter, 1).await;
    let told = thread_takes(&limiter, 1, None);
    until_waiting(&limiter, 2).await;
    tokio::time::advance(HOUR).await;
    assert_eq!(first.await.expect("no panic").map(Grant::waited), Ok(HOUR));
    assert_eq!(told.await, Ok(vec![2 * HOUR]));
}

#[tokio::test(start_paused = true)]
async fn a_blocking_task_is_served_by_advance() {
    let limiter = hourly(TokioClock::new());
    limiter.acquire().await.expect("a permit");
    let blocked = tokio::task::spawn_blocking({
        let limiter = limiter.clone();
        move || limiter.blocking_acquire()
    });
    until_waiting(&limiter, 1).await;
    tokio::time::advance(HOUR).await;
    assert_eq!(blocked.await.expect("no panic").map(Grant::waited), Ok(HOUR));
}

#[cfg(feature = "test-util")]
#[tokio::test(start_paused = true)]
async fn a_limiter_with_the_default_clock_serves_a_plain_thread_by_advance() {
    let limiter = Arc::new(RateLimiter::new(bursty(Rate::per_hour(1))));
    limiter.acquire().await.expect("a permit");
    let told = thread_takes(&limiter, 1, None);
    until_waiting(&limiter, 1).await;
    tokio::time::advance(HOUR).await;
    assert_eq!(told.await, Ok(vec![HOUR]));
}

#[test]
fn a_thread_that_enters_the_runtime_is_served_with_a_clock_made_outside() {
    let limiter = hourly(TokioClock::new());
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        limiter.acquire().await.expect("a permit");
        let told = thread_takes(&limiter, 1, Some(Handle::current()));
        until_waiting(&limiter, 1).await;
        tokio::time::advance(HOUR).await;
        assert_eq!(told.await, Ok(vec![HOUR]));
    });
}

#[test]
fn a_clock_does_not_go_back_when_its_paused_runtime_ends() {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    let (clock, before) = runtime.block_on(async {
        let clock = TokioClock::new();
        tokio::time::advance(HOUR).await;
        (clock, clock.now())
    });
    assert_eq!(clock.now(), before);
    drop(runtime);
    assert!(clock.now() >= before);
}

#[test]
fn a_blocked_thread_goes_on_in_real_time_when_its_paused_runtime_ends() {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    let (limiter, told) = runtime.block_on(async {
        let clock = TokioClock::new();
        tokio::time::advance(HOUR).await;
        let limiter = Arc::new(RateLimiter::with_clock(bursty(Rate::per_second(1000)), clock));
        limiter.acquire().await.expect("a permit");
        let told = thread_takes(&limiter, 10, None);
        until_waiting(&limiter, 1).await;
        (limiter, told)
    });
    drop(runtime);
    assert_eq!(told.blocking_recv().map(|waits| waits.len()), Ok(10));
    assert_eq!(limiter.status().waiting, 0);
}

/// A waker that owns a wait, as a task owns all that it waits for.
struct Owns(#[expect(dead_code, reason = "it is dropped")] Mutex<AcquireOwned<TokenBucket, TokioClock>>);

impl Wake for Owns {
    fn wake(self: Arc<Self>) {}
}

#[cfg(feature = "test-util")]
#[test]
fn a_waker_that_is_replaced_may_end_a_wait_of_the_same_runtime() {
    // A maximum wait polled its sleep with the waker of the task, under the lock that guards
    // whether the runtime runs. tokio drops the old waker there. The wait that ended with it set
    // the alarm of its limiter, which took the lock again: the thread waited for itself.
    let (done, is_done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        runtime().block_on(async {
            let policy = TokenBucket::new(Rate::per_hour(1), 10);
            let limiter = RateLimiter::with_clock(policy, TokioClock::new());
            limiter.drain();
            // Without the first one, the second one is due earlier than the first one was.
            let [first, _second] = [10, 1].map(|n| {
                let mut wait = limiter.acquire_owned(n);
                assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop())).is_pending());
                wait
            });

            let calls = CountingLimit::new(1);
            let _permit = calls.try_acquire().expect("there");
            let mut wait = pin!(calls.acquire_within(HOUR));
            let owner = Waker::from(Arc::new(Owns(Mutex::new(first))));
            assert!(wait.as_mut().poll(&mut Context::from_waker(&owner)).is_pending());
            drop(owner);
            assert_eq!(limiter.status().waiting, 2);
            assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(limiter.status().waiting, 1);
        });
        done.send(()).expect("the test listens");
    });
    // Real time, because a thread that waits for itself reports nothing. It passes only in a
    // failure.
    assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(()));
}
