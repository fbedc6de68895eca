//! Requests to a composite for the permits that all members have, up to a number.

use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;
use tidegate::{AllOf, AllRefusal, AllRequest, AnyLimiter, CountingLimit, ManualClock, Refusal, Request};
use tokio_test::{assert_pending, assert_ready_ok};

use crate::support::{Bucket, MS, bucket, spawn_pending};

fn two(clock: &ManualClock) -> (Bucket, Bucket, AllOf<ManualClock>) {
    let (small, large) = (bucket(clock, 10, 50), bucket(clock, 10, 80));
    let all = AllOf::new("small", &small).with("large", &large);
    (small, large, all)
}

fn left(of: &Bucket) -> u64 {
    of.status().available
}

#[test]
fn it_takes_an_equal_number_of_every_member() {
    let clock = ManualClock::new();
    let (small, large, all) = two(&clock);
    let in_flight = CountingLimit::new(3);
    let all = all.with_counting("in flight", &in_flight);
    let permits = all.try_acquire_many(Request::up_to(60)).expect("available");
    assert_eq!((permits.permits(), left(&small), left(&large), in_flight.available()), (50, 0, 30, 2));
    drop(permits);
    let refusal = all.try_acquire_many(Request::up_to(60)).map(drop).expect_err("none is available");
    assert_eq!((refusal.member(), refusal.retry_after()), (Some("small"), Some(100 * MS)));
    assert_eq!(in_flight.available(), 3);
    // A named cost is fixed.
    small.refund(50);
    let request = AllRequest::from(Request::up_to(20)).cost("small", 1);
    let permits = all.try_acquire_many(request.clone()).expect("available");
    assert_eq!((permits.permits(), left(&small), left(&large)), (20, 49, 10));
    drop(permits);
    let permits = AnyLimiter::from(all).try_acquire_many(request).expect("available");
    assert_eq!((permits.permits(), left(&small), left(&large)), (10, 48, 0));
    // A single limiter reports it too.
    let permits = AnyLimiter::from(small).try_acquire_many(Request::up_to(100)).expect("available");
    assert_eq!(permits.permits(), 48);
}

#[test]
fn a_number_for_a_composite_is_what_it_takes() {
    let clock = ManualClock::new();
    let (_, _, all) = two(&clock);
    assert_eq!(all.try_acquire().expect("available").permits(), 1);
    assert_eq!(all.try_acquire_many(7).expect("available").permits(), 7);
    assert_eq!(all.try_acquire_many([("small", 3)]).expect("available").permits(), 1);
    assert_eq!(all.try_acquire_many(AllRequest::from(5).exempt()).expect("passes").permits(), 0);
    let too_many = all.try_acquire_many(Request::up_to(90).at_least(81)).map(drop);
    assert!(matches!(too_many, Err(AllRefusal::Member { refusal: Refusal::ExceedsLimit { .. }, .. })));
}

#[test]
fn a_waiter_takes_what_all_have_at_its_turn() {
    let clock = ManualClock::new();
    let (small, large, all) = two(&clock);
    small.drain();
    large.debit(90);
    let request = AllRequest::from(Request::permits(30).at_least(5));
    let mut wait = spawn_pending(all.acquire_many(request.clone()));
    // Five are available after 1.5 s, and twelve when it runs.
    clock.jump(2200 * MS);
    assert_eq!(assert_ready_ok!(wait.poll()).permits(), 12);
    assert_eq!((left(&small), left(&large)), (10, 0));
    let mut reservation = all.reserve(request).expect("a reservation");
    clock.jump(1000 * MS);
    assert!(reservation.claim());
    assert_eq!(reservation.costs().collect::<Vec<_>>(), [("small", 10), ("large", 10)]);
    assert_eq!((left(&small), left(&large)), (10, 0));
    reservation.settle([("small", 4), ("large", 0)]).expect("members");
    assert_eq!((left(&small), left(&large)), (16, 10));
}

#[test]
fn a_dropped_grant_leaves_no_trace() {
    let clock = ManualClock::new();
    let (small, large, all) = two(&clock);
    small.drain();
    let wait = spawn_pending(all.acquire_many(Request::up_to(30)));
    clock.jump(2000 * MS);
    assert_eq!((left(&small), left(&large)), (0, 60));
    drop(wait);
    assert_eq!((left(&small), left(&large)), (20, 80));
}

