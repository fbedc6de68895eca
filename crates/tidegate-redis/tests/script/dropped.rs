//! Bookings that are dropped in any order: which of them come back, and which never do.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::script::{Answer, GivenBack, Mode, Reply, ReserveRequest};
use crate::script_tests::conformance::EXACT;
use crate::script_tests::refunds::{BOUNDED, Net, is_within};
use crate::script_tests::{ANY_WAIT, Limit, Operation, START, Store, TRY, intervals};

fn due(reply: &Reply) -> u64 {
    u64::try_from(reply.due).expect("an instant")
}

fn give_back(store: &mut Store, now: u64, limit: &Limit, reply: &Reply, n: u64) {
    let back = Operation::Back { due: reply.due };
    assert_eq!(store.call(back, now, &[limit.part(n, &reply.before[0])]).answer, Answer::Done);
}

/// A limit whose permits are all taken, and whose requests may wait for any time.
fn used_up(store: &mut Store, line: &str, key: String, now: u64) -> Limit {
    let limit = Limit { key, ..Limit::new(line).without_longest() };
    while store.call(TRY, now, &[limit.part(1, &[])]).answer == Answer::Done {}
    limit
}

/// Two bookings of different sizes that were dropped in their order of arrival both stayed debited.
#[test]
fn two_sizes_dropped_in_any_order_come_back() {
    let Some(mut store) = Store::new() else { return };
    for sizes in [[10, 20], [20, 10], [10, 10]] {
        for order in [[0, 1], [1, 0]] {
            let key = format!("{sizes:?}{order:?}");
            let limit = Limit { key, ..Limit::new("token_bucket 1/h burst 1000") };
            store.call(TRY, START, &[limit.part(995, &[])]);
            let status = |store: &mut Store| store.call(Operation::Status, START, &[limit.part(0, &[])]);
            let before = status(&mut store);
            let booked = sizes.map(|n| store.call(ANY_WAIT, START, &[limit.part(n, &[])]));
            for i in order {
                give_back(&mut store, START, &limit, &booked[i], sizes[i]);
            }
            assert_eq!(status(&mut store), before, "{sizes:?} dropped as {order:?}");
        }
    }
}

#[test]
fn a_storm_that_is_dropped_leaves_no_trace() {
    let Some(mut store) = Store::new() else { return };
    for (seed, line) in (0..).zip(EXACT) {
        for count in [2, 3, 20, 200] {
            let now = START + 3;
            let limit = used_up(&mut store, line, format!("{line}-{count}"), now);
            let mut random = SmallRng::seed_from_u64(seed);
            let most = limit.terms.limit.clamp(1, 7);
            let before = store.call(Operation::Status, now, &[limit.part(0, &[])]);
            let booked = (0..count).map(|_| {
                let n = random.random_range(1..=most);
                (store.call(ANY_WAIT, now, &[limit.part(n, &[])]), n)
            });
            let mut booked: Vec<(Reply, u64)> = booked.collect();
            assert!(booked.iter().all(|(reply, _)| reply.wait > Duration::ZERO), "{line}");
            booked.shuffle(&mut random);
            for (reply, n) in booked {
                give_back(&mut store, now, &limit, &reply, n);
            }
            let after = store.call(Operation::Status, now, &[limit.part(0, &[])]);
            assert_eq!(after, before, "{line}: {count} bookings");
        }
    }
}

/// Requests of other sizes took parts of the times of dropped bookings, and were dropped, too. The
/// values from before these bookings were lost, and the bookings behind them stayed debited.
#[test]
fn bookings_that_are_dropped_one_by_one_leave_no_trace() {
    let Some(mut store) = Store::new() else { return };
    for line in EXACT {
        let mut random = SmallRng::seed_from_u64(9);
        for round in 0..100 {
            let used_up = used_up(&mut store, line, format!("{line}-{round}"), START + 3);
            let control = Limit { key: format!("{line}-{round}-control"), ..Limit::new(line) };
            while store.call(TRY, START + 3, &[control.part(1, &[])]).answer == Answer::Done {}
            let most = used_up.terms.limit.clamp(1, 9);
            let (mut now, mut booked) = (START + 3, Vec::<(Reply, u64)>::new());
            let mut first = u64::MAX;
            for step in 0..random.random_range(3..30) {
                let next = now + random.random_range(0..2_000);
                if next >= first {
                    break;
                }
                now = next;
                if booked.is_empty() || step < 20 && random.random_bool(0.5) {
                    let n = random.random_range(1..=most);
                    let reply = store.call(ANY_WAIT, now, &[used_up.part(n, &[])]);
                    if reply.wait > Duration::ZERO {
                        first = first.min(due(&reply));
                        booked.push((reply, n));
                    } else {
                        let granted = store.call(TRY, now, &[control.part(n, &[])]);
                        assert_eq!(granted.answer, Answer::Done, "{line}, {round}");
                    }
                } else {
                    let (reply, n) = booked.swap_remove(random.random_range(0..booked.len()));
                    give_back(&mut store, now, &used_up, &reply, n);
                }
            }
            booked.shuffle(&mut random);
            for (reply, n) in booked {
                give_back(&mut store, now, &used_up, &reply, n);
            }
            let status = |store: &mut Store, limit: &Limit| {
                store.call(Operation::Status, now, &[limit.part(0, &[])]).limits.remove(0)
            };
            assert_eq!(status(&mut store, &used_up), status(&mut store, &control), "{line}, {round}");
        }
    }
}

