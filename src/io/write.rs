//! Writing: a chunk is paid for before it is written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use crate::io::{Direction, Throttled};

impl Direction {
    /// Pays for a chunk of these bytes and writes it. The permits of bytes that the inner writer
    /// did not take are given back.
    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: usize,
        write: impl FnOnce(&mut Context<'_>, usize) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let paid = loop {
            if self.reservation.is_none() {
                self.reserve_chunk(bytes)?;
            }
            if let Some(paid) = ready!(self.poll_due(context))? {
                break paid;
            }
        };
        // An earlier call may have paid for the chunk, and its buffer may have been longer.
        let written = write(context, bytes.min(paid as usize));
        let used = match &written {
            Poll::Ready(Ok(written)) => u32::try_from(*written).unwrap_or(u32::MAX).min(paid),
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        };
        self.settle(used);
        written
    }
}

impl<T: AsyncWrite> AsyncWrite for Throttled<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        match this.writes {
            Some(direction) if !buffer.is_empty() => {
                let write = |context: &mut Context<'_>, n| this.inner.poll_write(context, &buffer[..n]);
                direction.poll_write(context, buffer.len(), write)
            }
            _ => this.inner.poll_write(context, buffer),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let bytes = buffers.iter().fold(0_usize, |bytes, buffer| bytes.saturating_add(buffer.len()));
        match this.writes {
            Some(direction) if bytes > 0 => {
                let write = |context: &mut Context<'_>, n| match n < bytes {
                    true => this.inner.poll_write_vectored(context, &first(buffers, n)),
                    false => this.inner.poll_write_vectored(context, buffers),
                };
                direction.poll_write(context, bytes, write)
            }
            _ => this.inner.poll_write_vectored(context, buffers),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().inner.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        if let Some(direction) = this.writes {
            // No write follows.
            direction.reservation = None;
        }
        this.inner.poll_shutdown(context)
    }
}

/// Returns the first `bytes` bytes of these buffers.
fn first<'a>(buffers: &'a [IoSlice<'_>], mut bytes: usize) -> Vec<IoSlice<'a>> {
    let mut parts = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let part = buffer.len().min(bytes);
        if part > 0 {
            parts.push(IoSlice::new(&buffer[..part]));
        }
        bytes -= part;
    }
    parts
}
