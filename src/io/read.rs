//! Reading: the bytes of a read are paid for before the next read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncSeek, ReadBuf};

use crate::any_limiter::AnyLimiter;
use crate::io::{Direction, Throttled};
use crate::line::deferred::{resume_panic, run};

/// The reads of a transfer, and their payments. The limiter is charged for all bytes that were
/// read, even if no read follows.
#[derive(Debug)]
pub(super) struct Reads {
    /// Its reservation is for bytes that were read.
    pub(super) direction: Direction,
    /// The number of bytes that were read and have no reservation.
    owed: u32,
}

impl Reads {
    pub(super) fn new(limiter: AnyLimiter, max_chunk: u32) -> Reads {
        Reads { direction: Direction::new(limiter, max_chunk), owed: 0 }
    }

    fn poll_paid(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let read = match &self.direction.reservation {
                Some((bytes, ..)) => *bytes,
                None if self.owed == 0 => return Poll::Ready(Ok(())),
                None => {
                    let joined = self.direction.reserve_chunk(self.owed as usize)?;
                    self.owed -= joined;
                    joined
                }
            };
            match ready!(self.direction.poll_due(context)) {
                Ok(Some(_)) => self.direction.reservation = None,
                Ok(None) => self.owed = self.owed.saturating_add(read),
                Err(refusal) => {
                    self.owed = self.owed.saturating_add(read);
                    return Poll::Ready(Err(refusal));
                }
            }
        }
    }

    fn read(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.owed = self.owed.saturating_add(bytes);
        // A buffer that is consumed in parts, without a fill in between, has the reservation of its
        // first part. The next read reserves permits for the other parts.
        if self.owed > 0
            && self.direction.reservation.is_none()
            && let Ok(joined) = self.direction.reserve_chunk(self.owed as usize)
        {
            self.owed -= joined;
        }
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        // A waker of another task may panic.
        let mut panic = None;
        if let Some((bytes, ..)) = self.direction.reservation {
            run(&mut panic, || self.direction.settle(bytes));
        }
        if self.owed > 0 {
            // All limits are charged alike, so no name can be wrong. A closed limiter grants
            // nothing that the bytes could delay.
            run(&mut panic, || self.direction.limiter.debit(self.owed));
        }
        resume_panic(panic);
    }
}

impl<T: AsyncRead> AsyncRead for Throttled<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.project();
        let Some(reads) = this.reads else { return this.inner.poll_read(context, buffer) };
        if buffer.remaining() == 0 {
            return this.inner.poll_read(context, buffer);
        }
        ready!(reads.poll_paid(context))?;
        let most = reads.direction.part(buffer.remaining());
        // Initialized, because only an initialized buffer is safe to hand on in part.
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most as usize));
        ready!(this.inner.poll_read(context, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        reads.read(read);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncBufRead> AsyncBufRead for Throttled<T> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.project();
        let Some(reads) = this.reads else { return this.inner.poll_fill_buf(context) };
        ready!(reads.poll_paid(context))?;
        let filled = ready!(this.inner.poll_fill_buf(context))?;
        Poll::Ready(Ok(&filled[..reads.direction.part(filled.len()) as usize]))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        let this = self.project();
        this.inner.consume(amount);
        if let Some(reads) = this.reads {
            reads.read(amount);
        }
    }
}

impl<T: AsyncSeek> AsyncSeek for Throttled<T> {
    fn start_seek(self: Pin<&mut Self>, position: io::SeekFrom) -> io::Result<()> {
        self.project().inner.start_seek(position)
    }

    fn poll_complete(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        self.project().inner.poll_complete(context)
    }
}
