//! Composites with a limit of each key. All tests use the manual clock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::{Bucket, MS, bucket, spawn_pending};
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::{
    AllOf, AllRefusal, AllRequest, AnyKeyed, AnyPolicy, CancelToken, CountingLimit, Events, FixedWindow,
    KeyedAllOf, KeyedCountingLimit, KeyedLimiter, KeyedRateLimiter, LeakyBucket, ManualClock, QueueBounds,
    Rate, RateLimiter, Refusal, Replaceable, Request, SlidingLog, Statistics, TokenBucket, WhenKeysFull,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok};

type Users = KeyedRateLimiter<String, TokenBucket, ManualClock>;

const SECOND: Duration = Duration::from_secs(1);

/// Returns limits of two a second for each user, and ten for all.
fn users_and_all() -> (Users, Bucket, KeyedAllOf<str, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(2), 2);
    let users = KeyedRateLimiter::with_clock(policy, 100, clock.clone());
    let all = bucket(&clock, 10, 10);
    let api = KeyedAllOf::new("user", &users).with("all", &all);
    (users, all, api, clock)
}

#[test]
fn once_closed_it_refuses_all_keys() {
    let (users, all, api, clock) = users_and_all();
    let other = api.clone();
    assert!(api.try_acquire_many("alice", [("user", 2)]).is_ok());
    let mut wait = spawn_pending(api.acquire("alice"));
    assert!(other.close() && !api.close() && api.is_closed());
    assert!(wait.is_woken());
    let closed = |refusal: AllRefusal| refusal.refusal() == Some(Refusal::Closed);
    assert!(closed(assert_ready_err!(wait.poll())));
    for user in ["alice", "bob"] {
        assert!(closed(api.try_acquire(user).expect_err("closed")));
        assert!(closed(api.reserve(user, 1).expect_err("closed")));
        assert!(closed(assert_ready_err!(spawn(api.acquire(user)).poll())));
        assert!(closed(assert_ready_err!(spawn(api.acquire_within(user, SECOND)).poll())));
    }
    drop(wait);
    clock.advance(10 * SECOND);
    assert!(users.try_acquire("alice").is_ok() && all.try_acquire().is_ok(), "members stay open");
    assert!(closed(api.try_acquire("alice").expect_err("closed")));
}

/// Bug: a request for a new key made room for its key first, and was refused if there was no room.
#[test]
fn once_closed_it_needs_no_room_for_a_key() {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(2), 2);
    let users: Users = KeyedRateLimiter::with_clock(policy, 1, clock);
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users);
    let statistics = Arc::new(Statistics::new());
    let api = api.observed_by(statistics.clone());
    assert!(users.try_acquire("alice").is_ok());
    assert!(api.close());
    let closed = Some(AllRefusal::from(Refusal::Closed));
    assert_eq!(api.try_acquire("bob").err(), closed);
    assert_eq!(api.try_acquire_many("bob", Request::up_to(2)).err(), closed);
    assert_eq!(api.reserve("bob", 1).err(), closed);
    assert_eq!(Some(assert_ready_err!(spawn(api.acquire("bob")).poll())), closed);
    assert_eq!(api.blocking_acquire("bob").err(), closed);
    let any = AnyKeyed::from(api);
    assert_eq!(any.try_acquire("bob").err(), closed);
    assert_eq!(statistics.snapshot().refused(), 6);
    assert_eq!(users.status("alice").available, 1);
}

#[test]
fn the_pause_of_a_key_and_that_of_a_common_limiter_are_reported() {
    let (users, all, api, clock) = users_and_all();
    let told = |name: &'static str, retry_after: Duration| {
        let refusal = Refusal::Paused { retry_after: retry_after.into() };
        Some(AllRefusal::from_member(name, refusal))
    };
    assert!(api.try_acquire("alice").is_ok());
    all.pause_for(2 * SECOND);
    // A known key, and a new key.
    assert_eq!(api.try_acquire("alice").err(), told("all", 2100 * MS));
    assert_eq!(api.try_acquire("bob").err(), told("all", 2100 * MS));
    users.pause_all_for(5 * SECOND);
    assert_eq!(api.try_acquire("alice").err(), told("user", 5500 * MS));
    assert_eq!(api.try_acquire("bob").err(), told("user", 5500 * MS));
    // A key with a line.
    let _reservation = api.reserve("bob", []).expect("a reservation");
    assert!(matches!(api.try_acquire("bob").err().and_then(|r| r.refusal()), Some(Refusal::Paused { .. })));
    clock.advance(5 * SECOND);
    let refusal = api.try_acquire("alice").err().and_then(|refusal| refusal.refusal());
    assert_eq!(refusal, Some(Refusal::Limited { retry_after: (500 * MS).into() }));
}

#[test]
fn users_do_not_hold_each_other_up_and_one_user_is_served_in_order() {
    let (users, all, api, clock) = users_and_all();
    assert!(api.try_acquire_many("alice", [("user", 2)]).is_ok());
    let (mut large, mut small) =
        (spawn(api.acquire_many("alice", [("user", 2), ("all", 5)])), spawn(api.acquire("alice")));
    assert_pending!(large.poll());
    assert_pending!(small.poll());
    assert_eq!(api.status("alice").waiting, 2);
    assert!(api.try_acquire("bob").is_ok() && api.try_acquire("carol").is_ok());
    let refused = api.try_acquire("alice").expect_err("behind the waiters");
    assert_eq!((refused.member(), refused.retry_after()), (Some("user"), Some(2 * SECOND)));

    // One permit of the user is available after half a second, and the smaller request does not get
    // it.
    clock.advance(500 * MS);
    assert_pending!(large.poll());
    assert_pending!(small.poll());
    clock.advance(500 * MS);
    assert_eq!(assert_ready_ok!(large.poll()).waited(), SECOND);
    assert_pending!(small.poll());
    clock.advance(500 * MS);
    assert_eq!(assert_ready_ok!(small.poll()).waited(), 1500 * MS);
    drop((large, small));
    clock.advance(10 * SECOND);
    assert_eq!((all.status().available, all.status().waiting), (10, 0));
    users.sweep();
    assert!(users.is_empty());
}

