//! Settings that change at run time: pauses, debts, queue bounds, a kept share, shadow mode, and
//! the observer.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timer;
use crate::limiter::RateLimiter;
use crate::limiter::events::Events;
use crate::limiter::gate_word::{PAUSED, SHADOW};
use crate::limiter::pause::Pause;
use crate::limiter::shared::Shared;
use crate::line::rule::{OneRule, Rule, Single};
use crate::line::settings::KeptShare;
use crate::policy::{Change, Policy};
use crate::request::QueueBounds;
use crate::sync::lock;
use crate::time::Nanos;

/// Settings of any limiter: a plain one, a key's, or a composite.
impl<R: Rule<C>, C: Timer> Shared<R, C> {
    /// Sets the observer. Returns `false`, and changes nothing, if the limiter has one already.
    pub(crate) fn observe(&self, events: Arc<dyn Events>) -> bool {
        let first = self.events.observe(events);
        self.visit(|line, _| line.settings.observed = true);
        first
    }

    /// Grants no request before the end of the pause, nor before the end of an earlier one.
    pub(crate) fn pause(&self, pause: Pause) {
        let until = pause.end(self.clock.now());
        let remaining = self.visit(|line, visit| {
            let (changed, later) = line.pause(visit.rule, until, pause.keeps_stock);
            if changed {
                // A lateness from before the pause would charge a request as of a time in the
                // pause.
                self.lateness.clear();
                self.retime(line, visit);
            }
            later.then(|| until.saturating_since(visit.now))
        });
        if let Some(remaining) = remaining {
            self.report(|events| events.paused(remaining.as_duration()));
        }
    }

    /// Ends a pause. Returns whether there was one.
    pub(crate) fn resume(&self) -> bool {
        let paused = self.visit(|line, visit| {
            let paused = line.resume(visit.rule);
            if paused {
                self.retime(line, visit);
            }
            paused
        });
        if paused {
            self.report(|events| events.resumed());
        }
        paused
    }

