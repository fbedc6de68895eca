//! Keys and policies with user code that panics, blocks or calls the limiter: the count of keys
//! remains correct.

use std::cell::{Cell, RefCell};
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::policy::{Change, Forecast, Policy, PolicyStatus, Standstill};
use tidegate::{
    Events, KeyedRateLimiter, ManualClock, Nanos, Pause, PolicyError, Rate, Refusal, TokenBucket,
    WhenKeysFull,
};
use tokio_test::task::spawn;

/// A call of a key's code.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Hash,
    Eq,
    Clone,
    Drop,
}

thread_local! {
    /// The call that panics, and the number of such calls that succeed before it.
    static FUSE: Cell<Option<(Call, u32)>> = const { Cell::new(None) };
    /// The number of keys alive in this thread.
    static ALIVE: Cell<isize> = const { Cell::new(0) };
    /// The action of a key when it is dropped.
    static ON_DROP: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

fn may_panic(call: Call) {
    let Some((which, left)) = FUSE.get() else { return };
    if which == call && !std::thread::panicking() {
        FUSE.set((left > 0).then(|| (which, left - 1)));
        assert!(left > 0, "a key's {call:?} panics");
    }
}

#[derive(Debug)]
struct Key(u64);

impl Key {
    fn new(number: u64) -> Key {
        ALIVE.set(ALIVE.get() + 1);
        Key(number)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        may_panic(Call::Hash);
        self.0.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        may_panic(Call::Eq);
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Clone for Key {
    fn clone(&self) -> Key {
        may_panic(Call::Clone);
        Key::new(self.0)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        ALIVE.set(ALIVE.get() - 1);
        // Taken out, so that keys dropped by the action run no action.
        let action = ON_DROP.with_borrow_mut(Option::take);
        if let Some(mut action) = action {
            action();
            ON_DROP.set(Some(action));
        }
        may_panic(Call::Drop);
    }
}

/// Runs code that may panic, without printing the message.
fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

fn without_messages() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            if !text.is_some_and(|text| text.starts_with("a key's") || text.starts_with("a policy's")) {
                usual(info);
            }
        }));
    });
}

type Keys = KeyedRateLimiter<Key, TokenBucket, ManualClock>;

/// One permit per second for each key, and no burst.
fn keys(max_keys: usize, choice: WhenKeysFull) -> (Keys, ManualClock) {
    without_messages();
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    (KeyedRateLimiter::with_clock(policy, max_keys, clock.clone()).when_full(choice), clock)
}

/// Returns the number of keys in the table, by visiting each of them.
fn counted(keys: &Keys) -> usize {
    keys.iter().count()
}

/// Every `Drop` of a forgotten key panics. Bug: the freed room was lost for good.
#[test]
fn keys_that_panic_when_dropped_leave_their_room() {
    let (keys, clock) = keys(100, WhenKeysFull::RefuseNew);
    let mut refused = 0;
    for number in 0..600 {
        // Often enough that many keys can always be forgotten.
        if number % 25 == 0 {
            clock.advance(Duration::from_secs(1));
        }
        FUSE.set(Some((Call::Drop, 0)));
        let answer = quietly(|| {
            let key = Key::new(number);
            let answer = keys.try_acquire(&key);
            // The test is not about dropping this key.
            std::mem::forget(key);
            answer
        });
        FUSE.set(None);
        refused += usize::from(answer == Some(Err(Refusal::TooManyKeys { limit: 100 })));
        assert_eq!(keys.len(), counted(&keys), "after key {number}");
    }
    assert_eq!(refused, 0);
}

/// A key makes room for a new one, and its `Drop` panics while the limiter of the new key is
/// returned. Bug: that handle was leaked, and the new key kept its room for good.
#[test]
fn a_limiter_that_a_panic_takes_away_leaves_its_room() {
    let (keys, clock) = keys(1, WhenKeysFull::RefuseNew);
    assert_eq!(keys.try_acquire(&Key::new(1)).map(drop), Ok(()));
    clock.advance(Duration::from_secs(1));
    FUSE.set(Some((Call::Drop, 0)));
    assert!(quietly(|| keys.limiter(&Key::new(2)).map(drop)).is_none(), "it panics");
    FUSE.set(None);
    clock.advance(Duration::from_secs(1));
    assert_eq!(keys.try_acquire(&Key::new(3)).map(drop), Ok(()));
}

