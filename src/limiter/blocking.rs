//! Waiting on a plain thread: poll, park, poll again.

use std::borrow::Borrow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::cancel::Cancellable;
use crate::clock::Timer;
use crate::error::Refusal;
use crate::limiter::pending::{Pending, Poller};
use crate::limiter::shared::Shared;
use crate::line::answer::Receipt;
use crate::line::deferred::run_in_drop;
use crate::line::grants::GrantKind;
use crate::line::rule::Rule;
use crate::sync::{Unpark, park};

/// Blocks the calling thread until a future is ready, or until a token ends the wait. Its wakers
/// unpark the thread.
pub(crate) fn block_on<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Result<F::Output, Refusal> {
    let mut cancellable = Cancellable::begin()?;
    let waker = Unpark::waker();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return Ok(output),
            Poll::Pending if cancellable.should_stop() => return Err(Refusal::Cancelled),
            // A wake-up between the poll and the parking is kept as the thread's unpark token.
            Poll::Pending => park(),
        }
    }
}

/// Blocks the calling thread until a request has its decision, or until a token ends the wait.
///
/// A wake-up between the poll and the parking is kept as the thread's unpark token, so it is not
/// lost. Parking may end spuriously; then the poll finds nothing and the thread parks again.
///
/// If a token ends the wait, a reservation stays in the queue without the thread. Any other request
/// leaves the queue when it is dropped.
pub(crate) fn acquire<R: Rule, C: Timer, G: Borrow<Arc<Shared<R, C>>>>(
    pending: &mut Pending<R, C, G>,
) -> Result<Receipt<R::Charge>, Refusal> {
    let mut cancellable = Cancellable::begin().inspect_err(|_| {
        // A reservation keeps its position, and observers are notified when it is decided.
        if pending.wait.kind == GrantKind::Final {
            let shared = pending.shared.borrow();
            shared.report(|events| {
                events.cancelled(shared.rule.permits(pending.ask()), Duration::ZERO);
            });
        }
    })?;
    let waker = Unpark::waker();
    let Blocked(pending) = &mut Blocked(pending);
    loop {
        match pending.poll(Poller::Thread(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => {
                let shared = pending.shared.borrow();
                if cancellable.should_stop() {
                    if shared.stop_waiting(&pending.wait) {
                        return Err(Refusal::Cancelled);
                    }
                    // The decision came first: the next poll takes it.
                    continue;
                }
                shared.clock.park_until(shared.checks_at(&pending.wait));
            }
        }
    }
}

/// A request for which a thread is blocked. If user code panics in the thread, the request stays in
/// the queue without the thread, like a cancelled one.
struct Blocked<'a, R: Rule, C: Timer, G: Borrow<Arc<Shared<R, C>>>>(&'a mut Pending<R, C, G>);

impl<R: Rule, C: Timer, G: Borrow<Arc<Shared<R, C>>>> Drop for Blocked<'_, R, C, G> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            run_in_drop(|| {
                self.0.shared.borrow().stop_waiting(&self.0.wait);
            });
        }
    }
}