#[test]
fn a_refusal_names_the_tightest_and_takes_nothing() -> Result<(), AllRefusal> {
    let (users, all, api, clock) = users_and_all();
    assert_eq!(api.names().collect::<Vec<_>>(), ["all", "user"]);
    let never = api.try_acquire_many("alice", [("user", 3)]).expect_err("too many");
    assert_eq!(never.to_string(), "user: 3 permits requested, the limit is 2");
    all.drain();
    let never = api.try_acquire_many("alice", [("user", 3)]).expect_err("too many, and none available");
    assert!(!never.may_retry());
    let limited = api.try_acquire("alice").expect_err("drained");
    assert_eq!((limited.member(), limited.retry_after()), (Some("all"), Some(100 * MS)));
    assert!(users.is_empty(), "a refused request adds no key");
    clock.advance(200 * MS);
    let _permits = api.try_acquire_many("alice", [("user", 2), ("all", 1)])?;
    let limited = api.try_acquire("alice").expect_err("used up");
    assert_eq!((limited.member(), limited.retry_after()), (Some("user"), Some(500 * MS)));
    assert_eq!(all.status().available, 1);
    let zero = api.try_acquire_many("alice", [("user", 0), ("all", 0)]).expect_err("nothing");
    assert_eq!(zero.refusal(), Some(Refusal::ZeroPermits));
    let unknown = api.try_acquire_many("alice", [("users", 1)]).expect_err("a typing error");
    assert_eq!(unknown.to_string(), r#""users" is not a member: the members are "all", "user""#);
    let unknown = assert_ready_err!(spawn(api.acquire_many("alice", [("users", 1)])).poll());
    assert!(matches!(unknown, AllRefusal::NoMember { .. }));
    Ok(())
}

#[test]
fn a_key_that_is_removed_starts_anew_beside_its_waiters() {
    let (users, _all, api, clock) = users_and_all();
    assert!(api.try_acquire_many("alice", [("user", 2)]).is_ok());
    let mut wait = spawn_pending(api.acquire("alice"));
    assert!(users.remove("alice"));
    assert!(api.try_acquire("alice").is_ok(), "a new key");
    let mut other = spawn_pending(api.acquire_many("alice", [("user", 2)]));
    clock.advance(500 * MS);
    assert_eq!(assert_ready_ok!(wait.poll()).waited(), 500 * MS);
    assert_eq!(assert_ready_ok!(other.poll()).waited(), 500 * MS);
}

/// Bug: a change of all keys left the limiter of the key empty before its reservation was served.
#[test]
fn no_change_of_all_keys_takes_the_turn_of_a_reservation_at_a_key() {
    let changes: [fn(&Users); 2] =
        [|users| users.set_rate_all(Rate::per_second(2)), |users| users.pause_all_for(SECOND)];
    for change in changes {
        let (users, _all, api, clock) = users_and_all();
        assert!(users.try_acquire_many("alice", 2).is_ok());
        let alice = api.limiter("alice").expect("room");
        alice.pause_for(SECOND);
        let mut reservation = users.reserve("alice", 1).expect("a reservation");
        clock.advance(SECOND);
        change(&users);
        assert!(reservation.claim());
    }
}

#[test]
fn without_room_for_a_key_the_limiter_of_keys_says_so() {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(2), 2);
    let all = bucket(&clock, 10, 10);
    let users: Users = KeyedRateLimiter::with_clock(policy.clone(), 1, clock.clone());
    let api = KeyedAllOf::new("user", &users).with("all", &all);
    assert!(api.try_acquire("alice").is_ok());
    let expected = AllRefusal::from_member("user", Refusal::TooManyKeys { limit: 1 });
    assert_eq!(api.try_acquire("bob").err(), Some(expected.clone()));
    assert_eq!(assert_ready_err!(spawn(api.acquire("bob")).poll()), expected);
    assert_eq!(api.reserve("bob", AllRequest::new()).err(), Some(expected));
    assert_eq!(all.status().available, 9);

    let users: Users = KeyedRateLimiter::with_clock(policy, 1, clock).when_full(WhenKeysFull::ShareOne);
    let api = KeyedAllOf::new("user", &users).with("all", &all);
    assert!(api.try_acquire("alice").is_ok());
    assert!(api.try_acquire("bob").is_ok() && api.try_acquire("carol").is_ok());
    let mut waits = [spawn(api.acquire("bob")), spawn(api.acquire("carol"))];
    waits.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    let limited = api.try_acquire("dave").expect_err("they share one limiter");
    assert_eq!((limited.member(), limited.retry_after()), (Some("user"), Some(1500 * MS)));
}

#[test]
fn each_call_reports_a_refusal_and_the_permits_left() {
    // Bug: only `try_acquire` reported the permits left when the refusal was final or for lack of
    // room, and `reserve` did not notify the observer of a lack of room.
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(2), 2);
    let all = bucket(&clock, 10, 10);
    let users: Users = KeyedRateLimiter::with_clock(policy, 1, clock);
    let statistics = Arc::new(Statistics::new());
    let api = KeyedAllOf::new("user", &users).with("all", &all).observed_by(statistics.clone());
    assert!(api.try_acquire("alice").is_ok());
    let never = Refusal::ExceedsLimit { requested: 3, limit: 2 };
    for (key, n, refusal) in [("alice", 3, never), ("bob", 1, Refusal::TooManyKeys { limit: 1 })] {
        let request = || AllRequest::new().cost("user", n).with_left();
        let expected = AllRefusal::from_member("user", refusal).with_left(api.status(key));
        let told = statistics.snapshot().refused();
        assert_eq!(api.try_acquire_many(key, request()).err().as_ref(), Some(&expected));
        assert_eq!(api.reserve(key, request()).err().as_ref(), Some(&expected));
        assert_eq!(assert_ready_err!(spawn(api.acquire_many(key, request())).poll()), expected);
        assert_eq!(statistics.snapshot().refused(), told + 3, "{key}");
    }
}

#[tokio::test]
async fn a_handle_lets_an_exempt_request_pass_without_room_for_its_key() {
    // Bug: it refused each such request, and notified no observer.
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(2), 2);
    let users: Users = KeyedRateLimiter::with_clock(policy, 1, clock.clone());
    let all = bucket(&clock, 10, 10);
    let statistics = Arc::new(Statistics::new());
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users).with("all", &all);
    let any = AnyKeyed::<String>::from(api.observed_by(statistics.clone()));
    assert!(any.try_acquire("alice").is_ok());
    for refusal in [Refusal::TooManyKeys { limit: 1 }, Refusal::Closed] {
        let before = statistics.snapshot();
        let exempt = || AllRequest::new().exempt();
        assert_eq!(any.try_acquire_many("bob", exempt()).expect("exempt").permits(), 0);
        assert!(any.acquire_now("bob", exempt()).await.is_ok());
        assert!(any.acquire_many("bob", exempt()).await.is_ok());
        assert!(any.reserve("bob", exempt()).expect("exempt").await.is_ok());
        // Other requests are refused, and the observer is notified of them too.
        let expected = AllRefusal::from_member("user", refusal);
        assert_eq!(any.try_acquire("bob").err().as_ref(), Some(&expected));
        assert_eq!(any.acquire_now("bob", 1).await.err().as_ref(), Some(&expected));
        assert_eq!(any.acquire("bob").await.err().as_ref(), Some(&expected));
        assert_eq!(any.acquire_within("bob", SECOND).await.err().as_ref(), Some(&expected));
        assert_eq!(any.reserve("bob", 1).err().as_ref(), Some(&expected));
        let told = statistics.snapshot();
        assert_eq!((told.exempted - before.exempted, told.refused() - before.refused()), (4, 5));
        // Making a limiter of the key requests no permits.
        assert_eq!(any.limiter("bob").err(), Some(expected));
        assert_eq!(statistics.snapshot(), told);
        assert_eq!(users.len(), usize::from(!users.is_closed()));
        users.close();
    }

    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 1);
    let any = AnyKeyed::<String>::from(calls.clone());
    let _held = any.try_acquire("alice").expect("available");
    assert_eq!(any.try_acquire_many("bob", AllRequest::new().exempt()).expect("exempt").permits(), 0);
    assert_eq!((any.try_acquire("bob").is_err(), calls.len()), (true, 1));
}

#[test]
fn an_exempt_reservation_needs_no_room_for_its_key() {
    // Bug: an exempt reservation was refused where the limiter of keys had no room for a new key.
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(2), 2);
    let all = bucket(&clock, 10, 10);
    let users: Users = KeyedRateLimiter::with_clock(policy, 1, clock);
    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 1);
    let statistics = Arc::new(Statistics::new());
    let api = KeyedAllOf::new("user", &users).with("all", &all).with_keyed_counting("calls", &calls);
    let api = api.observed_by(statistics.clone());
    let pass = |key| {
        let mut reservation = api.reserve(key, AllRequest::from(9).exempt()).expect("exempt");
        assert_eq!(reservation.costs().collect::<Vec<_>>(), [("all", 9), ("user", 9), ("calls", 1)]);
        assert!(reservation.blocking_claim().is_ok());
        reservation.settle([("user", 5), ("all", 3), ("calls", 1)]).expect("members");
    };
    pass("alice");
    assert!(users.is_empty() && calls.is_empty());
    let held = api.try_acquire("alice").expect("available");
    pass("alice");
    pass("bob");
    assert!(api.close());
    pass("alice");
    pass("bob");
    assert_eq!((users.len(), calls.len(), all.status().available), (1, 1, 9));
    assert_eq!(statistics.snapshot().exempted, 5);
    drop(held);
}

