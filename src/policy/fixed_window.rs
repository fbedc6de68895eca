//! Fixed window: a counter that starts anew each period.
//!
//! # Algorithm
//!
//! Count the permits of this minute; when the next minute begins, begin at zero. The cheapest rule, and the one that most
//! services publish. What it forgets: the minute before. Whoever takes all permits at the end of one window and all of
//! the next at its beginning has twice the limit in an instant.
//!
//! # State word
//!
//! | bits | name | unit | at the edges |
//! |---|---|---|---|
//! | 64..128 | beginning of the window | ns | a clock that goes back stays in the window that was reached |
//! | 0..64 | permits used in it | | at most the limit, or an old limit that was higher, unless there were debits |
//!
//! # Invariant
//!
//! At most `limit` permits in each window. In any span of length *d* at most `limit * (d / length + 2)`, rounded down; so up to
//! twice the limit within an instant around the edge. Tests: `tests/window_properties.rs`.
//!
//! # Memory ordering
//!
//! One word under the shared loop: see `policy/cell.rs`. A change publishes a longer window before it converts the word, and a shorter one after it.
//! Who sees the word in a longer window also sees that window, and so takes none to be over that is not.
//!
//! # Source
//!
//! The counter of many services; Redis documentation, `INCR`, "Pattern: rate limiter". Anchored at the first grant: tower's `RateLimit`.

use std::convert::Infallible;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::nanos::Nanos;
use crate::policy::cell::{Cell, convert, update};
use crate::policy::window::{CurrentWindow, Stamp, Window, stamp, time_of};
use crate::policy::{Change, Crowd, Forecast, Keep, Policy, PolicyStatus, limited};
use crate::rate::Rate;
use crate::sync::AtomicU128;

/// At most so many permits in each period of time, counted from zero when the next one begins.
///
/// `FixedWindow::new("100/min".parse()?)` grants 100 in each minute. The minutes begin with the limiter's clock, or
/// [by the wall clock](FixedWindow::at_wall_clock), or [with the first permit](FixedWindow::from_first_grant) after the last one ended.
///
/// **At the edge** of two windows twice the limit can pass within an instant. For a server with this very rule that is what it
/// allows; to protect a service, choose [`SlidingWindow`](super::SlidingWindow) or [`SlidingLog`](super::SlidingLog).
///
/// A request for more than the limit can never be had. Those who wait are served together when the window turns, in order, as many as
/// it has permits.
///
/// When the rate changes, what was used stays used: [`Keep::Count`]. A permit that was granted but not yet seen by its future, and is
/// given up right after that, is not given back.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{FixedWindow, ManualClock, Rate, RateLimiter, Refusal};
///
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::with_clock(FixedWindow::new(Rate::per_minute(100)), clock.clone());
/// clock.advance(Duration::from_secs(59));
/// limiter.try_acquire_many(100)?;
/// assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: Duration::from_secs(1).into() }));
/// clock.advance(Duration::from_secs(1));
/// limiter.try_acquire_many(100)?; // 200 within a second
/// # Ok::<(), Refusal>(())
/// ```
///
/// # Source
///
/// Redis documentation, `INCR`, "Pattern: rate limiter".
///
/// # Picture
///
#[cfg_attr(doc, doc = include_str!("../../docs/pictures/fixed_window.svg"))]
#[derive(Clone, Debug)]
pub struct FixedWindow {
    pub(crate) window: CurrentWindow,
    from_first_grant: bool,
}

/// The state of one [`FixedWindow`]: two numbers in one word.
#[derive(Debug)]
pub struct FixedState {
    word: AtomicU128,
}

/// What one grant of a [`FixedWindow`] took.
#[derive(Clone, Copy, Debug)]
pub struct FixedCharge {
    /// The beginning of the window in which it was counted.
    beginning: Stamp,
    /// Of the window's terms: after a change it is not known whether it still counts, and then it is not given back.
    version: u64,
    n: u32,
}

/// The two numbers of the state word.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Word {
    beginning: Stamp,
    used: u64,
}

/// A count that debits do not exceed, as high as no limit is.
const MOST_OWED: u64 = 1 << 63;

impl Word {
    fn decode(bits: u128) -> Word {
        // The two halves.
        #[allow(clippy::cast_possible_truncation)]
        Word { beginning: (bits >> 64) as u64, used: bits as u64 }
    }

    fn encode(self) -> u128 {
        u128::from(self.beginning) << 64 | u128::from(self.used)
    }
}

