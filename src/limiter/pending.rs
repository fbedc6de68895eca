//! A request on its way: what a future, a blocked thread or a reservation keeps.

use std::borrow::Borrow;
use std::marker::PhantomData;
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

/// How far a request has come: what a future keeps of it.
#[derive(Debug)]
pub(crate) struct Progress<Ask> {
    /// The permits that it waits for, and from its grant on, the permits that it got.
    pub(crate) ask: Ask,
    pub(crate) priority: i8,
    pub(crate) stage: Stage,
    /// The longest wait that the caller accepts; `Nanos::MAX` if it accepts any. Not an `Option`,
    /// since eight bytes more make a task 128 bytes larger.
    pub(crate) within: Nanos,
    /// When it was first polled.
    pub(crate) since: Nanos,
    pub(crate) kind: GrantKind,
    /// Whether the caller is told what its grant left.
    pub(crate) wants_left: bool,
}

#[derive(Debug)]
pub(crate) enum Stage {
    /// Not polled yet. If the number is not zero, the request takes up to this many permits, and
    /// what it asks for is the least.
    New(u32),
    /// Not polled yet, and exempt: it passes without a permit.
    Exempt,
    /// The request joins the line, or takes up to so many permits if this is not zero. The policy
    /// refused it for now, or could not be asked without the lock; it is asked again under the
    /// lock. If a poll left this stage, foreign code has panicked: the next poll joins.
    Joining(u32),
    /// In the line, under this key.
    Queued(u32),
    /// It has its answer.
    Done,
}

/// A request on its way and the limiter at which it waits: the core of every future, of a blocked
/// thread and of a reservation. Dropping it leaves the line.
pub(crate) struct Pending<R: Rule, C: Timer, G: Borrow<Arc<Shared<R, C>>>> {
    /// The limiter, as an `Arc` or a borrowed one.
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

    /// Takes the answer if it is there.
    pub(crate) fn claim(&mut self) -> Option<Result<Receipt<R::Charge>, Refusal>> {
        self.shared.borrow().claim(&mut self.wait)
    }

    /// Leaves the line, and no trace.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.shared.borrow().leave(&mut self.wait);
    }

    pub(crate) fn ask(&self) -> &R::Ask {
        &self.wait.ask
    }

    /// Takes the request out, so that dropping this does not leave the line.
    pub(crate) fn release(&mut self) -> Progress<R::Ask> {
        let Progress { ref ask, wants_left, .. } = self.wait;
        let done = Progress { stage: Stage::Done, wants_left, ..Progress::new(ask.clone()) };
        std::mem::replace(&mut self.wait, done)
    }
}

impl<P: Policy, C: Timer, G: Borrow<Arc<Shared<Single<P>, C>>>> Pending<Single<P>, C, G> {
    /// The receipt as the caller gets it.
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

/// The caller that polls, with what wakes it.
#[derive(Clone, Copy)]
pub(crate) enum Poller<'a> {
    Task(&'a Waker),
    Thread(&'a Waker),
}

impl<Ask> Progress<Ask> {
    /// A request that waits for any time.
    pub(crate) fn new(ask: Ask) -> Progress<Ask> {
        let (stage, since) = (Stage::New(0), Nanos::ZERO);
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

    /// A request that waits no longer than it says, nor than the policy lets any request wait.
    #[inline]
    pub(crate) fn with(ask: Ask, request: &Request) -> Progress<Ask> {
        // `Nanos::MAX` means that any wait is accepted.
        let most = Nanos::new(u64::MAX - 1);
        let within = request.within.map_or(Nanos::MAX, |within| Nanos::from_duration(within).min(most));
        let stage = if request.exempt { Stage::Exempt } else { Stage::New(request.more().unwrap_or(0)) };
        let Request { priority, wants_left, .. } = *request;
        Progress { within, priority, stage, wants_left, ..Progress::new(ask) }
    }

    /// The longest that the request waits, if there is a limit: its own, or the `max_wait` of the
    /// policy, of which `Duration::MAX` is none.
    pub(crate) fn longest(&self, max_wait: Duration) -> Option<Nanos> {
        let within = (self.within < Nanos::MAX).then_some(self.within);
        if max_wait == Duration::MAX {
            return within;
        }
        let max_wait = Nanos::from_duration(max_wait);
        Some(within.map_or(max_wait, |within| within.min(max_wait)))
    }

    pub(crate) fn demand(&self) -> Demand<'_, Ask> {
        Demand { ask: &self.ask, priority: self.priority }
    }

    /// Whether it has its answer.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// Whether it passes without a permit, and was not polled yet.
    pub(crate) fn is_exempt(&self) -> bool {
        matches!(self.stage, Stage::Exempt)
    }

    /// This request, for a grant that can be undone in part later.
    pub(crate) fn tracked(self) -> Progress<Ask> {
        Progress { kind: GrantKind::Tracked, ..self }
    }
}