#[test]
fn several_limiters_of_a_key_and_permits_in_use() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let requests: Users =
        KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_second(2), 2), 100, clock.clone());
    let tokens: Users =
        KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_second(100), 1000), 100, clock.clone());
    let calls = CountingLimit::new(2);
    let api =
        KeyedAllOf::new("requests", &requests).with_keyed("tokens", &tokens).with_counting("calls", &calls);
    let first = api.try_acquire_many("alice", [("tokens", 850)])?;
    let refusal = api.try_acquire_many("alice", [("tokens", 850)]).expect_err("used up");
    assert_eq!((refusal.member(), refusal.retry_after()), (Some("tokens"), Some(7 * SECOND)));
    assert_eq!(requests.status("alice").available, 1, "the refusal took nothing");
    let second = api.try_acquire_many("bob", [("tokens", 850)])?;
    let in_use = api.try_acquire("carol").expect_err("two calls");
    assert_eq!((in_use.member(), in_use.refusal()), (Some("calls"), Some(Refusal::InUse { limit: 2 })));
    drop((first, second));

    let mut estimate = api.reserve("carol", [("tokens", 1000)])?;
    assert!(estimate.claim());
    assert_eq!((tokens.status("carol").available, calls.available()), (0, 1));
    estimate.settle([("tokens", 200)])?;
    assert_eq!((tokens.status("carol").available, calls.available()), (800, 2));
    let status = api.status("carol");
    assert_eq!(status.member("requests").map(|requests| requests.available), Some(1));
    clock.advance(100 * SECOND);
    requests.sweep();
    tokens.sweep();
    assert!(requests.is_empty() && tokens.is_empty(), "nothing is left of the reservation");
    Ok(())
}

#[test]
fn permits_of_a_key_in_use_are_given_back_and_the_key_is_forgotten() -> Result<(), AllRefusal> {
    let (users, all, api, clock) = users_and_all();
    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 100);
    let api = api.with_keyed_counting("calls", &calls);
    assert_eq!(api.status("alice").member("calls").map(|calls| calls.available), Some(1));
    let held = api.try_acquire("alice")?;
    let in_use = api.try_acquire("alice").expect_err("one call");
    assert_eq!((in_use.member(), in_use.refusal()), (Some("calls"), Some(Refusal::InUse { limit: 1 })));
    assert_eq!(api.status("alice").member("calls").map(|calls| calls.available), Some(0));
    let mut waits = [1, 1].map(|_| spawn(api.acquire("alice")));
    waits.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    let bobs = assert_ready_ok!(spawn(api.acquire("bob")).poll());
    drop(held);
    let [mut first, mut second] = waits;
    let held = assert_ready_ok!(first.poll());
    assert_pending!(second.poll());
    clock.advance(SECOND);
    assert_pending!(second.poll(), "the permit is in use");
    drop((held, first));
    drop(assert_ready_ok!(second.poll()));
    drop(second);
    assert_eq!(calls.len(), 1, "bob's");

    let mut reservation = api.reserve("alice", [("all", 4)])?;
    assert!(reservation.claim());
    assert_eq!((calls.len(), all.status().available), (2, 5));
    reservation.settle_unused();
    drop(bobs);
    assert!(calls.is_empty());
    assert_eq!(all.status().available, 9);
    let not_asked = api.try_acquire_many("alice", [("calls", 0)])?;
    assert!(calls.is_empty());
    drop(not_asked);
    clock.advance(10 * SECOND);
    users.sweep();
    assert!(users.is_empty());
    Ok(())
}

/// Bug: the key stayed until other keys needed its slot.
#[test]
fn a_key_of_a_handle_is_forgotten_when_its_calls_end() -> Result<(), AllRefusal> {
    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 100);
    let any = AnyKeyed::from(calls.clone());
    drop(any.try_acquire("alice")?);
    assert!(calls.is_empty());
    let held = any.try_acquire("alice")?;
    assert!(any.try_acquire("alice").is_err());
    let mut wait = spawn_pending(any.acquire("alice"));
    drop(held);
    let held = assert_ready_ok!(wait.poll());
    drop(wait);
    assert_eq!(calls.len(), 1);
    drop(held);
    assert!(calls.is_empty());
    let mut reservation = any.reserve("alice", 1)?;
    assert_ready_ok!(spawn(&mut reservation).poll());
    assert_eq!((calls.len(), calls.available("alice")), (1, 0));
    drop(reservation);
    assert!(calls.is_empty());
    let alice = any.limiter("alice")?;
    drop(alice.try_acquire()?);
    assert_eq!(calls.len(), 1);
    drop(alice);
    assert!(calls.is_empty());
    Ok(())
}

#[test]
fn a_member_that_is_closed_ends_the_waits_of_all_keys() {
    let expected = |name: &str| AllRefusal::from_member(name, Refusal::Closed);
    for closed in ["all", "user"] {
        let (users, all, api, _clock) = users_and_all();
        assert!(api.try_acquire_many("alice", [("user", 2)]).is_ok());
        let mut wait = spawn_pending(api.acquire("alice"));
        assert!(if closed == "all" { all.close() } else { users.close() });
        assert!(wait.is_woken(), "{closed}");
        assert_eq!(assert_ready_err!(wait.poll()), expected(closed));
        assert_eq!(api.try_acquire("alice").err(), Some(expected(closed)));
        all.drain();
        assert_eq!(api.try_acquire("bob").err(), Some(expected(closed)));
        assert_eq!(assert_ready_err!(spawn(api.acquire("bob")).poll()), expected(closed));
    }
}

#[test]
fn the_observer_is_notified_once_of_each_call() {
    let (users, all, api, clock) = users_and_all();
    let (statistics, of_users) = (Arc::new(Statistics::new()), Arc::new(Statistics::new()));
    let users = users.observed_by(of_users.clone());
    let bounds = QueueBounds::UNBOUNDED.max_waiters(1);
    let api = {
        drop(api);
        let api = KeyedAllOf::new("user", &users).with("all", &all);
        api.with_queue_bounds(bounds).observed_by(statistics.clone())
    };
    assert!(api.try_acquire_many("alice", [("user", 2)]).is_ok());
    assert!(api.try_acquire("alice").is_err());
    assert!(api.try_acquire_many("alice", AllRequest::new().exempt()).is_ok());
    let _bobs = assert_ready_ok!(spawn(api.acquire("bob")).poll());
    let mut wait = spawn_pending(api.acquire("alice"));
    assert!(api.try_acquire("alice").is_err());
    let full = assert_ready_err!(spawn(api.acquire("alice")).poll());
    assert!(matches!(full, AllRefusal::Queue { refusal: Refusal::QueueFull { .. }, .. }));
    clock.advance(SECOND);
    let _alices = assert_ready_ok!(wait.poll());
    drop(wait);
    let counts = statistics.snapshot();
    assert_eq!((counts.granted, counts.limited, counts.queue_full, counts.exempted), (3, 2, 1, 1));
    assert_eq!(of_users.snapshot().granted, 0, "a member's observer is not notified");
}

