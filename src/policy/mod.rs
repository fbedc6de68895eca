//! Policies: the rules by which permits come due, without clocks, queues or threads.
//!
//! A policy is configuration and a rule. Its state is separate, so one policy can serve many
//! states. Time is always an argument, so a policy can be simulated, replayed and tested with any
//! times.
//!
//! | policy | state | payer of `n` permits | unused permits | use it for |
//! |---|---|---|---|---|
//! | [`SmoothBursty`] | 8 bytes | the next caller | stored, free | a steady rate with spare capacity |
//! | [`SmoothWarmingUp`] | 16 bytes | the next caller | stored, at a higher cost | a service that is slow after idling |
//! | [`TokenBucket`] | 8 bytes | the caller, before it passes | stored, up to the burst | a rate with a burst; GCRA |
//! | [`LeakyBucket`] | 8 bytes | the caller, before it passes | not stored | a constant outflow, with a bounded queue |
//! | [`FixedWindow`] | 16 bytes | | kept until the window ends | the limit of a service that counts in fixed windows |
//! | [`SlidingWindow`] | 48 bytes, and 16 for each cell | | return as they were taken, cell by cell | nearly any period, in little memory |
//! | [`SlidingEstimate`] | 16 bytes | | return evenly | approximately any period, in the least memory |
//! | [`SlidingLog`] | 9 bytes for each permit of the limit | | return as they were taken | any period, exactly |
//! | [`Both`] | the states of its two policies | as in its policies | as in its policies | two rates of one thing |
//! | [`Unlimited`], [`DenyAll`] | none | | | to switch off a limit, or a service |
//! | [`AnyPolicy`] | the size of the largest | | | a choice made by a configuration |
//!
//! [`algorithms`](crate::algorithms) compares them at length, and helps to choose.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use tidegate::policy::{Policy, SmoothBursty};
//! use tidegate::{Nanos, Rate};
//!
//! let policy = SmoothBursty::new(Rate::per_second(10));
//! let state = policy.start(Nanos::ZERO);
//! policy.try_acquire(&state, Nanos::ZERO, 5)?;
//! // Five permits were granted at once; the next caller waits for them.
//! assert_eq!(policy.ready_at(&state, Nanos::ZERO, 0, 1), Nanos::new(500_000_000));
//! # Ok::<(), tidegate::Refusal>(())
//! ```
//!
#![cfg_attr(not(feature = "config"), doc = "[`AnyPolicy`]: https://docs.rs/tidegate")]

#[cfg(feature = "config")]
mod any;
pub(crate) mod atomic_word;
mod both;
mod bucket;
mod change;
#[cfg(feature = "config")]
mod config;
mod deny_all;
mod forecast;
mod guava;
pub(crate) mod interval;
#[cfg(feature = "config")]
mod kinds;
pub(crate) mod part;
pub(crate) mod published;
pub(crate) mod remainder;
mod standstill;
pub(crate) mod ticks;
mod unlimited;
pub(crate) mod window;

#[cfg(feature = "config")]
pub use any::AnyPolicy;
#[cfg(feature = "config")]
pub(crate) use any::Step;
pub use both::Both;
pub use bucket::{LeakyBucket, TokenBucket};
pub use change::{Change, Keep};
#[cfg(feature = "config")]
pub use config::{ConfigError, PolicyConfig};
pub use deny_all::DenyAll;
pub use forecast::{Crowd, Forecast};
pub use guava::{SmoothBursty, SmoothWarmingUp};
pub use part::Part;
pub use standstill::Standstill;
pub use unlimited::Unlimited;
pub use window::{FixedWindow, SlidingEstimate, SlidingLog, SlidingWindow};

/// The types of [`Policy::State`] and [`Policy::Charge`].
pub mod state {
    #[cfg(feature = "config")]
    pub use super::any::{AnyCharge, AnyState};
    pub use super::both::{BothCharge, BothState};
    pub use super::bucket::{BucketCharge, BucketState};
    pub use super::guava::{BurstyCharge, BurstyState, WarmingUpCharge, WarmingUpState};
    pub use super::window::{
        EstimateCharge, EstimateState, FixedCharge, FixedState, LogCharge, LogState, SlidingCharge,
        SlidingState,
    };
}

use std::fmt::Debug;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::grant::Left;
use crate::policy::interval::Interval;
use crate::policy::part::Whole;
use crate::rate::Rate;
use crate::time::Nanos;

