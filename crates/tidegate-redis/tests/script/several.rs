//! Several limits in one call, pauses, a clock that is set, other terms, and expiry.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redis::Connection;

use crate::script::{Answer, GivenBack, Mode, Reply, ReserveRequest, Script};
use crate::script_tests::conformance::{EXACT, calls};
use crate::script_tests::refunds::BOUNDED;
use crate::script_tests::support::wait_until;
use crate::script_tests::{ANY_WAIT, Limit, Operation, Part, START, Store, TRY, command, intervals};

const SECOND: u64 = 1_000_000;

fn values(connection: &mut Connection) -> Vec<(String, Vec<u8>)> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(connection).expect("keys");
    keys.sort();
    let value = |key: String| {
        let value = redis::cmd("GET").arg(&key).query(connection).expect("a value");
        (key, value)
    };
    keys.into_iter().map(value).collect()
}

#[test]
fn a_refusal_of_one_limit_changes_no_limit() {
    let Some(mut store) = Store::new() else { return };
    let limits = EXACT.map(Limit::new);
    let parts: Vec<Part<'_>> = limits.iter().map(|limit| limit.part(1, &[])).collect();
    let mut granted = 0;
    let mut now = START;
    let refused = loop {
        let before = values(&mut store.connection);
        let reply = store.call(TRY, now, &parts);
        if reply.answer == Answer::Refused {
            assert_eq!(values(&mut store.connection), before);
            break reply;
        }
        granted += 1;
        now += SECOND / 100;
    };
    assert!(granted > 0);
    // The limit that makes the request wait is named, and the request is due when that limit is.
    let tightest = refused.tightest.expect("a limit");
    let alone = store.call(TRY, now, &[limits[tightest].part(1, &[])]);
    assert_eq!(alone.wait, refused.wait);
    let due = now + u64::try_from(refused.wait.as_micros()).expect("a wait");
    assert_eq!(store.call(TRY, due - 1, &parts).answer, Answer::Refused);
    assert_eq!(store.call(TRY, due, &parts).answer, Answer::Done);
}

/// The expiry of the second limit was read after the first limit was written.
#[test]
fn a_call_that_must_not_read_an_expiry_changes_no_limit() {
    let Some(mut store) = Store::new() else { return };
    let limits = ["fixed_window 100/s", "leaky_bucket 1/h capacity 5"].map(Limit::new);
    let parts = limits.each_ref().map(|limit| limit.part(1, &[]));
    let script = Script::shared(limits.iter().map(|limit| limit.terms.kind()));
    let call = command(&script, Operation::Debit, None, &parts);
    store.query(&script, &call);
    for (command, words) in [("ACL", "SETUSER few on >pass-word +@all -pttl ~*"), ("AUTH", "few pass-word")] {
        let words: Vec<&str> = words.split(' ').collect();
        redis::cmd(command).arg(words).exec(&mut store.connection).expect("a login");
    }
    let before = values(&mut store.connection);
    call.exec(&mut store.connection).expect_err("a missing right");
    assert_eq!(values(&mut store.connection), before);
}

/// Permits that came back to a bucket that never fills were left for ever to requests that come
/// sooner. The request was reported as never due, and behind a pause the script failed.
#[test]
fn a_request_behind_what_came_back_to_a_limit_of_rate_zero_is_due() {
    let Some(mut store) = Store::new() else { return };
    for is_paused in [false, true] {
        let (mut bucket, mut window) =
            (Limit::new("token_bucket zero burst 10"), Limit::new("fixed_window 1/s"));
        bucket.key.push_str(&is_paused.to_string());
        window.key.push_str(&is_paused.to_string());
        let parts = |tokens, calls| [bucket.part(tokens, &[]), window.part(calls, &[])];
        let due = store.call(TRY, START, &parts(3, 1)).due;
        let ahead = store.call(ANY_WAIT, START, &parts(1, 1));
        assert_eq!((ahead.answer, ahead.wait), (Answer::Done, Duration::from_secs(1)));
        if is_paused {
            store.call(
                Operation::Pause { span: Duration::from_secs(9), keep_permits: true },
                START,
                &parts(0, 0),
            );
            store.call(Operation::Resume, START, &parts(0, 0));
        }
        store.call(Operation::Refund { due }, START, &parts(3, 0));
        let soon = Operation::Reserve { longest: Duration::from_millis(50), shadow: false };
        let reply = store.call(soon, START, &parts(7, 1));
        assert_eq!((reply.answer, reply.wait), (Answer::Refused, Duration::from_secs(2)), "{is_paused}");
        assert_eq!(store.call(TRY, START + 2 * SECOND, &parts(7, 1)).answer, Answer::Done, "{is_paused}");
    }
}

