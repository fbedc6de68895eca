//! Models the table of keys: a key is forgotten, added, moved, changed or removed while a request
//! asks for it.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::support::{LoomClock, SECOND, Woken, model};
use crate::clock::Clock;
use crate::error::Refusal;
use crate::keyed::WhenKeysFull;
use crate::keyed::plan::{Plan, Plans};
use crate::keyed::table::{Found, Table};
use crate::limiter::{Pause, RateLimiter};
use crate::line::deferred::Deferred;
use crate::policy::{Change, Policy, TokenBucket};
use crate::rate::Rate;
use crate::request::Request;
use crate::sync::{AtomicBool, Ordering, read, write};
use crate::time::Nanos;

type Keys = Arc<Table<u8, TokenBucket, LoomClock>>;

/// One permit per second for each key, and no burst.
fn table(max_keys: usize, clock: LoomClock, plans: Option<Plans<u8, TokenBucket>>) -> Keys {
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    Arc::new(Table::with_shards(policy, max_keys, WhenKeysFull::RefuseNew, clock, 1, (None, plans)))
}

fn keys(max_keys: usize) -> (Keys, LoomClock) {
    let clock = LoomClock::new();
    (table(max_keys, clock.clone(), None), clock)
}

/// As above. Key 1 took its permit a second ago, so it is as good as new.
fn with_a_fresh_key(max_keys: usize) -> Keys {
    let (keys, clock) = keys(max_keys);
    assert_eq!(keys.try_acquire(&1, &Request::permits(1)).map(drop), Ok(()));
    clock.set_without_waking(SECOND);
    keys
}

/// A request takes from a key while the key is forgotten. Its permit is granted once.
fn forgetting_against_a_take(forget: fn(&Keys)) {
    model(move || {
        let keys = with_a_fresh_key(2);
        let other = {
            let keys = keys.clone();
            thread::spawn(move || forget(&keys))
        };
        let mine = keys.try_acquire(&1, &Request::permits(1)).is_ok();
        other.join().expect("no panic");
        let again = keys.try_acquire(&1, &Request::permits(1)).is_ok();
        assert_eq!((mine, again), (true, false), "one permit is granted once");
        assert_eq!(keys.len(), 1);
    });
}

#[test]
fn a_key_is_not_forgotten_under_a_grant() {
    forgetting_against_a_take(|keys| keys.sweep_all());
}

/// The broken twin: judges in one section and forgets in another.
#[test]
#[should_panic = "one permit is granted once"]
fn broken_a_key_is_not_forgotten_under_a_grant() {
    forgetting_against_a_take(|keys| {
        let policy = keys.policy();
        let is_full = |state| policy.status(state, keys.clock.now()).full_at <= keys.clock.now();
        let fresh = read(&keys.shards[0]).known.iter().any(|(_, state)| is_full(state));
        if fresh {
            keys.remove(&1);
        }
    });
}

/// A new key takes the slot of a key that is as good as new, while a request asks for that key.
/// Each key has its permit at most once, and the table never holds a key too many.
#[test]
fn a_new_key_takes_a_free_slot() {
    model(|| {
        let keys = with_a_fresh_key(1);
        let other = {
            let keys = keys.clone();
            thread::spawn(move || keys.try_acquire(&2, &Request::permits(1)).map(drop))
        };
        let mine = keys.try_acquire(&1, &Request::permits(1)).map(drop);
        let other = other.join().expect("no panic");
        let full = Err(Refusal::TooManyKeys { limit: 1 });
        assert!([(Ok(()), full), (full, Ok(()))].contains(&(mine, other)), "{mine:?} {other:?}");
        assert_eq!(keys.len(), 1);
    });
}

/// Two first requests of a key. One of them is granted.
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
    two_first_takes(|keys| keys.try_acquire(&1, &Request::permits(1)).is_ok());
}

