//! Sliding window by estimate: this window's count, and a share of the count of the window before.
//!
//! # Algorithm
//!
//! A fixed window forgets the window before it, all at once. This policy keeps the count of that
//! window, too, and assumes that its permits were granted evenly: a quarter into this window, three
//! quarters of the window before still lie in the period that ends now. So `before * (1 - elapsed /
//! length) + used + n` must not exceed the limit.
//!
//! Only granted permits are counted. If refused requests also counted, a flooded limiter would
//! never recover.
//!
//! # State word
//!
//! | bits | name | unit | at the edges |
//! |---|---|---|---|
//! | 127 | closed, while a change is in progress | | see `policy/window/closable.rs` |
//! | 126 | turn | changes | wraps |
//! | 64..126 | time of the last grant | ns | never goes back |
//! | 32..64 | permits used in the window before that of this time | | at most `u32::MAX` |
//! | 0..32 | permits used in the window of this time | | at most `u32::MAX` |
//!
//! Any thread may change the word, with a CAS. A request that finds it closed retries, and is
//! refused if it stays closed. Every operation acts as of its clock reading or as of the time in
//! the word, whichever is later.
//!
//! # Invariant
//!
//! At most `limit` permits are granted in each aligned window, and less than twice the limit in any
//! period of its length. The error is largest when all permits of a window were taken at its end,
//! because the estimate assumes that they were spread evenly. `tests/policy/window_properties.rs`
//! searches for the worst error, and `docs/ALGORITHMS.md` states it.
//!
//! # Memory ordering
//!
//! One word, which is closed while the window changes: see `policy/window/closable.rs`.
//!
//! # Source
//!
//! J. Desgats, "How we built rate limiting capable of scaling to millions of domains", Cloudflare,
//! 2017,
//! <https://blog.cloudflare.com/counting-things-a-lot-of-different-things/>.

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::window::closable::ClosableWord;
use crate::policy::window::{CurrentWindow, Refused, Stamp, Window, common_to_windows, stamp, time_of};
use crate::policy::{Change, Crowd, Forecast, Keep, Policy, PolicyStatus, limited_for_now};
use crate::rate::Rate;
use crate::sync::Ordering;
use crate::time::Nanos;

/// Grants approximately at most a number of permits in any period, estimated from two counters.
///
/// This is the widespread approximation of a sliding window: it keeps the counts of this period and
/// of the period before, and weighs the older count by the part of its period that still counts. It
/// has no burst at the edge of two windows, unlike [`FixedWindow`](crate::policy::FixedWindow), and
/// uses much less memory than [`SlidingLog`](crate::policy::SlidingLog). In return it errs in both
/// directions, as far as the permits of the period before were not evenly spread: in the worst case
/// nearly twice the limit passes in one period, and a caller may wait longer than necessary.
///
/// Only granted permits are counted, so a flooded limiter recovers. A request for more than the
/// limit is never granted.
///
/// When the rate changes, used permits stay used: [`Keep::Count`]. If a future is dropped directly
/// after a change, with its permit granted but not yet seen, the permit is not given back.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::policy::{Policy, SlidingEstimate};
/// use tidegate::{Nanos, Rate};
///
/// let at = |seconds| Nanos::from_duration(Duration::from_secs(seconds));
/// let policy = SlidingEstimate::new(Rate::per_minute(10));
/// let state = policy.start(at(0));
/// policy.try_acquire(&state, at(30), 9)?;
/// policy.try_acquire(&state, at(70), 2)?;
/// // A quarter into the next minute: 9 * 0.75 + 2 = 8.75, so one more.
/// policy.try_acquire(&state, at(75), 1)?;
/// assert!(policy.try_acquire(&state, at(75), 1).is_err());
/// # Ok::<(), tidegate::Refusal>(())
/// ```
///
/// # Source
///
/// J. Desgats, "How we built rate limiting capable of scaling to millions of domains", Cloudflare,
/// 2017.
///
/// # Picture
///
#[cfg_attr(doc, doc = include_str!("../../../docs/pictures/sliding_estimate.svg"))]
#[derive(Clone, Debug)]
pub struct SlidingEstimate {
    pub(crate) window: CurrentWindow,
}

