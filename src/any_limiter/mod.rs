//! [`AnyLimiter`]: a limiter without type parameters, and the trait behind it.
//!
//! Adapters and applications store limiters of any kind: one of a rate, a key of many, several at
//! once, or one over a network. The kinds differ by policy, clock and key, and so by type.
//! [`Limiter`] is what all of them can do, without types; [`AnyLimiter`] is a handle to one of
//! them.

mod counting;
mod keyed;
#[cfg(feature = "keyed")]
mod of_key;
mod several;
mod single;

pub use keyed::{AnyKeyed, KeyedLimiter};
#[cfg(feature = "keyed")]
pub use of_key::OfKey;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::all_of::{AllPermits, AllRefusal, AllRequest, AllStatus};
use crate::grant::Grant;
use crate::limiter::Pause;
use crate::limiter::blocking::block_on;
use crate::time::Nanos;

/// A handle to a limiter of any kind: any policy, clock and key, several limits at once, or a
/// limiter of another crate.
///
/// It is made from a [`RateLimiter`](crate::RateLimiter), an [`AllOf`](crate::AllOf), a
/// [`CountingLimit`](crate::CountingLimit), a key of a `KeyedRateLimiter` (`OfKey`), or anything
/// else that is a [`Limiter`]. Clones share the
/// limiter; a clone costs a reference count.
///
/// An `AnyLimiter` has the calls by which permits are asked for and given back, and those that
/// every limiter has: `status`, `pause`, `debit`, `close`. Calls that only some limiters have, such
/// as [`set_rate`](crate::RateLimiter::set_rate) and `reset`, observers, and the bounds of the queue
/// are those of the limiter that the handle is made from. A request is an [`AllRequest`], so a
/// number of permits, a [`Request`](crate::Request) or costs by name. A single limiter is a limit
/// of the name `limit`.
///
/// # Cost
///
/// A `try_` call costs one virtual call. A wait and a reservation allocate their future.
///
/// # Fairness and cancel safety
///
/// As the limiter behind the handle.
///
/// # Examples
///
/// A type that does not say which limiter it uses:
///
/// ```
/// use tidegate::{AllOf, AnyLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
///
/// struct Client {
///     limiter: AnyLimiter,
/// }
///
/// let clock = ManualClock::new();
/// let policy = TokenBucket::new(Rate::per_second(10), 10);
/// let second = RateLimiter::with_clock(policy, clock.clone());
/// let policy = TokenBucket::new(Rate::per_minute(12), 12);
/// let minute = RateLimiter::with_clock(policy, clock);
/// let both = AllOf::new("per second", &second).with("per minute", &minute);
///
/// for limiter in [AnyLimiter::from(both), AnyLimiter::from(minute)] {
///     let client = Client { limiter };
///     assert!(client.limiter.try_acquire().is_ok());
///     assert!(client.limiter.try_acquire_many(20).is_err());
/// }
/// ```
#[derive(Clone)]
pub struct AnyLimiter(Arc<dyn Limiter>);

