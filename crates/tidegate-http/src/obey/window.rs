//! What a server reported about one limit, until the limit is reset.
//!
//! A server that reports `remaining` and `reset` allows `remaining` units until that time, and no
//! more. A [`Window`] is this allowance: `left` units until the time `until`. A call takes its
//! units when it begins. So the window is empty when the last unit is sent, not one round trip
//! later, when the server says so.
//!
//! A response brings the allowance `remaining - uncounted`, where `uncounted` are the units that
//! the server may not have counted when it wrote the response. The server wrote it at some time
//! between the beginning of the call and the arrival of the response. A reset that counts from that
//! time is uncertain by the same amount. The effect on the window:
//!
//! | the response's reset is | the window becomes |
//! |---|---|
//! | certainly later | a new window: the limit was reset |
//! | certainly earlier, and the call began after the window was first reported | a new window: the server changed its mind |
//! | certainly earlier, and the call began before that | unchanged: the response is about a window that is over |
//! | neither | lower, if the response allows less; never higher |
//!
//! For one round trip after a window is over, nothing is known of the next one. If the server
//! reported how many units a window has, the first call that begins after the end *presumes* the
//! next window: it has as many units, less the calls in flight. A call that waits for another
//! window does not begin. The presumed window lasts until a response reports the true window, or
//! for twice the longest round trip of the window before, and at least for 20 ms. The response to
//! its first call has arrived by then. No window is presumed after a presumed one.

use tidegate::Nanos;

use super::costs::{Count, Load};
use crate::Unit;
use crate::read::ServerLimit;

/// Two resets are equal if they differ by no more than this: servers report whole seconds, and
/// responses take time.
const SLACK: Nanos = Nanos::new(2_000_000_000);

/// A window is presumed for at least twice this time: a simulated server may respond in no time.
const SHORTEST_TRIP: Nanos = Nanos::new(10_000_000);

/// No server reports more limits than this. If a server reports more names, the oldest are
/// forgotten.
const MAX_WINDOWS: usize = 64;

/// The identity of one limit of a server.
#[derive(Debug, Clone, PartialEq)]
struct Key {
    name: Option<String>,
    unit: Option<Unit>,
    window: Option<std::time::Duration>,
    partition_key: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Window {
    key: Key,
    /// The unit in which calls are charged. It is `None` for a limit in a unit in which no cost is
    /// known. Of such a limit only exhaustion counts: nothing is left, and the window is shut.
    count: Option<Count>,
    left: u64,
    /// The reset as it was first reported. Later responses are compared with this first reset, so
    /// that a reset that moves on in small steps is recognised as a new window in the end.
    anchor: Nanos,
    /// The latest reset that is equal to `anchor`, within [`SLACK`].
    until: Nanos,
    /// The number of the response that first reported the window.
    reported_by: u64,
    /// The units of a whole window, if the server reported them.
    quota: Option<u64>,
    /// The longest time from the beginning of a call to its first response, over all calls with a
    /// response about the window.
    trip: Nanos,
    /// No response has reported the window.
    is_presumed: bool,
}

/// What one response allows for one limit.
pub(super) struct Allowed<'a> {
    pub(super) limit: &'a ServerLimit,
    pub(super) count: Option<Count>,
    pub(super) left: u64,
    /// The reset, if the server wrote the response when the call began.
    pub(super) not_before: Nanos,
    /// The reset, if the server wrote the response when it arrived.
    pub(super) until: Nanos,
    /// The number of the response.
    pub(super) response: u64,
    /// The number of responses that had arrived when this response's call began.
    pub(super) seen: u64,
    /// The time from the beginning of the call to its first response. A later response comes when a
    /// stream ends.
    pub(super) trip: Nanos,
}

/// The windows that are not over, and the finished windows that can presume the next one.
#[derive(Debug, Default)]
pub(super) struct Windows(Vec<Window>);

impl Window {
    fn cost(&self, costs: &Load) -> u64 {
        self.count.map_or(1, |count| costs.of(count))
    }

