//! The kinds of a layer: [`Server`], [`Client`] and [`Plain`].

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use http::{Response, request, response};

use crate::headers::StateHeaders;
use crate::refused::Refused;

/// A kind of [`RateLimitLayer`](crate::RateLimitLayer). It determines what the functions of the
/// layer see of requests and responses, and what a refusal is. This trait is sealed.
pub trait Kind: sealed::Sealed + Clone + fmt::Debug + Send + Sync + 'static {
    /// The part of a request that the functions of the layer see.
    type Request: 'static;
    /// The part of a response that the functions of the layer see.
    type Response: 'static;
}

pub(crate) mod sealed {
    pub trait Sealed {
        /// Whether a request waits by default.
        const WAITS: bool;

        /// Returns whether responses report the state of the limits.
        fn writes_state(&self) -> bool {
            false
        }
    }
}

pub(crate) type Refuse = Arc<dyn Fn(&Refused, &request::Parts) -> Response<Bytes> + Send + Sync>;

/// A layer of an HTTP server: it responds to a refused request itself. The error type of the
/// service stays.
#[derive(Clone, Default)]
pub struct Server {
    pub(crate) headers: StateHeaders,
    /// The response to a refused request, if it is not the default.
    pub(crate) refuse: Option<Refuse>,
}

/// A layer of an HTTP client: requests wait by default, and a refusal is an
/// [`Error`](crate::Error).
#[derive(Clone, Debug, Default)]
pub struct Client(());

/// A layer of any service with this request type and this response type: requests wait by default,
/// and a refusal is an [`Error`](crate::Error).
pub struct Plain<Request, Response>(PhantomData<fn(Request) -> Response>);

impl Kind for Server {
    type Request = request::Parts;
    type Response = response::Parts;
}

impl sealed::Sealed for Server {
    const WAITS: bool = false;

    fn writes_state(&self) -> bool {
        self.headers.format.is_some()
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
        f.debug_struct("Server").field("headers", &self.headers).finish_non_exhaustive()
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
