//! The context of a thread that holds a line's lock.

use crate::line::deferred::Deferred;
use crate::line::lateness::Lateness;
use crate::time::Nanos;

/// The context of a lock holder, beside the line itself.
pub(crate) struct Visit<'a, R> {
    /// The policy and its state.
    pub(crate) rule: &'a R,
    pub(crate) lateness: &'a Lateness,
    pub(crate) now: Nanos,
    /// Foreign code, which runs without the lock.
    pub(crate) deferred: &'a mut Deferred,
    /// When the line is to be served next, as it was told before the work of this lock holder.
    pub(crate) due: Option<Nanos>,
    /// Whether the work left the line and the policy as they were, so that `due` still holds.
    pub(crate) is_unchanged: bool,
}

impl<R> Visit<'_, R> {
    /// The time as of which a request counts as made that comes now and is due at `due`: earlier
    /// than now where the last grants were late.
    pub(crate) fn made_at(&self, due: impl FnOnce() -> Nanos) -> Nanos {
        if self.lateness.is_some() { self.lateness.made_at(self.now, due()) } else { self.now }
    }
}

/// The permits that a request asks for, and its priority.
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
