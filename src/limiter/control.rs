//! What a limiter is told at run time: pauses, debts, bounds, a kept share, shadow, and who
//! watches.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timer;
use crate::limiter::RateLimiter;
use crate::limiter::events::Events;
use crate::limiter::gate_word::{PAUSED, SHADOW};
use crate::limiter::shared::Shared;
use crate::line::rule::{Rule, Single};
use crate::line::settings::KeptShare;
use crate::policy::{Change, Policy};
use crate::request::QueueBounds;
use crate::time::Nanos;

/// Whatever the rule is.
impl<R: Rule<C>, C: Timer> Shared<R, C> {
    /// Whoever watches, from now on. `false` if somebody does already.
    pub(crate) fn observe(&self, events: Arc<dyn Events>) -> bool {
        let first = self.events.observe(events);
        self.visit(|line, _| line.settings.watched = true);
        first
    }

    /// Nobody passes before `until`, nor before the end of an earlier pause.
    pub(crate) fn pause_until(&self, until: Nanos) {
        let remaining = self.visit(|line, visit| {
            let now = visit.now;
            if until <= line.settings.opens.max(now) {
                return None;
            }
            line.settings.opens = until;
            // Nothing is charged as of a time before the end of the pause.
            self.lateness.clear();
            self.retime(line, visit);
            Some(until.saturating_since(now))
        });
        if let Some(remaining) = remaining {
            self.report(|events| events.paused(remaining.as_duration()));
        }
    }

    /// Nobody passes for so long from now.
    pub(crate) fn pause_for(&self, span: Duration) {
        self.pause_until(self.clock.now().saturating_add(Nanos::from_duration(span)));
    }

    /// Ends a pause. Returns whether there was one.
    pub(crate) fn resume(&self) -> bool {
        let paused = self.visit(|line, visit| line.settings.resume(visit.now));
        if paused {
            self.report(|events| events.resumed());
        }
        paused
    }

    /// Lets everybody pass, those in line at once, or not.
    pub(crate) fn set_shadow(&self, shadow: bool) {
        self.visit(|line, _| line.settings.shadow = shadow);
    }

    /// Whether everybody passes.
    pub(crate) fn is_shadow(&self) -> bool {
        self.gate_word.load().has(SHADOW)
    }

    /// Bounds the line, for those who join it from now on.
    pub(crate) fn set_bounds(&self, bounds: QueueBounds) {
        self.visit(|line, _| line.settings.bounds = bounds);
    }

    /// Keeps so many permits for requests of this priority or a higher one.
    pub(crate) fn keep_for_priority(&self, permits: u32, from: i8) {
        self.visit(|line, visit| {
            let kept = Some(KeptShare { permits, from });
            line.settings.kept = kept.filter(|kept| kept.permits > 0 && kept.from > i8::MIN);
            self.retime(line, visit);
        });
    }

    /// How long nobody passes.
    pub(crate) fn paused_for(&self) -> Duration {
        if !self.gate_word.load().has(PAUSED) {
            return Duration::ZERO;
        }
        self.visit(|line, visit| line.settings.opens.saturating_since(visit.now).as_duration())
    }
}

/// What only a policy knows how to do.
impl<P: Policy, C: Timer> Shared<Single<P>, C> {
    /// Charges permits whether they are there or not.
    pub(crate) fn debit(&self, n: u32) {
        let Single { policy, state } = &self.rule;
        self.visit(|line, visit| {
            policy.debit(state, visit.now, n);
            line.debited();
            self.retime(line, visit);
        });
    }

    /// Takes all that is there. Returns how much that was.
    pub(crate) fn drain(&self) -> u64 {
        let Single { policy, state } = &self.rule;
        self.visit(|line, visit| {
            let (mut taken, mut part) = (0, u32::MAX);
            // Others may take at the same time, so what is there is asked for again: until there is
            // nothing, or not to be had at once.
            while part > 0 {
                let status = policy.status(state, visit.now);
                if status.limit == u64::MAX || status.available == 0 {
                    break;
                }
                let n = u32::try_from(status.available).unwrap_or(u32::MAX).min(part);
                match policy.try_acquire(state, visit.now, n) {
                    Ok(_) => taken += u64::from(n),
                    Err(_) => part = n / 2,
                }
            }
            self.retime(line, visit);
            taken
        })
    }

