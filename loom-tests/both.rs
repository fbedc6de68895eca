//! Models requests to two policies at once: a request that has taken from the first policy is
//! refused by the second one, and puts back what it took.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use loom::thread;

use super::support::{LoomClock, ONE, Woken, model, model_up_to};
use crate::error::Refusal;
use crate::limiter::pending::{Poller, Progress};
use crate::limiter::shared::Shared;
use crate::line::rule::Single;
use crate::line::visit::Demand;
use crate::policy::{Both, Policy, TokenBucket};
use crate::rate::Rate;
use crate::time::Nanos;

type Two = Both<TokenBucket, TokenBucket>;
type Limiter = Arc<Shared<Single<Two>, LoomClock>>;

const TWO: Demand<'_, u32> = Demand::exactly(&2, 0);

/// Two buckets that gain a permit each second.
fn policy(bursts: [u32; 2]) -> Two {
    let [first, second] = bursts.map(|burst| TokenBucket::new(Rate::per_second(1), burst));
    first.and(second)
}

fn limiter(bursts: [u32; 2]) -> Limiter {
    let clock = LoomClock::new();
    Arc::new(Shared::new(Single::new(policy(bursts), &clock), clock, Duration::ZERO))
}

/// Returns how many permits the first bucket has left.
fn left_in_first(policy: &Two, state: &<Two as Policy>::State) -> u64 {
    policy.first().status(&state.first, Nanos::ZERO).available
}

/// Two takers race for the one permit of the second bucket. One of them gets it, and the other one
/// leaves no trace in the first bucket.
fn one_permit_of_the_second(take: fn(&Two, &<Two as Policy>::State) -> bool) {
    model(move || {
        let policy = Arc::new(policy([3, 1]));
        let state = Arc::new(policy.start(Nanos::ZERO));
        let other = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || take(&policy, &state))
        };
        let mine = take(&policy, &state);
        assert!(mine != other.join().expect("no panic"), "one of the two");
        assert_eq!(left_in_first(&policy, &state), 2, "no trace of the other one");
    });
}

#[test]
fn a_refused_request_leaves_no_trace_in_the_first_policy() {
    one_permit_of_the_second(|policy, state| policy.try_acquire(state, Nanos::ZERO, 1).is_ok());
}

/// The broken twin: it does not put back.
#[test]
#[should_panic(expected = "no trace of the other one")]
fn broken_a_refused_request_leaves_no_trace_in_the_first_policy() {
    one_permit_of_the_second(|policy, state| policy.take_parts(state, Nanos::ZERO, 1).is_ok());
}

/// A request takes from the first bucket and is refused by the second one. Meanwhile another thread
/// gives a permit back and takes all. Without the first request the permit given back would exceed
/// the burst. So either the permit given back or the permit put back is lost.
fn put_back_against_a_refund(take: fn(&Limiter) -> bool) {
    model(move || {
        let limiter = limiter([2, 2]);
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                limiter.refund(1);
                if limiter.try_acquire(TWO).is_ok() { 2 } else { 0 }
            })
        };
        let granted = take(&limiter);
        let taken = other.join().expect("no panic");
        let Single { policy, state } = &limiter.rule;
        let left = left_in_first(policy, state);
        // The permit given back may be the request's own.
        let most = if granted { 3 } else { 2 };
        assert!(taken + u64::from(granted) + left <= most, "no permit is invented");
    });
}

#[test]
fn permits_put_back_into_the_first_policy_are_those_taken() {
    put_back_against_a_refund(|limiter| limiter.try_acquire(ONE).is_ok());
}

/// The broken twin: it puts back without the log, using only the time.
#[test]
#[should_panic(expected = "no permit is invented")]
fn broken_permits_put_back_into_the_first_policy_are_those_taken() {
    put_back_against_a_refund(|limiter| {
        let Single { policy, state } = &limiter.rule;
        policy.try_acquire(state, Nanos::ZERO, 1).is_ok()
    });
}

/// A waiter joins while a request that will be refused has emptied the first bucket for a moment.
/// The waiter is granted once that request has put back.
fn joining_against_a_put_back(take: fn(&Limiter) -> bool) {
    model_up_to(2, move || {
        let limiter = limiter([3, 2]);
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                let _ = limiter.try_acquire(ONE);
                let mut wait = Progress::new(1);
                let waker = Waker::from(Woken::new());
                let answer: Poll<Result<_, Refusal>> = limiter.poll(&mut wait, Poller::Task(&waker));
                (answer.is_ready(), wait)
            })
        };
        let granted = take(&limiter);
        let (ready, mut wait) = other.join().expect("no panic");
        let waiting = crate::sync::lock(&limiter.line).len();
        assert!(granted || ready || waiting == 0, "no request is left waiting");
        limiter.leave(&mut wait);
    });
}

#[test]
fn a_waiter_that_joins_meanwhile_gets_permits_put_back() {
    joining_against_a_put_back(|limiter| limiter.try_acquire(TWO).is_ok());
}

/// The broken twin: it puts back and does not check the queue.
#[test]
#[should_panic(expected = "no request is left waiting")]
fn broken_a_waiter_that_joins_meanwhile_gets_permits_put_back() {
    joining_against_a_put_back(|limiter| {
        let Single { policy, state } = &limiter.rule;
        policy.try_acquire(state, Nanos::ZERO, 2).is_ok()
    });
}
