//! An observer of all keys is notified of each call once, like an observer of one limiter per key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::support::polled::{Future, poll};
use crate::support::{MS, spawn_pending};
use proptest::prelude::*;
use tidegate::keyed::KeyEvents;
use tidegate::{
    Events, KeyedRateLimiter, ManualClock, Nanos, Rate, RateLimiter, Refusal, Request, Statistics,
    TokenBucket, WhenKeysFull,
};
use tokio_test::assert_pending;
use tokio_test::task::spawn;

type Keys = KeyedRateLimiter<u64, TokenBucket, ManualClock>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Granted(u64, Duration),
    Refused(u64, Refusal),
    Cancelled(u64, Duration),
    Shadowed(u64, Refusal),
    Exempted(u64),
    Paused(Duration),
    Resumed,
}

/// Records each event.
#[derive(Default)]
struct Log(Mutex<Vec<Event>>);

impl Log {
    fn add(&self, event: Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Returns the events since the last call.
    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Events for Log {
    fn granted(&self, permits: u64, waited: Duration) {
        self.add(Event::Granted(permits, waited));
    }

    fn refused(&self, permits: u64, refusal: &Refusal) {
        self.add(Event::Refused(permits, *refusal));
    }

    fn cancelled(&self, permits: u64, waited: Duration) {
        self.add(Event::Cancelled(permits, waited));
    }

    fn shadowed(&self, permits: u64, refusal: &Refusal) {
        self.add(Event::Shadowed(permits, *refusal));
    }

    fn exempted(&self, permits: u64) {
        self.add(Event::Exempted(permits));
    }

    fn paused(&self, remaining: Duration) {
        self.add(Event::Paused(remaining));
    }

    fn resumed(&self) {
        self.add(Event::Resumed);
    }
}

const SECOND: Duration = Duration::from_secs(1);
const LIMITED: Refusal = Refusal::Limited { retry_after: Nanos::from_duration(SECOND) };

/// One permit per second for each key, no burst, and an observer.
fn watched(max_keys: usize, choice: WhenKeysFull) -> (Keys, ManualClock, Arc<Log>) {
    let (clock, log) = (ManualClock::new(), Arc::new(Log::default()));
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    let keys = KeyedRateLimiter::with_clock(policy, max_keys, clock.clone());
    (keys.observed_by(log.clone()).when_full(choice), clock, log)
}

/// Records each event, with its key.
#[derive(Default)]
struct KeyLog(Mutex<Vec<(u64, Event)>>);

impl KeyLog {
    fn add(&self, key: u64, event: Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((key, event));
    }

    fn take(&self) -> Vec<(u64, Event)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl KeyEvents<u64> for KeyLog {
    fn granted(&self, key: &u64, permits: u64, waited: Duration) {
        self.add(*key, Event::Granted(permits, waited));
    }

    fn refused(&self, key: &u64, permits: u64, refusal: &Refusal) {
        self.add(*key, Event::Refused(permits, *refusal));
    }

    fn cancelled(&self, key: &u64, permits: u64, waited: Duration) {
        self.add(*key, Event::Cancelled(permits, waited));
    }

    fn shadowed(&self, key: &u64, permits: u64, refusal: &Refusal) {
        self.add(*key, Event::Shadowed(permits, *refusal));
    }

    fn exempted(&self, key: &u64, permits: u64) {
        self.add(*key, Event::Exempted(permits));
    }

    fn paused(&self, key: &u64, remaining: Duration) {
        self.add(*key, Event::Paused(remaining));
    }

    fn resumed(&self, key: &u64) {
        self.add(*key, Event::Resumed);
    }
}

#[test]
fn an_observer_can_get_the_key() -> Result<(), Refusal> {
    let (keys, clock, without_key) = watched(2, WhenKeysFull::RefuseNew);
    let (unused, log) = (Arc::new(KeyLog::default()), Arc::new(KeyLog::default()));
    let keys = keys.observed_by_key(unused.clone()).observed_by_key(log.clone());
    let (granted, refused) = (Event::Granted(1, Duration::ZERO), Event::Refused(1, LIMITED));
    // Through the table.
    keys.try_acquire(&1)?;
    assert!(keys.try_acquire(&1).is_err() && keys.try_acquire(&2).is_ok() && keys.try_acquire(&3).is_err());
    keys.try_acquire_many(&4, Request::permits(1).exempt())?;
    let no_room = Event::Refused(1, Refusal::TooManyKeys { limit: 2 });
    assert_eq!(log.take(), [(1, granted), (1, refused), (2, granted), (3, no_room), (4, Event::Exempted(1))]);
    // Through the limiter of a key.
    let (mut wait, mut dropped) = (spawn(keys.acquire(&1)), spawn(keys.acquire(&2)));
    assert_pending!(wait.poll());
    assert_pending!(dropped.poll());
    clock.advance(SECOND / 2);
    drop(dropped);
    clock.advance(SECOND / 2);
    assert!(tokio_test::assert_ready!(wait.poll()).is_ok());
    let limiter = keys.limiter(&2)?;
    limiter.pause_for(SECOND);
    limiter.resume();
    limiter.set_shadow(true);
    limiter.try_acquire_many(1)?;
    limiter.try_acquire_many(1)?;
    assert_eq!(
        log.take(),
        [
            (2, Event::Cancelled(1, SECOND / 2)),
            (1, Event::Granted(1, SECOND)),
            (2, Event::Paused(SECOND)),
            (2, Event::Resumed),
            (2, granted),
            (2, Event::Shadowed(1, LIMITED)),
        ]
    );
    assert!(unused.take().is_empty(), "the second observer of a kind replaces the first");
    assert_eq!(without_key.take().len(), 11, "one of the other kind is notified as well");
    Ok(())
}

#[test]
fn lack_of_room_is_reported_once() -> Result<(), Refusal> {
    let (keys, _, log) = watched(1, WhenKeysFull::RefuseNew);
    keys.try_acquire(&1)?;
    log.take();
    let refusal = Refusal::TooManyKeys { limit: 1 };
    assert_eq!(keys.try_acquire(&2), Err(refusal));
    assert_eq!(
        keys.try_acquire_many(&2, Request::permits(2)),
        Err(Refusal::ExceedsLimit { requested: 2, limit: 1 })
    );
    assert_eq!(keys.blocking_acquire_many(&2, 1), Err(refusal));
    assert!(keys.reserve(&2, 1).is_err());
    assert!(keys.limiter(&2).is_err());
    let refused = Event::Refused(1, refusal);
    let never = Event::Refused(2, Refusal::ExceedsLimit { requested: 2, limit: 1 });
    assert_eq!(log.take(), [refused, never, refused, refused], "a limiter is not asked for permits");
    Ok(())
}

#[test]
fn calls_of_keys_without_room_are_reported() -> Result<(), Refusal> {
    let (keys, _, log) = watched(1, WhenKeysFull::ShareOne);
    for key in [1, 2] {
        keys.try_acquire(&key)?;
    }
    assert_eq!(keys.try_acquire(&3), Err(LIMITED));
    let granted = Event::Granted(1, Duration::ZERO);
    assert_eq!(log.take(), [granted, granted, Event::Refused(1, LIMITED)]);
    Ok(())
}

#[test]
fn the_observer_of_one_key_is_notified_as_well() -> Result<(), Refusal> {
    let (keys, _, log) = watched(10, WhenKeysFull::RefuseNew);
    let one = Arc::new(Log::default());
    assert!(keys.limiter(&1)?.observe(one.clone()), "no observer is set yet");
    assert!(!keys.limiter(&1)?.observe(Arc::new(Statistics::new())));
    keys.try_acquire(&1)?;
    keys.try_acquire(&2)?;
    let waiting = spawn_pending(keys.acquire(&1));
    drop(waiting);
    keys.try_acquire_many(&1, Request::permits(1).exempt())?;
    let granted = Event::Granted(1, Duration::ZERO);
    let (dropped, exempted) = (Event::Cancelled(1, Duration::ZERO), Event::Exempted(1));
    assert_eq!(one.take(), [granted, dropped, exempted], "and not that it was limited at first");
    assert_eq!(log.take(), [granted, granted, dropped, exempted]);
    Ok(())
}

#[test]
fn an_observer_of_all_keys_keeps_no_key() -> Result<(), Refusal> {
    let (keys, clock, log) = watched(1, WhenKeysFull::EvictLeastUsed);
    keys.try_acquire(&1)?;
    let waiting = spawn_pending(keys.acquire(&1));
    drop(waiting);
    // The key has no line now, so another key can take its slot before the key is idle (as new).
    clock.advance(500 * MS);
    keys.try_acquire(&2)?;
    assert_eq!(log.take().len(), 3);
    // An observer of the key prevents that.
    assert!(keys.limiter(&2)?.observe(Arc::new(Statistics::new())));
    clock.advance(SECOND);
    assert!(keys.try_acquire(&3).is_err());
    Ok(())
}

/// Calls the limiter again on each event.
struct ComesBack(Mutex<Option<Keys>>);

impl Events for ComesBack {
    fn granted(&self, _permits: u64, _waited: Duration) {
        let keys = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keys) = keys {
            assert_eq!((keys.try_acquire(&7).map(drop), keys.len()), (Ok(()), 2));
            keys.set_rate_all(Rate::per_second(2));
            keys.remove(&7);
            keys.sweep();
        }
    }
}

#[test]
fn it_may_call_the_limiter() -> Result<(), Refusal> {
    let (keys, clock, _) = watched(2, WhenKeysFull::RefuseNew);
    let events = Arc::new(ComesBack(Mutex::new(None)));
    let keys = keys.observed_by(events.clone());
    let come_back = || *events.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(keys.clone());
    // A new key, a known key, and a key with a line.
    come_back();
    keys.try_acquire(&1)?;
    clock.advance(500 * MS);
    come_back();
    keys.try_acquire(&1)?;
    clock.advance(500 * MS);
    let line = keys.limiter(&1)?;
    come_back();
    keys.try_acquire(&1)?;
    assert_eq!(line.rate(), Rate::per_second(2));
    // The observer holds the limiter, which holds the observer: break the cycle.
    *events.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Try(u64, u32),
    TryWith(u64, u32, i8, bool),
    Wait(u64, u32),
    Within(u64, u32, u64),
    Exempt(u64),
    Reserve(u64, u32),
    Drop(usize),
    Claim(usize),
    Pause(u64, u64),
    Resume(u64),
    Shadow(u64, bool),
    Direct(u64),
    Sweep,
    Advance(u64),
}

fn some_acts() -> impl Strategy<Value = Vec<Act>> {
    let key = || 0..3u64;
    let act = prop_oneof![
        6 => (key(), 0..5u32).prop_map(|(key, n)| Act::Try(key, n)),
        2 => (key(), 1..5u32, -1..2i8, any::<bool>()).prop_map(|(key, n, p, exempt)| Act::TryWith(key, n, p, exempt)),
        4 => (key(), 0..5u32).prop_map(|(key, n)| Act::Wait(key, n)),
        3 => (key(), 1..4u32, 0..900u64).prop_map(|(key, n, ms)| Act::Within(key, n, ms)),
        1 => key().prop_map(Act::Exempt),
        2 => (key(), 0..5u32).prop_map(|(key, n)| Act::Reserve(key, n)),
        2 => (0..4usize).prop_map(Act::Drop),
        2 => (0..4usize).prop_map(Act::Claim),
        1 => (key(), 1..500u64).prop_map(|(key, ms)| Act::Pause(key, ms)),
        1 => key().prop_map(Act::Resume),
        1 => (key(), any::<bool>()).prop_map(|(key, shadow)| Act::Shadow(key, shadow)),
        2 => key().prop_map(Act::Direct),
        2 => Just(Act::Sweep),
        6 => (0..700u64).prop_map(Act::Advance),
    ];
    proptest::collection::vec(act, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Compares with a plain limiter for each key, all with one observer. The rate is in whole
    /// nanoseconds, so that forgetting a key makes no difference.
    #[test]
    fn the_observer_is_notified_as_by_a_limiter_for_each_key(acts in some_acts()) {
        let (clock, told, expected) = (ManualClock::new(), Arc::new(Log::default()), Arc::new(Log::default()));
        let policy = TokenBucket::new(Rate::per_second(4), 3);
        let keys = KeyedRateLimiter::with_clock(policy.clone(), 10, clock.clone()).observed_by(told.clone());
        let plain = |key: u64| {
            let limiter = RateLimiter::with_clock(policy.clone(), clock.clone());
            assert!(limiter.observe(expected.clone()));
            (key, limiter)
        };
        let all: HashMap<u64, _> = (0..3).map(plain).collect();
        let (mut waiting, mut reservations) = (Vec::<(Future, Future)>::new(), Vec::new());
        let wait = |mut one: Future, mut other: Future, waiting: &mut Vec<_>| {
            let answer = poll(&mut one);
            assert_eq!(answer, poll(&mut other));
            if answer.is_pending() {
                waiting.push((one, other));
            }
        };
        for act in acts {
            match act {
                Act::Try(key, n) => prop_assert_eq!(keys.try_acquire_many(&key, n), all[&key].try_acquire_many(n)),
                Act::TryWith(key, n, priority, exempt) => {
                    let request = Request::permits(n).priority(priority);
                    let request = if exempt { request.exempt() } else { request };
                    prop_assert_eq!(keys.try_acquire_many(&key, request), all[&key].try_acquire_many(request));
                }
                Act::Wait(key, n) => {
                    let (keys, plain) = (keys.clone(), all[&key].clone());
                    let one = Box::pin(async move { keys.acquire_many(&key, n).await });
                    wait(one, Box::pin(async move { plain.acquire_many(n).await }), &mut waiting);
                }
                Act::Within(key, n, ms) => {
                    let (keys, plain) = (keys.clone(), all[&key].clone());
                    let request = Request::permits(n).within(Duration::from_millis(ms));
                    let one = Box::pin(async move { keys.acquire_many(&key, request).await });
                    wait(one, Box::pin(async move { plain.acquire_many(request).await }), &mut waiting);
                }
                Act::Exempt(key) => {
                    let (keys, plain) = (keys.clone(), all[&key].clone());
                    let request = Request::permits(2).exempt();
                    let one = Box::pin(async move { keys.acquire_many(&key, request).await });
                    wait(one, Box::pin(async move { plain.acquire_many(request).await }), &mut waiting);
                }
                Act::Reserve(key, n) => match (keys.reserve(&key, n), all[&key].reserve(n)) {
                    (Ok(one), Ok(other)) => reservations.push((one, other)),
                    (one, other) => prop_assert_eq!(one.err(), other.err()),
                },
                Act::Drop(i) => {
                    drop((i < waiting.len()).then(|| waiting.remove(i)));
                    drop((i < reservations.len()).then(|| reservations.remove(i)));
                }
                Act::Claim(i) => {
                    if let Some((one, other)) = reservations.get_mut(i) {
                        prop_assert_eq!(one.claim(), other.claim());
                    }
                }
                Act::Pause(key, ms) => {
                    keys.limiter(&key)?.pause_for(Duration::from_millis(ms));
                    all[&key].pause_for(Duration::from_millis(ms));
                }
                Act::Resume(key) => prop_assert_eq!(keys.limiter(&key)?.resume(), all[&key].resume()),
                Act::Shadow(key, shadow) => {
                    keys.limiter(&key)?.set_shadow(shadow);
                    all[&key].set_shadow(shadow);
                }
                Act::Direct(key) => prop_assert_eq!(keys.limiter(&key)?.try_acquire(), all[&key].try_acquire()),
                Act::Sweep => keys.sweep(),
                Act::Advance(ms) => clock.advance(Duration::from_millis(ms)),
            }
            let mut still = Vec::new();
            for (one, other) in waiting {
                wait(one, other, &mut still);
            }
            waiting = still;
            prop_assert_eq!(told.take(), expected.take());
        }
    }
}

/// Both kinds of observers are notified, in whichever order they are set.
#[test]
fn observers_with_and_without_the_key_are_notified_side_by_side() {
    struct Names(Mutex<Vec<u64>>);
    impl KeyEvents<u64> for Names {
        fn granted(&self, key: &u64, _permits: u64, _waited: Duration) {
            self.0.lock().expect("no panic").push(*key);
        }
    }
    for key_first in [true, false] {
        let policy = TokenBucket::new(Rate::per_second(1), 1);
        let users: Keys = KeyedRateLimiter::with_clock(policy, 10, ManualClock::new());
        let (names, logs) = (Arc::new(Names(Mutex::default())), [Arc::new(Log::default()), Arc::default()]);
        let pair = Arc::new((logs[0].clone(), logs[1].clone()));
        let users = match key_first {
            true => users.observed_by_key(names.clone()).observed_by(pair),
            false => users.observed_by(pair).observed_by_key(names.clone()),
        };
        assert!(users.try_acquire(&7).is_ok() && users.try_acquire(&7).is_err());
        users.pause_all_for(SECOND);
        assert_eq!(*names.0.lock().expect("no panic"), [7]);
        let events = [Event::Granted(1, Duration::ZERO), Event::Refused(1, LIMITED), Event::Paused(SECOND)];
        logs.iter().for_each(|log| assert_eq!(log.take(), events));
    }
}
