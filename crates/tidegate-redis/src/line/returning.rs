//! Requests that wait for the share of this process, and return to the queue when the store is
//! back.
//!
//! The tasks of such requests are woken in any order, and each request joins the queue with the
//! number of its arrival. So no call leaves until all of them are in the queue. Otherwise requests
//! that were woken first would be booked before earlier ones, and newcomers before all of them. A
//! task that does not run holds up the queue once, for [`GATHERS`].
//!
//! A reply to any call may show that the store is back. If no other call is made, or if the calls
//! go to another server of a cluster, only a call of this queue can show it. So the queue asks now
//! and then by a call that decides no request.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate::Nanos;

use crate::jitter::jittered;
use crate::line::{Deferred, Line, State};
use crate::lock::lock;
use crate::set::Set;

/// For how long no call leaves, at most.
const GATHERS: Duration = Duration::from_millis(10);

/// How often the queue asks whether the store is back.
const ASKS: Duration = Duration::from_secs(5);

/// How many requests will return.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gathering {
    requests: usize,
    /// How many times the store had come back when the first of them began to wait.
    recoveries: u64,
    /// Until when the other requests wait for those that have not returned.
    gathers_till: Option<Nanos>,
    /// Whether a task asks whether the store is back.
    asks: bool,
}

/// A request that will return. It is dropped when the request is in the queue again, or does not
/// return.
pub(crate) struct Returning(Arc<Line>);

impl Returning {
    /// Counts a request that began to wait when the store had come back `recoveries` times.
    pub(crate) fn new(line: &Arc<Line>, recoveries: u64) -> Returning {
        let returning = &mut lock(&line.state).returning;
        if returning.requests == 0 {
            returning.recoveries = recoveries;
        }
        returning.requests += 1;
        if !std::mem::replace(&mut returning.asks, true) {
            line.set.store.spawn(Box::pin(ask_now_and_then(Arc::downgrade(line))));
        }
        Returning(line.clone())
    }
}

/// Asks whether the store is back, while requests wait that will return.
async fn ask_now_and_then(of: Weak<Line>) {
    loop {
        tokio::time::sleep(jittered(ASKS)).await;
        let Some(line) = of.upgrade() else { return };
        {
            let returning = &mut lock(&line.state).returning;
            if returning.requests == 0 {
                returning.asks = false;
                return;
            }
        }
        let set = line.set.clone();
        drop(line);
        set.store.ask_whether_back(set.reserve(&[], &[]), &set.script, ASKS / 2).await;
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        self.0.visit(|state, _, _| state.returning.requests -= 1);
    }
}

impl State {
    /// Returns whether requests return that are not in the queue yet.
    pub(super) fn gathers(&mut self, deferred: &mut Deferred, set: &Set, now: Nanos) -> bool {
        let Gathering { requests, recoveries: before, gathers_till, .. } = self.returning;
        let recoveries = if requests == 0 { before } else { set.store.recoveries() };
        // The server of another limit may have come back.
        if recoveries == before || set.is_failing() {
            self.returning.gathers_till = None;
            return false;
        }
        let till = gathers_till.unwrap_or_else(|| {
            let till = now.saturating_add(Nanos::from_duration(GATHERS));
            // At that time the line continues without the requests that have not returned.
            deferred.visits.push((till, |_, _, _| ()));
            till
        });
        let gathers = now < till;
        self.returning.gathers_till = gathers.then_some(till);
        if !gathers {
            self.returning.recoveries = recoveries;
        }
        gathers
    }
}
