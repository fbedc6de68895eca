//! Sliding window of cells: a ring of counters that drops the oldest.
//!
//! # Algorithm
//!
//! Cut the window into cells, count the permits of each, and let the sum of the last `k` cells decide. When time enters a
//! new cell, the oldest drops out, with whatever was counted in it. More cells come closer to a window that really slides.
//!
//! Adding up and then adding one are two steps, and between them others add, too: that is how such counters let too much
//! through. Here the sum is a number of its own, and a request takes from it first.
//!
//! # Protocol
//!
//! Shared: `total`, and `k` cells of (beginning, count).
//!
//! | step | operation | ordering | why |
//! |---|---|---|---|
//! | 1 reserve | `total`: compare and exchange, plus `n`, if the limit allows | Relaxed | one word: the newest value, or it fails |
//! | 2 count | the cell of now: compare and exchange, plus `n` | Release | whoever takes the count out of the cell sees the reservation |
//! | 3 roll | an old cell: compare and exchange to zero, or to the new beginning | Acquire | sees the reservations of all that it takes out |
//! | 4 release | `total`: minus what was taken out | Relaxed | after 1 by the edge from 2 to 3, so it never goes below zero |
//!
//! **Invariant.** `total` is the sum of all cells plus what is between the steps: reserved and not counted yet, or taken out and
//! not released yet. So it is never below the true sum of the window, and a decision on it never lets too much through. It may be too high
//! for a moment; then a request is refused that would have been granted a moment later.
//!
//! **Old cells** are rolled when their space is needed, or when a request would be refused otherwise. So a grant
//! looks at one cell, and a refusal at all of them.
//!
//! **A taker that stalls** between 1 and 2 finds its cell rolled on, and counts in whatever is there: later than the truth,
//! so its permits are counted too long, never too short.
//!
//! **A retired state** has a sum of `u64::MAX`, which leaves room for nothing. It gets there by an exchange from zero: then all cells are empty,
//! and nobody is between the steps.
//!
//! **A change of the window** cuts the cells anew. A request of another thread that is between its steps meanwhile goes on with the old
//! cut: it may roll a cell that is not over by the new one, and then what that held is forgotten, once. A generation in each
//! cell would forbid it.
//!
//! **Checked by** `loom-tests/sliding_window.rs`, with twins that add to the cell first, and that release before they roll.
//!
//! # Invariant
//!
//! At most `limit` permits in any `k` cells in a row, so in any span of `(k - 1) / k` of the window; up to twice as many in a
//! whole window that begins and ends within a cell. Tests: `tests/window_properties.rs`.
//!
//! # Source
//!
//! `LeapArray` of Alibaba Sentinel 1.8.9, where check and add are two steps.

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::nanos::Nanos;
use crate::policy::window::{CurrentWindow, Stamp, Window, stamp, time_of};
use crate::policy::{Change, Keep, Policy, PolicyStatus, limited};
use crate::rate::Rate;
use crate::sync::{AtomicU64, AtomicU128, Ordering};

/// At most so many permits in this cell of the period and those before it, as many as there are.
///
/// With six cells and `100/min`, no 50 seconds ever have more than 100 permits: in any span of the window less one cell the limit
/// is kept exactly. **In a whole window up to twice as many can pass**, at its two ends. More cells, of 16 bytes each,
/// come closer; one cell is a [`FixedWindow`](super::FixedWindow). For a hard limit in any window, choose
/// [`SlidingLog`](super::SlidingLog).
///
/// It never lets more through under concurrency: the sum is taken from before anything is counted. A request for more
/// than the limit can never be had.
///
/// When the rate changes, what was counted stays counted, in the cell in which its time lies: [`Keep::Count`]. If the window becomes
/// longer while another thread is in the middle of a request, that request may forget what was counted; change it
/// when nobody asks, if that matters. A permit that was granted but not yet seen by its future, and is given up right after a
/// change, is not given back.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, SlidingWindow};
///
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::with_clock(SlidingWindow::new(Rate::per_minute(100), 6), clock.clone());
/// clock.advance(Duration::from_secs(55));
/// limiter.try_acquire_many(100)?;
/// // The cell of 0:50 to 1:00 drops out at 1:50.
/// assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: Duration::from_secs(55) }));
/// # Ok::<(), Refusal>(())
/// ```
///
/// # Source
///
/// `LeapArray` of Alibaba Sentinel.
///
/// # Picture
///
#[cfg_attr(doc, doc = include_str!("../../docs/pictures/sliding_window.svg"))]
#[derive(Clone, Debug)]
pub struct SlidingWindow {
    window: CurrentWindow,
}

