//! The default clock: the system's monotonic clock, read at the lowest cost, with tokio's timer.

use std::time::Duration;

use tokio::runtime::{Handle, Id};

use crate::clock::tokio::{TokioSleep, park_for};
use crate::clock::{Clock, Timer, unix_time};
use crate::time::Nanos;

/// Reads the processor's time stamp counter where it is steady, otherwise the operating system's
/// monotonic clock.
///
/// A reading costs about 8 ns, a third of `std::time::Instant` (`benches/README.md` has the
/// numbers). Waiting uses tokio's timer, so `acquire().await` needs a tokio runtime with time
/// enabled; `try_acquire` and `blocking_acquire` need none.
///
/// # Panics
///
/// Awaiting a permit that is not due at once panics outside of a tokio runtime.
#[derive(Clone, Debug)]
pub struct SystemClock {
    clock: quanta::Clock,
    /// The counter's value at this clock's beginning.
    start: u64,
    unix_time: Duration,
}

impl SystemClock {
    /// Creates a clock that begins now.
    #[must_use]
    pub fn new() -> SystemClock {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        SystemClock { clock, start, unix_time: unix_time() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Nanos {
        // Zero if the counter went back, which can happen when a thread moves between processors.
        Nanos::new(self.clock.delta_as_nanos(self.start, self.clock.raw()))
    }

    fn unix_time_at_zero(&self) -> Duration {
        self.unix_time
    }
}

impl Timer for SystemClock {
    type Sleep = TokioSleep<SystemClock>;
    type RuntimeId = Id;

    fn domain(&self) -> Option<Id> {
        Handle::try_current().ok().map(|runtime| runtime.id())
    }

    fn sleep_until(&self, at: Nanos) -> TokioSleep<SystemClock> {
        TokioSleep::new(self.clone(), at)
    }

    fn park_until(&self, at: Nanos) {
        park_for(at, self.now());
    }
}
