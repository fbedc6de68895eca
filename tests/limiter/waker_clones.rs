//! `Waker::clone` is user code: it may call the limiter. It is never called under a lock.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use cooked_waker::{IntoWaker, Wake, WakeRef};
use tidegate::{AllOf, CountingLimit, ManualClock, RateLimiter};

use crate::support::{Limiter, one_per_second};

/// A waker that uses limiters whenever it is cloned, woken or dropped.
struct Uses {
    use_limiters: Arc<dyn Fn() + Send + Sync>,
    clones: Arc<AtomicUsize>,
}

impl Clone for Uses {
    fn clone(&self) -> Self {
        (self.use_limiters)();
        self.clones.fetch_add(1, Ordering::Relaxed);
        Uses { use_limiters: self.use_limiters.clone(), clones: self.clones.clone() }
    }
}

impl WakeRef for Uses {
    fn wake_by_ref(&self) {
        (self.use_limiters)();
    }
}

impl Wake for Uses {}

impl Drop for Uses {
    fn drop(&mut self) {
        (self.use_limiters)();
    }
}

/// Polls a wait with such a waker, moves the wait to another waker, and lets it be granted.
fn waits<T>(
    future: impl Future<Output = T>,
    clock: &ManualClock,
    use_limiters: impl Fn() + Send + Sync + 'static,
) {
    let clones = Arc::new(AtomicUsize::new(0));
    let uses = Uses { use_limiters: Arc::new(use_limiters), clones: clones.clone() };
    let (first, second) = (Box::new(uses.clone()).into_waker(), Box::new(uses).into_waker());
    let mut future = pin!(future);
    assert!(future.as_mut().poll(&mut Context::from_waker(&first)).is_pending());
    assert!(future.as_mut().poll(&mut Context::from_waker(&second)).is_pending());
    clock.advance(Duration::from_secs(10));
    assert!(matches!(future.poll(&mut Context::from_waker(&second)), Poll::Ready(_)));
    assert!(clones.load(Ordering::Relaxed) > 2, "the waker was cloned by the limiter");
}

/// Everything that a user's waker may do with a limiter without leaving a trace.
fn use_it(limiter: &Limiter) {
    let _ = limiter.status();
    drop(limiter.reserve(5));
    limiter.set_rate(limiter.rate());
}

#[test]
fn a_waker_may_use_the_limiter_when_it_is_cloned() {
    let (limiter, clock) = one_per_second();
    let same = limiter.clone();
    waits(limiter.acquire(), &clock, move || use_it(&same));
    let (limiter, clock) = one_per_second();
    let same = limiter.clone();
    waits(limiter.acquire_many(2), &clock, move || use_it(&same));
}

#[test]
fn a_waker_may_use_a_limit_of_permits_in_use_when_it_is_cloned() {
    let limit = CountingLimit::new(1);
    let same = limit.clone();
    let taken = limit.try_acquire().expect("one");
    let uses = Uses {
        use_limiters: Arc::new(move || _ = (same.available(), same.try_acquire())),
        clones: Arc::new(AtomicUsize::new(0)),
    };
    let waker = Box::new(uses).into_waker();
    let mut wait = pin!(limit.acquire());
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(taken);
    assert!(wait.poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn a_waker_may_use_a_composite_and_its_members_when_it_is_cloned() {
    let (a, clock) = one_per_second();
    let b: Limiter = RateLimiter::with_clock(a.policy().clone(), clock.clone());
    let both = AllOf::new("a", &a).with("b", &b);
    let same = (both.clone(), a.clone(), b.clone());
    waits(both.acquire(), &clock, move || {
        let _ = (same.0.status(), same.0.reserve([("a", 1)]));
        use_it(&same.1);
        use_it(&same.2);
    });
}
