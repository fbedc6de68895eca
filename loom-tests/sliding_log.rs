//! Models the ring of the sliding log: a writer that stalls, grants that are given back, resets,
//! copies, and debits.

use std::sync::Arc;

use loom::thread;

use super::support::{model, model_of_three, model_up_to};
use crate::policy::state::{LogCharge, LogState};
use crate::policy::window::log::head::{Head, VERSIONS};
use crate::policy::window::stamp;
use crate::policy::{Change, Policy, SlidingLog};
use crate::rate::Rate;
use crate::sync::Ordering;
use crate::time::Nanos;

/// Two permits were granted long ago, and three requests arrive at once. Each takes by `take`.
/// Returns how many were granted.
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
fn a_writer_that_stalls_lets_no_request_through() {
    model_of_three(|| {
        let granted = three_at_once(|log, state| log.try_acquire(state, Nanos::new(20), 1).is_ok());
        assert_eq!(granted, 2);
    });
}

/// The broken twin: does not write for others, and does not check the time in the head.
#[test]
#[should_panic(expected = "two of three")]
fn broken_a_writer_that_stalls_lets_no_request_through() {
    model_of_three(|| {
        let granted = three_at_once(|_, state| {
            let now = stamp(Nanos::new(20));
            let mut head = state.head();
            loop {
                let entry = |index| state.entry(false, index);
                if entry(state.before(head.index, 2)).load(Ordering::Acquire) + 10 > now {
                    return false;
                }
                let new = Head { index: state.after(head.index, 1), n: 1, time: now, ..head };
                match state.exchange(head, new) {
                    Ok(()) => {
                        entry(head.index).fetch_max(now, Ordering::Release);
                        return true;
                    }
                    Err(newer) => head = newer,
                }
            }
        });
        assert_eq!(granted, 2, "two of three");
    });
}

fn three_in_ten() -> SlidingLog {
    SlidingLog::new("3/10ns".parse::<Rate>().expect("a rate"))
}

/// Two of three permits are in use, from 15 and 20 ns. One of them is given back by `give_back`
/// while another thread tries three times at 20 ns. Returns how many were granted then and, in
/// addition, at 25 ns, when the first one has expired.
fn given_back_against_takes(older: bool, give_back: fn(&SlidingLog, &LogState, LogCharge)) -> usize {
    let log = Arc::new(three_in_ten());
    let state = Arc::new(log.start(Nanos::ZERO));
    let [old, new] = [15, 20].map(|at| log.try_acquire(&state, Nanos::new(at), 1).expect("the first two"));
    let giving_back = {
        let (log, state) = (log.clone(), state.clone());
        thread::spawn(move || give_back(&log, &state, if older { old } else { new }))
    };
    let take = |at| usize::from(log.try_acquire(&state, Nanos::new(at), 1).is_ok());
    let meanwhile = take(20) + take(20) + take(20);
    giving_back.join().expect("no panic");
    meanwhile + take(20) + take(20) + take(25) + take(25)
}

#[test]
fn a_permit_given_back_is_granted_once() {
    model_up_to(2, || {
        let undo = |log: &SlidingLog, state: &LogState, charge| {
            log.undo(state, Nanos::new(20), charge, u64::MAX);
        };
        let granted = given_back_against_takes(false, undo);
        assert_eq!(granted, 3, "one left, one given back, and one over");
        let granted = given_back_against_takes(true, undo);
        assert_eq!(granted, 2, "one left, and one given back");
    });
}

/// The broken twin: credits the permit at the head that it found, although a taker has moved the
/// head since.
fn undo_at_an_old_head(_: &SlidingLog, state: &LogState, _: LogCharge) {
    let old = state.head();
    state.help(old);
    let new = Head { credited: true, ..old.next_version() };
    state.give_back().prepare(new.version, 0, state.before(old.index, 1), 1);
    while state.exchange(state.head(), new).is_err() {}
}

#[test]
#[should_panic(expected = "one left, one given back, and one over")]
fn broken_a_permit_given_back_is_granted_once() {
    model(|| {
        let granted = given_back_against_takes(false, undo_at_an_old_head);
        assert_eq!(granted, 3, "one left, one given back, and one over");
    });
}

/// All six permits are in use. `give_back` gives back one permit for each version, one by one,
/// while another thread takes. The CAS of that thread may succeed on a head that equals the head it
/// read but is a later one. Returns how many were granted then.
fn given_back_until_the_versions_wrap(give_back: fn(&SlidingLog, &LogState)) -> u16 {
    let log = Arc::new(SlidingLog::new("6/10ns".parse::<Rate>().expect("a rate")));
    let state = Arc::new(log.start(Nanos::ZERO));
    log.try_acquire(&state, Nanos::new(20), 6).expect("all");
    log.refund(&state, Nanos::new(20), 1);
    let giving_back = {
        let (log, state) = (log.clone(), state.clone());
        thread::spawn(move || (0..VERSIONS).for_each(|_| give_back(&log, &state)))
    };
    let take = || u16::from(log.try_acquire(&state, Nanos::new(20), 1).is_ok());
    let meanwhile = take();
    giving_back.join().expect("no panic");
    meanwhile + (0..7).map(|_| take()).sum::<u16>()
}