/// A later request takes a part of the first of two bookings that were dropped one behind the
/// other. The script then forgot the value from before the second booking, which stayed debited for
/// a window after all bookings behind it were dropped as well.
#[test]
fn a_part_of_a_dropped_booking_does_not_keep_the_bookings_behind_it() {
    let Some(mut store) = Store::new() else { return };
    let lines = ["fixed_window 20/s", "sliding_window 20/s cells 4", "sliding_estimate 20/s"];
    for line in lines.into_iter().chain(["token_bucket 20/s burst 20 interval_refill"]) {
        let limit = Limit { key: line.into(), ..Limit::new(line).without_longest() };
        let second = START - START % 1_000_000;
        let at = |ms: u64| second + 1000 * ms;
        let mut ask = |ms, operation, n| store.call(operation, at(ms), &[limit.part(n, &[])]);
        assert_eq!(ask(74, TRY, 20).answer, Answer::Done, "{line}");
        let dropped =
            [ask(231, ANY_WAIT, 20), ask(798, ANY_WAIT, 8), ask(805, ANY_WAIT, 14), ask(806, ANY_WAIT, 20)];
        let [_, first, middle, last] = &dropped;
        give_back(&mut store, at(1301), &limit, first, 8);
        give_back(&mut store, at(1508), &limit, middle, 14);
        let small = store.call(ANY_WAIT, at(1540), &[limit.part(2, &[])]);
        assert!(due(&small) <= due(first), "{line}");
        give_back(&mut store, at(1929), &limit, last, 20);
        // All that the small request and the first booking leave is there when these are due.
        let later = due(first).max(at(2010));
        let state = store.call(Operation::Status, later, &[limit.part(0, &[])]);
        let alone = Limit { key: format!("{line} alone"), ..Limit::new(line).without_longest() };
        assert_eq!(store.call(TRY, at(74), &[alone.part(20, &[])]).answer, Answer::Done, "{line}");
        for n in [20, 2] {
            store.call(ANY_WAIT, at(231), &[alone.part(n, &[])]);
        }
        let expected = store.call(Operation::Status, later, &[alone.part(0, &[])]);
        assert_eq!(state.limits, expected.limits, "{line}");
    }
}

/// Random requests, many of which are dropped at random: the grants are within the bound. In storms
/// many come, or are dropped, at once, so that more bookings are free than a call parses.
#[test]
fn dropped_bookings_are_never_granted_twice() {
    let Some(mut store) = Store::new() else { return };
    let seeds = if std::env::var_os("TIDEGATE_REDIS_CALLS").is_some() { 24 } else { 6 };
    let lines = BOUNDED.into_iter().chain(["sliding_log 1/s", "sliding_log 100/s with_capacity 200"]);
    for (line, seed) in lines.flat_map(|line| (0..seeds).map(move |seed| (line, seed))) {
        let limit = Limit { key: format!("{line}-{seed}"), ..Limit::new(line).without_longest() };
        let mut random = SmallRng::seed_from_u64(seed);
        let interval = intervals(&limit, 1.0);
        let most = if line.starts_with("leaky") { 4 } else { limit.terms.limit.clamp(1, 10) };
        let dropped = random.random_range(0.2..0.9);
        // The size of a storm, and the number of steps.
        let (storm, steps) = if seed % 2 == 0 { (1, 400) } else { (60, 150) };
        let (mut now, mut grants, mut waiting) = (START, Vec::new(), Vec::new());
        for _ in 0..steps {
            if random.random_bool(0.6) {
                now += random.random_range(0..=2 * interval);
            }
            waiting.retain(|(reply, n)| {
                let is_over = due(reply) <= now;
                if is_over {
                    grants.push(Net { at: due(reply), n: *n });
                }
                !is_over
            });
            let times = if random.random_bool(0.1) { storm } else { 1 };
            let is_drop = random.random_bool(dropped);
            for _ in 0..times {
                if is_drop && !waiting.is_empty() {
                    let (reply, n) = waiting.swap_remove(random.random_range(0..waiting.len()));
                    give_back(&mut store, now, &limit, &reply, n);
                    continue;
                }
                let n = random.random_range(1..=most);
                let reply = store.call(ANY_WAIT, now, &[limit.part(n, &[])]);
                match reply.answer {
                    Answer::Done if reply.wait > Duration::ZERO => waiting.push((reply, n)),
                    Answer::Done => grants.push(Net { at: due(&reply), n }),
                    _ => {}
                }
            }
        }
        grants.extend(waiting.iter().map(|(reply, n)| Net { at: due(reply), n: *n }));
        if let Err(found) = is_within(&limit, &grants) {
            panic!("{line}, {seed}: {found}");
        }
    }
}

