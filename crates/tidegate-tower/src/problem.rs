//! [`Refused::to_response`]: the answer to a refused request, and that of plain HTTP.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{Response, StatusCode};
use tidegate_http::Problem;

use crate::grpc;
use crate::refused::Refused;

impl Refused {
    /// The answer of a layer that was told no other.
    ///
    /// A call of gRPC gets status 200 and `grpc-status` 8 (`RESOURCE_EXHAUSTED`) or 14
    /// (`UNAVAILABLE`), with the time to wait in `grpc-retry-pushback-ms`. Any other request gets
    /// [`status`](Refused::status) and a body of type `application/problem+json`, or no body if it
    /// has no key, or if its cost names a member that is not there: that is an error of the server.
    /// The layer adds the `RateLimit` headers and `Retry-After`.
    #[must_use]
    pub fn to_response(&self, request: &Parts) -> Response<Bytes> {
        match grpc::content_type(request) {
            Some(content_type) => grpc::refuse(self, content_type),
            None => refuse(self),
        }
    }
}

/// Problem details of RFC 9457, if a limit refused.
fn refuse(refused: &Refused) -> Response<Bytes> {
    let mut problem = match refused.status() {
        StatusCode::TOO_MANY_REQUESTS => Problem::quota_exceeded([refused.limit()]),
        StatusCode::SERVICE_UNAVAILABLE => Problem::temporary_reduced_capacity([refused.limit()]),
        // No problem of the draft, or no limit was asked.
        status => return of_status(status, Bytes::new()),
    };
    if refused.refusal().is_none() {
        return of_status(refused.status(), Bytes::new());
    }
    problem.detail = Some(refused.to_string());
    let mut response = of_status(problem.status, problem.to_json().into());
    response.headers_mut().insert(CONTENT_TYPE, Problem::CONTENT_TYPE);
    response
}

fn of_status(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}
