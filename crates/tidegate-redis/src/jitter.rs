//! Randomized durations, so that processes do not return at the same time.

use std::hash::{BuildHasher, RandomState};
use std::process;
use std::time::{Duration, SystemTime};

/// A random duration between three and five quarters of this one.
pub(crate) fn jittered(span: Duration) -> Duration {
    let share = random() as f64 / (1u64 << 53) as f64;
    span.mul_f64(0.75 + share / 2.0)
}

/// A random number below 2^53.
fn random() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(random) = SEEDED.with_borrow_mut(|seeded| seeded.as_mut().map(rand::Rng::random::<u64>)) {
        return random >> 11;
    }
    own() >> 11
}

/// A random number that no other process has. The keys of a hasher are random, and differ from call
/// to call. Processes that are forked from one process have the same keys, so the number also
/// depends on the process id and the time.
pub(crate) fn own() -> u64 {
    RandomState::new().hash_one((process::id(), SystemTime::now()))
}

#[cfg(feature = "simulation")]
thread_local! {
    static SEEDED: std::cell::RefCell<Option<rand::rngs::SmallRng>> = const { std::cell::RefCell::new(None) };
}

/// Seeds the random numbers of this thread.
#[cfg(feature = "simulation")]
pub(crate) fn seed(seed: u64) {
    use rand::SeedableRng;
    SEEDED.set(Some(rand::rngs::SmallRng::seed_from_u64(seed)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_differ_by_up_to_a_quarter() {
        let spans: Vec<f64> = (0..1000).map(|_| jittered(Duration::from_secs(4)).as_secs_f64()).collect();
        assert!(spans.iter().all(|span| (3.0..=5.0).contains(span)));
        // Each of these fails once in 10^48 runs.
        assert!(spans.iter().any(|span| *span < 3.2) && spans.iter().any(|span| *span > 4.8));
    }
}
