//! Settings of a composite that change at run time.

use std::sync::Arc;
use std::time::Duration;

use crate::all_of::AllOf;
use crate::clock::Timer;
use crate::limiter::events::Events;
use crate::limiter::pause::Pause;
use crate::request::QueueBounds;
use crate::time::Nanos;

/// Changes at run time, from any clone. They hold for calls of this composite only; each member has
/// settings of its own.
impl<C: Timer> AllOf<C> {
    /// Pauses the composite for the time `span`, as a server's `Retry-After` asks for. See
    /// [`RateLimiter::pause_for`](crate::RateLimiter::pause_for).
    ///
    /// The members are not paused: other callers go on with them. At the end each member with a
    /// rate is left as if it were empty, also for other callers, since the service that said stop
    /// has no permits left either. So no burst follows. [`Pause::keep_stock`] leaves the members
    /// alone; use it where they belong to more services than the one that said stop.
    ///
    /// A refusal names the member that is ready last, or the first one if all are ready.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{AllOf, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_second(10), 10);
    /// let tokens = RateLimiter::with_clock(policy, clock.clone());
    /// let api = AllOf::new("tokens", &tokens);
    /// api.pause_for(Duration::from_secs(30));
    /// let refusal = api.try_acquire().map(drop).unwrap_err();
    /// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(30_100)));
    /// assert!(tokens.try_acquire().is_ok()); // by itself it is not paused
    /// clock.advance(Duration::from_millis(30_100));
    /// assert!(api.try_acquire().is_ok());
    /// ```
    pub fn pause_for(&self, span: Duration) {
        self.shared.pause(Pause::lasting(span));
    }

    /// Pauses the composite until this time of the first member's clock. See
    /// [`RateLimiter::pause_until`](crate::RateLimiter::pause_until).
    pub fn pause_until(&self, until: Nanos) {
        self.shared.pause(Pause::until(until));
    }

    /// Pauses the composite as `pause` says. See
    /// [`RateLimiter::pause`](crate::RateLimiter::pause).
    pub fn pause(&self, pause: Pause) {
        self.shared.pause(pause);
    }

    /// Ends a pause. Returns whether there was one.
    pub fn resume(&self) -> bool {
        self.shared.resume()
    }

    /// Closes the composite for good: see [`RateLimiter::close`](crate::RateLimiter::close). Its
    /// members stay open. Returns whether it was open.
    ///
    /// If a member is closed, requests of the composite are refused with the name of that member.
    pub fn close(&self) -> bool {
        self.shared.close()
    }

    /// Whether the composite was [closed](AllOf::close) itself.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Bounds the queue of this composite, by requests and by their costs summed. As
    /// [`RateLimiter::set_queue_bounds`](crate::RateLimiter::set_queue_bounds).
    pub fn set_queue_bounds(&self, bounds: QueueBounds) {
        self.shared.set_bounds(bounds);
    }

    /// Sets the observer, which is told of each call of this composite; its costs, summed, are
    /// the permits. Returns `false`, and changes nothing, if the composite has an observer already.
    /// See [`RateLimiter::observe`](crate::RateLimiter::observe).
    ///
    /// The observer of a member is not told of permits that composites take from it.
    pub fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.shared.observe(events)
    }
}
