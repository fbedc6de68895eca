//! Permits that are charged or put back without a request: debits, refunds, `keep_at_most`, resets.

use crate::clock::Timer;
use crate::limiter::RateLimiter;
use crate::limiter::shared::Shared;
use crate::line::grants::Changed;
use crate::line::rule::{Rule, Single};
use crate::line::settings::Drift;
use crate::policy::{Change, Policy};
use crate::time::Nanos;

/// Changes of the state of a single limiter: a plain one, a key's, or a member of a composite.
impl<P: Policy, C: Timer> Shared<Single<P>, C> {
    /// Charges `n` permits, even if they are not available: then the limiter owes the rest.
    pub(crate) fn debit(&self, n: u32) {
        self.debit_ahead(n, Nanos::ZERO);
    }

    /// Like [`debit`](Shared::debit), at a time `ahead` of now.
    pub(crate) fn debit_ahead(&self, n: u32, ahead: Nanos) {
        self.serve_then(|line, visit| {
            let Single { policy, state } = &self.rule;
            policy.debit(state, line.latest().saturating_add(ahead), n);
            line.debited(n);
            self.retime(line, visit);
        });
    }

    /// Gives back permits that were acquired and not used.
    pub(crate) fn refund(&self, n: u32) {
        self.serve_then(|line, _| {
            let at = line.latest();
            line.refund(&self.rule, n, |part| self.rule.of_part(None, part, |part| part.refund(at, n)));
        });
    }

    /// Takes the permits that are available beyond `permits`. Returns how many it took.
    pub(crate) fn keep_at_most(&self, permits: u64) -> u64 {
        self.serve_then(|line, visit| {
            // A pause withholds permits, and so does its pace after it.
            let most = line.paced(&self.rule, line.latest()).min(line.stocked());
            line.stock_at_most(&self.rule, permits);
            let Single { policy, state } = &self.rule;
            let withheld = policy.status(state, visit.now).available.saturating_sub(most);
            let taken = policy.keep_at_most(state, visit.now, permits.saturating_add(withheld));
            line.count_in_pace(taken);
            if taken > 0 {
                self.retime(line, visit);
            }
            taken
        })
    }

    /// Resets the state to that of a new limiter, and ends a pause.
    pub(crate) fn reset(&self) {
        let Single { policy, state } = &self.rule;
        self.change_and_report(
            |line, visit| {
                let resumed = line.reset_pause();
                self.lateness.clear();
                // No policy refuses a reset.
                let reset = || policy.change(state, visit.now, Change::reset());
                let changed = Changed::by(&Change::reset(), Drift::Apart);
                let _ = line.change(&self.rule, changed, reset);
                self.retime(line, visit);
                resumed.then_some(())
            },
            |events, ()| events.resumed(),
        );
    }
}

/// Permits that are charged or put back without a request. Waiters move at once.
impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// Charges `n` permits, even if fewer are available: for work that was done without a request,
    /// or that a server counted. Waiters move back at once, and a request
    /// [within](RateLimiter::acquire_within) a time that can no longer be met is refused.
    ///
    /// The limiter owes the permits that were not available, and grants no request until its
    /// negative balance is paid. Each policy defines how it owes, see [`Policy::debit`]: an
    /// unlimited policy charges nothing, and a balance beyond the clock's 34 years blocks the
    /// limiter until it is [refunded](RateLimiter::refund) or [reset](RateLimiter::reset). Zero
    /// does nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// limiter.debit(20);
    /// // Ten are owed, and one more is needed.
    /// assert_eq!(
    ///     limiter.try_acquire().unwrap_err().retry_after(),
    ///     Some(Duration::from_millis(2200))
    /// );
    /// ```
    pub fn debit(&self, n: u32) {
        self.shared.debit(n);
    }

    /// Takes all permits that are available now, and returns how many it took. Call it when a
    /// server reports that it has no permits left. If the server also reports a time to retry,
    /// [pause](RateLimiter::pause_for) the limiter.
    ///
    /// New permits accrue as before. An unlimited policy has no permits to take. Waiters stay in
    /// the queue, and move back if some of their permits were available already.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// assert_eq!(limiter.drain(), 10);
    /// assert_eq!(
    ///     limiter.try_acquire().unwrap_err().retry_after(),
    ///     Some(Duration::from_millis(200))
    /// );
    /// ```
    pub fn drain(&self) -> u64 {
        self.keep_at_most(0)
    }

    /// Takes the permits that are available now beyond `permits`, and returns how many it took.
    /// Call it when a server reports how many permits it has left. It never adds permits.
    ///
    /// The call is one atomic step with respect to concurrent requests: each permit that such a
    /// request takes is one that this call need not take. New permits accrue as before, and permits
    /// that are [settled](crate::Reservation::settle), [refunded](RateLimiter::refund) or undone
    /// later are added on top. An unlimited policy has no permits to take. During a pause it lowers
    /// the permits with which the limiter continues.
    ///
    /// A permit that was granted to a waiter stays taken, whether or not its task has run. A permit
    /// that the first waiter is still saving up for counts as available. So no waiter moves up, and
    /// waiters move back if some of their permits were available already.
    ///
    /// | policy | how `permits` are left |
    /// |---|---|
    /// | a rate or a bucket | as if requests for one permit had taken the others: the next permit accrues at its usual time |
    /// | a window or a log | as if requests for one permit had taken the others now: they come back with the window |
    /// | [`SmoothWarmingUp`](crate::SmoothWarmingUp) | it has at most one permit, so only 0 takes anything |
    /// | [`Both`](crate::Both) | in the policy that has fewer; the other policy is charged the same number |
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// // Another client took permits as well: `RateLimit-Remaining: 40`.
    /// assert_eq!(limiter.keep_at_most(40), 20);
    /// assert_eq!(limiter.keep_at_most(50), 0);
    /// assert_eq!(limiter.status().available, 40);
    /// ```
    pub fn keep_at_most(&self, permits: u64) -> u64 {
        self.shared.keep_at_most(permits)
    }

    /// Resets the limiter to its start: as full as it began, without a negative balance, and not
    /// paused. Waiters are served with the permits that become available.
    ///
    /// The settings stay: rate and burst, [bounds](RateLimiter::set_queue_bounds), the [kept
    /// share](RateLimiter::keep_for_priority), [shadow mode](RateLimiter::set_shadow) and the
    /// [observer](RateLimiter::observe).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// limiter.debit(1000);
    /// limiter.reset();
    /// assert_eq!(limiter.status().available, 10);
    /// ```
    pub fn reset(&self) {
        self.shared.reset();
    }
}
