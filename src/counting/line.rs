//! The state of a counting limit: one word in front, and a line behind it.
//!
//! # State
//!
//! `word` is twice the number of free permits, plus 1 while the line has an entry. The number is
//! negative while more permits are out than a lowered limit allows: what is given back pays that
//! debt first, so a lower limit needs no list of permits that are to be kept back.
//!
//! | entry of the line | what happens at the front | what those behind it do |
//! |---|---|---|
//! | a waiter | takes its permits, and is woken with the answer | wait |
//! | a place that stands | rings its composite, and takes nothing | wait, until the composite takes, parks or leaves |
//!
//! | a place of a composite | in the line | holds |
//! |---|---|---|
//! | parked, since the composite waits for something else | no, but it keeps its number | nothing |
//! | stands, since the composite waits for this limit | yes, at its number | nothing |
//!
//! A waiter of more permits than the limit is refused under the same lock as the limit is lowered.
//! It is found by size, wherever it stands, so it holds up no other waiter.
//!
//! # Ordering
//!
//! | operation | ordering | pairs with | what it protects |
//! |---|---|---|---|
//! | permits are taken: an exchange of `word` | Acquire | giving back | what the last holder did with its permit happens before |
//! | permits are given back: an addition to `word` | Release | taking | the same |
//! | the flag is raised and lowered, under the lock | Relaxed | | see below |
//! | `limit` and `lowered`, written under the lock | Relaxed | | `limit` gives refusals their reason; `word` alone decides |
//! | the line | under the lock | | |
//!
//! **No lost wake-up.** The bad execution: a waiter finds no permit and joins the line, a permit is
//! given back in between, and its giver finds no line. The waiter raises the flag before it looks
//! for the last time, and both are operations on `word`, as giving back is. All read-modify-write
//! operations on one word have one order. If the permit is given back before the flag is raised,
//! the waiter's look finds it. If it is given back after, its giver reads the flag, takes the lock
//! and serves the line.
//!
//! **No overtaking.** A request that begins after a waiter has joined reads the flag, at any
//! ordering, by coherence; then it is refused or joins behind. **No permit too many.** An exchange
//! succeeds only on the latest word. The limit is checked first, by a reading that may be old; but
//! the free permits never exceed the limit that `word` was last changed to, so a request above it
//! fails at the exchange.
//!
//! **Why not more.** Two words, one for permits and one for the flag, would need sequential
//! consistency.
//!
//! **Checked by** `loom-tests/limiter/counting.rs`: joining, and standing up, against giving back;
//! leaving against a grant; lowering against joining; with a twin that looks at the flag before it
//! gives back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;
use std::task::{Poll, Waker};

use crate::clock::Timer;
use crate::error::Refusal;
use crate::line::deferred::Deferred;
use crate::line::recheck::Recheck;
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock};

/// The flag of `word`: the line has an entry.
pub(crate) const LINE: u64 = 1;

/// So many entries are answered before the lock is let go for a moment: less than a millisecond.
const SLICE: usize = 1024;

/// What permits weigh in `word`.
pub(crate) const fn weight(n: u32) -> u64 {
    (n as u64) << 1
}

/// The free permits that `word` tells of.
const fn free(word: u64) -> i64 {
    word.cast_signed() >> 1
}

pub(crate) struct Pool {
    pub(crate) word: AtomicU64,
    limit: AtomicU32,
    /// How often the limit was lowered.
    lowered: AtomicU64,
    line: Mutex<Waiters>,
}

/// Numbers of entries and places are given in order of arrival, from 1 on.
struct Waiters {
    entries: BTreeMap<u64, Entry>,
    /// The waiters of more than one permit, by size: a lower limit refuses the largest.
    large: BTreeSet<(u32, u64)>,
    /// The answers that were not seen yet.
    answers: BTreeMap<u64, Result<(), Refusal>>,
    /// All places, parked or in the line.
    places: BTreeMap<u64, Place>,
    last: u64,
    /// Whether the flag of `word` is up.
    flag: bool,
}

enum Entry {
    Waiter { n: u32, waker: Waker },
    Place { n: u32 },
}

struct Place {
    /// Whether its composite knows that its permits are there. Cleared when they are not.
    rung: bool,
    composite: Weak<dyn Recheck>,
}

