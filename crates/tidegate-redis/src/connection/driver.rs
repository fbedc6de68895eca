//! The future of a connection, which a task polls, and each thread that sends a call.
//!
//! The client library has a future that writes calls and reads replies, and a queue of calls to it.
//! A task polls that future. A thread that sends a call polls it as well, once, and so writes the
//! call by itself: the task is not woken for it, and waits for the reply.
//!
//! # States
//!
//! | state | the future is polled by | a thread that sends | leaves it by |
//! |---|---|---|---|
//! | free | no thread; it holds a waker that wakes the task | takes the lock | a poll |
//! | sending | a thread that holds the lock: it adds its call without waking the task, and polls then | finds the lock taken, and sends nothing | the end of the poll |
//! | driven | the task, which holds the lock | finds the lock taken, and sends nothing | the end of the poll |
//! | ended | no thread | finds that its call is not taken | nothing |
//!
//! # Ordering
//!
//! **Shared.** The future, under a mutex, and the waker of the task, in an [`AtomicWaker`]. The
//! future always gets one waker, which wakes the task, from whichever thread polls it.
//!
//! **Why no wake-up is lost.** The bad execution is a future that could go on while no thread polls
//! it and the task sleeps. A wake-up from any thread wakes the task, but for one: that of a thread
//! which adds its own call. This thread holds the lock, and polls the future after it added the
//! call, so nothing is left of which the wake-up told. A thread that finds the lock taken adds no
//! call here, and needs no poll. The task leaves its waker before it takes the lock: a wake-up that
//! comes before finds no waker, and the poll that follows sees what it told of; one that comes
//! later finds the waker. A task that was woken and did not run yet has no waker there, and runs.
//!
//! **Promise.** The poll after a wake-up sees each write that came before the wake-up.
//!
//! **Checked by** `loom-tests/driver.rs`, with a twin that adds a call and does not poll, and one
//! that leaves its waker after the poll. It has a waker under a mutex in place of that of
//! `futures-util`.

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

/// A future that a task polls, and threads that have work for it.
pub(super) struct Driver<F> {
    /// `None` when it has ended.
    future: Mutex<Option<F>>,
    task: Arc<Wakes>,
    /// Wakes the task.
    waker: Waker,
}

thread_local! {
    /// This thread adds a call, and polls the future after that.
    static SENDS: Cell<bool> = Cell::default();
}

/// While it lives, this thread adds a call. Also a panic ends it.
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

    /// A poll of the task. It is ready when the future has ended.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        self.task.0.register(context.waker());
        self.go_on(&mut self.lock())
    }

    /// Has a thread add a call, and polls the future. `None`, without a call, if another thread is
    /// at work.
    pub(super) fn send<T>(&self, add: impl FnOnce() -> T) -> Option<T> {
        let mut future = self.future.try_lock().ok()?;
        let sending = Sending::begin();
        let added = add();
        drop(sending);
        // The future runs without a budget: that of the calling task might end here, and its
        // runtime would go on at any time.
        let driving = std::future::poll_fn(|_| self.go_on(&mut future));
        if pin!(coop::unconstrained(driving)).poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            self.task.0.wake();
        }
        Some(added)
    }

    /// Ends the future.
    pub(super) fn end(&self) {
        *self.lock() = None;
    }

    fn go_on(&self, future: &mut Option<F>) -> Poll<()> {
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
