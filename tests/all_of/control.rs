//! Composites with a member that is paused, reserves a share, is in shadow mode, or is the limiter
//! of a key.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::asked::Asked;
use crate::support::{Bucket, MS, bucket, spawn_pending};
use tidegate::{
    AllOf, AllRefusal, AllRequest, AnyPolicy, Change, CountingLimit, FixedWindow, Grant, LeakyBucket,
    ManualClock, Pause, QueueBounds, Rate, RateLimiter, Refusal, Request, SmoothBursty, TokenBucket,
    WhenFull,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

fn two() -> (Bucket, Bucket, AllOf<ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let (a, b) = (bucket(&clock, 1, 1), bucket(&clock, 10, 10));
    let both = AllOf::new("a", &a).with("b", &b);
    (a, b, both, clock)
}

fn limited(name: &'static str, retry_after: Duration) -> AllRefusal {
    AllRefusal::from_member(name, Refusal::Limited { retry_after: retry_after.into() })
}

fn paused(name: &'static str, retry_after: Duration) -> AllRefusal {
    AllRefusal::from_member(name, Refusal::Paused { retry_after: retry_after.into() })
}

#[test]
fn the_pause_of_a_member_is_reported_where_a_request_waits_for_it() {
    let (a, b, both, _clock) = two();
    let handle = tidegate::AnyLimiter::new(both.clone());
    assert!(both.try_acquire().is_ok());
    // The first request waits for `a`, which is due after the pause of `b`.
    b.pause_for(SECOND / 2);
    assert_eq!(both.try_acquire().err(), Some(limited("a", SECOND)));
    b.pause_for(3 * SECOND);
    let told = paused("b", 3 * SECOND + 100 * MS);
    assert_eq!(both.try_acquire().err(), Some(told.clone()));
    assert_eq!(handle.try_acquire().map(drop), Err(told.clone()));
    assert_eq!(both.reserve(AllRequest::new().within(Duration::ZERO)).err(), Some(told.clone()));
    assert_eq!(assert_ready!(spawn(both.acquire_within(SECOND)).poll()).err(), Some(paused("b", 2100 * MS)));

    // The same behind a waiter, and for a waiter that the pause makes too late.
    let _reservation = both.reserve([]).expect("a reservation");
    assert!(matches!(
        both.try_acquire().err().and_then(|refusal| refusal.refusal()),
        Some(Refusal::Paused { .. })
    ));
    let mut waiter = spawn_pending(both.acquire_within(5 * SECOND));
    b.pause_for(60 * SECOND);
    let refusal = assert_ready!(waiter.poll()).expect_err("too late").refusal();
    assert!(matches!(refusal, Some(Refusal::Paused { .. })), "{refusal:?}");
    a.pause_for(70 * SECOND);
    let refusal = both.try_acquire().expect_err("paused");
    assert!(matches!(refusal.refusal(), Some(Refusal::Paused { .. })), "{refusal:?}");
    assert_eq!(refusal.member(), Some("a"));
}

#[test]
fn a_paused_member_is_the_tightest() {
    let (a, b, both, clock) = two();
    b.pause_for(3 * SECOND);
    assert_eq!(both.try_acquire().err(), Some(paused("b", 3 * SECOND + 100 * MS)));
    assert_eq!((a.status().available, b.status().paused_for), (1, 3 * SECOND));
    clock.advance(3 * SECOND + 100 * MS - Duration::from_nanos(1));
    assert_eq!(both.try_acquire().err(), Some(limited("b", Duration::from_nanos(1))));
    clock.advance(Duration::from_nanos(1));
    assert!(both.try_acquire().is_ok());
}

#[test]
fn a_waiter_for_a_paused_member_goes_on_when_it_is_resumed() {
    let (a, b, both, clock) = two();
    let mut waiting = spawn(both.acquire());
    b.pause_for(100 * SECOND);
    assert_pending!(waiting.poll());
    clock.advance(SECOND);
    // Later requests do not wait for it at a member that is not paused.
    assert_eq!(a.try_acquire().map(drop), Ok(()));
    assert!(waiting.poll().is_pending());
    assert!(b.resume());
    clock.advance(SECOND);
    assert!(waiting.is_woken());
    assert!(assert_ready!(waiting.poll()).is_ok());
}

#[test]
fn a_pause_that_comes_while_it_waits_moves_it() {
    let (a, _b, both, clock) = two();
    assert_eq!(a.try_acquire().map(drop), Ok(()));
    let mut waiting = spawn_pending(both.acquire());
    a.pause_for(5 * SECOND);
    // The debt of a second remains owed after the pause.
    clock.advance(6 * SECOND - MS);
    assert_pending!(waiting.poll());
    clock.advance(MS);
    assert!(assert_ready!(waiting.poll()).is_ok());
}

#[test]
fn the_important_go_first() {
    let (a, _b, both, clock) = two();
    assert_eq!(a.try_acquire().map(drop), Ok(()));
    let (mut first, mut second) = (spawn_pending(both.acquire()), spawn_pending(both.acquire()));
    let mut urgent = spawn_pending(both.acquire_many(AllRequest::new().priority(5)));
    clock.advance(SECOND);
    assert_pending!(first.poll());
    assert!(assert_ready!(urgent.poll()).is_ok());
    clock.advance(SECOND);
    assert_pending!(second.poll());
    assert!(assert_ready!(first.poll()).is_ok());
    clock.advance(SECOND);
    assert!(assert_ready!(second.poll()).is_ok());
}

#[test]
fn the_important_go_first_in_the_line_of_a_member() {
    let (a, _b, both, clock) = two();
    assert_eq!(a.try_acquire().map(drop), Ok(()));
    let mut plain = spawn_pending(a.acquire());
    let mut urgent = spawn(both.acquire_many(AllRequest::new().priority(1)));
    let mut equal = spawn(both.acquire());
    assert!(urgent.poll().is_pending() && equal.poll().is_pending());
    clock.advance(SECOND);
    assert_pending!(plain.poll());
    assert!(assert_ready!(urgent.poll()).is_ok());
    clock.advance(SECOND);
    assert_pending!(equal.poll());
    assert_eq!(assert_ready!(plain.poll()).map(Grant::waited), Ok(2 * SECOND));
    clock.advance(SECOND);
    assert!(assert_ready!(equal.poll()).is_ok());
}

#[test]
fn no_time_is_predicted_for_room_in_a_queue_for_permits_in_use() -> Result<(), Refusal> {
    let (a, _b, _both, clock) = two();
    let calls = CountingLimit::new(1);
    let all = AllOf::new("a", &a).with_counting("calls", &calls);
    let held = calls.try_acquire()?;
    all.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1));
    let mut first = spawn_pending(all.acquire_within(Duration::from_secs(100)));
    for _ in 0..3 {
        let refusal = assert_ready!(spawn(all.acquire_within(SECOND)).poll()).expect_err("full");
        let full = Refusal::QueueFull { retry_after: tidegate::Nanos::MAX };
        assert_eq!((refusal.refusal(), refusal.retry_after()), (Some(full), None));
        assert_eq!(refusal.member(), None, "it is the queue of the composite");
        clock.advance(5 * SECOND);
    }
    drop(held);
    assert!(assert_ready!(first.poll()).is_ok());
    Ok(())
}

