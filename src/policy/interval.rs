//! The cost of permits: how many ticks `n` of them take at a rate, rounded up once per request.

use crate::policy::ticks;
use crate::rate::Rate;

/// The time between two permits as the fraction `ticks / permits`, never smaller than the true
/// value.
///
/// The fraction is exact if both numbers fit 64 bits after reduction, which is true of every rate
/// of a whole number of permits. Otherwise (floats of many digits) it is rounded up to a fraction
/// of 2^-62 ticks, or to 62 bits if it is larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    /// The cost of one permit, stored because nearly every request asks for one.
    one: u64,
    /// Zero for an unlimited rate.
    ticks: u64,
    /// Zero for a rate so slow that one permit takes longer than the clock lasts.
    permits: u64,
}

/// The interval of [`Rate::ZERO`]. [`Interval::new`] creates no other interval with these numbers.
const NONE: Interval = Interval { one: ticks::NEVER, ticks: ticks::NEVER, permits: 0 };

impl Interval {
    pub(crate) fn new(rate: Rate) -> Interval {
        if rate.is_unlimited() {
            return Interval { one: 0, ticks: 0, permits: 1 };
        }
        if rate.is_zero() {
            return NONE;
        }
        let (digits, exponent, period) = rate.parts();
        let mut ticks = u128::from(period) * u128::from(ticks::PER_NANO);
        let mut permits = u128::from(digits);
        for _ in 0..exponent.unsigned_abs() {
            // The side that grows. Both sides lose four bits when it is about to overflow, rounded
            // against the caller.
            let grows = if exponent > 0 { &mut permits } else { &mut ticks };
            *grows *= 10;
            if ticks.max(permits) >= 1 << 120 {
                ticks = ticks.div_ceil(16);
                permits >>= 4;
            }
        }
        let divisor = gcd(ticks, permits).max(1);
        (ticks, permits) = (ticks / divisor, permits / divisor);
        if ticks.max(permits) > u128::from(u64::MAX) {
            (ticks, permits) = over_a_power_of_two(ticks, permits);
        }
        // Both were just brought below 2^64.
        #[allow(clippy::cast_possible_truncation)]
        let (ticks, permits) = (ticks as u64, permits as u64);
        let one = price(ticks, permits, 1);
        Interval { one, ticks, permits }
    }

    /// Returns the ticks for `n` permits, rounded up; [`ticks::NEVER`] instead of an overflow.
    pub(crate) fn price(self, n: u32) -> u64 {
        if n == 1 { self.one } else { price(self.ticks, self.permits, n) }
    }

    /// Returns the ticks that `n` permits given back are worth, rounded down: giving back in pieces
    /// must not gain anything.
    pub(crate) fn worth(self, n: u32) -> u64 {
        match u128::from(self.permits) {
            // While no permits accrue, the value of a permit is unknown.
            0 if self.is_zero() => 0,
            0 => ticks::NEVER,
            permits => saturate(u128::from(self.ticks) * u128::from(n) / permits),
        }
    }

    /// Returns the duration that holds as many permits of another interval as `span` holds of this
    /// one, rounded down, or up for a debt. Stored permits become zero if either interval is
    /// unlimited or has no permits. A debt becomes zero if either interval is unlimited.
    pub(crate) fn convert(self, span: u64, other: Interval, up: bool) -> u64 {
        if self.ticks == 0 || (!up && (self.permits == 0 || other.permits == 0)) || span == 0 {
            return 0;
        }
        if self.permits == 0 {
            // Less than one permit, however long.
            return other.price(1);
        }
        if other.permits == 0 {
            return ticks::NEVER;
        }
        let [span, ticks, permits] = [span, self.ticks, self.permits].map(u128::from);
        let [new_ticks, new_permits] = [other.ticks, other.permits].map(u128::from);
        // The whole permits and the rest are separate, because the product of all four numbers has
        // 256 bits.
        let (whole, rest) = ((span * permits) / ticks, (span * permits) % ticks);
        let (above, below) = (rest * new_ticks, ticks * new_permits);
        let Some(product) = whole.checked_mul(new_ticks) else { return ticks::NEVER };
        let (main, left) = (product / new_permits, product % new_permits);
        // The remainders are less than one tick each. Their sum is rounded once.
        let fraction = above / below;
        // Both are below `below`, so the sum contains it at most once.
        let carry = match (above % below).checked_add(left * ticks) {
            None => 1 + u128::from(up),
            Some(carry) if up => carry.div_ceil(below),
            Some(carry) => carry / below,
        };
        saturate(main.saturating_add(fraction).saturating_add(carry))
    }

    /// Returns how many whole permits a duration holds.
    pub(crate) fn permits_in(self, span: u64) -> u64 {
        match u128::from(self.ticks) {
            0 => u64::MAX,
            ticks => u64::try_from(u128::from(span) * u128::from(self.permits) / ticks).unwrap_or(u64::MAX),
        }
    }

