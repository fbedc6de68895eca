//! [`LimiterBuilder`]: the settings of a limiter.

use std::sync::Arc;

use tidegate::{PolicyConfig, QueueBounds};

use crate::error::BuildError;
use crate::key;
use crate::limiter::StoreLimiter;
use crate::line::Line;
use crate::observe::Observers;
use crate::script::Script;
use crate::set::{Member, Prepared};
use crate::store::Store;
use crate::terms::Terms;

/// A builder of a [`StoreLimiter`]: its limits and settings.
#[derive(Clone, Debug)]
#[must_use = "limits do nothing until the limiter is built"]
pub struct LimiterBuilder {
    store: Store,
    pub(super) tag: String,
    limits: Vec<(String, Result<PolicyConfig, BuildError>)>,
    is_leased: bool,
    pub(super) bounds: QueueBounds,
}

impl Store {
    /// Returns a builder of a limiter for a tag: a user, a tenant, an API key, or a name for limits
    /// that all callers share. The limits of one tag lie in one slot of a cluster, so one call
    /// decides all of them. A limiter has exactly one tag: limits of two tags may lie on two
    /// servers, and no call decides about both.
    ///
    /// A tag has 1 to 500 bytes, and no brace and no control character, such as `user:7` or an
    /// address. [`build`](LimiterBuilder::build) refuses any other tag.
    ///
    /// The state is in the store, and expires there. Requests of one limiter and its clones share
    /// one queue. Two limiters that are built for one tag share the limits, but have separate
    /// queues. For many tags with equal limits, and for tags that clients choose, see
    /// [`Store::keyed`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tidegate_redis::Store;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let limiter = store
    ///     .limiter("tenant-7")
    ///     .limit("calls", "token_bucket 100/s burst 20")
    ///     .limit("daily", "fixed_window 1000000/d at_wall_clock 0s")
    ///     .build()?;
    /// let _permits = limiter.acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn limiter(&self, tag: impl Into<String>) -> LimiterBuilder {
        LimiterBuilder {
            store: self.clone(),
            tag: tag.into(),
            limits: Vec::new(),
            is_leased: false,
            bounds: QueueBounds::UNBOUNDED,
        }
    }
}

impl LimiterBuilder {
    /// Adds a limit. Its name is part of the key in the store, and requests name their costs by it.
    /// The name has 1 to 200 bytes, and no brace, colon, space or control character.
    ///
    /// The policy is a [line of text](PolicyConfig#text), a [`PolicyConfig`], or a policy such as
    /// [`TokenBucket`](tidegate::TokenBucket). [`build`](LimiterBuilder::build) returns an error
    /// for a line that is not a policy.
    ///
    /// Each limit takes the server a few microseconds in each call, even if a request names no cost
    /// for it. A call for thousands of limits takes longer than the
    /// [deadline](crate::StoreBuilder::timeout) of 50 ms.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Rate, TokenBucket};
    /// use tidegate_redis::Store;
    ///
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let limiter = store
    ///     .limiter("tenant-7")
    ///     .limit("calls", TokenBucket::new(Rate::per_second(100), 20))
    ///     .limit("tokens", "sliding_window 90000/min cells 6")
    ///     .build()?;
    ///
    /// let error = store.limiter("tenant-8").limit("calls", "100/s").build().unwrap_err();
    /// assert_eq!(error.to_string(), "100/s: write token_bucket 100/s burst 20");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limit<P>(mut self, name: impl Into<String>, policy: P) -> LimiterBuilder
    where
        P: TryInto<PolicyConfig>,
        P::Error: Into<BuildError>,
    {
        self.limits.push((name.into(), policy.try_into().map_err(Into::into)));
        self
    }

    /// Lets this process spend permits that it has leased, without asking the store. By default the
    /// store decides each request.
    ///
    /// See [`leases`](crate::leases) for what that changes. The store still decides a request with
    /// [`with_left`](tidegate::AllRequest::with_left), because only the store knows how many
    /// permits of the limit are left. The layers of `tidegate-tower` make such requests for their
    /// headers. A layer with `no_headers()` uses the leases.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate_redis::Store;
    ///
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let limiter = store
    ///     .limiter("everybody")
    ///     .limit("calls", "token_bucket 5000/s burst 5000")
    ///     .leased()
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn leased(self) -> LimiterBuilder {
        LimiterBuilder { is_leased: true, ..self }
    }

    /// Bounds the requests of this limiter and its clones that wait for a booking at the store, by
    /// their number and by the sum of their costs. The default is no bounds.
    ///
    /// A request that must wait and finds no room is refused with
    /// [`QueueFull`](tidegate::Refusal::QueueFull), and books nothing. To learn that it must wait,
    /// it makes a call like any other request. A request that is dropped for a newcomer gets
    /// [`Displaced`](tidegate::Refusal::Displaced); a reservation is never dropped. A request that
    /// finds the store away, and [waits for it](crate::WhileAway::Wait), counts from then on.
    ///
    /// The bounds apply to this process, and not to requests that wait for a
    /// [lease](LimiterBuilder::leased). If bounds are set, such requests move to the queue for the
    /// store when the store goes away, and count from then on.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{QueueBounds, WhenFull};
    /// use tidegate_redis::Store;
    ///
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let limiter = store
    ///     .limiter("everybody")
    ///     .limit("calls", "token_bucket 100/s burst 20")
    ///     .queue_bounds(QueueBounds::UNBOUNDED.max_waiters(500).when_full(WhenFull::DropOldest))
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue_bounds(self, bounds: QueueBounds) -> LimiterBuilder {
        LimiterBuilder { bounds, ..self }
    }

    /// Builds the limiter. It makes no call to the store.
    ///
    /// # Errors
    ///
    /// Returns a [`BuildError`] if the tag or a name cannot be part of a key, if two limits have
    /// one name, if a line is not a policy, if a policy is not supported over a store, or if there
    /// is no limit.
    pub fn build(self) -> Result<StoreLimiter, BuildError> {
        let (tag, bounds) = (self.tag.clone(), self.bounds);
        Ok(StoreLimiter::new(Line::new(&self.prepare()?, tag, bounds, None)))
    }

    /// Checks the tag and the limits, and prepares the limits.
    pub(super) fn prepare(self) -> Result<Prepared, BuildError> {
        let LimiterBuilder { store, tag, limits, is_leased, .. } = self;
        if !key::is_tag(&tag) {
            return Err(BuildError::Name { name: tag });
        }
        if limits.is_empty() {
            return Err(BuildError::NoLimit);
        }
        let mut members: Vec<Member> = Vec::with_capacity(limits.len());
        for (name, config) in limits {
            if !key::is_name(&name) {
                return Err(BuildError::Name { name });
            }
            if members.iter().any(|member| member.name == name) {
                return Err(BuildError::Twice { name });
            }
            let config = config?;
            let terms = Terms::new(&config)?;
            members.push(Member { name, terms, config });
        }
        if is_leased {
            store.count_processes();
        }
        Ok(Prepared {
            script: Script::shared(members.iter().map(|member| member.terms.kind())),
            members: members.into(),
            observers: Arc::new(Observers::new(store.events().cloned())),
            store,
            is_leased,
        })
    }
}
