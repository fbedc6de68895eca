//! What is left to be done when a lock is gone.
//!
//! Wakers, sleeps, rings and guards run foreign code, which may take its time, come back here, or panic. So who holds a queue's lock collects them, and
//! they are called or dropped when it has let go.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;

use crate::clock::Timer;
use crate::wait::ring::{Ring, ring_all};

/// What is done when the lock is gone: on drop, so also if a caller's code panics meanwhile.
pub(crate) struct After<C: Timer> {
    pub(crate) wake: Vec<Waker>,
    pub(crate) discard: Vec<Waker>,
    pub(crate) sleeps: Vec<Pin<Box<C::Sleep>>>,
    /// Gates that have to look at their queues.
    pub(crate) rings: Vec<Arc<dyn Ring>>,
    /// What calls foreign code when it is dropped.
    pub(crate) drops: Vec<Box<dyn Any + Send>>,
    /// The first panic of foreign code, which goes on when everything is done.
    pub(crate) panic: Option<Box<dyn Any + Send>>,
}

impl<C: Timer> After<C> {
    pub(crate) fn new() -> Self {
        After {
            wake: Vec::new(),
            discard: Vec::new(),
            sleeps: Vec::new(),
            rings: Vec::new(),
            drops: Vec::new(),
            panic: None,
        }
    }
}

impl<C: Timer> Drop for After<C> {
    fn drop(&mut self) {
        for waker in self.wake.drain(..) {
            // One that panics must not take the wake-ups of the others with it.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                self.panic.get_or_insert(panic);
            }
        }
        for item in self.drops.drain(..) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(item))) {
                self.panic.get_or_insert(panic);
            }
        }
        let panic = ring_all(std::mem::take(&mut self.rings));
        self.panic = self.panic.take().or(panic);
        if let Some(panic) = self.panic.take()
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}
