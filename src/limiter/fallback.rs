//! A second limiter for what the first one refuses.

use std::time::Duration;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::limiter::RateLimiter;
use crate::policy::Policy;
use crate::request::Request;

/// Which of two limiters let a call pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "it says which of the two ways to go"]
pub enum ServedBy {
    /// The one that was asked first: the usual way.
    Primary,
    /// The other one, after the first had refused: the fallback.
    Fallback,
}

impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// Takes one permit now, or one of `other` if this limiter refuses: a cheaper way, with a limit
    /// of its own.
    ///
    /// Who watches either limiter is told of each of the two decisions.
    ///
    /// # Errors
    ///
    /// If both refuse: the refusal with the shorter `retry_after`, and if neither has one, that of
    /// this limiter.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{ManualClock, Rate, RateLimiter, Refusal, ServedBy, SmoothBursty};
    ///
    /// let clock = ManualClock::new();
    /// let fresh = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(1)), clock.clone());
    /// let cached = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(100)), clock);
    /// let answer = || match fresh.try_acquire_or(&cached)? {
    ///     ServedBy::Primary => Ok("computed"),
    ///     ServedBy::Fallback => Ok("from the cache"),
    /// };
    /// assert_eq!(answer()?, "computed");
    /// assert_eq!(answer()?, "from the cache");
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn try_acquire_or<Q: Policy, D: Timer>(
        &self,
        other: &RateLimiter<Q, D>,
    ) -> Result<ServedBy, Refusal> {
        let Err(first) = self.try_acquire() else { return Ok(ServedBy::Primary) };
        other.try_acquire().map(|()| ServedBy::Fallback).map_err(|other| sooner(first, other))
    }

    /// [`try_acquire_or`](RateLimiter::try_acquire_or) for what a [`Request`] asks for, of either
    /// limiter.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_or`](RateLimiter::try_acquire_or).
    pub fn try_acquire_with_or<Q: Policy, D: Timer>(
        &self,
        request: Request,
        other: &RateLimiter<Q, D>,
    ) -> Result<ServedBy, Refusal> {
        let Err(first) = self.try_acquire_with(request) else { return Ok(ServedBy::Primary) };
        other.try_acquire_with(request).map(|()| ServedBy::Fallback).map_err(|other| sooner(first, other))
    }

    /// Waits for what a [`Request`] asks for, or for the same of `other` if this limiter refuses.
    /// Returns who served it, and the time waited.
    ///
    /// Give it a time [`within`](Request::within) which it is to be served: without one, a limiter
    /// refuses only what it can never grant, or has no room for. This limiter refuses at once if it
    /// would be later. If it accepts, and then refuses after all, `other` gets what is left of the
    /// time.
    ///
    /// # Fairness
    ///
    /// As [`acquire_with`](RateLimiter::acquire_with), in the one queue and then in the other.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no trace in either.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_or`](RateLimiter::try_acquire_or).
    ///
    /// # Panics
    ///
    /// As [`acquire`](RateLimiter::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Rate, RateLimiter, Refusal, Request, ServedBy, SmoothBursty, TokioClock};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Refusal> {
    /// let fresh = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(1)), TokioClock::new());
    /// let cached = RateLimiter::with_clock(SmoothBursty::new(Rate::per_second(10)), TokioClock::new());
    /// let request = Request::permits(1).within(Duration::from_millis(100));
    /// assert_eq!(fresh.acquire_with_or(request, &cached).await?.0, ServedBy::Primary);
    /// assert_eq!(fresh.acquire_with_or(request, &cached).await?, (ServedBy::Fallback, Duration::ZERO));
    /// assert_eq!(fresh.acquire_with_or(request, &cached).await?, (ServedBy::Fallback, Duration::from_millis(100)));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire_with_or<Q: Policy, D: Timer>(
        &self,
        request: Request,
        other: &RateLimiter<Q, D>,
    ) -> Result<(ServedBy, Duration), Refusal> {
        let began = self.clock().now();
        let first = match self.acquire_with(request).await {
            Ok(waited) => return Ok((ServedBy::Primary, waited)),
            Err(refusal) => refusal,
        };
        let waited = self.clock().now().saturating_since(began).as_duration();
        let rest = Request { within: request.within.map(|within| within.saturating_sub(waited)), ..request };
        match other.acquire_with(rest).await {
            Ok(more) => Ok((ServedBy::Fallback, waited.saturating_add(more))),
            Err(other) => Err(sooner(first, other)),
        }
    }
}

/// The refusal that says to come again sooner.
fn sooner(first: Refusal, other: Refusal) -> Refusal {
    match (first.retry_after(), other.retry_after()) {
        (None, Some(_)) => other,
        (Some(first_after), Some(other_after)) if other_after < first_after => other,
        _ => first,
    }
}
