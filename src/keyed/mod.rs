//! One limit for each key, in bounded memory.

mod change;
mod forget;
mod key_policy;
mod lines;
mod removed;
mod shard;
pub(crate) mod slots;
pub(crate) mod table;

pub use key_policy::KeyPolicy;

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use self::table::{Found, Table};
use crate::clock::{DefaultClock, Timer};
use crate::error::{PolicyError, Refusal};
use crate::limiter::RateLimiter;
use crate::limiter::Reservation;
use crate::limiter::events::Events;
use crate::policy::{Change, Policy, TokenBucket};
use crate::rate::Rate;
use crate::request::Request;
use crate::status::Status;

/// A limiter for each key: the same policy for all, a state of its own for each, and never more
/// than so many keys.
///
/// A key is known from its first request on, and begins as a new limiter would. Once it is as good
/// as new again, full and with nothing owed or counted, it may be forgotten. It is forgotten when a
/// new key needs its place, or when it has been as good as new for a minute and new keys come. A
/// key that is limited is never forgotten, unless you [ask for it](WhenKeysFull::ForgetFreshest).
/// Forgetting is done by the calls themselves, a few places of the table at each new key: there is
/// no thread, no timer, and nothing to call.
///
/// A key that comes back after it was forgotten never has more than if it had stayed. With a policy
/// that starts empty, such as [`SmoothBursty`](crate::SmoothBursty), it starts empty again. With
/// [`SmoothWarmingUp`](crate::SmoothWarmingUp) each key starts cold, also if the policy would
/// [start warm](crate::SmoothWarmingUp::start_warm).
///
/// | call | permits not due now |
/// |---|---|
/// | [`try_acquire`](KeyedRateLimiter::try_acquire), [`try_acquire_many`](KeyedRateLimiter::try_acquire_many) | refuses at once |
/// | [`acquire`](KeyedRateLimiter::acquire), [`acquire_many`](KeyedRateLimiter::acquire_many) | waits, in a line for this key |
/// | [`try_acquire_within`](KeyedRateLimiter::acquire_within), … | waits if it takes no longer |
/// | [`limiter`](KeyedRateLimiter::limiter) | everything that a [`RateLimiter`] can do, for one key |
///
/// | call | changes |
/// |---|---|
/// | [`change_all`](KeyedRateLimiter::change_all), [`set_rate_all`](KeyedRateLimiter::set_rate_all) | the terms of all keys |
/// | [`set_rate`](KeyedRateLimiter::set_rate) | the rate of one key, which keeps it |
/// | [`refund`](KeyedRateLimiter::refund), [`debit`](KeyedRateLimiter::debit) | what a key can have, as those of a limiter |
/// | [`remove`](KeyedRateLimiter::remove) | a key begins anew |
///
/// All calls for all keys together can be [watched](KeyedRateLimiter::observed_by), and counted by
/// [`Statistics`](crate::Statistics).
///
/// Clones share one table; a clone costs a reference count.
///
/// The number of keys is bounded, and the number of those who wait for a key is not, unless its
/// [`limiter`](KeyedRateLimiter::limiter) is given [bounds](RateLimiter::set_queue_bounds): where
/// callers are not trusted, refuse instead of waiting, or wait [within a
/// time](KeyedRateLimiter::acquire_within).
///
/// # Cost
///
/// A known key costs its state and itself, with what the table has free in between: about 21 bytes
/// for a `u64` and a [`TokenBucket`] when the limiter is full, up to twice that before. A key for
/// which somebody waits, or of which somebody has the [`limiter`](KeyedRateLimiter::limiter), costs
/// a limiter, some 2200 bytes. The last wait that ends gives them back. What a
/// [`limiter`](KeyedRateLimiter::limiter) or a reservation leaves is given back by the next call
/// for that key, or step by step by new keys.
///
/// A request for a known key takes the shared side of the lock of a small part of the table, where
/// those who look do not disturb each other. It waits only while a key is added to that part or
/// forgotten, well below a microsecond, or while [all change](KeyedRateLimiter::change_all). The
/// permit itself is taken by compare-and-swap, as in a plain limiter.
///
/// Calls take a key as it is borrowed: a `&str` for a `String`. What is borrowed must know how to
/// become a key (`ToOwned`), since a key that is new is kept; for an `Arc<str>` that is a
/// `&Arc<str>`.
///
/// A policy of your own is cloned: for each key that waits, and for each known key when [all
/// change](KeyedRateLimiter::change_all). A clone must read an existing state exactly as the
/// original does.
///
/// # A user's limit and that of all users
///
/// ```
/// use tidegate::{AllOf, AllRefusal, KeyedRateLimiter, Rate, RateLimiter, TokenBucket};
///
/// async fn call(users: &KeyedRateLimiter<String>, all: &RateLimiter<TokenBucket>, user: &str) -> Result<(), AllRefusal> {
///     let limits = AllOf::new("user", &users.limiter(user)?).with("everybody", all);
///     let _permits = limits.acquire().await?;
///     // ... the call
///     Ok(())
/// }
/// # let users = KeyedRateLimiter::new(TokenBucket::new(Rate::per_second(5), 10), 1000);
/// # let all = RateLimiter::new(TokenBucket::new(Rate::per_second(100), 100));
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(call(&users, &all, "alice")).unwrap();
/// ```
///
/// # Keys
///
/// Keys are hashed with a seed of its own for each limiter. `Eq` of a key, `Hash` of the keys that
/// are known, and `Clone` when they are [listed](KeyedRateLimiter::iter) run while a part of the
/// table is locked, and must not call the limiter. `Drop` of a key may. Any of them may panic: the
/// panic reaches the call that ran it, and no key is lost or counted twice.
///
/// # Fairness
///
/// First come, first served, for each key. Keys do not know of each other.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{KeyedRateLimiter, ManualClock, Rate, Refusal, TokenBucket};
///
/// let clock = ManualClock::new();
/// let policy = TokenBucket::new(Rate::per_second(5), 2);
/// let users: KeyedRateLimiter<String, _, _> = KeyedRateLimiter::with_clock(policy, 100_000, clock.clone());
/// users.try_acquire("alice")?;
/// users.try_acquire("alice")?;
/// assert_eq!(users.try_acquire("alice"), Err(Refusal::Limited { retry_after: Duration::from_millis(200).into() }));
/// users.try_acquire("bob")?;
/// assert_eq!(users.len(), 2);
/// # Ok::<(), Refusal>(())
/// ```
pub struct KeyedRateLimiter<K, P: Policy + Clone = TokenBucket, C: Timer = DefaultClock> {
    table: Arc<Table<K, P, C>>,
}

