//! [`AnyLimiter`]: a limiter without type parameters, and the trait behind it.
//!
//! Adapters and applications store limiters of any kind: a single rate limiter, one key of many,
//! several limits at once, or a limiter over a network. The kinds differ in policy, clock and key,
//! and so in type. [`Limiter`] is the interface that all of them share, without type parameters;
//! [`AnyLimiter`] is a handle to one of them.

mod counting;
mod keyed;
#[cfg(feature = "keyed")]
mod of_key;
mod replaceable;
mod several;
mod single;

pub use keyed::{AnyKeyed, KeyedLimiter};
#[cfg(feature = "keyed")]
pub use of_key::OfKey;
pub use replaceable::Replaceable;

use std::fmt;
use std::future::ready;
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
/// [`CountingLimit`](crate::CountingLimit), a key of a `KeyedRateLimiter` (`OfKey`), or any other
/// [`Limiter`]. Clones share the limiter; a clone costs a reference count.
///
/// An `AnyLimiter` has the calls that ask for permits and give them back, and the calls that every
/// limiter has: `status`, `pause`, `debit`, `close`. For calls that only some limiters have, such
/// as [`set_rate`](crate::RateLimiter::set_rate) and `reset`, for observers, and for the bounds of
/// the queue, use the limiter that the handle is made from. A request is an [`AllRequest`], which
/// converts from a number of permits, a [`Request`](crate::Request) or costs by name. A single
/// limiter is a limit with the name `limit`. A [`Replaceable`] puts another limiter behind a handle
/// that is in use.
///
/// # Cost
///
/// A `try_` call costs one virtual call. A wait and a reservation allocate their future.
///
/// # Fairness and cancel safety
///
/// Like the limiter behind the handle.
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

