//! The bucket: the one word behind [`TokenBucket`](super::TokenBucket) and [`LeakyBucket`](super::LeakyBucket).
//!
//! # Algorithm
//!
//! A bucket holds up to *burst* tokens; they come in at a rate, and a request takes as many as it asks for, or none. The plain
//! way keeps two numbers: how many there are, and when that was. One will do: the time *Z* at which the bucket was, or
//! would have been, empty. The tokens are `(now - Z) / interval`, and what came in before `now - burst * interval` has
//! overflowed.
//!
//! This is the Generic Cell Rate Algorithm: its *theoretical arrival time* is *Z* plus the burst, its increment the interval, its
//! limit the burst less one permit. It is the leaky bucket as a meter, too: what is missing from a full bucket of tokens is the
//! water in the other one. Three names, one word.
//!
//! A request of `n` pays **before** it passes: it is due at *Z* plus the price of `n`, and moves *Z* there. Guava's
//! [`SmoothBursty`](super::SmoothBursty) is the same word with the other comparison: due at *Z*, and the next one pays.
//!
//! Tokens that come in steps, `k` at once each `t`, are the same rule on a clock that goes on once per `t`, by the price of `k`
//! tokens, or of as many as fit into the bucket. The word stays a time on the common clock: it is put on the bucket's own
//! clock to compute, and back to be stored.
//! No tokens at all is the same rule on a clock that stands still.
//!
//! # State word
//!
//! | bits | name | unit | range | at the edges |
//! |---|---|---|---|---|
//! | 0..64 | *Z* | 1/16 ns | 2.28 years before to 34 years after the clock's beginning | a request pays before, so a grant never moves it beyond now; a debit does, and saturates: limited for ever |
//!
//! # Rounding
//!
//! The price of a request is rounded up to whole ticks once, and due times up to whole nanoseconds. Where the interval is not a whole
//! number of nanoseconds, a burst taken one by one would miss its last permit by those roundings, and a caller that
//! comes exactly when told would lose a little each time. So the bucket is larger by just that much: by what the burst costs
//! more one by one than at once, and a nanosecond; never more than 50 ns, nor a whole permit.
//!
//! # Memory ordering
//!
//! One word under the shared loop: see `policy/cell.rs`. The numbers that a request for several permits needs are read as one
//! through `policy/published.rs`. Those for a single one have words of their own, each loaded relaxed.
//!
//! **A change** first converts the word and then replaces the numbers. A request that overlaps with it may see any mixture of the
//! old and the new: it pays the old or the new price, out of the old or the new burst, as if it had come a moment earlier or
//! later; or it loses what was in stock. The next request of a thread loads the numbers again, and finds the same while whoever changes
//! stalls between the two steps. What that costs depends on the way:
//!
//! | the stock becomes | old numbers make of the new word | so meanwhile |
//! |---|---|---|
//! | less time, as when the rate becomes faster | fewer permits | nothing is granted twice: `loom-tests/change.rs` |
//! | more time, as when it becomes slower | more permits, up to the old burst | of the old burst, what was spent can be had once more |
//!
//! It cannot be worse once the numbers are those of either, since the word is a time on the common clock before and after: where nothing
//! comes in, the bucket's clock stops at the time of the change, and the word stays.

use std::convert::Infallible;
use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::nanos::Nanos;
use crate::policy::cell::{Cell, update};
use crate::policy::interval::Interval;
use crate::policy::published::Published;
use crate::policy::window::nanos_between;
use crate::policy::{Change, Keep, PolicyStatus, limited, ticks};
use crate::rate::Rate;
use crate::sync::{AtomicU64, Ordering};

