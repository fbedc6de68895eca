//! The response to a refused gRPC call, without a gRPC library.
//!
//! A refusal is a response of only headers ("Trailers-Only"): the HTTP status is 200, and
//! `grpc-status` is in the headers. The response has no body and no trailers.
//!
//! # Source
//!
//! gRPC over HTTP/2 (`PROTOCOL-HTTP2.md`); gRFC A6 for `grpc-retry-pushback-ms`, where a negative
//! number says that the client must not retry.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode};
use tidegate::Nanos;

use crate::refused::Refused;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Returns the content type of the request if it is a gRPC or gRPC-Web call.
pub(crate) fn content_type(request: &Parts) -> Option<HeaderValue> {
    let content_type = request.headers.get(CONTENT_TYPE)?;
    let (name, rest) = content_type.as_bytes().split_at_checked(b"application/grpc".len())?;
    let is_grpc = name.eq_ignore_ascii_case(b"application/grpc")
        && matches!(rest.first(), None | Some(b'+' | b';' | b'-' | b' '));
    is_grpc.then(|| content_type.clone())
}

pub(crate) fn refuse(refused: &Refused, content_type: HeaderValue) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(STATUS, code(refused.status()).into());
    let detail = refused.detail(Nanos::new(1_000_000));
    // Percent-encoded, so printable ASCII.
    if let Ok(message) = HeaderValue::from_str(&percent_encoded(&detail)) {
        headers.insert(MESSAGE, message);
    }
    if let Some(wait) = refused.retry_after() {
        headers.insert(PUSHBACK, milliseconds_up(wait).into());
    } else if refused.refusal().is_some_and(|refusal| !refusal.may_retry()) {
        headers.insert(PUSHBACK, HeaderValue::from_static("-1"));
    }
    response
}

/// The gRPC code of an HTTP status, as `http-grpc-status-mapping.md` maps it, with two exceptions.
/// That document maps 429 to UNAVAILABLE and 500 to UNKNOWN, because the response may be from a
/// proxy. Here 429 says that a limit refused, and 500 that the server made an error.
fn code(status: StatusCode) -> u16 {
    match status.as_u16() {
        429 => 8,        // RESOURCE_EXHAUSTED
        502..=504 => 14, // UNAVAILABLE
        400 | 500 => 13, // INTERNAL
        401 => 16,       // UNAUTHENTICATED
        403 => 7,        // PERMISSION_DENIED
        404 => 12,       // UNIMPLEMENTED
        _ => 2,          // UNKNOWN
    }
}

/// Rounds up, within the 31 bits that implementations read. At least 1, because 0 would make all
/// refused clients retry at once.
fn milliseconds_up(wait: Duration) -> u32 {
    let milliseconds = wait.as_nanos().div_ceil(1_000_000);
    u32::try_from(milliseconds).unwrap_or(u32::MAX).clamp(1, i32::MAX.unsigned_abs())
}

/// Encodes the percent sign and all bytes that are not printable ASCII as `%XX`.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use tidegate::{AllRefusal, Refusal};

    use super::*;

    /// The message had nanoseconds, and named the store of the limiter.
    #[test]
    fn a_message_is_for_the_client() {
        let message_of = |refusal: AllRefusal| {
            let refused = Refused::by_limit(refusal);
            let response = refuse(&refused, HeaderValue::from_static("application/grpc"));
            let [message, pushback] = [MESSAGE, PUSHBACK].map(|name| {
                response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("-").to_owned()
            });
            (message, pushback)
        };
        let message = |refusal: Refusal| message_of(refusal.into());
        let retry_after = Nanos::new(194_888_130);
        for (refusal, message_text) in [
            (Refusal::Limited { retry_after }, "limit: limited, retry after 195ms"),
            (Refusal::Paused { retry_after }, "limit: paused, retry after 195ms"),
            (Refusal::QueueFull { retry_after }, "limit: queue is full, retry after 195ms"),
            (
                Refusal::Unavailable { retry_after },
                "the service cannot decide about the request now, retry after 195ms",
            ),
        ] {
            assert_eq!(message(refusal), (message_text.to_owned(), "195".to_owned()));
        }
        // Bug: the pushback of a wait of zero was "retry at once".
        let zero = message(Refusal::Unavailable { retry_after: Nanos::ZERO });
        let text = "the service cannot decide about the request now, retry after 1ms";
        assert_eq!(zero, (text.to_owned(), "1".to_owned()));
        let never = Refusal::Paused { retry_after: Nanos::MAX };
        assert_eq!(message(never).0, "limit: paused until the pause is ended");
        // The message revealed how many keys the limiter keeps, and the names of its limits.
        let full = Refusal::TooManyKeys { limit: 100_000 };
        assert_eq!(message(full).0, "limit: no room for a new key now");
        let mistake = AllRefusal::NoMember { name: "tonkes".into(), members: Box::new(["tokens".into()]) };
        assert_eq!(message_of(mistake).0, "the service made an error");
    }

    #[test]
    fn a_wait_is_rounded_up_to_milliseconds() {
        assert_eq!(milliseconds_up(Duration::ZERO), 1);
        assert_eq!(milliseconds_up(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds_up(Duration::from_millis(7)), 7);
        assert_eq!(milliseconds_up(Duration::MAX), 0x7fff_ffff);
    }

    #[test]
    fn a_content_type_is_of_grpc_in_any_case() {
        let is_grpc = |text: &'static str| {
            let (mut parts, ()) = http::Request::new(()).into_parts();
            parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(text));
            content_type(&parts).is_some()
        };
        for text in [
            "application/grpc",
            "Application/gRPC",
            "APPLICATION/GRPC+PROTO",
            "application/grpc-web",
            "application/grpc ; x=y",
        ] {
            assert!(is_grpc(text), "{text}");
        }
        for text in ["application/grp", "application/grpcs", "text/grpc", ""] {
            assert!(!is_grpc(text), "{text}");
        }
    }

    #[test]
    fn a_message_is_printable_ascii() {
        assert_eq!(percent_encoded("50% über\n"), "50%25 %C3%BCber%0A");
    }
}
