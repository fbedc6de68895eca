//! [`StoreKeyedLimiter`]: limits for each key, prepared once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    AcquireAny, AllPermits, AllRefusal, AllRequest, AllStatus, AnyKeyed, AnyLimiter, AnyReservation, Events,
    KeyedLimiter, PolicyConfig, QueueBounds,
};

use crate::error::BuildError;
use crate::key;
use crate::limiter::tags::Tags;
use crate::limiter::{LimiterBuilder, StoreLimiter};
use crate::set::Prepared;
use crate::store::Store;

/// One or more limits for each key, such as a user, a tenant or an address. All processes share
/// them. The limits are prepared once, and then used by key.
///
/// [`Store::keyed`] builds it. The limits of a key are those of a [`StoreLimiter`] whose tag is the
/// key, with its calls and its guarantees. It converts to an [`AnyKeyed`], the limiter of a layer
/// of `tidegate-tower`.
///
/// # Keys
///
/// A key is any text. Its tag is the tag of the limiter, a colon and the key. If that text cannot
/// be a tag, because it is longer than 500 bytes, has a brace or a control character, or begins
/// with `sha1:`, the tag is `sha1:` and the SHA-1 of the text. So the key `b:c` of a keyed limiter
/// `a` is the key `c` of a keyed limiter `a:b`: if users choose their keys, no tag may be the
/// beginning of another one up to a colon.
///
/// # Memory
///
/// The state of a key is in the store, and expires there. This process keeps a key only while a
/// request for it is decided or waits, or while a [limiter](StoreKeyedLimiter::limiter) of it is
/// held. Such a key takes about 1,300 bytes, or 7,000 if a request waits. A
/// [leased](KeyedBuilder::leased) key stays for one or two seconds after its last request, but not
/// longer than the keyed limiter: then the leases go back. It takes about 4,500 bytes for each
/// limit, or 12,000 if a request waits. At most 16,384 keys stay in this way; the store decides
/// requests for other keys.
///
/// A refusal is not remembered, because another process may give permits back at any time. A leased
/// limiter remembers a refusal for one second, as [`leases`](crate::leases) explains.
///
/// # Fairness
///
/// Requests for one key share one queue, and share calls, like those of one [`StoreLimiter`]. Keys
/// do not affect each other.
///
/// # Cancel safety
///
/// A wait that is dropped passes its booking to the next request for its key, as for a
/// [`StoreLimiter`](StoreLimiter#cancel-safety).
///
/// # Examples
///
/// ```no_run
/// use tidegate_redis::Store;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::open("redis://127.0.0.1")?;
/// let users = store
///     .keyed("users")
///     .limit("calls", "token_bucket 10/s burst 20")
///     .limit("daily", "fixed_window 10000/d")
///     .build()?;
/// let _permits = users.acquire_now("alice", 1).await?; // now, or a refusal
/// let _permits = users.acquire("bob").await?; // waits its turn among all requests for this key
/// # Ok(())
/// # }
/// ```
///
/// Plans: a limiter is prepared for each plan, and a custom limiter chooses between them. Both have
/// one tag, so a user whose plan changes continues with the permits that are left.
///
/// ```
/// use tidegate::{AllRefusal, AnyKeyed, AnyLimiter, KeyedLimiter};
/// use tidegate_redis::{Store, StoreKeyedLimiter};
///
/// #[derive(Debug)]
/// struct Plans {
///     free: StoreKeyedLimiter,
///     paid: StoreKeyedLimiter,
/// }
///
/// impl KeyedLimiter<String> for Plans {
///     fn limiter(&self, key: String) -> Result<AnyLimiter, AllRefusal> {
///         let plan = if key.starts_with("paid-") { &self.paid } else { &self.free };
///         Ok(plan.limiter(&key).into())
///     }
///
///     fn close(&self) -> bool {
///         self.free.close() | self.paid.close()
///     }
///
///     fn is_closed(&self) -> bool {
///         self.free.is_closed() && self.paid.is_closed()
///     }
/// }
///
/// let store = Store::open("redis://127.0.0.1")?;
/// let plan = |policy: &str| store.keyed("users").limit("calls", policy).build();
/// let (free, paid) = (plan("token_bucket 5/s burst 10")?, plan("token_bucket 50/s burst 100")?);
/// let users: AnyKeyed<String> = AnyKeyed::new(Plans { free, paid }); // for a layer, for example
/// # let _ = users;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct StoreKeyedLimiter(Arc<Keyed>);

struct Keyed {
    /// The prefix of each key in its tag. The tag of key `k` is that of `tag:k`.
    tag: String,
    prepared: Prepared,
    tags: Arc<Tags>,
}

