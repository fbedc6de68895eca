//! The cells of a sliding window: a log of the cells in which permits were granted, with a running
//! total.
//!
//! # Idea
//!
//! The permits of the last *k* cells are a difference of two totals: all permits ever counted,
//! minus the permits counted before the oldest of these cells began. So a cell needs its beginning
//! and the total at that time, and no count of its own. A grant replaces one word, the **head**,
//! which has the newest total. A cell that drops out is subtracted by reading the next cell. No
//! cells are swept, and the totals rise from cell to cell, so a binary search finds the cell that
//! has to drop out before `n` permits are free.
//!
//! # State
//!
//! | word | bits | name | at the edges |
//! |---|---|---|---|
//! | head, 128 bits | 127 | closed, while a change is in progress | see `policy/window/closable.rs` |
//! | | 65..127 | time of the last grant, in ns | never goes back |
//! | | 64 | fresh: the cell was opened at this time, and is not entered in the ring yet | |
//! | | 40..64 | number of the newest cell, one more for each cell that was opened | wraps |
//! | | 0..40 | total: the permits counted | wraps; permits that count are at most 2^39 |
//! | ring, for each cell: mark | 40..64, 0..40 | number of the cell, and the total before it | |
//! | beginning | 0..64 | when the cell begins, in ns | |
//! | oldest | 0..64 | number of the oldest cell that counts: a hint, checked at each use | |
//!
//! Cells in which nothing is granted are not opened. The ring has more slots than the window has
//! cells. So a new cell takes the slot of a cell that no longer counts, neither when the new cell
//! is the newest nor when the cell before it is.
//!
//! # Protocol
//!
//! | step | operation | ordering |
//! |---|---|---|
//! | 1 open a cell | head: CAS; the next number, fresh, the beginning as its time | Release |
//! | 2 enter it | its slot: CAS of the beginning, then of the mark, from what was there before | Release |
//! | 3 count | head: CAS; total plus `n`, not fresh | Release |
//! | 4 give back in the newest cell | head: CAS; total minus `n` | Release |
//! | 5 give back in an older cell | marks: plus `n` in this cell and the cells before it, the newest first | Release |
//! | all | loads | Acquire |
//!
//! A grant in the newest cell is step 3. The first grant in a cell makes steps 1 to 3. A thread
//! that finds a fresh head enters the cell for the thread that opened it, so a thread that stalls
//! does not block others. A refusal computes a difference of words and writes nothing.
//!
//! **No permit is granted twice.** A grant is one CAS of the head. It fails if anything was granted
//! or opened since the head was loaded. The other term of the difference, the total before the
//! oldest cell, changes only by step 5, which makes room. A slot of the ring is taken for a newer
//! cell only after the head has changed, so a request that reads such a slot fails. A slot that
//! shows another number than the expected one counts as over, and a refusal checks the head again.
//!
//! **A cell is entered once.** While the head is fresh its time, number and total stay as they are,
//! so all threads enter equal values. A thread that stalls before a CAS of step 2 finds a newer
//! beginning, or a newer number, and fails: neither returns before the numbers wrap. Across a
//! change such a thread may find both as they were, because a change enters no cell of a fresh
//! head. Then it enters its old cell late, which no longer counts. A thread that enters a newer
//! cell in the same slot meanwhile finds that its CAS failed, and writes its own beginning before
//! its mark. A beginning may also return across a change. Then a cell may be entered with a later
//! beginning, by less than the length of a cell, and counts for longer.
//!
//! **Step 5** raises the total before a cell, which lowers what counts from this cell on. Between
//! two of its CASes some totals are too low, so too many permits count. Giving back holds a lock
//! that no decision takes, because two threads that gave back the permits of one cell would give
//! them back twice.
//!
//! **A change** holds that lock, closes the head, carries the counts over into new cells, enters
//! them under new numbers, and opens the head. All other slots get a number of another slot: a
//! change uses up more numbers than it writes slots, so an older number could be in force again
//! when the numbers have wrapped. A request that stalls meanwhile does not find its head again
//! within 2^24 numbers.
//!
//! **Why the orderings suffice.** A request that loads a head sees all slots that were entered
//! before it, because each CAS of the head releases what its thread has entered or acquired. A mark
//! is stored after its beginning, so a request that reads the expected number reads the beginning
//! of this cell, or of a newer one; in the second case the head has also changed.
//!
//! **Checked by** `loom-tests/sliding_window.rs`, with a twin that counts in a cell before it
//! enters it; by `loom-tests/change.rs`, with a twin that does not close the head; by
//! `loom-tests/undo.rs`; and by `tests/policy/stress.rs`. Loom's numbers wrap after 16. Loom has no
//! 128-bit atomic, see its README, so the last paragraph rests on the argument.