/// Bug: reservations that waited only for permits in use passed every bound.
#[test]
fn reservations_that_wait_for_permits_in_use_need_room() -> Result<(), AllRefusal> {
    let (clock, calls) = (ManualClock::new(), CountingLimit::new(1));
    let rate = bucket(&clock, 1000, 1000);
    let all = AllOf::new("rate", &rate).with_counting("calls", &calls);
    all.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1));
    let held = calls.try_acquire().expect("the only one");
    let mut first = all.reserve(1)?;
    for _ in 0..3 {
        // The second one asks for no permit in use, and waits behind the first.
        for request in [AllRequest::from(1), [("rate", 1), ("calls", 0)].into()] {
            let refusal = all.reserve(request).expect_err("full").refusal();
            assert!(matches!(refusal, Some(Refusal::QueueFull { .. })), "{refusal:?}");
        }
        // It does not wait, and so needs no room.
        let refusal = all.reserve(AllRequest::from(1).within(Duration::ZERO)).expect_err("in use").refusal();
        assert!(matches!(refusal, Some(Refusal::InUse { .. })), "{refusal:?}");
    }
    assert_eq!(all.status().waiting, 1);
    drop(held);
    assert!(first.claim());
    drop(first);
    // A queue without room grants what is there.
    all.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(0));
    assert!(all.reserve(1)?.claim());
    Ok(())
}

#[test]
fn a_paused_composite_blames_no_member() {
    let (_a, _b, both, _clock) = two();
    both.pause_for(5 * SECOND);
    let refusal = both.try_acquire().expect_err("paused");
    let paused = Refusal::Paused { retry_after: (6 * SECOND).into() };
    assert_eq!(refusal, AllRefusal::from(paused));
}

#[test]
#[should_panic(expected = "this limiter was added twice: as \"a\", and now as \"b\"")]
fn a_limiter_is_a_member_once() {
    let (a, ..) = two();
    let _ = AllOf::new("a", &a).with("b", &a);
}

#[test]
#[should_panic(expected = "there is a member \"a\" already")]
fn a_name_is_given_once() {
    let (a, b, ..) = two();
    let _ = AllOf::new("a", &a).with("a", &b);
}

#[test]
fn the_status_is_that_of_each_member() {
    let (a, _b, both, clock) = two();
    let calls = CountingLimit::new(2);
    let all = both.with_counting("calls", &calls);
    let held = all.try_acquire_many([("b", 3)]).expect("full");
    a.pause_for(SECOND);
    all.pause_for(3 * SECOND);
    let mut wait = spawn_pending(all.acquire());

    let status = all.status();
    assert_eq!((status.waiting, status.paused_for), (1, 3 * SECOND));
    assert!(status.members.iter().map(|(name, _)| &**name).eq(all.names()));
    let of = |name| status.member(name).expect("a member");
    assert_eq!((of("a").limit, of("a").paused_for), (1, SECOND));
    assert_eq!((of("b").limit, of("b").full_in), (10, 300 * MS));
    assert_eq!((of("calls").limit, of("calls").available, of("calls").full_in), (2, 1, Duration::MAX));
    assert_eq!(status.member("c"), None);

    let taken = calls.try_acquire().expect("one is free");
    clock.advance(4 * SECOND);
    assert_pending!(wait.poll());
    let counted = all.status().member("calls").expect("a member");
    assert_eq!((counted.available, counted.waiting), (0, 1));
    drop((held, taken, wait));
    assert_eq!(calls.status().full_in, Duration::ZERO);
    assert_eq!((all.status().waiting, calls.status().waiting), (0, 0));
}

#[test]
fn a_member_counts_the_composites_that_wait() {
    let (a, b, both, _clock) = two();
    a.debit(10);
    let mut waits = [0, 1].map(|_| spawn(both.acquire()));
    let mut other = spawn(AllOf::new("a", &a).acquire());
    assert!(waits.iter_mut().all(|wait| wait.poll().is_pending()));
    assert_pending!(other.poll());
    assert_eq!((a.status().waiting, b.status().waiting, both.status().waiting), (2, 1, 2));
    drop((waits, other));
    assert_eq!((a.status().waiting, b.status().waiting), (0, 0));
}

/// A composite waits for both members, then a plain request for `a`, then a composite of higher
/// priority for both.
#[test]
fn an_important_wait_leaves_no_trace_in_the_line_of_a_member() {
    for granted in [false, true] {
        let (a, _b, both, clock) = two();
        assert_eq!(a.try_acquire().map(drop), Ok(()));
        let (mut low, mut plain) = (spawn_pending(both.acquire()), spawn_pending(a.acquire()));
        let mut urgent = spawn_pending(both.acquire_many(AllRequest::new().priority(1)));
        if granted {
            clock.advance(SECOND);
            assert!(assert_ready!(urgent.poll()).is_ok());
        } else {
            drop(urgent);
        }
        clock.advance(SECOND);
        assert!(low.is_woken() && low.poll().is_ready(), "it came first");
        assert_pending!(plain.poll());
        clock.advance(SECOND);
        assert_ready_ok!(plain.poll());
        assert_eq!(a.status().waiting, 0);
    }
}

