//! [`AllRequest`]: everything that a call of an [`AllOf`](crate::AllOf) can ask for.

use std::time::{Duration, Instant};

use crate::request::Request;

/// The number of costs kept without allocating.
const FEW: usize = 4;

/// What a call of an [`AllOf`](crate::AllOf) asks for: the cost at each member by its name, the
/// priority, and the maximum wait.
///
/// A member that is not named is asked for one permit, or for its [default
/// cost](crate::AllOf::default_cost). So a call of an API that counts requests and tokens names
/// only the tokens. A list of costs is enough if the request sets nothing else:
/// `acquire_many([("tokens", 850)])` is `acquire_many(AllRequest::new().cost("tokens", 850))`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{
///     AllOf, AllRefusal, AllRequest, Rate, RateLimiter, SmoothBursty, TokioClock,
/// };
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), AllRefusal> {
/// let clock = TokioClock::new();
/// let policy = SmoothBursty::new(Rate::per_second(2));
/// let requests = RateLimiter::with_clock(policy, clock);
/// let policy = SmoothBursty::new(Rate::per_second(1000));
/// let tokens = RateLimiter::with_clock(policy, clock);
/// let api = AllOf::new("requests", &requests).with("tokens", &tokens);
/// let call = AllRequest::new().cost("tokens", 850);
/// let _permits =
///     api.acquire_many(call.priority(1).within(Duration::from_secs(1))).await?;
///
/// let refusal = api.try_acquire_many([("tonkes", 850)]).unwrap_err();
/// let expected =
///     r#""tonkes" is not a member: the members are "requests", "tokens""#;
/// assert_eq!(refusal.to_string(), expected);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing unless it is given to a limiter"]
pub struct AllRequest<'a> {
    /// The first costs that were named, which need no allocation; `len` of them are in use.
    few: [(&'a str, u32); FEW],
    len: usize,
    more: Vec<(&'a str, u32)>,
    /// The cost of members that are not named, if the request gives one.
    others: Option<u32>,
    /// Whether a member with a default cost costs nothing if it is not named.
    pub(crate) without_defaults: bool,
    /// Whether a counting limit is asked for nothing if it is not named.
    pub(crate) without_counting: bool,
    /// All other settings of the request.
    pub(crate) request: Request,
}

impl<'a> AllRequest<'a> {
    /// Creates a request for one permit of each member, at priority 0, with no limit on the wait.
    pub const fn new() -> AllRequest<'a> {
        AllRequest {
            few: [("", 0); FEW],
            len: 0,
            more: Vec::new(),
            others: None,
            without_defaults: false,
            without_counting: false,
            request: Request::permits(1),
        }
    }

    /// Asks for `n` permits of the member with this name. With 0, nothing is taken from the member.
    /// If a member is named twice, the last number counts.
    ///
    /// The call that receives this request refuses an unknown name with
    /// [`AllRefusal::NoMember`](crate::AllRefusal::NoMember). Up to four costs are kept without
    /// allocating.
    pub fn cost(mut self, name: &'a str, n: u32) -> AllRequest<'a> {
        match self.few.get_mut(self.len) {
            Some(cost) => {
                *cost = (name, n);
                self.len += 1;
            }
            None => self.more.push((name, n)),
        }
        self
    }

    /// Asks for `n` permits of each rate limiter that no [`cost`](AllRequest::cost) names: for
    /// example, bytes that count at a connection, at its user and at all users. A
    /// [`CountingLimit`](crate::CountingLimit) that is not named is still asked for one permit, and
    /// a member with a [default cost](crate::AllOf::default_cost) for that cost.
    pub const fn cost_of_others(mut self, n: u32) -> AllRequest<'a> {
        self.others = Some(n);
        self
    }

    /// Returns the costs by name, in the order in which they were given. If a name appears twice,
    /// the last number counts.
    pub fn costs(&self) -> impl DoubleEndedIterator<Item = (&'a str, u32)> {
        self.few[..self.len].iter().chain(&self.more).copied()
    }

    /// Returns the cost that the request gives for this name; `None` if the request does not name
    /// it.
    #[must_use]
    pub fn cost_of(&self, name: &str) -> Option<u32> {
        self.costs().rev().find(|(of, _)| *of == name).map(|(_, n)| n)
    }

    /// Returns the cost at each rate limiter that is not named, if the request gives one: by
    /// [`cost_of_others`](AllRequest::cost_of_others), a number or a [`Request`]. Without it the
    /// cost is 1; when a reservation is settled, it is the number that was reserved.
    #[must_use]
    pub const fn others(&self) -> Option<u32> {
        self.others
    }

    /// Returns what the request asks of each member that is not named, and of a limiter without
    /// members: the number of permits, the priority, the maximum wait, and whether it is exempt.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllRequest, Request};
    ///
    /// let call = AllRequest::new().cost("tokens", 850).priority(1);
    /// assert_eq!(call.cost_of("tokens"), Some(850));
    /// assert_eq!(call.to_request(), Request::permits(1).priority(1));
    /// assert_eq!(AllRequest::from(Request::up_to(9)).to_request().most, 9);
    /// ```
    pub fn to_request(&self) -> Request {
        // So a request for no permits does not become a request for up to one.
        self.request.at_least(self.others.unwrap_or(1))
    }

    /// Sets the priority of the request: a request of higher priority is served sooner. 0 unless
    /// set.
    ///
    /// The priority applies in the queue of the `AllOf` and in the queues of its members, and to
    /// the permits that a member [keeps](crate::RateLimiter::keep_for_priority) for important
    /// requests. See [`Request::priority`].
    pub const fn priority(mut self, priority: i8) -> AllRequest<'a> {
        self.request = self.request.priority(priority);
        self
    }

    /// Sets the maximum wait. The request is refused at once if its permits are due later. See
    /// [`Request::within`].
    ///
    /// The time at which a [`CountingLimit`](crate::CountingLimit) will have a free permit is
    /// unknown. A request that waits only for such a permit is refused when its time is over.
    pub const fn within(mut self, within: Duration) -> AllRequest<'a> {
        self.request = self.request.within(within);
        self
    }

    /// Sets the latest time at which the request may be served. See [`Request::deadline`].
    pub fn deadline(mut self, deadline: Instant) -> AllRequest<'a> {
        self.request = self.request.deadline(deadline);
        self
    }

    /// Asks for the state of each limit, as the decision itself left or found it: a grant returns
    /// it from [`AllPermits::left`](crate::AllPermits::left), a refusal from
    /// [`AllRefusal::left`](crate::AllRefusal::left).
    ///
    /// A request that does not ask for this pays nothing for it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{AllOf, AllRequest, ManualClock, Rate, RateLimiter, TokenBucket};
    ///
    /// let clock = ManualClock::new();
    /// let policy = TokenBucket::new(Rate::per_second(10), 10);
    /// let requests = RateLimiter::with_clock(policy, clock.clone());
    /// let policy = TokenBucket::new(Rate::per_minute(6000), 1000);
    /// let tokens = RateLimiter::with_clock(policy, clock);
    /// let api = AllOf::new("requests", &requests).with("tokens", &tokens);
    ///
    /// let call = AllRequest::new().cost("tokens", 850).with_left();
    /// let permits = api.try_acquire_many(call.clone())?;
    /// let left = permits.left().expect("it was asked for");
    /// let available: Vec<_> =
    ///     left.members.iter().map(|(_, member)| member.available).collect();
    /// assert_eq!(available, [9, 150]);
    ///
    /// let refusal = api.try_acquire_many(call).unwrap_err();
    /// let tokens = refusal
    ///     .left()
    ///     .and_then(|left| left.member("tokens"))
    ///     .expect("it was asked for");
    /// assert_eq!((tokens.limit, tokens.available), (1000, 150));
    /// assert_eq!(tokens.full_in, Duration::from_millis(8500));
    /// # Ok::<(), tidegate::AllRefusal>(())
    /// ```
    pub const fn with_left(mut self) -> AllRequest<'a> {
        self.request = self.request.with_left();
        self
    }

    /// Exempts the request: it passes at once and takes nothing. See [`Request::exempt`].
    pub const fn exempt(mut self) -> AllRequest<'a> {
        self.request = self.request.exempt();
        self
    }
}

