//! How much of each grant can still be given back.
//!
//! A grant is undone as if it had never been made. Without the grant the limiter would have been
//! fuller by what the grant took, and permits that accrued while it was full would have been lost.
//! The *room* is what a limiter lacks to be full. So the grant gives back at most the *least room*
//! at any moment since the grant. Undoing a grant also takes room away from every other grant that
//! existed at the same time: without the undone grant, the limiter was fuller during their history,
//! too.
//!
//! # Input
//!
//! Two numbers say how full a limiter is: its [level](crate::Policy::moved), which only grants and
//! debits raise, and the [level of a full one](crate::Policy::full_level), which rises with time.
//! The room is their difference. The log observes the state at every grant, undoing, refund and
//! change under the lock, and records the level that it left. A grant without the lock is not
//! observed, but it raises the level. So between two observations the room is never less than the
//! level at the first one minus the level of a full limiter at the second one.
//!
//! # State
//!
//! | term | meaning |
//! |---|---|
//! | observation (`Observation`) | the room found at one moment, and the level left |
//! | mark | the least room from one observation to another, and the grants made since the previous mark that may still be undone |
//! | gap of a mark | its room minus the room of the previous mark. Rooms rise from mark to mark, because a mark with at least as much room as a later one is left out |
//! | recent | the number of grants made since the last mark |
//! | level | at most the level of the state at any moment since the last observation |
//! | base | at most the level minus all that recent grants took |
//!
//! The room of a mark is the sum of the gaps up to it. It is also the least room since each of its
//! grants. Undoing one of these grants lowers the room of its mark and of all later marks, and
//! limits the room of earlier marks to the lowered room. In gaps: it takes from the mark's own gap,
//! and then from the gaps before it. A mark with a used-up gap is merged with the mark before it.
//! So undoing costs O(log n) for n grants, amortized, in any order.
//!
//! # Why undoing creates no permits
//!
//! Claim: the marks never say more than the least room in a replay of history without the grants
//! undone so far. An observation keeps the claim, as shown above. Undoing keeps it, too: the grant
//! gives back *b*, which is at most the room of its mark. In a replay without this grant as well,
//! the room at each moment since the grant is smaller by the part of the grant that had not
//! overflowed by then. That part is *b*, or more if the room shrank to *b* later. But at that later
//! moment, which all older grants include as well, the replay has no room left. So marks that are
//! lowered by *b* say no more than the replay.
//!
//! An observation writes no mark while the base is above the level of a full limiter by at least
//! the last mark's room: then the room at this moment would suffice even if all grants were undone.
//! So uncollected grants cost nothing while the limiter is far from full.
//!
//! If the queue observes every grant, exactly the right number of permits is given back: then each
//! observation is also a moment at which the replay discards what overflowed.
//!
//! **A change of terms** is an observation by the old terms. Rooms are converted as the policy
//! converts its stored permits, rounded down. A policy that does not convert by a factor returns
//! level 0, and grants from before the change give back nothing.
//!
//! **A clock that goes back** is not followed: the time of an observation is the latest clock
//! reading that the queue has noted. What a grant without the lock found at a later time is not
//! observed here.
//!
//! **The remaining error.** A taker without the lock may read a later time than the thread that
//! holds the lock, if that thread is preempted between reading the clock and reading the state.
//! Then too much may be given back, once, by the permits that accrue in that time.
//!
//! **A policy of several parts** has a level for each part, and each part has its own marks and
//! observations. The parts are observed one after the other and share the numbers, so one number
//! names a grant in all of them. A grant that took nothing of a part, or of which nothing must be
//! put back into a part, gives back nothing there.
//!
//! **Checked by** the test below, by `tests/limiter/undo.rs` against replays of history, and by
//! `loom-tests/compose.rs`.

use std::collections::{BTreeMap, VecDeque};

use crate::line::grants::GrantId;
use crate::policy::interval::Interval;

/// The number of observations kept for grants that were made without the lock.
const KEPT: usize = 32;

/// The log of a state, with one part for each level.
#[derive(Debug)]
pub(crate) struct UndoLog {
    parts: PerPart<PartLog>,
    /// The number of the next record: a mark, or permits given back. It begins above `forgotten`.
    next: u64,
    /// The number of the last record that is not a grant.
    touched: u64,
}

