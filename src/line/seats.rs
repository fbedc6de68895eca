//! Seats: advance reservations of composites in the queue of a limiter.
//!
//! The first waiter of a composite ([`AllOf`](crate::AllOf)) cannot wait in the queues of its
//! members like other waiters. When its turn comes here, another limiter may not be ready for an
//! hour, and this queue would stall. If the waiter went to the end of the queue each time, it would
//! wait for ever if the permits of two busy limiters never coincide by chance. So it holds a
//! *seat*: a position in the queue with a time `at`, at which it expects to have permits of all
//! members. A seat is an advance reservation, as in a backfilling scheduler.
//!
//! # The rule
//!
//! | the seat is | it waits for | requests behind it |
//! |---|---|---|
//! | here | only this limiter | go after it, as behind an entry of the queue |
//! | away | another limiter, until `at` | go first if the seat can still be served at its time |
//! | idle | another limiter that may never be due, or a waiter of higher priority | go first |
//!
//! Job schedulers of large computers call this backfilling. A limiter that is due long before the
//! other limiter goes on serving the requests behind the seat, and stops in time to have the
//! permits ready. At the time `at` the composite of the seat is notified: it takes from all
//! members, or finds a later time.
//!
//! # What a check costs
//!
//! Seats that are here are summed. Of the seats that are away, the [`BACKFILL_DEPTH`] with the
//! earliest times are judged one by one. A seat with a later time loses nothing yet. If many times
//! come at once, a seat may find at its time that other requests have taken its permits. Then it
//! becomes a seat that is here, at its old position, and no later request overtakes it. Example: a
//! composite waits for *A* and *B*. *B* is ready at 10 s, and ten seats with other times are judged
//! at *A*. At 10 s the permits of *A* are gone, so the seat is here at *A*, and due at *A* at 11 s,
//! behind the requests that came before it. At *B* it is away until 11 s, a time among the first
//! there. So a seat does not wait for ever.
//!
//! Each seat counts the entries of the queue between the previous seat and itself, by their sizes.
//! Seats are grouped in blocks of about [`BLOCK`], in the order of their positions, and each block
//! holds the sums of its seats. The sum before a seat adds the blocks before its block, and the
//! seats before it in its block. Where fewer blocks or seats are behind, it subtracts their sums
//! from the total instead. An entry or a seat that joins or leaves changes one seat and one block.
//! Sizes are weighed when a time is computed, so a new rate changes no sum.
//!
//! # When a time moves
//!
//! If permits become available earlier here, the composite of the first seat that is here is
//! notified, and computes its time anew. The composite of the next seat is notified when that seat
//! has left or waits for another limiter. If permits become available later, a composite finds its
//! later time at its former one. A change also notifies the composites of the first
//! [`MAX_NOTIFIED`] seats at once, so that they refuse the waiters that the change makes too late.
//! Only shadow mode and closing the limiter notify the composites of all seats, [`MAX_NOTIFIED`] at
//! a time. When shadow mode begins, each composite finds a time without this limiter, and later
//! seats are due here at once. When the limiter is closed, each composite refuses its waiters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;

use crate::line::deferred::Deferred;
use crate::line::due::Schedule;
use crate::line::position::{LAST_POSITION, priority_of};
use crate::line::recheck::{Recheck, notify_at_most};
use crate::line::rule::Rule;
use crate::line::sizes::Sizes;
use crate::time::{CLOCK_SKEW, Nanos};

/// The number of seats that are away and are judged one by one.
const BACKFILL_DEPTH: usize = 8;

/// The number of seats, from the first one on, whose composites a change notifies. Each of them
/// costs the caller some microseconds.
const MAX_NOTIFIED: usize = 64;

/// The number of seats in a block. A block has fewer than twice as many. This is about the square
/// root of the greatest number of seats expected.
const BLOCK: usize = 128;

