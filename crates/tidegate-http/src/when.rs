//! A time that a server sends: from now, or an absolute timestamp.

use std::time::{Duration, SystemTime};

/// A time that a server sends.
///
/// A reader counts an absolute timestamp from the `Date` of its response and returns [`When::In`],
/// so that the clock of the client does not matter. It returns [`When::At`] only if the response
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
    /// This long after the response.
    In(Duration),
    /// At this time, by the clock of the server.
    At(SystemTime),
}

impl When {
    /// Returns how long to wait from `now`, the time at which the response arrived. A time in the
    /// past gives zero.
    #[must_use]
    pub fn wait(self, now: SystemTime) -> Duration {
        match self {
            When::In(wait) => wait,
            When::At(at) => at.duration_since(now).unwrap_or_default(),
        }
    }
}
