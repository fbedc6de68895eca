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
use crate::policy::{Both, FixedWindow, Policy, TokenBucket};
use crate::rate::Rate;
use crate::time::Nanos;

type Two = Both<TokenBucket, TokenBucket>;
type Limiter<P = Two> = Arc<Shared<Single<P>, LoomClock>>;

/// A request asks the window first, because a window puts back exactly.
type BucketAndWindow = Both<TokenBucket, FixedWindow>;

const TWO: Demand<'_, u32> = Demand::exactly(&2, 0);

/// Two buckets that gain a permit each second.
fn policy(bursts: [u32; 2]) -> Two {
    let [first, second] = bursts.map(|burst| TokenBucket::new(Rate::per_second(1), burst));
    first.and(second)
}

/// A bucket that gains a permit each second, and a window of a second.
fn bucket_and_window([burst, limit]: [u32; 2]) -> BucketAndWindow {
    TokenBucket::new(Rate::per_second(1), burst).and(FixedWindow::new(Rate::per_second(limit.into())))
}

fn limiter<P: Policy>(policy: P) -> Limiter<P> {
    let clock = LoomClock::new();
    Arc::new(Shared::new(Single::new(policy, &clock), clock, Duration::ZERO))
}

/// Returns how many permits the first bucket has left.
fn left_in_first(policy: &Two, state: &<Two as Policy>::State) -> u64 {
    policy.first().status(&state.first, Nanos::ZERO).available
}

/// Returns how many permits the window has left.
fn left_in_window(policy: &BucketAndWindow, state: &<BucketAndWindow as Policy>::State) -> u64 {
    policy.second().status(&state.second, Nanos::ZERO).available
}

/// Two takers race for the one permit of the policy that is asked last. One of them gets it, and
/// the other one leaves no trace in the policy that is asked first, which has three permits.
fn one_permit_of_the_last<P: Policy>(
    make: fn() -> P,
    take: fn(&P, &P::State) -> bool,
    left: fn(&P, &P::State) -> u64,
) {
    model(move || {
        let policy = Arc::new(make());
        let state = Arc::new(policy.start(Nanos::ZERO));
        let other = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || take(&policy, &state))
        };
        let mine = take(&policy, &state);
        assert!(mine != other.join().expect("no panic"), "one of the two");
        assert_eq!(left(&policy, &state), 2, "no trace of the other one");
    });
}

fn take<P: Policy>(policy: &P, state: &P::State) -> bool {
    policy.try_acquire(state, Nanos::ZERO, 1).is_ok()
}

/// The broken step: it does not put back.
fn take_only<P: Policy>(policy: &P, state: &P::State) -> bool {
    policy.take_parts(state, Nanos::ZERO, 1).is_ok()
}

#[test]
fn a_refused_request_leaves_no_trace_in_the_first_policy() {
    one_permit_of_the_last(|| policy([3, 1]), take, left_in_first);
}

#[test]
#[should_panic(expected = "no trace of the other one")]
fn broken_a_refused_request_leaves_no_trace_in_the_first_policy() {
    one_permit_of_the_last(|| policy([3, 1]), take_only, left_in_first);
}

#[test]
fn a_request_refused_by_the_bucket_leaves_no_trace_in_the_window() {
    one_permit_of_the_last(|| bucket_and_window([1, 3]), take, left_in_window);
}

#[test]
#[should_panic(expected = "no trace of the other one")]
fn broken_a_request_refused_by_the_bucket_leaves_no_trace_in_the_window() {
    one_permit_of_the_last(|| bucket_and_window([1, 3]), take_only, left_in_window);
}

/// A request takes from the first bucket and is refused by the second one. Meanwhile another thread
/// gives a permit back and takes all. Without the first request the permit given back would exceed
/// the burst. So either the permit given back or the permit put back is lost.
fn put_back_against_a_refund(take: fn(&Limiter) -> bool) {
    model(move || {
        let limiter = limiter(policy([2, 2]));
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

/// A waiter joins while a request that will be refused by the policy that is asked last, with two
/// permits, has emptied the other policy for a moment. The waiter is granted once that request has
/// put back.
fn joining_against_a_put_back<P: Policy>(make: fn() -> P, take: fn(&Limiter<P>) -> bool) {
    model_up_to(2, move || {
        let limiter = limiter(make());
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

fn take_two<P: Policy>(limiter: &Limiter<P>) -> bool {
    limiter.try_acquire(TWO).is_ok()
}

/// The broken step: it puts back and does not check the queue.
fn take_two_beside_the_queue<P: Policy>(limiter: &Limiter<P>) -> bool {
    let Single { policy, state } = &limiter.rule;
    policy.try_acquire(state, Nanos::ZERO, 2).is_ok()
}

#[test]
fn a_waiter_that_joins_meanwhile_gets_permits_put_back() {
    joining_against_a_put_back(|| policy([3, 2]), take_two);
}

#[test]
#[should_panic(expected = "no request is left waiting")]
fn broken_a_waiter_that_joins_meanwhile_gets_permits_put_back() {
    joining_against_a_put_back(|| policy([3, 2]), take_two_beside_the_queue);
}

/// The window puts back without the log of undone grants.
#[test]
fn a_waiter_that_joins_meanwhile_gets_permits_put_back_into_the_window() {
    joining_against_a_put_back(|| bucket_and_window([2, 3]), take_two);
}

#[test]
#[should_panic(expected = "no request is left waiting")]
fn broken_a_waiter_that_joins_meanwhile_gets_permits_put_back_into_the_window() {
    joining_against_a_put_back(|| bucket_and_window([2, 3]), take_two_beside_the_queue);
}