/// The entry of a log's last booking has ended at its time, and a debit counts then.
#[test]
fn a_predicted_time_counts_a_debit_beside_the_last_booking() {
    let Some(mut store) = Store::new() else { return };
    let (log, window) = (Limit::new("sliding_log 1/s"), Limit::new("fixed_window 1/300ms from_first_grant"));
    let parts = |of_log, of_window| [log.part(of_log, &[]), window.part(of_window, &[])];
    assert_eq!(store.call(TRY, START, &parts(0, 1)).answer, Answer::Done);
    let booked = store.call(ANY_WAIT, START, &parts(1, 1));
    assert_eq!((booked.answer, booked.wait), (Answer::Done, Duration::from_millis(300)));
    let mut now = START + 3;
    store.call(Operation::Debit, now, &parts(1, 1));
    let wanted = |costs: [u64; 2]| ReserveRequest {
        longest: Duration::ZERO,
        mode: Mode::Normal,
        wants_state: false,
        costs: costs.map(|n| (n, n)).to_vec(),
    };
    let back = booked.given_back();
    let told = store.reserve(now, &parts(0, 0), &[back], &[wanted([1, 0])]);
    assert_eq!(told[0].answer, Answer::Refused);
    now += u64::try_from(told[0].wait.as_micros()).expect("a wait");
    assert_eq!(store.call(TRY, now, &parts(1, 0)).answer, Answer::Done);
}

#[test]
fn costs_of_zero_touch_no_limit() {
    let Some(mut store) = Store::new() else { return };
    let (calls, tokens) = (Limit::new("fixed_window 1/s"), Limit::new("token_bucket 100/s burst 100"));
    let parts = [calls.part(0, &[]), tokens.part(60, &[])];
    assert_eq!(store.call(TRY, START, &parts).answer, Answer::Done);
    assert_eq!(store.call(TRY, START, &[calls.part(1, &[])]).answer, Answer::Done);
    let reply = store.call(TRY, START, &parts);
    assert_eq!(
        (reply.answer, reply.wait, reply.tightest),
        (Answer::Refused, Duration::from_millis(200), Some(1))
    );
}

#[test]
fn a_shadow_limit_reports_the_wait_and_changes_nothing() {
    let Some(mut store) = Store::new() else { return };
    let limit = Limit::new("fixed_window 1/s");
    let shadow = Operation::Reserve { longest: Duration::ZERO, shadow: true };
    assert_eq!(store.call(shadow, START, &[limit.part(1, &[])]).answer, Answer::Done);
    let before = values(&mut store.connection);
    let reply = store.call(shadow, START, &[limit.part(1, &[])]);
    assert_eq!((reply.answer, reply.wait), (Answer::Shadow, Duration::from_secs(1)));
    assert_eq!(values(&mut store.connection), before);
}

#[test]
fn nothing_is_granted_in_a_pause() {
    let Some(mut store) = Store::new() else { return };
    for line in EXACT {
        for keep_permits in [false, true] {
            let mut limit = Limit::new(line);
            limit.key.push_str(if keep_permits { "-kept" } else { "-empty" });
            let part = || [limit.part(1, &[])];
            let span = Duration::from_secs(100);
            let before = store.call(Operation::Status, START, &part());
            store.call(Operation::Pause { span, keep_permits }, START, &part());
            for after in [0, 50, 99] {
                let reply = store.call(TRY, START + after * SECOND, &part());
                let rest = Duration::from_secs(100 - after);
                assert_eq!((reply.answer, reply.limits[0].available), (Answer::Refused, 0), "{line}");
                assert!(reply.wait >= rest, "{line}: {reply:?}");
            }
            let after = store.call(Operation::Status, START + 100 * SECOND, &part());
            if keep_permits || limit.terms.kind() != crate::terms::Kind::Bucket {
                assert_eq!(after.limits[0].available, before.limits[0].available, "{line}");
            } else {
                assert_eq!(after.limits[0].available, 0, "{line}");
            }
        }
    }
}