/// The seats in the queue of one limiter.
pub(crate) struct Seats<R: Rule> {
    /// The seats, by position in the queue.
    list: BTreeMap<u64, Seat<R::Ask>>,
    /// The positions of the seats that are here.
    here: BTreeSet<u64>,
    /// The blocks. The key is the position at which a block begins; it holds all seats from there
    /// up to the next block.
    blocks: BTreeMap<u64, Block>,
    /// The sums of all seats.
    total: Sums,
    /// The seats that are away, by the time `at` of each.
    away: BTreeSet<(Nanos, u64)>,
    /// The positions of the seats whose composites wait for other seats, and for no limiter.
    held_up: BTreeSet<u64>,
    /// The seats whose composites must still be notified, by their times.
    wakeups: BTreeSet<(Nanos, u64)>,
}

/// Sums of some neighbouring seats.
#[derive(Clone, Debug, Default)]
struct Sums {
    /// The entries of the queue that each of the seats counts before itself.
    entries: Sizes,
    /// The requests of the seats that are here.
    here: Sizes,
}

#[derive(Debug, Default)]
struct Block {
    seats: usize,
    sums: Sums,
}

struct Seat<Ask> {
    ask: Ask,
    /// The entries of the queue between the previous seat and this one.
    before: Sizes,
    /// The time at which its composite expects to have permits of all limiters.
    at: Nanos,
    /// The time at which it was due here at the last `update`.
    due: Nanos,
    /// Whether it waits only for this limiter.
    here: bool,
    shared: Weak<dyn Recheck>,
}

/// Returns the sum of the parts `before`, where `all` sums these and the parts `behind`. Visits the
/// parts before or the parts behind, whichever are fewer.
fn sum_before<T>(
    all: &Sums,
    mut before: impl Iterator<Item = T>,
    mut behind: impl Iterator<Item = T>,
    add: impl Fn(&mut Sums, T),
    subtract: impl Fn(&mut Sums, T),
) -> Sums {
    let mut sum = Sums::default();
    let Some(first) = before.next() else { return sum };
    add(&mut sum, first);
    let mut rest = all.clone();
    loop {
        match behind.next() {
            None => return rest,
            Some(part) => subtract(&mut rest, part),
        }
        match before.next() {
            None => return sum,
            Some(part) => add(&mut sum, part),
        }
    }
}