/// The log of one part. All parts share the numbers.
#[derive(Debug)]
struct PartLog {
    /// The marks by number.
    marks: BTreeMap<u64, Mark>,
    /// The room of the last mark, or slightly more: see [`PartLog::changed`].
    top: u64,
    recent: usize,
    base: u64,
    level: u64,
    /// The unit of levels; see [`Policy::level_unit`](crate::Policy::level_unit).
    unit: (u64, u64),
    /// The last observations, for grants that were made without the lock.
    observations: VecDeque<Observation>,
    /// The number of the last observation that is no longer in `observations`.
    forgotten: u64,
}

/// One value for each part of a policy. Most policies have one part, which needs no allocation.
#[derive(Debug)]
pub(crate) struct PerPart<T> {
    first: T,
    more: Vec<T>,
}

impl<T> PerPart<T> {
    pub(crate) fn new(parts: usize, mut of: impl FnMut(usize) -> T) -> PerPart<T> {
        PerPart { first: of(0), more: (1..parts).map(of).collect() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        std::iter::once(&mut self.first).chain(&mut self.more)
    }
}

/// The measures of one part of a policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    /// The levels between which a grant moved the part; `None` if the grant took nothing of it.
    pub(crate) moved: Option<Moved>,
    /// The level of a full limiter.
    pub(crate) full: u64,
}

#[derive(Debug)]
struct Mark {
    /// In the unit that was in force when the gap was last used.
    gap: u64,
    unit: (u64, u64),
    grants: usize,
}

#[derive(Debug)]
struct Observation {
    number: u64,
    /// The least room up to this observation, minus what was undone since.
    room: u64,
    /// How much of a grant was undone. Undoing it lowers all levels since the grant.
    back: u64,
    /// The level that the observation left.
    level: u64,
}

/// The levels between which a grant moved the state: before, and after.
pub(crate) type Moved = (u64, u64);

impl Mark {
    /// Converts the gap to this unit.
    fn convert(&mut self, unit: (u64, u64)) {
        if self.unit != unit {
            let interval = |(ticks, permits)| Interval::from_words([0, ticks, permits]);
            self.gap = interval(self.unit).convert(self.gap, interval(unit), false);
            self.unit = unit;
        }
    }
}

impl UndoLog {
    /// Creates a log for a state whose levels have these units.
    pub(crate) fn new(parts: usize, unit: impl Fn(usize) -> (u64, u64)) -> UndoLog {
        UndoLog { parts: PerPart::new(parts, |part| PartLog::new(unit(part))), next: 1, touched: 0 }
    }

    /// Returns the next number of the log. It rises with each mark, refund, debit and change.
    pub(crate) fn number(&self) -> u64 {
        self.next
    }

    /// Tracks a grant with this measure of each part.
    pub(crate) fn track(&mut self, measure: impl Fn(usize) -> Measure) -> GrantId {
        for (index, part) in self.parts.iter_mut().enumerate() {
            part.track(measure(index), &mut self.next);
        }
        GrantId(self.next)
    }

    /// Makes a grant final.
    pub(crate) fn make_final(&mut self, GrantId(id): GrantId) {
        self.parts.iter_mut().for_each(|part| part.make_final(id));
    }

    /// Undoes a grant through `put_back`. For each part, `put_back` gets the index of the part and
    /// the `most` of [`Policy::undo`](crate::Policy::undo), and returns the level that it left.
    pub(crate) fn undo(
        &mut self,
        GrantId(id): GrantId,
        measures: &PerPart<Measure>,
        mut put_back: impl FnMut(usize, u64) -> u64,
    ) {
        let touched = self.touched >= id;
        for ((index, part), measure) in self.parts.iter_mut().enumerate().zip(measures.iter()) {
            match measure.moved {
                Some(moved) => {
                    let put_back = |most| put_back(index, most);
                    part.undo((id, touched), (moved, measure.full), &mut self.next, put_back);
                }
                None => part.make_final(id),
            }
        }
        self.touch();
    }

