//! The least room since each grant of one state, from all moments in a list. A caller that uses a
//! policy directly passes it to [`Policy::undo`](tidegate::Policy::undo).

use tidegate::{Nanos, Policy};

#[derive(Default)]
pub(crate) struct Rooms {
    /// The room at each moment, less the permits undone since of grants made before it.
    moments: Vec<u64>,
    /// The level of the state after the last moment.
    level: u64,
    /// The number of moments when something other than a grant last happened.
    touched: usize,
}

impl Rooms {
    fn look<P: Policy>(&mut self, policy: &P, now: Nanos) {
        self.moments.push(self.level.saturating_sub(policy.full_level(now)));
    }

    /// Returns the value that undoes the grant.
    pub(crate) fn granted<P: Policy>(&mut self, policy: &P, now: Nanos, charge: P::Charge) -> usize {
        self.look(policy, now);
        self.level = policy.moved(charge).1;
        self.moments.len()
    }

    /// Called before a refund or a change, by the old terms; `then` is the refund or the change,
    /// and returns the level it left.
    pub(crate) fn touch<P: Policy>(&mut self, policy: &P, now: Nanos, then: impl FnOnce() -> u64) {
        self.look(policy, now);
        self.level = then();
        self.touched = self.moments.len();
    }

    pub(crate) fn undo<P: Policy>(
        &mut self,
        policy: &P,
        state: &P::State,
        now: Nanos,
        (charge, begun): (P::Charge, usize),
    ) {
        self.look(policy, now);
        let least = self.moments[begun..].iter().copied().min().unwrap_or(0);
        let (before, after) = policy.moved(charge);
        let back = least.min(after - before);
        self.moments[begun..].iter_mut().for_each(|room| *room -= back);
        let alone = self.touched < begun && self.level == after;
        self.level = policy.undo(state, now, charge, if alone { u64::MAX } else { back });
        self.touched = self.moments.len();
    }
}
