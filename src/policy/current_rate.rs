//! The rate that is in force: as it was given, and as the interval it makes, replaced together.

use crate::policy::interval::Interval;
use crate::policy::published::Published;
use crate::rate::Rate;

#[derive(Debug)]
pub(crate) struct CurrentRate {
    /// The rate (three words), then the interval (three words).
    words: Published<6>,
}

impl CurrentRate {
    pub(crate) fn new(rate: Rate) -> CurrentRate {
        CurrentRate { words: Published::new(words(rate)) }
    }

    pub(crate) fn set(&self, rate: Rate) {
        self.words.publish(words(rate));
    }

    pub(crate) fn rate(&self) -> Rate {
        Rate::from_words(self.words.read(0))
    }

    #[inline]
    pub(crate) fn interval(&self) -> Interval {
        Interval::from_words(self.words.read(3))
    }
}

fn words(rate: Rate) -> [u64; 6] {
    let [digits, exponent, period] = rate.to_words();
    let [one, ticks, permits] = Interval::new(rate).to_words();
    [digits, exponent, period, one, ticks, permits]
}
