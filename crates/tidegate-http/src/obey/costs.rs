//! What a call costs, and how much is in flight.

use std::time::Duration;

use tidegate::AllRequest;

/// What a call asks its limiter for: the cost at each limit by its name, how important it is, and
/// how long it waits.
///
/// It says what an [`AllRequest`] says, and [`Obey`](super::Obey) remembers the costs while the
/// call is in flight. Made from a number, or from costs by name.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate_http::obey::Costs;
///
/// let call = Costs::new().cost("tokens", 850).within(Duration::from_secs(30));
/// let call = Costs::from([("tokens", 850)]);
/// ```
#[derive(Debug, Clone)]
#[must_use = "costs do nothing unless they are given to a call"]
pub struct Costs<'a> {
    request: AllRequest<'a>,
    named: Vec<(&'a str, u32)>,
    others: u32,
}

impl<'a> Costs<'a> {
    /// One permit of each limit, at priority 0, for as long as it takes.
    pub fn new() -> Self {
        Self { request: AllRequest::new(), named: Vec::new(), others: 1 }
    }

    /// So many permits of the limit with this name. See [`AllRequest::cost`].
    pub fn cost(mut self, name: &'a str, n: u32) -> Self {
        self.named.push((name, n));
        Self { request: self.request.cost(name, n), ..self }
    }

    /// So many permits of each limit that is not named. See [`AllRequest::cost_of_others`].
    pub fn cost_of_others(self, n: u32) -> Self {
        Self { request: self.request.cost_of_others(n), others: n, ..self }
    }

    /// How important the call is: the higher, the sooner. See [`AllRequest::priority`].
    pub fn priority(self, priority: i8) -> Self {
        Self { request: self.request.priority(priority), ..self }
    }

    /// The call waits no longer than this. See [`AllRequest::within`].
    pub fn within(self, within: Duration) -> Self {
        Self { request: self.request.within(within), ..self }
    }

    pub(super) fn request(&self) -> AllRequest<'a> {
        self.request.clone()
    }

    /// The costs at members with these names.
    pub(super) fn load(&self, members: &[String]) -> Load {
        // The last number counts, as in an `AllRequest`.
        let of = |member: &String| self.named.iter().rev().find(|(name, _)| name == member);
        let of = |member| u64::from(of(member).map_or(self.others, |(_, n)| *n));
        Load(std::iter::once(1).chain(members.iter().map(of)).collect())
    }
}

impl Default for Costs<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl From<u32> for Costs<'_> {
    fn from(n: u32) -> Self {
        Costs::new().cost_of_others(n)
    }
}

impl<'a, const N: usize> From<[(&'a str, u32); N]> for Costs<'a> {
    fn from(costs: [(&'a str, u32); N]) -> Self {
        Costs::from(costs.as_slice())
    }
}

impl<'a> From<&[(&'a str, u32)]> for Costs<'a> {
    fn from(costs: &[(&'a str, u32)]) -> Self {
        costs.iter().fold(Costs::new(), |all, (name, n)| all.cost(name, *n))
    }
}

/// What a load counts: calls, or the permits of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count(usize);

impl Count {
    pub(super) const CALLS: Count = Count(0);

    /// The permits of the member at this place of the list of members.
    pub(super) fn of_member(place: usize) -> Count {
        Count(place + 1)
    }

    pub(super) fn member(self) -> Option<usize> {
        self.0.checked_sub(1)
    }
}

/// A number of calls, and their permits of each member.
#[derive(Debug, Clone, Default)]
pub(super) struct Load(Vec<u64>);

impl Load {
    pub(super) fn of(&self, count: Count) -> u64 {
        self.0.get(count.0).copied().unwrap_or(0)
    }

    /// What it counts in these units.
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
