#![doc = include_str!("../README.md")]

pub mod read;
pub mod tell;

mod problem;
mod structured;
mod unit;
mod when;

pub use problem::{Problem, ProblemType};
pub use unit::Unit;
pub use when::When;
