//! Is a limit per key cheaper than governor's, in time and memory, and does a flood of new keys
//! disturb known keys?
//!
//! `cargo bench --bench keyed` runs all cases; `-- hot flood` runs the cases with an argument in
//! their name; `--quick` has fewer keys and rounds. All contestants take turns in one process.
//! Bytes are measured in a separate process for each contestant.

mod contestants;
mod flood;
mod memory;
#[path = "../turns/mod.rs"]
mod turns;

use std::sync::atomic::{AtomicUsize, Ordering};

use contestants::{Contestant, Key, Limit, contestants};
use rand::distr::Distribution;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::Zipf;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use turns::{in_turns, median, round};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// An unoptimized build does not measure: it runs a fraction of the work.
const PART: u32 = if cfg!(debug_assertions) { 50 } else { 1 };

/// The length of the sequence of keys, after which it repeats.
const ASKED: usize = 4_000_000 / PART as usize;

/// The options on the command line.
struct Options {
    quick: bool,
}

/// The order in which a case asks for its keys.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// Zipf(1.0): the first of a million keys has a share of about 7 %.
    Zipf,
    /// Each key equally often.
    Uniform,
    /// Each request is for the first key.
    Hot,
    /// Every other request is for the first key, the rest as in `Zipf`.
    HalfHot,
}

/// The rank of the most requested key.
const FIRST: u64 = 0;

/// Returns the sequence of keys that are asked for, by their ranks.
fn ranks(keys: u64, count: usize, order: Order) -> Vec<u64> {
    let mut random = SmallRng::seed_from_u64(7);
    let zipf = Zipf::new(keys as f64, 1.0).expect("a plain distribution");
    // Whole numbers from 1 to `keys`.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let by_zipf = |random: &mut SmallRng| zipf.sample(random) as u64 - 1;
    (0..count)
        .map(|i| match order {
            Order::Hot => FIRST,
            Order::HalfHot if i % 2 == 0 => FIRST,
            Order::Zipf | Order::HalfHot => by_zipf(&mut random),
            Order::Uniform => random.random_range(0..keys),
        })
        .collect()
}

/// One case: how many keys, in which order, with which limit, by how many threads.
#[derive(Clone, Copy)]
struct Mix {
    keys: u64,
    order: Order,
    limit: Limit,
    /// Whether the first key is over its limit, although the others have plenty.
    first_is_spent: bool,
    threads: usize,
}

impl Mix {
    /// Returns whether a round of `each` attempts went as intended for the case.
    fn is_as_meant(&self, granted: u32, each: u32) -> bool {
        match self.limit {
            // Half of them, minus the others of the first rank, plus the permits that accrue in the
            // meantime.
            Limit::Plenty if self.first_is_spent => granted > each * 2 / 5 && granted < each * 3 / 5,
            Limit::Plenty => granted == each,
            // Zipf may ask for the first keys more often than their permits accrue.
            Limit::Fresh => granted > each * 3 / 4,
            Limit::Spent => granted == 0,
        }
    }
}

/// Measures the time of an attempt, ours compared with governor's.
fn attempts<K: Key>(case: &str, mix: Mix, options: &Options) {
    let keys = if options.quick { mix.keys / 10 / u64::from(PART) } else { mix.keys };
    let (repetitions, each) = if options.quick { (3, 20_000) } else { (41, 100_000) };
    let asked = K::encode(&ranks(keys, ASKED, mix.order));
    let contestants: Vec<Contestant<K>> = contestants(keys, mix.limit);
    for contestant in &contestants {
        (contestant.fill)(keys);
        if mix.first_is_spent {
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
        let (granted, wall) = round(&run, mix.threads, each);
        let name = contestants[number].name;
        let as_meant = granted.iter().all(|granted| mix.is_as_meant(*granted, each));
        assert!(as_meant, "{name} granted {granted:?} of {each}");
        times[number].push(wall.as_nanos() as f64 / f64::from(each) / mix.threads as f64);
    });
    let governor = median(times[1].clone());
    for (contestant, times) in contestants.iter().zip(times) {
        let time = median(times);
        let (speed, ratio) = (1e3 / time, governor / time);
        println!("{case:<22} {:<20} {time:>9.1} ns {speed:>8.2} M/s {ratio:>8.2} x", contestant.name);
    }
}

