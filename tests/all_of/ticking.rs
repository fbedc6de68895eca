//! Composites on a clock that advances with each reading, as real clocks do.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::clock::{ManualSleep, Sleep};
use tidegate::{AllOf, Clock, ManualClock, Nanos, Rate, RateLimiter, Timer, TokenBucket};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_ok};

/// A manual clock that advances a microsecond with each reading, and whose timers are late.
#[derive(Clone, Debug)]
struct Ticking {
    clock: ManualClock,
    readings: Arc<AtomicU64>,
    /// How late the timers are that are set from now on.
    late: Arc<AtomicU64>,
}

impl Ticking {
    fn end(&self, at: Nanos) -> Nanos {
        at.saturating_add(Nanos::new(self.late.load(Ordering::Relaxed)))
    }
}

impl Clock for Ticking {
    fn now(&self) -> Nanos {
        let readings = self.readings.fetch_add(1, Ordering::Relaxed);
        assert!(readings < 100_000, "the clock is read endlessly");
        self.clock.now().saturating_add(Nanos::new(readings * 1000))
    }
}

impl Timer for Ticking {
    type Sleep = TickingSleep;
    type RuntimeId = ();

    fn runtime(&self) -> Option<()> {
        Some(())
    }

    fn sleep_until(&self, at: Nanos) -> TickingSleep {
        TickingSleep { clock: self.clone(), sleep: self.clock.sleep_until(self.end(at)) }
    }

    fn park_until(&self, at: Nanos) {
        self.clock.park_until(at);
    }
}

#[derive(Debug)]
struct TickingSleep {
    clock: Ticking,
    sleep: ManualSleep,
}

impl Future for TickingSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.sleep).poll(context)
    }
}

impl Sleep for TickingSleep {
    fn reset(mut self: Pin<&mut Self>, at: Nanos) {
        let end = self.clock.end(at);
        Pin::new(&mut self.sleep).reset(end);
    }
}

/// The composites in front are late, and the bucket is full by then. So the composite behind them
/// is due an interval from now, whenever now is. Bug: it moved its alarm endlessly.
#[test]
fn a_time_that_moves_with_the_clock_moves_no_alarm_without_end() {
    let (readings, late) = (Arc::default(), Arc::new(AtomicU64::new(1_000_000_000)));
    let ticking = Ticking { clock: ManualClock::new(), readings, late };
    let bucket = TokenBucket::new(Rate::per_second(125), 2);
    let limiter = RateLimiter::with_clock(bucket, ticking.clone());
    limiter.try_acquire_many(2).expect("a full bucket");
    let composites: Vec<_> = (0..3).map(|_| AllOf::new("calls", &limiter)).collect();
    let mut waits: Vec<_> = composites.iter().map(|all| spawn(all.acquire())).collect();
    let last = waits.len() - 1;
    for (i, wait) in waits.iter_mut().enumerate() {
        if i == last {
            ticking.late.store(0, Ordering::Relaxed);
        }
        assert_pending!(wait.poll());
    }
    ticking.clock.advance(Duration::from_millis(100));
    ticking.clock.advance(Duration::from_secs(2));
    ticking.clock.advance(Duration::from_secs(2));
    waits.iter_mut().for_each(|wait| _ = assert_ready_ok!(wait.poll()));
}
