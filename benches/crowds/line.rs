//! What does a call on a limiter cost while a crowd of requests waits in its queue?
//!
//! The requests ask for 1 to 5 permits in turn, and every other one has a deadline far ahead.

use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use stats_alloc::Region;
use tidegate::policy::Policy;
use tidegate::{
    AcquireOwned, FixedWindow, ManualClock, QueueBounds, Rate, RateLimiter, Request, SlidingLog, TokenBucket,
};

use crate::{ALLOCATOR, CALLS, Options, grown, time};

const SIZES: [usize; 3] = [1_000, 100_000, 1_000_000];
const BURST: u32 = 10;
const DAY: Duration = Duration::from_secs(86_400);

type Waiter<P> = Pin<Box<AcquireOwned<P, ManualClock>>>;

/// Puts one more request into the queue.
fn join<P: Policy>(limiter: &RateLimiter<P, ManualClock>, number: usize) -> Waiter<P> {
    let request = Request::permits(1 + u32::try_from(number % 5).unwrap_or(0));
    let request = if number.is_multiple_of(2) { request } else { request.within(10_000 * DAY) };
    let mut waiter = Box::pin(limiter.acquire_owned(request));
    assert!(poll(waiter.as_mut()).is_pending(), "nothing is due");
    waiter
}

pub(crate) fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

pub(crate) fn all(options: &Options) {
    let rates = [Rate::per_hour(3600), Rate::per_hour(3601)];
    for &waiting in options.sizes(&SIZES) {
        calls("TokenBucket", TokenBucket::new(rates[0], BURST), rates, waiting, options);
        calls("FixedWindow", FixedWindow::new(Rate::per_second(5)), fives(), waiting, options);
        calls("SlidingLog", SlidingLog::new(Rate::per_second(5)), fives(), waiting, options);
    }
}

/// Returns two rates of five permits.
fn fives() -> [Rate; 2] {
    [1000, 1001].map(|millis| Rate::new(5, Duration::from_millis(millis)).expect("a plain rate"))
}

fn calls<P: Policy>(name: &str, policy: P, rates: [Rate; 2], waiting: usize, options: &Options) {
    let case = format!("line/{name}/{waiting}");
    if !options.wants(&case) {
        return;
    }
    let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    while limiter.try_acquire().is_ok() {}
    let region = Region::new(ALLOCATOR);
    let mut line = Vec::with_capacity(waiting + CALLS);
    let room_for_line = grown(&region);
    line.extend((0..waiting).map(|number| join(&limiter, number)));
    let bytes = (grown(&region) - room_for_line) / waiting as f64;

    time(&case, "join", CALLS, |number| line.push(join(&limiter, number)));
    let mut random = SmallRng::seed_from_u64(7);
    line.shuffle(&mut random);
    time(&case, "cancel at random", CALLS, |_| drop(line.pop()));
    time(&case, "try_acquire, refused", CALLS, |_| assert!(black_box(limiter.try_acquire()).is_err()));
    time(&case, "try_within, refused", CALLS, |_| {
        let mut refused = std::pin::pin!(limiter.acquire_within(Duration::from_millis(1)));
        assert!(matches!(poll(refused.as_mut()), Poll::Ready(Err(_))), "too late");
    });
    let reservation = limiter.reserve(2).expect("it can be had");
    time(&case, "due_in", CALLS, |_| _ = black_box(reservation.due_in()));
    drop(reservation);
    time(&case, "status", CALLS, |_| _ = black_box(limiter.status()));
    limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(waiting / 2));
    time(&case, "acquire, queue is full", CALLS, |_| {
        let mut refused = std::pin::pin!(limiter.acquire_many(2));
        assert!(matches!(poll(refused.as_mut()), Poll::Ready(Err(_))), "no room");
    });
    time(&case, "set_queue_bounds", CALLS, |number| {
        limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(waiting / 2 + number));
    });
    time(&case, "debit", CALLS, |_| limiter.debit(1));
    time(&case, "refund", CALLS, |_| limiter.refund(1));
    time(&case, "set_rate", CALLS, |number| limiter.set_rate(rates[(number + 1) % 2]));
    time(&case, "pause_for and resume", CALLS, |_| {
        limiter.pause_for(Duration::from_millis(1));
        limiter.resume();
    });
    time(&case, "drain", CALLS, |_| _ = black_box(limiter.drain()));
    time(&case, "reset, which serves a few", waiting / 100, |_| limiter.reset());

    line.clear();
    let left = grown(&region) - room_for_line;
    println!("{case:<28} memory: {bytes:.0} bytes a waiter; {left:.0} bytes when all have left");
}
