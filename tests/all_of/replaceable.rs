//! A limiter that is replaced while it is in use.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::any_limiter::{acts, play_any, poll};
use crate::support::bucket;
use proptest::prelude::*;
use tidegate::{
    AcquireAny, AllRequest, AnyKeyed, AnyLimiter, KeyedLimiter, Limiter, ManualClock, Refusal, Replaceable,
};

fn in_process(clock: &ManualClock, burst: u32) -> AnyLimiter {
    bucket(clock, 5, burst).into()
}

proptest! {
    /// All calls of a handle to which a limiter is passed on have the effect of the calls of that
    /// limiter.
    #[test]
    fn a_call_concerns_the_limiter_that_is_held(acts in acts(), for_tasks in any::<bool>()) {
        let (clock, other) = (ManualClock::new(), ManualClock::new());
        let replaceable = Replaceable::new(in_process(&clock, 1));
        let handle = AnyLimiter::from(replaceable.clone());
        let handle = if for_tasks { handle.non_blocking() } else { handle };
        replaceable.replace(in_process(&clock, 5));
        prop_assert_eq!(
            play_any(&handle, &clock, &acts),
            play_any(&in_process(&other, 5), &other, &acts)
        );
    }
}

#[test]
fn requests_and_permits_stay_with_the_limiter_that_was_replaced() {
    let clock = ManualClock::new();
    let replaceable = Replaceable::new(in_process(&clock, 4));
    let handle = AnyLimiter::from(replaceable.clone());
    let mut reserved = handle.reserve(3).expect("there");
    assert!(poll(&mut reserved).is_ready());
    let mut wait = handle.acquire_many(2);
    assert!(poll(&mut wait).is_pending());
    handle.pause_for(Duration::from_millis(200)).expect("one limiter");

    let before = replaceable.replace(in_process(&clock, 10));
    assert_eq!((before.status().waiting, handle.status().waiting), (1, 0));
    assert!(handle.try_acquire_many(10).is_ok(), "neither a pause nor a waiter holds it up");
    reserved.settle_unused();
    assert_eq!(handle.status().members[0].1.available, 0, "they are permits of the other limiter");
    clock.advance(Duration::from_millis(200));
    assert!(poll(&mut wait).is_pending(), "a pause empties its limiter");
    clock.advance(Duration::from_millis(400));
    assert!(matches!(poll(&mut wait), Poll::Ready(Ok(_))));
    assert_eq!(handle.status().members[0].1.available, 3);
}

/// A waker that replaces the limiter.
struct Replaces(Replaceable, Mutex<Option<AnyLimiter>>);

impl Wake for Replaces {
    fn wake(self: Arc<Replaces>) {
        if let Some(limiter) = self.1.lock().expect("no panic").take() {
            self.0.replace(limiter);
        }
    }
}

