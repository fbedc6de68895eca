//! Waiting in executors other than tokio, on the crate's thread.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures_executor::block_on;
use tidegate::{
    Clock, CountingLimit, PreciseClock, Rate, RateLimiter, Refusal, SmoothBursty, SystemClock, Timer,
};

type Precise = RateLimiter<SmoothBursty, PreciseClock>;

/// One permit per millisecond, none saved.
fn fast<C: Timer>(clock: C) -> RateLimiter<SmoothBursty, C> {
    RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(1000)).max_burst(Duration::ZERO), clock)
}

/// Takes `count` permits one after another, and returns when by the clock the last one was granted.
async fn take<C: Timer>(limiter: &RateLimiter<SmoothBursty, C>, count: usize) -> Duration {
    for _ in 0..count {
        limiter.acquire().await.expect("a permit");
    }
    limiter.clock().now().as_duration()
}

const TEN: Duration = Duration::from_millis(9);

#[test]
fn the_default_limiter_waits_in_block_on() {
    let limiter = RateLimiter::smooth_bursty(Rate::per_second(1000));
    block_on(async {
        limiter.acquire_many(10).await.expect("permits");
        limiter.acquire().await.expect("a permit");
    });
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn each_clock_waits_in_block_on() {
    let (system, precise) = (fast(SystemClock::new()), fast(PreciseClock::new()));
    assert!(block_on(take(&system, 10)) >= TEN);
    assert!(block_on(take(&precise, 10)) >= TEN);
}

#[test]
fn each_clock_waits_in_smol() {
    let (system, precise) = (fast(SystemClock::new()), fast(PreciseClock::new()));
    let tasks = (0..10).map(|_| {
        let (system, precise) = (system.clone(), precise.clone());
        smol::spawn(async move { take(&system, 1).await.max(take(&precise, 1).await) })
    });
    let tasks: Vec<_> = tasks.collect();
    let last = smol::block_on(async {
        let mut last = Duration::ZERO;
        for task in tasks {
            last = last.max(task.await);
        }
        last
    });
    assert!(last >= TEN);
}

#[test]
fn a_precise_limiter_waits_in_tokio() {
    let limiter = fast(PreciseClock::new());
    // A runtime without a time driver.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let limiter = limiter.clone();
            runtime.spawn(async move { take(&limiter, 1).await })
        })
        .collect();
    let last = runtime.block_on(async {
        let mut last = Duration::ZERO;
        for task in tasks {
            last = last.max(task.await.expect("no panic"));
        }
        last
    });
    assert!(last >= TEN);
}

#[test]
fn tasks_of_several_executors_and_threads_share_one_line() {
    let limiter = fast(SystemClock::new());
    thread::scope(|scope| {
        scope.spawn(|| block_on(take(&limiter, 50)));
        scope.spawn(|| smol::block_on(take(&limiter, 50)));
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.expect("a runtime").block_on(take(&limiter, 50))
        });
        scope.spawn(|| (0..50).for_each(|_| _ = limiter.blocking_acquire()));
    });
    assert_eq!(limiter.status().waiting, 0);
    assert!(limiter.clock().now() >= Duration::from_millis(199));
}

#[test]
fn a_task_that_moves_out_of_tokio_is_woken_by_the_thread() {
    let limiter = fast(SystemClock::new());
    limiter.try_acquire_many(100).expect("permits");
    let mut waits = Box::pin(limiter.acquire_owned(1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let first = {
        let _inside = runtime.enter();
        waits.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    };
    // The runtime has stopped running, and its timer does not fire.
    if first.is_pending() {
        block_on(waits).expect("a permit");
    }
}

#[test]
fn a_leaked_wait_holds_up_no_task_behind_it() {
    let limiter = fast(PreciseClock::new());
    limiter.try_acquire().expect("a permit");
    let mut leaked = Box::pin(limiter.acquire_owned(1));
    _ = leaked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    std::mem::forget(leaked);
    block_on(take(&limiter, 1));
}

#[test]
fn a_change_moves_a_wait_of_hours() {
    let limiter: Precise = RateLimiter::with_clock(
        SmoothBursty::new(Rate::per_hour(1)).max_burst(Duration::ZERO),
        PreciseClock::new(),
    );
    limiter.try_acquire().expect("a permit");
    let (tell, told) = mpsc::channel();
    let waits = limiter.clone();
    let waiter = thread::spawn(move || {
        let mut wait = pin!(waits.acquire());
        block_on(std::future::poll_fn(|context| {
            let poll = wait.as_mut().poll(context).map(drop);
            let _ = tell.send(());
            poll
        }));
    });
    told.recv().expect("it waits");
    limiter.reset();
    waiter.join().expect("no panic");
}

#[test]
fn a_dropped_wait_leaves_no_trace() {
    let limiter = fast(PreciseClock::new());
    limiter.try_acquire().expect("a permit");
    for _ in 0..1000 {
        let mut wait = pin!(limiter.acquire());
        let _ = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn a_counting_limit_gives_up_without_tokio() {
    let limit = CountingLimit::new(1);
    let permit = block_on(limit.acquire_within(Duration::ZERO)).expect("a permit is free");
    let refused = block_on(limit.acquire_within(Duration::from_millis(2)));
    assert_eq!(refused.err(), Some(Refusal::InUse { limit: 1 }));
    drop(permit);
    assert!(block_on(limit.acquire_within(Duration::from_millis(2))).is_ok());
}

#[test]
fn a_counting_limit_with_no_free_permit_needs_no_timer_for_a_free_one() {
    let limit = CountingLimit::new(1);
    // A runtime without a time driver.
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut wait = Box::pin(limit.acquire_within(Duration::from_secs(1)));
    let poll = runtime.block_on(async {
        std::future::poll_fn(|context| Poll::Ready(wait.as_mut().poll(context).is_ready())).await
    });
    assert!(poll);
}
