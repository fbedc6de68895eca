//! The cost of a request at members that it does not name.

#![allow(clippy::unwrap_used)]

use tidegate::{
    AllOf, AllRequest, AllStatus, AnyLimiter, AnyReservation, CountingLimit, ManualClock, Rate, RateLimiter,
    Refusal, Request, TokenBucket,
};

fn bucket(burst: u32, clock: &ManualClock) -> RateLimiter<TokenBucket, ManualClock> {
    RateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), burst), clock.clone())
}

/// Returns how many permits of each member a request took.
fn taken(all: &AllOf<ManualClock>, request: AllRequest<'_>) -> Vec<u64> {
    let left =
        |status: AllStatus| -> Vec<_> { status.members.iter().map(|(_, member)| member.available).collect() };
    let before = left(all.status());
    let _permits = all.try_acquire_many(request).unwrap();
    before.into_iter().zip(left(all.status())).map(|(before, after)| before - after).collect()
}

fn api(clock: &ManualClock) -> AllOf<ManualClock> {
    let api = AllOf::new("calls", &bucket(100, clock))
        .with("tokens", &bucket(1000, clock))
        .with("uploads", &bucket(10, clock))
        .with_counting("in flight", &CountingLimit::new(5));
    api.default_cost("tokens", 20).default_cost("uploads", 0).default_cost("in flight", 2)
}

#[test]
fn a_member_that_is_not_named_costs_its_default() {
    let clock = ManualClock::new();
    let api = api(&clock);
    assert_eq!(taken(&api, AllRequest::new()), [1, 20, 0, 2]);
    assert_eq!(taken(&api, [("uploads", 1)].into()), [1, 20, 1, 2]);
    assert_eq!(taken(&api, [("tokens", 0), ("in flight", 0)].into()), [1, 0, 0, 0]);
    assert_eq!(taken(&AllOf::clone(&api).default_cost("tokens", 7), AllRequest::new()), [1, 7, 0, 2]);
    let permits = api.try_acquire().unwrap();
    drop(permits);
    assert_eq!(api.status().member("tokens").unwrap().available, 1000 - 20 - 20 - 7 - 20);
}

#[test]
fn the_number_of_a_request_is_not_for_a_member_with_a_default() {
    let clock = ManualClock::new();
    let api = api(&clock);
    assert_eq!(taken(&api, 3.into()), [3, 20, 0, 2]);
    assert_eq!(taken(&api, Request::up_to(1000).into()), [97, 20, 0, 2]);
    let reservation = api.reserve(AllRequest::new().cost("calls", 0)).unwrap();
    let costs: Vec<_> = reservation.costs().map(|(_, n)| n).collect();
    assert_eq!(costs, [0, 20, 0, 2]);
    drop(reservation);
    let any = AnyLimiter::from(api.clone());
    let mut reservation = any.reserve([("calls", 0)]).unwrap();
    tokio_test::assert_ready_ok!(tokio_test::task::spawn(&mut reservation).poll());
    // For a member with a default, the reserved permits count as used.
    reservation.settle(0).unwrap();
    assert_eq!(api.status().member("tokens").unwrap().available, 1000 - 3 * 20);
}

/// Bug: the used permits were charged together with the default costs, although none of those were
/// reserved.
#[test]
fn a_reservation_of_no_permits_charges_what_was_used_alone() {
    let clock = ManualClock::new();
    let api = api(&clock);
    let settled = |used: AllRequest<'_>| {
        let reservation = AnyReservation::empty(api.clone().into());
        let left = || api.status().members.into_iter().map(|(_, member)| member.available).collect();
        let before: Vec<_> = left();
        reservation.settle(used).unwrap();
        before.into_iter().zip(left()).map(|(before, after)| before - after).collect::<Vec<_>>()
    };
    assert_eq!(settled([("calls", 1)].into()), [1, 0, 0, 0]);
    assert_eq!(settled([("tokens", 7), ("uploads", 2)].into()), [0, 7, 2, 0]);
    assert_eq!(settled(3.into()), [3, 0, 0, 0]);
    assert_eq!(settled(AllRequest::from(3).cost("tokens", 9)), [3, 9, 0, 0]);
    assert_eq!(settled(AllRequest::new()), [0, 0, 0, 0]);
}

#[test]
fn a_request_that_asks_nothing_is_refused() {
    let clock = ManualClock::new();
    let api = AllOf::new("uploads", &bucket(10, &clock)).default_cost("uploads", 0);
    assert_eq!(api.try_acquire().unwrap_err().refusal(), Some(Refusal::ZeroPermits));
    assert_eq!(api.try_acquire_many(3).unwrap_err().refusal(), Some(Refusal::ZeroPermits));
    assert!(api.try_acquire_many([("uploads", 10)]).is_ok());
}

#[test]
#[should_panic(expected = r#""tonkes" is not a member: the members are "tokens""#)]
fn a_default_for_a_name_that_there_is_not_panics() {
    let _ = AllOf::new("tokens", &bucket(1, &ManualClock::new())).default_cost("tonkes", 1);
}

#[cfg(feature = "keyed")]
#[test]
fn a_key_has_the_defaults_of_all_keys() {
    use tidegate::{KeyedAllOf, KeyedRateLimiter};

    let clock = ManualClock::new();
    let users: KeyedRateLimiter<String, _, _> =
        KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 100), 10, clock.clone());
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users).with("everyone", &bucket(1000, &clock));
    let api = api.default_cost("user", 5).default_cost("everyone", 0).with("calls", &bucket(50, &clock));
    let left =
        || -> Vec<_> { api.status("alice").members.iter().map(|(_, member)| member.available).collect() };
    assert_eq!(api.names().collect::<Vec<_>>(), ["everyone", "calls", "user"]);
    let _permits = api.try_acquire("alice").unwrap();
    assert_eq!(left(), [1000, 49, 95]);
    let _permits = api.try_acquire_many("alice", 2).unwrap();
    assert_eq!(left(), [1000, 47, 90]);
    let of_alice = api.limiter("alice").unwrap();
    let _permits = (of_alice.try_acquire().unwrap(), of_alice.try_acquire_many(2).unwrap());
    let _permits = api.try_acquire_many("alice", [("everyone", 3)]).unwrap();
    assert_eq!(left(), [997, 43, 75]);
}
