//! Readers and writers that wait for permits: one permit is one byte.
//!
//! A transfer is split into chunks, so that no buffer is larger than what a limiter can grant at
//! once, and so that transfers that share a limiter take turns. All chunks of a limiter have the
//! same size, and its queue is first come, first served. Each transfer with a buffer that holds a
//! chunk therefore gets the same share of the bytes, however much larger its buffer is.
//!
//! | | a reader | a writer |
//! |---|---|---|
//! | first | reads at most a chunk | pays for at most a chunk |
//! | then | pays for the bytes that it read | writes the chunk |
//! | waits | before the next read | before the write |
//! | is dropped | has paid for what it read: the limiter is charged at once | gives back the permits of the chunk that it did not write |
//! | peer is silent, or takes less | holds no permits | gives back the permits of bytes that the peer did not take |
//! | bytes in any period | what the policy states, and a chunk of each reader | what the policy states, and a chunk of each writer with a task that runs late |
//!
//! Each chunk that waits wakes its task once. The kernel does most of the work for it: of some
//! 60,000 instructions, a quarter are the limiter's. The processor time of a transfer therefore
//! depends on its number of chunks, and [larger chunks](Throttled::max_chunk) cost less.
//!
//! The plot shows eight connections, as measured by the example `bandwidth`. Two of them write with
//! buffers of 1 MiB, and the others with buffers of 64 KiB:
//!
#![cfg_attr(doc, doc = include_str!("../../docs/bandwidth.svg"))]

mod read;
mod write;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;

use crate::all_of::{AllRefusal, AllRequest, AllStatus};
use crate::any_limiter::{AnyLimiter, AnyReservation};
use crate::error::Refusal;
use crate::io::read::Reads;
use crate::rate::Rate;

pin_project! {
    /// A reader, a writer or both, that takes a permit for each byte.
    ///
    /// It wraps a type that implements tokio's `AsyncRead`, `AsyncBufRead` or `AsyncWrite`, and
    /// implements the same traits. Reading and writing each have a limiter, or share one. For
    /// several limits at once, such as those of a connection, a user and all users, pass an
    /// [`AllOf`](crate::AllOf). The rate may change at any time.
    ///
    /// A [`CountingLimit`](crate::CountingLimit) in an `AllOf` is asked for nothing, because bytes
    /// are not in use for a time. A member with a [default cost](crate::AllOf::default_cost) is
    /// charged that cost for each chunk.
    ///
    /// # Chunks
    ///
    /// A chunk is the number of bytes that accrue within 10 ms: at least 512 bytes, at most 64 KiB,
    /// and no more than the limiter can grant at once. A policy with a burst of at least 10 ms is
    /// therefore right. With a smaller burst the chunks are smaller, and more of them wait. The
    /// size follows the rate and the burst, even for a chunk that waits.
    /// [`max_chunk`](Throttled::max_chunk) sets another maximum than 64 KiB.
    ///
    /// # Fairness
    ///
    /// Chunks wait in the queue of the limiter, in order of arrival, and a transfer has at most one
    /// chunk in the queue. Transfers that share a limiter therefore get equal shares. A transfer
    /// with a buffer smaller than a chunk gets a smaller share.
    ///
    /// # What waits
    ///
    /// Reads and writes wait. Flushing, shutting down and seeking do not wait. The end of a stream
    /// costs nothing, but it is found by a read, which waits until the chunk before it is paid for.
    ///
    /// # Errors
    ///
    /// A refusal is an [`io::Error`] with the [`AllRefusal`] inside: the limiter was closed, or its
    /// queue is full. The next call asks again. A limiter that grants nothing, as
    /// [`DenyAll`](crate::policy::DenyAll), refuses nothing: its bytes wait for ever.
    ///
    /// # Cancel safety
    ///
    /// A dropped read or write keeps its position in the queue, in this type, and the next read or
    /// write takes it. When this type is dropped, its positions are given up, and the bytes that
    /// were read and not paid for yet are charged at once: later requests wait for them. Otherwise
    /// connections from which one chunk is read would have no limit. A chunk of which the
    /// inner writer took a part is settled to that part. If the inner writer panics, it may have
    /// taken the chunk, which counts as used unless another write follows.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::io::Throttled;
    /// use tidegate::{Rate, RateLimiter, TokenBucket, TokioClock};
    /// use tokio::io::AsyncReadExt;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> std::io::Result<()> {
    /// let policy = TokenBucket::new(Rate::per_second(100_000), 1000).start_empty();
    /// let bandwidth = RateLimiter::with_clock(policy, TokioClock::new());
    /// let begin = Instant::now();
    /// let file = tokio::io::repeat(7).take(50_000); // or a socket
    /// let mut reader = Throttled::new(file).limit_reads(bandwidth);
    /// tokio::io::copy(&mut reader, &mut tokio::io::sink()).await?;
    /// assert_eq!(begin.elapsed(), Duration::from_millis(500));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Source
    ///
    /// TiKV's async-speed-limit. Here chunks are charged one by one.
    #[derive(Debug)]
    pub struct Throttled<T> {
        #[pin]
        inner: T,
        reads: Option<Reads>,
        writes: Option<Direction>,
        max_chunk: u32,
    }
}

