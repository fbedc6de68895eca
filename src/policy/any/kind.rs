//! A policy of any kind, with its states and charges: one `match` in each method.

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::any::AnyPolicy;
use crate::policy::kinds::kinds;
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::{
    Change, Crowd, DenyAll, FixedWindow, Forecast, LeakyBucket, Policy, PolicyStatus, SlidingEstimate,
    SlidingLog, SlidingWindow, SmoothBursty, SmoothWarmingUp, Standstill, TokenBucket, Unlimited, limited,
};
use crate::rate::Rate;
use crate::time::Nanos;

macro_rules! define {
    ([] $($kind:ident $config:tt)*) => {
        /// A policy of any kind. A state or a charge of another kind is a mistake of the caller.
        #[derive(Clone, Debug)]
        pub(crate) enum Kind {
            $($kind($kind),)*
        }

        /// The state of one policy of any kind.
        #[derive(Debug)]
        pub(crate) enum KindState {
            $($kind(<$kind as Policy>::State),)*
        }

        /// What one grant of a policy of any kind took.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum KindCharge {
            $($kind(<$kind as Policy>::Charge),)*
        }

        $(impl From<$kind> for AnyPolicy {
            fn from(policy: $kind) -> AnyPolicy {
                Kind::$kind(policy).into()
            }
        })*
    };
}

kinds!(define []);

/// A match with an arm for each kind, which makes one call to the policy.
///
/// `KindState(state)` and `KindCharge(charge)` unwrap the policy's own state and charge. They are
/// of another kind only by a mistake of the caller; `else` gives the value that the call then
/// returns. `wrap: KindState` and `wrap: KindCharge` name the function that creates a state or a
/// charge of any kind.
macro_rules! each {
    ([$any:expr, $policy:ident => $call:expr] $($kind:ident $config:tt)*) => {
        match $any {
            $(Kind::$kind($policy) => $call,)*
        }
    };
    ([$any:expr, $policy:ident, $same:ident of $new:expr => $call:expr, else $other:expr] $($kind:ident $config:tt)*) => {
        match ($any, $new) {
            $((Kind::$kind($policy), Kind::$kind($same)) => $call,)*
            _ => $other,
        }
    };
    ([$any:expr, $policy:ident, $wrap:ident: $of:ident => $call:expr] $($kind:ident $config:tt)*) => {
        match $any {
            $(Kind::$kind($policy) => {
                let $wrap = $of::$kind;
                $call
            })*
        }
    };
    (
        [$any:expr, $policy:ident, $part:ident($own:ident) => $call:expr, else $other:expr]
        $($kind:ident $config:tt)*
    ) => {
        match ($any, &$own) {
            $((Kind::$kind($policy), $part::$kind($own)) => $call,)*
            _ => $other,
        }
    };
    (
        [$any:expr, $policy:ident, $part:ident($own:ident), $wrap:ident: $of:ident => $call:expr, else $other:expr]
        $($kind:ident $config:tt)*
    ) => {
        match ($any, &$own) {
            $((Kind::$kind($policy), $part::$kind($own)) => {
                let $wrap = $of::$kind;
                $call
            })*
            _ => $other,
        }
    };
    (
        [$any:expr, $policy:ident, KindState($state:ident), KindCharge($charge:ident) => $call:expr, else $other:expr]
        $($kind:ident $config:tt)*
    ) => {
        match ($any, $state, $charge) {
            $((Kind::$kind($policy), KindState::$kind($state), KindCharge::$kind($charge)) => $call,)*
            _ => $other,
        }
    };
}

impl Kind {
    /// Takes permits, and converts the charge of a grant with `make`, in each arm separately: a
    /// charge is large, and must not be moved once more.
    #[allow(clippy::unit_arg)] // A policy without a limit has () as its charge.
    #[inline]
    pub(super) fn try_acquire_as<T>(
        &self,
        state: &KindState,
        at: Nanos,
        n: u32,
        make: impl Fn(KindCharge) -> T,
    ) -> Result<T, Refusal> {
        kinds!(each [self, policy, KindState(state), wrap: KindCharge
            => policy.try_acquire(state, at, n).map(|charge| make(wrap(charge))),
            else Err(limited(Nanos::MAX, at))])
    }
}

#[allow(clippy::unit_arg)] // A policy without a limit has () as its state and charge.
impl Policy for Kind {
    type State = KindState;
    type Charge = KindCharge;

    fn start(&self, now: Nanos) -> KindState {
        kinds!(each [self, policy, wrap: KindState => wrap(policy.start(now))])
    }

    fn try_acquire(&self, state: &KindState, at: Nanos, n: u32) -> Result<KindCharge, Refusal> {
        self.try_acquire_as(state, at, n, |charge| charge)
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        kinds!(each [self, policy => policy.check(n)])
    }

    fn weight(&self, n: u32) -> u64 {
        kinds!(each [self, policy => policy.weight(n)])
    }

    fn ready_at(&self, state: &KindState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        kinds!(each [self, policy, KindState(state) => policy.ready_at(state, at, ahead, n), else Nanos::MAX])
    }

    fn one_by_one(&self, largest: u32) -> usize {
        kinds!(each [self, policy => policy.one_by_one(largest)])
    }

