//! Permits that come back, and pauses that end, while bookings lie ahead.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::script::{Answer, NO_GRANT, Reply};
use crate::script_tests::{ANY_WAIT, Limit, Operation, START, Store, TRY, intervals};
use crate::terms::{BucketMode, BucketNumbers, Kind, Numbers};

const SECOND: u64 = 1_000_000;

fn pause(seconds: u64, keep_permits: bool) -> Operation {
    Operation::Pause { span: Duration::from_secs(seconds), keep_permits }
}

/// The time after the start at which a reply lets its request proceed.
fn due(reply: &Reply) -> u64 {
    u64::try_from(reply.due).expect("an instant").saturating_sub(START)
}

/// Permits of no particular grant that came back while bookings lay ahead: in a pause, and of a
/// log, they came back to the window of the bookings, and the place of too many had no bound.
#[test]
fn a_refund_beside_bookings_leaves_no_window_more_than_its_limit() {
    let Some(mut store) = Store::new() else { return };
    for line in [
        "fixed_window 10/s",
        "fixed_window 10/s from_first_grant",
        "sliding_window 10/s cells 10",
        "sliding_estimate 10/s",
        "sliding_log 10/s",
        "token_bucket 10/s burst 10 interval_refill",
    ] {
        for (paused, back) in [(0, 10), (0, 100), (100_000, 10), (100_000, 100)] {
            let mut limit = Limit::new(line);
            limit.key.push_str(&format!("-beside-{paused}-{back}"));
            let mut call = |operation, after, n| store.call(operation, START + after, &[limit.part(n, &[])]);
            assert_eq!(call(TRY, 0, 10).answer, Answer::Done, "{line}");
            let booked: Vec<u64> = (0..10).map(|_| due(&call(ANY_WAIT, 0, 1))).collect();
            if paused > 0 {
                let span = Duration::from_micros(paused);
                call(Operation::Pause { span, keep_permits: true }, 500, 1);
            }
            call(Operation::Refund { due: NO_GRANT }, 1_000, back);
            let mut granted =
                |after| (0..200).take_while(|_| call(TRY, after, 1).answer == Answer::Done).count();
            let now = granted(2_000 + paused);
            assert!(now <= 10, "{line}: {now} after a refund of {back}");
            let last = *booked.iter().max().expect("ten");
            let counts = booked.iter().filter(|due| **due + SECOND > last).count();
            let then = counts + granted(last);
            assert!(then <= 10, "{line}: {then} in the window of the last booking after a refund of {back}");
        }
    }
}

/// Permits of no particular grant may be those of the oldest grant that counts. They came back to a
/// window that no longer counts that grant, to a booking ahead, and without a bound to a window of
/// which less was granted. Each row: grants and waits with their times, in milliseconds, and the
/// number and the time of the refund; then a request, and when it is due.
#[test]
fn a_refund_gives_back_no_permits_of_later_windows_or_of_bookings() {
    let Some(mut store) = Store::new() else { return };
    type Call = (u64, u64);
    let rows: [(&str, &[Call], Call, Call, u64); 9] = [
        ("sliding_window 20/s cells 4", &[(18, 417), (19, 524)], (9, 881), (5, 1088), 2250),
        ("sliding_window 20/s cells 4", &[(14, 217), (16, 424)], (14, 938), (14, 1609), 2000),
        ("sliding_estimate 20/s", &[(10, 888), (16, 1145)], (10, 1202), (5, 1916), 2063),
        ("sliding_log 20/s", &[(7, 318), (11, 524), (9, 731)], (6, 782), (3, 1038), 1524),
        ("fixed_window 20/s", &[(1, 267), (20, 524)], (20, 931), (2, 938), 2000),
        ("fixed_window 20/s", &[(20, 990), (1, 1267), (20, 1524)], (20, 1931), (2, 1938), 3000),
        ("fixed_window 20/s", &[(11, 100), (20, 524), (20, 600)], (20, 931), (12, 938), 3000),
        ("fixed_window 20/s", &[(11, 100), (20, 524), (20, 600)], (20, 931), (11, 938), 938),
        ("token_bucket 20/s burst 20 interval_refill", &[(1, 267), (20, 524)], (20, 931), (2, 938), 2000),
    ];
    for (i, (line, grants, (back, back_at), (n, at), expected)) in rows.into_iter().enumerate() {
        let mut limit = Limit::new(line);
        limit.key.push_str(&format!("-oldest-{i}"));
        let mut call = |operation, at, n| store.call(operation, START + at * 1_000, &[limit.part(n, &[])]);
        for (n, at) in grants {
            assert_eq!(call(ANY_WAIT, *at, *n).answer, Answer::Done, "{line}");
        }
        call(Operation::Refund { due: NO_GRANT }, back_at, back);
        assert_eq!(due(&call(ANY_WAIT, at, n)).div_ceil(1_000), expected, "row {i}: {line}");
    }
}

/// Limits of each kind that grant five permits at once, and five in a second.
const FIVE_AT_ONCE: [&str; 9] = [
    "token_bucket 5/s burst 5",
    "token_bucket 5/s burst 5 interval_refill",
    "leaky_bucket 5/s nodelay 4",
    "smooth_bursty 5/s max_burst 800ms start_full",
    "fixed_window 5/s",
    "fixed_window 5/s from_first_grant",
    "sliding_window 5/s cells 5",
    "sliding_estimate 5/s",
    "sliding_log 5/s",
];

/// Permits from before a reset came back after it: a limit of 5 granted 10 at one time.
#[test]
fn nothing_comes_back_from_before_a_reset() {
    let Some(mut store) = Store::new() else { return };
    for line in FIVE_AT_ONCE {
        // The times between the grant, the reset, and what follows it.
        for (i, [until_reset, behind_it]) in [[0, 0], [0, 1], [1, 0], [1, 1]].into_iter().enumerate() {
            let mut limit = Limit::new(line);
            limit.key.push_str(&format!("-reset-{i}"));
            let (reset, now) = (START + until_reset, START + until_reset + behind_it);
            let mut call = |operation, at, n| store.call(operation, at, &[limit.part(n, &[])]);
            assert_eq!(call(TRY, START, 5).answer, Answer::Done, "{line}");
            call(Operation::Reset, reset, 1);
            assert_eq!(call(TRY, now, 5).answer, Answer::Done, "{line}");
            for (granted_at, comes_back) in [(START, 0), (now, behind_it)] {
                let due = i64::try_from(granted_at).expect("an instant");
                call(Operation::Refund { due }, now, 1);
                let left = (0..9).take_while(|_| call(TRY, now, 1).answer == Answer::Done).count();
                assert_eq!(left as u64, comes_back, "{line}, {until_reset}, {behind_it}: of {granted_at}");
            }
        }
        // Waits from before the reset that are due after it; the second one becomes a grant.
        let mut limit = Limit::new(line);
        limit.key.push_str("-waits");
        let mut call =
            |operation, at, n, booking: &[u8]| store.call(operation, at, &[limit.part(n, booking)]);
        assert_eq!(call(TRY, START, 5, &[]).answer, Answer::Done, "{line}");
        let [first, second] = [(); 2].map(|()| call(ANY_WAIT, START, 4, &[]));
        for after in 1..=2 {
            call(Operation::Reset, START + after, 1, &[]);
        }
        let last = u64::try_from(second.due).expect("an instant");
        for at in [START + 3, last] {
            while call(TRY, at, 1, &[]).answer == Answer::Done {}
            let back = if at < last { &first } else { &second };
            call(Operation::Back { due: back.due }, at, 4, &back.before[0]);
            call(Operation::Refund { due: back.due }, at, 4, &[]);
            assert_eq!(call(TRY, at, 1, &[]).answer, Answer::Refused, "{line}: at {}", at - START);
        }
        // A wait from after the reset comes back, although earlier ones were due later.
        let mut limit = Limit::new(line);
        limit.key.push_str("-later");
        let mut call =
            |operation, at, n, booking: &[u8]| store.call(operation, at, &[limit.part(n, booking)]);
        assert_eq!(call(TRY, START, 5, &[]).answer, Answer::Done, "{line}");
        (0..3).for_each(|_| assert_eq!(call(ANY_WAIT, START, 4, &[]).answer, Answer::Done, "{line}"));
        call(Operation::Reset, START + 1, 1, &[]);
        assert_eq!(call(TRY, START + 2, 5, &[]).answer, Answer::Done, "{line}");
        let wait = call(ANY_WAIT, START + 2, 4, &[]);
        call(Operation::Back { due: wait.due }, START + 3, 4, &wait.before[0]);
        let again = call(ANY_WAIT, START + 3, 4, &[]);
        // The bookings of a log have no numbers.
        assert_eq!(again.due == wait.due, limit.terms.kind() != Kind::Log, "{line}");
    }
}

