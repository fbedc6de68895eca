//! Fixed window: a counter that restarts each period.
//!
//! # Algorithm
//!
//! Count the permits of this minute; when the next minute begins, begin at zero. It is the cheapest
//! rule, and the one that most services publish. It forgets the minute before. A client that takes
//! all permits of one window at its end, and all of the next one at its beginning, therefore gets
//! twice the limit within an instant.
//!
//! # State word
//!
//! | bits | name | unit | at the edges |
//! |---|---|---|---|
//! | 64..126 | time of the last grant; in a window from the first grant, of that grant | ns | never goes back |
//! | 63 | closed, while a change is in progress | | see `policy/window/closable.rs` |
//! | 47..63 | turn | changes | wraps |
//! | 0..47 | permits used in the window of that time | | at most the limit, or an old limit that was higher, unless there were debits |
//!
//! Any thread may change the word, with a CAS. A request that finds it closed retries, and is
//! refused if it stays closed. Every operation acts as of its clock reading or as of the time in
//! the word, whichever is later. The word keeps the time of the last grant and not the beginning of
//! the window: a window that becomes shorter while it is open may begin between an older reading
//! and the last grant.
//!
//! # Invariant
//!
//! At most `limit` permits are granted in each window. In any period of length *d* these are at
//! most `limit * (d / length + 2)`, rounded down: up to twice the limit within an instant around an
//! edge. Tests: `tests/policy/window_properties.rs`.
//!
//! # Memory ordering
//!
//! One word, which is closed while the window changes: see `policy/window/closable.rs`.
//!
//! # Source
//!
//! The counter of many services; Redis documentation, `INCR`, "Pattern: rate limiter". Anchored at
//! the first grant: tower's `RateLimit`.

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::window::closable::ClosableWord;
use crate::policy::window::{CurrentWindow, Refused, Stamp, Window, common_to_windows, stamp, time_of};
use crate::policy::{Change, Crowd, Forecast, Keep, Policy, PolicyStatus, limited_for_now};
use crate::rate::Rate;
use crate::sync::Ordering;
use crate::time::Nanos;

/// Grants at most a fixed number of permits in each period of time, counted from zero when the next
/// period begins.
///
/// `FixedWindow::new("100/min".parse()?)` grants 100 in each minute. The minutes begin with the
/// limiter's clock, or [by the wall clock](FixedWindow::at_wall_clock), or [with the first
/// permit](FixedWindow::from_first_grant) after the last window ended.
///
/// **At the edge** of two windows twice the limit can pass within an instant. A server with this
/// rule allows that. To protect a service that does not use this rule, choose
/// [`SlidingWindow`](crate::policy::SlidingWindow) or [`SlidingLog`](crate::policy::SlidingLog).
///
/// A request for more than the limit is never granted. When the next window begins, waiters are
/// granted together, in order, until its permits are used.
///
/// When the rate changes, used permits stay used: [`Keep::Count`]. If a future is dropped directly
/// after a change, with its permit granted but not yet seen, the permit is not given back.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{FixedWindow, ManualClock, Rate, RateLimiter, Refusal};
///
/// let clock = ManualClock::new();
/// let policy = FixedWindow::new(Rate::per_minute(100));
/// let limiter = RateLimiter::with_clock(policy, clock.clone());
/// clock.advance(Duration::from_secs(59));
/// limiter.try_acquire_many(100)?;
/// let refusal = limiter.try_acquire().unwrap_err();
/// assert_eq!(refusal.retry_after(), Some(Duration::from_secs(1)));
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
#[cfg_attr(doc, doc = include_str!("../../../docs/pictures/fixed_window.svg"))]
#[derive(Clone, Debug)]
pub struct FixedWindow {
    pub(crate) window: CurrentWindow,
    pub(in crate::policy) from_first_grant: bool,
}

/// The state of one [`FixedWindow`]: two numbers in one word.
#[derive(Debug)]
pub struct FixedState {
    pub(crate) word: ClosableWord<63, 16>,
}

/// What one grant of a [`FixedWindow`] took.
#[derive(Clone, Copy, Debug)]
pub struct FixedCharge {
    /// The time in the state word after the grant.
    time: Stamp,
    /// The version of the window's terms. After a change it is unknown whether the grant still
    /// counts, and then it is not given back.
    version: u64,
    n: u32,
    /// The permits in the state word after the grant.
    used: u64,
}

