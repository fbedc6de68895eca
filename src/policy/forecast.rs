//! A forecast: the next grants, predicted request by request.

use crate::time::{CLOCK_SKEW, Nanos};

/// The requests that are served first, as a policy predicts them: the data that
/// [`Policy::predict`](super::Policy::predict) keeps from one request to the next.
///
/// [`Policy::forecast`](super::Policy::forecast) creates it. Only the policy that created it reads
/// it, together with the state for which it was created. The policy chooses the meaning of each
/// field; the defaults of the trait use `from`, `at` and `ahead` as described here.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Forecast {
    /// The time at which the forecast begins. Nothing is granted earlier. It does not change.
    pub from: Nanos,
    /// The time of the last grant that was predicted, or `from`.
    pub at: Nanos,
    /// The summed weight of all requests that were predicted.
    pub ahead: u64,
    /// A copy of the state, changed by the grants that were predicted.
    pub numbers: [u64; 3],
    /// The permits of all requests that were predicted, if the limiter spaces them after a pause.
    pub(crate) paced: u64,
    /// The times at which permits return, and how many, earliest first.
    expiries: Vec<(u64, u64)>,
    /// How many of these entries returned before `at`.
    expired: usize,
    /// The forecasts of the two policies of a [`Both`](super::Both), or of the members of an
    /// [`AllOf`](crate::AllOf).
    pub(crate) parts: Vec<Forecast>,
}

impl Forecast {
    /// Creates a forecast that begins at a time and has predicted nothing.
    #[must_use]
    pub fn new(from: Nanos) -> Forecast {
        Forecast { from, at: from, ..Forecast::default() }
    }

    /// Creates a forecast with a copy of the state.
    pub(crate) fn with(from: Nanos, numbers: [u64; 3]) -> Forecast {
        Forecast { numbers, ..Forecast::new(from) }
    }

    /// Creates a forecast for several policies at once.
    pub(crate) fn of_parts(from: Nanos, parts: Vec<Forecast>) -> Forecast {
        Forecast { parts, ..Forecast::new(from) }
    }

    /// Records that `permits` permits return at a time that is not earlier than any time recorded
    /// before, in a unit of the policy's choice.
    pub fn add_expiry(&mut self, at: u64, permits: u64) {
        match self.expiries[self.expired..].last_mut() {
            Some((last, more)) if *last >= at => *more = more.saturating_add(permits),
            _ => self.expiries.push((at, permits)),
        }
    }

    /// Returns the time at which permits return next, and how many.
    #[must_use]
    pub fn next_expiry(&self) -> Option<(u64, u64)> {
        self.expiries.get(self.expired).copied()
    }

    /// Removes the permits that return next, because they have returned.
    pub fn pop_expiry(&mut self) {
        self.expired = (self.expired + 1).min(self.expiries.len());
    }

    /// Returns whether two forecasts that have predicted nothing found equal states.
    pub(crate) fn has_equal_state(&self, other: &Forecast) -> bool {
        // How far the clock of a part is ahead. The clocks are read one after the other.
        let ahead = |of: &Forecast, part: &Forecast| part.from.as_u64().wrapping_sub(of.from.as_u64());
        let are_the_same = |(part, others): (&Forecast, &Forecast)| {
            let skew = ahead(self, part).wrapping_sub(ahead(other, others));
            skew.min(skew.wrapping_neg()) <= CLOCK_SKEW.as_u64() && part.has_equal_state(others)
        };
        self.parts.len() == other.parts.len()
            && self.parts.iter().zip(&other.parts).all(are_the_same)
            && self.numbers == other.numbers
            && self.expiries == other.expiries
    }

    /// Forgets the permits that have returned.
    pub(crate) fn drop_expired(&mut self) {
        if self.expired > self.expiries.len() / 2 {
            self.expiries.drain(..self.expired);
            self.expired = 0;
        }
        self.parts.iter_mut().for_each(Forecast::drop_expired);
    }

    /// Returns a mark of the present position, so that the forecast can [go
    /// back](Forecast::rewind) later.
    pub(crate) fn mark(&self) -> Mark {
        let &Forecast { from, at, ahead, numbers, paced, ref expiries, expired, ref parts } = self;
        let parts = parts.iter().map(Forecast::mark).collect();
        let (at, last) = ((from, at, ahead, numbers), expiries.last().copied());
        Mark { at, paced, expired, len: expiries.len(), last, parts }
    }

    /// Forgets what was predicted since a mark was created.
    pub(crate) fn rewind(&mut self, mark: &Mark) {
        (self.from, self.at, self.ahead, self.numbers) = mark.at;
        self.expired = mark.expired;
        self.paced = mark.paced;
        self.expiries.truncate(mark.len);
        // The entry may have grown since the mark.
        if let (Some(last), Some(was)) = (self.expiries.last_mut(), mark.last) {
            *last = was;
        }
        self.parts.iter_mut().zip(&mark.parts).for_each(|(part, mark)| part.rewind(mark));
    }
}

/// The position of a [`Forecast`].
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    at: (Nanos, Nanos, u64, [u64; 3]),
    paced: u64,
    expired: usize,
    len: usize,
    last: Option<(u64, u64)>,
    parts: Vec<Mark>,
}

/// Many requests that are served first, of which a policy gets only the sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Crowd {
    /// The number of requests.
    pub requests: u64,
    /// The number of permits that they ask for, all together.
    pub permits: u64,
    /// Their weight, all together; see [`Policy::weight`](super::Policy::weight).
    pub weight: u64,
    /// The maximum number of permits that one of them asks for.
    pub largest: u32,
}

impl Crowd {
    /// Creates a crowd of `requests` requests, with the sums of their permits and of their weights.
    /// None of them asks for more than `largest` permits.
    #[must_use]
    pub fn new(requests: u64, permits: u64, weight: u64, largest: u32) -> Crowd {
        Crowd { requests, permits, weight, largest }
    }

    /// Returns in how many windows all of them are granted at the latest, if at most `limit`
    /// permits pass in any window, and a request waits only if they leave no room for it. More
    /// requests than the crowd wait, so a window ends with a request that does not fit.
    ///
    /// Then more than `limit - largest` permits have passed in that window, and at least one
    /// request has.
    pub(crate) fn spans(&self, limit: u64) -> u64 {
        let passes = limit.saturating_sub(self.largest.into()).saturating_add(1);
        self.permits.div_ceil(passes).min(self.requests)
    }
}