/// Bug: a write after a reset, the end of its key, or a pause made the limit forget the reset. Then
/// permits from before the reset came back, and a window granted twice its limit.
#[test]
fn a_reset_is_remembered_until_nothing_can_come_back() {
    let Some(mut store) = Store::new() else { return };
    let pause = |keep_permits| Operation::Pause { span: Duration::from_millis(1), keep_permits };
    for line in FIVE_AT_ONCE {
        for (i, meanwhile) in [Operation::Status, TRY, pause(true), pause(false)].into_iter().enumerate() {
            let mut limit = Limit::new(line);
            limit.key.push_str(&format!("-remembered-{i}"));
            // Under a time that is set, keys are kept for one day more.
            let mut ends = u64::MAX;
            let mut call = |operation, at, n| {
                if at >= ends {
                    redis::cmd("DEL").arg(&limit.key).exec(&mut store.connection).expect("no error");
                }
                let reply = store.call(operation, at, &[limit.part(n, &[])]);
                let ttl: i64 = store.ttl(&limit);
                ends = at + u64::try_from(ttl - 86_400_000).expect("a key") * 1000;
                reply
            };
            assert_eq!(call(TRY, START, 5).answer, Answer::Done, "{line}");
            let waits = [(); 3].map(|()| call(ANY_WAIT, START, 5).due);
            call(Operation::Reset, START + 1_000, 1);
            call(meanwhile, START + 10_000, 1);
            for due in waits {
                let now = u64::try_from(due).expect("an instant") + 100_000;
                while call(TRY, now, 1).answer == Answer::Done {}
                call(Operation::Refund { due }, now, 5);
                assert_eq!(call(TRY, now, 1).answer, Answer::Refused, "{line}, {meanwhile:?}, of {due}");
            }
        }
    }
}

/// What a debit in a pause charged counted as a booking at the end of the pause. After a reset, no
/// grant came back until that time, and the key was kept as long.
#[test]
fn a_reset_forgets_a_debit_of_a_pause() {
    let Some(mut store) = Store::new() else { return };
    for line in FIVE_AT_ONCE {
        for (i, (waits, pauses)) in [(0, 1), (0, 2), (1, 1), (2, 2)].into_iter().enumerate() {
            let mut limit = Limit::new(line);
            limit.key.push_str(&format!("-debit-{i}"));
            let mut call = |operation, at, n| store.call(operation, at, &[limit.part(n, &[])]);
            assert_eq!(call(TRY, START, 5).answer, Answer::Done, "{line}");
            let mut last = START;
            for _ in 0..waits {
                let due = call(ANY_WAIT, START, 1).due;
                last = u64::try_from(due).expect("an instant");
            }
            for pause in 1..=pauses {
                let span = Duration::from_secs(3600 * pause);
                call(Operation::Pause { span, keep_permits: false }, START + pause, 1);
                call(Operation::Debit, START + 2 * pause, 3);
            }
            call(Operation::Reset, START + 9, 1);
            let at = last.max(START + 9) + 1;
            assert_eq!(call(TRY, at, 5).answer, Answer::Done, "{line}");
            call(Operation::Refund { due: i64::try_from(at).expect("an instant") }, at, 1);
            assert_eq!(call(TRY, at, 1).answer, Answer::Done, "{line}: {waits} waits, {pauses} pauses");
            // Keys of tests live for a day longer.
            let ttl: u64 = store.ttl(&limit);
            assert!(ttl <= 86_400_000 + 60_000, "{line}: kept for {ttl} ms");
        }
    }
}

/// The permits of a dropped wait that a debit takes when they come back were promised to a request
/// that does not wait: it was told a window too little.
#[test]
fn a_request_is_told_that_a_debt_takes_the_permits_of_a_dropped_wait() {
    let Some(mut store) = Store::new() else { return };
    for line in [
        "fixed_window 3/s",
        "fixed_window 3/s from_first_grant",
        "sliding_window 3/s cells 2",
        "sliding_estimate 3/s",
        "sliding_log 3/s",
        "token_bucket 3/s burst 3 interval_refill",
        "token_bucket 3/s burst 3",
        "leaky_bucket 3/s nodelay 2",
    ] {
        for debit in 1..=5 {
            for n in 1..=3 {
                let mut limit = Limit::new(line);
                limit.key.push_str(&format!("-owes-{debit}-{n}"));
                let mut call =
                    |operation, now, n, booking: &[u8]| store.call(operation, now, &[limit.part(n, booking)]);
                assert_eq!(call(TRY, START, 3, &[]).answer, Answer::Done, "{line}");
                let wait = call(ANY_WAIT, START, 2, &[]);
                call(Operation::Debit, START, debit, &[]);
                call(Operation::Back { due: wait.due }, START, 2, &wait.before[0]);
                let told = u64::try_from(call(TRY, START, n, &[]).wait.as_micros()).expect("a wait");
                let then = call(TRY, START + told, n, &[]);
                assert_eq!(then.answer, Answer::Done, "{line}: debit {debit}, {n} told {told}: {then:?}");
            }
        }
    }
}

/// In a pause, permits came back to a bucket besides a booking from before the pause, which was
/// granted as well.
#[test]
fn a_refund_in_a_pause_gives_back_no_permits_of_earlier_bookings() {
    let Some(mut store) = Store::new() else { return };
    for line in ["token_bucket 10/s burst 5", "leaky_bucket 10/s capacity 20 nodelay 4"] {
        for resumed in [false, true] {
            let mut limit = Limit::new(line);
            limit.key.push_str(&format!("-paused-{resumed}"));
            let mut call =
                |operation, at: u64, n| store.call(operation, START + at * 1_000, &[limit.part(n, &[])]);
            assert_eq!(call(TRY, 10, 5).answer, Answer::Done, "{line}");
            assert_eq!(due(&call(ANY_WAIT, 20, 5)).div_ceil(1_000), 510, "{line}");
            let span = Duration::from_millis(if resumed { 1_000 } else { 100 });
            call(Operation::Pause { span, keep_permits: true }, 400, 1);
            call(Operation::Debit, 405, 1);
            call(Operation::Refund { due: NO_GRANT }, 410, 5);
            if resumed {
                call(Operation::Resume, 420, 1);
            }
            let late = call(ANY_WAIT, 612, 4);
            assert!(due(&late) >= 900_000, "{line}, resumed {resumed}: {late:?}");
        }
    }
}

