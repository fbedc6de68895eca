//! Models words that are read as one while they are replaced.

use loom::thread;
use std::sync::Arc;
use std::time::Duration;

use super::support::model;
use crate::policy::published::Published;
use crate::policy::remainder::Shut;
use crate::policy::state::BurstyState;
use crate::policy::{Policy, SmoothBursty, ticks};
use crate::rate::Rate;
use crate::time::Nanos;

/// A reader reads by `read` against two publications, the second into the slot that the reader may
/// be reading.
fn read_against_publications(read: fn(&Published<2>) -> [u64; 2]) {
    model(move || {
        let words = Arc::new(Published::new([0, 0]));
        let writer = {
            let words = words.clone();
            thread::spawn(move || {
                words.writer().publish([1, 1]);
                words.writer().publish([2, 2]);
            })
        };
        let [a, b] = read(&words);
        assert_eq!(a, b, "one publication");
        writer.join().expect("no panic");
        assert_eq!(words.read(0), [2, 2]);
    });
}

#[test]
fn a_reader_sees_one_publication() {
    read_against_publications(|words| words.read(0));
}

/// The broken twin: checks the version after each word, and not after both.
#[test]
#[should_panic(expected = "one publication")]
fn broken_a_reader_sees_one_publication() {
    read_against_publications(|words| {
        let ([a], [b]) = (words.read(0), words.read(1));
        [a, b]
    });
}

/// Two writers publish at once. In the end the words are those of one writer.
#[test]
fn writers_take_turns() {
    model(|| {
        let words = Arc::new(Published::new([0, 0]));
        let other = {
            let words = words.clone();
            thread::spawn(move || words.writer().publish([1, 1]))
        };
        words.writer().publish([2, 2]);
        other.join().expect("no panic");
        let [a, b] = words.read(0);
        assert_eq!(a, b);
    });
}

/// A request takes three permits by `take` while the rate changes. Its cost is that of the old rate
/// or of the new one.
fn take_while_the_rate_changes(take: fn(&SmoothBursty, &BurstyState)) {
    model(move || {
        let policy = Arc::new(SmoothBursty::new(Rate::per_second(10)).max_burst(Duration::ZERO));
        let state = Arc::new(policy.start(Nanos::ZERO));
        let taker = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || take(&policy, &state))
        };
        policy.set_rate(&state, Nanos::ZERO, Rate::per_minute(7));
        taker.join().expect("no panic");
        let due = policy.ready_at(&state, Nanos::ZERO, 0, 1);
        let (old, new) = (Nanos::new(300_000_000), Nanos::new(25_714_285_715));
        assert!(due == old || due == new, "one rate: {due:?}");
        assert_eq!(policy.rate(), Rate::per_minute(7));
    });
}

#[test]
fn a_take_is_priced_by_one_rate() {
    take_while_the_rate_changes(|policy, state| {
        policy.try_acquire(state, Nanos::ZERO, 3).expect("due");
    });
}

/// The broken twin: reads the rate for each permit.
#[test]
#[should_panic(expected = "one rate")]
fn broken_a_take_is_priced_by_one_rate() {
    take_while_the_rate_changes(|policy, state| {
        (0..3).for_each(|_| policy.debit(state, Nanos::ZERO, 1));
    });
}

/// A request takes permits by `take` while the rate changes from zero. The cost at a rate of zero
/// never shuts a limiter that has a rate.
fn take_while_a_rate_begins(take: fn(&SmoothBursty, &BurstyState, u32)) {
    for n in [1, 3] {
        model(move || {
            let policy = Arc::new(SmoothBursty::new(Rate::ZERO));
            let state = Arc::new(policy.start(Nanos::ZERO));
            let taker = {
                let (policy, state) = (policy.clone(), state.clone());
                thread::spawn(move || take(&policy, &state, n))
            };
            policy.set_rate(&state, Nanos::ZERO, Rate::per_second(10));
            taker.join().expect("no panic");
            assert!(policy.ready_at(&state, LATER, 0, 1) < Nanos::MAX, "shut for good");
        });
    }
}

const LATER: Nanos = Nanos::new(1);

#[test]
fn a_take_while_a_rate_begins_shuts_no_limiter() {
    take_while_a_rate_begins(|policy, state, n| {
        let _ = policy.try_acquire(state, LATER, n);
    });
}

/// The broken twin: reads the cost first, and then whether the rate is zero.
#[test]
#[should_panic(expected = "shut for good")]
fn broken_a_take_while_a_rate_begins_shuts_no_limiter() {
    take_while_a_rate_begins(|policy, state, n| match policy.weight(n) {
        _ if policy.rate().is_zero() => {}
        // A grant at this cost shuts the state.
        ticks::NEVER => drop(policy.shut(state, &|| LATER)),
        _ => drop(policy.try_acquire(state, LATER, n)),
    });
}
