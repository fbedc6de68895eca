//! Grants, as long as they can be undone.

use crate::clock::Timer;
use crate::line::Line;
use crate::line::rule::Rule;
use crate::line::visit::Visit;
use crate::time::Nanos;

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
    /// A grant that the undo log does not track, with the log's [next
    /// number](crate::line::Line::refunds). A taker under the lock reads the number after the take,
    /// before it unlocks. A composite that takes without the lock reads it before the take.
    Since(Charge, u64),
}

impl<Charge> Undoable<Charge> {
    pub(crate) fn charge(&self) -> &Charge {
        match self {
            Undoable::Tracked(Tracked { charge, .. }) | Undoable::Since(charge, _) => charge,
        }
    }

    /// The grant as its caller gets it.
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
    pub(crate) waited: Nanos,
    /// `None` if the request passed without a permit: the limiter is in shadow, or the request is
    /// exempt.
    pub(crate) granted: Option<Granted<Charge>>,
}

impl<R: Rule<C>, C: Timer> Line<R, C> {
    /// Keeps track of a grant that may be undone later.
    pub(crate) fn track(&mut self, rule: &R, charge: R::Charge) -> Tracked<R::Charge> {
        let id = self.undo_log.track(rule.moved(&charge), rule.full_level(self.latest));
        Tracked { charge, id }
    }

    /// Makes a grant final: it can no longer be undone.
    pub(crate) fn release(&mut self, id: GrantId) {
        self.undo_log.release(id);
    }

    /// Hands a waiter's grant to its caller.
    pub(super) fn hand_over(&mut self, grant: Tracked<R::Charge>, kind: GrantKind) -> Granted<R::Charge> {
        match kind {
            GrantKind::Tracked => Granted::Tracked(grant),
            GrantKind::Final => {
                self.release(grant.id);
                Granted::Final(grant.charge)
            }
        }
    }

    /// Makes a grant undoable until its caller has it, since foreign code may panic before.
    pub(crate) fn undoable(&mut self, rule: &R, charge: R::Charge, kind: GrantKind) -> Undoable<R::Charge> {
        match kind {
            GrantKind::Tracked => Undoable::Tracked(self.track(rule, charge)),
            GrantKind::Final => Undoable::Since(charge, self.refunds()),
        }
    }

    /// Undoes a grant that its caller does not have yet.
    pub(crate) fn take_back(&mut self, visit: &mut Visit<'_, R, C>, grant: Undoable<R::Charge>) {
        match grant {
            Undoable::Tracked(grant) => self.undo(visit, grant),
            Undoable::Since(charge, refunds) => self.undo_since(visit, charge, refunds),
        }
    }

    /// Undoes a grant, or the part of it that the charge says.
    pub(crate) fn undo(&mut self, visit: &mut Visit<'_, R, C>, grant: Tracked<R::Charge>) {
        let (Visit { rule, deferred, .. }, Tracked { charge, id }) = (visit, grant);
        self.memo.set(None);
        self.uncount(rule.permits_of(&charge), id.0);
        // As of the latest time: permits that overflowed by then are lost, also if the clock went
        // back since.
        let (moved, full) = (rule.moved(&charge), rule.full_level(self.latest));
        self.undo_log.undo(id, moved, full, |most| rule.undo(self.latest, charge, most, deferred));
    }

    /// Notes that a grant which [moved](crate::Policy::moved) the state by so much was undone
    /// without the lock, and left this level.
    pub(crate) fn undone(&mut self, rule: &R, (moved, permits): ((u64, u64), u64), id: GrantId, level: u64) {
        self.memo.set(None);
        self.uncount(permits, id.0);
        self.undo_log.undo(id, moved, rule.full_level(self.latest), |_| level);
    }

    /// As [`undone`](Self::undone), of a grant that the undo log does not track.
    pub(crate) fn undone_since(
        &mut self,
        rule: &R,
        (moved, permits): ((u64, u64), u64),
        since: u64,
        level: u64,
    ) {
        self.memo.set(None);
        self.uncount(permits, since);
        self.undo_log.undo_since(since, moved, rule.full_level(self.latest), |_| level);
    }

    /// Undoes a grant that the undo log does not track. `since` is the log's [next
    /// number](Line::refunds) when the grant was made.
    fn undo_since(&mut self, visit: &mut Visit<'_, R, C>, charge: R::Charge, since: u64) {
        let Visit { rule, deferred, .. } = visit;
        self.memo.set(None);
        self.uncount(rule.permits_of(&charge), since);
        let (moved, full) = (rule.moved(&charge), rule.full_level(self.latest));
        self.undo_log.undo_since(since, moved, full, |most| rule.undo(self.latest, charge, most, deferred));
    }

    /// The next number of the undo log. It rises each time permits are given back.
    pub(crate) fn refunds(&self) -> u64 {
        self.undo_log.number()
    }

    /// Gives back so many permits, and notes the level that it leaves.
    pub(crate) fn refund(&mut self, rule: &R, permits: u32, refund: impl FnOnce() -> u64) {
        self.memo.set(None);
        self.stock_grows(permits.into());
        self.undo_log.refund(rule.full_level(self.latest), refund);
    }

    /// Changes the terms, and notes the level that it leaves.
    pub(crate) fn change<E>(&mut self, rule: &R, change: impl FnOnce() -> Result<u64, E>) -> Result<(), E> {
        self.memo.set(None);
        let full = rule.full_level(self.latest);
        let level = change()?;
        self.undo_log.changed(full, rule.level_unit(), level);
        self.pace_anew();
        Ok(())
    }

    /// Notes that permits were charged which cannot be undone.
    pub(crate) fn debited(&mut self) {
        self.memo.set(None);
        self.undo_log.touch();
    }
}

/// Whether the policy of a grant that [moved](crate::Policy::moved) the state so counts: it loses
/// nothing by being full, so undoing the grant needs nothing that the line knows.
pub(crate) fn counts(moved: (u64, u64)) -> bool {
    moved == (0, u64::MAX)
}
