//! The terms that a user sets, and the numbers in ticks by which a bucket decides.

use std::time::Duration;

use crate::error::PolicyError;
use crate::policy::interval::Interval;
use crate::policy::{Change, Keep, Standstill, ticks};
use crate::rate::Rate;
use crate::time::Nanos;

/// The terms that the user set. All of them can change at run time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Terms {
    pub(crate) rate: Rate,
    pub(crate) burst: u32,
    /// Ticks that the bucket holds beyond the burst.
    pub(crate) tolerance: u64,
    /// Permits arrive in steps, once per period.
    pub(crate) stepped: bool,
    /// How long before the clock's zero the steps began, in nanoseconds.
    pub(crate) anchor: i64,
}

/// The numbers that a decision needs, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    /// The cost of one permit; zero only without a limit.
    pub(super) one: u64,
    /// How many ticks of tokens the bucket holds.
    pub(super) capacity: u64,
    /// The tick at which time stands still; `ticks::NEVER` if it does not.
    pub(super) frozen_at: u64,
    /// The length of a step; 0 if tokens accrue all the time.
    pub(super) step: u64,
    /// The number of ticks to add to a tick at which a step begins, to get a whole number of steps.
    pub(super) shift: u64,
    /// The ticks by which the bucket's clock advances with a step.
    pub(super) gain: u64,
}

/// The terms that a decision about several permits, and all other calls, need in addition to
/// [`Numbers`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct More {
    /// The interval that distinguishes tokens. It is kept even without a limit, and if no tokens
    /// accrue.
    pub(super) interval: Interval,
    /// The maximum number of permits of one request.
    pub(super) most: u32,
}

/// The interval of a bucket that never had a rate: it only has to distinguish tokens.
pub(super) const PLACEHOLDER_INTERVAL: u64 = 1 << 28;

/// 50 ns.
pub(super) const MAX_SLACK: u64 = 50 * ticks::PER_NANO;

/// Returns the ticks that a bucket holds in which `permits` permits are stored. The cost of each of
/// them is rounded up, so they cost more one by one than at once: the bucket holds this rounding as
/// well, and `more` ticks, but less than another permit.
pub(super) fn stock(interval: Interval, permits: u32, more: u64) -> u64 {
    let (at_once, one_by_one) =
        (interval.price(permits), interval.price(1).saturating_mul(u64::from(permits)));
    let rounding = one_by_one.saturating_sub(at_once).saturating_add(more);
    at_once.saturating_add(rounding.min(MAX_SLACK).min(interval.worth(1).saturating_sub(1)))
}

impl Terms {
    /// Returns the numbers of these terms, in force since a tick. `before` is the interval until
    /// then.
    pub(super) fn numbers(self, since: u64, before: Interval) -> Result<(Numbers, More), PolicyError> {
        // Without a rate, any interval distinguishes tokens.
        let is_any = self.rate.is_unlimited() || self.rate.is_zero();
        let before = match is_any && self.fill(before) > ticks::ORIGIN {
            true => Interval::of_ticks(PLACEHOLDER_INTERVAL),
            false => before,
        };
        let (numbers, more) = self.rounded_numbers(since, before);
        if self.fill(more.interval) > ticks::ORIGIN - numbers.step {
            let tolerance = Duration::from_nanos(self.tolerance / ticks::PER_NANO);
            let (burst, rate, limit) = (self.burst, self.rate, ticks::MAX_SPAN);
            return Err(PolicyError::Fill { burst, rate, tolerance, limit });
        }
        Ok((numbers, more))
    }

