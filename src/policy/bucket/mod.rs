//! The bucket: the one word behind [`TokenBucket`] and [`LeakyBucket`].
//!
//! # Algorithm
//!
//! A bucket holds up to *burst* tokens. Tokens accrue at a rate, and a request takes as many tokens
//! as it asks for, or none. The plain way keeps two numbers: how many tokens there are, and when
//! that was. One number is enough: the time *Z* at which the bucket was, or would have been, empty.
//! The bucket holds `(now - Z) / interval` tokens, and every token that accrued before `now - burst
//! * interval` has overflowed.
//!
//! This is the Generic Cell Rate Algorithm: its *theoretical arrival time* is *Z* plus the burst,
//! its increment is the interval, and its limit is the burst minus one permit. It is also the leaky
//! bucket as a meter: the tokens that are missing from this bucket are the water in that bucket.
//!
//! A request of `n` permits pays **before** it passes: it is due at *Z* plus the cost of `n`, and
//! moves *Z* there. Guava's [`SmoothBursty`](super::SmoothBursty) has this word, too, but a request
//! is due at *Z*, and the next request pays.
//!
//! Tokens may arrive in steps, `k` tokens each `t`. Then the rule runs on the step clock of the
//! bucket. This clock advances once per `t`, by the cost of `k` tokens, or of as many as fit into
//! the bucket. The word stays a time on the common clock: a decision converts it to the bucket's
//! step clock, and converts the result back. If no tokens accrue, the bucket's step clock stands
//! still.
//!
//! # State word
//!
//! | bits | name | unit | range | at the edges |
//! |---|---|---|---|---|
//! | 0..64 | *Z* | 1/16 ns | 2.28 years before to 34 years after the clock's beginning | a request pays before it passes, so a grant never moves *Z* beyond now; a debit does, and saturates: limited for ever |
//!
//! Any thread may change the word, with one atomic read-modify-write. A change of terms converts it
//! while the bucket is closed: see `policy/bucket/in_force.rs`.
//!
//! # Invariant
//!
//! See `policy/bucket/token.rs` and `leaky.rs`, for each of the two policies.
//!
//! # Rounding
//!
//! The cost of a request is rounded up to whole ticks once, and due times are rounded up to whole
//! nanoseconds. If the interval is not a whole number of nanoseconds, these roundings would cost a
//! burst that is taken one by one its last permit, and a caller that arrives exactly at the
//! predicted time would lose a little each time. So the bucket is larger by as much: by the
//! difference between the cost of the burst one by one and its cost at once, and by a nanosecond.
//! This is never more than 50 ns, nor a whole permit.
//!
//! # Memory ordering
//!
//! One word under the shared loop: see `policy/atomic_word.rs`. The terms by which a request reads
//! it are other words: see `policy/bucket/in_force.rs`.
//!
//! # Source
//!
//! See `policy/bucket/token.rs` and `leaky.rs`.

mod give_back;
mod in_force;
mod leaky;
mod predict;
mod terms;
mod token;

pub use leaky::LeakyBucket;
pub use token::TokenBucket;

use std::time::Duration;

use crate::error::{PolicyError, Refusal};
use crate::policy::atomic_word::{AtomicWord, update};
use crate::policy::bucket::in_force::{CLOSED, Hot, IN_STEPS, PLAIN};
use crate::policy::bucket::terms::{More, Numbers, PLACEHOLDER_INTERVAL, Terms, stock, words};
use crate::policy::interval::Interval;
use crate::policy::published::Published;
use crate::policy::window::nanos_between;
use crate::policy::{PolicyStatus, ticks};
use crate::sync::{AtomicU64, MAX_RETRIES, Ordering, spin_loop};
use crate::time::Nanos;

