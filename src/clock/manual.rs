//! A clock that moves only when a caller moves it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::{Clock, Sleep, Timer};
use crate::sync::{Unpark, park};
use crate::time::Nanos;

/// A clock for tests and simulations: it stands still until it is advanced.
///
/// Windows at the wall clock take its time for Unix time: a clock that starts at 23 hours is one
/// hour before midnight UTC. Buckets end 34 years after zero, so start a clock at a time in the
/// year 1970, not today.
///
/// Clones share the time. [`advance`](ManualClock::advance) moves from one due time to the next, so
/// that each timer fires at its own time. When it returns, permits that came due have been granted.
/// [`jump`](ManualClock::jump) skips the times between, like a machine that stalled.
///
/// It works with any executor, and with blocking calls from other threads. A task's own code runs
/// when its executor runs it, which is after `advance` has returned. To be sure that another task
/// or thread waits before you advance, check [`status().waiting`](crate::RateLimiter::status).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Clock, ManualClock, Nanos};
///
/// let clock = ManualClock::new();
/// clock.advance(Duration::from_secs(2));
/// assert_eq!(clock.now(), Nanos::new(2_000_000_000));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    now: Nanos,
    /// The waker of each sleep, by its due time. The second part of the key is a number in order of
    /// registration, so that sleeps with equal times have different keys.
    sleepers: BTreeMap<(Nanos, u64), Waker>,
    next_id: u64,
}

impl ManualClock {
    /// Creates a clock that stands at zero.
    #[must_use]
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Creates a clock that stands at `now`.
    #[must_use]
    pub fn starting_at(now: Nanos) -> ManualClock {
        let clock = ManualClock::default();
        clock.lock().now = now;
        clock
    }

    /// Moves forward by `span`, stopping at each time at which a sleep is due.
    ///
    /// Call it from one thread at a time. If two threads advance at once, one may pass a time
    /// before the other has woken the sleeps that are due at that time, and their requests are
    /// served late.
    pub fn advance(&self, span: Duration) {
        let target = self.now().saturating_add(Nanos::from_duration(span));
        while let Some(waker) = self.pass_next(target) {
            // The lock is released: the waker may read this clock or register another sleep.
            waker.wake();
        }
        let mut shared = self.lock();
        shared.now = shared.now.max(target);
    }

    /// Moves forward by `span` in one step, and then wakes every sleep that is due, like a machine
    /// that stalled.
    pub fn jump(&self, span: Duration) {
        let target = self.now().saturating_add(Nanos::from_duration(span));
        self.set(target);
    }

    /// Sets the time, forward or back, and wakes every sleep that is due.
    pub fn set(&self, now: Nanos) {
        self.lock().now = now;
        while let Some(waker) = self.pass_next(now) {
            waker.wake();
        }
    }

