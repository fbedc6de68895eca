//! Calls a third party that limits its callers, without ever being refused.
//!
//! ```text
//! cargo run --release --example outbound
//! cargo run --release --example outbound -- --limiter none
//! cargo run --release --example outbound -- --rate 206/s --limit 200/s
//! cargo run --release --example outbound -- --server log --rate 190/s --limit 200/s
//! cargo run --release --example outbound -- --url https://api.example.com/status --rate 5/s --calls 50
//! ```
//!
//! The third party is a real HTTP server on the loopback, on its own thread, that counts strictly
//! (`server.rs`). The callers are many tasks that share one limiter and make real HTTP calls
//! (`client.rs`).
//!
//! With a limiter, the exit code is 0 if every response was a success, and 1 if a response was a
//! 429 or a call failed. Without a limiter, 429 responses are expected, and only other failures
//! count. The exit code of a wrong command line is 2.

mod client;
mod plot;
mod report;
mod server;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tidegate::{Rate, SmoothWarmingUp};

use client::Limiter;
use report::Summary;
use server::Server;

/// Calls a third party that limits its callers, from many tasks through one limiter.
///
/// Unless --url is given, the third party is an HTTP server on the loopback. By default it counts
/// exactly, and responds with 429 to a call that would be one too many: in any span of 5 seconds or
/// less it accepts what LIMIT allows in that time, plus a tolerance of 1 call and of what LIMIT
/// allows in 100 ms. 50 ms of these are lateness that the limiter makes up for, and 50 ms are
/// jitter of the network. With 200/s the tolerance is 21 calls. A rate that is 3 % too fast is not
/// tolerated. --server chooses another kind of server.
#[derive(Parser)]
#[command(name = "outbound")]
struct Arguments {
    /// The limiter's rate, such as 200/s, 3000/min or 1000/100ms.
    #[arg(long, default_value = "200/s", value_parser = limited_rate)]
    rate: Rate,
    /// The number of calls.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    calls: u32,
    /// The number of tasks that make them.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tasks: u32,
    /// The limiter of the tasks.
    #[arg(long, value_enum, default_value_t = Kind::Bursty)]
    limiter: Kind,
    /// The time of warming up from a third of the rate to the rate, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "3", allow_negative_numbers = true, value_parser = warm_up)]
    warm_up: Duration,
    /// The limit of the third party; the default is the limiter's rate.
    #[arg(long, value_parser = limited_rate, conflicts_with = "url")]
    limit: Option<Rate>,
    /// The way in which the third party counts. Unless it is tolerant, the limiter does not make up
    /// for lateness.
    #[arg(long, value_enum, default_value_t = server::Kind::Tolerant, conflicts_with = "url")]
    server: server::Kind,
    /// Calls this instead of starting a server.
    #[arg(long)]
    url: Option<reqwest::Url>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A steady rate. It saves no permits, because the third party saves none either.
    Bursty,
    /// A steady rate that is slower at first.
    WarmingUp,
    /// No limiter: every task calls as fast as it can.
    None,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Bursty => "bursty",
            Kind::WarmingUp => "warming-up",
            Kind::None => "none",
        }
    }
}

/// Parses a rate that limits.
fn limited_rate(text: &str) -> Result<Rate, Box<dyn Error + Send + Sync>> {
    let rate: Rate = text.parse()?;
    if rate.is_unlimited() {
        return Err("there is nothing to show without a limit; for no limiter use --limiter none".into());
    }
    if rate.is_zero() {
        return Err("without a rate no call would ever begin".into());
    }
    Ok(rate)
}

fn warm_up(text: &str) -> Result<Duration, Box<dyn Error + Send + Sync>> {
    let warm_up = Duration::try_from_secs_f64(text.parse()?)?;
    if warm_up > SmoothWarmingUp::MAX_WARM_UP {
        return Err(format!("longer than {:?}", SmoothWarmingUp::MAX_WARM_UP).into());
    }
    Ok(warm_up)
}

// One thread for all callers, so that the order of requests and grants is well defined.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether the run went as it should.
async fn run(arguments: Arguments) -> Result<bool, Box<dyn Error>> {
    let Arguments { rate, calls, tasks, limiter: kind, warm_up, limit, server, url } = arguments;
    let catch_up = if server == server::Kind::Tolerant { client::CATCH_UP } else { Duration::ZERO };
    let (server, url) = match url {
        Some(url) => (None, url),
        None => {
            let server = Server::start(server, limit.unwrap_or(rate))?;
            let url = server.url().parse()?;
            (Some(server), url)
        }
    };
    let limiter = match kind {
        Kind::Bursty => Limiter::bursty(rate, catch_up),
        Kind::WarmingUp => Limiter::warming_up(rate, warm_up, catch_up),
        Kind::None => Limiter::None,
    };

    match kind {
        Kind::None => println!("{calls} calls from {tasks} tasks to {url}, no limiter"),
        _ => println!("{calls} calls from {tasks} tasks to {url}, limiter {} {rate}", kind.name()),
    }
    if let Some(server) = &server {
        println!("the third party accepts {}", server.rule());
    }

    let calls = client::run(client::client()?, url, limiter, calls, tasks).await;

    let summary = Summary::new(&calls);
    println!();
    summary.print_answers();
    let policy = match kind {
        Kind::Bursty => "SmoothBursty with max_burst zero: a burst of 1 call",
        Kind::WarmingUp => "SmoothWarmingUp: a burst of 1 call",
        Kind::None => "none",
    };
    let lateness = match kind {
        Kind::None => String::new(),
        _ if catch_up.is_zero() => ", no lateness made up for".to_owned(),
        _ => format!(", {catch_up:?} of lateness made up for"),
    };
    println!("{:14}{policy}{lateness}", "policy");
    if let Some(server) = &server {
        println!("{:14}{}", "tolerance", server.tolerance());
        println!("{:14}{}", "third party", server.tally());
    }
    match kind {
        Kind::Bursty => summary.print_grants(rate, None),
        Kind::WarmingUp => summary.print_grants(rate, Some(warm_up)),
        Kind::None => {}
    }
    let limit = limit.unwrap_or(rate);
    let title = match kind {
        Kind::None => format!("Calls without a limiter, {limit} allowed"),
        _ => format!("Calls through a {} limiter, {limit} allowed", kind.name()),
    };
    fs::create_dir_all("target")?;
    let file = Path::new("target").join(format!("outbound-{}.svg", kind.name()));
    plot::draw(&file, &title, &calls, limit)?;
    println!("{:14}{}", "timeline", file.display());
    Ok(summary.failed == 0 && (summary.refused == 0 || kind == Kind::None))
}
