//! The ring of the sliding log: a writer that stalls, grants that are given back, and debits.

use std::sync::Arc;

use loom::thread;

use super::support::{model, model_of_three};
use crate::nanos::Nanos;
use crate::policy::sliding_log::{Head, LogState};
use crate::policy::window::{CurrentWindow, Window, stamp};
use crate::policy::{Policy, SlidingLog};
use crate::rate::Rate;
use crate::sync::Ordering;

fn ten() -> Window {
    CurrentWindow::new("2/10ns".parse().expect("a rate"), 1).expect("whole").get()
}

/// Two were granted long ago, and three come at once; each takes by `take`. Returns how many were granted.
fn three_at_once(take: fn(&SlidingLog, &LogState) -> bool) -> usize {
    let log = Arc::new(SlidingLog::new("2/10ns".parse::<Rate>().expect("a rate")));
    let state = Arc::new(log.start(Nanos::ZERO));
    for _ in 0..2 {
        log.try_acquire(&state, Nanos::ZERO, 1).expect("the first two");
    }
    let others: Vec<_> = (0..2)
        .map(|_| {
            let (log, state) = (log.clone(), state.clone());
            thread::spawn(move || usize::from(take(&log, &state)))
        })
        .collect();
    let mine = usize::from(take(&log, &state));
    mine + others.into_iter().map(|other| other.join().expect("no panic")).sum::<usize>()
}

#[test]
fn a_writer_that_stalls_lets_nobody_through() {
    model_of_three(|| {
        let granted = three_at_once(|log, state| log.try_acquire(state, Nanos::new(20), 1).is_ok());
        assert_eq!(granted, 2);
    });
}

/// The broken twin: does not write for others.
#[test]
#[should_panic(expected = "two of three")]
fn broken_a_writer_that_stalls_lets_nobody_through() {
    model_of_three(|| {
        let granted = three_at_once(|_, state| {
            let now = stamp(Nanos::new(20));
            let mut head = state.head();
            loop {
                if state.free_at(head, &ten(), 1) > now {
                    return false;
                }
                let new = Head { place: state.moved(head.place, 1), n: 1, time: now, ..head };
                match state.exchange(head, new) {
                    Ok(()) => {
                        state.at(head.place, 0).fetch_max(now, Ordering::Release);
                        return true;
                    }
                    Err(newer) => head = newer,
                }
            }
        });
        assert_eq!(granted, 2, "two of three");
    });
}

/// Two of three permits are out, of 15 and of 20 ns. The second is given back by `give_back` while another thread tries three
/// times at 20 ns. Returns how many were granted then, and how many at 25 ns, when the first one is over.
fn given_back_against_takes(give_back: fn(&LogState)) -> usize {
    let log = Arc::new(SlidingLog::new("3/10ns".parse::<Rate>().expect("a rate")));
    let state = Arc::new(log.start(Nanos::ZERO));
    for at in [15, 20] {
        log.try_acquire(&state, Nanos::new(at), 1).expect("the first two");
    }
    let giving_back = {
        let state = state.clone();
        thread::spawn(move || give_back(&state))
    };
    let take = |at| usize::from(log.try_acquire(&state, Nanos::new(at), 1).is_ok());
    let meanwhile = take(20) + take(20) + take(20);
    giving_back.join().expect("no panic");
    meanwhile + take(25) + take(25) + take(25)
}

#[test]
fn what_is_given_back_is_granted_once() {
    model(|| {
        let granted = given_back_against_takes(|state| state.remove(stamp(Nanos::new(20))));
        assert_eq!(granted, 3, "one left, one given back, and one over");
    });
}

/// The broken twin: moves the head back and clears the place without a mark on it.
#[test]
#[should_panic(expected = "one left, one given back, and one over")]
fn broken_what_is_given_back_is_granted_once() {
    model(|| {
        let granted = given_back_against_takes(|state| {
            let head = state.settle();
            let back = Head { place: state.moved(head.place, -1), ..head.settled() };
            if state.exchange(head, back).is_ok() {
                state.at(back.place, 0).store(0, Ordering::Release);
            }
        });
        assert_eq!(granted, 3, "one left, one given back, and one over");
    });
}

/// One gives back an older grant while another takes: the newer times stay.
#[test]
fn giving_back_an_older_grant_keeps_the_newer_ones() {
    model(|| {
        let log = Arc::new(SlidingLog::new("3/10ns".parse::<Rate>().expect("a rate")));
        let state = Arc::new(log.start(Nanos::ZERO));
        let old = log.try_acquire(&state, Nanos::new(20), 1).expect("the first");
        log.try_acquire(&state, Nanos::new(25), 1).expect("the second");
        let giving_back = {
            let (log, state) = (log.clone(), state.clone());
            thread::spawn(move || log.undo(&state, Nanos::new(26), old, u64::MAX))
        };
        let taken = log.try_acquire(&state, Nanos::new(26), 1).is_ok();
        giving_back.join().expect("no panic");
        assert!(taken, "there were three");
        // Out are those of 25 and 26: one is free, and the next when the one of 25 is over.
        log.try_acquire(&state, Nanos::new(27), 1).expect("the one given back");
        assert_eq!(log.ready_at(&state, Nanos::new(27), 0, 1), Nanos::new(35));
    });
}

/// More is counted than there is room for, while somebody takes: what was counted stays, and what is taken counts beside it.
#[test]
fn a_debit_is_counted_beside_a_take() {
    model(|| {
        let policy = Arc::new(SlidingLog::new("2/10ns".parse::<Rate>().expect("a rate")));
        let state = Arc::new(policy.start(Nanos::ZERO));
        policy.try_acquire(&state, Nanos::new(20), 1).expect("the first");
        let other = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || policy.debit(&state, Nanos::new(40), 2))
        };
        let _ = policy.try_acquire(&state, Nanos::new(40), 1);
        other.join().expect("no panic");
        assert!(policy.try_acquire(&state, Nanos::new(40), 1).is_err());
        assert_eq!(policy.ready_at(&state, Nanos::new(40), 0, 1), Nanos::new(50));
    });
}