/// The methods of [`Policy`](super::Policy) that a policy with a field `bucket` forwards to it.
macro_rules! passed_on_to_bucket {
    () => {
        type State = BucketState;
        type Charge = BucketCharge;

        fn start(&self, now: Nanos) -> BucketState {
            self.bucket.start(now)
        }

        #[inline]
        fn try_acquire(&self, state: &BucketState, at: Nanos, n: u32) -> Result<BucketCharge, Refusal> {
            self.bucket.try_acquire(state, at, n)
        }

        fn check(&self, n: u32) -> Result<(), Refusal> {
            self.bucket.check(n)
        }

        fn weight(&self, n: u32) -> u64 {
            self.bucket.weight(n)
        }

        fn ready_at(&self, state: &BucketState, at: Nanos, ahead: u64, n: u32) -> Nanos {
            self.bucket.ready_at(state, at, ahead, n)
        }

        fn one_by_one(&self, largest: u32) -> usize {
            self.bucket.one_by_one(largest)
        }

        fn forecast(&self, state: &BucketState, at: Nanos) -> Forecast {
            Bucket::forecast(state, at)
        }

        fn predict(&self, _state: &BucketState, forecast: &mut Forecast, n: u32) -> Nanos {
            self.bucket.predict(forecast, n)
        }

        fn predict_many(&self, _state: &BucketState, forecast: &mut Forecast, crowd: &Crowd) {
            self.bucket.predict_many(forecast, crowd);
        }

        fn undo(&self, state: &BucketState, at: Nanos, charge: BucketCharge, most: u64) -> u64 {
            self.bucket.undo(state, at, charge, most)
        }

        fn moved(&self, charge: BucketCharge) -> (u64, u64) {
            self.bucket.moved(charge)
        }

        fn full_level(&self, at: Nanos) -> u64 {
            self.bucket.full_level(at)
        }

        fn level_unit(&self) -> (u64, u64) {
            self.bucket.level_unit()
        }

        fn refund(&self, state: &BucketState, at: Nanos, n: u32) -> u64 {
            self.bucket.refund(state, at, n)
        }

        fn unspent(&self, charge: BucketCharge, n: u32, used: u32) -> Option<BucketCharge> {
            Bucket::unspent(charge, n, used)
        }

        fn debit(&self, state: &BucketState, at: Nanos, n: u32) {
            self.bucket.debit(state, at, n);
        }

        fn keep_at_most(&self, state: &BucketState, at: Nanos, permits: u64) -> u64 {
            self.bucket.keep_at_most(state, at, permits)
        }

        fn pause(&self, state: &BucketState, stop: Standstill) -> Option<u64> {
            Some(self.bucket.pause(state, stop))
        }

        fn forecast_pause(&self, state: &BucketState, stop: Standstill) -> Option<Forecast> {
            Some(self.bucket.forecast_pause(state, stop))
        }

        fn full_after_pause(&self, state: &BucketState, stop: Standstill) -> Option<Nanos> {
            let Forecast { numbers: [word, ..], .. } = self.bucket.forecast_pause(state, stop);
            Some(self.bucket.status(word, stop.to).full_at.max(stop.to))
        }

        fn change(&self, state: &BucketState, at: Nanos, change: Change) -> Result<u64, PolicyError> {
            self.change_now(state, at, &|| at, change)
        }

        fn rate(&self) -> Rate {
            self.bucket.terms().rate
        }

        fn status(&self, state: &BucketState, at: Nanos) -> PolicyStatus {
            self.bucket.status(state.word(), at)
        }

        fn left(&self, _state: &BucketState, charge: BucketCharge, at: Nanos) -> PolicyStatus {
            self.bucket.status(charge.after, at)
        }

        fn is_fresh(&self, state: &BucketState, at: Nanos) -> bool {
            self.bucket.is_fresh(state, at)
        }
    };
}

use passed_on_to_bucket;

/// The state of one [`TokenBucket`] or [`LeakyBucket`]: a single word.
#[derive(Debug)]
pub struct BucketState {
    /// The tick at which the bucket would be empty.
    pub(crate) zero: AtomicU64,
}

impl BucketState {
    fn word(&self) -> u64 {
        AtomicWord::load(&self.zero)
    }
}

/// What one grant of a bucket took.
#[derive(Clone, Copy, Debug)]
pub struct BucketCharge {
    n: u32,
    /// How many of these permits were used, and are not given back.
    used: u32,
    /// The word directly before the grant, and directly after.
    before: u64,
    after: u64,
}

impl BucketCharge {
    /// The charge of a grant without a limit.
    const NONE: BucketCharge = BucketCharge { n: 0, used: 0, before: 0, after: 0 };
}

/// How many tokens the bucket holds at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Start {
    Full,
    Tokens(u32),
}

/// The reason why a request leaves the state as it is.
pub(crate) enum NotTaken {
    /// Without a limit there is nothing to take.
    Free,
    Refused(RefusalParts),
    /// The bucket is closed.
    Closed,
}

/// A refusal as its parts. A call that is not inlined returns these instead of a [`Refusal`]. If it
/// returned the refusal, the compiler would give the result of the caller one place in memory for
/// all paths. The path without the call would then write the refusal there by parts and read it as
/// a whole, for which a processor waits some nanoseconds.
pub(crate) enum RefusalParts {
    Limited(Nanos),
    ZeroPermits,
    ExceedsLimit(u32),
}

