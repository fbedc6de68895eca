#![doc = include_str!("../README.md")]

pub mod read;
pub mod tell;

mod structured;
mod unit;
mod when;

pub use unit::Unit;
pub use when::When;
