//! [`Replaceable`]: a limiter that a program replaces while it is in use.

use std::convert::Infallible;
use std::fmt;
use std::mem::replace;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::all_of::{AllPermits, AllRefusal, AllRequest, AllStatus};
use crate::any_limiter::{
    AcquireAny, AnyKeyed, AnyLimiter, AnyReservation, FetchStatus, KeyedLimiter, Limiter,
};
use crate::limiter::Pause;
use crate::line::deferred::{resume_panic, run};

/// A limiter that a program can replace while adapters and tasks use it: for a configuration that
/// is read again.
///
/// It holds an [`AnyLimiter`], or an [`AnyKeyed`], and is itself a limiter of that kind: the
/// program passes a clone to a layer or a client, and keeps another one for
/// [`replace`](Replaceable::replace). Clones share the limiter that they hold.
///
/// A limiter of this process that only gets another rate, burst or window needs no `Replaceable`:
/// see [`RateLimiter::change`](crate::RateLimiter::change), and `RateLimiter::apply` for a
/// configuration (feature `config`). They keep the permits, and move the waiters.
///
/// # Which limiter a call reaches
///
/// Each call concerns the limiter that is held when the call is made. A request that waits, a
/// reservation, and a limiter of one key that [`AnyKeyed::limiter`] returned, stay with their
/// limiter after it was replaced. So do pauses and debits. But a closed `Replaceable` stays closed.
///
/// A refund is a call of its own: after a replacement it gives the permits to the new limiter,
/// although the old one granted them. Settling a reservation has no such effect. An adapter may
/// read the names of the members only once, as `tidegate_http::obey::Obey` does: make a new adapter
/// for a limiter with other members.
///
/// # Fairness and cancel safety
///
/// Like the limiter that it holds. Requests of two limiters have no order.
///
/// # Cost
///
/// A call costs one more lock that readers share, and one more virtual call.
///
/// # Examples
///
/// ```
/// use tidegate::{AnyLimiter, Rate, RateLimiter, Replaceable, SlidingLog, TokenBucket};
///
/// let bucket = RateLimiter::new(TokenBucket::new(Rate::per_minute(5), 2));
/// let current = Replaceable::new(bucket.into());
/// let in_layer = AnyLimiter::from(current.clone()); // what adapters take
/// assert!(in_layer.try_acquire_many(3).is_err()); // more than the burst
///
/// // The configuration was read again.
/// let log = RateLimiter::new(SlidingLog::new(Rate::per_minute(10)));
/// current.replace(log.into());
/// assert!(in_layer.try_acquire_many(3).is_ok());
/// ```
pub struct Replaceable<L = AnyLimiter> {
    held: Arc<RwLock<Held<L>>>,
    /// Whether calls must not block their thread.
    for_tasks: bool,
}

struct Held<L> {
    limiter: L,
    /// The number of limiters that were replaced.
    replaced: u64,
    is_closed: bool,
}

impl<L: Clone> Replaceable<L> {
    /// Creates a handle that holds this limiter: an [`AnyLimiter`] or an [`AnyKeyed`].
    #[must_use]
    pub fn new(limiter: L) -> Replaceable<L> {
        let held = Held { limiter, replaced: 0, is_closed: false };
        Replaceable { held: Arc::new(RwLock::new(held)), for_tasks: false }
    }

    /// Replaces the limiter, and returns the one that was held. Later calls concern the new one.
    ///
    /// The limiter that was held still serves the requests that wait for it, on its terms; close it
    /// to refuse them. A new limiter of this process starts with its own permits. If a new limiter
    /// over a store has the same tag and names, it continues with the permits in the store.
    ///
    /// After `close` of this handle or a clone, this call replaces nothing, and returns the new
    /// limiter.
    ///
    /// The new limiter must not contain this `Replaceable`: each of its calls would call itself.
    #[allow(clippy::must_use_candidate)] // Most callers drop it.
    pub fn replace(&self, limiter: L) -> L {
        let mut held = self.write();
        if held.is_closed {
            return limiter;
        }
        held.replaced += 1;
        replace(&mut held.limiter, limiter)
    }

