#![doc = include_str!("../README.md")]

mod block_on;
mod breaker;
mod clients;
mod config;
mod connection;
mod counted;
mod counting;
mod error;
mod guarded;
mod held;
mod jitter;
mod key;
mod known_pause;
mod late;
mod lease;
mod limiter;
mod line;
mod lock;
mod methods;
#[cfg(feature = "simulation")]
mod model;
mod observe;
mod pending;
mod queue;
mod script;
mod set;
mod share;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
mod store;
mod terms;

pub use config::LimiterConfig;
#[cfg(feature = "tls")]
pub use connection::Tls;
pub use counting::{CountingBuilder, StoreCountingLimit};
pub use error::{BuildError, OpenError, StoreError};
pub use limiter::{KeyedBuilder, LimiterBuilder, StoreKeyedLimiter, StoreLimiter};
pub use store::{Counts, LeaseCounts, Store, StoreBuilder, WhileAway};

#[doc = include_str!("../docs/leases.md")]
pub mod leases {}

#[doc = include_str!("../docs/limitations.md")]
pub mod limitations {}

#[doc = include_str!("../docs/one_process.md")]
pub mod one_process {}

#[doc = include_str!("../docs/operating.md")]
pub mod operating {}

#[doc = include_str!("../docs/outages.md")]
pub mod outages {}

#[doc = include_str!("../docs/permits_in_use.md")]
pub mod permits_in_use {}

/// How many servers a fleet needs, and the throughput it gets: measured and simulated.
///
#[cfg_attr(doc, doc = include_str!("../docs/pictures/fleet.md"))]
#[cfg_attr(doc, doc = include_str!("../docs/pictures/fleet_cluster.md"))]
#[cfg_attr(doc, doc = include_str!("../docs/pictures/fleet_leased.md"))]
#[cfg_attr(doc, doc = include_str!("../docs/pictures/simulation_loads.md"))]
#[cfg_attr(doc, doc = include_str!("../docs/pictures/simulation_faults.md"))]
#[doc = include_str!("../docs/planning.md")]
pub mod planning {}

#[doc = include_str!("../docs/recipes.md")]
pub mod recipes {}

#[doc = include_str!("../docs/token_servers.md")]
pub mod token_servers {}

#[cfg(test)]
#[path = "../tests/conformance/mod.rs"]
mod conformance_tests;

#[cfg(test)]
#[path = "../tests/script/mod.rs"]
mod script_tests;
