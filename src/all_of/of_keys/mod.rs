//! [`KeyedAllOf`]: several limits at once, some of them for each key.
//!
//! # How it works
//!
//! | case | how a request for a key is decided |
//! |---|---|
//! | no request waits for this key | in the table of keys, without a limiter for the key: the common members are asked first, then the key |
//! | no request waits for this key, and the request is refused for good or may not wait | by a look at each member, so no key makes room for it |
//! | the request asks several limiters of keys, or asks for permits in use of its key, or has to wait | by an [`AllOf`] of the common members and the limiters of the key |
//! | other requests wait for this key | by the [`AllOf`] in which they wait |
//!
//! A request with a maximum wait above zero makes room for its key even if its [`AllOf`] then
//! refuses it at once.
//!
//! The path through the table takes from the common members, each inside the call of the one before
//! it, as an [`AllOf`] does, and from the key innermost. So a grant of a key never has to be put
//! back. A state in a table of keys could not put it back, because it has no log. That is why only
//! a single limiter of keys takes this path.
//!
//! **No request overtakes a waiter.** A waiter's composite is in `Composites`, and its limiters are
//! in the tables of keys, before the waiter's first poll returns. A request that begins later finds
//! both, and goes to the composite's queue. If the composite has a placeholder for a limiter, this
//! holds for requests that ask nothing of that limiter, as long as the key has no limiter there.

mod composites;
mod member;

pub(crate) use composites::KeyCleanup;

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use self::composites::{Composites, Number, Numbers};
use self::member::{ByKey, CountedByKey, InTable, KeyedMember, Lease};
use crate::all_of::all::{AllCharge, Entry, Kind};
use crate::all_of::member::Wait;
use crate::all_of::name::Name;
use crate::all_of::weights::Weights;
use crate::all_of::{
    AcquireAll, AllOf, AllPermits, AllRefusal, AllRequest, AllReservation, AllStatus, rate, rates,
};
use crate::cancel::Cancellable;
use crate::clock::{DefaultClock, Timer};
use crate::counting::CountingLimit;
use crate::error::Refusal;
use crate::grant::Grant;
use crate::keyed::{KeyedCountingLimit, KeyedRateLimiter};
use crate::limiter::RateLimiter;
use crate::limiter::events::Events;
use crate::limiter::pending::Progress;
use crate::line::rule::Rule;
use crate::policy::Policy;
use crate::request::{QueueBounds, Request};
use crate::time::Nanos;

/// Several limits at once, some of them for each key: a user's limit *and* the limit of all users.
///
/// A `KeyedAllOf` is built once. Each call names its key, and is granted by all members or by none.
/// Members are limiters that all keys have in common, and limiters of keys. `Q` is the type of the
/// key in calls: `str` if the keys of the [`KeyedRateLimiter`] are `String`s.
///
/// | call | if the permits are not due now |
/// |---|---|
/// | [`try_acquire`](KeyedAllOf::try_acquire), [`try_acquire_many`](KeyedAllOf::try_acquire_many) | refuses at once |
/// | [`acquire`](KeyedAllOf::acquire), [`acquire_many`](KeyedAllOf::acquire_many) | waits in a queue of this key |
/// | [`blocking_acquire`](KeyedAllOf::blocking_acquire), [`blocking_acquire_many`](KeyedAllOf::blocking_acquire_many) | blocks the thread, in that queue |
/// | [`acquire_within`](KeyedAllOf::acquire_within) | waits if the permits are due within a given time, else refuses at once |
/// | [`reserve`](KeyedAllOf::reserve) | takes a position in the queue of this key, for a cost that is settled later |
/// | [`limiter`](KeyedAllOf::limiter) | returns the [`AllOf`] of one key, with all of its methods |
///
/// Costs are given by name, as for an [`AllOf`].
///
/// A `KeyedAllOf` takes all permits in one step only within one process. Over a store, a limit of
/// each key and a limit of all keys are two limiters and two calls: the README of `tidegate-redis`
/// has an example, and a table of the other differences from one process.
///
/// # Fairness
///
/// The waiters of one key are served first come, first served. The first waiter of each key holds a
/// position in the queues of the members, like the first waiter of an [`AllOf`]. A key that waits
/// for its own limit does not block other keys.
///
/// A request that asks nothing of a limiter of keys waits without a limiter of its key there, if
/// there is no room for the key. Later requests that ask for permits of that limiter do not wait
/// behind it, even if all keys there are in shadow mode. If the key gets a limiter there in the
/// meantime, all later requests have a queue of their own, to which the bounds and the `AllOf` of
/// the key apply separately.
///
/// # Cost
///
/// A key without waiters costs nothing besides its state in the [`KeyedRateLimiter`]. A key with
/// waiters costs a limiter and an `AllOf`, about 4 kB, until its last wait ends.
///
/// A decision about a key takes the lock of one part of the table of keys, like
/// [`KeyedRateLimiter::try_acquire`], and no other lock while no request waits.
///
/// # Settings
///
/// To hold up all keys, pause a member that all keys have in common. To end all waits, close such a
/// member. To bound the queue of each key, call
/// [`with_queue_bounds`](KeyedAllOf::with_queue_bounds). To observe all calls, call
/// [`observed_by`](KeyedAllOf::observed_by). For the settings of members see
/// [`AllOf`](AllOf#settings-of-members).
///
/// # Cancel safety
///
/// A wait can be dropped at any time without a trace.
///
/// # Examples
///
/// Two requests per second for each user, and ten for all users together:
///
/// ```
/// use std::time::Duration;
/// use tidegate::{
///     AllRefusal, KeyedAllOf, KeyedRateLimiter, ManualClock, Rate, RateLimiter,
///     TokenBucket,
/// };
///
/// let clock = ManualClock::new();
/// let policy = TokenBucket::new(Rate::per_second(2), 2);
/// let users: KeyedRateLimiter<String, _, _> =
///     KeyedRateLimiter::with_clock(policy, 100_000, clock.clone());
/// let policy = TokenBucket::new(Rate::per_second(10), 10);
/// let all_users = RateLimiter::with_clock(policy, clock);
/// let api = KeyedAllOf::new("user", &users).with("all users", &all_users);
///
/// let _permits = (api.try_acquire("alice")?, api.try_acquire("alice")?);
/// let refusal = api.try_acquire("alice").unwrap_err();
/// assert_eq!(refusal.to_string(), "user: limited, retry after 500ms");
/// let _permits = api.try_acquire("bob")?;
/// assert_eq!(all_users.status().available, 7);
/// # Ok::<(), AllRefusal>(())
/// ```
pub struct KeyedAllOf<Q: ?Sized, C: Timer = DefaultClock> {
    /// The members that all keys have in common. No request waits in it.
    common: AllOf<C>,
    keyed: Vec<KeyedEntry<Q>>,
    /// The default cost of each member: first the common members, then the members of the key.
    ones: Weights,
    composites: Arc<Composites<C>>,
    bounds: QueueBounds,
    events: Option<Arc<dyn Events>>,
}

