//! Models the gate word: requests without the lock against the queue behind it.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use loom::sync::atomic::{AtomicBool, Ordering as LoomOrdering};
use loom::thread;

use super::support::{Asking, LoomClock, ONE, SECOND, TestLimiter, first_taken, model, model_of_three};
use crate::limiter::blocking;
use crate::limiter::pending::{Pending, Poller, Progress, Stage};
use crate::limiter::shared::Shared;
use crate::line::deferred::Deferred;
use crate::line::recheck::Recheck;
use crate::line::rule::Single;
use crate::line::visit::Demand;
use crate::line::{NewWaiter, WokenBy};
use crate::policy::{Policy, SmoothBursty};
use crate::rate::Rate;
use crate::sync::lock;
use crate::time::Nanos;

/// A waiter joins, its permit comes due, its alarm is late, and only then another request tries:
/// the permit is the waiter's. If the try comes earlier, exactly one of the two requests gets the
/// permit.
fn try_against_a_waiter(try_acquire: fn(&TestLimiter) -> bool) {
    model(move || {
        let (limiter, clock) = first_taken();
        let due = Arc::new(AtomicBool::new(false));
        let other = {
            let (limiter, due) = (limiter.clone(), due.clone());
            thread::spawn(move || {
                let after = due.load(LoomOrdering::Acquire);
                (after, try_acquire(&limiter))
            })
        };
        let mut request = Asking::new(&limiter, 1);
        assert!(request.poll().is_pending(), "not due yet");
        clock.set_without_waking(SECOND);
        due.store(true, LoomOrdering::Release);
        let (after, taken) = other.join().expect("no panic");
        assert!(!(after && taken), "nobody overtakes");
        clock.set(SECOND);
        assert!(taken != request.is_granted(), "one permit, one owner");
    });
}

#[test]
fn a_try_never_overtakes_a_waiter() {
    try_against_a_waiter(|limiter| limiter.try_acquire(ONE).is_ok());
}

/// The broken twin: a try that does not check for waiters.
#[test]
#[should_panic(expected = "nobody overtakes")]
fn broken_a_try_never_overtakes_a_waiter() {
    try_against_a_waiter(|limiter| {
        let now = crate::Clock::now(&limiter.clock);
        limiter.rule.policy.try_acquire(&limiter.rule.state, now, 1).is_ok()
    });
}

/// A waiter joins while a permit is given back. It gets the permit at once, or when the refund
/// serves the queue.
fn join_against_refund(refund: fn(&TestLimiter)) {
    model(move || {
        let (limiter, _clock) = first_taken();
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || refund(&limiter))
        };
        let mut request = Asking::new(&limiter, 1);
        let ready = request.poll().is_ready();
        other.join().expect("no panic");
        assert!(ready || request.is_last_granted());
    });
}

#[test]
fn a_refund_reaches_a_request_that_joins_meanwhile() {
    join_against_refund(|limiter| limiter.refund(1));
}

/// The broken twin: a refund that checks for waiters without the lock. The waiter asks before the
/// refund and joins after the check.
#[test]
#[should_panic(expected = "nobody is left waiting")]
fn broken_a_refund_reaches_a_request_that_joins_meanwhile() {
    join_against_refund(|limiter| {
        limiter.rule.policy.refund(&limiter.rule.state, Nanos::ZERO, 1);
        if limiter.gate_word.load().has_waiters() {
            limiter.recheck();
        }
    });
}

/// A waiter joins while its permit comes due and its alarm goes off. The waiter is served, whether
/// the alarm was set before or after.
fn join_against_time(join: fn(&mut Asking)) {
    model(move || {
        let (limiter, clock) = first_taken();
        let other = {
            let clock = clock.clone();
            thread::spawn(move || clock.set(SECOND))
        };
        let mut request = Asking::new(&limiter, 1);
        join(&mut request);
        other.join().expect("no panic");
        assert!(request.is_last_granted());
    });
}

