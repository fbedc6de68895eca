//! [`Limit`]: what a layer asks for permits.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::{
    AcquireAny, AllOf, AllPermits, AllRefusal, AllRequest, AllStatus, AnyLimiter, AnyReservation, Grant,
    KeyedAllOf, KeyedRateLimiter, Left, Limiter, OfKey, Policy, RateLimiter, Refusal, Request, Timer,
};

/// A limiter that a [`RateLimitLayer`](crate::RateLimitLayer) can ask: every limiter of the crate
/// `tidegate`, or one of your own.
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
///
/// Clones must share their permits, because each service of a layer has a clone.
///
/// # Calls in flight
///
/// A counting limit has no priorities, and gives a request for up to a number of permits the fewest
/// that it takes. An [`AnyLimiter`] made from it has priorities and pauses. To limit a rate as well,
/// put both into an [`AllOf`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no limiter that a layer can ask",
    note = "give the layer the limiter itself, without `Arc` or `&`: its clones share their permits",
    note = "a limiter of your own is a `tidegate::Limiter`: write `AnyLimiter::new(limiter)`"
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
    /// The reason. Then nothing was taken.
    fn try_acquire(&self, key: &Self::Key, ask: &Self::Ask) -> Result<Granted, AllRefusal>;

    /// Takes the permits now, or refuses, as [`try_acquire`](Limit::try_acquire), by a future that
    /// waits for the answer alone. A limiter over a network needs it; by default it is ready at
    /// once.
    fn acquire_now(&self, key: &Self::Key, ask: &Self::Ask) -> Acquire {
        Acquire::ready(self.try_acquire(key, ask))
    }

    /// Waits for the permits.
    fn acquire(&self, key: &Self::Key, ask: &Self::Ask) -> Acquire;

    /// Takes a place in the queue now, for permits that are settled later.
    ///
    /// # Errors
    ///
    /// The reason. Then nothing was taken.
    fn reserve(&self, key: &Self::Key, ask: &Self::Ask) -> Result<AnyReservation, AllRefusal>;

    /// A snapshot of the limits of a key.
    fn status(&self, key: &Self::Key) -> AllStatus;
}

/// What a request asks a [`Limit`] for: [`Request`] or [`AllRequest`].
pub trait Ask: Clone + Default + Send + Sync + 'static {
    /// Sets the longest wait.
    #[must_use]
    fn within(self, within: Duration) -> Self;

    /// Asks what the grant leaves, if the limiter can tell it.
    #[must_use]
    fn with_left(self) -> Self {
        self
    }
}

impl Ask for Request {
    fn within(self, within: Duration) -> Self {
        Request::within(self, within)
    }

    fn with_left(self) -> Self {
        Request::with_left(self)
    }
}

impl Ask for AllRequest<'static> {
    fn within(self, within: Duration) -> Self {
        AllRequest::within(self, within)
    }
}

/// Permits that a [`Limit`] gave.
#[derive(Debug)]
#[must_use = "dropping it gives back the permits that are counted while in use"]
pub struct Granted {
    pub(crate) permits: AllPermits,
    pub(crate) left: Option<Left>,
}

impl Granted {
    /// Permits, and what they left in the limiter if it is known.
    pub fn new(permits: AllPermits, left: Option<Left>) -> Granted {
        Granted { permits, left }
    }
}

impl From<AllPermits> for Granted {
    fn from(permits: AllPermits) -> Granted {
        Granted { permits, left: None }
    }
}

impl From<Grant> for Granted {
    fn from(grant: Grant) -> Granted {
        Granted { permits: grant.into(), left: grant.left() }
    }
}

/// A wait for the permits of a [`Limit`]. It joins the queue when it is first polled, and dropping
/// it leaves no trace.
///
/// # Panics
///
/// Polling it again after it was ready panics.
#[must_use = "futures do nothing unless awaited: no permits were acquired"]
pub struct Acquire(Answer);

enum Answer {
    /// `None` once it was given.
    Now(Option<Result<Granted, AllRefusal>>),
    Any(AcquireAny),
    Later(Pin<Box<dyn Future<Output = Result<Granted, AllRefusal>> + Send>>),
}

impl Acquire {
    /// The wait that this future is.
    pub fn new(wait: impl Future<Output = Result<Granted, AllRefusal>> + Send + 'static) -> Acquire {
        Acquire(Answer::Later(Box::pin(wait)))
    }

    /// An answer without a wait, which allocates nothing.
    pub fn ready(answer: Result<Granted, AllRefusal>) -> Acquire {
        Acquire(Answer::Now(Some(answer)))
    }
}

impl From<AcquireAny> for Acquire {
    fn from(wait: AcquireAny) -> Acquire {
        Acquire(Answer::Any(wait))
    }
}

