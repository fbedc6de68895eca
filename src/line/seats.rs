//! Seats: places in a limiter's line that are held for those who wait for several limiters at once.
//!
//! Who waits for all of several limiters ([`AllOf`](crate::AllOf)) cannot stand in a line as others
//! do: when its turn comes here, another limiter may not be ready for an hour, and the line would
//! stand still. If it went to the end each time, it would wait for ever where the permits of two
//! busy limiters never coincide by chance. So it has a *seat*: a place with a time `at`, at which
//! it expects to have permits everywhere.
//!
//! # The rule
//!
//! | the seat | waits for | those behind |
//! |---|---|---|
//! | here | this limiter and no other | go after it, as behind an entry of the line |
//! | away | another limiter, until `at` | go first if the seat can still be served at its time |
//! | idle | another limiter that may never be due, or somebody more important | go first |
//!
//! Jobs are filled in so on large computers, where it is called backfilling. A limiter that is due
//! long before the other goes on serving everybody, and stops in time to have the permits ready.
//! When `at` has come the seat is rung: its composite takes from all members, or finds a later
//! time.
//!
//! # What a look costs
//!
//! Seats that are here are a sum. Of the seats that are away, the [`DEPTH`] whose times come first
//! are judged, one by one; schedulers bound it so, too. A seat whose time is later loses nothing
//! yet. If many times come at once, a seat may find at its time that other requests have taken what
//! it needs. Then it is here, at its old place, until a time that is at most its turn away, and at
//! its other limiters its time is among the first. So a seat does not wait for ever.
//!
//! What stands before a seat is a sum, too, and a request that leaves changes the sums of all seats
//! behind it. So seats lie in blocks of about [`BLOCK`], in the order of their places. A block
//! keeps what is to be added to the sums of all its seats, and hands it down when one of them is
//! touched by itself: a change costs one block, and an addition for each block behind.
//!
//! # When a time moves
//!
//! If permits come earlier here, the first seat that is here is rung: its composite finds its time
//! anew. The next one is rung when that one has left or waits for another limiter. So each event
//! rings one seat, not all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;

use crate::clock::Timer;
use crate::line::deferred::Deferred;
use crate::line::place::{LAST_PLACE, priority_of};
use crate::line::recheck::Recheck;
use crate::line::rule::Rule;
use crate::line::terms::Terms;
use crate::time::Nanos;

/// Two times that were converted from one clock to another may differ by what passes between two
/// readings.
pub(crate) const UNSURE: Nanos = Nanos::new(100_000);

/// So many seats that are away are judged one by one.
const DEPTH: usize = 8;

/// So many seats share what is added to their sums, up to twice as many: about the root of the most
/// that are expected.
const BLOCK: usize = 128;

/// The seats in one line.
pub(crate) struct Seats<R: Rule<C>, C: Timer> {
    /// By their place in the line.
    list: BTreeMap<u64, Seat<R::Ask, R::Ahead>>,
    /// Of those that are here: what they ask for.
    here: BTreeMap<u64, R::Ask>,
    /// The sum of it.
    here_sum: R::Ahead,
    /// The blocks, by the place from which on they hold all seats up to the next block.
    blocks: BTreeMap<u64, Block<R::Ahead>>,
    /// The seats that are away, by the time until which they are.
    away: BTreeSet<(Nanos, u64)>,
    /// When those are to be rung that were not yet.
    bells: BTreeSet<(Nanos, u64)>,
    /// All that went before all seats and left, since the sums of the seats were made.
    gone: R::Ahead,
}

struct Block<Ahead> {
    seats: usize,
    /// What is to be added to the sums of all its seats, and then what is to be taken off. Mostly
    /// nothing.
    kept: Option<(Ahead, Ahead)>,
}

struct Seat<Ask, Ahead> {
    ask: Ask,
    /// All in line before it, summed, and those that are gone; without seats that are not here, and
    /// without what its block keeps.
    ahead: Ahead,
    /// When it expects to have permits of all limiters.
    at: Nanos,
    /// When it was due here, when it was told last.
    due: Nanos,
    shared: Weak<dyn Recheck>,
}

