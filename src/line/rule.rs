//! Rules: what a queue asks for permits. A rule is a policy with its state, one key of many, or
//! several limiters at once.

use std::fmt::Debug;
use std::time::Duration;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::line::deferred::Deferred;
use crate::line::sizes::Sizes;
use crate::policy::part::{self, Part};
use crate::policy::{Crowd, Forecast, Policy, PolicyStatus, Standstill};
use crate::time::Nanos;

/// Decides about requests. The queue adds the waiting.
///
/// The methods that take a [`Deferred`] are called with the lock of the queue held, and leave work
/// there that must be done without the lock.
pub(crate) trait Rule: Send + Sync + 'static {
    /// The permits that one request asks for.
    type Ask: Clone + Debug + PartialEq + Send + 'static;

    /// The sum of the requests that go first.
    type Ahead: Clone + Default + Debug + Send + 'static;

    /// The permits that one grant took, and what the policy needs to undo it.
    type Charge: Debug + Send + 'static;

    /// Returns an error if such a request can never be granted.
    fn check(&self, ask: &Self::Ask) -> Result<(), Refusal>;

    /// Returns the refusal that the caller gets, given the refusal by the queue. Called without any
    /// lock.
    fn refusal_for_caller(&self, ask: &Self::Ask, refusal: Refusal) -> Refusal {
        let _ = ask;
        refusal
    }

    /// Returns how many permits a request asks for, to count them.
    fn permits(&self, ask: &Self::Ask) -> u64;

    /// Adds a request that goes first, behind the requests that are `ahead`.
    fn add(&self, ahead: &mut Self::Ahead, ask: &Self::Ask);

    /// Removes one of the requests `ahead`, which no longer goes first.
    fn subtract(&self, ahead: &mut Self::Ahead, ask: &Self::Ask);

    /// Adds all requests of `more`, which go first, too, behind the requests that are `ahead`.
    fn merge(&self, ahead: &mut Self::Ahead, more: &Self::Ahead);

    /// Removes the requests of `less`, which no longer go first.
    fn unmerge(&self, ahead: &mut Self::Ahead, less: &Self::Ahead);

    /// Returns whether the rule must [find](Rule::find_last) the last request of `ahead` that asks
    /// for something that this request does not ask for. This request waits for that, too. Only a
    /// composite returns true.
    fn needs_last(&self, ahead: &Self::Ahead, ask: &Self::Ask) -> bool {
        let _ = (ahead, ask);
        false
    }

    /// Notes a request of `ahead`. Earlier calls have noted all requests behind it.
    fn find_last(&self, ahead: &mut Self::Ahead, before: &Self::Ask) {
        let _ = (ahead, before);
    }

    /// Takes all permits of the request as of `now`, or none. Called without any lock.
    fn try_take(&self, now: Nanos, ask: &Self::Ask) -> Result<Self::Charge, Refusal>;

    /// Takes all permits of the request as of `at`, or none. `at` is `now`, or a moment before.
    fn take(
        &self,
        at: Nanos,
        now: Nanos,
        ask: &Self::Ask,
        deferred: &mut Deferred,
    ) -> Result<Self::Charge, Refusal>;

    /// Returns the request for as many permits as are available at a time, for a request that takes
    /// `ask` or more: at most `most`, no more than the queue leaves to it, and not less than `ask`.
    /// It takes nothing: another request may take some of the permits before this one does.
    fn as_many(&self, at: Nanos, ask: &Self::Ask, most: u32, line: TakeLimit) -> Self::Ask;

    /// Returns when a request is due behind all requests that are `ahead`, if it must leave `kept`
    /// permits.
    fn ready_at(&self, now: Nanos, ahead: &Self::Ahead, ask: &Self::Ask, kept: u32) -> Nanos;

    /// Refuses a request that can never be granted because `kept` permits are kept.
    fn check_leaving(&self, now: Nanos, ask: &Self::Ask, kept: u32) -> Result<(), Refusal> {
        let _ = (now, ask, kept);
        Ok(())
    }

    /// Returns how many permits one request asks for. `None` if a sum of requests cannot be
    /// computed from their sizes.
    fn size(&self, ask: &Self::Ask) -> Option<u32>;

    /// Returns the weight of requests of these sizes at the current rate. `None` if sizes do not
    /// determine it.
    fn weigh(&self, sizes: &Sizes) -> Option<Self::Ahead>;

    /// Returns how many requests, from the head on, must be forecast one by one before the sum of
    /// the others determines the rest; see [`Policy::one_by_one`].
    fn one_by_one(&self, largest: u32) -> usize;

    /// Returns whether sums of requests behind those that are forecast one by one can be added to a
    /// forecast.
    fn forecasts_crowds(&self) -> bool {
        true
    }

    /// Begins a forecast of the grants from `now` on.
    fn forecast(&self, now: Nanos) -> Forecast;

    /// Returns when a request is due behind all requests in the forecast, if it must leave `kept`
    /// permits. Adds the request to the forecast.
    fn predict(&self, forecast: &mut Forecast, ask: &Self::Ask, kept: u32) -> Nanos;

    /// Adds many requests, of which only sums are known, to the forecast.
    fn predict_many(&self, forecast: &mut Forecast, crowd: &Crowd, weight: &Self::Ahead);

    /// Pauses one part; see [`Policy::pause`].
    fn pause(&self, part: usize, stop: Standstill) -> Option<u64>;

    /// Notes that a pause of this queue will leave the rule empty at this time, or that no pause
    /// will do so. Only the rule of a composite passes this on, to its members.
    fn empty_at(&self, at: Option<Nanos>, deferred: &mut Deferred) {
        let _ = (at, deferred);
    }

    /// Returns whether a part can stand still in a pause. A window part cannot: it counts in real
    /// time.
    fn stands_still(&self, part: usize) -> bool;

    /// See [`Policy::forecast_pause`].
    fn forecast_pause(&self, stop: Standstill) -> Option<Forecast>;

    /// Returns when a request is due after a pause, not before `at`, behind all requests that are
    /// `ahead`, if it must leave `kept` permits.
    fn ready_after_pause(
        &self,
        stop: Standstill,
        at: Nanos,
        ahead: &Self::Ahead,
        ask: &Self::Ask,
        kept: u32,
    ) -> Nanos;

    /// Returns how many permits requests of this total weight ask for, or a few more.
    fn permits_in(&self, ahead: &Self::Ahead) -> u64 {
        let _ = ahead;
        0
    }

    /// Calls `ask` with one part of the policy, and with what a grant took of it. A composite does
    /// not call it: its only part stands still, and its members space their own grants.
    fn of_part<T: Default>(
        &self,
        charge: Option<&Self::Charge>,
        part: usize,
        ask: impl FnOnce(&dyn Part) -> T,
    ) -> T {
        let _ = (charge, part, ask);
        T::default()
    }

    /// See [`Policy::PARTS`].
    const PARTS: usize = 1;

    /// Like [`try_take`](Rule::try_take), for a rule of several [parts](Rule::PARTS). Another
    /// request may take the last permits of a part in between. Then `put_back` gets what was taken,
    /// and the value that `begin` returned before.
    fn take_all<B>(
        &self,
        now: Nanos,
        ask: &Self::Ask,
        begin: impl Fn() -> B,
        put_back: impl Fn(B, Self::Charge),
    ) -> Result<Self::Charge, Refusal> {
        let _ = (begin, put_back);
        self.try_take(now, ask)
    }

    /// Puts back what a grant took of a part; see [`Policy::undo`].
    fn undo(
        &self,
        now: Nanos,
        charge: &mut Self::Charge,
        part: usize,
        most: u64,
        deferred: &mut Deferred,
    ) -> u64;

    /// See [`Policy::moved`]. `None` if the grant took nothing of this part.
    fn moved(&self, charge: &Self::Charge, part: usize) -> Option<(u64, u64)>;

    /// See [`Policy::full_level`].
    fn full_level(&self, now: Nanos, part: usize) -> u64;

    /// See [`Policy::level_unit`].
    fn level_unit(&self, part: usize) -> (u64, u64);

    /// Returns whether the limiter records by how much its grants are late: see `line/lateness.rs`.
    fn records_lateness(&self) -> bool {
        self.catches_up()
    }

    /// Notes that a waiter collects its grant. Called without any lock.
    fn note_collected(&self, charge: &Self::Charge) {
        let _ = charge;
    }

    /// Notes the first request in the queue, and the time until which it waits if nothing changes;
    /// or that no request is in the queue. Called whenever the queue was served. Returns when the
    /// queue must be checked, if that is earlier.
    fn note_head(&self, now: Nanos, first: Option<(&Self::Ask, Nanos)>, deferred: &mut Deferred) -> Nanos {
        let _ = (now, first, deferred);
        Nanos::MAX
    }

    /// Notes that no request of this priority is in the queue any longer.
    fn priority_emptied(&self, priority: i8, deferred: &mut Deferred) {
        let _ = (priority, deferred);
    }

    /// Returns what has changed since the last call of this method without the lock of the queue.
    /// Only the members of a composite change anything.
    fn changes(&self) -> Changes {
        Changes::Nothing
    }

    /// Returns whether a request may have to wait for permits in use, about which the due time says
    /// nothing. If it is not the first, the requests before it may wait for such permits.
    fn may_lack_permits(&self, _ask: &Self::Ask, _is_first: bool) -> bool {
        false
    }

    /// Returns whether a late grant may be charged as of the time it was due.
    fn catches_up(&self) -> bool;

    /// Returns the maximum wait of this request.
    fn max_wait(&self, ask: &Self::Ask) -> Duration;
}