    /// Grants no request any more, and refuses all that wait. Returns whether the limiter was open.
    pub(crate) fn close(&self) -> bool {
        self.visit(|line, visit| {
            let was_open = line.settings.close();
            self.lateness.clear();
            // Rings the composites. The waiters in line are refused when the line is served, at the
            // end of the visit.
            self.retime(line, visit);
            was_open
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.gate_word.load().has(PAUSED) && lock(&self.line).settings.closed
    }

    /// Turns shadow mode on or off. When it is turned on, the waiters in line pass at once.
    pub(crate) fn set_shadow(&self, shadow: bool) {
        let begins = self.visit(|line, _| {
            let was = line.settings.is_shadow();
            line.settings.shadow = shadow;
            shadow && !was
        });
        if begins {
            self.ring_seats();
        }
    }

    /// Lets the composites that wait here look for a time without this limiter, when shadow mode
    /// begins. Few at a time, so that other calls can have the lock.
    pub(crate) fn ring_seats(&self) {
        let mut next = Some(0);
        while let Some(place) = next {
            next = self.visit(|line, visit| line.seats.ring_from(place, visit.deferred));
        }
    }

    /// Whether the limiter is in shadow mode.
    pub(crate) fn is_shadow(&self) -> bool {
        self.gate_word.load().has(SHADOW)
    }

    /// Bounds the line, for requests that join it from now on.
    pub(crate) fn set_bounds(&self, bounds: QueueBounds) {
        self.visit(|line, _| line.settings.bounds = bounds);
    }

    /// Keeps `permits` for requests of the priority `from` or a higher one.
    pub(crate) fn keep_for_priority(&self, permits: u32, from: i8) {
        self.visit(|line, visit| {
            let kept = Some(KeptShare { permits, from });
            line.settings.kept = kept.filter(|kept| kept.permits > 0 && kept.from > i8::MIN);
            self.retime(line, visit);
        });
    }

    /// How long the pause still lasts; zero without one.
    pub(crate) fn paused_for(&self) -> Duration {
        if !self.gate_word.load().has(PAUSED) {
            return Duration::ZERO;
        }
        self.visit(|line, visit| line.settings.opens_for(visit.now).saturating_since(visit.now).as_duration())
    }
}

/// Changes of the state of a single limiter: a plain one, a key's, or a member of a composite.
impl<R: OneRule<C>, C: Timer> Shared<R, C> {
    /// Charges `n` permits, also if they are not available: the rest is owed.
    pub(crate) fn debit(&self, n: u32) {
        self.visit(|line, visit| {
            self.rule.debit(line.latest(), n);
            line.debited();
            self.retime(line, visit);
        });
    }

    /// Takes the permits that are available beyond so many. Returns how many it took.
    pub(crate) fn keep_at_most(&self, permits: u64) -> u64 {
        self.visit(|line, visit| {
            line.stock_at_most(&self.rule, permits);
            let taken = self.rule.keep_at_most(visit.now, permits);
            if taken > 0 {
                self.retime(line, visit);
            }
            taken
        })
    }
}

/// Changes of the policy's state.
impl<P: Policy, C: Timer> Shared<Single<P>, C> {
    /// Puts the state back to that of a new limiter, and ends a pause.
    pub(crate) fn reset(&self) {
        let Single { policy, state } = &self.rule;
        let resumed = self.visit(|line, visit| {
            let resumed = line.reset_pause();
            self.lateness.clear();
            // No policy refuses a reset.
            let _ = line.change(&self.rule, None, || policy.change(state, visit.now, Change::reset()));
            self.retime(line, visit);
            resumed
        });
        if resumed {
            self.report(|events| events.resumed());
        }
    }
}

/// Changes at run time. Each can be made from any clone, and holds at once for waiters, too.
impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// Closes the limiter for good. From then on no request gets a permit, and all waiters are
    /// refused at once with [`Refusal::Closed`](crate::Refusal::Closed): tasks, blocked threads and
    /// reservations. Permits that were granted before stay granted. Returns whether the limiter was
    /// open.
    ///
    /// Use it to end a program in which tasks or threads wait. An [exempt](crate::Request::exempt)
    /// request still passes. A composite that waits for this limiter is refused, too.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Rate, RateLimiter, Refusal};
    ///
    /// let limiter = RateLimiter::smooth_bursty(Rate::per_hour(1));
    /// limiter.blocking_acquire()?;
    /// let worker = std::thread::spawn({
    ///     let limiter = limiter.clone();
    ///     move || limiter.blocking_acquire() // would take an hour
    /// });
    /// limiter.close();
    /// assert_eq!(worker.join().unwrap(), Err(Refusal::Closed));
    /// assert_eq!(limiter.try_acquire(), Err(Refusal::Closed));
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn close(&self) -> bool {
        self.shared().close()
    }

    /// Whether the limiter was [closed](RateLimiter::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared().is_closed()
    }

