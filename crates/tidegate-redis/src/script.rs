//! The scripts, their arguments and their replies.
//!
//! A script consists of a head, an algorithm for each kind of its limits, and a tail. Head and tail
//! are common to all kinds. A server identifies a script by the hash of its text, so limits of one
//! set of kinds share one script.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{Arg, Cmd, FromRedisValue, Value};

use crate::terms::{Kind, Terms};

/// The maximum wait that is passed to a script: 30 years.
const LONGEST: u64 = 30 * 365 * 86_400 * 1_000_000;

/// The longest pause: 20 years. A request thus waits behind a pause without an end.
const LONGEST_PAUSE: u64 = LONGEST / 3 * 2;

/// The maximum wait that a script grants, as a duration.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_micros(LONGEST);

/// The remaining time of a pause. A pause of more than 15 years was requested without an end.
pub(crate) fn pause_left(reported: Duration) -> Duration {
    if reported > Duration::from_micros(LONGEST / 2) { Duration::MAX } else { reported }
}

/// Instead of the time of a grant: permits are given back now, whenever they were granted.
pub(crate) const NO_GRANT: i64 = -1;

/// The part that reads the time.
pub(crate) const TIME: &str = include_str!("lua/time.lua");

fn text_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Bucket => include_str!("lua/bucket.lua"),
        Kind::Fixed => include_str!("lua/fixed.lua"),
        Kind::Cells => include_str!("lua/cells.lua"),
        Kind::Estimate => include_str!("lua/estimate.lua"),
        Kind::Log => include_str!("lua/log.lua"),
    }
}

/// A script for the kinds of one set of limits.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) hash: String,
}

impl Script {
    /// A script of this text, without its comments: a server that does not know the script gets the
    /// whole text, and keeps it.
    pub(crate) fn new(text: String) -> Script {
        let lines = text.lines().map(str::trim_start);
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("--")).collect();
        let text = lines.join("\n");
        let hash = sha1_smol::Sha1::from(&text).digest().to_string();
        Script { text, hash }
    }

    /// The call that sends the text instead of the hash.
    pub(crate) fn by_text(&self, by_hash: &Cmd) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(&self.text);
        for arg in by_hash.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        cmd
    }

    /// The script of these kinds. It is built once per process, because its text and its hash take
    /// longer than everything else in a limiter.
    pub(crate) fn shared(kinds: impl IntoIterator<Item = Kind>) -> Arc<Script> {
        static MADE: [OnceLock<Arc<Script>>; 1 << Kind::ALL.len()] =
            [const { OnceLock::new() }; 1 << Kind::ALL.len()];
        let set = kinds.into_iter().fold(0, |set, kind| set | 1 << kind as usize);
        let script = || {
            let kinds = Kind::ALL.into_iter().filter(|kind| set & 1 << *kind as usize != 0);
            Arc::new(Script::of(kinds))
        };
        MADE[set].get_or_init(script).clone()
    }

    pub(crate) fn of(kinds: impl IntoIterator<Item = Kind>) -> Script {
        let kinds: BTreeSet<Kind> = kinds.into_iter().collect();
        let head = [
            include_str!("lua/head.lua"),
            TIME,
            include_str!("lua/values.lua"),
            include_str!("lua/plain.lua"),
            include_str!("lua/refunds.lua"),
            include_str!("lua/places.lua"),
            include_str!("lua/runs.lua"),
            include_str!("lua/room.lua"),
        ];
        let tail = [
            include_str!("lua/at_once.lua"),
            include_str!("lua/state.lua"),
            include_str!("lua/reserve.lua"),
            include_str!("lua/back.lua"),
            include_str!("lua/tail.lua"),
        ];
        let parts = kinds.into_iter().map(text_of);
        Script::new(head.into_iter().chain(parts).chain(tail).collect())
    }
}

/// What a script does, besides deciding requests and taking back bookings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Debit,
    /// Gives back permits of a grant whose time has come, or of no particular grant if `due` is
    /// [`NO_GRANT`]. A window that no longer counts them takes none.
    Refund {
        due: i64,
    },
    /// Takes the permits that are available beyond the given number.
    Keep,
    Status,
    Reset,
    Pause {
        span: Duration,
        keep_permits: bool,
    },
    Resume,
}

/// One limit of a call: its key, its terms and the number of permits.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) key: &'a str,
    pub(crate) terms: &'a Terms,
    pub(crate) permits: u64,
}

/// How a script decides a request, by these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Normal,
    /// A refusal is reported, and the request passes.
    Shadow,
    /// Requests before this one wait behind a pause: if the pause has ended, this request is not
    /// decided.
    Behind,
}

/// One request of a call that reserves.
#[derive(Clone, Debug)]
pub(crate) struct ReserveRequest {
    pub(crate) longest: Duration,
    pub(crate) mode: Mode,
    /// Whether the reply reports the state of the limits even if the request is granted.
    pub(crate) wants_state: bool,
    /// For each limit, the permits, and the maximum.
    pub(crate) costs: Vec<(u64, u64)>,
}