/// What becomes of a new key when the table is full of keys that are limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenKeysFull {
    /// Its requests are refused: [`Refusal::TooManyKeys`]. During a flood this refuses honest new
    /// keys as well, so choose `max_keys` well above the number of keys that are limited at the
    /// same time. An HTTP server answers 503 rather than 429: it is not this client who asked too
    /// much.
    #[default]
    RefuseNew,
    /// All that find no room share one limiter with the same policy.
    ShareOne,
    /// It takes the place of the key that is closest to fresh, of some that stand next to each
    /// other in the table. That key can then have more than its limit: whoever has enough keys can
    /// free any. Choose it where losing count is better than refusing. Keys that somebody waits for
    /// or that have settings of their own are not forgotten; if there are no others, the new key is
    /// refused.
    ForgetFreshest,
}

impl<K, P> KeyedRateLimiter<K, P>
where
    K: Hash + Eq,
    P: Policy + Clone,
{
    /// At most `max_keys` keys, each with this policy, on the default clock.
    ///
    /// When that many are limited at the same time, new ones are refused; for another choice see
    /// [`when_full`](KeyedRateLimiter::when_full). With 0 there is room for none. Memory is taken
    /// as keys come.
    #[must_use]
    pub fn new(policy: P, max_keys: usize) -> Self {
        KeyedRateLimiter::with_clock(policy, max_keys, DefaultClock::new())
    }
}

