//! Processes with different terms for one limit, as while a configuration is rolled out.

use std::time::Duration;

use tidegate::AnyLimiter;
use tidegate_redis::Store;
use tokio::time::{Instant, sleep};

use crate::{MS, on_model};

fn limiter(store: &Store, tag: &str, line: &str) -> AnyLimiter {
    store.limiter(tag).limit("calls", line).build().unwrap().into()
}

/// The permits that each of the limiters gets if they ask in turn.
async fn in_turn(limiters: &[&AnyLimiter], time: Duration, rest: Duration) -> u64 {
    let (began, mut granted) = (Instant::now(), 0);
    while began.elapsed() < time {
        let mut is_granted = true;
        while is_granted {
            is_granted = false;
            for limiter in limiters {
                is_granted |= limiter.acquire_now(1).await.inspect(|_| granted += 1).is_ok();
            }
        }
        sleep(rest).await;
    }
    granted
}

/// A key expired when its limit was full again by the terms of the process that wrote it last:
/// 1,000 permits a day were granted each second.
#[test]
fn buckets_of_other_rates_have_one_state() {
    for (lines, burst, rate) in [
        (["token_bucket 1000/d burst 1000", "token_bucket 10/s burst 10"], 1000, 10),
        (["token_bucket 100/s burst 100", "token_bucket 100/s burst 10"], 100, 100),
        (["token_bucket 39/s burst 1", "token_bucket 24/min burst 59"], 59, 39),
        (["token_bucket 60/min burst 60 interval_refill", "token_bucket 10/s burst 10"], 60, 10),
        (["smooth_bursty 10/s max_burst 60s start_full", "smooth_bursty 10/s start_full"], 601, 10),
        (["leaky_bucket 1/s nodelay 99", "leaky_bucket 10/s nodelay 9"], 100, 10),
    ] {
        for (seconds, rest) in [(10, 150 * MS), (60, 150 * MS), (60, 1500 * MS), (60, 5000 * MS)] {
            let granted = on_model(async |model| {
                let store = model.open(Store::builder("redis://model")).unwrap();
                let limiters = lines.map(|line| limiter(&store, "all", line));
                let time = Duration::from_secs(seconds);
                in_turn(&limiters.each_ref(), time, rest).await
            });
            assert!(granted <= burst + rate * (seconds + 5), "{lines:?}: {granted} in {seconds} s");
        }
    }
}

/// Windows of different lengths have separate states: 100 times the sum of both was granted.
#[test]
fn windows_of_other_lengths_are_other_limits() {
    for (lines, seconds) in [
        (["fixed_window 1000/d", "fixed_window 10/min"], 7200),
        (["fixed_window 1000/min from_first_grant", "fixed_window 10/s from_first_grant"], 120),
        (["sliding_window 1000/min cells 6", "sliding_window 10/s cells 6"], 120),
        (["sliding_window 1000/min cells 6", "sliding_window 1000/min cells 5"], 120),
        (["sliding_estimate 1000/min", "sliding_estimate 10/s"], 120),
        (["sliding_log 1000/min", "sliding_log 10/s"], 120),
    ] {
        let (together, alone) = on_model(async |model| {
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limiters = lines.map(|line| limiter(&store, "all", line));
            let others = [limiter(&store, "first", lines[0]), limiter(&store, "second", lines[1])];
            let (time, rest) = (Duration::from_secs(seconds), Duration::from_millis(seconds * 10));
            let (all, [first, second]) = (limiters.each_ref(), others.each_ref());
            let alone = async { in_turn(&[first], time, rest).await + in_turn(&[second], time, rest).await };
            tokio::join!(in_turn(&all, time, rest), alone)
        });
        assert!(together <= alone, "{lines:?}: {together}, apart {alone}");
    }
}

