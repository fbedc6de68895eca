//! Tests of policies alone, with times as arguments.

#[path = "../support/allowance.rs"]
mod allowance;
#[allow(dead_code)] // The replay uses the rest.
#[path = "../support/guava.rs"]
mod guava;
#[path = "../support/room.rs"]
mod room;

mod both;
mod bucket_properties;
mod cases;
mod clone;
mod config;
mod config_round_trip;
mod debit;
mod extremes;
mod guava_cases;
mod keep_at_most;
mod literature;
mod log_properties;
mod log_stress;
mod messages;
mod properties;
mod stress;
mod strict_servers;
mod window_properties;
mod window_times;