/// What every limiter can do, without type parameters: for [`AnyLimiter`].
///
/// Call the methods through an [`AnyLimiter`], which takes numbers and lists of costs as well.
///
/// # Implementing it
///
/// Implement it for a limiter of another kind, for example over a network. What the methods take
/// can be read, and what they return can be made:
///
/// | type | read or made by |
/// |---|---|
/// | [`AllRequest`] | [`costs`](AllRequest::costs), [`cost_of`](AllRequest::cost_of) and [`others`](AllRequest::others) tell the costs, [`to_request`](AllRequest::to_request) all else |
/// | [`Pause`] | [`end`](Pause::end) and [`keeps_permits`](Pause::keeps_permits) |
/// | [`AllPermits`] | `From<Grant>`, or [`AllPermits::with_guard`] if dropping them gives something back |
/// | [`Grant`] | [`Grant::new`] |
/// | [`AllStatus`] | [`AllStatus::new`], of a [`Status`](crate::Status) for each member, which is made from a [`Left`](crate::Left). A request that [asks](crate::Request::wants_left) is told it with the answer: [`AllPermits::with_left`], [`AllRefusal::with_left`], [`Place::left`] |
/// | [`AllRefusal`] | [`AllRefusal::from_member`], or `From<Refusal>` |
/// | answers without the store | [`AllPermits::as_degraded`], [`AllRefusal::as_degraded`], [`Place::is_degraded`] |
/// | [`AcquireAny`], [`AnyReservation`] | [`AcquireAny::new`], [`AcquireAny::ready`], [`AnyReservation::new`] |
///
/// A limiter over a network answers [`acquire_now`](Limiter::acquire_now) by a future, since
/// [`try_acquire`](Limiter::try_acquire) can only block the thread until the store has answered.
/// Its handle [for tasks](Limiter::non_blocking) answers the other calls without blocking a thread.
/// Calls that change the limiter, such as [`pause`](Limiter::pause), may return before the store
/// knows of the change. If the store does not answer, a request is refused as
/// [`Refusal::Unavailable`](crate::Refusal::Unavailable).
pub trait Limiter: fmt::Debug + Send + Sync + 'static {
    /// Takes all permits of the request now, or none.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal>;

    /// Takes all permits of the request now, or none, as [`try_acquire`](Limiter::try_acquire), by
    /// a future that waits for the answer alone. By default it is ready at once.
    fn acquire_now(&self, request: &AllRequest<'_>) -> AcquireAny {
        AcquireAny::ready(self.try_acquire(request))
    }

    /// Waits for the permits of the request. The future joins the queue when it is first polled.
    /// Dropping it leaves no trace.
    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny;

    /// Blocks the calling thread until it has the permits of the request.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal>;

    /// Takes a place in the queue now.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request has no place.
    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal>;

    /// A snapshot of the limiter. A single limiter is its own only member, with the name `limit`.
    fn status(&self) -> AllStatus;

    /// Grants nothing until the [end](Pause::end) of the pause.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`](crate::Refusal) if a key has no room.
    fn pause(&self, pause: Pause) -> Result<(), AllRefusal>;

    /// Ends a pause. Returns whether there was one.
    fn resume(&self) -> bool;

    /// Charges permits, also if fewer are available, as [`AllOf::debit`](crate::AllOf::debit). A
    /// single limiter has the name `limit`.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with a name that is not there, and
    /// [`Refusal::TooManyKeys`](crate::Refusal) if a key has no room. Then nothing is charged.
    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal>;

    /// Gives back permits that were acquired and not used, as
    /// [`AllOf::refund`](crate::AllOf::refund). A single limiter has the name `limit`. By default
    /// nothing goes back: the permits are used.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with a name that is not there. Then nothing is given
    /// back.
    fn refund(&self, _costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        Ok(())
    }

    /// Takes the permits that are available beyond `permits` of the limit with this name, and
    /// returns how many it took, as [`AllOf::keep_at_most`](crate::AllOf::keep_at_most). A single
    /// limiter has the name `limit`.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a name that is not there, and
    /// [`Refusal::TooManyKeys`](crate::Refusal) if a key has no room.
    fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal>;

    /// Closes the limiter for good, and refuses all that wait. Returns whether it was open.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`](crate::Refusal) if a key has no room.
    fn close(&self) -> Result<bool, AllRefusal>;

    /// Whether the limiter was closed.
    fn is_closed(&self) -> bool;

    /// This limiter for code that must not block its thread, as
    /// [`AnyLimiter::non_blocking`] tells. `None`, the default, if no call of it waits for a store.
    fn non_blocking(&self) -> Option<AnyLimiter> {
        None
    }
}

/// A place in the queue of a limiter of any kind: what an [`AnyReservation`] needs.
///
/// As a future it waits until the place is due and claims it. Polled again after that, it is ready.
/// Dropping it gives up a place that was not claimed, and leaves no trace. The permits of a claimed
/// place are used, unless it is settled.
pub trait Place: Future<Output = Result<Grant, AllRefusal>> + Send + Unpin + 'static {
    /// How long until the place is due, if nothing changes; [`Duration::MAX`] means never.
    fn due_in(&self) -> Duration;

    /// Blocks the calling thread until the place is due, and claims it, as awaiting it does. By
    /// default it polls the future, and its wakers unpark the thread.
    ///
    /// # Errors
    ///
    /// As awaiting it; and [`Refusal::Cancelled`](crate::Refusal::Cancelled) under a
    /// [`CancelToken`](crate::CancelToken) that is cancelled. Then the place is kept.
    fn blocking_claim(&mut self) -> Result<Grant, AllRefusal> {
        block_on(Pin::new(self))?
    }

    /// What the grant left in each limit, once the place is claimed, if the request
    /// [asked](AllRequest::with_left) for it.
    fn left(&self) -> Option<AllStatus> {
        None
    }

    /// Whether the place was decided without the store of the limiter, which did not answer.
    fn is_degraded(&self) -> bool {
        false
    }

    /// Tells how many permits were really used, claimed or not. What the request does not tell was
    /// used as reserved.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with a name that is not there.
    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal>;
}

