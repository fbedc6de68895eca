//! The method of the comparing benches: in turns, in short rounds, and by the median.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

mod median;

pub(crate) use median::median;

/// Calls `run` with each contestant's number, `repetitions` times, in turns. The first contestant
/// changes from turn to turn, and every other turn goes backwards, so that no contestant always
/// runs behind the same other one.
pub(crate) fn in_turns(contestants: usize, repetitions: usize, mut run: impl FnMut(usize, usize)) {
    for repetition in 0..repetitions {
        for step in 0..contestants {
            let step = if repetition % 2 == 0 { step } else { contestants - 1 - step };
            run((step + repetition / 2) % contestants, repetition);
        }
    }
}

/// Lets every thread make `count` attempts at once. Returns how many each was granted, and the time
/// from the first start to the last end.
pub(crate) fn round(
    attempts: &(dyn Fn(u32) -> u32 + Sync),
    threads: usize,
    count: u32,
) -> (Vec<u32>, Duration) {
    let ready = AtomicUsize::new(0);
    let work = || {
        // Spins, because waking a thread takes longer than the measured difference.
        ready.fetch_add(1, Ordering::AcqRel);
        while ready.load(Ordering::Acquire) < threads {
            spin_loop();
        }
        let start = Instant::now();
        let granted = attempts(black_box(count));
        (granted, start, Instant::now())
    };
    let results: Vec<_> = if threads == 1 {
        vec![work()]
    } else {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads)
                .map(|thread| {
                    let (core, work) = (cores.get(thread).copied(), &work);
                    scope.spawn(move || {
                        core.map(core_affinity::set_for_current);
                        work()
                    })
                })
                .collect();
            handles.into_iter().map(|handle| handle.join().expect("no panic in a round")).collect()
        })
    };
    let start = results.iter().map(|(_, start, _)| *start).min();
    let end = results.iter().map(|(_, _, end)| *end).max();
    let wall = start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start);
    (results.into_iter().map(|(granted, ..)| granted).collect(), wall)
}