#[test]
fn versions_that_wrap_let_nothing_through() {
    model_up_to(3, || {
        let granted = given_back_until_the_versions_wrap(|log, state| {
            log.refund(state, Nanos::new(20), 1);
        });
        assert_eq!(granted, 1 + VERSIONS, "what was given back");
    });
}

/// The broken twin: takes a permit and gives it back at the index that it found, so that the head
/// has its old value after a permit was granted.
#[test]
#[should_panic(expected = "what was given back")]
fn broken_versions_that_wrap_let_nothing_through() {
    model_up_to(3, || {
        let granted = given_back_until_the_versions_wrap(|_, state| {
            let head = state.head();
            state.help(head);
            state.give_back().prepare(head.next_version().version, head.index, 0, 0);
            while state.exchange(state.head(), Head { floored: true, ..head.next_version() }).is_err() {}
        });
        assert_eq!(granted, 1 + VERSIONS, "what was given back");
    });
}

/// One permit is given back by `give_back` while another thread takes for more than a lap of the
/// ring. Two permits are never in use at once.
fn given_back_for_a_lap(give_back: fn(&SlidingLog, &LogState, LogCharge)) {
    let log = Arc::new(SlidingLog::new("1/10ns".parse::<Rate>().expect("a rate")));
    let state = Arc::new(log.start(Nanos::ZERO));
    let charge = log.try_acquire(&state, Nanos::new(20), 1).expect("the first");
    let giving_back = {
        let (log, state) = (log.clone(), state.clone());
        thread::spawn(move || give_back(&log, &state, charge))
    };
    let take = |at| usize::from(log.try_acquire(&state, Nanos::new(at), 1).is_ok());
    // The ring has four entries.
    for at in [31, 41, 51, 61, 71] {
        assert_eq!(take(at) + take(at), 1, "one at a time");
    }
    giving_back.join().expect("no panic");
    assert_eq!(take(71), 0, "one at a time");
}

#[test]
fn a_giver_back_that_stalls_for_a_lap_harms_nothing() {
    model_up_to(2, || {
        given_back_for_a_lap(|log, state, charge| {
            log.undo(state, Nanos::new(21), charge, u64::MAX);
        });
    });
}

#[test]
#[should_panic(expected = "one at a time")]
fn broken_a_giver_back_that_stalls_for_a_lap_harms_nothing() {
    model_up_to(2, || given_back_for_a_lap(undo_at_an_old_head));
}

/// Both permits are in use. `reset` forgets all permits while another thread takes. Returns how
/// many are granted then.
fn reset_against_takes(reset: fn(&SlidingLog, &LogState)) -> usize {
    let log = Arc::new(SlidingLog::new("2/10ns".parse::<Rate>().expect("a rate")));
    let state = Arc::new(log.start(Nanos::ZERO));
    log.try_acquire(&state, Nanos::new(20), 2).expect("both");
    let resetting = {
        let (log, state) = (log.clone(), state.clone());
        thread::spawn(move || reset(&log, &state))
    };
    let take = || usize::from(log.try_acquire(&state, Nanos::new(20), 1).is_ok());
    let meanwhile = take() + take();
    resetting.join().expect("no panic");
    meanwhile + take() + take() + take()
}

#[test]
fn a_reset_grants_the_limit_once_more() {
    model(|| {
        let granted = reset_against_takes(|log, state| {
            log.change(state, Nanos::new(20), Change::reset()).expect("a reset");
        });
        assert_eq!(granted, 2, "two once more");
    });
}

/// The broken twin: clears the entries behind the head one after the other, wherever the head has
/// moved meanwhile.
#[test]
#[should_panic(expected = "two once more")]
fn broken_a_reset_grants_the_limit_once_more() {
    model(|| {
        let granted = reset_against_takes(|_, state| {
            for steps in [2, 1] {
                let head = state.head();
                state.help(head);
                let index = state.before(head.index, steps);
                state.entry(false, index).store(0, Ordering::Release);
            }
        });
        assert_eq!(granted, 2, "two once more");
    });
}

