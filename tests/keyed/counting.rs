//! A limit of permits in use for each key.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::{
    AllOf, CountingLimit, KeyedCountingLimit, KeyedCountingPermit, ManualClock, RateLimiter, Refusal,
    Unlimited,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

use crate::support::{MS, spawn_pending};

type Keys = KeyedCountingLimit<u64>;

#[test]
fn keys_do_not_know_of_each_other() -> Result<(), Refusal> {
    let keys = Keys::new(2, 10);
    let held = (keys.try_acquire_many(&1, 2)?, keys.try_acquire(&2)?);
    assert_eq!(keys.try_acquire(&1).err(), Some(Refusal::InUse { limit: 2 }));
    assert_eq!([1, 2, 3].map(|key| keys.available(&key)), [0, 1, 2]);
    assert_eq!((held.0.permits(), keys.len()), (2, 2));
    assert_eq!(keys.try_acquire_many(&3, 3).err(), Some(Refusal::ExceedsLimit { requested: 3, limit: 2 }));
    assert_eq!(keys.try_acquire_many(&3, 0).err(), Some(Refusal::ZeroPermits));
    assert_eq!(keys.len(), 2, "a refused request leaves no key");
    drop(held);
    assert!(keys.is_empty());
    Ok(())
}

/// The number of hashes before the code runs, and the code.
type Hook = (usize, Box<dyn FnOnce()>);

thread_local! {
    static AT_HASH: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// A key whose hash runs code, as another thread may at that moment.
#[derive(Clone, PartialEq, Eq)]
struct Watched(u64);

impl Hash for Watched {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let run = AT_HASH.with_borrow_mut(|hook| match hook {
            Some((0, _)) => hook.take(),
            Some((hashes, _)) => {
                *hashes -= 1;
                None
            }
            None => None,
        });
        if let Some((_, run)) = run {
            run();
        }
        self.0.hash(state);
    }
}

/// Bug: the status had a new limit, with the available permits of the key that was added meanwhile.
#[test]
fn a_status_has_the_limit_of_a_key_that_comes_meanwhile() {
    for hashes in 0..4 {
        let keys = KeyedCountingLimit::new(2, 10);
        let (others, held) = (keys.clone(), Rc::new(RefCell::new(None)));
        let taken = held.clone();
        let take = move || *taken.borrow_mut() = others.try_acquire(&Watched(1)).ok();
        AT_HASH.set(Some((hashes, Box::new(take))));
        assert_eq!(keys.status(&Watched(1)).limit, 2);
        AT_HASH.set(None);
    }
}

#[test]
fn a_key_grants_what_is_free_and_reports_its_status() -> Result<(), Refusal> {
    let keys = Keys::new(3, 1);
    let told = |key| {
        let status = keys.status(&key);
        (status.limit, status.available, status.waiting)
    };
    assert_eq!((told(1), keys.len()), ((3, 3, 0), 0));
    let held = keys.try_acquire(&1)?;
    let rest = keys.try_acquire_up_to(&1, 9)?;
    assert_eq!((rest.permits(), told(1)), (2, (3, 0, 0)));
    assert_eq!(keys.try_acquire_up_to(&1, 9).err(), Some(Refusal::InUse { limit: 3 }));
    assert_eq!(keys.try_acquire_up_to(&1, 0).err(), Some(Refusal::ZeroPermits));
    assert_eq!(keys.try_acquire_up_to(&2, 9).err(), Some(Refusal::TooManyKeys { limit: 1 }));
    let wait = spawn_pending(keys.acquire(&1));
    assert_eq!((told(1), told(2)), ((3, 0, 1), (3, 3, 0)));
    drop((wait, held, rest));
    assert!(keys.is_empty());
    assert!(keys.close());
    assert_eq!(told(1), (0, 0, 0));
    Ok(())
}

#[test]
fn keys_are_bounded() -> Result<(), Refusal> {
    let keys = Keys::new(1, 3);
    let held: Vec<_> = (0..3).map(|key| keys.try_acquire(&key)).collect::<Result<_, _>>()?;
    assert_eq!(keys.try_acquire(&3).err(), Some(Refusal::TooManyKeys { limit: 3 }));
    drop(held);
    assert!(keys.try_acquire(&3).is_ok());
    assert_eq!(Keys::new(1, 0).try_acquire(&1).err(), Some(Refusal::TooManyKeys { limit: 0 }));
    Ok(())
}

