//! Observers of all keys that are told the key.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Refusal;
use crate::grant::Left;
use crate::limiter::events::{Events, StoreEvent};

/// As [`Events`], and also told the key: give it to
/// [`KeyedRateLimiter::observed_by_key`](crate::KeyedRateLimiter::observed_by_key) or
/// [`KeyedCountingLimit::observed_by_key`](crate::KeyedCountingLimit::observed_by_key).
///
/// Each method does nothing unless written. The methods are called in the thread of the call that
/// they are about, after it was decided and without any lock, so they may call the limiter. A panic
/// of an observer unwinds the call that it is told of, and the permits of that call are spent;
/// permits in use are given back.
///
/// # Examples
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use tidegate::keyed::KeyEvents;
/// use tidegate::{KeyedRateLimiter, ManualClock, Rate, Refusal, TokenBucket};
///
/// #[derive(Default)]
/// struct Refused(Mutex<Vec<String>>);
///
/// impl KeyEvents<String> for Refused {
///     fn refused(&self, user: &String, _permits: u64, refusal: &Refusal) {
///         self.0.lock().unwrap().push(format!("{user}: {refusal}"));
///     }
/// }
///
/// let refused = Arc::new(Refused::default());
/// let policy = TokenBucket::new(Rate::per_second(5), 1);
/// let users = KeyedRateLimiter::with_clock(policy, 100, ManualClock::new())
///     .observed_by_key(refused.clone());
/// users.try_acquire("alice")?;
/// assert!(users.try_acquire("alice").is_err());
/// assert_eq!(*refused.0.lock().unwrap(), ["alice: limited, retry after 200ms"]);
/// # Ok::<(), Refusal>(())
/// ```
pub trait KeyEvents<K>: Send + Sync + 'static {
    /// See [`Events::granted`].
    fn granted(&self, key: &K, permits: u64, waited: Duration) {
        let _ = (key, permits, waited);
    }

    /// See [`Events::refused`].
    fn refused(&self, key: &K, permits: u64, refusal: &Refusal) {
        let _ = (key, permits, refusal);
    }

    /// See [`Events::cancelled`].
    fn cancelled(&self, key: &K, permits: u64, waited: Duration) {
        let _ = (key, permits, waited);
    }

    /// See [`Events::shadowed`].
    fn shadowed(&self, key: &K, permits: u64, refusal: &Refusal) {
        let _ = (key, permits, refusal);
    }

    /// See [`Events::exempted`].
    fn exempted(&self, key: &K, permits: u64) {
        let _ = (key, permits);
    }

    /// See [`Events::paused`].
    fn paused(&self, key: &K, remaining: Duration) {
        let _ = (key, remaining);
    }

    /// See [`Events::resumed`].
    fn resumed(&self, key: &K) {
        let _ = key;
    }
}

/// Makes the observer of one key.
type ObserverOf<K> = dyn Fn(K) -> Arc<dyn Events> + Send + Sync;

/// The observer of all keys.
pub(crate) enum Watch<K> {
    /// It is not told the key.
    All(Arc<dyn Events>),
    /// It is told the key. A function, because most of the table does not know that keys can be
    /// shared between threads.
    Key(Arc<ObserverOf<K>>),
}

impl<K> Clone for Watch<K> {
    fn clone(&self) -> Self {
        match self {
            Watch::All(events) => Watch::All(events.clone()),
            Watch::Key(of) => Watch::Key(of.clone()),
        }
    }
}

impl<K> Watch<K> {
    pub(super) fn with_key(events: Arc<dyn KeyEvents<K>>) -> Self
    where
        K: Send + Sync + 'static,
    {
        Watch::Key(Arc::new(move |key| Arc::new(OneKey { key, events: events.clone() })))
    }

    /// Returns the observer of one key. Clones the key if the observer is told it.
    pub(super) fn of<Q>(&self, key: &Q) -> Arc<dyn Events>
    where
        Q: ToOwned<Owned = K> + ?Sized,
    {
        match self {
            Watch::All(events) => events.clone(),
            Watch::Key(of) => of(key.to_owned()),
        }
    }
}

/// Tells the observer of all keys what happens to one key.
struct OneKey<K> {
    key: K,
    events: Arc<dyn KeyEvents<K>>,
}

// An event with no method here would be lost without a word, so clippy wants a method for each.
#[deny(clippy::missing_trait_methods)]
impl<K: Send + Sync + 'static> Events for OneKey<K> {
    fn granted(&self, permits: u64, waited: Duration) {
        self.events.granted(&self.key, permits, waited);
    }

    fn refused(&self, permits: u64, refusal: &Refusal) {
        self.events.refused(&self.key, permits, refusal);
    }

    fn cancelled(&self, permits: u64, waited: Duration) {
        self.events.cancelled(&self.key, permits, waited);
    }

    fn shadowed(&self, permits: u64, refusal: &Refusal) {
        self.events.shadowed(&self.key, permits, refusal);
    }

    fn exempted(&self, permits: u64) {
        self.events.exempted(&self.key, permits);
    }

    fn paused(&self, remaining: Duration) {
        self.events.paused(&self.key, remaining);
    }

    fn resumed(&self) {
        self.events.resumed(&self.key);
    }

    // The limiters of keys have no store, and tell none of these.

    fn degraded(&self, _permits: u64) {}

    fn near_limit(&self, _name: &str, _left: &Left) {}

    fn store(&self, _event: &StoreEvent) {}
}