#[test]
fn a_thread_waits_in_the_queue_of_its_key_until_it_is_served_or_cancelled() {
    let (_users, _all, api, clock) = users_and_all();
    let statistics = Arc::new(Statistics::new());
    let api = api.observed_by(statistics.clone());
    assert_eq!(
        api.blocking_acquire_many("alice", [("user", 2)]).map(|permits| permits.waited()),
        Ok(Duration::ZERO)
    );
    let mut ahead = spawn_pending(api.acquire("alice"));
    let token = CancelToken::new();
    thread::scope(|scope| {
        let until = |waiting| {
            while api.status("alice").waiting != waiting {
                thread::yield_now();
            }
        };
        let thread = scope.spawn(|| api.blocking_acquire("alice"));
        until(2);
        let cancelled = scope.spawn(|| token.run(|| api.blocking_acquire("alice")));
        until(3);
        token.cancel();
        assert_eq!(cancelled.join().expect("no panic").err(), Some(Refusal::Cancelled.into()));
        clock.advance(500 * MS);
        assert!(ahead.is_woken());
        drop(assert_ready_ok!(ahead.poll()));
        clock.advance(500 * MS);
        assert!(thread.join().expect("no panic").is_ok());
    });
    drop(ahead);
    // For a key in use, and for an unused key.
    let reservation = api.reserve("bob", AllRequest::new()).expect("a reservation");
    for key in ["alice", "bob"] {
        let exempt = AllRequest::new().exempt();
        assert_eq!(token.run(|| api.blocking_acquire(key)).err(), Some(Refusal::Cancelled.into()));
        assert!(token.run(|| api.blocking_acquire_many(key, exempt.clone())).is_err());
        assert_eq!(api.blocking_acquire_many(key, exempt).map(|permits| permits.permits()), Ok(0));
    }
    drop(reservation);
    let counts = statistics.snapshot();
    assert_eq!((counts.granted, counts.cancelled, counts.exempted, counts.refused()), (3, 6, 2, 0));
}

#[test]
#[should_panic(expected = "this limiter was added twice: as \"user\", and now as \"other\"")]
fn a_limiter_of_keys_is_a_member_once() {
    let (users, _, api, _) = users_and_all();
    let _ = api.with_keyed("other", &users);
}

#[test]
fn threads_that_meet_at_a_key_leave_nothing_behind() {
    let clock = ManualClock::new();
    let keyed = |burst| {
        KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_second(1000), burst), 10, clock.clone())
    };
    let (users, tokens): (KeyedRateLimiter<usize, _, _>, KeyedRateLimiter<usize, _, _>) =
        (keyed(2), keyed(9));
    let (all, calls) = (bucket(&clock, 3000, 4), CountingLimit::new(3));
    let (held, running) = (AtomicU32::new(0), AtomicU32::new(4));
    let one = KeyedAllOf::new("user", &users).with("all", &all).with_counting("calls", &calls);
    let two = one.clone().with_keyed("tokens", &tokens);
    thread::scope(|scope| {
        for thread in 0..4u32 {
            let (api, held, running) = (if thread % 2 == 0 { &one } else { &two }, &held, &running);
            scope.spawn(move || {
                let within = || AllRequest::new().within(2 * MS);
                for turn in 0..300u32 {
                    let key = usize::try_from((thread * 7 + turn) % 3).unwrap_or(0);
                    let permits = match (turn + thread) % 4 {
                        0 => api.try_acquire(&key),
                        1 => api.limiter(&key).and_then(|all| all.blocking_acquire_many(within())),
                        2 => api.try_acquire_many(&key, [("all", 2)]),
                        _ => {
                            if let Ok(mut reservation) = api.reserve(&key, within()) {
                                reservation.claim();
                                reservation.settle([("user", 2)]).expect("a member");
                            }
                            continue;
                        }
                    };
                    if permits.is_ok() {
                        assert!(held.fetch_add(1, Ordering::SeqCst) < 3, "three calls at a time");
                        thread::yield_now();
                        held.fetch_sub(1, Ordering::SeqCst);
                    }
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        while running.load(Ordering::SeqCst) > 0 {
            clock.advance(MS);
            thread::yield_now();
        }
    });
    clock.advance(100 * SECOND);
    assert_eq!((all.status().available, all.status().waiting, calls.available()), (4, 0, 3));
    users.sweep();
    tokens.sweep();
    assert!(users.is_empty() && tokens.is_empty());
}

const KEYS: usize = 3;

/// The acts on a composite of keys, and on its model.
#[derive(Clone, Debug)]
enum Act {
    Try(usize, [u32; 3]),
    Join(usize, [u32; 3], i8, Option<u64>),
    Reserve(usize, [u32; 3]),
    /// Drops a wait or settles a reservation.
    End(usize, u32),
    Advance(u64),
    Debit(u32),
    DebitKey(usize, u32),
    SetRate(u64),
    Sweep,
}

fn act() -> impl Strategy<Value = Act> {
    let key = 0..KEYS;
    let costs = [0..3u32, 0..4, 0..2];
    let within = prop_oneof![Just(None), (0..3000u64).prop_map(Some)];
    prop_oneof![
        4 => (key.clone(), costs.clone()).prop_map(|(key, costs)| Act::Try(key, costs)),
        4 => (key.clone(), costs.clone(), -1..2i8, within).prop_map(|(k, c, p, w)| Act::Join(k, c, p, w)),
        1 => (key.clone(), costs).prop_map(|(key, costs)| Act::Reserve(key, costs)),
        3 => (0..20usize, 0..5u32).prop_map(|(which, used)| Act::End(which, used)),
        // A forgotten key is full as of its next request, and the key of the model has been full
        // for longer. So a reservation that is claimed up to 10 ms late, which is the catch-up,
        // would let a request be charged as of an earlier time in one of the two. The other one was
        // idle for twice that time.
        4 => (21..1500u64).prop_map(Act::Advance),
        1 => (1..5u32).prop_map(Act::Debit),
        1 => (key, 1..4u32).prop_map(|(key, n)| Act::DebitKey(key, n)),
        1 => (1..8u64).prop_map(Act::SetRate),
        1 => Just(Act::Sweep),
    ]
}

/// Policies that start full, so that a key loses nothing by being forgotten.
fn policy(kind: u8) -> AnyPolicy {
    match kind {
        0 => TokenBucket::new(Rate::per_second(2), 3).into(),
        1 => TokenBucket::new(Rate::per_second(1), 1).into(),
        2 => FixedWindow::new(Rate::new(4, 2 * SECOND).expect("a rate")).into(),
        _ => SlidingLog::new(Rate::new(4, 2 * SECOND).expect("a rate")).into(),
    }
}

/// A limiter and a composite for each key, made at the start and kept.
struct Model {
    common: RateLimiter<AnyPolicy, ManualClock>,
    users: Vec<RateLimiter<AnyPolicy, ManualClock>>,
    composites: Vec<AllOf<ManualClock>>,
}

fn named(costs: &[u32; 3]) -> AllRequest<'static> {
    AllRequest::new().cost("all", costs[0]).cost("user", costs[1]).cost("calls", costs[2])
}

fn outcome<T>(answer: Result<T, AllRefusal>) -> (Option<T>, Option<AllRefusal>) {
    match answer {
        Ok(permits) => (Some(permits), None),
        Err(refusal) => (None, Some(refusal)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Keys that alternate between lines and known keys, and composites that are made and dropped,
    /// behave like limiters and composites that remain.
    #[test]
    fn keys_do_as_limiters_of_their_own(kind in 0..4u8, acts in vec(act(), 1..60)) {
        let clock = ManualClock::new();
        let limiter = |policy: AnyPolicy| RateLimiter::with_clock(policy, clock.clone());
        let bucket: AnyPolicy = TokenBucket::new(Rate::per_second(4), 4).into();
        let all = limiter(bucket.clone());
        let users: KeyedRateLimiter<usize, AnyPolicy, _> =
            KeyedRateLimiter::with_clock(policy(kind), 10, clock.clone());
        let calls = CountingLimit::new(2);
        let api = KeyedAllOf::new("user", &users).with("all", &all).with_counting("calls", &calls);

        let model_calls = CountingLimit::new(2);
        let model = {
            let common = limiter(bucket);
            let users: Vec<_> = (0..KEYS).map(|_| limiter(policy(kind))).collect();
            let of = |user| AllOf::new("all", &common).with_counting("calls", &model_calls).with("user", user);
            let composites = users.iter().map(of).collect();
            Model { common, users, composites }
        };
        let (mut waits, mut held) = (Vec::new(), Vec::new());
        let mut reservations = Vec::new();
        for act in acts {
            match act {
                Act::Try(key, costs) => {
                    let (got, refused) = outcome(api.try_acquire_many(&key, named(&costs)));
                    let (expected, expected_refusal) =
                        outcome(model.composites[key].try_acquire_many(named(&costs)));
                    prop_assert_eq!(refused, expected_refusal);
                    held.push((got, expected));
                }
                Act::Join(key, costs, priority, within) => {
                    let request = named(&costs).priority(priority);
                    let request = within.map_or(request.clone(), |ms| request.within(Duration::from_millis(ms)));
                    let expected = spawn(Box::pin(model.composites[key].acquire_many(request.clone())));
                    let api = api.clone();
                    waits.push((spawn(Box::pin(async move { api.acquire_many(&key, request).await })), expected));
                }
                Act::Reserve(key, costs) => {
                    let (got, refused) = outcome(api.reserve(&key, named(&costs)));
                    let (expected, expected_refusal) = outcome(model.composites[key].reserve(named(&costs)));
                    prop_assert_eq!(refused, expected_refusal);
                    reservations.extend(got.zip(expected));
                }
                Act::End(which, used) => match which % 3 {
                    0 if !waits.is_empty() => drop(waits.swap_remove(which % waits.len())),
                    1 if !reservations.is_empty() => {
                        let (mut got, mut expected) = reservations.swap_remove(which % reservations.len());
                        prop_assert_eq!(got.due_in(), expected.due_in());
                        prop_assert_eq!(got.claim(), expected.claim());
                        prop_assert!(got.settle([("user", used)]).is_ok());
                        prop_assert!(expected.settle([("user", used)]).is_ok());
                    }
                    _ if !held.is_empty() => drop(held.swap_remove(which % held.len())),
                    _ => {}
                },
                Act::Advance(ms) => clock.advance(Duration::from_millis(ms)),
                Act::Debit(n) => {
                    all.debit(n);
                    model.common.debit(n);
                }
                Act::DebitKey(key, n) => {
                    prop_assert!(users.debit(&key, n).is_ok());
                    model.users[key].debit(n);
                }
                Act::SetRate(rate) => {
                    all.set_rate(Rate::per_second(rate));
                    model.common.set_rate(Rate::per_second(rate));
                }
                Act::Sweep => users.sweep(),
            }
            waits.retain_mut(|(wait, expected)| {
                match (wait.poll(), expected.poll()) {
                    (std::task::Poll::Pending, std::task::Poll::Pending) => true,
                    (std::task::Poll::Ready(got), std::task::Poll::Ready(expected)) => {
                        let waited = |answer: &Result<tidegate::AllPermits, AllRefusal>| {
                            answer.as_ref().map(tidegate::AllPermits::waited).map_err(Clone::clone)
                        };
                        assert_eq!(waited(&got), waited(&expected));
                        held.push((got.ok(), expected.ok()));
                        false
                    }
                    (got, expected) => panic!("{got:?}, expected {expected:?}"),
                }
            });
            prop_assert_eq!(all.status().full_in, model.common.status().full_in);
            prop_assert_eq!(calls.available(), model_calls.available());
            for key in 0..KEYS {
                let (status, expected) = (users.status(&key), model.users[key].status());
                prop_assert_eq!(status.full_in, expected.full_in);
                prop_assert_eq!(api.status(&key).waiting, model.composites[key].status().waiting);
            }
        }
        drop((waits, held, reservations));
        clock.advance(1000 * SECOND);
        users.sweep();
        prop_assert!(users.is_empty(), "nothing is left of keys that do not wait");
        prop_assert_eq!(calls.available(), 2);
    }
}

/// Bug: a full table refused requests for new keys although it was in shadow mode, or although the
/// requests asked nothing of it.
#[test]
fn a_full_table_refuses_no_request_in_shadow_mode_or_that_asks_nothing_of_it() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let users: Users = KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 1), 1, clock.clone());
    let all = bucket(&clock, 1, 1);
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users).with("all", &all);
    let any = AnyKeyed::<String>::from(api.clone());
    // Fills the table, and empties "all".
    drop(api.try_acquire("alice")?);

    users.set_shadow_all(true);
    let mut wait = spawn_pending(api.acquire("bob"));
    let mut reservation = api.reserve("carol", 1)?;
    clock.advance(SECOND);
    drop(assert_ready_ok!(wait.poll()));
    clock.advance(SECOND);
    assert!(reservation.claim());
    clock.advance(SECOND);
    assert!(any.try_acquire("dave").is_ok());

    users.set_shadow_all(false);
    let costs = [("user", 0), ("all", 1)];
    let mut wait = spawn_pending(api.acquire_many("bob", costs));
    clock.advance(SECOND);
    drop(assert_ready_ok!(wait.poll()));
    clock.advance(SECOND);
    assert!(any.try_acquire_many("dave", costs).is_ok());
    // A number of 0 asks nothing of any rate.
    for name in ["alice", "dave"] {
        let refusal = any.try_acquire_many(name, 0).expect_err("nothing is asked for").refusal();
        assert_eq!(refusal, Some(Refusal::ZeroPermits), "{name}");
    }
    let refusal = any.try_acquire("dave").expect_err("no room").refusal();
    assert_eq!(refusal, Some(Refusal::TooManyKeys { limit: 1 }));
    Ok(())
}