    /// Returns the numbers of these terms, with a bucket that holds no more than a state can
    /// represent.
    pub(super) fn rounded_numbers(self, since: u64, before: Interval) -> (Numbers, More) {
        let unlimited = self.rate.is_unlimited();
        let still = unlimited || self.rate.is_zero();
        let stepped = self.stepped && !still;
        let step = match stepped {
            true => Nanos::from_duration(self.rate.period()).as_u64().saturating_mul(ticks::PER_NANO),
            false => 0,
        };
        let step = step.min(ticks::ORIGIN);
        let interval = match self.rate.parts() {
            _ if still => before,
            // A cost that adds up to a step without rounding.
            (permits, 0, _) if stepped => Interval::of_ticks((step / permits).max(1)),
            // If a tick is several permits, one permit costs a tick, and larger requests would cost
            // less.
            _ => Interval::new(self.rate).of_a_tick_at_least(),
        };
        let capacity = self.fill(interval).min(ticks::ORIGIN - step);
        let gain = match self.rate.parts() {
            (permits, 0, _) if stepped => permits.saturating_mul(interval.price(1)).min(step).min(capacity),
            _ => step.min(capacity),
        };
        let shift = if step == 0 { 0 } else { self.shift(step) };
        let most = u32::try_from(interval.permits_in(capacity)).unwrap_or(u32::MAX);
        let frozen_at = if still { since } else { ticks::NEVER };
        let one = if unlimited { 0 } else { interval.price(1) };
        let most = if unlimited { u32::MAX } else { most };
        (Numbers { one, capacity, frozen_at, step, shift, gain }, More { interval, most })
    }

    /// Returns the number of ticks to add to a tick at which a step begins, to get a whole number
    /// of steps.
    pub(super) fn shift(self, step: u64) -> u64 {
        let period = (step / ticks::PER_NANO).cast_signed();
        let since = self.anchor.rem_euclid(period).cast_unsigned() * ticks::PER_NANO;
        (step - ticks::ORIGIN % step + since) % step
    }

    /// Returns how many ticks the bucket takes to fill.
    pub(super) fn fill(self, interval: Interval) -> u64 {
        let is_exact = interval.is_whole_nanos() || (self.stepped && interval.is_whole()) || self.burst == 0;
        let due_times = if is_exact { 0 } else { ticks::PER_NANO - 1 };
        // No permits accrue in the tolerance at a rate of zero.
        let tolerance = if self.rate.is_zero() { 0 } else { self.tolerance };
        stock(interval, self.burst, due_times).saturating_add(tolerance)
    }

    pub(super) fn changed(self, change: Change) -> Terms {
        Terms { rate: change.rate.unwrap_or(self.rate), burst: change.burst.unwrap_or(self.burst), ..self }
    }
}

impl Numbers {
    /// Returns a time on the step clock of the bucket, which stands still between steps. Without
    /// steps it is the clock of the limiter.
    #[inline]
    pub(super) fn tick(&self, at: Nanos) -> u64 {
        if self.frozen_at < ticks::NEVER {
            return self.step_tick(self.frozen_at);
        }
        let tick = ticks::from_nanos(at);
        // Only whole steps have arrived.
        match tick.saturating_add(self.shift).checked_div(self.step) {
            None => tick,
            Some(steps) => steps.saturating_mul(self.gain),
        }
    }

    /// Returns the tick of the bucket's step clock for a word.
    #[inline]
    pub(super) fn step_tick(&self, word: u64) -> u64 {
        if self.step == 0 || word == ticks::NEVER {
            return word;
        }
        let word = word.saturating_add(self.shift);
        (word / self.step).saturating_mul(self.gain).saturating_add((word % self.step).min(self.gain))
    }

    /// Returns the word for a tick of the bucket's step clock.
    #[inline]
    pub(super) fn word_of(&self, own: u64) -> u64 {
        if self.step == 0 || own == ticks::NEVER {
            return own;
        }
        let gain = self.gain.max(1);
        let word = (own / gain).checked_mul(self.step).and_then(|word| word.checked_add(own % gain));
        word.map_or(ticks::NEVER, |word| word.saturating_sub(self.shift))
    }