/// The broken twin: does not look again before it adds.
#[test]
#[should_panic = "one of two"]
fn broken_two_first_takes_find_one_key() {
    two_first_takes(|keys| {
        let take = |policy: &TokenBucket, state: &_| policy.try_acquire(state, Nanos::ZERO, 1).is_ok();
        if let Found::Known(taken) = keys.find(&1, |policy, state, _| take(policy, state)) {
            return taken;
        }
        let policy = Arc::new(keys.policy());
        let state = policy.start(Nanos::ZERO);
        let taken = take(&policy, &state);
        let hash = keys.hash_of(&1);
        let mut shard = write(&keys.shards[0]);
        shard.known.reserve(|_| hash);
        shard.known.insert(hash, 1, state);
        keys.count.fetch_add(1, Ordering::Relaxed);
        taken
    });
}

/// All keys are paused while a request takes from a key. The state has the grant, if it was
/// granted.
fn pausing_against_a_take(pause: fn(&Keys)) {
    model(move || {
        let keys = with_a_fresh_key(2);
        let other = {
            let keys = keys.clone();
            thread::spawn(move || keys.try_acquire(&1, &Request::permits(1)).is_ok())
        };
        pause(&keys);
        let granted = other.join().expect("no panic");
        let refusal = keys.try_acquire(&1, &Request::permits(1)).expect_err("in the pause");
        let wait = if granted { 2 } else { 1 };
        assert_eq!(refusal.retry_after(), Some(Duration::from_secs(wait)), "the state that was paused");
    });
}

/// A pause of a second, after which the keys go on with their permits.
fn pause(keys: &Keys) {
    keys.pause(Pause::lasting(Duration::from_secs(1)).keep_permits());
}

#[test]
fn a_pause_of_all_keys_leaves_each_permit_where_it_is() {
    pausing_against_a_take(pause);
}

/// The broken twin: puts aside what it read in another section.
#[test]
#[should_panic = "the state that was paused"]
fn broken_a_pause_of_all_keys_leaves_each_permit_where_it_is() {
    pausing_against_a_take(|keys| {
        let policy = keys.policy();
        let is_fresh = |state| policy.is_fresh(state, SECOND);
        let fresh = read(&keys.shards[0]).known.iter().any(|(_, state)| is_fresh(state));
        if fresh {
            keys.remove(&1);
        }
        pause(keys);
    });
}

/// A key gets a key limiter while a request takes from it. Its permit is granted once.
fn moving_against_a_take(take_in_line: fn(&Keys) -> bool) {
    model(move || {
        let keys = with_a_fresh_key(2);
        let other = {
            let keys = keys.clone();
            thread::spawn(move || take_in_line(&keys))
        };
        let mine = keys.try_acquire(&1, &Request::permits(1)).is_ok();
        assert_ne!(mine, other.join().expect("no panic"), "one of two");
    });
}

#[test]
fn a_state_moves_into_a_line_whole() {
    moving_against_a_take(|keys| keys.own_limiter(&1).is_ok_and(|line| line.try_acquire().is_ok()));
}

/// The broken twin: leaves the state in the table, and starts another one.
#[test]
#[should_panic = "one of two"]
fn broken_a_state_moves_into_a_line_whole() {
    moving_against_a_take(|keys| {
        let policy = keys.policy();
        policy.try_acquire(&policy.start(SECOND), SECOND, 1).is_ok()
    });
}

/// An idle key limiter is settled while a request finds it and waits in it.
fn settling_against_a_wait(settle: fn(&Keys)) {
    model(move || {
        let (keys, clock) = keys(2);
        assert_eq!(keys.try_acquire(&1, &Request::permits(1)).map(drop), Ok(()));
        drop(keys.own_limiter(&1));
        let other = {
            let keys = keys.clone();
            thread::spawn(move || settle(&keys))
        };
        let mut wait = Box::pin({
            let keys = keys.clone();
            async move {
                match keys.own_limiter(&1) {
                    Ok(line) => line.acquire().await,
                    Err(refusal) => Err(refusal),
                }
            }
        });
        let waker = std::task::Waker::from(Woken::new());
        let mut context = std::task::Context::from_waker(&waker);
        assert!(wait.as_mut().poll(&mut context).is_pending());
        other.join().expect("no panic");
        clock.set(SECOND);
        assert!(
            keys.try_acquire(&1, &Request::permits(1)).is_err(),
            "the permit is that of the one who waited"
        );
        assert!(wait.as_mut().poll(&mut context).is_ready());
    });
}