impl<R: Rule<C>, C: Timer> Seats<R, C> {
    pub(crate) fn new() -> Self {
        Seats {
            list: BTreeMap::new(),
            here: BTreeMap::new(),
            here_sum: R::Ahead::default(),
            blocks: BTreeMap::new(),
            away: BTreeSet::new(),
            bells: BTreeSet::new(),
            gone: R::Ahead::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// An entry of the line, or a seat that is here, has joined the line.
    pub(crate) fn joined(&mut self, rule: &R, place: u64, ask: &R::Ask) {
        let behind = self.open_block(rule, place);
        for (_, seat) in self.list.range_mut(place + 1..behind) {
            rule.add(&mut seat.ahead, ask);
        }
        for (_, block) in self.blocks.range_mut(behind..) {
            rule.add(&mut block.kept.get_or_insert_default().0, ask);
        }
    }

    /// An entry of the line, or a seat that was here, has left the line.
    pub(crate) fn left(&mut self, rule: &R, place: u64, ask: &R::Ask) {
        if self.list.first_key_value().is_some_and(|(first, _)| place < *first) {
            // As nearly always. Then it is one sum, however many seats there are.
            return rule.add(&mut self.gone, ask);
        }
        let behind = self.open_block(rule, place);
        for (_, seat) in self.list.range_mut(place + 1..behind) {
            rule.subtract(&mut seat.ahead, ask);
        }
        for (_, block) in self.blocks.range_mut(behind..) {
            rule.add(&mut block.kept.get_or_insert_default().1, ask);
        }
    }

    /// Hands down what the block of this place keeps. Returns where the next block begins, after
    /// the place at least.
    fn open_block(&mut self, rule: &R, place: u64) -> u64 {
        let behind = self.blocks.range(place + 1..).next().map_or(LAST_PLACE, |(behind, _)| *behind);
        if let Some((&begin, block)) = self.blocks.range_mut(..=place).next_back()
            && let Some((more, less)) = block.kept.take()
        {
            for (_, seat) in self.list.range_mut(begin..behind) {
                rule.merge(&mut seat.ahead, &more);
                rule.unmerge(&mut seat.ahead, &less);
            }
        }
        behind
    }

    /// Adds a seat, and divides a block that is twice as large as it should be.
    fn insert(&mut self, rule: &R, place: u64, seat: Seat<R::Ask, R::Ahead>) {
        let behind = self.open_block(rule, place);
        self.list.insert(place, seat);
        let Some((&begin, block)) = self.blocks.range_mut(..=place).next_back() else {
            self.blocks.insert(place, Block { seats: 1, kept: None });
            return;
        };
        block.seats += 1;
        if block.seats >= 2 * BLOCK
            && let Some((&middle, _)) = self.list.range(begin..behind).nth(BLOCK)
        {
            let seats = block.seats - BLOCK;
            block.seats = BLOCK;
            self.blocks.insert(middle, Block { seats, kept: None });
        }
    }

    /// Removes a seat, and its block if that was the last one in it.
    fn remove(&mut self, place: u64) -> Option<Seat<R::Ask, R::Ahead>> {
        let seat = self.list.remove(&place)?;
        if let Some((&begin, block)) = self.blocks.range_mut(..=place).next_back() {
            block.seats -= 1;
            if block.seats == 0 {
                self.blocks.remove(&begin);
            }
        }
        Some(seat)
    }

    /// Before all are counted anew.
    pub(crate) fn begin_reweighing(&mut self, rule: &R) {
        for block in self.blocks.values_mut() {
            block.kept = None;
        }
        self.here_sum = R::Ahead::default();
        for ask in self.here.values() {
            rule.add(&mut self.here_sum, ask);
        }
    }

    /// Counted anew: those in the seats between two entries of the line have this much ahead,
    /// beside other seats.
    pub(crate) fn reweigh(&mut self, from: u64, to: u64, ahead: &R::Ahead) {
        for (_, seat) in self.list.range_mut(from..to) {
            seat.ahead = ahead.clone();
        }
    }

    /// After all were counted: the other seats.
    pub(crate) fn end_reweighing(&mut self, rule: &R) {
        self.gone = R::Ahead::default();
        let (mut here, mut sum) = (self.here.iter().peekable(), R::Ahead::default());
        for (place, seat) in &mut self.list {
            rule.merge(&mut seat.ahead, &sum);
            if let Some((_, ask)) = here.next_if(|(one, _)| *one == place) {
                rule.add(&mut sum, ask);
            }
        }
    }

    /// What those ask for that are here and stand before a place. Looks at those before or at those
    /// behind, whichever are fewer.
    fn here_before(&self, rule: &R, place: u64) -> R::Ahead {
        let (mut before, mut behind) = (self.here.range(..place), self.here.range(place..));
        let (mut sum, mut rest) = (R::Ahead::default(), self.here_sum.clone());
        loop {
            match (before.next(), behind.next()) {
                (None, _) => return sum,
                (_, None) => return rest,
                (Some((_, one)), Some((_, other))) => {
                    rule.add(&mut sum, one);
                    rule.subtract(&mut rest, other);
                }
            }
        }
    }

    /// When a request at this place is due, not before `at`, if all entries before it are `ahead`
    /// and no seat before it is held up. Leaves out the seat `own`.
    pub(crate) fn due(
        &self,
        terms: &Terms<'_, R>,
        times: (Nanos, Nanos),
        (place, own): (u64, u64),
        ahead: &R::Ahead,
        ask: &R::Ask,
    ) -> Nanos {
        let rule = terms.rule;
        let mut ahead = ahead.clone();
        rule.merge(&mut ahead, &self.here_before(rule, place));
        if let Some(own) = self.here.get(&own).filter(|_| own < place) {
            rule.subtract(&mut ahead, own);
        }
        self.due_among(terms, times, (place, own), &ahead, ask)
    }

    /// When a request in the seat at this place is due, not before `at`; `None` if there is no such
    /// seat.
    pub(crate) fn due_in_seat(
        &self,
        terms: &Terms<'_, R>,
        times: (Nanos, Nanos),
        place: u64,
        ask: &R::Ask,
    ) -> Option<Nanos> {
        let rule = terms.rule;
        let mut ahead = self.list.get(&place)?.ahead.clone();
        if let Some((_, Block { kept: Some((more, less)), .. })) = self.blocks.range(..=place).next_back() {
            rule.merge(&mut ahead, more);
            rule.unmerge(&mut ahead, less);
        }
        rule.unmerge(&mut ahead, &self.gone);
        Some(self.due_among(terms, times, (place, place), &ahead, ask))
    }

    /// The same behind all that are `ahead`, and among the seats that are away.
    fn due_among(
        &self,
        terms: &Terms<'_, R>,
        (now, at): (Nanos, Nanos),
        (place, own): (u64, u64),
        ahead: &R::Ahead,
        ask: &R::Ask,
    ) -> Nanos {
        let due = terms.due(now, priority_of(place), ahead, ask);
        if self.away.is_empty() || due == Nanos::MAX {
            return due;
        }
        let (rule, now) = (terms.rule, now.max(terms.settings.opens));
        let first = self.away.iter().take(DEPTH);
        let before = first.filter(|(_, other)| *other < place && *other != own);
        let seats = before.filter_map(|(at, other)| Some((*other, *at, &self.list.get(other)?.ask)));
        // A policy tells what it is like if requests go first as soon as they can, or at a given
        // time all at once. The truth is in between, so the later of the two counts.
        let (mut due, mut one) = (if at > now { due.max(at) } else { due }, R::Ahead::default());
        rule.add(&mut one, ask);
        // Those that go first; those of them that have the latest time; and everybody, with this
        // request before them.
        let (mut first, mut last, mut last_at) = (ahead.clone(), R::Ahead::default(), Nanos::ZERO);
        let mut all = ahead.clone();
        rule.add(&mut all, ask);
        for (seat, seat_at, seat_ask) in seats {
            let held_up = || {
                let ready_at = |at, ahead| terms.ready_at(at, priority_of(seat), ahead, seat_ask);
                ready_at(now, &all).max(ready_at(due.max(now), &one)) > seat_at
            };
            if seat_at <= due.max(now) || held_up() {
                let begins = now.max(seat_at);
                if begins > last_at {
                    (last, last_at) = (R::Ahead::default(), begins);
                }
                rule.add(&mut first, seat_ask);
                rule.add(&mut last, seat_ask);
                let ready_at = |at, ahead| terms.ready_at(at, priority_of(place), ahead, ask);
                due = due.max(ready_at(now, &first)).max(ready_at(begins, &last)).max(seat_at);
            }
            rule.add(&mut all, seat_ask);
        }
        due
    }

    /// Rings all of them.
    pub(crate) fn ring_all(&self, deferred: &mut Deferred<C>) {
        deferred.rechecks.extend(self.list.values().filter_map(|seat| seat.shared.upgrade()));
    }

    /// Takes a seat at this place, with all that are `ahead` of it without seats.
    pub(crate) fn sit(
        &mut self,
        rule: &R,
        place: u64,
        ask: R::Ask,
        mut ahead: R::Ahead,
        shared: Weak<dyn Recheck>,
    ) {
        if self.list.is_empty() {
            self.gone = R::Ahead::default();
        }
        rule.merge(&mut ahead, &self.here_before(rule, place));
        rule.merge(&mut ahead, &self.gone);
        // Idle until it is told a time.
        self.insert(rule, place, Seat { ask, ahead, at: Nanos::MAX, due: Nanos::ZERO, shared });
    }

    /// Tells a seat what it is held for and until when. Returns whether that is news for those
    /// behind, and when it is due here.
    pub(crate) fn tell(
        &mut self,
        terms: &Terms<'_, R>,
        now: Nanos,
        place: u64,
        ask: &R::Ask,
        at: Nanos,
    ) -> (bool, Nanos) {
        let due = self.due_in_seat(terms, (now, now), place, ask).unwrap_or(Nanos::ZERO);
        (self.file(terms.rule, place, ask, (at, due)), due)
    }

    /// Keeps a seat as a place, for somebody who is not the first of those it is for. Returns
    /// whether that is news for those behind.
    pub(crate) fn stand_by(&mut self, rule: &R, place: u64) -> bool {
        let ask = self.list.get(&place).map(|seat| seat.ask.clone());
        ask.is_some_and(|ask| self.file(rule, place, &ask, (Nanos::MAX, Nanos::ZERO)))
    }

    /// Files a seat by what it waits for. Returns whether anything has changed.
    fn file(&mut self, rule: &R, place: u64, ask: &R::Ask, (at, due): (Nanos, Nanos)) -> bool {
        let Some(seat) = self.list.get_mut(&place) else { return false };
        let (old_at, old_ask) = (seat.at, std::mem::replace(&mut seat.ask, ask.clone()));
        (seat.at, seat.due) = (at, due);
        let moved = at != old_at || *ask != old_ask;
        if moved {
            self.bells.remove(&(old_at, place));
            self.bells.insert((at, place));
        }
        // Whether it waits for this limiter and no other.
        let (was_here, is_here) = (self.here.contains_key(&place), at <= due.saturating_add(UNSURE));
        if was_here && !(is_here && *ask == old_ask) {
            self.leave(rule, place, &old_ask);
        }
        if is_here && !self.here.contains_key(&place) {
            rule.add(&mut self.here_sum, ask);
            self.joined(rule, place, ask);
            self.here.insert(place, ask.clone());
        }
        self.away.remove(&(old_at, place));
        if !is_here && at < Nanos::MAX {
            self.away.insert((at, place));
        }
        moved || was_here != is_here
    }

    /// A seat is not here any more.
    fn leave(&mut self, rule: &R, place: u64, ask: &R::Ask) {
        self.here.remove(&place);
        rule.subtract(&mut self.here_sum, ask);
        self.left(rule, place, ask);
    }

    /// Gives up a seat. Returns whether it was there.
    pub(crate) fn rise(&mut self, rule: &R, place: u64) -> bool {
        let Some(seat) = self.remove(place) else { return false };
        self.bells.remove(&(seat.at, place));
        self.away.remove(&(seat.at, place));
        if self.here.contains_key(&place) {
            self.leave(rule, place, &seat.ask);
        }
        true
    }

    /// Rings those whose time has come, and the first of those that are here if it is due earlier.
    pub(crate) fn ring(&mut self, terms: &Terms<'_, R>, now: Nanos, deferred: &mut Deferred<C>) {
        let mut due = Vec::new();
        while let Some(bell) = self.bells.first().copied().filter(|(at, _)| *at <= now) {
            self.bells.remove(&bell);
            due.push(bell.1);
        }
        // Those in front first: so each finds a time behind them, and not the same one as they.
        due.sort_unstable();
        deferred.rechecks.extend(due.iter().filter_map(|place| self.list.get(place)?.shared.upgrade()));
        let Some((&place, ask)) = self.here.first_key_value() else { return };
        let Some(due) = self.due_in_seat(terms, (now, now), place, ask) else { return };
        if let Some(seat) = self.list.get_mut(&place)
            && due < seat.due
            && seat.at > now
        {
            seat.due = due;
            deferred.rechecks.extend(seat.shared.upgrade());
        }
    }
}
