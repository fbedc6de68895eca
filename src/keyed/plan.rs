//! Plans: a function returns the policy of a key.
//!
//! # Terms of a key
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

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::entries::{EntriesMut, Entry};
use super::key_policy::KeyPolicy;
use super::key_ref::KeyRef;
use super::shard::Shard;
use super::table::Table;
use crate::clock::Timer;
use crate::limiter::shared::Shared;
use crate::line::deferred::Deferred;
use crate::line::rule::Single;
use crate::policy::{Change, Keep, Policy};
use crate::sync::{read, write};
use crate::time::Nanos;

/// How many keys `replan` changes before it releases the lock of their shard.
const SLICE: usize = 1024;

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

/// A policy that reads the states of keys.
pub(crate) struct Terms<P> {
    pub(super) policy: P,
    /// Whether these are the terms of all keys, and follow their changes.
    pub(super) common: bool,
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

/// A known key, its hash, and the terms that the function returned; `None` means the terms of its
/// shard.
type Answer<'a, K, P> = (&'a K, u64, Option<Arc<Terms<P>>>);

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
    fn planned(&self, plans: &Plans<K, P>, key: &K) -> Option<Arc<Terms<P>>> {
        (plans.of)(key).map(|plan| plan.terms(self.clock.unix_time_at_zero()))
    }

    /// Returns the terms of a key that is not in the table.
    pub(super) fn terms_of_unknown<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Option<Arc<Terms<P>>> {
        self.plans.as_ref().and_then(|plans| self.planned(plans, &key.to_owned()))
    }

    /// Gives each known key the plan that the function returns for it now. Returns how many keys
    /// keep their old terms.
    pub(crate) fn replan(&self) -> usize
    where
        K: Clone,
    {
        let Some(plans) = &self.plans else { return 0 };
        let mut deferred = Deferred::new();
        let mut kept = 0;
        for shard in &self.shards {
            let version = write(shard).raise_version();
            let keys = read(shard).all_keys();
            for slice in keys.chunks(SLICE) {
                // If the function panics, the key keeps its terms.
                let plan = |key| {
                    let terms = deferred.run(|| (self.hash_of(key), self.planned(plans, key)))?;
                    Some((key, terms.0, terms.1))
                };
                let slice: Vec<_> = slice.iter().filter_map(plan).collect();
                let mut shard = write(shard);
                if shard.version() != version {
                    break;
                }
                kept += self.replan_slice(&mut shard, &slice, &mut deferred);
            }
        }
        // No lock of a shard is held here, because this wakes tasks.
        drop(deferred);
        kept
    }

    /// Gives keys of a shard their terms, with one clock reading.
    fn replan_slice(
        &self,
        shard: &mut Shard<K, P, C>,
        slice: &[Answer<'_, K, P>],
        deferred: &mut Deferred,
    ) -> usize {
        let at = self.clock.now();
        self.advance(shard, at, deferred);
        let mut kept = 0;
        let mut converted = Converted::new();
        for (key, hash, terms) in slice {
            if let Some(limiter) = shard.limiter(*hash, *key) {
                let new = shard.policy_of(terms);
                let done =
                    deferred.run_with(|deferred| limiter.shared.replan(new, terms.is_none(), at, deferred));
                kept += usize::from(done != Some(true));
                continue;
            }
            let (policy, EntriesMut::Planned(known)) = (shard.policy.clone(), shard.entries_mut()) else {
                continue;
            };
            if let Some(planned) = known.find_mut(*hash, *key) {
                let mut drops = Vec::new();
                deferred.run(|| planned.replan(&policy, terms.as_ref(), at, &mut converted, &mut drops));
                deferred.drops.append(&mut drops);
            }
        }
        shard.recheck_hold();
        kept
    }
}

/// A known key's terms and state, where keys have plans.
pub(crate) struct Planned<P: Policy> {
    /// `None` means the policy of the shard.
    pub(super) terms: Option<Arc<Terms<P>>>,
    pub(super) state: P::State,
}

/// The terms that states were converted to, by the addresses of the terms before and after, so that
/// the keys of a plan still share them. All conversions use one clock reading, because a time may
/// become part of the terms.
pub(super) struct Converted<P>(HashMap<(usize, usize), Arc<Terms<P>>>);

impl<P: Policy + Clone> Converted<P> {
    pub(super) fn new() -> Self {
        Converted(HashMap::new())
    }
}

impl<P: Policy> Planned<P> {
    /// Returns the policy and the state, in a shard with this policy.
    pub(super) fn read<'a>(&'a self, common: &'a P) -> (&'a P, &'a P::State) {
        (self.terms.as_ref().map_or(common, |terms| &terms.policy), &self.state)
    }

    /// Returns whether a change of all keys applies to this key.
    fn is_common(&self) -> bool {
        self.terms.as_ref().is_none_or(|terms| terms.common)
    }
}

