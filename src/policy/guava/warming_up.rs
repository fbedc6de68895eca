//! SmoothWarmingUp: a steady rate that is slower after idling.
//!
//! # Algorithm
//!
//! [`SmoothBursty`](crate::policy::SmoothBursty) treats stored permits as spare capacity: they are
//! free. But a service that was idle may be slower, not faster: caches went stale, connections
//! closed. Then a stored permit should cost *more* than a fresh one. So the limiter remembers, in
//! addition to the time of the next grant, how cold the service is.
//!
//! Coldness is a time between 0 (warm) and the warm-up period *W* (cold). Idling adds the time that
//! passed; idling for *W* makes the service cold, whatever the rate. A permit removes coldness and
//! costs an interval, plus a surcharge while the coldness is above a threshold *T*:
//!
//! ```text
//!  cost of a permit
//!   F x interval |                      .
//!                |                   .  |
//!                |                .     |
//!                |             .        |
//!       interval |----------.           |
//!                |          |           |
//!                +----------+-----------+---- coldness
//!                0          T           W
//! ```
//!
//! With cold factor *F*, a permit removes `k` intervals of coldness. Two requirements determine `k`
//! and *T*. At full demand, going from *W* to *T* must take the time *W*, and going from *T* to 0
//! must take half of it. The second requirement is a legacy of Guava, where the factor was always
//! 3.
//!
//! - Below *T* a permit costs one interval and removes `k` of them. Going from *T* to 0 therefore
//!   takes `T / k`, which must be `W / 2`: `T = k W / 2`.
//! - Above *T* a permit costs `(1 + F) / 2` intervals on average. Going from *W* to *T* therefore
//!   takes `(W - T) (1 + F) / (2 k)`, which must be `W`.
//! - Both together give `k = 2 (1 + F) / (5 + F)` and `T = W (1 + F) / (5 + F)`. With Guava's
//!   factor 3, `k` is 1 and *T* is half of *W*.
//!
//! A permit at coldness `T + u` has the surcharge `(F - 1) u / (W - T)` intervals, and there is one
//! permit for each `k` intervals of coldness. The surcharge of going from `T + u` to *T* is
//! therefore the area of a triangle, `(F - 1) u^2 / (2 k (W - T))`. The factor `(F - 1) / (2 k)` is
//! the `steepness` of [`Curve`]. The cost of several permits is an area, so `n` permits at once
//! cost as much as `n` permits one by one. None of these numbers depends on the rate, so a new rate
//! does not change coldness and threshold.
//!
//! Worked example, 2 per second, *W* = 4 s, *F* = 3, cold, eight permits at time 0: the waits are
//! 0, 1.375, 1.125, 0.875, 0.625, then 0.5 s each. The first permit costs the interval of 0.5 s
//! plus an area of 0.875 s, and the second permit waits for that.
//!
//! ## When idle time cools
//!
//! In Guava a program that polls with `tryAcquire` can keep a short warm-up cold for ever. It is
//! refused because the next permit is expensive, and until it asks again the service has idled long
//! enough to be as cold as before. Here **a gap no longer than the cold interval (*F* x interval)
//! does not cool; a longer gap counts in full.** A caller that asks that often is held back by the
//! coldness itself, and must be able to work it off. A caller that asks less often is granted every
//! time, cold or not. [`SmoothWarmingUp::cool_at_once`] restores Guava's rule.
//!
//! # State word
//!
//! | bits | name | unit | range | at the edges |
//! |---|---|---|---|---|
//! | 0..64 | next free time | 1/16 ns | the clock's beginning to 34 years after it | saturates: limited for ever |
//! | 64..128 | coldness | 1/16 ns | 0 to *W* | clamped |
//!
//! Any thread may change the word, with a CAS. The two numbers change together, and neither follows
//! from the other, so both are in one `u128`.
//!
//! # Invariant
//!
//! In any period of length *d* at most `1 + rate * d` single permits are granted: warming up saves
//! nothing that could burst. From cold, the first permits are granted at no more than `rate / F`.
//! Tests: `tests/policy/properties.rs`.
//!
//! # Memory ordering
//!
//! One word under the shared loop: see `policy/atomic_word.rs`.
//!
//! # Source
//!
//! `RateLimiter` in Guava 31.1 (`SmoothRateLimiter.SmoothWarmingUp`). Differences, in addition to
//! the cooling: ticks of 1/16 ns where Guava cuts to whole microseconds three times per request; a
//! warm-up of zero limits (in Guava it makes everything free); sums saturate (in Guava they wrap).

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::atomic_word::{AtomicWord, update};
use crate::policy::guava::bursty::{owed, unused_share};
use crate::policy::guava::current_rate::CurrentRate;
use crate::policy::interval::Interval;
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::{Change, Crowd, Forecast, Keep, Policy, PolicyStatus, Standstill, ticks};
use crate::rate::Rate;
use crate::sync::AtomicU128;
use crate::time::Nanos;

