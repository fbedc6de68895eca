//! [`RateLimit`]: a limit on the requests of a client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Request, RequestBuilder, Response, Url};
use tidegate::{AllRefusal, AllRequest, AnyLimiter};
use tidegate_http::obey::{Call, Obey, Scopes};
use tidegate_http::read::ResponseLimits;

use crate::body::keep_until_end;
use crate::error::Error;

type Function<T> = Arc<dyn Fn(&Request) -> T + Send + Sync>;

/// A limit on the requests of a client. Clones share it.
///
/// It is a middleware of `reqwest-middleware`. Without the middleware, its method
/// [`send`](RateLimit::send) sends requests. A request waits until its permits are available. The
/// response is obeyed: `Retry-After`, the headers of many vendors and the pushback of gRPC pause
/// the limiter or lower its available permits, for all waiting requests. The trailers of a gRPC
/// response are obeyed like its headers. See [`obey`](tidegate_http::obey).
///
/// | method | limits |
/// |---|---|
/// | [`new`](RateLimit::new), [`obeying`](RateLimit::obeying) | all requests together |
/// | [`per_host`](RateLimit::per_host) | the requests to each host |
/// | [`per`](RateLimit::per) | the requests of each route, token, or whatever else a server counts by |
///
/// A redirect that reqwest follows is part of its request, and costs nothing. So is a retry that
/// reqwest itself makes, by the policy of its `ClientBuilder::retry` or because the protocol
/// refused the request: only the last response is obeyed. A retry by a middleware before this one,
/// or by the program, is a new request: it waits its turn, and costs its permits again.
///
/// A response is obeyed, with its trailers, only if its host is that of the request as this
/// middleware sees it. So put a middleware that changes the host, such as one that adds a base
/// address, before this one.
///
/// # When a call is over
///
/// A call ends with the body of its response. Then permits of a
/// [`CountingLimit`](tidegate::CountingLimit) are given back. A request that is dropped while it
/// waits costs nothing, but a pause until the server allows this request
/// [stays](tidegate_http::obey::Obey#fairness-and-cancel-safety). A failed request has used its
/// permits.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use tidegate::{Rate, RateLimiter};
/// use tidegate_reqwest::{Error, RateLimit};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Error> {
/// let limit = RateLimit::new(RateLimiter::paced(Rate::per_second(10)));
/// let limit = limit.wait_at_most(Duration::from_secs(30));
/// let client = reqwest::Client::new();
/// let response = limit.send(client.get("https://api.example/items")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RateLimit {
    limit: Limit,
    costs: Option<Function<AllRequest<'static>>>,
    within: Option<Duration>,
    timeout_counts_wait: bool,
}

#[derive(Clone)]
enum Limit {
    One(Obey),
    /// Each request is in a scope. A request without a scope is not limited.
    Scopes(Scopes, Function<Option<String>>),
}

impl RateLimit {
    /// Creates one limit for all requests.
    ///
    /// # Examples
    ///
    /// 50 requests per second, and at most 20 in flight. A request takes permits from both limits
    /// at the same time or from neither, and is in flight until the body of its response has ended.
    ///
    /// ```
    /// use tidegate::{AllOf, CountingLimit, Rate, RateLimiter};
    /// use tidegate_reqwest::RateLimit;
    ///
    /// let rate = RateLimiter::paced(Rate::per_second(50));
    /// let in_flight = CountingLimit::new(20);
    /// let both = AllOf::new("rate", &rate).with_counting("in flight", &in_flight);
    /// let limit = RateLimit::new(both);
    /// ```
    #[must_use]
    pub fn new(limiter: impl Into<AnyLimiter>) -> RateLimit {
        RateLimit::obeying(Obey::new(limiter))
    }

    /// Creates one limit for all requests, with custom options for obeying responses.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllOf, Rate, RateLimiter, TokenBucket};
    /// use tidegate_http::obey::{Obey, Options};
    /// use tidegate_http::read::{Reader, Vendor};
    /// use tidegate_reqwest::RateLimit;
    ///
    /// let requests = RateLimiter::new(TokenBucket::new(Rate::per_minute(60), 10));
    /// let tokens =
    ///     RateLimiter::new(TokenBucket::new(Rate::per_minute(10_000), 10_000));
    /// let api = AllOf::new("requests", &requests).with("tokens", &tokens);
    /// let options = Options::new().reader(Reader::of(Vendor::OpenAi));
    /// let limit = RateLimit::obeying(Obey::with_options(api, options))
    ///     .cost(|_| [("tokens", 4000)]);
    /// ```
    #[must_use]
    pub fn obeying(obey: Obey) -> RateLimit {
        RateLimit::of(Limit::One(obey))
    }

    /// Creates a limit for each host: the limit of `https://api.example` is named `api.example`,
    /// that of `http://localhost:3000` is named `localhost:3000`. A trailing dot does not matter.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Rate, RateLimiter};
    /// use tidegate_http::obey::{Obey, Scopes};
    /// use tidegate_reqwest::RateLimit;
    ///
    /// let limit = RateLimit::per_host(Scopes::new(1000, |host| {
    ///     let rate = if host == "slow.example" {
    ///         Rate::per_minute(30)
    ///     } else {
    ///         Rate::per_second(10)
    ///     };
    ///     Obey::new(RateLimiter::paced(rate))
    /// }));
    /// ```
    #[must_use]
    pub fn per_host(scopes: Scopes) -> RateLimit {
        RateLimit::per(scopes, |request| Some(host(request.url())))
    }

    /// Creates a limit for each scope that this function names. A request without a scope is not
    /// limited.
    #[must_use]
    pub fn per(
        scopes: Scopes,
        scope: impl Fn(&Request) -> Option<String> + Send + Sync + 'static,
    ) -> RateLimit {
        RateLimit::of(Limit::Scopes(scopes, Arc::new(scope)))
    }

