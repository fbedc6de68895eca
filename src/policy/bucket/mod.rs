//! The bucket: the one word behind [`TokenBucket`](super::TokenBucket) and
//! [`LeakyBucket`](super::LeakyBucket).
//!
//! # Algorithm
//!
//! A bucket holds up to *burst* tokens; they come in at a rate, and a request takes as many as it
//! asks for, or none. The plain way keeps two numbers: how many there are, and when that was. One
//! will do: the time *Z* at which the bucket was, or would have been, empty. The tokens are `(now -
//! Z) / interval`, and what came in before `now - burst * interval` has overflowed.
//!
//! This is the Generic Cell Rate Algorithm: its *theoretical arrival time* is *Z* plus the burst,
//! its increment the interval, its limit the burst less one permit. It is the leaky bucket as a
//! meter, too: what is missing from a full bucket of tokens is the water in the other one. Three
//! names, one word.
//!
//! A request of `n` pays **before** it passes: it is due at *Z* plus the price of `n`, and moves
//! *Z* there. Guava's [`SmoothBursty`](super::SmoothBursty) is the same word with the other
//! comparison: due at *Z*, and the next one pays.
//!
//! Tokens that come in steps, `k` at once each `t`, are the same rule on a clock that goes on once
//! per `t`, by the price of `k` tokens, or of as many as fit into the bucket. The word stays a time
//! on the common clock: it is put on the bucket's own clock to compute, and back to be stored. No
//! tokens at all is the same rule on a clock that stands still.
//!
//! # State word
//!
//! | bits | name | unit | range | at the edges |
//! |---|---|---|---|---|
//! | 0..64 | *Z* | 1/16 ns | 2.28 years before to 34 years after the clock's beginning | a request pays before, so a grant never moves it beyond now; a debit does, and saturates: limited for ever |
//!
//! # Rounding
//!
//! The price of a request is rounded up to whole ticks once, and due times up to whole nanoseconds.
//! Where the interval is not a whole number of nanoseconds, a burst taken one by one would miss its
//! last permit by those roundings, and a caller that comes exactly when told would lose a little
//! each time. So the bucket is larger by just that much: by what the burst costs more one by one
//! than at once, and a nanosecond; never more than 50 ns, nor a whole permit.
//!
//! # Memory ordering
//!
//! One word under the shared loop: see `policy/cell.rs`. The numbers are read as one through
//! `policy/published.rs`; the two that decide about a single permit of a plain bucket have words of
//! their own.
//!
//! **A change** closes the bucket, converts the word, replaces the numbers, and opens the bucket.
//! While it is closed nobody passes. So a request takes by the old terms from the old word, or by
//! the new terms from the new one, as if all were replaced at once, in the exchange that converts
//! the word:
//!
//! | bucket | word | numbers | a request |
//! |---|---|---|---|
//! | open | old | old | takes by the old terms |
//! | closed | old | old | looks again, and is refused for the shortest time there is |
//! | closed | new | old, or some of each | the same |
//! | open | new | new | takes by the new terms |
//!
//! Without the second and third row a thread that stalls there would leave old numbers to a new
//! word: a stock that the conversion made longer, as for a slower rate, could be had at the old
//! price.
//!
//! | operation | ordering | pairs with | why |
//! |---|---|---|---|
//! | `way` is closed | Relaxed | | the next one publishes it |
//! | the word is converted | Release | the load of the word | whoever sees this word, or one that others made of it, finds the bucket closed or open by the new terms |
//! | the numbers are stored, then `way` | Release | their loads | whoever finds it open by the new terms finds the new numbers |
//! | after the word `way` is loaded, then the numbers | Acquire | their stores | whoever finds a new number comes after the conversion |
//!
//! **Why enough.** The bad executions are an old number for the new word, and a new one for the old
//! word. The first: the word was loaded with Acquire, so `way` shows at least that the bucket is
//! closed. If it shows that it is open, it is so by the new terms, and all numbers are new. The
//! second: the new number was stored after the conversion and loaded with Acquire, so the exchange
//! comes after the conversion and does not find the old word. **Why not more.** What others make of
//! a word is an exchange, too, which carries on what the conversion published, at any ordering.
//!
//! **What is left.** An exchange tells words apart, not terms. Where a change leaves the word as it
//! is, because nothing is in stock, only the burst becomes larger, or the bucket is to stand still,
//! one request that stalled meanwhile passes by the old terms, and finds what came in at the old
//! rate until its own time. Where others take by the new terms and arrive at the old word, to a
//! sixteenth of a nanosecond, one that stalled all the while pays the old price.
//!
//! Giving back and charging cannot be refused, so they wait until the bucket is open. A limiter's
//! own never meet a change, since both hold the queue's lock. Those of a policy that is used alone
//! may count by the old terms where the word stays as it is.
//!
//! **Checked by** `loom-tests/change.rs`, with twins that ignore that the bucket is closed, and
//! that read the numbers before the word; and by `tests/policy/stress.rs`. Loom does not reorder a
//! load behind a later exchange, so the second bad execution rests on the argument.