/// The position belongs to the waiter, not to a later request.
#[test]
fn the_position_of_a_waiter_passes_to_no_later_request() {
    let (a, _b, both, clock) = two();
    assert_eq!(a.try_acquire().map(drop), Ok(()));
    let (low, mut plain) = (spawn_pending(both.acquire()), spawn_pending(a.acquire()));
    let mut urgent = spawn_pending(both.acquire_many(AllRequest::new().priority(1)));
    drop(low);
    let mut late = spawn_pending(both.acquire());
    clock.advance(SECOND);
    assert!(assert_ready!(urgent.poll()).is_ok());
    clock.advance(SECOND);
    assert_pending!(late.poll());
    assert_ready_ok!(plain.poll());
    clock.advance(SECOND);
    assert!(assert_ready!(late.poll()).is_ok());
}

#[test]
fn what_a_member_keeps_is_for_the_important() {
    let (_a, b, both, clock) = two();
    b.keep_for_priority(9, 3);
    assert!(both.try_acquire().is_ok(), "ten less nine");
    clock.advance(SECOND);
    b.debit(1);
    assert_eq!(both.try_acquire().err(), Some(limited("b", 100 * MS)));
    assert!(both.try_acquire_many(AllRequest::new().priority(3)).is_ok());
    assert_eq!(b.status().available, 8);
    let mut waiting = spawn_pending(both.acquire());
    clock.advance(SECOND);
    assert!(assert_ready!(waiting.poll()).is_ok(), "both are full again");
}

/// Requests behind a reservation leave the permits that it needs, in addition to the reserved
/// share.
#[test]
fn a_reservation_is_not_delayed_where_a_share_is_kept() {
    let (a, b, both, clock) = two();
    assert_eq!(a.change(Change::only_burst(4)), Ok(()));
    clock.advance(4 * SECOND);
    a.keep_for_priority(3, 1);
    b.pause(Pause::lasting(SECOND / 2).keep_permits());
    let mut waiting = spawn_pending(both.acquire());
    assert!(a.try_acquire().is_err(), "it would not accrue again in time");
    clock.advance(SECOND / 2);
    assert!(assert_ready!(waiting.poll()).is_ok());
}

#[test]
fn a_request_for_permits_kept_for_others_is_never_due() {
    let (_a, b, both, _clock) = two();
    b.keep_for_priority(10, 3);
    let never = limited("b", Duration::MAX);
    assert_eq!(both.try_acquire().err(), Some(never.clone()));
    let mut within = spawn(both.acquire_within(SECOND));
    assert_eq!(assert_ready!(within.poll()).err(), Some(never.clone()));
    assert_eq!(never.retry_after(), None);
    assert!(both.reserve(AllRequest::new().cost("b", 10).priority(3).within(Duration::ZERO)).is_ok());
}

#[test]
fn a_member_in_shadow_lets_pass() {
    let (a, b, both, clock) = two();
    a.set_shadow(true);
    for _ in 0..10 {
        assert!(both.try_acquire().is_ok());
    }
    assert_eq!(both.try_acquire().err(), Some(limited("b", 100 * MS)));
    let mut waiting = spawn_pending(both.acquire());
    clock.advance(100 * MS);
    assert!(assert_ready!(waiting.poll()).is_ok());
    assert_eq!(b.status().available, 0);
}

#[test]
fn a_grant_tells_which_members_in_shadow_gave_nothing() {
    let (a, b, both, clock) = two();
    a.set_shadow(true);
    let took = |permits: &tidegate::AllPermits| (permits.took_from("a"), permits.took_from("b"));
    let left = || AllRequest::new().with_left();
    assert_eq!(both.try_acquire().as_ref().map(took), Ok((true, true)));
    assert_eq!(both.try_acquire().as_ref().map(took), Ok((false, true)));
    assert_eq!(both.try_acquire_many(left()).as_ref().map(took), Ok((false, true)));
    let none_of_a = both.try_acquire_many([("a", 0)]);
    assert_eq!(none_of_a.as_ref().map(took), Ok((true, true)), "it needs none");
    // The same for a request that waited.
    b.drain();
    let (mut first, mut second) = (spawn_pending(both.acquire()), spawn_pending(both.acquire()));
    clock.advance(100 * MS);
    assert_eq!(assert_ready!(first.poll()).as_ref().map(took), Ok((false, true)));
    a.reset();
    clock.advance(100 * MS);
    assert_eq!(assert_ready!(second.poll()).as_ref().map(took), Ok((true, true)));
}

#[cfg(feature = "keyed")]
#[test]
fn the_permits_of_a_key_tell_which_members_gave_some() {
    let (a, _b, _both, clock) = two();
    let users =
        tidegate::KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), 100, clock.clone());
    let keys = tidegate::KeyedAllOf::<str, _>::new("user", &users).with("a", &a);
    users.set_shadow_all(true);
    a.set_shadow(true);
    a.reset();
    let took = |permits: &tidegate::AllPermits| (permits.took_from("user"), permits.took_from("a"));
    assert_eq!(keys.try_acquire("alice").as_ref().map(took), Ok((true, true)));
    assert_eq!(keys.try_acquire("alice").as_ref().map(took), Ok((false, false)));
    clock.advance(SECOND);
    assert_eq!(keys.try_acquire("alice").as_ref().map(took), Ok((true, true)));
}

#[test]
fn a_bound_on_a_member_is_not_for_composites() {
    let (a, _b, both, clock) = two();
    assert_eq!(a.try_acquire().map(drop), Ok(()));
    a.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(0).when_full(WhenFull::RefuseNewcomer));
    let mut waiting = spawn_pending(both.acquire());
    clock.advance(SECOND);
    assert!(assert_ready!(waiting.poll()).is_ok());
}

