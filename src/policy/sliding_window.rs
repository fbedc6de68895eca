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
//! Shared: `total`, and `k` cells, each of one word:
//!
//! | bits | name | unit | at the edges |
//! |---|---|---|---|
//! | 64..128 | beginning of the cell | ns | a clock that goes back counts in the later cell |
//! | 48..64 | generation | changes of the terms | wraps: see below |
//! | 0..48 | count | permits | all cells that there can be, each full, fit |
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
//! **A change of the terms** is published first. Then the change takes out the cells one by one, and puts back what they held where it
//! belongs by the new cut; the sum keeps it meanwhile. Others go on, by the old terms or the new ones, and the **generation** in each cell
//! tells by which terms it was cut: the version of the terms that who wrote it last had read.
//!
//! | the cell was cut by | who comes does | why nothing is forgotten |
//! |---|---|---|
//! | its own terms | count, roll | as if nothing changed; by old terms, as if it had come before the change |
//! | newer terms | nothing: it reads the terms again, and decides anew | the cell may begin earlier, and still count |
//! | older terms | takes it to be as long as the longest cell that there ever was, and counts in it while it is not over | it ends later than in truth |
//! | any terms, and is empty | count | there is nothing to forget |
//!
//! The bad execution: a taker cuts by old terms, and finds in its place a cell that the change has put there by the new ones. It begins
//! earlier, so the taker takes it to be over. But whoever stamped that cell had read the new version before, and releases it with the
//! cell; so the taker, which acquires the cell, then sees a version other than the one that it cut by, and reads again. It does not spin:
//! the terms were published before the first cell got their generation, so reading again shows them.
//!
//! A generation has 16 bits. If it looks newer, and the version says that there is nothing newer, it is older, by more than 2^15 changes.
//! By exactly 2^16 of them it looks the same: then a cell that nobody touched all that time is taken to be as short as a new one.
//!
//! **Checked by** `loom-tests/sliding_window.rs`, with twins that add to the cell first, and that release before they roll; and by
//! `loom-tests/change.rs`, with a twin that does not look at the generation.
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
use crate::policy::{Change, Crowd, Forecast, Keep, Policy, PolicyStatus, limited};
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
/// When the rate changes, what was counted stays counted, in the cell in which its time lies: [`Keep::Count`]. A permit that was granted but
/// not yet seen by its future, and is given up right after a change, is not given back.
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
/// assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: Duration::from_secs(55).into() }));
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

/// A sum that debits do not exceed, as high as no limit is.
const MOST_OWED: u64 = 1 << 40;

/// A counter, and the time from which it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) beginning: Stamp,
    /// The lowest bits of the version of the terms by which it was cut.
    pub(crate) generation: u16,
    /// 48 bits.
    pub(crate) count: u64,
}

/// The largest count. What does not fit stays in the sum, and so in force.
const MOST_COUNTED: u64 = (1 << 48) - 1;

impl Cell {
    pub(crate) fn decode(bits: u128) -> Cell {
        // The parts.
        #[allow(clippy::cast_possible_truncation)]
        let (beginning, generation, count) = ((bits >> 64) as u64, (bits >> 48) as u16, bits as u64);
        Cell { beginning, generation, count: count & MOST_COUNTED }
    }

    fn encode(self) -> u128 {
        let Cell { beginning, generation, count } = self;
        u128::from(beginning) << 64 | u128::from(generation) << 48 | u128::from(count.min(MOST_COUNTED))
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
    /// The longest cell of all terms before these.
    longest: u64,
    /// Of the terms.
    version: u64,
}

impl Cut {
    // The lowest bits.
    #[allow(clippy::cast_possible_truncation)]
    fn generation(&self) -> u16 {
        self.version as u16
    }

    fn is_own(&self, cell: Cell) -> bool {
        cell.generation == self.generation()
    }

    /// Whether a cell may be cut by newer terms.
    fn is_behind(&self, cell: Cell) -> bool {
        cell.generation.wrapping_sub(self.generation()).cast_signed() > 0
    }

    /// How long a cell of older terms may be; of these, its own length is in the span.
    fn more(&self, cell: Cell) -> u64 {
        if self.is_own(cell) { 0 } else { self.longest }
    }

    /// When a cell counts no more.
    fn end(&self, cell: Cell) -> Stamp {
        cell.beginning.saturating_add(self.span).saturating_add(self.more(cell))
    }

    /// Whether a cell still counts in the cell that begins at `now`.
    fn counts(&self, cell: Cell, now: Stamp) -> bool {
        cell.count > 0 && self.end(cell) > now
    }

    /// What a cell is when `n` permits more are counted, of the cell that begins at a time and takes its place.
    fn counted(&self, cell: Cell, beginning: Stamp, n: u64) -> Cell {
        let new = Cell { beginning, generation: self.generation(), count: n };
        // Of this cell, or of a later one if time went on, or back.
        let in_it = Cell { count: cell.count + n, ..cell };
        match self.is_own(cell) {
            true if beginning > cell.beginning => new,
            true => in_it,
            false if !self.counts(cell, beginning) => new,
            // All of it lies before: counted too long rather than too short.
            false if cell.beginning.saturating_add(self.longest) <= beginning.saturating_add(1) => {
                Cell { count: cell.count + n, ..new }
            }
            false => in_it,
        }
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
        let (window, longest, version) = self.window.get_with_history();
        Cut { window, span: window.piece * u64::from(self.window.cells()), longest, version }
    }

