//! Lateness: by how much the last grants were late. The next requests may make up for it.
//!
//! Timers fire late, so a waiter collects its grant some time after the grant was due. The grant is
//! charged as of when it was due. But the waiter's next request is late by the same time. If no
//! permits are saved, charging that request as of now would lose the permits that accrued
//! meanwhile: a single task that loops at 10,000 permits per second, with a timer that is 1 ms
//! late, would get one permit in eleven. So the limiter records by how much it is late. A request
//! is charged as of when it was due, but not further back than the lateness. The effect is as if
//! the timer had been on time and the clock ran later.
//!
//! | event | lateness afterwards |
//! |---|---|
//! | a waiter collects its grant, and no other waiter is left in the queue | the time since the latest charge |
//! | a request is granted as of an earlier time | the time from then until now: no more than before |
//! | a request is made when its permit has been due for more than twice the lateness: the limiter was idle | none |
//! | a request is granted as of now | none |
//! | neither of the first two happens for longer than the catch-up | none |
//!
//! So lateness comes only from grants that were late, requests never add to it, and an idle limiter
//! has none. It counts up to the [catch-up](crate::RateLimiter::set_catch_up), so the bound is the
//! bound that the catch-up states. It ends by time alone, so that the limiter of a key can be
//! removed from memory when the lateness has ended: see `keyed/`.
//!
//! The limiter counts as idle only after twice the lateness, because the previous request was
//! granted late itself: it was charged at *c* and collected at *c* + *late*, and the next request
//! comes within *late* of that.
//!
//! # Memory ordering
//!
//! **Shared**: `late` and `noted`, two numbers; and the flag
//! [`LATE`](crate::limiter::gate_word::LATE) of the gate word, which says that `late` may not be
//! zero.
//!
//! | operation | ordering | purpose |
//! |---|---|---|
//! | a waiter that collects its grant stores `noted`, then `late`, under the lock of the queue | Relaxed | before the gate word is stored with the flag |
//! | a request without the lock loads `late`, lowers it with a CAS, and then stores `noted` | Relaxed | |
//!
//! **Why enough.** No permit depends on the two numbers: a request is charged between
//! `now - catch_up` and now, whatever number it reads, and only the policy's state decides whether
//! the permit is available. A request that reads an old number is charged up to the catch-up too
//! early or too late. The gate is stored only under the lock, as always: a request that uses up the
//! lateness tries the lock to clear the flag, and leaves that to the lock holder if there is one.
//! If the lock holder had read `late` before, the flag stays set until the lock is taken next, and
//! requests find that the lateness is zero.
//!
//! **Checked by** `loom-tests/lateness.rs`, with a twin that stores the gate word without the lock.

use std::time::Duration;

use crate::sync::{AtomicU64, Ordering};
use crate::time::Nanos;

/// The default catch-up: a late grant is charged at most this far back. Timers are later than this
/// only on a stalled machine.
pub(crate) const CATCH_UP: Duration = Duration::from_millis(10);

pub(crate) struct Lateness {
    /// In nanoseconds; zero if the limiter is not late.
    late: AtomicU64,
    /// When a waiter last collected its grant late, or a request last used the lateness, in
    /// nanoseconds.
    noted: AtomicU64,
    /// How far back a grant can be charged, in nanoseconds.
    catch_up: AtomicU64,
}

impl Lateness {
    pub(crate) fn new(catch_up: Duration) -> Lateness {
        Lateness {
            late: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            catch_up: AtomicU64::new(Nanos::from_duration(catch_up).as_u64()),
        }
    }

    pub(crate) fn catch_up(&self) -> Nanos {
        // Relaxed: the number is complete by itself.
        Nanos::new(self.catch_up.load(Ordering::Relaxed))
    }

    pub(crate) fn set_catch_up(&self, catch_up: Duration) {
        // Relaxed: a request that overlaps with this may be charged by either number.
        self.catch_up.store(Nanos::from_duration(catch_up).as_u64(), Ordering::Relaxed);
    }

    /// Returns whether the lateness is not zero.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        // Relaxed: no permit depends on it.
        self.late.load(Ordering::Relaxed) > 0
    }

    /// Returns whether a request that is made now may use the lateness.
    pub(crate) fn is_usable(&self, now: Nanos) -> bool {
        // Relaxed: an old time only ends the lateness early.
        let noted = Nanos::new(self.noted.load(Ordering::Relaxed));
        self.is_some() && now.saturating_since(noted) <= self.catch_up()
    }

    /// Returns the time as of which a request counts as made, if it is made now and is due at
    /// `due`: now minus the lateness.
    pub(crate) fn made_at(&self, now: Nanos, due: Nanos) -> Nanos {
        if !self.is_usable(now) {
            return now;
        }
        // Relaxed: any number up to the catch-up is within the bound.
        let late = self.late.load(Ordering::Relaxed).min(self.catch_up.load(Ordering::Relaxed));
        let idle = now.saturating_since(due).as_u64();
        if idle > late.saturating_mul(2) { now } else { Nanos::new(now.as_u64().saturating_sub(late)) }
    }

    /// Sets the lateness to zero.
    pub(crate) fn clear(&self) {
        // Relaxed: a request that overlaps with this, and still uses the lateness, counts as
        // earlier.
        self.late.store(0, Ordering::Relaxed);
    }

    /// Notes that a request was granted now, as of `at`.
    pub(crate) fn note_use(&self, now: Nanos, at: Nanos) {
        // Relaxed, in each operation here: any number is within the bound.
        let (late, left) = (self.late.load(Ordering::Relaxed), now.saturating_since(at).as_u64());
        if left < late {
            // If this fails, another thread has stored a newer lateness meanwhile. Relaxed: only
            // the number itself matters.
            let _ = self.late.compare_exchange(late, left, Ordering::Relaxed, Ordering::Relaxed);
        }
        if late > 0 {
            self.noted.store(now.as_u64(), Ordering::Relaxed);
        }
    }

    /// Notes that a waiter collects its grant late by `late`. Called under the lock.
    pub(crate) fn set(&self, now: Nanos, late: Nanos) {
        // Relaxed: the lock publishes nothing to readers without it, and they rely on no order.
        self.noted.store(now.as_u64(), Ordering::Relaxed);
        // After `noted`: the lateness holds from now on. No permit depends on the order.
        self.late.store(late.as_u64(), Ordering::Relaxed);
    }
}