/// A tool with other terms pauses or debits a limit, and its permits are still used up.
#[test]
fn a_tool_with_other_terms_fills_no_limit() {
    for (line, permits, tools) in [
        ("token_bucket 1000/d burst 1000", 1000, ["token_bucket 1/s burst 1", "token_bucket 100/s burst 20"]),
        ("fixed_window 1000/d", 1000, ["fixed_window 1/s", "fixed_window 10/d"]),
        (
            "sliding_window 1000/d cells 24",
            1000,
            ["sliding_window 1/s cells 2", "sliding_window 10/d cells 24"],
        ),
        ("sliding_estimate 1000/d", 1000, ["sliding_estimate 1/s", "sliding_estimate 10/d"]),
        ("sliding_log 100/h", 100, ["sliding_log 1/s", "sliding_log 10/h"]),
    ] {
        for (tool, call) in tools.into_iter().flat_map(|tool| [0, 1, 2, 3].map(|call| (tool, call))) {
            let granted = on_model(async |model| {
                let store = model.open(Store::builder("redis://model")).unwrap();
                let fleet = limiter(&store, "all", line);
                let _permits = fleet.acquire_now(permits).await.unwrap();
                sleep(2500 * MS).await;
                let other = store.limiter("all").limit("calls", tool).build().unwrap();
                match call {
                    0 => other.pause(tidegate::Pause::lasting(500 * MS).keep_permits()).await.unwrap(),
                    1 => other.debit(1).await.unwrap(),
                    2 => other.debit(500).await.unwrap(),
                    _ => _ = other.acquire_now(1).await.is_ok(),
                }
                sleep(2500 * MS).await;
                in_turn(&[&fleet], 100 * MS, 100 * MS).await
            });
            // The permits that the tool's rate adds to a bucket are available, up to the tool's
            // burst.
            let most = if tool.ends_with("burst 20") { 20 } else { 1 };
            assert!(granted <= most, "{line}, {tool}, {call}: {granted}");
        }
    }
}

/// Two forms of the fixed window had one key and different values: once the other form had written
/// the value, the store decided no request until the key expired.
#[test]
fn each_policy_decides_after_each_other_one() {
    const POLICIES: [&str; 20] = [
        "token_bucket 50/s burst 50",
        "token_bucket 50/s burst 50 interval_refill",
        "token_bucket 50/s burst 50 at_wall_clock 0s",
        "token_bucket 7/3s burst 20 tolerance 500ms",
        "token_bucket 50/s burst 20 start_with 0",
        "leaky_bucket 50/s capacity 20 nodelay 8",
        "leaky_bucket 50/s",
        "smooth_bursty 50/s max_burst 1s start_full",
        "smooth_bursty 50/s max_burst 0s",
        "fixed_window 50/s",
        "fixed_window 50/s at_wall_clock 100ms",
        "fixed_window 50/s from_first_grant",
        "sliding_window 50/s cells 4",
        "sliding_window 50/s cells 4 at_wall_clock 100ms",
        "sliding_window 50/s cells 10",
        "sliding_estimate 50/s",
        "sliding_estimate 50/s at_wall_clock 100ms",
        "sliding_log 50/s",
        "sliding_log 50/s with_capacity 100",
        "deny_all",
    ];
    for (old, new) in POLICIES.into_iter().flat_map(|old| POLICIES.map(|new| (old, new))) {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limiters = [old, new].map(|line| limiter(&store, "all", line));
            for limiter in [&limiters[0], &limiters[1], &limiters[0]] {
                for _ in 0..3 {
                    // The second wait is dropped, so that its booking goes back.
                    let waits = [limiter.acquire_many(10), limiter.acquire_many(3)];
                    for wait in waits {
                        _ = tokio::time::timeout(30 * MS, wait).await;
                    }
                }
                let status = limiter.acquire_now(1).await;
                assert!(!status.is_err_and(|refusal| refusal.is_degraded()), "{old}, then {new}");
            }
            assert_eq!(store.counts().misconfigured, 0, "{old}, then {new}: {:?}", store.trouble());
        });
    }
}
