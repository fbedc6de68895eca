//! A sliding log allocates little each time permits are given back to it.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate::policy::Policy;
use tidegate::{Nanos, Rate, SlidingLog};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LIMIT: u32 = 1_000_000;

/// One undone permit touches at most two chunks of the entries that it fills or copies, and three
/// links. The rest is for the nodes of a tree.
const MOST: usize = 6 * 8 * 1024;

// One test, because the allocator counts for the whole process.
/// Bug: the first settlement allocated a second ring and a link for each entry: 18 MB at a limit of
/// a million, under the lock of the limiter's queue.
#[test]
fn a_permit_that_is_undone_allocates_a_few_chunks_at_most() {
    let (policy, at) = (SlidingLog::new(Rate::per_hour(LIMIT.into())), |nanos: u32| Nanos::new(nanos.into()));
    let region = Region::new(ALLOCATOR);
    let state = policy.start(at(0));
    let ring = region.change().bytes_allocated;
    assert!(ring < 9 * LIMIT as usize + LIMIT as usize / 5, "{ring} bytes at the start");
    let take = |nanos| policy.try_acquire(&state, at(nanos), 1).expect("room");
    let charges: Vec<_> = (0..LIMIT).map(take).collect();
    // More than half of the spare entries, so that a copy is made and its ring takes effect.
    let mut worst = 0;
    for charge in charges.into_iter().step_by(8).take(LIMIT as usize / 9) {
        let region = Region::new(ALLOCATOR);
        policy.undo(&state, at(LIMIT), charge, u64::MAX);
        worst = worst.max(region.change().bytes_allocated);
    }
    assert!(worst <= MOST, "{worst} bytes for one permit");
}