/// Processes with different rates share a limit, as while a configuration is rolled out, and drop
/// waits: the larger of the two rates is not exceeded.
#[test]
fn of_two_rates_the_larger_one_is_not_exceeded() {
    let Some(mut store) = Store::new() else { return };
    let seeds = if std::env::var_os("TIDEGATE_REDIS_CALLS").is_some() { 200 } else { 6 };
    let lines = [
        ["token_bucket 5/s burst 20", "token_bucket 10/s burst 20"],
        ["token_bucket 7/s burst 5", "token_bucket 10/s burst 20"],
        ["token_bucket 3/s burst 10", "token_bucket 10/s burst 10"],
        ["token_bucket 10/s burst 10 interval_refill", "token_bucket 20/s burst 10 interval_refill"],
        ["leaky_bucket 5/s nodelay 3", "leaky_bucket 10/s nodelay 3"],
        ["fixed_window 5/s", "fixed_window 10/s"],
        ["sliding_window 5/s cells 10", "sliding_window 10/s cells 10"],
        ["sliding_estimate 5/s", "sliding_estimate 10/s"],
        ["sliding_log 5/s", "sliding_log 10/s"],
    ];
    for (lines, seed) in lines.into_iter().flat_map(|lines| (0..seeds).map(move |seed| (lines, seed))) {
        let key = format!("{lines:?}-{seed}");
        let limits = lines.map(|line| Limit { key: key.clone(), ..Limit::new(line).without_longest() });
        let mut random = SmallRng::seed_from_u64(seed);
        let interval = intervals(&limits[0], 1.0);
        let most = if lines[0].starts_with("leaky") { 4 } else { limits[0].terms.limit.min(10) };
        let (dropped, changes) = (random.random_range(0.0..0.7), random.random_range(0.01..0.5));
        let (mut now, mut of, mut grants, mut waiting) = (START, 0, Vec::new(), Vec::new());
        for _ in 0..300 {
            now += random.random_range(0..=2 * interval);
            if random.random_bool(changes) {
                of = 1 - of;
            }
            waiting.retain(|(reply, _, n)| {
                let is_over = due(reply) <= now;
                if is_over {
                    grants.push(Net { at: due(reply), n: *n });
                }
                !is_over
            });
            if random.random_bool(dropped) && !waiting.is_empty() {
                let (reply, of, n): (Reply, usize, u64) =
                    waiting.swap_remove(random.random_range(0..waiting.len()));
                give_back(&mut store, now, &limits[of], &reply, n);
                continue;
            }
            let n = random.random_range(1..=most);
            let reply = store.call(ANY_WAIT, now, &[limits[of].part(n, &[])]);
            match reply.answer {
                Answer::Done if reply.wait > Duration::ZERO => waiting.push((reply, of, n)),
                Answer::Done => grants.push(Net { at: due(&reply), n }),
                _ => {}
            }
        }
        grants.extend(waiting.iter().map(|(reply, _, n)| Net { at: due(reply), n: *n }));
        if let Err(found) = is_within(&limits[1], &grants) {
            panic!("{lines:?}, {seed}: {found}");
        }
    }
}

/// An instant in milliseconds, which requests are dropped then, by the order in which all of them
/// came, and the permits of the requests that follow.
type Call = (u64, &'static [usize], &'static [u64]);

/// Makes these calls for a bucket of this configuration, and takes what it has in the millisecond
/// after the last one. Returns how much that is, if all grants are within the bound.
fn granted_after(store: &mut Store, line: &str, calls: &[Call]) -> usize {
    let limit = Limit::new(line).without_longest();
    let (mut now, mut requests) = (START, Vec::<Option<(Reply, u64)>>::new());
    for (millis, dropped, sizes) in calls {
        now = START + 1000 * millis;
        for number in *dropped {
            let (reply, n) = requests[*number].take().expect("a booking");
            give_back(store, now, &limit, &reply, n);
        }
        let sizes = sizes.iter().map(|n| Some((store.call(ANY_WAIT, now, &[limit.part(*n, &[])]), *n)));
        requests.extend(sizes);
    }
    let granted = requests.iter().flatten().map(|(reply, n)| Net { at: due(reply), n: *n });
    let mut grants: Vec<Net> = granted.collect();
    let granted = grants.len();
    now += 1000;
    while store.call(TRY, now, &[limit.part(1, &[])]).answer == Answer::Done {
        grants.push(Net { at: now, n: 1 });
    }
    assert_eq!(is_within(&limit, &grants), Ok(()));
    grants.len() - granted
}

