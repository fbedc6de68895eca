//! Calls that had no reply in time, although their server replied to others.
//!
//! Such a server is well, so no outage ends from which the requests of the call could return. They
//! ask again after a reply to a later call. The server may have carried out each of the late calls,
//! and booked permits that no request gets. So if calls are late again soon after, the requests ask
//! again at the intervals at which a breaker probes.

use std::time::Duration;

use tokio::time::Instant;

use crate::breaker::next_rest;
use crate::jitter::jittered;

/// The late calls to one server.
#[derive(Debug, Default)]
pub(crate) struct LateCalls {
    /// The last interval.
    rest: Option<Duration>,
    /// Replies to calls sent from this time on let the requests of late calls ask again. `None` if
    /// no requests wait for such a reply.
    from: Option<Instant>,
    /// When such a reply last came.
    ended: Option<Instant>,
}

impl LateCalls {
    /// Records a late call.
    pub(crate) fn add(&mut self) {
        if self.from.is_none() {
            let now = Instant::now();
            let is_soon = |rest: &Duration| self.ended.is_some_and(|ended| now - ended <= 2 * *rest);
            let rest = next_rest(self.rest.filter(is_soon));
            (self.rest, self.from) = (Some(rest), Some(now + jittered(rest)));
        }
    }

    /// Returns whether requests wait for the reply to a later call.
    pub(crate) fn is_awaited(&self) -> bool {
        self.from.is_some()
    }

    /// Records a reply to a call sent at `sent`. Returns whether the requests of late calls ask
    /// again.
    pub(crate) fn replied(&mut self, sent: Instant) -> bool {
        let is_over = self.from.take_if(|from| *from <= sent).is_some();
        if is_over {
            self.ended = Some(Instant::now());
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The time after which a reply lets the requests of a late call ask again.
    async fn ends_after(calls: &mut LateCalls) -> Duration {
        calls.add();
        let began = Instant::now();
        while !calls.replied(Instant::now()) {
            // Later late calls change nothing.
            calls.add();
            tokio::time::advance(MS).await;
        }
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_ask_again_less_and_less_often_while_calls_are_late() {
        let mut calls = LateCalls::default();
        assert!(!calls.replied(Instant::now()));
        for rest in [100, 200, 400, 800, 1600, 3200, 5000, 5000].map(|rest| rest * MS) {
            let passed = ends_after(&mut calls).await;
            assert!(passed >= rest * 3 / 4 && passed <= rest * 5 / 4 + MS, "{passed:?} of {rest:?}");
            assert!(!calls.replied(Instant::now()));
            tokio::time::advance(50 * MS).await;
        }
        tokio::time::advance(10_000 * MS).await;
        assert!(ends_after(&mut calls).await <= 126 * MS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_to_an_earlier_call_does_not_count() {
        let mut calls = LateCalls::default();
        let sent = Instant::now();
        calls.add();
        tokio::time::advance(1_000 * MS).await;
        assert!(!calls.replied(sent));
        assert!(calls.replied(Instant::now()));
    }
}
