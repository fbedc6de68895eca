//! A policy whose calls are counted.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tidegate::policy::PolicyStatus;
use tidegate::{Change, Nanos, Policy, PolicyError, Rate, Refusal, SmoothBursty};

/// A policy that counts how often it is asked when permits are due, and may panic.
#[derive(Debug)]
pub(crate) struct Asked {
    policy: SmoothBursty,
    pub(crate) times: AtomicUsize,
    /// The number of requests weighed.
    pub(crate) weighed: AtomicUsize,
    /// The number of the call at which it panics.
    pub(crate) panics_at: AtomicUsize,
    /// Whether it panics when permits are taken.
    pub(crate) panics_at_takes: AtomicBool,
}

impl Asked {
    pub(crate) fn new(policy: SmoothBursty) -> Asked {
        let (times, weighed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let panics_at = AtomicUsize::new(usize::MAX);
        Asked { policy, times, weighed, panics_at, panics_at_takes: AtomicBool::new(false) }
    }
}

impl Policy for Asked {
    type State = <SmoothBursty as Policy>::State;
    type Charge = <SmoothBursty as Policy>::Charge;

    fn start(&self, now: Nanos) -> Self::State {
        self.policy.start(now)
    }

    fn try_acquire(&self, state: &Self::State, at: Nanos, n: u32) -> Result<Self::Charge, Refusal> {
        assert!(!self.panics_at_takes.load(Ordering::Relaxed), "a policy that panics");
        self.policy.try_acquire(state, at, n)
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.policy.check(n)
    }

    fn weight(&self, n: u32) -> u64 {
        self.weighed.fetch_add(1, Ordering::Relaxed);
        self.policy.weight(n)
    }

    fn ready_at(&self, state: &Self::State, at: Nanos, ahead: u64, n: u32) -> Nanos {
        let times = self.times.fetch_add(1, Ordering::Relaxed);
        assert_ne!(times, self.panics_at.load(Ordering::Relaxed), "a policy that panics");
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