/// Permits of dropped bookings had been granted, and then the last booking behind that grant was
/// undone: the bucket had been full before the grant, and kept what had accrued above the cap.
#[test]
fn a_full_bucket_has_no_permits_beyond_its_burst_when_lent_permits_are_undone() {
    let Some(mut store) = Store::new() else { return };
    let calls: [Call; 15] = [
        (1, &[], &[38, 16, 17, 7, 9, 10, 20, 18]),
        (11, &[4], &[]),
        (16, &[1], &[]),
        (149, &[5], &[]),
        (161, &[6], &[]),
        (340, &[2], &[]),
        (610, &[], &[5, 16, 12, 20]),
        (930, &[7], &[]),
        (969, &[10], &[]),
        (985, &[9], &[]),
        (1010, &[], &[14, 4]),
        (2516, &[], &[20]),
        (2518, &[11], &[]),
        (3834, &[], &[20]),
        (3836, &[14], &[]),
    ];
    // Four permits that were lent at 1,010 ms count as lent at 3,834 ms, like the rest of their
    // refund.
    assert_eq!(granted_after(&mut store, "token_bucket 20/s burst 40", &calls), 16);
}

/// Refunded permits were granted at two instants, and then all bookings behind them were undone.
/// The bucket had been full before the first of these grants, and it counted as full at that
/// instant for only one of the refunds.
#[test]
fn permits_lent_at_two_instants_are_undone_within_the_burst() {
    let Some(mut store) = Store::new() else { return };
    let calls: [Call; 17] = [
        (5, &[], &[4, 2]),
        (
            7,
            &[],
            &[
                14, 14, 9, 6, 9, 8, 8, 11, 15, 19, 15, 20, 19, 14, 10, 2, 2, 17, 6, 19, 6, 4, 16, 14, 3, 2,
                13, 5, 15, 16, 6, 5, 5, 14, 14, 9, 6, 11, 9, 6, 20,
            ],
        ),
        (
            387,
            &[
                8, 30, 21, 7, 36, 31, 38, 23, 32, 41, 14, 11, 40, 12, 37, 35, 16, 34, 22, 39, 9, 24, 19, 26,
                20, 27, 33,
            ],
            &[],
        ),
        (1010, &[], &[14]),
        (1012, &[25, 18], &[14]),
        (1020, &[17, 15, 29, 28], &[]),
        (2566, &[], &[15]),
        (2641, &[43], &[]),
        (2979, &[], &[16, 6, 12, 17, 2, 15, 10, 13, 5, 9, 3, 11, 15, 16, 12, 10, 9, 7, 11]),
        (3719, &[58, 62, 53, 60, 52, 59, 63, 61], &[]),
        (4111, &[42, 57], &[11]),
        (4716, &[], &[8, 5, 17, 5, 8, 5, 10, 6]),
        (5092, &[72], &[]),
        (9439, &[64], &[]),
        (13959, &[], &[17, 6]),
        (13961, &[68, 73], &[6]),
        (13963, &[75], &[]),
    ];
    assert_eq!(granted_after(&mut store, "token_bucket 20/s burst 40", &calls), 17);
}

/// Callers request twice the rate, in mixed sizes, and drop each wait that takes over a second.
#[test]
fn a_limit_in_overload_is_used_by_callers_with_timeouts() {
    let Some(mut store) = Store::new() else { return };
    const SECOND: u64 = 1_000_000;
    for line in [
        "token_bucket 100/s burst 10",
        "leaky_bucket 100/s capacity 100",
        "smooth_bursty 100/s",
        "fixed_window 100/s",
        "sliding_window 100/s cells 10",
        "sliding_log 100/s",
    ] {
        let limit = Limit { key: line.to_owned(), ..Limit::new(line).without_longest() };
        let mut random = SmallRng::seed_from_u64(1);
        let (mut now, mut used, mut waiting) = (START, 0, Vec::<(u64, Reply, u64)>::new());
        while now < START + 60 * SECOND {
            now += random.random_range(0..55_000);
            // The actions of earlier callers before the next one comes, in order.
            while let Some((until, reply, n)) = waiting.first()
                && *until < now
            {
                match due(reply) <= *until {
                    true => used += n,
                    false => give_back(&mut store, *until, &limit, reply, *n),
                }
                waiting.remove(0);
            }
            let n = random.random_range(1..=10);
            let reply = store.call(ANY_WAIT, now, &[limit.part(n, &[])]);
            if reply.answer == Answer::Done {
                waiting.push((now + SECOND, reply, n));
            }
        }
        assert!(used >= 60 * 90, "{line}: {used} of 6000");
    }
}

/// The order in which the bookings of a storm are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Random,
    First,
    Last,
}