/// Requests that wait behind a pause, and are dropped at random or late, change nothing: a limit
/// has the state of a limit without them, whether the pause has ended or is ended.
#[test]
fn what_is_predicted_behind_a_pause_changes_nothing() {
    let Some(mut store) = Store::new() else { return };
    let mut predicted = 0;
    for (line, seed) in EXACT.into_iter().flat_map(|line| (0..8).map(move |seed| (line, seed))) {
        let key = |name: &str| Limit { key: format!("{line}-{seed}-{name}"), ..Limit::new(line) };
        let limits = [key("asked"), key("control")];
        let limits = limits.map(Limit::without_longest);
        let [asked, control] = &limits;
        let mut random = SmallRng::seed_from_u64(seed);
        let (interval, most) = (intervals(asked, 1.0), asked.terms.limit.clamp(1, 5));
        let (mut now, mut waits, mut is_resumed) = (START, Vec::<(Reply, u64)>::new(), false);
        for _ in 0..120 {
            now += random.random_range(0..=2 * interval);
            let n = random.random_range(1..=most);
            let keep_permits = random.random_bool(0.5);
            let span = Duration::from_micros(random.random_range(1..=20 * interval));
            let operation = match random.random_range(0..12) {
                0 => Operation::Pause { span, keep_permits },
                1 => Operation::Resume,
                2 => Operation::Debit,
                3 => Operation::Keep,
                4 => TRY,
                // Late drops, too.
                5 | 6 if !waits.is_empty() => {
                    let (reply, n) = waits.swap_remove(random.random_range(0..waits.len()));
                    let back = GivenBack { permits: &[n], ..reply.given_back() };
                    store.reserve(now, &[asked.part(0, &[])], &[back], &[]);
                    continue;
                }
                _ => {
                    // Requests wait only behind a pause.
                    let status = store.call(Operation::Status, now, &[asked.part(0, &[])]);
                    if status.limits[0].paused_for > Duration::ZERO {
                        let reply = store.call(ANY_WAIT, now, &[asked.part(n, &[])]);
                        if reply.wait < Duration::MAX {
                            assert_eq!(reply.answer, Answer::Predicted, "{line}");
                            assert!(reply.wait >= status.limits[0].paused_for, "{line}");
                            predicted += 1;
                            waits.push((reply, n));
                        }
                    }
                    continue;
                }
            };
            is_resumed |= operation == Operation::Resume;
            let [one, other] =
                [asked, control].map(|limit| store.call(operation, now, &[limit.part(n, &[])]));
            if operation == TRY && other.limits.first().is_some_and(|told| told.paused_for > Duration::ZERO) {
                // Predicted requests count in the wait that a refusal predicts.
                assert!(
                    one.answer == other.answer && one.wait >= other.wait,
                    "{line}, {seed} {one:?} {other:?}"
                );
            } else {
                assert_eq!(one, other, "{line}, {seed}: {operation:?}");
            }
        }
        assert!(is_resumed, "{line}, {seed}");
    }
    assert!(predicted > 500, "{predicted}");
}

/// Requests behind a pause are given times in sequence, and a dropped request makes room for the
/// next.
#[test]
fn requests_behind_a_pause_are_predicted_one_behind_the_other() {
    let Some(mut store) = Store::new() else { return };
    for line in EXACT {
        let limit = Limit::new(line).without_longest();
        let part = || [limit.part(1, &[])];
        let span = Duration::from_secs(3600);
        store.call(Operation::Pause { span, keep_permits: false }, START, &part());
        let mut ask = || store.call(ANY_WAIT, START, &part());
        let waits: Vec<Reply> = (0..20).map(|_| ask()).collect();
        let dues: Vec<i64> = waits.iter().map(|reply| reply.due).collect();
        assert!(dues.is_sorted(), "{line}: {dues:?}");
        let back = waits[10].given_back();
        let one = ReserveRequest {
            longest: Duration::MAX,
            mode: Mode::Normal,
            wants_state: false,
            costs: vec![(1, 1)],
        };
        let again = store.reserve(START, &part(), &[back], &[one]).remove(0);
        assert_eq!((again.answer, again.due), (Answer::Predicted, dues[10]), "{line}");
    }
}

