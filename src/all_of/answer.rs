//! The result of a call of an [`AllOf`](crate::AllOf): permits of all members, or a refusal.

use std::fmt;
use std::time::Duration;

use crate::all_of::all::Permits;
use crate::all_of::{AllStatus, Name};
use crate::counting::CountingPermit;
use crate::error::Refusal;
use crate::grant::Grant;
use crate::time::Nanos;

/// Permits of all members, granted by an [`AllOf`](crate::AllOf).
///
/// Permits of a rate are used up. Dropping this value gives back its permits of a
/// [`CountingLimit`](crate::CountingLimit).
#[must_use = "hold it until the work is done, as `let _permits`: dropping it gives back the permits that are counted while in use"]
pub struct AllPermits {
    pub(super) permits: Permits,
    pub(super) n: u32,
    pub(super) waited: Nanos,
    /// Boxed, because few grants have any. Dropped after the permits.
    pub(super) more: Option<Box<More>>,
}

/// What some grants carry besides permits.
#[derive(Default)]
pub(super) struct More {
    /// The permits that the grant left in the members.
    pub(super) left: Option<AllStatus>,
    /// What another kind of limiter holds while the permits are in use.
    pub(super) held: Option<Box<dyn Send + Sync>>,
    /// Whether the request was decided without the store of the limiter.
    pub(super) degraded: bool,
    /// The members in shadow mode that let the request pass without permits.
    pub(super) passed: Vec<Name>,
}

impl AllPermits {
    /// Creates permits with a guard. Dropping `held` gives back the permits that are counted while
    /// in use. For implementors of [`Limiter`](crate::Limiter).
    pub fn with_guard(grant: Grant, held: impl Send + Sync + 'static) -> AllPermits {
        let more = More { held: Some(Box::new(held)), ..More::default() };
        AllPermits { more: Some(Box::new(more)), ..AllPermits::from(grant) }
    }

    /// Sets what the grant left in each limit. For implementors of [`Limiter`](crate::Limiter).
    pub fn with_left(mut self, left: AllStatus) -> AllPermits {
        self.more.get_or_insert_default().left = Some(left);
        self
    }

    /// Marks the permits as granted without the store that should have decided. For implementors of
    /// [`Limiter`](crate::Limiter) over a network.
    pub fn as_degraded(mut self) -> AllPermits {
        self.more.get_or_insert_default().degraded = true;
        self
    }

    /// Returns whether the request was decided without the store of the limiter, because the store
    /// did not reply: the permits come from the share of this process, or the request passed
    /// without permits. `false` for every limiter in one process.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{AllPermits, Grant};
    ///
    /// let permits = AllPermits::from(Grant::new(1, Duration::ZERO));
    /// assert!(!permits.is_degraded() && permits.as_degraded().is_degraded());
    /// ```
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.more.as_ref().is_some_and(|more| more.degraded)
    }

    /// Returns what the grant left in each limit, if the request asked for it by
    /// [`AllRequest::with_left`](crate::AllRequest::with_left). Returns `None` for a request that
    /// passed without permits.
    ///
    /// The numbers of a rate limiter are exactly those that this grant left, whatever other threads
    /// do meanwhile, except as [`Left`](crate::Left) says. The numbers of a
    /// [`CountingLimit`](crate::CountingLimit), of a member that was not asked, and of the waiting
    /// requests are those at the time of the decision.
    #[must_use]
    pub fn left(&self) -> Option<&AllStatus> {
        self.more.as_ref()?.left.as_ref()
    }

    /// Returns the number of permits taken from each rate limiter that the request does not name.
    /// This is the number asked for; or, for a request for [up to](crate::Request::up_to) a number,
    /// as many as were available; or 0 if the request passed without permits.
    ///
    /// A limiter of one limit that is no [`AllOf`](crate::AllOf) reports the permits of that limit,
    /// even if the request names it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllOf, ManualClock, Rate, RateLimiter, Request, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let bucket = |burst| TokenBucket::new(Rate::per_second(1_000), burst);
    /// let connection = RateLimiter::with_clock(bucket(700), clock.clone());
    /// let user = RateLimiter::with_clock(bucket(1_500), clock);
    /// let bytes = AllOf::new("connection", &connection).with("user", &user);
    /// assert_eq!(bytes.try_acquire_many(Request::up_to(4_096))?.permits(), 700);
    /// assert_eq!(user.status().available, 800);
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.n
    }

    /// Returns `false` if the member with this name is in [shadow
    /// mode](crate::RateLimiter::set_shadow) and let the request pass without permits. Such a
    /// member has nothing to get back in a [refund](crate::AllOf::refund).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllOf, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let bucket = |burst| TokenBucket::new(Rate::per_second(1), burst);
    /// let requests = RateLimiter::with_clock(bucket(10), clock.clone());
    /// let tokens = RateLimiter::with_clock(bucket(100), clock);
    /// tokens.set_shadow(true);
    /// let both = AllOf::new("requests", &requests).with("tokens", &tokens);
    /// let permits = both.try_acquire_many([("tokens", 500)])?;
    /// assert!(permits.took_from("requests") && !permits.took_from("tokens"));
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    #[must_use]
    pub fn took_from(&self, member: &str) -> bool {
        self.more.as_ref().is_none_or(|more| more.passed.iter().all(|name| *name != *member))
    }

    /// Sets the members in shadow mode that let the request pass without permits.
    pub(super) fn with_passed(mut self, passed: Vec<Name>) -> AllPermits {
        if !passed.is_empty() {
            self.more.get_or_insert_default().passed = passed;
        }
        self
    }

    /// Returns the time waited for the permits; zero if they were available at once.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited.as_duration()
    }
}

