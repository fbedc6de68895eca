//! Changes the terms of all keys while requests run.
//!
//! # How
//!
//! The change proceeds shard by shard. In one exclusive section of each shard it changes:
//!
//! | what | how | reason |
//! |---|---|---|
//! | each key limiter, unless the key has a plan or its own terms | [`Policy::change`] on the key limiter's copy of the policy, under the line's lock | the requests that wait in the key limiter are rescheduled; a key limiter that is settled later leaves a state that fits the shard |
//! | each known state, unless the key has a plan | [`Policy::change`] on a clone of the shard's policy | no request finds a changed state with the old policy |
//! | the policy | [`Policy::change`] on a clone, which replaces the policy | a new key gets the terms of its shard |
//!
//! One clock reading serves the whole shard, because the time may become part of the terms: a
//! bucket at rate zero records when its refill stopped.
//!
//! **No permit is granted twice.** A request reads state and policy under the shared lock, so both
//! are from before the change or both are from after it. A request may take from a key limiter
//! while the key limiter changes, exactly as a request may take from a plain limiter while that
//! limiter changes.
//!
//! **No key limiter is missed.** A key limiter is created, found and settled under the lock of its
//! shard. So every key limiter in the table has the terms of its shard, or its own terms.
//!
//! **Changes do not interleave.** A mutex lets one change pass through all shards before the next
//! change begins.
//!
//! **Lock order.** The mutex, then a shard, then a key limiter. Wakers and timers are user code:
//! they are left in a [`Deferred`], which runs them when no lock is held.
//!
//! **Panics.** A policy is user code, and a clock as well. A panic is caught, and resumed when the
//! change is complete. If a policy panics for one state or one key limiter, the other keys still
//! change. If a policy panics while it changes itself, its shard stays as it was. If the clock
//! panics, the change goes on as of an earlier reading.
//!
//! **Checked by** `loom-tests/keyed.rs`, with twins that change the states, the policy or the key
//! limiters in a separate section, and by `tests/keyed/change.rs`, against a plain limiter for each
//! key.

use std::hash::Hash;
use std::sync::Arc;

use super::entries::EntriesMut;
use super::key_limiters::KeyLimiter;
use super::replan::Converted;
use super::shard::Shard;
use super::table::Table;
use crate::clock::Timer;
use crate::error::PolicyError;
use crate::limiter::shared::Shared;
use crate::line::Line;
use crate::line::deferred::Deferred;
use crate::line::grants::Changed;
use crate::line::rule::{Rule, Single};
use crate::line::settings::Drift;
use crate::line::visit::Visit;
use crate::policy::{Change, Keep, Policy};
use crate::sync::{ShardLock, lock, write};
use crate::time::Nanos;