    /// Undoes a grant that the log does not track, made after this number was read.
    pub(crate) fn undo_since(
        &mut self,
        since: u64,
        measures: &PerPart<Measure>,
        mut put_back: impl FnMut(usize, u64) -> u64,
    ) {
        let touched = self.touched >= since;
        for ((index, part), measure) in self.parts.iter_mut().enumerate().zip(measures.iter()) {
            if let Some(moved) = measure.moved {
                let put_back = |most| put_back(index, most);
                part.undo_since((since, touched), (moved, measure.full), &mut self.next, put_back);
            }
        }
        self.touch();
    }

    /// Gives back permits that belong to no grant in this log, through `refund`, which returns the
    /// level that it left. `full` is the level of a full limiter.
    pub(crate) fn refund(&mut self, full: impl Fn(usize) -> u64, mut refund: impl FnMut(usize) -> u64) {
        for (index, part) in self.parts.iter_mut().enumerate() {
            let room = part.begin_observation(full(index), &mut self.next);
            part.note_given_back(room, 0, refund(index), &mut self.next);
        }
        self.touch();
    }

    /// Notes that something was taken or debited that cannot be undone.
    pub(crate) fn touch(&mut self) {
        self.touched = self.next;
        self.next += 1;
    }

    /// Notes that the terms of one part, or of all, have changed. `full` is by the old terms,
    /// everything else by the new ones.
    pub(crate) fn changed(
        &mut self,
        only: Option<usize>,
        full: &PerPart<u64>,
        unit: impl Fn(usize) -> (u64, u64),
        level: u64,
    ) {
        for ((index, part), full) in self.parts.iter_mut().enumerate().zip(full.iter()) {
            if only.is_none_or(|only| only == index) {
                part.changed(*full, unit(index), level, &mut self.next);
            }
        }
        self.touch();
    }
}

impl PartLog {
    fn new(unit: (u64, u64)) -> PartLog {
        PartLog {
            marks: BTreeMap::new(),
            top: 0,
            recent: 0,
            base: 0,
            level: 0,
            unit,
            observations: VecDeque::new(),
            forgotten: 0,
        }
    }

    fn track(&mut self, Measure { moved, full }: Measure, next: &mut u64) {
        let room = self.begin_observation(full, next);
        // A grant that took nothing of this part moves no level.
        let (before, after) = moved.unwrap_or((self.level, self.level));
        if self.recent == 0 {
            self.base = before.min(after);
        }
        self.recent += 1;
        self.end_observation(room, 0, after, next);
    }

    fn make_final(&mut self, id: u64) {
        let Some((&number, mark)) = self.marks.range_mut(id..).next() else {
            self.recent = self.recent.saturating_sub(1);
            return;
        };
        mark.grants = mark.grants.saturating_sub(1);
        if mark.grants > 0 {
            return;
        }
        mark.convert(self.unit);
        let gap = mark.gap;
        self.marks.remove(&number);
        match self.marks.range_mut(number..).next() {
            Some((_, later)) => {
                later.convert(self.unit);
                later.gap = later.gap.saturating_add(gap);
            }
            None => self.top = self.top.saturating_sub(gap),
        }
        if self.marks.is_empty() {
            self.top = 0;
        }
    }

    /// `touched` says that something other than grants was noted since this grant.
    fn undo(
        &mut self,
        (id, touched): (u64, bool),
        ((before, after), full): (Moved, u64),
        next: &mut u64,
        put_back: impl FnOnce(u64) -> u64,
    ) {
        let (price, alone) = (after.saturating_sub(before), !touched && self.level == after);
        let room = self.begin_observation(full, next);
        let back = if let Some((&number, _)) = self.marks.range(id..).next() {
            self.take(number, price)
        } else {
            let back = price.min(room);
            // Recent grants took that much less.
            self.level -= back;
            back
        };
        self.lower_observations(id, back);
        self.make_final(id);
        self.note_given_back(room, back, put_back(if alone { u64::MAX } else { back }), next);
    }

