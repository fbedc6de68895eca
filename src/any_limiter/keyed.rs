//! [`AnyKeyed`]: a limiter for each key, with the key as its only type parameter.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::all_of::{AllPermits, AllRefusal, AllRequest};
use crate::any_limiter::{AcquireAny, AnyLimiter, AnyReservation};

/// The calls of any keyed limiter, with the key as the only type parameter; the trait behind
/// [`AnyKeyed`].
pub trait KeyedLimiter<K>: fmt::Debug + Send + Sync + 'static {
    /// Returns the limiter of this key. Asks for no permits.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`](crate::Refusal) if there is no room for the key.
    fn limiter(&self, key: K) -> Result<AnyLimiter, AllRefusal>;

    /// Returns the limiter of this key that decides this request. Defaults to
    /// [`limiter`](KeyedLimiter::limiter).
    ///
    /// # Errors
    ///
    /// The refusal of the request, if the key has no limiter; an observer was notified of it. An
    /// [exempt](crate::Request::exempt) request does not need a limiter of its key.
    fn limiter_for(&self, key: K, request: &AllRequest<'_>) -> Result<AnyLimiter, AllRefusal> {
        let _ = request;
        self.limiter(key)
    }

    /// Takes the permits of a request from this key now, or refuses. Defaults to a call of
    /// [`limiter_for`](KeyedLimiter::limiter_for).
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    fn try_acquire(&self, key: K, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        self.limiter_for(key, request)?.0.try_acquire(request)
    }

    /// Like [`try_acquire`](KeyedLimiter::try_acquire), without blocking the thread.
    fn acquire_now(&self, key: K, request: &AllRequest<'_>) -> AcquireAny {
        match self.limiter_for(key, request) {
            Ok(limiter) => limiter.0.acquire_now(request),
            Err(refusal) => AcquireAny::ready(Err(refusal)),
        }
    }

    /// Waits for the permits of a request from this key. Defaults to the wait of
    /// [`limiter_for`](KeyedLimiter::limiter_for), which is called at once.
    fn acquire(&self, key: K, request: &AllRequest<'_>) -> AcquireAny {
        match self.limiter_for(key, request) {
            Ok(limiter) => limiter.0.acquire(request),
            Err(refusal) => AcquireAny::ready(Err(refusal)),
        }
    }

    /// Closes the limiter for all keys, permanently, and refuses all waiters. Returns whether the
    /// limiter was open.
    fn close(&self) -> bool;

    /// Returns whether the limiter was closed.
    fn is_closed(&self) -> bool;
}

/// A handle to a keyed limiter of any kind: one limit or several for each key, in this process or
/// over a network.
///
/// It is made from a `KeyedRateLimiter`, a `KeyedAllOf` or a `KeyedCountingLimit` (feature
/// `keyed`), or any other [`KeyedLimiter`]. Clones share the limiter.
///
/// # Fairness and cancel safety
///
/// Like the limiter behind the handle. Keys do not affect each other.
///
/// # Cost
///
/// A call for a key allocates the [`AnyLimiter`] of the key.
///
/// # Examples
///
#[cfg_attr(feature = "keyed", doc = "```")]
#[cfg_attr(not(feature = "keyed"), doc = "```ignore")]
/// use tidegate::{AnyKeyed, KeyedRateLimiter, Rate, TokenBucket};
///
/// struct Api {
///     users: AnyKeyed<String>,
/// }
///
/// let policy = TokenBucket::new(Rate::per_second(5), 2);
/// let users: KeyedRateLimiter<String> = KeyedRateLimiter::new(policy, 100_000);
/// let api = Api { users: users.into() };
/// api.users.try_acquire_many("alice", 2)?;
/// assert!(api.users.try_acquire("alice").is_err());
/// assert!(api.users.try_acquire("bob").is_ok());
/// api.users.limiter("bob")?.debit(3)?; // a limiter of the key has every call
/// # Ok::<(), tidegate::AllRefusal>(())
/// ```
pub struct AnyKeyed<K>(pub(super) Arc<dyn KeyedLimiter<K>>);