#[test]
fn a_composite_can_be_paused_by_itself() {
    let (a, _b, both, clock) = two();
    assert_eq!(a.try_acquire().map(drop), Ok(()));
    let mut waiting = spawn_pending(both.acquire());
    both.pause_for(5 * SECOND);
    assert_eq!(both.status().waiting, 1);
    let refusal = Refusal::Paused { retry_after: (7 * SECOND).into() };
    assert_eq!(both.try_acquire().err(), Some(AllRefusal::from(refusal)));
    clock.advance(SECOND);
    assert_eq!(a.try_acquire().map(drop), Ok(()), "the member is not paused");
    clock.advance(5 * SECOND);
    assert!(assert_ready!(waiting.poll()).is_ok());
    both.pause_for(9 * SECOND);
    clock.advance(SECOND);
    assert!(both.try_acquire().is_err());
    assert!(both.resume());
    assert!(both.try_acquire().is_ok());
}

#[test]
fn a_composite_s_queue_can_be_bounded_and_watched() {
    let (a, _b, both, _clock) = two();
    let statistics = std::sync::Arc::new(tidegate::Statistics::new());
    assert!(both.observe(statistics.clone()));
    assert_eq!(a.try_acquire().map(drop), Ok(()));
    both.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1));
    let (mut first, mut second) = (spawn(both.acquire()), spawn(both.acquire()));
    assert_pending!(first.poll());
    let refusal = assert_ready!(second.poll()).err().and_then(|refusal| refusal.refusal());
    assert!(matches!(refusal, Some(Refusal::QueueFull { .. })), "{refusal:?}");
    assert_eq!(statistics.snapshot().refused(), 1);
}

#[test]
fn a_rate_that_changes_moves_a_composite_up() {
    let (a, _b, both, clock) = two();
    assert_eq!(a.try_acquire().map(drop), Ok(()));
    let mut waiting = spawn_pending(both.acquire());
    a.reset();
    assert!(waiting.is_woken());
    assert!(assert_ready!(waiting.poll()).is_ok());
    clock.advance(SECOND);
}

#[test]
fn a_share_that_is_kept_no_longer_frees_its_waiters() {
    let (_a, b, both, clock) = two();
    b.keep_for_priority(10, 1);
    let mut waiting = spawn_pending(both.acquire());
    clock.advance(SECOND);
    b.keep_for_priority(0, 1);
    assert!(waiting.is_woken());
    assert!(assert_ready!(waiting.poll()).is_ok());
}

#[test]
fn a_refund_reaches_a_waiter_behind_a_share() {
    let clock = ManualClock::new();
    let a = RateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 10), clock.clone());
    let all = AllOf::new("a", &a);
    a.keep_for_priority(5, 1);
    assert_eq!(a.try_acquire_many(5).map(drop), Ok(()));
    let mut waiting = spawn_pending(all.acquire());
    a.refund(5);
    assert!(waiting.is_woken());
    assert!(assert_ready!(waiting.poll()).is_ok());
}

/// A member in shadow mode refused requests that it could never grant, or that had to leave
/// permits.
#[test]
fn a_member_in_shadow_refuses_no_request_for_good() {
    for kept in [0, 2] {
        let clock = ManualClock::new();
        let (a, b) = (bucket(&clock, 1, 3), bucket(&clock, 1, 10));
        a.keep_for_priority(kept, 1);
        a.set_shadow(true);
        let all = AllOf::new("a", &a).with("b", &b);
        assert!(all.try_acquire_many(5).is_ok());
        let mut wait = spawn(all.acquire_many(5));
        assert!(assert_ready!(wait.poll()).is_ok());
        let mut behind = spawn(all.acquire_many(4));
        assert_pending!(behind.poll());
        clock.advance(Duration::from_secs(4));
        assert!(assert_ready!(behind.poll()).is_ok());
        a.set_shadow(false);
        assert!(
            matches!(all.try_acquire_many(5), Err(refusal) if matches!(refusal.refusal(), Some(Refusal::ExceedsLimit { .. })))
        );
    }
}

/// Bug: the maximum wait of a bucket in shadow mode refused a request that waited for another
/// member.
#[test]
fn a_member_in_shadow_bounds_no_wait() {
    let clock = ManualClock::new();
    let policy = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_millis(100));
    let leaky = RateLimiter::with_clock(policy, clock.clone());
    let slow = bucket(&clock, 1, 1);
    assert!(slow.try_acquire().is_ok());
    leaky.set_shadow(true);
    let all = AllOf::new("leaky", &leaky).with("slow", &slow);
    let mut wait = spawn_pending(all.acquire());
    clock.advance(SECOND);
    assert!(assert_ready!(wait.poll()).is_ok());
}

/// Bug: a leaky bucket of which a request asked nothing refused its wait for another member.
#[test]
fn a_member_of_which_nothing_is_asked_bounds_no_wait() {
    let clock = ManualClock::new();
    let leaky = LeakyBucket::new(Rate::per_second(10)).capacity(0);
    let uploads = RateLimiter::with_clock(leaky, clock.clone());
    let calls = bucket(&clock, 1, 1);
    assert!(calls.try_acquire().is_ok());
    let api = AllOf::new("calls", &calls).with("uploads", &uploads).default_cost("uploads", 0);
    let (mut wait, mut named) =
        (spawn_pending(api.acquire()), spawn_pending(api.acquire_many([("uploads", 0)])));
    assert!(spawn(api.acquire_many([("uploads", 1)])).poll().is_ready(), "it may not wait");
    clock.advance(2 * SECOND);
    assert!(assert_ready!(wait.poll()).is_ok() && assert_ready!(named.poll()).is_ok());
}

/// Bug: only the first waiter of a composite was refused when the shadow mode of a member ended.
#[test]
fn all_waiters_that_no_member_can_grant_are_refused_when_shadow_mode_ends() {
    let clock = ManualClock::new();
    let (a, b) = (bucket(&clock, 1, 3), bucket(&clock, 1, 10));
    assert_eq!(b.drain(), 10);
    a.set_shadow(true);
    let all = AllOf::new("a", &a).with("b", &b);
    let _first = spawn_pending(all.acquire_many(2));
    let mut second = spawn_pending(all.acquire_many(5));
    a.set_shadow(false);
    assert!(second.is_woken() && assert_ready!(second.poll()).is_err());
}

