//! Runs the example `fleet_on_servers` of `tidegate-redis`, from the root of the workspace.
//!
//! By default, Cargo looks for an example only in this package. This program runs `cargo run -p
//! tidegate-redis --example fleet_on_servers` with the arguments and the profile of its caller.

use std::env;
use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitCode};

fn main() -> io::Result<ExitCode> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut fleet = Command::new(cargo);
    fleet.args(["run", "--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    if !cfg!(debug_assertions) {
        fleet.arg("--release");
    }
    fleet.args(["-p", "tidegate-redis", "--example", "fleet_on_servers", "--"]);
    let fleet = fleet.args(env::args_os().skip(1));
    Ok(if fleet.status()?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
