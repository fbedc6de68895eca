//! A limit to the time that a future takes.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::clock::{Sleep, Timer};
use crate::time::Nanos;

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
    // Boxed, since another one is made if the event loop ends.
    let mut sleep = None;
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        let waits = sleep.get_or_insert_with(|| Box::pin(clock.sleep_until(at)));
        if waits.as_mut().poll(context).is_ready() || clock.now() >= at {
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
