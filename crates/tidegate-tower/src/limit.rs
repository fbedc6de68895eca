//! [`Limit`]: a limiter that a layer can ask for permits.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use tidegate::{
    AcquireAny, AllOf, AllPermits, AllRefusal, AllRequest, AllStatus, AnyKeyed, AnyLimiter, AnyReservation,
    KeyedAllOf, KeyedLimiter, KeyedRateLimiter, Limiter, OfKey, Policy, RateLimiter, Refusal, Request, Timer,
};

/// A limiter that a [`RateLimitLayer`](crate::RateLimitLayer) can ask: every limiter of the crate
/// `tidegate`, or a custom limiter.
///
/// | limiter | key | a cost is |
/// |---|---|---|
/// | [`RateLimiter`] | none | a [`Request`] |
/// | [`KeyedRateLimiter`] | its key | a [`Request`] |
/// | [`AllOf`] | none | an [`AllRequest`] |
/// | [`KeyedAllOf`] | its key, owned | an [`AllRequest`] |
/// | [`CountingLimit`](tidegate::CountingLimit) | none | a [`Request`] without priority |
/// | [`KeyedCountingLimit`](tidegate::KeyedCountingLimit) | its key | a [`Request`] without priority |
/// | [`AnyLimiter`] | none | an [`AllRequest`] |
/// | [`AnyKeyed`] | its key | an [`AllRequest`] |
///
/// Clones must share their permits, because each service of a layer has its own clone. A limiter
/// over a network is an [`AnyLimiter`] or an [`AnyKeyed`]. A layer over it blocks no thread.
///
/// # Calls in flight
///
/// A counting limit has no priorities. A request for [up to](Request::up_to) a number of permits
/// gets the fewest that it accepts. An [`AnyLimiter`] made from a counting limit has priorities and
/// pauses. To limit a rate as well, put both into an [`AllOf`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no limiter that a layer can ask",
    note = "give the layer the limiter itself, without `Arc` or `&`: its clones share their permits",
    note = "a limiter of your own is a `tidegate::Limiter`: write `AnyLimiter::new(limiter)`",
    note = "limits of each key in a store: write `AnyKeyed::from(limits)`"
)]
pub trait Limit: Clone + Send + Sync + 'static {
    /// The key of a request; `()` if the limiter has no keys.
    type Key: Clone + Send + Sync + 'static;

    /// What a request asks for. The default is one permit of each limit.
    type Ask: Ask;

    /// Takes the permits now, or refuses.
    ///
    /// # Errors
    ///
    /// The reason of the refusal. Nothing was taken.
    fn try_acquire(&self, key: &Self::Key, ask: &Self::Ask) -> Result<AllPermits, AllRefusal>;

    /// Takes the permits now, or refuses, like [`try_acquire`](Limit::try_acquire). The future
    /// waits only for the decision, not for permits. A limiter over a network must implement this
    /// method; the default future is ready at once.
    fn acquire_now(&self, key: &Self::Key, ask: &Self::Ask) -> AcquireAny {
        AcquireAny::ready(self.try_acquire(key, ask))
    }

    /// Waits for the permits.
    fn acquire(&self, key: &Self::Key, ask: &Self::Ask) -> AcquireAny;

    /// Enters the queue now, for permits that are settled later. For an estimate of 0 it returns an
    /// [`AnyReservation::empty`]. It must not block the thread: the reservation at a limiter over a
    /// network is decided when it is [awaited](AnyLimiter::non_blocking).
    ///
    /// # Errors
    ///
    /// The reason of the refusal. Nothing was taken.
    fn reserve(&self, key: &Self::Key, ask: &Self::Ask) -> Result<AnyReservation, AllRefusal>;

    /// Returns a snapshot of the limits of a key, unless that takes a call to a store. A layer
    /// reports this snapshot if the decision has no [state](AllPermits::left) and [is not
    /// degraded](AllPermits::is_degraded).
    fn status(&self, key: &Self::Key) -> Option<AllStatus>;

    /// Returns the number of limits, without a call to a store; `None` if the number is unknown. If
    /// there is only one limit, it gets the [name](crate::RateLimitLayer::named) of the layer. The
    /// default implementation counts the members of the status.
    fn members(&self, key: &Self::Key) -> Option<usize> {
        self.status(key).map(|status| status.members.len())
    }
}

