//! Sliding log: the times of the last grants, and nothing else. Exact.
//!
//! # Algorithm
//!
//! "At most *N* in any *T*" means: the *N*th grant before this one was at least *T* ago. So keep the times of the last *N*
//! grants in a ring. The oldest says whether the next one may go, however large *N* is.
//!
//! # Protocol
//!
//! Shared: `head`, one word of (version, place, n, time), and the ring of times. The head says where the next grant is
//! written, and what the last one was: it took `n` places before that, at `time`.
//!
//! | step | operation | ordering | why |
//! |---|---|---|---|
//! | 1 read | `head` | Acquire | sees the times of all grants but the last; whoever moved the head had seen to them |
//! | 2 help | each place of the last grant that is not written: read it, read `head` again, compare and exchange | Acquire, Acquire, Release | as if its taker had done it |
//! | 3 judge | the oldest time that has to be over, and if it is not, `head` again | Acquire | whoever wrote a newer time had moved the head before |
//! | 4 take | `head`: compare and exchange | AcqRel | fails if anybody took meanwhile; publishes what 2 made sure of |
//! | 5 write | as 2, for its own grant | | for whoever skips 2 on seeing the last of them |
//!
//! **A writer that stalls** between 4 and 5 has taken places that still show old times. The next one to come writes them, before
//! anything else; so the ring behind the head has one unwritten grant at most, and the head tells which. When the stalled writer goes
//! on, its exchange fails, since a place never shows the same twice: it is only taken again when its time is over, so
//! its times rise from lap to lap by at least the window; and a place that is cleared gets a number that is no time.
//!
//! **Nobody is too early.** Times rise along the ring, since a grant is written as of the latest time that the head knows, even if its taker's
//! clock is behind. So the oldest time that has to be over is the newest of those, and one look decides for any `n`.
//!
//! **The same head twice** would need a whole lap in between, and then its time is later; or a grant that is given back, and then
//! its version is another, until 2^15 are given back while somebody stalls and the clock stands still.
//!
//! **A debit** moves the head without judging, over times that may still count: of more permits than there is room for, the last ones
//! are remembered. It writes the times first, which only raises what places show: who comes after the old head is refused for a moment. Then it
//! moves the head. Its time may be that of the lap before, by which nobody could tell whether it is written, nor tell the heads apart: so
//! there is nothing left to help with, and it takes a new version, and the lock, as what is given back does.
//!
//! **Giving back** a grant, one at a time under a lock of its own: the newer times move one place back each, which only raises the
//! times in places, so that nobody is let through too early meanwhile. Then the newest is there twice. The second one is marked;
//! the head is moved back before it; and it is cleared, by whoever comes first, before it is taken again. If somebody took
//! meanwhile, the head has moved on: the mark is removed, and what is there twice is given back instead. The ring has one
//! place more than it needs, so that the one that is given back is never one that decides.
//!
//! **Checked by** `loom-tests/sliding_log.rs`, with twins that do not help, and that do not mark.
//!
//! # Invariant
//!
//! Never more than `limit` permits in any span shorter than the window: two of them, `limit` grants apart, are at least a
//! window apart. Tests: `tests/window_properties.rs`.
//!
//! # Source
//!
//! The sliding log of the literature, usually kept as a sorted set (Redis `ZADD`, `ZREMRANGEBYSCORE`), here as a ring.

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::nanos::Nanos;
use crate::policy::window::{CurrentWindow, Stamp, Window, stamp, time_of};
use crate::policy::{Change, Crowd, Forecast, Keep, Policy, PolicyStatus, limited};
use crate::rate::Rate;
use crate::sync::{AtomicU64, AtomicU128, Mutex, Ordering, lock};

