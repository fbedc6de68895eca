//! A lease as a policy of the core, so that requests queue for its permits in the core.

use std::fmt;
use std::sync::Arc;

use tidegate::policy::{Change, PolicyStatus};
use tidegate::{Nanos, Policy, PolicyError, Rate, Refusal};

use crate::lease::account::Account;
use crate::lease::stock::LeaseCharge;

/// Grants the permits of one limit that this process has on lease.
///
/// The policy knows the permits that the store has booked, and when they are usable. A request for
/// more permits than that is never due, until more are booked.
pub(crate) struct Lease(pub(crate) Arc<Account>);

impl Policy for Lease {
    type State = ();
    type Charge = LeaseCharge;

    fn start(&self, _now: Nanos) {}

    fn try_acquire(&self, state: &(), at: Nanos, n: u32) -> Result<LeaseCharge, Refusal> {
        self.check(n)?;
        match self.0.take(at, n) {
            Some(taken) => Ok(taken),
            None => {
                let due = self.ready_at(state, at, 0, n);
                Err(Refusal::Limited { retry_after: due.saturating_since(at) })
            }
        }
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        if n == 0 { Err(Refusal::ZeroPermits) } else { Ok(()) }
    }

    fn weight(&self, n: u32) -> u64 {
        n.into()
    }

    fn ready_at(&self, _state: &(), at: Nanos, ahead: u64, n: u32) -> Nanos {
        self.0.ready_at(at, ahead, n.into())
    }

    fn undo(&self, _state: &(), _at: Nanos, charge: LeaseCharge, _most: u64) -> u64 {
        self.0.put_back(charge);
        u64::MAX
    }

    /// Gives back nothing: a permit that a request used is no longer a permit of the lease.
    fn refund(&self, _state: &(), _at: Nanos, _n: u32) -> u64 {
        u64::MAX
    }

    fn debit(&self, _state: &(), _at: Nanos, _n: u32) {}

    fn change(&self, _state: &(), _at: Nanos, _change: Change) -> Result<u64, PolicyError> {
        Ok(u64::MAX)
    }

    fn rate(&self) -> Rate {
        self.0.terms.rate
    }

    fn status(&self, state: &(), at: Nanos) -> PolicyStatus {
        PolicyStatus {
            limit: self.0.terms.limit,
            available: self.0.stock.usable(at),
            next_at: self.ready_at(state, at, 0, 1),
            full_at: Nanos::MAX,
        }
    }

    /// Permits of the past would be permits of a piece that has ended since.
    fn catches_up(&self) -> bool {
        false
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").finish_non_exhaustive()
    }
}
