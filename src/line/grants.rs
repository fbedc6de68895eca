//! Grants, and until when they can be undone.
//!
//! | type | holder | can be undone |
//! |---|---|---|
//! | `Uncollected` (`line/mod.rs`) | the entry of a waiter that was granted and has not run since | yes: its future may be dropped |
//! | [`Undoable`] | a taker, before its caller has the grant | yes |
//! | `UndoGuard` (`limiter/shared.rs`) | a taker, while user code runs that may panic | yes: dropping it undoes it |
//! | [`Tracked`] | any of these, with the grant's number in the undo log | until it is made final |
//! | [`Granted`] | the receipt of a request | if it is tracked: by a reservation that is settled |
//! | [`Grant`](crate::Grant) | the user | no |

use crate::clock::Timer;
use crate::line::Line;
use crate::line::rule::Rule;
use crate::line::settings::Drift;
use crate::line::undo_log::{Measure, PerPart};
use crate::line::visit::Visit;
use crate::policy::{Change, Keep};
use crate::time::Nanos;

/// A grant that the undo log keeps track of, until it is [made
/// final](crate::line::Line::make_final) or [undone](crate::line::Line::take_back).
#[derive(Debug)]
#[must_use = "the undo log keeps it until it is made final or undone"]
pub(crate) struct Tracked<Charge> {
    pub(crate) charge: Charge,
    pub(crate) id: GrantId,
}

/// The number of a grant in the undo log.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GrantId(pub(super) u64);

/// A grant that its caller does not have yet.
#[derive(Debug)]
pub(crate) struct Undoable<Charge> {
    pub(crate) charge: Charge,
    pub(crate) made: Made,
}

/// When a grant was made, by the undo log.
#[derive(Debug)]
pub(crate) enum Made {
    Tracked(GrantId),
    /// The log does not track the grant, and this was its [next
    /// number](crate::line::Line::undo_number). A taker under the lock reads the number after the
    /// take, before it unlocks. A composite that takes without the lock reads it before the take.
    Since(u64),
}

impl<Charge> Undoable<Charge> {
    pub(crate) fn since(charge: Charge, number: u64) -> Undoable<Charge> {
        Undoable { charge, made: Made::Since(number) }
    }

    /// Returns the grant in the form that its caller gets.
    pub(crate) fn granted(self) -> Granted<Charge> {
        let id = match self.made {
            Made::Tracked(id) => Some(id),
            Made::Since(_) => None,
        };
        Granted { charge: self.charge, id }
    }
}

