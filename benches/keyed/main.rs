//! Is a limit per key cheaper than governor's, in time and memory, and does a flood of new keys disturb those that are known?
//!
//! `cargo bench --bench keyed` runs all; `-- hot flood` runs the cases whose name contains an argument; `--quick` has fewer keys and
//! rounds. All contestants take turns in one process; bytes are those of a process of its own for each.

mod contestants;
mod flood;
mod memory;
#[path = "../turns/mod.rs"]
mod turns;

use std::sync::atomic::{AtomicUsize, Ordering};

use contestants::{Contestant, Key, contestants};
use rand::SeedableRng;
use rand::distr::Distribution;
use rand::rngs::SmallRng;
use rand_distr::Zipf;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use turns::{in_turns, median, round};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// So many keys are asked for before they come again.
const ASKED: usize = 4_000_000;

/// What the command line asks for.
struct Options {
    quick: bool,
}

/// Whether there is one key that is asked for far more than others.
#[derive(Clone, Copy, PartialEq)]
enum Hot {
    No,
    /// Each request is for it.
    Alone,
    /// Every other request is for it.
    Half,
    /// Every other request is for it, and refused.
    HalfRefused,
}

/// The rank of the key that is asked for most.
const FIRST: u64 = 0;

/// Which keys are asked for, one after the other: rank by rank with Zipf(1.0), so that the first has a share of about 7 %.
fn ranks(keys: u64, count: usize, hot: Hot) -> Vec<u64> {
    let mut random = SmallRng::seed_from_u64(7);
    let zipf = Zipf::new(keys as f64, 1.0).expect("a plain distribution");
    // Whole numbers from 1 to `keys`.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let mut next = move || zipf.sample(&mut random) as u64 - 1;
    let is_hot = |i| match hot {
        Hot::No => false,
        Hot::Alone => true,
        Hot::Half | Hot::HalfRefused => i % 2 == 0,
    };
    (0..count).map(|i| if is_hot(i) { FIRST } else { next() }).collect()
}

/// Attempts per second with so many keys: all are known, and all are granted but those of a hot key that is refused.
fn attempts<K: Key>(case: &str, keys: u64, threads: usize, hot: Hot, options: &Options) {
    let keys = if options.quick { keys / 10 } else { keys };
    let (repetitions, each) = if options.quick { (7, 20_000) } else { (41, 100_000) };
    let asked = K::encode(&ranks(keys, ASKED, hot));
    let contestants: Vec<Contestant<K>> = contestants(keys);
    for contestant in &contestants {
        (contestant.fill)(keys);
        if hot == Hot::HalfRefused {
            (contestant.spend)(FIRST);
        }
    }
    let next = AtomicUsize::new(0);
    let mut times = vec![Vec::new(); contestants.len()];
    in_turns(contestants.len(), repetitions, |number, _| {
        let run = |count: u32| {
            let first = next.fetch_add(count as usize, Ordering::Relaxed) % (ASKED - each as usize);
            (contestants[number].attempts)(&asked, first, count)
        };
        let (granted, wall) = round(&run, threads, each);
        let expected = |granted: u32| match hot {
            Hot::No | Hot::Alone | Hot::Half => granted == each,
            // Half of them, less the others of the first rank, and what comes due meanwhile.
            Hot::HalfRefused => granted > each * 2 / 5 && granted < each * 3 / 5,
        };
        assert!(granted.iter().copied().all(expected), "{granted:?} of {each} granted");
        times[number].push(wall.as_nanos() as f64 / f64::from(each) / threads as f64);
    });
    let governor = median(times[1].clone());
    for (contestant, times) in contestants.iter().zip(times) {
        let time = median(times);
        let (speed, ratio) = (1e3 / time, governor / time);
        println!("{case:<22} {:<20} {time:>9.1} ns {speed:>8.2} M/s {ratio:>8.2} x", contestant.name);
    }
}

fn main() {
    let (flags, wanted): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
    if let [task, name] = wanted.as_slice()
        && task == memory::CHILD
    {
        return memory::child(name);
    }
    let options = Options { quick: flags.iter().any(|flag| flag == "--quick") };
    let million = 1_000_000;
    type Case<'a> = (&'a str, Box<dyn Fn(&str) + 'a>);
    let cases: [Case; 10] = [
        ("memory", Box::new(|case| memory::compare(case, &options))),
        ("u64/1M/1", Box::new(|case| attempts::<u64>(case, million, 1, Hot::No, &options))),
        ("u64/1M/2", Box::new(|case| attempts::<u64>(case, million, 2, Hot::No, &options))),
        ("u64/1M/hot/2", Box::new(|case| attempts::<u64>(case, million, 2, Hot::Alone, &options))),
        ("u64/1M/hot half/2", Box::new(|case| attempts::<u64>(case, million, 2, Hot::Half, &options))),
        (
            "u64/1M/hot refused/2",
            Box::new(|case| attempts::<u64>(case, million, 2, Hot::HalfRefused, &options)),
        ),
        ("String/1M/1", Box::new(|case| attempts::<String>(case, million, 1, Hot::No, &options))),
        ("String/1M/2", Box::new(|case| attempts::<String>(case, million, 2, Hot::No, &options))),
        ("u64/10M/1", Box::new(|case| attempts::<u64>(case, 10 * million, 1, Hot::No, &options))),
        ("flood", Box::new(|case| flood::flood(case, &options))),
    ];
    println!("{:<22} {:<20} {:>12} {:>12} {:>10}", "case", "who", "an attempt", "", "governor");
    for (name, run) in &cases {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            run(name);
        }
    }
}
