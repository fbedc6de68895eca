//! Simulates a fleet of 1,000 processes that share limits over a store.
//!
//! ```text
//! cargo run --release -p tidegate-redis --features simulation --example simulation
//! ```
//!
//! The client is the production code, and the store runs its scripts; the network and the time are
//! models. The messages of a process take 0.2 to 20 ms one way. Requests arrive at random, and
//! their numbers have a Zipf distribution over processes and keys. A request waits at most 100 ms.
//!
//! The table shows the cost of a permit, how much of the limit is used, whether any span of any key
//! got more than its bound, and how long the effect of a fault lasts beyond its end. Everything is
//! determined by one seed. The pictures go to `docs/pictures` of the crate. The argument `loads` or
//! `faults` runs only that part.

mod check;
mod plot;
mod scenario;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use check::{Bound, jain};
use plot::{Band, Curve, Panel};
use scenario::{BIN, Fault, Network, Outcome, Setup};

const PROCESSES: u32 = 1000;
const LOADS: [f64; 5] = [0.5, 1.0, 1.5, 2.0, 3.0];
/// The limit of all processes together.
const ONE: Bound = Bound { per_second: 10_000, burst: 1000 };
/// The limit of each of a million keys.
const EACH: Bound = Bound { per_second: 50, burst: 50 };
/// The number of requests per second that makes one request for each permit of the hundred busiest
/// keys.
const BUSIEST_KEYS: f64 = 100.0 * 50.0 * 14.39 / 5.19;

