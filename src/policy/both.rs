//! Both: two policies of one thing, as one policy.
//!
//! # Algorithm
//!
//! A request checks both policies. If the permits are available in both, it takes from one and then
//! from the other. Another request may take the permits of the second policy in between. Then the
//! request puts back what it took from the first policy, and retries.
//!
//! | request | first | second | others see |
//! |---|---|---|---|
//! | checks, and a permit is missing | as it was | as it was | nothing |
//! | has taken from the first | taken | as it was | too few permits in the first, for a moment |
//! | has taken from both | taken | taken | its grant |
//! | is refused by the second | put back | as it was | too few permits, until it has put them back |
//!
//! No request therefore ever sees more permits than there are. A request that sees too few is
//! refused while the other request is in progress, with the retry time at which the first policy
//! would have permits.
//!
//! # Putting back
//!
//! Putting back is undoing a grant: see [`Policy::undo`]. A window policy puts back exactly what it
//! took, whatever happened since, so it is asked first. Of two policies with stored permits, the
//! first policy may have been full meanwhile without this grant. How much to put back depends on
//! the use:
//!
//! - **In a limiter**, the log of undone grants knows it (`src/line/undo_log.rs`): the request
//!   takes the lock, and the waiters that saw too few permits are served with the permits that are
//!   back. A waiter also checks under this lock before it joins. So either the request that puts
//!   back comes later and serves that waiter, or the waiter sees the permits.
//! - **For a key without waiters**, the table reads the clock again, and puts back no more than
//!   what has not overflowed by then.
//! - **Without a limiter**, the policy knows only the time of the call, and judges by it.
//!
//! In the last two cases a little too much may be given back, once: the permits that accrued while
//! the thread was kept off its processor between its clock reading and the CAS.
//!
//! # Predicted times
//!
//! A request is due when the later of the two policies has its permits. Behind others the sum of
//! their permits does not determine it: while requests wait for one policy, permits of the other
//! policy overflow. So each request ahead is predicted, by both policies.
//!
//! Behind a crowd whose sums alone are known, a bound follows. At each moment the first request in
//! the queue waits for one of the two policies. While it waits for one of them, no permit of that
//! policy overflows. So the crowd waits for each policy as many windows or steps as if the other
//! policy did not exist, and for both no longer than the sum. The first of these may count in full,
//! although without the other policy a part of it had passed.
//!
//! # Memory ordering
//!
//! It has no ordering of its own: each policy's state has its argument, and a request that sees one
//! state changed and the other unchanged is refused, or puts back.
//!
//! **Checked by** `loom-tests/both.rs`, with twins that do not put back and that put back too much,
//! and by `tests/policy/both.rs` and `tests/limiter/both.rs`.
//!
//! # Source
//!
//! Several bandwidths in one bucket, as in Bucket4j; a usual pair is a limit per second and a limit
//! per day.

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::part::take_all;
use crate::policy::{Change, Crowd, Forecast, Part, Policy, PolicyStatus, Standstill};
use crate::rate::Rate;
use crate::sync::MAX_RETRIES;
use crate::time::Nanos;