impl RefusalParts {
    /// Returns the refusal of a request for `n` permits.
    #[inline(always)]
    fn whole(self, n: u32) -> Refusal {
        match self {
            RefusalParts::Limited(retry_after) => Refusal::Limited { retry_after },
            RefusalParts::ZeroPermits => Refusal::ZeroPermits,
            RefusalParts::ExceedsLimit(limit) => Refusal::ExceedsLimit { requested: n, limit },
        }
    }
}

pub(crate) struct Bucket {
    hot: Hot,
    /// `Numbers` (six words), `More` (four), and `Terms` (seven).
    words: Published<17>,
    start: Start,
    /// Whether a request that is larger than the bucket waits for its own cost, instead of being
    /// refused for ever.
    grows_to_fit: bool,
    /// The offset of the steps from the periods of Unix time, if the wall clock sets them.
    pub(in crate::policy) wall_clock: Option<Duration>,
}

impl Bucket {
    pub(crate) fn new(terms: Terms, start: Start, grows_to_fit: bool) -> Result<Bucket, PolicyError> {
        terms.numbers(ticks::ORIGIN, Interval::of_ticks(PLACEHOLDER_INTERVAL))?;
        if let Start::Tokens(permits) = start
            && permits > terms.burst
        {
            return Err(PolicyError::Stock { permits, burst: terms.burst });
        }
        Ok(Bucket::cut(terms, start, grows_to_fit))
    }

    /// Creates a bucket that holds no more tokens than a state can represent.
    pub(crate) fn cut(terms: Terms, start: Start, grows_to_fit: bool) -> Bucket {
        let numbers = terms.rounded_numbers(ticks::ORIGIN, Interval::of_ticks(PLACEHOLDER_INTERVAL));
        let words = Published::new(words(terms, numbers));
        Bucket { hot: Hot::new(&numbers.0), words, start, grows_to_fit, wall_clock: None }
    }

    /// Creates a bucket with other terms.
    pub(crate) fn with(&self, change: impl FnOnce(Terms) -> Terms) -> Result<Bucket, PolicyError> {
        let bucket = Bucket::new(change(self.terms()), self.start, self.grows_to_fit)?;
        Ok(Bucket { wall_clock: self.wall_clock, ..bucket })
    }

    /// Creates a bucket with steps that begin this long after the periods of Unix time.
    pub(crate) fn aligned(self, offset: Duration) -> Bucket {
        Bucket { wall_clock: Some(offset), ..self }
    }

    pub(crate) fn with_epoch(self, unix_time_at_zero: Duration) -> Bucket {
        let Some(offset) = self.wall_clock else { return self };
        let terms = Terms { anchor: nanos_between(offset, unix_time_at_zero), ..self.terms() };
        Bucket { wall_clock: Some(offset), ..Bucket::cut(terms, self.start, self.grows_to_fit) }
    }

    pub(crate) fn starting(self, start: Start) -> Result<Bucket, PolicyError> {
        let bucket = Bucket::new(self.terms(), start, self.grows_to_fit)?;
        Ok(Bucket { wall_clock: self.wall_clock, ..bucket })
    }

    /// Returns how many tokens the bucket holds at the start, if it is not full then.
    pub(in crate::policy) fn starts_with(&self) -> Option<u32> {
        match self.start {
            Start::Full => None,
            // A bucket with a tolerance holds more than its burst.
            Start::Tokens(permits) => {
                let permits = permits.min(self.burst_in_force());
                Some(permits).filter(|permits| *permits < self.numbers_and_more().1.most)
            }
        }
    }

    /// Returns how far back the tokens for a request of this cost can have accrued.
    #[inline]
    fn reach(&self, numbers: &Numbers, price: u64) -> u64 {
        if self.grows_to_fit { numbers.capacity.max(price) } else { numbers.capacity }
    }

    /// Returns how far back stored tokens can have accrued. A bucket that grows to fit keeps those
    /// beyond its capacity for a large request.
    fn held(&self, numbers: &Numbers) -> u64 {
        if self.grows_to_fit { u64::MAX } else { numbers.capacity }
    }

    pub(crate) fn start(&self, now: Nanos) -> BucketState {
        BucketState {
            zero: AtomicU64::new(self.starting_word(self.numbers_and_more(), self.burst_in_force(), now)),
        }
    }

    fn starting_word(&self, (numbers, more): (Numbers, More), burst: u32, now: Nanos) -> u64 {
        let stock = match self.start {
            Start::Full => numbers.capacity,
            Start::Tokens(permits) => stock(more.interval, permits.min(burst), 0).min(numbers.capacity),
        };
        numbers.word_of(numbers.tick(now).saturating_sub(stock))
    }

