//! Sliding window by estimate: this window's count, and a share of the one before.
//!
//! # Algorithm
//!
//! A fixed window forgets the one before it, all at once. Keep its count, too, and assume that its permits were granted evenly: a
//! quarter into this window, three quarters of the one before still lie in the span that ends now. So
//! `before * (1 - elapsed / length) + used + n` must not exceed the limit.
//!
//! Only granted permits are counted. Where refused requests count, too, a flooded limiter never recovers.
//!
//! # State word
//!
//! | bits | name | unit | at the edges |
//! |---|---|---|---|
//! | 64..128 | beginning of the window | ns | a clock that goes back stays in the window that was reached, at its beginning |
//! | 32..64 | permits used in the window before | | at most `u32::MAX` |
//! | 0..32 | permits used in this one | | at most `u32::MAX` |
//!
//! # Invariant
//!
//! At most `limit` permits in each aligned window, and less than twice the limit in any span of its length. The error is largest
//! when all permits of a window were taken at its end, which the estimate takes for evenly spread:
//! `tests/window_properties.rs` looks for the worst, `docs/ALGORITHMS.md` says what it found.
//!
//! # Memory ordering
//!
//! One word under the shared loop: see `policy/cell.rs`. Changes are ordered as those of the [fixed window](super::FixedWindow).
//!
//! # Source
//!
//! J. Desgats, "How we built rate limiting capable of scaling to millions of domains", Cloudflare, 2017,
//! <https://blog.cloudflare.com/counting-things-a-lot-of-different-things/>.

use std::convert::Infallible;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::nanos::Nanos;
use crate::policy::cell::{Cell, convert, update};
use crate::policy::window::{CurrentWindow, Stamp, Window, stamp, time_of};
use crate::policy::{Change, Crowd, Forecast, Keep, Policy, PolicyStatus, limited};
use crate::rate::Rate;
use crate::sync::AtomicU128;

/// At most about so many permits in any period, estimated from two counters.
///
/// The widespread approximation of a sliding window: it keeps the counts of this period and the one before, and weighs the
/// older one by how much of it still counts. No burst at the edge of two windows as with [`FixedWindow`](super::FixedWindow),
/// and much less memory than [`SlidingLog`](super::SlidingLog). The price is that it errs to both sides, as far as the permits of the period before were not
/// evenly spread: at worst nearly twice the limit pass in a span, and a caller may wait longer than it would have to.
///
/// Only granted permits are counted, so a flooded limiter recovers. A request for more than the limit can never be had.
///
/// When the rate changes, what was used stays used: [`Keep::Count`]. A permit that was granted but not yet seen by its future, and is
/// given up right after that, is not given back.
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
/// // A quarter into the next minute: 9 * 0.75 + 2 = 8.75, so one more, and not two.
/// policy.try_acquire(&state, at(75), 1)?;
/// assert!(policy.try_acquire(&state, at(75), 1).is_err());
/// # Ok::<(), tidegate::Refusal>(())
/// ```
///
/// # Source
///
/// J. Desgats, "How we built rate limiting capable of scaling to millions of domains", Cloudflare, 2017.
///
/// # Picture
///
#[cfg_attr(doc, doc = include_str!("../../docs/pictures/sliding_estimate.svg"))]
#[derive(Clone, Debug)]
pub struct SlidingEstimate {
    pub(crate) window: CurrentWindow,
}

/// The state of one [`SlidingEstimate`]: three numbers in one word.
#[derive(Debug)]
pub struct EstimateState {
    word: AtomicU128,
}

/// What one grant of a [`SlidingEstimate`] took.
#[derive(Clone, Copy, Debug)]
pub struct EstimateCharge {
    /// The beginning of the window in which it was counted.
    beginning: Stamp,
    /// Of the window's terms: after a change it is not known whether it still counts, and then it is not given back.
    version: u64,
    n: u32,
}

/// The three numbers of the state word.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Word {
    beginning: Stamp,
    before: u32,
    used: u32,
}

impl Word {
    fn decode(bits: u128) -> Word {
        // The parts.
        #[allow(clippy::cast_possible_truncation)]
        Word { beginning: (bits >> 64) as u64, before: (bits >> 32) as u32, used: bits as u32 }
    }

