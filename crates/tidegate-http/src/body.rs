//! [`ThrottledBody`]: a body that takes a permit for each byte.
//!
//! A frame is taken from the inner body first. Its bytes are then paid for, chunk by chunk, in the
//! poll that yields them. So a silent body holds no position in the queue, its end is found without
//! a wait, and a chunk is paid for only if it is yielded. A stream of `tidegate` treats its items
//! in the same way. A reader of `tidegate::io` cannot do so, because it learns how many bytes there
//! are only by taking them.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate::io::chunk_size;
use tidegate::{AcquireAny, AnyLimiter, Refusal};

/// After so many looks at the rate and the burst, a chunk that was refused is tried again.
const LOOKS: u32 = 64;

type BoxError = Box<dyn StdError + Send + Sync>;

pin_project! {
    /// A body of a request or a response that takes a permit for each byte.
    ///
    /// It works with every body of the crate `http-body`: in a server or a client, in hyper, axum,
    /// tonic or reqwest. For several limits at once, such as those of a connection, a user and all
    /// users, pass an [`AllOf`](tidegate::AllOf). The rate may change at any time.
    ///
    /// A [`CountingLimit`](tidegate::CountingLimit) in an `AllOf` does not limit the bytes: a chunk
    /// waits for one of its permits, and gives the permit back when it is yielded.
    ///
    /// # Chunks
    ///
    /// Frames of data are cut into chunks of [`chunk_size`] bytes, without a copy if they are
    /// [`Bytes`]. A frame that is smaller than a chunk is yielded whole. A chunk is paid for before
    /// it is yielded. So in any period no more bytes are yielded than the policy allows.
    ///
    /// # Fairness
    ///
    /// A body has at most one chunk in the queue of the limiter. So bodies that share a limiter get
    /// equal shares, and transfers of [`tidegate::io`] get equal shares with them. A body whose
    /// frames are smaller than a chunk gets a smaller share;
    /// [`max_chunk`](ThrottledBody::max_chunk) makes the chunks of the other bodies smaller.
    ///
    /// # What waits
    ///
    /// Bytes of data wait. Trailers, empty frames, the end and errors of the inner body do not
    /// wait. The inner body is polled only after all earlier bytes are yielded, so at most one
    /// frame is held.
    ///
    /// # Errors
    ///
    /// An error is either the error of the inner body, or the [`AllRefusal`](tidegate::AllRefusal)
    /// of the limiter: for example, the limiter is closed, its queue is full, or its store does not
    /// reply. After a refusal, the next poll requests permits for these bytes again. A limiter of
    /// this process that grants nothing refuses nothing: the body waits until it is changed.
    ///
    /// # Cancel safety
    ///
    /// Dropping a body while it waits cancels the wait: a chunk that was not yielded costs nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use http_body_util::{BodyExt, Full};
    /// use tidegate::{Rate, RateLimiter, TokenBucket, TokioClock};
    /// use tidegate_http::ThrottledBody;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let policy = TokenBucket::new(Rate::per_second(100_000), 1000).start_empty();
    /// let bandwidth = RateLimiter::with_clock(policy, TokioClock::new());
    /// let begin = Instant::now();
    /// let download = Full::new(bytes::Bytes::from(vec![7; 50_000]));
    /// let download = ThrottledBody::new(download, bandwidth);
    /// assert_eq!(download.collect().await?.to_bytes().len(), 50_000);
    /// assert_eq!(begin.elapsed(), Duration::from_millis(500));
    /// # Ok(())
    /// # }
    /// ```
    pub struct ThrottledBody<B>
    where
        B: Body,
    {
        #[pin]
        inner: B,
        limiter: AnyLimiter,
        chunk: u32,
        // The size by the rate and the burst, as they were last known. It is larger than `chunk` if
        // a share of the burst is kept for other priorities.
        whole: u32,
        // How often the rate and the burst were looked at since `chunk` was set to `whole`.
        looked: u32,
        max_chunk: u32,
        // The bytes of a frame that are not yielded yet; never empty.
        data: Option<B::Data>,
        // The chunk that is being paid for, its request, and whether that has waited. The mutex is
        // never locked: it makes the body `Sync`, which clients such as reqwest require.
        wait: Mutex<Option<(u32, AcquireAny, bool)>>,
    }
}

