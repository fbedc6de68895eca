//! Faults of real servers: the outcome of each call, the state of the breaker, and that no call is
//! charged twice. Each test prints a row with the highest latency of a call.
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