/// What the members of a composite have changed for the requests in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changes {
    Nothing,
    /// When requests are due, or whether they can be granted.
    Times,
    /// The weights of requests, so that the sums of the queue are outdated; and the times.
    Weights,
}

/// What a queue leaves to a request that takes as many permits as are available.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakeLimit {
    /// The most permits that a request may take now.
    pub(crate) most: u64,
    /// The permits that are kept for others.
    pub(crate) kept: u64,
}

impl TakeLimit {
    /// No request waits, and no permits are kept.
    pub(crate) const FREE: TakeLimit = TakeLimit { most: u64::MAX, kept: 0 };

    /// Returns how many of the available permits are left to a request.
    pub(crate) fn of(self, available: u64) -> u64 {
        available.min(self.most).saturating_sub(self.kept)
    }

    /// Returns how many of the available permits a request takes that asks for `n` or more.
    pub(crate) fn more_of(self, available: u64, n: u32, most: u32) -> u32 {
        u32::try_from(self.of(available)).unwrap_or(u32::MAX).min(most).max(n)
    }
}

/// One policy and its state.
#[derive(Debug)]
pub(crate) struct Single<P: Policy> {
    pub(crate) policy: P,
    pub(crate) state: CachePadded<P::State>,
}

/// A value on cache lines of its own. Each grant takes the cache line of the state away from all
/// other threads, and would take neighbouring data with it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(T);

