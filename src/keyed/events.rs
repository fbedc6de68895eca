//! Observers of all keys that receive the key.

use std::sync::Arc;
use std::time::Duration;

use super::key_ref::KeyRef;
use crate::error::Refusal;
use crate::grant::Left;
use crate::limiter::events::{Events, StoreEvent};

/// Like [`Events`], but each method also receives the key. Pass an observer to
/// [`KeyedRateLimiter::observed_by_key`](crate::KeyedRateLimiter::observed_by_key) or
/// [`KeyedCountingLimit::observed_by_key`](crate::KeyedCountingLimit::observed_by_key).
///
/// Each method does nothing by default. A method runs on the thread of the call that it reports,
/// after the call was decided and without any lock, so it may call the limiter. A panic of an
/// observer unwinds the call that it reports. The permits of that call stay spent; permits in use
/// are given back.
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

/// Creates the observer of one key.
type ObserverOf<K> = dyn Fn(K) -> Arc<dyn Events> + Send + Sync;

/// The observers of all keys: one, or one of each kind.
pub(crate) enum KeyedObserver<K> {
    /// The observer does not receive the key.
    All(Arc<dyn Events>),
    /// The observer receives the key. This is a function, because most of the table does not know
    /// that keys can be shared between threads.
    Key { of: Arc<ObserverOf<K>>, all: Option<Arc<dyn Events>> },
}

impl<K> Clone for KeyedObserver<K> {
    fn clone(&self) -> Self {
        match self {
            KeyedObserver::All(all) => KeyedObserver::All(all.clone()),
            KeyedObserver::Key { of, all } => KeyedObserver::Key { of: of.clone(), all: all.clone() },
        }
    }
}

impl<K> KeyedObserver<K> {
    /// These observers with another one that does not receive the key.
    pub(super) fn with_all(this: Option<&Self>, all: Arc<dyn Events>) -> Self {
        match this {
            Some(KeyedObserver::Key { of, .. }) => KeyedObserver::Key { of: of.clone(), all: Some(all) },
            Some(KeyedObserver::All(_)) | None => KeyedObserver::All(all),
        }
    }

    /// These observers with another one that receives the key.
    pub(super) fn with_key(this: Option<&Self>, events: Arc<dyn KeyEvents<K>>) -> Self
    where
        K: Send + Sync + 'static,
    {
        let of = move |key| -> Arc<dyn Events> { Arc::new(OneKey { key, events: events.clone() }) };
        KeyedObserver::Key { of: Arc::new(of), all: this.and_then(KeyedObserver::all).cloned() }
    }

    /// Returns the observer that does not receive the key.
    pub(super) fn all(&self) -> Option<&Arc<dyn Events>> {
        match self {
            KeyedObserver::All(all) => Some(all),
            KeyedObserver::Key { all, .. } => all.as_ref(),
        }
    }

    /// Returns the observer of one key. Clones the key if an observer receives it.
    pub(super) fn of<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Arc<dyn Events> {
        match self {
            KeyedObserver::All(all) => all.clone(),
            KeyedObserver::Key { of, all: None } => of(key.to_owned()),
            KeyedObserver::Key { of, all: Some(all) } => Arc::new((all.clone(), of(key.to_owned()))),
        }
    }
}

/// Reports the events of one key to the observer of all keys.
struct OneKey<K> {
    key: K,
    events: Arc<dyn KeyEvents<K>>,
}

// An event without a method here would be lost silently, so clippy requires a method for each
// event.
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

    // The limiters of keys have no store, and report none of these events.

    fn degraded(&self, _permits: u64) {}

    fn near_limit(&self, _name: &str, _left: &Left) {}

    fn store(&self, _event: &StoreEvent) {}
}
