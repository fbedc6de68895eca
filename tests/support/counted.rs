//! A manual clock that counts its readings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::clock::ManualSleep;
use tidegate::{Clock, ManualClock, Nanos, Timer};

#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) clock: ManualClock,
    pub(crate) readings: Arc<AtomicUsize>,
}

impl Clock for Counted {
    fn now(&self) -> Nanos {
        self.readings.fetch_add(1, Ordering::Relaxed);
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
