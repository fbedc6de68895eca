//! Tests of streams, readers and writers that wait for permits, on paused time.

#[cfg(all(feature = "io", feature = "tokio"))]
mod bytes;
#[cfg(all(feature = "stream", feature = "tokio"))]
mod items;