/// A steady rate that is slower after idling and speeds up under demand.
///
/// Guava's `SmoothWarmingUp`. It starts cold: at first permits are granted at the rate divided by
/// the cold factor (3 by default), and they reach the full rate after the warm-up period of steady
/// demand. An idle time of that length makes it cold again.
///
/// As with [`SmoothBursty`](crate::policy::SmoothBursty), a request of any size is granted as soon
/// as the request before it is paid for, and the next request pays for it. There are no free stored
/// permits, so there is no burst.
///
/// When the rate changes, coldness and negative balance are kept as times: [`Keep::Ratio`]. When
/// the rate leaves [`Rate::UNLIMITED`], the limiter is warm.
///
/// Permits that are given back lengthen the gap in which the limiter cools: a grant that is undone
/// later than it was made cools for the time in between, as if it had never been made. Then later
/// requests cost more, and a waiter with a deadline that was accepted in time may be too late: it
/// is refused at its deadline, and requests behind it come due earlier than predicted.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::policy::{Policy, SmoothWarmingUp};
/// use tidegate::{Nanos, Rate};
///
/// let policy = SmoothWarmingUp::new(Rate::per_second(2), Duration::from_secs(4));
/// let state = policy.start(Nanos::ZERO);
/// policy.try_acquire(&state, Nanos::ZERO, 1)?;
/// // Cold: the second permit is due after 1.375 s, not after 0.5 s.
/// let due = policy.ready_at(&state, Nanos::ZERO, 0, 1);
/// assert_eq!(due, Nanos::new(1_375_000_000));
/// # Ok::<(), tidegate::Refusal>(())
/// ```
///
/// # Source
///
/// `SmoothRateLimiter.SmoothWarmingUp` of Guava 31.1, with these differences:
///
/// - A gap no longer than the cold interval, which is the cold factor times the interval, does not
///   cool. In Guava every gap cools, and a program that polls a little slower than the rate can
///   find a short warm-up cold for ever; see [`cool_at_once`](SmoothWarmingUp::cool_at_once).
/// - Ticks of 1/16 ns, where Guava cuts to whole microseconds up to three times per request.
/// - A warm-up of zero limits like any other. In Guava it makes everything free.
/// - Sums saturate, and end in "limited". In Guava they can wrap and end in "free".
/// - The cold factor can be set, and the start can be warm. In Guava it is 3, and cold.
///
/// # Picture
///
#[cfg_attr(doc, doc = include_str!("../../../docs/pictures/smooth_warming_up.svg"))]
#[derive(Clone)]
pub struct SmoothWarmingUp {
    rate: CurrentRate,
    /// *W* in ticks.
    pub(in crate::policy) warm_up: u64,
    pub(in crate::policy) cold_factor: f64,
    curve: Curve,
    pub(in crate::policy) start_warm: bool,
    pub(in crate::policy) cool_at_once: bool,
}