    /// Presumes the window after this one, which is over. Returns whether it can.
    fn presume(&mut self, now: Nanos, open: &Load) -> bool {
        let (Some(quota), Some(count), false) = (self.quota, self.count, self.is_presumed) else {
            return false;
        };
        self.left = quota.saturating_sub(open.of(count));
        let trip = self.trip.max(SHORTEST_TRIP);
        self.until = now.saturating_add(trip).saturating_add(trip);
        self.is_presumed = true;
        self.until > now
    }
}

impl Windows {
    /// Takes the costs of a call from each window. `open` is the load of the calls in flight. If a
    /// window has fewer units than the call costs, it takes nothing from any window, and returns
    /// the time until which the call has to wait.
    pub(super) fn take(&mut self, now: Nanos, costs: &Load, open: &Load) -> Result<(), Nanos> {
        if let Some(until) = self.short_until(now, costs) {
            return Err(until);
        }
        self.0.retain_mut(|window| window.until > now || window.presume(now, open));
        match self.short_until(now, costs) {
            Some(until) => Err(until),
            None => {
                self.force_take(costs);
                Ok(())
            }
        }
    }

    /// Returns when the windows are over that are open and have fewer units than a call costs.
    fn short_until(&self, now: Nanos, costs: &Load) -> Option<Nanos> {
        let open = self.0.iter().filter(|window| window.until > now);
        open.filter(|window| window.left < window.cost(costs)).map(|window| window.until).max()
    }

    /// Takes the costs of a call that begins in any case.
    pub(super) fn force_take(&mut self, costs: &Load) {
        for window in &mut self.0 {
            window.left = window.left.saturating_sub(window.cost(costs));
        }
    }

    /// Returns whether a whole window of each limit has room for these costs. A window whose quota
    /// the server did not report has room for one unit.
    pub(super) fn fit(&self, costs: &Load) -> bool {
        self.0.iter().all(|window| window.cost(costs) <= window.quota.unwrap_or(1))
    }

    /// Returns the time until which nothing is left.
    pub(super) fn exhausted_until(&self, now: Nanos) -> Option<Nanos> {
        let empty = self.0.iter().filter(|window| window.left == 0 && window.until > now);
        empty.map(|window| window.until).max()
    }

    /// Learns what a response allows. Returns how much is left now, or `None` if the response is
    /// about a window that is over.
    pub(super) fn learn(&mut self, now: Nanos, allowed: Allowed<'_>) -> Option<u64> {
        let Allowed { limit, count, left, not_before, until, response, seen, trip } = allowed;
        let ServerLimit { name, unit, window, partition_key, .. } = limit.clone();
        let key = Key { name, unit, window, partition_key };
        let quota = limit.limit.map(whole);
        let (anchor, reported_by) = (until, response);
        let new =
            |key| Window { key, count, left, anchor, until, reported_by, quota, trip, is_presumed: false };
        let Some(window) = self.0.iter_mut().find(|window| window.key == key) else {
            if self.0.len() == MAX_WINDOWS {
                self.0.remove(0);
            }
            self.0.push(new(key));
            return Some(left);
        };
        if window.until <= now || window.is_presumed {
            *window = new(key);
            return Some(left);
        }
        let latest = window.anchor.saturating_add(SLACK);
        let later = not_before > latest;
        let earlier = until.saturating_add(SLACK) < window.anchor;
        if later || (earlier && seen >= window.reported_by) {
            *window = new(key);
        } else if earlier {
            return None;
        } else {
            window.left = window.left.min(left);
            window.quota = quota.or(window.quota);
            window.trip = window.trip.max(trip);
            // A response that was long on its way reports its reset too late.
            window.until = window.until.max(until.min(latest));
        }
        Some(window.left)
    }
}

/// Rounds units down to whole ones, because only whole units can be used.
pub(super) fn whole(units: f64) -> u64 {
    // The cast rounds down; counts are below 10^15 and not negative.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    {
        units as u64
    }
}