/// The two numbers of the state word.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Word {
    time: Stamp,
    used: u64,
}

/// The bits of the permits used.
const USED: u32 = 47;

/// A count that debits do not exceed, higher than any limit.
const MAX_OWED: u64 = 1 << (USED - 1);

impl Word {
    #[inline]
    fn decode(content: u128) -> Word {
        // The two parts.
        #[allow(clippy::cast_possible_truncation)]
        Word { time: (content >> 64) as u64, used: content as u64 & ((1 << USED) - 1) }
    }

    #[inline]
    fn encode(self) -> u128 {
        u128::from(self.time) << 64 | u128::from(self.used)
    }
}

impl FixedWindow {
    /// Creates a window with the permits and the period of the rate: `5000/h` is 5000 in each hour,
    /// `2.5/s` is 5 in each 2 s.
    ///
    /// # Panics
    ///
    /// Panics if the rate is not a whole number of permits, at most `u32::MAX`, in a whole number
    /// of nanoseconds. For values from a configuration, use [`try_new`](FixedWindow::try_new).
    #[must_use]
    #[track_caller]
    pub fn new(rate: Rate) -> FixedWindow {
        match FixedWindow::try_new(rate) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a window with the permits and the period of the rate.
    ///
    /// # Errors
    ///
    /// Returns [`PolicyError::NotWhole`] if the rate is not a whole number of permits, at most
    /// `u32::MAX`, in a whole number of nanoseconds.
    pub fn try_new(rate: Rate) -> Result<FixedWindow, PolicyError> {
        Ok(FixedWindow { window: CurrentWindow::new(rate, 1)?, from_first_grant: false })
    }

    /// Makes windows begin by the wall clock, `offset` after the periods of Unix time, which is
    /// UTC: with a rate per hour and no offset at each full hour, with a rate per day and 8 hours
    /// at eight in the morning UTC.
    ///
    /// The wall clock is read once, when the limiter is created. Setting the wall clock later has
    /// no effect.
    #[must_use]
    pub fn at_wall_clock(self, offset: Duration) -> FixedWindow {
        FixedWindow { window: self.window.at_wall_clock(offset), from_first_grant: false }
    }

    /// Makes a window begin with the first permit that is granted after the last window ended.
    #[must_use]
    pub fn from_first_grant(self) -> FixedWindow {
        FixedWindow { from_first_grant: true, ..self }
    }

    /// Returns the window that is open at a time, as it would be written.
    #[inline]
    fn open(&self, word: Word, at: Stamp, window: &Window) -> Word {
        self.open_since(word, at, window).0
    }

    /// Returns the window that is open at a time, as it would be written, and how long before the
    /// time of that word it began.
    #[inline]
    fn open_since(&self, word: Word, at: Stamp, window: &Window) -> (Word, u64) {
        // Nearly every request finds its window open. A branch tests this, and the processor
        // continues with the count before it has the product.
        if self.from_first_grant {
            if word.used > 0 && at < word.time.saturating_add(window.length) {
                return (word, 0);
            }
        } else if at >= word.time {
            let since = window.since_beginning(at);
            if at - word.time <= since {
                return (Word { time: at, ..word }, since);
            }
        }
        self.open_another(word, at, *window)
    }

    /// Like [`open_since`](FixedWindow::open_since), for any word. It gets the window by value, so
    /// that the usual request need not have it in memory.
    #[cold]
    #[inline(never)]
    fn open_another(&self, word: Word, at: Stamp, window: Window) -> (Word, u64) {
        let now = at.max(word.time);
        if self.from_first_grant {
            let over = word.used == 0 || now >= word.time.saturating_add(window.length);
            return (if over { Word { time: now, used: 0 } } else { word }, 0);
        }
        let since = window.since_beginning(now);
        let used = if now - word.time <= since { word.used } else { 0 };
        (Word { time: now, used }, since)
    }

    /// Counts `n` permits.
    #[inline]
    fn take(&self, state: &FixedState, at: Nanos, n: u32) -> Result<FixedCharge, Refused> {
        let now = stamp(at);
        loop {
            let Some(seen) = state.word.load() else {
                return Err(limited_for_now(at).into());
            };
            let (window, version) = self.window.get_with_version();
            if window.needs_no_count(n) {
                window.without_count(n, at)?;
                return Ok(FixedCharge { time: 0, version, n: 0, used: 0 });
            }
            let (word, since) = self.open_since(Word::decode(seen.content()), now, &window);
            let used = word.used + u64::from(n);
            if used > u64::from(window.limit) {
                // The value of `end`, with one product instead of two.
                let end = (word.time - since).saturating_add(window.length);
                return Err(Refused::until(end, now));
            }
            // Relaxed: the word holds all that a request changes: 6 in `closable.rs`.
            if state.word.replace(seen, Word { used, ..word }.encode(), Ordering::Relaxed) {
                return Ok(FixedCharge { time: word.time, version, n, used });
            }
        }
    }

    /// Returns the beginning of the window that a word counts.
    fn beginning(&self, word: Word, window: &Window) -> Stamp {
        if self.from_first_grant { word.time } else { window.beginning(word.time) }
    }

    /// Returns the status of the window that is open.
    fn status_of(&self, word: Word, window: &Window, at: Nanos) -> PolicyStatus {
        if window.unlimited {
            return PolicyStatus::unlimited(at);
        }
        let limit = u64::from(window.limit);
        let end = time_of(self.end(word, window));
        let next_at = match word.used < limit {
            true => at,
            false if limit == 0 => Nanos::MAX,
            false => end,
        };
        let full_at = if word.used == 0 { at } else { end };
        PolicyStatus { limit, available: limit.saturating_sub(word.used), next_at, full_at }
    }

    fn end(&self, word: Word, window: &Window) -> Stamp {
        self.beginning(word, window).saturating_add(window.length)
    }

    /// Returns the word that means in a new window what a word means in the old one.
    pub(crate) fn converted(&self, content: u128, at: Stamp, old: &Window, new: &Window, keep: Keep) -> u128 {
        let word = self.open(Word::decode(content), at, old);
        Word { used: old.carried_over(word.used, new, keep), ..word }.encode()
    }

    /// Calls `inspect` with the window that is open at a time, when no change is in progress.
    fn inspect<R>(&self, state: &FixedState, at: Nanos, inspect: impl Fn(Word, &Window) -> R) -> R {
        let wait = || self.window.wait();
        state.word.inspect(wait, |content| {
            let window = self.window.get();
            inspect(self.open(Word::decode(content), stamp(at), &window), &window)
        })
    }

    /// Replaces the word by the result of `new`, when no change is in progress.
    fn update(&self, state: &FixedState, new: impl Fn(Word) -> Word) {
        let wait = || self.window.wait();
        state.word.update(wait, |content| new(Word::decode(content)).encode());
    }
}

impl Shut for FixedWindow {
    fn shut(&self, state: &FixedState, now: &dyn Fn() -> Nanos) -> Remainder {
        let at = now();
        self.window.shut(&state.word, |content, window, _| {
            let word = self.open(Word::decode(content), stamp(at), window);
            // A content that no request has seen.
            let content = Word { used: MAX_OWED, ..word }.encode();
            (u64::from(window.limit).saturating_sub(word.used), content)
        })
    }
}

impl Policy for FixedWindow {
    type State = FixedState;
    type Charge = FixedCharge;

