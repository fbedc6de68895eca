//! A window: a number of permits in a length of time, and where each window begins. For the window
//! policies.

pub(crate) mod cells;
pub(crate) mod closable;
mod estimate;
mod fixed;
pub(crate) mod log;
pub(crate) mod sliding;

pub use estimate::{EstimateCharge, EstimateState, SlidingEstimate};
pub use fixed::{FixedCharge, FixedState, FixedWindow};
pub use log::{LogCharge, LogState, SlidingLog};
pub use sliding::{SlidingCharge, SlidingState, SlidingWindow};

use std::fmt;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::published::Published;
use crate::policy::remainder::Remainder;
use crate::policy::window::closable::ClosableWord;
use crate::policy::{Keep, limited};
use crate::rate::Rate;
use crate::time::Nanos;

/// The methods of [`Policy`](super::Policy) that all window policies have in common. A charge of
/// type `$charge` has its number of permits in the field `n`.
macro_rules! common_to_windows {
    ($charge:ident) => {
        fn weight(&self, n: u32) -> u64 {
            u64::from(n)
        }

        /// Single permits fill a window completely, and larger requests may not.
        fn one_by_one(&self, largest: u32) -> usize {
            if largest > 1 { usize::MAX } else { 0 }
        }

        fn unspent(&self, charge: $charge, n: u32, used: u32) -> Option<$charge> {
            n.checked_sub(used).filter(|n| *n > 0).map(|n| $charge { n: charge.n.min(n), ..charge })
        }

        fn permits(&self, charge: $charge) -> u32 {
            charge.n
        }

        fn rate(&self) -> Rate {
            self.window.rate()
        }

        fn catches_up(&self) -> bool {
            false
        }
    };
}

use common_to_windows;

/// The stamp of time zero. Stamps before it are room for a window that began before the clock did.
const ORIGIN: u64 = 1 << 60;

/// The last time that has a stamp of its own, 109 years after the beginning. Its stamp takes 62
/// bits, which is all the room that the words of state have for a time.
const LAST: u64 = (1 << 62) - (1 << 60) - 1;

/// A time in nanoseconds, counted from long before the clock's zero.
pub(crate) type Stamp = u64;

#[inline]
pub(crate) fn stamp(at: Nanos) -> Stamp {
    ORIGIN + at.as_u64().min(LAST)
}

/// Returns the time of a stamp. A stamp before the clock's beginning becomes zero.
pub(crate) fn time_of(stamp: Stamp) -> Nanos {
    if stamp > ORIGIN + LAST { Nanos::MAX } else { Nanos::new(stamp.saturating_sub(ORIGIN)) }
}

/// A refusal by a function that is not inlined. The wait is a separate number: copying a
/// [`Refusal`] that was just written field by field would take longer than the decision.
pub(crate) enum Refused {
    For(Nanos),
    Otherwise(Refusal),
}

impl Refused {
    /// Returns the refusal, at the stamp of a time, of a request that is due at a later stamp.
    #[inline]
    pub(crate) fn until(due: Stamp, now: Stamp) -> Refused {
        let wait = if due > ORIGIN + LAST { u64::MAX } else { due.saturating_sub(now) };
        Refused::For(Nanos::new(wait))
    }

