//! Models the CAS loop, with one number and with two numbers in one word.

use loom::thread;
use std::sync::Arc;
use std::time::Duration;

use super::support::{model, model_of_three};
use crate::policy::atomic_word::{AtomicWord, update};
use crate::policy::state::{BurstyState, WarmingUpCharge, WarmingUpState};
use crate::policy::{Change, Policy, SmoothBursty, SmoothWarmingUp};
use crate::rate::Rate;
use crate::sync::{AtomicU64, Ordering};
use crate::time::Nanos;

/// Two takers race for one permit, by `take`. One of them gets it.
fn two_takers(take: fn(&SmoothBursty, &BurstyState) -> bool) {
    model(move || {
        let policy = Arc::new(SmoothBursty::new(Rate::per_second(1)));
        let state = Arc::new(policy.start(Nanos::ZERO));
        let other = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || take(&policy, &state))
        };
        let mine = take(&policy, &state);
        assert!(mine != other.join().expect("no panic"), "one of the two");
    });
}

#[test]
fn one_permit_is_taken_once() {
    two_takers(|policy, state| policy.try_acquire(state, Nanos::ZERO, 1).is_ok());
}

/// The broken twin: decides in one step, and takes in another.
#[test]
#[should_panic(expected = "one of the two")]
fn broken_one_permit_is_taken_once() {
    two_takers(|policy, state| {
        let is_due = policy.ready_at(state, Nanos::ZERO, 0, 1) == Nanos::ZERO;
        if is_due {
            policy.debit(state, Nanos::ZERO, 1);
        }
        is_due
    });
}

/// Three threads add different numbers by `add`. The sum equals that of one thread.
fn three_grants(add: fn(&AtomicU64, u64)) {
    model_of_three(move || {
        let state = Arc::new(AtomicU64::new(0));
        let others: Vec<_> = [10, 100]
            .into_iter()
            .map(|n| {
                let state = state.clone();
                thread::spawn(move || add(&state, n))
            })
            .collect();
        add(&state, 1);
        for other in others {
            other.join().expect("no panic");
        }
        assert_eq!(AtomicWord::load(&*state), 111, "the sum");
    });
}

#[test]
fn no_grant_is_lost() {
    three_grants(|state, n| update(state, |word| Ok::<_, ()>((word + n, ()))).expect("never refused"));
}

/// The broken twin: a load and a store.
#[test]
#[should_panic(expected = "the sum")]
fn broken_no_grant_is_lost() {
    three_grants(|state, n| state.store(AtomicWord::load(state) + n, Ordering::Relaxed));
}

/// A taker, and a thread that gives back by `undo`, share a warming-up limiter. The two numbers
/// change together, so the result is that of some order of the two operations.
fn take_against_undo(undo: fn(&SmoothWarmingUp, &WarmingUpState, WarmingUpCharge)) {
    model(move || {
        let policy = Arc::new(SmoothWarmingUp::new(Rate::per_second(2), Duration::from_secs(4)).start_warm());
        let state = Arc::new(policy.start(Nanos::ZERO));
        let charge = policy.try_acquire(&state, Nanos::ZERO, 1).expect("the first");
        let other = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || policy.try_acquire(&state, HALF_A_SECOND, 2).is_ok())
        };
        undo(&policy, &state, charge);
        assert!(other.join().expect("no panic"), "due at 0.5 s at the latest");
        let due = policy.ready_at(&state, HALF_A_SECOND, 0, 1);
        // Undone first: free since 0, two permits taken at 0.5 s cost 1 s. Taken first: 1 s less
        // the half second.
        let of_some_order = due == Nanos::new(1_500_000_000) || due == Nanos::new(1_000_000_000);
        assert!(of_some_order, "of some order: {due:?}");
    });
}

const HALF_A_SECOND: Nanos = Nanos::new(500_000_000);

#[test]
fn two_numbers_change_together() {
    take_against_undo(|policy, state, charge| {
        policy.undo(state, Nanos::ZERO, charge, u64::MAX);
    });
}

/// The broken twin: finds the state as the grant left it, and then restores the state of before.
#[test]
#[should_panic(expected = "of some order")]
fn broken_two_numbers_change_together() {
    take_against_undo(|policy, state, charge| {
        if policy.ready_at(state, Nanos::ZERO, 0, 1) == HALF_A_SECOND {
            policy.change(state, Nanos::ZERO, Change::reset()).expect("a reset");
        } else {
            policy.undo(state, Nanos::ZERO, charge, u64::MAX);
        }
    });
}