/// A grant is undone by `undo` while another thread resets the log, and takes a permit at the same
/// time. Returns how many permits are in use then.
fn undone_against_a_reset(undo: fn(&SlidingLog, &LogState, LogCharge)) -> u64 {
    let log = Arc::new(three_in_ten());
    let state = Arc::new(log.start(Nanos::ZERO));
    let charge = log.try_acquire(&state, Nanos::new(20), 1).expect("the first");
    // Loom does not see the cell in which this is allocated.
    state.give_back();
    let undoing = {
        let (log, state) = (log.clone(), state.clone());
        thread::spawn(move || undo(&log, &state, charge))
    };
    log.change(&state, Nanos::new(20), Change::reset()).expect("a reset");
    log.try_acquire(&state, Nanos::new(20), 1).expect("nothing is in use");
    undoing.join().expect("no panic");
    3 - log.status(&state, Nanos::new(20)).available
}

#[test]
fn a_grant_from_before_a_reset_gives_nothing_back() {
    model(|| {
        let in_use = undone_against_a_reset(|log, state, charge| {
            log.undo(state, Nanos::new(20), charge, u64::MAX);
        });
        assert_eq!(in_use, 1, "the permit after the reset");
    });
}

/// The broken twin: checks for a reset first, and then gives back a permit of that time.
#[test]
#[should_panic(expected = "the permit after the reset")]
fn broken_a_grant_from_before_a_reset_gives_nothing_back() {
    model(|| {
        let in_use = undone_against_a_reset(|log, state, _| {
            if state.head().version == 0 {
                log.refund(state, Nanos::new(20), 1);
            }
        });
        assert_eq!(in_use, 1, "the permit after the reset");
    });
}

/// One permit was undone and is over, and two are in use. One of these is undone while `lengthen`
/// changes to a window in which all three count. Returns how many of three permits are available.
fn undone_while_the_window_becomes_longer(lengthen: fn(&SlidingLog, &LogState)) -> u64 {
    let log = Arc::new(three_in_ten());
    let state = Arc::new(log.start(Nanos::ZERO));
    let take = |at| log.try_acquire(&state, Nanos::new(at), 1).expect("room");
    log.undo(&state, Nanos::new(5), take(5), u64::MAX);
    let [charge, _] = [20, 21].map(take);
    let undoing = {
        let (log, state) = (log.clone(), state.clone());
        thread::spawn(move || log.undo(&state, Nanos::new(21), charge, u64::MAX))
    };
    lengthen(&log, &state);
    undoing.join().expect("no panic");
    longer().status(&state, Nanos::new(21)).available
}

fn longer() -> SlidingLog {
    SlidingLog::new("3/1000ns".parse::<Rate>().expect("a rate"))
}

#[test]
fn undone_permits_count_as_undone_in_a_longer_window() {
    model(|| {
        let available = undone_while_the_window_becomes_longer(|log, state| {
            log.set_rate(state, Nanos::new(21), longer().rate());
        });
        assert_eq!(available, 2, "one is in use");
    });
}

/// The broken twin: sets the window, and does not look for undone permits.
#[test]
#[should_panic(expected = "one is in use")]
fn broken_undone_permits_count_as_undone_in_a_longer_window() {
    model(|| {
        let available = undone_while_the_window_becomes_longer(|_, _| {});
        assert_eq!(available, 2, "one is in use");
    });
}

/// More permits are undone than the ring has spare entries, so the ring is copied while another
/// thread takes.
#[test]
fn a_copy_keeps_permits_granted_meanwhile() {
    model_up_to(3, || {
        let log = Arc::new(three_in_ten());
        let state = Arc::new(log.start(Nanos::ZERO));
        let charge = log.try_acquire(&state, Nanos::new(20), 3).expect("all");
        let undoing = {
            let (log, state) = (log.clone(), state.clone());
            thread::spawn(move || log.undo(&state, Nanos::new(20), charge, u64::MAX))
        };
        let take = |at| usize::from(log.try_acquire(&state, Nanos::new(at), 1).is_ok());
        // Each grant at 20 is one of the three. The grants at 31 find that the first grant has
        // expired.
        let early = take(20);
        let late = take(31);
        undoing.join().expect("no panic");
        assert_eq!(late, 1);
        let rest = take(31) + take(31) + take(31);
        assert!(early <= 1);
        assert_eq!(rest, 2, "two of three left");
    });
}

/// Three permits from three times are in use. The older two are given back by `give_back` while
/// another thread takes twice at 21 ns. Returns how many were granted until 30 ns, when the third
/// one expires.
fn two_given_back_against_takes(give_back: fn(&SlidingLog, &LogState, [LogCharge; 2])) -> usize {
    let log = Arc::new(three_in_ten());
    let state = Arc::new(log.start(Nanos::ZERO));
    let [first, second, _] =
        [18, 19, 20].map(|at| log.try_acquire(&state, Nanos::new(at), 1).expect("the first three"));
    let giving_back = {
        let (log, state) = (log.clone(), state.clone());
        thread::spawn(move || give_back(&log, &state, [first, second]))
    };
    let take = |at| usize::from(log.try_acquire(&state, Nanos::new(at), 1).is_ok());
    let meanwhile = take(21) + take(21);
    giving_back.join().expect("no panic");
    meanwhile + take(21) + take(21) + take(28) + take(30) + take(30)
}