#[test]
fn a_resumed_limit_has_what_it_had() {
    let Some(mut store) = Store::new() else { return };
    for line in EXACT {
        let limit = Limit::new(line);
        let part = || [limit.part(1, &[])];
        store.call(TRY, START, &part());
        let before = store.call(Operation::Status, START, &part());
        let span = Duration::from_secs(100);
        store.call(Operation::Pause { span, keep_permits: true }, START, &part());
        let resumed = store.call(Operation::Resume, START, &part());
        assert_eq!(resumed.limits[0].other, 1, "{line}");
        assert_eq!(store.call(Operation::Status, START, &part()), before, "{line}");
        assert_eq!(store.call(Operation::Resume, START, &part()).limits[0].other, 0, "{line}");
    }
}

/// The server's clock is set back by ten seconds, a day and a year: no permit is granted twice, and
/// no wait is longer than the limit takes to refill.
#[test]
fn a_clock_set_back_fills_nothing_and_bounds_the_wait() {
    let Some(mut store) = Store::new() else { return };
    for line in EXACT {
        for back in [10, 86_400, 31_536_000] {
            let mut limit = Limit::new(line);
            limit.key.push_str(&back.to_string());
            let part = || [limit.part(1, &[])];
            let mut now = START + 40_000_000 * SECOND;
            while store.call(TRY, now, &part()).answer == Answer::Done {}
            let before = store.call(TRY, now, &part()).wait;
            now -= back * SECOND;
            let reply = store.call(TRY, now, &part());
            assert_eq!(reply.answer, Answer::Refused, "{line}, {back} s");
            let most = Duration::from_secs(10).max(2 * Duration::from_secs(60)) + before;
            assert!(reply.wait <= most, "{line}, {back} s: {:?} after {before:?}", reply.wait);
            let due = now + u64::try_from(reply.wait.as_micros()).expect("a wait");
            assert_eq!(store.call(TRY, due, &part()).answer, Answer::Done, "{line}, {back} s");
        }
    }
}

/// Bug: a wait from before the server's clock was set back, and dropped afterwards, freed the
/// instant of another wait: up to twice the limit was granted.
#[test]
fn no_wait_of_another_clock_comes_back() {
    let Some(mut store) = Store::new() else { return };
    for line in BOUNDED.into_iter().filter(|line| line.contains("10/s")) {
        // The clock before and the clock after the step book waits at equal instants, or at others.
        for back in [10 * SECOND, 10 * SECOND - 130_000] {
            let limit = Limit { key: format!("{line}-{back}"), ..Limit::new(line).without_longest() };
            let part = || [limit.part(1, &[])];
            let waits: Vec<Reply> = (0..310).map(|_| store.call(ANY_WAIT, START, &part())).collect();
            let now = START - back;
            store.call(TRY, now, &part());
            let due = |reply: &Reply| u64::try_from(reply.due).expect("an instant");
            let (dropped, stay): (Vec<Reply>, Vec<Reply>) =
                waits.into_iter().partition(|wait| due(wait) <= START + 20 * SECOND);
            for wait in dropped.iter().filter(|wait| due(wait) > START + back) {
                let before = wait.before.first().map_or(&[][..], Vec::as_slice);
                store.call(Operation::Back { due: wait.due }, now, &[limit.part(1, before)]);
            }
            let new: Vec<u64> = (0..100).map(|_| due(&store.call(ANY_WAIT, now, &part()))).collect();
            let mut all: Vec<u64> = stay.iter().map(|wait| due(wait) - back).chain(new).collect();
            all.sort_unstable();
            // 100 permits, and a burst of up to 40.
            let span = all.windows(150).map(|some| some[149] - some[0]).min();
            assert!(span >= Some(10 * SECOND), "{line}, {back} us: 150 in {span:?} us");
        }
    }
}