/// The state of one [`SlidingWindow`]: the sum, and a word for each cell.
#[derive(Debug)]
pub struct SlidingState {
    pub(crate) total: AtomicU64,
    pub(crate) cells: Box<[AtomicU128]>,
}

/// What one grant of a [`SlidingWindow`] took.
#[derive(Clone, Copy, Debug)]
pub struct SlidingCharge {
    /// The beginning of the cell in which it is counted.
    beginning: Stamp,
    /// Of the window's terms: after a change it is not known whether it still counts, and then it is not given back.
    version: u64,
    n: u32,
}

/// The sum of a state that was retired.
const DEAD: u64 = u64::MAX;

/// A sum that debits do not exceed, as high as no limit is.
const MOST_OWED: u64 = 1 << 40;

/// A counter, and the time from which it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) beginning: Stamp,
    pub(crate) count: u64,
}

impl Cell {
    pub(crate) fn decode(bits: u128) -> Cell {
        // The two halves.
        #[allow(clippy::cast_possible_truncation)]
        Cell { beginning: (bits >> 64) as u64, count: bits as u64 }
    }

    fn encode(self) -> u128 {
        u128::from(self.beginning) << 64 | u128::from(self.count)
    }
}

/// Replaces a cell by what `new` makes of it, unless that is nothing. Returns what was there, and what is there now.
pub(crate) fn replace(cell: &AtomicU128, new: impl Fn(Cell) -> Option<Cell>) -> Option<(Cell, Cell)> {
    let mut bits = cell.load(Ordering::Acquire);
    loop {
        let old = Cell::decode(bits);
        let new = new(old)?;
        match cell.compare_exchange_weak(bits, new.encode(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some((old, new)),
            Err(newer) => bits = newer,
        }
    }
}

/// The numbers of a window that is cut into cells.
#[derive(Clone, Copy, Debug)]
struct Cut {
    window: Window,
    /// The length of all cells: the window's, or a little more, so that a cell is a whole number of nanoseconds.
    span: u64,
}

impl Cut {
    fn new(window: Window, cells: u16) -> Cut {
        Cut { window, span: window.piece * u64::from(cells) }
    }

    /// Whether a cell still counts in the cell that begins at `now`.
    fn counts(&self, cell: Cell, now: Stamp) -> bool {
        cell.count > 0 && cell.beginning.saturating_add(self.span) > now
    }
}

impl SlidingWindow {
    /// As many permits in the last period as the rate says, counted in so many cells: `100/min` in 6 cells of 10 s.
    ///
    /// # Panics
    ///
    /// If the rate is not a whole number of permits, at most `u32::MAX`, in a whole number of nanoseconds, or `cells` is 0. For
    /// values from a configuration, use [`try_new`](SlidingWindow::try_new).
    #[must_use]
    #[track_caller]
    pub fn new(rate: Rate, cells: u16) -> SlidingWindow {
        match SlidingWindow::try_new(rate, cells) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// As many permits in the last period as the rate says, counted in so many cells.
    ///
    /// # Errors
    ///
    /// - [`PolicyError::NotWhole`] if the rate is not a whole number of permits, at most `u32::MAX`, in a whole number of nanoseconds.
    /// - [`PolicyError::NoCells`] if `cells` is 0.
    pub fn try_new(rate: Rate, cells: u16) -> Result<SlidingWindow, PolicyError> {
        if cells == 0 {
            return Err(PolicyError::NoCells);
        }
        Ok(SlidingWindow { window: CurrentWindow::new(rate, cells)? })
    }

    /// Begins cells by the wall clock, `offset` after the periods of Unix time, which is UTC.
    #[must_use]
    pub fn at_wall_clock(self, offset: Duration) -> SlidingWindow {
        SlidingWindow { window: self.window.at_wall_clock(offset) }
    }

    fn cut(&self) -> Cut {
        Cut::new(self.window.get(), self.window.cells())
    }

    /// The beginning of the cell of a time, and its place in the ring.
    #[inline]
    fn place(&self, at: Stamp, cut: &Cut) -> (Stamp, usize) {
        let beginning = cut.window.beginning(at);
        // Below the number of cells.
        #[allow(clippy::cast_possible_truncation)]
        let index = (cut.window.number(beginning) % u64::from(self.window.cells())) as usize;
        (beginning, index)
    }

    /// Counts `n` permits that were reserved. Returns the beginning of the cell they are in.
    fn count(&self, state: &SlidingState, at: Stamp, cut: &Cut, n: u64) -> Stamp {
        let (beginning, index) = self.place(at, cut);
        let counted = replace(&state.cells[index], |cell| match beginning > cell.beginning {
            true => Some(Cell { beginning, count: n }),
            // This one, or a later one if time went on, or back.
            false => Some(Cell { count: cell.count + n, ..cell }),
        });
        let Some((old, new)) = counted else { return beginning };
        if new.beginning > old.beginning {
            state.total.fetch_sub(old.count, Ordering::Relaxed);
        }
        new.beginning
    }

    /// Takes `n` from the sum, if the limit allows.
    fn reserve(&self, state: &SlidingState, n: u64, cut: &Cut) -> bool {
        let limit = u64::from(cut.window.limit);
        state
            .total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |total| {
                total.checked_add(n).filter(|total| *total <= limit)
            })
            .is_ok()
    }

    /// Rolls all cells that count no more, if that makes room for `n`. Returns whether it did.
    fn roll(&self, state: &SlidingState, now: Stamp, cut: &Cut, n: u64) -> bool {
        let over = |cell: Cell| !cut.counts(cell, now);
        let old: u64 = self.cells(state).filter(|cell| over(*cell)).map(|cell| cell.count).sum();
        let total = state.total.load(Ordering::Relaxed);
        // A refusal writes nothing.
        if old == 0 || total.saturating_sub(old).saturating_add(n) > u64::from(cut.window.limit) {
            return false;
        }
        self.roll_all(state, over);
        true
    }

    /// Rolls all cells that are over.
    fn roll_all(&self, state: &SlidingState, over: impl Fn(Cell) -> bool) {
        for cell in &state.cells {
            let over = |cell: Cell| cell.count > 0 && over(cell);
            let rolled = replace(cell, |cell| over(cell).then_some(Cell { count: 0, ..cell }));
            if let Some((old, _)) = rolled {
                state.total.fetch_sub(old.count, Ordering::Relaxed);
            }
        }
    }

    /// Takes up to `n` out of the cell that begins at a time, if it is still there. Returns how many.
    fn take_out(&self, state: &SlidingState, beginning: Stamp, n: u64) -> u64 {
        let (_, index) = self.place(beginning, &self.cut());
        let taken = replace(&state.cells[index], |cell| {
            let here = cell.beginning == beginning && cell.count > 0 && n > 0;
            here.then(|| Cell { count: cell.count.saturating_sub(n), ..cell })
        });
        let taken = taken.map_or(0, |(old, new)| old.count - new.count);
        state.total.fetch_sub(taken, Ordering::Relaxed);
        taken
    }

    fn cells<'a>(&self, state: &'a SlidingState) -> impl Iterator<Item = Cell> + 'a {
        state.cells.iter().map(|cell| Cell::decode(cell.load(Ordering::Acquire)))
    }

    /// The cells that count, oldest first.
    fn counting<'a>(
        &self,
        state: &'a SlidingState,
        now: Stamp,
        cut: &'a Cut,
    ) -> impl Iterator<Item = Cell> + 'a {
        let (_, index) = self.place(now, cut);
        let (newer, older) = state.cells.split_at(index + 1);
        let ring = older.iter().chain(newer).map(|cell| Cell::decode(cell.load(Ordering::Acquire)));
        let counting = ring.filter(move |cell| cut.counts(*cell, now));
        // Those of the future come last: the clock went back.
        let (past, future) = (counting.clone(), counting);
        past.filter(move |cell| cell.beginning <= now).chain(future.filter(move |cell| cell.beginning > now))
    }

    /// The permits that count.
    fn sum(&self, state: &SlidingState, now: Stamp, cut: &Cut) -> u64 {
        self.cells(state).filter(|cell| cut.counts(*cell, now)).map(|cell| cell.count).sum()
    }

    /// When `need` permits are free, if they are taken as they come; `now` is the beginning of the cell of now.
    fn due(&self, state: &SlidingState, now: Stamp, cut: &Cut, need: u64) -> Stamp {
        let limit = u64::from(cut.window.limit);
        // Each full limit takes a span: what is granted then drops out a span later.
        let spans = need.saturating_sub(1) / limit;
        let rest = need - spans * limit;
        let mut missing = (self.sum(state, now, cut) + rest).saturating_sub(limit);
        let mut due = now;
        for cell in self.counting(state, now, cut) {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(cell.count);
            due = cell.beginning.saturating_add(cut.span);
        }
        due.saturating_add(cut.span.saturating_mul(spans))
    }
}