impl AnyLimiter {
    /// A handle to this limiter.
    #[must_use]
    pub fn new(limiter: impl Limiter) -> AnyLimiter {
        AnyLimiter(Arc::new(limiter))
    }

    /// Takes one permit now, of each limit, or refuses. A limiter over a network blocks the thread
    /// until it has an answer; in a task, await [`acquire_now`](AnyLimiter::acquire_now).
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    pub fn try_acquire(&self) -> Result<AllPermits, AllRefusal> {
        self.0.try_acquire(&AllRequest::new())
    }

    /// Takes all permits of the request now, or refuses. It blocks as
    /// [`try_acquire`](AnyLimiter::try_acquire) does.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    pub fn try_acquire_many<'a>(&self, request: impl Into<AllRequest<'a>>) -> Result<AllPermits, AllRefusal> {
        self.0.try_acquire(&request.into())
    }

    /// Takes all permits of the request now, or refuses, as
    /// [`try_acquire_many`](AnyLimiter::try_acquire_many) does. A limiter over a network needs time
    /// to answer: in a task this call waits for the answer and does not block the thread. All other
    /// limiters answer at once, and the request is decided by this call, not by the first poll.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AnyLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tidegate::AllRefusal> {
    /// let policy = TokenBucket::new(Rate::per_second(5), 2);
    /// let limiter =
    ///     AnyLimiter::from(RateLimiter::with_clock(policy, ManualClock::new()));
    /// let _permits = limiter.acquire_now(2).await?;
    /// assert!(limiter.acquire_now(1).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_now<'a>(&self, request: impl Into<AllRequest<'a>>) -> AcquireAny {
        self.0.acquire_now(&request.into())
    }

    /// Waits for one permit, of each limit.
    ///
    /// # Errors
    ///
    /// As the limiter behind the handle, for example [`AllOf::acquire`](crate::AllOf::acquire).
    pub fn acquire(&self) -> AcquireAny {
        self.0.acquire(&AllRequest::new())
    }

    /// Waits for the permits of the request.
    ///
    /// # Errors
    ///
    /// As the limiter behind the handle, for example
    /// [`AllOf::acquire_many`](crate::AllOf::acquire_many).
    pub fn acquire_many<'a>(&self, request: impl Into<AllRequest<'a>>) -> AcquireAny {
        self.0.acquire(&request.into())
    }

    /// Waits for one permit, of each limit, if that takes no longer than `within`; else refuses at
    /// once.
    ///
    /// # Errors
    ///
    /// As the limiter behind the handle, for example
    /// [`AllOf::acquire_within`](crate::AllOf::acquire_within).
    pub fn acquire_within(&self, within: Duration) -> AcquireAny {
        self.0.acquire(&AllRequest::new().within(within))
    }

    /// Blocks the calling thread until it has one permit, of each limit. Do not call it from a
    /// task.
    ///
    /// # Errors
    ///
    /// As [`acquire`](AnyLimiter::acquire).
    pub fn blocking_acquire(&self) -> Result<AllPermits, AllRefusal> {
        self.0.blocking_acquire(&AllRequest::new())
    }

    /// Blocks the calling thread until it has the permits of the request. Do not call it from a
    /// task.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](AnyLimiter::acquire_many).
    pub fn blocking_acquire_many<'a>(
        &self,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AllPermits, AllRefusal> {
        self.0.blocking_acquire(&request.into())
    }

    /// Takes a place in the queue now, for a cost that is known only later, or for a wait that is
    /// kept between polls.
    ///
    /// Over a store this blocks the thread until the store answers; a task writes
    /// `limiter.non_blocking().reserve(..)`. A place may be in the next window: a request that is to
    /// have its permits now or none says [`within(Duration::ZERO)`](crate::Request::within).
    ///
    /// Await `&mut` the reservation, and keep it until the work is done. `reserve(..)?.await?`
    /// drops the reservation: permits that are counted while in use go back before the work begins,
    /// and the cost cannot be settled any more.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](AnyLimiter::acquire_many).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AnyLimiter, Rate, RateLimiter, TokenBucket, TokioClock};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), tidegate::AllRefusal> {
    /// let policy = TokenBucket::new(Rate::per_minute(1000), 1000);
    /// let tokens = RateLimiter::with_clock(policy, TokioClock::new());
    /// let limiter = AnyLimiter::from(tokens.clone());
    /// let mut call = limiter.reserve(800)?;
    /// (&mut call).await?;
    /// call.settle(300)?; // gives back 500
    /// assert_eq!(tokens.status().available, 700);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve<'a>(&self, request: impl Into<AllRequest<'a>>) -> Result<AnyReservation, AllRefusal> {
        self.0.reserve(&request.into())
    }

    /// A snapshot of the limiter and of each of its members. A single limiter is its own only
    /// member, with the name `limit`.
    #[must_use]
    pub fn status(&self) -> AllStatus {
        self.0.status()
    }

    /// Grants nothing for the time `span` from now, as a server's `Retry-After` asks for. See
    /// [`RateLimiter::pause_for`](crate::RateLimiter::pause_for).
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`] if the limiter is a key for which there is no room. Then nothing is
    /// paused.
    pub fn pause_for(&self, span: Duration) -> Result<(), AllRefusal> {
        self.pause(Pause::lasting(span))
    }

    /// Grants nothing until the end of the pause, which says what the limiter has afterwards. See
    /// [`RateLimiter::pause`](crate::RateLimiter::pause).
    ///
    /// # Errors
    ///
    /// As [`pause_for`](AnyLimiter::pause_for).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{AnyLimiter, ManualClock, Pause, Rate, RateLimiter, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let any = AnyLimiter::from(RateLimiter::with_clock(policy, clock.clone()));
    /// any.pause(Pause::lasting(Duration::from_secs(1)).keep_permits())?;
    /// assert!(any.try_acquire().is_err());
    /// clock.advance(Duration::from_secs(1));
    /// assert!(any.try_acquire_many(10).is_ok());
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        self.0.pause(pause)
    }

    /// Ends a pause. Returns whether there was one.
    pub fn resume(&self) -> bool {
        self.0.resume()
    }

    /// Charges permits, also if fewer are available: for a call that was made without asking, or
    /// that a server counted. See [`AllOf::debit`](crate::AllOf::debit). A single limiter is its
    /// own only member, with the name `limit`.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with a name that is not there, or another refusal if the
    /// limiter is a key for which there is no room. Then nothing is charged.
    pub fn debit<'a>(&self, costs: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        self.0.debit(&costs.into())
    }

    /// Gives back permits that were acquired and not used: tell the costs that the call got. See
    /// [`AllOf::refund`](crate::AllOf::refund). A single limiter is its own only member, with the
    /// name `limit`. A limiter over a store gives nothing back: a call that may not use its permits
    /// [reserves](AnyLimiter::reserve) them.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with a name that is not there. Then nothing is given
    /// back.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AnyLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let limiter =
    ///     AnyLimiter::from(RateLimiter::with_clock(policy, ManualClock::new()));
    /// let _permits = limiter.try_acquire_many(7)?;
    /// limiter.refund(7)?;
    /// assert_eq!(limiter.status().members[0].1.available, 60);
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub fn refund<'a>(&self, costs: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        self.0.refund(&costs.into())
    }

    /// Takes the permits that are available beyond `permits` of the limit with this name, and
    /// returns how many it took: for a server that says how many permits are left of which limit.
    /// See [`RateLimiter::keep_at_most`](crate::RateLimiter::keep_at_most). A single limiter is its
    /// own only member, with the name `limit`.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a name that is not there, or another refusal if the limiter is
    /// a key for which there is no room.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AnyLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let limiter =
    ///     AnyLimiter::from(RateLimiter::with_clock(policy, ManualClock::new()));
    /// assert_eq!(limiter.keep_at_most("limit", 3)?, 57);
    /// assert_eq!(limiter.status().members[0].1.available, 3);
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal> {
        self.0.keep_at_most(name, permits)
    }

    /// Closes the limiter for good, and refuses all that wait. Returns whether it was open. See
    /// [`RateLimiter::close`](crate::RateLimiter::close). The members of a composite stay open.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`] if the limiter is a key for which there is no room. Then nothing is
    /// closed.
    pub fn close(&self) -> Result<bool, AllRefusal> {
        self.0.close()
    }

    /// Whether the limiter was [closed](AnyLimiter::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// This limiter for code that must not block its thread: adapters of tasks use it. It is a
    /// handle to the same permits. Over a network, these calls of it return without the answer of
    /// the store:
    ///
    /// | call | returns |
    /// |---|---|
    /// | [`reserve`](AnyLimiter::reserve) | a place that may not be decided yet: then it is due in zero, and the place itself, awaited, is refused |
    /// | [`status`](AnyLimiter::status) | the names, limits and rates, and that nothing is available |
    /// | [`keep_at_most`](AnyLimiter::keep_at_most) | 0, and the store is told |
    /// | [`resume`](AnyLimiter::resume) | `false`, and the store is told |
    /// | [`try_acquire`](AnyLimiter::try_acquire), [`blocking_acquire`](AnyLimiter::blocking_acquire) | [`Refusal::Unavailable`](crate::Refusal::Unavailable) where the store would have to be asked: await [`acquire_now`](AnyLimiter::acquire_now) or [`acquire`](AnyLimiter::acquire) |
    ///
    /// All other calls, and all calls of a limiter in this process, are the calls of this handle.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AnyLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let limiter =
    ///     AnyLimiter::from(RateLimiter::with_clock(policy, ManualClock::new()));
    /// let place = limiter.non_blocking().reserve(20)?;
    /// assert!(place.due_in().is_zero());
    /// place.settle(5)?;
    /// assert_eq!(limiter.status().members[0].1.available, 55);
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    #[must_use]
    pub fn non_blocking(&self) -> AnyLimiter {
        self.0.non_blocking().unwrap_or_else(|| self.clone())
    }

    /// Whether calls of this handle may block the thread for an answer over a network, so that
    /// tasks had better use another one: [`non_blocking`](AnyLimiter::non_blocking).
    #[must_use]
    pub fn may_block(&self) -> bool {
        self.0.non_blocking().is_some()
    }
}