#[test]
fn a_line_in_which_a_request_waits_stays() {
    settling_against_a_wait(|keys| keys.sweep_all());
}

#[test]
fn a_line_in_which_a_request_waits_is_not_settled_by_a_call() {
    settling_against_a_wait(|keys| drop(keys.limiter_for_call(&1)));
}

#[test]
fn a_state_moves_into_a_line_and_back_whole() {
    moving_against_a_take(|keys| keys.limiter_for_call(&1).is_ok_and(|line| line.try_acquire().is_ok()));
}

/// Two calls use the key limiter of a key at once. The call that ends last settles it.
fn two_calls_leave(leave: fn(&Keys, RateLimiter<TokenBucket, LoomClock>)) {
    model(move || {
        let (keys, _) = keys(2);
        assert_eq!(keys.try_acquire(&1, &Request::permits(1)).map(drop), Ok(()));
        let mine = keys.own_limiter(&1).expect("there is room");
        let other = {
            let (keys, line) = (keys.clone(), mine.clone());
            thread::spawn(move || leave(&keys, line))
        };
        leave(&keys, mine);
        other.join().expect("no panic");
        assert!(read(&keys.shards[0]).limiters().is_none(), "settled");
        assert!(keys.try_acquire(&1, &Request::permits(1)).is_err());
        assert_eq!(keys.len(), 1);
    });
}

fn number(line: &RateLimiter<TokenBucket, LoomClock>) -> u64 {
    line.shared.number
}

#[test]
fn the_last_call_settles_a_line() {
    two_calls_leave(|keys, line| {
        let number = number(&line);
        drop(line);
        keys.leave(keys.hash_of(&1), number);
    });
}

/// The broken twin: looks for other handles before it gives up its own.
#[test]
#[should_panic = "settled"]
fn broken_the_last_call_settles_a_line() {
    two_calls_leave(|keys, line| {
        let number = number(&line);
        let is_last = Arc::strong_count(&line.shared) == 2;
        thread::yield_now();
        drop(line);
        if is_last {
            keys.leave(keys.hash_of(&1), number);
        }
    });
}

/// All keys enter shadow mode while a key limiter is made.
fn entering_shadow_against_a_line(enter: fn(&Keys)) {
    model(move || {
        let (keys, _) = keys(2);
        let other = {
            let keys = keys.clone();
            thread::spawn(move || enter(&keys))
        };
        let line = keys.own_limiter(&1).expect("there is room");
        other.join().expect("no panic");
        assert!(line.shared.is_shadow(), "in shadow");
    });
}

#[test]
fn a_line_that_is_made_meanwhile_is_in_shadow() {
    entering_shadow_against_a_line(|keys| keys.set_shadow(true));
}

/// The broken twin: notifies the key limiters, and then sets the flag.
#[test]
#[should_panic = "in shadow"]
fn broken_a_line_that_is_made_meanwhile_is_in_shadow() {
    entering_shadow_against_a_line(|keys| {
        for shard in &keys.shards {
            write(shard).all_limiters().for_each(|(_, line)| line.limiter.shared.set_shadow(true));
        }
        keys.shadow.store(true, Ordering::Relaxed);
    });
}

/// Two permits at first, and a slower rate from then on.
const SLOWER: Rate = Rate::per_minute(6);

/// All keys change while a request asks for one key, known or new. No more permits are granted than
/// by either terms.
fn changing_against_takes(known: bool, change: fn(&Keys)) {
    model(move || {
        let clock = LoomClock::new();
        let policy = TokenBucket::new(Rate::per_second(2), 2);
        let table = Table::with_shards(policy, 2, WhenKeysFull::RefuseNew, clock, 1, (None, None));
        let keys = Arc::new(table);
        let take = |keys: &Keys, times| {
            (0..times).filter(|_| keys.try_acquire(&1, &Request::permits(1)).is_ok()).count()
        };
        let before = if known { take(&keys, 1) } else { 0 };
        let other = {
            let keys = keys.clone();
            thread::spawn(move || take(&keys, 2))
        };
        change(&keys);
        let meanwhile = other.join().expect("no panic");
        assert_eq!(before + meanwhile + take(&keys, 3), 2, "two by either terms");
        assert_eq!(keys.policy().rate(), SLOWER);
    });
}