/// The calls of any limiter, without type parameters; the trait behind [`AnyLimiter`].
///
/// Call the methods through an [`AnyLimiter`], which also takes numbers and lists of costs.
///
/// # Implementing the trait
///
/// Implement it for a custom limiter, for example one over a network. These types can be read and
/// made outside this crate:
///
/// | type | read or made by |
/// |---|---|
/// | [`AllRequest`] | [`costs`](AllRequest::costs), [`cost_of`](AllRequest::cost_of) and [`others`](AllRequest::others) return the costs, [`to_request`](AllRequest::to_request) everything else |
/// | [`Pause`] | [`end`](Pause::end) and [`keeps_permits`](Pause::keeps_permits) |
/// | [`AllPermits`] | `From<Grant>`, or [`AllPermits::with_guard`] if dropping them gives something back |
/// | [`Grant`] | [`Grant::new`] |
/// | [`AllStatus`] | [`AllStatus::new`], from a [`Status`](crate::Status) for each member, which is made from a [`Left`](crate::Left). A request that [asks for it](crate::Request::wants_left) gets the status with the decision: [`AllPermits::with_left`], [`AllRefusal::with_left`], [`Reserved::left`] |
/// | [`AllRefusal`] | [`AllRefusal::from_member`], or `From<Refusal>` |
/// | decisions without the store | [`AllPermits::as_degraded`], [`AllRefusal::as_degraded`], [`Reserved::is_degraded`] |
/// | [`AcquireAny`], [`AnyReservation`] | [`AcquireAny::new`], [`AcquireAny::ready`], [`AnyReservation::new`] |
///
/// A limiter over a network implements [`acquire_now`](Limiter::acquire_now) with a future, because
/// [`try_acquire`](Limiter::try_acquire) can only block the thread until the store has replied. Its
/// handle [for tasks](Limiter::non_blocking) runs the other calls without blocking a thread. Calls
/// that change the limiter, such as [`pause`](Limiter::pause), may return before the store knows of
/// the change. If the store does not reply, a request is refused with
/// [`Refusal::Unavailable`](crate::Refusal::Unavailable).
pub trait Limiter: fmt::Debug + Send + Sync + 'static {
    /// Takes all permits of the request now, or none.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal>;

    /// Takes all permits of the request now, or none, like [`try_acquire`](Limiter::try_acquire).
    /// The future waits only for the decision. By default it is ready at once.
    fn acquire_now(&self, request: &AllRequest<'_>) -> AcquireAny {
        AcquireAny::ready(self.try_acquire(request))
    }

    /// Waits for the permits of the request. The future joins the queue when it is first polled.
    /// Dropping it leaves the queue.
    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny;

    /// Blocks the calling thread until it has the permits of the request.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal>;

    /// Takes a position in the queue now.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request has no position.
    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal>;

    /// Returns a snapshot of the limiter. A single limiter is its own only member, with the name
    /// `limit`.
    fn status(&self) -> AllStatus;

    /// Returns a snapshot like [`status`](Limiter::status), by a future that waits for the store.
    /// By default it is ready at once.
    fn fetch_status(&self) -> FetchStatus {
        Box::pin(ready(Ok(self.status())))
    }

    /// Grants no request until the [end](Pause::end) of the pause.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`](crate::Refusal) if there is no room for the key.
    fn pause(&self, pause: Pause) -> Result<(), AllRefusal>;

    /// Ends a pause. Returns whether the limiter was paused.
    fn resume(&self) -> bool;

    /// Charges permits, even if fewer are available, like [`AllOf::debit`](crate::AllOf::debit). A
    /// single limiter has the name `limit`.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with an unknown name, and
    /// [`Refusal::TooManyKeys`](crate::Refusal) if there is no room for the key. Then nothing is
    /// charged.
    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal>;

    /// Gives back permits that were acquired and not used, like
    /// [`AllOf::refund`](crate::AllOf::refund). A single limiter has the name `limit`. By default
    /// nothing is given back: the permits count as used.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with an unknown name. Then nothing is given back.
    fn refund(&self, _costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        Ok(())
    }

    /// Takes the permits that are available beyond `permits` of the limit with this name, and
    /// returns how many it took, like [`AllOf::keep_at_most`](crate::AllOf::keep_at_most). A single
    /// limiter has the name `limit`.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for an unknown name, and [`Refusal::TooManyKeys`](crate::Refusal)
    /// if there is no room for the key.
    fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal>;

    /// Closes the limiter permanently, and refuses all waiters. Returns whether the limiter was
    /// open.
    ///
    /// # Errors
    ///
    /// [`Refusal::TooManyKeys`](crate::Refusal) if there is no room for the key.
    fn close(&self) -> Result<bool, AllRefusal>;

    /// Returns whether the limiter was closed.
    fn is_closed(&self) -> bool;

    /// Returns a handle to this limiter for code that must not block its thread, as described at
    /// [`AnyLimiter::non_blocking`]. Returns `None`, the default, if no call of this limiter waits
    /// for a store.
    fn non_blocking(&self) -> Option<AnyLimiter> {
        None
    }

    /// Returns whether calls of this limiter may block the thread while they wait for a store.
    /// Defaults to whether there is another handle that is [for
    /// tasks](Limiter::non_blocking).
    fn may_block(&self) -> bool {
        self.non_blocking().is_some()
    }
}