impl Drop for Keyed {
    /// Returns the leases of the keys to the store.
    fn drop(&mut self) {
        self.tags.end();
    }
}

/// A builder of a [`StoreKeyedLimiter`]: its limits and settings.
#[derive(Clone, Debug)]
#[must_use = "limits do nothing until the limiter is built"]
pub struct KeyedBuilder(pub(crate) LimiterBuilder);

impl Store {
    /// Returns a builder of limits for each key: a user, a tenant, an address. The tag is the
    /// prefix of all keys: with the tag `users`, the key `7` has the limits of the
    /// [limiter](Store::limiter) with the tag `users:7`. Keyed limiters with one tag share the
    /// limits of equal names.
    ///
    /// # Examples
    ///
    /// A layer of `tidegate-tower` with a limit for each API key:
    ///
    /// ```
    /// use http::StatusCode;
    /// use tidegate::AnyKeyed;
    /// use tidegate_redis::Store;
    /// use tidegate_tower::RateLimitLayer;
    ///
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let users = store.keyed("users").limit("calls", "token_bucket 10/s burst 20").build()?;
    /// let layer = RateLimitLayer::keyed(AnyKeyed::from(users), |request| {
    ///     // A request without a key would have no limit.
    ///     let key = request.headers.get("x-api-key").ok_or(StatusCode::UNAUTHORIZED)?;
    ///     key.to_str().map(str::to_owned).map_err(|_| StatusCode::BAD_REQUEST)
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keyed(&self, tag: impl Into<String>) -> KeyedBuilder {
        KeyedBuilder(self.limiter(tag))
    }
}

impl KeyedBuilder {
    /// Adds a limit for each key, like [`LimiterBuilder::limit`]. It is not a limit on all keys
    /// together: such a limit has its own tag, and is built with [`Store::limiter`].
    pub fn limit<P>(self, name: impl Into<String>, policy: P) -> KeyedBuilder
    where
        P: TryInto<PolicyConfig>,
        P::Error: Into<BuildError>,
    {
        KeyedBuilder(self.0.limit(name, policy))
    }

    /// Lets this process spend permits that it has leased, for keys with frequent requests: a key
    /// leases once it has about twenty requests a second. See [`LimiterBuilder::leased`].
    pub fn leased(self) -> KeyedBuilder {
        KeyedBuilder(self.0.leased())
    }

    /// Bounds the requests that wait for one key, like [`LimiterBuilder::queue_bounds`].
    pub fn queue_bounds(self, bounds: QueueBounds) -> KeyedBuilder {
        KeyedBuilder(self.0.queue_bounds(bounds))
    }

    /// Builds the limiter. It makes no call to the store.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`LimiterBuilder::build`].
    pub fn build(self) -> Result<StoreKeyedLimiter, BuildError> {
        let (tag, tags) = (self.0.tag.clone(), Arc::new(Tags::new(self.0.bounds)));
        Ok(StoreKeyedLimiter(Arc::new(Keyed { tag, prepared: self.0.prepare()?, tags })))
    }
}

