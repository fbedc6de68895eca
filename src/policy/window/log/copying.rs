//! Copies of a log's ring, in slices: each undone permit pays for some entries.
//!
//! # Protocol
//!
//! A copy begins when more than half of the spare entries are used. Each giver-back then fills or
//! copies [`SLICE`] entries for each permit that it undoes, under the lock of the books. Takers
//! continue in the first ring meanwhile. No taker reads the second ring before a head of that ring
//! is in force.
//!
//! | step | what | if a taker or another giver-back comes in between |
//! |---|---|---|
//! | 1 fill | all entries of the second ring show the number of the copy, which is below all times | nothing is lost |
//! | 2 copy | the entries that count, from the oldest on, except some that are over; of each time the undone entries are left out | more entries have to be copied; a permit undone later is left out, or, if its time was copied, is also a credit in the second ring |
//! | 3 switch | all is copied up to the head: one CAS of that head | the CAS fails, and 2 continues |
//!
//! Takers take again only entries that are over. So the copy passes over the oldest of them, before
//! takers reach them. It keeps the others, because entries that are over count again in a longer
//! window: as many as the room has, and nearly as many more as there are spare entries. If more
//! permits than that are undone later, a longer window misses permits that were over. So it does
//! with the others of a time if some were taken again: `give_back.rs` explains why. A copy is
//! given up if an entry was taken again while it was read. A refund, a reset and a debit also give
//! it up, because they change which entries count.
//!
//! # Why a copy is ready in time
//!
//! All entries that count were granted and undone within one window. In a window at most one ring
//! is taken, so at most three rings have to be filled and copied: one to fill, one to copy, and one
//! for the entries that are taken meanwhile. Half of the spare entries is an 18th of a ring: 54
//! entries for each permit are enough. If debits and refunds gave a copy up, it may not be ready:
//! then one giver-back makes it in one pass, as it also does if one grant has more permits than
//! there are spare entries. It keeps all entries first. If other calls take permits meanwhile, it
//! makes the copy again without the entries that are over: a longer window then counts too few of
//! these.

use crate::policy::window::log::give_back::{Book, Books, Credit, Credits, GiveBack, Next};
use crate::policy::window::log::head::Head;
use crate::policy::window::log::state::{LogState, View, end};
use crate::policy::window::{Stamp, Window};
use crate::sync::Ordering;

/// The number of entries that are filled or copied for each undone permit. At least 54: see above.
const SLICE: u32 = if cfg!(all(test, tidegate_loom)) { 4 } else { 64 };

/// A copy that is being made.
#[derive(Debug)]
pub(super) struct Copying {
    /// The number of entries at the start of the second ring that are not filled yet.
    unfilled: u32,
    /// The head of the ring that is copied.
    seen: Head,
    /// How many entries behind that head are not copied yet.
    pending: u32,
    /// The index where the next copied entry goes.
    to: u32,
    /// How many entries were copied, at most a ring.
    copied: u32,
    /// The time of the last entry that was copied or left out. No entry of a later time was copied
    /// or left out.
    time: Stamp,
    /// The permits that were undone after they were copied, in the second ring.
    book: Book,
}

impl Copying {
    /// Records that permits of a time were undone. The copied ones become credits in the second
    /// ring.
    pub(super) fn undone(&mut self, state: &LogState, back: &GiveBack, time: Stamp, n: u32) {
        if time > self.time {
            return;
        }
        let ring = !self.seen.ring;
        // Counts the newest entries that are of that time or later: the first entry of that time is
        // there, or will be at the end.
        let (mut low, mut high) = (0, self.copied);
        while low < high {
            let middle = low.midpoint(high);
            // Only the holder of the books writes the second ring, so it does not change meanwhile,
            // and the lock of the books orders this load.
            let there = state.entry(ring, state.before(self.to, middle + 1)).load(Ordering::Acquire);
            if there >= time { low = middle + 1 } else { high = middle }
        }
        let index = state.before(self.to, low);
        self.book.add(back.links(ring), time, Credit { index, n });
    }
}

