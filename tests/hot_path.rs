//! What a decision costs while nobody waits: one reading of the clock and no allocation.

use std::alloc::System;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate::clock::ManualSleep;
use tidegate::{Clock, ManualClock, Nanos, Rate, RateLimiter, SmoothBursty, Timer};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A clock that counts how often it is read.
#[derive(Clone, Debug)]
struct Counted {
    clock: ManualClock,
    readings: Arc<AtomicU32>,
}

impl Clock for Counted {
    fn now(&self) -> Nanos {
        self.readings.fetch_add(1, Ordering::Relaxed);
        self.clock.now()
    }
}

impl Timer for Counted {
    type Sleep = ManualSleep;
    type Domain = ();

    fn domain(&self) -> Option<()> {
        Some(())
    }

    fn sleep_until(&self, at: Nanos) -> ManualSleep {
        self.clock.sleep_until(at)
    }

    fn park_until(&self, at: Nanos) {
        self.clock.park_until(at);
    }
}

// One test, since the allocator counts for the whole process.
#[test]
fn a_decision_reads_the_clock_once_and_allocates_nothing() {
    let clock = Counted { clock: ManualClock::new(), readings: Arc::default() };
    let policy = SmoothBursty::new(Rate::per_second(1)).max_burst(Duration::from_secs(3)).start_full();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    let mut context = Context::from_waker(Waker::noop());
    clock.readings.store(0, Ordering::Relaxed);
    let region = Region::new(ALLOCATOR);

    assert!(limiter.try_acquire().is_ok());
    assert!(limiter.try_acquire_many(1).is_ok());
    assert!(pin!(limiter.acquire()).poll(&mut context).is_ready());
    assert!(pin!(limiter.acquire_many_owned(1)).poll(&mut context).is_ready());
    assert!(limiter.try_acquire().is_err());

    let change = region.change();
    assert_eq!((change.allocations, change.deallocations, change.reallocations), (0, 0, 0));
    assert_eq!(clock.readings.load(Ordering::Relaxed), 5);
}
