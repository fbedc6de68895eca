//! The system's monotonic clock, read the cheapest way, with tokio's timer.

use quanta::Instant;
use tokio::runtime::{Handle, Id};

use crate::clock::tokio::{TokioSleep, park_for};
use crate::clock::{Clock, Timer};
use crate::nanos::Nanos;

/// Reads the processor's time stamp counter where it is steady, else the operating system's monotonic clock.
///
/// A reading costs about 8 ns, a third of `std::time::Instant` (`benches/README.md` has the numbers). Waiting uses tokio's timer, so
/// `acquire().await` needs a tokio runtime with time enabled; `try_acquire` and `blocking_acquire` need none.
///
/// # Panics
///
/// Awaiting a permit that is not due at once panics outside of a tokio runtime.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that begins now.
    #[must_use]
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
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
        Nanos::from_duration(Instant::now().saturating_duration_since(self.start))
    }
}

impl Timer for SystemClock {
    type Sleep = TokioSleep<SystemClock>;
    type Domain = Id;

    fn domain(&self) -> Id {
        Handle::current().id()
    }

    fn sleep_until(&self, at: Nanos) -> TokioSleep<SystemClock> {
        TokioSleep::new(*self, at)
    }

    fn park_until(&self, at: Nanos) {
        park_for(at, self.now());
    }
}