/// Records the permits of exempt calls.
#[derive(Default)]
struct Exempted(Mutex<Vec<u64>>);

impl Events for Exempted {
    fn exempted(&self, permits: u64) {
        self.0.lock().expect("no panic").push(permits);
    }
}

/// Bug: the observer was told of fewer permits if an `AnyKeyed` passed the request on.
#[test]
fn an_exempt_request_is_reported_with_its_permits() -> Result<(), AllRefusal> {
    let (_users, _all, api, _clock) = users_and_all();
    let exempted = Arc::new(Exempted::default());
    let api = api.observed_by(exempted.clone());
    drop(api.try_acquire_many("alice", AllRequest::from(9).exempt())?);
    drop(AnyKeyed::<String>::from(api).try_acquire_many("alice", AllRequest::from(9).exempt())?);
    assert_eq!(*exempted.0.lock().expect("no panic"), [18, 18]);
    Ok(())
}

/// Returns a limiter of keys with room for one key, which has one permit an hour.
fn one_an_hour(clock: &ManualClock) -> Users {
    KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 1), 1, clock.clone())
}

/// Returns a limiter of keys of one permit a second.
fn one_a_second(clock: &ManualClock) -> Users {
    KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), 100, clock.clone())
}

/// Bug: in shadow mode a key without room got a limiter that stayed in shadow mode for ever.
#[test]
fn a_handle_to_a_key_without_room_is_refused_in_shadow_mode_too() -> Result<(), AllRefusal> {
    let users = one_an_hour(&ManualClock::new());
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users);
    drop(api.try_acquire("alice")?);
    users.set_shadow_all(true);
    let expected = Some(AllRefusal::from_member("user", Refusal::TooManyKeys { limit: 1 }));
    assert_eq!(api.limiter("bob").err(), expected);
    assert_eq!(AnyKeyed::<String>::from(api.clone()).limiter("bob").err(), expected);
    assert!(api.try_acquire("bob").is_ok());
    Ok(())
}

