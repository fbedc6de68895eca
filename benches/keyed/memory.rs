//! Bytes per key, and the time in which a million keys are added.

use std::process::Command;
use std::time::Instant;

use stats_alloc::Region;

use crate::contestants::{Contestant, Key, Limit, contestants};
use crate::{ALLOCATOR, Options, PART};

/// The argument that makes this program measure one contestant and print two numbers.
pub(crate) const CHILD: &str = "one-memory";

/// Returns the resident bytes of this process, if the operating system reports them.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|line| line.split(' ').nth(1).and_then(|pages| pages.parse().ok()));
    pages.map_or(0, |pages: u64| pages * 4096)
}

fn measure<K: Key>(number: usize, keys: u64) {
    // Created and dropped, so that the process already has its own memory.
    drop(contestants::<K>(1000, Limit::Plenty));
    let (region, before) = (Region::new(ALLOCATOR), resident());
    let contestant: Contestant<K> = contestants(keys, Limit::Plenty).swap_remove(number);
    let start = Instant::now();
    (contestant.fill)(keys);
    let seconds = start.elapsed().as_secs_f64();
    let change = region.change();
    let bytes = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
    println!("{bytes} {} {seconds}", resident().saturating_sub(before));
}

/// `u64 0 1000000` measures the first contestant with a million keys.
pub(crate) fn child(what: &str) {
    let words: Vec<_> = what.split(' ').collect();
    let [key, number, keys] = words.as_slice() else { panic!("what to measure: {what}") };
    let (number, keys) = (number.parse().expect("a number"), keys.parse().expect("a number"));
    match *key {
        "u64" => measure::<u64>(number, keys),
        _ => measure::<String>(number, keys),
    }
}

pub(crate) fn compare(case: &str, options: &Options) {
    let this = std::env::current_exe().expect("the path of this program");
    let million = if options.quick { 100_000 / PART } else { 1_000_000 };
    for (key, keys) in [("u64", million), ("String", million), ("u64", 10 * million)] {
        let mut governor = 0.0;
        for (number, name) in [(1, "governor"), (0, "ours")] {
            let what = format!("{key} {number} {keys}");
            let output = Command::new(&this).args([CHILD, &what]).output().expect("this program runs");
            let text = String::from_utf8_lossy(&output.stdout);
            let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            let [bytes, resident, seconds] = numbers.as_slice() else { panic!("{case} {what}: {text}") };
            let (bytes, resident) = (bytes / f64::from(keys), resident / f64::from(keys));
            let nanos = seconds * 1e9 / f64::from(keys);
            let ratio = if number == 1 { 1.0 } else { bytes / governor };
            if number == 1 {
                governor = bytes;
            }
            let case = format!("{case}/{key}/{keys}");
            println!(
                "{case:<22} {name:<20} {bytes:>7.1} B/key {resident:>6.1} resident {ratio:>6.2} x, filled in {nanos:.0} ns/key"
            );
        }
    }
}