mod leaky;
mod terms;
mod token;

pub use leaky::LeakyBucket;
pub use token::TokenBucket;

use std::convert::Infallible;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::bucket::terms::{More, Numbers, STILL, Terms, carried_over, small, words};
use crate::policy::cell::{Cell, convert, update};
use crate::policy::interval::Interval;
use crate::policy::published::Published;
use crate::policy::window::nanos_between;
use crate::policy::{Change, Crowd, Forecast, Keep, PolicyStatus, limited, ticks};
use crate::rate::Rate;
use crate::sync::{AtomicU64, LOOKS, Ordering, spin_loop};
use crate::time::Nanos;

/// The state of one [`TokenBucket`](super::TokenBucket) or [`LeakyBucket`](super::LeakyBucket): a
/// single word.
#[derive(Debug)]
pub struct BucketState {
    /// The tick at which the bucket would be empty.
    pub(crate) zero: AtomicU64,
}

/// What one grant of a bucket took.
#[derive(Clone, Copy, Debug)]
pub struct BucketCharge {
    n: u32,
    /// How many of these are not to be given back.
    used: u32,
    /// The state right before the grant, and right after.
    before: u64,
    after: u64,
}

impl BucketCharge {
    /// That of a grant without a limit.
    const NONE: BucketCharge = BucketCharge { n: 0, used: 0, before: 0, after: 0 };
}

/// How many tokens there are at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Start {
    Full,
    Tokens(u32),
}

/// The numbers that decide about one permit while the bucket is [`PLAIN`].
struct Hot {
    /// [`PLAIN`], [`IN_STEPS`], [`OTHER`] or [`CLOSED`].
    way: AtomicU64,
    /// The price of one permit.
    one: AtomicU64,
    /// How many ticks of tokens a full bucket holds after one permit is taken. With the stock
    /// itself, a price and a stock of different terms could put the word beyond now; with this no
    /// two numbers can.
    rest: AtomicU64,
}

/// Open, tokens come in all the time, and the bucket can hold the price of one permit.
const PLAIN: u64 = 0;
/// Open, and tokens come in steps. All numbers are read as one, since the steps of one rate make no
/// sense with those of another.
const IN_STEPS: u64 = 1;
/// Open, and unlimited, without any tokens coming in, or too small for a permit.
const OTHER: u64 = 3;
/// The terms are being replaced, and nobody passes.
const CLOSED: u64 = 2;

/// Why a request leaves the state as it is.
pub(crate) enum Stays {
    /// Without a limit there is nothing to take.
    Free,
    Refused(Refusal),
    /// It costs more than these terms ever have in stock.
    Never,
    /// The bucket is closed.
    Closed,
}

pub(crate) struct Bucket {
    hot: Hot,
    /// `Numbers` (six words), `More` (four), and `Terms` (seven).
    words: Published<17>,
    start: Start,
    /// Whether a request that is larger than the bucket waits for its own price, instead of being
    /// refused for ever.
    stretches: bool,
    /// Steps are at this time after the periods of Unix time.
    wall_clock: Option<Duration>,
}

impl Hot {
    /// How a request for one permit finds these numbers.
    fn way(numbers: &Numbers) -> u64 {
        let flows = numbers.stopped == ticks::NEVER && !numbers.is_unlimited();
        match numbers.step {
            _ if !flows || numbers.one > numbers.saved => OTHER,
            0 => PLAIN,
            _ => IN_STEPS,
        }
    }

