//! Costs of calls, in calls and in permits of each member.

use tidegate::AllRequest;

/// The unit that a load counts: calls, or the permits of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count(usize);

impl Count {
    pub(super) const CALLS: Count = Count(0);

    /// Returns the unit of the member at this index of the list of members.
    pub(super) fn of_member(index: usize) -> Count {
        Count(index + 1)
    }

    pub(super) fn member(self) -> Option<usize> {
        self.0.checked_sub(1)
    }
}

/// A number of calls, and the number of their permits of each member.
#[derive(Debug, Clone, Default)]
pub(super) struct Load(Vec<u64>);

impl Load {
    /// Creates the load of one call with this request, which got `got` permits of each limit that
    /// it does not name. `members` are the names of the members. The default cost of a member is
    /// unknown, so a member with one counts `got`, too.
    pub(super) fn new(request: &AllRequest<'_>, got: u32, members: &[String]) -> Load {
        let of = |member: &String| u64::from(request.cost_of(member).unwrap_or(got));
        Load(std::iter::once(1).chain(members.iter().map(of)).collect())
    }

    pub(super) fn of(&self, count: Count) -> u64 {
        self.0.get(count.0).copied().unwrap_or(0)
    }

    /// Returns the part of the load in these units.
    pub(super) fn only(&self, is: impl Fn(Count) -> bool) -> Load {
        Load(self.0.iter().enumerate().map(|(at, n)| if is(Count(at)) { *n } else { 0 }).collect())
    }

    pub(super) fn add(&mut self, more: &Load) {
        self.0.resize(self.0.len().max(more.0.len()), 0);
        for (sum, n) in self.0.iter_mut().zip(&more.0) {
            *sum = sum.saturating_add(*n);
        }
    }

    pub(super) fn subtract(&mut self, less: &Load) {
        for (sum, n) in self.0.iter_mut().zip(&less.0) {
            *sum = sum.saturating_sub(*n);
        }
    }
}
