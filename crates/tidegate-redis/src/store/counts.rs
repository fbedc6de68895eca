//! The number of calls to a store, by outcome.

/// The number of calls to a store, by outcome. All numbers only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Calls to which the store replied.
    pub answered: u64,
    /// Calls whose outcome is not known: the store may have carried them out.
    pub unknown: u64,
    /// Calls that the store did not carry out.
    pub failed: u64,
    /// Calls that ended without being sent: the store had not replied before, too many calls were
    /// in flight, or their requests had waited so long that too little of the deadline was left.
    pub skipped: u64,
    /// Calls that showed that the store is misconfigured. A call whose reply makes no sense is also
    /// counted as answered.
    pub misconfigured: u64,
    /// Requests that were decided without the store, and reservations that were made without it,
    /// except calls that would block the store's thread.
    /// [`StatisticsSnapshot::degraded`](tidegate::StatisticsSnapshot::degraded) counts the
    /// decisions of which an observer was notified.
    pub degraded: u64,
    /// Refunds and returned bookings whose message has no reply. Their permits are lost, unless the
    /// store carried the message out: fewer permits are granted, never more.
    pub lost_refunds: u64,
}