/// The table grows while `Hash` panics: no key is lost, and no missing key is counted.
#[test]
fn a_hash_that_panics_while_the_table_grows_changes_nothing() {
    let (keys, _) = keys(10_000, WhenKeysFull::RefuseNew);
    for number in 0..2000 {
        let key = Key::new(number);
        for after in [1, 2, 5, 50] {
            FUSE.set(Some((Call::Hash, after)));
            let _ = quietly(|| keys.try_acquire(&key));
            FUSE.set(None);
        }
        let _ = keys.try_acquire(&key);
    }
    assert_eq!((keys.len(), counted(&keys)), (2000, 2000));
    assert!((0..2000).all(|number| keys.try_acquire(&Key::new(number)).is_err()), "all are limited");
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Try(u64),
    Wait(u64),
    Drop,
    Line(u64),
    Rate(u64),
    Debit(u64),
    Remove(u64),
    Status(u64),
    Advance(u64),
    Sweep,
    Change,
}

fn acts() -> impl Strategy<Value = Vec<(Act, Option<(Call, u32)>)>> {
    let key = || 0..40u64;
    let act = prop_oneof![
        10 => key().prop_map(Act::Try),
        4 => key().prop_map(Act::Wait),
        2 => Just(Act::Drop),
        1 => key().prop_map(Act::Line),
        1 => key().prop_map(Act::Rate),
        1 => key().prop_map(Act::Debit),
        2 => key().prop_map(Act::Remove),
        1 => key().prop_map(Act::Status),
        3 => (0..1500u64).prop_map(Act::Advance),
        1 => Just(Act::Sweep),
        1 => Just(Act::Change),
    ];
    let call = prop_oneof![Just(Call::Hash), Just(Call::Eq), Just(Call::Clone), Just(Call::Drop)];
    let fuse = proptest::option::of((call, 0..6u32));
    proptest::collection::vec((act, fuse), 1..150)
}

proptest! {
    /// Whatever panics, and wherever: the count equals the number of keys, no key is counted twice,
    /// and the count never exceeds the maximum. In the end all keys can be forgotten, and as many
    /// new keys find room.
    #[test]
    fn the_count_of_keys_is_right_after_any_panic(
        acts in acts(),
        max_keys in prop_oneof![1..8usize, 30..40usize],
        choice in prop_oneof![
            Just(WhenKeysFull::RefuseNew), Just(WhenKeysFull::ShareOne), Just(WhenKeysFull::EvictLeastUsed)
        ],
    ) {
        let (keys, clock) = keys(max_keys, choice);
        let before = ALIVE.get();
        let mut waiting = Vec::new();
        for (act, fuse) in acts {
            FUSE.set(fuse);
            let _ = quietly(|| match act {
                Act::Try(key) => drop(keys.try_acquire(&Key::new(key))),
                Act::Wait(key) => {
                    let keys = keys.clone();
                    let wait = async move {
                        let key = Key::new(key);
                        keys.acquire(&key).await
                    };
                    let mut wait = spawn(wait);
                    if wait.poll().is_pending() {
                        waiting.push(wait);
                    }
                }
                Act::Drop => drop(waiting.pop()),
                Act::Line(key) => drop(keys.limiter(&Key::new(key))),
                Act::Rate(key) => drop(keys.set_rate(&Key::new(key), Rate::per_second(2))),
                Act::Debit(key) => drop(keys.debit(&Key::new(key), 1)),
                Act::Remove(key) => drop(keys.remove(&Key::new(key))),
                Act::Status(key) => drop(keys.status(&Key::new(key))),
                Act::Advance(ms) => clock.advance(Duration::from_millis(ms)),
                Act::Sweep => keys.sweep(),
                Act::Change => keys.set_rate_all(Rate::per_second(1)),
            });
            FUSE.set(None);
            let mut numbers: Vec<u64> = keys.iter().map(|(key, _)| key.0).collect();
            prop_assert_eq!(numbers.len(), keys.len(), "after {:?} with {:?}", act, fuse);
            numbers.sort_unstable();
            numbers.dedup();
            prop_assert_eq!(numbers.len(), keys.len(), "each key occurs once");
            prop_assert!(keys.len() <= max_keys);
        }
        waiting.clear();
        for number in 0..40 {
            keys.remove(&Key::new(number));
        }
        prop_assert_eq!((keys.len(), ALIVE.get()), (0, before), "no key is left behind");
        let granted = (100..200).filter(|key| keys.try_acquire(&Key::new(*key)).is_ok()).count();
        prop_assert!(granted >= max_keys);
    }
}