/// Bug: a request that had to wait, or that came through an `AnyKeyed`, was refused because a
/// limiter of keys was closed of which it asked nothing.
#[test]
fn a_closed_limiter_of_keys_refuses_no_request_that_asks_nothing_of_it() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let (users, uploads) = (one_a_second(&clock), one_a_second(&clock));
    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 10);
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users)
        .with_keyed("uploads", &uploads)
        .with_keyed_counting("calls", &calls)
        .default_cost("uploads", 0)
        .default_cost("calls", 0);
    let any = AnyKeyed::<String>::from(api.clone());
    uploads.close();
    calls.close();
    drop(api.try_acquire("alice")?);
    let mut wait = spawn_pending(api.acquire("alice"));
    let mut reservation = api.reserve("alice", AllRequest::new())?;
    clock.advance(SECOND);
    drop(assert_ready_ok!(wait.poll()));
    clock.advance(SECOND);
    assert!(reservation.claim());
    drop(any.try_acquire("bob")?);
    assert_eq!(assert_ready_ok!(spawn(any.acquire("carol")).poll()).permits(), 1);

    // Requests that ask it are refused, and so are calls for the limiter of a key.
    for name in ["uploads", "calls"] {
        let closed = Some(AllRefusal::from_member(name, Refusal::Closed));
        assert_eq!(api.try_acquire_many("dave", [(name, 1)]).err(), closed);
        assert_eq!(any.try_acquire_many("dave", [(name, 1)]).err(), closed);
    }
    let closed = Some(AllRefusal::from_member("uploads", Refusal::Closed));
    assert_eq!(api.limiter("dave").err(), closed);
    Ok(())
}

/// Bug: each request that asked nothing of a limiter of keys without room for its key waited in a
/// queue of its own.
#[test]
fn the_waiters_of_a_key_share_a_queue_without_room_for_the_key() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let (users, all) = (one_a_second(&clock), bucket(&clock, 1, 5));
    let uploads = one_an_hour(&clock);
    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 1);
    assert_eq!(uploads.try_acquire("zoe")?.permits(), 1);
    let _held = calls.try_acquire("zoe")?;
    let bounds = QueueBounds::UNBOUNDED.max_waiters(2);
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users)
        .with("all", &all)
        .with_keyed("uploads", &uploads)
        .with_keyed_counting("calls", &calls)
        .default_cost("uploads", 0)
        .default_cost("calls", 0)
        .with_queue_bounds(bounds);
    drop(api.try_acquire_many("alice", [("all", 5)])?);
    let mut large = spawn_pending(api.acquire_many("alice", [("all", 5)]));
    let mut small = spawn_pending(api.acquire_many("alice", [("all", 1)]));
    let full = |refusal: AllRefusal| matches!(refusal.refusal(), Some(Refusal::QueueFull { .. }));
    assert!(full(assert_ready_err!(spawn(api.acquire("alice")).poll())));
    assert!(full(api.reserve("alice", AllRequest::new()).expect_err("a full queue")));
    let status = api.status("alice");
    assert_eq!(status.waiting, 2);
    assert_eq!(status.member("uploads"), Some(uploads.status("alice")));
    assert_eq!(status.member("calls"), Some(calls.status("alice")));

    // Another key has another queue, also if it asks nothing of any limiter of keys.
    let bobs = spawn_pending(api.acquire("bob"));
    assert_eq!((api.status("bob").waiting, api.status("carol").waiting), (1, 0));
    let of_all = || AllRequest::new().cost("user", 0).cost("all", 1);
    let carols = [(); 2].map(|()| spawn_pending(api.acquire_many("carol", of_all())));
    let daves = spawn_pending(api.acquire_many("dave", of_all()));
    drop((bobs, carols, daves));

    clock.advance(SECOND);
    assert_pending!(small.poll(), "behind the large one");
    clock.advance(4 * SECOND);
    drop(assert_ready_ok!(large.poll()));
    clock.advance(SECOND);
    drop(assert_ready_ok!(small.poll()));

    // A request that asks for uploads or calls is not decided in that queue.
    let _wait = spawn_pending(api.acquire("alice"));
    for name in ["uploads", "calls"] {
        let refusal = api.try_acquire_many("alice", [(name, 1)]).expect_err("no room").refusal();
        assert_eq!(refusal, Some(Refusal::TooManyKeys { limit: 1 }), "{name}");
    }
    Ok(())
}

/// Bug: a request that had to wait replaced a key in use of a limiter of which it asked nothing.
#[test]
fn no_key_makes_room_for_a_request_that_asks_nothing_of_it() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let users = one_a_second(&clock);
    for when_full in [WhenKeysFull::EvictLeastUsed, WhenKeysFull::RefuseNew, WhenKeysFull::ShareOne] {
        let uploads = one_an_hour(&clock).when_full(when_full);
        let api: KeyedAllOf<str, _> =
            KeyedAllOf::new("user", &users).with_keyed("uploads", &uploads).default_cost("uploads", 0);
        assert!(uploads.try_acquire("bob").is_ok());
        clock.advance(SECOND);
        drop(api.try_acquire("alice")?);
        let mut wait = spawn_pending(api.acquire("alice"));
        let _reservation = api.reserve("carol", AllRequest::new())?;
        clock.advance(SECOND);
        drop(assert_ready_ok!(wait.poll()));
        assert!(uploads.try_acquire("bob").is_err(), "{when_full:?}");

        // An idle key makes room, so requests that ask nothing of it share a queue with the others.
        clock.advance(Duration::from_secs(3600));
        drop(api.try_acquire("alice")?);
        let _first = spawn_pending(api.acquire("alice"));
        let _second = spawn_pending(api.acquire_many("alice", [("uploads", 1)]));
        assert_eq!(api.status("alice").waiting, 2, "{when_full:?}");
    }
    Ok(())
}

/// Bug: a refused request replaced a key in use, unless it asked only one limiter of keys, and not
/// through an `AnyKeyed`.
#[test]
fn no_key_makes_room_for_a_request_that_is_refused() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let uploads = one_an_hour(&clock).when_full(WhenKeysFull::EvictLeastUsed);
    let (users, all) = (one_a_second(&clock), bucket(&clock, 1, 1));
    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 10);
    let statistics = Arc::new(Statistics::new());
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users)
        .with("all", &all)
        .with_keyed("uploads", &uploads)
        .with_keyed_counting("calls", &calls)
        .observed_by(statistics.clone());
    let any = AnyKeyed::<String>::from(api.clone());
    let replaceable = AnyKeyed::from(Replaceable::new(any.clone()));
    assert!(uploads.try_acquire("bob").is_ok());
    let check = |request: &AllRequest<'static>, expected: &str| {
        let refused = statistics.snapshot().refused();
        let answers = [
            api.try_acquire_many("carol", request.clone()).err(),
            any.try_acquire_many("carol", request.clone()).err(),
            replaceable.try_acquire_many("carol", request.clone()).err(),
            assert_ready!(spawn(any.acquire_now("carol", request.clone())).poll()).err(),
            assert_ready!(spawn(replaceable.acquire_now("carol", request.clone())).poll()).err(),
        ];
        for answer in answers {
            assert_eq!(answer.map(|refusal| refusal.to_string()).as_deref(), Some(expected));
        }
        assert_eq!(statistics.snapshot().refused(), refused + 5);
        assert_eq!(uploads.status("bob").available, 0, "{expected}");
    };
    let requests = || [AllRequest::new(), Request::up_to(1).into(), AllRequest::new().cost("user", 0)];
    // Refused for good.
    let never = [
        (AllRequest::from(1000), "all: 1000 permits requested, the limit is 1"),
        (AllRequest::new().cost("uploads", 2), "uploads: 2 permits requested, the limit is 1"),
        (AllRequest::new().cost("calls", 2), "calls: 2 permits requested, the limit is 1"),
        (AllRequest::from(0).cost("calls", 0), "all: 0 permits requested, at least 1 is needed"),
    ];
    for (request, expected) in never {
        check(&request, expected);
        let refusal = api.reserve("carol", request.clone()).expect_err("never");
        assert_eq!(refusal.to_string(), expected);
        let refusal = assert_ready_err!(spawn(any.acquire_many("carol", request.clone())).poll());
        assert_eq!(refusal.to_string(), expected);
        let refusal = assert_ready_err!(spawn(api.acquire_many("carol", request)).poll());
        assert_eq!(refusal.to_string(), expected);
        assert_eq!(uploads.status("bob").available, 0, "{expected}");
    }
    // Refused for now.
    let held = calls.try_acquire("carol").expect("a call");
    requests().iter().for_each(|request| check(request, "calls: the only permit is in use"));
    drop(held);
    uploads.pause_all_for(SECOND);
    requests().iter().for_each(|request| check(request, "uploads: paused, retry after 3601s"));
    uploads.resume_all();
    all.drain();
    requests().iter().for_each(|request| check(request, "all: limited, retry after 1s"));

    // Refused for lack of room.
    let held: Vec<_> = (0..10).map(|key| calls.try_acquire(&key.to_string()).expect("room")).collect();
    requests()
        .iter()
        .for_each(|request| check(request, "calls: no room for a new key, all 10 keys are limited"));
    assert!(api.reserve("carol", 1).is_err());
    assert!(assert_ready!(spawn(api.acquire("carol")).poll()).is_err());
    assert_eq!(uploads.status("bob").available, 0);
    drop(held);

    // A granted request replaces the key, and so does one that waits.
    let mut wait = spawn_pending(any.acquire("carol"));
    assert_eq!(uploads.status("bob").available, 1);
    clock.advance(SECOND);
    drop(assert_ready_ok!(wait.poll()));
    drop(wait);
    clock.advance(SECOND);
    drop(any.try_acquire("bob")?);
    assert_eq!(uploads.status("carol").available, 1);
    Ok(())
}