/// The state of one [`TokenBucket`](super::TokenBucket) or [`LeakyBucket`](super::LeakyBucket): a single word.
#[derive(Debug)]
pub struct BucketState {
    /// The tick at which the bucket would be empty.
    zero: AtomicU64,
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

/// What the user set. All of it can change at run time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Terms {
    pub(crate) rate: Rate,
    pub(crate) burst: u32,
    /// Ticks that the bucket holds beyond the burst.
    pub(crate) tolerance: u64,
    /// Permits come in steps, once per period.
    pub(crate) stepped: bool,
    /// How long before the clock's zero steps began, in nanoseconds.
    pub(crate) anchor: i64,
}

/// What a decision needs, in ticks.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    /// The price of one permit; zero only without a limit.
    one: u64,
    /// How many ticks of tokens the bucket holds.
    saved: u64,
    /// The tick at which time stands still, `ticks::NEVER` if it does not.
    stopped: u64,
    /// The length of a step, 0 if tokens come in all the time.
    step: u64,
    /// What a tick lacks to be a whole number of steps where one begins.
    shift: u64,
    /// By how much the bucket's clock goes on with a step.
    gain: u64,
}

/// What is needed beside these for more than one permit, and for anything but a decision.
#[derive(Clone, Copy, Debug)]
struct More {
    /// What tells tokens apart: also without a limit, and without any tokens coming in.
    interval: Interval,
    /// The most permits that one request can have.
    most: u32,
}

/// How many tokens there are at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Start {
    Full,
    Tokens(u32),
}

pub(crate) struct Bucket {
    /// `Numbers`, for a single permit.
    hot: [AtomicU64; 6],
    /// `Numbers` (six words), `More` (four), and `Terms` (seven).
    words: Published<17>,
    start: Start,
    /// Whether a request that is larger than the bucket waits for its own price, instead of being refused for ever.
    stretches: bool,
    /// Steps are at this time after the periods of Unix time.
    wall_clock: Option<Duration>,
}

/// The interval of a bucket that never had a rate: it only has to tell tokens apart.
const STILL: u64 = 1 << 28;

/// 50 ns.
const MOST_SLACK: u64 = 50 * ticks::PER_NANO;

impl Terms {
    /// The numbers of these terms, in force since a tick, and the interval until then.
    fn numbers(self, since: u64, before: Interval) -> Result<(Numbers, More), PolicyError> {
        let (numbers, more) = self.rounded_numbers(since, before);
        if self.fill(more.interval) > ticks::ORIGIN - numbers.step {
            let limit = ticks::MAX_SPAN;
            return Err(PolicyError::Fill { burst: self.burst, rate: self.rate, limit });
        }
        Ok((numbers, more))
    }

    /// The same with a bucket that is cut to what a state can tell.
    fn rounded_numbers(self, since: u64, before: Interval) -> (Numbers, More) {
        let unlimited = self.rate.is_unlimited();
        let still = unlimited || self.rate.is_zero();
        let stepped = self.stepped && !still;
        let step = match stepped {
            true => Nanos::from_duration(self.rate.period()).as_u64().saturating_mul(ticks::PER_NANO),
            false => 0,
        };
        let step = step.min(ticks::ORIGIN);
        let interval = match self.rate.parts() {
            _ if still => before,
            // A price that adds up to a step without rounding.
            (permits, 0, _) if stepped => Interval::of_ticks((step / permits).max(1)),
            _ => Interval::new(self.rate),
        };
        let saved = self.fill(interval).min(ticks::ORIGIN - step);
        let gain = match self.rate.parts() {
            (permits, 0, _) if stepped => permits.saturating_mul(interval.price(1)).min(step).min(saved),
            _ => step.min(saved),
        };
        let shift = if step == 0 { 0 } else { self.shift(step) };
        let most = u32::try_from(interval.permits_in(saved)).unwrap_or(u32::MAX);
        let stopped = if still { since } else { ticks::NEVER };
        let one = if unlimited { 0 } else { interval.price(1) };
        let most = if unlimited { u32::MAX } else { most };
        (Numbers { one, saved, stopped, step, shift, gain }, More { interval, most })
    }