    fn undo_since(
        &mut self,
        (since, touched): (u64, bool),
        ((before, after), full): (Moved, u64),
        next: &mut u64,
        put_back: impl FnOnce(u64) -> u64,
    ) {
        let room = self.begin_observation(full, next);
        let (mut least, mut seen) = (if since > self.forgotten { after } else { 0 }, u64::MAX);
        for observation in self.observations.iter().filter(|observation| observation.number >= since) {
            least = least.saturating_sub(observation.back).min(observation.level);
            seen = seen.min(observation.room);
        }
        let back = after.saturating_sub(before).min(least.saturating_sub(full));
        if let Some((&number, _)) = self.marks.range(since..).next() {
            let taken = self.take(number, back);
            self.take_after(number, back - taken);
        }
        self.lower_observations(since, back);
        if seen < u64::MAX {
            // Observations that wrote no mark would have written one if they had found `back` less
            // room.
            self.mark(room.min(seen).saturating_sub(back), next);
        }
        self.note_given_back(room, back, put_back(if touched { back } else { u64::MAX }), next);
    }

    /// Records that `back` of a grant was given back, or that permits were refunded: then `back` is
    /// zero. That left the state at `level`.
    fn note_given_back(&mut self, room: u64, back: u64, level: u64, next: &mut u64) {
        // The base is below the new level by the permits that recent grants took.
        self.base = self.base.min(level.saturating_sub(self.level.saturating_sub(self.base)));
        self.end_observation(room, back, level, next);
    }

    /// Ends an observation that found `room`.
    fn end_observation(&mut self, room: u64, back: u64, level: u64, next: &mut u64) {
        self.level = level;
        if self.observations.len() == KEPT
            && let Some(oldest) = self.observations.pop_front()
        {
            self.forgotten = oldest.number;
        }
        self.observations.push_back(Observation { number: *next, room, back, level });
        *next += 1;
    }

    fn lower_observations(&mut self, since: u64, back: u64) {
        for observation in
            self.observations.iter_mut().rev().take_while(|observation| observation.number >= since)
        {
            observation.room = observation.room.saturating_sub(back);
        }
    }

    /// Begins an observation. Returns the least room since the last one. Writes a mark unless the
    /// base is high enough.
    fn begin_observation(&mut self, full: u64, next: &mut u64) -> u64 {
        let room = self.level.saturating_sub(full);
        if self.base < full.saturating_add(self.top) {
            self.mark(room, next);
        }
        room
    }

    /// Converts the room of the last mark to the new unit at once. Each gap is converted when it is
    /// next used, rounded down. So the room may exceed the sum of the gaps, by one tick for each
    /// gap. The gap of the next mark is smaller by that amount.
    fn changed(&mut self, full: u64, unit: (u64, u64), level: u64, next: &mut u64) {
        self.mark(self.level.saturating_sub(full), next);
        let mut last = Mark { gap: self.top, unit: self.unit, grants: 0 };
        last.convert(unit);
        (self.top, self.unit) = (last.gap, unit);
        (self.level, self.base) = (level, level);
        self.observations.clear();
        self.forgotten = *next;
    }

    /// Writes a mark for the grants made since the last mark.
    fn mark(&mut self, room: u64, next: &mut u64) {
        let mut grants = std::mem::take(&mut self.recent);
        while self.top >= room
            && let Some((_, mut last)) = self.marks.pop_last()
        {
            last.convert(self.unit);
            self.top = self.top.saturating_sub(last.gap);
            grants += last.grants;
        }
        if self.marks.is_empty() {
            self.top = 0;
        }
        if grants > 0 {
            let gap = room.saturating_sub(self.top);
            self.marks.insert(*next, Mark { gap, unit: self.unit, grants });
            self.top = room;
            *next += 1;
        }
        self.base = self.level;
    }

    /// Takes `wanted` from the room of this mark and of all later ones, or all the room that this
    /// mark has. Returns the amount taken.
    fn take(&mut self, number: u64, wanted: u64) -> u64 {
        let mut left = wanted;
        while let Some(mark) = self.marks.get_mut(&number) {
            mark.convert(self.unit);
            let part = left.min(mark.gap);
            mark.gap -= part;
            left -= part;
            if left == 0 {
                break;
            }
            let Some((&earlier, _)) = self.marks.range(..number).next_back() else { break };
            let Some(earlier) = self.marks.remove(&earlier) else { break };
            if let Some(mark) = self.marks.get_mut(&number) {
                mark.gap = earlier.gap;
                mark.unit = earlier.unit;
                mark.grants += earlier.grants;
            }
        }
        self.top = self.top.saturating_sub(wanted - left);
        wanted - left
    }

