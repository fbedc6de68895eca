//! Sinks that wait for permits of a [`tidegate`] rate limiter.
//!
//! A sink accepts an item when a permit is due. It reserves the permit only when the inner sink is
//! ready, so a blocked sink holds no permits. A permit that no item used is given back.
//!
//! Streams, readers and writers are in `tidegate` itself, behind its features `stream` and `io`.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_sink::Sink;
use pin_project_lite::pin_project;
use tidegate::{AllRefusal, AnyLimiter, AnyReservation};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// Adds [`rate_limited`](LimitSink::rate_limited) to all sinks.
pub trait LimitSink<Item>: Sink<Item> + Sized {
    /// Creates a sink that accepts each item when the limiter grants its permit, or the permits of
    /// its [cost](LimitedSink::cost).
    ///
    /// The limiter is a `RateLimiter`, an `AllOf`, a key (`OfKey`) or an [`AnyLimiter`]. Sinks and
    /// streams that share a limiter wait in one queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_util::{SinkExt, sink};
    /// use tidegate::{Rate, RateLimiter, SmoothBursty, TokioClock};
    /// use tidegate_futures::LimitSink;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::with_clock(
    ///     SmoothBursty::new(Rate::per_second(5)),
    ///     TokioClock::new(),
    /// );
    /// let begin = Instant::now();
    /// let mut numbers = sink::drain().rate_limited(limiter);
    /// for number in 0..6 {
    ///     numbers.send(number).await?;
    /// }
    /// assert_eq!(begin.elapsed(), Duration::from_secs(1));
    /// # Ok(())
    /// # }
    /// ```
    fn rate_limited(self, limiter: impl Into<AnyLimiter>) -> LimitedSink<Self, fn(&Item) -> u32> {
        let limiter = limiter.into().non_blocking();
        LimitedSink { inner: self, next_item: NextItem::default(), limiter, cost: |_| 1 }
    }
}

impl<Item, S: Sink<Item>> LimitSink<Item> for S {}

pin_project! {
    /// A sink that accepts each item when its permits are due. Created by
    /// [`rate_limited`](LimitSink::rate_limited).
    ///
    /// Flushing and closing do not wait for permits.
    ///
    /// # Errors
    ///
    /// A [`SinkError`]: an error of the inner sink, or a refusal of the limiter: for example, the
    /// limiter is closed, its queue is full, or its store does not reply. After a refusal, the next
    /// item asks the limiter again. A limiter of this process that grants nothing refuses nothing:
    /// the sink waits until it is changed.
    ///
    /// # Cancel safety
    ///
    /// If the future of a send is dropped before the item was accepted, the sink keeps its position
    /// in the queue. Dropping, flushing or closing the sink gives up that position, or gives back a
    /// permit that no item has used. If a ready sink is flushed and then accepts an item, the item
    /// owes its whole cost.
    ///
    /// # Fairness
    ///
    /// Sinks that share a limiter wait in its queue, in the order of their items. A sink has at
    /// most one position in the queue.
    ///
    /// # Costs
    ///
    /// One allocation for each item.
    #[must_use = "sinks do nothing unless polled"]
    pub struct LimitedSink<S, F> {
        #[pin]
        inner: S,
        next_item: NextItem,
        limiter: AnyLimiter,
        cost: F,
    }
}

/// The reservation of the next item. Dropping it leaves the queue, or gives back the permit.
#[derive(Default)]
struct NextItem {
    reservation: Option<AnyReservation>,
    /// Whether the permit of the reservation is due.
    due: bool,
}

