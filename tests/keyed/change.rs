//! A change of the terms of all keys, on a manual clock: every key follows it like a plain limiter
//! would.

use std::collections::HashMap;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::support::counted::Counted;
use crate::support::polled::{Future, poll};
use crate::support::{MS, spawn_pending};
use proptest::prelude::*;
use tidegate::policy::{Change, Keep};
use tidegate::{
    AnyPolicy, FixedWindow, KeyedRateLimiter, LeakyBucket, ManualClock, Nanos, Policy, PolicyError, Rate,
    RateLimiter, Refusal, SlidingWindow, SmoothBursty, TokenBucket, WhenKeysFull,
};

type Keys = KeyedRateLimiter<u64, TokenBucket, ManualClock>;

const SECOND: Duration = Duration::from_secs(1);

/// One permit per second for each key, and no burst.
fn one_per_second(max_keys: usize) -> (Keys, ManualClock) {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    (KeyedRateLimiter::with_clock(policy, max_keys, clock.clone()), clock)
}

fn limited(retry_after: Duration) -> Result<(), Refusal> {
    Err(Refusal::Limited { retry_after: retry_after.into() })
}

#[test]
fn known_keys_and_new_ones_have_the_new_rate() {
    let (keys, _) = one_per_second(10);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
    keys.set_rate_all(Rate::per_second(10));
    assert_eq!(keys.try_acquire(&1).map(drop), limited(100 * MS));
    assert_eq!([2, 2].map(|key| keys.try_acquire(&key).map(drop)), [Ok(()), limited(100 * MS)]);
    assert_eq!(tidegate::Policy::rate(&keys.policy()), Rate::per_second(10));
}

/// Bug: a clock that panicked left some keys at the old rate, or in no pause.
#[test]
fn all_keys_change_together_although_the_clock_panics() {
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    for readings in 0..200 {
        let counter = left.clone();
        let clock = Counted::running(move |_, _| {
            let left = counter.load(Ordering::Relaxed);
            counter.store(left.checked_sub(1).unwrap_or(usize::MAX), Ordering::Relaxed);
            assert!(left > 0, "a clock that panics");
        });
        let keys = KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1), 400, clock);
        let limiters = [0, 1, 2].map(|key| keys.limiter(&key).expect("room"));
        let calls: [&dyn Fn(); 3] =
            [&|| keys.set_rate_all(Rate::per_second(10)), &|| keys.pause_all_for(SECOND), &|| {
                assert!(keys.resume_all())
            }];
        for call in calls {
            left.store(readings, Ordering::Relaxed);
            let _ = catch_unwind(AssertUnwindSafe(call));
            left.store(usize::MAX, Ordering::Relaxed);
            let of_key = |key| {
                let status = keys.status(&key);
                (status.rate, status.paused_for)
            };
            let first = of_key(0);
            assert!((1..300).all(|key| of_key(key) == first), "{readings}");
            let of_limiter = |limiter: &RateLimiter<_, _>| {
                let status = limiter.status();
                (status.rate, status.paused_for)
            };
            assert!(limiters.iter().all(|limiter| of_limiter(limiter) == first), "{readings}");
            keys.pause_all_for(SECOND);
        }
    }
}

#[test]
fn what_a_key_has_is_carried_over() -> Result<(), Box<dyn Error>> {
    let policy = TokenBucket::new(Rate::per_second(5), 10);
    let keys = KeyedRateLimiter::with_clock(policy, 10, ManualClock::new());
    keys.try_acquire_many(&1, 5)?;
    keys.change_all(Change::only_burst(20))?;
    assert_eq!([1, 2].map(|key| keys.status(&key).available), [5, 20]);
    keys.change_all(Change::only_burst(40).keep(Keep::Ratio))?;
    assert_eq!(keys.status(&1).available, 10);
    keys.change_all(Change::reset())?;
    assert_eq!(keys.status(&1).available, 40);
    Ok(())
}