impl Future for Acquire {
    type Output = Result<Granted, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().0 {
            Answer::Now(answer) => Poll::Ready(answer.take().expect("it is polled once")),
            Answer::Any(wait) => Pin::new(wait).poll(context).map_ok(Granted::from),
            Answer::Later(wait) => wait.as_mut().poll(context),
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}

impl<P: Policy, C: Timer> Limit for RateLimiter<P, C> {
    type Key = ();
    type Ask = Request;

    fn try_acquire(&self, (): &(), ask: &Request) -> Result<Granted, AllRefusal> {
        Ok(self.try_acquire_many(*ask)?.into())
    }

    fn acquire(&self, (): &(), ask: &Request) -> Acquire {
        let wait = self.acquire_owned(*ask);
        Acquire::new(async { Ok(wait.await?.into()) })
    }

    fn reserve(&self, (): &(), ask: &Request) -> Result<AnyReservation, AllRefusal> {
        Limiter::reserve(self, &AllRequest::from(*ask))
    }

    fn status(&self, (): &()) -> AllStatus {
        Limiter::status(self)
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

    fn try_acquire(&self, key: &K, ask: &Request) -> Result<Granted, AllRefusal> {
        Ok(self.try_acquire_many(key, *ask)?.into())
    }

    fn acquire(&self, key: &K, ask: &Request) -> Acquire {
        let (limit, key, ask) = (self.clone(), key.clone(), *ask);
        Acquire::new(async move { Ok(limit.acquire_many(&key, ask).await?.into()) })
    }

    fn reserve(&self, key: &K, ask: &Request) -> Result<AnyReservation, AllRefusal> {
        OfKey::new(self, key.clone()).reserve(&AllRequest::from(*ask))
    }

    fn status(&self, key: &K) -> AllStatus {
        OfKey::new(self, key.clone()).status()
    }
}

impl<C: Timer> Limit for AllOf<C> {
    type Key = ();
    type Ask = AllRequest<'static>;

    fn try_acquire(&self, (): &(), ask: &Self::Ask) -> Result<Granted, AllRefusal> {
        Ok(self.try_acquire_many(ask.clone())?.into())
    }

    fn acquire(&self, (): &(), ask: &Self::Ask) -> Acquire {
        let wait = self.acquire_many(ask.clone());
        Acquire::new(async { Ok(wait.await?.into()) })
    }

    fn reserve(&self, (): &(), ask: &Self::Ask) -> Result<AnyReservation, AllRefusal> {
        Limiter::reserve(self, ask)
    }

    fn status(&self, (): &()) -> AllStatus {
        AllOf::status(self)
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

    fn try_acquire(&self, key: &Q::Owned, ask: &Self::Ask) -> Result<Granted, AllRefusal> {
        Ok(self.try_acquire_many(key.borrow(), ask.clone())?.into())
    }

    fn acquire(&self, key: &Q::Owned, ask: &Self::Ask) -> Acquire {
        let (limit, key, ask) = (self.clone(), key.clone(), ask.clone());
        Acquire::new(async move { Ok(limit.acquire_many(key.borrow(), ask).await?.into()) })
    }

    fn reserve(&self, key: &Q::Owned, ask: &Self::Ask) -> Result<AnyReservation, AllRefusal> {
        // The composite of the key, without its types.
        Limiter::reserve(&self.for_key(key.borrow())?, ask)
    }

    fn status(&self, key: &Q::Owned) -> AllStatus {
        KeyedAllOf::status(self, key.borrow())
    }
}

impl Limit for AnyLimiter {
    type Key = ();
    type Ask = AllRequest<'static>;

    fn try_acquire(&self, (): &(), ask: &Self::Ask) -> Result<Granted, AllRefusal> {
        Ok(self.try_acquire_many(ask.clone())?.into())
    }

    fn acquire_now(&self, (): &(), ask: &Self::Ask) -> Acquire {
        AnyLimiter::acquire_now(self, ask.clone()).into()
    }

    fn acquire(&self, (): &(), ask: &Self::Ask) -> Acquire {
        self.acquire_many(ask.clone()).into()
    }

    fn reserve(&self, (): &(), ask: &Self::Ask) -> Result<AnyReservation, AllRefusal> {
        AnyLimiter::reserve(self, ask.clone())
    }

    fn status(&self, (): &()) -> AllStatus {
        AnyLimiter::status(self)
    }
}

/// Whether the request asked for no permits. Then there is nothing to refuse.
pub(crate) fn asked_for_none(refusal: &AllRefusal) -> bool {
    refusal.refusal() == Some(Refusal::ZeroPermits)
}