#[test]
fn an_alarm_is_not_missed_while_it_is_set() {
    join_against_time(|request| {
        let _ = request.poll();
    });
}

/// The broken twin: a waiter that does not check again after it has set the alarm.
#[test]
#[should_panic(expected = "nobody is left waiting")]
fn broken_an_alarm_is_not_missed_while_it_is_set() {
    join_against_time(|request| {
        let limiter = &request.limiter;
        let mut deferred = Deferred::new();
        let mut line = lock(&limiter.line);
        let now = crate::Clock::now(&limiter.clock);
        let alarm = u32::try_from(line.alarms.join(&limiter.clock, (), now, || limiter.weak())).expect("one");
        let woken_by = WokenBy::Task { alarm, too_early: 0 };
        let waker = Some(request.waker.clone());
        let new_waiter = NewWaiter {
            ask: 1,
            most: None,
            priority: 0,
            droppable: false,
            woken_by,
            since: now,
            deadline: Nanos::MAX,
            waker,
        };
        let key = line.push(&mut limiter.visit_at(now, &mut deferred), new_waiter);
        limiter.store_gate_word(&line);
        let arming = line.watch(SECOND, &limiter.clock, &mut deferred);
        drop(line);
        if let Some(mut arming) = arming {
            arming.run();
            lock(&limiter.line).put_back(arming, false, &mut deferred);
        }
        request.wait = Progress { stage: Stage::Queued(key), since: now, ..Progress::new(1) };
    });
}

/// One thread sets the alarm for a late time while another makes the head due earlier and finds the
/// alarm taken.
#[test]
fn an_alarm_that_is_taken_is_set_to_the_newest_time() {
    model(|| {
        let clock = LoomClock::new();
        let policy = SmoothBursty::new(Rate::per_second(1)).max_burst(Duration::ZERO);
        let limiter = Arc::new(Shared::new(Single::new(policy, &clock), clock.clone(), Duration::ZERO));
        limiter.try_acquire(Demand { ask: &2, ..ONE }).expect("the first two");
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.refund(1))
        };
        let mut request = Asking::new(&limiter, 1);
        assert!(request.poll().is_pending());
        other.join().expect("no panic");
        // Due at 1 s, not at 2 s. Only the alarm serves it.
        clock.set(SECOND);
        assert!(request.is_last_granted());
    });
}

/// The first of two waiters is dropped while the alarm grants it. Whichever comes first, the second
/// waiter has the permit.
fn drop_against_grant(leave: fn(&TestLimiter, &mut Progress<u32>)) {
    model(move || {
        let (limiter, clock) = first_taken();
        let mut first = Asking::new(&limiter, 1);
        let mut second = Asking::new(&limiter, 1);
        assert!(first.poll().is_pending() && second.poll().is_pending());
        let other = {
            let clock = clock.clone();
            thread::spawn(move || clock.set(SECOND))
        };
        leave(&limiter, &mut first.wait);
        other.join().expect("no panic");
        assert!(second.is_last_granted());
        // One permit was granted, not two.
        assert!(limiter.try_acquire(ONE).is_err());
    });
}

#[test]
fn a_dropped_waiter_passes_its_permit_on() {
    drop_against_grant(|limiter, wait| limiter.leave(wait));
}

/// The broken twin: a drop that undoes the grant and does not serve the next waiter.
#[test]
#[should_panic(expected = "nobody is left waiting")]
fn broken_a_dropped_waiter_passes_its_permit_on() {
    drop_against_grant(|limiter, wait| {
        let Stage::Queued(key) = std::mem::replace(&mut wait.stage, Stage::Done) else { return };
        let mut deferred = Deferred::new();
        let mut line = lock(&limiter.line);
        line.remove(&mut limiter.visit_at(Nanos::ZERO, &mut deferred), key);
        limiter.store_gate_word(&line);
        drop(line);
        drop(deferred);
    });
}

