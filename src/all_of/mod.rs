//! Several limits at once: all of them or none.
//!
//! [`AllOf`] asks several limiters in one call: 10 per second *and* 100 per minute *and* at most 20
//! in flight; a user's limit *and* the limit of all users. Either all of them grant the request, or
//! none of them does. A refused or dropped request costs no permit at any member.
//!
//! # Usage
//!
//! Try, and refuse at once if a member has too few permits. Hold the returned permits until the
//! work is done: dropping them gives back the permits of a [`CountingLimit`]. Permits of a rate are
//! used up.
//!
//! ```
//! use tidegate::{AllOf, Rate, RateLimiter, TokenBucket};
//!
//! let user = RateLimiter::new(TokenBucket::new(Rate::per_second(2), 2));
//! let all_users = RateLimiter::new(TokenBucket::new(Rate::per_second(100), 100));
//! let both = AllOf::new("user", &user).with("all users", &all_users);
//!
//! let _permits = (both.try_acquire()?, both.try_acquire()?);
//! assert_eq!(both.try_acquire().unwrap_err().member(), Some("user"));
//! # Ok::<(), tidegate::AllRefusal>(())
//! ```
//!
//! Wait until all members have enough permits:
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{AllOf, Rate, RateLimiter, TokenBucket, TokioClock};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), tidegate::AllRefusal> {
//! let clock = TokioClock::new();
//! let fast = TokenBucket::new(Rate::per_second(10), 10);
//! let slow = TokenBucket::new(Rate::per_second(2), 1);
//! let requests = RateLimiter::with_clock(fast, clock);
//! let uploads = RateLimiter::with_clock(slow, clock);
//! let both = AllOf::new("requests", &requests).with("uploads", &uploads);
//!
//! assert_eq!(both.acquire().await?.waited(), Duration::ZERO);
//! assert_eq!(both.acquire().await?.waited(), Duration::from_millis(500));
//! # Ok(())
//! # }
//! ```
//!
//! Reserve an estimate, and settle it when the real cost is known:
//!
//! ```
//! use tidegate::{AllOf, Rate, RateLimiter, TokenBucket, TokioClock};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), tidegate::AllRefusal> {
//! let clock = TokioClock::new();
//! let calls = TokenBucket::new(Rate::per_minute(60), 60);
//! let requests = RateLimiter::with_clock(calls, clock);
//! let used = TokenBucket::new(Rate::per_minute(1000), 1000);
//! let tokens = RateLimiter::with_clock(used, clock);
//! let api = AllOf::new("requests", &requests).with("tokens", &tokens);
//!
//! let mut call = api.reserve([("tokens", 800)])?; // one request, about 800 tokens
//! (&mut call).await?;
//! call.settle([("tokens", 300)])?; // it was 300: this refunds 500 tokens
//! assert_eq!(tokens.status().available, 700);
//! # Ok(())
//! # }
//! ```

// # How it works
//
// An `AllOf` waits like a `RateLimiter`, with the same queue, alarms, threads and deadlines. Its
// rule asks several limiters instead of one policy. A request takes one of two paths.
//
// **No request waits.** The composite first checks all members; a refusal at this step writes
// nothing. Then the members take in order, each inside the call of the member before it. A later
// member may still have too few permits, because another request took them after the check. Then
// the earlier members put back exactly what they took. Meanwhile other requests may see fewer
// permits than a member has, never more. This path takes no lock and allocates nothing, unless a
// request waits at a member: then the composite asks the member's queue, and the waiters in that
// queue go first.
//
// **Waiting.** The waiters of one `AllOf` stand in its own queue. The first waiter has a *seat* in
// the queue of each member. The seat keeps the waiter's position in that queue, and lets requests
// behind it pass as long as they do not delay it (`src/line/seats.rs`). When the waiter is due at
// all members, all of them are charged, or none.
//
// | the first waiter | its seats | its permits |
// |---|---|---|
// | is due at *T*, the latest of its members' times | have the time *T*; requests behind a seat pass as long as they do not delay it | none |
// | has reached *T*, and a counting limit has no free permit | have the waiter's deadline as their time, or never | none |
// | has its turn, and all members have enough permits | are given up | all: the waiter is granted and woken |
// | is dropped | pass to the next waiter of this priority, or are given up | none |
// | is no longer the first, because a waiter of higher priority came | keep their positions and delay no request, until the waiter is the first again | none |
//
// At counting limits the waiter has seats of another kind: `src/all_of/counting.rs`.
//
// # Locks
//
// The lock of an `AllOf` comes before the locks of its members, rates and counting limits alike.
// The members are locked one at a time, each for a short section. While the lock of an `AllOf` is
// held, clocks and policies are called, and no other user code: wakers, notifications, and values
// that call user code on drop are collected in a list, and are called without a lock. A member
// never locks an `AllOf`: it *notifies* the `AllOf` from that list, when no lock is held. So no
// order of locks makes two threads wait for each other, and a chain of notifications is a loop, not
// a recursion (`src/line/recheck.rs`).
//
// # Why no time is missed
//
// A change that makes permits of a member due earlier (a refund, a new rate, a waiter that leaves)
// happens under the member's lock, and notifies the first seat that waits for this member only. The
// next such seat is notified when this one has left. If the composite had no seat yet, it finds the
// change itself: after it has taken its seats, it asks all members again, and if a member is due
// earlier than before, it notifies itself. The change and the taking of the seat both happen under
// the member's lock, so one of them sees the other.
//
// A change that makes permits due later needs no notification. If a member is not ready at *T*, the
// composite finds a later time. That happens only if a lower rate delayed the permits, or if
// requests that overlapped with the taking of the seats took them. A change of the member also
// notifies its first 64 seats, so that their composites refuse at once the waiters that the change
// makes too late.
//
// `all_of/member.rs` argues the memory orderings of the path without the lock.
//
// **Checked by** `loom-tests/compose.rs`: two composites that share two members, a composite
// against a plain taker, a dropped wait against its grant; with twins that do not undo, undo too
// much, or forget to notify.

pub(crate) mod all;
mod answer;
mod counting;
pub(crate) mod member;
mod name;
#[cfg(feature = "keyed")]
mod of_keys;
mod request;
mod reservation;
mod settings;
mod status;
pub(crate) mod weights;

pub use answer::{AllPermits, AllRefusal, RefusalDetails};
pub use name::Name;
#[cfg(feature = "keyed")]
pub use of_keys::KeyedAllOf;
pub use request::AllRequest;
pub use reservation::AllReservation;
pub use status::AllStatus;

use std::fmt;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::all_of::all::{All, AllCharge, Entry, Kind};
use crate::all_of::answer::More;
use crate::all_of::member::MemberGrant;
use crate::all_of::weights::Weights;
use crate::clock::{DefaultClock, Timer};
use crate::counting::CountingLimit;
use crate::error::Refusal;
use crate::limiter::RateLimiter;
use crate::limiter::blocking;
use crate::limiter::pending::{OwnedPending, Pending, Poller, Progress};
use crate::limiter::shared::Shared;
use crate::line::answer::{Admitted, Receipt};
use crate::line::grants::GrantKind;
use crate::line::visit::Demand;
use crate::policy::Policy;
use crate::request::Request;
use crate::time::Nanos;

/// Several limits at once: either all of them grant a request, or none does.
///
/// An `AllOf` is built once from named limiters, its *members*: rate limiters of any policies, and
/// counting limits. The limiters stay usable on their own, and in other `AllOf`s. Clones share one
/// queue; a clone costs a reference count.
///
/// | call | if the permits are not due now |
/// |---|---|
/// | [`acquire`](AllOf::acquire), [`acquire_many`](AllOf::acquire_many) | waits |
/// | [`acquire_within`](AllOf::acquire_within) | waits if the permits are due within a given time, else refuses at once |
/// | [`try_acquire`](AllOf::try_acquire), [`try_acquire_many`](AllOf::try_acquire_many) | refuses at once |
/// | [`blocking_acquire`](AllOf::blocking_acquire), [`blocking_acquire_many`](AllOf::blocking_acquire_many) | blocks a plain thread, which waits in the same queue |
/// | [`reserve`](AllOf::reserve) | takes a position in the queue, for a cost that is settled later |
///
/// A request asks for one permit of each member, or for the member's [default
/// cost](AllOf::default_cost), unless it names the member and gives a number: one call and 850
/// tokens are `[("tokens", 850)]`. A request for 0 permits of a member takes nothing from it, but
/// still waits behind earlier requests that wait for this member. The calls that accept such a list
/// also accept an [`AllRequest`], which can set more: a priority, a maximum wait, an exemption.
///
/// Add each limiter once. All rate limiters of one `AllOf` have clocks of one type that run at the
/// same pace; the clocks may have started at different times. The clock of the first limiter sets
/// the alarms.
///
/// # Fairness
///
/// The waiters of one `AllOf` are served first come, first served. The first waiter holds a
/// position in the queue of each member. Requests behind that position may go first if they do not
/// delay the waiter, so a wait of an hour for one member does not block the other members. When the
/// waiter's turn comes, the members keep permits for it, so it does not depend on busy members
/// having permits at the same moment by chance. After a grant, the next waiter goes to the end of
/// the members' queues.
///
/// # Settings of members
///
/// | set on a member | effect on requests through an `AllOf` |
/// |---|---|
/// | a rate, a burst, a debit, a refund, a pause | applies to waiters too, unless neither a waiter nor any request before it needs this member |
/// | [a kept share](RateLimiter::keep_for_priority) | applies; the [priority](AllRequest::priority) of the request decides whether it may use the share |
/// | [shadow mode](RateLimiter::set_shadow) | the member refuses no request, and takes permits if it has enough; observers are not notified of requests that the member would have refused |
/// | [a bound on its queue](RateLimiter::set_queue_bounds), [an observer](RateLimiter::observe) | does not apply: set it on the `AllOf` |
///
/// # Cost
///
/// An `AllOf` takes about 2 kB and some allocations for each member that is added. So build it once
/// and clone it. Only clones of one `AllOf` share a queue; the waiters of different `AllOf`s meet
/// in the queues of their members, first come, first served. For a user's limit combined with the
/// limit of all users, use
#[cfg_attr(feature = "keyed", doc = "[`KeyedAllOf`].")]
#[cfg_attr(not(feature = "keyed"), doc = "`KeyedAllOf`.")]
///
/// # Cancel safety
///
/// A wait can be dropped at any time, and a refusal can happen at any point, without a trace in any
/// member. While a request is being decided, other requests may see fewer permits of a member than
/// it has, never more.
///
/// # Examples
///
/// 10 per second, and no more than 12 per minute:
///
/// ```
/// use std::time::Duration;
/// use tidegate::{AllOf, ManualClock, Rate, RateLimiter, TokenBucket};
///
/// let clock = ManualClock::new();
/// let policy = TokenBucket::new(Rate::per_second(10), 10);
/// let second = RateLimiter::with_clock(policy, clock.clone());
/// let policy = TokenBucket::new(Rate::per_minute(12), 12);
/// let minute = RateLimiter::with_clock(policy, clock.clone());
/// let both = AllOf::new("per second", &second).with("per minute", &minute);
///
/// for _ in 0..10 {
///     let _permits = both.try_acquire()?;
/// }
/// let refusal = both.try_acquire().unwrap_err();
/// assert_eq!(refusal.to_string(), "per second: limited, retry after 100ms");
/// clock.advance(Duration::from_millis(200));
/// let _permits = (both.try_acquire()?, both.try_acquire()?);
/// let refusal = both.try_acquire().unwrap_err();
/// assert_eq!(refusal.member(), Some("per minute"));
/// // The requests refused by "per second" took nothing from "per minute".
/// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(4800)));
/// # Ok::<(), tidegate::AllRefusal>(())
/// ```
///
/// One request and 850 tokens, with at most ten calls in flight:
///
/// ```
/// use tidegate::{AllOf, CountingLimit, Rate, RateLimiter, TokenBucket};
///
/// let requests = RateLimiter::new(TokenBucket::new(Rate::per_minute(500), 500));
/// let tokens =
///     RateLimiter::new(TokenBucket::new(Rate::per_minute(30_000), 30_000));
/// let in_flight = CountingLimit::new(10);
/// let api = AllOf::new("requests", &requests)
///     .with("tokens", &tokens)
///     .with_counting("in flight", &in_flight);
///
/// let permits = api.try_acquire_many([("tokens", 850)])?;
/// assert_eq!(in_flight.available(), 9);
/// drop(permits); // the call is done
/// assert_eq!(in_flight.available(), 10);
/// # Ok::<(), tidegate::AllRefusal>(())
/// ```
pub struct AllOf<C: Timer = DefaultClock> {
    shared: Arc<Shared<All<C>, C>>,
    /// The default cost of each member, and the priority of requests through this handle.
    ones: Weights,
}

impl<C: Timer + Clone> AllOf<C> {
    /// Creates an `AllOf` of one limiter. Requests and refusals call the limiter `name`.
    #[must_use]
    pub fn new<P: Policy>(name: impl Into<Name>, limiter: &RateLimiter<P, C>) -> Self {
        let clock = limiter.clock().clone();
        AllOf::of(vec![Entry::new(name.into(), rate(limiter))], clock)
    }

    /// Adds a limiter.
    ///
    /// The result has its own queue, so finish building an `AllOf` before you use it.
    ///
    /// # Panics
    ///
    /// Panics if this limiter was added before, or if a member already has this name.
    #[must_use]
    #[track_caller]
    pub fn with<P: Policy>(self, name: impl Into<Name>, limiter: &RateLimiter<P, C>) -> Self {
        self.and(Entry::new(name.into(), rate(limiter)))
    }

    /// Adds a counting limit, which bounds the permits in use at one time.
    ///
    /// A waiting request holds no permit: it takes from all members at one moment, when all permits
    /// are available. While the rates are not due, other callers of the limit go first. If the
    /// permits of two busy members do not become free at the same moment, the waiting request may
    /// keep a free permit from callers behind it: until the rates are due, or another counting
    /// limit has its permits, but never for longer than the request has already waited for permits
    /// in use. The permits of one grant come back together, and the earliest of the requests that
    /// wait for them goes first. Of the requests behind it, which wait at different limits, one
    /// that came later may go before an earlier one. A request for more permits than a lowered
    /// limit has is refused at once, as by a rate.
    ///
    /// A request with a maximum wait that waits only for permits in use is refused when that time
    /// is over, with [`Refusal::InUse`] and no retry time, because the time of a return is unknown.
    ///
    /// A granted request holds its permits until its future, or the [`AllPermits`] that the future
    /// returned, is dropped. This holds whether the future is polled after the grant or not.
    ///
    /// # Panics
    ///
    /// Panics if this limiter was added before, or if a member already has this name.
    #[must_use]
    #[track_caller]
    pub fn with_counting(self, name: impl Into<Name>, limit: &CountingLimit) -> Self {
        self.and(Entry::new(name.into(), Kind::Counting(limit.clone())))
    }

    /// Sets the cost at this member of a request that does not name the member. The initial value
    /// is 1. With 0, the member is asked only by requests that name it.
    ///
    /// The number of a request that names no member, such as `try_acquire_many(3)`, no longer
    /// applies to this member: the request asks it for the default cost. A request for one permit
    /// of each member also asks this member for the default cost.
    ///
    /// The result has its own queue, so finish building an `AllOf` before you use it.
    ///
    /// # Panics
    ///
    /// Panics if no member has this name.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllOf, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let limiter = |n| {
    ///     let policy = TokenBucket::new(Rate::per_minute(n), 100);
    ///     RateLimiter::with_clock(policy, clock.clone())
    /// };
    /// let (requests, tokens, uploads) = (limiter(60), limiter(6000), limiter(6));
    /// let api = AllOf::new("requests", &requests)
    ///     .with("tokens", &tokens)
    ///     .with("uploads", &uploads)
    ///     .default_cost("tokens", 20)
    ///     .default_cost("uploads", 0);
    ///
    /// let _search = api.try_acquire()?;
    /// let _upload = api.try_acquire_many([("uploads", 1), ("tokens", 50)])?;
    /// let left = api.status().members.into_iter().map(|(_, member)| member.available);
    /// assert_eq!(left.collect::<Vec<_>>(), [98, 30, 99]);
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn default_cost(self, name: &str, n: u32) -> Self {
        let mut members = self.shared.rule.members.clone();
        let Some(member) = members.iter_mut().find(|member| member.name == *name) else {
            panic!("{}", self.shared.rule.no_member(name));
        };
        member.cost = Some(n);
        AllOf::of(members, self.shared.clock.clone())
    }

    #[track_caller]
    fn and(self, member: Entry) -> Self {
        let mut members = self.shared.rule.members.clone();
        if let Some(same) = members.iter().find(|other| other.rank() == member.rank()) {
            panic!("this limiter was added twice: as {:?}, and now as {:?}", same.name, member.name);
        }
        if members.iter().any(|other| other.name == member.name) {
            panic!("there is a member {:?} already", member.name);
        }
        members.push(member);
        AllOf::of(members, self.shared.clock.clone())
    }

    pub(crate) fn of(members: Vec<Entry>, clock: C) -> Self {
        let ones = ones(&members);
        // Each member decides how far back a late grant is charged.
        let catch_up = Duration::MAX;
        let shared =
            Arc::new_cyclic(|shared| Shared::new(All::new(members, shared.clone()), clock, catch_up));
        AllOf { shared, ones }
    }

    /// A composite of the same members, one of which is the limiter of a key. When the composite is
    /// dropped, `leave` is dropped after the members.
    #[cfg(feature = "keyed")]
    pub(crate) fn of_key(self, leave: Box<dyn Send + Sync>) -> Self {
        let (members, clock) = (self.shared.rule.members.clone(), self.shared.clock.clone());
        AllOf::observed_by(None, members, Some(of_keys::KeyCleanup::apart(leave)), clock)
    }

    /// A composite that has this observer, if any, from the start.
    #[cfg(feature = "keyed")]
    fn observed_by(
        events: Option<Arc<dyn crate::limiter::events::Events>>,
        members: Vec<Entry>,
        home: Option<of_keys::KeyCleanup<C>>,
        clock: C,
    ) -> Self {
        let ones = ones(&members);
        let shared = Arc::new_cyclic(|shared| {
            let all = All::new(members, shared.clone()).with_home(home);
            Shared::new(all, clock, Duration::MAX).observed_by(events)
        });
        AllOf { shared, ones }
    }
}

/// The costs of a request that names no member.
fn ones(members: &[Entry]) -> Weights {
    Weights::ones(members.len()).with_costs(members.iter().map(|member| member.cost))
}

/// The members to which the number of a request applies.
fn rates(members: &[Entry]) -> impl Iterator<Item = usize> + Clone {
    members.iter().enumerate().filter(|(_, member)| member.takes_number()).map(|(index, _)| index)
}

fn rate<P: Policy, C: Timer>(limiter: &RateLimiter<P, C>) -> Kind {
    Kind::Rate(Arc::new(limiter.clone()))
}

impl<C: Timer> AllOf<C> {
    /// Takes one permit of each member now, or takes nothing.
    ///
    /// While no request waits, this call takes no lock and allocates nothing, and a refusal writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// - [`AllRefusal::Member`] if a member has no permit, or if other requests wait for it. Its
    ///   `retry_after` is the longest of all members. It is exact if no other request arrives and
    ///   no request waits at the members. It is `None` if a [`CountingLimit`] has no permit.
    /// - [`AllRefusal::Member`] with [`Refusal::Paused`] or [`Refusal::Closed`] if a member is
    ///   paused or closed; [`AllRefusal::Queue`] with the same refusals if the `AllOf` itself is
    ///   paused or closed.
    /// - [`AllRefusal::Member`] with [`Refusal::ExceedsLimit`] if a member can never grant its
    ///   [default cost](AllOf::default_cost).
    #[inline]
    pub fn try_acquire(&self) -> Result<AllPermits, AllRefusal> {
        self.attempt(&self.ones)
    }

    /// Takes the permits of an [`AllRequest`] now, or takes nothing. A list of costs by name is
    /// enough as a request.
    ///
    /// # Errors
    ///
    /// The errors of [`try_acquire`](AllOf::try_acquire), and:
    ///
    /// - [`AllRefusal::Member`] with a permanent refusal if a member can never grant this many
    ///   permits at once, or if the request asks for 0 permits of each member.
    /// - [`AllRefusal::NoMember`] if the request names a member that does not exist.
    pub fn try_acquire_many<'a>(&self, request: impl Into<AllRequest<'a>>) -> Result<AllPermits, AllRefusal> {
        let request = request.into();
        let ask = self.ask(&request)?;
        if request.request.exempt { self.exempt(&ask) } else { self.attempt(&ask) }
    }

    /// Waits for one permit of each member.
    ///
    /// # Fairness
    ///
    /// Within this `AllOf`, first polled, first served; see [above](AllOf#fairness) for requests
    /// outside it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no trace.
    ///
    /// # Errors
    ///
    /// - [`AllRefusal::Member`] with [`Refusal::Limited`] or [`Refusal::Paused`] from a
    ///   [`LeakyBucket`](crate::LeakyBucket) without room.
    /// - [`AllRefusal::Member`] with [`Refusal::ExceedsLimit`] if a member can never grant its
    ///   [default cost](AllOf::default_cost).
    /// - [`AllRefusal::Member`] with [`Refusal::Closed`] if a member is closed, before the call or
    ///   during the wait; [`AllRefusal::Queue`] with the same refusal if the `AllOf` itself is
    ///   closed.
    /// - [`AllRefusal::Queue`] with [`Refusal::QueueFull`] or [`Refusal::Displaced`] if the queue
    ///   is [bounded](AllOf::set_queue_bounds).
    ///
    /// # Panics
    ///
    /// Panics under the conditions of [`RateLimiter::acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{AllOf, AllRefusal, Rate, RateLimiter, SmoothBursty, TokioClock};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), AllRefusal> {
    /// let clock = TokioClock::new();
    /// let policy = SmoothBursty::new(Rate::per_second(2));
    /// let user = RateLimiter::with_clock(policy, clock);
    /// let policy = SmoothBursty::new(Rate::per_second(5));
    /// let all_users = RateLimiter::with_clock(policy, clock);
    /// let both = AllOf::new("user", &user).with("all users", &all_users);
    /// assert_eq!(both.acquire().await?.waited(), Duration::ZERO);
    /// assert_eq!(both.acquire().await?.waited(), Duration::from_millis(500));
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self) -> AcquireAll<C> {
        AcquireAll::new(self, &AllRequest::new())
    }

    /// Waits for the permits that an [`AllRequest`] asks for. A list of costs by name is enough as
    /// a request.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](AllOf::acquire), and:
    ///
    /// - [`AllRefusal::Member`] with [`Refusal::ExceedsLimit`] or [`Refusal::ZeroPermits`]; waiting
    ///   does not help.
    /// - [`AllRefusal::Member`] with [`Refusal::Limited`] or [`Refusal::Paused`] if the request
    ///   cannot be served [within](AllRequest::within) its time; it names the member that is ready
    ///   last. [`AllRefusal::Queue`] with `Paused` if a pause of the `AllOf` itself is the reason.
    ///   It is exact as long as the members have no other waiters, no pause, no kept permits and no
    ///   shadow mode, and at most 512 requests wait: see promise P11 in the documentation of the
    ///   crate.
    /// - [`AllRefusal::Member`] with [`Refusal::InUse`] if the time of the request is over and a
    ///   counting limit still has too few permits: at once if the request has no time to wait.
    /// - [`AllRefusal::NoMember`] if the request names a member that does not exist.
    pub fn acquire_many<'a>(&self, request: impl Into<AllRequest<'a>>) -> AcquireAll<C> {
        AcquireAll::new(self, &request.into())
    }

    /// Waits for one permit of each member if they are due within `within`; otherwise refuses at
    /// once and takes nothing. A request that waits for a [`CountingLimit`] is refused when that
    /// time is over, because the time at which a permit returns is unknown.
    ///
    /// This call is [`acquire_many`](AllOf::acquire_many) for one permit of each member
    /// [`within`](AllRequest::within) that time.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](AllOf::acquire_many). A refusal names the member that is
    /// ready last.
    pub fn acquire_within(&self, within: Duration) -> AcquireAll<C> {
        AcquireAll::new(self, &AllRequest::new().within(within))
    }

    /// Blocks the calling thread until it has one permit of each member.
    ///
    /// Threads and tasks wait in one queue. Do not call this method from a task: it blocks the
    /// executor's thread. It needs no runtime.
    ///
    /// # Errors
    ///
    /// The errors of [`blocking_acquire_many`](AllOf::blocking_acquire_many).
    pub fn blocking_acquire(&self) -> Result<AllPermits, AllRefusal> {
        self.blocking_acquire_many(AllRequest::new())
    }

    /// Blocks the calling thread until it has the permits that an [`AllRequest`] asks for.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](AllOf::acquire_many), and [`AllRefusal::Queue`] with
    /// [`Refusal::Cancelled`] if the call runs under a [`CancelToken`](crate::CancelToken) that is
    /// cancelled.
    pub fn blocking_acquire_many<'a>(
        &self,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AllPermits, AllRefusal> {
        let request = request.into();
        let ask = self.ask(&request)?;
        self.block(Progress::with(ask, &request.request))
    }

    /// Blocks the calling thread until a request is decided.
    fn block(&self, wait: Progress<Weights>) -> Result<AllPermits, AllRefusal> {
        let mut pending = Pending::new(&self.shared, wait);
        match blocking::acquire(&mut pending) {
            Ok(answer) => Ok(permits(&self.shared, pending.ask(), answer)),
            Err(refusal) => Err(blame(&self.shared, pending.ask(), refusal, true)),
        }
    }

    /// Takes a position in the queue now for what an [`AllRequest`] asks for, if the cost is known
    /// only later: reserve the estimate, await the reservation, and
    /// [settle](AllReservation::settle) it.
    ///
    /// An awaited reservation is charged when its time comes. One that is not awaited is charged by
    /// the first call after its time: by a call of this `AllOf`, or of the reservation. The members
    /// count it at most the [catch-up](crate::RateLimiter::set_catch_up) earlier than that call. So
    /// behind another reservation that is not awaited, it may be due later than its
    /// [`due_in`](AllReservation::due_in). It holds its permits of a [`CountingLimit`] until it is
    /// dropped or settled.
    ///
    /// Await `&mut` the reservation, and keep the reservation until the work is done.
    /// `reserve(..)?.await?` yields a [`Grant`](crate::Grant) and drops the reservation: its
    /// permits of a [`CountingLimit`] go back before the work begins, and its cost can no longer be
    /// settled.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire_many`](AllOf::acquire_many).
    pub fn reserve<'a>(&self, request: impl Into<AllRequest<'a>>) -> Result<AllReservation<C>, AllRefusal> {
        let request = request.into();
        self.reserve_ask(self.ask(&request)?, &request.request)
    }

    /// Returns the number of requests that wait in this `AllOf`, how long its own pause lasts, and
    /// the status of each member.
    ///
    /// The numbers of different members are not added up: requests, tokens and calls in flight have
    /// no common unit.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllOf, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let requests = RateLimiter::with_clock(policy, clock.clone());
    /// let policy = TokenBucket::new(Rate::per_minute(1000), 1000);
    /// let tokens = RateLimiter::with_clock(policy, clock);
    /// let api = AllOf::new("requests", &requests).with("tokens", &tokens);
    /// let _permits = api.try_acquire_many([("tokens", 850)])?;
    ///
    /// let status = api.status();
    /// assert_eq!(status.waiting, 0);
    /// for (name, member) in &status.members {
    ///     println!("{name}: {} of {}", member.available, member.limit);
    /// }
    /// assert_eq!(status.member("tokens").map(|tokens| tokens.available), Some(150));
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    #[must_use]
    pub fn status(&self) -> AllStatus {
        status(&self.shared)
    }

    /// Returns the names of the members, in the order in which they were added.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.shared.rule.members.iter().map(|entry| entry.name.as_str())
    }

    fn ask(&self, request: &AllRequest<'_>) -> Result<Weights, AllRefusal> {
        let mut ask = self.ones.clone().of_request(&request.request);
        if request.without_defaults || request.without_counting {
            let is_free = |entry: &Entry| {
                let is_counting = matches!(entry.kind, Kind::Counting(_));
                entry.cost.is_some() && request.without_defaults || is_counting && request.without_counting
            };
            let members = self.shared.rule.members.iter().enumerate();
            members.filter(|(_, entry)| is_free(entry)).for_each(|(index, _)| ask.set(index, 0));
        }
        self.shared.rule.set_costs(&mut ask, request)?;
        Ok(ask)
    }

    fn reserve_ask(&self, ask: Weights, request: &Request) -> Result<AllReservation<C>, AllRefusal> {
        match self.shared.reserve(ask.clone(), request) {
            Ok(wait) => Ok(AllReservation::new(self.shared.clone(), wait, request.exempt)),
            Err(refusal) => Err(blame(&self.shared, &ask, refusal, true)),
        }
    }

    fn exempt(&self, ask: &Weights) -> Result<AllPermits, AllRefusal> {
        let passed = self.shared.report_end(ask, Nanos::ZERO, Ok(Admitted::Exempt));
        passed
            .map(|granted| permits(&self.shared, ask, Receipt { waited: Nanos::ZERO, granted }))
            .map_err(AllRefusal::from)
    }

    fn attempt(&self, ask: &Weights) -> Result<AllPermits, AllRefusal> {
        if let Some(as_many) = &ask.as_many {
            return self.attempt_as_many(ask, as_many.most);
        }
        match self.shared.try_grant(Demand::exactly(ask, ask.priority)) {
            Ok(granted) => Ok(permits(&self.shared, ask, Receipt { waited: Nanos::ZERO, granted })),
            Err(refusal) => Err(blame(&self.shared, ask, refusal, false)),
        }
    }

    #[cold]
    fn attempt_as_many(&self, ask: &Weights, most: NonZeroU32) -> Result<AllPermits, AllRefusal> {
        let demand = Demand { ask, priority: ask.priority, most: Some(most) };
        match self.shared.try_as_many(demand, GrantKind::Final) {
            Ok((ask, granted)) => Ok(permits(&self.shared, &ask, Receipt { waited: Nanos::ZERO, granted })),
            Err(refusal) => Err(blame(&self.shared, ask, refusal, false)),
        }
    }
}

