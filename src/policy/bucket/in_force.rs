//! The terms of a bucket in force, and how a change replaces them.
//!
//! # Memory ordering
//!
//! The terms are seventeen words that are read as one through `policy/published.rs`. Three
//! additional words, in [`Hot`], decide about a single permit of a plain bucket.
//!
//! No single CAS replaces the state word and the terms together. So a change closes the bucket,
//! converts the word, publishes the terms, and opens the bucket. A request takes by the old terms
//! from the old word, or by the new terms from the new word, as if the conversion replaced both at
//! once:
//!
//! | bucket | word | terms | a request |
//! |---|---|---|---|
//! | open | old | old | takes by the old terms |
//! | closed | old | old | retries, and then is refused for the shortest possible time |
//! | closed | new | old, or some old and some new | retries, and then is refused likewise |
//! | open | new | new | takes by the new terms |
//!
//! Without the closed rows, a changing thread that stalls there would combine a new word with old
//! terms. Stored tokens that the conversion made longer, as for a slower rate, could be taken at
//! the old cost.
//!
//! A change holds the lock of the words' writer. Only a change writes `mode` and the terms.
//!
//! | operation | ordering | pairs with | why |
//! |---|---|---|---|
//! | 1 `mode` is closed: store | Relaxed | | the conversion publishes it |
//! | 2 the word is converted: CAS | Release | 4 | a request that reads this word, or a word made from it, finds the bucket closed, or open by the new terms |
//! | 3 the terms are stored, then `mode` | Release | 5 | a request that finds the bucket open by the new terms finds the new terms |
//! | 4 load of the word | Acquire | 2 | as above |
//! | 5 after the word: load of `mode`, then of the terms | Acquire | 3 | a request that reads a new term comes after the conversion |
//!
//! **Why enough.** There are two bad executions: a request takes from the new word by an old term,
//! or from the old word by a new term. The first: the request has loaded the new word in 4, so in 5
//! it finds `mode` closed or newer. If `mode` is open again, it is open by the new terms, and all
//! terms are new. The second: the request has loaded a new term in 5, so its CAS comes after the
//! conversion, and does not find the old word. **Why not more.** A request that takes from a word
//! makes a CAS, too, which continues what the conversion published, at any ordering.
//!
//! **What remains.** A CAS distinguishes words, not terms. A change may leave the word as it is: no
//! tokens are stored, only the burst becomes larger, or the bucket is to stand still. Then one
//! request that stalled meanwhile takes by the old terms, and finds the tokens that accrued at the
//! old rate until the time of its call. Likewise, if grants by the new terms move the word back to
//! exactly the old value, a request that stalled all the while pays the old cost.
//!
//! **Time.** A word later than the time of the change is a debt, and a higher rate repays it
//! sooner. The bad execution is a request that reads the clock after the change did, takes a whole
//! burst before the conversion, and leaves a word that looks like a debt: the burst would be there
//! again. So the conversion reads the clock after it has loaded the word in 4. A request reads the
//! clock before it makes that word in its CAS. If the CAS comes before the load, the clock of the
//! conversion is no earlier, because clocks are read in the order of threads that see each other's
//! words. Loom does not reorder a reading of its clock with the load before it.
//!
//! Giving back and charging cannot be refused, so these calls wait until the bucket is open. In a
//! limiter they never meet a change, because both hold the lock of the queue. In a policy that is
//! used without a limiter, they may count by the old terms if the word stays as it is.
//!
//! **Checked by** `loom-tests/change.rs`, with twins that ignore that the bucket is closed and that
//! read the terms before the word, and by `tests/policy/stress.rs`. Loom does not reorder a load
//! behind a later CAS, so the second bad execution is covered only by the argument.

use std::convert::Infallible;

use crate::error::PolicyError;
use crate::policy::atomic_word::convert;
use crate::policy::bucket::terms::{More, Numbers, Terms, carried_over, small, words};
use crate::policy::bucket::{Bucket, BucketState};
use crate::policy::interval::Interval;
use crate::policy::{Change, Keep, ticks};
use crate::rate::Rate;
use crate::sync::{AtomicU64, Ordering};
use crate::time::Nanos;

