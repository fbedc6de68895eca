//! Clocks: what time it is, and how to wait for a later one.
//!
//! | clock | tells | waits with | use it for |
//! |---|---|---|---|
//! | [`SystemClock`] | the processor's time stamp counter | tokio's timer | the default |
//! | [`TokioClock`] | tokio's clock, paused or not | tokio's timer | tests with paused time |
//! | [`ManualClock`] | what you set | whoever advances it | tests and simulations |
//!
//! [`DefaultClock`] is [`SystemClock`], or [`TokioClock`] with the feature `test-util`.

mod manual;
mod system;
mod tokio;

pub use self::manual::{ManualClock, ManualSleep};
pub use self::system::SystemClock;
pub use self::tokio::{TokioClock, TokioSleep};

use std::fmt::Debug;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use crate::time::Nanos;

/// The clock of a limiter that was made without one.
#[cfg(not(feature = "test-util"))]
pub type DefaultClock = SystemClock;

/// The clock of a limiter that was made without one.
#[cfg(feature = "test-util")]
pub type DefaultClock = TokioClock;

/// Tells the time.
///
/// An implementation should never go back. If it does, limiters stay within their bounds: time that
/// is told twice earns permits once.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The time since this clock's beginning.
    fn now(&self) -> Nanos;

    /// The Unix time at this clock's beginning, as the wall clock told then.
    ///
    /// Schedules that follow the wall clock are built on it. The default is zero: this clock's time
    /// is Unix time.
    fn unix_time_at_zero(&self) -> Duration {
        Duration::ZERO
    }
}

/// The Unix time by the wall clock; zero if it stands before 1970.
fn unix_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// A clock that can also wait.
///
/// A limiter waits with one [`Sleep`] per event loop, however many tasks wait for permits. It polls
/// the sleep from wherever it is called, with a waker that does the work of handing out permits. So
/// `wake` must not be called while the timer holds a lock that polling, resetting or dropping a
/// sleep would take. The limiter holds a lock of its own when it asks for the time and makes a
/// sleep, so neither may wait for code that calls the limiter.
pub trait Timer: Clock {
    /// A future that is ready at a set time.
    type Sleep: Sleep;

    /// Names an event loop. Sleeps made in the same one are woken by the same thread or threads.
    type RuntimeId: Copy + Debug + PartialEq + Send + 'static;

    /// The event loop of the calling task; `None` where there is none, and waiting for a permit is
    /// a mistake.
    fn domain(&self) -> Option<Self::RuntimeId>;

    /// Whether sleeps are woken without an event loop. Then blocked threads rely on them as tasks
    /// do.
    fn rings_anywhere(&self) -> bool {
        false
    }

    /// Makes a future that is ready at `at`, in the event loop of the calling task.
    ///
    /// # Panics
    ///
    /// May panic where [`domain`](Timer::domain) is `None`.
    fn sleep_until(&self, at: Nanos) -> Self::Sleep;

    /// Blocks the calling thread until `at`, or until the thread is unparked. It may return early
    /// for no reason.
    ///
    /// [`Nanos::MAX`] means until unparked.
    fn park_until(&self, at: Nanos);
}

/// A future that is ready at a set time, and can be set anew.
pub trait Sleep: Future<Output = ()> + Send + 'static {
    /// Sets another time. Before it was ready, the waker of the last poll stays registered.
    fn reset(self: Pin<&mut Self>, at: Nanos);

    /// Whether it will never be ready, because its event loop is gone.
    fn is_gone(&self) -> bool {
        false
    }
}
