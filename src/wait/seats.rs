//! Seats: places in a limiter's line that are held for those who wait for several limiters at once.
//!
//! Who waits for all of several limiters ([`AllOf`](crate::AllOf)) cannot stand in a line as others do: when its turn comes here, another
//! limiter may not be ready for an hour, and the line would stand still. If it went to the end each time, it would wait for ever where
//! the permits of two busy limiters never coincide by chance. So it has a *seat*: a place with a time `at`, at which it
//! expects to have permits everywhere.
//!
//! # The rule
//!
//! Those behind a seat may go first if the seat can still be served at its time. Jobs are filled in so on large computers, where it is called
//! backfilling. A limiter that is due long before the other goes on serving everybody, and stops in time to have the permits ready.
//!
//! | time | the seat | those behind |
//! |---|---|---|
//! | before `at` | keeps its place | pass while it loses nothing by that |
//! | `at` has come | is rung: its gate takes from all members, or finds a later time | pass only if there is enough for both |
//! | its gate took | is removed | go on |
//!
//! # When a time moves
//!
//! If permits come earlier here, the seat that waits for this limiter and for nothing else, and stands first of those, is rung: its gate
//! finds its time anew. The next one is rung when that one has left or waits for another limiter. So each event rings one seat, not
//! all of them.

use std::collections::BTreeMap;
use std::sync::Weak;

use crate::clock::Timer;
use crate::nanos::Nanos;
use crate::rule::Rule;
use crate::wait::after::After;
use crate::wait::ring::Ring;

/// Two times that were converted from one clock to another may differ by what passes between two readings.
const UNSURE: Nanos = Nanos::new(100_000);

/// The place behind everybody.
pub(crate) const END: u64 = u64::MAX;

/// A place is a priority and a number: the more important, the lower, and then the earlier it was taken.
const NUMBER: u32 = 56;

/// The first place of a priority. Zero is no place, nor is it one of the highest, since numbers begin with one.
fn first_place(priority: i8) -> u64 {
    (i8::MAX.abs_diff(priority) as u64) << NUMBER
}

/// The place behind all of a priority.
pub(crate) fn end_of(priority: i8) -> u64 {
    first_place(priority) | ((1 << NUMBER) - 1)
}

/// The priority of a place.
pub(crate) fn priority_of(place: u64) -> i8 {
    // Eight bits.
    #[allow(clippy::cast_possible_truncation)]
    i8::MAX.wrapping_sub_unsigned((place >> NUMBER) as u8)
}

/// The seats in one line.
pub(crate) struct Seats<R: Rule<C>, C: Timer> {
    /// By their place in the line.
    list: BTreeMap<u64, Seat<R::Ask, R::Ahead>>,
    /// The number of the next place, of a seat or of an entry of the queue.
    next: u64,
    /// Nobody passes before, neither those in seats nor others.
    pub(crate) opens: Nanos,
    /// So many permits are kept for requests of this priority or a higher one.
    pub(crate) reserve: Option<(u32, i8)>,
}

struct Seat<Ask, Ahead> {
    ask: Ask,
    /// All in line before it, summed; without seats.
    ahead: Ahead,
    /// When it expects to have permits of all limiters.
    at: Nanos,
    /// When it was due here, when it was told last.
    due: Nanos,
    /// Whether it was rung since its time has come.
    rung: bool,
    gate: Weak<dyn Ring>,
}

