//! Limits of calls in flight only, as a [`Limit`].
//!
//! A counting limit has no reservations, so permits that can be settled are those of a composite.
//! It has no exemptions either, so a composite grants them, and notifies the observer.

use std::fmt;
use std::hash::Hash;

use tidegate::{
    AcquireAny, AllPermits, AllRefusal, AllRequest, AllStatus, AnyKeyed, AnyLimiter, AnyReservation,
    CountingLimit, CountingPermit, Grant, KeyedCountingLimit, KeyedCountingPermit, Refusal, Request,
};

use crate::limit::{Limit, or_empty, reserve_of_key};
use crate::refused::NAME;

/// Returns `n` permits. Dropping them drops `held`, which gives the permits back.
fn granted(n: u32, held: impl Send + Sync + 'static) -> AllPermits {
    AllPermits::with_guard(Grant::new(n, tidegate::Nanos::ZERO), held)
}

impl Limit for CountingLimit {
    type Key = ();
    type Ask = Request;

    fn try_acquire(&self, (): &(), ask: &Request) -> Result<AllPermits, AllRefusal> {
        if ask.exempt {
            return AnyLimiter::from(self.clone()).try_acquire_many(*ask);
        }
        let permit: CountingPermit = self.try_acquire_many(ask.permits)?;
        Ok(granted(ask.permits, permit))
    }

    fn acquire(&self, (): &(), ask: &Request) -> AcquireAny {
        if ask.exempt {
            return AcquireAny::ready(Limit::try_acquire(self, &(), ask));
        }
        let (limit, ask) = (self.clone(), *ask);
        wait(ask.permits, async move {
            match ask.within {
                Some(within) => limit.acquire_many_within(ask.permits, within).await,
                None => limit.acquire_many(ask.permits).await,
            }
        })
    }

    fn reserve(&self, (): &(), ask: &Request) -> Result<AnyReservation, AllRefusal> {
        let limit = AnyLimiter::from(self.clone());
        or_empty(limit.reserve(AllRequest::from(*ask)), || limit)
    }

    fn status(&self, (): &()) -> Option<AllStatus> {
        Some(AllStatus::new([(NAME, CountingLimit::status(self))]))
    }
}

impl<K> Limit for KeyedCountingLimit<K>
where
    K: Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static,
{
    type Key = K;
    type Ask = Request;

    fn try_acquire(&self, key: &K, ask: &Request) -> Result<AllPermits, AllRefusal> {
        if ask.exempt {
            return AnyKeyed::from(self.clone()).try_acquire_many(key.clone(), *ask);
        }
        let permit: KeyedCountingPermit<K> = self.try_acquire_many(key, ask.permits)?;
        Ok(granted(ask.permits, permit))
    }

    fn acquire(&self, key: &K, ask: &Request) -> AcquireAny {
        if ask.exempt {
            return AcquireAny::ready(Limit::try_acquire(self, key, ask));
        }
        let (limit, key, ask) = (self.clone(), key.clone(), *ask);
        wait(ask.permits, async move {
            match ask.within {
                Some(within) => limit.acquire_many_within(&key, ask.permits, within).await,
                None => limit.acquire_many(&key, ask.permits).await,
            }
        })
    }

    fn reserve(&self, key: &K, ask: &Request) -> Result<AnyReservation, AllRefusal> {
        reserve_of_key(&AnyKeyed::from(self.clone()), key, AllRequest::from(*ask))
    }

    fn status(&self, key: &K) -> Option<AllStatus> {
        // A key without room has no limit to report.
        Some(AllStatus::new([(NAME, self.limiter(key).ok()?.status())]))
    }
}

/// Waits for `n` permits.
fn wait<P: Send + Sync + 'static>(
    n: u32,
    permit: impl Future<Output = Result<P, Refusal>> + Send + 'static,
) -> AcquireAny {
    AcquireAny::new(async move { Ok(granted(n, permit.await?)) })
}