/// The second permit starts a copy, and the copy ends there or later.
#[test]
fn a_copy_in_slices_keeps_permits_granted_meanwhile() {
    model_up_to(2, || {
        let granted = two_given_back_against_takes(|log, state, charges| {
            for charge in charges {
                log.undo(state, Nanos::new(21), charge, u64::MAX);
            }
            // The rest of the copy: a grant of a time that has already been copied is undone too.
            let Ok(charge) = log.try_acquire(state, Nanos::new(21), 1) else { return };
            log.undo(state, Nanos::new(21), charge, u64::MAX);
        });
        assert_eq!(granted, 3, "two given back, and one over");
    });
}

/// The broken twin: the head continues in the second ring, although a grant was made after the last
/// one that was copied.
#[test]
#[should_panic(expected = "two given back, and one over")]
fn broken_a_copy_in_slices_keeps_permits_granted_meanwhile() {
    model_up_to(2, || {
        let granted = two_given_back_against_takes(|log, state, [first, _]| {
            log.undo(state, Nanos::new(21), first, u64::MAX);
            let old = state.head();
            state.help(old);
            state.give_back();
            state.entry(true, 0).store(stamp(Nanos::new(20)), Ordering::Release);
            loop {
                let head = state.head();
                let new = Head { ring: true, index: 1, credited: false, ..head.next_version() };
                if state.exchange(head, new).is_ok() {
                    return;
                }
            }
        });
        assert_eq!(granted, 3, "two given back, and one over");
    });
}

/// Six permits from 15 ns are given back. While that copies the ring, and makes a credit in the
/// second ring, `taker` runs in another thread. Returns how many of seven permits are granted at
/// 26 ns, when two permits from 20 ns are in use.
fn given_back_in_both_rings_against(taker: fn(&SlidingLog, &LogState)) -> usize {
    let log = Arc::new(SlidingLog::new("7/10ns".parse::<Rate>().expect("a rate")));
    let state = Arc::new(log.start(Nanos::ZERO));
    let take = |at, n| log.try_acquire(&state, Nanos::new(at), n);
    let undo = |at, n, charge| {
        let part = log.unspent(charge, n, 0).expect("a part");
        log.undo(&state, Nanos::new(at), part, u64::MAX);
    };
    take(1, 1).expect("the first");
    undo(2, 1, take(2, 1).expect("the second"));
    let charge = take(15, 6).expect("both are over");
    undo(15, 1, charge);
    assert!(!state.head().ring);
    let taking = {
        let (log, state) = (log.clone(), state.clone());
        thread::spawn(move || taker(&log, &state))
    };
    // Copies the ring. The permits of 15 ns are then where the first ring had the undone permit of
    // 2 ns. That permit's link is still in the first ring.
    undo(15, 3, charge);
    undo(15, 2, charge);
    taking.join().expect("no panic");
    take(20, 2).expect("two of seven");
    (0..7).filter(|_| take(26, 1).is_ok()).count()
}

#[test]
fn a_taker_of_the_first_ring_leaves_out_nothing_in_the_second() {
    model_up_to(3, || {
        let granted = given_back_in_both_rings_against(|log, state| {
            let _ = log.try_acquire(state, Nanos::new(15), 1);
        });
        assert_eq!(granted, 5, "two are in use");
    });
}

/// The broken twin: leaves out a permit in the slot of the head that it read, whatever version that
/// slot has by then.
#[test]
#[should_panic(expected = "two are in use")]
fn broken_a_taker_of_the_first_ring_leaves_out_nothing_in_the_second() {
    model_up_to(3, || {
        let granted = given_back_in_both_rings_against(|_, state| {
            let head = state.head();
            state.give_back().prepare(head.version, 0, 1 << 24, 1);
        });
        assert_eq!(granted, 5, "two are in use");
    });
}

/// One thread gives back an older grant while another takes. The newer times stay.
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
        assert!(taken, "three were available");
        // The permits of 25 and 26 are in use. One permit is free, and the next is free when the
        // permit of 25 expires.
        log.try_acquire(&state, Nanos::new(27), 1).expect("the one given back");
        assert_eq!(log.ready_at(&state, Nanos::new(27), 0, 1), Nanos::new(35));
    });
}

/// A debit counts more permits than are free while another thread takes. The earlier permits still
/// count, and the taken permit counts as well.
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