impl Policy for SlidingWindow {
    type State = SlidingState;
    type Charge = SlidingCharge;

    fn start(&self, _now: Nanos) -> SlidingState {
        let cells = (0..self.window.cells()).map(|_| AtomicU128::new(0)).collect();
        SlidingState { total: AtomicU64::new(0), cells }
    }

    fn try_acquire(&self, state: &SlidingState, at: Nanos, n: u32) -> Result<SlidingCharge, Refusal> {
        let (cut, version, at_stamp) = (self.cut(), self.window.version(), stamp(at));
        cut.window.check(n)?;
        if cut.window.unlimited {
            return Ok(SlidingCharge { beginning: 0, version: 0, n: 0 });
        }
        if n > cut.window.limit {
            return Err(limited(Nanos::MAX, at));
        }
        while !self.reserve(state, u64::from(n), &cut) {
            // Read again: it may have become longer since, and then less is over.
            let cut = self.cut();
            let (now, _) = self.place(at_stamp, &cut);
            if !self.roll(state, now, &cut, u64::from(n)) {
                if self.is_retired(state) {
                    return Err(limited(Nanos::MAX, at));
                }
                let due = time_of(self.due(state, now, &cut, u64::from(n)));
                // At least a moment, where somebody is between two steps.
                return Err(limited(due.max(at.saturating_add(Nanos::new(1))), at));
            }
        }
        let beginning = self.count(state, at_stamp, &cut, u64::from(n));
        Ok(SlidingCharge { beginning, version, n })
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.window.get().check(n)
    }

