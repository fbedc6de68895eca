//! Sleeps that need no runtime: one thread of the process, the timer thread, wakes them all.
//!
//! The thread starts when the first sleep is left with it, and never ends. While there is no sleep
//! it is parked without a limit. It holds every sleep in one [`Queue`], in the order of their
//! times, behind a mutex. It calls wakers without the mutex.
//!
//! # States of the thread
//!
//! `checks_at` is the time at which the thread next checks the queue. All changes are made under
//! the mutex.
//!
//! | `checks_at` | the thread | changed by |
//! |---|---|---|
//! | `ZERO` | is awake, and checks the queue before it parks; or is not started | the thread, which parks |
//! | a time | is parked until then | a sleep for an earlier time, which notifies the thread; the thread, which woke up |
//! | `MAX` | is parked until it is notified | a sleep for any time, which notifies the thread |
//!
//! # No sleep is missed
//!
//! The thread finds the earliest time, stores it in `checks_at` and parks, all in one section: the
//! condition variable releases the mutex when the thread is parked. A sleep that is inserted comes
//! either before that section, and the thread sees it, or after that section, and finds
//! `checks_at`. In the second case, if the sleep is due earlier than `checks_at`, it notifies the
//! thread. A sleep that is removed notifies nothing: the thread wakes up at its time, finds no
//! sleep that is due, and parks again.
//!
//! A sleep that is dropped or reset while its waker is being called is already out of the queue.
//! Its waker is then called once without a reason, which every user of a waker must tolerate.
//!
//! # When no thread can be started
//!
//! The operating system may refuse another thread. Then a sleep is [gone](Sleep::is_gone), and a
//! limiter wakes the tasks that rely on it, so that they ask for a new sleep. Each poll of a sleep
//! tries to start the thread again, and takes [`RETRY`] if that fails. As long as there is no
//! thread, the tasks therefore check the limiter's queue about once in that time, and no task is
//! lost.

mod queue;
mod slack;
#[cfg(all(test, not(tidegate_loom)))]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::thread::queue::{Key, Queue};
use crate::clock::thread::slack::precise_parking;
use crate::clock::time_stamp::TimeStamp;
use crate::clock::{Clock, Sleep};
use crate::time::Nanos;

/// The only timer of the process.
static TIMER: LazyLock<AlarmThread> = LazyLock::new(|| AlarmThread::new(start_thread));

/// The thread does not park for less than this, because parking takes longer.
const SPIN: Nanos = Nanos::new(2_000);

/// The thread wakes up no earlier than this long after the time of the last sleep that it woke. It
/// therefore wakes up 11,000 times per second at most, however high the rates of the limiters are,
/// and wakes all sleeps that are due by then.
const GRAIN: Nanos = Nanos::new(90_000);

/// The time that a poll takes if it cannot start the thread.
const RETRY: Duration = Duration::from_millis(1);

