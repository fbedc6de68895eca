//! The state of a log, and how a request uses it: a ring of times that only grows.
//!
//! # Protocol
//!
//! Shared: the [`Head`], and a ring with one entry for each permit, which shows a time. The head
//! holds the index of the next grant, and the time of the last grant. `room` entries count for
//! decisions; the spare entries bound how many undone permits may lie among them.
//!
//! | word | meaning | changed by | a request that sees it |
//! |---|---|---|---|
//! | an entry behind the head | when one permit was granted | the taker of the entry, or a helper; it only rises, until the ring is filled by a copy | compares it with the time |
//! | an entry of the last grant | the time in the head, if it is not written yet | | takes the time in the head |
//! | an entry ahead of the head | a time of an earlier lap, not above the time in the head; these times ascend | | does not read it |
//! | head | see [`Head`] | takers, givers-back | replaces it, or is refused and writes nothing |
//! | floor, in the slot of a version | entries behind it do not count | a giver-back, before that version begins | counts them as free |
//! | credits, in the slot of a version | how many permits with times that still count were undone, and the index of the first of them | a giver-back, before that version begins; a taker with a clock past the first one | reads as many entries further back |
//! | a link, for each entry, in chunks | how many permits of the time in this entry were undone, and the index of the next such permits; none before its chunk is allocated | a giver-back | leaves out the undone permits that are over |
//!
//! | step of a taker | operation | ordering | why |
//! |---|---|---|---|
//! | 1 read | `head` | Acquire | sees the slot of its version, and the times of all grants but the last |
//! | 2 judge | the entry that has to be over; with a flag in the head, slot and links | Acquire | a newer value of any of them comes with a newer head, which 3 or 6 then sees |
//! | 3 refuse | `head` again | Acquire | an equal head shows that nothing changed since 1 |
//! | 4 leave out | credits that are over: CAS; a refusal does so too if they are many | AcqRel | their entries may be taken again from 6 on |
//! | 5 help | entries of the last grant that are not written: read, `head` again, CAS | Acquire, Acquire, AcqRel | 6 replaces the head that holds their time |
//! | 6 take | `head`: CAS | AcqRel | fails if the head has changed; publishes what 4 and 5 ensured |
//! | 7 write | its own entries, from the last to the first: like 5 | AcqRel | saves the next taker step 5 |
//!
//! **A writer may stall** between 6 and 7. The next taker writes its entries in step 5, before the
//! head forgets their time. When the stalled writer continues, its CASes fail, because an entry
//! never shows an older time again (`give_back.rs` explains this for copies).
//!
//! | | stalled taker *A* | taker *B* | head | entries |
//! |---|---|---|---|---|
//! | 1 | takes entry 4 at 20 | | 5, time 20 | 4 shows 3 |
//! | 2 | stalls | reads the head, and needs entry 4: the last grant, so its time is 20 | | |
//! | 3 | | writes 20 to entry 4, takes entry 5 at 21 | 6, time 21 | 4 shows 20 |
//! | 4 | CAS from 3 to 20 in entry 4: fails | | | 4 shows 20 |
//!
//! **Whether a grant is written** is determined by its first entry. A grant is written from its
//! last entry to its first one, and the times ahead of the head ascend: if the first entry shows
//! the time of the grant, all of its entries do, whichever thread wrote them.
//!
//! **No request is granted too early.** Times rise along the ring, because a request is judged and
//! recorded as of its own time or the time of the last grant, whichever is later. So the entry that
//! the request reads has the newest time of all entries that have to be over, and one read decides
//! for any `n`.
//!
//! **Undone permits stay in the ring.** An undone entry uses room among the entries that count. So
//! a request reads one entry further back for each undone permit. A request of `n` permits fits if
//! the entries in the window and `n` are together at most *N* plus the undone entries.
//! `give_back.rs` has the protocol of undoing.
//!
//! **Checked by** `loom-tests/sliding_log.rs`. Loom's head is a mutex, so the orderings of the head
//! are argued only here.

use std::sync::OnceLock;

use crate::policy::window::log::LogCharge;
use crate::policy::window::log::chunks::{CHUNK, words};
use crate::policy::window::log::give_back::{Credits, GiveBack};
use crate::policy::window::log::head::Head;
use crate::policy::window::{Stamp, Window};
use crate::sync::{AtomicU64, AtomicU128, Ordering};