    fn words(numbers: &Numbers) -> [u64; 3] {
        [Hot::way(numbers), numbers.one, numbers.saved.saturating_sub(numbers.one)]
    }

    fn new(numbers: &Numbers) -> Hot {
        let [way, one, rest] = Hot::words(numbers).map(AtomicU64::new);
        Hot { way, one, rest }
    }

    /// Opens the bucket with these numbers.
    fn open(&self, numbers: &Numbers) {
        let [way, one, rest] = Hot::words(numbers);
        self.one.store(one, Ordering::Release);
        self.rest.store(rest, Ordering::Release);
        self.way.store(way, Ordering::Release);
    }

    /// The numbers of a bucket that is [`PLAIN`], and the price of a permit.
    #[inline]
    fn numbers(&self) -> (Numbers, u64) {
        let [one, rest] = [&self.one, &self.rest].map(|word| word.load(Ordering::Acquire));
        let saved = rest.saturating_add(one);
        (Numbers { one, saved, stopped: ticks::NEVER, step: 0, shift: 0, gain: 0 }, one)
    }
}

impl Bucket {
    pub(crate) fn new(terms: Terms, start: Start, stretches: bool) -> Result<Bucket, PolicyError> {
        terms.numbers(ticks::ORIGIN, Interval::of_ticks(STILL))?;
        if let Start::Tokens(permits) = start
            && permits > terms.burst
        {
            return Err(PolicyError::Stock { permits, burst: terms.burst });
        }
        Ok(Bucket::cut(terms, start, stretches))
    }

    /// A bucket that is cut to what a state can tell.
    pub(crate) fn cut(terms: Terms, start: Start, stretches: bool) -> Bucket {
        let numbers = terms.rounded_numbers(ticks::ORIGIN, Interval::of_ticks(STILL));
        let words = Published::new(words(terms, numbers));
        Bucket { hot: Hot::new(&numbers.0), words, start, stretches, wall_clock: None }
    }

    /// A bucket with other terms.
    pub(crate) fn with(&self, change: impl FnOnce(Terms) -> Terms) -> Result<Bucket, PolicyError> {
        let bucket = Bucket::new(change(self.terms()), self.start, self.stretches)?;
        Ok(Bucket { wall_clock: self.wall_clock, ..bucket })
    }

    /// Steps are at this time after the periods of Unix time.
    pub(crate) fn aligned(self, offset: Duration) -> Bucket {
        Bucket { wall_clock: Some(offset), ..self }
    }

    pub(crate) fn with_epoch(self, unix_time_at_zero: Duration) -> Bucket {
        let Some(offset) = self.wall_clock else { return self };
        let terms = Terms { anchor: nanos_between(offset, unix_time_at_zero), ..self.terms() };
        Bucket { wall_clock: Some(offset), ..Bucket::cut(terms, self.start, self.stretches) }
    }

    pub(crate) fn starting(self, start: Start) -> Result<Bucket, PolicyError> {
        let bucket = Bucket::new(self.terms(), start, self.stretches)?;
        Ok(Bucket { wall_clock: self.wall_clock, ..bucket })
    }

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

    fn numbers_and_more(&self) -> (Numbers, More) {
        let [one, saved, stopped, step, shift, gain, same, ticks, permits, most] = self.words.read(0);
        let interval = Interval::from_words([same, ticks, permits]);
        (Numbers { one, saved, stopped, step, shift, gain }, More { interval, most: small(most) })
    }

    /// What `n` permits cost, beside the numbers of the same publication.
    #[inline]
    pub(crate) fn published(&self, n: u32) -> (Numbers, u64) {
        let (numbers, more) = self.numbers_and_more();
        (numbers, numbers.price(&more, n))
    }

    /// The same for a look that decides nothing, at any time.
    #[inline]
    fn price(&self, n: u32) -> (Numbers, u64) {
        match self.hot.way.load(Ordering::Acquire) {
            PLAIN if n == 1 => self.hot.numbers(),
            _ => self.published(n),
        }
    }

    /// The numbers of a state that was loaded before, for those who can wait until the bucket is
    /// open.
    fn settled(&self) -> (Numbers, More) {
        if self.hot.way.load(Ordering::Acquire) == CLOSED {
            drop(self.words.writer());
        }
        self.numbers_and_more()
    }

