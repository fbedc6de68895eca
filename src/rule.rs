//! What a gate asks for permits: a policy with its state, one key of many, or several limiters at once.

use std::fmt::Debug;
use std::time::Duration;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::nanos::Nanos;
use crate::policy::Policy;
use crate::wait::queue::After;

/// Decides about requests. A [`Gate`](crate::gate::Gate) adds the queue.
///
/// The methods that take an [`After`] are called with the queue's lock held, and leave there whatever has to be done without it.
pub(crate) trait Rule<C: Timer>: Send + Sync + 'static {
    /// What one request asks for.
    type Ask: Clone + Debug + PartialEq + Send + 'static;

    /// The sum of requests that go first.
    type Ahead: Clone + Default + Debug + Send + 'static;

    /// What one grant took.
    type Charge: Debug + Send + 'static;

    /// Whether such a request can ever be granted.
    fn check(&self, ask: &Self::Ask) -> Result<(), Refusal>;

    /// One request more, or less, goes first.
    fn add(&self, ahead: &mut Self::Ahead, ask: &Self::Ask);
    fn subtract(&self, ahead: &mut Self::Ahead, ask: &Self::Ask);

    /// Takes what is asked for now, or nothing. Called without any lock.
    fn try_take(&self, now: Nanos, ask: &Self::Ask) -> Result<Self::Charge, Refusal>;

    /// Takes what is asked for as of `at`, which is `now` or was a moment ago, or nothing.
    fn take(
        &self,
        at: Nanos,
        now: Nanos,
        ask: &Self::Ask,
        after: &mut After<C>,
    ) -> Result<Self::Charge, Refusal>;

    /// When a request is due, if those ahead go first.
    fn ready_at(&self, now: Nanos, ahead: &Self::Ahead, ask: &Self::Ask) -> Nanos;

    /// Puts back what a grant took that nobody saw; see [`Policy::undo`].
    fn undo(&self, now: Nanos, charge: Self::Charge, lowest: u64, after: &mut After<C>) -> u64;

    /// The first in line waits until `due`, if nothing changes; or nobody is in line. Called whenever the line was served.
    fn wait_first(&self, now: Nanos, first: Option<(&Self::Ask, Nanos)>, after: &mut After<C>) {
        let _ = (now, first, after);
    }

    /// Whether a late grant may be charged as of the time it was due.
    fn catches_up(&self) -> bool;

    /// The longest time that a request may wait.
    fn max_wait(&self) -> Duration;
}

/// One policy and its state.
#[derive(Debug)]
pub(crate) struct Single<P: Policy> {
    pub(crate) policy: P,
    pub(crate) state: Alone<P::State>,
}

/// On cache lines of its own: each grant takes the line of the state away from all other threads, and with it whatever lies beside.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Alone<T>(T);

impl<T> std::ops::Deref for Alone<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<P: Policy> Single<P> {
    pub(crate) fn new<C: Timer>(policy: P, clock: &C) -> Single<P> {
        let policy = policy.anchored(clock.unix_time_at_zero());
        let state = Alone(policy.start(clock.now()));
        Single { policy, state }
    }
}

impl<P: Policy, C: Timer> Rule<C> for Single<P> {
    type Ask = u32;
    /// 2^32 weights of 2^64 cannot overflow it.
    type Ahead = u128;
    type Charge = P::Charge;

    #[inline]
    fn check(&self, n: &u32) -> Result<(), Refusal> {
        self.policy.check(*n)
    }

    fn add(&self, ahead: &mut u128, n: &u32) {
        *ahead += u128::from(self.policy.weight(*n));
    }

    fn subtract(&self, ahead: &mut u128, n: &u32) {
        *ahead = ahead.saturating_sub(u128::from(self.policy.weight(*n)));
    }

    #[inline]
    fn try_take(&self, now: Nanos, n: &u32) -> Result<P::Charge, Refusal> {
        self.policy.try_acquire(&self.state, now, *n)
    }

    #[inline]
    fn take(&self, at: Nanos, _now: Nanos, n: &u32, _after: &mut After<C>) -> Result<P::Charge, Refusal> {
        self.policy.try_acquire(&self.state, at, *n)
    }

    fn ready_at(&self, now: Nanos, ahead: &u128, n: &u32) -> Nanos {
        self.policy.ready_at(&self.state, now, u64::try_from(*ahead).unwrap_or(u64::MAX), *n)
    }

    fn undo(&self, now: Nanos, charge: P::Charge, lowest: u64, _after: &mut After<C>) -> u64 {
        self.policy.undo(&self.state, now, charge, lowest)
    }

    fn catches_up(&self) -> bool {
        self.policy.catches_up()
    }

    fn max_wait(&self) -> Duration {
        self.policy.max_wait()
    }
}
