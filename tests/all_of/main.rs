//! Tests of several limiters in one call.

#[path = "../support/mod.rs"]
mod support;

mod any_limiter;
mod cases;
mod control;
mod counting;
mod lines;
mod properties;
mod stress;
