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
    /// The costs of each request, and whether it has no maximum wait, by its number. Numbers are in
    /// order of arrival. They begin again when no request is queued.
    requests: BTreeMap<u64, (Costs, bool)>,
    /// The number of the first request for which too few permits were booked at the last failure.
    short_from: u64,
}

impl Queued {
    /// Adds a request, and notes it under the lock. Returns its number.
    pub(super) fn join(&self, costs: &Costs, is_endless: bool, note: impl FnOnce()) -> u64 {
        let mut queued = self.lock();
        let number = queued.requests.last_key_value().map_or(0, |(last, _)| last + 1);
        queued.requests.insert(number, (costs.clone(), is_endless));
        note();
        number
    }

    /// Removes a request, and notes under the lock what it was.
    pub(super) fn leave(&self, number: u64, note: impl FnOnce(&Costs, bool)) {
        let mut queued = self.lock();
        if let Some((costs, is_endless)) = queued.requests.remove(&number) {
            note(&costs, is_endless);
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.lock().requests.len() as u64
    }

    /// Notes for which of the last `in_queue` requests no lease will come: from the first one on
    /// that, together with the requests before it, waits for more permits of a limit than were
    /// booked, which is `left`. The requests before the last `in_queue` are assumed to be granted.
    pub(super) fn note_failure(&self, mut left: Vec<u64>, in_queue: usize) {
        let mut queued = self.lock();
        let granted = queued.requests.len().saturating_sub(in_queue);
        let mut takes = |costs: &Costs| {
            left.iter_mut().zip(costs).all(|(left, (n, _))| {
                let rest = left.checked_sub(*n);
                *left = rest.unwrap_or_default();
                rest.is_some()
            })
        };
        let short = queued.requests.iter().skip(granted).find(|(_, (costs, _))| !takes(costs));
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
