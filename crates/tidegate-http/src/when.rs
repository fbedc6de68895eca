//! A time that a server tells: from now, or of the calendar.

use std::time::{Duration, SystemTime};

/// A time that a server tells.
///
/// A reader counts a time of the calendar from the `Date` of its answer and returns [`When::In`],
/// so that the clock of the client does not matter. [`When::At`] is left only where the answer
/// has no `Date`.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tidegate_http::When;
///
/// let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
/// assert_eq!(When::In(Duration::from_secs(3)).wait(now), Duration::from_secs(3));
/// assert_eq!(
///     When::At(now + Duration::from_secs(2)).wait(now),
///     Duration::from_secs(2)
/// );
/// assert_eq!(When::At(SystemTime::UNIX_EPOCH).wait(now), Duration::ZERO);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum When {
    /// So long after the answer.
    In(Duration),
    /// At this time, by the clock of the server.
    At(SystemTime),
}

impl When {
    /// Returns how long to wait from `now`, which is the time at which the answer came. A time
    /// that is past gives zero.
    #[must_use]
    pub fn wait(self, now: SystemTime) -> Duration {
        match self {
            When::In(wait) => wait,
            When::At(at) => at.duration_since(now).unwrap_or_default(),
        }
    }
}
