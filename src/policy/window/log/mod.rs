//! Sliding log: the times of the last grants, and nothing else. It is exact.
//!
//! # Algorithm
//!
//! "At most *N* in any *T*" means that the *N*th grant before this one was at least *T* ago. So the
//! log keeps the times of the last *N* grants in a ring. The oldest of them decides about the next
//! grant, however large *N* is.
//!
//! # Protocol
//!
//! `head.rs` has the state word. `state.rs` has the protocol by which grants are decided without a
//! lock, and its memory ordering. `give_back.rs` has the protocol of giving back.
//!
//! # Invariant
//!
//! At most `limit` permits are granted in any period shorter than the window: two permits that are
//! `limit` grants apart are at least a window apart. Tests: `tests/policy/window_properties.rs`.
//!
//! # Source
//!
//! The sliding log of the literature, usually kept as a sorted set (Redis `ZADD`,
//! `ZREMRANGEBYSCORE`), here as a ring.

mod chunks;
mod copying;
pub(crate) mod give_back;
pub(crate) mod head;
pub(crate) mod state;

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::remainder::{Remainder, Shut};
use crate::policy::window::{CurrentWindow, Stamp, Window, common_to_windows, stamp, time_of};
use crate::policy::{Change, Crowd, Forecast, Keep, Policy, PolicyStatus, limited};
use crate::rate::Rate;
use crate::time::Nanos;

pub use state::LogState;

/// Never grants more than a number of permits in *any* period of the rate's length. It is exact.
///
/// It remembers when each of the last permits was granted. A decision with a limit of a hundred
/// thousand costs as much as with a limit of ten; memory is 9 bytes for each permit of the limit,
/// allocated once. A request for `n` permits at once writes `n` times. Undoing grants allocates up
/// to three times as much again, in chunks of 8 KiB: the first grant that is undone needs the first
/// chunk, and most of the chunks are needed only if many grants are undone.
///
/// A request for more than the limit is never granted. Awaited permits are counted from the time at
/// which they were really granted, so a timer that is late by a millisecond in a window of a second
/// costs a thousandth of the rate.
///
/// When the rate changes, granted permits stay granted, even with [`Keep::Ratio`]: see
/// [`Keep::Count`]. A limit that is raised above the [room](SlidingLog::with_capacity) reserved for
/// it is cut to that room.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, SlidingLog};
///
/// let clock = ManualClock::new();
/// let policy = SlidingLog::new(Rate::per_minute(2));
/// let limiter = RateLimiter::with_clock(policy, clock.clone());
/// clock.advance(Duration::from_secs(24));
/// limiter.try_acquire()?;
/// clock.advance(Duration::from_secs(12));
/// limiter.try_acquire()?;
/// clock.advance(Duration::from_secs(13));
/// let refusal = limiter.try_acquire().unwrap_err();
/// assert_eq!(refusal.retry_after(), Some(Duration::from_secs(35)));
/// # Ok::<(), Refusal>(())
/// ```
///
/// # Source
///
/// The sliding log of the literature; Redis, sorted sets.
///
/// # Picture
///
#[cfg_attr(doc, doc = include_str!("../../../../docs/pictures/sliding_log.svg"))]
#[derive(Clone, Debug)]
pub struct SlidingLog {
    pub(in crate::policy) window: CurrentWindow,
    pub(in crate::policy) room: u32,
}

/// What one grant of a [`SlidingLog`] took.
#[derive(Clone, Copy, Debug)]
pub struct LogCharge {
    time: Stamp,
    n: u32,
    /// The index of the next grant.
    next: u32,
    /// The version of the head that the grant replaced.
    version: u16,
}

/// Returns a time as the log records it.
#[inline]
fn moment(at: Nanos) -> Stamp {
    stamp(at).min(head::LAST)
}

/// Returns the time of a stamp, or never, if the clock does not reach it.
fn due(time: Stamp) -> Nanos {
    if time > head::LAST { Nanos::MAX } else { time_of(time) }
}

impl SlidingLog {
    /// The maximum number of permits for which a log has room: 2^24 - 1, in 144 MiB.
    pub const MAX_LIMIT: u32 = (1 << 24) - 1;

