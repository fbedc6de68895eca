//! A call asks its policy a bounded number of times, not once for each waiter.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::policy::PolicyStatus;
use tidegate::{
    Change, ManualClock, Nanos, Policy, PolicyError, Rate, RateLimiter, Refusal, Request, SmoothBursty,
};
use tokio_test::assert_pending;
use tokio_test::task::spawn;

/// A policy that counts how often it is asked when permits are due.
#[derive(Debug)]
struct Asked {
    policy: SmoothBursty,
    times: AtomicUsize,
}

impl Policy for Asked {
    type State = <SmoothBursty as Policy>::State;
    type Charge = <SmoothBursty as Policy>::Charge;

    fn start(&self, now: Nanos) -> Self::State {
        self.policy.start(now)
    }

    fn try_acquire(&self, state: &Self::State, at: Nanos, n: u32) -> Result<Self::Charge, Refusal> {
        self.policy.try_acquire(state, at, n)
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.policy.check(n)
    }

    fn weight(&self, n: u32) -> u64 {
        self.policy.weight(n)
    }

    fn ready_at(&self, state: &Self::State, at: Nanos, ahead: u64, n: u32) -> Nanos {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.policy.ready_at(state, at, ahead, n)
    }

    fn undo(&self, state: &Self::State, at: Nanos, charge: Self::Charge, most: u64) -> u64 {
        self.policy.undo(state, at, charge, most)
    }

    fn refund(&self, state: &Self::State, at: Nanos, n: u32) -> u64 {
        self.policy.refund(state, at, n)
    }

    fn change(&self, state: &Self::State, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        self.policy.change(state, at, change)
    }

    fn rate(&self) -> Rate {
        self.policy.rate()
    }

    fn status(&self, state: &Self::State, at: Nanos) -> PolicyStatus {
        self.policy.status(state, at)
    }
}

/// How often the policy is asked by a request that goes before so many others without a deadline.
fn asked_before(waiters: usize) -> usize {
    let policy = Asked { policy: SmoothBursty::new(Rate::per_second(1)), times: AtomicUsize::new(0) };
    let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    assert!(limiter.try_acquire().is_ok());
    let mut line: Vec<_> = (0..waiters).map(|_| spawn(limiter.acquire())).collect();
    line.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    // One with a deadline has left.
    let mut left = spawn(limiter.acquire_within(Duration::from_secs(1000)));
    assert_pending!(left.poll());
    drop(left);
    let mut first = spawn(limiter.acquire_many(Request::permits(1).priority(1)));
    let before = limiter.policy().times.load(Ordering::Relaxed);
    assert_pending!(first.poll());
    limiter.policy().times.load(Ordering::Relaxed) - before
}

#[test]
fn a_request_before_others_without_a_deadline_asks_the_policy_as_often_whatever_their_number() {
    assert_eq!(asked_before(500), asked_before(5));
}
