//! How a log gives permits back: undone grants, refunds and resets. Debits and copies are also
//! here, because they need this lock.
//!
//! # Credits
//!
//! An undone grant stays in the ring, and becomes a *credit*: a number of permits of its time.
//! While that time counts, a request reads as many entries further back. All undone permits of one
//! time are one credit, at the first entry that shows this time: the first entries of a time are
//! the undone ones. The credits form a list from the oldest to the newest, with one link for each
//! entry, so that a taker leaves out credits that are over without a lock. [`Book`] also has these
//! credits in order of time, to insert a credit between two others in O(log n).
//!
//! # Versions
//!
//! Each change is made under the lock of the book. It writes the floor and the credits of the next
//! version into the slot that the version in force does not use, and then replaces the head by a
//! head of the next version. If a taker replaced the head first, the giver-back does both again. So
//! a request sees the log before the change or after it, wherever a giver-back stalls.
//!
//! | | giver-back | taker | head | slot 0 | slot 1 |
//! |---|---|---|---|---|---|
//! | 1 | undoes a grant of 2: writes slot 1, and stalls | | version 0, index 7 | 3 permits | 5 permits |
//! | 2 | | reads 3 entries further back, takes entry 7 | version 0, index 8 | 3 permits | 5 permits |
//! | 3 | CAS from the head it knows: fails; writes slot 1 again | | version 0, index 8 | 3 permits | 5 permits |
//! | 4 | CAS of the head: succeeds | | version 1, index 8 | 3 permits | 5 permits |
//! | 5 | | reads 5 entries further back, takes entry 8 | version 1, index 9 | 3 permits | 5 permits |
//!
//! A taker that read a slot before it was written for a later version fails in its CAS, and a
//! refusal checks the head again. A taker that stalls between the head and the slot may find a
//! later version there: then the taker leaves the slot as it is. A link is written before the
//! credits that count it: a taker in between leaves out more than it has, and is refused for a
//! moment. If a taker left out credits by a later clock, the next giver-back counts them again if
//! its own clock says so: their entries still exist, because taking one of them again would have
//! raised the time of the head.
//!
//! # Refunds
//!
//! A refund names no grant, and gives back the oldest permits that count: it raises the floor above
//! them. Some of them may be permits of a grant that is undone later. Without that grant the refund
//! would have given back the next oldest permits that were there, if there were any. So the books
//! have the refunds of a window, and such an undoing raises the floor above those permits. A permit
//! that was granted after the refund was not there: the refund may have been for a permit that no
//! longer counted, and then gives nothing back. Entries that are over lie below a raised floor, so
//! they do not count again in a longer window.
//!
//! # Copies
//!
//! A ring has spare entries for an eighth of the room. When half as many permits are undone, a copy
//! to a second ring begins, without the undone permits. `copying.rs` explains how it is made in
//! slices.
//!
//! A writer may stall from the time when a ring was in force until that ring is in force again. It
//! expects the time that its entry showed before: the number of a copy, which no other copy has, or
//! the time of a permit that was over. Copies pass over such times while they are over, so the
//! writer finds another time, and fails. If it found an equal one, there would be a later time
//! between earlier ones: a search for a time would go wrong, and a copy would count undone permits.
//!
//! A copy never passes over permits that count, and two kinds of permits may count although others
//! of their time were taken again: those next to permits that were refunded, or that a debit took,
//! and those that were over in a shorter window. If they come to lie at the index of the writer, it
//! raises the time of one of them. It never lowers any.

use std::collections::{BTreeMap, VecDeque};

use crate::policy::window::log::LogCharge;
use crate::policy::window::log::chunks::Chunks;
use crate::policy::window::log::copying::Copying;
use crate::policy::window::log::head::{Head, LAST, VERSIONS};
use crate::policy::window::log::state::{LogState, View, end};
use crate::policy::window::{Stamp, Window};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// The most refunds that are distinguished.
const MAX_REFUNDS: usize = 1024;

/// The index that means no credit.
pub(super) const NOWHERE: u32 = (1 << 25) - 1;

/// The data for giving back.
#[derive(Debug)]
pub(crate) struct GiveBack {
    /// The meaning of the flags of a head, for an even and for an odd version.
    slots: [Slot; 2],
    /// The ring that the first copy fills.
    pub(super) second: Chunks,
    /// For each entry of each ring, if a credit is there: its permits, and the index of the next
    /// credit.
    links: [Chunks; 2],
    pub(super) books: Mutex<Books>,
}