impl<R: Rule> Seats<R> {
    pub(crate) fn new() -> Self {
        Seats {
            list: BTreeMap::new(),
            here: BTreeSet::new(),
            blocks: BTreeMap::new(),
            total: Sums::default(),
            away: BTreeSet::new(),
            held_up: BTreeSet::new(),
            wakeups: BTreeSet::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Counts an entry that has joined the queue.
    pub(crate) fn count_entry(&mut self, rule: &R, position: u64, ask: &R::Ask) {
        let n = rule.size(ask).unwrap_or(0);
        self.count_before_next(position, |entries| entries.add(n));
    }

    /// Uncounts an entry that has left the queue.
    pub(crate) fn uncount_entry(&mut self, rule: &R, position: u64, ask: &R::Ask) {
        let n = rule.size(ask).unwrap_or(0);
        self.count_before_next(position, |entries| entries.remove(n));
    }

    /// Changes the entries that the first seat behind a position counts.
    fn count_before_next(&mut self, position: u64, change: impl Fn(&mut Sizes)) {
        if self.list.last_key_value().is_none_or(|(last, _)| *last < position) {
            return;
        }
        let Some((next, seat)) = self.list.range_mut(position..).next() else { return };
        change(&mut seat.before);
        if let Some((_, block)) = self.blocks.range_mut(..=next).next_back() {
            change(&mut block.sums.entries);
        }
        change(&mut self.total.entries);
    }

    /// Changes the sum of the seats that are here.
    fn count_here(&mut self, position: u64, change: impl Fn(&mut Sizes)) {
        if let Some((_, block)) = self.blocks.range_mut(..=position).next_back() {
            change(&mut block.sums.here);
        }
        change(&mut self.total.here);
    }

    /// Returns the sums of all seats before a position.
    fn sums_before(&self, rule: &R, position: u64) -> Sums {
        // The position is mostly that of the first seat, of the last one, or of a newcomer.
        match (self.list.first_key_value(), self.list.last_key_value()) {
            (Some((first, _)), Some((last, seat))) if *first < position => {
                if *last <= position {
                    let mut sums = self.total.clone();
                    if *last == position {
                        seat.subtract_from(rule, &mut sums);
                    }
                    return sums;
                }
            }
            _ => return Sums::default(),
        }
        let Some((&begin, own)) = self.blocks.range(..=position).next_back() else { return Sums::default() };
        let mut blocks = sum_before(
            &self.total,
            self.blocks.range(..begin),
            self.blocks.range(begin..),
            |sum, (_, block)| sum.merge(&block.sums),
            |sum, (_, block)| sum.unmerge(&block.sums),
        );
        let end = self.blocks.range(position + 1..).next().map_or(LAST_POSITION, |(end, _)| *end);
        blocks.merge(&sum_before(
            &own.sums,
            self.list.range(begin..position),
            self.list.range(position..end),
            |sum, (_, seat)| seat.add_to(rule, sum),
            |sum, (_, seat)| seat.subtract_from(rule, sum),
        ));
        blocks
    }

    /// Adds a seat behind entries of these sizes, and splits a block that has become twice as large
    /// as it should be.
    fn insert(&mut self, rule: &R, position: u64, mut seat: Seat<R::Ask>) {
        // The seats before this one count these entries already.
        seat.before.unmerge(&self.sums_before(rule, position).entries);
        self.count_before_next(position, |entries| entries.unmerge(&seat.before));
        self.total.entries.merge(&seat.before);
        let begin = self.blocks.range(..=position).next_back().map_or(position, |(begin, _)| *begin);
        let block = self.blocks.entry(begin).or_default();
        block.seats += 1;
        block.sums.entries.merge(&seat.before);
        self.list.insert(position, seat);
        if block.seats < 2 * BLOCK {
            return;
        }
        let end = self.blocks.range(position + 1..).next().map_or(LAST_POSITION, |(end, _)| *end);
        let Some((&middle, _)) = self.list.range(begin..end).nth(BLOCK) else { return };
        let mut second = Block::default();
        for (_, seat) in self.list.range(middle..end) {
            second.seats += 1;
            seat.add_to(rule, &mut second.sums);
        }
        if let Some(first) = self.blocks.get_mut(&begin) {
            first.seats -= second.seats;
            first.sums.unmerge(&second.sums);
        }
        self.blocks.insert(middle, second);
    }

    /// Removes a seat that is not here, and its block if the seat was the last one in it.
    fn remove(&mut self, position: u64) -> Option<Seat<R::Ask>> {
        let seat = self.list.remove(&position)?;
        if let Some((&begin, block)) = self.blocks.range_mut(..=position).next_back() {
            block.seats -= 1;
            block.sums.entries.unmerge(&seat.before);
            if block.seats == 0 {
                self.blocks.remove(&begin);
            }
        }
        self.total.entries.unmerge(&seat.before);
        self.count_before_next(position, |entries| entries.merge(&seat.before));
        Some(seat)
    }

    /// Returns whether a seat is before a position.
    pub(crate) fn has_before(&self, position: u64) -> bool {
        self.list.first_key_value().is_some_and(|(first, _)| *first < position)
    }

    /// Returns the requests of the seats that are here between two positions.
    pub(crate) fn here_between(&self, from: u64, to: u64) -> impl Iterator<Item = &R::Ask> {
        self.here.range(from..to).filter_map(|position| Some(&self.list.get(position)?.ask))
    }

    /// Returns when a request at this position is due, not before `at`, if all entries before it
    /// are `ahead` and no seat before it is held up. Leaves out the seat `own`.
    pub(crate) fn due(
        &self,
        schedule: &Schedule<'_, R>,
        times: (Nanos, Nanos),
        (position, own): (u64, u64),
        ahead: &R::Ahead,
        ask: &R::Ask,
    ) -> Nanos {
        let rule = schedule.rule;
        // A newcomer, mostly. Copying the sizes of all entries as well would take long.
        let mut here = match self.list.last_key_value().is_some_and(|(last, _)| *last < position) {
            true => self.total.here.clone(),
            false => self.sums_before(rule, position).here,
        };
        if let Some(seat) = self.list.get(&own).filter(|seat| seat.here && own < position) {
            rule.size(&seat.ask).into_iter().for_each(|n| here.remove(n));
        }
        let mut ahead = ahead.clone();
        rule.merge(&mut ahead, &rule.weigh(&here).unwrap_or_default());
        self.due_among(schedule, times, (position, own), &ahead, ask)
    }

    /// Returns when a request in the seat at this position is due, not before `at`. Returns `None`
    /// if no seat has this position.
    pub(crate) fn due_in_seat(
        &self,
        schedule: &Schedule<'_, R>,
        times: (Nanos, Nanos),
        position: u64,
        ask: &R::Ask,
    ) -> Option<Nanos> {
        let seat = self.list.get(&position)?;
        let Sums { mut entries, here } = self.sums_before(schedule.rule, position);
        entries.merge(&seat.before);
        entries.merge(&here);
        let ahead = schedule.rule.weigh(&entries).unwrap_or_default();
        Some(self.due_among(schedule, times, (position, position), &ahead, ask))
    }

    /// Returns when a request at this position is due, not before `at`, behind the sum `ahead` and
    /// among the seats that are away.
    pub(crate) fn due_among(
        &self,
        schedule: &Schedule<'_, R>,
        (now, at): (Nanos, Nanos),
        (position, own): (u64, u64),
        ahead: &R::Ahead,
        ask: &R::Ask,
    ) -> Nanos {
        let due = schedule.due(now, priority_of(position), ahead, ask);
        if self.away.is_empty() || due == Nanos::MAX {
            return due;
        }
        let (rule, now) = (schedule.rule, now.max(schedule.settings.opens_for(now)));
        let first = self.away.iter().take(BACKFILL_DEPTH);
        let before = first.filter(|(_, other)| *other < position && *other != own);
        let seats = before.filter_map(|(at, other)| Some((*other, *at, &self.list.get(other)?.ask)));
        // A policy can compute a due time for two cases: the requests ahead go first as soon as
        // they can, or all of them go first at a given time. The truth is in between, so the later
        // of the two due times is taken.
        let (mut due, mut one) = (if at > now { due.max(at) } else { due }, R::Ahead::default());
        rule.add(&mut one, ask);
        // `first` sums the requests that go first, `last` sums the seats among them with the latest
        // time, and `all` sums every request so far, this one included.
        let (mut first, mut last, mut last_at) = (ahead.clone(), R::Ahead::default(), Nanos::ZERO);
        let mut all = ahead.clone();
        rule.add(&mut all, ask);
        for (seat, seat_at, seat_ask) in seats {
            let held_up = || {
                let ready_at = |at, ahead| schedule.ready_at(at, priority_of(seat), ahead, seat_ask);
                ready_at(now, &all).max(ready_at(due.max(now), &one)) > seat_at
            };
            if seat_at <= due.max(now) || held_up() {
                let begins = now.max(seat_at);
                if begins > last_at {
                    (last, last_at) = (R::Ahead::default(), begins);
                }
                rule.add(&mut first, seat_ask);
                rule.add(&mut last, seat_ask);
                let ready_at = |at, ahead| schedule.ready_at(at, priority_of(position), ahead, ask);
                due = due.max(ready_at(now, &first)).max(ready_at(begins, &last)).max(seat_at);
            }
            rule.add(&mut all, seat_ask);
        }
        due
    }

    /// Notifies the composites of the first seats, after a change.
    pub(crate) fn notify_first(&self, deferred: &mut Deferred) {
        let first = self.list.values().take(MAX_NOTIFIED);
        deferred.rechecks.extend(first.filter_map(|seat| seat.shared.upgrade()));
    }

    /// Notifies the composites of the first seats from a position on. Returns the position from
    /// which to continue, if there are more seats.
    pub(crate) fn notify_from(&self, position: u64, deferred: &mut Deferred) -> Option<u64> {
        let mut seats = self.list.range(position..);
        let first = seats.by_ref().take(MAX_NOTIFIED).filter_map(|(_, seat)| seat.shared.upgrade());
        deferred.rechecks.extend(first);
        seats.next().map(|(position, _)| *position)
    }

    /// Takes a seat at this position, behind `entries` of the queue.
    pub(crate) fn take_seat(
        &mut self,
        rule: &R,
        position: u64,
        ask: R::Ask,
        entries: Sizes,
        shared: Weak<dyn Recheck>,
    ) {
        // The seat is idle until its time is set.
        let seat = Seat { ask, before: entries, at: Nanos::MAX, due: Nanos::ZERO, here: false, shared };
        self.insert(rule, position, seat);
    }

    /// Sets the request of a seat and the time until which the seat is held. Returns whether that
    /// changes anything for the requests behind, and when the seat is due here.
    pub(crate) fn update(
        &mut self,
        schedule: &Schedule<'_, R>,
        now: Nanos,
        position: u64,
        ask: &R::Ask,
        at: Nanos,
        deferred: &mut Deferred,
    ) -> (bool, Nanos) {
        let due = self.due_in_seat(schedule, (now, now), position, ask).unwrap_or(Nanos::ZERO);
        (self.file(schedule.rule, position, ask, (at, due), deferred), due)
    }

    /// Makes a seat idle, for a waiter that is no longer the first of its composite. Returns
    /// whether that changes anything for the requests behind.
    pub(crate) fn make_idle(&mut self, rule: &R, position: u64, deferred: &mut Deferred) -> bool {
        // An idle seat waits for no other seats.
        self.held_up.remove(&position);
        let ask = self.list.get(&position).map(|seat| seat.ask.clone());
        ask.is_some_and(|ask| self.file(rule, position, &ask, (Nanos::MAX, Nanos::ZERO), deferred))
    }

    /// Marks a seat whose composite waits for other seats, and for no limiter, or unmarks it.
    pub(crate) fn mark_held_up(&mut self, position: u64, held_up: bool) {
        match held_up && self.list.contains_key(&position) {
            true => self.held_up.insert(position),
            false => self.held_up.remove(&position),
        };
    }

    /// Notifies the composites of the next [`MAX_NOTIFIED`] marked seats behind a seat that has
    /// left or waits longer.
    fn notify_held_up(&self, position: u64, deferred: &mut Deferred) {
        notify_at_most(MAX_NOTIFIED, |most| {
            let before = deferred.rechecks.len();
            let behind = self.held_up.range(position.saturating_add(1)..).take(most);
            deferred.rechecks.extend(behind.filter_map(|behind| self.list.get(behind)?.shared.upgrade()));
            deferred.rechecks.len() - before
        });
    }

    /// Records a seat as here, away or idle. Returns whether anything has changed.
    fn file(
        &mut self,
        rule: &R,
        position: u64,
        ask: &R::Ask,
        (at, due): (Nanos, Nanos),
        deferred: &mut Deferred,
    ) -> bool {
        let Some(seat) = self.list.get_mut(&position) else { return false };
        let (old_at, old_ask) = (seat.at, std::mem::replace(&mut seat.ask, ask.clone()));
        let moved = at != old_at || *ask != old_ask;
        let (was_here, is_here) = (seat.here, at <= due.saturating_add(CLOCK_SKEW));
        (seat.at, seat.due, seat.here) = (at, due, is_here);
        if moved {
            self.wakeups.remove(&(old_at, position));
            self.wakeups.insert((at, position));
        }
        let stays = was_here && is_here && *ask == old_ask;
        if was_here && !stays {
            self.leave(position, rule.size(&old_ask));
        }
        if is_here && !stays {
            self.here.insert(position);
            let n = rule.size(ask).unwrap_or(0);
            self.count_here(position, |here| here.add(n));
        }
        self.away.remove(&(old_at, position));
        if !is_here && at < Nanos::MAX {
            self.away.insert((at, position));
        }
        // Two clocks that are read one after the other make times differ a little.
        if at > old_at.saturating_add(CLOCK_SKEW) || *ask != old_ask {
            self.notify_held_up(position, deferred);
        }
        moved || was_here != is_here
    }

    /// Removes a seat from those that are here, with the size of its request.
    fn leave(&mut self, position: u64, size: Option<u32>) {
        self.here.remove(&position);
        self.count_here(position, |here| here.remove(size.unwrap_or(0)));
    }

    /// Gives up a seat. Returns whether the seat was there.
    pub(crate) fn give_up(&mut self, rule: &R, position: u64, deferred: &mut Deferred) -> bool {
        let Some(Seat { ask, here, .. }) = self.list.get(&position) else { return false };
        if *here {
            let size = rule.size(ask);
            self.leave(position, size);
        }
        let Some(seat) = self.remove(position) else { return false };
        self.wakeups.remove(&(seat.at, position));
        self.away.remove(&(seat.at, position));
        self.held_up.remove(&position);
        self.notify_held_up(position, deferred);
        true
    }

    /// Notifies the composites of the seats whose time has come. Also notifies the composites of
    /// the first seat that is here and of the first marked one, if that seat is due earlier than
    /// recorded or will never be due.
    pub(crate) fn notify_due(&mut self, schedule: &Schedule<'_, R>, now: Nanos, deferred: &mut Deferred) {
        let mut due = Vec::new();
        while let Some(wakeup) = self.wakeups.first().copied().filter(|(at, _)| *at <= now) {
            self.wakeups.remove(&wakeup);
            due.push(wakeup.1);
        }
        // The composites are notified in the order of the positions of their seats, so that each
        // one finds a time behind the seats before its own, instead of an equal time.
        due.sort_unstable();
        deferred.rechecks.extend(due.iter().filter_map(|position| self.list.get(position)?.shared.upgrade()));
        let firsts = [self.here.first(), self.held_up.first()].map(Option::<&u64>::copied);
        for position in firsts.into_iter().flatten() {
            let Some(Seat { ask, .. }) = self.list.get(&position) else { continue };
            let Some(due) = self.due_in_seat(schedule, (now, now), position, ask) else { continue };
            // A request that can never be granted is refused now. Otherwise all requests behind it
            // would wait.
            if let Some(seat) = self.list.get_mut(&position)
                && (due < seat.due || due == Nanos::MAX && seat.due < due)
                && seat.at > now
            {
                seat.due = due;
                deferred.rechecks.extend(seat.shared.upgrade());
            }
        }
    }
}

impl<Ask> Seat<Ask> {
    fn add_to<R: Rule<Ask = Ask>>(&self, rule: &R, sums: &mut Sums) {
        sums.entries.merge(&self.before);
        rule.size(&self.ask).filter(|_| self.here).into_iter().for_each(|n| sums.here.add(n));
    }

    fn subtract_from<R: Rule<Ask = Ask>>(&self, rule: &R, sums: &mut Sums) {
        sums.entries.unmerge(&self.before);
        rule.size(&self.ask).filter(|_| self.here).into_iter().for_each(|n| sums.here.remove(n));
    }
}

impl Sums {
    fn merge(&mut self, more: &Sums) {
        self.entries.merge(&more.entries);
        self.here.merge(&more.here);
    }

    fn unmerge(&mut self, less: &Sums) {
        self.entries.unmerge(&less.entries);
        self.here.unmerge(&less.here);
    }
}