    fn weight(&self, n: u32) -> u64 {
        u64::from(n)
    }

    fn ready_at(&self, state: &SlidingState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        let cut = self.cut();
        if cut.window.unlimited || n == 0 {
            return at;
        }
        if n > cut.window.limit || self.is_retired(state) {
            return Nanos::MAX;
        }
        let (now, _) = self.place(stamp(at), &cut);
        time_of(self.due(state, now, &cut, ahead.saturating_add(u64::from(n))))
    }

    fn undo(&self, state: &SlidingState, _at: Nanos, charge: SlidingCharge, _lowest: u64) -> u64 {
        if charge.n > 0 && charge.version == self.window.version() {
            self.take_out(state, charge.beginning, u64::from(charge.n));
        }
        u64::MAX
    }

    /// From the oldest cells that count, which would drop out first.
    fn refund(&self, state: &SlidingState, at: Nanos, n: u32) -> u64 {
        let cut = self.cut();
        let (now, _) = self.place(stamp(at), &cut);
        let mut left = u64::from(n);
        for known in self.counting(state, now, &cut) {
            left -= self.take_out(state, known.beginning, left);
        }
        u64::MAX
    }

    fn unused(&self, charge: SlidingCharge, n: u32, used: u32) -> Option<SlidingCharge> {
        n.checked_sub(used).filter(|n| *n > 0).map(|n| SlidingCharge { n: charge.n.min(n), ..charge })
    }

