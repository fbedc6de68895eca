//! [`RateLimitLayer`]: a limiter in front of services.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use tidegate::AllRequest;
use tidegate_http::write::{Format, Limit as NamedLimit};

use crate::gate::{Function, Gate, KeyOf, Mode, Needs};
use crate::hold::{Hold, Used};
use crate::key::Key;
use crate::kind::{Client, Kind, Plain, Server};
use crate::limit::Limit;
use crate::refused::Refused;

/// A limiter in front of services. All services that one layer makes, and all their clones, share
/// its permits.
///
/// | method | sets |
/// |---|---|
/// | [`new`](RateLimitLayer::new), [`keyed`](RateLimitLayer::keyed), [`keyed_async`](RateLimitLayer::keyed_async) | the limiter, and the key of each request |
/// | [`for_client`](RateLimitLayer::for_client), [`plain`](RateLimitLayer::plain), [`plain_keyed`](RateLimitLayer::plain_keyed) | that a refusal is an error instead of a response |
/// | [`cost`](RateLimitLayer::cost), [`exempt`](RateLimitLayer::exempt) | the permits that a request asks for |
/// | [`refuse`](RateLimitLayer::refuse), [`wait`](RateLimitLayer::wait), [`wait_at_most`](RateLimitLayer::wait_at_most), [`shadow`](RateLimitLayer::shadow) | what happens to a request whose permits are not available |
/// | [`settle`](RateLimitLayer::settle), [`refund_if`](RateLimitLayer::refund_if), [`refund_errors`](RateLimitLayer::refund_errors) | the actual cost of a request, from its response |
/// | [`refuse_with`](RateLimitLayer::refuse_with), [`named`](RateLimitLayer::named), [`format`](RateLimitLayer::format), [`no_headers`](RateLimitLayer::no_headers) | what a server's responses say about the limits |
///
/// # When permits are taken
///
/// A request asks for permits when its response future is first polled. A future that is dropped
/// before that costs nothing. A service that is ready but never called costs nothing either. While
/// a request waits, it keeps the inner service ready, so put a limit that waits outside of a
/// `ConcurrencyLimit` or a `Buffer`. [`ReadyRateLimitLayer`](crate::ReadyRateLimitLayer) waits
/// before the request exists.
///
/// # When a call is over
///
/// A call ends when the body of its response is read to the end, fails or is dropped. Then permits
/// that are [counted while in use](tidegate::CountingLimit) are given back, and estimates are
/// settled. A call without a response ends when its service fails or its future is dropped; it then
/// costs its estimate. [`refund_errors`](RateLimitLayer::refund_errors) gives back the permits of a
/// call whose service fails.
///
/// # Cost
///
/// A layer over a rate limit allocates nothing if it does not wait, write headers or settle, and
/// its key function is not async. A layer over a limit of permits in use allocates the guard that
/// gives the permits back. See the README for figures.
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response, StatusCode};
/// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
/// use tidegate_tower::RateLimitLayer;
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Infallible> {
/// let policy = TokenBucket::new(Rate::per_second(5), 1);
/// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
/// let hello = async |_: Request<String>| {
///     Ok::<_, Infallible>(Response::new("hello".to_owned()))
/// };
/// let mut service = ServiceBuilder::new()
///     .layer(RateLimitLayer::new(limiter).named("all-clients"))
///     .service(service_fn(hello));
///
/// let granted = service.ready().await?.call(Request::default()).await?;
/// assert_eq!(granted.headers()["ratelimit"], r#""all-clients";r=0;t=1"#);
/// let refused = service.ready().await?.call(Request::default()).await?;
/// assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
/// assert_eq!(refused.headers()["retry-after"], "1");
/// # Ok(())
/// # }
/// ```
pub struct RateLimitLayer<L: Limit, M: Kind = Server> {
    pub(crate) gate: Gate<L, M::Request>,
    settle: Option<Function<M::Response, Option<Used>>>,
    refunds_errors: bool,
    pub(crate) kind: M,
}

impl<L: Limit> RateLimitLayer<L> {
    /// Creates a layer of an HTTP server with one limit for all requests. A request without a
    /// permit gets a response that refuses it.
    #[must_use]
    pub fn new(limiter: L) -> Self
    where
        L: Limit<Key = ()>,
    {
        RateLimitLayer::of(limiter, KeyOf::Now(Arc::new(|_| Key::Of(()))))
    }

    /// Creates a layer of an HTTP server with a limit for each key. See [`Key`] for what the
    /// function may return.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::StatusCode;
    /// use tidegate::{KeyedRateLimiter, Rate, TokenBucket};
    /// use tidegate_tower::RateLimitLayer;
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let users: KeyedRateLimiter<String> = KeyedRateLimiter::new(policy, 100_000);
    /// let layer = RateLimitLayer::keyed(users, |request| {
    ///     let key = request.headers.get("x-api-key").ok_or(StatusCode::UNAUTHORIZED)?;
    ///     key.to_str().map(String::from).map_err(|_| StatusCode::BAD_REQUEST)
    /// });
    /// ```
    ///
    /// A limit for each user, and one for all users. The type of the composite names the borrowed
    /// key:
    ///
    /// ```
    /// use http::StatusCode;
    /// use tidegate::{KeyedAllOf, KeyedRateLimiter, Rate, RateLimiter, TokenBucket};
    /// use tidegate_tower::RateLimitLayer;
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let users: KeyedRateLimiter<String> = KeyedRateLimiter::new(policy, 100_000);
    /// let all = RateLimiter::new(TokenBucket::new(Rate::per_second(500), 1000));
    /// let limits: KeyedAllOf<str> = KeyedAllOf::new("user", &users).with("all users", &all);
    /// let layer = RateLimitLayer::keyed(limits, |request| {
    ///     let key = request.headers.get("x-api-key").ok_or(StatusCode::UNAUTHORIZED)?;
    ///     key.to_str().map(String::from).map_err(|_| StatusCode::BAD_REQUEST)
    /// });
    /// ```
    #[must_use]
    pub fn keyed<K>(limiter: L, key: impl Fn(&Parts) -> K + Send + Sync + 'static) -> Self
    where
        K: Into<Key<L::Key>>,
    {
        RateLimitLayer::of(limiter, KeyOf::Now(Arc::new(move |request| key(request).into())))
    }

    /// Like [`keyed`](RateLimitLayer::keyed), for a key that must be looked up, for example in a
    /// database of sessions. The future must not borrow the request.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::StatusCode;
    /// use tidegate::{KeyedRateLimiter, Rate, TokenBucket};
    /// use tidegate_tower::RateLimitLayer;
    ///
    /// async fn user_of(session: String) -> Option<u64> {
    /// #     let _ = session;
    ///     // ... a query ...
    /// #     None
    /// }
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let users: KeyedRateLimiter<u64> = KeyedRateLimiter::new(policy, 100_000);
    /// let layer = RateLimitLayer::keyed_async(users, |request| {
    ///     let session = request
    ///         .headers
    ///         .get("session")
    ///         .and_then(|s| s.to_str().ok())
    ///         .map(String::from);
    ///     async move {
    ///         let session = session.ok_or(StatusCode::UNAUTHORIZED)?;
    ///         user_of(session).await.ok_or(StatusCode::UNAUTHORIZED)
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn keyed_async<F>(limiter: L, key: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output: Into<Key<L::Key>>> + Send + 'static,
    {
        let key = move |request: &Parts| {
            let key = key(request);
            Box::pin(async { key.await.into() }) as _
        };
        RateLimitLayer::of(limiter, KeyOf::Later(Arc::new(key)))
    }

    /// Turns the layer into one of an HTTP client: a request [waits](RateLimitLayer::wait) by
    /// default, and a refusal is an [`Error`](crate::Error).
    ///
    /// # Examples
    ///
    /// A hyper client with a limit for each host:
    ///
    /// ```
    /// use std::time::Duration;
    /// use hyper_util::client::legacy::Client;
    /// use hyper_util::rt::TokioExecutor;
    /// use tidegate::{KeyedRateLimiter, Rate, SmoothBursty};
    /// use tidegate_tower::RateLimitLayer;
    /// use tower::ServiceBuilder;
    ///
    /// let policy = SmoothBursty::new(Rate::per_second(10));
    /// let hosts: KeyedRateLimiter<String, _> = KeyedRateLimiter::new(policy, 1000);
    /// let per_host =
    ///     |request: &http::request::Parts| request.uri.host().map(String::from);
    /// let limit = RateLimitLayer::keyed(hosts, per_host).for_client();
    /// let client = ServiceBuilder::new()
    ///     .layer(limit.wait_at_most(Duration::from_secs(30)))
    ///     .service(Client::builder(TokioExecutor::new()).build_http::<String>());
    /// ```
    #[must_use]
    pub fn for_client(self) -> RateLimitLayer<L, Client> {
        let RateLimitLayer { gate, settle, refunds_errors, .. } = self;
        RateLimitLayer { gate, settle, refunds_errors, kind: Client::default() }
    }

    /// Sets the response to a refused request. The layer adds the `RateLimit` headers and
    /// `Retry-After`. Where the response already has such headers, `Retry-After` stays, a list of
    /// limits has the limits of both, and the state of one limit becomes that of the tighter limit.
    /// So behind several layers, `Retry-After` is of the limit that refused, or of the service. It
    /// can end before the reset of a limit of an outer layer that the request exhausted.
    ///
    /// The default is the response of [`Refused::to_response`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use tidegate::{Rate, RateLimiter, TokenBucket};
    /// # let limiter = RateLimiter::new(TokenBucket::new(Rate::per_second(5), 1));
    /// use http::Response;
    /// use tidegate_tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::new(limiter).refuse_with(|refused, _request| {
    ///     let mut response = Response::new("slow down");
    ///     *response.status_mut() = refused.status();
    ///     response
    /// });
    /// ```
    #[must_use]
    pub fn refuse_with<T>(
        mut self,
        answer: impl Fn(&Refused, &Parts) -> http::Response<T> + Send + Sync + 'static,
    ) -> Self
    where
        T: Into<Bytes>,
    {
        let answer = move |refused: &_, request: &_| answer(refused, request).map(Into::into);
        self.kind.refuse = Some(Arc::new(answer));
        self
    }

    /// Sets the format of the headers that report the state of the limits. The default is
    /// [`Format::Draft`]. The time in [`Format::XRateLimitUnix`] is set anew for each response.
    ///
    /// Responses to granted requests have these headers, too. They report the state of each limit
    /// after the request took its permits, or the state in which the limit refused it. The window
    /// of a limit is the time in which a whole quota accrues, in whole seconds. The quota of a
    /// limit that fills in less than a second is what accrues within one second: a token bucket of
    /// 100 per second with a burst of 20 has a quota of 100, of which at most 20 remain.
    ///
    /// Use one format for all layers. With [`Format::Draft`] each layer reports its own limits, so
    /// give each layer a [name](RateLimitLayer::named). With the other formats the response reports
    /// the tightest limit of all layers, and no limit of calls in flight.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.kind.headers.format = Some(format);
        self
    }

    /// Omits the headers that report the state of the limits. A refusal still has its
    /// `Retry-After`.
    #[must_use]
    pub fn no_headers(mut self) -> Self {
        self.kind.headers.format = None;
        self
    }
}

impl<L: Limit, R: 'static, A: 'static> RateLimitLayer<L, Plain<R, A>> {
    /// Creates a layer of any service with one limit for all requests. A request waits by default,
    /// and a refusal is an [`Error`](crate::Error).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    /// use tidegate_tower::RateLimitLayer;
    /// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tidegate_tower::Error<std::convert::Infallible>> {
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// let cost = |text: &&str| u32::try_from(text.len()).unwrap_or(u32::MAX);
    /// let mut length = ServiceBuilder::new()
    ///     .layer(RateLimitLayer::plain(limiter).cost(cost).refuse())
    ///     .service(service_fn(async |text: &'static str| Ok(text.len())));
    ///
    /// assert_eq!(length.ready().await?.call("eight by").await?, 8);
    /// assert!(length.ready().await?.call("more").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn plain(limiter: L) -> Self
    where
        L: Limit<Key = ()>,
    {
        RateLimitLayer::of(limiter, KeyOf::Now(Arc::new(|_| Key::Of(()))))
    }

    /// Creates a layer of any service with a limit for each key. See [`Key`] for what the function
    /// may return.
    #[must_use]
    pub fn plain_keyed<K>(limiter: L, key: impl Fn(&R) -> K + Send + Sync + 'static) -> Self
    where
        K: Into<Key<L::Key>>,
    {
        RateLimitLayer::of(limiter, KeyOf::Now(Arc::new(move |request| key(request).into())))
    }
}

impl<L: Limit, M: Kind> RateLimitLayer<L, M> {
    fn of(limit: L, key: KeyOf<L::Key, M::Request>) -> Self
    where
        M: Default,
    {
        let gate = Gate { limit, key, ask: None, exempt: None, mode: None, name: None };
        RateLimitLayer { gate, settle: None, refunds_errors: false, kind: M::default() }
    }

    /// Sets what a request asks for. The default is one permit of each limit.
    ///
    /// The function returns a number of permits or a [`Request`](tidegate::Request), which may have
    /// a priority, a maximum wait or an exemption. For an `AllOf` it returns an [`AllRequest`] or a
    /// list of costs by name.
    ///
    /// A cost of 0 takes no permits, except that in an `AllOf` a [default
    /// cost](tidegate::AllOf::default_cost) and a [`CountingLimit`](tidegate::CountingLimit) still
    /// apply. A closed limiter refuses it. A `KeyedCountingLimit` without room for a key refuses it
    /// as well, and so does a `KeyedAllOf` if all costs are 0 and the layer may settle them. If
    /// only some costs are 0, a limit without room adds the key when such a cost is settled, and
    /// charges nothing if there is no room even then. An [exempt](AllRequest::exempt) request
    /// always passes, and its response does not report the limits.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tidegate::{AllOf, Rate, RateLimiter, Request, TokenBucket};
    /// # use tidegate_tower::RateLimitLayer;
    /// # let limiter = RateLimiter::new(TokenBucket::new(Rate::per_second(5), 10));
    /// # let requests = RateLimiter::new(TokenBucket::new(Rate::per_second(5), 10));
    /// # let bytes = RateLimiter::new(TokenBucket::new(Rate::per_second(5000), 10_000));
    /// use http::Method;
    ///
    /// let layer = RateLimitLayer::new(limiter).cost(|request| match request.method {
    ///     Method::GET => Request::permits(1).priority(1),
    ///     _ => Request::permits(5),
    /// });
    ///
    /// let both = AllOf::new("requests", &requests).with("bytes", &bytes);
    /// let layer = RateLimitLayer::new(both).cost(|request| {
    ///     let length = request.headers.get("content-length");
    ///     let bytes = length
    ///         .and_then(|length| length.to_str().ok()?.parse().ok())
    ///         .unwrap_or(1000);
    ///     [("bytes", bytes)]
    /// });
    /// ```
    #[must_use]
    pub fn cost<A>(mut self, cost: impl Fn(&M::Request) -> A + Send + Sync + 'static) -> Self
    where
        A: Into<L::Ask>,
    {
        self.gate.ask = Some(Arc::new(move |request| cost(request).into()));
        self
    }

    /// Sets which requests pass without asking the limiter. This function runs before the key
    /// function: an exempt request needs no key, and is never refused for lack of a key.
    ///
    /// The observer of the limiter is not notified of such a request. It is notified of a request
    /// whose [cost](RateLimitLayer::cost) is [exempt](tidegate::Request::exempt).
    #[must_use]
    pub fn exempt(mut self, exempt: impl Fn(&M::Request) -> bool + Send + Sync + 'static) -> Self {
        self.gate.exempt = Some(Arc::new(exempt));
        self
    }

    /// Refuses a request at once if its permits are not available. This is the default of a server.
    #[must_use]
    pub fn refuse(mut self) -> Self {
        self.gate.mode = Some(Mode::Refuse);
        self
    }

    /// Lets a request wait until its permits are available. This is the default of a client.
    ///
    /// The limiter bounds the number of waiting requests: see
    /// [`QueueBounds`](tidegate::QueueBounds).
    #[must_use]
    pub fn wait(mut self) -> Self {
        self.gate.mode = Some(Mode::Wait);
        self
    }

    /// Lets a request wait if its permits are due within this time, or within the shorter maximum
    /// wait that its [cost](RateLimitLayer::cost) sets. Otherwise the request is refused at once.
    ///
    /// The [`retry_after`](Refused::retry_after) of such a refusal is the time until the layer
    /// would accept the request, that is, until its wait would not exceed the maximum wait. It is
    /// not the time until its permits are due.
    #[must_use]
    pub fn wait_at_most(mut self, within: Duration) -> Self {
        self.gate.mode = Some(Mode::WaitAtMost(within));
        self
    }

    /// Lets all requests pass, and takes permits where they are available. An HTTP request that
    /// would have been refused carries a [`Refused`] as an extension. Responses do not report the
    /// limits.
    ///
    /// A request that the key function [refuses](crate::Key::Refused) passes without permits, with
    /// the status in its extension.
    ///
    /// # The shadow mode of a limiter
    ///
    /// A rate limiter has a shadow mode of its own: [`RateLimiter::set_shadow`] and
    /// [`KeyedRateLimiter::set_shadow_all`]. Each member of an `AllOf` has its own shadow mode.
    ///
    /// | | shadow mode of the layer | shadow mode of the limiter |
    /// |---|---|---|
    /// | a request without permits is counted as | [`limited`], like any refusal | [`shadowed`] |
    /// | applies to | the requests of the layer | all calls of the limiter |
    /// | the request carries a [`Refused`] as an extension | yes | no |
    /// | a request that the key function refuses | passes | is refused |
    /// | responses have the `RateLimit` headers | no | yes, of a limit that is not enforced |
    ///
    /// To count what a new limit would refuse, use the shadow mode of the limiter. Add
    /// [`no_headers`](RateLimitLayer::no_headers) unless clients should already read the limit. To
    /// let the service see which requests would be refused, use the shadow mode of the layer. Its
    /// observer then counts these requests as refused.
    ///
    /// [`RateLimiter::set_shadow`]: tidegate::RateLimiter::set_shadow
    /// [`KeyedRateLimiter::set_shadow_all`]: tidegate::KeyedRateLimiter::set_shadow_all
    /// [`limited`]: tidegate::StatisticsSnapshot::limited
    /// [`shadowed`]: tidegate::StatisticsSnapshot::shadowed
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.gate.mode = Some(Mode::Shadow);
        self
    }

    /// Names the only limit of the limiter, in headers and refusals, even if the limit is in a
    /// store. With several limits, of an `AllOf` or of one tag of a store, each limit keeps its own
    /// name.
    ///
    /// Without a name, the limit has the name that it has in its limiter. That name is `limit`,
    /// unless the limit is a member of an `AllOf` or is in a store. If a request passes several
    /// layers, name each layer. Otherwise a client cannot distinguish their limits.
    ///
    /// # Panics
    ///
    /// Panics if a character of the name is not printable ASCII.
    #[must_use]
    #[track_caller]
    pub fn named(mut self, name: &str) -> Self {
        if let Err(error) = NamedLimit::new(name, 0) {
            panic!("{error}");
        }
        self.gate.name = Some(name.into());
        self
    }

    /// Sets the actual cost of a call from its response: a number of permits, or costs by name.
    /// `None` leaves the cost at its estimate.
    ///
    /// When the [call is over](RateLimitLayer#when-a-call-is-over), the unused part of the estimate
    /// goes back to the limiter, and a higher cost is charged. A handler can put the cost into the
    /// extensions of the response. A call that was estimated as 0 is charged its actual cost. If
    /// `settle` is called several times, the first function that returns a cost decides. If a cost
    /// names a limit that does not exist, the estimate is the cost, because the response is already
    /// on its way. A call that is [refunded](RateLimitLayer::refund_if) costs nothing, whatever
    /// these functions return.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tidegate::{AllOf, Rate, RateLimiter, TokenBucket};
    /// # let requests = RateLimiter::new(TokenBucket::new(Rate::per_minute(60), 10));
    /// # let tokens = RateLimiter::new(TokenBucket::new(Rate::per_minute(9000), 9000));
    /// use tidegate_tower::RateLimitLayer;
    ///
    /// #[derive(Clone, Copy)]
    /// struct Used(u32);
    ///
    /// let api = AllOf::new("requests", &requests).with("tokens", &tokens);
    /// let layer = RateLimitLayer::new(api)
    ///     .cost(|_| [("tokens", 4000)])
    ///     .settle(|response| {
    ///         response.extensions.get::<Used>().map(|used| [("tokens", used.0)])
    ///     });
    /// ```
    #[must_use]
    pub fn settle<A>(mut self, used: impl Fn(&M::Response) -> Option<A> + Send + Sync + 'static) -> Self
    where
        A: Into<AllRequest<'static>>,
    {
        let before = self.settle.take();
        self.settle = Some(Arc::new(move |response| {
            let before = before.as_ref().and_then(|before| before(response));
            before.or_else(|| Some(Used::Costs(used(response)?.into())))
        }));
        self
    }

    /// Gives the permits of a call back if this function returns `true` for its response, for
    /// example for a response of status 500 or one from a cache. It takes precedence over
    /// [`settle`](RateLimitLayer::settle), whichever of the two is called first. The headers of the
    /// response have the numbers from before the permits came back.
    ///
    /// A service that fails has no response: see [`refund_errors`](RateLimitLayer::refund_errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tidegate::{Rate, RateLimiter, TokenBucket};
    /// # let limiter = RateLimiter::new(TokenBucket::new(Rate::per_second(5), 1));
    /// use http::StatusCode;
    /// use tidegate_tower::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::new(limiter)
    ///     .refund_if(|response| response.status == StatusCode::NOT_MODIFIED);
    /// ```
    #[must_use]
    pub fn refund_if(mut self, refund: impl Fn(&M::Response) -> bool + Send + Sync + 'static) -> Self {
        let settle = self.settle.take();
        self.settle = Some(Arc::new(move |response| match &settle {
            _ if refund(response) => Some(Used::Nothing),
            Some(settle) => settle(response),
            None => None,
        }));
        self
    }

    /// Gives the permits of a call back if the service fails and thus has no response. Without
    /// this, such a call costs its estimate.
    #[must_use]
    pub fn refund_errors(mut self) -> Self {
        self.refunds_errors = true;
        self
    }

    pub(crate) fn needs(&self) -> Needs {
        let mode = self.gate.mode.unwrap_or(if M::WAITS { Mode::Wait } else { Mode::Refuse });
        let state = self.kind.writes_state() && mode != Mode::Shadow;
        Needs { state, settles: self.settle.is_some() || self.refunds_errors, mode }
    }

    /// Ends the hold of a call after its service failed.
    pub(crate) fn failed(&self, mut hold: Hold) {
        if self.refunds_errors {
            hold.settle(Used::Nothing);
        }
    }

    /// Returns the hold of a call, with the cost that it settles when the call is over.
    pub(crate) fn settled(&self, response: &M::Response, mut hold: Hold) -> Hold {
        if hold.is_estimate()
            && let Some(used) = self.settle.as_ref().and_then(|settle| settle(response))
        {
            hold.settle(used);
        }
        hold
    }
}

impl<L: Limit, M: Kind> Clone for RateLimitLayer<L, M> {
    fn clone(&self) -> Self {
        RateLimitLayer {
            gate: self.gate.clone(),
            settle: self.settle.clone(),
            refunds_errors: self.refunds_errors,
            kind: self.kind.clone(),
        }
    }
}

impl<L: Limit, M: Kind> fmt::Debug for RateLimitLayer<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("name", &self.gate.name)
            .field("mode", &self.needs().mode)
            .field("settles", &self.needs().settles)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
