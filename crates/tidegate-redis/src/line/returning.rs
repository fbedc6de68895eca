//! Requests that wait for the share of this process, and return to the line when the store is back.
//!
//! The tasks of such requests are woken in any order, and each request joins the line with the number
//! of its arrival. So no call leaves until all of them stand in line: else requests that were woken
//! first would be booked before earlier ones, and newcomers before all of them. A task that does not
//! run holds up the line once, for [`GATHERS`].

use std::sync::Arc;
use std::time::Duration;

use tidegate::Nanos;

use crate::line::{After, Line, State};
use crate::lock::lock;

/// For so long no call leaves, at most.
const GATHERS: Duration = Duration::from_millis(10);

/// How many requests are to return.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    requests: usize,
    /// How often the store had come back when the first of them began to wait.
    backs: u64,
    /// Until when the others wait for those that have not returned.
    gathers_till: Option<Nanos>,
}

/// A request that is to return. Dropped, it stands in line again, or it does not return.
pub(crate) struct Returning(Arc<Line>);

impl Returning {
    /// The store had come back so often.
    pub(crate) fn new(line: &Arc<Line>, backs: u64) -> Returning {
        let away = &mut lock(&line.state).away;
        if away.requests == 0 {
            away.backs = backs;
        }
        away.requests += 1;
        Returning(line.clone())
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        self.0.visit(|state, _, _| state.away.requests -= 1);
    }
}

impl State {
    /// Whether requests return that do not stand in line yet. The store has come back so often.
    pub(super) fn gathers(&mut self, after: &mut After, backs: u64, now: Nanos) -> bool {
        let Gathering { requests, gathers_till, .. } = self.away;
        if requests == 0 || self.away.backs == backs {
            self.away.gathers_till = None;
            return false;
        }
        let till = gathers_till.unwrap_or_else(|| {
            let till = now.saturating_add(Nanos::from_duration(GATHERS));
            after.gathers_till = Some(till);
            till
        });
        let gathers = now < till;
        self.away.gathers_till = gathers.then_some(till);
        if !gathers {
            self.away.backs = backs;
        }
        gathers
    }
}