    /// Returns the limiter that is held now.
    #[must_use]
    pub fn current(&self) -> L {
        self.read().limiter.clone()
    }

    /// Closes the limiter that is held, and then keeps it for good. A limiter that replaces it
    /// while it is being closed is closed as well. Nothing is locked while a limiter is closed.
    fn close_current<E>(&self, close: impl Fn(&L) -> Result<bool, E>) -> Result<bool, E> {
        let (mut was_open, mut panic) = (false, None);
        loop {
            let replaced = self.read().replaced;
            // A panic of a waker does not keep the limiter from being closed.
            was_open |= run(&mut panic, || close(&self.current())).transpose()?.unwrap_or_default();
            let mut held = self.write();
            if held.replaced == replaced {
                held.is_closed = true;
                break;
            }
        }
        resume_panic(panic);
        Ok(was_open)
    }

    fn read(&self) -> RwLockReadGuard<'_, Held<L>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Held<L>> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L> Clone for Replaceable<L> {
    fn clone(&self) -> Replaceable<L> {
        Replaceable { held: self.held.clone(), for_tasks: self.for_tasks }
    }
}

impl<L: Clone + fmt::Debug> fmt::Debug for Replaceable<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Replaceable").field(&self.current()).finish()
    }
}

impl Replaceable<AnyLimiter> {
    /// The limiter that a call concerns.
    fn called(&self) -> AnyLimiter {
        if self.for_tasks { self.current().non_blocking() } else { self.current() }
    }
}

impl Limiter for Replaceable<AnyLimiter> {
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        self.called().0.try_acquire(request)
    }

    fn acquire_now(&self, request: &AllRequest<'_>) -> AcquireAny {
        self.called().0.acquire_now(request)
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        self.called().0.acquire(request)
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        self.called().0.blocking_acquire(request)
    }

    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        self.called().0.reserve(request)
    }

    fn status(&self) -> AllStatus {
        self.called().status()
    }

    fn fetch_status(&self) -> FetchStatus {
        self.called().0.fetch_status()
    }

    fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        self.called().pause(pause)
    }

    fn resume(&self) -> bool {
        self.called().resume()
    }

    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.called().0.debit(costs)
    }

    fn refund(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.called().0.refund(costs)
    }

    fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal> {
        self.called().keep_at_most(name, permits)
    }

    fn close(&self) -> Result<bool, AllRefusal> {
        self.close_current(AnyLimiter::close)
    }

    fn is_closed(&self) -> bool {
        self.current().is_closed()
    }

    fn non_blocking(&self) -> Option<AnyLimiter> {
        // Also for a limiter of this process, because one over a store may replace it.
        (!self.for_tasks).then(|| Replaceable { for_tasks: true, ..self.clone() }.into())
    }

    fn may_block(&self) -> bool {
        !self.for_tasks && self.current().may_block()
    }
}

impl<K: 'static> KeyedLimiter<K> for Replaceable<AnyKeyed<K>> {
    fn limiter(&self, key: K) -> Result<AnyLimiter, AllRefusal> {
        self.current().limiter(key)
    }

    fn limiter_for(&self, key: K, request: &AllRequest<'_>) -> Result<AnyLimiter, AllRefusal> {
        self.current().0.limiter_for(key, request)
    }

    fn try_acquire(&self, key: K, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        self.current().0.try_acquire(key, request)
    }

    fn acquire_now(&self, key: K, request: &AllRequest<'_>) -> AcquireAny {
        self.current().0.acquire_now(key, request)
    }

    fn acquire(&self, key: K, request: &AllRequest<'_>) -> AcquireAny {
        self.current().0.acquire(key, request)
    }

    fn close(&self) -> bool {
        self.close_current(|limiter| Ok::<_, Infallible>(limiter.close()))
            .unwrap_or_else(|never| match never {})
    }

    fn is_closed(&self) -> bool {
        self.current().is_closed()
    }
}

impl<K: 'static> From<Replaceable<AnyKeyed<K>>> for AnyKeyed<K> {
    fn from(limiter: Replaceable<AnyKeyed<K>>) -> AnyKeyed<K> {
        AnyKeyed::new(limiter)
    }
}
