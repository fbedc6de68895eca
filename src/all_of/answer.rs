//! What an [`AllOf`](crate::AllOf) answers: permits of all members, or a refusal.

use std::fmt;
use std::time::Duration;

use crate::all_of::all::Permits;
use crate::all_of::{AllStatus, Name};
use crate::counting::CountingPermit;
use crate::error::Refusal;
use crate::grant::Grant;
use crate::time::Nanos;

/// Permits of all members, given by an [`AllOf`](crate::AllOf).
///
/// Permits of a rate are used up. Permits of a [`CountingLimit`](crate::CountingLimit) are given
/// back when this is dropped.
#[must_use = "hold it until the work is done, as `let _permits`: dropping it gives back the permits that are counted while in use"]
pub struct AllPermits {
    pub(super) permits: Permits,
    pub(super) n: u32,
    pub(super) waited: Nanos,
    /// In a box, since few grants have any. Dropped after the permits.
    pub(super) more: Option<Box<More>>,
}

/// What some grants have beside permits.
#[derive(Default)]
pub(super) struct More {
    /// What the grant left.
    pub(super) left: Option<AllStatus>,
    /// What another kind of limiter holds while the permits are in use.
    pub(super) held: Option<Box<dyn Send + Sync>>,
    /// Whether the request was decided without the store of the limiter.
    pub(super) degraded: bool,
}

impl AllPermits {
    /// Permits that a limiter of another kind gave. Dropping `held` gives back the permits that are
    /// counted while in use. For an own [`Limiter`](crate::Limiter).
    pub fn with_guard(grant: Grant, held: impl Send + Sync + 'static) -> AllPermits {
        let more = More { held: Some(Box::new(held)), ..More::default() };
        AllPermits { more: Some(Box::new(more)), ..AllPermits::from(grant) }
    }

    /// Sets what the grant left in each limit. For an own [`Limiter`](crate::Limiter).
    pub fn with_left(mut self, left: AllStatus) -> AllPermits {
        self.more.get_or_insert_default().left = Some(left);
        self
    }

    /// Marks the permits as granted without the store that was to decide. For an own
    /// [`Limiter`](crate::Limiter) over a network.
    pub fn as_degraded(mut self) -> AllPermits {
        self.more.get_or_insert_default().degraded = true;
        self
    }

    /// Returns whether the request was decided without the store of the limiter, which did not
    /// answer: the permits are of the share of this process, or the request passed without permits.
    /// `false` for every limiter in one process.
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
    /// [`AllRequest::with_left`](crate::AllRequest::with_left). A request that passed without
    /// permits is told nothing.
    ///
    /// The numbers of a member with a rate belong to this grant, whatever other threads do
    /// meanwhile. The numbers of a [`CountingLimit`](crate::CountingLimit), and of a member that
    /// was not asked, are those of the time of the answer, and so is the number of requests that
    /// wait.
    #[must_use]
    pub fn left(&self) -> Option<&AllStatus> {
        self.more.as_ref()?.left.as_ref()
    }

    /// How many permits of each rate limiter were taken that the request does not name: as many as
    /// it asked for, or as there were if it asked for [up to](crate::Request::up_to) a number, or 0
    /// if it passed without permits.
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

    /// The time waited for them, zero if they were there.
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

/// Why an [`AllOf`](crate::AllOf) gave no permits. Nothing was taken from any member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AllRefusal {
    /// A member refused.
    Member {
        /// The name of the member that is ready last, or refuses for good.
        name: Name,
        /// Why. Its `retry_after` counts for all members: without other requests, an equal call
        /// succeeds that much later and not before.
        refusal: Refusal,
        /// What else is told: see [`left`](AllRefusal::left) and
        /// [`is_degraded`](AllRefusal::is_degraded).
        details: Option<Box<RefusalDetails>>,
    },
    /// The composite itself refused: its queue is full, it is paused or closed, or the call was
    /// cancelled. Or there is no limiter to ask, when it is made from the refusal of
    /// [`KeyedRateLimiter::limiter`](https://docs.rs/tidegate/latest/tidegate/struct.KeyedRateLimiter.html#method.limiter)
    /// by `?`.
    Queue {
        /// Why.
        refusal: Refusal,
        /// What else is told: see [`left`](AllRefusal::left) and
        /// [`is_degraded`](AllRefusal::is_degraded).
        details: Option<Box<RefusalDetails>>,
    },
    /// The request names a member that there is not. Waiting does not help.
    NoMember {
        /// The name that it gives.
        name: Box<str>,
        /// The names of the members, in the order in which they were added.
        members: Box<[Name]>,
    },
}

