//! Tests of several limiters in one call.

#[path = "../support/mod.rs"]
mod support;

mod any_counting;
mod any_limiter;
mod cases;
mod closing;
mod control;
mod costs;
mod counting;
mod default_cost;
#[cfg(feature = "config")]
mod left;
mod lines;
#[cfg(feature = "keyed")]
mod of_keys;
#[cfg(feature = "config")]
mod predicted;
mod properties;
mod replaceable;
#[cfg(feature = "keyed")]
mod same_word;
mod stress;
mod ticking;
mod up_to;
mod zero_costs;
