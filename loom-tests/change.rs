//! A change of the terms against a request: what is granted altogether is no more than the larger of the old and the new terms allow.

use std::sync::Arc;

use loom::thread;

use super::support::{model, model_of_three};
use crate::nanos::Nanos;
use crate::policy::sliding_window::{Cell, SlidingState, replace};
use crate::policy::window::stamp;
use crate::policy::{
    BucketState, Change, FixedWindow, Keep, Policy, SlidingEstimate, SlidingWindow, TokenBucket,
};
use crate::rate::Rate;
use crate::sync::{AtomicU128, Ordering};

fn at(seconds: u64) -> Nanos {
    Nanos::new(seconds * 1_000_000_000)
}

fn rate(text: &str) -> Rate {
    text.parse().expect("a rate")
}

/// One permit is taken; one thread takes another while one changes the terms; and then somebody takes all there is. Returns how many were
/// granted, all in the same instant.
fn granted<P: Policy>(policy: P, now: Nanos, change: impl Fn(&P, &P::State)) -> usize {
    let policy = Arc::new(policy);
    let state = Arc::new(policy.start(Nanos::ZERO));
    policy.try_acquire(&state, now, 1).expect("the first");
    let other = {
        let (policy, state) = (policy.clone(), state.clone());
        thread::spawn(move || usize::from(policy.try_acquire(&state, now, 1).is_ok()))
    };
    change(&policy, &state);
    let meanwhile = other.join().expect("no panic");
    let after = (0..4).take_while(|_| policy.try_acquire(&state, now, 1).is_ok()).count();
    1 + meanwhile + after
}

/// From one window to another and back, in cells of different places in the ring.
fn sliding(from: &'static str, to: &'static str) {
    for second in [12, 13] {
        model(move || {
            let change = |policy: &SlidingWindow, state: &_| {
                policy.change(state, at(second), Change::rate(rate(to)).keep(Keep::Count)).expect("fits");
            };
            let granted = granted(SlidingWindow::new(rate(from), 2), at(second), change);
            assert_eq!(granted, 2, "two by either terms");
        });
    }
}

#[test]
fn a_sliding_window_that_becomes_longer_forgets_nothing() {
    sliding("2/2s", "2/20s");
}

#[test]
fn a_sliding_window_that_becomes_shorter_forgets_nothing() {
    sliding("2/20s", "2/2s");
}

/// The broken twin: a taker that goes on with the old terms, and does not look at the generation of the cell.
#[test]
#[should_panic(expected = "two by either terms")]
fn broken_a_sliding_window_that_becomes_longer_forgets_nothing() {
    for second in [12, 13] {
        model(move || {
            let now = at(second);
            let policy = Arc::new(SlidingWindow::new(rate("2/2s"), 2));
            // Where one is counted by these terms.
            let scratch = policy.start(now);
            policy.try_acquire(&scratch, now, 1).expect("the first");
            let cell = |cell: &AtomicU128| Cell::decode(cell.load(Ordering::Relaxed));
            let index = scratch.cells.iter().position(|there| cell(there).count > 0).expect("it is in one");
            let beginning = cell(&scratch.cells[index]).beginning;

            let state = Arc::new(policy.start(now));
            policy.try_acquire(&state, now, 1).expect("the first");
            let take = move |state: &SlidingState| {
                let reserve = |total: u64| (total < 2).then_some(total + 1);
                if state.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).is_err() {
                    return 0;
                }
                let counted = replace(&state.cells[index], |cell| match beginning > cell.beginning {
                    true => Some(Cell { beginning, count: 1, ..cell }),
                    false => Some(Cell { count: cell.count + 1, ..cell }),
                });
                if let Some((old, new)) = counted
                    && new.beginning > old.beginning
                {
                    state.total.fetch_sub(old.count, Ordering::Relaxed);
                }
                1
            };
            let other = {
                let state = state.clone();
                thread::spawn(move || take(&state))
            };
            policy.change(&state, now, Change::rate(rate("2/20s"))).expect("fits");
            let meanwhile = other.join().expect("no panic");
            let after = (0..4).take_while(|_| policy.try_acquire(&state, now, 1).is_ok()).count();
            assert!(1 + meanwhile + after <= 2, "two by either terms");
        });
    }
}

