//! Tracks tokio runtimes: whether a runtime still runs, so that no sleep is polled after its end,
//! and what its time is, for threads outside of it.
//!
//! tokio panics if a sleep is polled after its runtime's timer was shut down, and has no call that
//! reports this beforehand. A waiter that was leaked, or that belongs to another runtime, would
//! meet that panic, which ends the process if panics abort. But a runtime drops its tasks before it
//! shuts down its timer. So this module spawns one task in each runtime in which a limiter sleeps.
//! The task only waits. When the task is dropped, the runtime is ending.
//!
//! A sleep is polled under the lock of `runs`, and the task's drop takes that lock too. So while a
//! sleep is polled, the drop has not returned and the timer is not shut down.
//!
//! tokio's paused time belongs to one runtime, and a thread outside of it sees real time. So a
//! clock remembers the runtime in which it was created, and a thread outside of any runtime reads
//! the time of that runtime. If a runtime's time differs from real time when it ends, its last time
//! is kept. The clock continues from that time at the pace of real time, so it does not go back.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant as RealInstant;

use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::time::Instant;

/// The runtimes in which limiters sleep or clocks were created. A runtime is removed when it ends,
/// unless its time differed from real time.
static RUNTIMES: LazyLock<Mutex<HashMap<Id, RuntimeState>>> = LazyLock::new(Mutex::default);

/// A runtime that runs, or the last time of a runtime that has ended.
enum RuntimeState {
    Running(Arc<Runtime>),
    /// The runtime's time was `last` when it ended, at `real`.
    Ended {
        last: Instant,
        real: RealInstant,
    },
}

/// A runtime in which a limiter sleeps, or a clock was created.
#[derive(Debug)]
pub(super) struct Runtime {
    handle: Handle,
    /// Set to false when the runtime drops its tasks.
    pub(super) runs: Mutex<bool>,
}

/// Held by the task in each runtime. Its drop marks the runtime as ending.
struct EndGuard {
    id: Id,
    runtime: Arc<Runtime>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        *lock(&self.runtime.runs) = false;
        let last = own_time(&self.runtime.handle);
        let mut runtimes = lock(&RUNTIMES);
        // If two threads registered this runtime at once, only one entry was kept, which may be the
        // other one.
        let known = match runtimes.get(&self.id) {
            Some(RuntimeState::Running(runtime)) => Arc::ptr_eq(runtime, &self.runtime),
            Some(RuntimeState::Ended { .. }) | None => false,
        };
        if known {
            match last {
                Some(last) => {
                    runtimes.insert(self.id, RuntimeState::Ended { last, real: RealInstant::now() });
                }
                None => {
                    runtimes.remove(&self.id);
                }
            }
        }
    }
}

impl Runtime {
    /// Returns the runtime of the calling thread.
    ///
    /// # Panics
    ///
    /// Panics outside of a runtime, as tokio does.
    pub(super) fn current() -> Arc<Runtime> {
        let handle = Handle::current();
        let id = handle.id();
        if let Some(RuntimeState::Running(runtime)) = lock(&RUNTIMES).get(&id) {
            return runtime.clone();
        }
        let runtime = Arc::new(Runtime { handle: handle.clone(), runs: Mutex::new(true) });
        let ends = EndGuard { id, runtime: runtime.clone() };
        // No lock is held: a runtime that is ending drops the task here, and the drop takes both
        // locks.
        drop(handle.spawn(async move {
            let _ends = ends;
            std::future::pending::<()>().await;
        }));
        let mut runtimes = lock(&RUNTIMES);
        // Checked under the lock of `RUNTIMES`: a runtime that ends after this removes its entry.
        if *lock(&runtime.runs) {
            if let Some(RuntimeState::Running(first)) = runtimes.get(&id) {
                return first.clone();
            }
            runtimes.insert(id, RuntimeState::Running(runtime.clone()));
        }
        runtime
    }
}

impl Runtime {
    /// Returns the time of this runtime, in any thread.
    pub(super) fn now(&self) -> Instant {
        // tokio can pause the time of current-thread runtimes only.
        let can_be_paused = self.handle.runtime_flavor() == RuntimeFlavor::CurrentThread;
        let _inside = (can_be_paused && can_enter()).then(|| self.handle.enter());
        Instant::now()
    }
}

/// Returns the calling thread's runtime, if its time can be paused.
pub(super) fn home() -> Option<Id> {
    let handle = Handle::try_current().ok()?;
    // tokio can pause the time of current-thread runtimes only.
    (handle.runtime_flavor() == RuntimeFlavor::CurrentThread).then(|| {
        Runtime::current();
        handle.id()
    })
}

/// Returns the time of the runtime `home`, for a thread outside of any runtime.
pub(super) fn time_of(home: Id) -> Instant {
    let handle = match lock(&RUNTIMES).get(&home) {
        Some(RuntimeState::Running(runtime)) => runtime.handle.clone(),
        Some(RuntimeState::Ended { last, real }) => return *last + real.elapsed(),
        None => return Instant::from_std(RealInstant::now()),
    };
    let _inside = handle.enter();
    Instant::now()
}

/// Returns the handle of the calling thread's runtime. Outside of any runtime, returns the handle
/// of `home` while that runtime runs.
pub(super) fn current_or(home: Option<Id>) -> Option<Handle> {
    Handle::try_current().ok().or_else(|| match lock(&RUNTIMES).get(&home?) {
        Some(RuntimeState::Running(runtime)) => Some(runtime.handle.clone()),
        Some(RuntimeState::Ended { .. }) | None => None,
    })
}

/// Returns the time of a runtime, if it differs from real time because the runtime's time is or was
/// paused.
pub(super) fn own_time(handle: &Handle) -> Option<Instant> {
    if !can_enter() {
        return None;
    }
    let _inside = handle.enter();
    let before = RealInstant::now();
    let time = Instant::now();
    let real = before..=RealInstant::now();
    (!real.contains(&time.into_std())).then_some(time)
}

/// Returns whether this thread can enter a runtime. It cannot when its thread-locals are destroyed.
fn can_enter() -> bool {
    !Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}

/// Locks, and ignores poisoning: no section under these locks leaves its data half changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
