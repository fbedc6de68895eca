//! Shadow mode of all keys.

use std::sync::Arc;
use std::time::Duration;

use crate::support::spawn_pending;
use tidegate::policy::Change;
use tidegate::{
    AllRefusal, KeyedAllOf, KeyedRateLimiter, ManualClock, Pause, Rate, RateLimiter, Refusal, Request,
    Statistics, TokenBucket, WhenKeysFull,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

type Users = KeyedRateLimiter<u32, TokenBucket, ManualClock>;

/// Two permits for each key, one per hour.
fn users(max_keys: usize) -> (Users, Arc<Statistics>, ManualClock) {
    let clock = ManualClock::new();
    let statistics = Arc::new(Statistics::new());
    let users = KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 2), max_keys, clock.clone());
    (users.observed_by(statistics.clone()), statistics, clock)
}

#[test]
fn known_and_new_keys_pass_and_are_reported() -> Result<(), Refusal> {
    let (users, statistics, _clock) = users(10);
    users.try_acquire_many(&1, 2)?;
    assert!(users.try_acquire(&1).is_err() && !users.is_shadow_all());
    users.set_shadow_all(true);
    assert!(users.is_shadow_all());
    // A known key, and one to be added. A grant takes permits as usual.
    for (key, granted) in [(1, 0), (2, 2)] {
        for call in 0..5 {
            assert_eq!(users.try_acquire(&key)?.permits(), u32::from(call < granted));
        }
        // A request larger than any grant, made by a wait.
        assert_eq!(users.try_acquire_many(&key, 9)?.permits(), 0);
        assert_eq!(assert_ready_ok!(spawn(users.acquire(&key)).poll()).permits(), 0);
        assert_eq!(users.blocking_acquire(&key)?.permits(), 0);
        assert_eq!(users.try_acquire_many(&key, Request::up_to(4))?.permits(), 0);
    }
    let told = statistics.snapshot();
    assert_eq!((told.granted, told.shadowed, told.refused()), (3, 5 + 3 + 8, 1));
    // No line was made for requests that would have waited.
    assert_eq!(users.len(), 2);
    users.set_shadow_all(false);
    assert!(users.try_acquire(&1).is_err() && users.try_acquire(&2).is_err());
    assert!(users.try_acquire(&3).is_ok());
    Ok(())
}

#[test]
fn waiters_pass_when_it_begins() -> Result<(), Refusal> {
    let (users, statistics, _clock) = users(10);
    users.try_acquire_many(&1, 2)?;
    let mut waits: Vec<_> = (0..3).map(|_| spawn(users.acquire(&1))).collect();
    waits.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    users.set_shadow_all(true);
    for wait in &mut waits {
        assert!(wait.is_woken());
        assert_eq!(assert_ready_ok!(wait.poll()).permits(), 0);
    }
    drop(waits);
    assert_eq!(statistics.snapshot().shadowed, 3);
    users.set_shadow_all(false);
    let _wait = spawn_pending(users.acquire(&1));
    Ok(())
}

/// The limiter of a key has its own shadow mode in addition to that of all keys.
#[test]
fn the_limiter_of_a_key_is_in_shadow_with_all() -> Result<(), Refusal> {
    let (users, _, clock) = users(1);
    let before = users.limiter(&1)?;
    users.set_shadow_all(true);
    let after = users.limiter(&1)?;
    assert!(before.is_shadow() && after.is_shadow());
    after.set_shadow(false);
    for _ in 0..5 {
        after.try_acquire()?;
    }
    assert!(after.reserve(9).is_ok());
    after.set_shadow(true);
    users.set_shadow_all(false);
    assert!(after.is_shadow());
    after.set_shadow(false);
    assert!(after.try_acquire().is_err());
    // It was not a setting of the key, so the key is forgotten when it is idle.
    users.set_shadow_all(true);
    drop((before, after));
    clock.advance(3 * 3600 * SECOND);
    assert!(users.try_acquire(&1).is_ok());
    clock.advance(3 * 3600 * SECOND);
    assert_eq!(users.try_acquire(&2)?.permits(), 1);
    assert_eq!(users.len(), 1);
    Ok(())
}

#[test]
fn pauses_and_full_tables_pass_and_an_end_does_not() -> Result<(), Refusal> {
    let (users, statistics, _clock) = users(1);
    users.try_acquire(&1)?;
    users.set_shadow_all(true);
    // No room for a second key.
    assert_eq!(users.try_acquire(&2)?.permits(), 0);
    users.pause_all(Pause::lasting(SECOND));
    assert_eq!(users.try_acquire(&1)?.permits(), 0);
    assert_eq!(users.limiter(&1)?.try_acquire()?.permits(), 0);
    assert_eq!(statistics.snapshot().shadowed, 3);
    users.close();
    assert_eq!(users.try_acquire(&1), Err(Refusal::Closed));
    assert_eq!(users.blocking_acquire(&1), Err(Refusal::Closed));
    Ok(())
}

#[test]
fn keys_without_room_that_share_one_limiter_are_in_shadow() -> Result<(), Refusal> {
    let policy = TokenBucket::new(Rate::per_hour(1), 1);
    let users: Users = KeyedRateLimiter::with_clock(policy, 1, ManualClock::new());
    let users = users.when_full(WhenKeysFull::ShareOne);
    for key in 1..3 {
        users.try_acquire(&key)?;
    }
    assert!(users.try_acquire(&3).is_err());
    users.set_shadow_all(true);
    assert_eq!(users.try_acquire(&3)?.permits(), 0);
    users.set_shadow_all(false);
    assert!(users.try_acquire(&3).is_err());
    Ok(())
}

#[test]
fn a_composite_asks_keys_in_shadow_for_what_they_have() -> Result<(), AllRefusal> {
    let (users, _, clock) = users(10);
    let all = RateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 4), clock);
    let both = KeyedAllOf::new("user", &users).with("all", &all);
    users.set_shadow_all(true);
    for _ in 0..4 {
        drop(both.try_acquire(&1)?);
    }
    assert_eq!(both.try_acquire(&1).expect_err("no permit").member(), Some("all"));
    users.set_shadow_all(false);
    all.refund(1);
    assert_eq!(both.try_acquire(&1).expect_err("no permit").member(), Some("user"));
    Ok(())
}

/// Bug: large requests of keys without room were refused by the terms of new keys, whatever was set
/// at the limiter that these keys share.
#[test]
fn settings_of_the_shared_limiter_hold_for_requests_of_any_size() -> Result<(), Refusal> {
    let (users, ..) = users(1);
    let users = users.when_full(WhenKeysFull::ShareOne);
    users.debit(&0, 100)?;
    let shared = users.limiter(&1)?;
    shared.set_shadow(true);
    for n in [0, 1, 3] {
        assert_eq!(users.try_acquire_many(&1, n)?.permits(), shared.try_acquire_many(n)?.permits());
        assert!(users.reserve(&2, n).is_ok());
    }
    shared.set_shadow(false);
    shared.change(Change::only_burst(20)).expect("a burst");
    shared.refund(20);
    assert_eq!(users.try_acquire_many(&1, 10)?.permits(), 10);
    assert_eq!(users.reserve(&2, 10)?.due_in(), Duration::ZERO);
    for refusal in [users.try_acquire_many(&1, 21).err(), users.reserve(&2, 21).err()] {
        assert_eq!(refusal, Some(Refusal::ExceedsLimit { requested: 21, limit: 20 }));
    }
    Ok(())
}
