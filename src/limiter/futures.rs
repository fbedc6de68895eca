//! The futures of [`RateLimiter`](crate::RateLimiter). Each is a [`Pending`], borrowed or owned.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::clock::{DefaultClock, Timer};
use crate::error::Refusal;
use crate::grant::Grant;
use crate::limiter::pending::{Pending, Poller, Progress};
use crate::limiter::shared::Shared;
use crate::line::rule::Single;
use crate::policy::{Policy, SmoothBursty};
use crate::request::Request;

type Limiter<P, C> = Arc<Shared<Single<P>, C>>;

/// The future of [`RateLimiter::acquire`](crate::RateLimiter::acquire),
/// [`acquire_many`](crate::RateLimiter::acquire_many) and
/// [`acquire_within`](crate::RateLimiter::acquire_within): a [`Grant`], or a refusal.
///
/// Lazy: it joins the queue when it is first polled. It is `Unpin` and `Send`.
///
/// # Cancel safety
///
/// Dropping it at any time removes it from the queue, and the waiters behind it move up. If it was
/// granted permits that it has not seen yet, the permits go to the next waiter.
///
/// # Panics
///
/// Panics if it is polled again after it was ready, or if it must wait with the default clock in a
/// tokio runtime whose time driver is disabled.
#[must_use = "futures do nothing unless awaited: no permits were acquired"]
pub struct Acquire<'a, P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    pending: Pending<Single<P>, C, &'a Limiter<P, C>>,
}

/// The future of [`RateLimiter::acquire_owned`](crate::RateLimiter::acquire_owned): like
/// [`Acquire`], without a borrow. It can be spawned, stored or sent.
#[must_use = "futures do nothing unless awaited: no permits were acquired"]
pub struct AcquireOwned<P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    pending: Pending<Single<P>, C, Limiter<P, C>>,
}

impl<'a, P: Policy, C: Timer> Acquire<'a, P, C> {
    #[inline]
    pub(super) fn new(shared: &'a Limiter<P, C>, request: &Request) -> Self {
        Acquire { pending: Pending::new(shared, Progress::with(request.permits, request)) }
    }
}

impl<P: Policy, C: Timer> AcquireOwned<P, C> {
    pub(super) fn new(shared: Limiter<P, C>, request: &Request) -> Self {
        let wait = Progress::with(request.permits, request);
        AcquireOwned { pending: Pending::new(shared, wait) }
    }
}

impl<P: Policy, C: Timer> Future for Acquire<'_, P, C> {
    type Output = Result<Grant, Refusal>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let pending = &mut self.get_mut().pending;
        let answer = pending.poll(Poller::Task(context.waker()));
        answer.map_ok(|receipt| pending.grant(&receipt))
    }
}

impl<P: Policy, C: Timer> Future for AcquireOwned<P, C> {
    type Output = Result<Grant, Refusal>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let pending = &mut self.get_mut().pending;
        let answer = pending.poll(Poller::Task(context.waker()));
        answer.map_ok(|receipt| pending.grant(&receipt))
    }
}

impl<P: Policy, C: Timer> fmt::Debug for Acquire<'_, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("permits", self.pending.ask()).finish_non_exhaustive()
    }
}

impl<P: Policy, C: Timer> fmt::Debug for AcquireOwned<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireOwned").field("permits", self.pending.ask()).finish_non_exhaustive()
    }
}