impl From<Grant> for AllPermits {
    fn from(grant: Grant) -> AllPermits {
        let (n, waited) = (grant.permits(), Nanos::from_duration(grant.waited()));
        AllPermits { permits: Permits::default(), n, waited, more: None }
    }
}

impl fmt::Debug for AllPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted: u32 = self.permits.iter().map(CountingPermit::permits).sum();
        f.debug_struct("AllPermits")
            .field("waited", &self.waited())
            .field("counted", &counted)
            .field("left", &self.left())
            .field("holds", &self.more.as_ref().is_some_and(|more| more.held.is_some()))
            .field("degraded", &self.is_degraded())
            .finish()
    }
}

/// The reason why an [`AllOf`](crate::AllOf) granted no permits. Nothing was taken from any member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AllRefusal {
    /// A member refused.
    Member {
        /// The name of the member that is ready last, or refuses permanently.
        name: Name,
        /// The refusal. Its `retry_after` applies to all members: if no other request arrives, an
        /// equal call succeeds after that time and not before.
        refusal: Refusal,
        /// Further details: see [`left`](AllRefusal::left) and
        /// [`is_degraded`](AllRefusal::is_degraded).
        details: Option<Box<RefusalDetails>>,
    },
    /// The `AllOf` itself refused: its queue is full, it is paused or closed, or the call was
    /// cancelled. The operator `?` also converts a refusal of
    /// [`KeyedRateLimiter::limiter`](https://docs.rs/tidegate/latest/tidegate/struct.KeyedRateLimiter.html#method.limiter)
    /// to this variant: then there is no limiter to ask.
    Queue {
        /// The refusal.
        refusal: Refusal,
        /// Further details: see [`left`](AllRefusal::left) and
        /// [`is_degraded`](AllRefusal::is_degraded).
        details: Option<Box<RefusalDetails>>,
    },
    /// The request names a member that does not exist. Waiting does not help.
    NoMember {
        /// The name in the request.
        name: Box<str>,
        /// The names of the members, in the order in which they were added.
        members: Box<[Name]>,
    },
}

/// What some refusals carry besides the reason. Boxed, so that all other refusals stay small.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RefusalDetails {
    left: Option<AllStatus>,
    /// Whether the request was decided without the store of the limiter.
    degraded: bool,
}

impl AllRefusal {
    /// Creates the refusal by the limit with this name. For implementors of
    /// [`Limiter`](crate::Limiter); a refusal by all limits together is converted from a
    /// [`Refusal`].
    pub fn from_member(name: impl Into<Name>, refusal: Refusal) -> AllRefusal {
        AllRefusal::Member { name: name.into(), refusal, details: None }
    }

    /// Sets the state of each limit. Does nothing for [`NoMember`](AllRefusal::NoMember).
    #[must_use]
    pub fn with_left(mut self, status: AllStatus) -> AllRefusal {
        self.change_details(|details| details.left = Some(status));
        self
    }

    /// Returns the state of each limit, if the request asked for it by
    /// [`AllRequest::with_left`](crate::AllRequest::with_left): the limit, the available permits,
    /// when the next permit comes, and when the limit is full.
    ///
    /// The state does not contradict the refusal, whatever other threads do meanwhile: for the
    /// member that refused, it shows fewer permits than the request asked for.
    #[must_use]
    pub fn left(&self) -> Option<&AllStatus> {
        self.details()?.left.as_ref()
    }

