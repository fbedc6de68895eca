//! How each kind of layer turns a decision and the response of its service into its own response.

use http::{Request, Response, request};
use http_body::Body as HttpBody;

use crate::body::Body;
use crate::gate::{Admission, RefusalWithState};
use crate::hold::Hold;
use crate::kind::{Client, Kind, Plain, Server};
use crate::layer::RateLimitLayer;
use crate::limit::Limit;
use crate::refused::{Error, Refused};

/// A request before its decision. The functions of the layer see a `V` of it.
pub trait PendingRequest<V> {
    type Request;

    fn view(&self) -> &V;

    /// Marks the request with the refusal that shadow mode did not enforce.
    fn mark(&mut self, shadowed: Refused);

    fn into_request(self) -> Self::Request;
}

impl<B> PendingRequest<request::Parts> for (request::Parts, B) {
    type Request = Request<B>;

    fn view(&self) -> &request::Parts {
        &self.0
    }

    fn mark(&mut self, shadowed: Refused) {
        self.0.extensions.insert(shadowed);
    }

    fn into_request(self) -> Request<B> {
        Request::from_parts(self.0, self.1)
    }
}

/// A request without extensions, which cannot be marked.
#[derive(Debug)]
pub struct Whole<R>(pub(crate) R);

impl<R> PendingRequest<R> for Whole<R> {
    type Request = R;

    fn view(&self) -> &R {
        &self.0
    }

    fn mark(&mut self, _: Refused) {}

    fn into_request(self) -> R {
        self.0
    }
}

/// The response and error of a kind of layer, for a service with this response and error.
pub trait Finish<A, E>: Kind {
    type Answer;
    type Error;

    fn deny<L: Limit>(
        layer: &RateLimitLayer<L, Self>,
        request: &Self::Request,
        refusal: RefusalWithState,
    ) -> Result<Self::Answer, Self::Error>;

    fn answer<L: Limit>(layer: &RateLimitLayer<L, Self>, answer: A, admission: Admission) -> Self::Answer;

    fn fail(error: E) -> Self::Error;
}

impl<B: HttpBody, E> Finish<Response<B>, E> for Server {
    type Answer = Response<Body<B>>;
    type Error = E;

    fn deny<L: Limit>(
        layer: &RateLimitLayer<L, Self>,
        request: &request::Parts,
        RefusalWithState { refused, state }: RefusalWithState,
    ) -> Result<Self::Answer, E> {
        let mut response = match &layer.kind.refuse {
            Some(refuse) => refuse(&refused, request),
            None => refused.to_response(request),
        };
        layer.kind.headers.refused(&refused, state, layer.gate.name.as_deref(), response.headers_mut());
        Ok(response.map(Body::of_refusal))
    }

    fn answer<L: Limit>(
        layer: &RateLimitLayer<L, Self>,
        answer: Response<B>,
        admission: Admission,
    ) -> Self::Answer {
        let state = admission.state.as_ref();
        let (mut parts, body) = answer.into_parts();
        if let Some(state) = state {
            layer.kind.headers.granted(state, layer.gate.name.as_deref(), &mut parts.headers);
        }
        let hold = layer.settled(&parts, admission.hold);
        Response::from_parts(parts, Body::of_service(body, hold))
    }

    fn fail(error: E) -> E {
        error
    }
}

impl<B: HttpBody, E> Finish<Response<B>, E> for Client {
    type Answer = Response<Body<B>>;
    type Error = Error<E>;

    fn deny<L: Limit>(
        _: &RateLimitLayer<L, Self>,
        _: &request::Parts,
        refusal: RefusalWithState,
    ) -> Result<Self::Answer, Error<E>> {
        Err(refusal.refused.into())
    }

    fn answer<L: Limit>(
        layer: &RateLimitLayer<L, Self>,
        answer: Response<B>,
        admission: Admission,
    ) -> Self::Answer {
        let (parts, body) = answer.into_parts();
        let hold = layer.settled(&parts, admission.hold);
        Response::from_parts(parts, Body::of_service(body, hold))
    }

    fn fail(error: E) -> Error<E> {
        Error::Service(error)
    }
}

impl<R: 'static, A: 'static, E> Finish<A, E> for Plain<R, A> {
    type Answer = A;
    type Error = Error<E>;

    fn deny<L: Limit>(_: &RateLimitLayer<L, Self>, _: &R, refusal: RefusalWithState) -> Result<A, Error<E>> {
        Err(refusal.refused.into())
    }

    fn answer<L: Limit>(layer: &RateLimitLayer<L, Self>, answer: A, admission: Admission) -> A {
        // The call is over.
        drop::<Hold>(layer.settled(&answer, admission.hold));
        answer
    }

    fn fail(error: E) -> Error<E> {
        Error::Service(error)
    }
}