fn permits<C: Timer>(of: &Arc<Shared<All<C>, C>>, ask: &Weights, receipt: Receipt<AllCharge>) -> AllPermits {
    let Receipt { waited, granted } = receipt;
    let (n, took) = if granted.is_some() { (ask.others, true) } else { (0, false) };
    let charge = granted.map(|granted| granted.charge).unwrap_or_default();
    let left = (ask.wants_left && took).then(|| left(of, &charge));
    let passed = of.rule.passed(&charge);
    let AllCharge { taken, permits, .. } = charge;
    // From here on the grant cannot be undone.
    drop(taken);
    #[cfg(feature = "keyed")]
    let held = of.rule.is_kept().then(|| Box::new(of.clone()) as Box<dyn Send + Sync>);
    #[cfg(not(feature = "keyed"))]
    let held = None;
    let has_more = left.is_some() || held.is_some();
    let more = has_more.then(|| Box::new(More { left, held, ..More::default() }));
    AllPermits { permits, n, waited, more }.with_passed(passed)
}

#[cold]
fn status<C: Timer>(of: &Shared<All<C>, C>) -> AllStatus {
    let members = of.rule.members.iter().map(|entry| (entry.name.clone(), entry.status()));
    AllStatus { waiting: of.waiting(), paused_for: of.paused_for(), members: members.collect() }
}

