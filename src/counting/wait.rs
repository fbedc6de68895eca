//! How a request waits for permits in use: it joins the line, looks for its answer, and leaves.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::counting::line::Later;
use crate::counting::{CountingLimit, CountingPermit};
use crate::error::Refusal;

/// A future that waits for permits.
pub(super) struct Turn<'a> {
    limit: &'a CountingLimit,
    n: u32,
    /// The request's number in the line, from its first poll until its answer.
    number: Option<u64>,
}

impl Turn<'_> {
    pub(super) fn new(limit: &CountingLimit, n: u32) -> Turn<'_> {
        Turn { limit, n, number: None }
    }
}

impl Future for Turn<'_> {
    type Output = Result<CountingPermit, Refusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Turn { limit, n, number } = self.get_mut();
        let pool = &limit.pool;
        if number.is_none() && pool.try_take(*n) {
            return Poll::Ready(Ok(limit.permit(*n)));
        }
        // Cloned before the lock is taken, because a waker is foreign code.
        let (waker, mut deferred) = (context.waker().clone(), Later::new());
        let answer = match *number {
            Some(number) => ready!(pool.look(number, waker, &mut deferred)),
            None => match pool.join(*n, waker, &mut deferred) {
                Ok(()) => Ok(()),
                Err(joined) => {
                    *number = Some(joined);
                    return Poll::Pending;
                }
            },
        };
        *number = None;
        // The permit exists from here on, so a panic below gives it back.
        let answer = answer.map(|()| limit.permit(*n));
        // The wakers of other waiters run here. If one panics, the number is cleared and the permit
        // is dropped.
        drop(deferred);
        Poll::Ready(answer)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.limit.pool.leave(number, self.n);
        }
    }
}