/// A call of a script by its hash. `now` is the time in microseconds, for tests.
pub(crate) fn command(script: &Script, operation: Operation, now: Option<u64>, parts: &[Part<'_>]) -> Cmd {
    let (name, span, flag, due) = match operation {
        Operation::Debit => ("debit", Duration::ZERO, false, 0),
        Operation::Refund { due } => ("refund", Duration::ZERO, false, due),
        Operation::Keep => ("keep", Duration::ZERO, false, 0),
        Operation::Status => ("status", Duration::ZERO, false, 0),
        Operation::Reset => ("reset", Duration::ZERO, false, 0),
        Operation::Pause { span, keep_permits } => ("pause", span, keep_permits, 0),
        Operation::Resume => ("resume", Duration::ZERO, false, 0),
    };
    let now = now.map_or(-1.0, exact);
    let mut numbers = Vec::with_capacity(8 * (4 + parts.len()));
    for number in [now, exact(micros(span, true).min(LONGEST_PAUSE)), f64::from(u8::from(flag)), due as f64] {
        pack(&mut numbers, number);
    }
    parts.iter().for_each(|part| pack(&mut numbers, exact(part.permits)));
    let mut cmd = call(script, name, parts, numbers.len());
    cmd.arg(numbers);
    cmd
}

/// A booking that is given back.
#[derive(Clone, Debug)]
pub(crate) struct GivenBack<'a> {
    /// Negative if the booking was predicted.
    pub(crate) due: i64,
    /// The permits of each limit.
    pub(crate) permits: &'a [u64],
    /// The value of each limit before the booking.
    pub(crate) before: &'a [Vec<u8>],
}

