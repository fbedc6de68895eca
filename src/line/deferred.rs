//! Work that is deferred until the lock is released.
//!
//! Wakers, sleeps, rings and guards run foreign code, which may take its time, call the limiter, or
//! panic. So the holder of a line's lock collects them in a [`Deferred`], which calls or drops them
//! after the lock is released.
//!
//! A panic of foreign code is kept until all deferred work is done. It then goes on from the drop
//! of the `Deferred`, in the thread that held the lock: into the caller of the limiter, or, where
//! an alarm rang, into the timer's thread. A later panic is leaked.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;

use crate::line::recheck::{Recheck, recheck_all};

/// What a panic carries.
pub(crate) type Payload = Box<dyn Any + Send>;

/// Deferred work. It is done on drop, so also while a panic of foreign code unwinds.
pub(crate) struct Deferred {
    pub(crate) wake: Vec<Waker>,
    pub(crate) discard: Vec<Waker>,
    /// Limiters that have to look at their lines.
    pub(crate) rechecks: Vec<Arc<dyn Recheck>>,
    /// Sleeps, and other values that call foreign code on drop.
    pub(crate) drops: Vec<Pin<Box<dyn Send>>>,
    /// The first panic of foreign code, which goes on when all work is done.
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

    /// Whether there is nothing to do: so it is after most calls.
    fn is_empty(&self) -> bool {
        let Deferred { wake, discard, rechecks, drops, panic } = self;
        wake.len() + discard.len() + rechecks.len() + drops.len() == 0 && panic.is_none()
    }

    /// Wakes the waiters that have their answer by now. Called without a lock.
    pub(crate) fn wake_now(&mut self) {
        for waker in self.wake.drain(..) {
            run(&mut self.panic, || waker.wake());
        }
    }

    /// Runs foreign code. Keeps a panic, which goes on when all work is done.
    pub(crate) fn run<T>(&mut self, foreign: impl FnOnce() -> T) -> Option<T> {
        run(&mut self.panic, foreign)
    }

    /// Runs foreign code that may defer work itself. Keeps a panic as [`run`](Self::run) does.
    pub(crate) fn run_with<T>(&mut self, foreign: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let mut panic = None;
        let result = run(&mut panic, || foreign(self));
        if let Some(panic) = panic {
            keep(&mut self.panic, panic);
        }
        result
    }
}

/// Runs foreign code. Returns `None` if it panicked; the first panic is kept.
pub(crate) fn run<T>(first: &mut Option<Payload>, foreign: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(foreign)) {
        Ok(result) => Some(result),
        Err(panic) => {
            keep(first, panic);
            None
        }
    }
}

/// Keeps the first panic. Another one is leaked: dropping what it carries is foreign code, which
/// may panic again.
fn keep(first: &mut Option<Payload>, panic: Payload) {
    match first {
        None => *first = Some(panic),
        Some(_) => std::mem::forget(panic),
    }
}

/// Runs what may panic, and swallows a panic in a thread that is unwinding already: a second one
/// would end the process.
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
        for waker in discard.drain(..) {
            run(panic, || drop(waker));
        }
        for item in drops.drain(..) {
            run(panic, || drop(item));
        }
        if let Some(first) = recheck_all(std::mem::take(rechecks)) {
            keep(panic, first);
        }
        go_on(panic.take());
    }
}

/// Lets a kept panic go on. In a thread that is unwinding already it is leaked, since a second
/// panic would end the process.
pub(crate) fn go_on(panic: Option<Payload>) {
    match panic {
        None => {}
        Some(panic) if std::thread::panicking() => std::mem::forget(panic),
        Some(panic) => resume_unwind(panic),
    }
}
