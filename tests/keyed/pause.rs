//! A pause of all keys pauses the limiter of each key, including keys added later.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::spawn_pending;
use proptest::prelude::*;
use tidegate::policy::{AnyPolicy, Change};
use tidegate::{
    Keep, KeyedAllOf, KeyedRateLimiter, ManualClock, Nanos, Pause, Plan, Policy, Rate, RateLimiter, Refusal,
    Request, Statistics, TokenBucket, WhenKeysFull,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

type KeysOf<P> = KeyedRateLimiter<u32, P, ManualClock>;
type Keys = KeysOf<AnyPolicy>;

fn any(text: &str) -> AnyPolicy {
    text.parse().expect("a policy")
}

fn keys(text: &str) -> (Keys, ManualClock) {
    let clock = ManualClock::new();
    (KeyedRateLimiter::with_clock(any(text), 1000, clock.clone()), clock)
}

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    Take(u32, u32),
    Refund(u32, u32),
    Pause(u64),
    Resume,
    Limiter(u32),
    Remove(u32),
    Rate(u64),
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..700).prop_map(Step::Advance),
        6 => (0u32..4, 1u32..4).prop_map(|(key, n)| Step::Take(key, n)),
        1 => (0u32..4, 1u32..4).prop_map(|(key, n)| Step::Refund(key, n)),
        2 => (0u64..900).prop_map(Step::Pause),
        1 => Just(Step::Resume),
        1 => (0u32..4).prop_map(Step::Limiter),
        1 => (4u32..6).prop_map(Step::Remove),
        1 => prop_oneof![Just(5u64), Just(20)].prop_map(Step::Rate),
        1 => Just(Step::Sweep),
    ]
}

/// Runs the steps with all keys and with a plain limiter for each key. `of` returns the policy of a
/// key, and whether the key has the common rate.
fn agree<P: Policy + Clone>(
    keys: &KeysOf<P>,
    clock: &ManualClock,
    of: impl Fn(u32) -> (P, bool),
    keeps: bool,
    steps: &[Step],
) {
    let plain = |key| RateLimiter::with_clock(of(key).0, clock.clone());
    let limiters: HashMap<u32, _> = (0..4).map(|key| (key, plain(key))).collect();
    for (index, step) in steps.iter().enumerate() {
        let context = format!("step {index}: {step:?}");
        match *step {
            Step::Advance(ms) => clock.advance(Duration::from_millis(ms)),
            Step::Take(key, n) => {
                let expected = limiters[&key].try_acquire_many(n);
                assert_eq!(keys.try_acquire_many(&key, n), expected, "{context}");
            }
            Step::Refund(key, n) => {
                keys.refund(&key, n);
                limiters[&key].refund(n);
            }
            Step::Pause(ms) => {
                let pause = Pause::lasting(Duration::from_millis(ms));
                let pause = if keeps { pause.keep_permits() } else { pause };
                keys.pause_all(pause);
                limiters.values().for_each(|limiter| limiter.pause(pause));
            }
            Step::Resume => {
                keys.resume_all();
                for limiter in limiters.values() {
                    limiter.resume();
                }
            }
            Step::Limiter(key) => drop(keys.limiter(&key)),
            // Keys that no model has.
            Step::Remove(key) => {
                let _ = keys.try_acquire(&key);
                keys.remove(&key);
            }
            Step::Rate(rate) => {
                // An unknown key uses the new rate for what accrued before the change.
                (0..4).for_each(|key| drop(keys.limiter(&key)));
                keys.set_rate_all(Rate::per_second(rate));
                let common = limiters.iter().filter(|(key, _)| of(**key).1);
                common.for_each(|(_, limiter)| limiter.set_rate(Rate::per_second(rate)));
            }
            Step::Sweep => keys.sweep(),
        }
        for key in 0..4 {
            assert_eq!(keys.status(&key), limiters[&key].status(), "{context}: {key}");
        }
        for (key, status) in keys.iter().filter(|(key, _)| *key < 4) {
            assert_eq!(status, limiters[&key].status(), "{context}: {key}, of all");
        }
    }
}

