//! [`ObeyLayer`]: a client that obeys the responses of servers.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tidegate::{AllRefusal, AllRequest};
use tidegate_http::obey::{Call, Obey, Scopes};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::Body;
use crate::gate::Function;
use crate::hold::Hold;
use crate::refused::{Error, Refused};
use crate::service::take_ready;

/// A limiter in front of an HTTP client that obeys the server's responses. The client is hyper's,
/// tonic's, or any other client that is a service. All clients that one layer makes, and all their
/// clones, share its limits.
///
/// A request waits until its permits are available. The layer obeys the response: `Retry-After`,
/// the headers of many vendors and the pushback of gRPC, in headers or trailers, pause the limiter
/// or lower its available permits, for all waiting requests. See [`obey`](tidegate_http::obey).
///
/// | method | limits |
/// |---|---|
/// | [`new`](ObeyLayer::new) | all requests together |
/// | [`per_host`](ObeyLayer::per_host) | the requests to each host |
/// | [`per`](ObeyLayer::per) | the requests of each route, token, or whatever else a server counts by |
///
/// Put the layer below a layer that retries or follows redirects. Then each attempt waits its turn,
/// and each response counts for the host that sent it.
///
/// [`RateLimitLayer::for_client`](crate::RateLimitLayer::for_client) is a limit for clients that
/// ignores responses.
///
/// # When a call is over
///
/// A request asks for permits when its response future is first polled. A call ends with the body
/// of its response. Then permits of a [`CountingLimit`](tidegate::CountingLimit) are given back. A
/// request that is dropped while it waits costs nothing, but a pause until the server allows this
/// request [stays](tidegate_http::obey::Obey#fairness-and-cancel-safety). A failed request has used
/// its permits.
///
/// # Examples
///
/// A hyper client:
///
/// ```
/// use std::time::Duration;
/// use hyper_util::client::legacy::Client;
/// use hyper_util::rt::TokioExecutor;
/// use tidegate::{Rate, RateLimiter};
/// use tidegate_http::obey::{Obey, Scopes};
/// use tidegate_tower::ObeyLayer;
/// use tower::ServiceBuilder;
///
/// let hosts = Scopes::new(1000, |_host| {
///     Obey::new(RateLimiter::paced(Rate::per_second(10)))
/// });
/// let client = ServiceBuilder::new()
///     .layer(ObeyLayer::per_host(hosts).wait_at_most(Duration::from_secs(30)))
///     .service(Client::builder(TokioExecutor::new()).build_http::<String>());
/// ```
///
/// A tonic client. The `map_err` gives refused calls a status; without the `map_err`, refused calls
/// have the status `Unknown`:
///
/// ```no_run
/// use tidegate::{Rate, RateLimiter};
/// use tidegate_http::obey::Obey;
/// use tidegate_tower::{Error, ObeyLayer};
/// use tonic::Status;
/// use tonic::transport::Channel;
/// use tonic_health::pb::health_client::HealthClient;
/// use tower::ServiceBuilder;
///
/// # async fn connect() -> Result<(), tonic::transport::Error> {
/// let channel = Channel::from_static("http://api.example").connect().await?;
/// let api = Obey::new(RateLimiter::paced(Rate::per_second(10)));
/// let status = |error| match error {
///     Error::Refused(refused) => Status::resource_exhausted(refused.to_string()),
///     Error::Service(error) => Status::from_error(Box::new(error)),
/// };
/// let layers = ServiceBuilder::new().map_err(status).layer(ObeyLayer::new(api));
/// let client = HealthClient::new(layers.service(channel));
/// # drop(client);
/// # Ok(())
/// # }
/// ```
///
/// If the cost of a call is only known from its response, reserve an estimate and settle it,
/// without the layer:
///
/// ```
/// use std::error::Error;
/// use bytes::Bytes;
/// use http::Request;
/// use http_body_util::BodyExt;
/// use hyper_util::client::legacy::{Client, connect::HttpConnector};
/// use tidegate_http::obey::Obey;
///
/// /// `api` is an `Obey` of an `AllOf` with the members "requests" and "tokens".
/// async fn complete(
///     api: &Obey,
///     client: &Client<HttpConnector, String>,
///     request: Request<String>,
/// ) -> Result<Bytes, Box<dyn Error>> {
///     let mut call = api.reserve([("tokens", 4000)])?.await?;
///     let response = client.request(request).await?;
///     call.obey(response.status(), response.headers());
///     let text = response.into_body().collect().await?.to_bytes();
///     call.settle([("tokens", tokens_in(&text))])?;
///     Ok(text)
/// }
/// # fn tokens_in(text: &[u8]) -> u32 { u32::try_from(text.len() / 4).unwrap_or(u32::MAX) }
/// ```
#[derive(Clone)]
pub struct ObeyLayer {
    limit: Limit,
    costs: Option<Function<Parts, AllRequest<'static>>>,
    within: Option<Duration>,
}

