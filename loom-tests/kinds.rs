//! Models a change of the kind of policy against requests: exactly the available permits are
//! granted, and a request is not refused while permits are available.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::support::{model, model_of_three};
use crate::error::Refusal;
use crate::policy::state::{AnyCharge, AnyState};
use crate::policy::{AnyPolicy, Keep, Policy, Step};
use crate::time::Nanos;

const NOW: Nanos = Nanos::new(1_000_000_000);

/// Two permits each; none accrues while the model runs.
const KINDS: [&str; 7] = [
    "token_bucket 1/h burst 2",
    "leaky_bucket 1/h nodelay 1",
    "smooth_bursty 1/h max_burst 1h start_full",
    "fixed_window 2/h",
    "sliding_estimate 2/h",
    "sliding_window 2/h cells 1",
    "sliding_log 2/h",
];

/// One permit, because it stores none. The next one is due an hour later.
const WARMING_UP: &str = "smooth_warming_up 1/h warm_up 1h start_warm";

fn policy(line: &str) -> AnyPolicy {
    line.parse().expect("a policy")
}

fn replace(policy: &AnyPolicy, state: &AnyState, new: &str) {
    let step = policy.step_to(&new.parse().expect("a configuration"), Duration::ZERO).expect("a policy");
    assert!(matches!(step, Step::Replace(_)), "another kind");
    policy.make_step(state, NOW, &|| NOW, step, Keep::Count).expect("no error");
}

/// Tries `tries` times in one thread while another thread makes a change, then takes the rest.
/// Returns how many permits were granted, and the refusals meanwhile.
fn granted(
    line: &'static str,
    tries: usize,
    change: impl Fn(&AnyPolicy, &AnyState),
    try_acquire: fn(&AnyPolicy, &AnyState) -> Result<(), Refusal>,
) -> (usize, Vec<Refusal>) {
    let policy = policy(line);
    let state = policy.start(Nanos::ZERO);
    let both = Arc::new((policy, state));
    let other = {
        let both = both.clone();
        thread::spawn(move || (0..tries).map(|_| try_acquire(&both.0, &both.1)).collect::<Vec<_>>())
    };
    change(&both.0, &both.1);
    let answers = other.join().expect("no panic");
    let rest = (0..4).take_while(|_| take(&both.0, &both.1).is_ok()).count();
    let meanwhile = answers.iter().filter(|answer| answer.is_ok()).count();
    (meanwhile + rest, answers.into_iter().filter_map(Result::err).collect())
}

fn take(policy: &AnyPolicy, state: &AnyState) -> Result<(), Refusal> {
    policy.try_acquire(state, NOW, 1).map(drop)
}

/// The refusal while a change stalls.
fn asks_for_a_retry(refusal: &Refusal) -> bool {
    refusal.retry_after() == Some(Duration::from_nanos(1))
}