    /// As a new limiter: full or empty as it started, and not paused.
    pub(crate) fn reset(&self) {
        let Single { policy, state } = &self.rule;
        let resumed = self.visit(|line, visit| {
            let resumed = line.settings.resume(visit.now);
            self.lateness.clear();
            // No policy refuses it.
            let _ = line.change(&self.rule, || policy.change(state, visit.now, Change::reset()));
            self.retime(line, visit);
            resumed
        });
        if resumed {
            self.report(|events| events.resumed());
        }
    }
}

/// At run time, from any clone, and at once for those who wait.
impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// Lets nobody pass before the time `until` of the limiter's [clock](RateLimiter::clock), also
    /// those who already wait.
    ///
    /// Who [waits](RateLimiter::acquire) is moved, a request
    /// [within](RateLimiter::acquire_within) a time that can no longer be met is refused at
    /// once, and a `try_` is told when it would succeed: after the pause, and after those in line.
    /// A time in the past does nothing, and neither does one before the end of a pause that lasts
    /// longer: several callers that were told to wait may all pause, and the longest counts.
    /// [`resume`](RateLimiter::resume) ends a pause; [`Nanos::MAX`] waits for that.
    ///
    /// Permits go on coming in meanwhile, as far as there is room for them. If they are not to,
    /// [`drain`](RateLimiter::drain) the limiter when the pause ends, or
    /// [`debit`](RateLimiter::debit) it now. Nothing is charged as of a time before the pause
    /// ended, so a late timer gains nothing by it.
    ///
    /// A call that begins after this has returned obeys the pause; one that overlaps with it may
    /// pass. Of those who wait, the first 4,096 are looked at; one behind them that is too late now
    /// is refused at the end of its time.
    pub fn pause_until(&self, until: Nanos) {
        self.shared.pause_until(until);
    }

    /// [`pause_until`](RateLimiter::pause_until) so long from now: what a server's `Retry-After`
    /// asks for.
    ///
    /// Zero does nothing. [`Duration::MAX`] pauses until somebody [resumes](RateLimiter::resume).
    ///
    /// After a refusal by the server pause first, and settle an
    /// [reservation](RateLimiter::reserve) then: what it gives back is granted at once to
    /// those who wait. A call that is made again goes to the end of the line, unless it is more
    /// [important](crate::Request::priority).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, SmoothBursty};
    ///
    /// let clock = ManualClock::new();
    /// let limiter = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(5)), clock.clone());
    /// limiter.pause_for(Duration::from_secs(30));
    /// let refusal = limiter.try_acquire().unwrap_err();
    /// assert_eq!(refusal.retry_after(), Some(Duration::from_secs(30)));
    /// clock.advance(Duration::from_secs(30));
    /// limiter.try_acquire()?;
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn pause_for(&self, span: Duration) {
        self.shared.pause_for(span);
    }

    /// Ends a pause now. Those who wait and are due pass at once. Returns whether there was a
    /// pause.
    pub fn resume(&self) -> bool {
        self.shared.resume()
    }

    /// Bounds the queue: how many may wait, for how many permits, and who makes room. Without
    /// bounds unless set.
    ///
    /// For those who come from now on; those who wait already stay, also if they are too many.
    /// [`QueueBounds`] says whom it refuses, and that [`acquire`](RateLimiter::acquire) is not
    /// among them.
    pub fn set_queue_bounds(&self, bounds: QueueBounds) {
        self.shared.set_bounds(bounds);
    }

    /// Keeps `permits` of the burst for requests of the priority `from` or a higher one: a request
    /// below it is granted only if so many remain afterwards. Zero permits keep nothing, as a new
    /// limiter.
    ///
    /// What is left is what single calls could get one after the other, which with Guava's two
    /// policies includes the one on credit. A request below `from` that asks for more than the
    /// burst less what is kept can never be granted: it is refused with
    /// [`ExceedsLimit`](crate::Refusal::ExceedsLimit), which tells the smaller burst. A single
    /// permit is not refused but waits, for ever if all are kept. Calls without a priority have
    /// priority 0. Those who wait are moved.
    ///
    /// Looking how many are left and taking are two steps, so while anything is kept every call
    /// takes the queue's lock.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, Request, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(1), 10);
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// limiter.keep_for_priority(4, 1);
    /// limiter.try_acquire_many(6)?;
    /// assert!(limiter.try_acquire().is_err());
    /// limiter.try_acquire_many(Request::permits(4).priority(1))?;
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn keep_for_priority(&self, permits: u32, from: i8) {
        self.shared.keep_for_priority(permits, from);
    }

    /// Lets every call pass, or ends that: to see what a limit would do before it does it.
    ///
    /// The limiter decides as ever, and those who [watch](RateLimiter::observe) are told of each
    /// call that would have been refused, or would have waited, and how long. Then the call passes,
    /// with zero time waited, and takes nothing, as if it had been refused. Nobody waits: those in
    /// line pass at once. That goes for all refusals, and for pauses.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, SmoothBursty, Statistics};
    ///
    /// let limiter = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(1)), ManualClock::new());
    /// let statistics = Arc::new(Statistics::new());
    /// limiter.observe(statistics.clone());
    /// limiter.set_shadow(true);
    /// for _ in 0..5 {
    ///     limiter.try_acquire()?;
    /// }
    /// assert_eq!(statistics.snapshot().granted, 1);
    /// assert_eq!(statistics.snapshot().shadowed, 4);
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn set_shadow(&self, shadow: bool) {
        self.shared.set_shadow(shadow);
    }

    /// Whether every call passes.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shared.is_shadow()
    }

    /// Tells `events` of every call from now on. Returns `false` if the limiter is watched already;
    /// then nothing was changed.
    ///
    /// Once for each limiter, and for all its clones. A limiter that is not watched pays nothing
    /// for it. One that is takes a longer way to the same decision, still without a lock while
    /// nobody waits; [`Events`] has an example.
    pub fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.shared.observe(events)
    }

    /// Charges `n` permits whether they are there or not: for work that was done without asking, or
    /// that a server counted. Those who wait move back at once, and a request
    /// [within](RateLimiter::acquire_within) a time that can no longer be met is refused.
    ///
    /// What is not there is owed, and everybody waits until it is paid. How a policy owes is its
    /// own rule, see
    /// [`Policy::debit`]: where there is no limit nothing is charged, and a debt beyond the clock's 34 years shuts
    /// the limiter until it is [refunded](RateLimiter::refund) or [reset](RateLimiter::reset). Zero
    /// does nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), 10), ManualClock::new());
    /// limiter.debit(20);
    /// // Ten are owed, and one more is needed.
    /// assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(Duration::from_millis(2200)));
    /// ```
    pub fn debit(&self, n: u32) {
        self.shared.debit(n);
    }

    /// Takes all permits that are there now: after a server's 429, which says that there are none.
    /// Returns how many that were.
    ///
    /// New ones come in as ever. Without a limit there is nothing to take. Those who wait stay in
    /// line, and move back if some of what they wait for was there already.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), 10), ManualClock::new());
    /// assert_eq!(limiter.drain(), 10);
    /// assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(Duration::from_millis(200)));
    /// ```
    pub fn drain(&self) -> u64 {
        self.shared.drain()
    }

    /// Makes the limiter as new: as full as it started, owing nothing, and not paused. Those who
    /// wait are served as far as that goes.
    ///
    /// What it was told to be stays: rate and burst, [bounds](RateLimiter::set_queue_bounds), what
    /// it [keeps](RateLimiter::keep_for_priority), [shadow](RateLimiter::set_shadow) and who
    /// [watches](RateLimiter::observe).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), 10), ManualClock::new());
    /// limiter.debit(1000);
    /// limiter.reset();
    /// assert_eq!(limiter.status().available, 10);
    /// ```
    pub fn reset(&self) {
        self.shared.reset();
    }
}