struct KeyedEntry<Q: ?Sized> {
    name: Name,
    member: Arc<dyn KeyedMember<Q>>,
    /// The cost of a request that does not name this member, if it was set.
    cost: Option<u32>,
}

impl<Q: ?Sized> KeyedEntry<Q> {
    /// Returns whether a refused request passes, because all keys are in shadow mode.
    fn passes(&self, refusal: Refusal) -> bool {
        self.member.in_table().is_some_and(|member| member.passes(refusal))
    }

    /// Returns the member of a composite that has this lease, and what the composite drops last.
    fn leased(&self, lease: Lease) -> (Entry, Box<dyn Send + Sync>) {
        let Lease { kind, placeholder_of, leave, .. } = lease;
        (Entry { name: self.name.clone(), kind, cost: self.cost, placeholder_of }, leave)
    }
}

/// A limiter of keys that is asked without a composite.
struct OfKey<'a, Q: ?Sized> {
    name: &'a Name,
    member: &'a dyn InTable<Q>,
    n: u32,
}

impl<Q: ?Sized + 'static, C: Timer + Clone> KeyedAllOf<Q, C> {
    /// Creates a `KeyedAllOf` of one limiter of keys. Requests and refusals call the limiter
    /// `name`.
    #[must_use]
    pub fn new<K, P>(name: impl Into<Name>, limiter: &KeyedRateLimiter<K, P, C>) -> Self
    where
        K: Borrow<Q> + Hash + Eq + Send + Sync + 'static,
        P: Policy + Clone,
        Q: Hash + Eq + ToOwned<Owned = K>,
    {
        KeyedAllOf::with_key_part(name, limiter, |key: &Q| key)
    }

    /// Like [`new`](KeyedAllOf::new), for a limiter whose key is a part of the key of the calls.
    #[must_use]
    pub fn with_key_part<K, P, R>(
        name: impl Into<Name>,
        limiter: &KeyedRateLimiter<K, P, C>,
        part: impl Fn(&Q) -> &R + Send + Sync + 'static,
    ) -> Self
    where
        K: Borrow<R> + Hash + Eq + Send + Sync + 'static,
        P: Policy + Clone,
        R: Hash + Eq + ToOwned<Owned = K> + ?Sized + 'static,
    {
        let common = AllOf::of(Vec::new(), limiter.table().clock.clone());
        let keyed = KeyedAllOf {
            common,
            keyed: Vec::new(),
            ones: Weights::ones(0),
            composites: Arc::new(Composites::new()),
            bounds: QueueBounds::UNBOUNDED,
            events: None,
        };
        keyed.with_keyed_by(name, limiter, part)
    }

    /// Adds a limiter that all keys have in common.
    ///
    /// The result has its own queues, so finish building a `KeyedAllOf` before you use it.
    ///
    /// # Panics
    ///
    /// Panics if this limiter was added before, or if a member already has this name.
    #[must_use]
    #[track_caller]
    pub fn with<P: Policy>(self, name: impl Into<Name>, limiter: &RateLimiter<P, C>) -> Self {
        self.and_common(Entry::new(name.into(), rate(limiter)))
    }

    /// Adds a counting limit that all keys have in common; see [`AllOf::with_counting`].
    ///
    /// # Panics
    ///
    /// Panics if this limiter was added before, or if a member already has this name.
    #[must_use]
    #[track_caller]
    pub fn with_counting(self, name: impl Into<Name>, limit: &CountingLimit) -> Self {
        self.and_common(Entry::new(name.into(), Kind::Counting(limit.clone())))
    }

    /// Adds another limiter of keys.
    ///
    /// # Panics
    ///
    /// Panics if this limiter was added before, or if a member already has this name.
    #[must_use]
    #[track_caller]
    pub fn with_keyed<K, P>(self, name: impl Into<Name>, limiter: &KeyedRateLimiter<K, P, C>) -> Self
    where
        K: Borrow<Q> + Hash + Eq + Send + Sync + 'static,
        P: Policy + Clone,
        Q: Hash + Eq + ToOwned<Owned = K>,
    {
        self.with_keyed_by(name, limiter, |key: &Q| key)
    }

    /// Adds another limiter of keys, whose key is a part of the key of the calls.
    ///
    /// # Panics
    ///
    /// Panics if this limiter was added before, or if a member already has this name.
    ///
    /// # Examples
    ///
    /// A limit for each user, and one for the user's tenant:
    ///
    /// ```
    /// use tidegate::{KeyedAllOf, KeyedRateLimiter, ManualClock, Rate, TokenBucket};
    ///
    /// struct Caller {
    ///     user: u64,
    ///     tenant: String,
    /// }
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_second(1), 1);
    /// let users: KeyedRateLimiter<u64, _, _> =
    ///     KeyedRateLimiter::with_clock(policy, 1000, clock.clone());
    /// let policy = TokenBucket::new(Rate::per_second(2), 2);
    /// let tenants: KeyedRateLimiter<String, _, _> =
    ///     KeyedRateLimiter::with_clock(policy, 100, clock);
    /// let api = KeyedAllOf::with_key_part("user", &users, |caller: &Caller| &caller.user)
    ///     .with_keyed_by("tenant", &tenants, |caller| caller.tenant.as_str());
    ///
    /// for (user, member) in [(1, None), (1, Some("user")), (2, None), (3, Some("tenant"))] {
    ///     let answer = api.try_acquire(&Caller { user, tenant: "acme".into() });
    ///     assert_eq!(
    ///         answer.as_ref().err().and_then(|refusal| refusal.member()),
    ///         member
    ///     );
    /// }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn with_keyed_by<K, P, R>(
        self,
        name: impl Into<Name>,
        limiter: &KeyedRateLimiter<K, P, C>,
        part: impl Fn(&Q) -> &R + Send + Sync + 'static,
    ) -> Self
    where
        K: Borrow<R> + Hash + Eq + Send + Sync + 'static,
        P: Policy + Clone,
        R: Hash + Eq + ToOwned<Owned = K> + ?Sized + 'static,
    {
        self.and_keyed(name.into(), Arc::new(ByKey { limiter: limiter.clone(), part, of: PhantomData }))
    }

    /// Adds a limit of the permits in use of each key; see [`AllOf::with_counting`].
    ///
    /// # Panics
    ///
    /// Panics if this limiter was added before, or if a member already has this name.
    ///
    /// # Examples
    ///
    /// At most two calls of a user at the same time:
    ///
    /// ```
    /// use tidegate::{AllRefusal, KeyedAllOf, KeyedCountingLimit, KeyedRateLimiter};
    /// use tidegate::{ManualClock, Rate, Refusal, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(100), 100);
    /// let users: KeyedRateLimiter<String, _, _> =
    ///     KeyedRateLimiter::with_clock(policy, 1000, ManualClock::new());
    /// let calls: KeyedCountingLimit<String> = KeyedCountingLimit::new(2, 1000);
    /// let api = KeyedAllOf::new("user", &users).with_keyed_counting("calls", &calls);
    ///
    /// let first = api.try_acquire("alice")?;
    /// let second = api.try_acquire("alice")?;
    /// let refusal = api.try_acquire("alice").unwrap_err();
    /// assert_eq!(refusal.to_string(), "calls: all 2 permits are in use");
    /// drop((first, second));
    /// assert!(calls.is_empty());
    /// # Ok::<(), AllRefusal>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn with_keyed_counting<K>(self, name: impl Into<Name>, limit: &KeyedCountingLimit<K>) -> Self
    where
        K: Borrow<Q> + Hash + Eq + Send + Sync + 'static,
        Q: Hash + Eq + ToOwned<Owned = K>,
    {
        self.with_keyed_counting_by(name, limit, |key: &Q| key)
    }

    /// Like [`with_keyed_counting`](KeyedAllOf::with_keyed_counting), for a limit whose key is a
    /// part of the key of the calls.
    ///
    /// # Panics
    ///
    /// Panics if this limiter was added before, or if a member already has this name.
    #[must_use]
    #[track_caller]
    pub fn with_keyed_counting_by<K, R>(
        self,
        name: impl Into<Name>,
        limit: &KeyedCountingLimit<K>,
        part: impl Fn(&Q) -> &R + Send + Sync + 'static,
    ) -> Self
    where
        K: Borrow<R> + Hash + Eq + Send + Sync + 'static,
        R: Hash + Eq + ToOwned<Owned = K> + ?Sized + 'static,
    {
        self.and_keyed(name.into(), Arc::new(CountedByKey { limit: limit.clone(), part, of: PhantomData }))
    }

    #[track_caller]
    fn and_keyed(mut self, name: Name, member: Arc<dyn KeyedMember<Q>>) -> Self {
        self.check_name(&name);
        if let Some(same) = self.keyed.iter().find(|other| other.member.address() == member.address()) {
            panic!("this limiter was added twice: as {:?}, and now as {name:?}", same.name);
        }
        self.keyed.push(KeyedEntry { name, member, cost: None });
        self.renewed()
    }

    /// Sets the cost at this member of a request that does not name the member. The initial value
    /// is 1. With 0, the member is asked only by requests that name it. See
    /// [`AllOf::default_cost`].
    ///
    /// The result has its own queues, so finish building a `KeyedAllOf` before you use it.
    ///
    /// # Panics
    ///
    /// Panics if no member has this name.
    #[must_use]
    #[track_caller]
    pub fn default_cost(mut self, name: &str, n: u32) -> Self {
        match self.keyed.iter_mut().find(|entry| entry.name == *name) {
            Some(entry) => entry.cost = Some(n),
            None => self.common = self.common.default_cost(name, n),
        }
        self.renewed()
    }

    /// Bounds the queue of each key, by the number of requests and by the sum of their costs; see
    /// [`AllOf::set_queue_bounds`]. A [reservation](KeyedAllOf::reserve) is never dropped from a
    /// full queue.
    ///
    /// The result has its own queues, so finish building a `KeyedAllOf` before you use it.
    #[must_use]
    pub fn with_queue_bounds(mut self, bounds: QueueBounds) -> Self {
        self.bounds = bounds;
        self.renewed()
    }

    /// Sets the observer, which is notified of each call for any key. The permits that it sees are
    /// the sum of the call's costs. See [`RateLimiter::observe`]. A second observer replaces the
    /// first.
    ///
    /// The observer of a member is not notified of permits that a `KeyedAllOf` takes from it.
    ///
    /// The result has its own queues, so finish building a `KeyedAllOf` before you use it.
    #[must_use]
    pub fn observed_by(mut self, events: Arc<dyn Events>) -> Self {
        self.events = Some(events);
        self.renewed()
    }

    #[track_caller]
    fn and_common(mut self, member: Entry) -> Self {
        self.check_name(&member.name);
        self.common = self.common.and(member);
        self.renewed()
    }

    #[track_caller]
    fn check_name(&self, name: &Name) {
        assert!(self.names().all(|other| *name != *other), "there is a member {name:?} already");
    }

    /// This composite with new queues.
    fn renewed(self) -> Self {
        let members = self.common.shared.rule.members.clone();
        let clock = self.common.shared.clock.clone();
        let common = AllOf::observed_by(self.events.clone(), members, None, clock);
        let members = &common.shared.rule.members;
        let costs = members.iter().map(|entry| entry.cost).chain(self.keyed.iter().map(|entry| entry.cost));
        let ones = Weights::ones(members.len() + self.keyed.len()).with_costs(costs);
        KeyedAllOf { common, ones, composites: Arc::new(Composites::new()), ..self }
    }
}

