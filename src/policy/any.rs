//! Any policy: chosen at run time, by a configuration.

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::{
    BucketCharge, BucketState, BurstyCharge, BurstyState, Change, Crowd, DenyAll, EstimateCharge,
    EstimateState, FixedCharge, FixedState, FixedWindow, Forecast, LeakyBucket, LogCharge, LogState, Policy,
    PolicyStatus, SlidingCharge, SlidingEstimate, SlidingLog, SlidingState, SlidingWindow, SmoothBursty,
    SmoothWarmingUp, TokenBucket, Unlimited, WarmingUpCharge, WarmingUpState, limited,
};
use crate::rate::Rate;
use crate::time::Nanos;

/// Any of the policies, where the choice comes from a configuration: one type for all limiters of a
/// program.
///
/// Made from a [policy](AnyPolicy::from), a [`PolicyConfig`](super::PolicyConfig), or a
/// [text](super::PolicyConfig#text). A decision costs one branch more than with the policy itself,
/// and the state has the size of the largest.
///
/// The rate and burst can be changed at run time, the kind of policy cannot.
///
/// # Examples
///
/// ```
/// use tidegate::policy::AnyPolicy;
/// use tidegate::{ManualClock, RateLimiter};
///
/// let limits = ["token_bucket 100/s burst 20", "sliding_log 5000/h", "unlimited"];
/// let limiters = limits.map(|text| Ok(RateLimiter::with_clock(text.parse::<AnyPolicy>()?, ManualClock::new())));
/// for limiter in limiters.into_iter().collect::<Result<Vec<_>, tidegate::policy::ConfigError>>()? {
///     assert!(limiter.try_acquire_many(20).is_ok());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(missing_docs)] // Each is what it is named after.
pub enum AnyPolicy {
    SmoothBursty(SmoothBursty),
    SmoothWarmingUp(SmoothWarmingUp),
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingEstimate(SlidingEstimate),
    SlidingLog(SlidingLog),
    Unlimited(Unlimited),
    DenyAll(DenyAll),
}

/// The state of one [`AnyPolicy`]. It belongs to the kind of policy that made it.
#[derive(Debug)]
pub struct AnyState(State);

/// What one grant of an [`AnyPolicy`] took.
#[derive(Clone, Copy, Debug)]
pub struct AnyCharge(Charge);

#[derive(Debug)]
enum State {
    Bursty(BurstyState),
    WarmingUp(WarmingUpState),
    Bucket(BucketState),
    Fixed(FixedState),
    Sliding(SlidingState),
    Estimate(EstimateState),
    Log(LogState),
    None(()),
}

#[derive(Clone, Copy, Debug)]
enum Charge {
    Bursty(BurstyCharge),
    WarmingUp(WarmingUpCharge),
    Bucket(BucketCharge),
    Fixed(FixedCharge),
    Sliding(SlidingCharge),
    Estimate(EstimateCharge),
    Log(LogCharge),
    None(()),
}

