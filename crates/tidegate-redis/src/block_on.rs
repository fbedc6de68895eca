//! Waiting for a future on a plain thread.
//!
//! The calling thread may be the only thread of a tokio runtime. It parks here, so no timer of that
//! runtime fires. The future is polled within the store's runtime instead, and the store's thread
//! wakes all of its sleeps. Two kinds of caller keep their own timer: a caller outside any runtime,
//! and a caller whose runtime has paused time, which only a test has. If the store's runtime has
//! ended, no sleep of it is ever woken. Then the future is polled every few milliseconds.
//!
//! A store's thread must not wait for a store, because it makes the calls.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::{EnterGuard, Handle, Id};

/// Whether calls of a handle may block their thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocks {
    Yes,
    No,
}

thread_local! {
    static MAKES_CALLS: Cell<bool> = const { Cell::new(false) };
    /// The runtime that this thread was in before it entered that of a store.
    static OUTER: Cell<Option<Id>> = const { Cell::new(None) };
}

/// Marks the calling thread as a store's thread.
pub(crate) fn this_thread_makes_calls() {
    MAKES_CALLS.set(true);
}

/// Returns whether this thread is in a runtime, even if it has entered that of a store since.
pub(crate) fn is_within(runtime: &Handle) -> bool {
    OUTER.get().or(Handle::try_current().ok().map(|current| current.id())) == Some(runtime.id())
}

/// The runtime of a store, which this thread has entered. An observer may make a call that blocks
/// from there.
struct Entered<'a> {
    outer: Option<Id>,
    _inside: EnterGuard<'a>,
}

impl<'a> Entered<'a> {
    fn new(runtime: &'a Handle) -> Entered<'a> {
        let outer = OUTER.get();
        OUTER.set(outer.or(Handle::try_current().ok().map(|current| current.id())));
        Entered { outer, _inside: runtime.enter() }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        OUTER.set(self.outer);
    }
}

/// How often a future is polled without a timer.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Blocks this thread on a future, with the timer of this runtime of a store, as long as it runs.
/// Returns `None` if `ends` returns true first, and, without polling the future, on a store's
/// thread.
pub(crate) fn block_on<'a, T>(
    timer: impl Fn() -> Option<&'a Handle>,
    mut ends: impl FnMut() -> bool,
    future: impl Future<Output = T>,
) -> Option<T> {
    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    // A thread that is ending makes no calls.
    if MAKES_CALLS.try_with(Cell::get).unwrap_or(false) {
        return None;
    }
    let needs_timer = Handle::try_current().is_ok() && is_real_time();
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        let inside = if needs_timer { timer() } else { None }.map(Entered::new);
        let has_timer = !needs_timer || inside.is_some();
        let answer = future.as_mut().poll(&mut Context::from_waker(&waker));
        drop(inside);
        match answer {
            Poll::Ready(answer) => return Some(answer),
            Poll::Pending if ends() => return None,
            Poll::Pending if !has_timer => std::thread::park_timeout(POLL_INTERVAL),
            // A wake-up between the poll and the parking is kept as the thread's unpark token.
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Returns whether tokio's time on this thread is real time. Paused time stands still.
fn is_real_time() -> bool {
    let before = Instant::now();
    let now = tokio::time::Instant::now().into_std();
    before <= now && now <= Instant::now()
}