/// Returns what a grant left in all members.
#[cold]
fn left<C: Timer>(of: &Shared<All<C>, C>, charge: &AllCharge) -> AllStatus {
    let taken = charge.taken.iter().filter(|taken| of.rule.took(taken));
    let taken = taken.filter_map(|(index, share)| Some((*index, share.left()?)));
    status(of).with_left(charge.left.iter().flat_map(|left| left.iter().copied()).chain(taken))
}

/// Names the member that refused, and adds the permits left if the request asks for them.
fn blame<C: Timer>(of: &Shared<All<C>, C>, ask: &Weights, refusal: Refusal, may_wait: bool) -> AllRefusal {
    let refusal = of.rule.blame(ask, refusal);
    if ask.wants_left { add_left(of, ask, refusal, may_wait) } else { refusal }
}

#[cold]
fn add_left<C: Timer>(
    of: &Shared<All<C>, C>,
    ask: &Weights,
    refusal: AllRefusal,
    may_wait: bool,
) -> AllRefusal {
    let members = of.rule.members.iter().zip(ask.iter());
    let asked = |name: &str| members.clone().find(|(entry, _)| entry.name == *name).map_or(0, |(_, n)| *n);
    refusal.with_left(status(of)).with_state_met(asked, may_wait)
}

impl<C: Timer> All<C> {
    /// Names the member that refused.
    fn blame(&self, ask: &Weights, refusal: Refusal) -> AllRefusal {
        if matches!(refusal, Refusal::QueueFull { .. } | Refusal::Displaced | Refusal::Cancelled) {
            return refusal.into();
        }
        let asked = || self.members.iter().zip(ask.iter()).filter(|(_, n)| **n > 0);
        let paused_for = self.paused_for();
        let named = match refusal {
            Refusal::Limited { .. } | Refusal::Paused { .. } => self
                .last(ask)
                .filter(|(wait, _)| wait.time.as_duration() >= paused_for)
                .map(|(_, entry)| entry),
            Refusal::InUse { .. } => asked()
                .find(|(entry, n)| matches!(&entry.kind, Kind::Counting(limit) if limit.available() < **n))
                .map(|(entry, _)| entry)
                .or_else(|| self.awaited())
                .or_else(|| {
                    asked().map(|(entry, _)| entry).find(|entry| matches!(entry.kind, Kind::Counting(_)))
                }),
            Refusal::Closed => asked()
                .find(|(entry, n)| entry.check(**n, ask.priority) == Err(Refusal::Closed))
                .map(|(entry, _)| entry),
            _ => asked().find(|(entry, n)| entry.check(**n, ask.priority).is_err()).map(|(entry, _)| entry),
        };
        if named.is_none() && (refusal == Refusal::Closed || !paused_for.is_zero()) {
            return refusal.into();
        }
        // Another limit may have been short first.
        let refusal = match (refusal, named) {
            (Refusal::InUse { .. }, Some(Entry { kind: Kind::Counting(limit), .. })) => limit.in_use(),
            _ => refusal,
        };
        // All costs are zero, or the permits are available by now.
        let name = named.or(self.members.first()).map_or_else(|| "".into(), |entry| entry.name.clone());
        AllRefusal::from_member(name, refusal)
    }

