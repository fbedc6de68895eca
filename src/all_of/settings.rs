//! Settings of an [`AllOf`] that change at run time.

use std::sync::Arc;
use std::time::Duration;

use crate::all_of::all::Entry;
use crate::all_of::{AllOf, AllRefusal, AllRequest};
use crate::clock::Timer;
use crate::limiter::events::Events;
use crate::limiter::pause::Pause;
use crate::line::deferred::{resume_panic, run};
use crate::request::QueueBounds;
use crate::time::Nanos;

/// Changes at run time, from any clone. A change applies only to calls of this `AllOf`; each member
/// has its own settings.
impl<C: Timer> AllOf<C> {
    /// Pauses the `AllOf` for the duration `span`, as a server's `Retry-After` asks. See
    /// [`RateLimiter::pause_for`](crate::RateLimiter::pause_for).
    ///
    /// The members are not paused: other callers continue to use them. At the end of the pause,
    /// each rate limiter is left as if it were empty, because the service that demanded the pause
    /// has no permits left either. So no burst follows. This affects other callers of the member,
    /// too, and happens even if the `AllOf` is not called again. A refund or a reset of a member
    /// after the end takes effect. [`Pause::keep_permits`] leaves the members unchanged; use it if
    /// they serve other services besides the one that demanded the pause. A pause that is
    /// [ended](AllOf::resume) early also leaves the members unchanged, even if it is ended by
    /// dropping the `AllOf`.
    ///
    /// The times that a member predicts for its own callers, or for callers of another `AllOf`,
    /// ignore the end of this pause. If such a time is after the end, the caller waits longer than
    /// predicted, as after a debit. Until the end, each call of the member takes a lock.
    ///
    /// A refusal names the member that is ready last, if that member is not ready before the end of
    /// the pause. Otherwise it is [`AllRefusal::Queue`] and names no member.
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
    /// assert!(tokens.try_acquire().is_ok()); // the member itself is not paused
    /// clock.advance(Duration::from_millis(30_100));
    /// assert!(api.try_acquire().is_ok());
    /// ```
    pub fn pause_for(&self, span: Duration) {
        self.shared.pause(Pause::lasting(span));
    }

    /// Pauses the `AllOf` until this time of the first member's clock. See
    /// [`RateLimiter::pause_until`](crate::RateLimiter::pause_until).
    pub fn pause_until(&self, until: Nanos) {
        self.shared.pause(Pause::until(until));
    }

    /// Pauses the `AllOf` as `pause` specifies. See
    /// [`RateLimiter::pause`](crate::RateLimiter::pause).
    pub fn pause(&self, pause: Pause) {
        self.shared.pause(pause);
    }

    /// Ends a pause. Returns whether there was one.
    pub fn resume(&self) -> bool {
        self.shared.resume()
    }

    /// Closes the `AllOf` permanently: see [`RateLimiter::close`](crate::RateLimiter::close). Its
    /// members stay open. Returns whether the `AllOf` was open.
    ///
    /// If a member is closed, requests of the `AllOf` are refused with the name of that member.
    pub fn close(&self) -> bool {
        self.shared.close()
    }