/// A limit keeps a second value while a request is predicted. The end of the pause in that value
/// did not move with the clock, so the pause was extended by the amount by which the clock was set
/// back.
#[test]
fn a_clock_set_back_in_a_pause_does_not_prolong_it() {
    let Some(mut store) = Store::new() else { return };
    for line in EXACT {
        let limit = Limit::new(line).without_longest();
        let part = || [limit.part(1, &[])];
        let (span, mut now) = (Duration::from_secs(3600), START + 40_000_000 * SECOND);
        store.call(Operation::Pause { span, keep_permits: true }, now, &part());
        now += 10 * SECOND;
        assert_eq!(store.call(ANY_WAIT, now, &part()).answer, Answer::Predicted, "{line}");
        now -= 600 * SECOND;
        assert_eq!(store.call(TRY, now, &part()).answer, Answer::Refused, "{line}");
        let rest = store.call(Operation::Status, now, &part()).limits[0].paused_for;
        assert_eq!(rest, Duration::from_secs(3590), "{line}");
        now += 3590 * SECOND;
        let told = store.call(Operation::Status, now, &part()).limits[0];
        assert_eq!(told.paused_for, Duration::ZERO, "{line}");
        assert_eq!(told.next_in, Duration::ZERO, "{line}");
    }
}

/// A bucket that fills in steps has a negative balance for longer than a key may live: Redis
/// refused to write.
#[test]
fn a_debt_of_a_million_years_is_written() {
    let Some(mut store) = Store::new() else { return };
    for line in ["token_bucket 1/30d burst 1 interval_refill", "token_bucket 1/30d burst 1"] {
        let limit = Limit::new(line);
        let debt = u64::from(u32::MAX);
        assert_eq!(store.call(Operation::Debit, START, &[limit.part(debt, &[])]).answer, Answer::Done);
        assert_eq!(store.call(TRY, START, &[limit.part(1, &[])]).answer, Answer::Refused, "{line}");
        let ttl: u64 = store.ttl(&limit);
        assert!(ttl / 86_400_000 <= 100 * 366, "{line}: {ttl} ms");
    }
}

/// What a process of a small burst owed counted as many times the span that a larger burst takes to
/// fill: keys were kept for up to a century.
#[test]
fn a_smaller_burst_keeps_no_key_for_longer() {
    let Some(mut store) = Store::new() else { return };
    for (wide, narrow) in [
        ("smooth_bursty 5/s", "smooth_bursty 5/s max_burst 0s"),
        ("smooth_bursty 5/s max_burst 10s", "smooth_bursty 5/s max_burst 1ms"),
        ("smooth_bursty 50/s max_burst 2s", "smooth_bursty 5/s max_burst 0s"),
        ("smooth_bursty 5/s max_burst 20s start_full", "smooth_bursty 50/s max_burst 1ms start_full"),
        ("token_bucket 1000/s burst 10000 start_with 1", "token_bucket 1000/s burst 1 start_with 1"),
        ("leaky_bucket 10/s nodelay 50 capacity 50", "leaky_bucket 10/s"),
    ] {
        let (wide, mut narrow) = (Limit::new(wide), Limit::new(narrow));
        narrow.key.clone_from(&wide.key);
        for limit in [&wide, &narrow, &wide, &narrow, &narrow] {
            store.call(ANY_WAIT, START, &[limit.part(2, &[])]);
            let ttl: u64 = store.ttl(limit);
            // A day because the time is set, and a day because the limit may not start full.
            assert!(ttl <= 2 * 86_400_000 + 60_000, "{} {:?}: {ttl} ms", limit.key, limit.terms.rate);
        }
        store.call(Operation::Reset, START, &[wide.part(1, &[])]);
    }
}