/// Two policies at once: a request is granted when both grant it, and takes its permits from both.
///
/// This is for two rates of one thing, such as 10 per second and 100 per minute for each user: one
/// state, one queue, and one entry of a `KeyedRateLimiter`. [`Policy::and`] creates it, and adds a
/// third policy in the same way. To limit several things in one call, or a thing that others use as
/// well, use [`AllOf`](crate::AllOf).
///
/// A request takes from both policies or from none. A refusal reports the later of the two times. A
/// request that is larger than one of the policies can ever grant is refused with the smaller
/// limit. [`Status`](crate::Status) has the smaller numbers, and is full when both are full.
///
/// A late grant is charged as of its due time only if both policies do that: see
/// [`Policy::catches_up`].
///
/// # Changes
///
/// A [`Change`] applies to one of the policies: the first one, unless it names a
/// [part](Change::part). [`set_rate`](crate::RateLimiter::set_rate) applies to the first one. A
/// [reset](Change::reset) applies to both. [`Policy::rate`] is the rate of the first one. Refunds
/// and debits apply to both.
///
/// # Pauses
///
/// Each policy is paused as it would be without the other, see
/// [`pause_until`](crate::RateLimiter::pause_until). A bucket stands still, and is empty at the end
/// of the pause. A window counts in real time, and spaces the first grants after the pause by its
/// own rate. A request is granted when both policies grant it. The limiter therefore continues at
/// the lower rate of the two, in whichever order they are given.
///
/// # Costs
///
/// A decision checks both policies and takes from both. It takes no lock, and a refusal writes
/// nothing. The exception is a request that has taken from one policy when another request takes
/// the last permits of the other policy: it puts its permits back under the lock. While it is in
/// progress, other requests see fewer permits than there are.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{
///     FixedWindow, ManualClock, Policy, Rate, RateLimiter, Refusal, TokenBucket,
/// };
///
/// let clock = ManualClock::new();
/// let policy = TokenBucket::new(Rate::per_second(10), 10)
///     .and(FixedWindow::new(Rate::per_minute(100)));
/// let limiter = RateLimiter::with_clock(policy, clock.clone());
/// limiter.try_acquire_many(10)?;
/// // The burst is used up.
/// let refusal = limiter.try_acquire().unwrap_err();
/// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(100)));
/// for _ in 0..9 {
///     clock.advance(Duration::from_secs(1));
///     limiter.try_acquire_many(10)?;
/// }
/// // The minute is used up, 9 s after it began.
/// clock.advance(Duration::from_secs(1));
/// let refusal = limiter.try_acquire().unwrap_err();
/// assert_eq!(refusal.retry_after(), Some(Duration::from_secs(50)));
/// # Ok::<(), Refusal>(())
/// ```
///
/// # Source
///
/// Bucket4j, several bandwidths in one bucket.
#[derive(Clone, Debug)]
pub struct Both<P, Q> {
    first: P,
    second: Q,
}

/// The state of one [`Both`]: the states of its policies.
#[derive(Debug)]
pub struct BothState<P, Q> {
    pub(crate) first: P,
    pub(crate) second: Q,
}

/// What one grant of a [`Both`] took.
#[derive(Clone, Copy, Debug)]
pub struct BothCharge<P, Q> {
    first: Option<P>,
    second: Option<Q>,
}

impl<P, Q> Both<P, Q> {
    /// Combines two policies.
    #[must_use]
    pub fn new(first: P, second: Q) -> Both<P, Q> {
        Both { first, second }
    }

    /// Returns the first of the two policies.
    #[must_use]
    pub fn first(&self) -> &P {
        &self.first
    }

    /// Returns the second of the two policies.
    #[must_use]
    pub fn second(&self) -> &Q {
        &self.second
    }
}

impl<P: Policy, Q: Policy> Both<P, Q> {
    /// Returns whether the second policy is asked first, because it can put back exactly.
    fn second_goes_first(&self) -> bool {
        self.first.catches_up() && !self.second.catches_up()
    }
}

/// Returns what two policies can give together.
fn stricter(first: PolicyStatus, second: PolicyStatus) -> PolicyStatus {
    PolicyStatus {
        limit: first.limit.min(second.limit),
        available: first.available.min(second.available),
        next_at: first.next_at.max(second.next_at),
        full_at: first.full_at.max(second.full_at),
    }
}

/// Returns when a request is due in both policies, by a forecast of each, and not before a time.
fn due_in_both(
    parts: &mut [Forecast; 2],
    at: Nanos,
    mut predict: impl FnMut(usize, &mut Forecast) -> Nanos,
) -> Nanos {
    let marks = parts.each_ref().map(Forecast::mark);
    let mut at = at;
    // The second round is the last one: a request that is due stays due.
    for _ in 0..ROUNDS {
        let mut due = [at; 2];
        for (index, part) in parts.iter_mut().enumerate() {
            part.at = part.at.max(at);
            due[index] = predict(index, part);
        }
        let later = due[0].max(due[1]);
        if due[0] == due[1] && later < Nanos::MAX {
            return later;
        }
        parts.iter_mut().zip(&marks).for_each(|(part, mark)| part.rewind(mark));
        at = later;
        if at == Nanos::MAX {
            break;
        }
    }
    at
}

