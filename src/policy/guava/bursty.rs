//! SmoothBursty: a steady rate that stores unused permits and lets the next caller pay.
//!
//! # Algorithm
//!
//! The simplest limiter remembers when it last granted a permit, and grants the next permit an
//! interval later. It forgets two things. It forgets how long no request arrived: a service that
//! was idle for an hour could well take a few requests at once. And it makes a request for 100
//! permits wait for all of them, although the service has nothing else to do meanwhile.
//!
//! So this limiter remembers the time *Z* at which the stored permits would be, or will be, zero.
//!
//! - *Z* in the past: the time since then has been saved. `(now - Z) / interval` permits are
//!   stored, up to a cap.
//! - *Z* in the future: the limiter has a negative balance until then.
//!
//! A request is due as soon as *Z* is not in the future, **whatever its size**, and moves *Z*
//! forward by `n` intervals. It never waits for its own cost: the next request does. With 5 per
//! second and nothing stored, at time 0: one permit is granted at once and moves *Z* to 0.2 s. Ten
//! permits are granted at 0.2 s and move *Z* to 2.2 s. The next request, of any size, is due at 2.2
//! s.
//!
//! The cap is a time, not a number of permits. "One second's worth" does not depend on the rate, so
//! a new rate does not change *Z*: the stored permits keep their fill ratio, and a negative balance
//! keeps its time.
//!
//! # State word
//!
//! | bits | name | unit | range | at the edges |
//! |---|---|---|---|---|
//! | 0..64 | *Z* | 1/16 ns | 2.28 years before to 34 years after the clock's beginning | saturates at the end: limited for ever |
//!
//! Any thread may change the word, with one atomic read-modify-write.
//!
//! # Invariant
//!
//! In any period of length *d* at most `1 + rate * (d + max_burst)` single permits are granted, and
//! at most `n + rate * (d + max_burst)` permits to requests of up to `n`, where `max_burst` is one
//! nanosecond longer than it was set: the clock cannot distinguish a gap that short from rounding.
//! Tests: `tests/policy/properties.rs`.
//!
//! # Memory ordering
//!
//! One word under the shared loop: see `policy/atomic_word.rs`. A new rate leaves the word as it is,
//! unless the change counts the stored permits, or resets them. Such a change takes all of them out
//! of the word, sets the rate, and puts them back, worth what the new rate says. A request that
//! finds them there (Acquire) finds the new rate, because they were put back (Release) after it. In
//! between, a request may find too few permits, and never too many. Checked by
//! `loom-tests/change.rs`.
//!
//! # Source
//!
//! `RateLimiter` in Guava 31.1 (`SmoothRateLimiter.SmoothBursty`), which stores a float of permits
//! next to the time of the next grant. Differences: ticks of 1/16 ns rounded up once per request,
//! where Guava cuts to whole microseconds and so is 4 % too fast at 80,000/s and unlimited above 1
//! M/s; the rate read back is the rate given; and a limiter that leaves [`Rate::UNLIMITED`] with a
//! negative balance repays it before it stores permits, where Guava has both.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::atomic_word::{AtomicWord, convert, update};
use crate::policy::guava::current_rate::CurrentRate;
use crate::policy::interval::Interval;
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::{Change, Crowd, Forecast, Keep, Policy, PolicyStatus, Standstill, ticks};
use crate::rate::Rate;
use crate::sync::{AtomicU64, Ordering};
use crate::time::Nanos;

