//! The requests in the queue of this process, and which of these requests get no lease.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::lock::lock;
use crate::set::Costs;

/// The requests that joined the queue of leases and did not leave it. Granted requests whose tasks
/// did not run yet are among these requests.
#[derive(Debug, Default)]
pub(super) struct Queued(Mutex<Numbered>);

#[derive(Debug, Default)]
struct Numbered {
    /// The costs of each request, by its number. Numbers are in order of arrival.
    costs: BTreeMap<u64, Costs>,
    /// The number of the first request for which too few permits were booked at the last failure.
    short_from: u64,
}

impl Queued {
    /// Adds a request, and notes its costs under the lock. Returns its number.
    pub(super) fn join(&self, costs: &Costs, note: impl FnOnce(&Costs)) -> u64 {
        let mut queued = self.lock();
        let number = queued.costs.last_key_value().map_or(0, |(last, _)| last + 1);
        queued.costs.insert(number, costs.clone());
        note(costs);
        number
    }

    /// Removes a request, and notes its costs under the lock.
    pub(super) fn leave(&self, number: u64, note: impl FnOnce(&Costs)) {
        let mut queued = self.lock();
        if let Some(costs) = queued.costs.remove(&number) {
            note(&costs);
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.lock().costs.len() as u64
    }

    /// Notes for which of the last `in_queue` requests no lease will come: from the first one on
    /// that, together with the requests before it, waits for more permits of a limit than were
    /// booked, which is `left`. The requests before the last `in_queue` are assumed to be granted.
    pub(super) fn note_failure(&self, mut left: Vec<u64>, in_queue: usize) {
        let mut queued = self.lock();
        let granted = queued.costs.len().saturating_sub(in_queue);
        let mut takes = |costs: &Costs| {
            left.iter_mut().zip(costs).all(|(left, (n, _))| {
                let rest = left.checked_sub(*n);
                *left = rest.unwrap_or_default();
                rest.is_some()
            })
        };
        let short = queued.costs.iter().skip(granted).find(|(_, costs)| !takes(costs));
        queued.short_from = short.map_or(u64::MAX, |(number, _)| *number);
    }

    /// Returns whether no lease comes for the request with this number, as of the last failure.
    pub(super) fn is_short(&self, number: u64) -> bool {
        number >= self.lock().short_from
    }

    fn lock(&self) -> MutexGuard<'_, Numbered> {
        lock(&self.0)
    }
}
