//! How a request waits for permits in use: it joins the line, checks for its result, and leaves.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::counting::events::Wait;
use crate::counting::{Answer, CountingLimit};
use crate::error::Refusal;
use crate::line::deferred::Deferred;

/// A future that waits for permits. It reports to the observers how the request ends.
pub(super) struct Turn<'a> {
    limit: &'a CountingLimit,
    n: u32,
    /// The request's number in the line, from its first poll until it has its result.
    number: Option<u64>,
    wait: Wait,
}

impl Turn<'_> {
    pub(super) fn new(limit: &CountingLimit, n: u32) -> Turn<'_> {
        Turn { limit, n, number: None, wait: Wait::New }
    }

    /// Ends the request after a token has cancelled it, perhaps before its first poll.
    pub(super) fn cancel(self, refusal: Refusal) -> Answer {
        if let Wait::New = self.wait {
            self.limit.report(|events| events.cancelled(self.n.into(), Duration::ZERO));
        }
        Err(refusal)
    }

    /// Refuses the request because it has waited too long.
    pub(super) fn refuse(mut self) -> Answer {
        // If the waker of another request panics here, the drop reports that this request was
        // cancelled.
        self.leave();
        let (limit, refusal) = (self.limit, self.limit.in_use());
        match std::mem::replace(&mut self.wait, Wait::NoReport) {
            Wait::NoReport => Err(refusal),
            _ => limit.report_end(self.n, Duration::ZERO, Err(refusal)),
        }
    }

    fn leave(&mut self) {
        if let Some(number) = self.number.take() {
            self.limit.pool.leave(number, self.n);
        }
    }
}

impl Future for Turn<'_> {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let turn = self.get_mut();
        let (limit, n, pool) = (turn.limit, turn.n, &turn.limit.pool);
        if let Wait::New = turn.wait
            && pool.try_take(n)
        {
            turn.wait = Wait::NoReport;
            return Poll::Ready(limit.report_end(n, Duration::ZERO, Ok(limit.permit(n))));
        }
        turn.wait.begin(limit);
        // The waker is cloned before the lock is taken, because a waker is user code.
        let (waker, mut deferred) = (context.waker().clone(), Deferred::new());
        let (answer, waited) = match turn.number {
            Some(number) => (ready!(pool.poll_answer(number, waker, &mut deferred)), true),
            None => match pool.join(n, waker, &mut deferred) {
                Ok(()) => (Ok(()), false),
                Err(joined) => {
                    turn.number = Some(joined);
                    return Poll::Pending;
                }
            },
        };
        turn.number = None;
        // The permit exists from here on, so a panic below gives it back.
        let answer = answer.map(|()| limit.permit(n));
        // The wakers of other waiters run here. If one panics, the number is already cleared and
        // the permit is dropped.
        drop(deferred);
        Poll::Ready(match turn.wait.end(limit) {
            Some(span) => limit.report_end(n, if waited { span } else { Duration::ZERO }, answer),
            None => answer,
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        /// Reports at the end, even if the waker of another request panics.
        struct CancelGuard<'a, 'b>(&'a mut Turn<'b>);

        impl Drop for CancelGuard<'_, '_> {
            fn drop(&mut self) {
                self.0.wait.cancel(self.0.limit, self.0.n);
            }
        }

        let guard = CancelGuard(self);
        guard.0.leave();
    }
}