/// A pause that ended sooner took the state back behind the bookings that were made.
#[test]
fn a_resumed_limit_grants_nothing_before_its_bookings() {
    let Some(mut store) = Store::new() else { return };
    for (line, each) in [
        ("token_bucket 1/s burst 1", SECOND),
        ("leaky_bucket 1/s", SECOND),
        ("smooth_bursty 1/s max_burst 0s", SECOND),
        ("token_bucket 1/s burst 1 interval_refill", SECOND),
    ] {
        for keep_permits in [false, true] {
            let mut limit = Limit::new(line);
            limit.key.push_str(if keep_permits { "-kept" } else { "-empty" });
            let mut call = |operation, after: u64| {
                let reply = store.call(operation, START + after, &[limit.part(1, &[])]);
                due(&reply)
            };
            call(TRY, 0);
            assert_eq!([call(ANY_WAIT, 0), call(ANY_WAIT, 0)], [each, 2 * each], "{line}");
            call(pause(10, keep_permits), 0);
            call(Operation::Resume, 0);
            assert_eq!(call(ANY_WAIT, 0), 3 * each, "{line}");
            // Nothing accrues during half a second of a pause that is extended.
            call(pause(5, keep_permits), 0);
            call(pause(60, keep_permits), each / 4);
            call(Operation::Resume, each / 2);
            let behind = if line.ends_with("refill") { 4 * each } else { 4 * each + each / 2 };
            assert_eq!(call(ANY_WAIT, each / 2), behind, "{line}");
            // Nothing is booked in a pause.
            call(pause(10, keep_permits), each / 2);
            let predicted = call(ANY_WAIT, each / 2);
            assert!(predicted >= 10 * SECOND, "{line}: {predicted}");
            call(pause(20, keep_permits), each / 2);
            call(Operation::Resume, each / 2);
            assert_eq!(call(ANY_WAIT, each / 2), behind + each, "{line}");
        }
    }
}

/// A refund kept the bookings before it from being undone. A pool of workers that settle their
/// reservations, and a dropped wait, left a day's quota used up for two days.
#[test]
fn a_wait_that_is_dropped_after_a_refund_comes_back() {
    let Some(mut store) = Store::new() else { return };
    for line in [
        "token_bucket 10/s burst 250",
        "leaky_bucket 10/s nodelay 249",
        "fixed_window 250/4s",
        "sliding_window 250/4s cells 4",
        "sliding_estimate 250/4s",
        "sliding_log 250/4s",
    ] {
        for (unused, refunds) in [(1, 1), (140, 1), (2, 40)] {
            let mut limit = Limit::new(line);
            limit.key.push_str(&format!("-{unused}x{refunds}"));
            let due = i64::try_from(START).expect("an instant");
            let mut call =
                |operation, n, before: &[u8]| store.call(operation, START, &[limit.part(n, before)]);
            while call(Operation::Status, 0, &[]).limits[0].available > 50 {
                call(TRY, 1, &[]);
            }
            let waits: Vec<_> = (0..3).map(|_| call(ANY_WAIT, 100, &[])).collect();
            for _ in 0..refunds {
                call(Operation::Refund { due }, unused, &[]);
            }
            for (i, wait) in waits.iter().enumerate() {
                assert!(wait.due > due, "{line}: wait {i}");
                let back = Operation::Back { due: wait.due };
                call(back, 100, &wait.before[0]);
                // More of them, between the waits.
                if i == 0 {
                    call(Operation::Refund { due }, 1, &[]);
                }
            }
            let left = call(Operation::Status, 0, &[]).limits[0].available;
            let most = 50 + unused * refunds + 1;
            assert!(left == most, "{line}: {left} of {most} after {refunds} refunds of {unused}");
        }
    }
}

/// The same predicted wait was returned again and again, because the limit began anew each time.
#[test]
fn a_predicted_wait_is_over_at_the_predicted_time() {
    let Some(mut store) = Store::new() else { return };
    for (line, n) in [
        ("leaky_bucket 100/s", 7),
        ("leaky_bucket 1/min nodelay 3", 20),
        ("token_bucket 10/s burst 10 start_with 0", 5),
        ("token_bucket 1/h burst 10 start_with 0 interval_refill", 1),
    ] {
        let limit = Limit::new(line);
        let first = store.call(TRY, START, &[limit.part(n, &[])]);
        let told = START + u64::try_from(first.wait.as_micros()).expect("a wait");
        assert_eq!(store.call(TRY, told, &[limit.part(n, &[])]).answer, Answer::Done, "{line}: {first:?}");
        let again = store.call(TRY, told + 1, &[limit.part(n, &[])]);
        assert_eq!(again.answer, Answer::Refused, "{line}: {again:?}");
        let told = told + 1 + u64::try_from(again.wait.as_micros()).expect("a wait");
        let last = store.call(TRY, told, &[limit.part(n, &[])]);
        assert_eq!(last.answer, Answer::Done, "{line}: {again:?}");
    }
}

/// A booking ends at its time. A request that may not wait was given that time, and found the
/// booking gone. It was given the next one, once for each booking.
#[test]
fn a_request_that_may_not_wait_gets_no_time_of_a_booking() {
    let Some(mut store) = Store::new() else { return };
    for line in [
        "token_bucket 1/s burst 1",
        "token_bucket 1/s burst 1 interval_refill",
        "leaky_bucket 1/s",
        "smooth_bursty 1/s max_burst 0s",
        "fixed_window 1/s",
        "fixed_window 1/s from_first_grant",
        "sliding_window 1/s cells 4",
        "sliding_estimate 1/s",
        "sliding_log 1/s",
    ] {
        let limit = Limit::new(line).without_longest();
        store.call(TRY, START, &[limit.part(1, &[])]);
        let waits: Vec<_> = (0..20).map(|_| store.call(ANY_WAIT, START, &[limit.part(1, &[])])).collect();
        for wait in &waits[..19] {
            store.call(Operation::Back { due: wait.due }, START, &[limit.part(1, &wait.before[0])]);
        }
        let told = store.call(TRY, START + SECOND / 4, &[limit.part(1, &[])]);
        assert_eq!(told.answer, Answer::Refused, "{line}");
        let at = START + SECOND / 4 + u64::try_from(told.wait.as_micros()).expect("a wait");
        let again = store.call(TRY, at, &[limit.part(1, &[])]);
        assert_eq!(again.answer, Answer::Done, "{line}: told {:?}, and then {:?}", told.wait, again.wait);
    }
}

/// A request that may not wait was told the time of the last booking, though the places of dropped
/// waits before it end sooner, and their permits are lent then.
#[test]
fn a_request_that_may_not_wait_is_told_when_dropped_waits_lend_it_permits() {
    let Some(mut store) = Store::new() else { return };
    let lines = [
        ("token_bucket 100/s burst 5", 1),
        ("token_bucket 100/s burst 5", 3),
        ("token_bucket 100/s burst 50", 20),
        ("leaky_bucket 100/s nodelay 9", 4),
        ("smooth_bursty 100/s max_burst 100ms", 3),
        ("token_bucket 10/100ms burst 10 interval_refill", 3),
        ("token_bucket 10/100ms burst 20 interval_refill", 3),
        ("fixed_window 10/100ms", 3),
    ];
    for (line, n) in lines {
        let mut limit = Limit::new(line);
        limit.key.push_str(&format!("-{n}"));
        while store.call(TRY, START, &[limit.part(1, &[])]).answer == Answer::Done {}
        let waits: Vec<_> = (0..100).map(|_| store.call(ANY_WAIT, START, &[limit.part(1, &[])])).collect();
        for wait in &waits[..99] {
            store.call(Operation::Back { due: wait.due }, START, &[limit.part(1, &wait.before[0])]);
        }
        let (mut now, mut granted) = (START + SECOND / 20, 0);
        while now < START + SECOND * 3 / 4 {
            let reply = store.call(TRY, now, &[limit.part(n, &[])]);
            if reply.answer == Answer::Done {
                granted += n;
                continue;
            }
            now += u64::try_from(reply.wait.as_micros()).expect("a wait");
            let again = store.call(TRY, now, &[limit.part(n, &[])]);
            assert_eq!(again.answer, Answer::Done, "{line}: told {:?}", reply.wait);
            granted += n;
        }
        assert!(granted >= 60, "{line}: {granted}");
    }
}