/// The server's clock is stepped by ten seconds, forward and back, again and again: a step forward
/// at most fills a limit, and a step back adds nothing.
#[test]
fn a_clock_that_is_stepped_fills_once_a_step() {
    let Some(mut store) = Store::new() else { return };
    for line in ["token_bucket 500/s burst 20", "fixed_window 20/s", "sliding_log 20/s"] {
        let limit = Limit::new(line);
        let part = || [limit.part(1, &[])];
        let mut now = START + 40_000_000 * SECOND;
        let mut take_all = |now| {
            let granted = (0..100).take_while(|_| store.call(TRY, now, &part()).answer == Answer::Done);
            granted.count()
        };
        assert_eq!(take_all(now), 20, "{line}");
        for _ in 0..5 {
            now += 10 * SECOND;
            assert_eq!(take_all(now), 20, "{line}");
            now -= 10 * SECOND;
            assert_eq!(take_all(now), 0, "{line}");
        }
    }
}

#[test]
fn other_terms_keep_what_was_taken() {
    let Some(mut store) = Store::new() else { return };
    // The permits available under other terms after three of ten permits were taken.
    for (old, new, available) in [
        ("token_bucket 10/s burst 10", "token_bucket 20/min burst 10", 7),
        ("token_bucket 10/s burst 10", "token_bucket 3/s burst 5", 5),
        ("fixed_window 10/s", "fixed_window 20/s", 17),
        ("fixed_window 10/s", "fixed_window 4/min", 1),
        ("sliding_window 10/s cells 10", "sliding_window 20/s cells 10", 17),
        ("sliding_estimate 10/s", "sliding_estimate 8/min", 5),
        ("sliding_log 10/s", "sliding_log 5/min", 2),
    ] {
        let before = Limit::new(old);
        let after = Limit { key: before.key.clone(), terms: Limit::new(new).terms };
        store.call(Operation::Reset, START, &[before.part(0, &[])]);
        assert_eq!(store.call(TRY, START, &[before.part(3, &[])]).answer, Answer::Done);
        let told = store.call(Operation::Status, START, &[after.part(0, &[])]);
        assert_eq!(told.limits[0].available, available, "{old} to {new}");
    }
}

/// Every key expires, and not before it would report as much as a new one.
#[test]
fn a_key_expires_when_it_is_as_good_as_new() {
    let Some(mut store) = Store::new() else { return };
    const DAY: u64 = 86_400_000;
    for line in EXACT {
        let limit = Limit::new(line);
        for booked in [0, 3] {
            let part = || [limit.part(1, &[])];
            store.call(Operation::Reset, START, &part());
            let fresh = store.call(Operation::Status, START, &part());
            while store.call(TRY, START, &part()).answer == Answer::Done {}
            for _ in 0..booked {
                store.call(ANY_WAIT, START, &part());
            }
            let ttl: i64 = store.ttl(&limit);
            // Under a time that is set, keys are kept for one day more.
            let ttl = u64::try_from(ttl).expect("an expiry").saturating_sub(DAY) + 1000;
            let told = store.call(Operation::Status, START + ttl * 1000, &part());
            if !line.contains("start_with") && !line.starts_with("smooth") {
                assert_eq!(told.limits, fresh.limits, "{line}");
            }
            assert!(told.limits[0].available >= fresh.limits[0].available, "{line}");
        }
    }
}

/// Regression: a key expired at the very time at which a refused request was due, or much earlier,
/// if others changed the limit in between. The request began to wait anew.
#[test]
fn a_key_is_kept_for_a_refused_request_whatever_others_change() {
    let Some(mut store) = Store::new() else { return };
    let longest = Duration::from_secs(100);
    for (line, large) in [
        ("leaky_bucket 1/s", 11),
        ("leaky_bucket 100/s", 1001),
        ("token_bucket 1/s burst 60 start_with 1", 60),
    ] {
        for others in [
            Operation::Debit,
            Operation::Pause { span: Duration::from_millis(1), keep_permits: true },
            Operation::Reserve { longest, shadow: false },
            Operation::Refund { due: 0 },
        ] {
            let limit = Limit::new(line);
            let script = Script::shared([limit.terms.kind()]);
            let mut call = |operation, permits| {
                let command = command(&script, operation, None, &[limit.part(permits, &[])]);
                Reply::read(store.query(&script, &command), 1).expect("a reply")
            };
            call(Operation::Reset, 1);
            call(TRY, 1);
            let told = call(TRY, large);
            assert_eq!(told.answer, Answer::Refused, "{line}");
            call(others, 1);
            let ttl: i64 = store.ttl(&limit);
            let left = Duration::from_millis(ttl.try_into().expect("an expiry"));
            assert!(left > told.wait + Duration::from_secs(5), "{line}, {others:?}: {left:?}, {told:?}");
        }
    }
}

