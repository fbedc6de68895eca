//! Bookings: due in the order of arrival, given back as if they had not been made, never too many.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::Nanos;
use tidegate::policy::{AnyPolicy, Policy};

use crate::script::{Answer, Reply};
use crate::script_tests::conformance::{EXACT, nanos};
use crate::script_tests::{ANY_WAIT, Limit, Operation, START, Store, TRY, intervals};

fn within(micros: u64) -> Operation {
    Operation::Reserve { longest: Duration::from_micros(micros), shadow: false }
}

/// A reference: a request is due when the policy says so after all earlier bookings, and takes its
/// permits then.
#[test]
fn a_booking_is_due_as_behind_a_line() {
    let Some(mut store) = Store::new() else { return };
    for (seed, line) in (0..).zip(EXACT) {
        let limit = Limit::new(line);
        let policy: AnyPolicy = line.parse().expect("a policy");
        let policy = policy.with_epoch(Duration::from_micros(START));
        let mut random = SmallRng::seed_from_u64(seed);
        let (interval, most) = (intervals(&limit, 1.0), limit.terms.limit.clamp(1, 5));
        let mut now = START;
        let calls: Vec<_> = (0..3000)
            .map(|_| {
                let gap = if random.random_bool(0.7) { 2 * interval } else { 0 };
                now += random.random_range(0..=gap);
                let longest = random.random_range(0..20) * interval;
                (within(longest), now, random.random_range(1..=most))
            })
            .collect();
        let replies = store.run(&limit, &calls);
        let state = policy.start(nanos(calls[0].1));
        let (mut booked, mut waits) = (Nanos::ZERO, 0);
        for (i, ((operation, now, n), reply)) in calls.iter().zip(&replies).enumerate() {
            let context = format!("{line}: call {i}, {operation:?} of {n} at {now}: {reply:?}");
            let n = u32::try_from(*n).expect("a few permits");
            let at = nanos(*now).max(booked);
            // Times of a store are whole microseconds.
            let due = policy.ready_at(&state, at, 0, n).max(at);
            let due = Nanos::new(due.as_u64().next_multiple_of(1000));
            let wait = Duration::from_nanos(due.as_u64() - nanos(*now).as_u64());
            let Operation::Reserve { longest, .. } = operation else { unreachable!("only bookings") };
            let longest = (*longest).min(limit.terms.longest.unwrap_or(Duration::MAX));
            assert_eq!(reply.wait, wait, "{context}");
            assert_eq!(reply.answer == Answer::Done, wait <= longest, "{context}");
            if wait <= longest {
                policy.try_acquire(&state, due, n).expect("due");
                booked = due;
                waits += usize::from(wait > Duration::ZERO);
            }
        }
        assert!(waits > 20, "{line}: {waits} waits");
    }
}