/// An earlier window was assumed to begin a whole number of windows before the last one. Another
/// limit may leave a gap between two windows, so permits of the earlier one were granted in the
/// last one.
#[test]
fn a_window_from_its_first_grant_lends_nothing_of_a_window_before_a_gap() {
    let Some(mut store) = Store::new() else { return };
    for is_refund in [false, true] {
        let line = "fixed_window 4/10s from_first_grant";
        let window = Limit { key: format!("window-{is_refund}"), ..Limit::new(line) };
        let clock = Limit { key: format!("clock-{is_refund}"), ..Limit::new("token_bucket 1/s burst 1") };
        let mut call = |operation, seconds: u64, n: u64, b: u64, before: &[Vec<u8>]| {
            let of = |i: usize| before.get(i).map_or(&[][..], |before| before);
            store.call(
                operation,
                START + seconds * SECOND / 2,
                &[window.part(n, of(0)), clock.part(b, of(1))],
            )
        };
        call(TRY, 0, 0, 1, &[]);
        let mut booked = Vec::new();
        for (others, n) in [(4, 1), (6, 3), (5, 4)] {
            (0..others).for_each(|_| drop(call(ANY_WAIT, 0, 0, 1, &[])));
            booked.push(call(ANY_WAIT, 0, n, 1, &[]));
        }
        assert_eq!(booked.iter().map(|reply| due(reply) / SECOND).collect::<Vec<_>>(), [5, 12, 18]);
        let three = &booked[1];
        if is_refund {
            call(Operation::Refund { due: three.due }, 31, 3, 0, &[]);
        } else {
            call(Operation::Back { due: three.due }, 2, 3, 1, &three.before);
        }
        // The window from here has the four permits of the last booking.
        assert_eq!(call(TRY, 32, 3, 0, &[]).answer, Answer::Refused, "{is_refund}");
    }
}

/// A refund was taken by the window that bookings had opened ahead.
#[test]
fn a_window_takes_back_its_own_permits_alone() {
    let Some(mut store) = Store::new() else { return };
    for line in [
        "fixed_window 10/s",
        "sliding_window 10/s cells 1",
        "sliding_window 10/s cells 4",
        "sliding_log 10/s",
    ] {
        let limit = Limit::new(line);
        let mut call = |operation, after: u64, n| {
            let reply = store.call(operation, START + after, &[limit.part(n, &[])]);
            (reply.answer, due(&reply))
        };
        let refund = |due: u64| Operation::Refund { due: i64::try_from(START + due).expect("an instant") };
        call(TRY, 0, 10);
        let (_, ahead) = call(ANY_WAIT, 0, 10);
        assert!(ahead >= SECOND, "{line}");
        call(refund(0), SECOND / 2, 10);
        assert_eq!(call(TRY, ahead, 1).0, Answer::Refused, "{line}");
        // While they count, they are given back.
        call(refund(ahead), ahead + 1, 4);
        assert_eq!(call(TRY, ahead + 1, 5).0, Answer::Refused, "{line}");
        assert_eq!(call(TRY, ahead + 1, 4).0, Answer::Done, "{line}");
        // Others took these meanwhile.
        assert_eq!(call(TRY, 5 * SECOND, 10).0, Answer::Done, "{line}");
        call(refund(ahead), 5 * SECOND, 6);
        assert_eq!(call(TRY, 5 * SECOND, 1).0, Answer::Refused, "{line}");
    }
}

/// The previous window weighs less than the open one, from which its permits were taken.
#[test]
fn an_estimate_takes_back_from_the_window_of_the_grant() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("sliding_estimate 10/s");
    let mut call = |operation, after: u64, n| {
        store.call(operation, START + after, &[limit.part(n, &[])]).limits[0].available
    };
    let refund = Operation::Refund { due: i64::try_from(START).expect("an instant") };
    call(TRY, 0, 10);
    assert_eq!(call(TRY, SECOND * 3 / 2, 5), 0);
    assert_eq!(call(refund, SECOND * 3 / 2, 4), 2);
    assert_eq!(call(refund, SECOND * 2, 4), 5);
}

/// A refund was added to the level at the last booking, and met the earlier refunds at one time.
#[test]
fn a_bucket_takes_back_what_its_bookings_leave_room_for() {
    let Some(mut store) = Store::new() else { return };
    // The burst, the size of a request that gets all of it, the unused permits, and how many of
    // them come back.
    for (line, n, unused, given) in [
        ("token_bucket 1/s burst 1", 1, 1, 0),
        // Bookings of 1 leave room for 9.
        ("token_bucket 1/s burst 10", 10, 10, 9),
        ("token_bucket 1/s burst 10", 10, 4, 4),
        ("leaky_bucket 1/s", 1, 1, 0),
    ] {
        let mut limit = Limit::new(line);
        limit.key.push_str(&format!("-{unused}"));
        let mut call = |operation, after: u64, n| {
            let reply = store.call(operation, START + after, &[limit.part(n, &[])]);
            due(&reply)
        };
        let refund = Operation::Refund { due: i64::try_from(START).expect("an instant") };
        call(TRY, 0, n);
        assert_eq!([call(ANY_WAIT, 0, 1), call(ANY_WAIT, 0, 1)], [SECOND, 2 * SECOND], "{line}");
        call(refund, 0, unused);
        for k in 1..=12_u64 {
            // Now, while there are some, and then behind the bookings.
            let seconds = if k <= given { 0 } else { 2 + k - given };
            assert_eq!(call(ANY_WAIT, 0, 1), seconds * SECOND, "{line}, {unused} unused");
        }
    }
}

/// Permits that a later grant found at the cap would not have accrued without the refunded grant.
#[test]
fn a_bucket_takes_back_what_a_later_grant_left_room_for() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("token_bucket 10/s burst 10");
    let mut call = |operation, after: u64, n| {
        store.call(operation, START + after, &[limit.part(n, &[])]).limits[0].available
    };
    assert_eq!([call(TRY, 0, 10), call(TRY, SECOND * 7 / 10, 7)], [0, 0]);
    let due = i64::try_from(START).expect("an instant");
    assert_eq!(call(Operation::Refund { due }, SECOND * 7 / 10, 10), 3);
}

/// A burst that a hundred requests use up, each of which found fewer permits than the previous one.
#[test]
fn a_bucket_that_empties_takes_back_all_but_an_eighth() {
    let Some(mut store) = Store::new() else { return };
    for back in [0, 20, 50, 98] {
        let mut limit = Limit::new("token_bucket 1/min burst 1000");
        limit.key.push_str(&format!("-{back}"));
        let calls: Vec<_> = (0..100).map(|i| (TRY, START + i, 10)).collect();
        store.run(&limit, &calls);
        let refund = Operation::Refund { due: i64::try_from(START + back).expect("an instant") };
        // The permits that were available at the next request.
        let exact = 10 * (back + 1);
        let taken = store.call(refund, START + 100, &[limit.part(1000, &[])]).limits[0].available;
        assert!(taken <= exact && exact - taken <= 125, "{back}: {taken} of {exact}");
    }
}

/// The permits of a grant, less those that it gave back.
pub(super) struct Net {
    pub(super) at: u64,
    pub(super) n: u64,
}

/// Policies for random requests, whose bounds [`is_within`] knows.
pub(super) const BOUNDED: [&str; 13] = [
    "token_bucket 5/s burst 10",
    "token_bucket 10/s burst 10",
    "token_bucket 5/s burst 1",
    "token_bucket 20/s burst 60 interval_refill",
    "token_bucket 10/s burst 10 interval_refill",
    "token_bucket 10/s burst 40",
    "smooth_bursty 10/s max_burst 4s",
    "leaky_bucket 10/s nodelay 3",
    "smooth_bursty 10/s",
    "fixed_window 10/s",
    "sliding_window 10/s cells 10",
    "sliding_estimate 10/s",
    "sliding_log 10/s",
];

