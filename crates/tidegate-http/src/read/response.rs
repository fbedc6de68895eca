//! The limits that a response reports, and the pause that follows from them.

use std::time::{Duration, SystemTime};

use super::limit::ServerLimit;
use crate::When;

/// The limits that a response reports, and whether it is a refusal.
///
/// # Examples
///
/// A response that was read without a [`Reader`](super::Reader), from an API that no reader knows:
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tidegate_http::When;
/// use tidegate_http::read::{ResponseLimits, DEFAULT_MAX_PAUSE, Advice};
///
/// let mut response = ResponseLimits::default();
/// response.refused = true;
/// response.retry_after = Some(When::In(Duration::from_secs(3)));
/// let wait = Duration::from_secs(3);
/// assert_eq!(
///     response.advice(SystemTime::now(), DEFAULT_MAX_PAUSE),
///     Advice::Pause { wait, asked: wait }
/// );
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ResponseLimits {
    /// The limits, in the order of the headers.
    pub limits: Vec<ServerLimit>,
    /// When the client may retry: `Retry-After`, or a vendor's header with this meaning. Of several
    /// headers, the longest time. In a response without a `Date`, an absolute timestamp counts only
    /// if no header has a time from now. In a refusal without such a header, it is the reset of a
    /// group of limits, if the response reports one and no limit that is used up has a reset.
    pub retry_after: Option<When>,
    /// Whether a limit refused the request. Status 429 and 420 are always refusals. Status 400,
    /// 403, 503 and 529, and the gRPC statuses `RESOURCE_EXHAUSTED` and `UNAVAILABLE`, are refusals
    /// if a header says so as well. Status 418 is a refusal if the server sends a time to retry.
    /// Status 409 is a refusal if the server sends a wait and a limit has nothing left. A limit of
    /// calls in flight with nothing left is not a sign of a refusal.
    pub refused: bool,
    /// The value of the first vendor header that marks a refusal. It names the limit that refused
    /// the request, as in `jira-burst-based` or `endpoint-rate`, or only says that a limit refused
    /// it, as in `rejected`.
    pub reason: Option<String>,
    /// The scope of the limit that refused the request, if a header reports it: `user`, `global`,
    /// `shared`, ...
    pub scope: Option<String>,
    /// Whether the limits apply to this client at this server now. The limits may not apply if the
    /// response came from a cache (`Age` above 0) or is a redirect to another address.
    pub trusted: bool,
    /// The minimum time to back off from a refusal without a time.
    pub back_off: Duration,
}

impl Default for ResponseLimits {
    /// Returns the limits of a response that reports nothing.
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            retry_after: None,
            refused: false,
            reason: None,
            scope: None,
            trusted: true,
            back_off: Duration::ZERO,
        }
    }
}

/// The maximum pause that a client should obey unless it is configured otherwise: ten minutes, the
/// threshold that the IETF draft names.
pub const DEFAULT_MAX_PAUSE: Duration = Duration::from_secs(600);

/// What a client should do after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Requests may go on.
    Go,
    /// Send nothing for a while.
    Pause {
        /// How long: as long as the server asks, or the cap if that is shorter.
        wait: Duration,
        /// How long the server asks the client to pause. After a shorter pause, the server may
        /// still refuse.
        asked: Duration,
    },
    /// Send nothing for a while; the server does not report how long. A client usually doubles this
    /// time with each refusal in a row.
    BackOff {
        /// The minimum time; zero if the API names no time.
        at_least: Duration,
    },
}

impl ResponseLimits {
    /// Returns whether a limit for all routes of the server refused the request.
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.refused && self.scope.as_deref().is_some_and(|scope| scope.eq_ignore_ascii_case("global"))
    }

    /// Returns what a client should do. `now` is the time at which the response arrived; it counts
    /// only if the response has no `Date`. No pause is longer than `cap`.
    ///
    /// A refusal pauses for its `retry_after`, or without one, until the limits with nothing left
    /// reset. If no limit reports that nothing is left, it pauses until the first reset of a limit
    /// that does not report how much is left. A response that is not a refusal pauses if one of its
    /// limits has nothing left, until that limit resets. A limit of calls in flight never pauses,
    /// because calls that end give its units back.
    #[must_use]
    pub fn advice(&self, now: SystemTime, cap: Duration) -> Advice {
        if !self.trusted && !self.refused {
            return Advice::Go;
        }
        let used_up = || self.limits.iter().filter(|limit| limit.is_used_up());
        // A limit of zero counts only if no other limit is used up, because zero can mean "no
        // limit".
        let all_zero = used_up().all(ServerLimit::is_zero);
        let used_up = used_up().filter(|limit| all_zero || !limit.is_zero());
        // A reset that is not in the future is over: the limit has units again.
        let waits: Vec<Option<Duration>> = used_up
            .map(|limit| limit.reset.map(|reset| reset.wait(now)))
            .filter(|wait| wait.is_none_or(|w| !w.is_zero()))
            .collect();
        if !self.refused && waits.is_empty() {
            return Advice::Go;
        }
        let reported = self.retry_after.filter(|_| self.refused).map(|at| at.wait(now));
        let longest = || match waits.is_empty() {
            false => waits.iter().copied().flatten().max(),
            true => self.first_reset(now),
        };
        match reported.or_else(longest) {
            Some(asked) if !asked.is_zero() => Advice::Pause { wait: asked.min(cap), asked },
            _ => Advice::BackOff { at_least: self.back_off.min(cap) },
        }
    }

    /// Returns the first future reset of the limits that do not report how much is left.
    fn first_reset(&self, now: SystemTime) -> Option<Duration> {
        let unknown = self.limits.iter().filter(|limit| limit.remaining.is_none());
        unknown.filter_map(|limit| Some(limit.reset?.wait(now))).filter(|wait| !wait.is_zero()).min()
    }
}