    fn of(limit: Limit) -> RateLimit {
        RateLimit { limit, costs: None, within: None, timeout_counts_wait: false }
    }

    /// Sets the cost of a request: a number of permits, costs by the names of an
    /// [`AllOf`](tidegate::AllOf), or an [`AllRequest`] with a priority. The default is one permit
    /// of each limit.
    ///
    /// A request with a cost of 0 takes no permits, except that in an `AllOf` a [default
    /// cost](tidegate::AllOf::default_cost) and a [`CountingLimit`](tidegate::CountingLimit) still
    /// apply. A closed limiter refuses it. An [exempt](AllRequest::exempt) request always passes.
    /// The responses to both are still obeyed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tidegate::{Rate, RateLimiter};
    /// # use tidegate_reqwest::RateLimit;
    /// # let limit = RateLimit::new(RateLimiter::paced(Rate::per_second(10)));
    /// use reqwest::Method;
    ///
    /// let limit =
    ///     limit.cost(|request| if request.method() == Method::GET { 1 } else { 5 });
    /// ```
    #[must_use]
    pub fn cost<C>(mut self, cost: impl Fn(&Request) -> C + Send + Sync + 'static) -> RateLimit
    where
        C: Into<AllRequest<'static>>,
    {
        self.costs = Some(Arc::new(move |request| cost(request).into()));
        self
    }

    /// Refuses a request at once if its permits are due later than this. A shorter maximum wait in
    /// its [cost](RateLimit::cost) takes precedence. Without either, a request waits without bound.
    ///
    /// The [`retry_after`](AllRefusal::retry_after) of such a refusal is the time until the limit
    /// would accept an equal request, that is, until its wait would not exceed the maximum wait. It
    /// is not the time until its permits are due.
    #[must_use]
    pub fn wait_at_most(mut self, within: Duration) -> RateLimit {
        self.within = Some(within);
        self
    }

    /// Counts the wait for permits towards the [timeout](reqwest::RequestBuilder::timeout) of each
    /// request. A request whose permits are due after its timeout is refused at once. reqwest
    /// itself counts the timeout from the time at which the request is sent. The timeout of a whole
    /// client is unknown to this limit.
    #[must_use]
    pub fn timeout_counts_wait(mut self) -> RateLimit {
        self.timeout_counts_wait = true;
        self
    }

    /// Waits for the permits of a request, sends it, and obeys the response.
    ///
    /// # Errors
    ///
    /// - [`Error::Refused`] if the limit refused the request, for example because its permits are
    ///   due too late.
    /// - [`Error::Reqwest`] if the request failed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future while it waits costs no permits.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        let (client, request) = request.build_split();
        self.execute(&client, request?).await
    }

    /// Like [`send`](RateLimit::send), for a built request.
    ///
    /// # Errors
    ///
    /// See [`send`](RateLimit::send).
    pub async fn execute(&self, client: &Client, mut request: Request) -> Result<Response, Error> {
        let ticket = self.begin(&mut request).await?;
        let response = client.execute(request).await?;
        Ok(ticket.end(response))
    }

    /// Waits for the permits of a request.
    pub(crate) async fn begin(&self, request: &mut Request) -> Result<Ticket, AllRefusal> {
        let host = host(request.url());
        let scope;
        let obey = match &self.limit {
            Limit::One(obey) => obey,
            Limit::Scopes(scopes, name) => match name(request) {
                Some(name) => {
                    scope = scopes.of(&name);
                    &scope
                }
                None => return Ok(Ticket { call: None, host }),
            },
        };
        let mut costs = self.costs.as_ref().map(|costs| costs(request)).unwrap_or_default();
        let timeout = request.timeout().copied().filter(|_| self.timeout_counts_wait);
        let own = costs.to_request().within;
        if let Some(within) = self.within.into_iter().chain(timeout).chain(own).min() {
            costs = costs.within(within);
        }
        let call = obey.acquire_many(costs).await?;
        if let Some(timeout) = timeout {
            *request.timeout_mut() = Some(timeout.saturating_sub(call.waited()));
        }
        Ok(Ticket { call: Some(call), host })
    }
}

/// A request that may be sent.
pub(crate) struct Ticket {
    /// `None` if the request is not limited.
    call: Option<Call>,
    host: String,
}

impl Ticket {
    /// Obeys the response, and keeps the call until the body of the response has ended.
    pub(crate) fn end(self, response: Response) -> Response {
        let Some(mut call) = self.call else { return response };
        // A response of another host is not about this limit.
        let is_own = host(response.url()) == self.host;
        if is_own {
            call.obey(response.status(), response.headers());
        } else {
            // The call is no longer in flight, and keeps its permits.
            let mut nothing = ResponseLimits::default();
            nothing.trusted = false;
            call.obey_limits(nothing);
        }
        keep_until_end(response, call, is_own)
    }
}

/// Returns the host, with its port unless it is the default port of the scheme.
fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    // The dot of the root.
    let host = host.strip_suffix('.').unwrap_or(host);
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RateLimit");
        match &self.limit {
            Limit::One(obey) => shown.field("limit", obey),
            Limit::Scopes(scopes, _) => shown.field("limit", scopes),
        };
        shown.field("within", &self.within).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_named_without_the_dot_of_the_root() {
        let host = |url: &str| url.parse().map(|url| host(&url));
        for url in ["https://api.example/", "https://API.example:443/", "https://api.example./"] {
            assert_eq!(host(url).as_deref(), Ok("api.example"), "{url}");
        }
        assert_eq!(host("http://localhost.:3000/a").as_deref(), Ok("localhost:3000"));
    }
}
