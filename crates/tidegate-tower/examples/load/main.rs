//! The server of the example `axum_api` under five times the load that it allows, by `wrk`.
//!
//! ```sh
//! apt-get install wrk
//! cargo run --release -p tidegate-tower --example load
//! ```
//!
//! A key of the plan `token_bucket 50/s burst 100` sends 250 requests per second over ten
//! connections. The program fails if more were granted than the policy allows for the time that the
//! load lasted, if less than the burst was, or if an answer lacks a header.

#[path = "../axum_api/app.rs"]
mod app;
#[path = "../axum_api/plans.rs"]
mod plans;

use std::error::Error;
use std::process::Command;
use std::time::Instant;

use self::plans::{PLANS, Plans};

const RATE: f64 = 50.0;
const BURST: f64 = 100.0;
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/load/requests.lua");

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let app = app::new(Plans::read(PLANS)?);
    tokio::spawn(async { axum::serve(listener, app).await });

    let mut wrk = Command::new("wrk");
    wrk.args(["--threads=1", "--connections=10", "--duration=5s", "--header=x-api-key: key-of-ann"]);
    wrk.args(["--script", SCRIPT, &url]);
    let begin = Instant::now();
    let output = tokio::task::spawn_blocking(move || wrk.output()).await?;
    let took = begin.elapsed().as_secs_f64();
    let output = output.map_err(|error| format!("wrk: {error}"))?;
    let told = String::from_utf8_lossy(&output.stdout);
    let counted = told.lines().find_map(|line| line.strip_prefix("counted: "));
    let counted =
        counted.ok_or_else(|| format!("wrk failed: {}", String::from_utf8_lossy(&output.stderr)))?;
    let counts: Vec<u32> = counted.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [granted, refused, others, bare] = counts[..] else { return Err("wrk counted nothing".into()) };

    let allowed = BURST + RATE * took;
    println!(
        "{} requests in {took:.2} s: {granted} granted of {allowed:.0} that the policy allows, {refused} \
         refused, {others} others, {bare} without all headers",
        granted + refused + others
    );
    if f64::from(granted) > allowed || f64::from(granted) < BURST || refused == 0 || others + bare > 0 {
        return Err("the limit does not hold".into());
    }
    Ok(())
}
