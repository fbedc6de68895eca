//! The demand of a request, and its result.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::{AllPermits, AllRefusal, AllRequest, AllStatus, Grant, Nanos, Refusal, Request};

use crate::line::{Granted, Line, QueuedRequest};
use crate::observe::Watch;
use crate::script::Answer;
use crate::set::{Costs, Set};
use crate::store::WhileAway;

/// The demand of a request, without a borrow.
#[derive(Clone)]
pub(super) struct OwnedRequest {
    pub(super) costs: Costs,
    named: Vec<(String, u32)>,
    others: Option<u32>,
    /// The rest of the request.
    pub(super) all_else: Request,
}

impl OwnedRequest {
    pub(super) fn new(set: &Set, request: &AllRequest<'_>) -> Result<OwnedRequest, AllRefusal> {
        let all_else = request.to_request();
        let Request { permits, most, .. } = all_else;
        Ok(OwnedRequest {
            costs: set.costs(request, (permits.into(), most.max(permits).into()))?,
            named: request.costs().map(|(name, n)| (name.to_owned(), n)).collect(),
            others: request.others(),
            all_else,
        })
    }

    /// Returns the request as it joins the queue. It came at `came`.
    pub(super) fn asked(&self, set: &Set, longest: Duration, came: Nanos, droppable: bool) -> QueuedRequest {
        let shadow = set.shadow.load(Ordering::Relaxed);
        let waits = longest > Duration::ZERO && set.store.while_away() == WhileAway::Wait;
        QueuedRequest {
            costs: self.costs.clone(),
            longest,
            came,
            shadow,
            priority: self.all_else.priority,
            droppable,
            waits_for_store: waits && !shadow,
            with_left: self.all_else.wants_left,
        }
    }

    /// Returns the request again, with a wait of at most `longest`.
    pub(super) fn request(&self, longest: Duration) -> AllRequest<'_> {
        let Request { priority, .. } = self.all_else;
        let mut request = match self.others {
            Some(_) => AllRequest::from(self.all_else),
            None => AllRequest::new().priority(priority),
        };
        if longest < Duration::MAX {
            request = request.within(longest);
        }
        if self.all_else.wants_left {
            request = request.with_left();
        }
        self.named.iter().fold(request, |request, (name, n)| request.cost(name, *n))
    }
}

/// The result of a request.
pub(super) enum Admitted {
    Booked(Granted),
    /// The share of this process granted the permits, after an earlier wait.
    Shared(AllPermits, Duration),
    /// The request is exempt, and passes without permits.
    Exempt,
    /// The request passes without permits after a wait, because no store decided.
    Unlimited(Duration),
}

impl Admitted {
    pub(super) fn permits(self, line: &Arc<Line>, ask: &OwnedRequest) -> AllPermits {
        match self {
            Admitted::Shared(permits, before) => {
                // No guard is lost: the permits of rates are used up.
                let grant = Grant::new(permits.permits(), permits.waited().saturating_add(before));
                let shared = AllPermits::from(grant).as_degraded();
                permits.left().cloned().into_iter().fold(shared, AllPermits::with_left)
            }
            Admitted::Exempt => Grant::new(0, Nanos::ZERO).into(),
            Admitted::Unlimited(before) => AllPermits::from(Grant::new(0, before)).as_degraded(),
            Admitted::Booked(granted) => {
                let permits = AllPermits::from(grant(&line.set, ask, &granted));
                match left(line, ask, &granted) {
                    Some(left) => permits.with_left(left),
                    None => permits,
                }
            }
        }
    }
}

pub(super) fn grant(set: &Set, ask: &OwnedRequest, granted: &Granted) -> Grant {
    if granted.reply.answer == Answer::Shadow {
        return Grant::new(0, Nanos::ZERO);
    }
    // A grant reports the permits of the only member, or of a member that the request does not
    // name. If the request names all members, the grant reports the request's own number.
    let is_named = |name: &str| ask.named.iter().any(|(named, _)| named == name);
    let unnamed = set.members.iter().position(|member| !is_named(&member.name));
    let permits = match (&granted.reply.permits[..], unnamed) {
        ([permits], _) => *permits,
        (all, Some(i)) => all[i],
        (_, None) => ask.all_else.permits.into(),
    };
    let grant = Grant::new(u32::try_from(permits).unwrap_or(u32::MAX), granted.waited);
    match set.tightest(&granted.reply).filter(|_| ask.all_else.wants_left) {
        Some((_, left)) => grant.with_left(left),
        None => grant,
    }
}

/// Returns what a grant left in each limit, if the request asks for it.
pub(super) fn left(line: &Arc<Line>, ask: &OwnedRequest, granted: &Granted) -> Option<AllStatus> {
    let reply = &granted.reply;
    // A request in shadow mode did not wait.
    let passed = if reply.answer == Answer::Shadow { Duration::ZERO } else { reply.wait };
    ask.all_else.wants_left.then(|| line.status_of(reply, passed))
}

/// Notifies the observers of the store's decision.
pub(super) fn report_granted(watch: Watch, set: &Set, granted: &Granted) {
    let Granted { reply, waited, .. } = granted;
    if reply.answer == Answer::Shadow {
        let refusal = set.refusal(reply, Duration::ZERO).refusal();
        return watch.shadowed(&refusal.unwrap_or(Refusal::Limited { retry_after: Nanos::ZERO }));
    }
    watch.granted(reply.permits.iter().sum(), *waited, set.tightest(reply));
}
