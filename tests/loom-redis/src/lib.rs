//! The files of `tidegate-redis` that have loom models, and the models. They are compiled here
//! because the cfg of the models rebuilds all dependencies of a package, and a Redis client takes a
//! minute.
#![cfg(all(test, tidegate_loom))]
#![expect(dead_code, reason = "the models use a part of each file")]

#[path = "../../../crates/tidegate-redis/src/connection/driver.rs"]
mod driver;
mod lease;
