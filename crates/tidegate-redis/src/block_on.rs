//! Waiting for a future on a plain thread.
//!
//! The calling thread may be the only one of a tokio runtime. It parks here, so no timer of that
//! runtime rings. The future is polled within the runtime of the store instead: all of its sleeps
//! are woken by the thread of the store. Two callers keep their own timer: a caller outside of any
//! runtime, and a caller whose runtime has paused time, which only a test has.
//!
//! The thread of a store must not wait for a store, since it makes the calls.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use tokio::runtime::Handle;

/// Whether calls of a handle may block their thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocks {
    Yes,
    No,
}

thread_local! {
    static MAKES_CALLS: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as the thread of a store.
pub(crate) fn this_thread_makes_calls() {
    MAKES_CALLS.set(true);
}

/// Waits for a future on this thread, with the timer of this runtime of a store. `None` if the wait
/// `ends` before, and, without polling the future, on the thread of a store.
pub(crate) fn block_on<T>(
    timer: Option<&Handle>,
    mut ends: impl FnMut() -> bool,
    future: impl Future<Output = T>,
) -> Option<T> {
    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    // A thread that ends makes no calls.
    if MAKES_CALLS.try_with(Cell::get).unwrap_or(false) {
        return None;
    }
    let is_inside = Handle::try_current().is_ok();
    let _inside = timer.filter(|_| is_inside && is_real_time()).map(Handle::enter);
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return Some(answer),
            Poll::Pending if ends() => return None,
            // A wake-up between the poll and the parking is kept as the thread's unpark token.
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Whether tokio's time on this thread is real time. Paused time stands still.
fn is_real_time() -> bool {
    let before = Instant::now();
    let now = tokio::time::Instant::now().into_std();
    before <= now && now <= Instant::now()
}