impl NextItem {
    /// Waits until the reservation is due; makes one if the sink has none.
    fn poll_due(&mut self, limiter: &AnyLimiter, context: &mut Context<'_>) -> Poll<Result<(), AllRefusal>> {
        if self.due {
            return Poll::Ready(Ok(()));
        }
        let reservation = match &mut self.reservation {
            Some(reservation) => reservation,
            none => none.insert(limiter.reserve(1)?),
        };
        match ready!(Pin::new(reservation).poll(context)) {
            Ok(_) => self.due = true,
            Err(refusal) => {
                self.reservation = None;
                return Poll::Ready(Err(refusal));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the reservation out, and returns it if its permit is due.
    fn take_due(&mut self) -> Option<AnyReservation> {
        let due = std::mem::replace(&mut self.due, false);
        self.reservation.take().filter(|_| due)
    }
}

impl Drop for NextItem {
    fn drop(&mut self) {
        if let Some(reservation) = self.take_due() {
            reservation.settle_unused();
        }
    }
}

impl<S, F> LimitedSink<S, F> {
    /// Charges this cost for each item.
    ///
    /// The sink accepts an item with one permit, and learns its cost only then. The rest of the
    /// cost is owed: later items, of all sinks and streams that share the limiter, wait until the
    /// rest has accrued. An item of cost 0 waits for a permit and gives it back.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_util::{SinkExt, sink};
    /// use tidegate::{Rate, RateLimiter, TokenBucket, TokioClock};
    /// use tidegate_futures::LimitSink;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = TokenBucket::new(Rate::per_second(1000), 1000);
    /// let bytes = RateLimiter::with_clock(policy, TokioClock::new());
    /// let begin = Instant::now();
    /// let cost = |chunk: &Vec<u8>| u32::try_from(chunk.len()).unwrap_or(u32::MAX);
    /// let mut chunks = sink::drain().rate_limited(bytes).cost(cost);
    /// chunks.send(vec![0; 1499]).await?;
    /// assert_eq!(begin.elapsed(), Duration::ZERO);
    /// chunks.send(vec![0; 10]).await?;
    /// assert_eq!(begin.elapsed(), Duration::from_millis(500));
    /// # Ok(())
    /// # }
    /// ```
    pub fn cost<Item, G: FnMut(&Item) -> u32>(self, cost: G) -> LimitedSink<S, G>
    where
        S: Sink<Item>,
    {
        let LimitedSink { inner, next_item, limiter, .. } = self;
        LimitedSink { inner, next_item, limiter, cost }
    }

    /// Returns the inner sink.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner sink. An item sent through it needs no permit.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner sink, pinned. An item sent through it needs no permit.
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut S> {
        self.project().inner
    }

    /// Returns the inner sink. A permit that no item used is given back.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<Item, S: Sink<Item>, F: FnMut(&Item) -> u32> Sink<Item> for LimitedSink<S, F> {
    type Error = SinkError<S::Error>;

    fn poll_ready(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let this = self.project();
        ready!(this.inner.poll_ready(context)).map_err(SinkError::Inner)?;
        this.next_item.poll_due(this.limiter, context).map_err(SinkError::Refused)
    }

    fn start_send(self: Pin<&mut Self>, item: Item) -> Result<(), Self::Error> {
        let this = self.project();
        let cost = (this.cost)(&item);
        this.inner.start_send(item).map_err(SinkError::Inner)?;
        // A cost names no limit, so no name is unknown. No default cost is charged for
        // an item of cost 0.
        match this.next_item.take_due() {
            Some(reservation) if cost == 0 => reservation.settle_unused(),
            Some(reservation) => _ = reservation.settle(cost),
            None if cost == 0 => {}
            // The sink was flushed after it was ready, so the permit was given back.
            None => _ = this.limiter.debit(cost),
        }
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let this = self.project();
        // A flush ends a series of items, so the permit is given back.
        *this.next_item = NextItem::default();
        this.inner.poll_flush(context).map_err(SinkError::Inner)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let this = self.project();
        *this.next_item = NextItem::default();
        this.inner.poll_close(context).map_err(SinkError::Inner)
    }
}

impl<S: fmt::Debug, F> fmt::Debug for LimitedSink<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedSink")
            .field("inner", &self.inner)
            .field("waits", &(self.next_item.reservation.is_some() && !self.next_item.due))
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}

/// The reason why a [`LimitedSink`] did not accept an item.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkError<E> {
    /// The inner sink failed.
    Inner(E),
    /// The limiter refused.
    Refused(AllRefusal),
}

impl<E> fmt::Display for SinkError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkError::Inner(_) => f.write_str("the sink failed"),
            SinkError::Refused(refusal) => write!(f, "the sink's limiter refused: {refusal}"),
        }
    }
}

impl<E: Error + 'static> Error for SinkError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            SinkError::Inner(error) => Some(error),
            SinkError::Refused(refusal) => Some(refusal),
        }
    }
}
