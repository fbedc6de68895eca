//! Composites on a clock that advances with each reading, as real clocks do.

use std::iter::repeat_with;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::counted::Counted;
use crate::support::late::LateTimer;
use tidegate::{AllOf, Clock, ManualClock, Nanos, Rate, RateLimiter, TokenBucket};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_ok};

/// Creates a clock that advances a microsecond with each reading.
fn ticking(clock: ManualClock) -> Counted {
    Counted::reading(clock, |clock, before| {
        assert!(before < 100_000, "the clock is read endlessly");
        clock.now().saturating_add(Nanos::new(before as u64 * 1000))
    })
}

/// The composites in front are late, and the bucket is full by then. So the composite behind them
/// is due an interval from now, whenever now is. Bug: it moved its alarm endlessly.
#[test]
fn a_time_that_moves_with_the_clock_moves_no_alarm_without_end() {
    let clock = ManualClock::new();
    // How late the timers are that are set from now on.
    let late = Arc::new(AtomicU64::new(1_000_000_000));
    let lates = repeat_with({
        let late = late.clone();
        move || late.load(Ordering::Relaxed)
    });
    let bucket = TokenBucket::new(Rate::per_second(125), 2);
    let limiter = RateLimiter::with_clock(bucket, LateTimer::new(ticking(clock.clone()), lates));
    limiter.try_acquire_many(2).expect("a full bucket");
    let composites: Vec<_> = (0..3).map(|_| AllOf::new("calls", &limiter)).collect();
    let mut waits: Vec<_> = composites.iter().map(|all| spawn(all.acquire())).collect();
    let last = waits.len() - 1;
    for (i, wait) in waits.iter_mut().enumerate() {
        if i == last {
            late.store(0, Ordering::Relaxed);
        }
        assert_pending!(wait.poll());
    }
    clock.advance(Duration::from_millis(100));
    clock.advance(Duration::from_secs(2));
    clock.advance(Duration::from_secs(2));
    waits.iter_mut().for_each(|wait| _ = assert_ready_ok!(wait.poll()));
}