    /// Returns the members from which a grant took nothing, although it asked them.
    fn passed(&self, charge: &AllCharge) -> Vec<Name> {
        let waited = charge.taken.iter().filter(|taken| !self.took(taken)).map(|(index, _)| index);
        let at_once = charge.passed.iter().flat_map(|passed| passed.iter());
        waited.chain(at_once).map(|index| self.members[*index].name.clone()).collect()
    }

    /// Returns whether a grant took permits from this member.
    fn took(&self, (index, share): &(usize, Box<dyn MemberGrant>)) -> bool {
        share.took() && self.members[*index].placeholder_of.is_none()
    }

    /// Sets `ask` to the costs of a request.
    fn set_costs(&self, ask: &mut Weights, request: &AllRequest<'_>) -> Result<(), AllRefusal> {
        ask.set_costs(request, rates(&self.members), |name| self.find(name))
    }

    /// Returns the index of the member with this name.
    fn find(&self, name: &str) -> Result<usize, AllRefusal> {
        self.members.iter().position(|entry| entry.name == *name).ok_or_else(|| self.no_member(name))
    }

    #[cold]
    fn no_member(&self, name: &str) -> AllRefusal {
        let members = self.members.iter().map(|entry| entry.name.clone()).collect();
        AllRefusal::NoMember { name: name.into(), members }
    }
}

