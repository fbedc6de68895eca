//! The atomics and locks of leases, from std or from loom.

#[cfg(all(test, tidegate_loom))]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
#[cfg(not(all(test, tidegate_loom)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use std::sync::Arc;

/// A value that is replaced while threads read it. A reader takes no lock.
#[cfg(not(all(test, tidegate_loom)))]
#[derive(Debug)]
pub(crate) struct Swap<T>(arc_swap::ArcSwap<T>);

#[cfg(not(all(test, tidegate_loom)))]
impl<T> Swap<T> {
    pub(crate) fn new(value: T) -> Swap<T> {
        Swap(arc_swap::ArcSwap::from_pointee(value))
    }

    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<T>> {
        self.0.load()
    }

    pub(crate) fn store(&self, value: T) {
        self.0.store(Arc::new(value));
    }
}

/// A value that is replaced while threads read it, under a lock that loom knows.
#[cfg(all(test, tidegate_loom))]
#[derive(Debug)]
pub(crate) struct Swap<T>(Mutex<Arc<T>>);

#[cfg(all(test, tidegate_loom))]
impl<T> Swap<T> {
    pub(crate) fn new(value: T) -> Swap<T> {
        Swap(Mutex::new(Arc::new(value)))
    }

    /// In a box, because the guard of an `ArcSwap` also leads to its value in two steps.
    #[allow(clippy::redundant_allocation)]
    pub(crate) fn load(&self) -> Box<Arc<T>> {
        Box::new(self.0.lock().expect("no panic").clone())
    }

    pub(crate) fn store(&self, value: T) {
        *self.0.lock().expect("no panic") = Arc::new(value);
    }
}