/// A case by its name: the keys, then the special condition, then the threads.
type Case = (&'static str, fn(&str, &Options));

const M: u64 = 1_000_000;

/// A million keys in Zipf order that are granted, on one thread. The cases state how they differ.
const PLAIN: Mix =
    Mix { keys: M, order: Order::Zipf, limit: Limit::Plenty, first_is_spent: false, threads: 1 };
const UNIFORM: Mix = Mix { order: Order::Uniform, ..PLAIN };
const REFUSED: Mix = Mix { limit: Limit::Spent, ..PLAIN };
const FRESH: Mix = Mix { limit: Limit::Fresh, ..UNIFORM };
const FRESH_100K: Mix = Mix { keys: M / 10, ..FRESH };

/// Returns the mix on two threads.
const fn two(mix: Mix) -> Mix {
    Mix { threads: 2, ..mix }
}

const CASES: [Case; 26] = [
    ("memory", memory::compare),
    ("u64/1M/1", |case, options| attempts::<u64>(case, PLAIN, options)),
    ("u64/1M/2", |case, options| attempts::<u64>(case, two(PLAIN), options)),
    ("u64/1M/uniform/1", |case, options| attempts::<u64>(case, UNIFORM, options)),
    ("u64/1M/uniform/2", |case, options| attempts::<u64>(case, two(UNIFORM), options)),
    ("u64/1M/refused/1", |case, options| attempts::<u64>(case, REFUSED, options)),
    ("u64/1M/refused/2", |case, options| attempts::<u64>(case, two(REFUSED), options)),
    ("u64/100k/fresh/1", |case, options| attempts::<u64>(case, FRESH_100K, options)),
    ("u64/100k/fresh/2", |case, options| attempts::<u64>(case, two(FRESH_100K), options)),
    ("u64/1M/fresh/1", |case, options| attempts::<u64>(case, FRESH, options)),
    ("u64/1M/fresh/2", |case, options| attempts::<u64>(case, two(FRESH), options)),
    ("u64/1M/fresh Zipf/1", |case, options| {
        attempts::<u64>(case, Mix { order: Order::Zipf, ..FRESH }, options);
    }),
    ("u64/1M/fresh Zipf/2", |case, options| {
        attempts::<u64>(case, two(Mix { order: Order::Zipf, ..FRESH }), options);
    }),
    ("u64/1M/hot/2", |case, options| {
        attempts::<u64>(case, two(Mix { order: Order::Hot, ..PLAIN }), options);
    }),
    ("u64/1M/hot half/2", |case, options| {
        attempts::<u64>(case, two(Mix { order: Order::HalfHot, ..PLAIN }), options);
    }),
    ("u64/1M/hot refused/2", |case, options| {
        let mix = Mix { order: Order::HalfHot, first_is_spent: true, ..PLAIN };
        attempts::<u64>(case, two(mix), options);
    }),
    ("String/1M/1", |case, options| attempts::<String>(case, PLAIN, options)),
    ("String/1M/2", |case, options| attempts::<String>(case, two(PLAIN), options)),
    ("String/1M/uniform/1", |case, options| attempts::<String>(case, UNIFORM, options)),
    ("String/1M/uniform/2", |case, options| attempts::<String>(case, two(UNIFORM), options)),
    ("String/1M/refused/1", |case, options| attempts::<String>(case, REFUSED, options)),
    ("String/1M/refused/2", |case, options| attempts::<String>(case, two(REFUSED), options)),
    ("String/1M/fresh/1", |case, options| attempts::<String>(case, FRESH, options)),
    ("String/1M/fresh/2", |case, options| attempts::<String>(case, two(FRESH), options)),
    ("u64/10M/1", |case, options| attempts::<u64>(case, Mix { keys: 10 * M, ..PLAIN }, options)),
    ("flood", flood::flood),
];

fn main() {
    let (flags, wanted): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
    if let [task, name] = wanted.as_slice()
        && task == memory::CHILD
    {
        return memory::child(name);
    }
    let quick = cfg!(debug_assertions) || flags.iter().any(|flag| flag == "--quick");
    let options = Options { quick };
    println!("{:<22} {:<20} {:>12} {:>12} {:>10}", "case", "who", "an attempt", "", "governor");
    for (name, run) in CASES {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            run(name, &options);
        }
    }
}
