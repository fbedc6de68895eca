//! The same queue from a plain thread: poll, park, poll again.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::limiter::pending::{Pending, Poller, Waiting};
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

/// Blocks the calling thread until a request has its answer: the time waited, what was taken, and
/// what to end the grant with if it was [kept](Waiting::keeping).
///
/// A wake-up that comes between the poll and the parking is kept as the thread's unpark token, so
/// it is not lost. Parking may end early for no reason; then the poll finds nothing and the thread
/// parks again.
pub(crate) fn acquire<R: Rule<C>, C: Timer>(
    shared: &Arc<Shared<R, C>>,
    wait: Waiting<R::Ask>,
) -> Result<(Duration, Option<R::Charge>, u64), Refusal> {
    let mut this = Pending { shared, wait };
    let waker = Waker::from(Arc::new(Unpark(current_thread())));
    loop {
        match this.poll(Poller::Thread(&waker)) {
            Poll::Ready(answer) => {
                return answer.map(|(waited, charge)| (waited, charge, this.wait.begun()));
            }
            Poll::Pending => shared.clock.park_until(shared.looks_at(&this.wait)),
        }
    }
}
