//! A policy without a limit.

use crate::error::{PolicyError, Refusal};
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::{Change, Forecast, Policy, PolicyStatus, Standstill};
use crate::rate::Rate;
use crate::time::Nanos;

/// Grants everything at once: for configurations in which a limit can be switched off.
///
/// It has no state and does nothing, so its rate cannot be changed. For a limit that can be
/// switched on again, use any other policy with [`Rate::UNLIMITED`].
///
/// # Examples
///
/// ```
/// use tidegate::{ManualClock, RateLimiter, Unlimited};
///
/// let limiter = RateLimiter::with_clock(Unlimited, ManualClock::new());
/// assert!(limiter.try_acquire_many(u32::MAX).is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unlimited;

impl Shut for Unlimited {
    fn shut(&self, state: &(), now: &dyn Fn() -> Nanos) -> Remainder {
        Remainder::of(self.status(state, now()))
    }
}

impl Policy for Unlimited {
    type State = ();
    type Charge = ();

    fn start(&self, _now: Nanos) {}

    #[inline]
    fn try_acquire(&self, _state: &(), _at: Nanos, n: u32) -> Result<(), Refusal> {
        self.check(n)
    }

    #[inline]
    fn check(&self, n: u32) -> Result<(), Refusal> {
        if n == 0 { Err(Refusal::ZeroPermits) } else { Ok(()) }
    }

    fn weight(&self, _n: u32) -> u64 {
        0
    }

    /// Since ever: another limit, or the end of a pause, determines when a request is due.
    fn ready_at(&self, _state: &(), _at: Nanos, _ahead: u64, _n: u32) -> Nanos {
        Nanos::ZERO
    }

    fn undo(&self, _state: &(), _at: Nanos, _charge: (), _most: u64) -> u64 {
        u64::MAX
    }

    fn refund(&self, _state: &(), _at: Nanos, _n: u32) -> u64 {
        u64::MAX
    }

    fn unspent(&self, _charge: (), n: u32, used: u32) -> Option<()> {
        (used < n).then_some(())
    }

    /// Charges nothing.
    fn debit(&self, _state: &(), _at: Nanos, _n: u32) {}

    fn pause(&self, _state: &(), _stop: Standstill) -> Option<u64> {
        Some(u64::MAX)
    }

    fn forecast_pause(&self, _state: &(), stop: Standstill) -> Option<Forecast> {
        Some(Forecast::new(stop.to))
    }

    /// Changes nothing.
    fn change(&self, _state: &(), _at: Nanos, change: Change) -> Result<u64, PolicyError> {
        change.without_burst("unlimited").map(|_| u64::MAX)
    }

    fn rate(&self) -> Rate {
        Rate::UNLIMITED
    }

    fn status(&self, _state: &(), at: Nanos) -> PolicyStatus {
        PolicyStatus::unlimited(at)
    }
}