    fn forecast(&self, state: &KindState, at: Nanos) -> Forecast {
        kinds!(each [self, policy, KindState(state) => policy.forecast(state, at), else Forecast::new(at)])
    }

    fn predict(&self, state: &KindState, forecast: &mut Forecast, n: u32) -> Nanos {
        kinds!(each [self, policy, KindState(state) => policy.predict(state, forecast, n), else Nanos::MAX])
    }

    fn predict_many(&self, state: &KindState, forecast: &mut Forecast, crowd: &Crowd) {
        kinds!(each [self, policy, KindState(state) => policy.predict_many(state, forecast, crowd), else ()]);
    }

    fn undo(&self, state: &KindState, at: Nanos, charge: KindCharge, most: u64) -> u64 {
        kinds!(each [self, policy, KindState(state), KindCharge(charge)
            => policy.undo(state, at, charge, most), else u64::MAX])
    }

    fn moved(&self, charge: KindCharge) -> (u64, u64) {
        kinds!(each [self, policy, KindCharge(charge) => policy.moved(*charge), else (0, u64::MAX)])
    }

    fn full_level(&self, at: Nanos) -> u64 {
        kinds!(each [self, policy => policy.full_level(at)])
    }

    fn level_unit(&self) -> (u64, u64) {
        kinds!(each [self, policy => policy.level_unit()])
    }

    fn refund(&self, state: &KindState, at: Nanos, n: u32) -> u64 {
        kinds!(each [self, policy, KindState(state) => policy.refund(state, at, n), else u64::MAX])
    }

    fn unspent(&self, charge: KindCharge, n: u32, used: u32) -> Option<KindCharge> {
        kinds!(each [self, policy, KindCharge(charge), wrap: KindCharge
            => policy.unspent(*charge, n, used).map(wrap), else None])
    }

    fn debit(&self, state: &KindState, at: Nanos, n: u32) {
        kinds!(each [self, policy, KindState(state) => policy.debit(state, at, n), else ()]);
    }

    fn keep_at_most(&self, state: &KindState, at: Nanos, permits: u64) -> u64 {
        kinds!(each [self, policy, KindState(state) => policy.keep_at_most(state, at, permits), else 0])
    }

    fn pause(&self, state: &KindState, stop: Standstill) -> Option<u64> {
        kinds!(each [self, policy, KindState(state)
            => policy.pause(state, stop), else None])
    }

    fn forecast_pause(&self, state: &KindState, stop: Standstill) -> Option<Forecast> {
        kinds!(each [self, policy, KindState(state)
            => policy.forecast_pause(state, stop), else None])
    }

    fn full_after_pause(&self, state: &KindState, stop: Standstill) -> Option<Nanos> {
        kinds!(each [self, policy, KindState(state)
            => policy.full_after_pause(state, stop), else None])
    }

    fn permits(&self, charge: KindCharge) -> u32 {
        kinds!(each [self, policy, KindCharge(charge) => policy.permits(*charge), else 0])
    }

    fn change(&self, state: &KindState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        self.change_now(state, at, &|| at, change)
    }

    fn change_now(
        &self,
        state: &KindState,
        at: Nanos,
        now: &dyn Fn() -> Nanos,
        change: Change,
    ) -> Result<u64, PolicyError> {
        kinds!(each [self, policy, KindState(state) => policy.change_now(state, at, now, change), else Ok(u64::MAX)])
    }

    fn change_to(&self, new: &Kind) -> Option<Change> {
        kinds!(each [self, policy, same of new => policy.change_to(same), else None])
    }

    fn rate(&self) -> Rate {
        kinds!(each [self, policy => policy.rate()])
    }

    fn status(&self, state: &KindState, at: Nanos) -> PolicyStatus {
        kinds!(each [self, policy, KindState(state) => policy.status(state, at), else PolicyStatus::NOTHING])
    }

    fn left(&self, state: &KindState, charge: KindCharge, at: Nanos) -> PolicyStatus {
        kinds!(each [self, policy, KindState(state), KindCharge(charge)
            => policy.left(state, charge, at), else PolicyStatus::NOTHING])
    }

    fn is_fresh(&self, state: &KindState, at: Nanos) -> bool {
        kinds!(each [self, policy, KindState(state) => policy.is_fresh(state, at), else false])
    }

    fn restart(&self, now: Nanos) -> KindState {
        kinds!(each [self, policy, wrap: KindState => wrap(policy.restart(now))])
    }

    fn catches_up(&self) -> bool {
        kinds!(each [self, policy => policy.catches_up()])
    }

    fn max_wait(&self) -> Duration {
        kinds!(each [self, policy => policy.max_wait()])
    }

    fn with_epoch(self, unix_time_at_zero: Duration) -> Kind {
        kinds!(each [self, policy, wrap: Kind => wrap(policy.with_epoch(unix_time_at_zero))])
    }
}

impl Shut for Kind {
    fn shut(&self, state: &KindState, now: &dyn Fn() -> Nanos) -> Remainder {
        let nothing = Remainder::new(0, 0);
        kinds!(each [self, policy, KindState(state) => policy.shut(state, now), else nothing])
    }
}
