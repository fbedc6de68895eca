//! Chooses between the standard atomics, locks and threads and loom's, for the whole crate.

#[cfg(all(test, tidegate_loom))]
pub(crate) use loom::hint::spin_loop;
#[cfg(all(test, tidegate_loom))]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(all(test, tidegate_loom))]
pub(crate) use loom::thread::{Thread, current as current_thread, park};
#[cfg(all(test, tidegate_loom))]
pub(crate) use loom::thread_local;
#[cfg(all(test, tidegate_loom))]
pub(crate) use twin::{AtomicU128, Swap};

#[cfg(not(all(test, tidegate_loom)))]
pub(crate) use portable_atomic::AtomicU128;
#[cfg(not(all(test, tidegate_loom)))]
pub(crate) use std::hint::spin_loop;
#[cfg(all(feature = "config", not(all(test, tidegate_loom))))]
pub(crate) use std::sync::atomic::fence;
#[cfg(not(all(test, tidegate_loom)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(all(test, tidegate_loom)))]
pub(crate) use std::thread::{Thread, current as current_thread, park};
#[cfg(not(all(test, tidegate_loom)))]
pub(crate) use std::thread_local;

use std::sync::{Arc, TryLockError};
use std::task::{Wake, Waker};

/// A cell for a value that is replaced while threads read it. It is empty at first. A reader takes
/// no lock.
#[cfg(all(feature = "config", not(all(test, tidegate_loom))))]
#[derive(Debug)]
pub(crate) struct Swap<T>(arc_swap::ArcSwapOption<T>);

#[cfg(all(feature = "config", not(all(test, tidegate_loom))))]
impl<T> Swap<T> {
    pub(crate) fn empty() -> Self {
        Swap(arc_swap::ArcSwapOption::empty())
    }

    /// Calls `inspect` with the value. It sees all that was written before the value was stored.
    pub(crate) fn with<R>(&self, inspect: impl FnOnce(Option<&Arc<T>>) -> R) -> R {
        inspect(self.0.load().as_ref())
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        self.0.store(Some(value));
    }
}

/// How many times a thread retries: for a step that another thread is about to finish, or after a
/// race that it lost. The standard library's mutex spins as many times before it sleeps.
pub(crate) const MAX_RETRIES: u32 = if cfg!(all(test, tidegate_loom)) { 1 } else { 100 };

/// Locks, and ignores poisoning: every section leaves its data consistent at each point where user
/// code could unwind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks if the lock is free. Ignores poisoning, like [`lock`].
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Wakes a parked thread.
pub(crate) struct Unpark(Thread);

impl Unpark {
    /// Returns a waker of the calling thread.
    pub(crate) fn waker() -> Waker {
        Waker::from(Arc::new(Unpark(current_thread())))
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The reader-writer lock of a shard.
#[cfg(all(feature = "keyed", not(all(test, tidegate_loom))))]
pub(crate) use crossbeam_utils::sync::{
    ShardedLock as ShardLock, ShardedLockReadGuard, ShardedLockWriteGuard,
};
#[cfg(all(feature = "keyed", test, tidegate_loom))]
pub(crate) use loom::sync::{
    RwLock as ShardLock, RwLockReadGuard as ShardedLockReadGuard, RwLockWriteGuard as ShardedLockWriteGuard,
};

/// Locks for reading. Ignores poisoning, like [`lock`].
#[cfg(feature = "keyed")]
#[inline]
pub(crate) fn read<T>(lock: &ShardLock<T>) -> ShardedLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks for writing. Ignores poisoning, like [`lock`].
#[cfg(feature = "keyed")]
pub(crate) fn write<T>(lock: &ShardLock<T>) -> ShardedLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(all(test, tidegate_loom))]
mod twin {
    use std::sync::Arc;

    use super::Ordering;

    /// Stands in for `ArcSwapOption`, whose operations loom cannot see.
    #[derive(Debug)]
    pub(crate) struct Swap<T>(loom::sync::Mutex<Option<Arc<T>>>);

    impl<T> Swap<T> {
        pub(crate) fn empty() -> Self {
            Swap(loom::sync::Mutex::new(None))
        }

        pub(crate) fn with<R>(&self, inspect: impl FnOnce(Option<&Arc<T>>) -> R) -> R {
            let value = super::lock(&self.0).clone();
            inspect(value.as_ref())
        }

        pub(crate) fn store(&self, value: Arc<T>) {
            *super::lock(&self.0) = Some(value);
        }
    }

    /// Stands in for the 128-bit atomic, which loom does not have. A mutex around the value
    /// explores every interleaving of loads and CASes. It does not show what a relaxed ordering
    /// permits for other memory; see `loom-tests/README.md`.
    #[derive(Debug)]
    pub(crate) struct AtomicU128(loom::sync::Mutex<u128>);

    impl AtomicU128 {
        pub(crate) fn new(value: u128) -> Self {
            AtomicU128(loom::sync::Mutex::new(value))
        }

        pub(crate) fn load(&self, _: Ordering) -> u128 {
            *super::lock(&self.0)
        }

        pub(crate) fn store(&self, value: u128, _: Ordering) {
            *super::lock(&self.0) = value;
        }

        pub(crate) fn compare_exchange_weak(
            &self,
            current: u128,
            new: u128,
            _: Ordering,
            _: Ordering,
        ) -> Result<u128, u128> {
            let mut value = super::lock(&self.0);
            if *value == current {
                *value = new;
                Ok(current)
            } else {
                Err(*value)
            }
        }
    }
}
