//! The client over a real server, which each test starts for itself.

#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod api_shape;
mod blocking;
mod config;
mod counting;
#[cfg(feature = "simulation")]
mod flush;
mod leased;
mod runtime;
mod store;
