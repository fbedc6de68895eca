//! A clock that waits with a thread of its own, in any executor.

use std::time::Duration;

use crate::clock::thread::ThreadSleep;
use crate::clock::{Clock, SystemClock, Timer};
use crate::time::Nanos;

/// Reads the time like [`SystemClock`], and always waits with a thread of its own.
///
/// All limiters of the process share one thread. It starts when a permit is awaited for the first
/// time, and is parked until the next permit of any limiter is due. It works in any executor: smol,
/// the `block_on` of futures, tokio.
///
/// tokio's timer ticks in milliseconds, so with it permits are released up to 2 ms late, and many
/// at once. With this clock each permit is released at its time, to some 10 us at the median, if a
/// processor is free. The thread wakes up 11,000 times per second at most. At higher rates the
/// permits of 90 us are therefore released at once.
///
/// Each release wakes the thread, and the thread wakes the task, so it costs more processor time
/// than tokio's timer. The average rate is exact with either. `benches/README.md` has a table.
///
/// # Executors that block
///
/// The thread calls the wakers of all tasks. A waker that blocks delays every limiter that waits
/// with this thread. If a waker panics, the panic hook reports it, and the thread continues.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{PreciseClock, Rate, RateLimiter, SmoothBursty};
///
/// let policy = SmoothBursty::new(Rate::per_second(10_000));
/// let limiter = RateLimiter::with_clock(policy, PreciseClock::new());
/// futures_executor::block_on(limiter.acquire())?;
/// let grant = futures_executor::block_on(limiter.acquire())?;
/// assert!(grant.waited() < Duration::from_secs(1));
/// # Ok::<(), tidegate::Refusal>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PreciseClock(SystemClock);

impl PreciseClock {
    /// Creates a clock that begins now.
    #[must_use]
    pub fn new() -> PreciseClock {
        PreciseClock(SystemClock::new())
    }
}

impl Clock for PreciseClock {
    #[inline]
    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn unix_time_at_zero(&self) -> Duration {
        self.0.unix_time_at_zero()
    }
}

impl Timer for PreciseClock {
    type Sleep = ThreadSleep<PreciseClock>;
    type RuntimeId = ();

    fn runtime(&self) -> Option<()> {
        Some(())
    }

    fn sleep_until(&self, at: Nanos) -> ThreadSleep<PreciseClock> {
        ThreadSleep::new(self.clone(), at)
    }

    /// Parks the calling thread itself: it wakes up no later than it would through another thread.
    fn park_until(&self, at: Nanos) {
        self.0.park_until(at);
    }
}
