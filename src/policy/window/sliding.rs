//! Sliding window of cells: a window that advances by a cell, and drops the oldest.
//!
//! # Algorithm
//!
//! Cut the window into cells, count the permits of each, and let the sum of the last `k` cells
//! decide. When time enters a new cell, the oldest cell drops out, with all permits counted in it.
//! More cells come closer to a window that really slides.
//!
//! A counter that first adds up the cells and then adds a permit lets too many permits through:
//! between its two steps other threads add permits, too. Here the sum is a difference of two
//! totals, and the newest total is in the word that a grant replaces.
//!
//! | a decision | reads |
//! |---|---|
//! | a grant | the head, and the oldest cell that counts with its neighbour |
//! | a refusal | the words that a grant reads, and for one permit the next cell; for `n` permits, or if more permits are counted than the limit allows, a binary search for the cells that have to drop out: `log2(k)` reads |
//! | either, when the oldest cell has dropped out since the last grant | `log2(k)` additional cells |
//!
//! # State
//!
//! A head of 128 bits and a ring of cells: see `policy/window/cells.rs`, which has the protocol and
//! the argument.
//!
//! Every operation acts as of its clock reading or as of the last grant, whichever is later.
//!
//! # Invariant
//!
//! At most `limit` permits are granted in any `k` consecutive cells, and therefore in any period of
//! `(k - 1) / k` of the window; up to twice as many in a whole window that begins and ends within a
//! cell. Tests: `tests/policy/window_properties.rs`.
//!
//! # Source
//!
//! `LeapArray` of Alibaba Sentinel 1.8.9, where check and add are two steps.

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::window::cells::{Cells, Head, View};
use crate::policy::window::closable::OpenWord;
use crate::policy::window::{CurrentWindow, Stamp, Window, common_to_windows, stamp, time_of};
use crate::policy::{Change, Crowd, Forecast, Keep, Policy, PolicyStatus, limited, limited_for_now};
use crate::rate::Rate;
use crate::time::Nanos;

/// Grants at most a number of permits in the current cell of the period and the other cells before
/// it.
///
/// With six cells and `100/min`, no 50 seconds ever have more than 100 permits: in any period of
/// the window minus one cell the limit is kept exactly. **In a whole window up to twice as many can
/// pass**, at its two ends. More cells come closer. A cell takes 16 bytes, and memory holds one
/// cell more than the window has, rounded up to a power of two. One cell is a
/// [`FixedWindow`](crate::policy::FixedWindow). For a hard limit in any window, choose
/// [`SlidingLog`](crate::policy::SlidingLog).
///
/// Concurrent requests never get more permits, because one word decides. A decision with a thousand
/// cells costs as much as with ten. A request for more than the limit is never granted.
///
/// When the rate changes, counted permits stay counted, in the cell that contains their time:
/// [`Keep::Count`]. If a future is dropped directly after a change, with its permit granted but not
/// yet seen, the permit is not given back.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, SlidingWindow};
///
/// let clock = ManualClock::new();
/// let policy = SlidingWindow::new(Rate::per_minute(100), 6);
/// let limiter = RateLimiter::with_clock(policy, clock.clone());
/// clock.advance(Duration::from_secs(55));
/// limiter.try_acquire_many(100)?;
/// // The cell of 0:50 to 1:00 drops out at 1:50.
/// let refusal = limiter.try_acquire().unwrap_err();
/// assert_eq!(refusal.retry_after(), Some(Duration::from_secs(55)));
/// # Ok::<(), Refusal>(())
/// ```
///
/// # Source
///
/// `LeapArray` of Alibaba Sentinel.
///
/// # Picture
///
#[cfg_attr(doc, doc = include_str!("../../../docs/pictures/sliding_window.svg"))]
#[derive(Clone, Debug)]
pub struct SlidingWindow {
    pub(crate) window: CurrentWindow,
}

