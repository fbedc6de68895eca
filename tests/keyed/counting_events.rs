//! An observer of all keys of a counting limit is notified of each call once.

use std::sync::Arc;
use std::time::Duration;

use crate::support::log::Log;
use tidegate::keyed::KeyEvents;
use tidegate::{
    AnyKeyed, CancelToken, KeyedAllOf, KeyedCountingLimit, KeyedRateLimiter, Refusal, Request, Statistics,
    Unlimited,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};

type Keys = KeyedCountingLimit<u64>;

impl KeyEvents<u64> for Log {
    fn granted(&self, key: &u64, permits: u64, _waited: Duration) {
        self.note(format!("{key}: granted {permits}"));
    }

    fn refused(&self, key: &u64, permits: u64, refusal: &Refusal) {
        self.note(format!("{key}: refused {permits}: {refusal}"));
    }

    fn cancelled(&self, key: &u64, permits: u64, _waited: Duration) {
        self.note(format!("{key}: cancelled {permits}"));
    }

    fn exempted(&self, key: &u64, permits: u64) {
        self.note(format!("{key}: exempted {permits}"));
    }
}

fn watched(limit: u32, max_keys: usize) -> (Keys, Arc<Log>) {
    let log = Arc::new(Log::without_waits());
    (Keys::new(limit, max_keys).observed_by(log.clone()), log)
}

#[test]
fn each_call_is_reported_once() -> Result<(), Refusal> {
    let (keys, log) = watched(2, 1);
    let held = (keys.try_acquire(&1)?, keys.try_acquire_up_to(&1, 9)?);
    assert!(keys.try_acquire(&1).is_err() && keys.try_acquire_many(&1, 3).is_err());
    assert_eq!(
        log.take(),
        [
            "granted 1",
            "granted 1",
            "refused 1: all 2 permits are in use",
            "refused 3: 3 permits requested, the limit is 2",
        ]
    );
    // There is no room for the key.
    let full = format!(": {}", Refusal::TooManyKeys { limit: 1 });
    assert!(keys.try_acquire_many(&2, 2).is_err() && keys.try_acquire_up_to(&2, 9).is_err());
    assert_ready_err!(spawn(keys.acquire(&2)).poll());
    assert_ready_err!(spawn(keys.acquire_within(&2, Duration::ZERO)).poll());
    assert!(keys.blocking_acquire(&2).is_err());
    let told = ["refused 2", "refused 1", "refused 1", "refused 1", "refused 1"];
    assert_eq!(log.take(), told.map(|told| format!("{told}{full}")));
    let (mut granted, mut dropped) = (spawn(keys.acquire_many(&1, 2)), spawn(keys.acquire(&1)));
    assert_pending!(granted.poll());
    assert_pending!(dropped.poll());
    drop((held, dropped));
    drop(assert_ready_ok!(granted.poll()));
    assert_eq!(log.take(), ["cancelled 1", "granted 2"]);
    let token = CancelToken::new();
    token.cancel();
    assert!(token.run(|| keys.blocking_acquire(&1)).is_err());
    assert_eq!(log.take(), ["cancelled 1"]);
    drop(granted);
    keys.close();
    assert!(keys.try_acquire(&1).is_err());
    assert_eq!(log.take(), [format!("refused 1: {}", Refusal::Closed)]);
    assert!(keys.is_empty());
    Ok(())
}

#[test]
fn an_observer_can_get_the_key() -> Result<(), Refusal> {
    let log = Arc::new(Log::without_waits());
    let keys = Keys::new(1, 2).observed_by_key(log.clone()).with_limits(|key| if *key == 1 { 1 } else { 2 });
    let held = (keys.try_acquire(&1)?, keys.try_acquire_many(&2, 2)?);
    assert!(keys.try_acquire(&1).is_err() && keys.try_acquire(&3).is_err());
    assert_eq!(
        log.take(),
        [
            "1: granted 1".to_owned(),
            "2: granted 2".to_owned(),
            format!("1: refused 1: {}", Refusal::InUse { limit: 1 }),
            format!("3: refused 1: {}", Refusal::TooManyKeys { limit: 2 }),
        ]
    );
    drop(held);
    assert!(keys.is_empty(), "an observer keeps no key");
    Ok(())
}

#[test]
fn a_limit_of_a_key_notifies_both_observers() -> Result<(), Refusal> {
    let (keys, log) = watched(1, 2);
    let own = Arc::new(Log::without_waits());
    let one = keys.limiter(&1)?;
    assert!(one.observe(own.clone()));
    let held = one.try_acquire()?;
    assert!(keys.try_acquire(&1).is_err());
    assert_eq!(log.take(), own.take());
    drop(held);
    drop(one);
    drop(keys.try_acquire(&1)?);
    // The key was forgotten, along with its observer.
    let again = keys.try_acquire(&1)?;
    assert_eq!((log.take().len(), own.take().len()), (2, 1));
    drop(again);
    Ok(())
}

#[test]
fn a_handle_of_any_kind_notifies_the_observer() {
    let (keys, log) = watched(1, 1);
    let any = AnyKeyed::from(keys.clone());
    let held = any.try_acquire(1_u64).expect("one");
    assert!(any.try_acquire(1_u64).is_err() && any.try_acquire_many(2_u64, 3).is_err());
    assert!(any.try_acquire_many(2_u64, Request::permits(7).exempt()).is_ok());
    // Not a request.
    assert!(any.limiter(2_u64).is_err());
    assert_eq!(
        log.take(),
        [
            "granted 1".to_owned(),
            format!("refused 1: {}", Refusal::InUse { limit: 1 }),
            format!("refused 3: {}", Refusal::TooManyKeys { limit: 1 }),
            "exempted 7".to_owned(),
        ]
    );
    drop(held);
    let log = Arc::new(Log::without_waits());
    let any = AnyKeyed::from(keys.observed_by_key(log.clone()));
    let held = any.try_acquire(1_u64).expect("one");
    assert!(any.try_acquire_many(2_u64, Request::permits(7).exempt()).is_ok());
    assert_eq!(log.take(), ["1: granted 1", "2: exempted 7"]);
    drop(held);
}

/// A composite notifies only its own observer.
#[test]
fn a_composite_does_not_notify_the_observer_of_its_member() {
    let (keys, log) = watched(1, 1);
    let of_all = Arc::new(Statistics::new());
    let rates: KeyedRateLimiter<u64, _> = KeyedRateLimiter::new(Unlimited, 9);
    let all: KeyedAllOf<u64> = KeyedAllOf::new("rate", &rates).with_keyed_counting("calls", &keys);
    let all = all.observed_by(of_all.clone());
    let held = all.try_acquire(&1).expect("one");
    assert!(all.try_acquire(&1).is_err() && all.try_acquire(&2).is_err());
    assert_eq!(log.take(), Vec::<String>::new());
    assert_eq!((of_all.snapshot().granted, of_all.snapshot().refused()), (1, 2));
    drop(held);
}
