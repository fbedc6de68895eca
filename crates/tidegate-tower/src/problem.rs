//! [`Refused::to_response`]: the answer to a refused request, and that of plain HTTP.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{Response, StatusCode};
use tidegate::Nanos;
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
    ///
    /// The text of the answer tells the time to wait as its header does: in whole seconds, or for
    /// gRPC in milliseconds. The text of this value itself is for the logs of the service: it tells
    /// the time exactly, and that a store is away.
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
    let violated = Some(refused.limit()).filter(|_| !refused.is_undecided());
    let mut problem = match refused.status() {
        StatusCode::TOO_MANY_REQUESTS => Problem::quota_exceeded(violated),
        StatusCode::SERVICE_UNAVAILABLE => Problem::temporary_reduced_capacity(violated),
        // No problem of the draft, or no limit was asked.
        status => return of_status(status, Bytes::new()),
    };
    if refused.refusal().is_none() {
        return of_status(refused.status(), Bytes::new());
    }
    // As `Retry-After` has the time.
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

    /// The name of a limit that there is not was told, as one that was violated; and that a limiter
    /// keeps its permits in a store, which is no matter of the client.
    #[test]
    fn a_store_that_is_away_names_no_limit() {
        let retry_after = Nanos::new(1_000_000_000);
        let away = problem(Refusal::Unavailable { retry_after });
        assert_eq!((away.status, away.violated_policies.len()), (StatusCode::SERVICE_UNAVAILABLE, 0));
        let told = "the service cannot decide about the request now, retry after 1s";
        assert_eq!(away.detail.as_deref(), Some(told));
        let never = problem(Refusal::Unavailable { retry_after: Nanos::MAX });
        assert_eq!(never.detail.as_deref(), Some("the service cannot decide about the request now"));
        assert_eq!(problem(Refusal::Paused { retry_after }).violated_policies, ["limit"]);
        assert_eq!(problem(Refusal::Limited { retry_after }).violated_policies, ["limit"]);
    }
}