impl<T> Throttled<T> {
    /// Wraps a reader or writer without a limit, until [`limit_reads`](Throttled::limit_reads) or
    /// [`limit_writes`](Throttled::limit_writes) sets one.
    pub fn new(inner: T) -> Throttled<T> {
        Throttled { inner, reads: None, writes: None, max_chunk: MAX_CHUNK }
    }

    /// Limits the bytes that are read.
    #[must_use]
    pub fn limit_reads(self, limiter: impl Into<AnyLimiter>) -> Throttled<T> {
        Throttled { reads: Some(Reads::new(limiter.into(), self.max_chunk)), ..self }
    }

    /// Limits the bytes that are written.
    #[must_use]
    pub fn limit_writes(self, limiter: impl Into<AnyLimiter>) -> Throttled<T> {
        Throttled { writes: Some(Direction::new(limiter.into(), self.max_chunk)), ..self }
    }

    /// Sets the maximum size of a chunk in bytes. It is at least one byte. The default is 64 KiB.
    ///
    /// Transfers get equal shares if this is at most the smallest of their buffers. A transfer with
    /// smaller chunks than the others gets less. Each chunk costs a wake-up of its task, so larger
    /// chunks cost less processor time if all buffers are also larger.
    #[must_use]
    pub fn max_chunk(mut self, bytes: u32) -> Throttled<T> {
        self.max_chunk = bytes.max(1);
        let reads = self.reads.as_mut().map(|reads| &mut reads.direction);
        for direction in reads.into_iter().chain(&mut self.writes) {
            direction.max_chunk = self.max_chunk;
            direction.set_chunk();
        }
        self
    }

    /// Returns the inner reader or writer.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Returns the inner reader or writer. Bytes that are moved through it cost nothing.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Returns the inner reader or writer, pinned. Bytes that are moved through it cost nothing.
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut T> {
        self.project().inner
    }

    /// Returns the inner reader or writer. What was read is paid for, and the positions in the
    /// queues are given up, as in a [drop](Throttled#cancel-safety).
    pub fn into_inner(self) -> T {
        self.inner
    }
}

/// A chunk is the number of bytes that accrue within this time.
const CHUNK: Duration = Duration::from_millis(10);
const MIN_CHUNK: u32 = 512;
const MAX_CHUNK: u32 = 65_536;
/// After so many looks at the rate and the burst, a chunk that was refused is tried again.
const LOOKS: u32 = 64;

/// One direction of a transfer, and its payments.
struct Direction {
    /// Blocks no thread.
    limiter: AnyLimiter,
    /// The number of bytes that are paid for at a time.
    chunk: u32,
    max_chunk: u32,
    /// The chunk by the rate and the burst, as they were last known. It is larger than `chunk` if a
    /// share of the burst is kept for other priorities.
    whole: u32,
    /// How often the rate and the burst were looked at since `chunk` was set to `whole`.
    looked: u32,
    /// The chunk that is being paid for, its reservation, and whether that has waited.
    reservation: Option<(u32, AnyReservation, bool)>,
}

impl Direction {
    fn new(limiter: AnyLimiter, max_chunk: u32) -> Direction {
        let limiter = limiter.non_blocking();
        let mut direction =
            Direction { limiter, chunk: 0, max_chunk, whole: 0, looked: 0, reservation: None };
        direction.set_chunk();
        direction
    }

    /// Fits the chunk to the rate and the burst, which may have changed.
    fn set_chunk(&mut self) {
        self.whole = chunk(&self.limiter.status(), self.max_chunk);
        (self.chunk, self.looked) = (self.whole, 0);
    }

    /// Fits the chunk to the rate and the burst, if they have changed. If not, a chunk that is
    /// smaller stays so for a while, because the limiter may refuse a whole one again.
    fn follow(&mut self) {
        let (chunk, whole, looked) = (self.chunk, self.whole, self.looked);
        self.set_chunk();
        if self.whole == whole && looked < LOOKS {
            (self.chunk, self.looked) = (chunk, looked + 1);
        }
    }