/// A rule that decides when permits are due.
///
/// Every method takes the time as an argument and may be called from many threads at once. Times
/// need not be in ascending order: a caller may have read its clock a moment before another. Only a
/// [`change`](Policy::change) must not be made at a time before that of a grant; see
/// [`change_now`](Policy::change_now).
///
/// Implement this trait to define a custom rule; [`RateLimiter`](crate::RateLimiter) adds the
/// waiting. The contract has three parts. A refusal changes nothing.
/// [`try_acquire`](Policy::try_acquire) succeeds at the time that [`ready_at`](Policy::ready_at)
/// returns for a request with no other ahead, if no other call happens meanwhile. No method panics.
pub trait Policy: Debug + Send + Sync + 'static {
    /// The data that one limiter, or one key, keeps in memory.
    type State: Debug + Send + Sync + 'static;

    /// What one grant took, so that exactly this can be put back.
    type Charge: Copy + Debug + Send + Sync + 'static;

    /// Returns the state of a limiter that begins at `now`.
    fn start(&self, now: Nanos) -> Self::State;

    /// Takes `n` permits at the time `at`, atomically.
    ///
    /// # Errors
    ///
    /// Returns a [`Refusal`] if the permits are not granted. Nothing was written in this case.
    fn try_acquire(&self, state: &Self::State, at: Nanos, n: u32) -> Result<Self::Charge, Refusal>;

    /// Checks, without taking anything, whether a request of `n` permits can ever be granted.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal::ZeroPermits`] or [`Refusal::ExceedsLimit`]. A single permit is never
    /// refused here: if the policy has no permit to give, a request for one permit is
    /// [`Refusal::Limited`] without end.
    fn check(&self, n: u32) -> Result<(), Refusal>;

    /// Returns the weight of a request of `n` permits in a sum of requests that are served first,
    /// in the policy's own unit.
    fn weight(&self, n: u32) -> u64;

    /// Returns the earliest time at which `n` permits can be obtained, if requests of the summed
    /// weight `ahead` are served first and nothing happens before `at`. A time in the past means
    /// "now"; [`Nanos::MAX`] means never.
    ///
    /// It is exact for a request with no other ahead. Behind others it is exact unless
    /// [`one_by_one`](Policy::one_by_one) reports that their sum does not determine it.
    fn ready_at(&self, state: &Self::State, at: Nanos, ahead: u64, n: u32) -> Nanos;

    /// Returns how many requests, from the front of the queue, must be [predicted](Policy::predict)
    /// one by one before the sum of all others determines when the next request is due. None of
    /// them asks for more than `largest` permits.
    ///
    /// Zero, which is the default, means that [`ready_at`](Policy::ready_at) is exact behind any
    /// sum. `usize::MAX` means that a sum never determines the due time, as in a window, where a
    /// request that does not fit leaves room that no request uses. Predicted times are then exact
    /// behind some thousand requests, and never too early behind more.
    fn one_by_one(&self, largest: u32) -> usize {
        let _ = largest;
        0
    }

    /// Begins a forecast of the next grants, if nothing happens before `at`.
    fn forecast(&self, state: &Self::State, at: Nanos) -> Forecast {
        let _ = state;
        Forecast::new(at)
    }

    /// Returns when a request of `n` permits is due behind all requests that `forecast` has
    /// predicted, and not before [`forecast.at`](Forecast::at). From then on the request is among
    /// the predicted requests, unless it is never due, which [`Nanos::MAX`] means.
    ///
    /// The default adds up weights.
    fn predict(&self, state: &Self::State, forecast: &mut Forecast, n: u32) -> Nanos {
        let due = self.ready_at(state, forecast.from, forecast.ahead, n).max(forecast.at);
        if due < Nanos::MAX {
            forecast.at = due;
            forecast.ahead = forecast.ahead.saturating_add(self.weight(n));
        }
        due
    }

    /// Predicts many requests at once. Times that the forecast returns afterwards may be too late,
    /// but never too early.
    ///
    /// The default adds up weights.
    fn predict_many(&self, state: &Self::State, forecast: &mut Forecast, crowd: &Crowd) {
        let _ = state;
        forecast.ahead = forecast.ahead.saturating_add(crowd.weight);
    }

    /// Puts back what one grant took, as if the grant had not been made, but at most `most` of it.
    /// Returns the level of the state afterwards.
    ///
    /// Without the grant the limiter would have been fuller. Permits that accrued while it would
    /// have been full would have been lost, and must not be given back: permits are never invented.
    /// The caller judges that by levels. A level is the policy's own measure of how full a state
    /// is: the lower, the fuller. Grants raise it, and time does not change it. The room in a state
    /// is its level minus the level of a full state, [`full_level`](Policy::full_level). `most` is
    /// the least room in the state at any moment since the grant, minus all that was undone since.
    /// With each undone grant, the caller lowers that number for all others.
    /// [`RateLimiter`](crate::RateLimiter) keeps these numbers for dropped waits, for estimates and
    /// for limits that are members of an `AllOf`.
    ///
    /// `u64::MAX` means that nothing was undone, refunded, changed or debited since the grant. Then
    /// the policy judges only by the time. A caller that undoes no more than its last grant needs
    /// no other number.
    ///
    /// A window policy ignores `most`: it loses nothing by being full.
    fn undo(&self, state: &Self::State, at: Nanos, charge: Self::Charge, most: u64) -> u64;

    /// Returns the levels between which a grant moved its state, under the terms in force: the
    /// level before and the level after. The difference is the maximum that [`undo`](Policy::undo)
    /// can put back.
    ///
    /// A policy that loses the permits that accrue while it is full must implement this and
    /// [`full_level`](Policy::full_level). The default means that there is always room.
    fn moved(&self, charge: Self::Charge) -> (u64, u64) {
        let _ = charge;
        (0, u64::MAX)
    }

    /// Returns the level of a full limiter at the time `at`. It rises with time.
    fn full_level(&self, at: Nanos) -> u64 {
        let _ = at;
        0
    }

    /// Returns the unit of levels as a pair: under the terms in force, the first number in levels
    /// is worth the second number in permits, if a change of terms keeps permits. If a change of
    /// terms keeps levels, the two numbers never change.
    fn level_unit(&self) -> (u64, u64) {
        (1, 1)
    }

    /// Gives back `n` permits that were acquired and not used. Returns the level of the state
    /// afterwards. The limiter never becomes fuller than full.
    fn refund(&self, state: &Self::State, at: Nanos, n: u32) -> u64;

    /// Returns the part of a grant of `n` permits that only its last `n - used` permits took, so
    /// that [`undo`](Policy::undo) can put it back. This is for a request that was an estimate, and
    /// turned out to be too large. Returns `None` if there is nothing to put back.
    ///
    /// The part is rounded so that no permits are invented. If nothing happened since the grant,
    /// undoing this part leaves what a grant of `used` permits at that time would have left. If the
    /// rate changed since, it is a share.
    ///
    /// By default a grant is put back completely or not: the result is `None` as soon as one permit
    /// was used.
    fn unspent(&self, charge: Self::Charge, n: u32, used: u32) -> Option<Self::Charge> {
        (used == 0 && n > 0).then_some(charge)
    }

    /// Charges `n` permits at the time `at`, even if they are not available: for work that was done
    /// without a request, or that was larger than requested. The missing permits are owed, and
    /// later requests wait for them.
    ///
    /// Without a limit nothing is charged, because no request waits. At a rate of
    /// [zero](Rate::ZERO):
    ///
    /// - a bucket charges tokens, and repays the negative balance when tokens accrue again;
    /// - a window counts them, and so does a log, and the window keeps its length;
    /// - [`SmoothBursty`] and [`SmoothWarmingUp`] charge nothing, because their stored permits and
    ///   negative balances are times, and at this rate a permit has no time.
    ///
    /// No debit overflows. If a bucket would repay a debit later than a state can represent, some
    /// 34 years after the clock's beginning, the debit is owed for ever: no other rate makes it
    /// less, and only a refund or a reset ends it. A window's counter stays at its largest number
    /// until the window is over. A log remembers as many permits as it has room for.
    ///
    /// The default takes as many permits as are available, and forgets the rest.
    fn debit(&self, state: &Self::State, at: Nanos, n: u32) {
        let (mut left, mut part) = (n, n);
        while part.min(left) > 0 {
            match self.try_acquire(state, at, part.min(left)) {
                Ok(_) => left -= part.min(left),
                Err(_) => part /= 2,
            }
        }
    }

    /// Lowers the permits that are available at the time `at` to at most `permits`: takes what
    /// requests for one permit would take, one after the other, until no more than `permits` are
    /// left. Returns how many permits it took. It never adds permits, and without a limit it takes
    /// none.
    ///
    /// The policies of this crate check and take in one step, so each permit that another request
    /// takes at the same time is one that this call need not take. The default checks the
    /// [`status`](Policy::status) and then takes: concurrently with other requests it may leave
    /// fewer permits.
    fn keep_at_most(&self, state: &Self::State, at: Nanos, permits: u64) -> u64 {
        let (mut taken, mut most) = (0, u32::MAX);
        // Other requests may take permits after the check. Each round checks again, and halves what
        // it takes after a refusal.
        while most > 0 {
            let n = u32::try_from(self.status(state, at).beyond(permits)).unwrap_or(u32::MAX).min(most);
            if n == 0 {
                break;
            }
            match self.try_acquire(state, at, n) {
                Ok(_) => taken += u64::from(n),
                Err(_) => most = n / 2,
            }
        }
        taken
    }

    /// Carries out a part of a pause: no permit accrues from `stop.from` to `stop.to`, so the
    /// stored permits and the negative balance stay as they are at `stop.from`. Unless
    /// `stop.keeps_permits`, the pause ends at `stop.to`, and the state is left as if it were empty
    /// then: permits accrue one after the other, the first permit an interval after `stop.to`. A
    /// negative balance stays. Returns the level of the state afterwards.
    ///
    /// `None` means that the policy did nothing, because it has no state that is as if time had
    /// stood still. This is true of a window, because its permits return in real time. Then the
    /// [`RateLimiter`](crate::RateLimiter) itself spaces the first grants after a pause: the *k*th
    /// permit is due no earlier than *k* intervals of the [`rate`](Policy::rate) after the end of
    /// the pause, until as much time has passed as the [limit](PolicyStatus::limit) takes to
    /// accrue. A limiter asks each [part](Policy::each_part) of a policy.
    fn pause(&self, state: &Self::State, stop: Standstill) -> Option<u64> {
        let _ = (state, stop);
        None
    }

    /// Begins a forecast at `stop.to` for the state that [`pause`](Policy::pause) would leave.
    /// Returns `None` if `pause` does nothing.
    fn forecast_pause(&self, state: &Self::State, stop: Standstill) -> Option<Forecast> {
        let _ = (state, stop);
        None
    }

    /// Returns when a limiter is full again, at `stop.to` or later, starting from the state that
    /// [`pause`](Policy::pause) would leave. Returns `None` if `pause` does nothing.
    ///
    /// The default assumes that a kept state fills up as if the whole time had moved on, and an
    /// empty state at the [`rate`](Policy::rate).
    fn full_after_pause(&self, state: &Self::State, stop: Standstill) -> Option<Nanos> {
        self.forecast_pause(state, stop)?;
        let Standstill { from, to, keeps_permits } = stop;
        let PolicyStatus { limit, full_at, .. } = self.status(state, from);
        let held = to.saturating_add(full_at.saturating_since(from));
        if keeps_permits || full_at == Nanos::MAX {
            return Some(held.max(full_at));
        }
        let price = Interval::new(self.rate()).price(u32::try_from(limit).unwrap_or(u32::MAX));
        Some(held.max(ticks::to_nanos(ticks::from_nanos(to).saturating_add(price))))
    }

    /// Returns how many permits a grant took, or how many permits a part of it took that is put
    /// back. A limiter asks each [part](Policy::each_part) for which [`pause`](Policy::pause) does
    /// nothing, so that it does not count a grant that is given back. With the default it counts
    /// the grant.
    fn permits(&self, charge: Self::Charge) -> u32 {
        let _ = charge;
        0
    }

    /// Changes the rate, the burst or the other terms. Each policy documents what happens to stored
    /// permits and negative balances, unless the change specifies it.
    ///
    /// Returns the level of the state afterwards, under the new terms. 0 means that grants from
    /// before the change give back nothing: the policy did not convert its levels by their
    /// [unit](Policy::level_unit).
    ///
    /// # Errors
    ///
    /// Returns a [`PolicyError`] for a burst, a capacity or a maximum wait that the policy does not
    /// have, or for numbers that are too large. Nothing was changed in this case. A new rate by
    /// itself is never an error: a rate that does not fit is rounded down. A bucket that would take
    /// more than 2.28 years to fill at the new rate gets a smaller burst, and loses the permits
    /// above that burst.
    fn change(&self, state: &Self::State, at: Nanos, change: Change) -> Result<u64, PolicyError>;

    /// Like [`change`](Policy::change), beside requests that take permits. `now` reads the clock.
    ///
    /// A bucket cannot distinguish permits that were taken after `at` from a debt, which a higher
    /// rate repays sooner. So it calls `now` after it has read its state, and converts the state as
    /// of then: no taken permit is younger. A policy that wraps another one forwards this method,
    /// too. The default does not call `now`.
    ///
    /// # Errors
    ///
    /// Like [`change`](Policy::change).
    fn change_now(
        &self,
        state: &Self::State,
        at: Nanos,
        now: &dyn Fn() -> Nanos,
        change: Change,
    ) -> Result<u64, PolicyError> {
        let _ = now;
        self.change(state, at, change)
    }

    /// Changes the rate, by the policy's own rule. Returns the level of the state afterwards.
    fn set_rate(&self, state: &Self::State, at: Nanos, rate: Rate) -> u64 {
        self.change(state, at, Change::rate(rate)).unwrap_or(u64::MAX)
    }

    /// Returns the change that gives this policy the terms of another policy, or `None` if no
    /// change can do that, for example because the other policy counts in a different way.
    ///
    /// Two policies have equal terms if this method returns the same value for the other policy as
    /// for the policy itself. A `KeyedRateLimiter` uses this when the plan of a key changes.
    ///
    /// The default changes the rate. It is right for a policy that has nothing else to change.
    fn change_to(&self, new: &Self) -> Option<Change>
    where
        Self: Sized,
    {
        Some(Change::rate(new.rate()))
    }

    /// Returns the rate, as it was given.
    fn rate(&self) -> Rate;

    /// Returns what is available at the time `at`: a snapshot that may be outdated when it is
    /// returned.
    fn status(&self, state: &Self::State, at: Nanos) -> PolicyStatus;

    /// Returns what a grant left: the [`status`](Policy::status) at the time `at` of the state
    /// right after the grant, without later grants.
    ///
    /// A [`Grant`](crate::Grant) reports it to a request that [asks](crate::Request::with_left).
    /// The default is the status of the state as it is now, which other threads may have changed
    /// since the grant.
    fn left(&self, state: &Self::State, charge: Self::Charge, at: Nanos) -> PolicyStatus {
        let _ = charge;
        self.status(state, at)
    }

    /// Returns whether a state is idle at the time `at`, that is, full again as if new, with
    /// nothing owed or counted. A `KeyedRateLimiter` may forget a key with such a state.
    ///
    /// A policy must return `false` while [`restart`](Policy::restart) would grant one permit more
    /// than the state does. By default a state is fresh when its [`status`](Policy::status) reports
    /// that the limiter is full.
    fn is_fresh(&self, state: &Self::State, at: Nanos) -> bool {
        self.status(state, at).full_at <= at
    }

    /// Returns the state of a key of a `KeyedRateLimiter` that is new, or that was forgotten and
    /// returns: the limiter cannot distinguish the two.
    ///
    /// It is the state of [`start`](Policy::start), unless that state grants more than a
    /// [fresh](Policy::is_fresh) state. Then a policy must return a fresh state here. Otherwise a
    /// key would gain permits each time it is forgotten.
    fn restart(&self, now: Nanos) -> Self::State {
        self.start(now)
    }

    /// Returns whether a grant that was late, because a timer was late, may be charged as of the
    /// time it was due.
    ///
    /// That keeps the average exact if permits accrue at a rate. A window policy returns `false`:
    /// its permits do not get lost by being late, and its bound is about the times at which they
    /// were really granted.
    fn catches_up(&self) -> bool {
        true
    }

    /// Returns the maximum time that a request may have to wait in the queue when it asks. A
    /// request that would wait longer is refused. A request that joined the queue stays, whatever
    /// changes later.
    fn max_wait(&self) -> Duration {
        Duration::MAX
    }

    /// Combines this policy with another one: a request is granted when both grant it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{
    ///     FixedWindow, ManualClock, Policy, Rate, RateLimiter, TokenBucket,
    /// };
    ///
    /// // 10 per second, and no more than 100 per minute.
    /// let second = TokenBucket::new(Rate::per_second(10), 10);
    /// let minute = FixedWindow::new(Rate::per_minute(100));
    /// let limiter = RateLimiter::with_clock(second.and(minute), ManualClock::new());
    /// assert!(limiter.try_acquire().is_ok());
    /// ```
    #[must_use]
    fn and<Q: Policy>(self, other: Q) -> Both<Self, Q>
    where
        Self: Sized,
    {
        Both::new(self, other)
    }

    /// The number of [parts](Policy::each_part) of the policy. Only a policy that consists of
    /// several policies has more than one.
    const PARTS: usize = 1;

    /// Calls `show` with each part of the policy, with its part of the state and of a charge.
    ///
    /// Each part has a [level](Policy::undo) of its own, so a caller that undoes several grants
    /// keeps numbers for each part. The default shows the policy itself.
    fn each_part(&self, state: &Self::State, charge: Option<Self::Charge>, show: &mut dyn FnMut(&dyn Part))
    where
        Self: Sized,
    {
        show(&Whole { policy: self, state, charge });
    }

    /// Takes `n` permits at the time `at` from one part after the other. If a part refuses, the
    /// caller must put back what was taken from the parts before it.
    ///
    /// [`try_acquire`](Policy::try_acquire) puts it back itself, and can judge only by its time how
    /// much to put back. A limiter knows more: see [`undo`](Policy::undo). Call this only if
    /// [`ready_at`](Policy::ready_at) reports that the permits are available.
    ///
    /// # Errors
    ///
    /// Returns the refusal, and what to put back. The default is
    /// [`try_acquire`](Policy::try_acquire), which takes all or nothing.
    fn take_parts(
        &self,
        state: &Self::State,
        at: Nanos,
        n: u32,
    ) -> Result<Self::Charge, (Refusal, Option<Self::Charge>)> {
        self.try_acquire(state, at, n).map_err(|refusal| (refusal, None))
    }

    /// Sets, for a policy with a schedule, the Unix time at the clock's zero.
    /// [`RateLimiter`](crate::RateLimiter) calls it once.
    #[must_use]
    fn with_epoch(self, unix_time_at_zero: Duration) -> Self
    where
        Self: Sized,
    {
        let _ = unix_time_at_zero;
        self
    }
}