/// A forgotten key that calls the limiter for itself and for other keys when it is dropped.
#[test]
fn a_drop_may_call_the_limiter() {
    let (keys, clock) = keys(8, WhenKeysFull::RefuseNew);
    for number in 0..8 {
        keys.try_acquire(&Key::new(number)).expect("it is new");
    }
    clock.advance(Duration::from_secs(1));
    let (again, drops) = (keys.clone(), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let seen = drops.clone();
    ON_DROP.set(Some(Box::new(move || {
        seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        for number in 0..16 {
            let key = Key::new(number);
            let _ = again.try_acquire(&key);
            let _ = again.status(&key);
        }
        again.sweep();
    })));
    keys.try_acquire(&Key::new(100)).expect("the others are full again");
    keys.remove(&Key::new(100));
    keys.sweep();
    ON_DROP.set(None);
    assert!(drops.load(std::sync::atomic::Ordering::Relaxed) > 0);
    assert_eq!(keys.len(), counted(&keys));
}

/// Signals that a `Drop` has started, and when it may end.
type Ends = (Sender<()>, Arc<std::sync::Mutex<Receiver<()>>>);

/// A key whose `Drop` waits until the test lets it end.
struct Slow(u64, Option<Ends>);

impl Hash for Slow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for Slow {
    fn eq(&self, other: &Slow) -> bool {
        self.0 == other.0
    }
}

impl Eq for Slow {}

impl Clone for Slow {
    fn clone(&self) -> Slow {
        Slow(self.0, self.1.clone())
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        if let Some((begun, end)) = &self.1 {
            begun.send(()).expect("the test waits for it");
            end.lock().expect("no panic").recv().expect("the test ends it");
        }
    }
}

/// A `Drop` that blocks delays its own call, and no request for another key of its shard.
#[test]
fn a_drop_that_blocks_holds_no_lock() {
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    let clock = ManualClock::new();
    let keys: KeyedRateLimiter<Slow, _, _> = KeyedRateLimiter::with_clock(policy, 2, clock.clone());
    let ((begun, has_begun), (end, ends)) = (channel(), channel());
    let slow = Slow(1, Some((begun, Arc::new(std::sync::Mutex::new(ends)))));
    keys.try_acquire(&slow).expect("it is new");
    std::mem::forget(slow);
    keys.try_acquire(&Slow(2, None)).expect("it is new");
    clock.advance(Duration::from_secs(1));
    keys.try_acquire(&Slow(2, None)).expect("a second has passed");
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| keys.try_acquire(&Slow(3, None)));
        has_begun.recv().expect("1 is forgotten");
        // The table has one shard, so each of these calls needs the lock that the call for 3 held.
        assert!(keys.try_acquire(&Slow(2, None)).is_err());
        keys.set_rate(&Slow(2, None), Rate::per_second(2)).expect("it is known");
        assert_eq!(keys.len(), 2);
        end.send(()).expect("it waits for this");
        assert_eq!(blocked.join().expect("no panic").map(drop), Ok(()));
    });
}

/// A token bucket with code that panics when the fuse of this thread is set.
#[derive(Clone, Debug)]
struct Fragile(TokenBucket);

thread_local! {
    static POLICY_FUSE: Cell<Option<u32>> = const { Cell::new(None) };
}

fn policy_may_panic() {
    let Some(left) = POLICY_FUSE.get() else { return };
    if !std::thread::panicking() {
        POLICY_FUSE.set(left.checked_sub(1));
        assert!(left > 0, "a policy's code panics");
    }
}

impl Policy for Fragile {
    type State = <TokenBucket as Policy>::State;
    type Charge = <TokenBucket as Policy>::Charge;

    fn start(&self, now: Nanos) -> Self::State {
        policy_may_panic();
        self.0.start(now)
    }

    fn try_acquire(&self, state: &Self::State, at: Nanos, n: u32) -> Result<Self::Charge, Refusal> {
        policy_may_panic();
        self.0.try_acquire(state, at, n)
    }

    fn check(&self, n: u32) -> Result<(), Refusal> {
        policy_may_panic();
        self.0.check(n)
    }

    fn weight(&self, n: u32) -> u64 {
        self.0.weight(n)
    }

    fn ready_at(&self, state: &Self::State, at: Nanos, ahead: u64, n: u32) -> Nanos {
        self.0.ready_at(state, at, ahead, n)
    }

    fn undo(&self, state: &Self::State, at: Nanos, charge: Self::Charge, lowest: u64) -> u64 {
        self.0.undo(state, at, charge, lowest)
    }

    fn refund(&self, state: &Self::State, at: Nanos, n: u32) -> u64 {
        policy_may_panic();
        self.0.refund(state, at, n)
    }

    fn change(&self, state: &Self::State, at: Nanos, change: Change) -> Result<u64, PolicyError> {
        policy_may_panic();
        self.0.change(state, at, change)
    }

    fn pause(&self, state: &Self::State, stop: Standstill) -> Option<u64> {
        policy_may_panic();
        self.0.pause(state, stop)
    }