    #[inline]
    pub(crate) fn into_refusal(self) -> Refusal {
        match self {
            Refused::For(retry_after) => Refusal::Limited { retry_after },
            Refused::Otherwise(refusal) => refusal,
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        Refused::Otherwise(refusal)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Window {
    /// The permits of one window. Zero means that none is ever granted.
    pub(crate) limit: u32,
    pub(crate) unlimited: bool,
    /// In nanoseconds, from 1 to 2^60.
    pub(crate) length: u64,
    /// The length of a piece: of the whole window, or of one of its cells.
    pub(crate) piece: u64,
    /// The number to add to a stamp at which a piece begins, to get a whole number of pieces.
    pub(crate) shift: u64,
    /// The number of pieces in 2^64 ns, rounded down: a multiplication by it is cheaper than a
    /// division by the piece.
    pub(crate) reciprocal: u64,
}

impl Window {
    /// Creates the limit and window of a rate, rounded down if need be.
    fn new(rate: Rate, cells: u16, anchor: i64) -> Window {
        let unlimited = rate.is_unlimited();
        let whole = || rate.whole().unwrap_or_else(|| rate.whole_or_less());
        let (limit, length) = if unlimited { (u32::MAX, 1) } else { whole() };
        let piece = length.div_ceil(u64::from(cells));
        // At most 2^60.
        let since = anchor.rem_euclid(piece.cast_signed()).cast_unsigned();
        let shift = (piece - ORIGIN % piece + since) % piece;
        Window { limit, unlimited, length, piece, shift, reciprocal: u64::MAX / piece }
    }

    #[inline]
    fn from_words([limit, piece, shift, reciprocal, length]: [u64; 5]) -> Window {
        let unlimited = limit == u64::MAX;
        // The lower half of a number with all bits set is the limit of a window without one.
        #[allow(clippy::cast_possible_truncation)]
        let limit = limit as u32;
        Window { limit, unlimited, length, piece, shift, reciprocal }
    }

    /// Returns the beginning of the piece that contains a time.
    #[inline]
    pub(crate) fn beginning(&self, at: Stamp) -> Stamp {
        // Only a time before all windows is earlier than that.
        at.saturating_sub(self.since_beginning(at))
    }

    /// Returns how long ago the piece began that contains a time.
    #[inline]
    pub(crate) fn since_beginning(&self, at: Stamp) -> u64 {
        // Below 2^63 for the stamp of a time, so that the product is too small by less than one. A
        // forecast may be later than any time.
        let shifted = at.saturating_add(self.shift);
        let product = u128::from(shifted) * u128::from(self.reciprocal);
        // The upper half.
        #[allow(clippy::cast_possible_truncation)]
        let pieces = (product >> 64) as u64;
        let since = shifted - pieces * self.piece;
        if since >= self.piece { since - self.piece } else { since }
    }

    /// Checks whether a request of `n` permits can ever be granted. One permit can, at some time:
    /// at another rate, if not at this one.
    #[inline]
    pub(crate) fn check(&self, n: u32) -> Result<(), Refusal> {
        match n {
            0 => Err(Refusal::ZeroPermits),
            1 => Ok(()),
            _ if n > self.limit => Err(Refusal::ExceedsLimit { requested: n, limit: self.limit }),
            _ => Ok(()),
        }
    }

    /// Returns whether no count decides about a request of `n` permits: see
    /// [`without_count`](Window::without_count).
    #[inline]
    pub(crate) fn needs_no_count(&self, n: u32) -> bool {
        n.wrapping_sub(1) >= self.limit || self.unlimited
    }

    /// Returns the decision on such a request: it asks for no permit or for too many, or there is
    /// no limit.
    #[inline]
    pub(crate) fn without_count(&self, n: u32, at: Nanos) -> Result<(), Refusal> {
        Window::never_or_free(self.limit, self.unlimited, n, at)
    }

    #[cold]
    #[inline(never)]
    fn never_or_free(limit: u32, unlimited: bool, n: u32, at: Nanos) -> Result<(), Refusal> {
        match n {
            0 => Err(Refusal::ZeroPermits),
            _ if unlimited => Ok(()),
            1 => Err(limited(Nanos::MAX, at)),
            _ => Err(Refusal::ExceedsLimit { requested: n, limit }),
        }
    }

    /// Returns what `count` permits of this window are in another window.
    pub(crate) fn carried_over(&self, count: u64, new: &Window, keep: Keep) -> u64 {
        match keep {
            _ if self.unlimited || new.unlimited => 0,
            Keep::Nothing => 0,
            // A counter has room for any number of permits that was ever granted in a window, and
            // for no more.
            Keep::Count => count.min(u32::MAX.into()),
            // There is no ratio.
            Keep::Ratio if self.limit == 0 || new.limit == 0 => count.min(u32::MAX.into()),
            // Rounded up: used permits are not forgotten.
            Keep::Ratio => {
                let exact = (u128::from(count) * u128::from(new.limit)).div_ceil(u128::from(self.limit));
                u32::try_from(exact).unwrap_or(u32::MAX).into()
            }
        }
    }
}

/// Returns the time from an earlier time to a later one, in nanoseconds, cut at 292 years.
pub(crate) fn nanos_between(earlier: Duration, later: Duration) -> i64 {
    let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    nanos(later).saturating_sub(nanos(earlier))
}

/// The window in force, which can be replaced at any time.
pub(crate) struct CurrentWindow {
    /// The limit (all bits set without a limit), piece, shift, reciprocal and length, and the rate
    /// (three words).
    words: Published<8>,
    /// The number of cells into which the window is cut.
    cells: u16,
    pub(in crate::policy) wall_clock: Option<Duration>,
    /// How long before the clock's zero the windows began, in nanoseconds.
    anchor: i64,
}

impl CurrentWindow {
    /// Creates a window from the permits and the period of a rate, which must be whole numbers, cut
    /// into cells.
    pub(crate) fn new(rate: Rate, cells: u16) -> Result<CurrentWindow, PolicyError> {
        if !rate.is_unlimited() && !rate.is_zero() && rate.whole().is_none() {
            return Err(PolicyError::NotWhole { rate });
        }
        Ok(CurrentWindow::made(rate, cells, None, 0))
    }

    fn made(rate: Rate, cells: u16, wall_clock: Option<Duration>, anchor: i64) -> CurrentWindow {
        let words = words(rate, Window::new(rate, cells, anchor));
        CurrentWindow { words: Published::new(words), cells, wall_clock, anchor }
    }

    /// Makes windows begin this long after the windows of Unix time.
    pub(crate) fn at_wall_clock(self, offset: Duration) -> CurrentWindow {
        CurrentWindow { wall_clock: Some(offset), ..self }
    }

    /// Returns whether windows of one rate would begin at equal times, in equal cells.
    pub(crate) fn begins_like(&self, other: &CurrentWindow) -> bool {
        (self.cells, self.wall_clock, self.anchor) == (other.cells, other.wall_clock, other.anchor)
    }

    pub(crate) fn with_epoch(self, unix_time_at_zero: Duration) -> CurrentWindow {
        let Some(offset) = self.wall_clock else {
            return self;
        };
        let anchor = nanos_between(offset, unix_time_at_zero);
        CurrentWindow::made(self.rate(), self.cells, self.wall_clock, anchor)
    }

    #[inline]
    pub(crate) fn get(&self) -> Window {
        Window::from_words(self.words.read(0))
    }

    /// Returns the window and its version: each change creates another version.
    #[inline]
    pub(crate) fn get_with_version(&self) -> (Window, u64) {
        let (words, version) = self.words.read_with_version(0);
        (Window::from_words(words), version)
    }

    pub(crate) fn version(&self) -> u64 {
        self.words.version()
    }

    /// Returns the window that a new rate makes. Nothing is set yet.
    pub(crate) fn with(&self, rate: Rate) -> Window {
        // As long as before, so that counted permits do not expire sooner. Without a limit only a
        // log still has them.
        if rate.is_zero() {
            return Window { limit: 0, unlimited: false, ..self.get() };
        }
        if rate.is_unlimited() {
            return Window { limit: u32::MAX, unlimited: true, ..self.get() };
        }
        Window::new(rate, self.cells, self.anchor)
    }

    pub(crate) fn set(&self, rate: Rate) {
        let writer = self.words.writer();
        writer.publish(words(rate, self.with(rate)));
    }

    /// Replaces the window, or leaves it as it is without a rate, together with a word that is
    /// counted by it. `convert` converts the content of the old window to the content of the new
    /// one.
    pub(crate) fn change<const TOP: u32, const TURNS: u32>(
        &self,
        word: &ClosableWord<TOP, TURNS>,
        rate: Option<Rate>,
        convert: impl FnOnce(u128, &Window, &Window) -> u128,
    ) {
        let writer = self.words.writer();
        let rate = rate.unwrap_or(self.rate());
        let (old, new) = (self.get(), self.with(rate));
        let content = convert(word.close(), &old, &new);
        writer.publish(words(rate, new));
        word.open(content);
    }

    /// Changes to a window without permits, so that no later request takes permits from a word of
    /// these terms. Returns what the word had: `convert` returns how many permits are available by
    /// its content, and the content of the new window.
    pub(crate) fn shut<const TOP: u32, const TURNS: u32>(
        &self,
        word: &ClosableWord<TOP, TURNS>,
        convert: impl FnOnce(u128, &Window, &Window) -> (u64, u128),
    ) -> Remainder {
        let mut left = Remainder::new(u64::MAX, u64::MAX);
        self.change(word, Some(Rate::ZERO), |content, old, new| {
            let (available, converted) = convert(content, old, new);
            if !old.unlimited {
                left = Remainder::new(old.limit.into(), available);
            }
            converted
        });
        left
    }

    /// Waits for a change that is in progress.
    pub(crate) fn wait(&self) {
        drop(self.words.writer());
    }

    pub(crate) fn rate(&self) -> Rate {
        Rate::from_words(self.words.read(5))
    }

    /// Returns the rate, in whole numbers, of a limit that is at most `room`.
    pub(in crate::policy) fn whole_rate(&self, room: u32) -> Rate {
        let (rate, Window { limit, length, unlimited, .. }) = (self.rate(), self.get());
        let is_whole = rate.whole().is_some_and(|(permits, _)| permits <= room);
        if unlimited || rate.is_zero() || is_whole {
            return rate;
        }
        Rate::new(limit.min(room).into(), Duration::from_nanos(length)).unwrap_or(Rate::ZERO)
    }

    pub(crate) fn cells(&self) -> u16 {
        self.cells
    }
}

fn words(rate: Rate, window: Window) -> [u64; 8] {
    let Window { limit, unlimited, length, piece, shift, reciprocal } = window;
    let [digits, exponent, period] = rate.to_words();
    let limit = if unlimited { u64::MAX } else { limit.into() };
    [limit, piece, shift, reciprocal, length, digits, exponent, period]
}

impl Clone for CurrentWindow {
    /// Copies the version, which charges carry. A window of no permits is as long as the one before
    /// it.
    fn clone(&self) -> CurrentWindow {
        CurrentWindow { words: self.words.copy().0, ..*self }
    }
}

impl fmt::Debug for CurrentWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rate().fmt(f)
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn windows_begin_with_the_clock_or_with_the_wall_clock() -> Result<(), PolicyError> {
        let at = |seconds| stamp(Nanos::from_duration(Duration::from_secs(seconds)));
        let minute = CurrentWindow::new(Rate::per_minute(5), 1)?;
        let beginning = |window: &CurrentWindow, seconds| window.get().beginning(at(seconds));
        assert_eq!([0, 59, 60].map(|seconds| beginning(&minute, seconds)), [at(0), at(0), at(60)]);
        // The clock began 40 s after the full minute; windows begin 10 s after it.
        let aligned = minute.at_wall_clock(Duration::from_secs(10)).with_epoch(Duration::from_secs(100));
        assert_eq!(beginning(&aligned, 29), at(0) - 30_000_000_000);
        assert_eq!(beginning(&aligned, 30), at(30));
        // The offset is longer ago than the epoch.
        let early = CurrentWindow::new(Rate::per_minute(5), 1)?.at_wall_clock(Duration::from_secs(90));
        assert_eq!(beginning(&early.with_epoch(Duration::ZERO), 31), at(30));
        Ok(())
    }

    #[test]
    fn windows_are_whole() {
        let window = |text: &str| {
            text.parse().map(|rate: Rate| {
                let Window { limit, length, .. } = Window::new(rate, 1, 0);
                (rate.whole(), (limit, length))
            })
        };
        let limited = |limit: u32, length: u64| (limit, length);
        assert_eq!(window("2.5/s"), Ok((Some((5, 2_000_000_000)), limited(5, 2_000_000_000))));
        assert_eq!(window("1e3/min"), Ok((Some((1000, 60_000_000_000)), limited(1000, 60_000_000_000))));
        assert_eq!(window("1.23456789012345678/s").map(|(_, window)| window), Ok(limited(1, 1_000_000_000)));
        assert_eq!(window("0.333333333333333333/s").map(|(_, window)| window), Ok(limited(1, 3_000_000_001)));
        assert_eq!(window("5000000000/s").map(|(_, window)| window), Ok(limited(u32::MAX, 1_000_000_000)));
        assert_eq!(window("zero").map(|(_, (limit, _))| limit), Ok(0));
        assert_eq!(window("1/11000d").map(|(_, (limit, _))| limit), Ok(1));
    }

    /// A queue of which each entry is asked for on a running clock was forecast anew each time.
    #[test]
    fn forecasts_are_equal_until_a_window_ends() -> Result<(), Refusal> {
        fn check(policy: impl Policy) -> Result<(), Refusal> {
            let at = |seconds| Nanos::from_duration(Duration::from_secs(seconds));
            let state = policy.start(at(0));
            policy.try_acquire(&state, at(60), 3)?;
            let [first, same, next] = [61, 119, 185].map(|seconds| policy.forecast(&state, at(seconds)));
            assert!(first.has_equal_state(&same));
            assert!(!first.has_equal_state(&next));
            Ok(())
        }
        check(FixedWindow::new(Rate::per_minute(5)))?;
        check(FixedWindow::new(Rate::per_minute(5)).from_first_grant())?;
        check(SlidingEstimate::new(Rate::per_minute(5)))
    }
}