#[derive(Debug)]
struct Slot {
    /// The first entry that counts.
    floor: AtomicU64,
    /// See [`Credits`].
    credits: AtomicU64,
}

/// The undone permits of one version: 25 bits for the sum, 25 bits for the index of the first, and
/// the version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    first: u32,
    pub(super) sum: u32,
    /// How many credits were left out since they were read.
    pub(super) left_out: u32,
    version: u16,
    /// The word as it was read.
    word: u64,
}

impl Credits {
    pub(super) const NONE: Credits = Credits { first: NOWHERE, sum: 0, left_out: 0, version: 0, word: 0 };

    fn decode(word: u64, version: u16) -> Credits {
        // Each part is as wide as its mask.
        #[allow(clippy::cast_possible_truncation)]
        let (first, sum) = ((word >> 25) as u32 & NOWHERE, word as u32 & NOWHERE);
        Credits { first, sum, left_out: 0, version, word }
    }

    /// Leaves out all credits: the last grant is over, and so all are over.
    pub(super) fn leave_out_all(&mut self) {
        if self.sum > 0 {
            (self.first, self.sum, self.left_out) = (NOWHERE, 0, self.left_out + 1);
        }
    }
}

fn encode(version: u16, first: u32, sum: u32) -> u64 {
    u64::from(version) << 50 | u64::from(first) << 25 | u64::from(sum)
}

/// Permits of one time that were undone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    /// The index of the first entry of that time.
    pub(super) index: u32,
    pub(super) n: u32,
}

/// The undone permits of one ring.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// The credits that count, by their times.
    pub(super) credits: BTreeMap<Stamp, Credit>,
    pub(super) sum: u32,
    /// The credits that are over, oldest first. In a longer window they may count again.
    pub(super) expired: VecDeque<(Stamp, Credit)>,
    pub(super) expired_sum: u32,
}

/// The data that a giver-back needs the lock for.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// The undone permits of the ring that is in force.
    pub(super) book: Book,
    /// The copy that is being made.
    pub(super) copying: Option<Copying>,
    /// Whether the last copy in one pass failed, because other calls took permits meanwhile.
    pub(super) copy_failed: bool,
    /// The credits of the ring before. They are freed a few at a time, because freeing all at once
    /// would take long.
    pub(super) old: BTreeMap<Stamp, Credit>,
    /// The number of copies that were begun.
    pub(super) copies: u64,
    /// The latest time that a writer may expect in an entry, if it stalls since another ring was in
    /// force.
    pub(super) expected: Stamp,
    /// The refunds that gave back permits that may still be those of an outstanding grant, in order
    /// of time.
    refunds: VecDeque<Refunded>,
    /// The time of the last grant before the last reset, and the version that began with the reset.
    /// Grants that were made after the reset may have the same time, and have no older version.
    reset: Option<(Stamp, u16)>,
}

/// Permits that a refund gave back, oldest first.
#[derive(Clone, Copy, Debug)]
struct Refunded {
    /// When they were refunded.
    time: Stamp,
    /// How many entries of that time count that were there then.
    same: u32,
    /// How many permits they are.
    n: u32,
    /// The time of the first of them.
    first: Stamp,
    /// The time of the last of them.
    last: Stamp,
}

impl Refunded {
    /// Adds permits that were refunded at the same time, or at a later one.
    fn widen(&mut self, others: Refunded) {
        self.n = self.n.saturating_add(others.n);
        (self.first, self.last) = (self.first.min(others.first), self.last.max(others.last));
    }
}

impl GiveBack {
    pub(super) fn new(len: u32) -> GiveBack {
        let slot = || Slot { floor: AtomicU64::new(0), credits: AtomicU64::new(0) };
        GiveBack {
            slots: [slot(), slot()],
            second: Chunks::new(len),
            links: [Chunks::new(len), Chunks::new(len)],
            books: Mutex::new(Books::default()),
        }
    }

    fn slot(&self, version: u16) -> &Slot {
        &self.slots[usize::from(version % 2)]
    }

    /// Writes the slot of a version that no head has yet.
    pub(crate) fn prepare(&self, version: u16, floor: u32, first: u32, sum: u32) {
        let slot = self.slot(version);
        // Release: a taker of an older version that reads these words sees a newer head.
        slot.floor.store(floor.into(), Ordering::Release);
        slot.credits.store(encode(version, first, sum), Ordering::Release);
    }