    common_to_windows!(FixedCharge);

    fn start(&self, _now: Nanos) -> FixedState {
        FixedState { word: ClosableWord::new(0) }
    }

    #[inline]
    fn try_acquire(&self, state: &FixedState, at: Nanos, n: u32) -> Result<FixedCharge, Refusal> {
        self.take(state, at, n).map_err(Refused::into_refusal)
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.window.get().check(n)
    }

    fn ready_at(&self, state: &FixedState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        self.inspect(state, at, |word, window| {
            let limit = u64::from(window.limit);
            if window.unlimited || n == 0 {
                return at;
            }
            if u64::from(n) > limit {
                return Nanos::MAX;
            }
            match ahead.saturating_add(u64::from(n)).checked_sub(limit.saturating_sub(word.used)) {
                None | Some(0) => at,
                Some(rest) => {
                    let later = window.length.saturating_mul(rest.div_ceil(limit) - 1);
                    time_of(self.end(word, window).saturating_add(later))
                }
            }
        })
    }

    fn forecast(&self, state: &FixedState, at: Nanos) -> Forecast {
        self.inspect(state, at, |word, window| {
            // In one window all forecasts are equal, so that a later one can continue an earlier
            // one.
            let beginning = if word.used > 0 { self.beginning(word, window) } else { 0 };
            Forecast::with(at, [beginning, word.used, 0])
        })
    }