/// The state of one [`SlidingWindow`]: a word that decides, and a slot for each cell.
#[derive(Debug)]
pub struct SlidingState {
    pub(crate) cells: Cells,
}

/// What one grant of a [`SlidingWindow`] took.
#[derive(Clone, Copy, Debug)]
pub struct SlidingCharge {
    /// The beginning of the cell in which it is counted.
    beginning: Stamp,
    /// The number of that cell. After a change no cell has this number, and then nothing is given
    /// back.
    number: u64,
    n: u32,
    /// The total of all counts after the grant.
    total: u64,
}

impl SlidingWindow {
    /// Creates a window with the permits and the period of the rate, counted in `cells` cells:
    /// `100/min` in 6 cells of 10 s.
    ///
    /// # Panics
    ///
    /// Panics if the rate is not a whole number of permits, at most `u32::MAX`, in a whole number
    /// of nanoseconds, or if `cells` is 0. For values from a configuration, use
    /// [`try_new`](SlidingWindow::try_new).
    #[must_use]
    #[track_caller]
    pub fn new(rate: Rate, cells: u16) -> SlidingWindow {
        match SlidingWindow::try_new(rate, cells) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a window with the permits and the period of the rate, counted in `cells` cells.
    ///
    /// # Errors
    ///
    /// - [`PolicyError::NotWhole`] if the rate is not a whole number of permits, at most
    ///   `u32::MAX`, in a whole number of nanoseconds.
    /// - [`PolicyError::NoCells`] if `cells` is 0.
    pub fn try_new(rate: Rate, cells: u16) -> Result<SlidingWindow, PolicyError> {
        if cells == 0 {
            return Err(PolicyError::NoCells);
        }
        Ok(SlidingWindow { window: CurrentWindow::new(rate, cells)? })
    }

    /// Makes cells begin by the wall clock, `offset` after the periods of Unix time, which is UTC.
    #[must_use]
    pub fn at_wall_clock(self, offset: Duration) -> SlidingWindow {
        SlidingWindow { window: self.window.at_wall_clock(offset) }
    }

    fn span(&self, window: &Window) -> u64 {
        window.piece * u64::from(self.window.cells())
    }

    #[inline(never)]
    fn view(&self, state: &SlidingState, seen: OpenWord<127, 0>, window: &Window, at: Nanos) -> View {
        state.cells.view(Head::decode(seen.content()), window, self.window.cells(), stamp(at))
    }

    /// Calls `inspect` with the state when no change is in progress. `inspect` returns `None` if
    /// the view turns out to be outdated.
    fn inspect<R>(
        &self,
        state: &SlidingState,
        at: Nanos,
        inspect: impl Fn(&View, &Window) -> Option<R>,
    ) -> R {
        loop {
            let seen = state.cells.head.settled(|| self.window.wait());
            let window = self.window.get();
            let view = self.view(state, seen, &window, at);
            if let Some(result) = inspect(&view, &window)
                && state.cells.is_current(&view)
            {
                return result;
            }
        }
    }

    /// Returns the status without the last `later` permits.
    fn status_without(&self, state: &SlidingState, at: Nanos, later: impl Fn(&View) -> u64) -> PolicyStatus {
        self.inspect(state, at, |view, window| {
            if window.unlimited {
                return Some(PolicyStatus::unlimited(at));
            }
            let limit = u64::from(window.limit);
            let sum = view.sum.saturating_sub(later(view));
            let drops_out = |missing| match missing {
                0 => Some(at),
                missing => state.cells.drops_out(view, missing).map(time_of),
            };
            let next_at = match limit {
                0 => Nanos::MAX,
                limit => drops_out((sum + 1).saturating_sub(limit))?,
            };
            Some(PolicyStatus {
                limit,
                available: limit.saturating_sub(sum),
                next_at,
                full_at: drops_out(sum)?,
            })
        })
    }

    /// Returns when `need` permits are free, if they are taken as they become free.
    fn due(&self, state: &SlidingState, view: &View, window: &Window, need: u64) -> Option<Stamp> {
        let limit = u64::from(window.limit);
        // Each full limit takes one window: permits that are granted then drop out one window
        // later.
        let spans = need.saturating_sub(1) / limit;
        let missing = (need - spans * limit + view.sum).saturating_sub(limit);
        let first = if missing == 0 { view.beginning } else { state.cells.drops_out(view, missing)? };
        Some(first.saturating_add(view.span.saturating_mul(spans)))
    }
}

impl Shut for SlidingWindow {
    fn shut(&self, state: &SlidingState, now: &dyn Fn() -> Nanos) -> Remainder {
        let _giving = state.cells.giving();
        let (cells, at) = (self.window.cells(), stamp(now()));
        self.window.shut(&state.cells.head, |content, old, new| {
            let view = state.cells.view(Head::decode(content), old, cells, at);
            // The new content has new numbers: a request that stalls does not find its head again.
            let content = state.cells.carry_over(content, at, (old, new), cells, Keep::Count);
            (u64::from(old.limit).saturating_sub(view.sum), content)
        })
    }
}

impl Policy for SlidingWindow {
    type State = SlidingState;
    type Charge = SlidingCharge;

