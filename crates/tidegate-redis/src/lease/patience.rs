//! How long requests of this process may wait, and whether they stay in line for permits that are
//! not booked yet. Time is an argument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::Nanos;

/// A request that may wait so long stays in line while a lease is booked for it, as one without a
/// longest wait does: unless requests are refused. So does one that may wait for half as long as
/// most requests.
pub(super) const STAYS: Duration = Duration::from_millis(200);

/// Leases are not shorter for requests whose longest wait is shorter than this: a call takes a part
/// of such a wait.
const SHORTEST: Duration = Duration::from_millis(10);

/// What all limits of a set know of the longest waits of requests, without a lock.
#[derive(Debug)]
pub(super) struct Patience {
    /// Until this time a request with a longest wait is in line for booked permits alone. The end
    /// of time: until the store tells that a permit is due in half the longest wait.
    crowded: AtomicU64,
    /// The longest wait that leases are for, in nanoseconds.
    longest: AtomicU64,
}

impl Patience {
    pub(super) fn new() -> Patience {
        Patience { crowded: AtomicU64::new(0), longest: AtomicU64::new(u64::MAX) }
    }

    /// The longest wait that leases are for.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Relaxed))
    }

    /// Leases are for the longest wait of most requests, unless that is too short for them.
    pub(super) fn set(&self, usual: Duration, has_fixed_window: bool) {
        let is_short = usual < SHORTEST || has_fixed_window && usual < STAYS;
        let longest = if is_short { u64::MAX } else { Nanos::from_duration(usual).as_u64() };
        self.longest.store(longest, Ordering::Relaxed);
    }

    /// How long a request may wait that stays in line while a lease is booked for it.
    pub(super) fn stays(&self) -> Duration {
        (self.longest() / 2).min(STAYS)
    }

    /// Whether a request with a longest wait is in line for booked permits alone.
    pub(super) fn is_crowded(&self, now: Nanos) -> bool {
        now.as_u64() < self.crowded.load(Ordering::Relaxed)
    }

    /// The store told in which time a permit of each limit is due.
    pub(super) fn told(&self, now: Nanos, next: Nanos, usual: Duration) {
        let longest = Nanos::from_duration(usual.max(self.stays()));
        if next > longest {
            self.crowded.store(u64::MAX, Ordering::Relaxed);
        } else if next < Nanos::new(longest.as_u64() / 2) && self.crowded.load(Ordering::Relaxed) == u64::MAX
        {
            self.crowded.store(now.as_u64(), Ordering::Relaxed);
        }
    }

    /// Requests are in line for booked permits alone, at least until this time.
    pub(super) fn crowd(&self, till: Nanos) {
        self.crowded.fetch_max(till.as_u64(), Ordering::Relaxed);
    }

    /// There are more permits than requests.
    pub(super) fn open(&self) {
        self.crowded.store(0, Ordering::Relaxed);
    }
}

/// The longest wait of most requests that no lease served at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usual {
    pub(super) longest: Duration,
    /// How many more requests have it than another one, up to some.
    votes: u32,
}

impl Usual {
    /// A request may wait so long.
    pub(super) fn note(&mut self, longest: Duration) {
        const MOST_VOTES: u32 = 64;
        if self.is_alike(longest) && self.longest <= longest.saturating_mul(2) {
            self.votes = MOST_VOTES.min(self.votes + 1);
        } else if self.votes == 0 {
            *self = Usual { longest, votes: 1 };
        } else {
            self.votes -= 1;
        }
    }

    /// Whether a request may wait for at most twice as long as most requests.
    pub(super) fn is_alike(&self, longest: Duration) -> bool {
        longest <= self.longest.saturating_mul(2)
    }
}
