//! [`CancelToken`]: ends blocking waits from another thread.
//!
//! # Ordering
//!
//! | operation | ordering | pairs with | what it protects |
//! |---|---|---|---|
//! | `cancelled` is stored, under the lock of `threads` | Release | the load | what the canceller did before |
//! | `cancelled` is loaded, without the lock | Acquire | the store | as above |
//! | a thread is added to `threads`, and all are taken out | the lock | | see below |
//!
//! **No thread stays blocked.** The bad execution: a thread looks at the token, the token is
//! cancelled, and then the thread parks for ever. A thread adds itself to the list before its last
//! look. If it does so before the canceller takes the list, the canceller unparks it, and a parked
//! thread or the next parking returns. If it does so afterwards, the lock has shown it the mark.
//!
//! **Why not more.** The list is read under its lock alone, so no ordering across two atomics is
//! needed.
//!
//! **Checked by** `loom-tests/cancel.rs`, with a twin that looks before it adds itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::Refusal;
use crate::sync::{AtomicBool, Mutex, Ordering, Thread, current_thread, lock, thread_local};

thread_local! {
    /// The tokens that this thread runs under, the outermost first.
    static SCOPES: RefCell<Vec<CancelToken>> = RefCell::default();
}

/// Ends blocking waits from another thread.
///
/// A thread [runs](CancelToken::run) its work under a token. When the token is
/// [cancelled](CancelToken::cancel), each blocking call that waits in this work is refused at once
/// with [`Refusal::Cancelled`], and each later one before it takes anything. Its permits go to the
/// next in line. One token may end any number of waits, at any limiters: `blocking_acquire` of a
/// [`RateLimiter`](crate::RateLimiter), an [`AllOf`](crate::AllOf), a
/// [`CountingLimit`](crate::CountingLimit), of keys, and `blocking_claim` of reservations. A
/// [`Batch`](crate::Batch) still hands out permits that are there. A limiter of another crate ends
/// its waits by a [`Cancellable`].
///
/// Tasks need no token: dropping a future ends its wait. To refuse all requests that wait at one
/// limiter, and all later ones, [`close`](crate::RateLimiter::close) it.
///
/// Clones are one token. A cancelled token stays cancelled.
///
/// # Examples
///
/// ```
/// use std::thread;
/// use tidegate::{CancelToken, Rate, RateLimiter, Refusal};
///
/// let limiter = RateLimiter::smooth_bursty(Rate::per_hour(1));
/// limiter.try_acquire()?;
/// let token = CancelToken::new();
/// let worker = thread::spawn({
///     let (limiter, token) = (limiter.clone(), token.clone());
///     // Would take an hour.
///     move || token.run(|| limiter.blocking_acquire())
/// });
/// token.cancel();
/// assert_eq!(worker.join().unwrap(), Err(Refusal::Cancelled));
/// // The limiter goes on.
/// assert!(!limiter.is_closed());
/// # Ok::<(), Refusal>(())
/// ```
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Inner>);

struct Inner {
    cancelled: AtomicBool,
    /// The threads to be unparked, by their numbers.
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    blocked: BTreeMap<u64, Thread>,
    last: u64,
}

impl Default for Inner {
    fn default() -> Self {
        Inner { cancelled: AtomicBool::new(false), threads: Mutex::new(Threads::default()) }
    }
}

impl CancelToken {
    /// Creates a token that is not cancelled.
    #[must_use]
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Ends all blocking waits under this token, and refuses all later blocking calls under it.
    ///
    /// A request that gets its permits while this runs is either granted or refused: a refused one
    /// takes nothing. Returns whether the token was not cancelled before.
    #[expect(clippy::must_use_candidate, reason = "called for what it does")]
    pub fn cancel(&self) -> bool {
        let mut threads = lock(&self.0.threads);
        // Relaxed: the lock orders it with other cancellers.
        let first = !self.0.cancelled.load(Ordering::Relaxed);
        // Release: a thread that reads the mark sees what this thread did before.
        self.0.cancelled.store(true, Ordering::Release);
        let blocked = std::mem::take(&mut threads.blocked);
        // A thread that is unparked takes this lock.
        drop(threads);
        blocked.into_values().for_each(|thread| thread.unpark());
        first
    }

