//! The default clock: the system's monotonic clock, with the timer of the caller's runtime.

use std::time::Duration;

use crate::clock::event_loop::{EventLoop, EventLoopSleep};
use crate::clock::time_stamp::TimeStamp;
use crate::clock::{Clock, Timer, park_for, unix_time};
use crate::time::Nanos;

/// Reads the processor's time stamp counter if it is steady, otherwise the operating system's
/// monotonic clock.
///
/// A reading costs about 8 ns, a third of `std::time::Instant` (`benches/README.md` has the
/// numbers).
///
/// In a tokio runtime, `acquire().await` waits with tokio's timer, which ticks in milliseconds.
/// Everywhere else it waits with the thread of [`PreciseClock`](crate::PreciseClock), so it works
/// in any executor. Without the feature `tokio` it always waits with that thread. A blocking call
/// parks its own thread.
///
/// # Panics
///
/// Awaiting a permit that is not due at once panics in a tokio runtime without a time driver.
#[derive(Clone, Debug)]
pub struct SystemClock {
    time_stamp: TimeStamp,
    unix_time: Duration,
}

impl SystemClock {
    /// Creates a clock that begins now.
    #[must_use]
    pub fn new() -> SystemClock {
        SystemClock { time_stamp: TimeStamp::new(), unix_time: unix_time() }
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
        self.time_stamp.now()
    }

    fn unix_time_at_zero(&self) -> Duration {
        self.unix_time
    }
}

impl Timer for SystemClock {
    type Sleep = EventLoopSleep<SystemClock>;
    type RuntimeId = EventLoop;

    fn runtime(&self) -> Option<EventLoop> {
        Some(EventLoop::current())
    }

    fn sleep_until(&self, at: Nanos) -> EventLoopSleep<SystemClock> {
        EventLoopSleep::new(self.clone(), at)
    }

    fn park_until(&self, at: Nanos) {
        park_for(at, self.now());
    }
}
