//! Models a token that ends a blocking wait, against the grant and against the thread that parks.
//!
//! One thread both cancels and gives back, because loom's `unpark` also wakes a thread that waits
//! for a lock held by a third thread.

use std::task::{Context, Poll, Waker};

use loom::thread;

use super::support::{ONE, TestLimiter, Woken, first_taken, model, model_up_to};
use crate::cancel::{CancelToken, Cancellable};
use crate::counting::CountingLimit;
use crate::error::Refusal;
use crate::limiter::blocking;
use crate::limiter::pending::{Pending, Poller, Progress};
use crate::time::Nanos;

/// A thread waits by `wait` under a token that is cancelled meanwhile. The wait returns, whenever
/// the cancellation happens.
fn parking_against_cancelling(wait: fn(&TestLimiter, &CancelToken) -> Result<Nanos, Refusal>) {
    model(move || {
        let (limiter, token) = (first_taken().0, CancelToken::new());
        let blocked = {
            let (limiter, token) = (limiter.clone(), token.clone());
            thread::spawn(move || wait(&limiter, &token))
        };
        token.cancel();
        assert_eq!(blocked.join().expect("no panic"), Err(Refusal::Cancelled));
        assert_eq!(limiter.waiting(), 0, "no entry is left");
    });
}

fn acquire(limiter: &TestLimiter) -> Result<Nanos, Refusal> {
    blocking::acquire(&mut Pending::new(limiter, Progress::new(1))).map(|answer| answer.waited)
}

#[test]
fn a_blocked_thread_is_released() {
    parking_against_cancelling(|limiter, token| token.run(|| acquire(limiter)));
}

/// The broken twin: a thread that checks the token, and then adds itself to the token's threads.
#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_blocked_thread_is_released() {
    parking_against_cancelling(|limiter, token| {
        // Nothing here is dropped when the model ends.
        let mut wait = Progress::new(1);
        while limiter.poll(&mut wait, Poller::Thread(Waker::noop())).is_pending() {
            if token.is_cancelled() {
                limiter.leave(&mut wait);
                return Err(Refusal::Cancelled);
            }
            token.add();
            thread::park();
        }
        Ok(Nanos::ZERO)
    });
}

/// A thread waits for the only permit. Another thread gives it back and cancels the token, in
/// either order. The wait is granted or cancelled; if it is cancelled, the permit is available to
/// the next request.
fn cancelling_against_a_grant(wait: fn(&CountingLimit) -> Result<(), Refusal>) {
    for cancels_first in [true, false] {
        model_up_to(2, move || {
            let (limit, token) = (CountingLimit::new(1), CancelToken::new());
            let held = limit.try_acquire().expect("the only one");
            let blocked = {
                let (limit, token) = (limit.clone(), token.clone());
                thread::spawn(move || token.run(|| wait(&limit)))
            };
            cancel_and(&token, cancels_first, || drop(held));
            let granted = blocked.join().expect("no panic").is_ok();
            assert_eq!(limit.available(), u32::from(!granted), "one permit, one owner");
        });
    }
}

fn cancel_and(token: &CancelToken, cancels_first: bool, give_back: impl FnOnce()) {
    if cancels_first {
        token.cancel();
        give_back();
    } else {
        give_back();
        token.cancel();
    }
}

#[test]
fn a_cancelled_wait_keeps_no_permit() {
    cancelling_against_a_grant(|limit| limit.blocking_acquire().map(std::mem::forget));
}

/// The broken twin: a wait that ends without leaving the queue.
#[test]
#[should_panic(expected = "one permit, one owner")]
fn broken_a_cancelled_wait_keeps_no_permit() {
    cancelling_against_a_grant(|limit| {
        let mut cancellable = Cancellable::begin()?;
        let mut turn = Box::pin(limit.acquire());
        let waker = Waker::from(Woken::new());
        match turn.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => answer.map(std::mem::forget),
            Poll::Pending => {
                while !cancellable.should_stop() {
                    thread::yield_now();
                }
                std::mem::forget(turn);
                Err(Refusal::Cancelled)
            }
        }
    });
}

/// As above, for a limiter with a rate: its permit is refunded.
#[test]
fn a_cancelled_wait_at_a_rate_keeps_no_permit() {
    for cancels_first in [true, false] {
        model_up_to(2, move || {
            let (limiter, token) = (first_taken().0, CancelToken::new());
            let blocked = {
                let (limiter, token) = (limiter.clone(), token.clone());
                thread::spawn(move || token.run(|| acquire(&limiter)))
            };
            cancel_and(&token, cancels_first, || limiter.refund(1));
            let granted = blocked.join().expect("no panic").is_ok();
            assert!(limiter.try_acquire(ONE).is_ok() != granted, "one permit, one owner");
        });
    }
}