/// The thread that wakes sleeps, and the sleeps.
#[derive(Debug)]
pub(super) struct AlarmThread {
    clock: TimeStamp,
    shared: Mutex<Shared>,
    /// Notified when a sleep is due before the thread next checks the queue.
    earlier: Condvar,
    start: fn(&'static AlarmThread) -> std::io::Result<()>,
}

#[derive(Debug)]
struct Shared {
    queue: Queue,
    /// The time at which the thread checks the queue: see the table of states.
    checks_at: Nanos,
    /// The thread does not wake up before this time.
    not_before: Nanos,
    /// The process in which the thread was started. A forked process has no copy of the thread.
    started_in: Option<u32>,
}

/// Starts the thread of a timer.
fn start_thread(timer: &'static AlarmThread) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("tidegate-timer".to_owned());
    thread.spawn(|| timer.run()).map(drop)
}

impl AlarmThread {
    fn new(start: fn(&'static AlarmThread) -> std::io::Result<()>) -> AlarmThread {
        let (checks_at, not_before) = (Nanos::ZERO, Nanos::ZERO);
        let shared = Shared { queue: Queue::default(), checks_at, not_before, started_in: None };
        AlarmThread { clock: TimeStamp::new(), shared: Mutex::new(shared), earlier: Condvar::new(), start }
    }

    /// Locks, and ignores poisoning: no section calls user code.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, unless it runs. Returns whether it runs now.
    fn is_started(&'static self) -> bool {
        let process = Some(std::process::id());
        let mut shared = self.lock();
        if shared.started_in != process {
            let started = (self.start)(self).is_ok();
            (shared.started_in, shared.checks_at) = (process.filter(|_| started), Nanos::ZERO);
        }
        shared.started_in.is_some()
    }

    /// Arranges for `waker` to be called at `at`, in this timer's time.
    fn insert(&self, at: Nanos, waker: Waker) -> Key {
        let mut shared = self.lock();
        let key = shared.queue.insert(at, waker);
        let checks_at = at.max(shared.not_before);
        if checks_at < shared.checks_at {
            // Once for each time that the thread parks, unless a still earlier sleep follows.
            shared.checks_at = checks_at;
            // Without the lock, which the thread takes as soon as it wakes up.
            drop(shared);
            self.earlier.notify_one();
        }
        key
    }

    /// Returns the waker of a sleep if it was not called yet.
    fn remove(&self, key: Key) -> Option<Waker> {
        self.lock().queue.remove(key)
    }

    /// Runs the timer thread.
    fn run(&self) {
        precise_parking();
        let mut shared = self.lock();
        loop {
            shared.checks_at = Nanos::ZERO;
            let now = self.clock.now();
            if let Some((at, waker)) = shared.queue.pop_due(now) {
                // Counted from the time of the sleep. If it were counted from the present time, the
                // lateness of each wake-up would be added to the next one.
                shared.not_before = at.saturating_add(GRAIN);
                // User code, which may insert or remove a sleep.
                drop(shared);
                call_waker(waker);
                shared = self.lock();
                continue;
            }
            let at = shared.queue.first().unwrap_or(Nanos::MAX).max(shared.not_before);
            let left = at.saturating_since(now);
            if left < SPIN {
                // Other threads can insert sleeps while this one spins.
                drop(shared);
                std::hint::spin_loop();
                shared = self.lock();
                continue;
            }
            shared.checks_at = at;
            shared = if at == Nanos::MAX {
                self.earlier.wait(shared).unwrap_or_else(PoisonError::into_inner)
            } else {
                let parked = self.earlier.wait_timeout(shared, parking_time(left));
                parked.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }
}

/// Returns how long the thread parks if this much time is `left`.
///
/// The operating system's clock and this timer's clock differ by some parts per million. So the
/// last thousandth of a long time is measured again.
fn parking_time(left: Nanos) -> Duration {
    const LONG: u64 = 100_000_000;
    let left = left.as_u64();
    Duration::from_nanos(if left > LONG { left - left / 1024 } else { left })
}

/// Calls a waker. A waker that panics must not end the thread of all limiters. The panic hook has
/// reported the panic. The payload is leaked, because its drop may panic again.
fn call_waker(waker: Waker) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        std::mem::forget(panic);
    }
}

/// The [`Sleep`] of clocks that need no runtime. One thread of the process wakes all of them.
#[derive(Debug)]
pub struct ThreadSleep<C> {
    timer: &'static AlarmThread,
    clock: C,
    at: Nanos,
    /// The key of the waker of the last poll.
    registered: Option<Key>,
}

impl<C: Clock> ThreadSleep<C> {
    /// Creates a sleep until `clock` reads `at`.
    pub(super) fn new(clock: C, at: Nanos) -> ThreadSleep<C> {
        ThreadSleep::by(&TIMER, clock, at)
    }

    fn by(timer: &'static AlarmThread, clock: C, at: Nanos) -> ThreadSleep<C> {
        ThreadSleep { timer, clock, at, registered: None }
    }

    fn take_waker(&mut self) -> Option<Waker> {
        self.timer.remove(self.registered.take()?)
    }

    /// Leaves the waker with the timer, or returns it if the time has come.
    fn register_waker(&mut self, waker: Waker) -> Option<Waker> {
        let left = self.at.saturating_since(self.clock.now());
        if left == Nanos::ZERO {
            return Some(waker);
        }
        // Each of the two times is rounded down, and the timer's time is read second. With the two
        // nanoseconds the timer therefore does not fire before the clock reads `at`.
        let at = self.timer.clock.now().saturating_add(left).saturating_add(Nanos::new(2));
        self.registered = Some(self.timer.insert(at, waker));
        None
    }
}

impl<C: Clock + Unpin> Future for ThreadSleep<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        drop(self.take_waker());
        if self.register_waker(context.waker().clone()).is_some() {
            return Poll::Ready(());
        }
        if !self.timer.is_started() {
            std::thread::sleep(RETRY);
        }
        Poll::Pending
    }
}

impl<C: Clock + Unpin> Sleep for ThreadSleep<C> {
    fn reset(mut self: Pin<&mut Self>, at: Nanos) {
        let waker = self.take_waker();
        self.at = at;
        if let Some(waker) = waker.and_then(|waker| self.register_waker(waker)) {
            waker.wake();
        }
    }

    fn is_gone(&self) -> bool {
        self.timer.lock().started_in.is_none()
    }
}

impl<C> Drop for ThreadSleep<C> {
    fn drop(&mut self) {
        drop(self.registered.take().and_then(|key| self.timer.remove(key)));
    }
}