/// Returns a limiter, and a wait for it whose waker replaces the limiter by another one. The waker
/// of a refused waiter runs while the limiter is being closed.
fn replaced_while_it_closes(clock: &ManualClock, meanwhile: AnyLimiter) -> (Replaceable, AcquireAny) {
    let replaceable = Replaceable::new(in_process(clock, 1));
    let handle = AnyLimiter::from(replaceable.clone());
    drop(handle.try_acquire());
    let waker = Waker::from(Arc::new(Replaces(replaceable.clone(), Mutex::new(Some(meanwhile)))));
    let mut wait = handle.acquire();
    assert!(std::pin::Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
    (replaceable, wait)
}

#[test]
fn a_limiter_that_was_closed_stays_closed() {
    let clock = ManualClock::new();
    let meanwhile = in_process(&clock, 7);
    let (replaceable, mut wait) = replaced_while_it_closes(&clock, meanwhile.clone());
    let handle = AnyLimiter::from(replaceable.clone());
    assert_eq!(handle.close(), Ok(true));
    assert!(meanwhile.is_closed(), "the limiter that came meanwhile");
    assert!(
        matches!(poll(&mut wait), Poll::Ready(Err(refusal)) if refusal.refusal() == Some(Refusal::Closed))
    );
    let later = in_process(&clock, 9);
    let returned = replaceable.replace(later);
    assert!(returned.try_acquire_many(9).is_ok(), "it is returned, open");
    let refusal = handle.try_acquire().expect_err("closed");
    assert_eq!(refusal.refusal(), Some(Refusal::Closed));
    assert_eq!((handle.close(), handle.is_closed()), (Ok(false), true));
}

/// A limiter that has another handle for tasks, like a limiter over a store.
#[derive(Debug)]
struct OverNetwork(AnyLimiter);

impl Limiter for OverNetwork {
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<tidegate::AllPermits, tidegate::AllRefusal> {
        self.0.try_acquire_many(request.clone())
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        self.0.acquire_many(request.clone())
    }

    fn blocking_acquire(
        &self,
        request: &AllRequest<'_>,
    ) -> Result<tidegate::AllPermits, tidegate::AllRefusal> {
        self.0.blocking_acquire_many(request.clone())
    }

    fn reserve(&self, request: &AllRequest<'_>) -> Result<tidegate::AnyReservation, tidegate::AllRefusal> {
        self.0.reserve(request.clone())
    }

    fn status(&self) -> tidegate::AllStatus {
        panic!("it would block its thread")
    }

    fn pause(&self, pause: tidegate::Pause) -> Result<(), tidegate::AllRefusal> {
        self.0.pause(pause)
    }

    fn resume(&self) -> bool {
        self.0.resume()
    }

    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), tidegate::AllRefusal> {
        self.0.debit(costs.clone())
    }

    fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, tidegate::AllRefusal> {
        self.0.keep_at_most(name, permits)
    }

    fn close(&self) -> Result<bool, tidegate::AllRefusal> {
        self.0.close()
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn non_blocking(&self) -> Option<AnyLimiter> {
        Some(self.0.clone())
    }
}

#[test]
fn a_handle_for_tasks_does_not_block_after_a_limiter_over_a_network_came() {
    let clock = ManualClock::new();
    let replaceable = Replaceable::new(in_process(&clock, 1));
    let handle = AnyLimiter::from(replaceable.clone());
    let for_tasks = handle.non_blocking();
    assert!(!handle.may_block());
    replaceable.replace(OverNetwork(in_process(&clock, 6)).into());
    assert_eq!((handle.may_block(), for_tasks.may_block()), (true, false));
    assert_eq!(for_tasks.status().members[0].1.available, 6);
    assert_eq!(for_tasks.non_blocking().status().members[0].1.available, 6);
    replaceable.replace(in_process(&clock, 2));
    assert_eq!((handle.may_block(), for_tasks.status().members[0].1.available), (false, 2));
}

/// Keys with one limiter, for which there is no clock to advance.
#[derive(Debug)]
struct OneForAll(AnyLimiter);

impl KeyedLimiter<String> for OneForAll {
    fn limiter(&self, _: String) -> Result<AnyLimiter, tidegate::AllRefusal> {
        Ok(self.0.clone())
    }

    fn close(&self) -> bool {
        self.0.close().expect("one limiter")
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

#[test]
fn limits_of_each_key_are_replaced_and_closed() {
    let clock = ManualClock::new();
    let keys = |burst| AnyKeyed::new(OneForAll(in_process(&clock, burst)));
    let replaceable = Replaceable::new(keys(1));
    let handle: AnyKeyed<String> = replaceable.clone().into();
    let of_before = handle.limiter("alice").expect("there is room");
    replaceable.replace(keys(5));
    assert!(of_before.try_acquire_many(2).is_err(), "a limiter of a key stays");
    assert!(handle.try_acquire_many("alice", 5).is_ok());
    assert_eq!((handle.close(), handle.is_closed()), (true, true));
    replaceable.replace(keys(5));
    let refusal = handle.try_acquire("alice").expect_err("closed");
    assert_eq!((refusal.refusal(), handle.close()), (Some(Refusal::Closed), false));
}

/// A limiter that is replaced while it is being closed, before and after another one was closed.
#[test]
fn the_first_close_returns_that_the_limiter_was_open() {
    let clock = ManualClock::new();
    let closed = in_process(&clock, 7);
    assert_eq!(closed.close(), Ok(true));
    let (replaceable, _wait) = replaced_while_it_closes(&clock, closed);
    let handle = AnyLimiter::from(replaceable);
    assert_eq!((handle.close(), handle.close()), (Ok(true), Ok(false)));
}