    /// Returns whether the `AllOf` itself was [closed](AllOf::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Charges permits of the members, even if fewer are available: for a call that was made
    /// without asking, or that a server counted. See
    /// [`RateLimiter::debit`](crate::RateLimiter::debit).
    ///
    /// As in a request, a number is charged to each rate limiter. A list of costs is charged to the
    /// members with these names, plus one permit to each other rate limiter. A cost of 0 charges
    /// nothing. A [`CountingLimit`](crate::CountingLimit) is never charged.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] if a name is unknown; then nothing is charged.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllOf, AllRequest, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let requests = RateLimiter::with_clock(policy, clock.clone());
    /// let policy = TokenBucket::new(Rate::per_minute(1000), 1000);
    /// let tokens = RateLimiter::with_clock(policy, clock);
    /// let api = AllOf::new("requests", &requests).with("tokens", &tokens);
    /// api.debit([("tokens", 850)])?; // plus one request
    /// api.debit(AllRequest::new().cost("tokens", 50).cost_of_others(0))?;
    /// assert_eq!((requests.status().available, tokens.status().available), (59, 100));
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub fn debit<'a>(&self, costs: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        self.for_each_rate(&costs.into(), Entry::debit)
    }

    /// Gives back permits of the members that were acquired and not used. See
    /// [`RateLimiter::refund`](crate::RateLimiter::refund).
    ///
    /// Costs are given as in [`debit`](AllOf::debit): give the costs that the call was granted, and
    /// a cost of 0 for a member in shadow mode from which the grant [took
    /// nothing](crate::AllPermits::took_from). Permits of a [`CountingLimit`](crate::CountingLimit)
    /// go back when the [`AllPermits`](crate::AllPermits) are dropped.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] if a name is unknown; then nothing is given back.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllOf, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let requests = RateLimiter::with_clock(policy, clock.clone());
    /// let policy = TokenBucket::new(Rate::per_minute(1000), 1000);
    /// let tokens = RateLimiter::with_clock(policy, clock);
    /// let api = AllOf::new("requests", &requests).with("tokens", &tokens);
    /// let permits = api.try_acquire_many([("tokens", 850)])?;
    /// // The call is not made.
    /// drop(permits);
    /// api.refund([("tokens", 850)])?;
    /// assert_eq!((requests.status().available, tokens.status().available), (60, 1000));
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub fn refund<'a>(&self, costs: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        self.for_each_rate(&costs.into(), Entry::refund)
    }

    /// Calls `change` for each rate limiter with a cost above 0, with that cost. Resumes the first
    /// panic of a waker when all are changed.
    fn for_each_rate(&self, costs: &AllRequest<'_>, change: impl Fn(&Entry, u32)) -> Result<(), AllRefusal> {
        let (costs, mut panic) = (self.ask(costs)?, None);
        let charged = self.shared.rule.members.iter().zip(costs.iter()).filter(|(_, n)| **n > 0);
        charged.for_each(|(entry, n)| _ = run(&mut panic, || change(entry, *n)));
        resume_panic(panic);
        Ok(())
    }

    /// Takes the permits that the member with this name has beyond `permits`, and returns how many
    /// it took. Use it if a server reports how many permits of a limit are left. Other callers of
    /// the member find fewer permits, too. See
    /// [`RateLimiter::keep_at_most`](crate::RateLimiter::keep_at_most).
    ///
    /// It takes nothing from a [`CountingLimit`](crate::CountingLimit), because such permits would
    /// never be given back.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] if no member has this name.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllOf, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let minute = RateLimiter::with_clock(policy, ManualClock::new());
    /// let api = AllOf::new("minute", &minute);
    /// assert_eq!(api.keep_at_most("minute", 3)?, 57);
    /// assert_eq!(minute.status().available, 3);
    /// assert!(api.keep_at_most("hour", 3).is_err());
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal> {
        let index = self.shared.rule.find(name)?;
        Ok(self.shared.rule.members[index].keep_at_most(permits))
    }

    /// Bounds the queue of this `AllOf`, by the number of requests and by the sum of their costs.
    /// See [`RateLimiter::set_queue_bounds`](crate::RateLimiter::set_queue_bounds). A
    /// [reservation](AllOf::reserve) is never dropped from a full queue.
    pub fn set_queue_bounds(&self, bounds: QueueBounds) {
        self.shared.set_bounds(bounds);
    }

    /// Sets the observer, which is notified of each call of this `AllOf`. The permits that it sees
    /// are the sum of the call's costs. Returns `false`, and changes nothing, if the `AllOf`
    /// already has an observer. See [`RateLimiter::observe`](crate::RateLimiter::observe).
    ///
    /// The observer of a member is not notified of permits that an `AllOf` takes from it. No
    /// observer is notified of a call with an unknown name, because that call asks no limiter.
    pub fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.shared.observe(events)
    }
}
