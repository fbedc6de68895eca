//! The state of a counting limit: one atomic word for requests that need not wait, and a line of
//! waiters behind a lock.
//!
//! # State
//!
//! `word` is twice the number of free permits, plus 1 while the line has an entry. The number of
//! free permits is negative while more permits are in use than a lowered limit allows. Permits that
//! are given back raise this negative number first, so a lowered limit needs no list of permits to
//! withhold.
//!
//! | entry of the line | at the front it | entries behind it |
//! |---|---|---|
//! | a waiter | takes its permits, and is woken with the result | wait |
//! | a standing seat | notifies its composite, and takes nothing | wait until the composite takes, parks or leaves |
//!
//! | seat of a composite | in the line | permits held |
//! |---|---|---|
//! | parked: the composite waits for another member | no, but it keeps its number | none |
//! | stands: the composite waits for this limit | yes, at its number | none |
//!
//! A seat is a composite's numbered position. It has an entry in the line only while it stands. A
//! waiter for more permits than the limit is refused under the same lock that covers lowering the
//! limit. It is found by size, at any position, so it delays no other waiter.
//!
//! # Ordering
//!
//! | operation | ordering | pairs with | what it protects |
//! |---|---|---|---|
//! | take permits: a CAS on `word` | Acquire | give back | the last holder's actions happen before the next holder's |
//! | give permits back: an addition to `word` | Release | take | as above |
//! | raise and lower the flag, under the lock | Relaxed | | see below |
//! | `limit`, written under the lock | Relaxed | | `limit` gives refusals their reason; only `word` decides |
//! | count a lowered or closed limit in `lowered`, under the lock | Release | a composite compares | a composite that reads the new count finds the limit and the word after the change |
//! | a composite compares `lowered` | Acquire | count | as above |
//! | the line | the lock | | |
//!
//! **No wake-up is lost.** The bad execution: a waiter finds no permit and joins the line, a permit
//! is given back in between, and its giver sees no line. The waiter raises the flag before its last
//! check of the free permits. Raising, checking and giving back are all operations on `word`, and
//! read-modify-write operations on one word have one order. If the permit is given back before the
//! flag is raised, the waiter's last check finds it. If the permit is given back after the flag is
//! raised, its giver reads the flag, takes the lock and serves the line.
//!
//! **No request overtakes.** A request that begins after a waiter has joined reads the flag, at any
//! ordering, by coherence. Then the request is refused or joins behind the waiter.
//!
//! **No permit too many is granted.** A CAS succeeds only on the latest word. The limit is checked
//! first, by a read that may be stale. But the free permits never exceed the limit that `word` was
//! last changed to, so a request above that limit fails at the CAS.
//!
//! **No change is missed.** The bad execution: a composite reads the new count and an old limit. So
//! it refuses no waiter, and its next check finds no change. Then a waiter that is not its first
//! waits for permits that it never gets. The Release and the Acquire forbid this execution. A
//! composite with a seat that reads the old count is notified.
//!
//! **Permits that come back together.** A grant of several limits gives all of its permits back
//! before it serves the first line, so that a composite that waits for several of them finds all.
//! The grant then serves the lines in the order of their first entries. One counter numbers the
//! entries and seats of all lines. The order of the numbers in different lines matters only for
//! entries that came one after the other, and a number within a line is made under its lock:
//! Relaxed is enough.
//!
//! **Closing.** Closing takes more permits than can ever exist, in one operation on `word`. So
//! closing is ordered with all takes and all checks, as a taken permit is. A request that joins
//! before closing is in the line and is refused under the lock. A request that joins after closing
//! finds no permit and is refused when the line is served.
//!
//! **Why not more.** Two words, one for permits and one for the flag, would need sequential
//! consistency.
//!
//! **Checked by** `loom-tests/counting.rs`: joining, and standing up, against giving back, also of
//! two limits together; leaving against a grant; lowering against joining; with twins that check
//! the flag before they give back. Closing against joining, with a twin that does not serve the
//! line. Lowering and closing against a composite that compares, with a twin that counts with
//! Relaxed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;
use std::task::{Poll, Waker};