/// A request to a [`Limit`]: [`Request`] or [`AllRequest`].
pub trait Ask: Clone + Default + Send + Sync + 'static {
    /// Sets the maximum wait, unless the request has a shorter one.
    #[must_use]
    fn within(self, within: Duration) -> Self;

    /// Asks for the state of each limit along with the decision.
    #[must_use]
    fn with_left(self) -> Self;

    /// Returns whether the request takes nothing and always passes. A layer then reports no state
    /// of the limits.
    fn is_exempt(&self) -> bool;
}

impl Ask for Request {
    fn within(self, within: Duration) -> Self {
        Request::within(self, self.within.map_or(within, |own| own.min(within)))
    }

    fn with_left(self) -> Self {
        Request::with_left(self)
    }

    fn is_exempt(&self) -> bool {
        self.exempt
    }
}

impl Ask for AllRequest<'static> {
    fn within(self, within: Duration) -> Self {
        let own = self.to_request().within;
        AllRequest::within(self, own.map_or(within, |own| own.min(within)))
    }

    fn with_left(self) -> Self {
        AllRequest::with_left(self)
    }

    fn is_exempt(&self) -> bool {
        self.to_request().exempt
    }
}

impl<P: Policy, C: Timer> Limit for RateLimiter<P, C> {
    type Key = ();
    type Ask = Request;

    fn try_acquire(&self, (): &(), ask: &Request) -> Result<AllPermits, AllRefusal> {
        Limiter::try_acquire(self, &AllRequest::from(*ask))
    }

    fn acquire(&self, (): &(), ask: &Request) -> AcquireAny {
        Limiter::acquire(self, &AllRequest::from(*ask))
    }

    fn reserve(&self, (): &(), ask: &Request) -> Result<AnyReservation, AllRefusal> {
        or_empty(Limiter::reserve(self, &AllRequest::from(*ask)), || self.clone())
    }

    fn status(&self, (): &()) -> Option<AllStatus> {
        Some(Limiter::status(self))
    }
}

impl<K, P, C> Limit for KeyedRateLimiter<K, P, C>
where
    K: Hash + Eq + Clone + fmt::Debug + Send + Sync + 'static,
    P: Policy + Clone,
    C: Timer + Clone,
{
    type Key = K;
    type Ask = Request;

    fn try_acquire(&self, key: &K, ask: &Request) -> Result<AllPermits, AllRefusal> {
        if ask.wants_left {
            return OfKey::new(self, key.clone()).try_acquire(&AllRequest::from(*ask));
        }
        Ok(self.try_acquire_many(key, *ask)?.into())
    }

    fn acquire(&self, key: &K, ask: &Request) -> AcquireAny {
        OfKey::new(self, key.clone()).acquire(&AllRequest::from(*ask))
    }

    fn reserve(&self, key: &K, ask: &Request) -> Result<AnyReservation, AllRefusal> {
        let limit = OfKey::new(self, key.clone());
        or_empty(limit.reserve(&AllRequest::from(*ask)), || AnyLimiter::new(limit))
    }

    fn status(&self, key: &K) -> Option<AllStatus> {
        Some(OfKey::new(self, key.clone()).status())
    }
}

impl<C: Timer> Limit for AllOf<C> {
    type Key = ();
    type Ask = AllRequest<'static>;

    fn try_acquire(&self, (): &(), ask: &Self::Ask) -> Result<AllPermits, AllRefusal> {
        self.try_acquire_many(ask.clone())
    }

    fn acquire(&self, (): &(), ask: &Self::Ask) -> AcquireAny {
        Limiter::acquire(self, ask)
    }

    fn reserve(&self, (): &(), ask: &Self::Ask) -> Result<AnyReservation, AllRefusal> {
        or_empty(Limiter::reserve(self, ask), || self.clone())
    }

    fn status(&self, (): &()) -> Option<AllStatus> {
        Some(AllOf::status(self))
    }
}

