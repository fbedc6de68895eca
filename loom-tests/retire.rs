//! Retiring a state against taking from it: one of the two succeeds, never both.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::support::model;
use crate::nanos::Nanos;
use crate::policy::cell::{Cell, update};
use crate::policy::sliding_log::{END, Head, LogState};
use crate::policy::sliding_window::SlidingState;
use crate::policy::{
    FixedWindow, LeakyBucket, Policy, SlidingEstimate, SlidingLog, SlidingWindow, SmoothBursty,
    SmoothWarmingUp, TokenBucket,
};
use crate::rate::Rate;
use crate::sync::{AtomicU64, Ordering};

const THEN: Nanos = Nanos::new(1_000_000_000);
const NOW: Nanos = Nanos::new(10_000_000_000);

/// A permit was taken long ago; one thread takes another while one retires the state. Returns whether each succeeded.
fn take_against<P: Policy>(policy: P, retire: impl Fn(&P, &P::State) -> bool, used: bool) -> (bool, bool) {
    let policy = Arc::new(policy);
    let state = Arc::new(policy.start(THEN));
    if used {
        policy.try_acquire(&state, THEN, 1).expect("the first");
    }
    let other = {
        let (policy, state) = (policy.clone(), state.clone());
        thread::spawn(move || policy.try_acquire(&state, NOW, 1).is_ok())
    };
    let retired = retire(&policy, &state);
    let taken = other.join().expect("no panic");
    assert!(!(retired && taken), "one of the two");
    assert_eq!(policy.is_retired(&state), retired);
    if retired {
        assert!(policy.try_acquire(&state, NOW, 1).is_err());
        assert!(policy.try_acquire(&state, Nanos::MAX, 1).is_err());
    }
    (retired, taken)
}

fn one_wins<P: Policy>(policy: fn() -> P) {
    model(move || {
        let (retired, taken) = take_against(policy(), |policy, state| policy.retire(state, NOW), true);
        assert!(retired != taken, "one of the two");
    });
}

#[test]
fn a_bucket_is_retired_or_taken_from() {
    one_wins(|| TokenBucket::new(Rate::per_second(1), 2));
    one_wins(|| LeakyBucket::new(Rate::per_second(1)));
}

#[test]
fn one_who_pays_later_is_retired_or_taken_from() {
    one_wins(|| SmoothBursty::new(Rate::per_second(1)));
    one_wins(|| SmoothWarmingUp::new(Rate::per_second(1), Duration::from_secs(1)));
}

#[test]
fn a_window_is_retired_or_taken_from() {
    one_wins(|| FixedWindow::new(Rate::per_second(1)));
    one_wins(|| SlidingEstimate::new(Rate::per_second(1)));
}

/// The broken twin: looks whether the word is at rest, and then stores.
#[test]
#[should_panic(expected = "one of the two")]
fn broken_a_word_is_retired_or_taken_from() {
    const DEAD: u64 = u64::MAX;
    model(|| {
        let state = Arc::new(AtomicU64::new(0));
        let other = {
            let state = state.clone();
            let take = |word| if word == 0 { Ok((1, ())) } else { Err(()) };
            thread::spawn(move || update(&*state, take).is_ok())
        };
        let retired = Cell::load(&*state) == 0;
        if retired {
            state.store(DEAD, Ordering::Relaxed);
        }
        assert!(retired != other.join().expect("no panic"), "one of the two");
    });
}

/// A window in two cells.
fn sliding(retire: fn(&SlidingWindow, &SlidingState) -> bool, used: bool) -> (bool, bool) {
    take_against(SlidingWindow::new("1/2s".parse::<Rate>().expect("a rate"), 2), retire, used)
}

#[test]
fn a_sliding_window_is_retired_or_taken_from() {
    model(|| {
        let (retired, taken) = sliding(|policy, state| policy.retire(state, NOW), false);
        assert!(retired != taken, "one of the two");
    });
}

/// The permit of an old cell is rolled by one of them, and then both may be refused.
#[test]
fn a_sliding_window_is_not_both_retired_and_taken_from() {
    model(|| {
        sliding(|policy, state| policy.retire(state, NOW), true);
    });
}

/// The broken twin: looks at the sum, and then stores.
#[test]
#[should_panic(expected = "one of the two")]
fn broken_a_sliding_window_is_retired_or_taken_from() {
    model(|| {
        let retire = |_: &SlidingWindow, state: &SlidingState| {
            let retired = state.total.load(Ordering::Relaxed) == 0;
            if retired {
                state.total.store(u64::MAX, Ordering::Relaxed);
            }
            retired
        };
        sliding(retire, false);
    });
}

fn log(retire: fn(&SlidingLog, &LogState) -> bool) -> (bool, bool) {
    take_against(SlidingLog::new("2/10ns".parse::<Rate>().expect("a rate")), retire, true)
}

#[test]
fn a_log_is_retired_or_taken_from() {
    model(|| {
        let (retired, taken) = log(|policy, state| policy.retire(state, NOW));
        assert!(retired != taken, "one of the two");
    });
}

/// The broken twin: looks at the last time, and then replaces the head, whatever it is.
#[test]
#[should_panic(expected = "one of the two")]
fn broken_a_log_is_retired_or_taken_from() {
    model(|| {
        let retire = |_: &SlidingLog, state: &LogState| {
            let retired = state.head().time < crate::policy::window::stamp(NOW);
            while retired {
                let head = state.head();
                let dead = Head { place: state.moved(head.place, 2), n: 2, time: END, ..head.settled() };
                if state.exchange(head, dead).is_ok() {
                    state.help(dead);
                    break;
                }
            }
            retired
        };
        log(retire);
    });
}

/// More is counted than there is room for, while somebody takes: what was counted stays, and what is taken counts beside it.
#[test]
fn a_debit_is_counted_beside_a_take() {
    model(|| {
        let policy = Arc::new(SlidingLog::new("2/10ns".parse::<Rate>().expect("a rate")));
        let state = Arc::new(policy.start(THEN));
        policy.try_acquire(&state, THEN, 1).expect("the first");
        let other = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || policy.debit(&state, NOW, 2))
        };
        let _ = policy.try_acquire(&state, NOW, 1);
        other.join().expect("no panic");
        assert!(policy.try_acquire(&state, NOW, 1).is_err());
        assert_eq!(policy.ready_at(&state, NOW, 0, 1), Nanos::new(10_000_000_010));
    });
}
