//! The stock of leased permits.

#[path = "../../../crates/tidegate-redis/loom-tests/stock.rs"]
mod loom_tests;
#[path = "../../../crates/tidegate-redis/src/lease/stock.rs"]
mod stock;
#[path = "../../../crates/tidegate-redis/src/lease/sync.rs"]
mod sync;
