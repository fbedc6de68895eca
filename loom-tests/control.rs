//! Models pauses, bounds and a reserved share against requests without the lock and requests that
//! join the queue.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use loom::sync::atomic::{AtomicBool, Ordering as LoomOrdering};
use loom::thread;

use super::support::{Asking, LoomClock, ONE, SECOND, TestLimiter, model, one_per_second};
use crate::error::Refusal;
use crate::limiter::pause::Pause;
use crate::limiter::pending::{Progress, Stage};
use crate::limiter::shared::Shared;
use crate::line::deferred::Deferred;
use crate::line::grants::{Granted, Undoable};
use crate::line::rule::Single;
use crate::line::visit::Demand;
use crate::line::{NewWaiter, WokenBy};
use crate::policy::window::FixedCharge;
use crate::policy::{Change, FixedWindow, TokenBucket};
use crate::rate::Rate;
use crate::request::{QueueBounds, Request};
use crate::sync::lock;
use crate::time::Nanos;

/// A try that begins after the pause is refused.
fn pause_against_try(pause: fn(&TestLimiter)) {
    model(move || {
        let (limiter, _clock) = one_per_second();
        let paused = Arc::new(AtomicBool::new(false));
        let other = {
            let (limiter, paused) = (limiter.clone(), paused.clone());
            thread::spawn(move || {
                let after = paused.load(LoomOrdering::Acquire);
                (after, limiter.try_acquire(ONE).is_ok())
            })
        };
        pause(&limiter);
        paused.store(true, LoomOrdering::Release);
        let (after, taken) = other.join().expect("no panic");
        assert!(!(after && taken), "nobody passes in a pause");
        assert!(limiter.try_acquire(ONE).is_err(), "nobody passes in a pause");
    });
}

#[test]
fn a_try_that_begins_in_a_pause_does_not_pass() {
    pause_against_try(|limiter| limiter.pause(Pause::until(SECOND)));
}

/// The broken twin: a pause that raises no flag for requests without the lock.
#[test]
#[should_panic(expected = "nobody passes in a pause")]
fn broken_a_try_that_begins_in_a_pause_does_not_pass() {
    pause_against_try(|limiter| lock(&limiter.line).settings.opens = SECOND);
}

/// The first request after a pause ends it for all requests: the flag is lowered, even if a waiter
/// joined and left meanwhile.
#[test]
fn a_pause_that_is_over_leaves_no_flag() {
    model(|| {
        let (limiter, clock) = one_per_second();
        limiter.pause(Pause::until(SECOND));
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                let mut joining = Asking::new(&limiter, 1);
                joining.poll().is_ready()
            })
        };
        // An interval after the end of the pause.
        clock.set(Nanos::new(2_000_000_000));
        // The request arrived after the pause, or left without a trace.
        let taken = other.join().expect("no panic");
        assert!(taken != limiter.try_acquire(ONE).is_ok());
        assert!(limiter.gate_word.load().is_clear());
    });
}

/// A pause begins while a request joins whose time is within the pause. The request is served when
/// the pause is over, and not before.
fn pause_against_join(pause: fn(&TestLimiter)) {
    model(move || {
        let (limiter, clock) = one_per_second();
        assert!(limiter.try_acquire(ONE).is_ok());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || pause(&limiter))
        };
        let mut joining = Asking::new(&limiter, 1);
        assert!(joining.poll().is_pending());
        other.join().expect("no panic");
        clock.set(SECOND);
        assert!(!joining.is_granted(), "nobody passes in a pause");
        // No further call is needed: the alarm was set to an interval after the pause.
        clock.set(Nanos::new(3_000_000_000));
        assert_eq!(lock(&limiter.line).len(), 0, "nobody is left waiting");
        assert!(joining.is_granted());
    });
}

#[test]
fn a_request_that_joins_during_a_pause_is_served_after_it() {
    pause_against_join(|limiter| limiter.pause(Pause::until(Nanos::new(2_000_000_000))));
}

/// The broken twin: a pause that checks only for requests that are already in the queue.
#[test]
#[should_panic(expected = "nobody passes in a pause")]
fn broken_a_request_that_joins_during_a_pause_is_served_after_it() {
    pause_against_join(|limiter| {
        if lock(&limiter.line).len() == 0 {
            limiter.pause(Pause::until(Nanos::new(2_000_000_000)));
        }
    });
}