/// A reservation of a limiter of any kind: the trait behind [`AnyReservation`].
///
/// As a future, a reservation waits until it is due and claims its permits. If it is polled again
/// after that, it is ready. Dropping a reservation that was not claimed gives up its position. The
/// permits of a claimed reservation are used, unless it is settled.
pub trait Reserved: Future<Output = Result<Grant, AllRefusal>> + Send + Unpin + 'static {
    /// Returns how long until the reservation is due, if nothing changes; [`Duration::MAX`] means
    /// never.
    fn due_in(&self) -> Duration;

    /// Blocks the calling thread until the reservation is due, and claims it, like awaiting it. By
    /// default it polls the future, and its wakers unpark the thread.
    ///
    /// # Errors
    ///
    /// Like awaiting it, and [`Refusal::Cancelled`](crate::Refusal::Cancelled) if the call runs
    /// under a [`CancelToken`](crate::CancelToken) that is cancelled. Then the reservation keeps
    /// its position.
    fn blocking_claim(&mut self) -> Result<Grant, AllRefusal> {
        block_on(Pin::new(self))?
    }

    /// Returns what the grant left in each limit, once the reservation is claimed, if the request
    /// [asked](AllRequest::with_left) for it.
    fn left(&self) -> Option<AllStatus> {
        None
    }

    /// Returns whether the reservation was decided without the limiter's store, because the store
    /// did not reply.
    fn is_degraded(&self) -> bool {
        false
    }

    /// Settles the reservation with the number of permits that were really used, claimed or not. A
    /// limit that `used` does not name has used what was reserved.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with an unknown name.
    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal>;

    /// Takes back the whole reservation, as far as possible. By default this settles it with 0 for
    /// each limit.
    fn settle_unused(self: Box<Self>) {
        // The request names no limit, so no name is unknown.
        let _ = self.settle(&AllRequest::from(0));
    }
}

impl AnyLimiter {
    /// Creates a handle to this limiter.
    #[must_use]
    pub fn new(limiter: impl Limiter) -> AnyLimiter {
        AnyLimiter(Arc::new(limiter))
    }

    /// Takes one permit of each limit now, or refuses. A limiter over a network blocks the thread
    /// until the store has replied; in a task, await [`acquire_now`](AnyLimiter::acquire_now).
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    pub fn try_acquire(&self) -> Result<AllPermits, AllRefusal> {
        self.0.try_acquire(&AllRequest::new())
    }