impl<Q: ?Sized, C: Timer + Clone> KeyedAllOf<Q, C> {
    /// Takes one permit of each member for a key now, or takes nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`AllOf::try_acquire`], and [`Refusal::TooManyKeys`] from a limiter of keys
    /// that has no room for a new key.
    pub fn try_acquire(&self, key: &Q) -> Result<AllPermits, AllRefusal> {
        self.try_ask(key, &self.ones)
    }

    /// Takes the permits of an [`AllRequest`] for a key now, or takes nothing. A list of costs by
    /// name is enough as a request.
    ///
    /// # Errors
    ///
    /// The errors of [`try_acquire`](KeyedAllOf::try_acquire) and of [`AllOf::try_acquire_many`].
    pub fn try_acquire_many<'a>(
        &self,
        key: &Q,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AllPermits, AllRefusal> {
        let request = request.into();
        let ask = self.ask(&request)?;
        if request.request.exempt { self.common.exempt(&ask) } else { self.try_ask(key, &ask) }
    }

    /// Waits for one permit of each member for a key.
    ///
    /// # Fairness
    ///
    /// Among the waiters of one key, first polled, first served; see [above](KeyedAllOf#fairness).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no trace.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](KeyedAllOf::acquire_many).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{
    ///     KeyedAllOf, KeyedRateLimiter, Rate, RateLimiter, TokenBucket, TokioClock,
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tidegate::AllRefusal> {
    /// let clock = TokioClock::new();
    /// let policy = TokenBucket::new(Rate::per_second(2), 1);
    /// let users: KeyedRateLimiter<String, _, _> =
    ///     KeyedRateLimiter::with_clock(policy, 1000, clock);
    /// let all_users =
    ///     RateLimiter::with_clock(TokenBucket::new(Rate::per_second(10), 10), clock);
    /// let api = KeyedAllOf::new("user", &users).with("all users", &all_users);
    /// assert_eq!(api.acquire("alice").await?.waited(), Duration::ZERO);
    /// assert_eq!(api.acquire("bob").await?.waited(), Duration::ZERO);
    /// assert_eq!(api.acquire("alice").await?.waited(), Duration::from_millis(500));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire(&self, key: &Q) -> Result<AllPermits, AllRefusal> {
        self.acquire_many(key, AllRequest::new()).await
    }

