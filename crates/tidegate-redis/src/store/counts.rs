//! How often a store was asked, and what became of it.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often a store was asked, and what became of it. All numbers only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Calls that the store answered.
    pub answered: u64,
    /// Calls whose outcome is not known: the store may have carried them out.
    pub unknown: u64,
    /// Calls that the store did not carry out.
    pub failed: u64,
    /// Calls that were answered without asking: the store had not answered before, too many calls
    /// were in flight, or their requests had waited so long that too little of the deadline was
    /// left.
    pub skipped: u64,
    /// Calls that showed that the store is not as it must be. A call whose answer makes no sense is
    /// counted as answered, too.
    pub misconfigured: u64,
    /// Requests that were answered without the store, and reservations that were made without it,
    /// but for calls that would block a thread of the store.
    /// [`StatisticsSnapshot::degraded`](tidegate::StatisticsSnapshot::degraded) counts the answers
    /// that an observer was told.
    pub degraded: u64,
    /// Refunds and bookings given back whose message has no answer. Their permits are lost, unless
    /// the store carried the message out: fewer permits are granted, never more.
    pub lost_refunds: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) answered: AtomicU64,
    pub(super) unknown: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) misconfigured: AtomicU64,
    pub(super) degraded: AtomicU64,
    pub(super) lost_refunds: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> Counts {
        // Relaxed: each number by itself.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { answered, unknown, failed, skipped, misconfigured, degraded, lost_refunds } = self;
        Counts {
            answered: read(answered),
            unknown: read(unknown),
            failed: read(failed),
            skipped: read(skipped),
            misconfigured: read(misconfigured),
            degraded: read(degraded),
            lost_refunds: read(lost_refunds),
        }
    }
}
