//! The files of `tidegate-redis` that have loom models, and the models. They are compiled here,
//! since all that a package uses is built anew with the cfg of the models, and a client of a server
//! takes a minute.
#![cfg(all(test, tidegate_loom))]
#![expect(dead_code, reason = "the models use a part of each file")]

#[path = "../../../crates/tidegate-redis/src/connection/driver.rs"]
mod driver;
mod lease;
