//! [`AllStatus`]: a snapshot of several limiters.

use std::time::Duration;

use crate::all_of::name::Name;
use crate::grant::Left;
use crate::status::Status;

/// A snapshot of an [`AllOf`](crate::AllOf). It may be outdated when it is returned, and its
/// members were read one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AllStatus {
    /// The number of requests that wait in the queue of this `AllOf`.
    pub waiting: usize,
    /// How long a [pause](crate::AllOf::pause_for) of the `AllOf` itself still lasts; zero without
    /// a pause. A member may be paused as well.
    pub paused_for: Duration,
    /// The status of each member, in the order in which the members were added; those of a
    /// `KeyedAllOf` for all keys come first. A status counts all requests at the member, not only
    /// the requests of this `AllOf`.
    pub members: Vec<(Name, Status)>,
}

impl AllStatus {
    /// Creates the status of members with these names, with no waiting request. For implementors of
    /// [`Limiter`](crate::Limiter).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AllStatus, Left, Status};
    ///
    /// let minute = Status::from(Left::new(60, 12));
    /// let status = AllStatus::new([("minute", minute)]).waiting(3);
    /// assert_eq!(status.member("minute"), Some(minute));
    /// ```
    pub fn new(members: impl IntoIterator<Item = (impl Into<Name>, Status)>) -> AllStatus {
        let members = members.into_iter().map(|(name, status)| (name.into(), status)).collect();
        AllStatus { waiting: 0, paused_for: Duration::ZERO, members }
    }

    /// Sets the number of requests that wait for all members together.
    #[must_use]
    pub fn waiting(self, waiting: usize) -> AllStatus {
        AllStatus { waiting, ..self }
    }

    /// Sets how long a pause of all members together still lasts.
    #[must_use]
    pub fn paused_for(self, paused_for: Duration) -> AllStatus {
        AllStatus { paused_for, ..self }
    }

    /// This status, updated with what a grant left in some of the members.
    pub(crate) fn with_left(mut self, left: impl Iterator<Item = (usize, Left)>) -> AllStatus {
        for (index, left) in left {
            if let Some((_, status)) = self.members.get_mut(index) {
                *status = status.with_left(left);
            }
        }
        self
    }

    /// Records that a refused request for `n` permits found too few at the member with this name,
    /// and by how much it was early if it does not wait.
    pub(crate) fn set_refused(&mut self, name: &str, n: u32, wait: Option<Duration>) {
        for (_, status) in self.members.iter_mut().filter(|(of, _)| *of == *name) {
            *status = status.as_refused(n, wait);
        }
    }

    /// Returns the status of the member with this name; `None` if there is no such member.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<Status> {
        self.members.iter().find(|(of, _)| *of == *name).map(|(_, status)| *status)
    }
}