impl<K: 'static> AnyKeyed<K> {
    /// Creates a handle to this limiter.
    #[must_use]
    pub fn new(limiter: impl KeyedLimiter<K>) -> AnyKeyed<K> {
        AnyKeyed(Arc::new(limiter))
    }

    /// Returns the limiter of this key, which has every call. Asks for no permits.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`](crate::Refusal) if there is no room for the key. Most limiters
    /// return this refusal only when they are asked for permits.
    pub fn limiter(&self, key: impl Into<K>) -> Result<AnyLimiter, AllRefusal> {
        self.0.limiter(key.into())
    }

    /// Returns the limiter of this key that decides this request. Asks for no permits.
    ///
    /// For an [exempt](crate::Request::exempt) request no key is added to a table. So its limiter
    /// shows which limits a key has, and that of a `KeyedAllOf` also shows their status.
    ///
    /// A `KeyedAllOf` may have no limiter of the key for a limit of which the request asks nothing.
    /// Debits and refunds reach the key all the same, but the end of a pause does not leave that
    /// limit of the key empty.
    ///
    /// # Errors
    ///
    /// The refusal of the request, if the key has no limiter; an observer was notified of it.
    ///
    /// # Examples
    ///
    #[cfg_attr(feature = "keyed", doc = "```")]
    #[cfg_attr(not(feature = "keyed"), doc = "```ignore")]
    /// use tidegate::{AllRequest, AnyKeyed, KeyedAllOf, KeyedRateLimiter, Rate, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 2);
    /// let users: KeyedRateLimiter<String> = KeyedRateLimiter::new(policy, 1000);
    /// let api: AnyKeyed<String> = KeyedAllOf::<str>::new("user", &users).into();
    /// let status = api.limiter_for("alice", AllRequest::new().exempt())?.status();
    /// assert_eq!(status.member("user").map(|user| user.available), Some(2));
    /// assert!(users.is_empty());
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub fn limiter_for<'a>(
        &self,
        key: impl Into<K>,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AnyLimiter, AllRefusal> {
        self.0.limiter_for(key.into(), &request.into())
    }

    /// Closes the limiter for all keys, permanently, and refuses all waiters. Returns whether the
    /// limiter was open. The members of a `KeyedAllOf` stay open, and a limiter over a store closes
    /// in this process.
    ///
    /// # Examples
    ///
    #[cfg_attr(feature = "keyed", doc = "```")]
    #[cfg_attr(not(feature = "keyed"), doc = "```ignore")]
    /// use tidegate::{AnyKeyed, KeyedRateLimiter, Rate, Refusal, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let users: AnyKeyed<String> = KeyedRateLimiter::new(policy, 1000).into();
    /// assert!(users.close() && users.is_closed());
    /// let refusal = users.try_acquire("alice").unwrap_err();
    /// assert_eq!(refusal.refusal(), Some(Refusal::Closed));
    /// ```
    #[allow(clippy::must_use_candidate)] // Most callers only close.
    pub fn close(&self) -> bool {
        self.0.close()
    }

    /// Returns whether the limiter was [closed](AnyKeyed::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Takes one permit of each limit of a key now, or refuses, like [`AnyLimiter::try_acquire`].
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    pub fn try_acquire(&self, key: impl Into<K>) -> Result<AllPermits, AllRefusal> {
        self.try_acquire_many(key, AllRequest::new())
    }

    /// Takes the permits of a request from a key now, or refuses, like
    /// [`AnyLimiter::try_acquire_many`].
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    pub fn try_acquire_many<'a>(
        &self,
        key: impl Into<K>,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AllPermits, AllRefusal> {
        self.0.try_acquire(key.into(), &request.into())
    }

    /// Takes the permits of a request from a key now, or refuses, like [`AnyLimiter::acquire_now`]:
    /// with a limiter over a network, the future waits for the reply, and no thread is blocked.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    pub fn acquire_now<'a>(&self, key: impl Into<K>, request: impl Into<AllRequest<'a>>) -> AcquireAny {
        self.0.acquire_now(key.into(), &request.into())
    }

    /// Waits for one permit of each limit of a key.
    ///
    /// # Errors
    ///
    /// Like [`AnyLimiter::acquire`].
    pub fn acquire(&self, key: impl Into<K>) -> AcquireAny {
        self.acquire_many(key, AllRequest::new())
    }

    /// Waits for the permits of a request from a key.
    ///
    /// # Errors
    ///
    /// Like [`AnyLimiter::acquire_many`].
    pub fn acquire_many<'a>(&self, key: impl Into<K>, request: impl Into<AllRequest<'a>>) -> AcquireAny {
        self.0.acquire(key.into(), &request.into())
    }

    /// Waits for one permit of each limit of a key if that takes no longer than `within`; else
    /// refuses at once.
    ///
    /// # Errors
    ///
    /// Like [`AnyLimiter::acquire_within`].
    pub fn acquire_within(&self, key: impl Into<K>, within: Duration) -> AcquireAny {
        self.acquire_many(key, AllRequest::new().within(within))
    }

    /// Takes a position in the queue of a key, for a cost that is known only later, like
    /// [`AnyLimiter::reserve`]. It blocks no thread, because it uses the handle [for
    /// tasks](AnyLimiter::non_blocking).
    ///
    /// # Errors
    ///
    /// Like [`AnyLimiter::reserve`]. A refusal by a limiter over a network is returned when the
    /// reservation is awaited.
    ///
    /// # Examples
    ///
    #[cfg_attr(feature = "keyed", doc = "```")]
    #[cfg_attr(not(feature = "keyed"), doc = "```ignore")]
    /// use tidegate::{AnyKeyed, KeyedRateLimiter, Rate, TokenBucket, TokioClock};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tidegate::AllRefusal> {
    /// let policy = TokenBucket::new(Rate::per_minute(1000), 1000);
    /// let tenants: KeyedRateLimiter<String, _, _> =
    ///     KeyedRateLimiter::with_clock(policy, 100_000, TokioClock::new());
    /// let tenants = AnyKeyed::from(tenants);
    /// let mut call = tenants.reserve("tenant-7", 800)?;
    /// (&mut call).await?;
    /// call.settle(300)?; // gives back 500
    /// assert_eq!(tenants.limiter("tenant-7")?.status().members[0].1.available, 700);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve<'a>(
        &self,
        key: impl Into<K>,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AnyReservation, AllRefusal> {
        let request = request.into();
        self.0.limiter_for(key.into(), &request)?.non_blocking().reserve(request)
    }
}

