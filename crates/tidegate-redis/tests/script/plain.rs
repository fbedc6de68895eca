//! Plain requests (`plain.lua`): decided with the reply, the value and the expiry that the other
//! files give.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redis::Value;

use crate::script::{Mode, ReserveRequest, Script};
use crate::script_tests::conformance::EXACT;
use crate::script_tests::{Limit, Operation, START, Store, command, intervals, reserve};

/// Returns the script of some limits, which also notes when a key is to expire. Without `plain` the
/// other files decide all requests.
fn script(limits: &[Vec<Limit>], plain: bool) -> Script {
    let kinds = limits.iter().flatten().map(|limit| limit.terms.kind());
    let text = Script::shared(kinds).text.clone();
    let set = "call('SET', key, value, option, time)";
    let parted = "call('SET', key, value)\ncall('SET', key .. '-ends', time)";
    assert!(text.contains(set) && text.contains("local is_plain = not has_back and"));
    let text = text.replace(set, parted);
    Script::new(if plain {
        text
    } else {
        text.replace("local is_plain = not has_back and", "local is_plain = false and")
    })
}

/// Makes random calls for a set of limits with each script. For each limit there are the lines of
/// some processes.
fn decides_as_the_other_files(store: &mut Store, lines: &[&[&str]], seed: u64) {
    let limits: Vec<Vec<Limit>> =
        lines.iter().map(|lines| lines.iter().map(|line| Limit::new(line)).collect()).collect();
    let scripts = [true, false].map(|plain| script(&limits, plain));
    let mut random = SmallRng::seed_from_u64(seed);
    let interval = limits.iter().map(|limits| intervals(&limits[0], 1.0)).max().unwrap_or_default();
    let interval = interval.clamp(2, 10_000_000);
    let mut now = START;
    for call in 0..1500 {
        now += match random.random_range(0..10) {
            0..4 => 0,
            4..9 => random.random_range(0..=3 * interval),
            _ => random.random_range(0..=40 * interval),
        };
        if random.random_bool(0.01) {
            now -= [interval, 4000 * interval][random.random_range(0..2)];
        }
        // Now and then another process has other terms. Of several limits, some are not asked for.
        let (mut chosen, mut costs) = (Vec::new(), Vec::new());
        for limits in &limits {
            let i = if random.random_bool(0.1) { random.random_range(0..limits.len()) } else { 0 };
            let most = limits[i].terms.limit.clamp(1, 6);
            let n = if random.random_bool(0.1) { 0 } else { random.random_range(0..=most) };
            costs.push((n, n + u64::from(random.random_bool(0.1))));
            chosen.push(&limits[i]);
        }
        let operation = match random.random_range(0..60) {
            0 => Some(Operation::Debit),
            1 => Some(Operation::Refund { due: now.cast_signed() }),
            2 => Some(Operation::Keep),
            3 => {
                let span = Duration::from_micros(random.random_range(1..3 * interval));
                Some(Operation::Pause { span, keep_permits: random.random() })
            }
            4 => Some(Operation::Resume),
            _ => None,
        };
        let longest = match random.random_range(0..10) {
            0 => Duration::from_micros(random.random_range(0..3 * interval)),
            _ => Duration::ZERO,
        };
        let mode = [Mode::Shadow, Mode::Behind, Mode::Normal][random.random_range(0..20).min(2)];
        let request = ReserveRequest { longest, mode, wants_state: random.random(), costs };
        let [plain, other] = [0, 1].map(|i| {
            let key = |part: usize| format!("{}-{seed}-{i}-{part}", limits[part][0].key);
            let named: Vec<Limit> = (0..chosen.len())
                .map(|part| Limit { key: key(part), terms: chosen[part].terms.clone() })
                .collect();
            let costs = named.iter().zip(&request.costs);
            let parts: Vec<_> = costs.map(|(limit, (n, _))| limit.part(*n, &[])).collect();
            let cmd = match operation {
                Some(operation) => command(&scripts[i], operation, Some(now), &parts),
                None => reserve(&scripts[i], Some(now), &parts, &[], std::slice::from_ref(&request)),
            };
            let reply = store.query(&scripts[i], &cmd);
            let mut states = redis::cmd("MGET");
            for limit in &named {
                states.arg(&limit.key).arg(format!("{}-ends", limit.key));
            }
            (reply, states.query::<Value>(&mut store.connection).expect("values"))
        });
        assert_eq!(plain, other, "{lines:?}, seed {seed}, call {call} at {now}: {operation:?} {request:?}");
    }
}

#[test]
fn a_plain_request_is_decided_as_by_the_other_files() {
    let Some(mut store) = Store::new() else { return };
    for (seed, line) in (0..).zip(EXACT) {
        decides_as_the_other_files(&mut store, &[&[line]], seed);
    }
    let others: [&[&str]; 5] = [
        &["token_bucket 5/s burst 10", "token_bucket 7/s burst 3", "token_bucket zero burst 10"],
        &["token_bucket zero burst 10", "token_bucket 5/s burst 10"],
        &["smooth_bursty 5/s", "smooth_bursty 7/s", "smooth_bursty zero"],
        &["leaky_bucket 10/s nodelay 3", "leaky_bucket 1/s nodelay 5"],
        &["fixed_window 10/s", "fixed_window 4/min", "fixed_window zero"],
    ];
    for (seed, lines) in (100..).zip(others) {
        decides_as_the_other_files(&mut store, &[lines], seed);
    }
}

#[test]
fn a_plain_request_at_several_limits_is_decided_as_by_the_other_files() {
    let Some(mut store) = Store::new() else { return };
    // Each policy beside the next one.
    for (seed, (i, line)) in (200..).zip(EXACT.iter().enumerate()) {
        decides_as_the_other_files(&mut store, &[&[line], &[EXACT[(i + 1) % EXACT.len()]]], seed);
    }
    let others: [&[&[&str]]; 4] = [
        &[
            &["token_bucket 5/s burst 10", "token_bucket 7/s burst 3", "token_bucket zero burst 10"],
            &["smooth_bursty 5/s", "smooth_bursty zero"],
            &["fixed_window 100/min", "fixed_window zero"],
        ],
        &[&["leaky_bucket 10/s nodelay 3", "leaky_bucket 1/s"], &["sliding_log 20/s", "sliding_log 7/s"]],
        &[&["sliding_window 10/s cells 10"], &["sliding_estimate 50/s"], &["token_bucket 5/s burst 3"]],
        &[&["fixed_window 10/s from_first_grant"], &["leaky_bucket 5/s", "leaky_bucket zero"]],
    ];
    for (seed, lines) in (300..).zip(others) {
        decides_as_the_other_files(&mut store, lines, seed);
    }
}
