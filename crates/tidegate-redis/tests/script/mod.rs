//! Only the scripts, under a time that the tests set.

mod batch;
mod booking;
mod clients;
pub(crate) mod conformance;
mod counting;
mod dropped;
mod foreign;
mod many;
mod odd_rates;
mod plain;
mod refunds;
mod sets;
mod several;
mod told;
mod used;

#[path = "../support/mod.rs"]
pub(crate) mod support;

use std::time::Duration;

use redis::{Cmd, Connection, FromRedisValue, Value};
use tidegate::PolicyConfig;

use crate::script::{self, Answer, GivenBack, Mode, Reply, ReserveRequest, Script};
use crate::terms::Terms;
use support::Server;

/// The Unix time in microseconds at which tests begin: as large as real times.
pub(crate) const START: u64 = 1_764_000_000_000_000;

/// What a call does: an operation of a script, or one request, or one booking that is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Decides one request, with the permits of each part.
    Reserve {
        longest: Duration,
        shadow: bool,
    },
    /// Gives back a booking whose time is still to come.
    Back {
        due: i64,
    },
    Debit,
    Refund {
        due: i64,
    },
    Keep,
    Status,
    Reset,
    Pause {
        span: Duration,
        keep_permits: bool,
    },
    Resume,
}

/// One limit of a call, with the value from before the booking that is given back.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) key: &'a str,
    pub(crate) terms: &'a Terms,
    pub(crate) permits: u64,
    pub(crate) booking: &'a [u8],
}

/// A call of a script by its hash, at this time in microseconds.
pub(crate) fn command(script: &Script, operation: Operation, now: Option<u64>, parts: &[Part<'_>]) -> Cmd {
    let of_script = match operation {
        Operation::Reserve { longest, shadow } => {
            let costs = parts.iter().map(|part| (part.permits, part.permits)).collect();
            let mode = if shadow { Mode::Shadow } else { Mode::Normal };
            return reserve(
                script,
                now,
                parts,
                &[],
                &[ReserveRequest { longest, mode, wants_state: true, costs }],
            );
        }
        Operation::Back { due } => {
            let permits: Vec<u64> = parts.iter().map(|part| part.permits).collect();
            let before: Vec<_> = parts.iter().map(|part| part.booking.to_vec()).collect();
            return reserve(
                script,
                now,
                parts,
                &[GivenBack { due, permits: &permits, before: &before }],
                &[],
            );
        }
        Operation::Debit => script::Operation::Debit,
        Operation::Refund { due } => script::Operation::Refund { due },
        Operation::Keep => script::Operation::Keep,
        Operation::Status => script::Operation::Status,
        Operation::Reset => script::Operation::Reset,
        Operation::Pause { span, keep_permits } => script::Operation::Pause { span, keep_permits },
        Operation::Resume => script::Operation::Resume,
    };
    script::command(script, of_script, now, &of_script_parts(parts))
}

/// A call that takes back some bookings, and then decides requests in their order.
pub(crate) fn reserve(
    script: &Script,
    now: Option<u64>,
    parts: &[Part<'_>],
    given_back: &[GivenBack<'_>],
    requests: &[ReserveRequest],
) -> Cmd {
    script::reserve(script, now, &of_script_parts(parts), given_back, requests)
}

fn of_script_parts<'a>(parts: &[Part<'a>]) -> Vec<script::Part<'a>> {
    parts.iter().map(|&Part { key, terms, permits, .. }| script::Part { key, terms, permits }).collect()
}

/// Reads the reply of a call. A booking that is given back has no reply of its own.
pub(crate) fn read(operation: Operation, value: Value, limits: usize) -> Reply {
    if matches!(operation, Operation::Back { .. }) {
        assert_eq!(value, Value::Array(Vec::new()));
        let (wait, tightest, due) = (Duration::ZERO, None, 0);
        let (permits, limits, before) = (Vec::new(), Vec::new(), Vec::new());
        return Reply { answer: Answer::Done, wait, tightest, due, permits, limits, before };
    }
    Reply::read(value, limits).expect("a reply")
}

