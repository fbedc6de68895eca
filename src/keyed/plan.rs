//! Plans: a function returns the policy of a key.
//!
//! # When the function runs
//!
//! The function runs when a key is added, and in [`replan`](Table::replan). It is user code: it may
//! panic, block or call the limiter. So it runs without a lock, between two sections:
//!
//! | a new key | `replan`, shard by shard |
//! |---|---|
//! | 1 reads the version of the shard, under its lock | 1 raises the version, under the lock |
//! | 2 calls the function | 2 copies the keys of the shard, under the lock |
//! | 3 adds the key, under the exclusive lock, if the version is unchanged since 1. Otherwise it begins again | 3 calls the function for each key |
//! | | 4 changes the keys, under the exclusive lock, if the version is unchanged since 1 |
//!
//! **No key keeps a plan from before a `replan`.** A key that is added before step 1 of `replan` is
//! among the keys of step 2. A key that is added after step 1 read the version either before or
//! after step 1. If it read the version before step 1, it finds another version in its own step 3.
//! If it read the version after step 1, its function call begins after `replan` began.
//!
//! **Two `replan`s.** The `replan` that raises the version later also calls the function later, so
//! its plans are at least as new. The other `replan` changes nothing more.
//!
//! **Progress.** A request begins again only if a `replan` began meanwhile.
//!
//! A panic of the function leaves the key as it is: a new key is not added, and a known key keeps
//! its plan. `replan` continues with the other keys, and the panic resumes at its end.
//!
//! **Checked by** `loom-tests/keyed.rs`, with a twin that adds a key without checking the version,
//! and by `tests/keyed/plans.rs`.

use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::key_ref::KeyRef;
use super::shard::Shard;
use super::table::Table;
use super::terms::{Entry, Terms};
use crate::clock::Timer;
use crate::policy::Policy;
use crate::sync::read;

/// A policy for one key or for many. Clones share the policy, so a plan costs memory once, however
/// many keys have it.
///
/// [`KeyedRateLimiter::with_plans`](crate::KeyedRateLimiter::with_plans) gives plans to keys.
pub struct Plan<P> {
    shared: Arc<Origin<P>>,
}

struct Origin<P> {
    policy: P,
    /// The policy on the clock of the first limiter that uses this plan, and that clock's epoch.
    started: OnceLock<(Duration, Arc<Terms<P>>)>,
}

impl<P: Policy + Clone> Plan<P> {
    /// Creates a plan from a policy.
    #[must_use]
    pub fn new(policy: P) -> Plan<P> {
        Plan { shared: Arc::new(Origin { policy, started: OnceLock::new() }) }
    }

    /// Returns the policy of this plan, as it was passed to [`new`](Plan::new).
    #[must_use]
    pub fn policy(&self) -> &P {
        &self.shared.policy
    }

    /// Returns the terms for a clock with this epoch.
    fn terms(&self, epoch: Duration) -> Arc<Terms<P>> {
        let make = || {
            let policy = P::clone(&self.shared.policy).with_epoch(epoch);
            Arc::new(Terms { policy, common: false })
        };
        let started = &self.shared.started;
        if started.get().is_none() {
            // The terms are created before the call, so that no user code runs while another thread
            // waits.
            let new = (epoch, make());
            let _ = started.set(new);
        }
        match started.get() {
            Some((of, terms)) if *of == epoch => terms.clone(),
            // A limiter with another clock has its own terms, for each key.
            _ => make(),
        }
    }
}

impl<P: Policy + Clone> From<P> for Plan<P> {
    fn from(policy: P) -> Plan<P> {
        Plan::new(policy)
    }
}

impl<P> Clone for Plan<P> {
    fn clone(&self) -> Plan<P> {
        Plan { shared: self.shared.clone() }
    }
}

impl<P: fmt::Debug> fmt::Debug for Plan<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Plan").field(&self.shared.policy).finish()
    }
}

type PlanOf<K, P> = dyn Fn(&K) -> Option<Plan<P>> + Send + Sync;

/// The function that returns the plans of keys.
pub(crate) struct Plans<K, P> {
    of: Arc<PlanOf<K, P>>,
}

impl<K, P> Clone for Plans<K, P> {
    fn clone(&self) -> Self {
        Plans { of: self.of.clone() }
    }
}

impl<K, P> Plans<K, P> {
    pub(crate) fn new(of: impl Fn(&K) -> Option<Plan<P>> + Send + Sync + 'static) -> Self {
        Plans { of: Arc::new(of) }
    }
}

/// A key that is about to be added, with its terms; `None` means the terms of its shard.
pub(crate) struct NewKey<K, P> {
    pub(crate) key: K,
    pub(super) terms: Option<Arc<Terms<P>>>,
    /// The version of the shard's plans before the function was called.
    version: u64,
}

impl<K, P: Policy> NewKey<K, P> {
    /// Returns the entry of this key with a state.
    pub(crate) fn into_entry(self, state: P::State) -> Entry<K, P> {
        (self.key, self.terms, state)
    }

    /// Returns whether its plan may be outdated.
    pub(super) fn is_outdated<C: Timer>(&self, shard: &Shard<K, P, C>) -> bool
    where
        P: Policy + Clone,
    {
        shard.version() != self.version
    }
}

impl<K, P, C> Table<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// Clones a key and gets its plan. The caller holds no lock.
    pub(crate) fn new_key<Q: KeyRef<K> + ?Sized>(&self, hash: u64, key: &Q) -> NewKey<K, P> {
        let Some(plans) = &self.plans else {
            return NewKey { key: key.to_owned(), terms: None, version: 0 };
        };
        let version = read(self.shard(hash)).version();
        let key = key.to_owned();
        let terms = self.planned(plans, &key);
        NewKey { key, terms, version }
    }

    /// Returns the terms that the function returns for a key. Runs user code.
    pub(super) fn planned(&self, plans: &Plans<K, P>, key: &K) -> Option<Arc<Terms<P>>> {
        (plans.of)(key).map(|plan| plan.terms(self.clock.unix_time_at_zero()))
    }

    /// Returns the terms of a key that is not in the table.
    pub(super) fn terms_of_unknown<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Option<Arc<Terms<P>>> {
        self.plans.as_ref().and_then(|plans| self.planned(plans, &key.to_owned()))
    }
}
