//! The system's monotonic clock, read at the lowest cost.

use crate::time::Nanos;

/// Counts from its creation, with the processor's time stamp counter if that is steady, otherwise
/// with the operating system's monotonic clock.
#[derive(Clone, Debug)]
pub(super) struct TimeStamp {
    clock: quanta::Clock,
    /// The counter's value at the beginning.
    start: u64,
}

impl TimeStamp {
    pub(super) fn new() -> TimeStamp {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        TimeStamp { clock, start }
    }

    #[inline]
    pub(super) fn now(&self) -> Nanos {
        // Zero if the counter went back, which can happen when a thread moves between processors.
        Nanos::new(self.clock.delta_as_nanos(self.start, self.clock.raw()))
    }
}