impl<K, P, C> KeyedRateLimiter<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// At most `max_keys` keys, each with this policy, on this clock.
    #[must_use]
    pub fn with_clock(policy: P, max_keys: usize, clock: C) -> Self {
        let table = Table::new(policy, max_keys, WhenKeysFull::default(), clock);
        KeyedRateLimiter { table: Arc::new(table) }
    }

    /// A new, empty limiter with another choice for when it is full. Keys known so far are not
    /// carried over, so call it before the first request.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, TokenBucket, WhenKeysFull};
    ///
    /// let policy = TokenBucket::new(Rate::per_minute(1), 1);
    /// let limiter = KeyedRateLimiter::with_clock(policy, 1, ManualClock::new()).when_full(WhenKeysFull::ShareOne);
    /// limiter.try_acquire(&1)?;
    /// // No room: 2 and 3 share a limiter.
    /// limiter.try_acquire(&2)?;
    /// assert!(limiter.try_acquire(&3).is_err());
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    #[must_use]
    pub fn when_full(self, choice: WhenKeysFull) -> Self {
        let Table { max_keys, clock, events, .. } = &*self.table;
        let table = Table::new(self.table.policy(), *max_keys, choice, clock.clone());
        KeyedRateLimiter { table: Arc::new(table.observed_by(events.clone())) }
    }

    /// A new, empty limiter whose calls are told to `events`, for any key. Keys known so far are
    /// not carried over, so call it before the first request.
    ///
    /// What is told is what a [`RateLimiter`] tells [who watches it](RateLimiter::observe), once for
    /// each call: grants with the time waited, refusals, also for [want of
    /// room](Refusal::TooManyKeys), waits that were dropped, and what is done to a key through its
    /// [`limiter`](KeyedRateLimiter::limiter). The key is not told. Whoever watches the limiter of
    /// one key is told of its calls as well, after this one. A key that is watched only so can be
    /// forgotten as before.
    ///
    /// A second one takes the place of the first. A limiter that is not watched compares once more
    /// for each call.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, Statistics, TokenBucket};
    ///
    /// let statistics = Arc::new(Statistics::new());
    /// let policy = TokenBucket::new(Rate::per_second(5), 1);
    /// let users = KeyedRateLimiter::with_clock(policy, 2, ManualClock::new()).observed_by(statistics.clone());
    /// for user in ["alice", "alice", "bob", "carol"] {
    ///     if let Err(refusal) = users.try_acquire(&user) {
    ///         println!("{user}: {refusal}");
    ///     }
    /// }
    /// let snapshot = statistics.snapshot();
    /// assert_eq!((snapshot.granted, snapshot.limited, snapshot.too_many_keys), (2, 1, 1));
    /// ```
    #[must_use]
    pub fn observed_by(self, events: Arc<dyn Events>) -> Self {
        let Table { max_keys, clock, when_full, .. } = &*self.table;
        let table = Table::new(self.table.policy(), *max_keys, *when_full, clock.clone());
        KeyedRateLimiter { table: Arc::new(table.observed_by(Some(events))) }
    }

    /// Takes one permit of a key now, or refuses.
    ///
    /// # Errors
    ///
    /// - [`Refusal::Limited`] if no permit of this key is due, or others wait for it.
    /// - [`Refusal::TooManyKeys`] if the key is new and there is no room for it.
    #[inline]
    pub fn try_acquire<Q>(&self, key: &Q) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.table.try_acquire(key, &Request::permits(1))
    }

    /// Takes what a [`Request`] asks for of a key now, or refuses. The request may be just a
    /// number.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](KeyedRateLimiter::try_acquire), and:
    ///
    /// - [`Refusal::ZeroPermits`] if the request asks for no permits.
    /// - [`Refusal::ExceedsLimit`] if the policy can never give so many at once.
    #[inline]
    pub fn try_acquire_many<Q>(&self, key: &Q, request: impl Into<Request>) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.table.try_acquire(key, &request.into())
    }

    /// Waits for one permit of a key. Returns the time waited, zero if it was there.
    ///
    /// # Fairness
    ///
    /// First polled, first served, for each key.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no trace.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](KeyedRateLimiter::acquire_many).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{KeyedRateLimiter, Rate, TokenBucket, TokioClock};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tidegate::Refusal> {
    /// let policy = TokenBucket::new(Rate::per_second(5), 1);
    /// let users: KeyedRateLimiter<String, _, _> = KeyedRateLimiter::with_clock(policy, 1000, TokioClock::new());
    /// assert_eq!(users.acquire("alice").await?, Duration::ZERO);
    /// assert_eq!(users.acquire("alice").await?, Duration::from_millis(200));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire<Q>(&self, key: &Q) -> Result<Duration, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.acquire_many(key, 1).await
    }

    /// Waits for what a [`Request`] asks for of a key, which may be just a number. Returns the time
    /// waited.
    ///
    /// # Errors
    ///
    /// - [`Refusal::TooManyKeys`] if the key is new and there is no room for it.
    /// - The rest as [`RateLimiter::acquire_many`].
    pub async fn acquire_many<Q>(&self, key: &Q, request: impl Into<Request>) -> Result<Duration, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let request = request.into();
        match self.table.take_or_line(key, &request)? {
            None => Ok(Duration::ZERO),
            Some(line) => line.acquire_many(request).await,
        }
    }

    /// Waits for one permit of a key if it is due within a time, else refuses at once and spends
    /// nothing.
    ///
    /// # Errors
    ///
    /// - [`Refusal::TooManyKeys`] if the key is new and there is no room for it.
    /// - The rest as [`RateLimiter::acquire_within`].
    pub async fn acquire_within<Q>(&self, key: &Q, within: Duration) -> Result<Duration, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.acquire_many(key, Request::permits(1).within(within)).await
    }

    /// Blocks the calling thread until it has one permit of a key. Returns the time waited.
    ///
    /// # Errors
    ///
    /// As [`blocking_acquire_many`](KeyedRateLimiter::blocking_acquire_many).
    pub fn blocking_acquire<Q>(&self, key: &Q) -> Result<Duration, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.blocking_acquire_many(key, 1)
    }

    /// Blocks the calling thread until it has what a [`Request`] asks for of a key, which may be
    /// just a number. Returns the time waited.
    ///
    /// Threads and tasks wait in one line. Do not call it from a task: it blocks the executor's
    /// thread.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](KeyedRateLimiter::acquire_many).
    pub fn blocking_acquire_many<Q>(&self, key: &Q, request: impl Into<Request>) -> Result<Duration, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let request = request.into();
        match self.table.take_or_line(key, &request)? {
            None => Ok(Duration::ZERO),
            Some(line) => line.blocking_acquire_many(request),
        }
    }

    /// Takes a place in the line of a key now for what a [`Request`] asks for, and tells when it is
    /// due.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](KeyedRateLimiter::acquire_many).
    pub fn reserve<Q>(
        &self,
        key: &Q,
        request: impl Into<Request>,
    ) -> Result<Reservation<KeyPolicy<P>, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let request = request.into();
        self.table.line_for(key, request.permits)?.reserve(request)
    }

    /// The limiter of a key, with everything that a [`RateLimiter`] can do: pausing it, giving it
    /// another rate, combining it.
    ///
    /// As long as you keep it the key is not forgotten. What is set through it holds for this key
    /// until the key is [removed](KeyedRateLimiter::remove), and until then the key is not
    /// forgotten either and keeps its place among `max_keys`: a rate or burst of its own, a bound,
    /// a share that is kept, shadow, who watches. A pause ends by itself, and a
    /// [reset](RateLimiter::reset) is over when the key is as good as new.
    ///
    /// A key that is new has the permits of a new key. A larger burst does not fill by itself:
    /// [`Keep::Ratio`](crate::Keep::Ratio) makes what is full stay full.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`] if the key is new and there is no room for it. With
    /// [`WhenKeysFull::ShareOne`] you get the limiter that all without room share, and what you set
    /// there is set for all of them.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 5);
    /// let users: KeyedRateLimiter<String, _, _> = KeyedRateLimiter::with_clock(policy, 1000, ManualClock::new());
    /// users.limiter("alice")?.set_rate(Rate::per_second(50));
    /// assert_eq!(users.status("alice").available, 5);
    /// assert_eq!(users.limiter("alice")?.rate(), Rate::per_second(50));
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn limiter<Q>(&self, key: &Q) -> Result<RateLimiter<KeyPolicy<P>, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.table.line(key)
    }

    /// Gives a key a rate of its own, until the key is [removed](KeyedRateLimiter::remove). What it
    /// owes or has in stock stays, by the policy's rule. For a burst of its own, too,
    /// [`change`](RateLimiter::change) its [`limiter`](KeyedRateLimiter::limiter).
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`] if the key is new and there is no room for it.
    pub fn set_rate<Q>(&self, key: &Q, rate: Rate) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.table.own_line(key)?.set_rate(rate);
        Ok(())
    }

    /// Changes the rate, the burst or both of all keys, and chooses what becomes of the permits: a
    /// new configuration, while the program runs. For a rate alone there is
    /// [`set_rate_all`](KeyedRateLimiter::set_rate_all).
    ///
    /// What a known key has in stock, counted or owed is carried over as by
    /// [`RateLimiter::change`]. New keys begin with the new terms, and so do those that were
    /// forgotten because they were as good as new. Those who wait are moved before this returns. A
    /// key that was given [a rate](KeyedRateLimiter::set_rate) or a burst of its own keeps all its
    /// terms until it is [removed](KeyedRateLimiter::remove); other settings of a key do not matter
    /// here.
    ///
    /// A request that overlaps with it is decided by the old terms or by the new ones, with a state
    /// that goes with them; that of a key for which somebody waits as when a [`RateLimiter`]
    /// changes. Two changes at the same time come one after the other.
    ///
    /// # Cost
    ///
    /// About 0.1 µs for each known key, a few times as much with a policy of many words, 1 µs for a
    /// key that is a limiter of its own, and more for each who waits. One part of the table changes
    /// after the other, of 64 at most, and the requests for its keys wait meanwhile: 3 ms with a
    /// million keys.
    ///
    /// # Errors
    ///
    /// A [`PolicyError`] if the policy cannot have such a burst; then nothing was changed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::policy::Change;
    /// use tidegate::{KeyedRateLimiter, ManualClock, Rate, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let users: KeyedRateLimiter<String, _, _> = KeyedRateLimiter::with_clock(policy, 1000, ManualClock::new());
    /// users.try_acquire_many("alice", 8)?;
    /// users.change_all(Change::rate(Rate::per_second(50)).burst(100))?;
    /// assert_eq!(users.status("alice").available, 2); // a larger bucket, not more permits
    /// assert_eq!(users.status("bob").available, 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn change_all(&self, change: Change) -> Result<(), PolicyError> {
        self.table.change_all(change)
    }

    /// Changes the rate of all keys that have none of their own, also for those who wait, as
    /// [`change_all`](KeyedRateLimiter::change_all) does.
    pub fn set_rate_all(&self, rate: Rate) {
        // A rate alone is never an error.
        let _ = self.table.change_all(Change::rate(rate));
    }

    /// Charges `n` permits of a key, whether they are there or not: [`RateLimiter::debit`].
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`] if the key is new and there is no room for it.
    pub fn debit<Q>(&self, key: &Q, n: u32) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.table.line_of_a_call(key)?.debit(n);
        Ok(())
    }

    /// Gives back `n` permits of a key that were acquired and not used. Nothing if the key is not
    /// known: then it is full. A key that has no room and [shares](WhenKeysFull::ShareOne) gives
    /// back to those it shares with.
    pub fn refund<Q>(&self, key: &Q, n: u32)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        match self.table.find(key, |policy, state| policy.refund(state, self.table.clock.now(), n)) {
            Found::Known(_) => {}
            Found::Line(line) => line.refund(n),
            Found::Nowhere => {
                if let Some(shared) = self.table.shared() {
                    shared.refund(n);
                }
            }
        }
    }

    /// What a key could have now, and how many wait for it. A key that is not known is as a new
    /// one, or as those that [share](WhenKeysFull::ShareOne) if there is no room for it. It does
    /// not become known.
    #[must_use]
    pub fn status<Q>(&self, key: &Q) -> Status
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.table.status(key)
    }

    /// Forgets a key, with what it owes and with a rate of its own. Returns whether it was known.
    ///
    /// Those who wait for it, or have its [`limiter`](KeyedRateLimiter::limiter), keep the old one
    /// to themselves: they are served as if nothing had happened, while the next request of this
    /// key begins anew.
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.table.remove(key)
    }

    /// All keys, and what each could have: a snapshot of one part of the table after the other.
    ///
    /// Keys that come or go meanwhile may be missed. No lock is held between two items.
    pub fn iter(&self) -> impl Iterator<Item = (K, Status)> + '_
    where
        K: Clone,
    {
        let status = |(key, found)| match found {
            Found::Known(status) => Some((key, status)),
            Found::Line(line) => Some((key, RateLimiter::status(&line))),
            Found::Nowhere => None,
        };
        self.table.shards().flat_map(move |keys| keys.into_iter().filter_map(status))
    }

    /// Forgets all keys that are as good as new, at once, and gives memory back. There is no need
    /// to: new keys take their places.
    pub fn sweep(&self) {
        self.table.sweep_all();
    }

    /// How many keys are known, those included that are as good as new and were not forgotten yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no key is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most keys that can be known.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.table.max_keys
    }

    /// A copy of the policy of all keys that have none of their own.
    #[must_use]
    pub fn policy(&self) -> P {
        self.table.policy()
    }
}

impl<K, P: Policy + Clone, C: Timer> Clone for KeyedRateLimiter<K, P, C> {
    fn clone(&self) -> Self {
        KeyedRateLimiter { table: self.table.clone() }
    }
}

impl<K, P: Policy + Clone, C: Timer> fmt::Debug for KeyedRateLimiter<K, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRateLimiter")
            .field("policy", &self.table.policy())
            .field("max_keys", &self.table.max_keys)
            .field("when_full", &self.table.when_full)
            .field("len", &self.table.len())
            .finish()
    }
}