/// The fewest entries beyond the room.
pub(crate) const SPARE: u32 = if cfg!(all(test, tidegate_loom)) { 2 } else { 64 };

/// A refusal writes nothing, unless it left out this many credits that are over: then the next
/// request need not pass them again.
const MANY: u32 = 32;

/// The state of one [`SlidingLog`](crate::policy::SlidingLog): a ring of times.
#[derive(Debug)]
pub struct LogState {
    pub(super) head: AtomicU128,
    /// The ring that is in force until grants are undone in large numbers.
    times: Box<[AtomicU64]>,
    /// The data for giving back. A log of few permits creates it when it is first needed.
    back: OnceLock<Box<GiveBack>>,
}

/// The result of one read of the head and its slot.
#[derive(Debug)]
pub(super) struct View {
    pub(super) head: Head,
    /// How many entries behind the head count.
    pub(super) valid: u32,
    /// The undone permits that are not over.
    pub(super) credits: Credits,
}

impl LogState {
    /// Creates a log with room for `room` permits.
    pub(super) fn new(room: u32) -> LogState {
        // One additional entry, so that no decision reads the entry that is written next.
        let len = room + room / 8 + SPARE + 1;
        let state = LogState { head: AtomicU128::new(0), times: words(len), back: OnceLock::new() };
        if len > CHUNK {
            // It has a pointer for each chunk, which takes long for millions of permits.
            state.give_back();
        }
        state
    }

