//! The terms of a key: the policy that reads its state.
//!
//! | terms | stored with a known key | follow a [change of all keys](super::KeyedRateLimiter::change_all) |
//! |---|---|---|
//! | the policy of all keys | nothing: the shard has it | yes |
//! | a plan | the address of the plan's [`Terms`], which the keys of a plan share | no |
//! | the policy of all keys, after the key had a plan | the address of [`Terms`] that are `common` | yes |
//!
//! The third row exists because a state is read by the policy that converted it last. Two policies
//! with equal numbers may still read a state differently: a bucket remembers when its refill
//! stopped.

use std::sync::Arc;

use crate::policy::Policy;

/// A policy that reads the states of keys.
pub(crate) struct Terms<P> {
    pub(super) policy: P,
    /// Whether these are the terms of all keys, and follow their changes.
    pub(super) common: bool,
}

/// A known key's terms and state, where keys have plans.
pub(crate) struct Planned<P: Policy> {
    /// `None` means the policy of the shard.
    pub(super) terms: Option<Arc<Terms<P>>>,
    pub(super) state: P::State,
}

impl<P: Policy> Planned<P> {
    /// Returns the policy and the state, in a shard with this policy.
    pub(super) fn read<'a>(&'a self, common: &'a P) -> (&'a P, &'a P::State) {
        (self.terms.as_ref().map_or(common, |terms| &terms.policy), &self.state)
    }

    /// Returns whether a change of all keys applies to this key.
    pub(super) fn is_common(&self) -> bool {
        self.terms.as_ref().is_none_or(|terms| terms.common)
    }
}

/// A key that left the table, with its terms and its state.
pub(crate) type Entry<K, P> = (K, Option<Arc<Terms<P>>>, <P as Policy>::State);
