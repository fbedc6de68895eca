//! Whether a tokio runtime still runs, so that none of its sleeps is polled when it does not.
//!
//! tokio panics when a sleep is polled after its runtime's timer has been shut down, and cannot be asked beforehand. A waiter that was leaked,
//! or that belongs to another runtime, would meet that panic, which ends the process where panics abort.
//! But a runtime drops its tasks before it shuts its timer down. So each runtime in which a limiter sleeps has one task of ours, which only
//! waits. When it is dropped, the runtime is ending.
//!
//! A sleep is polled under the lock of `runs`, and the task's drop takes the same lock. So while a sleep is polled the drop has not
//! returned, and the timer is not shut down.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::runtime::{Handle, Id};

/// The runtimes in which limiters sleep, or slept. Each leaves when it ends.
static RUNTIMES: LazyLock<Mutex<HashMap<Id, Arc<Runtime>>>> = LazyLock::new(Mutex::default);

/// A runtime in which a limiter sleeps.
#[derive(Debug)]
pub(super) struct Runtime {
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
        let mut runtimes = lock(&RUNTIMES);
        // Where two threads came first at once, only one of them is there.
        if runtimes.get(&self.id).is_some_and(|runtime| Arc::ptr_eq(runtime, &self.runtime)) {
            runtimes.remove(&self.id);
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
        if let Some(runtime) = lock(&RUNTIMES).get(&id) {
            return runtime.clone();
        }
        let runtime = Arc::new(Runtime { runs: Mutex::new(true) });
        let ends = Ends { id, runtime: runtime.clone() };
        // Without a lock: a runtime that is ending drops the task here.
        drop(handle.spawn(async move {
            let _ends = ends;
            std::future::pending::<()>().await;
        }));
        let mut runtimes = lock(&RUNTIMES);
        if *lock(&runtime.runs) {
            return runtimes.entry(id).or_insert(runtime).clone();
        }
        runtime
    }
}

/// Locks, and goes on after a panic in another holder: there is nothing that could be left half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
