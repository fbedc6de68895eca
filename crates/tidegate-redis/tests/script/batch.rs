//! Several requests in one call: decided like separate calls in sequence.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redis::{Connection, Value};

use crate::script::{Answer, GivenBack, Mode, Reply, ReserveRequest, Script};
use crate::script_tests::conformance::EXACT;
use crate::script_tests::{Limit, Operation, Part, START, Store, command, intervals, reserve};

/// The value of each key, and whether it expires.
fn state(connection: &mut Connection, limits: &[Limit]) -> Vec<(Option<Vec<u8>>, bool)> {
    let mut pipeline = redis::pipe();
    for limit in limits {
        pipeline.cmd("GET").arg(&limit.key).cmd("PTTL").arg(&limit.key);
    }
    let values: Vec<Value> = pipeline.query(connection).expect("values");
    let read = |pair: &[Value]| {
        let value = redis::from_redis_value_ref(&pair[0]).expect("a value");
        (value, redis::from_redis_value_ref::<i64>(&pair[1]).expect("a time to live") > 0)
    };
    values.chunks(2).map(read).collect()
}

/// One limit or several, under separate keys.
fn limits(lines: &[&str], suffix: &str) -> Vec<Limit> {
    let named = |(i, line): (usize, &&str)| {
        let limit = Limit::new(line);
        Limit { key: format!("{}-{i}-{suffix}", limit.key), ..limit }
    };
    lines.iter().enumerate().map(named).collect()
}

fn parts<'a>(limits: &'a [Limit], costs: &[(u64, u64)], before: &'a [Vec<u8>]) -> Vec<Part<'a>> {
    let part = |(i, limit): (usize, &'a Limit)| {
        let booking = before.get(i).map_or(&[][..], Vec::as_slice);
        limit.part(costs[i].0, booking)
    };
    limits.iter().enumerate().map(part).collect()
}