impl Waiters {
    /// Whether no entry is before this number.
    fn is_first(&self, number: u64) -> bool {
        self.entries.first_key_value().is_none_or(|(first, _)| *first >= number)
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Ends the wait of a waiter in the line.
    fn answer<C: Timer>(&mut self, number: u64, answer: Result<(), Refusal>, deferred: &mut Deferred<C>) {
        if let Some(Entry::Waiter { n, waker }) = self.entries.remove(&number) {
            self.large.remove(&(n, number));
            self.answers.insert(number, answer);
            deferred.wake.push(waker);
        }
    }
}

impl Pool {
    pub(super) fn new(limit: u32) -> Pool {
        let line = Waiters {
            entries: BTreeMap::new(),
            large: BTreeSet::new(),
            answers: BTreeMap::new(),
            places: BTreeMap::new(),
            last: 0,
            flag: false,
        };
        Pool {
            word: AtomicU64::new(weight(limit)),
            limit: AtomicU32::new(limit),
            lowered: AtomicU64::new(0),
            line: Mutex::new(line),
        }
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// How often the limit was lowered.
    pub(super) fn lowered(&self) -> u64 {
        self.lowered.load(Ordering::Relaxed)
    }

    /// How many permits a request would find now: none while others wait.
    pub(super) fn available(&self) -> u32 {
        let word = self.word.load(Ordering::Relaxed);
        if word & LINE != 0 { 0 } else { u32::try_from(free(word).max(0)).unwrap_or(u32::MAX) }
    }

    /// Takes permits unless others wait for them. No lock.
    #[inline]
    pub(super) fn try_take(&self, n: u32) -> bool {
        self.take_if(n, |word| word & LINE == 0)
    }

    /// Takes permits if they are there, and `may` says so of the word.
    #[inline]
    fn take_if(&self, n: u32, may: impl Fn(u64) -> bool) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while may(word) && free(word) >= i64::from(n) {
            let less = word.wrapping_sub(weight(n));
            match self.word.compare_exchange_weak(word, less, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Gives permits back. No lock unless others wait for them.
    #[inline]
    pub(super) fn give_back(&self, n: u32) {
        if self.word.fetch_add(weight(n), Ordering::Release) & LINE != 0 {
            self.serve_line();
        }
    }

    #[cold]
    pub(crate) fn serve_line(&self) {
        self.with_line(&mut Later::new(), |_, _| ());
    }

    /// Changes the limit. Permits that are out stay out.
    pub(super) fn set_limit(&self, limit: u32) {
        self.with_line(&mut Later::new(), |line, deferred| {
            let before = self.limit.swap(limit, Ordering::Relaxed);
            let more = i64::from(limit) - i64::from(before);
            self.word.fetch_add(more.cast_unsigned() << 1, Ordering::Relaxed);
            if more < 0 {
                // Before the composites are rung, which compare it.
                self.lowered.fetch_add(1, Ordering::Relaxed);
                deferred.rechecks.extend(line.places.values().filter_map(|place| place.composite.upgrade()));
            }
        });
    }

    /// Runs `work` with the line and serves it. Foreign code is left in `deferred`, which runs
    /// without the lock.
    fn with_line<C: Timer, T>(
        &self,
        deferred: &mut Deferred<C>,
        work: impl FnOnce(&mut Waiters, &mut Deferred<C>) -> T,
    ) -> T {
        let mut line = lock(&self.line);
        let result = work(&mut line, deferred);
        while !self.serve(&mut line, deferred) {
            drop(line);
            std::thread::yield_now();
            line = lock(&self.line);
        }
        result
    }

    /// Refuses all that exceed the limit, and grants in order what is there. Returns whether that
    /// is done, or a slice of it.
    fn serve<C: Timer>(&self, line: &mut MutexGuard<'_, Waiters>, deferred: &mut Deferred<C>) -> bool {
        self.raise_flag(line);
        let limit = self.limit();
        for _ in 0..SLICE {
            if let Some(&(requested, number)) = line.large.last()
                && requested > limit
            {
                let refusal = Refusal::ExceedsLimit { requested, limit };
                line.answer(number, Err(refusal), deferred);
                continue;
            }
            match line.entries.first_key_value() {
                None => {
                    if std::mem::take(&mut line.flag) {
                        self.word.fetch_and(!LINE, Ordering::Relaxed);
                    }
                    return true;
                }
                Some((&number, &Entry::Waiter { n, .. })) => {
                    if !self.take_if(n, |_| true) {
                        return true;
                    }
                    line.answer(number, Ok(()), deferred);
                }
                Some((&number, &Entry::Place { n })) => {
                    if self.has_free(n)
                        && let Some(place) = line.places.get_mut(&number)
                        && !std::mem::replace(&mut place.rung, true)
                    {
                        deferred.rechecks.extend(place.composite.upgrade());
                    }
                    return true;
                }
            }
        }
        false
    }

    /// Before the last look at the free permits: from then on, giving back takes the lock.
    fn raise_flag(&self, line: &mut Waiters) {
        if !line.flag && !line.entries.is_empty() {
            line.flag = true;
            self.word.fetch_or(LINE, Ordering::Relaxed);
        }
    }

    fn has_free(&self, n: u32) -> bool {
        free(self.word.load(Ordering::Relaxed)) >= i64::from(n)
    }
}

/// Waiters.
impl Pool {
    /// Takes permits, or joins the line behind all others with a waker that is called with the
    /// answer. The error is its number.
    pub(super) fn join(&self, n: u32, waker: Waker, deferred: &mut Later) -> Result<(), u64> {
        self.with_line(deferred, |line, deferred| {
            if line.entries.is_empty() && self.take_if(n, |_| true) {
                deferred.discard.push(waker);
                return Ok(());
            }
            let number = line.number();
            line.entries.insert(number, Entry::Waiter { n, waker });
            if n > 1 {
                // One permit is never refused: another limit may allow it.
                line.large.insert((n, number));
            }
            Err(number)
        })
    }

    /// Takes the answer of a waiter, or leaves it another waker.
    pub(super) fn look(&self, number: u64, waker: Waker, deferred: &mut Later) -> Poll<Result<(), Refusal>> {
        self.with_line(deferred, |line, deferred| {
            let unused = match line.entries.get_mut(&number) {
                Some(Entry::Waiter { waker: old, .. }) => std::mem::replace(old, waker),
                Some(Entry::Place { .. }) | None => waker,
            };
            deferred.discard.push(unused);
            match line.answers.remove(&number) {
                Some(answer) => Poll::Ready(answer),
                None => Poll::Pending,
            }
        })
    }

    /// Drops a waiter at any stage. A grant of `n` permits that it has not seen is given back.
    pub(super) fn leave(&self, number: u64, n: u32) {
        self.with_line(&mut Later::new(), |line, deferred| {
            if let Some(Entry::Waiter { waker, .. }) = line.entries.remove(&number) {
                line.large.remove(&(n, number));
                deferred.discard.push(waker);
            }
            if let Some(Ok(())) = line.answers.remove(&number) {
                self.word.fetch_add(weight(n), Ordering::Release);
            }
        });
    }
}

/// Places of composites. Called with the composite's lock held, which comes before this
/// one.
impl Pool {
    /// Takes a place behind all others, parked. Its composite is rung when a limit is lowered.
    pub(super) fn sit(&self, composite: Weak<dyn Recheck>) -> u64 {
        let mut line = lock(&self.line);
        let number = line.number();
        line.places.insert(number, Place { rung: false, composite });
        number
    }

    /// Whether `n` permits are there for the place. Number 0 is a newcomer.
    pub(super) fn has_turn(&self, number: u64, n: u32) -> bool {
        match number {
            0 => self.available() >= n,
            _ => lock(&self.line).is_first(number) && self.has_free(n),
        }
    }

    /// Takes `n` permits at the turn of the place.
    pub(super) fn take_turn(&self, number: u64, n: u32) -> bool {
        match number {
            0 => self.try_take(n),
            _ => lock(&self.line).is_first(number) && self.take_if(n, |_| true),
        }
    }

    /// Puts the place in the line, for `n` permits. Returns whether they are there; if not, the
    /// composite is rung when they are.
    pub(super) fn stand<C: Timer>(&self, number: u64, n: u32, deferred: &mut Deferred<C>) -> bool {
        self.with_line(deferred, |line, _| {
            line.entries.insert(number, Entry::Place { n });
            self.raise_flag(line);
            let turn = line.is_first(number) && self.has_free(n);
            if let Some(place) = line.places.get_mut(&number) {
                place.rung = turn;
            }
            turn
        })
    }

    /// Takes the place out of the line; it keeps its number.
    pub(super) fn park<C: Timer>(&self, number: u64, deferred: &mut Deferred<C>) {
        self.with_line(deferred, |line, _| line.entries.remove(&number));
    }

    /// Gives the place up.
    pub(super) fn rise<C: Timer>(&self, number: u64, deferred: &mut Deferred<C>) {
        self.with_line(deferred, |line, _| {
            line.entries.remove(&number);
            line.places.remove(&number);
        });
    }
}

/// What is left for when the lock is gone. A counting limit has no alarms, so any clock will do.
pub(super) type Later = Deferred<crate::clock::ManualClock>;
