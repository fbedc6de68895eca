//! Tests of streams, readers and writers that wait for permits, on paused time.

#[cfg(feature = "io")]
mod bytes;
#[cfg(feature = "stream")]
mod items;
