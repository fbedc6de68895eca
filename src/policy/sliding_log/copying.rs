//! Copies of a log's ring, in slices: each undone permit pays for some places.
//!
//! # Protocol
//!
//! A copy begins when more than half of the spare places are used. Each giver-back then fills or
//! copies [`SLICE`] places for each permit that it undoes, under the lock of the books. Takers go
//! on in the first ring meanwhile. No taker looks at the second ring before a head of that ring is
//! in force.
//!
//! | step | what | if a taker or another giver-back comes in between |
//! |---|---|---|
//! | 1 fill | all places of the second ring show the number of the copy, which is below all times | nothing is lost |
//! | 2 copy | the places that count, from the oldest on; of each time the undone ones are left out | more places are to be copied; a permit undone later is left out, or, if its time was copied, is a credit in the second ring too |
//! | 3 switch | all is copied up to the head: one exchange of that head | the exchange fails, and 2 goes on |
//!
//! A copy is given up if its next place was taken anew: then all that it has is older than a lap. A
//! refund, a reset and a debit give it up too, since they change which places count.
//!
//! # Why a copy is ready in time
//!
//! What counts was granted and undone within one window. In it at most a ring is taken, so that at
//! most three rings are to be filled and copied: one to fill, one to copy, and one for what is
//! taken meanwhile. Half of the spare places is an 18th of a ring: 54 places for each permit are
//! enough. If debits and refunds gave a copy up, it may not be ready: then one giver-back makes it
//! in one pass, as it does if one grant has more permits than there are spare places.

use crate::policy::sliding_log::give_back::{Book, Books, Credit, GiveBack, Next};
use crate::policy::sliding_log::head::Head;
use crate::policy::sliding_log::state::LogState;
use crate::policy::window::{Stamp, Window};
use crate::sync::Ordering;

/// How many places are filled or copied for each undone permit. At least 54: see above.
const SLICE: u32 = if cfg!(all(test, tidegate_loom)) { 4 } else { 64 };

/// A copy that is being made.
#[derive(Debug)]
pub(super) struct Copying {
    /// The first so many places of the second ring are not filled yet.
    unfilled: u32,
    /// A head, and how many places behind it are not copied yet.
    seen: Head,
    pending: u32,
    /// Where the next copied place goes, and how many were copied, at most a ring.
    to: u32,
    copied: u32,
    /// The time of the last place that was copied or left out. Of a later time nothing was.
    time: Stamp,
    /// What was undone after it was copied, in the second ring.
    book: Book,
}

impl Copying {
    /// Permits of a time were undone. Those that were copied are credits in the second ring.
    pub(super) fn undone(&mut self, state: &LogState, back: &GiveBack, time: Stamp, n: u32) {
        if time > self.time {
            return;
        }
        let ring = !self.seen.ring;
        // How many of the newest places are of that time or later: the first one of it is there, or
        // will be at the end.
        let (mut low, mut high) = (0, self.copied);
        while low < high {
            let middle = low.midpoint(high);
            let there = state.place(ring, state.before(self.to, middle + 1)).load(Ordering::Acquire);
            if there >= time { low = middle + 1 } else { high = middle }
        }
        let place = state.before(self.to, low);
        self.book.add(back.links(ring), time, Credit { place, n });
    }
}

impl LogState {
    /// Copies for `n` undone permits, if it is time to, and as far as it must be if there is no
    /// spare place left. Returns whether the head goes on in the other ring, with all that the book
    /// has.
    pub(super) fn go_on_copying(
        &self,
        back: &GiveBack,
        books: &mut Books,
        n: u32,
        head: Head,
        valid: u32,
        window: &Window,
    ) -> bool {
        let full = books.book.sum > self.spare();
        // Without the undone places there would be too many again: a new copy leaves out more.
        if full && books.copying.as_ref().is_some_and(|copying| copying.book.sum > self.spare()) {
            books.copying = None;
        }
        if books.copying.is_none() {
            if books.book.sum <= self.spare() / 2 {
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
        let places = if full { u32::MAX } else { n.saturating_mul(SLICE) };
        if !self.copy(books, places) {
            books.copying = None;
            return false;
        }
        let Some(copying) = &mut books.copying else { return false };
        let (head, ring) = (copying.seen, !copying.seen.ring);
        let ready = copying.unfilled == 0 && copying.pending == 0;
        let next = ready.then_some(copying.to);
        copying.book.part(self, back, ring, window, head.time, next);
        let (first, sum) = (copying.book.first(), copying.book.sum);
        let next = Next { place: copying.to, valid: self.len() - 1, n: 0, time: head.time, ring, first, sum };
        if !ready || sum > self.spare() || !self.install(back, head, &next) {
            return false;
        }
        if let Some(copying) = books.copying.take() {
            books.old = std::mem::replace(&mut books.book, copying.book).credits;
        }
        true
    }

    /// Fills and copies so many places. Fails if a place that is not copied yet was taken anew.
    fn copy(&self, books: &mut Books, mut places: u32) -> bool {
        let Some(copying) = &mut books.copying else { return false };
        let ring = copying.seen.ring;
        while copying.unfilled > 0 && places > 0 {
            copying.unfilled -= 1;
            places -= 1;
            self.place(!ring, copying.unfilled).store(books.copies, Ordering::Release);
        }
        if !self.catch_up(copying) {
            return false;
        }
        let (unread, book) = (copying.pending, &books.book);
        let over = book.over.partition_point(|(time, _)| *time <= copying.time);
        let mut undone = book
            .over
            .range(over..)
            .map(|(time, credit)| (*time, credit.n))
            .chain(book.credits.range(copying.time + 1..).map(|(time, credit)| (*time, credit.n)))
            .peekable();
        while copying.pending > 0 && places > 0 {
            places -= 1;
            let place = self.before(copying.seen.place, copying.pending);
            let time = self.place(ring, place).load(Ordering::Acquire);
            if time > copying.time {
                copying.time = time;
                while undone.next_if(|(older, _)| *older < time).is_some() {}
                if let Some((_, n)) = undone.next_if(|(same, _)| *same == time) {
                    copying.pending -= n.min(copying.pending);
                    continue;
                }
            }
            copying.pending -= 1;
            // Others were never granted.
            if time > books.copies {
                self.place(!ring, copying.to).store(time, Ordering::Release);
                copying.to = self.after(copying.to, 1);
                copying.copied = (copying.copied + 1).min(self.len() - 1);
            }
        }
        // A place that was taken anew while it was read is newer than it should be.
        self.taken_since(copying.seen).is_some_and(|(_, taken)| unread + taken < self.len())
    }

    /// Looks at the head, for what was taken since. Fails if a place that is not copied yet was
    /// taken anew.
    fn catch_up(&self, copying: &mut Copying) -> bool {
        let Some((head, taken)) = self.taken_since(copying.seen) else { return false };
        copying.pending += taken;
        copying.seen = head;
        copying.pending < self.len()
    }
}
