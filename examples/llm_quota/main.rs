//! Calls an LLM API that limits requests per minute and tokens per minute, for several tenants,
//! without ever being refused.
//!
//! ```text
//! cargo run --release --example llm_quota
//! cargo run --release --example llm_quota -- --limiter none
//! cargo run --release --example llm_quota -- --requests 300/min --calls 120
//! ```
//!
//! The API is a real HTTP server on the loopback, on its own thread, with two strict budgets
//! (`server.rs`). The cost of a call is only known from its response. So the callers take an
//! estimate from one [`AllOf`](tidegate::AllOf) of both budgets and a limit of calls in flight, and
//! settle it to the actual cost (`client.rs`).
//!
//! With the limits, the exit code is 0 if every response was a success, and 1 if a response was a
//! 429 or a call failed. Without them, 429 responses are expected, and only other failures count.
//! The exit code of a wrong command line is 2.

mod client;
mod plot;
mod report;
mod server;
mod tenants;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use tidegate::Rate;

use client::Limits;
use server::{Server, Terms};

/// Calls an LLM API that limits requests and tokens per minute, for three tenants, through one
/// queue.
///
/// The first half of the calls is long and needs many tokens; the second half is short.
///
/// The API is an HTTP server on the loopback. It keeps one bucket of requests and one of tokens,
/// charges the most that a call may use, and gives back the tokens that were not generated. If
/// either bucket has too little, it responds with 429. The buckets of the callers are smaller by
/// the permits that accrue within 300 ms: 50 ms are the lateness that a limiter makes up for, and
/// 250 ms are jitter of the network.
#[derive(Parser)]
#[command(name = "llm_quota")]
struct Arguments {
    /// The limit of requests, such as 900/min or 15/s.
    #[arg(long, default_value = "900/min", value_parser = limited_rate)]
    requests: Rate,
    /// The limit of tokens.
    #[arg(long, default_value = "240000/min", value_parser = limited_rate)]
    tokens: Rate,
    /// How much of each limit the server saves up while no tenant calls, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    burst: Duration,
    /// The number of calls that may be in flight. This is a limit of the callers; the server has
    /// none.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    in_flight: u32,
    /// The number of calls.
    #[arg(long, default_value_t = 280, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    calls: u32,
    /// The limits of the callers.
    #[arg(long, value_enum, default_value_t = Kind::AllOf)]
    limiter: Kind,
    /// The file for the picture of the budgets, as SVG; the default is
    /// `target/llm-quota-<limiter>.svg`.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Both budgets and the limit of calls in flight, all at once.
    AllOf,
    /// No limit.
    None,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::AllOf => "all-of",
            Kind::None => "none",
        }
    }
}

/// Parses a rate that limits and lets something through.
fn limited_rate(text: &str) -> Result<Rate, Box<dyn Error + Send + Sync>> {
    let rate: Rate = text.parse()?;
    if rate.is_unlimited() || rate.is_zero() {
        return Err("the server needs a limit; for no limiter use --limiter none".into());
    }
    Ok(rate)
}

fn seconds(text: &str) -> Result<Duration, Box<dyn Error + Send + Sync>> {
    let span = Duration::try_from_secs_f64(text.parse()?)?;
    if span > Duration::from_secs(3600) {
        return Err("longer than an hour".into());
    }
    Ok(span)
}

// One thread for all callers; the server has another.
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
    let Arguments { requests, tokens, burst, in_flight, calls, limiter: kind, out } = arguments;
    let terms = [Terms::new(requests, burst), Terms::new(tokens, burst)];
    let limits = match kind {
        Kind::AllOf => Some(Limits::new([requests, tokens], burst, in_flight)?),
        Kind::None => None,
    };
    let server = Server::start(terms)?;

    let with = match &limits {
        Some(limits) => format!("limiter {}, {limits}", kind.name()),
        None => "no limiter".to_owned(),
    };
    println!("{calls} calls of {} tenants to {}, {with}", tenants::TENANTS.len(), server.url());
    println!(
        "the server allows {requests} and {tokens} tokens, and saves {:.0} requests and {:.0} tokens",
        terms[0].burst, terms[1].burst
    );

    let begin = Instant::now();
    let (calls, believed) = client::run(server.url().parse()?, limits, calls, begin).await?;
    let tally = server.tally();

    let summary = report::Summary::new(&calls, &believed, terms);
    println!();
    summary.print(&tally);

    let file = out.unwrap_or_else(|| Path::new("target").join(format!("llm-quota-{}.svg", kind.name())));
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let utilisation = summary.utilisation_sentence();
    let course =
        plot::Course { utilisation, terms, begin, left: &tally.course, believed: &believed, calls: &calls };
    fs::write(&file, course.svg()?)?;
    println!("{:14}{}", "plot", file.display());
    Ok(summary.failed == 0 && (summary.refused == 0 || kind == Kind::None))
}