    /// Takes `wanted` from the room of all marks after this one, which has no room left.
    fn take_after(&mut self, number: u64, wanted: u64) {
        let (mut number, mut left) = (number, wanted);
        while left > 0
            && let Some((&later, mark)) = self.marks.range_mut(number + 1..).next()
        {
            mark.convert(self.unit);
            let part = left.min(mark.gap);
            mark.gap -= part;
            left -= part;
            if mark.gap == 0 {
                let without = self.marks.remove(&number).map_or(0, |mark| mark.grants);
                if let Some(mark) = self.marks.get_mut(&later) {
                    mark.grants += without;
                }
            }
            number = later;
        }
        self.top = self.top.saturating_sub(wanted - left);
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The size of the bucket.
    const SIZE: u64 = 50;

    /// A grant that may be undone: its index in the history, what it is undone with, the levels
    /// between which it moved the state, and whether the log tracks it.
    struct Grant {
        noted: usize,
        with: u64,
        moved: Moved,
        tracked: bool,
    }

    /// Returns the level after a history of costs. A refund is a negative cost.
    fn replay(history: &[(u64, i64)]) -> u64 {
        history.iter().fold(0, |level, (now, price)| {
            let full = now - SIZE;
            match u64::try_from(*price) {
                Ok(price) => level.max(full) + price,
                Err(_) => level.saturating_sub(price.unsigned_abs()).max(full),
            }
        })
    }

    proptest! {
        /// Makes grants under the lock and without it, and undoes them in any order. There are
        /// never more marks than grants.
        #[test]
        fn a_bucket_is_never_fuller_than_in_a_replay(
            acts in proptest::collection::vec((0..7u8, 0..30u64, any::<usize>()), 1..120),
        ) {
            let mut room = UndoLog::new(1, |_| (1, 1));
            let (mut now, mut level, mut grants) = (1000, 0u64, Vec::<Grant>::new());
            let mut history = Vec::<(u64, i64)>::new();
            for (act, number, index) in acts {
                let full = now - SIZE;
                match act {
                    0 | 1 => now += number,
                    // Act 2 is tracked. Acts 3 and 4 are not tracked, and act 4 is not undone.
                    2..=4 => {
                        let since = room.number();
                        let before = level.max(full);
                        level = before + number;
                        history.push((now, i64::try_from(number)?));
                        let (noted, moved, tracked) = (history.len() - 1, (before, level), act == 2);
                        let with = if tracked { room.track(|_| Measure { moved: Some(moved), full }).0 } else { since };
                        if act < 4 {
                            grants.push(Grant { noted, with, moved, tracked });
                        }
                    }
                    5 => {
                        level = level.saturating_sub(number).max(full).min(level);
                        room.refund(|_| full, |_| level);
                        history.push((now, -i64::try_from(number)?));
                    }
                    _ if grants.is_empty() => {}
                    _ => {
                        let Grant { noted, with, moved, tracked } = grants.swap_remove(index % grants.len());
                        if number == 0 && tracked {
                            room.make_final(GrantId(with));
                        } else {
                            let put_back = |_, most: u64| {
                                level -= most.min(moved.1 - moved.0).min(match most {
                                    u64::MAX => moved.1.saturating_sub(full),
                                    most => most,
                                });
                                level
                            };
                            let measures = PerPart::new(1, |_| Measure { moved: Some(moved), full });
                            match tracked {
                                true => room.undo(GrantId(with), &measures, put_back),
                                false => room.undo_since(with, &measures, put_back),
                            }
                            history[noted].1 = 0;
                        }
                    }
                }
                let full = now - SIZE;
                prop_assert!(level.max(full) >= replay(&history).max(full), "{level} {}", replay(&history));
                let part = &room.parts.first;
                prop_assert!(part.marks.len() <= grants.len());
                let gaps: u64 = part.marks.values().map(|mark| mark.gap).sum();
                prop_assert_eq!(gaps, part.top);
            }
        }
    }
}
