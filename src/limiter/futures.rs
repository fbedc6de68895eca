//! Waiting for permits: the futures, what they promise when dropped, and the queue behind them.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::{DefaultClock, Timer};
use crate::error::Refusal;
use crate::limiter::pending::{Poller, Waiting};
use crate::limiter::shared::Shared;
use crate::line::rule::Single;
use crate::policy::{Policy, SmoothBursty};
use crate::request::Request;

/// The future of [`RateLimiter::acquire`](crate::RateLimiter::acquire): one permit, and the time
/// waited for it.
///
/// Lazy: it joins the queue when it is first polled. `Unpin` and `Send`.
///
/// # Cancel safety
///
/// Dropping it at any time leaves no trace: it loses its place, and those behind move up. If it had
/// been granted a permit that it did not yet see, the permit goes to the next one.
///
/// # Panics
///
/// Polling it again after it was ready panics. So does waiting on the default clock outside of a
/// tokio runtime.
#[must_use = "futures do nothing unless awaited: no permit was acquired"]
pub struct Acquire<'a, P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    shared: &'a Arc<Shared<Single<P>, C>>,
    wait: Waiting<u32>,
}

/// The future of [`RateLimiter::acquire_many`](crate::RateLimiter::acquire_many) and
/// [`try_acquire_within`](crate::RateLimiter::try_acquire_within): some permits, and the time
/// waited for them.
///
/// Lazy, cancel safe, `Unpin` and `Send`, as [`Acquire`].
#[must_use = "futures do nothing unless awaited: no permits were acquired"]
pub struct AcquireMany<'a, P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    shared: &'a Arc<Shared<Single<P>, C>>,
    wait: Waiting<u32>,
}

/// [`Acquire`] without a borrow: it can be spawned, stored or sent.
#[must_use = "futures do nothing unless awaited: no permit was acquired"]
pub struct AcquireOwned<P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    shared: Arc<Shared<Single<P>, C>>,
    wait: Waiting<u32>,
}

/// [`AcquireMany`] without a borrow: it can be spawned, stored or sent.
#[must_use = "futures do nothing unless awaited: no permits were acquired"]
pub struct AcquireManyOwned<P: Policy = SmoothBursty, C: Timer = DefaultClock> {
    shared: Arc<Shared<Single<P>, C>>,
    wait: Waiting<u32>,
}

impl<'a, P: Policy, C: Timer> Acquire<'a, P, C> {
    pub(crate) fn new(shared: &'a Arc<Shared<Single<P>, C>>) -> Self {
        Acquire { shared, wait: Waiting::new(1) }
    }
}

impl<'a, P: Policy, C: Timer> AcquireMany<'a, P, C> {
    pub(crate) fn new(shared: &'a Arc<Shared<Single<P>, C>>, n: u32, within: Option<Duration>) -> Self {
        AcquireMany { shared, wait: Waiting::within(shared, n, within) }
    }

    pub(crate) fn with(shared: &'a Arc<Shared<Single<P>, C>>, request: &Request) -> Self {
        AcquireMany { shared, wait: Waiting::with(shared, request.permits, request) }
    }
}

impl<P: Policy, C: Timer> AcquireOwned<P, C> {
    pub(crate) fn new(shared: Arc<Shared<Single<P>, C>>) -> Self {
        AcquireOwned { shared, wait: Waiting::new(1) }
    }
}

impl<P: Policy, C: Timer> AcquireManyOwned<P, C> {
    pub(crate) fn new(shared: Arc<Shared<Single<P>, C>>, n: u32, within: Option<Duration>) -> Self {
        let wait = Waiting::within(&shared, n, within);
        AcquireManyOwned { shared, wait }
    }

    pub(crate) fn with(shared: Arc<Shared<Single<P>, C>>, request: &Request) -> Self {
        let wait = Waiting::with(&shared, request.permits, request);
        AcquireManyOwned { shared, wait }
    }
}

/// Polls a request for one permit, which no policy refuses for good.
#[inline]
fn poll_one<P: Policy, C: Timer>(
    shared: &Arc<Shared<Single<P>, C>>,
    wait: &mut Waiting<u32>,
    context: &Context<'_>,
) -> Poll<Duration> {
    match shared.poll(wait, Poller::Task(context.waker())) {
        Poll::Ready(Ok((waited, _))) => Poll::Ready(waited),
        Poll::Ready(Err(_)) => {
            // A policy that refuses a single permit for good breaks its contract. There is none, so
            // this goes on waiting.
            *wait = Waiting::new(1);
            Poll::Pending
        }
        Poll::Pending => Poll::Pending,
    }
}

impl<P: Policy, C: Timer> Future for Acquire<'_, P, C> {
    type Output = Duration;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Duration> {
        let this = self.get_mut();
        poll_one(this.shared, &mut this.wait, context)
    }
}

impl<P: Policy, C: Timer> Future for AcquireOwned<P, C> {
    type Output = Duration;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Duration> {
        let this = self.get_mut();
        poll_one(&this.shared, &mut this.wait, context)
    }
}

impl<P: Policy, C: Timer> Future for AcquireMany<'_, P, C> {
    type Output = Result<Duration, Refusal>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.shared.poll(&mut this.wait, Poller::Task(context.waker())).map_ok(|(waited, _)| waited)
    }
}

impl<P: Policy, C: Timer> Future for AcquireManyOwned<P, C> {
    type Output = Result<Duration, Refusal>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.shared.poll(&mut this.wait, Poller::Task(context.waker())).map_ok(|(waited, _)| waited)
    }
}

impl<P: Policy, C: Timer> Drop for Acquire<'_, P, C> {
    fn drop(&mut self) {
        self.shared.leave(&mut self.wait);
    }
}

impl<P: Policy, C: Timer> Drop for AcquireMany<'_, P, C> {
    fn drop(&mut self) {
        self.shared.leave(&mut self.wait);
    }
}

impl<P: Policy, C: Timer> Drop for AcquireOwned<P, C> {
    fn drop(&mut self) {
        self.shared.leave(&mut self.wait);
    }
}

impl<P: Policy, C: Timer> Drop for AcquireManyOwned<P, C> {
    fn drop(&mut self) {
        self.shared.leave(&mut self.wait);
    }
}

impl<P: Policy, C: Timer> fmt::Debug for Acquire<'_, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}

impl<P: Policy, C: Timer> fmt::Debug for AcquireMany<'_, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireMany").field("permits", self.wait.ask()).finish_non_exhaustive()
    }
}

impl<P: Policy, C: Timer> fmt::Debug for AcquireOwned<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireOwned").finish_non_exhaustive()
    }
}

impl<P: Policy, C: Timer> fmt::Debug for AcquireManyOwned<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireManyOwned").field("permits", self.wait.ask()).finish_non_exhaustive()
    }
}