    fn debit(&self, state: &SlidingState, at: Nanos, n: u32) {
        let (cut, n) = (self.cut(), u64::from(n));
        if cut.window.unlimited || n == 0 {
            return;
        }
        let more = |total: u64| (total < MOST_OWED).then(|| total + n);
        if state.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
            self.count(state, stamp(at), &cut, n);
        }
    }

    fn retire(&self, state: &SlidingState, at: Nanos) -> bool {
        let cut = self.cut();
        let (now, _) = self.place(stamp(at), &cut);
        let total = state.total.load(Ordering::Relaxed);
        let counts = |cell: &Cell| !cut.window.unlimited && cut.counts(*cell, now);
        // What counts, and what is between two steps, stays.
        let old: u64 = self.cells(state).filter(|cell| !counts(cell)).map(|cell| cell.count).sum();
        if old != total {
            return false;
        }
        self.roll_all(state, |cell| !counts(&cell));
        // Only from zero: then all cells are empty, and nobody is between two steps.
        state.total.compare_exchange(0, DEAD, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn is_retired(&self, state: &SlidingState) -> bool {
        state.total.load(Ordering::Relaxed) == DEAD
    }

    fn change(&self, state: &SlidingState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        let change = change.without_burst()?;
        let rate = change.rate.unwrap_or(self.rate());
        let (old, new) = (self.cut(), Cut::new(self.window.with(rate), self.window.cells()));
        let (keep, at) = (change.keep.unwrap_or(Keep::Count), stamp(at));
        let (now, _) = self.place(at, &old);
        // A longer window is published first, so that nobody takes a cell to be over that is not.
        if new.span > old.span {
            self.window.set(rate);
        }
        // All are taken out before any is put back, since both share the ring. The sum keeps them meanwhile.
        let taken: Vec<_> = state
            .cells
            .iter()
            .filter_map(|cell| {
                replace(cell, |cell| (cell.beginning > 0).then_some(Cell { count: 0, beginning: 0 }))
            })
            .map(|(cell, _)| cell)
            .collect();
        self.window.set(rate);
        for cell in taken {
            let count = match old.counts(cell, now) {
                true => old.window.carried_over(cell.count, &new.window, keep),
                false => 0,
            };
            state.total.fetch_add(count, Ordering::Relaxed);
            // By its last moment: counted too long rather than too short.
            let last = cell.beginning.saturating_add(old.window.piece - 1).min(at);
            let carried = Cell { beginning: self.place(last, &new).0, count };
            let kept = new.counts(carried, self.place(at, &new).0);
            if kept {
                self.count(state, last, &new, count);
            }
            let gone = if kept { cell.count } else { cell.count + count };
            state.total.fetch_sub(gone, Ordering::Relaxed);
        }
        Ok(u64::MAX)
    }

    fn rate(&self) -> Rate {
        self.window.rate()
    }

    fn status(&self, state: &SlidingState, at: Nanos) -> PolicyStatus {
        let cut = self.cut();
        if cut.window.unlimited {
            return PolicyStatus { limit: u64::MAX, available: u64::MAX, full_at: at };
        }
        let limit = u64::from(cut.window.limit);
        if self.is_retired(state) {
            return PolicyStatus { limit, available: 0, full_at: Nanos::MAX };
        }
        let (now, _) = self.place(stamp(at), &cut);
        let sum = self.sum(state, now, &cut);
        let full_at = self
            .counting(state, now, &cut)
            .last()
            .map_or(at, |cell| time_of(cell.beginning.saturating_add(cut.span)));
        PolicyStatus { limit, available: limit.saturating_sub(sum), full_at }
    }

    fn catches_up(&self) -> bool {
        false
    }

    fn anchored(self, unix_time_at_zero: Duration) -> SlidingWindow {
        SlidingWindow { window: self.window.anchored(unix_time_at_zero) }
    }
}
