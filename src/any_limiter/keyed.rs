//! [`AnyKeyed`]: a limiter of each key, without type parameters but the key.

use std::fmt;
use std::sync::Arc;

use crate::all_of::AllRefusal;
use crate::any_limiter::AnyLimiter;

/// What every limiter of keys can do, without type parameters but the key: for [`AnyKeyed`].
pub trait KeyedLimiter<K>: fmt::Debug + Send + Sync + 'static {
    /// The limiter of this key. Asks for no permits.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`](crate::Refusal) if the key has no room.
    fn limiter(&self, key: K) -> Result<AnyLimiter, AllRefusal>;
}

/// A handle to a limiter of keys of any kind: one limit or several for each key, in this process or
/// over a network.
///
/// It is made from a `KeyedRateLimiter`, a `KeyedAllOf` or a `KeyedCountingLimit` (feature
/// `keyed`), or anything else that is a [`KeyedLimiter`]. Clones share the limiter.
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
/// let alice = api.users.limiter("alice")?;
/// alice.try_acquire_many(2)?;
/// assert!(alice.try_acquire().is_err());
/// assert!(api.users.limiter("bob")?.try_acquire().is_ok());
/// # Ok::<(), tidegate::AllRefusal>(())
/// ```
pub struct AnyKeyed<K>(Arc<dyn KeyedLimiter<K>>);

impl<K: 'static> AnyKeyed<K> {
    /// A handle to this limiter.
    #[must_use]
    pub fn new(limiter: impl KeyedLimiter<K>) -> AnyKeyed<K> {
        AnyKeyed(Arc::new(limiter))
    }

    /// The limiter of this key, with every call. Asks for no permits.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`](crate::Refusal) if the key has no room. Most limiters tell that
    /// when they are asked for permits.
    pub fn limiter(&self, key: impl Into<K>) -> Result<AnyLimiter, AllRefusal> {
        self.0.limiter(key.into())
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

    use super::{AllRefusal, AnyKeyed, AnyLimiter, KeyedLimiter, fmt};
    use crate::all_of::KeyedAllOf;
    use crate::any_limiter::OfKey;
    use crate::clock::Timer;
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
    }

    impl<Q, C> KeyedLimiter<Q::Owned> for KeyedAllOf<Q, C>
    where
        Q: ToOwned + ?Sized + Sync + 'static,
        C: Timer + Clone,
    {
        fn limiter(&self, key: Q::Owned) -> Result<AnyLimiter, AllRefusal> {
            Ok(self.for_key(key.borrow())?.into())
        }
    }

    impl<K> KeyedLimiter<K> for KeyedCountingLimit<K>
    where
        K: Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static,
    {
        fn limiter(&self, key: K) -> Result<AnyLimiter, AllRefusal> {
            Ok(self.limit(&key)?.into())
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
        Q: ToOwned + ?Sized + Sync + 'static,
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
