//! Grants, as long as they can be undone.

use std::time::Duration;

/// A grant that the undo log keeps track of, until it is [released](crate::line::Line::release) or
/// [undone](crate::line::Line::undo).
#[derive(Debug)]
#[must_use = "the undo log keeps it until it is released or undone"]
pub(crate) struct Tracked<Charge> {
    pub(crate) charge: Charge,
    pub(crate) id: GrantId,
}

/// What the undo log knows a grant by.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GrantId(pub(super) u64);

/// A grant that its caller does not have yet.
#[derive(Debug)]
pub(crate) enum Undoable<Charge> {
    Tracked(Tracked<Charge>),
    /// The undo log does not know it. The [number of refunds](crate::line::Line::refunds) was read
    /// before the grant.
    Since(Charge, u64),
}

impl<Charge> Undoable<Charge> {
    /// The caller has it.
    pub(crate) fn granted(self) -> Granted<Charge> {
        match self {
            Undoable::Tracked(grant) => Granted::Tracked(grant),
            Undoable::Since(charge, _) => Granted::Final(charge),
        }
    }
}

/// Whether a part of a grant can be undone when its caller has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantKind {
    Final,
    Tracked,
}

/// What a request got.
#[derive(Debug)]
pub(crate) enum Granted<Charge> {
    /// No part of it can be undone any more.
    Final(Charge),
    Tracked(Tracked<Charge>),
}

impl<Charge> Granted<Charge> {
    pub(crate) fn charge(&self) -> &Charge {
        match self {
            Granted::Final(charge) | Granted::Tracked(Tracked { charge, .. }) => charge,
        }
    }

    pub(crate) fn into_charge(self) -> Charge {
        match self {
            Granted::Final(charge) | Granted::Tracked(Tracked { charge, .. }) => charge,
        }
    }

    /// The grant, if the request asked for one that can be undone in part.
    pub(crate) fn tracked(self) -> Option<Tracked<Charge>> {
        match self {
            Granted::Final(_) => None,
            Granted::Tracked(tracked) => Some(tracked),
        }
    }
}

/// How long a request waited, and what it got, if anything.
#[derive(Debug)]
pub(crate) struct Answer<Charge> {
    pub(crate) waited: Duration,
    /// `None` if the request passed without a permit: the limiter is in shadow, or the request is
    /// exempt.
    pub(crate) granted: Option<Granted<Charge>>,
}