/// The number of times that the two policies are asked for a time that suits both.
const ROUNDS: usize = 4;

/// The first of the [`Forecast::numbers`] when a crowd is among the predicted requests. Then times
/// are sums of two waits and of the third number, counted from the time in the second number.
const CROWD: u64 = 1;

impl<P: Policy, Q: Policy> Policy for Both<P, Q> {
    type State = BothState<P::State, Q::State>;
    type Charge = BothCharge<P::Charge, Q::Charge>;

    const PARTS: usize = P::PARTS + Q::PARTS;

    fn start(&self, now: Nanos) -> Self::State {
        BothState { first: self.first.start(now), second: self.second.start(now) }
    }

    fn try_acquire(&self, state: &Self::State, at: Nanos, n: u32) -> Result<Self::Charge, Refusal> {
        let put_back = |(), taken| {
            self.undo(state, at, taken, u64::MAX);
        };
        take_all((self, state), at, n, || (), put_back)
    }

    #[inline]
    fn take_parts(
        &self,
        state: &Self::State,
        at: Nanos,
        n: u32,
    ) -> Result<Self::Charge, (Refusal, Option<Self::Charge>)> {
        let first = || self.first.take_parts(&state.first, at, n);
        let second = || self.second.take_parts(&state.second, at, n);
        if self.second_goes_first() {
            let second = second().map_err(|(refusal, taken)| {
                (refusal, taken.map(|second| BothCharge { first: None, second: Some(second) }))
            })?;
            let both = |first| BothCharge { first, second: Some(second) };
            first().map(|first| both(Some(first))).map_err(|(refusal, first)| (refusal, Some(both(first))))
        } else {
            let first = first().map_err(|(refusal, taken)| {
                (refusal, taken.map(|first| BothCharge { first: Some(first), second: None }))
            })?;
            let both = |second| BothCharge { first: Some(first), second };
            second()
                .map(|second| both(Some(second)))
                .map_err(|(refusal, second)| (refusal, Some(both(second))))
        }
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        match (self.first.check(n), self.second.check(n)) {
            (
                Err(Refusal::ExceedsLimit { limit: first, .. }),
                Err(Refusal::ExceedsLimit { limit: second, .. }),
            ) => Err(Refusal::ExceedsLimit { requested: n, limit: first.min(second) }),
            (first, second) => first.and(second),
        }
    }

    /// The weight is in permits.
    fn weight(&self, n: u32) -> u64 {
        u64::from(n)
    }

    #[inline]
    fn ready_at(&self, state: &Self::State, at: Nanos, ahead: u64, n: u32) -> Nanos {
        let (first, second) = match ahead {
            0 => (0, 0),
            _ => (self.first.weight(1).saturating_mul(ahead), self.second.weight(1).saturating_mul(ahead)),
        };
        let first = self.first.ready_at(&state.first, at, first, n);
        first.max(self.second.ready_at(&state.second, at, second, n))
    }

    /// While requests wait for one policy, permits of the other policy overflow.
    fn one_by_one(&self, _largest: u32) -> usize {
        usize::MAX
    }

    fn forecast(&self, state: &Self::State, at: Nanos) -> Forecast {
        let parts = vec![self.first.forecast(&state.first, at), self.second.forecast(&state.second, at)];
        Forecast::of_parts(at, parts)
    }

    fn predict(&self, state: &Self::State, forecast: &mut Forecast, n: u32) -> Nanos {
        let (at, [mode, crowd_at, more]) = (forecast.at, forecast.numbers);
        let Ok(parts) = <&mut [Forecast; 2]>::try_from(&mut *forecast.parts) else { return Nanos::MAX };
        let predict = |index, part: &mut Forecast| match index {
            0 => self.first.predict(&state.first, part, n),
            _ => self.second.predict(&state.second, part, n),
        };
        let due = if mode == CROWD {
            let due = [0, 1].map(|index| predict(index, &mut parts[index]).as_u64());
            let waits = due.iter().map(|due| due.saturating_sub(crowd_at)).fold(more, u64::saturating_add);
            Nanos::new(crowd_at.saturating_add(waits)).max(at)
        } else {
            due_in_both(parts, at, predict)
        };
        if due < Nanos::MAX {
            forecast.at = due;
        }
        due
    }

