//! What a server told of one limit, until the limit is reset.
//!
//! A server that tells `remaining` and `reset` allows so many units until that time, and no more.
//! A [`Window`] is this allowance: `left` units until the time `until`. A call takes its units when
//! it begins. So the window is empty when the last unit is sent, not when the server says so one
//! round trip later.
//!
//! An answer brings the allowance `remaining - uncounted`, where `uncounted` are the units that the
//! server may not have counted when it wrote the answer. The server wrote it at some time between
//! the beginning of the call and the arrival of the answer, and a reset that counts from that time
//! is as uncertain. What becomes of the window:
//!
//! | the answer's reset is | the window becomes |
//! |---|---|
//! | later for certain | a new window: the limit was reset |
//! | earlier for certain, of a call that began after the window was told | a new window: the server changed its mind |
//! | earlier for certain, of a call that began before | as it was: the answer is of a window that is over |
//! | neither | lower, if the answer allows less; never higher |
//!
//! A window that is over has a next one of which nothing is known for a round trip. If the server
//! told how many units a window has, the first call after the end *presumes* the next window: it
//! has as many units, less the calls in flight. It lasts until an answer tells the true window, or
//! for twice the longest round trip of the window before: the answer to its first call is there by
//! then, and no window is presumed on a presumed one.

use tidegate::Nanos;

use super::costs::{Count, Load};
use crate::Unit;
use crate::read::ServerLimit;

/// Two resets are one if they differ by no more: servers tell whole seconds, and answers take
/// their time.
const SLACK: Nanos = Nanos::new(2_000_000_000);

/// A server tells no more limits than this. If it tells more names, the oldest are forgotten.
const MOST_WINDOWS: usize = 64;

/// What tells one limit of a server from another.
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
    /// The units in which calls cost. Of a limit in a unit of which no cost is known only the end
    /// counts: it has nothing left, and shuts.
    count: Option<Count>,
    left: u64,
    /// The reset as it was first told. Later answers are compared with it, since a reset that moves
    /// on by little at a time moves on, too.
    anchor: Nanos,
    /// The latest of the resets that are one with `anchor`.
    until: Nanos,
    /// The number of the answer that told the window first.
    told_by: u64,
    /// The units of a whole window, if the server told them.
    quota: Option<u64>,
    /// The longest time from the beginning of a call to its answer, of all that told the window.
    trip: Nanos,
    /// No answer told the window.
    is_presumed: bool,
}

/// What one answer allows of one limit.
pub(super) struct Allowed<'a> {
    pub(super) limit: &'a ServerLimit,
    pub(super) count: Option<Count>,
    pub(super) left: u64,
    /// The reset, if the server wrote the answer when the call began.
    pub(super) not_before: Nanos,
    /// The reset, if the server wrote the answer when it arrived.
    pub(super) until: Nanos,
    /// The number of the answer.
    pub(super) answer: u64,
    /// The number of answers that had come when the call of this answer began.
    pub(super) seen: u64,
    /// The time from the beginning of the call to the answer.
    pub(super) trip: Nanos,
}

/// All windows that are not over, and those that are over and can presume the next one.
#[derive(Debug, Default)]
pub(super) struct Windows(Vec<Window>);

impl Window {
    fn cost(&self, costs: &Load) -> u64 {
        self.count.map_or(1, |count| costs.of(count))
    }

    /// The window is over: presumes the next one. Returns whether it can.
    fn presume(&mut self, now: Nanos, open: &Load) -> bool {
        let (Some(quota), Some(count), false) = (self.quota, self.count, self.is_presumed) else {
            return false;
        };
        self.left = quota.saturating_sub(open.of(count));
        self.until = now.saturating_add(self.trip).saturating_add(self.trip);
        self.is_presumed = true;
        self.until > now
    }
}

impl Windows {
    /// Takes the costs of a call from each window, beside the calls in flight. Returns the time
    /// until which the call has to wait if a window has not as many; then it takes nothing.
    pub(super) fn take(&mut self, now: Nanos, costs: &Load, open: &Load) -> Result<(), Nanos> {
        self.0.retain_mut(|window| window.until > now || window.presume(now, open));
        let short = self.0.iter().filter(|window| window.left < window.cost(costs));
        match short.map(|window| window.until).max() {
            Some(until) => Err(until),
            None => {
                self.take_any(costs);
                Ok(())
            }
        }
    }

    /// Takes the costs of a call that goes in any case.
    pub(super) fn take_any(&mut self, costs: &Load) {
        for window in &mut self.0 {
            window.left = window.left.saturating_sub(window.cost(costs));
        }
    }

    /// Whether a whole window of each limit has room for these costs. A window of which the server
    /// told no quota has room for one unit.
    pub(super) fn fit(&self, costs: &Load) -> bool {
        self.0.iter().all(|window| window.cost(costs) <= window.quota.unwrap_or(1))
    }

    /// The time until which nothing is left.
    pub(super) fn shut_until(&self, now: Nanos) -> Option<Nanos> {
        let empty = self.0.iter().filter(|window| window.left == 0 && window.until > now);
        empty.map(|window| window.until).max()
    }

    /// Learns what an answer allows. Returns how much is left now; `None` if the answer is of a
    /// window that is over.
    pub(super) fn tell(&mut self, now: Nanos, allowed: Allowed<'_>) -> Option<u64> {
        let Allowed { limit, count, left, not_before, until, answer, seen, trip } = allowed;
        let ServerLimit { name, unit, window, partition_key, .. } = limit.clone();
        let key = Key { name, unit, window, partition_key };
        let quota = limit.limit.map(whole);
        let (anchor, told_by) = (until, answer);
        let new = |key| Window { key, count, left, anchor, until, told_by, quota, trip, is_presumed: false };
        let Some(window) = self.0.iter_mut().find(|window| window.key == key) else {
            if self.0.len() == MOST_WINDOWS {
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
        if later || (earlier && seen >= window.told_by) {
            *window = new(key);
        } else if earlier {
            return None;
        } else {
            window.left = window.left.min(left);
            window.quota = quota.or(window.quota);
            window.trip = window.trip.max(trip);
            // An answer that was long on its way tells its reset too late.
            window.until = window.until.max(until.min(latest));
        }
        Some(window.left)
    }
}

/// Units that can be used: whole ones.
pub(super) fn whole(units: f64) -> u64 {
    // The cast rounds down; counts are below 10^15 and not negative.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    {
        units as u64
    }
}