#[test]
fn a_waiting_request_keeps_its_key_and_its_turn() -> Result<(), Refusal> {
    let keys = Keys::new(1, 10);
    let held = keys.try_acquire(&1)?;
    let (mut first, mut second) = (spawn(keys.acquire(&1)), spawn(keys.acquire(&1)));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(held);
    assert!(first.is_woken());
    assert!(keys.try_acquire(&1).is_err(), "no request overtakes");
    let permit = assert_ready!(first.poll())?;
    assert_pending!(second.poll());
    drop(second);
    drop(permit);
    assert!(keys.try_acquire(&1).is_ok());
    drop(first);
    assert!(keys.is_empty());
    Ok(())
}

#[test]
fn a_dropped_wait_leaves_no_trace() -> Result<(), Refusal> {
    let keys = Keys::new(1, 10);
    let held = keys.try_acquire(&1)?;
    let wait = spawn_pending(keys.acquire(&1));
    drop(wait);
    let wait = spawn_pending(keys.acquire(&1));
    drop(held);
    assert!(wait.is_woken(), "granted, and not polled after that");
    drop(wait);
    assert!(keys.is_empty());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn within_a_time() -> Result<(), Refusal> {
    let keys = Keys::new(1, 10);
    let held = keys.try_acquire(&1)?;
    assert_eq!(keys.acquire_within(&1, 50 * MS).await.err(), Some(Refusal::InUse { limit: 1 }));
    drop(held);
    assert!(keys.acquire_within(&1, Duration::ZERO).await.is_ok());
    assert!(keys.is_empty());
    Ok(())
}

#[test]
fn threads_wait_in_one_line_for_a_key() -> Result<(), Refusal> {
    let keys = Keys::new(2, 10);
    let most = AtomicU32::new(0);
    let held = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for key in 0..200 {
                    let permit = keys.blocking_acquire(&(key % 2)).expect("room");
                    most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    held.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert!(most.into_inner() <= 4, "two keys, two permits each");
    assert!(keys.is_empty());
    assert_eq!(
        keys.blocking_acquire_many(&1, 3).err(),
        Some(Refusal::ExceedsLimit { requested: 3, limit: 2 })
    );
    Ok(())
}

#[test]
fn a_handle_keeps_its_key_until_it_is_gone() -> Result<(), Refusal> {
    let keys = Keys::new(1, 1);
    let limit = keys.limiter(&1)?;
    let rate = RateLimiter::with_clock(Unlimited, ManualClock::new());
    let all = AllOf::new("rate", &rate).with_counting("calls", &limit);
    let permits = all.try_acquire().expect("it is free");
    drop(limit);
    assert!(keys.try_acquire(&1).is_err());
    assert_eq!(keys.try_acquire(&2).err(), Some(Refusal::TooManyKeys { limit: 1 }));
    drop((permits, all));
    assert_eq!(keys.len(), 1);
    assert!(keys.try_acquire(&2).is_ok(), "a new key takes its slot");
    Ok(())
}

#[test]
fn a_closed_limit_refuses_all_keys_and_forgets_them() -> Result<(), Refusal> {
    let keys = Keys::new(1, 10);
    let held = (keys.try_acquire(&1)?, keys.limiter(&2)?);
    let mut wait = spawn_pending(keys.acquire(&1));
    assert!(keys.close() && keys.is_closed());
    assert!(wait.is_woken());
    assert_eq!(assert_ready!(wait.poll()).err(), Some(Refusal::Closed));
    for key in [1, 2, 3] {
        assert_eq!(keys.try_acquire(&key).err(), Some(Refusal::Closed));
        assert_eq!(keys.available(&key), 0);
    }
    assert_eq!(held.1.try_acquire().err(), Some(Refusal::Closed), "a handle from before");
    drop((held, wait));
    assert_eq!(keys.len(), 1, "a handle leaves its key until the table is full");
    assert!(!keys.close(), "it was closed before");
    Ok(())
}

#[test]
fn no_thread_waits_for_a_closed_limit() {
    for round in 0..100 {
        let keys = Keys::new(1, 10);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let keys = keys.clone();
                scope.spawn(move || {
                    for key in (0..3).cycle().skip(thread + round) {
                        match keys.blocking_acquire(&key) {
                            Ok(permit) => drop(permit),
                            Err(refusal) => return assert_eq!(refusal, Refusal::Closed),
                        }
                    }
                });
            }
            keys.close();
            assert_eq!(keys.try_acquire(&7).err(), Some(Refusal::Closed));
        });
        assert!(keys.is_empty());
    }
}