/// Policies of ten permits, whose new state is full.
const FULL: [&str; 7] = [
    "token_bucket 10/s burst 10",
    "token_bucket 10/s burst 1",
    "leaky_bucket 10/s nodelay 5",
    "fixed_window 10/s",
    "sliding_window 10/s cells 5",
    "sliding_estimate 10/s",
    "sliding_log 10/s with_capacity 20",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_key_does_what_a_paused_limiter_does(
        policy in 0..FULL.len(),
        keeps: bool,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let (keys, clock) = keys(FULL[policy]);
        agree(&keys, &clock, |_| (any(FULL[policy]), true), keeps, &steps);
    }

    #[test]
    fn a_key_of_two_policies_does_what_a_paused_limiter_does(
        first in 0..FULL.len(), second in 0..FULL.len(),
        keeps: bool,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let (policy, clock) = (any(FULL[first]).and(any(FULL[second])), ManualClock::new());
        let keys = KeyedRateLimiter::with_clock(policy.clone(), 1000, clock.clone());
        agree(&keys, &clock, |_| (policy.clone(), true), keeps, &steps);
    }

    #[test]
    fn a_key_with_a_plan_does_what_a_paused_limiter_does(
        common in 0..FULL.len(),
        planned in prop::sample::select(vec!["token_bucket 7/s burst 7", "sliding_log 7/s"]),
        keeps: bool,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let clock = ManualClock::new();
        let plan = Plan::new(any(planned));
        // Where keys have plans, a new rate does not fill a new key earlier.
        let pauses = steps.iter().any(|step| matches!(step, Step::Pause(_)));
        let changes = |step: &Step| matches!(step, Step::Rate(_));
        let steps: Vec<_> = steps.into_iter().filter(|step| !(pauses && changes(step))).collect();
        let keys = KeyedRateLimiter::with_clock(any(FULL[common]), 1000, clock.clone())
            .with_plans(move |key: &u32| (key % 2 == 1).then(|| plan.clone()));
        let of = |key: u32| match key % 2 {
            1 => (any(planned), false),
            _ => (any(FULL[common]), true),
        };
        agree(&keys, &clock, of, keeps, &steps);
    }
}

#[test]
fn waiters_of_all_keys_are_granted_after_the_pause() -> Result<(), Refusal> {
    for text in FULL {
        let (keys, clock) = keys(text);
        let wait = |key: u32| {
            let keys = keys.clone();
            spawn(Box::pin(async move { keys.acquire(&key).await }))
        };
        keys.debit(&0, 1)?;
        keys.limiter(&0)?.drain();
        let mut before = wait(0);
        assert_pending!(before.poll());
        keys.pause_all_for(SECOND);
        let mut during = [0, 1, 2].map(wait);
        during.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
        clock.advance(SECOND + 100 * MS - Duration::from_nanos(1));
        assert!(!before.is_woken() && during.iter().all(|wait| !wait.is_woken()), "{text}");
        clock.advance(Duration::from_nanos(1) + 100 * MS);
        for wait in &mut during {
            assert!(assert_ready!(wait.poll()).is_ok(), "{text}");
        }
        assert!(assert_ready!(before.poll()).is_ok());
        // An unknown key.
        assert!(keys.try_acquire_many(&7, if text.ends_with("burst 1") { 1 } else { 2 }).is_ok(), "{text}");
        assert!(keys.try_acquire_many(&7, 1).is_err(), "{text}");
    }
    Ok(())
}

#[test]
fn keys_are_no_limiters_again_when_the_pause_is_over() -> Result<(), Refusal> {
    for text in FULL {
        let (keys, clock) = keys(text);
        keys.try_acquire(&0)?;
        keys.pause_all_for(SECOND);
        let mut wait = spawn_pending(keys.acquire(&0));
        clock.advance(3 * SECOND);
        let _ = wait.poll();
        drop(wait);
        for key in 0..50 {
            keys.try_acquire(&key)?;
        }
        clock.advance(100 * SECOND);
        keys.sweep();
        assert!(keys.is_empty(), "{text}");
    }
    Ok(())
}