/// The same call for each policy, with its own type of state where one is given, and the result
/// wrapped where it says so.
///
/// A state of another kind of policy is a mistake of whoever passes it; `else` says what is told
/// then.
macro_rules! each {
    ($any:expr, $policy:ident => $call:expr) => {
        match $any {
            AnyPolicy::SmoothBursty($policy) => $call,
            AnyPolicy::SmoothWarmingUp($policy) => $call,
            AnyPolicy::TokenBucket($policy) => $call,
            AnyPolicy::LeakyBucket($policy) => $call,
            AnyPolicy::FixedWindow($policy) => $call,
            AnyPolicy::SlidingWindow($policy) => $call,
            AnyPolicy::SlidingEstimate($policy) => $call,
            AnyPolicy::SlidingLog($policy) => $call,
            AnyPolicy::Unlimited($policy) => $call,
            AnyPolicy::DenyAll($policy) => $call,
        }
    };
    ($any:expr, $of:expr, $policy:ident, $state:ident, $wrap:ident => $call:expr, else $other:expr) => {
        match ($any, &$of.0) {
            (AnyPolicy::SmoothBursty($policy), State::Bursty($state)) => each!(@ Bursty, $wrap, $call),
            (AnyPolicy::SmoothWarmingUp($policy), State::WarmingUp($state)) => each!(@ WarmingUp, $wrap, $call),
            (AnyPolicy::TokenBucket($policy), State::Bucket($state)) => each!(@ Bucket, $wrap, $call),
            (AnyPolicy::LeakyBucket($policy), State::Bucket($state)) => each!(@ Bucket, $wrap, $call),
            (AnyPolicy::FixedWindow($policy), State::Fixed($state)) => each!(@ Fixed, $wrap, $call),
            (AnyPolicy::SlidingWindow($policy), State::Sliding($state)) => each!(@ Sliding, $wrap, $call),
            (AnyPolicy::SlidingEstimate($policy), State::Estimate($state)) => each!(@ Estimate, $wrap, $call),
            (AnyPolicy::SlidingLog($policy), State::Log($state)) => each!(@ Log, $wrap, $call),
            (AnyPolicy::Unlimited($policy), State::None($state)) => each!(@ None, $wrap, $call),
            (AnyPolicy::DenyAll($policy), State::None($state)) => each!(@ None, $wrap, $call),
            _ => $other,
        }
    };
    (@ $kind:ident, charge, $call:expr) => { $call.map(|charge| AnyCharge(Charge::$kind(charge))) };
    (@ $kind:ident, plain, $call:expr) => { $call };
}

impl Policy for AnyPolicy {
    type State = AnyState;
    type Charge = AnyCharge;

    fn start(&self, now: Nanos) -> AnyState {
        AnyState(match self {
            AnyPolicy::SmoothBursty(policy) => State::Bursty(policy.start(now)),
            AnyPolicy::SmoothWarmingUp(policy) => State::WarmingUp(policy.start(now)),
            AnyPolicy::TokenBucket(policy) => State::Bucket(policy.start(now)),
            AnyPolicy::LeakyBucket(policy) => State::Bucket(policy.start(now)),
            AnyPolicy::FixedWindow(policy) => State::Fixed(policy.start(now)),
            AnyPolicy::SlidingWindow(policy) => State::Sliding(policy.start(now)),
            AnyPolicy::SlidingEstimate(policy) => State::Estimate(policy.start(now)),
            AnyPolicy::SlidingLog(policy) => State::Log(policy.start(now)),
            AnyPolicy::Unlimited(_) | AnyPolicy::DenyAll(_) => State::None(()),
        })
    }

    #[inline]
    fn try_acquire(&self, state: &AnyState, at: Nanos, n: u32) -> Result<AnyCharge, Refusal> {
        each!(self, state, policy, state, charge => policy.try_acquire(state, at, n), else Err(limited(Nanos::MAX, at)))
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        each!(self, policy => policy.check(n))
    }

    fn weight(&self, n: u32) -> u64 {
        each!(self, policy => policy.weight(n))
    }

    fn ready_at(&self, state: &AnyState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        each!(self, state, policy, state, plain => policy.ready_at(state, at, ahead, n), else Nanos::MAX)
    }

    fn one_by_one(&self, largest: u32) -> usize {
        each!(self, policy => policy.one_by_one(largest))
    }

    fn forecast(&self, state: &AnyState, at: Nanos) -> Forecast {
        each!(self, state, policy, state, plain => policy.forecast(state, at), else Forecast::new(at))
    }

    fn foresee(&self, state: &AnyState, forecast: &mut Forecast, n: u32) -> Nanos {
        each!(self, state, policy, state, plain => policy.foresee(state, forecast, n), else Nanos::MAX)
    }

    fn foresee_many(&self, state: &AnyState, forecast: &mut Forecast, crowd: &Crowd) {
        each!(self, state, policy, state, plain => policy.foresee_many(state, forecast, crowd), else ());
    }