    /// Returns the first entry that counts in a version.
    pub(super) fn floor(&self, version: u16) -> u32 {
        // Acquire: a newer floor comes with a newer head, which 3 or 6 of `state.rs` sees.
        u32::try_from(self.slot(version).floor.load(Ordering::Acquire)).unwrap_or(0)
    }

    pub(super) fn credits(&self, version: u16) -> Credits {
        // Acquire: newer credits come with a newer head, which 3 or 6 sees.
        Credits::decode(self.slot(version).credits.load(Ordering::Acquire), version)
    }

    /// Publishes what was left out. Fails if the credits have changed meanwhile.
    pub(super) fn publish(&self, credits: &Credits) -> bool {
        let Credits { first, sum, version, word, .. } = *credits;
        // Otherwise these are the credits of a later version, perhaps of the other ring, and were
        // left out by the links of this one.
        if word >> 50 != u64::from(version) {
            return false;
        }
        let new = encode(version, first, sum);
        let slot = &self.slot(version).credits;
        // Fails if another taker has published them, or if the slot has a newer version. Release: a
        // taker that reads these credits sees the head by which this one left some out (4). Relaxed
        // on failure: nothing is read after it.
        slot.compare_exchange(word, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(super) fn links(&self, ring: bool) -> &Chunks {
        &self.links[usize::from(ring)]
    }
}

/// Returns how many permits a credit has, and the index of the next credit.
fn link(links: &Chunks, index: u32) -> (u32, u32) {
    let word = links.load(index);
    // Each part is as wide as its mask.
    #[allow(clippy::cast_possible_truncation)]
    ((word >> 25) as u32 & NOWHERE, word as u32 & NOWHERE)
}

fn set_link(links: &Chunks, index: u32, n: u32, next: u32) {
    // Release: a taker of an older head that reads this link sees that its head is outdated.
    links.word(index).store(u64::from(n) << 25 | u64::from(next), Ordering::Release);
}

impl Book {
    pub(super) fn first(&self) -> u32 {
        self.credits.first_key_value().map_or(NOWHERE, |(_, credit)| credit.index)
    }

    /// Adds to the credit of a time.
    pub(super) fn add(&mut self, links: &Chunks, time: Stamp, credit: Credit) {
        let next = self.credits.range(time + 1..).next().map_or(NOWHERE, |(_, next)| next.index);
        let here = self.credits.entry(time).or_insert(Credit { n: 0, ..credit });
        here.n += credit.n;
        self.sum += credit.n;
        let Credit { index, n } = *here;
        // The credit's own link first, and then the link of the credit before it, so that the list
        // is complete at any time.
        set_link(links, index, n, next);
        if let Some((_, last)) = self.credits.range(..time).next_back() {
            set_link(links, last.index, last.n, index);
        }
    }

    /// Separates the credits that count from the credits that are over, and forgets credits whose
    /// entries were taken again. It does so as of the time of the head, because no request is
    /// judged as of an earlier time.
    fn follow(&mut self, state: &LogState, back: &GiveBack, window: &Window, head: Head) {
        self.part(state, back, head.ring, window, head.time, Some(head.index));
    }

    /// Separates the credits as of `now`, in a ring whose entry `next` no longer counts.
    pub(super) fn part(
        &mut self,
        state: &LogState,
        back: &GiveBack,
        ring: bool,
        window: &Window,
        now: Stamp,
        next: Option<u32>,
    ) {
        // Acquire, like each load of an entry. An entry that was taken again shows its newer time
        // here: the head shows all grants but the last, and that grant was written before this
        // call.
        let was_taken = |index: u32, time: Stamp| {
            Some(index) == next || state.entry(ring, index).load(Ordering::Acquire) > time
        };
        // First, so that no credit counts in a window that became longer if its entry was taken
        // again.
        while let Some(first) = self.credits.first_entry()
            && was_taken(first.get().index, *first.key())
        {
            let (time, credit) = first.remove_entry();
            self.sum -= credit.n;
            self.expired_sum += credit.n;
            self.expired.push_back((time, credit));
        }
        self.forget_taken(state, was_taken);
        while let Some((time, credit)) = self.expired.back().copied()
            && end(time, window) > now
        {
            self.expired.pop_back();
            self.expired_sum -= credit.n;
            self.add(back.links(ring), time, credit);
        }
        while let Some(first) = self.credits.first_entry()
            && end(*first.key(), window) <= now
        {
            let (time, credit) = first.remove_entry();
            self.sum -= credit.n;
            self.expired_sum += credit.n;
            self.expired.push_back((time, credit));
        }
        self.forget_taken(state, was_taken);
    }

    /// Forgets credits that are over and whose entries were taken again.
    fn forget_taken(&mut self, state: &LogState, was_taken: impl Fn(u32, Stamp) -> bool) {
        while let Some((time, credit)) = self.expired.front_mut()
            && was_taken(credit.index, *time)
        {
            credit.index = state.after(credit.index, 1);
            credit.n -= 1;
            self.expired_sum -= 1;
            if credit.n == 0 {
                self.expired.pop_front();
            }
        }
    }

    fn clear(&mut self) {
        *self = Book::default();
    }

    /// Returns the undone permits whose entries were not taken again: the ring has this many fewer
    /// entries that show permits that count, or would count in a longer window.
    pub(super) fn undone(&self) -> u32 {
        self.sum + self.expired_sum
    }
}

/// The content of the next version.
pub(super) struct Next {
    pub(super) index: u32,
    /// How many entries behind `index` count.
    pub(super) valid: u32,
    /// How many of them were taken with this version.
    pub(super) n: u32,
    pub(super) time: Stamp,
    pub(super) ring: bool,
    /// The credits: the index of the first, and their sum.
    pub(super) first: u32,
    pub(super) sum: u32,
}

impl LogState {
    /// Returns the head, with the last grant written, what counts by it, and the present time.
    pub(super) fn settled(&self, now: Stamp, window: &Window) -> (View, Stamp) {
        let head = self.head();
        self.help(head);
        let time = now.max(head.time);
        (self.view(head, time, window), time)
    }

    /// Begins the next version, unless the head has changed.
    pub(super) fn install(&self, back: &GiveBack, head: Head, next: &Next) -> bool {
        let new = self.replace(back, head, next);
        new.inspect(|new| self.help(*new)).is_some()
    }

    /// Replaces the head by that of the next version, unless the head has changed.
    fn replace(&self, back: &GiveBack, head: Head, next: &Next) -> Option<Head> {
        let Next { index, valid, n, time, ring, first, sum } = *next;
        let floored = valid < self.len() - 1;
        let new = Head { index, n, time, ring, floored, credited: sum > 0, ..head.next_version() };
        back.prepare(new.version, self.before(index, valid), first, sum);
        loop {
            match self.exchange(head, new) {
                Ok(()) => return Some(new),
                // The CAS may fail spuriously.
                Err(same) if same == head => {}
                Err(_) => return None,
            }
        }
    }

    /// Begins the next version with the credits of the book, which has `n` permits more than
    /// before.
    fn credit(&self, back: &GiveBack, books: &mut Books, n: u32, now: Stamp, window: &Window) {
        // One copy is made per number of undone permits that exceeds half of the credits that it
        // leaves.
        (0..n.saturating_mul(4)).map_while(|_| books.old.pop_first()).for_each(drop);
        loop {
            let (View { head, valid, .. }, _) = self.settled(now, window);
            books.book.follow(self, back, window, head);
            if self.continue_copy(back, books, n, head, valid, window) {
                return;
            }
            let (first, sum) = (books.book.first(), books.book.sum);
            if sum > self.spare() {
                continue;
            }
            let Head { index, time, ring, .. } = head;
            if self.install(back, head, &Next { index, valid, n: 0, time, ring, first, sum }) {
                return;
            }
        }
    }

    /// Leaves out the credits whose times are not after `over`.
    pub(super) fn leave_out(&self, back: &GiveBack, credits: &mut Credits, ring: bool, over: Stamp) {
        // Acquire: the time of an entry that was taken again comes with a newer head, which 3 or 6
        // sees.
        while credits.sum > 0
            && credits.first < self.len()
            && self.entry(ring, credits.first).load(Ordering::Acquire) <= over
        {
            let (n, next) = link(back.links(ring), credits.first);
            // A list that a later version has changed may end in between: then the head has
            // changed.
            credits.sum = if n == 0 { 0 } else { credits.sum.saturating_sub(n) };
            (credits.first, credits.left_out) = (next, credits.left_out + 1);
        }
    }

    /// Returns how many of the entries that count, from the oldest on, come before the first entry
    /// whose time does not satisfy `before`.
    pub(super) fn count(&self, view: &View, from: u32, before: impl Fn(Stamp) -> bool) -> u32 {
        let (mut low, mut high) = (from, view.valid);
        while low < high {
            let middle = low.midpoint(high);
            if before(self.behind(view, view.valid - middle)) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Returns the number of an entry among the entries that count, from the oldest on.
    fn number(&self, head: Head, valid: u32, index: u32) -> Option<u32> {
        valid.checked_sub(self.before(head.index, index))
    }

    /// Returns the present head, and how many entries were taken since an older head, if that is
    /// less than a lap. A grant that takes the last entry again is later than the older head,
    /// because fewer grants than the ring has entries are made at one instant.
    pub(super) fn taken_since(&self, old: Head) -> Option<(Head, u32)> {
        let head = self.head();
        self.help(head);
        // After the head, which shows all grants but the last, and `help` wrote that grant: if the
        // entry was taken again, this load reads the newer time.
        let last = self.entry(old.ring, self.before(old.index, 1)).load(Ordering::Acquire);
        (last <= old.time).then(|| (head, self.before(head.index, old.index)))
    }

    /// Returns the index of the first permit of a time, and how many there are. Returns `None` if
    /// the time is over.
    fn run(&self, time: Stamp, now: Stamp, window: &Window) -> Option<(u32, u32)> {
        loop {
            let (view, latest) = self.settled(now, window);
            if end(time, window) <= latest {
                return None;
            }
            let first = self.count(&view, 0, |there| there < time);
            let next = self.count(&view, first, |there| there <= time);
            // Entries that were taken again meanwhile confuse the search: then it ends in one of
            // them.
            let over = self
                .taken_since(view.head)
                .map(|(_, taken)| (view.valid + taken).saturating_sub(self.len() - 1));
            if over.is_some_and(|over| over <= first) {
                return (next > first)
                    .then(|| (self.before(view.head.index, view.valid - first), next - first));
            }
        }
    }

    /// Gives back a grant, as if it had not been made, as far as it is not over.
    pub(super) fn undo(&self, charge: LogCharge, now: Stamp, window: impl Fn() -> Window) {
        let back = self.give_back();
        let mut books = lock(&back.books);
        // Under the lock: by the window before a change, credits would be over that `rewindow` has
        // found to count again.
        let window = &window();
        let run = self.run(charge.time, now, window);
        let (View { head, .. }, _) = self.settled(now, window);
        books.book.follow(self, back, window, head);
        let age = |version| head.version.wrapping_sub(version) % VERSIONS;
        // This grant was made before a reset. Other grants were made after it, at the same time.
        if books
            .reset
            .is_some_and(|(time, version)| time == charge.time && age(charge.version) > age(version))
        {
            return;
        }
        if end(charge.time, window) <= now.max(head.time) {
            return;
        }
        let mut rest = charge.n;
        if let Some((index, granted)) = run {
            let undone = books.book.credits.get(&charge.time).map_or(0, |credit| credit.n);
            let n = charge.n.min(granted.saturating_sub(undone));
            if n > 0 {
                books.book.add(back.links(head.ring), charge.time, Credit { index, n });
                if let Some(copying) = &mut books.copying {
                    copying.undone(self, back, charge.time, n);
                }
                self.credit(back, &mut books, n, now, window);
            }
            rest -= n;
        }
        self.refund_others(back, &mut books, (charge.time, rest), now, window);
    }

    /// Gives back the `n` oldest permits that count.
    pub(super) fn refund(&self, n: u32, now: Stamp, window: &Window) {
        if n == 0 {
            return;
        }
        let back = self.give_back();
        let mut books = lock(&back.books);
        let Some(refunded) = self.raise_floor(back, &mut books, n, None, now, window) else { return };
        let refunds = &mut books.refunds;
        // No grant of before is undone any more when the time is over.
        while refunds.front().is_some_and(|first| end(first.time, window) <= refunded.time) {
            refunds.pop_front();
        }
        let is_full = refunds.len() >= MAX_REFUNDS;
        match refunds.back_mut().filter(|last| is_full || last.time == refunded.time) {
            // As if all had come when fewer permits were there.
            Some(last) => {
                last.widen(refunded);
                if last.time == refunded.time {
                    last.same = refunded.same;
                }
            }
            None => refunds.push_back(refunded),
        }
    }

    /// Gives back other permits instead of `n` permits of an undone grant of this time that were
    /// refunded: those that the refunds would have given back without the grant.
    ///
    /// Of the refunds that gave back permits of this time, it is unknown which ones gave back those
    /// of the grant. It is assumed that the earliest did, because they would have given back the
    /// fewest others.
    fn refund_others(
        &self,
        back: &GiveBack,
        books: &mut Books,
        (time, mut n): (Stamp, u32),
        now: Stamp,
        window: &Window,
    ) {
        let mut at = 0;
        while n > 0
            && let Some(&refunded) = books.refunds.get(at)
        {
            at += 1;
            if !(refunded.first..=refunded.last).contains(&time) {
                continue;
            }
            let most = n.min(refunded.n);
            n -= most;
            books.refunds[at - 1].n -= most;
            if let Some(others) = self.raise_floor(back, books, most, Some(refunded), now, window) {
                let Refunded { time, same, .. } = books.refunds[at - 1];
                match books.refunds.get_mut(at).filter(|next| next.time == time) {
                    Some(next) => next.widen(others),
                    None => {
                        books.refunds.insert(at, Refunded { time, same, ..others });
                        at += 1;
                    }
                }
            }
        }
        books.refunds.retain(|refunded| refunded.n > 0);
    }

    /// Gives back the `n` oldest permits that count, or of those that were there at a refund: raises
    /// the floor above them. Returns what it gave back, if anything.
    fn raise_floor(
        &self,
        back: &GiveBack,
        books: &mut Books,
        n: u32,
        of: Option<Refunded>,
        now: Stamp,
        window: &Window,
    ) -> Option<Refunded> {
        books.copying = None;
        loop {
            let book = &mut books.book;
            let (view, latest) = self.settled(now, window);
            let View { head, valid, .. } = view;
            book.follow(self, back, window, head);
            let mut floor = self.count(&view, 0, |there| end(there, window) <= latest);
            let oldest = self.behind(&view, valid - floor.min(valid));
            let mut there = match of {
                None => valid,
                Some(Refunded { time, same, .. }) => {
                    let before = self.count(&view, floor, |there| there < time);
                    let after = self.count(&view, before, |there| there <= time);
                    before + same.min(after - before)
                }
            };
            let (mut left, mut passed, mut sum) = (n, 0, book.sum);
            let mut first = NOWHERE;
            for credit in book.credits.values() {
                let number = self.number(head, valid, credit.index).unwrap_or(0);
                let is_there = number + credit.n <= there;
                if !is_there {
                    there = there.min(number);
                }
                let granted = there.min(number).saturating_sub(floor);
                if granted >= left || !is_there {
                    first = credit.index;
                    break;
                }
                left -= granted;
                floor = floor.max(number + credit.n);
                (passed, sum) = (passed + 1, sum - credit.n);
            }
            let raised = floor.saturating_add(left).min(there.max(floor));
            let n = n - (left - (raised - floor));
            if n == 0 {
                return None;
            }
            let last = self.behind(&view, valid - raised + 1);
            // An entry that was taken again meanwhile confuses the search. Then `install` fails.
            let of_last = raised.saturating_sub(self.count(&view, 0, |there| there < last));
            let same = valid - self.count(&view, raised, |there| there < latest);
            // Credits that are over now are forgotten, so the log must not go back behind this
            // time.
            let (Head { index, ring, .. }, time) = (head, latest);
            let next = Next { index, valid: valid - raised, n: 0, time, ring, first, sum };
            if self.install(back, head, &next) {
                for _ in 0..passed {
                    book.credits.pop_first();
                }
                book.sum = sum;
                book.expired.clear();
                book.expired_sum = 0;
                let at = books.refunds.partition_point(|refunded| refunded.time < last);
                for refunded in books.refunds.range_mut(at..).take_while(|refunded| refunded.time == last) {
                    refunded.same = refunded.same.saturating_sub(of_last);
                }
                return Some(Refunded { time: latest, same, n, first: oldest, last });
            }
        }
    }

    /// Forgets all grants.
    pub(super) fn reset(&self) {
        let back = self.give_back();
        let mut books = lock(&back.books);
        (books.copying, books.refunds) = (None, VecDeque::new());
        loop {
            let head = self.head();
            self.help(head);
            let Head { index, time, ring, .. } = head;
            let next = Next { index, valid: 0, n: 0, time, ring, first: NOWHERE, sum: 0 };
            if self.install(back, head, &next) {
                books.book.clear();
                books.reset = Some((time, head.next_version().version));
                return;
            }
        }
    }

    /// Takes `n` entries as of at least `now`, whatever they show.
    pub(super) fn debit(&self, n: u32, now: Stamp, window: &Window) {
        let back = self.give_back();
        let mut books = lock(&back.books);
        books.copying = None;
        let book = &mut books.book;
        loop {
            let (View { head, valid, .. }, time) = self.settled(now, window);
            book.follow(self, back, window, head);
            // Entries that are taken again no longer count, nor do credits in them.
            let lost = (valid + n).saturating_sub(self.len() - 1);
            let number = |credit: &Credit| self.number(head, valid, credit.index).unwrap_or(0);
            let gone = book.credits.values().take_while(|credit| number(credit) < lost).count();
            let sum = book.sum - book.credits.values().take(gone).map(|credit| credit.n).sum::<u32>();
            let first = book.credits.values().nth(gone).map_or(NOWHERE, |credit| credit.index);
            let (index, ring) = (self.after(head.index, n), head.ring);
            let next = Next { index, valid: valid + n - lost, n, time, ring, first, sum };
            if self.install(back, head, &next) {
                for _ in 0..gone {
                    book.credits.pop_first();
                }
                book.sum = sum;
                if lost > 0 {
                    // These were not refunded.
                    books.refunds.clear();
                }
                return;
            }
        }
    }

    /// Takes all entries, as of the last possible time, so that no request is ever granted again.
    /// Returns how many permits counted at the time `now`.
    ///
    /// It does not write that time to the entries: the head holds it for as many entries as the
    /// last grant took, and that refuses every request.
    pub(super) fn shut(&self, room: u32, now: Stamp, window: &Window) -> u32 {
        let back = self.give_back();
        let mut books = lock(&back.books);
        books.copying = None;
        loop {
            let (view, time) = self.settled(now, window);
            let taken = self.taken(&view, time, window);
            let (index, ring) = (self.after(view.head.index, room), view.head.ring);
            let next = Next { index, valid: room, n: room, time: LAST, ring, first: NOWHERE, sum: 0 };
            if self.replace(back, view.head, &next).is_some() {
                books.refunds.clear();
                books.book.clear();
                return taken;
            }
        }
    }

    /// Returns how many permits count at a time, by a view of that time.
    pub(super) fn taken(&self, view: &View, time: Stamp, window: &Window) -> u32 {
        // Times rise along the ring, so the entries that are over come first.
        let over = self.count(view, 0, |there| end(there, window) <= time);
        view.valid - over - view.credits.sum.min(view.valid - over)
    }

    /// Ensures that undone permits count again as undone if their time counts again in a longer
    /// window.
    pub(super) fn rewindow(&self, now: Stamp, window: &Window) {
        if let Some(back) = self.back() {
            let mut books = lock(&back.books);
            books.refunds.clear();
            if !books.book.expired.is_empty() || !books.book.credits.is_empty() {
                self.credit(back, &mut books, 1, now, window);
            }
        }
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Policy, SlidingLog};
    use crate::sync::try_lock;
    use crate::time::Nanos;

    const LIMIT: u32 = 20;
    const LENGTH: u64 = 100;

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Pass(u64),
        /// The flag is set if the grant may be undone.
        Take(u32, bool),
        Refund(u32),
        Undo(usize, u32),
    }

    /// Bug: an undo read the window before the lock. If the window became longer in between, credits
    /// that count again were over once more, and their permits were in use.
    #[test]
    fn undoing_reads_the_window_under_the_lock_that_a_change_takes() {
        let log = SlidingLog::new("3/10ns".parse().expect("a rate"));
        let state = log.start(Nanos::ZERO);
        let charge = log.try_acquire(&state, Nanos::new(1), 1).expect("the first");
        state.undo(charge, charge.time, || {
            assert!(try_lock(&state.give_back().books).is_none(), "the lock is taken");
            log.window()
        });
        assert_eq!(log.status(&state, Nanos::new(1)).available, 3);
    }

    /// What happened to a log, at a time.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Granted(u32),
        Refunded(u32),
    }

    /// Returns how many permits count now, in a list of the grants that were not undone.
    fn replay(history: &[(u64, Event)], now: u64) -> u32 {
        let mut granted: Vec<(u64, u32)> = Vec::new();
        for (at, event) in history {
            match *event {
                Event::Granted(n) => granted.push((*at, n)),
                Event::Refunded(mut n) => {
                    for (_, there) in granted.iter_mut().filter(|(time, _)| time + LENGTH > *at) {
                        let back = n.min(*there);
                        (*there, n) = (*there - back, n - back);
                    }
                }
            }
        }
        granted.iter().filter(|(time, _)| time + LENGTH > now).map(|(_, n)| n).sum()
    }

    /// Plays the acts. Returns how many permits are available at the end, and how many would be in
    /// a replay.
    fn play(acts: &[Act]) -> (u64, u64) {
        let log = SlidingLog::new(format!("{LIMIT}/{LENGTH}ns").parse().expect("a rate"));
        let state = log.start(Nanos::ZERO);
        let (mut now, mut history, mut grants) = (1, Vec::new(), Vec::new());
        for act in acts {
            let at = Nanos::new(now);
            match *act {
                Act::Pass(nanos) => now += nanos,
                Act::Take(n, is_tracked) => {
                    if let Ok(charge) = log.try_acquire(&state, at, n) {
                        if is_tracked {
                            grants.push((history.len(), charge, n));
                        }
                        history.push((now, Event::Granted(n)));
                    }
                }
                Act::Refund(n) => {
                    log.refund(&state, at, n);
                    history.push((now, Event::Refunded(n)));
                    // Permits of one time are alike, whichever call came first.
                    now += 1;
                }
                Act::Undo(_, _) if grants.is_empty() => {}
                Act::Undo(which, used) => {
                    let (noted, charge, n) = grants.swap_remove(which % grants.len());
                    let used = used.min(n);
                    log.undo(&state, at, LogCharge { n: n - used, ..charge }, u64::MAX);
                    history[noted].1 = Event::Granted(used);
                }
            }
        }
        let available = log.status(&state, Nanos::new(now)).available;
        (available, u64::from(LIMIT.saturating_sub(replay(&history, now))))
    }

    #[test]
    fn a_refund_of_permits_of_an_undone_grant_gives_back_others() {
        use Act::{Pass, Refund, Take, Undo};
        let undo = || Undo(0, 0);
        for acts in [
            vec![Take(3, true), Take(2, false), Refund(1), undo()],
            vec![Take(3, true), Pass(1), Take(2, false), Pass(1), Refund(1), undo()],
            // The permits of one grant are refunded, and then those of the next one.
            vec![Take(1, true), Pass(1), Take(1, true), Take(1, false), Refund(1), undo(), undo()],
            // The first refund gives back nothing, because only the grant was there.
            vec![Take(3, true), Pass(1), Refund(1), Pass(1), Take(2, false), Pass(1), Refund(1), undo()],
            // A part of the grant is used.
            vec![Take(3, true), Pass(1), Take(4, false), Refund(2), Undo(0, 1)],
        ] {
            let (available, replayed) = play(&acts);
            assert_eq!(available, replayed, "{acts:?}");
        }
    }

    /// Bug: each grant that was undone split the refund of its permits once more.
    #[test]
    fn a_refund_stays_one_however_many_of_its_grants_are_undone() {
        let log = SlidingLog::new("2000/h".parse().expect("a rate"));
        let state = log.start(Nanos::ZERO);
        let take = |at: u64| log.try_acquire(&state, Nanos::new(at), 1).expect("room");
        let held: Vec<_> = (0..1000).map(take).collect();
        for at in 1000..2000 {
            take(at);
        }
        let now = Nanos::new(3000);
        log.refund(&state, now, 1000);
        for charge in held {
            log.undo(&state, now, charge, u64::MAX);
        }
        assert!(lock(&state.give_back().books).refunds.len() <= 2);
        assert_eq!(log.status(&state, now).available, 2000);
    }

    /// Many tasks hold a permit each, and others take one and refund it.
    #[test]
    fn refunds_next_to_outstanding_grants_lose_no_permits() {
        let mut acts = vec![Act::Take(1, true); 19];
        for _ in 0..19 {
            acts.extend([Act::Pass(1), Act::Take(1, false), Act::Refund(1)]);
        }
        acts.extend(vec![Act::Undo(0, 0); 19]);
        assert_eq!(play(&acts), (20, 20));
    }

    proptest! {
        #![proptest_config(ProptestConfig { ..ProptestConfig::with_cases(2000) })]

        #[test]
        fn a_log_is_never_emptier_than_in_a_replay(
            acts in vec(
                prop_oneof![
                    3 => (0..30u64).prop_map(Act::Pass),
                    4 => (1..6u32, any::<bool>()).prop_map(|(n, is_tracked)| Act::Take(n, is_tracked)),
                    3 => (1..6u32).prop_map(Act::Refund),
                    3 => (any::<usize>(), 0..6u32).prop_map(|(which, used)| Act::Undo(which, used)),
                ],
                1..60,
            ),
        ) {
            let (available, replayed) = play(&acts);
            prop_assert!(available <= replayed, "{available} of {replayed}");
        }
    }
}