use crate::error::Refusal;
use crate::limiter::events::Observers;
use crate::line::deferred::Deferred;
use crate::line::recheck::Recheck;
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock};

/// The flag of `word`: the line has an entry.
pub(crate) const LINE: u64 = 1;

/// The number of entries handled before the lock is briefly released: less than a millisecond of
/// work.
const SLICE: usize = 1024;

/// Returns what `n` permits add to `word`.
pub(crate) const fn weight(n: u32) -> u64 {
    (n as u64) << 1
}

/// Returns the number of free permits in `word`.
const fn free(word: u64) -> i64 {
    word.cast_signed() >> 1
}

/// The amount that closing takes from the free permits. No limit is this high, so no request finds
/// a permit, however many are given back. And no lowered limit takes this much.
pub(crate) const CLOSED: u64 = weight(u32::MAX) * 4;

pub(crate) struct Pool {
    pub(crate) word: AtomicU64,
    pub(crate) limit: AtomicU32,
    /// How many times the limit was lowered or closed. A composite compares this count to detect
    /// that its requests may be too large.
    pub(crate) lowered: AtomicU64,
    line: Mutex<Waiters>,
    pub(crate) events: Observers,
}

/// The last number of an entry or a seat of any line. It is not one of loom's atomics, because it
/// only gives numbers.
static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// The line of waiters. Entries and seats have numbers above 0, in order of arrival.
struct Waiters {
    entries: BTreeMap<u64, Entry>,
    /// Waiters for more than one permit, by size: a lowered limit refuses the largest first.
    large: BTreeSet<(u32, u64)>,
    /// Results that their waiters have not taken yet.
    answers: BTreeMap<u64, Result<(), Refusal>>,
    /// All seats, parked or in the line.
    seats: BTreeMap<u64, Seat>,
    /// Whether the flag of `word` is up.
    flag: bool,
}

enum Entry {
    Waiter { n: u32, waker: Waker },
    Seat { n: u32 },
}

struct Seat {
    /// Whether the composite was notified that its permits are free. Cleared when they are not
    /// free.
    notified: bool,
    composite: Weak<dyn Recheck>,
}

impl Waiters {
    /// Returns whether no entry comes before this number.
    fn is_first(&self, number: u64) -> bool {
        self.entries.first_key_value().is_none_or(|(first, _)| *first >= number)
    }

    /// Returns a new number. The caller holds the lock of the line that it is for.
    fn number() -> u64 {
        LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1
    }

    /// Ends the wait of a waiter in the line, with this result.
    fn answer(&mut self, number: u64, answer: Result<(), Refusal>, deferred: &mut Deferred) {
        if let Some(Entry::Waiter { n, waker }) = self.entries.remove(&number) {
            self.large.remove(&(n, number));
            self.answers.insert(number, answer);
            deferred.wake.push(waker);
        }
    }
}

impl Pool {
    pub(super) fn new(limit: u32, events: Observers) -> Pool {
        let line = Waiters {
            entries: BTreeMap::new(),
            large: BTreeSet::new(),
            answers: BTreeMap::new(),
            seats: BTreeMap::new(),
            flag: false,
        };
        Pool {
            word: AtomicU64::new(weight(limit)),
            limit: AtomicU32::new(limit),
            lowered: AtomicU64::new(0),
            line: Mutex::new(line),
            events,
        }
    }

    pub(super) fn limit(&self) -> u32 {
        // Relaxed: the limit only chooses a refusal; `word` decides.
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns how many times the limit was lowered or closed.
    pub(crate) fn lowered(&self) -> u64 {
        // Acquire: see "No change is missed".
        self.lowered.load(Ordering::Acquire)
    }

    /// Returns how many permits a request would find now: none while other requests wait.
    pub(super) fn available(&self) -> u32 {
        // Relaxed: a snapshot. A request that relies on it goes through a CAS.
        let word = self.word.load(Ordering::Relaxed);
        if word & LINE != 0 { 0 } else { u32::try_from(free(word).max(0)).unwrap_or(u32::MAX) }
    }

    /// Returns how many entries are in the line.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.line).entries.len()
    }