/// The constants of the cost curve, derived at the top of this file. The cold factor is a float in
/// the configuration; here it is fixed point.
#[derive(Clone, Copy, Debug)]
struct Curve {
    /// *T* in ticks.
    threshold: u64,
    /// *W* - *T* in ticks.
    ramp: u64,
    /// *k*: how many ticks of coldness a tick of cost removes, in fixed point.
    cooling: u64,
    /// (F - 1) / (2 k) = (F - 1)(F + 5) / (4 (F + 1)), the weight of the surcharge, in fixed point.
    steepness: u64,
    /// F in fixed point: 10^6 times 2^44 fits.
    cold_factor: u64,
}

/// Fraction bits in the fixed point of [`Curve`]: the error of a factor stays below 10^-13, and the
/// largest product, a tick count of 64 bits times a cold factor of 20, below 2^128.
const FRACTION: u32 = 44;

/// The state of one [`SmoothWarmingUp`]: two numbers in one word.
#[derive(Debug)]
pub struct WarmingUpState {
    word: AtomicU128,
}

/// The two numbers of the state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    /// Ticks of idling that are not yet worked off, up to *W*.
    coldness: u64,
    /// The tick at which the next request is granted.
    next: u64,
}

impl Word {
    fn decode(bits: u128) -> Word {
        // Each half of the word is cut out.
        #[allow(clippy::cast_possible_truncation)]
        Word { coldness: (bits >> 64) as u64, next: bits as u64 }
    }

    fn encode(self) -> u128 {
        u128::from(self.coldness) << 64 | u128::from(self.next)
    }
}

/// What one grant of a [`SmoothWarmingUp`] took.
#[derive(Clone, Copy, Debug)]
pub struct WarmingUpCharge {
    /// The state before the grant and after it.
    found: Word,
    left: Word,
    /// The number of ticks by which the grant moved the next free time.
    price: u64,
    /// The number of ticks of coldness that it worked off.
    coldness: u64,
}

impl SmoothWarmingUp {
    /// The maximum warm-up period, about 2.28 years.
    pub const MAX_WARM_UP: Duration = ticks::MAX_SPAN;
    /// The largest cold factor.
    pub const MAX_COLD_FACTOR: f64 = 1e6;