/// Never more than so many permits in *any* span of the period: exact.
///
/// It remembers when each of the last permits was granted. A decision costs the same whether that is ten or a hundred thousand; memory
/// is 8 bytes for each permit of the limit, allocated once. A request for `n` permits at once writes `n` times.
///
/// A request for more than the limit can never be had. Permits that are awaited are counted from the time at which they were really
/// granted, so a timer that is late by a millisecond in a window of a second costs a thousandth of the rate.
///
/// When the rate changes, what was granted stays granted: [`Keep::Count`], and [`Keep::Ratio`] is the same. A limit that is raised above the
/// [room](SlidingLog::room_for) made for it is cut to that.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, SlidingLog};
///
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::with_clock(SlidingLog::new(Rate::per_minute(2)), clock.clone());
/// clock.advance(Duration::from_secs(24));
/// limiter.try_acquire()?;
/// clock.advance(Duration::from_secs(12));
/// limiter.try_acquire()?;
/// clock.advance(Duration::from_secs(13));
/// assert_eq!(limiter.try_acquire(), Err(Refusal::Limited { retry_after: Duration::from_secs(35).into() }));
/// # Ok::<(), Refusal>(())
/// ```
///
/// # Source
///
/// The sliding log of the literature; Redis, sorted sets.
///
/// # Picture
///
#[cfg_attr(doc, doc = include_str!("../../docs/pictures/sliding_log.svg"))]
#[derive(Clone, Debug)]
pub struct SlidingLog {
    window: CurrentWindow,
    room: u32,
}

/// The state of one [`SlidingLog`]: a ring of times.
#[derive(Debug)]
pub struct LogState {
    head: AtomicU128,
    /// Stamps; a number below all stamps if free. As many as there is room for.
    times: Box<[AtomicU64]>,
    /// Held by whoever gives back. Nobody else takes it.
    giving_back: Mutex<()>,
}

/// A time with this bit is being given back.
const MARK: u64 = 1 << 63;

/// What one grant of a [`SlidingLog`] took.
#[derive(Clone, Copy, Debug)]
pub struct LogCharge {
    time: Stamp,
    n: u32,
}

/// Where the next grant goes, and what the last one was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Head {
    /// Raised when anything is given back. 15 bits.
    pub(crate) version: u16,
    /// 24 bits.
    pub(crate) place: u32,
    /// How many places before `place` the last grant took. 25 bits.
    pub(crate) n: u32,
    pub(crate) time: Stamp,
}

impl Head {
    fn decode(bits: u128) -> Head {
        // The parts.
        #[allow(clippy::cast_possible_truncation)]
        let (version, places, time) = ((bits >> 113) as u16, (bits >> 64) as u64, bits as u64);
        // Below 2^24, and 2^25.
        #[allow(clippy::cast_possible_truncation)]
        let (place, n) = ((places >> 25) as u32 & 0xff_ffff, places as u32 & 0x1ff_ffff);
        Head { version, place, n, time }
    }

    fn encode(self) -> u128 {
        let Head { version, place, n, time } = self;
        u128::from(version) << 113 | u128::from(place) << 89 | u128::from(n) << 64 | u128::from(time)
    }

    /// The same with the last grant written, and anything given back.
    pub(crate) fn settled(self) -> Head {
        Head { version: (self.version + 1) & 0x7fff, n: 0, ..self }
    }
}

impl LogState {
    /// A ring with room for so many grants.
    fn new(room: u32) -> LogState {
        let times = (0..=room).map(|_| AtomicU64::new(0)).collect();
        LogState { head: AtomicU128::new(0), times, giving_back: Mutex::new(()) }
    }

    /// The place `steps` after another, or before it if negative. Not further than once around.
    pub(crate) fn at(&self, place: u32, steps: i64) -> &AtomicU64 {
        let room = self.times.len() as i64;
        // Within the ring.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        &self.times[(i64::from(place) + steps).rem_euclid(room) as usize]
    }

    /// Writes the times of the last grant, as far as nobody did.
    pub(crate) fn help(&self, head: Head) {
        let n = i64::from(head.n);
        // They are written in order, so the last one tells of all.
        if n == 0 || self.at(head.place, -1).load(Ordering::Acquire) >= head.time {
            return;
        }
        for step in -n..0 {
            let place = self.at(head.place, step);
            let old = place.load(Ordering::Acquire);
            if old >= head.time {
                continue;
            }
            if self.head() != head {
                // Whoever moved it saw to this grant, and what was there may be newer.
                return;
            }
            // It fails if somebody else was here.
            let _ = place.compare_exchange(old, head.time, Ordering::Release, Ordering::Relaxed);
        }
    }