/// A pause is ended while a request joins. The request has its permit at once, whichever comes
/// first.
#[test]
fn resuming_reaches_a_request_that_joins_meanwhile() {
    model(|| {
        let (limiter, _clock) = one_per_second();
        limiter.pause(Pause::until(Nanos::MAX));
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || assert!(limiter.resume()))
        };
        let mut joining = Asking::new(&limiter, 1);
        let ready = joining.poll().is_ready();
        other.join().expect("no panic");
        assert!(ready || joining.is_granted());
    });
}

/// A full bucket of two permits is paused, and a request without the lock overlaps with the pause,
/// its end, or both. `ended` runs when the end of the pause has come.
fn stock_after_a_pause(ended: fn(&Shared<Single<TokenBucket>, LoomClock>)) {
    model(move || {
        let clock = LoomClock::new();
        let policy = TokenBucket::new(Rate::per_second(1), 2);
        let limiter = Arc::new(Shared::new(Single::new(policy, &clock), clock.clone(), Duration::ZERO));
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.try_acquire(ONE).is_ok())
        };
        limiter.pause(Pause::until(SECOND));
        clock.set(SECOND);
        ended(&limiter);
        assert!(limiter.try_acquire(ONE).is_err(), "the stock is spent at the end of a pause");
        other.join().expect("no panic");
        assert!(limiter.try_acquire(ONE).is_err(), "the stock is spent at the end of a pause");
        clock.set(Nanos::new(2_000_000_000));
        assert!(limiter.try_acquire(ONE).is_ok(), "one has accrued since");
        assert!(limiter.try_acquire(ONE).is_err(), "one has accrued since");
    });
}

#[test]
fn the_stock_is_spent_at_the_end_of_a_pause() {
    stock_after_a_pause(|_| {});
}

/// The broken twin: lowers the flag when the end has come, without the lock.
#[test]
#[should_panic(expected = "the stock is spent at the end of a pause")]
fn broken_the_stock_is_spent_at_the_end_of_a_pause() {
    stock_after_a_pause(|limiter| limiter.gate_word.store_without_lock(0));
}

/// A request that read the gate word before a pause takes the one permit while the pause moves the
/// state on. The permit exists once.
fn take_while_time_stands_still(pause: fn(&Single<TokenBucket>)) {
    use crate::policy::Policy;
    model(move || {
        let policy = TokenBucket::new(Rate::per_second(1), 1);
        let state = policy.start(Nanos::ZERO);
        let rule = Arc::new(Single::with_state(policy, state));
        let other = {
            let rule = rule.clone();
            thread::spawn(move || rule.policy.try_acquire(&rule.state, Nanos::ZERO, 1).is_ok())
        };
        pause(&rule);
        let taken = other.join().expect("no panic");
        let left = rule.policy.try_acquire(&rule.state, SECOND, 1).is_ok();
        assert!(taken != left, "one permit, and none comes in");
    });
}

#[test]
fn a_permit_taken_while_time_stands_still_is_missing_afterwards() {
    use crate::policy::{Policy, Standstill};
    take_while_time_stands_still(|rule| {
        rule.policy.pause(&rule.state, Standstill::keeping(Nanos::ZERO, SECOND));
    });
}

/// The broken twin: moves the state on by a load and a store.
#[test]
#[should_panic(expected = "one permit, and none comes in")]
fn broken_a_permit_taken_while_time_stands_still_is_missing_afterwards() {
    use crate::policy::ticks;
    use crate::sync::Ordering;
    take_while_time_stands_still(|rule| {
        let zero = rule.state.zero.load(Ordering::Acquire);
        rule.state.zero.store(zero + SECOND.as_u64() * ticks::PER_NANO, Ordering::Release);
    });
}

/// Two requests join a queue with room for one. One of them is refused.
fn two_join_with_room_for_one(join: fn(&mut Asking) -> bool) {
    model(move || {
        let (limiter, _clock) = one_per_second();
        assert!(limiter.try_acquire(ONE).is_ok());
        limiter.set_bounds(QueueBounds::UNBOUNDED.max_waiters(1));
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                let mut joining = Asking::new(&limiter, 1);
                (join(&mut joining), joining)
            })
        };
        let mut first = Asking::new(&limiter, 1);
        let waits = join(&mut first);
        let (other_waits, _second) = other.join().expect("no panic");
        assert!(lock(&limiter.line).len() <= 1, "never more than the bound");
        assert!(waits != other_waits);
    });
}

#[test]
fn a_bound_is_never_exceeded() {
    two_join_with_room_for_one(|joining| joining.poll().is_pending());
}

