//! How many processes share a store, as the store counts them.
//!
//! A process asks every two seconds, and more often at first, in a call of its own: no decision
//! costs more for it. The store keeps two counts and no list; `lua/clients.lua` says how. A process
//! that no limiter needs the number for does not ask.

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::script::Script;
use crate::store::lock;

/// How soon a process asks again after its first question, and after twice as long each time: of
/// processes that start together each sees the others, and the first one saw none.
pub(crate) const FIRST_BEAT: Duration = Duration::from_millis(125);

/// How often a process asks then.
pub(crate) const BEAT: Duration = Duration::from_secs(2);

/// Long enough that a process asks twice in a period, although its calls are jittered.
pub(crate) const PERIOD: Duration = Duration::from_secs(6);

/// The number of processes, as seen by this one.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    seen: Mutex<Seen>,
    /// Told when the number is needed for the first time.
    pub(crate) wanted: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The `made` and the `period` of the last answer.
    last: (i64, i64),
    count: u32,
    /// When so many were seen.
    at: Option<Instant>,
    /// The server's time of the last answer, and when it came.
    time: Option<(Duration, Instant)>,
}

impl Clients {
    /// The most processes that were seen in two periods before the last answer; `None` before the
    /// first answer.
    ///
    /// A store that has just lost its state counts anew, and would tell too few for a while: then
    /// each share would be too large.
    pub(crate) fn get(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.seen().count)
    }

    /// The Unix time by the server's clock, as far as a clock of this process tells it since the
    /// last answer.
    pub(crate) fn server_time(&self) -> Option<Duration> {
        self.seen().time.map(|(time, at)| time.saturating_add(at.elapsed()))
    }

    /// The question. `now` is the time in microseconds, for tests.
    pub(crate) fn question(&self, script: &Script, key: &str, now: Option<u64>) -> Cmd {
        let (made, period) = self.seen().last;
        let mut numbers = Vec::with_capacity(32);
        let now = now.map_or(-1.0, |now| now as f64);
        for number in [now, PERIOD.as_micros() as f64, made as f64, period as f64] {
            numbers.extend_from_slice(&number.to_be_bytes());
        }
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&script.hash).arg(1).arg(key).arg(numbers);
        cmd
    }

    /// Takes the answer of the store, which came at this time.
    pub(crate) fn answered(&self, answer: &Value, at: Instant) {
        let Value::Array(numbers) = answer else { return };
        let [Value::Int(made), Value::Int(period), Value::Int(count), Value::Int(now)] = numbers[..] else {
            return;
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let mut seen = lock(&self.seen);
        seen.last = (made, period);
        seen.time = u64::try_from(now).ok().map(|now| (Duration::from_micros(now), at));
        let is_old = seen.at.is_none_or(|seen| at.saturating_duration_since(seen) > 2 * PERIOD);
        if count >= seen.count || is_old {
            (seen.count, seen.at) = (count, Some(at));
        }
    }

    fn seen(&self) -> Seen {
        *lock(&self.seen)
    }
}

/// The script that counts.
pub(crate) fn script() -> Script {
    Script::new(include_str!("lua/clients.lua").into())
}
