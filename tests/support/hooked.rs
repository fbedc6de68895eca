//! A manual clock that runs code at one of its readings, as another thread may at that moment.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate::clock::ManualSleep;
use tidegate::{Clock, ManualClock, Nanos, Timer};

/// The number of readings before the code runs, and the code.
type Hook = (usize, Box<dyn FnOnce() + Send>);

#[derive(Clone, Default)]
pub(crate) struct Hooked {
    pub(crate) clock: ManualClock,
    hook: Arc<Mutex<Option<Hook>>>,
}

impl Hooked {
    /// Runs the code at the reading after `readings` others. Replaces code that has not run.
    pub(crate) fn after_readings(&self, readings: usize, run: impl FnOnce() + Send + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some((readings, Box::new(run)));
    }

    fn hook(&self) -> Option<Hook> {
        let mut hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *hook {
            Some((0, _)) => hook.take(),
            Some((readings, _)) => {
                *readings -= 1;
                None
            }
            None => None,
        }
    }
}

impl Clock for Hooked {
    fn now(&self) -> Nanos {
        if let Some((_, run)) = self.hook() {
            run();
        }
        self.clock.now()
    }
}

impl Timer for Hooked {
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

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.clock.fmt(f)
    }
}
