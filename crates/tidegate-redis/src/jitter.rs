//! Random parts of spans, so that processes do not come back at one time.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A span between three and five quarters of this one.
pub(crate) fn jittered(span: Duration) -> Duration {
    // A hasher's keys are random, and differ from call to call.
    let random = RandomState::new().hash_one(0) >> 11;
    let share = random as f64 / (1u64 << 53) as f64;
    span.mul_f64(0.75 + share / 2.0)
}
