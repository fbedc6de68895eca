//! The rate in force, as it was given and as an interval. A change replaces both together.
//!
//! # Memory ordering
//!
//! The cost of one permit has a word of its own, so that the most common request, for one permit,
//! needs one load. The load is relaxed: the word is whole by itself, and a request that overlaps
//! with a change may pay either cost, if there was a rate before it. All other numbers are read as
//! one through [`Published`].

use std::fmt;

use crate::policy::interval::Interval;
use crate::policy::published::Published;
use crate::policy::ticks;
use crate::rate::Rate;
use crate::sync::{AtomicU64, Ordering};

pub(crate) struct CurrentRate {
    /// The cost of one permit, in ticks.
    one: AtomicU64,
    /// The rate, the interval, and the interval by which stored permits are counted: three words
    /// each.
    words: Published<9>,
}

impl CurrentRate {
    pub(crate) fn new(rate: Rate) -> CurrentRate {
        let interval = Interval::new(rate);
        let words = Published::new(words(rate, interval, interval));
        CurrentRate { one: AtomicU64::new(interval.price(1)), words }
    }

    pub(crate) fn set(&self, rate: Rate) {
        let interval = Interval::new(rate);
        let writer = self.words.writer();
        let counted = if interval.is_zero() { self.counted() } else { interval };
        writer.publish(words(rate, interval, counted));
        // The cost is stored before another writer can begin. Relaxed: a request that overlaps with
        // this may pay either cost, and each is whole.
        self.one.store(interval.price(1), Ordering::Relaxed);
    }

    pub(crate) fn rate(&self) -> Rate {
        Rate::from_words(self.words.read(0))
    }

    /// Returns the cost of `n` permits now.
    #[inline]
    pub(crate) fn price(&self, n: u32) -> u64 {
        // Relaxed: the cost of one permit is whole by itself.
        if n == 1 { self.one.load(Ordering::Relaxed) } else { self.interval().price(n) }
    }

    /// Returns whether there are no permits.
    #[inline]
    pub(crate) fn is_zero(&self) -> bool {
        // Relaxed: the cost only says whether to check the interval, which decides.
        self.one.load(Ordering::Relaxed) == ticks::NEVER && self.has_no_permits()
    }

    /// Returns whether the interval has no permits: apart from the common path, which stays short.
    #[cold]
    fn has_no_permits(&self) -> bool {
        self.interval().is_zero()
    }

    #[inline]
    pub(crate) fn interval(&self) -> Interval {
        Interval::from_words(self.words.read(3))
    }

    /// Returns the interval by which stored permits are counted: without a rate, the last one.
    pub(crate) fn counted(&self) -> Interval {
        Interval::from_words(self.words.read(6))
    }
}

impl Clone for CurrentRate {
    fn clone(&self) -> CurrentRate {
        let words: [u64; 9] = self.words.read(0);
        let interval = Interval::from_words([words[3], words[4], words[5]]);
        CurrentRate { one: AtomicU64::new(interval.price(1)), words: Published::new(words) }
    }
}

impl fmt::Debug for CurrentRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rate().fmt(f)
    }
}

fn words(rate: Rate, interval: Interval, counted: Interval) -> [u64; 9] {
    let [digits, exponent, period] = rate.to_words();
    let [one, ticks, permits] = interval.to_words();
    let [counted_one, counted_ticks, counted_permits] = counted.to_words();
    [digits, exponent, period, one, ticks, permits, counted_one, counted_ticks, counted_permits]
}
