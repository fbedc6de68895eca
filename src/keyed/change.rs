//! A change of the terms of all keys.
//!
//! # How
//!
//! From shard to shard. In one exclusive section of each:
//!
//! | changes | by | so that |
//! |---|---|---|
//! | each line, unless it has terms of its own | [`Policy::change`] on its copy of the policy, under its line's lock | who waits is moved, and what the line leaves behind can be taken for a state of the shard |
//! | each known state | the same, on a clone of the shard's policy | no request finds it with the other policy |
//! | the policy | the same, on a clone that takes its place | a key that is added has the terms of its shard |
//!
//! All at one time by the clock, since that may become a part of the terms: at no rate a bucket
//! knows since when nothing comes in.
//!
//! **No permit is granted twice.** A request takes state and policy under the shared lock, so it
//! finds both from before or both from after. A line can be taken from while it changes; then it is
//! as when a plain limiter changes.
//!
//! **No line is missed.** Lines are made, found and settled under the lock of the shard. One that
//! is in the table has the terms of its shard, or terms of its own.
//!
//! **One change after the other.** A mutex lets one change go through all shards before the next
//! one begins.
//!
//! **Locks.** The mutex, then a shard, then a line; never another way round. Wakers and alarms are
//! foreign code. They are left in a [`Deferred`], which is worked off when no lock is held.
//!
//! **Panics.** A policy is foreign code, and its panic goes on when all is done. One that panics
//! for a state or a line does not keep the others from their change. One that panics for the policy
//! of a shard leaves that shard as it was.
//!
//! **Checked by** `loom-tests/keyed/table.rs`, with twins that change the states, the policy or the lines
//! in a section apart; and by `tests/keyed/change.rs`, against a plain limiter for each key.

use std::hash::Hash;
use std::sync::Arc;

use super::key_policy::KeyPolicy;
use super::shard::Shard;
use super::table::Table;
use crate::clock::Timer;
use crate::error::PolicyError;
use crate::limiter::shared::Shared;
use crate::line::deferred::Deferred;
use crate::line::rule::Single;
use crate::policy::{Change, Policy};
use crate::sync::{ShardLock, lock, write};
use crate::time::Nanos;

impl<K, P, C> Table<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// Changes the policy of all keys that have none of their own, and each state with it.
    ///
    /// Those who wait are woken when all are changed: wakers and alarms are foreign code, which may
    /// come back here.
    pub(crate) fn change_all(&self, change: Change) -> Result<(), PolicyError> {
        let mut deferred = Deferred::new();
        {
            let _one_at_a_time = lock(&self.changing);
            // First at a state of nobody: an error changes nothing.
            let (policy, now) = (self.policy(), self.clock.now());
            policy.change(&policy.start(now), now, change)?;
            for shard in &self.shards {
                self.change_shard(shard, change, &mut deferred);
            }
            self.overflow.shared().follow(change, self.clock.now(), &mut deferred);
        }
        drop(deferred);
        Ok(())
    }

    /// The same for the keys of one shard, at one time.
    fn change_shard(&self, lock: &ShardLock<Shard<K, P, C>>, change: Change, deferred: &mut Deferred<C>) {
        let shard = &mut *write(lock);
        let (at, old) = (self.clock.now(), shard.policy.clone());
        // A policy changes itself together with one state, so each state needs one that was not
        // changed yet. It was tried before whether this is an error.
        let changed = |state: &P::State| {
            let policy = P::clone(&old);
            let _ = policy.change(state, at, change);
            policy
        };
        // A policy that panics here leaves its shard as it is.
        let Some(new) = deferred.run(|| changed(&old.start(at))) else { return };
        // They go first, since permits are taken from them meanwhile.
        for (_, line) in shard.all_lines() {
            deferred.run_with(|deferred| line.shared().follow(change, at, deferred));
        }
        for (_, state) in shard.known.iter() {
            deferred.run(|| drop(changed(state)));
        }
        shard.policy = Arc::new(new);
        deferred.drops.push(Box::new(old));
    }
}

impl<P: Policy, C: Timer> Shared<Single<KeyPolicy<P>>, C> {
    /// Goes along with a change for all keys, made at `at`, unless the key has terms of its own.
    ///
    /// As [`change`](Shared::change), but for a caller that holds a lock: what runs foreign code is
    /// left to be done after that.
    pub(crate) fn follow(self: &Arc<Self>, change: Change, at: Nanos, deferred: &mut Deferred<C>) {
        let Single { policy, state } = &self.rule;
        let mut line = lock(&self.line);
        if policy.is_own() {
            return;
        }
        let now = self.clock.now();
        line.tell(now);
        let visit = &mut self.visit_at(now, deferred);
        line.serve(visit);
        if line.change(&self.rule, || policy.policy().change(state, at, change)).is_ok() {
            self.retime(&mut line, visit);
        }
        if line.serve(visit).is_some() {
            // Somebody waits, and no alarm is set to the new time.
            deferred.rechecks.push(self.clone());
        }
        self.tell_others(&line);
    }
}
