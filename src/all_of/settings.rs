//! Settings of a composite that change at run time.

use std::sync::Arc;
use std::time::Duration;

use crate::all_of::all::Kind;
use crate::all_of::member::Member;
use crate::all_of::{AllOf, AllRefusal, AllRequest};
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
    /// rate is left as if it were empty, also for other callers, and whether or not the composite
    /// is asked again, since the service that said stop has no permits left either. So no burst
    /// follows. A refund or a reset of a member after the end stands. [`Pause::keep_permits`] leaves
    /// the members alone; use it where they belong to more services than the one that said stop. So
    /// does a pause that is [ended](AllOf::resume) before its time, also by dropping the composite.
    ///
    /// A time after the end that a member tells its own callers, or those of another composite,
    /// does not allow for the end: like a debit, it makes them wait longer. Until the end each call
    /// of the member takes a lock.
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

    /// Charges permits of the members, also if fewer are available: for a call that was made
    /// without asking, or that a server counted. See
    /// [`RateLimiter::debit`](crate::RateLimiter::debit).
    ///
    /// As in a request, a number is charged to each member with a rate, and a list of costs to the
    /// members with these names, with one permit for each other member with a rate; a cost of 0
    /// charges nothing. A [`CountingLimit`](crate::CountingLimit) is never charged.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] if no member has such a name; then nothing is charged.
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
    /// api.debit([("tokens", 850)])?; // and a request
    /// api.debit(AllRequest::new().cost("tokens", 50).cost_of_others(0))?;
    /// assert_eq!((requests.status().available, tokens.status().available), (59, 100));
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub fn debit<'a>(&self, costs: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        self.for_each_rate(&costs.into(), |member, n| member.debit(n))
    }

    /// Gives back permits of the members that were acquired and not used. See
    /// [`RateLimiter::refund`](crate::RateLimiter::refund).
    ///
    /// Costs are told as in [`debit`](AllOf::debit): tell those that the call got. Permits of a
    /// [`CountingLimit`](crate::CountingLimit) go back when the [`AllPermits`](crate::AllPermits)
    /// are dropped.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] if no member has such a name; then nothing is given back.
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
        self.for_each_rate(&costs.into(), |member, n| member.refund(n))
    }

    /// Calls this for each member with a rate that costs something, with its cost.
    fn for_each_rate(
        &self,
        costs: &AllRequest<'_>,
        change: impl Fn(&dyn Member, u32),
    ) -> Result<(), AllRefusal> {
        let costs = self.ask(costs)?;
        for (entry, n) in self.shared.rule.members.iter().zip(costs.iter()) {
            if let Kind::Rate(member) = &entry.kind
                && *n > 0
            {
                change(&**member, *n);
            }
        }
        Ok(())
    }

    /// Takes the permits that the member with this name has beyond `permits`, and returns how many
    /// it took: for a server that says how many permits are left of which limit. Other callers of
    /// the member find fewer permits, too. See
    /// [`RateLimiter::keep_at_most`](crate::RateLimiter::keep_at_most).
    ///
    /// It takes nothing of a [`CountingLimit`](crate::CountingLimit): nothing would give such
    /// permits back.
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
        Ok(match &self.shared.rule.members[index].kind {
            Kind::Rate(member) => member.keep_at_most(permits),
            Kind::Counting(_) => 0,
        })
    }

    /// Bounds the queue of this composite, by requests and by their costs summed. As
    /// [`RateLimiter::set_queue_bounds`](crate::RateLimiter::set_queue_bounds). A
    /// [reservation](AllOf::reserve) is never dropped from a full queue.
    pub fn set_queue_bounds(&self, bounds: QueueBounds) {
        self.shared.set_bounds(bounds);
    }

    /// Sets the observer, which is told of each call of this composite; its costs, summed, are
    /// the permits. Returns `false`, and changes nothing, if the composite has an observer already.
    /// See [`RateLimiter::observe`](crate::RateLimiter::observe).
    ///
    /// The observer of a member is not told of permits that composites take from it. No observer is
    /// told of a call with the name of a member that there is not, which asks no limiter.
    pub fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.shared.observe(events)
    }
}
