//! Gives known keys other terms: the plans that the function returns for them now, or the terms of
//! a change of all keys. `keyed/plan.rs` has the argument for a `replan` while requests run.

use std::collections::HashMap;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;

use super::entries::EntriesMut;
use super::key_limiters::KeyLimiter;
use super::shard::Shard;
use super::table::Table;
use super::terms::{Planned, Terms};
use crate::clock::Timer;
use crate::line::deferred::Deferred;
use crate::line::grants::Changed;
use crate::line::rule::Single;
use crate::line::settings::Drift;
use crate::policy::{Change, Keep, Policy};
use crate::sync::{read, write};
use crate::time::Nanos;

/// How many keys `replan` changes before it releases the lock of their shard.
const SLICE: usize = 1024;

/// A known key, its hash, and the terms that the function returned; `None` means the terms of its
/// shard.
type Answer<'a, K, P> = (&'a K, u64, Option<Arc<Terms<P>>>);

impl<K, P, C> Table<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
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
            let policy = shard.policy.clone();
            let (EntriesMut::Planned(known), Some(limiters)) = shard.parts() else { continue };
            if let Some(limiter) = limiters.find_mut(*hash, *key) {
                let done =
                    deferred.run_with(|deferred| limiter.replan(&policy, terms.as_ref(), at, deferred));
                kept += usize::from(done != Some(true));
            } else if let Some(planned) = known.find_mut(*hash, *key) {
                let mut drops = Vec::new();
                deferred.run(|| planned.replan(&policy, terms.as_ref(), at, &mut converted, &mut drops));
                deferred.drops.append(&mut drops);
            }
        }
        shard.recheck_hold();
        kept
    }
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
        // The key of a policy without permits is fresh, and has none.
        if !old.is_fresh(&self.state, at) || old.status(&self.state, at).limit == 0 {
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

impl<P: Policy, C: Timer> KeyLimiter<P, C> {
    /// Gives the key of a key limiter other terms, unless it has its own terms; `None` means the
    /// terms of its shard. Returns `false` if the key limiter keeps its old terms for now.
    ///
    /// The caller holds the lock of a shard: user code is left in `deferred`.
    fn replan(
        &mut self,
        common: &P,
        new: Option<&Arc<Terms<P>>>,
        at: Nanos,
        deferred: &mut Deferred,
    ) -> bool {
        let policy = self.limiter.policy();
        let change = policy.change_to(new.map_or(common, |terms| &terms.policy));
        let is_same = change.is_some() && change == policy.change_to(policy);
        if self.has_own_terms() || (is_same && self.is_common() == new.is_none()) {
            return true;
        }
        let Some(change) = change else { return false };
        let (terms, mut old) = (&mut self.terms, None);
        let changed = Changed::by(&change, Drift::Apart);
        let changed = self.limiter.shared.follow(deferred, changed, at, |Single { policy, state }, now| {
            let change = keep_fresh(change, policy, state, at);
            let level = policy.change_now(state, at, now, change)?;
            old = std::mem::replace(terms, new.cloned());
            Ok(level)
        });
        if let Some(old) = old {
            deferred.drops.push(Box::pin(old));
        }
        changed
    }
}
