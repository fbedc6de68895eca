//! A manual clock that counts its readings, and runs code at each of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::clock::ManualSleep;
use tidegate::{Clock, ManualClock, Nanos, Timer};

/// Code that gets the number of readings before.
type OnReading = dyn Fn(&ManualClock, usize) + Send + Sync;

#[derive(Clone)]
pub(crate) struct Counted {
    pub(crate) clock: ManualClock,
    pub(crate) readings: Arc<AtomicUsize>,
    run: Arc<OnReading>,
}

impl Counted {
    /// Creates a clock that runs code at each reading, as another thread may at that moment.
    pub(crate) fn running(run: impl Fn(&ManualClock, usize) + Send + Sync + 'static) -> Counted {
        Counted { clock: ManualClock::new(), readings: Arc::default(), run: Arc::new(run) }
    }
}

impl Default for Counted {
    fn default() -> Counted {
        Counted::running(|_, _| ())
    }
}

impl Clock for Counted {
    fn now(&self) -> Nanos {
        (self.run)(&self.clock, self.readings.fetch_add(1, Ordering::Relaxed));
        self.clock.now()
    }
}

impl Timer for Counted {
    type Sleep = ManualSleep;
    type RuntimeId = ();

    fn runtime(&self) -> Option<()> {
        Some(())
    }

    fn sleep_until(&self, at: Nanos) -> ManualSleep {
        self.clock.sleep_until(at)
    }

    fn park_until(&self, at: Nanos) {
        self.clock.park_until(at);
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.clock.fmt(f)
    }
}