#[derive(Clone)]
enum Limit {
    One(Obey),
    /// Each request is in a scope. A request without a scope is not limited.
    Scopes(Scopes, Function<Parts, Option<String>>),
}

type Wait = Pin<Box<dyn Future<Output = Result<Call, AllRefusal>> + Send>>;

impl ObeyLayer {
    /// Creates a layer with one limit for all requests.
    #[must_use]
    pub fn new(obey: Obey) -> ObeyLayer {
        ObeyLayer::of(Limit::One(obey))
    }

    /// Creates a layer with a limit for each host, by the authority of the request's address: the
    /// limit of `https://api.example/` is named `api.example`, that of `http://localhost:3000/` is
    /// named `localhost:3000`. A trailing dot, the default port of the scheme and the case of
    /// letters do not matter. A request without a host is not limited. A tonic client without an
    /// origin sends such requests.
    #[must_use]
    pub fn per_host(scopes: Scopes) -> ObeyLayer {
        ObeyLayer::per(scopes, |request| {
            let host = request.uri.host()?;
            // The same host in any case, with the dot of the root, or with the default port of its
            // scheme.
            let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
            Some(match (request.uri.port_u16(), request.uri.scheme_str()) {
                (None, _) | (Some(80), Some("http")) | (Some(443), Some("https")) => host,
                (Some(port), _) => format!("{host}:{port}"),
            })
        })
    }

    /// Creates a layer with a limit for each scope that this function names. A request without a
    /// scope is not limited.
    #[must_use]
    pub fn per(
        scopes: Scopes,
        scope: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> ObeyLayer {
        ObeyLayer::of(Limit::Scopes(scopes, Arc::new(scope)))
    }

    fn of(limit: Limit) -> ObeyLayer {
        ObeyLayer { limit, costs: None, within: None }
    }

    /// Sets the cost of a request: a number of permits, costs by the names of an
    /// [`AllOf`](tidegate::AllOf), or an [`AllRequest`] with a priority. The default is one permit
    /// of each limit.
    ///
    /// A request with a cost of 0 takes no permits, except that in an `AllOf` a [default
    /// cost](tidegate::AllOf::default_cost) and a [`CountingLimit`](tidegate::CountingLimit) still
    /// apply. A closed limiter refuses it. An [exempt](AllRequest::exempt) request always passes.
    /// The responses to both are still obeyed.
    #[must_use]
    pub fn cost<C>(mut self, cost: impl Fn(&Parts) -> C + Send + Sync + 'static) -> ObeyLayer
    where
        C: Into<AllRequest<'static>>,
    {
        self.costs = Some(Arc::new(move |request| cost(request).into()));
        self
    }

    /// Refuses a request at once if its permits are due later than this. A shorter maximum wait in
    /// its [cost](ObeyLayer::cost) takes precedence. Without either, a request waits without bound.
    #[must_use]
    pub fn wait_at_most(mut self, within: Duration) -> ObeyLayer {
        self.within = Some(within);
        self
    }

    /// Returns the wait of a request; `None` if it is not limited.
    fn wait(&self, request: &Parts) -> Option<Wait> {
        let obey = match &self.limit {
            Limit::One(obey) => obey.clone(),
            Limit::Scopes(scopes, scope) => scopes.of(&scope(request)?),
        };
        let mut costs = self.costs.as_ref().map(|costs| costs(request)).unwrap_or_default();
        if let Some(within) = self.within.into_iter().chain(costs.to_request().within).min() {
            costs = costs.within(within);
        }
        Some(Box::pin(async move { obey.acquire_many(costs).await }))
    }
}

impl<S> Layer<S> for ObeyLayer {
    type Service = Obeying<S>;

    fn layer(&self, inner: S) -> Obeying<S> {
        Obeying { inner, layer: self.clone() }
    }
}

impl fmt::Debug for ObeyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ObeyLayer");
        match &self.limit {
            Limit::One(obey) => shown.field("limit", obey),
            Limit::Scopes(scopes, _) => shown.field("limit", scopes),
        };
        shown.field("within", &self.within).finish_non_exhaustive()
    }
}

