//! Ten million new keys pass through a table of a hundred thousand. `cargo bench --bench keyed`
//! measures the time.
#![cfg(test)]

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate::{KeyedRateLimiter, ManualClock, Rate, Refusal, TokenBucket, WhenKeysFull};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// Without optimization the test takes ten times as long.
const KEYS: u32 = if cfg!(debug_assertions) { 10_000 } else { 100_000 };
const FLOOD: u32 = if cfg!(debug_assertions) { 10 * KEYS } else { 100 * KEYS };

/// A full table: every key has taken its permit, and must wait for an hour.
fn limited() -> (KeyedRateLimiter<u64, TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_hour(1), 1);
    let max_keys = KEYS as usize;
    (KeyedRateLimiter::with_clock(policy, max_keys, clock.clone()), clock)
}

/// Floods the table with `count` new keys. Returns how many were granted, and by how many bytes
/// memory grew.
fn flood(keys: &KeyedRateLimiter<u64, TokenBucket, ManualClock>, count: u32) -> (u32, isize) {
    let mut random = SmallRng::seed_from_u64(1);
    let region = Region::new(ALLOCATOR);
    let granted = (0..count).filter(|_| keys.try_acquire(&(random.next_u64() | 1 << 63)).is_ok()).count();
    let change = region.change();
    let signed = |bytes: usize| isize::try_from(bytes).unwrap_or(isize::MAX);
    let grown = signed(change.bytes_allocated) - signed(change.bytes_deallocated);
    (u32::try_from(granted).expect("it fits"), grown)
}

/// One test, because the allocator counts for the whole process.
#[test]
fn a_flood_neither_grows_memory_nor_frees_a_limited_key() {
    for choice in [WhenKeysFull::RefuseNew, WhenKeysFull::ShareOne, WhenKeysFull::EvictLeastUsed] {
        let (keys, clock) = limited();
        let keys = keys.when_full(choice);
        assert!((0..KEYS).all(|key| keys.try_acquire(&key.into()).is_ok()));
        let count = if choice == WhenKeysFull::RefuseNew { FLOOD } else { FLOOD / 10 };
        let (granted, grown) = flood(&keys, count);
        assert_eq!((grown, keys.len()), (0, keys.max_keys()), "{choice:?}");
        let is_limited = |key: u32| matches!(keys.try_acquire(&key.into()), Err(Refusal::Limited { .. }));
        match choice {
            WhenKeysFull::RefuseNew => assert_eq!(granted, 0),
            WhenKeysFull::ShareOne => assert_eq!(granted, 1),
            WhenKeysFull::EvictLeastUsed => assert_eq!(granted, count, "each takes the slot of another"),
        }
        if choice != WhenKeysFull::EvictLeastUsed {
            assert!((0..KEYS).all(is_limited), "{choice:?}: all are still known, and limited");
        }
        // An hour later the known keys make room, step by step, and memory does not grow for that.
        clock.advance(std::time::Duration::from_secs(3600));
        let (granted, grown) = flood(&keys, 4 * KEYS);
        assert!(granted >= KEYS, "{choice:?}: {granted} found room");
        assert_eq!((grown, keys.len()), (0, keys.max_keys()), "{choice:?}");
    }
}
