//! Models lowering the available permits, against a request and against another thread that lowers
//! them.

use std::sync::Arc;

use loom::thread;

use super::support::model_up_to;
use crate::policy::{
    Both, FixedWindow, LeakyBucket, Policy, SlidingEstimate, SlidingLog, SlidingWindow, SmoothBursty,
    SmoothWarmingUp, TokenBucket,
};
use crate::rate::Rate;
use crate::time::Nanos;

const AT: Nanos = Nanos::new(1_000_000_000);

/// Lowers the available permits to at most a number. Returns how many it took.
type Keep<P> = fn(&P, &<P as Policy>::State, u64) -> u64;

fn keep<P: Policy>(policy: &P, state: &P::State, permits: u64) -> u64 {
    policy.keep_at_most(state, AT, permits)
}

/// The broken twin: reads the available permits, and then takes the excess it has seen.
fn read_and_take<P: Policy>(policy: &P, state: &P::State, permits: u64) -> u64 {
    let taken = policy.status(state, AT).beyond(permits);
    policy.debit(state, AT, u32::try_from(taken).expect("a few"));
    taken
}

fn left<P: Policy>(policy: &P, state: &P::State) -> u64 {
    policy.status(state, AT).available
}

/// Five permits are lowered to three while a request takes four. If the request comes first, one
/// permit is left, and none is taken. Otherwise the request is refused, and three are left.
fn against_a_request<P: Policy>(make: fn() -> P, keep: Keep<P>) {
    model_up_to(3, move || {
        let policy = Arc::new(make());
        let state = Arc::new(policy.start(Nanos::ZERO));
        assert_eq!(left(&*policy, &state), 5);
        let taker = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || policy.try_acquire(&state, AT, 4).is_ok())
        };
        let taken = keep(&policy, &state, 3);
        let seen = (taken, taker.join().expect("no panic"), left(&*policy, &state));
        assert!([(2, false, 3), (0, true, 1)].contains(&seen), "in some order: {seen:?}");
    });
}

/// Two threads lower five permits to three, or to three and to one. Each permit is taken once.
fn against_another<P: Policy>(make: fn() -> P, keep: Keep<P>) {
    for other in [3, 1] {
        model_up_to(3, move || {
            let policy = Arc::new(make());
            let state = Arc::new(policy.start(Nanos::ZERO));
            let second = {
                let (policy, state) = (policy.clone(), state.clone());
                thread::spawn(move || keep(&policy, &state, other))
            };
            let taken = keep(&policy, &state, 3) + second.join().expect("no panic");
            assert_eq!((taken, left(&*policy, &state)), (5 - other, other), "taken once");
        });
    }
}

fn both_models<P: Policy>(make: fn() -> P) {
    against_a_request(make, keep);
    against_another(make, keep);
}

fn five() -> Rate {
    Rate::per_second(5)
}

fn token_bucket() -> TokenBucket {
    TokenBucket::new(five(), 5)
}

#[test]
fn buckets_are_lowered_in_one_step() {
    both_models(token_bucket);
    both_models(|| LeakyBucket::new(five()).nodelay(4));
}

#[test]
fn a_stock_is_lowered_in_one_step() {
    against_another(|| SmoothBursty::new(Rate::per_second(4)).start_full(), keep);
}

/// A cold permit is taken once.
#[test]
fn a_permit_on_credit_is_taken_once() {
    model_up_to(3, || {
        let warm_up = std::time::Duration::from_secs(4);
        let policy = Arc::new(SmoothWarmingUp::new(five(), warm_up));
        let state = Arc::new(policy.start(Nanos::ZERO));
        let taker = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || policy.try_acquire(&state, AT, 1).is_ok())
        };
        let taken = keep(&*policy, &state, 0);
        assert!((taken == 1) != taker.join().expect("no panic"), "once");
        assert_eq!(left(&*policy, &state), 0);
    });
}

#[test]
fn windows_are_lowered_in_one_step() {
    both_models(|| FixedWindow::new(five()));
    both_models(|| SlidingEstimate::new(five()));
}

#[test]
fn a_sliding_window_is_lowered_in_one_step() {
    both_models(|| SlidingWindow::new(five(), 2));
}

#[test]
fn a_log_is_lowered_in_one_step() {
    both_models(|| SlidingLog::new(five()));
}

/// The second policy is charged as many permits as were taken from the first, so its surplus over
/// the first stays.
#[test]
fn two_policies_are_lowered_by_as_much() {
    type Two = Both<TokenBucket, TokenBucket>;
    fn check(act: fn(&Two, &<Two as Policy>::State)) {
        model_up_to(3, move || {
            let policy = Arc::new(token_bucket().and(TokenBucket::new(five(), 8)));
            let state = Arc::new(policy.start(Nanos::ZERO));
            let other = {
                let (policy, state) = (policy.clone(), state.clone());
                thread::spawn(move || act(&policy, &state))
            };
            keep(&*policy, &state, 3);
            other.join().expect("no panic");
            let [first, second] = [left(policy.first(), &state.first), left(policy.second(), &state.second)];
            assert!(first <= 3 && second == first + 3, "{first} and {second} are left");
        });
    }
    check(|policy, state| assert_eq!(policy.try_acquire(state, AT, 1).map(drop), Ok(())));
    check(|policy, state| assert!(keep(policy, state, 3) <= 2));
}

#[test]
#[should_panic(expected = "in some order")]
fn broken_against_a_request() {
    against_a_request(token_bucket, read_and_take);
}

#[test]
#[should_panic(expected = "taken once")]
fn broken_against_another() {
    against_another(token_bucket, read_and_take);
}
