//! Counts of the permits that processes lease.

use std::sync::{Arc, Mutex};

use tidegate::{Events, StoreEvent};

use crate::lock::lock;
use crate::observe::report;

/// Permits on lease, over all limiters of a store that lease, and over all limits of each: a
/// request of two limits counts for both. All numbers only rise, except when permits are put back
/// before they are used.
///
/// A used permit is counted at the next check of its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseCounts {
    /// Permits that the store debited for leases.
    pub taken: u64,
    /// Permits that requests got from leases.
    pub used: u64,
    /// Permits that were sent back to the store unused. The store may have refused them, or the
    /// message may be lost, which [`Counts::lost_refunds`](crate::Counts::lost_refunds) counts.
    pub returned: u64,
    /// Permits that were lost because a limit was reset or lowered.
    pub lost: u64,
}

impl LeaseCounts {
    /// Returns the permits that are out on lease: debited in the store, and neither used nor given
    /// back. After the last request they go back within 400 ms, at a fixed window of more than a
    /// few seconds within 20 s. A lease that was booked ahead for requests that were dropped goes
    /// back 200 ms after it is due.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.taken.saturating_sub(self.used).saturating_sub(self.returned).saturating_sub(self.lost)
    }
}

#[derive(Debug, Default)]
pub(crate) struct LeaseCounters {
    pub(crate) now: Mutex<LeaseCounts>,
    /// The counts of which the observer was last notified.
    reported: Mutex<LeaseCounts>,
}

impl LeaseCounters {
    /// Notifies the observer of the changes since its last notification. The caller holds no lock.
    pub(crate) fn report(&self, events: Option<&Arc<dyn Events>>) {
        if events.is_none() {
            return;
        }
        let (before, now) = {
            let mut reported = lock(&self.reported);
            let now = self.read();
            (std::mem::replace(&mut *reported, now), now)
        };
        let changes = [
            (StoreEvent::LeaseTaken as fn(u64) -> StoreEvent, before.taken, now.taken),
            (StoreEvent::LeaseUsed, before.used, now.used),
            (StoreEvent::LeaseUnused, now.used, before.used),
            (StoreEvent::LeaseReturned, before.returned, now.returned),
            (StoreEvent::LeaseLost, before.lost, now.lost),
        ];
        for (event, before, now) in changes {
            if now > before {
                report(events, event(now - before));
            }
        }
    }

    pub(crate) fn read(&self) -> LeaseCounts {
        *lock(&self.now)
    }
}