/// Returns whether the net grants of a policy are within its bound, by checking every window.
pub(super) fn is_within(limit: &Limit, grants: &[Net]) -> Result<(), String> {
    let sum = |from: u64, till: u64| -> u64 {
        grants.iter().filter(|net| (from..till).contains(&net.at)).map(|net| net.n).sum()
    };
    let whole = |number: i64| number.unsigned_abs();
    for last in grants {
        let (most, got) = match limit.terms.numbers {
            Numbers::Fixed { limit, length, .. } => {
                let began = last.at - last.at % whole(length);
                (whole(limit), sum(began, began + whole(length)))
            }
            Numbers::Cells { limit, length, cells, .. } => {
                let end = last.at - last.at % whole(length) + whole(length);
                (whole(limit), sum(end - whole(length * cells), end))
            }
            Numbers::Log { limit, length, .. } => {
                (whole(limit), sum(last.at + 1 - whole(length), last.at + 1))
            }
            Numbers::Estimate { limit, length, .. } => {
                let [limit, length] = [limit, length].map(whole);
                let began = last.at - last.at % length;
                let before = sum(began - length, began) * (began + length - last.at);
                (limit * length, before + sum(began, last.at + 1) * length)
            }
            Numbers::Bucket(BucketNumbers { refill, price, cap, mode, step, offset, .. }) => {
                // Refills of a bucket in steps, or microseconds.
                let refills = |at: u64| if step > 0 { (at - whole(offset)) / whole(step) } else { at };
                // Over each duration that ends here, units accrue, and a price is paid.
                for first in grants.iter().filter(|first| first.at <= last.at) {
                    let units = sum(first.at, last.at + 1) * whole(price);
                    let most = match mode {
                        BucketMode::NextPays => whole(cap) + limit.terms.limit * whole(price),
                        BucketMode::Refuses | BucketMode::Stretches => whole(cap),
                    };
                    if units > most + (refills(last.at) - refills(first.at)) * whole(refill) {
                        return Err(format!("{units} units from {} to {}", first.at, last.at));
                    }
                }
                continue;
            }
        };
        if got > most {
            return Err(format!("{got} of {most} at {}", last.at));
        }
    }
    Ok(())
}

/// The number of random programs.
fn seeds() -> u64 {
    if std::env::var_os("TIDEGATE_REDIS_CALLS").is_some() { 200 } else { 6 }
}

/// Random requests, some of which wait, are settled, or leave, under pauses: the grants that are
/// not given back are within the bound of the policy.
#[test]
fn what_comes_back_is_never_granted_twice() {
    let Some(mut store) = Store::new() else { return };
    for line in BOUNDED {
        for seed in 0..seeds() {
            let mut limit = Limit::new(line);
            limit.key.push_str(&format!("-{seed}"));
            let mut random = SmallRng::seed_from_u64(seed);
            let (interval, most) = (intervals(&limit, 1.0), limit.terms.limit.clamp(1, 10));
            let (most, pauses) = (if line.starts_with("leaky") { 4 } else { most }, seed % 2 == 1);
            let load = random.random_range(1..=4);
            let (mut now, mut grants, mut open) = (START, Vec::new(), Vec::new());
            for _ in 0..200 {
                now += random.random_range(0..=load * interval);
                let due = |reply: &Reply| u64::try_from(reply.due).expect("an instant");
                if random.random_bool(0.3) && !open.is_empty() {
                    let (reply, n) = open.swap_remove(random.random_range(0..open.len()));
                    // Some messages come when the booked time has passed.
                    if due(&reply) > now || random.random_bool(0.3) {
                        let back = Operation::Back { due: reply.due };
                        let before = reply.before.first().map_or(&[][..], Vec::as_slice);
                        store.call(back, now, &[limit.part(n, before)]);
                    } else {
                        let unused = random.random_range(0..=n);
                        let refund = Operation::Refund { due: reply.due };
                        store.call(refund, now, &[limit.part(unused, &[])]);
                        grants.push(Net { at: due(&reply), n: n - unused });
                    }
                    continue;
                }
                if pauses && random.random_bool(0.1) {
                    let span = Duration::from_micros(random.random_range(1..=8) * interval);
                    let keep_permits = random.random_bool(0.5);
                    store.call(Operation::Pause { span, keep_permits }, now, &[limit.part(0, &[])]);
                }
                if pauses && random.random_bool(0.1) {
                    store.call(Operation::Resume, now, &[limit.part(0, &[])]);
                }
                let n = random.random_range(1..=most);
                let longest = Duration::from_micros(random.random_range(0..20) * interval);
                let wanted = Operation::Reserve { longest, shadow: false };
                let reply = store.call(wanted, now, &[limit.part(n, &[])]);
                if reply.answer == Answer::Done {
                    open.push((reply, n));
                }
            }
            grants.extend(
                open.iter()
                    .map(|(reply, n)| Net { at: u64::try_from(reply.due).expect("an instant"), n: *n }),
            );
            if let Err(found) = is_within(&limit, &grants) {
                panic!("{line}, {seed}: {found}");
            }
        }
    }
}

/// Permits that are refunded while bookings lie ahead are lent at once, and only once, even if
/// these bookings are undone.
#[test]
fn a_loan_outlives_the_bookings_behind_it() {
    let Some(mut store) = Store::new() else { return };
    for line in ["token_bucket 5/s burst 10", "fixed_window 10/2s"] {
        // Whether a booking comes between the refund and the loan, and which booking leaves first.
        for (between, first) in [(false, 0), (true, 0), (true, 1)] {
            let mut limit = Limit::new(line);
            limit.key.push_str(&format!("-{between}-{first}"));
            let mut call = |operation, after: u64, n, before: &[u8]| {
                store.call(operation, START + after, &[limit.part(n, before)])
            };
            let used = call(TRY, 0, 10, &[]);
            let mut waits = vec![call(ANY_WAIT, 0, 5, &[])];
            call(Operation::Refund { due: used.due }, SECOND / 10, 4, &[]);
            if between {
                waits.push(call(ANY_WAIT, SECOND / 10, 5, &[]));
            }
            // A request for more than is available, one for the available permits, and one for a
            // permit more.
            assert_eq!(call(TRY, SECOND / 10, 5, &[]).answer, Answer::Refused, "{line}");
            let lent = call(TRY, SECOND / 10, 4, &[]);
            assert_eq!((lent.answer, due(&lent)), (Answer::Done, SECOND / 10), "{line}");
            assert_eq!(call(TRY, SECOND / 10, 1, &[]).answer, Answer::Refused, "{line}");
            waits.rotate_left(first);
            for wait in &waits {
                call(Operation::Back { due: wait.due }, SECOND / 5, 5, &wait.before[0]);
            }
            let left = call(Operation::Status, SECOND / 5, 0, &[]).limits[0].available;
            // In 0.2 s a permit accrues.
            let most = u64::from(line.starts_with("token"));
            assert_eq!(left, most, "{line}, {between}, {first}");
        }
    }
}

/// A booking that was given back after its time was refunded, and then undone with the one behind
/// it.
#[test]
fn a_place_that_has_passed_comes_back_once() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("token_bucket 5/s burst 10");
    let mut call = |operation, after: u64, n, before: &[u8]| {
        store.call(operation, START + after, &[limit.part(n, before)])
    };
    call(TRY, 0, 10, &[]);
    let waits: Vec<_> = (0..2).map(|_| call(ANY_WAIT, 0, 3, &[])).collect();
    for (wait, after) in waits.iter().zip([SECOND / 2, SECOND * 7 / 10]) {
        call(Operation::Back { due: wait.due }, after, 3, &wait.before[0]);
    }
    assert_eq!(call(Operation::Status, SECOND * 7 / 10, 0, &[]).limits[0].available, 3);
}

