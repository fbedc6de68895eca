//! When the requests that wait in front of a bucket are due.

use crate::policy::bucket::{Bucket, BucketState};
use crate::policy::{Crowd, Forecast, Standstill, ticks};
use crate::time::Nanos;

impl Bucket {
    pub(crate) fn weight(&self, n: u32) -> u64 {
        self.price(n).1
    }

    pub(crate) fn ready_at(&self, state: &BucketState, at: Nanos, ahead: u64, n: u32) -> Nanos {
        let (numbers, price) = self.price(n);
        if numbers.is_unlimited() {
            // Since ever: another limit, or the end of a pause, determines when a request is due.
            return Nanos::ZERO;
        }
        if price > self.reach(&numbers, price) {
            return Nanos::MAX;
        }
        let mut zero = numbers.step_tick(state.word());
        if ahead > 0 {
            // The requests ahead are not one large request, which might find more tokens than the
            // bucket holds.
            zero = zero.max(numbers.tick(at).saturating_sub(numbers.capacity)).saturating_add(ahead);
        }
        numbers.time_of(zero.saturating_add(price))
    }

    /// There are two cases in which a sum does not determine when a request is due. If tokens
    /// arrive in steps, tokens that do not fit are lost, even while a large request waits for more.
    /// And a request that is larger than the bucket finds only the tokens that accrued for it,
    /// without the tokens of the nanosecond by which its grant was rounded up.
    pub(crate) fn one_by_one(&self, largest: u32) -> usize {
        let (numbers, price) = self.published(largest);
        let overflows = numbers.step > 0 && price.saturating_add(numbers.gain) > numbers.capacity;
        if overflows || price > numbers.capacity { usize::MAX } else { 0 }
    }

    pub(crate) fn forecast(state: &BucketState, at: Nanos) -> Forecast {
        Forecast::with(at, [state.word(), 0, 0])
    }

    /// See [`Policy::forecast_pause`](crate::policy::Policy::forecast_pause).
    pub(crate) fn forecast_pause(&self, state: &BucketState, stop: Standstill) -> Forecast {
        let (numbers, _) = self.price(1);
        let zero = state.word();
        Forecast::with(stop.to, [numbers.paused(zero, self.held(&numbers), stop), 0, 0])
    }

    pub(crate) fn predict(&self, forecast: &mut Forecast, n: u32) -> Nanos {
        let (numbers, price) = self.price(n);
        if numbers.is_unlimited() {
            return forecast.at;
        }
        let reach = self.reach(&numbers, price);
        if price > reach {
            return Nanos::MAX;
        }
        let zero = numbers.step_tick(forecast.numbers[0]);
        let due = forecast.at.max(numbers.time_of(zero.saturating_add(price)));
        if due < Nanos::MAX {
            forecast.at = due;
            forecast.numbers[0] =
                numbers.word_of(zero.max(numbers.tick(due).saturating_sub(reach)).saturating_add(price));
        }
        due
    }

    /// Assumes that none of the requests finds more tokens than the bucket holds.
    pub(crate) fn predict_many(&self, forecast: &mut Forecast, crowd: &Crowd) {
        let (numbers, largest) = self.price(crowd.largest);
        // A request that waits lacks some tokens. Each request therefore loses no more tokens of a
        // step than this.
        let lost = match numbers.step {
            0 if largest > numbers.capacity => ticks::PER_NANO,
            0 => 0,
            _ => largest.saturating_add(numbers.gain).saturating_sub(numbers.capacity).min(numbers.gain),
        };
        let weight = crowd.weight.saturating_add(lost.saturating_mul(crowd.requests));
        let floor = numbers.tick(forecast.at).saturating_sub(numbers.capacity);
        forecast.numbers[0] =
            numbers.word_of(numbers.step_tick(forecast.numbers[0]).max(floor).saturating_add(weight));
    }
}