impl<Q, C> Limit for KeyedAllOf<Q, C>
where
    Q: ToOwned + ?Sized + Sync + 'static,
    Q::Owned: Clone + Send + Sync,
    C: Timer + Clone,
{
    type Key = Q::Owned;
    type Ask = AllRequest<'static>;

    fn try_acquire(&self, key: &Q::Owned, ask: &Self::Ask) -> Result<AllPermits, AllRefusal> {
        self.try_acquire_many(key.borrow(), ask.clone())
    }

    fn acquire(&self, key: &Q::Owned, ask: &Self::Ask) -> AcquireAny {
        KeyedLimiter::acquire(self, key.clone(), ask)
    }

    fn reserve(&self, key: &Q::Owned, ask: &Self::Ask) -> Result<AnyReservation, AllRefusal> {
        reserve_of_key(&AnyKeyed::from(self.clone()), key, ask.clone())
    }

    fn status(&self, key: &Q::Owned) -> Option<AllStatus> {
        Some(KeyedAllOf::status(self, key.borrow()))
    }
}

impl Limit for AnyLimiter {
    type Key = ();
    type Ask = AllRequest<'static>;

    fn try_acquire(&self, (): &(), ask: &Self::Ask) -> Result<AllPermits, AllRefusal> {
        self.try_acquire_many(ask.clone())
    }

    fn acquire_now(&self, (): &(), ask: &Self::Ask) -> AcquireAny {
        AnyLimiter::acquire_now(self, ask.clone())
    }

    fn acquire(&self, (): &(), ask: &Self::Ask) -> AcquireAny {
        self.acquire_many(ask.clone())
    }

    fn reserve(&self, (): &(), ask: &Self::Ask) -> Result<AnyReservation, AllRefusal> {
        or_empty(self.non_blocking().reserve(ask.clone()), || self.clone())
    }

    fn status(&self, (): &()) -> Option<AllStatus> {
        (!self.may_block()).then(|| AnyLimiter::status(self))
    }

    fn members(&self, (): &()) -> Option<usize> {
        Some(self.non_blocking().status().members.len())
    }
}

impl<K: Clone + Send + Sync + 'static> Limit for AnyKeyed<K> {
    type Key = K;
    type Ask = AllRequest<'static>;

    fn try_acquire(&self, key: &K, ask: &Self::Ask) -> Result<AllPermits, AllRefusal> {
        self.try_acquire_many(key.clone(), ask.clone())
    }

    fn acquire_now(&self, key: &K, ask: &Self::Ask) -> AcquireAny {
        AnyKeyed::acquire_now(self, key.clone(), ask.clone())
    }

    fn acquire(&self, key: &K, ask: &Self::Ask) -> AcquireAny {
        self.acquire_many(key.clone(), ask.clone())
    }

    fn reserve(&self, key: &K, ask: &Self::Ask) -> Result<AnyReservation, AllRefusal> {
        reserve_of_key(self, key, ask.clone())
    }

    fn status(&self, key: &K) -> Option<AllStatus> {
        // A key without room has no limit to report.
        Limit::status(&self.limiter(key.clone()).ok()?, &())
    }

    fn members(&self, key: &K) -> Option<usize> {
        // The key is not added: the request may have been refused before its key had to have room.
        let limiter = self.limiter_for(key.clone(), AllRequest::new().exempt());
        Limit::members(&limiter.ok()?, &())
    }
}

/// Returns whether the request asked for no permits. Then there is nothing to refuse.
pub(crate) fn is_zero_permits(refusal: &AllRefusal) -> bool {
    refusal.refusal() == Some(Refusal::ZeroPermits)
}

/// Returns the reservation, or one of no permits if the request asks for none.
pub(crate) fn or_empty<L: Into<AnyLimiter>>(
    reserved: Result<AnyReservation, AllRefusal>,
    limiter: impl FnOnce() -> L,
) -> Result<AnyReservation, AllRefusal> {
    match reserved {
        Err(refusal) if is_zero_permits(&refusal) => Ok(AnyReservation::empty(limiter().into())),
        reserved => reserved,
    }
}

/// Like [`or_empty`], for a keyed limiter. The limiter of the key is looked up only for a request
/// of no permits: an exempt request needs no room for its key, and the observer must be notified of
/// a request whose key has no room.
pub(crate) fn reserve_of_key<K: Clone + 'static>(
    keys: &AnyKeyed<K>,
    key: &K,
    ask: AllRequest<'static>,
) -> Result<AnyReservation, AllRefusal> {
    match keys.reserve(key.clone(), ask) {
        Err(refusal) if is_zero_permits(&refusal) => Ok(AnyReservation::empty(keys.limiter(key.clone())?)),
        reserved => reserved,
    }
}