    fn encode(self) -> u128 {
        u128::from(self.beginning) << 64 | u128::from(self.before) << 32 | u128::from(self.used)
    }
}

impl SlidingEstimate {
    /// About as many permits in any period as the rate says: `100/min` is 100 in any minute.
    ///
    /// # Panics
    ///
    /// If the rate is not a whole number of permits, at most `u32::MAX`, in a whole number of nanoseconds. For values from a
    /// configuration, use [`try_new`](SlidingEstimate::try_new).
    #[must_use]
    #[track_caller]
    pub fn new(rate: Rate) -> SlidingEstimate {
        match SlidingEstimate::try_new(rate) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// About as many permits in any period as the rate says.
    ///
    /// # Errors
    ///
    /// [`PolicyError::NotWhole`] if the rate is not a whole number of permits, at most `u32::MAX`, in a whole number of nanoseconds.
    pub fn try_new(rate: Rate) -> Result<SlidingEstimate, PolicyError> {
        Ok(SlidingEstimate { window: CurrentWindow::new(rate, 1)? })
    }

    /// Begins windows by the wall clock, `offset` after the periods of Unix time, which is UTC.
    #[must_use]
    pub fn at_wall_clock(self, offset: Duration) -> SlidingEstimate {
        SlidingEstimate { window: self.window.at_wall_clock(offset) }
    }

    /// The window that is open at a time, as it would be written, and how much of it has passed.
    #[inline]
    fn open(word: Word, at: Stamp, window: &Window) -> (Word, u64) {
        if at.wrapping_sub(word.beginning) < window.length {
            // The same window: no need to divide.
            return (word, at - word.beginning);
        }
        let beginning = window.beginning(at);
        if beginning < word.beginning {
            return (word, 0);
        }
        let word = match beginning - word.beginning {
            0 => word,
            // The next one.
            gap if gap <= window.length => Word { beginning, before: word.used, used: 0 },
            _ => Word { beginning, before: 0, used: 0 },
        };
        (word, at - beginning)
    }

    /// Makes the word say in a new window what it says in the old one.
    pub(crate) fn convert(state: &EstimateState, now: Stamp, old: &Window, new: &Window, keep: Keep) {
        let carried = |count: u32| small(old.carried_over(u64::from(count), new, keep));
        let Ok(()) = convert(&state.word, |bits| {
            let (word, _) = Self::open(Word::decode(bits), now, old);
            let (before, used) = (carried(word.before), carried(word.used));
            Ok::<_, Infallible>((Word { beginning: new.beginning(now), before, used }.encode(), ()))
        });
    }
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// For so many windows the prediction for those who wait is exact.
const WINDOWS: usize = 64;

/// Whether `n` more permits fit below the limit, so long after the beginning of the window.
fn fits(word: Word, elapsed: u64, n: u32, window: &Window) -> bool {
    let left = u128::from(window.length - elapsed) * u128::from(word.before);
    let all = left + (u128::from(word.used) + u128::from(n)) * u128::from(window.length);
    all <= u128::from(window.limit) * u128::from(window.length)
}

/// How many single permits can still be granted before the window ends.
fn until_the_end(word: Word, window: &Window) -> u64 {
    // In its last nanosecond.
    let before = u64::from(word.before).div_ceil(window.length);
    u64::from(window.limit).saturating_sub(u64::from(word.used)).saturating_sub(before)
}

/// When `n` more permits fit below the limit, if nothing else is granted. `n` is at most the limit.
fn due(word: Word, n: u64, window: &Window) -> Stamp {
    let (limit, length) = (u64::from(window.limit), window.length);
    // The part of the window before that may still count, so that `n` fits; in this window or in the next.
    let part = |before: u32, room: u64| match u128::from(room) * u128::from(length) {
        _ if before == 0 => length,
        product => u64::try_from(product / u128::from(before)).unwrap_or(length).min(length),
    };
    if let Some(room) = limit.checked_sub(u64::from(word.used) + n) {
        let part = part(word.before, room);
        if part > 0 {
            return word.beginning.saturating_add(length - part);
        }
    }
    let part = part(word.used, limit - n);
    word.beginning.saturating_add(length).saturating_add(length - part)
}

fn replace(state: &EstimateState, new: impl Fn(Word) -> Word) {
    let Ok(()) = update(&state.word, |bits| Ok::<_, Infallible>((new(Word::decode(bits)).encode(), ())));
}

impl Policy for SlidingEstimate {
    type State = EstimateState;
    type Charge = EstimateCharge;

    fn start(&self, _now: Nanos) -> EstimateState {
        EstimateState { word: AtomicU128::new(0) }
    }

    #[inline]
    fn try_acquire(&self, state: &EstimateState, at: Nanos, n: u32) -> Result<EstimateCharge, Refusal> {
        let (window, version, now) = (self.window.get(), self.window.version(), stamp(at));
        window.check(n)?;
        if window.unlimited {
            return Ok(EstimateCharge { beginning: 0, version: 0, n: 0 });
        }
        if n > window.limit {
            return Err(limited(Nanos::MAX, at));
        }
        update(&state.word, |bits| {
            let word = Word::decode(bits);
            // Read again where a window seems to have turned: it may have become longer since.
            let same = now.wrapping_sub(word.beginning) < window.length;
            let window = if same { window } else { self.window.get() };
            let (word, elapsed) = Self::open(word, now, &window);
            if !fits(word, elapsed, n, &window) {
                return Err(due(word, u64::from(n), &window));
            }
            let charge = EstimateCharge { beginning: word.beginning, version, n };
            Ok((Word { used: word.used + n, ..word }.encode(), charge))
        })
        .map_err(|due| limited(time_of(due), at))
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.window.get().check(n)
    }

    fn weight(&self, n: u32) -> u64 {
        u64::from(n)
    }

    fn ready_at(&self, state: &EstimateState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        let window = self.window.get();
        if window.unlimited || n == 0 {
            return at;
        }
        if n > window.limit {
            return Nanos::MAX;
        }
        let now = stamp(at);
        let (mut word, elapsed) = Self::open(Word::decode(Cell::load(&state.word)), now, &window);
        if ahead == 0 && fits(word, elapsed, n, &window) {
            return at;
        }
        // Window by window, as long as those ahead fill one; further on not too early.
        let mut ahead = ahead;
        for _ in 0..WINDOWS {
            let taken = until_the_end(word, &window).min(ahead);
            ahead -= taken;
            word = Word { used: small(u64::from(word.used) + taken), ..word };
            if ahead == 0 {
                return time_of(due(word, u64::from(n), &window));
            }
            word =
                Word { beginning: word.beginning.saturating_add(window.length), before: word.used, used: 0 };
        }
        let mut forecast = Forecast::with(at, [word.beginning, word.before.into(), word.used.into()]);
        self.foresee_many(state, &mut forecast, &Crowd::new(ahead, ahead, ahead, 1));
        self.foresee(state, &mut forecast, n)
    }

    /// Single permits fill a window to its last place, and larger requests may not.
    fn one_by_one(&self, largest: u32) -> usize {
        if largest > 1 { usize::MAX } else { 0 }
    }

    fn forecast(&self, state: &EstimateState, at: Nanos) -> Forecast {
        let Word { beginning, before, used } = Word::decode(Cell::load(&state.word));
        Forecast::with(at, [beginning, before.into(), used.into()])
    }

    fn foresee(&self, _state: &EstimateState, forecast: &mut Forecast, n: u32) -> Nanos {
        let (window, [beginning, before, used]) = (self.window.get(), forecast.numbers);
        if window.unlimited {
            return forecast.at;
        }
        if n > window.limit {
            return Nanos::MAX;
        }
        let mut at = forecast.at;
        let word = Word { beginning, before: small(before), used: small(used) };
        let (mut word, elapsed) = Self::open(word, stamp(at), &window);
        if !fits(word, elapsed, n, &window) {
            at = time_of(due(word, u64::from(n), &window)).max(at);
            if at == Nanos::MAX {
                return at;
            }
            word = Self::open(word, stamp(at), &window).0;
        }
        forecast.at = at;
        forecast.numbers = [word.beginning, word.before.into(), u64::from(word.used) + u64::from(n)];
        at
    }

    fn foresee_many(&self, _state: &EstimateState, forecast: &mut Forecast, crowd: &Crowd) {
        let (window, [beginning, before, used]) = (self.window.get(), forecast.numbers);
        if window.unlimited || crowd.requests == 0 {
            return;
        }
        let word = Word { beginning, before: small(before), used: small(used) };
        let (word, _) = Self::open(word, stamp(forecast.at), &window);
        // In the last nanosecond of a window this many permits of the one before still count, at most.
        let limit = window.limit;
        let rest = u64::from(limit).div_ceil(window.length);
        let passes = u64::from(limit).saturating_sub(rest);
        let windows = match u64::from(crowd.largest) <= passes {
            true => crowd.spans(passes),
            // A request waits until nothing counts any more, for two windows.
            false => crowd.requests.saturating_mul(2),
        };
        // Where more is owed than a window has, it counts in two more.
        let owed = if word.used.max(word.before) > limit { 2 } else { 0 };
        let windows = windows.saturating_add(owed);
        // The last two windows as if they were full.
        let beginning = word.beginning.saturating_add(windows.saturating_mul(window.length));
        let full = u64::from(limit);
        forecast.at = time_of(beginning).max(forecast.at);
        forecast.numbers = [beginning, full, full];
    }

    fn undo(&self, state: &EstimateState, _at: Nanos, charge: EstimateCharge, _most: u64) -> u64 {
        if charge.version != self.window.version() {
            return u64::MAX;
        }
        let length = self.window.get().length;
        replace(state, |word| match word.beginning.checked_sub(charge.beginning) {
            Some(0) => Word { used: word.used.saturating_sub(charge.n), ..word },
            Some(gap) if gap == length => Word { before: word.before.saturating_sub(charge.n), ..word },
            _ => word,
        });
        u64::MAX
    }

    /// From this window first, then from the one before.
    fn refund(&self, state: &EstimateState, at: Nanos, n: u32) -> u64 {
        let window = self.window.get();
        replace(state, |word| {
            let (word, _) = Self::open(word, stamp(at), &window);
            let rest = n.saturating_sub(word.used);
            Word { used: word.used.saturating_sub(n), before: word.before.saturating_sub(rest), ..word }
        });
        u64::MAX
    }

    fn unused(&self, charge: EstimateCharge, n: u32, used: u32) -> Option<EstimateCharge> {
        n.checked_sub(used).filter(|n| *n > 0).map(|n| EstimateCharge { n: charge.n.min(n), ..charge })
    }

    fn debit(&self, state: &EstimateState, at: Nanos, n: u32) {
        let window = self.window.get();
        if window.unlimited || n == 0 {
            return;
        }
        replace(state, |word| {
            let (word, _) = Self::open(word, stamp(at), &window);
            Word { used: word.used.saturating_add(n), ..word }
        });
    }

    fn change(&self, state: &EstimateState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        let change = change.without_burst()?;
        let rate = change.rate.unwrap_or(self.rate());
        let (old, new) = (self.window.get(), self.window.with(rate));
        // A longer window is published first, and a shorter one last, so that nobody takes a window to be over that is not.
        if new.length > old.length {
            self.window.set(rate);
        }
        Self::convert(state, stamp(at), &old, &new, change.keep.unwrap_or(Keep::Count));
        self.window.set(rate);
        Ok(u64::MAX)
    }

    fn rate(&self) -> Rate {
        self.window.rate()
    }

    fn status(&self, state: &EstimateState, at: Nanos) -> PolicyStatus {
        let window = self.window.get();
        if window.unlimited {
            return PolicyStatus { limit: u64::MAX, available: u64::MAX, full_at: at };
        }
        let (word, elapsed) = Self::open(Word::decode(Cell::load(&state.word)), stamp(at), &window);
        let limit = u64::from(window.limit);
        let left = u128::from(window.length - elapsed) * u128::from(word.before);
        // Rounded up: a part of a permit counts as one.
        let counted =
            u64::try_from(left.div_ceil(u128::from(window.length))).unwrap_or(limit) + u64::from(word.used);
        let full_at = match word {
            Word { used: 0, before: 0, .. } => at,
            Word { used: 0, beginning, .. } => time_of(beginning.saturating_add(window.length)),
            Word { beginning, .. } => time_of(beginning.saturating_add(window.length.saturating_mul(2))),
        };
        PolicyStatus { limit, available: limit.saturating_sub(counted), full_at }
    }

    fn catches_up(&self) -> bool {
        false
    }

    fn anchored(self, unix_time_at_zero: Duration) -> SlidingEstimate {
        SlidingEstimate { window: self.window.anchored(unix_time_at_zero) }
    }
}
