//! Plans: a function from keys to policies, on a manual clock.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::clock::ManualSleep;
use tidegate::keyed::Plan;
use tidegate::policy::Change;
use tidegate::{
    AnyPolicy, Clock, FixedWindow, Grant, KeyedRateLimiter, ManualClock, Nanos, Policy, Rate, RateLimiter,
    Refusal, Timer, TokenBucket, WhenKeysFull,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

use super::change::POLICIES;
use crate::support::polled::{Future, poll};
use crate::support::{MS, spawn_pending};

const SECOND: Duration = Duration::from_secs(1);

type Map = Arc<Mutex<HashMap<u64, Plan<AnyPolicy>>>>;
type Keys = KeyedRateLimiter<u64, AnyPolicy, ManualClock>;

fn plan(text: &str) -> Plan<AnyPolicy> {
    Plan::new(text.parse().expect("a policy"))
}

/// Returns a limiter with a common policy, and a map of plans.
fn planned(common: &str, max_keys: usize) -> (Keys, Map, ManualClock) {
    let (clock, map) = (ManualClock::new(), Map::default());
    let plans = map.clone();
    let policy = common.parse().expect("a policy");
    let keys = KeyedRateLimiter::with_clock(policy, max_keys, clock.clone());
    let keys = keys.with_plans(move |key| plans.lock().expect("no panic").get(key).cloned());
    (keys, map, clock)
}

fn set(map: &Map, key: u64, text: &str) {
    map.lock().expect("no panic").insert(key, plan(text));
}

fn limited(retry_after: Duration) -> Result<(), Refusal> {
    Err(Refusal::Limited { retry_after: retry_after.into() })
}

#[test]
fn each_key_has_its_plan() {
    let (keys, map, _) = planned("token_bucket 1/s burst 1", 10);
    set(&map, 1, "token_bucket 10/s burst 5");
    set(&map, 2, "fixed_window 3/min");
    assert_eq!([1, 2, 3].map(|key| keys.status(&key).available), [5, 3, 1]);
    assert!(keys.is_empty(), "reading a status adds no key");
    assert_eq!(keys.try_acquire_many(&1, 5).map(drop), Ok(()));
    assert_eq!(keys.try_acquire(&1).map(drop), limited(100 * MS));
    assert_eq!(keys.try_acquire_many(&2, 4).map(drop), Err(Refusal::ExceedsLimit { requested: 4, limit: 3 }));
    assert_eq!(keys.len(), 1, "a request that can never be granted adds no key");
    assert_eq!(keys.try_acquire_many(&2, 3).map(drop), Ok(()));
    assert_eq!([keys.try_acquire(&3).map(drop), keys.try_acquire(&3).map(drop)], [Ok(()), limited(SECOND)]);
}

/// A thousand customers, each with a different rate, in a table for ten. No customer is kept.
#[test]
fn plans_pin_no_key() {
    let (keys, map, clock) = planned("token_bucket 1/s burst 1", 10);
    for key in 0..1000 {
        set(&map, key, &format!("token_bucket {}/s burst 1", key + 1));
    }
    for key in 0..1000 {
        assert_eq!(keys.try_acquire(&key).map(drop), Ok(()), "{key}");
        let wait = keys.try_acquire(&key).expect_err("its permit is gone").retry_after().unwrap_or_default();
        assert_eq!(wait.as_micros(), 1_000_000 / u128::from(key + 1), "{key}");
        clock.advance(wait);
    }
    clock.advance(SECOND);
    keys.sweep();
    assert!(keys.is_empty());
}

#[test]
fn a_key_that_comes_back_gets_its_plan_anew() {
    let (keys, map, clock) = planned("token_bucket 1/s burst 1", 10);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
    set(&map, 1, "token_bucket 10/s burst 5");
    assert_eq!(keys.try_acquire(&1).map(drop), limited(SECOND), "a known key keeps its plan");
    clock.advance(SECOND);
    keys.sweep();
    assert_eq!(keys.try_acquire_many(&1, 5).map(drop), Ok(()));
}

#[test]
fn replan_carries_over_what_a_key_has() {
    let (keys, map, clock) = planned("token_bucket 1/s burst 10", 10);
    for (key, taken) in [(1, 8), (2, 8), (3, 1)] {
        assert_eq!(keys.try_acquire_many(&key, taken).map(drop), Ok(()));
    }
    clock.advance(SECOND);
    set(&map, 1, "token_bucket 10/s burst 100");
    set(&map, 3, "token_bucket 10/s burst 100");
    assert_eq!(keys.replan(), 0);
    // Key 3 is full again (as new). The other keys keep their permits.
    assert_eq!([1, 2, 3, 4].map(|key| keys.status(&key).available), [3, 3, 100, 10]);
    clock.advance(SECOND);
    assert_eq!([1, 2].map(|key| keys.status(&key).available), [13, 4]);
    map.lock().expect("no panic").clear();
    assert_eq!(keys.replan(), 0);
    assert_eq!([1, 2, 3].map(|key| keys.status(&key).available), [10, 4, 10]);
    assert!([1, 2].iter().all(|key| keys.status(key).limit == 10));
}

/// A key that lost its plan follows changes of all keys. A key with a plan does not.
#[test]
fn a_change_of_all_keys_is_for_keys_without_a_plan() {
    let (keys, map, _) = planned("token_bucket 1/s burst 10", 10);
    for key in [1, 2, 3] {
        set(&map, key, "token_bucket 2/s burst 10");
        assert_eq!(keys.try_acquire_many(&key, 10).map(drop), Ok(()));
    }
    assert_eq!(keys.try_acquire_many(&4, 10).map(drop), Ok(()));
    let line = keys.limiter(&3).expect("room");
    for key in [1, 3] {
        map.lock().expect("no panic").remove(&key);
    }
    assert_eq!(keys.replan(), 0);
    for rate in [4, 8] {
        keys.set_rate_all(Rate::per_second(rate));
        let wait = SECOND / u32::try_from(rate).unwrap_or(1);
        let answers = [1, 2, 3, 4].map(|key| keys.try_acquire(&key).map(drop));
        assert_eq!(answers, [limited(wait), limited(SECOND / 2), limited(wait), limited(wait)]);
    }
    assert_eq!(line.rate(), Rate::per_second(8));
}

#[test]
fn waiting_requests_keep_their_positions() {
    let (keys, map, clock) = planned("token_bucket 1/min burst 1", 10);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
    let mut waits = [spawn(keys.acquire(&1)), spawn(keys.acquire(&1))];
    waits.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    set(&map, 1, "token_bucket 10/s burst 1");
    assert_eq!(keys.replan(), 0);
    clock.advance(100 * MS);
    assert!(waits[0].is_woken());
    assert_eq!(assert_ready!(waits[0].poll()).map(Grant::waited), Ok(100 * MS));
    assert_pending!(waits[1].poll());
    clock.advance(100 * MS);
    assert_eq!(assert_ready!(waits[1].poll()).map(Grant::waited), Ok(200 * MS));
    drop(waits);
    clock.advance(SECOND);
    keys.sweep();
    assert!(keys.is_empty(), "its line pins no key");
}

/// A change from a bucket to a window: a known key lacks as many permits as before. A key with
/// waiting requests keeps its bucket until they have left.
#[test]
fn a_policy_of_another_kind() {
    let (keys, map, clock) = planned("token_bucket 1/s burst 10", 10);
    for key in [1, 2] {
        assert_eq!(keys.try_acquire_many(&key, 10).map(drop), Ok(()));
        set(&map, key, "sliding_log 10/min");
    }
    let mut wait = spawn_pending(keys.acquire(&2));
    clock.advance(3 * SECOND / 4);
    assert_eq!(keys.replan(), 1);
    assert_eq!(keys.status(&1).available, 0);
    assert_eq!(keys.try_acquire(&1).map(drop), limited(60 * SECOND));
    clock.advance(SECOND / 4);
    assert_eq!(assert_ready!(wait.poll()).map(Grant::waited), Ok(SECOND));
    drop(wait);
    assert_eq!(keys.replan(), 0);
    assert_eq!(keys.try_acquire(&2).map(drop), limited(60 * SECOND));
}

#[test]
fn a_rate_of_its_own_stays() {
    let (keys, map, _) = planned("token_bucket 1/s burst 1", 10);
    keys.set_rate(&1, Rate::per_second(4)).expect("room");
    set(&map, 1, "token_bucket 10/s burst 1");
    assert_eq!(keys.replan(), 0);
    assert_eq!([keys.try_acquire(&1).map(drop), keys.try_acquire(&1).map(drop)], [Ok(()), limited(250 * MS)]);
    assert!(keys.remove(&1));
    assert_eq!([keys.try_acquire(&1).map(drop), keys.try_acquire(&1).map(drop)], [Ok(()), limited(100 * MS)]);
}

#[test]
fn other_choices_keep_the_plans() {
    let (keys, map, _) = planned("token_bucket 1/min burst 1", 1);
    set(&map, 1, "token_bucket 1/min burst 3");
    let keys = keys.when_full(WhenKeysFull::ShareOne).observed_by(Arc::new(tidegate::Statistics::new()));
    assert_eq!(keys.try_acquire_many(&1, 3).map(drop), Ok(()));
    set(&map, 2, "token_bucket 1/min burst 3");
    // No room: the limiter of all keys without room has the common policy.
    assert_eq!(keys.try_acquire(&2).map(drop), Ok(()));
    assert_eq!(keys.try_acquire(&3).map(drop), limited(60 * SECOND));
}

/// A manual clock that starts at a given Unix time.
#[derive(Clone, Debug)]
struct Since(ManualClock, Duration);

impl Clock for Since {
    fn now(&self) -> Nanos {
        self.0.now()
    }

    fn unix_time_at_zero(&self) -> Duration {
        self.1
    }
}

impl Timer for Since {
    type Sleep = ManualSleep;
    type RuntimeId = ();

    fn runtime(&self) -> Option<()> {
        Some(())
    }

    fn sleep_until(&self, at: Nanos) -> ManualSleep {
        self.0.sleep_until(at)
    }

    fn park_until(&self, at: Nanos) {
        self.0.park_until(at);
    }
}

/// Windows of a plan start with the windows of the wall clock, even in two limiters with different
/// clocks.
#[test]
fn a_plan_follows_the_wall_clock_of_each_limiter() {
    let window = FixedWindow::new(Rate::per_minute(1)).at_wall_clock(Duration::ZERO);
    let plan = Plan::new(window.clone());
    for seconds in [10, 40] {
        let clock = Since(ManualClock::new(), Duration::from_secs(60_000 + seconds));
        let plan = plan.clone();
        let keys = KeyedRateLimiter::with_clock(window.clone(), 10, clock);
        let keys = keys.with_plans(move |_: &u64| Some(plan.clone()));
        assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
        assert_eq!(keys.try_acquire(&1).map(drop), limited(Duration::from_secs(60 - seconds)));
    }
}

#[test]
fn a_function_that_panics_changes_nothing() {
    let (clock, broken) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let (flag, policy) = (broken.clone(), TokenBucket::new(Rate::per_minute(1), 1));
    let keys = KeyedRateLimiter::with_clock(policy.clone(), 10, clock).with_plans(move |key: &usize| {
        assert_ne!(flag.load(Ordering::Relaxed), *key, "no plan for this key");
        let rate = [1, 1, 4][flag.load(Ordering::Relaxed)];
        Some(Plan::new(TokenBucket::new(Rate::per_second(rate), 1)))
    });
    broken.store(1, Ordering::Relaxed);
    let panics = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
    assert!(panics(&|| _ = keys.try_acquire(&1)));
    assert!(panics(&|| drop(keys.limiter(&1))));
    assert!(keys.is_empty());
    broken.store(0, Ordering::Relaxed);
    for key in 1..=3 {
        assert_eq!(keys.try_acquire(&key).map(drop), Ok(()));
    }
    broken.store(2, Ordering::Relaxed);
    assert!(panics(&|| _ = keys.replan()));
    // Key 2 keeps its plan, and the other keys have theirs: four permits per second.
    let quarter = 250 * MS;
    assert_eq!(
        [1, 2, 3].map(|key| keys.try_acquire(&key).map(drop)),
        [limited(quarter), limited(SECOND), limited(quarter)]
    );
    assert_eq!(keys.len(), 3);
}

/// The function may call the limiter: for another key, for its own key, and to read all plans
/// again.
#[test]
fn a_function_may_call_the_limiter() {
    let keys: Arc<OnceLock<KeyedRateLimiter<u64, TokenBucket, ManualClock>>> = Arc::default();
    let (again, calls) = (keys.clone(), AtomicUsize::new(0));
    let policy = TokenBucket::new(Rate::per_second(1), 2);
    let limiter = KeyedRateLimiter::with_clock(policy, 10, ManualClock::new()).with_plans(move |key| {
        let keys = again.get().expect("it is set");
        if calls.fetch_add(1, Ordering::Relaxed) < 5 {
            assert_eq!(keys.try_acquire(&(key + 1)).map(drop), Ok(()));
            keys.replan();
        }
        None
    });
    let keys = keys.get_or_init(|| limiter);
    assert_eq!(keys.try_acquire(&1).map(drop), Ok(()));
    assert_eq!(keys.replan(), 0);
    assert!(keys.len() > 1);
}

#[derive(Clone, Debug)]
enum Act {
    Try(u64, u32),
    Wait(u64, u32),
    Drop(usize),
    Handle(u64),
    Release,
    Advance(u64),
    Sweep,
    Plan(u64, Option<usize>),
    Replan,
    All(Rate),
}

fn some_acts() -> impl Strategy<Value = Vec<Act>> {
    let key = 0..3_u64;
    let rate = prop::sample::select(vec![Rate::ZERO, Rate::per_second(2), Rate::per_second(8)]);
    let act = prop_oneof![
        6 => (key.clone(), 1..4_u32).prop_map(|(key, n)| Act::Try(key, n)),
        3 => (key.clone(), 1..3_u32).prop_map(|(key, n)| Act::Wait(key, n)),
        1 => (0..4_usize).prop_map(Act::Drop),
        1 => key.clone().prop_map(Act::Handle),
        1 => Just(Act::Release),
        4 => (0..1500_u64).prop_map(Act::Advance),
        1 => Just(Act::Sweep),
        3 => (key, prop::option::of(0..2_usize)).prop_map(|(key, plan)| Act::Plan(key, plan)),
        3 => Just(Act::Replan),
        1 => rate.prop_map(Act::All),
    ];
    prop::collection::vec(act, 1..40)
}

/// A plain limiter for a known key, and whether it has the terms of all keys.
struct Model {
    plain: RateLimiter<AnyPolicy, ManualClock>,
    common: bool,
}

const RATES: [&str; 2] = ["2/s", "8/s"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Every key behaves like a separate limiter with the key's plan, which changes when the plan
    /// does: a state in the table, a line, a key that moved into a line and back, and a key with
    /// waiters.
    #[test]
    fn every_key_is_a_limiter_with_its_plan(which in 0..POLICIES.len(), acts in some_acts()) {
        let text = POLICIES[which];
        let (keys, map, clock) = planned(text, 10);
        let plans = RATES.map(|rate| plan(&text.replacen("4/s", rate, 1)));
        let mut chosen: HashMap<u64, usize> = HashMap::new();
        let mut known: HashMap<u64, Model> = HashMap::new();
        let (mut handles, mut waiting) = (Vec::new(), Vec::<(Future, Future)>::new());
        for act in acts {
            let of = |key: u64| {
                let policy = chosen.get(&key).map_or_else(|| keys.policy(), |plan| plans[*plan].policy().clone());
                let new = || RateLimiter::with_clock(policy, clock.clone());
                let common = !chosen.contains_key(&key);
                match known.get(&key) {
                    Some(model) => Model { plain: model.plain.clone(), common: model.common },
                    None => Model { plain: new(), common },
                }
            };
            let mut used = None;
            match act {
                Act::Try(key, n) => {
                    let model = of(key);
                    prop_assert_eq!(keys.try_acquire_many(&key, n), model.plain.try_acquire_many(n), "{}", text);
                    used = Some((key, model));
                }
                Act::Wait(key, n) => {
                    let model = of(key);
                    let (all, plain) = (keys.clone(), model.plain.clone());
                    let mut one: Future = Box::pin(async move { all.acquire_many(&key, n).await });
                    let mut other: Future = Box::pin(async move { plain.acquire_many(n).await });
                    let answer = poll(&mut one);
                    prop_assert_eq!(answer, poll(&mut other), "{}", text);
                    if answer.is_pending() {
                        waiting.push((one, other));
                    }
                    used = Some((key, model));
                }
                Act::Drop(i) => drop((i < waiting.len()).then(|| waiting.remove(i))),
                Act::Handle(key) => {
                    used = Some((key, of(key)));
                    handles.push(keys.limiter(&key));
                }
                Act::Release => handles.clear(),
                Act::Advance(ms) => clock.advance(Duration::from_millis(ms)),
                Act::Sweep => keys.sweep(),
                Act::Plan(key, Some(plan)) => {
                    chosen.insert(key, plan);
                    map.lock().expect("no panic").insert(key, plans[plan].clone());
                }
                Act::Plan(key, None) => {
                    chosen.remove(&key);
                    map.lock().expect("no panic").remove(&key);
                }
                Act::Replan => {
                    prop_assert_eq!(keys.replan(), 0);
                    for (key, model) in &mut known {
                        let plan = chosen.get(key).map(|plan| plans[*plan].policy().rate());
                        let (rate, common) = (plan.unwrap_or(keys.policy().rate()), plan.is_none());
                        if rate != model.plain.rate() || common != model.common {
                            model.plain.set_rate(rate);
                            model.common = common;
                        }
                    }
                }
                Act::All(rate) => {
                    keys.change_all(Change::rate(rate))?;
                    for model in known.values().filter(|model| model.common) {
                        model.plain.set_rate(rate);
                    }
                }
            }
            if let Some((key, model)) = used && keys.iter().any(|(found, _)| found == key) {
                known.insert(key, model);
            }
            for (mut one, mut other) in std::mem::take(&mut waiting) {
                let answer = poll(&mut one);
                prop_assert_eq!(answer, poll(&mut other), "{}", text);
                if answer.is_pending() {
                    waiting.push((one, other));
                }
            }
            let now: HashMap<_, _> = keys.iter().collect();
            for (key, model) in std::mem::take(&mut known) {
                match now.get(&key) {
                    Some(status) => {
                        prop_assert_eq!(*status, model.plain.status(), "{}, key {}", text, key);
                        known.insert(key, model);
                    }
                    None => prop_assert!(model.plain.status().full_in.is_zero(), "{} forgotten too soon", key),
                }
            }
            prop_assert_eq!(now.len(), known.len());
        }
    }
}

/// Bug: a key that was denied by a plan had a full burst when it got its former plan again.
#[test]
fn a_key_that_was_denied_for_a_while_has_no_more_permits() -> Result<(), Box<dyn std::error::Error>> {
    let lines: [AnyPolicy; 2] = ["token_bucket 100/h burst 100".parse()?, "deny_all".parse()?];
    let plan = Arc::new(AtomicUsize::new(0));
    let current = plan.clone();
    let keys = KeyedRateLimiter::<u64, _, _>::with_clock(lines[0].clone(), 10, ManualClock::new())
        .with_plans(move |_| Some(Plan::new(lines[current.load(Ordering::Relaxed)].clone())));
    keys.try_acquire_many(&7, 100)?;
    for number in [1, 0] {
        plan.store(number, Ordering::Relaxed);
        keys.replan();
    }
    assert!(keys.try_acquire(&7).is_err());
    Ok(())
}
