//! Forgets the shares that no outage needs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Limit, Share, ShareStart, Shares};
use crate::lock::lock;

/// How often a process that has shares checks which of them it can forget.
pub(crate) const TIDY_INTERVAL: Duration = Duration::from_secs(60);

impl Shares {
    /// Returns whether to start a task that calls [`tidy`](Shares::tidy) until it returns `true`.
    pub(crate) fn start_tidying(&self) -> bool {
        // Relaxed: the lock of the limits orders the first limit and the end of the task before.
        !self.is_tidied.load(Ordering::Relaxed) && !self.is_tidied.swap(true, Ordering::Relaxed)
    }

    /// Forgets the tags that are full again (as new), and the limits without tags, at this time of
    /// the server's clock. Returns whether there are no shares.
    pub(crate) fn tidy(&self, time: Duration) -> bool {
        let shares: Vec<Arc<Share>> =
            lock(&self.limits).values().flat_map(|limit| &limit.shares).cloned().collect();
        // This takes a while, in which other requests ask for shares.
        shares.iter().for_each(|share| share.tidy(time));
        drop(shares);
        let mut limits = lock(&self.limits);
        limits.retain(|_, Limit { shares, used }| {
            // A share that a request uses at this moment is not forgotten, either.
            shares.retain(|share| !(share.is_unused() && Arc::strong_count(share) == 1));
            used.retain(|_, share| shares.len() > 1 && share.strong_count() > 0);
            used.shrink_to_fit();
            !shares.is_empty()
        });
        self.is_tidied.store(!limits.is_empty(), Ordering::Relaxed);
        limits.is_empty()
    }
}

#[cfg(all(test, feature = "simulation"))]
impl Shares {
    /// Returns how many tags have each share.
    pub(crate) fn tags(&self) -> Vec<usize> {
        let limits = lock(&self.limits);
        limits.values().flat_map(|limit| &limit.shares).map(|share| share.tags.len()).collect()
    }
}

impl Share {
    fn tidy(&self, time: Duration) {
        self.tags.sweep();
        let mut begun = lock(&self.begun);
        self.forget_begun(&mut begun, time);
        begun.shrink_to_fit();
    }

    /// Forgets when the shares of other tags began, of which the first period is over.
    pub(super) fn forget_begun(&self, begun: &mut HashMap<String, ShareStart>, time: Duration) {
        begun.retain(|_, began| self.first.is_running(began.after.elapsed(), time));
    }

    fn is_unused(&self) -> bool {
        self.tags.is_empty() && lock(&self.begun).is_empty()
    }
}
