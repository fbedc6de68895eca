//! Tests of a limiter for each key.

#![cfg(feature = "keyed")]

#[path = "../support/mod.rs"]
mod support;

mod apply;
mod both;
mod bounds;
mod change;
mod close;
mod counting;
mod counting_events;
mod debit_ahead;
mod events;
mod foreign;
mod fresh;
mod pause;
mod plans;
mod shadow;
mod table;
