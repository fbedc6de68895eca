//! The behaviour of the table of keys, on a manual clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::support::polled::{Future, poll};
use crate::support::{MS, spawn_pending};
use proptest::prelude::*;
use tidegate::{
    AnyKeyed, AnyPolicy, Clock, Grant, KeyedRateLimiter, ManualClock, Nanos, Rate, RateLimiter, Refusal,
    Request, SmoothBursty, Statistics, TokenBucket, WhenKeysFull,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

type Keys = KeyedRateLimiter<u64, TokenBucket, ManualClock>;

/// One permit per second for each key, and no burst.
fn one_per_second(max_keys: usize, choice: WhenKeysFull) -> (Keys, ManualClock) {
    let clock = ManualClock::new();
    let keys =
        KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), max_keys, clock.clone());
    (keys.when_full(choice), clock)
}

#[test]
fn keys_do_not_know_of_each_other() {
    let (keys, clock) = one_per_second(10, WhenKeysFull::RefuseNew);
    assert_eq!([1, 2, 1].map(|key| keys.try_acquire(&key).is_ok()), [true, true, false]);
    clock.advance(Duration::from_secs(1));
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
}

#[test]
fn a_borrowed_key_finds_the_owned_one() {
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    let keys: KeyedRateLimiter<String, _, _> = KeyedRateLimiter::with_clock(policy, 10, ManualClock::new());
    assert_eq!(keys.try_acquire("a").map(drop), Ok(()));
    assert!(keys.try_acquire(&"a".to_owned()).is_err());
    assert_eq!(keys.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn a_full_table_refuses_a_new_key_until_one_is_as_good_as_new() {
    let (keys, clock) = one_per_second(2, WhenKeysFull::RefuseNew);
    assert_eq!([1, 2].map(|key| keys.try_acquire(&key).map(drop)), [Ok(()), Ok(())]);
    let refusal = keys.try_acquire(&3);
    assert_eq!(refusal, Err(Refusal::TooManyKeys { limit: 2 }));
    assert_eq!(
        refusal.map_err(|refusal| refusal.to_string()),
        Err("no room for a new key, all 2 keys are limited".into())
    );
    clock.advance(Duration::from_secs(1) - Duration::from_nanos(1));
    assert!(keys.try_acquire(&3).is_err());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(keys.try_acquire(&3).map(drop), Ok(()));
    assert!(keys.len() <= 2);
}

/// A key that is far from its limit is full again (as new) at each request. Bug: it was forgotten
/// each time, and added again under the exclusive lock.
#[test]
fn a_key_that_is_as_good_as_new_stays_while_there_is_room() {
    let (keys, clock) = one_per_second(100, WhenKeysFull::RefuseNew);
    for round in 0..10 {
        for key in 0..100 {
            assert_eq!(keys.try_acquire(&key).map(drop), Ok(()), "key {key} in round {round}");
            let known = if round == 0 { usize::try_from(key).unwrap_or(0) + 1 } else { 100 };
            assert_eq!(keys.len(), known, "at key {key} in round {round}");
        }
        clock.advance(Duration::from_secs(1));
    }
}

#[test]
fn a_key_that_was_as_good_as_new_for_a_minute_makes_room_for_memory() {
    let (keys, clock) = one_per_second(100_000, WhenKeysFull::RefuseNew);
    for key in 0..1000 {
        assert_eq!(keys.try_acquire(&key).map(drop), Ok(()));
    }
    // The permits accrue in the first second, and a minute has passed since.
    clock.advance(Duration::from_secs(61));
    for key in 1000..5000 {
        assert_eq!(keys.try_acquire(&key).map(drop), Ok(()));
    }
    assert!(keys.len() < 4500, "{} keys", keys.len());
}

#[test]
fn keys_without_room_share_one_limiter() {
    let (keys, clock) = one_per_second(1, WhenKeysFull::ShareOne);
    assert_eq!([1, 2, 3].map(|key| keys.try_acquire(&key).is_ok()), [true, true, false]);
    assert!(keys.set_rate(&3, Rate::per_second(9)).is_err(), "a rate for one key needs room");
    clock.advance(Duration::from_millis(999));
    assert_eq!([2, 3].map(|key| keys.try_acquire(&key).is_ok()), [false, false]);
}

#[test]
fn the_freshest_gives_up_its_slot() {
    let (keys, clock) = one_per_second(2, WhenKeysFull::EvictLeastUsed);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
    clock.advance(500 * MS);
    assert_eq!([2, 3].map(|key| keys.try_acquire(&key).map(drop)), [Ok(()), Ok(())]);
    // Key 1 was half a second from being full, and key 2 a whole second.
    assert_eq!((keys.len(), keys.status(&1).available, keys.status(&2).available), (2, 1, 0));
}

/// Bug: a new key was refused if the only key that it could replace was far from it.
#[test]
fn the_only_replaceable_key_gives_up_its_slot_wherever_it_is() {
    let (keys, _) = one_per_second(100, WhenKeysFull::EvictLeastUsed);
    // The slots grow for all of these keys, and the keys with limiters leave them again.
    (0..100).for_each(|key| assert!(keys.try_acquire(&key).is_ok()));
    let in_use: Vec<_> = (0..99).map(|key| keys.limiter(&key)).collect();
    assert!(in_use.iter().all(Result::is_ok));
    assert!((1000..1064).all(|key| keys.try_acquire(&key).is_ok()));
}

#[test]
fn a_request_that_can_never_be_granted_adds_no_key() {
    let (keys, _) = one_per_second(2, WhenKeysFull::RefuseNew);
    assert_eq!(keys.try_acquire_many(&1, 2), Err(Refusal::ExceedsLimit { requested: 2, limit: 1 }));
    assert_eq!(keys.try_acquire_many(&1, 0), Err(Refusal::ZeroPermits));
    assert!(keys.reserve(&1, 2).is_err());
    assert!(keys.is_empty());
    assert_eq!(keys.status(&1).available, 1);
    keys.refund(&1, 1);
    assert!(keys.is_empty());
}

#[test]
fn without_room_for_any_key_all_are_refused() {
    let (keys, _) = one_per_second(0, WhenKeysFull::RefuseNew);
    assert_eq!(keys.try_acquire(&1), Err(Refusal::TooManyKeys { limit: 0 }));
    let (keys, _) = one_per_second(0, WhenKeysFull::EvictLeastUsed);
    assert_eq!(keys.try_acquire(&1), Err(Refusal::TooManyKeys { limit: 0 }));
    let (keys, _) = one_per_second(0, WhenKeysFull::ShareOne);
    assert_eq!([1, 2].map(|key| keys.try_acquire(&key).is_ok()), [true, false]);
}

#[test]
fn the_most_keys_that_can_be_asked_for_are_no_problem() {
    let (keys, _) = one_per_second(usize::MAX, WhenKeysFull::RefuseNew);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn waiters_for_a_key_are_served_in_order() -> Result<(), Refusal> {
    let policy = TokenBucket::new(Rate::per_second(10), 1);
    let keys: KeyedRateLimiter<&str, _, _> =
        KeyedRateLimiter::with_clock(policy, 10, tidegate::TokioClock::new());
    keys.try_acquire(&"a")?;
    let (first, other, second) = tokio::join!(keys.acquire(&"a"), keys.acquire(&"b"), keys.acquire(&"a"));
    let waits = [first, other, second].map(|answer| answer.map(Grant::waited));
    assert_eq!(waits, [Ok(100 * MS), Ok(Duration::ZERO), Ok(200 * MS)]);
    Ok(())
}

#[test]
fn a_try_does_not_overtake_a_waiter_for_the_key() {
    let (keys, clock) = one_per_second(10, WhenKeysFull::RefuseNew);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
    let mut waiting = spawn_pending(keys.acquire(&1));
    assert_eq!(keys.status(&1).waiting, 1);
    clock.advance(Duration::from_secs(1));
    assert!(keys.try_acquire(&1).is_err());
    assert_eq!(assert_ready!(waiting.poll()).map(Grant::waited), Ok(Duration::from_secs(1)));
}

#[test]
fn a_dropped_wait_leaves_no_trace() {
    let (keys, clock) = one_per_second(10, WhenKeysFull::RefuseNew);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
    for _ in 0..100 {
        let _waiting = spawn_pending(keys.acquire(&1));
    }
    clock.advance(Duration::from_secs(1));
    assert_eq!(keys.status(&1).available, 1);
    keys.sweep();
    assert!(keys.is_empty(), "it does not stay a limiter forever");
}

#[test]
fn a_key_with_a_waiter_is_not_forgotten() {
    let (keys, clock) = one_per_second(1, WhenKeysFull::EvictLeastUsed);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
    let mut waiting = spawn_pending(keys.acquire(&1));
    assert!(keys.try_acquire(&2).is_err());
    clock.advance(Duration::from_secs(1));
    assert_eq!(assert_ready!(waiting.poll()).map(Grant::waited), Ok(Duration::from_secs(1)));
    drop(waiting);
    // Its state returned to the table, with the owed permits.
    clock.advance(500 * MS);
    assert_eq!(keys.try_acquire(&2).map(drop), Ok(()));
    assert_eq!(keys.status(&2).available, 0);
}

#[test]
fn a_key_that_is_settled_keeps_what_it_owes() {
    let (keys, clock) = one_per_second(10, WhenKeysFull::RefuseNew);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
    drop(keys.limiter(&1));
    keys.sweep();
    assert_eq!(keys.try_acquire(&1), Err(Refusal::Limited { retry_after: Duration::from_secs(1).into() }));
    clock.advance(Duration::from_secs(1));
    keys.sweep();
    assert!(keys.is_empty());
}

#[test]
fn a_rate_of_its_own_stays_until_the_key_is_removed() -> Result<(), Refusal> {
    let (keys, clock) = one_per_second(2, WhenKeysFull::RefuseNew);
    keys.try_acquire(&1)?;
    keys.set_rate(&1, Rate::per_second(10))?;
    clock.advance(Duration::from_secs(60));
    keys.sweep();
    keys.try_acquire(&1)?;
    assert_eq!(keys.try_acquire(&1), Err(Refusal::Limited { retry_after: (100 * MS).into() }));
    keys.try_acquire(&2)?;
    assert_eq!(keys.try_acquire(&2), Err(Refusal::Limited { retry_after: Duration::from_secs(1).into() }));
    assert!(keys.remove(&1));
    assert!(!keys.remove(&1));
    keys.try_acquire(&1)?;
    assert_eq!(keys.try_acquire(&1), Err(Refusal::Limited { retry_after: Duration::from_secs(1).into() }));
    Ok(())
}

#[test]
fn a_key_that_was_paused_can_be_forgotten() -> Result<(), Refusal> {
    let (keys, clock) = one_per_second(1, WhenKeysFull::RefuseNew);
    keys.limiter(&1)?.pause_for(Duration::from_secs(5));
    assert_eq!(keys.try_acquire(&1), Err(Refusal::Paused { retry_after: Duration::from_secs(6).into() }));
    assert!(keys.try_acquire(&2).is_err());
    clock.advance(Duration::from_secs(6));
    keys.try_acquire(&2)?;
    assert_eq!(keys.len(), 1);
    Ok(())
}

#[test]
fn shared_permits_are_reported_and_given_back() -> Result<(), Refusal> {
    let (keys, _) = one_per_second(1, WhenKeysFull::ShareOne);
    keys.try_acquire(&1)?;
    keys.try_acquire(&2)?;
    assert_eq!((keys.status(&2).available, keys.status(&3).available), (0, 0));
    keys.refund(&2, 1);
    keys.try_acquire(&3)?;
    Ok(())
}

#[test]
fn a_request_with_a_key() -> Result<(), Refusal> {
    let (keys, clock) = one_per_second(2, WhenKeysFull::RefuseNew);
    keys.try_acquire_many(&1, Request::permits(1))?;
    keys.try_acquire_many(&1, Request::permits(1).exempt())?;
    let (mut low, mut high) = (
        spawn(keys.acquire_many(&1, Request::permits(1))),
        spawn(keys.acquire_many(&1, Request::permits(1).priority(1))),
    );
    assert!(low.poll().is_pending() && high.poll().is_pending());
    clock.advance(Duration::from_secs(1));
    assert_pending!(low.poll());
    assert_eq!(assert_ready!(high.poll()).map(Grant::waited), Ok(Duration::from_secs(1)));
    Ok(())
}

#[test]
fn a_waiter_for_a_removed_key_is_served() {
    let (keys, clock) = one_per_second(2, WhenKeysFull::RefuseNew);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
    let mut waiting = spawn_pending(keys.acquire(&1));
    assert!(keys.remove(&1));
    assert_eq!(keys.len(), 0);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()), "it starts as new");
    clock.advance(Duration::from_secs(1));
    assert_eq!(assert_ready!(waiting.poll()).map(Grant::waited), Ok(Duration::from_secs(1)));
}

#[test]
fn one_that_starts_empty_starts_empty_again() -> Result<(), Refusal> {
    let clock = ManualClock::new();
    let policy = SmoothBursty::new(Rate::per_second(10));
    let keys = KeyedRateLimiter::with_clock(policy, 10, clock.clone());
    keys.try_acquire(&1)?;
    clock.advance(Duration::from_secs(1));
    // Less than one second's worth is saved: 100 ms of it were spent.
    keys.sweep();
    assert_eq!(keys.len(), 1);
    clock.advance(100 * MS);
    keys.sweep();
    assert_eq!((keys.len(), keys.status(&1).available), (0, 1));
    Ok(())
}

#[test]
fn any_policy_can_be_keyed() -> Result<(), Box<dyn std::error::Error>> {
    for text in [
        "token_bucket 2/s burst 2",
        "leaky_bucket 2/s",
        "fixed_window 2/s",
        "sliding_window 2/s cells 4",
        "sliding_estimate 2/s",
        "sliding_log 2/s",
        "smooth_bursty 2/s",
        "smooth_warming_up 2/s warm_up 1s",
        "unlimited",
        // Bug: the keys of these two were never forgotten.
        "deny_all",
        "sliding_log zero",
    ] {
        let clock = ManualClock::new();
        let policy = || text.parse::<AnyPolicy>().map_err(|error| format!("{text}: {error}"));
        let keys = KeyedRateLimiter::with_clock(policy()?, 10, clock.clone());
        let plain = RateLimiter::with_clock(policy()?, clock.clone());
        for step in 0..40u32 {
            assert_eq!(keys.try_acquire(&1), plain.try_acquire(), "{text} at step {step}");
            clock.advance(if step % 3 == 0 { 10 * MS } else { 170 * MS });
        }
        clock.advance(Duration::from_secs(100));
        keys.sweep();
        assert!(keys.is_empty(), "{text}");
    }
    Ok(())
}

type Line = RateLimiter<TokenBucket, ManualClock>;

fn is_shareable<T: Send + Sync + 'static>(_: &T) {}

#[test]
fn it_can_be_shared_and_its_futures_sent() {
    let (keys, _) = one_per_second(1, WhenKeysFull::RefuseNew);
    is_shareable(&keys);
    let is_send = |_: &dyn Send| ();
    is_send(&keys.acquire(&1));
    is_send(&keys.acquire_within(&1, MS));
    let line: Option<Line> = keys.limiter(&1).ok();
    is_shareable(&line);
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Try(u64, u32),
    Wait(u64, u32),
    Drop(usize),
    Refund(u64, u32),
    Handle(u64),
    Release,
    Advance(u64),
    Sweep,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        8 => (0..6u64, 1..5u32).prop_map(|(key, n)| Act::Try(key, n)),
        4 => (0..6u64, 1..4u32).prop_map(|(key, n)| Act::Wait(key, n)),
        2 => (0..4usize).prop_map(Act::Drop),
        1 => (0..6u64, 1..3u32).prop_map(|(key, n)| Act::Refund(key, n)),
        1 => (0..6u64).prop_map(Act::Handle),
        1 => Just(Act::Release),
        5 => (0..1500u64).prop_map(Act::Advance),
        1 => Just(Act::Sweep),
    ];
    proptest::collection::vec(act, 1..120)
}