    /// Whether a cell that was just looked at is cut by these terms or by older ones.
    #[inline]
    fn knows(&self, cut: &Cut, cell: Cell) -> bool {
        // Whoever cut it by newer terms had seen their version, and released it with the cell.
        !cut.is_behind(cell) || self.window.version() == cut.version
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

    /// Counts `n` permits that were reserved. Returns what they are given back by.
    fn count(&self, state: &SlidingState, at: Stamp, cut: &Cut, n: u64) -> (Stamp, u64) {
        let mut cut = *cut;
        loop {
            let (beginning, index) = self.place(at, &cut);
            let counted = replace(&state.cells[index], |cell| {
                self.knows(&cut, cell).then(|| cut.counted(cell, beginning, n))
            });
            let Some((old, new)) = counted else {
                cut = self.cut();
                continue;
            };
            // Less than both together: the old ones are over.
            if new.count < old.count + n {
                state.total.fetch_sub(old.count, Ordering::Relaxed);
            }
            return (new.beginning, cut.version);
        }
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
        let over = |cell: Cell| self.is_over(cell, now, cut);
        let old: u64 = self.cells(state).filter(|cell| over(*cell)).map(|cell| cell.count).sum();
        let total = state.total.load(Ordering::Relaxed);
        // A refusal writes nothing.
        if old == 0 || total.saturating_sub(old).saturating_add(n) > u64::from(cut.window.limit) {
            return false;
        }
        for cell in &state.cells {
            let rolled = replace(cell, |cell| over(cell).then_some(Cell { count: 0, ..cell }));
            if let Some((old, _)) = rolled {
                state.total.fetch_sub(old.count, Ordering::Relaxed);
            }
        }
        true
    }

    /// Whether a cell that was just looked at counts no more.
    fn is_over(&self, cell: Cell, now: Stamp, cut: &Cut) -> bool {
        cell.count > 0 && !cut.counts(cell, now) && self.knows(cut, cell)
    }

    /// Takes up to `n` out of a cell, if it is still the same. Returns how many.
    fn take_out(&self, state: &SlidingState, index: usize, known: Cell, n: u64) -> u64 {
        let taken = replace(&state.cells[index], |cell| {
            let same = cell.beginning == known.beginning && cell.generation == known.generation;
            let here = same && cell.count > 0 && n > 0;
            here.then(|| Cell { count: cell.count.saturating_sub(n), ..cell })
        });
        let taken = taken.map_or(0, |(old, new)| old.count - new.count);
        state.total.fetch_sub(taken, Ordering::Relaxed);
        taken
    }

    fn cells<'a>(&self, state: &'a SlidingState) -> impl Iterator<Item = Cell> + 'a {
        state.cells.iter().map(|cell| Cell::decode(cell.load(Ordering::Acquire)))
    }