/// The idle time of a leaky bucket was lost while a request for it waited for another limit, and
/// the request was refused again.
#[test]
fn a_key_is_kept_for_a_request_that_another_limit_refuses() {
    let Some(mut store) = Store::new() else { return };
    let limits = ["token_bucket 3/min burst 4", "leaky_bucket 10/s"].map(Limit::new);
    let parts = |of_day, out| [limits[0].part(of_day, &[]), limits[1].part(out, &[])];
    assert_eq!(store.call(TRY, START, &parts(4, 1)).answer, Answer::Done);
    let now = START + 5_000_000;
    let told = store.call(TRY, now, &parts(4, 2));
    assert_eq!((told.answer, told.wait, told.tightest), (Answer::Refused, Duration::from_secs(75), Some(0)));
    for limit in &limits {
        let ttl: u64 = store.ttl(limit);
        // Under a time that is set, keys are kept for one day more.
        assert!(ttl > 86_400_000 + 75_000, "{} {ttl}", limit.key);
    }
    assert_eq!(store.call(TRY, now + 75_000_000, &parts(4, 2)).answer, Answer::Done);
}

/// Each refusal wrote a key that was kept for the request already.
#[test]
fn a_key_is_kept_for_a_refused_request_once() {
    let Some(mut store) = Store::new() else { return };
    let limits =
        ["fixed_window 1/7d from_first_grant", "token_bucket 1/s burst 60 start_with 1"].map(Limit::new);
    let parts = || [limits[0].part(1, &[]), limits[1].part(1, &[])];
    let script = Script::shared(limits.iter().map(|limit| limit.terms.kind()));
    let refused_and_written = |store: &mut Store| {
        let reply = store.query(&script, &command(&script, TRY, None, &parts()));
        let answer = Reply::read(reply, 2).expect("a reply").answer;
        let stats: String =
            redis::cmd("INFO").arg("commandstats").query(&mut store.connection).expect("text");
        let sets = stats.lines().find_map(|line| line.strip_prefix("cmdstat_set:calls="));
        let sets = sets.and_then(|sets| sets.split(',').next()).and_then(|sets| sets.parse::<u64>().ok());
        (answer == Answer::Refused, sets.expect("a number"))
    };
    assert!(!refused_and_written(&mut store).0);
    let (_, first) = refused_and_written(&mut store);
    for _ in 0..10 {
        assert_eq!(refused_and_written(&mut store), (true, first));
    }
}

/// The key of a limit that was paused for ever was kept for decades after the pause had been ended.
#[test]
fn a_key_is_not_kept_for_a_pause_that_has_been_ended() {
    let Some(mut store) = Store::new() else { return };
    for line in ["token_bucket 10/s burst 5 start_with 0", "smooth_bursty 5/s", "leaky_bucket 10/s"] {
        let limit = Limit::new(line);
        let script = Script::shared([limit.terms.kind()]);
        let mut call = |operation| {
            store.query(&script, &command(&script, operation, None, &[limit.part(1, &[])]));
        };
        call(TRY);
        call(Operation::Pause { span: Duration::from_secs(20 * 365 * 86_400), keep_permits: true });
        call(TRY);
        call(Operation::Resume);
        let ttl: u64 = store.ttl(&limit);
        assert!(ttl < 86_400_000 + 60_000, "{line}: {ttl} ms");
    }
}

