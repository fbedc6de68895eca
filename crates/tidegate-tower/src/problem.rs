//! The answer to a refused request of plain HTTP.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use tidegate_http::Problem;

use crate::refused::Refused;

/// Problem details of RFC 9457, if a limit refused.
pub(crate) fn refuse(refused: &Refused) -> Response<Bytes> {
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