/// Books `count` waits of up to 300 permits, and drops all of them.
fn storm(store: &mut Store, line: &str, count: usize, order: Order) {
    let now = START + 3;
    let limit = Limit { key: format!("{line}-{count}-{order:?}"), ..Limit::new(line).without_longest() };
    let most = limit.terms.largest.unwrap_or(300).clamp(1, 300);
    let mut random = SmallRng::seed_from_u64(count as u64);
    store.call(TRY, now, &[limit.part(limit.terms.limit.max(1), &[])]);
    let before = store.call(Operation::Status, now, &[limit.part(0, &[])]);
    let booked = (0..count).map(|_| {
        let n = random.random_range(most.min(6)..=most);
        (store.call(ANY_WAIT, now, &[limit.part(n, &[])]), n)
    });
    let mut booked: Vec<(Reply, u64)> = booked.collect();
    assert!(booked.iter().all(|(reply, _)| reply.wait > Duration::ZERO), "{line}");
    match order {
        Order::Random => booked.shuffle(&mut random),
        Order::First => {}
        Order::Last => booked.reverse(),
    }
    let half = count / 2;
    for (i, (reply, n)) in booked.iter().enumerate() {
        give_back(store, now, &limit, reply, *n);
        if i == half && line.starts_with("sliding_log") && order == Order::Random {
            // The state of a log changes meanwhile, and no booking is lost.
            let pause = Operation::Pause { span: Duration::from_secs(1), keep_permits: true };
            store.call(pause, now, &[limit.part(0, &[])]);
            store.call(Operation::Resume, now, &[limit.part(0, &[])]);
        }
    }
    let after = store.call(Operation::Status, now, &[limit.part(0, &[])]);
    assert_eq!(after, before, "{line}: {count} bookings, dropped {order:?}");
}

/// 600 waits of mixed sizes left a limit booked for hours.
#[test]
fn a_storm_of_mixed_sizes_leaves_no_trace() {
    let Some(mut store) = Store::new() else { return };
    for line in [
        "token_bucket 100/s burst 1000",
        "smooth_bursty 100/s",
        "leaky_bucket 100/s capacity 1000",
        "fixed_window 300/s",
        "sliding_window 300/s cells 10",
        "sliding_estimate 300/s",
        "sliding_log 1/s",
        "sliding_log 7/s",
        "sliding_log 100/s",
        "sliding_log 4000/s",
    ] {
        storm(&mut store, line, 600, Order::Random);
        storm(&mut store, line, 100, Order::First);
        storm(&mut store, line, 100, Order::Last);
    }
    for line in ["token_bucket 100/s burst 1000", "sliding_log 100/s"] {
        storm(&mut store, line, 3000, Order::Random);
    }
}

/// A log keeps no more records than documented. A forgotten record counts until its window is over.
#[test]
fn a_log_of_too_many_bookings_forgets_none_too_early() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("sliding_log 1/s").without_longest();
    let part = || [limit.part(0, &[])];
    // A call writes the state of the log once.
    let wanted = ReserveRequest {
        longest: Duration::MAX,
        mode: Mode::Normal,
        wants_state: false,
        costs: vec![(1, 1)],
    };
    let wanted = vec![wanted; 500];
    let replies: Vec<Reply> = (0..33).flat_map(|_| store.reserve(START, &part(), &[], &wanted)).collect();
    // The first one is granted, and the last 16,384 are known.
    let back = |reply: &Reply| GivenBack { due: reply.due, permits: &[1], before: &[] };
    let drops: Vec<GivenBack> = replies[1..].iter().rev().map(back).collect();
    drops.chunks(500).for_each(|drops| _ = store.reserve(START, &part(), drops, &[]));
    let known = 16_500 - 16_384;
    let next = store.call(ANY_WAIT, START, &[limit.part(1, &[])]);
    assert_eq!(next.wait, Duration::from_secs(known));
}

/// Only two thirds of the permits of a log of 4,000 were once used. Waits of several windows leave
/// permits at times that no request fits.
#[test]
fn half_of_the_waits_of_a_log_are_dropped_and_the_log_is_used() {
    let Some(mut store) = Store::new() else { return };
    const SECOND: u64 = 1_000_000;
    const SECONDS: u64 = 8;
    for (limit, millis, least) in [(4000, 500, 98), (4096, 500, 98), (4000, 3000, 85)] {
        let line = format!("sliding_log {limit}/s");
        let of = Limit { key: format!("{line}-{millis}"), ..Limit::new(&line) };
        let mut random = SmallRng::seed_from_u64(limit);
        let (mut now, mut grants) = (START, Vec::new());
        // By the time of the drop.
        let mut drops = std::collections::BTreeMap::<(u64, usize), (Reply, u64)>::new();
        let longest = Operation::Reserve { longest: Duration::from_millis(millis), shadow: false };
        for call in 0.. {
            now += random.random_range(0..2_500);
            if now >= START + SECONDS * SECOND {
                break;
            }
            while let Some(first) = drops.first_entry()
                && first.key().0 <= now
            {
                let ((at, _), (reply, n)) = first.remove_entry();
                give_back(&mut store, at, &of, &reply, n);
            }
            let n = random.random_range(1..=40);
            let reply = store.call(longest, now, &[of.part(n, &[])]);
            if reply.answer != Answer::Done {
                continue;
            }
            match due(&reply) > now && random.random_bool(0.5) {
                true => _ = drops.insert((random.random_range(now..due(&reply)), call), (reply, n)),
                false => grants.push((due(&reply), n)),
            }
        }
        grants.sort_unstable();
        let (mut first, mut sum) = (0, 0);
        for (at, n) in &grants {
            sum += n;
            while grants[first].0 + SECOND <= *at {
                sum -= grants[first].1;
                first += 1;
            }
            assert!(sum <= limit, "{sum} of {limit} at {at}");
        }
        let span = START + SECOND..START + SECONDS * SECOND;
        let used: u64 = grants.iter().filter(|(at, _)| span.contains(at)).map(|(_, n)| n).sum();
        let most = limit * (SECONDS - 1);
        assert!(used * 100 >= most * least, "{line}, {millis} ms: {used} of {most}");
    }
}