    /// Returns how many of these bytes are a chunk: all of them, or fewer.
    fn part(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.chunk)
    }

    /// Reserves a chunk of these bytes, none of which has a reservation. Returns the size of the
    /// chunk.
    fn reserve_chunk(&mut self, bytes: usize) -> io::Result<u32> {
        loop {
            let part = self.part(bytes);
            let mut request = AllRequest::from(part);
            // A reader would keep its permits in use until its next read.
            request.without_counting = true;
            let reservation = match self.limiter.reserve(request) {
                Ok(reservation) => reservation,
                // No limit counts bytes.
                Err(refusal) if refusal.refusal() == Some(Refusal::ZeroPermits) => {
                    AnyReservation::empty(self.limiter.clone())
                }
                Err(refusal) => {
                    self.shrink_after(part, refusal)?;
                    continue;
                }
            };
            self.reservation = Some((part, reservation, false));
            return Ok(part);
        }
    }

    /// Waits until the reservation is due, if there is one. Returns the number of bytes that it is
    /// for. Returns `None` if they need another reservation, because the rate or the burst changed.
    /// After an error they have no reservation.
    fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<u32>>> {
        let Some((bytes, reservation, has_waited)) = &mut self.reservation else {
            return Poll::Ready(Ok(Some(0)));
        };
        let bytes = *bytes;
        let Poll::Ready(decision) = Pin::new(reservation).poll(context) else {
            *has_waited = true;
            return Poll::Pending;
        };
        let has_waited = *has_waited;
        match decision {
            Ok(grant) => {
                if grant.waited() > Duration::ZERO {
                    self.follow();
                }
                Poll::Ready(Ok(Some(bytes)))
            }
            Err(refusal) => {
                self.reservation = None;
                if has_waited && matches!(refusal.refusal(), Some(Refusal::ExceedsLimit { .. })) {
                    // The burst may be large again by now.
                    self.set_chunk();
                    return Poll::Ready(Ok(None));
                }
                Poll::Ready(self.shrink_after(bytes, refusal).map(|()| None))
            }
        }
    }

    /// Fits the chunk to the rate, the burst, and what the limiter can grant, after a refusal. Fails
    /// unless the chunk is now smaller than the refused chunk: the limiter may grant a smaller
    /// chunk.
    fn shrink_after(&mut self, refused: u32, refusal: AllRefusal) -> io::Result<()> {
        self.follow();
        // A share of the burst may be kept for other priorities.
        if let Some(Refusal::ExceedsLimit { limit, .. }) = refusal.refusal() {
            self.chunk = self.chunk.min(limit.max(1));
        }
        if self.chunk < refused { Ok(()) } else { Err(io::Error::other(refusal)) }
    }

    /// Ends the reservation. `bytes` of its bytes were moved.
    fn settle(&mut self, bytes: u32) {
        if let Some((_, reservation, _)) = self.reservation.take() {
            match bytes {
                // Default costs go back, too.
                0 => reservation.settle_unused(),
                // All members get the same number, so `settle` finds no unknown name.
                _ => drop(reservation.settle(bytes)),
            }
        }
    }
}

impl fmt::Debug for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direction")
            .field("limiter", &self.limiter)
            .field("chunk", &self.chunk)
            .field("waits_for", &self.reservation.as_ref().map(|(bytes, ..)| bytes))
            .finish()
    }
}

/// Returns how many bytes a transfer under this limiter pays for at a time: the number that the
/// strictest of its limits grants within 10 ms, at least 512 bytes and at most 64 KiB, and no more
/// than it grants at once.
///
/// A member without a rate, such as a [`CountingLimit`](crate::CountingLimit), counts only if it is
/// the only limit. A member with a [default cost](crate::AllOf::default_cost) counts as if its
/// permits were bytes, so give it a rate and a burst that make no chunk smaller.
///
/// [`Throttled`] has chunks of this size, and so has `ThrottledBody` in the crate `tidegate-http`.
/// A custom adapter with chunks of this size gets the same share of the rate as these two adapters.
/// The size follows the rate, so call this function again now and then, for example after a wait.
///
/// # Examples
///
/// ```
/// use tidegate::io::chunk_size;
/// use tidegate::{AnyLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
///
/// let policy = TokenBucket::new(Rate::per_second(1_000_000), 50_000);
/// let limiter =
///     AnyLimiter::from(RateLimiter::with_clock(policy, ManualClock::new()));
/// assert_eq!(chunk_size(&limiter), 10_000);
/// ```
#[must_use]
pub fn chunk_size(limiter: &AnyLimiter) -> u32 {
    chunk(&limiter.non_blocking().status(), MAX_CHUNK)
}

fn chunk(status: &AllStatus, most: u32) -> u32 {
    let members = &status.members;
    // Among several, a member without a rate is one that counts permits in use.
    let is_asked = |rate: Rate| members.len() == 1 || !rate.is_unlimited();
    let of_limit = |rate: f64, limit: u64| {
        let chunk = (rate * CHUNK.as_secs_f64()).clamp(MIN_CHUNK.min(most).into(), most.into());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is at most `most`")]
        let chunk = chunk as u32;
        u32::try_from(limit).unwrap_or(u32::MAX).clamp(1, chunk)
    };
    let asked = members.iter().filter(|(_, status)| is_asked(status.rate));
    let chunks = asked.map(|(_, status)| of_limit(status.rate.as_per_second(), status.limit));
    chunks.min().unwrap_or(most)
}