    /// Creates a steady `rate`, reached after `warm_up` of steady demand, with a cold factor of 3.
    /// It starts cold.
    ///
    /// A warm-up of zero is allowed: then every permit costs one interval and nothing is ever
    /// stored.
    ///
    /// # Panics
    ///
    /// Panics if `warm_up` is longer than [`MAX_WARM_UP`](SmoothWarmingUp::MAX_WARM_UP). For values
    /// from a configuration, use [`try_new`](SmoothWarmingUp::try_new).
    #[must_use]
    #[track_caller]
    pub fn new(rate: Rate, warm_up: Duration) -> SmoothWarmingUp {
        match SmoothWarmingUp::try_new(rate, warm_up, 3.0) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a steady `rate`, reached after `warm_up`. Cold permits are granted at `rate /
    /// cold_factor`.
    ///
    /// # Errors
    ///
    /// - [`PolicyError::WarmUp`] if `warm_up` is longer than
    ///   [`MAX_WARM_UP`](SmoothWarmingUp::MAX_WARM_UP).
    /// - [`PolicyError::ColdFactor`] if `cold_factor` is not a number from 1 to
    ///   [`MAX_COLD_FACTOR`](SmoothWarmingUp::MAX_COLD_FACTOR).
    pub fn try_new(rate: Rate, warm_up: Duration, cold_factor: f64) -> Result<SmoothWarmingUp, PolicyError> {
        let Some(ticks) = ticks::from_span(warm_up) else {
            return Err(PolicyError::WarmUp { warm_up, limit: SmoothWarmingUp::MAX_WARM_UP });
        };
        if !(1.0..=SmoothWarmingUp::MAX_COLD_FACTOR).contains(&cold_factor) {
            return Err(PolicyError::ColdFactor { cold_factor, limit: SmoothWarmingUp::MAX_COLD_FACTOR });
        }
        Ok(SmoothWarmingUp {
            rate: CurrentRate::new(rate),
            warm_up: ticks,
            cold_factor,
            curve: Curve::new(ticks, cold_factor),
            start_warm: false,
            cool_at_once: false,
        })
    }

    /// Makes the limiter start warm, at the full rate.
    ///
    /// A key of a `KeyedRateLimiter` starts cold nevertheless, because that limiter cannot
    /// distinguish a new key from a key that rested and was forgotten.
    #[must_use]
    pub fn start_warm(self) -> SmoothWarmingUp {
        SmoothWarmingUp { start_warm: true, ..self }
    }

    /// Lets every gap between requests cool, as in Guava, even a gap no longer than the cold
    /// interval.
    ///
    /// Then a caller that polls a little slower than the rate can find a short warm-up cold for
    /// ever.
    #[must_use]
    pub fn cool_at_once(self) -> SmoothWarmingUp {
        SmoothWarmingUp { cool_at_once: true, ..self }
    }

    /// Returns the cold factor, as it was given.
    #[must_use]
    pub fn cold_factor(&self) -> f64 {
        self.cold_factor
    }

    /// Returns the state at `at`, after the idle time since the next free time, if any, has cooled.
    #[inline(always)]
    fn idled(&self, word: Word, at: u64, interval: Interval) -> Word {
        let Some(idle) = at.checked_sub(word.next).filter(|idle| *idle >= ticks::PER_NANO) else {
            // Waiting, or a gap below the clock's resolution, which is rounding.
            return word;
        };
        let idle = if self.cools(idle, interval) { idle } else { 0 };
        Word { coldness: word.coldness.saturating_add(idle).min(self.warm_up), next: at }
    }

    /// Returns whether a gap is long enough to cool.
    fn cools(&self, idle: u64, interval: Interval) -> bool {
        // A cold interval is no shorter than a warm one, which is known without a multiplication.
        self.cool_at_once || idle > interval.price(1) && idle > self.curve.cold_interval(interval)
    }

    /// Returns the cost of `n` permits at a coldness, given their base cost, and the coldness that
    /// they work off.
    #[inline(always)]
    fn price(&self, coldness: u64, base: u64) -> (u64, u64) {
        if coldness == 0 {
            return (base, 0);
        }
        let worked_off = self.curve.worked_off(base).min(coldness);
        if coldness <= self.curve.threshold {
            return (base, worked_off);
        }
        (base.saturating_add(self.curve.surcharge_of(coldness, worked_off)), worked_off)
    }

    /// Returns the surcharge for a coldness that was worked off down to `left`.
    fn surcharge(&self, left: u64, worked_off: u64) -> u64 {
        let from = left.saturating_add(worked_off).min(self.warm_up);
        self.curve.surcharge(from).saturating_sub(self.curve.surcharge(left))
    }

    /// Returns the state after a pause. The debt stays what it was, and the time without requests
    /// cools. Unless the state is kept, the next permit is due no earlier than if one had been
    /// granted at `stop.to`.
    fn paused(&self, word: Word, stop: Standstill) -> Word {
        let [from, to] = [stop.from, stop.to].map(ticks::from_nanos);
        let interval = self.rate.interval();
        let owes = word.next > from;
        let next = if owes { word.next.saturating_add(to.saturating_sub(from)) } else { word.next };
        let word = Word { next, ..word };
        if stop.keeps_permits || interval.is_zero() {
            return word;
        }
        // A debt of less than that permit is part of its cost, so that both are not owed.
        let empty = self.charge(Word { next: word.next.min(to), ..word }, to, 1, interval).0;
        if word.next > empty.next { word } else { empty }
    }

    /// The rule. The error is the tick at which the request is due. Always inlined, like all that
    /// it calls for a warm limiter, so that a charge is not copied.
    #[inline(always)]
    fn step(&self, word: Word, at: u64, n: u32, interval: Interval) -> Result<(Word, WarmingUpCharge), u64> {
        if interval.is_zero() {
            return Err(ticks::NEVER);
        }
        if word.next > at {
            return Err(word.next);
        }
        Ok(self.charge(word, at, n, interval))
    }

    /// Returns the state after `n` additional permits, whether they are due or not, and what they
    /// took.
    #[inline(always)]
    fn charge(&self, word: Word, at: u64, n: u32, interval: Interval) -> (Word, WarmingUpCharge) {
        let Word { coldness, next } = self.idled(word, at, interval);
        let (price, worked_off) = self.price(coldness, interval.price(n));
        let after = next.saturating_add(price);
        let left = Word { coldness: coldness - worked_off, next: after };
        (left, WarmingUpCharge { found: word, left, price: after - next, coldness: worked_off })
    }
}

impl Curve {
    fn new(warm_up: u64, factor: f64) -> Curve {
        // Each float of the configuration becomes an integer here, once. All are in range, because
        // the factor is between 1 and 10^6.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let fixed = |x: f64| (x * (1u64 << FRACTION) as f64) as u64;
        let share = fixed((1.0 + factor) / (5.0 + factor));
        // Below `warm_up`, because the share is below one.
        let threshold =
            u64::try_from((u128::from(warm_up) * u128::from(share)) >> FRACTION).unwrap_or(warm_up);
        Curve {
            threshold,
            ramp: warm_up - threshold,
            cooling: 2 * share,
            steepness: fixed((factor - 1.0) * (factor + 5.0) / (4.0 * (factor + 1.0))),
            cold_factor: fixed(factor),
        }
    }