use crate::policy::Keep;
use crate::policy::window::closable::{ClosableWord, OpenWord};
use crate::policy::window::{Stamp, Window};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};

/// The bits of a total.
const TOTAL: u32 = 40;
const TOTALS: u64 = (1 << TOTAL) - 1;
/// The bits of a number. In loom models the numbers wrap soon, after 16.
const NUMBERS: u64 = if cfg!(all(test, tidegate_loom)) { 15 } else { (1 << 24) - 1 };

/// The maximum number of counted permits that debits produce, higher than any limit.
const MAX_OWED: u64 = 1 << (TOTAL - 1);

/// Returns a total minus an earlier one, or the permits between the two.
fn total(total: u64) -> u64 {
    total & TOTALS
}

/// Returns a number of a cell, after additions and subtractions.
fn number(number: u64) -> u64 {
    number & NUMBERS
}

/// A cell: its number, when it begins, and the total before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    number: u64,
    beginning: Stamp,
    before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Head {
    pub(crate) time: Stamp,
    pub(crate) fresh: bool,
    pub(crate) number: u64,
    pub(crate) total: u64,
}

impl Head {
    #[inline]
    pub(crate) fn decode(content: u128) -> Head {
        // The two halves.
        #[allow(clippy::cast_possible_truncation)]
        let (upper, lower) = ((content >> 64) as u64, content as u64);
        Head { time: upper >> 1, fresh: upper & 1 == 1, number: lower >> TOTAL, total: total(lower) }
    }

    #[inline]
    pub(crate) fn encode(self) -> u128 {
        let upper = self.time << 1 | u64::from(self.fresh);
        u128::from(upper) << 64 | u128::from(mark(self.number, self.total))
    }
}

#[inline]
fn mark(number: u64, total: u64) -> u64 {
    number << TOTAL | total
}

/// Returns the mark of a slot that has no cell: a number that belongs to the next slot.
fn vacant(index: u64) -> u64 {
    mark(index + 1, 0)
}

/// The slot of a cell in the ring.
#[derive(Debug)]
struct Slot {
    mark: AtomicU64,
    beginning: AtomicU64,
}

/// The state of one sliding window.
#[derive(Debug)]
pub(crate) struct Cells {
    pub(crate) head: ClosableWord<127, 0>,
    oldest: AtomicU64,
    ring: Box<[Slot]>,
    /// Held while permits are given back, and while the terms change.
    giving: Mutex<()>,
}

/// A view of a window of cells at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    head: Head,
    /// The time of the view: that of the last grant, if that is later.
    now: Stamp,
    /// When the cell of this time begins.
    pub(crate) beginning: Stamp,
    /// The length of all cells: the length of the window, or a little more, so that a cell is a
    /// whole number of nanoseconds.
    pub(crate) span: u64,
    /// The number of the oldest cell that counts, if any does.
    oldest: u64,
    /// The hint from which the oldest cell was found.
    hint: u64,
    /// The total before the oldest cell that counts.
    before: u64,
    /// The permits that count.
    pub(crate) sum: u64,
}

impl View {
    /// Returns the total of all counts after `n` more.
    pub(crate) fn total_with(&self, n: u64) -> u64 {
        total(self.head.total.wrapping_add(n))
    }
}

impl Cells {
    pub(crate) fn new(cells: u16) -> Cells {
        let slots = (usize::from(cells) + 1).next_power_of_two();
        // Number zero is entered with the time zero, at which no cell begins.
        let slot = |index: u64| {
            let mark = if index == 0 { 0 } else { vacant(index) };
            Slot { mark: AtomicU64::new(mark), beginning: AtomicU64::new(0) }
        };
        Cells {
            head: ClosableWord::new(0),
            oldest: AtomicU64::new(0),
            ring: (0..slots as u64).map(slot).collect(),
            giving: Mutex::new(()),
        }
    }