    fn forecast_pause(&self, state: &Self::State, stop: Standstill) -> Option<Forecast> {
        self.0.forecast_pause(state, stop)
    }

    fn rate(&self) -> Rate {
        self.0.rate()
    }

    fn status(&self, state: &Self::State, at: Nanos) -> PolicyStatus {
        policy_may_panic();
        self.0.status(state, at)
    }
}

/// Bug: keys that a pause left empty were full after the next pause.
#[test]
fn keys_stay_empty_although_the_policy_panics_at_the_end_of_a_pause() {
    without_messages();
    for fuse in 0..12 {
        let clock = ManualClock::new();
        let policy = Fragile(TokenBucket::new(Rate::per_minute(1), 5));
        let keys: KeyedRateLimiter<u64, _, _> = KeyedRateLimiter::with_clock(policy, 6, clock.clone());
        let second = Duration::from_secs(1);
        keys.pause_all_for(second);
        clock.advance(second);
        assert_eq!(keys.status(&1).available, 0);
        keys.pause_all(Pause::lasting(second).keep_permits());
        clock.advance(second);
        POLICY_FUSE.set(Some(fuse));
        let _ = quietly(|| keys.status(&1));
        POLICY_FUSE.set(None);
        assert_eq!(keys.status(&1).available, 0, "{fuse}");
    }
}

proptest! {
    /// A policy that panics leaves the count correct. A change of all keys that it interrupts
    /// leaves no key with more than the larger of the two limits.
    #[test]
    fn the_count_is_right_after_a_panic_of_the_policy(
        acts in proptest::collection::vec((0..7u32, 0..12u64, proptest::option::of(0..12u32)), 1..100),
    ) {
        without_messages();
        let clock = ManualClock::new();
        let policy = Fragile(TokenBucket::new(Rate::per_second(1), 1));
        let keys: KeyedRateLimiter<u64, _, _> = KeyedRateLimiter::with_clock(policy, 6, clock.clone());
        for (act, key, fuse) in acts {
            POLICY_FUSE.set(fuse);
            let _ = quietly(|| match act {
                0 | 1 => drop(keys.try_acquire(&key)),
                2 => drop(keys.limiter(&key)),
                3 => drop(keys.remove(&key)),
                4 => keys.sweep(),
                5 => keys.refund(&key, 1),
                _ => drop(keys.change_all(Change::rate(Rate::per_second(1 + key)))),
            });
            POLICY_FUSE.set(None);
            clock.advance(Duration::from_millis(100 * key));
            prop_assert_eq!(keys.iter().count(), keys.len(), "after {} of {} with {:?}", act, key, fuse);
        }
        clock.advance(Duration::from_secs(10));
        keys.sweep();
        prop_assert_eq!(keys.len(), 0);
    }
}

/// A change of all keys in which the policy panics for one key reaches all other keys.
#[test]
fn a_change_that_panics_for_one_key_changes_the_others() {
    without_messages();
    let clock = ManualClock::new();
    let policy = Fragile(TokenBucket::new(Rate::per_second(1), 1));
    let keys: KeyedRateLimiter<u64, _, _> = KeyedRateLimiter::with_clock(policy, 10, clock.clone());
    for key in 0..10 {
        keys.try_acquire(&key).expect("it is new");
    }
    // The trial, the policy of the shard, and then the states: the panic is at the third call for a
    // state.
    POLICY_FUSE.set(Some(7));
    assert!(
        quietly(|| keys.change_all(Change::rate(Rate::per_second(10)))).is_none(),
        "the panic reaches the caller"
    );
    POLICY_FUSE.set(None);
    assert_eq!(keys.policy().rate(), Rate::per_second(10));
    clock.advance(Duration::from_millis(100));
    let granted = (0..10u64).filter(|key| keys.try_acquire(key).is_ok()).count();
    assert!(granted >= 9, "{granted} of 10 changed");
}

/// An observer that panics does so within its own call, without a lock held, and the count remains
/// correct.
#[test]
fn an_observer_that_panics_takes_no_room() {
    struct Loud;
    impl Events for Loud {
        fn granted(&self, _: u64, _: Duration) {
            panic!("a key's observer panics");
        }
    }
    without_messages();
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    let keys: KeyedRateLimiter<u64, _, _> = KeyedRateLimiter::with_clock(policy, 3, ManualClock::new());
    let keys = keys.observed_by(Arc::new(Loud));
    for key in 0..3u64 {
        assert!(quietly(|| keys.try_acquire(&key)).is_none());
    }
    assert_eq!((keys.len(), keys.iter().count()), (3, 3));
    assert_eq!(keys.try_acquire(&4), Err(Refusal::TooManyKeys { limit: 3 }));
}
