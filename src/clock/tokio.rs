//! A clock and a sleep on tokio's time.

mod runtime;
mod unpark;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::task::coop;
use tokio::time::Instant;

use crate::clock::event_loop::{EventLoop, EventLoopSleep};
use crate::clock::tokio::runtime::{Runtime, lock};
use crate::clock::tokio::unpark::Unpark;
use crate::clock::{Clock, Sleep, Timer, park_for, unix_time};
use crate::time::Nanos;

/// tokio's timer ticks in milliseconds.
const TICK: Nanos = Nanos::new(1_000_000);

/// Reads tokio's clock, which tests can pause and advance.
///
/// With the feature `test-util` this is the clock of every limiter created without one, so that
/// `#[tokio::test(start_paused = true)]` works. Without the feature, pass it to
/// [`RateLimiter::with_clock`](crate::RateLimiter::with_clock). A reading costs about three times
/// as much as one of the system clock.
///
/// tokio's paused time moves in whole milliseconds.
///
/// Paused time belongs to one runtime. A call inside a runtime sees the time of that runtime. A
/// call on a thread outside of any runtime sees the time of the runtime in which the clock was
/// created. So `advance` serves blocking calls as it serves tasks. An idle runtime advances by
/// itself to the time at which a blocking call of a [`std::thread`] is due. It does not do so while
/// a task of [`spawn_blocking`](tokio::task::spawn_blocking) runs: a blocking call in such a task
/// waits for ever, unless the test
/// [advances](https://docs.rs/tokio/latest/tokio/time/fn.advance.html) the time.
///
/// A clock that was created outside of any runtime shows real time to a thread outside of any
/// runtime. Under paused time, create the limiter inside the runtime, or let the thread enter the
/// runtime with [`Handle::enter`]. A blocking call on the runtime's own thread stops the runtime,
/// and paused time with it: use a [`std::thread`], and await its end through a channel, as below.
///
/// When its runtime has ended, the clock continues at the pace of real time. Pause time before a
/// thread blocks. A thread that is already blocked wakes after the real time it had left, and reads
/// the clock again.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Rate, RateLimiter, SmoothBursty, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tidegate::Refusal> {
/// let policy = SmoothBursty::new(Rate::per_second(5));
/// let limiter = RateLimiter::with_clock(policy, TokioClock::new());
/// assert_eq!(limiter.acquire().await?.waited(), Duration::ZERO);
/// assert_eq!(limiter.acquire().await?.waited(), Duration::from_millis(200));
/// # Ok(())
/// # }
/// ```
///
/// A thread that blocks for an hour of paused time, which passes at once:
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Rate, RateLimiter, SmoothBursty, TokioClock};
/// use tokio::sync::oneshot;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = SmoothBursty::new(Rate::per_hour(1));
/// let limiter = RateLimiter::with_clock(policy, TokioClock::new());
/// limiter.try_acquire()?;
/// let (done, is_done) = oneshot::channel();
/// std::thread::spawn(move || done.send(limiter.blocking_acquire()));
/// // The runtime is idle in this `await`, so paused time goes on.
/// assert_eq!(is_done.await??.waited(), Duration::from_secs(3600));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    start: Instant,
    unix_time: Duration,
    /// The runtime in which this clock was created, if that runtime's time can be paused. It is an
    /// id and not a handle, so that the clock is `Copy`.
    home: Option<Id>,
}

impl TokioClock {
    /// Creates a clock that begins now.
    #[must_use]
    pub fn new() -> TokioClock {
        TokioClock { start: Instant::now(), unix_time: unix_time(), home: runtime::home() }
    }
}

impl Default for TokioClock {
    fn default() -> TokioClock {
        TokioClock::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Nanos {
        let time = match self.home {
            Some(home) if Handle::try_current().is_err_and(|error| error.is_missing_context()) => {
                runtime::time_of(home)
            }
            Some(_) | None => Instant::now(),
        };
        Nanos::from_duration(time.saturating_duration_since(self.start))
    }

    fn unix_time_at_zero(&self) -> Duration {
        self.unix_time
    }
}

impl Timer for TokioClock {
    type Sleep = EventLoopSleep<TokioClock>;
    type RuntimeId = EventLoop;