/// A booking comes back once, and to the state in which it was made.
#[test]
fn a_drop_that_comes_twice_or_to_another_state_gives_nothing() {
    let Some(mut store) = Store::new() else { return };
    for line in EXACT {
        let now = START + 3;
        let limit = used_up(&mut store, line, format!("{line}-twice"), now);
        let book = |store: &mut Store| store.call(ANY_WAIT, now, &[limit.part(1, &[])]);
        let booked: Vec<Reply> = (0..20).map(|_| book(&mut store)).collect();
        // The bookings of a log at one time are not distinguished: a process gives each back once.
        let alone = booked.iter().position(|reply| {
            booked.iter().filter(|other| other.due == reply.due).count() == 1 && reply.due < booked[19].due
        });
        if let Some(i) = alone {
            give_back(&mut store, now, &limit, &booked[i], 1);
            let before = store.call(Operation::Status, now, &[limit.part(0, &[])]);
            give_back(&mut store, now, &limit, &booked[i], 1);
            assert_eq!(book(&mut store).due, booked[i].due, "{line}");
            assert!(book(&mut store).due >= booked[19].due, "{line}");
            let after = store.call(Operation::Status, now, &[limit.part(0, &[])]);
            assert!(after.limits[0].next_in >= before.limits[0].next_in, "{line}");
        }
        redis::cmd("FLUSHALL").exec(&mut store.connection).expect("a flush");
        while store.call(TRY, now, &[limit.part(1, &[])]).answer == Answer::Done {}
        let before = store.call(Operation::Status, now, &[limit.part(0, &[])]);
        for reply in &booked {
            give_back(&mut store, now, &limit, reply, 1);
        }
        assert_eq!(store.call(Operation::Status, now, &[limit.part(0, &[])]), before, "{line}");
    }
}

/// Each place that ended was a refund of its own, and the store forgot the first of many: then it
/// could not undo the bookings anymore. After all waits were dropped, they stayed debited.
#[test]
fn bookings_are_undone_after_many_places_have_ended() {
    let Some(mut store) = Store::new() else { return };
    for line in [
        "leaky_bucket 100/s",
        "token_bucket 100/s burst 100",
        "smooth_bursty 100/s",
        "sliding_window 100/s cells 10",
        "sliding_estimate 100/s",
        "sliding_log 100/s with_capacity 300",
        "fixed_window 100/s",
    ] {
        for passed in [1, 3, 8, 30] {
            let limit = used_up(&mut store, line, format!("{line}-ended-{passed}"), START);
            let booked: Vec<Reply> =
                (0..300).map(|_| store.call(ANY_WAIT, START, &[limit.part(1, &[])])).collect();
            let last = store.call(ANY_WAIT, START, &[limit.part(1, &[])]);
            let mut now = START;
            for (i, reply) in booked.into_iter().enumerate() {
                if i < passed {
                    now = due(&reply).max(now) + 1;
                    let refund = Operation::Refund { due: reply.due };
                    store.call(refund, now, &[limit.part(1, &[])]);
                } else {
                    give_back(&mut store, now, &limit, &reply, 1);
                }
            }
            // Thirty places of a bucket end.
            let later = now + 300_000;
            give_back(&mut store, later, &limit, &last, 1);
            let full_in = store.call(Operation::Status, later, &[limit.part(0, &[])]).limits[0].full_in;
            assert!(full_in <= Duration::from_millis(700), "{line}, {passed}: {full_in:?}");
        }
    }
}

/// One call that gives bookings of one permit back, and then decides a request for one that may
/// wait. Returns its reply.
fn next(store: &mut Store, now: u64, limit: &Limit, backs: &[&Reply]) -> Reply {
    let back = |reply: &&Reply| (reply.due, reply.before.clone());
    let backs: Vec<_> = backs.iter().map(back).collect();
    let given_back: Vec<_> =
        backs.iter().map(|(due, before)| GivenBack { due: *due, permits: &[1], before }).collect();
    let wanted =
        ReserveRequest { longest: Duration::MAX, mode: Mode::Normal, wants_state: true, costs: vec![(1, 1)] };
    store.reserve(now, &[limit.part(0, &[])], &given_back, &[wanted]).remove(0)
}

const SECOND: u64 = 1_000_000;