    /// Returns how many entries a ring has.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.times.len()).unwrap_or(u32::MAX)
    }

    /// Returns how many undone permits there may be.
    pub(super) fn spare(&self) -> u32 {
        // One eighth of the room is one ninth of the sum of the room and its eighth.
        (self.len() - 1 - SPARE) / 9 + SPARE
    }

    pub(super) fn back(&self) -> Option<&GiveBack> {
        self.back.get().map(|back| &**back)
    }

    pub(crate) fn give_back(&self) -> &GiveBack {
        self.back.get_or_init(|| Box::new(GiveBack::new(self.len())))
    }

    /// Returns the word of an entry of one of the two rings.
    #[inline]
    pub(crate) fn entry(&self, ring: bool, index: u32) -> &AtomicU64 {
        match self.back.get() {
            Some(back) if ring => back.second.word(index),
            _ => &self.times[index as usize],
        }
    }

    #[inline]
    pub(crate) fn head(&self) -> Head {
        // Acquire: shows the slot of its version, and the times of all grants but the last (1).
        Head::decode(self.head.load(Ordering::Acquire))
    }

    /// Replaces the head, or returns the newer head. It may fail spuriously.
    #[inline]
    pub(crate) fn exchange(&self, head: Head, new: Head) -> Result<(), Head> {
        self.exchange_word(head.encode(), new).map(drop).map_err(Head::decode)
    }

    #[inline]
    fn exchange_word(&self, word: u128, new: Head) -> Result<u128, u128> {
        // Release: publishes the credits and the times that this thread ensured (4, 5). Acquire:
        // what this thread reads next is as new as the head that it found.
        self.head.compare_exchange_weak(word, new.encode(), Ordering::AcqRel, Ordering::Acquire)
    }

    /// Returns the index `steps` steps behind another one, at most once around.
    #[inline]
    pub(crate) fn before(&self, index: u32, steps: u32) -> u32 {
        if steps <= index { index - steps } else { index + self.len() - steps }
    }

    /// Returns the index `steps` steps after another one, at most once around.
    #[inline]
    pub(crate) fn after(&self, index: u32, steps: u32) -> u32 {
        let sum = index + steps;
        if sum < self.len() { sum } else { sum - self.len() }
    }

    /// Returns how many steps lead from an index to a later one.
    pub(super) fn steps(&self, from: u32, to: u32) -> u32 {
        if from <= to { to - from } else { to + self.len() - from }
    }

    /// Returns what counts at a time, by a head that may be outdated: the next check of the head
    /// detects that.
    #[inline]
    pub(super) fn view(&self, head: Head, time: Stamp, window: &Window) -> View {
        match self.back.get() {
            Some(back) if head.floored || head.credited => self.view_slot(back, head, time, window),
            _ => self.plain_view(head),
        }
    }

    /// Returns what counts by a head without flags.
    #[inline(always)]
    fn plain_view(&self, head: Head) -> View {
        View { head, valid: self.len() - 1, credits: Credits::NONE }
    }

    /// Like [`view`](LogState::view), by the slot of the version.
    #[cold]
    fn view_slot(&self, back: &GiveBack, head: Head, time: Stamp, window: &Window) -> View {
        let valid =
            if head.floored { self.before(head.index, back.floor(head.version)) } else { self.len() - 1 };
        let mut credits = if head.credited { back.credits(head.version) } else { Credits::NONE };
        if let Some(over) = time.checked_sub(window.length) {
            if head.time <= over {
                credits.leave_out_all();
            } else {
                self.leave_out(back, &mut credits, head.ring, over);
            }
        }
        View { head, valid, credits }
    }

    /// Returns the time of the entry `steps` steps behind the head, from 1 on; 0 if it does not
    /// count.
    #[inline]
    pub(super) fn behind(&self, view: &View, steps: u32) -> Stamp {
        if steps > view.valid {
            return 0;
        }
        if steps <= view.head.n {
            return view.head.time;
        }
        let index = self.before(view.head.index, steps);
        // Acquire: a newer time comes with a newer head, which steps 3 and 6 then see (2).
        self.entry(view.head.ring, index).load(Ordering::Acquire)
    }

    /// Returns until when `n` permits are not free. `n` is at least 1, and at most the limit.
    pub(super) fn free_at(&self, view: &View, window: &Window, n: u32) -> Stamp {
        self.counts_until(view, window, window.limit - n + 1)
    }

    /// Returns until when the newest entries, this many of them and at least 1, count.
    pub(super) fn counts_until(&self, view: &View, window: &Window, newest: u32) -> Stamp {
        let mut credits = view.credits;
        let Some(back) = self.back.get().filter(|_| credits.sum > 0) else {
            return end(self.behind(view, newest), window);
        };
        // When that entry is over, undone permits of its time and of earlier times are over, too.
        // Then a newer entry decides.
        loop {
            let time = self.behind(view, newest + credits.sum);
            let sum = credits.sum;
            self.leave_out(back, &mut credits, view.head.ring, time);
            if credits.sum == sum {
                return end(time, window);
            }
        }
    }

    /// Calls `inspect` until nothing changes meanwhile.
    pub(super) fn inspect<T>(&self, now: Stamp, window: &Window, inspect: impl Fn(&View, Stamp) -> T) -> T {
        let mut head = self.head();
        loop {
            let time = now.max(head.time);
            let seen = inspect(&self.view(head, time, window), time);
            match self.head() {
                same if same == head => return seen,
                newer => head = newer,
            }
        }
    }

    /// Takes `n` entries as of `now`. The error is the time before which that is too early.
    #[inline]
    pub(super) fn take(&self, now: Stamp, window: &Window, n: u32) -> Result<LogCharge, Stamp> {
        // The word, because comparing two words takes fewer instructions than comparing heads.
        // Acquire: as in `head` (1).
        let mut word = self.head.load(Ordering::Acquire);
        loop {
            let head = Head::decode(word);
            let time = now.max(head.time);
            let seen = match self.back.get() {
                Some(back) if head.floored || head.credited => {
                    self.decide_by_slot(back, word, time, window, n)
                }
                // The usual head has no flag. The compiler removes everything about credits.
                _ => self.decide(word, &self.plain_view(head), time, window, n),
            };
            match seen {
                Ok(decision) => return decision,
                Err(newer) => word = newer,
            }
        }
    }

    /// Like [`decide`](LogState::decide), by the slot of the version.
    #[cold]
    #[inline(never)]
    fn decide_by_slot(
        &self,
        back: &GiveBack,
        word: u128,
        time: Stamp,
        window: &Window,
        n: u32,
    ) -> Result<Result<LogCharge, Stamp>, u128> {
        let view = self.view_slot(back, Head::decode(word), time, window);
        self.decide(word, &view, time, window, n)
    }

    /// Takes `n` entries or refuses them, by a view. The error is the newer head if the head is not
    /// the one of the view; it may also fail spuriously.
    #[inline(always)]
    fn decide(
        &self,
        word: u128,
        view: &View,
        time: Stamp,
        window: &Window,
        n: u32,
    ) -> Result<Result<LogCharge, Stamp>, u128> {
        let oldest = self.behind(view, window.limit - n + 1 + view.credits.sum);
        if end(oldest, window) <= time {
            return self.take_by_view(word, view, time, n).map(Ok);
        }
        let no_credits = view.credits.sum == 0;
        let free_at = if no_credits { end(oldest, window) } else { self.free_at(view, window, n) };
        // A refusal makes no CAS, so it checks the head again (3).
        match self.head.load(Ordering::Acquire) {
            same if same == word => {
                if view.credits.left_out >= MANY {
                    self.publish(&view.credits);
                }
                Ok(Err(free_at))
            }
            newer => Err(newer),
        }
    }

    /// Takes `n` entries that are free by a view, if the head is still the one of that view.
    /// Otherwise the error is the newer head; it may also fail spuriously. Always inlined, so that
    /// a charge is not copied.
    #[inline(always)]
    fn take_by_view(&self, word: u128, view: &View, time: Stamp, n: u32) -> Result<LogCharge, u128> {
        let head = view.head;
        if !self.publish(&view.credits) {
            // The slot has other credits now, so the head has changed, too. Acquire: as (1).
            return Err(self.head.load(Ordering::Acquire));
        }
        // Help before the CAS: the next head does not hold the time of the last grant (5).
        self.help(head);
        let next = self.entry(head.ring, head.index);
        // Acquire: a time that is newer than this grant comes with a newer head, so 6 fails.
        let there = next.load(Ordering::Acquire);
        let floored = head.floored && view.valid + n < self.len() - 1;
        let credited = view.credits.sum > 0;
        let new = Head { index: self.after(head.index, n), n, time, floored, credited, ..head };
        self.exchange_word(word, new)?;
        // One entry needs no second check of the head: the CAS was that check. If the CAS of the
        // entry fails, a helper may have written the entry, and `help` finds out. Release: as in
        // `write`. Relaxed on failure: `help` loads the entry again.
        let written = n == 1
            && (there >= time
                || next.compare_exchange(there, time, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        if !written {
            self.help(new);
        }
        Ok(LogCharge { time, n, next: new.index, version: new.version })
    }

    /// Takes the entries that are free at `now` beyond `permits`. Returns how many it took.
    pub(super) fn keep_at_most(&self, now: Stamp, window: &Window, permits: u64) -> u32 {
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        // Acquire: as in `head` (1).
        let mut word = self.head.load(Ordering::Acquire);
        loop {
            let head = Head::decode(word);
            let time = now.max(head.time);
            let view = self.view(head, time, window);
            let free = window.limit.saturating_sub(self.taken(&view, time, window));
            word = match free.saturating_sub(permits) {
                // No CAS is made, so check the head again (3).
                0 => match self.head.load(Ordering::Acquire) {
                    same if same == word => return 0,
                    newer => newer,
                },
                n => match self.take_by_view(word, &view, time, n) {
                    Ok(_) => return n,
                    Err(newer) => newer,
                },
            };
        }
    }

    /// Publishes which credits are over. Fails if the credits have changed meanwhile.
    #[inline]
    fn publish(&self, credits: &Credits) -> bool {
        credits.left_out == 0 || self.back.get().is_none_or(|back| back.publish(credits))
    }

    /// Writes the times of the last grant, as far as they are not written, from the last to the
    /// first.
    #[inline]
    pub(crate) fn help(&self, head: Head) {
        let first = self.entry(head.ring, self.before(head.index, head.n));
        // Without a last grant this is the next entry, which does not matter. Acquire: the first
        // entry is written last, so its time shows that the other entries are written.
        if head.n > 0 && first.load(Ordering::Acquire) < head.time {
            self.write(head);
        }
    }

    #[inline(never)]
    fn write(&self, head: Head) {
        for steps in 1..=head.n {
            let entry = self.entry(head.ring, self.before(head.index, steps));
            // Acquire, and before the check of the head: a newer time shows the head that wrote it.
            let mut there = entry.load(Ordering::Acquire);
            while there < head.time {
                if self.head() != head {
                    // The thread that replaced the head has written this grant, and the entry may
                    // belong to a newer grant by now.
                    return;
                }
                // Release: a thread that reads this time sees the head that holds it. Acquire on
                // failure: as for the load.
                match entry.compare_exchange(there, head.time, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break,
                    Err(other) => there = other,
                }
            }
        }
    }
}

/// Returns when a grant of this time stops counting. Zero, and the number of a copy, is over: no
/// window is longer than the first stamp.
#[inline]
pub(super) fn end(time: Stamp, window: &Window) -> Stamp {
    time.saturating_add(window.length)
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use crate::policy::window::log::LogCharge;
    use crate::policy::{Policy, SlidingLog};
    use crate::rate::Rate;
    use crate::time::Nanos;

    /// A refusal once walked past all of them again and again.
    #[test]
    fn a_refusal_forgets_many_undone_permits_that_are_over() {
        let log = SlidingLog::new("200/1000ns".parse::<Rate>().expect("a rate"));
        let state = log.start(Nanos::ZERO);
        let take = |nanos, n| log.try_acquire(&state, Nanos::new(nanos), n);
        let charges: Vec<_> = (1..=200).map(|nanos| take(nanos, 1).expect("room")).collect();
        for charge in charges.into_iter().step_by(5) {
            log.undo(&state, Nanos::new(200), charge, u64::MAX);
        }
        let kept = || state.give_back().credits(state.head().version).sum;
        assert_eq!(kept(), 40);
        take(1001 + 5 * 31, 200).expect_err("not all are over");
        assert_eq!(kept(), 40 - 32);
        // A few are left to the next request that is granted.
        take(1001 + 5 * 35, 200).expect_err("not all are over");
        assert_eq!(kept(), 40 - 32);
    }

    /// A taker once stalled between the head and the slot, while the ring was copied. It then left
    /// out credits of a later version by the links of the ring before, and that version kept a
    /// wrong sum: 5 permits too many were granted.
    #[test]
    fn a_taker_leaves_out_no_credits_of_a_later_version() {
        let log = SlidingLog::new("100/1000ns".parse::<Rate>().expect("a rate"));
        let state = log.start(Nanos::ZERO);
        let try_take = |nanos, n| log.try_acquire(&state, Nanos::new(nanos), n);
        let take = |nanos, n| try_take(nanos, n).expect("room");
        let undo = |nanos, charge, n| {
            log.undo(&state, Nanos::new(nanos), LogCharge { n, ..charge }, u64::MAX);
        };
        take(1, 45);
        undo(2, take(2, 5), 5);
        let charge = take(1500, 60);
        undo(1500, charge, 10);
        let stalled = state.head();
        undo(1500, charge, 30);
        assert_ne!(state.head().ring, stalled.ring, "the copy is in force");
        undo(1500, charge, 10);
        let back = state.give_back();
        assert_eq!(state.head().version, stalled.version + 2, "the slot of an even version");
        assert_eq!(back.credits(stalled.version).sum, 10);
        let decision = state.decide_by_slot(back, stalled.encode(), stalled.time, &log.window(), 1);
        decision.expect_err("the head has changed");
        assert_eq!(back.credits(stalled.version).sum, 10, "as the last giver-back wrote it");
        take(2000, 10);
        take(2501, 90);
        try_take(2501, 1).expect_err("the limit");
    }

    /// With a flag in the head, each decision reads the slot of its version, too.
    #[test]
    fn the_flags_of_a_head_fall_when_they_say_nothing_more() {
        let log = SlidingLog::new("2/10ns".parse::<Rate>().expect("a rate"));
        let state = log.start(Nanos::ZERO);
        let take = |nanos| log.try_acquire(&state, Nanos::new(nanos), 1).expect("room");
        log.undo(&state, Nanos::new(1), take(1), u64::MAX);
        assert!(state.head().credited);
        take(11);
        assert!(!state.head().credited, "the undone permit is over");
        log.refund(&state, Nanos::new(11), 1);
        for lap in 1..state.len() {
            assert!(state.head().floored);
            take(11 + 10 * u64::from(lap));
        }
        assert!(!state.head().floored, "each entry was taken anew");
    }
}
