//! The reference model: Guava's `RateLimiter`, both kinds, written from the formulas in
//! `tests/golden/guava/README.md`.
//!
//! The model is slow and simple: permits are floats, no value is precomputed, and no state is
//! shared. The tick is a parameter. At a million ticks a second it gives Guava's results to the
//! microsecond. At finer ticks it is Guava in nearly real arithmetic. Guava's defects (class
//! `quirk` in the traces) are not modelled: sums saturate instead of wrapping.

/// The resolution of time, and where time ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    pub(crate) per_second: f64,
    /// Times saturate here: the debt of a limiter that never has a free permit again.
    pub(crate) limit: i128,
}

impl Ticks {
    /// The ticks of the policies: 1/16 ns, as many as a `u64` holds, less the 2^60 before time
    /// zero.
    pub(crate) const PRODUCTION: Ticks = Ticks { per_second: 16e9, limit: u64::MAX as i128 - (1 << 60) };

    /// The number of the policies' ticks in a nanosecond.
    pub(crate) const PER_NANO: i128 = 16;
}

/// What a limiter does with unused time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Bursty {
        max_burst_seconds: f64,
    },
    WarmingUp {
        /// In ticks.
        warm_up: f64,
        cold_factor: f64,
    },
}

/// One limiter.
#[derive(Clone, Debug)]
pub(crate) struct Guava {
    ticks: Ticks,
    kind: Kind,
    /// Ticks for one permit at the steady rate.
    interval: f64,
    /// Permits saved.
    stored: f64,
    /// The most permits that can be saved.
    max: f64,
    /// Permits stored beyond this many cost extra, by `slope` ticks for each.
    threshold: f64,
    slope: f64,
    /// When the next request is granted, whatever its size.
    next: i128,
}

impl Guava {
    /// Creates a limiter at the time `at`.
    pub(crate) fn new(ticks: Ticks, kind: Kind, rate: f64, at: i128) -> Guava {
        let mut limiter =
            Guava { ticks, kind, interval: 0.0, stored: 0.0, max: 0.0, threshold: 0.0, slope: 0.0, next: 0 };
        limiter.set_rate(at, rate);
        limiter
    }

    /// Changes the rate, in permits per second.
    pub(crate) fn set_rate(&mut self, at: i128, rate: f64) {
        self.resync(at);
        let old_max = self.max;
        self.interval = self.ticks.per_second / rate;
        match self.kind {
            Kind::Bursty { max_burst_seconds } => self.max = max_burst_seconds * rate,
            Kind::WarmingUp { warm_up, cold_factor } => {
                let cold = self.interval * cold_factor;
                self.threshold = 0.5 * warm_up / self.interval;
                self.max = self.threshold + 2.0 * warm_up / (self.interval + cold);
                self.slope = (cold - self.interval) / (self.max - self.threshold);
            }
        }
        let (when_new, after_unlimited) = match self.kind {
            Kind::Bursty { .. } => (0.0, self.max),
            Kind::WarmingUp { .. } => (self.max, 0.0),
        };
        self.stored = if old_max == 0.0 {
            when_new
        } else if old_max == f64::INFINITY {
            after_unlimited
        } else {
            self.stored * self.max / old_max
        };
    }

    /// Returns the rate as Guava reports it, computed back from the interval.
    pub(crate) fn rate(&self) -> f64 {
        self.ticks.per_second / self.interval
    }

    /// Returns when the next request is granted; in the past if it is granted at once.
    pub(crate) fn next(&self) -> i128 {
        self.next
    }

    /// Returns whether a request that waits no longer than `timeout` is granted. Its size does not
    /// matter.
    pub(crate) fn grants_within(&self, at: i128, timeout: i128) -> bool {
        self.next - timeout.max(0) <= at
    }

    /// Takes `n` permits and returns how long the request waits.
    pub(crate) fn acquire(&mut self, at: i128, n: u32) -> i128 {
        self.resync(at);
        let wait = (self.next - at).max(0);
        let take = f64::from(n).min(self.stored);
        let fresh = f64::from(n) - take;
        let cost = self.stored_cost(take) + self.cut(fresh * self.interval);
        self.next = (self.next + cost).min(self.ticks.limit);
        self.stored -= take;
        wait
    }

    /// Returns the permits stored, as the ticks it takes to store them.
    pub(crate) fn coldness(&self) -> f64 {
        if self.stored == 0.0 { 0.0 } else { self.stored * self.ticks_per_stored() }
    }

    /// Returns the ticks it takes to store `n` permits.
    pub(crate) fn ticks_of_coldness(&self, n: u32) -> f64 {
        f64::from(n) * self.ticks_per_stored()
    }

    /// Returns by how many ticks the cost of a warming-up permit exceeds the interval, for a tick
    /// of coldness.
    pub(crate) fn surcharge_slope(&self) -> f64 {
        let above = self.stored - self.threshold;
        if above > 0.0 && self.interval > 0.0 { above * self.slope / self.ticks_per_stored() } else { 0.0 }
    }

    /// Discards the saved permits.
    pub(crate) fn forget_stored(&mut self) {
        self.stored = 0.0;
    }

    /// Saves the time since the last grant was paid for.
    fn resync(&mut self, at: i128) {
        if at > self.next {
            // Java's `min` keeps a NaN where Rust's drops it. No wait shows the difference.
            self.stored = self.max.min(self.stored + (at - self.next) as f64 / self.ticks_per_stored());
            self.next = at;
        }
    }

    /// Returns how long it takes to save one permit.
    fn ticks_per_stored(&self) -> f64 {
        match self.kind {
            Kind::Bursty { .. } => self.interval,
            Kind::WarmingUp { warm_up, .. } => warm_up / self.max,
        }
    }

    /// Returns the cost of saved permits: nothing, or the area under the cost curve.
    fn stored_cost(&self, take: f64) -> i128 {
        if let Kind::Bursty { .. } = self.kind {
            return 0;
        }
        let height = |above: f64| self.interval + above * self.slope;
        let above = self.stored - self.threshold;
        let mut cost = 0;
        let mut rest = take;
        if above > 0.0 {
            let ramp = above.min(take);
            cost += self.cut(ramp * (height(above) + height(above - ramp)) / 2.0);
            rest -= ramp;
        }
        cost + self.cut(self.interval * rest)
    }

    /// Truncates to whole ticks toward zero, saturating; not a number is 0, as in Java.
    #[allow(clippy::cast_possible_truncation)]
    fn cut(&self, ticks: f64) -> i128 {
        (ticks as i128).min(self.ticks.limit)
    }
}