/// Bug: after a second reset, bookings had the numbers of bookings from between the resets, if waits
/// from before both were still ahead. Then a wait from between them came back after the second one.
#[test]
fn no_wait_from_between_two_resets_comes_back() {
    let Some(mut store) = Store::new() else { return };
    for line in ["token_bucket 1/s burst 1", "smooth_bursty 1/s max_burst 0s", "sliding_log 1/s"] {
        let limit = Limit { key: line.into(), ..Limit::new(line).without_longest() };
        let at = |store: &mut Store, micros, backs: &[&Reply]| next(store, START + micros, &limit, backs);
        let _far: Vec<_> = (0..11).map(|_| at(&mut store, 0, &[])).collect();
        store.call(Operation::Reset, START + 1, &[limit.part(0, &[])]);
        assert_eq!(at(&mut store, 2, &[]).wait, Duration::ZERO, "{line}");
        let dropped = at(&mut store, 2, &[]);
        store.call(Operation::Reset, START + 3, &[limit.part(0, &[])]);
        let waits = [
            at(&mut store, 4, &[]),
            at(&mut store, 4, &[]),
            at(&mut store, 4, &[]),
            at(&mut store, 5, &[&dropped]),
        ]
        .map(|reply| due(&reply));
        for pair in waits.windows(2) {
            assert!(pair[1] >= pair[0] + SECOND - 10, "{line}: {waits:?}");
        }
    }
}

/// Bug: a wait from between two resets also came back if the store learned of its drop only when its
/// time had passed.
#[test]
fn no_wait_from_between_two_resets_comes_back_late() {
    let Some(mut store) = Store::new() else { return };
    for line in ["fixed_window 3/s", "sliding_window 3/s cells 2", "token_bucket 3/s burst 3"] {
        let limit = Limit { key: line.into(), ..Limit::new(line).without_longest() };
        let at = |store: &mut Store, micros, backs: &[&Reply]| next(store, START + micros, &limit, backs);
        let _far: Vec<_> = (0..13).map(|_| at(&mut store, 0, &[])).collect();
        store.call(Operation::Reset, START + 1, &[limit.part(0, &[])]);
        let all = store.call(ANY_WAIT, START + 2, &[limit.part(3, &[])]);
        assert_eq!(all.wait, Duration::ZERO, "{line}");
        let dropped = next(&mut store, START + 2, &limit, &[]);
        store.call(Operation::Reset, START + 1_200_000, &[limit.part(0, &[])]);
        let mut waits: Vec<_> = (0..3).map(|i| at(&mut store, 1_200_000 + i, &[]).wait).collect();
        assert_eq!(waits, [Duration::ZERO; 3], "{line}");
        waits.push(at(&mut store, 1_200_010, &[&dropped]).wait);
        assert!(waits[3] > Duration::from_millis(200), "{line}: {waits:?}");
    }
}

/// Bug: a wait from between two resets also came back if nothing lay ahead at the second reset: the
/// numbers began anew below those of the waits from between the resets.
#[test]
fn no_wait_comes_back_after_a_reset_with_nothing_ahead() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("fixed_window 100/s").without_longest();
    let all = START + 4 * SECOND;
    for _ in 0..5 {
        store.call(ANY_WAIT, START, &[limit.part(100, &[])]);
    }
    store.call(Operation::Reset, START + 1, &[limit.part(0, &[])]);
    for _ in 0..60 {
        next(&mut store, all - SECOND, &limit, &[]);
    }
    store.call(ANY_WAIT, all - SECOND, &[limit.part(40, &[])]);
    let dropped = next(&mut store, all - SECOND, &limit, &[]);
    assert_eq!(due(&dropped), all);
    store.call(Operation::Reset, all + 400, &[limit.part(0, &[])]);
    for _ in 0..100 {
        assert_eq!(next(&mut store, all + 500, &limit, &[]).wait, Duration::ZERO);
    }
    assert!(next(&mut store, all + 600, &limit, &[&dropped]).wait > Duration::ZERO);
}

/// Bug: a wait from before a first reset came back, if the state had made more writes than one each
/// 8 us: the numbers began anew below its number.
#[test]
fn no_wait_comes_back_after_many_writes_and_a_reset() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("fixed_window 200/ms").without_longest();
    for _ in 0..400 {
        next(&mut store, START, &limit, &[]);
    }
    let dropped = next(&mut store, START, &limit, &[]);
    let all = due(&dropped);
    store.call(Operation::Reset, all, &[limit.part(0, &[])]);
    for _ in 0..200 {
        assert_eq!(next(&mut store, all + 10, &limit, &[]).wait, Duration::ZERO);
    }
    assert!(next(&mut store, all + 20, &limit, &[&dropped]).wait > Duration::ZERO);
}

