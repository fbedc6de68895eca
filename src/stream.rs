//! Streams that wait for permits.
//!
//! The stream takes an item from the inner stream first, and then acquires its permits. A stream
//! that is silent therefore holds no position in the queue and no permits, and the cost of an item
//! can depend on the item. Permits are granted in the poll that yields the item: dropping the
//! stream at any time loses none.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use pin_project_lite::pin_project;

use crate::all_of::{AllRefusal, AllRequest};
use crate::any_limiter::{AcquireAny, AnyLimiter};
use crate::request::Request;

/// Adds [`rate_limited`](LimitStream::rate_limited) to all streams.
pub trait LimitStream: Stream + Sized {
    /// Yields the items of this stream when the limiter grants their permits: one permit for each
    /// item, or its [cost](LimitedStream::cost).
    ///
    /// The limiter is a [`RateLimiter`](crate::RateLimiter), an [`AllOf`](crate::AllOf), a key
    /// (`OfKey`) or an [`AnyLimiter`]. Streams that share a limiter wait in one queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_util::{StreamExt, TryStreamExt, stream};
    /// use tidegate::stream::LimitStream;
    /// use tidegate::{Rate, RateLimiter, SmoothBursty, TokioClock};
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::with_clock(
    ///     SmoothBursty::new(Rate::per_second(5)),
    ///     TokioClock::new(),
    /// );
    /// let begin = Instant::now();
    /// let mut numbers = stream::iter(0..6).rate_limited(limiter);
    /// while let Some(number) = numbers.try_next().await? {
    ///     println!("{number} after {:?}", begin.elapsed());
    /// }
    /// assert_eq!(begin.elapsed(), Duration::from_secs(1));
    /// # Ok(())
    /// # }
    /// ```
    fn rate_limited(self, limiter: impl Into<AnyLimiter>) -> LimitedStream<Self> {
        LimitedStream {
            inner: self,
            ended: false,
            item: None,
            asked: false,
            wait: None,
            limiter: limiter.into(),
            cost: |_| Request::permits(1),
        }
    }
}

impl<S: Stream> LimitStream for S {}

pin_project! {
    /// A stream that yields each item when its permits are due. Created by
    /// [`rate_limited`](LimitStream::rate_limited).
    ///
    /// An item is `Ok`, or a [`RefusedItem`] if the limiter refuses it: the limiter was closed, the
    /// cost can never be granted, or the permits are not due within the [maximum
    /// wait](Request::within) of the cost. The stream continues after a refusal, and ends when the
    /// inner stream ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future of one item keeps the item and its position in the queue, in the stream.
    /// Dropping the stream leaves no trace in the limiter. An item that waits is dropped with the
    /// stream, unless [`into_parts`](LimitedStream::into_parts) takes it out.
    ///
    /// # Fairness
    ///
    /// Items of all streams wait in the queue of the limiter, in order of arrival. A stream has at
    /// most one item in the queue.
    ///
    /// # Costs
    ///
    /// One allocation for each item.
    #[must_use = "streams do nothing unless polled"]
    pub struct LimitedStream<S: Stream, F = fn(&<S as Stream>::Item) -> Request> {
        #[pin]
        inner: S,
        // The inner stream has ended. It is not polled again.
        ended: bool,
        // The item that waits, whether its cost is known, and its wait.
        item: Option<S::Item>,
        asked: bool,
        wait: Option<AcquireAny>,
        limiter: AnyLimiter,
        cost: F,
    }
}

impl<S: Stream, F> LimitedStream<S, F> {
    /// Sets the function that returns the cost of each item: a number of permits, or a [`Request`].
    /// An item that costs more than the limiter ever grants, such as a chunk larger than the burst
    /// of a bucket, is refused. [`RateLimiter::paced`](crate::RateLimiter::paced) grants any cost.
    /// An item of cost 0 is yielded at once. If the function panics, the next poll calls it again
    /// for the same item.
    ///
    /// Call this before the stream is polled: an item that waits keeps its cost.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_util::{TryStreamExt, stream};
    /// use tidegate::stream::LimitStream;
    /// use tidegate::{Rate, RateLimiter, TokenBucket, TokioClock};
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = TokenBucket::new(Rate::per_second(1000), 1000);
    /// let bytes = RateLimiter::with_clock(policy, TokioClock::new());
    /// let begin = Instant::now();
    /// let chunks = stream::iter([vec![0; 800], vec![0; 700]]);
    /// let cost = |chunk: &Vec<u8>| u32::try_from(chunk.len()).unwrap_or(u32::MAX);
    /// let chunks: Vec<_> = chunks.rate_limited(bytes).cost(cost).try_collect().await?;
    /// assert_eq!((chunks.len(), begin.elapsed()), (2, Duration::from_millis(500)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn cost<R, G>(self, cost: G) -> LimitedStream<S, G>
    where
        G: FnMut(&S::Item) -> R,
        R: Into<Request>,
    {
        let LimitedStream { inner, ended, item, asked, wait, limiter, .. } = self;
        LimitedStream { inner, ended, item, asked, wait, limiter, cost }
    }