    /// Marks the refusal as made without the store that should have decided. For implementors of
    /// [`Limiter`](crate::Limiter) over a network. Does nothing for
    /// [`NoMember`](AllRefusal::NoMember), which needs no store.
    #[must_use]
    pub fn as_degraded(mut self) -> AllRefusal {
        self.change_details(|details| details.degraded = true);
        self
    }

    /// Returns whether the request was decided without the store of the limiter, because the store
    /// did not reply: by the share of this process, or as [`Refusal::Unavailable`]. `false` for
    /// every limiter in one process.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{AllRefusal, Refusal};
    ///
    /// let retry_after = Duration::from_millis(100).into();
    /// let refusal = AllRefusal::from_member("minute", Refusal::Limited { retry_after });
    /// assert!(!refusal.is_degraded() && refusal.as_degraded().is_degraded());
    /// assert!(AllRefusal::from(Refusal::Unavailable { retry_after }).is_degraded());
    /// ```
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        let unavailable = matches!(self.refusal(), Some(Refusal::Unavailable { .. }));
        unavailable || self.details().is_some_and(|details| details.degraded)
    }

    fn details(&self) -> Option<&RefusalDetails> {
        match self {
            AllRefusal::Member { details, .. } | AllRefusal::Queue { details, .. } => details.as_deref(),
            AllRefusal::NoMember { .. } => None,
        }
    }

    fn change_details(&mut self, change: impl FnOnce(&mut RefusalDetails)) {
        if let AllRefusal::Member { details, .. } | AllRefusal::Queue { details, .. } = self {
            change(details.get_or_insert_default());
        }
    }

    /// Sets the state of the member that refused to the state that the request met. The request
    /// asked each member for `asked(name)` permits.
    pub(crate) fn with_state_met(mut self, asked: impl Fn(&str) -> u32, may_wait: bool) -> AllRefusal {
        if let AllRefusal::Member {
            name,
            refusal: Refusal::Limited { retry_after } | Refusal::Paused { retry_after },
            details: Some(details),
        } = &mut self
            && let Some(left) = &mut details.left
        {
            let wait = (!may_wait).then(|| retry_after.as_duration());
            left.set_refused(name, asked(name), wait);
        }
        self
    }

    /// Returns how long to wait before an equal call can succeed; `None` if it never can, or if the
    /// time is unknown.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.refusal().and_then(Refusal::retry_after)
    }

    /// Returns [`retry_after`](AllRefusal::retry_after) in whole seconds, rounded up; see
    /// [`Refusal::retry_after_secs`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{AllRefusal, Refusal};
    ///
    /// let retry_after = Duration::from_millis(1100).into();
    /// let refusal = AllRefusal::from_member("a day", Refusal::Limited { retry_after });
    /// assert_eq!(refusal.retry_after_secs(), Some(2));
    /// ```
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.refusal().and_then(Refusal::retry_after_secs)
    }

    /// Returns the HTTP status code for this refusal, like [`Refusal::status_code`]; 500 if the
    /// request named a member that does not exist.
    #[must_use]
    pub fn status_code(&self) -> u16 {
        self.refusal().map_or(500, Refusal::status_code)
    }

    /// Returns the name of the member that is ready last, or refuses permanently; `None` if no
    /// member refused.
    #[must_use]
    pub fn member(&self) -> Option<&str> {
        match self {
            AllRefusal::Member { name, .. } => Some(name),
            AllRefusal::Queue { .. } | AllRefusal::NoMember { .. } => None,
        }
    }

    /// Returns the refusal without the name; `None` for [`NoMember`](AllRefusal::NoMember).
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            AllRefusal::Member { refusal, .. } | AllRefusal::Queue { refusal, .. } => Some(*refusal),
            AllRefusal::NoMember { .. } => None,
        }
    }

    /// Returns whether an equal request may be granted later; see [`Refusal::may_retry`].
    #[must_use]
    pub fn may_retry(&self) -> bool {
        self.refusal().is_some_and(Refusal::may_retry)
    }
}

impl fmt::Display for AllRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllRefusal::Member { name, refusal, .. } => write!(f, "{name}: {refusal}"),
            AllRefusal::Queue { refusal, .. } => refusal.fmt(f),
            AllRefusal::NoMember { name, members } => {
                write!(f, "{name:?} is not a member: ")?;
                f.write_str(if members.is_empty() { "there are none" } else { "the members are " })?;
                members.iter().enumerate().try_for_each(|(index, member)| {
                    write!(f, "{}{member:?}", if index == 0 { "" } else { ", " })
                })
            }
        }
    }
}

impl std::error::Error for AllRefusal {}

impl From<Refusal> for AllRefusal {
    fn from(refusal: Refusal) -> AllRefusal {
        AllRefusal::Queue { refusal, details: None }
    }
}
