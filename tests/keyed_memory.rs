//! The memory of keys after their requests have left, and after the keys are forgotten.
#![cfg(feature = "keyed")]

use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate::keyed::Plan;
use tidegate::{KeyedAllOf, KeyedRateLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// Without optimization the test takes ten times as long.
const KEYS: usize = if cfg!(debug_assertions) { 5_000 } else { 50_000 };

/// The bytes per key allowed for the small tables that remain.
const SLACK: i64 = 4;

type Keys = KeyedRateLimiter<usize, TokenBucket, ManualClock>;

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Returns by how many bytes per key the heap grows while `work` runs.
fn grown(work: impl FnOnce()) -> i64 {
    let region = Region::new(ALLOCATOR);
    work();
    let change = region.change();
    (signed(change.bytes_allocated) - signed(change.bytes_deallocated)) / signed(KEYS)
}

/// Returns keys that are all known and have each taken their permit.
fn limited() -> (Keys, ManualClock) {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    let keys = KeyedRateLimiter::with_clock(policy, KEYS, clock.clone());
    assert!((0..KEYS).all(|key| keys.try_acquire(&key).is_ok()));
    (keys, clock)
}

/// Returns how many bytes a key takes, with a plan that all keys share or without plans.
fn of_a_key(plan: bool) -> i64 {
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    let (keys, shared) = (Keys::with_clock(policy.clone(), KEYS, ManualClock::new()), Plan::new(policy));
    let keys = if plan { keys.with_plans(move |_| Some(shared.clone())) } else { keys };
    grown(|| assert!((0..KEYS).all(|key| keys.try_acquire(&key).is_ok())))
}

/// One test, because the allocator counts for the whole process.
#[test]
fn memory_is_given_back() {
    let (plain, planned) = (of_a_key(false), of_a_key(true));
    // The address of the plan, in each slot of the table: 25 bytes instead of 17.
    assert!(planned * 17 <= (plain + SLACK) * 25, "{plain} bytes for a key, {planned} with a plan");

    let (keys, clock) = limited();
    let wait = |key| {
        let mut wait = spawn(keys.acquire(&key));
        assert_pending!(wait.poll());
        drop(wait);
    };
    let waited = grown(|| (0..KEYS).for_each(wait));
    assert!(waited <= SLACK, "{waited} bytes after cancelled waits, one after the other");

    let waited = grown(|| {
        let all: Vec<usize> = (0..KEYS).collect();
        let mut waits: Vec<_> = all.iter().map(|key| spawn(keys.acquire(key))).collect();
        waits.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
        clock.advance(Duration::from_secs(1));
        waits.iter_mut().for_each(|wait| _ = assert_ready!(wait.poll()));
    });
    assert!(waited <= SLACK, "{waited} bytes after served waits, all at the same time");
    assert_eq!(keys.len(), KEYS, "each is known, and limited");
    assert!((0..KEYS).all(|key| keys.try_acquire(&key).is_err()));

    let debited = grown(|| (0..KEYS).for_each(|key| keys.debit(&key, 1).expect("it is known")));
    assert!(debited <= SLACK, "{debited} bytes after debits");

    // A handle ends without visiting the table. New lines settle what it leaves.
    let handles = grown(|| {
        for key in 0..KEYS {
            drop(keys.limiter(&key));
        }
        (0..KEYS).for_each(wait);
    });
    assert!(handles <= SLACK, "{handles} bytes after handles and waits");

    composites(&keys, &clock);

    clock.advance(Duration::from_secs(3));
    let swept = grown(|| keys.sweep());
    assert!(keys.is_empty() && swept <= -20, "{swept} bytes for each forgotten key");
}

/// Waits for a limit of the key and a limit of all keys.
fn composites(keys: &Keys, clock: &ManualClock) {
    let policy = TokenBucket::new(Rate::per_second(1_000_000), 1_000_000);
    let all = RateLimiter::with_clock(policy, clock.clone());
    let both = KeyedAllOf::new("key", keys).with("all", &all);
    let waited = grown(|| {
        let of: Vec<usize> = (0..KEYS).collect();
        let mut waits: Vec<_> = of.iter().map(|key| spawn(both.acquire(key))).collect();
        waits.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
        clock.advance(Duration::from_secs(3));
        waits.iter_mut().for_each(|wait| _ = assert_ready!(wait.poll()));
        of.iter().for_each(|key| assert!(both.try_acquire(key).is_ok()));
        let mut waits: Vec<_> = of.iter().map(|key| spawn(both.acquire(key))).collect();
        waits.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    });
    assert!(waited <= SLACK, "{waited} bytes after waits for two limits, served and dropped");
    assert_eq!(all.status().waiting, 0);
}