/// A call that takes back some bookings, and then decides requests in their order.
pub(crate) fn reserve(
    script: &Script,
    now: Option<u64>,
    parts: &[Part<'_>],
    given_back: &[GivenBack<'_>],
    requests: &[ReserveRequest],
) -> Cmd {
    let mut numbers = Vec::with_capacity(8 + requests.len() * (24 + 16 * parts.len()));
    let mut cmd = call(script, "reserve", parts, numbers.capacity());
    pack(&mut numbers, now.map_or(-1.0, exact));
    for ReserveRequest { longest, mode, wants_state, costs } in requests {
        pack(&mut numbers, exact(micros(*longest, false)));
        pack(&mut numbers, f64::from(*mode as u8));
        pack(&mut numbers, f64::from(u8::from(*wants_state)));
        for (permits, most) in costs {
            pack(&mut numbers, exact(*permits));
            pack(&mut numbers, exact(*most));
        }
    }
    cmd.arg(numbers);
    for GivenBack { due, permits, before } in given_back {
        let mut numbers = Vec::with_capacity(8 * (1 + parts.len()));
        pack(&mut numbers, *due as f64);
        permits.iter().for_each(|permits| pack(&mut numbers, exact(*permits)));
        cmd.arg(numbers);
        for i in 0..parts.len() {
            cmd.arg(before.get(i).map_or(&[][..], Vec::as_slice));
        }
    }
    cmd
}

/// A call without its last arguments, with `room` bytes for them.
fn call(script: &Script, name: &str, parts: &[Part<'_>], room: usize) -> Cmd {
    let of_terms = 8 * parts.iter().map(|part| 2 + part.terms.numbers.iter().len()).sum::<usize>();
    let of_keys = parts.iter().map(|part| part.key.len()).sum::<usize>();
    let mut cmd = Cmd::with_capacity(6 + parts.len(), 80 + of_keys + of_terms + room);
    cmd.arg("EVALSHA").arg(&script.hash).arg(parts.len());
    let mut terms = Vec::with_capacity(of_terms);
    for part in parts {
        cmd.arg(part.key);
        // The kinds have the numbers that `lua/head.lua` gives them.
        pack(&mut terms, f64::from(part.terms.kind() as u8 + 1));
        pack(&mut terms, exact(micros(part.terms.longest.unwrap_or(Duration::MAX), false)));
        part.terms.numbers.iter().for_each(|number| pack(&mut terms, number as f64));
    }
    cmd.arg(name).arg(terms);
    cmd
}

/// A number of a script: all of them are below 2^53.
pub(crate) fn exact(number: u64) -> f64 {
    number.min(1 << 53) as f64
}

pub(crate) fn pack(bytes: &mut Vec<u8>, number: f64) {
    bytes.extend_from_slice(&number.to_be_bytes());
}

pub(crate) fn micros(span: Duration, round_up: bool) -> u64 {
    let nanos = span.as_nanos();
    let micros = if round_up { nanos.div_ceil(1000) } else { nanos / 1000 };
    u64::try_from(micros).unwrap_or(LONGEST).min(LONGEST)
}

/// The number of values that a script reports about the state of one limit.
const NUMBERS: usize = 5;

/// The reply of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    /// The time until the request is due; [`Duration::MAX`] means never.
    pub(crate) wait: Duration,
    /// The limit that makes the request wait.
    pub(crate) tightest: Option<usize>,
    /// The time of the grant, by the server's clock.
    pub(crate) due: i64,
    /// The permits of each limit.
    pub(crate) permits: Vec<u64>,
    /// The state of each limit; empty if the request is granted and did not ask for it.
    pub(crate) limits: Vec<StateReport>,
    /// The value of each limit before a booking.
    pub(crate) before: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Refused,
    Done,
    /// Granted, although the limits would have refused the request.
    Shadow,
    /// Not booked: a pause ends before the request is due.
    Predicted,
    /// Not decided: requests before this one wait for the end of a pause, which has ended.
    Resumed,
}

/// What a script reports about one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateReport {
    pub(crate) available: u64,
    pub(crate) full_in: Duration,
    pub(crate) next_in: Duration,
    pub(crate) paused_for: Duration,
    /// The permits that `Keep` took, or whether `Resume` ended a pause. In the reply about a future
    /// grant, the permits that the limit has at the time of the grant, if the script knows them.
    pub(crate) other: u64,
}

impl Reply {
    /// The remaining time of the longest pause of the limits.
    pub(crate) fn paused_for(&self) -> Duration {
        self.limits.iter().map(|reported| reported.paused_for).max().unwrap_or_default()
    }

    /// The remaining time of the longest pause of the limits of which the request takes permits.
    pub(crate) fn request_paused_for(&self) -> Duration {
        let asked = self.limits.iter().zip(&self.permits).filter(|(_, permits)| **permits > 0);
        asked.map(|(reported, _)| reported.paused_for).max().unwrap_or_default()
    }

    /// Returns whether the call ended a pause.
    pub(crate) fn was_paused(&self) -> bool {
        self.limits.iter().any(|report| report.other > 0)
    }

    /// What a call needs to give the booking back.
    pub(crate) fn given_back(&self) -> GivenBack<'_> {
        let due = if self.answer == Answer::Predicted { -self.due } else { self.due };
        GivenBack { due, permits: &self.permits, before: &self.before }
    }

    /// Reads the reply of a call that reserves: one reply for each of `requests` requests.
    pub(crate) fn read_all(value: Value, requests: usize, limits: usize) -> Option<Vec<Reply>> {
        match value {
            Value::Array(replies) if replies.len() == requests => {
                replies.into_iter().map(|reply| Reply::read(reply, limits)).collect()
            }
            _ => None,
        }
    }

    /// Reads the reply of a call with this number of limits; `None` if it is not such a reply.
    pub(crate) fn read(value: Value, limits: usize) -> Option<Reply> {
        let values = match value {
            // A reply of a call that reserves for one request.
            Value::Array(mut values) if matches!(values[..], [Value::Array(_)]) => {
                return Reply::read(values.pop()?, limits);
            }
            Value::Array(values) => values,
            _ => return None,
        };
        let number = |i: usize| match values.get(i) {
            Some(Value::Int(number)) => Some(*number),
            _ => None,
        };
        let natural = |i: usize| u64::try_from(number(i)?).ok();
        let answer = match number(0)? {
            0 => Answer::Refused,
            1 => Answer::Done,
            2 => Answer::Shadow,
            3 => Answer::Predicted,
            4 => Answer::Resumed,
            _ => return None,
        };
        let permits: Option<Vec<u64>> = (4..4 + limits).map(natural).collect();
        let first = 4 + limits;
        let reported = |limit: usize| {
            let first = first + NUMBERS * limit;
            Some(StateReport {
                available: natural(first)?,
                full_in: span(number(first + 1)?),
                next_in: span(number(first + 2)?),
                paused_for: pause_left(span(number(first + 3)?)),
                other: natural(first + 4)?,
            })
        };
        let (reported, end) = match number(first) {
            Some(_) => {
                ((0..limits).map(reported).collect::<Option<Vec<StateReport>>>()?, first + NUMBERS * limits)
            }
            None => (Vec::new(), first),
        };
        let before = values.iter().skip(end);
        let before = before.map(|value| Vec::<u8>::from_redis_value_ref(value).unwrap_or_default());
        Some(Reply {
            answer,
            wait: span(number(1)?),
            tightest: usize::try_from(number(2)?).ok()?.checked_sub(1),
            due: number(3)?,
            permits: permits?,
            limits: reported,
            before: before.collect(),
        })
    }
}

/// A duration of a reply, in microseconds: -1 means never.
fn span(micros: i64) -> Duration {
    u64::try_from(micros).map_or(Duration::MAX, Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limiters_of_equal_kinds_share_a_script() {
        let one = Script::shared([Kind::Log, Kind::Bucket, Kind::Log]);
        let other = Script::shared([Kind::Bucket, Kind::Log]);
        assert!(Arc::ptr_eq(&one, &other) && !Arc::ptr_eq(&one, &Script::shared([Kind::Bucket])));
        assert_eq!(one.text, Script::of([Kind::Bucket, Kind::Log]).text);
        assert_eq!(Script::shared(Kind::ALL).hash, Script::of(Kind::ALL).hash);
    }
}