#[test]
fn a_try_in_a_pause_adds_no_key() {
    let (keys, clock) = keys("token_bucket 10/s burst 10");
    keys.pause_all_for(SECOND);
    let refusal = keys.try_acquire_many(&1, 2).expect_err("paused");
    assert_eq!(refusal, Refusal::Paused { retry_after: Nanos::from(SECOND + 200 * MS) });
    assert_eq!(keys.try_acquire_many(&1, 11), Err(Refusal::ExceedsLimit { requested: 11, limit: 10 }));
    assert_eq!(keys.try_acquire_many(&1, 0), Err(Refusal::ZeroPermits));
    assert!(keys.is_empty());
    // An exempt request needs no permit.
    assert!(keys.try_acquire_many(&1, Request::permits(1).exempt()).is_ok());
    clock.advance(SECOND + 200 * MS);
    assert!(keys.try_acquire_many(&1, 2).is_ok());
}

#[test]
fn the_limiter_that_keys_share_is_paused_too() -> Result<(), Refusal> {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(10), 2);
    let keys = KeyedRateLimiter::with_clock(policy, 1, clock.clone()).when_full(WhenKeysFull::ShareOne);
    keys.try_acquire(&1)?;
    keys.try_acquire(&2)?;
    keys.pause_all_for(SECOND);
    for key in [1, 2, 3] {
        assert!(matches!(keys.try_acquire(&key), Err(Refusal::Paused { .. })), "{key}");
    }
    assert!(keys.resume_all() && !keys.resume_all());
    keys.try_acquire(&1)?;
    keys.try_acquire(&3)?;
    assert!(keys.try_acquire(&3).is_err());
    Ok(())
}

#[test]
fn a_composite_of_paused_keys_waits() -> Result<(), tidegate::AllRefusal> {
    for text in FULL {
        let (keys, clock) = keys(text);
        let all = RateLimiter::with_clock(any("token_bucket 100/s burst 100"), clock.clone());
        let api = KeyedAllOf::<u32, _>::new("user", &keys).with("all", &all);
        drop(api.try_acquire(&1)?);
        keys.pause_all_for(SECOND);
        for key in [1, 2] {
            let refusal = api.try_acquire(&key).expect_err("paused");
            assert_eq!(refusal.member(), Some("user"), "{text}");
            assert_eq!(refusal.retry_after(), Some(SECOND + 100 * MS), "{text} {key}");
        }
        clock.advance(SECOND + 100 * MS);
        for key in [1, 2] {
            drop(api.try_acquire(&key)?);
            assert!(api.try_acquire(&key).is_err(), "{text}");
        }
    }
    Ok(())
}

#[test]
fn an_observer_of_all_keys_is_notified_once() {
    let statistics = Arc::new(Statistics::new());
    let (keys, _) = keys("token_bucket 10/s burst 10");
    let keys = keys.observed_by(statistics.clone());
    let _held = (keys.limiter(&1), keys.limiter(&2));
    keys.pause_all_for(SECOND);
    keys.pause_all_for(SECOND);
    keys.resume_all();
    keys.resume_all();
    assert_eq!(statistics.snapshot().pauses, 1);
}

#[test]
fn a_changed_kind_of_plan_starts_anew_in_a_pause() -> Result<(), Refusal> {
    let clock = ManualClock::new();
    let text = Arc::new(std::sync::Mutex::new("token_bucket 10/s burst 10"));
    let keys =
        KeyedRateLimiter::with_clock(any("token_bucket 1/s burst 1"), 1000, clock.clone()).with_plans({
            let text = text.clone();
            move |_: &u32| Some(Plan::new(any(*text.lock().expect("no panic"))))
        });
    keys.try_acquire(&1)?;
    keys.pause_all_for(SECOND);
    *text.lock().expect("no panic") = "sliding_log 10/s";
    keys.replan();
    keys.change_all(Change::rate(Rate::per_second(2))).expect("a rate");
    clock.advance(SECOND + 50 * MS);
    assert!(keys.try_acquire(&1).is_err() && keys.try_acquire(&2).is_err());
    clock.advance(50 * MS);
    keys.try_acquire(&1)?;
    keys.try_acquire(&2)?;
    assert!(keys.try_acquire(&1).is_err() && keys.try_acquire(&2).is_err());
    Ok(())
}