impl<T> std::ops::Deref for CachePadded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<P: Policy> Single<P> {
    pub(crate) fn new<C: Timer>(policy: P, clock: &C) -> Single<P> {
        let policy = policy.with_epoch(clock.unix_time_at_zero());
        let state = policy.start(clock.now());
        Single::with_state(policy, state)
    }

    pub(crate) fn with_state(policy: P, state: P::State) -> Single<P> {
        Single { policy, state: CachePadded(state) }
    }

    #[cfg(feature = "keyed")]
    pub(crate) fn into_parts(self) -> (P, P::State) {
        (self.policy, self.state.0)
    }

    pub(crate) fn status(&self, at: Nanos) -> PolicyStatus {
        self.policy.status(&self.state, at)
    }

    /// Returns the largest request that can be granted if `kept` permits are kept.
    fn left_by(&self, now: Nanos, kept: u32) -> u64 {
        self.status(now).limit.saturating_sub(kept.into())
    }
}

impl<P: Policy> Rule for Single<P> {
    type Ask = u32;
    /// 2^32 weights of 2^64 cannot overflow this type.
    type Ahead = u128;
    type Charge = P::Charge;

    #[inline]
    fn check(&self, n: &u32) -> Result<(), Refusal> {
        self.policy.check(*n)
    }