/// A steady rate that stores unused permits. A request of any size is granted at once, and the next
/// request pays for it.
///
/// Guava's `SmoothBursty`. By default it stores up to one second's worth of permits and starts with
/// none.
///
/// A burst is `max_burst` worth of permits plus one request, because a request never waits for
/// itself. The size of that request is not limited: at 5 per second a request for 100 is granted at
/// once, and the next one waits 20 s. Check sizes that come from outside.
///
/// Cloning copies the configuration, with the rate that is in force.
///
/// When the rate changes, the fill ratio of the stored permits is kept, and a negative balance
/// stays a time: it is not recomputed. That is [`Keep::Ratio`]. When the rate leaves
/// [`Rate::UNLIMITED`], all stored permits are available. At [`Rate::ZERO`] a permit has no cost,
/// so nothing is granted, not even stored permits, and nothing is stored. Afterwards the stored
/// permits are as before.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::policy::{Policy, SmoothBursty};
/// use tidegate::{Nanos, Rate};
///
/// // No burst: permits are at least 200 ms apart, however long the limiter idled.
/// let policy = SmoothBursty::new(Rate::per_second(5)).max_burst(Duration::ZERO);
/// let state = policy.start(Nanos::ZERO);
/// let later = Nanos::from_duration(Duration::from_secs(60));
/// policy.try_acquire(&state, later, 1)?;
/// let refusal = policy.try_acquire(&state, later, 1).unwrap_err();
/// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(200)));
/// # Ok::<(), tidegate::Refusal>(())
/// ```
///
/// # Source
///
/// `SmoothRateLimiter.SmoothBursty` of Guava 31.1, with these differences:
///
/// - Ticks of 1/16 ns rounded up once per request. Guava cuts to whole microseconds, so that 80,000
///   per second are 83,333, and above a million per second single permits are free.
/// - The rate read back is the rate given; in Guava it can be off by the last bit.
/// - A limiter that leaves [`Rate::UNLIMITED`] with a negative balance repays it before anything is
///   stored. Guava has both at once.
/// - The time for which permits are stored can be set, and the start can be full. In Guava it is
///   one second, and empty.
///
/// # Picture
///
#[cfg_attr(doc, doc = include_str!("../../../docs/pictures/smooth_bursty.svg"))]
pub struct SmoothBursty {
    rate: CurrentRate,
    /// The number of ticks for which unused time is saved.
    pub(in crate::policy) max_burst: u64,
    /// `max_burst` and `RESOLUTION`.
    saved: u64,
    pub(in crate::policy) start_full: bool,
    /// The tick at which the rate became zero; `ticks::NEVER` if it is not zero.
    stopped: AtomicU64,
}

/// The state of one [`SmoothBursty`]: a single word.
#[derive(Debug)]
pub struct BurstyState {
    /// The tick at which the stored permits would be, or will be, zero.
    zero: AtomicU64,
}

/// What one grant of a [`SmoothBursty`] took.
#[derive(Clone, Copy, Debug)]
pub struct BurstyCharge {
    /// The state right after the grant.
    after: u64,
    /// The number of ticks by which the grant moved it.
    price: u64,
}

/// Ticks that are always saved: one less than a nanosecond. Times are whole nanoseconds, rounded up
/// if they come from a tick. A gap of less than a nanosecond is that rounding; charging for it
/// would slow a limiter without burst by up to a nanosecond per permit. The cost of each stored
/// permit is rounded up as well: 7 permits cost more than one second of 7 per second, and the last
/// one would be due a nanosecond late. Of more than 15 stored permits it may still be.
const RESOLUTION: u64 = ticks::PER_NANO - 1;

impl SmoothBursty {
    /// The maximum time for which permits can be stored, about 2.28 years.
    pub const MAX_BURST: Duration = ticks::MAX_SPAN;

    /// Creates a steady `rate` that stores up to one second's worth of unused permits and starts
    /// with none.
    #[must_use]
    pub fn new(rate: Rate) -> SmoothBursty {
        let second = 1_000_000_000 * ticks::PER_NANO;
        let stopped = AtomicU64::new(if rate.is_zero() { ticks::ORIGIN } else { ticks::NEVER });
        let rate = CurrentRate::new(rate);
        SmoothBursty { rate, max_burst: second, saved: second + RESOLUTION, start_full: false, stopped }
    }

