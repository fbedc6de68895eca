//! Very many limits in one call: more than Lua passes to a function, which is fewer than 8,000.

use std::time::Duration;

use crate::script::{Answer, GivenBack, Mode, Reply, ReserveRequest};
use crate::script_tests::{Limit, Operation, Part, START, Store};

/// One limit of each algorithm.
const LINES: [&str; 5] = [
    "token_bucket 1/s burst 1",
    "fixed_window 1/s",
    "sliding_window 1/s cells 10",
    "sliding_estimate 1/s",
    "sliding_log 1/s",
];

/// The number of limits of each of the [`LINES`] in a call for many limits.
const TIMES: usize = 1620;

fn limits(times: usize) -> Vec<Limit> {
    let lines = LINES.iter().cycle().take(times * LINES.len()).enumerate();
    lines.map(|(i, line)| Limit { key: format!("{times}:{i}"), ..Limit::new(line) }).collect()
}

fn parts<'a>(limits: &'a [Limit], n: u64, before: &'a [Vec<u8>]) -> Vec<Part<'a>> {
    let part = |(i, limit): (usize, &'a Limit)| limit.part(n, before.get(i).map_or(&[][..], Vec::as_slice));
    limits.iter().enumerate().map(part).collect()
}

/// A reply for few limits, as a reply for `times` times as many.
fn repeated(reply: &Reply, times: usize) -> Reply {
    Reply {
        permits: reply.permits.repeat(times),
        limits: reply.limits.repeat(times),
        before: vec![&reply.before[..]; times].concat(),
        ..reply.clone()
    }
}

/// Makes a call for few limits and for many, and compares the replies.
fn operate(store: &mut Store, operation: Operation, n: u64, booked: Option<&Reply>) -> Reply {
    let mut reply = |times| {
        let before = booked.map(|booked| repeated(booked, times).before).unwrap_or_default();
        store.call(operation, START, &parts(&limits(times), n, &before))
    };
    let (few, many) = (reply(1), reply(TIMES));
    assert!(many == repeated(&few, TIMES), "{operation:?}: {few:?}");
    few
}

/// Like [`operate`], for a call that gives bookings back and reserves for some requests.
fn book(store: &mut Store, given_back: &[Reply], requests: usize) -> Vec<Reply> {
    let mut replies = |times| {
        let limits = limits(times);
        let given_back: Vec<Reply> = given_back.iter().map(|reply| repeated(reply, times)).collect();
        let given_back: Vec<GivenBack<'_>> = given_back.iter().map(Reply::given_back).collect();
        let costs = vec![(1, 1); limits.len()];
        let wanted = ReserveRequest { longest: Duration::MAX, mode: Mode::Normal, wants_state: true, costs };
        store.reserve(START, &parts(&limits, 0, &[]), &given_back, &vec![wanted; requests])
    };
    let (few, many) = (replies(1), replies(TIMES));
    assert!(many.into_iter().eq(few.iter().map(|reply| repeated(reply, TIMES))), "{few:?}");
    few
}

#[test]
fn very_many_limits_are_decided_as_few() {
    let Some(store) = &mut Store::new() else { return };
    let full = operate(store, Operation::Status, 0, None);
    let span = Duration::from_secs(1);
    operate(store, Operation::Pause { span, keep_permits: true }, 0, None);
    operate(store, Operation::Resume, 0, None);
    operate(store, Operation::Debit, 1, None);
    let due = i64::try_from(START).expect("an instant");
    operate(store, Operation::Refund { due }, 1, None);
    operate(store, Operation::Keep, 0, None);
    let booked = book(store, &[], 3);
    assert!(booked.iter().all(|reply| reply.answer == Answer::Done && reply.before.len() == LINES.len()));
    let again = book(store, &booked[1..], 2);
    let back = Operation::Back { due: again[1].due };
    operate(store, back, 1, Some(&again[1]));
    assert_eq!(operate(store, Operation::Reset, 0, None).limits, full.limits);
}
