//! Draws what each policy lets through.
//!
//! ```text
//! cargo run --release --example traffic_curves
//! cargo run --release --example traffic_curves -- --out /tmp/pictures
//! ```
//!
//! Which policy lets a burst pass, which one smooths it, and what does a window let through at its
//! worst? One picture for each policy shows what was asked for and what was let through, with the
//! demand that shows the policy's nature: a burst after idling, or the worked examples of the
//! literature. `driver` and `overview` have all policies, under one demand, and `pauses` has all of
//! them in a pause.
//!
//! Limiters run on a manual clock, so nothing waits and all runs draw equal bytes. The pictures in
//! `docs/pictures` are made by this command alone. The numbers of a caption are measured; if one is
//! not as the caption says, the picture is not written and the exit code is 1.

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

/// Draws what each policy lets through.
#[derive(Parser)]
#[command(name = "traffic_curves")]
struct Arguments {
    /// Where to write the pictures.
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

/// What each picture's function returns.
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

/// Whether all pictures show what their captions say.
fn run(out: &Path) -> Result<bool, Box<dyn Error>> {
    fs::create_dir_all(out)?;
    let mut as_claimed = true;
    let mut links = String::new();
    for draw in DRAWINGS {
        let Drawing { name, picture, facts } = draw()?;
        let file = out.join(name).with_extension("svg");
        println!("{}", file.display());
        if facts.print() {
            // A blank line would end it where it stands in a text.
            let svg = picture.svg()?.replace("\n\n", "\n");
            fs::write(&file, &svg)?;
            links += &format!("[{name}]: data:image/svg+xml,{}\n", escaped(&svg));
        } else {
            as_claimed = false;
        }
    }
    fs::write(out.join("links.md"), links)?;
    Ok(as_claimed)
}

/// As a part of a link. rustdoc has no place for files, so there the pictures are in the text.
fn escaped(svg: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.~/:=,;!*".contains(c);
    svg.chars().map(|c| if plain(c) { c.to_string() } else { percent(c) }).collect()
}

/// `%20` for a space.
fn percent(c: char) -> String {
    c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("%{byte:02X}")).collect()
}
