//! One look at a line: what its holder knows, and what it leaves to be done.

use crate::clock::Timer;
use crate::line::deferred::Deferred;
use crate::line::lateness::Lateness;
use crate::time::Nanos;

/// What one look at a line needs beside the line itself.
pub(crate) struct Visit<'a, R, C: Timer> {
    /// The policy and its state.
    pub(crate) rule: &'a R,
    pub(crate) lateness: &'a Lateness,
    pub(crate) now: Nanos,
    /// Foreign code, which runs without the lock.
    pub(crate) deferred: &'a mut Deferred<C>,
}

impl<R, C: Timer> Visit<'_, R, C> {
    /// As of when a request counts as made that comes now, if `due` tells when it is due: earlier
    /// than now where the last grants were late.
    pub(crate) fn arrival(&self, due: impl FnOnce() -> Nanos) -> Nanos {
        if self.lateness.is_some() { self.lateness.arrival(self.now, due()) } else { self.now }
    }
}

/// What a request asks for, and at which priority.
pub(crate) struct Demand<'a, Ask> {
    pub(crate) ask: &'a Ask,
    pub(crate) priority: i8,
}

impl<Ask> Clone for Demand<'_, Ask> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Ask> Copy for Demand<'_, Ask> {}