    fn undo(&self, state: &AnyState, at: Nanos, charge: AnyCharge, most: u64) -> u64 {
        match (self, &state.0, charge.0) {
            (AnyPolicy::SmoothBursty(policy), State::Bursty(state), Charge::Bursty(charge)) => {
                policy.undo(state, at, charge, most)
            }
            (AnyPolicy::SmoothWarmingUp(policy), State::WarmingUp(state), Charge::WarmingUp(charge)) => {
                policy.undo(state, at, charge, most)
            }
            (AnyPolicy::TokenBucket(policy), State::Bucket(state), Charge::Bucket(charge)) => {
                policy.undo(state, at, charge, most)
            }
            (AnyPolicy::LeakyBucket(policy), State::Bucket(state), Charge::Bucket(charge)) => {
                policy.undo(state, at, charge, most)
            }
            (AnyPolicy::FixedWindow(policy), State::Fixed(state), Charge::Fixed(charge)) => {
                policy.undo(state, at, charge, most)
            }
            (AnyPolicy::SlidingWindow(policy), State::Sliding(state), Charge::Sliding(charge)) => {
                policy.undo(state, at, charge, most)
            }
            (AnyPolicy::SlidingEstimate(policy), State::Estimate(state), Charge::Estimate(charge)) => {
                policy.undo(state, at, charge, most)
            }
            (AnyPolicy::SlidingLog(policy), State::Log(state), Charge::Log(charge)) => {
                policy.undo(state, at, charge, most)
            }
            _ => u64::MAX,
        }
    }

    fn moved(&self, charge: AnyCharge) -> (u64, u64) {
        match (self, charge.0) {
            (AnyPolicy::SmoothBursty(policy), Charge::Bursty(charge)) => policy.moved(charge),
            (AnyPolicy::SmoothWarmingUp(policy), Charge::WarmingUp(charge)) => policy.moved(charge),
            (AnyPolicy::TokenBucket(policy), Charge::Bucket(charge)) => policy.moved(charge),
            (AnyPolicy::LeakyBucket(policy), Charge::Bucket(charge)) => policy.moved(charge),
            // All others count.
            _ => (0, u64::MAX),
        }
    }

    fn full_level(&self, at: Nanos) -> u64 {
        each!(self, policy => policy.full_level(at))
    }

    fn level_unit(&self) -> (u64, u64) {
        each!(self, policy => policy.level_unit())
    }

    fn refund(&self, state: &AnyState, at: Nanos, n: u32) -> u64 {
        each!(self, state, policy, state, plain => policy.refund(state, at, n), else u64::MAX)
    }

    fn unspent(&self, charge: AnyCharge, n: u32, used: u32) -> Option<AnyCharge> {
        let unused = match (self, charge.0) {
            (AnyPolicy::SmoothBursty(policy), Charge::Bursty(charge)) => {
                policy.unspent(charge, n, used).map(Charge::Bursty)
            }
            (AnyPolicy::SmoothWarmingUp(policy), Charge::WarmingUp(charge)) => {
                policy.unspent(charge, n, used).map(Charge::WarmingUp)
            }
            (AnyPolicy::TokenBucket(policy), Charge::Bucket(charge)) => {
                policy.unspent(charge, n, used).map(Charge::Bucket)
            }
            (AnyPolicy::LeakyBucket(policy), Charge::Bucket(charge)) => {
                policy.unspent(charge, n, used).map(Charge::Bucket)
            }
            (AnyPolicy::FixedWindow(policy), Charge::Fixed(charge)) => {
                policy.unspent(charge, n, used).map(Charge::Fixed)
            }
            (AnyPolicy::SlidingWindow(policy), Charge::Sliding(charge)) => {
                policy.unspent(charge, n, used).map(Charge::Sliding)
            }
            (AnyPolicy::SlidingEstimate(policy), Charge::Estimate(charge)) => {
                policy.unspent(charge, n, used).map(Charge::Estimate)
            }
            (AnyPolicy::SlidingLog(policy), Charge::Log(charge)) => {
                policy.unspent(charge, n, used).map(Charge::Log)
            }
            (AnyPolicy::Unlimited(policy), Charge::None(charge)) => {
                policy.unspent(charge, n, used).map(Charge::None)
            }
            (AnyPolicy::DenyAll(policy), Charge::None(charge)) => {
                policy.unspent(charge, n, used).map(Charge::None)
            }
            _ => None,
        };
        unused.map(AnyCharge)
    }