/// Several limits in one call: due when the last of them is, and taken from all as of then.
#[test]
fn a_booking_of_several_limits_is_due_when_the_last_one_is() {
    let Some(mut store) = Store::new() else { return };
    let lines = [
        "token_bucket 100/s burst 20",
        "fixed_window 30/s",
        "sliding_log 60/s",
        "leaky_bucket 50/s",
        "sliding_window 80/s cells 8",
    ];
    let limits = lines.map(Limit::new);
    let policies = lines.map(|line| {
        let policy: AnyPolicy = line.parse().expect("a policy");
        policy.with_epoch(Duration::from_micros(START))
    });
    let states = policies.each_ref().map(|policy| policy.start(Nanos::ZERO));
    let mut booked = [Nanos::ZERO; 5];
    let mut random = SmallRng::seed_from_u64(7);
    let (mut now, mut waits, mut refused) = (START, 0, 0);
    for call in 0..3000 {
        now += random.random_range(0..40_000);
        let costs: [u32; 5] = std::array::from_fn(|_| random.random_range(0..4) / 2);
        let longest = random.random_range(0..10) * 20_000;
        let parts: Vec<_> = limits.iter().zip(costs).map(|(limit, n)| limit.part(n.into(), &[])).collect();
        let reply = store.call(within(longest), now, &parts);
        if costs == [0; 5] {
            assert_eq!(reply.answer, Answer::Refused);
            continue;
        }
        let asked: Vec<usize> = (0..5).filter(|i| costs[*i] > 0).collect();
        let due_of = |i: usize| {
            let at = nanos(now).max(booked[i]);
            policies[i].ready_at(&states[i], at, 0, costs[i]).max(at)
        };
        let due = asked.iter().map(|i| due_of(*i)).max().expect("a limit");
        let wait = Duration::from_nanos(due.as_u64() - nanos(now).as_u64());
        assert_eq!(reply.wait, wait, "call {call} of {costs:?}: {reply:?}");
        if wait > Duration::from_micros(longest) {
            assert_eq!(reply.answer, Answer::Refused, "call {call}");
            assert!(reply.tightest.is_some_and(|i| due_of(i) == due), "call {call}: {reply:?}");
            refused += 1;
            continue;
        }
        assert_eq!(reply.answer, Answer::Done, "call {call}");
        waits += usize::from(wait > Duration::ZERO);
        for i in asked {
            policies[i].try_acquire(&states[i], due, costs[i]).expect("due");
            booked[i] = due;
        }
    }
    assert!(waits > 100 && refused > 50, "{waits} waited, {refused} refused");
}

/// The k-th permit of 3/s is due k/3 s after the first, rounded up to a microsecond.
#[test]
fn odd_rates_are_exact() {
    let Some(mut store) = Store::new() else { return };
    let each = if std::env::var_os("TIDEGATE_REDIS_CALLS").is_some() { 1_000_000 } else { 10_000 };
    for (line, permits, micros) in [
        ("token_bucket 3/s burst 1", 3, 1_000_000),
        ("token_bucket 7/s burst 1", 7, 1_000_000),
        ("token_bucket 1500000/s burst 1", 3, 2),
        ("smooth_bursty 7/s max_burst 0s", 7, 1_000_000),
        ("leaky_bucket 700/min", 7, 600_000),
        ("token_bucket 2.3/s burst 1", 23, 10_000_000),
    ] {
        let limit = Limit::new(line);
        let calls = vec![(ANY_WAIT, START, 1); each];
        for (k, reply) in (0u64..).zip(store.run(&limit, &calls)) {
            assert_eq!(reply.wait, Duration::from_micros((k * micros).div_ceil(permits)), "{line}: {k}");
        }
        // The predicted wait is exact, and a request just at its end costs nothing of the rate.
        let mut limit = Limit::new(line);
        limit.key.push_str("-asked");
        if permits > micros {
            // More than one permit in a microsecond cannot be requested one by one.
            continue;
        }
        let due = |k: u64| START + (k * micros).div_ceil(permits);
        let mut told = Vec::new();
        for k in 0..each as u64 / 2 {
            if k > 0 && due(k) - 1 > due(k - 1) {
                told.push((due(k) - 1, Answer::Refused));
            }
            told.push((due(k), Answer::Done));
        }
        let calls: Vec<_> = told.iter().map(|(at, _)| (TRY, *at, 1)).collect();
        for ((at, answer), reply) in told.iter().zip(store.run(&limit, &calls)) {
            assert_eq!(reply.answer, *answer, "{line} at {at}");
        }
    }
}

fn back(reply: &Reply) -> Operation {
    Operation::Back { due: reply.due }
}