/// Bug: a composite of higher priority made a waiter of its member too late, which learned it only
/// when it would have been due.
#[test]
fn a_composite_refuses_the_waiters_of_its_members_that_it_makes_too_late() {
    let clock = ManualClock::new();
    let a = bucket(&clock, 1, 1);
    assert!(a.try_acquire().is_ok());
    let _first = spawn_pending(a.acquire());
    let mut late = spawn_pending(a.acquire_within(Duration::from_millis(2500)));
    let all = AllOf::new("a", &a);
    let _high = spawn_pending(all.acquire_many(AllRequest::new().priority(1)));
    assert!(late.is_woken() && assert_ready!(late.poll()).is_err());
}

/// Bug: the permits that a waiting composite took from its first member were lost when the policy
/// of the second one panicked.
#[test]
fn a_policy_that_panics_costs_the_other_members_no_permits() {
    let clock = ManualClock::new();
    let (a, policy) = (bucket(&clock, 1, 1), Asked::new(SmoothBursty::new(Rate::per_second(1))));
    let b = RateLimiter::with_clock(policy, clock.clone());
    assert!(a.try_acquire().is_ok());
    let all = AllOf::new("a", &a).with("b", &b);
    let mut wait = spawn_pending(all.acquire());
    b.policy().panics_at_takes.store(true, Ordering::Relaxed);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        clock.advance(SECOND);
        _ = wait.poll();
    }));
    assert!(panicked.is_err());
    b.policy().panics_at_takes.store(false, Ordering::Relaxed);
    drop(wait);
    assert!(a.try_acquire().is_ok());
}

/// Bug: a member with more than a thousand reservations that no call had served yet was not left
/// empty by the pause of a composite that was dropped just after its end.
#[test]
fn a_pause_leaves_a_member_empty_behind_many_reservations() {
    let clock = ManualClock::new();
    let a = bucket(&clock, 10_000, 5_000);
    let all = AllOf::new("a", &a);
    let reservations: Vec<_> = (0..7_000).map(|_| a.reserve(1).expect("some day")).collect();
    all.pause_for(SECOND);
    clock.jump(SECOND + 10 * MS);
    drop(all);
    assert_eq!(a.status().available, 100);
    drop(reservations);
}

/// Bug: a reservation of a composite that was claimed late counted as a late grant of its members.
#[test]
fn a_reservation_that_is_claimed_late_leaves_its_member_as_one_of_the_member_does() {
    let later = |in_composite: bool| {
        let clock = ManualClock::new();
        let a = bucket(&clock, 100, 1);
        let all = AllOf::new("a", &a);
        assert!(a.try_acquire().is_ok());
        let claims: Box<dyn FnOnce() -> bool> = match in_composite {
            true => {
                Box::new(all.reserve(1).map(|mut reservation| move || reservation.claim()).expect("some day"))
            }
            false => {
                Box::new(a.reserve(1).map(|mut reservation| move || reservation.claim()).expect("some day"))
            }
        };
        clock.advance(10 * MS);
        // These serve the queues.
        _ = (all.status(), a.try_acquire());
        clock.advance(8 * MS);
        assert!(claims());
        clock.advance(10 * MS);
        assert!(a.try_acquire().is_ok());
        clock.advance(2 * MS);
        a.try_acquire().is_ok()
    };
    assert_eq!([later(true), later(false)], [false; 2]);
}

/// Bug: a composite that took a seat refused a waiter of the member that was due, if the alarm of
/// the composite came first.
#[test]
fn a_seat_makes_no_waiter_late_that_is_due() {
    let clock = ManualClock::new();
    let window = FixedWindow::new("1/10s".parse().expect("a rate"));
    let window = RateLimiter::with_clock(window, clock.clone());
    let rate = Rate::new(1, Duration::from_millis(9_999)).expect("a rate");
    let slow = RateLimiter::with_clock(TokenBucket::new(rate, 2), clock.clone());
    assert!(window.try_acquire().is_ok() && slow.try_acquire_many(2).is_ok());
    let mut due = spawn_pending(window.acquire_within(10 * SECOND));
    let both = AllOf::new("window", &window).with("slow", &slow);
    let of = |window, slow| AllRequest::from([("window", window), ("slow", slow)]).priority(1);
    let _first = spawn_pending(both.acquire_many(of(0, 1)));
    let _second = spawn_pending(both.acquire_many(of(1, 2)));
    // Both are due, and their timers a little late.
    clock.jump(10 * SECOND + MS);
    assert_ready_ok!(due.poll());
}

/// Bug: a reservation of a window that no task awaited was refused, or moved the next one, because
/// a composite waited behind it.
#[test]
fn a_composite_behind_a_reservation_does_not_make_it_late() {
    let clock = ManualClock::new();
    let window = FixedWindow::new("1/10s".parse().expect("a rate"));
    let window = RateLimiter::with_clock(window, clock.clone());
    let slow = RateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 1), clock.clone());
    assert!(window.try_acquire().is_ok() && slow.try_acquire().is_ok());
    let mut first = window.reserve(Request::permits(1).within(20 * SECOND)).expect("in time");
    let mut second = window.reserve(1).expect("any time");
    let both = AllOf::new("window", &window).with("slow", &slow);
    let _behind = spawn_pending(both.acquire());
    clock.advance(40 * SECOND);
    assert!(first.claim() && second.claim());
    assert!(window.try_acquire().is_ok(), "both were charged in their windows");
}

/// Bug: a request that a member could not grant any more, because it was in shadow mode no longer,
/// was refused only when another member had its permits.
#[test]
fn a_request_that_no_member_can_grant_is_refused_when_shadow_mode_ends() {
    let clock = ManualClock::new();
    let (a, b) = (bucket(&clock, 1, 3), bucket(&clock, 1, 10));
    assert_eq!(b.drain(), 10);
    a.set_shadow(true);
    let all = AllOf::new("a", &a).with("b", &b);
    let mut wait = spawn_pending(all.acquire_many(5));
    a.set_shadow(false);
    assert!(wait.is_woken());
    let refusal = Refusal::ExceedsLimit { requested: 5, limit: 3 };
    assert_eq!(assert_ready!(wait.poll()).err(), Some(AllRefusal::from_member("a", refusal)));
}

