//! [`Body`]: the body of a response, which keeps permits until it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::hold::Hold;

pin_project! {
    /// The body of a response: the body of the service, or of a refusal.
    ///
    /// It keeps the permits of its call until it ends, fails or is dropped. The default is a body
    /// without data that keeps nothing, for layers that respond themselves.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProjection]
    #[derive(Debug)]
    enum Inner<B> {
        Service { #[pin] body: B, hold: Hold },
        Refusal { bytes: Option<Bytes> },
    }
}

impl<B: HttpBody> Body<B> {
    pub(crate) fn of_service(body: B, mut hold: Hold) -> Body<B> {
        if body.is_end_stream() {
            hold.end();
        }
        Body { inner: Inner::Service { body, hold } }
    }
}

impl<B> Body<B> {
    pub(crate) fn of_refusal(bytes: Bytes) -> Body<B> {
        Body { inner: Inner::Refusal { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }
}

impl<B> Default for Body<B> {
    fn default() -> Body<B> {
        Body::of_refusal(Bytes::new())
    }
}

impl<B> HttpBody for Body<B>
where
    B: HttpBody,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().inner.project() {
            InnerProjection::Refusal { bytes } => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes.into()))))
            }
            InnerProjection::Service { mut body, hold } => {
                let frame = ready!(body.as_mut().poll_frame(context));
                if let Some(Ok(frame)) = &frame
                    && let Some(trailers) = frame.trailers_ref()
                {
                    hold.obey_trailers(trailers);
                }
                // A server may stop polling a body that reports its end.
                if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
                    hold.end();
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Service { body, .. } => body.is_end_stream(),
            Inner::Refusal { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Service { body, .. } => body.size_hint(),
            Inner::Refusal { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}