    #[inline]
    pub(crate) fn check(&self, n: u32) -> Result<(), Refusal> {
        // A request for one permit is never refused for ever: another rate may grant it.
        if n == 1 {
            return Ok(());
        }
        self.check_by(&self.numbers_and_more().1, n).map_err(|parts| parts.whole(n))
    }

    #[inline]
    fn check_by(&self, more: &More, n: u32) -> Result<(), RefusalParts> {
        match n {
            0 => Err(RefusalParts::ZeroPermits),
            2.. if n > more.most && !self.grows_to_fit => Err(RefusalParts::ExceedsLimit(more.most)),
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
        if n == 1 {
            return self.try_acquire_one(state, at);
        }
        self.try_acquire_any(state, at, n, true).map_err(|parts| parts.whole(n))
    }

    /// Takes one permit of a bucket that is [`PLAIN`]: the rule of [`take`](Bucket::take) with two
    /// numbers instead of ten.
    #[inline]
    fn try_acquire_one(&self, state: &BucketState, at: Nanos) -> Result<BucketCharge, Refusal> {
        let tick = ticks::from_nanos(at);
        let answer = update(&state.zero, |zero| {
            // The mode is read after the word: a word that a change converted shows that the bucket
            // is closed, or open by the new terms. Acquire: if the bucket is open by the new terms,
            // the load shows them (5).
            if self.hot.mode.load(Ordering::Acquire) != PLAIN {
                return Err(None);
            }
            // Acquire: a newer cost shows the conversion that came before it (5).
            let due = zero.saturating_add(self.hot.one.load(Ordering::Acquire));
            if due > tick {
                return Err(Some(due));
            }
            // This does not underflow: a tick of a time is larger than any capacity. Acquire: as
            // for the cost.
            let after = due.max(tick - self.hot.rest.load(Ordering::Acquire));
            Ok((after, BucketCharge { n: 1, used: 0, before: zero, after }))
        });
        match answer {
            Ok(charge) => Ok(charge),
            Err(Some(due)) => Err(Refusal::Limited { retry_after: ticks::between(tick, due) }),
            Err(None) => self.try_acquire_stepped(state, at).map_err(|parts| parts.whole(1)),
        }
    }

    /// Takes one permit of a bucket that is not [`PLAIN`]: by a short rule if the bucket is open,
    /// refilled in steps, and has not been full.
    #[inline(never)]
    fn try_acquire_stepped(&self, state: &BucketState, at: Nanos) -> Result<BucketCharge, RefusalParts> {
        let tick = ticks::from_nanos(at);
        let answer = update(&state.zero, |zero| {
            // After the word, and Acquire, as in `try_acquire_one`.
            if self.hot.mode.load(Ordering::Acquire) != IN_STEPS {
                return Err(None);
            }
            let [one, capacity, frozen_at, step, shift, gain] = self.words.read(0);
            let numbers = Numbers { one, capacity, frozen_at, step, shift, gain };
            let (after, due) = numbers.interval_refill(zero, one).filter(|_| one <= capacity).ok_or(None)?;
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
            Err(Some(due)) => Err(RefusalParts::Limited(ticks::between(tick, due))),
            Err(None) => self.try_acquire_any(state, at, 1, true),
        }
    }

    /// Takes any number of permits by any terms. If the request finds the bucket closed and `again`
    /// is true, it retries.
    #[inline(never)]
    fn try_acquire_any(
        &self,
        state: &BucketState,
        at: Nanos,
        n: u32,
        again: bool,
    ) -> Result<BucketCharge, RefusalParts> {
        let answer = update(&state.zero, |zero| {
            // After the word, and Acquire, as in `try_acquire_one`.
            if self.hot.mode.load(Ordering::Acquire) == CLOSED {
                return Err(NotTaken::Closed);
            }
            let (numbers, more) = self.numbers_and_more();
            self.check_by(&more, n).map_err(NotTaken::Refused)?;
            let price = numbers.price(&more, n);
            self.take(zero, at, n, (numbers, price))
        });
        match answer {
            Ok(charge) => Ok(charge),
            Err(NotTaken::Free) => Ok(BucketCharge::NONE),
            Err(NotTaken::Refused(parts)) => Err(parts),
            Err(NotTaken::Closed) if again => self.retry_closed(state, at, n),
            // A request never waits for a change that has stalled; it may retry a nanosecond later.
            Err(NotTaken::Closed) => Err(RefusalParts::Limited(Nanos::new(1))),
        }
    }

    /// Retries a bucket that was closed. A change nearly always ends within this many retries.
    #[cold]
    fn retry_closed(&self, state: &BucketState, at: Nanos, n: u32) -> Result<BucketCharge, RefusalParts> {
        for _ in 0..MAX_RETRIES {
            // Relaxed: a hint only. The attempt below checks again, after it has loaded the word.
            if self.hot.mode.load(Ordering::Relaxed) != CLOSED {
                break;
            }
            spin_loop();
        }
        self.try_acquire_any(state, at, n, false)
    }

    /// The rule: returns the state after a grant, and what the grant took.
    pub(crate) fn take(
        &self,
        zero: u64,
        at: Nanos,
        n: u32,
        (numbers, price): (Numbers, u64),
    ) -> Result<(u64, BucketCharge), NotTaken> {
        if numbers.is_unlimited() {
            return Err(NotTaken::Free);
        }
        let reach = self.reach(&numbers, price);
        if price > reach {
            // The request costs more than a bucket of these terms ever holds.
            return Err(NotTaken::Refused(RefusalParts::Limited(Nanos::MAX)));
        }
        let tick = numbers.tick(at);
        let after = numbers.step_tick(zero).max(tick.saturating_sub(reach)).saturating_add(price);
        if after > tick {
            return Err(NotTaken::Refused(RefusalParts::Limited(
                numbers.time_of(after).saturating_since(at),
            )));
        }
        let after = numbers.word_of(after);
        Ok((after, BucketCharge { n, used: 0, before: zero, after }))
    }

    /// Returns the maximum number of permits that can ever be available.
    fn most(&self, more: &More) -> u32 {
        if self.grows_to_fit { more.most.max(1) } else { more.most }
    }

    /// Returns when the bucket would be empty, by its step clock and without the tokens that have
    /// overflowed, and how many single permits it holds. Not for a bucket without a limit.
    fn available(&self, numbers: &Numbers, more: &More, word: u64, at: Nanos) -> (u64, u64) {
        let tick = numbers.tick(at);
        let full = tick.saturating_sub(self.reach(numbers, numbers.one));
        let zero = numbers.step_tick(word).max(full);
        (zero, (tick.saturating_sub(zero) / numbers.one).min(u64::from(self.most(more))))
    }

    /// Returns the status of a word.
    pub(crate) fn status(&self, word: u64, at: Nanos) -> PolicyStatus {
        let (numbers, more) = self.numbers_and_more();
        if numbers.is_unlimited() {
            return PolicyStatus::unlimited(at);
        }
        let (most, zero) = (self.most(&more), numbers.step_tick(word));
        let (_, available) = self.available(&numbers, &more, word, at);
        let reach = self.reach(&numbers, numbers.one);
        // The cost of one permit is rounded up, so this is more than the cost of `most` permits at
        // once.
        let full = numbers.one.saturating_mul(most.into()).min(reach);
        let never = numbers.one > reach;
        PolicyStatus {
            limit: u64::from(most),
            available,
            next_at: if never { Nanos::MAX } else { numbers.time_of(zero.saturating_add(numbers.one)) },
            full_at: numbers.time_of(zero.saturating_add(full)),
        }
    }

    /// Returns whether the bucket holds all that it can hold. A full bucket may lack a part of a
    /// permit that no single request sees; a fresh bucket does not, because a new bucket has that
    /// part.
    pub(crate) fn is_fresh(&self, state: &BucketState, at: Nanos) -> bool {
        let (numbers, _) = self.numbers_and_more();
        numbers.is_unlimited()
            || numbers.step_tick(state.word()) <= numbers.tick(at).saturating_sub(numbers.capacity)
    }

    /// Returns the tokens with their fraction. The result is negative in debt.
    pub(crate) fn tokens(&self, state: &BucketState, at: Nanos) -> f64 {
        let (numbers, more) = self.numbers_and_more();
        let (zero, tick) = (numbers.step_tick(state.word()), numbers.tick(at));
        match zero.checked_sub(tick) {
            _ if numbers.is_unlimited() => f64::INFINITY,
            Some(0) => 0.0,
            Some(debt) => -more.interval.permits_in_f64(debt),
            None => {
                let stock = tick - zero.max(tick.saturating_sub(numbers.capacity));
                more.interval.permits_in_f64(stock).min(f64::from(more.most))
            }
        }
    }

    pub(crate) fn price_as_time(&self, n: u32) -> Duration {
        ticks::between(0, self.price(n).1).as_duration()
    }
}
