//! The number of processes that share a store, as the store counts them.
//!
//! A process asks for it every two seconds, and more often at first, in a separate call: no
//! decision becomes more expensive. The store keeps two counts and no list, as `lua/clients.lua`
//! describes. A process does not ask if none of its limiters needs the number, or if it has not
//! requested permits yet. A process that left is counted again from its next request for permits
//! on.

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lock::lock;
use crate::pending::PendingMessage;
use crate::script::Script;

/// The interval after the first question of a process. It doubles each time. Processes that start
/// together thus see each other soon; the first one saw none.
pub(crate) const FIRST_BEAT: Duration = Duration::from_millis(125);

/// The longest interval.
pub(crate) const BEAT: Duration = Duration::from_secs(2);

/// Long enough that a process asks twice per period, although its calls are jittered.
const PERIOD: Duration = Duration::from_secs(6);

/// The number of processes, as this process last saw it.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    seen: Mutex<Seen>,
    /// Whether a limiter needs the number.
    is_needed: AtomicBool,
    /// Whether this process has requested permits since it started or last left.
    is_asking: AtomicBool,
    /// Notified when this process begins to request permits.
    pub(crate) begins: Notify,
    /// Notified when this process leaves. It then stops asking.
    pub(crate) leaves: Notify,
    leaving: Mutex<Option<PendingMessage>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The `made` and the `period` of the last reply.
    last: (i64, i64),
    /// The period before the last one in which this process was counted.
    earlier: Option<i64>,
    count: u32,
    /// Whether the store did not reply to the last question.
    has_missed: bool,
    /// Until then, other processes whose question also got no reply may not have asked again.
    holds_till: Option<Instant>,
    /// The server's time in the last reply, and when the reply came.
    time: Option<(Duration, Instant)>,
}

impl Clients {
    /// The number of processes in the last reply; `None` before the first reply.
    ///
    /// A store that has just lost its state counts anew, and reports too few processes for a while,
    /// so each share would be too large. A lower count is therefore accepted only when the store's
    /// state is two periods old, and not for two periods after a question without a reply: the
    /// other processes may rest for up to a period before they ask again.
    pub(crate) fn get(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.seen().count)
    }

    /// The Unix time by the server's clock, extrapolated since the last reply by a clock of this
    /// process.
    pub(crate) fn server_time(&self) -> Option<Duration> {
        self.seen().time.map(|(time, at)| time.saturating_add(at.elapsed()))
    }

    /// Notes that a limiter needs the number.
    pub(crate) fn need(&self) {
        self.is_needed.store(true, Ordering::Relaxed);
    }

    /// Notes that this process requests permits.
    pub(crate) fn ask(&self) {
        // Relaxed: hints. A request that is missed here is not the last one.
        let is_new = self.is_needed.load(Ordering::Relaxed) && !self.is_asking.load(Ordering::Relaxed);
        if is_new && !self.is_asking.swap(true, Ordering::Relaxed) {
            self.begins.notify_one();
        }
    }

    /// Makes this process leave, if it requested permits. `message` ends when the store has
    /// replied.
    pub(crate) fn leave(&self, message: impl FnOnce() -> PendingMessage) {
        // Under the lock, so that the farewell takes every `PendingMessage`.
        let mut leaving = lock(&self.leaving);
        if self.is_asking.load(Ordering::Relaxed) && leaving.is_none() {
            *leaving = Some(message());
            // Once for each farewell: a second notification would stay for the next one.
            self.leaves.notify_one();
        }
    }

    /// Begins to leave: from now on, requests make the process ask again.
    pub(crate) fn begin_to_leave(&self) -> Option<PendingMessage> {
        let mut leaving = lock(&self.leaving);
        self.is_asking.store(false, Ordering::Relaxed);
        leaving.take()
    }

    /// The message by which this process leaves. Its state is then as if it had not asked before.
    pub(crate) fn farewell(&self, script: &Script, key: &str, now: Option<u64>) -> Cmd {
        let cmd = self.message(script, key, now, true);
        let mut seen = lock(&self.seen);
        (seen.last, seen.earlier) = Default::default();
        cmd
    }

    /// The question. `now` is the time in microseconds, for tests.
    pub(crate) fn question(&self, script: &Script, key: &str, now: Option<u64>) -> Cmd {
        self.message(script, key, now, false)
    }

    fn message(&self, script: &Script, key: &str, now: Option<u64>, leaves: bool) -> Cmd {
        let Seen { last: (made, period), earlier, .. } = self.seen();
        let mut numbers = Vec::with_capacity(48);
        let now = now.map_or(-1.0, |now| now as f64);
        let (earlier, leaves) = (earlier.unwrap_or(-1) as f64, f64::from(u8::from(leaves)));
        for number in [now, PERIOD.as_micros() as f64, made as f64, period as f64, earlier, leaves] {
            numbers.extend_from_slice(&number.to_be_bytes());
        }
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&script.hash).arg(1).arg(key).arg(numbers);
        cmd
    }

    /// Takes the store's reply, which came at the time `at`.
    pub(crate) fn answered(&self, answer: &Value, at: Instant) {
        let Value::Array(numbers) = answer else { return };
        let [Value::Int(made), Value::Int(period), Value::Int(count), Value::Int(now)] = numbers[..] else {
            return;
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let mut seen = lock(&self.seen);
        if seen.last != (made, period) {
            seen.earlier = (seen.last.0 == made).then_some(seen.last.1);
            seen.last = (made, period);
        }
        seen.time = u64::try_from(now).ok().map(|now| (Duration::from_micros(now), at));
        if std::mem::take(&mut seen.has_missed) {
            seen.holds_till = Some(at + 2 * PERIOD);
        }
        let is_held = seen.holds_till.is_some_and(|till| at < till);
        let is_old = u128::from(now.abs_diff(made)) > 2 * PERIOD.as_micros();
        if count >= seen.count || is_old && !is_held {
            seen.count = count;
        }
    }

    /// Notes that the store did not reply to a question.
    pub(crate) fn missed(&self) {
        lock(&self.seen).has_missed = true;
    }

    fn seen(&self) -> Seen {
        *lock(&self.seen)
    }
}

/// The script that counts.
pub(crate) fn script() -> Script {
    Script::new(include_str!("lua/clients.lua").into())
}