/// Of three bookings the first was given back, and lent when its time had passed. The loan was
/// forgotten when the second one had passed, and all were undone when the third one was given back.
#[test]
fn a_loan_outlives_bookings_that_have_passed() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("token_bucket 100/s burst 100");
    let mut call = |operation, hundredths: u64, n, before: &[u8]| {
        store.call(operation, START + hundredths * SECOND / 100, &[limit.part(n, before)])
    };
    call(TRY, 0, 100, &[]);
    let [first, second] = [22, 13].map(|n| call(ANY_WAIT, 0, n, &[]));
    assert_eq!([due(&first), due(&second)], [SECOND * 22 / 100, SECOND * 35 / 100]);
    call(Operation::Back { due: first.due }, 17, 22, &first.before[0]);
    assert_eq!(call(TRY, 25, 19, &[]).answer, Answer::Done);
    let third = call(ANY_WAIT, 26, 28, &[]);
    call(Operation::Back { due: second.due }, 34, 13, &second.before[0]);
    call(Operation::Back { due: third.due }, 45, 28, &third.before[0]);
    assert_eq!(call(Operation::Status, 45, 0, &[]).limits[0].available, 45 - 19);
}

/// A loan waited for another limit. Bookings before its time were assumed to find fewer permits,
/// too, and a refund gave back permits for which these bookings had no room.
#[test]
fn a_loan_to_come_takes_nothing_from_bookings_before_it() {
    let Some(mut store) = Store::new() else { return };
    let limits = ["lent", "other"].map(|key| {
        let limit = Limit::new("token_bucket 100/s burst 100");
        Limit { key: key.to_owned(), ..limit }
    });
    let mut call = |operation, hundredths: u64, costs: [u64; 2]| {
        let parts = [limits[0].part(costs[0], &[]), limits[1].part(costs[1], &[])];
        store.call(operation, START + hundredths * SECOND / 100, &parts)
    };
    let used = call(TRY, 0, [100, 100]).due;
    let refund = Operation::Refund { due: used };
    let waits = [call(ANY_WAIT, 0, [60, 0]), call(ANY_WAIT, 0, [10, 0])];
    assert_eq!(waits.map(|wait| due(&wait)), [SECOND * 6 / 10, SECOND * 7 / 10]);
    call(refund, 1, [30, 0]);
    assert_eq!(due(&call(ANY_WAIT, 1, [30, 65])), SECOND * 65 / 100);
    // At 0.6 s the bucket has 90 of 100 permits.
    call(refund, 2, [50, 0]);
    assert_eq!(call(TRY, 2, [11, 0]).answer, Answer::Refused);
    assert_eq!(call(TRY, 2, [10, 0]).answer, Answer::Done);
}

/// A state keeps some refunds and loans. No booking from before others of them is undone.
#[test]
fn many_loans_outlive_the_bookings_behind_them() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("token_bucket 100/s burst 100");
    let mut call = |operation, hundredths: u64, n, before: &[u8]| {
        store.call(operation, START + hundredths * SECOND / 100, &[limit.part(n, before)])
    };
    let used = call(TRY, 0, 100, &[]);
    let stays = call(ANY_WAIT, 0, 30, &[]);
    assert_eq!(due(&stays), SECOND * 3 / 10);
    call(Operation::Refund { due: used.due }, 1, 40, &[]);
    // Each of them is larger than the refund.
    let mut waits = Vec::new();
    for _ in 0..40 {
        waits.push(call(ANY_WAIT, 1, 50, &[]));
        let lent = call(TRY, 1, 1, &[]);
        assert_eq!((lent.answer, due(&lent)), (Answer::Done, SECOND / 100));
    }
    for wait in &waits {
        call(Operation::Back { due: wait.due }, 2, 50, &wait.before[0]);
    }
    // The others proceed, so no permit of the refund is left.
    let left = call(Operation::Status, 35, 0, &[]).limits[0].available;
    assert!(left <= 35 - 30, "{left}");
}

/// Permits that come back to one limit serve requests that wait for it, if their other limit has
/// room. Such requests waited behind the bookings ahead of the other limit, as if it was short,
/// too.
#[test]
fn what_one_limit_gives_back_serves_requests_of_several() {
    let Some(mut store) = Store::new() else { return };
    let short = [
        "token_bucket 500/s burst 5000",
        "fixed_window 5000/10s",
        "sliding_window 5000/10s cells 10",
        "sliding_estimate 5000/10s",
    ];
    let roomy = [
        "token_bucket 6/min burst 100",
        "leaky_bucket 6/min nodelay 100",
        "smooth_bursty 6/min max_burst 1000s start_full",
        "fixed_window 100/10s",
        "fixed_window 100/10s from_first_grant",
        "sliding_window 100/10s cells 10",
        "sliding_estimate 100/10s",
        "sliding_log 100/20s",
    ];
    for (short, roomy) in short.into_iter().flat_map(|short| roomy.map(|roomy| (short, roomy))) {
        let key = |line: &str| Limit { key: format!("{short} {roomy} {line}"), ..Limit::new(line) };
        let limits = [key(roomy), key(short)];
        let limits = limits.map(Limit::without_longest);
        let parts = |costs: [u64; 2]| [limits[0].part(costs[0], &[]), limits[1].part(costs[1], &[])];
        let (mut grants, later) = (Vec::new(), START + SECOND / 20);
        let mut call = |operation, now: u64, costs: [u64; 2]| {
            let reply = store.call(operation, now, &parts(costs));
            let is_granted = reply.answer == Answer::Done;
            if is_granted && matches!(operation, Operation::Reserve { .. }) {
                let at = u64::try_from(reply.due.max(0)).expect("an instant").max(now);
                grants.push(Net { at, n: costs[0] });
            }
            (is_granted, reply.wait)
        };
        for _ in 0..6 {
            assert_eq!(call(TRY, START, [1, 800]), (true, Duration::ZERO), "{short}, {roomy}");
        }
        for _ in 0..4 {
            let (is_granted, wait) = call(ANY_WAIT, START, [1, 800]);
            assert!(is_granted && wait > Duration::ZERO, "{short}, {roomy}");
        }
        let refund = Operation::Refund { due: i64::try_from(START).expect("an instant") };
        for _ in 0..6 {
            call(refund, later, [0, 600]);
        }
        // 200 were left, but the permits that accrued meanwhile are for waiting requests.
        assert_eq!((0..6).filter(|_| call(TRY, later, [1, 800]).0).count(), 4, "{short}, {roomy}");
        // If the other limit has no room, it is not passed.
        assert!(!call(TRY, later, [95, 1]).0, "{short}, {roomy}");
        // Permits that come back to the other limit are granted once.
        call(refund, later, [1, 0]);
        let alone = [0; 2].map(|_| call(TRY, later, [1, 0]).0);
        assert_eq!(alone, [true, false], "{short}, {roomy}");
        // Behind the bookings, each grant counts.
        for now in [9_900, 10_100, 15_000, 19_900, 21_000].map(|millis| START + millis * 1000) {
            while call(TRY, now, [1, 0]).0 {}
        }
        // A permit came back.
        grants[0].n = 0;
        if let Err(found) = is_within(&limits[0], &grants) {
            panic!("{short}, {roomy}: {found}");
        }
    }
}