#[test]
fn replan_changes_the_limits_of_keys_in_use() -> Result<(), Refusal> {
    let limit = Arc::new(AtomicU32::new(1));
    let of = limit.clone();
    let keys = Keys::new(0, 10).with_limits(move |key| match key {
        7 => 10,
        8 => panic!("no limit for this key"),
        _ => of.load(Ordering::Relaxed),
    });
    let _held = (keys.try_acquire(&1)?, keys.try_acquire(&7)?);
    let mut wait = spawn_pending(keys.acquire(&1));
    limit.store(2, Ordering::Relaxed);
    keys.replan();
    assert!(wait.is_woken());
    assert!(assert_ready!(wait.poll()).is_ok());
    assert_eq!([1, 2, 7].map(|key| keys.available(&key)), [1, 2, 9]);
    assert!(catch_unwind(AssertUnwindSafe(|| keys.try_acquire(&8).is_ok())).is_err());
    assert_eq!(keys.len(), 2);
    Ok(())
}

/// A key with a `Hash`, `Clone` or `Drop` that panics once.
#[derive(Debug, PartialEq, Eq)]
struct Key(u64, Fuse);

#[derive(Clone, Debug)]
struct Fuse(Arc<AtomicU32>);

impl PartialEq for Fuse {
    fn eq(&self, _: &Fuse) -> bool {
        true
    }
}

impl Eq for Fuse {}

impl Fuse {
    fn burn(&self) {
        if self.0.load(Ordering::Relaxed) > 0 && self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            assert!(std::thread::panicking(), "a key panics");
        }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.1.burn();
        self.0.hash(state);
    }
}

impl Clone for Key {
    fn clone(&self) -> Key {
        self.1.burn();
        Key(self.0, self.1.clone())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.1.burn();
    }
}

proptest! {
    /// Whichever code of a key panics, the table is empty once the permits are returned.
    #[test]
    fn a_key_that_panics_is_counted_once(fuse in 1..400_u32, many in 1..40_u64) {
        let left = Fuse(Arc::new(AtomicU32::new(0)));
        let keys: KeyedCountingLimit<Key> = KeyedCountingLimit::new(1, 100);
        let all: Vec<_> = (0..many).map(|number| Key(number, left.clone())).collect();
        left.0.store(fuse, Ordering::Relaxed);
        let mut held = Vec::new();
        for key in &all {
            held.push(catch_unwind(AssertUnwindSafe(|| keys.try_acquire(key))));
        }
        for permit in held {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(permit)));
        }
        left.0.store(0, Ordering::Relaxed);
        for key in &all {
            prop_assert!(keys.try_acquire(key).is_ok());
        }
        prop_assert_eq!(keys.len(), 0);
        drop(all);
    }
}

type Answer = Result<KeyedCountingPermit<u64>, Refusal>;
type Wait = Pin<Box<dyn Future<Output = Answer>>>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Every key behaves like a separate `CountingLimit`, and is in the table exactly while it is
    /// in use.
    #[test]
    fn every_key_is_a_limit_of_its_own(
        limit in 0..4_u32,
        acts in prop::collection::vec((0..4_u8, 0..3_u64, 0..4_u32), 1..60),
    ) {
        let keys = Keys::new(limit, 10);
        let plain: HashMap<u64, CountingLimit> = (0..3).map(|key| (key, CountingLimit::new(limit))).collect();
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        for (act, key, n) in acts {
            match act {
                0 => {
                    let (one, other) = (keys.try_acquire_many(&key, n), plain[&key].try_acquire_many(n));
                    prop_assert_eq!(one.as_ref().err(), other.as_ref().err());
                    held.extend(one.ok().zip(other.ok()).map(|permits| (key, permits)));
                }
                1 => {
                    let (all, limit) = (keys.clone(), plain[&key].clone());
                    let one: Wait = Box::pin(async move { all.acquire_many(&key, n).await });
                    waiting.push((key, one, Box::pin(async move { limit.acquire_many(n).await })));
                }
                2 if !held.is_empty() => drop(held.swap_remove(n as usize % held.len())),
                3 if !waiting.is_empty() => drop(waiting.remove(n as usize % waiting.len())),
                _ => {}
            }
            let mut still = Vec::new();
            for (key, mut one, mut other) in waiting {
                match (one.as_mut().poll(&mut context), other.as_mut().poll(&mut context)) {
                    (Poll::Pending, Poll::Pending) => still.push((key, one, other)),
                    (Poll::Ready(Ok(one)), Poll::Ready(Ok(other))) => held.push((key, (one, other))),
                    (Poll::Ready(Err(one)), Poll::Ready(Err(other))) => prop_assert_eq!(one, other),
                    _ => prop_assert!(false, "one waits and the other does not"),
                }
            }
            waiting = still;
            let used = |key: &u64| {
                held.iter().any(|(of, _)| of == key) || waiting.iter().any(|(of, ..)| of == key)
            };
            prop_assert_eq!(keys.len(), (0..3).filter(used).count());
            for key in 0..3 {
                prop_assert_eq!(keys.available(&key), plain[&key].available());
            }
        }
    }
}