    /// Stores at most `max_burst` worth of permits. Zero stores none.
    ///
    /// # Panics
    ///
    /// Panics if `max_burst` is longer than [`MAX_BURST`](SmoothBursty::MAX_BURST). For a value
    /// from a configuration, use [`try_max_burst`](SmoothBursty::try_max_burst).
    #[must_use]
    #[track_caller]
    pub fn max_burst(self, max_burst: Duration) -> SmoothBursty {
        match self.try_max_burst(max_burst) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// Stores at most `max_burst` worth of permits. Zero stores none.
    ///
    /// # Errors
    ///
    /// Returns [`PolicyError::MaxBurst`] if `max_burst` is longer than
    /// [`MAX_BURST`](SmoothBursty::MAX_BURST).
    pub fn try_max_burst(self, max_burst: Duration) -> Result<SmoothBursty, PolicyError> {
        match ticks::from_span(max_burst) {
            Some(ticks) => {
                let saved = (ticks + RESOLUTION).min(ticks::ORIGIN);
                Ok(SmoothBursty { max_burst: ticks, saved, ..self })
            }
            None => Err(PolicyError::MaxBurst { max_burst, limit: SmoothBursty::MAX_BURST }),
        }
    }

    /// Makes the limiter start with all stored permits, as if it had long been idle.
    #[must_use]
    pub fn start_full(self) -> SmoothBursty {
        SmoothBursty { start_full: true, ..self }
    }

    /// Returns the state of a limiter that begins with no stored permits.
    pub(in crate::policy) fn start_without_permits(now: Nanos) -> BurstyState {
        BurstyState { zero: AtomicU64::new(ticks::from_nanos(now)) }
    }

    /// Returns the earliest tick from which time counts as saved: earlier time has overflowed.
    #[inline]
    fn floor(&self, at: u64) -> u64 {
        // Every tick of a time is further from zero than any burst.
        at - self.saved
    }

    /// Returns the latest tick at which permits accrued: `at`, unless the rate is zero since before.
    fn running(&self, at: u64) -> u64 {
        // Relaxed: as in `paused`.
        at.min(self.stopped.load(Ordering::Relaxed))
    }

    /// Returns the state of a limiter that begins at a tick.
    fn first(&self, at: u64) -> u64 {
        if self.start_full && self.max_burst > 0 { self.floor(at) } else { at }
    }

    /// Returns the status of a state.
    fn status_of(&self, zero: u64, at: Nanos) -> PolicyStatus {
        let (tick, stopped) = (ticks::from_nanos(at), self.rate.is_zero());
        // Without a rate, stored permits keep the cost that they had, if they had one.
        let counted = if stopped { self.rate.counted() } else { self.rate.interval() };
        let price = if stopped && counted.is_unlimited() { ticks::NEVER } else { counted.price(1) };
        let saved = tick.checked_sub(zero.max(self.floor(tick)));
        let available = match saved {
            _ if stopped => 0,
            None => 0,
            Some(saved) => saved.checked_div(price).map_or(u64::MAX, |stock| stock + 1),
        };
        let most = self.saved.checked_div(price);
        // Without a limit there is nothing to fill.
        let stock = most.map_or(0, |most| self.max_burst.max(most.saturating_mul(price)));
        let limit = most.map_or(u64::MAX, |most| most + 1);
        let full = zero.saturating_add(stock);
        let (next_at, full_at) = match stopped {
            true if full <= self.running(tick) => (Nanos::MAX, at),
            true => (Nanos::MAX, Nanos::MAX),
            false => (ticks::to_nanos(zero), ticks::to_nanos(full)),
        };
        PolicyStatus { limit, available, next_at, full_at }
    }

    /// Returns the state after a pause in which nothing accrued: as far before `stop.to` as it was
    /// before `stop.from`. Stored permits that are not kept are spent as if one more permit had
    /// been granted at `stop.to`.
    fn paused(&self, zero: u64, stop: Standstill) -> u64 {
        let (from, to) = (ticks::from_nanos(stop.from), ticks::from_nanos(stop.to));
        let held = match self.rate.is_zero() {
            // Nothing accrues anyway, because the rate became zero.
            true => zero,
            false => zero.max(self.floor(from)).saturating_add(to.saturating_sub(from)),
        };
        // Relaxed: a pause and a change exclude each other, by the lock of the queue or the shard.
        let empty = to.min(self.stopped.load(Ordering::Relaxed));
        let empty = if self.rate.is_zero() { empty } else { empty.saturating_add(self.rate.price(1)) };
        if stop.keeps_permits { held } else { held.max(empty) }
    }

    /// Decides a request that is due and costs all time to come. That cost may be the one of a rate
    /// of zero which a change has just replaced, and would shut the limiter for good. So one
    /// reading of the rate decides and has the cost.
    #[cold]
    fn grant_endless(&self, zero: u64, tick: u64, n: u32) -> Result<(u64, BurstyCharge), u64> {
        match self.rate.interval() {
            interval if interval.is_zero() => Err(ticks::NEVER),
            interval => Ok(grant(zero, self.floor(tick), interval.price(n))),
        }
    }

    /// Moves a state back by what was given back. If the state is owed for ever, the amount owed is
    /// unknown.
    fn move_back(state: &BurstyState, charge: BurstyCharge, most: u64, floor: u64) -> u64 {
        move_to(state, |zero| match most {
            u64::MAX if zero == charge.after || zero < ticks::NEVER => {
                zero.saturating_sub(charge.price.min(charge.after.saturating_sub(floor)))
            }
            _ if zero == ticks::NEVER => zero,
            most => zero.saturating_sub(charge.price.min(most)),
        })
    }
}

/// The rule for a request that is due: returns the state after it, and what it took.
#[inline]
fn grant(zero: u64, floor: u64, price: u64) -> (u64, BurstyCharge) {
    let before = zero.max(floor);
    let after = before.saturating_add(price);
    // The difference, not the cost: undoing a grant that saturated must restore the state before
    // it.
    (after, BurstyCharge { after, price: after - before })
}

impl Clone for SmoothBursty {
    fn clone(&self) -> SmoothBursty {
        // Relaxed: the lock of a shard orders it with a change of all keys. Any other copy that
        // overlaps with a change may be of a moment in it.
        let stopped = AtomicU64::new(self.stopped.load(Ordering::Relaxed));
        SmoothBursty { rate: self.rate.clone(), stopped, ..*self }
    }
}

impl fmt::Debug for SmoothBursty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max_burst = Duration::from_nanos(self.max_burst / ticks::PER_NANO);
        f.debug_struct("SmoothBursty")
            .field("rate", &self.rate)
            .field("max_burst", &max_burst)
            .finish_non_exhaustive()
    }
}