    /// How far back tokens for a request of this price can have come in.
    #[inline]
    fn reach(&self, numbers: &Numbers, price: u64) -> u64 {
        if self.stretches { numbers.saved.max(price) } else { numbers.saved }
    }

    pub(crate) fn start(&self, now: Nanos) -> BucketState {
        BucketState { zero: AtomicU64::new(self.starting_word(self.numbers_and_more(), now)) }
    }

    fn starting_word(&self, (numbers, more): (Numbers, More), now: Nanos) -> u64 {
        let stock = match self.start {
            Start::Full => numbers.saved,
            Start::Tokens(permits) => more.interval.price(permits).min(numbers.saved),
        };
        numbers.word(numbers.tick(now).saturating_sub(stock))
    }

    #[inline]
    pub(crate) fn check(&self, n: u32) -> Result<(), Refusal> {
        // One permit can be had some day: at another rate, if not at this one.
        if n == 1 { Ok(()) } else { self.check_by(&self.numbers_and_more().1, n) }
    }

    #[inline]
    fn check_by(&self, more: &More, n: u32) -> Result<(), Refusal> {
        match n {
            0 => Err(Refusal::ZeroPermits),
            2.. if n > more.most && !self.stretches => {
                Err(Refusal::ExceedsLimit { requested: n, limit: more.most })
            }
            _ => Ok(()),
        }
    }

    #[inline]
    pub(crate) fn try_acquire(
        &self,
        state: &BucketState,
        at: Nanos,
        n: u32,
    ) -> Result<BucketCharge, Refusal> {
        if n == 1 { self.try_acquire_one(state, at) } else { self.try_acquire_any(state, at, n, true) }
    }

    /// One permit. This is the rule of [`take`](Bucket::take) for a bucket that is [`PLAIN`], and
    /// no more than that.
    #[inline]
    fn try_acquire_one(&self, state: &BucketState, at: Nanos) -> Result<BucketCharge, Refusal> {
        let tick = ticks::from_nanos(at);
        let answer = update(&state.zero, |zero| {
            if self.hot.way.load(Ordering::Acquire) != PLAIN {
                return Err(None);
            }
            let due = zero.saturating_add(self.hot.one.load(Ordering::Acquire));
            if due > tick {
                return Err(Some(due));
            }
            // Every tick of a time lies further than any stock from zero.
            let after = due.max(tick - self.hot.rest.load(Ordering::Acquire));
            Ok((after, BucketCharge { n: 1, used: 0, before: zero, after }))
        });
        match answer {
            Ok(charge) => Ok(charge),
            Err(Some(due)) => Err(Refusal::Limited { retry_after: ticks::between(tick, due) }),
            Err(None) if self.hot.way.load(Ordering::Relaxed) == IN_STEPS => {
                self.try_acquire_stepped(state, at)
            }
            Err(None) => self.try_acquire_any(state, at, 1, true),
        }
    }

    /// The same for a bucket in steps that is open and has not been full.
    #[inline(never)]
    fn try_acquire_stepped(&self, state: &BucketState, at: Nanos) -> Result<BucketCharge, Refusal> {
        let tick = ticks::from_nanos(at);
        let answer = update(&state.zero, |zero| {
            if self.hot.way.load(Ordering::Acquire) != IN_STEPS {
                return Err(None);
            }
            let [one, saved, stopped, step, shift, gain] = self.words.read(0);
            let numbers = Numbers { one, saved, stopped, step, shift, gain };
            let (after, due) = numbers.interval_refill(zero, one).filter(|_| one <= saved).ok_or(None)?;
            if due > tick {
                return Err(Some(due));
            }
            if !numbers.holds_all_since(zero, tick) {
                return Err(None);
            }
            Ok((after, BucketCharge { n: 1, used: 0, before: zero, after }))
        });
        match answer {
            Ok(charge) => Ok(charge),
            Err(Some(due)) => Err(Refusal::Limited { retry_after: ticks::between(tick, due) }),
            Err(None) => self.try_acquire_any(state, at, 1, true),
        }
    }