/// The broken twin: checks for room, and takes the lock again to join.
#[test]
#[should_panic(expected = "never more than the bound")]
fn broken_a_bound_is_never_exceeded() {
    two_join_with_room_for_one(|joining| {
        let limiter = &joining.limiter;
        if !lock(&limiter.line).has_room(&limiter.rule, &1) {
            return false;
        }
        let mut deferred = Deferred::new();
        let new_waiter = NewWaiter {
            ask: 1,
            most: None,
            priority: 0,
            droppable: true,
            woken_by: WokenBy::Nothing,
            since: Nanos::ZERO,
            deadline: Nanos::MAX,
            waker: None,
        };
        let key = lock(&limiter.line).push(&mut limiter.visit_at(Nanos::ZERO, &mut deferred), new_waiter);
        joining.wait = Progress { stage: Stage::Queued(key), since: Nanos::ZERO, ..Progress::new(1) };
        true
    });
}

/// Two permits, one of them reserved, and two requests that may not use the reserved one. One of
/// the requests is refused.
fn two_requests_take_beside_kept_permits(take: fn(&Shared<Single<TokenBucket>, LoomClock>) -> bool) {
    model(move || {
        let clock = LoomClock::new();
        let policy = TokenBucket::new(Rate::per_second(1), 2);
        let limiter = Arc::new(Shared::new(Single::new(policy, &clock), clock.clone(), Duration::ZERO));
        limiter.keep_for_priority(1, 1);
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || take(&limiter))
        };
        let taken = take(&limiter);
        let other = other.join().expect("no panic");
        assert!(taken != other, "one is kept");
        let important = Demand { priority: 1, ..ONE };
        assert!(limiter.try_acquire(important).is_ok());
    });
}

#[test]
fn kept_permits_are_not_taken_by_two_at_once() {
    two_requests_take_beside_kept_permits(|limiter| limiter.try_acquire(ONE).is_ok());
}

/// The broken twin: checks how many permits would be left, and takes without the lock.
#[test]
#[should_panic(expected = "one is kept")]
fn broken_kept_permits_are_not_taken_by_two_at_once() {
    use crate::policy::Policy;
    two_requests_take_beside_kept_permits(|limiter| {
        let Single { policy, state } = &limiter.rule;
        policy.status(state, Nanos::ZERO).available > 1 && policy.try_acquire(state, Nanos::ZERO, 1).is_ok()
    });
}

/// Shadow mode begins while a request joins. No request stays in the queue.
#[test]
fn shadow_reaches_a_request_that_joins_meanwhile() {
    model(|| {
        let (limiter, _clock) = one_per_second();
        assert!(limiter.try_acquire(ONE).is_ok());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.set_shadow(true))
        };
        let mut joining = Asking::new(&limiter, 1);
        let ready = joining.poll().is_ready();
        other.join().expect("no panic");
        assert!(ready || joining.is_granted());
        assert_eq!(lock(&limiter.line).len(), 0);
    });
}

/// A request that joins while the limiter is closed is refused, by itself or by the call that
/// closes the limiter.
fn close_against_a_join(close: fn(&TestLimiter)) {
    model(move || {
        let (limiter, _clock) = one_per_second();
        limiter.try_acquire(ONE).expect("the first");
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                let mut joining = Asking::new(&limiter, 1);
                let first = joining.poll();
                (joining, first)
            })
        };
        close(&limiter);
        let (mut joining, first) = other.join().expect("no panic");
        let answer = if first.is_ready() { first } else { joining.claimed() };
        assert_eq!(answer, Poll::Ready(Err(Refusal::Closed)), "a waiter was left behind");
    });
}

impl Asking {
    /// The result that is already in the queue, without serving the queue.
    fn claimed(&mut self) -> Poll<Result<Nanos, Refusal>> {
        let Stage::Queued(key) = self.wait.stage else { return Poll::Pending };
        match lock(&self.limiter.line).collect(key, self.wait.kind, &mut self.wait.ask) {
            Some(answer) => {
                self.wait.stage = Stage::Done;
                Poll::Ready(answer.map(|_| Nanos::ZERO))
            }
            None => Poll::Pending,
        }
    }
}

#[test]
fn a_request_that_joins_while_the_limiter_closes_is_refused() {
    close_against_a_join(|limiter| assert!(limiter.close()));
}

/// The broken twin: it closes the limiter to new requests, and does not serve the queue.
#[test]
#[should_panic(expected = "a waiter was left behind")]
fn broken_a_request_that_joins_while_the_limiter_closes_is_refused() {
    close_against_a_join(|limiter| {
        let mut line = lock(&limiter.line);
        line.settings.close();
        limiter.store_gate_word(&line);
    });
}