    /// Creates a log that never grants more permits in any period than the rate says: `5000/h` is
    /// 5000 in any hour.
    ///
    /// # Panics
    ///
    /// Panics if the rate is not a whole number of permits, at most
    /// [`MAX_LIMIT`](SlidingLog::MAX_LIMIT), in a whole number of nanoseconds. For values from a
    /// configuration, use [`try_new`](SlidingLog::try_new).
    #[must_use]
    #[track_caller]
    pub fn new(rate: Rate) -> SlidingLog {
        match SlidingLog::try_new(rate) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a log that never grants more permits in any period than the rate says.
    ///
    /// # Errors
    ///
    /// - [`PolicyError::NotWhole`] if the rate is not a whole number of permits, at most
    ///   4,294,967,295, in a whole number of nanoseconds.
    /// - [`PolicyError::Log`] if it has more permits than [`MAX_LIMIT`](SlidingLog::MAX_LIMIT).
    pub fn try_new(rate: Rate) -> Result<SlidingLog, PolicyError> {
        let log = SlidingLog { window: CurrentWindow::new(rate, 1)?, room: 1 };
        let room = log.needed_room();
        log.with_capacity(room)
    }

    /// Returns the least room for the limit in force.
    pub(in crate::policy) fn needed_room(&self) -> u32 {
        let window = self.window.get();
        if window.unlimited { 1 } else { window.limit.max(1) }
    }

    /// Makes room for a limit of `permits` permits, to which it can be raised while it runs.
    ///
    /// # Errors
    ///
    /// Returns [`PolicyError::Log`] if `permits` is more than [`MAX_LIMIT`](SlidingLog::MAX_LIMIT).
    pub fn with_capacity(self, permits: u32) -> Result<SlidingLog, PolicyError> {
        if permits > SlidingLog::MAX_LIMIT {
            return Err(PolicyError::Log { permits, limit: SlidingLog::MAX_LIMIT });
        }
        Ok(SlidingLog { room: self.room.max(permits), ..self })
    }

    /// Returns the status without the last `later` entries.
    fn status_without(
        &self,
        state: &LogState,
        at: Nanos,
        later: impl Fn(&state::View) -> u32,
    ) -> PolicyStatus {
        let window = self.window();
        if window.unlimited {
            return PolicyStatus::unlimited(at);
        }
        state.inspect(moment(at), &window, |view, time| {
            let taken = state.taken(view, time, &window);
            let later = later(view).min(taken);
            let over_at = |newest: u32| match state.counts_until(view, &window, newest + later) {
                until if until > time => due(until),
                _ => at,
            };
            PolicyStatus {
                limit: window.limit.into(),
                available: window.limit.saturating_sub(taken - later).into(),
                next_at: if window.limit == 0 { Nanos::MAX } else { over_at(window.limit) },
                full_at: over_at(1),
            }
        })
    }

    /// Returns the window, with a limit for which the ring has room.
    #[inline]
    fn window(&self) -> Window {
        let window = self.window.get();
        if window.unlimited { window } else { Window { limit: window.limit.min(self.room), ..window } }
    }
}

impl Shut for SlidingLog {
    fn shut(&self, state: &LogState, now: &dyn Fn() -> Nanos) -> Remainder {
        let window = self.window();
        if window.unlimited {
            return Remainder::new(u64::MAX, u64::MAX);
        }
        let taken = state.shut(self.room, moment(now()), &window);
        Remainder::new(window.limit.into(), u64::from(window.limit).saturating_sub(taken.into()))
    }
}

impl Policy for SlidingLog {
    type State = LogState;
    type Charge = LogCharge;

    common_to_windows!(LogCharge);

    fn start(&self, _now: Nanos) -> LogState {
        LogState::new(self.room)
    }

    fn try_acquire(&self, state: &LogState, at: Nanos, n: u32) -> Result<LogCharge, Refusal> {
        let window = self.window();
        window.check(n)?;
        if window.unlimited {
            return Ok(LogCharge { time: 0, n: 0, next: 0, version: 0 });
        }
        if n > window.limit {
            return Err(limited(Nanos::MAX, at));
        }
        state.take(moment(at), &window, n).map_err(|free_at| limited(due(free_at), at))
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.window().check(n)
    }

    fn ready_at(&self, state: &LogState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        let window = self.window();
        if window.unlimited || n == 0 {
            return at;
        }
        if n > window.limit {
            return Nanos::MAX;
        }
        // The times of one window return in the next: each full limit takes one window more.
        let (need, limit) = (ahead.saturating_add(u64::from(n)), u64::from(window.limit));
        let windows = (need - 1) / limit;
        let of_first = u32::try_from(need - windows * limit).unwrap_or(window.limit);
        let first = state.inspect(moment(at), &window, |view, time| {
            let free_at = state.free_at(view, &window, of_first);
            // A grant of the next lap comes after the last one.
            (windows > 0 || free_at > time).then(|| free_at.max(time))
        });
        first.map_or(at, |first| due(first.saturating_add(window.length.saturating_mul(windows))))
    }

