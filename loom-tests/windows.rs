//! Models one word that turns with time: a window that ends while threads take permits from it and
//! give permits back to it.

use std::sync::Arc;

use loom::thread;

use super::support::{model, model_of_three};
use crate::policy::state::{FixedCharge, FixedState};
use crate::policy::{FixedWindow, LeakyBucket, Policy, SlidingEstimate, TokenBucket};
use crate::rate::Rate;
use crate::time::Nanos;

const SECOND: u64 = 1_000_000_000;

/// Returns how many of three takers are granted in a new window, if the last permit of the old
/// window was taken.
fn granted_of_three<P: Policy>(policy: P, at: u64) -> usize {
    let policy = Arc::new(policy);
    let state = Arc::new(policy.start(Nanos::ZERO));
    policy.try_acquire(&state, Nanos::ZERO, 1).expect("the first");
    let others: Vec<_> = (0..2)
        .map(|_| {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || usize::from(policy.try_acquire(&state, Nanos::new(at), 1).is_ok()))
        })
        .collect();
    let mine = usize::from(policy.try_acquire(&state, Nanos::new(at), 1).is_ok());
    mine + others.into_iter().map(|other| other.join().expect("no panic")).sum::<usize>()
}

#[test]
fn a_fixed_window_turns_once() {
    model_of_three(|| assert_eq!(granted_of_three(FixedWindow::new(Rate::per_second(1)), SECOND), 1));
}

#[test]
fn a_window_begins_with_one_first_grant() {
    model_of_three(|| {
        let policy = FixedWindow::new(Rate::per_second(1)).from_first_grant();
        assert_eq!(granted_of_three(policy, SECOND), 1);
    });
}

#[test]
fn an_estimate_turns_once() {
    // Two seconds later, so that the first permit no longer counts.
    model_of_three(|| assert_eq!(granted_of_three(SlidingEstimate::new(Rate::per_second(1)), 2 * SECOND), 1));
}

#[test]
fn a_bucket_s_token_is_taken_once() {
    model_of_three(|| assert_eq!(granted_of_three(TokenBucket::new(Rate::per_second(1), 1), SECOND), 1));
}

#[test]
fn a_leaky_bucket_lets_one_out() {
    model_of_three(|| assert_eq!(granted_of_three(LeakyBucket::new(Rate::per_second(1)), SECOND), 1));
}

/// A permit of the old window is given back by `give_back` while another thread turns the window.
/// The new window is not credited with it.
fn given_back_while_it_turns(give_back: fn(&FixedWindow, &FixedState, FixedCharge)) {
    model(move || {
        let policy = Arc::new(FixedWindow::new(Rate::per_second(1)));
        let state = Arc::new(policy.start(Nanos::ZERO));
        let charge = policy.try_acquire(&state, Nanos::ZERO, 1).expect("the first");
        let giving_back = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || give_back(&policy, &state, charge))
        };
        let now = Nanos::new(SECOND);
        assert!(policy.try_acquire(&state, now, 1).is_ok());
        giving_back.join().expect("no panic");
        assert!(policy.try_acquire(&state, now, 1).is_err(), "one in the new window");
    });
}

#[test]
fn a_late_refund_is_not_in_the_new_window() {
    given_back_while_it_turns(|policy, state, charge| {
        policy.undo(state, Nanos::ZERO, charge, u64::MAX);
    });
}

/// The broken twin: gives back to the window that is open, whichever it is.
#[test]
#[should_panic(expected = "one in the new window")]
fn broken_a_late_refund_is_not_in_the_new_window() {
    given_back_while_it_turns(|policy, state, _| {
        policy.refund(state, Nanos::ZERO, 1);
    });
}