#[test]
fn a_try_that_begins_after_the_end_does_not_pass() {
    pause_against_try(|limiter| assert!(limiter.close()));
}

/// The broken twin: closes without raising a flag for requests without the lock.
#[test]
#[should_panic(expected = "nobody passes in a pause")]
fn broken_a_try_that_begins_after_the_end_does_not_pass() {
    pause_against_try(|limiter| assert!(lock(&limiter.line).settings.close()));
}

/// A waiter whose permit is due while the limiter closes gets one result, and keeps it.
#[test]
fn a_waiter_that_is_due_while_the_limiter_closes_gets_one_answer() {
    model(|| {
        let (limiter, clock) = one_per_second();
        limiter.try_acquire(ONE).expect("the first");
        let mut joining = Asking::new(&limiter, 1);
        assert!(joining.poll().is_pending());
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                clock.set(SECOND);
                limiter.try_acquire(ONE).is_ok()
            })
        };
        limiter.close();
        assert!(!other.join().expect("no panic"), "the waiter goes first");
        let Poll::Ready(answer) = joining.poll() else { panic!("a waiter was left behind") };
        assert!(answer.is_ok_and(|waited| waited == SECOND) || answer == Err(Refusal::Closed));
        assert_eq!(limiter.try_acquire(ONE), Err(Refusal::Closed));
    });
}

/// A window that counts the permits of a grant.
type Window = Shared<Single<FixedWindow>, LoomClock>;

/// All four permits of a window are taken. Half of them are undone by `undo` while `meanwhile`
/// runs. Asserts how many permits are available after it, and after `then`.
fn undo_against(
    undo: fn(&Window, Undoable<FixedCharge>),
    [before, meanwhile]: [fn(&Window); 2],
    then: fn(&Window, &LoomClock),
    available: u64,
) {
    model(move || {
        let clock = LoomClock::new();
        let policy = FixedWindow::new(Rate::per_second(4));
        let limiter = Arc::new(Shared::new(Single::new(policy, &clock), clock.clone(), Duration::ZERO));
        limiter.try_acquire(Demand::exactly(&2, 0)).expect("the first two");
        let mut reserved = limiter.reserve(2, &Request::permits(2)).expect("the other two");
        let receipt = limiter.claim(&mut reserved).expect("due").expect("granted");
        let grant = receipt.granted.and_then(Granted::tracked).expect("a grant that can be undone");
        before(&limiter);
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || undo(&limiter, grant.into()))
        };
        meanwhile(&limiter);
        other.join().expect("no panic");
        then(&limiter, &clock);
        assert_eq!(limiter.status().available, available, "as many as were undone");
    });
}

fn pause(limiter: &Window) {
    limiter.pause(Pause::until(Nanos::MAX));
}

fn resume(limiter: &Window) {
    limiter.resume();
}

/// The permits of the window come back, and are withheld.
fn resume_later(limiter: &Window, clock: &LoomClock) {
    clock.set(SECOND);
    limiter.resume();
}

fn raise_the_limit(limiter: &Window) {
    limiter.change(Change::rate(Rate::per_second(5))).expect("a rate fits");
}

/// The permits are in the stock of the pause once.
#[test]
fn a_pause_that_begins_while_a_grant_is_undone_keeps_its_permits() {
    undo_against(Shared::undo, [|_| (), pause], resume_later, 2);
}

/// The permits are not taken for permits that came back in the pause.
#[test]
fn a_pause_that_ends_while_a_grant_is_undone_withholds_none_of_its_permits() {
    undo_against(Shared::undo, [pause, resume], |_, _| (), 2);
    undo_against(Shared::undo, [pause, raise_the_limit], resume_later, 3);
}

/// The broken twins: undo without the lock in any case, and then count the permits in the stock.
fn undo_in_two_steps(limiter: &Window, mut grant: Undoable<FixedCharge>) {
    let mut deferred = Deferred::new();
    let latest = lock(&limiter.line).latest();
    limiter.undo_unlocked(&mut grant.charge, latest, &mut deferred);
    limiter.serve_then(|line, visit| line.uncount(visit.rule, &grant, |_| false));
}

#[test]
#[should_panic(expected = "as many as were undone")]
fn broken_a_pause_that_begins_while_a_grant_is_undone_keeps_its_permits() {
    undo_against(undo_in_two_steps, [|_| (), pause], resume_later, 2);
}

#[test]
#[should_panic(expected = "as many as were undone")]
fn broken_a_pause_that_ends_while_a_grant_is_undone_withholds_none_of_its_permits() {
    undo_against(undo_in_two_steps, [pause, resume], |_, _| (), 2);
}
