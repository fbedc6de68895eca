//! A breaker: after several failures in a row, calls to the store are suspended for a while, and
//! then resumed one at a time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::jitter::jittered;
use crate::lock::lock;

/// The number of failures in a row that open the breaker.
const FAILURES: u32 = 5;

/// The first rest. It doubles with each probe that fails.
const FIRST: Duration = Duration::from_millis(100);

/// The longest rest.
const LONGEST: Duration = Duration::from_secs(5);

/// The rest that follows this one.
pub(crate) fn next_rest(last: Option<Duration>) -> Duration {
    last.map_or(FIRST, |rest| (rest * 2).min(LONGEST))
}

/// The state of a breaker.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures: u32,
    /// The current or last rest, and its end.
    rest: Option<(Duration, Instant)>,
    /// The time by which the probing call ends at the latest.
    probe_ends: Option<Instant>,
}

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Allow,
    /// The first call after a rest. Its outcome decides.
    Probe,
    /// The remaining time of the rest, or of a probing call.
    Rest(Duration),
}

/// A probing call. When this is dropped, the next call may probe, even if the call ends without an
/// outcome, by a panic or with its task.
pub(crate) struct Probe(Arc<Mutex<Breaker>>);

impl Probe {
    pub(crate) fn of(breaker: &Arc<Mutex<Breaker>>, admission: Admission) -> Option<Probe> {
        (admission == Admission::Probe).then(|| Probe(breaker.clone()))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        lock(&self.0).probe_ends = None;
    }
}

impl Breaker {
    /// Returns whether a call may be made. A call takes at most the timeout, and so does a probe.
    pub(crate) fn admit(&mut self, now: Instant, timeout: Duration) -> Admission {
        match (self.rest, self.probe_ends) {
            (None, _) => Admission::Allow,
            (Some((_, end)), _) if now < end => Admission::Rest(end - now),
            (Some(_), Some(_)) => Admission::Rest(self.rest(now)),
            (Some(_), None) => {
                self.probe_ends = Some(now + timeout);
                Admission::Probe
            }
        }
    }

    /// Records that the store replied.
    pub(crate) fn succeeded(&mut self, admission: Admission) {
        // A reply to a call from before the rest does not prove that the store is back.
        if self.rest.is_none() || admission == Admission::Probe {
            *self = Breaker::default();
        }
    }

    /// Records that the store did not reply. Returns whether the breaker has just opened.
    pub(crate) fn failed(&mut self, admission: Admission, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        let rest = match (self.rest, admission) {
            // A rest has begun since the call left.
            (Some((_, end)), _) if now < end => return false,
            (Some((rest, _)), Admission::Probe) => {
                self.probe_ends = None;
                next_rest(Some(rest))
            }
            (None, _) if self.failures >= FAILURES => next_rest(None),
            _ => return false,
        };
        self.rest = Some((rest, now + jittered(rest)));
        true
    }

    /// Ends a rest: a connection was made, so the next call may probe. If the probe fails, the next
    /// rest is longer. A question for the slots of a cluster also connects to servers that rest.
    pub(crate) fn connected(&mut self, now: Instant) {
        if let Some((_, end)) = &mut self.rest {
            *end = now.min(*end);
        }
    }

    /// The time for which calls remain suspended, by a rest or by a probing call.
    pub(crate) fn rest(&self, now: Instant) -> Duration {
        let end = self.rest.map(|(_, end)| end).max(self.probe_ends);
        end.map_or(Duration::ZERO, |end| end.saturating_duration_since(now))
    }

    /// Returns whether the last call failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Returns whether calls to the store are suspended.
    pub(crate) fn is_open(&self) -> bool {
        self.rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const TIMEOUT: Duration = Duration::from_millis(50);

    /// A breaker that has just opened, and the time.
    fn open() -> (Breaker, Instant) {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        for _ in 0..FAILURES {
            assert_eq!(breaker.admit(now, TIMEOUT), Admission::Allow);
            breaker.failed(Admission::Allow, now);
        }
        (breaker, now)
    }

    #[test]
    fn it_opens_after_failures_in_a_row() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            for _ in 1..FAILURES {
                assert!(!breaker.failed(Admission::Allow, Instant::now()));
            }
            breaker.succeeded(Admission::Allow);
            assert_eq!(breaker.admit(Instant::now(), TIMEOUT), Admission::Allow);
        }
        let (mut breaker, now) = open();
        assert!(matches!(breaker.admit(now, TIMEOUT), Admission::Rest(rest) if rest >= 75 * MS));
    }

    #[test]
    fn a_connection_ends_a_rest_and_the_next_rest_doubles() {
        let (mut breaker, now) = open();
        breaker.connected(now);
        assert_eq!(breaker.admit(now, TIMEOUT), Admission::Probe);
        assert!(breaker.failed(Admission::Probe, now));
        assert!(breaker.rest(now) >= 150 * MS);
        let mut breaker = Breaker::default();
        breaker.connected(now);
        assert!(!breaker.is_open());
    }

    #[test]
    fn one_call_at_a_time_probes_and_rests_double() {
        let (breaker, mut now) = open();
        let breaker = Arc::new(Mutex::new(breaker));
        let admit = |now| {
            let admission = lock(&breaker).admit(now, TIMEOUT);
            (admission, Probe::of(&breaker, admission))
        };
        let mut rest = FIRST;
        for _ in 0..10 {
            let (Admission::Rest(left), None) = admit(now) else { panic!("it is closed") };
            assert!(left >= rest * 3 / 4 && left <= rest * 5 / 4, "{left:?} of {rest:?}");
            now += left;
            let (admission, probe) = admit(now);
            assert_eq!(admission, Admission::Probe);
            for later in [0, 20, 49] {
                // A client with a `retry_after` of zero made 400 calls in an outage.
                assert_eq!(admit(now + later * MS).0, Admission::Rest(TIMEOUT - later * MS));
            }
            // It ends without an outcome.
            drop(probe);
            let (admission, _probe) = admit(now);
            assert_eq!(admission, Admission::Probe);
            assert!(lock(&breaker).failed(admission, now));
            rest = (rest * 2).min(LONGEST);
        }
        assert_eq!(rest, LONGEST);
        now += 2 * LONGEST;
        let (admission, _probe) = admit(now);
        assert_eq!(admission, Admission::Probe);
        lock(&breaker).succeeded(admission);
        assert!(!lock(&breaker).is_open());
    }

    #[test]
    fn late_answers_to_old_calls_change_no_rest() {
        let (mut breaker, now) = open();
        breaker.succeeded(Admission::Allow);
        assert!(breaker.is_open());
        assert!(!breaker.failed(Admission::Allow, now + 50 * MS));
        assert!(!breaker.failed(Admission::Probe, now + 50 * MS));
        assert!(matches!(breaker.admit(now, TIMEOUT), Admission::Rest(rest) if rest <= 125 * MS));
    }
}
