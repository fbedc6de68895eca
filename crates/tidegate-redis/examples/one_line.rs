//! One line of configuration switches between one process and a fleet.
//!
//! `cargo run -p tidegate-redis --example one_line` limits only this process. With a store in the
//! line, all processes that are started like this share five permits per second:
//!
//! ```sh
//! cargo run -p tidegate-redis --example one_line -- \
//!     "token_bucket 5/s burst 5 store redis://127.0.0.1 tag calls while_away wait"
//! ```
//!
//! With `while_away wait`, requests wait until the store replies. Without it, a request is refused
//! while the store is unavailable.

use std::time::Instant;

use tidegate_redis::LimiterConfig;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let line = std::env::args().nth(1).unwrap_or_else(|| "token_bucket 5/s burst 5".into());
    let config: LimiterConfig = line.parse()?;
    let limiter = config.build()?;
    println!("{config:?}");
    let began = Instant::now();
    for call in 1..=10 {
        let permits = limiter.acquire().await?;
        println!("call {call:2} after {:4} ms, waited {:?}", began.elapsed().as_millis(), permits.waited());
    }
    Ok(())
}