    /// Returns how many permits were counted since a grant in the cell that began at `beginning`,
    /// which made the total `before`. Returns 0, as if the grant were the last one, if that is
    /// unknown: permits were given back since, or a change numbered the cells anew.
    pub(crate) fn counted_since(&self, view: &View, of: u64, beginning: Stamp, before: u64) -> u64 {
        let counted = total(view.head.total.wrapping_sub(before));
        // A slot may still show a cell from before a change, which is more than a ring behind.
        let is_near = number(view.head.number.wrapping_sub(of)) < self.ring.len() as u64;
        let cell = self.cell(&view.head, of).filter(|_| is_near);
        let is_known = cell.is_some_and(|cell| cell.beginning == beginning);
        if is_known && counted <= MAX_OWED { counted } else { 0 }
    }

    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        // The number of slots is a power of two, and smaller than the number of cell numbers.
        #[allow(clippy::cast_possible_truncation)]
        &self.ring[number as usize & (self.ring.len() - 1)]
    }

    /// Returns the cell of a number, unless its slot shows another one.
    #[inline]
    fn cell(&self, head: &Head, number: u64) -> Option<Cell> {
        if head.fresh && number == head.number {
            return Some(Cell { number, beginning: head.time, before: head.total });
        }
        let slot = self.slot(number);
        // The mark is read first, because it is stored last: its number guarantees the beginning.
        let there = slot.mark.load(Ordering::Acquire);
        // Acquire, both: if a word belongs to a newer cell, the head that opened it is seen below.
        let beginning = slot.beginning.load(Ordering::Acquire);
        (there >> TOTAL == number).then_some(Cell { number, beginning, before: total(there) })
    }

    /// Returns the total after the cell of a number.
    #[inline]
    fn after(&self, head: &Head, of: u64) -> Option<u64> {
        if of == head.number {
            return Some(head.total);
        }
        self.cell(head, number(of.wrapping_add(1))).map(|cell| cell.before)
    }

    /// Returns the view of a window of `cells` cells at a time. Always inlined, because a grant
    /// needs little of the view, and none of it in memory.
    #[inline(always)]
    pub(crate) fn view(&self, head: Head, window: &Window, cells: u16, at: Stamp) -> View {
        let now = at.max(head.time);
        let (beginning, span) = (window.beginning(now), window.piece * u64::from(cells));
        let over = beginning.saturating_sub(span);
        // Relaxed: the hint is checked below.
        let (cells, hint) = (u64::from(cells), self.oldest.load(Ordering::Relaxed));
        let age = number(head.number.wrapping_sub(hint));
        // If the hint is right, the cell counts and the one before it does not.
        let oldest = match if age < cells { self.counts(head, over, age) } else { None } {
            Some(oldest) if age + 1 == cells || self.counts(head, over, age + 1).is_none() => Some(oldest),
            _ => self.search(head.encode(), over, cells),
        };
        let (oldest, before) = oldest.map_or((hint, head.total), |cell| (cell.number, cell.before));
        let sum = total(head.total.wrapping_sub(before));
        View { head, now, beginning, span, oldest, hint, before, sum }
    }

    /// Returns the cell of an age, if it began after a time, so that it counts.
    #[inline(always)]
    fn counts(&self, head: Head, over: Stamp, age: u64) -> Option<Cell> {
        let cell = self.cell(&head, number(head.number.wrapping_sub(age)));
        cell.filter(|cell| cell.beginning > over)
    }

    /// Returns the oldest of `cells` cells that began after a time: all younger cells did. The head
    /// is passed encoded, so that a view with a right hint keeps it in registers.
    #[cold]
    #[inline(never)]
    fn search(&self, head: u128, over: Stamp, cells: u64) -> Option<Cell> {
        let head = Head::decode(head);
        let mut oldest = self.counts(head, over, 0)?;
        let (mut age, mut too_old) = (0, cells);
        while too_old - age > 1 {
            let middle = age.midpoint(too_old);
            match self.counts(head, over, middle) {
                Some(cell) => (age, oldest) = (middle, cell),
                None => too_old = middle,
            }
        }
        Some(oldest)
    }

    /// Returns when `missing` of the permits that count have dropped out. Returns `None` if the
    /// view is outdated.
    #[inline(always)]
    pub(crate) fn drops_out(&self, view: &View, missing: u64) -> Option<Stamp> {
        self.search_drop(view.head.encode(), view.oldest, view.before, missing)
            .map(|beginning| beginning.saturating_add(view.span))
    }

    /// Returns when the cell began with which `missing` permits drop out, given a head, the oldest
    /// cell that counts and the total before it. They are passed as numbers, so that the view of a
    /// grant stays in registers.
    #[inline(never)]
    fn search_drop(&self, head: u128, oldest: u64, before: u64, missing: u64) -> Option<Stamp> {
        let head = Head::decode(head);
        let of_age = |age: u64| number(head.number.wrapping_sub(age));
        // Returns whether enough permits have dropped out when the cell of an age drops out.
        let enough = |age: u64| {
            self.after(&head, of_age(age)).map(|after| total(after.wrapping_sub(before)) >= missing)
        };
        let oldest = number(head.number.wrapping_sub(oldest));
        let mut age = oldest;
        if !enough(age)? {
            let mut too_old = oldest;
            age = 0;
            while too_old - age > 1 {
                let middle = age.midpoint(too_old);
                if enough(middle)? { age = middle } else { too_old = middle }
            }
        }
        Some(self.cell(&head, of_age(age))?.beginning)
    }

    /// Returns whether no cell was opened and no term changed since the view was created. Otherwise
    /// slots may have been reused.
    #[inline(always)]
    pub(crate) fn is_current(&self, view: &View) -> bool {
        self.head.load().is_some_and(|seen| Head::decode(seen.content()).number == view.head.number)
    }

    /// Counts `n` permits. Returns the number of their cell, or `None` if the state has changed
    /// meanwhile, or this call made a step.
    #[inline(always)]
    pub(crate) fn count(&self, seen: OpenWord<127, 0>, view: &View, n: u64) -> Option<u64> {
        let head = view.head;
        if head.fresh {
            // Decoded again, so that the head of a grant stays in registers.
            self.enter(seen, &Head::decode(seen.content()));
        }
        if head.time < view.beginning {
            let number = number(head.number.wrapping_add(1));
            // Release, in each CAS of the head: a request that reads it sees the cells that this
            // thread has entered or seen.
            let opened = Head { time: view.beginning, fresh: true, number, ..head };
            self.head.replace(seen, opened.encode(), Ordering::Release);
            return None;
        }
        let counted = Head { time: view.now, fresh: false, total: total(head.total.wrapping_add(n)), ..head };
        // The grant (3). It fails if any thread has granted or opened a cell since `seen`.
        if !self.head.replace(seen, counted.encode(), Ordering::Release) {
            return None;
        }
        if view.oldest != view.hint {
            // Relaxed: a hint, which each reader checks against the ring.
            self.oldest.store(view.oldest, Ordering::Relaxed);
        }
        Some(head.number)
    }

    /// Enters the cell of a fresh head in the ring, unless another thread has done so.
    #[cold]
    pub(crate) fn enter(&self, seen: OpenWord<127, 0>, head: &Head) {
        let slot = self.slot(head.number);
        loop {
            // Acquire, both: a word of a newer cell shows the head that opened it, so the check of
            // the head below finds another one.
            let beginning = slot.beginning.load(Ordering::Acquire);
            let there = slot.mark.load(Ordering::Acquire);
            // The words that were read are older than this cell only if the head is still fresh.
            if there >> TOTAL == head.number || !self.head.is_unchanged(seen) {
                return;
            }
            let (release, acquire) = (Ordering::Release, Ordering::Acquire);
            // A CAS that fails finds a cell that another thread has entered, or that a thread
            // enters which stalled across a change. The next round determines which.
            if beginning != head.time
                && slot.beginning.compare_exchange(beginning, head.time, release, acquire).is_err()
            {
                continue;
            }
            // The mark is written last, because its number guarantees the beginning. Release: a
            // request that reads the mark finds this beginning or a newer one.
            let _ = slot.mark.compare_exchange(there, mark(head.number, head.total), release, acquire);
        }
    }

    /// Returns when each cell that counts drops out, and how many permits, the oldest first.
    /// Returns `None` if the view is outdated.
    pub(crate) fn counting(&self, view: &View) -> Option<Vec<(Stamp, u64)>> {
        let ages = if view.sum == 0 { 0 } else { number(view.head.number.wrapping_sub(view.oldest)) + 1 };
        let cell = |age: u64| {
            let of = number(view.head.number.wrapping_sub(age));
            let (cell, after) = self.cell(&view.head, of).zip(self.after(&view.head, of))?;
            let count = total(after.wrapping_sub(cell.before));
            Some((cell.beginning.saturating_add(view.span), count))
        };
        (0..ages).rev().map(cell).collect()
    }

    /// Counts `n` permits even if there is no room. Returns `None` if the state has changed
    /// meanwhile, or this call made a step.
    pub(crate) fn debit(&self, seen: OpenWord<127, 0>, view: &View, n: u64) -> Option<u64> {
        self.count(seen, view, n.min(MAX_OWED.saturating_sub(view.sum)))
    }

    /// Returns the right to give back, and to change the terms.
    pub(crate) fn giving(&self) -> MutexGuard<'_, ()> {
        lock(&self.giving)
    }

    /// Takes up to `n` permits out of the cell with a number and a beginning, if it is still there.
    pub(crate) fn give_back(&self, wait: impl Fn(), of: u64, beginning: Stamp, n: u64) {
        let _giving = self.giving();
        loop {
            let seen = self.head.settled(&wait);
            let head = Head::decode(seen.content());
            let Some(cell) = self.cell(&head, of).filter(|cell| cell.beginning == beginning) else {
                return;
            };
            let Some(after) = self.after(&head, of) else {
                return;
            };
            let n = n.min(total(after.wrapping_sub(cell.before)));
            if of != head.number {
                return self.raise(&head, of, |before| before.wrapping_add(n));
            }
            let total = total(head.total.wrapping_sub(n));
            // Fails if a request was granted meanwhile: then the next round counts again (4).
            if self.head.replace(seen, Head { total, ..head }.encode(), Ordering::Release) {
                return;
            }
        }
    }

    /// Takes up to `n` permits out of the cells of a view, the oldest first. Returns whether the
    /// view was still right.
    pub(crate) fn give_back_oldest(
        &self,
        seen: OpenWord<127, 0>,
        view: &View,
        n: u64,
        _giving: &MutexGuard<'_, ()>,
    ) -> bool {
        let head = view.head;
        if view.sum == 0 {
            return true;
        }
        let Some(newest) = self.cell(&head, head.number) else {
            return false;
        };
        let older = total(newest.before.wrapping_sub(view.before));
        let from_older = n.min(older);
        let from_newest = (n - from_older).min(view.sum - older);
        let total_after = total(head.total.wrapping_sub(from_newest));
        // The head first: the marks of the older cells change only if the view was still right.
        // Release, as in `count`.
        if !self.head.replace(seen, Head { total: total_after, ..head }.encode(), Ordering::Release) {
            return false;
        }
        let level = total(view.before.wrapping_add(from_older));
        // The total before a cell that is not emptied stays.
        let raised = |before: u64| {
            let above = total(before.wrapping_sub(view.before));
            if above < from_older { level } else { before }
        };
        if from_older > 0 {
            self.raise(&head, number(head.number.wrapping_sub(1)), raised);
        }
        true
    }

    /// Changes the totals before a cell and before all older cells, the newest first.
    fn raise(&self, head: &Head, from: u64, raised: impl Fn(u64) -> u64) {
        let mut of = from;
        while number(head.number.wrapping_sub(of)) < self.ring.len() as u64 {
            let slot = self.slot(of);
            // Acquire: a newer number is published with the head that opened its cell.
            let mut there = slot.mark.load(Ordering::Acquire);
            loop {
                // The slot shows a newer cell, or a cell of older terms. All older cells are over.
                if there >> TOTAL != of {
                    return;
                }
                let new = mark(of, total(raised(total(there))));
                // Release: a request that reads the new mark finds the beginning as with the old
                // mark. Acquire on failure: as for the load.
                match slot.mark.compare_exchange(there, new, Ordering::Release, Ordering::Acquire) {
                    Ok(_) => break,
                    Err(newer) => there = newer,
                }
            }
            of = number(of.wrapping_sub(1));
        }
    }

    /// Carries the permits that count at a time over into the cells of a new window. The caller
    /// holds the right to do so, and has closed the head, whose content it passes. Returns the new
    /// content.
    pub(crate) fn carry_over(
        &self,
        content: u128,
        at: Stamp,
        (old, new): (&Window, &Window),
        cells: u16,
        keep: Keep,
    ) -> u128 {
        let head = Head::decode(content);
        let view = self.view(head, old, cells, at);
        let newest = new.beginning(view.now);
        let over = newest.saturating_sub(new.piece * u64::from(cells));
        // The beginning and the count of each cell, the newest first. There is always one for the
        // time of the change.
        let mut carried = vec![(newest, 0)];
        let (mut seen, mut sum, mut of) = (0, 0, head.number);
        let mut left = view.sum;
        while left > 0
            && let Some((cell, after)) = self.cell(&head, of).zip(self.after(&head, of))
        {
            let count = total(after.wrapping_sub(cell.before)).min(left);
            left -= count;
            of = number(of.wrapping_sub(1));
            // By its last moment: counted too long rather than too short.
            let last = cell.beginning.saturating_add(old.piece - 1).min(view.now);
            let beginning = new.beginning(last);
            if beginning <= over {
                break;
            }
            // All counts together are rounded, and not each by itself.
            seen += count;
            let count = old.carried_over(seen, new, keep).min(MAX_OWED) - sum;
            sum += count;
            match carried.last_mut() {
                Some(last) if last.0 == beginning => last.1 += count,
                _ => carried.push((beginning, count)),
            }
        }
        // No slot shows a number of before, so numbers that have wrapped find no cell of before.
        for (index, slot) in (0..).zip(&self.ring) {
            // Relaxed: a thread that stalls in `enter` may write its cell later anyway, and the
            // next change finds that mark.
            if slot.mark.load(Ordering::Relaxed) != vacant(index) {
                // Release: a request that reads the mark finds the head closed, or a newer one. A
                // swap, because loom does not order a store and a CAS of such a thread.
                slot.mark.swap(vacant(index), Ordering::Release);
            }
        }
        // Numbers that no stalled thread is about to enter.
        let mut of = number(head.number.wrapping_add(self.ring.len() as u64));
        let mut before = head.total;
        for (beginning, count) in carried.into_iter().rev() {
            of = number(of.wrapping_add(1));
            let slot = self.slot(of);
            // The mark is written last, because its number guarantees the beginning. Release: as in
            // `enter`.
            slot.beginning.store(beginning, Ordering::Release);
            slot.mark.store(mark(of, before), Ordering::Release);
            before = total(before.wrapping_add(count));
        }
        Head { time: view.now, fresh: false, number: of, total: before }.encode()
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Refusal;
    use crate::policy::{Policy, SlidingWindow};
    use crate::rate::Rate;
    use crate::time::Nanos;

    /// A thread that stalls before it stores its hint may store it after the numbers have wrapped.
    #[test]
    fn a_hint_of_any_number_counts_all_cells() -> Result<(), Refusal> {
        let at = |ms| Nanos::from_duration(Duration::from_millis(ms));
        let policy = SlidingWindow::new(Rate::per_second(8), 4);
        let state = policy.start(at(0));
        for cell in 0..4 {
            policy.try_acquire(&state, at(250 * cell), 2)?;
        }
        let full = Err(Refusal::Limited { retry_after: Duration::from_millis(250).into() });
        for hint in (0..8).chain([NUMBERS]) {
            state.cells.oldest.store(hint, Ordering::Relaxed);
            assert_eq!(policy.try_acquire(&state, at(750), 1).map(drop), full, "hint {hint}");
        }
        Ok(())
    }

    /// Permits that were carried over once counted as taken after the grant.
    #[test]
    fn a_grant_from_before_a_change_left_no_more_than_there_is() -> Result<(), Refusal> {
        let policy = SlidingWindow::new(Rate::per_second(3), 2);
        let state = policy.start(Nanos::ZERO);
        let charge = policy.try_acquire(&state, Nanos::ZERO, 1)?;
        policy.try_acquire(&state, Nanos::ZERO, 1)?;
        policy.set_rate(&state, Nanos::ZERO, Rate::per_second(8));
        assert_eq!(policy.left(&state, charge, Nanos::ZERO).available, 6);
        Ok(())
    }
}