impl<R: Rule<C>, C: Timer> Seats<R, C> {
    pub(crate) fn new() -> Self {
        // Zero is no place.
        Seats { list: BTreeMap::new(), next: 1, opens: Nanos::ZERO, reserve: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// A place behind all others of a priority.
    pub(crate) fn place(&mut self, priority: i8) -> u64 {
        self.next += 1;
        first_place(priority) | (self.next - 1)
    }

    /// An entry of the queue has joined the line.
    pub(crate) fn joined(&mut self, rule: &R, place: u64, ask: &R::Ask) {
        for seat in self.list.range_mut(place..).map(|(_, seat)| seat) {
            rule.add(&mut seat.ahead, ask);
        }
    }

    /// An entry of the queue has left the line.
    pub(crate) fn left(&mut self, rule: &R, place: u64, ask: &R::Ask) {
        for seat in self.list.range_mut(place..).map(|(_, seat)| seat) {
            rule.subtract(&mut seat.ahead, ask);
        }
    }

    /// Counted anew: those in the seats between two entries of the line have this much ahead.
    pub(crate) fn reweigh(&mut self, from: u64, to: u64, ahead: &R::Ahead) {
        for seat in self.list.range_mut(from..to).map(|(_, seat)| seat) {
            seat.ahead = ahead.clone();
        }
    }

    /// When a request at this place is due, not before `at`, if all in line before it are `ahead` and no seat before it is held up.
    /// Leaves out the seat `own`.
    pub(crate) fn due(
        &self,
        rule: &R,
        (now, at): (Nanos, Nanos),
        (place, own): (u64, u64),
        ahead: &R::Ahead,
        ask: &R::Ask,
    ) -> Nanos {
        if self.opens == Nanos::MAX {
            return Nanos::MAX;
        }
        // Of what comes in during a pause, the stock keeps what it has room for.
        let now = now.max(self.opens);
        let mut due = rule.ready_at(now, ahead, ask).max(self.opens);
        if let Some((kept, from)) = self.reserve
            && priority_of(place) < from
        {
            due = due.max(rule.ready_leaving(now, ahead, ask, kept));
        }
        if self.list.is_empty() {
            return due;
        }
        let before = self.list.range(..place).filter(|(place, _)| **place != own);
        let mut seats: Vec<_> = before.map(|(_, seat)| seat).collect();
        seats.sort_by_key(|seat| seat.at);
        // A policy tells what it is like if requests go first as soon as they can, or at a given time all at once. The truth is
        // in between, so the later of the two counts.
        let (mut due, mut one) = (if at > now { due.max(at) } else { due }, R::Ahead::default());
        rule.add(&mut one, ask);
        // Those that go first; those of them that have the latest time; and everybody, with this request before them.
        let (mut first, mut last, mut last_at) = (ahead.clone(), R::Ahead::default(), Nanos::ZERO);
        let mut all = ahead.clone();
        rule.add(&mut all, ask);
        for seat in seats {
            let held_up = || {
                let due =
                    rule.ready_at(now, &all, &seat.ask).max(rule.ready_at(due.max(now), &one, &seat.ask));
                due > seat.at
            };
            if seat.at <= due.max(now) || held_up() {
                let seat_at = seat.at.max(now);
                if seat_at > last_at {
                    (last, last_at) = (R::Ahead::default(), seat_at);
                }
                rule.add(&mut first, &seat.ask);
                rule.add(&mut last, &seat.ask);
                let behind = rule.ready_at(now, &first, ask).max(rule.ready_at(seat_at, &last, ask));
                due = due.max(behind).max(seat.at);
            }
            rule.add(&mut all, &seat.ask);
        }
        due
    }

    /// When a request in the seat at this place is due, not before `at`; `None` if there is no such seat.
    pub(crate) fn due_in_seat(
        &self,
        rule: &R,
        (now, at): (Nanos, Nanos),
        place: u64,
        ask: &R::Ask,
    ) -> Option<Nanos> {
        let seat = self.list.get(&place)?;
        Some(self.due(rule, (now, at), (place, place), &seat.ahead, ask))
    }

    /// Rings all of them.
    pub(crate) fn ring_all(&self, after: &mut After<C>) {
        after.rings.extend(self.list.values().filter_map(|seat| seat.gate.upgrade()));
    }

    /// Takes a seat behind all of its priority, who are `ahead`. Returns its place.
    pub(crate) fn sit(&mut self, ask: R::Ask, priority: i8, ahead: R::Ahead, gate: Weak<dyn Ring>) -> u64 {
        let place = self.place(priority);
        let seat = Seat { ask, ahead, at: Nanos::MAX, due: Nanos::MAX, rung: false, gate };
        self.list.insert(place, seat);
        place
    }

    /// Tells a seat what it is held for and until when. Returns whether that is news for those behind.
    pub(crate) fn tell(&mut self, rule: &R, now: Nanos, place: u64, ask: &R::Ask, at: Nanos) -> bool {
        let Some(seat) = self.list.get_mut(&place) else { return false };
        let moved = at != seat.at || *ask != seat.ask;
        if moved {
            seat.ask = ask.clone();
            seat.at = at;
            seat.rung = false;
        }
        if let Some(due) = self.due_in_seat(rule, (now, now), place, ask)
            && let Some(seat) = self.list.get_mut(&place)
        {
            seat.due = due;
        }
        moved
    }

    /// Gives up a seat. Returns whether it was there.
    pub(crate) fn rise(&mut self, place: u64) -> bool {
        self.list.remove(&place).is_some()
    }

    /// Rings those whose time has come, and the first of those that wait for this limiter alone if it is due earlier.
    pub(crate) fn ring(&mut self, rule: &R, now: Nanos, after: &mut After<C>) {
        let mut first = None;
        for (place, seat) in &mut self.list {
            if seat.at <= now && !seat.rung {
                seat.rung = true;
                after.rings.extend(seat.gate.upgrade());
            }
            if first.is_none() && seat.at <= seat.due.saturating_add(UNSURE) {
                first = Some(*place);
            }
        }
        let Some((place, seat)) = first.and_then(|place| self.list.get_key_value(&place)) else { return };
        let (place, due) = (*place, self.due(rule, (now, now), (*place, *place), &seat.ahead, &seat.ask));
        if let Some(seat) = self.list.get_mut(&place)
            && due < seat.due
            && seat.at > now
        {
            seat.due = due;
            after.rings.extend(seat.gate.upgrade());
        }
    }
}