/// Bug: a request for a key without room was refused with a time at which there would be no room.
#[test]
fn a_request_for_a_key_without_room_is_told_so_at_once() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let (users, all) = (one_an_hour(&clock), bucket(&clock, 1, 1));
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users).with("all", &all);
    drop(api.try_acquire("bob")?);
    let expected = || Some(AllRefusal::from_member("user", Refusal::TooManyKeys { limit: 1 }));
    assert_eq!(api.try_acquire("new").err(), expected());
    clock.advance(SECOND);
    users.pause_all_for(SECOND);
    assert_eq!(api.try_acquire("new").err(), expected());
    users.resume_all();
    // A request that can never be granted, or in shadow mode, is not refused for lack of room.
    let never = api.try_acquire_many("new", 2).expect_err("more than the limit");
    assert!(!never.may_retry());
    users.set_shadow_all(true);
    drop(api.try_acquire("new")?);
    users.set_shadow_all(false);
    // An idle key makes room.
    all.drain();
    clock.advance(Duration::from_secs(3600));
    drop(api.try_acquire("new")?);
    Ok(())
}

/// Bug: with `ShareOne`, each refused request searched the same slots for room.
#[test]
fn refused_requests_find_the_only_idle_key() {
    let clock = ManualClock::new();
    for when_full in [WhenKeysFull::RefuseNew, WhenKeysFull::ShareOne] {
        let policy = TokenBucket::new(Rate::per_hour(1), 10);
        let users =
            KeyedRateLimiter::<u32, _, _>::with_clock(policy, 20_000, clock.clone()).when_full(when_full);
        let api: KeyedAllOf<u32, _> = KeyedAllOf::new("user", &users);
        assert!((0..19_999).all(|key| users.try_acquire_many(&key, 10).is_ok()));
        assert!(users.try_acquire(&20_000).is_ok());
        // Uses up the limiter that keys share.
        let _ = users.try_acquire_many(&20_001, 10);
        clock.advance(Duration::from_secs(3600));
        let granted = |_| api.try_acquire_many(&20_001, 2).is_ok();
        assert!((0..400).any(granted), "{when_full:?}");
    }
}

/// Bug: what was settled at a limiter of keys without room, of which the request asked nothing, was
/// charged to no key.
#[test]
fn what_is_settled_is_charged_to_a_key_without_room() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_hour(1), 1000);
    let tokens: Users = KeyedRateLimiter::with_clock(policy, 1, clock.clone());
    let tokens = tokens.when_full(WhenKeysFull::EvictLeastUsed);
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &one_a_second(&clock))
        .with_keyed("tokens", &tokens)
        .default_cost("tokens", 0);
    let any = AnyKeyed::<String>::from(api.clone());
    assert!(tokens.try_acquire("bob").is_ok());
    let mut call = api.reserve("carol", AllRequest::new())?;
    assert!(call.claim());
    assert_eq!(tokens.status("bob").available, 999, "no key makes room before the cost is known");
    call.settle([("tokens", 0)])?;
    assert_eq!(tokens.status("bob").available, 999);
    clock.advance(SECOND);
    let mut call = api.reserve("carol", AllRequest::new())?;
    assert!(call.claim());
    call.settle([("tokens", 400)])?;
    assert_eq!(tokens.status("carol").available, 600);

    let mut call = any.reserve("dave", AllRequest::new())?;
    call.blocking_claim()?;
    call.settle([("tokens", 100)])?;
    assert_eq!(tokens.status("dave").available, 900);

    // Calls that change the balance reach the key through a handle for one request.
    let limiter = KeyedLimiter::limiter_for(&api, "erin".to_owned(), &AllRequest::new())?;
    limiter.debit([("tokens", 10)])?;
    limiter.refund([("tokens", 4)])?;
    assert_eq!(tokens.status("erin").available, 994);
    assert_eq!(limiter.keep_at_most("tokens", 3)?, 991);
    assert_eq!(tokens.status("erin").available, 3);
    Ok(())
}

/// Bug: a request that joined waiters without a limiter of their key settled its cost at no key.
#[test]
fn what_is_settled_is_charged_to_a_key_that_got_room_meanwhile() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    for known in [true, false] {
        let policy = TokenBucket::new(Rate::per_hour(1), 100);
        let tokens: Users = KeyedRateLimiter::with_clock(policy, 1, clock.clone());
        let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &one_a_second(&clock))
            .with_keyed("tokens", &tokens)
            .default_cost("tokens", 0);
        assert!(tokens.try_acquire("zoe").is_ok());
        drop(api.try_acquire("alice")?);
        let mut wait = spawn_pending(api.acquire("alice"));
        tokens.remove("zoe");
        if known {
            assert!(tokens.try_acquire("alice").is_ok());
        }
        let mut call = api.reserve("alice", AllRequest::new())?;
        clock.advance(SECOND);
        drop(assert_ready_ok!(wait.poll()));
        clock.advance(SECOND);
        assert!(call.claim());
        call.settle([("tokens", 50)])?;
        assert_eq!(tokens.status("alice").available, 50 - u64::from(known));
    }
    Ok(())
}

/// Bug: the times of the waiters of a key without room were predicted by sums, and too short.
#[test]
fn times_are_exact_without_room_for_the_key() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    for room in [true, false] {
        let policy = TokenBucket::new(Rate::per_second(1), 10);
        let users: Users = KeyedRateLimiter::with_clock(policy, 10, clock.clone());
        let (uploads, all) = (one_an_hour(&clock), bucket(&clock, 1, 5));
        if !room {
            assert!(uploads.try_acquire("zoe").is_ok());
        }
        assert!(users.try_acquire_many("alice", 10).is_ok());
        let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users)
            .with("all", &all)
            .with_keyed("uploads", &uploads)
            .default_cost("uploads", 0);
        let call = |user, all| api.reserve("alice", [("user", user), ("all", all)]);
        let (_a, _b, c) = (call(10, 0)?, call(0, 5)?, call(0, 5)?);
        assert_eq!(c.due_in(), 15 * SECOND, "room: {room}");
    }
    Ok(())
}