impl<Charge> From<Tracked<Charge>> for Undoable<Charge> {
    fn from(Tracked { charge, id }: Tracked<Charge>) -> Undoable<Charge> {
        Undoable { charge, made: Made::Tracked(id) }
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
pub(crate) struct Granted<Charge> {
    pub(crate) charge: Charge,
    /// The number of the grant in the undo log. `None` if no part of it can be undone.
    pub(crate) id: Option<GrantId>,
}

impl<Charge> Granted<Charge> {
    /// Returns the grant if the request asked for one that can be undone in part.
    pub(crate) fn tracked(self) -> Option<Tracked<Charge>> {
        self.id.map(|id| Tracked { charge: self.charge, id })
    }
}

impl<R: Rule, C: Timer> Line<R, C> {
    /// Tracks a grant that may be undone later.
    pub(crate) fn track(&mut self, rule: &R, charge: R::Charge) -> Tracked<R::Charge> {
        let at = self.latest;
        let id = self.undo_log.track(|part| measure(rule, &charge, at, part));
        Tracked { charge, id }
    }

    /// Makes a grant final: it can no longer be undone.
    pub(crate) fn make_final(&mut self, id: GrantId) {
        self.undo_log.make_final(id);
    }

    /// Hands a waiter's grant to its caller.
    pub(super) fn hand_over(&mut self, grant: Tracked<R::Charge>, kind: GrantKind) -> Granted<R::Charge> {
        let Tracked { charge, id } = grant;
        if kind == GrantKind::Tracked {
            return Granted { charge, id: Some(id) };
        }
        // The caller of this grant cannot undo it, so the log need not keep it.
        self.make_final(id);
        Granted { charge, id: None }
    }

    /// Makes a grant undoable until its caller has it, because user code may panic before that.
    pub(crate) fn undoable(&mut self, rule: &R, charge: R::Charge, kind: GrantKind) -> Undoable<R::Charge> {
        match kind {
            GrantKind::Tracked => self.track(rule, charge).into(),
            GrantKind::Final => Undoable::since(charge, self.undo_number()),
        }
    }

    /// Undoes a grant, or the part of it that the charge states.
    pub(crate) fn take_back(&mut self, visit: &mut Visit<'_, R>, grant: Undoable<R::Charge>) {
        let (Visit { rule, deferred, .. }, at) = (visit, self.latest);
        self.uncount(rule, &grant, |_| false);
        self.undo_by(rule, grant, |charge, part, most| rule.undo(at, charge, part, most, deferred));
    }

    /// Undoes the rest of a grant, after the parts that [count](part_counts) were undone without
    /// the lock.
    pub(crate) fn undo_rest(&mut self, visit: &mut Visit<'_, R>, grant: Undoable<R::Charge>) {
        let (Visit { rule, deferred, .. }, at) = (visit, self.latest);
        self.uncount(rule, &grant, |part| part_counts(*rule, &grant.charge, part));
        self.undo_by(rule, grant, |charge, part, most| match part_counts(*rule, charge, part) {
            true => u64::MAX,
            false => rule.undo(at, charge, part, most, deferred),
        });
    }

    /// Undoes each part of a grant through `undo`, at most as much of it as the undo log allows.
    fn undo_by(
        &mut self,
        rule: &R,
        grant: Undoable<R::Charge>,
        mut undo: impl FnMut(&mut R::Charge, usize, u64) -> u64,
    ) {
        // Permits are available earlier after the undoing, so the kept forecast is outdated.
        self.memo.set(None);
        let Undoable { mut charge, made } = grant;
        // Permits that overflowed by the latest time are lost, even if the clock went back since.
        let measures = PerPart::new(R::PARTS, |part| measure(rule, &charge, self.latest, part));
        let undo = |part, most| undo(&mut charge, part, most);
        match made {
            Made::Tracked(id) => self.undo_log.undo(id, &measures, undo),
            Made::Since(since) => self.undo_log.undo_since(since, &measures, undo),
        }
    }

    /// Returns the next number of the undo log. It rises with each mark, refund, debit and change.
    pub(crate) fn undo_number(&self) -> u64 {
        self.undo_log.number()
    }

    /// Gives back `permits` permits, part by part, and notes the level that `refund` leaves.
    pub(crate) fn refund(&mut self, rule: &R, permits: u32, refund: impl FnMut(usize) -> u64) {
        self.memo.set(None);
        self.count_unassigned(permits.into());
        let at = self.latest;
        self.undo_log.refund(|part| rule.full_level(at, part), refund);
    }

    /// Changes the terms, and notes the level that `change` leaves. A pause and its paces keep their
    /// permits.
    pub(crate) fn change<E>(
        &mut self,
        rule: &R,
        changed: Changed,
        change: impl FnOnce() -> Result<u64, E>,
    ) -> Result<(), E> {
        self.memo.set(None);
        // The full level is that of the terms before the change.
        let full = PerPart::new(R::PARTS, |part| rule.full_level(self.latest, part));
        let before = self.restraints(rule);
        let level = change()?;
        self.settings.drift = self.settings.drift.max(changed.drift);
        self.undo_log.changed(changed.only, &full, |part| rule.level_unit(part), level);
        self.convert_stocks(rule, &before, changed);
        self.convert_paces(rule, &before, changed);
        Ok(())
    }

    /// Notes that permits were charged that cannot be undone.
    pub(crate) fn debited(&mut self, permits: u32) {
        self.memo.set(None);
        self.count_unassigned(-i64::from(permits));
        self.undo_log.touch();
    }
}

/// What a change of the terms concerns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changed {
    /// The only part that changes; `None` if all parts do.
    pub(crate) only: Option<usize>,
    /// How far the policy has drifted by this change, at least.
    pub(crate) drift: Drift,
    /// What it keeps; `None` means what the policy keeps by default.
    pub(crate) keep: Option<Keep>,
    /// Whether another policy replaces the one in force.
    pub(crate) replaces: bool,
}

impl Changed {
    pub(crate) fn by(change: &Change, drift: Drift) -> Changed {
        Changed { only: change.only_part(), drift, keep: change.keep, replaces: false }
    }

    /// Returns whether this part is reset.
    pub(super) fn resets(self, part: usize) -> bool {
        self.keep == Some(Keep::Nothing) && self.concerns(part)
    }

    /// Returns what the stock of a window part becomes when its limit changes. By default as many
    /// permits stay used. A policy that replaces the part makes no permit available.
    pub(super) fn stock(self, part: usize, stock: i64, [before, after]: [i64; 2]) -> i64 {
        let keep = self.keep.filter(|_| self.concerns(part)).unwrap_or(Keep::Count);
        if keep == Keep::Ratio && before > 0 && after > 0 {
            let share = (i128::from(stock) * i128::from(after)).div_euclid(i128::from(before));
            return i64::try_from(share).unwrap_or(if share < 0 { i64::MIN } else { i64::MAX });
        }
        let counted = stock.saturating_add(after.saturating_sub(before));
        if self.replaces { counted.min(stock) } else { counted }
    }

    fn concerns(self, part: usize) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

/// Returns the measure of one part of the rule at a time.
fn measure<R: Rule>(rule: &R, charge: &R::Charge, at: Nanos, part: usize) -> Measure {
    Measure { moved: rule.moved(charge, part), full: rule.full_level(at, part) }
}

/// Returns whether a part of the rule only counts what this grant took of it, as a window policy
/// does: the part loses no permits by being full, so undoing the grant needs nothing from the
/// queue.
pub(crate) fn part_counts<R: Rule>(rule: &R, charge: &R::Charge, part: usize) -> bool {
    rule.moved(charge, part) == Some((0, u64::MAX))
}

/// Returns whether any part of the rule [counts](part_counts).
pub(crate) fn counts<R: Rule>(rule: &R, charge: &R::Charge) -> bool {
    (0..R::PARTS).any(|part| part_counts(rule, charge, part))
}
