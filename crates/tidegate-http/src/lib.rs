// The examples need all features.
#![cfg_attr(any(all(feature = "obey", feature = "body"), not(doctest)), doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "body")]
mod body;
#[cfg(feature = "obey")]
#[cfg_attr(docsrs, doc(cfg(feature = "obey")))]
pub mod obey;
pub mod read;
pub mod write;

mod problem;
mod structured;
mod unit;
mod when;

#[cfg(feature = "body")]
#[cfg_attr(docsrs, doc(cfg(feature = "body")))]
pub use body::ThrottledBody;
pub use problem::{Problem, ProblemType};
pub use unit::Unit;
pub use when::When;
