//! [`ReadyRateLimitLayer`]: takes permits before the request exists.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Response;
use http_body::Body as HttpBody;
use pin_project_lite::pin_project;
use tidegate::{AcquireAny, AllRefusal, DefaultClock, Timer};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::Body;
use crate::hold::Hold;
use crate::idle::{Idle, Slot, Stage};
use crate::limit::Limit;
use crate::refused::{Error, Refused};
use crate::service::take_ready;

/// A limiter in front of services that takes permits in
/// [`poll_ready`](tower_service::Service::poll_ready), before the request exists.
///
/// The layer exerts backpressure: a service is not ready until its permits are available. Use it
/// where a caller chooses a service by readiness, for example a load balancer, or with tower's
/// `LoadShed` around it. The request is not known yet, so there are no keys, and all requests have
/// the same cost. [`RateLimitLayer`](crate::RateLimitLayer) is for everything else.
///
/// [`new`](ReadyRateLimitLayer::new) is for HTTP services, servers and clients: permits that are
/// [counted while in use](tidegate::CountingLimit) are given back when the body of the response
/// ends, fails or is dropped. [`plain`](ReadyRateLimitLayer::plain) is for all other services: the
/// response ends the call.
///
/// The layer polls the inner service first, so it takes no permit for a service that is not ready.
///
/// # Idle services
///
/// A ready service keeps its permits until it is called or dropped. If it is dropped, its permits
/// are given back. With [`idle_after`](ReadyRateLimitLayer::idle_after) the permits of a service
/// that was not called for this long are given back, too, as soon as another service of this layer
/// waits. If the idle service is called after all, its request waits for new permits.
///
/// A service that stops polling while it waits keeps its position in the queue until it is dropped,
/// and keeps the permits that are due meanwhile. With
/// [`idle_after`](ReadyRateLimitLayer::idle_after) such permits are given back as well, if the
/// service is not polled for the idle time and another one waits. A service that waits for
/// permits in use then gives up its position, because it is unknown when these are due. A service
/// that is polled when it wakes up keeps its position: with this setting it wakes up once in the
/// idle time.
///
/// A service that waits asks the limiter whether the permits of an idle service are due. The
/// limiter then grants the requests that are due, and so it may run wakers and observers. These
/// must not use the idle service, which is locked meanwhile.
///
/// # Fairness
///
/// Services become ready in the order of their first polls.
///
/// # Cancel safety
///
/// Dropping a service gives up its position in the queue or its permits. Dropping a response future
/// gives back the permits that are counted while in use.
///
/// # Errors
///
/// An error of `poll_ready` ends a service: tower's `Buffer` fails from then on, and `Balance`
/// drops the service. So `poll_ready` returns only errors of the inner service, and refusals after
/// which [no later request can succeed](tidegate::AllRefusal::may_retry): the limiter is closed, or
/// can never grant the cost. After any other refusal, such as that of a full queue, of a maximum
/// wait or of a store that did not reply, the service is ready without permits, and the response
/// future of the next call returns the refusal. If the service is polled again before the call, it
/// asks the limiter again.
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use std::time::Duration;
/// use tidegate::{Rate, RateLimiter, TokenBucket, TokioClock};
/// use tidegate_tower::{Error, ReadyRateLimitLayer};
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Error<Infallible>> {
/// let policy = TokenBucket::new(Rate::per_second(5), 1);
/// let limiter = RateLimiter::with_clock(policy, TokioClock::new());
/// let mut double = ServiceBuilder::new()
///     .layer(ReadyRateLimitLayer::plain(limiter.clone()))
///     .service(service_fn(async |n: u32| Ok(2 * n)));
///
/// assert_eq!(double.ready().await?.call(7).await?, 14);
/// let begin = tokio::time::Instant::now();
/// double.ready().await?;
/// assert_eq!(begin.elapsed(), Duration::from_millis(200));
/// # Ok(())
/// # }
/// ```
pub struct ReadyRateLimitLayer<L: Limit<Key = ()>, M = UntilBodyEnds> {
    limit: L,
    ask: L::Ask,
    idle: Option<Arc<Idle>>,
    call: PhantomData<fn() -> M>,
}

/// The duration of a call of a ready service with the response type `A`. This trait is sealed.
#[diagnostic::on_unimplemented(
    message = "`{A}` is no response of HTTP with a body",
    note = "`ReadyRateLimitLayer::plain` is for services of other kinds"
)]
pub trait Lasts<A>: sealed::Lasts {
    /// The type into which the layer turns the response.
    type Answer;

    #[doc(hidden)]
    fn until_end(answer: A, call: InFlight) -> Self::Answer;
}

/// The permits that a call holds until it ends.
#[doc(hidden)]
#[derive(Debug)]
pub struct InFlight(Hold);

mod sealed {
    pub trait Lasts: 'static {}
}

/// An HTTP call lasts until the body of its response ends.
#[derive(Debug)]
pub struct UntilBodyEnds(());