    /// Returns the surcharge for working off all of a coldness: steepness * u^2 / ramp, where u is
    /// the part above the threshold.
    ///
    /// A difference of two surcharges is the cost of going from one coldness to another. Each of
    /// them is rounded up, and not the difference, so the costs of the steps add up to the cost of
    /// the whole way.
    fn surcharge(&self, coldness: u64) -> u64 {
        let above = u128::from(coldness.saturating_sub(self.threshold));
        if above == 0 {
            return 0;
        }
        // above <= ramp <= 2^60, so the square fits, and so does the quotient times a steepness
        // below 2^(18 + 44).
        let area = (above * above).div_ceil(u128::from(self.ramp));
        saturate((area * u128::from(self.steepness)).div_ceil(1 << FRACTION))
    }

    /// Returns the surcharge for working off a part of a coldness. Not inlined, so that its
    /// divisions use no registers of a warm limiter's grant.
    #[inline(never)]
    fn surcharge_of(&self, coldness: u64, worked_off: u64) -> u64 {
        self.surcharge(coldness) - self.surcharge(coldness - worked_off)
    }

    /// Returns the coldness that permits of a base cost work off.
    #[inline]
    fn worked_off(&self, base: u64) -> u64 {
        saturate((u128::from(base) * u128::from(self.cooling)) >> FRACTION)
    }

    /// Returns the cost of a permit when cold.
    fn cold_interval(&self, interval: Interval) -> u64 {
        saturate((u128::from(interval.price(1)) * u128::from(self.cold_factor)) >> FRACTION)
    }
}

fn saturate(ticks: u128) -> u64 {
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Replaces the state, whatever it is, and returns the next free time.
fn replace(state: &WarmingUpState, new: impl Fn(Word) -> Word) -> u64 {
    let Ok(next) = update(&state.word, |bits| {
        let word = new(Word::decode(bits));
        Ok::<_, Infallible>((word.encode(), word.next))
    });
    next
}

impl fmt::Debug for SmoothWarmingUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmoothWarmingUp")
            .field("rate", &self.rate)
            .field("warm_up", &Duration::from_nanos(self.warm_up / ticks::PER_NANO))
            .field("cold_factor", &self.cold_factor)
            .finish_non_exhaustive()
    }
}

impl SmoothWarmingUp {
    /// Returns the status of a state.
    fn status_of(&self, word: Word, at: Nanos) -> PolicyStatus {
        let (unlimited, stopped) = (self.rate.interval().is_unlimited(), self.rate.is_zero());
        let available = match word.next > ticks::from_nanos(at) {
            _ if stopped => 0,
            true => 0,
            false if unlimited => u64::MAX,
            false => 1,
        };
        let limit = if unlimited { u64::MAX } else { 1 };
        let full_at = ticks::to_nanos(word.next);
        PolicyStatus { limit, available, next_at: if stopped { Nanos::MAX } else { full_at }, full_at }
    }
}