    common_to_windows!(SlidingCharge);

    fn start(&self, _now: Nanos) -> SlidingState {
        SlidingState { cells: Cells::new(self.window.cells()) }
    }

    fn try_acquire(&self, state: &SlidingState, at: Nanos, n: u32) -> Result<SlidingCharge, Refusal> {
        loop {
            let Some(seen) = state.cells.head.load() else {
                return Err(limited_for_now(at));
            };
            let window = self.window.get();
            if window.needs_no_count(n) {
                window.without_count(n, at)?;
                return Ok(SlidingCharge { beginning: 0, number: 0, n: 0, total: 0 });
            }
            // Inlined here, where speed matters, and nowhere else.
            let head = Head::decode(seen.content());
            let view = state.cells.view(head, &window, self.window.cells(), stamp(at));
            let missing = (view.sum + u64::from(n)).saturating_sub(u64::from(window.limit));
            if missing == 0 {
                if let Some(number) = state.cells.count(seen, &view, n.into()) {
                    let total = view.total_with(n.into());
                    return Ok(SlidingCharge { beginning: view.beginning, number, n, total });
                }
            } else if let Some(due) = state.cells.drops_out(&view, missing)
                && state.cells.is_current(&view)
            {
                return Err(limited(time_of(due), at));
            }
        }
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.window.get().check(n)
    }

    fn ready_at(&self, state: &SlidingState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        self.inspect(state, at, |view, window| {
            if window.unlimited || n == 0 {
                return Some(at);
            }
            if n > window.limit {
                return Some(Nanos::MAX);
            }
            let need = ahead.saturating_add(u64::from(n));
            if view.sum.saturating_add(need) <= u64::from(window.limit) {
                return Some(at);
            }
            self.due(state, view, window, need).map(time_of)
        })
    }

    /// Records which cells count, and when each of them is over.
    fn forecast(&self, state: &SlidingState, at: Nanos) -> Forecast {
        self.inspect(state, at, |view, window| {
            let mut forecast = Forecast::new(at);
            if !window.unlimited {
                forecast.numbers[0] = view.sum;
                for (end, count) in state.cells.counting(view)? {
                    forecast.add_expiry(end, count);
                }
            }
            // An older clock reading counts in the cell of the last grant.
            forecast.numbers[1] = view.beginning;
            Some(forecast)
        })
    }