    /// Pauses the limiter: grants no request before the time `until` of its
    /// [clock](RateLimiter::clock). The pause holds for requests that already wait, too.
    ///
    /// [Waiting](RateLimiter::acquire) requests are served after the pause. A request
    /// [within](RateLimiter::acquire_within) a time that the pause exceeds is refused at once. The
    /// `retry_after` of a refused `try_` call covers the pause and the waiters in line.
    ///
    /// Several callers may pause one limiter: the latest end counts. So a time in the past does
    /// nothing, and neither does a time before the end of the current pause.
    /// [`resume`](RateLimiter::resume) ends a pause; [`Nanos::MAX`] pauses until then.
    ///
    /// No permits come in during a pause. When it ends the limiter goes on as if it were empty:
    /// permits come in one interval apart, the first one an interval after the end. So no burst
    /// follows, and a pause that is told twice is one pause. [`Pause::keep_stock`] goes on with the
    /// permits that there were, and so does a [`resume`](RateLimiter::resume) before the end. A
    /// debt stays. A grant after the pause is never charged as of a time in the pause, even where
    /// the timer is late.
    ///
    /// | policy | after the pause |
    /// |---|---|
    /// | [`TokenBucket`](crate::TokenBucket), [`LeakyBucket`](crate::LeakyBucket), [`SmoothBursty`](crate::SmoothBursty) | is empty. A bucket in steps is filled at its next step |
    /// | [`SmoothWarmingUp`](crate::SmoothWarmingUp) | has granted a permit at the end; the time of the pause cools |
    /// | windows and logs | count in real time, as the server does. For one more window from the end on, the *k*th permit comes no earlier than *k* intervals after the end, so a whole window's permits do not come at once |
    /// | a [`FixedWindow`](crate::FixedWindow) that begins anew in that time | likewise; the windows after that are as ever |
    /// | [`Both`](crate::Both) | each of its policies as if it were alone |
    /// | other [`Policy`] | what [`Policy::pause`] says, or as a window |
    ///
    /// A call that begins after this method has returned obeys the pause; a call that overlaps with
    /// it may pass. The pause checks the deadlines of the first 4,096 waiters at once; a waiter
    /// behind them that is too late now is refused at its deadline.
    pub fn pause_until(&self, until: Nanos) {
        self.shared.pause(Pause::until(until));
    }

    /// [Pauses](RateLimiter::pause_until) for the time `span` from now, as a server's `Retry-After`
    /// asks for.
    ///
    /// Zero does nothing. [`Duration::MAX`] pauses until [`resume`](RateLimiter::resume) is called.
    ///
    /// After a refusal by the server, pause first, and settle a [reservation](RateLimiter::reserve)
    /// after that: otherwise the permits that it gives back are granted to waiters at once. A call
    /// that is repeated goes to the end of the line, unless it has a higher
    /// [priority](crate::Request::priority).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, SmoothBursty};
    ///
    /// let clock = ManualClock::new();
    /// let policy = SmoothBursty::new(Rate::per_second(5));
    /// let limiter = RateLimiter::with_clock(policy, clock.clone());
    /// limiter.pause_for(Duration::from_secs(30));
    /// let refusal = limiter.try_acquire().unwrap_err();
    /// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(30_200)));
    /// clock.advance(Duration::from_secs(30));
    /// assert!(limiter.try_acquire().is_err());
    /// clock.advance(Duration::from_millis(200));
    /// limiter.try_acquire()?;
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn pause_for(&self, span: Duration) {
        self.shared.pause(Pause::lasting(span));
    }

    /// [Pauses](RateLimiter::pause_until) as `pause` says.
    pub fn pause(&self, pause: Pause) {
        self.shared.pause(pause);
    }

    /// Ends a pause now, with the permits that the limiter had when it began, and the permits given
    /// back since. Waiters that are due are granted at once. Returns whether the limiter was
    /// paused.
    ///
    /// A window, which counts in real time, keeps no more permits than it had, and the others come
    /// back after a window's length.
    pub fn resume(&self) -> bool {
        self.shared.resume()
    }

    /// Bounds the queue: how many requests may wait, for how many permits, and which request makes
    /// room in a full queue. A new limiter has no bounds.
    ///
    /// The bounds hold for requests that come from now on; requests that already wait stay, even
    /// if they exceed the bounds. [`QueueBounds`] says which requests are refused;
    /// [`acquire`](RateLimiter::acquire) never is.
    pub fn set_queue_bounds(&self, bounds: QueueBounds) {
        self.shared.set_bounds(bounds);
    }

    /// Keeps `permits` of the burst for requests of the priority `from` or a higher one. A request
    /// of lower priority is granted only if `permits` remain afterwards. Zero keeps no permits, as
    /// in a new limiter.
    ///
    /// The remaining permits are the ones that single calls could get one after the other; with
    /// Guava's two policies they include the one on credit. A request below `from` that asks for
    /// more than the burst less the kept permits can never be granted: it is refused with
    /// [`ExceedsLimit`](crate::Refusal::ExceedsLimit), which tells the smaller burst. A request for
    /// a single permit is not refused but waits, for ever if all permits are kept. Calls without a
    /// priority have priority 0. Waiters that are served later by this move back.
    ///
    /// While permits are kept, every call takes the queue's lock, since counting the remaining
    /// permits and taking some are two steps. Late timers then lower the average where the burst
    /// less the kept permits is worth less than the lateness: permits that come in while the
    /// limiter is full are lost. And a reservation that is not polled is charged when a call looks
    /// at the line, which may be later than it was due; behind it, told times may be too early.
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