    fn debit(&self, state: &AnyState, at: Nanos, n: u32) {
        each!(self, state, policy, state, plain => policy.debit(state, at, n), else ());
    }

    fn change(&self, state: &AnyState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        each!(self, state, policy, state, plain => policy.change(state, at, change), else Ok(u64::MAX))
    }

    fn rate(&self) -> Rate {
        each!(self, policy => policy.rate())
    }

    fn status(&self, state: &AnyState, at: Nanos) -> PolicyStatus {
        let nothing = PolicyStatus { limit: 0, available: 0, full_at: Nanos::MAX };
        each!(self, state, policy, state, plain => policy.status(state, at), else nothing)
    }

    fn is_fresh(&self, state: &AnyState, at: Nanos) -> bool {
        each!(self, state, policy, state, plain => policy.is_fresh(state, at), else false)
    }

    fn start_again(&self, now: Nanos) -> AnyState {
        match self {
            AnyPolicy::SmoothWarmingUp(policy) => AnyState(State::WarmingUp(policy.start_again(now))),
            // The others start as they are when they come back.
            _ => self.start(now),
        }
    }

    fn catches_up(&self) -> bool {
        each!(self, policy => policy.catches_up())
    }

    fn max_wait(&self) -> Duration {
        each!(self, policy => policy.max_wait())
    }

    fn with_epoch(self, unix_time_at_zero: Duration) -> AnyPolicy {
        each!(self, policy => AnyPolicy::from(policy.with_epoch(unix_time_at_zero)))
    }
}

impl From<SmoothBursty> for AnyPolicy {
    fn from(policy: SmoothBursty) -> AnyPolicy {
        AnyPolicy::SmoothBursty(policy)
    }
}

impl From<SmoothWarmingUp> for AnyPolicy {
    fn from(policy: SmoothWarmingUp) -> AnyPolicy {
        AnyPolicy::SmoothWarmingUp(policy)
    }
}

impl From<TokenBucket> for AnyPolicy {
    fn from(policy: TokenBucket) -> AnyPolicy {
        AnyPolicy::TokenBucket(policy)
    }
}

impl From<LeakyBucket> for AnyPolicy {
    fn from(policy: LeakyBucket) -> AnyPolicy {
        AnyPolicy::LeakyBucket(policy)
    }
}

impl From<FixedWindow> for AnyPolicy {
    fn from(policy: FixedWindow) -> AnyPolicy {
        AnyPolicy::FixedWindow(policy)
    }
}

impl From<SlidingWindow> for AnyPolicy {
    fn from(policy: SlidingWindow) -> AnyPolicy {
        AnyPolicy::SlidingWindow(policy)
    }
}

impl From<SlidingEstimate> for AnyPolicy {
    fn from(policy: SlidingEstimate) -> AnyPolicy {
        AnyPolicy::SlidingEstimate(policy)
    }
}

impl From<SlidingLog> for AnyPolicy {
    fn from(policy: SlidingLog) -> AnyPolicy {
        AnyPolicy::SlidingLog(policy)
    }
}

impl From<Unlimited> for AnyPolicy {
    fn from(policy: Unlimited) -> AnyPolicy {
        AnyPolicy::Unlimited(policy)
    }
}

impl From<DenyAll> for AnyPolicy {
    fn from(policy: DenyAll) -> AnyPolicy {
        AnyPolicy::DenyAll(policy)
    }
}