#[test]
fn shadow_frees_a_waiter_for_a_paused_member() {
    let (a, _b, both, _clock) = two();
    a.pause_for(Duration::MAX);
    let mut waiting = spawn_pending(both.acquire());
    a.set_shadow(true);
    assert!(waiting.is_woken());
    assert!(assert_ready!(waiting.poll()).is_ok());
}

#[test]
fn a_request_for_more_than_a_member_can_give_any_more_is_refused() {
    let clock = ManualClock::new();
    let a = bucket(&clock, 1, 10);
    let all = AllOf::new("a", &a);
    assert_eq!(a.try_acquire_many(10).map(drop), Ok(()));
    let (mut big, mut small) = (spawn_pending(all.acquire_many([("a", 5)])), spawn_pending(all.acquire()));
    assert_eq!(a.change(Change::only_burst(3)), Ok(()));
    clock.advance(5 * SECOND);
    let refusal = Refusal::ExceedsLimit { requested: 5, limit: 3 };
    assert_eq!(assert_ready!(big.poll()).err(), Some(AllRefusal::from_member("a", refusal)));
    clock.advance(SECOND);
    assert!(assert_ready!(small.poll()).is_ok());
}

#[test]
fn more_than_a_share_leaves_is_refused() {
    let clock = ManualClock::new();
    let a = bucket(&clock, 1, 10);
    let all = AllOf::new("a", &a);
    a.keep_for_priority(5, 1);
    let refusal = Refusal::ExceedsLimit { requested: 6, limit: 5 };
    let expected = Some(AllRefusal::from_member("a", refusal));
    assert_eq!(all.try_acquire_many([("a", 6)]).err(), expected);
    assert_eq!(assert_ready!(spawn(all.acquire_many([("a", 6)])).poll()).err(), expected);
}

#[test]
fn counted_permits_are_not_held_for_a_request_that_asks_for_none() -> Result<(), Refusal> {
    let clock = ManualClock::new();
    let (a, count) = (bucket(&clock, 1, 1), CountingLimit::new(2));
    let both = AllOf::new("a", &a).with_counting("n", &count);
    let out = count.try_acquire_many(2)?;
    let first = spawn_pending(both.acquire_many([("n", 2)]));
    a.try_acquire()?;
    drop(out);
    let _second = spawn_pending(both.acquire_many([("n", 0)]));
    drop(first);
    assert_eq!(count.available(), 2);
    Ok(())
}

#[test]
fn waiters_ahead_weigh_what_they_weigh_at_a_new_rate() {
    let clock = ManualClock::new();
    let a = RateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 1), clock.clone());
    let all = AllOf::new("a", &a);
    assert_eq!(a.try_acquire().map(drop), Ok(()));
    let mut waiting: Vec<_> = (0..10).map(|_| spawn(all.acquire())).collect();
    assert!(waiting.iter_mut().all(|wait| wait.poll().is_pending()));
    a.set_rate(Rate::per_second(10));
    assert_pending!(spawn(all.acquire_within(5 * SECOND)).poll());
}