proptest! {
    /// Compares with one plain limiter per key, kept forever. A key without room is refused and
    /// leaves no trace. Every other request gets equal results from both, whichever keys were
    /// forgotten, moved into a line, or moved back. (The rate is in whole nanoseconds: at other
    /// rates a bucket that lacks a tick counts as full.)
    #[test]
    fn as_if_nothing_was_ever_forgotten(acts in acts(), max_keys in 1..7usize, windowed in any::<bool>()) {
        let text = if windowed { "sliding_log 3/s" } else { "token_bucket 4/s burst 3" };
        let policy = || text.parse::<AnyPolicy>();
        let clock = ManualClock::new();
        let keys = KeyedRateLimiter::with_clock(policy()?, max_keys, clock.clone());
        let all: HashMap<u64, _> = (0..6)
            .map(|key| Ok((key, RateLimiter::with_clock(policy()?, clock.clone()))))
            .collect::<Result<_, tidegate::ConfigError>>()?;
        let is_known = |key: u64| keys.iter().any(|(known, _)| known == key);
        let (mut handles, mut waiting) = (Vec::new(), Vec::<(u64, Future, Future)>::new());
        // The time at which a waiter of a key saw its grant: the key is kept for the catch-up,
        // because the next request may be charged as of an earlier time.
        let mut seen = HashMap::<u64, Nanos>::new();
        for act in acts {
            match act {
                Act::Try(key, n) => match keys.try_acquire_many(&key, n) {
                    Err(Refusal::TooManyKeys { limit }) => {
                        prop_assert_eq!((limit, keys.len(), is_known(key)), (max_keys, max_keys, false));
                        let mut held = keys.iter().map(|(key, status)| status.full_in.is_zero()
                            && !handles.iter().any(|(held, _)| *held == key)
                            && seen.get(&key).is_none_or(|seen| {
                                clock.now().saturating_since(*seen).as_duration() > Duration::from_millis(10)
                            }));
                        prop_assert!(!waiting.is_empty() || !held.any(|free| free), "there was room");
                    }
                    answer => prop_assert_eq!(answer, all[&key].try_acquire_many(n)),
                },
                Act::Wait(key, n) => {
                    let (keys, plain) = (keys.clone(), all[&key].clone());
                    let mut one: Future = Box::pin(async move { keys.acquire_many(&key, n).await });
                    let mut other: Future = Box::pin(async move { plain.acquire_many(n).await });
                    let answer = poll(&mut one);
                    if !matches!(answer, Poll::Ready(Err(Refusal::TooManyKeys { .. }))) {
                        prop_assert_eq!(answer, poll(&mut other));
                        if answer.is_pending() {
                            waiting.push((key, one, other));
                        }
                    }
                }
                Act::Drop(i) => drop((i < waiting.len()).then(|| waiting.remove(i))),
                Act::Refund(key, n) => {
                    keys.refund(&key, n);
                    all[&key].refund(n);
                }
                Act::Handle(key) => handles.extend(keys.limiter(&key).map(|limiter| (key, limiter))),
                Act::Release => handles.clear(),
                Act::Advance(ms) => clock.advance(Duration::from_millis(ms)),
                Act::Sweep => keys.sweep(),
            }
            let mut still = Vec::new();
            for (key, mut one, mut other) in waiting {
                let answer = poll(&mut one);
                prop_assert_eq!(answer, poll(&mut other));
                if answer.is_pending() {
                    still.push((key, one, other));
                } else {
                    seen.insert(key, clock.now());
                }
            }
            waiting = still;
            prop_assert!(keys.len() <= max_keys);
            for (key, plain) in &all {
                prop_assert_eq!(keys.status(key), plain.status(), "key {}", key);
            }
        }
    }
}