/// Eight bookings ahead, of which a limit has four marks. A request that takes permits that came
/// back to the other limit passes only if the least of all bookings leaves room for it.
#[test]
fn a_request_passes_more_bookings_than_there_are_marks() {
    let Some(mut store) = Store::new() else { return };
    let lines = [
        "token_bucket 1/s burst 40",
        "smooth_bursty 1/s max_burst 40s start_full",
        "sliding_window 40/40s cells 8",
        "sliding_log 40/40s",
    ];
    let (mut granted, mut refused) = (0, 0);
    for (line, seed) in lines.into_iter().flat_map(|line| (0..100).map(move |seed| (line, seed))) {
        let key = |line: &str| Limit { key: format!("{line} {seed} passes"), ..Limit::new(line) };
        let limits = [key(line), key("fixed_window 10/10s")];
        let parts = |costs: [u64; 2]| [limits[0].part(costs[0], &[]), limits[1].part(costs[1], &[])];
        let (mut random, mut grants) = (SmallRng::seed_from_u64(seed), Vec::new());
        // The first is granted, and each other one has the next window of the second limit.
        for _ in 0..9 {
            let n = random.random_range(0..=16);
            let reply = store.call(ANY_WAIT, START, &parts([n, 10]));
            assert_eq!(reply.answer, Answer::Done, "{line}, {seed}");
            grants.push(Net { at: u64::try_from(reply.due).expect("an instant"), n });
        }
        store.call(
            Operation::Refund { due: grants[0].at.try_into().expect("one") },
            START + SECOND,
            &parts([0, 10]),
        );
        for _ in 0..3 {
            let n = random.random_range(1..=16);
            match store.call(TRY, START + SECOND, &parts([n, 1])).answer {
                Answer::Done => {
                    grants.push(Net { at: START + SECOND, n });
                    granted += 1;
                }
                _ => refused += 1,
            }
        }
        if let Err(found) = is_within(&limits[0], &grants) {
            panic!("{line}, {seed}: {found}");
        }
    }
    assert!(granted > 100 && refused > 100, "{granted} and {refused}");
}

/// Nothing accrues within a step, so permits that come back stay there until its end. A pause that
/// ends as planned spends them, like all that is available.
#[test]
fn a_pause_spends_what_came_back_within_a_step() {
    let Some(mut store) = Store::new() else { return };
    for (keep_permits, ends, left) in [(true, false, 4), (true, true, 4), (false, true, 4), (false, false, 0)]
    {
        // A call during the pause, and a grant or a debit behind it, change nothing of this.
        for (asks, takes) in [(false, false), (true, false), (false, true)] {
            let mut limit = Limit::new("token_bucket 10/10s burst 10 interval_refill");
            limit.key.push_str(&format!("-{keep_permits}-{ends}-{asks}-{takes}"));
            let began = START - START % (10 * SECOND) + 10 * SECOND;
            let mut call = |operation, seconds: u64, n: u64, before: &[u8]| {
                store.call(operation, began + seconds * SECOND, &[limit.part(n, before)])
            };
            // What comes back from two grants is two places.
            let used = [call(TRY, 0, 5, &[]), call(TRY, 1, 5, &[])];
            assert_eq!(call(ANY_WAIT, 1, 3, &[]).wait, Duration::from_secs(9));
            used.iter().for_each(|used| _ = call(Operation::Refund { due: used.due }, 1, 2, &[]));
            call(pause(2, keep_permits), 2, 0, &[]);
            if asks {
                assert_eq!(call(TRY, 3, 1, &[]).answer, Answer::Refused);
            }
            if ends {
                call(Operation::Resume, 3, 0, &[]);
            }
            if takes && left > 0 {
                assert_eq!(call(TRY, 5, left, &[]).answer, Answer::Done, "{keep_permits}, {ends}");
            } else if takes {
                call(Operation::Debit, 5, 1, &[]);
            }
            let left = if takes { 0 } else { left };
            let text = format!("{keep_permits}, {ends}, {asks}, {takes}");
            assert_eq!(call(TRY, 6, left + 1, &[]).answer, Answer::Refused, "{text}");
            if left > 0 {
                assert_eq!(call(TRY, 6, left, &[]).answer, Answer::Done, "{text}");
            }
        }
    }
}

/// Workers that reserve more than they use, of one limit or of two, some of which leave before
/// their booked times. Permits that they give back are granted to others while bookings lie ahead,
/// and not a second time.
#[test]
fn what_is_lent_is_never_granted_twice() {
    let Some(mut store) = Store::new() else { return };
    let mut lent = 0;
    for (i, first) in BOUNDED.iter().enumerate() {
        for seed in 0..seeds() {
            let mut random = SmallRng::seed_from_u64(seed);
            let second = BOUNDED[(i + random.random_range(1..BOUNDED.len())) % BOUNDED.len()];
            let limits = [*first, second].map(|line| Limit {
                key: format!("lent-{i}-{seed}-{line}"),
                ..Limit::new(line).without_longest()
            });
            let interval = intervals(&limits[0], 1.0).max(intervals(&limits[1], 1.0));
            let most = limits.iter().map(|limit| limit.terms.limit.clamp(1, 10)).min().expect("two");
            let most = if first.starts_with("leaky") || second.starts_with("leaky") { 4 } else { most };
            let (settles, drops) = (random.random_range(0.2..0.6), random.random_range(0.0..0.3));
            let both = random.random_range(0.0..1.0);
            let (mut now, mut open, mut ahead) = (START, Vec::new(), START);
            let mut grants = [Vec::new(), Vec::new()];
            for _ in 0..250 {
                if random.random_bool(0.7) {
                    now += random.random_range(0..=2 * interval);
                }
                let due = |reply: &Reply| u64::try_from(reply.due).expect("an instant");
                let parts = |costs: [u64; 2], before: &[Vec<u8>]| -> Vec<(u64, Vec<u8>)> {
                    let before = |i: usize| before.get(i).cloned().unwrap_or_default();
                    costs.iter().enumerate().map(|(i, n)| (*n, before(i))).collect()
                };
                let mut call = |operation, parts: Vec<(u64, Vec<u8>)>| {
                    let parts = limits.iter().zip(&parts);
                    let parts: Vec<_> = parts.map(|(limit, (n, before))| limit.part(*n, before)).collect();
                    store.call(operation, now, &parts)
                };
                if random.random_bool(settles) && !open.is_empty() {
                    let at = random.random_range(0..open.len());
                    let (reply, costs): &mut (Reply, [u64; 2]) = &mut open[at];
                    if due(reply) <= now {
                        // In one piece, or in several.
                        let unused = costs.map(|n| random.random_range(0..=n));
                        call(Operation::Refund { due: reply.due }, parts(unused, &[]));
                        *costs = std::array::from_fn(|i| costs[i] - unused[i]);
                        if random.random_bool(0.7) {
                            let (reply, costs) = open.swap_remove(at);
                            for (grants, n) in grants.iter_mut().zip(costs) {
                                grants.push(Net { at: due(&reply), n });
                            }
                        }
                        continue;
                    }
                }
                if random.random_bool(drops) && !open.is_empty() {
                    let at = random.random_range(0..open.len());
                    if due(&open[at].0) > now {
                        let (reply, costs) = open.swap_remove(at);
                        call(Operation::Back { due: reply.due }, parts(costs, &reply.before));
                        continue;
                    }
                }
                if random.random_bool(0.02) {
                    call(Operation::Debit, parts([random.random_range(0..=2), 0], &[]));
                }
                let n = random.random_range(1..=most);
                let costs = if random.random_bool(both) {
                    [n, random.random_range(1..=most)]
                } else if random.random_bool(0.5) {
                    [n, 0]
                } else {
                    [0, n]
                };
                let longest = Duration::from_micros(random.random_range(0..20) * interval);
                let wanted = Operation::Reserve { longest, shadow: false };
                let reply = call(wanted, parts(costs, &[]));
                if reply.answer == Answer::Done {
                    if reply.wait == Duration::ZERO && ahead > now {
                        lent += 1;
                    }
                    ahead = ahead.max(due(&reply));
                    open.push((reply, costs));
                }
            }
            for (reply, costs) in open {
                for (grants, n) in grants.iter_mut().zip(costs) {
                    grants.push(Net { at: u64::try_from(reply.due).expect("an instant"), n });
                }
            }
            for ((line, limit), grants) in [first, second].into_iter().zip(&limits).zip(&grants) {
                if let Err(found) = is_within(limit, grants) {
                    panic!("{first} and {second}, {seed}: {line}: {found}");
                }
            }
        }
    }
    assert!(lent > 500, "{lent}");
}