/// The key of a bucket expired when the smaller of two bursts was full again, if both take equally
/// long to fill: the larger burst began anew each time.
#[test]
fn a_key_is_kept_until_the_larger_of_two_bursts_is_full() {
    let Some(mut store) = Store::new() else { return };
    for (wide, narrow) in [
        ("token_bucket 100/s burst 50", "token_bucket 10/s burst 5"),
        ("token_bucket 100/s burst 59", "token_bucket 10/s burst 5"),
        ("token_bucket 20/s burst 10", "token_bucket 10/s burst 5"),
        ("leaky_bucket 100/s nodelay 49", "leaky_bucket 10/s nodelay 4"),
    ] {
        let (wide, mut narrow) = (Limit::new(wide), Limit::new(narrow));
        narrow.key.clone_from(&wide.key);
        store.call(Operation::Reset, START, &[wide.part(1, &[])]);
        let full = store.call(Operation::Status, START, &[wide.part(0, &[])]).limits[0].available;
        assert_eq!(store.call(TRY, START, &[wide.part(full - 5, &[])]).answer, Answer::Done);
        for limit in [&narrow, &narrow] {
            assert_eq!(store.call(TRY, START, &[limit.part(1, &[])]).answer, Answer::Done);
            let ttl: u64 = store.ttl(limit);
            // Under a time that is set, keys are kept for one day more.
            let ttl = ttl - 86_400_000 + 1;
            let told = store.call(Operation::Status, START + ttl * 1_000, &[wide.part(0, &[])]);
            assert_eq!(told.limits[0].available, full, "{}: {ttl} ms", wide.key);
        }
    }
}

/// By the server's own time, without a time that is set.
#[test]
fn every_key_expires_and_an_idle_store_is_empty() {
    let Some(mut store) = Store::new() else { return };
    let lines = [
        "token_bucket 5000/s burst 50",
        "leaky_bucket 5000/s",
        "fixed_window 50/10ms",
        "sliding_window 50/10ms cells 5",
        "sliding_estimate 50/10ms",
        "sliding_log 50/10ms",
    ];
    let limits = lines.map(Limit::new);
    for i in 0..u64::try_from(calls() / 5).expect("small") {
        let limit = &limits[usize::try_from(i).expect("small") % limits.len()];
        let operation = match i % 7 {
            0 => Operation::Refund { due: 0 },
            1 => Operation::Debit,
            2 => Operation::Pause { span: Duration::from_millis(1), keep_permits: i % 2 == 0 },
            _ => ANY_WAIT,
        };
        let script = Script::shared([limit.terms.kind()]);
        let value = store.query(&script, &command(&script, operation, None, &[limit.part(1, &[])]));
        let reply = Reply::read(value, 1).expect("a reply");
        assert_ne!(reply.answer, Answer::Shadow);
        let ttl: i64 = store.ttl(limit);
        assert_ne!(ttl, -1, "{} never expires", limit.key);
    }
    wait_until("no key is left", || {
        let ttls = limits.iter().map(|limit| store.ttl::<i64>(limit));
        assert!(ttls.max().expect("limits") < 60_000, "a key is kept for long");
        redis::cmd("DBSIZE").query::<u64>(&mut store.connection).expect("a size") == 0
    });
}

/// A refusal by several limits wrote the key of a bucket that is full before the others, each time.
#[test]
fn a_refusal_writes_no_key_of_a_limit_that_starts_full() {
    let Some(mut store) = Store::new() else { return };
    let limits = ["token_bucket 100/d burst 100", "fixed_window 100/7d", "sliding_estimate 100/7d"];
    let limits = limits.map(Limit::new);
    let parts = |n| limits.each_ref().map(|limit| limit.part(n, &[]));
    let script = Script::shared(limits.iter().map(|limit| limit.terms.kind()));
    let mut call = |n| {
        let reply = store.query(&script, &command(&script, TRY, None, &parts(n)));
        let answer = Reply::read(reply, limits.len()).expect("a reply").answer;
        let stats: String =
            redis::cmd("INFO").arg("commandstats").query(&mut store.connection).expect("text");
        let sets = stats.lines().find_map(|line| line.strip_prefix("cmdstat_set:calls="));
        (answer, sets.and_then(|sets| sets.split(',').next()).map(str::to_owned))
    };
    let (granted, first) = call(100);
    assert_eq!(granted, Answer::Done);
    for n in [1, 7, 100] {
        assert_eq!(call(n), (Answer::Refused, first.clone()));
    }
}
