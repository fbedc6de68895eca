//! [`Refused::to_response`]: the response to a refused request, for plain HTTP and gRPC.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{Response, StatusCode};
use tidegate::Nanos;
use tidegate_http::Problem;

use crate::grpc;
use crate::refused::Refused;

impl Refused {
    /// Creates the default response of a layer.
    ///
    /// A gRPC call gets status 200, and `grpc-status` 8 (`RESOURCE_EXHAUSTED`) or 14
    /// (`UNAVAILABLE`) if a limit refused it, otherwise the code of its
    /// [`status`](Refused::status). The time to wait is in `grpc-retry-pushback-ms`, which is -1 if
    /// the call can never pass. Any other request gets [`status`](Refused::status) and a body of
    /// type `application/problem+json`. The response has
    /// no body if the request has no key, or if its cost names an unknown member, which is an error
    /// of the server. The layer adds the `RateLimit` headers and `Retry-After`.
    ///
    /// The text of the response has the time to wait in the unit of the header: in whole seconds,
    /// or in milliseconds for gRPC. The `Display` text of this value is for the logs of the
    /// service: it has the exact time, and says if a store is unavailable.
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
    let violated = refused.violated();
    let mut problem = match refused.status() {
        StatusCode::TOO_MANY_REQUESTS => Problem::quota_exceeded(violated),
        StatusCode::SERVICE_UNAVAILABLE => Problem::temporary_reduced_capacity(violated),
        // The draft has no problem type for this status, or no limit was asked.
        status => return of_status(status, Bytes::new()),
    };
    if refused.refusal().is_none() {
        return of_status(refused.status(), Bytes::new());
    }
    // In whole seconds, like `Retry-After`.
    problem.detail = Some(refused.detail(Nanos::new(1_000_000_000)));
    let mut response = of_status(problem.status, problem.to_json().into());
    response.headers_mut().insert(CONTENT_TYPE, Problem::CONTENT_TYPE);
    response
}

fn of_status(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use tidegate::{AllRefusal, Refusal};

    use super::*;

    fn problem(refusal: Refusal) -> Problem {
        let response = refuse(&Refused::by_limit(AllRefusal::from(refusal)));
        Problem::from_json(response.body()).expect("a problem")
    }

    /// The response named a limit that does not exist as the violated one. It also revealed that
    /// the limiter keeps its permits in a store, which does not concern the client.
    #[test]
    fn a_store_that_is_away_names_no_limit() {
        let retry_after = Nanos::new(1_000_000_000);
        let away = problem(Refusal::Unavailable { retry_after });
        assert_eq!((away.status, away.violated_policies.len()), (StatusCode::SERVICE_UNAVAILABLE, 0));
        let expected = "the service cannot decide about the request now, retry after 1s";
        assert_eq!(away.detail.as_deref(), Some(expected));
        let never = problem(Refusal::Unavailable { retry_after: Nanos::MAX });
        assert_eq!(never.detail.as_deref(), Some("the service cannot decide about the request now"));
        assert_eq!(problem(Refusal::Paused { retry_after }).violated_policies, ["limit"]);
        assert_eq!(problem(Refusal::Limited { retry_after }).violated_policies, ["limit"]);
    }
}