    /// Returns the word after a cost, and the tick at which it is due, if the bucket has not been
    /// full: the values of [`step_tick`](Numbers::step_tick), [`word_of`](Numbers::word_of) and
    /// [`time_of`](Numbers::time_of), with one division instead of three. Returns `None` without
    /// steps, and if numbers are too large.
    #[inline]
    pub(super) fn interval_refill(&self, word: u64, price: u64) -> Option<(u64, u64)> {
        if self.step == 0 || self.frozen_at < ticks::NEVER {
            return None;
        }
        let shifted = word.checked_add(self.shift)?;
        let into = shifted % self.step;
        let begun = shifted - into;
        // A cost is seldom more than a step brings.
        let (mut steps, mut rest) = (0, into.min(self.gain).checked_add(price)?);
        if rest >= self.gain {
            (steps, rest) = (self.step, rest - self.gain);
        }
        if rest >= self.gain {
            let more = rest.checked_div(self.gain)?;
            (steps, rest) = (more.checked_mul(self.step)?.checked_add(steps)?, rest - more * self.gain);
        }
        let begun = begun.checked_add(steps)?;
        let after = begun.checked_add(rest)?.checked_sub(self.shift)?;
        // The part of a step arrives with the next whole step.
        let due = if rest == 0 { begun } else { begun.checked_add(self.step)? };
        Some((after, due.checked_sub(self.shift)?))
    }

    /// Returns whether the bucket has room for all tokens that arrived from a word to a tick, in
    /// steps.
    #[inline]
    pub(super) fn holds_all_since(&self, word: u64, tick: u64) -> bool {
        let [word, tick] = [word, tick].map(|tick| tick.saturating_add(self.shift));
        let into = word % self.step;
        let steps = tick.saturating_sub(word - into) / self.step;
        steps.saturating_mul(self.gain) <= self.capacity.saturating_add(into.min(self.gain))
    }

    /// Returns the first time at which the bucket's step clock shows a tick.
    pub(super) fn time_of(&self, own: u64) -> Nanos {
        if self.frozen_at < ticks::NEVER {
            return if own > self.step_tick(self.frozen_at) { Nanos::MAX } else { Nanos::ZERO };
        }
        if self.step == 0 {
            return ticks::to_nanos(own);
        }
        if self.gain == 0 {
            return Nanos::MAX;
        }
        match own.div_ceil(self.gain).checked_mul(self.step) {
            Some(tick) => ticks::to_nanos(tick.saturating_sub(self.shift)),
            None => Nanos::MAX,
        }
    }

    /// Returns the word after a pause in which nothing accrued: as far before `stop.to` as it was
    /// before `stop.from`, but at most `most`. A bucket that does not keep its stored tokens is
    /// empty at `stop.to`.
    pub(super) fn paused(&self, word: u64, most: u64, stop: Standstill) -> u64 {
        if self.is_unlimited() {
            return word;
        }
        let (from, to, own) = (self.tick(stop.from), self.tick(stop.to), self.step_tick(word));
        if own == ticks::NEVER {
            return word;
        }
        let held = own.max(from.saturating_sub(most)).saturating_add(to.saturating_sub(from));
        self.word_of(if stop.keeps_permits { held } else { held.max(to) })
    }

    pub(super) fn is_unlimited(&self) -> bool {
        self.one == 0
    }

    #[inline]
    pub(super) fn price(&self, more: &More, n: u32) -> u64 {
        if self.is_unlimited() { 0 } else { more.interval.price(n) }
    }

    pub(super) fn to_words(self) -> [u64; 6] {
        [self.one, self.capacity, self.frozen_at, self.step, self.shift, self.gain]
    }
}

