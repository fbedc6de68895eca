// The examples of the README need the feature `middleware`.
#![cfg_attr(any(feature = "middleware", not(doctest)), doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod body;
mod error;
mod limit;
#[cfg(feature = "middleware")]
mod middleware;

pub use error::Error;
pub use limit::RateLimit;