/// A composite that waits has a seat at each member, and its permits there are not taken.
#[test]
fn requests_leave_what_others_wait_for() {
    let clock = ManualClock::new();
    let (small, large, all) = two(&clock);
    small.drain();
    let mut wait = spawn_pending(all.acquire_many(AllRequest::new().cost("small", 30)));
    clock.advance(1000 * MS);
    // At the member itself: the composite is not due, and one permit delays it by at most one
    // permit.
    assert_eq!(large.try_acquire_many(Request::up_to(60)).map(|grant| grant.permits()), Ok(1));
    let important = AllRequest::from(Request::up_to(60)).priority(1);
    assert_eq!(all.try_acquire_many(important).expect("ten are available").permits(), 1);
    let mut behind = spawn_pending(small.acquire_many(Request::up_to(60)));
    clock.advance(2100 * MS);
    let _permits = assert_ready_ok!(wait.poll());
    assert_pending!(behind.poll());
    clock.jump(700 * MS);
    assert_eq!(assert_ready_ok!(behind.poll()).permits(), 7);
}

#[cfg(feature = "keyed")]
#[test]
fn a_composite_of_keys_takes_as_many() {
    use tidegate::{KeyedAllOf, KeyedRateLimiter};

    let clock = ManualClock::new();
    let policy = tidegate::TokenBucket::new(tidegate::Rate::per_second(10), 20);
    let users: KeyedRateLimiter<u64, _, _> = KeyedRateLimiter::with_clock(policy, 10, clock.clone());
    let (all_users, calls) = (bucket(&clock, 10, 50), bucket(&clock, 10, 50));
    let api = KeyedAllOf::new("user", &users).with("all users", &all_users).with("calls", &calls);
    let request = AllRequest::from(Request::up_to(15)).cost("calls", 1);
    let took = |key| api.try_acquire_many(&key, request.clone()).map(|permits| permits.permits());
    assert_eq!((took(1), took(1), took(2), took(3)), (Ok(15), Ok(5), Ok(15), Ok(15)));
    assert!(took(4).is_err());
    assert_eq!((left(&all_users), left(&calls), users.status(&3).available), (0, 46, 5));
    // The number is the cost at each rate, both of keys and of all.
    all_users.refund(50);
    assert_eq!(api.try_acquire_many(&5, 6).map(|permits| permits.permits()), Ok(6));
    assert_eq!((left(&all_users), left(&calls), users.status(&5).available), (44, 40, 14));
}

proptest! {
    /// Has the effect of a request for the minimum of what its members have.
    #[test]
    fn it_takes_what_a_request_for_the_least_would(
        bursts in vec(1_u32..12, 1..8),
        acts in vec((0_u64..400, 1_u32..8, 0_u32..20, 0_usize..8), 1..30),
    ) {
        let clock = ManualClock::new();
        let make = || -> (Vec<Bucket>, AllOf<ManualClock>) {
            let members: Vec<_> = bursts.iter().map(|burst| bucket(&clock, 10, *burst)).collect();
            let named = members.iter().enumerate().skip(1);
            let all = named.fold(AllOf::new("0", &members[0]), |all, (name, member)| {
                all.with(name.to_string(), member)
            });
            (members, all)
        };
        let ((members, all), (others, twin)) = (make(), make());
        for (span, least, most, alone) in acts {
            clock.advance(Duration::from_millis(span));
            let alone = alone % members.len();
            let answers = [&members[alone], &others[alone]].map(|member| member.try_acquire());
            prop_assert_eq!(answers[0], answers[1]);
            let there = others.iter().map(left).min().unwrap_or(0).min(most.into());
            let n = u32::try_from(there)?.max(least);
            let request = Request::permits(most).at_least(least);
            let got = all.try_acquire_many(request).map(|permits| permits.permits()).map_err(drop);
            prop_assert_eq!(got, twin.try_acquire_many(n).map(|_| n).map_err(drop));
            prop_assert_eq!(members.iter().map(left).collect::<Vec<_>>(), others.iter().map(left).collect::<Vec<_>>());
        }
    }
}
