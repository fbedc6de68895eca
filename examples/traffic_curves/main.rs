//! Draws the permits that each policy lets through.
//!
//! ```text
//! cargo run --release --example traffic_curves
//! cargo run --release --example traffic_curves -- --out /tmp/pictures
//! ```
//!
//! Which policy lets a burst pass, which one smooths it, and what does a window let through in the
//! worst case? One picture for each policy shows the demand and the granted permits. The demand
//! shows the policy's nature: a burst after idling, or the worked examples of the literature.
//! `driver` and `overview` show all policies under one demand, and `pauses` shows all policies in a
//! pause.
//!
//! Limiters run on a manual clock, so nothing waits, and every run draws the same bytes. The
//! pictures in `docs/pictures` are made only by this command. The numbers of a caption are
//! measured. If a number differs from the caption, the picture is not written and the exit code is
//! 1.

mod course;
mod demand;
mod driver;
mod facts;
mod overview;
mod pauses;
mod plot;
mod rates;
mod subjects;
mod windows;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use facts::Facts;
use plot::Draw;

/// Draws the permits that each policy lets through.
#[derive(Parser)]
#[command(name = "traffic_curves")]
struct Arguments {
    /// The directory for the pictures.
    #[arg(long, value_name = "DIR", default_value = "docs/pictures")]
    out: PathBuf,
}

/// A picture, and the numbers that it shows.
pub(crate) struct Drawing {
    name: &'static str,
    picture: Box<dyn Draw>,
    facts: Facts,
}

impl Drawing {
    pub(crate) fn new(name: &'static str, picture: impl Draw + 'static, facts: Facts) -> Drawing {
        Drawing { name, picture: Box::new(picture), facts }
    }
}

/// The result of each picture's function.
pub(crate) type Drawn = Result<Drawing, Box<dyn Error>>;

const DRAWINGS: [fn() -> Drawn; 12] = [
    rates::smooth_bursty,
    rates::smooth_warming_up,
    rates::token_bucket,
    rates::token_bucket_in_steps,
    rates::leaky_bucket,
    windows::fixed_window,
    windows::sliding_window,
    windows::sliding_estimate,
    windows::sliding_log,
    driver::draw,
    overview::draw,
    pauses::draw,
];

fn main() -> ExitCode {
    match run(&Arguments::parse().out) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all pictures show what their captions say.
fn run(out: &Path) -> Result<bool, Box<dyn Error>> {
    fs::create_dir_all(out)?;
    let mut as_claimed = true;
    let mut links = String::new();
    for draw in DRAWINGS {
        let Drawing { name, picture, facts } = draw()?;
        let file = out.join(name).with_extension("svg");
        println!("{}", file.display());
        if facts.print() {
            // A blank line would end the SVG in the text that contains it.
            let svg = picture.svg()?.replace("\n\n", "\n");
            fs::write(&file, &svg)?;
            links += &format!("[{name}]: data:image/svg+xml,{}\n", escaped(&svg));
        } else {
            as_claimed = false;
        }
    }
    if as_claimed {
        fs::write(out.join("links.md"), links)?;
    }
    Ok(as_claimed)
}

/// Escapes an SVG as a part of a link. rustdoc cannot store files, so there the pictures are in the
/// text.
fn escaped(svg: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.~/:=,;!*".contains(c);
    svg.chars().map(|c| if plain(c) { c.to_string() } else { percent(c) }).collect()
}

/// Returns the percent-encoding of a character, such as `%20` for a space.
fn percent(c: char) -> String {
    c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("%{byte:02X}")).collect()
}
