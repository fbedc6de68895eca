//! Models a grant of a window that is undone while the terms change, while the window is reset, and
//! while another request asks what it left: no permit of another request is taken out.

use std::sync::Arc;

use loom::thread;

use super::support::model_of_three;
use crate::policy::window::CurrentWindow;
use crate::policy::window::closable::ClosableWord;
use crate::policy::{
    Change, FixedWindow, Keep, Policy, PolicyStatus, SlidingEstimate, SlidingLog, SlidingWindow,
};
use crate::rate::Rate;
use crate::time::Nanos;

/// The time of all changes, and of all undoing.
const NOW: Nanos = Nanos::new(13_000_000_000);
/// In one window of four seconds, and in one cell of two seconds, with `NOW`.
const EARLIER: Nanos = Nanos::new(12_000_000_000);
const IN_THE_CELL_BEFORE: Nanos = Nanos::new(11_000_000_000);

fn rate(text: &str) -> Rate {
    text.parse().expect("a rate")
}

/// Gives back a grant.
type Undo<P> = fn(&P, &<P as Policy>::State, <P as Policy>::Charge);

fn undo<P: Policy>(policy: &P, state: &P::State, charge: P::Charge) {
    policy.undo(state, NOW, charge, u64::MAX);
}

/// The broken step: compares the version of the terms, and then takes the permits out of what is
/// counted by then.
fn take_out<const TOP: u32, const TURNS: u32>(
    window: &CurrentWindow,
    word: &ClosableWord<TOP, TURNS>,
    n: u32,
) {
    if window.version() == 0 {
        // Each policy has its count in the lowest bits.
        word.update(|| window.wait(), |content| content - u128::from(n));
    }
}

/// Two requests take `n` permits each. The first grant is undone by `undo` while `change` runs.
/// Returns how many permits are in use.
fn in_use<P: Policy>(
    policy: P,
    (first, n): (Nanos, u32),
    undo: Undo<P>,
    change: impl Fn(&P, &P::State),
) -> u64 {
    let state = policy.start(Nanos::ZERO);
    let charge = policy.try_acquire(&state, first, n).expect("the first");
    policy.try_acquire(&state, NOW, n).expect("the other");
    let both = Arc::new((policy, state));
    let undoing = {
        let both = both.clone();
        thread::spawn(move || undo(&both.0, &both.1, charge))
    };
    change(&both.0, &both.1);
    undoing.join().expect("no panic");
    let status = both.0.status(&both.1, NOW);
    status.limit - status.available
}

/// The limit is halved, and with it what is counted. The grant is undone before that, or not any
/// more. So at least half of the permits of the other request stay in use.
fn while_the_limit_is_halved<P: Policy>(
    policy: impl Fn(Rate) -> P + Send + Sync + 'static,
    first: Nanos,
    undo: Undo<P>,
) {
    model_of_three(move || {
        let in_use = in_use(policy(rate("4/4s")), (first, 2), undo, |policy, state| {
            policy.change(state, NOW, Change::rate(rate("2/4s")).keep(Keep::Ratio)).expect("fits");
        });
        assert!((1..=2).contains(&in_use), "half of the other request: {in_use}");
    });
}

/// The window becomes longer or shorter, and keeps what is counted.
fn while_the_length_changes<P: Policy>(policy: impl Fn(Rate) -> P + Copy + Send + Sync + 'static) {
    for (from, to) in [("2/2s", "2/20s"), ("2/20s", "2/2s")] {
        model_of_three(move || {
            let in_use = in_use(policy(rate(from)), (NOW, 1), undo, |policy, state| {
                policy.change(state, NOW, Change::rate(rate(to)).keep(Keep::Count)).expect("fits");
            });
            assert!((1..=2).contains(&in_use), "the other request: {in_use}");
        });
    }
}

/// After the changes, which forget both grants, another request takes as many permits as both had.
fn while_it_is_reset<P: Policy>(
    policy: impl Fn(Rate) -> P + Send + Sync + 'static,
    changes: fn(&P, &P::State),
    undo: Undo<P>,
) {
    model_of_three(move || {
        let in_use = in_use(policy(rate("4/4s")), (NOW, 1), undo, |policy, state| {
            changes(policy, state);
            policy.try_acquire(state, NOW, 2).expect("nothing is in use");
        });
        assert_eq!(in_use, 2, "the request after the reset");
    });
}