fn one_word<P: Policy>(policy: impl Fn(Rate) -> P + Copy + Send + Sync + 'static) {
    for (from, to) in [("2/2s", "2/20s"), ("2/20s", "2/2s"), ("2/20s", "1/3s")] {
        // Bounded, as are those of three: every interleaving takes a minute.
        model_of_three(move || {
            let change = |policy: &P, state: &P::State| {
                policy.change(state, at(13), Change::rate(rate(to)).keep(Keep::Count)).expect("fits");
            };
            assert!(granted(policy(rate(from)), at(13), change) <= 2, "two by either terms");
        });
    }
}

#[test]
fn a_fixed_window_that_changes_forgets_nothing() {
    one_word(FixedWindow::new);
    one_word(|rate| FixedWindow::new(rate).from_first_grant());
}

/// The broken twin: converts the word, and then publishes the longer window.
#[test]
#[should_panic(expected = "two by either terms")]
fn broken_a_fixed_window_that_changes_forgets_nothing() {
    model_of_three(|| {
        let change = |policy: &FixedWindow, state: &_| {
            let (old, new) = (policy.window.get(), policy.window.with(rate("2/20s")));
            policy.convert(state, stamp(at(13)), &old, &new, Keep::Count);
            policy.window.set(rate("2/20s"));
        };
        assert!(granted(FixedWindow::new(rate("2/2s")), at(13), change) <= 2, "two by either terms");
    });
}

#[test]
fn an_estimate_that_changes_forgets_nothing() {
    one_word(SlidingEstimate::new);
}

/// The broken twin: converts the word, and then publishes the longer window.
#[test]
#[should_panic(expected = "two by either terms")]
fn broken_an_estimate_that_changes_forgets_nothing() {
    model_of_three(|| {
        let change = |policy: &SlidingEstimate, state: &_| {
            let (old, new) = (policy.window.get(), policy.window.with(rate("2/20s")));
            SlidingEstimate::convert(state, stamp(at(13)), &old, &new, Keep::Count);
            policy.window.set(rate("2/20s"));
        };
        assert!(granted(SlidingEstimate::new(rate("2/2s")), at(13), change) <= 2, "two by either terms");
    });
}

#[test]
fn a_bucket_that_changes_forgets_nothing() {
    one_word(|rate| TokenBucket::new(rate, 2));
}

/// A bucket of two, of which some are taken, becomes faster, while another thread tries twice. Returns how many were
/// granted, all in the same instant.
fn granted_while_faster(
    taken: usize,
    other_takes: impl Fn(&TokenBucket, &BucketState) -> bool + Send + 'static,
) -> usize {
    let policy = Arc::new(TokenBucket::new(rate("2/20s"), 2));
    let state = Arc::new(policy.start(Nanos::ZERO));
    let now = at(13);
    for _ in 0..taken {
        policy.try_acquire(&state, now, 1).expect("the first");
    }
    let other = {
        let (policy, state) = (policy.clone(), state.clone());
        thread::spawn(move || (0..2).filter(|_| other_takes(&policy, &state)).count())
    };
    policy.change(&state, now, Change::rate(rate("2/2s"))).expect("fits");
    let meanwhile = other.join().expect("no panic");
    taken + meanwhile + (0..4).take_while(|_| policy.try_acquire(&state, now, 1).is_ok()).count()
}

#[test]
fn a_bucket_that_becomes_faster_grants_nothing_twice() {
    for taken in [0, 1] {
        model_of_three(move || {
            let granted =
                granted_while_faster(taken, |policy, state| policy.try_acquire(state, at(13), 1).is_ok());
            assert!(granted <= 2, "two by either terms");
        });
    }
}

/// The broken twin: the faster rate is published before the bucket is converted.
#[test]
#[should_panic(expected = "two by either terms")]
fn broken_a_bucket_that_becomes_faster_grants_nothing_twice() {
    model_of_three(|| {
        let published = TokenBucket::new(rate("2/2s"), 2);
        let granted =
            granted_while_faster(1, move |_, state| published.try_acquire(state, at(13), 1).is_ok());
        assert!(granted <= 2, "two by either terms");
    });
}
