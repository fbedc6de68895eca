//! How much does one call on a sliding log cost at most while permits are given back to it: one by
//! one, 50,000 at once, and when many undone permits expire at once?
//!
//! Processor time of the thread, so that other programs on the machine do not count. Reading it
//! takes half a microsecond, which is part of each number.

use std::hint::black_box;

use cpu_time::ThreadTime;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::policy::Policy;
use tidegate::policy::state::{LogCharge, LogState};
use tidegate::{Nanos, Rate, SlidingLog};

use crate::Options;

const LIMITS: [usize; 3] = [100_000, 1_000_000, 16_000_000];
const MINUTE: u64 = 60_000_000_000;

pub(crate) fn all(options: &Options) {
    for limit in options.sizes(&LIMITS) {
        let case = |what: &str| Some(format!("log/{what}/{limit}")).filter(|case| options.wants(case));
        let limit = u32::try_from(*limit).expect("a limit");
        for outstanding in [20, limit / 2] {
            if let Some(case) = case(&format!("singles of {outstanding}")) {
                give_back(&case, limit, 0, 1, outstanding, 4_000_000.min(2 * limit));
            }
        }
        for kept in [0, limit / 2] {
            if let Some(case) = case(&format!("50,000 beside {kept}")) {
                give_back(&case, limit, kept, 50_000, 0, 300);
            }
        }
        if let Some(case) = case("over") {
            over(&case, limit);
        }
    }
}

struct Log {
    policy: SlidingLog,
    state: LogState,
    now: u64,
}

impl Log {
    fn new(limit: u32) -> Log {
        let policy = SlidingLog::new(Rate::per_minute(limit.into()));
        let state = policy.start(Nanos::ZERO);
        Log { policy, state, now: 0 }
    }

    fn take(&self, n: u32) -> Option<LogCharge> {
        self.policy.try_acquire(&self.state, Nanos::new(self.now), n).ok()
    }

    fn undo(&self, charge: LogCharge) {
        self.policy.undo(&self.state, Nanos::new(self.now), charge, u64::MAX);
    }
}

fn time<T>(times: &mut Vec<f64>, call: impl FnOnce() -> T) -> T {
    let start = ThreadTime::now();
    let value = black_box(call());
    times.push(start.elapsed().as_nanos() as f64 / 1e3);
    value
}

fn print(case: &str, call: &str, mut times: Vec<f64>) {
    let first = times[0];
    times.sort_by(f64::total_cmp);
    let (most, slow) = (times[times.len() - 1], times[(times.len() - 1) * 999 / 1000]);
    println!("{case:<34} {call:<8} first {first:>9.1} us  999 of 1000 {slow:>9.1} us  most {most:>9.1} us");
}

/// Keeps `kept` single permits, and takes `n` permits at a time. Once `outstanding` grants are
/// outstanding, gives back a random one in each of the rounds.
fn give_back(case: &str, limit: u32, kept: u32, n: u32, outstanding: u32, rounds: u32) {
    let (mut log, mut random) = (Log::new(limit), SmallRng::seed_from_u64(7));
    for _ in 0..kept {
        log.now += 10;
        log.take(1).expect("room");
    }
    let (mut taking, mut undoing, mut charges) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..outstanding + rounds {
        log.now += 10;
        charges.push(time(&mut taking, || log.take(n)).expect("room"));
        if round >= outstanding {
            let charge = charges.swap_remove(random.random_range(0..charges.len()));
            time(&mut undoing, || log.undo(charge));
        }
    }
    print(case, "take", taking);
    print(case, "undo", undoing);
}

/// Of a limit that was taken within half a minute, a twentieth is undone and taken by other
/// requests. Then half of the first permits expire.
fn over(case: &str, limit: u32) {
    let mut log = Log::new(limit);
    let charges: Vec<_> = (0..limit)
        .map(|_| {
            log.now += MINUTE / 2 / u64::from(limit);
            log.take(1).expect("room")
        })
        .collect();
    charges.into_iter().step_by(20).for_each(|charge| log.undo(charge));
    while log.take(1).is_some() {}
    log.now += MINUTE / 4 * 3;
    let (mut refused, mut take, mut undo) = (Vec::new(), Vec::new(), Vec::new());
    time(&mut refused, || log.take(limit));
    let charge = time(&mut take, || log.take(1)).expect("room");
    log.now += MINUTE / 8;
    time(&mut undo, || log.undo(charge));
    print(case, "refused", refused);
    print(case, "take", take);
    print(case, "undo", undo);
}