fn reset<P: Policy>(policy: &P, state: &P::State) {
    policy.change(state, NOW, Change::reset()).expect("a reset");
}

/// Two changes, the second to equal terms. They leave one bit of turns as it was.
fn reset_and_change<P: Policy>(policy: &P, state: &P::State) {
    reset(policy, state);
    policy.set_rate(state, NOW, rate("4/4s"));
}

#[test]
fn undoing_takes_nothing_out_of_a_fixed_window_that_changes() {
    for first in [NOW, EARLIER] {
        while_the_limit_is_halved(FixedWindow::new, first, undo);
        while_the_limit_is_halved(|rate| FixedWindow::new(rate).from_first_grant(), first, undo);
    }
    while_the_length_changes(FixedWindow::new);
    while_the_length_changes(|rate| FixedWindow::new(rate).from_first_grant());
}

#[test]
fn undoing_takes_nothing_out_of_a_fixed_window_that_is_reset() {
    for changes in [reset, reset_and_change] {
        while_it_is_reset(FixedWindow::new, changes, undo);
        while_it_is_reset(|rate| FixedWindow::new(rate).from_first_grant(), changes, undo);
    }
}

#[test]
fn undoing_takes_nothing_out_of_an_estimate_that_changes() {
    for first in [NOW, EARLIER] {
        while_the_limit_is_halved(SlidingEstimate::new, first, undo);
    }
    while_the_length_changes(SlidingEstimate::new);
}

#[test]
fn undoing_takes_nothing_out_of_an_estimate_that_is_reset() {
    while_it_is_reset(SlidingEstimate::new, reset, undo);
}

/// The exception: an estimate counts changes in one bit, and undoing does not compare the version
/// twice. `policy/window/closable.rs` names it under "What remains".
#[test]
#[should_panic(expected = "the request after the reset")]
fn undoing_over_two_changes_at_one_instant_takes_out_of_an_estimate() {
    while_it_is_reset(SlidingEstimate::new, reset_and_change, undo);
}

/// Both grants are in one cell, or in two.
#[test]
fn undoing_takes_nothing_out_of_a_sliding_window_that_changes() {
    for first in [NOW, IN_THE_CELL_BEFORE] {
        while_the_limit_is_halved(|rate| SlidingWindow::new(rate, 2), first, undo);
    }
    while_the_length_changes(|rate| SlidingWindow::new(rate, 2));
}

#[test]
fn undoing_takes_nothing_out_of_a_sliding_window_that_is_reset() {
    for changes in [reset, reset_and_change] {
        while_it_is_reset(|rate| SlidingWindow::new(rate, 2), changes, undo);
    }
}

#[test]
#[should_panic(expected = "half of the other request")]
fn broken_undoing_takes_nothing_out_of_a_fixed_window_that_changes() {
    while_the_limit_is_halved(FixedWindow::new, NOW, |policy, state, charge| {
        take_out(&policy.window, &state.word, policy.permits(charge));
    });
}

#[test]
#[should_panic(expected = "the request after the reset")]
fn broken_undoing_takes_nothing_out_of_a_fixed_window_that_is_reset() {
    while_it_is_reset(FixedWindow::new, reset, |policy, state, charge| {
        take_out(&policy.window, &state.word, policy.permits(charge));
    });
}

#[test]
#[should_panic(expected = "half of the other request")]
fn broken_undoing_takes_nothing_out_of_an_estimate_that_changes() {
    while_the_limit_is_halved(SlidingEstimate::new, NOW, |policy, state, charge| {
        take_out(&policy.window, &state.word, policy.permits(charge));
    });
}

#[test]
#[should_panic(expected = "the request after the reset")]
fn broken_undoing_takes_nothing_out_of_an_estimate_that_is_reset() {
    while_it_is_reset(SlidingEstimate::new, reset, |policy, state, charge| {
        take_out(&policy.window, &state.word, policy.permits(charge));
    });
}

#[test]
#[should_panic(expected = "half of the other request")]
fn broken_undoing_takes_nothing_out_of_a_sliding_window_that_changes() {
    let two_cells = |rate| SlidingWindow::new(rate, 2);
    while_the_limit_is_halved(two_cells, NOW, |policy, state, charge| {
        take_out(&policy.window, &state.cells.head, policy.permits(charge));
    });
}

