//! The attempts of a call: at which servers, and whether the last one was sent.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::server::Server;
use crate::breaker::{Admission, Probe};
use crate::lock::lock;

/// The attempts of a call, for the deadline that ends the call, and for the breakers of the servers
/// that it was sent to.
#[derive(Default)]
pub(crate) struct Sent(Mutex<Option<Attempt>>);

/// A server, and how its breaker admitted the call.
struct Admitted {
    server: Arc<Server>,
    admission: Admission,
    _probe: Option<Probe>,
}

impl Admitted {
    fn new(server: &Arc<Server>, admission: Admission) -> Admitted {
        let _probe = Probe::of(&server.breaker, admission);
        Admitted { server: server.clone(), admission, _probe }
    }
}

/// The attempts of a call at one server, of which one at most has no outcome yet.
struct Attempt {
    at: Admitted,
    /// When the first of them began.
    began: Instant,
    /// The number of the connection, if there is one.
    number: Option<u64>,
    /// The number of replies of the server when the call was first sent on this connection.
    replies: u64,
    /// Whether the call waited for the connection, and so had less than its whole time for a reply.
    is_new: bool,
    stage: Stage,
}

/// How far an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for its turn, or before it is repeated.
    Waits,
    /// It waits for a connection, or for the slots of a cluster.
    Connects,
    /// The call was sent, and has no outcome yet.
    Left,
}

impl Attempt {
    fn new(server: &Arc<Server>, admission: Admission) -> Attempt {
        let (at, replies) = (Admitted::new(server, admission), server.replies());
        Attempt { at, began: Instant::now(), number: None, replies, is_new: true, stage: Stage::Waits }
    }
}

/// The last attempt of a call: at which server, since when, and how its breaker admitted the call.
pub(crate) struct LastAttempt {
    pub(crate) server: Arc<Server>,
    pub(crate) admission: Admission,
    pub(crate) began: Instant,
    /// The number of replies of the server when the attempt began.
    pub(crate) replies: u64,
}

impl Sent {
    /// The attempts of a call that the breaker of this server has admitted.
    pub(crate) fn new(server: &Arc<Server>, admission: Admission) -> Sent {
        Sent(Mutex::new(Some(Attempt::new(server, admission))))
    }

    /// Notes that the call goes to `server`, if the breaker of `server` admits the call. Otherwise
    /// returns for how long `server` rests.
    pub(super) fn leads_to(&self, server: &Arc<Server>, timeout: Duration) -> Result<(), Duration> {
        let mut last = lock(&self.0);
        if last.as_ref().is_some_and(|last| Arc::ptr_eq(&last.at.server, server)) {
            return Ok(());
        }
        let admission = lock(&server.breaker).admit(Instant::now(), timeout);
        if let Admission::Rest(rest) = admission {
            return Err(rest);
        }
        // If this call was to probe the server before, that probe ends here without an outcome.
        *last = Some(Attempt::new(server, admission));
        Ok(())
    }

    /// Ends the last attempt, whose server redirected the call. If the attempt was a probe of the
    /// server, the probe ends after `by`.
    pub(super) fn is_redirected(&self, by: impl FnOnce(&Server, Admission)) {
        let last = lock(&self.0).take();
        if let Some(Attempt { at, .. }) = last {
            by(&at.server, at.admission);
        }
    }

    /// Leads the call to another server, as a redirection does.
    #[cfg(test)]
    pub(crate) fn is_led_to(&self, server: &Arc<Server>) {
        self.is_redirected(|_, _| ());
        assert_eq!(self.leads_to(server, Duration::MAX), Ok(()));
    }

    /// Begins an attempt at a server. An earlier one did not run, or its outcome is known.
    pub(super) fn tries(&self, server: &Arc<Server>) {
        let mut last = lock(&self.0);
        last.get_or_insert_with(|| Attempt::new(server, Admission::Allow)).stage = Stage::Connects;
    }

    /// Notes that the call waits for the slots of a cluster.
    pub(super) fn asks_for_slots(&self) {
        if let Some(last) = &mut *lock(&self.0) {
            last.stage = Stage::Connects;
        }
    }