    /// What a tick lacks to be a whole number of steps where one begins.
    fn shift(self, step: u64) -> u64 {
        let period = (step / ticks::PER_NANO).cast_signed();
        let since = self.anchor.rem_euclid(period).cast_unsigned() * ticks::PER_NANO;
        (step - ticks::ORIGIN % step + since) % step
    }

    /// How many ticks the bucket takes to fill.
    fn fill(self, interval: Interval) -> u64 {
        let (one, at_once) = (interval.price(1), interval.price(self.burst));
        let slack =
            match interval.is_whole_nanos() || (self.stepped && interval.is_whole()) || self.burst == 0 {
                true => 0,
                false => {
                    let one_by_one = one.saturating_mul(u64::from(self.burst)).saturating_sub(at_once);
                    one_by_one
                        .saturating_add(ticks::PER_NANO - 1)
                        .min(MOST_SLACK)
                        .min(interval.worth(1).saturating_sub(1))
                }
            };
        at_once.saturating_add(slack).saturating_add(self.tolerance)
    }

    fn changed(self, change: Change) -> Terms {
        Terms { rate: change.rate.unwrap_or(self.rate), burst: change.burst.unwrap_or(self.burst), ..self }
    }
}

impl Numbers {
    /// A time on the bucket's own clock.
    #[inline]
    fn tick(&self, at: Nanos) -> u64 {
        if self.stopped < ticks::NEVER {
            return self.own(self.stopped);
        }
        let tick = ticks::from_nanos(at);
        // Only whole steps have come.
        match tick.saturating_add(self.shift).checked_div(self.step) {
            None => tick,
            Some(steps) => steps.saturating_mul(self.gain),
        }
    }

    /// The tick of the bucket's own clock for a word.
    #[inline]
    fn own(&self, word: u64) -> u64 {
        if self.step == 0 {
            return word;
        }
        let word = word.saturating_add(self.shift);
        (word / self.step).saturating_mul(self.gain).saturating_add((word % self.step).min(self.gain))
    }

    /// The word for a tick of the bucket's own clock.
    #[inline]
    fn word(&self, own: u64) -> u64 {
        if self.step == 0 {
            return own;
        }
        let gain = self.gain.max(1);
        (own / gain).saturating_mul(self.step).saturating_add(own % gain).saturating_sub(self.shift)
    }

    /// The first time at which the bucket's own clock shows a tick.
    fn time_of(&self, own: u64) -> Nanos {
        if self.stopped < ticks::NEVER {
            return if own > self.own(self.stopped) { Nanos::MAX } else { Nanos::ZERO };
        }
        if self.step == 0 {
            return ticks::to_nanos(own);
        }
        if self.gain == 0 {
            return Nanos::MAX;
        }
        match own.div_ceil(self.gain).checked_mul(self.step) {
            Some(tick) => ticks::to_nanos(tick.saturating_sub(self.shift)),
            None => Nanos::MAX,
        }
    }

    fn is_unlimited(&self) -> bool {
        self.one == 0
    }

    fn to_words(self) -> [u64; 6] {
        [self.one, self.saved, self.stopped, self.step, self.shift, self.gain]
    }