    /// Whether the token was [cancelled](CancelToken::cancel).
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // Acquire pairs with the store of `cancel`.
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Runs `work` in this thread, under this token. The token ends the blocking waits that `work`
    /// makes in this thread, wherever it makes them. It does not end `work` itself.
    ///
    /// `work` may run further work under other tokens. Each of them ends a wait then.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::thread;
    /// use tidegate::{CancelToken, ManualClock, Rate, RateLimiter, SmoothBursty};
    ///
    /// let policy = SmoothBursty::new(Rate::per_second(5));
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// let stop = CancelToken::new();
    /// let sent = thread::scope(|scope| {
    ///     let worker = scope.spawn(|| stop.run(|| {
    ///         let mut sent = 0;
    ///         while limiter.blocking_acquire().is_ok() {
    ///             sent += 1;
    ///         }
    ///         sent
    ///     }));
    ///     // The clock stands, so the worker waits after its first call.
    ///     while limiter.status().waiting == 0 {
    ///         thread::yield_now();
    ///     }
    ///     stop.cancel();
    ///     worker.join().unwrap()
    /// });
    /// assert_eq!(sent, 1);
    /// ```
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _within = Within::enter(self);
        work()
    }
}

/// The time in which a thread is under a token. Ends also by a panic.
struct Within;

impl Within {
    fn enter(token: &CancelToken) -> Option<Within> {
        // In a destructor of a thread that ends there is no list. Then no token can end a wait.
        SCOPES.try_with(|scopes| scopes.borrow_mut().push(token.clone())).ok().map(|()| Within)
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        drop(SCOPES.try_with(|scopes| scopes.borrow_mut().pop()));
    }
}

/// A blocking wait of the calling thread, under the tokens that the thread runs under: for a
/// [`Limiter`](crate::Limiter) of another crate, whose waits a [`CancelToken`] is to end.
///
/// Dropping it ends the wait. It stays in the thread that began it.
///
/// # Examples
///
/// ```
/// use std::thread;
/// use tidegate::{CancelToken, Cancellable, Refusal};
///
/// /// Waits until something is there, or a token of the thread is cancelled.
/// fn wait_for(mut is_there: impl FnMut() -> bool) -> Result<(), Refusal> {
///     let mut wait = Cancellable::begin()?;
///     while !is_there() {
///         if wait.should_stop() {
///             return Err(Refusal::Cancelled);
///         }
///         thread::park();
///     }
///     Ok(())
/// }
///
/// let token = CancelToken::new();
/// let waits = thread::spawn({
///     let token = token.clone();
///     move || token.run(|| wait_for(|| false))
/// });
/// token.cancel();
/// assert_eq!(waits.join().unwrap(), Err(Refusal::Cancelled));
/// ```
#[derive(Debug)]
pub struct Cancellable {
    tokens: Vec<CancelToken>,
    /// The number of this thread in each token, once it may park.
    numbers: Vec<u64>,
    /// The thread of this wait is the one that is unparked.
    _of_this_thread: PhantomData<*const ()>,
}

impl Cancellable {
    /// Begins a wait.
    ///
    /// # Errors
    ///
    /// [`Refusal::Cancelled`] if a token that the thread runs under is cancelled already.
    pub fn begin() -> Result<Cancellable, Refusal> {
        // Without a token this allocates nothing.
        let tokens = SCOPES.try_with(|scopes| scopes.borrow().clone()).unwrap_or_default();
        let wait = Cancellable { tokens, numbers: Vec::new(), _of_this_thread: PhantomData };
        if wait.is_cancelled() { Err(Refusal::Cancelled) } else { Ok(wait) }
    }

    /// Whether the wait is to end. From the first time on, a token that is cancelled unparks the
    /// thread.
    ///
    /// Ask this before each parking, with no foreign code in between, which could use up the
    /// thread's unpark token.
    #[must_use]
    pub fn should_stop(&mut self) -> bool {
        if self.numbers.is_empty() {
            // Before the look, so that a token that is cancelled after the look unparks the thread.
            self.numbers.extend(self.tokens.iter().map(CancelToken::add));
        }
        self.is_cancelled()
    }

    fn is_cancelled(&self) -> bool {
        self.tokens.iter().any(CancelToken::is_cancelled)
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        for (CancelToken(token), number) in self.tokens.iter().zip(&self.numbers) {
            lock(&token.threads).blocked.remove(number);
        }
    }
}

impl CancelToken {
    /// Adds the calling thread to the threads to be unparked. Returns its number.
    pub(crate) fn add(&self) -> u64 {
        let mut threads = lock(&self.0.threads);
        threads.last += 1;
        let number = threads.last;
        threads.blocked.insert(number, current_thread());
        number
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("is_cancelled", &self.is_cancelled()).finish()
    }
}
