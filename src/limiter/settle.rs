//! A grant that its owner can settle later, in part or as a whole.

use std::fmt::{self, Debug};
use std::sync::Arc;

use crate::clock::Timer;
use crate::limiter::shared::Shared;
use crate::line::deferred::{Payload, run};
use crate::line::grants::Tracked;
use crate::line::rule::Single;
use crate::policy::Policy;
use crate::sync::lock;

/// Claims a reservation that is settled next. A claim panics if it wakes another request, and the
/// waker panics. Then it has served the queue, and a second claim takes the permits.
pub(crate) fn claim_to_settle(panic: &mut Option<Payload>, mut claim: impl FnMut() -> bool) {
    if run(panic, &mut claim).is_none() {
        run(panic, claim);
    }
}

/// A grant that the limiter can take back.
pub(crate) struct SettleableGrant<P: Policy, C: Timer> {
    pub(crate) shared: Arc<Shared<Single<P>, C>>,
    pub(crate) n: u32,
    /// `None` once the grant is final.
    pub(crate) grant: Option<Tracked<P::Charge>>,
}

impl<P: Policy, C: Timer> SettleableGrant<P, C> {
    /// Makes the grant final: `used` permits of it were used, or more than it.
    pub(crate) fn settle(mut self, used: u32) {
        let Some(Tracked { charge, id }) = self.grant.take() else { return };
        let SettleableGrant { shared, n, .. } = &self;
        let Single { policy, state } = &shared.rule;
        if used < *n
            && let Some(charge) = policy.unspent(charge, *n, used)
        {
            shared.undo(Tracked { charge, id }.into());
            return;
        }
        shared.serve_then(|line, visit| {
            line.make_final(id);
            if used > *n {
                policy.debit(state, line.latest(), used - *n);
                line.debited(used - *n);
                shared.retime(line, visit);
            }
        });
    }
}

impl<P: Policy, C: Timer> Drop for SettleableGrant<P, C> {
    fn drop(&mut self) {
        if let Some(Tracked { id, .. }) = self.grant.take() {
            lock(&self.shared.line).make_final(id);
        }
    }
}

impl<P: Policy, C: Timer> Debug for SettleableGrant<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettleableGrant").field("permits", &self.n).finish_non_exhaustive()
    }
}