impl fmt::Debug for AnyLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyLimiter").field(&self.0).finish()
    }
}

/// The future of [`AnyLimiter::acquire`] and its variants: permits, or a refusal.
///
/// Lazy: it joins the queue when it is first polled. `Unpin`, `Send` and without a borrow.
///
/// # Cancel safety
///
/// Dropping it at any time leaves no trace.
///
/// # Panics
///
/// Polling it again after it was ready panics.
#[must_use = "futures do nothing unless awaited: no permits were acquired"]
pub struct AcquireAny(Answer);

type BoxedWait = Pin<Box<dyn Future<Output = Result<AllPermits, AllRefusal>> + Send>>;

enum Answer {
    Later(BoxedWait),
    /// `None` once it was given.
    Now(Option<Result<AllPermits, AllRefusal>>),
}

impl AcquireAny {
    /// The wait that this future is. It must join its queue when it is first polled, and leave no
    /// trace when it is dropped.
    pub fn new(wait: impl Future<Output = Result<AllPermits, AllRefusal>> + Send + 'static) -> AcquireAny {
        AcquireAny(Answer::Later(Box::pin(wait)))
    }

    /// An answer without a wait, which allocates nothing.
    pub fn ready(answer: Result<AllPermits, AllRefusal>) -> AcquireAny {
        AcquireAny(Answer::Now(Some(answer)))
    }
}