#[test]
fn a_waiter_too_late_after_a_change_of_a_member_is_refused_at_once() {
    type Act = (&'static str, fn(&Bucket));
    let acts: [Act; 5] = [
        ("rate", |a| {
            a.drain();
            a.set_rate(Rate::per_hour(1));
        }),
        ("pause", |a| a.pause_for(60 * SECOND)),
        ("debit", |a| a.debit(100)),
        ("settle", |a| crate::support::estimate(a, 1).expect("available").settle(100)),
        ("share", |a| a.keep_for_priority(10, 1)),
    ];
    for (name, act) in acts {
        let clock = ManualClock::new();
        let (a, b) = (bucket(&clock, 1, 10), bucket(&clock, 1, 10));
        let all = AllOf::new("b", &b).with("a", &a);
        b.debit(11);
        let mut waits = [0, 1].map(|_| spawn(all.acquire_within(5 * SECOND)));
        assert!(waits.iter_mut().all(|wait| wait.poll().is_pending()));
        act(&a);
        for wait in &mut waits {
            assert!(wait.is_woken(), "{name}");
            let refusal = assert_ready!(wait.poll()).err().and_then(|refusal| refusal.refusal());
            match refusal {
                Some(Refusal::Paused { .. }) => assert_eq!(name, "pause"),
                Some(Refusal::Limited { .. }) => assert_ne!(name, "pause"),
                refusal => panic!("{name}: {refusal:?}"),
            }
        }
    }
}

#[cfg(feature = "keyed")]
#[test]
fn a_key_owes_and_settles_as_any_limiter() -> Result<(), Refusal> {
    let policy = TokenBucket::new(Rate::per_second(5), 1000);
    let users = tidegate::KeyedRateLimiter::with_clock(policy, 10, ManualClock::new());
    let one = users.limiter(&1)?;
    crate::support::estimate(&one, 800)?.settle(300);
    assert_eq!(one.status().available, 700);
    one.debit(710);
    assert_eq!(one.try_acquire(), Err(Refusal::Limited { retry_after: (2200 * MS).into() }));
    Ok(())
}

#[cfg(feature = "keyed")]
#[test]
fn a_limit_of_a_user_and_one_of_all_users() -> Result<(), Box<dyn std::error::Error>> {
    use tidegate::KeyedRateLimiter;

    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    let users: KeyedRateLimiter<String, _, _> = KeyedRateLimiter::with_clock(policy, 10, clock.clone());
    let everybody = bucket(&clock, 10, 2);
    let of = |user: &str| {
        Ok::<_, Refusal>(AllOf::new("user", &users.limiter(user)?).with("everybody", &everybody))
    };

    assert!(of("alice")?.try_acquire().is_ok());
    assert_eq!(of("alice")?.try_acquire().err(), Some(limited("user", SECOND)));
    assert!(of("bob")?.try_acquire().is_ok());
    assert_eq!(of("carol")?.try_acquire().err(), Some(limited("everybody", 100 * MS)));
    // A user that the common limit refused kept the permit of that user.
    assert_eq!(users.status("carol").available, 1);
    clock.advance(SECOND);
    users.sweep();
    assert!(users.is_empty());
    Ok(())
}

/// Returns two members of 20 permits per second each, full, as one composite.
fn full_pair(
    policies: [&str; 2],
) -> (AllOf<ManualClock>, [RateLimiter<AnyPolicy, ManualClock>; 2], ManualClock) {
    let clock = ManualClock::new();
    let members = policies.map(|policy| {
        let policy: AnyPolicy = policy.parse().expect("a policy");
        RateLimiter::with_clock(policy, clock.clone())
    });
    let both = AllOf::new("requests", &members[0]).with("tokens", &members[1]);
    clock.advance(10 * SECOND);
    (both, members, clock)
}

const PAIRS: [[&str; 2]; 4] = [
    ["token_bucket 20/s burst 20", "token_bucket 2000/s burst 5000"],
    ["sliding_log 20/s", "token_bucket 2000/s burst 5000"],
    ["token_bucket 20/s burst 20", "fixed_window 2000/s"],
    ["sliding_window 20/s cells 5", "sliding_estimate 2000/s"],
];

#[test]
fn no_burst_follows_the_pause_of_a_composite() {
    for policies in PAIRS {
        let (both, _members, clock) = full_pair(policies);
        both.pause_for(SECOND);
        both.pause_for(SECOND);
        let mut grants = Vec::new();
        for at in 0..1900 {
            while both.try_acquire_many([("requests", 1), ("tokens", 100)]).is_ok() {
                grants.push(at);
            }
            clock.advance(MS);
        }
        let even: Vec<u32> = (1..18).map(|k| 1000 + k * 50).collect();
        assert_eq!(grants, even, "{policies:?}");
    }
}

#[test]
fn a_time_that_a_paused_composite_predicts_is_exact() {
    for policies in PAIRS {
        for n in [1, 4] {
            let (both, _members, clock) = full_pair(policies);
            both.pause_for(SECOND);
            let request = || both.try_acquire_many([("requests", n), ("tokens", 100)]).map(drop);
            let told = request().expect_err("paused").retry_after().expect("some day");
            assert_eq!(told, SECOND + n * 50 * MS, "{policies:?}");
            clock.advance(told - Duration::from_nanos(1));
            assert!(request().is_err(), "{policies:?}");
            clock.advance(Duration::from_nanos(1));
            assert_eq!(request(), Ok(()), "{policies:?}");
        }
    }
}

#[test]
fn the_members_of_a_paused_composite_go_on_until_the_end() {
    for policies in PAIRS {
        let (both, members, clock) = full_pair(policies);
        both.pause_for(SECOND);
        let taken = (0..100).filter(|_| members[0].try_acquire().is_ok()).count();
        assert_eq!(taken, 20, "{policies:?}");
        assert!(both.resume());
        assert!(both.try_acquire_many([("requests", 0), ("tokens", 1)]).is_ok(), "{policies:?}");
        // At the end the members are empty for all, unless the pause keeps their permits.
        clock.advance(10 * SECOND);
        both.pause(Pause::lasting(SECOND).keep_permits());
        clock.advance(SECOND);
        assert!(both.try_acquire_many([("requests", 5), ("tokens", 5)]).is_ok(), "{policies:?}");
        both.pause_for(SECOND);
        clock.advance(SECOND);
        assert!(both.try_acquire_many([("requests", 1), ("tokens", 1)]).is_err(), "{policies:?}");
        assert!(members[0].try_acquire().is_err(), "{policies:?}");
    }
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn waiters_of_a_paused_composite_come_one_interval_apart() {
    let clock = tidegate::TokioClock::new();
    let policy = TokenBucket::new(Rate::per_second(20), 20);
    let requests = RateLimiter::with_clock(policy, clock);
    let both = AllOf::new("requests", &requests);
    both.pause_for(SECOND);
    let begin = tokio::time::Instant::now();
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let both = both.clone();
            tokio::spawn(async move { both.acquire().await.map(|_| begin.elapsed().as_millis()) })
        })
        .collect();
    for (k, task) in (1..).zip(tasks) {
        assert_eq!(task.await.expect("no panic"), Ok(1000 + k * 50));
    }
}

#[test]
fn a_composite_that_is_closed_blames_no_open_member() {
    // Bug: the refusal named a member: the one that could never grant that many permits, or the
    // first.
    let (a, b, both, _clock) = two();
    assert!(both.try_acquire().is_ok());
    let mut wait = spawn_pending(both.acquire());
    let mut reservation = both.reserve(1).expect("a reservation");
    assert!(both.close());
    let itself = Some(AllRefusal::from(Refusal::Closed));
    assert_eq!(assert_ready!(wait.poll()).err(), itself);
    assert_eq!(reservation.blocking_claim().err(), itself);
    for n in [1, 1000] {
        assert_eq!(both.try_acquire_many(n).err(), itself);
        assert_eq!(both.reserve(n).err(), itself);
        assert_eq!(assert_ready!(spawn(both.acquire_many(n)).poll()).err(), itself);
    }
    // A closed member is named.
    let other = AllOf::new("a", &a).with("b", &b);
    assert!(b.close());
    assert_eq!(other.try_acquire().err(), Some(AllRefusal::from_member("b", Refusal::Closed)));
}

/// Returns a composite with a pause of a second, and its two members of 20 permits per second.
fn paused_pair(
    policies: [&str; 2],
) -> (AllOf<ManualClock>, [RateLimiter<AnyPolicy, ManualClock>; 2], ManualClock) {
    let (both, members, clock) = full_pair(policies);
    both.pause_for(SECOND);
    (both, members, clock)
}

#[test]
fn the_members_of_a_paused_composite_are_empty_at_the_end_whether_it_is_asked_or_not() {
    // Bug: the members were emptied only at the next call of the composite.
    for policies in PAIRS {
        for is_dropped in [false, true] {
            let (both, [requests, _], clock) = paused_pair(policies);
            clock.advance(SECOND - Duration::from_nanos(1));
            assert_eq!(requests.status().available, 20, "{policies:?}");
            clock.advance(Duration::from_nanos(1));
            if is_dropped {
                drop(both);
            }
            assert_eq!(requests.status().available, 0, "{policies:?}");
            assert_eq!(requests.try_acquire().err().and_then(|of| of.retry_after()), Some(50 * MS));
            clock.advance(50 * MS);
            assert!(requests.try_acquire().is_ok() && requests.try_acquire().is_err(), "{policies:?}");
        }
    }
}