    /// Waits for the permits of an [`AllRequest`] for a key. A list of costs by name is enough as a
    /// request.
    ///
    /// # Errors
    ///
    /// The errors of [`AllOf::acquire_many`], and [`Refusal::TooManyKeys`] from a limiter of keys
    /// that has no room for a new key.
    pub async fn acquire_many<'a>(
        &self,
        key: &Q,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AllPermits, AllRefusal> {
        let (ask, request) = {
            let request = request.into();
            (self.ask(&request)?, request.request)
        };
        self.acquire_ask(key, ask, &request).await
    }

    pub(crate) async fn acquire_ask(
        &self,
        key: &Q,
        ask: Weights,
        request: &Request,
    ) -> Result<AllPermits, AllRefusal> {
        match self.take_or_wait(key, &ask, request)? {
            ControlFlow::Break(permits) => Ok(permits),
            ControlFlow::Continue(all) => AcquireAll::waiting(all, Progress::with(ask, request)).await,
        }
    }

    /// Takes what a request asks for now, or returns the composite in which it waits.
    fn take_or_wait(
        &self,
        key: &Q,
        ask: &Weights,
        request: &Request,
    ) -> Result<ControlFlow<AllPermits, AllOf<C>>, AllRefusal> {
        if request.exempt {
            return self.common.exempt(ask).map(ControlFlow::Break);
        }
        if let Some(all) = self.in_use(key, Some(ask)) {
            return Ok(ControlFlow::Continue(all));
        }
        match self.common.shared.or_report_cancelled(ask, || self.take_now(key, ask)) {
            Some(Err(refusal)) if !may_wait(request, &refusal) => self.refuse(key, ask, refusal),
            Some(Ok(permits)) => self.report_end(ask, Ok(permits)).map(ControlFlow::Break),
            // No observer is notified: the request waits now.
            Some(Err(_)) | None => match self.limiter_for(key, Some(ask)) {
                Ok(all) => Ok(ControlFlow::Continue(all)),
                Err(refusal) => self.refuse(key, ask, refusal),
            },
        }
    }

