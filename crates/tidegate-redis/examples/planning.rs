//! The cost of a decision for a server, and the size of a key: the figures of `docs/planning.md`.
//!
//! ```text
//! cargo run --release -p tidegate-redis --example planning
//! ```
//!
//! It starts its own server. Microseconds are from the server's `commandstats`. Bytes are from
//! `MEMORY USAGE` and from `used_memory`, for each of 2,000 tags.

#[path = "../tests/support/mod.rs"]
mod support;

use std::error::Error;
use std::time::Duration;

use support::Server;
use tidegate::AnyLimiter;
use tidegate_redis::Store;

const DECISIONS: u32 = 10_000;
const KEYS: u32 = 2000;

/// A name, and the policies of one set of limits.
const SETS: [(&str, &[&str]); 8] = [
    ("`token_bucket`", &["token_bucket 1000000/s burst 1000000"]),
    ("`smooth_bursty`", &["smooth_bursty 1000000/s"]),
    ("`fixed_window`", &["fixed_window 4000000000/d"]),
    ("`sliding_estimate`", &["sliding_estimate 1000000/s"]),
    ("`sliding_window`, 10 cells", &["sliding_window 4000000000/min cells 10"]),
    ("`sliding_log` of 100", &["sliding_log 100/s"]),
    ("`sliding_log` of 4,096", &["sliding_log 4096/s"]),
    (
        "three limits",
        &["token_bucket 1000000/s burst 1000000", "fixed_window 4000000000/d", "sliding_estimate 1000000/s"],
    ),
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let Some(server) = Server::start() else { return Ok(()) };
    let store = Store::builder(server.url()).timeout(Duration::from_secs(60)).open()?;
    // Memory that the server allocates only once does not belong to a key.
    measure(&server, &store, SETS[0].1).await?;
    println!(
        "| limits | µs a decision | 20 in one call | µs a refusal | bytes of a key | with the server's tables |\n\
         |---|---|---|---|---|---|"
    );
    for (name, lines) in SETS {
        let [alone, together, refused, bytes, all_bytes] = measure(&server, &store, lines).await?;
        println!("| {name} | {alone:.1} | {together:.1} | {refused:.1} | {bytes:.0} | {all_bytes:.0} |");
    }
    Ok(())
}

fn limiter(store: &Store, tag: &str, lines: &[String]) -> Result<AnyLimiter, Box<dyn Error>> {
    let named = lines.iter().enumerate();
    let builder =
        named.fold(store.limiter(tag), |builder, (i, line)| builder.limit(i.to_string(), line.as_str()));
    Ok(builder.build()?.into())
}

/// The numbers of a row.
async fn measure(server: &Server, store: &Store, lines: &[&str]) -> Result<[f64; 5], Box<dyn Error>> {
    server.tell("FLUSHALL");
    let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    let all = limiter(store, "all", &lines)?;
    let (alone, together) = (micros(server, &all, 1).await?, micros(server, &all, 20).await?);
    let scarce: Vec<String> = lines.iter().map(|line| scarce(line)).collect();
    let none = limiter(store, "none", &scarce)?;
    while none.acquire_now([]).await.is_ok() {}
    let refused = micros(server, &none, 1).await?;

    server.tell("FLUSHALL");
    let before = used_memory(server)?;
    for tag in 0..KEYS {
        // A state that persists. A log has an instant for each call.
        let user = limiter(store, &format!("user-{tag:08}"), &scarce)?;
        let each = if scarce[0].starts_with("sliding_log") { 1 } else { 100 };
        for _ in 0..100 / each {
            let _ = user.acquire_now(each).await?;
        }
    }
    let all_bytes = used_memory(server)? - before;
    let keys: f64 = redis::cmd("DBSIZE").query(&mut server.connect())?;
    let mut bytes = 0.0;
    for _ in 0..100 {
        let key: String = redis::cmd("RANDOMKEY").query(&mut server.connect())?;
        bytes += redis::cmd("MEMORY").arg("USAGE").arg(key).query::<f64>(&mut server.connect())? / 100.0;
    }
    Ok([alone, together, refused, bytes, all_bytes / keys])
}

fn used_memory(server: &Server) -> Result<f64, Box<dyn Error>> {
    Ok(server.info("memory", "used_memory").ok_or("no INFO")?.parse()?)
}

/// Returns the policy with few permits per day.
fn scarce(line: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').collect();
    words[1] = "100/d";
    for at in 0..words.len() {
        if words[at] == "burst" {
            words[at + 1] = "100";
        }
    }
    words.join(" ")
}

/// Returns the server's time for a decision, without the network, while `tasks` tasks ask.
async fn micros(server: &Server, limiter: &AnyLimiter, tasks: u32) -> Result<f64, Box<dyn Error>> {
    let _ = limiter.acquire_now([]).await;
    server.tell("CONFIG RESETSTAT");
    let tasks = (0..tasks).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            for _ in 0..DECISIONS / tasks {
                let _ = limiter.acquire_now([]).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await?;
    }
    let line = server.info("commandstats", "cmdstat_evalsha").ok_or("no calls")?;
    let micros = line.split(',').find_map(|part| part.strip_prefix("usec=")?.parse::<f64>().ok());
    Ok(micros.ok_or("no time")? / f64::from(DECISIONS))
}