/// A call of another service lasts until its response.
#[derive(Debug)]
pub struct UntilResponse(());

impl sealed::Lasts for UntilBodyEnds {}

impl sealed::Lasts for UntilResponse {}

impl<B: HttpBody> Lasts<Response<B>> for UntilBodyEnds {
    type Answer = Response<Body<B>>;

    fn until_end(answer: Response<B>, call: InFlight) -> Self::Answer {
        answer.map(|body| Body::of_service(body, call.0))
    }
}

impl<A> Lasts<A> for UntilResponse {
    type Answer = A;

    fn until_end(answer: A, _: InFlight) -> A {
        answer
    }
}

impl<L: Limit<Key = ()>> ReadyRateLimitLayer<L> {
    /// Creates a layer over this limiter, for HTTP services. A request costs one permit of each
    /// limit, and idle services keep their permits.
    #[must_use]
    pub fn new(limiter: L) -> Self {
        ReadyRateLimitLayer::of(limiter)
    }
}

impl<L: Limit<Key = ()>> ReadyRateLimitLayer<L, UntilResponse> {
    /// Like [`new`](ReadyRateLimitLayer::new), for services of any kind.
    #[must_use]
    pub fn plain(limiter: L) -> Self {
        ReadyRateLimitLayer::of(limiter)
    }
}

impl<L: Limit<Key = ()>, M> ReadyRateLimitLayer<L, M> {
    fn of(limit: L) -> Self {
        ReadyRateLimitLayer { limit, ask: L::Ask::default(), idle: None, call: PhantomData }
    }

    /// Sets the cost of a request: a number of permits, a [`Request`](tidegate::Request), or an
    /// [`AllRequest`](tidegate::AllRequest) for an `AllOf`.
    #[must_use]
    pub fn cost(mut self, cost: impl Into<L::Ask>) -> Self {
        self.ask = cost.into();
        self
    }

    /// Gives back the permits of a service that was not called for this long. A time below a
    /// millisecond counts as one millisecond. The setting applies to this layer and to clones made
    /// from now on. Layers cloned earlier do not check these services.
    #[must_use]
    pub fn idle_after(self, after: Duration) -> Self {
        self.idle_after_on(after, DefaultClock::new())
    }

    /// Like [`idle_after`](ReadyRateLimitLayer::idle_after), on this clock.
    #[must_use]
    pub fn idle_after_on(mut self, after: Duration, clock: impl Timer) -> Self {
        self.idle = Some(Arc::new(Idle::new(after, clock)));
        self
    }
}

impl<L: Limit<Key = ()>, M> Clone for ReadyRateLimitLayer<L, M> {
    fn clone(&self) -> Self {
        ReadyRateLimitLayer {
            limit: self.limit.clone(),
            ask: self.ask.clone(),
            idle: self.idle.clone(),
            call: PhantomData,
        }
    }
}

impl<S, L: Limit<Key = ()>, M> Layer<S> for ReadyRateLimitLayer<L, M> {
    type Service = ReadyRateLimit<S, L, M>;

    fn layer(&self, inner: S) -> Self::Service {
        ReadyRateLimit { inner, layer: self.clone(), state: Mutex::new(State::Idle), slot: Arc::default() }
    }
}

impl<L: Limit<Key = ()>, M> fmt::Debug for ReadyRateLimitLayer<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyRateLimitLayer").field("idle", &self.idle).finish_non_exhaustive()
    }
}

/// A service behind a limiter: made by a [`ReadyRateLimitLayer`].
///
/// A clone is a separate service, and starts not ready.
pub struct ReadyRateLimit<S, L: Limit<Key = ()>, M = UntilBodyEnds> {
    inner: S,
    layer: ReadyRateLimitLayer<L, M>,
    /// Never locked: the mutex only lets threads share the service.
    state: Mutex<State>,
    /// The reservation, while this service waits or is ready.
    slot: Arc<Slot>,
}

enum State {
    Idle,
    Waiting {
        sleep: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    },
    Ready,
    /// The service is ready, and its next call is refused.
    Refused(AllRefusal),
}

impl State {
    /// Keeps a refusal for the next call, or returns it if no later request can succeed.
    fn refuse(&mut self, refusal: AllRefusal) -> Result<(), Refused> {
        if refusal.may_retry() {
            *self = State::Refused(refusal);
            return Ok(());
        }
        *self = State::Idle;
        Err(Refused::by_limit(refusal))
    }
}

