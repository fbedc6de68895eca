//! What a composite is told at run time.

use std::sync::Arc;
use std::time::Duration;

use crate::all_of::AllOf;
use crate::clock::Timer;
use crate::limiter::events::Events;
use crate::request::QueueBounds;
use crate::time::Nanos;

/// At run time, from any clone. Only for calls of this composite: its members are told by
/// themselves.
impl<C: Timer> AllOf<C> {
    /// Lets nobody pass for so long: what a server's `Retry-After` asks for. As
    /// [`RateLimiter::pause_for`](crate::RateLimiter::pause_for).
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
    /// let tokens = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(10), 10), clock.clone());
    /// let api = AllOf::new("tokens", &tokens);
    /// api.pause_for(Duration::from_secs(30));
    /// let refusal = api.try_acquire().map(drop).unwrap_err();
    /// assert_eq!(refusal.retry_after(), Some(Duration::from_secs(30)));
    /// assert!(tokens.try_acquire().is_ok()); // by itself it is not paused
    /// clock.advance(Duration::from_secs(30));
    /// assert!(api.try_acquire().is_ok());
    /// ```
    pub fn pause_for(&self, span: Duration) {
        self.shared.pause_for(span);
    }

    /// Lets nobody pass before this time of the clock of the first member. As
    /// [`RateLimiter::pause_until`](crate::RateLimiter::pause_until).
    pub fn pause_until(&self, until: Nanos) {
        self.shared.pause_until(until);
    }

    /// Ends a pause. Returns whether there was one.
    pub fn resume(&self) -> bool {
        self.shared.resume()
    }

    /// Bounds the queue of this composite, by requests and by their weights summed. As
    /// [`RateLimiter::set_queue_bounds`](crate::RateLimiter::set_queue_bounds).
    pub fn set_queue_bounds(&self, bounds: QueueBounds) {
        self.shared.set_bounds(bounds);
    }

    /// Tells `events` of each call of this composite; its weights, summed, are the permits. As
    /// [`RateLimiter::observe`](crate::RateLimiter::observe). Returns `false` if somebody watches
    /// already.
    ///
    /// Those who watch a member are not told of what it gives to composites.
    pub fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.shared.observe(events)
    }
}