impl Default for AllRequest<'_> {
    fn default() -> Self {
        AllRequest::new()
    }
}

/// Asks for this many permits of each rate limiter.
impl From<u32> for AllRequest<'_> {
    fn from(n: u32) -> Self {
        AllRequest::new().cost_of_others(n)
    }
}

/// Asks for as many permits of each rate limiter as the request says, with its priority, its
/// maximum wait and its exemption.
///
/// A request for [up to](Request::up_to) a number takes an equal number of permits from each rate
/// limiter that no cost names: as many as all of them have.
/// [`AllPermits::permits`](crate::AllPermits::permits) returns this number.
impl From<Request> for AllRequest<'_> {
    fn from(request: Request) -> Self {
        AllRequest { request, ..AllRequest::from(request.permits) }
    }
}

/// Asks for these numbers of permits of the members with these names, and for one permit of each
/// other member.
impl<'a, const N: usize> From<[(&'a str, u32); N]> for AllRequest<'a> {
    fn from(costs: [(&'a str, u32); N]) -> AllRequest<'a> {
        costs.into_iter().collect()
    }
}

/// Asks for these numbers of permits of the members with these names, and for one permit of each
/// other member.
impl<'a> From<&[(&'a str, u32)]> for AllRequest<'a> {
    fn from(costs: &[(&'a str, u32)]) -> AllRequest<'a> {
        costs.iter().copied().collect()
    }
}

impl<'a> FromIterator<(&'a str, u32)> for AllRequest<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, u32)>>(costs: I) -> AllRequest<'a> {
        costs.into_iter().fold(AllRequest::new(), |request, (name, n)| request.cost(name, n))
    }
}