#[test]
fn a_booking_given_back_leaves_no_trace() {
    let Some(mut store) = Store::new() else { return };
    for line in EXACT {
        let limit = Limit::new(line);
        let (interval, most) = (intervals(&limit, 1.0), limit.terms.limit.clamp(1, 5));
        // Some grants first, so that the next request has to wait.
        let mut now = START + 3;
        while store.call(TRY, now, &[limit.part(most, &[])]).answer == Answer::Done {}
        now += interval / 3;
        let before = store.call(Operation::Status, now, &[limit.part(0, &[])]);
        let next = store.call(TRY, now, &[limit.part(most, &[])]);
        let wide = Limit { terms: crate::terms::Terms { longest: None, ..limit.terms.clone() }, ..limit };
        let booked = store.call(ANY_WAIT, now, &[wide.part(most, &[])]);
        assert_eq!(booked.wait, next.wait, "{line}");
        assert!(booked.wait > Duration::ZERO, "{line}");
        let part = wide.part(most, &booked.before[0]);
        assert_eq!(
            store.call(back(&booked), now, std::slice::from_ref(&part)).answer,
            Answer::Done,
            "{line}"
        );
        assert_eq!(store.call(TRY, now, &[wide.part(most, &[])]), next, "{line}");
        assert_eq!(store.call(Operation::Status, now, &[wide.part(0, &[])]), before, "{line}");
        // At its time the booking is a grant, and is given back as one.
        let booked = store.call(ANY_WAIT, now, &[wide.part(most, &[])]);
        let due = u64::try_from(booked.due).expect("an instant");
        let late = store.call(back(&booked), due, &[wide.part(most, &booked.before[0])]);
        let again = store.call(TRY, due, &[wide.part(most, &[])]);
        assert_eq!((late.answer, again.answer), (Answer::Done, Answer::Done), "{line}");
    }
}

/// The most permits in a duration of microseconds.
type Bound = fn(u64) -> u64;

/// Random bookings and attempts, some given back: the grants keep the bound of the policy over
/// every duration.
#[test]
fn bookings_that_are_given_back_are_never_granted_twice() {
    let Some(mut store) = Store::new() else { return };
    let bounds: [(&str, Bound); 4] = [
        ("token_bucket 5/s burst 10", |span| 10 + span / 200_000),
        ("token_bucket 3/s burst 2", |span| 2 + 3 * (span + 1) / 1_000_000),
        ("leaky_bucket 100/s", |span| 1 + span / 10_000),
        ("sliding_log 20/s", |span| 20 * (span / 1_000_000 + 1)),
    ];
    for (seed, (line, bound)) in (0..).zip(bounds) {
        let mut limit = Limit::new(line);
        limit.key.push_str("-bound");
        let mut random = SmallRng::seed_from_u64(seed);
        let interval = intervals(&limit, 1.0);
        let (mut now, mut grants) = (START, Vec::new());
        let mut waiting: Vec<(Reply, u64)> = Vec::new();
        let mut given_back = 0;
        for _ in 0..4000 {
            now += random.random_range(0..=interval);
            let due = |reply: &Reply| u64::try_from(reply.due).expect("an instant");
            grants.extend(
                waiting.extract_if(.., |(reply, _)| due(reply) <= now).map(|(reply, n)| (due(&reply), n)),
            );
            if random.random_bool(0.3) && !waiting.is_empty() {
                let (reply, n) = waiting.swap_remove(random.random_range(0..waiting.len()));
                let part = limit.part(n, &reply.before[0]);
                assert_eq!(store.call(back(&reply), now, &[part]).answer, Answer::Done);
                given_back += 1;
                continue;
            }
            // The bound of a leaky bucket applies to single permits.
            let n = if line.starts_with("leaky") { 1 } else { random.random_range(1..=2) };
            let longest = random.random_range(0..12) * interval;
            let reply = store.call(within(longest), now, &[limit.part(n, &[])]);
            match reply.answer {
                Answer::Done if reply.wait > Duration::ZERO => waiting.push((reply, n)),
                Answer::Done => grants.push((now, n)),
                _ => {}
            }
        }
        grants.extend(waiting.iter().map(|(reply, n)| (u64::try_from(reply.due).expect("an instant"), *n)));
        grants.sort_unstable();
        assert!(given_back > 100 && grants.len() > 1000, "{line}: {given_back} of {}", grants.len());
        for (i, (first, _)) in grants.iter().enumerate() {
            let mut sum = 0;
            for (last, n) in grants.iter().skip(i).take(200) {
                sum += n;
                assert!(sum <= bound(last - first), "{line}: {sum} from {first} to {last}");
            }
        }
    }
}
