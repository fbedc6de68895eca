//! The context of a thread that holds the lock of a [`Line`](crate::line::Line).

use std::num::NonZeroU32;

use crate::line::deferred::Deferred;
use crate::line::lateness::Lateness;
use crate::time::Nanos;

/// The context of a lock holder, in addition to the queue itself.
pub(crate) struct Visit<'a, R> {
    /// The policy and its state.
    pub(crate) rule: &'a R,
    pub(crate) lateness: &'a Lateness,
    pub(crate) now: Nanos,
    /// User code, which runs after the lock is released.
    pub(crate) deferred: &'a mut Deferred,
    /// When the queue must be served next, as known before the work of this lock holder.
    pub(crate) due: Option<Nanos>,
    /// Whether the work left the queue and the policy as they were, so that `due` still holds.
    pub(crate) is_unchanged: bool,
}

impl<R> Visit<'_, R> {
    /// Returns the time as of which a request counts as made, if it is made now and is due at
    /// `due`. This is earlier than now if the last grants were late.
    pub(crate) fn made_at(&self, due: impl FnOnce() -> Nanos) -> Nanos {
        if self.lateness.is_some() { self.lateness.made_at(self.now, due()) } else { self.now }
    }
}

/// The permits that a request asks for, and its priority.
pub(crate) struct Demand<'a, Ask> {
    pub(crate) ask: &'a Ask,
    pub(crate) priority: i8,
    /// The request takes as many permits as are available, up to this number, and no fewer than
    /// `ask`. `None` if it takes exactly `ask`.
    pub(crate) most: Option<NonZeroU32>,
}

impl<'a, Ask> Demand<'a, Ask> {
    /// Creates a demand for exactly `ask`.
    pub(crate) const fn exactly(ask: &'a Ask, priority: i8) -> Demand<'a, Ask> {
        Demand { ask, priority, most: None }
    }
}

impl<Ask> Clone for Demand<'_, Ask> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Ask> Copy for Demand<'_, Ask> {}