/// One request against a change of the kind by `change`.
fn changes(
    line: &'static str,
    new: &'static str,
    permits: usize,
    change: fn(&AnyPolicy, &AnyState, &'static str),
) {
    model_of_three(move || {
        let (granted, refusals) = granted(line, 1, |policy, state| change(policy, state, new), take);
        assert_eq!(granted, permits, "as many as there were");
        assert!(refusals.iter().all(asks_for_a_retry), "there were permits all the time");
    });
}

fn changes_from(line: &'static str) {
    for new in KINDS.into_iter().filter(|new| *new != line) {
        changes(line, new, 2, replace);
    }
}

#[test]
fn a_bucket_becomes_another_kind() {
    changes_from("token_bucket 1/h burst 2");
}

#[test]
fn a_leaky_bucket_becomes_another_kind() {
    changes_from("leaky_bucket 1/h nodelay 1");
}

#[test]
fn a_bursty_limiter_becomes_another_kind() {
    changes_from("smooth_bursty 1/h max_burst 1h start_full");
}

#[test]
fn a_fixed_window_becomes_another_kind() {
    changes_from("fixed_window 2/h");
}

#[test]
fn an_estimate_becomes_another_kind() {
    changes_from("sliding_estimate 2/h");
}

#[test]
fn a_sliding_window_becomes_another_kind() {
    changes_from("sliding_window 2/h cells 1");
}

#[test]
fn a_log_becomes_another_kind() {
    changes_from("sliding_log 2/h");
}

#[test]
fn a_warming_up_limiter_becomes_another_kind_and_back() {
    for other in KINDS {
        changes(WARMING_UP, other, 1, replace);
        changes(other, WARMING_UP, 1, replace);
    }
}

/// More requests than permits, and two changes of the kind, one after the other.
#[test]
fn two_changes_grant_nothing_twice() {
    model_of_three(|| {
        let change = |policy: &AnyPolicy, state: &AnyState| {
            replace(policy, state, "fixed_window 2/h");
            replace(policy, state, "token_bucket 1/h burst 2");
        };
        let (granted, _) = granted("token_bucket 1/h burst 2", 3, change, take);
        assert_eq!(granted, 2, "as many as there were");
    });
}

/// A window gives back without the lock. Both permits are taken, and one of them is undone by
/// `undo` while the kind changes. It is available afterwards, or lost, and not available twice.
fn undone_meanwhile(line: &'static str, undo: fn(&AnyPolicy, &AnyState, AnyCharge)) {
    model_of_three(move || {
        let policy = policy(line);
        let state = policy.start(Nanos::ZERO);
        let take = || policy.try_acquire(&state, NOW, 1).expect("available");
        // A log allocates what an undo needs, in a cell that loom does not see.
        policy.undo(&state, NOW, take(), u64::MAX);
        let charge = take();
        take();
        let both = Arc::new((policy, state));
        let other = {
            let both = both.clone();
            thread::spawn(move || undo(&both.0, &both.1, charge))
        };
        replace(&both.0, &both.1, "token_bucket 1/h burst 2");
        other.join().expect("no panic");
        let left = (0..4).take_while(|_| self::take(&both.0, &both.1).is_ok()).count();
        assert!(left <= 1, "only one was undone: {left}");
    });
}

#[test]
fn a_permit_that_is_undone_meanwhile_is_not_invented() {
    for line in ["sliding_log 2/h", "fixed_window 2/h", "sliding_estimate 2/h", "sliding_window 2/h cells 1"]
    {
        undone_meanwhile(line, |policy, state, charge| {
            policy.undo(state, NOW, charge, u64::MAX);
        });
    }
}

/// The broken twin: gives back once more if the kind has changed.
#[test]
#[should_panic(expected = "only one was undone")]
fn broken_a_permit_that_is_undone_meanwhile_is_not_invented() {
    undone_meanwhile("sliding_window 2/h cells 1", |policy, state, charge| {
        policy.undo(state, NOW, charge, u64::MAX);
        if policy.config() != "sliding_window 2/h cells 1".parse().expect("a configuration") {
            policy.refund(state, NOW, 1);
        }
    });
}

/// The broken twin: reads the old state, and does not shut it.
#[test]
#[should_panic(expected = "as many as there were")]
fn broken_a_bucket_becomes_another_kind() {
    changes("token_bucket 1/h burst 2", "fixed_window 2/h", 2, |old, state, new| {
        old.replace_without_shutting(state, NOW, &policy(new), Keep::Count);
    });
}

/// The broken twin: returns the refusal of a state that was shut.
#[test]
#[should_panic(expected = "there were permits all the time")]
fn broken_a_refusal_by_an_old_kind_is_returned() {
    model(|| {
        let once = |policy: &AnyPolicy, state: &AnyState| policy.try_acquire_once(state, NOW, 1);
        let change = |policy: &AnyPolicy, state: &AnyState| replace(policy, state, "fixed_window 2/h");
        let (_, refusals) = granted("token_bucket 1/h burst 2", 1, change, once);
        assert!(refusals.iter().all(asks_for_a_retry), "there were permits all the time");
    });
}