impl<K, P, C> Table<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// Reads the clock during a change of all keys. If the clock panics, this is the earlier
    /// reading `at`, so that no keys are left out.
    pub(super) fn now_or(&self, at: Nanos, deferred: &mut Deferred) -> Nanos {
        deferred.run(|| self.clock.now()).unwrap_or(at)
    }

    /// Changes the policy of every key without its own terms, and each state with it.
    ///
    /// Waiters are woken after all shards have changed, because wakers and timers are user code and
    /// may call this limiter again.
    pub(crate) fn change_all(&self, change: Change) -> Result<(), PolicyError> {
        let mut deferred = Deferred::new();
        {
            let _one_at_a_time = lock(&self.changing);
            // The change is tried on a new state first: if the policy refuses the change, nothing
            // has changed yet.
            let (policy, now) = (self.policy(), self.clock.now());
            policy.change(&policy.start(now), now, change)?;
            for shard in &self.shards {
                self.change_shard(shard, change, now, &mut deferred);
            }
            let at = self.now_or(now, &mut deferred);
            self.overflow.change_with_all(change, at, &mut deferred);
        }
        // No lock of a shard is held here, because this wakes tasks.
        drop(deferred);
        Ok(())
    }

    /// Changes the keys of one shard, with one clock reading. The whole change began at `began`.
    fn change_shard(
        &self,
        lock: &ShardLock<Shard<K, P, C>>,
        change: Change,
        began: Nanos,
        deferred: &mut Deferred,
    ) {
        let shard = &mut *write(lock);
        let (at, old) = (self.now_or(began, deferred), shard.policy.clone());
        self.advance(shard, at, deferred);
        deferred.run(|| shard.forget_emptied(at));
        if change.keep == Some(Keep::Nothing) && (P::PARTS == 1 || change.only_part().is_none()) {
            shard.forget_empty();
        }
        // `Policy::change` changes a policy and one state together, so each state needs a clone of
        // the unchanged policy. The trial in `change_all` showed that the change is valid.
        let changed = |state: &P::State| {
            let policy = P::clone(&old);
            let _ = policy.change(state, at, change);
            policy
        };
        deferred.run(|| shard.convert_emptied(at, &changed));
        // If the policy panics here, the shard stays as it was.
        let Some(new) = deferred.run(|| changed(&old.start(at))) else { return };
        // Key limiters change first: requests take permits from a key limiter without the shard's
        // lock.
        for (_, limiter) in shard.all_limiters() {
            deferred.run_with(|deferred| limiter.change_with_all(change, at, deferred));
        }
        match shard.entries_mut() {
            EntriesMut::Plain(known) => {
                for state in known.values_mut() {
                    deferred.run(|| drop(changed(state)));
                }
            }
            EntriesMut::Planned(known) => {
                let mut converted = Converted::new();
                for planned in known.values_mut() {
                    let before = deferred.run(|| planned.follow(&old, at, change, &mut converted)).flatten();
                    if let Some(terms) = before {
                        deferred.drops.push(Box::pin(terms));
                    }
                }
            }
        }
        shard.policy = Arc::new(new);
        shard.recheck_hold();
        deferred.drops.push(Box::pin(old));
    }
}

impl<P: Policy, C: Timer> KeyLimiter<P, C> {
    /// Applies a change of all keys, made at `at`, unless the key has a plan or its own terms.
    pub(crate) fn change_with_all(&self, change: Change, at: Nanos, deferred: &mut Deferred) {
        if self.is_common() {
            // Common terms that a plan left stay as they are; only the policy of the shard changes.
            let drift = if self.terms.is_some() { Drift::Apart } else { Drift::None };
            let changed = Changed::by(&change, drift);
            self.limiter.shared.follow(deferred, changed, at, |Single { policy, state }, now| {
                policy.change_now(state, at, now, change)
            });
        }
    }
}

impl<P: Policy, C: Timer> Shared<Single<P>, C> {
    /// Changes the terms of one part of a key limiter, or of all parts, unless the key has its own
    /// terms. Returns `false` if the policy refused the change. `change` can read the clock; the
    /// change of all keys began at `at`.
    ///
    /// Like [`change`](Shared::change), but the caller holds the lock of a shard: user code is left
    /// in `deferred`.
    pub(super) fn follow(
        self: &Arc<Self>,
        deferred: &mut Deferred,
        changed: Changed,
        at: Nanos,
        change: impl FnOnce(&Single<P>, &dyn Fn() -> Nanos) -> Result<u64, PolicyError>,
    ) -> bool {
        self.with_all(at, deferred, |line, visit| {
            line.settings.has_own_terms() || self.change_terms(line, visit, changed, change).is_ok()
        })
    }
}

impl<R: Rule, C: Timer> Shared<R, C> {
    /// Changes a key limiter as a part of a change of all keys, which began at `at`.
    ///
    /// Like [`serve_then`](Shared::serve_then), but the caller holds the lock of a shard: user code
    /// is left in `deferred`.
    pub(super) fn with_all<T>(
        self: &Arc<Self>,
        at: Nanos,
        deferred: &mut Deferred,
        work: impl FnOnce(&mut Line<R, C>, &mut Visit<'_, R>) -> T,
    ) -> T {
        let mut line = lock(&self.line);
        let now = deferred.run(|| self.clock.now()).unwrap_or(line.latest().max(at));
        self.begin_visit(&mut line, now, deferred);
        let visit = &mut self.visit_at(now, deferred);
        line.serve(visit);
        let done = work(&mut line, visit);
        if line.serve(visit).is_some() {
            // A request waits, and its alarm is not yet set to its new due time.
            deferred.rechecks.push(self.clone());
        }
        self.publish(&line);
        done
    }
}
