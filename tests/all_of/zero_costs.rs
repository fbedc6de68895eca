//! Requests that need no permits of a member for which the requests before them wait.

use std::time::Duration;

use crate::support::{Bucket, bucket, spawn_pending};
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::{
    AllOf, AllRefusal, AllRequest, AllReservation, AnyPolicy, ManualClock, Rate, RateLimiter, Refusal,
    SmoothBursty, SmoothWarmingUp, TokenBucket,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

const SECOND: Duration = Duration::from_secs(1);
const NANOSECOND: Duration = Duration::from_nanos(1);

/// Returns two members of a permit per second and at most ten permits; the first member is empty.
fn two() -> (Bucket, Bucket, AllOf<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let (a, b) = (bucket(&clock, 1, 10), bucket(&clock, 1, 10));
    assert!(a.try_acquire_many(10).is_ok());
    let both = AllOf::new("a", &a).with("b", &b);
    (a, b, both, clock)
}

fn limited(retry_after: Duration) -> AllRefusal {
    AllRefusal::from_member("a", Refusal::Limited { retry_after: retry_after.into() })
}

/// Bug: the request was reported as due at once, and an `acquire_within` waited until it was
/// refused.
#[test]
fn a_request_is_due_behind_the_requests_before_it_also_where_it_asks_nothing() {
    let (_a, _b, both, clock) = two();
    let mut first = spawn_pending(both.acquire_many([("a", 10)]));
    let request = || AllRequest::new().cost("a", 0);
    let refusal = assert_ready!(spawn(both.acquire_many(request().within(2 * SECOND))).poll()).err();
    assert_eq!(refusal, Some(limited(8 * SECOND)));
    assert_eq!(both.try_acquire_many(request()).err(), Some(limited(10 * SECOND)));
    let mut reservation = both.reserve(request()).expect("a reservation");
    assert_eq!(reservation.due_in(), 10 * SECOND);
    let mut within = spawn_pending(both.acquire_many(request().within(10 * SECOND)));
    clock.advance(10 * SECOND - NANOSECOND);
    assert!(!reservation.claim());
    assert_pending!(first.poll());
    clock.advance(NANOSECOND);
    assert!(assert_ready!(first.poll()).is_ok());
    assert!(reservation.claim());
    assert!(assert_ready!(within.poll()).is_ok());
}

#[test]
fn the_pause_of_a_member_is_reported_to_a_request_behind_others() {
    let (a, _b, both, _clock) = two();
    let _first = spawn_pending(both.acquire());
    let request = || AllRequest::new().cost("a", 0);
    let mut waits = spawn_pending(both.acquire_many(request().within(5 * SECOND)));
    a.pause_for(9 * SECOND);
    let paused = |retry_after: Duration| {
        Some(AllRefusal::from_member("a", Refusal::Paused { retry_after: retry_after.into() }))
    };
    // It was too late at once.
    assert_eq!(assert_ready!(waits.poll()).err(), paused(5 * SECOND));
    assert_eq!(both.try_acquire_many(request()).err(), paused(10 * SECOND));
}

#[test]
fn a_request_waits_behind_many() {
    let (_a, b, both, _clock) = two();
    let _waits: Vec<_> = (0..40).map(|_| spawn_pending(both.acquire_many([("a", 10)]))).collect();
    assert_eq!(both.try_acquire_many([("a", 0)]).err(), Some(limited(400 * SECOND)));
    // On its own the other member has permits long before.
    assert_eq!(b.status().next_in, Duration::ZERO);
}

fn some_policy() -> impl Strategy<Value = AnyPolicy> {
    (1u64..5, 0..3u8).prop_map(|(rate, kind)| match kind {
        0 => SmoothBursty::new(Rate::per_second(rate)).into(),
        1 => TokenBucket::new(Rate::per_second(rate), 9).into(),
        _ => SmoothWarmingUp::new(Rate::per_second(rate), SECOND).into(),
    })
}

/// The costs of a request, and its priority.
type Asked = ([u32; 3], i8);

fn some_request(scarce: usize) -> impl Strategy<Value = Asked> {
    let cost = || prop_oneof![2 => Just(0), 1 => 1..4u32, 1 => Just(9)];
    let costs = (cost(), cost(), cost(), -1..1i8);
    costs.prop_map(move |(a, b, c, priority)| {
        let mut costs = [a, b, c];
        // It needs at least one permit.
        costs[scarce..].iter_mut().take(1).for_each(|n| *n = (*n).max(1));
        (costs, priority)
    })
}

/// Returns the reservations of some requests, and how long until each is due, in queue order.
fn line(
    all: &AllOf<ManualClock>,
    asked: &[Asked],
    leaves: usize,
) -> Vec<(Duration, AllReservation<ManualClock>)> {
    let (last, others) = asked.split_last().expect("some");
    let request =
        |(costs, priority): &Asked| AllRequest::from_iter(all.names().zip(*costs)).priority(*priority);
    let reserve = |asked: &Asked| (asked.1, all.reserve(request(asked)).expect("a reservation"));
    let mut reservations: Vec<_> = others.iter().map(reserve).collect();
    reservations.retain_mut(|(_, reservation)| !reservation.claim());
    if !reservations.is_empty() {
        drop(reservations.remove(leaves % reservations.len()));
        reservations.retain_mut(|(_, reservation)| !reservation.claim());
    }
    // A new request is refused with the time of its reservation.
    let refused = all.try_acquire_many(request(last)).err();
    if let Some(told) = refused.and_then(|refusal| refusal.retry_after()) {
        reservations.push(reserve(last));
        assert_eq!(reservations.last().map(|(_, reservation)| reservation.due_in()), Some(told));
    }
    reservations.sort_by_key(|(priority, _)| -*priority);
    reservations.into_iter().map(|(_, reservation)| (reservation.due_in(), reservation)).collect()
}

proptest! {
    /// One member has too few permits.
    #[test]
    fn predicted_times_hold_behind_requests_of_a_member_that_is_not_asked(
        policy in some_policy(),
        asked in vec(some_request(1), 1..12),
        leaves in any::<usize>(),
    ) {
        let clock = ManualClock::new();
        let ample = || TokenBucket::new(Rate::per_second(1_000_000), 1_000_000).into();
        let [a, b, c] =
            [policy, ample(), ample()].map(|policy| RateLimiter::with_clock(policy, clock.clone()));
        let all = AllOf::new("a", &a).with("b", &b).with("c", &c);
        let mut now = Duration::ZERO;
        for (due, mut reservation) in line(&all, &asked, leaves) {
            if due > now {
                clock.advance(due - now - NANOSECOND);
                prop_assert!(!reservation.claim(), "predicted for {due:?}");
                clock.advance(NANOSECOND);
                now = due;
            }
            prop_assert!(reservation.claim(), "predicted for {due:?}");
        }
    }

    #[test]
    fn no_request_gets_an_earlier_time_than_the_request_before_it(
        policies in [some_policy(), some_policy(), some_policy()],
        asked in vec((0..3usize).prop_flat_map(some_request), 1..12),
        leaves in any::<usize>(),
    ) {
        let clock = ManualClock::new();
        let [a, b, c] = policies.map(|policy| RateLimiter::with_clock(policy, clock.clone()));
        let all = AllOf::new("a", &a).with("b", &b).with("c", &c);
        let times: Vec<_> = line(&all, &asked, leaves).into_iter().map(|(due, _)| due).collect();
        prop_assert!(times.is_sorted(), "{times:?}");
    }
}
