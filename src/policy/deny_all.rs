//! A policy without permits.

use crate::error::{PolicyError, Refusal};
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::{Change, Forecast, Policy, PolicyStatus, Standstill, limited};
use crate::rate::Rate;
use crate::time::Nanos;

/// Grants nothing, ever: for configurations in which something can be switched off.
///
/// A request that waits, waits for ever. The policy has no state and does nothing, so its rate
/// cannot be changed. For a limit that can be opened again, use any other policy with
/// [`Rate::ZERO`].
///
/// # Examples
///
/// ```
/// use tidegate::{DenyAll, ManualClock, RateLimiter};
///
/// let limiter = RateLimiter::with_clock(DenyAll, ManualClock::new());
/// assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenyAll;

impl Shut for DenyAll {
    fn shut(&self, state: &(), now: &dyn Fn() -> Nanos) -> Remainder {
        Remainder::of(self.status(state, now()))
    }
}

impl Policy for DenyAll {
    type State = ();
    type Charge = ();

    fn start(&self, _now: Nanos) {}

    #[inline]
    fn try_acquire(&self, _state: &(), at: Nanos, n: u32) -> Result<(), Refusal> {
        self.check(n)?;
        Err(limited(Nanos::MAX, at))
    }

    #[inline]
    fn check(&self, n: u32) -> Result<(), Refusal> {
        if n == 0 { Err(Refusal::ZeroPermits) } else { Ok(()) }
    }

    fn weight(&self, _n: u32) -> u64 {
        0
    }

    fn ready_at(&self, _state: &(), _at: Nanos, _ahead: u64, _n: u32) -> Nanos {
        Nanos::MAX
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
        change.without_burst("deny_all").map(|_| u64::MAX)
    }

    fn rate(&self) -> Rate {
        Rate::ZERO
    }

    /// Always: a new key gets no permit, either. A key of a table that is given another plan later
    /// may have been forgotten by then, with the permits that it had used.
    fn is_fresh(&self, _state: &(), _at: Nanos) -> bool {
        true
    }

    fn status(&self, _state: &(), _at: Nanos) -> PolicyStatus {
        PolicyStatus::NOTHING
    }
}