impl StoreKeyedLimiter {
    /// Returns the limiter of a key, with all calls of a [`StoreLimiter`]. It shares a queue with
    /// all other calls for this key.
    ///
    /// Settings of this process only, such as [`close`](AnyLimiter::close) for one key,
    /// [`set_shadow`](StoreLimiter::set_shadow) or its own [observer](StoreLimiter::observe), last
    /// as long as the key is in use in this process.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::AnyLimiter;
    /// use tidegate_redis::Store;
    ///
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let users = store.keyed("users").limit("calls", "token_bucket 10/s burst 20").build()?;
    /// let alice = AnyLimiter::from(users.limiter("alice"));
    /// assert_eq!(users.len(), 1);
    /// drop(alice);
    /// assert!(users.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn limiter(&self, key: &str) -> StoreLimiter {
        let Keyed { tag, prepared, tags } = &*self.0;
        StoreLimiter::new(tags.line(prepared, &key::tag_of(&format!("{tag}:{key}"))))
    }

    /// Takes one permit of each limit of a key now, or refuses. It blocks the thread for a round
    /// trip, like [`StoreLimiter::try_acquire`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AnyLimiter::try_acquire`].
    pub fn try_acquire(&self, key: &str) -> Result<AllPermits, AllRefusal> {
        self.try_acquire_many(key, AllRequest::new())
    }

    /// Takes the permits of a request from a key now, or refuses, like
    /// [`try_acquire`](StoreKeyedLimiter::try_acquire).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AnyLimiter::try_acquire_many`].
    pub fn try_acquire_many<'a>(
        &self,
        key: &str,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AllPermits, AllRefusal> {
        self.limiter(key).try_acquire_many(request)
    }

    /// Takes the permits of a request from a key now, or refuses, like [`AnyLimiter::acquire_now`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AnyLimiter::acquire_now`].
    pub fn acquire_now<'a>(&self, key: &str, request: impl Into<AllRequest<'a>>) -> AcquireAny {
        self.limiter(key).acquire_now(request)
    }

    /// Waits for one permit of each limit of a key.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AnyLimiter::acquire`].
    pub fn acquire(&self, key: &str) -> AcquireAny {
        self.acquire_many(key, AllRequest::new())
    }

    /// Waits for the permits of a request from a key.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AnyLimiter::acquire_many`].
    pub fn acquire_many<'a>(&self, key: &str, request: impl Into<AllRequest<'a>>) -> AcquireAny {
        self.limiter(key).acquire_many(request)
    }

    /// Waits for one permit of each limit of a key if that takes no longer than `within`, and
    /// otherwise refuses at once.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AnyLimiter::acquire_within`].
    pub fn acquire_within(&self, key: &str, within: Duration) -> AcquireAny {
        self.acquire_many(key, AllRequest::new().within(within))
    }

    /// Waits for one permit of each limit of a key, and blocks the thread until then.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AnyLimiter::blocking_acquire`].
    pub fn blocking_acquire(&self, key: &str) -> Result<AllPermits, AllRefusal> {
        self.blocking_acquire_many(key, AllRequest::new())
    }

    /// Waits for the permits of a request from a key, and blocks the thread until then.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AnyLimiter::blocking_acquire_many`].
    pub fn blocking_acquire_many<'a>(
        &self,
        key: &str,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AllPermits, AllRefusal> {
        self.limiter(key).blocking_acquire_many(request)
    }

    /// Makes a reservation in the queue of a key, for a cost that is known only later, like
    /// [`StoreLimiter::reserve`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`StoreLimiter::reserve`].
    pub fn reserve<'a>(
        &self,
        key: &str,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AnyReservation, AllRefusal> {
        self.limiter(key).reserve(request)
    }

    /// Returns a snapshot of the limits of a key, without blocking a thread.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`StoreLimiter::status`].
    pub async fn status(&self, key: &str) -> Result<AllStatus, AllRefusal> {
        self.limiter(key).status().await
    }

    /// Returns how many keys are in use in this process. A key is in use while a request for it is
    /// decided or waits, while its [limiter](StoreKeyedLimiter::limiter) is held, or while it has a
    /// lease.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.tags.len()
    }

    /// Returns whether no key is in use in this process.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the observer of all keys, in addition to that of the store, like
    /// [`StoreLimiter::observe`]. Returns `false`, and changes nothing, if there is one already.
    /// The observer does not receive the key.
    pub fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.0.prepared.observers.observe(events)
    }

    /// Sets for all keys whether requests that would be refused pass without permits, like
    /// [`StoreLimiter::set_shadow`].
    pub fn set_shadow_all(&self, shadow: bool) {
        self.0.tags.set_shadow(shadow);
    }

    /// Returns whether all keys are in [shadow mode](StoreKeyedLimiter::set_shadow_all).
    #[must_use]
    pub fn is_shadow_all(&self) -> bool {
        self.0.tags.is_shadow()
    }

    /// Bounds the requests that wait for one key, like [`StoreLimiter::set_queue_bounds`].
    pub fn set_queue_bounds(&self, bounds: QueueBounds) {
        self.0.tags.set_bounds(bounds);
    }

    /// Closes this limiter for all keys, for good, including keys that come later. Waiting and
    /// later requests are refused with [`Refusal::Closed`](tidegate::Refusal::Closed). It applies
    /// to this process. Returns whether the limiter was open.
    pub fn close(&self) -> bool {
        let (was_open, lines) = self.0.tags.close();
        for line in lines {
            line.close();
        }
        was_open
    }

    /// Returns whether the limiter was [closed](StoreKeyedLimiter::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.tags.is_closed()
    }
}

/// Omits the keys.
impl fmt::Debug for StoreKeyedLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreKeyedLimiter")
            .field("store", &self.0.prepared.store)
            .field("limits", &self.0.prepared.members)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl KeyedLimiter<String> for StoreKeyedLimiter {
    fn limiter(&self, key: String) -> Result<AnyLimiter, AllRefusal> {
        Ok(StoreKeyedLimiter::limiter(self, &key).into())
    }

    fn close(&self) -> bool {
        StoreKeyedLimiter::close(self)
    }

    fn is_closed(&self) -> bool {
        StoreKeyedLimiter::is_closed(self)
    }
}

impl From<StoreKeyedLimiter> for AnyKeyed<String> {
    fn from(limiter: StoreKeyedLimiter) -> AnyKeyed<String> {
        AnyKeyed::new(limiter)
    }
}
