//! Work that is deferred until the lock is released.
//!
//! Wakers, sleeps, rechecks and guards run user code, which may take its time, call the limiter, or
//! panic. So the lock holder of a queue collects them in a [`Deferred`], which calls or drops them
//! after the lock is released.
//!
//! A panic of user code is kept until all deferred work is done. It then resumes from the drop of
//! the `Deferred`, in the thread that held the lock: into the caller of the limiter or, if an alarm
//! fired, into the timer's thread. A later panic is leaked.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;

use crate::line::recheck::{Recheck, recheck_all};

/// The payload of a panic.
pub(crate) type Payload = Box<dyn Any + Send>;

/// Deferred work. It is done on drop, so even while a panic of user code unwinds.
pub(crate) struct Deferred {
    pub(crate) wake: Vec<Waker>,
    pub(crate) discard: Vec<Waker>,
    /// Limiters that must check their queues.
    pub(crate) rechecks: Vec<Arc<dyn Recheck>>,
    /// Sleeps, and other values that call user code on drop.
    pub(crate) drops: Vec<Pin<Box<dyn Send>>>,
    /// The first panic of user code, which resumes when all work is done.
    panic: Option<Payload>,
}

impl Deferred {
    pub(crate) fn new() -> Self {
        Deferred {
            wake: Vec::new(),
            discard: Vec::new(),
            rechecks: Vec::new(),
            drops: Vec::new(),
            panic: None,
        }
    }

    /// Returns whether there is no work, as after most calls.
    fn is_empty(&self) -> bool {
        let Deferred { wake, discard, rechecks, drops, panic } = self;
        wake.len() + discard.len() + rechecks.len() + drops.len() == 0 && panic.is_none()
    }

    /// Wakes the waiters that have their result by now. Called without a lock.
    pub(crate) fn wake_now(&mut self) {
        for waker in self.wake.drain(..) {
            run(&mut self.panic, || waker.wake());
        }
    }

    /// Runs user code. Keeps a panic, which resumes when all work is done.
    pub(crate) fn run<T>(&mut self, user_code: impl FnOnce() -> T) -> Option<T> {
        run(&mut self.panic, user_code)
    }

    /// Runs user code that may defer work itself. Keeps a panic like [`run`](Self::run).
    pub(crate) fn run_with<T>(&mut self, user_code: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let mut panic = None;
        let result = run(&mut panic, || user_code(self));
        if let Some(panic) = panic {
            keep(&mut self.panic, panic);
        }
        result
    }
}

/// Runs user code. Returns `None` if it panicked; the first panic is kept.
pub(crate) fn run<T>(first: &mut Option<Payload>, user_code: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(user_code)) {
        Ok(result) => Some(result),
        Err(panic) => {
            keep(first, panic);
            None
        }
    }
}

/// Drops values one by one, so that a panic does not leak the others; the first panic is kept.
pub(crate) fn drop_each<T>(first: &mut Option<Payload>, values: impl Iterator<Item = T>) {
    for value in values {
        run(first, || drop(value));
    }
}

/// Keeps the first panic. A later panic is leaked: dropping its payload is user code, which may
/// panic again.
pub(crate) fn keep(first: &mut Option<Payload>, panic: Payload) {
    match first {
        None => *first = Some(panic),
        Some(_) => std::mem::forget(panic),
    }
}

/// Runs work that may panic, and swallows a panic in a thread that is already unwinding: a second
/// panic would abort the process.
pub(crate) fn run_in_drop(work: impl FnOnce()) {
    if !std::thread::panicking() {
        return work();
    }
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        std::mem::forget(panic);
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if self.is_empty() {
            return;
        }
        // Each call is caught by itself, so that a waker that panics does not stop the others.
        self.wake_now();
        let Deferred { discard, rechecks, drops, panic, .. } = self;
        drop_each(panic, discard.drain(..));
        drop_each(panic, drops.drain(..));
        if let Some(first) = recheck_all(std::mem::take(rechecks)) {
            keep(panic, first);
        }
        resume_panic(panic.take());
    }
}

/// Resumes a kept panic. In a thread that is already unwinding the panic is leaked, because a
/// second panic would abort the process.
pub(crate) fn resume_panic(panic: Option<Payload>) {
    match panic {
        None => {}
        Some(panic) if std::thread::panicking() => std::mem::forget(panic),
        Some(panic) => resume_unwind(panic),
    }
}