/// Known or not, waiting or not, with one policy or two: a key behaves like a separate limiter.
#[test]
fn a_key_is_lowered_and_gives_its_available_permits() {
    use tidegate::{FixedWindow, Policy, Statistics};

    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(10), 20).and(FixedWindow::new(Rate::per_minute(50)));
    let statistics = std::sync::Arc::new(Statistics::new());
    let keys = KeyedRateLimiter::with_clock(policy, 2, clock.clone()).observed_by(statistics.clone());
    let up_to = |key, most| keys.try_acquire_many(&key, Request::up_to(most)).map(Grant::permits);
    // A new key is added.
    assert_eq!(keys.keep_at_most(&1, 12), Ok(8));
    assert_eq!((up_to(1, 5), up_to(1, 100), up_to(1, 100).is_err()), (Ok(5), Ok(7), true));
    assert_eq!((up_to(2, 100), keys.keep_at_most(&2, 0)), (Ok(20), Ok(0)));
    assert_eq!(statistics.snapshot().permits, 32);
    assert_eq!(keys.keep_at_most(&3, 1), Err(Refusal::TooManyKeys { limit: 2 }));
    // A key with waiting requests.
    let mut wait = spawn_pending(keys.acquire_many(&1, Request::permits(15).at_least(10)));
    clock.advance(Duration::from_millis(800));
    assert_eq!(keys.keep_at_most(&1, 3), Ok(5));
    clock.jump(Duration::from_millis(900));
    assert_eq!(assert_ready!(wait.poll()).map(Grant::permits), Ok(12));
    assert_eq!(keys.blocking_acquire_many(&2, Request::up_to(100)).map(Grant::permits), Ok(17));
}

