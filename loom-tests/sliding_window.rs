//! The sum and the cells of a sliding window.

use std::sync::Arc;

use loom::thread;

use super::support::{model, model_of_three};
use crate::nanos::Nanos;
use crate::policy::sliding_window::{Cell, SlidingState, replace};
use crate::policy::{Policy, SlidingWindow};
use crate::rate::Rate;
use crate::sync::{AtomicU128, Ordering};

/// Two cells of a second each, and one permit.
fn one_permit() -> SlidingWindow {
    SlidingWindow::new("1/2s".parse::<Rate>().expect("a rate"), 2)
}

fn at(seconds: u64) -> Nanos {
    Nanos::new(seconds * 1_000_000_000)
}

fn sum(state: &SlidingState) -> u64 {
    state.cells.iter().map(|cell| Cell::decode(cell.load(Ordering::Relaxed)).count).sum()
}

/// The cell in which the first permit was taken.
fn first_cell(state: &SlidingState) -> &AtomicU128 {
    let used = |cell: &&AtomicU128| Cell::decode(cell.load(Ordering::Relaxed)).beginning > 0;
    state.cells.iter().find(used).expect("the first permit is in one")
}

/// The permit was taken in a cell that is old by now, and its place in the ring is that of the new one. Two threads come; each
/// takes by `take`. Returns the state and how many were granted.
fn roll_over(take: fn(&SlidingWindow, &SlidingState) -> bool) -> (Arc<SlidingState>, usize) {
    let policy = Arc::new(one_permit());
    let state = Arc::new(policy.start(Nanos::ZERO));
    policy.try_acquire(&state, at(0), 1).expect("the first");
    let other = {
        let (policy, state) = (policy.clone(), state.clone());
        thread::spawn(move || take(&policy, &state))
    };
    let mine = take(&policy, &state);
    let granted = usize::from(mine) + usize::from(other.join().expect("no panic"));
    (state, granted)
}

/// Both find the permit of the old cell, and one of them gets it.
#[test]
fn a_cell_is_rolled_once() {
    // Bounded, as are those of three: every interleaving takes a minute.
    model_of_three(|| {
        let (state, granted) = roll_over(|policy, state| policy.try_acquire(state, at(2), 1).is_ok());
        // Both are refused if the one that rolled had not released yet when the other looked; never are both granted.
        assert!(granted <= 1);
        assert_eq!(state.total.load(Ordering::Relaxed), sum(&state));
        assert_eq!(granted as u64, sum(&state) * u64::from(granted > 0));
    });
}

/// The broken twin: adds up the cells, and then adds to one.
#[test]
#[should_panic(expected = "one at most")]
fn broken_a_cell_is_rolled_once() {
    model(|| {
        let (_, granted) = roll_over(|_, state| {
            let old = Cell::decode(first_cell(state).load(Ordering::Relaxed)).beginning;
            let later = old + 2_000_000_000;
            let counted = |cell: Cell| if cell.beginning == later { cell.count } else { 0 };
            let sum: u64 =
                state.cells.iter().map(|cell| counted(Cell::decode(cell.load(Ordering::Relaxed)))).sum();
            if sum >= 1 {
                return false;
            }
            let cell = |cell: Cell| Some(Cell { beginning: later, count: counted(cell) + 1, ..cell });
            replace(first_cell(state), cell).is_some()
        });
        assert!(granted <= 1, "one at most");
    });
}

/// The broken twin: releases an old cell before it has rolled it, so that two release it.
#[test]
#[should_panic(expected = "the sum of its cells")]
fn broken_a_cell_is_released_once() {
    model(|| {
        let (state, _) = roll_over(|_, state| {
            let old = Cell::decode(first_cell(state).load(Ordering::Relaxed));
            if old.count > 0 {
                state.total.fetch_sub(old.count, Ordering::Relaxed);
                replace(first_cell(state), |cell| Some(Cell { count: 0, ..cell }));
            }
            false
        });
        assert_eq!(state.total.load(Ordering::Relaxed), sum(&state), "the sum of its cells");
    });
}

/// Three takers, one with a clock that is a cell behind, and one that is two cells ahead: never more than one in the two
/// cells that any of them sees.
#[test]
fn a_taker_that_is_behind_takes_nothing_twice() {
    model_of_three(|| {
        let policy = Arc::new(one_permit());
        let state = Arc::new(policy.start(Nanos::ZERO));
        let others: Vec<_> = [1, 2]
            .into_iter()
            .map(|seconds| {
                let (policy, state) = (policy.clone(), state.clone());
                thread::spawn(move || usize::from(policy.try_acquire(&state, at(seconds), 1).is_ok()))
            })
            .collect();
        let mine = usize::from(policy.try_acquire(&state, at(1), 1).is_ok());
        let granted = mine + others.into_iter().map(|other| other.join().expect("no panic")).sum::<usize>();
        assert_eq!(granted, 1);
        assert_eq!((state.total.load(Ordering::Relaxed), sum(&state)), (1, 1));
    });
}

/// A permit is given back while its cell is rolled: it is released once.
#[test]
fn a_permit_given_back_while_its_cell_is_rolled_is_released_once() {
    model(|| {
        let policy = Arc::new(one_permit());
        let state = Arc::new(policy.start(Nanos::ZERO));
        let charge = policy.try_acquire(&state, at(0), 1).expect("the first");
        let giving_back = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || policy.undo(&state, at(1), charge, u64::MAX))
        };
        let granted = u64::from(policy.try_acquire(&state, at(2), 1).is_ok());
        giving_back.join().expect("no panic");
        assert_eq!((state.total.load(Ordering::Relaxed), sum(&state)), (granted, granted));
    });
}