#[test]
fn an_error_changes_nothing() -> Result<(), Refusal> {
    let keys = KeyedRateLimiter::with_clock(SmoothBursty::new(Rate::per_second(1)), 10, ManualClock::new());
    keys.try_acquire(&1)?;
    let change = Change::rate(Rate::per_second(10)).burst(5);
    assert_eq!(keys.change_all(change), Err(PolicyError::NoBurst { burst: 5, policy: "smooth_bursty" }));
    assert_eq!(keys.try_acquire(&1).map(drop), limited(SECOND));
    assert_eq!(
        keys.limiter(&1)?.change(change),
        Err(PolicyError::NoBurst { burst: 5, policy: "smooth_bursty" })
    );
    // Nothing was changed for this key, so it follows all others.
    keys.set_rate_all(Rate::per_second(2));
    assert_eq!(keys.limiter(&1)?.rate(), Rate::per_second(2));
    Ok(())
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn waiters_are_moved_at_once() -> Result<(), Refusal> {
    let policy = TokenBucket::new(Rate::per_minute(1), 1);
    let keys: KeyedRateLimiter<u64, _, _> =
        KeyedRateLimiter::with_clock(policy, 10, tidegate::TokioClock::new());
    let (first, second) = (keys.clone(), keys.clone());
    keys.try_acquire(&1)?;
    keys.try_acquire(&2)?;
    let waiting = [
        tokio::spawn(async move { first.acquire(&1).await }),
        tokio::spawn(async move { second.acquire(&2).await }),
    ];
    tokio::time::sleep(10 * MS).await;
    keys.set_rate_all(Rate::per_second(10));
    for waiting in waiting {
        // Only part of a permit was added before the change. The alarm is set anew, and only the
        // alarm polls the future.
        let waited = waiting.await.map_err(|_| Refusal::Displaced)??.waited();
        assert!(waited > 100 * MS && waited <= 111 * MS, "{waited:?}");
    }
    Ok(())
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_waiter_that_becomes_due_is_woken_and_one_that_never_will_be_is_refused() -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_hour(1), 5);
    let keys = KeyedRateLimiter::with_clock(policy, 10, clock.clone());
    keys.try_acquire_many(&1, 5)?;
    keys.try_acquire_many(&2, 5)?;
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    let (mut one, mut four) = (Box::pin(keys.acquire(&1)), Box::pin(keys.acquire_many(&2, 4)));
    assert!(one.as_mut().poll(&mut context).is_pending() && four.as_mut().poll(&mut context).is_pending());
    keys.change_all(Change::only_burst(3))?;
    assert_eq!(woken.0.load(Ordering::Relaxed), 1, "four can never be granted");
    assert!(matches!(four.as_mut().poll(&mut context), Poll::Ready(Err(Refusal::ExceedsLimit { .. }))));
    keys.change_all(Change::reset())?;
    assert_eq!(woken.0.load(Ordering::Relaxed), 2);
    assert!(matches!(one.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    Ok(())
}

#[test]
fn a_key_with_terms_of_its_own_keeps_them() -> Result<(), Refusal> {
    let (keys, _) = one_per_second(10);
    keys.set_rate(&1, Rate::per_minute(1))?;
    keys.set_rate_all(Rate::per_second(10));
    assert_eq!([1, 1].map(|key| keys.try_acquire(&key).map(drop)), [Ok(()), limited(60 * SECOND)]);
    assert_eq!(keys.limiter(&1)?.rate(), Rate::per_minute(1));
    keys.remove(&1);
    assert_eq!([1, 1].map(|key| keys.try_acquire(&key).map(drop)), [Ok(()), limited(100 * MS)]);
    Ok(())
}

#[test]
fn a_key_that_was_reset_or_bounded_goes_along() -> Result<(), Refusal> {
    let (keys, clock) = one_per_second(10);
    keys.try_acquire(&1)?;
    keys.limiter(&1)?.reset();
    keys.try_acquire(&1)?;
    keys.limiter(&2)?.set_catch_up(MS);
    keys.try_acquire(&2)?;
    keys.set_rate_all(Rate::per_second(10));
    assert_eq!([1, 2].map(|key| keys.try_acquire(&key).map(drop)), [limited(100 * MS), limited(100 * MS)]);
    clock.advance(SECOND);
    keys.sweep();
    assert_eq!(keys.iter().map(|(key, _)| key).collect::<Vec<_>>(), [2], "a key with its own setting stays");
    Ok(())
}

#[test]
fn a_line_that_went_along_settles() -> Result<(), Refusal> {
    // At rate zero a state is a time before the one from which nothing accrues.
    for (rate, rest) in [(Rate::per_second(10), 300 * MS), (Rate::ZERO, 500 * MS)] {
        let (keys, clock) = one_per_second(1);
        let keys = keys.when_full(WhenKeysFull::EvictLeastUsed);
        keys.try_acquire(&1)?;
        let waiting = spawn_pending(keys.acquire(&1));
        clock.advance(500 * MS);
        keys.set_rate_all(rate);
        drop(waiting);
        clock.advance(20 * MS);
        keys.sweep();
        keys.set_rate_all(Rate::per_second(1));
        // Half a permit, plus what accrued at the rate in between.
        assert_eq!(keys.status(&1).full_in, rest);
        // Only a key without a line gives its slot to another before it is idle (as new).
        keys.try_acquire(&2)?;
        assert_eq!(keys.iter().map(|(key, _)| key).collect::<Vec<_>>(), [2]);
    }
    Ok(())
}

#[test]
fn keys_without_room_change_too() -> Result<(), Refusal> {
    let (keys, _) = one_per_second(1);
    let keys = keys.when_full(WhenKeysFull::ShareOne);
    keys.try_acquire(&1)?;
    keys.try_acquire(&2)?;
    assert_eq!(keys.try_acquire(&3).map(drop), limited(SECOND));
    keys.set_rate_all(Rate::per_second(10));
    assert_eq!([1, 2, 3].map(|key| keys.try_acquire(&key).map(drop)), [limited(100 * MS); 3]);
    Ok(())
}

#[test]
fn a_window_that_changed_twice_still_counts() -> Result<(), Refusal> {
    let clock = ManualClock::new();
    let keys = KeyedRateLimiter::with_clock(SlidingWindow::new(Rate::per_second(4), 4), 10, clock.clone());
    keys.set_rate_all(Rate::per_minute(4));
    keys.try_acquire_many(&1, 4)?;
    // Its line has the new terms, and so does the state that the line leaves behind.
    drop(keys.limiter(&1)?);
    keys.sweep();
    keys.set_rate_all(Rate::per_hour(4));
    clock.advance(120 * SECOND);
    assert!(keys.try_acquire(&1).is_err());
    keys.set_rate_all(Rate::per_second(4));
    clock.advance(SECOND);
    assert_eq!(keys.try_acquire_many(&1, 4).map(drop), Ok(()));
    Ok(())
}

#[test]
fn a_capacity_can_be_changed() -> Result<(), Box<dyn Error>> {
    let policy = LeakyBucket::new(Rate::per_second(10)).capacity(0);
    let keys = KeyedRateLimiter::with_clock(policy, 10, ManualClock::new());
    keys.try_acquire(&1)?;
    assert!(keys.reserve(&1, 1).is_err());
    keys.change_all(Change::default().capacity(1))?;
    let _reservation = keys.reserve(&1, 1)?;
    assert!(keys.reserve(&1, 1).is_err());
    Ok(())
}

#[test]
fn a_large_burst_of_its_own_can_be_reserved() -> Result<(), Box<dyn Error>> {
    let (keys, _) = one_per_second(10);
    keys.limiter(&1)?.change(Change::only_burst(5))?;
    assert_eq!(keys.reserve(&1, 5)?.due_in(), 4 * SECOND);
    assert!(keys.reserve(&2, 5).is_err());
    Ok(())
}

#[test]
fn no_permit_is_granted_twice_while_all_change() {
    const KEYS: u32 = 50;
    let policy = TokenBucket::new(Rate::per_second(10), 20);
    let keys = KeyedRateLimiter::with_clock(policy, 50, ManualClock::new());
    let takes = || (0..5000u32).filter(|i| keys.try_acquire(&(i % KEYS)).is_ok()).count();
    let granted: usize = std::thread::scope(|scope| {
        let takers = [(); 2].map(|()| scope.spawn(takes));
        for _ in 0..100 {
            // The spent permits are worth more time, and then less.
            keys.set_rate_all(Rate::per_hour(1));
            keys.set_rate_all(Rate::per_second(10));
        }
        takers.into_iter().map(|taker| taker.join().unwrap_or(usize::MAX)).sum()
    });
    assert_eq!(granted, 1000);
}

#[test]
fn a_line_changes_at_the_time_of_its_shard() -> Result<(), Refusal> {
    let policy = TokenBucket::new(Rate::per_second(1), 1000);
    let slow = Counted::running(|clock, _| clock.advance(SECOND));
    let keys = KeyedRateLimiter::with_clock(policy, 10, slow);
    keys.try_acquire_many(&1, 1000)?;
    drop(keys.limiter(&1));
    // From here on no permits are added, so the time of a reading does not matter.
    keys.set_rate_all(Rate::ZERO);
    let in_line = keys.status(&1).available;
    keys.sweep();
    assert!((1..100).contains(&in_line));
    assert_eq!(keys.status(&1).available, in_line);
    Ok(())
}

/// A waker that makes another change, like one that polls at once would.
struct ChangesAgain(Keys);

impl Wake for ChangesAgain {
    fn wake(self: Arc<Self>) {
        self.0.set_rate_all(Rate::per_second(7));
        let _ = self.0.try_acquire(&1);
    }
}

#[test]
fn a_waker_may_change_all_again() -> Result<(), Refusal> {
    let (keys, _) = one_per_second(10);
    keys.try_acquire(&1)?;
    let waker = Waker::from(Arc::new(ChangesAgain(keys.clone())));
    let mut waiting = Box::pin(keys.acquire(&1));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    keys.set_rate_all(Rate::UNLIMITED);
    assert_eq!(tidegate::Policy::rate(&keys.policy()), Rate::per_second(7));
    assert_eq!(tidegate::Policy::rate(keys.limiter(&1)?.policy()), Rate::per_second(7));
    Ok(())
}

#[test]
fn the_policy_of_a_key_reports_what_a_grant_took() -> Result<(), Box<dyn Error>> {
    let window = FixedWindow::new(Rate::per_second(5));
    let keys: KeyedRateLimiter<u64, _, _> = KeyedRateLimiter::with_clock(window, 10, ManualClock::new());
    let limiter = keys.limiter(&1)?;
    let (policy, now) = (limiter.policy(), Nanos::ZERO);
    let charge = policy.try_acquire(&policy.start(now), now, 3)?;
    assert_eq!(policy.permits(charge), 3);
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Try(u64, u32),
    Wait(u64, u32),
    Drop(usize),
    Refund(u64, u32),
    Handle(u64),
    Release,
    Own(u64, Rate),
    Reset(u64),
    Remove(u64),
    Advance(u64),
    Sweep,
    All(Option<Rate>, Option<Keep>),
}

fn some_rate() -> impl Strategy<Value = Rate> {
    // Whole nanoseconds, and no more permits than the log has room for.
    let counts = proptest::sample::select(vec![1u64, 2, 4, 5, 8]);
    let limits =
        prop_oneof![6 => counts.clone().prop_map(Rate::per_second), 3 => counts.prop_map(Rate::per_minute)];
    prop_oneof![9 => limits, 1 => Just(Rate::ZERO), 1 => Just(Rate::UNLIMITED)]
}

fn some_acts() -> impl Strategy<Value = Vec<Act>> {
    let keep = prop_oneof![Just(Keep::Count), Just(Keep::Ratio), Just(Keep::Nothing)];
    let key = || 0..3u64;
    let act = prop_oneof![
        8 => (key(), 1..5u32).prop_map(|(key, n)| Act::Try(key, n)),
        4 => (key(), 1..4u32).prop_map(|(key, n)| Act::Wait(key, n)),
        2 => (0..4usize).prop_map(Act::Drop),
        1 => (key(), 1..3u32).prop_map(|(key, n)| Act::Refund(key, n)),
        1 => key().prop_map(Act::Handle),
        1 => Just(Act::Release),
        1 => (key(), some_rate()).prop_map(|(key, rate)| Act::Own(key, rate)),
        1 => key().prop_map(Act::Reset),
        1 => key().prop_map(Act::Remove),
        6 => (0..2000u64).prop_map(Act::Advance),
        2 => Just(Act::Sweep),
        4 => (proptest::option::weighted(0.9, some_rate()), proptest::option::of(keep))
            .prop_map(|(rate, keep)| Act::All(rate, keep)),
    ];
    proptest::collection::vec(act, 1..80)
}

pub(super) const POLICIES: [&str; 11] = [
    "token_bucket 4/s burst 3",
    "token_bucket 4/s burst 3 start_with 1",
    "token_bucket 4/s burst 3 interval_refill",
    "leaky_bucket 4/s nodelay 2 capacity 5",
    "fixed_window 4/s",
    "fixed_window 4/s from_first_grant",
    "sliding_window 4/s cells 4",
    "sliding_estimate 4/s",
    "sliding_log 4/s with_capacity 8",
    "smooth_bursty 4/s",
    "smooth_warming_up 4/s warm_up 2s",
];

/// The limiter of all keys, and a plain limiter for each known key.
struct Beside {
    keys: KeyedRateLimiter<u64, AnyPolicy, ManualClock>,
    clock: ManualClock,
    plain: HashMap<u64, RateLimiter<AnyPolicy, ManualClock>>,
    /// The keys with their own rate.
    own: Vec<u64>,
}

impl Beside {
    fn new(text: &str) -> Result<Beside, TestCaseError> {
        let clock = ManualClock::new();
        let keys = KeyedRateLimiter::with_clock(text.parse()?, 10, clock.clone());
        Ok(Beside { keys, clock, plain: HashMap::new(), own: Vec::new() })
    }

    /// Returns the plain limiter of a key; a new one for an unknown key.
    fn of(&self, key: u64) -> RateLimiter<AnyPolicy, ManualClock> {
        let new = || RateLimiter::with_clock(self.keys.policy(), self.clock.clone());
        self.plain.get(&key).cloned().unwrap_or_else(new)
    }

    /// Performs the act on both of them.
    fn act<T>(
        &mut self,
        key: u64,
        act: impl FnOnce(
            &KeyedRateLimiter<u64, AnyPolicy, ManualClock>,
            &RateLimiter<AnyPolicy, ManualClock>,
        ) -> T,
    ) -> T {
        let plain = self.of(key);
        let result = act(&self.keys, &plain);
        if self.keys.iter().any(|(known, _)| known == key) {
            self.plain.insert(key, plain);
        }
        result
    }

    /// Drops the plain limiters of forgotten keys, and compares the rest.
    fn compare(&mut self, text: &str) -> Result<(), TestCaseError> {
        let known: HashMap<_, _> = self.keys.iter().collect();
        for (key, plain) in std::mem::take(&mut self.plain) {
            match known.get(&key) {
                Some(status) => {
                    prop_assert_eq!(*status, plain.status(), "{}, key {}", text, key);
                    self.plain.insert(key, plain);
                }
                None => {
                    prop_assert!(
                        plain.status().full_in.is_zero(),
                        "{text}, key {key} was forgotten too soon"
                    );
                    self.own.retain(|own| *own != key);
                }
            }
        }
        prop_assert_eq!(known.len(), self.plain.len());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Every key follows the change: a state in the table, a line, a key that moved into a line and
    /// back, and a key with waiters.
    #[test]
    fn every_key_goes_along_as_a_limiter_of_its_own(which in 0..POLICIES.len(), acts in some_acts()) {
        let text = POLICIES[which];
        let mut both = Beside::new(text)?;
        let (mut handles, mut waiting) = (Vec::new(), Vec::<(Future, Future)>::new());
        for act in acts {
            match act {
                Act::Try(key, n) => {
                    let answers = both.act(key, |keys, plain| (keys.try_acquire_many(&key, n), plain.try_acquire_many(n)));
                    prop_assert_eq!(answers.0, answers.1, "{}", text);
                }
                Act::Wait(key, n) => {
                    let (one, other) = both.act(key, |keys, plain| {
                        let (keys, plain) = (keys.clone(), plain.clone());
                        let mut one: Future = Box::pin(async move { keys.acquire_many(&key, n).await });
                        let mut other: Future = Box::pin(async move { plain.acquire_many(n).await });
                        let answers = (poll(&mut one), poll(&mut other));
                        (answers, answers.0.is_pending().then_some((one, other)))
                    });
                    prop_assert_eq!(one.0, one.1, "{}", text);
                    waiting.extend(other);
                }
                Act::Drop(i) => drop((i < waiting.len()).then(|| waiting.remove(i))),
                Act::Refund(key, n) => both.act(key, |keys, plain| {
                    keys.refund(&key, n);
                    plain.refund(n);
                }),
                Act::Handle(key) => handles.push(both.act(key, |keys, _| keys.limiter(&key))),
                Act::Release => handles.clear(),
                Act::Own(key, rate) => {
                    both.act(key, |keys, plain| {
                        plain.set_rate(rate);
                        keys.set_rate(&key, rate)
                    })?;
                    both.own.push(key);
                }
                Act::Reset(key) => both.act(key, |keys, plain| {
                    plain.reset();
                    keys.limiter(&key).map(|limiter| limiter.reset())
                })?,
                Act::Remove(key) => {
                    // Waiters of the removed line are still served, together with the plain
                    // limiter's waiters.
                    prop_assert_eq!(both.keys.remove(&key), both.plain.remove(&key).is_some());
                    both.own.retain(|own| *own != key);
                }
                Act::Advance(ms) => both.clock.advance(Duration::from_millis(ms)),
                Act::Sweep => both.keys.sweep(),
                Act::All(rate, keep) => {
                    let change = rate.map_or(Change::default(), Change::rate);
                    let change = keep.map_or(change, |keep| change.keep(keep));
                    both.keys.change_all(change)?;
                    for (_, plain) in both.plain.iter().filter(|(key, _)| !both.own.contains(key)) {
                        plain.change(change)?;
                    }
                }
            }
            let mut still = Vec::new();
            for (mut one, mut other) in waiting {
                let answer = poll(&mut one);
                prop_assert_eq!(answer, poll(&mut other), "{}", text);
                if answer.is_pending() {
                    still.push((one, other));
                }
            }
            waiting = still;
            both.compare(text)?;
        }
    }
}
