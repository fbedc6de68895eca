//! The two policies of Guava's `RateLimiter`. A grant is paid for by the request after it.

mod bursty;
mod current_rate;
mod warming_up;

pub use bursty::{BurstyCharge, BurstyState, SmoothBursty};
pub use warming_up::{SmoothWarmingUp, WarmingUpCharge, WarmingUpState};