    /// Any number of permits by any terms. If the bucket is closed, it is looked at `again`.
    #[inline(never)]
    fn try_acquire_any(
        &self,
        state: &BucketState,
        at: Nanos,
        n: u32,
        again: bool,
    ) -> Result<BucketCharge, Refusal> {
        let answer = update(&state.zero, |zero| {
            if self.hot.way.load(Ordering::Acquire) == CLOSED {
                return Err(Stays::Closed);
            }
            let (numbers, more) = self.numbers_and_more();
            self.check_by(&more, n).map_err(Stays::Refused)?;
            let price = numbers.price(&more, n);
            self.take(zero, at, n, (numbers, price))
        });
        match answer {
            Ok(charge) => Ok(charge),
            Err(Stays::Free) => Ok(BucketCharge::NONE),
            Err(Stays::Refused(refusal)) => Err(refusal),
            Err(Stays::Never) => Err(limited(Nanos::MAX, at)),
            Err(Stays::Closed) if again => self.look_again(state, at, n),
            // Whoever changes it stalls. That is not waited for, and may be over at once.
            Err(Stays::Closed) => Err(limited(at.saturating_add(Nanos::new(1)), at)),
        }
    }

    /// Nearly always terms are replaced within so many looks.
    #[cold]
    fn look_again(&self, state: &BucketState, at: Nanos, n: u32) -> Result<BucketCharge, Refusal> {
        for _ in 0..LOOKS {
            if self.hot.way.load(Ordering::Relaxed) != CLOSED {
                break;
            }
            spin_loop();
        }
        self.try_acquire_any(state, at, n, false)
    }

    /// The rule: the state after a grant, and what it took.
    pub(crate) fn take(
        &self,
        zero: u64,
        at: Nanos,
        n: u32,
        (numbers, price): (Numbers, u64),
    ) -> Result<(u64, BucketCharge), Stays> {
        if numbers.is_unlimited() {
            return Err(Stays::Free);
        }
        let reach = self.reach(&numbers, price);
        if price > reach {
            return Err(Stays::Never);
        }
        let tick = numbers.tick(at);
        let after = numbers.own(zero).max(tick.saturating_sub(reach)).saturating_add(price);
        if after > tick {
            return Err(Stays::Refused(limited(numbers.time_of(after), at)));
        }
        let after = numbers.word(after);
        Ok((after, BucketCharge { n, used: 0, before: zero, after }))
    }

    pub(crate) fn weight(&self, n: u32) -> u64 {
        self.price(n).1
    }

    pub(crate) fn ready_at(&self, state: &BucketState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        let (numbers, price) = self.price(n);
        if numbers.is_unlimited() {
            return at;
        }
        if price > self.reach(&numbers, price) {
            return Nanos::MAX;
        }
        let mut zero = numbers.own(Cell::load(&state.zero));
        if ahead > 0 {
            // Not as if they were one request, which might find more than the bucket holds.
            zero = zero.max(numbers.tick(at).saturating_sub(numbers.saved)).saturating_add(ahead);
        }
        numbers.time_of(zero.saturating_add(price))
    }

    /// Where tokens come in steps, those that do not fit are lost, also while a large request waits
    /// for more. And a request that is larger than the bucket finds what came in for it alone,
    /// which is none of a nanosecond that it was granted late.
    pub(crate) fn one_by_one(&self, largest: u32) -> usize {
        let (numbers, price) = self.published(largest);
        let overflows = numbers.step > 0 && price.saturating_add(numbers.gain) > numbers.saved;
        if overflows || price > numbers.saved { usize::MAX } else { 0 }
    }

    pub(crate) fn forecast(state: &BucketState, at: Nanos) -> Forecast {
        Forecast::with(at, [Cell::load(&state.zero), 0, 0])
    }

    pub(crate) fn foresee(&self, forecast: &mut Forecast, n: u32) -> Nanos {
        let (numbers, price) = self.price(n);
        if numbers.is_unlimited() {
            return forecast.at;
        }
        let reach = self.reach(&numbers, price);
        if price > reach {
            return Nanos::MAX;
        }
        let zero = numbers.own(forecast.numbers[0]);
        let due = forecast.at.max(numbers.time_of(zero.saturating_add(price)));
        if due < Nanos::MAX {
            forecast.at = due;
            forecast.numbers[0] =
                numbers.word(zero.max(numbers.tick(due).saturating_sub(reach)).saturating_add(price));
        }
        due
    }