    /// Returns the inner stream.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner stream. An item taken from it passes without a permit.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner stream, pinned. An item taken from it passes without a permit.
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut S> {
        self.project().inner
    }

    /// Returns the inner stream, and the item that waits for its permits. The item leaves the
    /// queue.
    pub fn into_parts(self) -> (S, Option<S::Item>) {
        (self.inner, self.item)
    }
}

impl<S, F, R> Stream for LimitedStream<S, F>
where
    S: Stream,
    F: FnMut(&S::Item) -> R,
    R: Into<Request>,
{
    type Item = Result<S::Item, RefusedItem<S::Item>>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if this.item.is_none() {
            if *this.ended {
                return Poll::Ready(None);
            }
            let Some(item) = ready!(this.inner.poll_next(context)) else {
                *this.ended = true;
                return Poll::Ready(None);
            };
            // Stored before its cost is known, so that a cost function that panics loses no item.
            (*this.item, *this.asked) = (Some(item), false);
        }
        if let (Some(item), false) = (&this.item, *this.asked) {
            let request: Request = (this.cost)(item).into();
            if request.permits > 0 {
                *this.wait = Some(this.limiter.acquire_many(AllRequest::from(request)));
            }
            *this.asked = true;
        }
        let answer = match this.wait {
            Some(wait) => ready!(Pin::new(wait).poll(context)).map(drop),
            None => Ok(()),
        };
        *this.wait = None;
        Poll::Ready(this.item.take().map(|item| match answer {
            Ok(()) => Ok(item),
            Err(refusal) => Err(RefusedItem { item, refusal }),
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let waiting = usize::from(self.item.is_some());
        if self.ended {
            return (waiting, Some(waiting));
        }
        let (least, most) = self.inner.size_hint();
        (least.saturating_add(waiting), most.and_then(|most| most.checked_add(waiting)))
    }
}

impl<S, F, R> FusedStream for LimitedStream<S, F>
where
    S: Stream,
    F: FnMut(&S::Item) -> R,
    R: Into<Request>,
{
    fn is_terminated(&self) -> bool {
        self.ended && self.item.is_none()
    }
}

impl<S: Stream + fmt::Debug, F> fmt::Debug for LimitedStream<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedStream")
            .field("inner", &self.inner)
            .field("waits", &self.item.is_some())
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}

/// An item that a limiter refused, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedItem<T> {
    /// The item.
    pub item: T,
    /// The reason for the refusal.
    pub refusal: AllRefusal,
}

impl<T> fmt::Display for RefusedItem<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an item of the stream was refused: {}", self.refusal)
    }
}

impl<T: fmt::Debug> Error for RefusedItem<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.refusal)
    }
}