impl<K: 'static> Clone for AnyKeyed<K> {
    fn clone(&self) -> AnyKeyed<K> {
        AnyKeyed(self.0.clone())
    }
}

impl<K: 'static> fmt::Debug for AnyKeyed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyKeyed").field(&self.0).finish()
    }
}

#[cfg(feature = "keyed")]
mod of_this_process {
    use std::borrow::Borrow;
    use std::hash::Hash;

    use super::{AcquireAny, AllPermits, AllRefusal, AllRequest, AnyKeyed, AnyLimiter, KeyedLimiter, fmt};
    use crate::all_of::KeyedAllOf;
    use crate::any_limiter::OfKey;
    use crate::any_limiter::counting::of_key;
    use crate::any_limiter::single::single_request;
    use crate::clock::Timer;
    use crate::counting::CountingLimit;
    use crate::keyed::{KeyedCountingLimit, KeyedRateLimiter};
    use crate::policy::Policy;

    impl<K, P, C> KeyedLimiter<K> for KeyedRateLimiter<K, P, C>
    where
        K: Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static,
        P: Policy + Clone,
        C: Timer + Clone,
    {
        fn limiter(&self, key: K) -> Result<AnyLimiter, AllRefusal> {
            Ok(OfKey::new(self, key).into())
        }

        fn close(&self) -> bool {
            KeyedRateLimiter::close(self)
        }

        fn is_closed(&self) -> bool {
            KeyedRateLimiter::is_closed(self)
        }
    }