impl FixedWindow {
    /// As many permits in each period as the rate says: `5000/h` is 5000 in each hour, `2.5/s` is 5 in each 2 s.
    ///
    /// # Panics
    ///
    /// If the rate is not a whole number of permits, at most `u32::MAX`, in a whole number of nanoseconds. For values from a
    /// configuration, use [`try_new`](FixedWindow::try_new).
    #[must_use]
    #[track_caller]
    pub fn new(rate: Rate) -> FixedWindow {
        match FixedWindow::try_new(rate) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// As many permits in each period as the rate says.
    ///
    /// # Errors
    ///
    /// [`PolicyError::NotWhole`] if the rate is not a whole number of permits, at most `u32::MAX`, in a whole number of nanoseconds.
    pub fn try_new(rate: Rate) -> Result<FixedWindow, PolicyError> {
        Ok(FixedWindow { window: CurrentWindow::new(rate, 1)?, from_first_grant: false })
    }

    /// Begins windows by the wall clock, `offset` after the periods of Unix time, which is UTC: with a rate per hour and
    /// no offset at each full hour, with one per day and 8 hours at eight in the morning UTC.
    ///
    /// The wall clock is read once, when the limiter is made. Setting it later moves nothing.
    #[must_use]
    pub fn at_wall_clock(self, offset: Duration) -> FixedWindow {
        FixedWindow { window: self.window.at_wall_clock(offset), from_first_grant: false }
    }

    /// Begins a window with the first permit that is granted after the last window ended.
    #[must_use]
    pub fn from_first_grant(self) -> FixedWindow {
        FixedWindow { from_first_grant: true, ..self }
    }

    /// The window that is open at a time, as it would be written.
    #[inline]
    fn open(&self, word: Word, at: Stamp, window: &Window) -> Word {
        if self.from_first_grant {
            let over = |length| word.used == 0 || at >= word.beginning.saturating_add(length);
            // Read again: it may have become longer since.
            let over = over(window.length) && over(self.window.get().length);
            return if over { Word { beginning: at, used: 0 } } else { word };
        }
        if at.wrapping_sub(word.beginning) < window.length && word.used > 0 {
            // The same window: no need to divide.
            return word;
        }
        let beginning = self.window.get().beginning(at);
        if beginning > word.beginning || word.used == 0 { Word { beginning, used: 0 } } else { word }
    }

    /// Makes the word say in a new window what it says in the old one.
    pub(crate) fn convert(&self, state: &FixedState, now: Stamp, old: &Window, new: &Window, keep: Keep) {
        let open = |word: Word| match now.checked_sub(word.beginning) {
            Some(since) if since >= old.length || word.used == 0 => {
                let beginning = if self.from_first_grant { now } else { old.beginning(now) };
                Word { beginning, used: 0 }
            }
            _ => word,
        };
        let Ok(()) = convert(&state.word, |bits| {
            let word = open(Word::decode(bits));
            let used = old.carried_over(word.used, new, keep);
            let beginning = match self.from_first_grant {
                true => word.beginning,
                false => new.beginning(now),
            };
            Ok::<_, Infallible>((Word { beginning, used }.encode(), ()))
        });
    }
}

fn replace(state: &FixedState, new: impl Fn(Word) -> Word) {
    let Ok(()) = update(&state.word, |bits| Ok::<_, Infallible>((new(Word::decode(bits)).encode(), ())));
}

impl Policy for FixedWindow {
    type State = FixedState;
    type Charge = FixedCharge;

    fn start(&self, _now: Nanos) -> FixedState {
        FixedState { word: AtomicU128::new(0) }
    }

    #[inline]
    fn try_acquire(&self, state: &FixedState, at: Nanos, n: u32) -> Result<FixedCharge, Refusal> {
        let (window, version, now) = (self.window.quick(), self.window.version(), stamp(at));
        window.check(n)?;
        if window.unlimited {
            return Ok(FixedCharge { beginning: 0, version: 0, n: 0 });
        }
        update(&state.word, |bits| {
            let Word { beginning, used } = self.open(Word::decode(bits), now, &window);
            let after = used + u64::from(n);
            if after > u64::from(window.limit) {
                return Err(beginning.saturating_add(window.length));
            }
            Ok((Word { beginning, used: after }.encode(), FixedCharge { beginning, version, n }))
        })
        .map_err(|due| limited(if window.limit == 0 { Nanos::MAX } else { time_of(due) }, at))
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.window.get().check(n)
    }

    fn weight(&self, n: u32) -> u64 {
        u64::from(n)
    }

    fn ready_at(&self, state: &FixedState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        let window = self.window.get();
        if window.unlimited || n == 0 {
            return at;
        }
        let limit = u64::from(window.limit);
        if u64::from(n) > limit {
            return Nanos::MAX;
        }
        let Word { beginning, used } = self.open(Word::decode(Cell::load(&state.word)), stamp(at), &window);
        let free = limit.saturating_sub(used);
        match ahead.saturating_add(u64::from(n)).checked_sub(free) {
            None | Some(0) => at,
            Some(rest) => {
                let windows = rest.div_ceil(limit);
                time_of(beginning.saturating_add(window.length.saturating_mul(windows)))
            }
        }
    }

