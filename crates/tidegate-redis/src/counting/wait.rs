//! A request for permits in use, as a future.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate::clock::Sleep as _;
use tidegate::{Clock, DefaultClock, Left, Nanos, Refusal, Request, Timer};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::counting::line::{Answer, Held, Position, Shared};
use crate::store::Away;

/// A request in the queue of this process. Dropping it withdraws the request.
pub(super) struct Wait {
    shared: Arc<Shared>,
    /// Until the request is decided.
    position: Option<Position>,
    answer: oneshot::Receiver<Answer>,
    clock: DefaultClock,
    began: Nanos,
    waits_for_permits: bool,
    /// Set once the request is decided.
    pub(super) waited: Nanos,
    longest: Option<Longest>,
}

/// The maximum wait of a request.
struct Longest {
    ends: Nanos,
    /// Until the store has replied, the permits may be free. The reply has the store's timeout.
    last: Nanos,
    sleep: Pin<Box<<DefaultClock as Timer>::Sleep>>,
}

impl Wait {
    /// Joins the queue. A request that does not stay waits only for the decision.
    pub(super) fn join(
        shared: &Arc<Shared>,
        request: &Request,
        waits_for_permits: bool,
    ) -> Result<Wait, Refusal> {
        let shared = shared.clone();
        let waits_for_permits = waits_for_permits && request.within != Some(Duration::ZERO);
        let longest = request.within.filter(|_| waits_for_permits);
        let ends = longest.and_then(|longest| Instant::now().checked_add(longest));
        let (position, answer) = shared.join(request.permits, waits_for_permits, ends, request.priority)?;
        let (position, clock) = (Some(position), DefaultClock::new());
        let (began, waited) = (clock.now(), Nanos::ZERO);
        let mut wait =
            Wait { shared, position, answer, clock, began, waits_for_permits, waited, longest: None };
        // The clock panics in a runtime without a timer. Then `wait` is dropped, and the request
        // leaves the queue.
        wait.longest = longest.map(|within| {
            let end = |span| began.saturating_add(Nanos::from_duration(span));
            let (ends, last) = (end(within), end(within.max(wait.shared.store.timeout())));
            Longest { ends, last, sleep: Box::pin(wait.clock.sleep_until(ends)) }
        });
        Ok(wait)
    }

    /// Waits for the end of the maximum wait. Then the request waits only for the decision, or it
    /// is refused if the permits are known to be in use.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Refusal>> {
        let Some(Longest { ends, last, sleep }) = &mut self.longest else { return Poll::Pending };
        // The runtime of an earlier poll may have ended.
        if sleep.is_gone() {
            *sleep = Box::pin(self.clock.sleep_until(*ends));
        }
        ready!(sleep.as_mut().poll(context));
        let Some(position) = self.position.filter(|position| self.shared.stop_waiting(*position)) else {
            return Poll::Ready(Err(self.shared.not_free()));
        };
        if ends == last {
            self.longest = None;
            self.shared.expire_one(position);
        } else {
            *ends = *last;
            *sleep = Box::pin(self.clock.sleep_until(*last));
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the permits of a request that was granted, without waiting for the decision.
    pub(super) fn take_granted(&mut self) -> Option<(Held, Left)> {
        let answer = self.answer.try_recv().ok()?;
        self.position = None;
        self.note_waited();
        answer.ok()
    }

    fn note_waited(&mut self) {
        if self.waits_for_permits {
            self.waited = self.clock.now().saturating_since(self.began);
        }
    }

    fn leave(&mut self) {
        if let Some(position) = self.position.take() {
            // The task of this request need not be woken.
            self.answer.close();
            self.shared.leave(position);
        }
    }
}

impl Future for Wait {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let this = &mut *self;
        let answer = loop {
            if let Poll::Ready(answer) = Pin::new(&mut this.answer).poll(context) {
                this.position = None;
                // The store has ended.
                break answer.unwrap_or(Err(Away::ENDED.refusal().into()));
            }
            if let Err(refusal) = ready!(this.poll_end(context)) {
                this.leave();
                // The decision may have come meanwhile.
                break this.answer.try_recv().unwrap_or(Err(refusal.into()));
            }
        };
        this.note_waited();
        Poll::Ready(answer)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::{Store, StoreCountingLimit, WhileAway};

    /// Returns a limit whose requests wait for a store that does not exist.
    fn jobs(limit: u32) -> StoreCountingLimit {
        let store = Store::builder("redis://127.0.0.1:1").while_away(WhileAway::Wait).open();
        store.expect("a store").counting("jobs", limit).build().expect("a limit")
    }

    /// The request stayed in the queue of the store, and no other was served.
    #[test]
    fn a_request_without_a_timer_leaves_the_queue() {
        let (jobs, runtime) = (jobs(1), tokio::runtime::Builder::new_current_thread().build());
        let runtime = runtime.expect("a runtime");
        let acquire = || runtime.block_on(jobs.acquire_within(Duration::from_secs(1))).map(drop);
        assert!(catch_unwind(AssertUnwindSafe(acquire)).is_err());
        assert_eq!(jobs.shared.waiting(), 0);
    }

    /// A request whose size was checked before the limit was lowered joined the queue afterwards.
    #[test]
    fn a_request_that_is_too_large_does_not_join() {
        let jobs = jobs(10);
        jobs.set_limit(5);
        let too_large = Refusal::ExceedsLimit { requested: 10, limit: 5 };
        assert_eq!(jobs.shared.join(10, true, None, 0).err(), Some(too_large));
    }
}
