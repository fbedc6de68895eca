//! Faults of real servers: what each call answers, what the breaker does, and that no call is
//! charged twice. Each test prints a row with the worst latency that a call had.
//!
//! The servers, the network and the deadlines are real, so these tests take real time. They assert
//! counts: a test passes at any speed of the machine.

#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod clocks;
mod cluster;
mod configuration;
mod load;
mod processes;
mod relay;
mod sentinel;
mod server;
#[cfg(feature = "tls")]
mod tls;