    fn predict_many(&self, state: &Self::State, forecast: &mut Forecast, crowd: &Crowd) {
        if crowd.requests > 0 && forecast.numbers[0] != CROWD {
            let periods = [self.first.rate(), self.second.rate()].map(Rate::whole_period);
            let periods = periods[0].saturating_add(periods[1]);
            forecast.numbers = [CROWD, forecast.at.as_u64(), periods];
        }
        let [first, second] = &mut *forecast.parts else { return };
        // Many small costs, rounded up, are no less than the cost of all.
        let weighing = |one: u64| Crowd { weight: one.saturating_mul(crowd.weight), ..*crowd };
        self.first.predict_many(&state.first, first, &weighing(self.first.weight(1)));
        self.second.predict_many(&state.second, second, &weighing(self.second.weight(1)));
    }

    /// Undoes the grant in both. `most` is for each part, so a caller that undoes more than its
    /// last grant calls [each part](Policy::each_part) instead. Returns no level.
    fn undo(&self, state: &Self::State, at: Nanos, charge: Self::Charge, most: u64) -> u64 {
        if let Some(charge) = charge.first {
            self.first.undo(&state.first, at, charge, most);
        }
        if let Some(charge) = charge.second {
            self.second.undo(&state.second, at, charge, most);
        }
        u64::MAX
    }

    fn each_part(&self, state: &Self::State, charge: Option<Self::Charge>, show: &mut dyn FnMut(&dyn Part)) {
        self.first.each_part(&state.first, charge.and_then(|charge| charge.first), show);
        self.second.each_part(&state.second, charge.and_then(|charge| charge.second), show);
    }

    /// Refunds to both. Returns no level.
    fn refund(&self, state: &Self::State, at: Nanos, n: u32) -> u64 {
        self.first.refund(&state.first, at, n);
        self.second.refund(&state.second, at, n);
        u64::MAX
    }

    fn unspent(&self, charge: Self::Charge, n: u32, used: u32) -> Option<Self::Charge> {
        let first = charge.first.and_then(|charge| self.first.unspent(charge, n, used));
        let second = charge.second.and_then(|charge| self.second.unspent(charge, n, used));
        (first.is_some() || second.is_some()).then_some(BothCharge { first, second })
    }

    /// Pauses both. Returns no level.
    fn pause(&self, state: &Self::State, stop: Standstill) -> Option<u64> {
        let first = self.first.pause(&state.first, stop);
        let second = self.second.pause(&state.second, stop);
        first.or(second).map(|_| u64::MAX)
    }

    /// A policy that counts in real time is predicted as of `stop.to`.
    fn forecast_pause(&self, state: &Self::State, stop: Standstill) -> Option<Forecast> {
        let first = self.first.forecast_pause(&state.first, stop);
        let second = self.second.forecast_pause(&state.second, stop);
        if first.is_none() && second.is_none() {
            return None;
        }
        let first = first.unwrap_or_else(|| self.first.forecast(&state.first, stop.to));
        let second = second.unwrap_or_else(|| self.second.forecast(&state.second, stop.to));
        Some(Forecast::of_parts(stop.to, vec![first, second]))
    }

    /// Returns the later of the two times. A policy that counts in real time is asked as of
    /// `stop.to`.
    fn full_after_pause(&self, state: &Self::State, stop: Standstill) -> Option<Nanos> {
        let first = self.first.full_after_pause(&state.first, stop);
        let second = self.second.full_after_pause(&state.second, stop);
        if first.is_none() && second.is_none() {
            return None;
        }
        let first = first.unwrap_or_else(|| self.first.status(&state.first, stop.to).full_at);
        let second = second.unwrap_or_else(|| self.second.status(&state.second, stop.to).full_at);
        Some(first.max(second).max(stop.to))
    }

    fn debit(&self, state: &Self::State, at: Nanos, n: u32) {
        self.first.debit(&state.first, at, n);
        self.second.debit(&state.second, at, n);
    }