    /// Returns the permits that accrue in a duration, with the fraction, for display.
    pub(crate) fn permits_in_f64(self, span: u64) -> f64 {
        span as f64 * self.permits as f64 / self.ticks as f64
    }

    /// Returns whether the interval is a whole number of ticks.
    pub(crate) fn is_whole(self) -> bool {
        self.permits == 1
    }

    /// Returns whether the interval is a whole number of nanoseconds.
    pub(crate) fn is_whole_nanos(self) -> bool {
        self.permits == 1 && self.ticks.is_multiple_of(ticks::PER_NANO)
    }

    /// Returns whether every permit is free.
    pub(crate) fn is_unlimited(self) -> bool {
        self.ticks == 0
    }

    /// Returns whether there are no permits.
    pub(crate) fn is_zero(self) -> bool {
        self == NONE
    }

    /// Returns this interval, or one tick if it is shorter.
    pub(crate) fn of_a_tick_at_least(self) -> Interval {
        if self.ticks < self.permits { Interval::of_ticks(1) } else { self }
    }

    /// Returns an interval of `ticks` ticks.
    pub(crate) fn of_ticks(ticks: u64) -> Interval {
        Interval { one: ticks, ticks, permits: 1 }
    }

    pub(crate) fn to_words(self) -> [u64; 3] {
        [self.one, self.ticks, self.permits]
    }

    pub(crate) fn from_words([one, ticks, permits]: [u64; 3]) -> Interval {
        Interval { one, ticks, permits }
    }
}

fn price(ticks: u64, permits: u64, n: u32) -> u64 {
    if permits == 0 {
        return ticks::NEVER;
    }
    // One machine division if the product fits, as it nearly always does.
    match ticks.checked_mul(u64::from(n)) {
        Some(product) => product.div_ceil(permits),
        None => {
            let quotient = (u128::from(ticks) * u128::from(n)).div_ceil(u128::from(permits));
            saturate(quotient)
        }
    }
}

/// Returns the fraction rounded up to one whose denominator is a power of two, so that both numbers
/// fit 64 bits.
fn over_a_power_of_two(ticks: u128, permits: u128) -> (u128, u128) {
    if permits == 0 || ticks / permits >= u128::from(u64::MAX) {
        // Longer than the clock lasts.
        return (1, 0);
    }
    let fits = 1 << 62;
    // Long division, one bit at a time. The remainder is below `permits`, which is below 2^120.
    let (mut quotient, mut rest, mut below) = (ticks / permits, ticks % permits, 1);
    while below < fits && quotient < fits {
        rest *= 2;
        quotient = quotient * 2 + rest / permits;
        rest %= permits;
        below *= 2;
    }
    (quotient + u128::from(rest > 0), below)
}

fn saturate(ticks: u128) -> u64 {
    u64::try_from(ticks).unwrap_or(ticks::NEVER)
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn prices_of_plain_rates() {
        let five = Interval::new(Rate::per_second(5));
        assert_eq!(five.price(1), 3_200_000_000);
        assert_eq!(five.price(3), 9_600_000_000);
        // A third of a tick each, rounded up once per request.
        let fast = Interval::new(Rate::per_second(48_000_000_000));
        assert_eq!((fast.price(1), fast.price(3), fast.price(4)), (1, 1, 2));
        assert_eq!(Interval::new(Rate::UNLIMITED).price(u32::MAX), 0);
    }

    #[test]
    fn extreme_rates_end_in_limited() -> Result<(), crate::RateError> {
        for (permits, one) in [(f64::from_bits(1), ticks::NEVER), (1e-13, ticks::NEVER), (f64::MAX, 1)] {
            assert_eq!(Interval::new(Rate::from_per_second(permits)?).price(1), one, "{permits}");
        }
        assert_eq!(Interval::new(Rate::new(1, Rate::MAX_PERIOD)?).price(u32::MAX), ticks::NEVER);
        Ok(())
    }

    proptest! {
        /// Whole permits: exactly the quotient rounded up, from big integers.
        #[test]
        fn price_is_exact(permits in 1u64.., period in 1u64..=1 << 60, n in 1u32..) {
            let rate = Rate::new(permits, Duration::from_nanos(period))?;
            let exact = (u128::from(period) * 16 * u128::from(n)).div_ceil(u128::from(permits));
            let got = Interval::new(rate).price(n);
            prop_assert_eq!(u128::from(got), exact.min(u128::from(u64::MAX)));
        }

        /// Floats: never cheaper than the true cost, and closer than a tick and a 2^-52th.
        #[test]
        fn price_of_a_float_is_close(digits in 1.0f64..10.0, power in -6i32..12, n in 1u32..100_000) {
            let permits = digits * 10f64.powi(power);
            let got = Interval::new(Rate::from_per_second(permits)?).price(n) as f64;
            let exact = (f64::from(n) * 16e9 / permits).min(u64::MAX as f64);
            prop_assert!(got >= exact * (1.0 - 1e-15) && got <= exact * (1.0 + 1e-15) + 1.0, "{} {}", got, exact);
        }
    }
}
