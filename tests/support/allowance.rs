//! The allowed distance of a policy from the reference model: the rounding errors of both, followed
//! through the calls.
//!
//! A policy and the model round differently, by a few ticks for each request. For the bursty kind
//! these errors only add up. For the warming-up kind they can grow: a state that is a tick colder
//! raises the cost of a permit by up to *K* ticks, a later grant means less idling, less idling
//! means a warmer state, and so on. *K* is the largest slope of the cost over the coldness: 2 with
//! Guava's cold factor of 3, and 6.1 with a factor of 10. So no fixed number of nanoseconds is a
//! correct bound.
//!
//! Instead, each rounding is kept as a source of error in the two numbers of the state and carried
//! through the derivative of the rule at each call. The sizes of all sources are added up at the
//! end. Where the rule has a kink (just idle or just not, just full or just not), the error is
//! taken between the two sides of the kink.

use crate::guava::{Guava, Kind};

/// One rounding, and the error it has become since, in ticks.
#[derive(Clone, Copy, Debug)]
struct Source {
    /// The error in the time of the next grant. For the bursty kind: in the time at which no permit
    /// is stored.
    next: f64,
    /// The error in the coldness: the stored permits, as the time it takes to store them. Unused
    /// for the bursty kind.
    coldness: f64,
}

/// The bound for one limiter, at the policies' tick of 1/16 ns.
#[derive(Debug)]
pub(crate) struct Allowance {
    sources: Vec<Source>,
    kind: Kind,
}

/// Times passed to and returned by a policy are whole nanoseconds, rounded up.
const NANO: f64 = 16.0;
/// Several roundings of an `f64`, relative to its size.
const FLOAT: f64 = 8.0 * f64::EPSILON;
/// The fixed point of `SmoothWarmingUp`: 44 bits, some of which are lost in products of two
/// numbers.
const FIXED: f64 = 4.0 / (1u64 << 44) as f64;

impl Allowance {
    pub(crate) fn new(kind: Kind) -> Allowance {
        // The policy receives a burst in seconds as whole nanoseconds.
        Allowance { sources: vec![Source { next: NANO, coldness: 0.0 }], kind }
    }

    /// Returns by how many ticks a due time may differ.
    pub(crate) fn ticks(&self) -> f64 {
        NANO + self.next()
    }

    fn next(&self) -> f64 {
        self.sources.iter().map(|source| source.next.abs()).sum()
    }

    fn coldness(&self) -> f64 {
        self.sources.iter().map(|source| source.coldness.abs()).sum()
    }

    /// Makes the model take `n` permits, and follows the errors.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn acquire(&mut self, model: &mut Guava, at: i128, n: u32) -> i128 {
        let before = model.next();
        self.idle(model, (at - before) as f64);
        // A request for no permits only brings the model up to date.
        let wait = model.acquire(at, 0);
        let (cold, steep, start) = (model.coldness(), model.surcharge_slope(), model.next());
        model.acquire(at, n);
        let cost = (model.next() - start) as f64;
        self.grant(model, cold, steep, cost, n);
        wait
    }

    /// The time since the last grant was paid for, if any, is saved.
    fn idle(&mut self, model: &Guava, gap: f64) {
        let Kind::WarmingUp { warm_up, .. } = self.kind else { return };
        let unsure = self.next() + NANO;
        if gap < -unsure {
            return;
        }
        // The share of the error in `next` that moves to the coldness.
        let share = if gap > unsure { 1.0 } else { 0.5 };
        for source in &mut self.sources {
            source.coldness -= share * source.next;
            source.next -= share * source.next;
        }
        if gap <= unsure {
            self.sources.push(Source { next: unsure / 2.0, coldness: unsure / 2.0 });
        }
        if model.coldness() + gap > warm_up * (1.0 + FLOAT) + self.coldness() {
            // Cold, whatever the error was.
            self.sources.iter_mut().for_each(|source| source.coldness = 0.0);
        }
    }

    /// A grant that found a coldness where the cost rises by `steep`, and cost `cost` ticks.
    fn grant(&mut self, model: &Guava, cold: f64, steep: f64, cost: f64, n: u32) {
        // One truncation in the model, one rounding up in the policy, and the precision of the
        // floats.
        self.sources.push(Source { next: 2.0 + FLOAT * cost, coldness: 0.0 });
        let Kind::WarmingUp { warm_up, cold_factor } = self.kind else { return };
        let flatter = steep - model.surcharge_slope();
        for source in &mut self.sources {
            source.next += flatter * source.coldness;
        }
        if model.ticks_of_coldness(n) > cold + self.coldness() + 1.0 + FIXED * warm_up {
            // Warm, whatever the error was.
            self.sources.iter_mut().for_each(|source| source.coldness = 0.0);
        }
        // Two more truncations in the model, and in the policy the whole ticks and the factors of
        // the cost curve.
        let steepest = (cold_factor - 1.0) * (cold_factor + 5.0) / (2.0 * (cold_factor + 1.0));
        let coldness = 1.0 + FIXED * warm_up;
        self.sources.push(Source { next: 3.0 + 2.0 * steepest * coldness, coldness });
    }
}
