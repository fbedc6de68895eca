//! [`AllStatus`]: a snapshot of several limiters.

use std::time::Duration;

use crate::all_of::name::Name;
use crate::status::Status;

/// A snapshot of an [`AllOf`](crate::AllOf). It may be outdated when it is returned, and its
/// members were looked at one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllStatus {
    /// How many requests wait in the queue of this composite.
    pub waiting: usize,
    /// How long a [pause](crate::AllOf::pause_for) of the composite itself still lasts; zero
    /// without a pause. A member may be paused as well.
    pub paused_for: Duration,
    /// The status of each member, in the order in which they were added. It counts all requests at
    /// the member, not only the requests of this composite.
    pub members: Vec<(Name, Status)>,
}

impl AllStatus {
    /// The status of the member with this name; `None` if there is no such member.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<Status> {
        self.members.iter().find(|(of, _)| *of == *name).map(|(_, status)| *status)
    }
}
