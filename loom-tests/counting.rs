//! Models the counting limit: waiters and seats of composites against permits that are given back,
//! and against limits that are lowered.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::support::{Woken, model, model_of_three};
use crate::counting::line::{LINE, weight};
use crate::counting::{CountingLimit, CountingPermit, give_back_together};
use crate::error::Refusal;
use crate::line::deferred::Deferred;
use crate::line::recheck::Recheck;

/// A waiting future that was polled once.
struct Waiting {
    future: Pin<Box<dyn Future<Output = Result<CountingPermit, Refusal>>>>,
    woken: Arc<Woken>,
    answer: Option<Result<CountingPermit, Refusal>>,
}

impl Waiting {
    fn new(limit: &CountingLimit, n: u32) -> Waiting {
        let (limit, woken) = (limit.clone(), Woken::new());
        let future = Box::pin(async move { limit.acquire_many(n).await });
        let mut wait = Waiting { future, woken, answer: None };
        wait.poll();
        wait
    }

    fn poll(&mut self) {
        let waker = Waker::from(self.woken.clone());
        if let Poll::Ready(answer) = self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.answer = Some(answer);
        }
    }

    /// Returns the answer. The waker must have been called, unless the first poll had the answer.
    fn answer(mut self) -> Result<CountingPermit, Refusal> {
        if self.answer.is_none() {
            assert!(self.woken.is_woken(), "the wake-up is lost");
            self.poll();
        }
        self.answer.expect("its answer")
    }
}

/// A waiter joins while the only permit is given back.
fn joining_against_giving_back(give_back: fn(&CountingLimit, CountingPermit)) {
    model(move || {
        let limit = CountingLimit::new(1);
        let held = limit.try_acquire().expect("the only one");
        let other = {
            let limit = limit.clone();
            thread::spawn(move || give_back(&limit, held))
        };
        let wait = Waiting::new(&limit, 1);
        other.join().expect("no panic");
        drop(wait.answer().expect("granted"));
        assert_eq!(limit.available(), 1);
    });
}

#[test]
fn a_permit_given_back_reaches_a_waiter_that_joins_meanwhile() {
    joining_against_giving_back(|_, held| drop(held));
}

/// The broken twin: checks whether the line has an entry, and then gives back.
#[test]
#[should_panic(expected = "the wake-up is lost")]
fn broken_a_permit_given_back_reaches_a_waiter_that_joins_meanwhile() {
    joining_against_giving_back(|limit, held| {
        std::mem::forget(held);
        let line = limit.pool.word.load(crate::sync::Ordering::Acquire) & LINE;
        limit.pool.word.fetch_add(weight(1), crate::sync::Ordering::AcqRel);
        if line != 0 {
            limit.pool.serve_line();
        }
    });
}

/// A waiter of each of two limits joins while the permits of both are given back together.
fn joining_against_giving_back_together(give_back: fn(&[CountingLimit; 2], [CountingPermit; 2])) {
    model(move || {
        let limits = [CountingLimit::new(1), CountingLimit::new(1)];
        let held = limits.each_ref().map(|limit| limit.try_acquire().expect("the only one"));
        let other = {
            let limits = limits.clone();
            thread::spawn(move || give_back(&limits, held))
        };
        let waits = limits.each_ref().map(|limit| Waiting::new(limit, 1));
        other.join().expect("no panic");
        waits.into_iter().for_each(|wait| drop(wait.answer().expect("granted")));
        assert_eq!(limits.each_ref().map(CountingLimit::available), [1, 1]);
    });
}

#[test]
fn permits_given_back_together_reach_waiters_that_join_meanwhile() {
    joining_against_giving_back_together(|_, held| give_back_together(held.into_iter()));
}