    /// Turns shadow mode on or off. In shadow mode every call passes, and the
    /// [observer](RateLimiter::observe) is told what the limit would have done.
    ///
    /// The limiter decides as usual. It tells the observer of each call that would have been
    /// refused, or would have waited, and how long. Such a call then passes at once and takes no
    /// permits. This holds for every kind of refusal, and for pauses. Requests that wait when
    /// shadow mode begins pass at once.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::{
    ///     ManualClock, Rate, RateLimiter, Refusal, SmoothBursty, Statistics,
    /// };
    ///
    /// let policy = SmoothBursty::new(Rate::per_second(1));
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
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

    /// Whether the limiter is in [shadow mode](RateLimiter::set_shadow).
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shared.is_shadow()
    }

    /// Sets the observer, which is told of every call from now on. Returns `false`, and changes
    /// nothing, if the limiter has an observer already.
    ///
    /// All clones of a limiter share the observer. A limiter without one pays nothing for this
    /// feature. With one, each call takes a few instructions more, and still no lock while no
    /// request waits. [`Events`] has an example.
    pub fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.shared.observe(events)
    }

    /// Charges `n` permits, also if fewer are available: for work that was done without asking, or
    /// that a server counted. Waiters move back at once, and a request
    /// [within](RateLimiter::acquire_within) a time that can no longer be met is refused.
    ///
    /// The limiter owes the permits that were not available, and grants no request until the debt
    /// is paid. Each policy says how it owes, see [`Policy::debit`]: an unlimited policy charges
    /// nothing, and a debt beyond the clock's 34 years shuts the limiter until it is
    /// [refunded](RateLimiter::refund) or [reset](RateLimiter::reset). Zero does nothing.
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

    /// Takes all permits that are available now, and returns how many it took, for a server that
    /// says that it has no permits left. If the server also says when to come back,
    /// [pause](RateLimiter::pause_for).
    ///
    /// New permits accrue as before. An unlimited policy has no permits to take. Waiters stay in
    /// line, and move back if some of their permits were available already.
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

    /// Takes the permits that are available now beyond `permits`, and returns how many it took: for
    /// a server that says how many permits it has left. It never adds permits.
    ///
    /// It is one step beside requests that take permits at the same time: a permit that such a
    /// request takes is one that this call need not take. New permits accrue as before, and permits
    /// that are [settled](crate::Reservation::settle), [refunded](RateLimiter::refund) or undone
    /// later come on top. An unlimited policy has no permits to take. In a pause it lowers the
    /// permits that the limiter goes on with.
    ///
    /// A permit that was granted to a waiter is taken, whether or not its task has run. A permit
    /// that the first waiter still saves up for counts as available. So no waiter moves up, and
    /// waiters move back if some of their permits were available already.
    ///
    /// | policy | `permits` are left |
    /// |---|---|
    /// | a rate or a bucket | as if requests for one permit had taken the others: the next permit comes in when it would have |
    /// | a window or a log | as if requests for one permit had taken the others now: they come back with the window |
    /// | [`SmoothWarmingUp`](crate::SmoothWarmingUp) | it has one permit at most, so only 0 takes anything |
    /// | [`Both`](crate::Both) | in the policy that has fewer; the other policy is charged as many |
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

    /// Puts the limiter back to its start: as full as it began, without debts, and not paused.
    /// Waiters are served with the permits that this brings.
    ///
    /// The settings stay: rate and burst, [bounds](RateLimiter::set_queue_bounds), the
    /// [kept share](RateLimiter::keep_for_priority), [shadow mode](RateLimiter::set_shadow) and the
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
