//! A place that is booked in the store, as a reservation of the core.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate::{AllPermits, AllRefusal, AllRequest, AllStatus, AnyReservation, Grant, Nanos, Place};

use crate::limiter::StoreLimiter;
use crate::limiter::request::{Ask, grant, left};
use crate::line::{Granted, Outcome, Ticket};
use crate::observe::Watch;
use crate::script::{Answer, Operation};
use crate::set::Costs;

/// A place that is booked in the store.
pub(super) struct Reserved {
    of: StoreLimiter,
    ask: Ask,
    stage: Stage,
    /// Until it is claimed.
    watch: Option<Watch>,
    left: Option<AllStatus>,
}

enum Stage {
    /// It needs no permits.
    Free,
    /// No store decided.
    Unlimited,
    /// It stands in line, due or not.
    Waits(Ticket),
    /// What it got, which is used.
    Claimed(Result<(Grant, Used), AllRefusal>),
}

/// How many permits of each member were used, and the instant of the grant.
#[derive(Clone)]
struct Used(Vec<u64>, i64);

impl Reserved {
    pub(super) fn waits(of: &StoreLimiter, ask: Ask, ticket: Ticket, watch: Option<Watch>) -> Reserved {
        Reserved { of: of.clone(), ask, stage: Stage::Waits(ticket), watch, left: None }
    }

    pub(super) fn free(of: &StoreLimiter, ask: Ask) -> Reserved {
        Reserved { of: of.clone(), ask, stage: Stage::Free, watch: None, left: None }
    }

    /// Since no store decided.
    pub(super) fn unlimited(of: &StoreLimiter, ask: Ask) -> Reserved {
        Reserved { of: of.clone(), ask, stage: Stage::Unlimited, watch: None, left: None }
    }

    fn claim(&mut self, granted: &Granted) -> (Grant, Used) {
        self.of.0.log_grant(&granted.reply);
        if let Some(watch) = self.watch.take() {
            watch.granted(&self.of.0, granted);
        }
        self.left = left(&self.of.0, &self.ask, granted);
        let used: Vec<u64> = match granted.reply.answer {
            Answer::Shadow => vec![0; granted.reply.permits.len()],
            _ => granted.reply.permits.clone(),
        };
        // A place tells the sum of its permits, as that of an `AllOf` does.
        let sum = used.iter().fold(0_u64, |sum, n| sum.saturating_add(*n));
        let told = grant(&self.of.0, &self.ask, granted);
        let grant = Grant::new(u32::try_from(sum).unwrap_or(u32::MAX), granted.waited);
        (told.left().map_or(grant, |left| grant.with_left(left)), Used(used, granted.reply.due))
    }
}

impl Future for Reserved {
    type Output = Result<Grant, AllRefusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let ticket = match &mut this.stage {
            Stage::Free | Stage::Unlimited => return Poll::Ready(Ok(Grant::new(0, Nanos::ZERO))),
            Stage::Claimed(answer) => return Poll::Ready(answer.clone().map(|(grant, _)| grant)),
            Stage::Waits(ticket) => ticket,
        };
        let Poll::Ready(outcome) = Pin::new(ticket).poll(context) else { return Poll::Pending };
        let answer = match outcome {
            Outcome::Granted(granted) => Ok(this.claim(&granted)),
            Outcome::Refused(refusal) => Err(refusal),
            Outcome::Undecided(undecided) => Err(this.of.0.unavailable(undecided)),
        };
        if let (Err(refusal), Some(watch)) = (&answer, this.watch.take()) {
            watch.answered(Err(refusal));
        }
        this.stage = Stage::Claimed(answer.clone());
        Poll::Ready(answer.map(|(grant, _)| grant))
    }
}

impl Place for Reserved {
    fn due_in(&self) -> Duration {
        match &self.stage {
            Stage::Waits(ticket) => ticket.due_in(),
            Stage::Free | Stage::Unlimited | Stage::Claimed(_) => Duration::ZERO,
        }
    }

    fn left(&self) -> Option<AllStatus> {
        self.left.clone()
    }

    fn is_degraded(&self) -> bool {
        matches!(self.stage, Stage::Unlimited)
    }

    fn settle(mut self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        let reserved = match std::mem::replace(&mut self.stage, Stage::Free) {
            Stage::Waits(ticket) => ticket.take().map(|granted| self.claim(&granted).1),
            Stage::Claimed(answer) => answer.ok().map(|(_, used)| used),
            Stage::Free | Stage::Unlimited => None,
        };
        // What the request does not tell was used as reserved.
        let set = &self.of.0;
        let mut told = reserved.as_ref().map_or_else(|| vec![0; set.members.len()], |Used(n, _)| n.clone());
        if let Some(others) = used.others() {
            told = vec![others.into(); told.len()];
        }
        for (name, n) in used.costs() {
            told[set.find(name)?] = n.into();
        }
        let Some(Used(reserved, due)) = reserved.filter(|Used(n, _)| n.iter().any(|n| *n > 0)) else {
            return Ok(());
        };
        let difference = |more: fn(u64, u64) -> u64| -> Costs {
            reserved
                .iter()
                .zip(&told)
                .map(|(reserved, used)| more(*reserved, *used))
                .map(|n| (n, n))
                .collect()
        };
        let unused = difference(|reserved, used| reserved.saturating_sub(used));
        let beyond = difference(|reserved, used| used.saturating_sub(reserved));
        for (operation, costs) in [(Operation::Refund { due }, unused), (Operation::Debit, beyond)] {
            if costs.iter().any(|(n, _)| *n > 0) {
                set.tell(operation, &costs, &[]);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("due_in", &self.due_in()).finish_non_exhaustive()
    }
}

/// A place in the share of this process.
pub(super) struct Degraded {
    pub(super) place: AnyReservation,
    /// Until it is claimed.
    pub(super) watch: Option<Watch>,
}

impl Future for Degraded {
    type Output = Result<Grant, AllRefusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.place).poll(context)).map_err(AllRefusal::as_degraded);
        if let Some(watch) = self.watch.take() {
            match &answer {
                Ok(grant) => watch.answered(Ok(&AllPermits::from(*grant).as_degraded())),
                Err(refusal) => watch.answered(Err(refusal)),
            }
        }
        Poll::Ready(answer)
    }
}

impl Place for Degraded {
    fn due_in(&self) -> Duration {
        self.place.due_in()
    }

    fn left(&self) -> Option<AllStatus> {
        self.place.left()
    }

    fn is_degraded(&self) -> bool {
        true
    }

    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.place.settle(used.clone())
    }
}
