//! The requests that wait in several queues, and a bound on all of them.
//!
//! A queue with such a bound enters each waiter here before the waiter joins, and takes it out when
//! it leaves the queue. The lock of the counts is taken while a queue is locked, never the other
//! way round.

use std::sync::Arc;

use crate::request::QueueBounds;
use crate::sync::{Mutex, lock};

/// All requests that wait in a set of queues.
#[derive(Debug)]
pub(crate) struct AllWaiters(Mutex<Counts>);

#[derive(Clone, Copy, Debug)]
struct Counts {
    requests: usize,
    permits: u128,
    bounds: QueueBounds,
}

/// A request that was entered, and may still fail to join its queue. Dropping this takes it out.
pub(crate) struct Entered {
    all_waiters: Option<Arc<AllWaiters>>,
    permits: u64,
}

impl AllWaiters {
    #[cfg(feature = "keyed")]
    pub(crate) fn new() -> AllWaiters {
        AllWaiters(Mutex::new(Counts { requests: 0, permits: 0, bounds: QueueBounds::UNBOUNDED }))
    }

    /// Bounds the requests that enter from now on.
    #[cfg(feature = "keyed")]
    pub(crate) fn set_bounds(&self, bounds: QueueBounds) {
        lock(&self.0).bounds = bounds;
    }

    /// Returns how many requests wait.
    #[cfg(feature = "keyed")]
    pub(crate) fn requests(&self) -> usize {
        lock(&self.0).requests
    }

    /// Returns the bounds on requests and permits.
    #[cfg(feature = "keyed")]
    pub(crate) fn bounds(&self) -> QueueBounds {
        lock(&self.0).bounds
    }

    /// Returns whether one more request may wait for `permits` permits.
    pub(crate) fn has_room(&self, permits: u64) -> bool {
        lock(&self.0).have_room(permits)
    }

    /// Takes out a request that has left its queue.
    pub(crate) fn leave(&self, permits: u64) {
        let mut counts = lock(&self.0);
        counts.requests = counts.requests.saturating_sub(1);
        counts.permits = counts.permits.saturating_sub(permits.into());
    }
}

impl Counts {
    fn have_room(&self, permits: u64) -> bool {
        self.bounds.fit(self.requests, self.permits, permits)
    }
}

impl Entered {
    /// Enters a request for `permits` permits. Returns `None` if it has no room, unless it enters
    /// `anyway`.
    pub(crate) fn new(all_waiters: Option<&Arc<AllWaiters>>, permits: u64, anyway: bool) -> Option<Entered> {
        if let Some(all_waiters) = all_waiters {
            // One critical section checks and counts, so that two requests cannot both take the
            // last free slot.
            let mut counts = lock(&all_waiters.0);
            if !anyway && !counts.have_room(permits) {
                return None;
            }
            counts.requests += 1;
            counts.permits += u128::from(permits);
        }
        Some(Entered { all_waiters: all_waiters.cloned(), permits })
    }

    /// Keeps the request entered after it has joined its queue. It is taken out when it leaves the
    /// queue.
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