/// The level of a bucket as of its last booking, in units.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Whole numbers far below 2^53.
fn level(store: &mut Store, key: &str) -> (u64, f64) {
    let value: Vec<u8> = redis::cmd("GET").arg(key).query(&mut store.connection).expect("a value");
    let number = |first: usize| {
        let bytes = value[first..first + 8].try_into().expect("eight bytes");
        f64::from_be_bytes(bytes)
    };
    let behind = 40 + number(32) as usize;
    (number(16) as u64, number(behind))
}

/// Random requests, many of which are given back before their booked times or settled after them.
/// The bucket is never fuller than one that has had only the other grants. A loan was forgotten
/// when its bookings had passed, and an older one was undone with one to come.
#[test]
fn a_bucket_is_never_fuller_than_its_grants_leave_it() {
    let Some(mut store) = Store::new() else { return };
    let lines = [
        "token_bucket 100/s burst 100",
        "token_bucket 100/s burst 40",
        "token_bucket 10/s burst 10",
        "token_bucket 10/s burst 10 interval_refill",
        "smooth_bursty 100/s max_burst 1s",
    ];
    for (line, seed) in lines.into_iter().flat_map(|line| (0..50 * seeds()).map(move |seed| (line, seed))) {
        let limit = Limit { key: format!("{line}-{seed}"), ..Limit::new(line) };
        let Numbers::Bucket(BucketNumbers { refill, price, cap, start, step, .. }) = limit.terms.numbers
        else {
            panic!("{line} is no bucket");
        };
        // The steps are those of Unix time.
        let refills = |at: u64| i64::try_from(at).expect("an instant") / step.max(1);
        let mut random = SmallRng::seed_from_u64(seed);
        let interval = intervals(&limit, 1.0);
        let most = limit.terms.limit.min(40);
        let (drops, settles) = (random.random_range(0.0..0.5), random.random_range(0.0..0.3));
        let longest = Duration::from_micros(random.random_range(1..=4) * 40 * interval);
        let wanted = Operation::Reserve { longest, shadow: false };
        let mut now = START;
        // The replies of the grants that stay, and the permits of each.
        let mut grants: Vec<(Reply, u64)> = Vec::new();
        for _ in 0..40 {
            now += random.random_range(0..most * interval / 4);
            let of = random.random_range(0..grants.len().max(1));
            let instant = grants.get(of).map_or(now, |(reply, _)| u64::try_from(reply.due).expect("one"));
            if instant > now && random.random_bool(drops) {
                let (reply, n) = grants.swap_remove(of);
                let back = Operation::Back { due: reply.due };
                store.call(back, now, &[limit.part(n, &reply.before[0])]);
            } else if instant <= now && !grants.is_empty() && random.random_bool(settles) {
                let (reply, n) = &mut grants[of];
                let unused = random.random_range(0..=*n);
                store.call(Operation::Refund { due: reply.due }, now, &[limit.part(unused, &[])]);
                *n -= unused;
            } else {
                let n = random.random_range(1..=most);
                let reply = store.call(wanted, now, &[limit.part(n, &[])]);
                if reply.answer == Answer::Done {
                    grants.push((reply, n));
                }
            }
            let (at, level) = level(&mut store, &limit.key);
            grants.sort_by_key(|(reply, _)| reply.due);
            let (mut full, mut last) = (start, START);
            for (reply, n) in &grants {
                let due = u64::try_from(reply.due).expect("an instant");
                full = cap.min(full + refill * (refills(due) - refills(last)));
                full -= price * i64::try_from(*n).expect("permits");
                last = due;
            }
            // A bucket whose last bookings were given back may report its state as of an earlier
            // time.
            if at >= last {
                full = cap.min(full + refill * (refills(at) - refills(last)));
                assert!(level <= full as f64, "{line}, {seed}: {level} of {full} at {}", at - START);
            }
        }
    }
}

/// A refund of no particular grant comes while requests may still take a dropped booking of a
/// bucket in steps. The bucket was full, and got permits beyond its burst when the booking behind
/// the dropped one was dropped, too.
#[test]
fn a_refund_beside_a_dropped_booking_does_not_overfill_a_bucket_in_steps() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("token_bucket 5/s burst 20 interval_refill").without_longest();
    let second = START - START % 1_000_000;
    let mut call = |ms: u64, operation, n, before: &[u8]| {
        store.call(operation, second + 1000 * ms, &[limit.part(n, before)])
    };
    let back = |reply: &Reply| Operation::Back { due: reply.due };
    assert_eq!(call(620, TRY, 2, &[]).answer, Answer::Done);
    let (first, behind) = (call(752, ANY_WAIT, 19, &[]), call(834, ANY_WAIT, 20, &[]));
    call(855, back(&first), 19, &first.before[0]);
    call(1048, Operation::Refund { due: NO_GRANT }, 2, &[]);
    assert_eq!(call(1130, ANY_WAIT, 6, &[]).wait, Duration::ZERO);
    call(1187, back(&behind), 20, &behind.before[0]);
    let state = call(1200, Operation::Status, 0, &[]);
    assert_eq!(state.limits[0].available, 14);
}

/// So many dropped bookings that the script keeps most of them as texts.
#[test]
fn a_refund_beside_many_dropped_bookings_does_not_overfill_a_bucket_in_steps() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("token_bucket 100/s burst 100 interval_refill").without_longest();
    let second = START - START % SECOND;
    let mut call = |ms: u64, operation, n, before: &[u8]| {
        store.call(operation, second + 1000 * ms, &[limit.part(n, before)])
    };
    assert_eq!(call(620, TRY, 100, &[]).answer, Answer::Done);
    let dropped: Vec<Reply> = (0..90).map(|_| call(752, ANY_WAIT, 1, &[])).collect();
    let behind = call(834, ANY_WAIT, 100, &[]);
    for reply in &dropped {
        call(855, Operation::Back { due: reply.due }, 1, &reply.before[0]);
    }
    call(1048, Operation::Refund { due: NO_GRANT }, 60, &[]);
    assert_eq!(call(1130, TRY, 90, &[]).answer, Answer::Done);
    call(1187, Operation::Back { due: behind.due }, 100, &behind.before[0]);
    let state = call(1200, Operation::Status, 0, &[]);
    assert_eq!(state.limits[0].available, 10);
}

/// A refund by number of a debit above the limit was permits of the present window, beside a wait
/// for the next one: it had 499 of 10.
#[test]
fn a_window_above_its_limit_gets_no_permits_of_a_refund_beside_a_wait() {
    let Some(mut store) = Store::new() else { return };
    for line in ["fixed_window 10/s", "fixed_window 10/s from_first_grant"] {
        for (debit, waits, later, refund) in [
            (2000, 1, 0, 500),
            (20, 1, 0, 5),
            (2000, 20, 0, 500),
            (11, 1, 0, 11),
            (3, 12, 900, 500),
            (3, 12, 900, 902),
        ] {
            let limit = Limit { key: format!("{line}-{debit}-{waits}-{refund}"), ..Limit::new(line) };
            let limit = limit.without_longest();
            let mut calls = vec![(Operation::Debit, START, debit)];
            calls.extend((0..waits).map(|_| (ANY_WAIT, START, 1)));
            // This debit is of the window of the last wait.
            calls.extend((later > 0).then_some((Operation::Debit, START, later)));
            calls.extend((later > 0).then_some((ANY_WAIT, START, 1)));
            store.run(&limit, &calls);
            let now = START + if later > 0 { 1_100_000 } else { 100_000 };
            store.call(Operation::Refund { due: NO_GRANT }, now, &[limit.part(refund, &[])]);
            let status = store.call(Operation::Status, now, &[limit.part(0, &[])]).limits.remove(0);
            assert_eq!(status.available, 0, "{line}, {debit}, {waits}, {later}, {refund}");
            assert_eq!(store.call(TRY, now, &[limit.part(1, &[])]).answer, Answer::Refused);
        }
    }
}