/// Open: tokens accrue all the time, and the bucket can hold the cost of one permit.
pub(super) const PLAIN: u64 = 0;
/// Open: tokens arrive in steps. All numbers are read as one, because the steps of two rates make
/// no sense together.
pub(super) const IN_STEPS: u64 = 1;
/// Open: unlimited, or no tokens accrue, or too small for one permit.
const OTHER: u64 = 2;
/// Closed: a change is replacing the terms, and no request passes.
pub(super) const CLOSED: u64 = 3;

/// The numbers that decide about one permit while the bucket is [`PLAIN`].
pub(super) struct Hot {
    /// [`PLAIN`], [`IN_STEPS`], [`OTHER`] or [`CLOSED`].
    pub(super) mode: AtomicU64,
    /// The cost of one permit.
    pub(super) one: AtomicU64,
    /// How many ticks of tokens a full bucket holds after one permit is taken. A request may read a
    /// cost and a capacity of different terms, and the sum could put the word beyond now. With this
    /// number instead of the capacity, no two numbers can.
    pub(super) rest: AtomicU64,
}

impl Hot {
    /// Returns the mode of a bucket with these numbers.
    fn mode(numbers: &Numbers) -> u64 {
        let flows = numbers.frozen_at == ticks::NEVER && !numbers.is_unlimited();
        match numbers.step {
            _ if !flows || numbers.one > numbers.capacity => OTHER,
            0 => PLAIN,
            _ => IN_STEPS,
        }
    }

    fn words(numbers: &Numbers) -> [u64; 3] {
        [Hot::mode(numbers), numbers.one, numbers.capacity.saturating_sub(numbers.one)]
    }

    pub(super) fn new(numbers: &Numbers) -> Hot {
        let [mode, one, rest] = Hot::words(numbers).map(AtomicU64::new);
        Hot { mode, one, rest }
    }

    /// Opens the bucket with these numbers.
    fn open(&self, numbers: &Numbers) {
        let [mode, one, rest] = Hot::words(numbers);
        // The mode comes last: a request that finds the bucket open finds these numbers. Release,
        // for each: a request that reads one of them comes after the conversion (3).
        self.one.store(one, Ordering::Release);
        self.rest.store(rest, Ordering::Release);
        self.mode.store(mode, Ordering::Release);
    }

    /// Returns the numbers of a bucket that is [`PLAIN`], and the cost of a permit.
    #[inline]
    fn numbers(&self) -> (Numbers, u64) {
        // The two may belong to different terms, which is harmless in a check that decides nothing.
        // Acquire: as for a request (5).
        let [one, rest] = [&self.one, &self.rest].map(|word| word.load(Ordering::Acquire));
        let capacity = rest.saturating_add(one);
        (Numbers { one, capacity, frozen_at: ticks::NEVER, step: 0, shift: 0, gain: 0 }, one)
    }
}

/// Opens the bucket with these numbers when it is dropped.
struct Opens<'a> {
    hot: &'a Hot,
    numbers: Numbers,
}

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.hot.open(&self.numbers);
    }
}

impl Bucket {
    pub(crate) fn terms(&self) -> Terms {
        let [burst, tolerance, stepped, anchor, digits, exponent, period] = self.words.read(10);
        Terms {
            rate: Rate::from_words([digits, exponent, period]),
            burst: small(burst),
            tolerance,
            stepped: stepped > 0,
            anchor: anchor.cast_signed(),
        }
    }

    /// Returns the burst, or what the bucket holds of it at its rate.
    pub(crate) fn burst_in_force(&self) -> u32 {
        let (terms, (numbers, more)) = (self.terms(), self.numbers_and_more());
        if numbers.frozen_at < ticks::NEVER || terms.burst == 0 {
            return terms.burst;
        }
        let room = ticks::ORIGIN - numbers.step;
        let holds = |burst: &u32| Terms { burst: *burst, ..terms }.fill(more.interval) <= room;
        let most = small(more.interval.permits_in(room.saturating_sub(terms.tolerance)));
        // The bucket may need a little more room than its permits.
        let most = most.clamp(1, terms.burst);
        if holds(&most) { most } else { most.saturating_sub(1).max(1) }
    }

