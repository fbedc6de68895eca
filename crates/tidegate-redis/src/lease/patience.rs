//! How long requests of this process may wait, and whether they stay in the queue for permits that
//! are not booked yet. Time is an argument.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::Nanos;

/// A request that may wait for this long stays in the queue while a lease is booked for it, like
/// one without a maximum wait, unless requests are refused. So does a request that may wait for
/// half as long as most requests.
const MIN_WAIT: Duration = Duration::from_millis(200);

/// Leases are not shorter for requests whose maximum wait is shorter than this: a call takes a part
/// of such a wait.
const SHORTEST: Duration = Duration::from_millis(10);

/// What all limits of a set know of the maximum waits of requests, without a lock.
#[derive(Debug)]
pub(super) struct Patience {
    /// Until this time a request with a maximum wait queues only for booked permits. `u64::MAX`:
    /// until the store reports that a permit is due in half the maximum wait.
    crowded: AtomicU64,
    /// The maximum wait that leases are for, in nanoseconds.
    longest: AtomicU64,
    /// The number of queued requests without a maximum wait.
    endless: AtomicU64,
}

impl Patience {
    pub(super) fn new() -> Patience {
        let (crowded, longest) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        Patience { crowded, longest, endless: AtomicU64::new(0) }
    }

    /// Returns the maximum wait that leases are for.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Relaxed))
    }

    /// Sets the maximum wait of most requests. Leases are sized for that wait, unless it is too
    /// short for them.
    pub(super) fn set(&self, usual: Duration, has_fixed_window: bool) {
        let is_short = usual < SHORTEST || has_fixed_window && usual < MIN_WAIT;
        let longest = if is_short { u64::MAX } else { Nanos::from_duration(usual).as_u64() };
        self.longest.store(longest, Ordering::Relaxed);
    }

    /// Returns how long a request must be able to wait to stay in the queue while a lease is booked
    /// for it.
    pub(super) fn min_wait(&self) -> Duration {
        (self.longest() / 2).min(MIN_WAIT)
    }

    /// Returns whether a request with a maximum wait queues only for booked permits.
    pub(super) fn is_crowded(&self, now: Nanos) -> bool {
        now.as_u64() < self.crowded.load(Ordering::Relaxed)
    }

    /// Returns the number of queued requests without a maximum wait.
    pub(super) fn endless(&self) -> u64 {
        self.endless.load(Ordering::Relaxed)
    }

    /// Notes that a request joins the queue.
    pub(super) fn join(&self, is_endless: bool) {
        self.endless.fetch_add(is_endless.into(), Ordering::Relaxed);
    }

    /// Notes that a request leaves the queue.
    pub(super) fn leave(&self, is_endless: bool) {
        self.endless.fetch_sub(is_endless.into(), Ordering::Relaxed);
    }

    /// Notes in what time a permit of each limit is due, as reported by the store.
    pub(super) fn note_report(&self, now: Nanos, next: Nanos, usual: Duration) {
        let longest = Nanos::from_duration(usual.max(self.min_wait()));
        if next > longest {
            self.crowded.store(u64::MAX, Ordering::Relaxed);
        } else if next < Nanos::new(longest.as_u64() / 2) && self.crowded.load(Ordering::Relaxed) == u64::MAX
        {
            self.crowded.store(now.as_u64(), Ordering::Relaxed);
        }
    }

    /// Makes requests queue only for booked permits, at least until this time.
    pub(super) fn crowd(&self, till: Nanos) {
        self.crowded.fetch_max(till.as_u64(), Ordering::Relaxed);
    }

    /// Notes that there are more permits than requests.
    pub(super) fn open(&self) {
        self.crowded.store(0, Ordering::Relaxed);
    }
}

/// The maximum wait of most requests that no lease served at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usual {
    pub(super) longest: Duration,
    /// How many more requests have this wait than another one, up to a bound.
    votes: u32,
}

impl Usual {
    /// Notes that a request may wait for `longest`.
    pub(super) fn note(&mut self, longest: Duration) {
        const MAX_VOTES: u32 = 64;
        let is_alike = |a: Duration, b: Duration| a <= b.saturating_mul(2);
        if is_alike(longest, self.longest) && is_alike(self.longest, longest) {
            self.votes = MAX_VOTES.min(self.votes + 1);
        } else if self.votes == 0 {
            *self = Usual { longest, votes: 1 };
        } else {
            self.votes -= 1;
        }
    }
}
