//! The body of a response, which keeps the permits of its call until it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::header::CONTENT_TYPE;
use http_body::{Body as HttpBody, Frame, SizeHint};
use reqwest::{Body, Response, ResponseBuilderExt, StatusCode};
use tidegate_http::obey::Call;

/// Returns the response with a body that keeps the call until it ends, fails or is dropped.
/// `is_own` is whether the response came from the host of the request. Only then, and only if the
/// response is one of gRPC, are its trailers obeyed.
pub(crate) fn keep_until_end(response: Response, call: Call, is_own: bool) -> Response {
    let kind = response.headers().get(CONTENT_TYPE);
    let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let obeys_trailers = is_own && is_grpc;
    let url = response.url().clone();
    let (mut parts, body) = http::Response::from(response).into_parts();
    // reqwest reads the address of a response from an extension that only this builder can set.
    if let Ok(with_url) = http::Response::builder().url(url).body(()) {
        parts.extensions.extend(with_url.into_parts().0.extensions);
    }
    let call = (!body.is_end_stream()).then_some(call);
    http::Response::from_parts(parts, Body::wrap(Held { body, call, obeys_trailers })).into()
}

struct Held {
    body: Body,
    call: Option<Call>,
    obeys_trailers: bool,
}

impl HttpBody for Held {
    type Data = <Body as HttpBody>::Data;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(trailers) = frame.trailers_ref().filter(|_| this.obeys_trailers)
            && trailers.contains_key("grpc-status")
            && let Some(call) = &mut this.call
        {
            call.obey(StatusCode::OK, trailers);
        }
        if !matches!(frame, Some(Ok(_))) || this.body.is_end_stream() {
            this.call = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Bytes;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use http_body_util::{BodyExt, Full};
    use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    use tidegate_http::obey::{Obey, Options};

    use super::*;

    #[tokio::test]
    async fn a_pushback_in_the_trailers_of_grpc_pauses() {
        let clock = ManualClock::new();
        let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), 5), clock.clone());
        let obey = Obey::with_options(limiter.clone(), Options::new().clock(clock).jitter(0.0));
        let call = obey.try_acquire().expect("the limiter is full");
        let trailers = [("grpc-status", "8"), ("grpc-retry-pushback-ms", "1500")];
        let trailers = HeaderMap::from_iter(
            trailers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))),
        );
        let body = Full::new(Bytes::from("data")).with_trailers(async { Some(Ok(trailers)) });
        let mut response = http::Response::new(Body::wrap(body));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"));
        let response = keep_until_end(response.into(), call, true);
        assert!(limiter.try_acquire().is_ok());
        let whole = Body::from(response).collect().await.expect("a body");
        assert!(whole.trailers().is_some());
        let refusal = limiter.try_acquire().expect_err("the server asked for a pause");
        // After the pause, calls start one interval apart.
        assert_eq!(refusal.retry_after(), Some(Duration::from_millis(1500 + 200)));
    }
}
