//! Bounds on the requests that wait for all keys together.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::{
    Grant, KeyedRateLimiter, ManualClock, QueueBounds, Rate, Refusal, TokenBucket, WhenFull, WhenKeysFull,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

use crate::support::{MS, spawn_pending};

type Keys = KeyedRateLimiter<u64, TokenBucket, ManualClock>;

/// One permit for each key every 100 ms, and no burst.
fn keys(max_keys: usize) -> (Keys, ManualClock) {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(10), 1);
    (KeyedRateLimiter::with_clock(policy, max_keys, clock.clone()), clock)
}

fn full(wait: Duration) -> Option<Refusal> {
    Some(Refusal::QueueFull { retry_after: wait.into() })
}

#[test]
fn requests_for_all_keys_count() -> Result<(), Refusal> {
    let (keys, clock) = keys(10);
    keys.set_max_waiting(2, u64::MAX);
    for key in 0..4 {
        keys.try_acquire(&key)?;
    }
    let (mut first, second) = (spawn(keys.acquire(&0)), keys.reserve(&1, 1)?);
    assert_pending!(first.poll());
    assert_eq!(keys.waiting(), 2);
    assert_eq!(assert_ready!(spawn(keys.acquire(&2)).poll()).err(), full(100 * MS));
    assert_eq!(keys.limiter(&1)?.reserve(1).err(), full(200 * MS));
    assert!(keys.try_acquire(&4).is_ok(), "a request that need not wait");
    drop(second);
    assert_eq!(keys.waiting(), 1);
    let removed = keys.reserve(&3, 1)?;
    assert!(keys.remove(&3));
    assert_eq!(keys.waiting(), 2);
    clock.advance(100 * MS);
    assert!(assert_ready!(first.poll()).is_ok());
    assert!(removed.due_in().is_zero());
    assert_eq!(keys.waiting(), 0);
    Ok(())
}

#[test]
fn permits_are_bounded_too() -> Result<(), Refusal> {
    let clock = ManualClock::new();
    let keys = Keys::with_clock(TokenBucket::new(Rate::per_second(10), 5), 10, clock);
    keys.set_max_waiting(usize::MAX, 6);
    for key in 0..3 {
        keys.try_acquire_many(&key, 5)?;
    }
    let _reservation = keys.reserve(&0, 4)?;
    assert_eq!(keys.reserve(&1, 3).err(), full(300 * MS));
    let _other = keys.reserve(&1, 2)?;
    assert_eq!(keys.reserve(&2, 1).err(), full(100 * MS));
    keys.set_max_waiting(usize::MAX, u64::MAX);
    assert!(keys.reserve(&2, 5).is_ok());
    Ok(())
}

/// The bound of all keys displaces no waiter, even where the bound of the key would.
#[test]
fn no_waiter_is_displaced() -> Result<(), Refusal> {
    let (keys, _) = keys(10);
    keys.set_max_waiting(1, u64::MAX);
    keys.try_acquire(&0)?;
    let bounds = QueueBounds::UNBOUNDED.max_waiters(1).when_full(WhenFull::DropOldest);
    keys.limiter(&0)?.set_queue_bounds(bounds);
    let mut wait = spawn_pending(keys.acquire(&0));
    assert_eq!(assert_ready!(spawn(keys.acquire(&0)).poll()).err(), full(200 * MS));
    assert_pending!(wait.poll());
    Ok(())
}

#[test]
fn waiters_that_share_a_limiter_count() -> Result<(), Refusal> {
    let (keys, _) = keys(1);
    let keys = keys.when_full(WhenKeysFull::ShareOne);
    keys.set_max_waiting(1, u64::MAX);
    keys.try_acquire(&0)?;
    keys.try_acquire(&1)?;
    let _reservation = keys.reserve(&1, 1)?;
    assert_eq!(keys.reserve(&0, 1).err(), full(100 * MS));
    Ok(())
}

type Wait = Pin<Box<dyn Future<Output = Result<Grant, Refusal>>>>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The count is the number of futures that wait, and never exceeds the bound.
    #[test]
    fn the_count_is_that_of_the_waiting_futures(
        bound in 0..5_usize,
        acts in prop::collection::vec((0..5_u8, 0..3_u64, 0..200_u64), 1..60),
    ) {
        let (keys, clock) = keys(10);
        keys.set_max_waiting(bound, u64::MAX);
        let mut waiting: Vec<Wait> = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        for (act, key, number) in acts {
            match act {
                0 | 1 => {
                    let (all, before) = (keys.clone(), keys.waiting());
                    let mut wait: Wait = Box::pin(async move { all.acquire(&key).await });
                    match wait.as_mut().poll(&mut context) {
                        std::task::Poll::Pending => waiting.push(wait),
                        std::task::Poll::Ready(Ok(_)) => {}
                        std::task::Poll::Ready(Err(_)) => prop_assert_eq!(before, bound),
                    }
                }
                2 if !waiting.is_empty() => drop(waiting.remove(usize::try_from(number)? % waiting.len())),
                3 => clock.advance(Duration::from_millis(number)),
                4 => _ = keys.remove(&key),
                _ => {}
            }
            waiting.retain_mut(|wait| wait.as_mut().poll(&mut context).is_pending());
            prop_assert_eq!(keys.waiting(), waiting.len());
            prop_assert!(waiting.len() <= bound);
        }
        drop(waiting);
        prop_assert_eq!(keys.waiting(), 0);
    }
}