    /// Waits for one permit of each member for a key if they are due within `within`; otherwise
    /// refuses at once and takes nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](KeyedAllOf::acquire_many).
    pub async fn acquire_within(&self, key: &Q, within: Duration) -> Result<AllPermits, AllRefusal> {
        self.acquire_many(key, AllRequest::new().within(within)).await
    }

    /// Blocks the calling thread until it has one permit of each member for a key.
    ///
    /// Threads and tasks wait in one queue. Do not call this method from a task: it blocks the
    /// executor's thread. It needs no runtime.
    ///
    /// # Errors
    ///
    /// The errors of [`blocking_acquire_many`](KeyedAllOf::blocking_acquire_many).
    pub fn blocking_acquire(&self, key: &Q) -> Result<AllPermits, AllRefusal> {
        self.blocking_acquire_many(key, AllRequest::new())
    }

    /// Blocks the calling thread until it has the permits of an [`AllRequest`] for a key.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](KeyedAllOf::acquire_many), and [`AllRefusal::Queue`] with
    /// [`Refusal::Cancelled`] if the call runs under a [`CancelToken`](crate::CancelToken) that is
    /// cancelled.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllRefusal, KeyedAllOf, KeyedRateLimiter, Rate, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_second(1000), 1);
    /// let users: KeyedRateLimiter<String> = KeyedRateLimiter::new(policy, 1000);
    /// let limits: KeyedAllOf<str> = KeyedAllOf::new("user", &users);
    /// limits.blocking_acquire("alice")?;
    /// limits.blocking_acquire_many("alice", [("user", 1)])?; // waits a millisecond
    /// # Ok::<(), AllRefusal>(())
    /// ```
    pub fn blocking_acquire_many<'a>(
        &self,
        key: &Q,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AllPermits, AllRefusal> {
        let request = request.into();
        let ask = self.ask(&request)?;
        if let Err(cancelled) = Cancellable::begin() {
            let in_use = self.in_use(key, Some(&ask));
            let AllOf { shared, .. } = in_use.as_ref().unwrap_or(&self.common);
            shared.report(|events| events.cancelled(shared.rule.permits(&ask), Duration::ZERO));
            return Err(cancelled.into());
        }
        match self.take_or_wait(key, &ask, &request.request)? {
            ControlFlow::Break(permits) => Ok(permits),
            ControlFlow::Continue(all) => all.block(Progress::with(ask, &request.request)),
        }
    }

    /// Takes a position in the queue of a key now for what an [`AllRequest`] asks for; see
    /// [`AllOf::reserve`]. Await `&mut` the reservation, and keep the reservation until the work is
    /// done. A reservation that is awaited by value is dropped, and its permits of a counting limit
    /// go back before the work begins.
    ///
    /// A limiter of keys of which the request asks nothing adds the key when it has to, at the
    /// latest when permits are settled there. The key may then replace another one, with
    /// [`EvictLeastUsed`](crate::WhenKeysFull::EvictLeastUsed). If there is no room for the key
    /// even then, these permits are not charged. Calls of two keys with equal hashes that have no
    /// limiter there are charged to one of these keys if they overlap.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](KeyedAllOf::acquire_many).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{
    ///     AllRefusal, KeyedAllOf, KeyedRateLimiter, ManualClock, Rate, RateLimiter,
    ///     TokenBucket,
    /// };
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let users: KeyedRateLimiter<String, _, _> =
    ///     KeyedRateLimiter::with_clock(policy, 1000, clock.clone());
    /// let policy = TokenBucket::new(Rate::per_minute(10_000), 10_000);
    /// let tokens = RateLimiter::with_clock(policy, clock);
    /// let api = KeyedAllOf::new("user", &users).with("tokens", &tokens);
    ///
    /// let mut call = api.reserve("alice", [("tokens", 4000)])?;
    /// assert!(call.claim());
    /// call.settle([("tokens", 1200)])?;
    /// assert_eq!(tokens.status().available, 8800);
    /// # Ok::<(), AllRefusal>(())
    /// ```
    pub fn reserve<'a>(
        &self,
        key: &Q,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AllReservation<C>, AllRefusal> {
        let request = request.into();
        let ask = self.ask(&request)?;
        let all = self.for_ask(key, &ask, &request.request)?;
        all.reserve_ask(ask, &request.request)
    }

