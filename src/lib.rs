//! tidegate makes a program wait its turn.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod clock;
mod error;
mod gate;
mod limiter;
mod nanos;
pub mod policy;
mod rate;
mod sync;
pub mod wait;

#[cfg(all(test, tidegate_loom))]
#[path = "../loom-tests/mod.rs"]
mod loom_tests;

pub use clock::{Clock, DefaultClock, ManualClock, SystemClock, Timer, TokioClock};
pub use error::{PolicyError, RateError, Refusal};
pub use limiter::{RateLimiter, Status};
pub use nanos::Nanos;
pub use policy::{Policy, SmoothBursty, SmoothWarmingUp};
pub use rate::Rate;
pub use wait::Reservation;