/// Bug: the limiter of a key did not ask its policy, and reported the time of a bucket without
/// steps.
#[test]
fn the_limiter_of_a_key_reports_when_it_is_full_after_a_pause() -> Result<(), Refusal> {
    for text in ["token_bucket 10/s burst 10 interval_refill", "smooth_warming_up 10/s warm_up 2s"] {
        let (keys, clock) = keys(text);
        let (key, plain) = (keys.limiter(&1)?, RateLimiter::with_clock(any(text), clock.clone()));
        clock.advance(300 * MS);
        key.try_acquire_many(3)?;
        plain.try_acquire_many(3)?;
        for pause in [Pause::lasting(SECOND).keep_permits(), Pause::lasting(2 * SECOND)] {
            key.pause(pause);
            plain.pause(pause);
            assert_eq!(key.status(), plain.status(), "{text}");
        }
    }
    Ok(())
}

/// An unknown key had a step too many after a pause that keeps permits, or one too few, if all keys
/// were left empty before.
#[test]
fn an_unknown_key_keeps_its_steps_in_a_pause() -> Result<(), Box<dyn std::error::Error>> {
    for wall_clock in [false, true] {
        for (first, gap, second, resumes) in (0..4000).map(|i| {
            let [first, gap, second] = [37 * i % 2_300 + 10, 97 * i % 3_100 + 10, 61 * i % 2_700 + 10];
            (first, gap, second, i % 4 == 0)
        }) {
            let clock = ManualClock::new();
            let policy = TokenBucket::new(Rate::new(10, SECOND)?, 25);
            let policy =
                if wall_clock { policy.at_wall_clock(300 * MS)? } else { policy.interval_refill()? };
            let plain = RateLimiter::with_clock(policy.clone(), clock.clone());
            let keys: KeysOf<_> = KeyedRateLimiter::with_clock(policy, 100, clock.clone());
            clock.advance(5_037 * MS);
            plain.pause_for(first * MS);
            keys.pause_all_for(first * MS);
            clock.advance((first + gap) * MS);
            let keeps = Pause::lasting(second * MS).keep_permits();
            plain.pause(keeps);
            keys.pause_all(keeps);
            if resumes {
                clock.advance(second / 2 * MS);
                assert!(plain.resume() && keys.resume_all());
            } else {
                clock.advance(second * MS);
            }
            for later in [0, 400, 700, 1_000] {
                clock.advance(later * MS);
                let [key, limiter] = [keys.status(&1), plain.status()];
                let case = format!("{first}, {gap}, {second}, {resumes}, {later} ms later");
                assert_eq!((key.available, key.next_in), (limiter.available, limiter.next_in), "{case}");
            }
        }
    }
    Ok(())
}

/// An unknown key got permits at the new rate for the time between a pause and the change.
#[test]
fn an_unknown_key_keeps_its_permits_in_a_change_after_a_pause() -> Result<(), Box<dyn std::error::Error>> {
    let lines = [
        "token_bucket 10/s burst 500",
        "token_bucket 7/s burst 500",
        "token_bucket 10/s burst 500 interval_refill",
        "leaky_bucket 10/s nodelay 400 capacity 500",
    ];
    for (line, rate) in lines.into_iter().flat_map(|line| [(line, 1000), (line, 3), (line, 0)]) {
        let policy = any(line);
        for (gap, paused) in [(237, false), (1_000, false), (4_990, false), (237, true)] {
            let clock = ManualClock::new();
            let plain = RateLimiter::with_clock(policy.clone(), clock.clone());
            let keys: KeysOf<_> = KeyedRateLimiter::with_clock(policy.clone(), 100, clock.clone());
            clock.advance(100 * SECOND);
            plain.pause_for(SECOND);
            keys.pause_all_for(SECOND);
            clock.advance(SECOND + gap * MS);
            if paused {
                let keeps = Pause::lasting(3 * SECOND).keep_permits();
                plain.pause(keeps);
                keys.pause_all(keeps);
                clock.advance(SECOND);
            }
            let rate = if rate == 0 { Rate::ZERO } else { Rate::per_second(rate) };
            plain.set_rate(rate);
            keys.set_rate_all(rate);
            for later in [0, 10, 900, 2_000, 5_000] {
                clock.advance(later * MS);
                let [key, limiter] = [keys.status(&1), plain.status()];
                let case = format!("{line}, {rate:?} {gap} ms after, paused {paused}, {later} ms later");
                if rate == Rate::ZERO || line.ends_with("interval_refill") {
                    // No time from which it was empty leaves it just as many permits: at a rate of
                    // zero nothing accrues, and the steps of another rate have other permits.
                    assert!(key.available <= limiter.available, "{case}");
                } else {
                    assert_eq!(key.available, limiter.available, "{case}");
                }
            }
        }
    }
    Ok(())
}