    /// Notes that the call leaves over the connection of this number.
    pub(super) fn by(&self, number: u64, replies: u64, is_new: bool) {
        if let Some(last) = &mut *lock(&self.0) {
            if last.number != Some(number) {
                (last.number, last.replies, last.is_new) = (Some(number), replies, is_new);
            }
            last.stage = Stage::Left;
        }
    }

    /// Ends the attempt: the call did not run, or its outcome is known.
    pub(super) fn withdraw(&self) {
        if let Some(last) = &mut *lock(&self.0) {
            last.stage = Stage::Waits;
        }
    }

    /// Returns whether the last attempt probes its server.
    pub(super) fn is_probe(&self) -> bool {
        lock(&self.0).as_ref().is_some_and(|last| last.at.admission == Admission::Probe)
    }

    pub(crate) fn last(&self) -> Option<LastAttempt> {
        lock(&self.0).as_ref().map(|Attempt { at, began, replies, .. }| LastAttempt {
            server: at.server.clone(),
            admission: at.admission,
            began: *began,
            replies: *replies,
        })
    }

    /// Returns whether the call waits for a reply over a connection that is not used any more.
    pub(crate) fn is_on_old_connection(&self) -> bool {
        let last = lock(&self.0);
        let sent = last.as_ref().filter(|last| last.stage == Stage::Left);
        sent.is_some_and(|last| last.number.is_some_and(|number| !last.at.server.uses(number)))
    }

    /// Gives up a call without a reply in time. If its connection was silent all the time, and that
    /// was long enough for a reply, no further call uses the connection, because it may lead to a
    /// server that is gone. Returns how far the call was.
    pub(crate) fn give_up(&self, was_long: bool) -> Stage {
        let last = lock(&self.0);
        let Some(Attempt { at, number, replies, is_new, stage, .. }) = &*last else {
            return Stage::Waits;
        };
        if was_long && !is_new && at.server.replies() == *replies {
            number.iter().for_each(|number| at.server.forget(*number));
            at.server.is_suspect.store(true, Ordering::Relaxed);
        }
        *stage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Wire;

    const TIMEOUT: Duration = Duration::from_millis(50);

    fn server() -> Arc<Server> {
        Server::new(Wire::default())
    }

    /// All calls that were redirected to a server that rested asked it when the rest was over, and
    /// a call that was not made counted as a failed probe.
    #[tokio::test(start_paused = true)]
    async fn one_redirected_call_at_a_time_probes_a_server() {
        let (from, to) = (server(), server());
        for _ in 0..5 {
            lock(&to.breaker).failed(Admission::Allow, Instant::now());
        }
        let led = || {
            let sent = Sent::new(&from, Admission::Allow);
            assert_eq!(sent.leads_to(&from, TIMEOUT), Ok(()));
            sent.is_redirected(|_, _| ());
            let led = sent.leads_to(&to, TIMEOUT);
            (sent, led)
        };
        let (sent, led_now) = led();
        let rest = led_now.expect_err("a rest");
        assert!(rest > TIMEOUT && sent.last().is_none());
        tokio::time::advance(rest).await;
        let (probing, led_now) = led();
        assert_eq!(led_now, Ok(()));
        let last = probing.last().expect("an attempt");
        assert!(Arc::ptr_eq(&last.server, &to) && last.admission == Admission::Probe);
        for _ in 0..10 {
            assert_eq!(led().1, Err(TIMEOUT));
        }
        // The call ends without an outcome.
        drop(probing);
        assert_eq!(led().1, Ok(()));
    }

    /// A server that is probed by a call and redirects it has replied.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_redirects_a_probing_call_is_known() {
        let (from, to) = (server(), server());
        let sent = Sent::new(&from, Admission::Probe);
        sent.tries(&from);
        let mut by = None;
        sent.is_redirected(|server, admission| by = Some((std::ptr::eq(server, &*from), admission)));
        assert_eq!(by, Some((true, Admission::Probe)));
        assert_eq!(sent.leads_to(&to, TIMEOUT), Ok(()));
        assert_eq!(sent.last().expect("an attempt").admission, Admission::Allow);
    }
}
