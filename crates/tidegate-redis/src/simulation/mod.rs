//! A model of a server behind a network with faults, on tokio's paused time.
//!
//! Stores over a model run the code that stores over a server run, down to the connection:
//! deadline, breaker, reconnecting, and the scripts, which a Lua interpreter carries out. One seed
//! gives one course of events.
//!
//! Messages arrive at any microsecond. Timers of clients fire at whole milliseconds, as tokio's do.

mod clock;
mod data;
mod network;

pub use clock::run;
pub(crate) use network::{Connection, Link};
pub use network::{Model, Network};
