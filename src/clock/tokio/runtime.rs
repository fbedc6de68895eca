//! Whether a tokio runtime still runs, so that none of its sleeps is polled when it does not; and
//! what time it has, for threads outside of it.
//!
//! tokio panics when a sleep is polled after its runtime's timer has been shut down, and cannot be
//! asked beforehand. A waiter that was leaked, or that belongs to another runtime, would meet that
//! panic, which ends the process where panics abort. But a runtime drops its tasks before it shuts
//! its timer down. So each runtime in which a limiter sleeps has one task of ours, which only
//! waits. When it is dropped, the runtime is ending.
//!
//! A sleep is polled under the lock of `runs`, and the task's drop takes the same lock. So while a
//! sleep is polled the drop has not returned, and the timer is not shut down.
//!
//! tokio's paused time belongs to one runtime, and a thread outside of it sees real time. So a
//! clock remembers the runtime in which it was made, and a thread outside of any runtime reads the
//! time there. A runtime whose time had left real time behind leaves its last time when it ends.
//! The clock goes on from that time at the pace of real time, so it does not go back.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant as RealInstant;

use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::time::Instant;

/// The runtimes in which limiters sleep or clocks were made. A runtime leaves when it ends, unless
/// its time was not real time.
static RUNTIMES: LazyLock<Mutex<HashMap<Id, Known>>> = LazyLock::new(Mutex::default);

/// What is known of a runtime.
enum Known {
    Runs(Arc<Runtime>),
    /// Its time was `last` when it ended, at `real`.
    Ended {
        last: Instant,
        real: RealInstant,
    },
}

/// A runtime in which a limiter sleeps, or a clock was made.
#[derive(Debug)]
pub(super) struct Runtime {
    handle: Handle,
    /// False from when it drops its tasks.
    pub(super) runs: Mutex<bool>,
}

/// What the task of ours holds.
struct Ends {
    id: Id,
    runtime: Arc<Runtime>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        *lock(&self.runtime.runs) = false;
        let last = own_time(&self.runtime.handle);
        let mut runtimes = lock(&RUNTIMES);
        // Where two threads came first at once, only one of them is there.
        let known = match runtimes.get(&self.id) {
            Some(Known::Runs(runtime)) => Arc::ptr_eq(runtime, &self.runtime),
            Some(Known::Ended { .. }) | None => false,
        };
        if known {
            match last {
                Some(last) => {
                    runtimes.insert(self.id, Known::Ended { last, real: RealInstant::now() });
                }
                None => {
                    runtimes.remove(&self.id);
                }
            }
        }
    }
}

impl Runtime {
    /// The runtime of the calling thread.
    ///
    /// # Panics
    ///
    /// Where there is none, as tokio does.
    pub(super) fn current() -> Arc<Runtime> {
        let handle = Handle::current();
        let id = handle.id();
        if let Some(Known::Runs(runtime)) = lock(&RUNTIMES).get(&id) {
            return runtime.clone();
        }
        let runtime = Arc::new(Runtime { handle: handle.clone(), runs: Mutex::new(true) });
        let ends = Ends { id, runtime: runtime.clone() };
        // Without a lock: a runtime that is ending drops the task here.
        drop(handle.spawn(async move {
            let _ends = ends;
            std::future::pending::<()>().await;
        }));
        let mut runtimes = lock(&RUNTIMES);
        if *lock(&runtime.runs) {
            if let Some(Known::Runs(first)) = runtimes.get(&id) {
                return first.clone();
            }
            runtimes.insert(id, Known::Runs(runtime.clone()));
        }
        runtime
    }
}

/// The calling thread's runtime, if its time can be paused.
pub(super) fn home() -> Option<Id> {
    let handle = Handle::try_current().ok()?;
    // tokio pauses the time of no other.
    (handle.runtime_flavor() == RuntimeFlavor::CurrentThread).then(|| {
        Runtime::current();
        handle.id()
    })
}

/// The time of the runtime `home`, for a thread outside of any runtime.
pub(super) fn time_of(home: Id) -> Instant {
    let handle = match lock(&RUNTIMES).get(&home) {
        Some(Known::Runs(runtime)) => runtime.handle.clone(),
        Some(Known::Ended { last, real }) => return *last + real.elapsed(),
        None => return Instant::from_std(RealInstant::now()),
    };
    let _inside = handle.enter();
    Instant::now()
}

/// The handle of the calling thread's runtime; outside of any runtime, that of `home` while it
/// runs.
pub(super) fn current_or(home: Option<Id>) -> Option<Handle> {
    Handle::try_current().ok().or_else(|| match lock(&RUNTIMES).get(&home?) {
        Some(Known::Runs(runtime)) => Some(runtime.handle.clone()),
        Some(Known::Ended { .. }) | None => None,
    })
}

/// The time of a runtime, if it is not real time: it is paused, or was.
pub(super) fn own_time(handle: &Handle) -> Option<Instant> {
    // Where this thread's locals are gone, no runtime can be entered.
    if Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed()) {
        return None;
    }
    let _inside = handle.enter();
    let before = RealInstant::now();
    let time = Instant::now();
    let real = before..=RealInstant::now();
    (!real.contains(&time.into_std())).then_some(time)
}

/// Locks, and goes on after a panic in another holder: there is nothing that could be left half
/// done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