impl Future for AcquireAny {
    type Output = Result<AllPermits, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().0 {
            Answer::Later(wait) => wait.as_mut().poll(context),
            Answer::Now(answer) => Poll::Ready(answer.take().expect("it is polled once")),
        }
    }
}

impl fmt::Debug for AcquireAny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireAny").finish_non_exhaustive()
    }
}

/// A place in the queue of an [`AnyLimiter`], made by [`AnyLimiter::reserve`].
///
/// It keeps its place whether or not it is polled. Await `&mut reservation` to claim it and keep
/// it; a plain thread calls [`blocking_claim`](AnyReservation::blocking_claim). See
/// [`Reservation`](crate::Reservation).
///
/// # Cancel safety
///
/// Dropping it before it was claimed leaves no trace. Permits that are counted while in use are
/// given back when it is dropped.
#[must_use = "dropping a reservation cancels it: its permits go to the next in line"]
pub struct AnyReservation(Box<dyn Place>);

impl AnyReservation {
    /// The reservation that has this place.
    pub fn new(place: impl Place) -> AnyReservation {
        AnyReservation(Box::new(place))
    }

    /// A reservation of no permits, for an estimate of 0: it is due at once. What it is
    /// [settled](AnyReservation::settle) with is charged to this limiter.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{
    ///     AnyLimiter, AnyReservation, ManualClock, Rate, RateLimiter, TokenBucket,
    /// };
    ///
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let limiter =
    ///     AnyLimiter::from(RateLimiter::with_clock(policy, ManualClock::new()));
    /// let place = AnyReservation::empty(limiter.clone());
    /// assert!(place.due_in().is_zero());
    /// place.settle(7)?;
    /// assert_eq!(limiter.status().members[0].1.available, 53);
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub fn empty(limiter: AnyLimiter) -> AnyReservation {
        AnyReservation::new(NoPermits(limiter))
    }