/// The broken twin: finds the lines that have an entry, and then gives back.
#[test]
#[should_panic(expected = "the wake-up is lost")]
fn broken_permits_given_back_together_reach_waiters_that_join_meanwhile() {
    joining_against_giving_back_together(|limits, held| {
        held.into_iter().for_each(std::mem::forget);
        let words = limits.each_ref().map(|limit| &limit.pool.word);
        let lines = words.map(|word| word.load(crate::sync::Ordering::Acquire) & LINE != 0);
        words.into_iter().for_each(|word| _ = word.fetch_add(weight(1), crate::sync::Ordering::AcqRel));
        let lines = limits.iter().zip(lines).filter(|(_, has_line)| *has_line);
        lines.for_each(|(limit, _)| limit.pool.serve_line());
    });
}

/// Three callers share two permits. Never more than two permits are out, and the caller that waits
/// is served.
#[test]
fn a_waiter_and_two_takers_share_two_permits() {
    model_of_three(|| {
        let limit = CountingLimit::new(2);
        let take = |limit: &CountingLimit| {
            let limit = limit.clone();
            thread::spawn(move || drop(limit.try_acquire()))
        };
        let others = [take(&limit), take(&limit)];
        let wait = Waiting::new(&limit, 2);
        others.into_iter().for_each(|other| other.join().expect("no panic"));
        let permit = wait.answer().expect("granted");
        assert_eq!(limit.available(), 0);
        drop(permit);
        assert_eq!(limit.available(), 2);
    });
}

/// A permit that a waiter holds when it is dropped goes to the next waiter, whenever the drop
/// happens.
#[test]
fn a_waiter_dropped_against_its_grant_leaves_no_trace() {
    model(|| {
        let limit = CountingLimit::new(1);
        let held = limit.try_acquire().expect("the only one");
        let (first, second) = (Waiting::new(&limit, 1), Waiting::new(&limit, 1));
        let other = thread::spawn(move || drop(held));
        drop(first);
        other.join().expect("no panic");
        drop(second.answer().expect("granted"));
        assert_eq!(limit.available(), 1);
    });
}

/// A waiter for two permits joins while the limit is lowered to one, and raised. The waiter is
/// granted before, or refused, and never left without an answer.
#[test]
fn a_waiter_above_a_limit_that_is_lowered_meanwhile_is_answered() {
    model(|| {
        let limit = CountingLimit::new(2);
        let held = limit.try_acquire().expect("one of two");
        let other = {
            let limit = limit.clone();
            thread::spawn(move || limit.set_limit(1))
        };
        let wait = Waiting::new(&limit, 2);
        other.join().expect("no panic");
        assert_eq!(wait.answer().err(), Some(Refusal::ExceedsLimit { requested: 2, limit: 1 }));
        assert_eq!(limit.available(), 0);
        drop(held);
        assert_eq!(limit.available(), 1);
    });
}

/// The limit is lowered while a permit is given back. Permits beyond the limit are withheld, and
/// the others reach a waiter.
#[test]
fn a_limit_lowered_against_giving_back_keeps_the_right_number() {
    model(|| {
        let limit = CountingLimit::new(2);
        let (one, two) = (limit.try_acquire().expect("one"), limit.try_acquire().expect("the other"));
        let wait = Waiting::new(&limit, 1);
        let other = {
            let limit = limit.clone();
            thread::spawn(move || limit.set_limit(1))
        };
        drop(one);
        other.join().expect("no panic");
        // The waiter was granted before the limit was lowered, or is granted now, by the second
        // permit.
        drop(two);
        drop(wait.answer().expect("granted"));
        assert_eq!(limit.available(), 1);
    });
}

/// Records whether it was notified.
struct Bell(AtomicBool);

