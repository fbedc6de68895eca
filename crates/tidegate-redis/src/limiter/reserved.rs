//! A booking at the store, as a reservation of the core.
//!
//! | stage | holds | next |
//! |---|---|---|
//! | `Waits` | a position in the queue of this process, or a booking that is sent, booked or due | `Decided`, by the store. While it is away: `Shared` or `Decided` |
//! | `Shared` | a reservation in the share of this process | stays, even when it is claimed |
//! | `Decided` | a grant that is used, or a refusal that may still ask for the state of the limits | stays |

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tidegate::{
    AllPermits, AllRefusal, AllRequest, AllStatus, AnyReservation, Grant, Nanos, Refusal, Reserved,
};

use crate::block_on::Blocks;
use crate::error::lacks_left;
use crate::guarded::guarded;
use crate::limiter::StoreLimiter;
use crate::limiter::request::{OwnedRequest, grant, left, report_granted};
use crate::line::{Granted, Outcome, Ticket};
use crate::observe::Watch;
use crate::script::{Answer, Operation};
use crate::set::{Costs, Fallback, exactly};
use crate::store::Away;

/// The reservation of a request.
pub(super) struct StoreReservation {
    of: StoreLimiter,
    ask: OwnedRequest,
    began: Nanos,
    stage: Stage,
    /// `Some` until the request is decided.
    watch: Option<Watch>,
    left: Option<AllStatus>,
    is_degraded: bool,
}

enum Stage {
    Waits(Ticket),
    /// In the share of this process. Until it is claimed, the limiter may be closed.
    Shared(AnyReservation, Option<Closed>),
    Decided(Result<(Grant, Option<Used>), AllRefusal>, Option<StateRequest>),
}

/// Completes when the limiter is closed.
type Closed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The state of the limits, while the store is asked for it.
type StateRequest = Pin<Box<dyn Future<Output = Option<AllStatus>> + Send>>;

/// How many permits of each member were used, and the time at which the grant was due.
struct Used(Vec<u64>, i64);

impl StoreReservation {
    /// Makes a reservation now.
    pub(super) fn new(of: &StoreLimiter, ask: OwnedRequest) -> StoreReservation {
        let nothing = Stage::Decided(Ok((Grant::new(0, Nanos::ZERO), None)), None);
        let watch = Watch::new(&of.line.set.observers, &ask.costs);
        let began = of.line.set.now();
        let (left, is_degraded) = (None, false);
        let mut reserved =
            StoreReservation { of: of.clone(), ask, began, stage: nothing, watch, left, is_degraded };
        if reserved.ask.all_else.exempt {
            reserved.watch.take().into_iter().for_each(Watch::exempted);
        } else if let Err(refusal) = of.line.set.check(&reserved.ask.costs) {
            reserved.refuse(refusal);
        } else {
            let mut asked = reserved.ask.asked(&of.line.set, reserved.longest(), began, false);
            // A blocked thread does not wait for a store that is away.
            asked.waits_for_store &= of.blocks == Blocks::No;
            reserved.stage = Stage::Waits(Ticket::new(&of.line, asked, None));
        }
        reserved
    }

    /// Returns whether the request is decided, and no call for the state of the limits is pending.
    pub(super) fn is_decided(&self) -> bool {
        matches!(self.stage, Stage::Decided(_, None))
    }

    /// Returns the refusal of a reservation that waits for nothing. Where the caller must not be
    /// blocked, a request for no permits is refused without the state of the limits.
    pub(super) fn refused_at_once(&self, blocks: Blocks) -> Option<AllRefusal> {
        let Stage::Decided(Err(refusal), asks) = &self.stage else { return None };
        let is_zero = blocks == Blocks::No && refusal.refusal() == Some(Refusal::ZeroPermits);
        (asks.is_none() || is_zero).then(|| refusal.clone())
    }

    /// Refuses a reservation that its caller gives up, unless it is refused already.
    pub(super) fn give_up(&mut self, refusal: AllRefusal) -> AllRefusal {
        if let Stage::Decided(Err(refusal), _) = &self.stage {
            return refusal.clone();
        }
        self.report(Err(&refusal));
        refusal
    }