impl Shut for SmoothWarmingUp {
    fn shut(&self, state: &WarmingUpState, now: &dyn Fn() -> Nanos) -> Remainder {
        let shut = Word { coldness: 0, next: ticks::NEVER }.encode();
        let Ok(bits) = update(&state.word, |bits| Ok::<_, Infallible>((shut, bits)));
        let at = now();
        let status = self.status_of(Word::decode(bits), at);
        // Counted at the cost of a warm permit, which is the lowest: too many rather than too few.
        // A debt of up to that cost is no permit owed, because the next one is granted on credit.
        let counted = self.rate.counted();
        let debt = match Word::decode(bits).next {
            ticks::NEVER => ticks::NEVER,
            next => next.saturating_sub(ticks::from_nanos(at)).saturating_sub(counted.price(1)),
        };
        Remainder::of(status).owing(debt, counted)
    }
}

impl Policy for SmoothWarmingUp {
    type State = WarmingUpState;
    type Charge = WarmingUpCharge;

    fn start(&self, now: Nanos) -> WarmingUpState {
        let coldness = if self.start_warm { 0 } else { self.warm_up };
        let word = Word { coldness, next: ticks::from_nanos(now) };
        WarmingUpState { word: AtomicU128::new(word.encode()) }
    }

    #[inline]
    fn try_acquire(&self, state: &WarmingUpState, at: Nanos, n: u32) -> Result<WarmingUpCharge, Refusal> {
        self.check(n)?;
        let (tick, interval) = (ticks::from_nanos(at), self.rate.interval());
        update(&state.word, |bits| {
            let (word, charge) = self.step(Word::decode(bits), tick, n, interval)?;
            Ok((word.encode(), charge))
        })
        .map_err(|next| Refusal::Limited { retry_after: ticks::between(tick, next) })
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        if n == 0 { Err(Refusal::ZeroPermits) } else { Ok(()) }
    }

    fn weight(&self, n: u32) -> u64 {
        self.rate.price(n)
    }

    fn ready_at(&self, state: &WarmingUpState, at: Nanos, ahead: u64, _n: u32) -> Nanos {
        let word = Word::decode(AtomicWord::load(&state.word));
        if self.rate.is_zero() {
            return Nanos::MAX;
        }
        if ahead == 0 {
            return ticks::to_nanos(word.next);
        }
        let Word { coldness, next } = self.idled(word, ticks::from_nanos(at), self.rate.interval());
        ticks::to_nanos(next.saturating_add(self.price(coldness, ahead).0))
    }

    fn forecast(&self, state: &WarmingUpState, at: Nanos) -> Forecast {
        let Word { coldness, next } = Word::decode(AtomicWord::load(&state.word));
        Forecast::with(at, [coldness, next, 0])
    }

    fn predict(&self, _state: &WarmingUpState, forecast: &mut Forecast, n: u32) -> Nanos {
        let [coldness, next, _] = forecast.numbers;
        let due = forecast.at.max(ticks::to_nanos(next));
        let interval = self.rate.interval();
        if interval.is_zero() || due == Nanos::MAX {
            return Nanos::MAX;
        }
        let (left, _) = self.charge(Word { coldness, next }, ticks::from_nanos(due), n, interval);
        forecast.at = due;
        forecast.numbers = [left.coldness, left.next, 0];
        due
    }

    fn predict_many(&self, _state: &WarmingUpState, forecast: &mut Forecast, crowd: &Crowd) {
        let [coldness, next, _] = forecast.numbers;
        let at = ticks::from_nanos(forecast.at);
        let Word { coldness, next } = self.idled(Word { coldness, next }, at, self.rate.interval());
        let (price, worked_off) = self.price(coldness, crowd.weight);
        // Each of them rounds the coldness that it works off down, by less than a tick, and so may
        // pay more.
        forecast.numbers = [coldness - worked_off, next.saturating_add(price), 0];
    }