#[test]
fn changes_of_a_member_after_the_pause_of_a_composite_stand() {
    // Bug: the changes were wiped at the next call of the composite.
    for policies in PAIRS {
        let (both, members, clock) = paused_pair(policies);
        clock.advance(10 * SECOND);
        members.iter().for_each(RateLimiter::reset);
        assert!(both.try_acquire().is_ok());
        assert_eq!(members[0].status().available, 19, "{policies:?}");
    }
    let (both, members, clock) = paused_pair(PAIRS[0]);
    clock.advance(SECOND);
    members[0].refund(5);
    members[1].refund(5);
    assert_eq!(both.try_acquire_many(5).map(drop), Ok(()));
    assert!(both.try_acquire().is_err());
}

#[test]
fn a_pause_that_ends_early_or_keeps_the_stock_leaves_the_members_alone() {
    let ends: [fn(AllOf<ManualClock>); 3] = [
        |both| assert!(both.resume()),
        drop,
        |both| {
            assert!(both.resume());
            both.pause(Pause::lasting(SECOND / 2).keep_permits());
        },
    ];
    for policies in PAIRS {
        for end in ends {
            let (both, [requests, _], clock) = paused_pair(policies);
            clock.advance(SECOND / 2);
            end(both);
            clock.advance(SECOND);
            assert_eq!(requests.status().available, 20, "{policies:?}");
        }
        // The pause lasts longer than before.
        let (both, [requests, _], clock) = paused_pair(policies);
        both.pause_for(2 * SECOND);
        clock.advance(SECOND);
        assert_eq!(requests.status().available, 20, "{policies:?}");
        clock.advance(SECOND);
        assert_eq!(requests.status().available, 0, "{policies:?}");
    }
}

#[test]
fn a_waiter_at_a_member_is_behind_an_empty_limiter_after_the_pause_of_a_composite() {
    for policies in PAIRS {
        let (both, [requests, _], clock) = full_pair(policies);
        assert!(requests.try_acquire_many(20).is_ok());
        both.pause_for(SECOND);
        let mut wait = spawn_pending(requests.acquire_many(20));
        clock.advance(2 * SECOND - Duration::from_nanos(1));
        assert_pending!(wait.poll(), "{policies:?}");
        clock.advance(Duration::from_nanos(1));
        assert!(assert_ready!(wait.poll()).is_ok(), "{policies:?}");
    }
}

#[test]
fn a_reservation_at_a_member_is_charged_at_its_time_before_the_end_of_a_pause() {
    let (both, [requests, _], clock) = full_pair(PAIRS[0]);
    assert!(requests.try_acquire_many(20).is_ok());
    both.pause_for(SECOND);
    let mut reservation = requests.reserve(5).expect("a reservation");
    assert_eq!(reservation.due_in(), SECOND / 4);
    clock.jump(10 * SECOND);
    assert!(reservation.claim());
    let mut waits = spawn(requests.acquire());
    assert!(assert_ready!(waits.poll()).is_ok());
    assert_eq!(requests.status().available, 19);
}

/// Bug: a call of the composite visited the member, and so left it empty before the reservation was
/// served.
#[test]
fn no_call_of_a_paused_composite_takes_the_turn_of_a_reservation_at_a_member() {
    let calls: [fn(AllOf<ManualClock>); 7] = [
        |both| assert!(both.try_acquire().is_err()),
        |both| assert!(both.try_acquire_many(Request::up_to(5)).is_err()),
        |both| drop(both.reserve(1)),
        |both| assert_pending!(spawn(both.acquire()).poll()),
        |both| assert_eq!(both.status().member("requests").map(|member| member.available), Some(0)),
        |both| both.pause_for(SECOND),
        drop,
    ];
    for (call, waits) in calls.into_iter().flat_map(|call| [(call, false), (call, true)]) {
        let (both, [requests, _], clock) = full_pair(PAIRS[0]);
        assert!(requests.try_acquire_many(20).is_ok());
        both.pause_for(SECOND);
        let mut reservation = requests.reserve(5).expect("a reservation");
        assert_eq!(reservation.due_in(), SECOND / 4);
        let _wait = waits.then(|| spawn_pending(both.acquire()));
        clock.advance(SECOND);
        call(both);
        assert!(reservation.claim());
    }
}

#[test]
fn thousands_of_reservations_are_served_before_a_pause_of_a_composite_leaves_the_member_empty() {
    const RESERVATIONS: u32 = 2000;
    let clock = ManualClock::new();
    let requests = bucket(&clock, 2 * u64::from(RESERVATIONS), RESERVATIONS);
    let both = AllOf::new("requests", &requests);
    requests.drain();
    both.pause_for(SECOND);
    let reservations: Vec<_> =
        (0..RESERVATIONS).map(|_| requests.reserve(1).expect("a reservation")).collect();
    clock.jump(SECOND);
    assert!(requests.try_acquire().is_err());
    assert!(reservations.into_iter().all(|mut reservation| reservation.claim()));
    assert!(both.try_acquire().is_err(), "empty now");
}

#[test]
fn two_composites_of_one_member_leave_it_empty_at_two_times() {
    let (both, [requests, tokens], clock) = paused_pair(PAIRS[0]);
    let other = AllOf::new("tokens", &tokens).with("requests", &requests);
    other.pause_for(3 * SECOND / 2);
    clock.advance(SECOND);
    assert_eq!(requests.status().available, 0);
    clock.advance(SECOND / 2 - MS);
    assert_eq!(requests.status().available, 9);
    clock.advance(MS);
    assert_eq!(requests.status().available, 0);
    let told = both.try_acquire().err().and_then(|refusal| refusal.retry_after());
    assert_eq!(told, Some(50 * MS));
}