fn setup(limit: Bound, asked: f64) -> Setup {
    Setup {
        seed: 14,
        processes: PROCESSES,
        keys: 1,
        limit,
        asked,
        span: Duration::from_secs(10),
        is_leased: false,
        within: Duration::from_millis(100),
        network: Setup::network(),
        faults: Vec::new(),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let part = std::env::args().nth(1);
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures"));
    let over = match part.as_deref() {
        Some("loads") => loads(folder)?,
        Some("faults") => faults(folder)?,
        None => loads(folder)? + faults(folder)?,
        Some(other) => return Err(format!("{other}: the argument is loads or faults").into()),
    };
    if over > 0 {
        return Err("a span got more than the bound".into());
    }
    Ok(())
}

/// Runs one limit and a million limits, with half as many requests as permits to three times as
/// many.
fn loads(folder: &Path) -> Result<u64, Box<dyn Error>> {
    println!(
        "| limits | load | requests | calls a permit | use | beyond the bound | \
         served: busiest, idlest | Jain | slowest decision | keys, a minute later |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    let (mut over, mut trips) = (0, [Vec::new(), Vec::new()]);
    let mut served = [Vec::new(), Vec::new()];
    for load in LOADS {
        let setup = setup(ONE, load * ONE.per_second as f64);
        let mut outcome = setup.run();
        over += row("one, 10,000/s", load, &setup, &mut outcome);
        trips[0].push((load, outcome.calls as f64 / outcome.served() as f64));
        for (curve, part) in served.iter_mut().zip(ends(&outcome)) {
            curve.push((load, part));
        }
    }
    for load in LOADS {
        let setup = Setup { is_leased: true, ..setup(ONE, load * ONE.per_second as f64) };
        let mut outcome = setup.run();
        over += row("one, 10,000/s, leased", load, &setup, &mut outcome);
        trips[1].push((load, outcome.calls as f64 / outcome.served() as f64));
    }
    for load in [1.5, 3.0] {
        let one = setup(ONE, load * ONE.per_second as f64);
        let setup = Setup { is_leased: true, within: Duration::from_secs(1), ..one };
        over += row("one, leased, waits of 1 s", load, &setup, &mut setup.run());
    }
    for load in LOADS {
        let setup = Setup { keys: 1_000_000, ..setup(EACH, load * BUSIEST_KEYS) };
        over += row("10^6 keys, 50/s each", load, &setup, &mut setup.run());
    }
    let network = Network { lost_answers: 0.01, ..Setup::network() };
    let lossy = Setup { network, ..setup(ONE, 1.5 * ONE.per_second as f64) };
    over += row("one, 1 % of the replies lost", 1.5, &lossy, &mut lossy.run());

    let panel = |title, top, limit, curves| Panel {
        title,
        x: "requests for each permit of the limit",
        right: 3.0,
        top,
        limit,
        curves,
        bands: Vec::new(),
    };
    let ([exact, leased], [busiest, idlest]) = (trips, served);
    let panels = [
        panel(
            "Calls a permit",
            4.0,
            Some(1.0),
            vec![Curve { label: "exact", points: exact }, Curve { label: "leased", points: leased }],
        ),
        panel(
            "Part of the requests that get a permit",
            1.0,
            None,
            vec![
                Curve { label: "10 busiest processes", points: busiest },
                Curve { label: "100 idlest processes", points: idlest },
            ],
        ),
    ];
    plot::draw(&folder.join("simulation_loads.svg"), &panels)?;
    Ok(over)
}

/// Runs all faults, one after the other. A server that loses its data may grant a burst once more,
/// so this returns 0.
fn faults(folder: &Path) -> Result<u64, Box<dyn Error>> {
    let setup = faulty();
    let mut outcome = setup.run();
    println!("\nPermits beyond the bound, in all faults: {}\n", outcome.over(&setup));
    let bands = recoveries(&setup, &outcome);
    plot::draw(&folder.join("simulation_faults.svg"), &[timeline(&setup, &outcome, bands)])?;
    Ok(0)
}

/// Prints the result of a run. Returns how many permits were beyond the bound.
fn row(limits: &str, load: f64, setup: &Setup, outcome: &mut Outcome) -> u64 {
    let over = outcome.over(setup);
    let each = outcome.processes.iter().filter(|(asked, _)| *asked > 0);
    let jain = jain(each.map(|(asked, served)| *served as f64 / *asked as f64));
    let [busiest, idlest] = ends(outcome);
    let used = outcome.use_of(setup);
    println!(
        "| {limits} | {load} | {} | {:.3} | {} | {over} | {busiest:.3}, {idlest:.3} | {jain:.3} | {:.1} ms | {}, {} |",
        outcome.asked(),
        outcome.calls as f64 / outcome.served() as f64,
        if used.is_nan() { "-".into() } else { format!("{:.1} %", 100.0 * used) },
        outcome.slowest.as_secs_f64() * 1e3,
        outcome.keys.0,
        outcome.keys.1,
    );
    over
}

/// Returns the part of requests that got a permit, of the busiest hundredth and the idlest tenth.
fn ends(outcome: &Outcome) -> [f64; 2] {
    let n = outcome.processes.len();
    [outcome.served_of(0..n / 100), outcome.served_of(n - n / 10..n)]
}

/// Returns a setup with all faults, one after the other.
fn faulty() -> Setup {
    let at = |ms: u64, fault: Fault| (Duration::from_millis(ms), fault);
    Setup {
        span: Duration::from_secs(26),
        faults: vec![
            at(3000, Fault::Cut(3)),
            at(5000, Fault::Join(3)),
            at(9000, Fault::Stop),
            at(10_000, Fault::GoOn),
            at(14_000, Fault::Kill),
            at(14_500, Fault::FailOver),
            at(18_000, Fault::Demote),
            at(21_000, Fault::Kill),
            at(23_000, Fault::StartEmpty),
        ],
        ..setup(ONE, 1.5 * ONE.per_second as f64)
    }
}

/// The names of the faults, and the [bins](BIN) in which they begin and end.
const FAULTS: [(&str, usize, usize); 5] = [
    ("a third is cut off", 30, 50),
    ("server stopped", 90, 100),
    ("replica follows", 140, 145),
    ("demoted", 180, 180),
    ("starts empty", 210, 230),
];

/// Prints how long the effect of each fault lasted beyond its end.
fn recoveries(setup: &Setup, outcome: &Outcome) -> Vec<Band> {
    println!(
        "| fault | seconds | permits of the store in it | of shares | full use again after | last share after |"
    );
    println!("|---|---|---|---|---|---|");
    let seconds = |bins: usize| bins as f64 * BIN.as_secs_f64();
    let full = setup.limit.per_second as f64 * BIN.as_secs_f64();
    let granted = |bin: usize| outcome.granted.get(bin).copied().unwrap_or(0);
    let degraded = |bin: usize| outcome.degraded.get(bin).copied().unwrap_or(0);
    for (i, (name, from, to)) in FAULTS.into_iter().enumerate() {
        let next = FAULTS.get(i + 1).map_or(260, |(_, from, _)| *from);
        let within = from..to.max(from + 1);
        let again = (to..next).find(|bin| granted(*bin) as f64 >= 0.95 * full).unwrap_or(next);
        let last = (to..next).rev().find(|bin| degraded(*bin) > 0).map_or(to, |bin| bin + 1);
        println!(
            "| {name} | {:.1} | {} | {} | {:.1} s | {:.1} s |",
            seconds(to - from),
            within.clone().map(granted).sum::<u64>(),
            within.map(degraded).sum::<u64>(),
            seconds(again - to),
            seconds(last - to),
        );
    }
    let band =
        |(label, from, to): (_, usize, usize)| Band { span: seconds(from)..seconds(to.max(from + 1)), label };
    FAULTS.into_iter().map(band).collect()
}

fn timeline(setup: &Setup, outcome: &Outcome, bands: Vec<Band>) -> Panel {
    let per_second = |bins: &[u64]| {
        bins.iter()
            .enumerate()
            .map(|(i, n)| (i as f64 * BIN.as_secs_f64(), *n as f64 / BIN.as_secs_f64()))
            .filter(|(x, _)| *x <= setup.span.as_secs_f64())
            .collect()
    };
    Panel {
        title: "Permits a second, with faults, at 1.5 requests for each permit",
        x: "time in seconds",
        right: setup.span.as_secs_f64(),
        top: 25_000.0,
        limit: Some(setup.limit.per_second as f64),
        curves: vec![
            Curve { label: "of the store", points: per_second(&outcome.granted) },
            Curve { label: "of the shares of processes", points: per_second(&outcome.degraded) },
        ],
        bands,
    }
}