    /// Takes permits unless other requests wait for them. Takes no lock.
    #[inline]
    pub(super) fn try_take(&self, n: u32) -> bool {
        self.take_if(n, |word| word & LINE == 0)
    }

    /// Takes as many permits as are free, at most `n`, unless requests wait in the line. Returns
    /// how many it took.
    pub(super) fn try_take_up_to(&self, n: u32) -> u32 {
        self.take(|word| match word & LINE {
            0 => u32::try_from(free(word).clamp(0, n.into())).unwrap_or(0),
            _ => 0,
        })
    }

    /// Takes permits if they are free and `may` accepts the word.
    #[inline]
    fn take_if(&self, n: u32, may: impl Fn(u64) -> bool) -> bool {
        n == self.take(|word| if may(word) && free(word) >= i64::from(n) { n } else { 0 })
    }

    /// Takes the number of permits that `choose` returns for the word, which must be free. Returns
    /// how many it took.
    #[inline]
    fn take(&self, choose: impl Fn(u64) -> u32) -> u32 {
        // Relaxed: the CAS checks the value.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let n = choose(word);
            if n == 0 {
                return 0;
            }
            let less = word.wrapping_sub(weight(n));
            // Acquire pairs with the Release of `give_back`. On failure nothing is taken, so
            // Relaxed is enough.
            match self.word.compare_exchange_weak(word, less, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return n,
                Err(now) => word = now,
            }
        }
    }

    /// Gives permits back. Takes no lock unless other requests wait for them.
    #[inline]
    pub(super) fn give_back(&self, n: u32) {
        if self.add_back(n) {
            self.serve_line();
        }
    }

    /// Gives permits back, and returns whether the line is to be served.
    #[inline]
    pub(super) fn add_back(&self, n: u32) -> bool {
        // Release: the next holder sees what this holder did. One operation adds and reads the
        // flag: a flag read before the addition could miss a waiter that joins in between.
        self.word.fetch_add(weight(n), Ordering::Release) & LINE != 0
    }

    /// Returns the number of the first entry of the line.
    pub(super) fn first_number(&self) -> u64 {
        lock(&self.line).entries.first_key_value().map_or(u64::MAX, |(number, _)| *number)
    }

    #[cold]
    pub(crate) fn serve_line(&self) {
        self.with_line(&mut Deferred::new(), |_, _| ());
    }

    /// Changes the limit. Permits in use stay in use.
    pub(super) fn set_limit(&self, limit: u32) {
        let mut deferred = Deferred::new();
        let is_lowered = self.with_line(&mut deferred, |_, _| {
            // Relaxed: the lock orders the changes of the limit.
            let before = self.limit.swap(limit, Ordering::Relaxed);
            let more = i64::from(limit) - i64::from(before);
            // Relaxed: a change of `word` publishes nothing.
            self.word.fetch_add(more.cast_unsigned() << 1, Ordering::Relaxed);
            if more < 0 {
                // Counted before the composites are notified, because they compare the count.
                // Release: see "No change is missed".
                self.lowered.fetch_add(1, Ordering::Release);
            }
            more < 0
        });
        if is_lowered {
            self.notify_seats(&mut deferred);
        }
    }

    /// Takes all permits for good, and refuses all waiters. Returns whether the limit was open.
    pub(super) fn close(&self) -> bool {
        let mut deferred = Deferred::new();
        let was_open = self.with_line(&mut deferred, |_, _| {
            // Under the lock, so that only one call closes.
            let was_open = !self.is_closed();
            if was_open {
                // Relaxed: only `word` decides.
                self.word.fetch_sub(CLOSED, Ordering::Relaxed);
                // Counted, so that the composites check their requests. Release: as above.
                self.lowered.fetch_add(1, Ordering::Release);
            }
            was_open
        });
        if was_open {
            self.notify_seats(&mut deferred);
        }
        was_open
    }

    /// Notifies all composites, which then check their requests. The lock is released after each
    /// slice of composites.
    fn notify_seats(&self, deferred: &mut Deferred) {
        let mut next = Some(0);
        while let Some(number) = next {
            {
                let line = lock(&self.line);
                let mut seats = line.seats.range(number..);
                let slice = seats.by_ref().take(SLICE).filter_map(|(_, seat)| seat.composite.upgrade());
                deferred.rechecks.extend(slice);
                next = seats.next().map(|(number, _)| *number);
            }
            std::thread::yield_now();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        // This is more than any lowered limit withholds. Relaxed: as in `available`.
        free(self.word.load(Ordering::Relaxed)) < -i64::from(u32::MAX)
    }

    /// Runs `work` with the line, then serves the line. User code is left in `deferred`, which runs
    /// without the lock.
    fn with_line<T>(
        &self,
        deferred: &mut Deferred,
        work: impl FnOnce(&mut Waiters, &mut Deferred) -> T,
    ) -> T {
        let mut line = lock(&self.line);
        let result = work(&mut line, deferred);
        while !self.serve(&mut line, deferred) {
            // The lock is released after each slice, so that a long line does not block other
            // threads.
            drop(line);
            std::thread::yield_now();
            line = lock(&self.line);
        }
        result
    }

    /// Refuses waiters above the limit, and grants the others in order while permits are free. A
    /// closed limit refuses all waiters and removes the seats from its line, because they never get
    /// a turn. Returns `false` if it stopped after a slice.
    fn serve(&self, line: &mut MutexGuard<'_, Waiters>, deferred: &mut Deferred) -> bool {
        self.raise_flag(line);
        let (limit, closed) = (self.limit(), self.is_closed());
        for _ in 0..SLICE {
            if let Some(&(requested, number)) = line.large.last()
                && requested > limit
                && !closed
            {
                let refusal = Refusal::ExceedsLimit { requested, limit };
                line.answer(number, Err(refusal), deferred);
                continue;
            }
            match line.entries.first_key_value() {
                None => {
                    if std::mem::take(&mut line.flag) {
                        // Relaxed: the flag is changed only under the lock, and the line is empty.
                        self.word.fetch_and(!LINE, Ordering::Relaxed);
                    }
                    return true;
                }
                Some((&number, Entry::Waiter { .. })) if closed => {
                    line.answer(number, Err(Refusal::Closed), deferred);
                }
                Some((&number, Entry::Seat { .. })) if closed => {
                    line.entries.remove(&number);
                }
                Some((&number, &Entry::Waiter { n, .. })) => {
                    if !self.take_if(n, |_| true) {
                        return true;
                    }
                    line.answer(number, Ok(()), deferred);
                }
                Some((&number, &Entry::Seat { n })) => {
                    if self.has_free(n)
                        && let Some(seat) = line.seats.get_mut(&number)
                        && !std::mem::replace(&mut seat.notified, true)
                    {
                        deferred.rechecks.extend(seat.composite.upgrade());
                    }
                    return true;
                }
            }
        }
        false
    }

    /// Raises the flag if the line has an entry. Call this before the last check of the free
    /// permits: from then on, giving back takes the lock.
    fn raise_flag(&self, line: &mut Waiters) {
        if !line.flag && !line.entries.is_empty() {
            line.flag = true;
            // Relaxed: the order of operations on `word` is enough; see "No wake-up is lost".
            self.word.fetch_or(LINE, Ordering::Relaxed);
        }
    }

    fn has_free(&self, n: u32) -> bool {
        // Relaxed: by coherence the load sees each addition before the raised flag, and a later
        // giver sees the flag.
        free(self.word.load(Ordering::Relaxed)) >= i64::from(n)
    }
}