    fn permits(&self, n: &u32) -> u64 {
        u64::from(*n)
    }

    fn add(&self, ahead: &mut u128, n: &u32) {
        *ahead += u128::from(self.policy.weight(*n));
    }

    fn subtract(&self, ahead: &mut u128, n: &u32) {
        *ahead = ahead.saturating_sub(u128::from(self.policy.weight(*n)));
    }

    fn merge(&self, ahead: &mut u128, more: &u128) {
        *ahead = ahead.saturating_add(*more);
    }

    fn unmerge(&self, ahead: &mut u128, less: &u128) {
        *ahead = ahead.saturating_sub(*less);
    }

    #[inline]
    fn try_take(&self, now: Nanos, n: &u32) -> Result<P::Charge, Refusal> {
        self.policy.try_acquire(&self.state, now, *n)
    }

    #[inline]
    fn take(&self, at: Nanos, _now: Nanos, n: &u32, _deferred: &mut Deferred) -> Result<P::Charge, Refusal> {
        self.policy.try_acquire(&self.state, at, *n)
    }

    fn as_many(&self, at: Nanos, n: &u32, most: u32, line: TakeLimit) -> u32 {
        line.more_of(self.status(at).available, *n, most)
    }

    /// If permits are kept, returns the time at which the policy could grant these as well: the
    /// later of the times for all at once and for one by one, because some policies grant on
    /// credit.
    fn ready_at(&self, now: Nanos, ahead: &u128, n: &u32, kept: u32) -> Nanos {
        let Single { policy, state } = self;
        let ready_at =
            |ahead: u128, n| policy.ready_at(state, now, u64::try_from(ahead).unwrap_or(u64::MAX), n);
        let due = ready_at(*ahead, *n);
        if kept == 0 {
            return due;
        }
        if P::PARTS > 1 && *ahead == 0 {
            // Like the forecast of the queue. The sum below is rounded for each permit.
            return self.predict(&mut self.forecast(now), n, kept);
        }
        if self.left_by(now, kept) < u64::from(*n) {
            return Nanos::MAX;
        }
        let others = u128::from(policy.weight(*n)) + u128::from(policy.weight(kept - 1));
        let one_by_one = ready_at(ahead.saturating_add(others), 1);
        due.max(one_by_one).max(ready_at(*ahead, n.saturating_add(kept)))
    }

    /// No policy refuses a request for one permit for good, so this does not either.
    fn check_leaving(&self, now: Nanos, n: &u32, kept: u32) -> Result<(), Refusal> {
        let left = self.left_by(now, kept);
        if *n == 1 || u64::from(*n) <= left {
            return Ok(());
        }
        Err(Refusal::ExceedsLimit { requested: *n, limit: u32::try_from(left).unwrap_or(u32::MAX) })
    }

    fn size(&self, n: &u32) -> Option<u32> {
        Some(*n)
    }

    fn weigh(&self, sizes: &Sizes) -> Option<u128> {
        Some(sizes.weigh(|n| self.policy.weight(n)))
    }

    fn one_by_one(&self, largest: u32) -> usize {
        self.policy.one_by_one(largest)
    }

    fn forecast(&self, now: Nanos) -> Forecast {
        self.policy.forecast(&self.state, now)
    }

