//! A manual clock that counts its readings, and runs code at each of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::clock::ManualSleep;
use tidegate::{Clock, ManualClock, Nanos, Timer};

/// Returns a reading of the clock. Gets the number of readings before.
type Read = dyn Fn(&ManualClock, usize) -> Nanos + Send + Sync;

#[derive(Clone)]
pub(crate) struct Counted {
    pub(crate) clock: ManualClock,
    pub(crate) readings: Arc<AtomicUsize>,
    read: Arc<Read>,
}

impl Counted {
    /// Creates a clock that runs code at each reading, as another thread may at that moment.
    pub(crate) fn running(run: impl Fn(&ManualClock, usize) + Send + Sync + 'static) -> Counted {
        Counted::reading(ManualClock::new(), move |clock, before| {
            run(clock, before);
            clock.now()
        })
    }

    /// Creates a clock with these readings.
    pub(crate) fn reading(
        clock: ManualClock,
        read: impl Fn(&ManualClock, usize) -> Nanos + Send + Sync + 'static,
    ) -> Counted {
        Counted { clock, readings: Arc::default(), read: Arc::new(read) }
    }
}

impl Default for Counted {
    fn default() -> Counted {
        Counted::running(|_, _| ())
    }
}

impl Clock for Counted {
    fn now(&self) -> Nanos {
        (self.read)(&self.clock, self.readings.fetch_add(1, Ordering::Relaxed))
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