    /// Waits until the reservation has a booking, which it keeps, or is refused.
    pub(super) fn poll_decided(&mut self, context: &mut Context<'_>) -> Poll<Result<(), AllRefusal>> {
        loop {
            match &mut self.stage {
                Stage::Waits(ticket) => match ready!(ticket.poll_decided(context)) {
                    Outcome::Granted(()) => return Poll::Ready(Ok(())),
                    Outcome::Refused(refusal) => self.refuse(refusal),
                    Outcome::Undecided(undecided) => self.decide_alone(undecided),
                },
                Stage::Shared(..) => return Poll::Ready(Ok(())),
                Stage::Decided(..) => return self.poll_answer(context).map_ok(drop),
            }
        }
    }

    /// Returns the result, with the state of the limits if the request asks for it.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Result<Grant, AllRefusal>> {
        let Stage::Decided(decision, asks) = &mut self.stage else { return Poll::Pending };
        if let Some(state) = asks {
            let state = ready!(state.as_mut().poll(context));
            *asks = None;
            if let (Err(refusal), Some(state)) = (&mut *decision, state) {
                *refusal = refusal.clone().with_left(state);
            }
        }
        Poll::Ready(match decision {
            Ok((grant, _)) => Ok(*grant),
            Err(refusal) => Err(refusal.clone()),
        })
    }

    fn longest(&self) -> Duration {
        self.of.rest(self.ask.all_else.within.unwrap_or(Duration::MAX), self.began)
    }

    fn report(&mut self, answer: Result<&AllPermits, &AllRefusal>) {
        if let Some(watch) = self.watch.take() {
            watch.answered(answer);
        }
    }

    /// Ends the reservation with a refusal. Refusals by the queue have the state of the limits
    /// already.
    fn refuse(&mut self, refusal: AllRefusal) {
        self.report(Err(&refusal));
        self.is_degraded |= refusal.is_degraded();
        let asks = self.ask.all_else.wants_left && lacks_left(&refusal);
        let of = self.of.clone();
        let asks = asks.then(|| -> StateRequest { Box::pin(async move { of.status().await.ok() }) });
        self.stage = Stage::Decided(Err(refusal), asks);
    }

    /// Decides the request without the store.
    fn decide_alone(&mut self, undecided: Away) {
        let set = self.of.line.set.clone();
        set.store.count_degraded();
        match self.of.line.fallback(undecided) {
            Fallback::Grant => {
                self.is_degraded = true;
                let grant = Grant::new(0, Nanos::ZERO);
                self.report(Ok(&AllPermits::from(grant).as_degraded()));
                self.stage = Stage::Decided(Ok((grant, None)), None);
            }
            Fallback::Refuse(refusal) | Fallback::Paused(refusal) => self.refuse(refusal),
            Fallback::Share(share) => match share.reserve(self.ask.request(self.longest())) {
                Ok(reservation) => {
                    self.is_degraded = true;
                    let mut closed = set.closed.subscribe();
                    let closed = async move { _ = guarded(closed.wait_for(|closed| *closed)).await };
                    self.stage = Stage::Shared(reservation, Some(Box::pin(closed)));
                }
                Err(refusal) => self.refuse(set.by_share(refusal, undecided.rest())),
            },
        }
    }

    /// Claims a reservation in the share that is due, and whose permits were used: it is settled
    /// like a claimed one.
    fn claim_share(&mut self) {
        if let Stage::Shared(reservation, Some(_)) = &mut self.stage
            && reservation.due_in().is_zero()
            && let Poll::Ready(Ok(grant)) =
                Pin::new(reservation).poll(&mut Context::from_waker(Waker::noop()))
        {
            self.report(Ok(&AllPermits::from(grant).as_degraded()));
        }
    }

    /// Takes the permits that the store granted.
    fn claim(&mut self, granted: &Granted) -> (Grant, Option<Used>) {
        self.of.line.set.log_grant(&granted.reply);
        if let Some(watch) = self.watch.take() {
            report_granted(watch, &self.of.line.set, granted);
        }
        self.left = left(&self.of.line, &self.ask, granted);
        let used: Vec<u64> = match granted.reply.answer {
            Answer::Shadow => vec![0; granted.reply.permits.len()],
            _ => granted.reply.permits.clone(),
        };
        let used = used.iter().any(|n| *n > 0).then_some(Used(used, granted.reply.due));
        (grant(&self.of.line.set, &self.ask, granted), used)
    }
}

