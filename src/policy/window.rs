//! A window: so many permits in so long a time, and where one begins. For the policies that count.

use std::fmt;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::nanos::Nanos;
use crate::policy::Keep;
use crate::policy::published::Published;
use crate::rate::Rate;

/// The time zero, as a stamp. What lies before it is room for a window that began before the clock did.
const ORIGIN: u64 = 1 << 60;

/// The last time that has a stamp of its own, 109 years after the beginning.
const LAST: u64 = (1 << 62) - (1 << 60);

/// A time in nanoseconds, counted from long before the clock's zero.
pub(crate) type Stamp = u64;

#[inline]
pub(crate) fn stamp(at: Nanos) -> Stamp {
    ORIGIN + at.as_u64().min(LAST)
}

/// The time of a stamp; in the past of the clock it is zero.
pub(crate) fn time_of(stamp: Stamp) -> Nanos {
    if stamp > ORIGIN + LAST { Nanos::MAX } else { Nanos::new(stamp.saturating_sub(ORIGIN)) }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Window {
    /// The permits of one window. Zero: none ever.
    pub(crate) limit: u32,
    pub(crate) unlimited: bool,
    /// In nanoseconds, from 1 to 2^60.
    pub(crate) length: u64,
}

impl Window {
    /// The permits and the period of a rate, which must be whole numbers.
    fn new(rate: Rate) -> Result<Window, PolicyError> {
        if rate.is_unlimited() || rate.is_zero() || rate.whole().is_some() {
            return Ok(Window::rounded(rate));
        }
        Err(PolicyError::NotWhole { rate })
    }

    /// The same, rounded to less if need be.
    fn rounded(rate: Rate) -> Window {
        if rate.is_unlimited() {
            return Window { limit: u32::MAX, unlimited: true, length: 1 };
        }
        let (limit, length) = rate.whole().unwrap_or_else(|| rate.whole_or_less());
        Window { limit, unlimited: false, length }
    }

    /// Whether a request of `n` can ever be granted. One permit can, some day: at another rate, if not at this one.
    #[inline]
    pub(crate) fn check(&self, n: u32) -> Result<(), Refusal> {
        match n {
            0 => Err(Refusal::ZeroPermits),
            1 => Ok(()),
            _ if n > self.limit => Err(Refusal::ExceedsBurst { requested: n, burst: self.limit }),
            _ => Ok(()),
        }
    }

    /// What `count` permits of this window are in another.
    pub(crate) fn carried_over(&self, count: u64, new: &Window, keep: Keep) -> u64 {
        match keep {
            _ if self.unlimited || new.unlimited => 0,
            Keep::Reset => 0,
            Keep::Count => count,
            Keep::Ratio if self.limit == 0 => 0,
            // Rounded up: what was used is not forgotten.
            Keep::Ratio => {
                let exact = (u128::from(count) * u128::from(new.limit)).div_ceil(u128::from(self.limit));
                u64::try_from(exact).unwrap_or(u64::MAX)
            }
        }
    }
}

/// The window in force, which can be replaced at any time.
#[derive(Clone)]
pub(crate) struct CurrentWindow {
    words: Words,
    wall_clock: Option<Duration>,
    /// How long before the clock's zero windows began, in nanoseconds; modulo their length.
    anchor: u64,
}

/// The limit, whether there is none, the length, and the rate (three words).
struct Words(Published<6>);

impl CurrentWindow {
    pub(crate) fn new(rate: Rate) -> Result<CurrentWindow, PolicyError> {
        Window::new(rate)?;
        Ok(CurrentWindow { words: Words(Published::new(words(rate))), wall_clock: None, anchor: 0 })
    }

    /// Windows begin so long after those of Unix time.
    pub(crate) fn at_wall_clock(self, offset: Duration) -> CurrentWindow {
        CurrentWindow { wall_clock: Some(offset), ..self }
    }

    pub(crate) fn anchored(self, unix_time_at_zero: Duration) -> CurrentWindow {
        let Some(offset) = self.wall_clock else { return self };
        // Any multiple of all lengths would do to keep the difference above zero; a whole number of windows is added below.
        let anchor = unix_time_at_zero.as_nanos().wrapping_sub(offset.as_nanos());
        let length = u128::from(self.get().length);
        let anchor = match unix_time_at_zero < offset {
            false => anchor,
            true => length - (offset - unix_time_at_zero).as_nanos() % length,
        };
        CurrentWindow { anchor: u64::try_from(anchor).unwrap_or(0), ..self }
    }

    #[inline]
    pub(crate) fn get(&self) -> Window {
        let [limit, unlimited, length] = self.words.0.read(0);
        Window { limit: u32::try_from(limit).unwrap_or(u32::MAX), unlimited: unlimited > 0, length }
    }

    /// The window that a new rate makes. Nothing is set yet.
    pub(crate) fn of(rate: Rate) -> Window {
        Window::rounded(rate)
    }

    pub(crate) fn set(&self, rate: Rate) {
        self.words.0.publish(words(rate), || ());
    }

    pub(crate) fn rate(&self) -> Rate {
        Rate::from_words(self.words.0.read(3))
    }

    /// The beginning of the stretch of `length` in which a time lies.
    #[inline]
    pub(crate) fn beginning(&self, at: Stamp, length: u64) -> Stamp {
        // Below 2^62 + 2^63 + 2^60.
        at - (at - ORIGIN % length + self.anchor % length) % length
    }
}

fn words(rate: Rate) -> [u64; 6] {
    let Window { limit, unlimited, length } = Window::rounded(rate);
    let [digits, exponent, period] = rate.to_words();
    [u64::from(limit), u64::from(unlimited), length, digits, exponent, period]
}

impl Clone for Words {
    fn clone(&self) -> Words {
        Words(Published::new(self.0.read(0)))
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

    #[test]
    fn windows_begin_with_the_clock_or_with_the_wall_clock() -> Result<(), PolicyError> {
        let at = |seconds| stamp(Nanos::from_duration(Duration::from_secs(seconds)));
        let minute = CurrentWindow::new(Rate::per_minute(5))?;
        let length = minute.get().length;
        assert_eq!(minute.beginning(at(0), length), at(0));
        assert_eq!(minute.beginning(at(59), length), at(0));
        assert_eq!(minute.beginning(at(60), length), at(60));
        // The clock began 40 s after the full minute; windows begin 10 s after it.
        let aligned = minute.at_wall_clock(Duration::from_secs(10)).anchored(Duration::from_secs(100));
        assert_eq!(aligned.beginning(at(29), length), at(0) - 30_000_000_000);
        assert_eq!(aligned.beginning(at(30), length), at(30));
        // The offset is longer ago than the epoch.
        let early = CurrentWindow::new(Rate::per_minute(5))?.at_wall_clock(Duration::from_secs(90));
        assert_eq!(early.anchored(Duration::ZERO).beginning(at(31), length), at(30));
        Ok(())
    }

    #[test]
    fn windows_are_whole() {
        let window = |text: &str| text.parse().map(|rate: Rate| (rate.whole(), Window::rounded(rate)));
        let limited = |limit, length| Window { limit, unlimited: false, length };
        assert_eq!(window("2.5/s"), Ok((Some((5, 2_000_000_000)), limited(5, 2_000_000_000))));
        assert_eq!(window("1e3/min"), Ok((Some((1000, 60_000_000_000)), limited(1000, 60_000_000_000))));
        assert_eq!(window("1.23456789012345678/s").map(|(_, window)| window), Ok(limited(1, 1_000_000_000)));
        assert_eq!(window("0.333333333333333333/s").map(|(_, window)| window), Ok(limited(1, 3_000_000_001)));
        assert_eq!(window("5000000000/s").map(|(_, window)| window), Ok(limited(u32::MAX, 1_000_000_000)));
        assert_eq!(window("zero").map(|(_, window)| window.limit), Ok(0));
        assert_eq!(window("1/11000d").map(|(_, window)| window.limit), Ok(1));
    }
}