/// One limit in a separate store.
pub(crate) struct Store {
    _server: Server,
    pub(crate) connection: Connection,
}

impl Store {
    pub(crate) fn new() -> Option<Store> {
        let server = Server::start()?;
        let connection = server.connect();
        Some(Store { _server: server, connection })
    }

    /// Runs calls in one pipeline: each an operation, the time, and the number of permits.
    pub(crate) fn run(&mut self, limit: &Limit, calls: &[(Operation, u64, u64)]) -> Vec<Reply> {
        let script = Script::shared([limit.terms.kind()]);
        let mut replies = Vec::with_capacity(calls.len());
        // The server learns the script by its text.
        let ping = command(&script, Operation::Status, Some(START), &[limit.part(0, &[])]);
        script.by_text(&ping).exec(&mut self.connection).expect("a script");
        for calls in calls.chunks(1000) {
            let mut pipeline = redis::pipe();
            for (operation, now, n) in calls {
                let part = limit.part(*n, &[]);
                pipeline.add_command(command(&script, *operation, Some(*now), &[part]));
            }
            let values: Vec<Value> = pipeline.query(&mut self.connection).expect("replies");
            replies
                .extend(calls.iter().zip(values).map(|((operation, ..), value)| read(*operation, value, 1)));
        }
        replies
    }

    pub(crate) fn call(&mut self, operation: Operation, now: u64, parts: &[Part<'_>]) -> Reply {
        let script = Script::shared(parts.iter().map(|part| part.terms.kind()));
        let value = self.query(&script, &command(&script, operation, Some(now), parts));
        read(operation, value, parts.len())
    }

    /// Makes one call that gives bookings back, and then decides requests in their order.
    pub(crate) fn reserve(
        &mut self,
        now: u64,
        parts: &[Part<'_>],
        given_back: &[GivenBack<'_>],
        requests: &[ReserveRequest],
    ) -> Vec<Reply> {
        let script = Script::shared(parts.iter().map(|part| part.terms.kind()));
        let value = self.query(&script, &reserve(&script, Some(now), parts, given_back, requests));
        Reply::read_all(value, requests.len(), parts.len()).expect("replies")
    }

    /// Returns for how many milliseconds the key of a limit lives on.
    pub(crate) fn ttl<T: FromRedisValue>(&mut self, limit: &Limit) -> T {
        redis::cmd("PTTL").arg(&limit.key).query(&mut self.connection).expect("a ttl")
    }

    /// Makes a call. The server learns the script by its text, which takes longer.
    pub(crate) fn query(&mut self, script: &Script, cmd: &Cmd) -> Value {
        let value = cmd.query(&mut self.connection);
        value.or_else(|_| script.by_text(cmd).query(&mut self.connection)).expect("a reply")
    }
}

/// A key with its terms.
pub(crate) struct Limit {
    pub(crate) key: String,
    pub(crate) terms: Terms,
}

impl Limit {
    pub(crate) fn new(line: &str) -> Limit {
        let config: PolicyConfig = line.parse().expect("a configuration");
        Limit { key: line.replace(' ', "-"), terms: Terms::new(&config).expect("terms") }
    }

    /// Without the maximum wait of its policy.
    pub(crate) fn without_longest(self) -> Limit {
        Limit { terms: Terms { longest: None, ..self.terms }, ..self }
    }

    pub(crate) fn part<'a>(&'a self, permits: u64, booking: &'a [u8]) -> Part<'a> {
        Part { key: &self.key, terms: &self.terms, permits, booking }
    }
}

/// A multiple of the mean time of a permit, in microseconds.
#[allow(clippy::cast_possible_truncation)] // Far below 2^64.
pub(crate) fn intervals(limit: &Limit, times: f64) -> u64 {
    let rate = limit.terms.rate;
    (times * rate.period().as_micros() as f64 / rate.permits()) as u64
}

/// An attempt without waiting.
pub(crate) const TRY: Operation = Operation::Reserve { longest: Duration::ZERO, shadow: false };

pub(crate) const ANY_WAIT: Operation = Operation::Reserve { longest: Duration::MAX, shadow: false };
