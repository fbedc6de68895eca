//! The remainder of a state that is shut for good, from which a policy of another kind continues.

use crate::policy::interval::Interval;
use crate::policy::{Policy, PolicyStatus, ticks};
use crate::time::Nanos;

/// What a state had when it was shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remainder {
    /// The maximum number of permits that could ever be available; `u64::MAX` without a limit.
    pub(crate) limit: u64,
    /// The number of single permits that were available; at most the limit.
    pub(crate) available: u64,
    /// The number of permits that were owed. Zero for a window, because its debt ends with it.
    pub(crate) owed: u32,
}

impl Remainder {
    pub(crate) fn new(limit: u64, available: u64) -> Remainder {
        Remainder { limit, available: available.min(limit), owed: 0 }
    }

    pub(crate) fn of(status: PolicyStatus) -> Remainder {
        Remainder::new(status.limit, status.available)
    }

    /// Returns this remainder with a debt of this many ticks, in permits, rounded up.
    /// `ticks::NEVER` is a debt for ever.
    pub(crate) fn owing(self, debt: u64, interval: Interval) -> Remainder {
        let owed = match debt {
            0 => 0,
            ticks::NEVER => u32::MAX,
            _ if interval.is_unlimited() || interval.is_zero() => 0,
            debt => {
                let whole = u32::try_from(interval.permits_in(debt)).unwrap_or(u32::MAX);
                if interval.price(whole) < debt { whole.saturating_add(1) } else { whole }
            }
        };
        Remainder { owed, ..self }
    }
}

/// A policy with states that can be shut.
pub(crate) trait Shut: Policy {
    /// Shuts a state for good, and returns what it had. This is one atomic step, in the order of
    /// changes of the state: a grant before it is counted in the remainder, and no grant comes
    /// after it. Nothing that is undone later opens the state again.
    ///
    /// A bucket reads the clock, `now`, after this step. At an earlier time, permits that were
    /// taken meanwhile would look like a debt.
    ///
    /// Without a limit there is nothing to count, and a request that has found the policy before is
    /// still granted.
    ///
    /// The caller has the right to change the terms of the policy, which serves no other state.
    fn shut(&self, state: &Self::State, now: &dyn Fn() -> Nanos) -> Remainder;
}
