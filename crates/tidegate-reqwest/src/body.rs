//! The body of a response, which keeps the permits of its call until it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body as HttpBody, Frame, SizeHint};
use reqwest::{Body, Response, ResponseBuilderExt};
use tidegate_http::obey::Call;

/// Returns the response with a body that keeps the call until it ends, fails or is dropped.
pub(crate) fn keep_until_end(response: Response, call: Call) -> Response {
    let url = response.url().clone();
    let (mut parts, body) = http::Response::from(response).into_parts();
    // reqwest reads the address of a response from an extension that only this builder can set.
    if let Ok(with_url) = http::Response::builder().url(url).body(()) {
        parts.extensions.extend(with_url.into_parts().0.extensions);
    }
    let call = (!body.is_end_stream()).then_some(call);
    http::Response::from_parts(parts, Body::wrap(Held { body, call })).into()
}

struct Held {
    body: Body,
    call: Option<Call>,
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
