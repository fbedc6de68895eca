//! [`CancelToken`]: ends blocking waits from another thread.
//!
//! # Ordering
//!
//! | operation | ordering | pairs with | what it protects |
//! |---|---|---|---|
//! | `cancelled` is stored, under the lock of `threads` | Release | the load | what the cancelling thread did before |
//! | `cancelled` is loaded, without the lock | Acquire | the store | as above |
//! | a thread is added to `threads`, and all are taken out | the lock | | see below |
//!
//! **No thread stays blocked.** The bad execution: a thread checks the token, the token is
//! cancelled, and then the thread parks for ever. A thread adds itself to the list before its last
//! check. If it adds itself before the cancelling thread takes the list, the cancelling thread
//! unparks it: a parked thread returns, or the next call of `park` returns at once. If it adds
//! itself afterwards, the lock makes the `cancelled` mark visible to it.
//!
//! **Why not more.** The list is read only under its lock, so no ordering across two atomics is
//! needed.
//!
//! **Checked by** `loom-tests/cancel.rs`, with a twin that checks the token before it adds itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::Refusal;
use crate::sync::{AtomicBool, Mutex, Ordering, Thread, current_thread, lock, thread_local};

thread_local! {
    /// The tokens that this thread runs under, outermost first.
    static SCOPES: RefCell<Vec<CancelToken>> = RefCell::default();
}

/// Ends blocking waits from another thread.
///
/// A thread [runs](CancelToken::run) its work under a token. When the token is
/// [cancelled](CancelToken::cancel), each blocking call that waits in this work is refused at once
/// with [`Refusal::Cancelled`]. Each later blocking call is refused before it takes anything. The
/// permits of a refused call go to the next request in the queue. One token may end any number of
/// waits, at any limiters: `blocking_acquire` of a [`RateLimiter`](crate::RateLimiter), an
/// [`AllOf`](crate::AllOf), a [`CountingLimit`](crate::CountingLimit) and of limiters with keys,
/// and `blocking_claim` of reservations. A [`Batch`](crate::Batch) still hands out the permits that
/// it holds. A limiter of another crate ends its waits with a [`Cancellable`].
///
/// Tasks need no token: dropping a future ends its wait. To refuse all requests that wait at one
/// limiter, and all later requests, [`close`](crate::RateLimiter::close) the limiter.
///
/// All clones are the same token. A cancelled token stays cancelled.
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
    /// The threads to unpark, by their numbers.
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
    /// A request that gets its permits while this call runs is either granted or refused: a refused
    /// request takes nothing. Returns whether the token was not cancelled before.
    #[expect(clippy::must_use_candidate, reason = "called for what it does")]
    pub fn cancel(&self) -> bool {
        let mut threads = lock(&self.0.threads);
        // Relaxed: the lock orders it with other cancellers.
        let first = !self.0.cancelled.load(Ordering::Relaxed);
        // Release: a thread that reads the mark sees what this thread did before.
        self.0.cancelled.store(true, Ordering::Release);
        let blocked = std::mem::take(&mut threads.blocked);
        // An unparked thread takes this lock.
        drop(threads);
        blocked.into_values().for_each(|thread| thread.unpark());
        first
    }

    /// Returns whether the token was [cancelled](CancelToken::cancel).
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // Acquire pairs with the store in `cancel`.
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Runs `work` in this thread, under this token. The token ends the blocking waits of `work` in
    /// this thread, at any limiter. It does not end `work` itself.
    ///
    /// `work` may run further work under other tokens. Each of these tokens then ends a wait.
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
        let _scope = TokenScope::enter(self);
        work()
    }
}

/// The scope in which a thread runs under a token. A panic ends it too.
struct TokenScope;

impl TokenScope {
    fn enter(token: &CancelToken) -> Option<TokenScope> {
        // In a destructor that runs when the thread ends, the list is gone. Then no token can end a
        // wait.
        SCOPES.try_with(|scopes| scopes.borrow_mut().push(token.clone())).ok().map(|()| TokenScope)
    }
}

impl Drop for TokenScope {
    fn drop(&mut self) {
        drop(SCOPES.try_with(|scopes| scopes.borrow_mut().pop()));
    }
}

/// A blocking wait of the calling thread, under the tokens that the thread runs under. It is for a
/// [`Limiter`](crate::Limiter) of another crate whose waits a [`CancelToken`] must end.
///
/// Dropping it ends the wait. It cannot leave the thread that began it.
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
    /// The thread that began this wait is the thread that is unparked.
    _of_this_thread: PhantomData<*const ()>,
}

impl Cancellable {
    /// Begins a wait.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal::Cancelled`] if a token that the thread runs under is already cancelled.
    pub fn begin() -> Result<Cancellable, Refusal> {
        // Without a token this call allocates nothing.
        let tokens = SCOPES.try_with(|scopes| scopes.borrow().clone()).unwrap_or_default();
        let wait = Cancellable { tokens, numbers: Vec::new(), _of_this_thread: PhantomData };
        if wait.is_cancelled() { Err(Refusal::Cancelled) } else { Ok(wait) }
    }

    /// Returns whether the wait must end. After the first call, a cancelled token unparks the
    /// thread.
    ///
    /// Call this before each call of `park`, with no user code in between, because user code could
    /// use up the thread's unpark token.
    #[must_use]
    pub fn should_stop(&mut self) -> bool {
        if self.numbers.is_empty() {
            // Before the check, so that a token that is cancelled after the check unparks the
            // thread.
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
    /// Adds the calling thread to the threads to unpark. Returns its number.
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