    /// Returns the composite that must decide a request; or the refusal, of which the observer was
    /// notified.
    pub(crate) fn for_request(&self, key: &Q, request: &AllRequest<'_>) -> Result<AllOf<C>, AllRefusal> {
        self.for_ask(key, &self.ask(request)?, &request.request)
    }

    fn for_ask(&self, key: &Q, ask: &Weights, request: &Request) -> Result<AllOf<C>, AllRefusal> {
        if request.exempt {
            return Ok(self.for_exempt(key));
        }
        if let Some(all) = self.in_use(key, Some(ask)) {
            return Ok(all);
        }
        // A request that cannot wait needs no room for its key.
        let answer = match self.common.shared.or_report_cancelled(ask, || self.check_available(key, ask)) {
            Err(refusal) if !may_wait(request, &refusal) => Err(refusal),
            _ => self.limiter_for(key, Some(ask)),
        };
        answer.or_else(|refusal| self.refuse(key, ask, refusal))
    }

    /// Returns the [`AllOf`] of one key, with all of its methods. All calls for this key wait in
    /// its queue.
    ///
    /// While you hold it, its limiters of the key are in use, and the key is not forgotten. Its own
    /// settings, such as a pause, last until its last handle is dropped and its last wait ends.
    ///
    /// Keys for which every limiter of keys uses the limiter that
    /// [`WhenKeysFull::ShareOne`](crate::WhenKeysFull) shares have one `AllOf` together. Its
    /// settings hold for all of them.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::Member`] with [`Refusal::TooManyKeys`] if a limiter of keys has no room for a
    /// new key.
    pub fn limiter(&self, key: &Q) -> Result<AllOf<C>, AllRefusal> {
        self.limiter_for(key, None)
    }

    /// Returns the [`AllOf`] of one key for a request, if one is given. A limiter of keys that has
    /// no limiter for the key is not needed if the request asks nothing of it, or if all of its
    /// keys are in shadow mode.
    fn limiter_for(&self, key: &Q, ask: Option<&Weights>) -> Result<AllOf<C>, AllRefusal> {
        let lease = |(index, entry): (usize, &KeyedEntry<Q>)| {
            let asked = ask.is_none_or(|ask| self.of_key(ask)[index] > 0);
            entry.member.lease(key, asked).or_else(|refusal| {
                if !asked || ask.is_some() && entry.passes(refusal) {
                    Ok(entry.member.placeholder(key))
                } else {
                    Err(refused(&entry.name, refusal))
                }
            })
        };
        let leases: Vec<Lease> = self.keyed.iter().enumerate().map(lease).collect::<Result<_, _>>()?;
        let numbers: Numbers = leases.iter().map(|lease| lease.number).collect();
        let of = |shared| AllOf { shared, ones: self.ones.clone() };
        if let Some(shared) = self.composites.find(&numbers) {
            return Ok(of(shared));
        }
        let common = &self.common.shared;
        let leased = self.keyed.iter().zip(leases).map(|(entry, lease)| entry.leased(lease));
        let (of_key, leave): (Vec<_>, Vec<_>) = leased.unzip();
        let members = common.rule.members.iter().cloned().chain(of_key).collect();
        let is_kept = self.keyed.iter().any(|entry| entry.member.in_table().is_none());
        let home = KeyCleanup {
            composites: self.composites.clone(),
            numbers: numbers.clone(),
            is_kept,
            _leave: leave,
        };
        let all = AllOf::observed_by(self.events.clone(), members, Some(home), common.clock.clone());
        if self.bounds != QueueBounds::UNBOUNDED {
            all.shared.set_bounds(self.bounds);
        }
        Ok(of(self.composites.add(numbers, all.shared)))
    }

    /// Returns the composite for an exempt request, which takes no permits: the composite of the
    /// key if that is in use, or else one with placeholder limits instead of the limits of the key.
    /// So no key is added.
    fn for_exempt(&self, key: &Q) -> AllOf<C> {
        self.in_use(key, None).unwrap_or_else(|| {
            let common = &self.common.shared;
            let of_key = self.keyed.iter().map(|entry| entry.leased(entry.member.placeholder(key)).0);
            let members = common.rule.members.iter().cloned().chain(of_key).collect();
            let all = AllOf::observed_by(self.events.clone(), members, None, common.clock.clone());
            AllOf { ones: self.ones.clone(), ..all }
        })
    }

    /// Closes the [`AllOf`] of each key, including those created later. All waiting requests, and
    /// all later ones, are refused at once with [`Refusal::Closed`]. The members stay open. Returns
    /// whether this `KeyedAllOf` was open.
    ///
    /// A request that overlaps with this call may be granted, as if it came first.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{KeyedAllOf, KeyedRateLimiter, Rate, Refusal, TokenBucket};
    ///
    /// let users: KeyedRateLimiter<String> =
    ///     KeyedRateLimiter::new(TokenBucket::new(Rate::per_second(1), 5), 1000);
    /// let limits: KeyedAllOf<str> = KeyedAllOf::new("user", &users);
    /// assert!(limits.try_acquire("alice").is_ok());
    /// limits.close();
    /// let refusal = limits.try_acquire("alice").unwrap_err();
    /// assert_eq!(refusal.refusal(), Some(Refusal::Closed));
    /// ```
    pub fn close(&self) -> bool {
        self.composites.close()
    }