    /// Returns the time of the next sleep that is due, or `None` if no sleep waits for a time.
    ///
    /// A limiter with waiters sleeps until the first waiter is due, so with one limiter this is the
    /// time of its next grant. A sleep until [`Nanos::MAX`] is never due.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Nanos, Rate, RateLimiter, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_second(5), 1);
    /// let limiter = RateLimiter::with_clock(policy, clock.clone());
    /// limiter.try_acquire()?;
    /// assert_eq!(clock.next_due(), None);
    /// let mut wait = limiter.acquire();
    /// # let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    /// # assert!(std::pin::Pin::new(&mut wait).poll(context).is_pending());
    /// // ... `wait` is polled
    /// assert_eq!(clock.next_due(), Some(Nanos::new(200_000_000)));
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        let shared = self.lock();
        shared.sleepers.first_key_value().map(|((at, _), _)| *at).filter(|at| *at < Nanos::MAX)
    }

    /// Returns the number of sleeps that wait. A limiter has one sleep for each runtime with
    /// waiters, and one for each blocked thread. Its [`status`](crate::RateLimiter::status) reports
    /// how many requests wait.
    #[must_use]
    pub fn sleeping(&self) -> usize {
        self.lock().sleepers.len()
    }

    /// Runs until no sleep is due within `most` from now: calls `run`, moves to the next time at
    /// which a sleep is due, calls `run` again, and so on. Returns how much time passed.
    ///
    /// `run` runs the woken tasks, for example with the `run_until_stalled` of an executor.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_second(5), 1);
    /// let limiter = RateLimiter::with_clock(policy, clock.clone());
    /// let mut waits: Vec<_> = (0..4).map(|_| limiter.acquire()).collect();
    /// let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    /// let passed = clock.run_until_idle(Duration::from_secs(60), || {
    ///     waits
    ///         .retain_mut(|wait| std::pin::Pin::new(wait).poll(context).is_pending());
    /// });
    /// assert_eq!(passed, Duration::from_millis(600));
    /// assert!(waits.is_empty());
    /// ```
    pub fn run_until_idle(&self, most: Duration, mut run: impl FnMut()) -> Duration {
        let start = self.now();
        let end = start.saturating_add(Nanos::from_duration(most));
        run();
        while self.next_due().is_some_and(|at| at <= end)
            && let Some(waker) = self.pass_next(end)
        {
            waker.wake();
            run();
        }
        Duration::from_nanos(self.now().as_u64().saturating_sub(start.as_u64()))
    }

    /// Moves to the next time, at or before `target`, at which a sleep is due, and returns that
    /// sleep's waker.
    fn pass_next(&self, target: Nanos) -> Option<Waker> {
        let mut shared = self.lock();
        let is_due = |at: Nanos| at <= target && at < Nanos::MAX;
        let due = shared.sleepers.first_entry().filter(|first| is_due(first.key().0))?;
        let ((at, _), waker) = due.remove_entry();
        shared.now = shared.now.max(at);
        Some(waker)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        self.lock().now
    }
}

impl Timer for ManualClock {
    type Sleep = ManualSleep;
    type RuntimeId = ();

    fn runtime(&self) -> Option<()> {
        Some(())
    }

    fn wakes_threads(&self) -> bool {
        true
    }

    fn sleep_until(&self, at: Nanos) -> ManualSleep {
        ManualSleep { clock: self.clone(), at, registered: None }
    }

    fn park_until(&self, at: Nanos) {
        let mut sleep = self.sleep_until(at);
        let waker = Unpark::waker();
        if Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_pending() {
            park();
        }
    }
}

/// The [`Sleep`] of a [`ManualClock`].
#[derive(Debug)]
pub struct ManualSleep {
    clock: ManualClock,
    at: Nanos,
    /// The key of this sleep's waker in the clock.
    registered: Option<(Nanos, u64)>,
}

impl ManualSleep {
    /// Removes this sleep's waker from the clock.
    fn unregister(&mut self) -> Option<Waker> {
        let key = self.registered.take()?;
        self.clock.lock().sleepers.remove(&key)
    }

    /// Registers the waker with the clock, or returns it if the sleep is already due. One lock
    /// covers the check and the registration, so no advance can happen between them.
    fn register(&mut self, waker: Waker) -> Option<Waker> {
        let mut shared = self.clock.lock();
        if self.at <= shared.now && self.at < Nanos::MAX {
            return Some(waker);
        }
        let key = (self.at, shared.next_id);
        shared.next_id += 1;
        shared.sleepers.insert(key, waker);
        self.registered = Some(key);
        None
    }
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        drop(self.unregister());
        match self.register(context.waker().clone()) {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        }
    }
}

impl Sleep for ManualSleep {
    fn reset(mut self: Pin<&mut Self>, at: Nanos) {
        let waker = self.unregister();
        self.at = at;
        if let Some(waker) = waker.and_then(|waker| self.register(waker)) {
            waker.wake();
        }
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        drop(self.unregister());
    }
}