impl<S, L: Limit<Key = ()>, M> ReadyRateLimit<S, L, M> {
    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Polls for permits.
    fn poll_permits(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Refused>> {
        let idle = self.layer.idle.as_deref();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        loop {
            match state {
                State::Ready if self.slot.is_full() => return Poll::Ready(Ok(())),
                // A `Ready` service without permits was idle for too long.
                State::Ready | State::Idle | State::Refused(_) => {
                    match self.layer.limit.reserve(&(), &self.layer.ask) {
                        Ok(reservation) => {
                            self.slot.put(reservation, Stage::Waits, idle);
                            *state = State::Waiting { sleep: None };
                        }
                        Err(refusal) => return Poll::Ready(state.refuse(refusal)),
                    }
                }
                State::Waiting { sleep } => {
                    let Some(mut reservation) = self.slot.take(idle) else {
                        // Its permits were due, and it was not polled for too long.
                        *state = State::Idle;
                        continue;
                    };
                    match Pin::new(&mut reservation).poll(context) {
                        Poll::Ready(Ok(_)) => {
                            self.slot.put(reservation, Stage::Due, idle);
                            *state = State::Ready;
                            continue;
                        }
                        Poll::Ready(Err(refusal)) => return Poll::Ready(state.refuse(refusal)),
                        Poll::Pending => self.slot.put(reservation, Stage::Waits, idle),
                    }
                    let Some(idle) = idle else { return Poll::Pending };
                    match sleep {
                        Some(time) => {
                            ready!(time.as_mut().poll(context));
                            *sleep = None;
                        }
                        // Giving back permits may make this service ready, so the loop polls it
                        // again.
                        None => *sleep = Some(idle.sleep_until(idle.give_back())),
                    }
                }
            }
        }
    }
}

impl<S, L, R, M> Service<R> for ReadyRateLimit<S, L, M>
where
    S: Service<R> + Clone,
    L: Limit<Key = ()>,
    M: Lasts<S::Response>,
{
    type Response = M::Answer;
    type Error = Error<S::Error>;
    type Future = ReadyFuture<S, R, M>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        ready!(self.inner.poll_ready(context)).map_err(Error::Service)?;
        self.poll_permits(context).map_err(Error::from)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(state, State::Idle);
        let state = match (before, self.slot.take(self.layer.idle.as_deref())) {
            (State::Ready, Some(reservation)) => {
                Calling::Call { future: self.inner.call(request), hold: Hold::estimate(reservation) }
            }
            // The permits were refused or given back, or `poll_ready` did not return that it is
            // ready.
            (before, waiting) => {
                waiting.into_iter().for_each(tidegate::AnyReservation::settle_unused);
                let wait = match before {
                    State::Refused(refusal) => AcquireAny::ready(Err(refusal)),
                    _ => self.layer.limit.acquire(&(), &self.layer.ask),
                };
                Calling::Wait { wait, call: Some((take_ready(&mut self.inner), request)) }
            }
        };
        ReadyFuture { state, call: PhantomData }
    }
}

impl<S: Clone, L: Limit<Key = ()>, M> Clone for ReadyRateLimit<S, L, M> {
    fn clone(&self) -> Self {
        self.layer.layer(self.inner.clone())
    }
}

impl<S, L: Limit<Key = ()>, M> Drop for ReadyRateLimit<S, L, M> {
    fn drop(&mut self) {
        if let Some(reservation) = self.slot.take(self.layer.idle.as_deref()) {
            reservation.settle_unused();
        }
    }
}

impl<S: fmt::Debug, L: Limit<Key = ()>, M> fmt::Debug for ReadyRateLimit<S, L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyRateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}

pin_project! {
    /// The response future of a [`ReadyRateLimit`].
    #[must_use = "futures do nothing unless polled"]
    pub struct ReadyFuture<S, R, M = UntilBodyEnds>
    where
        S: Service<R>,
    {
        call: PhantomData<fn() -> M>,
        #[pin]
        state: Calling<S, S::Future, R>,
    }
}

pin_project! {
    #[project = CallingProjection]
    enum Calling<S, F, R> {
        Wait { wait: AcquireAny, call: Option<(S, R)> },
        Call { #[pin] future: F, hold: Hold },
    }
}

impl<S: Service<R>, R, M: Lasts<S::Response>> Future for ReadyFuture<S, R, M> {
    type Output = Result<M::Answer, Error<S::Error>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                CallingProjection::Wait { wait, call } => {
                    let answer = ready!(Pin::new(wait).poll(context));
                    let (mut service, request) = call.take().expect("polled after it was ready");
                    let hold = match answer {
                        Ok(permits) => Hold::permits(permits),
                        Err(refusal) => {
                            return Poll::Ready(Err(Refused::by_limit(refusal).into()));
                        }
                    };
                    this.state.set(Calling::Call { future: service.call(request), hold });
                }
                CallingProjection::Call { future, hold } => {
                    let answer = ready!(future.poll(context)).map_err(Error::Service);
                    let call = InFlight(std::mem::take(hold));
                    return Poll::Ready(answer.map(|answer| M::until_end(answer, call)));
                }
            }
        }
    }
}

impl<S: Service<R>, R, M> fmt::Debug for ReadyFuture<S, R, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyFuture").finish_non_exhaustive()
    }
}