    /// Returns whether this `KeyedAllOf` itself was [closed](KeyedAllOf::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.composites.is_closed()
    }

    /// Returns the number of requests that wait for a key, and the status of each member for this
    /// key. See [`AllOf::status`].
    #[must_use]
    pub fn status(&self, key: &Q) -> AllStatus {
        let in_use = self.in_use(key, None);
        let mut status = in_use.as_ref().unwrap_or(&self.common).status();
        let keyed = self.keyed.iter().map(|entry| (entry.name.clone(), entry.member.status(key)));
        // A composite may have placeholders instead of limiters of the key.
        status.members.truncate(self.common.shared.rule.members.len());
        status.members.extend(keyed);
        status
    }

    /// Returns the composite of a key, if a waiting request or a handle uses it, and if it can
    /// decide the request that is given.
    fn in_use(&self, key: &Q, ask: Option<&Weights>) -> Option<AllOf<C>> {
        if self.composites.is_empty() {
            return None;
        }
        let number = |(index, entry): (usize, &KeyedEntry<Q>)| match entry.member.number(key) {
            // A placeholder does not decide about permits.
            Number::Placeholder(_) if ask.is_some_and(|ask| self.of_key(ask)[index] > 0) => None,
            number => Some(number),
        };
        let numbers = self.keyed.iter().enumerate().map(number).collect::<Option<Numbers>>()?;
        let shared = self.composites.find(&numbers)?;
        Some(AllOf { shared, ones: self.ones.clone() })
    }

    /// Returns the limiters of keys that a request asks for permits, and how many.
    fn asked_of_key<'a>(&'a self, ask: &'a Weights) -> impl Iterator<Item = (&'a KeyedEntry<Q>, u32)> {
        self.keyed.iter().zip(self.of_key(ask).iter().copied()).filter(|(_, n)| *n > 0)
    }

    /// Returns how many permits a request asks of each limiter of keys.
    fn of_key<'a>(&self, ask: &'a Weights) -> &'a [u32] {
        &ask[self.common.shared.rule.members.len()..]
    }

    fn try_ask(&self, key: &Q, ask: &Weights) -> Result<AllPermits, AllRefusal> {
        if let Some(all) = self.in_use(key, Some(ask)) {
            return all.attempt(ask);
        }
        match self.common.shared.or_report_cancelled(ask, || self.take_now(key, ask)) {
            Some(Ok(permits)) => self.report_end(ask, Ok(permits)),
            Some(Err(refusal)) => self.refuse(key, ask, refusal),
            None => match self.limiter_for(key, Some(ask)) {
                Ok(all) => all.attempt(ask),
                Err(refusal) => self.refuse(key, ask, refusal),
            },
        }
    }

    /// Refuses a request without a composite: notifies the observer, and adds the permits left if
    /// the request asks for them.
    fn refuse<T>(&self, key: &Q, ask: &Weights, mut refusal: AllRefusal) -> Result<T, AllRefusal> {
        if ask.wants_left {
            let asked =
                |name: &str| self.index_of(name).and_then(|index| ask.get(index).copied()).unwrap_or(0);
            refusal = refusal.with_left(self.status(key)).with_state_met(asked, false);
        }
        self.report_end(ask, Err(refusal))
    }

    /// Takes without a composite, now or not at all. Returns `None` if a composite is needed.
    fn take_now(&self, key: &Q, ask: &Weights) -> Option<Result<AllPermits, AllRefusal>> {
        // A refused request needs no room for its key.
        if let Err(refusal) = self.check_available(key, ask) {
            return Some(Err(refusal));
        }
        if ask.as_many.is_some() {
            return None;
        }
        let rule = &self.common.shared.rule;
        let mut asked = self.asked_of_key(ask);
        let of_key = match asked.next() {
            Some((entry, n)) => Some(OfKey { name: &entry.name, member: entry.member.in_table()?, n }),
            None => None,
        };
        // With two limiters of keys, what the outer one has taken could not be put back.
        if asked.next().is_some() {
            return None;
        }
        let (mut charge, mut by_key, mut left, mut passed) = (AllCharge::default(), None, None, None);
        let took = rule.take_then(ask, &mut charge, &mut || {
            let Some(OfKey { name, member, n }) = &of_key else { return Ok(()) };
            let left_slot = ask.wants_left.then_some(&mut left);
            let took = member.take(key, (*n, ask.priority), left_slot);
            passed = took.inspect_err(|_| by_key = Some(*name)).map(|took| (!took).then_some(*name))?;
            Ok(())
        });
        let granted = |()| {
            let left = left.and_then(|left| Some((self.index_of(of_key.as_ref()?.name)?, left)));
            let passed = rule.passed(&charge).into_iter().chain(passed.cloned()).collect();
            let AllCharge { permits, left: others, .. } = charge;
            let status = || self.status(key).with_left(others.into_iter().flat_map(|left| *left).chain(left));
            let granted = AllPermits { permits, ..Grant::at_once(ask.others).into() }.with_passed(passed);
            if ask.wants_left { granted.with_left(status()) } else { granted }
        };
        Some(took.map(granted).map_err(|refusal| {
            // Another request took the permits just now, or there is no room for the key. If an
            // equal call would be granted by now, this refusal counts.
            self.check_available(key, ask).err().unwrap_or_else(|| match by_key {
                Some(name) => refused(name, refusal),
                None => rule.blame(ask, refusal),
            })
        }))
    }

    /// Checks whether this is open and all members have enough permits, and takes none. If several
    /// members refuse for now, the refusal names the member that is ready last.
    fn check_available(&self, key: &Q, ask: &Weights) -> Result<(), AllRefusal> {
        if self.is_closed() {
            return Err(Refusal::Closed.into());
        }
        if ask.iter().all(|n| *n == 0) {
            return Err(refused(self.entries().next().unwrap_or(&"".into()), Refusal::ZeroPermits));
        }
        let common = || self.common.shared.rule.members.iter().zip(ask.iter()).filter(|(_, n)| **n > 0);
        common().try_for_each(|(entry, n)| {
            entry.check(*n, ask.priority).map_err(|refusal| refused(&entry.name, refusal))
        })?;
        let (mut of_key, mut in_use) = ((Wait::NONE, None), None);
        for (entry, n) in self.asked_of_key(ask) {
            match entry.member.predict_wait(key, n, ask.priority) {
                Ok(wait) if wait.time > Nanos::ZERO && wait > of_key.0 => of_key = (wait, Some(&entry.name)),
                Ok(_) => {}
                Err(refusal @ Refusal::InUse { .. }) => in_use = in_use.or(Some((&entry.name, refusal))),
                Err(refusal) => return Err(refused(&entry.name, refusal)),
            }
        }
        let mut last = (Wait::NONE, None);
        for (entry, n) in common() {
            let wait = match &entry.kind {
                Kind::Counting(limit) if limit.available() < *n => {
                    return Err(refused(&entry.name, Refusal::InUse { limit: limit.limit() }));
                }
                Kind::Counting(_) => Wait::NONE,
                Kind::Rate(member) => member.predict_wait(*n, ask.priority),
            };
            if wait.time > Nanos::ZERO && wait > last.0 {
                last = (wait, Some(&entry.name));
            }
        }
        if let Some((name, refusal)) = in_use {
            return Err(refused(name, refusal));
        }
        // Of several members that are ready last, the first one counts.
        match if of_key.0 > last.0 { of_key } else { last } {
            (wait, Some(name)) => Err(refused(name, wait.refusal())),
            (_, None) => Ok(()),
        }
    }

    /// Notifies the observer of a call that was decided without a composite.
    fn report_end<T>(&self, ask: &Weights, answer: Result<T, AllRefusal>) -> Result<T, AllRefusal> {
        if self.events.is_some() {
            self.common.shared.report(|events| {
                let permits = self.common.shared.rule.permits(ask);
                match &answer {
                    Ok(_) => events.granted(permits, Duration::ZERO),
                    Err(refusal) => {
                        if let Some(refusal) = refusal.refusal() {
                            events.refused(permits, &refusal);
                        }
                    }
                }
            });
        }
        answer
    }

    pub(crate) fn ask(&self, request: &AllRequest<'_>) -> Result<Weights, AllRefusal> {
        let mut ask = self.ones.clone().of_request(&request.request);
        let common = &self.common.shared.rule.members;
        let takes_number = |entry: &KeyedEntry<Q>| entry.cost.is_none() && entry.member.in_table().is_some();
        let keyed = self.keyed.iter().enumerate().filter(|(_, entry)| takes_number(entry));
        let keyed = keyed.map(|(index, _)| common.len() + index);
        let find = |name: &str| {
            let unknown =
                || AllRefusal::NoMember { name: name.into(), members: self.entries().cloned().collect() };
            self.index_of(name).ok_or_else(unknown)
        };
        ask.set_costs(request, rates(common).chain(keyed), find)?;
        Ok(ask)
    }
}

