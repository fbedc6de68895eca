//! The script of permits in use: its calls and its replies.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value};

use crate::script::{Script, TIME, exact, micros, pack, pause_left};

/// A call of the script.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) operation: Operation,
    pub(crate) key: &'a str,
    pub(crate) process: [u8; 8],
    /// The time in microseconds, for tests.
    pub(crate) now: Option<u64>,
    pub(crate) limit: u32,
    /// The time without a call after which the process counts as lost.
    pub(crate) span: Duration,
    /// The number of this call, which rises.
    pub(crate) number: u64,
    /// The permits in use.
    pub(crate) held: u64,
    /// The time for which the process keeps its position in the queue without asking.
    pub(crate) patience: Duration,
    /// The permits of each request, in order; negative if the request does not wait.
    pub(crate) sizes: &'a [i64],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Reports what the process holds, and asks for more.
    Call,
    Status,
    Pause(Duration),
    Resume,
}

/// A reply of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallReport {
    /// Whether each request is granted; for `Resume`, whether there was a pause.
    pub(crate) granted: Vec<bool>,
    /// The permits in use, by all processes.
    pub(crate) in_use: u64,
    /// The number of processes that wait before this one.
    pub(crate) before: u64,
    pub(crate) paused_for: Duration,
}

/// The script of counting limits. It is built once per process, like [`Script::shared`].
pub(crate) fn script() -> Arc<Script> {
    static MADE: LazyLock<Arc<Script>> =
        LazyLock::new(|| Arc::new(Script::new([TIME, include_str!("../lua/counting.lua")].concat())));
    MADE.clone()
}

impl Call<'_> {
    pub(crate) fn command(&self, script: &Script) -> Cmd {
        let (name, pause) = match self.operation {
            Operation::Call => ("call", Duration::ZERO),
            Operation::Status => ("status", Duration::ZERO),
            Operation::Pause(span) => ("pause", span),
            Operation::Resume => ("resume", Duration::ZERO),
        };
        let mut numbers = Vec::with_capacity(7 * 8);
        pack(&mut numbers, self.now.map_or(-1.0, exact));
        pack(&mut numbers, self.limit.into());
        pack(&mut numbers, exact(micros(self.span, true)));
        pack(&mut numbers, exact(self.number));
        pack(&mut numbers, exact(self.held));
        pack(&mut numbers, exact(micros(self.patience, true)));
        pack(&mut numbers, exact(micros(pause, true)));
        let mut sizes = Vec::with_capacity(8 * self.sizes.len());
        for size in self.sizes {
            pack(&mut sizes, *size as f64);
        }
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&script.hash).arg(1).arg(self.key);
        cmd.arg(name).arg(&self.process[..]).arg(numbers).arg(sizes);
        cmd
    }
}

impl CallReport {
    pub(crate) fn read(value: &Value) -> Option<CallReport> {
        let Value::Array(values) = value else { return None };
        let [granted, in_use, before, paused_for] = values.as_slice() else { return None };
        let granted = Vec::<u8>::from_redis_value_ref(granted).ok()?;
        let number = |value: &Value| match value {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        Some(CallReport {
            granted: granted.into_iter().map(|answer| answer == b'1').collect(),
            in_use: number(in_use)?,
            before: number(before)?,
            paused_for: pause_left(Duration::from_micros(number(paused_for)?)),
        })
    }
}