/// Returns how long a debt takes at another rate. Without permits, or without a limit, the number
/// of owed permits is unknown, and the debt stays a time.
pub(super) fn owed(old: Interval, debt: u64, new: Interval) -> u64 {
    if [old, new].iter().any(|interval| interval.is_zero() || interval.is_unlimited()) {
        return debt;
    }
    old.convert(debt, new, true)
}

/// Returns the part of the cost `paid` for `n` permits that is left over if only `used` permits
/// were used. If the cost of `n` permits is still the one that was paid, this is a difference of
/// costs; after a change of the rate it is a share.
pub(super) fn unused_share(paid: u64, n: u32, used: u32, today: impl Fn(u32) -> u64) -> u64 {
    let share = u128::from(paid) * u128::from(used.min(n));
    let share = u64::try_from(share.div_ceil(u128::from(n.max(1)))).unwrap_or(paid);
    paid.saturating_sub(if today(n) == paid { today(used) } else { share })
}

/// Moves the state, whatever it is, and returns the new state.
fn move_to(state: &BurstyState, target: impl Fn(u64) -> u64) -> u64 {
    let Ok(zero) = update(&state.zero, |zero| {
        let new = target(zero);
        Ok::<_, Infallible>((new, new))
    });
    zero
}

impl Shut for SmoothBursty {
    fn shut(&self, state: &BurstyState, now: &dyn Fn() -> Nanos) -> Remainder {
        // Relaxed: one swap, which reads the newest word. The word publishes nothing else.
        let zero = state.zero.swap(ticks::NEVER, Ordering::Relaxed);
        let at = now();
        let status = self.status_of(zero, at);
        // The next permit is granted on credit, so a debt of up to its cost is no permit owed.
        let counted = self.rate.counted();
        let debt = match zero.saturating_sub(ticks::from_nanos(at)) {
            _ if zero == ticks::NEVER => zero,
            debt => debt.saturating_sub(counted.price(1)),
        };
        Remainder::of(status).owing(debt, counted)
    }
}

impl Policy for SmoothBursty {
    type State = BurstyState;
    type Charge = BurstyCharge;

    fn start(&self, now: Nanos) -> BurstyState {
        BurstyState { zero: AtomicU64::new(self.first(self.running(ticks::from_nanos(now)))) }
    }

    #[inline]
    fn try_acquire(&self, state: &BurstyState, at: Nanos, n: u32) -> Result<BurstyCharge, Refusal> {
        self.check(n)?;
        let tick = ticks::from_nanos(at);
        update(&state.zero, |zero| {
            if zero > tick {
                return Err(if self.rate.is_zero() { ticks::NEVER } else { zero });
            }
            // Computed only here: a refusal needs neither.
            let granted = grant(zero, self.floor(tick), self.rate.price(n));
            if granted.0 < ticks::NEVER { Ok(granted) } else { self.grant_endless(zero, tick, n) }
        })
        .map_err(|zero| Refusal::Limited { retry_after: ticks::between(tick, zero) })
    }

    #[inline]
    fn check(&self, n: u32) -> Result<(), Refusal> {
        if n == 0 { Err(Refusal::ZeroPermits) } else { Ok(()) }
    }