#[test]
fn a_known_key_changes_with_its_policy() {
    changing_against_takes(true, |keys| keys.change_all(Change::rate(SLOWER)).expect("fits"));
}

#[test]
fn a_new_key_begins_before_a_change_or_after_it() {
    changing_against_takes(false, |keys| keys.change_all(Change::rate(SLOWER)).expect("fits"));
}

/// Changes the states in one section.
fn change_states(keys: &Keys, old: &TokenBucket) {
    for (_, state) in write(&keys.shards[0]).known.iter() {
        old.clone().change(state, Nanos::ZERO, Change::rate(SLOWER)).expect("fits");
    }
}

/// Changes the policy in another section.
fn change_policy(keys: &Keys, old: &TokenBucket) {
    let new = old.clone();
    new.set_rate(&new.start(Nanos::ZERO), Nanos::ZERO, SLOWER);
    write(&keys.shards[0]).policy = Arc::new(new);
}

#[test]
#[should_panic = "two by either terms"]
fn broken_a_known_key_changes_with_its_policy() {
    changing_against_takes(true, |keys| {
        let old = keys.policy();
        change_states(keys, &old);
        change_policy(keys, &old);
    });
}

#[test]
#[should_panic = "two by either terms"]
fn broken_a_new_key_begins_before_a_change_or_after_it() {
    changing_against_takes(false, |keys| {
        let old = keys.policy();
        change_policy(keys, &old);
        change_states(keys, &old);
    });
}

/// A key gets a key limiter, or loses it, while all keys change. The key follows the change.
fn changing_against_limiters(change: fn(&Keys), move_it: fn(&Keys)) {
    model(move || {
        let (keys, _) = keys(2);
        assert_eq!(keys.try_acquire(&1, &Request::permits(1)).map(drop), Ok(()));
        drop(keys.own_limiter(&2));
        let other = {
            let keys = keys.clone();
            thread::spawn(move || move_it(&keys))
        };
        change(&keys);
        other.join().expect("no panic");
        let rates = [1, 2].map(|key| keys.own_limiter(&key).map(|line| line.rate()));
        assert_eq!(rates, [Ok(SLOWER); 2], "it went along");
        assert!(keys.try_acquire(&1, &Request::permits(1)).is_err());
    });
}

#[test]
fn a_line_that_is_made_meanwhile_goes_along() {
    changing_against_limiters(
        |keys| keys.change_all(Change::rate(SLOWER)).expect("fits"),
        |keys| drop(keys.own_limiter(&1)),
    );
}

#[test]
fn a_line_that_is_settled_meanwhile_goes_along() {
    changing_against_limiters(
        |keys| keys.change_all(Change::rate(SLOWER)).expect("fits"),
        |keys| keys.sweep_all(),
    );
}

/// The broken twin: changes the key limiters in a section before the rest.
#[test]
#[should_panic = "it went along"]
fn broken_a_line_that_is_made_meanwhile_goes_along() {
    changing_against_limiters(
        |keys| {
            let mut deferred = Deferred::new();
            for (_, line) in write(&keys.shards[0]).all_limiters() {
                line.change_with_all(Change::rate(SLOWER), Nanos::ZERO, &mut deferred);
            }
            let old = keys.policy();
            change_states(keys, &old);
            change_policy(keys, &old);
        },
        |keys| drop(keys.own_limiter(&1)),
    );
}

