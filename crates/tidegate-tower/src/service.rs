//! [`RateLimit`]: a service behind a limiter, and its response future.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response, request};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::finish::{Finish, PendingRequest, Whole};
use crate::gate::{Admission, PendingAdmission};
use crate::kind::{Client, Kind, Plain, Server};
use crate::layer::RateLimitLayer;
use crate::limit::Limit;

/// A service behind a limiter: made by a [`RateLimitLayer`].
///
/// [`poll_ready`](Service::poll_ready) is that of the inner service. [`call`](Service::call) moves
/// the ready inner service into the response future, and keeps a clone for the next request. The
/// request asks for its permits when that future is first polled.
pub struct RateLimit<S, L: Limit, M: Kind = Server> {
    inner: S,
    layer: Arc<RateLimitLayer<L, M>>,
}

impl<S, L: Limit, M: Kind> Layer<S> for RateLimitLayer<L, M> {
    type Service = RateLimit<S, L, M>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, layer: Arc::new(self.clone()) }
    }
}

impl<S, L: Limit, M: Kind> RateLimit<S, L, M> {
    /// Returns the limiter.
    pub fn limiter(&self) -> &L {
        &self.layer.gate.limit
    }

    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }

    fn run<R, H>(&mut self, asking: H) -> ResponseFuture<S, L, M, R, H>
    where
        S: Service<R> + Clone,
    {
        let call = Some((take_ready(&mut self.inner), asking));
        ResponseFuture {
            layer: self.layer.clone(),
            state: State::Pending { pending: PendingAdmission::New, call },
        }
    }
}

/// Takes the service that was polled until ready, which makes the call. Leaves a clone, which may
/// not be ready.
pub(crate) fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    std::mem::replace(service, clone)
}

impl<S: Clone, L: Limit, M: Kind> Clone for RateLimit<S, L, M> {
    fn clone(&self) -> Self {
        RateLimit { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, L: Limit, M: Kind> fmt::Debug for RateLimit<S, L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}

/// The response future of a [`RateLimit`] of a server.
pub(crate) type ServerFuture<S, L, B> = ResponseFuture<S, L, Server, Request<B>, (request::Parts, B)>;

impl<S, L, B, Out> Service<Request<B>> for RateLimit<S, L, Server>
where
    S: Service<Request<B>, Response = Response<Out>> + Clone,
    Out: http_body::Body,
    L: Limit,
{
    type Response = Response<crate::Body<Out>>;
    type Error = S::Error;
    type Future = ServerFuture<S, L, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.run(request.into_parts())
    }
}

/// The response future of a [`RateLimit`] of a client.
pub(crate) type ClientFuture<S, L, B> = ResponseFuture<S, L, Client, Request<B>, (request::Parts, B)>;

impl<S, L, B, Out> Service<Request<B>> for RateLimit<S, L, Client>
where
    S: Service<Request<B>, Response = Response<Out>> + Clone,
    Out: http_body::Body,
    L: Limit,
{
    type Response = Response<crate::Body<Out>>;
    type Error = crate::Error<S::Error>;
    type Future = ClientFuture<S, L, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(crate::Error::Service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.run(request.into_parts())
    }
}

/// The response future of a [`RateLimit`] of any service.
pub(crate) type PlainFuture<S, L, R> =
    ResponseFuture<S, L, Plain<R, <S as Service<R>>::Response>, R, Whole<R>>;

impl<S, L, R> Service<R> for RateLimit<S, L, Plain<R, S::Response>>
where
    S: Service<R> + Clone,
    S::Response: 'static,
    R: 'static,
    L: Limit,
{
    type Response = S::Response;
    type Error = crate::Error<S::Error>;
    type Future = PlainFuture<S, L, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(crate::Error::Service)
    }

    fn call(&mut self, request: R) -> Self::Future {
        self.run(Whole(request))
    }
}

pin_project! {
    /// The response future of a [`RateLimit`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before its first poll, or while it waits for permits, costs nothing.
    /// Dropping it later costs its permits; permits that are counted while in use are given back.
    ///
    /// # Panics
    ///
    /// Panics if it is polled again after it was ready.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, L, M, R, H>
    where
        S: Service<R>,
        L: Limit,
        M: Kind,
    {
        layer: Arc<RateLimitLayer<L, M>>,
        #[pin]
        state: State<S, L, S::Future, H>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, L, F, H>
    where
        L: Limit,
    {
        Pending { pending: PendingAdmission<L>, call: Option<(S, H)> },
        Calling { #[pin] future: F, admission: Admission },
    }
}

impl<S, L, M, R, H> Future for ResponseFuture<S, L, M, R, H>
where
    S: Service<R>,
    L: Limit,
    M: Finish<S::Response, S::Error>,
    H: PendingRequest<M::Request, Request = R>,
{
    type Output = Result<M::Answer, M::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProjection::Pending { pending, call } => {
                    let (_, asking) = call.as_ref().expect("polled after it was ready");
                    let needs = this.layer.needs();
                    let decision = ready!(pending.poll(&this.layer.gate, needs, asking.view(), context));
                    let (mut service, mut asking) = call.take().expect("polled after it was ready");
                    let mut admission = match decision {
                        Ok(admission) => admission,
                        Err(refusal) => return Poll::Ready(M::deny(this.layer, asking.view(), refusal)),
                    };
                    if let Some(shadowed) = admission.shadowed.take() {
                        asking.mark(shadowed);
                    }
                    let future = service.call(asking.into_request());
                    this.state.set(State::Calling { future, admission });
                }
                StateProjection::Calling { future, admission } => {
                    let answer = ready!(future.poll(context));
                    let admission = std::mem::take(admission);
                    return Poll::Ready(match answer {
                        Ok(answer) => Ok(M::answer(this.layer, answer, admission)),
                        Err(error) => {
                            this.layer.failed(admission.hold);
                            Err(M::fail(error))
                        }
                    });
                }
            }
        }
    }
}

impl<S, L, M, R, H> fmt::Debug for ResponseFuture<S, L, M, R, H>
where
    S: Service<R>,
    L: Limit,
    M: Kind,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("layer", &self.layer).finish_non_exhaustive()
    }
}
