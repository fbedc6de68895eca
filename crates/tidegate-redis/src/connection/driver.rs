//! The future of a connection. A task polls it, and so does each thread that sends a call.
//!
//! The client library has a future that writes calls and reads replies, and a queue of calls to it.
//! A task polls that future. A thread that sends a call also polls the future, once, and so writes
//! the call itself: the task is not woken for the call, and waits for the reply.
//!
//! # States
//!
//! | state | the future is polled by | a thread that sends | left by |
//! |---|---|---|---|
//! | free | no thread; the future holds a waker that wakes the task | takes the lock | a poll |
//! | sending | a thread that holds the lock: it adds its call without waking the task, and then polls | finds the lock taken, and sends nothing | the end of the poll |
//! | driven | the task, which holds the lock | finds the lock taken, and sends nothing | the end of the poll |
//! | ended | no thread | finds that its call is not taken | nothing |
//!
//! # Ordering
//!
//! **Shared.** The future, under a mutex, and the waker of the task, in an [`AtomicWaker`].
//! Whichever thread polls the future, the future always gets the same waker, which wakes the task.
//!
//! **Why no wake-up is lost.** The bad execution is a future that could make progress while no
//! thread polls it and the task sleeps. Every wake-up wakes the task, except the wake-up caused by
//! a thread that adds its own call. That thread holds the lock, and polls the future after it added
//! the call, so the poll handles everything that the wake-up announced. A thread that finds the
//! lock taken adds no call here, and needs no poll. The task registers its waker before it takes
//! the lock. A wake-up before the registration finds no waker, and the following poll sees what the
//! wake-up announced. A later wake-up finds the waker. A task that was woken and did not run yet
//! has no registered waker, and runs.
//!
//! **Promise.** The poll after a wake-up sees each write that came before the wake-up.
//!
//! **Checked by** `loom-tests/driver.rs`, with a twin that adds a call and does not poll, and a
//! twin that registers its waker after the poll. The model has a waker under a mutex instead of
//! that of `futures-util`.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

#[cfg(not(all(test, tidegate_loom)))]
use futures_util::task::AtomicWaker;
#[cfg(all(test, tidegate_loom))]
use loom::{
    sync::{Mutex, MutexGuard},
    thread_local,
};
#[cfg(all(test, tidegate_loom))]
use loom_tests::AtomicWaker;
#[cfg(not(all(test, tidegate_loom)))]
use std::{
    sync::{Mutex, MutexGuard},
    thread_local,
};
use tokio::task::coop;

#[cfg(all(test, tidegate_loom))]
#[path = "../../loom-tests/driver.rs"]
mod loom_tests;

/// A future that a task polls, and that threads with work for it poll.
pub(super) struct Driver<F> {
    /// `None` when the future has ended.
    future: Mutex<Option<F>>,
    task: Arc<Wakes>,
    /// Wakes the task.
    waker: Waker,
}

thread_local! {
    /// Whether this thread is adding a call, after which it polls the future.
    static SENDS: Cell<bool> = Cell::default();
}

/// While this lives, the thread is adding a call. A panic ends it too.
struct Sending;

impl Sending {
    fn begin() -> Sending {
        SENDS.with(|sends| sends.set(true));
        Sending
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        SENDS.with(|sends| sends.set(false));
    }
}

/// The waker of the task.
struct Wakes(AtomicWaker);

impl Wake for Wakes {
    fn wake(self: Arc<Wakes>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Wakes>) {
        if !SENDS.with(Cell::get) {
            self.0.wake();
        }
    }
}

impl<F: Future<Output = ()> + Unpin> Driver<F> {
    pub(super) fn new(future: F) -> Driver<F> {
        let task = Arc::new(Wakes(AtomicWaker::new()));
        Driver { future: Mutex::new(Some(future)), waker: Waker::from(task.clone()), task }
    }

    /// Polls for the task. Ready when the future has ended.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        self.task.0.register(context.waker());
        self.poll_future(&mut self.lock())
    }

    /// Lets a thread add a call, and polls the future. Returns `None`, without a call, if another
    /// thread is at work.
    pub(super) fn send<T>(&self, add: impl FnOnce() -> T) -> Option<T> {
        let mut future = self.future.try_lock().ok()?;
        let sending = Sending::begin();
        let added = add();
        drop(sending);
        // The future runs without a cooperative budget: the budget of the calling task might end
        // here, and its runtime might resume the task at any time.
        let driving = std::future::poll_fn(|_| self.poll_future(&mut future));
        if pin!(coop::unconstrained(driving)).poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            self.task.0.wake();
        }
        Some(added)
    }

    /// Ends the future.
    pub(super) fn end(&self) {
        *self.lock() = None;
    }

    fn poll_future(&self, future: &mut Option<F>) -> Poll<()> {
        let context = &mut Context::from_waker(&self.waker);
        let poll = future.as_mut().map_or(Poll::Ready(()), |future| Pin::new(future).poll(context));
        if poll.is_ready() {
            *future = None;
        }
        poll
    }

    fn lock(&self) -> MutexGuard<'_, Option<F>> {
        self.future.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
