//! Waiting in a plain thread: poll, park, poll again.

use std::borrow::Borrow;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

use crate::clock::Timer;
use crate::limiter::pending::{Answered, Pending, Poller};
use crate::limiter::shared::Shared;
use crate::line::rule::Rule;
use crate::sync::{Thread, current_thread};

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks the calling thread until a request has its answer.
///
/// A wake-up that comes between the poll and the parking is kept as the thread's unpark token, so
/// it is not lost. Parking may end early for no reason; then the poll finds nothing and the thread
/// parks again.
pub(crate) fn acquire<R: Rule<C>, C: Timer, G: Borrow<Arc<Shared<R, C>>>>(
    pending: &mut Pending<R, C, G>,
) -> Answered<R::Charge> {
    let waker = Waker::from(Arc::new(Unpark(current_thread())));
    loop {
        match pending.poll(Poller::Thread(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => {
                let shared = pending.shared.borrow();
                shared.clock.park_until(shared.looks_at(&pending.wait));
            }
        }
    }
}
