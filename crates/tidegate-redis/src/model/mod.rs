//! A server behind a network with faults, on tokio's paused time.
//!
//! Messages arrive at any microsecond. Timers of clients fire at whole milliseconds, like tokio's.

mod clock;
mod data;
mod network;

pub use clock::run;
pub(crate) use network::{Connection, Link};
pub use network::{Model, Network};