/// A waiter is dropped while another one joins. The second waiter is then the only one in the
/// queue, with an alarm that goes off.
#[test]
fn a_drop_does_not_take_the_alarm_of_another() {
    model(|| {
        let (limiter, clock) = first_taken();
        let mut first = Asking::new(&limiter, 1);
        assert!(first.poll().is_pending());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                let mut second = Asking::new(&limiter, 1);
                assert!(second.poll().is_pending());
                second
            })
        };
        drop(first);
        let mut second = other.join().expect("no panic");
        clock.set(SECOND);
        assert!(second.is_last_granted());
    });
}

/// The rate rises while two requests join. Both are served at the new rate, by one alarm.
#[test]
fn a_change_of_rate_reaches_a_request_that_joins_meanwhile() {
    model(|| {
        let (limiter, clock) = first_taken();
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.change(crate::policy::Change::rate(Rate::per_second(1000))).is_ok())
        };
        let mut first = Asking::new(&limiter, 1);
        let mut second = Asking::new(&limiter, 1);
        assert!(first.poll().is_pending() && second.poll().is_pending());
        assert!(other.join().expect("no panic"));
        clock.set(SECOND);
        clock.set(Nanos::new(1_001_000_000));
        assert!(second.is_last_granted() && first.is_last_granted());
    });
}

/// A refund wakes a blocked thread at any point between the thread's check and its parking.
#[test]
fn a_blocked_thread_is_unparked() {
    model(|| {
        let (limiter, _clock) = first_taken();
        let blocked = {
            let limiter = limiter.clone();
            thread::spawn(move || blocking::acquire(&mut Pending::new(limiter, Progress::new(1))))
        };
        limiter.refund(1);
        assert!(blocked.join().expect("no panic").is_ok());
    });
}

/// The broken twin: a thread that checks, and parks before it has registered its waker.
#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_blocked_thread_is_unparked() {
    model(|| {
        let (limiter, _clock) = first_taken();
        let blocked = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                let mut wait = Progress::new(1);
                while limiter.poll(&mut wait, Poller::Thread(Waker::noop())).is_pending() {
                    thread::park();
                }
            })
        };
        limiter.refund(1);
        blocked.join().expect("no panic");
    });
}

/// A waiter is dropped while its permit comes due and a third request tries. The permit exists
/// once, and if the try does not get it, it is still available.
#[test]
fn a_dropped_permit_is_neither_lost_nor_doubled() {
    model_of_three(|| {
        let (limiter, clock) = first_taken();
        let mut request = Asking::new(&limiter, 1);
        assert!(request.poll().is_pending());
        let ringer = {
            let clock = clock.clone();
            thread::spawn(move || clock.set(SECOND))
        };
        let taker = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.try_acquire(ONE).is_ok())
        };
        drop(request);
        ringer.join().expect("no panic");
        let taken = taker.join().expect("no panic");
        assert!(taken != limiter.try_acquire(ONE).is_ok());
    });
}

/// An alarm goes off while another thread sets it to an earlier time. This is not taken for the new
/// setting going off, so the next waiter has an alarm as well.
#[test]
fn an_alarm_that_fires_while_it_is_reset_is_not_lost() {
    model(|| {
        let clock = LoomClock::new();
        let policy = SmoothBursty::new(Rate::per_second(1)).max_burst(Duration::ZERO);
        let limiter = Arc::new(Shared::new(Single::new(policy, &clock), clock.clone(), Duration::ZERO));
        limiter.try_acquire(Demand { ask: &2, ..ONE }).expect("the first two");
        let mut first = Asking::new(&limiter, 1);
        let mut second = Asking::new(&limiter, 1);
        assert!(first.poll().is_pending() && second.poll().is_pending());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.refund(1))
        };
        // Due at 1 s because of the refund, otherwise at 2 s.
        clock.set(SECOND);
        other.join().expect("no panic");
        clock.set(Nanos::new(2_000_000_000));
        clock.set(Nanos::new(3_000_000_000));
        assert!(first.is_last_granted() && second.is_last_granted());
    });
}