/// Random requests, with other calls between the batches, and a clock that is sometimes set back.
fn a_batch_decides_as_single_calls(store: &mut Store, lines: &[&str], seed: u64) {
    let (single, batch) = (limits(lines, &format!("single{seed}")), limits(lines, &format!("batch{seed}")));
    let script = Script::shared(single.iter().map(|limit| limit.terms.kind()));
    let mut random = SmallRng::seed_from_u64(seed);
    let interval = single.iter().map(|limit| intervals(limit, 1.0)).max().expect("a limit").max(2);
    let most = single.iter().map(|limit| limit.terms.limit).min().expect("a limit").clamp(1, 5);
    let (mut now, mut booked, mut waits) = (START, Vec::<Reply>::new(), 0);
    let ping =
        command(&script, Operation::Status, Some(now), &parts(&single, &vec![(1, 1); lines.len()], &[]));
    script.by_text(&ping).exec(&mut store.connection).expect("a script");
    for round in 0..120 {
        now += random.random_range(0..=4 * interval);
        if random.random_bool(0.03) {
            now -= [interval, 4000 * interval][random.random_range(0..2)];
        }
        let context = format!("{lines:?}, seed {seed}, round {round} at {now}");
        let requests: Vec<ReserveRequest> = (0..random.random_range(1..8))
            .map(|_| {
                let costs = (0..lines.len())
                    .map(|_| {
                        let n = random.random_range(u64::from(lines.len() == 1)..=most);
                        let more = if random.random_bool(0.2) { random.random_range(0..4) } else { 0 };
                        (n, n + more)
                    })
                    .collect();
                let longest = match random.random_range(0..4) {
                    0 => Duration::ZERO,
                    1 => Duration::MAX,
                    _ => Duration::from_micros(random.random_range(0..20) * interval),
                };
                let mode = [Mode::Shadow, Mode::Behind, Mode::Normal][random.random_range(0..20).min(2)];
                ReserveRequest { longest, mode, wants_state: random.random_bool(0.5), costs }
            })
            .collect();
        // Some bookings are given back first.
        let none = vec![(0, 0); lines.len()];
        let mut given_back = Vec::new();
        while random.random_bool(0.3) && !booked.is_empty() {
            let last = booked.len() - 1;
            let i = if random.random_bool(0.5) { last } else { random.random_range(0..=last) };
            let reply = booked.swap_remove(i);
            let alone = reserve(&script, Some(now), &parts(&single, &none, &[]), &[reply.given_back()], &[]);
            alone.exec(&mut store.connection).expect("a reply");
            given_back.push(reply);
        }
        let given_back: Vec<GivenBack<'_>> = given_back.iter().map(Reply::given_back).collect();
        let cmd = reserve(&script, Some(now), &parts(&batch, &none, &[]), &given_back, &requests);
        let value: Value = cmd.query(&mut store.connection).expect("a reply");
        let together = Reply::read_all(value, requests.len(), lines.len()).expect("replies");
        for (i, (request, together)) in requests.iter().zip(together).enumerate() {
            let telling = ReserveRequest { wants_state: true, ..request.clone() };
            let cmd = reserve(&script, Some(now), &parts(&single, &none, &[]), &[], &[telling]);
            let value: Value = cmd.query(&mut store.connection).expect("a reply");
            let alone = Reply::read(value, lines.len()).expect("a reply");
            // A long value is only reported for the last request; for any other request, its
            // number.
            let long = |before: &Vec<u8>| i + 1 < requests.len() && before.len() > 1024;
            let is_short = alone.answer == Answer::Done && !request.wants_state;
            let told = Reply {
                limits: if is_short { Vec::new() } else { alone.limits.clone() },
                before: alone
                    .before
                    .iter()
                    .map(|b| if long(b) { b[..8].to_vec() } else { b.clone() })
                    .collect(),
                ..alone
            };
            assert_eq!(together, told, "{context}: request {i} of {requests:?}");
            if told.answer == Answer::Done && told.wait > Duration::ZERO {
                waits += 1;
                booked.push(told);
            }
        }
        let one = || vec![(1, 1); lines.len()];
        let other = match random.random_range(0..10) {
            0..5 if !booked.is_empty() => {
                let last = booked.len() - 1;
                let i = if random.random_bool(0.5) { last } else { random.random_range(0..=last) };
                let reply = booked.swap_remove(i);
                let costs = reply.permits.iter().map(|n| (*n, *n)).collect();
                Some((Operation::Back { due: reply.due }, costs, reply.before))
            }
            5 => Some((Operation::Debit, one(), Vec::new())),
            6 => {
                let due = i64::try_from(now).expect("an instant");
                Some((Operation::Refund { due }, one(), Vec::new()))
            }
            7 if random.random_bool(0.1) => {
                let span = Duration::from_micros(3 * interval);
                Some((Operation::Pause { span, keep_permits: true }, one(), Vec::new()))
            }
            8 => Some((Operation::Resume, one(), Vec::new())),
            _ => None,
        };
        if let Some((operation, costs, before)) = other {
            let of = |limits: &Vec<Limit>| {
                let cmd = command(&script, operation, Some(now), &parts(limits, &costs, &before));
                Reply::read(cmd.query(&mut store.connection).expect("a reply"), lines.len())
            };
            let [alone, together] = [&single, &batch].map(of);
            assert_eq!(alone, together, "{context}: {operation:?}");
        }
        let (alone, together) = (state(&mut store.connection, &single), state(&mut store.connection, &batch));
        assert_eq!(alone, together, "{context}");
    }
    assert!(waits > 10 || lines == ["token_bucket 1000000/s burst 20"], "{lines:?}: {waits} waits");
}

#[test]
fn a_batch_of_each_policy_decides_as_single_calls() {
    let Some(mut store) = Store::new() else { return };
    for (seed, line) in (0..).zip(EXACT) {
        a_batch_decides_as_single_calls(&mut store, &[line], seed);
    }
    a_batch_decides_as_single_calls(&mut store, &["sliding_log 300/s"], 99);
}

#[test]
fn a_batch_of_several_limits_decides_as_single_calls() {
    let Some(mut store) = Store::new() else { return };
    let mut random = SmallRng::seed_from_u64(100);
    for seed in 100..115 {
        let some = random.random_range(2..5);
        let lines: Vec<&str> = (0..some).map(|_| EXACT[random.random_range(0..EXACT.len())]).collect();
        a_batch_decides_as_single_calls(&mut store, &lines, seed);
    }
}