    #[inline]
    fn weight(&self, n: u32) -> u64 {
        self.rate.price(n)
    }

    #[inline]
    fn ready_at(&self, state: &BurstyState, at: Nanos, ahead: u64, _n: u32) -> Nanos {
        let zero = AtomicWord::load(&state.zero);
        if self.rate.is_zero() {
            return Nanos::MAX;
        }
        if ahead == 0 {
            return ticks::to_nanos(zero);
        }
        ticks::to_nanos(zero.max(self.floor(ticks::from_nanos(at))).saturating_add(ahead))
    }

    /// A request that waits is granted on credit, and no permit overflows meanwhile. But a request
    /// that must leave some permits may wait until the limiter is full, and the permits of the
    /// nanosecond by which its time is rounded up overflow.
    fn one_by_one(&self, largest: u32) -> usize {
        if largest == u32::MAX { usize::MAX } else { 0 }
    }

    fn forecast(&self, state: &BurstyState, at: Nanos) -> Forecast {
        Forecast::with(at, [AtomicWord::load(&state.zero), 0, 0])
    }

    fn predict(&self, _state: &BurstyState, forecast: &mut Forecast, n: u32) -> Nanos {
        let [zero, ..] = forecast.numbers;
        let due = forecast.at.max(ticks::to_nanos(zero));
        if self.rate.is_zero() || due == Nanos::MAX {
            return Nanos::MAX;
        }
        forecast.at = due;
        forecast.numbers[0] = grant(zero, self.floor(ticks::from_nanos(due)), self.rate.price(n)).0;
        due
    }

    fn predict_many(&self, _state: &BurstyState, forecast: &mut Forecast, crowd: &Crowd) {
        let floor = self.floor(ticks::from_nanos(forecast.at));
        forecast.numbers[0] = grant(forecast.numbers[0], floor, crowd.weight).0;
    }

    fn undo(&self, state: &BurstyState, at: Nanos, charge: BurstyCharge, most: u64) -> u64 {
        SmoothBursty::move_back(state, charge, most, self.full_level(at))
    }

    #[inline]
    fn moved(&self, charge: BurstyCharge) -> (u64, u64) {
        (charge.after - charge.price, charge.after)
    }

    #[inline]
    fn full_level(&self, at: Nanos) -> u64 {
        // Nothing accrues, and nothing overflows, while the rate is zero.
        self.floor(self.running(ticks::from_nanos(at)))
    }

    fn refund(&self, state: &BurstyState, at: Nanos, n: u32) -> u64 {
        let floor = self.floor(ticks::from_nanos(at));
        let worth = self.rate.interval().worth(n);
        move_to(state, |zero| zero.saturating_sub(worth).max(floor).min(zero))
    }

    fn unspent(&self, charge: BurstyCharge, n: u32, used: u32) -> Option<BurstyCharge> {
        let price = unused_share(charge.price, n, used, |n| self.rate.price(n));
        (used < n).then_some(BurstyCharge { price, ..charge })
    }

    fn debit(&self, state: &BurstyState, at: Nanos, n: u32) {
        if n > 0 && !self.rate.is_zero() {
            let (floor, price) = (self.floor(ticks::from_nanos(at)), self.rate.price(n));
            move_to(state, |zero| grant(zero, floor, price).0);
        }
    }

    fn keep_at_most(&self, state: &BurstyState, at: Nanos, permits: u64) -> u64 {
        let (floor, price) = (self.floor(ticks::from_nanos(at)), self.rate.price(1));
        let taken = update(&state.zero, |zero| match self.status_of(zero, at).beyond(permits) {
            0 => Err(()),
            taken => Ok((grant(zero, floor, price.saturating_mul(taken)).0, taken)),
        });
        taken.unwrap_or(0)
    }

    fn pause(&self, state: &BurstyState, stop: Standstill) -> Option<u64> {
        Some(move_to(state, |zero| self.paused(zero, stop)))
    }

    fn forecast_pause(&self, state: &BurstyState, stop: Standstill) -> Option<Forecast> {
        let zero = self.paused(AtomicWord::load(&state.zero), stop);
        Some(Forecast::with(stop.to, [zero, 0, 0]))
    }

    fn full_after_pause(&self, state: &BurstyState, stop: Standstill) -> Option<Nanos> {
        let zero = self.paused(AtomicWord::load(&state.zero), stop);
        Some(self.status_of(zero, stop.to).full_at.max(stop.to))
    }

