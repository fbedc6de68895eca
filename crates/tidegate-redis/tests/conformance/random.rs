//! Random calls at each policy, in sequence.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::{AnyLimiter, Pause, Request};

use crate::conformance_tests::behaviours::{are_few, policies};
use crate::conformance_tests::{World, compare, compare_leased};

/// Makes a random call. A limiter with leases may predict too short a wait for a debit, or for a
/// request for several permits: these calls are only made `with_all`.
fn play(world: &mut World, limiter: &AnyLimiter, random: &mut SmallRng, is_bucket: bool, with_all: bool) {
    let n = if with_all { random.random_range(1..4) } else { 1 };
    match random.random_range(0..20) {
        0..10 => drop(world.try_acquire(limiter, n)),
        10 => drop(world.try_acquire(limiter, Request::up_to(5 * n))),
        // In a pause, a window over a store counts it at the end.
        11 if !with_all => {}
        11 if is_bucket || limiter_is_open(world, limiter) => {
            drop(world.call("debit", || limiter.debit([("limit", 1)])))
        }
        // In a pause, it takes nothing over a store.
        12 if limiter_is_open(world, limiter) => {
            drop(world.call("keep", || limiter.keep_at_most("limit", u64::from(4 * n))))
        }
        13 => {
            let pause = Pause::lasting(Duration::from_millis(random.random_range(1..3_000)));
            // In one process only, windows space the permits after a pause that keeps none.
            let pause = if is_bucket && random.random() { pause } else { pause.keep_permits() };
            drop(world.call("pause", || limiter.pause(pause)));
        }
        14 => drop(world.call("resume", || limiter.resume())),
        // After refunds more is granted than a limit of a few permits grants: leases pay.
        15 if with_all => drop(world.call("refund", || limiter.refund(n))),
        _ => {
            let most = [3, 30, 300, 3_000, 30_000][random.random_range(0..5)];
            world.advance(Duration::from_millis(random.random_range(0..most)));
        }
    }
    world.status(limiter);
}

/// Makes 400 random calls.
fn play_all(world: &mut World, line: &str, seed: u64, with_all: bool) {
    let mut random = SmallRng::seed_from_u64(seed);
    let limiter = world.limit(line);
    let is_bucket = !line.contains("window") && !line.contains("sliding");
    for _ in 0..400 {
        play(world, &limiter, &mut random, is_bucket, with_all);
    }
}

fn limiter_is_open(world: &mut World, limiter: &AnyLimiter) -> bool {
    world.status(limiter).paused_for.is_zero()
}

#[test]
fn random_calls_have_one_answer_for_every_policy() {
    for (seed, line) in (0..).zip(policies()) {
        compare(line, |world| play_all(world, line, seed, true));
    }
}

/// The store decides as without leases. A known refusal is repeated without a call to the store.
#[test]
fn random_calls_have_one_answer_where_leases_do_not_pay() {
    for (seed, line) in (0..).zip(policies().filter(|line| are_few(line))) {
        let taken = compare_leased(line, |world| play_all(world, line, seed, false));
        assert!(taken.unwrap_or(0) == 0, "{line}: {taken:?}");
    }
}