    /// As if none of them found more than the bucket holds.
    pub(crate) fn foresee_many(&self, forecast: &mut Forecast, crowd: &Crowd) {
        let (numbers, largest) = self.price(crowd.largest);
        // A request that waits lacks some tokens, so of a step no more is lost than this, and the
        // request takes the step.
        let lost = match numbers.step {
            0 if largest > numbers.saved => ticks::PER_NANO,
            0 => 0,
            _ => largest.saturating_add(numbers.gain).saturating_sub(numbers.saved).min(numbers.gain),
        };
        let weight = crowd.weight.saturating_add(lost.saturating_mul(crowd.requests));
        let floor = numbers.tick(forecast.at).saturating_sub(numbers.saved);
        forecast.numbers[0] =
            numbers.word(numbers.own(forecast.numbers[0]).max(floor).saturating_add(weight));
    }

    pub(crate) fn undo(&self, state: &BucketState, at: Nanos, charge: BucketCharge, most: u64) -> u64 {
        let whole = charge.n > 0 && charge.used == 0;
        move_to(state, |zero| {
            let (numbers, more) = self.settled();
            if zero == charge.after && whole && most == u64::MAX {
                // Nothing happened since: as if it had not been.
                return (charge.before, numbers.own(charge.before));
            }
            let own = numbers.own(zero);
            if own == ticks::NEVER {
                // How much is owed is not known any more.
                return (zero, own);
            }
            let price = paid(&numbers, &more, charge);
            let room = match most {
                u64::MAX => numbers.own(charge.after).saturating_sub(self.floor(&numbers, at)),
                most => most,
            };
            let own = own.saturating_sub(price.min(room));
            (numbers.word(own), own)
        })
    }

    /// See [`Policy::moved`](super::Policy::moved). Levels are the bucket's own clock.
    #[inline]
    pub(crate) fn moved(&self, charge: BucketCharge) -> (u64, u64) {
        if charge.n == 0 {
            return (0, 0);
        }
        if charge.used == 0 {
            let (numbers, price) = self.price(charge.n);
            let after = numbers.own(charge.after);
            return (after.saturating_sub(price), after);
        }
        let (numbers, more) = self.numbers_and_more();
        let after = numbers.own(charge.after);
        (after.saturating_sub(paid(&numbers, &more, charge)), after)
    }

    /// See [`Policy::full_level`](super::Policy::full_level).
    #[inline]
    pub(crate) fn full_level(&self, at: Nanos) -> u64 {
        self.floor(&self.price(1).0, at)
    }

    /// See [`Policy::level_unit`](super::Policy::level_unit).
    pub(crate) fn level_unit(&self) -> (u64, u64) {
        let [_, ticks, permits] = self.numbers_and_more().1.interval.to_words();
        (ticks, permits)
    }

    /// When a bucket that is full was empty, by its own clock.
    #[inline]
    fn floor(&self, numbers: &Numbers, at: Nanos) -> u64 {
        numbers.tick(at).saturating_sub(numbers.saved)
    }

    pub(crate) fn refund(&self, state: &BucketState, at: Nanos, n: u32) -> u64 {
        move_to(state, |word| {
            let (numbers, more) = self.settled();
            let (floor, zero) = (self.floor(&numbers, at), numbers.own(word));
            let new = numbers.word(zero.saturating_sub(more.interval.worth(n)).max(floor)).min(word);
            (new, numbers.own(new))
        })
    }

    pub(crate) fn unspent(charge: BucketCharge, n: u32, used: u32) -> Option<BucketCharge> {
        (used < n).then(|| BucketCharge { used: charge.used.saturating_add(used), ..charge })
    }

    pub(crate) fn debit(&self, state: &BucketState, at: Nanos, n: u32) {
        move_to(state, |zero| {
            let (numbers, more) = self.settled();
            if numbers.is_unlimited() || n == 0 {
                return (zero, 0);
            }
            let price = numbers.price(&more, n);
            let floor = numbers.tick(at).saturating_sub(self.reach(&numbers, price));
            (numbers.word(numbers.own(zero).max(floor).saturating_add(price)), 0)
        });
    }

