//! Models the head and the cells of a sliding window.

use std::sync::Arc;

use loom::thread;

use super::support::model_of_three;
use crate::policy::window::cells::Head;
use crate::policy::window::sliding::SlidingState;
use crate::policy::window::stamp;
use crate::policy::{Policy, SlidingWindow};
use crate::rate::Rate;
use crate::sync::Ordering;
use crate::time::Nanos;

/// Returns two cells of a second each, with this many permits.
fn permits(text: &str) -> SlidingWindow {
    SlidingWindow::new(text.parse::<Rate>().expect("a rate"), 2)
}

fn at(seconds: u64) -> Nanos {
    Nanos::new(seconds * 1_000_000_000)
}

fn takes(policy: &SlidingWindow, state: &SlidingState, seconds: u64) -> usize {
    usize::from(policy.try_acquire(state, at(seconds), 1).is_ok())
}

/// The permit was taken in a cell that has expired. Two threads arrive, and each takes by `take`.
/// Returns how many were granted.
fn in_a_new_cell(take: fn(&SlidingWindow, &SlidingState) -> usize) -> usize {
    let policy = Arc::new(permits("1/2s"));
    let state = Arc::new(policy.start(Nanos::ZERO));
    assert_eq!(takes(&policy, &state, 0), 1);
    let other = {
        let (policy, state) = (policy.clone(), state.clone());
        thread::spawn(move || take(&policy, &state))
    };
    let mine = take(&policy, &state);
    mine + other.join().expect("no panic")
}

/// Both threads open the cell, or one finds it open and enters it. One of them is granted.
#[test]
fn a_cell_is_opened_once() {
    // Bounded, like the models of three threads: every interleaving takes a minute.
    model_of_three(|| assert_eq!(in_a_new_cell(|policy, state| takes(policy, state, 2)), 1));
}

/// The broken twin: opens a cell and counts in it in one step, and enters it after that. Until the
/// cell is entered, its permits are not counted.
#[test]
#[should_panic(expected = "one at most")]
fn broken_a_cell_is_opened_once() {
    model_of_three(|| {
        let granted = in_a_new_cell(|policy, state| {
            let (cells, window) = (&state.cells, policy.window.get());
            let Some(seen) = cells.head.load() else {
                return 0;
            };
            let head = Head::decode(seen.content());
            let view = cells.view(head, &window, 2, stamp(at(2)));
            if view.sum > 0 {
                return 0;
            }
            let number = head.number + u64::from(head.time < view.beginning);
            let counted = Head { time: view.beginning, number, total: head.total + 1, ..head };
            if !cells.head.replace(seen, counted.encode(), Ordering::Release) {
                return 0;
            }
            let opened = Head { time: view.beginning, number, ..head };
            if let Some(seen) = cells.head.load() {
                cells.enter(seen, &opened);
            }
            1
        });
        assert!(granted <= 1, "one at most");
    });
}

/// Three takers, one with a clock that is a cell ahead. One of them is granted in the two cells
/// that all of them see.
#[test]
fn a_taker_that_is_behind_takes_nothing_twice() {
    model_of_three(|| {
        let policy = Arc::new(permits("1/2s"));
        let state = Arc::new(policy.start(Nanos::ZERO));
        let others: Vec<_> = [1, 2]
            .into_iter()
            .map(|seconds| {
                let (policy, state) = (policy.clone(), state.clone());
                thread::spawn(move || takes(&policy, &state, seconds))
            })
            .collect();
        let mine = takes(&policy, &state, 1);
        let granted = mine + others.into_iter().map(|other| other.join().expect("no panic")).sum::<usize>();
        assert_eq!(granted, 1);
        assert_eq!(policy.status(&state, at(2)).available, 0);
    });
}