/// What some refusals tell beside the reason. In a box, so that all others stay small.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RefusalDetails {
    left: Option<AllStatus>,
    /// Whether the request was decided without the store of the limiter.
    degraded: bool,
}

impl AllRefusal {
    /// The refusal by the limit with this name. For an own [`Limiter`](crate::Limiter); a refusal
    /// by all limits together is made from a [`Refusal`].
    pub fn from_member(name: impl Into<Name>, refusal: Refusal) -> AllRefusal {
        AllRefusal::Member { name: name.into(), refusal, details: None }
    }

    /// Sets the state of each limit. A refusal for a name that there is not tells none.
    #[must_use]
    pub fn with_left(mut self, status: AllStatus) -> AllRefusal {
        self.change_details(|details| details.left = Some(status));
        self
    }

    /// Returns the state of each limit, if the request asked for it by
    /// [`AllRequest::with_left`](crate::AllRequest::with_left): the limit, the permits that are
    /// there, when the next one comes, and when the limit is full.
    ///
    /// The state does not contradict the refusal, whatever other threads do meanwhile: of the
    /// member that refused it tells fewer permits than the request asked for.
    #[must_use]
    pub fn left(&self) -> Option<&AllStatus> {
        self.details()?.left.as_ref()
    }

    /// Marks the refusal as made without the store that was to decide. For an own
    /// [`Limiter`](crate::Limiter) over a network. A refusal for a name that there is not needs no
    /// store.
    #[must_use]
    pub fn as_degraded(mut self) -> AllRefusal {
        self.change_details(|details| details.degraded = true);
        self
    }

    /// Returns whether the request was decided without the store of the limiter, which did not
    /// answer: by the share of this process, or as [`Refusal::Unavailable`]. `false` for every
    /// limiter in one process.
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

    /// This refusal of a request that did not wait, and asked for so many permits of the member
    /// with a name: the state is that which it met.
    pub(crate) fn at_once(mut self, asked: impl Fn(&str) -> u32) -> AllRefusal {
        if let AllRefusal::Member {
            name,
            refusal: Refusal::Limited { retry_after } | Refusal::Paused { retry_after },
            details: Some(details),
        } = &mut self
            && let Some(left) = &mut details.left
        {
            left.met(name, asked(name), retry_after.as_duration());
        }
        self
    }

    /// How long to wait before an equal call can succeed; `None` if it never can, or if the time is
    /// not known.
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

    /// The status code by which an HTTP server tells this refusal to a client, as
    /// [`Refusal::status_code`]; 500 if the request named a member that is not there.
    #[must_use]
    pub fn status_code(&self) -> u16 {
        self.refusal().map_or(500, Refusal::status_code)
    }

    /// The name of the member that is ready last, or refuses for good; `None` if it was no member.
    #[must_use]
    pub fn member(&self) -> Option<&str> {
        match self {
            AllRefusal::Member { name, .. } => Some(name),
            AllRefusal::Queue { .. } | AllRefusal::NoMember { .. } => None,
        }
    }

    /// The refusal without the name.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            AllRefusal::Member { refusal, .. } | AllRefusal::Queue { refusal, .. } => Some(*refusal),
            AllRefusal::NoMember { .. } => None,
        }
    }

    /// Whether an equal request may be granted later; see [`Refusal::may_retry`].
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