    /// Single permits fill a window to its last place, and larger requests may not.
    fn one_by_one(&self, largest: u32) -> usize {
        if largest > 1 { usize::MAX } else { 0 }
    }

    fn forecast(&self, state: &FixedState, at: Nanos) -> Forecast {
        let Word { beginning, used } = Word::decode(Cell::load(&state.word));
        Forecast::with(at, [beginning, used, 0])
    }

    fn foresee(&self, _state: &FixedState, forecast: &mut Forecast, n: u32) -> Nanos {
        let (window, [beginning, used, _]) = (self.window.get(), forecast.numbers);
        if window.unlimited {
            return forecast.at;
        }
        if n > window.limit {
            return Nanos::MAX;
        }
        let fits = |word: &Word| word.used.saturating_add(u64::from(n)) <= u64::from(window.limit);
        let mut at = forecast.at;
        let mut word = self.open(Word { beginning, used }, stamp(at), &window);
        if !fits(&word) {
            at = time_of(word.beginning.saturating_add(window.length)).max(at);
            word = self.open(word, stamp(at), &window);
            if at == Nanos::MAX || !fits(&word) {
                return Nanos::MAX;
            }
        }
        forecast.at = at;
        forecast.numbers = [word.beginning, word.used + u64::from(n), 0];
        at
    }

    fn foresee_many(&self, _state: &FixedState, forecast: &mut Forecast, crowd: &Crowd) {
        let (window, [beginning, used, _]) = (self.window.get(), forecast.numbers);
        if window.unlimited || crowd.requests == 0 {
            return;
        }
        let word = self.open(Word { beginning, used }, stamp(forecast.at), &window);
        let spans = crowd.spans(window.limit.into()).saturating_mul(window.length);
        // The last window as if it were full.
        let beginning = word.beginning.saturating_add(spans);
        forecast.at = time_of(beginning).max(forecast.at);
        forecast.numbers = [beginning, window.limit.into(), 0];
    }

    fn undo(&self, state: &FixedState, _at: Nanos, charge: FixedCharge, _most: u64) -> u64 {
        replace(state, |word| {
            match word.beginning == charge.beginning && charge.version == self.window.version() {
                true => Word { used: word.used.saturating_sub(u64::from(charge.n)), ..word },
                false => word,
            }
        });
        u64::MAX
    }

    fn refund(&self, state: &FixedState, at: Nanos, n: u32) -> u64 {
        let window = self.window.get();
        replace(state, |word| {
            let word = self.open(word, stamp(at), &window);
            Word { used: word.used.saturating_sub(u64::from(n)), ..word }
        });
        u64::MAX
    }

    fn unused(&self, charge: FixedCharge, n: u32, used: u32) -> Option<FixedCharge> {
        n.checked_sub(used).filter(|n| *n > 0).map(|n| FixedCharge { n: charge.n.min(n), ..charge })
    }

    fn debit(&self, state: &FixedState, at: Nanos, n: u32) {
        let window = self.window.get();
        if window.unlimited || n == 0 {
            return;
        }
        replace(state, |word| {
            let word = self.open(word, stamp(at), &window);
            Word { used: (word.used + u64::from(n)).min(MOST_OWED), ..word }
        });
    }

    fn change(&self, state: &FixedState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        let change = change.without_burst()?;
        let rate = change.rate.unwrap_or(self.rate());
        let (old, new) = (self.window.get(), self.window.with(rate));
        // A longer window is published first, and a shorter one last, so that nobody takes a window to be over that is not.
        if new.length > old.length {
            self.window.set(rate);
        }
        self.convert(state, stamp(at), &old, &new, change.keep.unwrap_or(Keep::Count));
        self.window.set(rate);
        Ok(u64::MAX)
    }

    fn rate(&self) -> Rate {
        self.window.rate()
    }

    fn status(&self, state: &FixedState, at: Nanos) -> PolicyStatus {
        let window = self.window.get();
        if window.unlimited {
            return PolicyStatus { limit: u64::MAX, available: u64::MAX, full_at: at };
        }
        let word = self.open(Word::decode(Cell::load(&state.word)), stamp(at), &window);
        let limit = u64::from(window.limit);
        let full_at = if word.used == 0 { at } else { time_of(word.beginning.saturating_add(window.length)) };
        PolicyStatus { limit, available: limit.saturating_sub(word.used), full_at }
    }

    fn catches_up(&self) -> bool {
        false
    }

    fn anchored(self, unix_time_at_zero: Duration) -> FixedWindow {
        FixedWindow { window: self.window.anchored(unix_time_at_zero), ..self }
    }
}