#[tokio::test]
async fn a_handle_to_keys_has_calls_by_key() {
    let (keys, clock) = one_per_second(1, WhenKeysFull::RefuseNew);
    let any = AnyKeyed::from(keys);
    let _permits = any.try_acquire(1u64).expect("the permit");
    assert_eq!(any.try_acquire_many(1u64, 1).expect_err("one permit").retry_after(), Some(1000 * MS));
    assert!(any.acquire_now(1u64, 1).await.is_err());
    assert!(any.acquire_within(1u64, 999 * MS).await.is_err());
    let mut wait = spawn_pending(any.acquire(1u64));
    clock.advance(1000 * MS);
    assert_eq!(assert_ready!(wait.poll()).expect("a permit").waited(), 1000 * MS);
    for answer in [any.try_acquire(2u64), any.acquire_now(2u64, 1).await, any.acquire_many(2u64, 1).await] {
        assert_eq!(answer.expect_err("no room").refusal(), Some(Refusal::TooManyKeys { limit: 1 }));
    }
}

#[test]
fn an_exempt_reservation_passes_and_adds_no_key() -> Result<(), Refusal> {
    // Bug: the reservation of an exempt request was made through a limiter of its key. So the
    // request was refused for exceeding the burst, for asking for no permits, for lack of room, and
    // after the close.
    for when_full in [WhenKeysFull::RefuseNew, WhenKeysFull::ShareOne, WhenKeysFull::EvictLeastUsed] {
        let (keys, _) = one_per_second(1, when_full);
        let statistics = Arc::new(Statistics::new());
        let keys = keys.observed_by(statistics.clone());
        let pass = |key, n| {
            let mut reservation = keys.reserve(&key, Request::permits(n).exempt())?;
            assert_eq!(reservation.due_in(), Duration::ZERO);
            assert_eq!(reservation.blocking_claim()?.permits(), 0);
            reservation.settle(n);
            Ok::<_, Refusal>(())
        };
        [0, 1, 1000].into_iter().try_for_each(|n| pass(1, n))?;
        assert!(keys.is_empty());
        keys.try_acquire(&1)?;
        // A known key, a key without room, and a key with a limiter.
        [0, 1, 1000].into_iter().try_for_each(|n| pass(1, n).and(pass(2, n)))?;
        let limiter = keys.limiter(&1)?;
        [0, 1, 1000].into_iter().try_for_each(|n| pass(1, n).and(pass(2, n)))?;
        assert!(keys.close());
        [0, 1, 1000].into_iter().try_for_each(|n| pass(1, n).and(pass(2, n)))?;
        assert_eq!((keys.len(), limiter.try_acquire()), (1, Err(Refusal::Closed)), "{when_full:?}");
        let counts = statistics.snapshot();
        assert_eq!((counts.exempted, counts.granted, counts.refused()), (21, 1, 1), "{when_full:?}");
    }
    Ok(())
}

/// Searches for room came back to a shard with a small table before they had come to all slots of
/// the larger ones, and a new key was refused while half of all keys were idle.
#[test]
fn a_full_table_of_idle_keys_takes_as_many_new_keys() {
    for max_keys in [513, 700, 1_000, 2_000] {
        for _ in 0..20 {
            let clock = ManualClock::new();
            let policy = TokenBucket::new(Rate::per_second(1), 3);
            let keys = KeyedRateLimiter::with_clock(policy, max_keys, clock.clone());
            for key in 0..max_keys {
                assert!(keys.try_acquire(&key).is_ok());
            }
            clock.advance(Duration::from_secs(10));
            for key in 0..max_keys {
                let answer = keys.try_acquire(&(max_keys + key));
                assert!(answer.is_ok(), "{key} of {max_keys}: {answer:?}");
            }
            assert_eq!(keys.try_acquire(&usize::MAX), Err(Refusal::TooManyKeys { limit: max_keys }));
        }
    }
}