impl Future for StoreReservation {
    type Output = Result<Grant, AllRefusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match &mut this.stage {
                Stage::Waits(ticket) => match ready!(Pin::new(ticket).poll(context)) {
                    Outcome::Granted(granted) => this.stage = Stage::Decided(Ok(this.claim(&granted)), None),
                    Outcome::Refused(refusal) => this.refuse(refusal),
                    Outcome::Undecided(undecided) => this.decide_alone(undecided),
                },
                Stage::Shared(reservation, closed) => {
                    if let Some(ends) = closed {
                        // If this reservation is polled late, it may be due only because the
                        // limiter was closed.
                        if ends.as_mut().poll(context).is_ready() {
                            this.refuse(Refusal::Closed.into());
                            continue;
                        }
                        // An unclaimed reservation gives its permits back.
                        if reservation.due_in().is_zero()
                            && let Some(refusal) = this.of.line.set.known_pause.refusal()
                        {
                            this.refuse(refusal);
                            continue;
                        }
                    }
                    let answer = ready!(Pin::new(reservation).poll(context)).map_err(AllRefusal::as_degraded);
                    *closed = None;
                    match &answer {
                        Ok(grant) => this.report(Ok(&AllPermits::from(*grant).as_degraded())),
                        Err(refusal) => this.report(Err(refusal)),
                    }
                    return Poll::Ready(answer);
                }
                Stage::Decided(..) => return this.poll_answer(context),
            }
        }
    }
}

impl Reserved for StoreReservation {
    fn due_in(&self) -> Duration {
        match &self.stage {
            Stage::Waits(ticket) => ticket.due_in(),
            Stage::Shared(reservation, _) => reservation.due_in(),
            Stage::Decided(..) => Duration::ZERO,
        }
    }

    fn blocking_claim(&mut self) -> Result<Grant, AllRefusal> {
        let StoreLimiter { line, blocks } = self.of.clone();
        let claimed = line.set.store.block_on_permits(blocks, self);
        claimed.unwrap_or_else(|| Err(Away::WOULD_BLOCK.refusal().into()))
    }

    fn left(&self) -> Option<AllStatus> {
        match &self.stage {
            Stage::Shared(reservation, _) => reservation.left(),
            _ => self.left.clone(),
        }
    }

    fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    fn settle(mut self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        let line = self.of.line.clone();
        let set = &line.set;
        let asked = self.ask.costs.iter().map(|(n, _)| *n).collect();
        let asked = set.used(asked, used)?;
        if matches!(self.stage, Stage::Waits(_)) && asked.iter().all(|n| *n == 0) {
            // Like a reservation that is dropped: its booking serves the next request.
            return Ok(());
        }
        if asked.iter().any(|n| *n > 0) {
            self.claim_share();
        }
        let nothing = Stage::Decided(Ok((Grant::new(0, Nanos::ZERO), None)), None);
        let reserved = match std::mem::replace(&mut self.stage, nothing) {
            Stage::Shared(reservation, _) => return reservation.settle(used.clone()),
            Stage::Waits(ticket) => match ticket.take() {
                Some(granted) => self.claim(&granted).1,
                // The reservation takes nothing, and the permits that were used are charged.
                None => {
                    set.send_detached(Operation::Debit, &exactly(asked));
                    return Ok(());
                }
            },
            Stage::Decided(decision, _) => decision.ok().and_then(|(_, used)| used),
        };
        let Some(Used(reserved, due)) = reserved else { return Ok(()) };
        let used_of_each = set.used(reserved.clone(), used)?;
        let rest = |of: &[u64], less: &[u64]| exactly(of.iter().zip(less).map(|(n, m)| n.saturating_sub(*m)));
        let (unused, beyond) = (rest(&reserved, &used_of_each), rest(&used_of_each, &reserved));
        let is_any = |costs: &Costs| costs.iter().any(|(n, _)| *n > 0);
        if is_any(&unused) {
            line.settle(due, &unused);
        }
        if is_any(&beyond) {
            set.send_detached(Operation::Debit, &beyond);
        }
        Ok(())
    }
}