/// Bug: grants and refusals reported the permits of a limiter without a limit, or of a limit of 0,
/// instead of those of a key without room.
#[test]
fn the_permits_left_are_those_of_a_key_without_room() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let (users, uploads) = (one_a_second(&clock), one_an_hour(&clock));
    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 1);
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users)
        .with_keyed("uploads", &uploads)
        .with_keyed_counting("calls", &calls)
        .default_cost("uploads", 0)
        .default_cost("calls", 0);
    let expected = |name: &str| {
        let status = if name == "calls" { calls.status("alice") } else { uploads.status("alice") };
        assert_eq!(status.limit, 1);
        Some(status)
    };
    assert!(uploads.try_acquire("zoe").is_ok());
    let _held = calls.try_acquire("zoe").expect("a call");
    let request = || AllRequest::new().with_left();
    drop(api.try_acquire("alice")?);
    let mut wait = spawn_pending(api.acquire_many("alice", request()));
    let refusal = api.try_acquire_many("alice", request()).expect_err("behind a waiter");
    let mut call = api.reserve("alice", request())?;
    clock.advance(SECOND);
    let granted = assert_ready_ok!(wait.poll());
    clock.advance(SECOND);
    assert!(call.claim());
    for name in ["uploads", "calls"] {
        for left in [refusal.left().cloned(), granted.left().cloned(), call.left()] {
            assert_eq!(left.and_then(|left| left.member(name)), expected(name), "{name}");
        }
    }

    // In shadow mode a request without room takes nothing from it.
    uploads.set_shadow_all(true);
    let request = || request().cost("uploads", 1);
    let granted = api.try_acquire_many("bob", request())?;
    assert!(granted.took_from("user") && !granted.took_from("uploads"));
    let mut wait = spawn_pending(api.acquire_many("bob", request()));
    clock.advance(SECOND);
    let granted = assert_ready_ok!(wait.poll());
    assert!(granted.took_from("user") && !granted.took_from("uploads"));
    assert_eq!(granted.left().and_then(|left| left.member("uploads")), expected("uploads"));
    Ok(())
}

/// Bug: a request whose maximum wait was zero replaced a key in use.
#[test]
fn no_key_makes_room_for_a_request_that_may_not_wait() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let uploads = one_an_hour(&clock).when_full(WhenKeysFull::EvictLeastUsed);
    let all = bucket(&clock, 1, 1);
    let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(1, 10);
    let statistics = Arc::new(Statistics::new());
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("uploads", &uploads)
        .with("all", &all)
        .with_keyed_counting("calls", &calls)
        .observed_by(statistics.clone());
    let any = AnyKeyed::<String>::from(api.clone());
    // A composite that was made by hand answers alike.
    let in_use = CountingLimit::new(1);
    let by_hand =
        AllOf::new("uploads", &bucket(&clock, 1, 1)).with("all", &all).with_counting("calls", &in_use);
    assert!(uploads.try_acquire("bob").is_ok());
    let check = |expected: &str, held: u64| {
        let refused = statistics.snapshot().refused();
        let request = || AllRequest::new().within(Duration::ZERO).with_left();
        let answers = [
            by_hand.blocking_acquire_many(request()).err(),
            api.reserve("carol", request()).err(),
            any.reserve("carol", request()).err(),
            assert_ready!(spawn(api.acquire_many("carol", request())).poll()).err(),
            assert_ready!(spawn(any.acquire_many("carol", request())).poll()).err(),
            api.blocking_acquire_many("carol", request()).err(),
        ];
        for refusal in answers {
            let refusal = refusal.expect("it may not wait");
            assert_eq!(refusal.to_string(), expected);
            let left = refusal.left().and_then(|left| left.member("all")).expect("a member");
            assert_eq!((left.available, left.limit), (held, 1), "{expected}");
        }
        assert_eq!(statistics.snapshot().refused(), refused + 5);
        assert_eq!(uploads.status("bob").available, 0, "{expected}");
    };
    all.drain();
    check("all: limited, retry after 1s", 0);
    clock.advance(SECOND);
    let held = (calls.try_acquire("carol"), in_use.try_acquire());
    check("calls: the only permit is in use", 1);
    drop(held);

    all.drain();
    let _call = api.reserve("carol", AllRequest::new().within(SECOND))?;
    assert_eq!(uploads.status("bob").available, 1);
    Ok(())
}

/// Bug: the told time of a request that must not wait that long ignored the maximum wait of a
/// limiter of its key, and the queue's bounds.
#[test]
fn a_request_that_waits_too_short_is_told_a_time_at_which_it_is_granted() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let full = LeakyBucket::new(Rate::per_second(1)).capacity(0);
    let users: KeyedRateLimiter<String, _, _> = KeyedRateLimiter::with_clock(full, 10, clock.clone());
    let all = bucket(&clock, 1, 1);
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users).with("all", &all);
    let request = || AllRequest::new().within(2 * SECOND);
    all.debit(3);
    let refusal = api.reserve("alice", request()).expect_err("too short");
    assert_eq!(refusal.to_string(), "all: limited, retry after 3s");
    clock.advance(3 * SECOND);
    drop(api.reserve("alice", request())?);

    let all = bucket(&clock, 1, 10);
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &one_a_second(&clock))
        .with("all", &all)
        .with_queue_bounds(QueueBounds::UNBOUNDED.max_permits(5));
    let request = || AllRequest::new().cost("all", 10).within(4 * SECOND);
    all.drain();
    let refusal = api.reserve("alice", request()).expect_err("it never waits");
    assert_eq!(refusal.refusal(), Some(Refusal::QueueFull { retry_after: (10 * SECOND).into() }));
    clock.advance(10 * SECOND);
    drop(api.reserve("alice", request())?);
    Ok(())
}

/// Bug: a wait of an `AnyKeyed` was decided by the call, and not by its first poll.
#[test]
fn a_wait_of_a_handle_is_decided_by_its_first_poll() {
    let clock = ManualClock::new();
    let (users, all) = (one_an_hour(&clock), bucket(&clock, 1, 1));
    let statistics = Arc::new(Statistics::new());
    let api: KeyedAllOf<str, _> =
        KeyedAllOf::new("user", &users).with("all", &all).observed_by(statistics.clone());
    let any = AnyKeyed::<String>::from(api);
    let replaceable = AnyKeyed::from(Replaceable::new(any.clone()));
    for (any, key) in [(any, "alice"), (replaceable, "bob")] {
        all.drain();
        let refused = statistics.snapshot().refused();
        let room = users.try_acquire("zoe");
        let waits = [Duration::ZERO, SECOND].map(|within| any.acquire_within(key, within));
        assert_eq!((room.is_ok(), statistics.snapshot().refused()), (true, refused), "no wait was polled");
        users.remove("zoe");
        clock.advance(SECOND);
        let [first, _] = waits;
        assert!(assert_ready!(spawn(first).poll()).is_ok());
        users.remove(key);
    }
}

/// Bug: with `EvictLeastUsed`, a request for a key that could replace no other one was told to come
/// back, and replaced a key of another limiter.
#[test]
fn a_request_that_can_replace_no_key_is_told_so_at_once() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let evicts = || one_an_hour(&clock).when_full(WhenKeysFull::EvictLeastUsed);
    let (uploads, users, all) = (evicts(), evicts(), bucket(&clock, 1, 1));
    let api: KeyedAllOf<str, _> =
        KeyedAllOf::new("uploads", &uploads).with("all", &all).with_keyed("user", &users);
    assert!(uploads.try_acquire("bob").is_ok());
    let zoe = users.limiter("zoe")?;
    let expected = || Some(AllRefusal::from_member("user", Refusal::TooManyKeys { limit: 1 }));
    assert_eq!(api.try_acquire("carol").err(), expected());
    assert_eq!(api.reserve("carol", 1).err(), expected());
    all.drain();
    assert_eq!(api.try_acquire("carol").err(), expected());
    assert_eq!(uploads.status("bob").available, 0);

    assert!(zoe.try_acquire().is_ok());
    drop(zoe);
    clock.advance(SECOND);
    drop(api.try_acquire("carol")?);
    assert_eq!((uploads.status("bob").available, users.status("zoe").available), (1, 1));
    Ok(())
}