/// Returns whether a request that is refused now may wait instead. A composite may still refuse it
/// at once, because only the queue knows all bounds of a wait.
fn may_wait(request: &Request, refusal: &AllRefusal) -> bool {
    request.within != Some(Duration::ZERO)
        && refusal.may_retry()
        && !matches!(refusal.refusal(), Some(Refusal::TooManyKeys { .. }))
}

fn refused(name: &Name, refusal: Refusal) -> AllRefusal {
    AllRefusal::from_member(name.clone(), refusal)
}

impl<Q: ?Sized, C: Timer> KeyedAllOf<Q, C> {
    /// Returns the names of the members: first the members that all keys have in common, then the
    /// limiters of keys.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries().map(Name::as_str)
    }

    /// Returns the index of the member with this name.
    fn index_of(&self, name: &str) -> Option<usize> {
        self.entries().position(|of| *of == *name)
    }

    fn entries(&self) -> impl Iterator<Item = &Name> {
        let common = self.common.shared.rule.members.iter().map(|entry| &entry.name);
        common.chain(self.keyed.iter().map(|entry| &entry.name))
    }
}

impl<Q: ?Sized, C: Timer> Clone for KeyedAllOf<Q, C> {
    fn clone(&self) -> Self {
        KeyedAllOf {
            common: self.common.clone(),
            keyed: self.keyed.clone(),
            ones: self.ones.clone(),
            composites: self.composites.clone(),
            bounds: self.bounds,
            events: self.events.clone(),
        }
    }
}

impl<Q: ?Sized> Clone for KeyedEntry<Q> {
    fn clone(&self) -> Self {
        KeyedEntry { name: self.name.clone(), member: self.member.clone(), cost: self.cost }
    }
}

impl<Q: ?Sized, C: Timer> fmt::Debug for KeyedAllOf<Q, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().collect();
        f.debug_struct("KeyedAllOf").field("members", &names).finish_non_exhaustive()
    }
}
