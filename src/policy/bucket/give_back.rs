//! Calls that put tokens back into a bucket, and calls that take them unconditionally. These calls
//! cannot be refused.

use std::convert::Infallible;

use crate::policy::atomic_word::update;
use crate::policy::bucket::terms::{More, Numbers};
use crate::policy::bucket::{Bucket, BucketCharge, BucketState};
use crate::policy::remainder::Remainder;
use crate::policy::{Standstill, ticks};
use crate::sync::Ordering;
use crate::time::Nanos;

impl Bucket {
    pub(crate) fn undo(&self, state: &BucketState, at: Nanos, charge: BucketCharge, most: u64) -> u64 {
        let whole = charge.n > 0 && charge.used == 0;
        move_to(state, |zero| {
            let (numbers, more) = self.settled();
            if zero == charge.after && whole && most == u64::MAX {
                // Nothing happened since the grant: restore the word before it.
                return (charge.before, numbers.step_tick(charge.before));
            }
            let own = numbers.step_tick(zero);
            if own == ticks::NEVER {
                // The debt has saturated, so its amount is lost and it stays.
                return (zero, own);
            }
            let price = paid(&numbers, &more, charge);
            let room = match most {
                u64::MAX => numbers.step_tick(charge.after).saturating_sub(self.floor(&numbers, at)),
                most => most,
            };
            let own = own.saturating_sub(price.min(room));
            (numbers.word_of(own), own)
        })
    }

    /// See [`Policy::moved`](crate::policy::Policy::moved). Levels are the bucket's step clock.
    #[inline]
    pub(crate) fn moved(&self, charge: BucketCharge) -> (u64, u64) {
        if charge.n == 0 {
            return (0, 0);
        }
        if charge.used == 0 {
            let (numbers, price) = self.price(charge.n);
            let after = numbers.step_tick(charge.after);
            return (after.saturating_sub(price), after);
        }
        let (numbers, more) = self.numbers_and_more();
        let after = numbers.step_tick(charge.after);
        (after.saturating_sub(paid(&numbers, &more, charge)), after)
    }

    /// See [`Policy::full_level`](crate::policy::Policy::full_level).
    #[inline]
    pub(crate) fn full_level(&self, at: Nanos) -> u64 {
        self.floor(&self.price(1).0, at)
    }

    /// See [`Policy::level_unit`](crate::policy::Policy::level_unit).
    pub(crate) fn level_unit(&self) -> (u64, u64) {
        let [_, ticks, permits] = self.numbers_and_more().1.interval.to_words();
        (ticks, permits)
    }

    /// Returns the level of a full bucket: when it was empty, by its step clock.
    #[inline]
    fn floor(&self, numbers: &Numbers, at: Nanos) -> u64 {
        numbers.tick(at).saturating_sub(numbers.capacity)
    }

    pub(crate) fn refund(&self, state: &BucketState, at: Nanos, n: u32) -> u64 {
        move_to(state, |word| {
            let (numbers, more) = self.settled();
            let (floor, zero) = (self.floor(&numbers, at), numbers.step_tick(word));
            let new = numbers.word_of(zero.saturating_sub(more.interval.worth(n)).max(floor)).min(word);
            (new, numbers.step_tick(new))
        })
    }

    /// See [`Shut`](crate::policy::remainder::Shut).
    pub(crate) fn shut(&self, state: &BucketState, now: &dyn Fn() -> Nanos) -> Remainder {
        // Relaxed: one swap, which reads the newest word. The word publishes nothing else.
        let zero = state.zero.swap(ticks::NEVER, Ordering::Relaxed);
        let at = now();
        let (numbers, more) = self.numbers_and_more();
        let debt = match numbers.step_tick(zero) {
            ticks::NEVER => ticks::NEVER,
            own => own.saturating_sub(numbers.tick(at)),
        };
        Remainder::of(self.status(zero, at)).owing(debt, more.interval)
    }

    pub(crate) fn unspent(charge: BucketCharge, n: u32, used: u32) -> Option<BucketCharge> {
        (used < n).then(|| BucketCharge { used: charge.used.saturating_add(used), ..charge })
    }

    /// See [`Policy::pause`](crate::policy::Policy::pause).
    pub(crate) fn pause(&self, state: &BucketState, stop: Standstill) -> u64 {
        move_to(state, |zero| {
            let (numbers, _) = self.settled();
            let zero = numbers.paused(zero, self.held(&numbers), stop);
            (zero, numbers.step_tick(zero))
        })
    }

    pub(crate) fn debit(&self, state: &BucketState, at: Nanos, n: u32) {
        move_to(state, |zero| {
            let (numbers, more) = self.settled();
            if numbers.is_unlimited() || n == 0 {
                return (zero, 0);
            }
            let price = numbers.price(&more, n);
            let floor = numbers.tick(at).saturating_sub(self.reach(&numbers, price));
            (numbers.word_of(numbers.step_tick(zero).max(floor).saturating_add(price)), 0)
        });
    }
}

impl Bucket {
    /// See [`Policy::keep_at_most`](crate::policy::Policy::keep_at_most).
    pub(crate) fn keep_at_most(&self, state: &BucketState, at: Nanos, permits: u64) -> u64 {
        let taken = update(&state.zero, |word| {
            let (numbers, more) = self.settled();
            if numbers.is_unlimited() {
                return Err(());
            }
            let (zero, available) = self.available(&numbers, &more, word, at);
            if available <= permits {
                return Err(());
            }
            // A tolerance may hold more permits than are reported as available.
            let taken = numbers.tick(at).saturating_sub(zero) / numbers.one - permits;
            // This does not overflow: the stored tokens are worth as much.
            Ok((numbers.word_of(zero + taken * numbers.one), taken))
        });
        taken.unwrap_or(0)
    }
}

/// Moves the state, whatever it is, and returns the level that belongs to it.
fn move_to(state: &BucketState, target: impl Fn(u64) -> (u64, u64)) -> u64 {
    let Ok(level) = update(&state.zero, |zero| Ok::<_, Infallible>(target(zero)));
    level
}

/// Returns the cost of the part of a grant that is given back.
fn paid(numbers: &Numbers, more: &More, charge: BucketCharge) -> u64 {
    let price = numbers.price(more, charge.n);
    if charge.used == 0 {
        return price;
    }
    // A grant for only the used permits would not have found more than a full bucket.
    price.min(numbers.capacity).saturating_sub(numbers.price(more, charge.used))
}
