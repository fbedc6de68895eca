//! A request in progress: the state that a future, a blocked thread or a reservation keeps.

use std::borrow::Borrow;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::grant::Grant;
use crate::limiter::shared::Shared;
use crate::line::answer::Receipt;
use crate::line::grants::GrantKind;
use crate::line::rule::{Rule, Single};
use crate::line::visit::Demand;
use crate::policy::Policy;
use crate::request::Request;
use crate::time::Nanos;

/// The progress of a request: the part that a future keeps.
#[derive(Debug)]
pub(crate) struct Progress<Ask> {
    /// The permits that the request waits for, and once it is granted, the permits that it got.
    pub(crate) ask: Ask,
    pub(crate) priority: i8,
    pub(crate) stage: Stage,
    /// The maximum wait that the caller accepts; `Nanos::MAX` if it accepts any. Not an `Option`,
    /// because eight more bytes make a task 128 bytes larger.
    pub(crate) within: Nanos,
    /// When the request was first polled.
    pub(crate) since: Nanos,
    pub(crate) kind: GrantKind,
    /// Whether the grant reports what it left.
    pub(crate) wants_left: bool,
}

#[derive(Debug)]
pub(crate) enum Stage {
    /// Not polled yet. The number is that of [`Demand::most`].
    New(Option<NonZeroU32>),
    /// Not polled yet, and exempt: the request passes without a permit.
    Exempt,
    /// The request joins the queue. The policy refused it for now, or could not be asked without
    /// the lock; it is asked again under the lock. A poll returns in this stage only if user code
    /// panicked; then the next poll joins. The number is that of [`Demand::most`].
    Joining(Option<NonZeroU32>),
    /// In the queue, under this key.
    Queued(u32),
    /// The request has its decision.
    Done,
    /// The request was granted, and an observer is notified. If the observer panics, the permits
    /// are used, and the caller does not have the grant.
    Spent,
}

/// A request in progress and the limiter at which it waits: the core of every future, of a blocked
/// thread and of a reservation. Dropping it leaves the queue.
pub(crate) struct Pending<R: Rule, C: Timer, G: Borrow<Arc<Shared<R, C>>>> {
    /// The limiter, as an `Arc` or as a reference to one.
    pub(crate) shared: G,
    pub(crate) wait: Progress<R::Ask>,
    of: PhantomData<fn(&C)>,
}

/// [`Pending`] without a borrow.
pub(crate) type OwnedPending<R, C> = Pending<R, C, Arc<Shared<R, C>>>;

impl<R: Rule, C: Timer, G: Borrow<Arc<Shared<R, C>>>> Pending<R, C, G> {
    #[inline]
    pub(crate) fn new(shared: G, wait: Progress<R::Ask>) -> Self {
        Pending { shared, wait, of: PhantomData }
    }

    #[inline]
    pub(crate) fn poll(&mut self, poller: Poller<'_>) -> Poll<Result<Receipt<R::Charge>, Refusal>> {
        self.shared.borrow().poll(&mut self.wait, poller)
    }

    /// Takes the decision if the request has one.
    pub(crate) fn claim(&mut self) -> Option<Result<Receipt<R::Charge>, Refusal>> {
        self.shared.borrow().claim(&mut self.wait)
    }

    /// Leaves the queue. No permit is lost.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.shared.borrow().leave(&mut self.wait);
    }

    pub(crate) fn ask(&self) -> &R::Ask {
        &self.wait.ask
    }

    /// Takes the request out, so that dropping this value does not leave the queue.
    pub(crate) fn release(&mut self) -> Progress<R::Ask> {
        let Progress { ref ask, wants_left, .. } = self.wait;
        let done = Progress { stage: Stage::Done, wants_left, ..Progress::new(ask.clone()) };
        std::mem::replace(&mut self.wait, done)
    }
}

impl<P: Policy, C: Timer, G: Borrow<Arc<Shared<Single<P>, C>>>> Pending<Single<P>, C, G> {
    /// Returns the receipt as the caller gets it.
    #[inline]
    pub(crate) fn grant(&self, receipt: &Receipt<P::Charge>) -> Grant {
        self.shared.borrow().grant(receipt, self.wait.ask, self.wait.wants_left)
    }
}

impl<R: Rule, C: Timer, G: Borrow<Arc<Shared<R, C>>>> Drop for Pending<R, C, G> {
    #[inline]
    fn drop(&mut self) {
        self.leave();
    }
}

/// The caller that polls, with its waker.
#[derive(Clone, Copy)]
pub(crate) enum Poller<'a> {
    Task(&'a Waker),
    Thread(&'a Waker),
}

impl<Ask> Progress<Ask> {
    /// Creates a request without a maximum wait.
    pub(crate) fn new(ask: Ask) -> Progress<Ask> {
        let (stage, since) = (Stage::New(None), Nanos::ZERO);
        Progress {
            ask,
            priority: 0,
            stage,
            within: Nanos::MAX,
            since,
            kind: GrantKind::Final,
            wants_left: false,
        }
    }

    /// Creates a request that waits no longer than it allows, and no longer than the policy lets
    /// any request wait.
    #[inline]
    pub(crate) fn with(ask: Ask, request: &Request) -> Progress<Ask> {
        // `Nanos::MAX` means that any wait is accepted.
        let most = Nanos::new(u64::MAX - 1);
        let within = request.within.map_or(Nanos::MAX, |within| Nanos::from_duration(within).min(most));
        let stage = if request.exempt { Stage::Exempt } else { Stage::New(request.more()) };
        let Request { priority, wants_left, .. } = *request;
        Progress { within, priority, stage, wants_left, ..Progress::new(ask) }
    }

    /// Returns the maximum wait of the request, if there is one: the smaller of its own and the
    /// policy's `max_wait`. A `max_wait` of `Duration::MAX` is no limit.
    pub(crate) fn longest(&self, max_wait: Duration) -> Option<Nanos> {
        let within = (self.within < Nanos::MAX).then_some(self.within);
        if max_wait == Duration::MAX {
            return within;
        }
        let max_wait = Nanos::from_duration(max_wait);
        Some(within.map_or(max_wait, |within| within.min(max_wait)))
    }

    pub(crate) fn demand(&self) -> Demand<'_, Ask> {
        let most = match self.stage {
            Stage::New(most) | Stage::Joining(most) => most,
            Stage::Exempt | Stage::Queued(_) | Stage::Done | Stage::Spent => None,
        };
        Demand { ask: &self.ask, priority: self.priority, most }
    }

    /// Returns whether the request has its decision.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done | Stage::Spent)
    }

    /// Returns whether the request was granted, but its caller does not have the grant, because an
    /// observer panicked.
    pub(crate) fn is_spent(&self) -> bool {
        matches!(self.stage, Stage::Spent)
    }

    /// Returns whether the request passes without a permit, and was not polled yet.
    pub(crate) fn is_exempt(&self) -> bool {
        matches!(self.stage, Stage::Exempt)
    }

    /// Turns this into a request whose grant can be undone in part later.
    pub(crate) fn tracked(self) -> Progress<Ask> {
        Progress { kind: GrantKind::Tracked, ..self }
    }
}
