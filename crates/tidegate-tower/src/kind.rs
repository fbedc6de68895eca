//! The kinds of a layer: [`Server`], [`Client`] and [`Plain`].

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, request, response};

use crate::refused::Refused;
use crate::tell::Tell;

/// A kind of [`RateLimitLayer`](crate::RateLimitLayer): what it sees of requests and responses, and
/// what a refusal is. This trait is sealed.
pub trait Kind: sealed::Sealed + Clone + fmt::Debug + Send + Sync + 'static {
    /// What the functions of the layer see of a request.
    type Request: 'static;
    /// What the functions of the layer see of a response.
    type Response: 'static;
}

pub(crate) mod sealed {
    pub trait Sealed {
        /// Whether a request waits unless the layer was told otherwise.
        const WAITS: bool;

        /// Whether answers tell the state of the limits.
        fn tells(&self) -> bool {
            false
        }
    }
}

pub(crate) type Refuse = Arc<dyn Fn(&Refused, &request::Parts) -> Response<Bytes> + Send + Sync>;

/// A layer of an HTTP server: it answers a refused request. The error type of the service stays.
#[derive(Clone, Default)]
pub struct Server {
    pub(crate) tell: Tell,
    /// The answer to a refused request, if it is not the default.
    pub(crate) refuse: Option<Refuse>,
}

/// A layer of an HTTP client: requests wait, and a refusal is an [`Error`](crate::Error).
#[derive(Clone, Debug, Default)]
pub struct Client(());

/// A layer of any service with this request and this response: a refusal is an
/// [`Error`](crate::Error).
pub struct Plain<Request, Response>(PhantomData<fn(Request) -> Response>);

impl Kind for Server {
    type Request = request::Parts;
    type Response = response::Parts;
}

impl sealed::Sealed for Server {
    const WAITS: bool = false;

    fn tells(&self) -> bool {
        self.tell.format.is_some()
    }
}

impl Kind for Client {
    type Request = request::Parts;
    type Response = response::Parts;
}

impl sealed::Sealed for Client {
    const WAITS: bool = true;
}

impl<Request: 'static, Response: 'static> Kind for Plain<Request, Response> {
    type Request = Request;
    type Response = Response;
}

impl<Request, Response> sealed::Sealed for Plain<Request, Response> {
    const WAITS: bool = true;
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("tell", &self.tell).finish_non_exhaustive()
    }
}

impl<Request, Response> fmt::Debug for Plain<Request, Response> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plain")
    }
}

impl<Request, Response> Clone for Plain<Request, Response> {
    fn clone(&self) -> Self {
        Plain(PhantomData)
    }
}

impl<Request, Response> Default for Plain<Request, Response> {
    fn default() -> Self {
        Plain(PhantomData)
    }
}