/// Methods for waiters.
impl Pool {
    /// Takes permits, or joins the line behind all others with a waker. The waker is called when
    /// the result is there. The error is the waiter's number.
    pub(super) fn join(&self, n: u32, waker: Waker, deferred: &mut Deferred) -> Result<(), u64> {
        self.with_line(deferred, |line, deferred| {
            if line.entries.is_empty() && self.take_if(n, |_| true) {
                deferred.discard.push(waker);
                return Ok(());
            }
            let number = Waiters::number();
            line.entries.insert(number, Entry::Waiter { n, waker });
            if n > 1 {
                // Waiters for one permit are left out: they are never refused, because the limit
                // may be raised later.
                line.large.insert((n, number));
            }
            Err(number)
        })
    }

    /// Takes the result of a waiter, or replaces its waker.
    pub(super) fn poll_answer(
        &self,
        number: u64,
        waker: Waker,
        deferred: &mut Deferred,
    ) -> Poll<Result<(), Refusal>> {
        self.with_line(deferred, |line, deferred| {
            let unused = match line.entries.get_mut(&number) {
                Some(Entry::Waiter { waker: old, .. }) => std::mem::replace(old, waker),
                Some(Entry::Seat { .. }) | None => waker,
            };
            deferred.discard.push(unused);
            match line.answers.remove(&number) {
                Some(answer) => Poll::Ready(answer),
                None => Poll::Pending,
            }
        })
    }