/// Of two policies, the one that was not changed had all permits of a key, and the other one got
/// what accrues in the time in which the first one had filled.
#[test]
fn an_unknown_key_gets_no_permits_of_two_policies_by_a_change_of_one() {
    for (first, second, part, rate) in [
        ((10, 10), (10, 10_000), 1, 10_000),
        ((5, 2), (2, 1_000), 1, 100),
        ((10, 10), (7, 15), 1, 5),
        ((10, 10_000), (10, 10), 0, 10_000),
    ] {
        let clock = ManualClock::new();
        let bucket = |(rate, burst)| TokenBucket::new(Rate::per_second(rate), burst);
        let policy = bucket(first).and(bucket(second));
        let plain = RateLimiter::with_clock(policy.clone(), clock.clone());
        let keys: KeysOf<_> = KeyedRateLimiter::with_clock(policy, 100, clock.clone());
        plain.pause_for(SECOND);
        keys.pause_all_for(SECOND);
        clock.advance(2 * SECOND);
        let changes = [(part, rate), (1 - part, 1_000_000)];
        for (part, rate) in changes {
            let change = Change::rate(Rate::per_second(rate)).part(part);
            assert!(plain.change(change).is_ok() && keys.change_all(change).is_ok());
            clock.advance(30 * MS);
            let [key, limiter] = [keys.status(&1), plain.status()];
            let case = format!("{first:?} and {second:?}, part {part} at {rate}/s");
            assert!(key.available <= limiter.available, "{case}: {key:?}, {limiter:?}");
            assert!(key.full_in >= limiter.full_in, "{case}: {key:?}, {limiter:?}");
        }
    }
}

/// No key was forgotten after a pause that ended by itself, until a call for a key of its part of
/// the table.
#[test]
fn idle_keys_are_forgotten_after_a_pause_that_ended_by_itself() {
    for line in ["token_bucket 5/s burst 2", "fixed_window 5/s", "sliding_log 5/s", "smooth_bursty 5/s"] {
        for keeps in [false, true] {
            let (keys, clock) = keys(line);
            for key in 0..100 {
                assert!(keys.try_acquire(&key).is_ok());
            }
            let pause = Pause::lasting(SECOND);
            keys.pause_all(if keeps { pause.keep_permits() } else { pause });
            clock.advance(3600 * SECOND);
            keys.sweep();
            assert_eq!(keys.len(), 0, "{line}, keeps {keeps}");
        }
    }
}

/// The grants of a window were spaced after the second pause as if the first one had ended when the
/// bucket of a new key was empty.
#[test]
fn a_change_of_the_rate_moves_no_time_from_which_grants_are_spaced() {
    for key in 0..64 {
        let clock = ManualClock::new();
        let policy = any("token_bucket 10/s burst 10").and(any("fixed_window 10/s"));
        let keys = KeyedRateLimiter::with_clock(policy.clone(), 1000, clock.clone());
        let plain = RateLimiter::with_clock(policy, clock.clone());
        drop(keys.limiter(&key));
        keys.set_rate_all(Rate::per_second(5));
        plain.set_rate(Rate::per_second(5));
        keys.pause_all(Pause::lasting(118 * MS));
        plain.pause(Pause::lasting(118 * MS));
        clock.advance(1427 * MS);
        assert_eq!(keys.status(&key), plain.status());
        keys.set_rate_all(Rate::per_second(20));
        plain.set_rate(Rate::per_second(20));
        // `key + 64` is new, and has the same permits.
        assert_eq!(keys.status(&(key + 64)), plain.status());
        for key in [key, key + 64] {
            let _ = keys.try_acquire_many(&key, 1);
        }
        let _ = plain.try_acquire();
        keys.pause_all(Pause::lasting(164 * MS));
        plain.pause(Pause::lasting(164 * MS));
        clock.advance(103 * MS);
        keys.resume_all();
        plain.resume();
        for key in [key, key + 64] {
            assert_eq!(keys.status(&key), plain.status(), "{key}");
        }
    }
}

