//! The settings of a limiter that can change at run time: plain data under the lock of the queue.

use std::collections::BTreeMap;

use crate::line::pause::{Pace, PauseState};
use crate::request::QueueBounds;
use crate::time::Nanos;

#[derive(Debug)]
pub(crate) struct Settings {
    /// The end of the latest pause, even if it is over. No request passes before this time.
    /// [`Nanos::MAX`] once the limiter is closed.
    pub(crate) opens: Nanos,
    /// Whether the limiter is closed: no request is granted, and none waits.
    pub(crate) closed: bool,
    /// The pause, until a lock holder has ended it: see `line/pause.rs`.
    pub(crate) pause: Option<PauseState>,
    /// After a pause, one pace for each window part of the policy.
    pub(crate) paces: Vec<Pace>,
    /// The ends of the pauses of composites, each of which leaves the limiter empty, and the number
    /// of pauses that end at that time.
    pub(crate) emptied: BTreeMap<Nanos, usize>,
    /// Whether an observer is notified of each call.
    pub(crate) observed: bool,
    /// Whether the limiter is in shadow mode: no request is refused, and none waits.
    pub(crate) shadow: bool,
    /// Like `shadow`, set for all keys together.
    pub(crate) shadow_with_all: bool,
    /// `None` if no permits are kept.
    pub(crate) kept: Option<KeptShare>,
    pub(crate) bounds: QueueBounds,
    /// How far the policy has drifted from the policy that it was copied from.
    pub(crate) drift: Drift,
}

/// How far a policy has drifted from the policy that it was copied from. Only the policy of a key
/// is a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Drift {
    /// The policy and the policy that it was copied from read a state in the same way.
    None,
    /// The policy was changed without the policy that it was copied from. Then the two policies may
    /// read one state differently: they may differ in the time at which a refill stopped, or in the
    /// version of a window's terms.
    Apart,
    /// The policy has its own terms, and follows neither changes of all keys nor plans.
    Own,
}

/// Permits that are kept for requests of a priority or a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptShare {
    pub(crate) permits: u32,
    pub(crate) from: i8,
}

impl Settings {
    pub(crate) fn new() -> Settings {
        Settings {
            opens: Nanos::ZERO,
            closed: false,
            pause: None,
            paces: Vec::new(),
            emptied: BTreeMap::new(),
            observed: false,
            shadow: false,
            shadow_with_all: false,
            kept: None,
            bounds: QueueBounds::UNBOUNDED,
            drift: Drift::None,
        }
    }

    /// Returns whether the limiter is in shadow mode: no request is refused, and none waits.
    pub(crate) fn is_shadow(&self) -> bool {
        self.shadow || self.shadow_with_all
    }

    #[cfg(feature = "keyed")]
    pub(crate) fn is_unbounded(&self) -> bool {
        self.bounds == QueueBounds::UNBOUNDED
    }

    /// Returns whether the policy has its own terms, and not those of all keys or of a plan.
    #[cfg(feature = "keyed")]
    pub(crate) fn has_own_terms(&self) -> bool {
        self.drift == Drift::Own
    }

    /// Returns the end of the latest pause, for a call that reads this time. A pause that has ended
    /// does not hold again for a call with a clock reading before its end.
    pub(crate) fn opens_for(&self, now: Nanos) -> Nanos {
        if self.pause.is_none() && !self.closed && now < self.opens { Nanos::ZERO } else { self.opens }
    }

    /// Closes the limiter: it grants no further request, as in a pause that nothing ends. Returns
    /// whether the limiter was open.
    pub(crate) fn close(&mut self) -> bool {
        self.opens = Nanos::MAX;
        !std::mem::replace(&mut self.closed, true)
    }

    /// Returns how many permits a request of this priority must leave.
    pub(crate) fn kept_from(&self, priority: i8) -> u32 {
        match self.kept {
            Some(KeptShare { permits, from }) if priority < from => permits,
            Some(_) | None => 0,
        }
    }
}
