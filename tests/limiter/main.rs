//! Tests of one limiter, on a manual clock or on paused time.

#[path = "../support/mod.rs"]
mod support;

mod api_shape;
mod apply;
mod batches;
mod blocking;
mod both;
mod both_pauses;
mod cancel;
mod close;
mod control;
mod control_properties;
mod costs;
mod counting;
mod counting_events;
mod estimates;
mod executors;
mod faults;
mod feedback;
mod late;
mod leaky;
mod left;
mod long_lines;
mod loops;
mod overlaps;
mod panics;
mod pause;
mod policies;
mod predicted_times;
mod properties;
mod random;
mod share;
#[cfg(feature = "tokio")]
mod tokio_clock;
mod unattended;
mod undo;
mod up_to;
mod waiting;
mod waker_clones;
