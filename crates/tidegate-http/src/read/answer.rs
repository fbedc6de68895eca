//! The limits that an answer tells, and the pause that follows from them.

use std::time::{Duration, SystemTime};

use super::limit::ServerLimit;
use crate::When;

/// The limits that an answer tells, and whether it is a refusal.
///
/// # Examples
///
/// An own reading of an API that no [`Reader`](super::Reader) knows:
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tidegate_http::When;
/// use tidegate_http::read::{ResponseLimits, DEFAULT_MAX_PAUSE, Advice};
///
/// let mut answer = ResponseLimits::default();
/// answer.refused = true;
/// answer.retry_after = Some(When::In(Duration::from_secs(3)));
/// let wait = Duration::from_secs(3);
/// assert_eq!(
///     answer.advice(SystemTime::now(), DEFAULT_MAX_PAUSE),
///     Advice::Pause { wait, asked: wait }
/// );
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ResponseLimits {
    /// The limits, in the order of the headers.
    pub limits: Vec<ServerLimit>,
    /// When the client may come again: `Retry-After` or a vendor's header of this meaning. Of
    /// several the longest.
    pub retry_after: Option<When>,
    /// Whether a limit refused the request. Status 429 and 420 say so; 400, 403, 503 and 529 do if
    /// a header says it as well, and so do `RESOURCE_EXHAUSTED` and `UNAVAILABLE` of gRPC. 418 does
    /// if the server sends a time to come again, and 409 if the server sends a wait and nothing is
    /// left. A limit of calls in flight with nothing left does not say so.
    pub refused: bool,
    /// What the first header says by which a vendor marks a refusal: the limit that refused the
    /// request, as in `jira-burst-based` or `endpoint-rate`, or only that one did, as in
    /// `rejected`.
    pub reason: Option<String>,
    /// The scope of the limit that refused the request, where a header tells it: `user`,
    /// `global`, `shared`, ...
    pub scope: Option<String>,
    /// Whether the limits hold for this client at this server now. Limits of an answer out of a
    /// cache (`Age` above 0) or of a redirect to another address may not.
    pub trusted: bool,
    /// The least time to back off from a refusal that tells no time.
    pub back_off: Duration,
}

impl Default for ResponseLimits {
    /// An answer that tells nothing.
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

/// The longest pause that a client should obey without being told otherwise: ten minutes, the
/// threshold that the IETF draft names.
pub const DEFAULT_MAX_PAUSE: Duration = Duration::from_secs(600);

/// What a client should do after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Requests may go on.
    Go,
    /// Send nothing for a while.
    Pause {
        /// How long: as the server asks, or the cap if that is shorter.
        wait: Duration,
        /// How long the server asks for. After a shorter pause the server may still refuse.
        asked: Duration,
    },
    /// Send nothing for a while; the server does not say how long. A client usually doubles this
    /// time with each refusal in a row.
    BackOff {
        /// The least time, zero if the API names none.
        at_least: Duration,
    },
}

impl ResponseLimits {
    /// Whether a limit of all routes of the server refused the request.
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.refused && self.scope.as_deref().is_some_and(|scope| scope.eq_ignore_ascii_case("global"))
    }

    /// Returns what a client should do. `now` is the time at which the answer came; it
    /// counts only if the answer has no `Date`. No pause is longer than `cap`.
    ///
    /// A refusal pauses for its `retry_after`, or else until limits with nothing left are reset. If
    /// no limit says that nothing is left, it pauses until the first reset of a limit that does not
    /// say how much is left. Another answer pauses if one of its limits has nothing left, until that
    /// is reset. A limit of calls in flight pauses nothing, since calls that end give it back.
    #[must_use]
    pub fn advice(&self, now: SystemTime, cap: Duration) -> Advice {
        if !self.trusted && !self.refused {
            return Advice::Go;
        }
        let used_up = || self.limits.iter().filter(|limit| limit.is_used_up());
        // A limit of zero counts only if no other limit is used up: it may mean no limit.
        let all_zero = used_up().all(ServerLimit::is_zero);
        let used_up = used_up().filter(|limit| all_zero || !limit.is_zero());
        // A reset that is not ahead is over: the limit has units again.
        let waits: Vec<Option<Duration>> = used_up
            .map(|limit| limit.reset.map(|reset| reset.wait(now)))
            .filter(|wait| wait.is_none_or(|w| !w.is_zero()))
            .collect();
        if !self.refused && waits.is_empty() {
            return Advice::Go;
        }
        let told = self.retry_after.filter(|_| self.refused).map(|at| at.wait(now));
        let longest = || match waits.is_empty() {
            false => waits.iter().copied().flatten().max(),
            true => self.first_reset(now),
        };
        match told.or_else(longest) {
            Some(asked) if !asked.is_zero() => Advice::Pause { wait: asked.min(cap), asked },
            _ => Advice::BackOff { at_least: self.back_off.min(cap) },
        }
    }

    /// The first reset ahead, of the limits that do not say how much is left.
    fn first_reset(&self, now: SystemTime) -> Option<Duration> {
        let unknown = self.limits.iter().filter(|limit| limit.remaining.is_none());
        unknown.filter_map(|limit| Some(limit.reset?.wait(now))).filter(|wait| !wait.is_zero()).min()
    }
}