    fn predict(&self, _state: &SlidingState, forecast: &mut Forecast, n: u32) -> Nanos {
        let window = self.window.get();
        if window.unlimited {
            return forecast.at;
        }
        if n > window.limit {
            return Nanos::MAX;
        }
        let most = u64::from(window.limit - n);
        let mut due = stamp(forecast.at);
        let mut now = window.beginning(due.max(forecast.numbers[1]));
        while let Some((end, count)) = forecast.next_expiry()
            && (end <= now || forecast.numbers[0] > most)
        {
            forecast.pop_expiry();
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
        forecast.add_expiry(now.saturating_add(self.span(&window)), n.into());
        forecast.at
    }

    fn predict_many(&self, _state: &SlidingState, forecast: &mut Forecast, crowd: &Crowd) {
        let window = self.window.get();
        if window.unlimited || crowd.requests == 0 {
            return;
        }
        let (limit, span) = (u64::from(window.limit), self.span(&window));
        let now = window.beginning(stamp(forecast.at).max(forecast.numbers[1]));
        let now = now.saturating_add(crowd.spans(limit).saturating_mul(span));
        // As if the last cell had all of them.
        *forecast = Forecast::new(time_of(now).max(forecast.at));
        forecast.numbers = [limit, now, 0];
        forecast.add_expiry(now.saturating_add(span), limit);
    }

    fn undo(&self, state: &SlidingState, _at: Nanos, charge: SlidingCharge, _most: u64) -> u64 {
        let SlidingCharge { beginning, number, n, .. } = charge;
        state.cells.give_back(|| self.window.wait(), number, beginning, n.into());
        u64::MAX
    }

    /// Takes from the oldest cells that count, which would drop out first.
    fn refund(&self, state: &SlidingState, at: Nanos, n: u32) -> u64 {
        let giving = state.cells.giving();
        loop {
            let seen = state.cells.head.settled(|| self.window.wait());
            let view = self.view(state, seen, &self.window.get(), at);
            if state.cells.give_back_oldest(seen, &view, n.into(), &giving) {
                return u64::MAX;
            }
        }
    }

    fn debit(&self, state: &SlidingState, at: Nanos, n: u32) {
        loop {
            let seen = state.cells.head.settled(|| self.window.wait());
            let window = self.window.get();
            if window.unlimited || n == 0 {
                return;
            }
            let view = self.view(state, seen, &window, at);
            if state.cells.debit(seen, &view, n.into()).is_some() {
                return;
            }
        }
    }

    fn keep_at_most(&self, state: &SlidingState, at: Nanos, permits: u64) -> u64 {
        loop {
            let seen = state.cells.head.settled(|| self.window.wait());
            let window = self.window.get();
            if window.unlimited {
                return 0;
            }
            let view = self.view(state, seen, &window, at);
            match u64::from(window.limit).saturating_sub(view.sum).saturating_sub(permits) {
                // If the view is outdated, more may be available.
                0 if state.cells.is_current(&view) => return 0,
                0 => {}
                taken => {
                    if state.cells.count(seen, &view, taken).is_some() {
                        return taken;
                    }
                }
            }
        }
    }

    fn change(&self, state: &SlidingState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        let change = change.without_burst("sliding_window")?;
        let (keep, at) = (change.keep.unwrap_or(Keep::Count), stamp(at));
        let _giving = state.cells.giving();
        self.window.change(&state.cells.head, change.rate, |content, old, new| {
            state.cells.carry_over(content, at, (old, new), self.window.cells(), keep)
        });
        Ok(u64::MAX)
    }

    /// The number of cells, and the times at which they begin, cannot be changed.
    fn change_to(&self, new: &SlidingWindow) -> Option<Change> {
        (self.window.begins_like(&new.window)).then(|| Change::rate(new.rate()))
    }

    fn status(&self, state: &SlidingState, at: Nanos) -> PolicyStatus {
        self.status_without(state, at, |_| 0)
    }

    fn left(&self, state: &SlidingState, charge: SlidingCharge, at: Nanos) -> PolicyStatus {
        let SlidingCharge { number, beginning, total, .. } = charge;
        self.status_without(state, at, |view| state.cells.counted_since(view, number, beginning, total))
    }

    fn with_epoch(self, unix_time_at_zero: Duration) -> SlidingWindow {
        SlidingWindow { window: self.window.with_epoch(unix_time_at_zero) }
    }
}