    /// Lowers the policy that has fewer permits, in one step, and charges the other policy as much,
    /// as requests would have done. So the other policy keeps what it has beyond the first.
    fn keep_at_most(&self, state: &Self::State, at: Nanos, permits: u64) -> u64 {
        // If the number exceeds a debit's maximum, the other policy keeps the rest.
        let as_debit = |n| u32::try_from(n).unwrap_or(u32::MAX);
        let mut taken = 0_u64;
        // The second check is nearly always the last one: it finds what the first check left. The
        // loop is bounded, because permits may return as fast as they are taken.
        for _ in 0..=MAX_RETRIES {
            let first = self.first.status(&state.first, at);
            let second = self.second.status(&state.second, at);
            if stricter(first, second).beyond(permits) == 0 {
                break;
            }
            if first.available <= second.available {
                let n = self.first.keep_at_most(&state.first, at, permits);
                self.second.debit(&state.second, at, as_debit(n));
                taken = taken.saturating_add(n);
            } else {
                let n = self.second.keep_at_most(&state.second, at, permits);
                self.first.debit(&state.first, at, as_debit(n));
                taken = taken.saturating_add(n);
            }
        }
        taken
    }

    fn change(&self, state: &Self::State, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        self.change_now(state, at, &|| at, change)
    }

    /// Changes the part that the change names, or the first one. A reset without a part resets all
    /// parts.
    fn change_now(
        &self,
        state: &Self::State,
        at: Nanos,
        now: &dyn Fn() -> Nanos,
        change: Change,
    ) -> Result<u64, PolicyError> {
        let Some(part) = change.only_part() else {
            self.first.change_now(&state.first, at, now, change)?;
            self.second.change_now(&state.second, at, now, change)?;
            return Ok(0);
        };
        match part.checked_sub(P::PARTS) {
            None => self.first.change_now(&state.first, at, now, change.part(part)),
            Some(part) if part < Q::PARTS => {
                self.second.change_now(&state.second, at, now, change.part(part))
            }
            Some(_) => Err(PolicyError::NoPart { part, parts: Self::PARTS }),
        }
    }

    /// Returns a change of one of the two policies, if the other one has equal terms.
    fn change_to(&self, new: &Self) -> Option<Change> {
        let second = self.second.change_to(&new.second);
        if second.is_some() && second == self.second.change_to(&self.second) {
            let first = self.first.change_to(&new.first)?;
            return Some(first.part(first.part.unwrap_or(0)));
        }
        let first = self.first.change_to(&new.first);
        if first.is_none() || first != self.first.change_to(&self.first) {
            return None;
        }
        second.map(|second| second.part(P::PARTS + second.part.unwrap_or(0)))
    }

    /// Returns the rate of the first policy.
    fn rate(&self) -> Rate {
        self.first.rate()
    }

    fn status(&self, state: &Self::State, at: Nanos) -> PolicyStatus {
        let first = self.first.status(&state.first, at);
        stricter(first, self.second.status(&state.second, at))
    }

    fn left(&self, state: &Self::State, charge: Self::Charge, at: Nanos) -> PolicyStatus {
        let first = charge.first.map(|charge| self.first.left(&state.first, charge, at));
        let second = charge.second.map(|charge| self.second.left(&state.second, charge, at));
        let first = first.unwrap_or_else(|| self.first.status(&state.first, at));
        stricter(first, second.unwrap_or_else(|| self.second.status(&state.second, at)))
    }

    fn is_fresh(&self, state: &Self::State, at: Nanos) -> bool {
        self.first.is_fresh(&state.first, at) && self.second.is_fresh(&state.second, at)
    }

    fn restart(&self, now: Nanos) -> Self::State {
        BothState { first: self.first.restart(now), second: self.second.restart(now) }
    }

    fn catches_up(&self) -> bool {
        self.first.catches_up() && self.second.catches_up()
    }

    fn max_wait(&self) -> Duration {
        self.first.max_wait().min(self.second.max_wait())
    }

    fn with_epoch(self, unix_time_at_zero: Duration) -> Self {
        Both {
            first: self.first.with_epoch(unix_time_at_zero),
            second: self.second.with_epoch(unix_time_at_zero),
        }
    }
}
