//! The unit of every state word: a sixteenth of a nanosecond.

use std::time::Duration;

use crate::time::Nanos;

/// Ticks in a nanosecond.
///
/// A whole nanosecond is too coarse for an interval: 700,000/s would be 0.04 % wrong. A 16th keeps
/// the error of rounding up below 65 ppm at 1 M/s, and a `u64` of such ticks still lasts 36.5
/// years.
pub(crate) const PER_NANO: u64 = 16;

/// The tick of time zero. The ticks before it are room for permits stored before the clock began: a
/// full bucket at time zero was empty 2.28 years ago. The 34 years after it are the clock's.
pub(crate) const ORIGIN: u64 = 1 << 60;

/// A state at this tick is never free again: [`from_nanos`] returns smaller ticks.
pub(crate) const NEVER: u64 = u64::MAX;

/// The longest duration for which permits can be stored or a warm-up can last, about 2.28 years.
pub(crate) const MAX_SPAN: Duration = Duration::from_nanos(ORIGIN / PER_NANO);

/// The last time that has a tick of its own, 34 years after the beginning.
const LAST: u64 = (NEVER - 1 - ORIGIN) / PER_NANO;

/// Returns the tick of a time. After [`LAST`] it stays constant, below [`NEVER`], so overflow means
/// "limited".
#[inline]
pub(crate) const fn from_nanos(at: Nanos) -> u64 {
    let nanos = if at.as_u64() < LAST { at.as_u64() } else { LAST };
    nanos * PER_NANO + ORIGIN
}

/// Returns the time from one tick to a later one, in whole nanoseconds rounded up.
#[inline]
pub(crate) const fn between(earlier: u64, later: u64) -> Nanos {
    // No clock reading reaches this tick.
    if later > from_nanos(Nanos::MAX) {
        return Nanos::MAX;
    }
    // The sum cannot overflow: `later` is at least 15 ticks before the end. `div_ceil` would check
    // the remainder.
    #[allow(clippy::manual_div_ceil)]
    Nanos::new((later - earlier + (PER_NANO - 1)) / PER_NANO)
}

/// Returns the first whole nanosecond at or after a tick.
pub(crate) const fn to_nanos(tick: u64) -> Nanos {
    // A tick that no clock reading reaches is never due.
    if tick > from_nanos(Nanos::MAX) {
        Nanos::MAX
    } else {
        Nanos::new(tick.saturating_sub(ORIGIN).div_ceil(PER_NANO))
    }
}

/// Returns a duration in ticks, or `None` if it is longer than [`MAX_SPAN`].
pub(crate) const fn from_span(span: Duration) -> Option<u64> {
    if span.as_nanos() > MAX_SPAN.as_nanos() {
        return None;
    }
    Some(Nanos::from_duration(span).as_u64() * PER_NANO)
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_time_is_never_reached() {
        assert!(from_nanos(Nanos::MAX) < NEVER);
        assert_eq!(to_nanos(NEVER), Nanos::MAX);
        assert_eq!(to_nanos(0), Nanos::ZERO);
        assert_eq!(from_span(MAX_SPAN), Some(ORIGIN));
        assert_eq!(from_span(Duration::MAX), None);
    }

    #[test]
    fn a_span_is_rounded_up_to_whole_nanoseconds() {
        let last = from_nanos(Nanos::MAX);
        for later in [0, 1, 15, 16, 17, ORIGIN, ORIGIN + 1, last - 1, last] {
            assert_eq!(between(0, later), Nanos::new(later.div_ceil(PER_NANO)));
            assert_eq!(between(later, later), Nanos::ZERO);
        }
        assert_eq!(between(ORIGIN, last + 1), Nanos::MAX);
        assert_eq!(between(ORIGIN, NEVER), Nanos::MAX);
    }

    #[test]
    fn a_time_is_reached_not_before_its_tick() {
        for tick in [ORIGIN, ORIGIN + 1, ORIGIN + 15, ORIGIN + 16, ORIGIN + 17] {
            let at = to_nanos(tick);
            assert!(from_nanos(at) >= tick && from_nanos(at) - tick < PER_NANO);
        }
    }
}
