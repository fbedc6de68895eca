//! A limit to the time that a future takes.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::clock::{Sleep, Timer};
use crate::sync::{Mutex, lock};
use crate::time::Nanos;

/// The waker of a sleep, which wakes the task that waits.
///
/// A timer may clone and drop the waker of a sleep under a lock. The waker of a task is user code
/// that may call a limiter, and with it the timer. So a timer gets this waker, and the waker of the
/// task is cloned, called and dropped without a lock.
struct Relay(Mutex<Option<Waker>>);

impl Relay {
    /// Sets the task to wake.
    fn set(&self, waker: &Waker) {
        let waker = waker.clone();
        let old = lock(&self.0).replace(waker);
        drop(old);
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        let waker = lock(&self.0).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Polls `future` for no longer than `within`, by this clock. Returns `None` if it was not ready by
/// then.
///
/// A future that is ready at its first poll needs no timer.
pub(crate) async fn timeout<C: Timer, F: Future>(
    clock: &C,
    within: Duration,
    future: F,
) -> Option<F::Output> {
    let at = clock.now().saturating_add(Nanos::from_duration(within));
    let mut future = pin!(future);
    // The sleep is boxed, because another sleep is created if the runtime ends.
    let (mut sleep, mut relay) = (None, None);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        let waits = sleep.get_or_insert_with(|| Box::pin(clock.sleep_until(at)));
        let relay = relay.get_or_insert_with(|| Arc::new(Relay(Mutex::new(None))));
        relay.set(context.waker());
        let waker = Waker::from(relay.clone());
        if waits.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() || clock.now() >= at {
            return Poll::Ready(None);
        }
        if waits.is_gone() {
            sleep = None;
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}