impl LogState {
    /// Copies for `n` undone permits, if a copy is due, and as far as necessary if there is no
    /// spare entry left. Returns whether the head continues in the other ring, with all that the
    /// book has.
    pub(super) fn continue_copy(
        &self,
        back: &GiveBack,
        books: &mut Books,
        n: u32,
        head: Head,
        valid: u32,
        window: &Window,
    ) -> bool {
        let full = books.book.sum > self.spare();
        // Without the undone entries there would be too many again: a new copy leaves out more.
        if full && books.copying.as_ref().is_some_and(|copying| copying.book.sum > self.spare()) {
            books.copying = None;
        }
        if books.copying.is_none() {
            if books.book.undone() <= self.spare() / 2 {
                return false;
            }
            books.copies += 1;
            books.copying = Some(Copying {
                unfilled: self.len(),
                seen: head,
                pending: valid,
                to: 0,
                copied: 0,
                time: books.copies,
                book: Book::default(),
            });
        }
        let number = if full { u32::MAX } else { n.saturating_mul(SLICE) };
        // A few entries less than there are, so that not every taker comes in between.
        let most = match full {
            false => self.len() - 1 - self.spare() / 8,
            true if books.copy_failed => 0,
            true => self.len() - 1,
        };
        let copied = self.copy(books, number, most, window);
        books.copy_failed = full && !copied;
        if !copied {
            books.copying = None;
            return false;
        }
        let Some(copying) = &mut books.copying else { return false };
        let (head, ring) = (copying.seen, !copying.seen.ring);
        let ready = copying.unfilled == 0 && copying.pending == 0;
        let next = ready.then_some(copying.to);
        copying.book.part(self, back, ring, window, head.time, next);
        let (first, sum) = (copying.book.first(), copying.book.sum);
        let next = Next { index: copying.to, valid: self.len() - 1, n: 0, time: head.time, ring, first, sum };
        // The entries that were taken again showed times that were over, at most this one. Acquire,
        // like each load of an entry: if this one was taken again, the head has changed.
        let ahead = self.entry(head.ring, head.index).load(Ordering::Acquire);
        let expected = if end(ahead, window) <= head.time { ahead } else { ahead - 1 };
        if !ready || sum > self.spare() || !self.install(back, head, &next) {
            return false;
        }
        books.expected = books.expected.max(expected);
        if let Some(copying) = books.copying.take() {
            books.old = std::mem::replace(&mut books.book, copying.book).credits;
        }
        true
    }

    /// Fills and copies `number` entries. Of the entries that are over it copies only the newest:
    /// at most `most` together with all that count. Fails if an entry was taken again while it was
    /// read.
    fn copy(&self, books: &mut Books, mut number: u32, most: u32, window: &Window) -> bool {
        let Some(copying) = &mut books.copying else { return false };
        let ring = copying.seen.ring;
        while copying.unfilled > 0 && number > 0 {
            copying.unfilled -= 1;
            number -= 1;
            // Release, like each store here: the switch publishes the ring as a whole.
            self.entry(!ring, copying.unfilled).store(books.copies, Ordering::Release);
        }
        if !self.catch_up(copying, most, books.expected, window) {
            return false;
        }
        let (unread, book) = (copying.pending, &books.book);
        let over = book.expired.partition_point(|(time, _)| *time <= copying.time);
        let mut undone = book
            .expired
            .range(over..)
            .map(|(time, credit)| (*time, credit.n))
            .chain(book.credits.range(copying.time + 1..).map(|(time, credit)| (*time, credit.n)))
            .peekable();
        while copying.pending > 0 && number > 0 {
            number -= 1;
            let index = self.before(copying.seen.index, copying.pending);
            // A taker may take this entry again meanwhile. Acquire: its time shows the head with
            // which the entry was taken, and `taken_since` below detects that.
            let time = self.entry(ring, index).load(Ordering::Acquire);
            if time > copying.time {
                copying.time = time;
                while undone.next_if(|(older, _)| *older < time).is_some() {}
                if let Some((_, n)) = undone.next_if(|(same, _)| *same == time) {
                    copying.pending -= n.min(copying.pending);
                    continue;
                }
            }
            copying.pending -= 1;
            // The other entries were never granted.
            if time > books.copies {
                // Release: as in the filling above.
                self.entry(!ring, copying.to).store(time, Ordering::Release);
                copying.to = self.after(copying.to, 1);
                copying.copied = (copying.copied + 1).min(self.len() - 1);
            }
        }
        // An entry that was taken again while it was read is newer than it should be.
        self.all_there(copying.seen, unread)
    }

    /// Returns whether none of the `n` entries behind an older head was taken again.
    fn all_there(&self, seen: Head, n: u32) -> bool {
        self.taken_since(seen).is_some_and(|(_, taken)| n + taken < self.len())
    }