/// A new key was full if the rate changed while grants were spaced after a pause.
#[test]
fn a_new_key_is_empty_after_a_pause_and_a_change_of_the_rate() {
    let clock = ManualClock::new();
    let policy = any("token_bucket 5/s burst 10").and(any("fixed_window 20/s"));
    let keys = KeyedRateLimiter::with_clock(policy.clone(), 1000, clock.clone());
    let plain = RateLimiter::with_clock(policy, clock.clone());
    keys.pause_all(Pause::lasting(100 * MS));
    plain.pause(Pause::lasting(100 * MS));
    clock.advance(500 * MS);
    assert_eq!(keys.status(&1), plain.status());
    keys.set_rate_all(Rate::per_second(20));
    plain.set_rate(Rate::per_second(20));
    for key in 0..64 {
        assert_eq!(keys.status(&key), plain.status());
    }
}

/// A new key started as if it had been empty since the clock began, after a reset of all keys. Keys
/// with plans are not reset, so where keys have plans a new key still has what accrued since.
#[test]
fn a_new_key_is_new_after_a_pause_and_a_reset() {
    for line in ["token_bucket 5000/d burst 5000", "fixed_window 5000/d", "token_bucket 10/s burst 10"] {
        let plan: AnyPolicy = any(line);
        let resets = [Change::reset(), Change::rate(plan.rate()).keep(Keep::Nothing)];
        for (plans, reset) in [false, true].into_iter().flat_map(|plans| resets.map(|reset| (plans, reset))) {
            let (keys, clock) = keys(line);
            let plan = plan.clone();
            let of = move |key: &u32| (*key >= 10).then(|| Plan::new(plan.clone()));
            let keys = if plans { keys.with_plans(of) } else { keys };
            clock.advance(2 * 3600 * SECOND);
            assert!(keys.try_acquire(&1).is_ok());
            keys.pause_all(Pause::lasting(SECOND));
            clock.advance(SECOND + 100 * MS);
            assert!(keys.try_acquire_many(&2, 1000).is_err());
            let before = keys.status(&11);
            keys.change_all(reset).expect("a reset");
            if plans {
                assert_eq!(keys.status(&11), before, "{line}");
                continue;
            }
            assert_eq!(keys.status(&3), keys.status(&1), "{line}");
            // A window still spaces its grants.
            let is_window = line.starts_with("fixed");
            assert_eq!(keys.status(&3).available, if is_window { 0 } else { keys.status(&3).limit });
        }
    }
}

/// Bug: a request that a pause refused made another key forgotten, which came back full.
#[test]
fn a_pause_makes_no_room_for_new_keys() {
    let clock = ManualClock::new();
    let keys = KeyedRateLimiter::<u32, _, _>::with_clock(any("token_bucket 1/h burst 1"), 1, clock)
        .when_full(WhenKeysFull::EvictLeastUsed);
    assert!(keys.try_acquire(&1).is_ok());
    keys.pause_all_for(SECOND);
    assert!(matches!(keys.try_acquire(&2), Err(Refusal::Paused { .. })));
    keys.resume_all();
    assert!(keys.try_acquire(&1).is_err());
    keys.debit(&3, 0).expect("nothing is charged");
    assert!(keys.try_acquire(&1).is_err());
}

/// Bug: after a rate of zero, keys that were added after a pause began full.
#[test]
fn a_rate_of_zero_fills_no_new_key_after_a_pause() {
    let (keys, clock) = keys("smooth_bursty 5/s max_burst 1h start_full");
    keys.pause_all_for(SECOND);
    clock.advance(2 * SECOND);
    let before = keys.status(&1).available;
    keys.set_rate_all(Rate::ZERO);
    keys.set_rate_all(Rate::per_second(5));
    assert!(keys.status(&1).available <= before);
}