impl<B: Body> ThrottledBody<B> {
    /// Creates a body that limits the bytes of `inner`.
    pub fn new(inner: B, limiter: impl Into<AnyLimiter>) -> ThrottledBody<B> {
        let limiter = limiter.into();
        let (chunk, wait) = (chunk_size(&limiter), Mutex::new(None));
        ThrottledBody {
            inner,
            limiter,
            chunk,
            whole: chunk,
            looked: 0,
            max_chunk: u32::MAX,
            data: None,
            wait,
        }
    }

    /// Sets the largest size of a chunk; 0 counts as one byte. More chunks cost more.
    #[must_use]
    pub fn max_chunk(mut self, bytes: u32) -> ThrottledBody<B> {
        self.max_chunk = bytes.max(1);
        self
    }

    /// Returns the inner body.
    pub fn get_ref(&self) -> &B {
        &self.inner
    }

    /// Returns the inner body. Frames that are taken from it directly cost nothing.
    pub fn get_mut(&mut self) -> &mut B {
        &mut self.inner
    }
}

impl<B> Body for ThrottledBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.project();
        let wait = this.wait.get_mut().unwrap_or_else(PoisonError::into_inner);
        let data = match this.data {
            Some(data) => data,
            None => match ready!(this.inner.poll_frame(context)).map(|frame| frame.map(Frame::into_data)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(Ok(data))) if data.has_remaining() => this.data.insert(data),
                Some(Ok(Ok(_))) => return Poll::Ready(Some(Ok(Frame::data(Bytes::new())))),
                Some(Ok(Err(other))) => {
                    return Poll::Ready(Some(Ok(other.map_data(|_| Bytes::new()))));
                }
            },
        };
        loop {
            let chunk = (*this.chunk).min(*this.max_chunk);
            let (bytes, permits, has_waited) = wait.get_or_insert_with(|| {
                let bytes = u32::try_from(data.remaining()).unwrap_or(u32::MAX).min(chunk);
                (bytes, this.limiter.acquire_many(bytes), false)
            });
            let Poll::Ready(decision) = Pin::new(permits).poll(context) else {
                *has_waited = true;
                return Poll::Pending;
            };
            let (bytes, has_waited) = (*bytes, *has_waited);
            *wait = None;
            if decision.as_ref().map_or(true, |permits| !permits.waited().is_zero()) {
                let whole = chunk_size(this.limiter);
                // If nothing changed, a chunk that is smaller stays so for a while, because the
                // limiter may refuse a whole one again.
                if whole != *this.whole || *this.looked == LOOKS {
                    (*this.chunk, *this.whole, *this.looked) = (whole, whole, 0);
                }
                *this.looked += 1;
            }
            match decision {
                Ok(_) => {
                    let chunk = data.copy_to_bytes(bytes as usize);
                    if !data.has_remaining() {
                        *this.data = None;
                    }
                    return Poll::Ready(Some(Ok(Frame::data(chunk))));
                }
                // The burst became smaller meanwhile, and so did the chunk.
                Err(_) if *this.chunk < bytes => {}
                Err(refusal) => match refusal.refusal() {
                    // The burst became smaller meanwhile, and may be large again.
                    Some(Refusal::ExceedsLimit { .. }) if has_waited => *this.chunk = *this.whole,
                    // A share of the burst is kept for other priorities.
                    Some(Refusal::ExceedsLimit { limit, .. }) if limit.max(1) < bytes => {
                        *this.chunk = limit.max(1);
                    }
                    _ => return Poll::Ready(Some(Err(refusal.into()))),
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.data.as_ref().map_or(0, |data| data.remaining() as u64);
        let inner = self.inner.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(held));
        if let Some(upper) = inner.upper().and_then(|upper| upper.checked_add(held)) {
            // At least `lower`, because that holds for the inner body.
            hint.set_upper(upper);
        }
        hint
    }
}

impl<B: Body + fmt::Debug> fmt::Debug for ThrottledBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThrottledBody")
            .field("inner", &self.inner)
            .field("limiter", &self.limiter)
            .field("chunk", &self.chunk)
            .field("held", &self.data.as_ref().map(Buf::remaining))
            .finish_non_exhaustive()
    }
}