    /// Returns the time at which the policy could grant the kept permits as well: the later of the
    /// times for all at once and for one by one, because some policies grant on credit.
    fn predict(&self, forecast: &mut Forecast, n: &u32, kept: u32) -> Nanos {
        let Single { policy, state } = self;
        if kept > 0 {
            if self.left_by(forecast.at, kept) < u64::from(*n) {
                return Nanos::MAX;
            }
            let mark = forecast.mark();
            let mut due = policy.predict(state, forecast, n.saturating_add(kept));
            forecast.rewind(&mark);
            for part in [*n, kept - 1, 1].into_iter().filter(|part| *part > 0) {
                due = due.max(policy.predict(state, forecast, part));
            }
            forecast.rewind(&mark);
            if due == Nanos::MAX {
                return due;
            }
            forecast.at = due;
        }
        policy.predict(state, forecast, *n)
    }

    fn predict_many(&self, forecast: &mut Forecast, crowd: &Crowd, weight: &u128) {
        let weight = u64::try_from(*weight).unwrap_or(u64::MAX);
        self.policy.predict_many(&self.state, forecast, &Crowd { weight, ..*crowd });
    }

    fn pause(&self, part: usize, stop: Standstill) -> Option<u64> {
        self.of_part(None, part, |part| part.pause(stop))
    }

    fn stands_still(&self, part: usize) -> bool {
        self.of_part(None, part, |part| part.stands_still())
    }

    fn forecast_pause(&self, stop: Standstill) -> Option<Forecast> {
        self.policy.forecast_pause(&self.state, stop)
    }

    fn ready_after_pause(&self, stop: Standstill, at: Nanos, ahead: &u128, n: &u32, kept: u32) -> Nanos {
        // Computes the time as if no part stood still.
        let ready_at = || self.ready_at(at, ahead, n, kept);
        let Some(mut forecast) = self.forecast_pause(stop) else { return ready_at() };
        forecast.at = forecast.at.max(at);
        if *ahead > 0 {
            self.predict_many(&mut forecast, &Crowd::new(0, 0, 0, 1), ahead);
        }
        let due = self.predict(&mut forecast, n, kept);
        // A window part does not forecast a sum. Any other part would be due no later if it did not
        // stand still.
        if P::PARTS > 1 { due.max(ready_at()) } else { due }
    }

    fn permits_in(&self, ahead: &u128) -> u64 {
        let one = u128::from(self.policy.weight(1)).max(1);
        u64::try_from(ahead.div_ceil(one)).unwrap_or(u64::MAX)
    }

    #[inline]
    fn of_part<T: Default>(
        &self,
        charge: Option<&P::Charge>,
        index: usize,
        ask: impl FnOnce(&dyn Part) -> T,
    ) -> T {
        let (mut ask, mut answer, mut at) = (Some(ask), T::default(), 0);
        self.policy.each_part(&self.state, charge.copied(), &mut |part| {
            if at == index
                && let Some(ask) = ask.take()
            {
                answer = ask(part);
            }
            at += 1;
        });
        answer
    }

    const PARTS: usize = P::PARTS;

    fn take_all<B>(
        &self,
        now: Nanos,
        n: &u32,
        begin: impl Fn() -> B,
        put_back: impl Fn(B, P::Charge),
    ) -> Result<P::Charge, Refusal> {
        part::take_all((&self.policy, &self.state), now, *n, begin, put_back)
    }

    fn undo(
        &self,
        now: Nanos,
        charge: &mut P::Charge,
        part: usize,
        most: u64,
        _deferred: &mut Deferred,
    ) -> u64 {
        self.of_part(Some(charge), part, |part| part.undo(now, most))
    }

    #[inline]
    fn moved(&self, charge: &P::Charge, part: usize) -> Option<(u64, u64)> {
        self.of_part(Some(charge), part, |part| part.moved())
    }

    #[inline]
    fn full_level(&self, now: Nanos, part: usize) -> u64 {
        self.of_part(None, part, |part| part.full_level(now))
    }

    fn level_unit(&self, part: usize) -> (u64, u64) {
        self.of_part(None, part, |part| part.level_unit())
    }

    fn catches_up(&self) -> bool {
        self.policy.catches_up()
    }

    fn max_wait(&self, _ask: &u32) -> Duration {
        self.policy.max_wait()
    }
}