    /// Removes a waiter at any stage. A grant of `n` permits that its future has not seen is given
    /// back.
    pub(super) fn leave(&self, number: u64, n: u32) {
        self.with_line(&mut Deferred::new(), |line, deferred| {
            if let Some(Entry::Waiter { waker, .. }) = line.entries.remove(&number) {
                line.large.remove(&(n, number));
                deferred.discard.push(waker);
            }
            if let Some(Ok(())) = line.answers.remove(&number) {
                // Release, as in `give_back`. `with_line` serves the line afterwards.
                self.word.fetch_add(weight(n), Ordering::Release);
            }
        });
    }
}

/// Methods for the seats of composites. The caller holds the composite's lock, which is taken
/// before this lock.
impl Pool {
    /// Adds a parked seat behind all others. Its composite is notified when the limit is lowered.
    pub(crate) fn take_seat(&self, composite: Weak<dyn Recheck>) -> u64 {
        let mut line = lock(&self.line);
        let number = Waiters::number();
        line.seats.insert(number, Seat { notified: false, composite });
        number
    }

    /// Returns whether `n` permits are free for the seat. Number 0 is a newcomer.
    pub(crate) fn has_turn(&self, number: u64, n: u32) -> bool {
        match number {
            0 => self.available() >= n,
            _ => lock(&self.line).is_first(number) && self.has_free(n),
        }
    }

    /// Takes `n` permits if it is the turn of the seat.
    pub(super) fn take_turn(&self, number: u64, n: u32) -> bool {
        match number {
            0 => self.try_take(n),
            _ => lock(&self.line).is_first(number) && self.take_if(n, |_| true),
        }
    }

    /// Puts the seat in the line for `n` permits. Returns whether they are free. If not, the
    /// composite is notified when they become free.
    pub(crate) fn enqueue_seat(&self, number: u64, n: u32, deferred: &mut Deferred) -> bool {
        self.with_line(deferred, |line, _| {
            line.entries.insert(number, Entry::Seat { n });
            // The flag is raised before the check, so that a permit given back after the check is
            // noticed.
            self.raise_flag(line);
            let turn = line.is_first(number) && self.has_free(n);
            if let Some(seat) = line.seats.get_mut(&number) {
                seat.notified = turn;
            }
            turn
        })
    }

    /// Takes the seat out of the line. The seat keeps its number.
    pub(crate) fn dequeue_seat(&self, number: u64, deferred: &mut Deferred) {
        self.with_line(deferred, |line, _| line.entries.remove(&number));
    }

    /// Removes the seat.
    pub(crate) fn give_up(&self, number: u64, deferred: &mut Deferred) {
        self.with_line(deferred, |line, _| {
            line.entries.remove(&number);
            line.seats.remove(&number);
        });
    }
}
