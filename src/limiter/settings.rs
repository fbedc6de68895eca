//! Settings that can change at run time: queue bounds, a kept share, shadow mode, and the observer.

use std::sync::Arc;

use crate::clock::Timer;
use crate::limiter::RateLimiter;
use crate::limiter::change::TIMES_CHANGED;
use crate::limiter::events::Events;
use crate::limiter::gate_word::SHADOW;
use crate::limiter::shared::Shared;
use crate::line::deferred::{resume_panic, run};
use crate::line::rule::Rule;
use crate::line::settings::KeptShare;
use crate::policy::Policy;
use crate::request::QueueBounds;
use crate::sync::Ordering;

/// Settings of any limiter: a single one, a key's, or a composite.
impl<R: Rule, C: Timer> Shared<R, C> {
    /// Sets the observer. Returns `false`, and changes nothing, if the limiter has one already.
    pub(crate) fn observe(&self, events: Arc<dyn Events>) -> bool {
        // Set before the flag is raised, so that a call that sees the flag has an observer to
        // notify.
        let first = self.events.observe(events);
        self.serve_then(|line, _| line.settings.observed = true);
        first
    }

    /// Turns shadow mode on or off. When it is turned on, the waiters in the queue pass at once.
    pub(crate) fn set_shadow(&self, shadow: bool) {
        let (mut changes, mut panic) = (false, None);
        let visit = || {
            self.serve_then(|line, _| {
                let before = line.settings.is_shadow();
                line.settings.shadow = shadow;
                changes = line.settings.is_shadow() != before;
                if changes {
                    // Release: see `retime_composites`.
                    self.changes.fetch_add(TIMES_CHANGED, Ordering::Release);
                }
            });
        };
        run(&mut panic, visit);
        // After the visit, because `notify_seats` takes the lock, and releases it after every few
        // seats.
        if changes {
            run(&mut panic, || self.notify_seats());
        }
        resume_panic(panic);
    }

    /// Notifies all composites that wait here, when shadow mode begins or ends, or the limiter is
    /// closed: each composite computes its time anew, or refuses its waiters. It notifies a
    /// few at a time, so that other calls can take the lock.
    pub(crate) fn notify_seats(&self) {
        let (mut next, mut panic) = (Some(0), None);
        while let Some(position) = next.take() {
            let notify =
                || self.serve_then(|line, visit| next = line.seats.notify_from(position, visit.deferred));
            run(&mut panic, notify);
        }
        resume_panic(panic);
    }

    /// Returns whether the limiter is in shadow mode.
    pub(crate) fn is_shadow(&self) -> bool {
        self.gate_word.load().has(SHADOW)
    }

    /// Bounds the queue, for requests that join it from now on.
    pub(crate) fn set_bounds(&self, bounds: QueueBounds) {
        self.serve_then(|line, _| line.settings.bounds = bounds);
    }

    /// Keeps `permits` for requests of priority `from` or higher.
    pub(crate) fn keep_for_priority(&self, permits: u32, from: i8) {
        self.serve_then(|line, visit| {
            let kept = Some(KeptShare { permits, from });
            line.settings.kept = kept.filter(|kept| kept.permits > 0 && kept.from > i8::MIN);
            self.retime(line, visit);
        });
    }
}

/// Settings; any clone can change them. They apply at once to waiters, too.
impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// Bounds the queue: how many requests may wait, for how many permits, and which request makes
    /// room in a full queue. A new limiter has no bounds.
    ///
    /// The bounds apply to requests that arrive from now on; requests that already wait stay, even
    /// if they exceed the bounds. [`QueueBounds`] says which requests are refused. A
    /// [reservation](RateLimiter::reserve) keeps its position in a full queue, whatever
    /// [`WhenFull`](crate::WhenFull) is set.
    pub fn set_queue_bounds(&self, bounds: QueueBounds) {
        self.shared.set_bounds(bounds);
    }

    /// Keeps `permits` of the burst for requests of priority `from` or higher. A request of lower
    /// priority is granted only if at least `permits` remain afterwards. Zero keeps no permits, as
    /// in a new limiter.
    ///
    /// The remaining permits are those that a sequence of requests for one permit could get; with
    /// Guava's two policies they include the one on credit. A request below priority `from` that
    /// asks for more than the burst less the kept permits can never be granted. It is refused with
    /// [`ExceedsLimit`](crate::Refusal::ExceedsLimit), which reports the smaller burst. A request
    /// for a single permit is not refused but waits, for ever if all permits are kept. Calls
    /// without a priority have priority 0. Waiters whose due time becomes later move back.
    ///
    /// While permits are kept, every call takes the queue's lock, because counting the remaining
    /// permits and taking some are two steps. In an [`AllOf`](crate::AllOf), late timers then lower
    /// the average rate if the burst less the kept permits is worth less time than the lateness.
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
    /// [observer](RateLimiter::observe) is notified of what the limiter would have done.
    ///
    /// The limiter decides as usual. It notifies the observer of each call that would have been
    /// refused, or would have waited, with the wait. Such a call passes at once and takes no
    /// permits. This applies to every refusal except [`Closed`](crate::Refusal::Closed), and to
    /// pauses. Requests that wait when shadow mode begins pass at once.
    ///
    /// The shadow mode of a `tidegate-tower` layer is different: there the limiter refuses and
    /// notifies its observer of a refusal, and the layer lets the request pass.
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

    /// Returns whether the limiter is in [shadow mode](RateLimiter::set_shadow).
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shared.is_shadow()
    }

    /// Sets the observer, which is notified of every call from now on. Returns `false`, and changes
    /// nothing, if the limiter has an observer already: to notify several observers, set a pair of
    /// them.
    ///
    /// All clones of a limiter share the observer. A limiter without an observer pays nothing for
    /// this feature. With one, each call takes a few more instructions, and still no lock while no
    /// request waits. [`Events`] has an example.
    pub fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.shared.observe(events)
    }
}
