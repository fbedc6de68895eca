//! Any policy: chosen at run time, by a configuration.

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::kinds::kinds;
use crate::policy::{
    Change, Crowd, DenyAll, FixedWindow, Forecast, LeakyBucket, Policy, PolicyStatus, SlidingEstimate,
    SlidingLog, SlidingWindow, SmoothBursty, SmoothWarmingUp, TokenBucket, Unlimited, limited,
};
use crate::rate::Rate;
use crate::time::Nanos;

macro_rules! define {
    ([] $($kind:ident $config:tt)*) => {
        /// Any of the policies, where the choice comes from a configuration: one type for all
        /// limiters of a program.
        ///
        /// Made from a [policy](AnyPolicy::from), a [`PolicyConfig`](super::PolicyConfig), or a
        /// [text](super::PolicyConfig#text). A decision costs one branch more than with the policy
        /// itself, and the state has the size of the largest.
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
        /// for text in limits {
        ///     let policy: AnyPolicy = text.parse()?;
        ///     let limiter = RateLimiter::with_clock(policy, ManualClock::new());
        ///     assert!(limiter.try_acquire_many(20).is_ok());
        /// }
        /// # Ok::<(), tidegate::policy::ConfigError>(())
        /// ```
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum AnyPolicy {
            $(#[doc = concat!("[`", stringify!($kind), "`].")] $kind($kind),)*
        }

        #[derive(Debug)]
        enum State {
            $($kind(<$kind as Policy>::State),)*
        }

        #[derive(Clone, Copy, Debug)]
        enum Charge {
            $($kind(<$kind as Policy>::Charge),)*
        }

        $(impl From<$kind> for AnyPolicy {
            fn from(policy: $kind) -> AnyPolicy {
                AnyPolicy::$kind(policy)
            }
        })*
    };
}

kinds!(define []);

/// The state of one [`AnyPolicy`]. It belongs to the kind of policy that made it.
#[derive(Debug)]
pub struct AnyState(State);

/// What one grant of an [`AnyPolicy`] took.
#[derive(Clone, Copy, Debug)]
pub struct AnyCharge(Charge);

/// A match with an arm for each kind, which makes one call to the policy.
///
/// `State(state)` and `Charge(charge)` unwrap the policy's own state and charge. They are of
/// another kind only by a mistake of the caller; `else` says what the call returns then. `wrap:
/// State` and `wrap: Charge` name the function that makes a state or a charge of any kind.
macro_rules! each {
    ([$any:expr, $policy:ident => $call:expr] $($kind:ident $config:tt)*) => {
        match $any {
            $(AnyPolicy::$kind($policy) => $call,)*
        }
    };
    ([$any:expr, $policy:ident, $same:ident of $new:expr => $call:expr, else $other:expr] $($kind:ident $config:tt)*) => {
        match ($any, $new) {
            $((AnyPolicy::$kind($policy), AnyPolicy::$kind($same)) => $call,)*
            _ => $other,
        }
    };
    ([$any:expr, $policy:ident, $wrap:ident: $of:ident => $call:expr] $($kind:ident $config:tt)*) => {
        match $any {
            $(AnyPolicy::$kind($policy) => {
                let $wrap = $of::$kind;
                $call
            })*
        }
    };
    (
        [$any:expr, $policy:ident, $part:ident($own:ident) => $call:expr, else $other:expr]
        $($kind:ident $config:tt)*
    ) => {
        match ($any, &$own.0) {
            $((AnyPolicy::$kind($policy), $part::$kind($own)) => $call,)*
            _ => $other,
        }
    };
    (
        [$any:expr, $policy:ident, $part:ident($own:ident), $wrap:ident: $of:ident => $call:expr, else $other:expr]
        $($kind:ident $config:tt)*
    ) => {
        match ($any, &$own.0) {
            $((AnyPolicy::$kind($policy), $part::$kind($own)) => {
                let $wrap = $of::$kind;
                $call
            })*
            _ => $other,
        }
    };
    (
        [$any:expr, $policy:ident, State($state:ident), Charge($charge:ident) => $call:expr, else $other:expr]
        $($kind:ident $config:tt)*
    ) => {
        match ($any, &$state.0, $charge.0) {
            $((AnyPolicy::$kind($policy), State::$kind($state), Charge::$kind($charge)) => $call,)*
            _ => $other,
        }
    };
}

#[allow(clippy::unit_arg)] // A policy without a limit has () as its state and charge.
impl Policy for AnyPolicy {
    type State = AnyState;
    type Charge = AnyCharge;

    fn start(&self, now: Nanos) -> AnyState {
        kinds!(each [self, policy, wrap: State => AnyState(wrap(policy.start(now)))])
    }

    #[inline]
    fn try_acquire(&self, state: &AnyState, at: Nanos, n: u32) -> Result<AnyCharge, Refusal> {
        kinds!(each [self, policy, State(state), wrap: Charge
            => policy.try_acquire(state, at, n).map(|charge| AnyCharge(wrap(charge))),
            else Err(limited(Nanos::MAX, at))])
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        kinds!(each [self, policy => policy.check(n)])
    }

    fn weight(&self, n: u32) -> u64 {
        kinds!(each [self, policy => policy.weight(n)])
    }

    fn ready_at(&self, state: &AnyState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        kinds!(each [self, policy, State(state) => policy.ready_at(state, at, ahead, n), else Nanos::MAX])
    }

    fn one_by_one(&self, largest: u32) -> usize {
        kinds!(each [self, policy => policy.one_by_one(largest)])
    }

    fn forecast(&self, state: &AnyState, at: Nanos) -> Forecast {
        kinds!(each [self, policy, State(state) => policy.forecast(state, at), else Forecast::new(at)])
    }

    fn foresee(&self, state: &AnyState, forecast: &mut Forecast, n: u32) -> Nanos {
        kinds!(each [self, policy, State(state) => policy.foresee(state, forecast, n), else Nanos::MAX])
    }

    fn foresee_many(&self, state: &AnyState, forecast: &mut Forecast, crowd: &Crowd) {
        kinds!(each [self, policy, State(state) => policy.foresee_many(state, forecast, crowd), else ()]);
    }

    fn undo(&self, state: &AnyState, at: Nanos, charge: AnyCharge, most: u64) -> u64 {
        kinds!(each [self, policy, State(state), Charge(charge)
            => policy.undo(state, at, charge, most), else u64::MAX])
    }

    fn moved(&self, charge: AnyCharge) -> (u64, u64) {
        kinds!(each [self, policy, Charge(charge) => policy.moved(*charge), else (0, u64::MAX)])
    }

    fn full_level(&self, at: Nanos) -> u64 {
        kinds!(each [self, policy => policy.full_level(at)])
    }

    fn level_unit(&self) -> (u64, u64) {
        kinds!(each [self, policy => policy.level_unit()])
    }

    fn refund(&self, state: &AnyState, at: Nanos, n: u32) -> u64 {
        kinds!(each [self, policy, State(state) => policy.refund(state, at, n), else u64::MAX])
    }

    fn unspent(&self, charge: AnyCharge, n: u32, used: u32) -> Option<AnyCharge> {
        kinds!(each [self, policy, Charge(charge), wrap: Charge
            => policy.unspent(*charge, n, used).map(|charge| AnyCharge(wrap(charge))), else None])
    }

    fn debit(&self, state: &AnyState, at: Nanos, n: u32) {
        kinds!(each [self, policy, State(state) => policy.debit(state, at, n), else ()]);
    }

    fn change(&self, state: &AnyState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        kinds!(each [self, policy, State(state) => policy.change(state, at, change), else Ok(u64::MAX)])
    }

    /// The kind of policy cannot be changed.
    fn change_to(&self, new: &AnyPolicy) -> Option<Change> {
        kinds!(each [self, policy, same of new => policy.change_to(same), else None])
    }

    fn rate(&self) -> Rate {
        kinds!(each [self, policy => policy.rate()])
    }

    fn status(&self, state: &AnyState, at: Nanos) -> PolicyStatus {
        kinds!(each [self, policy, State(state) => policy.status(state, at), else PolicyStatus::NOTHING])
    }

    fn left(&self, state: &AnyState, charge: AnyCharge, at: Nanos) -> PolicyStatus {
        kinds!(each [self, policy, State(state), Charge(charge)
            => policy.left(state, charge, at), else PolicyStatus::NOTHING])
    }

    fn is_fresh(&self, state: &AnyState, at: Nanos) -> bool {
        kinds!(each [self, policy, State(state) => policy.is_fresh(state, at), else false])
    }

    fn start_again(&self, now: Nanos) -> AnyState {
        kinds!(each [self, policy, wrap: State => AnyState(wrap(policy.start_again(now)))])
    }

    fn catches_up(&self) -> bool {
        kinds!(each [self, policy => policy.catches_up()])
    }

    fn max_wait(&self) -> Duration {
        kinds!(each [self, policy => policy.max_wait()])
    }

    fn with_epoch(self, unix_time_at_zero: Duration) -> AnyPolicy {
        kinds!(each [self, policy => AnyPolicy::from(policy.with_epoch(unix_time_at_zero))])
    }
}
