//! Models lateness: requests that use it without the lock, against waiters that join, and against
//! each other.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use loom::thread;

use super::support::{LoomClock, ONE, TestLimiter, Woken, model};
use crate::limiter::gate_word::LATE;
use crate::limiter::pending::{Poller, Progress};
use crate::limiter::shared::Shared;
use crate::line::rule::Single;
use crate::policy::{Policy, SmoothBursty};
use crate::rate::Rate;
use crate::time::Nanos;

const SECOND: u64 = 1_000_000_000;

fn at(tenths: u64) -> Nanos {
    Nanos::new(tenths * SECOND / 10)
}

/// One permit per second, none saved. The last grant was due at 1 s and seen at 2.5 s: the next
/// permits are due at 2 s and 3 s.
fn late() -> (TestLimiter, LoomClock) {
    let clock = LoomClock::new();
    let policy = SmoothBursty::new(Rate::per_second(1)).max_burst(Duration::ZERO);
    let limiter = Arc::new(Shared::new(Single::new(policy, &clock), clock.clone(), Duration::from_secs(9)));
    limiter.try_acquire(ONE).expect("the first");
    let mut wait = Progress::new(1);
    assert!(limiter.poll(&mut wait, Poller::Task(Waker::noop())).is_pending());
    clock.set(at(25));
    assert!(limiter.poll(&mut wait, Poller::Task(Waker::noop())).is_ready());
    assert!(limiter.gate_word.load().has_only(LATE) && limiter.gate_word.load().has(LATE));
    (limiter, clock)
}

/// Two requests race for the permit that is due at 2 s. One gets it, charged as of 2 s, and the
/// next permit is due at 3 s.
#[test]
fn one_permit_that_came_in_meanwhile_is_granted_once() {
    model(|| {
        let (limiter, clock) = late();
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.try_acquire(ONE).is_ok())
        };
        let one = limiter.try_acquire(ONE).is_ok();
        assert!(one != other.join().expect("no panic"), "one permit, one owner");
        clock.set(Nanos::new(3 * SECOND - 1));
        assert!(limiter.try_acquire(ONE).is_err());
        clock.set(at(30));
        assert!(limiter.try_acquire(ONE).is_ok());
    });
}

/// The limiter was idle for long. A request takes the permit and lowers the flag while another
/// request joins the queue. Requests that begin afterwards see the waiter.
fn idle_against_a_waiter(take: fn(&TestLimiter)) {
    model(move || {
        let (limiter, clock) = late();
        clock.set(at(90));
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || take(&limiter))
        };
        let waker = Waker::from(Woken::new());
        let mut wait = Progress::new(1);
        let waits = limiter.poll(&mut wait, Poller::Task(&waker)).is_pending();
        other.join().expect("no panic");
        if waits {
            assert!(limiter.gate_word.load().has_waiters(), "a waiter is seen");
            limiter.leave(&mut wait);
        }
    });
}

#[test]
fn taking_down_the_flag_hides_no_waiter() {
    idle_against_a_waiter(|limiter| _ = limiter.try_acquire(ONE));
}

/// The broken twin: a store lowers the flag.
#[test]
#[should_panic(expected = "a waiter is seen")]
fn broken_taking_down_the_flag_hides_no_waiter() {
    idle_against_a_waiter(|limiter| {
        let _ = limiter.rule.policy.try_acquire(&limiter.rule.state, at(90), 1);
        limiter.lateness.clear();
        if limiter.gate_word.load().has_only(LATE) {
            limiter.gate_word.store_without_lock(0);
        }
    });
}