    /// Records how many entries were taken by predicted grants, and how many of these are free
    /// again. The ring itself is read later, entry by entry.
    fn forecast(&self, state: &LogState, at: Nanos) -> Forecast {
        let head = state.head();
        // The third number identifies the head for which the ring was found: the lowest bits of its
        // time, which differ from lap to lap.
        let found = head.time << 39 | u64::from(head.index) << 14 | u64::from(head.version);
        Forecast::with(at, [0, 0, found])
    }

    fn predict(&self, state: &LogState, forecast: &mut Forecast, n: u32) -> Nanos {
        let window = self.window();
        if window.unlimited {
            return forecast.at;
        }
        if n > window.limit {
            return Nanos::MAX;
        }
        let [taken, mut free, _] = forecast.numbers;
        let (taken, limit) = (taken + u64::from(n), u64::from(window.limit));
        let of_ring = u32::try_from(taken.min(limit)).unwrap_or(window.limit);
        let (mut free_at, latest) = state.inspect(moment(forecast.at), &window, |view, _| {
            (state.free_at(view, &window, of_ring), view.head.time)
        });
        // Behind the last entry of the ring come the entries of the predicted grants.
        while let Some((end, entries)) = forecast.next_expiry()
            && free < taken.saturating_sub(limit)
        {
            forecast.pop_expiry();
            free += entries;
            free_at = free_at.max(end);
        }
        // A request is judged as of the last grant, even if the clock went back.
        let at = if free_at > latest { forecast.at.max(due(free_at)) } else { forecast.at };
        if at < Nanos::MAX {
            forecast.at = at;
            forecast.numbers[..2].copy_from_slice(&[taken, free]);
            let time = moment(at).max(latest);
            forecast.add_expiry(time.saturating_add(window.length), n.into());
        }
        at
    }

    fn predict_many(&self, state: &LogState, forecast: &mut Forecast, crowd: &Crowd) {
        let window = self.window();
        if window.unlimited || crowd.requests == 0 {
            return;
        }
        let limit = u64::from(window.limit);
        let time = moment(forecast.at).max(state.head().time);
        let time = time.saturating_add(crowd.spans(limit).saturating_mul(window.length));
        // As if the last grant had all entries.
        *forecast = Forecast::with(due(time).max(forecast.at), [limit, 0, 0]);
        forecast.add_expiry(time.saturating_add(window.length), limit);
    }

    /// Also without a limit, because the log may have one again.
    fn undo(&self, state: &LogState, at: Nanos, charge: LogCharge, _most: u64) -> u64 {
        if charge.n > 0 {
            state.undo(charge, moment(at), || self.window());
        }
        u64::MAX
    }

    /// Gives back the oldest permits that count. They would have returned first.
    fn refund(&self, state: &LogState, at: Nanos, n: u32) -> u64 {
        let window = self.window();
        if !window.unlimited {
            state.refund(n, moment(at), &window);
        }
        u64::MAX
    }

    /// If there are more permits than room, the last ones are remembered.
    fn debit(&self, state: &LogState, at: Nanos, n: u32) {
        let (n, window) = (n.min(self.room), self.window());
        if n > 0 && !window.unlimited {
            state.debit(n, moment(at), &window);
        }
    }

    fn keep_at_most(&self, state: &LogState, at: Nanos, permits: u64) -> u64 {
        let window = self.window();
        if window.unlimited { 0 } else { state.keep_at_most(moment(at), &window, permits).into() }
    }

    fn change(&self, state: &LogState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        let change = change.without_burst("sliding_log")?;
        if change.keep == Some(Keep::Nothing) {
            state.reset();
        }
        if let Some(rate) = change.rate {
            self.window.set(rate);
            state.rewindow(moment(at), &self.window());
        }
        Ok(u64::MAX)
    }

    /// There is no room for more grants than before.
    fn change_to(&self, new: &SlidingLog) -> Option<Change> {
        (self.room >= new.room).then(|| Change::rate(new.rate()))
    }

    fn status(&self, state: &LogState, at: Nanos) -> PolicyStatus {
        self.status_without(state, at, |_| 0)
    }

    fn left(&self, state: &LogState, charge: LogCharge, at: Nanos) -> PolicyStatus {
        // Another version may be of the other ring, in which the index says nothing. Then the
        // present state is told.
        let later = |view: &state::View| match view.head.version == charge.version {
            true => state.steps(charge.next, view.head.index),
            false => 0,
        };
        self.status_without(state, at, later)
    }

    fn with_epoch(self, unix_time_at_zero: Duration) -> SlidingLog {
        SlidingLog { window: self.window.with_epoch(unix_time_at_zero), ..self }
    }
}