    fn from_words([one, saved, stopped, step, shift, gain]: [u64; 6]) -> Numbers {
        Numbers { one, saved, stopped, step, shift, gain }
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
        Bucket { hot: numbers.0.to_words().map(AtomicU64::new), words, start, stretches, wall_clock: None }
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

    pub(crate) fn anchored(self, unix_time_at_zero: Duration) -> Bucket {
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

    /// What a request for one permit needs.
    #[inline]
    fn numbers(&self) -> Numbers {
        let numbers = Numbers::from_words(std::array::from_fn(|i| self.hot[i].load(Ordering::Relaxed)));
        // Steps of one rate make no sense with those of another.
        if numbers.step == 0 { numbers } else { self.numbers_and_more().0 }
    }

    fn numbers_and_more(&self) -> (Numbers, More) {
        let [one, saved, stopped, step, shift, gain, same, ticks, permits, most] = self.words.read(0);
        let interval = Interval::from_words([same, ticks, permits]);
        (Numbers { one, saved, stopped, step, shift, gain }, More { interval, most: small(most) })
    }

    /// What `n` permits cost, beside the numbers of the same publication.
    #[inline]
    fn price(&self, n: u32) -> (Numbers, u64) {
        if n == 1 {
            let numbers = self.numbers();
            return (numbers, numbers.one);
        }
        let (numbers, more) = self.numbers_and_more();
        (numbers, if numbers.is_unlimited() { 0 } else { more.interval.price(n) })
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
        if n <= 1 {
            // One permit can be had some day: at another rate, if not at this one.
            return if n == 0 { Err(Refusal::ZeroPermits) } else { Ok(()) };
        }
        let (_, More { most, .. }) = self.numbers_and_more();
        if n > most && !self.stretches {
            Err(Refusal::ExceedsBurst { requested: n, burst: most })
        } else {
            Ok(())
        }
    }

    #[inline]
    pub(crate) fn try_acquire(
        &self,
        state: &BucketState,
        at: Nanos,
        n: u32,
    ) -> Result<BucketCharge, Refusal> {
        self.check(n)?;
        let (numbers, price) = self.price(n);
        if numbers.is_unlimited() {
            return Ok(BucketCharge { n: 0, used: 0, before: 0, after: 0 });
        }
        let (tick, reach) = (numbers.tick(at), self.reach(&numbers, price));
        if price > reach {
            return Err(limited(Nanos::MAX, at));
        }
        update(&state.zero, |zero| {
            let after = numbers.own(zero).max(tick.saturating_sub(reach)).saturating_add(price);
            if after > tick {
                return Err(after);
            }
            let after = numbers.word(after);
            Ok((after, BucketCharge { n, used: 0, before: zero, after }))
        })
        .map_err(|due| limited(numbers.time_of(due), at))
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
            let reach = self.reach(&numbers, ahead);
            zero = zero.max(numbers.tick(at).saturating_sub(reach)).saturating_add(ahead);
        }
        numbers.time_of(zero.saturating_add(price))
    }

    pub(crate) fn undo(&self, state: &BucketState, at: Nanos, charge: BucketCharge, lowest: u64) -> u64 {
        // Without the grant the bucket might have been full for a while by now, and what came in then would be lost. It
        // surely was not full while the lowest state since the grant, less what is given back, lies above the floor.
        let (numbers, mut price) = self.price(charge.n);
        if charge.used > 0 {
            // A smaller request would not have found more than a full bucket.
            let used = self.price(charge.used).1;
            price = price.min(numbers.saved).saturating_sub(used);
        }
        let floor = numbers.tick(at).saturating_sub(numbers.saved);
        let back = price.min(numbers.own(charge.after.min(lowest)).saturating_sub(floor));
        let whole = charge.n > 0 && charge.used == 0;
        move_to(state, |zero| match zero == charge.after && whole && lowest >= charge.after {
            // Nothing happened since: as if it had not been.
            true => charge.before,
            false => numbers.word(numbers.own(zero).saturating_sub(back)),
        })
    }

    pub(crate) fn refund(&self, state: &BucketState, at: Nanos, n: u32) -> u64 {
        let (numbers, more) = self.numbers_and_more();
        let (floor, worth) = (numbers.tick(at).saturating_sub(numbers.saved), more.interval.worth(n));
        move_to(state, |word| {
            let zero = numbers.own(word);
            numbers.word(zero.saturating_sub(worth).max(floor)).min(word)
        })
    }

    pub(crate) fn unused(charge: BucketCharge, n: u32, used: u32) -> Option<BucketCharge> {
        (used < n).then(|| BucketCharge { used: charge.used.saturating_add(used), ..charge })
    }

    pub(crate) fn debit(&self, state: &BucketState, at: Nanos, n: u32) {
        let (numbers, price) = self.price(n);
        if numbers.is_unlimited() || n == 0 {
            return;
        }
        let floor = numbers.tick(at).saturating_sub(self.reach(&numbers, price));
        move_to(state, |zero| numbers.word(numbers.own(zero).max(floor).saturating_add(price)));
    }

    pub(crate) fn change(&self, state: &BucketState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
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
        let level = move_to(state, |zero| match change.keep.unwrap_or(Keep::Count) {
            Keep::Reset => self.starting_word(new, at),
            _ if filled => new.0.word(new.0.tick(at).saturating_sub(new.0.saved)),
            keep => carried_over(zero, at, old, new, keep),
        });
        self.words.publish(words(terms, new), || {
            for (hot, word) in self.hot.iter().zip(new.0.to_words()) {
                hot.store(word, Ordering::Relaxed);
            }
        });
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
        ticks::between(0, self.price(n).1)
    }
}

/// The word that says under new numbers what `zero` says under the old ones.
fn carried_over(zero: u64, at: Nanos, old: (Numbers, More), new: (Numbers, More), keep: Keep) -> u64 {
    let (old_tick, tick, zero) = (old.0.tick(at), new.0.tick(at), old.0.own(zero));
    let (from, to) = (old.1.interval, new.1.interval);
    if let Some(debt) = zero.checked_sub(old_tick) {
        let debt = if keep == Keep::Ratio { debt } else { from.convert(debt, to, true) };
        return new.0.word(tick.saturating_add(debt));
    }
    let stock = old_tick - zero.max(old_tick.saturating_sub(old.0.saved));
    let stock = match keep {
        Keep::Ratio => share(stock, new.0.saved, old.0.saved),
        // Whole permits can be had one by one, before as after.
        Keep::Count | Keep::Reset => {
            let whole = (stock / from.price(1).max(1)).saturating_mul(to.price(1));
            from.convert(stock, to, false).max(whole)
        }
    };
    new.0.word(tick.saturating_sub(stock.min(new.0.saved)))
}

/// `span * part / whole`, rounded down.
fn share(span: u64, part: u64, whole: u64) -> u64 {
    let [span, part, whole] = [span, part, whole.max(1)].map(u128::from);
    u64::try_from(span * part / whole).unwrap_or(ticks::NEVER)
}

/// A number that was a `u32`.
fn small(word: u64) -> u32 {
    u32::try_from(word).unwrap_or(u32::MAX)
}

fn words(terms: Terms, (numbers, more): (Numbers, More)) -> [u64; 17] {
    let [one, saved, stopped, step, shift, gain] = numbers.to_words();
    let [same, ticks, permits] = more.interval.to_words();
    let [digits, exponent, period] = terms.rate.to_words();
    let Terms { burst, tolerance, stepped, anchor, .. } = terms;
    let (most, burst) = (u64::from(more.most), u64::from(burst));
    let (stepped, anchor) = (u64::from(stepped), anchor.cast_unsigned());
    [
        one, saved, stopped, step, shift, gain, same, ticks, permits, most, burst, tolerance, stepped,
        anchor, digits, exponent, period,
    ]
}

/// Moves the state, whatever it is, and returns where to.
fn move_to(state: &BucketState, target: impl Fn(u64) -> u64) -> u64 {
    let Ok(zero) = update(&state.zero, |zero| {
        let new = target(zero);
        Ok::<_, Infallible>((new, new))
    });
    zero
}

impl Clone for Bucket {
    /// With what the terms alone do not say: since when nothing comes in, and what a token was worth until then.
    fn clone(&self) -> Bucket {
        let (words, [one, saved, stopped, step, shift, gain, ..]) = self.words.copy();
        let hot = [one, saved, stopped, step, shift, gain].map(AtomicU64::new);
        Bucket { hot, words, start: self.start, stretches: self.stretches, wall_clock: self.wall_clock }
    }
}