/// Bug: another limit of a set determined the instant of a loan, so that it was ahead. When the
/// bookings behind the loan were dropped, a bucket was debited for it at once, and kept the permits
/// that overflow until that instant.
#[test]
fn a_loan_ahead_is_debited_at_its_instant() {
    /// When the call is made, in microseconds; the requests that are dropped then, by the order in
    /// which all of them came; and the permits of the requests that follow.
    type Call = (u64, &'static [usize], &'static [[u64; 3]]);
    const BEGIN: u64 = 1_764_562_009_400_469;
    const CALLS: [Call; 15] = [
        (0, &[], &[[0, 3, 0]]),
        (633_586, &[], &[[0, 1, 0]]),
        (2_410_186, &[], &[[0, 3, 0]]),
        (4_266_176, &[], &[[0, 1, 0]]),
        (4_274_895, &[], &[[0, 3, 0], [1, 2, 0]]),
        (5_802_360, &[5], &[[2, 2, 0]]),
        (6_026_059, &[], &[[0, 3, 1]]),
        (6_026_060, &[], &[[0, 1, 1]]),
        (6_685_817, &[6], &[]),
        (7_368_855, &[7], &[]),
        (8_276_873, &[], &[[0, 0, 1], [0, 1, 0]]),
        (8_773_308, &[8], &[]),
        (9_735_030, &[], &[[0, 1, 1]]),
        (10_372_770, &[9], &[[0, 1, 1]]),
        (10_372_770, &[11], &[]),
    ];
    let Some(mut store) = Store::new() else { return };
    for second in ["leaky_bucket 1/s nodelay 4", "token_bucket 1/s burst 5"] {
        let lines =
            ["token_bucket 3/s burst 10", second, "token_bucket 1/777777us burst 1 at_wall_clock 3us"];
        let limit =
            |line: &str| Limit { key: format!("{second} {line}"), ..Limit::new(line).without_longest() };
        let limits = lines.map(limit);
        let parts = limits.each_ref().map(|limit| limit.part(0, &[]));
        let mut replies: Vec<Option<Reply>> = Vec::new();
        let last: Call = (12_389_165, &[], &[[0, 2, 0], [0, 3, 0]]);
        for (micros, dropped, requests) in CALLS.into_iter().chain([last]) {
            if micros == 5_802_360 {
                let pause = Operation::Pause { span: Duration::from_micros(235_533), keep_permits: true };
                store.call(pause, BEGIN + 4_503_294, &parts);
            }
            let dropped: Vec<_> = dropped.iter().map(|i| replies[*i].take().expect("a wait")).collect();
            let dropped: Vec<_> = dropped.iter().map(Reply::given_back).collect();
            let wanted = requests.iter().map(|costs| ReserveRequest {
                longest: Duration::MAX,
                mode: Mode::Normal,
                wants_state: true,
                costs: costs.map(|n| (n, n)).into(),
            });
            let wanted: Vec<_> = wanted.collect();
            replies.extend(store.reserve(BEGIN + micros, &parts, &dropped, &wanted).into_iter().map(Some));
        }
        let granted = replies.iter().flatten().filter(|reply| reply.answer == Answer::Done);
        let grants: Vec<_> = granted.map(|reply| Net { at: due(reply), n: reply.permits[1] }).collect();
        assert_eq!(is_within(&limits[1], &grants), Ok(()), "{second}");
    }
}

/// Bug: a refund of which a part was lent, and which was applied again when the waits behind it were
/// dropped, gave back more than the bucket had room for.
#[test]
fn a_refund_that_is_applied_again_fills_no_bucket_beyond_its_burst() {
    let Some(mut store) = Store::new() else { return };
    for line in ["token_bucket 1/s burst 2", "leaky_bucket 1/s nodelay 1"] {
        let limit = Limit { key: line.into(), ..Limit::new(line).without_longest() };
        for at in [0, 0, 1_600_000] {
            assert_eq!(next(&mut store, START + at, &limit, &[]).wait, Duration::ZERO, "{line}");
        }
        let now = START + 1_900_000;
        let waits: Vec<_> = (0..3).map(|_| next(&mut store, now, &limit, &[])).collect();
        store.call(Operation::Refund { due: -1 }, now, &[limit.part(2, &[])]);
        let granted = [
            next(&mut store, now, &limit, &[&waits[2], &waits[0]]),
            next(&mut store, now, &limit, &[&waits[1]]),
            next(&mut store, now, &limit, &[]),
        ];
        let waits = granted.map(|reply| reply.wait);
        assert_eq!(waits, [Duration::ZERO, Duration::ZERO, Duration::from_secs(1)], "{line}");
    }
}

/// Bug: free permits of this step, and those that could be lent, were not added up, except for a
/// request that did not wait: `acquire` waited for seconds where `try_acquire` passed.
#[test]
fn a_request_that_may_wait_gets_what_one_that_may_not_gets() {
    let Some(mut store) = Store::new() else { return };
    for n in 3..7 {
        let granted = [Duration::ZERO, Duration::MAX].map(|longest| {
            let key = format!("{n} {longest:?}");
            let limit =
                Limit { key, ..Limit::new("token_bucket 1/s burst 10 interval_refill").without_longest() };
            let mut call = |operation, at, n| store.call(operation, START + at, &[limit.part(n, &[])]);
            let (first, second) = (call(ANY_WAIT, 500_000, 3), call(ANY_WAIT, 1_500_000, 8));
            call(ANY_WAIT, 1_500_000, 5);
            call(Operation::Refund { due: first.due }, 1_600_000, 3);
            call(Operation::Refund { due: second.due }, 1_600_000, 3);
            let reply = call(Operation::Reserve { longest, shadow: false }, 1_600_000, n);
            reply.answer == Answer::Done && reply.wait == Duration::ZERO
        });
        assert_eq!(granted, [n <= 5; 2], "{n}");
    }
}