/// Returns the word that means under new numbers what `zero` means under the old numbers. Tokens
/// beyond the capacity are kept if the bucket `holds_more` for a large request.
pub(super) fn carried_over(
    zero: u64,
    at: Nanos,
    old: (Numbers, More),
    new: (Numbers, More),
    keep: Keep,
    holds_more: bool,
) -> u64 {
    let (old_tick, tick, zero) = (old.0.tick(at), new.0.tick(at), old.0.step_tick(zero));
    let (from, to) = (old.1.interval, new.1.interval);
    if zero == ticks::NEVER {
        // The debt has saturated, so its amount is lost and no rate makes it less.
        return zero;
    }
    if let Some(debt) = zero.checked_sub(old_tick) {
        let debt = if keep == Keep::Ratio { debt } else { from.convert(debt, to, true) };
        return new.0.word_of(tick.saturating_add(debt));
    }
    let most = |capacity| if holds_more { u64::MAX } else { capacity };
    let stock = (old_tick - zero).min(most(old.0.capacity));
    let stock = match keep {
        Keep::Ratio if !holds_more => share(stock, new.0.capacity, old.0.capacity),
        // Whole permits can be taken one by one, before as after.
        Keep::Count | Keep::Ratio | Keep::Nothing => {
            let whole = (stock / from.price(1).max(1)).saturating_mul(to.price(1));
            from.convert(stock, to, false).max(whole)
        }
    };
    new.0.word_of(tick.saturating_sub(stock.min(most(new.0.capacity))))
}

/// Returns `span * part / whole`, rounded down.
pub(super) fn share(span: u64, part: u64, whole: u64) -> u64 {
    let [span, part, whole] = [span, part, whole.max(1)].map(u128::from);
    u64::try_from(span * part / whole).unwrap_or(ticks::NEVER)
}

/// Returns a number that was a `u32`.
pub(super) fn small(word: u64) -> u32 {
    u32::try_from(word).unwrap_or(u32::MAX)
}

pub(super) fn words(terms: Terms, (numbers, more): (Numbers, More)) -> [u64; 17] {
    let [one, capacity, frozen_at, step, shift, gain] = numbers.to_words();
    let [same, ticks, permits] = more.interval.to_words();
    let [digits, exponent, period] = terms.rate.to_words();
    let Terms { burst, tolerance, stepped, anchor, .. } = terms;
    let (most, burst) = (u64::from(more.most), u64::from(burst));
    let (stepped, anchor) = (u64::from(stepped), anchor.cast_unsigned());
    [
        one, capacity, frozen_at, step, shift, gain, same, ticks, permits, most, burst, tolerance, stepped,
        anchor, digits, exponent, period,
    ]
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A step, the time by which steps are shifted, and what a step brings.
    fn steps() -> impl Strategy<Value = (u64, u64, u64)> {
        prop_oneof![1u64..100, 1u64..1 << 40, 1u64..=ticks::ORIGIN]
            .prop_flat_map(|step| (Just(step), 0..step, 1..=step))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// One division returns what the general rule returns with three.
        #[test]
        fn a_word_in_steps_moves_as_on_the_clock_of_the_bucket(
            (step, shift, gain) in steps(),
            word in prop_oneof![0..ticks::ORIGIN, ticks::ORIGIN.., Just(ticks::NEVER)],
            before in 0..ticks::ORIGIN,
            whole_prices in 0u64..4,
            price in 1u64..,
            capacity in 0..=ticks::ORIGIN,
            since in 0..=ticks::ORIGIN,
        ) {
            let numbers = Numbers { one: 1, capacity, frozen_at: ticks::NEVER, step, shift, gain };
            let price = (price % gain).saturating_add(whole_prices.saturating_mul(gain)).max(1);
            for word in [word, (word / step).saturating_mul(step).saturating_sub(before % 3)] {
                let own = numbers.step_tick(word).saturating_add(price);
                // A tick that saturates means never, and so does any word as late as that.
                if let Some((after, due)) = numbers.interval_refill(word, price).filter(|_| own < ticks::NEVER) {
                    prop_assert_eq!(after, numbers.word_of(own));
                    prop_assert_eq!(ticks::to_nanos(due), numbers.time_of(own));
                }
                let at = Nanos::new(word.saturating_sub(ticks::ORIGIN) / ticks::PER_NANO + since);
                let came_in = numbers.tick(at).saturating_sub(numbers.step_tick(word));
                for capacity in [capacity, came_in.saturating_sub(1), came_in] {
                    let numbers = Numbers { capacity, ..numbers };
                    let holds = numbers.holds_all_since(word, ticks::from_nanos(at));
                    prop_assert_eq!(holds, came_in <= capacity);
                }
            }
        }
    }
}