    fn undo(&self, state: &WarmingUpState, at: Nanos, charge: WarmingUpCharge, most: u64) -> u64 {
        let at = ticks::from_nanos(at);
        // The future part of the time taken is given back. In the past part the limiter would have
        // been idle and would have cooled.
        let room = if most == u64::MAX { charge.left.next.saturating_sub(at) } else { most };
        let back = charge.price.min(room);
        let idle = charge.price - back;
        let idle = if self.cools(idle, self.rate.interval()) { idle } else { 0 };
        replace(state, |word| {
            if word == charge.left && most == u64::MAX {
                // Nothing happened since: as if the grant had not been made.
                return charge.found;
            }
            if word.next == ticks::NEVER {
                // The amount owed is unknown.
                return word;
            }
            // The permits granted since would have been the colder ones, at a higher cost. So the
            // cheapest part of the surcharge is given back.
            let warmed = self.surcharge(charge.left.coldness, charge.coldness);
            let dearer = warmed.saturating_sub(self.surcharge(word.coldness, charge.coldness));
            let coldness = word.coldness.saturating_add(charge.coldness).saturating_add(idle);
            let back = back.min(charge.price.saturating_sub(dearer));
            Word { coldness: coldness.min(self.warm_up), next: word.next.saturating_sub(back) }
        })
    }

    fn moved(&self, charge: WarmingUpCharge) -> (u64, u64) {
        (charge.left.next.saturating_sub(charge.price), charge.left.next)
    }

    /// Nothing is stored: the limiter is full when nothing is owed.
    fn full_level(&self, at: Nanos) -> u64 {
        ticks::from_nanos(at)
    }

    fn refund(&self, state: &WarmingUpState, at: Nanos, n: u32) -> u64 {
        let at = ticks::from_nanos(at);
        let worth = self.rate.interval().worth(n);
        // A permit given back is a debt not owed. The part that exceeds the debt is dropped:
        // nothing is stored here that would make a later permit cheaper.
        replace(state, |word| {
            let next = word.next.saturating_sub(worth).max(at).min(word.next);
            Word { next, ..word }
        })
    }

    fn unspent(&self, charge: WarmingUpCharge, n: u32, used: u32) -> Option<WarmingUpCharge> {
        // The coldness when the grant was made, and as the used permits would have left it.
        let WarmingUpCharge { left, price, coldness, .. } = charge;
        let (before, next) = (left.coldness.saturating_add(coldness), left.next.saturating_sub(price));
        let interval = self.rate.interval();
        let of = |n: u32| self.price(before, interval.price(n));
        let back = unused_share(price, n, used, |n| of(n).0);
        let cooled = unused_share(coldness, n, used, |n| of(n).1);
        let found =
            Word { coldness: left.coldness.saturating_add(cooled), next: next.saturating_add(price - back) };
        (used < n).then_some(match used {
            0 => charge,
            _ => WarmingUpCharge { found, left, price: back, coldness: cooled },
        })
    }

    fn debit(&self, state: &WarmingUpState, at: Nanos, n: u32) {
        let (tick, interval) = (ticks::from_nanos(at), self.rate.interval());
        if n > 0 && !interval.is_zero() {
            replace(state, |word| self.charge(word, tick, n, interval).0);
        }
    }

    fn keep_at_most(&self, state: &WarmingUpState, at: Nanos, permits: u64) -> u64 {
        let (tick, interval) = (ticks::from_nanos(at), self.rate.interval());
        let taken = update(&state.word, |bits| {
            let word = Word::decode(bits);
            match self.status_of(word, at).beyond(permits) {
                0 => Err(()),
                // One, because nothing is stored.
                taken => Ok((self.charge(word, tick, 1, interval).0.encode(), taken)),
            }
        });
        taken.unwrap_or(0)
    }

    fn pause(&self, state: &WarmingUpState, stop: Standstill) -> Option<u64> {
        Some(replace(state, |word| self.paused(word, stop)))
    }