/// What a policy could give at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyStatus {
    /// The maximum number of permits that can ever be available; `u64::MAX` without a limit.
    pub limit: u64,
    /// The number of single permits that could be taken right now, one after the other.
    pub available: u64,
    /// The time at which a request for one permit would be granted; not later than now if
    /// `available` is not zero, and [`Nanos::MAX`] for never.
    pub next_at: Nanos,
    /// The time at which the limiter is full again if no request takes a permit; in the past if it
    /// is full.
    pub full_at: Nanos,
}

impl PolicyStatus {
    /// Returns this status as reported to a request.
    pub(crate) fn as_left(&self, at: Nanos) -> Left {
        let until = |time: Nanos| time.saturating_since(at).as_duration();
        let PolicyStatus { limit, available, next_at, full_at } = *self;
        Left { limit, available, next_in: until(next_at), full_in: until(full_at) }
    }

    /// Returns how many permits are available beyond `permits`. Without a limit there are none to
    /// take.
    pub(crate) fn beyond(&self, permits: u64) -> u64 {
        if self.limit == u64::MAX { 0 } else { self.available.saturating_sub(permits) }
    }

    /// Returns the status of a limiter without a limit.
    pub(crate) fn unlimited(at: Nanos) -> PolicyStatus {
        PolicyStatus { limit: u64::MAX, available: u64::MAX, next_at: at, full_at: at }
    }

    /// The status of a limiter that never grants a permit.
    pub(crate) const NOTHING: PolicyStatus =
        PolicyStatus { limit: 0, available: 0, next_at: Nanos::MAX, full_at: Nanos::MAX };
}

/// Returns the refusal of a request that another thread got in the way of, as by a change that has
/// stalled. A request never waits for another thread; it may retry a nanosecond later.
#[cold]
pub(crate) fn limited_for_now(at: Nanos) -> Refusal {
    limited(at.saturating_add(Nanos::new(1)), at)
}

/// Returns the refusal of a request that is due at `due`.
#[inline]
pub(crate) fn limited(due: Nanos, at: Nanos) -> Refusal {
    Refusal::Limited { retry_after: due.saturating_since(at) }
}
