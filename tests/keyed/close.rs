//! Closing all keys.

use std::thread;
use std::time::Duration;

use tidegate::{
    AllRefusal, AnyKeyed, AnyLimiter, KeyedRateLimiter, ManualClock, OfKey, Rate, Refusal, Request,
    TokenBucket, WhenKeysFull,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

type Keys = KeyedRateLimiter<u32, TokenBucket, ManualClock>;

fn keys(max_keys: usize, when_full: WhenKeysFull) -> Keys {
    let policy = TokenBucket::new(Rate::per_hour(1), 1);
    KeyedRateLimiter::with_clock(policy, max_keys, ManualClock::new()).when_full(when_full)
}

#[test]
fn waiters_of_all_keys_are_refused_at_once() -> Result<(), Refusal> {
    for when_full in [WhenKeysFull::RefuseNew, WhenKeysFull::ShareOne, WhenKeysFull::EvictLeastUsed] {
        let keys = keys(100, when_full);
        (0..100).try_for_each(|key| keys.try_acquire(&key).map(drop))?;
        let mut waits: Vec<_> = (0u32..50)
            .map(|key| {
                let keys = keys.clone();
                spawn(Box::pin(async move { keys.acquire(&key).await }))
            })
            .collect();
        waits.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
        let held = keys.limiter(&60)?;
        let mut reservation = keys.reserve(&61, 1)?;
        let blocked = thread::spawn({
            let keys = keys.clone();
            move || keys.blocking_acquire(&62)
        });
        while keys.status(&62).waiting == 0 {
            thread::yield_now();
        }
        assert!(!keys.is_closed() && keys.close());
        assert!(keys.is_closed() && !keys.close());
        for wait in &mut waits {
            assert!(wait.is_woken());
            assert_eq!(assert_ready!(wait.poll()), Err(Refusal::Closed));
        }
        assert_eq!(blocked.join().expect("no panic"), Err(Refusal::Closed));
        assert_eq!(reservation.blocking_claim(), Err(Refusal::Closed));
        assert_eq!(held.try_acquire(), Err(Refusal::Closed));
        // Known, waiting and new keys.
        for key in [99, 0, 60, 200, 201] {
            assert_eq!(keys.try_acquire(&key), Err(Refusal::Closed));
            assert_eq!(keys.blocking_acquire(&key), Err(Refusal::Closed));
            let within = Request::permits(1).within(Duration::from_secs(1));
            assert_eq!(keys.try_acquire_many(&key, within), Err(Refusal::Closed));
            let limiter = keys.limiter(&key).and_then(|limiter| limiter.try_acquire());
            assert_eq!(limiter, Err(Refusal::Closed));
            let status = keys.status(&key);
            assert_eq!((status.available, status.next_in), (0, Duration::MAX));
            assert_eq!((status.paused_for, status.rate), (Duration::MAX, Rate::per_hour(1)));
        }
        keys.sweep();
        assert_eq!(keys.try_acquire(&300), Err(Refusal::Closed));
        assert!(keys.len() <= 100);
    }
    Ok(())
}

/// Bug: a closed table kept each key that had a limiter when it was closed.
#[test]
fn a_closed_table_forgets_the_limiters_of_its_keys() -> Result<(), Refusal> {
    for is_paused in [false, true] {
        let keys = keys(100, WhenKeysFull::RefuseNew);
        let limiters = (0..10).map(|key| keys.limiter(&key)).collect::<Result<Vec<_>, _>>()?;
        keys.limiter(&10)?.set_shadow(true);
        keys.try_acquire(&20)?;
        let waiter = keys.clone();
        let mut wait = spawn(Box::pin(async move { waiter.acquire(&20).await }));
        assert_pending!(wait.poll());
        if is_paused {
            keys.pause_all_for(Duration::MAX);
        }
        keys.close();
        assert_eq!(keys.len(), 11, "limiters and waits are held");
        assert_eq!(assert_ready!(wait.poll()), Err(Refusal::Closed));
        assert_eq!(keys.len(), 10, "the call forgets its key");
        drop(limiters);
        keys.sweep();
        assert!(keys.is_empty());
    }
    Ok(())
}

/// Bug: closing the handle of a key failed if all keys were closed.
#[test]
fn a_key_of_a_closed_table_is_closed() -> Result<(), AllRefusal> {
    let keys = keys(100, WhenKeysFull::RefuseNew);
    let handle = AnyLimiter::new(OfKey::new(&keys, 1));
    keys.close();
    assert!(handle.is_closed() && !handle.close()?);
    Ok(())
}

/// Threads take permits from new keys all the time: after the call has returned they take none.
#[test]
fn no_key_gets_a_permit_after_the_end() {
    for _ in 0..20 {
        let keys = keys(10_000, WhenKeysFull::RefuseNew);
        thread::scope(|scope| {
            for part in 0..2 {
                let keys = &keys;
                scope.spawn(move || {
                    for key in (0..5_000).map(|key| 2 * key + part) {
                        let answer = keys.try_acquire(&key);
                        assert!(answer.is_ok() || answer == Err(Refusal::Closed));
                    }
                });
            }
            scope.spawn(|| keys.close());
        });
        for key in 0..10_000 {
            assert_eq!(keys.try_acquire(&key), Err(Refusal::Closed));
        }
        assert!(keys.is_empty());
    }
}

/// The table never forgets a closed key on its own. Only a call that removes the key opens it.
#[test]
fn a_closed_key_stays_closed_until_it_is_removed() -> Result<(), Box<dyn std::error::Error>> {
    for when_full in [WhenKeysFull::RefuseNew, WhenKeysFull::ShareOne, WhenKeysFull::EvictLeastUsed] {
        let keys = keys(4, when_full);
        let handle = AnyLimiter::new(OfKey::new(&keys, 1));
        assert!(!handle.is_closed());
        assert!(keys.is_empty(), "`is_closed` adds no key");
        let limiter = keys.limiter(&1)?;
        assert!(handle.close()? && !handle.close()? && handle.is_closed() && limiter.is_closed());
        drop(limiter);
        // The table is full, and searches for keys to forget.
        for key in 2..50 {
            let _ = keys.try_acquire(&key);
        }
        keys.sweep();
        assert_eq!(keys.try_acquire(&1), Err(Refusal::Closed));
        assert!(handle.is_closed() && !keys.is_closed());
        // A reset, a pause and the end of a pause open nothing.
        let limiter = keys.limiter(&1)?;
        limiter.reset();
        keys.pause_all_for(Duration::from_secs(1));
        keys.resume_all();
        assert_eq!(keys.try_acquire(&1), Err(Refusal::Closed));
        assert!(keys.remove(&1));
        assert_eq!(limiter.try_acquire(), Err(Refusal::Closed));
        assert!(!handle.is_closed());
        assert!(handle.try_acquire().is_ok());
    }
    Ok(())
}

#[test]
fn the_end_of_a_pause_makes_no_room_and_ends_the_pause_of_no_other_key() -> Result<(), Refusal> {
    // Bug: the end of a pause made a limiter for its key. So it added the key, made the table
    // forget another key, or resumed the limiter that keys without room share.
    let handle = |keys: &Keys, key| AnyLimiter::new(OfKey::new(keys, key));
    let empty = keys(1, WhenKeysFull::RefuseNew);
    assert!(!handle(&empty, 1).resume());
    assert!(empty.is_empty());

    let full = keys(1, WhenKeysFull::EvictLeastUsed);
    full.try_acquire(&1)?;
    assert!(!handle(&full, 2).resume());
    assert!(full.try_acquire(&1).is_err(), "it is not forgotten");

    let shared = keys(1, WhenKeysFull::ShareOne);
    shared.try_acquire(&1)?;
    shared.limiter(&2)?.pause_for(Duration::from_secs(1));
    assert!(!handle(&shared, 3).resume());
    assert!(matches!(shared.try_acquire(&2), Err(Refusal::Paused { .. })));

    // A pause of all keys ends for one key: a key with a limiter, a known key and a new one.
    let paused = keys(4, WhenKeysFull::RefuseNew);
    let _limiter = paused.limiter(&1)?;
    [2, 3].iter().try_for_each(|key| paused.try_acquire(key).map(drop))?;
    paused.pause_all_for(Duration::from_secs(1));
    for key in [1, 2, 4] {
        assert!(handle(&paused, key).resume() && !handle(&paused, key).resume());
        assert_eq!(paused.status(&key).paused_for, Duration::ZERO);
    }
    assert_eq!(paused.status(&3).paused_for, Duration::from_secs(1));
    Ok(())
}

/// Bug: the handle of a key without room closed and paused the limiter that all such keys share.
#[test]
fn a_handle_of_a_key_without_room_closes_and_pauses_no_other_key() -> Result<(), Refusal> {
    let shared = keys(1, WhenKeysFull::ShareOne);
    shared.try_acquire(&1)?;
    let no_room = AllRefusal::from(Refusal::TooManyKeys { limit: 1 });
    for two in [
        AnyLimiter::new(OfKey::new(&shared, 2)),
        AnyKeyed::from(shared.clone()).limiter(2_u32).expect("room"),
    ] {
        assert_eq!(two.pause_for(Duration::from_secs(1)), Err(no_room.clone()));
        assert_eq!(shared.status(&3).paused_for, Duration::ZERO);
        assert_eq!(two.close(), Err(no_room.clone()));
        assert!(!shared.limiter(&3)?.is_closed());
    }
    shared.try_acquire(&3)?;
    // A key with room is closed as before.
    let one = AnyLimiter::new(OfKey::new(&shared, 1));
    assert_eq!((one.close(), one.is_closed()), (Ok(true), true));
    assert_eq!(shared.try_acquire(&1).err(), Some(Refusal::Closed));
    Ok(())
}
