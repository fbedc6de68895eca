//! Clocks, which read the time and wait for a later time.
//!
//! | clock | reads | waits by | use it for |
//! |---|---|---|---|
//! | [`SystemClock`] | the processor's time stamp counter | tokio's timer; outside of tokio by a thread | the default |
//! | [`PreciseClock`] | the processor's time stamp counter | a thread for all limiters | permits released at their time, not at tokio's next millisecond |
#![cfg_attr(
    feature = "tokio",
    doc = "| [`TokioClock`] | tokio's clock, paused or not | tokio's timer | tests with paused time |"
)]
//! | [`ManualClock`] | the time that you set | your calls of `advance`, `jump` and `set` | tests and simulations |
//!
//! [`DefaultClock`] is [`SystemClock`], or `TokioClock` with the feature `test-util`.

mod event_loop;
mod manual;
mod precise;
mod system;
mod thread;
mod time_stamp;
mod timeout;
#[cfg(feature = "tokio")]
mod tokio;

pub use self::event_loop::{EventLoop, EventLoopSleep};
pub use self::manual::{ManualClock, ManualSleep};
pub use self::precise::PreciseClock;
pub use self::system::SystemClock;
pub use self::thread::ThreadSleep;
#[cfg(feature = "tokio")]
pub use self::tokio::TokioClock;

pub(crate) use self::timeout::timeout;

use std::fmt::Debug;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use crate::time::Nanos;

/// The clock of a limiter that was created without one: [`SystemClock`], or `TokioClock` with the
/// feature `test-util`.
#[cfg(not(feature = "test-util"))]
pub type DefaultClock = SystemClock;

/// The clock of a limiter that was created without one: [`TokioClock`], because the feature
/// `test-util` is on.
#[cfg(feature = "test-util")]
pub type DefaultClock = TokioClock;

/// Reads the time.
///
/// An implementation should never go back. If it does, limiters stay within their bounds: a period
/// of time that passes twice earns its permits once. There is one exception: if a grant of a bucket
/// or of `SmoothBursty` is undone while the clock shows an earlier time than at a later grant, it
/// may give back permits that had overflowed in between.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Returns the time since this clock's beginning.
    fn now(&self) -> Nanos;

    /// Returns the Unix time at this clock's beginning, as the wall clock showed it then.
    ///
    /// Policies that follow the wall clock are built on it. The default is zero, which means that
    /// this clock's time is Unix time.
    fn unix_time_at_zero(&self) -> Duration {
        Duration::ZERO
    }
}

/// Returns the Unix time by the wall clock, or zero if the wall clock is before 1970.
fn unix_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Parks for the time from `now` to `at`, measured by the operating system.
fn park_for(at: Nanos, now: Nanos) {
    if at == Nanos::MAX {
        std::thread::park();
    } else {
        std::thread::park_timeout(at.saturating_since(now).as_duration());
    }
}

/// A clock that can also wait.
///
/// A limiter waits with one [`Sleep`] per runtime, however many tasks wait for permits. Any call of
/// the limiter may poll the sleep, with a waker that hands out permits. So `wake` must not be
/// called while the timer holds a lock that polling, resetting or dropping a sleep takes. The
/// limiter holds a lock of its own while it reads the time and creates a sleep, so neither may wait
/// for code that calls the limiter.
pub trait Timer: Clock {
    /// The future of this timer, which is ready at a set time.
    type Sleep: Sleep;

    /// Identifies a runtime. Sleeps created in one runtime are woken by its threads.
    type RuntimeId: Copy + Debug + PartialEq + Send + 'static;

    /// Returns the runtime of the calling task. `None` means that there is no runtime, and that
    /// waiting for a permit here is an error.
    fn runtime(&self) -> Option<Self::RuntimeId>;

    /// Returns whether sleeps are woken without a runtime. If so, sleeps wake blocked threads as
    /// they wake tasks.
    fn wakes_threads(&self) -> bool {
        false
    }

    /// Creates a future that is ready at `at`, in the runtime of the calling task.
    ///
    /// # Panics
    ///
    /// May panic if [`runtime`](Timer::runtime) is `None`.
    fn sleep_until(&self, at: Nanos) -> Self::Sleep;

    /// Blocks the calling thread until `at`, or until the thread is unparked. It may return early
    /// without a reason.
    ///
    /// [`Nanos::MAX`] means to block until the thread is unparked.
    fn park_until(&self, at: Nanos);
}

/// A future that is ready at a set time. The time can be changed.
pub trait Sleep: Future<Output = ()> + Send + 'static {
    /// Sets another time. If the sleep was not yet ready, the waker of the last poll stays
    /// registered.
    fn reset(self: Pin<&mut Self>, at: Nanos);

    /// Returns whether this sleep will never be ready, because its runtime has ended.
    fn is_gone(&self) -> bool {
        false
    }
}
