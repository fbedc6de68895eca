//! Eight TCP connections share one bandwidth, and two of them are greedy.
//!
//! ```text
//! cargo run --release --example bandwidth
//! cargo run --release --example bandwidth -- --seconds 10 --plot bandwidth.svg
//! ```
//!
//! All connections write as fast as they can; the greedy ones with buffers sixteen times as large.
//! The same bytes are transferred in three ways, one after the other: without a limit, with
//! `tidegate`, and with TiKV's `async-speed-limit`. The program prints the bytes received per
//! second, the share of each connection, and the processor time of the whole transfer. It fails if
//! tidegate's total is off by more than 0.5 % or a share by more than 2 %.

mod plot;
mod transfer;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use clap::builder::RangedU64ValueParser;

use transfer::{Way, run};

/// Eight TCP connections share one bandwidth, and two of them are greedy.
#[derive(Clone, Debug, Parser)]
#[command(name = "bandwidth")]
pub(crate) struct Arguments {
    /// The number of connections.
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    connections: usize,
    /// The number of greedy connections.
    #[arg(long, default_value_t = 2)]
    greedy: usize,
    /// Bytes per second, of all connections.
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u32).range(50..))]
    rate: u32,
    /// The buffer of a connection that is not greedy, and the largest chunk.
    #[arg(long, default_value_t = 64 << 10, value_parser = clap::value_parser!(u32).range(1..))]
    buffer: u32,
    /// The duration in seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Measures only one of the ways.
    #[arg(long, value_parser = ["no-limit", "tidegate", "async-speed-limit"])]
    only: Option<String>,
    /// Draws the bytes of each connection over time, for each way with a limit.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

impl Arguments {
    fn bytes(&self) -> u64 {
        u64::from(self.rate) * u64::from(self.seconds)
    }
}

/// The bytes received over one connection up to each time since the start.
pub(crate) type Course = Vec<(Duration, u64)>;

/// The measurements of one run.
pub(crate) struct Measured {
    pub(crate) courses: Vec<Course>,
    pub(crate) took: Duration,
    pub(crate) processor: Duration,
}

impl Measured {
    /// Returns how many bytes were received over each connection by this time.
    fn by(&self, time: Duration) -> Vec<u64> {
        let by =
            |course: &Course| course.iter().rev().find(|(at, _)| *at <= time).map_or(0, |(_, bytes)| *bytes);
        self.courses.iter().map(by).collect()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    println!("{:<20} {:>10} {:>20} {:>14}", "", "MB/s", "least, largest share", "processor");
    let (mut limited, mut wrong) = (Vec::new(), None);
    for (name, way) in
        [("no limit", Way::Plain), ("tidegate", Way::Tidegate), ("async-speed-limit", Way::SpeedLimit)]
    {
        if arguments.only.as_ref().is_some_and(|only| *only != name.replace(' ', "-")) {
            continue;
        }
        let measured = run(&arguments, way)?;
        let shares = measured.by(Duration::MAX);
        let all: u64 = shares.iter().sum();
        let fair = all as f64 / shares.len() as f64;
        let of_fair = |bytes: Option<&u64>| bytes.map_or(0.0, |bytes| *bytes as f64 / fair * 100.0);
        let (least, most) = (of_fair(shares.iter().min()), of_fair(shares.iter().max()));
        let per_second = all as f64 / measured.took.as_secs_f64();
        println!(
            "{name:<20} {:>10.3} {:>9.2} % {:>6.2} % {:>9.0} ms/GB",
            per_second / 1e6,
            least,
            most,
            measured.processor.as_secs_f64() * 1e3 / (all as f64 / 1e9),
        );
        if let Way::Tidegate = way {
            let off = (per_second / f64::from(arguments.rate) - 1.0).abs();
            if off > 0.005 || most > 102.0 || least < 98.0 {
                wrong = Some("the total is off by more than 0.5 % or a share by more than 2 %");
            }
        }
        if !matches!(way, Way::Plain) {
            limited.push((name, measured));
        }
    }
    if let Some(file) = &arguments.plot {
        plot::draw(file, &arguments, &limited)?;
        println!("drawn in {}", file.display());
    }
    wrong.map_or(Ok(()), |wrong| Err(wrong.into()))
}