/// A key gets another plan while its first request comes. The key has the new plan at the end.
fn replanning_against_a_first_take(take: fn(&Keys)) {
    model(move || {
        let changed = Arc::new(AtomicBool::new(false));
        let plan = |rate| Plan::new(TokenBucket::new(rate, 1));
        let (plans, flag) = ([plan(Rate::per_second(1)), plan(SLOWER)], changed.clone());
        let of = move |_: &u8| Some(plans[usize::from(flag.load(Ordering::Relaxed))].clone());
        let keys = table(2, LoomClock::new(), Some(Plans::new(of)));
        let other = {
            let keys = keys.clone();
            thread::spawn(move || take(&keys))
        };
        changed.store(true, Ordering::Relaxed);
        assert_eq!(keys.replan(), 0);
        other.join().expect("no panic");
        assert_eq!(keys.own_limiter(&1).map(|line| line.rate()), Ok(SLOWER), "the new plan");
    });
}

#[test]
fn a_new_key_has_no_plan_from_before_a_replan() {
    replanning_against_a_first_take(|keys| {
        assert!(keys.try_acquire(&1, &Request::permits(1)).is_ok());
    });
}

#[test]
fn a_new_line_has_no_plan_from_before_a_replan() {
    replanning_against_a_first_take(|keys| drop(keys.own_limiter(&1)));
}

/// The broken twin: adds the key although the plans were asked for anew meanwhile.
#[test]
#[should_panic = "the new plan"]
fn broken_a_new_key_has_no_plan_from_before_a_replan() {
    replanning_against_a_first_take(|keys| {
        let hash = keys.hash_of(&1);
        let new = keys.new_key(hash, &1);
        let state = TokenBucket::new(SLOWER, 1).start(Nanos::ZERO);
        let mut shard = write(&keys.shards[0]);
        shard.entries_mut().reserve(|_| hash);
        shard.entries_mut().insert(hash, new.into_entry(state));
    });
}

/// All keys become faster while a request joins the key limiter of its key. It is due by the new
/// rate.
#[test]
fn a_request_that_joins_a_line_meanwhile_is_moved() {
    model(|| {
        let (keys, _) = keys(2);
        assert_eq!(keys.try_acquire(&1, &Request::permits(1)).map(drop), Ok(()));
        let other = {
            let keys = keys.clone();
            thread::spawn(move || keys.change_all(Change::rate(Rate::per_second(10))).expect("fits"))
        };
        let reservation = keys.own_limiter(&1).and_then(|line| line.reserve(1)).expect("there is room");
        other.join().expect("no panic");
        assert_eq!(reservation.due_in(), Duration::from_millis(100));
    });
}

/// A key is removed while a request begins to wait for it. The request is served.
#[test]
fn a_request_for_a_key_that_is_removed_is_served() {
    model(|| {
        let (keys, clock) = keys(2);
        assert_eq!(keys.try_acquire(&1, &Request::permits(1)).map(drop), Ok(()));
        let other = {
            let keys = keys.clone();
            thread::spawn(move || keys.remove(&1))
        };
        let line = keys.own_limiter(&1).expect("there is room");
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

/// A key is added while all keys are closed. It gets no permit from then on.
fn adding_against_closing(close: fn(&Keys)) {
    model(move || {
        let (keys, _) = keys(2);
        let other = {
            let keys = keys.clone();
            thread::spawn(move || keys.try_acquire(&1, &Request::permits(1)).map(drop))
        };
        close(&keys);
        let answer = other.join().expect("no panic");
        assert!([Ok(()), Err(Refusal::Closed)].contains(&answer), "{answer:?}");
        let late = keys.try_acquire(&1, &Request::permits(1)).map(drop);
        assert_eq!(late, Err(Refusal::Closed), "a key was left open");
        assert_eq!(keys.len(), 0);
    });
}

#[test]
fn a_key_that_is_added_while_all_keys_close_is_closed() {
    adding_against_closing(|keys| assert!(keys.close()));
}

/// The broken twin: it refuses new keys, and does not look for keys that were just added.
#[test]
#[should_panic(expected = "a key was left open")]
fn broken_a_key_that_is_added_while_all_keys_close_is_closed() {
    adding_against_closing(|keys| {
        keys.count.fetch_or(crate::keyed::table::CLOSED, crate::sync::Ordering::Relaxed);
    });
}
