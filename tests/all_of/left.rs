//! What the results of several limits report of each limit: the state that belongs to the decision.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use crate::support::{bucket, spawn_pending};
use proptest::prelude::*;
use tidegate::{
    AllOf, AllPermits, AllRefusal, AllRequest, AllStatus, AnyLimiter, AnyPolicy, CountingLimit, Events,
    ManualClock, RateLimiter, Refusal, Request, TokenBucket,
};
use tokio_test::task::spawn;
use tokio_test::{assert_ready_err, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

const POLICIES: &[&str] = &[
    "smooth_bursty 3/s max_burst 2s start_full",
    "smooth_warming_up 3/s warm_up 2s",
    "token_bucket 3/s burst 5",
    "leaky_bucket 3/s nodelay 2",
    "fixed_window 5/s from_first_grant",
    "sliding_window 5/s cells 4",
    "sliding_estimate 5/s",
    "sliding_log 5/s",
    "unlimited",
];

fn left(permits: &AllPermits) -> AllStatus {
    permits.left().cloned().expect("it was requested")
}

fn available(status: &AllStatus) -> Vec<u64> {
    status.members.iter().map(|(_, status)| status.available).collect()
}

/// Returns the status that a result reports, whether it is a grant or a refusal.
fn told(answer: &Result<AllPermits, AllRefusal>) -> Option<AllStatus> {
    match answer {
        Ok(permits) => permits.left().cloned(),
        Err(refusal) => refusal.left().cloned(),
    }
}

proptest! {
    /// While no other call comes in between, the reported state is the current state.
    #[test]
    fn a_result_reports_the_state_after_it(
        policies in prop::collection::vec(prop::sample::select(POLICIES), 2..4),
        calls in prop::collection::vec((0_u32..6, 0_u32..6, any::<bool>(), 0_u64..900), 1..30),
    ) {
        let clock = ManualClock::new();
        let limiter = |policy: &&str| {
            let policy: AnyPolicy = policy.parse().expect("a policy");
            RateLimiter::with_clock(policy, clock.clone())
        };
        let mut limiters = policies.iter().map(limiter);
        let mut all = AllOf::new("0", &limiters.next().expect("two at least"));
        for (index, limiter) in limiters.enumerate() {
            all = all.with((index + 1).to_string(), &limiter);
        }
        let calls_in_flight = CountingLimit::new(3);
        let all = all.with_counting("calls", &calls_in_flight);
        let single = AnyLimiter::from(limiter(&policies[0]));
        let mut in_flight = Vec::new();
        for (first, second, keeps, pass) in calls {
            let request = AllRequest::new().cost("0", first).cost("1", second).with_left();
            let answer = all.try_acquire_many(request.clone());
            prop_assert_eq!(told(&answer), Some(all.status()), "{:?}", &answer);
            if let Ok(permits) = answer && keeps {
                in_flight.push(permits);
            }
            prop_assert_eq!(told(&all.try_acquire_many([("0", first)])), None);
            let answer = single.try_acquire_many(Request::permits(first).with_left());
            prop_assert_eq!(told(&answer), Some(single.status()), "{:?}", &answer);
            clock.advance(Duration::from_millis(pass));
        }
    }
}

/// Gives this many permits back as soon as a request is refused.
#[derive(Debug)]
struct Refund(RateLimiter<TokenBucket, ManualClock>, u32);

impl Events for Refund {
    fn refused(&self, _: u64, _: &Refusal) {
        self.0.refund(self.1);
    }
}

#[test]
fn a_refusal_reports_the_state_that_the_request_observed() {
    let clock = ManualClock::new();
    let (calls, tokens) = (bucket(&clock, 1, 10), bucket(&clock, 1, 10));
    let api = AllOf::new("calls", &calls).with("tokens", &tokens);
    tokens.debit(12);
    api.observe(Arc::new(Refund(tokens.clone(), 1)));
    let refusal = api.try_acquire_many(AllRequest::new().with_left()).unwrap_err();
    assert_eq!((refusal.member(), refusal.retry_after()), (Some("tokens"), Some(3 * SECOND)));
    assert_eq!(refusal.left().unwrap().member("tokens").unwrap().next_in, 3 * SECOND);
    assert_eq!(tokens.status().next_in, 2 * SECOND);

    tokens.observe(Arc::new(Refund(tokens.clone(), 12)));
    let any = AnyLimiter::from(tokens.clone());
    for ask in [1, 4] {
        tokens.drain();
        let (answer, status) = tokens.try_acquire_with_status(ask);
        assert!(matches!(answer, Err(Refusal::Limited { .. })));
        assert!(status.available < ask.into() && status.full_in >= SECOND);
        assert_eq!(tokens.status().available, 10);
        tokens.drain();
        let refusal = any.try_acquire_many(Request::permits(ask).with_left()).unwrap_err();
        assert!(available(refusal.left().unwrap())[0] < ask.into());
    }
}

/// Bug: the permits kept for a priority counted as available to the request that they refused.
#[test]
fn a_refused_wait_reports_fewer_permits_than_it_asked_for() {
    let clock = ManualClock::new();
    let api = bucket(&clock, 1, 10);
    api.keep_for_priority(4, 1);
    api.try_acquire_many(6).unwrap();
    let ask = || AllRequest::from(Request::permits(1).within(Duration::ZERO)).with_left();
    let (any, all) = (AnyLimiter::from(api.clone()), AllOf::new("api", &api));
    let refusals = [
        any.try_acquire_many(ask()).map(drop),
        Err(assert_ready_err!(spawn(any.acquire_many(ask())).poll())),
        any.reserve(ask()).map(drop),
        any.blocking_acquire_many(ask()).map(drop),
        all.try_acquire_many(ask()).map(drop),
        Err(assert_ready_err!(spawn(all.acquire_many(ask())).poll())),
        all.reserve(ask()).map(drop),
        all.blocking_acquire_many(ask()).map(drop),
    ];
    for refusal in refusals.map(Result::unwrap_err) {
        assert_eq!(refusal.retry_after(), Some(SECOND));
        assert_eq!(available(refusal.left().unwrap()), [0]);
    }
}

/// Charges this many permits as soon as a request is granted.
#[derive(Debug)]
struct Charge(RateLimiter<TokenBucket, ManualClock>, u32);

impl Events for Charge {
    fn granted(&self, _: u64, _: Duration) {
        self.0.debit(self.1);
    }
}

#[test]
fn a_grant_reports_what_it_left_and_not_what_others_left() {
    let clock = ManualClock::new();
    let (calls, tokens) = (bucket(&clock, 1, 10), bucket(&clock, 1, 10));
    let api = AllOf::new("calls", &calls).with("tokens", &tokens);
    api.observe(Arc::new(Charge(tokens.clone(), 3)));
    for (expected, after) in [([9, 8], 5), ([8, 3], 0)] {
        let permits = api.try_acquire_many(AllRequest::new().cost("tokens", 2).with_left()).unwrap();
        assert_eq!(available(&left(&permits)), expected);
        assert_eq!(tokens.status().available, after);
    }
}

#[test]
fn a_wait_reports_what_its_grant_left() {
    let clock = ManualClock::new();
    let (calls, tokens) = (bucket(&clock, 1, 2), bucket(&clock, 1, 10));
    let api = AllOf::new("calls", &calls).with("tokens", &tokens);
    let request = || AllRequest::new().cost("tokens", 4).with_left();
    let mut at_once = spawn(api.acquire_many(request()));
    assert_eq!(available(&left(&assert_ready_ok!(at_once.poll()))), [1, 6]);
    let _permits = api.try_acquire_many([("tokens", 4)]).unwrap();
    let mut waits = spawn_pending(api.acquire_many(request()));
    let mut late = spawn(api.acquire_many(request().within(SECOND)));
    let late = assert_ready_err!(late.poll());
    assert_eq!((late.left().unwrap().waiting, late.member()), (1, Some("tokens")));
    clock.advance(2 * SECOND);
    // Other requests do not change what the grant left.
    calls.try_acquire().unwrap();
    let permits = assert_ready_ok!(waits.poll());
    assert_eq!((permits.waited(), available(&left(&permits))), (2 * SECOND, vec![1, 0]));
    assert_eq!(calls.status().available, 0);

    let mut reservation = api.reserve(request().cost("tokens", 1)).unwrap();
    assert_eq!(reservation.left(), None);
    clock.advance(SECOND);
    assert!(reservation.claim());
    assert_eq!(available(&reservation.left().unwrap()), [0, 0]);
    let any = AnyLimiter::from(tokens);
    let mut reservation = any.reserve(Request::permits(3).with_left()).unwrap();
    clock.advance(5 * SECOND);
    assert_ready_ok!(spawn(&mut reservation).poll());
    assert_eq!(available(&reservation.left().unwrap()), [2]);
}

#[test]
fn a_limit_of_permits_in_use_reports_its_own_state_alone() {
    let calls = AnyLimiter::from(CountingLimit::new(3));
    let request = || AllRequest::from(2).with_left();
    let permits = calls.try_acquire_many(request()).unwrap();
    assert_eq!(left(&permits), calls.status());
    assert_eq!(available(&left(&permits)), [1]);
    let refusal = calls.try_acquire_many(request()).unwrap_err();
    assert_eq!(refusal.left(), Some(&calls.status()));
    assert_eq!(refusal.refusal(), Some(Refusal::InUse { limit: 3 }));
}

#[cfg(feature = "keyed")]
#[test]
fn a_key_reports_its_own_numbers() {
    use tidegate::{KeyedAllOf, KeyedRateLimiter, OfKey};

    let clock = ManualClock::new();
    let policy = TokenBucket::new(tidegate::Rate::per_second(1), 5);
    let users: KeyedRateLimiter<String, _, _> = KeyedRateLimiter::with_clock(policy, 10, clock.clone());
    let everyone = bucket(&clock, 1, 8);
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users).with("everyone", &everyone);
    let request = || AllRequest::from(2).with_left();
    for (key, expected) in [("alice", [6, 3]), ("bob", [4, 3]), ("alice", [2, 1])] {
        let answer = api.try_acquire_many(key, request());
        assert_eq!(told(&answer), Some(api.status(key)));
        assert_eq!(available(&left(&answer.unwrap())), expected);
    }
    let refused = api.try_acquire_many("alice", request());
    assert_eq!(told(&refused), Some(api.status("alice")));
    assert_eq!(available(refused.unwrap_err().left().unwrap()), [2, 1]);
    // Through a composite of the key.
    let _alice = api.limiter("alice").unwrap();
    let answer = api.try_acquire_many("alice", AllRequest::new().with_left());
    assert_eq!(available(&left(&answer.unwrap())), [1, 0]);

    let bob = AnyLimiter::new(OfKey::new(&users, "bob".to_owned()));
    assert_eq!(available(&left(&bob.try_acquire_many(request()).unwrap())), [1]);
    let refusal = bob.try_acquire_many(request()).unwrap_err();
    assert_eq!(refusal.left(), Some(&bob.status()));
    assert_eq!(available(refusal.left().unwrap()), [1]);
}
