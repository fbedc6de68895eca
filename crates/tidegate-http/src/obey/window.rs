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
}

/// All windows that are not over.
#[derive(Debug, Default)]
pub(super) struct Windows(Vec<Window>);

impl Window {
    fn cost(&self, costs: &Load) -> u64 {
        self.count.map_or(1, |count| costs.of(count))
    }
}

impl Windows {
    /// Takes the costs of a call from each window. Returns the time until which the call has to
    /// wait if a window has not as many; then it takes nothing.
    pub(super) fn take(&mut self, now: Nanos, costs: &Load) -> Result<(), Nanos> {
        self.0.retain(|window| window.until > now);
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

    /// The time until which nothing is left.
    pub(super) fn shut_until(&self, now: Nanos) -> Option<Nanos> {
        let empty = self.0.iter().filter(|window| window.left == 0 && window.until > now);
        empty.map(|window| window.until).max()
    }

    /// Learns what an answer allows. Returns how much is left now; `None` if the answer is of a
    /// window that is over.
    pub(super) fn tell(&mut self, now: Nanos, allowed: Allowed<'_>) -> Option<u64> {
        let Allowed { limit, count, left, not_before, until, answer, seen } = allowed;
        let ServerLimit { name, unit, window, partition_key, .. } = limit.clone();
        let key = Key { name, unit, window, partition_key };
        self.0.retain(|window| window.until > now);
        let new = |key| Window { key, count, left, anchor: until, until, told_by: answer };
        let Some(window) = self.0.iter_mut().find(|window| window.key == key) else {
            if self.0.len() == MOST_WINDOWS {
                self.0.remove(0);
            }
            self.0.push(new(key));
            return Some(left);
        };
        let latest = window.anchor.saturating_add(SLACK);
        let later = not_before > latest;
        let earlier = until.saturating_add(SLACK) < window.anchor;
        if later || (earlier && seen >= window.told_by) {
            *window = new(key);
        } else if earlier {
            return None;
        } else {
            window.left = window.left.min(left);
            // An answer that was long on its way tells its reset too late.
            window.until = window.until.max(until.min(latest));
        }
        Some(window.left)
    }
}