    fn runtime(&self) -> Option<EventLoop> {
        Some(EventLoop::of(self.runtime().as_ref()))
    }

    fn sleep_until(&self, at: Nanos) -> EventLoopSleep<TokioClock> {
        match self.runtime() {
            Some(runtime) => EventLoopSleep::by_tokio(&runtime, *self, at),
            None => EventLoopSleep::by_thread(*self, at),
        }
    }

    fn park_until(&self, at: Nanos) {
        let now = self.now();
        match self.unpark_at(at) {
            // A limit in real time as well, because the calling thread may be the runtime's own.
            // The limit is at least one tick of tokio's timer, or the thread would spin while time
            // is paused.
            Some(_unpark) => park_for(at.max(now.saturating_add(TICK)), now),
            None => park_for(at, now),
        }
    }
}

impl TokioClock {
    /// Returns the runtime whose timer serves the calling task: the task's own runtime. Outside of
    /// any runtime, it is the runtime whose time this clock reads, if that is not real time.
    fn runtime(&self) -> Option<Handle> {
        let home = || runtime::current_or(self.home).filter(|home| runtime::own_time(home).is_some());
        Handle::try_current().ok().or_else(home)
    }

    /// Arranges for the calling thread to be unparked at `at`, if the time of its runtime is not
    /// real time.
    fn unpark_at(&self, at: Nanos) -> Option<Unpark> {
        if at == Nanos::MAX {
            return None;
        }
        let runtime = runtime::current_or(self.home)?;
        runtime::own_time(&runtime)?;
        Some(Unpark::new(&runtime, self.start.checked_add(at.as_duration())?))
    }
}

/// The [`Sleep`] of clocks that wait with tokio's timer.
#[derive(Debug)]
pub(super) struct TokioSleep<C> {
    clock: C,
    runtime: Arc<Runtime>,
    /// Boxed so that this future is `Unpin`. There is one per runtime, not one per waiter.
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl<C: Clock> TokioSleep<C> {
    /// Creates a sleep until `clock` reads `at`.
    ///
    /// # Panics
    ///
    /// Panics if the runtime has no time driver.
    pub(super) fn new(runtime: &Handle, clock: C, at: Nanos) -> TokioSleep<C> {
        let _inside = runtime.enter();
        let runtime = Runtime::current();
        let sleep = Box::pin(tokio::time::sleep_until(deadline(&runtime, &clock, at)));
        TokioSleep { clock, runtime, sleep }
    }
}

/// Returns the instant, in the time of `runtime`, at which `clock` will read `at`.
fn deadline(runtime: &Runtime, clock: &impl Clock, at: Nanos) -> Instant {
    // tokio uses 30 years for "far in the future".
    let far = Nanos::from_duration(Duration::from_secs(30 * 365 * 86_400));
    runtime.now() + at.saturating_since(clock.now()).min(far).as_duration()
}

impl<C: Clock + Unpin> Future for TokioSleep<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let TokioSleep { runtime, sleep, .. } = &mut *self;
        let runs = lock(&runtime.runs);
        if !*runs {
            return Poll::Pending;
        }
        // The cooperative budget does not apply: a task that has used up its budget must still arm
        // the alarm for all waiters.
        let mut unlimited = std::pin::pin!(coop::unconstrained(sleep.as_mut()));
        let poll = unlimited.as_mut().poll(context);
        // Held until here: while the sleep is polled, the runtime's timer cannot be shut down.
        drop(runs);
        poll
    }
}

impl<C: Clock + Unpin> Sleep for TokioSleep<C> {
    fn reset(mut self: Pin<&mut Self>, at: Nanos) {
        let deadline = deadline(&self.runtime, &self.clock, at);
        // tokio allows this after the runtime has ended: then the sleep ends at once.
        self.sleep.as_mut().reset(deadline);
    }

    fn is_gone(&self) -> bool {
        !*lock(&self.runtime.runs)
    }
}
