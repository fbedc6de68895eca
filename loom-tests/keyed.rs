//! The table of keys: forgetting, adding, moving and removing a key while somebody asks for it.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::support::{LoomClock, Woken, model};
use crate::clock::Clock;
use crate::error::Refusal;
use crate::keyed::WhenKeysFull;
use crate::keyed::table::{Found, Table};
use crate::nanos::Nanos;
use crate::policy::{Policy, TokenBucket};
use crate::rate::Rate;
use crate::sync::{read, write};

type Keys = Arc<Table<u8, TokenBucket, LoomClock>>;

const SECOND: Nanos = Nanos::new(1_000_000_000);

/// One permit per second for each key, and no burst.
fn keys(max_keys: usize) -> (Keys, LoomClock) {
    let clock = LoomClock::new();
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    let table = Table::with_shards(policy, max_keys, WhenKeysFull::RefuseNew, clock.clone(), 1);
    (Arc::new(table), clock)
}

/// The same, and key 1 took its permit a second ago: it is as good as new.
fn with_a_fresh_key(max_keys: usize) -> Keys {
    let (keys, clock) = keys(max_keys);
    assert_eq!(keys.try_acquire(&1, 1), Ok(()));
    clock.set_without_ringing(SECOND);
    keys
}

/// A key is taken from while it is forgotten: its permit is granted once.
fn forgetting_against_a_take(forget: fn(&Keys)) {
    model(move || {
        let keys = with_a_fresh_key(2);
        let other = {
            let keys = keys.clone();
            thread::spawn(move || forget(&keys))
        };
        let mine = keys.try_acquire(&1, 1).is_ok();
        other.join().expect("no panic");
        let again = keys.try_acquire(&1, 1).is_ok();
        assert_eq!((mine, again), (true, false));
        assert_eq!(keys.len(), 1);
    });
}

#[test]
fn a_key_is_not_forgotten_under_a_grant() {
    forgetting_against_a_take(|keys| keys.sweep_all());
}

/// Judges in one section and forgets in another.
#[test]
#[should_panic = "assertion `left == right` failed"]
fn broken_a_key_is_not_forgotten_under_a_grant() {
    forgetting_against_a_take(|keys| {
        let is_full = |state| keys.policy.status(state, keys.clock.now()).full_at <= keys.clock.now();
        let fresh = read(&keys.shards[0]).known.iter().any(|(_, state)| is_full(state));
        if fresh {
            keys.remove(&1);
        }
    });
}

/// A new key takes the place of one that is as good as new, while that one is asked for: each has its permit at most once,
/// and there is never one key too many.
#[test]
fn a_new_key_takes_a_free_place() {
    model(|| {
        let keys = with_a_fresh_key(1);
        let other = {
            let keys = keys.clone();
            thread::spawn(move || keys.try_acquire(&2, 1))
        };
        let mine = keys.try_acquire(&1, 1);
        let other = other.join().expect("no panic");
        let full = Err(Refusal::TooManyKeys { limit: 1 });
        assert!([(Ok(()), full), (full, Ok(()))].contains(&(mine, other)), "{mine:?} {other:?}");
        assert_eq!(keys.len(), 1);
    });
}

/// Two first requests of a key: one of them is granted.
fn two_first_takes(take: fn(&Keys) -> bool) {
    model(move || {
        let (keys, _) = keys(2);
        let other = {
            let keys = keys.clone();
            thread::spawn(move || take(&keys))
        };
        let mine = take(&keys);
        assert_ne!(mine, other.join().expect("no panic"), "one of two");
        assert_eq!(keys.len(), 1);
    });
}

#[test]
fn two_first_takes_find_one_key() {
    two_first_takes(|keys| keys.try_acquire(&1, 1).is_ok());
}

/// Does not look again before it adds.
#[test]
#[should_panic = "one of two"]
fn broken_two_first_takes_find_one_key() {
    two_first_takes(|keys| {
        let take = |state: &_| keys.policy.try_acquire(state, Nanos::ZERO, 1).is_ok();
        if let Found::Known(taken) = keys.find(&1, take) {
            return taken;
        }
        let state = keys.policy.start(Nanos::ZERO);
        let taken = take(&state);
        write(&keys.shards[0]).known.insert_unique(1, (1, state), |_| 1);
        taken
    });
}

/// A key gets a limiter of its own while it is taken from: its permit is granted once.
fn moving_against_a_take(take_in_line: fn(&Keys) -> bool) {
    model(move || {
        let keys = with_a_fresh_key(2);
        let other = {
            let keys = keys.clone();
            thread::spawn(move || take_in_line(&keys))
        };
        let mine = keys.try_acquire(&1, 1).is_ok();
        assert_ne!(mine, other.join().expect("no panic"), "one of two");
    });
}

#[test]
fn a_state_moves_into_a_line_whole() {
    moving_against_a_take(|keys| keys.own_line(&1).is_ok_and(|line| line.try_acquire().is_ok()));
}

/// Leaves the state where it was, and begins another.
#[test]
#[should_panic = "one of two"]
fn broken_a_state_moves_into_a_line_whole() {
    moving_against_a_take(|keys| {
        let state = keys.policy.start(SECOND);
        keys.policy.try_acquire(&state, SECOND, 1).is_ok()
    });
}

/// A line that is not needed any more is turned back into a state while somebody finds it, and waits in it.
#[test]
fn a_line_in_which_somebody_waits_stays() {
    model(|| {
        let (keys, clock) = keys(2);
        assert_eq!(keys.try_acquire(&1, 1), Ok(()));
        drop(keys.own_line(&1));
        let other = {
            let keys = keys.clone();
            thread::spawn(move || keys.sweep_all())
        };
        let mut wait = Box::pin({
            let keys = keys.clone();
            async move {
                match keys.own_line(&1) {
                    Ok(line) => line.acquire().await,
                    Err(_) => Duration::MAX,
                }
            }
        });
        let waker = std::task::Waker::from(Woken::new());
        let mut context = std::task::Context::from_waker(&waker);
        assert!(wait.as_mut().poll(&mut context).is_pending());
        other.join().expect("no panic");
        clock.set(SECOND);
        assert!(keys.try_acquire(&1, 1).is_err(), "the permit is that of the one who waited");
        assert!(wait.as_mut().poll(&mut context).is_ready());
    });
}

/// A key is removed while somebody begins to wait for it: that one is served.
#[test]
fn who_waits_for_a_key_that_is_removed_is_served() {
    model(|| {
        let (keys, clock) = keys(2);
        assert_eq!(keys.try_acquire(&1, 1), Ok(()));
        let other = {
            let keys = keys.clone();
            thread::spawn(move || keys.remove(&1))
        };
        let line = keys.own_line(&1).expect("there is room");
        let mut wait = Box::pin(line.acquire());
        let waker = std::task::Waker::from(Woken::new());
        let mut context = std::task::Context::from_waker(&waker);
        let at_once = wait.as_mut().poll(&mut context).is_ready();
        assert!(other.join().expect("no panic"), "it was known");
        clock.set(SECOND);
        assert!(at_once || wait.as_mut().poll(&mut context).is_ready());
        drop(wait);
        drop(line);
        keys.sweep_all();
        assert_eq!(keys.len(), 0);
    });
}