impl Recheck for Bell {
    fn recheck(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The seat of a composite stands up while the permit is given back. The composite sees the
/// permit, or is notified.
#[test]
fn a_permit_given_back_reaches_a_seat_that_stands_up_meanwhile() {
    model(|| {
        let limit = CountingLimit::new(1);
        let held = limit.try_acquire().expect("the only one");
        let bell = Arc::new(Bell(AtomicBool::new(false)));
        let ring: Arc<dyn Recheck> = bell.clone();
        let seat = limit.pool.take_seat(Arc::downgrade(&ring));
        let other = thread::spawn(move || drop(held));
        let mut deferred = Deferred::new();
        let turn = limit.pool.enqueue_seat(seat, 1, &mut deferred);
        drop(deferred);
        other.join().expect("no panic");
        assert!(turn || bell.0.load(Ordering::Relaxed), "the ring is lost");
        let permit = limit.take_turn(seat, 1).expect("its turn");
        limit.pool.give_up(seat, &mut Deferred::new());
        drop(permit);
        assert_eq!(limit.available(), 1);
    });
}

/// A waiter joins while the limit is closed. It is refused, by the join or by the close.
fn joining_against_closing(close: fn(&CountingLimit)) {
    model(move || {
        let limit = CountingLimit::new(1);
        let held = limit.try_acquire().expect("the only one");
        let other = {
            let limit = limit.clone();
            thread::spawn(move || close(&limit))
        };
        let wait = Waiting::new(&limit, 1);
        other.join().expect("no panic");
        assert_eq!(wait.answer().map(drop), Err(crate::Refusal::Closed));
        drop(held);
        assert!(limit.try_acquire().is_err());
    });
}

#[test]
fn a_waiter_that_joins_while_the_limit_closes_is_refused() {
    joining_against_closing(|limit| assert!(limit.close()));
}

/// The broken twin: takes all permits for good, and does not serve the line.
#[test]
#[should_panic(expected = "the wake-up is lost")]
fn broken_a_waiter_that_joins_while_the_limit_closes_is_refused() {
    joining_against_closing(|limit| {
        limit.pool.word.fetch_sub(crate::counting::line::CLOSED, crate::sync::Ordering::Relaxed);
    });
}

/// A composite compares the count of changes while the limit is lowered to one, and then closed. If
/// it reads a new count, it finds the limit after that change.
fn comparing_against_changes(lower: fn(&CountingLimit), close: fn(&CountingLimit)) {
    model(move || {
        let limit = CountingLimit::new(2);
        let other = {
            let limit = limit.clone();
            thread::spawn(move || {
                lower(&limit);
                close(&limit);
            })
        };
        match limit.pool.lowered() {
            0 => {}
            1 => assert!(limit.check(2).is_err(), "the change is missed"),
            _ => assert!(limit.check(1).is_err(), "the change is missed"),
        }
        other.join().expect("no panic");
    });
}

#[test]
fn a_composite_that_reads_a_new_count_finds_the_change() {
    comparing_against_changes(
        |limit| limit.set_limit(1),
        |limit| {
            limit.close();
        },
    );
}

fn count_by_relaxed(limit: &CountingLimit) {
    limit.pool.lowered.fetch_add(1, crate::sync::Ordering::Relaxed);
}

/// The broken twin: the count of a lowered limit publishes nothing.
#[test]
#[should_panic(expected = "the change is missed")]
fn broken_a_composite_that_reads_a_new_count_finds_the_lowered_limit() {
    let lower = |limit: &CountingLimit| {
        limit.pool.limit.store(1, crate::sync::Ordering::Relaxed);
        count_by_relaxed(limit);
    };
    comparing_against_changes(lower, |_| ());
}

/// The broken twin: the count of a closed limit publishes nothing.
#[test]
#[should_panic(expected = "the change is missed")]
fn broken_a_composite_that_reads_a_new_count_finds_the_closed_limit() {
    let close = |limit: &CountingLimit| {
        limit.pool.word.fetch_sub(crate::counting::line::CLOSED, crate::sync::Ordering::Relaxed);
        count_by_relaxed(limit);
    };
    comparing_against_changes(|limit| limit.set_limit(1), close);
}