    /// How long until the reservation is due, if nothing changes; zero if it is due or was claimed.
    /// [`Duration::MAX`] means never.
    #[must_use]
    pub fn due_in(&self) -> Duration {
        self.0.due_in()
    }

    /// Blocks the calling thread until the reservation is due, and claims it. The [`Grant`] is that
    /// of awaiting it.
    ///
    /// Do not call it from a task: it blocks the executor's thread.
    ///
    /// # Errors
    ///
    /// As awaiting it; and [`Refusal::Cancelled`](crate::Refusal::Cancelled) under a
    /// [`CancelToken`](crate::CancelToken) that is cancelled. Then the reservation keeps its place.
    /// A reservation of a limiter [in a task](AnyLimiter::non_blocking) blocks no thread for a store: it
    /// is refused.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AnyLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_minute(1000), 1000);
    /// let tokens = RateLimiter::with_clock(policy, ManualClock::new());
    /// let mut call = AnyLimiter::from(tokens.clone()).reserve(800)?;
    /// call.blocking_claim()?; // in a plain thread
    /// call.settle(300)?; // gives back 500
    /// assert_eq!(tokens.status().available, 700);
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub fn blocking_claim(&mut self) -> Result<Grant, AllRefusal> {
        self.0.blocking_claim()
    }

    /// Returns what the grant left in each limit, once the reservation is claimed, if the request
    /// asked for it by [`AllRequest::with_left`]. Call it right after the claim.
    #[must_use]
    pub fn left(&self) -> Option<AllStatus> {
        self.0.left()
    }

    /// Returns whether the place was decided without the store of the limiter; see
    /// [`AllPermits::is_degraded`].
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.0.is_degraded()
    }

    /// Tells how many permits were really used: a number, or costs by name. Of a limit that is not
    /// named, what was reserved was used. See [`Reservation::settle`](crate::Reservation::settle)
    /// and [`AllReservation::settle`](crate::AllReservation::settle).
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with a name that is not there. Then a claimed
    /// reservation has used what was reserved. One that was not claimed gives up its place, and
    /// charges nothing.
    pub fn settle<'a>(self, used: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        self.0.settle(&used.into())
    }
}

/// Waits until the reservation is due and claims it.
///
/// # Errors
///
/// As [`AnyLimiter::acquire_many`].
impl Future for AnyReservation {
    type Output = Result<Grant, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut *self.get_mut().0).poll(context)
    }
}

/// A place for a request that asks for nothing.
struct NoPermits(AnyLimiter);

impl Future for NoPermits {
    type Output = Result<Grant, AllRefusal>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(Grant::new(0, Nanos::ZERO)))
    }
}

impl Place for NoPermits {
    fn due_in(&self) -> Duration {
        Duration::ZERO
    }

    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        // Of a limit that is not named, nothing was reserved.
        let mut costs = used.clone().cost_of_others(used.others().unwrap_or(0));
        costs.without_defaults = true;
        self.0.debit(costs)
    }
}

impl fmt::Debug for AnyReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyReservation").finish_non_exhaustive()
    }
}
