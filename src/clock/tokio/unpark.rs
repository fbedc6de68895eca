//! Unparks a thread at a time of a runtime that has a time of its own.

use std::thread::Thread;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// A task that unparks the thread that created it. Dropping this value ends the task.
#[derive(Debug)]
pub(super) struct Unpark(JoinHandle<()>);

/// Unparks a thread in its drop, so the thread is unparked even if the runtime drops the task.
struct UnparkOnDrop(Thread);

impl Drop for UnparkOnDrop {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

impl Unpark {
    /// Unparks the calling thread at `at`, or when the runtime ends. The thread then reads the time
    /// again.
    pub(super) fn new(runtime: &Handle, at: Instant) -> Unpark {
        let thread = UnparkOnDrop(std::thread::current());
        Unpark(runtime.spawn(async move {
            let _thread = thread;
            sleep_until(at).await;
        }))
    }
}

impl Drop for Unpark {
    fn drop(&mut self) {
        self.0.abort();
    }
}
