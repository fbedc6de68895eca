//! Ten million random keys through a table of a hundred thousand keys that is full of limited keys.
//!
//! One thread asks for known keys all the time. Concurrently another thread asks for known keys,
//! too, or for new keys that find no room: what does the flood cost known keys, what does each key
//! of the flood cost, and how much memory does it cost?

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use stats_alloc::Region;
use tidegate::{KeyedRateLimiter, Rate, TokenBucket, WhenKeysFull};

use crate::turns::median;
use crate::{ALLOCATOR, Options, PART};

const KEYS: u32 = 100_000;
const ROUND: u32 = 20_000;

/// Returns the nanoseconds of an attempt for a known key, the median of rounds, until `done`. It is
/// of one round at least, even if the system lets this thread begin after the other one has ended.
fn known(limiter: &KeyedRateLimiter<u64>, seed: u64, done: &AtomicBool) -> f64 {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        for _ in 0..ROUND {
            black_box(limiter.try_acquire(&u64::from(random.next_u32() % KEYS))).expect("it has permits");
        }
        times.push(start.elapsed().as_nanos() as f64 / f64::from(ROUND));
        if done.load(Ordering::Relaxed) {
            return median(times);
        }
    }
}

pub(crate) fn flood(case: &str, options: &Options) {
    let floods: u32 = if options.quick { 500_000 / PART } else { 10_000_000 };
    for choice in [WhenKeysFull::RefuseNew, WhenKeysFull::ShareOne, WhenKeysFull::EvictLeastUsed] {
        let policy = TokenBucket::new(Rate::per_second(1_000_000), 4_000_000_000);
        let limiter = KeyedRateLimiter::<u64>::new(policy, KEYS as usize).when_full(choice);
        for key in 0..KEYS {
            limiter.try_acquire_many(&u64::from(key), 2_000_000_000).expect("a new key is full");
        }
        let run = |other: &(dyn Fn(&mut SmallRng) + Sync), count: u32| {
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let beside = scope.spawn(|| known(&limiter, 1, &done));
                let mut random = SmallRng::seed_from_u64(2);
                let start = Instant::now();
                (0..count).for_each(|_| other(&mut random));
                let each = start.elapsed().as_nanos() as f64 / f64::from(count);
                done.store(true, Ordering::Relaxed);
                (beside.join().expect("no panic"), each)
            })
        };
        let (calm, _) =
            run(&|random| _ = black_box(limiter.try_acquire(&u64::from(random.next_u32() % KEYS))), floods);
        let region = Region::new(ALLOCATOR);
        let (flooded, each) =
            run(&|random| _ = black_box(limiter.try_acquire(&(random.next_u64() | 1 << 63))), floods);
        let change = region.change();
        let grown = change.bytes_allocated as f64 - change.bytes_deallocated as f64;
        let (case, ratio) = (format!("{case}/{choice:?}"), flooded / calm);
        println!(
            "{case:<22} known key {calm:.1} ns, beside the flood {flooded:.1} ns: {ratio:.2} x; \
             one of the flood {each:.1} ns; {floods} of them added {grown:.0} bytes; {} keys",
            limiter.len()
        );
    }
}