/// Two of two permits are taken. One of them is given back while a thread takes one in the cell of
/// a time.
fn given_back_while(
    seconds: u64,
    give_back: fn(&SlidingWindow, &SlidingState, <SlidingWindow as Policy>::Charge),
) {
    model_of_three(move || {
        let policy = Arc::new(permits("2/2s"));
        let state = Arc::new(policy.start(Nanos::ZERO));
        let charge = policy.try_acquire(&state, at(0), 1).expect("the first");
        assert_eq!(takes(&policy, &state, 0), 1);
        let giving_back = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || give_back(&policy, &state, charge))
        };
        let meanwhile = takes(&policy, &state, seconds);
        giving_back.join().expect("no panic");
        let after = (0..3).take_while(|_| takes(&policy, &state, seconds) == 1).count();
        assert_eq!(meanwhile + after, if seconds < 2 { 1 } else { 2 }, "as many as there were");
    });
}

/// Runs in the permit's own cell, in the next cell, which a taker opens meanwhile, and after the
/// cell has expired.
#[test]
fn a_permit_given_back_is_taken_once() {
    for seconds in [0, 1, 2] {
        given_back_while(seconds, |policy, state, charge| {
            policy.undo(state, at(0), charge, u64::MAX);
        });
    }
    for seconds in [0, 1] {
        given_back_while(seconds, |policy, state, _| {
            policy.refund(state, at(0), 1);
        });
    }
}

/// The broken twin: takes out of the newest cell, whichever it is by then.
#[test]
#[should_panic(expected = "as many as there were")]
fn broken_a_permit_given_back_is_taken_once() {
    given_back_while(2, |policy, state, _| {
        state.cells.head.update(|| policy.window.wait(), |content| content - 1);
    });
}

/// Two threads give back the permits of one cell. No more permits than that are freed.
#[test]
fn two_that_give_back_find_each_permit_once() {
    model_of_three(|| {
        let policy = Arc::new(permits("2/2s"));
        let state = Arc::new(policy.start(Nanos::ZERO));
        let charge = policy.try_acquire(&state, at(0), 1).expect("the first");
        assert_eq!(takes(&policy, &state, 1), 1);
        let giving_back = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || policy.undo(&state, at(1), charge, u64::MAX))
        };
        policy.refund(&state, at(1), 1);
        giving_back.join().expect("no panic");
        // Both threads give back the permit of the first cell, or the refund comes second and finds
        // the permit of the other cell.
        let available = policy.status(&state, at(1)).available;
        assert!((1..=2).contains(&available), "{available}");
        assert_eq!((0..3).take_while(|_| takes(&policy, &state, 1) == 1).count() as u64, available);
    });
}

/// Changes, after which the numbers of cells have wrapped, and another one against a taker in a new
/// cell: no slot shows a cell of before. Loom's numbers wrap after 16.
#[test]
fn numbers_that_wrap_show_no_cell_of_before() {
    for changes in 0..5 {
        model_of_three(move || {
            let policy = Arc::new(permits("1/2s"));
            let state = Arc::new(policy.start(Nanos::ZERO));
            assert_eq!(takes(&policy, &state, 0), 1);
            for _ in 0..changes {
                policy.set_rate(&state, at(0), policy.rate());
            }
            let changing = {
                let (policy, state) = (policy.clone(), state.clone());
                thread::spawn(move || policy.set_rate(&state, at(0), policy.rate()))
            };
            let meanwhile = takes(&policy, &state, 1) + takes(&policy, &state, 2) + takes(&policy, &state, 2);
            changing.join().expect("no panic");
            assert_eq!(meanwhile + takes(&policy, &state, 2), 1);
            assert_eq!(policy.status(&state, at(2)).available, 0);
        });
    }
}

/// A thread stalls while it enters a cell. Meanwhile the rate is set, and cells are opened until
/// one of them has its slot.
#[test]
fn a_thread_that_stalls_across_a_change_moves_no_cell() {
    model_of_three(|| {
        let policy = Arc::new(permits("1/2s"));
        let state = Arc::new(policy.start(Nanos::ZERO));
        let stalling = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || takes(&policy, &state, 0))
        };
        policy.set_rate(&state, at(0), policy.rate());
        for seconds in [2, 4, 6] {
            takes(&policy, &state, seconds);
            assert_eq!(policy.status(&state, at(seconds)).available, 0);
        }
        stalling.join().expect("no panic");
        assert_eq!(policy.status(&state, at(6)).available, 0);
    });
}
