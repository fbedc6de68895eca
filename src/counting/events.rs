//! The events that a counting limit reports to its observers.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, DefaultClock};
use crate::counting::{Answer, CountingLimit};
use crate::error::Refusal;
use crate::limiter::events::Events;
use crate::line::deferred::run_in_drop;
use crate::time::Nanos;

impl CountingLimit {
    /// Sets the observer, which is notified of every call that begins from now on. Returns `false`,
    /// and changes nothing, if the limit already has an observer.
    ///
    /// The observer gets the events of a [`RateLimiter`](crate::RateLimiter::observe): each call is
    /// reported once, when it ends, as granted, refused or cancelled. Permits that are given back
    /// are not reported. All clones share the observer. The [`AnyLimiter`](crate::AnyLimiter) of
    /// the limit reports its calls and pauses to the same observer.
    ///
    /// A limit without an observer pays one comparison for each call. With an observer, the clock
    /// is read for a call that waits.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::{CountingLimit, Statistics};
    ///
    /// let limit = CountingLimit::new(2);
    /// let statistics = Arc::new(Statistics::new());
    /// limit.observe(statistics.clone());
    /// let both = limit.try_acquire_many(2)?;
    /// assert!(limit.try_acquire().is_err());
    /// let counts = statistics.snapshot();
    /// assert_eq!((counts.granted, counts.permits, counts.in_use), (1, 2, 1));
    /// # drop(both);
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.pool.events.observe(events)
    }

    /// Reports to the observers how a call ended.
    #[inline]
    pub(super) fn report_end(&self, n: u32, waited: Duration, answer: Answer) -> Answer {
        if self.is_observed() {
            self.report_answer(n, waited, &answer);
        }
        answer
    }

    #[cold]
    fn report_answer(&self, n: u32, waited: Duration, answer: &Answer) {
        self.report(|events| match answer {
            // A call for up to a number reports the number that it got.
            Ok(permit) => events.granted(permit.n.into(), waited),
            Err(refusal) => events.refused(n.into(), refusal),
        });
    }

    /// Returns the refusal of a request that may not wait, and reports it to the observers.
    pub(super) fn check_and_report(&self, n: u32) -> Result<(), Refusal> {
        self.check(n).inspect_err(|refusal| self.report(|events| events.refused(n.into(), refusal)))
    }

    #[inline]
    fn is_observed(&self) -> bool {
        self.pool.events.is_some()
    }

    /// Reports an event to the observers, if there are any. The caller holds no lock.
    pub(crate) fn report(&self, event: impl Fn(&dyn Events)) {
        self.pool.events.report(event);
    }
}

/// Since when a request has been waiting, for the observers.
#[derive(Debug)]
pub(super) enum Wait {
    /// The request does not wait yet.
    New,
    /// No report is due: there was no observer when the request began to wait, or it was already
    /// reported.
    NoReport,
    /// Since this time, by the limit's own clock.
    Since(Nanos),
    /// Since this clock started. Boxed, because few requests have one.
    Clock(Box<DefaultClock>),
}

impl Wait {
    /// Begins the wait now, unless it has already begun.
    pub(super) fn begin(&mut self, limit: &CountingLimit) {
        if let Wait::New = self {
            *self = match &limit.clock {
                _ if !limit.is_observed() => Wait::NoReport,
                Some(clock) => Wait::Since(clock.now()),
                None => Wait::Clock(Box::default()),
            };
        }
    }

    /// Returns how long the request has waited, or `None` if no report is due. Only the first call
    /// returns a time.
    pub(super) fn end(&mut self, limit: &CountingLimit) -> Option<Duration> {
        let waited = match std::mem::replace(self, Wait::NoReport) {
            Wait::New | Wait::NoReport => return None,
            Wait::Since(since) => limit.clock.as_ref()?.now().saturating_since(since),
            Wait::Clock(clock) => clock.now(),
        };
        Some(waited.as_duration())
    }

    /// Reports to the observers that the request was cancelled, unless its end was already
    /// reported.
    pub(super) fn cancel(&mut self, limit: &CountingLimit, n: u32) {
        run_in_drop(|| {
            if let Some(waited) = self.end(limit) {
                limit.report(|events| events.cancelled(n.into(), waited));
            }
        });
    }
}