    fn predict(&self, _state: &FixedState, forecast: &mut Forecast, n: u32) -> Nanos {
        let (window, [time, used, _]) = (self.window.get(), forecast.numbers);
        if window.unlimited {
            return forecast.at;
        }
        if n > window.limit {
            return Nanos::MAX;
        }
        let fits = |word: &Word| word.used.saturating_add(u64::from(n)) <= u64::from(window.limit);
        let mut at = forecast.at;
        let mut word = self.open(Word { time, used }, stamp(at), &window);
        if !fits(&word) {
            at = time_of(self.end(word, &window)).max(at);
            word = self.open(word, stamp(at), &window);
            if at == Nanos::MAX || !fits(&word) {
                return Nanos::MAX;
            }
        }
        forecast.at = at;
        forecast.numbers = [word.time, word.used + u64::from(n), 0];
        at
    }

    fn predict_many(&self, _state: &FixedState, forecast: &mut Forecast, crowd: &Crowd) {
        let (window, [time, used, _]) = (self.window.get(), forecast.numbers);
        if window.unlimited || crowd.requests == 0 {
            return;
        }
        let word = self.open(Word { time, used }, stamp(forecast.at), &window);
        let spans = crowd.spans(window.limit.into()).saturating_mul(window.length);
        // The last window is treated as if it were full.
        let beginning = self.beginning(word, &window).saturating_add(spans);
        forecast.at = time_of(beginning).max(forecast.at);
        forecast.numbers = [beginning, window.limit.into(), 0];
    }

    fn undo(&self, state: &FixedState, _at: Nanos, charge: FixedCharge, _most: u64) -> u64 {
        self.update(state, |word| {
            let (window, version) = self.window.get_with_version();
            let charged = Word { time: charge.time, used: 0 };
            let same = self.beginning(word, &window) == self.beginning(charged, &window);
            match same && version == charge.version {
                true => Word { used: word.used.saturating_sub(u64::from(charge.n)), ..word },
                false => word,
            }
        });
        u64::MAX
    }

    fn refund(&self, state: &FixedState, at: Nanos, n: u32) -> u64 {
        self.update(state, |word| {
            let word = self.open(word, stamp(at), &self.window.get());
            Word { used: word.used.saturating_sub(u64::from(n)), ..word }
        });
        u64::MAX
    }

    fn debit(&self, state: &FixedState, at: Nanos, n: u32) {
        if n == 0 {
            return;
        }
        self.update(state, |word| {
            let window = self.window.get();
            if window.unlimited {
                return word;
            }
            let word = self.open(word, stamp(at), &window);
            Word { used: (word.used + u64::from(n)).min(MAX_OWED), ..word }
        });
    }

    fn keep_at_most(&self, state: &FixedState, at: Nanos, permits: u64) -> u64 {
        let taken = state.word.take(
            || self.window.wait(),
            |content| {
                let window = self.window.get();
                let word = self.open(Word::decode(content), stamp(at), &window);
                let taken = self.status_of(word, &window, at).beyond(permits);
                (taken > 0).then(|| (Word { used: word.used + taken, ..word }.encode(), taken))
            },
        );
        taken.unwrap_or(0)
    }

    fn change(&self, state: &FixedState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        let change = change.without_burst("fixed_window")?;
        let keep = change.keep.unwrap_or(Keep::Count);
        self.window.change(&state.word, change.rate, |content, old, new| {
            self.converted(content, stamp(at), old, new, keep)
        });
        Ok(u64::MAX)
    }

    /// The times at which windows begin cannot be changed.
    fn change_to(&self, new: &FixedWindow) -> Option<Change> {
        (self.from_first_grant == new.from_first_grant && self.window.begins_like(&new.window))
            .then(|| Change::rate(new.rate()))
    }

    fn status(&self, state: &FixedState, at: Nanos) -> PolicyStatus {
        self.inspect(state, at, |word, window| self.status_of(word, window, at))
    }

    fn left(&self, state: &FixedState, charge: FixedCharge, at: Nanos) -> PolicyStatus {
        let (window, version) = self.window.get_with_version();
        if version != charge.version {
            return self.status(state, at);
        }
        let FixedCharge { time, used, .. } = charge;
        self.status_of(self.open(Word { time, used }, stamp(at), &window), &window, at)
    }

    fn with_epoch(self, unix_time_at_zero: Duration) -> FixedWindow {
        FixedWindow { window: self.window.with_epoch(unix_time_at_zero), ..self }
    }
}