    pub(super) fn numbers_and_more(&self) -> (Numbers, More) {
        let [one, capacity, frozen_at, step, shift, gain, same, ticks, permits, most] = self.words.read(0);
        let interval = Interval::from_words([same, ticks, permits]);
        (Numbers { one, capacity, frozen_at, step, shift, gain }, More { interval, most: small(most) })
    }

    /// Returns the cost of `n` permits, and the numbers of the terms to which it belongs.
    #[inline]
    pub(crate) fn published(&self, n: u32) -> (Numbers, u64) {
        let (numbers, more) = self.numbers_and_more();
        (numbers, numbers.price(&more, n))
    }

    /// Returns the cost of `n` permits and the numbers, for a check that decides nothing.
    #[inline]
    pub(super) fn price(&self, n: u32) -> (Numbers, u64) {
        // Acquire: a bucket that is open by new terms shows the new cost (5).
        match self.hot.mode.load(Ordering::Acquire) {
            PLAIN if n == 1 => self.hot.numbers(),
            _ => self.published(n),
        }
    }

    /// Returns the numbers for a word that was loaded before, once the bucket is open. It may wait
    /// for a change, so it is only for calls that cannot be refused.
    pub(super) fn settled(&self) -> (Numbers, More) {
        // Acquire: an open bucket shows its terms (5).
        if self.hot.mode.load(Ordering::Acquire) == CLOSED {
            // The change that closed the bucket holds the writer's lock until the bucket is open.
            drop(self.words.writer());
        }
        self.numbers_and_more()
    }

    pub(crate) fn change(
        &self,
        state: &BucketState,
        at: Nanos,
        now: &dyn Fn() -> Nanos,
        change: Change,
    ) -> Result<u64, PolicyError> {
        let writer = self.words.writer();
        let terms = self.terms().changed(change);
        let old = self.numbers_and_more();
        let tick = ticks::from_nanos(at);
        // A bucket without a limit is full as soon as time passes, so record since when there is no
        // limit.
        let goes_on = old.0.is_unlimited() && terms.rate.is_unlimited();
        let since = if goes_on { old.0.frozen_at } else { tick };
        // A new rate by itself is never refused, and `LeakyBucket` cuts its nodelay permits.
        let new = match change.burst {
            Some(_) if !self.grows_to_fit => terms.numbers(since, old.1.interval)?,
            _ => terms.rounded_numbers(since, old.1.interval),
        };
        // A request that is larger than the bucket keeps the tokens that accrued for it, unless the
        // bucket changes: in a larger one they would be tokens of all requests.
        let is_limited = !old.0.is_unlimited() && !new.0.is_unlimited();
        let holds_more = self.grows_to_fit && terms.burst == self.terms().burst && is_limited;
        let filled = old.0.is_unlimited() && !goes_on && tick > old.0.frozen_at;
        // Relaxed: the conversion publishes it (1).
        self.hot.mode.store(CLOSED, Ordering::Relaxed);
        // If the clock panics, nothing has changed.
        let mut opens = Opens { hot: &self.hot, numbers: old.0 };
        let Ok(level) = convert(&state.zero, |zero| {
            // After the word: see "Time".
            let at = now().max(at);
            // Without a limit, and if no permits are kept, it is unknown what earlier grants took.
            let (word, kept) = match change.keep.unwrap_or(Keep::Count) {
                Keep::Nothing => (self.starting_word(new, terms.burst, at), false),
                _ if filled => (new.0.word_of(new.0.tick(at).saturating_sub(new.0.capacity)), false),
                keep => (carried_over(zero, at, old, new, keep, holds_more), keep == Keep::Count),
            };
            Ok::<_, Infallible>((word, if kept { new.0.step_tick(word) } else { 0 }))
        });
        writer.publish(words(terms, new));
        opens.numbers = new.0;
        Ok(level)
    }
}

impl Clone for Bucket {
    /// Copies all words, not only the terms: terms do not record since when no tokens accrue, nor
    /// what a token was worth until then.
    fn clone(&self) -> Bucket {
        let (words, [one, capacity, frozen_at, step, shift, gain, ..]) = self.words.copy();
        let hot = Hot::new(&Numbers { one, capacity, frozen_at, step, shift, gain });
        Bucket { hot, words, start: self.start, grows_to_fit: self.grows_to_fit, wall_clock: self.wall_clock }
    }
}
