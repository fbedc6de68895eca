//! Seats: places of composites in a limiter's line.
//!
//! The first waiter of a composite ([`AllOf`](crate::AllOf)) cannot stand in the lines of its
//! members as other waiters do: when its turn comes here, another limiter may not be ready for an
//! hour, and the line would stand still. If it went to the end each time, it would wait for ever
//! where the permits of two busy limiters never coincide by chance. So it has a *seat*: a place
//! with a time `at`, at which it expects to have permits of all members.
//!
//! # The rule
//!
//! | the seat | waits for | requests behind it |
//! |---|---|---|
//! | here | this limiter and no other | go after it, as behind an entry of the line |
//! | away | another limiter, until `at` | go first if the seat can still be served at its time |
//! | idle | another limiter that may never be due, or a waiter of higher priority | go first |
//!
//! Job schedulers of large computers call this backfilling. A limiter that is due long before the
//! other goes on serving the requests behind the seat, and stops in time to have the permits ready.
//! At the time `at` the seat is rung: its composite takes from all members, or finds a later time.
//!
//! # What a look costs
//!
//! Seats that are here are summed. Of the seats that are away, the [`DEPTH`] with the earliest
//! times are judged, one by one. A seat whose time is later loses nothing
//! yet. If many times come at once, a seat may find at its time that other requests have taken what
//! it needs. Then it is here, at its old place, until a time that is at most its turn away, and at
//! its other limiters its time is among the first. So a seat does not wait for ever.
//!
//! Each seat keeps the sum of the requests before it, and a request that leaves changes the sums of
//! all seats behind it. So seats lie in blocks of about [`BLOCK`], in the order of their places. A
//! block keeps a sum that is still to be added to all its seats, and adds it when one of them is
//! changed by itself. So a change costs one block, and an addition for each block behind.
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

/// The seats of a block, at most twice as many: about the root of the most seats expected.
const BLOCK: usize = 128;

/// The seats in one line.
pub(crate) struct Seats<R: Rule<C>, C: Timer> {
    /// By their place in the line.
    list: BTreeMap<u64, Seat<R::Ask, R::Ahead>>,
    /// The requests of the seats that are here, by place.
    here: BTreeMap<u64, R::Ask>,
    /// The sum of `here`.
    here_sum: R::Ahead,
    /// The blocks, by the place from which on they hold all seats up to the next block.
    blocks: BTreeMap<u64, Block<R::Ahead>>,
    /// The seats that are away, by the time until which they are.
    away: BTreeSet<(Nanos, u64)>,
    /// The seats that have still to be rung, by their times.
    rings: BTreeSet<(Nanos, u64)>,
    /// The sum of the entries that stood before all seats and have left since the seats' sums were
    /// made.
    gone: R::Ahead,
}

struct Block<Ahead> {
    seats: usize,
    /// Sums that are still to be added to, and then subtracted from, the sums of all its seats.
    /// Mostly none.
    kept: Option<(Ahead, Ahead)>,
}

struct Seat<Ask, Ahead> {
    ask: Ask,
    /// The sum of all entries and seats before it that are in line, and of `gone`. It lacks the
    /// sums that its block keeps, and seats that are not here.
    ahead: Ahead,
    /// When it expects to have permits of all limiters.
    at: Nanos,
    /// When it was due here at the last `tell`.
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
            rings: BTreeSet::new(),
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
            // Nearly always. One sum is changed, however many seats there are.
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

    /// Adds the sums that the block of this place keeps to its seats. Returns where the next block
    /// begins, after the place at least.
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

    /// Begins to compute all sums anew.
    pub(crate) fn begin_reweighing(&mut self, rule: &R) {
        for block in self.blocks.values_mut() {
            block.kept = None;
        }
        self.here_sum = R::Ahead::default();
        for ask in self.here.values() {
            rule.add(&mut self.here_sum, ask);
        }
    }

    /// Sets the sum of the seats between two neighbouring entries of the line, `from` and `to`:
    /// `ahead` is the sum of the entries up to `from`. Seats are added at the end.
    pub(crate) fn reweigh(&mut self, from: u64, to: u64, ahead: &R::Ahead) {
        for (_, seat) in self.list.range_mut(from..to) {
            seat.ahead = ahead.clone();
        }
    }

    /// Ends computing all sums anew: adds to each seat's sum the seats before it that are here.
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

    /// The sum of the seats that are here and stand before a place. Passes the seats before it or
    /// the seats behind it, whichever are fewer.
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

    /// When a request at this place is due, not before `at`, behind the sum `ahead` and among the
    /// seats that are away.
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
        // `first` sums the requests that go first, `last` the seats of them with the latest time,
        // and `all` every request so far, this one included.
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

    /// Rings all seats.
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

    /// Tells a seat its request and the time until which it is held. Returns whether that changes
    /// anything for the requests behind, and when the seat is due here.
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

    /// Makes a seat idle, for a waiter that is not the first of its composite any more. Returns
    /// whether that changes anything for the requests behind.
    pub(crate) fn stand_by(&mut self, rule: &R, place: u64) -> bool {
        let ask = self.list.get(&place).map(|seat| seat.ask.clone());
        ask.is_some_and(|ask| self.file(rule, place, &ask, (Nanos::MAX, Nanos::ZERO)))
    }

    /// Files a seat as here, away or idle. Returns whether anything has changed.
    fn file(&mut self, rule: &R, place: u64, ask: &R::Ask, (at, due): (Nanos, Nanos)) -> bool {
        let Some(seat) = self.list.get_mut(&place) else { return false };
        let (old_at, old_ask) = (seat.at, std::mem::replace(&mut seat.ask, ask.clone()));
        (seat.at, seat.due) = (at, due);
        let moved = at != old_at || *ask != old_ask;
        if moved {
            self.rings.remove(&(old_at, place));
            self.rings.insert((at, place));
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
        self.rings.remove(&(seat.at, place));
        self.away.remove(&(seat.at, place));
        if self.here.contains_key(&place) {
            self.leave(rule, place, &seat.ask);
        }
        true
    }

    /// Rings the seats whose time has come, and the first seat that is here if it is due earlier
    /// than it was told.
    pub(crate) fn ring(&mut self, terms: &Terms<'_, R>, now: Nanos, deferred: &mut Deferred<C>) {
        let mut due = Vec::new();
        while let Some(ring) = self.rings.first().copied().filter(|(at, _)| *at <= now) {
            self.rings.remove(&ring);
            due.push(ring.1);
        }
        // In the order of places, so that each composite finds a time behind the seats before its
        // own, instead of an equal time.
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