    /// The cells that count, oldest first, each with its place in the ring.
    fn counting<'a>(
        &self,
        state: &'a SlidingState,
        now: Stamp,
        cut: &'a Cut,
    ) -> impl Iterator<Item = (usize, Cell)> + 'a {
        let (_, index) = self.place(now, cut);
        let ring = (index + 1..state.cells.len()).chain(0..=index);
        let ring = ring.map(|index| (index, Cell::decode(state.cells[index].load(Ordering::Acquire))));
        let counting = ring.filter(move |(_, cell)| cut.counts(*cell, now));
        // Those of the future come last: the clock went back.
        let (past, future) = (counting.clone(), counting);
        let past = past.filter(move |(_, cell)| cell.beginning <= now);
        past.chain(future.filter(move |(_, cell)| cell.beginning > now))
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
        for (_, cell) in self.counting(state, now, cut) {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(cell.count);
            due = cut.end(cell);
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
        let (cut, at_stamp) = (self.cut(), stamp(at));
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
                let due = time_of(self.due(state, now, &cut, u64::from(n)));
                // At least a moment, where somebody is between two steps.
                return Err(limited(due.max(at.saturating_add(Nanos::new(1))), at));
            }
        }
        let (beginning, version) = self.count(state, at_stamp, &cut, u64::from(n));
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
        if n > cut.window.limit {
            return Nanos::MAX;
        }
        let (now, _) = self.place(stamp(at), &cut);
        time_of(self.due(state, now, &cut, ahead.saturating_add(u64::from(n))))
    }

    /// Single permits fill a window to its last place, and larger requests may not.
    fn one_by_one(&self, largest: u32) -> usize {
        if largest > 1 { usize::MAX } else { 0 }
    }

    /// Which cells count, and when each of them is over.
    fn forecast(&self, state: &SlidingState, at: Nanos) -> Forecast {
        let (cut, mut forecast) = (self.cut(), Forecast::new(at));
        if cut.window.unlimited {
            return forecast;
        }
        let (now, _) = self.place(stamp(at), &cut);
        // A cell of older terms may end within a cell of these, and counts until that one is over.
        let first_after = |end| match self.place(end, &cut).0 {
            beginning if beginning < end => beginning.saturating_add(cut.window.piece),
            beginning => beginning,
        };
        let counting = self.counting(state, now, &cut);
        let mut cells: Vec<_> = counting.map(|(_, cell)| (first_after(cut.end(cell)), cell.count)).collect();
        cells.sort_unstable();
        forecast.numbers[0] = cells.iter().map(|(_, count)| count).sum();
        cells.into_iter().for_each(|(end, count)| forecast.comes_back(end, count));
        forecast
    }

    fn foresee(&self, _state: &SlidingState, forecast: &mut Forecast, n: u32) -> Nanos {
        let cut = self.cut();
        if cut.window.unlimited {
            return forecast.at;
        }
        if n > cut.window.limit {
            return Nanos::MAX;
        }
        let most = u64::from(cut.window.limit - n);
        let mut due = stamp(forecast.at);
        let (mut now, _) = self.place(due, &cut);
        while let Some((end, count)) = forecast.next_back()
            && (end <= now || forecast.numbers[0] > most)
        {
            forecast.pass();
            forecast.numbers[0] -= count;
            if end > now {
                (due, now) = (end, end);
            }
        }
        if time_of(due) == Nanos::MAX {
            return Nanos::MAX;
        }
        forecast.at = forecast.at.max(time_of(due));
        forecast.numbers[0] += u64::from(n);
        forecast.comes_back(now.saturating_add(cut.span), n.into());
        forecast.at
    }

    fn foresee_many(&self, _state: &SlidingState, forecast: &mut Forecast, crowd: &Crowd) {
        let cut = self.cut();
        if cut.window.unlimited || crowd.requests == 0 {
            return;
        }
        let limit = u64::from(cut.window.limit);
        let (now, _) = self.place(stamp(forecast.at), &cut);
        let now = now.saturating_add(crowd.spans(limit).saturating_mul(cut.span));
        // As if the last cell had all of them.
        *forecast = Forecast::new(time_of(now).max(forecast.at));
        forecast.numbers[0] = limit;
        forecast.comes_back(now.saturating_add(cut.span), limit);
    }

    fn undo(&self, state: &SlidingState, _at: Nanos, charge: SlidingCharge, _most: u64) -> u64 {
        let cut = self.cut();
        if charge.n > 0 && charge.version == cut.version {
            let (beginning, index) = self.place(charge.beginning, &cut);
            let known = Cell { beginning, generation: cut.generation(), count: 0 };
            self.take_out(state, index, known, u64::from(charge.n));
        }
        u64::MAX
    }

    /// From the oldest cells that count, which would drop out first.
    fn refund(&self, state: &SlidingState, at: Nanos, n: u32) -> u64 {
        let cut = self.cut();
        let (now, _) = self.place(stamp(at), &cut);
        let mut left = u64::from(n);
        for (index, known) in self.counting(state, now, &cut) {
            left -= self.take_out(state, index, known, left);
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

    fn change(&self, state: &SlidingState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        let change = change.without_burst()?;
        let rate = change.rate.unwrap_or(self.rate());
        let (keep, at, old) = (change.keep.unwrap_or(Keep::Count), stamp(at), self.cut());
        let (now, _) = self.place(at, &old);
        self.window.set(rate);
        let new = self.cut();
        // All are taken out before any is put back, since both share the ring. The sum keeps them meanwhile.
        let take_out = |cell: &AtomicU128| {
            replace(cell, |cell| {
                let old = !new.is_own(cell) && self.knows(&new, cell);
                old.then_some(Cell { beginning: 0, generation: new.generation(), count: 0 })
            })
        };
        let taken: Vec<_> = state.cells.iter().filter_map(take_out).map(|(cell, _)| cell).collect();
        for cell in taken.into_iter().filter(|cell| cell.count > 0) {
            let count = match old.counts(cell, now) {
                true => old.window.carried_over(cell.count, &new.window, keep),
                false => 0,
            };
            state.total.fetch_add(count, Ordering::Relaxed);
            // By its last moment: counted too long rather than too short.
            let length = if old.is_own(cell) { old.window.piece } else { new.longest };
            let last = cell.beginning.saturating_add(length - 1).min(at.max(cell.beginning));
            let (beginning, _) = self.place(last, &new);
            let carried = Cell { beginning, generation: new.generation(), count };
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
        let (now, _) = self.place(stamp(at), &cut);
        let sum = self.sum(state, now, &cut);
        let full_at = self.counting(state, now, &cut).last().map_or(at, |(_, cell)| time_of(cut.end(cell)));
        PolicyStatus { limit, available: limit.saturating_sub(sum), full_at }
    }

    fn catches_up(&self) -> bool {
        false
    }

    fn anchored(self, unix_time_at_zero: Duration) -> SlidingWindow {
        SlidingWindow { window: self.window.anchored(unix_time_at_zero) }
    }
}
