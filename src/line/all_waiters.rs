//! The requests that wait in several lines, and a bound on all of them.
//!
//! A line with such a bound enters each waiter here before it joins, and takes it out when it
//! leaves the line. The lock of the count is taken while a line is locked, never the other way
//! round.

use std::sync::Arc;

use crate::sync::{Mutex, lock};

/// All requests that wait in some lines.
#[derive(Debug)]
pub(crate) struct AllWaiters(Mutex<Counts>);

#[derive(Clone, Copy, Debug)]
struct Counts {
    requests: usize,
    permits: u128,
    max_requests: usize,
    max_permits: u64,
}

/// A request that was entered, and may still fail to join its line. Dropping this takes it out.
pub(crate) struct Entered {
    all_waiters: Option<Arc<AllWaiters>>,
    permits: u64,
}

impl AllWaiters {
    #[cfg(feature = "keyed")]
    pub(crate) fn new() -> AllWaiters {
        let (max_requests, max_permits) = (usize::MAX, u64::MAX);
        AllWaiters(Mutex::new(Counts { requests: 0, permits: 0, max_requests, max_permits }))
    }

    /// Bounds the requests that enter from now on.
    #[cfg(feature = "keyed")]
    pub(crate) fn set_bounds(&self, max_requests: usize, max_permits: u64) {
        let mut counts = lock(&self.0);
        (counts.max_requests, counts.max_permits) = (max_requests, max_permits);
    }

    /// Returns how many requests wait.
    #[cfg(feature = "keyed")]
    pub(crate) fn requests(&self) -> usize {
        lock(&self.0).requests
    }

    /// Returns the bounds on requests and permits.
    #[cfg(feature = "keyed")]
    pub(crate) fn bounds(&self) -> (usize, u64) {
        let counts = lock(&self.0);
        (counts.max_requests, counts.max_permits)
    }

    /// Returns whether one more request may wait, for so many permits.
    pub(crate) fn has_room(&self, permits: u64) -> bool {
        lock(&self.0).have_room(permits)
    }

    /// Takes out a request that left its line.
    pub(crate) fn leave(&self, permits: u64) {
        let mut counts = lock(&self.0);
        counts.requests = counts.requests.saturating_sub(1);
        counts.permits = counts.permits.saturating_sub(permits.into());
    }
}

impl Counts {
    fn have_room(&self, permits: u64) -> bool {
        self.requests < self.max_requests
            && self.permits.saturating_add(permits.into()) <= u128::from(self.max_permits)
    }
}

impl Entered {
    /// Enters a request for so many permits. Returns `None` if there is no room, unless it enters
    /// `anyway`.
    pub(crate) fn new(all_waiters: Option<&Arc<AllWaiters>>, permits: u64, anyway: bool) -> Option<Entered> {
        if let Some(all_waiters) = all_waiters {
            // One section checks and counts, so that no two requests take the last place.
            let mut counts = lock(&all_waiters.0);
            if !anyway && !counts.have_room(permits) {
                return None;
            }
            counts.requests += 1;
            counts.permits += u128::from(permits);
        }
        Some(Entered { all_waiters: all_waiters.cloned(), permits })
    }

    /// The request has joined its line, and is taken out when it leaves the line.
    pub(crate) fn keep(mut self) {
        self.all_waiters = None;
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(all_waiters) = &self.all_waiters {
            all_waiters.leave(self.permits);
        }
    }
}