/// The state of one [`SlidingEstimate`]: three numbers in one word.
#[derive(Debug)]
pub struct EstimateState {
    pub(crate) word: ClosableWord<127, 1>,
}

/// What one grant of a [`SlidingEstimate`] took.
#[derive(Clone, Copy, Debug)]
pub struct EstimateCharge {
    /// The time in the state word after the grant.
    time: Stamp,
    /// The version of the window's terms. After a change it is unknown whether the grant still
    /// counts, and then it is not given back.
    version: u64,
    n: u32,
    /// The permits of the window before, in the state word after the grant.
    before: u32,
    /// The permits of this window, in the state word after the grant.
    used: u32,
}

/// The three numbers of the state word.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Word {
    time: Stamp,
    before: u32,
    used: u32,
}

impl Word {
    #[inline]
    fn decode(content: u128) -> Word {
        // The parts.
        #[allow(clippy::cast_possible_truncation)]
        Word { time: (content >> 64) as u64, before: (content >> 32) as u32, used: content as u32 }
    }

    #[inline]
    fn encode(self) -> u128 {
        u128::from(self.time) << 64 | u128::from(self.before) << 32 | u128::from(self.used)
    }
}

impl SlidingEstimate {
    /// Creates a policy that grants approximately the permits of the rate in any period: `100/min`
    /// is 100 in any minute.
    ///
    /// # Panics
    ///
    /// Panics if the rate is not a whole number of permits, at most `u32::MAX`, in a whole number
    /// of nanoseconds. For values from a configuration, use [`try_new`](SlidingEstimate::try_new).
    #[must_use]
    #[track_caller]
    pub fn new(rate: Rate) -> SlidingEstimate {
        match SlidingEstimate::try_new(rate) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a policy that grants approximately the permits of the rate in any period.
    ///
    /// # Errors
    ///
    /// Returns [`PolicyError::NotWhole`] if the rate is not a whole number of permits, at most
    /// `u32::MAX`, in a whole number of nanoseconds.
    pub fn try_new(rate: Rate) -> Result<SlidingEstimate, PolicyError> {
        Ok(SlidingEstimate { window: CurrentWindow::new(rate, 1)? })
    }

    /// Makes windows begin by the wall clock, `offset` after the periods of Unix time, which is
    /// UTC.
    #[must_use]
    pub fn at_wall_clock(self, offset: Duration) -> SlidingEstimate {
        SlidingEstimate { window: self.window.at_wall_clock(offset) }
    }

    /// Returns the window that is open at a time, as it would be written, and its beginning.
    #[inline]
    fn open(word: Word, at: Stamp, window: &Window) -> (Word, Stamp) {
        let now = at.max(word.time);
        let beginning = window.beginning(now);
        let word = if word.time >= beginning {
            Word { time: now, ..word }
        } else if word.time >= beginning.saturating_sub(window.length) {
            Word { time: now, before: word.used, used: 0 }
        } else {
            Word { time: now, before: 0, used: 0 }
        };
        (word, beginning)
    }

    /// Returns the word that means in a new window what a word means in the old one.
    pub(crate) fn converted(content: u128, at: Stamp, old: &Window, new: &Window, keep: Keep) -> u128 {
        let carried = |count: u32| small(old.carried_over(u64::from(count), new, keep));
        let (word, _) = Self::open(Word::decode(content), at, old);
        Word { before: carried(word.before), used: carried(word.used), ..word }.encode()
    }

    /// Counts `n` permits.
    fn take(&self, state: &EstimateState, at: Nanos, n: u32) -> Result<EstimateCharge, Refused> {
        let now = stamp(at);
        loop {
            // Before the word: after two changes forth and back the word may be as it was, and the
            // terms in between do not belong to it.
            let of_word = self.window.version();
            let Some(seen) = state.word.load() else {
                return Err(limited_for_now(at).into());
            };
            let (window, version) = self.window.get_with_version();
            if window.needs_no_count(n) {
                window.without_count(n, at)?;
                return Ok(EstimateCharge { time: 0, version, n: 0, before: 0, used: 0 });
            }
            let (word, beginning) = Self::open(Word::decode(seen.content()), now, &window);
            if !fits(word, beginning, n, &window) {
                return Err(Refused::until(due(word, beginning, n, &window), now));
            }
            if version != of_word {
                continue;
            }
            let after = Word { used: word.used + n, ..word };
            // Relaxed: the word holds all that a request changes: 6 in `closable.rs`.
            if state.word.replace(seen, after.encode(), Ordering::Relaxed) {
                return Ok(EstimateCharge {
                    time: word.time,
                    version,
                    n,
                    before: after.before,
                    used: after.used,
                });
            }
        }
    }

    /// Calls `inspect` with the window that is open at a time, and its beginning, when no change is
    /// in progress.
    fn inspect<R>(&self, state: &EstimateState, at: Nanos, inspect: impl Fn(Word, Stamp, &Window) -> R) -> R {
        let wait = || self.window.wait();
        state.word.inspect(wait, |content| {
            let window = self.window.get();
            let (word, beginning) = Self::open(Word::decode(content), stamp(at), &window);
            inspect(word, beginning, &window)
        })
    }

    /// Replaces the word by the result of `new`, when no change is in progress.
    fn update(&self, state: &EstimateState, new: impl Fn(Word) -> Word) {
        let wait = || self.window.wait();
        state.word.update(wait, |content| new(Word::decode(content)).encode());
    }
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The number of windows for which the prediction for waiters is exact.
const WINDOWS: usize = 64;

/// Returns whether `n` more permits fit below the limit at the time of a word, if its window begins
/// at `beginning`.
#[inline]
fn fits(word: Word, beginning: Stamp, n: u32, window: &Window) -> bool {
    let Some(room) = u64::from(window.limit).checked_sub(u64::from(word.used) + u64::from(n)) else {
        return false;
    };
    let left = window.length - (word.time - beginning);
    u128::from(left) * u128::from(word.before) <= u128::from(room) * u128::from(window.length)
}

/// Returns the status of a word that was opened at its time.
fn status_of(word: Word, beginning: Stamp, window: &Window, at: Nanos) -> PolicyStatus {
    if window.unlimited {
        return PolicyStatus::unlimited(at);
    }
    let (limit, length) = (u64::from(window.limit), window.length);
    let left = u128::from(length - (word.time - beginning)) * u128::from(word.before);
    // Rounded up: a part of a permit counts as one.
    let before = u64::try_from(left.div_ceil(u128::from(length))).unwrap_or(limit);
    let available = limit.saturating_sub(before + u64::from(word.used));
    let next_at = match available {
        0 if limit == 0 => Nanos::MAX,
        0 => time_of(due(word, beginning, 1, window)),
        _ => at,
    };
    let full_at = match word {
        Word { used: 0, before: 0, .. } => at,
        Word { used: 0, .. } => time_of(beginning.saturating_add(length)),
        _ => time_of(beginning.saturating_add(length.saturating_mul(2))),
    };
    PolicyStatus { limit, available, next_at, full_at }
}

/// Returns how many single permits can still be granted before the window ends.
fn until_the_end(word: Word, window: &Window) -> u64 {
    // In the last nanosecond of the window.
    let before = u64::from(word.before).div_ceil(window.length);
    u64::from(window.limit).saturating_sub(u64::from(word.used)).saturating_sub(before)
}

/// Returns when `n` more permits fit below the limit, if nothing else is granted. `n` is at most
/// the limit.
#[inline]
fn due(word: Word, beginning: Stamp, n: u32, window: &Window) -> Stamp {
    let (limit, length, n) = (u64::from(window.limit), window.length, u64::from(n));
    if let Some(room) = limit.checked_sub(u64::from(word.used) + n) {
        let part = part_that_fits(word.before, room, length);
        if part > 0 {
            return beginning.saturating_add(length - part);
        }
    }
    let part = part_that_fits(word.used, limit - n, length);
    beginning.saturating_add(length).saturating_add(length - part)
}

/// Returns the part of a window with `permits` permits that may still count, so that it takes no
/// more than `room`.
#[inline]
fn part_that_fits(permits: u32, room: u64, length: u64) -> u64 {
    match room.checked_mul(length) {
        _ if permits == 0 => length,
        // The usual refusal, without a division.
        Some(0) => 0,
        Some(product) => (product / u64::from(permits)).min(length),
        None => {
            let part = u128::from(room) * u128::from(length) / u128::from(permits);
            u64::try_from(part).unwrap_or(length).min(length)
        }
    }
}

impl Shut for SlidingEstimate {
    fn shut(&self, state: &EstimateState, now: &dyn Fn() -> Nanos) -> Remainder {
        let at = now();
        self.window.shut(&state.word, |content, window, _| {
            let (word, beginning) = Self::open(Word::decode(content), stamp(at), window);
            // A content that no request has seen.
            let content = Word { used: u32::MAX, ..word }.encode();
            (status_of(word, beginning, window, at).available, content)
        })
    }
}

impl Policy for SlidingEstimate {
    type State = EstimateState;
    type Charge = EstimateCharge;

    common_to_windows!(EstimateCharge);

    fn start(&self, _now: Nanos) -> EstimateState {
        EstimateState { word: ClosableWord::new(0) }
    }

    #[inline]
    fn try_acquire(&self, state: &EstimateState, at: Nanos, n: u32) -> Result<EstimateCharge, Refusal> {
        self.take(state, at, n).map_err(Refused::into_refusal)
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.window.get().check(n)
    }

    fn ready_at(&self, state: &EstimateState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        self.inspect(state, at, |mut word, mut beginning, window| {
            if window.unlimited || n == 0 {
                return at;
            }
            if n > window.limit {
                return Nanos::MAX;
            }
            if ahead == 0 && fits(word, beginning, n, window) {
                return at;
            }
            let now = word.time;
            // Advances window by window, as long as the requests ahead fill one. Behind the last of
            // these windows the time may be too late, but never too early.
            let mut ahead = ahead;
            for _ in 0..WINDOWS {
                let taken = until_the_end(word, window).min(ahead);
                ahead -= taken;
                word = Word { used: small(u64::from(word.used) + taken), ..word };
                if ahead == 0 {
                    // A reading that is older than the last grant acts as of that grant.
                    let due = due(word, beginning, n, window);
                    return if due <= now { at } else { time_of(due) };
                }
                beginning = beginning.saturating_add(window.length);
                word = Word { time: beginning, before: word.used, used: 0 };
            }
            let mut forecast = Forecast::with(at, [word.time, word.before.into(), word.used.into()]);
            self.predict_many(state, &mut forecast, &Crowd::new(ahead, ahead, ahead, 1));
            self.predict(state, &mut forecast, n)
        })
    }

    fn forecast(&self, state: &EstimateState, at: Nanos) -> Forecast {
        self.inspect(state, at, |word, beginning, _| {
            // In one window all forecasts are equal, so that a later one can continue an earlier
            // one. But a reading that is older than the last grant acts as of that grant.
            let time = if word.time > stamp(at) { word.time } else { beginning };
            Forecast::with(at, [time, word.before.into(), word.used.into()])
        })
    }

    fn predict(&self, _state: &EstimateState, forecast: &mut Forecast, n: u32) -> Nanos {
        let (window, [time, before, used]) = (self.window.get(), forecast.numbers);
        if window.unlimited {
            return forecast.at;
        }
        if n > window.limit {
            return Nanos::MAX;
        }
        let mut at = forecast.at;
        let word = Word { time, before: small(before), used: small(used) };
        let (mut word, beginning) = Self::open(word, stamp(at), &window);
        if !fits(word, beginning, n, &window) {
            at = time_of(due(word, beginning, n, &window)).max(at);
            if at == Nanos::MAX {
                return at;
            }
            word = Self::open(word, stamp(at), &window).0;
        }
        forecast.at = at;
        forecast.numbers = [word.time, word.before.into(), u64::from(word.used) + u64::from(n)];
        at
    }

    fn predict_many(&self, _state: &EstimateState, forecast: &mut Forecast, crowd: &Crowd) {
        let (window, [time, before, used]) = (self.window.get(), forecast.numbers);
        if window.unlimited || crowd.requests == 0 {
            return;
        }
        let word = Word { time, before: small(before), used: small(used) };
        let (word, beginning) = Self::open(word, stamp(forecast.at), &window);
        // In the last nanosecond of a window at most this many permits of the window before still
        // count.
        let limit = window.limit;
        let rest = u64::from(limit).div_ceil(window.length);
        let passes = u64::from(limit).saturating_sub(rest);
        let windows = match u64::from(crowd.largest) <= passes {
            true => crowd.spans(passes),
            // A request waits until nothing counts, for two windows.
            false => crowd.requests.saturating_mul(2),
        };
        // If more is owed than a window has, it counts in two more windows.
        let owed = if word.used.max(word.before) > limit { 2 } else { 0 };
        let windows = windows.saturating_add(owed);
        // The last two windows are treated as if they were full.
        let beginning = beginning.saturating_add(windows.saturating_mul(window.length));
        let full = u64::from(limit);
        forecast.at = time_of(beginning).max(forecast.at);
        forecast.numbers = [beginning, full, full];
    }

    fn undo(&self, state: &EstimateState, _at: Nanos, charge: EstimateCharge, _most: u64) -> u64 {
        self.update(state, |word| {
            let (window, version) = self.window.get_with_version();
            if version != charge.version || charge.n == 0 {
                return word;
            }
            match window.beginning(word.time).checked_sub(window.beginning(charge.time)) {
                Some(0) => Word { used: word.used.saturating_sub(charge.n), ..word },
                Some(gap) if gap == window.length => {
                    Word { before: word.before.saturating_sub(charge.n), ..word }
                }
                _ => word,
            }
        });
        u64::MAX
    }

    /// Takes from this window first, and then from the window before.
    fn refund(&self, state: &EstimateState, at: Nanos, n: u32) -> u64 {
        self.update(state, |word| {
            let (word, _) = Self::open(word, stamp(at), &self.window.get());
            let rest = n.saturating_sub(word.used);
            Word { used: word.used.saturating_sub(n), before: word.before.saturating_sub(rest), ..word }
        });
        u64::MAX
    }

    fn debit(&self, state: &EstimateState, at: Nanos, n: u32) {
        if n == 0 {
            return;
        }
        self.update(state, |word| {
            let window = self.window.get();
            if window.unlimited {
                return word;
            }
            let (word, _) = Self::open(word, stamp(at), &window);
            Word { used: word.used.saturating_add(n), ..word }
        });
    }

    fn keep_at_most(&self, state: &EstimateState, at: Nanos, permits: u64) -> u64 {
        let taken = state.word.take(
            || self.window.wait(),
            |content| {
                let window = self.window.get();
                let (word, beginning) = Self::open(Word::decode(content), stamp(at), &window);
                let taken = status_of(word, beginning, &window, at).beyond(permits);
                let used = small(u64::from(word.used) + taken);
                (taken > 0).then(|| (Word { used, ..word }.encode(), taken))
            },
        );
        taken.unwrap_or(0)
    }

    fn change(&self, state: &EstimateState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        let change = change.without_burst("sliding_estimate")?;
        let keep = change.keep.unwrap_or(Keep::Count);
        self.window.change(&state.word, change.rate, |content, old, new| {
            Self::converted(content, stamp(at), old, new, keep)
        });
        Ok(u64::MAX)
    }

    /// The times at which windows begin cannot be changed.
    fn change_to(&self, new: &SlidingEstimate) -> Option<Change> {
        (self.window.begins_like(&new.window)).then(|| Change::rate(new.rate()))
    }

    fn status(&self, state: &EstimateState, at: Nanos) -> PolicyStatus {
        self.inspect(state, at, |word, beginning, window| status_of(word, beginning, window, at))
    }

    fn left(&self, state: &EstimateState, charge: EstimateCharge, at: Nanos) -> PolicyStatus {
        let (window, version) = self.window.get_with_version();
        if version != charge.version {
            return self.status(state, at);
        }
        let EstimateCharge { time, before, used, .. } = charge;
        let (word, beginning) = Self::open(Word { time, before, used }, stamp(at), &window);
        status_of(word, beginning, &window, at)
    }

    fn with_epoch(self, unix_time_at_zero: Duration) -> SlidingEstimate {
        SlidingEstimate { window: self.window.with_epoch(unix_time_at_zero) }
    }
}