    pub(crate) fn change(&self, state: &BucketState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        let writer = self.words.writer();
        let terms = self.terms().changed(change);
        let old = self.numbers_and_more();
        let tick = ticks::from_nanos(at);
        // No limit fills any bucket in any time: so remember when it began.
        let goes_on = old.0.is_unlimited() && terms.rate.is_unlimited();
        let since = if goes_on { old.0.stopped } else { tick };
        // A new rate alone is never refused.
        let new = match change.burst {
            Some(_) => terms.numbers(since, old.1.interval)?,
            None => terms.rounded_numbers(since, old.1.interval),
        };
        let filled = old.0.is_unlimited() && !goes_on && tick > old.0.stopped;
        // Published by the conversion.
        self.hot.way.store(CLOSED, Ordering::Relaxed);
        let Ok(level) = convert(&state.zero, |zero| {
            // Without a limit, and where no permits are kept, what grants took before is not told
            // apart any more.
            let (word, kept) = match change.keep.unwrap_or(Keep::Count) {
                Keep::Nothing => (self.starting_word(new, at), false),
                _ if filled => (new.0.word(new.0.tick(at).saturating_sub(new.0.saved)), false),
                keep => (carried_over(zero, at, old, new, keep), keep == Keep::Count),
            };
            Ok::<_, Infallible>((word, if kept { new.0.own(word) } else { 0 }))
        });
        writer.publish(words(terms, new));
        self.hot.open(&new.0);
        Ok(level)
    }

    pub(crate) fn status(&self, state: &BucketState, at: Nanos) -> PolicyStatus {
        let (numbers, more) = self.numbers_and_more();
        if numbers.is_unlimited() {
            return PolicyStatus { limit: u64::MAX, available: u64::MAX, full_at: at };
        }
        let (zero, tick) = (numbers.own(Cell::load(&state.zero)), numbers.tick(at));
        let stock = tick.saturating_sub(zero.max(tick.saturating_sub(numbers.saved)));
        let full = more.interval.price(more.most).min(numbers.saved);
        PolicyStatus {
            limit: u64::from(more.most),
            available: (stock / numbers.one).min(u64::from(more.most)),
            full_at: numbers.time_of(zero.saturating_add(full)),
        }
    }

    /// Whether the bucket holds all that it can hold. A full bucket may lack a part of a permit
    /// that no single request sees; a fresh one does not, since a new bucket has that part.
    pub(crate) fn is_fresh(&self, state: &BucketState, at: Nanos) -> bool {
        let (numbers, _) = self.numbers_and_more();
        numbers.is_unlimited()
            || numbers.own(Cell::load(&state.zero)) <= numbers.tick(at).saturating_sub(numbers.saved)
    }

    /// The tokens with their fraction; negative in debt.
    pub(crate) fn tokens(&self, state: &BucketState, at: Nanos) -> f64 {
        let (numbers, more) = self.numbers_and_more();
        let (zero, tick) = (numbers.own(Cell::load(&state.zero)), numbers.tick(at));
        match zero.checked_sub(tick) {
            _ if numbers.is_unlimited() => f64::INFINITY,
            Some(0) => 0.0,
            Some(debt) => -more.interval.permits_in_f64(debt),
            None => {
                let stock = tick - zero.max(tick.saturating_sub(numbers.saved));
                more.interval.permits_in_f64(stock).min(f64::from(more.most))
            }
        }
    }

    pub(crate) fn price_as_time(&self, n: u32) -> Duration {
        ticks::between(0, self.price(n).1).as_duration()
    }
}

/// Moves the state, whatever it is, and returns the level that belongs to it.
fn move_to(state: &BucketState, target: impl Fn(u64) -> (u64, u64)) -> u64 {
    let Ok(level) = update(&state.zero, |zero| Ok::<_, Infallible>(target(zero)));
    level
}

/// What the part of a grant costs that is to be given back.
fn paid(numbers: &Numbers, more: &More, charge: BucketCharge) -> u64 {
    let price = numbers.price(more, charge.n);
    if charge.used == 0 {
        return price;
    }
    // A smaller request would not have found more than a full bucket.
    price.min(numbers.saved).saturating_sub(numbers.price(more, charge.used))
}

impl Clone for Bucket {
    /// With what the terms alone do not say: since when nothing comes in, and what a token was
    /// worth until then.
    fn clone(&self) -> Bucket {
        let (words, [one, saved, stopped, step, shift, gain, ..]) = self.words.copy();
        let hot = Hot::new(&Numbers { one, saved, stopped, step, shift, gain });
        Bucket { hot, words, start: self.start, stretches: self.stretches, wall_clock: self.wall_clock }
    }
}