#[test]
#[should_panic(expected = "the request after the reset")]
fn broken_undoing_takes_nothing_out_of_a_sliding_window_that_is_reset() {
    let two_cells = |rate| SlidingWindow::new(rate, 2);
    while_it_is_reset(two_cells, reset, |policy, state, charge| {
        take_out(&policy.window, &state.cells.head, policy.permits(charge));
    });
}

/// Returns what a grant left.
type Left<P> = fn(&P, &<P as Policy>::State, <P as Policy>::Charge) -> PolicyStatus;

fn left<P: Policy>(policy: &P, state: &P::State, charge: P::Charge) -> PolicyStatus {
    policy.left(state, charge, NOW)
}

/// A request takes a permit before or after another one takes some. The other grant is undone, or
/// the limit is raised, by `meanwhile`, while the request asks for what it left. That is never more
/// than the limit less its own permit.
fn what_is_left<P: Policy>(
    policy: impl Fn() -> P + Send + Sync + 'static,
    (first, comes_second, others): (Nanos, bool, u32),
    meanwhile: Undo<P>,
    left: Left<P>,
) {
    model_of_three(move || {
        let policy = policy();
        let state = policy.start(Nanos::ZERO);
        let take = |at, n| policy.try_acquire(&state, at, n).expect("there are enough");
        let (own, other) = if comes_second {
            let other = take(first, others);
            (take(NOW, 1), other)
        } else {
            (take(first, 1), take(NOW, others))
        };
        let both = Arc::new((policy, state));
        let other = {
            let both = both.clone();
            thread::spawn(move || meanwhile(&both.0, &both.1, other))
        };
        let PolicyStatus { available, limit, .. } = left(&both.0, &both.1, own);
        assert!(available < limit, "its own permit is in use");
        other.join().expect("no panic");
    });
}

fn raise_the_limit<P: Policy>(policy: &P, state: &P::State, _: P::Charge) {
    policy.set_rate(state, NOW, rate("8/4s"));
}

fn what_is_left_of<P: Policy>(
    policy: impl Fn() -> P + Copy + Send + Sync + 'static,
    first: [Nanos; 2],
    others: u32,
) {
    for first in first {
        for comes_second in [false, true] {
            what_is_left(policy, (first, comes_second, others), undo, left);
            what_is_left(policy, (first, comes_second, others), raise_the_limit, left);
        }
    }
}

#[test]
fn what_is_left_of_a_window_is_less_than_the_limit() {
    what_is_left_of(|| FixedWindow::new(rate("3/4s")), [NOW, EARLIER], 1);
    what_is_left_of(|| SlidingEstimate::new(rate("3/4s")), [NOW, EARLIER], 1);
    what_is_left_of(|| SlidingWindow::new(rate("3/4s"), 2), [NOW, IN_THE_CELL_BEFORE], 1);
}

/// Three undone permits copy the ring.
#[test]
fn what_is_left_of_a_log_is_less_than_the_limit() {
    what_is_left_of(|| SlidingLog::new(rate("3/4s")), [NOW, EARLIER], 1);
    what_is_left_of(|| SlidingLog::new(rate("4/4s")), [NOW, EARLIER], 3);
}

/// The broken step: counts the later permits in one view of the state, and all permits in another.
fn left_by_two_views<P: Policy>(policy: &P, state: &P::State, _: P::Charge) -> PolicyStatus {
    let seen = policy.status(state, NOW);
    let later = seen.limit - seen.available - 1;
    let status = policy.status(state, NOW);
    PolicyStatus { available: status.available + later, ..status }
}

#[test]
#[should_panic(expected = "its own permit is in use")]
fn broken_what_is_left_of_a_window_is_less_than_the_limit() {
    what_is_left(|| SlidingWindow::new(rate("3/4s"), 2), (NOW, false, 1), undo, left_by_two_views);
}

#[test]
#[should_panic(expected = "its own permit is in use")]
fn broken_what_is_left_of_a_log_is_less_than_the_limit() {
    what_is_left(|| SlidingLog::new(rate("3/4s")), (NOW, false, 1), undo, left_by_two_views);
}