impl<P: Policy + Clone> Planned<P> {
    /// Gives a known key other terms; `None` means the terms of its shard. Leaves the parts that
    /// are no longer used in `drops`.
    fn replan(
        &mut self,
        common: &P,
        new: Option<&Arc<Terms<P>>>,
        at: Nanos,
        converted: &mut Converted<P>,
        drops: &mut Vec<Pin<Box<dyn Send>>>,
    ) {
        let (old, _) = self.read(common);
        let policy = new.map_or(common, |terms| &terms.policy);
        let change = old.change_to(policy);
        let has_terms = || change.is_some() && change == old.change_to(old);
        if std::ptr::eq(old, policy) || (self.is_common() == new.is_none() && has_terms()) {
            return;
        }
        let change = change.map(|change| keep_fresh(change, old, &self.state, at));
        if let Some(terms) = change.and_then(|change| converted.change(self, common, policy, at, change)) {
            drops.push(Box::pin(self.terms.replace(terms)));
            return;
        }
        // The policy cannot become the other policy: the key starts over, with no more permits than
        // it has.
        let state = policy.restart(at);
        if !old.is_fresh(&self.state, at) {
            let mut had = Vec::with_capacity(P::PARTS);
            old.each_part(&self.state, None, &mut |part| had.push(part.status(at).available));
            let mut had = had.into_iter();
            policy.each_part(&state, None, &mut |part| {
                part.keep_at_most(at, had.next().unwrap_or(0));
            });
        }
        let new = Planned { terms: new.cloned(), state };
        let Planned { terms, state } = std::mem::replace(self, new);
        drops.push(Box::pin((terms, state)));
    }

    /// Applies a change of all keys to a key without a plan. Returns the key's previous terms, if
    /// they were replaced.
    pub(super) fn follow(
        &mut self,
        common: &P,
        at: Nanos,
        change: Change,
        converted: &mut Converted<P>,
    ) -> Option<Arc<Terms<P>>> {
        match &self.terms {
            // The state was read by the policy of the shard, which the change replaces.
            None => drop(P::clone(common).change(&self.state, at, change)),
            Some(terms) if terms.common => {
                let terms = converted.change(self, common, common, at, change)?;
                return self.terms.replace(terms);
            }
            Some(_) => {}
        }
        None
    }
}

/// Keeps a fresh key fresh. If the key were forgotten instead, it would come back full.
fn keep_fresh<P: Policy>(change: Change, policy: &P, state: &P::State, at: Nanos) -> Change {
    if policy.is_fresh(state, at) { change.keep(Keep::Ratio) } else { change }
}

impl<P: Policy + Clone> Converted<P> {
    /// Changes the state of a key to other terms. Returns the terms that read the state from then
    /// on, or `None` if nothing has changed.
    fn change(
        &mut self,
        planned: &Planned<P>,
        common: &P,
        new: &P,
        at: Nanos,
        change: Change,
    ) -> Option<Arc<Terms<P>>> {
        let (old, state) = planned.read(common);
        let by = (std::ptr::from_ref(old).addr(), std::ptr::from_ref(new).addr());
        // `Policy::change` changes a policy and one state together, so each state needs a clone of
        // the unchanged policy.
        let policy = P::clone(old);
        policy.change(state, at, change).ok()?;
        let is_common = std::ptr::eq(common, new);
        let make = || Arc::new(Terms { policy, common: is_common });
        Some(self.0.entry(by).or_insert_with(make).clone())
    }
}

impl<P: Policy, C: Timer> Shared<Single<KeyPolicy<P>>, C> {
    /// Gives the key of a key limiter other terms, unless it has its own terms. `common` says
    /// whether these are the terms of all keys. Returns `false` if the key limiter keeps its old
    /// terms for now.
    ///
    /// The caller holds the lock of a shard: user code is left in `deferred`.
    pub(crate) fn replan(
        self: &Arc<Self>,
        new: &P,
        common: bool,
        at: Nanos,
        deferred: &mut Deferred,
    ) -> bool {
        let policy = &self.rule.policy;
        let change = policy.policy().change_to(new);
        let is_same = change.is_some() && change == policy.policy().change_to(policy.policy());
        if policy.is_own() || (is_same && policy.is_common() == common) {
            return true;
        }
        let Some(change) = change else { return false };
        self.follow(deferred, change.only_part(), at, |state, now| {
            let change = keep_fresh(change, policy.policy(), state, at);
            let level = policy.policy().change_now(state, at, now, change)?;
            policy.set_apart(common);
            Ok(level)
        })
    }
}