    pub(crate) fn head(&self) -> Head {
        Head::decode(self.head.load(Ordering::Acquire))
    }

    /// Replaces the head, or returns the one that is there instead.
    pub(crate) fn exchange(&self, head: Head, new: Head) -> Result<(), Head> {
        self.head
            .compare_exchange_weak(head.encode(), new.encode(), Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(Head::decode)
    }

    /// The place `steps` on from another.
    pub(crate) fn moved(&self, place: u32, steps: i64) -> u32 {
        let room = self.times.len() as i64;
        // Within the ring, whose size is a `u32`.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let moved = (i64::from(place) + steps).rem_euclid(room) as u32;
        moved
    }

    /// When `n` permits are free: the end of the newest of the `n` oldest times. `n` is at most the limit.
    pub(crate) fn free_at(&self, head: Head, window: &Window, n: u64) -> Stamp {
        let oldest = -i64::from(window.limit);
        let mut step = oldest + i64::try_from(n).unwrap_or(i64::MAX) - 1;
        // What was given back may lie behind times that count: they tell.
        while step > oldest && self.is_free(head, step) {
            step -= 1;
        }
        self.end_at(head, step, window)
    }

    fn is_free(&self, head: Head, step: i64) -> bool {
        self.at(head.place, step).load(Ordering::Acquire) <= CLEARED
    }

    /// When a place counts no more.
    fn end_at(&self, head: Head, step: i64, window: &Window) -> Stamp {
        end(self.at(head.place, step).load(Ordering::Acquire) & !MARK, window)
    }

    /// Sees that the next place can be written: clears it if it was given back, and not cleared yet.
    fn clear_next(&self, head: Head) {
        let next = self.at(head.place, 0);
        let there = next.load(Ordering::Acquire);
        // If the head is still there, it was moved back before this place.
        if there & MARK > 0 && self.head() == head {
            let _ = next.compare_exchange(there, cleared(head), Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// When `n` permits are free, and the head at which that is so.
    fn judge(&self, window: &Window, n: u64, now: Stamp) -> (Head, Stamp) {
        let mut head = self.head();
        loop {
            self.help(head);
            self.clear_next(head);
            let free_at = self.free_at(head, window, n);
            if free_at <= now {
                // If the head is another by now, whoever takes will notice.
                return (head, free_at);
            }
            // It may be a newer time than the head that was read: then it is not the oldest.
            match self.head() {
                same if same == head => return (head, free_at),
                newer => head = newer,
            }
        }
    }

    /// Takes `n` places as of `now`. The error is the time before which that is too early.
    fn take(&self, now: Stamp, window: &Window, n: u32) -> Result<LogCharge, Stamp> {
        loop {
            let (head, free_at) = self.judge(window, u64::from(n), now);
            if free_at > now {
                return Err(free_at);
            }
            let new =
                Head { place: self.moved(head.place, i64::from(n)), n, time: now.max(head.time), ..head };
            match self.exchange(head, new) {
                Ok(()) => {
                    self.help(new);
                    return Ok(LogCharge { time: new.time, n });
                }
                Err(_) => continue,
            }
        }
    }

    /// Sees that the last grant is written, and that nobody will write it again who has not begun to.
    pub(crate) fn settle(&self) -> Head {
        let mut head = self.head();
        loop {
            self.help(head);
            match self.exchange(head, head.settled()) {
                Ok(()) => return head.settled(),
                Err(newer) => head = newer,
            }
        }
    }

    /// Removes a grant of exactly this time that is not over, as if it had not been.
    pub(crate) fn remove(&self, mut time: Stamp) {
        let room = i64::try_from(self.times.len()).unwrap_or(i64::MAX);
        loop {
            let head = self.settle();
            // The newest of that time. Those further back are older, or free.
            let times = (1..=room).map(|step| (step, self.at(head.place, -step).load(Ordering::Acquire)));
            let mut newer = times.take_while(|(_, there)| *there >= time);
            let Some((step, _)) = newer.find(|(_, there)| *there == time) else { return };
            for step in (2..=step).rev() {
                let newer = self.at(head.place, 1 - step).load(Ordering::Acquire);
                self.at(head.place, -step).fetch_max(newer, Ordering::Release);
            }
            // Now the newest is there twice, or it is the one to go.
            let newest = self.at(head.place, -1);
            time = newest.load(Ordering::Acquire);
            let set =
                |from, to| newest.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if !set(time, time | MARK) {
                // Only a whole lap later; then all of these times are over.
                return;
            }
            let back = Head { place: self.moved(head.place, -1), ..head.settled() };
            if self.exchange_surely(head, back) {
                set(time | MARK, cleared(head));
                return;
            }
            // Somebody took meanwhile.
            if !set(time | MARK, time) {
                // It was cleared by somebody who slept since the last time: then it is given back.
                return;
            }
        }
    }

    fn exchange_surely(&self, head: Head, new: Head) -> bool {
        loop {
            match self.exchange(head, new) {
                Ok(()) => return true,
                // It may fail for no reason.
                Err(same) if same == head => {}
                Err(_) => return false,
            }
        }
    }

    /// Takes `n` places as of `now` at least, whatever they show.
    fn debit(&self, now: Stamp, n: u32) {
        let _nobody_gives_back = lock(&self.giving_back);
        loop {
            let head = self.head();
            self.help(head);
            let time = now.max(head.time);
            for step in 0..i64::from(n) {
                self.at(head.place, step).fetch_max(time, Ordering::Release);
            }
            let place = self.moved(head.place, i64::from(n));
            if self.exchange_surely(head, Head { place, time, ..head.settled() }) {
                return;
            }
        }
    }

    /// Frees the `n` oldest places of those that are not over, in the whole ring: a limit may have been lowered.
    fn free(&self, now: Stamp, window: &Window, n: u32) {
        let _one_at_a_time = lock(&self.giving_back);
        let room = i64::try_from(self.times.len()).unwrap_or(i64::MAX) - 1;
        let (mut head, mut step, mut left) = (self.settle(), room, n);
        while step > 0 && left > 0 {
            let place = self.at(head.place, -step);
            let time = place.load(Ordering::Acquire);
            step -= 1;
            if end(time, window) <= now {
                continue;
            }
            if self.head() != head {
                // What was over here may have been taken anew: from the beginning.
                (head, step) = (self.settle(), room);
                continue;
            }
            // Nobody takes it before it is over.
            if place.compare_exchange(time, cleared(head), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                left -= 1;
            }
        }
    }
}

/// When a grant of this time counts no more. What is no time counts not at all.
fn end(time: Stamp, window: &Window) -> Stamp {
    if time <= CLEARED { 0 } else { time.saturating_add(window.length) }
}

/// No stamp is as small.
const CLEARED: u64 = 1 << 16;

/// What a place shows that was cleared under this head: never the same twice, as long as the version is another.
fn cleared(head: Head) -> u64 {
    u64::from(head.version)
}

impl SlidingLog {
    /// The most permits that a log has room for: 2^24 - 1, in 128 MiB.
    pub const MAX_LIMIT: u32 = (1 << 24) - 1;

    /// Never more permits in any period than the rate says: `5000/h` is 5000 in any hour.
    ///
    /// # Panics
    ///
    /// If the rate is not a whole number of permits, at most [`MAX_LIMIT`](SlidingLog::MAX_LIMIT), in a whole number of nanoseconds. For
    /// values from a configuration, use [`try_new`](SlidingLog::try_new).
    #[must_use]
    #[track_caller]
    pub fn new(rate: Rate) -> SlidingLog {
        match SlidingLog::try_new(rate) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// Never more permits in any period than the rate says.
    ///
    /// # Errors
    ///
    /// - [`PolicyError::NotWhole`] if the rate is not a whole number of permits in a whole number of nanoseconds.
    /// - [`PolicyError::Log`] if it has more permits than [`MAX_LIMIT`](SlidingLog::MAX_LIMIT).
    pub fn try_new(rate: Rate) -> Result<SlidingLog, PolicyError> {
        let window = CurrentWindow::new(rate, 1)?;
        let room = if window.get().unlimited { 1 } else { window.get().limit.max(1) };
        SlidingLog { window, room }.room_for(room)
    }

    /// Makes room for a limit of so many permits, to which it can be raised while it runs.
    ///
    /// # Errors
    ///
    /// [`PolicyError::Log`] if that is more than [`MAX_LIMIT`](SlidingLog::MAX_LIMIT).
    pub fn room_for(self, permits: u32) -> Result<SlidingLog, PolicyError> {
        if permits > SlidingLog::MAX_LIMIT {
            return Err(PolicyError::Log { permits, limit: SlidingLog::MAX_LIMIT });
        }
        Ok(SlidingLog { room: self.room.max(permits), ..self })
    }

    /// The window, with a limit that the ring has room for.
    #[inline]
    fn window(&self) -> Window {
        let window = self.window.get();
        if window.unlimited { window } else { Window { limit: window.limit.min(self.room), ..window } }
    }
}

impl Policy for SlidingLog {
    type State = LogState;
    type Charge = LogCharge;

    fn start(&self, _now: Nanos) -> LogState {
        LogState::new(self.room)
    }

    fn try_acquire(&self, state: &LogState, at: Nanos, n: u32) -> Result<LogCharge, Refusal> {
        let window = self.window();
        window.check(n)?;
        if window.unlimited {
            return Ok(LogCharge { time: 0, n: 0 });
        }
        if n > window.limit {
            return Err(limited(Nanos::MAX, at));
        }
        state.take(stamp(at), &window, n).map_err(|free_at| limited(time_of(free_at), at))
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        self.window().check(n)
    }

    fn weight(&self, n: u32) -> u64 {
        u64::from(n)
    }

    fn ready_at(&self, state: &LogState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        let window = self.window();
        if window.unlimited || n == 0 {
            return at;
        }
        if n > window.limit {
            return Nanos::MAX;
        }
        // The times of one window come again in the next: each full limit takes a window more.
        let (need, limit) = (ahead.saturating_add(u64::from(n)), u64::from(window.limit));
        let windows = (need - 1) / limit;
        let (head, free_at) = state.judge(&window, need - windows * limit, stamp(at));
        // A grant of the next lap comes after the last one.
        let first = if windows > 0 { free_at.max(stamp(at)).max(head.time) } else { free_at };
        time_of(first.saturating_add(window.length.saturating_mul(windows)))
    }

    /// Single permits leave no place free, and larger requests may.
    fn one_by_one(&self, largest: u32) -> usize {
        if largest > 1 { usize::MAX } else { 0 }
    }

    /// How many places were taken by grants that were foreseen, and how many of these are free again. The ring itself is looked at later,
    /// place by place.
    fn forecast(&self, state: &LogState, at: Nanos) -> Forecast {
        let head = state.head();
        // And by which head the ring was found.
        Forecast::with(at, [0, 0, u64::from(head.place) << 16 | u64::from(head.version)])
    }

    fn foresee(&self, state: &LogState, forecast: &mut Forecast, n: u32) -> Nanos {
        let window = self.window();
        if window.unlimited {
            return forecast.at;
        }
        if n > window.limit {
            return Nanos::MAX;
        }
        let [taken, mut free, _] = forecast.numbers;
        let (taken, limit) = (taken + u64::from(n), u64::from(window.limit));
        let (head, mut due) = state.judge(&window, taken.min(limit), stamp(forecast.at));
        // Behind the last place of the ring come those of the grants that were foreseen.
        while let Some((end, places)) = forecast.next_back()
            && free < taken.saturating_sub(limit)
        {
            forecast.pass();
            free += places;
            due = due.max(end);
        }
        let at = forecast.at.max(time_of(due));
        if at < Nanos::MAX {
            forecast.at = at;
            forecast.numbers[..2].copy_from_slice(&[taken, free]);
            // The ring is in order, also if the clock went back.
            let time = stamp(at).max(head.time);
            forecast.comes_back(time.saturating_add(window.length), n.into());
        }
        at
    }

    fn foresee_many(&self, state: &LogState, forecast: &mut Forecast, crowd: &Crowd) {
        let window = self.window();
        if window.unlimited || crowd.requests == 0 {
            return;
        }
        let limit = u64::from(window.limit);
        let time = stamp(forecast.at).max(state.head().time);
        let time = time.saturating_add(crowd.spans(limit).saturating_mul(window.length));
        // As if the last grant had all places.
        *forecast = Forecast::with(time_of(time).max(forecast.at), [limit, 0, 0]);
        forecast.comes_back(time.saturating_add(window.length), limit);
    }

    fn undo(&self, state: &LogState, at: Nanos, charge: LogCharge, _most: u64) -> u64 {
        // What is over by now would be back already.
        if end(charge.time, &self.window()) > stamp(at) {
            let _one_at_a_time = lock(&state.giving_back);
            for _ in 0..charge.n {
                state.remove(charge.time);
            }
        }
        u64::MAX
    }

    /// The oldest that count are given back: those that would have come back first.
    fn refund(&self, state: &LogState, at: Nanos, n: u32) -> u64 {
        if !self.window().unlimited {
            state.free(stamp(at), &self.window(), n);
        }
        u64::MAX
    }

    fn unused(&self, charge: LogCharge, n: u32, used: u32) -> Option<LogCharge> {
        n.checked_sub(used).filter(|n| *n > 0).map(|n| LogCharge { n: charge.n.min(n), ..charge })
    }

    /// Of more permits than there is room for, the last ones are remembered.
    fn debit(&self, state: &LogState, at: Nanos, n: u32) {
        let n = n.min(self.room);
        if n > 0 && !self.window().unlimited {
            state.debit(stamp(at), n);
        }
    }

    fn change(&self, state: &LogState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        let change = change.without_burst()?;
        if change.keep == Some(Keep::Reset) {
            let window = self.window();
            // All of them, also those that are over: in a longer window they would count again.
            state.free(stamp(at), &Window { length: 1 << 62, ..window }, u32::MAX);
        }
        if let Some(rate) = change.rate {
            self.window.set(rate);
        }
        Ok(u64::MAX)
    }

    fn rate(&self) -> Rate {
        self.window.rate()
    }

    fn status(&self, state: &LogState, at: Nanos) -> PolicyStatus {
        let window = self.window();
        if window.unlimited {
            return PolicyStatus { limit: u64::MAX, available: u64::MAX, full_at: at };
        }
        let limit = u64::from(window.limit);
        if limit == 0 {
            return PolicyStatus { limit, available: 0, full_at: Nanos::MAX };
        }
        let head = state.head();
        state.help(head);
        let now = stamp(at);
        let end_of = |n: u64| {
            state.end_at(head, i64::try_from(n).unwrap_or(i64::MAX) - 1 - i64::from(window.limit), &window)
        };
        let is_over = |n| end_of(n) <= now;
        // Times rise along the ring, so those that are over come first.
        let (mut free, mut taken) = (0, limit + 1);
        while taken - free > 1 {
            let middle = free.midpoint(taken);
            *(if is_over(middle) { &mut free } else { &mut taken }) = middle;
        }
        let full_at = time_of(end_of(limit));
        PolicyStatus { limit, available: free, full_at }
    }

    fn catches_up(&self) -> bool {
        false
    }

    fn anchored(self, unix_time_at_zero: Duration) -> SlidingLog {
        SlidingLog { window: self.window.anchored(unix_time_at_zero), ..self }
    }
}