/// An HTTP client that obeys responses: made by an [`ObeyLayer`].
#[derive(Clone, Debug)]
pub struct Obeying<S> {
    inner: S,
    layer: ObeyLayer,
}

impl<S> Obeying<S> {
    /// Returns the inner client.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner client.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner client.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, Out> Service<Request<B>> for Obeying<S>
where
    S: Service<Request<B>, Response = Response<Out>> + Clone,
    Out: http_body::Body,
{
    type Response = Response<Body<Out>>;
    type Error = Error<S::Error>;
    type Future = ObeyingFuture<S, Request<B>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Error::Service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let wait = self.layer.wait(&parts);
        let request = Some((take_ready(&mut self.inner), Request::from_parts(parts, body)));
        ObeyingFuture { state: State::Waiting { wait, request } }
    }
}

pin_project! {
    /// The response future of [`Obeying`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it before its first poll, or while it waits for permits, costs no permits.
    ///
    /// # Panics
    ///
    /// Panics if it is polled again after it was ready.
    #[must_use = "futures do nothing unless polled"]
    pub struct ObeyingFuture<S, R>
    where
        S: Service<R>,
    {
        #[pin]
        state: State<S, S::Future, R>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F, R> {
        Waiting { wait: Option<Wait>, request: Option<(S, R)> },
        Calling { #[pin] future: F, call: Option<Call> },
    }
}

impl<S, R, Out> Future for ObeyingFuture<S, R>
where
    S: Service<R, Response = Response<Out>>,
    Out: http_body::Body,
{
    type Output = Result<Response<Body<Out>>, Error<S::Error>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProjection::Waiting { wait, request } => {
                    let answer = match wait {
                        Some(wait) => Some(ready!(wait.as_mut().poll(context))),
                        None => None,
                    };
                    let (mut service, request) = request.take().expect("polled after it was ready");
                    let call = answer.transpose().map_err(Refused::by_limit)?;
                    let future = service.call(request);
                    this.state.set(State::Calling { future, call });
                }
                StateProjection::Calling { future, call } => {
                    let answer = ready!(future.poll(context));
                    // A call that failed ends here, and not with the future.
                    let call = call.take();
                    let (parts, body) = answer.map_err(Error::Service)?.into_parts();
                    let mut hold = Hold::default();
                    if let Some(mut call) = call {
                        call.obey(parts.status, &parts.headers);
                        hold = Hold::call(call);
                    }
                    return Poll::Ready(Ok(Response::from_parts(parts, Body::of_service(body, hold))));
                }
            }
        }
    }
}

impl<S: Service<R>, R> fmt::Debug for ObeyingFuture<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObeyingFuture").finish_non_exhaustive()
    }
}