    /// Reads the head, for what was taken since. Passes over entries that are over, because takers
    /// take them again, except the newest of them, `most` entries together with all that count: in
    /// a longer window they may count again. Fails if entries that count may have been taken again.
    fn catch_up(&self, copying: &mut Copying, most: u32, expected: Stamp, window: &Window) -> bool {
        let seen = self.taken_since(copying.seen);
        seen.is_some_and(|seen| self.catch_up_to(copying, seen, most, expected, window))
    }

    /// Continues with a head, when `taken` entries were taken since. Takers may take entries again
    /// while this reads them. [`copy`](LogState::copy) detects that for the entries that it copies.
    /// So the first entry to copy determines how many entries are passed over, and the time of the
    /// copy.
    fn catch_up_to(
        &self,
        copying: &mut Copying,
        (head, taken): (Head, u32),
        most: u32,
        expected: Stamp,
        window: &Window,
    ) -> bool {
        let valid = (copying.pending + taken).min(self.len() - 1);
        let view = View { head, valid, credits: Credits::NONE };
        // All permits of a time or none, so that its undone permits need not be distinguished from
        // the others.
        let mut passed = 0;
        if valid > most {
            passed = self.count(&view, 0, |there| end(there, window) <= head.time).min(valid - most);
            if passed < valid {
                let kept = self.behind(&view, valid - passed);
                passed = passed.min(self.count(&view, 0, |there| there < kept));
            }
        }
        // A writer that stalls finds no time that it expects.
        let is_expected = |there| there <= expected && end(there, window) <= head.time;
        passed = passed.max(self.count(&view, 0, is_expected));
        if valid < copying.pending + taken {
            // The oldest entries were taken again, perhaps some of the entries of one time. Then
            // that time is over, unless the window has become longer since.
            let first = self.behind(&view, valid);
            if end(first, window) <= head.time {
                passed = passed.max(self.count(&view, 0, |there| there <= first));
            } else if passed == 0 {
                return false;
            }
        }
        if passed > 0 {
            copying.time = copying.time.max(self.behind(&view, valid - passed).saturating_sub(1));
        }
        copying.seen = head;
        copying.pending = valid - passed;
        true
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::{Copying, SLICE};
    use crate::policy::window::log::LogCharge;
    use crate::policy::window::log::give_back::Book;
    use crate::policy::{Policy, SlidingLog};
    use crate::rate::Rate;
    use crate::sync::{Ordering, lock};
    use crate::time::Nanos;

    /// Each grant once made the copy restart, so that one giver-back made it in one pass when no
    /// spare entry was left: 8 to 12 ms at a limit of a million.
    #[test]
    fn a_copy_is_complete_before_the_spare_entries_are_used() {
        // In the shorter window, one permit is over for each permit that is granted.
        let cases = [(3_600_000_000_000, 20), (3_600_000_000_000, 5_000), (10_000, 5_000)];
        for (length, outstanding) in cases {
            let rate = Rate::new(10_000, Duration::from_nanos(length)).expect("whole");
            let log = SlidingLog::new(rate);
            let state = log.start(Nanos::ZERO);
            let (mut charges, mut most) = (Vec::new(), 0);
            for nanos in 0..40_000 {
                let at = Nanos::new(nanos);
                charges.push(log.try_acquire(&state, at, 1).expect("room"));
                if charges.len() > outstanding {
                    let index = usize::try_from(nanos * 48271).expect("small") % charges.len();
                    log.undo(&state, at, charges.swap_remove(index), u64::MAX);
                    most = most.max(lock(&state.give_back().books).book.sum);
                }
            }
            assert!(lock(&state.give_back().books).copies > 10);
            assert!(most < state.spare(), "{most} of {} with {outstanding}", state.spare());
        }
    }

    /// A giver-back holds the lock for a time that is bounded by the number of its permits.
    #[test]
    fn each_undone_permit_fills_or_copies_a_slice() {
        let log = SlidingLog::new(Rate::per_hour(10_000));
        let state = log.start(Nanos::ZERO);
        let take = |nanos| log.try_acquire(&state, Nanos::new(nanos), 1).expect("room");
        let charges: Vec<_> = (1..=10_000).map(take).collect();
        let mut left = Vec::new();
        for charge in charges {
            log.undo(&state, Nanos::new(10_000), charge, u64::MAX);
            let books = lock(&state.give_back().books);
            match &books.copying {
                Some(copying) => left.push((copying.unfilled, copying.pending)),
                None if left.is_empty() => {}
                None => break,
            }
        }
        assert_eq!(left[0].0, state.len() - SLICE);
        for (before, after) in left.iter().zip(&left[1..]) {
            assert_eq!((before.0 + before.1) - (after.0 + after.1), SLICE);
        }
    }

    /// A log of 100 permits remembers at least this many of the last ones, undone or not: its 176
    /// entries except an eighth of the spare ones, and except those for requests of up to five
    /// permits that lose their last one.
    const REMEMBERED: u32 = 155;

    /// Returns how many permits are available when permits that are over count again in a longer
    /// window. One call undoes half of the limit, which copies the ring.
    fn available_in_a_longer_window(over: u64, undone: usize) -> u64 {
        let rate = |length| Rate::new(100, Duration::from_nanos(length)).expect("whole");
        let log = SlidingLog::new(rate(1000));
        let state = log.start(Nanos::ZERO);
        let take = |nanos, n| log.try_acquire(&state, Nanos::new(nanos), n).expect("room");
        let charges: Vec<_> = (1..=over).map(|nanos| take(nanos, 1)).collect();
        for charge in charges.into_iter().rev().take(undone) {
            log.undo(&state, Nanos::new(over), charge, u64::MAX);
        }
        (1101..=1150).map(|nanos| take(nanos, 1)).for_each(drop);
        let (half, now) = (take(1151, 50), Nanos::new(1151));
        log.undo(&state, now, half, u64::MAX);
        assert!(state.head().ring, "the copy is in force");
        assert_eq!(log.status(&state, now).available, 50);
        log.set_rate(&state, now, rate(3000));
        log.status(&state, now).available
    }

    /// A copy once took the new time of such an entry for the time of the first entry to keep. It
    /// passed over all permits, and a whole limit more was granted.
    #[test]
    fn a_copy_fails_if_its_first_entry_is_taken_again_after_the_head_was_read() {
        let log = SlidingLog::new("100/1000ns".parse().expect("a rate"));
        let state = log.start(Nanos::ZERO);
        let take = |nanos, n| log.try_acquire(&state, Nanos::new(nanos), n).expect("room");
        (1..=100).chain(1101..=1176).map(|nanos| take(nanos, 1)).for_each(drop);
        let (seen, valid) = (state.head(), state.len() - 1);
        let book = Book::default();
        let mut copying = Copying { unfilled: 0, seen, pending: valid, to: 0, copied: 0, time: 1, book };
        take(1177, 20);
        let caught_up = state.catch_up_to(&mut copying, (seen, 0), valid - 9, 0, &log.window());
        assert!(caught_up && !state.all_there(copying.seen, copying.pending), "{copying:?}");
    }

    /// The second copy once put the time of permits that were over into the entry of the taker.
    #[test]
    fn a_taker_that_stalls_for_two_copies_writes_nothing() {
        let log = SlidingLog::new("100/1000ns".parse().expect("a rate"));
        let state = log.start(Nanos::ZERO);
        let take = |nanos, n| log.try_acquire(&state, Nanos::new(nanos), n).expect("room");
        take(1, 100);
        let charge = take(1101, state.len() - 100);
        let there = state.entry(false, 0).load(Ordering::Acquire);
        let time = take(1102, 1).time;
        log.undo(&state, Nanos::new(1102), charge, u64::MAX);
        assert!(state.head().ring, "the copy is in force");
        log.undo(&state, Nanos::new(1103), take(1103, 50), u64::MAX);
        assert!(!state.head().ring, "the copy is in force");
        let write = state.entry(false, 0).compare_exchange(there, time, Ordering::AcqRel, Ordering::Relaxed);
        write.expect_err("another time is there");
        assert_eq!(log.status(&state, Nanos::new(1103)).available, 99);
    }

    /// Such a copy once passed over everything that was over.
    #[test]
    fn a_copy_in_one_pass_keeps_permits_that_are_over() {
        let rate = |length| Rate::new(100, Duration::from_nanos(length)).expect("whole");
        let log = SlidingLog::new(rate(1000));
        let state = log.start(Nanos::ZERO);
        let take = |nanos, n| log.try_acquire(&state, Nanos::new(nanos), n).expect("room");
        (1..=40).map(|nanos| take(nanos, 1)).for_each(drop);
        let now = Nanos::new(1101);
        for ring in [true, false] {
            log.undo(&state, now, take(1101, 100), u64::MAX);
            assert_eq!(state.head().ring, ring, "the copy is in force");
        }
        log.set_rate(&state, now, rate(3000));
        assert_eq!(log.status(&state, now).available, 60);
    }

    /// Permits that are undone after they were copied use entries in the second ring.
    #[test]
    fn a_copy_with_too_many_undone_permits_is_made_anew() {
        let log = SlidingLog::new(Rate::per_hour(1000));
        let (state, now) = (log.start(Nanos::ZERO), Nanos::new(3));
        let undo = |charge, n| log.undo(&state, now, LogCharge { n, ..charge }, u64::MAX);
        let [first, second] = [(1, 700), (2, 300)]
            .map(|(nanos, n)| log.try_acquire(&state, Nanos::new(nanos), n).expect("room"));
        undo(second, state.spare() / 2);
        for _ in 0..25 {
            undo(first, 1);
        }
        let in_second_ring =
            || lock(&state.give_back().books).copying.as_ref().map(|copying| copying.book.sum);
        assert!(in_second_ring().is_some_and(|sum| sum > 0), "a part is copied");
        undo(first, 300);
        assert_eq!(in_second_ring(), None);
        assert_eq!(log.status(&state, now).available, 300 + 25 + u64::from(state.spare() / 2));
    }

    proptest! {
        /// A slow model keeps each grant.
        #[test]
        fn no_permit_is_lost_or_found_by_copies(
            acts in vec((0..60u64, 1..60u32, 0..4u8, any::<prop::sample::Index>()), 1..1000),
        ) {
            let log = SlidingLog::new("100/1000ns".parse().expect("a rate"));
            let state = log.start(Nanos::ZERO);
            let (mut now, mut charges) = (1, Vec::new());
            for (passed, n, kind, which) in acts {
                now += passed;
                let at = Nanos::new(now);
                if kind > 0 {
                    let n = if kind == 1 { n } else { n % 4 + 1 };
                    charges.extend(log.try_acquire(&state, at, n).map(|charge| (charge, now, n)));
                } else if !charges.is_empty() {
                    let last = charges.len().min(10);
                    let (charge, ..) = charges.remove(charges.len() - 1 - which.index(last));
                    log.undo(&state, at, charge, u64::MAX);
                }
                charges.retain(|(_, at, _)| at + 1000 > now);
                let used: u32 = charges.iter().map(|(_, _, n)| *n).sum();
                prop_assert_eq!(log.status(&state, at).available, u64::from(100 - used));
            }
        }

        /// A slow model keeps each grant. Undone permits that were over once did not count as
        /// entries that the ring needs, so grants next to them were forgotten.
        ///
        /// A grant with [`REMEMBERED`] permits after it may be forgotten. If enough of these are
        /// undone later, a longer window misses it.
        #[test]
        fn a_longer_window_counts_all_permits_that_were_not_undone(
            acts in vec((1..100u64, 0..6u32, any::<prop::sample::Index>()), 1..2000), length in 1000..200_000u64,
        ) {
            let rate = |length| Rate::new(100, Duration::from_nanos(length)).expect("whole");
            let log = SlidingLog::new(rate(1000));
            let state = log.start(Nanos::ZERO);
            let (mut now, mut taken, mut granted, mut charges) = (1, 0, Vec::new(), Vec::new());
            for (passed, n, which) in acts {
                now += passed;
                if n > 2 {
                    if let Ok(charge) = log.try_acquire(&state, Nanos::new(now), n) {
                        taken += n;
                        charges.push((charge, now, n, taken));
                    }
                } else if !charges.is_empty() {
                    let last = charges.len().min(10);
                    let (charge, at, n, number) = charges.remove(charges.len() - 1 - which.index(last));
                    log.undo(&state, Nanos::new(now), charge, u64::MAX);
                    if at + 1000 <= now {
                        granted.push((at, n, number));
                    }
                }
            }
            granted.extend(charges.into_iter().map(|(_, at, n, number)| (at, n, number)));
            log.set_rate(&state, Nanos::new(now), rate(length));
            let used = |from: u32| {
                let counts = granted.iter().filter(|(at, _, number)| at + length > now && *number >= from);
                u64::from(counts.map(|(_, n, _)| *n).sum::<u32>().min(100))
            };
            let available = log.status(&state, Nanos::new(now)).available;
            prop_assert!(available >= 100 - used(0), "{} permits are lost", 100 - used(0) - available);
            let most = 100 - used(taken.saturating_sub(REMEMBERED));
            prop_assert!(available <= most, "{} permits are granted twice", available - most);
        }
    }

    #[test]
    fn a_copy_keeps_as_many_permits_that_are_over_as_the_room_has() {
        assert_eq!(available_in_a_longer_window(100, 0), 0);
    }

    #[test]
    fn a_copy_leaves_out_undone_permits_that_are_over() {
        assert_eq!(available_in_a_longer_window(50, 1), 1);
    }
}
