//! Reading: the bytes of a read are paid for before the next read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncSeek, ReadBuf};

use crate::io::{Direction, Throttled};

impl Direction {
    /// Waits until the bytes of earlier reads are paid for. After a refusal the next read asks
    /// again.
    fn poll_paid(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let read = match &self.reservation {
                Some((bytes, ..)) => *bytes,
                None if self.owed == 0 => return Poll::Ready(Ok(())),
                None => {
                    let joined = self.reserve_chunk(self.owed as usize)?;
                    self.owed -= joined;
                    joined
                }
            };
            match ready!(self.poll_due(context)) {
                Ok(Some(_)) => self.reservation = None,
                Ok(None) => self.owed = self.owed.saturating_add(read),
                Err(refusal) => {
                    self.owed = self.owed.saturating_add(read);
                    return Poll::Ready(Err(refusal));
                }
            }
        }
    }

    /// Reserves permits for the bytes that were read. If the reservation is refused, the next read
    /// asks again and returns the error: this read has bytes to hand over.
    fn read(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.owed = self.owed.saturating_add(bytes);
        // A buffer that is consumed in parts, without a fill in between, has the reservation of its
        // first part. The next read reserves permits for the other parts.
        if self.owed > 0
            && self.reservation.is_none()
            && let Ok(joined) = self.reserve_chunk(self.owed as usize)
        {
            self.owed -= joined;
        }
    }
}

impl<T: AsyncRead> AsyncRead for Throttled<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.project();
        let Some(direction) = this.reads else { return this.inner.poll_read(context, buffer) };
        if buffer.remaining() == 0 {
            return this.inner.poll_read(context, buffer);
        }
        ready!(direction.poll_paid(context))?;
        let most = direction.part(buffer.remaining());
        // Initialized, because only an initialized buffer is safe to hand on in part.
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most as usize));
        ready!(this.inner.poll_read(context, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        direction.read(read);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncBufRead> AsyncBufRead for Throttled<T> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.project();
        let Some(direction) = this.reads else { return this.inner.poll_fill_buf(context) };
        ready!(direction.poll_paid(context))?;
        let filled = ready!(this.inner.poll_fill_buf(context))?;
        Poll::Ready(Ok(&filled[..direction.part(filled.len()) as usize]))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        let this = self.project();
        this.inner.consume(amount);
        if let Some(direction) = this.reads {
            direction.read(amount);
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