    fn forecast_pause(&self, state: &WarmingUpState, stop: Standstill) -> Option<Forecast> {
        let word = Word::decode(AtomicWord::load(&state.word));
        let Word { coldness, next } = self.paused(word, stop);
        Some(Forecast::with(stop.to, [coldness, next, 0]))
    }

    fn full_after_pause(&self, state: &WarmingUpState, stop: Standstill) -> Option<Nanos> {
        let word = Word::decode(AtomicWord::load(&state.word));
        Some(self.status_of(self.paused(word, stop), stop.to).full_at.max(stop.to))
    }

    fn change(&self, state: &WarmingUpState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        self.change_now(state, at, &|| at, change)
    }

    fn change_now(
        &self,
        state: &WarmingUpState,
        at: Nanos,
        now: &dyn Fn() -> Nanos,
        change: Change,
    ) -> Result<u64, PolicyError> {
        let change = change.without_burst("smooth_warming_up")?;
        let (old, rate) = (self.rate.interval(), change.rate.unwrap_or(self.rate.rate()));
        let (counted, new) = (self.rate.counted(), Interval::new(rate));
        let at = ticks::from_nanos(at);
        let level = match change.keep.unwrap_or(Keep::Ratio) {
            Keep::Nothing => replace(state, |_| Word {
                coldness: if self.start_warm { 0 } else { self.warm_up },
                next: at,
            }),
            _ if old.is_unlimited() && !new.is_unlimited() => {
                replace(state, |word| Word { coldness: 0, next: word.next.max(at) })
            }
            // Both numbers are times, which do not depend on the rate.
            Keep::Ratio => Word::decode(AtomicWord::load(&state.word)).next,
            Keep::Count => replace(state, |word| {
                // After the state, as in a bucket: `policy/bucket/in_force.rs`.
                let at = at.max(ticks::from_nanos(now()));
                let Word { coldness, next } = self.idled(word, at, old);
                let coldness = owed(counted, coldness, new).min(self.warm_up);
                let next = match next.checked_sub(at) {
                    // The debt has saturated, so its amount is lost and no rate makes it less.
                    _ if next == ticks::NEVER => next,
                    Some(debt) if debt > 0 => at.saturating_add(owed(counted, debt, new)),
                    _ => next,
                };
                Word { coldness, next }
            }),
        };
        self.rate.set(rate);
        // A grant from before the change can be given back only if its cost is still a time.
        let kept =
            change.keep.unwrap_or(Keep::Ratio) == Keep::Ratio && (!old.is_unlimited() || new.is_unlimited());
        Ok(if kept { level } else { 0 })
    }

    /// Only the rate can be changed.
    fn change_to(&self, new: &SmoothWarmingUp) -> Option<Change> {
        (self.warm_up == new.warm_up
            && self.cold_factor.to_bits() == new.cold_factor.to_bits()
            && self.cool_at_once == new.cool_at_once)
            .then(|| Change::rate(new.rate()))
    }

    fn rate(&self) -> Rate {
        self.rate.rate()
    }

    /// A key at rest is cold. A key that is forgotten while it is warm would have to warm up again.
    fn is_fresh(&self, state: &WarmingUpState, at: Nanos) -> bool {
        let (word, tick) = (Word::decode(AtomicWord::load(&state.word)), ticks::from_nanos(at));
        let interval = self.rate.interval();
        word.next <= tick
            && (interval.is_unlimited() || self.idled(word, tick, interval).coldness == self.warm_up)
    }

    /// Cold, like a key at rest, even if a limiter would start warm.
    fn restart(&self, now: Nanos) -> WarmingUpState {
        let word = Word { coldness: self.warm_up, next: ticks::from_nanos(now) };
        WarmingUpState { word: AtomicU128::new(word.encode()) }
    }

    fn status(&self, state: &WarmingUpState, at: Nanos) -> PolicyStatus {
        self.status_of(Word::decode(AtomicWord::load(&state.word)), at)
    }

    fn left(&self, _state: &WarmingUpState, charge: WarmingUpCharge, at: Nanos) -> PolicyStatus {
        self.status_of(charge.left, at)
    }
}