    impl<Q, C> KeyedLimiter<Q::Owned> for KeyedAllOf<Q, C>
    where
        Q: ToOwned<Owned: Send> + ?Sized + Sync + 'static,
        C: Timer + Clone,
    {
        fn limiter(&self, key: Q::Owned) -> Result<AnyLimiter, AllRefusal> {
            Ok(KeyedAllOf::limiter(self, key.borrow())?.into())
        }

        fn limiter_for(&self, key: Q::Owned, request: &AllRequest<'_>) -> Result<AnyLimiter, AllRefusal> {
            Ok(self.for_request(key.borrow(), request)?.into())
        }

        // A request that is decided at once needs no limiter of its key.
        fn try_acquire(&self, key: Q::Owned, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
            self.try_acquire_many(key.borrow(), request.clone())
        }

        fn acquire_now(&self, key: Q::Owned, request: &AllRequest<'_>) -> AcquireAny {
            AcquireAny::ready(self.try_acquire_many(key.borrow(), request.clone()))
        }

        // The first poll decides whether the request needs a limiter of its key.
        fn acquire(&self, key: Q::Owned, request: &AllRequest<'_>) -> AcquireAny {
            let (keys, ask, request) = (self.clone(), self.ask(request), request.request);
            AcquireAny::new(async move { keys.acquire_ask(key.borrow(), ask?, &request).await })
        }

        fn close(&self) -> bool {
            KeyedAllOf::close(self)
        }

        fn is_closed(&self) -> bool {
            KeyedAllOf::is_closed(self)
        }
    }

    impl<K> KeyedLimiter<K> for KeyedCountingLimit<K>
    where
        K: Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static,
    {
        fn limiter(&self, key: K) -> Result<AnyLimiter, AllRefusal> {
            let lease = self.lease(&key)?;
            Ok(of_key(lease.limit, lease.leave))
        }

        fn limiter_for(&self, key: K, request: &AllRequest<'_>) -> Result<AnyLimiter, AllRefusal> {
            let asked = request.to_request();
            // A request that takes nothing adds no key.
            if asked.exempt {
                return Ok(CountingLimit::observed_by(0, self.table().events_of(&key)).into());
            }
            KeyedLimiter::limiter(self, key.clone()).inspect_err(|refusal| {
                let permits = single_request(request).map_or(asked.permits, |asked| asked.permits);
                if let Some(refusal) = refusal.refusal() {
                    self.report_refused(&key, permits.into(), &refusal);
                }
            })
        }

        fn close(&self) -> bool {
            KeyedCountingLimit::close(self)
        }

        fn is_closed(&self) -> bool {
            KeyedCountingLimit::is_closed(self)
        }
    }

    impl<K, P, C> From<KeyedRateLimiter<K, P, C>> for AnyKeyed<K>
    where
        K: Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static,
        P: Policy + Clone,
        C: Timer + Clone,
    {
        fn from(keys: KeyedRateLimiter<K, P, C>) -> AnyKeyed<K> {
            AnyKeyed::new(keys)
        }
    }

    impl<Q, C> From<KeyedAllOf<Q, C>> for AnyKeyed<Q::Owned>
    where
        Q: ToOwned<Owned: Send> + ?Sized + Sync + 'static,
        C: Timer + Clone,
    {
        fn from(keys: KeyedAllOf<Q, C>) -> AnyKeyed<Q::Owned> {
            AnyKeyed::new(keys)
        }
    }

    impl<K> From<KeyedCountingLimit<K>> for AnyKeyed<K>
    where
        K: Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static,
    {
        fn from(keys: KeyedCountingLimit<K>) -> AnyKeyed<K> {
            AnyKeyed::new(keys)
        }
    }
}
