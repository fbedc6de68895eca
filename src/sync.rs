//! The one place that chooses between the real atomics and locks and loom's.

#[cfg(all(test, tidegate_loom))]
pub(crate) use loom::hint::spin_loop;
#[cfg(all(test, tidegate_loom))]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(all(test, tidegate_loom))]
pub(crate) use loom::thread::{Thread, current as current_thread};
#[cfg(all(test, tidegate_loom))]
pub(crate) use loom::thread_local;
#[cfg(all(test, tidegate_loom))]
pub(crate) use twin::AtomicU128;

#[cfg(not(all(test, tidegate_loom)))]
pub(crate) use portable_atomic::AtomicU128;
#[cfg(not(all(test, tidegate_loom)))]
pub(crate) use std::hint::spin_loop;
#[cfg(not(all(test, tidegate_loom)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(all(test, tidegate_loom)))]
pub(crate) use std::thread::{Thread, current as current_thread};
#[cfg(not(all(test, tidegate_loom)))]
pub(crate) use std::thread_local;

use std::sync::TryLockError;

/// How often to look again for what somebody else is about to finish: as often as a mutex of the
/// standard library, before it sleeps.
pub(crate) const LOOKS: u32 = if cfg!(all(test, tidegate_loom)) { 1 } else { 100 };

/// Locks, and goes on after a panic in another holder: every section leaves its data whole at each
/// point where foreign code could unwind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks if that needs no waiting. Goes on after a panic in another holder, as [`lock`] does.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The lock of a shard: many look at the same time, one changes.
#[cfg(all(feature = "keyed", not(all(test, tidegate_loom))))]
pub(crate) use crossbeam_utils::sync::{
    ShardedLock as ShardLock, ShardedLockReadGuard, ShardedLockWriteGuard,
};
#[cfg(all(feature = "keyed", test, tidegate_loom))]
pub(crate) use loom::sync::{
    RwLock as ShardLock, RwLockReadGuard as ShardedLockReadGuard, RwLockWriteGuard as ShardedLockWriteGuard,
};

/// Locks for looking. Goes on after a panic in another holder, as [`lock`] does.
#[cfg(feature = "keyed")]
#[inline]
pub(crate) fn read<T>(lock: &ShardLock<T>) -> ShardedLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks for changing. Goes on after a panic in another holder, as [`lock`] does.
#[cfg(feature = "keyed")]
pub(crate) fn write<T>(lock: &ShardLock<T>) -> ShardedLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(all(test, tidegate_loom))]
mod twin {
    use super::Ordering;

    /// Loom has no 128-bit atomic. A mutex around the value explores every interleaving of loads
    /// and exchanges, but not what a relaxed ordering could show to other memory; see
    /// `loom-tests/README.md`.
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
