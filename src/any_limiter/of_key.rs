//! One key of a [`KeyedRateLimiter`], without type parameters.

use std::fmt;
use std::hash::Hash;

use crate::all_of::{AllPermits, AllRefusal, AllRequest, AllStatus};
use crate::any_limiter::single::{
    Single, charged, check_name, refused, single_request, status_of, waited, with_status,
};
use crate::any_limiter::{AcquireAny, AnyReservation, Limiter};
use crate::clock::{DefaultClock, Timer};
use crate::keyed::KeyedRateLimiter;
use crate::keyed::pause::Hold;
use crate::keyed::table::Found;
use crate::limiter::Pause;
use crate::policy::{Policy, TokenBucket};

/// One key of a [`KeyedRateLimiter`] as a [`Limiter`]. Each call looks the key up, so that an
/// unused key can be forgotten. A key that is paused, or was closed, is not forgotten, unless it is
/// [removed](KeyedRateLimiter::remove).
///
/// # Examples
///
/// ```
/// use tidegate::{AnyLimiter, KeyedRateLimiter, OfKey, Rate, TokenBucket};
///
/// let policy = TokenBucket::new(Rate::per_second(5), 2);
/// let users: KeyedRateLimiter<String> = KeyedRateLimiter::new(policy, 1000);
/// let alice = AnyLimiter::new(OfKey::new(&users, "alice".to_owned()));
/// alice.try_acquire_many(2)?;
/// assert!(alice.try_acquire().is_err());
/// # Ok::<(), tidegate::AllRefusal>(())
/// ```
pub struct OfKey<K, P: Policy + Clone = TokenBucket, C: Timer = DefaultClock> {
    keys: KeyedRateLimiter<K, P, C>,
    key: K,
}

impl<K, P: Policy + Clone, C: Timer> OfKey<K, P, C> {
    /// Creates a handle to this key of this limiter. Makes no room for the key, and asks for no
    /// permits.
    #[must_use]
    pub fn new(keys: &KeyedRateLimiter<K, P, C>, key: K) -> Self {
        OfKey { keys: keys.clone(), key }
    }
}

impl<K, P, C> Limiter for OfKey<K, P, C>
where
    K: Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static,
    P: Policy + Clone,
    C: Timer + Clone,
{
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        let request = single_request(request)?;
        if request.wants_left {
            return with_status(self.keys.try_acquire_with_status(&self.key, request));
        }
        Ok(self.keys.try_acquire_many(&self.key, request)?.into())
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        let (request, keys, key) = (single_request(request), self.keys.clone(), self.key.clone());
        AcquireAny::new(async move {
            let request = request?;
            waited(&request, keys.acquire_many(&key, request).await, || keys.status(&key))
        })
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        let request = single_request(request)?;
        let answer = self.keys.blocking_acquire_many(&self.key, request);
        waited(&request, answer, || self.keys.status(&self.key))
    }

    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        let request = single_request(request)?;
        match self.keys.reserve(&self.key, request) {
            Ok(reservation) => Ok(AnyReservation::new(Single { reservation, left: None })),
            Err(refusal) => Err(refused(&request, refusal, || self.keys.status(&self.key))),
        }
    }

    fn status(&self) -> AllStatus {
        status_of(self.keys.status(&self.key))
    }

    fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        self.keys.table().own_limiter(&self.key)?.pause(pause);
        Ok(())
    }

    fn resume(&self) -> bool {
        let table = self.keys.table();
        let now = table.clock.now();
        let is_paused = |_: &P, _: &P::State, hold: Option<&Hold>| hold.is_some_and(|hold| now < hold.opens);
        // Makes no room for a key that is not paused.
        let paused_with_all = match table.find(&self.key, is_paused) {
            Found::Limiter(limiter) => return limiter.resume(),
            Found::Known(paused) => paused,
            Found::Unknown => table.unknown(&self.key, is_paused),
        };
        // The key continues separately, in a limiter of its own.
        paused_with_all && table.own_limiter(&self.key).is_ok_and(|limiter| limiter.resume())
    }

    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        Ok(self.keys.debit(&self.key, charged(costs)?)?)
    }

    fn refund(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.keys.refund(&self.key, charged(costs)?);
        Ok(())
    }

    fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal> {
        check_name(name)?;
        Ok(self.keys.keep_at_most(&self.key, permits)?)
    }

    /// Closes only this key, until the key is [removed](KeyedRateLimiter::remove).
    fn close(&self) -> Result<bool, AllRefusal> {
        let is_open = !self.keys.is_closed();
        Ok(is_open && self.keys.table().own_limiter(&self.key)?.close())
    }

    fn is_closed(&self) -> bool {
        // Makes no room for the key: a key without a limiter of its own is not closed.
        let found = self.keys.table().find(&self.key, |_, _, _| ());
        self.keys.is_closed() || matches!(found, Found::Limiter(limiter) if limiter.is_closed())
    }
}

impl<K: fmt::Debug, P: Policy + Clone, C: Timer> fmt::Debug for OfKey<K, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfKey").field("key", &self.key).field("keys", &self.keys).finish()
    }
}
