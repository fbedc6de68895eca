//! The client over a model of a server, on paused time.

#![allow(clippy::unwrap_used)]

// The modules `check` and `scenario` are parts of the example `simulation`.
#[allow(dead_code)]
#[path = "../../examples/simulation/check.rs"]
mod check;
#[allow(dead_code)]
#[path = "../../examples/simulation/scenario.rs"]
mod scenario;

mod crowds;
mod differ;
mod dropped_waits;
mod keyed;
mod layers;
mod lease_ends;
mod lease_order;
mod leases;
mod line;
mod observers;
mod outages;
mod pauses;
mod predicted;
mod settled;
mod shares;
mod simulation;
mod waiting;