    /// Takes all permits of the request now, or refuses. It blocks like
    /// [`try_acquire`](AnyLimiter::try_acquire).
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`]; then the request took nothing.
    pub fn try_acquire_many<'a>(&self, request: impl Into<AllRequest<'a>>) -> Result<AllPermits, AllRefusal> {
        self.0.try_acquire(&request.into())
    }

    /// Takes all permits of the request now, or refuses, like
    /// [`try_acquire_many`](AnyLimiter::try_acquire_many). With a limiter over a network, the
    /// future waits for the store's reply and does not block the thread. With all other limiters
    /// the future is ready at once, and the request is decided by this call, not by the first poll.
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

    /// Waits for one permit of each limit.
    ///
    /// # Errors
    ///
    /// Like the limiter behind the handle, for example [`AllOf::acquire`](crate::AllOf::acquire).
    pub fn acquire(&self) -> AcquireAny {
        self.0.acquire(&AllRequest::new())
    }

    /// Waits for the permits of the request.
    ///
    /// # Errors
    ///
    /// Like the limiter behind the handle, for example
    /// [`AllOf::acquire_many`](crate::AllOf::acquire_many).
    pub fn acquire_many<'a>(&self, request: impl Into<AllRequest<'a>>) -> AcquireAny {
        self.0.acquire(&request.into())
    }

    /// Waits for one permit of each limit if that takes no longer than `within`; else refuses at
    /// once.
    ///
    /// # Errors
    ///
    /// Like the limiter behind the handle, for example
    /// [`AllOf::acquire_within`](crate::AllOf::acquire_within).
    pub fn acquire_within(&self, within: Duration) -> AcquireAny {
        self.0.acquire(&AllRequest::new().within(within))
    }

    /// Blocks the calling thread until it has one permit of each limit. Do not call it from a task.
    ///
    /// # Errors
    ///
    /// Like [`acquire`](AnyLimiter::acquire).
    pub fn blocking_acquire(&self) -> Result<AllPermits, AllRefusal> {
        self.0.blocking_acquire(&AllRequest::new())
    }

    /// Blocks the calling thread until it has the permits of the request. Do not call it from a
    /// task.
    ///
    /// # Errors
    ///
    /// Like [`acquire_many`](AnyLimiter::acquire_many).
    pub fn blocking_acquire_many<'a>(
        &self,
        request: impl Into<AllRequest<'a>>,
    ) -> Result<AllPermits, AllRefusal> {
        self.0.blocking_acquire(&request.into())
    }

    /// Takes a position in the queue now, for a cost that is known only later, or for a wait that
    /// is kept between polls.
    ///
    /// Over a store this call blocks the thread until the store replies; in a task, call
    /// `limiter.non_blocking().reserve(..)`. The reservation may be due only in the next window. A
    /// request that must have its permits now or not at all sets
    /// [`within(Duration::ZERO)`](crate::Request::within).
    ///
    /// Await `&mut` the reservation, and keep it until the work is done. `reserve(..)?.await?`
    /// drops the reservation: permits that are counted while in use go back before the work begins,
    /// and the cost can no longer be settled.
    ///
    /// # Errors
    ///
    /// Like [`acquire_many`](AnyLimiter::acquire_many).
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

    /// Returns a snapshot of the limiter and of each of its members. A single limiter is its own
    /// only member, with the name `limit`. A limiter over a network blocks the thread until the
    /// store has replied; in a task, await [`fetch_status`](AnyLimiter::fetch_status).
    #[must_use]
    pub fn status(&self) -> AllStatus {
        self.0.status()
    }

    /// Returns a snapshot like [`status`](AnyLimiter::status), without blocking the thread: with a
    /// limiter over a network, the future waits for the store's reply. It changes nothing, and can
    /// be dropped at any time.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`] if the store did not reply.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AnyLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tidegate::AllRefusal> {
    /// let policy = TokenBucket::new(Rate::per_second(5), 10);
    /// let limiter =
    ///     AnyLimiter::from(RateLimiter::with_clock(policy, ManualClock::new()));
    /// limiter.try_acquire_many(4)?;
    /// assert_eq!(limiter.fetch_status().await?.members[0].1.available, 6);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn fetch_status(&self) -> Result<AllStatus, AllRefusal> {
        self.0.fetch_status().await
    }

    /// Grants no request for the duration `span` from now, as a server's `Retry-After` asks for.
    /// See [`RateLimiter::pause_for`](crate::RateLimiter::pause_for).
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`] if the limiter is a key for which there is no room. Then nothing is
    /// paused.
    pub fn pause_for(&self, span: Duration) -> Result<(), AllRefusal> {
        self.pause(Pause::lasting(span))
    }

    /// Grants no request until the end of the pause, which also defines the permits that the
    /// limiter has afterwards. See [`RateLimiter::pause`](crate::RateLimiter::pause).
    ///
    /// # Errors
    ///
    /// Like [`pause_for`](AnyLimiter::pause_for).
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

    /// Ends a pause. Returns whether the limiter was paused.
    pub fn resume(&self) -> bool {
        self.0.resume()
    }

    /// Charges permits, even if fewer are available: for a call that was made without a request, or
    /// that a server counted. See [`AllOf::debit`](crate::AllOf::debit). A single limiter is its
    /// own only member, with the name `limit`.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with an unknown name, or another refusal if the limiter
    /// is a key for which there is no room. Then nothing is charged.
    pub fn debit<'a>(&self, costs: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        self.0.debit(&costs.into())
    }

    /// Gives back permits that were acquired and not used: pass the costs that the call got. See
    /// [`AllOf::refund`](crate::AllOf::refund). A single limiter is its own only member, with the
    /// name `limit`. Permits in use go back when they are dropped, so a counting limit gives
    /// nothing back here. A limiter over a store sends a message to the store. Do not give back
    /// permits that [are degraded](AllPermits::is_degraded): the store did not grant them.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with an unknown name. Then nothing is given back.
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
    /// returns how many it took. Call it when a server reports how many permits of a limit are
    /// left. See [`RateLimiter::keep_at_most`](crate::RateLimiter::keep_at_most). A single limiter
    /// is its own only member, with the name `limit`.
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for an unknown name, or another refusal if the limiter is a key for
    /// which there is no room.
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

    /// Closes the limiter permanently, and refuses all waiters. Returns whether the limiter was
    /// open. See [`RateLimiter::close`](crate::RateLimiter::close). The members of an
    /// [`AllOf`](crate::AllOf) stay open.
    ///
    /// # Errors
    ///
    /// An [`AllRefusal`] if the limiter is a key for which there is no room. Then nothing is
    /// closed.
    pub fn close(&self) -> Result<bool, AllRefusal> {
        self.0.close()
    }

    /// Returns whether the limiter was [closed](AnyLimiter::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Returns a handle to the same permits for code that must not block its thread. Adapters of
    /// tasks use it. If the limiter works over a network, these calls of the handle return without
    /// the store's reply:
    ///
    /// | call | returns |
    /// |---|---|
    /// | [`reserve`](AnyLimiter::reserve) | a reservation that may not be decided yet: then it is due in zero, and a refusal is returned when the reservation is awaited |
    /// | [`status`](AnyLimiter::status) | the names, limits and rates, and that nothing is available: await [`fetch_status`](AnyLimiter::fetch_status) |
    /// | [`keep_at_most`](AnyLimiter::keep_at_most) | 0, and the request is sent to the store |
    /// | [`resume`](AnyLimiter::resume) | `false`, and the request is sent to the store |
    /// | [`try_acquire`](AnyLimiter::try_acquire), [`blocking_acquire`](AnyLimiter::blocking_acquire) | [`Refusal::Unavailable`](crate::Refusal::Unavailable) if the store would have to be asked: await [`acquire_now`](AnyLimiter::acquire_now) or [`acquire`](AnyLimiter::acquire) |
    ///
    /// All other calls behave as on this handle. So do all calls if the limiter is in this process.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AnyLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let policy = TokenBucket::new(Rate::per_minute(60), 60);
    /// let limiter =
    ///     AnyLimiter::from(RateLimiter::with_clock(policy, ManualClock::new()));
    /// let reservation = limiter.non_blocking().reserve(20)?;
    /// assert!(reservation.due_in().is_zero());
    /// reservation.settle(5)?;
    /// assert_eq!(limiter.status().members[0].1.available, 55);
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    #[must_use]
    pub fn non_blocking(&self) -> AnyLimiter {
        self.0.non_blocking().unwrap_or_else(|| self.clone())
    }

    /// Returns whether calls of this handle may block the thread while they wait for a reply over a
    /// network. If so, tasks should use the handle that [`non_blocking`](AnyLimiter::non_blocking)
    /// returns.
    #[must_use]
    pub fn may_block(&self) -> bool {
        self.0.may_block()
    }
}

impl<L: Limiter> From<L> for AnyLimiter {
    fn from(limiter: L) -> AnyLimiter {
        AnyLimiter::new(limiter)
    }
}

impl fmt::Debug for AnyLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyLimiter").field(&self.0).finish()
    }
}

/// The future of [`AnyLimiter::acquire`] and its variants: permits, or a refusal.
///
/// Lazy: it joins the queue when it is first polled. It is `Unpin` and `Send`, and borrows nothing.
///
/// # Cancel safety
///
/// Dropping it at any time leaves the queue. No permit is lost.
///
/// # Panics
///
/// Panics if it is polled again after it was ready.
#[must_use = "futures do nothing unless awaited: no permits were acquired"]
pub struct AcquireAny(Answer);

/// The future of [`Limiter::fetch_status`]: a snapshot, or a refusal if the store did not reply.
pub type FetchStatus = Pin<Box<dyn Future<Output = Result<AllStatus, AllRefusal>> + Send>>;

type BoxedWait = Pin<Box<dyn Future<Output = Result<AllPermits, AllRefusal>> + Send>>;

enum Answer {
    Later(BoxedWait),
    /// `None` once the decision was returned.
    Now(Option<Result<AllPermits, AllRefusal>>),
}

impl AcquireAny {
    /// Creates the future from a wait. The wait must join its queue when it is first polled, and
    /// leave the queue when it is dropped.
    pub fn new(wait: impl Future<Output = Result<AllPermits, AllRefusal>> + Send + 'static) -> AcquireAny {
        AcquireAny(Answer::Later(Box::pin(wait)))
    }

    /// Creates a future that is ready with a decision. It allocates nothing.
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

/// A position in the queue of an [`AnyLimiter`], made by [`AnyLimiter::reserve`].
///
/// It keeps its position whether or not it is polled. Await `&mut reservation` to claim it and keep
/// it; a plain thread calls [`blocking_claim`](AnyReservation::blocking_claim). See
/// [`Reservation`](crate::Reservation).
///
/// # Cancel safety
///
/// Dropping it before it was claimed gives up its position. Permits that are counted while in use
/// are given back when it is dropped.
#[must_use = "dropping a reservation cancels it: its permits go to the next in line"]
pub struct AnyReservation(Box<dyn Reserved>);

impl AnyReservation {
    /// Boxes a reservation of any kind.
    pub fn new(reservation: impl Reserved) -> AnyReservation {
        AnyReservation(Box::new(reservation))
    }

    /// Creates a reservation of no permits, for an estimate of 0. It is due at once. The permits
    /// with which it is [settled](AnyReservation::settle) are charged to this limiter.
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
    /// let reservation = AnyReservation::empty(limiter.clone());
    /// assert!(reservation.due_in().is_zero());
    /// reservation.settle(7)?;
    /// assert_eq!(limiter.status().members[0].1.available, 53);
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub fn empty(limiter: AnyLimiter) -> AnyReservation {
        AnyReservation::new(NoPermits(limiter))
    }

    /// Returns how long until the reservation is due, if nothing changes; zero if it is due or was
    /// claimed. [`Duration::MAX`] means never.
    #[must_use]
    pub fn due_in(&self) -> Duration {
        self.0.due_in()
    }

    /// Blocks the calling thread until the reservation is due, and claims it. The [`Grant`] is the
    /// same as that of awaiting it.
    ///
    /// Do not call it from a task, because it blocks the executor's thread.
    ///
    /// # Errors
    ///
    /// Like awaiting it, and [`Refusal::Cancelled`](crate::Refusal::Cancelled) if the call runs
    /// under a [`CancelToken`](crate::CancelToken) that is cancelled. Then the reservation keeps
    /// its position. A reservation made by a handle [for tasks](AnyLimiter::non_blocking) blocks no
    /// thread for a store: it is refused.
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

    /// Returns whether the reservation was decided without the limiter's store; see
    /// [`AllPermits::is_degraded`].
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.0.is_degraded()
    }

    /// Settles the reservation with the number of permits that were really used: a number, or costs
    /// by name. A limit that is not named has used what was reserved. See
    /// [`Reservation::settle`](crate::Reservation::settle) and
    /// [`AllReservation::settle`](crate::AllReservation::settle).
    ///
    /// # Errors
    ///
    /// [`AllRefusal::NoMember`] for a cost with an unknown name. Then a claimed reservation has
    /// used what was reserved. A reservation that was not claimed gives up its position, and
    /// charges nothing.
    pub fn settle<'a>(self, used: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        self.0.settle(&used.into())
    }

    /// Takes back the whole reservation, as far as possible: for a call that failed or was not
    /// made. Like [`settle`](AnyReservation::settle) with 0 for each limit, also for a limit with a
    /// [default cost](crate::AllOf::default_cost).
    pub fn settle_unused(self) {
        self.0.settle_unused();
    }
}

/// Waits until the reservation is due and claims it.
///
/// # Errors
///
/// Like [`AnyLimiter::acquire_many`].
impl Future for AnyReservation {
    type Output = Result<Grant, AllRefusal>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut *self.get_mut().0).poll(context)
    }
}

/// A reservation for a request that asks for no permits.
struct NoPermits(AnyLimiter);

impl Future for NoPermits {
    type Output = Result<Grant, AllRefusal>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(Grant::new(0, Nanos::ZERO)))
    }
}

impl Reserved for NoPermits {
    fn due_in(&self) -> Duration {
        Duration::ZERO
    }

    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        // In a limit that is not named, nothing was reserved.
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