impl<C: Timer> Clone for AllOf<C> {
    fn clone(&self) -> Self {
        AllOf { shared: self.shared.clone(), ones: self.ones.clone() }
    }
}

impl<C: Timer> fmt::Debug for AllOf<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllOf").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// The future of [`AllOf::acquire`] and its variants, which resolves to permits of all members.
///
/// The future is lazy: it joins the queue at its first poll. It is `Unpin` and `Send`, and borrows
/// nothing.
///
/// # Cancel safety
///
/// Dropping the future at any time leaves no trace in any member.
///
/// # Panics
///
/// Panics if it is polled again after it was ready, or if it waits with the default clock in a
/// tokio runtime without a time driver.
#[must_use = "futures do nothing unless awaited: no permits were acquired"]
pub struct AcquireAll<C: Timer = DefaultClock> {
    /// The wait, or the refusal that the first poll returns.
    waiting: Result<OwnedPending<All<C>, C>, AllRefusal>,
}

impl<C: Timer> AcquireAll<C> {
    fn new(all: &AllOf<C>, request: &AllRequest<'_>) -> Self {
        match all.ask(request) {
            Ok(ask) => AcquireAll::waiting(all.clone(), Progress::with(ask, &request.request)),
            Err(refusal) => AcquireAll { waiting: Err(refusal) },
        }
    }

    fn waiting(all: AllOf<C>, wait: Progress<Weights>) -> Self {
        AcquireAll { waiting: Ok(Pending::new(all.shared, wait)) }
    }
}

impl<C: Timer> Future for AcquireAll<C> {
    type Output = Result<AllPermits, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waiting = match &mut self.get_mut().waiting {
            Ok(waiting) => waiting,
            Err(refusal) => return Poll::Ready(Err(refusal.clone())),
        };
        Poll::Ready(match ready!(waiting.poll(Poller::Task(context.waker()))) {
            Ok(answer) => Ok(permits(&waiting.shared, waiting.ask(), answer)),
            Err(refusal) => Err(blame(&waiting.shared, waiting.ask(), refusal, true)),
        })
    }
}

impl<C: Timer> fmt::Debug for AcquireAll<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireAll")
            .field("costs", &self.waiting.as_ref().ok().map(Pending::ask))
            .finish_non_exhaustive()
    }
}
