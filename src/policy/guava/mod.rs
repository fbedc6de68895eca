//! The two policies of Guava's `RateLimiter`. The next request pays for a grant.

mod bursty;
mod current_rate;
mod warming_up;

pub use bursty::{BurstyCharge, BurstyState, SmoothBursty};
pub use warming_up::{SmoothWarmingUp, WarmingUpCharge, WarmingUpState};