    fn change(&self, state: &BurstyState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        self.change_now(state, at, &|| at, change)
    }

    fn change_now(
        &self,
        state: &BurstyState,
        at: Nanos,
        now: &dyn Fn() -> Nanos,
        change: Change,
    ) -> Result<u64, PolicyError> {
        let change = change.without_burst("smooth_bursty")?;
        let (old, rate) = (self.rate.interval(), change.rate.unwrap_or(self.rate.rate()));
        let (counted, new) = (self.rate.counted(), Interval::new(rate));
        let at = ticks::from_nanos(at);
        // Relaxed: as in `paused`.
        let stopped = match (old.is_zero(), new.is_zero()) {
            (false, true) => self.stopped.swap(at, Ordering::Relaxed),
            (true, false) => self.stopped.swap(ticks::NEVER, Ordering::Relaxed),
            _ => ticks::NEVER,
        };
        // Whether the state was moved as a time: only then it is known what grants from before the
        // change are worth.
        let mut kept = !old.is_unlimited() || new.is_unlimited();
        if stopped < at {
            kept &= AtomicWord::load(&state.zero) <= stopped;
            // Nothing accrued meanwhile: the stored permits are what they were. A debt was repaid
            // as far as the time goes.
            move_to(state, |zero| match stopped.checked_sub(zero.max(stopped - self.saved)) {
                Some(stock) => at - stock,
                None => zero.max(at),
            });
        }
        // The stored permits that are away until the rate is set, as a time at the new rate, and the
        // tick at which they were taken.
        let away = Cell::new((0, at));
        let level = match change.keep.unwrap_or(Keep::Ratio) {
            Keep::Nothing => {
                kept = false;
                let running = self.running(at);
                away.set((running - self.first(running), at));
                move_to(state, |_| running)
            }
            // Nothing was counted while unlimited: begin with all stored permits, unless an old
            // debt is still running.
            _ if old.is_unlimited() && !new.is_unlimited() => {
                move_to(state, |zero| if zero > at { zero } else { zero.min(self.floor(at)) })
            }
            // The word is a time, which does not depend on the rate.
            Keep::Ratio => AtomicWord::load(&state.zero),
            Keep::Count => {
                kept = false;
                move_to(state, |zero| {
                    // After the state, as in a bucket: `policy/bucket/in_force.rs`.
                    let at = at.max(ticks::from_nanos(now()));
                    away.set((0, at));
                    match zero.checked_sub(at) {
                        // The debt has saturated, so its amount is lost and no rate makes it less.
                        _ if zero == ticks::NEVER => zero,
                        // Permits stay a time until there is a rate again.
                        _ if counted.is_zero() || counted.is_unlimited() || new.is_zero() => zero,
                        Some(debt) => at.saturating_add(owed(counted, debt, new)),
                        None => {
                            away.set((counted.convert(at - zero.max(self.floor(at)), new, false), at));
                            at
                        }
                    }
                })
            }
        };
        self.rate.set(rate);
        // A request pays for the stored permits by the new rate. So they are away until it finds
        // the new rate together with them: a longer stock at the old price would be more permits.
        if let (stock @ 1.., since) = away.get() {
            let Ok(()) = convert(&state.zero, |zero| {
                // What has accrued since then may have been granted.
                let now = if new.is_zero() { since } else { ticks::from_nanos(now()) };
                let accrued = now.saturating_sub(since);
                let stock = stock.min(self.saved.saturating_sub(accrued));
                Ok::<_, Infallible>((zero.saturating_sub(stock), ()))
            });
        }
        Ok(if kept { level } else { 0 })
    }

    /// The saved time cannot be changed.
    fn change_to(&self, new: &SmoothBursty) -> Option<Change> {
        (self.max_burst == new.max_burst).then(|| Change::rate(new.rate()))
    }

    fn rate(&self) -> Rate {
        self.rate.rate()
    }

    /// Not fresh at rate zero: stored permits do not fill, although the time passes at which they
    /// would be full.
    fn is_fresh(&self, state: &BurstyState, at: Nanos) -> bool {
        !self.rate.is_zero() && self.status(state, at).full_at <= at
    }

    fn status(&self, state: &BurstyState, at: Nanos) -> PolicyStatus {
        self.status_of(AtomicWord::load(&state.zero), at)
    }

    fn left(&self, _state: &BurstyState, charge: BurstyCharge, at: Nanos) -> PolicyStatus {
        self.status_of(charge.after, at)
    }
}
