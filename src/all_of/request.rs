//! Everything that a call of an [`AllOf`](crate::AllOf) may say about what it asks for.

use std::time::Duration;

use crate::all_of::weights::Weights;
use crate::request::Request;

/// What a call of an [`AllOf`](crate::AllOf) asks for: how many permits of each member, how
/// important it is, how long it waits.
///
/// Every call that takes a number for each member takes a request as well: `acquire_many([1, 850])`
/// is `acquire_many(AllRequest::permits([1, 850]))`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{AllOf, AllRefusal, AllRequest, Rate, RateLimiter, SmoothBursty, TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), AllRefusal> {
/// let clock = TokioClock::new();
/// let policy = SmoothBursty::new(Rate::per_second(2));
/// let requests = RateLimiter::with_clock(policy, clock);
/// let policy = SmoothBursty::new(Rate::per_second(1000));
/// let tokens = RateLimiter::with_clock(policy, clock);
/// let api = AllOf::new("requests", &requests).with("tokens", &tokens);
/// let urgent = AllRequest::permits([1, 850]).priority(1).within(Duration::from_secs(1));
/// let _permits = api.acquire_many(urgent).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a request does nothing unless it is given to a limiter"]
pub struct AllRequest {
    /// One of each member if there are none.
    weights: Option<Weights>,
    /// All else that it says.
    pub(super) request: Request,
}

impl AllRequest {
    /// Asks for so many permits of each member, in the order in which the members were added, at
    /// priority 0, for as long as it takes. A member of which none are asked for is not asked.
    pub fn permits(permits: impl AsRef<[u32]>) -> AllRequest {
        AllRequest { weights: Some(Weights::new(permits.as_ref())), ..AllRequest::one_each() }
    }

    /// Asks for one permit of each member, at priority 0, for as long as it takes.
    pub const fn one_each() -> AllRequest {
        AllRequest { weights: None, request: Request::permits(1) }
    }

    /// How important the request is: the higher, the sooner. 0 unless set.
    ///
    /// It holds in the queue of the `AllOf` and in the lines of its members, and for what a member
    /// [keeps](crate::RateLimiter::keep_for_priority) for important requests. See
    /// [`Request::priority`].
    pub const fn priority(mut self, priority: i8) -> AllRequest {
        self.request = self.request.priority(priority);
        self
    }

    /// The request waits no longer than this. It is refused at once if its permits are due later.
    /// See [`Request::within`].
    ///
    /// The time at which a [`CountingLimit`](crate::CountingLimit) has a permit is not known ahead.
    /// A request that waits for nothing else is refused when its time is over.
    pub const fn within(mut self, within: Duration) -> AllRequest {
        self.request = self.request.within(within);
        self
    }

    /// The request passes at once and takes nothing. See [`Request::exempt`].
    pub const fn exempt(mut self) -> AllRequest {
        self.request = self.request.exempt();
        self
    }

    /// The weights, of so many members. `Err` tells how many were given instead.
    pub(super) fn weights(&self, members: usize) -> Result<Weights, usize> {
        let weights = match &self.weights {
            Some(weights) if weights.len() == members => weights.clone(),
            Some(weights) => return Err(weights.len()),
            None => Weights::ones(members),
        };
        Ok(weights.of_priority(self.request.priority))
    }
}

impl Default for AllRequest {
    fn default() -> AllRequest {
        AllRequest::one_each()
    }
}

impl From<&[u32]> for AllRequest {
    fn from(permits: &[u32]) -> AllRequest {
        AllRequest::permits(permits)
    }
}

impl<const N: usize> From<[u32; N]> for AllRequest {
    fn from(permits: [u32; N]) -> AllRequest {
        AllRequest::permits(permits)
    }
}

impl<const N: usize> From<&[u32; N]> for AllRequest {
    fn from(permits: &[u32; N]) -> AllRequest {
        AllRequest::permits(permits)
    }
}

impl From<Vec<u32>> for AllRequest {
    fn from(permits: Vec<u32>) -> AllRequest {
        AllRequest::permits(permits)
    }
}

impl From<&Vec<u32>> for AllRequest {
    fn from(permits: &Vec<u32>) -> AllRequest {
        AllRequest::permits(permits)
    }
}
