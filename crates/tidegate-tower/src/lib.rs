#![doc = include_str!("../README.md")]

mod address;
mod body;
mod counting;
mod finish;
mod gate;
mod grpc;
mod headers;
mod hold;
mod idle;
mod key;
mod kind;
mod layer;
mod limit;
mod network;
mod obey;
mod problem;
mod ready;
mod refused;
mod service;

pub use address::{ClientAddress, ForwardingHeader};
pub use body::Body;
pub use key::Key;
pub use kind::{Client, Kind, Plain, Server};
pub use layer::RateLimitLayer;
pub use limit::{Ask, Limit};
pub use network::{InvalidNetwork, Network};
pub use obey::{ObeyLayer, Obeying, ObeyingFuture};
pub use ready::{Lasts, ReadyFuture, ReadyRateLimit, ReadyRateLimitLayer, UntilBodyEnds, UntilResponse};
pub use refused::{Error, Refused};
pub use service::{RateLimit, ResponseFuture};
